"""`compare` and `identify` of functions whose results depend on more than the channels and the position of a row.

Each function has an oracle of its own: rotation by complex numbers, and a mistake around it.
"""

from functools import partial
from itertools import product

import ml_dtypes
import numpy as np
import oracle
import pytest
from cases import for_each

from rope_xp import LinearScaling, Llama3Scaling, RotaryEmbedding, Sections, YarnScaling, assert_same, compare, identify

HEAD_DIM = 16
FREQUENCIES = np.array([float(w) for w in oracle.geometric(10_000.0, HEAD_DIM)])
ROPE = RotaryEmbedding(head_dim=HEAD_DIM, layout="half", base=10_000.0)
WIDE = RotaryEmbedding(head_dim=64, layout="half", base=10_000.0)


def rotate(x, positions, frequencies=FREQUENCIES):
    """x "seq dim", "heads seq dim" or "batch heads seq dim", at positions "seq" or "batch seq"."""
    angles = np.asarray(positions, dtype=np.float64)[..., None] * frequencies
    return oracle.rotate(x, angles[:, None] if angles.ndim > 2 else angles, "half")


def one_token_is_not_rotated(x, positions):
    return x if x.shape[-2] == 1 else rotate(x, positions)


def positions_of_the_first_batch_row(x, positions):
    return rotate(x, positions if positions.ndim == 1 else np.broadcast_to(positions[:1], positions.shape))


def heads_reversed(x, positions):
    return rotate(x, positions)[:, ::-1]


def later_heads_are_not_rotated(x, positions, first=4):
    return np.concatenate([rotate(x[:, :first], positions), x[:, first:]], axis=1)


def of_a_layer(result):
    """Two layers share a cache: a call gets the result, or the tables, of an earlier call with the same key."""
    kept = {}

    def fn(x, positions):
        if result:
            return kept.setdefault((x.shape, positions.tobytes()), rotate(x, positions))
        return rotate(x, kept.setdefault((x.shape, int(positions.flat[0])), positions))

    return fn


def longer_calls_are_scaled(x, positions):
    return rotate(x, positions, FREQUENCIES / (2.0 if x.shape[-2] > 2000 else 1.0))


def far_tokens_alone_are_not_rotated(x, positions):
    return x if x.shape[-2] == 1 and positions.flat[0] > 2000 else rotate(x, positions)


def added_noise():
    rng = np.random.default_rng(0)
    return lambda x, positions: rotate(x, positions) + rng.normal(size=x.shape)


BATCHES = "batch heads seq dim"
IRREGULAR = {
    "relative to the call": (lambda x, p: rotate(x, p - p.min()), None, "do not begin with 0"),
    "relative to the first": (lambda x, p: rotate(x, p - p[..., :1]), None, "do not begin with 0|follow neither"),
    "one token": (one_token_is_not_rotated, None, "one token alone"),
    "a far token": (far_tokens_alone_are_not_rotated, None, "one token alone gives another result at position 4,095"),
    "later tokens": (
        lambda x, p: rotate(x, p + (x.shape[-2] == 257) * (np.arange(x.shape[-2]) > 3)),
        "seq dim",
        "a long call gives another result at position 4 than a call with more tokens",
    ),
    "the first batch row": (positions_of_the_first_batch_row, BATCHES, "depends on the batch row"),
    "heads reversed": (heads_reversed, BATCHES, "depends on the head"),
    "later heads": (later_heads_are_not_rotated, BATCHES, "differ along heads"),
    "later heads in wide arrays": (
        lambda x, p: later_heads_are_not_rotated(x, p) if x.ndim == 4 else rotate(x, p),
        None,
        "equal rows of x give results that differ along heads and seq",
    ),
    "heads from 20 on": (partial(later_heads_are_not_rotated, first=20), BATCHES, "head 20"),
    "tables of an earlier call": (of_a_layer(False), None, "a second call|an earlier call"),
    "result of an earlier call": (of_a_layer(True), None, "same positions and another x"),
    "long calls": (longer_calls_are_scaled, None, "A call with 4,096 tokens"),
    "calls of many tokens fail": (
        lambda x, p: rotate(x, p) if x.shape[-2] < 3000 else None,
        "seq dim",
        "A call with 4,096 tokens gives other results than a call with few.",
    ),
    "number of the batch row": (
        lambda x, p: rotate(x, np.broadcast_to(np.arange(len(x))[:, None], (len(x), x.shape[2]))),
        BATCHES,
        "by its number in the batch",
    ),
    "shuffled": (lambda x, p: rotate(x, np.sort(p)), None, "in another order|in any order|follow neither"),
    "noise": (added_noise(), None, "two equal calls give different results"),
}


