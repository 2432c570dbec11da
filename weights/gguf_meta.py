"""Open a GGUF file and take its metadata out key by key, so that nothing is overlooked."""

import pathlib

import gguf

_REQUIRED = object()


class Meta:
    """The metadata of one GGUF file; whatever is wrong with it is collected in `faults`.

    Attributes:
      path: the file.
      reader: gguf's reader, which maps the file into memory.
      values: every key and its value, as Python objects.
      arch: general.architecture.
      faults: what was found wrong so far; `check` raises if there is any.
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.faults: list[str] = []
        try:
            self.reader = gguf.GGUFReader(self.path)
            self.values = {key: field.contents() for key, field in self.reader.fields.items()}
        # The reader checks no length before it uses it: a damaged file can end in any of these.
        except (OSError, ValueError, LookupError, ArithmeticError, TypeError, MemoryError) as e:
            raise ValueError(
                f"gguf: expected a whole GGUF file, got {type(e).__name__}: {e} ({path})"
            ) from None
        self.arch = self.get("general.architecture", str)
        self.check()

    def get(self, key: str, kind: type, default=_REQUIRED):
        """The value of a key, which must be of type `kind`; a missing key needs a default."""
        value = self.values.get(key, default)
        if value is _REQUIRED:
            self.faults.append(f"{key}: expected {kind.__name__}, got nothing")
        elif value is not default and type(value) is not kind:
            self.faults.append(f"{key}: expected {kind.__name__}, got {_short(value)}")
        else:
            return value
        return None

    def only(self, key: str, *allowed):
        """An optional key of which only the listed values are implemented; returns its value."""
        value = self.values.get(key, allowed[0])
        if value not in allowed:
            expected = " or ".join(map(repr, allowed))
            self.faults.append(f"{key}: expected {expected}, got {_short(value)} (not implemented)")
        return value

    def check(self) -> None:
        """Raise one ValueError with all faults so far."""
        if self.faults:
            raise ValueError(f"gguf: {'; '.join(self.faults)} ({self.path})")


def _short(value) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
