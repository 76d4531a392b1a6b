"""`compare` and `assert_same`, with mistakes planted in functions of complex numbers."""

import itertools
import json
from dataclasses import replace
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from cases import for_each
from errors import assert_all_raise, raising
from formulas import geometric
from functions import angles_of, rotary, rounded, turned

from rope_xp import (
    DynamicNTKScaling,
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
    from_config,
)

HEAD_DIM, BASE, FACTOR, FAR = 32, 10_000.0, 1.25, 100_000
SCALING = YarnScaling(factor=4.0, original_max_position_embeddings=64, attention_factor=FACTOR)
ROPE = RotaryEmbedding(head_dim=HEAD_DIM, layout="half", base=BASE)
SCALED = ROPE.replace(scaling=SCALING)


PLAIN, OTHER, NARROW, YARN = geometric(BASE, 32), geometric(5e5, 32), geometric(BASE, 16), np.array(SCALED.inv_freq)


def swapped(w, factor=1.0):
    """By a quarter turn minus the angle: sine for cosine, and cosine for sine."""
    return lambda x, p: turned(x, np.pi / 2 - angles_of(p, w), factor=factor)


# Causes, the right value, and a function of "seq dim" that makes these mistakes. YaRN's frequencies are the library's.
MISTAKES = [
    (("layout",), ROPE, rotary(PLAIN, "interleaved")),
    (("base",), ROPE, rotary(OTHER)),
    (("base",), ROPE, rotary(geometric(10_050.0, 32))),
    (("scaling",), SCALED, rotary(PLAIN)),
    (("width",), ROPE, rotary(NARROW)),
    (("offset",), ROPE, rotary(PLAIN, offset=1)),
    (("attention factor",), SCALED, rotary(YARN, factor=FACTOR**2)),
    (("sincos order",), ROPE, swapped(PLAIN)),
    (("axis",), ROPE, rotary(PLAIN)),
    (("phase precision",), ROPE, rotary(PLAIN, phase="float32")),
    (("phase precision",), ROPE, rotary(PLAIN, phase=ml_dtypes.bfloat16)),
    (("direction",), ROPE, rotary(-PLAIN)),
    (("layout", "base"), ROPE, rotary(OTHER, "interleaved")),
    (("offset", "layout"), ROPE, rotary(PLAIN, "interleaved", offset=7)),
    (("width", "layout"), ROPE, rotary(NARROW, "interleaved")),
    (("offset", "width", "layout"), ROPE, rotary(NARROW, "interleaved", offset=1)),
    (("direction", "scaling"), SCALED, rotary(-PLAIN)),
    (("sincos order", "attention factor"), SCALED, swapped(YARN, FACTOR**2)),
    (("base", "phase precision"), ROPE, rotary(OTHER, phase="float32")),
    (("width", "base"), ROPE, rotary(PLAIN[:8])),
    (("width", "base"), ROPE, rotary(geometric(BASE, 28)[:8], first=4)),
    (("base",), ROPE.replace(rotary_dim=16, layout="interleaved"), rotary(PLAIN[:8], "interleaved")),
    (("width", "base"), SCALED, rotary(YARN[:12], factor=FACTOR)),
]


def function(xp, on_host, axis):
    """A function of "seq heads dim", whose tables have an axis for heads or, by mistake, none."""

    def fn(x, positions):
        where = xp.numpy(positions)
        return xp.array(on_host(xp.numpy(x), where[None] if axis == "heads" else where[:, None]), xp.dtype_of(x))

    return fn


@pytest.mark.where(lambda xp, causes: xp.name == "numpy" or causes in (("layout",), ("axis",), ("phase precision",)))
@pytest.mark.parametrize(
    "causes, rope, on_host", MISTAKES, ids=lambda each: "+".join(each) if isinstance(each, tuple) else ""
)
def test_planted_mistakes_are_the_causes(xp, causes, rope, on_host):
    """Also in the other order. Against itself there is none. Other libraries try some."""
    fn = function(xp, on_host, "heads" if causes == ("axis",) else "tokens")
    options = {"shape": "seq heads dim", "like": xp.array(np.zeros(2), "float32"), "context": FAR}
    for pair in ((fn, rope), (rope, fn)):
        report = compare(*pair, **options)
        assert not report.same and {*report.causes} == {*causes}, report
        assert report.scores_are_same == (causes == ("offset",))
    assert compare(fn, fn, head_dim=HEAD_DIM, **{**options, "context": 512}).same
    with pytest.raises(AssertionError, match=r"^assert_same: the function .* differ.*Likely causes?: "):
        assert_same(fn, rope, **options)


def right(x, positions):
    """In float32, as most implementations are."""
    return rotary(PLAIN, phase="float32", dtype="float32")(x, positions)


