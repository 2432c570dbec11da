"""Saved programs: HLO text, plain or gzipped, or a folder of a run or of `--xla_dump_to`."""

import gzip
import pathlib
import re
import zlib

from fcjax.audit.hlo import guard
from fcjax.audit.hlo.graph import Unauditable

# The last module that XLA dumps of each program, per backend:
# module_0012.jit_f.cpu_after_optimizations.txt, ...sm_8.9_gpu_after_optimizations.txt; and the
# program that a run keeps beside its certificate.
_PROGRAMS = ("*after_optimizations.txt", "*after_optimizations.txt.gz", "interval.hlo")
_HEADER = re.compile(r"HloModule ([^\s,]+)")
_HAND_IN = (
    "hand in the text of the optimized program, as compiled.as_text() or --xla_dump_to with"
    " --xla_dump_hlo_as_text (...after_optimizations.txt) give it"
)


def read(path, names: tuple[str, ...]) -> dict[str, str]:
    """Texts of the optimized programs at a path, by file name.

    Args:
      path: a file, or a folder that holds dumps or runs, at any depth.
      names: parts of the modules' names; in a folder the other programs are left out.

    Raises:
      Unauditable: nothing there is text of an HLO module, or a folder has no such program.
      OSError: the path cannot be read.
    """
    path = pathlib.Path(path)
    if not path.is_dir():
        return {path.name: text_of(path.read_bytes(), path)}
    files = sorted(f for pattern in _PROGRAMS for f in path.rglob(pattern))
    texts = {str(f.relative_to(path)): text_of(f.read_bytes(), f) for f in files}
    named = {
        file: text
        for file, text in texts.items()
        if any(name in _module_name(text) for name in names)
    }
    if not named:
        got = sorted(map(_module_name, texts.values())) or f"no {', '.join(_PROGRAMS)}"
        raise Unauditable(f"{path}: expected an optimized module {' or '.join(names)}, got {got}")
    return named


def text_of(data: bytes | str, where) -> str:
    """HLO text, plain or gzipped, once XLA's parser has been seen to survive it.

    Raises:
      Unauditable: it is something else; the message says what to hand in.
    """
    try:
        if isinstance(data, bytes) and data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        text = data if isinstance(data, str) else data.decode()
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as e:
        # A serialized module does not hold on how many partitions it runs.
        got = "a serialized module or no module" if isinstance(e, UnicodeDecodeError) else e
        raise Unauditable(f"{where}: expected HLO text, got {got}; {_HAND_IN}") from None
    if not _HEADER.match(text):
        got = "StableHLO, which no compiler has seen" if "stablehlo." in text else "another text"
        raise Unauditable(f"{where}: expected HLO text, got {got}; {_HAND_IN}")
    if ", is_scheduled=true" not in text.partition("\n")[0]:
        got = "one without an order, as it is before XLA's passes"
        raise Unauditable(f"{where}: expected an optimized module, got {got}; {_HAND_IN}")
    return guard.check(text)


def _module_name(text: str) -> str:
    return _HEADER.match(text)[1]
