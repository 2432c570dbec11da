"""Greedy decode of Hugging Face transformers on torch, as a second, independent reference.

torch is an oracle: nothing but comparisons imports it.
"""

import dataclasses

import numpy as np

from fcjax.decode import parity
from fcjax.decode.decoder import Decoder
from fcjax.decode.loop import decode


def greedy(folder, prompt_T, steps: int) -> tuple[list[int], np.ndarray]:
    """The tokens that transformers goes on with in f32, and the logits [steps, V] they came from.

    End-of-text tokens do not end it.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    out = model.generate(
        torch.asarray(np.asarray(prompt_T), dtype=torch.int64)[None],
        attention_mask=torch.ones((1, len(prompt_T)), dtype=torch.int64),
        do_sample=False, repetition_penalty=1.0, min_new_tokens=steps, max_new_tokens=steps,
        eos_token_id=None, pad_token_id=0, output_logits=True, return_dict_in_generate=True,
    )
    logits = torch.cat(out.logits).float().numpy()
    return out.sequences[0, len(prompt_T) :].tolist(), logits


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A greedy decode held against transformers.

    Attributes:
      steps: steps that were compared: all, or those up to the first other token.
      worst: largest |out - ref| / |ref| of a step's logits, the reference being transformers.
      difference: the first step whose token is another one, or None.
      margin: the reference's largest logit less its second largest there, over |ref|.
    """

    steps: int
    worst: float
    difference: int | None = None
    margin: float = 0.0

    @property
    def passed(self) -> bool:
        """Every step within the bound, and another token only where rounding can explain it."""
        bound = parity.BOUND["float32"]
        return self.worst <= bound and (self.difference is None or self.margin <= bound)

    def __str__(self):
        text = f"logits within {self.worst:.1e} of transformers over {self.steps} steps"
        if self.difference is None:
            return f"{text}, the text identical"
        return f"{text}; another token at step {self.difference}, margin {self.margin:.1e}"


def compare(decoder: Decoder, prompt_T, tokens: list[int], logits: np.ndarray) -> Comparison:
    """Decode greedily and hold every step against what `greedy` gave.

    Args:
      decoder: of one row, with empty caches, choosing the largest logit.
      prompt_T: the prompt that `greedy` was given.
      tokens, logits: what it gave.
    """
    cfg = decoder.programs.model.plan.cfg
    worst = 0.0
    for step in decode(decoder, [prompt_T], len(tokens)):
        if step.index < 0:
            continue
        ref_1V = logits[step.index : step.index + 1]
        own_1V = step.output.shards(cfg)["logits"]
        worst = max(worst, parity.row_error(own_1V, ref_1V))
        if step.tokens_out[0, 0] != tokens[step.index]:
            second, first = np.sort(ref_1V[0].astype(np.float64))[-2:]
            margin = float((first - second) / np.linalg.norm(ref_1V.astype(np.float64)))
            return Comparison(step.index + 1, worst, step.index, margin)
    return Comparison(len(tokens), worst)
