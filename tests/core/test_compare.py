"""`compare` and `assert_same`, with mistakes planted in functions of complex numbers."""

import json
from dataclasses import replace
from functools import partial

import ml_dtypes
import numpy as np
import oracle
import pytest
from cases import for_each
from errors import assert_all_raise, raising

from rope_xp import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    RotaryEmbedding,
    Sections,
    XPos,
    YarnScaling,
    assert_same,
    compare,
)

HEAD_DIM, BASE, FACTOR, FAR = 32, 10_000.0, 1.25, 100_000
SCALING = YarnScaling(factor=4.0, original_max_position_embeddings=64, attention_factor=FACTOR)
ROPE = RotaryEmbedding(head_dim=HEAD_DIM, layout="half", base=BASE)
SCALED = ROPE.replace(scaling=SCALING)


def geometric(base=BASE, dim=HEAD_DIM):
    return np.array([float(w) for w in oracle.geometric(base, dim)])


def rotate(x, angles, layout="half", factor=1.0):
    """The first channels by these angles, the others as they are."""
    width = 2 * angles.shape[-1]
    return np.concatenate([factor * oracle.rotate(x[..., :width], angles, layout), x[..., width:]], axis=-1)


def angles(positions, frequencies, dtype="float64"):
    """Position times frequency: both and their product have this dtype."""
    product = np.asarray(positions).astype(dtype)[..., None] * np.asarray(frequencies).astype(dtype)
    return product.astype(np.float64)


PLAIN, OTHER, NARROW, YARN = geometric(), geometric(500_000.0), geometric(dim=16), np.array(SCALED.inv_freq)
QUARTER = np.pi / 2  # minus the angle: sine for cosine, and cosine for sine

# Causes, the right value, and a function of "seq dim" that makes these mistakes. YaRN's frequencies are the library's.
MISTAKES = {
    ("layout",): (ROPE, lambda x, p: rotate(x, angles(p, PLAIN), "interleaved")),
    ("base",): (ROPE, lambda x, p: rotate(x, angles(p, OTHER))),
    ("scaling",): (SCALED, lambda x, p: rotate(x, angles(p, PLAIN))),
    ("width",): (ROPE, lambda x, p: rotate(x, angles(p, NARROW))),
    ("offset",): (ROPE, lambda x, p: rotate(x, angles(p + 1, PLAIN))),
    ("attention factor",): (SCALED, lambda x, p: rotate(x, angles(p, YARN), factor=FACTOR**2)),
    ("sincos order",): (ROPE, lambda x, p: rotate(x, QUARTER - angles(p, PLAIN))),
    ("axis",): (ROPE, lambda x, p: rotate(x, angles(p, PLAIN))),
    ("phase precision",): (ROPE, lambda x, p: rotate(x, angles(p, PLAIN, "float32"))),
    ("direction",): (ROPE, lambda x, p: rotate(x, -angles(p, PLAIN))),
}
MORE_MISTAKES = {
    ("phase precision",): (ROPE, lambda x, p: rotate(x, angles(p, PLAIN, ml_dtypes.bfloat16))),
    ("base",): (ROPE, lambda x, p: rotate(x, angles(p, geometric(10_050.0)))),
    ("layout", "base"): (ROPE, lambda x, p: rotate(x, angles(p, OTHER), "interleaved")),
    ("layout", "offset"): (ROPE, lambda x, p: rotate(x, angles(p + 7, PLAIN), "interleaved")),
    ("layout", "width"): (ROPE, lambda x, p: rotate(x, angles(p, NARROW), "interleaved")),
    ("direction", "scaling"): (SCALED, lambda x, p: rotate(x, -angles(p, PLAIN))),
    ("attention factor", "sincos order"): (SCALED, lambda x, p: rotate(x, QUARTER - angles(p, YARN), factor=FACTOR**2)),
    ("base", "phase precision"): (ROPE, lambda x, p: rotate(x, angles(p, OTHER, "float32"))),
    ("frequencies", "width"): (ROPE, lambda x, p: rotate(x, angles(p, PLAIN[:8]))),
    ("width", "frequencies"): (
        ROPE,
        lambda x, p: np.concatenate([x[:, :4], rotate(x[:, 4:], angles(p, geometric(dim=28)[:8]))], axis=-1),
    ),
    ("layout", "offset", "width"): (ROPE, lambda x, p: rotate(x, angles(p + 1, NARROW), "interleaved")),
}


