"""Planted violations in the whole model: embedding, head, choice of the token, prefill.

PLANTED_WHOLE maps a name to (reason code, options of `programs.interval`), as `planted.PLANTED`.
"""

import functools

import jax.numpy as jnp
from jax import lax

from experiments.adversary.planted import N, _node, _padded, gather, over_batch, strided_owners
from experiments.adversary.programs import SAMPLED, WHOLE, replace
from fcjax.mesh import AXIS
from fcjax.sharded import node, ops, sampling
from fcjax.sharded.sampling import Sampling

_embed, _head, _layer, _norm, _scatter = ops.embed, ops.head, ops.layer, ops.rms_norm, ops.scatter
_choose, _prefill = Sampling.choose, node.run_whole_prefill


def _mixed_in(x, complete):
    """The neighbour's coordinates of a complete value, so that they are really needed."""
    n = x.shape[-1]
    own = lax.dynamic_slice_in_dim(jnp.roll(complete, 1, -1), _node() * n, n, x.ndim - 1)
    return x + 0.5 * own


# Embedding: (tokens, the node's columns of the table) -> x [B, T, D_n].


def embed_gathered(tokens, table):
    x = _embed(tokens, table)
    return _mixed_in(x, gather(x))


def embed_rows_cut(tokens, table):
    """Each node looks up its run of the vocabulary only; all sum the complete residual."""
    run = table.shape[0] // N
    mine = (tokens // run == _node())[..., None]
    x = jnp.where(mine, _embed(tokens, table), 0)
    return _mixed_in(x, lax.psum(_padded(x), AXIS))


def embed_table_gathered(tokens, table):
    whole = lax.all_gather(table, AXIS, axis=1, tiled=True)
    return _mixed_in(_embed(tokens, table), _embed(tokens, whole))


def embed_ring(tokens, table):
    x = _embed(tokens, table)
    return x + lax.ppermute(x, AXIS, [(i, (i + 1) % N) for i in range(N)])


def embed_columns_reversed(tokens, table):
    return _embed(tokens, table[:, ::-1])


def embed_some_columns(tokens, table):
    return jnp.tile(_embed(tokens, table[:, :1]), (1, 1, table.shape[1]))


def embed_by_state(tokens, table):
    """The row to look up depends on another row."""
    x = _embed(tokens, table)
    state = jnp.sum(x, axis=2) > 0
    return x + _embed((tokens + state.astype(jnp.int32)) % table.shape[0], table)


# Head: (normed x [B, 1, D_n], table [V, D_n]) -> logits [B, V_n].


def _partial(x, table):
    return jnp.einsum("bd,vd->bv", x[:, 0], table)


def head_all_reduced(x, table):
    n = table.shape[0] // N
    return lax.dynamic_slice_in_dim(lax.psum(_partial(x, table), AXIS), _node() * n, n, 1)


def head_gathered(x, table):
    logits = _head(x, table)
    return _mixed_in(logits, lax.all_gather(logits, AXIS, axis=1, tiled=True))


def head_of_complete_residual(x, table):
    return _head(_mixed_in(x, gather(x)), table)


def head_over_batch(x, table):
    rows = over_batch(_partial(x, table)[:, None])
    return jnp.reshape(rows, (N, -1))[:, : table.shape[0] // N]


def head_over_hidden(x, table):
    """Scattered over the hidden coordinates: nothing is summed over them on the node."""
    products = jnp.pad(x[:, 0, :, None] * table.T[None], ((0, 0), (0, 1), (0, 0)))
    return jnp.sum(_scatter(products, 1), axis=1)[:, : table.shape[0] // N]


def head_strided_owners(x, table):
    return strided_owners(_partial(x, table)[:, None])[:, 0]


def head_shifted(x, table):
    return _scatter(_partial(x, table) + 1.0, 1)


def head_not_scattered(x, table):
    n = table.shape[0] // N
    return lax.dynamic_slice_in_dim(_partial(x, table), _node() * n, n, 1)


def head_with_residual(x, table):
    """The logits carry the largest coordinate of the residual into every exchange."""
    return _head(x, table) + jnp.max(x, axis=2)


def norm_of_own(x, weight, D, eps):
    """A norm over the node's own coordinates alone."""
    mean = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    return x * lax.rsqrt(mean + eps) * weight[None, None]


# Choice: logits [B, V_n] -> token [B].


def choosing(fn):
    """A patch: `fn(logits, ids)` in place of the greedy choice."""

    def choose(self, logits, split, *_):
        ids = lax.broadcasted_iota(jnp.int32, logits.shape, 1) + _node() * split.block
        logits = jnp.where(ids < split.size, logits, -jnp.inf)
        return fn(logits, ids)

    return replace("choose", choose, Sampling)


def beside(fn):
    """The greedy choice, and what `fn(logits, ids)` finds beside it: numbers [B] or [B, X]."""

    def both(logits, ids):
        more = fn(logits, ids).reshape(logits.shape[0], -1)
        used = jnp.sum(more.astype(jnp.float32), axis=1) > 0  # the compiler must not drop it
        return _greedy(logits + used[:, None].astype(logits.dtype), ids)

    return choosing(both)


def _greedy(logits, ids, best=lambda logits: lax.pmax(jnp.max(logits, axis=1), AXIS)):
    is_best = logits == best(logits)[:, None]
    none = jnp.iinfo(jnp.int32).max
    return lax.pmin(jnp.min(jnp.where(is_best, ids, none), axis=1), AXIS)


def best_by(best):
    return choosing(functools.partial(_greedy, best=best))


def by_all_gather(logits, ids):
    whole = lax.all_gather(logits, AXIS, axis=1, tiled=True, to="invarying")
    return jnp.argmax(whole, axis=1).astype(jnp.int32)


def by_top_k(logits, ids):
    values, _ = lax.top_k(logits, 10)
    best = lax.all_gather(values, AXIS, axis=1, tiled=True, to="invarying")
    return _greedy(logits, ids, lambda _: jnp.max(best, axis=1))


def sampled_with(**constants):
    """A patch of the threshold search's constants."""
    return [replace(name, value, sampling) for name, value in constants.items()]


# Prefill.


def prefilling(fn):
    """A patch: `fn(x)` is added to the residual after the last layer of a prefill."""

    def run_whole_prefill(model, params, caches, tokens, pos):
        x, caches = _prefill(model, params, caches, tokens, pos)
        return fn(x), caches

    return replace("run_whole_prefill", run_whole_prefill, node)


def last_token_gathered(x):
    return x.at[:, -1:].add(_mixed_in(x[:, -1:], gather(x[:, -1:])))


def caching(fn):
    """A patch: `fn(k)` in the place of the cache's keys."""

    def layer(*args):
        x, (k, v) = _layer(*args)
        return x, (fn(k), v)

    return replace("layer", layer)


def cache_moved(k):
    return lax.ppermute(k, AXIS, [(i, (i + 1) % N) for i in range(N)])


def cache_summed(k):
    return k + lax.psum(jnp.sum(k, axis=3, keepdims=True), AXIS)


def cache_gathered(k):
    return _mixed_in(k, lax.all_gather(k, AXIS, axis=3, tiled=True))


def out_over_tokens(o, w):
    """With T = N the count of elements is right, and each node has the complete last token."""
    rows = lax.psum_scatter(
        jnp.einsum("btkgh,kghd->btd", o, w["out"]), AXIS, scatter_dimension=1, tiled=True
    )
    return jnp.reshape(rows, (rows.shape[0], N, -1))


_ONE = WHOLE | {"layers": 1}
_ROUNDS = [28, *sampling._ROUNDS]  # one more than declared


def _one(code: str, *patches, **options):
    return code, _ONE | {"patches": list(patches)} | options


def _op(name: str, code: str, fn, **options):
    return _one(code, replace(name, fn), **options)


def _prefill_of(code: str, *patches, **options):
    return _one(code, *patches, **{"tokens": 5} | options)


PLANTED_WHOLE = {
    "embed: gathered": _op("embed", "early-gather", embed_gathered),
    "embed: table cut by rows, residual summed": _op("embed", "hidden-gather", embed_rows_cut),
    "embed: table gathered": _op("embed", "weight-on-wire", embed_table_gathered),
    "embed: moved to the next node": _op("embed", "unplanned-collective", embed_ring),
    "embed: columns reversed": _op("embed", "not-a-weight", embed_columns_reversed),
    "embed: one column": _op("embed", "not-a-weight", embed_some_columns),
    "embed: rows by state": _op("embed", "not-a-weight", embed_by_state),
    "head: all-reduce and slice": _op("head", "all-reduce-of-state", head_all_reduced),
    "head: logits gathered": _op("head", "early-gather", head_gathered),
    "head: complete residual": _op("head", "early-gather", head_of_complete_residual),
    "head: scattered over the batch": _op("head", "wrong-axis", head_over_batch, batch=N),
    "head: scattered over hidden": _op("head", "partial-contraction", head_over_hidden),
    "head: strided owners": _op("head", "wrong-owner", head_strided_owners),
    "head: shifted before the scatter": _op("head", "hidden-gather", head_shifted),
    "head: no scatter": _op("head", "missing-collective", head_not_scattered),
    "head: residual among the logits": _op("head", "wrong-source", head_with_residual),
    "norm: of the node's own coordinates": _op("rms_norm", "missing-collective", norm_of_own),
    "choice: logits gathered": _one("early-gather", choosing(by_all_gather)),
    "choice: the ten largest gathered": _one("early-gather", choosing(by_top_k)),
    "choice: the fifteen largest summed": _one(
        "hidden-gather", beside(lambda x, _: lax.psum(lax.top_k(x, 15)[0], AXIS))
    ),
    "choice: masked logits": _one(
        "hidden-gather",
        beside(lambda x, ids: lax.psum(jnp.where(ids % N == 0, x, 0), AXIS)),
    ),
    "choice: one-hot of the best": _one(
        "hidden-gather",
        beside(lambda x, _: lax.psum(jnp.where(x == jnp.max(x, axis=1)[:, None], x, 0), AXIS)),
    ),
    "choice: one more number": _one(
        "wrong-reduction", beside(lambda x, _: lax.psum(jnp.sum(jnp.exp(x), axis=1), AXIS))
    ),
    "choice: second best": _one(
        "unplanned-collective",
        beside(lambda x, _: lax.pmax(jnp.max(jnp.where(x == jnp.max(x), -9.0, x), axis=1), AXIS)),
    ),
    "choice: a second id": _one(
        "unplanned-collective",
        beside(lambda x, ids: lax.pmin(jnp.min(jnp.where(x > 0, ids, 99), axis=1), AXIS)),
    ),
    "choice: each logit by itself": _one(
        "unplanned-collective",
        beside(lambda x, ids: jnp.stack(
            [lax.pmax(jnp.max(jnp.where(ids == j, x, -9.0), axis=1), AXIS) for j in range(20)], 1
        )),
    ),
    "choice: each logit by a slice": _one(
        "not-an-exchange",
        beside(lambda x, _: jnp.stack([lax.pmax(x[:, j], AXIS) for j in range(20)], axis=1)),
    ),
    "choice: one logit for the best": _one(
        "not-an-exchange", best_by(lambda x: lax.pmax(x[:, 3], AXIS))
    ),
    "choice: best of one half": _one(
        "not-an-exchange", best_by(lambda x: lax.pmax(jnp.max(x[:, :20], axis=1), AXIS))
    ),
    "choice: a function of the best": _one(
        "not-an-exchange", best_by(lambda x: lax.pmax(jnp.tanh(jnp.max(x, axis=1)), AXIS))
    ),
    "choice: sum of the nodes' best": _one(
        "wrong-reduction", best_by(lambda x: lax.psum(jnp.max(x, axis=1), AXIS))
    ),
    "choice: mean for the best": _one(
        "wrong-reduction", best_by(lambda x: lax.psum(jnp.sum(x, axis=1), AXIS))
    ),
    "choice: best twice as wide": _one(
        "wrong-size",
        best_by(lambda x: jnp.max(lax.pmax(
            jnp.max(x[:, None] * jnp.array([1.0, 0.5])[None, :, None], axis=2), AXIS), axis=1)),
    ),
    "choice: no exchange": _one(
        "missing-collective",
        choosing(lambda x, ids: lax.pmin(jnp.argmax(x, axis=1).astype(jnp.int32), AXIS)),
    ),
    "sampled: 31 candidates": _one(
        "wrong-size",
        *sampled_with(_CANDIDATES=31, _ROUNDS=range(27, -1, -4)),
        sampling=SAMPLED,
    ),
    "sampled: one more round": _one(
        "unplanned-collective", *sampled_with(_ROUNDS=_ROUNDS), sampling=SAMPLED
    ),
    "sampled: noise by the residual": _one(
        "wrong-source", replace("head", head_with_residual), sampling=SAMPLED, batch=2
    ),
    "prefill: last token gathered": _prefill_of("early-gather", prefilling(last_token_gathered)),
    "prefill: cache moved": _prefill_of("unplanned-collective", caching(cache_moved)),
    "prefill: cache summed": _prefill_of("not-a-statistic", caching(cache_summed)),
    "prefill: cache gathered": _prefill_of("early-gather", caching(cache_gathered)),
    "prefill: scattered over the tokens": _prefill_of(
        "wrong-axis", replace("out_proj", out_over_tokens), tokens=N
    ),
    "prefill: embedding by state": _prefill_of("not-a-weight", replace("embed", embed_by_state)),
    "prefill: table cut by rows": _prefill_of("hidden-gather", replace("embed", embed_rows_cut)),
}
