"""identify gives back what a function was made of: random values, spans, offsets, dtypes and shapes, by the oracle."""

import itertools
from math import pi
from types import SimpleNamespace

import numpy as np
import pytest
from cases import for_each
from formulas import geometric
from functions import in_shape, rotary, turned
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rope_xp import LinearScaling, RotaryEmbedding, Sections, identify
from rope_xp.identification.pairs import Channels, rotations_of, why_no_rotation
from rope_xp.identification.probe import Probe
from rope_xp.identification.search import identification_of

WIDTH = 16
LAYOUTS = ["half", "interleaved", "interleaved_to_half"]
SHAPES = ["seq dim", "seq heads dim", "heads seq dim", "batch heads seq dim", "batch seq heads dim"]
bases = st.integers(11, 999).flatmap(lambda digits: st.integers(1, 4).map(lambda power: float(digits * 10**power)))
factors = st.integers(3, 64).map(lambda n: n / 2)


good = rotary(geometric(10_000.0, WIDTH))


@settings(max_examples=60)
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
    (first, rotary_dim), scaling = ends, None
    if rule == "linear":
        scaling, magnitude = LinearScaling(factor=factor), 1.0
    elif rule == "ntk":
        base *= factor  # the frequencies are those of a larger base, which is what is found
    w = geometric(base, rotary_dim) / (factor if rule == "linear" else 1.0)
    options = {"offset": offset, "factor": magnitude, "inverse": reverse, "dtype": dtype}
    found = identify(in_shape(rotary(w, layout, first, **options), shape), WIDTH, shape=shape)
    fields = {"layout": layout, "base": base, "scaling": scaling, "reverse": reverse, "attention_factor": magnitude}
    expected = RotaryEmbedding(head_dim=WIDTH, rotary_dim=rotary_dim, first_channel=first, **fields)
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
    off = np.max(np.abs(np.divide(found.inv_freq, found.rope.inv_freq) - 1.0))
    assert any(f"those of the value are within {off:.1e} of each." in reason for reason in found.reasons)
    text = " ".join(str(found).split())
    assert f"called with x of ({shape}), numpy, results in {dtype}" in text
    assert f"offset {offset} " in text and "earlier calls do not change results relative scores yes" in text
    assert (f", with positions {'+-'[offset < 0]} {abs(offset)}." in text) == (offset != 0)


@for_each("layout, reverse, factor, offset", itertools.product(LAYOUTS, (False, True), (1.0, 1.25), (0, 1, 300)))
def test_one_pair_has_no_layout_and_no_base(layout, reverse, factor, offset):
    found = identify(rotary([1.0], layout, 6, offset=offset, inverse=reverse, factor=factor), WIDTH)
    w = [-1.0 if reverse else 1.0]
    fields = {"layout": "half", "rotary_dim": 2, "first_channel": 6, "inv_freq": w, "attention_factor": factor}
    assert (found.rope, found.offset) == (RotaryEmbedding(head_dim=WIDTH, **fields), offset)


@settings(max_examples=15)
@given(st.lists(st.floats(1e-4, 3.0), min_size=8, max_size=8), st.permutations(range(WIDTH)), st.booleans())
def test_any_frequencies_and_any_pairs_are_given_as_numbers(values, order, is_permuted):
    """Channels in any order are no layout; frequencies of no rule are numbers."""
    w = np.asarray(values)
    channels = np.asarray(order if is_permuted else range(WIDTH))
    fn = rotary(w)
    found = identify(lambda x, p: fn(x[:, channels], p)[:, np.argsort(channels)], WIDTH, shape="seq dim")
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
    matrix = np.eye(WIDTH)
    one, other = rng.choice(WIDTH, 2, replace=False)
    if kind == "stretch":
        matrix[one, one] = 1.5
    elif kind == "shear":
        matrix[one, other] = 0.5
    elif kind == "mixed":
        matrix = rng.standard_normal((WIDTH, WIDTH))
    found = identify(lambda x, p: x @ matrix if kind == "constant" else good(x, p) @ matrix, WIDTH, shape="seq dim")
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
    st.sampled_from(["float64", "float32"]),
)
@example((2, 8, 6), "axial", "half", 0, 1.0, 1.0, "float64", False, "float32")
def test_several_axes_are_identified_by_each_alone(sizes, order, layout, first, magnitude, factor, dtype, reverse, of):
    """As `rope_xp.huggingface` does with modules of several position axes, also with frequencies in float32."""
    rope = RotaryEmbedding(
        head_dim=first + sum(sizes) * 2,
        first_channel=first,
        layout=layout,
        base=5000.0,
        sections=Sections(sizes, order=order),
        scaling=None if factor == 1.0 else LinearScaling(factor=factor),
        reverse=reverse,
    )
    rows = np.asarray(rope.inv_freq, of).astype(float)

    def fn(x, positions):
        angles = sum(np.asarray(p, np.float64)[:, None] * row for p, row in zip(positions, rows))
        return turned(x, angles, layout, first, factor=magnitude).astype(dtype)

    def identified(fn, axes):
        return identification_of(Probe(fn, rope.head_dim, shape="seq dim", axes=axes))

    found = identified(fn, len(sizes))
    assert found.rope.layout == layout and found.rope.first_channel == first
    assert np.asarray(found.rope.inv_freq) == pytest.approx(rows, rel=1e-9 if of == "float64" else 1e-7, abs=1e-12)
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


def test_far_rows_that_are_not_the_sum_of_their_channels_are_not_explained():
    def fn(x, positions):
        return good(np.where(positions[..., None] > 5000, np.clip(x, -2.0, 2.0), x), positions)

    found = identify(fn, WIDTH, shape="seq dim")
    assert found.rope is None and found.is_rotation and 0.5 < found.confidence < 0.9


@pytest.mark.parametrize("keeps", [True, False])
def test_state_that_a_long_call_leaves(keeps):
    """The longest position so far divides the frequencies of later calls."""
    longest, w = [0.0], geometric(100.0, WIDTH)

    def fn(x, positions):
        longest[0] = max(longest[0] * keeps, float(positions.max()))
        return rotary(w / max(longest[0] / 64, 1.0))(x, positions)

    found = identify(fn, WIDTH, shape="seq dim")
    assert found.stateful == keeps
    words = "It keeps state: a short call gives another result after a long one."
    assert (words in found.reasons) == keeps and (found.rope is None or not keeps)
    assert f"earlier calls {'' if keeps else 'do not '}change results" in " ".join(str(found).split())


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
    channels = Channels(4, 0.0, *np.arange(8).reshape(2, 2, 2) % 4, (), (), None)
    for n in (0.97, 1.04):
        found = why_no_rotation(rotations_of(channels, np.arange(len(A)), size * NO_ROTATIONS[words](n)))
        assert (words in found) == (n < 1.0), (n, found)
