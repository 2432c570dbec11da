"""One axis, several settings: parity, what is moved, and the time of a step for each.

sweep.json    every point
sweep.png     the four figures against the axis
sweep.html    both, on one page without a network
"""

import base64
import dataclasses
import html
import json
import statistics
from collections.abc import Iterable, Iterator

from fcjax import files
from fcjax.collectives import BYTES, sent_bytes
from fcjax.decode import parity
from fcjax.decode.audited import Programs
from fcjax.decode.decoder import Decoder
from fcjax.decode.loop import decode
from fcjax.sharded import balance
from fcjax.sharded.interval import sent
from fcjax.sharded.layout import Layout
from fcjax.table import aligned


@dataclasses.dataclass(frozen=True)
class Point:
    """One setting of a sweep.

    Attributes:
      nodes, depth: N, and how many layers in a row run on shards.
      audit: the verdict on the programs that ran, in words.
      clean: whether they passed.
      collectives: inside the interval, in one decode step.
      sent: bytes that a node sends for them in a step and row, read from the audited HLO.
      planned: the same by the closed formula.
      work: the largest share of the multiply-adds that a node has, over an even one.
      parity: largest |out - ref| / |ref| of any value and step, against the unsharded reference.
      milliseconds: of each decode step but the first.
      tokens: the greedy text.
    """

    nodes: int
    depth: int
    audit: str
    clean: bool
    collectives: int
    sent: float
    planned: float
    work: float
    parity: float
    milliseconds: list[float]
    tokens: list[int]

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds)


def points(layouts: Iterable[Layout], source, prompt_T, steps: int) -> Iterator[Point]:
    """Every setting in turn, beside one unsharded reference; arguments as `measure` has them."""
    oracle = None
    for layout in layouts:
        oracle = oracle or parity.Oracle(source, layout.model.interval, batch=1, length=1)
        yield measure(layout, source, oracle, prompt_T, steps)


def measure(layout: Layout, source, oracle: parity.Oracle, prompt_T, steps: int) -> Point:
    """Decode greedily at one setting, each pass compared with the unsharded reference.

    Args:
      layout: the setting.
      source: the open model folder.
      oracle: of one row; it is started anew.
      prompt_T: int array [T].
      steps: decode steps, at least 2.
    """
    programs, model = Programs(layout, batch=1, length=len(prompt_T) + steps), layout.model
    decoder = Decoder(programs, source.load(layout.params()))
    oracle.restart(model.interval, programs.slots)
    worst, seconds, tokens = 0.0, [], []
    for step in decode(decoder, [prompt_T], steps):
        shards = step.output.shards(source.cfg)
        figures = parity.compare(
            source.cfg, shards, oracle.step(step.tokens_in, step.pos), step.own
        )
        worst = max(worst, *figures.values())
        if step.index >= 0:
            tokens.append(int(step.tokens_out[0, 0]))
            seconds.append(step.output.seconds)
    verdict, N = programs.audits[1], model.plan.nodes
    work = [s.work for s in balance.shares(model, layout.dtype, 1, programs.slots)]
    return Point(
        nodes=N,
        depth=model.interval.depth,
        audit="clean" if programs.passed() else "FAILED",
        clean=programs.passed(),
        collectives=len(verdict.before),
        sent=sent_bytes(verdict.before, N),
        planned=BYTES["f32"] * sent(model, 1, 1),
        work=max(work) * N / sum(work),
        parity=worst,
        milliseconds=[1e3 * s for s in seconds[1:]],
        tokens=tokens,
    )


def passed(points: list[Point]) -> bool:
    """Every audit clean, every figure within the bound, the bytes as planned, one text."""
    return all(
        p.clean
        and p.parity <= parity.BOUND["float32"]
        and abs(p.sent - p.planned) < 0.5  # whole bytes; shares of N are no whole floats
        and p.tokens == points[0].tokens
        for p in points
    )


