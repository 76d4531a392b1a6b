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