def test_another_factor_of_ntk_is_no_other_base():
    rope = ROPE.replace(scaling=NTKScaling(factor=4.0))
    for base, factor, causes in ((BASE, 5.0, ("scaling",)), (BASE, 1.0, ("scaling",)), (50 * BASE, 4.0, ("base",))):
        w = geometric(base * factor ** (HEAD_DIM / (HEAD_DIM - 2)), HEAD_DIM)
        assert compare(rotary(w), rope).causes == causes


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
    report = compare(rotary(PLAIN, tables=rounded("float32")), ROPE, context=2**31)
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


module, LLAMA_FREQUENCIES = rotary(COMPUTED, phase="float32", dtype="float32"), np.array(LLAMA.inv_freq)


def with_positions_in(dtype, w=LLAMA_FREQUENCIES):
    return lambda x, p: turned(x, angles_of(p.astype(dtype), w))


# What is compared, its cause, and a part of what to do. Frequencies that are computed in float32 have an error of some
# roundings, which is seen at far positions. Tables in half precision have errors at all positions.
COMPUTED_IN_FLOAT32 = [
    (module, LLAMA, "phase precision (a: float32 phases; b: exact phases)", "name the context"),
    (module, LLAMA.replace(phase="float32"), "frequencies (a: those of base 500,000 in float32;", "inv_freq=module."),
    (
        rotary(LLAMA_FREQUENCIES, tables=rounded(ml_dtypes.bfloat16)),
        LLAMA,
        "phase precision (a: bfloat16 tables; b: exact phases)",
        "Keep sines and cosines in float32.",
    ),
    (
        LLAMA,
        with_positions_in(ml_dtypes.bfloat16),
        "phase precision (a: exact phases; b: bfl",
        "it rounds integers above 256, and products long before.",
    ),
    (with_positions_in("float16"), LLAMA, "phase precision (a: float16 phases; b: exact", "integers above 2,048, and"),
    (rotary(LLAMA_FREQUENCIES * ([1.0] * 56 + [1.002] * 8)), LLAMA, "frequencies (a:", "Compare the frequencies"),
    (GIVEN, LLAMA.replace(base=10_000.0), "base (a: 500,000; b: 10,000).", "rope_theta"),
]


def failing(x, positions):
    raise ValueError("x is too short")


OF_BASE = "Check the base (rope_theta), and the exponent: -2 j / rotary_dim for pair j."
ADVICE = {
    failing: ["If the function takes other arrays, say so by `shape` and `like`, or wrap it."],
    lambda x, p: x * 2.0 ** (p[..., None] % 2): [],  # the report says what it is instead
    with_positions_in(ml_dtypes.bfloat16, LLAMA.replace(base=250_000.0).inv_freq): [
        OF_BASE,
        "Keep positions, frequencies (inv_freq) and their products out of bfloat16, also if the model is cast to it: "
        "it rounds integers above 256, and products long before. identify says so if positions or frequencies alone "
        "are rounded. Compute position times frequency exactly or in float64.",
    ],
    LLAMA.replace(base=250_000.0): [OF_BASE],
}


@for_each("one", ADVICE)
def test_advice_is_that_of_each_cause(one):
    report = compare(one, LLAMA, context=400, head_dim=128, shape="seq dim")
    assert list(report.advice) == ADVICE[one] and report.comparable == (one is not failing)


def test_frequencies_computed_in_float32_are_told_from_other_causes():
    assert COMPUTED.dtype == "float32" and np.abs(COMPUTED / np.array(LLAMA.inv_freq) - 1.0).max() > 4 * 2.0**-24
    options = {"context": 8192, "like": np.zeros(1, "float32")}
    assert_same(module, LLAMA, **options)
    assert_same(module, GIVEN.replace(phase="float32"), tolerance=1e-6, **options)
    for one, other, cause, advice in COMPUTED_IN_FLOAT32:
        report = compare(one, other, tolerance=1e-5, **options)
        assert f"Likely cause: {cause}" in report.summary and advice in "".join(report.advice)
        assert len(report.advice) == 1


SLOW = RotaryEmbedding(head_dim=4, layout="half", inv_freq=[3e-4, 1e-5])
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
        "short_factor=(16 numbers), long_factor=(16 numbers), original_max_position_embeddings=4096, factor=4.0, "
        "seq_len=16384)" in " ".join(compare(ROPE, ROPE.replace(scaling=longrope)).b.split())
    )
    assert json.loads(json.dumps(report.to_dict()))["causes"] == ["base"]


def longrope_of(factor, width=16, original=4096):
    lists = {"short_factor": (1.0,) * width, "long_factor": (factor,) * width}
    return LongRopeScaling(**lists, original_max_position_embeddings=original, factor=4.0)


