"""identify gives back what a function was made of: random values, spans, offsets, dtypes and shapes, by the oracle."""

import itertools
from math import pi
from types import SimpleNamespace

import numpy as np
import oracle
import pytest
from cases import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from rope_xp import LinearScaling, RotaryEmbedding, Sections, identify
from rope_xp.identification.behaviour import Behaviour, Pair, aligned
from rope_xp.identification.pairs import Fitted, rotations_of, start_of, why_no_rotation
from rope_xp.identification.precision import wrapped
from rope_xp.identification.probe import Probe
from rope_xp.identification.search import identification_of

WIDTH = 16
LAYOUTS = ["half", "interleaved", "interleaved_to_half"]
SHAPES = ["seq dim", "seq heads dim", "heads seq dim", "batch heads seq dim", "batch seq heads dim"]
bases = st.integers(11, 999).flatmap(lambda digits: st.integers(1, 4).map(lambda power: float(digits * 10**power)))
factors = st.integers(3, 64).map(lambda n: n / 2)


def frequencies(base, width):
    return np.asarray([float(w) for w in oracle.geometric(base, width)])


def function(w, layout, span, *, offset=0, factor=1.0, reverse=False, dtype="float64", shape="seq dim"):
    """The oracle on some channels, in the words of `identify`."""
    axes = shape.split()
    seq = axes.index("seq")

    def fn(x, positions):
        angles = (np.asarray(positions, np.float64)[..., None] + offset) * w
        if angles.ndim == 3 and "batch" not in axes:
            raise ValueError("no batch")
        # The table's axes: batch first, if positions have it, then those between the tokens and the channels.
        angles = angles.reshape(*angles.shape[:-2], *[1] * (seq - (angles.ndim - 2)), *angles.shape[-2:])
        for _ in axes[seq + 1 : -1]:
            angles = angles[..., None, :]
        if x.ndim != len(axes):
            raise ValueError(f"x must be {shape}")
        result = np.array(x, np.float64)
        part = factor * oracle.rotate(result[..., span], angles, layout.partition("_")[0], inverse=reverse)
        if layout == "interleaved_to_half":
            part = np.concatenate([part[..., ::2], part[..., 1::2]], axis=-1)
        result[..., span] = part
        return result.astype(dtype)

    return fn


@settings(max_examples=20)
@given(
    bases,
    st.sampled_from(LAYOUTS),
    st.sampled_from([(0, 16), (0, 8), (0, 12), (4, 12), (8, 8), (10, 6)]),
    st.sampled_from(["none", "linear", "ntk"]),
    factors,
    st.sampled_from([1.0, 1.25, 0.7071]),
    st.booleans(),
    st.integers(-3, 900),
    st.sampled_from(SHAPES),
    st.sampled_from(["float64", "float32"]),
)
def test_what_is_made_is_identified(base, layout, ends, rule, factor, magnitude, reverse, offset, shape, dtype):
    first, rotary_dim = ends
    scaling, w = None, frequencies(base, rotary_dim)
    if rule == "linear":
        scaling, w, magnitude = LinearScaling(factor=factor), w / factor, 1.0
    elif rule == "ntk":
        # The same frequencies as those of a larger base, which is what is found.
        base *= factor
        w = frequencies(base, rotary_dim)
    options = {"offset": offset, "factor": magnitude, "reverse": reverse, "dtype": dtype, "shape": shape}
    span = slice(first, first + rotary_dim)
    found = identify(function(w, layout, span, **options), WIDTH, shape=shape)
    given_channels = {"rotary_dim": rotary_dim, "first_channel": first}
    expected = RotaryEmbedding(
        head_dim=WIDTH,
        layout=layout,
        base=base,
        scaling=scaling,
        reverse=reverse,
        attention_factor=magnitude,
        **given_channels,
    )
    assert found.rope == expected
    assert (found.offset, found.direction, found.shape) == (offset, -1 if reverse else 1, shape)
    assert found.magnitude == pytest.approx(magnitude, rel=1e-6)
    assert (found.is_rotation, found.relative, found.stateful, found.axis) == (True, True, False, "seq")
    assert (found.precision, found.longest, found.confidence) == ("exact", 2**20, 1.0)
    assert (found.library, found.dtype) == ("numpy", dtype)
    assert found.kept == tuple(channel for channel in range(WIDTH) if not first <= channel < first + rotary_dim)
    count = rotary_dim // 2
    if layout == "half":
        pairs = tuple((first + j, first + j + count) for j in range(count))
    else:
        pairs = tuple((first + 2 * j, first + 2 * j + 1) for j in range(count))
    assert found.pairs == pairs
    assert found.inv_freq == pytest.approx(-w if reverse else w, rel=1e-9)
    text = " ".join(str(found).split())
    assert f"called with x of ({shape}), numpy, results in {dtype}" in text
    assert f"offset {offset} " in text and "earlier calls do not change results relative scores yes" in text
    assert (f", with positions {'+-'[offset < 0]} {abs(offset)}." in text) == (offset != 0)


