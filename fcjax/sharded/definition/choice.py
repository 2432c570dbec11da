"""The choice of the next token in numpy: what each node puts into each exchange.

The rules are those of `fcjax.sharded.sampling`; no code is shared. The noise is drawn by
`threefry`, not by jax. What the nodes are handed is what the exchange finds or, where scales vary,
something else near it.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from fcjax.audit.draws import Draws
from fcjax.audit.identity import Nodes, Transfer
from fcjax.sharded.definition.threefry import gumbel

_COMBINE = {"add": np.add, "max": np.maximum, "min": np.minimum}
_DTYPES = {"float32": np.float64, "int32": np.int32}
_TINY = float(np.finfo(np.float32).tiny)
_ROUNDS, _BITS = 8, 4  # a threshold of 32 bits is found four bits at a time
_ROUNDING = 1e-12  # between two ways to compute one number


@dataclasses.dataclass
class Choice:
    """One choice on all nodes.

    Attributes:
      sampling: the rules.
      split: of the vocabulary.
      draws: where what the nodes are handed comes from.
      near: number -> the same as the program has rounded it (`identity`).
    """

    sampling: object
    split: object
    draws: Draws
    near: Callable

    def run(self, logits: Nodes, pos_B, seed, seen: Nodes | None):
        """The exchanges in order; returns the token ids [B, 1] that the last one finds."""
        s, nodes = self.sampling, range(len(logits))
        self.left = list(s.exchanges)
        ids = [np.arange(n * self.split.block, (n + 1) * self.split.block) for n in nodes]
        kept = [(i < self.split.size) & ~np.isnan(v) for i, v in zip(ids, logits, strict=True)]
        values = logits
        if s.repetition_penalty != 1:
            values = [self._penalised(v, m) for v, m in zip(values, seen, strict=True)]
        if s.temperature:
            if s.top_k:
                at_least = yield from self._top_k(values, kept, min(s.top_k, self.split.size))
                kept = [k & a for k, a in zip(kept, at_least, strict=True)]
            if s.top_p < 1:
                at_least = yield from self._top_p(values, kept, s.top_p, s.temperature)
                kept = [k & a for k, a in zip(kept, at_least, strict=True)]
            noise_BV = np.stack([gumbel(seed, p, self.split.size) for p in pos_B])
            noise_BV = np.pad(noise_BV, ((0, 0), (0, self.split.padded - self.split.size)))
            runs = [noise_BV[:, i] * self.near(s.temperature) for i in ids]
            values = [v + r for v, r in zip(values, runs, strict=True)]
        values = [np.where(k, v, -np.inf) for k, v in zip(kept, values, strict=True)]
        best = yield from self._exchange([v.max(1) for v in values], self._another_best)
        is_best = [
            k & np.isclose(v, best[0][:, None], rtol=_ROUNDING, atol=0)
            for k, v in zip(kept, values, strict=True)
        ]
        firsts = [np.where(b, i, self.split.size).min(1) for b, i in zip(is_best, ids, strict=True)]
        token = yield from self._exchange(firsts, self._another_token)
        return [t[:, None] for t in token]

    def _exchange(self, operands: Nodes, another: Callable):
        """What all nodes are handed: what is found, or what `another` makes of it."""
        e = self.left.pop(0)
        dtype = _DTYPES[e.dtype]

        def receive(got: Nodes) -> Nodes:
            found = _COMBINE[e.combine].reduce(got)
            found = another(found) if self.draws.varied else found
            return [found.astype(dtype)] * len(got)

        operands = [x.astype(dtype) for x in operands]
        return (yield Transfer(e.name, "all-reduce", operands, receive))

    def _another_best(self, best_B):
        """In every second row a number that is no node's: no id has it."""
        return np.where(np.arange(len(best_B)) % 2, best_B + 1, best_B)

    def _another_token(self, token_B):
        return self.draws.integers(0, self.split.size, token_B.shape)

    def _another_count(self, sum_BX):
        return sum_BX + self.draws.integers(0, 9, sum_BX.shape)

    def _another_mass(self, sum_BX):
        return sum_BX * self.draws.positive(sum_BX.shape)

    def _another_largest(self, largest_B):
        return largest_B + self.draws.state(largest_B.shape)

    def _times(self, x, factor: float, divide: bool = False):
        """x by a constant: the compiler may turn a division into a multiplication."""
        inverse = self.near(1 / factor, np.nan) if divide else np.nan
        if np.isnan(inverse):
            return x / self.near(factor) if divide else x * self.near(factor)
        return x * inverse

    def _penalised(self, values_BVn, seen_BVn):
        less = self._times(values_BVn, self.sampling.repetition_penalty, divide=True)
        more = self._times(values_BVn, self.sampling.repetition_penalty)
        return np.where(seen_BVn, np.where(values_BVn > 0, less, more), values_BVn)

    def _top_k(self, values: Nodes, kept: Nodes, k: int):
        ones = [m.astype(np.int32) for m in kept]
        return (yield from self._search(values, ones, np.array(k), self._another_count))

    def _top_p(self, values: Nodes, kept: Nodes, p: float, temperature: float):
        own = [np.where(m, v, -np.inf).max(1) for m, v in zip(kept, values, strict=True)]
        largest_B = (yield from self._exchange(own, self._another_largest))[0]
        below = [
            self._times(v - largest_B[:, None], max(temperature, _TINY), divide=True)
            for v in values
        ]
        with np.errstate(invalid="ignore", over="ignore"):
            masses = [np.where(m, np.exp(b), 0) for m, b in zip(kept, below, strict=True)]
        sums = [m.sum(1) for m in masses]
        total_B = (yield from self._exchange(sums, self._another_mass))[0]
        target_B = self._times(total_B, max(p, _TINY))
        return (yield from self._search(values, masses, target_B, self._another_mass))

    def _search(self, values: Nodes, weights: Nodes, target_B, another: Callable):
        """Which values are at or above the largest at or above which enough weight lies."""
        keys = [ordered(v) for v in values]
        found_B = np.zeros(len(keys[0]), np.uint32)
        steps_X = np.arange(1, 1 << _BITS, dtype=np.uint32)
        for shift in (_BITS * n for n in reversed(range(_ROUNDS))):
            candidates_BX = found_B[:, None] | (steps_X << np.uint32(shift))
            sums = [above(k, w, candidates_BX) for k, w in zip(keys, weights, strict=True)]
            sum_BX = (yield from self._exchange(sums, another))[0]
            reached_B = (sum_BX >= np.reshape(target_B, (-1, 1))).sum(1)
            found_B = found_B | (reached_B.astype(np.uint32) << np.uint32(shift))
        return [k >= found_B[:, None] for k in keys]


def ordered(values) -> np.ndarray:
    """The f32 nearest to each value as an integer, in the same order; -0 is 0."""
    bits = np.asarray(values + 0.0, np.float32).view(np.uint32)
    negative = bits >> np.uint32(31) == 1
    return np.where(negative, ~bits, bits | np.uint32(1 << 31))


def above(keys_BV, weights_BV, candidates_BX) -> np.ndarray:
    """The sum of the weights at keys of at least each candidate, [B, X]."""
    out = np.empty(candidates_BX.shape, weights_BV.dtype)
    for b, (keys, weights) in enumerate(zip(keys_BV, weights_BV, strict=True)):
        order = np.argsort(keys)
        sums = np.append(np.cumsum(weights[order][::-1])[::-1], 0)
        out[b] = sums[np.searchsorted(keys[order], candidates_BX[b])]
    return out
