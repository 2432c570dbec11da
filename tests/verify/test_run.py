"""Every kind of tampering with a recorded run is found, and the message says where."""

import json
import shutil

import pytest

from fcjax import files
from fcjax.record import certificate
from fcjax.sharded.interval import Interval
from fcjax.sharded.sampling import Sampling
from fcjax.verify.recompute import Recompute
from fcjax.verify.run import Verification
from tests import runs
from tests.models import edit_json


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return runs.write_model(tmp_path_factory.mktemp("verify") / "model")


@pytest.fixture(scope="module")
def layer_run(model, tmp_path_factory):
    """Two starts of three steps, one of them at its second attempt."""
    return runs.record(tmp_path_factory.mktemp("verify") / "layer", runs.job(model), failed=1)


@pytest.fixture(scope="module")
def whole_run(model, tmp_path_factory):
    """The whole model inside on three nodes, tokens drawn, a prompt of one token."""
    job = runs.job(
        model, ((5,),), 2, interval=Interval(0, 3), nodes=3, sampling=Sampling(0.9, 20, 0.9),
    )
    return runs.record(tmp_path_factory.mktemp("verify") / "whole", job)


AUDITED: dict = {}  # the same programs are audited again once in this file


def faults(folder) -> list[str]:
    return Verification(folder, AUDITED).check()


class Copy:
    """A run folder to tamper with."""

    def __init__(self, run, folder):
        self.folder = shutil.copytree(run, folder)

    def __truediv__(self, name):
        return self.folder / name

    def lines(self, edit, start=0) -> None:
        """Edit the records of a start."""
        path = self.folder / f"start_{start}" / "steps.jsonl"
        lines = runs.read_lines(path)
        edit(lines)
        runs.write_lines(path, lines, (self.folder / "run.json").read_bytes())

    def json(self, name, edit) -> None:
        """Edit a JSON file in place."""
        content = json.loads((self.folder / name).read_text())
        edit(content)
        (self.folder / name).write_bytes(files.encode(content))

    def certificate(self, name, edit) -> None:
        """Edit a certificate and seal it again."""
        path = self.folder / name / certificate.NAME
        content = json.loads(path.read_text())
        content.pop("sha256")
        edit(content)
        content["sha256"] = certificate._seal(content)
        path.write_bytes(certificate._encode(content))


@pytest.fixture
def copy(layer_run, tmp_path):
    return Copy(layer_run, tmp_path / "run")


@pytest.fixture
def whole_copy(whole_run, tmp_path):
    return Copy(whole_run, tmp_path / "run")


def test_a_true_record_is_verified(layer_run, whole_run):
    checked = Verification(layer_run, AUDITED)
    assert checked.check() == []
    assert [len(x) for x in checked.lines.values()] == [4, 4] and checked.audited == 2
    assert faults(whole_run) == []


def test_sealing_anew_alone_changes_nothing(copy):
    runs.reseal(copy.folder, page=True)
    assert faults(copy.folder) == []


FILES = [
    "run.json", "summary.json", "report.html", "manifest.json", "start_0/environment.json",
    "start_0/steps.jsonl", "start_1/steps.jsonl", "start_0/summary.json",
    "start_0/audit_T1/certificate.json", "start_0/audit_T1/interval.hlo",
    "start_1/audit_T4/interval.hlo", "start_1_failed_0/failure.json",
]


