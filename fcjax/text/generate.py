"""From prompts to text: rows that end by themselves, pieces as they become certain, timing.

It knows nothing about flags or terminals; `experiments.generate` is its program.
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from fcjax.decode.audited import Programs
from fcjax.decode.decoder import Decoder
from fcjax.decode.loop import Step, decode
from fcjax.text.tokenizer import Stream, Text


@dataclasses.dataclass(frozen=True)
class Piece:
    """Some text of a row.

    Attributes:
      row: whose.
      text: certain from now on; may be "" in the last piece.
      last: nothing follows in this row.
    """

    row: int
    text: str
    last: bool


@dataclasses.dataclass(frozen=True)
class Row:
    """What became of one prompt.

    Attributes:
      prompt: its token ids [T].
      cached: of these, how many were in the caches from an earlier run.
      ids: the new token ids, with the end-of-text token if one was chosen.
      text: of the new tokens.
      finish: "stop" if an end-of-text token was chosen, "length" if there were enough tokens.
    """

    prompt: np.ndarray
    cached: int
    ids: tuple[int, ...]
    text: str
    finish: str


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of a batch.

    Attributes:
      rows: in the order of the prompts.
      first_seconds: from the start, prefill included, to each row's first token.
      seconds: from the start to the last token.
    """

    rows: tuple[Row, ...]
    first_seconds: float
    seconds: float

    @property
    def tokens_per_second(self) -> float | None:
        """Of all rows together, after their first tokens; None if there are none."""
        more = sum(len(row.ids) - 1 for row in self.rows)
        return more / (self.seconds - self.first_seconds) if more else None

    def summary(self) -> str:
        """One line for each row, and one about speed."""
        lines = [
            f"row {i}: {len(row.prompt)} prompt tokens"
            f"{f' ({row.cached} of them in the caches)' if row.cached else ''},"
            f" {len(row.ids)} new, finish: {row.finish}"
            for i, row in enumerate(self.rows)
        ]
        rate = self.tokens_per_second
        speed = "" if rate is None else f", then {rate:.1f} tokens/s"
        return "\n".join([*lines, f"speed: first token after {self.first_seconds:.3f} s{speed}"])


def room(prompts: Sequence[np.ndarray], limit: int, wanted: int | None, default: int) -> int:
    """How many new tokens each row may have.

    Args:
      prompts: token ids of each row.
      limit: tokens that a row may have in all.
      wanted: new tokens that the user asked for, if any.
      default: taken where there is room for it, if the user asked for none.

    Raises:
      ValueError: a prompt leaves no room, or not as much as is wanted; the row is named.
    """
    row = max(range(len(prompts)), key=lambda i: len(prompts[i]))
    left = limit - len(prompts[row])
    if left < 1:
        raise ValueError(
            f"prompt {row}: expected at most {limit - 1} tokens and one to be made, as there are"
            f" {limit} positions, got {len(prompts[row])}"
        )
    if wanted is not None and wanted > left:
        raise ValueError(
            f"max_new_tokens: expected at most {left} after the {len(prompts[row])} tokens of"
            f" prompt {row}, as there are {limit} positions, got {wanted}"
        )
    return min(default, left) if wanted is None else wanted


def passes(programs: Programs, longest: int) -> list[int]:
    """Numbers of tokens T of the passes for prompts of at most so many tokens, prefill first."""
    return [programs.chunk, 1] if longest > 1 else [1]


class Batch:
    """The rows of a batch while they are made."""

    def __init__(
        self,
        prompts: Sequence[np.ndarray],
        text: Text,
        max_new_tokens: int,
        show: Callable[[Piece], None] = lambda piece: None,
        cached: Sequence[int] | None = None,
    ):
        """
        Args:
          prompts: token ids [T] of each row.
          text: the tokenizer; its end-of-text ids end a row.
          max_new_tokens: of each row.
          show: called with every piece of text.
          cached: see `Row.cached`.
        """
        self._eos, self._most, self._show = text.eos, max_new_tokens, show
        cached = [0] * len(prompts) if cached is None else cached
        self._rows = [
            _Unfinished(np.asarray(prompt), n, Stream(text))
            for prompt, n in zip(prompts, cached, strict=True)
        ]
        self._start = self._last = time.perf_counter()
        self._first: float | None = None

    def follow(self, steps: Iterable[Step]) -> Iterator[Step]:
        """The same steps, after what each of them chose has been taken and shown."""
        for step in steps:
            if step.tokens_out is not None:
                self._take(step.tokens_out[:, 0])
            yield step

    def _take(self, tokens_B) -> None:
        self._last = time.perf_counter()
        self._first = self._last if self._first is None else self._first
        for i, (row, token) in enumerate(zip(self._rows, tokens_B, strict=True)):
            if not row.finish:  # a row that has ended goes on until all have
                text = row.take(int(token), self._eos, self._most)
                self._show(Piece(i, text, bool(row.finish)))

    def result(self) -> Result:
        """What became of them, after the last step."""
        rows = tuple(
            Row(row.prompt, row.cached, tuple(row.ids), "".join(row.pieces), row.finish)
            for row in self._rows
        )
        return Result(rows, self._first - self._start, self._last - self._start)


