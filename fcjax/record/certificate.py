"""Certificates: an audit that anyone can repeat from two files.

`certificate.json` says what was audited and what was found, and `interval.hlo` is the program's
text. `verify` reads nothing else: it derives the contract again from the model's sizes, the
interval and the sampling, audits the text again, and compares. A certificate is not signed: it
protects against accidents and against claims that the program does not support, not against
somebody who writes another certificate for another program.
"""

import dataclasses
import json
import os
import pathlib
import platform

import jax
import jaxlib
import jaxlib.version

from fcjax import files
from fcjax.audit.check import audit_interval
from fcjax.audit.hlo import guard
from fcjax.audit.verdict import Verdict
from fcjax.model.config import ModelConfig
from fcjax.sharded.contract import interval_contract
from fcjax.sharded.interval import Interval, ShardedModel
from fcjax.sharded.ownership import Plan
from fcjax.sharded.sampling import Sampling

NAME, PROGRAM = "certificate.json", "interval.hlo"
_FORMAT = "fcjax audit certificate 2"
_COMPILE_ONLY = (
    "compile-only: the program was compiled for devices that were not there, and not run"
)


def write(
    folder,
    verdict: Verdict,
    model: ShardedModel,
    *,
    batch: int,
    tokens: int,
    length: int,
    dtype: str,
    weights: str | None = None,
    compile_only: bool = False,
    platform_version: str = "",
) -> pathlib.Path:
    """Write a certificate and its program into a folder.

    Args:
      folder: an existing folder.
      verdict: of the interval's program.
      model: the model that it was compiled for.
      batch, tokens, length, dtype: the sizes and the type that it was compiled for.
      weights: sha256 of the manifest of the weights that it ran with, if it ran.
      compile_only: it was compiled for devices that are not there.
      platform_version: of the backend that compiled it.

    Returns:
      The certificate's path.
    """
    folder = pathlib.Path(folder)
    content = {
        "format": _FORMAT,
        "kind": _COMPILE_ONLY if compile_only else "the program that ran",
        "program": {"file": PROGRAM, "sha256": files.sha256(verdict.hlo.encode())},
        "model": model.plan.cfg.describe(),
        "nodes": model.plan.nodes,
        "interval": dataclasses.asdict(model.interval),
        "sampling": dataclasses.asdict(model.sampling),
        "sizes": {"batch": batch, "tokens": tokens, "length": length},
        "dtype": dtype,
        "plan": model.plan.describe(),
        "weights": weights,
        "environment": environment() | {"platform_version": platform_version},
        "verdict": verdict.to_json(),
    }
    content["sha256"] = _seal(content)
    (folder / PROGRAM).write_bytes(verdict.hlo.encode())
    path = folder / NAME
    path.write_bytes(_encode(content))
    return path


def environment() -> dict[str, str]:
    """What compiled the program."""
    return {
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "python": platform.python_version(),
        "partitioner": "shardy" if jax.config.jax_use_shardy_partitioner else "gspmd",
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def verify(path) -> Verdict:
    """Repeat the audit of a certificate from its files alone.

    Args:
      path: a certificate, or the folder that holds it.

    Returns:
      The verdict, which is the one in the certificate.

    Raises:
      ValueError: a file was changed, or the audit now says something else.
      Unauditable: the program cannot be audited.
    """
    path = pathlib.Path(path)
    path = path / NAME if path.is_dir() else path
    data = path.read_bytes()
    content = files.decode(data, path)
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError(f"certificate: expected format {_FORMAT!r} ({path})")
    seal = content.pop("sha256", None)
    if seal != _seal(content) or data != _encode(content | {"sha256": seal}):
        raise ValueError(f"certificate: expected its own sha256, got changed bytes ({path})")
    program = (path.parent / PROGRAM).read_bytes()
    if files.sha256(program) != content["program"]["sha256"]:
        raise ValueError(f"program: expected sha256 {content['program']['sha256']} ({PROGRAM})")
    model = ShardedModel(
        Plan(ModelConfig(**content["model"]), content["nodes"]),
        Interval(**content["interval"]),
        Sampling(**content["sampling"]),
    )
    # Certificates of before did not say the type.
    contract = interval_contract(model, **content["sizes"], dtype=content.get("dtype"))
    verdict = audit_interval(guard.check(program.decode()), contract)
    if _facts(files.plain(verdict.to_json())) != _facts(content["verdict"]):
        raise ValueError(f"verdict: expected the one in the certificate, got {verdict} ({path})")
    if files.plain(model.plan.describe()) != content["plan"]:
        raise ValueError(f"plan: expected the one that the sizes give ({path})")
    return verdict


def _facts(verdict: dict):
    """What a verdict says, without the words and paths in which this code says it."""
    what = ("operator", "kind", "instruction", "dtype", "sent", "received", "axis", "reads")
    try:
        crossed = [[[c[w] for w in what] for c in verdict[at]] for at in ("before", "after")]
        return verdict["ok"], [v["code"] for v in verdict["violations"]], crossed
    except (KeyError, TypeError) as e:
        raise ValueError(f"certificate: expected the fields of a verdict, got {e!r}") from None


def _encode(content: dict) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


def _seal(content: dict) -> str:
    return files.sha256(_encode(content))