@pytest.mark.parametrize("name", FILES)
def test_one_changed_byte_anywhere_is_found(copy, name):
    path = copy / name
    data = path.read_bytes()
    for at in (0, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        found = faults(copy.folder)
        assert any(name in fault for fault in found), (at, found)
    path.write_bytes(data)
    assert faults(copy.folder) == []


def test_every_file_of_a_run_is_a_file_of_the_list_above(layer_run):
    kinds = {p.name for p in layer_run.rglob("*") if p.is_file()}
    assert kinds == {name.rpartition("/")[2] for name in FILES}


def test_a_changed_line_is_named(copy):
    path = copy / "start_1/steps.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines[1] = lines[1].replace('"seconds": 0', '"seconds": 9')
    path.write_text("".join(lines))
    found = "\n".join(faults(copy.folder))
    assert "start_1/steps.jsonl line 3: field previous" in found and "the hash of line 2" in found


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("start_0/steps.jsonl", "start_0/steps.jsonl: expected it, got nothing"),
        ("start_0/audit_T1/interval.hlo", "start_0/audit_T1"),
        ("start_1_failed_0/failure.json", "start_1_failed_0/failure.json"),
        ("manifest.json", "manifest.json: expected it, got nothing: the run is not finished"),
        ("report.html", "report.html: expected the file that manifest.json lists"),
        ("summary.json", "summary.json"),
    ],
)
def test_a_removed_file_is_found(copy, name, words):
    (copy / name).unlink()
    assert any(words in fault for fault in faults(copy.folder))


def test_added_files_folders_and_links_are_found(copy):
    (copy / "start_0/notes.txt").write_text("more")
    (copy / "start_2").mkdir()
    (copy / "start_0/audit_T1/linked").symlink_to(copy / "run.json")
    found = faults(copy.folder)
    for words in (
        "start_0/notes.txt: expected no file that manifest.json does not list",
        "start_0/notes.txt: expected no such file in a start",
        "start_2: expected no such file or folder in a run",
        "start_0/audit_T1/linked: expected no link",
    ):
        assert words in found


def line(number, **changes):
    """Change fields of one record."""
    return lambda lines: lines[number].update(changes)


def inside(number, *path, value):
    """Change one inner field of one record."""

    def edit(lines):
        at = lines[number]
        for key in path[:-1]:
            at = at[key]
        assert at[path[-1]] != value
        at[path[-1]] = value

    return edit


def swap(lines):
    lines[1], lines[2] = lines[2], lines[1]


def drop_field(lines):
    del lines[2]["copies_agree"]


def above_the_bound(lines):
    lines[2]["parity"]["logits"] = 0.5


def hidden_failure(lines):
    lines[2]["faults"] = ["something"]


OUTSIDE = ("outside_the_claim",)
RESIDUAL = ("ledger", 5, "owners", "residual", "shards", 0)

