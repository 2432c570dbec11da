"""Random inputs for the identity test.

Blocks of weights are views into one buffer, at a random offset each: a model of 1.5e9 weights costs
as much memory as its largest block. The buffer repeats itself with a period that is drawn with it,
so that no program can know which of its weights are equal.
"""

import math

import numpy as np

_PERIOD = 1 << 20  # numbers after which the buffer repeats, at least
_SPREAD = 3.0  # powers of ten, up and down, over which scales vary


class Pool:
    """A buffer of random numbers from which blocks are cut.

    Attributes:
      numbers: normal numbers, float64.
    """

    def __init__(self, rng: np.random.Generator, largest: int):
        """`largest`: numbers of the largest block."""
        period = int(rng.integers(_PERIOD, 2 * _PERIOD)) | 1
        first = rng.standard_normal(period)
        self.numbers = np.empty(largest + 2 * _PERIOD)
        for start in range(0, len(self.numbers), period):
            run = self.numbers[start : start + period]
            run[:] = first[: len(run)]


class Draws:
    """Random numbers of one run.

    Attributes:
      varied: whether scales vary from node to node, row to row and token to token, so that what is
        small beside one number is large beside another. If not they are all one, and what the
        program chooses by comparing numbers goes its usual way.
      end: which end of each range of integers is drawn for certain, 0 or 1; None for neither.
    """

    def __init__(self, rng: np.random.Generator, pool: Pool, varied: bool, end: int | None = None):
        self._rng, self._pool, self.varied, self.end = rng, pool, varied, end

    def block(self, shape) -> np.ndarray:
        """A block of a weight: a view."""
        size, numbers = math.prod(shape), self._pool.numbers
        start = int(self._rng.integers(0, len(numbers) - size + 1))
        return numbers[start : start + size].reshape(shape)

    def state(self, shape, spread: int = 0) -> np.ndarray:
        """State; with one scale for each index of its first `spread` axes."""
        x = self._rng.standard_normal(shape)
        return x * self._scales(shape[:spread], len(shape)) if spread else x

    def _scales(self, leading, rank: int) -> np.ndarray:
        powers = self._rng.uniform(-_SPREAD, _SPREAD, leading) if self.varied else np.zeros(leading)
        return 10.0 ** powers.reshape(*leading, *[1] * (rank - len(leading)))

    def positive(self, shape) -> np.ndarray:
        """Positive numbers of the order of one, or spread over some powers of ten."""
        return self._rng.uniform(0.5, 2, shape) * self._scales(tuple(shape), len(shape))

    def integers(self, low: int, high: int, shape, dtype=np.int32) -> np.ndarray:
        """Integers from `low` to `high` - 1."""
        return self._rng.integers(low, high, shape).astype(dtype)

    def distinct(self, low: int, high: int, shape) -> np.ndarray:
        """The same, all different where there are enough of them; int32.

        Programs go wrong at the ends of a range: one number is `low` in the first sample, and
        `high` - 1 in the last.
        """
        size = math.prod(np.atleast_1d(shape))
        values = self._rng.choice(high - low, size, replace=size > high - low)
        if self.end is not None:
            end = (high - low - 1) * self.end
            place = self._rng.integers(size)
            values[values == end], values[place] = values[place], end
        return (low + values).reshape(shape).astype(np.int32)
