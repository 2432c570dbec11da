"""The audit for any JAX function: the caller says what its inputs and outputs are."""

import jax

from fcjax.audit.check import audit_compiled, audit_interval
from fcjax.audit.contract import Contract, open_contract
from fcjax.audit.domain.roles import Signature
from fcjax.audit.hlo import guard
from fcjax.audit.verdict import Verdict


def certify(program, roles: Signature, *arguments) -> Verdict:
    """Audit a function, a compiled program or HLO text, without a plan to compare it with.

    Every reduce-scatter must hand out the contraction of state with a declared weight, every
    all-reduce must be the statistic of a norm whose output is contracted, and nothing else may
    leave a node, except one all-gather behind all that if the roles have complete results.

    Args:
      program: a function of `arguments`, the result of ``jax.jit(f).lower(...).compile()``, or the
        text of an optimized HLO module.
      roles: of its flat inputs and outputs (`roles.signature`).
      arguments: arrays or ``jax.ShapeDtypeStruct`` with shardings, for a function.

    Raises:
      Unauditable: the program holds something that the audit does not understand.
    """
    if callable(program) and not hasattr(program, "as_text"):
        # Unused arguments stay, so that the roles' order is that of the compiled parameters.
        program = jax.jit(program, keep_unused=True).lower(*arguments).compile()
    contract: Contract = open_contract(roles)
    if isinstance(program, str):
        return audit_interval(guard.check(program), contract)
    return audit_compiled(program, contract)
