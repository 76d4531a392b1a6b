"""Frequencies: the angle by which each pair of channels is rotated, in radians per position.

Everything here takes and returns Python floats. A progression (`geometric` for text, `evenly_spaced` and `log_spaced`
for coordinates) gives each pair its frequency. A scaling rule is a frozen value that changes a geometric progression,
so that a model handles longer sequences than it was trained on. Its fields have the names of the keys of a config.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from decimal import Decimal, localcontext
from math import ceil, cos, exp, floor, log, pi, sin, sqrt
from typing import Any, ClassVar

from rope_xp._core import backends, checks


@backends.host_constant
def geometric(base: float, rotary_dim: int) -> tuple[float, ...]:
    """The inverse frequencies ``base ** (-2 j / rotary_dim)`` for ``j = 0, ..., rotary_dim / 2 - 1``.

    Each frequency is the float64 nearest to the exact value. A power in floating point has an error of a few units in
    the last place, which differs between mathematics libraries. At position ``2**31`` this error is visible in the
    angle.

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

    References
    ----------
    Vaswani et al., Attention Is All You Need (2017), arXiv:1706.03762, section 3.5; Su et al., RoFormer (2021),
    arXiv:2104.09864, section 3.2.2.

    Raises
    ------
    ValueError
        If `base` is not positive and finite, or `rotary_dim` less than 1.

    Examples
    --------
    >>> geometric(10_000.0, 8)
    (1.0, 0.1, 0.01, 0.001)
    """
    who = "geometric"
    base = checks.positive(who, "base", base)
    if checks.count(who, "rotary_dim", rotary_dim) < 1:
        raise ValueError(f"{who}: rotary_dim must be at least 1; got {rotary_dim}")
    with localcontext() as context:
        context.prec = 40
        ratio = (-2 * Decimal(base).ln() / rotary_dim).exp()
        return tuple(float(ratio**j) for j in range((rotary_dim + 1) // 2))


def evenly_spaced(first: float, last: float, pairs: int) -> tuple[float, ...]:
    """Frequencies from `first` to `last`, both included, with equal differences.

    ``evenly_spaced(pi, pi * max_freq / 2, pairs)`` are the frequencies for pixel coordinates between -1 and 1.

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
    first, last, pairs = _check_range("evenly_spaced", first, last, pairs)
    steps = [step / max(pairs - 1, 1) for step in range(pairs)]
    return tuple(first * (1.0 - step) + last * step for step in steps)


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
    who = "log_spaced"
    first, last, pairs = _check_range(who, first, last, pairs)
    first, last = checks.positive(who, "first", first), checks.positive(who, "last", last)
    with localcontext() as context:
        context.prec = 40
        start, ratio = Decimal(first), (Decimal(last) / Decimal(first)).ln()
        return tuple(float(start * (ratio * step / max(pairs - 1, 1)).exp()) for step in range(pairs))


