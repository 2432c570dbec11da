"""What programs move, read from their HLO, beside the closed formula."""

import dataclasses
import math

from fcjax import audit
from fcjax.audit.rules import traffic
from fcjax.collectives import BYTES, AllGather, AllReduce, ReduceScatter, sent_bytes
from fcjax.sharded import interval
from fcjax.sharded.interval import ShardedModel
from fcjax.sharded.programs import TensorParallel
from fcjax.table import aligned


@dataclasses.dataclass(frozen=True)
class Moved:
    """One array that a collective of a program moves, audited or not.

    Attributes:
      kind: its opcode.
      sent: elements of the operand on each node.
      dtype: of its elements, as HLO names it.
    """

    kind: str
    sent: int
    dtype: str


def moved(text: str) -> list[Moved]:
    """Every array that the collectives of a compiled program move."""
    return [
        Moved(i.opcode.removesuffix("-start"), math.prod(o.shape.dims), o.shape.dtype)
        for computation, straight in traffic.reachable(audit.parse(text)).items()
        for i in computation.instructions
        if straight and i.opcode in traffic.JUDGED
        for o in i.operands
    ]


def planned_sent(model: ShardedModel | TensorParallel) -> float:
    """Elements that a node sends in a decode step of one row, by the closed formula.

    With every layer on shards, the sum over the operator table. Under tensor parallelism two
    all-reduces of the residual for each layer, one all-gather of it at the start, and the same
    head and choice.
    """
    plan, N = model.plan, model.plan.nodes
    if isinstance(model, ShardedModel):
        return interval.sent(model, 1, 1)
    residual = AllGather.sent(plan.split("D").block, N)
    layers = plan.cfg.L * 2 * AllReduce.sent(plan.cfg.D, N)
    head = ReduceScatter.sent(plan.padded("V"), N)
    choice = sum(AllReduce.sent(e.width, N) for e in model.sampling.exchanges)
    return residual + layers + head + choice


def table(programs: dict[str, tuple[ShardedModel | TensorParallel, str]]) -> str:
    """What f32 programs move in a decode step of one row, read from their HLO and planned."""
    rows = [("each step and node", "collectives", "bytes sent, HLO", "by the formula")]
    for name, (model, text) in programs.items():
        moves, planned = moved(text), BYTES["f32"] * planned_sent(model)
        sent = sent_bytes(moves, model.plan.nodes)
        rows.append((f"  {name}", str(len(moves)), f"{sent:.1f}", f"{planned:.1f}"))
    return aligned(rows, "<>")
