"""`compare` at its limits, functions of changed positions, and what reports say of them."""

import json
from functools import partial
from itertools import product

import ml_dtypes
import numpy as np
import oracle
import pytest
from cases import for_each
from functions import rotary, rounded

from rope_xp import RotaryEmbedding, Sections, compare, from_config
from rope_xp.comparison.measures import _first_of_pair
from rope_xp.comparison.report import number
from rope_xp.modules import RotaryModule
from rope_xp.reports import short_repr

ROPE = RotaryEmbedding(head_dim=8, layout="half", base=100.0)
SMALL = RotaryEmbedding(head_dim=4, layout="half", base=100.0)


def first_above(change, limit):
    return int(np.argmax(change > limit)) if (change > limit).any() else None


@pytest.mark.parametrize("change", [{}, {"phase": "float32"}, {"layout": "interleaved"}], ids=str)
def test_a_change_as_large_as_the_tolerance_is_the_same(change):
    b = ROPE.replace(attention_factor=1.5, **change)
    for factor in (1.5, 0.5):
        report = partial(compare, ROPE, b.replace(attention_factor=factor), context=1)
        assert report(tolerance=0.5).same and not report(tolerance=0.4999).same
        of_scores = abs(factor**2 - 1.0)
        for tolerance, are_same in ((of_scores, True), (of_scores - 1e-4, False)):
            assert report(tolerance=tolerance).scores_are_same == are_same


def test_rounded_phases_are_compared_at_8192_positions_beyond_a_million():
    a, b = (RotaryEmbedding(head_dim=2, layout="half", inv_freq=(w,), phase="float32") for w in (1e-3, 1e-3 + 9e-9))
    context, start = 2**20 + 8 * 8192 + 3, 2**20
    positions = np.arange(context).astype("float32")
    angles = [(positions * np.float32(each.inv_freq[0])).astype(float) for each in (a, b)]
    change = np.abs(2 * np.sin((angles[0] - angles[1]) / 2))
    tried = np.arange(start, context, 9)
    assert len(tried) <= 8192 < 9 / 8 * len(tried) and first_above(change, 0.01) > start
    # From the first position beyond a small tolerance on, a million positions are compared, too.
    for tolerance, first in ((0.5, tried[first_above(change[tried], 0.01)]), (5e-3, first_above(change, 0.01))):
        assert compare(a, b, context=context, tolerance=tolerance).first_position == first
    assert compare(a, a.replace(phase="exact"), context=start + 1, tolerance=0.5).first_position is None


def test_what_never_rotates_and_whole_revolutions_of_other_channels():
    still = RotaryEmbedding(head_dim=4, layout="half", inv_freq=(0.0, 0.0))
    assert compare(still, still.replace(layout="interleaved")).same
    for slow in (2e-5, 2e-6):
        fast, unit = still.replace(inv_freq=(2 * np.pi - slow,) * 2), np.broadcast_to(np.eye(4), (4096, 4, 4))
        angles = -slow * np.arange(4096)[:, None, None] * np.ones(2)
        one, other = (oracle.rotate(unit, angles, layout) for layout in ("half", "interleaved"))
        first = first_above(np.linalg.norm(one - other, ord=2, axis=(-2, -1)), 0.01)
        assert compare(fast, fast.replace(layout="interleaved"), context=4096).first_position == first
    assert compare(None, None, head_dim=2).largest_change == 0.0


def test_whole_revolutions_of_fast_pairs_make_no_difference():
    """A function with exact phases, at far positions, where float64 rounds products by up to 0.008 radians."""
    fast = SMALL.replace(base=None, inv_freq=(50_000.3, 0.1))
    for other, causes in ((fast, ()), (fast.replace(layout="interleaved"), ("layout",))):
        report = compare(lambda x, p: fast(x, positions=p, seq_dim=-2), other, shape="seq dim", context=2**31)
        assert (report.same, report.causes) == (not causes, causes)


def test_phases_in_float32_are_rounded_on_each_axis_of_a_pair():
    w = np.array([[1.0, 0.1], [0.3, 0.07]])
    rope, positions = SMALL.replace(base=None, inv_freq=w.tolist(), phase="float32"), np.arange(300_000.0)[:, None]
    of_axes = [positions.astype("float32") * each.astype("float32") for each in w]
    change = np.abs(2 * np.sin((positions * w.sum(axis=0) - (of_axes[0] + of_axes[1])) / 2)).max(axis=1)
    report = compare(rope, rope.replace(phase="exact"), context=len(positions))
    assert report.first_position == first_above(change, 0.01) > 200_000