@settings(max_examples=15)
@given(st.lists(st.floats(1e-4, 3.0), min_size=8, max_size=8), st.permutations(range(WIDTH)), st.booleans())
def test_any_frequencies_and_any_pairs_are_given_as_numbers(values, order, is_permuted):
    """Channels in any order are no layout; frequencies of no rule are numbers."""
    w = np.asarray(values)
    channels = np.asarray(order if is_permuted else range(WIDTH))
    turn = function(w, "half", slice(None))

    def fn(x, positions):
        result = np.empty_like(x, dtype=np.float64)
        result[..., channels] = turn(np.asarray(x)[..., channels], positions)
        return result

    found = identify(fn, WIDTH, shape="seq dim")
    assert found.is_rotation and found.relative and found.precision == "exact" and found.offset == 0
    pairs = {frozenset(pair): value for pair, value in zip(found.pairs, found.inv_freq)}
    assert len(pairs) == 8
    for j in range(8):
        assert abs(pairs[frozenset((int(channels[j]), int(channels[j + 8])))]) == pytest.approx(values[j], rel=1e-9)
    if not is_permuted:
        assert found.rope.layout == "half"
        assert found.rope.inv_freq == pytest.approx(values, rel=1e-9)


@settings(max_examples=8)
@given(st.integers(0, 10**6), st.sampled_from(["stretch", "shear", "mixed", "constant"]))
def test_what_is_no_rotation_is_not_called_one(seed, kind):
    """A map that stretches one channel, one that shears, a dense one, and one that no position changes."""
    rng = np.random.default_rng(seed)
    turn, matrix = function(frequencies(10_000.0, WIDTH), "half", slice(None)), np.eye(WIDTH)
    one, other = rng.choice(WIDTH, 2, replace=False)
    if kind == "stretch":
        matrix[one, one] = 1.5
    elif kind == "shear":
        matrix[one, other] = 0.5
    elif kind == "mixed":
        matrix = rng.standard_normal((WIDTH, WIDTH))
    found = identify(lambda x, p: x @ matrix if kind == "constant" else turn(x, p) @ matrix, WIDTH, shape="seq dim")
    assert found.rope is None and found.confidence == 0.0 and found.reasons
    assert not found.is_rotation
    assert "The function is not a rotation." in str(found) or "cannot be identified" in str(found)


@settings(max_examples=20)
@given(
    st.sampled_from([(8, 8), (4, 6, 6), (2, 8, 6)]),
    st.sampled_from(["chunked", "round_robin", "axial", "axial_interleaved"]),
    st.sampled_from(["half", "interleaved"]),
    st.sampled_from([0, 4]),
    st.sampled_from([1.0, 1.25]),
    st.sampled_from([1.0, 4.0]),
    st.sampled_from(["float64", "float32"]),
    st.booleans(),
)
def test_several_axes_are_identified_by_each_alone(sizes, order, layout, first, magnitude, factor, dtype, reverse):
    """As `rope_xp.huggingface` does with modules of several position axes."""
    rope = RotaryEmbedding(
        head_dim=first + sum(sizes) * 2,
        first_channel=first,
        layout=layout,
        base=5000.0,
        sections=Sections(sizes, order=order),
        scaling=None if factor == 1.0 else LinearScaling(factor=factor),
        reverse=reverse,
    )
    rows, span = np.asarray(rope.inv_freq), slice(first, None)

    def fn(x, positions):
        angles = sum(np.asarray(p, np.float64)[:, None] * row for p, row in zip(positions, rows))
        result = np.array(x, np.float64)
        result[..., span] = magnitude * oracle.rotate(result[..., span], angles, layout)
        return result.astype(dtype)

    def identified(fn, axes):
        return identification_of(Probe(fn, rope.head_dim, shape="seq dim", axes=axes))

    found = identified(fn, len(sizes))
    assert found.rope.layout == layout and found.rope.first_channel == first
    assert np.asarray(found.rope.inv_freq) == pytest.approx(rows, rel=1e-9, abs=1e-12)
    assert found.rope.attention_factor == pytest.approx(magnitude) and found.rope.axes == len(sizes)
    if factor == 1.0 or magnitude == 1.0:  # no value has a linear rule and an attention factor
        expected = rope if magnitude == 1.0 else rope.replace(attention_factor=magnitude)
        assert found.rope.replace(sections=rope.sections) == expected
        assert found.rope.sections.axis_of_pair == rope.sections.axis_of_pair
    assert identified(lambda x, p: fn(x, [p] * len(sizes)), 1).rope.axes == 1
    # Together, positions of both axes are rotated by more than the sum of what each axis rotates alone.
    for times in (3, 1e-3):
        more = identified(lambda x, p, n=times: fn(x, [*p[:-1], p[-1] + n * np.minimum(p[0], p[-1])]), len(sizes))
        assert (more.rope, more.confidence) == (None, 0.0)
        assert "The angles of the axes do not add up to those of equal positions." in more.reasons


