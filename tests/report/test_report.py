"""The page of a run: complete, exact, alone, and never prettier than the run."""

import collections
import html.parser
import json
import re
import shutil
import statistics

import pytest

from fcjax import files, report
from fcjax.record import run_folder
from fcjax.report.markup import VOID
from fcjax.sharded.interval import Interval
from tests import runs
from tests.models import edit_json

_HOSTILE = '<script>alert("1")</script> & <img src=x onerror=alert(2)>'


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return runs.write_model(tmp_path_factory.mktemp("report") / "model")


@pytest.fixture(scope="module")
def layer_run(model, tmp_path_factory):
    """Two starts of three steps, one of them at its second attempt."""
    return runs.record(tmp_path_factory.mktemp("report") / "layer", runs.job(model), failed=1)


@pytest.fixture(scope="module")
def whole_run(model, tmp_path_factory):
    """The whole model inside on three nodes."""
    job = runs.job(
        model, ((5, 6),), interval=Interval(0, 3), nodes=3,
    )
    return runs.record(tmp_path_factory.mktemp("report") / "whole", job)


@pytest.fixture
def copy(layer_run, tmp_path):
    """A run folder to change."""
    return shutil.copytree(layer_run, tmp_path / "run")


class Page(html.parser.HTMLParser):
    """Parses a page strictly.

    Attributes:
      elements: (tag, attributes) of each.
      text: what a reader sees, with single spaces.
      of: text by tag, one entry an element.
      faults: what is not well-formed.
    """

    def __init__(self, content: bytes):
        super().__init__(convert_charrefs=True)
        self.elements, self.faults, self.of = [], [], collections.defaultdict(list)
        self._open, self._text = [], []
        self.feed(content.decode())
        self.close()
        self.faults += [f"{tag} is not closed" for tag, _ in self._open]
        self.text = _plain(self._text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.elements.append((tag, attributes))
        if tag not in VOID:
            self._open.append((tag, []))

    def handle_startendtag(self, tag, attributes):
        self.faults.append(f"{tag} closes itself")

    def handle_endtag(self, tag):
        if not self._open or self._open[-1][0] != tag:
            self.faults.append(f"{tag} closes {self._open[-1:]}")
            return
        self.of[tag].append(_plain(self._open.pop()[1]))

    def handle_data(self, data):
        inside = [tag for tag, _ in self._open]
        if "style" in inside:
            self.style = data
            return
        for _, parts in self._open:
            parts.append(data)
        self._text.append(data)

    def all(self, tag) -> list[dict]:
        return [attributes for name, attributes in self.elements if name == tag]


def _plain(parts) -> str:
    return " ".join(" ".join(parts).split())


def page(folder) -> Page:
    return Page(report.render(folder))


def figures(folder):
    """All lines of the starts that did not fail."""
    return [runs.read_lines(f) for f in sorted(folder.glob("start_?/steps.jsonl"))]


@pytest.mark.parametrize("run", ["layer_run", "whole_run"])
def test_same_files_give_the_same_bytes(run, request, tmp_path):
    folder = request.getfixturevalue(run)
    there = (folder / run_folder.REPORT).read_bytes()
    assert report.render(folder) == there
    moved = shutil.copytree(folder, tmp_path / "elsewhere")
    assert report.write(moved) == moved / run_folder.REPORT
    assert (moved / run_folder.REPORT).read_bytes() == there
    assert str(folder).encode() not in there


@pytest.mark.parametrize("run", ["layer_run", "whole_run"])
def test_is_well_formed_and_alone(run, request):
    found = page(request.getfixturevalue(run))
    assert found.faults == []
    ids = [a["id"] for _, a in found.elements if "id" in a]
    assert len(ids) == len(set(ids))
    for tag, attributes in found.elements:
        assert tag not in {"script", "link", "img", "iframe", "object", "embed", "form", "base"}
        assert not {n for n in attributes if n.startswith("on")} | attributes.keys() & {"src"}
        if "href" in attributes:
            assert attributes["href"].removeprefix("#") in ids
    assert "http" not in found.style and "url(" not in found.style and "@import" not in found.style
    policy = {a.get("http-equiv"): a["content"] for a in found.all("meta") if "content" in a}
    assert policy["Content-Security-Policy"].startswith("default-src 'none'")
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in found.all(
        "meta"
    )
    # Those who see no picture are told: a chart has words, or is left out because its text has.
    for svg in found.all("svg"):
        told = svg.get("role") == "img" and svg.get("aria-label")
        assert told or svg.get("aria-hidden") or svg.get("overflow")
    assert all(a.get("scope") or a.get("colspan") for a in found.all("th"))


@pytest.mark.parametrize("run", ["layer_run", "whole_run"])
def test_figures_are_those_of_the_files(run, request):
    folder = request.getfixturevalue(run)
    found, job = page(folder), files.read_json(folder / "run.json")
    lines = figures(folder)
    steps = [x for of in lines for x in of if x["step"] >= 0]
    assert found.of["h1"] == [f"\u2713 {len(steps)} of {len(steps)} audited decode steps passed"]
    worst = collections.defaultdict(float)
    for x in (x for of in lines for x in of):
        for name, error in x["parity"].items():
            worst[name] = max(worst[name], error)
    assert ", ".join(f"{n} {x:.1e}" for n, x in worst.items()) + "; bound 1.0e-05" in found.text
    medians = [statistics.median(x["seconds"] for x in of if x["step"] > 0 and not x["traced"])
               for of in lines]
    assert f"{statistics.median(medians) * 1e3:.2f} ms median time of a step" in found.text
    reductions = [r for row in steps[0]["ledger"] for r in row["reductions"]]
    reductions += (steps[0]["public"] or {"reductions": []})["reductions"]
    total = [sum(r[x]["bytes"] for r in reductions) for x in ("operand", "result")]
    inside = f"{len(reductions)} collectives inside the interval {total[0]:,} B {total[1]:,} B"
    assert inside in found.text
    for r in reductions:
        assert r["instruction"] in found.of["code"]
    for split in job["plan"]["splits"].values():
        if split["meaning"] != "vocab_size" or job["whole"]:
            assert f"..{split['owned'][0][1] - 1}" in found.text or split["owned"][0] == [0, 1]
    owners = [o for of in lines for x in of for row in x["ledger"] for o in row["owners"].values()]
    measured = sum(o["measured"] for o in owners)
    assert f"{len(owners):,} disjoint, {len(owners):,} covering" in found.text
    assert f"{measured:,} of them measured on real buffers" in found.text
    summaries = [files.read_json(f) for f in sorted(folder.glob("start_?/summary.json"))]
    hashes = [files.sha256((folder / "run.json").read_bytes()), job["weights_sha256"]]
    hashes += [s["last_line"] for s in summaries]
    for certificate in folder.glob("start_?/audit_T*/certificate.json"):
        hashes.append(files.read_json(certificate)["program"]["sha256"])
    assert set(hashes) <= set(found.of["code"])
    caches = max(float(s["caches"]["worst"]) for s in summaries)
    assert f"worst of all layers at the end: {caches:.1e}" in found.text
    squares = collections.Counter(
        (a["title"].split()[0], a["title"].rpartition(": ")[2])
        for a in found.all("i")
        if "title" in a
    )
    lost = 3 * len(list(folder.glob("start_?_failed_?")))  # of an attempt that recorded nothing
    passes = sum(map(len, lines))
    assert squares["step", "passed"] == len(steps)
    assert squares["step", "not recorded"] == lost
    assert squares["prefill", "passed"] == passes - len(steps)


@pytest.mark.parametrize("run", ["layer_run", "whole_run"])
def test_says_what_is_not_shown(run, request):
    folder = request.getfixturevalue(run)
    found, job = page(folder), files.read_json(folder / "run.json")
    for sentence in job["limits"]:
        assert sentence in found.of["li"]
    assert any("share one host's memory" in x for x in found.of["li"])
    assert any("with public weights" in x for x in found.of["li"])
    assert not re.search(r"\b(private|secure|secret(?! sharing)|cannot see)\b", found.text.lower())
    assert found.text.lower().count("confidential") == 1  # as a guarantee that it is not


def test_gather_stands_after_the_interval(layer_run):
    found = page(layer_run)
    drawing = next(x for x in found.of["table"] if x.startswith("Operators from top to bottom"))
    assert "all-gather" not in drawing.partition("The interval ends here")[0]
    assert "Outside the claim" in drawing.partition("The interval ends here")[2]
    listed = next(x for x in found.of["table"] if x.startswith("Collectives"))
    before, _, after = listed.partition("The interval has ended. Outside the claim:")
    assert "all-gather" not in before and "compatibility all-gather" in after


def test_whole_model_has_exchanges_and_no_gather(whole_run):
    found = page(whole_run)
    assert "outside the claim" not in found.text.lower()
    assert "compatibility" not in found.text
    assert "The exchanges, and the token that becomes public" in found.of["h3"]
    assert "in 3 of 3 decode steps" in found.text
    # The last layer stands apart: its residual is measured, the others' is known.
    assert "Layers 0 to 1: 2 times the same, shown once" in found.text


def test_failed_attempts_are_shown(layer_run):
    found = page(layer_run)
    assert "\u2717 start_1_failed_0" in found.of["h4"]
    assert "cut off by a test" in found.text
    assert "1 attempt at a cold start failed, and the start was made anew" in found.text


def test_hostile_text_is_text(copy):
    def write(run):
        run["prompts"][0][0]["text"] = run["model_path"] = run["hardware"] = _HOSTILE
        run["flags"] = {"prompt": _HOSTILE}
        run["baseline"] = {
            "name": _HOSTILE,
            "axis": "nodes",
            "differences": [
                {"class": "nodes", "what": _HOSTILE, "baseline": 2, "here": {"a": _HOSTILE}}
            ],
        }
        return run

    run = write(files.read_json(copy / "run.json"))
    (copy / "run.json").write_bytes(files.encode(run))
    edit_json(copy / "start_0/summary.json", text=[_HOSTILE])
    edit_json(copy / "start_1_failed_0/failure.json", reason=_HOSTILE, output=_HOSTILE)
    runs.reseal(copy)
    content = report.render(copy)
    found = Page(content)
    assert found.faults == []
    assert b"<script" not in content and b"<img" not in content
    assert found.text.count(_HOSTILE) >= 7
    assert found.all("html")[0]["class"] == "passed"


def _step_fails(copy):
    lines = runs.read_lines(copy / "start_0/steps.jsonl")
    lines[-1] |= {"passed": False, "faults": ["a fault"]}
    runs.write_lines(copy / "start_0/steps.jsonl", lines, (copy / "run.json").read_bytes())
    return "the first is step 2: a fault"


def _prefill_fails(copy):
    lines = runs.read_lines(copy / "start_1/steps.jsonl")
    lines[0] |= {"passed": False, "faults": ["early"]}
    runs.write_lines(copy / "start_1/steps.jsonl", lines, (copy / "run.json").read_bytes())
    return "the first is prefill pass -1: early"


def _parity_is_no_number(copy):
    lines = runs.read_lines(copy / "start_0/steps.jsonl")
    lines[1]["parity"]["logits"] = "nan"
    lines[1] |= {"passed": False, "faults": ["logits nan"]}
    runs.write_lines(copy / "start_0/steps.jsonl", lines, (copy / "run.json").read_bytes())
    return "logits nan"


def _audit_fails(copy):
    path = copy / "start_0/audit_T1/certificate.json"
    verdict = files.read_json(path)["verdict"]
    violation = {"code": "EXTRA", "text": "one more", "line": "%x", "scope": "", "path": ["a"],
                 "holds": "everything"}
    edit_json(path, verdict=verdict | {"ok": False, "violations": [violation]})
    return "EXTRA"


def _chain_is_broken(copy):
    lines = runs.read_lines(copy / "start_0/steps.jsonl")
    (copy / "start_0/steps.jsonl").write_text("".join(json.dumps(x) + " \n" for x in lines))
    return "does not carry the hash of the line before it"


def _summary_lies(copy):
    edit_json(copy / "summary.json", passed_steps=5)
    return "summary.json says passed_steps 5, the folder says 6"


def _start_summary_fails(copy):
    edit_json(copy / "start_1/summary.json", passed=False, faults=["caches: expected another"])
    return "start_1: caches: expected another"


def _run_summary_fails(copy):
    edit_json(copy / "summary.json", passed=False)
    return "summary.json says that the run failed"


def _start_never_ends(copy):
    shutil.rmtree(copy / "start_1")
    (copy / "summary.json").unlink()
    return "start_1_failed_0, and no later attempt is complete: cut off by a test"


def _summary_is_garbage(copy):
    (copy / "start_0/summary.json").write_text("{")
    return "start_0/summary.json: it cannot be read"


def _lines_are_garbage(copy):
    with open(copy / "start_0/steps.jsonl", "a") as f:
        f.write("[]\n")
    return "1 line(s) of steps.jsonl cannot be read"


def _copies_differ(copy):
    """No line and no summary calls it a fault; the page does."""
    lines = runs.read_lines(copy / "start_0/steps.jsonl")
    lines[1]["copies_agree"] = False
    runs.write_lines(copy / "start_0/steps.jsonl", lines, (copy / "run.json").read_bytes())
    runs.reseal(copy)
    return "failed: Behind the interval: the compatibility all-gather"


@pytest.mark.parametrize(
    "change",
    [
        _step_fails, _prefill_fails, _parity_is_no_number, _audit_fails, _chain_is_broken,
        _summary_lies, _start_summary_fails, _run_summary_fails, _start_never_ends,
        _summary_is_garbage, _lines_are_garbage, _copies_differ,
    ],
    ids=lambda f: f.__name__[1:],
)
def test_what_failed_looks_failed(copy, change):
    said = change(copy)
    found = page(copy)
    assert found.faults == []
    assert found.all("html")[0]["class"] == found.all("header")[0]["class"] == "failed"
    assert found.of["h1"] == ["\u2717 This run failed"]
    assert found.of["title"][0].startswith("failed: ")
    assert said in found.text
    assert "This run does not support the claim" in found.text


def test_failed_steps_are_marked(copy):
    _step_fails(copy)
    found = page(copy)
    assert [a["title"] for a in found.all("b") if "title" in a] == ["step 2: failed: a fault"]
    assert "\u2717 1 pass with faults" in found.of["h3"]


def _no_summary(copy):
    (copy / "summary.json").unlink()


def _start_is_running(copy):
    (copy / "summary.json").unlink()
    (copy / "start_1/summary.json").unlink()
    path = copy / "start_1/steps.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))


def _only_run_json(copy):
    for path in copy.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "run.json":
            path.unlink()


@pytest.mark.parametrize("change", [_no_summary, _start_is_running, _only_run_json])
def test_what_is_not_finished_looks_unfinished(copy, change):
    change(copy)
    if change is _start_is_running:
        shutil.rmtree(copy / "start_1_failed_0")
    found = page(copy)
    assert found.faults == []
    assert found.all("html")[0]["class"] == "unfinished"
    assert found.of["h1"] == ["\u2026 This run is not finished"]
    assert "This run supports" not in found.text
    missing = [a for a in found.all("i") if a.get("title", "").endswith("not recorded")]
    assert len(missing) == {_no_summary: 3, _start_is_running: 2, _only_run_json: 6}[change]


def test_without_a_run_it_is_refused(tmp_path):
    with pytest.raises(ValueError, match="run: expected a folder with run.json, got none"):
        report.write(tmp_path)


def test_long_runs_of_deep_models_stay_small(whole_run, tmp_path):
    """28 layers and 250 steps: layers are folded, steps are drawn and not listed."""
    run = files.read_json(whole_run / "run.json")
    run["steps"] = 250
    run["model"]["L"] = run["interval"]["depth"] = 28
    (tmp_path / "run.json").write_bytes(files.encode(run))
    line = runs.read_lines(whole_run / "start_0/steps.jsonl")[1]
    ledger = line["ledger"]
    layer = json.dumps([row for row in ledger if row["boundary"].startswith("layer_1/")])
    more = [
        row
        for i in range(3, 28)
        for row in json.loads(layer.replace("layer_1/", f"layer_{i}/").replace("rs.1.", f"rs.{i}."))
    ]
    line["ledger"] = ledger[:-1] + more + ledger[-1:]
    (tmp_path / "start_0").mkdir()
    runs.write_lines(
        tmp_path / "start_0/steps.jsonl",
        [line | {"step": step} for step in range(250)],
        (tmp_path / "run.json").read_bytes(),
    )
    content = report.render(tmp_path)
    found = Page(content)
    assert len(content) < 500_000
    assert sum(a.get("title", "").startswith("step") for a in found.all("i")) == 250
    assert any(
        x.startswith("The same in layers 1 to 27: 162 collectives") for x in found.of["summary"]
    )
