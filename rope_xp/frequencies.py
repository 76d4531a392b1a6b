"""Frequencies: how fast each pair of channels turns, in radians per position. Python floats in, Python floats out."""

from decimal import Decimal, localcontext

from rope_xp import backends


@backends.host_constant
def geometric(base: float, rotary_dim: int) -> tuple[float, ...]:
    """The inverse frequencies ``base ** (-2 j / rotary_dim)`` for ``j = 0, ..., rotary_dim / 2 - 1``.

    Each is the float64 nearest to the exact value. A power in floating point is off by some units in the last place,
    which at position ``2**31`` is an angle that shows, and differs between mathematics libraries.

    Parameters
    ----------
    base : float
        Greater than 0: the ratio of the longest wavelength to the shortest, had the sequence one more member.
    rotary_dim : int
        Channels that turn, twice the number of pairs.

    Returns
    -------
    tuple of float
        Radians per position, ``rotary_dim / 2`` of them, the fastest first.

    References
    ----------
    Vaswani et al., Attention Is All You Need (2017), arXiv:1706.03762, section 3.5; Su et al., RoFormer (2021),
    arXiv:2104.09864, section 3.2.2.

    Examples
    --------
    >>> geometric(10_000.0, 8)
    (1.0, 0.1, 0.01, 0.001)
    """
    with localcontext() as context:
        context.prec = 40
        ratio = (-2 * Decimal(base).ln() / rotary_dim).exp()
        return tuple(float(ratio**j) for j in range(rotary_dim // 2))
