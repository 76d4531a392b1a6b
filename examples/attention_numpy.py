"""Causal self-attention with rotary positions in NumPy: one head or several.

`attention_torch.py` and `attention_flax.py` are the same in PyTorch and Flax NNX. Run: `python attention_numpy.py`.
"""

import numpy as np
from einops import rearrange

from rope_xp import RotaryEmbedding


class SelfAttention:
    """Attention with given weights: `weights` holds wq, wk, wv and wo, each (dim, dim), used as ``x @ w``."""

    def __init__(self, weights, num_heads):
        self.weights = weights
        self.num_heads = num_heads
        self.rope = RotaryEmbedding(head_dim=len(weights["wq"]) // num_heads, layout="half", base=10_000.0)

    def __call__(self, x, positions=None):
        """Attend over x, (batch, seq, dim); positions are (seq) or (batch, seq), by default 0, 1, 2, ..."""
        q, k, v = (
            rearrange(x @ self.weights[name], "batch seq (heads dim) -> batch seq heads dim", heads=self.num_heads)
            for name in ("wq", "wk", "wv")
        )
        q, k = self.rope(q, k, positions=positions, seq_dim=1)
        scores = np.einsum("bqhd,bkhd->bhqk", q, k) / self.rope.head_dim**0.5
        causal = np.tri(x.shape[1], dtype=bool)
        scores = np.where(causal, scores, -np.inf)
        probabilities = np.exp(scores - scores.max(axis=-1, keepdims=True))
        probabilities /= probabilities.sum(axis=-1, keepdims=True)
        y = np.einsum("bhqk,bkhd->bqhd", probabilities, v)
        return rearrange(y, "batch seq heads dim -> batch seq (heads dim)") @ self.weights["wo"]


def main():
    random = np.random.default_rng(0)
    dim, shift = 64, 100_000
    weights = {f"w{c}": random.standard_normal((dim, dim), dtype=np.float32) / dim**0.5 for c in "qkvo"}
    x = random.standard_normal((2, 16, dim), dtype=np.float32)
    changes = {}
    for num_heads in (1, 4):
        attention = SelfAttention(weights, num_heads)
        y = attention(x)
        changes[num_heads] = float(np.abs(attention(x, positions=np.arange(16) + shift) - y).max())
        print(f"heads: {num_heads}  output: {y.shape}  change when all move by {shift:,}: {changes[num_heads]:.1e}")
    return changes


if __name__ == "__main__":
    main()