@dataclasses.dataclass
class _Unfinished:
    """A row that is being made; the fields are those of `Row`."""

    prompt: np.ndarray
    cached: int
    stream: Stream
    ids: list[int] = dataclasses.field(default_factory=list)
    pieces: list[str] = dataclasses.field(default_factory=list)
    finish: str = ""

    def take(self, token: int, eos: tuple[int, ...], most: int) -> str:
        """The text that is certain with one more token."""
        self.ids.append(token)
        stop = token in eos
        self.finish = "stop" if stop else "length" if len(self.ids) == most else ""
        text = "" if stop else self.stream.push(token)
        if self.finish:
            text += self.stream.finish()
        self.pieces.append(text)
        return text


class Generator:
    """A decoder, and what its caches hold.

    Attributes:
      decoder: whose programs passed their audit; a pass raises `audit.Failed` otherwise.
      text: the tokenizer.
    """

    def __init__(self, decoder: Decoder, text: Text):
        self.decoder, self.text = decoder, text
        # The tokens in the caches, from position 0 on, of each row.
        self._held: list[list[int]] = [[] for _ in range(decoder.programs.batch)]

    def generate(
        self,
        prompts: Sequence[np.ndarray],
        max_new_tokens: int,
        show: Callable[[Piece], None] = lambda piece: None,
    ) -> Result:
        """Go on from every prompt until an end-of-text token, or for so many tokens.

        What a prompt has in common with the tokens in its row's caches is not computed again.

        Args:
          prompts: token ids [T] of each row.
          max_new_tokens: of each row, at least 1.
          show: called with every piece of text.

        Raises:
          ValueError, FloatingPointError: see `decode.decode`.
        """
        cached = [_shared(*pair) for pair in zip(self._held, prompts, strict=True)]
        self._held = [held[:n] for held, n in zip(self._held, cached, strict=True)]
        batch = Batch(prompts, self.text, max_new_tokens, show, cached)
        steps = decode(self.decoder, prompts, max_new_tokens, self.text.eos, cached)
        for step in batch.follow(steps):
            if step.index == 0:
                self._held = [np.asarray(prompt).tolist() for prompt in prompts]
            elif step.index > 0:
                for held, token in zip(self._held, step.tokens_in[:, 0].tolist(), strict=True):
                    held.append(token)
        return batch.result()


class InOrder:
    """Writes rows one below the other: the first that is not finished as it comes, later ones once
    it is their turn."""

    def __init__(self, rows: int, write: Callable[[str], None]):
        """
        Args:
          rows: with more than one, each gets a heading.
          write: gets the text.
        """
        self._rows, self._write, self._turn = rows, write, 0
        self._waiting: list[list[Piece]] = [[] for _ in range(rows)]
        self._heading()

    def __call__(self, piece: Piece) -> None:
        """Take a piece, and write what can be written."""
        self._waiting[piece.row].append(piece)
        while self._turn < self._rows and self._waiting[self._turn]:
            ready = self._waiting[self._turn].pop(0)
            self._write(ready.text + ("\n" if ready.last else ""))
            if ready.last:
                self._turn += 1
                self._heading()

    def _heading(self) -> None:
        if self._turn < self._rows and self._rows > 1:
            self._write(f"--- prompt {self._turn} ---\n")


def _shared(held: Sequence[int], prompt: np.ndarray) -> int:
    """How many first tokens of the prompt, its last one excepted, are those held."""
    n = min(len(held), len(prompt) - 1)
    differs = np.flatnonzero(np.asarray(held[:n]) != np.asarray(prompt[:n]))
    return int(differs[0]) if differs.size else max(n, 0)
