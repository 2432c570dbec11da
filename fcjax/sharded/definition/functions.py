"""The maths of the operators in numpy and float64, for the blocks of one node.

It shares no code with `fcjax.model.functions`: an error there is not repeated here. Padding that is
zero stays zero in each of them.
"""

import numpy as np


def rms_norm(x_BTD, squares_BT1, gain_D, inverse: float, eps: float) -> np.ndarray:
    """x / sqrt(mean of squares + eps) times the gain.

    Args:
      squares_BT1: the sum of squares of the complete rows.
      inverse: one over the number of their coordinates.
    """
    return x_BTD * (squares_BT1 * inverse + eps) ** -0.5 * gain_D


def project(x, w, summed: int = 1) -> np.ndarray:
    """x[.., M] . w[M, ..] -> [.., ..]; M may be `summed` axes."""
    return np.tensordot(x, w, summed)


def rope(x_BTKGH, pos_BT, frequencies_h) -> np.ndarray:
    """Coordinates h and h + H/2 are a complex number, turned by position times frequency."""
    real, imaginary = np.split(x_BTKGH, 2, axis=-1)
    turn = np.exp(1j * pos_BT[..., None] * frequencies_h)[:, :, None, None]
    turned = (real + 1j * imaginary) * turn
    return np.concatenate([turned.real, turned.imag], axis=-1)


def head_norm(x_BTKGH, gain_H, inverse: float, eps: float) -> np.ndarray:
    """RMSNorm of each head by itself."""
    squares = (x_BTKGH**2).sum(-1, keepdims=True)
    return rms_norm(x_BTKGH, squares, gain_H, inverse, eps)


def write_cache(old_BKSH, new_BTKH, pos_BT) -> tuple[np.ndarray, np.ndarray]:
    """The cache with token t of row b in slot pos[b, t], and where that is: bool [B, K, S, H]."""
    cache, written = old_BKSH.copy(), np.zeros(old_BKSH.shape, bool)
    for (b, t), slot in np.ndenumerate(pos_BT):
        cache[b, :, slot] = new_BTKH[b, t]
        written[b, :, slot] = True
    return cache, written


def attend(q_BTKGH, k_BKSH, v_BKSH, pos_BT, scale: float) -> np.ndarray:
    """softmax(q . k scale) . v over the slots up to each token's own."""
    out = np.empty_like(q_BTKGH)
    for (b, t), slot in np.ndenumerate(pos_BT):
        for k in range(k_BKSH.shape[1]):
            keys, values = k_BKSH[b, k, : slot + 1], v_BKSH[b, k, : slot + 1]
            scores_GS = q_BTKGH[b, t, k] @ keys.T * scale
            weights_GS = np.exp(scores_GS - scores_GS.max(-1, keepdims=True))
            out[b, t, k] = weights_GS @ values / weights_GS.sum(-1, keepdims=True)
    return out


def swiglu(gate_up_BT2F) -> np.ndarray:
    """gate * sigmoid(gate) * up."""
    gate, up = gate_up_BT2F[:, :, 0], gate_up_BT2F[:, :, 1]
    return gate * up / (1 + np.exp(-gate))
