"""Projections between layouts: against loops over channels, and by the attention scores that must not change."""

import numpy as np
import oracle
import pytest
from errors import assert_all_raise
from libraries import ROUNDOFF

from rope_xp import apply_rotary_pos_emb
from rope_xp._core.weights import permute_projection

LAYOUTS = ["half", "interleaved"]
SEQ, INPUTS, RANK, HEAD_DIM = 5, 11, 3, 14
HEADS = {"q": 8, "k": 2}
# (first_channel, rotary_dim) of a head of 14
SPANS = {
    "all": (0, None),
    "all, said so": (0, 14),
    "first": (0, 6),
    "last": (8, None),
    "middle": (3, 8),
    "pair": (0, 2),
}
ROTATED = ["all", "first", "last"]


def random(*shape, seed=0):
    """Numbers of float32, in float64."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32).astype(np.float64)


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


@pytest.mark.parametrize("to", LAYOUTS)
@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("axis, shape", [(0, (28,)), (0, (28, 5)), (-1, (5, 28)), (1, (3, 28, 5)), (-3, (3, 28, 5, 4))])
def test_every_channel_goes_to_its_place_and_back(xp, to, span, axis, shape):
    first, rotary_dim = SPANS[span]
    options = {"num_heads": 2, "rotary_dim": rotary_dim, "first_channel": first, "axis": axis}
    w = random(*shape).astype(np.float32)
    result = permute_projection(xp.array(w), to=to, **options)
    assert tuple(result.shape) == shape
    np.testing.assert_array_equal(xp.numpy(result), np.take(w, order(2, 14, to, first, rotary_dim), axis=axis))
    np.testing.assert_array_equal(xp.numpy(permute_projection(result, to=other(to), **options)), w)


def test_every_dtype_is_kept(xp):
    values = np.arange(28 * 3).reshape(28, 3)  # exact in int8 and in bfloat16
    for dtype in (*xp.floats, *xp.integers):
        w = xp.array(values, dtype)
        for rotary_dim in (14, 6):
            result = permute_projection(w, num_heads=2, to="half", rotary_dim=rotary_dim)
            assert result.dtype == w.dtype
            np.testing.assert_array_equal(xp.numpy(result), values[order(2, 14, "half", 0, rotary_dim)])


def test_meta_to_transformers(xp):
    """The formula of the conversion scripts for whole heads."""
    w = random(2 * 14, 5).astype(np.float32)
    theirs = w.reshape(2, 7, 2, 5).transpose(0, 2, 1, 3).reshape(28, 5)
    np.testing.assert_array_equal(xp.numpy(permute_projection(xp.array(w), num_heads=2, to="half")), theirs)
    back = theirs.reshape(2, 2, 7, 5).transpose(0, 2, 1, 3).reshape(28, 5)
    np.testing.assert_array_equal(back, w)
    ours = permute_projection(xp.array(theirs), num_heads=2, to="interleaved")
    np.testing.assert_array_equal(xp.numpy(ours), w)


@pytest.mark.parametrize("to", LAYOUTS)
def test_other_ways_to_hold_the_same_channels(xp, to):
    w = random(28, 5).astype(np.float32)
    expected = w[order(2, 14, to)]
    for held, axis, num_heads, given in (
        (w.T, -1, 2, expected.T),
        (w.T.reshape(5, 2, 14), -1, 1, expected.T.reshape(5, 2, 14)),
        (w.reshape(2, 14, 5), 1, 1, expected.reshape(2, 14, 5)),
        (w[:, 0].reshape(2, 14), -1, 1, expected[:, 0].reshape(2, 14)),
    ):
        result = permute_projection(xp.array(held), num_heads=num_heads, to=to, axis=axis)
        np.testing.assert_array_equal(xp.numpy(result), given)


# A checkpoint in one layout, and what the other layout makes of it after a conversion.


def checkpoint(norm_heads="one"):
    """Weight, bias, LoRA factors and norm of queries and of keys: numbers of float32 in float64."""
    shapes = {"weight": (INPUTS,), "bias": (), "lora_B": (RANK,), "norm": ()}
    rows = {name: dict.fromkeys(shapes, heads * HEAD_DIM) for name, heads in HEADS.items()}
    if norm_heads == "one":
        rows = {name: {**tensors, "norm": HEAD_DIM} for name, tensors in rows.items()}
    return {
        name: {tensor: random(size, *shapes[tensor], seed=seed) for seed, (tensor, size) in enumerate(tensors.items())}
        | {"lora_A": random(RANK, INPUTS, seed=7)}
        for name, tensors in rows.items()
    }


def convert(xp, tensors, heads, to, but=(), **span):
    """All but the LoRA factor A, through float32 arrays of the library."""
    converted = dict(tensors)
    for tensor in tensors.keys() - {"lora_A", *but}:
        w = tensors[tensor]
        num_heads = 1 if w.size == HEAD_DIM else heads
        converted[tensor] = xp.numpy(permute_projection(xp.array(w, "float32"), num_heads=num_heads, to=to, **span))
    return converted


def project(tensors, x):
    """Rows of x, (seq, inputs), as (seq, heads, head_dim), after RMSNorm over each head or over all of them."""
    y = x @ (tensors["weight"] + tensors["lora_B"] @ tensors["lora_A"]).T + tensors["bias"]
    y = y.reshape(SEQ, -1, tensors["norm"].size)
    y = y / np.sqrt((y**2).mean(axis=-1, keepdims=True)) * tensors["norm"]
    return y.reshape(SEQ, -1, HEAD_DIM)


def turns(first, rotary_dim):
    """Angles of every position, (seq, pairs)."""
    return np.outer(3 * np.arange(SEQ), 2.0 ** -np.arange((rotary_dim or HEAD_DIM - first) // 2))


def rotate(xp, x, layout, first, rotary_dim):
    """x, (seq, heads, head_dim), with the channels from `first` on turned by rope_xp in float32."""
    angles = turns(first, rotary_dim)
    turned = apply_rotary_pos_emb(xp.array(x[..., first:], "float32"), (np.sin(angles), np.cos(angles)), layout=layout)
    return np.concatenate([x[..., :first], xp.numpy(turned)], axis=-1)


def true_rotate(x, layout, first, rotary_dim):
    turned = oracle.rotate(x[..., first:], turns(first, rotary_dim)[:, None], layout)
    return np.concatenate([x[..., :first], turned], axis=-1)


def scores(q, k):
    """Of (seq, heads, head_dim), four heads of the queries to each of the keys'."""
    return np.einsum("qhgd,khd->hgqk", q.reshape(SEQ, HEADS["k"], -1, q.shape[-1]), k)


