"""Report pages in a real browser: phone, desk, light, dark, without a network.

    python -m pytest tests/report/browser_pages.py

Needs Debian's chromium (apt-get install chromium), so its name keeps it out of the normal suite.
Set SCREENSHOTS to a folder to keep what was seen.
"""

import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import zlib

import numpy as np
import pytest

from fcjax import report
from fcjax.sharded.interval import Interval
from tests import runs

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_SIZES = {"phone": (390, 844), "desk": (1280, 900)}
_SCHEMES = {"dark": 0, "light": 1}  # blink's preferredColorScheme
_POLICY = re.compile(rb'<meta http-equiv="Content-Security-Policy"[^>]*>')
# What the page looks like, measured by the page; added by the tests to a copy without the policy.
_MEASURE = """
<script>addEventListener('load', () => {
  document.querySelectorAll('details').forEach(d => d.open = OPEN);
  const wide = [...document.querySelectorAll('body *')].filter(e => {
    const box = e.getBoundingClientRect();
    return box.width > 1 && !e.closest('svg') && (box.right > innerWidth + 1 || box.left < -1);
  }).map(e => e.tagName + '.' + e.className);
  const hidden = [...document.querySelectorAll('th, td, .box, .pill, figcaption, h1, h2')]
    .filter(e => e.clientWidth > 1 && e.scrollWidth > e.clientWidth + 1)
    .map(e => e.tagName + '.' + e.className + ': ' + e.textContent.slice(0, 40));
  const header = getComputedStyle(document.querySelector('h1'));
  parent.postMessage(JSON.stringify({
    inner: innerWidth, scroll: document.documentElement.scrollWidth, wide, hidden,
    resources: performance.getEntriesByType('resource').map(e => e.name),
    dark: matchMedia('(prefers-color-scheme: dark)').matches,
    paper: getComputedStyle(document.documentElement).backgroundColor,
    ink: header.color, text: document.body.innerText.length,
  }), '*');
});</script>
"""
_FRAME = """<!doctype html><body>
<script>addEventListener('message', e => {{ document.body.dataset.measured = e.data; }});</script>
<iframe src="measured.html" style="width:{width}px;height:{height}px;border:0"></iframe></body>
"""


@pytest.fixture(scope="session")
def browser():
    found = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if found is None:
        pytest.fail("browser: expected chromium, got none (apt-get install chromium)", False)
    return found


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """A folder for each state of a run, each with its page."""
    folder = tmp_path_factory.mktemp("pages")
    model = runs.write_model(folder / "model")
    runs.record(folder / "layer", runs.job(model, steps=4), failed=1)
    job = runs.job(model, ((5, 6),), interval=Interval(0, 3), nodes=3)
    runs.record(folder / "whole", job)
    runs.record(folder / "twelve", runs.job(model, ((5, 6),), nodes=12))

    bad = shutil.copytree(folder / "layer", folder / "failed")
    lines = runs.read_lines(bad / "start_0/steps.jsonl")
    lines[2] |= {"passed": False, "faults": ["parity of q: expected at most 1e-05, got 3.2e-04"]}
    lines[2]["parity"]["q"] = 3.2e-4
    lines[2]["ledger"][2]["owners"]["attention"]["disjoint"] = False
    runs.write_lines(bad / "start_0/steps.jsonl", lines, (bad / "run.json").read_bytes())
    report.write(bad)

    cut = shutil.copytree(folder / "layer", folder / "unfinished")
    shutil.rmtree(cut / "start_1")
    shutil.rmtree(cut / "start_1_failed_0")
    (cut / "summary.json").unlink()
    report.write(cut)
    return folder


def run(browser, tmp_path, page, size, scheme, *arguments) -> subprocess.CompletedProcess:
    """One headless run; no name resolves, so nothing could come from a network."""
    width, height = _SIZES[size]
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND", "--force-device-scale-factor=1",
        "--enable-logging=stderr", "--virtual-time-budget=3000", f"--user-data-dir={tmp_path}/user",
        f"--blink-settings=preferredColorScheme={_SCHEMES[scheme]}",
        f"--window-size={width},{height}", *arguments, pathlib.Path(page).as_uri(),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def measure(browser, tmp_path, page, size, scheme, opened=False) -> dict:
    """What the page's own layout says, in a copy that may run a script."""
    content, policies = _POLICY.subn(b"", pathlib.Path(page).read_bytes())
    assert policies == 1
    script = _MEASURE.replace("OPEN", str(opened).lower()).encode()
    copy = tmp_path / "measured.html"
    copy.write_bytes(content.replace(b"</body>", script + b"</body>"))
    # A window is never narrower than 500 pixels, so the page stands in a frame of its size.
    width, height = _SIZES[size]
    frame = tmp_path / "frame.html"
    frame.write_text(_FRAME.format(width=width, height=height))
    dom = run(browser, tmp_path, frame, "desk", scheme, "--dump-dom").stdout
    found = re.search(r'data-measured="([^"]*)"', dom)
    assert found, "expected a measured page, got none"
    return json.loads(html.unescape(found[1]))


