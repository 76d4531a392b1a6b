"""`identify` against functions that share no code with the package: by complex numbers, and by formulas of mpmath."""

import itertools
import json
import re
from functools import partial, wraps
from math import pi

import ml_dtypes
import numpy as np
import pytest
from cases import for_each
from errors import assert_all_raise, raising
from formulas import geometric
from functions import angles_of, in_shape, rotary, rounded, turned

from rope_xp import LinearScaling, LongRopeScaling, RotaryEmbedding, compare, identify
from rope_xp.identification.probe import Trial

WIDTH = 16
FREQUENCIES = geometric(1e4, WIDTH)
BFLOAT16 = rounded(ml_dtypes.bfloat16)
LAYOUTS = ["half", "interleaved", "interleaved_to_half"]
ROPE = RotaryEmbedding(head_dim=WIDTH, layout="half", base=10_000.0)


good, phases = rotary(FREQUENCIES), partial(angles_of, frequencies=FREQUENCIES)


def tables(positions):
    """Cosines and sines of both halves."""
    angles = np.concatenate([phases(positions)] * 2, axis=-1)
    return np.cos(angles), np.sin(angles)


def applied(x, cos, sin, negative=1):
    half = np.split(x, 2, axis=-1)
    return x * cos + np.concatenate([-half[1], negative * half[0]], axis=-1) * sin


@pytest.mark.parametrize("layout", LAYOUTS)
def test_channels_without_the_attention_factor_belong_to_no_pair(layout):
    """Over all channels, the base would be 10,000,000, with pairs that are not rotated."""
    base = 1e7**0.5
    rope = identify(rotary(geometric(base, 8), layout, factor=1.2), WIDTH).rope
    assert (rope.rotary_dim, rope.scaling, rope.attention_factor) == (8, None, 1.2)
    assert (rope.layout, rope.base) == (layout, pytest.approx(base, rel=1e-13))


@pytest.mark.parametrize(
    "dtype, offsets", [("float64", (0.25, -0.5, -7, 0.123456, 123456.5, 10**6)), ("float32", (-0.5, -7, 10**4))]
)
def test_the_offset_follows_from_all_pairs(dtype, offsets):
    """In float32 the slowest pair alone, of 2e-6 radians, gives it to a tenth."""
    assert identify(rotary(geometric(500_000.0, 128), dtype="float32", offset=0.25), 128).offset == 0.25
    for offset in offsets:
        found = identify(rotary(FREQUENCIES, dtype=dtype, offset=offset), WIDTH)
        assert found.offset == offset and type(found.offset) is type(offset)
        words = f"{'+-'[offset < 0]} {abs(offset)}"
        assert f"the angle at position p is that of p {words}." in " ".join(found.reasons)
        assert found.rope is None or f"with positions {words}" in found.rope_in_words


@for_each("bits, base", [(8, 10_000.0), (24, 10_000.0), (25, None), (53, 10_000.0)])
def test_frequencies_are_rounded_to_the_bits_of_a_dtype_or_not_at_all(bits, base):
    numbers, exponents = np.frexp(FREQUENCIES)
    rounded = np.ldexp(np.round(np.ldexp(numbers, bits)), exponents - bits)
    assert identify(rotary(rounded), WIDTH).rope.base == base


@for_each("width, base", itertools.product((4, 6), (10_000.0, 12_345.0)))
def test_two_pairs_are_enough_for_a_base(width, base):
    found = identify(rotary(geometric(base, width)), width)
    assert found.rope == RotaryEmbedding(head_dim=width, layout="half", base=base)
    assert f"{width // 2}: {', '.join(map(str, found.pairs))}\n" in str(found)


def hyperbolic(x, positions):
    angles = 1e-6 * np.concatenate([phases(positions)] * 2, axis=-1)
    return applied(x, np.cosh(angles), np.sinh(angles))


def with_growing_channels(x, positions):
    """The last four channels are in no pair, and grow with the position."""
    return rotary(FREQUENCIES[:6])(x, positions) * np.where(np.arange(WIDTH) < 12, 1.0, 1.01 ** positions[..., None])


