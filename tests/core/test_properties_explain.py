"""explain and extend: their numbers, and the numbers in their texts, are those of formulas for random values."""

import re
from collections import Counter
from fractions import Fraction
from math import ceil, inf, log, pi

import formulas
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rules import ORIGINAL, RULES, rules

from rope_xp import (
    DynamicNTKScaling,
    LongRopeScaling,
    ProportionalScaling,
    RotaryEmbedding,
    Sections,
    YarnScaling,
)
from rope_xp.extension import METHODS

widths = st.integers(2, 40).map(lambda pairs: 2 * pairs)
bases = st.floats(5.0, 1e7)
factors = st.floats(1.01, 64.0)
MOVING = tuple(name for name in RULES if name != "proportional")  # rules that let no pair stay still
lengths = st.integers(16, 200_000)


def unscaled(base, width):
    return formulas.geometric(base, width).tolist()


@st.composite
def scaled_values(draw):
    """A value, its trained length, its frequencies without and with its rule, and any greatest divisor."""
    base, width, factor, trained = draw(st.tuples(bases, widths, factors, lengths))
    scaling, after = draw(rules(base, width, factor, trained, MOVING))
    rope = RotaryEmbedding(head_dim=width, layout="half", base=base, scaling=scaling)
    full = None if scaling is None or isinstance(scaling, LongRopeScaling) else factor
    return rope, getattr(scaling, ORIGINAL, trained), unscaled(base, width), after.tolist(), full


def is_close_to_an_edge(freqs, after, trained, blended_from):
    """Whether rounding decides: where a divisor or a wavelength lies on a limit."""
    divisors = [w / v for w, v in zip(freqs, after)]
    marks = [1.0] if blended_from is None else [1.0, blended_from]
    near = any(1e-12 < abs(d / mark - 1) < 1e-8 for d in divisors for mark in marks)
    return near or any(abs(2 * pi / w / trained - 1) < 1e-9 for w in freqs)


@given(scaled_values(), st.integers(1, 10**7))
def test_bands_and_lengths_are_those_of_the_formulas(value, context):
    rope, trained, freqs, after, full = value
    if is_close_to_an_edge(freqs, after, trained, full):
        return
    report = rope.explain(context, trained_length=trained)
    found = {pair: band for band in report.bands for pair in band.pairs}
    assert sorted(found) == list(range(len(freqs))) and report.pairs == len(freqs)
    for pair, (w, v) in enumerate(zip(freqs, after)):
        divisor = w / v
        interpolated = full is None or divisor > full * (1 - 1e-9)
        wanted = "raised" if divisor < 1 else "interpolated" if interpolated else "blended"
        wanted = "kept" if abs(divisor - 1) < 1e-9 else wanted
        band = found[pair]
        assert (band.treatment, band.completes_turn) == (wanted, 2 * pi / w <= trained)
        others = band.pairs
        assert band.divisors == pytest.approx(extent(freqs[j] / after[j] for j in others), rel=1e-9)
        assert band.wavelengths == pytest.approx(extent(2 * pi / after[j] for j in others), rel=1e-9)
        assert band.unscaled_wavelengths == pytest.approx(extent(2 * pi / freqs[j] for j in others), rel=1e-9)
    first = {j: ceil(round(w / v * trained, 6)) for j, (w, v) in enumerate(zip(freqs, after)) if w * trained < 2 * pi}
    assert dict(report.unseen_from).keys() == first.keys()
    assert all(abs(report.unseen_from[j] - position) <= 1e-9 * position + 1 for j, position in first.items())
    assert report.score_factor == rope.attention_factor**2 and report.context == context
    assert report.trained_length == trained
    text = " ".join(str(report).split())
    assert f"{trained:,} tokens" in text
    reached = sum(position < context for position in report.unseen_from.values())
    if not first:
        assert f"Each rotated pair completes a turn within {trained:,} tokens." in text
    else:
        assert f"{len(first)} of {len(freqs)} pairs complete no turn within {trained:,} tokens" in text
        assert f"showed only their angles below that of position {trained:,}." in text
        start, within = min(report.unseen_from.values()), f"Within a context of {context:,} tokens"
        length = None
        if isinstance(rope.scaling, DynamicNTKScaling):
            length = max(rope.scaling.seq_len or 0, rope.scaling.max_position_embeddings)
        if isinstance(rope.scaling, LongRopeScaling) and rope.scaling.short_factor != rope.scaling.long_factor:
            original = rope.scaling.original_max_position_embeddings
            length = original if (rope.scaling.seq_len or 0) <= original else None
        if length is not None:  # longer sequences have other frequencies
            reached = sum(position < length for position in report.unseen_from.values())
            assert f"{length:,} tokens, {have(reached)} larger ones" in text
            return
        assert f"{within}, {have(reached)} {'them' if reached else 'larger ones'}." in text
        assert f"Larger angles begin at position {start:,}" in text


