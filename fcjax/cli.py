"""How every program of this repository starts and ends.

Exit code 0: done. 1: an audit, a parity check or a verification failed. 2: bad input, said in one
line; the traceback is shown with --verbosity=1.
"""

import pathlib
import sys
import traceback

from absl import app, flags, logging


def run(main) -> None:
    """Parse absl flags and run ``main(argv)``; its return value is the exit code."""
    if any(arg in ("--help", "-h", "-help", "-?") for arg in sys.argv[1:]):
        app.usage(shorthelp=True, writeto_stdout=True)
        sys.exit(0)
    app.run(lambda argv: _guarded(main, argv), flags_parser=_parse)


def _parse(argv):
    try:
        rest = flags.FLAGS(argv)
    except flags.Error as e:
        _refuse(e)
    if len(rest) > 1:
        _refuse(f"arguments: expected flags only, got {rest[1:]}")
    return rest


def _guarded(main, argv):
    try:
        return main(argv)
    except OSError as e:
        logging.debug("bad input", exc_info=True)
        _refuse(e)
    except ValueError as e:
        # One that a library raised, for instance while JAX traces, is a fault of this code.
        if not _raised_here(e):
            raise
        logging.debug("bad input", exc_info=True)
        _refuse(e)


def _raised_here(error: Exception) -> bool:
    """Whether a `raise` of the program or of this repository's packages raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    file = pathlib.Path(frame.filename)
    root = pathlib.Path(__file__).parent.parent
    folders = [root / name for name in ("fcjax", "weights", "experiments")]
    ours = file == pathlib.Path(sys.argv[0]) or any(folder in file.parents for folder in folders)
    return ours and frame.line.startswith("raise ")


def _refuse(what) -> None:
    print("error: " + " ".join(str(what).split()), file=sys.stderr)
    sys.exit(2)
