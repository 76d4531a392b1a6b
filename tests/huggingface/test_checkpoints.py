"""Checkpoints that transformers writes."""

# pyright: reportMissingImports=false

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models.models import FAMILIES, build
from transformers import LlamaForCausalLM

from rope_xp import identify_checkpoint

# Families with different names of tensors, or whose layers differ: the layout, key-value heads, and head_dim.
FOUND = {
    "Llama": ("half", 2, 16),
    "Cohere": ("interleaved", 2, 16),
    "Phi3": ("half", 2, 16),
    "GPTNeoX": ("half", 4, 16),
    "Falcon": ("half", 1, 16),
    "GPTJ": ("interleaved", 4, 16),
    "Gemma3": ("half", 2, 16),
    "ModernBert": ("half", 4, 16),
    "MiniMax": ("half", 2, 16),
    "Qwen3Next": ("half", 2, 16),
    "DeepseekV3": ("interleaved_to_half", 4, 24),
    "Qwen2VL": ("half", 2, 16),
}


@pytest.mark.parametrize("name", FOUND)
def test_families(tmp_path, name):
    build(FAMILIES[name]).save_pretrained(tmp_path)
    found = identify_checkpoint(tmp_path)
    assert (found.layout, found.kv_heads, found.head_dim) == FOUND[name]
    assert (found.format, found.heads, found.hidden_size, found.layers) == ("Hugging Face", 4, 64, 2)
    assert not found.warnings
    assert (found.embedding is None) == (name in ("Gemma3", "ModernBert"))  # whose layers differ


@pytest.mark.parametrize("name", ["model.rotary_emb.inv_freq", "model.layers.0.self_attn.rotary_emb.inv_freq"])
def test_transformers_ignores_old_buffers(tmp_path, name):
    """As the warning about a buffer says."""
    model = build(FAMILIES["Llama"])
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    buffer = 777.0 ** -(torch.arange(8) / 8)
    save_file({**load_file(path), name: buffer}, path, {"format": "pt"})
    found = identify_checkpoint(tmp_path)
    assert found.inv_freq_base == 777.0 and "transformers 5 ignores the buffer" in found.warnings[0]
    assert torch.equal(
        LlamaForCausalLM.from_pretrained(tmp_path).model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq
    )
