"""Who is handed what, in any program, of which nothing is declared but what its inputs are.

`certify` judges a program by the one discipline of this project. This is for all others: the roles
are patterns of names, and layouts are read from the program.
"""

import functools
import math
import re
from collections.abc import Mapping

import jax
import numpy as np

from fcjax.audit.certify import program_of
from fcjax.audit.domain import spread as sp
from fcjax.audit.domain.digits import Digit, Part
from fcjax.audit.domain.roles import Public, State, Table, Tensor, Weight
from fcjax.audit.domain.spread import COORDINATES, ROWS, WEIGHT, Cut, Spread
from fcjax.audit.domain.values import Value, leaves
from fcjax.audit.handover import Handed, Holds, Row
from fcjax.audit.hlo.graph import Instruction, Module, Unauditable, parse
from fcjax.audit.hlo.sharding import Block, blocks
from fcjax.audit.holding import Handing, Holding, Inputs, cuts, entry_value, holds_all, is_followed
from fcjax.audit.rules import traffic
from fcjax.collectives import BYTES

_KINDS = (State, Weight, Table, Public)
Roles = Mapping[str, type[Tensor]]


def handed(program, roles: Roles, *arguments) -> Handed:
    """Say of any program who is handed what.

    Args:
      program: what `certify` takes.
      roles: for patterns of names what such inputs are: `State`, `Weight`, `Public`, or `Table` for
        a weight whose rows are state once public values look them up. A name is JAX's, for example
        ``params['layers'][0]['up']``; the first pattern that is found in it counts
        (`re.search`), and every input needs one.
      arguments: arrays or ``jax.ShapeDtypeStruct`` with shardings, for a function.

    Raises:
      Unauditable: the program holds something that cannot be followed, it does not say how its
        inputs are laid out, or the roles do not fit it.
      OSError: the path cannot be read.
    """
    return handed_by(*program_of(program, arguments), roles)


def handed_by(text: str, shardings, roles: Roles) -> Handed:
    """The same of the text of a program that this process compiled, with its inputs' layouts."""
    module = parse(text)
    names = [_name(p) for p in module.entry.parameters]
    kinds = [_kind(name, roles) for name in names]
    if not any(kind in (State, Table) for kind in kinds):
        raise Unauditable(f"roles: expected a State or a Table among the inputs, got {names}")
    held = _layouts(module, shardings)
    inputs = _inputs(names, kinds, held)
    values = _entry(module, names, kinds, held, inputs)
    walk = Holding(module.devices, inputs, {c for v in values for c, _ in cuts(v)})
    results = leaves(walk.run(module.entry, values))
    say = functools.partial(_holds, inputs=inputs, others=walk.others)
    weights = [v for v, kind in zip(values, kinds, strict=True) if kind in (Weight, Table)]
    cut = sum(bool(cuts(v)) for v in weights)
    return Handed(
        program=module.name,
        nodes=module.devices,
        inputs={
            name: say(value)
            for name, kind, value in zip(names, kinds, values, strict=True)
            if kind is State
        },
        weights=(cut, len(weights) - cut),
        rows=tuple(_row(h, inputs, walk.others) for h in walk.handings),
        results=tuple(map(say, results)),
    )


def _name(p: Instruction) -> str:
    """As JAX names it; its number, if the program does not say."""
    name = (p["metadata"] or {"op_name": ""})["op_name"].replace("\\'", "'")
    return name or f"input {p['parameter_number']}"


def _kind(name: str, roles: Roles) -> type[Tensor]:
    for pattern, kind in roles.items():
        if kind not in _KINDS:
            raise Unauditable(f"roles: expected State, Weight, Table or Public, got {kind}")
        try:
            if re.search(pattern, name):
                return kind
        except re.error as e:
            text = f"roles: expected a regular expression, got {pattern!r} ({e})"
            raise Unauditable(text) from None
    raise Unauditable(f"roles: expected a pattern for each input, got none for {name}")


