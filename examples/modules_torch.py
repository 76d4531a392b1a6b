"""Rotary embeddings as PyTorch modules, in both pairings: the results of rotary-embedding-torch and transformers; and a
replacement for the module of torchtune.

Run: `python modules_torch.py`.
"""

import torch
from einops import rearrange
from torch import nn

from rope_xp import RotaryEmbedding


class RoPEPositionEmbedding(nn.Module):
    """Rotate x, (batch, seq, dim) or (batch, seq, heads, dim), at positions 0, 1, 2, ... or those given.

    Neighbouring channels form a pair, as in rotary-embedding-torch. No table is stored, so positions have no limit:
    `max_len` is that of the tokens of one call.
    """

    layout = "interleaved"

    def __init__(self, dim, max_len, base=10_000.0):
        super().__init__()
        self.max_len = max_len
        self.rope = RotaryEmbedding(head_dim=dim, layout=self.layout, base=base)

    def forward(self, x, positions=None):
        if x.shape[1] > self.max_len:
            raise ValueError(f"x must have at most max_len={self.max_len} tokens; got shape {(*x.shape,)}")
        return self.rope(x, positions=positions, seq_dim=1)


class HFRoPEPositionEmbedding(RoPEPositionEmbedding):
    """The same with channels dim/2 apart as a pair, as in Llama and Mistral of transformers."""

    layout = "half"


class RotaryPositionalEmbeddings(nn.Module):
    """torchtune's module: the same arguments, for x of (batch, seq, heads, dim) with neighbouring channels as a pair.

    `max_seq_len` is only there for the same signature: no table is kept, and no position is too large.
    """

    def __init__(self, dim, max_seq_len=4096, base=10_000):
        super().__init__()
        self.rope = RotaryEmbedding(head_dim=dim, layout="interleaved", base=base)

    def forward(self, x, *, input_pos=None):
        return self.rope(x, positions=input_pos, seq_dim=1)


def main():
    x = torch.randn(2, 16, 4, 64, generator=torch.Generator().manual_seed(0))
    y = RoPEPositionEmbedding(64, max_len=512)(x)
    reordered = rearrange(x, "... (pairs two) -> ... (two pairs)", two=2)
    y_half = HFRoPEPositionEmbedding(64, max_len=512)(reordered)
    difference = float((rearrange(y_half, "... (two pairs) -> ... (pairs two)", two=2) - y).abs().max())
    print(f"output: {(*y.shape,)}")
    print(f"difference between the pairings, after reordering channels: {difference}")
    return difference


if __name__ == "__main__":
    main()
