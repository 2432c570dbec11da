"""The audit of compiled programs: what crosses between nodes, and what it is made of."""

from fcjax.audit.certify import certify
from fcjax.audit.check import audit_compiled, audit_interval
from fcjax.audit.contract import Contract
from fcjax.audit.domain.roles import (
    Complete,
    Public,
    Signature,
    State,
    Table,
    Weight,
    signature,
    tensor,
)
from fcjax.audit.handed import handed
from fcjax.audit.handover import Handed
from fcjax.audit.hlo.graph import Unauditable, parse
from fcjax.audit.verdict import Collective, Failed, Verdict, Violation
from fcjax.collectives import sent_bytes, sent_elements

__all__ = [
    "Collective",
    "Complete",
    "Contract",
    "Failed",
    "Handed",
    "Public",
    "Signature",
    "State",
    "Table",
    "Unauditable",
    "Verdict",
    "Violation",
    "Weight",
    "audit_compiled",
    "audit_interval",
    "certify",
    "handed",
    "parse",
    "sent_bytes",
    "sent_elements",
    "signature",
    "tensor",
]