def picture(browser, tmp_path, page, size, scheme) -> tuple[np.ndarray, str]:
    """The first screen as [rows, columns, 3], and what the browser logged."""
    path = tmp_path / "shot.png"
    done = run(browser, tmp_path, page, size, scheme, f"--screenshot={path}")
    if "SCREENSHOTS" in os.environ:
        kept = pathlib.Path(os.environ["SCREENSHOTS"])
        shutil.copy(path, kept / f"{pathlib.Path(page).parent.name}_{size}_{scheme}.png")
    return read_png(path.read_bytes()), done.stderr


def read_png(data: bytes, rows: int = 300) -> np.ndarray:
    """The first rows of an 8-bit RGB or RGBA picture (PNG specification, clause 9)."""
    at, parts = 8, []
    while at < len(data):
        size, kind = int.from_bytes(data[at : at + 4]), data[at + 4 : at + 8]
        if kind == b"IHDR":
            head = data[at + 8 : at + 8 + size]
        if kind == b"IDAT":
            parts.append(data[at + 8 : at + 8 + size])
        at += 12 + size
    width, height = int.from_bytes(head[:4]), int.from_bytes(head[4:8])
    assert head[8] == 8 and head[9] in (2, 6), "expected 8-bit RGB or RGBA"
    depth = 3 if head[9] == 2 else 4
    raw, stride = zlib.decompress(b"".join(parts)), width * depth
    above, out = bytearray(stride), []
    for y in range(min(rows, height)):
        kind, *line = raw[y * (stride + 1) : (y + 1) * (stride + 1)]
        for i in range(stride):
            left = line[i - depth] if i >= depth else 0
            up, corner = above[i], above[i - depth] if i >= depth else 0
            if kind == 1:
                line[i] = (line[i] + left) & 255
            elif kind == 2:
                line[i] = (line[i] + up) & 255
            elif kind == 3:
                line[i] = (line[i] + (left + up) // 2) & 255
            elif kind == 4:
                guess = left + up - corner
                near = min((abs(guess - left), 0, left), (abs(guess - up), 1, up),
                           (abs(guess - corner), 2, corner))
                line[i] = (line[i] + near[2]) & 255
        above = line
        out.append(line)
    return np.array(out, np.uint8).reshape(len(out), width, depth)[..., :3]


ALL = ("layer", "whole", "twelve", "failed", "unfinished")


@pytest.mark.parametrize("size", _SIZES)
@pytest.mark.parametrize("name", ALL)
def test_fits_the_screen(browser, pages, tmp_path, name, size):
    for opened in (False, True):
        page = pages / name / "report.html"
        found = measure(browser, tmp_path, page, size, "light", opened)
        assert found["inner"] == _SIZES[size][0]
        assert found["scroll"] <= found["inner"], found["wide"]
        assert found["wide"] == [] and found["hidden"] == []
        assert found["resources"] == []
        assert found["text"] > 3000


@pytest.mark.parametrize("scheme", _SCHEMES)
@pytest.mark.parametrize("size", _SIZES)
@pytest.mark.parametrize("name", ("layer", "whole", "failed", "unfinished"))
def test_is_drawn_without_complaint(browser, pages, tmp_path, name, size, scheme):
    seen, logged = picture(browser, tmp_path, pages / name / "report.html", size, scheme)
    assert "CONSOLE" not in logged, logged
    assert seen.shape[1] == _SIZES[size][0]
    colours = np.unique(seen.reshape(-1, 3), axis=0)
    assert len(colours) > 50
    corner = seen[40, 4].astype(int)
    assert (corner.mean() < 80) == (scheme == "dark")
    edge = seen[2, seen.shape[1] // 2].astype(int)  # of a run that failed or is not finished
    assert (np.abs(edge - corner).sum() > 100) == (name in ("failed", "unfinished"))
    if name == "failed":
        assert edge[0] > edge[1] + 60 and edge[0] > edge[2] + 60


@pytest.mark.parametrize("scheme", _SCHEMES)
def test_ink_stands_out(browser, pages, tmp_path, scheme):
    found = measure(browser, tmp_path, pages / "layer/report.html", "desk", scheme)
    assert found["dark"] == (scheme == "dark")
    paper, ink = (_luminance(*map(int, re.findall(r"\d+", found[x])[:3])) for x in ("paper", "ink"))
    assert (max(paper, ink) + 0.05) / (min(paper, ink) + 0.05) > 7  # WCAG, AAA


def test_complaints_would_be_heard(browser, pages, tmp_path):
    """The control: a page that asks for something that its policy forbids."""
    page = tmp_path / "report.html"
    content = (pages / "layer/report.html").read_bytes()
    page.write_bytes(content.replace(b"</body>", b'<img src="http://a.example/x.png"></body>'))
    _, logged = picture(browser, tmp_path, page, "desk", "light")
    assert "CONSOLE" in logged and "Content Security Policy" in logged


def _luminance(*rgb: int) -> float:
    """WCAG's relative luminance."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in
              (x / 255 for x in rgb)]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))
