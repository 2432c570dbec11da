"""One line of steps.jsonl, the record of a pass: its fields, in one place.

The recorder writes these fields, `verify` refuses others, and the report reads them as `Pass`.
docs/EVIDENCE.md says what they mean; what may stand in each is for `verify.steps` to derive.
"""

import dataclasses
import json
import math

FIELDS = tuple(
    """
    previous start attempt step position tokens_in tokens_out executable outside_the_claim public
    caches live numbers parity copies_agree seconds traced ran faults passed recording_seconds
    ledger
    """.split()
)
_SINCE = {"ran": 3}  # fields that earlier versions of the format do not have
_CHAINED, _WRITTEN = "previous", "ledger"  # added by the chain; written once for many lines


def encode(fields: dict, ledger: str) -> str:
    """The text of a line without its link to the one before.

    Args:
      fields: all but "previous" and "ledger".
      ledger: its rows as JSON.
    """
    assert set(fields) == set(FIELDS) - {_CHAINED, _WRITTEN}, sorted(fields)
    return f'{json.dumps(fields, allow_nan=False)[:-1]}, "{_WRITTEN}": {ledger}}}'


def fault(record: dict, version: int) -> str | None:
    """Which fields are missing or too many in this version, in words; None if none."""
    fields = {name for name in FIELDS if _SINCE.get(name, 1) <= version}
    missing, extra = (sorted(a) for a in (fields - record.keys(), record.keys() - fields))
    if missing or extra:
        return f"expected the fields of a record, missing {missing}, not {extra}"
    return None


def finite(number: float) -> float | str:
    """The number, or in words what is none: JSON has no infinity."""
    return number if math.isfinite(number) else str(number)


@dataclasses.dataclass(frozen=True, slots=True)
class Pass:
    """A line, as much of it as figures are counted from.

    Attributes:
      step: its number; negative in prefill.
      parity: by name; None if it was not compared.
      seconds: of the programs.
      traced: whether the profiler ran.
      passed: what the line says, and that it names no fault.
      faults: in words.
      hlo: hash of the program that ran.
      moved: whether a cache was elsewhere than in the pass before.
      copies_agree: of the all-gather's results; None if there is none.
    """

    step: int
    parity: dict[str, float] | None
    seconds: float
    traced: bool
    passed: bool
    faults: tuple[str, ...]
    hlo: str
    moved: bool
    copies_agree: bool | None

    @classmethod
    def of(cls, record: dict) -> "Pass":
        """The pass of a line; KeyError, TypeError or ValueError if it is no record of one."""
        parity = record["parity"]
        return cls(
            step=record["step"],
            parity=None if parity is None else {n: float(x) for n, x in parity.items()},
            seconds=record["seconds"],
            traced=record["traced"],
            passed=record["passed"] is True and not record["faults"],
            faults=tuple(record["faults"]),
            hlo=record["executable"]["hlo_sha256"],
            moved=record["caches"]["moved"],
            copies_agree=record["copies_agree"],
        )
