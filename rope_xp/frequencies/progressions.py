"""Progressions of frequencies: one frequency for each pair of channels, in radians per position."""

from collections.abc import Sequence
from decimal import Decimal, localcontext
from math import cos, pi, sin
from typing import Any

from rope_xp.arrays import checks, libraries
from rope_xp.errors import public, wrong_type, wrong_value


@libraries.host_constant
@public("geometric")
def geometric(base: float, rotary_dim: int) -> tuple[float, ...]:
    """The inverse frequencies ``base ** (-2 j / rotary_dim)`` for ``j = 0, ..., rotary_dim / 2 - 1``.

    Each frequency is the float64 nearest to the exact value. A floating-point power has errors in the last few bits,
    which differ between mathematics libraries. At position ``2**31`` such an error is visible in the angle.

    Parameters
    ----------
    base : float
        The wavelength of pair j is ``2 pi * base ** (2 j / rotary_dim)`` tokens. Greater than 0.
    rotary_dim : int
        The number of rotated channels, twice the number of pairs. An odd number is rounded up to whole pairs.

    Returns
    -------
    tuple of float
        ``rotary_dim / 2`` frequencies in radians per position. The fastest is first.

    Raises
    ------
    ValueError
        If `base` is not positive and finite, or `rotary_dim` is less than 1.

    References
    ----------
    Vaswani et al., Attention Is All You Need (2017), arXiv:1706.03762, section 3.5; Su et al., RoFormer (2021),
    arXiv:2104.09864, section 3.2.2.

    Examples
    --------
    >>> geometric(10_000.0, 8)
    (1.0, 0.1, 0.01, 0.001)
    """
    base = checks.positive("base", base)
    rotary_dim = checks.count("rotary_dim", rotary_dim, 1)
    with localcontext() as context:
        context.prec = 40
        ratio = (-2 * Decimal(base).ln() / rotary_dim).exp()
        return tuple(float(ratio**j) for j in range((rotary_dim + 1) // 2))


@public("evenly_spaced")
def evenly_spaced(first: float, last: float, pairs: int) -> tuple[float, ...]:
    """Frequencies from `first` to `last`, both included, with equal differences.

    For pixel coordinates between -1 and 1, the frequencies are ``evenly_spaced(pi, pi * max_freq / 2, pairs)``.

    Parameters
    ----------
    first, last : float
        Radians per position.
    pairs : int
        The number of frequencies.

    Returns
    -------
    tuple of float
        Radians per position.

    Raises
    ------
    ValueError
        If a frequency is not finite, or `pairs` is less than 1.

    References
    ----------
    Jaegle et al., Perceiver (2021), arXiv:2103.03206, section 3.2. rotary-embedding-torch, `freqs_for="pixel"`; timm,
    `timm/layers/pos_embed_sincos.py`, `pixel_freq_bands`.

    Examples
    --------
    >>> evenly_spaced(1.0, 3.0, 5)
    (1.0, 1.5, 2.0, 2.5, 3.0)
    """
    first, last, pairs = _checked_range(first, last, pairs)
    steps = [step / max(pairs - 1, 1) for step in range(pairs)]
    return tuple(first * (1.0 - step) + last * step for step in steps)


@public("log_spaced")
def log_spaced(first: float, last: float, pairs: int) -> tuple[float, ...]:
    """Frequencies from `first` to `last`, both included, with equal ratios.

    Parameters
    ----------
    first, last : float
        Radians per position, greater than 0.
    pairs : int
        The number of frequencies.

    Returns
    -------
    tuple of float
        Radians per position.

    Raises
    ------
    ValueError
        If a frequency is not finite and positive, or `pairs` is less than 1.

    References
    ----------
    Sun et al., RetNet (2023), arXiv:2307.08621: ``log_spaced(1, 1e-4, pairs)``. Siméoni et al., DINOv3 (2025),
    arXiv:2508.10104: ``log_spaced(2 * pi / min_period, 2 * pi / max_period, pairs)``. diffusers,
    `transformer_ltx.py`: ``log_spaced(pi / 2, 10_000 * pi / 2, pairs)``.

    Examples
    --------
    >>> log_spaced(1.0, 1e-4, 5)
    (1.0, 0.1, 0.01, 0.001, 0.0001)
    """
    first, last, pairs = _checked_range(first, last, pairs)
    first, last = checks.positive("first", first), checks.positive("last", last)
    with localcontext() as context:
        context.prec = 40
        start, ratio = Decimal(first), (Decimal(last) / Decimal(first)).ln()
        return tuple(float(start * (ratio * step / max(pairs - 1, 1)).exp()) for step in range(pairs))


@public("mixed")
def mixed(angles: Sequence[float], rotary_dim: int, base: float = 10.0) -> tuple[Any, ...]:
    """Initial values of learned frequencies for two position axes, with separate frequencies for each head.

    In each head, half of the pairs follow one direction in the plane, and the other half follow the perpendicular
    direction. To train the frequencies, convert the result to an array and pass it to `RotaryEmbedding` as `inv_freq`.

    Parameters
    ----------
    angles : list or tuple of float
        The direction of each head, in radians. Draw them at random between 0 and 2 pi.
    rotary_dim : int
        The number of rotated channels, a multiple of 4.
    base : float
        Base of the geometric progression along one direction. At least 1.

    Returns
    -------
    tuple, "2 heads pairs"
        Radians per position along x and along y.

    Raises
    ------
    ValueError
        If `rotary_dim` is not a multiple of 4, or `base` is less than 1.
    TypeError
        If `angles` is not a list or tuple.

    References
    ----------
    Heo et al., Rotary Position Embedding for Vision Transformer (2024), arXiv:2403.13298, section 3.3. timm,
    `timm/layers/pos_embed_sincos.py`, `init_random_2d_freqs`.

    Examples
    --------
    >>> (along_x, along_y) = mixed([0.0], 8)
    >>> [round(abs(frequency), 3) for frequency in along_x[0]], [round(frequency, 3) for frequency in along_y[0]]
    ([1.0, 0.316, 0.0, 0.0], [0.0, 0.0, 1.0, 0.316])
    """
    rotary_dim = checks.even_size("rotary_dim", rotary_dim)
    if rotary_dim % 4:
        raise wrong_value(f"rotary_dim must be a multiple of 4; got {rotary_dim}")
    if not isinstance(angles, (list, tuple)) or not angles:
        raise wrong_type(f"angles must be a list or tuple, one for each head; got {angles!r}")
    angles = [checks.finite("every angle", angle) for angle in angles]
    progression = geometric(checks.at_least("base", base, 1.0), rotary_dim // 2)
    directions = [(angle, angle + pi / 2) for angle in angles]
    along_x = tuple(tuple(w * cos(angle) for angle in head for w in progression) for head in directions)
    along_y = tuple(tuple(w * sin(angle) for angle in head for w in progression) for head in directions)
    return along_x, along_y


def _checked_range(first: float, last: float, pairs: int) -> tuple[float, float, int]:
    return checks.finite("first", first), checks.finite("last", last), checks.count("pairs", pairs, 1)