def function(xp, on_host, axis):
    """A function of "seq heads dim", whose tables have an axis for heads or, by mistake, none."""

    def fn(x, positions):
        where = xp.numpy(positions)
        return xp.array(on_host(xp.numpy(x), where[None] if axis == "heads" else where[:, None]), xp.dtype_of(x))

    return fn


@pytest.mark.where(lambda xp, causes: xp.name == "numpy" or causes[0] in ("layout", "axis", "phase precision"))
@pytest.mark.parametrize("causes", MISTAKES, ids=" and ".join)
def test_a_planted_mistake_is_the_first_cause(xp, causes):
    """In both orders, and against itself there is none. Other libraries than NumPy try some."""
    rope, on_host = MISTAKES[causes]
    fn = function(xp, on_host, "heads" if causes == ("axis",) else "tokens")
    options = {"shape": "seq heads dim", "like": xp.array(np.zeros(2), "float32"), "context": FAR}
    for pair in ((fn, rope), (rope, fn)):
        report = compare(*pair, **options)
        assert not report.same and report.causes == causes, report
        assert report.scores_are_same == (causes == ("offset",))
    assert compare(fn, fn, head_dim=HEAD_DIM, **{**options, "context": 512}).same
    with pytest.raises(AssertionError, match=rf"^assert_same: the function .* differ.*Likely cause: {causes[0]}"):
        assert_same(fn, rope, **options)


@pytest.mark.parametrize("causes", MORE_MISTAKES, ids=" and ".join)
def test_several_mistakes_at_once_are_all_named(causes):
    rope, fn = MORE_MISTAKES[causes]
    assert sorted(compare(fn, rope, context=FAR).causes) == sorted(causes)


def right(x, positions):
    """In float32, as most implementations are."""
    return rotate(x, angles(positions, PLAIN, "float32")).astype("float32")


def with_float32_tables(x, positions):
    """Exact phases, whose sines and cosines are rounded to float32."""
    angle = angles(positions, PLAIN)
    sin, cos = (table.astype("float32").astype("float64") for table in (np.sin(angle), np.cos(angle)))
    one, other = x[:, :16], x[:, 16:]
    return np.concatenate([one * cos - other * sin, other * cos + one * sin], axis=-1)


def test_what_agrees_up_to_the_context_is_the_same():
    assert_same(right, ROPE)
    assert_same(ROPE.replace(scaling=NTKScaling(factor=4.0)), ROPE.replace(base=BASE * 4.0 ** (32 / 30)))
    assert_same(RotaryEmbedding(head_dim=HEAD_DIM, layout="half", inv_freq=PLAIN.tolist()), ROPE, context=2**31)
    assert_same({**CONFIG, "model_type": "smollm3", "no_rope_layers": [1, 0]}, None, options={"layer": 1})
    assert_same(lambda x, positions: x, None, head_dim=HEAD_DIM)
    assert_same(ROPE, ROPE.replace(phase="float32"))
    for inexact in (right, ROPE.replace(phase="float32")):
        with pytest.raises(AssertionError, match="phase precision"):
            assert_same(inexact, ROPE, context=FAR)
    assert_same(SLOW.replace(phase="float32"), SLOW, context=2**31, tolerance=1.0)
    report = compare(with_float32_tables, ROPE, context=2**31)
    assert report.same and not report.causes


LLAMA3 = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
LLAMA = RotaryEmbedding(head_dim=128, layout="half", base=500_000.0, scaling=LLAMA3)


def llama3_in_float32():
    """The frequencies of `LLAMA`, of which each step is rounded to float32, as in transformers."""
    w = 1.0 / np.float32(500_000.0) ** (np.arange(0, 128, 2, dtype="float32") / np.float32(128.0))
    wavelength = np.float32(2.0 * np.pi) / w
    smooth = (np.float32(8192.0) / wavelength - np.float32(1.0)) / np.float32(3.0)
    between = (1 - smooth) * w / np.float32(8.0) + smooth * w
    return np.select([wavelength < 2048.0, wavelength > 8192.0], [w, w / np.float32(8.0)], between)