@for_each("name", IRREGULAR)
def test_a_result_that_depends_on_the_call_is_never_the_same(name):
    """All other calls agree, so that only calls can be the cause. The report says which calls are different."""
    fn, shape, words = IRREGULAR[name]
    report = compare(fn, ROPE, context=4096, shape=shape)
    assert (report.same, report.causes, report.comparable) == (False, ("calls",), True)
    assert any(each.lower() in report.summary.lower() for each in words.split("|")), report.summary
    assert not compare(fn, fn, head_dim=HEAD_DIM, context=4096, shape=shape).same
    with pytest.raises(AssertionError, match="cause: results depend on the call"):
        assert_same(fn, ROPE, context=4096, shape=shape)
    found = identify(fn, HEAD_DIM, shape=shape)
    assert found.rope is None or found.axis == "batch" or found.longest < 2001


@for_each("shape", [None, "seq dim", "heads seq dim", BATCHES])
def test_a_right_function_is_the_same_in_all_calls(shape):
    assert_same(rotate, ROPE, context=4096, shape=shape)
    assert identify(rotate, HEAD_DIM, shape=shape).rope == ROPE


def test_results_that_end_before_the_context_are_not_the_same():
    """The context is what was asked for."""
    report = compare(lambda x, p: rotate(x, np.arange(100)[p]), ROPE, context=100_000)
    assert (report.same, report.causes, report.context) == (False, ("length",), 100_000)
    assert "fails from position 100 on: it raises IndexError" in report.summary and report.first_position is None
    assert_same(lambda x, p: rotate(x, np.arange(100)[p]), ROPE, context=100)


def test_a_counting_function_with_a_last_row_differs_from_there_on():
    def counting(x, positions):
        return rotate(x, np.minimum(np.arange(len(x)), 5000))

    for ignored in (False, True):
        report = compare(counting, ROPE, context=65_536, positions_ignored=ignored)
        assert not report.same and report.first_position == 5001
    report = compare(lambda x, p: rotate(x, np.arange(len(x))), ROPE, context=2**18, positions_ignored=True)
    assert "All positions below 131,072 were tried, and none beyond." in report.summary


@for_each("first", [8, 32, 100])
def test_rotation_that_begins_late_is_not_none(first):
    def late(x, positions):
        return np.where((positions >= first)[..., None], rotate(x, positions), x)

    report = compare(late, None, head_dim=HEAD_DIM)
    assert (report.same, report.causes, report.first_position) == (False, ("rotation",), first)
    assert compare(lambda x, p: x, None, head_dim=HEAD_DIM).same


