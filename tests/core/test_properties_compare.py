"""compare against brute force: the maps of two random values as matrices by the oracle, at every position."""

from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
from functions import angles_of, rotary, turned
from hypothesis import given, settings
from hypothesis import strategies as st

from rope_xp import LinearScaling, NTKScaling, RotaryEmbedding, Sections, XPos, compare, identify

WIDTH, CONTEXT = 8, 300
bases = st.floats(20.0, 1e5)
A_ROPE = RotaryEmbedding(head_dim=WIDTH, layout="half", base=100.0)


class Value(NamedTuple):
    """A value or None, and what it computes by formulas."""

    rope: RotaryEmbedding | None
    frequencies: np.ndarray = np.zeros((1, 1))  # "axes pairs"
    factor: np.ndarray = np.ones((CONTEXT, 1))  # "positions pairs"
    phase: str = "float64"

    def __repr__(self):
        return repr(self.rope)

    def matrices(self, offset=0):
        """Maps "directions positions channels channels": of all axes together, and of each alone."""
        unit, axes = np.broadcast_to(np.eye(WIDTH), (CONTEXT, WIDTH, WIDTH)), len(self.frequencies)
        if self.rope is None:
            return unit[None]
        where, span = np.arange(CONTEXT) + offset, (self.rope.layout, self.rope.first_channel)
        return np.stack(
            [
                turned(unit, angles_of(where, w, self.phase)[:, None], *span, factor=self.factor[:, None])
                for w in np.concatenate([np.ones((int(axes > 1), axes)), np.eye(axes)]) @ self.frequencies
            ]
        )


@st.composite
def values(draw, with_axes=False):
    """A value, and its frequencies and factors by formulas; those of sections are the library's."""
    rotary_dim, base = (WIDTH if with_axes else draw(st.sampled_from([4, 8, 8]))), draw(bases)
    channel = np.arange(0, rotary_dim, 2)
    w, magnitude, phase = base ** (-channel / rotary_dim), 1.0, "float64"
    fields = {"base": base, "layout": draw(st.sampled_from(["half", "interleaved", "interleaved_to_half"]))}
    if with_axes:
        order = draw(st.sampled_from(["chunked", "round_robin"]))
        rope = A_ROPE.replace(**fields, sections=Sections(draw(st.permutations([2, 1, 1])), order=order))
        return Value(rope, np.asarray(rope.inv_freq))
    fields |= {"rotary_dim": rotary_dim, "first_channel": draw(st.sampled_from([0, WIDTH - rotary_dim]))}
    kind = draw(st.sampled_from(["plain", "linear", "ntk", "given", "factor", "decay", "phase"]))
    factor = draw(st.floats(1.05, 9.0))
    if kind == "linear":
        fields["scaling"], w = LinearScaling(factor=factor), w / factor
    elif kind == "ntk":
        fields["scaling"] = NTKScaling(factor=factor)
        w = (base * factor ** (rotary_dim / (rotary_dim - 2))) ** (-channel / rotary_dim)
    elif kind == "given":
        w = np.asarray([draw(st.floats(1e-5, 3.0)) for _ in channel])
        fields |= {"base": None, "inv_freq": tuple(w.tolist())}
    elif kind == "factor":
        magnitude = fields["attention_factor"] = draw(st.floats(0.98, 1.02) | st.just(1.5))
    elif kind == "decay":  # as the paper of XPos says
        scale, centre = draw(st.floats(50.0, 2000.0)), draw(st.integers(0, 290))
        fields["xpos"] = XPos(scale_base=scale, centre=centre)
        zeta = (channel + 0.4 * rotary_dim) / (1.4 * rotary_dim)
        magnitude = zeta ** ((np.arange(CONTEXT)[:, None] - centre) / scale)
    elif kind == "phase":
        phase = fields["phase"] = "float32"
    if kind != "given" and draw(st.integers(0, 3)) == 0:
        fields["reverse"], w = True, -w
    return Value(A_ROPE.replace(**fields), w[None], np.broadcast_to(magnitude, (CONTEXT, len(w))), phase)


def sizes(difference):
    """By how much maps change a unit score at each position, along the direction where that is most."""
    return np.linalg.norm(difference, ord=2, axis=(-2, -1)).max(axis=0)


def of_keys(value):
    """XPos divides keys by the factor that multiplies queries."""
    return value._replace(factor=1.0 / value.factor) if value.rope and value.rope.xpos else value


def changes(one, other, **offset):
    queries, keys = (
        sizes(a.matrices() - b.matrices(**offset)) for a, b in ((one, other), (of_keys(one), of_keys(other)))
    )
    return np.maximum(queries, keys)


