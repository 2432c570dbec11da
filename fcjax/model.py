"""The programs of one decode step: before the interval, the interval, and after it.

    tokens -> before -> residual shards -> interval -> residual and qkv, as shards and complete
                                                    -> after -> logits

Each is one compiled program over the `node` mesh, so that "before the all-gather" is a fact about
one program. The unmodified layers of `before` and `after` are ordinary tensor parallelism on the
complete residual. Prefill runs the same programs with more tokens at a time.

Layers are unrolled: `lax.scan` over stacked weights copies each weight at every step on CPU, and
takes the layer's name out of the HLO.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from fcjax import ops, reference
from fcjax.ownership import AXIS, INTERVAL_CUT, TENSOR_PARALLEL_CUT, Plan


@dataclasses.dataclass(frozen=True)
class Interval:
    """The audited stretch: from the residual entering layer `first` to q, k, v `depth` layers on.

    Attributes:
      first: the first layer that runs on shards.
      depth: how many whole layers run on shards; the next one's q, k, v are the end.
    """

    first: int
    depth: int = 1

    @property
    def layers(self) -> range:
        """The layers that run whole inside the interval."""
        return range(self.first, self.successor)

    @property
    def successor(self) -> int:
        """The layer whose real Q/K/V reads the shards that the last whole layer left."""
        return self.first + self.depth

    def check(self, layers: int) -> None:
        """Raise ValueError unless the interval and its successor lie inside a model of L layers."""
        if not 1 <= self.depth < layers:
            raise ValueError(
                f"depth: expected 1 to {layers - 1}, so that the next layer's Q/K/V lies inside"
                f" the model's {layers} layers, got {self.depth}"
            )
        last = layers - 1 - self.depth
        if not 0 <= self.first <= last:
            raise ValueError(
                f"layer: expected 0 to {last}, so that {self.depth} whole layer and the next one's"
                f" Q/K/V lie inside the model's {layers} layers, got {self.first}"
            )


@dataclasses.dataclass(frozen=True)
class Program:
    """What one node runs, and which values go in and out.

    Attributes:
      fn: ``fn(params, caches, *arguments, pos) -> (*results, caches)`` on the node's own blocks.
      params: paths of the parameters that it reads.
      layers: the layers whose caches it reads and writes, in the order of `caches`.
      arguments: names of the values between `caches` and `pos` (see `Model.value`).
      results: names of the values before the caches.
    """

    fn: Callable
    params: tuple[str, ...]
    layers: tuple[int, ...]
    arguments: tuple[str, ...]
    results: tuple[str, ...]


class Model:
    """A model cut over nodes: how its parameters, caches and values are laid out, and its programs.

    Attributes:
      before: tokens -> residual entering the interval, as shards.
      inside: the interval, with the compatibility all-gather behind it.
      after: complete residual and qkv -> logits of the last token, complete.
    """

    def __init__(self, plan: Plan, interval: Interval, mesh, dtype=jnp.float32):
        """
        Args:
          plan: who owns what.
          interval: which layers run on shards.
          mesh: the nodes (`ownership.make_mesh`), or as many compile-only devices.
          dtype: type of parameters, activations and cache.
        """
        interval.check(plan.cfg.L)
        self.plan, self.interval, self.mesh, self.dtype = plan, interval, mesh, dtype
        cfg, end = plan.cfg, interval.successor
        head = "embed" if cfg.tied else "head"
        own_qkv = _layer_paths(end, _QKV)
        self.before = Program(
            fn=self._run_before,
            params=("embed", *(p for i in range(interval.first) for p in _layer_paths(i))),
            layers=tuple(range(interval.first)),
            arguments=("tokens",),
            results=("residual",),
        )
        self.inside = Program(
            fn=self._run_inside,
            params=(*(p for i in interval.layers for p in _layer_paths(i)), *own_qkv),
            layers=tuple(interval.layers),
            arguments=("residual",),
            results=("residual", "qkv", "complete_residual", "complete_qkv"),
        )
        self.after = Program(
            fn=self._run_after,
            params=tuple(p for i in range(end, cfg.L) for p in _layer_paths(i) if p not in own_qkv)
            + ("norm", head),
            layers=tuple(range(end, cfg.L)),
            arguments=("complete_residual", "complete_qkv"),
            results=("logits",),
        )

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
                return self._abstract((batch, cfg.V), jax.P())

    def pos(self) -> jax.ShapeDtypeStruct:
        """The position of the first of the T tokens: public, on every node."""
        return self._abstract((), jax.P(), jnp.int32)

    def param(self, path: str) -> jax.ShapeDtypeStruct:
        """Padded shape, type and sharding of a parameter."""
        cuts = self._cuts(path)
        return self._abstract(self.plan.weight_shape(path, cuts), self.plan.weight_spec(path, cuts))

    def params(self) -> dict[str, jax.ShapeDtypeStruct]:
        """`param` of every parameter of the model."""
        return {path: self.param(path) for path in reference.param_dims(self.plan.cfg)}

    def cache(self, batch: int, length: int) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The (k, v) cache of one layer, each node holding its own KV groups."""
        plan = self.plan
        return tuple(
            self._abstract(plan.state_shape(name, B=batch, S=length), plan.state_spec(name))
            for name in ("cache_k", "cache_v")
        )

    def layer_bytes(self, layer: int) -> tuple[int, int]:
        """Bytes of a layer's parameters that a node holds, padding included, and of the layer."""
        paths = _layer_paths(layer)
        held = sum(
            math.prod(t.sharding.shard_shape(t.shape)) * t.dtype.itemsize
            for t in map(self.param, paths)
        )
        shapes = reference.param_shapes(self.plan.cfg)
        whole = sum(math.prod(shapes[path]) for path in paths) * jnp.dtype(self.dtype).itemsize
        return held, whole

    def init_cache(self, batch: int, length: int) -> list[tuple[jax.Array, ...]]:
        """An empty cache for every layer, made where its owner is."""
        return [
            tuple(jnp.zeros(t.shape, t.dtype, device=t.sharding) for t in self.cache(batch, length))
            for _ in range(self.plan.cfg.L)
        ]

    def _cuts(self, path: str) -> dict[str, str | None]:
        """The interval's cut for what the interval reads, tensor parallelism's for the rest."""
        return INTERVAL_CUT if path in self.inside.params else TENSOR_PARALLEL_CUT

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
        arguments.append(self.pos())
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
        inside = layer in self.inside.layers
        run = self.sharded_layers if inside else self.tensor_parallel_layers
        residual = "residual" if inside else "complete_residual"
        return Program(
            fn=functools.partial(run, (layer,)),
            params=_layer_paths(layer),
            layers=(layer,),
            arguments=(residual,),
            results=(residual,),
        )

    def _run_before(self, params, caches, tokens_BT, pos):
        split = self.plan.split("D")
        with jax.named_scope("embed"):
            x_BTDn = params["embed"][tokens_BT]
        if not caches:  # the interval starts at layer 0: a node looks up its own columns
            return x_BTDn, caches
        x_BTD = ops.gather(x_BTDn, 2, split)
        layers = self.before.layers
        x_BTD, caches = self.tensor_parallel_layers(layers, params, caches, x_BTD, pos)
        return ops.own(x_BTD, 2, split), caches

    def _run_inside(self, params, caches, x_BTDn, pos):
        cfg, layers = self.plan.cfg, self.inside.layers
        x_BTDn, caches = self.sharded_layers(layers, params, caches, x_BTDn, pos)
        with jax.named_scope(f"layer_{self.interval.successor}"), jax.named_scope("qkv"):
            w = _layer_params(params, self.interval.successor)
            qkv_BTKnCH = ops.qkv_proj(x_BTDn, w, cfg.D, cfg.eps)
        # The interval ends here.
        with jax.named_scope("compatibility_all_gather"):
            complete = self._compatibility_all_gather(x_BTDn, qkv_BTKnCH)
        return x_BTDn, qkv_BTKnCH, *complete, caches

    def _compatibility_all_gather(self, x_BTDn, qkv_BTKnCH):
        """One all-gather of residual and q, k, v for the unmodified layers: outside the claim.

        Both go through one flat buffer, so that there is one instruction to find; the barrier keeps
        the compiler from starting it before the last scatter is done.
        """
        x_BTDn, qkv_BTKnCH = jax.lax.optimization_barrier((x_BTDn, qkv_BTKnCH))
        B, T, Kn, C, H = qkv_BTKnCH.shape
        flat_BTM = jnp.concatenate([x_BTDn, qkv_BTKnCH.reshape(B, T, Kn * C * H)], axis=2)
        flat_NBTM = jax.lax.all_gather(flat_BTM, AXIS, to="invarying")
        x_NBTD, qkv_NBTM = jnp.split(flat_NBTM, [x_BTDn.shape[2]], axis=3)
        x_BTD = jnp.concatenate(x_NBTD, axis=2)
        qkv_BTKCH = jnp.concatenate(qkv_NBTM.reshape(-1, B, T, Kn, C, H), axis=2)
        return x_BTD[:, :, : self.plan.cfg.D], qkv_BTKCH[:, :, : self.plan.cfg.K]

    def _run_after(self, params, caches, x_BTD, qkv_BTKCH, pos):
        cfg, plan = self.plan.cfg, self.plan
        # The successor's q, k, v came out of the interval; nothing is computed twice.
        qkv_BTKnCH = ops.own(qkv_BTKCH, 2, plan.split("K"))
        x_BTD, caches = self.tensor_parallel_layers(
            self.after.layers, params, caches, x_BTD, pos, qkv_BTKnCH
        )
        with jax.named_scope("head"):
            table_VDn = params["embed" if cfg.tied else "head"]
            split = plan.split("D")
            logits_BV = ops.tensor_parallel_head(x_BTD, table_VDn, params["norm"], split, cfg.eps)
        return logits_BV, caches

    def tensor_parallel_layers(self, layers, params, caches, x_BTD, pos, qkv_BTKnCH=None):
        """The unmodified layers, on the complete residual.

        `qkv_BTKnCH` is given where the first one's Q/K/V is there already.
        """
        cfg, new_caches = self.plan.cfg, []
        for i, cache in zip(layers, caches, strict=True):
            with jax.named_scope(f"layer_{i}"):
                w = _layer_params(params, i)
                if qkv_BTKnCH is None:
                    qkv_BTKnCH = ops.tensor_parallel_qkv(x_BTD, w, cfg.eps)
                x_BTD, cache = ops.tensor_parallel_rest(x_BTD, qkv_BTKnCH, w, cache, pos, cfg)
            qkv_BTKnCH = None
            new_caches.append(cache)
        return x_BTD, new_caches

    def sharded_layers(self, layers, params, caches, x_BTDn, pos):
        """Whole layers that read shards and leave shards."""
        new_caches = []
        for i, cache in zip(layers, caches, strict=True):
            with jax.named_scope(f"layer_{i}"):
                w = _layer_params(params, i)
                x_BTDn, cache = ops.layer(x_BTDn, w, cache, pos, self.plan.cfg)
            new_caches.append(cache)
        return x_BTDn, new_caches


_QKV = ("input_norm", "qkv", "qkv_bias")  # the parameters up to a layer's Q/K/V


def _layer_paths(layer: int, names=tuple(reference.LAYER_PARAMS)) -> tuple[str, ...]:
    return tuple(f"layers.{layer}.{name}" for name in names)


def _layer_params(params: dict, layer: int) -> dict:
    """The parameters of one layer that a program reads, by their names in the layer."""
    prefix = f"layers.{layer}."
    return {p.removeprefix(prefix): w for p, w in params.items() if p.startswith(prefix)}
