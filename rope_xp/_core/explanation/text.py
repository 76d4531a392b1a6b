"""The text of an explanation."""

from collections.abc import Sequence
from typing import Any

from rope_xp._core.description import properties
from rope_xp._core.explanation.training import with_scaling
from rope_xp._core.lengths import is_scaled
from rope_xp._core.report import Section, Table
from rope_xp.frequencies import DynamicNTKScaling


def sections_of(it: Any) -> list[Section]:
    """The sections of an `Explanation`."""
    return [
        Section("Warnings", it.warnings),
        Section("" if not it.warnings else "Properties", Table((), _properties(it))),
        Section("Pairs", _bands(it)),
        Section("Position axes", _axes(it)),
        Section("Angles", _angles(it)),
        Section("Scores", _scores(it)),
        Section("Inverse", _inverse(it)),
        Section("Precision", _precision(it)),
        Section("Config", _config(it)),
    ]


def _properties(it: Any) -> list[tuple[str, str]]:
    """The properties of the embedding, and the lengths."""
    elsewhere = {"attention factor", "softmax scale", *["wavelengths"] * bool(it.bands)}
    rows = {name: row for name, row in properties(it.rope).items() if name not in elsewhere}
    others = it.rope._provenance.others(rows)
    rows |= _lengths(it)
    if it.context is not None and it.context not in (it.trained_length, it.extended_length):
        rows["context"] = _tokens(it.context)
    return [*rows.items(), *others]


def _lengths(it: Any) -> dict[str, str]:
    """The lengths, and where they come from."""
    trained, extended, stated = it.trained_length, it.extended_length, it.stated_length
    if trained is None and extended == stated is not None:
        return {
            "trained length": _tokens(None),
            "stated length": f"{_tokens(stated)} (the config does not say whether before or with scaling)",
        }
    of_config = " (the length that the config states)"
    if not is_scaled(it.rope):
        rows = {"trained length": _tokens(trained) + (of_config if trained == stated is not None else "")}
        return rows if extended in (None, trained) else {**rows, "extended length": _tokens(extended)}
    rows = {"trained length": _tokens(trained) + (" before scaling" if trained is not None else "")}
    if extended is None:
        return rows
    if it.rope._provenance.extended:
        source = ""
    elif isinstance(it.rope.scaling, DynamicNTKScaling):
        source = " (the length that these frequencies are for)"
    elif extended == stated:
        source = of_config
    else:
        but = "" if stated is None else f"; the config states {stated:,}"
        source = f" (the factor times the trained length{but})"
    return {**rows, "extended length": f"{_tokens(extended)} with scaling{source}"}


def _bands(it: Any) -> Table | str:
    if not it.bands:
        is_array = not isinstance(it.rope.inv_freq, tuple)
        why = "explain does not read arrays" if is_array else "a pair has several frequencies"
        return f"Pairs and their wavelengths are not shown, because {why}."
    if it.rope.scaling is None:
        header = ["pairs", "wavelength in tokens"] + ["within the trained length"] * (it.trained_length is not None)
        rows = [(_ranges(band.pairs), _range(band.wavelengths), _turns(band))[: len(header)] for band in it.bands]
        return Table(header, rows)
    header = ("pairs", "treatment", "divided by", "wavelength in tokens", "after scaling")
    return Table(header, [_scaled_band(band) for band in it.bands])


def _turns(band: Any) -> str:
    if band.completes_turn is None:
        return "not rotated"
    return "at least one turn" if band.completes_turn else "less than one turn"


def _scaled_band(band: Any) -> tuple[str, ...]:
    after = "the same" if band.treatment == "kept" else _range(band.wavelengths)
    return _ranges(band.pairs), band.treatment, _range(band.divisors), _range(band.unscaled_wavelengths), after


def _axes(it: Any) -> Table | str:
    rows = [
        (f"{axis.axis} {axis.name}".strip(), str(len(axis.pairs)), _ranges(axis.pairs), _range(axis.wavelengths))
        for axis in it.axes
    ]
    return Table(("axis", "number of pairs", "pairs", "wavelength in tokens"), rows) if rows else ""


