"""`identify`: which rotary embedding a function computes."""

from collections.abc import Callable
from typing import Any

from rope_xp.arrays import checks
from rope_xp.errors import public
from rope_xp.identification.result import Identification
from rope_xp.types import Array

__all__ = ["Identification", "identify"]


@public("identify")
def identify(
    fn: Callable[[Any, Any], Any],
    head_dim: int,
    *,
    shape: str | None = None,
    like: Array | None = None,
    seq_len: int = 2**20 + 1,  # `search.LONGEST`, written out because documentation shows it
) -> Identification:
    """Find out which rotary embedding a function computes, by calling it.

    A rotary embedding is linear in `x`. Calls with unit vectors therefore give its matrix at a position, and the matrix
    gives the pairs of channels and their angles. Angles at the positions 1, 2, 4, 8, ... give the frequencies, without
    doubt about whole turns. The base and the scaling rule are those of the fewest digits that explain the frequencies.

    Parameters
    ----------
    fn : callable
        ``fn(x, positions)``, or ``fn(x)``, returns the rotated `x`, an array of the same shape and library. Positions
        are integers, "seq" or "batch seq". It is called a few dozen times. What it raises is reported.
    head_dim : int
        The number of channels of `x`, even.
    shape : str, optional
        The axes of `x`, such as ``"batch heads seq dim"``. By default these are tried: ``"seq dim"``, ``"seq heads
        dim"``, ``"heads seq dim"``, ``"batch heads seq dim"`` and ``"batch seq heads dim"``. State it to find out
        whether heads are rotated in place of positions.
    like : array, optional
        An array of the library, device and dtype for the calls. By default NumPy is tried first, then PyTorch and JAX
        if they are imported; float64 first, then float32.
    seq_len : int
        Positions below it are tested, in tokens. Shorter lengths follow if the function fails.

    Returns
    -------
    Identification
        A report. ``str`` of it says what was found, and why.

    Raises
    ------
    ValueError
        If `head_dim` is odd, `shape` does not name axes of `x`, or `seq_len` is less than 8.
    TypeError
        If `fn` cannot be called, or `like` is no floating-point array.

    Notes
    -----
    The tolerance follows from the dtype of the results, or from the precision of the sines and cosines if that is less.
    A table is taken as rounded to float32, float16 or bfloat16 if the lengths of the pairs are. The frequencies then
    follow from the angles at some hundred positions.

    YaRN with its ramp reversed, and YaRN or Llama 3's rule applied twice, are named in `reasons`. No value states them,
    so their frequencies are given as numbers. Linear and NTK scaling applied twice are the same rule with another
    factor, which the value states.

    References
    ----------
    Su et al., RoFormer (2021), arXiv:2104.09864, section 3.2.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_xp
    >>> def fn(x, positions):
    ...     angle = positions[:, None] * 500_000.0 ** (-np.arange(0, 8, 2) / 8)
    ...     one, other = x[:, :4], x[:, 4:]
    ...     cos, sin = np.cos(angle), np.sin(angle)
    ...     return np.concatenate((one * cos - other * sin, other * cos + one * sin), axis=-1)
    >>> found = rope_xp.identify(fn, 8)
    >>> found.rope
    RotaryEmbedding(head_dim=8, layout='half', base=500000.0)
    >>> found.precision, found.stateful, found.confidence
    ('exact', False, 1.0)
    """
    # Not needed to import rope_xp.
    from rope_xp.identification.probe import Probe
    from rope_xp.identification.search import identification_of

    seq_len = checks.count("seq_len", seq_len)
    return identification_of(Probe(fn, head_dim, shape=shape, like=like), seq_len)