DYNAMIC = ROPE.replace(scaling=DynamicNTKScaling(factor=4.0, max_position_embeddings=4096))


def test_two_values_that_state_no_length_are_compared_for_sequences_of_the_context():
    one, other = (ROPE.replace(scaling=longrope_of(factor)) for factor in (2.0, 2.5))
    for a, b in ((one, other), (ROPE, DYNAMIC), (DYNAMIC, ROPE)):
        assert compare(a, b).context == 16_384
        for options in ({}, {"context": 4097}):
            with pytest.raises(AssertionError, match=r"seq_len=(16384|4097).* Likely cause: scaling"):
                assert_same(a, b, **options)
        assert_same(a, b, context=4096)
    huge = DYNAMIC.replace(scaling=DynamicNTKScaling(factor=1e6, max_position_embeddings=4096))
    assert compare(huge, huge).context == 2**31


def test_what_computes_one_value_is_compared_with_that_value_as_far_as_its_frequencies_are_meant():
    dynamic = {**CONFIG, "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}
    of_longer = from_config(dynamic, seq_len=8192)
    for rope, *others in ((ROPE.replace(scaling=longrope_of(2.0)),), (from_config(dynamic), dynamic)):
        length = 4096 if rope.head_dim == HEAD_DIM else 2048
        function = partial(lambda rope, x, positions: rope(x, positions=positions, seq_dim=-2), rope)
        for other in (function, *others):
            report = compare(other, rope)
            assert report.same and report.context == length
            assert report.problems[-1].endswith(f"of at most {length:,} tokens; its rule has others for longer ones.")
            words = (
                f"must be for sequences of {length + 1} tokens, the context; got those for at most {length:,} tokens"
            )
            with pytest.raises(ValueError, match=words):
                compare(other, rope, context=length + 1)
    for a, b, causes in ((from_config(dynamic), of_longer, ("scaling",)), (of_longer, of_longer, ())):
        assert compare(a, b).causes == causes
    assert compare(of_longer, of_longer).context == 8192


def test_float32_phases_show_behind_results_in_half_precision():
    """Other programs round frequencies otherwise: no value has their phases."""
    w = (1.0 / np.float32(BASE) ** (np.arange(0, 64, 2, dtype=np.float32) / 64)).astype(np.float32)
    rope = RotaryEmbedding(head_dim=64, layout="half", base=BASE)

    def rotate(x, positions):
        return turned(x.astype(np.float32), positions.astype(np.float32)[:, None] * w).astype(x.dtype)

    report = compare(rotate, rope, context=2**17, like=np.zeros(1, np.float16))
    assert report.causes == ("phase precision",) and 2**14 < report.first_beyond_tolerance < 2**17
    near = compare(rotate, rope, context=4096, like=np.zeros(1, np.float16))
    assert near.same and near.largest_change is None and "last position" not in str(near)
    with pytest.raises(ValueError, match=r"compare: tolerance must be at least 0.0039, 8 roundings of .*; got 0.001"):
        compare(rotate, rope, tolerance=1e-3, like=np.zeros(1, np.float16))


def test_exact_frequencies_near_others_are_not_called_float32():
    """And numbers that differ in digits that are not shown are shown whole."""
    rope = RotaryEmbedding(head_dim=64, layout="half", base=1e4)
    for changed in (rope.replace(base=10_000.005), rope.replace(attention_factor=1.000001)):
        found = compare(changed, rope, context=2**20, tolerance=1e-7).differences
        assert [each.a != each.b for each in found] == [True]
    found = compare(rotary(geometric(10_000.005, 64)), rope, context=2**20, shape="seq dim")
    assert [(each.cause, each.a, each.b) for each in found.differences] == [("base", "10000.005", "10000.0")]
    rounded = np.asarray(rope.inv_freq, np.float32).astype(float) / 3  # which rounds to no float32 numbers
    found = compare(rotary(rounded), rope.replace(scaling=LinearScaling(factor=3.0)), context=2**20, shape="seq dim")
    assert found.causes == ("phase precision",)


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16], ids=str)
def test_phases_in_half_precision_are_those_of_their_dtype(dtype):
    """At few positions too, where positions, frequencies and products are rounded, or one of them."""
    name, half = np.dtype(dtype).name, rounded(dtype)
    for base, dim, context in itertools.product((1e4, 5e5), (8, 64), (20, 100, 4096)):
        w, rope = np.array(geometric(base, dim), float), RotaryEmbedding(head_dim=dim, layout="half", base=base)
        for angles in (
            lambda p: half(half(p)[:, None] * half(w)),  # noqa: B023
            lambda p: p[:, None] * half(w),  # noqa: B023
            lambda p: half(p)[:, None] * w,  # noqa: B023
            lambda p: half(p[:, None] * w),  # noqa: B023
        ):
            found = compare(lambda x, p: turned(x, angles(p)), rope, shape="seq dim", context=context)  # noqa: B023
            assert not found.same or context < 4096
            if not found.same:
                assert [each.a for each in found.differences] == [f"{name} phases"], (base, dim, context)
                assert f"out of {name}" in found.advice[0]