def mixed(angles: Sequence[float], rotary_dim: int, base: float = 10.0) -> tuple[Any, ...]:
    """Initial values of learned frequencies for two position axes, with separate frequencies for each head.

    In each head, half of the pairs follow one direction of the plane, and half follow the perpendicular direction. To
    train the frequencies, convert the result to an array and pass it to `RotaryEmbedding` as `inv_freq`.

    Parameters
    ----------
    angles : list or tuple of float
        The direction of each head in radians. The caller draws them between 0 and 2 pi.
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
    who = "mixed"
    rotary_dim = checks.even_size(who, "rotary_dim", rotary_dim)
    if rotary_dim % 4:
        raise ValueError(f"{who}: rotary_dim must be a multiple of 4; got {rotary_dim}")
    if not isinstance(angles, (list, tuple)) or not angles:
        raise TypeError(f"{who}: angles must be a list or tuple, one for each head; got {angles!r}")
    angles = [checks.finite(who, "every angle", angle) for angle in angles]
    progression = geometric(checks.at_least(who, "base", base, 1.0), rotary_dim // 2)
    directions = [(angle, angle + pi / 2) for angle in angles]
    along_x = tuple(tuple(w * cos(angle) for angle in head for w in progression) for head in directions)
    along_y = tuple(tuple(w * sin(angle) for angle in head for w in progression) for head in directions)
    return along_x, along_y


def _check_range(who: str, first: Any, last: Any, pairs: Any) -> tuple[float, float, int]:
    first, last = checks.finite(who, "first", first), checks.finite(who, "last", last)
    if checks.count(who, "pairs", pairs) < 1:
        raise ValueError(f"{who}: pairs must be at least 1; got {pairs}")
    return first, last, pairs


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """A scaling rule: it gives the frequencies and the attention factor. This base class changes nothing.

    `rope_type` is the rule's name in a config. The constructors of all rules raise ValueError for a value out of range
    and TypeError for a value of the wrong type.

    Examples
    --------
    >>> Scaling().frequencies(10_000.0, 4), Scaling().resolved_attention_factor
    ((1.0, 0.01), 1.0)
    """

    rope_type: ClassVar[str] = "default"

    def frequencies(self, base: float, rotary_dim: int) -> tuple[float, ...]:
        """The scaled frequencies of ``rotary_dim / 2`` pairs, in radians per position."""
        return geometric(base, rotary_dim)

    @property
    def resolved_attention_factor(self) -> float:
        """The attention factor: the number by which sines and cosines are multiplied."""
        return 1.0

    @property
    def softmax_scale(self) -> float:
        """The number by which the model must multiply the scale of its softmax, in addition to the attention factor."""
        return 1.0

    def describe(self) -> str:
        """The rule's name and the fields that are not defaults. For a list, the number of its elements is shown."""
        values = {each.name: (getattr(self, each.name), each.default) for each in fields(self)}
        shown = [
            f"{name}={f'({len(value)} numbers)' if isinstance(value, tuple) else value}"
            for name, (value, default) in values.items()
            if value != default
        ]
        return f"{self.rope_type}, {', '.join(shown)}"

    def _resolve(self, **values: Any) -> None:
        """Set fields to their checked values."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _at_least(self, least: float, *names: str) -> None:
        """Check fields that must be None or numbers of at least `least`."""
        for name in names:
            if getattr(self, name) is not None:
                self._resolve(**{name: checks.at_least(type(self).__name__, name, getattr(self, name), least)})

    def _at_most(self, most: float, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and value > most:
                raise ValueError(f"{type(self).__name__}: {name} must be at most {most:g}; got {value}")

    def _positive(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                self._resolve(**{name: checks.positive(type(self).__name__, name, getattr(self, name))})

    def _lengths(self, *names: str) -> None:
        """Check fields that must be None or lengths in tokens."""
        who = type(self).__name__
        for name in names:
            value = getattr(self, name)
            if value is not None:
                self._resolve(**{name: checks.count(who, name, value)})
                if not 1 <= value < 2**53:
                    raise ValueError(f"{who}: {name} must be at least 1 and below 2**53; got {value}")


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

    factor: float

    def __post_init__(self) -> None:
        self._at_least(1.0, "factor")

    def frequencies(self, base: float, rotary_dim: int) -> tuple[float, ...]:
        return tuple(frequency / self.factor for frequency in geometric(base, rotary_dim))


@dataclass(frozen=True, kw_only=True)
class NTKScaling(Scaling):
    """NTK-aware scaling: a larger base. It divides the slowest frequency by `factor` and keeps the fastest.

    The base is ``base * factor ** (rotary_dim / (rotary_dim - 2))``. Hunyuan's rule is this one, with the `alpha` of
    its config as `factor`.

    Parameters
    ----------
    factor : float
        At least 1.

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

    def frequencies(self, base: float, rotary_dim: int) -> tuple[float, ...]:
        return geometric(_rescaled(type(self).__name__, base, self.factor, rotary_dim), rotary_dim)


