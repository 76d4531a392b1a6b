"""Equal to MLX's own rotary embedding, at positions below 512, where its float32 phases are still right."""

import math

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from samples import random

from rope_xp import LinearScaling, Llama3Scaling, ProportionalScaling, RotaryEmbedding, YarnScaling, positions

LAYOUTS = {"half": False, "interleaved": True}
BATCH, HEADS, SEQ, DIM = 2, 3, 5, 20


def assert_same(ours, theirs, last, *, powers=True):
    """Equal as far as theirs is right for positions up to `last`.

    A product of a scaled position and a frequency has eight roundings in float32: exponent, logarithm, their product,
    which count for less than one each where a frequency is below 1, power (two), scale, position and product; without
    `powers`, reciprocal, scale, position and product. Sines are off by 3e-7 together, rotation has four roundings.
    """
    table = last * (8 if powers else 4) * 2.0**-24 + 3e-7
    np.testing.assert_allclose(np.array(ours), np.array(theirs), rtol=0, atol=6 * table + 8 * 4.3 * 2.0**-24)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("offset", [0, 500])
@pytest.mark.parametrize("scale", [1.0, 0.25, 0.3])
@pytest.mark.parametrize("base", [500.0, 1e6])
def test_module(layout, offset, scale, base):
    theirs = nn.RoPE(12, traditional=LAYOUTS[layout], base=base, scale=scale)
    scaling = LinearScaling(factor=1 / scale)
    rope = RotaryEmbedding(head_dim=DIM, layout=layout, base=base, rotary_dim=12, scaling=scaling)
    x = mx.array(random(BATCH, HEADS, SEQ, DIM))
    ours = rope(x, positions=positions.consecutive(SEQ, offset, like=x), seq_dim=2)
    assert_same(ours, theirs(x, offset=offset), offset + SEQ)
    assert np.array_equal(np.array(ours)[..., 12:], np.array(x)[..., 12:])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(BATCH, SEQ, DIM), (BATCH, HEADS, SEQ, DIM), (BATCH, 2, HEADS, SEQ, DIM)])
def test_offsets_of_rows(layout, shape):
    x, offsets = mx.array(random(*shape)), mx.array([3, 500])
    theirs = mx.fast.rope(x, DIM, traditional=LAYOUTS[layout], base=500.0, scale=1.0, offset=offsets)
    rope = RotaryEmbedding(head_dim=DIM, layout=layout, base=500.0)
    ours = rope(x, positions=positions.consecutive(SEQ, offsets), seq_dim=len(shape) - 2)
    assert_same(ours, theirs, 505)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "scaling",
    [
        Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=256),
        YarnScaling(factor=4.0, original_max_position_embeddings=128, attention_factor=1.0),
        ProportionalScaling(partial_rotary_factor=0.5),
    ],
    ids=lambda scaling: scaling.rope_type,
)
def test_frequencies(layout, scaling):
    """Theirs are reciprocals, and infinite where a pair does not turn."""
    rope = RotaryEmbedding(head_dim=DIM, layout=layout, base=10_000.0, scaling=scaling)
    periods = mx.array([1 / w if w else math.inf for w in rope.inv_freq])
    x = mx.array(random(BATCH, HEADS, SEQ, DIM))
    options = {"traditional": LAYOUTS[layout], "base": None, "offset": 400, "freqs": periods}
    theirs = mx.fast.rope(x, DIM, scale=1.0, **options)
    where = positions.consecutive(SEQ, 400, like=x)
    assert_same(rope(x, positions=where, seq_dim=2), theirs, 405, powers=False)
    theirs = mx.fast.rope(x, DIM, scale=0.5, **options)
    assert_same(rope(x, positions=0.5 * where, seq_dim=2), theirs, 203, powers=False)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(layout, dtype):
    """Theirs multiplies, on a CPU, in half precision; ours rounds the result alone."""
    x = mx.array(random(BATCH, HEADS, SEQ, DIM)).astype(getattr(mx, dtype))
    rope = RotaryEmbedding(head_dim=DIM, layout=layout, base=500.0)
    where = positions.consecutive(SEQ, 400, like=x)
    ours = rope(x, positions=where, seq_dim=2)
    theirs = mx.fast.rope(x, DIM, traditional=LAYOUTS[layout], base=500.0, scale=1.0, offset=400)
    exact = rope(x.astype(mx.float32), positions=where, seq_dim=2)
    assert ours.dtype == theirs.dtype == x.dtype
    assert mx.array_equal(ours, exact.astype(x.dtype))
    # Of numbers up to 3, tables and two products are rounded, and the sum, up to 4.3.
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    atol = 6 * (2 * unit + 405 * 8 * 2.0**-24 + 3e-7) + 4.3 * unit
    np.testing.assert_allclose(np.array(theirs.astype(mx.float32)), np.array(exact), rtol=0, atol=atol)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradient_of_x_and_compiler(layout):
    rope = RotaryEmbedding(head_dim=DIM, layout=layout, base=500.0, rotary_dim=12)
    x, g = (mx.array(random(BATCH, HEADS, SEQ, DIM, seed=seed)) for seed in (0, 1))
    where = positions.consecutive(SEQ, 300, like=x)
    theirs = nn.RoPE(12, traditional=LAYOUTS[layout], base=500.0)
    _, (ours,) = mx.vjp(lambda x: rope(x, positions=where, seq_dim=2), [x], [g])
    _, (expected,) = mx.vjp(lambda x: theirs(x, offset=300), [x], [g])
    assert_same(ours, expected, 305)
    compiled = mx.compile(lambda x: rope(x, positions=where, seq_dim=2))(x)
    np.testing.assert_allclose(np.array(compiled), np.array(rope(x, positions=where, seq_dim=2)), rtol=0, atol=1e-6)


def test_learned_frequencies():
    """Against the rotation written with MLX's sines, as its own does not differentiate frequencies."""
    x, g = (mx.array(random(SEQ, HEADS, 16, seed=seed)) for seed in (0, 1))
    w = mx.array(random(2, HEADS, 8))
    where = positions.grid(1, SEQ, start=(2, 0), like=x)

    def ours(w):
        rope = RotaryEmbedding(head_dim=16, layout="half", inv_freq=w)
        return (rope(x, positions=where, seq_dim=0, heads_dim=1) * g).sum()

    def expected(w):
        angle = (where.astype(mx.float32)[..., None, None] * w[:, None]).sum(axis=0)
        one, other, sin, cos = x[..., :8], x[..., 8:], mx.sin(angle), mx.cos(angle)
        return (mx.concatenate([one * cos - other * sin, one * sin + other * cos], axis=-1) * g).sum()

    # A gradient is a sum of five terms, each a position up to 4 times two products of up to 13.
    atol = 5 * 4 * 26 * (3 * (2 + 4) * 4 * 2.0**-24 + 3e-7 + 8 * 2.0**-24)
    np.testing.assert_allclose(np.array(mx.grad(ours)(w)), np.array(mx.grad(expected)(w)), rtol=0, atol=atol)
