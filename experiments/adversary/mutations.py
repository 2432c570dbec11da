"""Mutants of an honest program, made mechanically: every kind of change at every place it fits.

`transfers` lets every value of the program leave its node in every way there is; what it changes
is always what a node is sent or holds, so the audit must catch each one. `neutral` changes only
the way in which the same is computed and must stay clean. `mutate_collectives` has the changes of
the planned transfers, of inputs and of results.

Each yields (kind, place, text). The mutants are made of text alone, as no compiler would make most
of them.
"""

from collections.abc import Iterator

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

Mutant = tuple[str, str, str]


def combiner(name: str, opcode: str, dtype: str) -> str:
    return (
        f"%{name} (a.m: {dtype}[], b.m: {dtype}[]) -> {dtype}[] {{\n"
        f"  %a.m = {dtype}[] parameter(0)\n  %b.m = {dtype}[] parameter(1)\n"
        f"  ROOT %r.m = {dtype}[] {opcode}(%a.m, %b.m)\n}}"
    )


def everyone(nodes: int) -> str:
    return "{{" + ",".join(map(str, range(nodes))) + "}}"


def gathering(v: Line, nodes: int, operand: str) -> str:
    """%m.s: the value again, by way of an all-gather."""
    wide = [nodes * v.dims[0], *v.dims[1:]]
    return (
        f"  %m.g = {shape(v.dtype, wide)} all-gather({operand}), channel_id=99,"
        f" replica_groups={everyone(nodes)}, dimensions={{0}}, use_global_device_ids=true\n"
        f"  %m.s = {v.shape} slice(%m.g), slice={full_slice(v.dims)}\n"
    )


def transfers(text: str, nodes: int, every: int = 1) -> Iterator[Mutant]:
    """Every value leaves its node in every way; of these mutants every `every`-th is made."""
    values = [v for v in lines(text) if v.array and v.dims]
    for n, v in enumerate(values):
        for m, (kind, (new, result, more)) in enumerate(_ways_out(v, nodes).items()):
            if (n + m) % every:
                continue
            changed = after(text, v, new, result)
            yield kind, v.name, with_computation(changed, more) if more else changed


