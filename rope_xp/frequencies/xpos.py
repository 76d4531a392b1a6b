"""XPos: a decay of attention scores with distance."""

from dataclasses import dataclass
from math import log

from rope_xp.arrays import checks
from rope_xp.errors import public, wrong_value


@dataclass(frozen=True, kw_only=True)
class XPos:
    """Extrapolatable position embedding: attention scores decay with the distance between query and key.

    The scale of pair j is ``zeta ** ((position - centre) / scale_base)``, with
    ``zeta = (2 j + gamma * rotary_dim) / ((1 + gamma) * rotary_dim)``. Queries are multiplied by it, and keys are
    divided by it. The centre is fixed, so that keys can be cached. Upstream implementations compute the centre from the
    length of the sequence.

    Parameters
    ----------
    scale_base : float
        The distance in tokens over which the score of a pair decays by the factor zeta. At least 1.
    centre : int
        The position, in tokens, at which queries and keys are not scaled. Attention scores do not depend on it, but
        queries and keys do. In float32 they overflow to infinity and NaN more than ``88 * scale_base / -ln(zeta)``
        tokens from the centre, by default 36,000. A centre in the middle of the sequence doubles the usable length.
    gamma : float
        Greater than 0. A greater value makes all decays slower.

    References
    ----------
    Sun et al., A Length-Extrapolatable Transformer (2022), arXiv:2212.10554, section 3.2. rotary-embedding-torch,
    `use_xpos`; flash-attention, `flash_attn/layers/rotary.py`, `scale_base`.

    Examples
    --------
    >>> [round(zeta, 3) for zeta in XPos().zeta(8)]
    [0.286, 0.464, 0.643, 0.821]
    """

    scale_base: float = 512.0
    centre: int = 0
    gamma: float = 0.4

    @public("XPos")
    def __post_init__(self) -> None:
        object.__setattr__(self, "scale_base", checks.at_least("scale_base", self.scale_base, 1.0))
        object.__setattr__(self, "gamma", checks.positive("gamma", self.gamma))
        checks.integer("centre", self.centre)
        if not -(2**31) <= self.centre < 2**31:
            raise wrong_value(f"centre must fit in int32; got {self.centre}")
        object.__setattr__(self, "centre", checks.plain(self.centre))

    def zeta(self, rotary_dim: int) -> tuple[float, ...]:
        """The decay of each pair over `scale_base` tokens."""
        denominator = (1.0 + self.gamma) * rotary_dim
        return tuple((2 * j + self.gamma * rotary_dim) / denominator for j in range(rotary_dim // 2))

    def rates(self, rotary_dim: int) -> tuple[float, ...]:
        """For each pair, how much the logarithm of a query's scale changes per token."""
        return tuple(log(zeta) / self.scale_base for zeta in self.zeta(rotary_dim))
