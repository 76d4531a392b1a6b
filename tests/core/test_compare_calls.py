"""`compare` and `identify` of functions whose results depend on more than the channels and the position of a row.

Each function has an oracle of its own: rotation by complex numbers, and a mistake around it. Usual ones are in
tests/support/mistakes.py.
"""

from functools import partial
from itertools import product

import ml_dtypes
import numpy as np
import oracle
import pytest
from cases import for_each
from functions import rotary, rounded, turned

from rope_xp import LinearScaling, RotaryEmbedding, Sections, YarnScaling, assert_same, compare, identify

HEAD_DIM = 16
FREQUENCIES = np.array([float(w) for w in oracle.geometric(10_000.0, HEAD_DIM)])
ROPE = RotaryEmbedding(head_dim=HEAD_DIM, layout="half", base=10_000.0)
WIDE = RotaryEmbedding(head_dim=64, layout="half", base=10_000.0)


def rotate(x, positions, frequencies=FREQUENCIES):
    """x "seq dim", "heads seq dim" or "batch heads seq dim", at positions "seq" or "batch seq"."""
    angles = np.asarray(positions, dtype=np.float64)[..., None] * frequencies
    return oracle.rotate(x, angles[:, None] if angles.ndim > 2 else angles, "half")


def later_heads_are_not_rotated(x, positions, first=4):
    return np.concatenate([rotate(x[:, :first], positions), x[:, first:]], axis=1)


BATCHES = "batch heads seq dim"
IRREGULAR = {
    "a far token": (
        lambda x, p: x if x.shape[-2] == 1 and p.flat[0] > 2000 else rotate(x, p),
        None,
        "one token alone gives another result at position 4,095",
    ),
    "later tokens": (
        lambda x, p: rotate(x, p + (x.shape[-2] == 257) * (np.arange(x.shape[-2]) > 3)),
        "seq dim",
        "a long call gives another result at position 4 than a call with more tokens",
    ),
    "later heads in wide arrays": (
        lambda x, p: later_heads_are_not_rotated(x, p) if x.ndim == 4 else rotate(x, p),
        None,
        "equal rows of x give results that differ along heads and seq",
    ),
    "heads from 20 on": (partial(later_heads_are_not_rotated, first=20), BATCHES, "head 20"),
    "long calls": (
        lambda x, p: rotate(x, p, FREQUENCIES / (2.0 if x.shape[-2] > 2000 else 1.0)),
        None,
        "A call with 4,096 tokens",
    ),
    "calls of many tokens fail": (
        lambda x, p: rotate(x, p) if x.shape[-2] < 3000 else None,
        "seq dim",
        "A call with 4,096 tokens gives other results than a call with few.",
    ),
}


@for_each("name", IRREGULAR)
def test_a_result_that_depends_on_the_call_is_never_the_same(name):
    """All other calls agree, so that only calls can be the cause. The report says which calls are different."""
    fn, shape, words = IRREGULAR[name]
    report = compare(fn, ROPE, context=4096, shape=shape)
    assert (report.same, report.causes, report.comparable) == (False, ("calls",), True)
    assert words.lower() in report.summary.lower(), report.summary
    assert not compare(fn, fn, head_dim=HEAD_DIM, context=4096, shape=shape).same
    with pytest.raises(AssertionError, match="cause: results depend on the call"):
        assert_same(fn, ROPE, context=4096, shape=shape)
    found = identify(fn, HEAD_DIM, shape=shape)
    assert found.rope is None or found.longest < 2001


@for_each("shape", [None, "seq dim", "heads seq dim", BATCHES])
def test_a_right_function_is_the_same_in_all_calls(shape):
    assert_same(rotate, ROPE, context=4096, shape=shape)
    assert identify(rotate, HEAD_DIM, shape=shape).rope == ROPE


def test_a_counting_function_with_a_last_row_differs_from_there_on():
    def counting(x, positions):
        return rotate(x, np.minimum(np.arange(len(x)), 5000))

    for ignored in (False, True):
        report = compare(counting, ROPE, context=65_536, positions_ignored=ignored)
        assert not report.same and report.first_position == 5001
    assert compare(lambda x: rotate(x, np.arange(len(x))), ROPE, context=4096, positions_ignored=True).same
    report = compare(lambda x, p: rotate(x, np.arange(len(x))), ROPE, context=2**18, positions_ignored=True)
    assert "All positions below 131,072 were tried, and none beyond." in report.summary