def test_frequencies_on_axes_are_said_without_those_of_other_pairs():
    one, other = (SMALL.replace(base=None, inv_freq=[[1.0, 0.0], [0.0, w]]) for w in (0.3, 0.1))
    [difference] = compare(one, other).differences
    assert (difference.a, difference.b) == tuple(f"1 to {w} radians per token, given" for w in (0.3, 0.1))


def test_a_slow_pair_that_only_one_rotates_is_found_exactly():
    a = RotaryEmbedding(head_dim=4, layout="interleaved", inv_freq=(1.0, 1e-5))
    first = first_above(2 * np.sin(np.arange(2000) * 1e-5 / 2), 0.01)
    assert compare(a, a.replace(rotary_dim=2, inv_freq=(1.0,))).first_position == first


@pytest.mark.parametrize(("first", "causes"), [(2**20 - 1, ("frequencies",)), (2**20, ())])
def test_causes_are_sought_at_a_million_positions(first, causes):
    step = 2 * np.arcsin(5e-4) / (first - 0.5)
    a, b = (RotaryEmbedding(head_dim=2, layout="half", inv_freq=(w,)) for w in (0.5, 0.5 + step))
    report = compare(a, b, context=10)
    assert (report.same, report.causes) == (True, causes)


def test_attention_of_large_scores_is_finite():
    assert 0.0 < compare(ROPE, ROPE.replace(attention_factor=40.0), context=50).attention_moved < 1.0


@for_each("limit", [1e-3, 0.01, 0.5, 1.0, 1.9, 2.5])
def test_the_first_position_of_a_pair_is_found_without_trying_all(limit):
    """A pair of any sizes, whose angles differ by a start and a step, of which few positions may be far apart."""
    rng = np.random.default_rng(0)
    positions = np.arange(30_000)
    steps = (*rng.uniform(-7, 7, 20), *rng.uniform(-1e-3, 1e-3, 20), 0.0, 2 * np.pi / 3, 0.1, 3.1)
    for step in steps:
        size, start = rng.choice([1.0, 1.25]), rng.choice([0.0, 0.003, -0.003, 2.0, -2.0, 7.0])
        other = size * rng.choice([1.0, 1.005, 0.8])
        far = np.abs(size - other * np.exp(1j * (start + step * positions))) > limit
        first = _first_of_pair(size, other, start, step, limit)
        assert (first if first is not None and first < far.size else None) == (int(far.argmax()) if far.any() else None)
    # Where the limit is reached exactly, rounding says whether the next position is the first.
    edge = 2 * np.arcsin(min(limit, 1.0) / 2)
    assert all(_first_of_pair(1.0, 1.0, 0.0, edge / n, min(limit, 1.0)) in (n, n + 1) for n in range(1, 200))
    assert _first_of_pair(1.5, 1.0, 0.0, 0.0, 0.5) is None and _first_of_pair(1.5, 1.0, 0.0, 0.0, 0.49) == 0


# Functions of positions alone: what each makes of positions, and the first position where that matters.
CHANGES = {
    "none": (lambda p, n: p, lambda n: None),
    "one more": (lambda p, n: p + 1, lambda n: 0),
    "reversed": (lambda p, n: -p, lambda n: 1),
    "one more from a position on": (lambda p, n: p + (p >= n), lambda n: n),
    "the last row": (lambda p, n: np.minimum(p, n), lambda n: n + 1),
    "the first row": (lambda p, n: p * (p != n), lambda n: n),
    "from the first row on": (lambda p, n: p % n, lambda n: n),
    "late": (lambda p, n: p * (p >= n), lambda n: 1),
}
TWO_AXES = SMALL.replace(sections=Sections((1, 1)))


def rotating(change, n, dtype="float64", axis=None):
    """A function of "seq dim", and of positions "seq" or, with an axis that has the mistake, "axes seq"."""

    def fn(x, positions):
        p = np.array(positions)
        if axis is None:
            p = change(p, n)[:, None]
        else:
            p[axis] = change(p[axis], n)
            p = p.T
        return oracle.rotate(np.asarray(x, float), p * SMALL.inv_freq, "half").astype(dtype)

    return fn


