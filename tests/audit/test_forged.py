"""Programs that no compiler made: the honest one's HLO text with one line changed."""

import re

import pytest

from experiments.adversary.programs import honest
from fcjax import audit


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
    "an asynchronous gather of two values": (
        "extra-gather", _before_root(
            "  %s = ((f32[2,1,13]{2,1,0}, f32[2,1,13]{2,1,0}), (f32[2,1,39]{2,1,0},"
            " f32[2,1,39]{2,1,0})) all-gather-start(%X, %X), channel_id=9,"
            " replica_groups={{0,1,2}}, dimensions={2}, use_global_device_ids=true\n"
            "  %d = (f32[2,1,39]{2,1,0}, f32[2,1,39]{2,1,0}) all-gather-done(%s)\n"),
    ),
}  # fmt: skip


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
