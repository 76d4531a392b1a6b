"""compare against brute force: the maps of two random values as matrices by the oracle, at every position."""

import ml_dtypes
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rope_xp import LinearScaling, NTKScaling, RotaryEmbedding, Sections, XPos, YarnScaling, compare, identify

WIDTH, CONTEXT = 8, 300
bases = st.floats(20.0, 1e5)
LAYOUTS = ["half", "interleaved"]


@st.composite
def values(draw):
    """A value, and its frequencies and factor by formulas."""
    rotary_dim = draw(st.sampled_from([4, 8, 8]))
    base = draw(bases)
    w = np.asarray([base ** (-2 * j / rotary_dim) for j in range(rotary_dim // 2)])
    rule, factor = draw(st.sampled_from(["none", "linear", "ntk", "given", "factor"])), draw(st.floats(1.05, 9.0))
    options, magnitude = {"base": base}, 1.0
    if rule == "linear":
        options["scaling"], w = LinearScaling(factor=factor), w / factor
    elif rule == "ntk":
        options["scaling"] = NTKScaling(factor=factor)
        grown = base * factor ** (rotary_dim / (rotary_dim - 2))
        w = np.asarray([grown ** (-2 * j / rotary_dim) for j in range(rotary_dim // 2)])
    elif rule == "given":
        w = np.asarray([draw(st.floats(1e-5, 3.0)) for _ in range(rotary_dim // 2)])
        options = {"inv_freq": tuple(w.tolist())}
    elif rule == "factor":
        magnitude = options["attention_factor"] = draw(st.floats(0.98, 1.02))
    reverse = rule != "given" and draw(st.integers(0, 3)) == 0
    first = draw(st.sampled_from([0, WIDTH - rotary_dim]))
    layout = draw(st.sampled_from(LAYOUTS))
    given_here = {"rotary_dim": rotary_dim, "first_channel": first, "reverse": reverse, **options}
    return RotaryEmbedding(head_dim=WIDTH, layout=layout, **given_here), -w if reverse else w, magnitude


def matrices(value, positions, offset=0):
    """The maps "positions channels channels" of the columns of x, by complex numbers."""
    rope, w, magnitude = value
    angles = (np.asarray(positions)[:, None] + offset) * w
    result = np.broadcast_to(np.eye(WIDTH), (len(angles), WIDTH, WIDTH)).copy()
    span = slice(rope.first_channel, rope.first_channel + rope.rotary_dim)
    result[..., span] = magnitude * oracle.rotate(result[..., span], angles[:, None], rope.layout)
    return result


def changes(one, other, positions=range(CONTEXT), **offset):
    difference = matrices(one, positions) - matrices(other, positions, **offset)
    return np.linalg.norm(difference, ord=2, axis=(-2, -1))


def first_above(change, limit):
    """The first position, and whether rounding decides it."""
    first = int((change > limit).argmax()) if (change > limit).any() else None
    return first, bool((np.abs(change - limit) < 1e-9).any())


@given(values(), values(), st.booleans())
def test_values_differ_from_the_position_of_brute_force(one, other, alike):
    if alike:  # the same pairs of channels, which are compared without matrices
        fields = {name: getattr(one[0], name) for name in ("layout", "first_channel", "rotary_dim")}
        if one[0].rotary_dim != other[0].rotary_dim:
            return
        other = (other[0].replace(**fields), *other[1:])
    change = changes(one, other)
    first, unsure = first_above(change, 0.01)
    beyond, unsure_of_same = first_above(change, 1e-3)
    report = compare(one[0], other[0], context=CONTEXT)
    assert unsure or report.first_position == first
    assert unsure_of_same or report.same == (beyond is None)
    assert report.largest_change == pytest.approx(change[-1], abs=1e-9)
    assert bool(report.causes) or report.same
    assert ("random keys" in str(report)) == (report.attention_moved is not None)
    back = compare(other[0], one[0], context=CONTEXT)
    assert (back.first_position, back.same) == (report.first_position, report.same)
    if first is not None and not unsure:
        assert f"At position {first:,}, scores first change" in report.summary
    if report.same and (change == 0).all():
        assert report.causes == ()


@given(bases, st.sampled_from(["bfloat16", "float16", "float32"]), st.sampled_from(["exact", "float32"]))
def test_rounded_frequencies_are_compared_as_they_are(base, dtype, phase):
    """A base explains them, which is no reason to compare those of the base."""
    rope = RotaryEmbedding(head_dim=WIDTH, layout="half", base=base)
    exact = np.asarray(rope.inv_freq)
    w = exact.astype(getattr(ml_dtypes, dtype, dtype)).astype(np.float64)
    a, positions = rope.replace(base=None, inv_freq=w.tolist(), phase=phase), np.arange(CONTEXT)[:, None]
    angles = (np.float32(positions) * np.float32(w)).astype(np.float64) if phase == "float32" else positions * w
    change = 2 * np.abs(np.sin((angles - positions * exact) / 2)).max(axis=1)
    first, unsure = first_above(change, 0.01)
    beyond, unsure_of_same = first_above(change, 1e-3)
    report = compare(a, rope, context=CONTEXT)
    assert unsure or report.first_position == first
    assert unsure_of_same or report.same == (beyond is None)
    assert report.largest_change == pytest.approx(change[-1], abs=1e-9)


@given(values(), st.integers(0, 3), st.sampled_from([0, 0, 1, -1, 5]))
def test_functions_are_the_same_as_what_they_compute(value, digits, offset):
    """A function by the oracle, and one whose frequencies or positions are a little different."""
    rope, w, _ = value
    scale = 1.0 + (10.0**-digits if digits else 0.0)
    wrong = (rope, w * scale, value[2])

    def fn(x, positions):
        return np.einsum("...c,...cd->...d", x, matrices(wrong, np.asarray(positions).reshape(-1), offset))

    report = compare(fn, rope, context=CONTEXT, head_dim=WIDTH, shape="seq dim")
    change = changes(value, wrong, offset=offset)
    first, unsure = first_above(change, 0.01)
    beyond, unsure_of_same = first_above(change, 1e-3)
    assert unsure or report.first_position == first
    assert unsure_of_same or report.same == (beyond is None)


@given(bases, st.floats(1.001, 1.2), st.integers(1, 10**6))
def test_a_larger_base_is_named_with_both_numbers(base, times, context):
    a, b = (RotaryEmbedding(head_dim=WIDTH, layout="half", base=each) for each in (base, base * times))
    report = compare(a, b, context=context)
    w, v = (np.asarray(each.inv_freq) for each in (a, b))
    change = 2 * np.abs(np.sin(np.arange(min(context, 5000))[:, None] * (w - v) / 2)).max(axis=1)
    first, unsure = first_above(change, 0.01)
    if first is not None and not unsure:
        assert report.first_position == first and report.causes == ("base",)
    assert report.largest_change == pytest.approx(np.abs(2 * np.sin((context - 1) * (w - v) / 2)).max(), abs=1e-6)


@given(st.permutations([2, 4, 6]), st.permutations([2, 4, 6]), st.sampled_from(["chunked", "round_robin"]))
def test_sections_are_compared_on_each_axis_alone_and_together(sizes, others, order):
    rope = RotaryEmbedding(head_dim=24, layout="half", base=100.0)
    a, b = (rope.replace(sections=Sections(each, order=order)) for each in (sizes, others))
    one, other = np.asarray(a.inv_freq), np.asarray(b.inv_freq)  # "axes pairs"
    directions = np.concatenate([np.ones((1, 3)), np.eye(3)])
    steps = directions @ one - directions @ other
    change = 2 * np.abs(np.sin(np.arange(CONTEXT)[:, None, None] * steps / 2)).max(axis=(1, 2))
    report = compare(a, b, context=CONTEXT)
    assert report.first_position == first_above(change, 0.01)[0]
    assert report.same == (sizes == others) and (report.same or report.causes == ("sections",))


@given(st.floats(50.0, 2000.0), st.floats(50.0, 2000.0), st.integers(0, 40), st.integers(0, 40))
def test_decays_differ_by_their_growth_and_their_centre(scale, other_scale, centre, other_centre):
    """XPos multiplies pair j of a query by zeta ** ((position - centre) / scale_base), as its paper says."""
    ropes = [
        RotaryEmbedding(head_dim=WIDTH, layout="half", base=100.0, xpos=XPos(scale_base=each, centre=at))
        for each, at in ((scale, centre), (other_scale, other_centre))
    ]
    zeta = (np.arange(0, WIDTH, 2) + 0.4 * WIDTH) / (1.4 * WIDTH)
    positions = np.arange(CONTEXT)[:, None]
    sizes = [zeta ** ((positions - at) / each) for each, at in ((scale, centre), (other_scale, other_centre))]
    change = np.abs(sizes[0] - sizes[1]).max(axis=1)
    first, unsure = first_above(change, 0.01)
    report = compare(*ropes, context=CONTEXT)
    assert unsure or report.first_position == first
    assert report.largest_change == pytest.approx(change[-1], rel=1e-6, abs=1e-9)


@settings(max_examples=10)
@given(st.floats(1e-6, 1e-4), st.floats(1e-6, 1e-4))
def test_slow_pairs_of_other_channels_are_found_exactly(w, v):
    """Steps between positions are as long as the speed of the pairs allows, and no longer."""
    a, b = (RotaryEmbedding(head_dim=4, layout=layout, inv_freq=(w, v)) for layout in LAYOUTS)
    positions = np.arange(6_000)
    turn = np.exp(1j * positions[:, None] * np.asarray([w, v]))
    maps = np.zeros((2, len(positions), 4, 4))
    for number, pairs in enumerate((((0, 2), (1, 3)), ((0, 1), (2, 3)))):
        for pair, (one, other) in enumerate(pairs):
            maps[number, :, one, one] = maps[number, :, other, other] = turn[:, pair].real
            maps[number, :, other, one], maps[number, :, one, other] = turn[:, pair].imag, -turn[:, pair].imag
    first, unsure = first_above(np.linalg.norm(maps[0] - maps[1], ord=2, axis=(-2, -1)), 0.01)
    assert unsure or compare(a, b, context=len(positions)).first_position == first


@settings(max_examples=6)
@given(st.floats(1e-8, 1e-2), st.sampled_from([10, 100, 1000]))
def test_causes_beyond_the_context_are_sought_up_to_a_million_positions(part, context):
    a = RotaryEmbedding(head_dim=WIDTH, layout="half", base=100.0)
    b = a.replace(base=100.0 * (1 + part))
    change = 2 * np.abs(np.sin(np.arange(2**20)[:, None] * (np.asarray(a.inv_freq) - b.inv_freq) / 2)).max(axis=1)
    first, unsure = first_above(change, 1e-3)
    report = compare(a, b, context=context)
    if not unsure:
        assert report.same == (first is None or first >= context)
        assert report.causes == (() if first is None else ("base",))
    if report.same and first is not None:
        assert "At later positions they differ. Cause: base." in report.summary
        assert report.advice == () and report.attention_moved is None
    if not report.same:
        assert [each.cause for each in report.differences] == ["base"] and len(report.advice) == 1


A_ROPE = RotaryEmbedding(head_dim=WIDTH, layout="half", base=100.0)


def test_what_is_not_compared_by_numbers():
    """No rotation, other widths and other heads: causes, scores and first position, each way round."""
    nothing = compare(None, None, head_dim=WIDTH)
    assert nothing.same and nothing.causes == () and nothing.first_position is None and nothing.context == 4096
    still = A_ROPE.replace(base=None, inv_freq=(0.0,) * 4)
    assert compare(None, still).same
    wider = RotaryEmbedding(head_dim=2 * WIDTH, layout="interleaved", base=50.0)
    of_heads = RotaryEmbedding(head_dim=WIDTH, layout="half", inv_freq=(((1.0, 0.5, 0.2, 0.1), (0.9, 0.4, 0.1, 0.1)),))
    assert compare(of_heads, of_heads).same
    of_three = of_heads.replace(inv_freq=((*of_heads.inv_freq[0], (0.5,) * 4),))
    for one, other, causes, first, scores in (
        (None, A_ROPE, ("rotation",), 1, False),
        (A_ROPE, wider, ("width", "layout", "base"), 0, False),
        (of_heads, of_three, ("frequencies",), 0, False),
    ):
        for a, b in ((one, other), (other, one)):
            report = compare(a, b)
            assert (report.same, report.causes, report.first_position) == (False, causes, first)
            assert report.scores_are_same == scores and report.comparable and report.sample == ""
            assert (report.largest_change is None) == (causes != ("rotation",))
            assert report.problems == report.remarks == ()


@given(st.integers(5, 12), st.integers(5, 12), st.sampled_from(["a", "b", "both"]))
def test_the_context_is_the_longest_that_is_known(one, other, which):
    lengths = (2**one, 2**other)
    a, b = (
        A_ROPE.replace(scaling=YarnScaling(factor=2.0, original_max_position_embeddings=length))
        if which in (name, "both")
        else A_ROPE
        for name, length in zip("ab", lengths)
    )
    known = [2 * length for name, length in zip("ab", lengths) if which in (name, "both")]
    report = compare(a, b)
    assert report.context == max(known)
    assert f"{max(known):,}" in report.summary or report.first_position is not None


@given(st.floats(0.3, 1.5), st.floats(0.3, 1.5), st.sampled_from([2.0, 8.0]))
def test_scales_of_the_softmax_are_a_cause_of_their_own(one, other, factor):
    """That of DeepSeek: (0.1 mscale_all_dim log(factor) + 1) ** 2, which tables do not have."""
    a, b = (
        A_ROPE.replace(
            scaling=YarnScaling(factor=factor, original_max_position_embeddings=64, mscale=m, mscale_all_dim=m)
        )
        for m in (one, other)
    )
    report, equal = compare(a, b, context=100), a.softmax_scale == b.softmax_scale  # rounding may make them equal
    assert (report.same, report.causes) == (equal, () if equal else ("softmax scale",))
    if equal:
        return
    assert report.first_position is None and "different scales of the softmax" in report.summary
    assert (report.attention_moved > 0) == (abs(one - other) > 1e-9)


@pytest.mark.parametrize("head_dim", [256, 512, 1026])
def test_wide_heads_are_compared_by_numbers(head_dim):
    a, b = (RotaryEmbedding(head_dim=int(str(head_dim)), layout="half", base=base) for base in (100.0, 200.0))
    report = compare(a, b, context=50)
    assert report.causes == ("base",) and report.first_position == 1
    assert compare(a, a.replace(layout="interleaved"), context=50).causes == ("layout",)


def test_texts_of_layouts_widths_and_frequencies():
    one = RotaryEmbedding(head_dim=32, layout="half", base=100.0)
    for other, a, b in (
        (one.replace(layout="interleaved"), "half (", "interleaved ("),
        (one.replace(blocks=2), "half (", "half in 2 blocks ("),
        (one.replace(rotary_dim=16), "32 of 32 channels", "16 of 32 channels"),
        (one.replace(rotary_dim=16, first_channel=16), "32 of 32 channels", "16 of 32 channels from channel 16 on"),
        (one.replace(attention_factor=1.5), "1", "1.5"),
        (one.replace(scaling=LinearScaling(factor=2.0)), "none", LinearScaling(factor=2.0).describe()),
        (one.replace(reverse=True), "usual", "reversed"),
        (one.replace(base=200.0), "100", "200"),
    ):
        for first, second, texts in ((one, other, (a, b)), (other, one, (b, a))):
            difference = compare(first, second, context=100).differences[0]
            assert (difference.a.startswith(texts[0]), difference.b.startswith(texts[1])) == (True, True), difference
            assert " in 1 blocks" not in f"{difference}" and "from channel 0" not in f"{difference}"


@pytest.mark.parametrize("base", [100.0, 333.0])
def test_two_functions(base):
    """What the second computes is what the first should compute; both are found by calls."""

    def of(rope, offset=0):
        value = (rope, np.asarray(rope.inv_freq), 1.0)
        return lambda x, p: np.einsum("...c,...cd->...d", x, matrices(value, np.asarray(p).reshape(-1), offset))

    one, other = A_ROPE.replace(base=base), A_ROPE.replace(base=base * 1.5)
    options = {"head_dim": WIDTH, "context": 200, "shape": "seq dim"}
    assert compare(of(one), of(one), **options).same
    report = compare(of(one), of(other), **options)
    assert (report.same, report.causes, report.first_position) == (False, ("base",), 1)
    assert [report.differences[0].a, report.differences[0].b] == [f"{base:g}", f"{1.5 * base:g}"]
    for offset, words in ((1, "positions + 1"), (0.5, "positions + 0.5"), (-0.5, "positions - 0.5")):
        moved = compare(of(one, offset), of(one), **options)
        assert (moved.causes, moved.first_position) == (("offset",), 0)
        assert (moved.differences[0].a, moved.differences[0].b) == (words, "positions as given")


@pytest.mark.parametrize("counting", [False, True])
@pytest.mark.parametrize("at", [31, 32, 2**15, 2**16])
def test_the_first_position_of_what_nothing_explains_is_one_of_some(at, counting):
    """All below 32, and powers of two up to 65,536; a function that counts its rows has fewer."""

    def fn(x, positions):
        positions = np.arange(len(x)) if counting else np.asarray(positions)
        y = np.einsum("...c,...cd->...d", x, matrices((A_ROPE, np.asarray(A_ROPE.inv_freq), 1.0), positions))
        return y * (1.0 + 0.005 * (positions >= 4) + 0.1 * (positions == at))[:, None]

    options = {"head_dim": WIDTH, "shape": "seq dim", "positions_ignored": counting}
    report = compare(fn, A_ROPE, context=2**17, **options)
    assert (report.same, report.comparable) == (False, True)
    assert report.first_position == (at if at < 2**12 or not counting else None)
    assert compare(fn, A_ROPE, context=at, **options).first_position is None


def test_only_what_is_compared_may_be_given_without_its_name():
    for wrong in (lambda: compare(A_ROPE, A_ROPE, WIDTH), lambda: identify(lambda x, p: x, WIDTH, "seq dim")):
        with pytest.raises(TypeError, match="positional"):
            wrong()
    assert compare(a=A_ROPE, b=A_ROPE).same
    assert identify(fn=lambda x, p: x, head_dim=WIDTH).rope is None


@pytest.mark.parametrize("wrong_at", [None, 1])
@pytest.mark.parametrize("fails_at", [7, 3000])
def test_a_function_without_a_result_at_one_position(fails_at, wrong_at):
    def fn(x, positions):
        if (positions == fails_at).any():
            raise ValueError("this position is missing")
        y = np.einsum("...c,...cd->...d", x, matrices((A_ROPE, np.asarray(A_ROPE.inv_freq), 1.0), positions))
        return y * (1.0 + (positions == wrong_at))[:, None]

    report = compare(fn, A_ROPE, context=5000, shape="seq dim", head_dim=WIDTH)
    assert (report.same, report.comparable) == (False, True)
    assert report.causes == ("calls",) if wrong_at is None else {*report.causes} <= {"calls", "unknown"}
    assert "fails: it raises ValueError: this position is missing" in " ".join(report.problems)


def test_neither_of_two_functions_has_a_value():
    """One has another result at one position, and the angles of the other grow with the square of the position."""

    def of(angles_at, wrong_at=None):
        def fn(x, positions):
            y = np.einsum(
                "...c,...cd->...d", x, matrices((A_ROPE, np.asarray(A_ROPE.inv_freq), 1.0), angles_at(positions))
            )
            return y * (1.0 + (positions == wrong_at))[:, None]

        return fn

    options = {"head_dim": WIDTH, "context": 200, "shape": "seq dim"}
    squares, once = of(np.square), of(np.asarray, wrong_at=100)
    for one, other, first in ((once, squares, 2), (squares, once, 2), (once, A_ROPE, None), (A_ROPE, squares, 2)):
        report = compare(one, other, **options)
        assert (report.same, report.causes, report.comparable) == (False, ("unknown",), True)
        assert report.first_position == (first or 100)
    assert compare(squares, squares, **options).same