RIGHT = rotating(CHANGES["none"][0], 0)


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize(
    "dtype, axis", [("float64", None), ("float32", None), ("float16", None), *product(["float64"], (0, 1))]
)
def test_a_function_differs_from_the_first_position_that_is_wrong(name, dtype, axis):
    """On each of two axes: of the second one, a change that has no cause is seen alone."""
    (change, first_of), value = CHANGES[name], SMALL if axis is None else TWO_AXES
    far = [(3000, 3001)] if axis is None and dtype != "float16" else []
    for n, context in ((12, 12), (12, 13), (12, 52), (200, 201), (200, 240), *far):
        first = first_of(n)
        first = first if first is not None and first < context else None
        fn, options = rotating(change, n, dtype, axis), {"context": context, "shape": "seq dim"}
        report, back = compare(fn, value, **options), compare(value, fn, **options)
        assert (report.same, back.same, report.causes) == (first is None, first is None, back.causes)
        if first is None or axis != 1 or name in ("one more", "reversed"):
            assert report.first_position == back.first_position == first, (n, context)
        if report.causes != ("unknown",):
            assert report.scores_are_same == (name == "one more" or report.same)
        if axis is None and dtype == "float64":
            both = compare(fn, RIGHT, head_dim=4, **options)
            assert (both.same, both.first_position) == (first is None, first)


def test_numbers_in_words():
    numbers = (None, 5, 100.0, 0.5, 1234.5, 1e6 + 0.25, 999_999_999_999_999.0, 1e15, 1e15 + 0.5, 1e22)
    words = "none|5|100|0.5|1,234.5|1e+06|999,999,999,999,999|1e+15|1e+15|1e+22"
    assert "|".join(map(number, numbers)) == words


CONFIG = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "rope_theta": 100.0}
CONFIG["max_position_embeddings"] = 256
OF_CONFIG = RotaryEmbedding(head_dim=32, layout="half", base=100.0)
FLAGS = "--rope-scale 2"


class Given:
    """A config that is an object."""

    def to_dict(self):
        return CONFIG


class Called(Given):
    """A function that is one, too."""

    def __call__(self, x, positions):
        return oracle.rotate(x, positions[:, None] * np.array(OF_CONFIG.inv_freq), "half")


