"""Mutants of the planned transfers, of inputs and of results; see `mutations`."""

import itertools
import re
from collections.abc import Iterator

from experiments.adversary import mutate_exchanges
from experiments.adversary.entry_text import (
    Line,
    after,
    full_slice,
    lines,
    replace,
    shape,
    size,
    with_computation,
)
from experiments.adversary.mutations import Mutant, combiner, everyone, gathering, transfers
from fcjax.audit.domain.roles import State


def mutants(text: str, contract, every: int = 1) -> Iterator[Mutant]:
    """All of them, or every `every`-th of the many transfers: (kind, place, text)."""
    roles = contract.signature
    nodes = roles.nodes
    splits = {
        n: role.axes.index(role.split) for n, role in enumerate(roles.parameters) if role.split
    }
    shards = [n for n, role in enumerate(roles.results) if isinstance(role, State)]
    return itertools.chain(
        transfers(text, nodes, every),
        collectives(text, contract),
        layouts(text, nodes, splits, shards),
    )


def collectives(text: str, contract, only_exchanges: bool = False) -> Iterator[Mutant]:
    """Each planned transfer in another form: with batch = nodes also over the batch axis.

    Of the exchanges of a search, which look alike, the first two.
    """
    entry, nodes = lines(text), contract.signature.nodes
    scatters = [v for v in entry if v.opcode == "reduce-scatter"]
    reduces = [v for v in entry if v.opcode == "all-reduce" and v.array]
    statistics = [v for v in reduces if len(v.dims) == 3]
    rounds = [v for v in reduces if len(v.dims) == 2]
    exchanges = [v for v in reduces if len(v.dims) == 1 or v in rounds[:2]]
    gathers = [v for v in entry if v.opcode == "all-gather"]
    shapes = {v.name: v for v in entry}
    residual, head = _residual(entry, contract), scatters[-1]
    if only_exchanges:
        scatters, statistics = [], []
    for v in scatters:
        # Only what is there already where this one is.
        others = [shapes[w.operand] for w in scatters[: scatters.index(v)]]
        for kind, new, more in _other_scatters(v, shapes[v.operand], others, residual, nodes):
            changed = replace(text, v, new)
            yield kind, v.name, with_computation(changed, more) if more else changed
    for v in statistics:
        others = [w.operand for w in statistics[: statistics.index(v)]]
        for kind, new, more in _other_statistics(v, shapes[v.operand], others, residual, nodes):
            changed = replace(text, v, new)
            yield kind, v.name, with_computation(changed, more) if more else changed
    for v in exchanges:
        others = mutate_exchanges.others(text, v, exchanges[: exchanges.index(v)])
        what = text, v, shapes[v.operand], others, head, residual
        for kind, new, more in mutate_exchanges.mutants(*what):
            changed = replace(text, v, new)
            yield f"exchange: {kind}", v.name, with_computation(changed, more) if more else changed
    for v in [*scatters, *statistics, *exchanges, *gathers]:
        yield from _other_groups(text, v, nodes)
    for gather in gathers:
        yield from _other_gathers(text, entry, gather, residual, nodes)


def _residual(entry: list[Line], contract) -> Line:
    """The residual that comes in, or in the whole model the one that is looked up."""
    names = [r.name for r in contract.signature.parameters]
    if "residual" in names:
        number = f" parameter({names.index('residual')})"
        return next(v for v in entry if v.opcode == "parameter" and number in v.text)
    (role,) = (r for r in contract.signature.results if r.name == "residual")
    shard = size(role.shape), role.shape[-1]
    return next(v for v in entry if v.array and (size(v.dims), (v.dims or [0])[-1]) == shard)