@for_each("first", [8, 32, 100])
def test_rotation_that_begins_late_is_not_none(first):
    def late(x, positions):
        return np.where((positions >= first)[..., None], rotate(x, positions), x)

    report = compare(late, None, head_dim=HEAD_DIM)
    assert (report.same, report.causes, report.first_position) == (False, ("rotation",), first)
    assert compare(lambda x, p: x, None, head_dim=HEAD_DIM).same


def test_off_by_one_on_three_axes_is_an_offset():
    sections = Sections((4, 2, 2))
    rope = ROPE.replace(sections=sections)

    def fn(x, positions, offset=1):  # axes seq
        angles = (positions[list(sections.axis_of_pair)].T + offset) * FREQUENCIES
        return oracle.rotate(x, angles, "half")

    report = compare(fn, rope, shape="seq dim", context=4096)
    assert (report.same, report.causes) == (False, ("offset",))
    assert report.differences[0].a == "positions + 1"
    assert_same(partial(fn, offset=0), rope, shape="seq dim", context=4096)
    report = compare(partial(fn, offset=0), rope, shape="batch seq heads dim", context=4096)
    words = "The function rotates along another axis of x than the tokens."
    assert report.causes == ("axis",) and report.problems == (words,)
    given, w = ROPE.replace(base=None, inv_freq=(0.3 + FREQUENCIES).tolist()), 0.3 + FREQUENCIES
    report = compare(lambda x, p: oracle.rotate(x, p[:, None] * w, "half"), given, shape="batch seq heads dim")
    assert not report.same and report.causes == ("axis",)


@for_each("dtype", ["float64", "float32"])
def test_frequencies_given_as_numbers_are_known_when_they_are_rounded(dtype):
    given = ROPE.replace(base=None, inv_freq=(0.3 + FREQUENCIES).tolist())
    w = (0.3 + FREQUENCIES).astype(dtype).astype(np.float64)
    report = compare(lambda x, p: oracle.rotate(x, p[:, None] * w, "interleaved"), given, shape="seq dim")
    assert report.causes == ("layout",)
    of_axes = np.stack([w, 0.5 * w])
    given = ROPE.replace(base=None, inv_freq=of_axes.tolist())
    report = compare(lambda x, p: oracle.rotate(x, p.T @ of_axes, "interleaved"), given, shape="seq dim")
    assert report.causes == ("layout",)


@for_each("base", [10_000.0, 25_000.0, 150_000.0, 300_000.0])
def test_frequencies_in_bfloat16_have_the_base_that_they_were_made_from(base):
    w = np.array([float(w) for w in oracle.geometric(base, 64)]).astype(ml_dtypes.bfloat16).astype(np.float64)
    fn = partial(rotate, frequencies=w)
    report, found = compare(fn, WIDE.replace(base=31_000.0), shape="seq dim"), identify(fn, 64)
    assert report.causes == ("base", "phase precision") and report.differences[0].a == f"{base:,.0f}"
    assert (found.rope.base, found.precision, found.relative) == (base, "bfloat16", True)
    words = " ".join(found.reasons)
    assert "Frequencies are rounded to bfloat16" in words and "relative positions alone" not in words


LONG_YARN = YarnScaling(factor=4.0, original_max_position_embeddings=4096)
RULED = WIDE.replace(scaling=LONG_YARN)


def test_what_cannot_be_compared_is_not_said_to_differ():
    """Two reasons are named."""
    report = compare(lambda x, p: {}[p] if x.ndim < 3 else x[..., :5] if x.ndim < 4 else 1 / 0, ROPE)
    assert (report.same, report.comparable, report.causes) == (False, False, ("unknown",))
    assert "could not be compared" in report.summary and len(report.problems) == 2
    with pytest.raises(AssertionError, match="could not be compared"):
        assert_same(lambda x, p: 1 / 0, ROPE)
    assert compare(ROPE, ROPE.replace(base=500.0)).comparable and compare(rotate, ROPE).comparable


