"""Checkpoints that transformers writes."""

# pyright: reportMissingImports=false

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from sentences import write_files
from tiny_models.models import FAMILIES, build
from transformers import AutoConfig, LlamaForCausalLM

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


# Models whose layers or parts have projections of several kinds, with the sizes of their default configs.
LARGE = {
    "kimi_linear": "KimiLinearForCausalLM",  # layers with linear attention, and latent ones
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "olmo2": "Olmo2ForCausalLM",  # a norm of all heads
    "zamba2": "Zamba2ForCausalLM",  # projections of twice the hidden size
    "gpt_neox": "GPTNeoXForCausalLM",
    "evolla": "EvollaForProteinText2Text",  # an encoder of proteins
    "pi0": "PI0ForConditionalGeneration",  # a second decoder, for actions
}


@pytest.mark.parametrize("model_type", LARGE)
def test_shapes_of_real_size_agree_with_their_config(tmp_path, model_type):
    config = AutoConfig.for_model(model_type)
    with torch.device("meta"):
        model = getattr(transformers, LARGE[model_type])(config)
    header, end = {}, 0
    for name, tensor in model.state_dict().items():
        begin, end = end, end + 2 * tensor.numel()
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    write_files(tmp_path, {"model.safetensors": {"header": header, "size": end}})  # whose tensors are a hole
    config.save_pretrained(tmp_path)
    assert not [each for each in identify_checkpoint(tmp_path).warnings if " rows" in each or " columns" in each]
