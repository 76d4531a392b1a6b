"""`identify` against functions that share no code with the package: by complex numbers, and by formulas of mpmath."""

import itertools
import json
import re
from functools import partial
from math import pi

import ml_dtypes
import numpy as np
import oracle
import pytest
from cases import for_each
from errors import assert_all_raise, raising
from rules import BASE, DIM, LLAMA, RULES, YARN_8K

from rope_xp import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    MixedNTKScaling,
    NTKScaling,
    ProportionalScaling,
    RotaryEmbedding,
    identify,
)

WIDTH = 16
FREQUENCIES = np.asarray(oracle.geometric(10_000, WIDTH), dtype=float)
ROPE = RotaryEmbedding(head_dim=WIDTH, layout="half", base=10_000.0)


def turned(x, angles, layout="half", span=None, inverse=False, factor=1.0):
    """The channels of a span, rotated by the oracle and multiplied by a factor."""
    span = span or slice(None)
    result = np.array(x, dtype=np.float64)
    read = "interleaved" if layout == "interleaved_to_half" else layout
    rotated = factor * oracle.rotate(result[..., span], angles, read, inverse)
    if layout == "interleaved_to_half":
        rotated = np.concatenate([rotated[..., ::2], rotated[..., 1::2]], axis=-1)
    result[..., span] = rotated
    return result


def angles_of(positions, frequencies=FREQUENCIES):
    return np.asarray(positions, dtype=np.float64)[..., None] * np.asarray(frequencies, dtype=np.float64)


def good(x, positions):
    return turned(x, angles_of(positions))


def rotary(frequencies, layout="half", dtype="float64", offset=0, **options):
    """A function as `identify` takes it."""
    return lambda x, p: turned(x, angles_of(p + offset, frequencies), layout, **options).astype(dtype)


def tables(positions):
    """Cosines and sines of both halves."""
    angles = np.concatenate([angles_of(positions)] * 2, axis=-1)
    return np.cos(angles), np.sin(angles)


def applied(x, cos, sin, negative=1):
    half = np.split(x, 2, axis=-1)
    return x * cos + np.concatenate([-half[1], negative * half[0]], axis=-1) * sin


LAYOUTS = ["half", "interleaved", "interleaved_to_half"]