def _layouts(module: Module, shardings) -> list[tuple[Block, ...]]:
    """For each input the block that each device holds, by the program's notes or by JAX."""
    out = []
    parameters = module.entry.parameters
    for n, p in enumerate(parameters):
        rank = len(p.shape.dims)
        if p.shape.dtype == "tuple":
            raise Unauditable(f"{p.name}: expected an array as input, got a tuple")
        if module.devices == 1:
            out.append(((0,) * rank,))
        elif p["sharding"] is not None:
            out.append(blocks(p["sharding"], rank, module.devices, p.name))
        elif len(shardings) == len(parameters):
            out.append(_named(shardings[n], rank, module.devices, p.name))
        else:
            raise Unauditable(
                f"{p.name}: expected a note how it is laid out, got none; hand in what"
                " jax.jit(f).lower(...).compile() gives"
            )
    return out


def _named(sharding, rank: int, devices: int, where: str) -> tuple[Block, ...]:
    mesh = getattr(sharding, "mesh", None)
    if not isinstance(sharding, jax.sharding.NamedSharding) or mesh.size != devices:
        raise Unauditable(f"{where}: expected a NamedSharding over {devices} nodes, got {sharding}")
    spec = [*sharding.spec, *[None] * rank][:rank]
    axes = [(a,) if isinstance(a, str) else a or () for a in spec]
    out = []
    for at in np.ndindex(*mesh.shape.values()):
        number = dict(zip(mesh.shape, at, strict=True))
        sizes = [[mesh.shape[a] for a in names] for names in axes]
        out.append(
            tuple(
                int(np.ravel_multi_index([number[a] for a in names], size)) if names else 0
                for names, size in zip(axes, sizes, strict=True)
            )
        )
    return tuple(out)


def _inputs(names, kinds, held) -> Inputs:
    bits: dict[str, int] = {}
    of, place = dict.fromkeys(_KINDS, 0), 0
    for name, kind, where in zip(names, kinds, held, strict=True):
        if name in bits:
            raise Unauditable(f"inputs: expected different names, got two {name}")
        count = len(set(where))
        bits[name] = ((1 << count) - 1) << place
        of[kind] |= bits[name]
        place += count
    return Inputs(bits, of[State], of[Table], of[Weight] | of[Table], of[Public])


def _cut(where: tuple[Block, ...], d: int) -> Cut:
    return tuple(frozenset([block[d]]) for block in where)


def _entry(module: Module, names, kinds, held, inputs: Inputs) -> list[Value]:
    """The program's inputs, with what runs along their dimensions and who has which block."""
    rows = {
        _cut(where, d)
        for kind, where in zip(kinds, held, strict=True)
        for d in range(len(where[0]))
        if kind is Public
    }
    out = []
    for p, name, kind, where in zip(module.entry.parameters, names, kinds, held, strict=True):
        order = sorted(set(where))
        place = (inputs.bits[name] & -inputs.bits[name]).bit_length() - 1
        is_weight, rank = kind in (Weight, Table), len(p.shape.dims)
        dims, single = [], set()
        for d, n in enumerate(p.shape.dims):
            cut = _cut(where, d)
            # A row is all coordinates of one token, so the first dimension of state counts rows.
            is_rows = kind is Public or (kind is State and (cut in rows or d == 0 < rank - 1))
            tag = WEIGHT if is_weight else ROWS if kind is Public or d < rank - 1 else COORDINATES
            if not sp.is_whole(cut):
                tag = Part(sp.axis(cut, n, is_rows), 1)
                single |= {(cut, is_rows)} if n == 1 else set()
            digit = Digit(n, weight=tag) if is_weight else Digit(n, state=tag)
            dims.append((digit,) if n != 1 else ())
        spread = Spread(
            reach=tuple(1 << (place + order.index(block)) for block in where),
            same=tuple((name, block) for block in where),
            since=inputs.bits[name] if is_weight else 0,
            single=frozenset(single),
        )
        value = entry_value(p.shape, tuple(dims), spread, kind is Public)
        whole = kind is State and holds_all(value)
        out.append(value.replace(spread=spread.replace(whole=whole)))
    return out


