"""Equal to MLX's own rotary embedding, at positions below 512, where its float32 phases are still right."""

import math

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from samples import random

from rope_xp import LinearScaling, Llama3Scaling, ProportionalScaling, RotaryEmbedding, YarnScaling
from rope_xp.positions import consecutive

LAYOUTS = {"half": False, "interleaved": True}
SHAPE = BATCH, HEADS, SEQ, DIM = 2, 3, 5, 20


def embedding(layout, base=500.0, **options):
    return RotaryEmbedding(head_dim=DIM, layout=layout, base=base, **options)


def numbers(*shape, seed=0):
    return mx.array(random(*shape, seed=seed))


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
    rope, x = embedding(layout, base, rotary_dim=12, scaling=LinearScaling(factor=1 / scale)), numbers(*SHAPE)
    ours = rope(x, positions=consecutive(SEQ, offset, like=x), seq_dim=2)
    assert_same(ours, theirs(x, offset=offset), offset + SEQ)
    assert np.array_equal(np.array(ours)[..., 12:], np.array(x)[..., 12:])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(BATCH, SEQ, DIM), (BATCH, HEADS, SEQ, DIM), (BATCH, 2, HEADS, SEQ, DIM)])
def test_offsets_of_rows(layout, shape):
    rope, x, offsets = embedding(layout), numbers(*shape), mx.array([3, 500])
    theirs = mx.fast.rope(x, DIM, traditional=LAYOUTS[layout], base=500.0, scale=1.0, offset=offsets)
    assert_same(rope(x, positions=consecutive(SEQ, offsets), seq_dim=len(shape) - 2), theirs, 505)


LLAMA_3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256}
YARN = {"factor": 4.0, "original_max_position_embeddings": 128, "attention_factor": 1.0}
SCALINGS = [Llama3Scaling(**LLAMA_3), YarnScaling(**YARN), ProportionalScaling(partial_rotary_factor=0.5)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: scaling.rope_type)
@pytest.mark.parametrize("scale, last", [(1.0, 405), (0.5, 203)])
def test_frequencies(layout, scaling, scale, last):
    """Theirs are reciprocals, and infinite where a pair does not turn."""
    rope, x = embedding(layout, 10_000.0, scaling=scaling), numbers(*SHAPE)
    periods = mx.array([1 / w if w else math.inf for w in rope.inv_freq])
    options = {"traditional": LAYOUTS[layout], "base": None, "scale": scale, "offset": 400, "freqs": periods}
    ours = rope(x, positions=scale * consecutive(SEQ, 400, like=x), seq_dim=2)
    assert_same(ours, mx.fast.rope(x, DIM, **options), last, powers=False)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_compiler_changes_nothing(layout):
    rope, x = embedding(layout, rotary_dim=12), numbers(*SHAPE)

    def ours(x):
        return rope(x, positions=consecutive(SEQ, 300, like=x), seq_dim=2)

    np.testing.assert_allclose(np.array(mx.compile(ours)(x)), np.array(ours(x)), rtol=0, atol=1e-6)
