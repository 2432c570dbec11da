"""Damages a program at random for a bounded time, and audits what comes out.

    python -m tests.audit.fuzz CASE SECONDS SEED

CASE is a pickled (text, contract). Each damaged program is audited in a process of its own, because
XLA's parser ends the process on some of them (`fcjax.audit.hlo.guard` is there for that). Prints
how they ended, as JSON; exits with 1 and the damage if one crashed or hung in our code, or was
clean with another meaning.
"""

import collections
import json
import os
import pathlib
import pickle
import random
import re
import signal
import sys
import time
import traceback

from fcjax import audit
from fcjax.audit.handed import handed_by

PARSER, AUDIT = 3, 20  # seconds for one of them


def _drop_line(rng, lines):
    del lines[rng.randrange(len(lines))]


def _double_line(rng, lines):
    n = rng.randrange(len(lines))
    lines.insert(rng.randrange(len(lines)), lines[n])


def _swap_lines(rng, lines):
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]


def _replace(rng, lines, pattern, new):
    """One place that fits the pattern, in one line, becomes what `new(rng, lines)` gives."""
    n = rng.choice([n for n, line in enumerate(lines) if re.search(pattern, line)] or [None])
    if n is None:
        return
    place = rng.choice(list(re.finditer(pattern, lines[n])))
    lines[n] = lines[n][: place.start()] + new(rng, lines) + lines[n][place.end() :]


def _other(pattern):
    """Another piece of the text that fits the same pattern."""
    return lambda rng, lines: rng.choice(re.findall(pattern, "\n".join(lines)))


def _exchange(pattern):
    return lambda rng, lines: _replace(rng, lines, pattern, _other(pattern))


def _other_number(rng, lines):
    numbers = ["0", "1", "2", "3", "7", "-1", "4294967296", "99999999999999999999"]
    _replace(rng, lines, r"\d+", lambda rng, _: rng.choice(numbers))


def _other_character(rng, lines):
    _replace(rng, lines, r".", lambda rng, _: chr(rng.randrange(32, 127)))


def _drop_attribute(rng, lines):
    n = rng.randrange(len(lines))
    parts = lines[n].split(", ")
    del parts[rng.randrange(len(parts))]
    lines[n] = ", ".join(parts)


def _cut_short(rng, lines):
    del lines[rng.randrange(len(lines)) :]


_operand, _opcode = _exchange(r"(?<=[(, =])%[\w.-]+"), _exchange(r"(?<= )[a-z][\w-]+(?=\(%)")
_shape, _attribute = _exchange(r"\w+\[[\d,]*\]\{[\d,]*\}"), _exchange(r"\w+=\{[\d,]*\}")
DAMAGE = [
    _drop_line, _double_line, _swap_lines, _operand, _operand, _operand, _operand, _opcode, _opcode,
    _shape, _attribute, _other_number, _other_number, _other_character, _drop_attribute, _cut_short,
]


def damaged(text: str, rng: random.Random) -> str:
    # Tables of file names and stack frames are not the program.
    head, body = text.split("\n", 1)
    lines = [head, *body[body.index("\n%") :].splitlines()]
    for damage in rng.choices(DAMAGE, k=rng.choice([1, 1, 1, 2, 5])):
        if lines:
            damage(rng, lines)
    return "\n".join(lines)


def meaning(verdict, contract):
    """What crosses, between which operators: all of the verdict but names.

    Of an exchange the contract leaves open on which of the earlier ones it depends.
    """
    exchanges = {d.name for d in contract.exchanges}
    return [
        (c.operator, c.kind, c.sent, c.received, c.axis, c.operator in exchanges or c.reads)
        for c in (*verdict.before, *verdict.after)
    ]


def _audit(text, contract, expected, pipe, tell: bool) -> None:
    """In the child: one letter before the parser, one behind it, and the outcome.

    Args:
      tell: ask who is handed what, in place of the audit.
    """
    signal.alarm(PARSER)
    os.write(pipe, b"p")
    try:
        audit.parse(text)
        signal.alarm(AUDIT)
        os.write(pipe, b"a")
        if tell:
            handed_by(text, (), {".": audit.State}).text()
        else:
            found = audit.audit_interval(text, contract)
    except audit.Unauditable:
        os.write(pipe, b"R")
    except BaseException:
        traceback.print_exc()
        os.write(pipe, b"E")
    else:
        same = tell or meaning(found, contract) == expected
        os.write(pipe, b"T" if tell else b"V" if not found.ok else b"C" if same else b"S")
    os._exit(0)


ENDS = {
    "pR": "refused by the parser or the graph", "paR": "refused by the audit", "paV": "violation",
    "paC": "clean, same meaning", "paT": "told who is handed what",
    "p": "XLA's parser crashed or hung",
}


def main(case: str, seconds: str, seed: str) -> int:
    text, contract = pickle.loads(pathlib.Path(case).read_bytes())
    expected = meaning(audit.audit_interval(text, contract), contract)
    rng, end = random.Random(int(seed)), time.monotonic() + float(seconds)
    ends = collections.Counter()
    while time.monotonic() < end:
        changed = damaged(text, rng)
        source, sink = os.pipe()
        child = os.fork()
        if not child:
            _audit(changed, contract, expected, sink, tell=sum(ends.values()) % 4 == 3)
        os.close(sink)
        _, status = os.waitpid(child, 0)
        said = os.read(source, 9).decode()
        os.close(source)
        if said not in ENDS:
            print(f"{said!r}, status {status}, in a program that was damaged like this:")
            old = set(text.splitlines())
            print("\n".join(line for line in changed.splitlines() if line not in old)[:4000])
            return 1
        ends[ENDS[said]] += 1
    print(json.dumps(ends))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
