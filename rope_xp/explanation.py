"""`explain`: what an embedding does at a length: its effects, not its parameters."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, isclose, pi
from typing import Any, NamedTuple

import numpy as np

from rope_xp.arrays import checks
from rope_xp.description import properties, unit_of
from rope_xp.frequencies import DynamicNTKScaling, Llama3Scaling, LongRopeScaling, YarnScaling
from rope_xp.provenance import STAYS, WITH_WINDOW
from rope_xp.reports import Report, Section, Table
from rope_xp.spectrum import Lengths, is_scaled, lengths_of, whole
from rope_xp.types import Embedding

# A divisor that differs from 1 or from a rule's factor by less is equal to it. Rounding makes 1e-15 of it.
TOLERANCE = 1e-9
THESE_LAYERS = "these layers"  # all that an embedding is for

Range = tuple[float, float]  # the least and the greatest number


class Band(NamedTuple):
    """Pairs that are treated alike. None stands for what is not known."""

    # "kept", "blended" (divided by less than the factor), "interpolated", "raised" (divided by less than 1),
    # "not rotated", or "given" (as numbers).
    treatment: str
    pairs: tuple[int, ...]  # their numbers
    wavelengths: Range | None  # in tokens; None if the pairs are not rotated
    unscaled_wavelengths: Range | None
    divisors: Range | None  # by how much the rule divides frequencies
    # Whether each pair completes a turn within the trained length, without scaling: training showed all its angles. In
    # layers with a window, within the window: scores show no others.
    completes_turn: bool | None


class AxisPairs(NamedTuple):
    """The pairs that follow one of several position axes."""

    axis: int
    pairs: tuple[int, ...]  # their numbers
    wavelengths: Range | None  # in tokens
    name: str  # of the axis, such as "time"; empty if the family has no names


class ScaledPair(NamedTuple):
    number: int
    frequency: float  # in radians per token
    unscaled: float | None  # None if it is not known

    @property
    def divisor(self) -> float | None:
        return None if self.unscaled is None or not self.frequency else self.unscaled / self.frequency

    def treatment(self, factor: float | None) -> str:
        """As in `Band`. Without a factor, all pairs that are divided are interpolated."""
        if not self.frequency:
            return "not rotated"
        if self.divisor is None:
            return "given"
        if isclose(self.divisor, 1.0, rel_tol=TOLERANCE):
            return "kept"
        if self.divisor < 1.0:
            return "raised"
        return "blended" if factor is not None and self.divisor < factor * (1.0 - TOLERANCE) else "interpolated"

    def completes_turn(self, length: int | None) -> bool | None:
        if length is None or not self.frequency:
            return None
        return 2 * pi / (self.unscaled or self.frequency) <= length

    def unseen_from(self, trained: int) -> int:
        """The first position at which the pair has the angle that it has at position `trained` without scaling."""
        return ceil(round(min((self.divisor or 1.0) * trained, 2.0**63), 6))


def scaled_pairs(rope: Embedding) -> list[ScaledPair]:
    scaled = rope._frequencies.of_each_pair()
    unscaled = None if rope.base is None else rope.replace(scaling=None)._frequencies.of_each_pair()
    return [ScaledPair(number, w, None if unscaled is None else unscaled[number]) for number, w in enumerate(scaled)]


def bands_of(rope: Embedding, pairs: list[ScaledPair], shown: int | None) -> tuple[Band, ...]:
    # LongRoPE divides by its lists. Its factor is that of attention.
    factor = None if isinstance(rope.scaling, LongRopeScaling) else getattr(rope.scaling, "factor", None)
    bands: dict[tuple[str, bool | None], list[ScaledPair]] = {}
    for pair in pairs:
        bands.setdefault((pair.treatment(factor), pair.completes_turn(shown)), []).append(pair)
    return tuple(
        Band(
            treatment,
            tuple(pair.number for pair in alike),
            _wavelengths(pair.frequency for pair in alike),
            _wavelengths(pair.unscaled for pair in alike if pair.frequency),
            _range([pair.divisor for pair in alike if pair.divisor is not None]),
            completes_turn,
        )
        for (treatment, completes_turn), alike in bands.items()
    )


def axes_of(rope: Embedding, pairs: list[ScaledPair]) -> tuple[AxisPairs, ...]:
    """The pairs of each of several position axes; none if a pair has no single frequency."""
    axis_of_pair = rope._frequencies.axis_of_pair
    if axis_of_pair is None:
        return ()
    of_axes = [[pair for pair in pairs if axis_of_pair[pair.number] == axis] for axis in range(rope.axes)]
    names = rope._provenance.axis_names or ("",) * rope.axes
    return tuple(
        AxisPairs(axis, tuple(pair.number for pair in own), _wavelengths(pair.frequency for pair in own), names[axis])
        for axis, own in enumerate(of_axes)
    )


def unseen_from(rope: Embedding, pairs: list[ScaledPair], trained: int | None) -> dict[int, int]:
    """For each pair without a turn within the trained length: the first position with an unseen angle in scores."""
    if trained is None or is_windowed(rope, trained):
        return {}
    return {pair.number: pair.unseen_from(trained) for pair in pairs if pair.completes_turn(trained) is False}


def count_unseen(unseen: Mapping[int, int], length: int | None) -> int:
    return sum(position < length for position in unseen.values()) if length else 0


def _wavelengths(frequencies: Iterable[float | None]) -> Range | None:
    return _range([2 * pi / w for w in frequencies if w])


def _range(numbers: list[float]) -> Range | None:
    return (min(numbers), max(numbers)) if numbers else None


# How many positions before the context are tried. Errors of neighbouring positions are as good as random.
TRIED = 1024


class PhaseError(NamedTuple):
    """The largest error of a phase, and the pair that has it."""

    radians: float
    pair: int


def float32_error(rope: Embedding, context: int) -> PhaseError | None:
    """The largest error of ``float32(position) * float32(frequency)`` at the last positions of a context."""
    frequencies = rope._frequencies
    if not frequencies.are_floats:
        return None
    positions = np.arange(max(0, context - TRIED), context, dtype=np.float64)[:, None]
    errors = np.zeros(frequencies.pairs)
    for row in frequencies.rows:
        w = np.abs(np.asarray(row.inv_freq, np.float64)).reshape(-1)  # "pairs", or "heads pairs"
        products = positions.astype(np.float32) * w.astype(np.float32)
        # The products in float64 serve as exact: their error is 2**29 times smaller.
        largest = np.abs(products.astype(np.float64) - positions * w).max(axis=0).reshape(-1, frequencies.pairs)
        errors = np.maximum(errors, largest.max(axis=0))
    pair = int(errors.argmax())
    return PhaseError(float(errors[pair]), pair)


def bfloat16_step(context: int) -> int:
    """The distance of neighbouring bfloat16 numbers at the last position of a context, in tokens; at least 1."""
    return 1 << max((context - 1).bit_length() - 8, 0)  # they have 8 bits


# What is published about training with a rule. A config does not say it.
PUBLISHED = {
    Llama3Scaling: "Llama 3.1, which this rule is from, was trained with up to 131,072 tokens (The Llama 3 Herd of "
    "Models, section 3.4.2).",
    YarnScaling: "DeepSeek-V3 was trained with this rule, up to 131,072 tokens (arXiv:2412.19437, section 4.3). "
    "Users of Qwen2.5 add the rule for longer texts.",
}


def is_windowed(rope: Embedding, trained: int | None) -> bool:
    return windowed_layers(rope, trained) == THESE_LAYERS


def shown_length(rope: Embedding, trained: int | None) -> int | None:
    """In training, the tokens of a score were less than this apart."""
    return rope._provenance.sliding_window if is_windowed(rope, trained) else trained


def windowed_layers(rope: Embedding, trained: int | None) -> str:
    """The layers that score only keys of a window within the trained length, in words; empty if none are known."""
    provenance, window = rope._provenance, rope._provenance.sliding_window
    if window is not None and trained is not None and window > trained:
        return ""
    if provenance.layer_type in WITH_WINDOW or provenance.is_windowed:
        return THESE_LAYERS
    return "" if window is None or provenance.layers else f"layers that use sliding_window={window:,}"


def with_scaling(rope: Embedding, extended: int | None) -> str:
    """What training with the scaling, after training before it, has or may have shown."""
    provenance, rule = rope._provenance, rope.scaling
    stated = provenance.max_position_embeddings
    if provenance.extended and not provenance.extended.endswith(STAYS):
        return "The scaling was added by extend: the model has not seen it in training, unless you train it further."
    if isinstance(rule, DynamicNTKScaling):
        return "Dynamic NTK scales only sequences that are longer than those of training."
    if stated is None or provenance.extended:
        return "A model that was trained with this scaling has seen more angles."
    if extended is not None and stated < extended:
        return (
            f"The {_source(rope)} states {stated:,} tokens, less than the scaling reaches. So the scaling may have "
            "been added after training, which then showed the angles of the trained length alone."
        )
    published = f" {PUBLISHED[type(rule)]}" if type(rule) in PUBLISHED else ""
    return (
        f"The {_source(rope)} states {stated:,} tokens, with this scaling. If the model was trained with it, it has "
        f"seen all angles up to the longest sequence of that training.{published} If the model was trained without "
        "this scaling, the next point applies."
    )


def _source(rope: Embedding) -> str:
    return "config with these flags" if rope._provenance.has_flags else "config"


FLOAT32 = np.finfo(np.float32)
# The base of RoFormer, which most families have as their default.
USUAL_BASE = 10_000.0


def warnings_of(rope: Embedding, lengths: Lengths, context: int | None) -> tuple[str, ...]:
    remarks = [f"{remark}." for remark in rope._provenance.remarks]
    found = _base(rope), _factor(rope), _new_angles(rope, lengths), length_dependent(rope, context)
    return (*remarks, *filter(None, (*found, _beyond(rope, lengths, context))), *_not_inverted(rope, context))


def _base(rope: Embedding) -> str:
    """A base of 10,000 that the config does not state, and that does not fit to the rule or to the length."""
    assumed = [each for each in rope._provenance.defaults if each.row == "frequencies"]
    if not assumed or rope.base != USUAL_BASE:
        return ""
    longest = max(2 * pi / pair.frequency for pair in scaled_pairs(rope) if pair.frequency)
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


def _factor(rope: Embedding) -> str:
    """A factor that is not the ratio of the lengths. In YaRN, it is defined as this ratio (section 3.1)."""
    provenance, factor = rope._provenance, getattr(rope.scaling, "factor", None)
    stated = provenance.max_position_embeddings
    if not isinstance(rope.scaling, (YarnScaling, LongRopeScaling)) or factor is None or stated is None:
        return ""
    if isinstance(rope.scaling, LongRopeScaling) and (rope.scaling.attention_factor or rope.scaling.short_mscale):
        return ""  # nothing follows from the factor
    original = rope.scaling.original_max_position_embeddings
    extended = whole(factor * original)
    if stated in (extended, original):  # some configs keep the original length
        return ""
    what = "The frequencies follow" if isinstance(rope.scaling, YarnScaling) else "The attention factor follows"
    length = "the extended length is" if provenance.extended else f"the {_source(rope)} states"
    return (
        f"The factor does not match the lengths: factor {factor:g} times original length {original:,} is {extended:,}, "
        f"but {length} {stated:,}. {what} from the factor."
    )


def _new_angles(rope: Embedding, lengths: Lengths) -> str:
    # What LongRoPE and dynamic NTK show follows from lists, and from the length.
    provenance = rope._provenance
    if not provenance.extended or isinstance(rope.scaling, (DynamicNTKScaling, LongRopeScaling)):
        return ""
    new = count_unseen(unseen_from(rope, scaled_pairs(rope), lengths.trained), provenance.max_position_embeddings)
    fewer = "a greater factor leaves fewer (YaRN, section 3.1)"
    return f"{new} of {rope.pairs} pairs get angles that training did not show; {fewer}." if new else ""


class Sequences(NamedTuple):
    """The lengths of sequences for which frequencies are, in tokens."""

    least: int = 0
    most: int | None = None  # None without a limit

    def fit(self, length: int | None) -> bool:
        return length is None or (self.least <= length and (self.most is None or length <= self.most))

    def __str__(self) -> str:
        if self.most is None:
            return f"more than {self.least - 1:,} tokens"
        return f"{'' if self.least else 'at most '}{self.most:,} tokens"


def sequences_of(rope: Embedding) -> Sequences:
    scaling = rope.scaling
    if rope._provenance.for_all_lengths:
        return Sequences()
    if isinstance(scaling, DynamicNTKScaling):
        length = scaling._length
        return Sequences(length if length > scaling.max_position_embeddings else 0, length)
    if isinstance(scaling, LongRopeScaling) and scaling.short_factor != scaling.long_factor:
        original = scaling.original_max_position_embeddings
        return Sequences(original + 1) if scaling.is_long else Sequences(0, original)
    return Sequences()


def length_dependent(rope: Embedding, context: int | None) -> str:
    sequences = sequences_of(rope)
    if sequences == Sequences():
        return ""
    others = (
        "" if sequences.fit(context) else f" At {context:,} tokens, others apply: from_config(..., seq_len={context})."
    )
    return (
        f"The rule {rope.scaling.rope_type} depends on the length. These frequencies are for sequences of {sequences}."
        f"{others} Keys that were cached at another length may have other frequencies, which do not fit. `rerotate` "
        "corrects them."
    )


def _beyond(rope: Embedding, lengths: Lengths, context: int | None) -> str:
    longest = lengths.longest
    # Of a rule without its trained length, the stated length may be either of the two.
    if isinstance(rope.scaling, DynamicNTKScaling) or lengths.trained is None or is_windowed(rope, lengths.trained):
        return ""
    if longest is None or context is None or context <= longest:
        return ""
    return f"The context of {context:,} tokens is longer than the {longest:,} tokens that the embedding is made for."


def _not_inverted(rope: Embedding, context: int | None) -> list[str]:
    """Tables that are 0 or infinite in float32, or close to it. No rotation restores what they rotated."""
    found = []
    if not FLOAT32.tiny <= rope.attention_factor <= FLOAT32.max:
        found.append(
            f"The attention factor {rope.attention_factor:g} is beyond the normal numbers of float32. The tables lose "
            "digits, or are 0 or infinite, and rotate(inverse=True) does not restore its input."
        )
    fastest = max((abs(rate) for rate in rope._scale.rates), default=0.0)  # of the scales of xpos
    reach = floor(np.log(FLOAT32.max) / fastest) if fastest else None
    if reach is not None and context is not None and max(context - rope.xpos.centre, rope.xpos.centre) > reach:
        found.append(
            f"The scales of xpos leave the range of float32 more than {reach:,} tokens from position "
            f"{rope.xpos.centre:,}. There, queries or keys overflow, and rotate(inverse=True) does not restore its "
            "input."
        )
    return found


def _properties(it: "Explanation") -> list[tuple[str, str]]:
    elsewhere = {"attention factor", "softmax scale", *["wavelengths"] * bool(it.bands)}
    rows = {name: row for name, row in properties(it.rope).items() if name not in elsewhere}
    provenance, others = it.rope._provenance, it.rope._provenance.others(rows)
    rows |= _lengths(it)
    if it.context is not None and (provenance.served or it.context not in (it.trained_length, it.extended_length)):
        rows["context"] = f"{it.context:,} {unit_of(it.rope)}s"
    return [*rows.items(), *others]


def _lengths(it: "Explanation") -> dict[str, str]:
    trained, extended, stated = it.trained_length, it.extended_length, it.stated_length
    if trained is None and extended == stated is not None:
        return {
            "trained length": _tokens(None),
            "stated length": f"{_tokens(stated)} (the {_source(it.rope)} does not say whether before or with scaling)",
        }
    of_config = f" (the length that the {_source(it.rope)} states)"
    window = it.rope._provenance.sliding_window if is_windowed(it.rope, trained) else None
    of_window = {} if window is None else {"window": _tokens(window)}
    if not is_scaled(it.rope):
        if of_window:
            lengths = {"trained length": trained if trained != stated else None, "stated length": stated}
            return {**of_window, **{name: _tokens(each) for name, each in lengths.items() if each}}
        rows = {"trained length": _tokens(trained) + (of_config if trained == stated is not None else "")}
        return rows if extended in (None, trained) else {**rows, "extended length": _tokens(extended)}
    rows = {**of_window, "trained length": _tokens(trained) + (" before scaling" if trained is not None else "")}
    if extended is None:
        return rows
    if it.rope._provenance.extended:
        source = ""
    elif isinstance(it.rope.scaling, DynamicNTKScaling):
        source = " (the length that these frequencies are for)"
    elif extended == stated:
        source = of_config
    else:
        but = "" if stated is None else f"; the {_source(it.rope)} states {stated:,}"
        original = getattr(it.rope.scaling, "original_max_position_embeddings", trained)
        length = "trained length" if original == trained else f"original length, {original:,}"
        source = f" (the factor times the {length}{but})"
    return {**rows, "extended length": f"{_tokens(extended)} with scaling{source}"}


def _bands(it: "Explanation") -> Table | str:
    if not it.bands:
        is_array = not isinstance(it.rope.inv_freq, tuple)
        why = "explain does not read arrays" if is_array else "a pair has several frequencies"
        return f"Pairs and their wavelengths are not shown, because {why}."
    wavelength = f"wavelength in {unit_of(it.rope)}s"
    if it.rope.scaling is None:
        within = f"within the {'window' if is_windowed(it.rope, it.trained_length) else 'trained length'}"
        header = ["pairs", wavelength] + [within] * any(band.completes_turn is not None for band in it.bands)
        turns = {None: "not rotated", True: "at least one turn", False: "less than one turn"}
        rows = [(_ranges(band.pairs), _from_to(band.wavelengths), turns[band.completes_turn]) for band in it.bands]
        return Table(header, [row[: len(header)] for row in rows])
    header = ("pairs", "treatment", "divided by", wavelength, "after scaling")
    rows = []
    for band in it.bands:
        after = "the same" if band.treatment == "kept" else _from_to(band.wavelengths)
        divisors, before = _from_to(band.divisors), _from_to(band.unscaled_wavelengths)
        rows.append((_ranges(band.pairs), band.treatment, divisors, before, after))
    return Table(header, rows)


def _axes(it: "Explanation") -> Table | str:
    rows = [
        (f"{axis.axis} {axis.name}".strip(), str(len(axis.pairs)), _ranges(axis.pairs), _from_to(axis.wavelengths))
        for axis in it.axes
    ]
    return Table(("axis", "number of pairs", "pairs", "wavelength in positions"), rows) if rows else ""


def _angles(it: "Explanation") -> Sequence[str]:
    if not it.bands:
        return ()
    if all(band.treatment == "not rotated" for band in it.bands):
        return ["No pair is rotated."]
    trained, unseen, unit = it.trained_length, it.unseen_from, unit_of(it.rope)
    windowed = windowed_layers(it.rope, trained)
    sentence = (
        f"{windowed.capitalize()} score only keys of a window, at each length of the text. So longer texts show them "
        "no angles of scores that training did not show, unless the window grows."
    )
    of_window = [sentence] if windowed else []
    if windowed == THESE_LAYERS:
        return of_window
    if trained is None:
        return [
            *of_window,
            "The trained length is not known. State it with --trained-length, or in Python trained_length=, to see "
            "which angles training did not show.",
        ]
    if not unseen:
        return [f"Each rotated pair completes a turn within {trained:,} {unit}s. Training showed all its angles."]
    scaled = is_scaled(it.rope)
    training = f"training with {trained:,} {unit}s alone" if scaled else "training"
    first, last = min(unseen.values()), max(unseen.values())
    until = "" if first == last else f" for one pair, and at {last:,} for the last"
    sequences = sequences_of(it.rope)
    context = it.context if sequences.most is None else sequences.most
    reached = count_unseen(unseen, context)
    have = f"{reached} pair{'s have' if reached > 1 else ' has'}" if reached else "no pair has"
    within, begin = f"Within a context of {it.context:,} {unit}s", f"begin at position {first:,}{until}"
    if sequences.most is not None:  # longer ones have other frequencies
        reach = f"In sequences of {sequences}, {have} larger ones."
    elif reached:
        reach = f"Larger angles {begin}. {within}, {have} them."
    else:
        reach = f"{within}, {have} larger ones. Larger angles {begin}."
    return [
        *of_window,
        *([with_scaling(it.rope, it.extended_length)] if scaled else []),
        f"{len(unseen)} of {it.pairs} pairs complete no turn within {trained:,} {unit}s"
        f"{' before scaling' if scaled else ''}: {_ranges(unseen)}. "
        f"In causal attention, {training} showed only their angles below that of position {trained:,}. {reach}",
    ]


def _scores(it: "Explanation") -> Sequence[str]:
    rope, sentences = it.rope, []
    if it.attention_factor != 1.0:
        sentences.append(
            f"Sines and cosines are multiplied by the attention factor, {it.attention_factor:.6g}. The part of a score "
            f"that comes from rotated channels is multiplied by its square, {it.score_factor:.6g}."
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
    return sentences or ["The attention factor is 1: the rotation does not change the size of scores."]


def _inverse(it: "Explanation") -> str:
    """How a rotation is undone, if negative positions do not do it."""
    if it.attention_factor == 1.0 and it.rope.xpos is None and it.rope.layout != "interleaved_to_half":
        return ""
    return "rotate(inverse=True) undoes a rotation. A rotation by negative positions does not."


def _precision(it: "Explanation") -> str:
    if it.context is None or it.float32_error is None or it.bfloat16_step is None:
        return ""
    radians, pair = it.float32_error
    error = f"wrong by up to {radians:.2g} radians (pair {pair})" if radians else "exact"
    last = f"In the last {TRIED:,} positions below" if it.context > TRIED else "Below position"
    float32 = f"{last} {it.context:,}, float32(position) * float32(frequency) is {error}."
    bfloat16 = f" bfloat16 rounds positions to multiples of {it.bfloat16_step:,}." if it.bfloat16_step > 1 else ""
    has = "has the error of float32" if it.rope.phase == "float32" else "has no such error"
    return f'{float32}{bfloat16} With phase="{it.rope.phase}", rope_xp {has}.'


def _tokens(length: int | None) -> str:
    return "not known" if length is None else f"{length:,} tokens"


def _ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers as ranges. More than three ranges are shown as one, with their count."""
    numbers = list(numbers)
    text = ranges(numbers)
    return text if text.count(",") < 3 else f"{len(numbers)} of {numbers[0]}-{numbers[-1]}"