COMPUTED = llama3_in_float32()
GIVEN = RotaryEmbedding(head_dim=128, layout="half", inv_freq=COMPUTED.tolist())


def module(x, positions):
    return rotate(x, angles(positions, COMPUTED, "float32")).astype("float32")


def with_slow_pairs_too_fast(x, positions):
    return rotate(x, angles(positions, np.array(LLAMA.inv_freq) * ([1.0] * 56 + [1.002] * 8)))


def with_bfloat16_tables(x, positions):
    angle = angles(positions, np.array(LLAMA.inv_freq))
    cos, sin = (table.astype(ml_dtypes.bfloat16).astype("float64") for table in (np.cos(angle), np.sin(angle)))
    turned = (x[:, :64] + 1j * x[:, 64:]) * (cos + 1j * sin)
    return np.concatenate([turned.real, turned.imag], axis=-1)


def with_positions_in(dtype):
    return lambda x, p: rotate(x, angles(p.astype(dtype).astype("float64"), np.array(LLAMA.inv_freq)))


# What is compared, its cause, and a part of what to do. Frequencies that are computed in float32 have an error of some
# roundings, which is seen at far positions. Tables in half precision have errors at all positions.
COMPUTED_IN_FLOAT32 = [
    (module, LLAMA, "phase precision (a: float32 phases; b: exact phases)", "name the context"),
    (module, LLAMA.replace(phase="float32"), "frequencies (a: those of base 500,000 in float32;", "inv_freq=module."),
    (
        with_bfloat16_tables,
        LLAMA,
        "phase precision (a: bfloat16 tables; b: exact phases)",
        "Keep sines and cosines in float32.",
    ),
    (
        LLAMA,
        with_positions_in(ml_dtypes.bfloat16),
        "phase precision (a: exact phases; b: bfl",
        "above 256: do not cast",
    ),
    (with_positions_in("float16"), LLAMA, "phase precision (a: float16 phases; b: exact", "above 2,048: do not cast"),
    (with_slow_pairs_too_fast, LLAMA, "frequencies (a:", "Compare the frequencies"),
    (GIVEN, LLAMA.replace(base=10_000.0), "base (a: 500,000; b: 10,000).", "rope_theta"),
]


def failing(x, positions):
    raise ValueError("x is too short")


def positions_in_bfloat16_of_another_base(x, positions):
    rounded = positions.astype(ml_dtypes.bfloat16).astype("float64")
    return rotate(x, angles(rounded, np.array(LLAMA.replace(base=250_000.0).inv_freq)))


OF_BASE = "Check the base (rope_theta), and the exponent: -2 j / rotary_dim for pair j."
ADVICE = {
    failing: ["If the function takes other arrays, say so by `shape` and `like`, or wrap it."],
    lambda x, p: x * 2.0 ** (p[..., None] % 2): [],  # the report says what it is instead
    positions_in_bfloat16_of_another_base: [
        OF_BASE,
        "Compute position times frequency exactly or in float64. bfloat16 rounds integers above 256: do not cast "
        "positions or frequencies (inv_freq) to it with the model.",
    ],
    LLAMA.replace(base=250_000.0): [OF_BASE],
}


@for_each("one", ADVICE)
def test_advice_is_that_of_each_cause(one):
    report = compare(one, LLAMA, context=400, head_dim=128, shape="seq dim")
    assert list(report.advice) == ADVICE[one] and report.comparable == (one is not failing)


