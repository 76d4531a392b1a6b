"""Scaling rules that follow from a factor alone."""

from dataclasses import dataclass
from math import exp, log
from typing import ClassVar

from rope_xp.arrays import checks
from rope_xp.errors import public, wrong_value
from rope_xp.frequencies.progressions import geometric
from rope_xp.frequencies.scaling import Scaling


@dataclass(frozen=True, kw_only=True)
class LinearScaling(Scaling):
    """Position interpolation: all frequencies are divided by one factor.

    Parameters
    ----------
    factor : float
        The divisor, at least 1.

    References
    ----------
    Chen et al., Extending Context Window via Positional Interpolation (2023), arXiv:2306.15595. transformers,
    `modeling_rope_utils.py`.

    Examples
    --------
    >>> LinearScaling(factor=4.0).frequencies(10_000.0, 4)
    (0.25, 0.0025)
    """

    rope_type: ClassVar[str] = "linear"
    is_standard: ClassVar[bool] = True

    factor: float

    def __post_init__(self) -> None:
        self._at_least(1.0, "factor")

    def frequencies(self, base: float, rotary_dim: int) -> tuple[float, ...]:
        return tuple(frequency / self.factor for frequency in geometric(base, rotary_dim))


@dataclass(frozen=True, kw_only=True)
class NTKScaling(Scaling):
    """NTK-aware scaling: a larger base, which divides the slowest frequency by `factor` and keeps the fastest.

    The base is ``base * factor ** (rotary_dim / (rotary_dim - 2))``. Hunyuan uses this rule; its config calls the
    factor `alpha`.

    Parameters
    ----------
    factor : float
        The divisor of the slowest frequency, at least 1.

    References
    ----------
    bloc97, NTK-Aware Scaled RoPE (2023), described in Peng et al., YaRN, arXiv:2309.00071, section 3.1.
    rotary-embedding-torch, `theta_rescale_factor`; transformers, `models/hunyuan_v1_dense`.

    Examples
    --------
    >>> fastest, slowest = NTKScaling(factor=10.0).frequencies(10_000.0, 4)
    >>> fastest, round(slowest, 6)
    (1.0, 0.001)
    """

    rope_type: ClassVar[str] = "ntk-aware"

    factor: float

    def __post_init__(self) -> None:
        self._at_least(1.0, "factor")

    @public()
    def frequencies(self, base: float, rotary_dim: int) -> tuple[float, ...]:
        return geometric(ntk_base(base, self.factor, rotary_dim), rotary_dim)


@dataclass(frozen=True, kw_only=True)
class MixedNTKScaling(Scaling):
    """NTK scaling that divides the frequency of pair j by ``exp(a * (j + 1) ** mixed_b)``.

    With ``a = ln(factor) / (rotary_dim / 2) ** mixed_b``, the slowest frequency is divided by `factor`. With
    ``mixed_b=1`` this is the "fixed" form: the base is multiplied by `factor`, and all frequencies are divided by
    ``factor ** (2 / rotary_dim)``.

    Parameters
    ----------
    factor : float
        The divisor of the slowest frequency, at least 1.
    mixed_b : float
        The exponent in the formula, greater than 0.

    References
    ----------
    Su Jianlin, Transformer upgrade road 11 (2023), kexue.fm/archives/9706. vLLM,
    `rotary_embedding/ntk_scaling_rope.py`.

    Examples
    --------
    >>> fast, slow = MixedNTKScaling(factor=4.0).frequencies(10_000.0, 4)
    >>> round(fast, 9), round(slow, 9)
    (0.5, 0.0025)
    """

    rope_type: ClassVar[str] = "ntk"

    factor: float
    mixed_b: float = 1.0

    def __post_init__(self) -> None:
        self._at_least(1.0, "factor")
        self._check(checks.positive, "mixed_b")

    def frequencies(self, base: float, rotary_dim: int) -> tuple[float, ...]:
        a = log(self.factor) / (rotary_dim / 2) ** self.mixed_b
        return tuple(w * exp(-a * (j + 1) ** self.mixed_b) for j, w in enumerate(geometric(base, rotary_dim)))


@dataclass(frozen=True, kw_only=True)
class ProportionalScaling(Scaling):
    """Proportional RoPE: the progression spans the whole head, but only the fastest pairs are rotated.

    The other pairs have frequency 0. A smaller `rotary_dim` is not the same: its progression spans only the rotated
    channels.

    Parameters
    ----------
    partial_rotary_factor : float
        The fraction of pairs that are rotated, greater than 0 and at most 1.
    factor : float
        A divisor of all frequencies, at least 1.

    References
    ----------
    Barbero et al., Round and Round We Go (2024), arXiv:2410.06205, section 6. transformers, `modeling_rope_utils.py`;
    google-deepmind/gemma, `gm/math/_positional_embeddings.py`, `rope_proportion`.

    Examples
    --------
    >>> ProportionalScaling(partial_rotary_factor=0.5).frequencies(10_000.0, 8)
    (1.0, 0.1, 0.0, 0.0)
    """

    rope_type: ClassVar[str] = "proportional"
    is_standard: ClassVar[bool] = True

    partial_rotary_factor: float = 1.0
    factor: float = 1.0

    @public()
    def __post_init__(self) -> None:
        self._set_fields(partial_rotary_factor=checks.fraction("partial_rotary_factor", self.partial_rotary_factor))
        self._at_least(1.0, "factor")

    def frequencies(self, base: float, rotary_dim: int) -> tuple[float, ...]:
        rotated = int(self.partial_rotary_factor * rotary_dim // 2)
        return tuple(w / self.factor if j < rotated else 0.0 for j, w in enumerate(geometric(base, rotary_dim)))


def ntk_base(base: float, factor: float, rotary_dim: int) -> float:
    if rotary_dim < 4:
        raise wrong_value(f"rotary_dim must be at least 4; got {rotary_dim}")
    return base * factor ** (rotary_dim / (rotary_dim - 2))
