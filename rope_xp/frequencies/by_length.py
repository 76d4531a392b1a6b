"""Scaling rules that also depend on a sequence length, either of training or of the input."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log, pi, sqrt
from typing import ClassVar

from rope_xp.arrays import checks
from rope_xp.errors import public, wrong_type, wrong_value
from rope_xp.frequencies.by_factor import ntk_base
from rope_xp.frequencies.progressions import geometric
from rope_xp.frequencies.scaling import Scaling


@dataclass(frozen=True, kw_only=True)
class DynamicNTKScaling(Scaling):
    """NTK-aware scaling that grows with the length of the sequence.

    You state the length as `seq_len`; it is never derived from positions. Up to `max_position_embeddings`, nothing is
    scaled. For a greater length, the base is
    ``base * (factor * seq_len / max_position_embeddings - (factor - 1)) ** (rotary_dim / (rotary_dim - 2))``. vLLM uses
    the fixed length ``seq_len = factor * max_position_embeddings``.

    Parameters
    ----------
    factor : float
        The factor in the formula, at least 1.
    max_position_embeddings : int
        The length in tokens up to which nothing is scaled.
    seq_len : int, optional
        The length of the sequence in tokens. None means a length of at most
        `max_position_embeddings`.

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
    is_standard: ClassVar[bool] = True

    factor: float
    max_position_embeddings: int
    seq_len: int | None = None

    def __post_init__(self) -> None:
        self._at_least(1.0, "factor")
        self._check(checks.length, "max_position_embeddings", "seq_len")

    @property
    def _length(self) -> int:  # of the sequences that have these frequencies
        return max(self.seq_len or 0, self.max_position_embeddings)

    @property
    def _ntk_factor(self) -> float:  # that of the `NTKScaling` with the same frequencies
        return self.factor * self._length / self.max_position_embeddings - (self.factor - 1)

    @public()
    def frequencies(self, base: float, rotary_dim: int) -> tuple[float, ...]:
        return geometric(ntk_base(base, self._ntk_factor, rotary_dim), rotary_dim)


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
        Numbers of revolutions over the original length. A pair with more than `beta_fast` revolutions keeps its
        frequency. The frequency of a pair with fewer than `beta_slow` is divided by `factor`, but not pair 0; and none,
        if pair 0 has fewer. The ramp between them ends at pair ``rotary_dim - 1`` at the latest, as in real models.
    attention_factor : float, optional
        The default is ``0.1 * ln(factor) + 1``. If `mscale` and `mscale_all_dim` are both given, the default is
        ``g(mscale) / g(mscale_all_dim)``, where ``g(k) = 0.1 * k * ln(factor) + 1``.
    mscale, mscale_all_dim : float, optional
        DeepSeek's two numbers. They change the attention factor only if both are given, as in transformers. (The config
        rule "deepseek_yarn" needs only one of them: `from_config` then computes the `attention_factor`.)
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
    is_standard: ClassVar[bool] = True

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    @public("YarnScaling")
    def __post_init__(self) -> None:
        self._at_least(1.0, "factor")
        self._check(checks.length, "original_max_position_embeddings")
        self._check(checks.positive, "attention_factor")
        self._at_least(2.0**-53, "beta_fast", "beta_slow")
        self._at_least(0.0, "mscale", "mscale_all_dim")
        # So that all results are finite.
        self._check(checks.at_most, "beta_fast", "beta_slow", "mscale", "mscale_all_dim", most=2.0**53)
        self._set_fields(truncate=checks.boolean("truncate", self.truncate))
        if self.beta_fast < self.beta_slow:
            raise wrong_value(f"beta_fast must be at least beta_slow={self.beta_slow}; got {self.beta_fast}")

    @public("YarnScaling")
    def frequencies(self, base: float, rotary_dim: int) -> tuple[float, ...]:
        if base <= 1.0:
            raise wrong_value(f"base must be greater than 1; got {base}")

        def pair_with(revolutions: float) -> float:
            return rotary_dim * log(self.original_max_position_embeddings / (revolutions * 2 * pi)) / (2 * log(base))

        first, last = pair_with(self.beta_fast), pair_with(self.beta_slow)
        if self.truncate:
            first, last = floor(first), ceil(last)
        # Published models were trained with the limit rotary_dim - 1, not with the number of pairs - 1.
        first, last = max(first, 0), min(last, rotary_dim - 1)
        if first == last:
            last += 0.001
        unscaled = geometric(base, rotary_dim)
        ramp = [min(max((j - first) / (last - first), 0.0), 1.0) for j in range(len(unscaled))]
        return tuple(w / self.factor * fraction + w * (1.0 - fraction) for w, fraction in zip(unscaled, ramp))

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
    """LongRoPE: each frequency has its own divisor, from a list for short sequences or a list for long ones.

    You state the length as `seq_len`, which selects the list. It is never derived from positions.

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
        The attention factor, in place of the formula.
    short_mscale, long_mscale : float, optional
        The attention factors for short and for long sequences (Phi-3.5-MoE).
    seq_len : int, optional
        The length of the sequence in tokens. None means a short sequence.

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
    is_standard: ClassVar[bool] = True

    short_factor: Sequence[float]
    long_factor: Sequence[float]
    original_max_position_embeddings: int
    factor: float | None = None
    attention_factor: float | None = None
    short_mscale: float | None = None
    long_mscale: float | None = None
    seq_len: int | None = None

    @public("LongRopeScaling")
    def __post_init__(self) -> None:
        for name in ("short_factor", "long_factor"):
            values = getattr(self, name)
            if not isinstance(values, (list, tuple)) or not values:
                raise wrong_type(f"{name} must be a list or tuple of numbers; got {values!r}")
            self._set_fields(**{name: tuple(checks.positive(f"every {name}", value) for value in values)})
        self._check(checks.length, "original_max_position_embeddings", "seq_len")
        self._at_least(1.0, "factor")
        self._check(checks.positive, "attention_factor", "short_mscale", "long_mscale")
        if (self.short_mscale is None) != (self.long_mscale is None):
            raise wrong_value(
                f"short_mscale and long_mscale must be given together; got {self.short_mscale} and {self.long_mscale}"
            )
        if self.factor is None and self.attention_factor is None and self.short_mscale is None:
            raise wrong_value("factor, attention_factor, or short_mscale and long_mscale must be given; got none")
        if self.original_max_position_embeddings < 2:
            raise wrong_value("original_max_position_embeddings must be at least 2; got 1")

    def describe(self) -> str:
        return f"{super().describe()}: {'long' if self.is_long else 'short'}_factor is used"

    @property
    def is_long(self) -> bool:
        """Whether `seq_len` is greater than the original length."""
        return self.seq_len is not None and self.seq_len > self.original_max_position_embeddings

    @public("LongRopeScaling")
    def frequencies(self, base: float, rotary_dim: int) -> tuple[float, ...]:
        unscaled = geometric(base, rotary_dim)
        for name in ("short_factor", "long_factor"):
            if len(getattr(self, name)) != len(unscaled):
                raise wrong_value(
                    f"{name} must have one number for each of {len(unscaled)} pairs; got {len(getattr(self, name))}"
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
        A frequency is divided if its wavelength is above ``original_max_position_embeddings / low_freq_factor`` tokens,
        and kept if its wavelength is below ``original_max_position_embeddings / high_freq_factor`` tokens.
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
    is_standard: ClassVar[bool] = True

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    @public("Llama3Scaling")
    def __post_init__(self) -> None:
        self._at_least(1.0, "factor")
        self._check(checks.positive, "low_freq_factor", "high_freq_factor")
        self._check(checks.length, "original_max_position_embeddings")
        if self.high_freq_factor < self.low_freq_factor:
            raise wrong_value(
                f"high_freq_factor must be at least low_freq_factor={self.low_freq_factor}; got {self.high_freq_factor}"
            )

    def frequencies(self, base: float, rotary_dim: int) -> tuple[float, ...]:
        return tuple(map(self._scaled, geometric(base, rotary_dim)))

    def _scaled(self, w: float) -> float:
        """`w`, in radians per token, after scaling."""
        revolutions = self.original_max_position_embeddings * w / (2 * pi)  # over the original length
        low, high = self.low_freq_factor, self.high_freq_factor
        kept_fraction = (revolutions - low) / (high - low) if low < revolutions < high else float(revolutions > low)
        return (1.0 - kept_fraction) * w / self.factor + kept_fraction * w
