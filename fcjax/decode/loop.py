"""Decode over the nodes: audited programs, caches that stay on their owners, one token a step.

A prompt's tokens but the last are put into the caches in chunks (prefill); then every step takes
one token of each row, the prompt's last one first, and gives the next.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from fcjax.decode.decoder import Decoder, Output


@dataclasses.dataclass(frozen=True)
class Step:
    """One pass: the tokens that went in, at which positions, and what came out.

    Attributes:
      index: 0, 1, ... for decode steps; the prefill passes before them count up to -1.
      tokens_in: int32 [B, T]; T = 1 in a decode step. A row's chunk is filled up with token 0.
      pos: int32 [B].
      own: bool [B, T], which tokens are the row's own; the others fill its chunk up.
      output: what is still on the nodes.
      tokens_out: int32 [B, 1]; None in prefill.
    """

    index: int
    tokens_in: np.ndarray
    pos: np.ndarray
    own: np.ndarray
    output: Output
    tokens_out: np.ndarray | None


def chunks(
    prompts: Sequence[np.ndarray], size: int, cached_B=None
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Every prompt's tokens but the last as passes of `size` tokens: (tokens_BT, pos_B) of each.

    The first `cached_B` tokens of each row are left out. Rows are filled up with token 0, after
    their own tokens: nothing reads those slots before they are written again.
    """
    ends_B = np.array([len(p) - 1 for p in prompts], np.int32)
    starts_B = np.zeros_like(ends_B) if cached_B is None else np.asarray(cached_B, np.int32)
    passes = []
    for done in range(0, int(max(ends_B - starts_B)), size):
        pos_B = np.minimum(starts_B + done, ends_B)
        tokens_BT = np.zeros((len(prompts), size), np.int32)
        for row, prompt in enumerate(prompts):
            part = prompt[pos_B[row] : min(pos_B[row] + size, ends_B[row])]
            tokens_BT[row, : len(part)] = part
        passes.append((tokens_BT, pos_B))
    return passes


def decode(decoder: Decoder, prompts, steps: int, eos=(), cached_B=None) -> Iterator[Step]:
    """Prefill, then one token a step.

    Args:
      decoder: with empty caches, but for what `cached_B` says.
      prompts: int array of each row.
      steps: at most so many decode steps.
      eos: ids that end a row; decoding stops when every row has ended. Until then an ended row
        goes on, and what it gives is to be left out.
      cached_B: of each row, how many of the prompt's first tokens are in the caches already, from
        an earlier run; less than all. [none]

    Raises:
      ValueError: wrong number of prompts, an empty one, one that does not fit into the caches, or
        one whose last token is said to be in them.
      FloatingPointError: no logit of a row is a number.
    """
    batch, length = decoder.programs.batch, decoder.programs.length
    prompts = [np.asarray(p, np.int32) for p in prompts]
    if len(prompts) != batch:
        raise ValueError(f"prompts: expected {batch}, one for each row, got {len(prompts)}")
    for row, prompt in enumerate(prompts):
        if prompt.ndim != 1 or not len(prompt):
            raise ValueError(f"prompt {row}: expected at least one token, got {prompt.tolist()}")
        if len(prompt) + steps > length:
            raise ValueError(
                f"cache: expected at most {length} tokens, got prompt {row} of {len(prompt)}"
                f" and {steps} more"
            )
    cached_B = [0] * batch if cached_B is None else list(cached_B)
    if len(cached_B) != batch or any(
        not 0 <= c < len(p) for c, p in zip(cached_B, prompts, strict=False)
    ):
        raise ValueError(
            f"cached: expected {batch} numbers of tokens, less than {[len(p) for p in prompts]},"
            f" got {cached_B}"
        )
    passes = chunks(prompts, decoder.programs.chunk, cached_B)
    ends_B = np.array([len(p) - 1 for p in prompts], np.int32)
    for index, (tokens_BT, pos_B) in enumerate(passes, start=-len(passes)):
        own_BT = pos_B[:, None] + np.arange(tokens_BT.shape[1])[None] < ends_B[:, None]
        yield Step(index, tokens_BT, pos_B, own_BT, decoder.step(tokens_BT, pos_B), None)
    tokens_in, pos_B = np.array([[p[-1]] for p in prompts], np.int32), ends_B
    tokens, own_B1 = tokens_in, np.ones((batch, 1), bool)
    decoder.begin(prompts)
    ended = np.zeros(batch, bool)
    for index in range(steps):
        output = decoder.step(tokens, pos_B)
        tokens, tokens_out = output.values["next_tokens"], output.next_tokens
        if tokens_out.max() >= decoder.programs.model.plan.cfg.V:
            raise FloatingPointError(f"step {index}: expected a number among the logits of a row")
        yield Step(index, tokens_in, pos_B, own_B1, output, tokens_out)
        ended |= np.isin(tokens_out[:, 0], list(eos))
        if ended.all():
            return
        tokens_in, pos_B = tokens_out, pos_B + 1
