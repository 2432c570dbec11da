"""Programs that no compiler made: the honest one's HLO text with one line changed."""

import dataclasses
import re

import jax
import pytest
from jaxlib import xla_client

from experiments.adversary.programs import honest
from fcjax import audit
from fcjax.audit.hlo.registry import registered
from fcjax.audit.rules import traffic


@pytest.fixture(scope="module")
def program():
    text, contract = honest(nodes=3, batch=2)
    assert audit.audit_interval(text, contract).ok
    return text, contract


def _one(pattern: str, new: str, text: str, count: int = 1) -> str:
    """`count` replacements; with 0 there may be none."""
    changed, n = re.subn(pattern, new, text, count=count, flags=re.MULTILINE)
    assert n or not count, pattern
    return changed


_SCATTER = r"^(  %reduce_scatter\S* = .* reduce-scatter\(.*)$"
_GROUPS = r"replica_groups=(mesh\[.*?\] \{.*?\}|\{\{.*?\}\})"


def _groups(new: str):
    """Other groups for the first reduce-scatter."""
    return lambda text: _one(
        _SCATTER, lambda m: re.sub(_GROUPS, f"replica_groups={new}", m[1]), text
    )


def _alone(text):
    """The first reduce-scatter without a channel: it runs over replicas, of which there is one."""
    for attribute in ("channel_id=1, ", "use_global_device_ids=true, "):
        text = _one(_SCATTER, lambda m, a=attribute: m[1].replace(a, ""), text)
    return text


def _before_root(lines: str):
    """More instructions at the end of the entry; %X is the residual that comes in."""

    def edit(text):
        head, entry = text.split("\nENTRY ")
        entry = entry.replace("  ROOT %tuple", lines + "  ROOT %tuple", 1)
        return head + "\nENTRY " + entry

    return edit


def _sharded(new: str):
    """Another note on how the residual that comes in is laid out; newer compilers make none."""

    def edit(text):
        text = _one(
            r"^(  %X = .* parameter\(\d+\)), sharding=\{.*?\}(<=\[\d+\]\})?", r"\1", text, 0
        )
        return _one(r"^(  %X = .* parameter\(\d+\))", rf"\1, sharding={new}", text)

    return edit


def _add_result(text):
    """The residual that came in leaves the program as one more result."""
    more = "f32[2,1,13]{2,1,0}"
    text = _one(r"^(ENTRY .*)\) \{$", rf"\1, {more[:11]}) {{", text)
    text = _one(r"(ROOT %tuple\S* = \(.*)\) tuple\((.*)\)$", rf"\1, {more}) tuple(\2, %X)", text)
    return _one(r"(entry_computation_layout=\{\(.*?\)->\(.*?)\)\}", rf"\1, {more})}}", text)


def _bare(text):
    """Without what the text says of the entry's shapes before it comes to the instructions."""
    text = _one(r", entry_computation_layout=\{.*?\}(?=, \w+=|$)", "", text)
    return _one(r"^(ENTRY %\S+) .* \{$", r"\1 {", text)


def _entry_in(dtype, through="convert(%wide)"):
    """The residual that comes in has another type, and is taken back to its own."""

    def edit(text):
        parameter = r"^  %X = f32(\S+) parameter\((\d+)\)(.*)$"
        lines = rf"  %wide = {dtype}\1 parameter(\2)\n  %X = f32\1 {through}"
        return _one(parameter, lines, _bare(text))

    return edit


def _exit_in(dtype, n):
    """The n-th result leaves in another type."""

    def edit(text):
        shapes, values = re.search(r"ROOT %\S+ = \((.*)\) tuple\((.*)\)", text).groups()
        shapes = re.findall(r"\w+\[[\d,]*\]\{[\d,]*\}", shapes)
        values = values.split(", ")
        wide = shapes[n].replace("f32", dtype)
        opcode = "convert" if dtype != "c64" else "complex"
        operands = values[n] if dtype != "c64" else f"{values[n]}, {values[n]}"
        shapes[n], values[n] = wide, "%wide"
        root = f"  %wide = {wide} {opcode}({operands})\n  ROOT %tuple.0 = ({', '.join(shapes)}) "
        return _one(r"^  ROOT .* tuple\(.*$", f"{root}tuple({', '.join(values)})", _bare(text))

    return edit


