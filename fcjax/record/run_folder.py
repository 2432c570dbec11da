"""Files of evidence: written whole or not at all, chained, sealed.

- A JSON file is written beside its name, synced and renamed: a reader finds the old one or the new.
- `steps.jsonl` only grows. Each line carries the hash of the line before, the first that of
  run.json. A write that fails is taken back.
- `manifest.json` lists the hash of every other file, and is written last.
- A run folder is locked by the processes that write into it, and by nobody when they are gone.
"""

import contextlib
import fcntl
import json
import os
import pathlib

from fcjax import manifest
from fcjax.files import write

RUN, STEPS, SUMMARY, FAILURE = "run.json", "steps.jsonl", "summary.json", "failure.json"
ENVIRONMENT, REPORT = "environment.json", "report.html"


@contextlib.contextmanager
def lock(folder):
    """Hold a run folder for writing; yields the descriptor that holds it.

    A child that inherits the descriptor holds the folder too, until it ends.

    Raises:
      ValueError: another process holds it.
    """
    fd = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"workdir: expected a folder that no run is writing into, got one in use ({folder})"
            ) from None
        yield fd
    finally:
        os.close(fd)


def seal(folder) -> None:
    """List the hash of every file: the run is finished."""
    files = manifest.describe(folder)
    write(pathlib.Path(folder) / manifest.NAME, seal_bytes(files))


def seal_bytes(files: dict[str, dict]) -> bytes:
    """The manifest's bytes, in the form that `manifest.verify` reads."""
    return (json.dumps(files, indent=1, sort_keys=True) + "\n").encode()