def test_a_report_says_which_positions_were_tried():
    rope = RotaryEmbedding(head_dim=4, layout="half", base=10_000.0)
    w, some = np.array(rope.inv_freq), "All positions below 32,768 were tried"
    functions = {
        "usual": lambda x, p: rotate(x, angles(p, w)),
        "index": lambda x, p: rotate(x, angles(np.arange(x.shape[-2]), w)),
    }
    for name, context, words in (
        ("usual", 2**15, ""),
        ("usual", 2**15 + 1, some),
        ("index", 40_000, ""),
        ("index", 2**17, ""),
        ("index", 2**17 + 1, "All positions below 131,072 were tried, and none beyond."),
    ):
        options = {"context": context, "shape": "seq dim", "positions_ignored": name == "index"}
        report = compare(functions[name], rope, **options)
        assert report.same and report.sample.startswith(words) and bool(report.sample) == bool(words), (name, context)
        assert compare(rope, rope, context=context).sample == ""
    wide = compare(lambda x, p: rotate(x, angles(p, LLAMA.inv_freq)), LLAMA, context=2**15 + 1, shape="seq dim")
    assert wide.sample == f"{some}, and 1 beyond, in calls with at most 16,384 tokens."


def test_frequencies_computed_in_float32_are_told_from_other_causes():
    assert COMPUTED.dtype == "float32" and np.abs(COMPUTED / np.array(LLAMA.inv_freq) - 1.0).max() > 4 * 2.0**-24
    options = {"context": 8192, "like": np.zeros(1, "float32")}
    assert_same(module, LLAMA, **options)
    assert_same(module, GIVEN.replace(phase="float32"), tolerance=1e-6, **options)
    for one, other, cause, advice in COMPUTED_IN_FLOAT32:
        report = compare(one, other, tolerance=1e-5, **options)
        assert f"Likely cause: {cause}" in report.summary and advice in "".join(report.advice)
        assert len(report.advice) == 1


# An embedding in the words of the oracle: frequencies "pairs" or "axes pairs", layout, factor, dtype of phases.
def truth(frequencies, layout="half", factor=1.0, dtype="float64", head_dim=HEAD_DIM):
    """The matrices "axes positions head_dim head_dim" of positions below 600, on each axis alone."""
    each = [angles(np.arange(600), row, dtype)[:, None] for row in np.atleast_2d(frequencies)]
    unit = np.broadcast_to(np.eye(head_dim), (600, head_dim, head_dim))
    return np.stack([rotate(unit, angle, layout, factor) for angle in each])


SLOW, SLOW_FREQUENCIES = RotaryEmbedding(head_dim=4, layout="half", inv_freq=[3e-4, 1e-5]), np.array([3e-4, 1e-5])
EVERY_OTHER = ROPE.replace(layout="interleaved")
AXES = ROPE.replace(sections=Sections((8, 4, 4)))
IN_TURN = AXES.replace(sections=Sections((8, 4, 4), order="round_robin"))
CHUNKED, ROBIN = (np.eye(3)[:, order] * PLAIN for order in ([0] * 8 + [1] * 4 + [2] * 4, [0, 1, 2] * 4 + [0] * 4))
SWAPPED = np.eye(HEAD_DIM)[:, [*range(0, HEAD_DIM, 2), *range(1, HEAD_DIM, 2)]]  # channels 2j and 2j + 1 to j, j + 16

# Two values, what each is by the oracle, and whether scores change if one of the two rotates queries and keys.
PAIRS = {
    "base": (ROPE, truth(PLAIN), ROPE.replace(base=10_100.0), truth(geometric(10_100.0)), False),
    "layout": (
        SLOW,
        truth(SLOW_FREQUENCIES, head_dim=4),
        SLOW.replace(layout="interleaved"),
        truth(SLOW_FREQUENCIES, "interleaved", head_dim=4),
        False,
    ),
    "direction": (SLOW, truth(SLOW_FREQUENCIES, head_dim=4), SLOW.replace(inv_freq=[-3e-4, -1e-5]), None, False),
    "rotation": (SLOW, truth(SLOW_FREQUENCIES, head_dim=4), None, truth(0 * SLOW_FREQUENCIES, head_dim=4), False),
    "written elsewhere": (
        EVERY_OTHER,
        truth(PLAIN, "interleaved"),
        ROPE.replace(layout="interleaved_to_half"),
        truth(PLAIN, "interleaved") @ SWAPPED,
        True,
    ),
    "width": (
        EVERY_OTHER,
        truth(PLAIN, "interleaved"),
        EVERY_OTHER.replace(rotary_dim=30),
        truth(geometric(dim=30), "interleaved"),
        False,
    ),
    "attention factor": (ROPE, truth(PLAIN), ROPE.replace(attention_factor=1.009), truth(PLAIN, factor=1.009), False),
    "factor and base": (
        ROPE.replace(attention_factor=1.009),
        truth(PLAIN, factor=1.009),
        ROPE.replace(base=10_010.0),
        truth(geometric(10_010.0)),
        False,
    ),
    "phases": (
        ROPE.replace(base=10_040.0),
        truth(geometric(10_040.0)),
        ROPE.replace(phase="float32"),
        truth(PLAIN, dtype="float32"),
        False,
    ),
    "sections": (AXES, truth(CHUNKED), IN_TURN, truth(ROBIN), False),
}
PAIRS["direction"] = (*PAIRS["direction"][:3], PAIRS["direction"][1].swapaxes(-1, -2), False)