# Edits of start 0's records behind which all hashes are made anew: prefill in line 1, steps in 2-4.
EDITS = {
    "dropped step": (lambda lines: lines.pop(2), "line 3: field step: expected 1, got 2"),
    "dropped last step": (lambda lines: lines.pop(), "expected 3 decode steps, got 2"),
    "duplicated step": (
        lambda lines: lines.insert(2, lines[2]),
        "line 4: field step: expected 2, got 1",
    ),
    "swapped steps": (swap, "line 2: field step: expected 0, got 1"),
    "no prefill": (lambda lines: lines.pop(0), "line 1: field step: expected -1, got 0"),
    "other start": (line(1, start=1), "line 2: field start: expected 0, got 1"),
    "other attempt": (line(1, attempt=1), "line 2: field attempt: expected 0, got 1"),
    "token out": (line(1, tokens_out=[[9]]), "line 3: field tokens_in[0][0]: expected 9"),
    "token in": (line(1, tokens_in=[[9]]), "line 2: field tokens_in[0][0]: expected 5, got 9"),
    "prompt": (inside(0, "tokens_in", 0, 0, value=8), "line 1: field tokens_in[0][0]: expected 3"),
    "token of no vocabulary": (line(3, tokens_out=[[67]]), "tokens_out: expected ids below 67"),
    "prefill that chooses": (line(0, tokens_out=[[1]]), "line 1: field tokens_out: expected None"),
    "position": (line(2, position=[7]), "line 3: field position[0]: expected 3, got 7"),
    "program of prefill": (
        lambda lines: lines[1].update(executable=lines[0]["executable"]),
        "line 2: field executable.hlo_sha256",
    ),
    "unknown program": (
        inside(2, "executable", "hlo_sha256", value="0" * 64),
        "line 3: field executable.hlo_sha256",
    ),
    "owner": (inside(2, *RESIDUAL, "device", value=1), "residual.shards[0].device: expected 0"),
    "overlap": (
        inside(2, *RESIDUAL, "coordinates", value=[0, 24]),
        "line 3: field ledger[5].owners.residual.shards[0].coordinates[1]: expected 23, got 24",
    ),
    "bytes": (inside(2, *RESIDUAL, "bytes", value=1), "residual.shards[0].bytes: expected 92"),
    "padding": (inside(2, *RESIDUAL, "padding", value=2), "shards[0].padding: expected 0, got 2"),
    "measured": (
        inside(2, "ledger", 1, "owners", "q", "measured", value=True),
        "line 3: field ledger[1].owners.q.measured: expected False, got True",
    ),
    "boundary": (lambda lines: lines[2]["ledger"].pop(2), "line 3: field ledger"),
    "reduction": (
        lambda lines: lines[2]["ledger"][1]["reductions"].pop(),
        "line 3: field ledger[1].reductions",
    ),
    "instruction": (
        inside(2, "ledger", 3, "reductions", 0, "instruction", value="all_gather.1"),
        "line 3: field ledger[3].reductions[0].instruction: expected 'reduce_scatter",
    ),
    "participants": (
        inside(2, "ledger", 3, "reductions", 0, "participants", value=[0]),
        "line 3: field ledger[3].reductions[0].participants",
    ),
    "received": (
        inside(2, "ledger", 3, "reductions", 0, "received", "coordinates", 0, value=[0, 46]),
        "line 3: field ledger[3].reductions[0].received.coordinates[0][1]: expected 23, got 46",
    ),
    "reader": (
        inside(2, "ledger", 3, "reductions", 0, "read_by", 0, "operator", value="layers.0.down"),
        "line 3: field ledger[3].reductions[0].read_by[0].operator",
    ),
    "no gather record": (line(2, outside_the_claim=None), "line 3: field outside_the_claim"),
    "gather inside the claim": (
        inside(2, *OUTSIDE, "what", value="inside"),
        "line 3: field outside_the_claim.what",
    ),
    "gather restored less": (
        inside(2, *OUTSIDE, "restored", "complete_residual", "devices", value=[0]),
        "line 3: field outside_the_claim.restored.complete_residual.devices",
    ),
    "copies differ": (line(2, copies_agree=False), "line 3: field copies_agree: expected True"),
    "parity above the bound": (above_the_bound, "line 3: field faults"),
    "parity of less": (
        lambda lines: lines[2]["parity"].pop("q"),
        "line 3: field parity: expected figures of",
    ),
    "parity made smaller": (
        lambda lines: [x["parity"].update(residual=0.0) for x in lines],
        "start_0/summary.json: field worst.residual: expected 0.0",
    ),
    "no parity": (line(2, parity=None), "line 3: field parity: expected figures of"),
    "negative parity": (inside(2, "parity", "q", value=-1.0), "line 3: field parity.q: expected 0"),
    "hidden fault": (hidden_failure, "line 3: field faults"),
    "failed": (line(2, passed=False), "line 3: field passed: expected True, got False"),
    "negative time": (line(2, seconds=-1.0), "line 3: field seconds: expected a time, got -1.0"),
    "other time": (line(2, seconds=100.0), "start_0/summary.json: field"),
    "time of another kind": (line(2, recording_seconds="0"), "line 3: field recording_seconds"),
    "cache moved": (
        inside(2, "caches", "addresses", 0, 0, 0, value=1),
        "line 3: field caches.addresses[0][0][0]",
    ),
    "caches in one place": (
        lambda lines: [x["caches"].update(addresses=[[[1, 1]] * 2]) for x in lines],
        "field caches.addresses: expected 4 different ones",
    ),
    "complete at entry": (
        lambda lines: lines[2]["live"]["entry"].update(complete={"arrays": 1, "bytes": 184}),
        "line 3 field live.entry: field complete: expected 0, got 1",
    ),
    "unaccounted array": (
        lambda lines: lines[2]["live"]["exit"]["unaccounted"].append(
            {"shape": [1, 1, 46], "dtype": "float32", "devices": [0]}
        ),
        "line 3 field live.exit",
    ),
    "class of arrays": (
        lambda lines: lines[2]["live"]["exit"].update(harmless={"arrays": 1, "bytes": 4}),
        "line 3 field live.exit: expected known classes, got ['harmless']",
    ),
    "not looked": (lambda lines: lines[2]["live"].pop("exit"), "line 3: field live.exit"),
    "numbers without a hash": (
        inside(2, "numbers", "sha256", "qkv", value="0"),
        "line 3: field numbers.sha256",
    ),
    "numbers of less": (
        lambda lines: lines[2]["numbers"].pop("logits"),
        "line 3: field numbers.logits: expected finite numbers",
    ),
    "traced": (line(2, traced=True), "line 3: field traced: expected False, got True"),
    "drawn, not traced": (
        inside(2, "ran", "drawn", value=0), "line 3: field traced: expected True, got False",
    ),
    "drawn from more": (inside(2, "ran", "drawn", value=256), "line 3: field ran.drawn"),
    "another program": (
        lambda lines: lines[3]["ran"]["programs"].append(
            {"program": None, "module": "jit_f", "runs": 1, "devices": [0], "faults": []}
        ),
        "line 4: field ran.programs",
    ),
    "a program less": (lambda lines: lines[3]["ran"]["programs"].pop(), "line 4: field ran.progr"),
    "run twice": (
        inside(3, "ran", "programs", 1, "runs", value=2),
        "line 4: field ran.programs[1].runs: expected 1, got 2",
    ),
    "left running": (inside(3, "ran", "unfinished", value=1), "line 4: field ran.unfinished"),
    "copied": (inside(3, "ran", "copies", value=1), "line 4: field ran.copies: expected 0, got 1"),
    "programs without a trace": (
        inside(2, "ran", "programs", value=[]), "line 3: field ran.programs: expected None",
    ),
    "state read as public": (
        lambda lines: lines[2]["ran"]["to_host"].append(
            {"as": "public", "dtype": "float32", "shape": [1, 1, 46], "times": 1}
        ),
        "line 3: field ran.to_host: expected a read as observation",
    ),
    "undeclared read, no fault": (
        lambda lines: lines[2]["ran"]["to_host"].append(
            {"as": "undeclared", "dtype": "float32", "shape": [1, 1, 46], "times": 1}
        ),
        "line 3: field faults",
    ),
    "nothing of what ran": (lambda lines: lines[2].pop("ran"), "line 3: expected the fields of a"),
    "missing field": (drop_field, "line 3: expected the fields of a record, missing ['copies_ag"),
    "extra field": (line(2, more=1), "line 3: expected the fields of a record"),
    "field of another kind": (line(2, live=3), "line 3: expected the record of a pass"),
}


