"""The random numbers of `jax.random` in numpy: Threefry-2x32 of Salmon et al. (2011)."""

import numpy as np

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_TINY = float(np.finfo(np.float32).tiny)


def threefry(key, high, low) -> tuple[np.ndarray, np.ndarray]:
    """Twenty rounds on pairs of words.

    Args:
      key: two uint32.
      high, low: uint32 arrays of one shape.
    """
    words = (*key, key[0] ^ key[1] ^ _PARITY)
    a, b = high + words[0], low + words[1]
    for block in range(5):
        for rotation in _ROTATIONS[block % 2]:
            a = a + b
            b = (b << np.uint32(rotation)) | (b >> np.uint32(32 - rotation))
            b = a ^ b
        a = a + words[(block + 1) % 3]
        b = b + words[(block + 2) % 3] + np.uint32(block + 1)
    return a, b


def gumbel(seed, number: int, size: int) -> np.ndarray:
    """``jax.random.gumbel(fold_in(key(seed), number), (size,))``, logarithms in float64."""
    zero = np.zeros(1, np.uint32)
    with np.errstate(over="ignore"):  # integers wrap
        folded = threefry((np.uint32(0), np.uint32(seed)), zero, zero + np.uint32(number))
        count = np.arange(size, dtype=np.uint32)
        a, b = threefry((folded[0][0], folded[1][0]), np.zeros_like(count), count)
    # The upper 23 bits as the mantissa of a number from 1 to 2, less 1; zero becomes the least.
    mantissa = ((a ^ b) >> np.uint32(9)) | np.uint32(0x3F800000)
    uniform = mantissa.view(np.float32).astype(np.float64) - 1
    return -np.log(-np.log(np.maximum(uniform + _TINY, _TINY)))