def _row(h: Handing, inputs: Inputs, others: set[Cut]) -> Row:
    i, shape = h.instruction, h.result.shape
    reach = functools.reduce(int.__or__, h.result.spread.reach)
    kind = i.opcode.removesuffix("-start")
    foreign = kind not in traffic.COLLECTIVES
    if kind == "custom-call":
        kind = f"call of {i['custom_call_target']}"
    pairs = tuple((p["source"], p["target"]) for p in i["source_target_pairs"])
    before, after = (_holds(v, inputs, others) for v in (h.operand, h.result))
    if foreign:
        after = Holds("not followed", "what it does with that is not known", before.whole)
    return Row(
        kind=kind,
        instruction=i.name,
        scope=i.scope,
        groups=pairs or i.groups,
        bytes=h.arrays * math.prod(shape.dims) * BYTES.get(shape.dtype, 1),
        times=h.times,
        states=tuple(inputs.names(reach, inputs.states | inputs.tables)),
        weights=tuple(inputs.names(reach, inputs.weights)),
        public=tuple(inputs.names(reach, inputs.publics)),
        since=tuple(inputs.names(h.operand.spread.since, inputs.weights)),
        before=before,
        after=after,
    )


def _holds(value: Value, inputs: Inputs, others: set[Cut]) -> Holds:
    spread = value.spread
    cut = _dealt(value)
    if not any(map(inputs.is_state, spread.reach)):
        reach = functools.reduce(int.__or__, spread.reach)
        what = "weight" if reach & inputs.weights else "public"
        if cut:
            return Holds(what, f"{what}: {cut}", False)
        whole = "complete" if sp.is_whole(spread.same) else "a node's own"
        return Holds(what, f"{what}: {whole}", False)
    if spread.pending:
        what, words = "partial sum", "a partial sum" + (f" for {cut}" if cut else "")
        if spread.statistic:
            what, words = "statistic", f"its part of a statistic, {_count(value)}"
    elif spread.statistic:
        what, words = "statistic", f"a statistic, {_count(value)}"
    elif not is_followed(value):
        what, words = "not followed", "something of its own that was not followed"
    elif holds_all(value):
        what, words = "complete", "complete" + (f" in its rows: {cut}" if cut else "")
    elif any(c in others for c, _ in cuts(value)):
        what, words = "another's shard", f"another's shard: {cut}"
    else:
        what, words = "own shard", f"own shard: {cut}"
    return Holds(what, words, spread.whole)


def _count(value: Value) -> str:
    n = math.prod(value.shape.dims)
    return "1 number" if n == 1 else f"{n} numbers"


def _dealt(value: Value) -> str:
    """Which coordinates each node has, along which dimension."""
    out = []
    for d, digits in enumerate(value.dims):
        for digit, tag in ((x, t) for x in digits for t in x[1:] if isinstance(t, Part)):
            for cut, _ in sp.cuts(tag):
                n, total = value.shape.dims[d], value.shape.dims[d]
                if digit.size > tag.axis.size:  # the node's block stands among constants
                    n = tag.axis.size
                else:
                    total = n * len(sp.blocks(cut)) // max(map(len, cut))
                out.append(f"{n} of {total} along dim {d}{_order(cut)}")
    for cut, _ in sorted(value.spread.single, key=str):
        out.append(f"a block of {len(sp.blocks(cut))}{_order(cut)}")
    return ", ".join(out)


def _order(cut: Cut) -> str:
    """Which node has which block, where that is not each the next one."""
    if cut == tuple(frozenset([d]) for d in range(len(cut))):
        return ""
    blocks_of = ("+".join(map(str, sorted(b))) or "none" for b in cut)
    return f" (blocks {' '.join(blocks_of)})"
