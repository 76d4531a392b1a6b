"""Checkpoints that MLX writes: quantised weights, and weights with the mark of MLX in their header."""

import json

import mlx.core as mx
import pytest

from rope_xp import identify_checkpoint

CONFIG = dict(model_type="llama", hidden_size=64, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=1)


@pytest.mark.parametrize("quantised", [True, False])
def test_identify_checkpoint(tmp_path, quantised):
    weights = {}
    for name, rows in (("q_proj", 64), ("k_proj", 32)):
        inner = f"model.layers.0.self_attn.{name}"
        parts = ("weight", "scales", "biases") if quantised else ("weight",)
        weight = mx.zeros((rows, 64))
        tensors = mx.quantize(weight, group_size=32, bits=4) if quantised else (weight,)
        weights |= {f"{inner}.{part}": tensor for part, tensor in zip(parts, tensors)}
    mx.save_safetensors(str(tmp_path / "model.safetensors"), weights, metadata={} if quantised else {"format": "mlx"})
    config = CONFIG | ({"quantization": {"group_size": 32, "bits": 4}} if quantised else {})
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = identify_checkpoint(tmp_path)
    assert (found.format, found.layout, found.heads, found.kv_heads, found.head_dim) == ("MLX", "half", 4, 2, 16)
    assert (
        "rows of k: 32",
        "2 heads of 16 channels, as model.layers.0.self_attn.k_proj.weight has",
    ) in found.conclusions
    assert not found.warnings