@for_each("name", PAIRS)
def test_the_first_position_is_that_of_the_definition(name):
    a, matrices_a, b, matrices_b, scores_are_same = PAIRS[name]
    for report in (compare(a, b, context=600), compare(b, a, context=600)):
        change = np.linalg.norm(matrices_a - matrices_b, ord=2, axis=(-2, -1)).max(axis=0)
        first = next((position for position in range(600) if change[position] > 0.01), None)
        assert report.first_position == first and not report.same and report.scores_are_same == scores_are_same
        assert report.largest_change == pytest.approx(change[599], abs=1e-12)


def test_causes_of_values():
    yarn = YarnScaling(factor=4.0, original_max_position_embeddings=2048)
    rows = [
        (SCALED.replace(scaling=yarn), ROPE, ("scaling",), 8192),
        (SCALED, ROPE.replace(layout="interleaved", base=500_000.0, scaling=SCALING), ("layout", "base"), 256),
        (ROPE, ROPE.replace(xpos=XPos()), ("decay",), 4096),
        (
            TWO_PAIRS,
            TWO_PAIRS.replace(base=None, scaling=None, inv_freq=(1.0, 1.5), attention_factor=FACTOR),
            ("frequencies",),
            256,
        ),
        (ROPE, RotaryEmbedding(head_dim=HEAD_DIM, layout="half", inv_freq=PLAIN * NEARLY), ("frequencies",), 4096),
        (ROPE, ROPE.replace(head_dim=64), ("width",), 4096),
        (ROPE, SCALED.replace(head_dim=64, layout="interleaved"), ("width", "layout", "scaling"), 256),
        (CONFIG, {**CONFIG, "rope_theta": 500_000.0}, ("base",), 2048),
        (CONFIG, {**CONFIG, "rope_scaling": {"type": "linear", "factor": 4.0}}, ("scaling",), 2048),
        (ROPE, RotaryEmbedding(head_dim=HEAD_DIM, layout="half", inv_freq=OTHER.tolist()), ("base",), 4096),
        (
            ROPE,
            RotaryEmbedding(head_dim=HEAD_DIM, layout="half", inv_freq=OTHER[::-1].tolist()),
            ("frequencies",),
            4096,
        ),
    ]
    for a, b, causes, context in rows:
        for report in (compare(a, b), compare(b, a)):
            assert (report.causes, report.same, report.context) == (causes, False, context)


TWO_PAIRS = SCALED.replace(head_dim=4, rotary_dim=4)
NEARLY = np.where(np.arange(HEAD_DIM // 2) == 3, 1.001, 1.0)
CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "rope_theta": 10_000.0,
    "max_position_embeddings": 2048,
}


def test_the_report_is_text_of_80_columns_and_json(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**CONFIG, "rope_theta": 500_000.0}))
    assert compare(partial(right), ROPE).a == "the function right"
    call = {"__call__": lambda self, x, positions: right(x, positions)}
    of_one_name = [type("Rotation", (), call | {"__module__": module})() for module in "mn"]
    two = compare(*of_one_name, head_dim=HEAD_DIM, context=9)
    assert (two.a, two.b) == ("the function Rotation of m", "the function Rotation of n")
    report = compare(str(file), CONFIG)
    text = str(report)
    assert max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split())
    assert "Likely cause: base." in words and "base a 500,000 b 10,000 compared positions 0 to 2,047 " in words
    assert "Likely cause: base (a: 500,000; b: 10,000)." in report.summary
    longrope = LongRopeScaling(
        short_factor=(1.0,) * 16, long_factor=(2.5,) * 16, original_max_position_embeddings=4096, factor=4.0
    )
    assert (
        "short_factor=(16 numbers), long_factor=(16 numbers), original_max_position_embeddings=4096, factor=4.0)"
        in " ".join(compare(ROPE, ROPE.replace(scaling=longrope)).b.split())
    )
    assert json.loads(json.dumps(report.to_dict()))["causes"] == ["base"]