def test_functions_of_each_library(xp):
    """A right one in each dtype, with its tolerance; one that ends, and one that is relative to its call."""

    def on_library(change, x, positions, dtype="float32"):
        return xp.array(rotate(xp.numpy(x), change(xp.numpy(positions))), dtype)

    for dtype in xp.floats:
        fn, like = partial(on_library, lambda p: p, dtype=dtype), xp.array(np.zeros(1), dtype)
        found = identify(fn, HEAD_DIM, like=like)
        assert (found.rope, found.dtype, found.precision) == (ROPE, dtype, "exact"), found
        assert_same(fn, ROPE, like=like, context=512)
    like = xp.array(np.zeros(1), "float32")
    for change, cause in ((lambda p: np.arange(100)[p], "length"), (lambda p: p - p.min(), "calls")):
        assert compare(partial(on_library, change), ROPE, like=like, context=512).causes == (cause,)


def test_bfloat16_tables_of_several_axes_are_not_exact():
    """Tables change a unit score by more than the tolerance, which phases do not show."""
    sections = Sections((4, 2, 2))

    def fn(x, positions):  # axes seq
        angles = positions[list(sections.axis_of_pair)].T * FREQUENCIES
        return turned(x, angles, tables=rounded(ml_dtypes.bfloat16))

    report = compare(fn, ROPE.replace(sections=sections), shape="seq dim", context=20_000)
    assert (report.same, report.causes) == (False, ("phase precision",))


@for_each("change", [lambda p: p * (p >= 5000), lambda p: np.maximum(p - 100, 0)])
def test_what_begins_to_rotate_beyond_the_context_does_not_rotate(change):
    report = compare(lambda x, p: rotate(x, change(p)), ROPE, context=50)
    assert report.causes == ("rotation",) and "(a: not rotated; b: rotated)" in report.summary


