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

from fcjax.sharded import node, operators
from fcjax.sharded.interval import ShardedModel
from fcjax.sharded.layout import Layout
from fcjax.sharded.operators import LAYER, TENSOR_PARALLEL_CUTS
from fcjax.sharded.ownership import Plan
from fcjax.sharded.sampling import Sampling

# Parts of the names under which XLA knows the interval's programs.
INTERVAL_NAMES = ("run_interval", "run_whole")


@dataclasses.dataclass(frozen=True)
class Program:
    """What one node runs, and which values go in and out.

    Attributes:
      name: "before", "interval" or "after"; "layer" and "tensor parallel" for the benchmark's.
      fn: ``fn(params, caches, *arguments) -> (*results, caches)`` on the node's own blocks.
      params: paths of the parameters that it reads.
      layers: the layers whose caches it reads and writes, in the order of `caches`.
      arguments: names of the values after `caches` (`layout.VALUES`).
      results: names of the values before the caches.
    """

    name: str
    fn: Callable
    params: tuple[str, ...]
    layers: tuple[int, ...]
    arguments: tuple[str, ...]
    results: tuple[str, ...]


def of_pass(model: ShardedModel, tokens: int) -> tuple[Program, ...]:
    """The programs of a pass of T tokens, in order."""
    inside = interval(model, tokens)
    return (inside,) if model.whole else (before(model), inside, after(model, tokens))


def interval(model: ShardedModel, tokens: int) -> Program:
    """The interval, with the compatibility all-gather after it unless the model ends in it."""
    inside, params = tuple(model.interval.layers), model.params(tokens)
    if not model.whole:
        return Program(
            name="interval",
            fn=_node_code(node.run_interval, model),
            params=params,
            layers=inside,
            arguments=("residual", "pos"),
            results=("residual", "qkv", "complete_residual", "complete_qkv"),
        )
    decode = tokens == 1
    return Program(
        name="interval",
        fn=_node_code(node.run_whole if decode else node.run_whole_prefill, model),
        params=params,
        layers=inside,
        arguments=("tokens", "pos", *(model.sampling.arguments if decode else ())),
        results=("next_tokens", "logits", "residual") if decode else ("residual",),
    )


def before(model: ShardedModel) -> Program:
    """tokens -> residual entering the interval, as shards."""
    layers = range(model.interval.first)
    return Program(
        name="before",
        fn=_node_code(node.run_before, model),
        params=_params(model.plan, operators.EMBED, *((op, i) for i in layers for op in LAYER)),
        layers=tuple(layers),
        arguments=("tokens", "pos"),
        results=("residual",),
    )


def after(model: ShardedModel, tokens: int) -> Program:
    """Complete residual and qkv -> logits as shards, and the next tokens."""
    first, decode = model.interval.successor, tokens == 1
    layers = range(first, model.plan.cfg.L)
    rest = ((op, i) for i in layers for op in LAYER if (op, i) != (operators.QKV, first))
    arguments = ("complete_residual", "complete_qkv", "pos")
    return Program(
        name="after",
        fn=_node_code(node.run_after if decode else node.run_after_prefill, model),
        params=_params(model.plan, *rest, *((operators.HEAD,) if decode else ())),
        layers=tuple(layers),
        arguments=(*arguments, *(model.sampling.arguments if decode else ())),
        results=("next_tokens", "logits") if decode else (),
    )


@dataclasses.dataclass(frozen=True)
class TensorParallel:
    """A model with the complete residual on every node, throughout: a peer, with nothing to audit.

    Attributes:
      plan: who owns which KV groups, MLP coordinates and words.
      sampling: how the next token is chosen.
    """

    plan: Plan
    sampling: Sampling = Sampling()

    def cuts(self, path: str) -> dict:
        """Tensor parallelism's; tables are cut by columns in either layout."""
        tables = (operators.EMBED.table, operators.HEAD.weight)
        return operators.INTERVAL_CUTS if path in tables else TENSOR_PARALLEL_CUTS

    def program(self) -> Program:
        """A decode step: tokens -> next tokens."""
        layers = range(self.plan.cfg.L)
        every = ((op, i) for i in layers for op in LAYER)
        return Program(
            name="tensor parallel",
            fn=_node_code(node.run_tensor_parallel, self),
            params=_params(self.plan, operators.EMBED, *every, operators.HEAD),
            layers=tuple(layers),
            arguments=("tokens", "pos", *self.sampling.arguments),
            results=("next_tokens", "logits"),
        )


def one_layer(model: ShardedModel | TensorParallel, layer: int) -> Program:
    """One layer by itself, for the benchmark: on shards inside the interval, else complete."""
    inside = isinstance(model, ShardedModel) and layer in model.interval.layers
    residual = "residual" if inside else "complete_residual"
    run = node.sharded if inside else node.tensor_parallel
    return Program(
        name="layer",
        fn=functools.partial(run, model.plan.cfg, (layer,)),
        params=_params(model.plan, *((op, layer) for op in LAYER)),
        layers=(layer,),
        arguments=(residual, "pos"),
        results=(residual,),
    )


def compile(program: Program, layout: Layout, batch: int, tokens: int, length: int):
    """Compile a program for B rows, T new tokens and caches of S slots; needs no weights.

    The caches are donated, so each node writes its new slots in place.
    """
    fn, arguments = mapped(program, layout, batch, tokens, length)
    return jax.jit(fn, donate_argnums=1).lower(*arguments).compile()


def mapped(program: Program, layout: Layout, batch: int, tokens: int, length: int):
    """The program over all nodes, as a function, and its abstract arguments (see `compile`)."""
    params = {path: layout.param(path) for path in program.params}
    caches = [layout.cache(batch, length)] * len(program.layers)
    arguments = [layout.value(name, batch, tokens) for name in program.arguments]
    results = [layout.value(name, batch, tokens) for name in program.results]
    spec = lambda tree: jax.tree.map(lambda leaf: leaf.sharding.spec, tree)  # noqa: E731
    fn = jax.shard_map(
        program.fn,
        mesh=layout.mesh,
        in_specs=spec((params, caches, *arguments)),
        out_specs=spec((*results, caches)),
    )
    return fn, (params, caches, *arguments)


def _params(plan: Plan, *rows) -> tuple[str, ...]:
    """Paths of the parameters of operators, or of pairs of an operator and a layer, each once."""
    pairs = (row if isinstance(row, tuple) else (row, None) for row in rows)
    read = (op.params(plan.cfg, layer) for op, layer in pairs)
    return tuple(dict.fromkeys(path for paths in read for path in paths))


def _node_code(run: Callable, model) -> Callable:
    """A node's code for this model, under the name by which its HLO module is known."""
    return functools.update_wrapper(functools.partial(run, model), run)
