"""THE operator table: what each operator of the interval reads, multiplies, hands over and leaves.

    x[B, T, M_n] . w[M_n, X] -> [B, T, X]{U_n} -> ReduceScatter -> [B, T, X_n]

is every projection, so a row needs no more than names: which state is read, which weight it is
contracted with, which state is left. The cut of each weight, the shape and axis of each transfer,
the boundaries, the audit's contract, the traffic formula, the ledger and the report follow from the
rows and from the dimensions in `model.params` and `ownership.STATE`; nothing else says them.
"""

import dataclasses
import math
from typing import ClassVar

from fcjax import collectives
from fcjax.model.config import ModelConfig
from fcjax.model.params import PARAMS, layer_path, leaf, present
from fcjax.sharded.ownership import SPLIT_DIMS, STATE, Cut, Plan, split_dim
from fcjax.sharded.sampling import Exchange


@dataclasses.dataclass(frozen=True)
class Operator:
    """One row of the table.

    Attributes:
      name: its named scope in the programs.
      title, does: the same for a reader of reports.
      reads: the state that it works on, which each node owns in part.
      leaves: the state that the nodes own after it.
      table: the table in which it looks up rows by public ids; "" for none.
      norm: gain of the RMSNorm in front of it, whose statistic all nodes share; "" for none.
      weight: what it contracts the state with, summed over the nodes and scattered; "" where no
        sum crosses.
      bias: what the owner adds after the scatter; "" for none.
      whole: further weights that every node holds whole and reads on its own state.
      adds: whether the result is added to the residual.
    """

    name: str
    title: str
    does: str
    reads: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    table: str = ""
    norm: str = ""
    weight: str = ""
    bias: str = ""
    whole: tuple[str, ...] = ()
    adds: bool = False

    @property
    def summed(self) -> str:
        """The split dimension that the contraction sums over: it cuts the weight into blocks."""
        return split_dim(STATE[self.reads[0]])

    @property
    def owned(self) -> str | None:
        """The split dimension of what it leaves; None if that is public."""
        return split_dim(STATE[self.leaves[0]]) if self.leaves else None

    @property
    def operand(self) -> tuple[str, ...]:
        """Dimensions of what each node puts into the scatter: rows and tokens, as far as the state
        that it leaves has them, and what the contraction leaves of the weight's."""
        lead = [d for d in ("B", "T") if d in STATE[self.leaves[0]]]
        return (*lead, *(d for d in PARAMS[self.weight].dims if d not in STATE[self.reads[0]]))

    def params(self, cfg: ModelConfig, layer: int | None = None) -> tuple[str, ...]:
        """Paths of the parameters that it reads, of those that the model has."""
        names = (self.table, self.norm, self.weight, self.bias, *self.whole)
        paths = (self.path(cfg, n, layer) for n in names if n)
        return tuple(p for p in paths if present(cfg, {p: PARAMS[leaf(p)]}))

    @staticmethod
    def path(cfg: ModelConfig, name: str, layer: int | None) -> str:
        """Path of one of its parameters, the model's or a layer's. A tied head reads the table."""
        if layer is not None:
            return layer_path(layer, name)
        return EMBED.table if name == HEAD.weight and cfg.tied else name


ENTRY = Operator(
    name="entry",
    title="entry",
    does="The residual comes in already cut by coordinate.",
    leaves=("residual",),
)
EMBED = Operator(
    name="embed",
    title="embedding",
    does="Each node looks up its own coordinates of the embedding.",
    table="embed",
    leaves=("residual",),
)
QKV = Operator(
    name="qkv",
    title="norm, Q/K/V",
    does="RMSNorm of a node's own coordinates, times its rows of the weight."
    " A bias is added after the scatter, once.",
    reads=("residual",),
    norm="input_norm",
    weight="qkv",
    bias="qkv_bias",
    leaves=("q", "k", "v"),
)
ATTENTION = Operator(
    name="attention",
    title="attention",
    does="RoPE, cache and attention of the KV groups that a node owns. Nothing crosses.",
    reads=("q", "k", "v"),
    whole=("q_norm", "k_norm"),
    leaves=("attention", "cache_k", "cache_v"),
)
OUT = Operator(
    name="out",
    title="output projection",
    does="A node's heads times its rows of the weight; first residual add, on the shard.",
    reads=("attention",),
    weight="out",
    leaves=("residual",),
    adds=True,
)
GATE_UP = Operator(
    name="gate_up",
    title="norm, gate and up",
    does="RMSNorm, times a node's rows of the weight. SwiGLU on the shard.",
    reads=("residual",),
    norm="post_norm",
    weight="gate_up",
    leaves=("gate", "up", "activation"),
)
DOWN = Operator(
    name="down",
    title="down projection",
    does="A node's activation times its rows of the weight; second residual add, on the shard.",
    reads=("activation",),
    weight="down",
    leaves=("residual",),
    adds=True,
)
LAYER = (QKV, ATTENTION, OUT, GATE_UP, DOWN)
HEAD = Operator(
    name="head",
    title="norm, vocabulary head",
    does="Final RMSNorm, times a node's rows of the vocabulary head.",
    reads=("residual",),
    norm="norm",
    weight="head",
    leaves=("logits",),
)
CHOOSE = Operator(
    name="choose",
    title="choice of the token",
    does="Each node looks at its own logits. All nodes learn what these exchanges find, and with it"
    " the chosen token.",
    reads=("logits",),
)
OPERATORS = {op.name: op for op in (ENTRY, EMBED, *LAYER, HEAD, CHOOSE)}


