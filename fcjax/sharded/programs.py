"""The programs of one pass over the model, and which of them is the audited interval.

    tokens -> before -> residual shards -> interval -> residual and qkv, as shards and complete
                                                    -> after -> logits shards -> next tokens

or, with every layer inside, the interval alone:

    tokens -> interval -> logits shards -> next tokens

Each is one compiled program over the `node` mesh, so that "before the all-gather" is a fact about
one program. The unmodified layers of `before` and `after` are ordinary tensor parallelism on the
complete residual. A pass of one token decodes. A pass of more tokens fills the caches with part of
the prompts (prefill): the same operators, without the head and the choice of a token.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from fcjax.model import functions
from fcjax.model.params import param_dims
from fcjax.sharded import layers, ops
from fcjax.sharded.ownership import INTERVAL_CUT, TENSOR_PARALLEL_CUT, Plan
from fcjax.sharded.sampling import Sampling


@dataclasses.dataclass(frozen=True)
class Interval:
    """The audited stretch: from the residual entering layer `first` to what reads it `depth` on.

    Attributes:
      first: the first layer that runs on shards.
      depth: how many whole layers run on shards. The next layer's q, k, v are the end; behind the
        last layer, the final norm and the head are, and with first = 0 the embedding is inside too.
    """

    first: int
    depth: int = 1

    @property
    def layers(self) -> range:
        """The layers that run whole inside the interval."""
        return range(self.first, self.successor)

    @property
    def successor(self) -> int:
        """The layer whose real Q/K/V reads the shards of the last whole layer; L for the head."""
        return self.first + self.depth

    def check(self, layers: int) -> None:
        """Raise ValueError unless the interval and its successor lie inside a model of L layers."""
        if not 1 <= self.depth <= layers:
            raise ValueError(f"depth: expected 1 to the model's {layers} layers, got {self.depth}")
        if self.depth == layers and self.first:
            raise ValueError(
                f"layer: expected 0 where all {layers} layers run on shards, got {self.first}"
            )
        last = max(layers - 1 - self.depth, 0)
        if not 0 <= self.first <= last:
            raise ValueError(
                f"layer: expected 0 to {last}, so that {self.depth} whole layer(s) and the next"
                f" one's Q/K/V lie inside the model's {layers} layers, got {self.first}"
            )


@dataclasses.dataclass(frozen=True)
class Program:
    """What one node runs, and which values go in and out.

    Attributes:
      name: "before", "interval" or "after"; "layer" for the benchmark's.
      fn: ``fn(params, caches, *arguments) -> (*results, caches)`` on the node's own blocks.
      params: paths of the parameters that it reads.
      layers: the layers whose caches it reads and writes, in the order of `caches`.
      arguments: names of the values behind `caches` (see `Model.value`).
      results: names of the values before the caches.
    """

    name: str
    fn: Callable
    params: tuple[str, ...]
    layers: tuple[int, ...]
    arguments: tuple[str, ...]
    results: tuple[str, ...]


class Model:
    """A model cut over nodes: how its parameters, caches and values are laid out, and its programs.

    Attributes:
      plan: who owns what.
      interval: which layers run on shards.
      mesh: the nodes.
      dtype: of parameters, activations and cache.
      sampling: how the next token is chosen.
      whole: whether every layer is inside the interval; then no program is outside it.
    """

    def __init__(
        self,
        plan: Plan,
        interval: Interval | None,
        mesh,
        dtype=jnp.float32,
        sampling=Sampling(),  # noqa: B008
    ):
        """
        Args:
          plan: who owns what.
          interval: which layers run on shards; None for ordinary tensor parallelism throughout,
            which has no shards to audit and is here as a peer.
          mesh: the nodes (`mesh.make_mesh`), or as many compile-only devices.
          dtype: type of parameters, activations and cache.
          sampling: how the next token is chosen.
        """
        if interval is not None:
            interval.check(plan.cfg.L)
        self.plan, self.interval, self.mesh, self.dtype = plan, interval, mesh, dtype
        self.sampling = sampling
        self.whole = interval is not None and interval.depth == plan.cfg.L

    @functools.cached_property
    def _sharded_paths(self) -> frozenset[str]:
        return frozenset(self.inside(1).params if self.interval else ())

    def programs(self, tokens: int) -> tuple[Program, ...]:
        """The programs of a pass of T tokens, in order."""
        inside = self.inside(tokens)
        return (inside,) if self.whole else (self.before, inside, self.after(tokens))

    def inside(self, tokens: int) -> Program:
        """The interval, with the compatibility all-gather behind it unless the model ends in it."""
        inside = self.interval.layers
        params = tuple(p for i in inside for p in layers.paths(i))
        if not self.whole:
            return Program(
                name="interval",
                fn=self._run_interval,
                params=(*params, *layers.paths(self.interval.successor, layers.QKV)),
                layers=tuple(inside),
                arguments=("residual", "pos"),
                results=("residual", "qkv", "complete_residual", "complete_qkv"),
            )
        decode, choice = tokens == 1, self.sampling.arguments
        return Program(
            name="interval",
            fn=self._run_whole if decode else self._run_whole_prefill,
            params=tuple(dict.fromkeys(("embed", *params, *(self._head if decode else ())))),
            layers=tuple(inside),
            arguments=("tokens", "pos", *(choice if decode else ())),
            results=("next_tokens", "logits", "residual") if decode else ("residual",),
        )

    @property
    def before(self) -> Program:
        """tokens -> residual entering the interval, as shards."""
        before = range(self.interval.first)
        return Program(
            name="before",
            fn=self._run_before,
            params=("embed", *(p for i in before for p in layers.paths(i))),
            layers=tuple(before),
            arguments=("tokens", "pos"),
            results=("residual",),
        )

    def after(self, tokens: int) -> Program:
        """Complete residual and qkv -> logits as shards, and the next tokens."""
        after = range(self.interval.successor, self.plan.cfg.L)
        own_qkv = layers.paths(self.interval.successor, layers.QKV)
        params = tuple(p for i in after for p in layers.paths(i) if p not in own_qkv)
        decode, choice = tokens == 1, self.sampling.arguments
        return Program(
            name="after",
            fn=self._run_after if decode else self._run_after_prefill,
            params=(*params, *(self._head if decode else ())),
            layers=tuple(after),
            arguments=("complete_residual", "complete_qkv", "pos", *(choice if decode else ())),
            results=("next_tokens", "logits") if decode else (),
        )

    @property
    def tensor_parallel(self) -> Program:
        """A decode step with the complete residual on every node: tokens -> next tokens."""
        every = range(self.plan.cfg.L)
        params = ("embed", *(p for i in every for p in layers.paths(i)), *self._head)
        return Program(
            name="tensor parallel",
            fn=self._run_tensor_parallel,
            params=tuple(dict.fromkeys(params)),
            layers=tuple(every),
            arguments=("tokens", "pos", *self.sampling.arguments),
            results=("next_tokens", "logits"),
        )

    @property
    def _head(self) -> tuple[str, ...]:
        """Parameters of the final norm and the head; a tied head reads the embedding's table."""
        return ("norm", self._table)

    @property
    def _table(self) -> str:
        return "embed" if self.plan.cfg.tied else "head"

    # Layouts

    def value(self, name: str, batch: int, tokens: int) -> jax.ShapeDtypeStruct:
        """Padded shape, type and sharding of a value that passes between programs."""
        cfg, plan = self.plan.cfg, self.plan
        match name:
            case "tokens":  # public
                return self._abstract((batch, tokens), jax.P(), jnp.int32)
            case "residual":
                shape = plan.state_shape("residual", B=batch, T=tokens)
                return self._abstract(shape, plan.state_spec("residual"))
            case "qkv":  # q, k and v of a KV group side by side, split as each of them is
                shape = (batch, tokens, plan.split("K").padded, cfg.C, cfg.H)
                return self._abstract(shape, plan.state_spec("q"))
            case "complete_residual":
                return self._abstract((batch, tokens, cfg.D), jax.P())
            case "complete_qkv":
                return self._abstract((batch, tokens, cfg.K, cfg.C, cfg.H), jax.P())
            case "logits":
                return self._abstract(
                    plan.state_shape("logits", B=batch), plan.state_spec("logits")
                )
            case "next_tokens":  # public, once it is chosen
                return self._abstract((batch, 1), jax.P(), jnp.int32)
            case "pos":  # of each row's first token; public
                return self._abstract((batch,), jax.P(), jnp.int32)
            case "seed":  # of the draws; public
                return self._abstract((), jax.P(), jnp.uint32)
            case "seen":  # public as the tokens are, but each node needs its own words only
                shape, spec = plan.state_shape("logits", B=batch), plan.state_spec("logits")
                return self._abstract(shape, spec, jnp.bool_)

    def param(self, path: str) -> jax.ShapeDtypeStruct:
        """Padded shape, type and sharding of a parameter."""
        cuts = self.cuts(path)
        return self._abstract(self.plan.weight_shape(path, cuts), self.plan.weight_spec(path, cuts))

    def params(self) -> dict[str, jax.ShapeDtypeStruct]:
        """`param` of every parameter of the model."""
        return {path: self.param(path) for path in param_dims(self.plan.cfg)}

    def cache(self, batch: int, length: int) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The (k, v) cache of one layer, each node holding its own KV groups."""
        plan = self.plan
        return tuple(
            self._abstract(plan.state_shape(name, B=batch, S=length), plan.state_spec(name))
            for name in ("cache_k", "cache_v")
        )

    def init_cache(self, batch: int, length: int) -> list[tuple[jax.Array, ...]]:
        """An empty cache for every layer, made where its owner is."""
        return [
            tuple(jnp.zeros(t.shape, t.dtype, device=t.sharding) for t in self.cache(batch, length))
            for _ in range(self.plan.cfg.L)
        ]

    def cuts(self, path: str) -> dict[str, str | None]:
        """The interval's cut for what the interval reads, tensor parallelism's for the rest."""
        everywhere = ("embed", "head")  # tables are cut by columns for either
        inside = path in everywhere or path in self._sharded_paths
        return INTERVAL_CUT if inside else TENSOR_PARALLEL_CUT

    def _abstract(self, shape, spec, dtype=None) -> jax.ShapeDtypeStruct:
        sharding = jax.NamedSharding(self.mesh, spec)
        return jax.ShapeDtypeStruct(shape, dtype or self.dtype, sharding=sharding)

    # Programs

    def compile(self, program: Program, batch: int, tokens: int, length: int):
        """Compile a program for B rows, T new tokens and caches of S slots; needs no weights.

        The caches are donated, so each node writes its new slots in place.
        """
        params = {path: self.param(path) for path in program.params}
        caches = [self.cache(batch, length)] * len(program.layers)
        arguments = [self.value(name, batch, tokens) for name in program.arguments]
        results = [self.value(name, batch, tokens) for name in program.results]
        spec = lambda tree: jax.tree.map(lambda leaf: leaf.sharding.spec, tree)  # noqa: E731
        fn = jax.shard_map(
            program.fn,
            mesh=self.mesh,
            in_specs=spec((params, caches, *arguments)),
            out_specs=spec((*results, caches)),
        )
        return jax.jit(fn, donate_argnums=1).lower(params, caches, *arguments).compile()

    def layer_program(self, layer: int) -> Program:
        """One layer by itself, for the benchmark: on shards inside the interval, else complete."""
        inside = self.interval is not None and layer in self.interval.layers
        run = layers.sharded if inside else layers.tensor_parallel
        residual = "residual" if inside else "complete_residual"

        def fn(params, caches, x, pos_B):
            return run(self.plan.cfg, (layer,), params, caches, x, pos_B)

        return Program(
            name="layer",
            fn=fn,
            params=layers.paths(layer),
            layers=(layer,),
            arguments=(residual, "pos"),
            results=(residual,),
        )

    def _run_before(self, params, caches, tokens_BT, pos_B):
        cfg, split = self.plan.cfg, self.plan.split("D")
        with jax.named_scope("embed"):
            x_BTDn = ops.embed(tokens_BT, params["embed"])
        if not caches:  # the interval starts at layer 0: the residual was never complete
            return x_BTDn, caches
        x_BTD = ops.gather(x_BTDn, 2, split)
        before = range(self.interval.first)
        x_BTD, caches = layers.tensor_parallel(cfg, before, params, caches, x_BTD, pos_B)
        return ops.own(x_BTD, 2, split), caches

    def _run_interval(self, params, caches, x_BTDn, pos_B):
        cfg, end = self.plan.cfg, self.interval.successor
        inside = self.interval.layers
        x_BTDn, caches = layers.sharded(cfg, inside, params, caches, x_BTDn, pos_B)
        with jax.named_scope(f"layer_{end}"), jax.named_scope("qkv"):
            qkv_BTKnCH = ops.qkv_proj(x_BTDn, layers.own_params(params, end), cfg.D, cfg.eps)
        # The interval ends here.
        with jax.named_scope("compatibility_all_gather"):
            complete = layers.compatibility_all_gather(self.plan, x_BTDn, qkv_BTKnCH)
        return x_BTDn, qkv_BTKnCH, *complete, caches

    def _run_whole_prefill(self, params, caches, tokens_BT, pos_B):
        with jax.named_scope("embed"):
            x_BTDn = ops.embed(tokens_BT, params["embed"])
        cfg, inside = self.plan.cfg, self.interval.layers
        return layers.sharded(cfg, inside, params, caches, x_BTDn, pos_B)

    def _run_whole(self, params, caches, tokens_B1, pos_B, *choice):
        cfg = self.plan.cfg
        x_B1Dn, caches = self._run_whole_prefill(params, caches, tokens_B1, pos_B)
        with jax.named_scope("head"):
            normed_B1Dn = ops.rms_norm(x_B1Dn, params["norm"], cfg.D, cfg.eps)
            logits_BVn = ops.head(normed_B1Dn, params[self._table])
        return self._choose(logits_BVn, pos_B, choice), logits_BVn, x_B1Dn, caches

    def _run_after_prefill(self, params, caches, x_BTD, qkv_BTKCH, pos_B):
        return (self._unmodified(params, caches, x_BTD, qkv_BTKCH, pos_B)[1],)

    def _run_after(self, params, caches, x_B1D, qkv_B1KCH, pos_B, *choice):
        x_B1D, caches = self._unmodified(params, caches, x_B1D, qkv_B1KCH, pos_B)
        return *self._head_of_complete(params, x_B1D, pos_B, choice), caches

    def _run_tensor_parallel(self, params, caches, tokens_B1, pos_B, *choice):
        with jax.named_scope("embed"):
            x_B1D = ops.gather(ops.embed(tokens_B1, params["embed"]), 2, self.plan.split("D"))
        cfg = self.plan.cfg
        every = range(cfg.L)
        x_B1D, caches = layers.tensor_parallel(cfg, every, params, caches, x_B1D, pos_B)
        return *self._head_of_complete(params, x_B1D, pos_B, choice), caches

    def _head_of_complete(self, params, x_B1D, pos_B, choice):
        """Next tokens and logits of a complete residual, each node for its own words."""
        with jax.named_scope("head"):
            normed_B1D = functions.rms_norm(x_B1D, params["norm"], self.plan.cfg.eps)
            normed_B1Dn = ops.own(normed_B1D, 2, self.plan.split("D"))
            logits_BVn = ops.head(normed_B1Dn, params[self._table])
        return self._choose(logits_BVn, pos_B, choice), logits_BVn

    def _unmodified(self, params, caches, x_BTD, qkv_BTKCH, pos_B):
        """The layers behind the interval; the first one's q, k, v came out of it."""
        qkv_BTKnCH = ops.own(qkv_BTKCH, 2, self.plan.split("K"))
        cfg, after = self.plan.cfg, range(self.interval.successor, self.plan.cfg.L)
        return layers.tensor_parallel(cfg, after, params, caches, x_BTD, pos_B, qkv_BTKnCH)

    def _choose(self, logits_BVn, pos_B, choice):
        named = dict(zip(self.sampling.arguments, choice, strict=True))
        with jax.named_scope("choose"):
            next_B = self.sampling.choose(
                logits_BVn, self.plan.split("V"), pos_B, named.get("seed"), named.get("seen")
            )
        return next_B[:, None]
