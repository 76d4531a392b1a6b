"""Causal self-attention with rotary positions in PyTorch: one head or several.

`attention_numpy.py` and `attention_flax.py` are the same in NumPy and Flax NNX. Run: `python attention_torch.py`.
"""

import numpy as np
import torch
from einops import rearrange
from torch import nn
from torch.nn import functional as F

from rope_xp import RotaryEmbedding


class SelfAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.rope = RotaryEmbedding(head_dim=dim // num_heads, layout="half", base=10_000.0)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    @classmethod
    def from_weights(cls, weights, num_heads):
        """Attention with NumPy weights wq, wk, wv and wo, each (dim, dim), used as ``x @ w``."""
        attention = cls(len(weights["wq"]), num_heads)
        attention.load_state_dict({f"{name}.weight": torch.asarray(w).T for name, w in weights.items()})
        return attention

    def forward(self, x, positions=None):
        """Attend over x, (batch, seq, dim); positions are (seq) or (batch, seq), by default 0, 1, 2, ..."""
        q, k, v = (
            rearrange(linear(x), "batch seq (heads dim) -> batch heads seq dim", heads=self.num_heads)
            for linear in (self.wq, self.wk, self.wv)
        )
        q, k = self.rope(q, k, positions=positions, seq_dim=2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(rearrange(y, "batch heads seq dim -> batch seq (heads dim)"))


@torch.inference_mode()
def main():
    random = np.random.default_rng(0)
    dim, shift = 64, 100_000
    weights = {f"w{c}": random.standard_normal((dim, dim), dtype=np.float32) / dim**0.5 for c in "qkvo"}
    x = torch.asarray(random.standard_normal((2, 16, dim), dtype=np.float32))
    changes = {}
    for num_heads in (1, 4):
        attention = SelfAttention.from_weights(weights, num_heads)
        y = attention(x)
        changes[num_heads] = float((attention(x, positions=torch.arange(16) + shift) - y).abs().max())
        print(f"heads: {num_heads}  output: {(*y.shape,)}  change when all move by {shift:,}: {changes[num_heads]:.1e}")
    return changes


if __name__ == "__main__":
    main()