# Functions that are no rotation, and what the report says of them.
FAILING = {
    "the function raises ZeroDivisionError: division by zero": lambda x, positions: 1 / 0,
    "the function changes the shape of x": lambda x, positions: x[..., :2],
    "the function returns NaN": lambda x, positions: x * np.nan,
    "the function returns NoneType, which is no array": lambda x, positions: None,
    "two equal calls give different results": lambda x, positions: x + np.random.default_rng().normal(size=x.shape),
    "is not linear in x": lambda x, positions: rotate(x, angles(positions, PLAIN)) ** 2,
    "gives the same result at every position": lambda x, positions: 2 * x,
    "keeps the positions of an earlier call": lambda x, positions, kept={}: rotate(
        x, angles(kept.setdefault(x.shape, positions), PLAIN)
    ),
}


@for_each("words", FAILING)
def test_a_function_that_is_no_rotation_is_reported_in_words(words):
    report = compare(FAILING[words], ROPE, like=np.zeros(1))
    assert words.lower() in report.summary.lower() and not report.same and len(report.summary) < 1000
    fails = "raises" in words or "changes the shape" in words or "returns" in words
    assert report.comparable != fails and ("could not be compared" in str(report)) == fails
    assert "positions 0 to" not in str(report)
    with pytest.raises(AssertionError, match=r"^assert_same: the function .* must agree with RotaryEmbedding"):
        assert_same(FAILING[words], ROPE, like=np.zeros(1))


class Ported:
    rope = ROPE  # which its call may not use

    def __call__(self, x, positions):
        return x


def test_an_object_with_an_embedding_is_called():
    assert not compare(Ported(), ROPE).same


def test_a_function_that_counts_positions_itself_or_ends_is_compared_as_far_as_it_goes():
    def counting(x, positions):
        return rotate(x, angles(np.arange(len(x)), PLAIN))

    def ending(x, positions):
        return rotate(x, np.stack([angles(np.arange(3000), OTHER)[p] for p in positions]))

    assert_same(counting, ROPE, shape="seq dim", positions_ignored=True)
    assert "counts the rows" in compare(counting, ROPE, shape="seq dim", positions_ignored=True).summary
    report = compare(counting, ROPE, shape="seq dim")
    assert (report.same, report.causes, report.comparable) == (False, ("calls",), True)
    assert "positions_ignored=True" in report.summary
    report = compare(ending, ROPE, shape="seq dim")
    assert report.causes == ("base", "length") and "from position 3,000 on: it raises IndexError" in report.summary
    assert (report.context, report.first_position) == (4096, 1)


@pytest.mark.parametrize("first", [100, 4002, 2**17])
def test_a_function_that_is_wrong_at_some_positions_is_not_the_same(first):
    """A table that ends, so that later positions get its last row; and one wrong position."""

    def clamped(x, positions):
        return rotate(x, angles(np.minimum(positions, first - 1), PLAIN))

    def wobbling(x, positions, wrong=-1):
        return right(x, positions) * (1.5 + np.sin(positions + (positions == wrong)))[:, None]

    report = compare(clamped, ROPE, context=2**20)
    assert (report.same, report.causes, report.first_position) == (False, ("unknown",), first)
    if first < 2**15:
        assert compare(wobbling, wobbling, head_dim=HEAD_DIM, context=2**15).same
        one_wrong = partial(wobbling, wrong=first)
        assert compare(wobbling, one_wrong, head_dim=HEAD_DIM, context=2**15).first_position == first
    assert "below 32,768 were tried" in compare(right, ROPE, context=FAR, tolerance=0.1).summary


