"""A sha256 manifest of a model folder.

Neither safetensors nor Orbax notices a flipped byte in a data file: the wrong numbers load without
a word. So every folder that fcjax writes carries `manifest.json`, which lists each other file of
the folder with its size and sha256, and is verified before anything is loaded from there.
"""

import hashlib
import json
import pathlib

from fcjax.files import read_json, sha256_file

NAME = "manifest.json"


def describe(folder) -> dict[str, dict]:
    """Size and sha256 of every file below `folder` but the manifest, by relative path."""
    folder = pathlib.Path(folder)
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {
        p.relative_to(folder).as_posix(): {"size": p.stat().st_size, "sha256": sha256_file(p)}
        for p in files
        if p != folder / NAME
    }


def digest(files: dict[str, dict]) -> str:
    """One hash for the whole folder: sha256 of the manifest in canonical JSON."""
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def write(folder) -> str:
    """Write the manifest of a finished folder; returns its digest."""
    files = describe(folder)
    (pathlib.Path(folder) / NAME).write_text(json.dumps(files, indent=1, sort_keys=True) + "\n")
    return digest(files)


def verify(folder, required: bool = False) -> str:
    """Digest of the folder's files as they are, checked against the manifest where it has one.

    A folder from elsewhere has no manifest; its digest is still what the evidence records. One
    that fcjax wrote is `required` to have it.

    Raises:
      ValueError: a file is missing, added, or differs from the manifest; all faults in one message.
    """
    folder = pathlib.Path(folder)
    present = describe(folder)
    if not (folder / NAME).exists():
        if required:
            raise ValueError(f"manifest: expected {NAME}, got nothing ({folder})")
        return digest(present)
    try:
        listed = read_json(folder / NAME)
        rows = {name: (row["size"], str(row["sha256"])) for name, row in listed.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise ValueError(
            f"manifest: expected files with size and sha256, got {e!r} ({folder / NAME})"
        ) from None
    faults = [
        f"{n}: expected in the folder, got nothing" for n in sorted(rows.keys() - present.keys())
    ]
    faults += [f"{n}: expected no such file" for n in sorted(present.keys() - rows.keys())]
    for name in sorted(rows.keys() & present.keys()):
        size, sha = present[name]["size"], present[name]["sha256"]
        if rows[name][0] != size:
            faults.append(f"{name}: expected {rows[name][0]} bytes, got {size}")
        elif rows[name][1] != sha:
            faults.append(f"{name}: expected sha256 {rows[name][1][:12]}..., got {sha[:12]}...")
    if faults:
        raise ValueError(f"manifest: {'; '.join(faults)} ({folder})")
    return digest(present)
