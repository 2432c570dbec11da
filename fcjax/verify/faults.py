"""Faults in a record: each says where it is, what was expected there, and what was found."""

from fcjax.record.reader import MALFORMED

_SHOWN = 60  # characters of a value


class Faults:
    """A list of faults in words, each with its place.

    Attributes:
      found: the faults so far.
    """

    def __init__(self):
        self.found: list[str] = []

    def add(self, where: str, text: str) -> None:
        """One fault: where, and what is wrong there."""
        self.found.append(f"{where}: {text}")

    def guarded(self, where: str, check, *arguments) -> None:
        """Run a check of what somebody else wrote; that it cannot be read is a fault, too."""
        try:
            check(*arguments)
        except MALFORMED as e:
            self.add(where, f"expected a record that can be read, got {words(e)}")

    def expect(self, where: str, expected, got) -> bool:
        """Compare plain data, and name the first field of every branch that differs."""
        before = len(self.found)
        self._compare(where, "", expected, got)
        return len(self.found) == before

    def _compare(self, where: str, field: str, expected, got) -> None:
        if type(expected) is dict and type(got) is dict:
            for name in expected.keys() | got.keys():
                inner = f"{field}.{name}" if field else name
                if name not in got:
                    self.add(where, f"field {inner}: expected {_show(expected[name])}, got nothing")
                elif name not in expected:
                    self.add(where, f"field {inner}: expected no such field")
                else:
                    self._compare(where, inner, expected[name], got[name])
        elif type(expected) is list and type(got) is list and len(expected) == len(got):
            for i, (a, b) in enumerate(zip(expected, got, strict=True)):
                self._compare(where, f"{field}[{i}]", a, b)
        elif type(expected) is not type(got) or expected != got:
            at = f"field {field}: " if field else ""
            self.add(where, f"{at}expected {_show(expected)}, got {_show(got)}")


def _show(value) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def words(e: Exception) -> str:
    """An exception in words."""
    return str(e) if isinstance(e, ValueError | OSError) and str(e) else repr(e)
