"""Which arrays the host reads while a pass runs.

On CPU a copy to the host leaves no event that could be relied on, and no transfer guard refuses it:
a node's buffer lies in the host's memory, and NumPy looks at it where it is. But a value that lies
on several devices is one Python object, and there are few doors from it to its bytes or to its
parts. While a pass runs, each of them notes whose bytes were asked for.

What is not seen: a buffer that lies on one device and was taken out of its array before the pass
(by buffer protocol NumPy reads it without asking), a part that somebody finds among the garbage
collector's objects, an address that was asked for earlier, code that is no Python, and code that
puts the doors back as they were.
"""

import collections
import contextlib
import math

import jax

# Attributes of an array through which its bytes, or its parts on single devices, are reached.
_DOORS = """
    __array__ _value copy_to_host_async __dlpack__ unsafe_buffer_pointer addressable_shards
    addressable_data global_shards _arrays _fully_replicated_shard
    _single_device_array_to_np_array_did_copy _copy_single_device_array_to_host_async
    """.split()
PUBLIC, OBSERVATION, UNDECLARED = "public", "observation", "undeclared"


def is_public(dtype: str, shape, small: int) -> bool:
    """Whether an array of this type and shape can hold token ids, positions or a seed only.

    Args:
      dtype: its name.
      shape: of the array.
      small: the number of tokens in a pass.
    """
    is_integer = jax.numpy.issubdtype(jax.numpy.dtype(dtype), jax.numpy.integer)
    return is_integer and math.prod(shape) <= small


class HostReads:
    """Notes every array that is read, or taken apart, inside `with`.

    Attributes:
      seen: how many doors were passed, by (as what, dtype, shape): `PUBLIC` for token ids and
        positions, `OBSERVATION` inside `declared`, else `UNDECLARED`.
    """

    def __init__(self, kind: type, small: int):
        """
        Args:
          kind: the class of arrays.
          small: the number of tokens in a pass: no more integers than that are public.
        """
        self._kind, self._small = kind, small
        self._doors = {n: vars(kind)[n] for n in _DOORS if n in vars(kind)}
        self._declared = False
        self.seen: collections.Counter = collections.Counter()

    def __enter__(self) -> "HostReads":
        self.seen = collections.Counter()
        for name, door in self._doors.items():
            setattr(self._kind, name, self._watched(door))
        return self

    def __exit__(self, *_) -> None:
        for name, door in self._doors.items():
            setattr(self._kind, name, door)

    @contextlib.contextmanager
    def declared(self):
        """What is read inside is an observation: the recorder's own look at the values."""
        before, self._declared = self._declared, True
        try:
            yield
        finally:
            self._declared = before

    def rows(self) -> list[dict]:
        """What was read, for the record."""
        return [
            {"as": kind, "dtype": dtype, "shape": list(shape), "times": times}
            for (kind, dtype, shape), times in sorted(self.seen.items())
        ]

    def _note(self, array) -> None:
        dtype = jax.numpy.dtype(array.dtype).name
        kind = OBSERVATION if self._declared else UNDECLARED
        if is_public(dtype, array.shape, self._small):
            kind = PUBLIC
        self.seen[kind, dtype, tuple(array.shape)] += 1

    def _watched(self, door):
        """The same attribute, which notes the array before it gives what was asked for."""
        if isinstance(door, property):

            def get(array):
                self._note(array)
                return door.__get__(array)

            return property(get, door.fset)

        def method(array, *arguments, **options):
            self._note(array)
            return door.__get__(array)(*arguments, **options)

        return method
