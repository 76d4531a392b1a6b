"""Projections between layouts: against loops over channels, and by the attention scores that must not change."""

import numpy as np
import oracle
import pytest
from compare import assert_numbers
from errors import assert_all_raise, raising
from hypothesis import given, settings
from hypothesis import strategies as st
from libraries import ROUNDOFF
from samples import random

from rope_xp import apply_rotary_pos_emb
from rope_xp.weights import permute_projection

LAYOUTS = ["half", "interleaved"]
SEQ, INPUTS, HEAD_DIM = 5, 11, 14
HEADS = {"q": 8, "k": 2}
# (first_channel, rotary_dim) of a head of 14
SPANS = {"all": (0, None), "first": (0, 6), "last": (8, None)}


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


# A checkpoint in one layout, and what the other layout makes of it after a conversion.


def project(tensors, x):
    """Rows of x, (seq, inputs), as (seq, heads, head_dim), after RMSNorm over each head."""
    y = (x @ tensors["weight"].T + tensors["bias"]).reshape(SEQ, -1, HEAD_DIM)
    return y / np.sqrt((y**2).mean(axis=-1, keepdims=True)) * tensors["norm"]


def scores(q, k):
    """Of (seq, heads, head_dim), four heads of the queries to each of the keys'."""
    return np.einsum("qhgd,khd->hgqk", q.reshape(SEQ, HEADS["k"], -1, q.shape[-1]), k)


def roundoff_of_scores(q, k):
    """Rotated channels have four roundings each: of themselves, the table, the product and the sum.

    They change a pair by no more than 4 sqrt(2) roundoffs of its length, in the query and in the key.
    """
    q, k = (np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    return 8 * 2**0.5 * ROUNDOFF["float32"] * scores(q, k)


@pytest.mark.parametrize("to", LAYOUTS)
@pytest.mark.parametrize("span", SPANS)
def test_scores_stay(xp, to, span):
    """Grouped queries with bias and an RMSNorm that all heads share."""
    first, rotary_dim = SPANS[span]
    angles = np.outer(3 * np.arange(SEQ), 2.0 ** -np.arange((rotary_dim or HEAD_DIM - first) // 2))
    sincos, x, truth, ours = (np.sin(angles), np.cos(angles)), random(SEQ, INPUTS, seed=9).astype(np.float64), [], []
    for heads in HEADS.values():
        shapes = {"weight": (heads * HEAD_DIM, INPUTS), "bias": (heads * HEAD_DIM,), "norm": (HEAD_DIM,)}
        given = {name: random(*shape, seed=seed).astype(float) for seed, (name, shape) in enumerate(shapes.items())}
        true = project(given, x)
        true[..., first:] = oracle.rotate(true[..., first:], angles[:, None], other(to))
        converted = {}
        for name, w in given.items():
            options = {"num_heads": w.shape[0] // HEAD_DIM, "rotary_dim": rotary_dim, "first_channel": first}
            converted[name] = xp.numpy(permute_projection(xp.array(w, "float32"), to=to, **options))
        own = project(converted, x)
        own[..., first:] = xp.numpy(apply_rotary_pos_emb(xp.array(own[..., first:], "float32"), sincos, layout=to))
        truth.append(true)
        ours.append(own)
    assert (np.abs(scores(*ours) - scores(*truth)) <= roundoff_of_scores(*truth)).all()


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