def test_phases_of_irregular_calls_are_no_cause():
    """Of positions that are counted from the end of a call, frequencies with another rule seem to be rounded."""
    w = np.where(np.arange(HEAD_DIM // 2) == 2, 2, 1) * FREQUENCIES
    report = compare(lambda x, p: rotate(x, p.max() - p, w), ROPE, context=500)
    assert "calls" in report.causes and "phase precision" not in report.causes


def test_a_first_token_and_batches_that_are_not_rotated_are_not_the_same():
    """One row alone is rotated, but for its first token, whose position is 0 in a long call."""

    def fn(x, positions):  # batch heads seq dim
        y = rotate(x, np.broadcast_to(positions, (len(x), x.shape[2]))[:, None, :])
        y[:, :, 0] = x[:, :, 0]
        return y if len(x) == 1 else x

    report = compare(fn, ROPE, shape="batch heads seq dim")
    assert not report.same and {*report.causes} <= {"calls", "unknown"}


def test_an_attention_factor_that_tables_in_half_precision_hide_is_no_cause():
    rope = RULED.replace(scaling=YarnScaling(factor=4.0, original_max_position_embeddings=64))
    w = np.array(rope.inv_freq) ** 2 / RULED.replace(scaling=None).inv_freq
    fn = rotary(w, factor=rope.attention_factor, tables=rounded(np.float16))
    report = compare(fn, rope, shape="seq dim")
    assert not report.same and "attention factor" not in report.causes


def test_a_function_that_keeps_the_frequencies_of_its_longest_call():
    """After a long call, its short calls agree with each other: only the first of all calls tells."""
    longest = [100]

    def fn(x, positions):
        longest[0] = max(longest[0], positions.max())
        return rotate(x, positions, 100.0 / longest[0] * FREQUENCIES)

    report = compare(fn, ROPE, context=500)
    assert "state" in report.causes and "gives other results for a call after it was called" in report.summary
    assert compare(fn, ROPE.replace(scaling=LinearScaling(factor=4.99)), context=500).same


@for_each("dtype, first, more", [("float16", 100, 1), ("float16", 1000, 8), (ml_dtypes.bfloat16, 100, -8)])
def test_some_more_from_a_position_on_are_no_rounding(dtype, first, more):
    """Half-precision results hide what rounded phases would change, but those keep small positions as they are."""
    report = compare(lambda x, p: rotate(x, p + more * (p >= first)).astype(dtype), ROPE, context=20_000)
    assert report.causes == ("unknown",) and report.first_position == first


@for_each("dtype, tolerance", [("float16", 2.0**-8), ("float32", 1e-3)])
def test_bfloat16_angles_below_a_short_context(dtype, tolerance):
    """They change a unit score by 0.0078, of which the first trials see too little."""
    rope = ROPE.replace(scaling=LinearScaling(factor=4.0))

    def fn(x, positions):
        angles = (positions[:, None] * FREQUENCIES / 4.0).astype(ml_dtypes.bfloat16).astype(float)
        return oracle.rotate(x, angles, "half").astype(dtype)

    report = compare(fn, rope, shape="seq dim", context=50)
    assert (report.same, report.causes, report.tolerance) == (False, ("phase precision",), tolerance)


def test_no_base_explains_what_float16_phases_explain():
    """Rows of a batch in reversed order hide the calls that would tell."""

    def fn(x, positions):  # batch seq
        w = FREQUENCIES.astype(np.float16)
        angles = (np.asarray(positions).astype(np.float16)[..., None] * w).astype(float)
        return oracle.rotate(x, angles[..., None, :], "half").astype(np.float16)[::-1]

    report = compare(fn, ROPE, shape="batch seq heads dim", context=500)
    assert "calls" in report.causes and "base" not in report.causes


def test_tokens_from_the_10_000th_of_a_call_on_and_what_is_tried():
    fn = lambda x, p: np.where(np.arange(len(x))[:, None] < 10_000, rotate(x, p), x)  # noqa: E731
    report = compare(fn, ROPE, shape="seq dim", context=100_000)
    assert not report.same and {*report.causes} <= {"calls", "unknown"}
    report = compare(lambda x, p: rotate(x, p), ROPE, shape="seq dim", context=100_000)
    assert "The two agree at positions that were tried below 100,000." in report.summary
    assert "All positions below 32,768 were tried" in report.sample and "at most 32,768 tokens" in report.sample


@for_each("where, context", product(("frequencies", "products"), (50, 500)))
def test_float16_frequencies_and_products_have_no_base_of_their_own(where, context):
    """Through results in float16, few positions are enough for another base, or for other numbers of YaRN."""
    for rope in (ROPE, RULED.replace(head_dim=HEAD_DIM), ROPE.replace(scaling=LinearScaling(factor=4.0))):
        w = np.float64(np.float16(rope.inv_freq)) if where == "frequencies" else np.array(rope.inv_freq)

        def fn(x, positions, w=w, factor=rope.attention_factor):
            angles = positions[:, None] * w
            angles = np.float64(np.float16(angles)) if where == "products" else angles
            return (factor * oracle.rotate(x, angles, "half")).astype(np.float16)

        assert {*compare(fn, rope, shape="seq dim", context=context).causes} <= {"phase precision"}


def test_identify_says_which_positions_were_tried():
    """One wrong position far away is not found."""
    found = identify(lambda x, p: rotate(x, p * (p != 5000)), HEAD_DIM)
    assert "All positions below 4,096 were tried, and some up to 1,048,576." in found.reasons
    assert identify(lambda x, p: rotate(x, p * (p != 4000)), HEAD_DIM).rope is None


@for_each("reverse, sign, rope", product((True, False), (1.0, -1.0), (ROPE, ROPE.replace(sections=Sections((4, 4))))))
def test_sines_and_cosines_exchanged_in_both_directions(rope, sign, reverse):
    """Reversed after they are exchanged, or before."""
    w = np.atleast_2d(rope.inv_freq)

    def fn(x, positions):
        angles = sign * np.einsum("as,ap->sp", np.atleast_2d(positions), w) * (-1.0 if reverse else 1.0)
        return oracle.rotate(x, sign * np.pi / 2 - angles, "half")

    report = compare(fn, rope, shape="seq dim")
    reversed_too = reverse == (sign > 0)
    assert {*report.causes} == {"sincos order", *(["direction"] if reversed_too else [])}, report.summary


def test_a_function_that_fails_in_no_call_is_not_judged_by_axes_that_it_has_not():
    """Slices of axis 1 are the channels of "seq dim", and heads of wider arrays, where no call fails."""
    rope = RotaryEmbedding(head_dim=64, layout="half", base=10_000.0)

    def rotate(x, positions):
        angles = positions[:, None] * np.tile(rope.inv_freq, 2)
        return x * np.cos(angles) + np.concatenate([-x[:, 32:], x[:, :32]], axis=1) * np.sin(angles)

    report = compare(rotate, rope)
    assert report.same, report


@for_each("limit", [10.0, 100.0])
def test_results_that_are_limited_are_no_rotation(limit):
    def limited(x, positions):
        return np.clip(rotate(x, positions), -limit, limit)

    report = compare(ROPE, limited, shape="seq dim")
    assert not report.same and "not linear in x" in report.summary
    assert not identify(limited, head_dim=HEAD_DIM, shape="seq dim").is_rotation
