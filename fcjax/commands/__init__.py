"""The programs: `fcjax NAME`, and in a clone `python -m experiments.NAME`.

Each is a module of this folder with `define_flags()`, `main(argv)` and, where it takes more than
flags, their names in `ARGUMENTS`. Nothing is defined on import, and a program is imported when it
runs, so that programs do not meet in absl's one table of flags.
"""

import ast
import importlib
import importlib.util
import sys

from fcjax import cli

NAMES = (
    "generate", "decode", "cold-starts", "verify", "audit", "audit-grid", "sweep", "benchmark",
    "hf-parity",
)


def main() -> None:
    """The console command `fcjax`: the first argument is the program, the others are its own."""
    name, *rest = sys.argv[1:] or ["none"]
    if name in cli.HELP:
        print("usage: fcjax NAME [flags]; fcjax NAME --help explains each\n")
        print("\n".join(f"  {name:<12} {_headline(name)}" for name in NAMES))
        return
    if name not in NAMES:
        cli.refuse(f"command: expected one of {', '.join(NAMES)}, got {name}")
    sys.argv = [f"fcjax {name}", *rest]
    run(name)


def run(name: str, about: str | None = None) -> None:
    """Run a program with the flags in `sys.argv`; ends the process with its exit code.

    Args:
      name: one of `NAMES`.
      about: what --help says in place of the headline, before the program's own words.
    """
    program = importlib.import_module(_module(name))
    program.define_flags()
    headline, words = program.__doc__.split("\n", 1)
    cli.run(program.main, getattr(program, "ARGUMENTS", ()), (about or headline) + words)


def _module(name: str) -> str:
    return f"{__name__}.{name.replace('-', '_')}"


def _headline(name: str) -> str:
    """The first line of a program's docstring, without what importing it costs."""
    source = importlib.util.find_spec(_module(name)).loader.get_source(_module(name))
    return ast.get_docstring(ast.parse(source)).splitlines()[0]
