"""`compare` against brute force over positions, at its limits, and the exact words of its reports."""

import inspect
import json
import re
from dataclasses import replace
from functools import partial

import ml_dtypes
import numpy as np
import oracle
import pytest
from cases import for_each

from rope_xp import RotaryEmbedding, Sections, XPos, YarnScaling, compare, from_config
from rope_xp.comparison.measures import _first_of_pair, change_at
from rope_xp.comparison.report import Comparison, Difference, number
from rope_xp.identification.behaviour import behaviour_of
from rope_xp.modules import RotaryModule
from rope_xp.reports import short_repr

WIDTH, CONTEXT = 8, 300
ROPE = RotaryEmbedding(head_dim=WIDTH, layout="half", base=100.0)
SMALL = RotaryEmbedding(head_dim=4, layout="half", base=100.0)


def drawn(rng, layout):
    """A random value, and its matrices "positions channels channels" by complex numbers."""
    base, dtype = float(rng.choice([20.0, 90.0, 91.0, 5e3, 1e9])), str(rng.choice(["float64", "float64", "float32"]))
    factor, centre, scale = rng.choice([1.0, 1.0, 1.002, 1.5]), int(rng.choice([0, 20, 290])), 400.0
    xpos = XPos(scale_base=scale, centre=centre) if rng.integers(3) == 0 else None
    phase = "exact" if dtype == "float64" else dtype
    rope = RotaryEmbedding(
        head_dim=WIDTH, layout=layout, base=base, phase=phase, attention_factor=float(factor), xpos=xpos
    )
    channel, positions = np.arange(0, WIDTH, 2), np.arange(CONTEXT)[:, None]
    angles = (positions.astype(dtype) * (base ** (-channel / WIDTH)).astype(dtype)).astype(float)
    zeta = ((channel + 0.4 * WIDTH) / (1.4 * WIDTH)) ** ((positions - centre) / scale) if xpos else 1.0 + 0 * angles
    of_channels = np.tile(zeta, 2) if layout == "half" else np.repeat(zeta, 2, axis=1)
    unit = np.broadcast_to(np.eye(WIDTH), (CONTEXT, WIDTH, WIDTH))
    return rope, factor * of_channels[:, None] * oracle.rotate(unit, angles[:, None], layout)


def first_above(change, limit):
    return int(np.argmax(change > limit)) if (change > limit).any() else None