def right_for_two_axes(x, positions):
    """With a batch axis, rows of the batch are mixed: only one row comes out right."""
    return good(x, positions) if x.ndim == 2 else good(x, positions) + x.sum(axis=0) - x


def twice_as_long(x, positions):
    """Channels that are not rotated, which is said of the first four."""
    return rotary(FREQUENCIES[:3])(x, positions) * np.repeat([1, 2], [6, 10])


def v_jepa_2(x, positions):
    """Tables that repeat all frequencies, and pairs of neighbours."""
    cos, sin = tables(positions)
    return x * cos + np.stack([-x[..., 1::2], x[..., ::2]], axis=-1).reshape(x.shape) * sin


def limited(positions, length=1000):
    """A table of this length, as a list has it."""
    assert positions.max() < length, f"position {positions.max()} is beyond {length}"
    return positions


def reordered(x, positions):
    order = np.random.default_rng(0).permutation(WIDTH)
    return good(x[..., order], positions)[..., np.argsort(order)]


def too_far_apart(x, positions):
    """Two pairs of neighbours, written as the first two of three pairs, for which five channels are too few."""
    cos, sin = (f(angles_of(positions, FREQUENCIES[:2])) for f in (np.cos, np.sin))
    one, other = x[..., [11, 13]], x[..., [12, 14]]
    result = x.copy()
    result[..., [11, 12]], result[..., [14, 15]] = one * cos - other * sin, other * cos + one * sin
    result[..., 13] = x[..., 15]
    return result


def of_every_position(x, positions):
    return good(x, positions) + 1e-3 * np.roll(x, 1, axis=-2)


