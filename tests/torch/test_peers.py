"""Equal to the packages people use on PyTorch, at small positions, where float32 phases are still right."""

import pytest
import torch
from peers import random
from rotary_embedding_torch import RotaryEmbedding as LucidRotaryEmbedding
from transformers import LlamaConfig
from transformers.models.llama import modeling_llama

from rope_xp import RotaryEmbedding, apply_rotary_pos_emb, fixed_pos_embedding, positions

ATOL = 5e-5


def test_rotary_embedding_torch():
    """Of a part of the channels, from an offset on; and by the notebook's functions."""
    x = random(2, 3, 50, 64)  # batch heads seq dim
    rope = RotaryEmbedding(head_dim=64, layout="interleaved", base=500.0, rotary_dim=32)
    for offset in (0, 37):
        theirs = LucidRotaryEmbedding(dim=32, theta=500.0).rotate_queries_or_keys(x, offset=offset)
        ours = rope(x, positions=positions.consecutive(50, offset, like=x), seq_dim=2)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=ATOL)
        sincos = fixed_pos_embedding(x[..., :32], 2, base=500.0, offset=offset)
        torch.testing.assert_close(apply_rotary_pos_emb(x, sincos, seq_dim=2), theirs, rtol=0, atol=ATOL)


def flash_attention(x, cos, sin, interleaved=False, offsets=None, conjugate=False):
    """What flash-attn's apply_rotary_emb computes, token by token, for x of batch seq heads dim."""
    y, pairs = x.clone(), cos.shape[-1]
    one = torch.arange(pairs) * (2 if interleaved else 1)
    other = one + (1 if interleaved else pairs)
    for row in range(x.shape[0]):
        for token in range(x.shape[1]):
            where = token + (0 if offsets is None else int(offsets[row]))
            c, s = cos[where], -sin[where] if conjugate else sin[where]
            a, b = x[row, token][:, one], x[row, token][:, other]
            y[row, token, :, one], y[row, token, :, other] = a * c - b * s, a * s + b * c
    return y


@pytest.mark.parametrize("interleaved", [False, True])
def test_flash_attention(interleaved):
    x, layout = random(2, 5, 3, 16), "interleaved" if interleaved else "half"
    rope = RotaryEmbedding(head_dim=16, layout=layout, base=500.0, rotary_dim=12)
    sin, cos = rope.sincos(torch.arange(20))
    for conjugate in (False, True):
        theirs = flash_attention(x, cos, sin, interleaved, conjugate=conjugate)
        ours = apply_rotary_pos_emb(x, (sin[:5], cos[:5]), layout=layout, seq_dim=1, inverse=conjugate)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    offsets = torch.tensor([3, 11])
    ours = rope(x, positions=positions.consecutive(5, offsets), seq_dim=1)
    torch.testing.assert_close(ours, flash_attention(x, cos, sin, interleaved, offsets), rtol=0, atol=1e-6)
    cu_seqlens = torch.tensor([0, 3, 5], dtype=torch.int32)
    packed = rope(x, positions=positions.from_cu_seqlens(cu_seqlens, 5), seq_dim=1)
    alone = torch.cat([flash_attention(part, cos, sin, interleaved) for part in x.split([3, 2], dim=1)], dim=1)
    torch.testing.assert_close(packed, alone, rtol=0, atol=1e-6)


LLAMA_3 = {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0}
LLAMA_3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize("position", [37, 20_000, 100_000])
def test_llama_with_scaling_by_its_own_frequencies(position):
    config = LlamaConfig(hidden_size=256, num_attention_heads=4, head_dim=64, rope_parameters=LLAMA_3)
    module, where = modeling_llama.LlamaRotaryEmbedding(config), torch.tensor([[position]])
    cos, sin = module(torch.zeros(1), where)
    options = {"inv_freq": module.inv_freq.tolist(), "attention_factor": module.attention_scaling}
    ours = RotaryEmbedding(head_dim=64, layout="half", phase="float32", **options).sincos(where)
    assert torch.equal(ours.sin, sin[..., :32]) and torch.equal(ours.cos, cos[..., :32])
