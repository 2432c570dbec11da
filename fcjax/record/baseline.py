"""One axis at a time: what a run is compared with, and in which one respect it goes further.

The published experiment asks that each new one advances one axis only, so that what changes can be
put down to it: the depth of the interval, the number of nodes, or the deployment boundary between
them. Model, context length, batch, precision and hardware "change cost, not what was shown", and
are recorded apart. Here they are one class, `parameters`, and the rule is strict:

- A run may differ from its baseline in one class. All differences of that class are listed.
- So the packaged tiny model on emulated nodes may be held against the published experiment (it
  differs in `parameters`, several at once), but not with three nodes at the same time. First the
  same experiment is run with these parameters, then three nodes are held against that run.
- Emulated nodes, devices of one process that share one memory, are hardware and not deployment:
  they are a step back from two GPUs, no boundary that a run could claim to have advanced. The
  difference is listed, with these words.
- Steps and cold starts are how much evidence there is. They are listed as `amount` and are no axis;
  of the context, therefore, the longest prompt is compared.
- What the published experiment does not state counts as no difference.
"""

from fcjax.files import plain
from fcjax.model.config import QWEN25
from fcjax.record.job import Job

SEED = "seed"
CLASSES = ("depth", "nodes", "deployment", "parameters")
NOT_STATED = "not stated"
_ONE_HOST = "one host, one process"

_SEED = {
    "depth": {"depth": 1},
    "nodes": {"nodes": 2},
    "deployment": {"deployment": _ONE_HOST},
    "parameters": {
        "model": {k: v for k, v in QWEN25["1.5b"].describe().items() if k != "dtype"},
        "weights": NOT_STATED,
        "hardware": "NVIDIA L4",
        "dtype": NOT_STATED,
        "prompt tokens": NOT_STATED,
        "batch": NOT_STATED,
        "first layer": NOT_STATED,
        "sampling": NOT_STATED,
    },
    "amount": {"cold starts": 5, "steps": 50},
}


def describe(job: Job) -> dict:
    """A run in the terms in which runs are compared."""
    model = job.model()
    return plain({
        "depth": {"depth": "all" if model.whole else job.interval.depth},
        "nodes": {"nodes": job.nodes},
        "deployment": {"deployment": _ONE_HOST},
        "parameters": {
            "model": {k: v for k, v in job.cfg.describe().items() if k != "dtype"},
            "weights": job.weights_sha256,
            "hardware": job.hardware,
            "dtype": job.dtype,
            "prompt tokens": job.length - job.steps,
            "batch": job.batch,
            # A whole model begins at its first layer; that is its depth and no difference beside.
            "first layer": NOT_STATED if model.whole else job.interval.first,
            "sampling": vars(job.sampling),
        },
        "amount": {"cold starts": job.cold_starts, "steps": job.steps},
    })


def compare(described: dict, here: dict) -> list[dict]:
    """Every difference between two descriptions, with its class."""
    differences = []
    for kind, values in described.items():
        for what, there in values.items():
            got = here[kind][what]
            if there == got or NOT_STATED in (there, got):
                continue
            if what == "model":
                there, got = _different_sizes(there, got)
            differences.append({"class": kind, "what": what, "baseline": there, "here": got})
    return differences


def against(job: Job, name: str, described: dict, axis: str | None = None) -> dict:
    """The record of a comparison, for run.json.

    Args:
      job: the run.
      name: of the baseline: "seed", or a run's folder.
      described: the baseline, as `describe` has it.
      axis: the class in which the run is said to differ, if the user said so.

    Raises:
      ValueError: it differs in two classes, or in another one than was said.
    """
    differences = compare(described, describe(job))
    classes = [c for c in CLASSES if any(d["class"] == c for d in differences)]
    if len(classes) > 1:
        raise ValueError(
            f"baseline: expected a run that differs from {name} in one axis, got {len(classes)}:"
            f" {'; '.join(_words(c, differences) for c in classes)}"
        )
    if axis is not None and [axis] != classes:
        got = _words(classes[0], differences) if classes else "no difference"
        raise ValueError(f"axis: expected a run that differs from {name} in {axis}, got {got}")
    return {
        "name": name,
        "axis": classes[0] if classes else None,
        "differences": differences,
        "described": described,
    }


def none() -> dict:
    """The record of a run that is its own baseline."""
    return {"name": None, "axis": None, "differences": [], "described": None}


def seed() -> dict:
    """The published experiment, as `describe` has a run."""
    return plain(_SEED)


def words(record: dict) -> str:
    """The comparison in one line."""
    if record["name"] is None:
        return "none: this run is its own baseline"
    kinds = dict.fromkeys(d["class"] for d in record["differences"])
    words = "; ".join(_words(kind, record["differences"]) for kind in kinds) or "a repetition of it"
    return f"{record['name']}; {words}"


def _words(kind: str, differences: list[dict]) -> str:
    parts = [
        f"{d['what']} {_short(d['baseline'])} -> {_short(d['here'])}"
        for d in differences
        if d["class"] == kind
    ]
    return f"{kind} ({', '.join(parts)})"


def _short(value) -> str:
    if isinstance(value, dict):
        return " ".join(f"{k} {v}" for k, v in value.items())
    text = str(value)
    return f"{text[:12]}..." if len(text) == 64 else text  # a sha256


def _different_sizes(there: dict, got: dict) -> tuple[dict, dict]:
    names = [n for n in there | got if there.get(n) != got.get(n)]
    return {n: there.get(n) for n in names}, {n: got.get(n) for n in names}
