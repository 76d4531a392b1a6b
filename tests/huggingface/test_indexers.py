"""The indexers of sparse attention: transformers' own classes rotate keys as `from_config(part="indexer")` does."""

# pyright: reportMissingImports=false

import importlib
import inspect

import numpy as np
import pytest
import torch
import transformers
from configs import ROWS
from torch import nn

from rope_xp import from_config

WIDTH = 96  # not the default, which is 128
# Positions below 64: float32 frequencies have an error of 2**-22, so phases of at most 64 * 2**-22 = 2e-5.
LENGTH, TOLERANCE = 64, 1e-4
YARN = {"rope_type": "yarn", "rope_theta": 5e4, "factor": 4.0, "original_max_position_embeddings": 32}
DEEPSEEK = YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}
LATENT = {"hidden_size": WIDTH, "q_lora_rank": WIDTH, "index_head_dim": WIDTH, "num_hidden_layers": 4}
HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
MINIMAX = {"hidden_size": WIDTH, "index_head_dim": WIDTH, "num_hidden_layers": 2, "rope_parameters": HALF}
MINIMAX |= {"layer_types": ["full_attention", "minimax_m3_sparse"]}
# The class, the folder of its module, the changes of its config, and the layer.
CASES = {
    "DeepSeek-V3.2": ("DeepseekV32", LATENT | {"rope_parameters": DEEPSEEK}, 0),
    "DeepSeek-V3.2, another width": ("DeepseekV32", LATENT | {"qk_rope_head_dim": 32}, 0),
    "GLM-5": ("GlmMoeDsa", LATENT, 0),
    "GLM-5, YaRN": ("GlmMoeDsa", LATENT | {"rope_parameters": YARN}, 0),
    "A.X-K2": ("AXK2", LATENT | {"rope_parameters": YARN}, 0),
    "HY-V4": ("HYV4", LATENT, 0),
    "MiniMax-M3": ("MiniMaxM3VLText", MINIMAX, 1),
}


class Same(nn.Identity):
    """A projection or a norm that changes nothing."""

    def __init__(self):
        super().__init__()
        self.weight = torch.zeros(1)


class Cache:
    """It keeps the keys of an indexer."""

    def __init__(self):
        self.layers = [self] * 4

    def update_indexer(self, keys, layer):
        self.keys = keys
        return keys

    def update_index(self, keys):
        self.keys = keys[:, 0]
        return keys


def keys_of(module, name, config, layer, x):
    """The keys that an indexer caches if its projections change nothing."""
    indexer = getattr(module, f"{name}Indexer")(config, layer)
    tables = getattr(module, f"{name}RotaryEmbedding")(config)
    for each in ("wk", "k_norm", "k_proj"):
        if hasattr(indexer, each):
            setattr(indexer, each, Same())
    positions, cache = torch.arange(LENGTH)[None], Cache()
    mask = torch.zeros(1, 1, LENGTH, LENGTH)
    given = {"q_resid": x, "attention_mask": mask[:, 0], "position_ids": positions, "past_key_values": cache}
    accepted = inspect.signature(indexer.forward).parameters
    given = {key: value for key, value in given.items() if key in accepted}
    with torch.no_grad():
        indexer(x, position_embeddings=tables(x, positions), **given)
    return cache.keys[0].numpy()


@pytest.mark.parametrize("case", CASES)
def test_keys_of_the_indexer_are_rotated_as_by_the_class(case):
    name, changes, layer = CASES[case]
    config = getattr(transformers, f"{name}Config")(**changes)
    module = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    x = np.random.default_rng(0).uniform(-1.0, 1.0, (LENGTH, WIDTH)).astype(np.float32)
    rope = from_config(config, part="indexer", layer=layer)
    assert rope is not None
    found = keys_of(module, name.removesuffix("Text"), config, layer, torch.asarray(x)[None])
    np.testing.assert_allclose(found, rope(x, seq_dim=0), atol=TOLERANCE)
    other = "half" if rope.layout != "half" else "interleaved_to_half"
    assert np.abs(found - rope.replace(layout=other)(x, seq_dim=0)).max() > 0.5  # the layout matters


def test_layers_with_an_indexer_are_those_of_the_class():
    compared = set()
    for config, layers in ((row["config"], row["layers"]) for row in ROWS["indexers"] if "layers" in row):
        if config["model_type"] in ("glm_moe_dsa", "hy_v4"):  # the classes that have types
            keys = {key: value for key, value in config.items() if key != "model_type"}
            types = transformers.CONFIG_MAPPING[config["model_type"]](**keys).indexer_types
            assert "".join("01"[each == "full"] for each in types) == layers, config
            compared.add(config["model_type"])
    assert len(compared) == 2


def test_keys_of_qwen4_and_of_deepseek_v4_are_rotated_as_by_their_functions():
    """Their keys are pooled first, so queries are compared: those of the functions that the classes call."""
    x = np.random.default_rng(0).uniform(-1.0, 1.0, (LENGTH, WIDTH)).astype(np.float32)
    q, positions = torch.asarray(x)[None, None], torch.arange(LENGTH)[None]
    v4 = transformers.DeepseekV4Config(index_head_dim=WIDTH, num_hidden_layers=4)
    module = importlib.import_module("transformers.models.deepseek_v4.modeling_deepseek_v4")
    tables = module.DeepseekV4RotaryEmbedding(v4)(q, positions, layer_type=module.DeepseekV4Indexer.rope_layer_type)
    found = module.apply_rotary_pos_emb(q, *tables)[0, 0].numpy()
    rope = from_config(v4, part="indexer")
    np.testing.assert_allclose(found, rope(x, seq_dim=0), atol=TOLERANCE)
    sizes = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_budget": 16, "indexer_compress_ratio": 4}
    block = {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]}
    qwen4 = transformers.Qwen4ExpTextConfig(indexer_head_dim=WIDTH, rope_parameters=block, **sizes)
    module = importlib.import_module("transformers.models.qwen4_exp.modeling_qwen4_exp")
    tables = module.Qwen4ExpTextRotaryEmbedding(qwen4)(q, torch.arange(LENGTH).expand(3, 1, -1))
    found = module.apply_rotary_pos_emb(q, cos=tables[0], sin=tables[1])[0, 0].numpy()
    rope = from_config(qwen4, part="indexer")
    assert (rope.head_dim, rope.rotary_dim) == (WIDTH, 64)
    np.testing.assert_allclose(found, rope(x, positions=np.tile(np.arange(LENGTH), (3, 1)), seq_dim=0), atol=TOLERANCE)
