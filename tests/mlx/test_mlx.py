"""What MLX adds: its own rotary embedding, to be equal to."""

import mlx.core as mx
import numpy as np
import pytest

from rope_xp import RotaryEmbedding, positions


@pytest.mark.parametrize("layout, traditional", [("half", False), ("interleaved", True)])
def test_equals_mlx_fast_rope(layout, traditional):
    x = mx.array(np.random.default_rng(0).standard_normal((2, 3, 5, 16)).astype(np.float32))  # batch heads seq dim
    theirs = mx.fast.rope(x, 12, traditional=traditional, base=500.0, scale=1.0, offset=7)
    rope = RotaryEmbedding(head_dim=16, layout=layout, base=500.0, rotary_dim=12)
    ours = rope(x, positions=positions.consecutive(5, 7, like=x), seq_dim=2)
    np.testing.assert_allclose(np.array(ours), np.array(theirs), rtol=0, atol=5e-5)


def test_compiles_and_differentiates():
    rope = RotaryEmbedding(head_dim=16, layout="half", base=500.0)
    x, g = (mx.array(np.random.default_rng(seed).standard_normal((5, 3, 16)).astype(np.float32)) for seed in (0, 1))
    call = lambda x: rope(x, seq_dim=0)  # noqa: E731
    np.testing.assert_allclose(np.array(mx.compile(call)(x)), np.array(call(x)), rtol=0, atol=1e-6)
    _, (gradient,) = mx.vjp(call, [x], [g])
    sincos = rope.sincos(mx.arange(5))
    np.testing.assert_allclose(
        np.array(gradient), np.array(rope.rotate(g, sincos, seq_dim=0, inverse=True)), rtol=0, atol=1e-6
    )
