"""What an embedding does at a length: its effects, not its parameters."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rope_xp._core import checks
from rope_xp._core.explanation.bands import AxisPairs, Band, axes_of, bands_of, pairs_of, unseen_from
from rope_xp._core.explanation.precision import PhaseError, bfloat16_step, float32_error
from rope_xp._core.explanation.text import sections_of
from rope_xp._core.explanation.warning_texts import warnings_of
from rope_xp._core.lengths import lengths_of
from rope_xp._core.report import Report, Section
from rope_xp.frequencies import LongRopeScaling


@dataclass(frozen=True, kw_only=True)
class Explanation(Report):
    """What a `RotaryEmbedding` does at a length. `RotaryEmbedding.explain` creates it.

    ``str(explanation)`` is a text of 80 columns. In `to_dict`, `rope` is its repr.

    Attributes
    ----------
    rope : RotaryEmbedding
    pairs : int
        The number of pairs.
    trained_length : int or None
        The length of training before scaling, in tokens; None if nothing states it.
    extended_length : int or None
        The length with scaling, in tokens: that of the config if it states one, else what follows from the rule.
    stated_length : int or None
        The length that the config states, in tokens. It does not say whether the model was trained at this length.
    context : int or None
        The length that is explained, in tokens.
    bands : tuple of Band
        Pairs that the scaling rule treats alike. Empty for learned frequencies, for several heads with their own
        frequencies, and if one pair follows several position axes.
    axes : tuple of AxisPairs
        The pairs of each position axis; empty for one axis.
    unseen_from : dict of int to int
        For each pair that completes no turn within the trained length: the first position at which it has an angle that
        training before scaling did not show. Training with scaling shows more. Empty if the trained length is not
        known.
    attention_factor, score_factor, softmax_scale : float
        The factor of sines and cosines; its square, by which rotated channels change scores; and the factor by which
        the model must multiply its softmax scale.
    float32_error : PhaseError or None
        The largest error of ``float32(position) * float32(frequency)`` at the last 1,024 positions of the context, in
        radians, and the pair that has it. None without a context and for learned frequencies.
    bfloat16_step : int or None
        The distance of neighbouring bfloat16 numbers at the end of the context, in tokens; at least 1.
    stated : tuple of str
        The keys of the config that were read.
    assumed : dict of str to str
        The keys that the config does not state, and the source of their values, such as "default of llama".
    warnings : tuple of str
        Sentences about what is probably wrong. Each says its reason.

    References
    ----------
    Peng et al., YaRN (2023), arXiv:2309.00071, section 3: wavelengths, blended and interpolated pairs.

    Examples
    --------
    >>> from rope_xp import RotaryEmbedding, YarnScaling
    >>> yarn = YarnScaling(factor=4.0, original_max_position_embeddings=32_768)
    >>> report = RotaryEmbedding(head_dim=128, layout="half", base=1_000_000.0, scaling=yarn).explain()
    >>> report.context, report.unseen_from[63], round(report.score_factor, 4)
    (131072, 131072, 1.2965)
    >>> print(*str(report).splitlines()[9:14], sep="\\n")
    Pairs
    pairs  treatment     divided by   wavelength in tokens  after scaling
    0-23   kept          1            6.28 to 900           the same
    24-39  blended       1.05 to 3.4  1,117 to 28,473       1,169 to 96,807
    40-63  interpolated  4            35,333 to 5,063,256   141,332 to 20,253,023
    """

    rope: Any
    pairs: int
    trained_length: int | None
    extended_length: int | None
    stated_length: int | None
    context: int | None
    bands: tuple[Band, ...]
    axes: tuple[AxisPairs, ...]
    unseen_from: Mapping[int, int]
    attention_factor: float
    score_factor: float
    softmax_scale: float
    float32_error: PhaseError | None
    bfloat16_step: int | None
    stated: tuple[str, ...]
    assumed: Mapping[str, str]
    warnings: tuple[str, ...]

    def sections(self) -> list[Section]:
        return sections_of(self)


def explain(rope: Any, context: Any, trained_length: Any) -> Explanation:
    """The explanation of a `RotaryEmbedding`.

    The default of `context` is the extended length, else the trained one. The short factors of LongRoPE are for the
    trained length.
    """
    lengths = lengths_of(rope, trained_length)
    is_short = isinstance(rope.scaling, LongRopeScaling) and not rope.scaling.is_long
    known = (lengths.trained if is_short else lengths.extended) or lengths.trained
    context = known if context is None else checks.length("context", context)
    pairs, provenance = pairs_of(rope), rope._provenance
    return Explanation(
        rope=rope,
        pairs=rope.pairs,
        trained_length=lengths.trained,
        extended_length=lengths.extended,
        stated_length=provenance.max_position_embeddings,
        context=context,
        bands=bands_of(rope, pairs, lengths.trained),
        axes=axes_of(rope, pairs),
        unseen_from=unseen_from(pairs, lengths.trained),
        attention_factor=rope.attention_factor,
        score_factor=rope.attention_factor**2,
        softmax_scale=rope.softmax_scale,
        float32_error=None if context is None else float32_error(rope, context),
        bfloat16_step=None if context is None else bfloat16_step(context),
        stated=provenance.stated,
        assumed={default.key: default.source for default in provenance.defaults},
        warnings=warnings_of(rope, lengths, context),
    )