@pytest.mark.parametrize("first, rotary_dim", [(0, 16), (0, 8), (4, 12), (8, 8), (6, 2)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_round_trip(layout, first, rotary_dim):
    """Channels, direction, attention factor and offset: the value that a user would write, and nothing more."""
    span, base = slice(first, first + rotary_dim), 500_000.0
    frequencies = oracle.geometric(base, rotary_dim)
    one_pair = rotary_dim == 2
    for reverse, factor, offset in itertools.product((False, True), (1.0, 1.25), (0, 1, 300)):
        fn = rotary(frequencies, layout, offset=offset, span=span, inverse=reverse, factor=factor)
        found = identify(fn, WIDTH)
        expected = RotaryEmbedding(
            head_dim=WIDTH,
            layout="half" if one_pair else layout,
            rotary_dim=rotary_dim,
            first_channel=first,
            attention_factor=factor,
            **{"inv_freq": [-1.0 if reverse else 1.0]} if one_pair else {"base": base, "reverse": reverse},
        )
        assert found.rope == expected
        assert (found.offset, found.direction, found.magnitude) == (offset, -1 if reverse else 1, factor)
        assert (found.is_rotation, found.relative, found.stateful) == (True, True, False)
        assert (found.precision, found.longest, found.confidence) == ("exact", 2**20, 1.0)
        assert len(found.pairs) == rotary_dim // 2 and len(found.kept) == WIDTH - rotary_dim
        off = np.max(np.abs(np.divide(found.inv_freq, found.rope.inv_freq) - 1.0))
        assert any(f"those of the value are within {off:.1e} of each." in reason for reason in found.reasons)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_channels_without_the_attention_factor_belong_to_no_pair(layout):
    """Over all channels, the base would be 10,000,000, with pairs that are not rotated."""
    base, span = 1e7**0.5, slice(0, 8)
    rope = identify(rotary(oracle.geometric(base, 8), layout, span=span, factor=1.2), WIDTH).rope
    assert (rope.rotary_dim, rope.scaling, rope.attention_factor) == (8, None, 1.2)
    assert (rope.layout, rope.base) == (layout, pytest.approx(base, rel=1e-13))


@pytest.mark.parametrize(
    "dtype, offsets", [("float64", (0.25, -0.5, -7, 0.123456, 123456.5, 10**6)), ("float32", (-0.5, -7, 10**4))]
)
def test_the_offset_follows_from_all_pairs(dtype, offsets):
    """In float32 the slowest pair alone, of 2e-6 radians, gives it to a tenth."""
    assert identify(rotary(oracle.geometric(500_000.0, DIM), dtype="float32", offset=0.25), DIM).offset == 0.25
    for offset in offsets:
        found = identify(rotary(FREQUENCIES, dtype=dtype, offset=offset), WIDTH)
        assert found.offset == offset and type(found.offset) is type(offset)
        assert f"the angle at position p is that of p {'+-'[offset < 0]} {abs(offset)}." in " ".join(found.reasons)


@for_each("bits, base", [(8, 10_000.0), (24, 10_000.0), (25, None), (53, 10_000.0)])
def test_frequencies_are_rounded_to_the_bits_of_a_dtype_or_not_at_all(bits, base):
    numbers, exponents = np.frexp(FREQUENCIES)
    rounded = np.ldexp(np.round(np.ldexp(numbers, bits)), exponents - bits)
    assert identify(rotary(rounded), WIDTH).rope.base == base


@for_each("width, base", itertools.product((4, 6), (10_000.0, 12_345.0)))
def test_two_pairs_are_enough_for_a_base(width, base):
    frequencies = np.asarray(oracle.geometric(base, width), dtype=float)
    found = identify(rotary(frequencies), width)
    assert found.rope == RotaryEmbedding(head_dim=width, layout="half", base=base)
    assert f"{width // 2}: {', '.join(map(str, found.pairs))}\n" in str(found)


# Rules whose numbers follow from the frequencies.
FOUND = [
    rule
    for rule, _ in RULES
    if isinstance(rule, (LinearScaling, NTKScaling, ProportionalScaling))
    or rule in (MixedNTKScaling(factor=8.0), YARN_8K(), YARN_8K(truncate=False), Llama3Scaling(**LLAMA))
    or rule == Llama3Scaling(**{**LLAMA, "high_freq_factor": 1.0})
]
OTHERS = [rule for rule, _ in RULES if rule not in FOUND]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("rule", OTHERS, ids=[str(rule)[:60] for rule in OTHERS])
def test_frequencies_of_rules_that_do_not_follow_from_them(rule, dtype):
    frequencies = np.asarray([float(w) for w in dict(RULES)[rule]])
    found = identify(rotary(frequencies, dtype=dtype), DIM)
    rope = found.rope
    # The angle at 2**20 is off by some units of roundoff, and a number of few digits within that error is taken.
    atol = 16 * float(np.finfo(dtype).eps) / 2**20
    np.testing.assert_allclose(rope.inv_freq, frequencies, rtol=1e-14, atol=atol)
    assert rope.layout == "half" and found.precision == "exact"


@pytest.mark.parametrize(
    "rule, layout", [*zip(FOUND, itertools.cycle(LAYOUTS[:2]))], ids=[str(rule)[:60] for rule in FOUND]
)
def test_a_rule_is_found_with_its_numbers(rule, layout):
    """In float64, in float32, and from frequencies that were rounded to float32."""
    truth = dict(RULES)[rule]
    factor = rule.resolved_attention_factor
    expected = RotaryEmbedding(head_dim=DIM, layout=layout, base=BASE, scaling=rule)
    for w, dtype in itertools.product((truth, np.asarray(truth, dtype=np.float32)), ("float64", "float32")):
        assert identify(rotary(w, layout, dtype, factor=factor), DIM).rope == expected


def bfloat16(x):
    return np.asarray(x).astype(ml_dtypes.bfloat16).astype(np.float64)


def float32(x):
    return np.asarray(x).astype(np.float32).astype(np.float64)


ROUNDED = [(float32, "float32", where) for where in ("frequencies", "products")]  # it holds all positions
ROUNDED += [(bfloat16, "bfloat16", where) for where in ("positions", "frequencies", "products")]


@for_each("rounded, name, where", ROUNDED)
def test_precision(rounded, name, where):
    """Of phases, and of tables in bfloat16 that belong to exact phases."""

    def angles(positions):
        of = {each: rounded if each == where else np.asarray for each in ("positions", "frequencies", "products")}
        return of["products"](angles_of(of["positions"](positions), of["frequencies"](FREQUENCIES)))

    found = identify(lambda x, p: turned(x, angles(p)), WIDTH)
    assert (found.precision, found.rope) == (name, ROPE)
    words = "Frequencies are rounded to" if where == "frequencies" else "Phases have the precision of"
    assert f"{words} {name}" in str(found)
    cos_and_sin = [bfloat16(each) for each in tables(np.arange(600))]
    found = identify(lambda x, p: applied(x, *(each[p] for each in cos_and_sin)), WIDTH)
    assert (found.precision, found.rope) == ("bfloat16 tables", ROPE)


def swapped(x, positions):
    return applied(x, *tables(positions)[::-1])


def scaled_cos(x, positions):
    cos, sin = tables(positions)
    return applied(x, 1.25 * cos, sin)


def hyperbolic(x, positions):
    angles = 1e-6 * np.concatenate([angles_of(positions)] * 2, axis=-1)
    return applied(x, np.cosh(angles), np.sinh(angles))


def twice_as_long(x, positions):
    """Channels that are not rotated, which is said of the first four."""
    return np.concatenate([turned(x[..., :6], angles_of(positions, FREQUENCIES[:3])), 2 * x[..., 6:]], axis=-1)


def v_jepa_2(x, positions):
    """Tables that repeat all frequencies, and pairs of neighbours."""
    cos, sin = tables(positions)
    return x * cos + np.stack([-x[..., 1::2], x[..., ::2]], axis=-1).reshape(x.shape) * sin


def by_length(x, positions):
    """Dynamic NTK: the longest position decides."""
    base = 10_000 * max(2 * (positions.max() + 1) / 4096 - 1, 1) ** (WIDTH / (WIDTH - 2))
    return turned(x, angles_of(positions, oracle.geometric(base, WIDTH)))


def growing():
    longest = [0]

    def fn(x, positions):
        longest[0] = max(longest[0], positions.max())
        return turned(x, angles_of(positions) * (1.0 if longest[0] < 100 else 0.5))

    return fn


def caching():
    kept = {}
    return lambda x, positions: turned(x, kept.setdefault(x.shape, angles_of(positions)))


def limited(positions, length=1000):
    """A table of this length, as a list has it."""
    assert positions.max() < length, f"position {positions.max()} is beyond {length}"
    return positions


def reordered(x, positions):
    order = np.random.default_rng(0).permutation(WIDTH)
    return turned(x[..., order], angles_of(positions))[..., np.argsort(order)]


def of_every_position(x, positions):
    return turned(x, angles_of(positions)) + 1e-3 * np.roll(x, 1, axis=-2)


RANDOM = np.random.default_rng(0)
FUNCTIONS = [
    # A rotation, but not by position * frequency.
    (swapped, dict(is_rotation=True, rope=None, relative=True), "swapped, so the angle is a quarter turn minus"),
    (lambda x, p: good(x, p**2), dict(is_rotation=True, rope=None, relative=False), "not proportional to positions"),
    (
        lambda x, p: turned(x, angles_of(p) + 0.3),
        dict(is_rotation=True, rope=None),
        "turned by a constant angle of 0.3",
    ),
    (
        lambda x, p: turned(x, angles_of(p) + np.arange(8)),
        dict(is_rotation=True, rope=None),
        "that no offset .* explains",
    ),
    (lambda x, p: turned(x, pi / 2 + angles_of(p)), dict(rope=None), "sign differs: each angle is a quarter turn more"),
    (lambda x, p: turned(x, angles_of(p) - pi / 2), dict(rope=None), "sign differs: each angle is a quarter turn less"),
    (
        lambda x, p: turned(x, -pi / 2 - angles_of(p)),
        dict(rope=None),
        "a sign differs: each angle is a quarter turn less",
    ),
    (reordered, dict(is_rotation=True, rope=None, layout=None, relative=True), "No layout has .* those of base 10000"),
    # No rotation.
    (scaled_cos, dict(is_rotation=False, relative=False), "cos is multiplied by 1.25, and sin by 1;"),
    (hyperbolic, dict(is_rotation=False), r"length of a pair such as \(0, 8\) changes with the position, as XPos does"),
    (v_jepa_2, dict(is_rotation=False, relative=False), r"Not a rotation: .* such as \(0, 1\) .* different angles"),
    (lambda x, p: applied(x, *tables(p), negative=-1), dict(is_rotation=False), "get the same sign of sin"),
    (lambda x, p: applied(x * np.repeat([1, -1], 8), *tables(p)), dict(is_rotation=False), "are reflected"),
    (lambda x, p: good(x, p) * 1.001 ** p[..., None], dict(is_rotation=False), "length of a pair .* changes"),
    (lambda x, p: x * np.cos(p)[..., None], dict(is_rotation=False), "are multiplied or moved, but not rotated"),
    (lambda x, p: good(x, p) @ np.ones((WIDTH, WIDTH)), dict(is_rotation=False), "so channels do not form pairs"),
    (lambda x, p: good(x, p) * (np.arange(WIDTH) < 8), dict(is_rotation=False), "8, 9, 10, 11 and 4 more are always 0"),
    (
        lambda x, p: good(x, p) * (np.arange(WIDTH) < 12),
        dict(is_rotation=False),
        "channels 12, 13, 14, 15 are always 0",
    ),
    (
        lambda x, p: good(x * (np.arange(WIDTH) != 5), p),
        dict(is_rotation=False),
        "channels 5, 13 follow from channels 13,",
    ),
    (lambda x, p: good(x[..., [*range(15), 3]], p), dict(is_rotation=False), "channels 15 of x do not appear in the"),
    (lambda x, p: good(x * (np.arange(WIDTH) % 8 != 1), p), dict(is_rotation=False), "channels 1, 9 are always 0"),
    (twice_as_long, dict(rope=None, is_rotation=True), "Channels 6, 7, 8, 9 and 6 more are multiplied or moved"),
    (lambda x, p: x, dict(is_rotation=False, rope=None), "depends neither on positions nor"),
    (lambda x, p: good(x, np.roll(p // 8, 1, -1)), dict(is_rotation=None), "follow neither their position nor their"),
    # Not linear.
    (lambda x, p: good(x, p) ** 2, dict(is_rotation=False), "not linear"),
    (lambda x, p: good(x, p) + 1, dict(is_rotation=False), "not linear"),
    (of_every_position, dict(is_rotation=False), "not the sum of the results of its channels"),
    # Wider arrays fail if they have negative numbers.
    (
        lambda x, p: good(x, p) if x.ndim == 2 or (x > 0.0).all() else None,
        dict(rope=ROPE, shape="seq dim"),
        "tested up to position 1,048,576",
    ),
    # Cannot be called.
    (lambda x, p: good(x, p) + RANDOM.random(), dict(is_rotation=None), "Two equal calls give different results"),
    (lambda x, p: x[..., :4], dict(is_rotation=None, shape=None), r"changes the shape of x from \(7, 16\) to \(7, 4\)"),
    (lambda x, p: np.tile(x, 2), dict(is_rotation=None), r"changes the shape of x from \(7, 16\) to \(7, 32\)"),
    (lambda x, p: (x, x), dict(is_rotation=None), "returns a tuple of 2; wrap it"),
    (lambda x, p: None, dict(is_rotation=None), "returns NoneType"),
    (lambda x, p: x * np.nan, dict(is_rotation=None), "returns NaN or infinity"),
    (lambda x, p: x.no_such_name, dict(is_rotation=None), "raises AttributeError: .*no_such_name"),
    (lambda x, p: exit(3), dict(is_rotation=None), "raises SystemExit"),
    (lambda x: x, dict(is_rotation=None), r"takes \(x\); wrap it in a function that takes \(x, positions\)"),
    (lambda x, cos, sin: x, dict(is_rotation=None), r"takes \(x, cos, sin\); wrap it in a function"),
    (lambda *of: len(*of), dict(is_rotation=None), "raises TypeError: len"),
    (next, dict(is_rotation=None), "raises TypeError: .*iterator"),  # a function without a signature
    # State, lengths and axes.
    (caching(), dict(stateful=True, rope=ROPE, flaw="keeps state"), "repeats the positions of the first call"),
    (growing(), dict(stateful=True, rope=None), "gives another result after a long one"),
    (by_length, dict(stateful=False, longest=4095, rope=ROPE), "frequencies depend on the largest position"),
    (lambda x, p: good(x, limited(p)), dict(longest=511, rope=ROPE), "raises AssertionError: position 1023 is bey"),
    *(
        (lambda x, p, n=n: good(x, limited(p, n)), dict(longest=n - 1, rope=ROPE), f"is beyond {n}")
        for n in (2**16, 2**17, 2**20)
    ),
    (lambda x, p: good(x, np.minimum(p, 511)), dict(longest=511, rope=ROPE), "at 512 the angles do not follow"),
    (
        lambda x, p: good(x, np.arange(x.shape[-2])),
        dict(axis="seq", longest=4095, rope=ROPE, positions_ignored=True),
        r"base=10000.0\), but it ignores positions\. .* within tolerance. - All positions below 4,096 were tried\.$",
    ),
]


@for_each("fn, expected, words", FUNCTIONS)
def test_functions_that_are_not_what_they_should_be(fn, expected, words):
    """A report that says so in words, whatever the function does."""
    found = identify(fn, WIDTH)
    assert {name: getattr(found, name) for name in expected} == expected
    text = " ".join(str(found).split())
    assert re.search(words, text, re.IGNORECASE), found
    relative = {None: "", True: "relative scores yes, at small positions", False: "relative scores no"}[found.relative]
    assert relative in text and ("relative scores" in text) == bool(relative)
    assert found.rope is not None or found.confidence < 0.1
    assert max(map(len, str(found).splitlines())) <= 80 and json.loads(json.dumps(found.to_dict()))["reasons"]


def test_an_interrupt_is_not_caught():
    def fn(x, positions):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        identify(fn, WIDTH)


def in_shape(x, positions, names, position_axes):
    """What a function of this shape alone accepts."""
    assert x.ndim == len(names) and positions.ndim == len(position_axes)
    angles = angles_of(positions)
    sizes = dict(zip(names, x.shape)) | dict(zip(position_axes, positions.shape))
    angles = angles.reshape([sizes[name] if name in position_axes else 1 for name in names[:-1]] + [-1])
    return turned(x, angles)


@pytest.mark.where(lambda shape, positions: "batch" in shape or "batch" not in positions)
@pytest.mark.parametrize("positions", ["seq", "batch seq"])
@pytest.mark.parametrize("shape", ["seq dim", "seq heads dim", "heads seq dim", "batch seq heads dim"])
def test_shapes(shape, positions):
    fn = partial(in_shape, names=shape.split(), position_axes=positions.split())
    for stated in (None, shape):
        found = identify(fn, WIDTH, shape=stated)
        assert (found.rope, found.axis) == (ROPE, "seq") and len(found.shape.split()) == len(shape.split())
    assert found.shape == shape
    assert "raises AssertionError" in str(
        identify(fn, WIDTH, shape="batch heads seq dim" if len(shape) < 9 else "seq dim")
    )


@pytest.mark.parametrize("fn", [good, lambda x, p: good(x, np.arange(x.shape[-2]))])
def test_heads_in_place_of_positions(fn):
    found = identify(fn, WIDTH, shape="batch seq heads dim")
    assert (found.axis, found.rope, found.positions_ignored) == ("heads", ROPE, fn is not good)
    text = " ".join(str(found).split())
    assert "base=10000.0), but it rotates heads in place of positions." in text
    assert "Heads are rotated in place of positions" in text


def on_library(xp, dtype, x, positions):
    return xp.array(good(xp.numpy(x), xp.numpy(positions)), dtype)


def test_libraries(xp):
    """In each dtype, with its tolerance; NumPy inside."""
    for dtype in xp.floats:
        like = xp.array(np.zeros(1), dtype)
        found = identify(partial(on_library, xp, dtype), WIDTH, like=like)
        assert (found.rope, found.dtype, found.precision) == (ROPE, dtype, "exact"), found


def test_long_context_rules_of_length():
    """A function that changes its frequencies at 4,096 tokens is tested below that, where short factors hold."""
    short, long = [1.0] * 8, [2.0 + j for j in range(8)]
    rule = {"short_factor": short, "long_factor": long, "original_max_position_embeddings": 4096, "factor": 4.0}
    factor = LongRopeScaling(**rule).resolved_attention_factor

    def fn(x, positions):
        divisors = np.asarray(long if positions.max() >= 4096 else short)
        return turned(x, angles_of(positions, FREQUENCIES / divisors), factor=factor)

    found = identify(fn, WIDTH)
    assert found.longest == 4095 and found.rope.base == 10_000.0
    assert found.magnitude == pytest.approx(factor, rel=1e-15)


@pytest.mark.parametrize("rows, longest", [(4002, 2047), (5000, 4095), (100_000, 2**16 - 1)])
def test_later_positions_with_the_last_row_of_a_table_are_not_low_precision(rows, longest):
    found = identify(lambda x, p: good(x, np.minimum(p, rows - 1)), WIDTH)
    assert (found.rope, found.precision, found.longest) == (ROPE, "exact", longest)
    assert "a table may end before it" in found.reasons[0]


@pytest.mark.parametrize("change", [lambda x, p: p, lambda x, p: x[..., 12]])
def test_one_position_that_is_wrong_is_named(change):
    """Or a channel that is not rotated elsewhere."""

    def fn(x, positions):
        x, positions = np.array(x), np.array(positions)
        change(x, positions)[positions == 100] += 1
        return turned(x, angles_of(positions, FREQUENCIES[:4]), span=slice(0, 8))

    found = identify(fn, WIDTH)
    assert (found.rope, found.confidence) == (None, 0.0)
    assert found.reasons[-1] == "At position 100, it is not the function that it is at other positions."


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_positions_in_half_precision_are_named(precision):
    found = identify(lambda x, p: good(x, np.minimum(p, 60_000).astype(precision)), WIDTH, seq_len=2**15)
    assert (found.rope, found.precision) == (ROPE, precision)
    assert f"base=10000.0), with {precision} phases." in " ".join(str(found).split())


def test_complex_results_are_not_read_as_real():
    found = identify(lambda x, p: good(x, p) + 1j * x, WIDTH)
    assert found.rope is None and "returns an array of complex128" in found.reasons[0]


def test_the_report():
    found = identify(good, WIDTH)
    text = str(found)
    assert text.startswith("The function is RotaryEmbedding(head_dim=16, layout='half', base=10000.0).")
    assert "8: (0, 8), (1, 9), (2, 10), ..." in text and "exact; tested up to position 1,048,576" in text
    assert found.reasons[-2:] == (
        "The value was checked with another x: all 608 numbers are within tolerance.",
        "All positions below 4,096 were tried, and some up to 1,048,576.",
    )
    assert found.to_dict()["rope"] == repr(ROPE) and "| layout | half |" in found.to_markdown()
    with pytest.raises(AttributeError):
        found.rope = None


def test_bad_arguments():
    like = np.zeros(1, dtype=np.int32)
    values = [
        (lambda: identify(good, 15), "identify: head_dim must be even.*; got 15"),
        (lambda: identify(good, WIDTH, seq_len=7), "identify: seq_len must be at least 8 .*; got 7"),
        (lambda: identify(good, WIDTH, seq_len=2**31 + 1), "identify: seq_len must be .* at most 2.*; got 2147483649"),
        (lambda: identify(good, WIDTH, shape="batch dim"), "identify: shape must name the axes .*; got 'batch dim'"),
        (lambda: identify(good, WIDTH, shape="dim seq"), "identify: shape must name the axes .*; got 'dim seq'"),
        (lambda: identify(good, WIDTH, shape="seq seq dim"), "each once.*; got 'seq seq dim'"),
        (lambda: identify(good, WIDTH, shape=3), "identify: shape must name the axes .*; got 3"),
    ]
    types = [
        (lambda: identify(ROPE.inv_freq, WIDTH), "identify: fn must be a function .*; got \\(1.0"),
        (lambda: identify(dict, WIDTH), "fn must be a function .*, not a class; got <class 'dict'>"),
        (lambda: identify(good, "16"), "identify: head_dim must be an int; got str"),
        (lambda: identify(good, WIDTH, like=like), "identify: like must be float16 or .*; got int32"),
        (lambda: identify(good, WIDTH, like="torch"), "identify: like must be an array; got str"),
        (lambda: identify(good, WIDTH, seq_len=8.5), "identify: seq_len must be an int; got float"),
    ]
    assert_all_raise(raising(values, types))


# Where a function multiplies by a little more than 1, by its calls so far, and what a report says if that is too much.
FACTORS = [
    (lambda x, p, longest: len(longest) % 2, "seq dim", "Two equal calls give different results"),
    (lambda x, p, longest: max(longest) > 3000, "seq dim", "It keeps state: a short call gives another result"),
    (lambda x, p, longest: p.max() > 4000, "seq dim", "depend on the largest position of a call"),
    (lambda x, p, longest: np.abs(x).max() > 100, "seq dim", "256 times x does not give 256 times the result"),
    (lambda x, p, longest: np.count_nonzero(x, -1, keepdims=True) > 8, "seq dim", "not the sum of the results of its"),
    (lambda x, p, longest: len(x) == 7, "seq dim", "a call with positions in any order gives another result"),
    (lambda x, p, longest: (len(x) == 257) * np.arange(len(x))[:, None] > 3, "seq dim", "a long call gives another"),
    (lambda x, p, longest: len(x) == 1, "seq dim", "a call with one token alone gives another result"),
    (lambda x, p, longest: (np.arange(x.shape[2]) == 1)[:, None], "batch seq heads dim", "differ along heads and seq"),
    (lambda x, p, longest: np.indices(x.shape)[0] == 1, "batch seq heads dim", "differ along batch and seq"),
]


def times_a_little_more(x, positions, where, longest, more, dtype):
    longest.append(positions.max())
    angles = angles_of(positions)
    y = turned(x, angles if x.ndim == 2 else angles[..., None, :])
    return (y * (1 + more * where(x, positions, longest))).astype(dtype)


@for_each("where, shape, words", FACTORS)
def test_results_that_differ_by_more_than_roundings(where, shape, words):
    """By 72 units of roundoff; of float16, of which all tables are made, by 8."""
    for dtype, most, near in (
        ("float64", 72 / 2**53, 0.05),
        ("float32", 72 / 2**24, 0.05),
        ("float16", 8 / 2**11, 0.2),
    ):
        for factor, is_said in ((1 - near, False), (1 + near, True)):
            options = {"where": where, "longest": [], "more": most * factor, "dtype": dtype}
            found = identify(partial(times_a_little_more, **options), WIDTH, shape=shape, like=np.zeros(1))
            assert (words.lower() in " ".join(found.reasons).lower()) == is_said, (dtype, factor)
            assert (found.shape is None) == (is_said and words.startswith("Two equal calls"))


def part(x, positions, factor):
    """The first half rotated, and one of the other channels multiplied."""
    return turned(x, angles_of(positions, FREQUENCIES[:4]), span=slice(0, 8)) * np.where(
        np.arange(WIDTH) == 12, factor, 1
    )


# What a report says on both sides of a bound: of a function with a number, the two numbers, a field and its values.
BOUNDS = [
    (lambda x, p, n: good(x, p) + n * 2.0**-40 * np.roll(x, 1, -1), (0.98, 1.02), "is_rotation", (True, False)),
    (lambda x, p, n: part(x, p, 1 - n * 2.0**-53), (72, 73), "kept", ((*range(8, 16),), (*range(8, 12), 13, 14, 15))),
    (lambda x, p, n: turned(x, angles_of(p) + n * (p >= 2048)[:, None]), (0.0498, 0.0502), "longest", (2**20, 2047)),
    (lambda x, p, n: turned(x, angles_of(p + n)), (1000.0009, 1000.0011), "offset", (1000, 1000.001)),
    # The only pair is turned up to 200 times.
    (lambda x, p, n: turned(x, angles_of(p + n, [1.0]), span=slice(0, 2)), (1256, 1260), "offset", (1256, -2.920247)),
    (lambda x, p, n: good(x, p), (8, 2**31), "longest", (7, 2**31 - 1)),
    (lambda x, p, n: good(x, p + n * (p == 100)), (1e-14, 1e-9), "rope", (ROPE, None)),
]
for name, coarser, bits in (("exact", "float16 tables", 24), ("float16 tables", "bfloat16 tables", 11)):
    # One row of a matrix is longer, by twice as much as it differs from a rotation; or the results at a position.
    BOUNDS += [
        (lambda x, p, n: good(x, p) * (1 + n * (np.arange(WIDTH) == 3)), (7.9 / 2**bits, 8.1 / 2**bits)),
        (lambda x, p, n: good(x, p) * (1 + n * (p == 64)[:, None]), (3.98 / 2**bits, 4.02 / 2**bits)),
    ]
    BOUNDS[-2:] = [(*each, "precision", (name, coarser)) for each in BOUNDS[-2:]]


def test_bounds():
    for fn, numbers, field, expected in BOUNDS:
        for number, value in zip(numbers, expected):
            options = {"seq_len": number} if number in (8, 2**31) else {}
            found = identify(partial(fn, n=number), WIDTH, shape="seq dim", **options)
            assert getattr(found, field) == value, (number, str(found))


def test_slow_pairs_that_hardly_turn_are_no_pairs_of_frequency_0():
    """A table of 64 positions in bfloat16: the slow pairs stay within a unit of roundoff."""
    cos, sin = (bfloat16(each) for each in tables(np.arange(64)))
    found = identify(lambda x, p: bfloat16(applied(x, cos[p], sin[p])), WIDTH)
    assert found.rope == ROPE and found.longest == 63 and 0.0 < found.confidence < 1.0