def have(count):
    return f"{count} pair{'s have' if count > 1 else ' has'}" if count else "no pair has"


def extent(numbers):
    numbers = list(numbers)
    return min(numbers), max(numbers)


@given(
    st.lists(st.floats(1e-4, 2.0) | st.sampled_from([1.0, 0.5, 0.25]), min_size=1, max_size=4),
    st.integers(1, 2**26) | st.sampled_from([1, 131_072, 2**24 + 2**13, 2**40]),
    st.booleans(),
)
def test_rounded_phases(w, context, two_axes):
    """Products of float32 at the last positions against exact fractions; bfloat16 has 8 significant bits."""
    rows = (w, [1.0] * len(w)) if two_axes else (w,)
    report = RotaryEmbedding(head_dim=2 * len(w), layout="half", inv_freq=rows if two_axes else w).explain(context)
    positions, errors = range(max(context - 1024, 0), context), [0] * len(w)
    for pair, each in ((pair, each) for row in rows for pair, each in enumerate(row)):
        products = np.asarray(positions, np.float32) * np.float32(each)
        found = max(abs(Fraction(float(a)) - p * Fraction(each)) for a, p in zip(products, positions))
        errors[pair] = max(errors[pair], found)
    # The products in float64 are rounded: 2**-53 of the phase.
    rounding = context * 2.0**-51
    assert report.float32_error.radians == pytest.approx(float(max(errors)), abs=rounding)
    assert errors[report.float32_error.pair] >= max(errors) - rounding
    last, step = context - 1, 1
    while last >= 256 * step:
        step *= 2
    assert report.bfloat16_step == step
    text = " ".join(str(report).split())
    assert f"{'In the last 1,024 positions below' if context > 1024 else 'Below position'} {context:,}, " in text
    assert (f"multiples of {step:,}." in text) == (step > 1)
    radians, pair = report.float32_error
    assert (f"wrong by up to {radians:.2g} radians (pair {pair})." if radians else "is exact.") in text


