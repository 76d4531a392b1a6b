"""explain and extend: their numbers, and the numbers in their texts, are those of formulas for random values."""

import re
from math import ceil, inf, log, pi

import formulas
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rules import BASE, DIM, OTHERS

from rope_xp import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    ProportionalScaling,
    RotaryEmbedding,
    Sections,
    YarnScaling,
)
from rope_xp.kernels import KERNELS

ORIGINAL = "original_max_position_embeddings"
widths = st.integers(2, 40).map(lambda pairs: 2 * pairs)
bases = st.floats(5.0, 1e7)
factors = st.floats(1.01, 64.0)
lengths = st.integers(16, 200_000)


def unscaled(base, width):
    return formulas.geometric(base, width).tolist()


@st.composite
def scaled_values(draw):
    """A value, its trained length, and by how much its rule divides each frequency, by the formula."""
    base, width, factor, trained = draw(st.tuples(bases, widths, factors, lengths))
    freqs = unscaled(base, width)
    rule = draw(st.sampled_from(["none", "linear", "ntk", "dynamic", "yarn", "llama3", "longrope", "other"]))
    after, scaling = freqs, None
    if rule == "other":
        base, width, freqs = BASE, DIM, unscaled(BASE, DIM)
        scaling, after = draw(st.sampled_from(OTHERS))
        factor, trained = getattr(scaling, "factor", None), getattr(scaling, ORIGINAL, trained)
    elif rule == "linear":
        scaling, after = LinearScaling(factor=factor), [w / factor for w in freqs]
    elif rule == "ntk":
        scaling, after = NTKScaling(factor=factor), unscaled(base * factor ** (width / (width - 2)), width)
    elif rule == "dynamic":
        length = draw(lengths)
        grown = max(factor * length / trained - (factor - 1), 1.0)
        scaling = DynamicNTKScaling(factor=factor, max_position_embeddings=trained, seq_len=length)
        after = unscaled(base * grown ** (width / (width - 2)), width) if length > trained else freqs
    elif rule == "yarn":
        slow = draw(st.floats(0.5, 4.0))
        fast = slow * draw(st.floats(2.0, 32.0))
        scaling = YarnScaling(factor=factor, beta_fast=fast, beta_slow=slow, **{ORIGINAL: trained})
        after = formulas.yarn(base, width, factor, trained, fast, slow).tolist()
    elif rule == "llama3":
        low = draw(st.floats(0.5, 2.0))
        high = low * draw(st.floats(1.5, 8.0))
        scaling = Llama3Scaling(factor=factor, low_freq_factor=low, high_freq_factor=high, **{ORIGINAL: trained})
        after = formulas.llama3(base, width, factor, low, high, trained).tolist()
    elif rule == "longrope":
        lists = [tuple(first + step * j for j in range(width // 2)) for first, step in ((1.0, 0.125), (2.0, 1.0))]
        is_long = draw(st.booleans())
        names = dict(zip(("short_factor", "long_factor"), lists))
        scaling = LongRopeScaling(**names, factor=factor, seq_len=trained + is_long, **{ORIGINAL: trained})
        after = [w / divisor for w, divisor in zip(freqs, lists[is_long])]
    rope = RotaryEmbedding(head_dim=width, layout="half", base=base, scaling=scaling)
    return rope, trained, freqs, after, None if rule in ("none", "longrope") else factor


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
        kept = abs(divisor - 1) < 1e-9
        wanted = "kept" if kept else "interpolated" if full is None or divisor > full * (1 - 1e-9) else "blended"
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
        said = f"{reached} pairs have" if reached else "no pair has"
        assert f"{len(first)} of {len(freqs)} pairs complete no turn within {trained:,} tokens" in text
        assert f"Within a context of {context:,} tokens, {said} such angles." in text
        assert f"did not show is {min(report.unseen_from.values()):,}" in text


def extent(numbers):
    numbers = list(numbers)
    return min(numbers), max(numbers)


@given(bases, widths, st.integers(1, 2**26))
def test_rounded_phases(base, width, context):
    """float32 products at the last positions, by NumPy's own float32; bfloat16 has 8 significant bits."""
    report = RotaryEmbedding(head_dim=width, layout="half", base=base).explain(context)
    positions = np.arange(max(context - 1024, 0), context)[:, None]
    w = np.asarray(unscaled(base, width))
    errors = np.abs((positions.astype(np.float32) * w.astype(np.float32)).astype(np.longdouble) - positions * w)
    assert report.float32_error.radians == pytest.approx(float(errors.max()), rel=1e-4, abs=context * 2.0**-50)
    assert errors[:, report.float32_error.pair].max() >= errors.max() * (1 - 1e-4) - context * 2.0**-50
    last, step = context - 1, 1
    while last >= 256 * step:
        step *= 2
    assert report.bfloat16_step == step
    text = " ".join(str(report).split())
    assert f"{'In the last 1,024 positions below' if context > 1024 else 'Below position'} {context:,}, " in text
    assert (f"multiples of {step:,}." in text) == (step > 1)


@given(bases, widths, lengths, st.floats(1.1, 50.0))
def test_choices_are_those_of_the_formulas(base, width, trained, ratio):
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
    report = RotaryEmbedding(head_dim=width, layout="half", base=base).extend(to, trained_length=trained)
    assert (report.trained, report.to, report.pairs) == (trained, to, width // 2)
    assert report.factor == pytest.approx(factor)
    found = {choice.rule: choice for choice in report.choices}
    if any(abs(w * trained / (2 * pi) - 1) < 1e-9 for w in freqs):
        return
    assert report.incomplete == sum(w * trained < 2 * pi for w in freqs)
    for rule, scaled in after.items():
        divisors = [w / v for w, v in zip(freqs, scaled)]
        edges = [abs(d / mark - 1) for d in divisors for mark in (1.0, factor)]
        edges += [abs(to * v / (w * trained) - 1) for w, v in zip(freqs, scaled)]
        edges += [abs(to * v / (2 * pi) - 1) for v in scaled]
        if any(1e-11 < edge < 1e-8 for edge in edges):
            continue
        choice = found[rule]
        kept = sum(abs(d - 1) < 1e-9 for d in divisors)
        full = sum(d >= factor * (1 - 1e-9) for d in divisors)
        assert (choice.kept, choice.blended, choice.interpolated) == (kept, width // 2 - kept - full, full), rule
        assert (choice.least_divisor, choice.greatest_divisor) == pytest.approx(extent(divisors), rel=1e-9)
        unseen = sum(w * trained < 2 * pi and to * v > w * trained * (1 + 1e-9) for w, v in zip(freqs, scaled))
        assert choice.new_angles == unseen, rule
        assert choice.attention_factor == pytest.approx(0.1 * log(factor) + 1 if rule == "yarn" else 1.0)
        assert choice.rope.inv_freq == pytest.approx(scaled, rel=1e-9)
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


def shown(number):
    """Three digits, or whole numbers from 1,000 on."""
    return f"{number:,.0f}" if 1000 <= number < 1e8 else f"{number:.3g}"


def from_to(numbers):
    least, greatest = map(shown, extent(numbers))
    return least if least == greatest else f"{least} to {greatest}"


def ranges(numbers):
    """Ascending numbers as ranges; of more than three ranges, the count and the ends."""
    numbers = sorted(numbers)
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    if len(starts) > 3:
        return f"{len(numbers)} of {numbers[0]}-{numbers[-1]}"
    return ", ".join(f"{one}" if one == other else f"{one}-{other}" for one, other in zip(starts, ends))


def table(report, title):
    """The rows of a table in Markdown, below a title."""
    text = report.to_markdown().split(f"## {title}\n\n")[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]


@given(scaled_values())
def test_the_table_of_pairs_shows_the_numbers_of_the_formulas(value):
    rope, trained, freqs, after, full = value
    if is_close_to_an_edge(freqs, after, trained, full):
        return
    report = rope.explain(trained_length=trained)
    header, _, *rows = table(report, "Pairs")
    bands = [band.pairs for band in report.bands]
    assert len(rows) == len(bands)
    for row, pairs in zip(rows, bands):
        before = from_to(2 * pi / freqs[j] for j in pairs)
        turns = 2 * pi / freqs[pairs[0]] <= trained
        if rope.scaling is None:
            assert row == [ranges(pairs), before, "at least one turn" if turns else "less than one turn"]
            continue
        kept = all(abs(freqs[j] / after[j] - 1) < 1e-9 for j in pairs)
        wanted = before, "the same" if kept else from_to(2 * pi / after[j] for j in pairs)
        assert row[0] == ranges(pairs) and tuple(row[3:]) == wanted
        assert row[2] == from_to(freqs[j] / after[j] for j in pairs)
    assert header == (
        ["pairs", "wavelength in tokens", "within the trained length"]
        if rope.scaling is None
        else ["pairs", "treatment", "divided by", "wavelength in tokens", "after scaling"]
    )
    is_unknown = not any(hasattr(rope.scaling, name) for name in (ORIGINAL, "max_position_embeddings"))
    assert (rope.explain(100).bands[0].completes_turn is None) == is_unknown
    if is_unknown and rope.scaling is None:
        assert table(rope.explain(100), "Pairs")[0] == ["pairs", "wavelength in tokens"]
        assert "The trained length is not known." in str(rope.explain(100))


@given(st.lists(st.integers(1, 5), min_size=2, max_size=4), st.sampled_from(["chunked", "round_robin", "axial"]))
def test_the_table_of_axes(sizes, order):
    """Which pairs an axis has: those whose frequency it has."""
    sizes = [2 * size for size in sizes]
    rope = RotaryEmbedding(
        head_dim=2 * sum(sizes), layout="half", base=5000.0, sections=Sections(tuple(sizes), order=order)
    )
    header, _, *rows = table(rope.explain(100), "Position axes")
    assert header == ["axis", "number of pairs", "pairs", "wavelength in tokens"] and len(rows) == len(sizes)
    for axis, row in enumerate(rows):
        own = [pair for pair, w in enumerate(rope.inv_freq[axis]) if w]
        lengths_of_axis = [2 * pi / rope.inv_freq[axis][pair] for pair in own]
        assert row == [str(axis), str(len(own)), ranges(own), from_to(lengths_of_axis)]


@given(st.floats(0.1, 3.0) | st.just(1.0), st.sampled_from(["half", "interleaved_to_half"]), st.booleans())
def test_what_undoes_a_rotation_and_changes_scores(factor, layout, whole):
    options = {} if whole else {"rotary_dim": 8}
    rope = RotaryEmbedding(head_dim=16, layout=layout, base=100.0, attention_factor=factor, **options)
    text = " ".join(str(rope.explain(64)).split())
    assert ("undoes a rotation" in text) == (factor != 1.0 or layout != "half")
    if factor == 1.0:
        assert "The attention factor is 1: the rotation does not change the size of scores." in text
        return
    assert f"Sines and cosines are multiplied by the attention factor, {factor:.6g}." in text
    assert f"is multiplied by its square, {factor**2:.6g}." in text
    assert ("The part from the other 8 channels does not change." in text) != whole
    assert "does not change the size" not in text and "softmax scale" not in text


@given(st.floats(0.2, 2.0), st.floats(1.5, 40.0))
def test_the_scale_of_the_softmax_is_named_with_its_value(all_dims, factor):
    rule = YarnScaling(**{"factor": factor, ORIGINAL: 1024}, mscale=all_dims, mscale_all_dim=all_dims)
    report = RotaryEmbedding(head_dim=16, layout="half", base=100.0, scaling=rule).explain()
    scale = (0.1 * all_dims * log(factor) + 1) ** 2
    assert report.softmax_scale == pytest.approx(scale)
    assert f"multiply its softmax scale, and so all scores, by {report.softmax_scale:.6g}." in " ".join(
        str(report).split()
    )


@given(st.integers(1, 2**22), st.sampled_from([(1.0, 0.5, 0.25), (0.3, 0.01)]))
def test_errors_of_float32_are_in_the_text(context, inv_freq):
    """Powers of two times whole numbers below 2**24 are exact."""
    report = RotaryEmbedding(head_dim=2 * len(inv_freq), layout="half", inv_freq=inv_freq).explain(context)
    radians, pair = report.float32_error
    said = f"wrong by up to {radians:.2g} radians (pair {pair})." if radians else "is exact."
    assert said in " ".join(str(report).split())
    assert (radians == 0.0) == (inv_freq[0] == 1.0 or context == 1)


def test_only_a_kernel_that_is_not_chosen_has_a_reason():
    """With `x`, the kernel that runs for it."""
    for kernel in ("reference", "fastest"):
        rope = RotaryEmbedding(head_dim=16, layout="half", base=100.0, kernel=kernel)
        rows = [each.describe(*x).split("\nkernel")[1].split() for each, x in ((rope, ()), (rope, (np.ones((2, 16)),)))]
        assert " ".join(rows[0]) == f"{kernel} ({KERNELS[kernel]})"
        assert (rows[1] == rows[0]) == (kernel == "reference")