@pytest.mark.parametrize("layouts", [("half", "half"), ("half", "interleaved")])
@pytest.mark.parametrize("seed", range(8))
def test_any_two_values_at_any_context_and_tolerance(seed, layouts):
    """Exact and rounded phases, factors and decays. The first position follows from neither."""
    rng = np.random.default_rng(seed)
    (a, one), (b, other) = (drawn(rng, layout) for layout in layouts)
    change = np.linalg.norm(one - other, ord=2, axis=(-2, -1))
    first = first_above(change, 0.01)
    for context in {1, 2, *((first, first + 1) if first else ()), CONTEXT}:
        for tolerance in (1e-3, 0.01, 0.3, *([2.5] if a.xpos is b.xpos is None else [])):
            if (np.abs(change[:context] - [[tolerance], [0.01]]) < 1e-9).any():
                continue
            report = compare(a, b, context=context, tolerance=tolerance)
            assert report.first_position == (first if first is not None and first < context else None)
            assert report.same == (change[:context] <= tolerance).all()
            assert report.largest_change == pytest.approx(change[context - 1], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("change", [{}, {"phase": "float32"}, {"layout": "interleaved"}], ids=str)
def test_a_change_as_large_as_the_tolerance_is_the_same(change):
    b = ROPE.replace(attention_factor=1.5, **change)
    for factor in (1.5, 0.5):
        report = partial(compare, ROPE, b.replace(attention_factor=factor), context=1)
        assert report(tolerance=0.5).same and not report(tolerance=0.4999).same
        assert report(tolerance=0.5).scores_are_same and not report(tolerance=0.4999).scores_are_same


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
        found = compare(fast, fast.replace(layout="interleaved"), context=4096).first_position
        assert found == first if first < 500 else first < found < first + 100, (found, first)
    assert compare(None, None, head_dim=2).largest_change == 0.0


def test_a_decay_of_slow_pairs_of_other_channels_is_found_at_once():
    slow = RotaryEmbedding(head_dim=4, layout="half", inv_freq=(1e-6, 1e-6))
    decaying = slow.replace(layout="interleaved", xpos=XPos(scale_base=400.0))
    first = first_above(1.0 - (0.4 / 1.4) ** (np.arange(100) / 400.0), 0.01)
    for pair in ((slow, decaying), (decaying, slow)):
        assert compare(*pair, context=100).first_position == first


@pytest.mark.parametrize(("first", "causes"), [(2**20 - 1, ("frequencies",)), (2**20, ())])
def test_causes_are_sought_at_a_million_positions(first, causes):
    step = 2 * np.arcsin(5e-4) / (first - 0.5)
    a, b = (RotaryEmbedding(head_dim=2, layout="half", inv_freq=(w,)) for w in (0.5, 0.5 + step))
    report = compare(a, b, context=10)
    assert (report.same, report.causes) == (True, causes)


def test_the_widest_heads_are_compared_by_their_channels():
    head_dim, w = 1026, np.random.default_rng(0).uniform(0.1, 3.0, 513)
    ropes = [RotaryEmbedding(head_dim=head_dim, layout=each, inv_freq=w) for each in ("half", "interleaved")]
    angles = np.broadcast_to(3 * w, (head_dim, w.size))
    one, other = (oracle.rotate(np.eye(head_dim), angles, each.layout) for each in ropes)
    found = change_at(*(behaviour_of(each).map() for each in ropes), 3)
    assert found == pytest.approx(np.linalg.norm(one - other, axis=1).max())


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


def test_given_frequencies_and_a_function_are_compared_in_both_orders():
    given = SMALL.replace(base=None, inv_freq=(1.0, 0.1))
    for pair in ((rotating(lambda p, n: p, 0), given), (given, rotating(lambda p, n: p, 0))):
        assert compare(*pair, shape="seq dim").same


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


def rotating(change, n, dtype="float64", axis=None):
    """A function of "seq dim", and of positions "seq" or, with an axis that has the mistake, "axes seq"."""
    frequencies = np.array([1.0, 0.1])

    def fn(x, positions):
        p = np.array(positions)
        if axis is None:
            p = change(p, n)[:, None]
        else:
            p[axis] = change(p[axis], n)
            p = p[[0, 1]].T
        return oracle.rotate(np.asarray(x, float), p * frequencies, "half").astype(dtype)

    return fn


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_function_differs_from_the_first_position_that_is_wrong(name, dtype):
    change, first_of = CHANGES[name]
    for n in (12, 200, *([3000] if dtype != "float16" else [])):
        first = first_of(n)
        for context in {n, n + 1, n + 40}:
            fn = rotating(change, n, dtype)
            expected = first if first is not None and first < context else None
            report = compare(fn, SMALL, context=context, shape="seq dim")
            back = compare(SMALL, fn, context=context, shape="seq dim")
            assert (report.same, report.first_position) == (expected is None, expected), (name, n, context)
            assert (back.same, back.first_position, back.causes) == (report.same, expected, report.causes)
            if report.causes != ("unknown",):
                assert report.scores_are_same == (name == "one more" or report.same)
            if dtype == "float64":
                both = compare(fn, rotating(CHANGES["none"][0], n), context=context, shape="seq dim", head_dim=4)
                assert (both.same, both.first_position) == (expected is None, expected)


TWO_AXES = SMALL.replace(sections=Sections((1, 1)))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", CHANGES)
def test_a_function_of_two_axes_differs_where_one_is_wrong(name, axis):
    change, first_of = CHANGES[name]
    for n in (12, 200):
        first = first_of(n)
        for context in {n, n + 1, n + 40}:
            report = compare(rotating(change, n, axis=axis), TWO_AXES, context=context, shape="seq dim")
            expected = first if first is not None and first < context else None
            if axis == 0 or name in ("none", "one more", "reversed") or expected is None:
                assert (report.same, report.first_position) == (expected is None, expected), (n, context, report)
            else:
                assert not report.same


REPORT = Comparison(
    same=False,
    causes=("base", "length"),
    first_position=None,
    scores_are_same=False,
    largest_change=0.5,
    context=4096,
    tolerance=1e-3,
    a="one",
    b="other",
    differences=(Difference("base", "1", "2"),),
    problems=("It fails.",),
    advice=("Check the base.",),
    attention_moved=0.25,
)
DIFFER, LATER = "The two differ.", "The two differ, but no score changes by more than 1 % below position 4,096."
MOVES, CAUSES = (
    "At position 4,095, 25 % of attention moves to other tokens.",
    "Likely causes: base (a: 1; b: 2); some positions have no result.",
)
SCORES = (
    "If each of them rotates both queries and keys, their scores are equal. Scores change where the two are mixed, as "
)
ALIKE = "The two rotate alike, but they ask for different scales of the softmax."
UNMEASURED = {"largest_change": None, "attention_moved": None}
AGREE = "The two agree at every position below 4,096."
SUMMARIES = [
    ({}, f"{LATER} {MOVES} {CAUSES} It fails."),
    (
        {"first_position": 1000},
        f"{DIFFER} At position 1,000, scores first change by more than 1 %. {MOVES} {CAUSES} It fails.",
    ),
    ({"scores_are_same": True, "problems": ()}, f"{LATER} {MOVES} {CAUSES} {SCORES}with cached keys."),
    ({"attention_moved": 1e-4}, f"{LATER} {MOVES.replace('25', '0.01')} {CAUSES} It fails."),
    ({"attention_moved": 1e-8}, f"{LATER} {MOVES.replace('25 % of', 'no')} {CAUSES} It fails."),
    ({"attention_moved": 1e-9}, f"{LATER} {MOVES.replace('25 % of', 'no')} {CAUSES} It fails."),
    (UNMEASURED, f"{DIFFER} {CAUSES} It fails."),
    ({**UNMEASURED, "comparable": False, "causes": ("unknown",)}, "The two could not be compared. It fails."),
    ({**UNMEASURED, "causes": ("unknown",), "problems": ()}, f"{DIFFER} No known mistake explains it."),
    ({"causes": ("length",)}, f"{LATER} {MOVES} Likely cause: some positions have no result. It fails."),
    ({"causes": ()}, f"{LATER} {MOVES} It fails."),
    (
        {"causes": ("softmax scale",), "scores_are_same": True},
        f"{ALIKE} {MOVES} Likely cause: softmax scale. It fails.",
    ),
    (
        {"same": True, "sample": "Some were tried."},
        f"{AGREE.replace('every position', 'positions that were tried')} At later positions they differ. "
        "Cause: base, length. It fails. Some were tried.",
    ),
    ({"same": True, "causes": (), "problems": ()}, AGREE),
]


@for_each("changes, summary", SUMMARIES)
def test_a_report_in_words(changes, summary):
    report = replace(REPORT, **changes)
    assert report.summary == summary
    shown = " ".join(str(report).split())
    assert "a one b other base a 1 b 2" in shown and "What to do" in shown
    measured = report.largest_change is not None
    assert ("compared positions 0 to 4,095" in shown) == (measured and not report.sample)
    assert ("compared some of positions 0 to 4,095" in shown) == (measured and bool(report.sample))
    assert ("last position a score changes by up to 0.5" in shown) == measured
    assert ("moves to other tokens (32 random queries" in shown) == (report.attention_moved is not None)


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
        (rotating(None, 0), "the function rotating.<locals>.fn", None),
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
    known = ", ".join(list(inspect.signature(from_config).parameters)[1:])
    for name in ("config", "layers"):
        with pytest.raises(TypeError, match=re.escape(f"arguments of from_config ({known}); got '{name}'")):
            compare(CONFIG, CONFIG, options={name: 1})
    with pytest.raises(ValueError, match=r"context must be at least 1 and at most 2\*\*31; got 2147483649"):
        compare(CONFIG, CONFIG, context=2**31 + 1)


YARN = YarnScaling(factor=4.0, original_max_position_embeddings=64, attention_factor=1.25)
WIDE = RotaryEmbedding(head_dim=32, layout="half", base=10_000.0)
SOFT = YarnScaling(factor=4.0, original_max_position_embeddings=64, mscale=0.7, mscale_all_dim=0.7)
NUMBERS = {"base": None, "scaling": None}
OF_500 = np.array(WIDE.replace(base=500.0).inv_freq)


def by_numbers(rope, times=1.0, **options):
    return rope.replace(**NUMBERS, inv_freq=np.array(rope.inv_freq) * times, **options)


OTHERS = {"frequencies": "those of base 10,000|1 to 0.00294928 radians per token, given"}
SOME = "1 to 0.000177828 radians per token, given, some of them reversed"
# Two values, or a function, and causes with what they are in both, in words.
DIFFERENCES = [
    (WIDE, WIDE.replace(base=10_010.0, attention_factor=1.02), {"attention factor": "1|1.02", "base": "10,000|10,010"}),
    (
        WIDE.replace(scaling=YARN),
        by_numbers(WIDE, 1.5, attention_factor=1.0),
        {
            "attention factor": "1.25|1",
            "frequencies": "those of base 10,000|1.5 to 0.000266742 radians per token, given",
        },
    ),
    (
        WIDE,
        WIDE.replace(head_dim=64, attention_factor=1.5),
        {"width": "32 of 32 channels|64 of 64 channels", "attention factor": "1|1.5"},
    ),
    (
        WIDE,
        by_numbers(WIDE.replace(base=500.0), attention_factor=1.2),
        {"attention factor": "1|1.2", "base": "10,000|500"},
    ),
    (
        WIDE.replace(scaling=YARN),
        by_numbers(WIDE.replace(base=500.0, scaling=YARN), attention_factor=1.25),
        {"base": "10,000|500"},
    ),
    (WIDE, WIDE.replace(base=10_000.001), {"base": "10,000|10,000"}),
    (WIDE, WIDE.replace(scaling=SOFT), {"scaling": f"none|{SOFT.describe()}"}),
    (
        WIDE.replace(phase="float32"),
        by_numbers(WIDE, 1.5),
        {"frequencies": "those of base 10,000 rounded to float32|1.5 to 0.000266742 radians per token, given"},
    ),
    (WIDE, WIDE.replace(inv_freq=np.stack([OF_500[None]] * 3), base=None), OTHERS),
    (WIDE, WIDE.replace(inv_freq=np.stack([[OF_500, OF_500]]), base=None), OTHERS),
    (
        by_numbers(WIDE, np.where(np.arange(16) == 2, -1.5, 1.5)),
        WIDE.replace(reverse=True),
        {
            "frequencies": "1.5 to 0.000266742 radians per token, given, some of them reversed|"
            "those of base 10,000, reversed"
        },
    ),
    (WIDE, WIDE.replace(sections=Sections((8, 4, 4))), {}),
    (
        by_numbers(WIDE, 1.5),
        by_numbers(WIDE.replace(base=500.0)),
        {
            "frequencies": OTHERS["frequencies"].replace(
                "those of base 10,000", "1.5 to 0.000266742 radians per token, given"
            )
        },
    ),
    (
        by_numbers(WIDE, np.where(np.arange(16) == 2, -1, 1)),
        by_numbers(WIDE, np.where(np.arange(16) == 8, -1, 1)),
        {"frequencies": f"{SOME}; pair 2 has {-WIDE.inv_freq[2]}|{SOME}; pair 2 has {WIDE.inv_freq[2]}"},
    ),
    (
        WIDE.replace(sections=Sections((8, 8))),
        WIDE.replace(sections=Sections((8, 8), axis_of_section=(1, 0))),
        {"sections": "chunked (8, 8)|chunked (8, 8) of axes (1, 0)"},
    ),
    (
        WIDE,
        lambda x, p: oracle.rotate(x, -np.pi / 2 - np.multiply.outer(p, WIDE.inv_freq), "half"),
        {"sincos order": "as in RoFormer|cosine and sine exchanged, and both have the other sign"},
    ),
]


@for_each("a, b, differences", DIFFERENCES)
def test_differences_in_words_and_the_earliest_first(a, b, differences):
    for one, other, order in ((a, b, 1), (b, a, -1)):
        report = compare(one, other, context=4096)
        found = {each.cause: "|".join((each.a, each.b)[::order]) for each in report.differences}
        assert list(found.items()) == list(differences.items()) and report.causes == tuple(differences)


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
        return rotating(CHANGES["none"][0], 0)(x, positions)

    for context, some in ((20, 0), (2**15, 0), (2**15 + 1, 1), (100_000, 5320)):
        called.clear()
        report = compare(fn, SMALL, context=context, shape="seq dim")
        assert report.same and {*range(min(context, 2**15))} <= called and max(called) == context - 1
        assert 0 <= len(called) - min(context, 2**15) - some < 20
        beyond = f"All positions below 32,768 were tried, and {some:,} beyond, in calls with at most 32,768 tokens."
        assert report.sample == (beyond if some else "")


@for_each("n", [7, 8, 9, 100, 3000, 2**17 + 5])
def test_a_table_that_ends_says_where(n):
    """In the words of the call at the first position without a result."""

    def ending(x, positions, wrong=0):
        if positions.max() >= n:
            raise IndexError(f"no row {positions.max()}")
        return rotating(CHANGES["one more"][0] if wrong else CHANGES["none"][0], 0)(x, positions)

    for context in (n, n + 1, 5000) if n < 5000 else (n + 1,):
        report = compare(ending, SMALL, context=context, shape="seq dim")
        words = f"The function fails from position {n:,} on: it raises IndexError: no row {n}."
        assert (report.same, report.causes, report.first_position) == (context == n, ("length",) * (context > n), None)
        assert report.problems == (words,) * (context > n) and report.comparable and bool(report.sample) == (n > 2**15)
        report = compare(partial(ending, wrong=1), SMALL, context=context, shape="seq dim")
        offset = ("offset",) * (n > 7 or context == n)  # a change is sought at 8 positions or more
        assert (report.causes, report.first_position) == (offset + ("length",) * (context > n), 0)


def counting(x, positions):
    return rotating(CHANGES["none"][0], 0)(x, np.arange(len(x)))


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
    assert compare(rotating(CHANGES["none"][0], 0), SMALL, context=size, shape="seq dim").same
    assert compare(counting, SMALL, context=size, shape="seq dim", positions_ignored=True).same


def test_rounded_phases_behind_results_in_half_precision_are_not_called_everywhere():
    called = set()

    def fn(x, positions):
        called.update(positions.tolist())
        angles = (positions[:, None] * np.array([1.0, 0.1])).astype(ml_dtypes.bfloat16).astype(float)
        return oracle.rotate(np.asarray(x, float), angles, "half").astype(np.float16)

    report = compare(fn, SMALL, context=100_000, shape="seq dim", tolerance=2.9)
    assert report.same and len(called) < 40_000 and "phase precision" in report.causes
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
        for tolerance in (None, 0.02, 0.3):
            report = compare(*(fn, rope)[::order], context=200, shape="seq dim", tolerance=tolerance)
            assert not report.same and report.causes == ("phase precision",)
            assert change[report.first_position] > 0.01
        report = compare(*(fn, rope)[::order], context=200, shape="seq dim", tolerance=2.0)
        assert report.same and change[report.first_position] > 0.01


def test_two_functions_that_round_their_tables_in_two_ways_differ_by_their_precision():
    def of(rounding):
        def fn(x, positions):
            angles = positions[:, None] * np.array([1.0, 0.1])
            cos, sin = (rounding(each) for each in (np.cos(angles), np.sin(angles)))
            return np.concatenate([x[:, :2] * cos - x[:, 2:] * sin, x[:, 2:] * cos + x[:, :2] * sin], axis=1)

        return fn

    def truncated(table):
        fraction, exponent = np.frexp(table)
        return np.ldexp(np.trunc(fraction * 2**8) / 2**8, exponent)

    nearest = of(lambda table: table.astype(ml_dtypes.bfloat16).astype(float))
    report = compare(nearest, of(truncated), head_dim=4, shape="seq dim", context=100)
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