RANDOM = np.random.default_rng(0)
# Functions without a value, by whether they rotate, and what is said of each.
NO_VALUES = {
    # A rotation, but not by position * frequency.
    True: [
        (lambda x, p: good(x, p**2), "not proportional to positions"),
        (lambda x, p: turned(x, phases(p) - 0.75), "turned by a constant angle of -0.75"),
        (lambda x, p: turned(x, phases(p) + np.arange(8)), "that no single offset .* explains"),
        (lambda x, p: turned(x, pi / 2 + phases(p)), "sign differs: each angle is a quarter turn more"),
        (lambda x, p: turned(x, phases(p) - pi / 2), "sign differs: each angle is a quarter turn less"),
        (lambda x, p: turned(x, -pi / 2 - phases(p)), "a sign differs: each angle is a quarter turn less"),
        (
            lambda x, p: turned(x, pi / 2 - phases(p + 7)),
            "are swapped, .*; positions are shifted: .* of p [+] 7",
        ),
        (reordered, "No layout has .* those of base 10000"),
        (too_far_apart, "No layout has these pairs"),
        (twice_as_long, "Channels 6, 7, 8, 9 and 6 more are multiplied or moved"),
        (
            lambda x, p: good(x, p + (p == 100)),
            "At position 100, the result is not what the angles at other positions say.",
        ),
    ],
    # No rotation, or not linear.
    False: [
        (hyperbolic, r"length of a pair such as \(0, 8\) changes with the position, as XPos does"),
        (v_jepa_2, r"Not a rotation: .* such as \(0, 1\) .* different angles"),
        (lambda x, p: applied(x, *tables(p), negative=-1), "get the same sign of sin"),
        (lambda x, p: applied(x * np.repeat([1, -1], 8), *tables(p)), "are reflected"),
        (lambda x, p: good(x, p) * 1.001 ** p[..., None], "length of a pair .* changes"),
        (lambda x, p: x * np.cos(p)[..., None], "are multiplied or moved, but not rotated"),
        (with_growing_channels, "channels 12, 13, 14, 15 are multiplied or moved"),
        (
            lambda x, p: applied(x, *(np.array([[[1.005]], [[1]]]) * tables(p))),
            "cos is multiplied by 1.005, and sin by 1;",
        ),
        (
            lambda x, p: good(x, p) * (1 + 0.01 * (np.arange(WIDTH) == 3)),
            r"pairs of channels such as \(3, 11\) do not keep",
        ),
        (lambda x, p: good(x, p) * (1 - 2 * (np.arange(WIDTH) == 5)), r"pairs such as \(5, 13\) are reflected"),
        (lambda x, p: good(x, p) @ np.ones((WIDTH, WIDTH)), "so channels do not form pairs"),
        (lambda x, p: good(x, p) * (np.arange(WIDTH) < 8), "8, 9, 10, 11 and 4 more are always 0"),
        (lambda x, p: good(x, p) * (np.arange(WIDTH) < 12), "channels 12, 13, 14, 15 are always 0"),
        (lambda x, p: good(x * (np.arange(WIDTH) != 5), p), "channels 5, 13 follow from channels 13,"),
        (lambda x, p: good(x[..., [*range(15), 3]], p), "channels 15 of x do not appear in the"),
        (lambda x, p: good(x * (np.arange(WIDTH) % 8 != 1), p), "channels 1, 9 are always 0"),
        (lambda x, p: good(x, p) ** 2, "not linear"),
        (lambda x, p: good(x, p) + 1, "not linear"),
        (of_every_position, "not the sum of the results of its channels"),
    ],
    # Cannot be called.
    None: [
        (lambda x, p: good(x, p) + RANDOM.random(), "Two equal calls give different results"),
        (lambda x, p: x[..., :4], r"changes the shape of x from \(7, 16\) to \(7, 4\)"),
        (lambda x, p: np.tile(x, 2), r"changes the shape of x from \(7, 16\) to \(7, 32\)"),
        (lambda x, p: (x, x), "returns a tuple of 2; wrap it"),
        (lambda x, p: None, "returns NoneType"),
        (lambda x, p: x * np.nan, "returns NaN or infinity"),
        (lambda x, p: x.no_such_name, "raises AttributeError: .*no_such_name"),
        (lambda x, p: exit(3), "raises SystemExit"),
        (lambda x, cos, sin: x, r"takes \(x, cos, sin\); wrap it in a function that takes \(x, positions\)"),
        (lambda *of: len(*of), "raises TypeError: len"),
        (next, "raises TypeError: .*iterator"),
        # Near positions are one group, so that only far ones show that each token gets the result of the one before.
        (lambda x, p: good(x, np.roll(p // 8, 1, -1)), "follow neither their position nor their"),
    ],
}
IN_FLOAT32 = rotary(FREQUENCIES, dtype="float32")
# Those of ROPE up to a position.
UP_TO = [
    (lambda x, p: IN_FLOAT32(x, p) if x.dtype == np.float32 else None, "numpy, results in float32", 2**20),
    (right_for_two_axes, r"called with x of \(seq dim\)", 2**20),
    (lambda x, p: good(x, p) if x.ndim == 2 or (x > 0.0).all() else None, "tested up to position 1,048,576", 2**20),
    (lambda x, p: good(x, limited(p)), "raises AssertionError: position 1023 is bey", 511),
    *((lambda x, p, n=n: good(x, limited(p, n)), f"is beyond {n}", n - 1) for n in (2**16, 2**17, 2**20)),
    (lambda x, p: good(x, np.minimum(p, 511)), "at 512 the angles do not follow", 511),
]


def counted(x, *, key=None):
    return good(x, np.arange(x.shape[-2]))


def of_any(x):
    @wraps(x)
    def call(*arguments, **options):
        return x(*arguments, **options)

    return call


@wraps(counted)
def narrowed(x, positions):
    return good(x, positions)


class Module:  # as those of PyTorch
    def forward(self, x):
        return counted(x)

    def __call__(self, *arguments, **options):
        return self.forward(*arguments, **options)


OF_X_ALONE = [counted, of_any(counted), partial(counted, key=1), Module()]
WRAPPERS = [narrowed, of_any(good)]
FUNCTIONS = [
    *((fn, words, {"rope": None, "is_rotation": key}) for key, rows in NO_VALUES.items() for fn, words in rows),
    *((fn, words, {"rope": ROPE, "longest": longest}) for fn, words, longest in UP_TO),
    *((fn, "but it ignores positions", {"rope": ROPE, "positions_ignored": True}) for fn in OF_X_ALONE),
    *((fn, "All positions below 4,096 were tried", {"rope": ROPE, "positions_ignored": False}) for fn in WRAPPERS),
]


def test_results_that_hold_for_single_rows_alone_are_the_last_choice():
    regular = Trial(None, "float64", "seq", "positions")
    assert regular.rank < Trial(None, "float64", "seq", "positions", "if there is one row").rank


@for_each("fn, words, expected", FUNCTIONS)
def test_functions_that_are_not_what_they_should_be(fn, words, expected):
    """A report that says so in words, whatever the function does."""
    found = identify(fn, WIDTH)
    assert {name: getattr(found, name) for name in expected} == expected
    text = " ".join(str(found).split())
    assert re.search(words, text, re.IGNORECASE), found
    relative = {None: "", True: "relative scores yes (tested at small positions)", False: "relative scores no"}[
        found.relative
    ]
    assert relative in text and ("relative scores" in text) == bool(relative)
    assert found.rope is not None or found.confidence < 0.1
    assert max(map(len, str(found).splitlines())) <= 80 and json.loads(json.dumps(found.to_dict()))["reasons"]


@for_each("pairs", [1, 2])
def test_a_quarter_turn_of_one_pair_is_an_offset(pairs):
    found = identify(lambda x, p: turned(x, pi / 2 - angles_of(p, FREQUENCIES[:pairs])), 2 * pairs)
    assert ("sin and cos are swapped" in str(found)) == (pairs == 2)


def test_an_interrupt_is_not_caught():
    def fn(x, positions):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        identify(fn, WIDTH)


def test_long_context_rules_of_length():
    """A function that changes its frequencies at 4,096 tokens is tested below that, where short factors hold."""
    short, long = [1.0] * 8, [2.0 + j for j in range(8)]
    rule = {"short_factor": short, "long_factor": long, "original_max_position_embeddings": 4096, "factor": 4.0}
    factor = LongRopeScaling(**rule).resolved_attention_factor

    def fn(x, positions):
        divisors = np.asarray(long if positions.max() >= 4096 else short)
        return rotary(FREQUENCIES / divisors, factor=factor)(x, positions)

    found = identify(fn, WIDTH)
    assert found.longest == 4095 and found.rope.base == 10_000.0
    assert found.magnitude == pytest.approx(factor, rel=1e-15)


@pytest.mark.parametrize("factor", [10.0, 180 / pi, 1000.0])
def test_float64_rounds_products_of_frequencies_above_a_turn(factor):
    """Angles at whole positions show a frequency only up to whole turns, and the error is that of the larger one."""
    assert identify(rotary(factor * np.asarray(FREQUENCIES)), WIDTH).precision == "exact"


@pytest.mark.parametrize("rows, longest", [(4002, 2047), (5000, 4095), (100_000, 2**16 - 1)])
def test_later_positions_with_the_last_row_of_a_table_are_not_low_precision(rows, longest):
    found = identify(lambda x, p: good(x, np.minimum(p, rows - 1)), WIDTH)
    assert (found.rope, found.precision, found.longest) == (ROPE, "exact", longest)
    assert "a table may end before it" in found.reasons[0]


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
    (
        lambda x, p, longest: x.shape[1] == 1 and x.shape[2] > 2,
        "batch seq heads dim",
        "head 14 gets another result than head 0",
    ),
    (lambda x, p, longest: (np.arange(x.shape[2]) == 1)[:, None], "batch seq heads dim", "differ along heads and seq"),
    (lambda x, p, longest: np.indices(x.shape)[0] == 1, "batch seq heads dim", "differ along batch and seq"),
]


def times_a_little_more(x, positions, where, longest, more, dtype):
    longest.append(positions.max())
    angles = phases(positions)
    y = turned(x, angles if x.ndim == 2 else angles[..., None, :])
    return (y * (1 + more * where(x, positions, longest))).astype(dtype)


@for_each("where, shape, words", FACTORS)
def test_results_that_differ_by_more_than_roundings(where, shape, words):
    """By 72 units of roundoff; of float16, of which all tables are made, by 8. Two calls differ by those of float32."""
    bits = 24 if words.startswith(("a ", "head ")) else 53
    for dtype, most, near in (
        ("float64", 72 / 2**bits, 0.05),
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
    return rotary(FREQUENCIES[:4])(x, positions) * np.where(np.arange(WIDTH) == 12, factor, 1)


# What a report says on both sides of a bound: of a function with a number, the two numbers, a field and its values.
BOUNDS = [
    (lambda x, p, n: good(x, p) + n * 2.0**-40 * np.roll(x, 1, -1), (0.98, 1.02), "is_rotation", (True, False)),
    (lambda x, p, n: part(x, p, 1 - n * 2.0**-53), (72, 73), "kept", ((*range(8, 16),), (*range(8, 12), 13, 14, 15))),
    (lambda x, p, n: turned(x, phases(p) + n * (p >= 2048)[:, None]), (0.0498, 0.0502), "longest", (2**20, 2047)),
    (lambda x, p, n: good(x, p + n), (1000.0009, 1000.0011), "offset", (1000, 1000.001)),
    # The only pair is turned up to 200 times.
    (lambda x, p, n: rotary([1.0])(x, p + n), (1256, 1260), "offset", (1256, -2.920247)),
    (lambda x, p, n: good(x, p), (8, 2**31), "longest", (7, 2**31 - 1)),
    (lambda x, p, n: good(x, p + n * (p == 100)), (1e-14, 1e-9), "rope", (ROPE, None)),
    (lambda x, p, n: turned(x, phases(p) + n / 2**24).astype("float32"), (7.5, 8.5), "offset", (0, 5e-07)),
]
for name, coarser, of_row, bits in (
    ("exact", "float16 tables", "float16 tables", 24),
    ("float16 tables", "bfloat16 tables", None, 11),  # an error of one row alone is no rounding
):
    # One row of a matrix is longer, by twice as much as it differs from a rotation; or the results at a position.
    BOUNDS += [
        (lambda x, p, n: good(x, p) * (1 + n * (np.arange(WIDTH) == 3)), (7.9 / 2**bits, 8.1 / 2**bits)),
        (lambda x, p, n: good(x, p) * (1 + n * (p == 64)[:, None]), (3.98 / 2**bits, 4.02 / 2**bits)),
    ]
    BOUNDS[-2:] = [(*each, "precision", (name, last)) for each, last in zip(BOUNDS[-2:], (of_row, coarser))]


def test_bounds():
    for fn, numbers, field, expected in BOUNDS:
        for number, value in zip(numbers, expected):
            options = {"seq_len": number} if number in (8, 2**31) else {}
            found = identify(partial(fn, n=number), WIDTH, shape="seq dim", **options)
            assert getattr(found, field) == value, (number, str(found))


@for_each("dtype, result", [("float16", "f8"), (ml_dtypes.bfloat16, "f8"), (ml_dtypes.bfloat16, "f4")])
def test_rounded_tables_are_known_through_factors_before_and_after(dtype, result):
    name, rounds = f"{np.dtype(dtype).name} tables", rounded(dtype)
    for before, after, start in itertools.product((1.0, 1.2079), (1.0, 0.0884), (0, 1)):
        fn = rotary(FREQUENCIES, factor=before, offset=start, tables=rounds)
        found = identify(lambda x, p: (after * fn(x, p)).astype(result), WIDTH, shape="seq dim")  # noqa: B023
        assert found.precision == name and found.rope.base == 10_000.0 and found.relative
        words = f"Sines and cosines are rounded to {np.dtype(dtype).name}; so few digits may hide float32 phases."
        assert words in found.reasons


@for_each("error", (1e-6, 1e-5, 1e-4))
def test_small_errors_of_tables_are_no_rounding_and_no_wrong_rotation(error):
    fn = rotary(FREQUENCIES, tables=lambda each: each + error * np.sin(1e3 * each))
    found = identify(fn, WIDTH, shape="seq dim")
    assert found.rope == ROPE and "are no numbers of float16" in found.reasons[0]
    assert compare(fn, ROPE, shape="seq dim").same


@for_each("seq_len", range(8, 300, 4))
def test_float32_phases_are_seen_at_few_positions_or_allowed(seq_len):
    """At those that are measured, their errors may be too small to be seen; at others below `seq_len`, they are not."""

    def in_float32(dtype, x, positions):
        angles = np.float32(positions)[:, None] * np.float32(FREQUENCIES)
        cos, sin = (np.concatenate([each(angles)] * 2, axis=-1) for each in (np.cos, np.sin))
        return applied(x.astype(dtype), cos, sin)

    for dtype in (np.float32, np.float64):
        found = identify(partial(in_float32, dtype), WIDTH, seq_len=seq_len, shape="seq dim")
        assert found.rope.replace(base=ROPE.base) == ROPE and found.precision in ("exact", "float32")
        assert found.rope.base == pytest.approx(ROPE.base, rel=2.0**-24)  # frequencies are rounded


def test_slow_pairs_that_hardly_turn_are_no_pairs_of_frequency_0():
    """A table of 64 positions in bfloat16: the slow pairs stay within a unit of roundoff."""
    cos, sin = (BFLOAT16(each) for each in tables(np.arange(64)))
    found = identify(lambda x, p: BFLOAT16(applied(x, cos[p], sin[p])), WIDTH)
    assert found.rope == ROPE and found.longest == 63 and 0.0 < found.confidence < 1.0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("still", [1, 3])
def test_first_pairs_may_have_frequency_0(layout, still):
    w = np.where(np.arange(8) < still, 0.0, FREQUENCIES)
    found = identify(rotary(w, layout), WIDTH).rope
    assert found.layout == layout
    x = np.random.default_rng(0).standard_normal((5, WIDTH))
    assert np.allclose(found(x, positions=np.arange(5), seq_dim=0), rotary(w, layout)(x, np.arange(5)), atol=1e-6)


@for_each(
    "positions, phases, words",
    [
        (BFLOAT16, np.asarray, "Positions are rounded to bfloat16: "),
        (rounded(np.float16), np.asarray, "Positions are rounded to float16: "),
        (BFLOAT16, BFLOAT16, "Phases have the precision of bfloat16: "),
        # No rounding to 8 bits: the last one of all positions.
        (lambda p: p - (p % 2 > 0) * (p > 256), np.asarray, "Phases have the precision of bfloat16: "),
    ],
)
def test_rounded_positions_are_told_from_rounded_phases(positions, phases, words):
    def fn(x, p):
        return turned(x, phases(positions(p)[:, None] * geometric(10_000.0, 32)))

    assert any(each.startswith(words) for each in identify(fn, 32).reasons)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("offset", [1, -1, 2, 7, 17, -100])
def test_half_precision_is_seen_beside_an_offset(dtype, offset):
    """Powers of two, which half precision holds, are others after the offset. Products are rounded at all positions."""
    w, rounds = geometric(10_000.0, 64), rounded(dtype)
    rope = RotaryEmbedding(head_dim=64, layout="half", base=10_000.0)
    angles = [
        ("Positions are rounded", lambda p: rounds(p + offset) * w),
        ("Positions are rounded", lambda p: (rounds(p) + offset) * w),
    ]
    if abs(offset) <= 2:
        angles.append(("Phases have", lambda p: rounds((p + offset) * w)))
        angles.append(("Phases have", lambda p: rounds(rounds(p + offset) * rounds(w))))
    if offset in (1, 2):
        angles.append(("Phases have", lambda p: rounds(p * w) + offset * w))
    for words, each in angles:
        fn = partial(lambda x, p, of: turned(x, of(p[:, None])), of=each)
        found = identify(fn, 64)
        assert (found.rope, found.offset, found.precision) == (rope, offset, np.dtype(dtype).name)
        assert any(reason.startswith(words) for reason in found.reasons) and found.longest > 30_000
        assert {*compare(fn, rope).causes} == {"offset", "phase precision"}


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("base, factor", [(1e4, 1.0), (5e5, 4.0), (1e6, 8.0)])
def test_frequencies_of_16_bits(dtype, base, factor):
    """The smallest ones of float16 have few bits left: 1.55e-7 lies between 1.19e-7 and 1.79e-7."""
    rope = RotaryEmbedding(head_dim=128, layout="half", base=base, scaling=LinearScaling(factor=factor))
    fn = rotary(rounded(dtype)(rope.inv_freq))
    found = identify(fn, 128)
    assert (found.rope.base, found.precision) == (base, np.dtype(dtype).name)
    assert found.rope.scaling == (None if factor == 1.0 else rope.scaling)
    assert compare(fn, rope).causes == ("phase precision",)


def test_a_frequency_that_float16_does_not_hold():
    fast = ROPE.replace(base=None, inv_freq=(65_530.0, *FREQUENCIES[1:].tolist()))
    assert compare(fast, ROPE).causes == ("frequencies",)


@pytest.mark.parametrize("dim, base, factor", [(16, 1e4, 4.0), (32, 5e5, 8.0), (64, 1e4, 4.0), (64, 1e6, 1.5)])
def test_frequencies_of_bfloat16_are_seen_through_results_of_bfloat16(dim, base, factor):
    """As of a module that is cast to bfloat16: its frequencies are rounded, and positions are not."""
    w = (geometric(base, dim) / factor).astype(ml_dtypes.bfloat16).astype(np.float32)

    def fn(x, positions):
        angle = positions[:, None].astype(np.float32) * w
        cos, sin = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
        one, other = np.split(x, 2, axis=-1)
        return np.concatenate((one * cos - other * sin, other * cos + one * sin), axis=-1)

    like = np.zeros(1, ml_dtypes.bfloat16)
    assert identify(fn, dim, shape="seq dim", like=like).precision == "bfloat16"
    rope = RotaryEmbedding(head_dim=dim, layout="half", base=base, scaling=LinearScaling(factor=factor))
    report = compare(fn, rope, context=8192, shape="seq dim", like=like)
    assert report.causes == ("phase precision",) and "bfloat16" in report.advice[0]


def test_frequencies_that_follow_from_the_number_of_tokens():
    """That calls differ is said of calls, and with the value of the others."""
    base = "does not follow from the channels and the position alone"
    offset = "Other calls gave RotaryEmbedding(head_dim=16, layout='half', base=10000.0), with positions + 1."
    for words, function in (
        (base, lambda x, p: turned(x, p[:, None] * geometric(1e4 if len(x) <= 40 else 2e4, 16))),
        (offset, lambda x, p: turned(x, (p[:, None] + (len(p) > 1)) * FREQUENCIES)),
    ):
        found = identify(function, WIDTH, shape="seq dim")
        assert found.is_rotation and found.rope is None and words in " ".join(found.reasons)


def test_errors_name_the_shapes_that_they_concern():
    def fn(x, positions):
        if x.ndim == 2:
            raise ValueError("no batch")
        raise TypeError("many axes")

    reasons = identify(fn, 8).reasons
    assert reasons[0] == "With x of (seq dim), it raises ValueError: no batch."
    assert re.match(r"With x of \(seq heads dim\) or .*, it raises TypeError: many axes\.", reasons[1])


def test_the_batch_row_that_differs_is_named():
    whole = in_shape(good, "batch heads seq dim")

    def fn(x, positions):
        if positions.ndim == 2 and x.shape[1] > 1:  # with several heads, row 2 has the positions of row 0
            positions = positions[[0, 1, 0, *range(3, len(positions))][: len(positions)]]
        return whole(x, positions)

    reasons = " ".join(identify(fn, WIDTH, shape="batch heads seq dim").reasons)
    assert "it depends on the batch row: batch row 2 gets another result than batch row 0." in reasons


def test_frequencies_behind_results_of_float16_follow_from_many_positions():
    """The last of 512 positions alone would give them to 2e-4."""
    fn = rotary(FREQUENCIES, dtype="float16")

    def of_a_table(x, positions):
        if positions.max() >= 512:
            raise IndexError
        return fn(x, positions)

    np.testing.assert_allclose(identify(of_a_table, WIDTH).inv_freq, FREQUENCIES, rtol=2e-5)


@for_each("dtype, offset", [("float16", 100_000), (ml_dtypes.bfloat16, 5000)])
def test_far_offsets_are_seen_in_short_calls(dtype, offset):
    rope = RotaryEmbedding(head_dim=64, layout="half", base=10_000.0)
    assert compare(rotary(geometric(10_000.0, 64), dtype=dtype, offset=offset), rope, context=1000).causes == (
        "offset",
    )
