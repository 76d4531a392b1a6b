"""The warnings of an explanation, each with its reason."""

from math import floor, pi
from typing import Any

import numpy as np

from rope_xp._core.explanation.bands import pairs_of
from rope_xp._core.lengths import Lengths
from rope_xp.frequencies import DynamicNTKScaling, Llama3Scaling, LongRopeScaling, YarnScaling

FLOAT32 = np.finfo(np.float32)
# The base of RoFormer, which most families have as their default.
USUAL_BASE = 10_000.0
ORIGINAL = "original_max_position_embeddings"


def warnings_of(rope: Any, lengths: Lengths, context: int | None) -> tuple[str, ...]:
    """Sentences about what is probably wrong with an embedding, or with its use at a length."""
    found = (
        _base(rope),
        _original_length(rope),
        _factor(rope),
        _length_dependent(rope, context),
        _beyond(rope, lengths, context),
        *_not_inverted(rope, context),
    )
    return (*(f"{remark}." for remark in rope._provenance.remarks), *filter(None, found))


def _base(rope: Any) -> str:
    """A base of 10,000 that the config does not state, and that does not fit to the rule or to the length."""
    assumed = [each for each in rope._provenance.defaults if each.row == "frequencies"]
    if not assumed or rope.base != USUAL_BASE:
        return ""
    longest = max(2 * pi / pair.frequency for pair in pairs_of(rope) if pair.frequency)
    length = rope._provenance.max_position_embeddings or 0
    if isinstance(rope.scaling, Llama3Scaling):
        reason = "Llama 3.1, for which the rule llama3 was made, has the base 500,000."
    elif rope.scaling is None and length > longest:
        reason = f"Its longest wavelength, {longest:,.0f} tokens, is shorter than the length of the config, {length:,}."
    else:
        return ""
    return (
        f"The config does not state the base ({assumed[0].key}), and {USUAL_BASE:,.0f} is the {assumed[0].source}. "
        f"{reason} Perhaps the key was lost."
    )


def _original_length(rope: Any) -> str:
    """A rule that reads the original length, which the config does not state."""
    sources = [each.source for each in rope._provenance.defaults if each.key == ORIGINAL]
    if not any(source.startswith("equal to") for source in sources):
        return ""
    return (
        f"The config states a scaling rule without {ORIGINAL}. Its max_position_embeddings, "
        f"{getattr(rope.scaling, ORIGINAL):,}, is used instead. If that is the extended length, the frequencies are "
        "wrong."
    )


def _factor(rope: Any) -> str:
    """A factor that is not the ratio of the lengths. In YaRN, it is defined as this ratio (section 3.1)."""
    stated, factor = rope._provenance.max_position_embeddings, getattr(rope.scaling, "factor", None)
    if not isinstance(rope.scaling, (YarnScaling, LongRopeScaling)) or factor is None or stated is None:
        return ""
    original = rope.scaling.original_max_position_embeddings
    extended = round(factor * original)
    if stated in (extended, original):  # some configs keep the original length
        return ""
    return (
        f"The factor does not match the lengths: factor {factor:g} times original length {original:,} is {extended:,}, "
        f"but max_position_embeddings is {stated:,}. The frequencies follow from the factor."
    )


def _length_dependent(rope: Any, context: int | None) -> str:
    """A rule whose frequencies depend on the length of the sequence, so that cached keys become wrong."""
    scaling = rope.scaling
    if isinstance(scaling, DynamicNTKScaling):
        unscaled = scaling.max_position_embeddings
        length = max(scaling.seq_len or 0, unscaled)
        valid = f"{'' if length > unscaled else 'at most '}{length:,}"
        fits = context is None or max(context, unscaled) == length
    elif isinstance(scaling, LongRopeScaling) and scaling.short_factor != scaling.long_factor:
        original = scaling.original_max_position_embeddings
        valid = f"{'more than' if scaling.is_long else 'at most'} {original:,}"
        fits = context is None or scaling.is_long == (context > original)
    else:
        return ""
    others = "" if fits else f" At {context:,} tokens, others apply: from_config(..., seq_len={context})."
    return (
        f"The rule {scaling.rope_type} depends on the length. These frequencies are for sequences of {valid} tokens."
        f"{others} Keys that were cached at another length may have other frequencies, which do not fit. `rerotate` "
        "corrects them."
    )


def _beyond(rope: Any, lengths: Lengths, context: int | None) -> str:
    """A context for which the embedding was not made."""
    longest = lengths.longest
    if isinstance(rope.scaling, DynamicNTKScaling) or longest is None or context is None or context <= longest:
        return ""
    return f"The context of {context:,} tokens is longer than the {longest:,} tokens that the embedding is made for."


def _not_inverted(rope: Any, context: int | None) -> list[str]:
    """Tables that are 0 or infinite in float32, or close to it. No rotation restores what they rotated."""
    found = []
    if not FLOAT32.tiny <= rope.attention_factor <= FLOAT32.max:
        found.append(
            f"The attention factor {rope.attention_factor:g} is beyond the normal numbers of float32. The tables lose "
            "digits, or are 0 or infinite, and rotate(inverse=True) does not restore its input."
        )
    reach = xpos_reach(rope)
    if reach is not None and context is not None and max(context - rope.xpos.centre, rope.xpos.centre) > reach:
        found.append(
            f"The scales of xpos leave the range of float32 more than {reach:,} tokens from position "
            f"{rope.xpos.centre:,}. There, queries or keys overflow, and rotate(inverse=True) does not restore its "
            "input."
        )
    return found


def xpos_reach(rope: Any) -> int | None:
    """How far from the centre the scales of xpos fit in float32, in tokens; None without xpos."""
    fastest = max((abs(rate) for rate in rope._scale.rates), default=0.0)
    return floor(np.log(FLOAT32.max) / fastest) if fastest else None
