"""Causal self-attention with rotary positions in Flax NNX: one head or several.

`attention_numpy.py` and `attention_torch.py` are the same in NumPy and PyTorch. Run: `python attention_flax.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange
from flax import nnx

from rope_xp import RotaryEmbedding


class SelfAttention(nnx.Module):
    def __init__(self, dim, num_heads, *, rngs):
        self.num_heads = num_heads
        self.rope = RotaryEmbedding(head_dim=dim // num_heads, layout="half", base=10_000.0)
        self.wq, self.wk, self.wv, self.wo = (nnx.Linear(dim, dim, use_bias=False, rngs=rngs) for _ in range(4))

    @classmethod
    def from_weights(cls, weights, num_heads):
        """Attention with NumPy weights wq, wk, wv and wo, each (dim, dim), used as ``x @ w``."""
        attention = cls(len(weights["wq"]), num_heads, rngs=nnx.Rngs(0))
        for name, w in weights.items():
            getattr(attention, name).kernel[...] = jnp.asarray(w)
        return attention

    @nnx.jit
    def __call__(self, x, positions=None):
        """Attend over x, (batch, seq, dim); positions are (seq) or (batch, seq), by default 0, 1, 2, ..."""
        q, k, v = (
            rearrange(linear(x), "batch seq (heads dim) -> batch seq heads dim", heads=self.num_heads)
            for linear in (self.wq, self.wk, self.wv)
        )
        q, k = self.rope(q, k, positions=positions, seq_dim=1)
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        return self.wo(rearrange(y, "batch seq heads dim -> batch seq (heads dim)"))


def main():
    random = np.random.default_rng(0)
    dim, shift = 64, 100_000
    weights = {f"w{c}": random.standard_normal((dim, dim), dtype=np.float32) / dim**0.5 for c in "qkvo"}
    x = jnp.asarray(random.standard_normal((2, 16, dim), dtype=np.float32))
    changes = {}
    for num_heads in (1, 4):
        attention = SelfAttention.from_weights(weights, num_heads)
        y = attention(x)
        changes[num_heads] = float(jnp.abs(attention(x, positions=jnp.arange(16) + shift) - y).max())
        print(f"heads: {num_heads}  output: {y.shape}  change when all move by {shift:,}: {changes[num_heads]:.1e}")
    return changes


if __name__ == "__main__":
    main()