def _angles(it: Any) -> Sequence[str]:
    """Which angles training showed."""
    if not it.bands:
        return ()
    trained, unseen = it.trained_length, it.unseen_from
    if trained is None:
        return ["The trained length is not known. State it to see which angles training did not show."]
    if not unseen:
        return [f"Each rotated pair completes a turn within {trained:,} tokens. Training showed all its angles."]
    scaled = is_scaled(it.rope)
    training = "training before scaling" if scaled else "training"
    first, last = min(unseen.values()), max(unseen.values())
    until = "" if first == last else f" for one of them, and {last:,} for the last"
    reached = sum(position < it.context for position in unseen.values()) if it.context else 0
    return [
        *([with_scaling(it.rope, it.extended_length)] if scaled else []),
        f"{len(unseen)} of {it.pairs} pairs complete no turn within {trained:,} tokens: {_ranges(unseen)}. "
        f"{training.capitalize()} showed only a part of their angles.",
        f"The first position with an angle that {training} did not show is {first:,}{until}. Within a context of "
        f"{it.context:,} tokens, {f'{reached} pairs have' if reached else 'no pair has'} such angles.",
    ]


def _scores(it: Any) -> Sequence[str]:
    """What happens to attention scores."""
    rope, sentences = it.rope, []
    if it.attention_factor != 1.0:
        sentences.append(
            f"Sines and cosines are multiplied by {it.attention_factor:.6g}. The part of a score that comes from "
            f"rotated channels is multiplied by its square, {it.score_factor:.6g}."
        )
        if rope.rotary_dim != rope.head_dim:
            sentences.append(f"The part from the other {rope.head_dim - rope.rotary_dim} channels does not change.")
    if it.softmax_scale != 1.0:
        sentences.append(
            f"The model must multiply its softmax scale, and so all scores, by {it.softmax_scale:.6g}. rope_xp does "
            "not do this."
        )
    if rope.xpos is not None:
        zeta = rope.xpos.zeta(rope.rotary_dim)
        sentences.append(
            f"Scores decay with distance: {rope.xpos.scale_base:g} tokens multiply those of pair 0 by {zeta[0]:.3g}, "
            f"and those of pair {it.pairs - 1} by {zeta[-1]:.3g}."
        )
    if not sentences:
        sentences.append("The rotation does not change the size of scores.")
    return sentences


def _inverse(it: Any) -> str:
    """How a rotation is undone, if negative positions do not do it."""
    if it.attention_factor == 1.0 and it.rope.xpos is None and it.rope.layout != "interleaved_to_half":
        return ""
    return "rotate(inverse=True) undoes a rotation. A rotation by negative positions does not."


def _precision(it: Any) -> str:
    """What float32 and bfloat16 get wrong."""
    if it.float32_error is None:
        return ""
    radians, pair = it.float32_error
    error = f"wrong by up to {radians:.2g} radians (pair {pair})" if radians else "exact"
    float32 = f"Just below position {it.context:,}, float32(position) * float32(frequency) is {error}."
    bfloat16 = f" bfloat16 rounds positions to multiples of {it.bfloat16_step:,}." if it.bfloat16_step > 1 else ""
    has = "has the error of float32" if it.rope.phase == "float32" else "has no such error"
    return f'{float32}{bfloat16} With phase="{it.rope.phase}", rope_xp {has}.'


def _config(it: Any) -> str:
    if not it.stated:
        return ""
    return f"Keys that were read: {', '.join(it.stated)}."


def _tokens(length: int | None) -> str:
    return "not known" if length is None else f"{length:,} tokens"


def _ranges(numbers: Any) -> str:
    """Ascending numbers as ranges. More than three ranges are shown as one, with their count."""
    numbers, ranges = list(numbers), []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    if len(ranges) > 3:
        return f"{len(numbers)} of {numbers[0]}-{numbers[-1]}"
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)


def _range(numbers: Any) -> str:
    """The least and the greatest number, or one if they read the same; empty for None."""
    if numbers is None:
        return ""
    least, greatest = map(_number, numbers)
    return least if least == greatest else f"{least} to {greatest}"


def _number(number: float) -> str:
    return f"{number:,.0f}" if 1000 <= number < 1e8 else f"{number:.3g}"