@given(bases, widths, lengths, st.floats(1.1, 50.0), st.sampled_from(["plain", "reversed", "axes", "scaled"]))
def test_choices_are_those_of_the_formulas(base, width, trained, ratio, kind):
    to = max(int(trained * ratio), trained + 1)
    factor, freqs = to / trained, unscaled(base, width)
    grown = factor * to / trained - (factor - 1)
    after = {
        "linear": [w / factor for w in freqs],
        "ntk": unscaled(base * factor ** (width / (width - 2)), width),
        "dynamic": unscaled(base * grown ** (width / (width - 2)), width),
        "yarn": formulas.yarn(base, width, factor, trained).tolist(),
        "llama3": formulas.llama3(base, width, factor, 1.0, 4.0, trained).tolist(),
    }
    plain = RotaryEmbedding(head_dim=width, layout="half", base=base, reverse=kind == "reversed")
    if kind == "axes":
        plain = plain.replace(sections=Sections((width // 2 - 1, 1)))
    scaling = YarnScaling(factor=1.01, **{ORIGINAL: trained}) if kind == "scaled" else None
    report = plain.replace(scaling=scaling).extend(to, trained_length=trained)
    assert bool(report.warnings) == (kind == "scaled")
    assert (report.trained, report.to, report.pairs) == (trained, to, width // 2)
    assert report.factor == pytest.approx(factor)
    found = {choice.rule: choice for choice in report.choices}
    assert [*found] == [*METHODS] and [rule for rule in found if rule != "longrope"] == [*after]
    assert found["longrope"].rope is None and "must be given" in found["longrope"].refusal
    if any(abs(w * trained / (2 * pi) - 1) < 1e-9 for w in freqs):
        return
    assert report.incomplete == sum(w * trained < 2 * pi for w in freqs)
    for rule, scaled in after.items():
        divisors = [w / v for w, v in zip(freqs, scaled)]
        edges = [abs(d / mark - 1) for d in divisors for mark in (1.0, factor)]
        edges += [abs(to * v / (w * trained) - 1) for w, v in zip(freqs, scaled)]
        edges += [abs(to * v / (2 * pi) - 1) for v in scaled]
        last = [abs((to - 1) * v / (w * trained) - 1) for w, v in zip(freqs, scaled)]
        if any(1e-11 < edge < 1e-8 for edge in edges) or any(1e-11 < edge < 1e-6 for edge in last):
            continue
        choice = found[rule]
        kept = sum(abs(d - 1) < 1e-9 for d in divisors)
        full = sum(d >= factor * (1 - 1e-9) for d in divisors)
        assert (choice.kept, choice.blended, choice.interpolated) == (kept, width // 2 - kept - full, full), rule
        assert (choice.least_divisor, choice.greatest_divisor) == pytest.approx(extent(divisors), rel=1e-9)
        angles = [((to - 1) * v, w * trained) for w, v in zip(freqs, scaled)]  # the last, and the first that is unseen
        unseen = sum(angle >= first * (1 - 1e-9) for angle, first in angles if first < 2 * pi)
        assert choice.new_angles == unseen, rule
        assert choice.attention_factor == pytest.approx(0.1 * log(factor) + 1 if rule == "yarn" else 1.0)
        assert np.abs(np.atleast_2d(choice.rope.inv_freq)).sum(axis=0) == pytest.approx(scaled, rel=1e-9)
        assert choice.rope == plain.extend(to, rule, trained_length=trained)
        treatments = Counter(band.treatment for band in choice.rope.explain().bands for _ in band.pairs)
        assert [treatments[each] for each in ("kept", "blended", "interpolated")] == [
            kept,
            width // 2 - kept - full,
            full,
        ]
        least, greatest = (
            f"{d:.4g}" if d < 1000 else f"{d:,.0f}" for d in (choice.least_divisor, choice.greatest_divisor)
        )
        shown = least if least == greatest else f"{least} to {greatest}"
        row = next(line.split() for line in str(report).splitlines() if re.match(rf"{rule} +\d", line))
        assert row[1:4] == [str(number) for number in (kept, width // 2 - kept - full, full)]
        assert " ".join(row[4:-2]) == shown and row[-2:] == [str(unseen), f"{choice.attention_factor:.6g}"]
    assert f"a factor of {factor:g}" in " ".join(str(report).split())


@given(widths, st.floats(0.1, 0.9), st.floats(1.0, 8.0))
def test_pairs_that_are_not_rotated_are_in_a_band_of_their_own(width, part, factor):
    rule = ProportionalScaling(partial_rotary_factor=part, factor=factor)
    rope = RotaryEmbedding(head_dim=width, layout="half", base=10_000.0, scaling=rule)
    turning = int(part * width // 2)
    report = rope.explain(trained_length=2048)
    still = [band for band in report.bands if band.treatment == "not rotated"]
    assert [band.pairs for band in still] == [tuple(range(turning, width // 2))]
    assert still[0].wavelengths is None and still[0].completes_turn is None
    assert all(pair < turning for pair in report.unseen_from)
    assert rope.inv_freq[turning:] == (0.0,) * (width // 2 - turning)
    fastest = 2 * pi * factor
    rotated = [band.wavelengths[0] for band in report.bands if band.wavelengths]
    assert min(rotated, default=inf) == (pytest.approx(fastest) if turning else inf)