def table(points: list[Point]) -> str:
    """The points as text."""
    rows = [("nodes", "depth", "audit", "collectives", "bytes sent", "planned", "work", "parity",
             "median ms", "min .. max", "text")]
    for p in points:
        spread = f"{min(p.milliseconds):.1f} .. {max(p.milliseconds):.1f}"
        text = "the same" if p.tokens == points[0].tokens else "ANOTHER"
        sizes = f"{p.sent:.0f}", f"{p.planned:.0f}", f"{p.work:.2f}"
        figures = f"{p.parity:.1e}", f"{p.median:.1f}", spread, text
        rows.append((str(p.nodes), str(p.depth), p.audit, str(p.collectives), *sizes, *figures))
    return aligned(rows, ">")


def write(folder, axis: str, title: str, points: list[Point]) -> None:
    """Write sweep.json, sweep.png and sweep.html into a new folder.

    Args:
      folder: made here.
      axis: "nodes" or "depth": what is advanced.
      title: the model and what was held fixed.
      points: in the order of the axis.

    Raises:
      ValueError: the folder exists.
    """
    folder = files.new_folder(folder)
    content = {"axis": axis, "title": title, "points": [dataclasses.asdict(p) for p in points]}
    (folder / "sweep.json").write_text(json.dumps(content, indent=1) + "\n")
    plot(folder / "sweep.png", axis, title, points)
    image = base64.b64encode((folder / "sweep.png").read_bytes()).decode()
    (folder / "sweep.html").write_text(
        _PAGE.format(title=html.escape(title), table=html.escape(table(points)), image=image)
    )


def plot(path, axis: str, title: str, points: list[Point]) -> None:
    """Parity, bytes, collectives and step time against the axis, as a PNG."""
    from matplotlib.figure import Figure  # takes a second to import

    x = [getattr(p, axis) for p in points]
    figure = Figure(figsize=(9, 6.4), layout="constrained")
    panels = figure.subplots(2, 2)
    figure.suptitle(title, fontsize=11)
    for panel, name, y in (
        (panels[0, 0], "largest |out − ref| / |ref|", [p.parity for p in points]),
        (panels[0, 1], "bytes sent, a step and node", [p.sent for p in points]),
        (panels[1, 0], "collectives a step", [p.collectives for p in points]),
        (panels[1, 1], "milliseconds a step", [p.median for p in points]),
    ):
        panel.plot(x, y, "o-", color="#1f5f8b", linewidth=1.2, markersize=4)
        panel.set_title(name, fontsize=10, loc="left")
        panel.set_xlabel(axis)
        panel.set_xticks(x)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0, 0].set_yscale("log")
    panels[0, 0].axhline(parity.BOUND["float32"], color="#b3362b", linewidth=0.8, linestyle="--")
    panels[0, 0].annotate(
        "bound", (x[0], parity.BOUND["float32"]), color="#b3362b", fontsize=8,
        xytext=(0, -9), textcoords="offset points",
    )
    low, high = ([f(p.milliseconds) for p in points] for f in (min, max))
    panels[1, 1].vlines(x, low, high, color="#1f5f8b", linewidth=0.8, alpha=0.5)
    for panel in (panels[0, 1], panels[1, 0], panels[1, 1]):
        panel.set_ylim(bottom=0)
    figure.savefig(path, dpi=140)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem;
 color: #1c1c1c; background: #fff; }}
h1 {{ font-size: 1.3rem; font-weight: 600; }}
img {{ width: 100%; height: auto; }}
pre {{ font: 13px/1.5 ui-monospace, monospace; overflow-x: auto; }}
p {{ max-width: 44rem; }}
</style></head><body>
<h1>{title}</h1>
<pre>{table}</pre>
<img alt="Parity, bytes, collectives and step time against the axis"
 src="data:image/png;base64,{image}">
<p>Parity is the row-wise maximum of |out − ref| / |ref| over every value and pass, against the
unsharded f32 reference on the same tokens. Bytes are what a node must send in a decode step of one
row, read from the compiled program that was audited and ran. Nodes emulated on one machine share
its cores and its memory: step times say how the work grows, not how fast separate nodes would be.
Cutting state by coordinate is not confidentiality: what a node holds can be enough to compute the
rest.</p>
</body></html>
"""