def _other_scatters(v: Line, x: Line, others, residual: Line, nodes: int):
    along = int(v.attribute(r"dimensions=\{(\d+)\}"))
    rest = v.text.partition(f"reduce-scatter(%{x.name})")[2]
    scatter = lambda name: f"  %{v.name} = {v.shape} reduce-scatter(%{name}){rest}\n"  # noqa: E731
    reduce = rest.replace(f", dimensions={{{along}}}", "")
    summed = f"  %m.r = {x.shape} all-reduce(%{x.name}){reduce}\n"
    own = full_slice(v.dims)
    count, block = size(x.dims), v.dims[along]
    start = (
        "  %m.n = u32[] partition-id()\n  %m.i = s32[] convert(%m.n)\n"
        f"  %m.w = s32[] constant({block})\n  %m.o = s32[] multiply(%m.i, %m.w)\n"
        "  %m.zero = s32[] constant(0)\n"
    )
    starts = ", ".join(["%m.zero"] * along + ["%m.o"] + ["%m.zero"] * (len(v.dims) - along - 1))
    mine = f"dynamic_slice_sizes={{{','.join(map(str, v.dims))}}}"
    yield (
        "all-reduce, then the node's slice",
        summed + start + (f"  %{v.name} = {v.shape} dynamic-slice(%m.r, {starts}), {mine}\n"),
        "",
    )
    yield (
        "all-reduce, then one slice",
        summed + (f"  %{v.name} = {v.shape} slice(%m.r), slice={own}\n"),
        "",
    )
    yield "dropped", f"  %{v.name} = {v.shape} slice(%{x.name}), slice={own}\n", ""
    yield (
        "dropped, the node's slice",
        start + (f"  %{v.name} = {v.shape} dynamic-slice(%{x.name}, {starts}), {mine}\n"),
        "",
    )
    yield (
        "zeros",
        f"  %m.z = {v.dtype}[] constant(0)\n"
        + (f"  %{v.name} = {v.shape} broadcast(%m.z), dimensions={{}}\n"),
        "",
    )
    partials = shape(v.dtype, [nodes, *x.dims])
    yield "all-gather of the partial sums", (
        f"  %m.x = {shape(v.dtype, [1, *x.dims])} reshape(%{x.name})\n"
        f"  %m.g = {partials} all-gather(%m.x), channel_id=99, replica_groups={everyone(nodes)},"
        " dimensions={0}, use_global_device_ids=true\n"
        f"  %m.z = {v.dtype}[] constant(0)\n"
        f"  %m.r = {x.shape} reduce(%m.g, %m.z), dimensions={{0}}, to_apply=%m.sum\n"
        f"  %{v.name} = {v.shape} slice(%m.r), slice={own}\n"
    ), combiner("m.sum", "add", v.dtype)
    yield "twice", scatter(x.name).replace(f"%{v.name} ", "%m.first ") + scatter(x.name), ""
    for opcode in ("maximum", "minimum", "multiply", "subtract"):
        new = re.sub(r"to_apply=%[\w.-]+", "to_apply=%m.other", scatter(x.name))
        yield f"{opcode} in place of the sum", new, combiner("m.other", opcode, v.dtype)
    # The same count of elements over another axis, where one divides.
    for d, n in enumerate(x.dims):
        if d != along and n % nodes == 0:
            dims = [m // nodes if e == d else m for e, m in enumerate(x.dims)]
            new = scatter(x.name).replace(f"dimensions={{{along}}}", f"dimensions={{{d}}}")
            new = new.replace(f"%{v.name} = {v.shape}", f"%m.r = {shape(v.dtype, dims)}")
            yield "over another axis", new + f"  %{v.name} = {v.shape} reshape(%m.r)\n", ""
    for o in others:
        fits = o.dims == x.dims
        cast = f"  %m.x = {x.shape} {'copy' if fits else 'reshape'}(%{o.name})\n"
        if size(o.dims) == count:
            yield "fed with another operator's", cast + scatter("m.x"), ""
    # State beside the contraction, in the same transfer.
    flat = shape(v.dtype, [size(residual.dims)])
    state = (
        f"  %m.flat = {flat} reshape(%{residual.name})\n  %m.z = {v.dtype}[] constant(0)\n"
        f"  %m.pad = {shape(v.dtype, [count])} pad(%m.flat, %m.z),"
        f" padding=0_{count - size(residual.dims)}\n"
        f"  %m.y = {x.shape} reshape(%m.pad)\n"
    )
    yield (
        "state added to its operand",
        state + (f"  %m.x = {x.shape} add(%{x.name}, %m.y)\n" + scatter("m.x")),
        "",
    )
    yield "state in place of its operand", state + scatter("m.y"), ""
    yield (
        "operand reversed",
        (f"  %m.x = {x.shape} reverse(%{x.name}), dimensions={{{along}}}\n" + scatter("m.x")),
        "",
    )
    yield "owners swapped", _rolled(v, x, along, block) + scatter("m.x"), ""
    yield (
        "a function of the operand",
        (f"  %m.x = {x.shape} tanh(%{x.name})\n" + scatter("m.x")),
        "",
    )
    yield (
        "masked",
        (
            f"  %m.n = {shape('s32', x.dims)} iota(), iota_dimension={along}\n"
            f"  %m.m = {x.shape} convert(%m.n)\n  %m.x = {x.shape} multiply(%{x.name}, %m.m)\n"
            + scatter("m.x")
        ),
        "",
    )
    double = [2 * n if d == along else n for d, n in enumerate(x.dims)]
    twice = [2 * n if d == along else n for d, n in enumerate(v.dims)]
    yield "twice as wide", (
        f"  %m.x = {shape(v.dtype, double)} concatenate(%{x.name}, %{x.name}),"
        f" dimensions={{{along}}}\n"
        + scatter("m.x").replace(f"%{v.name} = {v.shape}", f"%m.r = {shape(v.dtype, twice)}")
        + f"  %{v.name} = {v.shape} slice(%m.r), slice={own}\n"
    ), ""
    own_flat, few = shape(v.dtype, [count // nodes]), shape(v.dtype, [1])
    rest_flat = rest.replace(f"dimensions={{{along}}}", "dimensions={0}")
    yield (
        "state combined with it",
        state
        + (
            f"  %m.few = {shape(v.dtype, [nodes])} slice(%m.pad), slice={{[0:{nodes}]}}\n"
            f"  %m.x = {shape(v.dtype, [count])} reshape(%{x.name})\n"
            f"  %m.t = ({own_flat}, {few}) reduce-scatter(%m.x, %m.few){rest_flat}\n"
            f"  %m.e = {own_flat} get-tuple-element(%m.t), index=0\n"
            f"  %{v.name} = {v.shape} reshape(%m.e)\n"
        ),
        "",
    )


def _rolled(v: Line, x: Line, along: int, block: int) -> str:
    """%m.x: the operand with its first block after the others."""
    at = lambda a, b: "{" + ", ".join(  # noqa: E731
        f"[{a}:{b}]" if d == along else f"[0:{n}]" for d, n in enumerate(x.dims)
    ) + "}"
    rest = [n - block if d == along else n for d, n in enumerate(x.dims)]
    n = x.dims[along]
    return (
        f"  %m.a = {shape(v.dtype, v.dims)} slice(%{x.name}), slice={at(0, block)}\n"
        f"  %m.b = {shape(v.dtype, rest)} slice(%{x.name}), slice={at(block, n)}\n"
        f"  %m.x = {x.shape} concatenate(%m.b, %m.a), dimensions={{{along}}}\n"
    )


def _other_statistics(v: Line, x: Line, others, residual: Line, nodes: int):
    rest = v.text.partition(f"all-reduce(%{x.name})")[2]
    reduce = lambda name: f"  %{v.name} = {v.shape} all-reduce(%{name}){rest}\n"  # noqa: E731
    yield "dropped", f"  %{v.name} = {v.shape} copy(%{x.name})\n", ""
    yield "twice", reduce(x.name).replace(f"%{v.name} ", "%m.first ") + reduce(x.name), ""
    yield "of itself", (reduce(x.name).replace(f"%{v.name} ", "%m.first ") + reduce("m.first")), ""
    for o in others:
        yield "fed with another norm's", reduce(o), ""
    yield "a function of it", f"  %m.x = {v.shape} sqrt(%{x.name})\n" + reduce("m.x"), ""
    yield (
        "scaled",
        (
            f"  %m.c = {v.dtype}[] constant(3)\n"
            f"  %m.k = {v.shape} broadcast(%m.c), dimensions={{}}\n"
            f"  %m.x = {v.shape} multiply(%{x.name}, %m.k)\n" + reduce("m.x")
        ),
        "",
    )
    dims = residual.dims
    square = f"  %m.q = {residual.shape} multiply(%{residual.name}, %{residual.name})\n"
    zero, add = f"  %m.z = {v.dtype}[] constant(0)\n", combiner("m.sum", "add", v.dtype)
    sums = f"  %{v.name} = {v.shape} reshape(%m.s)\n"
    over = f"{shape(v.dtype, dims[:2])} reduce"
    yield (
        "of one coordinate",
        (
            f"  %m.c = {shape(v.dtype, [*dims[:2], 1])} slice(%{residual.name}),"
            f" slice={full_slice([*dims[:2], 1])}\n"
            f"  %m.x = {v.shape} reshape(%m.c)\n" + reduce("m.x")
        ),
        "",
    )
    yield (
        "of each coordinate",
        (
            square + zero + f"  %m.r = {residual.shape} all-reduce(%m.q){rest}\n"
            f"  %m.s = {over}(%m.r, %m.z), dimensions={{2}}, to_apply=%m.sum\n" + sums
        ),
        add,
    )
    half = [*dims[:2], dims[2] // 2]
    yield "of half the coordinates", (
        f"  %m.h = {shape(v.dtype, half)} slice(%{residual.name}), slice={full_slice(half)}\n"
        f"  %m.q = {shape(v.dtype, half)} multiply(%m.h, %m.h)\n" + zero
        + f"  %m.s = {over}(%m.q, %m.z), dimensions={{2}}, to_apply=%m.sum\n"
        f"  %m.x = {v.shape} reshape(%m.s)\n" + reduce("m.x")
    ), add
    yield (
        "of the sum",
        zero
        + (
            f"  %m.s = {over}(%{residual.name}, %m.z), dimensions={{2}}, to_apply=%m.sum\n"
            f"  %m.x = {v.shape} reshape(%m.s)\n" + reduce("m.x")
        ),
        add,
    )
    pair = f"({v.shape}, {residual.shape})"
    yield (
        "state combined with it",
        (
            f"  %m.t = {pair} all-reduce(%{x.name}, %{residual.name}){rest}\n"
            f"  %{v.name} = {v.shape} get-tuple-element(%m.t), index=0\n"
        ),
        "",
    )
    for opcode in ("maximum", "multiply"):
        new = re.sub(r"to_apply=%[\w.-]+", "to_apply=%m.other", reduce(x.name))
        yield f"{opcode} in place of the sum", new, combiner("m.other", opcode, v.dtype)


def _other_groups(text: str, v: Line, nodes: int) -> Iterator[Mutant]:
    """Other nodes, or the nodes in another order (a sum has none)."""
    groups = re.search(r"replica_groups=(mesh\[.*?\] \{.*?\}|\{\{.*?\}\}|\[.*?\]<=\[.*?\])", v.text)
    everyone = [*range(nodes)]
    others = {
        "all but the last node": [everyone[:-1], everyone[-1:]],
        "groups of one": [[q] for q in everyone],
        "the nodes backwards": [everyone[::-1]],
        "two owners swapped": [[1, 0, *everyone[2:]]],
    }
    for kind, new in others.items():
        if v.opcode == "all-reduce" and len(new) == 1:
            continue
        spelled = "{" + ",".join("{" + ",".join(map(str, g)) + "}" for g in new) + "}"
        yield kind, v.name, replace(text, v, v.text.replace(groups[1], spelled))
    alone = v.text.replace(", use_global_device_ids=true", "").replace("channel_id=1, ", "")
    alone = alone.replace(groups[1], "{{0}}")  # of the only replica, each partition on its own
    yield "replicas in place of nodes", v.name, replace(text, v, alone)


def _other_gathers(text: str, entry, gather: Line, residual: Line, nodes: int) -> Iterator[Mutant]:
    """The compatibility all-gather: elsewhere, with something else, or not at all."""
    name, at = gather.name, gather.operand
    wide = size(gather.dims)
    yield "dropped", name, replace(
        text, gather,
        f"  %m.z = {gather.dtype}[] constant(0)\n"
        f"  %{name} = {gather.shape} broadcast(%m.z), dimensions={{}}",
    )
    copies = ", ".join([f"%{at}"] * nodes)
    yield (
        "dropped, own shard instead",
        name,
        replace(
            text, gather, f"  %{name} = {gather.shape} concatenate({copies}), dimensions={{0}}"
        ),
    )
    again = gather.text.replace(f"%{name} ", "%m.g ").replace("ROOT ", "")
    yield "twice", name, after(text, gather, again, None)
    source = next(v for v in entry if v.name == at)
    flat = shape(gather.dtype, [wide // nodes])
    own = size(residual.dims)
    yield "of the wrong values", name, replace(
        text, gather,
        f"  %m.f = {shape(gather.dtype, [own])} reshape(%{residual.name})\n"
        f"  %m.z = {gather.dtype}[] constant(0)\n"
        f"  %m.p = {flat} pad(%m.f, %m.z), padding=0_{wide // nodes - own}\n"
        f"  %m.x = {source.shape} reshape(%m.p)\n"
        + gather.text.replace(f"(%{at})", "(%m.x)"),
    )
    more = shape(gather.dtype, [wide // nodes + own])
    yield "of more values", name, replace(
        text, gather,
        f"  %m.f = {shape(gather.dtype, [own])} reshape(%{residual.name})\n"
        f"  %m.e = {flat} reshape(%{at})\n"
        f"  %m.x = {more} concatenate(%m.e, %m.f), dimensions={{0}}\n"
        f"  %m.g = {shape(gather.dtype, [wide + nodes * own])} all-gather(%m.x), channel_id=1,"
        f" replica_groups={everyone(nodes)}, dimensions={{0}}, use_global_device_ids=true\n"
        f"  %m.s = {shape(gather.dtype, [wide])} slice(%m.g), slice={{[0:{wide}]}}\n"
        f"  %{name} = {gather.shape} reshape(%m.s)",
    )
    # One operator earlier: the residual is complete before the last scatter has run.
    last = [v for v in entry if v.opcode == "reduce-scatter"][-1]
    before = entry[: entry.index(last)]
    done = next(v for v in reversed(before) if v.array and v.dims == residual.dims)
    forward = gathering(done, nodes, f"%{done.name}")
    yield "one operator forward", done.name, after(text, done, forward, None)


def layouts(text: str, nodes: int, splits: dict[int, int], results) -> Iterator[Mutant]:
    """Inputs that are complete, and results that are.

    Args:
      splits: for each parameter its split dimension.
      results: numbers of the results that are shards.
    """
    entry = lines(text)
    for number, along in splits.items():
        (p,) = (v for v in entry if v.opcode == "parameter" and f" parameter({number})" in v.text)
        whole = [n * nodes if d == along else n for d, n in enumerate(p.dims)]
        wide = shape(p.dtype, whole)
        new = p.text.replace(p.shape, wide, 1)
        new = re.sub(r", sharding=\{[^}]*\}(<=\[\d+\]\})?", "", new)
        cut = f"  %m.s = {p.shape} slice(%{p.name}), slice={full_slice(p.dims)}\n"
        changed = after(text, p, cut, "m.s").replace(f"\n{p.text}\n", f"\n{new}\n")
        yield "complete input", p.name, _declare(changed, number, p, wide)
    root = entry[-1]
    for number in results:
        arguments = re.search(r" tuple\(([^)]*)\)", root.text)[1].split(", ")
        name = arguments[number].split("%")[1]
        value = next(v for v in entry if v.name == name)
        gathered = gathering(value, nodes, f"%{name}")
        yield (
            "result gathered on its way out",
            name,
            replace(text, root, gathered + root.text.replace(f"%{name}", "%m.s")),
        )


def _declare(text: str, number: int, p: Line, wide: str) -> str:
    """The new shape of a parameter, in the module's header and the entry's too."""
    header, rest = text.split("\n", 1)
    head, _, tail = header.partition("entry_computation_layout={(")
    inside, arrow, results = tail.partition(")->")
    shapes = re.findall(r"(?:/\*index=\d+\*/)?(\w+\[[\d,]*\](?:\{[\d,]*\})?)", inside)
    shapes[number] = wide
    header = f"{head}entry_computation_layout={{({', '.join(shapes)}{arrow}{results}"
    short, short_wide = (s.split("{")[0] for s in (p.shape, wide))
    rest = re.sub(rf"({re.escape(p.name)}: ){re.escape(short)}", rf"\g<1>{short_wide}", rest)
    return f"{header}\n{rest}"
