"""Programs that make model folders: train one, make one up, import one from GGUF."""
