"""The choice of the next token from logits that are split over the nodes.

No node receives the logits of another. What crosses is a fixed list of small all-reduces
(`Sampling.exchanges`): greedily one value and one id for each row; for top-k and top-p also the
counts and the masses that a search for a threshold needs. The chosen token becomes public.

Order of the rules as in Hugging Face's `generate`: repetition penalty, temperature, top-k, top-p,
draw.
"""

import dataclasses

import jax
import jax.numpy as jnp

from fcjax.mesh import AXIS
from fcjax.sharded.ownership import Split

# A threshold is found by its bits, four at a time: 15 candidates a round, 8 rounds for 32 bits.
_BITS = 4
_ROUNDS = range(32 - _BITS, -1, -_BITS)
_CANDIDATES = 2**_BITS - 1
_HOTTEST = 1e30  # times the largest noise it is still a number in f32
_TINY = float(jnp.finfo(jnp.float32).tiny)  # what is smaller is computed with as 0


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One small all-reduce.

    Attributes:
      name: what is found by it.
      combine: "add", "max" or "min".
      dtype: of its elements.
      width: elements for each row.
    """

    name: str
    combine: str
    dtype: str
    width: int


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
      temperature: 0 takes the largest logit, ties to the lowest id; otherwise one token is drawn
        from softmax(logits / temperature).
      top_k: draw among the k largest logits only, and those equal to the k-th; 0 for all.
      top_p: draw among the fewest tokens, largest first, whose probabilities sum to at least this,
        and those equal to the last of them; 1 for all.
      repetition_penalty: positive logits of tokens that the row already has are divided by it,
        the others multiplied; 1 leaves them. Which tokens those are is public.

    Raises:
      ValueError: a value that means nothing.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    def __post_init__(self):
        if not 0 <= self.temperature <= _HOTTEST:
            raise ValueError(f"temperature: expected 0 to {_HOTTEST:g}, got {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top_k: expected 0 (all tokens) or more, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: expected more than 0 and at most 1, got {self.top_p}")
        if not 0 < self.repetition_penalty < float("inf"):
            raise ValueError(
                f"repetition_penalty: expected more than 0, got {self.repetition_penalty}"
            )

    @property
    def arguments(self) -> tuple[str, ...]:
        """Public values that the choice needs beside the position, as `Model.value` names them."""
        seed = ("seed",) if self.temperature else ()
        return (*seed, "seen") if self.repetition_penalty != 1 else seed

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """What crosses between the nodes at every step, in order."""
        rounds = []
        if self.temperature and self.top_k:
            rounds += [Exchange("top-k count", "add", "int32", _CANDIDATES) for _ in _ROUNDS]
        if self.temperature and self.top_p < 1:
            rounds += [Exchange("largest logit", "max", "float32", 1)]
            rounds += [Exchange("total mass", "add", "float32", 1)]
            rounds += [Exchange("top-p mass", "add", "float32", _CANDIDATES) for _ in _ROUNDS]
        return (
            *rounds,
            Exchange("best value", "max", "float32", 1),
            Exchange("chosen token", "min", "int32", 1),
        )

    def choose(self, logits_BVn, split: Split, pos_B, seed=None, seen_BVn=None):
        """logits [B, V_n] -> token [B], the same on every node.

        Args:
          logits_BVn: the node's own, padding included.
          split: of the vocabulary.
          pos_B: position of the token that the logits were computed from.
          seed: uint32, where tokens are drawn; with the position it is the key of a row's draw, so
            that a row draws the same alone or in a batch, and a run can be repeated from any step.
          seen_BVn: bool, with a repetition penalty: the node's own part of the tokens that each
            row already has.

        Returns:
          int32 ids; V where no logit is a number. One that is not is never chosen.
        """
        start = jax.lax.axis_index(AXIS) * split.block
        ids_BVn = jax.lax.broadcasted_iota(jnp.int32, logits_BVn.shape, 1) + start
        values_BVn = logits_BVn.astype(jnp.float32)
        values_BVn = jnp.where(values_BVn == 0, 0, values_BVn)  # -0.0 and 0.0 are a tie
        # XLA's maximum drops NaN or passes it on, as it likes.
        kept_BVn = (ids_BVn < split.size) & ~jnp.isnan(values_BVn)
        if self.repetition_penalty != 1:
            less_BVn = jnp.where(
                values_BVn > 0,
                values_BVn / self.repetition_penalty,
                values_BVn * self.repetition_penalty,
            )
            values_BVn = jnp.where(seen_BVn, less_BVn, values_BVn)
        if self.temperature:
            if self.top_k:
                kept_BVn &= _top_k(values_BVn, kept_BVn, min(self.top_k, split.size))
            if self.top_p < 1:
                kept_BVn &= _top_p(values_BVn, kept_BVn, self.top_p, self.temperature)
            # Not logits / temperature + noise: nothing overflows, however low the temperature is.
            values_BVn += self.temperature * _own_noise(seed, pos_B, split, start)
        values_BVn = jnp.where(kept_BVn, values_BVn, -jnp.inf)
        best_B = jax.lax.pmax(jnp.max(values_BVn, axis=1), AXIS)
        is_best_BVn = kept_BVn & (values_BVn == best_B[:, None])
        return jax.lax.pmin(jnp.min(jnp.where(is_best_BVn, ids_BVn, split.size), axis=1), AXIS)


def _own_noise(seed, pos_B, split: Split, start):
    """Gumbel noise [B, V_n]: the largest of logit + noise is a draw from their softmax.

    Each node draws the row's whole noise, which is public, and takes its own run: the text does
    not depend on the number of nodes.
    """

    def draw(pos):
        return jax.random.gumbel(jax.random.fold_in(jax.random.key(seed), pos), (split.size,))

    noise_BV = jnp.pad(jax.vmap(draw)(pos_B), ((0, 0), (0, split.padded - split.size)))
    return jax.lax.dynamic_slice_in_dim(noise_BV, start, split.block, 1)


def _top_k(values_BVn, kept_BVn, k: int):
    """Is it at least the k-th largest of all nodes' kept values?"""
    keys_BVn = _ordered(values_BVn)
    ones_BVn = kept_BVn.astype(jnp.int32)
    target_B = jnp.full(values_BVn.shape[:1], k, jnp.int32)
    return keys_BVn >= _threshold(keys_BVn, ones_BVn, target_B)[:, None]