def test_grouped_positions_are_named():
    def grouped(x, positions):
        return rotate(x, positions // 8)

    words = "ositions are divided by 8 and rounded down"
    assert words in str(identify(grouped, HEAD_DIM)).replace("\n", " ")
    assert words in compare(grouped, ROPE).summary
    report = compare(grouped, None, head_dim=HEAD_DIM)
    assert (report.same, report.first_position) == (False, 8) and words in report.summary


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


@pytest.mark.parametrize(("change", "words"), [("reverse", "with its ramp reversed"), ("twice", "applied twice")])
def test_a_rule_that_is_applied_wrongly_is_named(change, words):
    plain = np.array(WIDE.inv_freq)
    kept = (np.array(RULED.inv_freq) / plain - 0.25) / 0.75
    w = plain * (0.25 + 0.75 * (1.0 - kept)) if change == "reverse" else np.array(RULED.inv_freq) ** 2 / plain
    report = compare(lambda x, p: RULED.attention_factor * rotate(x, p, w), RULED, context=8192)
    assert report.causes == ("frequencies",) and words in report.differences[0].a and "yarn" in report.differences[0].a


def with_bfloat16_tables(x, positions, w):
    angles = positions[:, None] * w
    cos, sin = (each.astype(ml_dtypes.bfloat16).astype(np.float64) for each in (np.cos(angles), np.sin(angles)))
    one, other = np.split(x, 2, axis=-1)
    return np.concatenate([one * cos - other * sin, other * cos + one * sin], axis=-1)


def test_bfloat16_tables_are_named_with_their_rule():
    rule = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
    rope = RotaryEmbedding(head_dim=128, layout="half", base=500_000.0, scaling=rule)
    fn = partial(with_bfloat16_tables, w=np.array(rope.inv_freq))
    found = identify(fn, 128)
    assert (found.rope, found.precision) == (rope, "bfloat16 tables") and found.confidence > 0.8
    report = compare(fn, rope, context=8192)
    assert report.causes == ("phase precision",) and "a: bfloat16 tables" in report.summary


def test_llama3_with_equal_factors_in_bfloat16_tables_raises_nothing():
    """An exponent overflowed in some of these. Each is the rule, or frequencies as numbers that are right."""
    for width, base in ((64, 10_000.0), (128, 500_000.0)):
        rule = Llama3Scaling(
            factor=8.0, low_freq_factor=4.0, high_freq_factor=4.0, original_max_position_embeddings=8192
        )
        rope = RotaryEmbedding(head_dim=width, layout="half", base=base, scaling=rule)
        found = identify(partial(with_bfloat16_tables, w=np.array(rope.inv_freq)), width).rope
        assert found is not None
        np.testing.assert_allclose(found.inv_freq, rope.inv_freq, rtol=2e-3, atol=1e-7)


def test_yarn_without_its_factor_says_what_the_factor_would_be():
    found = identify(lambda x, p: rotate(x, p, np.array(RULED.inv_freq)), 64)
    assert "that of YaRN with factor 4 is 1.13863" in str(found).replace("\n  ", " ")
    report = compare(lambda x, p: rotate(x, p, np.array(RULED.inv_freq)), RULED, context=4096)
    assert report.causes == ("attention factor",) and report.differences[0][1:] == ("1", "1.13863")


def test_what_cannot_be_compared_is_not_said_to_differ():
    """Two reasons are named."""
    report = compare(lambda x, p: {}[p] if x.ndim < 3 else x[..., :5] if x.ndim < 4 else 1 / 0, ROPE)
    assert (report.same, report.comparable, report.causes) == (False, False, ("unknown",))
    assert "could not be compared" in report.summary and len(report.problems) == 2
    with pytest.raises(AssertionError, match="could not be compared"):
        assert_same(lambda x, p: 1 / 0, ROPE)
    assert compare(ROPE, ROPE.replace(base=500.0)).comparable and compare(rotate, ROPE).comparable


def test_functions_of_each_library(xp):
    """A right one, one that ends, and one that is relative to its call."""
    like = xp.array(np.zeros(1), "float32")

    def on_library(change, x, positions):
        return xp.array(rotate(xp.numpy(x), change(xp.numpy(positions))), "float32")

    assert_same(partial(on_library, lambda p: p), ROPE, like=like, context=512)
    assert identify(partial(on_library, lambda p: p), HEAD_DIM, like=like).rope == ROPE
    for change, cause in ((lambda p: np.arange(100)[p], "length"), (lambda p: p - p.min(), "calls")):
        assert compare(partial(on_library, change), ROPE, like=like, context=512).causes == (cause,)


def test_bfloat16_tables_of_several_axes_are_not_exact():
    """Tables change a unit score by more than the tolerance, which phases do not show."""
    sections = Sections((4, 2, 2))

    def fn(x, positions):  # axes seq
        return with_bfloat16_tables(x, np.ones(len(x)), positions[list(sections.axis_of_pair)].T * FREQUENCIES)

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

    def fn(x, positions):
        half, angles = w.shape[0], positions[:, None] * w
        cos, sin = (np.float64(np.float16(rope.attention_factor * f(angles))) for f in (np.cos, np.sin))
        x, y = x[:, :half], x[:, half:]
        return np.concatenate([x * cos - y * sin, y * cos + x * sin], axis=-1)

    report = compare(fn, rope, shape="seq dim")
    assert not report.same and "attention factor" not in report.causes


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


def test_float16_angles_that_overflow_are_no_table_that_ends():
    def fn(x, positions):
        with np.errstate(over="ignore"):
            angles = np.float64(np.float16(positions[..., None] * FREQUENCIES))
        return oracle.rotate(x, angles, "half")

    report = compare(fn, ROPE, context=100_000)
    assert report.causes == ("phase precision",) and "fails from position 65,520 on" in report.summary


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