def first_above(change, limit):
    """The first position, and whether rounding decides it."""
    first = int((change > limit).argmax()) if (change > limit).any() else None
    return first, bool((np.abs(change - limit) < 1e-9).any())


def scores(value):
    """Of queries at each position with keys at position 0."""
    maps = value.matrices()
    return maps @ maps[:, :1].swapaxes(-1, -2)


pairs_of_values = st.tuples(values(), values() | st.just(Value(None))) | st.tuples(*[values(with_axes=True)] * 2)


@given(pairs_of_values, st.booleans(), st.sampled_from([1e-3, 0.01, 0.3, 2.5]))
def test_values_differ_from_the_position_of_brute_force(pair, alike, tolerance):
    """At any context and tolerance. The first position follows from neither."""
    one, other = pair
    if alike and other.rope and one.rope.rotary_dim == other.rope.rotary_dim:  # which are compared without matrices
        fields = {name: getattr(one.rope, name) for name in ("layout", "first_channel", "rotary_dim")}
        other = other._replace(rope=other.rope.replace(**fields))
    change, decays = changes(one, other), any(each.rope and each.rope.xpos for each in (one, other))
    first, unsure = first_above(change, 0.01)
    of_scores = sizes(scores(one) - scores(other)).max()
    for context in sorted({1, 2, *((first, first + 1) if first else ()), CONTEXT}):
        report = compare(one.rope, other.rope, context=context, tolerance=tolerance)
        back = compare(other.rope, one.rope, context=context, tolerance=tolerance)
        beyond, unsure_of_same = first_above(change[:context], tolerance)
        assert unsure or report.first_position == (first if first is not None and first < context else None)
        assert unsure_of_same or report.same == (beyond is None)
        assert unsure_of_same or report.first_beyond_tolerance == beyond
        assert report.largest_change == pytest.approx(change[context - 1], rel=1e-9, abs=1e-9)
        assert (back.first_position, back.same) == (report.first_position, report.same)
        assert report.causes or report.same
        assert ("random keys" in str(report)) == (report.attention_moved is not None)
        if not report.same and report.first_position is not None:
            assert f"At position {report.first_position:,}, scores first change" in report.summary
    if not (decays or "float32" in (one.phase, other.phase) or abs(of_scores - tolerance) < 1e-9):
        assert report.scores_are_same == (of_scores <= tolerance)
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
    if value.rope.xpos or value.phase != "float64":
        return
    wrong = value._replace(frequencies=value.frequencies * (1.0 + (10.0**-digits if digits else 0.0)))
    span, factor = (value.rope.layout, value.rope.first_channel), value.factor[0, 0]
    fn = rotary(wrong.frequencies[0], *span, offset=offset, factor=factor)
    report = compare(fn, value.rope, context=CONTEXT, head_dim=WIDTH, shape="seq dim")
    change = changes(value, wrong, offset=offset)
    first, unsure = first_above(change, 0.01)
    beyond, unsure_of_same = first_above(change, 1e-3)
    assert unsure or report.first_position == first
    assert unsure_of_same or report.same == (beyond is None)


@settings(max_examples=10)
@given(bases, st.floats(1e-8, 0.2), st.sampled_from([10, 100, 1000]) | st.integers(1, 2**20))
def test_bases_are_compared_at_any_context_and_named(base, part, context):
    """Causes beyond the context are sought up to a million positions."""
    a, b = (A_ROPE.replace(base=each) for each in (base, base * (1 + part)))
    step = np.asarray(a.inv_freq) - b.inv_freq
    change = 2 * np.abs(np.sin(np.arange(2**20)[:, None] * step / 2)).max(axis=1)
    report = compare(a, b, context=context)
    beyond, unsure = first_above(change, 1e-3)
    if not unsure:
        assert report.same == (beyond is None or beyond >= context)
        assert report.causes == (() if beyond is None else ("base",))
    first, unsure = first_above(change[:context], 0.01)
    assert unsure or report.first_position == first
    assert report.largest_change == pytest.approx(change[context - 1], abs=1e-6)
    if report.same and report.causes:
        assert "At later positions they differ. Cause: base." in report.summary
        assert report.advice == () and report.attention_moved is None
    if not report.same:
        assert [each.cause for each in report.differences] == ["base"] and len(report.advice) == 1


