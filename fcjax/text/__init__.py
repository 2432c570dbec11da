"""From characters to token ids and back: tokenizer, chat, settings, generation."""