@pytest.mark.parametrize(("dtype", "first"), [(ml_dtypes.bfloat16, 257), (np.float16, 2049)])
def test_positions_in_half_precision_have_errors_where_they_are_rounded(dtype, first):
    def fn(x, positions):  # with a table that ends beyond the context
        return rotate(x, angles(np.minimum(positions, 50_000).astype(dtype), PLAIN))

    report = compare(fn, ROPE, context=8192)
    assert (report.causes, report.first_position) == (("phase precision",), first)
    assert f"{np.dtype(dtype).name} phases" in report.summary


LINEAR = LinearScaling(factor=4.0)
LONG_YARN = YarnScaling(factor=4.0, original_max_position_embeddings=4096)
# A rule, a slightly wrong number of it, the dtype of phases, the cause, and how the rule of the function is stated.
OF_LLAMA = "llama3, factor=8.0, low_freq_factor=1.0, high_freq_factor=3.9"
SLIGHTLY_WRONG = [
    (LLAMA3, {"high_freq_factor": 3.9}, "float32", "scaling", OF_LLAMA),
    (LLAMA3, {"high_freq_factor": 3.9}, "float64", "scaling", OF_LLAMA),
    (LLAMA3, {"factor": 8.1}, "float32", "scaling", "llama3, factor=8.1"),
    (LLAMA3, {"low_freq_factor": 1.1}, "float32", "scaling", "llama3, factor=8.0, low_freq_factor=1.1"),
    (LONG_YARN, {"factor": 4.1}, "float32", "scaling", "yarn, factor=4.1"),
    (
        LONG_YARN,
        {"beta_fast": 24.0},
        "float64",
        "scaling",
        "yarn, factor=4.0, original_max_position_embeddings=4096, beta_fast=",
    ),
    (LINEAR, {"factor": 4.05}, "float64", "scaling", "linear, factor=4.05"),
]


@pytest.mark.parametrize(("rule", "wrong", "dtype", "cause", "text"), SLIGHTLY_WRONG)
def test_a_slightly_wrong_number_is_not_taken_for_half_precision(rule, wrong, dtype, cause, text):
    rope = RotaryEmbedding(head_dim=64, layout="half", base=BASE, scaling=rule)
    value = rope.replace(scaling=replace(rule, **wrong))

    def fn(x, positions):
        return rotate(x, angles(positions, value.inv_freq, dtype), factor=value.attention_factor)

    report = compare(fn, rope, context=8192)
    found = {each.cause: each.a for each in report.differences}
    assert report.causes[0] == cause and text in found[cause] and "float16" not in str(report)
    assert found.get("phase precision", "float32 phases") == "float32 phases"


def test_bad_arguments():
    options = partial(compare, ROPE, CONFIG)
    values = [
        (partial(options, context=0), r"^compare: context must be at least 1 .*; got 0"),
        (partial(options, tolerance=0.0), r"^compare: tolerance must be greater than 0; got 0.0"),
        (partial(compare, right, ROPE, head_dim=64), r"^compare: head_dim must be that of the value, 32; got 64"),
        (partial(compare, right, ROPE, shape="a b"), r"^compare: shape must name the axes of x"),
        (partial(compare, right, HEADS), r"must be compared with a value whose heads are alike; got heads=2"),
        (partial(compare, {"model_type": "none"}, ROPE), r"^from_config: model_type must be"),
    ]
    types = [
        (partial(compare, 5, ROPE), r"^compare: a must be a config .*; got int"),
        (partial(compare, ROPE, RotaryEmbedding), r"^compare: b must be a config .*; got type"),
        (partial(assert_same, ROPE, [1.0]), r"^assert_same: rope must be a config .*; got list"),
        (partial(compare, right, right), r"^compare: head_dim must be given for two functions; got None"),
        (partial(compare, right, None), r"^compare: head_dim must be given, because no value states it; got None"),
        (partial(compare, None, right), r"^compare: head_dim must be given, because no value states it; got None"),
        (partial(options, options=3), r"^compare: options must be a mapping .*; got int"),
        (partial(options, options={"layers": 3}), r"^compare: options must be arguments of from_config .*; got 'lay"),
        (partial(compare, right, ROPE, positions_ignored="yes"), r"^compare: positions_ignored must be"),
        (partial(compare, right, ROPE, like=3), r"^compare: like must be an array; got int"),
    ]
    assert_all_raise(raising(values, types))