def _from_to(numbers: Range | None) -> str:
    if numbers is None:
        return ""
    least, greatest = map(_number, numbers)
    return least if least == greatest else f"{least} to {greatest}"


def _number(number: float) -> str:
    return f"{number:,.0f}" if 1000 <= number < 1e8 else f"{number:.3g}"


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
        training before scaling did not show: n tokens show angles below that of position n. Training with scaling shows
        more. Empty without a trained length, and in layers with a window, whose scores show the same angles in each
        text.
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
        read = f"Keys that were read: {', '.join(self.stated)}." if self.stated else ""
        return [
            Section("Warnings", self.warnings),
            Section("" if not self.warnings else "Properties", Table((), _properties(self))),
            Section("Pairs", _bands(self)),
            Section("Position axes", _axes(self)),
            Section("Angles", _angles(self)),
            Section("Scores", _scores(self)),
            Section("Inverse", _inverse(self)),
            Section("Precision", _precision(self)),
            Section(_source(self.rope).capitalize(), read),
        ]


def explain(rope: Embedding, context: int | None, trained_length: int | None) -> Explanation:
    """The explanation of a `RotaryEmbedding`, by default at the extended length, else the trained one."""
    lengths = lengths_of(rope, trained_length)
    # The short factors of LongRoPE are for the trained length.
    is_short = isinstance(rope.scaling, LongRopeScaling) and not rope.scaling.is_long
    known = (lengths.trained if is_short else lengths.extended) or lengths.trained
    pairs, provenance = scaled_pairs(rope), rope._provenance
    context = provenance.served or known if context is None else checks.length("context", context)
    return Explanation(
        rope=rope,
        pairs=rope.pairs,
        trained_length=lengths.trained,
        extended_length=lengths.extended,
        stated_length=provenance.max_position_embeddings,
        context=context,
        bands=bands_of(rope, pairs, shown_length(rope, lengths.trained)),
        axes=axes_of(rope, pairs),
        unseen_from=unseen_from(rope, pairs, lengths.trained),
        attention_factor=rope.attention_factor,
        score_factor=rope.attention_factor**2,
        softmax_scale=rope.softmax_scale,
        float32_error=None if context is None else float32_error(rope, context),
        bfloat16_step=None if context is None else bfloat16_step(context),
        stated=provenance.stated,
        assumed={default.key: default.source for default in provenance.defaults},
        warnings=warnings_of(rope, lengths, context),
    )


class Explained(NamedTuple):
    """A group of layers, and the explanation of its embedding; None if the layers are not rotated."""

    name: str
    layers: tuple[int, ...]
    explanation: Explanation | None


@dataclass(frozen=True)
class LayersExplained(Report):
    """What `rope-xp explain` prints for a config whose layers differ."""

    groups: tuple[Explained, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(warning for each in self.groups if each.explanation for warning in each.explanation.warnings)

    def sections(self) -> list[Section]:
        found = []
        for number, (name, layers, explanation) in enumerate(self.groups, 1):
            own = f"Layer{'s' * (len(layers) > 1)} {ranges(layers)}" if layers else "Their numbers are not known"
            kind = "" if name.startswith("layers ") else f": {name}"
            rotated = ". No rotary embedding." if explanation is None else "."
            found.append(Section(f"== Layers, {number} of {len(self.groups)}{kind} ==", own + rotated))
            found += [] if explanation is None else explanation.sections()
        return found


def ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers as text: 0-4, 6, 8-10."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