def _interval_cuts() -> dict[str, Cut]:
    """Inside the interval a weight is cut along the state that it multiplies, a bias along the
    state that it is added to; each split dimension is a shard of state on one side, so all are
    padded."""
    along = {EMBED.table: EMBED.owned}
    for op in (*LAYER, HEAD):
        along |= {name: op.summed for name in (op.norm, op.weight) if name}
        along |= {op.bias: op.owned} if op.bias else {}
        along |= dict.fromkeys(op.whole)
    return {name: Cut(dim, SPLIT_DIMS) for name, dim in along.items()}


def _tensor_parallel_cuts() -> dict[str, Cut]:
    """Ordinary tensor parallelism, with the complete residual on every node: a weight is cut along
    its other side, a norm not at all."""
    residual, along = ENTRY.owned, {}
    for op in LAYER:
        if op.weight:
            along[op.weight] = split_dim(d for d in PARAMS[op.weight].dims if d != residual)
        along |= {op.bias: op.owned} if op.bias else {}
        along |= dict.fromkeys((op.norm, *op.whole) if op.norm else op.whole)
    along[HEAD.norm] = None
    return {name: Cut(dim, (dim,)) for name, dim in along.items()}


# By the parameter's name. The tables of the embedding and the head are cut by columns in either
# layout, so that a tied one exists once.
INTERVAL_CUTS, TENSOR_PARALLEL_CUTS = _interval_cuts(), _tensor_parallel_cuts()


# What operators hand over


@dataclasses.dataclass(frozen=True)
class Transfer:
    """One transfer that the plan allows, as every node takes part in it.

    Attributes:
      kind: its kind of collective.
      operand: padded shape that each node puts in.
      nodes: N.
      axis: the operand's axis that is dealt out over the nodes; None where all receive the same.
    """

    kind: ClassVar[type[collectives.CollectiveKind]]
    operand: tuple[int, ...]
    nodes: int
    axis: ClassVar[int | None] = None

    @property
    def result(self) -> tuple[int, ...]:
        """Padded shape that each node receives."""
        return self.kind.result(self.operand, self.axis, self.nodes)

    @property
    def sent(self) -> float:
        """Elements that a node must send to the others at least."""
        return self.kind.sent(math.prod(self.operand), self.nodes)

    def name(self, scope: str) -> str:
        """How records and reports call it; `scope` is the operator's."""
        raise NotImplementedError

    def describe(self) -> dict:
        """The transfer as plain data, for the evidence."""
        facts = dict.fromkeys(("axis", "weight", "contracted", "exchange"))
        return {"kind": self.kind.opcode, **facts, **dataclasses.asdict(self)}


@dataclasses.dataclass(frozen=True)
class Scatter(Transfer):
    """Each node receives its own run of a sum.

    Attributes:
      weight: path of the parameter that the operand was contracted with.
      contracted: the split dimension over which that contraction summed.
    """

    kind = collectives.ReduceScatter
    axis: int = dataclasses.field()
    weight: str
    contracted: str

    def name(self, scope):
        return self.weight


@dataclasses.dataclass(frozen=True)
class NormStatistic(Transfer):
    """The sum of squares of a norm's input, which every node receives."""

    kind = collectives.AllReduce

    def name(self, scope):
        return f"{scope} statistic"


@dataclasses.dataclass(frozen=True)
class Choice(Transfer):
    """What one exchange of the choice of the next token finds; every node receives it."""

    kind = collectives.AllReduce
    exchange: Exchange

    def name(self, scope):
        return self.exchange.name


@dataclasses.dataclass(frozen=True)
class Gather(Transfer):
    """Every node receives all shards: after the interval, and outside the claim."""

    kind = collectives.AllGather

    def name(self, scope):
        return "compatibility all-gather"


def transfers(op: Operator, layer: int | None, plan: Plan, exchanges, sizes) -> tuple:
    """What one operator hands over, in order.

    Args:
      op: the operator.
      layer: which it belongs to, if it does.
      plan: who owns what.
      exchanges: of the choice of the next token (`Sampling.exchanges`).
      sizes: B and T by their letters.
    """
    moved, rows = [], sizes["B"]
    if op.norm:
        moved.append(NormStatistic((rows, sizes["T"], 1), plan.nodes))
    if op.weight:
        operand = tuple(sizes.get(d) or plan.padded(d) for d in op.operand)
        axis, weight = op.operand.index(op.owned), op.path(plan.cfg, op.weight, layer)
        moved.append(Scatter(operand, plan.nodes, axis, weight, op.summed))
    if op is CHOOSE:
        for e in exchanges:
            moved.append(Choice((rows,) if e.width == 1 else (rows, e.width), plan.nodes, e))
    return tuple(moved)