HEADS = RotaryEmbedding(head_dim=4, layout="half", inv_freq=[[[1.0, 0.5], [1.0, 0.1]]])


def moved(positions, *rotations):
    """The share of attention that moves, by definition, from two functions of queries or keys and their positions."""
    random, (heads, tokens) = np.random.default_rng(0), (32, len(positions))
    q, k = random.standard_normal((heads, HEAD_DIM)), random.standard_normal((tokens, HEAD_DIM))
    weights = []
    for rotated, scale in rotations:
        scores = rotated(q, np.full(heads, positions[-1]), 1) @ rotated(k, positions, -1).T * scale / HEAD_DIM**0.5
        weights.append(np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True))
    return np.abs(weights[0] - weights[1]).sum(axis=-1).mean() / 2


def plain(frequencies, layout="half", factor=1.0):
    return lambda x, p, sign: rotate(x, angles(p, frequencies), layout, factor)


@pytest.mark.parametrize("context", [1, 500, 20_000])
def test_how_much_attention_moves(context):
    """A function counts as its value does. A scale of the softmax counts if both are values."""
    last, tokens = context - 1, min(context, 4096)
    positions = np.asarray([round(number * last / max(tokens - 1, 1)) for number in range(tokens)])
    right = (plain(PLAIN), 1.0)
    for other, rotated in {
        ROPE.replace(base=500_000.0): (plain(OTHER), 1.0),
        ROPE.replace(layout="interleaved"): (plain(PLAIN, "interleaved"), 1.0),
        SCALED: (plain(YARN, factor=FACTOR), 1.0),
        None: (lambda x, p, sign: x, 1.0),
    }.items():
        report = compare(ROPE, other, context=context)
        wanted = moved(positions, right, rotated)
        assert report.attention_moved is None if report.same else abs(report.attention_moved - wanted) < 1e-9
        called = compare(lambda x, p: rotate(x, angles(p, PLAIN)), other, context=context, head_dim=HEAD_DIM)
        assert called.same or abs(called.attention_moved - wanted) < 1e-6
    assert f"{100 * wanted:.2g} % of attention moves" in report.summary or report.same
    scaled = SCALED.replace(scaling=replace(SCALING, mscale=2.0, mscale_all_dim=2.0))
    scale = scaled.softmax_scale
    wanted = moved(positions, (plain(YARN, factor=FACTOR), 1.0), (plain(YARN, factor=FACTOR), scale))
    assert scale != 1.0 and abs(compare(SCALED, scaled, context=context).attention_moved - wanted) < 1e-9


def test_an_offset_of_both_moves_no_attention():
    report = compare(lambda x, p: rotate(x, angles(p + 1, PLAIN)), ROPE)
    assert report.attention_moved < 1e-8 and "no attention moves" in report.summary


def test_attention_moves_as_queries_and_keys_of_xpos_do():
    """Keys are divided by the factor that multiplies queries."""
    zeta = np.tile([(2 * j + 0.4 * HEAD_DIM) / (1.4 * HEAD_DIM) for j in range(HEAD_DIM // 2)], 2)

    def rotated(x, p, sign):
        return rotate(x, angles(p, PLAIN)) * zeta ** (sign * (p[:, None] - 250) / 512)

    wanted = moved(np.arange(300), (plain(PLAIN), 1.0), (rotated, 1.0))
    assert abs(compare(ROPE, ROPE.replace(xpos=XPos(centre=250)), context=300).attention_moved - wanted) < 1e-9
    # At any length, numbers are finite.
    assert 0.0 < compare(ROPE, ROPE.replace(xpos=XPos()), context=2**31).attention_moved < 1.0
