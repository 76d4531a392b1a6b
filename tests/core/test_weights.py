"""Projections between layouts: against loops over channels, and by the attention scores that must not change."""

from functools import partial

import numpy as np
import pytest
from compare import assert_numbers
from errors import assert_all_raise, raising
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import radians

from rope_xp import apply_rotary_pos_emb
from rope_xp.weights import permute_projection

LAYOUTS = ["half", "interleaved"]


def other(layout):
    return LAYOUTS[1 - LAYOUTS.index(layout)]


def order(num_heads, head_dim, to, first=0, rotary_dim=None):
    """The channel that each place receives."""
    result = list(range(num_heads * head_dim))
    pairs = (rotary_dim or head_dim - first) // 2
    for head in range(num_heads):
        start = head * head_dim + first
        for j in range(pairs):
            for member in range(2):
                half, interleaved = start + j + member * pairs, start + 2 * j + member
                result[half if to == "half" else interleaved] = interleaved if to == "half" else half
    return result


@settings(max_examples=min(30, settings.default.max_examples), deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(1, 4), st.integers(0, 3)),
    others=st.lists(st.integers(1, 4), max_size=3),
    data=st.data(),
)
def test_every_channel_goes_to_its_place_and_back(xp, sizes, others, data):
    """Heads, first channels and rotated widths of every kind, on any axis of any array."""
    heads, first, pairs, rest = sizes
    head_dim, rotary_dim = first + 2 * pairs + rest, 2 * pairs
    place, to = data.draw(st.integers(0, len(others))), data.draw(st.sampled_from(LAYOUTS))
    shape = (*others[:place], heads * head_dim, *others[place:])
    axis = data.draw(st.sampled_from([place, place - len(shape)]))
    options = {"num_heads": heads, "rotary_dim": rotary_dim, "first_channel": first, "axis": axis}
    if not rest and data.draw(st.booleans()):
        del options["rotary_dim"]
    if data.draw(st.booleans()):
        options["head_dim"] = head_dim
    w = xp.array(np.arange(np.prod(shape)).reshape(shape) % 127, data.draw(st.sampled_from([*xp.floats, *xp.integers])))
    result = permute_projection(w, to=to, **options)
    assert tuple(result.shape) == shape and result.dtype == w.dtype
    assert_numbers(xp, result, np.take(xp.numpy(w), order(heads, head_dim, to, first, rotary_dim), axis=axis))
    assert_numbers(xp, permute_projection(result, to=other(to), **options), w)


@pytest.mark.parametrize("to", LAYOUTS)
@pytest.mark.parametrize("first, pairs", [(0, 7), (0, 3), (8, 3)])
def test_rotation_and_permutation_change_places(xp, to, first, pairs):
    """Rotated in the other layout and then permuted, channels are what they are permuted and then rotated in this one.

    So scores of queries and keys whose projections are both permuted stay.
    """
    x, sincos = xp.random(5, 2, 14), xp.tables(radians(5, pairs))
    permuted = partial(permute_projection, num_heads=1, head_dim=14, rotary_dim=2 * pairs, first_channel=first, axis=2)

    def rotated(x, layout):
        x, result = xp.numpy(x), xp.numpy(x)
        part = xp.array(x[..., first : first + 2 * pairs], "float32")
        result[..., first : first + 2 * pairs] = xp.numpy(apply_rotary_pos_emb(part, sincos, layout=layout, seq_dim=0))
        return xp.array(result, "float32")

    assert_numbers(xp, rotated(permuted(x, to=to), to), permuted(rotated(x, other(to)), to=to))


def bad_calls(xp):
    w = xp.array(np.ones((28, 16)), "float32")

    def call(w=w, **options):
        return lambda: permute_projection(w, **{"num_heads": 2, "to": "half", **options})

    values = [
        (call(to="neox"), r'to must be "half".*"interleaved".*; got .neox'),
        (call(to="interleaved_to_half"), r"to must be .*; got"),
        (call(to=True), r"to must be .*; got True"),
        (call(num_heads=8), r"heads on axis 0 of w \(for keys: key-value heads\).*; got num_heads=8 .*\(28, 16\)"),
        (call(num_heads=8, axis=1, rotary_dim=8), r"head must have 8 channels .*; got head_dim=2 \(.*28, 16.*=8\)"),
        *(
            (
                call(num_heads=4, axis=1, head_dim=width),
                rf"axis 1 of w must have num_heads=4 .*head_dim={width} channels; got .*28, 16",
            )
            for width in (2, 8)
        ),
        (call(num_heads=0), r"num_heads must be the number of heads.*; got num_heads=0"),
        (call(num_heads=-2), r"num_heads must not be negative; got -2"),
        (call(num_heads=28), r"pairs of channels .*; got head_dim=1"),
        (call(num_heads=4), r"pairs of channels from channel 0 on; got head_dim=7 .*: give rotary_dim if only some of"),
        (call(w[:0, ...]), r"pairs of channels .*; got head_dim=0"),
        (call(rotary_dim=5), r"rotary_dim must be even, at least 2; got 5"),
        (call(rotary_dim=0), r"rotary_dim must be even, at least 2; got 0"),
        (call(rotary_dim=16), r"16 channels from channel 0 on; got head_dim=14"),
        (call(rotary_dim=8, first_channel=8), r"8 channels from channel 8 on; got"),
        (call(first_channel=3), r"pairs of channels from channel 3 on; got head_dim=14"),
        (call(first_channel=14), r"pairs of channels from channel 14 on; got"),
        (call(first_channel=-6), r"first_channel must not be negative; got -6"),
        (call(axis=2), r"axis must name an axis of w; got axis=2 .*\(28, 16\)"),
        (call(axis=3), r"axis must name an axis of w; got axis=3 .*\(28, 16\)"),
        (call(axis=-3), r"axis must name an axis of w; got axis=-3"),
        (call(w[0, 0]), r"axis must name an axis of w; got axis=0 for w of shape \(\)"),
    ]
    types = [
        (call([1.0, 2.0]), r"^permute_projection: w must be an array; got list"),
        (lambda: permute_projection(w, num_heads=2), r"'to'"),
        (call(axis=None), r"axis must be an int; got NoneType"),
    ]
    integers = ("head_dim", "num_heads", "rotary_dim", "first_channel", "axis")
    types += [(call(**{name: 2.0}), rf"{name} must be an int; got float") for name in integers]
    return raising(values, types)


def test_bad_calls(xp):
    assert_all_raise(bad_calls(xp))