def _called(attributes):
    """The residual that comes in goes through a call on its way."""
    call = (
        "%called (p: f32[2,1,13]) -> f32[2,1,13] {\n  %p = f32[2,1,13]{2,1,0} parameter(0)\n"
        "  ROOT %n = f32[2,1,13]{2,1,0} negate(%p)\n}\n\nENTRY "
    )
    before = _before_root(f"  %c = f32[2,1,13]{{2,1,0}} {attributes}\n")
    return lambda text: before(text).replace("ENTRY ", call, 1)


FORGED = {
    "two of three nodes": ("wrong-group", _groups("{{0,1},{2}}")),
    "another order of owners": ("wrong-owner", _groups("{{1,0,2}}")),
    "groups of one, as iota": ("missing-collective", _groups("[3,1]<=[3]")),
    "no channel: each node alone": ("wrong-group", lambda t: _alone(_groups("{{0}}")(t))),
    "gather of all replicas' partitions": (
        "extra-gather", _before_root(
            "  %ag = f32[2,1,39]{2,1,0} all-gather(%X), channel_id=9, replica_groups={{0}},"
            " dimensions={2}\n"),
    ),
    "gather in groups of one that grows": (
        "wrong-group", _before_root(
            "  %ag = f32[2,1,39]{2,1,0} all-gather(%X), replica_groups={{0}}, dimensions={2}\n"),
    ),
    "maximum in place of a sum": (
        "wrong-reduction",
        lambda t: _one(r"^(  ROOT %\S+ = f32\[\] )add(\(%reduce_scatter)", r"\1maximum\2", t),
    ),
    "result in host memory": (
        "host-transfer", lambda t: _one(r"^(  %reduce_scatter\S* = f32\[[\d,]*\]\{[\d,]*)\}",
                                        r"\1:S(5)}", t),
    ),
    "outfeed of state": (
        "host-transfer", _before_root(
            "  %t = token[] after-all()\n"
            "  %of = token[] outfeed(%X, %t), outfeed_shape=f32[2,1,13]{2,1,0}\n"),
    ),
    "collective-permute of state": (
        "unplanned-collective", _before_root(
            "  %cp = f32[2,1,13]{2,1,0} collective-permute(%X), channel_id=9,"
            " source_target_pairs={{0,1},{1,2},{2,0}}\n"),
    ),
    "a library's own gather": (
        "custom-call", _before_root(
            '  %cc = f32[2,1,39]{2,1,0} custom-call(%X), custom_call_target="nvshmem_allgather"\n'),
    ),
    "collective-broadcast of state": (
        "unplanned-collective", _before_root(
            "  %cb = f32[2,1,13]{2,1,0} collective-broadcast(%X), channel_id=9,"
            " replica_groups={{0,1,2}}\n"),
    ),
    "all-gather of everyone, unspelled": (
        "extra-gather", _before_root(
            "  %ag = f32[2,1,39]{2,1,0} all-gather(%X), channel_id=9, replica_groups={{0,1,2}},"
            " dimensions={2}, use_global_device_ids=true\n"),
    ),
    "one more result": ("extra-result", _add_result),
    "input cut over other devices": ("wrong-owner", _sharded("{devices=[1,1,3]2,1,0}")),
    "input on every node": ("complete-entry", _sharded("{replicated}")),
    "input cut over the batch": ("complete-entry", _sharded("{devices=[3,1,1]<=[3]}")),
    "one all-reduce for two statistics and state": (
        "hidden-gather", _before_root(
            "  %t = (f32[2,1,13]{2,1,0}, f32[2,1,13]{2,1,0}) all-reduce(%X, %X), channel_id=9,"
            " replica_groups={{0,1,2}}, use_global_device_ids=true, to_apply=%SUM\n"),
    ),
    "an asynchronous ring": (
        "unplanned-collective", _before_root(
            "  %s = (f32[2,1,13]{2,1,0}, f32[2,1,13]{2,1,0}) collective-permute-start(%X),"
            " channel_id=9, source_target_pairs={{0,1},{1,2},{2,0}}\n"
            "  %d = f32[2,1,13]{2,1,0} collective-permute-done(%s)\n"),
    ),
    "input in f64": ("wrong-type", _entry_in("f64")),
    "input of complex numbers": ("wrong-type", _entry_in("c64", "real(%wide)")),
    "residual leaves in f64": ("wrong-type", _exit_in("f64", 0)),
    "a cache of complex numbers": ("wrong-type", _exit_in("c64", -1)),
    "result in host memory, by the layout alone": (
        "host-transfer", lambda t: _one(
            r"(entry_computation_layout=\{\(.*?\)->\(f32\[[\d,]*\]\{[\d,]*)\}", r"\1:S(5)}", t),
    ),
    "a copy in another memory": (
        "host-transfer", _before_root("  %c = f32[2,1,13]{2,1,0:S(1)} copy(%X)\n"),
    ),
    "an asynchronous copy in another memory": (
        "host-transfer", _before_root(
            "  %s = (f32[2,1,13]{2,1,0:S(2)}, f32[2,1,13]{2,1,0}, u32[]) copy-start(%X)\n"
            "  %d = f32[2,1,13]{2,1,0:S(2)} copy-done(%s)\n"),
    ),
    "a call on the host": (
        "host-transfer", _called("call(%X), to_apply=%called,"
                                 ' frontend_attributes={_xla_compute_type="host"}'),
    ),
    "a note on the module": (
        "host-transfer", lambda t: _one(r"^(HloModule .*)$",
                                        r'\1, frontend_attributes={_xla_compute_type="host"}', t),
    ),
    "a composite call": (
        "custom-call", _called("call(%X), to_apply=%called, is_composite=true,"
                               ' frontend_attributes={composite.name="f",composite.version="1"}'),
    ),
    "a fusion by a library": (
        "custom-call", _called("fusion(%X), kind=kCustom, calls=%called, backend_config="
                               '{"fusion_backend_config":{"kind":"__custom_fusion"}}'),
    ),
    "a fusion by no one": ("custom-call", _called("fusion(%X), kind=kCustom, calls=%called")),
    "a library's sort": (
        "custom-call", _before_root(
            '  %c = f32[2,1,13]{2,1,0} custom-call(%X), custom_call_target='
            '"__cub$DeviceRadixSort"\n'),
    ),
    "an asynchronous gather of two values": (
        "extra-gather", _before_root(
            "  %s = ((f32[2,1,13]{2,1,0}, f32[2,1,13]{2,1,0}), (f32[2,1,39]{2,1,0},"
            " f32[2,1,39]{2,1,0})) all-gather-start(%X, %X), channel_id=9,"
            " replica_groups={{0,1,2}}, dimensions={2}, use_global_device_ids=true\n"
            "  %d = (f32[2,1,39]{2,1,0}, f32[2,1,39]{2,1,0}) all-gather-done(%s)\n"),
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged(name, program):
    code, edit = FORGED[name]
    text, contract = program
    residual = [r.name for r in contract.signature.parameters].index("residual")
    entry = text.split("\nENTRY ")[1]
    x = re.search(rf"%(\S+) = \S+ parameter\({residual}\)", entry)[1]
    add = re.search(r"reduce-scatter\(.*to_apply=%(\S+?)[,\s]", entry)[1]
    marked = re.sub(rf"%{re.escape(x)}(?![\w.-])", "%X", text)
    changed = edit(marked).replace("%X", f"%{x}").replace("%SUM", f"%{add}")
    assert changed != text
    found = audit.audit_interval(changed, contract)
    assert code in {v.code for v in found.violations}, str(found)[:3000]


def test_a_name_counts_only_while_no_one_has_registered_it(program, monkeypatch):
    text, contract = program
    call = '  %c = (f32[2,1,3], s32[2,1,3]) custom-call(%X), custom_call_target="TopK"\n'
    residual = [r.name for r in contract.signature.parameters].index("residual")
    x = re.search(rf"%(\S+) = \S+ parameter\({residual}\)", text.split("\nENTRY ")[1])[1]
    changed = _before_root(call.replace("%X", f"%{x}"))(text)
    with pytest.raises(audit.Unauditable, match="expected a known call, got TopK"):
        audit.audit_interval(changed, contract)  # the identity test does not run it
    contract = dataclasses.replace(contract, definition=None)
    assert audit.audit_interval(changed, contract).ok
    assert traffic.trusted_calls(audit.parse(changed)) == ["TopK"]
    monkeypatch.setattr(traffic, "registered", lambda: {"TopK"})
    found = audit.audit_interval(changed, contract)
    assert [v.code for v in found.violations] == ["custom-call"]


def test_what_is_registered_is_known():
    handler = xla_client.custom_call_targets("cpu")["xla_ffi_python_cpu_callback"]
    assert "xla_ffi_python_cpu_callback" in registered() and "a target" not in registered()
    jax.ffi.register_ffi_target("a target", handler, platform="cpu")
    jax.ffi.register_ffi_target("a later target", {}, platform="ROCM")
    assert {"a target", "a later target"} <= registered()