def _ways_out(v: Line, nodes: int) -> dict[str, tuple[str, str | None, str]]:
    """For each way out: instructions, the name of what is read instead, a computation."""
    own, rows, group = v.shape, v.dims[0], everyone(nodes)
    wide = shape(v.dtype, [nodes * rows, *v.dims[1:]])
    channel = f"channel_id=99, replica_groups={group}"
    sum_, add = "use_global_device_ids=true, to_apply=%m.sum", combiner("m.sum", "add", v.dtype)
    ring = ",".join(f"{{{q},{(q + 1) % nodes}}}" for q in range(nodes))
    first = full_slice(v.dims)
    cut = shape(v.dtype, [1] * len(v.dims))
    edge = "x".join([f"0_{(nodes - 1) * rows}"] + ["0_0"] * (len(v.dims) - 1))
    gather = gathering(v, nodes, "%p.m")
    body = f"(p.m: {v.shape}) -> {own} {{\n  %p.m = {v.shape} parameter(0)\n{gather}"
    body = body.replace("  %m.s", "  ROOT %m.s") + "}"
    pair = f"(s32[], {own})"
    loop = (
        f"%m.cond (c.m: {pair}) -> pred[] {{\n  %c.m = {pair} parameter(0)\n"
        "  %n.m = s32[] get-tuple-element(%c.m), index=0\n  %five.m = s32[] constant(5)\n"
        "  ROOT %l.m = pred[] compare(%n.m, %five.m), direction=LT\n}\n\n"
        f"%m.body (b.m: {pair}) -> {pair} {{\n  %b.m = {pair} parameter(0)\n"
        "  %i.m = s32[] get-tuple-element(%b.m), index=0\n  %one.m = s32[] constant(1)\n"
        "  %j.m = s32[] add(%i.m, %one.m)\n"
        f"  %p.m = {own} get-tuple-element(%b.m), index=1\n{gather}"
        f"  ROOT %t.m = {pair} tuple(%j.m, %m.s)\n}}"
    )
    bits = {"f32": "u32", "bf16": "u16", "f16": "u16"}.get(v.dtype)
    ways = {
        "all-gather": (gathering(v, nodes, f"%{v.name}"), "m.s", ""),
        "all-gather, async": (
            f"  %m.g = ({v.shape}, {wide}) all-gather-start(%{v.name}), {channel},"
            " dimensions={0}, use_global_device_ids=true\n"
            f"  %m.d = {wide} all-gather-done(%m.g)\n"
            f"  %m.s = {own} slice(%m.d), slice={first}\n", "m.s", "",
        ),
        "all-gather, unused": (gathering(v, nodes, f"%{v.name}"), None, ""),
        "all-gather in a call": (
            f"  %m.c = {own} call(%{v.name}), to_apply=%m.called\n", "m.c", f"%m.called {body}",
        ),
        "all-gather in a fusion": (
            f"  %m.f = {own} fusion(%{v.name}), kind=kCustom, calls=%m.fused\n", "m.f",
            f"%m.fused {body}",
        ),
        "all-gather in an async wrapper": (
            f"  %m.a = (({v.shape}), {own}) async-start(%{v.name}), calls=%m.wrapped\n"
            f"  %m.d = {own} async-done(%m.a)\n", "m.d", f"%m.wrapped {body}",
        ),
        "all-gather in a branch": (
            "  %m.p = pred[] constant(true)\n"
            f"  %m.c = {own} conditional(%m.p, %{v.name}, %{v.name}),"
            " true_computation=%m.branch, false_computation=%m.branch\n", "m.c",
            f"%m.branch {body}",
        ),
        "all-gather in a loop": (
            f"  %m.zero = s32[] constant(0)\n  %m.own = {own} copy(%{v.name})\n"
            f"  %m.init = {pair} tuple(%m.zero, %m.own)\n"
            f"  %m.w = {pair} while(%m.init), condition=%m.cond, body=%m.body\n"
            f"  %m.e = {own} get-tuple-element(%m.w), index=1\n", "m.e", loop,
        ),
        "all-reduce": (
            f"  %m.r = {own} all-reduce(%{v.name}), {channel}, {sum_}\n", "m.r", add,
        ),
        "all-reduce, async": (
            f"  %m.r = {own} all-reduce-start(%{v.name}), {channel}, {sum_}\n"
            f"  %m.d = {own} all-reduce-done(%m.r)\n", "m.d", add,
        ),
        "all-reduce of one element": (
            f"  %m.x = {cut} slice(%{v.name}), slice={full_slice([1] * len(v.dims))}\n"
            f"  %m.r = {cut} all-reduce(%m.x), {channel}, {sum_}\n", None, add,
        ),
        "all-reduce, padded": (
            f"  %m.zero = {v.dtype}[] constant({'false' if v.dtype == 'pred' else 0})\n"
            f"  %m.x = {wide} pad(%{v.name}, %m.zero), padding={edge}\n"
            f"  %m.r = {wide} all-reduce(%m.x), {channel}, {sum_}\n"
            f"  %m.s = {own} slice(%m.r), slice={first}\n", "m.s", add,
        ),
        "maximum": (
            f"  %m.r = {own} all-reduce(%{v.name}), {channel}, use_global_device_ids=true,"
            " to_apply=%m.max\n", "m.r", combiner("m.max", "maximum", v.dtype),
        ),
        "reduce-scatter of copies": (
            f"  %m.x = {wide} concatenate({', '.join([f'%{v.name}'] * nodes)}), dimensions={{0}}\n"
            f"  %m.r = {own} reduce-scatter(%m.x), {channel}, dimensions={{0}}, {sum_}\n", "m.r",
            add,
        ),
        "collective-permute": (
            f"  %m.r = {own} collective-permute(%{v.name}), channel_id=99,"
            f" source_target_pairs={{{ring}}}\n", "m.r", "",
        ),
        "all-to-all": (
            f"  %m.t = ({', '.join([own] * nodes)})"
            f" all-to-all({', '.join([f'%{v.name}'] * nodes)}), {channel}\n"
            f"  %m.r = {own} get-tuple-element(%m.t), index=1\n", "m.r", "",
        ),
        "collective-broadcast": (
            f"  %m.r = {own} collective-broadcast(%{v.name}), {channel}\n", "m.r", "",
        ),
        "custom call": (
            f"  %m.r = {own} custom-call(%{v.name}), custom_call_target=\"m\"\n", "m.r", "",
        ),
        "outfeed": (
            "  %m.t = token[] after-all()\n"
            f"  %m.o = token[] outfeed(%{v.name}, %m.t), outfeed_shape={own}\n", None, "",
        ),
        "send to the host": (
            "  %m.t = token[] after-all()\n"
            f"  %m.o = ({own}, u32[], token[]) send(%{v.name}, %m.t), channel_id=98,"
            " is_host_transfer=true\n"
            "  %m.d = token[] send-done(%m.o), channel_id=98, is_host_transfer=true\n", None, "",
        ),
        "copy to host memory": (
            f"  %m.h = {own[:-1]}:S(5)}} copy(%{v.name})\n", None, "",
        ),
    }
    if bits:
        ways["all-gather of bits"] = (
            f"  %m.b = {shape(bits, v.dims)} bitcast-convert(%{v.name})\n"
            f"  %m.g = {shape(bits, [nodes * rows, *v.dims[1:]])} all-gather(%m.b), {channel},"
            " dimensions={0}, use_global_device_ids=true\n"
            f"  %m.s = {shape(bits, v.dims)} slice(%m.g), slice={first}\n"
            f"  %m.r = {own} bitcast-convert(%m.s)\n", "m.r", "",
        )
    return ways


