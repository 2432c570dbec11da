"""How every program of this repository starts and ends.

Exit code 0: done. 1: an audit, a parity check or a verification failed. 2: bad input, said in one
line; the traceback is shown with --verbosity=1.
"""

import os
import pathlib
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from absl import app, flags, logging

HELP = ("--help", "-h", "-help", "-?")


def run(main, arguments: Sequence[str] = (), about: str | None = None) -> None:
    """Parse absl flags and run ``main(argv)``; its return value is the exit code.

    Args:
      main: gets the program's name and its arguments that are no flags.
      arguments: what those are called; more are refused, fewer are for `main` to judge.
      about: what --help says above the flags of the module of `main`. [that module's docstring]
    """
    if any(arg in HELP for arg in sys.argv[1:]):
        print(about or sys.modules[main.__module__].__doc__)
        print(f"flags:\n{flags.FLAGS.module_help(main.__module__)}")
        sys.exit(0)
    app.run(lambda argv: _guarded(main, argv), flags_parser=lambda argv: _parse(argv, arguments))


def _parse(argv, arguments):
    try:
        rest = flags.FLAGS(argv)
    except flags.Error as e:
        refuse(e)
    if len(rest) - 1 > len(arguments):
        expected = f"flags and {' '.join(arguments)}" if arguments else "flags only"
        refuse(f"arguments: expected {expected}, got {rest[1:]}")
    return rest


def _guarded(main, argv):
    try:
        return main(argv)
    except OSError as e:
        logging.debug("bad input", exc_info=True)
        refuse(e)
    except ValueError as e:
        # One that a library raised, for instance while JAX traces, is a fault of this code.
        if not _raised_here(e):
            raise
        logging.debug("bad input", exc_info=True)
        refuse(e)


def _raised_here(error: Exception) -> bool:
    """Whether a `raise` of the program or of this repository's packages raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    file = pathlib.Path(frame.filename)
    root = pathlib.Path(__file__).parent.parent
    folders = [root / name for name in ("fcjax", "weights", "experiments")]
    ours = file == pathlib.Path(sys.argv[0]) or any(folder in file.parents for folder in folders)
    return ours and frame.line.startswith("raise ")


def refuse(what) -> NoReturn:
    """End the process with exit code 2 and one line that says why."""
    print("error: " + " ".join(str(what).split()), file=sys.stderr)
    sys.exit(2)


def depth(text: str, layers: int) -> int:
    """The value of a --depth flag: a number of layers, or all of L."""
    if text == "all":
        return layers
    if not text.isdigit():
        raise ValueError(f"depth: expected a number of layers or all, got {text!r}")
    return int(text)


def numbers(flag: str, values: list[str]) -> list[int]:
    """The value of a flag that lists numbers."""
    if not values or not all(v.strip().isdigit() for v in values):
        raise ValueError(f"{flag}: expected numbers such as 2,3,4, got {','.join(values)!r}")
    return [int(v) for v in values]


def flag_values(module: str) -> dict:
    """The flags that a program's module has defined, without absl's."""
    return {f.name: f.value for f in flags.FLAGS.get_key_flags_for_module(module)}


def python(*arguments: str) -> tuple[list[str], dict[str, str]]:
    """Command and environment of a new Python process that imports this very package.

    Without -P it would take an `fcjax` of the current folder before the installed one.
    """
    path = [str(pathlib.Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    return [sys.executable, "-P", *arguments], environment