@pytest.mark.parametrize("kind", EDITS)
def test_an_edited_record_is_found_though_all_hashes_are_made_anew(copy, kind):
    edit, words = EDITS[kind]
    copy.lines(edit)
    runs.reseal(copy.folder)
    found = faults(copy.folder)
    assert not any("sha256 " in fault or "previous" in fault for fault in found), found
    assert any("start_0/" in fault and words in fault for fault in found), found


def key(name, *path, value):
    """Change one field of a JSON file."""
    return lambda copy: copy.json(name, lambda content: inside(0, *path, value=value)([content]))


def other_program(copy):
    """The program of one token in place of that of a chunk, with a certificate that says so."""
    at = copy / "start_0/audit_T4"
    shutil.copy(copy / "start_0/audit_T1/interval.hlo", at)
    digest = files.sha256((at / "interval.hlo").read_bytes())
    copy.certificate("start_0/audit_T4", lambda c: c["program"].update(sha256=digest))


def leaking_program(copy):
    """One reduce-scatter among fewer nodes, and everything that repeats the program's hash."""
    path = copy / "start_0/audit_T1/interval.hlo"
    text = path.read_text()
    assert "dimensions={2}" in text
    path.write_text(text.replace("dimensions={2}", "dimensions={1}", 1))
    digest = files.sha256(path.read_bytes())
    copy.certificate("start_0/audit_T1", lambda c: c["program"].update(sha256=digest))
    copy.json("start_0/environment.json", lambda c: c["executables"]["1"].update(hlo_sha256=digest))
    copy.lines(lambda lines: [x["executable"].update(hlo_sha256=digest) for x in lines[1:]])