def test_tables_in_half_precision_that_never_differ_have_no_cause():
    rope = RotaryEmbedding(head_dim=64, layout="half", base=1e4)
    found = compare(rotary(geometric(1e4, 64), tables=rounded("float16")), rope, shape="seq dim")
    assert found.same and found.causes == ()


def test_a_config_is_compared_with_its_gguf_file_as_llama_cpp_converts_it():
    rope = from_config(CONFIG, layout="interleaved")
    metadata, value = rope.to_config("gguf"), from_config(CONFIG, layout="half")
    for given in ((CONFIG, metadata), (metadata, CONFIG), (CONFIG, from_config(metadata))):
        report = compare(*given)
        assert report.same and "half'" in report.a + report.b and "permuted" in report.a + report.b
        assert compare(*given, options={"layout": None}).same
    assert compare({**CONFIG, "model_type": "qwen2"}, metadata).causes == ("layout",)  # not of that architecture
    assert "permuted" not in compare(CONFIG, metadata, options={"layout": "half"}).a
    assert compare(value, metadata).causes == ("layout",)  # a value rotates as it is
    for options in ({}, {"options": {"flags": "--rope-scale 2"}}):
        assert compare({**CONFIG, "rope_theta": 5e5}, metadata, **options).causes[0] == "base"
    block = {"rope_type": "longrope", "short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
    config = {**CONFIG, "model_type": "minicpm", "head_dim": 32, "max_position_embeddings": 8192}
    config |= {"rope_scaling": {**block, "original_max_position_embeddings": 2048}}
    file = {**from_config(config, layout="interleaved").to_config("gguf"), "minicpm.context_length": 8192}
    assert all(compare(config, file, **options).same for options in ({}, {"context": 2048}, {"context": 2049}))


# Functions that are no rotation, and what the report says of them.
FAILING = {
    "the function raises ZeroDivisionError: division by zero": lambda x, positions: 1 / 0,
    "the function changes the shape of x": lambda x, positions: x[..., :2],
    "the function returns NaN": lambda x, positions: x * np.nan,
    "the function returns NoneType, which is no array": lambda x, positions: None,
    "two equal calls give different results": lambda x, positions: x + np.random.default_rng().normal(size=x.shape),
    "is not linear in x": lambda x, positions: right(x, positions) ** 2,
    "gives the same result at every position": lambda x, positions: 2 * x,
    "keeps the positions of an earlier call": lambda x, positions, kept={}: right(
        x, kept.setdefault(x.shape, positions)
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


@pytest.mark.parametrize("first", [100, 4002, 2**17])
def test_later_positions_with_the_last_row_of_a_table_are_not_the_same(first):
    report = compare(lambda x, p: rotary(PLAIN)(x, np.minimum(p, first - 1)), ROPE, context=2**20)
    assert (report.same, report.causes, report.first_position) == (False, ("unknown",), first)


@pytest.mark.parametrize(("dtype", "first"), [(ml_dtypes.bfloat16, 257), (np.float16, 2049)])
def test_positions_in_half_precision_have_errors_where_they_are_rounded(dtype, first):
    def fn(x, positions):  # with a table that ends beyond the context
        return rotary(PLAIN)(x, np.minimum(positions, 50_000).astype(dtype))

    report = compare(fn, ROPE, context=8192)
    assert (report.causes, report.first_position) == (("phase precision",), first)
    assert f"{np.dtype(dtype).name} phases" in report.summary


LINEAR = LinearScaling(factor=4.0)
LONG_YARN = YarnScaling(factor=4.0, original_max_position_embeddings=4096)
# A rule, a slightly wrong number of it, the dtype of phases, the cause, and how the rule of the function is stated.
OF_LLAMA = "llama3, factor=8.0, low_freq_factor=1.0, high_freq_factor=3.9"
OF_OTHER_LENGTH = "llama3, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=4096"
SLIGHTLY_WRONG = [
    (LLAMA3, {"high_freq_factor": 3.9}, "float32", "scaling", OF_LLAMA),
    (LLAMA3, {"high_freq_factor": 3.9}, "float64", "scaling", OF_LLAMA),
    (LLAMA3, {"original_max_position_embeddings": 4096}, "float64", "scaling", OF_OTHER_LENGTH),
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
    report = compare(rotary(value.inv_freq, phase=dtype, factor=value.attention_factor), rope, context=8192)
    found = {each.cause: each.a for each in report.differences}
    assert report.causes[0] == cause and text in found[cause] and "float16" not in str(report)
    assert found.get("phase precision", "float32 phases") == "float32 phases"


def test_bad_arguments():
    """Those without a function are in tests/goldens/examples.json."""
    values = [
        (partial(compare, right, ROPE, head_dim=64), r"^compare: head_dim must be that of the value, 32; got 64"),
        (partial(compare, right, ROPE, shape="a b"), r"^compare: shape must name the axes of x"),
        (partial(compare, right, HEADS), r"must be compared with a value whose heads are alike; got heads=2"),
    ]
    types = [
        (partial(compare, right, right), r"^compare: head_dim must be given for two functions; got None"),
        (partial(compare, right, None), r"^compare: head_dim must be given, because no value states it; got None"),
        (partial(compare, None, right), r"^compare: head_dim must be given, because no value states it; got None"),
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


def plain(*arguments, **options):
    return lambda x, p, sign: rotary(*arguments, **options)(x, p)


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
        called = compare(rotary(PLAIN), other, context=context, head_dim=HEAD_DIM)
        assert called.same or abs(called.attention_moved - wanted) < 1e-6
    assert f"{100 * wanted:.2g} % of attention moves" in report.summary or report.same
    scaled = SCALED.replace(scaling=replace(SCALING, mscale=2.0, mscale_all_dim=2.0))
    scale = scaled.softmax_scale
    wanted = moved(positions, (plain(YARN, factor=FACTOR), 1.0), (plain(YARN, factor=FACTOR), scale))
    assert scale != 1.0 and abs(compare(SCALED, scaled, context=context).attention_moved - wanted) < 1e-9


@pytest.mark.parametrize("windows, keys", [((50, 50), 50), ((50, 80), 80), ((50, None), 300), ((500, 500), 300)])
def test_attention_within_a_window(windows, keys):
    """The keys are those of the longer window, if the layers of both have one that is shorter than the context."""
    sizes = {"hidden_size": HEAD_DIM, "num_attention_heads": 1, "max_position_embeddings": 300}
    mistral = {"model_type": "mistral", "num_key_value_heads": 1, **sizes}
    both = [{**mistral, "rope_theta": b, "sliding_window": window} for b, window in zip((1e4, 5e5), windows)]
    report, wanted = compare(*both), moved(np.arange(300 - keys, 300), (plain(PLAIN), 1.0), (plain(OTHER), 1.0))
    assert report.context == 300 and abs(report.attention_moved - wanted) < 1e-9
    assert report.window == (keys if keys < 300 else None)
    assert (f"random keys within the window of {keys} tokens" in " ".join(str(report).split())) == (keys < 300)


def test_an_offset_of_both_moves_no_attention():
    report = compare(rotary(PLAIN, offset=1), ROPE)
    assert report.attention_moved < 1e-8 and "no attention moves" in report.summary
    report = compare(rotary(PLAIN, offset=1, tables=rounded("float16")), ROPE)
    assert report.causes == ("offset",) and report.scores_are_same


def test_attention_moves_as_queries_and_keys_of_xpos_do():
    """Keys are divided by the factor that multiplies queries."""
    zeta = np.tile([(2 * j + 0.4 * HEAD_DIM) / (1.4 * HEAD_DIM) for j in range(HEAD_DIM // 2)], 2)

    def rotated(x, p, sign):
        return rotary(PLAIN)(x, p) * zeta ** (sign * (p[:, None] - 250) / 512)

    wanted = moved(np.arange(300), (plain(PLAIN), 1.0), (rotated, 1.0))
    decays = ROPE.replace(xpos=XPos(centre=250))
    assert abs(compare(ROPE, decays, context=300).attention_moved - wanted) < 1e-9
    for pair in ((ROPE, decays), (decays, ROPE)):  # beyond the centre, keys change most
        assert compare(*pair, context=300).largest_change == pytest.approx(zeta.min() ** (-49 / 512) - 1)
    # At any length, numbers are finite.
    assert 0.0 < compare(ROPE, ROPE.replace(xpos=XPos()), context=2**31).attention_moved < 1.0


def test_a_config_with_flags_is_compared_for_the_context_too(tmp_path):
    longrope = {"short_factor": [1.0 + i / 100 for i in range(64)], "long_factor": [2.0 + i for i in range(64)]}
    longrope |= {"rope_type": "longrope", "original_max_position_embeddings": 1024, "factor": 4.0}
    dynamic = {"rope_type": "dynamic", "factor": 4.0}
    follows, unscaled = "lmdeploy serve api_server x", "vllm serve x"
    for scaling, flags, causes, context in (
        (dynamic, unscaled, ("scaling",), 8192),  # vLLM scales by a key of its own
        (dynamic, follows, (), 8192),
        (dynamic, "sglang serve x", (), 8192),  # for the longest sequence only
        (longrope, unscaled, (), 4096),  # the length is the config's
        (longrope, "llama-server -m x.gguf -c 1024", (), 1024),
    ):
        config = {**CONFIG, "model_type": "qwen3", "max_position_embeddings": 2048, "rope_scaling": scaling}
        if scaling is longrope:
            config |= {"model_type": "phi3", "max_position_embeddings": 4096}
        report = compare(config, config, options={"flags": flags})
        assert (report.causes, report.context) == (causes, context), flags
        assert ("only if max_trained_positions" in str(report.remarks)) == (scaling is dynamic and flags == unscaled)
        assert ("for other lengths" in report.summary) == (flags != follows), flags
    plain = {**CONFIG, "model_type": "qwen3", "max_position_embeddings": 2048}
    config = {**plain, "rope_scaling": dynamic}
    report = compare(plain, config, options={"flags": follows})
    assert report.causes == ("scaling",) and len(report.problems) == 1


@pytest.mark.parametrize("order", ["axial", "chunked"])
def test_several_position_axes(order):
    """Which axis a pair follows and a base are found along each axis; attention moves where it moves most."""
    rope = RotaryEmbedding(head_dim=32, layout="half", base=100.0, sections=Sections((8, 8), order))
    for axes, base, causes in (
        ((0, 1), 100.0, ()),
        ((1, 0), 100.0, ("sections",)),
        ((0, 1), 1e4, ("base",)),
        ((1, 0), 1e4, ("base", "sections")),
    ):
        w = geometric(base, 32) if order == "chunked" else np.tile(geometric(base, 16), 2)

        def fn(x, positions, w=w, axes=axes):
            return turned(x, positions[np.repeat(axes, 8)].T * w)

        report = compare(fn, rope, shape="seq dim", context=14)
        assert {*report.causes} == {*causes} and report.same == (not causes), report.summary
        if "sections" in causes:
            swapped_axes = rope.replace(sections=Sections((8, 8), order, (1, 0)))
            assert f"{order} (8, 8) of axes (1, 0)" in report.summary
            moved = compare(swapped_axes, rope, context=14).attention_moved
            assert moved > 0.05 and (causes != ("sections",) or abs(moved - report.attention_moved) < 1e-9)
    irregular = np.array([0, 1, 1, 0, 1, 0, 0, 1] * 2)
    report = compare(lambda x, p: turned(x, p[irregular].T * geometric(100.0, 32)), rope, shape="seq dim", context=14)
    assert "sections" in report.causes and "no value near the other one" in report.summary.lower(), report.summary
    every_other = compare(lambda x, p: turned(x, p[np.arange(16) % 2].T * geometric(100.0, 32)), rope, shape="seq dim")
    assert "layout" not in every_other.summary.lower()


@pytest.mark.parametrize(
    "base, divisor, said", [(1e4, 2.0, ["none", "linear, factor=2.0"]), (5e5, 1.0, ["10,000", "500,000"])]
)
def test_numbers_are_explained_beside_a_value_with_a_base(base, divisor, said):
    """In either order, by the rules that may have made them of the base."""
    rope = RotaryEmbedding(head_dim=64, layout="half", base=1e4)
    given = RotaryEmbedding(head_dim=64, layout="half", inv_freq=(geometric(base, 64) / divisor).tolist())
    for pair, expected in (((rope, given), said), ((given, rope), said[::-1])):
        (found,) = compare(*pair).differences
        assert [found.a, found.b] == expected


def test_float32_phases_are_the_cause_behind_tables_in_half_precision():
    """And the same tables behind results in half precision are the same: they do not say their phases."""
    w = np.float32(5e5) ** (-np.arange(0, 64, 2, dtype="float32") / np.float32(64))  # rounded once more
    tables = rotary(w, phase="float32", tables=rounded("float16"))
    rope = RotaryEmbedding(head_dim=64, layout="half", base=5e5)
    found = compare(tables, rope, shape="seq dim", context=2**20)
    assert [(each.cause, each.a) for each in found.differences] == [("phase precision", "float32 phases")]
    for context in (None, 2**17):
        found = compare(
            tables, lambda x, p: tables(x, p).astype("float16"), head_dim=64, shape="seq dim", context=context
        )
        assert found.same and not found.causes
    # Beyond 2**20, no later position is tried.
    small = rotary(geometric(50.0, 4), phase="float32"), RotaryEmbedding(head_dim=4, layout="half", base=50.0)
    assert compare(*small, shape="seq dim", context=2**20, tolerance=0.1).causes == ()
    assert compare(*small, shape="seq dim", context=256, tolerance=0.003).causes == ("phase precision",)
    # Nor does a later position differ from tables in float32.
    found = compare(tables, rotary(w, phase="float32"), head_dim=64, shape="seq dim")
    assert found.same and not found.causes


def test_infinite_sizes_are_the_same_of_equal_values_only():
    """XPos far before its centre multiplies queries by more than the largest number."""
    rope = RotaryEmbedding(head_dim=64, layout="half", base=1e4, xpos=XPos(scale_base=512, centre=2**19 + 5000))
    assert compare(rope, rope).same and compare(rope, rope).largest_change == 0.0
    for changes, cause in (
        ({"base": 2e4}, "base"),
        ({"layout": "interleaved"}, "layout"),
        ({"rotary_dim": 32}, "width"),
    ):
        report = compare(rope, rope.replace(**changes))
        assert (report.causes, report.first_position, report.largest_change) == ((cause,), 0, np.inf)


SOFTMAX = YarnScaling(factor=40.0, original_max_position_embeddings=4096, mscale=1.0, mscale_all_dim=1.0)


def test_a_scale_of_the_softmax_goes_with_a_rule_and_not_with_its_numbers():
    rope = RotaryEmbedding(head_dim=64, layout="half", base=1e4, scaling=SOFTMAX)
    numbers = {"head_dim": 64, "layout": "half", "inv_freq": rope.inv_freq}
    for options, cause, moved in (
        ({"phase": "float32"}, "phase precision", 0.331),
        ({"attention_factor": 1.1}, "attention factor", 0.254),
    ):
        report = compare(rope, RotaryEmbedding(**numbers, **options), context=4096)
        assert report.causes == (cause, "softmax scale") and not report.same
        assert report.attention_moved == pytest.approx(moved, abs=1e-3)  # computed apart, with NumPy alone
    # Where the rule changes nothing below the context, the scale does.
    plain = RotaryEmbedding(head_dim=64, layout="half", base=1e4)
    report = compare(
        plain, plain.replace(scaling=replace(SOFTMAX, original_max_position_embeddings=400_000)), context=18
    )
    assert not report.same and report.causes == ("scaling", "softmax scale")


def test_attention_of_latent_heads_is_not_known():
    """They have other channels, which the embedding does not know and a scale of the softmax changes, too."""
    config = {"model_type": "deepseek_v3", "qk_rope_head_dim": 64, "rope_theta": 1e4, "max_position_embeddings": 16384}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "mscale": 1.0}
    scaled, plain = ({**config, "rope_scaling": yarn | more} for more in ({"mscale_all_dim": 1.0}, {}))
    report = compare(scaled, plain)
    assert report.attention_moved is None and report.causes == ("attention factor", "softmax scale")
    assert report.largest_change == pytest.approx(0.1 * np.log(4.0))


@pytest.mark.parametrize(
    "base, more, factor, tolerance, first",
    [
        (1.0, 1e-12, 1.0, 1e-5, 9_999_112),  # by 50 digits of mpmath
        (0.1852990105250503, 6.017e-14, 1.0, 1e-4, None),
        (1.0, 5e-9, 1e7, None, 1),
    ],
)
def test_the_first_change_above_a_small_tolerance(base, more, factor, tolerance, first):
    """It is not lost by subtracting squares that are nearly equal."""
    one, other = (
        RotaryEmbedding(head_dim=2, layout="half", inv_freq=[w], attention_factor=factor) for w in (base, base + more)
    )
    report = compare(one, other, context=2**31, tolerance=tolerance)
    assert not report.same and (first is None or report.first_beyond_tolerance == first)
    assert report.largest_change > (tolerance or 1e-3)


def test_frequencies_that_float32_rounds_to_the_same_numbers_do_not_differ():
    one = RotaryEmbedding(head_dim=8, layout="half", base=1e4, phase="float32")
    other = RotaryEmbedding(head_dim=8, layout="half", inv_freq=np.float32(one.inv_freq).tolist(), phase="float32")
    report = compare(one, other, context=2**31)
    assert (report.same, report.causes) == (True, ())
    assert compare(one, other.replace(phase="exact"), context=2**31).causes == ("phase precision",)


def test_frequencies_in_half_precision_are_not_those_of_their_base():
    rope = RotaryEmbedding(head_dim=8, layout="half", base=1e4)
    w = np.asarray(rope.replace(base=777.0).inv_freq)
    for rounded_w, cause in ((w, "base"), (w.astype(np.float32), "base"), (w.astype(np.float16), "frequencies")):
        assert compare(rope, rope.replace(base=None, inv_freq=rounded_w.tolist())).causes == (cause,)


def test_an_attention_factor_is_a_cause_if_the_rules_do_not_explain_it():
    scaled = RotaryEmbedding(
        head_dim=64, layout="half", base=1e4, scaling=YarnScaling(factor=4.0, original_max_position_embeddings=1024)
    )
    plain = RotaryEmbedding(head_dim=64, layout="half", base=1e4, attention_factor=scaled.attention_factor)
    of_numbers = RotaryEmbedding(head_dim=64, layout="half", inv_freq=np.linspace(1, 0.01, 32).tolist())
    for one, other, causes in (
        (scaled, plain, ("scaling",)),
        (scaled, of_numbers, ("attention factor", "frequencies")),
        (of_numbers, scaled, ("attention factor", "frequencies")),
    ):
        assert compare(one, other).causes == causes


def test_a_pair_that_a_function_does_not_rotate_has_no_factor():
    rope = RotaryEmbedding(head_dim=16, layout="half", base=1e4, scaling=NTKScaling(factor=2.0))
    w = np.array(rope.inv_freq) * ([1.0] * 7 + [0.0])
    assert compare(rotary(w), rope, shape="seq dim", context=100).causes == ("base", "scaling")


def test_a_single_token_moves_no_attention():
    rope = RotaryEmbedding(head_dim=8, layout="half", base=1e4)
    report = compare(rope, rope.replace(attention_factor=1.5), context=1)
    assert report.attention_moved == 0.0 and "no attention moves" in report.summary


def test_causes_stand_in_the_order_in_which_they_begin_to_act():
    rope = RotaryEmbedding(head_dim=8, layout="half", base=1e4)
    for factor, causes in ((1.5, ("attention factor", "layout")), (1.009, ("layout", "attention factor"))):
        assert compare(rope, rope.replace(layout="interleaved", attention_factor=factor)).causes == causes
    moved = rotary(rope.inv_freq, "interleaved", offset=5)
    assert compare(moved, rope, shape="seq dim").causes == ("layout", "offset")  # both from position 0 on


def test_frequencies_of_heads_are_compared_head_by_head():
    w = geometric(1e4, 64)
    f = 1.5 * w
    of_one_axis, of_heads, of_axes, of_both = (
        [RotaryEmbedding(head_dim=64, layout="half", inv_freq=np.asarray(each).tolist()) for each in given]
        for given in ((w, f), ([[w, w]], [[w, f]]), ([w, f],), ([[w, w], [f, f]],))
    )
    alone, moved = (compare(*both, context=4096).attention_moved for both in (of_one_axis, of_heads))
    assert moved == pytest.approx(alone / 2, rel=0.2)  # one of two heads
    many = (
        RotaryEmbedding(head_dim=64, layout="half", inv_freq=[[w.tolist()] * 32 + [each] * 32])
        for each in (w.tolist(), f.tolist())
    )
    assert compare(*many, context=4096).attention_moved == pytest.approx(alone / 2, rel=0.2)
    assert compare(*of_axes, *of_both).same
    assert compare(*of_axes, of_both[0].replace(layout="interleaved")).causes == ("layout",)


@pytest.mark.parametrize("factors", [(1e-200, 1e-200), (1e200, 1e200), (1e160, 1e150), (1e200, 1e100), (1.0, 1e300)])
def test_extreme_attention_factors_are_compared(factors):
    one, other = (
        RotaryEmbedding(head_dim=4, layout="half", base=base, attention_factor=each)
        for base, each in zip((1e4, 1e3), factors)
    )
    assert compare(one, other).same == (max(factors) < 1.0)
    huge = one.replace(attention_factor=1e308)
    assert compare(huge, huge).same and compare(huge, other).attention_moved is None


def test_what_is_nowhere_rotated_is_compared_with_nothing():
    still = {"head_dim": 4, "layout": "half", "inv_freq": [0.0, 0.0]}
    for given in (None, lambda x, positions: x):
        assert compare(RotaryEmbedding(**still), given) and compare(RotaryEmbedding(**still), given).causes == ()
    scaled = RotaryEmbedding(**still, attention_factor=1.5)
    for pair, factors in (((scaled, None), ("1.5", "1")), ((None, scaled), ("1", "1.5"))):
        [difference] = compare(*pair).differences
        assert (difference.cause, difference.a, difference.b) == ("attention factor", *factors)
    assert compare(RotaryEmbedding(**{**still, "layout": "interleaved_to_half"}), None).causes == ("layout",)


def test_a_rule_for_another_number_of_pairs_is_no_error():
    lists = {"short_factor": [1.0, 2.0], "long_factor": [3.0, 4.0], "original_max_position_embeddings": 64}
    rule = LongRopeScaling(**lists, factor=1.0)
    one = RotaryEmbedding(head_dim=8, layout="half", base=1e4, rotary_dim=4, scaling=rule)
    other = RotaryEmbedding(head_dim=8, layout="half", inv_freq=[1.0, 0.3, 0.02])
    assert compare(one, other, context=64).causes == ("width", "frequencies")
