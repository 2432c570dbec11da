"""Files that are written whole or not at all, their hashes, and the one form of JSON.

A file is written beside its name, synced and renamed: a reader finds the old one or the new.
"""

import contextlib
import hashlib
import json
import os
import pathlib


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


def decode(data: bytes, path):
    """The content of a JSON file from its bytes, which are UTF-8; `path` is for the message.

    Raises:
      ValueError: it is not JSON.
    """
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError) as e:  # of JSON and of UTF-8; nested without end
        raise ValueError(f"{pathlib.Path(path).name}: expected JSON, got {e} ({path})") from None


def read_json(path):
    """The content of a JSON file.

    Raises:
      ValueError: it cannot be read or is not JSON.
    """
    path = pathlib.Path(path)
    try:
        data = path.read_bytes()
    except OSError as e:
        raise ValueError(f"{path.name}: expected JSON, got {e.strerror} ({path})") from None
    return decode(data, path)


def read_object(path) -> dict:
    """The object in a JSON file.

    Raises:
      ValueError: it cannot be read, is not JSON or no object.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        name, kind = pathlib.Path(path).name, type(content).__name__
        raise ValueError(f"{name}: expected a JSON object, got {kind} ({path})")
    return content


def sha256_file(path) -> str:
    """Hex sha256 of a file's bytes."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