def roundoff_of_scores(q, k):
    """Turned channels have four roundings each: of themselves, the table, the product and the sum.

    They change a pair by no more than 4 sqrt(2) roundoffs of its length, in the query and in the key.
    """
    q, k = (np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    return 8 * 2**0.5 * ROUNDOFF["float32"] * scores(q, k)


@pytest.mark.parametrize("to", LAYOUTS)
@pytest.mark.parametrize("norm_heads", ["one", "all"])
@pytest.mark.parametrize("span", ROTATED)
def test_scores_stay(xp, to, norm_heads, span):
    """Grouped queries with bias, LoRA and RMSNorm."""
    first, rotary_dim = SPANS[span]
    x, truth, ours = random(SEQ, INPUTS, seed=9), [], []
    for name, tensors in checkpoint(norm_heads).items():
        truth.append(true_rotate(project(tensors, x), other(to), first, rotary_dim))
        converted = convert(xp, tensors, HEADS[name], to, rotary_dim=rotary_dim, first_channel=first)
        ours.append(rotate(xp, project(converted, x), to, first, rotary_dim))
    assert (np.abs(scores(*ours) - scores(*truth)) <= roundoff_of_scores(*truth)).all()


@pytest.mark.parametrize("forgotten", ["weight", "bias", "lora_B", "norm"])
@pytest.mark.parametrize("of", [*HEADS, "both"])
def test_scores_change_where_a_tensor_is_forgotten(xp, forgotten, of):
    x, truth, ours = random(SEQ, INPUTS, seed=9), [], []
    for name, tensors in checkpoint().items():
        truth.append(true_rotate(project(tensors, x), "interleaved", 0, None))
        but = [forgotten] if of in (name, "both") else []
        ours.append(rotate(xp, project(convert(xp, tensors, HEADS[name], "half", but), x), "half", 0, None))
    assert np.abs(scores(*ours) - scores(*truth)).max() > 0.1


@pytest.mark.parametrize("to", LAYOUTS)
@pytest.mark.parametrize("span", ROTATED)
def test_cached_keys(xp, to, span):
    """Keys that are rotated already, with channels last, serve queries of the other layout."""
    first, rotary_dim = SPANS[span]
    q, k = (random(SEQ, heads, HEAD_DIM, seed=heads).astype(np.float32) for heads in HEADS.values())
    options = {"num_heads": 1, "to": to, "rotary_dim": rotary_dim, "first_channel": first, "axis": -1}
    cached = xp.array(rotate(xp, k, other(to), first, rotary_dim), "float32")
    ours = [
        rotate(xp, xp.numpy(permute_projection(xp.array(q), **options)), to, first, rotary_dim),
        xp.numpy(permute_projection(cached, **options)),
    ]
    truth = [true_rotate(x, other(to), first, rotary_dim) for x in (q, k)]
    assert (np.abs(scores(*ours) - scores(*truth)) <= roundoff_of_scores(*truth)).all()


def test_scales_of_quantised_rows(xp):
    """A row's integers and its scale move together."""
    rows, scales = np.arange(-56, 56).reshape(28, 4).astype(np.int8), random(28, 1).astype(np.float32)
    ours = [xp.numpy(permute_projection(xp.array(each), num_heads=2, to="half")) for each in (rows, scales)]
    whole = permute_projection(xp.array((rows * scales).astype(np.float32)), num_heads=2, to="half")
    np.testing.assert_array_equal(xp.numpy(whole), (ours[0] * ours[1]).astype(np.float32))


def test_a_head_dim_that_is_right_changes_nothing(xp):
    w = xp.array(random(28, 4), "float32")
    guarded = permute_projection(w, num_heads=2, to="half", head_dim=14)
    np.testing.assert_array_equal(xp.numpy(guarded), xp.numpy(permute_projection(w, num_heads=2, to="half")))


def bad_calls(xp):
    w = xp.array(np.ones((28, 16)), "float32")

    def call(w=w, **options):
        return lambda: permute_projection(w, **{"num_heads": 2, "to": "half", **options})

    return {
        "a list": (call([1.0, 2.0]), TypeError, r"^permute_projection: w must be an array; got list"),
        "no layout": (lambda: permute_projection(w, num_heads=2), TypeError, r"'to'"),
        "unknown layout": (call(to="neox"), ValueError, r'to must be "half".*"interleaved".*; got .neox'),
        "layout that is no order": (call(to="interleaved_to_half"), ValueError, r"to must be .*; got"),
        "layout of a type": (call(to=True), ValueError, r"to must be .*; got True"),
        "keys with the heads of queries": (
            call(num_heads=8),
            ValueError,
            r"number of heads on axis 0 of w \(for keys: key-value heads\).*; got num_heads=8 .*\(28, 16\)",
        ),
        "narrower than rotary_dim": (
            call(num_heads=8, axis=1, rotary_dim=8),
            ValueError,
            r"every head must have 8 channels .*; got head_dim=2 \(w of shape \(28, 16\), num_heads=8\)",
        ),
        "queries' heads of keys that are as wide": (
            call(num_heads=4, axis=1, head_dim=8),
            ValueError,
            r"^permute_projection: axis 1 of w must have num_heads=4 heads \(for keys: key-value heads\) of head_dim=8 "
            r"channels; got w of shape \(28, 16\)",
        ),
        "head_dim of a type": (call(head_dim=14.0), TypeError, r"head_dim must be an int; got float"),
        "no heads": (call(num_heads=0), ValueError, r"num_heads must be the number of heads.*; got num_heads=0"),
        "negative heads": (call(num_heads=-2), ValueError, r"num_heads must not be negative; got -2"),
        "heads of a type": (call(num_heads=2.0), TypeError, r"num_heads must be an int; got float"),
        "heads of one channel": (call(num_heads=28), ValueError, r"pairs of channels .*; got head_dim=1"),
        "heads of odd width": (call(num_heads=4), ValueError, r"pairs of channels from channel 0 on; got head_dim=7"),
        "no channels": (call(w[:0, ...]), ValueError, r"pairs of channels .*; got head_dim=0"),
        "odd rotary_dim": (call(rotary_dim=5), ValueError, r"rotary_dim must be even, at least 2; got 5"),
        "no rotary_dim": (call(rotary_dim=0), ValueError, r"rotary_dim must be even, at least 2; got 0"),
        "rotary_dim of a type": (call(rotary_dim=6.0), TypeError, r"rotary_dim must be an int; got float"),
        "wide rotary_dim": (call(rotary_dim=16), ValueError, r"16 channels from channel 0 on; got head_dim=14"),
        "beyond the head": (call(rotary_dim=8, first_channel=8), ValueError, r"8 channels from channel 8 on; got"),
        "an odd rest": (call(first_channel=3), ValueError, r"pairs of channels from channel 3 on; got head_dim=14"),
        "no rest": (call(first_channel=14), ValueError, r"pairs of channels from channel 14 on; got"),
        "negative channel": (call(first_channel=-6), ValueError, r"first_channel must not be negative; got -6"),
        "channel of a type": (call(first_channel="8"), TypeError, r"first_channel must be an int; got str"),
        "no such axis": (call(axis=2), ValueError, r"axis must name an axis of w; got axis=2 .*\(28, 16\)"),
        "no such axis from the end": (call(axis=-3), ValueError, r"axis must name an axis of w; got axis=-3"),
        "no axes": (call(w[0, 0]), ValueError, r"axis must name an axis of w; got axis=0 for w of shape \(\)"),
        "axis of a type": (call(axis=None), TypeError, r"axis must be an int; got NoneType"),
    }


def test_bad_calls(xp):
    assert_all_raise(bad_calls(xp))
