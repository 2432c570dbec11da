"""Saved programs: HLO text, gzipped text, or a folder that XLA wrote with `--xla_dump_to`."""

import gzip
import pathlib
import zlib

from fcjax.audit.hlo import guard
from fcjax.audit.hlo.graph import Module, Unauditable

# How XLA names the interval's programs: jit(Model._run_interval), jit(Model._run_whole), ...
INTERVAL = ("_run_interval", "_run_whole")
# The last module that XLA dumps of each program, per backend:
# module_0012.jit_f.cpu_after_optimizations.txt, ...sm_8.9_gpu_after_optimizations.txt
_OPTIMIZED = ("*after_optimizations.txt", "*after_optimizations.txt.gz")


def read(path, names: tuple[str, ...] = INTERVAL) -> dict[str, str]:
    """Texts of the optimized programs at a path, by file name.

    Args:
      path: a file, or a dump folder.
      names: parts of the modules' names; in a folder the other programs are left out.

    Raises:
      Unauditable: nothing there is text of an HLO module, or a folder has no such program.
      OSError: the path cannot be read.
    """
    path = pathlib.Path(path)
    if not path.is_dir():
        return {path.name: _text(path)}
    files = sorted(f for pattern in _OPTIMIZED for f in path.glob(pattern))
    texts = {f.name: _text(f) for f in files}
    found = {
        file: text
        for file, text in texts.items()
        if any(name in _module_name(text) for name in names)
    }
    if not found:
        got = sorted(map(_module_name, texts.values())) or "no *after_optimizations.txt"
        raise Unauditable(f"{path}: expected an optimized module {' or '.join(names)}, got {got}")
    return found


def sizes(module: Module, contract_of) -> tuple[int, int, int]:
    """Rows, tokens and cache slots (B, T, S) of an interval's program, by its entry parameters.

    These sizes are free: the plan has nothing to say about them.

    Args:
      contract_of: (B, T, S) -> Contract.

    Raises:
      Unauditable: it is another program, by the number and rank of its parameters.
    """
    parameters = module.entry.parameters
    # A prefill of the whole model has other parameters than a decode: no head.
    for roles in (contract_of(1, tokens, 1).signature.parameters for tokens in (1, 2)):
        if len(roles) == len(parameters):
            break
    else:
        raise Unauditable(
            f"{module.name}: expected {len(roles)} parameters, as the interval has, got"
            f" {len(parameters)}: another program, or other layers"
        )
    shapes = {role.name: p.shape.dims for role, p in zip(roles, parameters, strict=True)}
    cache = next(dims for name, dims in shapes.items() if name.endswith("cache_k"))
    entry = shapes.get("residual") or (*shapes.get("tokens", ()), 0)
    if len(entry) != 3 or len(cache) != 4:
        raise Unauditable(
            f"{module.name}: expected a residual [B, T, D] or tokens [B, T] and a cache"
            f" [B, K, S, H], got {shapes.get('residual', shapes.get('tokens'))} and {cache}:"
            " another program"
        )
    return entry[0], entry[1], cache[2]


def _text(path: pathlib.Path) -> str:
    data = path.read_bytes()
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        text = data.decode()
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as e:
        raise Unauditable(f"{path}: expected HLO text, plain or gzipped, got {e}") from None
    return guard.check(text)


def _module_name(text: str) -> str:
    words = text.split(maxsplit=2)
    return words[1].rstrip(",") if len(words) > 1 and words[0] == "HloModule" else "(not HLO)"
