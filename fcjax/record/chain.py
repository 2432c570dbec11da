"""A file of lines that only grows, each with the hash of the one before."""

import concurrent.futures
import contextlib
import os
import pathlib

from fcjax.files import sha256


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
        """Close the file after an error, without another one."""
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