@settings(max_examples=10)
@given(st.floats(1e-6, 1e-4), st.floats(1e-6, 1e-4), st.booleans())
def test_slow_pairs_of_other_channels_are_found_exactly(w, v, decays):
    """Steps between positions are as long as the speed of the pairs allows, and no longer; with a decay, all of 1."""
    count = 100 if decays else 6_000
    a = RotaryEmbedding(head_dim=4, layout="half", inv_freq=(w, v))
    b = a.replace(layout="interleaved", xpos=XPos(scale_base=400.0) if decays else None)
    unit, angles = np.broadcast_to(np.eye(4), (count, 4, 4)), np.arange(count)[:, None, None] * np.asarray([w, v])
    factor = np.array([0.4 / 1.4, 0.9 / 1.4]) ** (np.arange(count)[:, None, None] / 400.0) if decays else 1.0
    maps = turned(unit, angles), turned(unit, angles, "interleaved", factor=factor)
    first, unsure = first_above(np.linalg.norm(maps[0] - maps[1], ord=2, axis=(-2, -1)), 0.01)
    for pair in ((a, b), (b, a)):
        assert unsure or compare(*pair, context=count).first_position == first


def test_the_widest_heads_are_compared_by_their_channels():
    head_dim, w = 1026, np.random.default_rng(0).uniform(0.1, 3.0, 513)
    ropes = [RotaryEmbedding(head_dim=head_dim, layout=each, inv_freq=w) for each in ("half", "interleaved")]
    one, other = (turned(np.eye(head_dim), 3 * w, each.layout) for each in ropes)
    report = compare(*ropes, context=4)
    assert report.largest_change == pytest.approx(np.linalg.norm(one - other, axis=1).max())
    assert (report.causes, report.first_position) == (("layout",), 1)


OF_A = rotary(A_ROPE.inv_freq)
OPTIONS = {"head_dim": WIDTH, "context": 200, "shape": "seq dim"}


@pytest.mark.parametrize("offset", [1, 0.5, -0.5])
def test_two_functions(offset):
    """What the second computes is what the first should compute; both are found by calls."""
    assert compare(OF_A, OF_A, **OPTIONS).same
    moved = compare(rotary(A_ROPE.inv_freq, offset=offset), OF_A, **OPTIONS)
    assert (moved.causes, moved.first_position) == (("offset",), 0)
    words = f"positions {'+-'[offset < 0]} {abs(offset)}"
    assert (moved.differences[0].a, moved.differences[0].b) == (words, "positions as given")


@pytest.mark.parametrize("counting", [False, True])
@pytest.mark.parametrize("at", [31, 32, 2**15, 2**16])
def test_the_first_position_of_what_nothing_explains_is_one_of_some(at, counting):
    """All below 32, and powers of two up to 65,536; a function that counts its rows has fewer."""

    def fn(x, positions):
        positions = np.arange(len(x)) if counting else np.asarray(positions)
        return OF_A(x, positions) * (1.0 + 0.005 * (positions >= 4) + 0.1 * (positions == at))[:, None]

    options = {"head_dim": WIDTH, "shape": "seq dim", "positions_ignored": counting}
    report = compare(fn, A_ROPE, context=2**17, **options)
    assert (report.same, report.comparable) == (False, True)
    assert report.first_position == (at if at < 2**12 or not counting else None)
    assert compare(fn, A_ROPE, context=at, **options).first_position is None


def test_the_last_position_is_one_of_those_that_are_tried():
    last = 300_006
    report = compare(lambda x, p: OF_A(x, p) * (1.0 + (p == last))[:, None], A_ROPE, **OPTIONS | {"context": last + 1})
    assert (report.same, report.first_position) == (False, last)


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
        return OF_A(x, positions) * (1.0 + (positions == wrong_at))[:, None]

    report = compare(fn, A_ROPE, **OPTIONS | {"context": 5000})
    assert (report.same, report.comparable) == (False, True)
    assert report.causes == ("calls",) if wrong_at is None else {*report.causes} <= {"calls", "unknown"}
    assert "fails: it raises ValueError: this position is missing" in " ".join(report.problems)


def test_neither_of_two_functions_has_a_value():
    """One has another result at one position, and the angles of the other grow with the square of the position."""
    squares = lambda x, p: OF_A(x, p * p)  # noqa: E731
    once = lambda x, p: OF_A(x, p) * (1.0 + (p == 100))[:, None]  # noqa: E731
    for one, other, first in ((once, squares, 2), (squares, once, 2), (once, A_ROPE, 100), (A_ROPE, squares, 2)):
        report = compare(one, other, **OPTIONS)
        assert (report.same, report.causes, report.comparable) == (False, ("unknown",), True)
        assert report.first_position == first
    assert compare(squares, squares, **OPTIONS).same