@for_each("scale", [1.0, 1.001, 1.5, -1.0, 0.0])
def test_channels_that_are_multiplied_are_not_kept(scale):
    turn, factors = function(frequencies(100.0, 8), "half", slice(0, 8)), np.ones(WIDTH)
    factors[12] = scale
    found = identify(lambda x, p: turn(x, p) * factors, WIDTH, shape="seq dim")
    assert (found.rope is not None) == (scale == 1.0)
    assert (12 in found.kept) == (scale == 1.0)


def test_far_rows_that_are_not_the_sum_of_their_channels_are_not_explained():
    turn = function(frequencies(1000.0, WIDTH), "half", slice(None))

    def fn(x, positions):
        return turn(np.where(positions[..., None] > 5000, np.clip(x, -2.0, 2.0), x), positions)

    found = identify(fn, WIDTH, shape="seq dim")
    assert found.rope is None and found.is_rotation and 0.5 < found.confidence < 0.9


@pytest.mark.parametrize("keeps", [True, False])
def test_state_that_a_long_call_leaves(keeps):
    """The longest position so far divides the frequencies of later calls."""
    longest, w = [0.0], frequencies(100.0, WIDTH)

    def fn(x, positions):
        longest[0] = max(longest[0] * keeps, float(positions.max()))
        return oracle.rotate(np.asarray(x, np.float64), positions[:, None] * w / max(longest[0] / 64, 1.0), "half")

    found = identify(fn, WIDTH, shape="seq dim")
    assert found.stateful == keeps
    words = "It keeps state: a short call gives another result after a long one."
    assert (words in found.reasons) == keeps and (found.rope is None or not keeps)
    assert f"earlier calls {'' if keeps else 'do not '}change results" in " ".join(str(found).split())


@pytest.mark.parametrize("own", [False, True], ids=["numbers", "own factors"])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_maps_are_matrices_whatever_pairs_they_name(layout, own):
    """Of rotations with a growth, from a position on: with other pairs and without, and of scores."""
    rope = RotaryEmbedding(head_dim=12, layout=layout, base=100.0, rotary_dim=8, first_channel=2)
    one = Behaviour(rope, offset=3, factor=1.25).map()
    one = one._replace(growth=np.linspace(0.0, 0.01, 4), centre=2)
    where = np.array([0, 1, 5, 300])
    turn = 1.25 * np.exp(np.outer(where - 2, one.growth) + 1j * np.outer(where + 3, frequencies(100.0, 8)))
    np.testing.assert_allclose(one.factors(where)[:, 0], turn, rtol=1e-13)
    matrices = one.matrices(where, 12)
    if own:  # in place of the numbers
        one = one._replace(own_factors=one.factors, size=np.ones(4), step=np.ones((1, 4)), growth=None)
    for number, position in enumerate(where):
        columns = one.rotated(np.eye(12), np.full(12, position))
        np.testing.assert_allclose(columns.T, matrices[number, 0], rtol=0, atol=1e-12)
    first, last = Pair(0, 1, 0, 1), Pair(10, 11, 10, 11)
    wider = one.over((last, *one.pairs[::-1], first))
    for same in (one, wider, wider.over(wider.pairs[1:5]), *aligned(one, wider)):
        np.testing.assert_allclose(same.matrices(where, 12), matrices, rtol=0, atol=1e-12)
    assert len(wider.pairs) == 6
    np.testing.assert_allclose(wider.over((first, last)).matrices(where, 12)[:, 0], [np.eye(12)] * 4)
    if own:
        scores = one.of_scores().matrices(where, 12)
        np.testing.assert_allclose(scores, matrices[:1].swapaxes(-1, -2) @ matrices, rtol=0, atol=1e-12)
    assert aligned(one, one._replace(pairs=(*one.pairs[:3], Pair(9, 0, 9, 0)))) is None


def test_a_matrix_is_a_rotation_and_a_reflection():
    blocks = np.random.default_rng(0).normal(size=(5, 3, 2, 2))
    found = rotations_of(SimpleNamespace(roundoff=0.0), np.arange(5), blocks)
    cos, sin = found.length * np.cos(found.angle), found.length * np.sin(found.angle)
    rest = blocks - np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)
    np.testing.assert_allclose(rest @ rest.swapaxes(-1, -2), found.rest[..., None, None] ** 2 * np.eye(2), atol=1e-15)
    np.testing.assert_allclose(np.linalg.det(rest), -(found.rest**2))


