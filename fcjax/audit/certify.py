"""The audit for any JAX function: the caller says what its inputs and outputs are."""

import pathlib

import jax

from fcjax.audit.check import audit_interval
from fcjax.audit.contract import open_contract
from fcjax.audit.domain.roles import Signature
from fcjax.audit.hlo import dump
from fcjax.audit.hlo.graph import Unauditable
from fcjax.audit.verdict import Verdict


def certify(program, roles: Signature, *arguments) -> Verdict:
    """Audit a function, a compiled program or HLO text, without a plan to compare it with.

    Every reduce-scatter must hand out the contraction of state with a declared weight, every
    all-reduce must be the statistic of a norm whose output is contracted, and nothing else may
    leave a node, except one all-gather after all that if the roles have complete results.

    Args:
      program: a function of `arguments`; one that is traced, lowered or compiled
        (``jax.jit(f).trace(...)``, ``.lower()``, ``.compile()``); the text of an optimized HLO
        module; or a path of a file that holds one, plain or gzipped.
      roles: of its flat inputs and outputs (`roles.signature`).
      arguments: arrays or ``jax.ShapeDtypeStruct`` with shardings, for a function.

    Raises:
      Unauditable: the program holds something that the audit does not understand, or it is no
        optimized program; the message says what to hand in.
      OSError: the path cannot be read.
    """
    text, shardings = program_of(program, arguments)
    return audit_interval(text, open_contract(roles), shardings)


def program_of(program, arguments) -> tuple[str, list]:
    """The HLO text of what `certify` takes, and the layouts of its inputs where they are known."""
    if isinstance(program, str | bytes):
        return dump.text_of(program, "program"), []
    if isinstance(program, pathlib.Path):
        return dump.text_of(program.read_bytes(), program), []
    compiled = _compiled(program, arguments)
    return compiled.as_text(), jax.tree.leaves(compiled.input_shardings)


def _compiled(program, arguments) -> jax.stages.Compiled:
    match program:
        case jax.stages.Compiled():
            return program
        case jax.stages.Lowered():
            return program.compile()
        case jax.stages.Traced():
            return program.lower().compile()
        case jax.stages.Wrapped():  # a jitted function, with its own donations and layouts
            return program.lower(*arguments).compile()
        case _ if callable(program):
            # Unused arguments stay, so that the roles' order is that of the compiled parameters.
            return jax.jit(program, keep_unused=True).lower(*arguments).compile()
    raise Unauditable(
        f"program: expected a function, what jax.jit(f).trace, .lower or .compile give, HLO text or"
        f" a path, got a {type(program).__name__}"
    )