def test_what_is_compared_in_words(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    module = RotaryModule(OF_CONFIG, seq_dim=1)
    function = partial(Called(), positions=3)
    known, scaled = (short_repr(from_config(CONFIG, flags=flags)) for flags in (None, FLAGS))
    for given, words, with_flags in (
        (None, "no rotation", None),
        (OF_CONFIG, short_repr(OF_CONFIG), None),
        (module, short_repr(OF_CONFIG), None),
        (Called(), "the function Called", None),
        (function, "the function Called", None),
        (RIGHT, "the function rotating.<locals>.fn", None),
        (CONFIG, known, f"the config with the flags: {scaled}"),
        (Given(), known, f"the config with the flags: {scaled}"),
        (str(path), f"{path}: {known}", f"{path} with the flags: {scaled}"),
        (path, f"{path}: {known}", f"{path} with the flags: {scaled}"),
    ):
        for options in (None, {}, {"flags": None, "part": None}):
            report = compare(given, OF_CONFIG, context=9, options=options)
            assert (report.a, report.b, report.remarks) == (words, short_repr(OF_CONFIG), ())
        if with_flags:
            read = from_config(CONFIG, flags=FLAGS)._provenance
            for report, name in (
                (compare(OF_CONFIG, given, options={"flags": FLAGS}), "b"),
                (compare(given, OF_CONFIG, options={"flags": FLAGS}), "a"),
            ):
                assert getattr(report, name) == with_flags and not report.same
                assert report.remarks == (f"{name} was read from {read.format}", *read.remarks)
            report = compare(given, given, options={"flags": FLAGS, "layer": None})
            assert (report.a, report.b) == (words, with_flags)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_any_two_channels_that_nothing_explains_are_compared(sign):
    def wobbling(x, positions, part=0.0):
        y = oracle.rotate(x, positions[:, None] * np.array([1.0, 0.1]), "half") * (2.0 + np.sin(positions))[:, None]
        return y + part * (x[:, :1] + sign * x[:, 1:2])

    options = {"head_dim": 4, "shape": "seq dim", "context": 100}
    for part in (0.0, 5e-4, 1e-3, 0.05):
        report = compare(wobbling, partial(wobbling, part=part), **options)
        assert report.same == (part < 3e-4) and report.first_position == (0 if part > 0.01 else None)
        assert report.causes == (() if report.same else ("unknown",)) and not report.sample


def test_the_sample_is_what_was_called():
    called = set()

    def fn(x, positions):
        called.update(positions.tolist())
        return RIGHT(x, positions)

    for context, some in ((20, 0), (2**15, 0), (2**15 + 1, 1), (100_000, 5320)):
        called.clear()
        report = compare(fn, SMALL, context=context, shape="seq dim")
        assert report.same and {*range(min(context, 2**15))} <= called and max(called) == context - 1
        assert 0 <= len(called) - min(context, 2**15) - some < 20
        beyond = f"All positions below 32,768 were tried, and {some:,} beyond, in calls with at most 32,768 tokens."
        assert report.sample == (beyond if some else "")
    wide = RotaryEmbedding(head_dim=128, layout="half", base=100.0)
    report = compare(rotary(wide.inv_freq), wide, context=2**15 + 1, shape="seq dim")
    assert report.same and report.sample.endswith("and 1 beyond, in calls with at most 16,384 tokens.")


@for_each("n", [7, 8, 9, 100, 3000, 2**17 + 5])
def test_a_table_that_ends_says_where(n):
    """In the words of the call at the first position without a result."""

    def ending(x, positions, wrong=0):
        if positions.max() >= n:
            raise IndexError(f"no row {positions.max()}")
        return RIGHT(x, positions + wrong)

    for context in (n, n + 1, 5000) if n < 5000 else (n + 1,):
        report = compare(ending, SMALL, context=context, shape="seq dim")
        words = f"The function fails from position {n:,} on: it raises IndexError: no row {n}."
        assert (report.same, report.causes, report.first_position) == (context == n, ("length",) * (context > n), None)
        assert report.context == context
        assert report.problems == (words,) * (context > n) and report.comparable and bool(report.sample) == (n > 2**15)
        report = compare(partial(ending, wrong=1), SMALL, context=context, shape="seq dim")
        offset = ("offset",) * (n > 7 or context == n)  # a change is sought at 8 positions or more
        assert (report.causes, report.first_position) == (offset + ("length",) * (context > n), 0)


def counting(x, positions):
    return RIGHT(x, np.arange(len(x)))


SAME_EVERYWHERE = "The function gives the same result at every position that was tried."
INDEX = "The function ignores positions and counts the rows of x."
PASS = "If that is meant, pass positions_ignored=True."
STATE = "It was called with x of (seq dim): state `shape` as in your model, or a wrong axis is not seen."
SEVERAL = "It cannot follow several position axes."
# A function and what it is compared with, the causes, the first position, and problems with and without
# `positions_ignored`.
REPORTS = {
    "x itself": (lambda x, p: x, SMALL, ("rotation",), 1, ()),
    "x itself, of two axes": (lambda x, p: x, TWO_AXES, ("rotation",), 1, ()),
    "x itself and none": (lambda x, p: x * (1.0 + 2.0**-52), None, (), None, ()),
    "twice x": (lambda x, p: 2.0 * x, SMALL, ("rotation",), 0, (SAME_EVERYWHERE,)),
    "slightly more than x": (lambda x, p: 1.02 * x, None, ("rotation",), 0, (SAME_EVERYWHERE,)),
    "x in reversed order": (lambda x, p: x[:, ::-1], None, ("rotation",), 0, (SAME_EVERYWHERE,)),
    "counting, of two axes": (counting, TWO_AXES, ("calls",), None, (INDEX, PASS)),
    "counting, which is meant": (counting, SMALL, (), None, (INDEX,)),
    "counting, of two axes, which is meant": (counting, TWO_AXES, ("unknown",), None, (INDEX, SEVERAL)),
    "counting": (counting, SMALL, ("calls",), None, (INDEX, PASS)),
}


@for_each("name", REPORTS)
def test_the_whole_report_of_a_function(name):
    """What ignores positions is said to have been called in one shape, if none is stated."""
    fn, other, causes, first, problems = REPORTS[name]
    meant = name.endswith("meant")
    for one, two in ((fn, other), (other, fn)):
        report = compare(one, two, shape="seq dim", head_dim=4, context=60, positions_ignored=meant)
        assert (report.same, report.causes, report.first_position) == (not causes, causes, first)
        assert (report.problems, report.sample) == (problems, "") and report.comparable == (causes != ("unknown",))
        assert report.scores_are_same is (
            True if report.same else None if causes != ("rotation",) or problems else False
        )
        tried = compare(one, two, head_dim=4, context=60, positions_ignored=meant)
        expected = [each for each in (*problems, STATE) if INDEX in problems or each != STATE]
        assert tried.causes == causes and sorted(tried.problems) == sorted(expected)


@for_each("size", range(1, 12))
def test_a_right_function_is_the_same_below_any_context(size):
    assert compare(RIGHT, SMALL, context=size, shape="seq dim").same
    assert compare(counting, SMALL, context=size, shape="seq dim", positions_ignored=True).same


def test_rounded_phases_behind_results_in_half_precision_are_not_called_everywhere():
    called = set()

    def fn(x, positions):
        called.update(positions.tolist())
        angles = (positions[:, None] * np.array([1.0, 0.1])).astype(ml_dtypes.bfloat16).astype(float)
        return oracle.rotate(np.asarray(x, float), angles, "half").astype(np.float16)

    report = compare(fn, SMALL, context=100_000, shape="seq dim", tolerance=2.9)
    assert report.same and len(called) < 40_000 and report.causes == ()  # no score changes by more than 2
    report = compare(fn, SMALL, context=100_000, shape="seq dim")
    assert not report.same and report.causes == ("phase precision",)


@pytest.mark.parametrize("base", [256.0, 10_000.0])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_rounding_that_no_phases_have_is_seen_in_the_results(base, dtype):
    """A third of each angle is rounded, so that the errors are others than those of the usual phases."""
    rope = SMALL.replace(base=base)

    def fn(x, positions):
        third = (positions[:, None] * np.array(rope.inv_freq) / 3).astype(ml_dtypes.bfloat16).astype(float)
        return oracle.rotate(np.asarray(x, float), 3 * third, "half").astype(dtype)

    p = np.arange(200.0)
    change = np.abs(np.exp(3j * (p / 3).astype(ml_dtypes.bfloat16).astype(float)) - np.exp(1j * p))
    for order in (1, -1):
        for tolerance in (None, 0.05, 0.3):
            report = compare(*(fn, rope)[::order], context=200, shape="seq dim", tolerance=tolerance)
            assert not report.same and report.causes == ("phase precision",)
            assert change[report.first_position] > 0.01
        report = compare(*(fn, rope)[::order], context=200, shape="seq dim", tolerance=2.0)
        assert report.same and change[report.first_position] > 0.01


def test_two_functions_that_round_their_tables_in_two_ways_differ_by_their_precision():
    def truncated(table):
        fraction, exponent = np.frexp(table)
        return np.ldexp(np.trunc(fraction * 2**8) / 2**8, exponent)

    nearest, other = (rotary([1.0, 0.1], tables=each) for each in (rounded(ml_dtypes.bfloat16), truncated))
    report = compare(nearest, other, head_dim=4, shape="seq dim", context=100)
    assert (report.same, report.causes) == (False, ("phase precision",))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@for_each("change, first", [(lambda p: p + 12 * (p == 3000), 3000), (lambda p: p.astype(np.float16).astype(int), 2049)])
def test_behind_half_precision_numbers_are_those_of_the_results(change, first, dtype):
    """One position that is wrong, or half of them, may look like phases whose products are rounded, too."""
    w = np.array([0.1, 0.01])
    rope = RotaryEmbedding(head_dim=4, layout="half", inv_freq=w.tolist())

    def fn(x, positions):
        return oracle.rotate(np.asarray(x, float), change(positions)[:, None] * w, "half").astype(dtype)

    for context in (first, first + 1, 4004):
        report = compare(fn, rope, context=context, shape="seq dim")
        last = np.array([context - 1])
        change_at_last = np.abs(np.exp(1j * change(last)[:, None] * w) - np.exp(1j * last[:, None] * w)).max()
        assert (report.same, report.first_position) == ((True, None) if context == first else (False, first))
        assert report.largest_change is None or abs(report.largest_change - change_at_last) < ml_dtypes.finfo(dtype).eps