@dataclass(frozen=True, kw_only=True)
class MixedNTKScaling(Scaling):
    """NTK scaling that divides the frequency of pair j by ``exp(a * (j + 1) ** mixed_b)``.

    With ``a = ln(factor) / (rotary_dim / 2) ** mixed_b``, the slowest frequency is divided by `factor`. With
    ``mixed_b=1`` this is the "fixed" form: the base is multiplied by `factor`, and all frequencies are divided by
    ``factor ** (2 / rotary_dim)``.

    Parameters
    ----------
    factor : float
        At least 1.
    mixed_b : float
        Greater than 0.

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
        self._positive("mixed_b")

    def frequencies(self, base: float, rotary_dim: int) -> tuple[float, ...]:
        a = log(self.factor) / (rotary_dim / 2) ** self.mixed_b
        return tuple(w * exp(-a * (j + 1) ** self.mixed_b) for j, w in enumerate(geometric(base, rotary_dim)))


@dataclass(frozen=True, kw_only=True)
class DynamicNTKScaling(Scaling):
    """NTK-aware scaling that grows with the length of the sequence.

    The caller states the length as `seq_len`; it is never derived from positions. If it is greater than
    `max_position_embeddings`, the base is
    ``base * (factor * seq_len / max_position_embeddings - (factor - 1)) ** (rotary_dim / (rotary_dim - 2))``. Otherwise
    nothing is scaled. vLLM uses the fixed length ``seq_len = factor * max_position_embeddings``.

    Parameters
    ----------
    factor : float
        At least 1.
    max_position_embeddings : int
        The length in tokens up to which nothing is scaled.
    seq_len : int, optional
        The length of the sequence in tokens. None stands for a length of at most `max_position_embeddings`.

    References
    ----------
    emozilla, Dynamically Scaled RoPE (2023), described in Peng et al., YaRN, arXiv:2309.00071, section 3.3.
    transformers, `modeling_rope_utils.py`.

    Examples
    --------
    >>> DynamicNTKScaling(factor=2.0, max_position_embeddings=1024).frequencies(10_000.0, 4)
    (1.0, 0.01)
    >>> fast, slow = DynamicNTKScaling(factor=2.0, max_position_embeddings=1024, seq_len=2048).frequencies(10_000.0, 4)
    >>> round(slow, 9)
    0.003333333
    """

    rope_type: ClassVar[str] = "dynamic"

    factor: float
    max_position_embeddings: int
    seq_len: int | None = None

    def __post_init__(self) -> None:
        self._at_least(1.0, "factor")
        self._lengths("max_position_embeddings", "seq_len")

    def frequencies(self, base: float, rotary_dim: int) -> tuple[float, ...]:
        length = max(self.seq_len or 0, self.max_position_embeddings)
        factor = self.factor * length / self.max_position_embeddings - (self.factor - 1)
        return geometric(_rescaled(type(self).__name__, base, factor, rotary_dim), rotary_dim)


@dataclass(frozen=True, kw_only=True)
class YarnScaling(Scaling):
    """YaRN: low frequencies are divided by `factor`, high ones are kept, with a linear ramp between them.

    Parameters
    ----------
    factor : float
        The divisor of low frequencies, at least 1.
    original_max_position_embeddings : int
        The sequence length of training in tokens, before scaling.
    beta_fast, beta_slow : float
        Revolutions over the original length. A pair with more than `beta_fast` revolutions keeps its frequency. The
        frequency of a pair with fewer than `beta_slow` is divided by `factor`. The ramp between them ends at pair
        ``rotary_dim - 1`` at the latest, as in published models.
    attention_factor : float, optional
        The attention factor. By default it is ``0.1 * ln(factor) + 1``, or ``g(mscale) / g(mscale_all_dim)`` if both
        are given, where ``g(k) = 0.1 * k * ln(factor) + 1``.
    mscale, mscale_all_dim : float, optional
        DeepSeek's two numbers. If only one is given, it does not change the attention factor, as in transformers.
        (`from_config` resolves the rule "deepseek_yarn", in which one number counts, to an `attention_factor`.)
        `softmax_scale` follows from `mscale_all_dim`.
    truncate : bool
        Whether the ends of the ramp are rounded to whole pairs.

    References
    ----------
    Peng et al., YaRN (2023), arXiv:2309.00071, sections 3.2 and 3.4. transformers, `modeling_rope_utils.py`; DeepSeek,
    `modeling_deepseek.py`, `yarn_get_mscale`.

    Examples
    --------
    >>> yarn = YarnScaling(factor=4.0, original_max_position_embeddings=32_768)
    >>> [round(frequency, 5) for frequency in yarn.frequencies(10_000.0, 8)], round(yarn.resolved_attention_factor, 4)
    ([1.0, 0.1, 0.01, 0.00063], 1.1386)
    """

    rope_type: ClassVar[str] = "yarn"

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        who = "YarnScaling"
        self._at_least(1.0, "factor")
        self._lengths("original_max_position_embeddings")
        self._positive("attention_factor")
        self._at_least(2.0**-53, "beta_fast", "beta_slow")
        self._at_least(0.0, "mscale", "mscale_all_dim")
        self._at_most(2.0**53, "beta_fast", "beta_slow", "mscale", "mscale_all_dim")  # so that all results are finite
        self._resolve(truncate=checks.boolean(who, "truncate", self.truncate))
        if self.beta_fast < self.beta_slow:
            raise ValueError(f"{who}: beta_fast must be at least beta_slow={self.beta_slow}; got {self.beta_fast}")

    def frequencies(self, base: float, rotary_dim: int) -> tuple[float, ...]:
        if base <= 1.0:
            raise ValueError(f"YarnScaling: base must be greater than 1; got {base}")

        def pair_with(revolutions: float) -> float:
            return rotary_dim * log(self.original_max_position_embeddings / (revolutions * 2 * pi)) / (2 * log(base))

        first, last = pair_with(self.beta_fast), pair_with(self.beta_slow)
        if self.truncate:
            first, last = floor(first), ceil(last)
        # The limit is rotary_dim - 1 and not the number of pairs - 1: published models were trained so.
        first, last = max(first, 0), min(last, rotary_dim - 1)
        if first == last:
            last += 0.001
        unscaled = geometric(base, rotary_dim)
        ramp = [min(max((j - first) / (last - first), 0.0), 1.0) for j in range(len(unscaled))]
        return tuple(w / self.factor * share + w * (1.0 - share) for w, share in zip(unscaled, ramp))

    @property
    def resolved_attention_factor(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self.get_mscale(self.mscale) / self.get_mscale(self.mscale_all_dim)
        return self.get_mscale(1.0)

    @property
    def softmax_scale(self) -> float:
        """DeepSeek's multiplier of the softmax scale, in addition to the attention factor."""
        return self.get_mscale(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    def get_mscale(self, mscale: float) -> float:
        """``0.1 * mscale * ln(factor) + 1``, DeepSeek's `yarn_get_mscale`."""
        return 0.1 * mscale * log(self.factor) + 1.0


@dataclass(frozen=True, kw_only=True)
class LongRopeScaling(Scaling):
    """LongRoPE: each frequency has its own divisor, from one list for short sequences and one for long sequences.

    The caller states the length as `seq_len`, which selects the list. It is never derived from positions.

    Parameters
    ----------
    short_factor, long_factor : list or tuple of float
        One divisor for each pair, greater than 0.
    original_max_position_embeddings : int
        The greatest length of a short sequence, in tokens.
    factor : float, optional
        The ratio of the extended length to the original length. The attention factor is
        ``sqrt(1 + ln(factor) / ln(original_max_position_embeddings))``. Required unless the attention factor is given.
    attention_factor : float, optional
        The attention factor, which replaces the formula.
    short_mscale, long_mscale : float, optional
        The attention factors for short and for long sequences (Phi-3.5-MoE).
    seq_len : int, optional
        The length of the sequence in tokens. None stands for a short sequence.

    References
    ----------
    Ding et al., LongRoPE (2024), arXiv:2402.13753. transformers, `modeling_rope_utils.py` and `models/phimoe`.

    Examples
    --------
    >>> from dataclasses import replace
    >>> short = LongRopeScaling(
    ...     short_factor=(1.0, 1.0), long_factor=(1.0, 8.0), original_max_position_embeddings=4096, factor=32.0
    ... )
    >>> short.frequencies(10_000.0, 4), replace(short, seq_len=4097).frequencies(10_000.0, 4)
    ((1.0, 0.01), (1.0, 0.00125))
    """

    rope_type: ClassVar[str] = "longrope"

    short_factor: Sequence[float]
    long_factor: Sequence[float]
    original_max_position_embeddings: int
    factor: float | None = None
    attention_factor: float | None = None
    short_mscale: float | None = None
    long_mscale: float | None = None
    seq_len: int | None = None

    def __post_init__(self) -> None:
        who = "LongRopeScaling"
        for name in ("short_factor", "long_factor"):
            values = getattr(self, name)
            if not isinstance(values, (list, tuple)) or not values:
                raise TypeError(f"{who}: {name} must be a list or tuple of numbers; got {values!r}")
            self._resolve(**{name: tuple(checks.positive(who, f"every {name}", value) for value in values)})
        self._lengths("original_max_position_embeddings", "seq_len")
        self._at_least(1.0, "factor")
        self._positive("attention_factor", "short_mscale", "long_mscale")
        if (self.short_mscale is None) != (self.long_mscale is None):
            raise ValueError(
                f"{who}: short_mscale and long_mscale must be given together; "
                f"got {self.short_mscale} and {self.long_mscale}"
            )
        if self.factor is None and self.attention_factor is None and self.short_mscale is None:
            raise ValueError(
                f"{who}: factor, attention_factor, or short_mscale and long_mscale must be given; got none"
            )
        if self.original_max_position_embeddings < 2:
            raise ValueError(f"{who}: original_max_position_embeddings must be at least 2; got 1")

    def describe(self) -> str:
        return f"{super().describe()}: {'long' if self.is_long else 'short'}_factor is used"

    @property
    def is_long(self) -> bool:
        """Whether `seq_len` is greater than the original length."""
        return self.seq_len is not None and self.seq_len > self.original_max_position_embeddings

    def frequencies(self, base: float, rotary_dim: int) -> tuple[float, ...]:
        unscaled = geometric(base, rotary_dim)
        for name in ("short_factor", "long_factor"):
            if len(getattr(self, name)) != len(unscaled):
                raise ValueError(
                    f"LongRopeScaling: {name} must have one number for each of {len(unscaled)} pairs; "
                    f"got {len(getattr(self, name))}"
                )
        divisors = self.long_factor if self.is_long else self.short_factor
        return tuple(w / divisor for w, divisor in zip(unscaled, divisors))

    @property
    def resolved_attention_factor(self) -> float:
        mscale = self.long_mscale if self.is_long else self.short_mscale
        if self.attention_factor is not None:
            return self.attention_factor
        if mscale is not None:
            return mscale
        return sqrt(1.0 + log(self.factor or 1.0) / log(self.original_max_position_embeddings))


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling(Scaling):
    """Llama 3.1: low frequencies are divided by `factor`, high ones are kept, with a smooth transition between them.

    Parameters
    ----------
    factor : float
        The divisor of low frequencies, at least 1.
    low_freq_factor, high_freq_factor : float
        A frequency is divided if its wavelength is above ``original_max_position_embeddings / low_freq_factor`` tokens.
        It is kept if its wavelength is below ``original_max_position_embeddings / high_freq_factor`` tokens.
        `high_freq_factor` must be at least `low_freq_factor`. If they are equal, as in Llama 4 Scout, there is no
        transition.
    original_max_position_embeddings : int
        The sequence length of training in tokens, before scaling.

    References
    ----------
    Grattafiori et al., The Llama 3 Herd of Models (2024), arXiv:2407.21783, section 3.4.2. meta-llama/llama-models,
    `models/llama3/reference_impl/model.py`, `apply_scaling`; transformers, `modeling_rope_utils.py`.

    Examples
    --------
    >>> rule = Llama3Scaling(
    ...     factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    ... )
    >>> [round(frequency, 7) for frequency in rule.frequencies(500_000.0, 8)]
    [1.0, 0.037606, 0.0005248, 6.6e-06]
    """

    rope_type: ClassVar[str] = "llama3"

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        self._at_least(1.0, "factor")
        self._positive("low_freq_factor", "high_freq_factor")
        self._lengths("original_max_position_embeddings")
        if self.high_freq_factor < self.low_freq_factor:
            raise ValueError(
                f"Llama3Scaling: high_freq_factor must be at least low_freq_factor={self.low_freq_factor}; "
                f"got {self.high_freq_factor}"
            )

    def frequencies(self, base: float, rotary_dim: int) -> tuple[float, ...]:
        scaled = []
        for w in geometric(base, rotary_dim):
            revolutions = self.original_max_position_embeddings * w / (2 * pi)  # over the original length
            if revolutions < self.low_freq_factor or revolutions > self.high_freq_factor:
                kept = float(revolutions > self.high_freq_factor)
            else:
                kept = (revolutions - self.low_freq_factor) / ((self.high_freq_factor - self.low_freq_factor) or 1.0)
            scaled.append((1.0 - kept) * w / self.factor + kept * w)
        return tuple(scaled)


@dataclass(frozen=True, kw_only=True)
class ProportionalScaling(Scaling):
    """Proportional RoPE: the progression spans the whole head, but only the fastest pairs are rotated.

    The other pairs have frequency 0. This differs from a smaller `rotary_dim`, whose progression spans only the rotated
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

    partial_rotary_factor: float = 1.0
    factor: float = 1.0

    def __post_init__(self) -> None:
        self._resolve(
            partial_rotary_factor=checks.fraction(
                type(self).__name__, "partial_rotary_factor", self.partial_rotary_factor
            )
        )
        self._at_least(1.0, "factor")

    def frequencies(self, base: float, rotary_dim: int) -> tuple[float, ...]:
        rotated = int(self.partial_rotary_factor * rotary_dim // 2)
        return tuple(w / self.factor if j < rotated else 0.0 for j, w in enumerate(geometric(base, rotary_dim)))


@dataclass(frozen=True, kw_only=True)
class XPos:
    """Extrapolatable position embedding: attention scores decay with the distance between query and key.

    Pair j of a query is multiplied by ``zeta ** ((position - centre) / scale_base)``, and pair j of a key is divided by
    it, with ``zeta = (2 j + gamma * rotary_dim) / ((1 + gamma) * rotary_dim)``. The centre is fixed, so that keys can
    be cached. Upstream implementations compute it from the length of the sequence.

    Parameters
    ----------
    scale_base : float
        The distance in tokens over which the score of a pair decays by the factor zeta. At least 1.
    centre : int
        The position, in tokens, at which queries and keys are not scaled. Scores do not depend on it, but the scaled
        numbers do. In float32 they overflow to infinity and NaN at a distance from the centre of more than
        ``88 * scale_base / -ln(zeta)`` tokens, 36,000 by default. A centre in the middle of the sequence doubles the
        usable length.
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale_base", checks.positive("XPos", "scale_base", self.scale_base))
        object.__setattr__(self, "gamma", checks.positive("XPos", "gamma", self.gamma))
        if not checks.is_int(self.centre):
            raise TypeError(f"XPos: centre must be an int; got {type(self.centre).__name__}")
        if not -(2**31) <= self.centre < 2**31:
            raise ValueError(f"XPos: centre must fit in int32; got {self.centre}")
        object.__setattr__(self, "centre", checks.plain(self.centre))
        if self.scale_base < 1.0:
            raise ValueError(f"XPos: scale_base must be at least 1; got {self.scale_base}")

    def zeta(self, rotary_dim: int) -> tuple[float, ...]:
        """The decay of each pair over `scale_base` tokens."""
        denominator = (1.0 + self.gamma) * rotary_dim
        return tuple((2 * j + self.gamma * rotary_dim) / denominator for j in range(rotary_dim // 2))

    def rates(self, rotary_dim: int) -> tuple[float, ...]:
        """The change per token of the logarithm of each pair of a query."""
        return tuple(log(zeta) / self.scale_base for zeta in self.zeta(rotary_dim))


def _rescaled(who: str, base: float, factor: float, rotary_dim: int) -> float:
    """The base of NTK-aware scaling by `factor`."""
    if rotary_dim < 4:
        raise ValueError(f"{who}: rotary_dim must be at least 4; got {rotary_dim}")
    return base * factor ** (rotary_dim / (rotary_dim - 2))