def neutral(text: str, every: int = 1) -> Iterator[Mutant]:
    """The same computed in another way, for every `every`-th value; nothing else is sent."""
    values = [v for v in lines(text) if v.array and v.dims and v.dtype == "f32"]
    for v in values[::every]:
        own, at = v.shape, f"%{v.name}"  # in the layout that its readers expect
        dims = list(range(len(v.dims)))[::-1]
        turned = shape(v.dtype, [v.dims[d] for d in dims])
        back = "{" + ",".join(map(str, dims)) + "}"
        called = (
            f"%m.called (p.m: {v.shape}) -> {own} {{\n  %p.m = {v.shape} parameter(0)\n"
            f"  ROOT %c.m = {own} copy(%p.m)\n}}"
        )
        ways = {
            "copy": (f"  %m.r = {own} copy({at})\n", ""),
            "barrier": (
                f"  %m.t = ({v.shape}) tuple({at})\n  %m.b = ({v.shape}) opt-barrier(%m.t)\n"
                f"  %m.r = {v.shape} get-tuple-element(%m.b), index=0\n", "",
            ),
            "reshape": (
                f"  %m.f = {shape(v.dtype, [size(v.dims)])} reshape({at})\n"
                f"  %m.r = {own} reshape(%m.f)\n", "",
            ),
            "transpose": (
                f"  %m.f = {turned} transpose({at}), dimensions={back}\n"
                f"  %m.r = {own} transpose(%m.f), dimensions={back}\n", "",
            ),
            "convert": (
                f"  %m.f = {shape('f64', v.dims)} convert({at})\n  %m.r = {own} convert(%m.f)\n",
                "",
            ),
            "call": (f"  %m.r = {own} call({at}), to_apply=%m.called\n", called),
            "async copy": (
                f"  %m.f = ({own}, {v.shape}, u32[]) copy-start({at})\n"
                f"  %m.r = {own} copy-done(%m.f)\n", "",
            ),
        }
        for kind, (new, more) in ways.items():
            changed = after(text, v, new, "m.r")
            yield kind, v.name, with_computation(changed, more) if more else changed
    shapes = {v.name: v.shape for v in lines(text)}
    for v in lines(text):
        if v.array and v.opcode in ("all-reduce", "reduce-scatter", "all-gather"):
            yield "async", v.name, replace(text, v, _async(v, shapes[v.operand]))


def _async(v: Line, sent: str) -> str:
    """The same collective as a pair of start and done."""
    x = v.operand
    rest = v.text.partition(f"{v.opcode}(%{x})")[2]
    started = {
        "all-reduce": v.shape,
        "all-gather": f"({sent}, {v.shape})",
        "reduce-scatter": f"(({sent}), {v.shape})",
    }[v.opcode]
    return (
        f"  %m.start = {started} {v.opcode}-start(%{x}){rest}\n"
        f"  %{v.name} = {v.shape} {v.opcode}-done(%m.start)"
    )