A = np.outer(np.arange(1.0, 40.0), [1.0, 0.1])
ROTATED, REFLECTED, EDGE = [[1, -1], [1, 1]], [[1, 1], [1, -1]], 1.0 / 64
GROWS, REFLECTS = "changes with the position, as XPos does for queries or keys alone", "such as (0, 1) are reflected"
# Matrices of pairs that are no rotations, by how much they differ from a kind of them, in units of the tolerance.
NO_ROTATIONS = {
    GROWS: lambda n: (
        np.exp(-A / 9)[..., None, None] * matrix(ROTATED, A) + n * EDGE * np.exp(-A.min() / 9) * matrix(REFLECTED, A)
    ),
    REFLECTS: lambda n: (1.0 + n * EDGE * np.eye(2)[0][:, None]) * matrix(REFLECTED, A),
    "are reflected": lambda n: matrix(REFLECTED, A) + n * EDGE * matrix(ROTATED, pi / 2 - A),
    "get the same sign of sin": lambda n: matrix([[1, 1], [1, 1]], np.stack([A, A + np.arcsin(n * EDGE)], -1)),
}


def matrix(signs, angles):
    """Cosines and sines with these signs, in which each row may have angles of its own."""
    angles = angles if angles.ndim == 3 else angles[..., None]
    rows = np.broadcast_to(angles, (*A.shape, 2))[..., None] - np.array([[0.0, pi / 2], [pi / 2, 0.0]])
    return np.cos(rows) * np.array(signs)


@for_each("words, size", itertools.product(NO_ROTATIONS, (0.5, 1.0, 2.0)))
def test_what_is_no_rotation_in_words(words, size):
    """What is said on one side of a tolerance, and not on the other one."""
    channels = SimpleNamespace(roundoff=0.0, inputs=np.array([[0, 1]]))
    for n in (0.97, 1.04):
        found = why_no_rotation(rotations_of(channels, np.arange(len(A)), size * NO_ROTATIONS[words](n)))
        assert (words in found) == (n < 1.0), (n, found)


W, UNIT = frequencies(5000.0, 8), 2.0**-24
CONSTANT, SWAPPED = "all pairs are turned by a constant angle of", "sin and cos are swapped, "
NO_OFFSET = "pairs are turned at position 0 by angles that no offset of the positions explains"
STARTS = [
    (7.9 * UNIT * np.array([1.0, -1.0, 0.5, 0.0]), W, 0, ""),
    (np.full(4, 8.1 * UNIT), W, 5e-07, "positions are shifted: the angle at position p is that of p + 5e-07"),
    (np.full(4, -0.75), W, None, f"{CONSTANT} -0.75"),
    (np.full(4, pi / 2), W, None, f"{SWAPPED}and a sign differs: each angle is a quarter turn more"),
    (np.full(4, -pi / 2), W, None, f"{SWAPPED}and a sign differs: each angle is a quarter turn less"),
    (np.full(4, -pi / 2), -W, None, f"{SWAPPED}and a sign differs: each angle is a quarter turn less"),
    (np.full(4, pi / 2), -W, None, f"{SWAPPED}so the angle is a quarter turn minus position * frequency"),
    (np.array([0.1, -0.5, 3.0, 2.0]), W, None, NO_OFFSET),
    (np.array([1.0, 2.0]), np.zeros(2), None, NO_OFFSET),
]
for shift in (1, -3, 0.25, 40_000, -7_000):
    words = f"positions are shifted: the angle at position p is that of p {'-' if shift < 0 else '+'} {abs(shift)}"
    STARTS += [(wrapped(shift * w), w, shift, words) for w in (W, -W, W[::-1])]


@for_each("start, w, offset, words", STARTS)
def test_angles_at_position_0(start, w, offset, words):
    found, why = start_of(Fitted(w, np.full(len(w), 1e-12), start, None), UNIT)
    assert (found, why) == (offset, words) and type(found) is type(offset)


def test_many_positions_are_split_without_another_result():
    one = Behaviour(RotaryEmbedding(head_dim=8, layout="half", base=100.0), offset=3).map()
    where = np.random.default_rng(0).integers(0, 2**20, 1030)
    for count in (1024, 1025, 1030):
        turn = np.exp(1j * np.outer(where[:count] + 3, frequencies(100.0, 8)))
        np.testing.assert_allclose(one.factors(where[:count])[:, 0], turn, rtol=0, atol=2e-9)
