"""Files of evidence: written whole or not at all, chained, sealed.

- A JSON file is written beside its name, synced and renamed: a reader finds the old one or the new.
- `steps.jsonl` only grows. Each line carries the hash of the line before, the first that of
  run.json. A write that fails is taken back.
- `manifest.json` lists the hash of every other file, and is written last.
- A run folder is locked by the processes that write into it, and by nobody when they are gone.
"""

import concurrent.futures
import contextlib
import fcntl
import hashlib
import json
import os
import pathlib

from fcjax import manifest

RUN, STEPS, SUMMARY, FAILURE = "run.json", "steps.jsonl", "summary.json", "failure.json"
ENVIRONMENT, REPORT = "environment.json", "report.html"


def encode(content) -> bytes:
    """The one form in which JSON files are written."""
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def plain(content):
    """As it comes back from JSON: tuples as lists, keys as strings."""
    return json.loads(json.dumps(content))


def sha256(data: bytes) -> str:
    """Hex sha256."""
    return hashlib.sha256(data).hexdigest()


def new_folder(folder) -> pathlib.Path:
    """Make a folder for what a program writes.

    Raises:
      ValueError: it exists; what is in it stays as it is.
    """
    folder = pathlib.Path(folder)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise ValueError(
            f"workdir: expected a new folder, got an existing one ({folder})"
        ) from None
    return folder


def write(path, data: bytes) -> None:
    """Write a file whole or not at all; it is on disk when this returns."""
    path = pathlib.Path(path)
    beside = path.with_name(f".{path.name}.tmp")
    try:
        with open(beside, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    except OSError as e:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise OSError(e.errno, f"{e.strerror}; what was recorded before is kept", str(path)) from e


def write_json(path, content) -> None:
    """Write a JSON file whole or not at all."""
    write(path, encode(content))


def sync_folder(folder) -> None:
    """Put a folder's list of names on disk."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_json(path):
    """The content of a JSON file.

    Raises:
      ValueError: it is not JSON.
    """
    data = pathlib.Path(path).read_bytes()
    try:
        return json.loads(data)
    except ValueError as e:  # of JSON and of UTF-8
        raise ValueError(f"{pathlib.Path(path).name}: expected JSON, got {e} ({path})") from None


class Chain:
    """A file of lines that only grows, each with the hash of the one before.

    A line is with the operating system when `append` returns, so no end of this process loses it.
    It is synced to the disk while the next pass runs, and before the next line is written.

    Attributes:
      path: the file.
      last: hash of the last line; before the first line, what that one will carry.
      count: lines so far.
    """

    def __init__(self, path, first: str):
        """
        Args:
          path: made here; must not exist.
          first: hash that the first line carries.
        """
        self.path, self.last, self.count = pathlib.Path(path), first, 0
        self._file = open(path, "xb", buffering=0)
        self._size = 0
        self._pool = concurrent.futures.ThreadPoolExecutor(1)
        self._synced: concurrent.futures.Future | None = None

    def append(self, fields: str) -> None:
        """Append one line.

        Args:
          fields: the text of a JSON object with at least one field and without "previous".

        Raises:
          OSError: the disk is full, or whatever else; the lines before stay as they are.
        """
        line = f'{{"previous": "{self.last}", {fields[1:]}'.encode()
        with self._explained():
            self._wait()
            self._write(line + b"\n")
            self._synced = self._pool.submit(os.fsync, self._file.fileno())
        self._size += len(line) + 1
        self.last = sha256(line)
        self.count += 1

    def close(self) -> None:
        """No more lines; all of them are on disk."""
        with self._explained():
            self._wait()
            self._pool.shutdown()
            self._file.close()

    def abandon(self) -> None:
        """Close the file behind an error, without another one."""
        with contextlib.suppress(OSError):
            self.close()
        self._file.close()

    def _wait(self) -> None:
        synced, self._synced = self._synced, None
        if synced is not None:
            synced.result()

    def _write(self, data: bytes) -> None:
        """All of it, or none."""
        written = 0
        try:
            while written < len(data):
                written += self._file.write(data[written:])
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(self._size)
            raise

    @contextlib.contextmanager
    def _explained(self):
        try:
            yield
        except OSError as e:
            raise OSError(
                e.errno, f"{e.strerror}; the {self.count} lines before are kept", str(self.path)
            ) from e


def read_chain(path, first: str) -> tuple[list[dict], str, list[str]]:
    """The lines of a chain, its last hash, and what is wrong with it.

    Every line that can be read is in the list, with its number from 1 as the field "line".
    """
    name = pathlib.Path(path).name
    data = pathlib.Path(path).read_bytes()
    lines = data.split(b"\n")
    faults = [] if lines.pop() == b"" else [f"{name}: expected a line end at the end, got none"]
    if faults:  # a line that was cut off does not count
        faults[0] += f" (line {len(lines) + 1})"
    found, last = [], first
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            previous = record["previous"]
        except (ValueError, KeyError, TypeError) as e:
            faults.append(f"{name} line {number}: expected a record, got {e!r}")
            previous = None
        else:
            found.append(record | {"line": number})
        if previous is not None and previous != last:
            before = f"line {number - 1}" if number > 1 else RUN
            faults.append(
                f"{name} line {number}: field previous: expected {last[:12]}..., the hash of"
                f" {before}, got {str(previous)[:12]}..., so one of the two was changed"
            )
        last = sha256(line)
    return found, last, faults


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