def renamed_instruction(copy):
    """A program that is audited clean, but is not the one whose hash the steps carry."""
    path = copy / "start_0/audit_T1/interval.hlo"
    path.write_text(path.read_text().replace("bitcast.1", "bitcast.100000"))
    digest = files.sha256(path.read_bytes())
    copy.certificate("start_0/audit_T1", lambda c: c["program"].update(sha256=digest))


def hide_failed_start(copy):
    shutil.rmtree(copy / "start_1_failed_0")
    copy.json("summary.json", lambda c: c.update(failed_starts=[]))


def exchange_starts(copy):
    a, b = copy / "start_0/steps.jsonl", copy / "start_1/steps.jsonl"
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second), b.write_bytes(first)


def edited_verdict(copy):
    copy.certificate("start_0/audit_T1", lambda c: c["verdict"]["before"].pop())


# Edits of other files, all hashes made anew behind them.
OTHERS = {
    "more steps said": (
        key("summary.json", "recorded", value=7), "summary.json: field recorded: expected 6, got 7",
    ),
    "more steps passed": (
        key("start_0/summary.json", "passed_steps", value=4),
        "start_0/summary.json: field passed_steps: expected 3, got 4",
    ),
    "verdict of the run": (
        key("summary.json", "verdict", value="250 of 250"), "summary.json: field verdict",
    ),
    "failed run": (key("summary.json", "passed", value=False), "summary.json: field passed"),
    "worst of the run": (
        key("summary.json", "worst", "logits", value=0.0), "summary.json: field worst.logits",
    ),
    "tokens of a start": (
        key("start_0/summary.json", "tokens", 0, 0, value=1), "start_0/summary.json: field tokens",
    ),
    "cache parity": (
        key("start_0/summary.json", "caches", "worst", value=0.0),
        "start_0/summary.json: field caches.worst",
    ),
    "cache above the bound": (
        key("start_0/summary.json", "caches", "layers", 0, "k", value=1.0),
        "start_0/summary.json: field caches.worst",
    ),
    "trace of one device": (
        lambda copy: copy.json("start_0/summary.json", lambda c: c["trace"]["executions"].pop()),
        "start_0/summary.json: field trace.executions",
    ),
    "faster": (
        key("start_0/summary.json", "median_seconds", value=1e-9),
        "start_0/summary.json: field median_seconds",
    ),
    "recording costs less": (
        key("start_0/summary.json", "recording", "share", value=0.0),
        "start_0/summary.json: field recording.share",
    ),
    "nodes": (key("run.json", "nodes", value=3), "run.json: field plan"),
    "plan": (
        key("run.json", "plan", "splits", "D", "owned", 0, value=[0, 46]),
        "run.json: field plan.splits.D.owned[0][1]: expected 23, got 46",
    ),
    "operator table": (
        lambda copy: copy.json("run.json", lambda c: c["boundaries"].pop()),
        "run.json: field boundaries",
    ),
    "fewer starts": (key("run.json", "cold_starts", value=1), "start_1: expected no such file"),
    "more starts": (key("run.json", "cold_starts", value=3), "start_2/steps.jsonl: expected it"),
    "fewer steps": (key("run.json", "steps", value=2), "start_0/steps.jsonl"),
    "weights": (
        key("run.json", "weights_sha256", value="0" * 64),
        "start_0/audit_T1/certificate.json: field weights",
    ),
    "not compared": (key("run.json", "compared", value=False), "field parity: expected None"),
    "looser bound": (key("run.json", "bound", value=1.0), "run.json: field bound: expected 1e-05"),
    "fewer limits": (lambda copy: copy.json("run.json", lambda c: c["limits"].pop()), "limits"),
    "another prompt": (
        key("run.json", "prompts", 0, 0, "ids", 0, value=9), "line 1: field tokens_in[0][0]",
    ),
    "baseline": (
        key("run.json", "baseline", "axis", value="depth"), "run.json: field baseline.axis",
    ),
    "format": (key("run.json", "format", value="fcjax run 9"), "run.json: field format: expected"),
    "node's device": (
        key("start_0/environment.json", "hardware", "devices", 0, "device", value=5),
        "owners.residual.shards[0].device: expected 5, got 0",
    ),
    "compilation cache": (
        key("start_0/environment.json", "compilation_cache", value=True),
        "start_0/environment.json: field compilation_cache: expected False",
    ),
    "hash of the program": (
        key("start_0/environment.json", "executables", "1", "hlo_sha256", value="0" * 64),
        "start_0/environment.json: field executables.1.hlo_sha256",
    ),
    "context length": (
        key("start_0/environment.json", "recorded_apart", "context_length", value=512),
        "start_0/environment.json: field recorded_apart.context_length: expected 6, got 512",
    ),
    "one process": (
        lambda copy: shutil.copy(copy / "start_0/environment.json", copy / "start_1"),
        "field process: expected different ones",
    ),
    "another program": (other_program, "start_0/audit_T4"),
    "leaking program": (leaking_program, "start_0/audit_T1"),
    "renamed instruction": (renamed_instruction, "start_0/"),
    "edited verdict": (edited_verdict, "verdict: expected the one in the certificate"),
    "hidden failed start": (hide_failed_start, "start_1/environment.json: field attempt"),
    "failed start kept quiet": (
        lambda copy: copy.json("summary.json", lambda c: c.update(failed_starts=[])),
        "summary.json: field failed_starts",
    ),
    "steps of a failed start": (
        key("start_1_failed_0/failure.json", "steps_recorded", value=50),
        "start_1_failed_0/failure.json: field steps_recorded: expected 0, got 50",
    ),
    "exchanged starts": (exchange_starts, "start_0/steps.jsonl line 1: field start: expected 0"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_an_edited_file_is_found_though_all_hashes_are_made_anew(copy, kind):
    edit, words = OTHERS[kind]
    edit(copy)
    runs.reseal(copy.folder)
    found = faults(copy.folder)
    assert any(words in fault for fault in found), found


def test_an_edited_page_is_found_though_its_hash_is_made_anew(copy):
    path = copy / "report.html"
    path.write_text(path.read_text().replace("6", "250", 1))
    runs.reseal(copy.folder)
    assert faults(copy.folder) == [
        "report.html: expected the page that the files give, got another"
    ]


def test_the_public_tokens_of_a_whole_model_are_checked(whole_copy):
    whole_copy.lines(inside(0, "public", "tokens", value=[[1]]))
    whole_copy.lines(lambda lines: lines[1]["public"]["reductions"].pop(0))
    runs.reseal(whole_copy.folder)
    found = faults(whole_copy.folder)
    assert any("line 1: field public.tokens[0][0]" in fault for fault in found), found
    assert any("line 2: field public.reductions" in fault for fault in found), found


def test_the_owners_of_the_logits_are_checked(whole_copy):
    head = next(
        i for i, row in enumerate(json.loads((whole_copy / "start_0/steps.jsonl").read_text()
                                             .splitlines()[0])["ledger"])
        if row["boundary"] == "head"
    )
    whole_copy.lines(inside(0, "ledger", head, "owners", "logits", "shards", 2, "node", value=0))
    runs.reseal(whole_copy.folder)
    words = f"field ledger[{head}].owners.logits.shards[2].node: expected 2, got 0"
    assert any(words in fault for fault in faults(whole_copy.folder))


def consistent_lie(copy, token=9):
    """Another last token, in every place that repeats it."""
    copy.lines(line(3, tokens_out=[[token]]))
    copy.json("start_0/summary.json", lambda c: c["tokens"][0].__setitem__(-1, token))
    runs.reseal(copy.folder, page=True)


def test_steps_are_run_again_bit_for_bit(layer_run, whole_run):
    for run, steps in ((layer_run, 6), (whole_run, 2)):
        checked = Verification(run, AUDITED)
        assert checked.check() == []
        again = Recompute(run, checked.job)
        again.check(checked.lines, 99, checked.faults)
        assert checked.faults.found == []
        assert len(again.chosen) == again.exact == steps


def test_running_steps_again_finds_made_up_numbers_and_tokens(copy):
    consistent_lie(copy)
    copy.lines(inside(2, "numbers", "sha256", "residual", value="0" * 64))
    runs.reseal(copy.folder, page=True)
    checked = Verification(copy.folder, AUDITED)
    assert checked.check() == []  # nothing in the folder contradicts it
    again = Recompute(copy.folder, checked.job)
    again.check(checked.lines, 99, checked.faults)
    found = checked.faults.found
    where = "start_0/steps.jsonl line"
    assert any(f.startswith(f"{where} 4 (computed again): field tokens_out") for f in found), found
    assert any(f.startswith(f"{where} 3 (computed again): field numbers.sha256.res") for f in found)
    assert len(found) == 2
    # On another machine numbers may differ by rounding, and tokens may not.
    for start in (0, 1):
        copy.json(
            f"start_{start}/environment.json", lambda c: c["hardware"].update(processor="another")
        )
    copy.lines(inside(1, "numbers", "logits", "sample", 0, 3, value=0.125))
    checked = Verification(copy.folder, AUDITED)
    checked.check()
    checked.faults.found.clear()  # of the hashes
    again.check(checked.lines, 99, checked.faults)
    found = checked.faults.found
    assert again.exact == 6  # those of before
    assert [f.partition(":")[0] for f in found] == [
        f"{where} 2 (computed again)", f"{where} 4 (computed again)",
    ]
    assert "numbers.logits.sample: expected a difference of at most 2e-05" in found[0]


def test_other_weights_are_refused(layer_run, model, tmp_path):
    other = shutil.copytree(model, tmp_path / "other")
    edit_json(other / "config.json", rope_theta=5e3)
    job = Verification(layer_run, AUDITED)
    job.check()
    with pytest.raises(ValueError, match="weights: expected digest .*, the run's"):
        Recompute(layer_run, job.job, str(other))


def test_a_folder_that_is_no_run_is_bad_input(tmp_path):
    with pytest.raises(ValueError, match="run: expected a folder with run.json, got none"):
        Verification(tmp_path)


def test_steps_whose_choice_depends_on_the_row_so_far_run_again(model, tmp_path):
    """With a repetition penalty the prompt and all tokens before are part of what chose a token."""
    job = runs.job(
        model, ((3, 4, 5),), 12, interval=Interval(0, 3), sampling=Sampling(repetition_penalty=3.0)
    )
    folder = runs.record(tmp_path / "run", job)
    check = Verification(folder, AUDITED)
    assert check.check() == []
    again = Recompute(folder, check.job)
    again.check(check.lines, 12, check.faults)
    assert check.faults.found == [] and (len(again.chosen), again.exact) == (12, 12)