def _top_p(values_BVn, kept_BVn, p: float, temperature: float):
    """Does it belong to the fewest kept tokens, largest first, with a mass of at least p?"""
    largest_B = jnp.max(jnp.where(kept_BVn, values_BVn, -jnp.inf), axis=1)
    largest_B = jax.lax.pmax(largest_B, AXIS)
    below_BVn = (values_BVn - largest_B[:, None]) / max(temperature, _TINY)
    mass_BVn = jnp.where(kept_BVn, jnp.exp(below_BVn), 0)
    total_B = jax.lax.psum(jnp.sum(mass_BVn, axis=1), AXIS)
    # The search reads the total only after its first exchange: without the barrier XLA would join
    # the two in one buffer, or turn them round.
    mass_BVn, total_B = jax.lax.optimization_barrier((mass_BVn, total_B))
    keys_BVn = _ordered(values_BVn)
    return keys_BVn >= _threshold(keys_BVn, mass_BVn, max(p, _TINY) * total_B)[:, None]


def _ordered(values):
    """f32 as uint32 in the same order."""
    bits = jax.lax.bitcast_convert_type(values, jnp.uint32)
    sign = jnp.uint32(1 << 31)
    return jnp.where(bits >= sign, ~bits, bits | sign)


def _threshold(keys_BVn, weights_BVn, target_B):
    """The largest key at or above which the weights of all nodes sum to at least the target."""
    found_B = jnp.zeros(target_B.shape, jnp.uint32)
    steps_X = jnp.arange(1, _CANDIDATES + 1, dtype=jnp.uint32)
    for shift in _ROUNDS:
        candidates_BX = found_B[:, None] | (steps_X << shift)[None]
        above_BXVn = keys_BVn[:, None] >= candidates_BX[..., None]
        sum_BX_U = jnp.sum(jnp.where(above_BXVn, weights_BVn[:, None], 0), axis=2)
        sum_BX = jax.lax.psum(sum_BX_U, AXIS)
        # The sums fall from one candidate to the next, so the count is the last that reaches it.
        reached_B = jnp.sum(sum_BX >= target_B[:, None], axis=1).astype(jnp.uint32)
        found_B = found_B | (reached_B << shift)
    return found_B
