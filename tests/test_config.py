"""from_config: every spelling of one meaning, upstream's mistakes on request, and errors that name the key."""

import ast
import json
import re
from dataclasses import replace
from math import log, pi, sqrt
from pathlib import Path

import numpy as np
import pytest

from rope_xp import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    MixedNTKScaling,
    NTKScaling,
    ProportionalScaling,
    RotaryEmbedding,
    Sections,
    YarnScaling,
    from_config,
)
from rope_xp.config import families
from rope_xp.config.families import FAMILIES, PARTS
from rope_xp.frequencies import geometric

LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 8192}
YARN = {"factor": 4.0, "original_max_position_embeddings": 2048}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 2048}
LONG = {
    "short_factor": [1.0] * 64,
    "long_factor": [4.0] * 64,
    "original_max_position_embeddings": 2048,
    "factor": 4.0,
}
GEMMA3 = {
    "model_type": "gemma3_text",
    "head_dim": 16,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "num_hidden_layers": 12,
}


def llama(**keys):
    return {**LLAMA, "rope_theta": 5e5, **keys}


@pytest.mark.parametrize(
    "block, scaling",
    [
        ({"rope_type": "linear", "factor": 4.0}, LinearScaling(factor=4.0)),
        ({"rope_type": "yarn", **YARN}, YarnScaling(**YARN)),
        ({"rope_type": "yarn", **YARN, "truncate": False}, YarnScaling(**YARN, truncate=False)),
        ({"rope_type": "llama3", **LLAMA3}, Llama3Scaling(**LLAMA3)),
        ({"rope_type": "longrope", **LONG}, LongRopeScaling(**LONG)),
        ({"rope_type": "dynamic", "factor": 2.0}, DynamicNTKScaling(factor=2.0, max_position_embeddings=8192)),
        ({"rope_type": "dynamic", "alpha": 50.0}, NTKScaling(factor=50.0)),
        ({"rope_type": "ntk", "factor": 4.0, "mixed_b": 0.6}, MixedNTKScaling(factor=4.0, mixed_b=0.6)),
        (
            {"rope_type": "proportional", "partial_rotary_factor": 0.5},
            ProportionalScaling(partial_rotary_factor=0.5),
        ),
        ({"rope_type": "default"}, None),
    ],
    ids=lambda value: value["rope_type"] if isinstance(value, dict) else "",
)
def test_one_meaning_in_every_spelling(block, scaling):
    expected = RotaryEmbedding(head_dim=128, layout="half", base=5e5, scaling=scaling)
    old = {"type": block["rope_type"], **{key: value for key, value in block.items() if key != "rope_type"}}
    spellings = [
        llama(rope_scaling=block),
        llama(rope_scaling=old),
        {**LLAMA, "rope_scaling": {**block, "rope_theta": 5e5}},
        {**LLAMA, "rope_parameters": {**block, "rope_theta": 5e5}},
        {**LLAMA, "rope_parameters": {**old, "rope_theta": 5e5}},
        {
            **LLAMA,
            "layer_types": ["full_attention"],
            "rope_parameters": {"full_attention": {**block, "rope_theta": 5e5}},
        },
    ]
    for config in spellings[:-1]:
        assert from_config(config) == expected
    for choice in ({"layer": 0}, {"layer_type": "full_attention"}):
        assert from_config(spellings[-1], **choice) == expected


class Config:
    def to_dict(self):
        return llama()


def test_a_path_a_mapping_or_an_object(tmp_path):
    expected = RotaryEmbedding(head_dim=128, layout="half", base=5e5)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(llama()))
    assert [from_config(given) for given in (path, str(path), llama(), Config())] == [expected] * 4


def test_the_length_is_said_up_front():
    config = llama(rope_scaling={"rope_type": "longrope", **LONG})
    assert [from_config(config, seq_len=n).scaling.is_long for n in (None, 2048, 2049)] == [False, False, True]
    dynamic = llama(rope_scaling={"type": "dynamic", "factor": 2.0})
    assert from_config(dynamic, seq_len=8192).inv_freq == from_config(llama()).inv_freq
    grown = from_config(dynamic, seq_len=16384).inv_freq
    assert grown == geometric(5e5 * 3.0 ** (128 / 126), 128)


def test_layout_overrides_the_family_and_admits_unknown_ones():
    assert from_config(llama(), layout="interleaved").layout == "interleaved"
    unknown = {**llama(), "model_type": "my_own_model"}
    assert from_config(unknown, layout="half") == from_config(llama())
    sections = {"mrope_section": [24, 20, 20], "mrope_interleaved": True, "rope_type": "default"}
    rope = from_config({**unknown, "rope_scaling": sections}, layout="half")
    assert rope.sections == Sections((24, 20, 20), order="interleaved")
    with pytest.raises(ValueError, match="rope_theta, the base, must be given"):
        from_config({**LLAMA, "model_type": "my_own_model"}, layout="half")
    latent = {"model_type": "deepseek_v3", "qk_rope_head_dim": 64, "rope_interleave": False}
    assert from_config(latent).layout == "half"
    assert from_config(latent, layout="interleaved").layout == "interleaved"


def test_layers_differ():
    linear = LinearScaling(factor=8.0)
    full = RotaryEmbedding(head_dim=16, layout="half", base=1e6, scaling=linear)
    sliding = RotaryEmbedding(head_dim=16, layout="half", base=1e4)
    assert [from_config(GEMMA3, layer=layer) for layer in (4, 5, 6)] == [sliding, full, sliding]
    assert from_config(GEMMA3, layer_type="full_attention") == full
    nested = {
        "model_type": "gemma3_text",
        "head_dim": 16,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"full_attention": full.to_config(), "sliding_attention": sliding.to_config()},
    }
    assert [from_config(nested, layer=layer) for layer in (0, 1)] == [sliding, full]
    nested["rope_parameters"]["full_attention"] = None
    assert from_config(nested, layer=1) is None


@pytest.mark.parametrize(
    "config, rotated",
    [
        ({"model_type": "cohere2", "num_hidden_layers": 5}, [1, 1, 1, 0, 1]),
        ({"model_type": "smollm3", "num_hidden_layers": 5}, [1, 1, 1, 0, 1]),
        ({"model_type": "smollm3", "no_rope_layers": [0, 1, 0]}, [0, 1, 0]),
        ({"model_type": "llama4_text", "no_rope_layers": [], "no_rope_layer_interval": 2}, [1, 0, 1, 0]),
        ({"model_type": "exaone4", "sliding_window": 64, "num_hidden_layers": 4}, [1, 1, 1, 0]),
        ({"model_type": "exaone4", "sliding_window": None, "num_hidden_layers": 4}, [1, 1, 1, 1]),
        ({"model_type": "exaone4", "sliding_window_pattern": "LLG", "num_hidden_layers": 6}, [1, 1, 0, 1, 1, 0]),
        ({"model_type": "qwen3_next", "num_hidden_layers": 5}, [0, 0, 0, 1, 0]),
        ({"model_type": "minimax", "num_hidden_layers": 4}, [1, 0, 1, 0]),
        ({"model_type": "bamba", "attn_layer_indices": [1], "num_hidden_layers": 3}, [0, 1, 0]),
        ({"model_type": "lfm2", "full_attn_idxs": [0, 2], "num_hidden_layers": 3}, [1, 0, 1]),
        ({"model_type": "recurrent_gemma", "num_hidden_layers": 4}, [0, 0, 1, 0]),
        ({"model_type": "granite_swa", "layer_rope_theta": [1e4, 0, 500.0]}, [1, 0, 1]),
        ({"model_type": "muse_glimmer_text", "num_hidden_layers": 5}, [0, 1, 1, 1, 0]),
        ({"model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"]}, [0, 1]),
        ({"model_type": "falcon", "alibi": True}, [0]),
        ({"model_type": "zamba2", "use_mem_rope": True}, [1]),
        ({"model_type": "esm"}, [0]),
        ({"model_type": "esm", "position_embedding_type": "rotary"}, [1]),
        (
            {
                "model_type": "cohere2_moe",
                "layer_types": ["full_attention"] * 2 + ["sliding_attention"],
                "mlp_layer_types": ["dense", "sparse", "sparse"],
            },
            [1, 0, 1],
        ),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_layers_without_rotation_are_none(config, rotated):
    config = {"head_dim": 16, "attention_head_dim": 16, "hidden_size": 64, "num_attention_heads": 4, **config}
    assert [from_config(config, layer=layer) is not None for layer in range(len(rotated))] == [bool(r) for r in rotated]


def test_bases_of_layers():
    config = {"model_type": "granite_swa", "head_dim": 16, "layer_rope_theta": [1e4, 0, 500.0]}
    assert [from_config(config, layer=layer).base for layer in (0, 2)] == [1e4, 500.0]
    with pytest.raises(ValueError, match="layer must be given, as bases differ"):
        from_config(config)


@pytest.mark.parametrize("part", ["text", "vision", "talker", "dit", "thinker_config"])
def test_parts_of_a_composite_config(part):
    config = {
        "model_type": "qwen2_5_omni",
        "thinker_config": {
            "model_type": "qwen2_5_omni_thinker",
            "text_config": {"hidden_size": 1024, "num_attention_heads": 8},
            "vision_config": {"hidden_size": 320, "num_heads": 4},
        },
        "talker_config": {"model_type": "qwen2_5_omni_talker", "hidden_size": 1024, "num_attention_heads": 8},
        "token2wav_config": {"dit_config": {"model_type": "qwen2_5_omni_dit"}},
    }
    expected = {
        "text": (128, 3, "half"),
        "vision": (80, 2, "half"),
        "talker": (128, 3, "half"),
        "dit": (64, 1, "interleaved_to_half"),
    }
    if part == "thinker_config":
        with pytest.raises(
            ValueError, match="or part be one of text_config, vision_config; got 'qwen2_5_omni_thinker'"
        ):
            from_config(config, part=part)
        return
    rope = from_config(config, part=part)
    assert (rope.head_dim, rope.axes, rope.layout) == expected[part]
    assert from_config(config) == from_config(config, part="text")


def test_the_table_is_whole():
    """Every part of a composite has a row, and every row makes an embedding of its own defaults or asks for a width."""
    missing = {model_type for parts in PARTS.values() for _, model_type in parts.values()} - set(FAMILIES)
    assert not missing
    enough = {
        "hidden_size": 768,
        "num_attention_heads": 6,
        "num_heads": 6,
        "attention_head_dim": 128,
        "memory_attention_hidden_size": 256,
        "memory_attention_downsample_rate": 1,
        "memory_attention_num_attention_heads": 1,
        "embed_dim": 768,
        "n_embd": 768,
        "n_head": 6,
        "speech_encoder_attention_heads": 6,
        "max_position_embeddings": 8192,
    }
    for model_type, family in FAMILIES.items():
        sections = {"rope_parameters": {"mrope_section": [16, 16, 16, 16]}} if model_type == "hunyuan_vl_text" else {}
        if family.sizes is not None:
            width = 2 * sum(family.sizes)
            sections = {"rope_parameters": {"partial_rotary_factor": 0.5}, "head_dim": 2 * width}
            if family.by_layer:
                sections = {"head_dim": width}
        config = {"model_type": model_type, **enough, **sections}
        for label in family.by_layer or [None]:
            rope = from_config(config, layer_type=label)
            assert (rope is None) == (family.rotated_if is not None and family.rotated_if[1] != family.rotated_if[2])


# Frequencies that each family's block makes, written out for one that is unlike the others.
def test_what_upstream_writes_beside_the_block_gives_way_to_it():
    config = {"model_type": "qwen3_next", "head_dim": 256, "partial_rotary_factor": 0.25}
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    assert from_config(config).rotary_dim == 128


def test_widths_of_single_layers():
    config = {**llama(), "num_hidden_layers": 3, "per_layer_config": {"00": {"head_dim": 8}, "01": {"head_dim": 16}}}
    assert [from_config(config, layer=layer).head_dim for layer in range(3)] == [8, 16, 128]
    with pytest.raises(ValueError, match="layer must be given, as per_layer_config differs"):
        from_config(config)
    types = {**config, "layer_types": ["a", "b", "b"]}
    assert from_config(types, layer_type="a").head_dim == 8
    with pytest.raises(ValueError, match="layer must be given, as per_layer_config differs"):
        from_config(types, layer_type="b")


@pytest.mark.parametrize(
    "keys",
    [
        {"use_mrope": False},
        {"rope_interleaved": False},
        {"use_rotary_pos_emb": True},
        {"theta": 5e5},
        {"rope_percent": 1.0},
        {"rope_scaling": {"type": "yarn", **YARN, "original_max_position_embeddings": 2048.0}},
        {"dual_chunk_attention_config": {"chunk_size": 4096}},
        {"position_embedding_type": "rope"},
    ],
    ids=str,
)
def test_keys_that_real_configs_carry(keys):
    scaling = YarnScaling(**YARN) if "rope_scaling" in keys else None
    assert from_config(llama(**keys)) == RotaryEmbedding(head_dim=128, layout="half", base=5e5, scaling=scaling)


def test_what_is_meant_by_a_part():
    sub = {"hidden_size": 320, "num_heads": 4}
    config = {**LLAMA, "model_type": "qwen2_5_vl", "vision_config": sub}
    assert from_config(config, part="vision") == from_config(config, part="vision_config")
    assert from_config(LLAMA, part="text") == from_config(LLAMA)
    assert from_config(LLAMA, layer_type="full_attention") == from_config(LLAMA)
    flat = {"model_type": "colqwen2", "vlm_config": {**LLAMA, "model_type": "qwen2_vl", "vision_config": sub}}
    assert from_config(flat).axes == 3
    with pytest.raises(ValueError, match="keys of rotation must stand in the part"):
        from_config({"model_type": "llava", "text_config": llama(), "rope_theta": 7.0}, part="text")
    assert from_config({"model_type": "smollm3", "head_dim": 16, "no_rope_layers": [0, 0]}) is None


def test_keys_beside_a_part_may_say_the_same_in_other_words():
    inner = {"type": "default", "rope_type": "default", "mrope_section": [16, 24, 24]}
    text = {"hidden_size": 1024, "num_attention_heads": 8, "rope_scaling": inner}
    outer = {"rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}
    config = {"model_type": "qwen2_vl", "text_config": text, **outer}
    assert from_config(config) == from_config({"model_type": "qwen2_vl", "text_config": text})
    outer["rope_scaling"]["mrope_section"] = [24, 20, 20]
    with pytest.raises(ValueError, match="keys of rotation must stand in the part"):
        from_config({**config, **outer})


def test_numpy_ints_are_ints():
    config = {"model_type": "step3p5", "rope_theta": [1e4, 5e4], "layer_types": ["full_attention"] * 2}
    assert from_config(config, layer=np.int64(1)).base == 5e4


def test_every_family_has_one_row():
    tree = ast.parse(Path(families.__file__).read_text())
    (table,) = [node.value for node in tree.body if getattr(getattr(node, "target", None), "id", "") == "FAMILIES"]
    names = []
    for key, value in zip(table.keys, table.values, strict=True):
        names += [key.value] if key is not None else ast.literal_eval(value.args[0]).split()
    assert len(names) == len(set(names)) == len(FAMILIES)


def test_special_rules():
    hunyuan = {"model_type": "hunyuan_v1_dense", "head_dim": 128, "rope_theta": 1e4}
    hunyuan["rope_scaling"] = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "mscale": 1.0, "beta_fast": 32}
    assert from_config(hunyuan).inv_freq == geometric(1e4 * 1000.0 ** (128 / 126), 128)
    moe = {
        **LLAMA,
        "model_type": "phimoe",
        "rope_scaling": {"type": "longrope", **LONG, "short_mscale": 1.1, "long_mscale": 1.3},
    }
    assert [from_config(moe, seq_len=n).attention_factor for n in (None, 5000)] == [1.1, 1.3]
    assert from_config(moe, seq_len=5000).inv_freq[0] == 0.25
    su = {**LLAMA, "model_type": "phi3", "original_max_position_embeddings": 2048}
    su["rope_scaling"] = {"type": "su", "short_factor": [1.0] * 64, "long_factor": [4.0] * 64}
    assert from_config(su).attention_factor == sqrt(1 + log(4.0) / log(2048))
    assert from_config({**su, "rope_scaling": {**su["rope_scaling"], "type": "yarn"}}) == from_config(su)
    v4 = {
        "model_type": "deepseek_v4",
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "rope_theta": 1e4,
        "compress_rope_theta": 1.6e5,
    }
    v4["rope_scaling"] = {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536}
    v4["layer_types"] = ["sliding_attention", "compressed_sparse_attention"]
    main, compress = (from_config(v4, layer=layer) for layer in (0, 1))
    assert (main.first_channel, main.rotary_dim, main.base, main.scaling) == (448, 64, 1e4, None)
    assert (compress.base, compress.attention_factor, compress.scaling.factor) == (1.6e5, 1.0, 16.0)
    dino = from_config({"model_type": "dinov3_vit", "hidden_size": 64, "num_attention_heads": 4, "rope_theta": 100.0})
    assert dino.inv_freq == tuple(
        zip(*[(2 * pi * w, 0.0) for w in geometric(100.0, 8)] + [(0.0, 2 * pi * w) for w in geometric(100.0, 8)])
    )
    null = from_config(
        {**LLAMA, "model_type": "phi3", "max_position_embeddings": 8192, "original_max_position_embeddings": 4096}
    )
    assert null.scaling is None
    odd = from_config({**LLAMA, "head_dim": 42, "partial_rotary_factor": 0.5})
    assert (odd.rotary_dim, odd.inv_freq) == (22, geometric(1e4, 42)[::2])
    scaled = from_config(
        {**LLAMA, "head_dim": 42, "partial_rotary_factor": 0.5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    )
    assert scaled.inv_freq == tuple(w / 2.0 for w in odd.inv_freq)
    assert from_config({"model_type": "gptj", "n_embd": 4096, "n_head": 16}).rotary_dim == 64
    assert from_config({"model_type": "gptj", "n_embd": 4096, "n_head": 16, "rotary_dim": None}).rotary_dim == 256


@pytest.mark.parametrize("head_dim, share, width", [(128, 0.35, 44), (100, 0.29, 28)])
def test_a_partial_width_is_cut_off_not_rounded(head_dim, share, width):
    """44.8 channels, and 29 that float64 makes 28.999999999999996: `int(head_dim * share)` in transformers."""
    config = {**LLAMA, "head_dim": head_dim, "partial_rotary_factor": share}
    assert from_config(config).rotary_dim == width
    assert from_config({**config, "rotary_dim": width}).rotary_dim == width
    with pytest.raises(ValueError, match=f"the width that turns must be said once; got {width + 1} channels"):
        from_config({**config, "rotary_dim": width + 1})


def test_a_base_of_null_means_not_rotated_where_the_family_says_so():
    config = {
        "model_type": "olmo_hybrid",
        "head_dim": 64,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
    }
    assert from_config(config).base == 5e5
    config["rope_parameters"]["rope_theta"] = None
    assert from_config(config) is None
    assert from_config({**config, "model_type": "llama"}).base == 1e4


def test_layers_counted_from_the_end_need_their_number():
    """Without a list, each fourth layer from the last on is not rotated."""
    config = {"model_type": "muse_glimmer_text", "rope_theta": 1e4}
    rotated = [from_config({**config, "num_hidden_layers": 6}, layer=layer) is not None for layer in range(6)]
    assert rotated == [True, False, True, True, True, False]
    assert from_config(config).base == 1e4
    with pytest.raises(
        ValueError, match="num_hidden_layers must be given where layers are counted from the end; got None"
    ):
        from_config(config, layer=0)


# What transformers 5.18 does that is a mistake: config, choice, what is right, what upstream makes of it.
HUNYUAN = {"model_type": "hunyuan_v1_dense", "head_dim": 128, "max_position_embeddings": 8192}
MISTAKES = {
    "alpha is forgotten": (
        {**HUNYUAN, "rope_scaling": {"type": "dynamic", "alpha": 50.0, "factor": 2.0}},
        {"seq_len": 10_000},
        lambda rope: rope.scaling,
        NTKScaling(factor=50.0),
        DynamicNTKScaling(factor=2.0, max_position_embeddings=8192, seq_len=10_000),
    ),
    "truncate of a nested block": (
        {
            **LLAMA,
            "layer_types": ["full_attention"],
            "rope_parameters": {"full_attention": {"rope_type": "yarn", **YARN, "truncate": False}},
        },
        {"layer": 0},
        lambda rope: rope.scaling.truncate,
        False,
        True,
    ),
    "long_factor is not read": (
        {
            **LLAMA,
            "model_type": "phimoe",
            "rope_scaling": {"type": "longrope", **LONG, "short_mscale": 1.1, "long_mscale": 1.3},
        },
        {"seq_len": 5000},
        lambda rope: (rope.inv_freq[0], rope.attention_factor),
        (0.25, 1.3),
        (1.0, 1.3),
    ),
    "type is not read": (
        {**GEMMA3, "rope_scaling": {"type": "linear", "factor": 8.0}},
        {"layer": 5},
        lambda rope: rope.scaling,
        LinearScaling(factor=8.0),
        None,
    ),
    "rope_scaling is not read": (
        {"model_type": "cohere2_moe", "head_dim": 16, "rope_scaling": {"type": "linear", "factor": 8.0}},
        {},
        lambda rope: rope.scaling,
        LinearScaling(factor=8.0),
        None,
    ),
    "OLMo-3's sliding layers": (
        {**LLAMA, "model_type": "olmo3", "rope_theta": 1e6, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"layer_type": "sliding_attention"},
        lambda rope: rope.base,
        1e6,
        5e5,
    ),
    "GPT-NeoX's base": (
        {**LLAMA, "model_type": "gpt_neox", "rope_theta": 500.0},
        {},
        lambda rope: rope.base,
        500.0,
        1e4,
    ),
    "GPT-NeoX's share": (
        {**LLAMA, "model_type": "gpt_neox", "partial_rotary_factor": 0.5},
        {},
        lambda rope: rope.rotary_dim,
        64,
        32,
    ),
    "DBRX's base": (
        {"model_type": "dbrx", "d_model": 64, "n_heads": 4, "attn_config": {"rope_theta": 5e5}},
        {},
        lambda rope: rope.base,
        5e5,
        1e4,
    ),
    "MiniMax-M3's width": (
        {"model_type": "minimax_m3_vl_text", "head_dim": 128, "rotary_dim": 64},
        {},
        lambda rope: rope.rotary_dim,
        64,
        128,
    ),
    "Bamba's share": (
        {**LLAMA, "model_type": "bamba", "partial_rotary_factor": 0.25},
        {},
        lambda rope: rope.rotary_dim,
        32,
        64,
    ),
    "the default block's base": (
        {**LLAMA, "model_type": "apertus", "rope_theta": 500.0},
        {},
        lambda rope: rope.base,
        500.0,
        1.2e7,
    ),
    "Step-3.5's lists": (
        {"model_type": "step3p5", "layer_types": ["full_attention"] * 2, "rope_theta": [1e4, 5e4]},
        {"layer": 1},
        lambda rope: rope.base,
        5e4,
        1e4,
    ),
}
# What is refused, as two keys contradict each other, and what upstream makes of it.
CONTRADICTIONS = {
    "two lengths": (
        llama(rope_scaling={"rope_type": "yarn", **YARN}, original_max_position_embeddings=4096),
        r"original_max_position_embeddings must be said once; got 2048 .* and 4096",
        lambda rope: rope.scaling.original_max_position_embeddings,
        4096,
    ),
    "two bases": (
        llama(rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
        r"rope_theta must be said once; got 10000.0 .* and 500000.0",
        lambda rope: rope.base,
        1e4,
    ),
    "two shares": (
        llama(rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.25}, partial_rotary_factor=0.5),
        r"partial_rotary_factor must be said once; got 0.25 .* and 0.5",
        lambda rope: rope.rotary_dim,
        32,
    ),
    "two blocks": (
        llama(rope_parameters={"rope_type": "default"}, rope_scaling={"rope_type": "linear", "factor": 2.0}),
        r"rope_parameters or rope_scaling must be given, not both",
        lambda rope: rope.scaling,
        LinearScaling(factor=2.0),
    ),
    "ModernBERT's rope_theta": (
        {**LLAMA, "model_type": "modernbert", "rope_theta": 500.0},
        r"every key .* must be known; got \{'rope_theta': 500.0\}",
        lambda rope: rope.base,
        160_000.0,
    ),
    "sections that do not fit": (
        {"model_type": "qwen3_vl_text", "rope_parameters": {"mrope_section": [33, 1, 30]}},
        r"Sections: sizes must fit",
        lambda rope: rope.sections.sizes,
        (42, 1, 21),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_is_right_and_what_upstream_does(name):
    config, choice, read, right, upstream = MISTAKES[name]
    assert read(from_config(config, **choice)) == right
    assert read(from_config(config, **choice, compat="transformers")) == upstream


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions_are_refused_or_resolved_as_upstream(name):
    config, message, read, upstream = CONTRADICTIONS[name]
    choice = {"layer_type": "full_attention"} if config["model_type"] == "modernbert" else {}
    with pytest.raises(ValueError, match=message):
        from_config(config, **choice)
    assert read(from_config(config, **choice, compat="transformers")) == upstream


def test_what_is_no_rotation_upstream_is_refused_there():
    config = {
        "model_type": "hunyuan_vl",
        "head_dim": 16,
        "rope_scaling": {"type": "xdrope", "alpha": 5.0, "xdrope_section": [2] * 4},
    }
    assert from_config(config).axes == 4
    with pytest.raises(ValueError, match="of which transformers makes no rotation"):
        from_config(config, compat="transformers")


def test_configs_are_left_as_they_were():
    for config, choice, *_ in MISTAKES.values():
        before = json.dumps(config)
        from_config(config, **choice)
        from_config(config, **choice, compat="transformers")
        assert json.dumps(config) == before


ROPES = [
    {"base": 1e4},
    {"base": 5e5, "rotary_dim": 64},
    {"base": 5e5, "scaling": LinearScaling(factor=4.0)},
    {"base": 5e5, "scaling": YarnScaling(**YARN, beta_fast=16.0, truncate=False)},
    {"base": 5e5, "scaling": YarnScaling(**YARN, mscale=0.7, mscale_all_dim=0.5)},
    {"base": 5e5, "scaling": Llama3Scaling(**LLAMA3)},
    {"base": 5e5, "scaling": LongRopeScaling(**LONG)},
    {"base": 5e5, "scaling": ProportionalScaling(partial_rotary_factor=0.25)},
    {"base": 5e5, "scaling": DynamicNTKScaling(factor=2.0, max_position_embeddings=8192)},
    {"base": 5e5, "scaling": NTKScaling(factor=1000.0)},
]


@pytest.mark.parametrize("options", ROPES, ids=str)
def test_to_config_is_read_back(options):
    rope = RotaryEmbedding(head_dim=128, layout="half", **options)
    block = json.loads(json.dumps(rope.to_config()))
    assert from_config({**LLAMA, "rope_parameters": block}) == rope


def test_every_share_is_read_back():
    for head_dim in range(2, 130, 2):
        for rotary_dim in range(2, head_dim + 1, 2):
            rope = RotaryEmbedding(head_dim=head_dim, layout="half", base=100.0, rotary_dim=rotary_dim)
            block = rope.to_config()
            assert int(block.get("partial_rotary_factor", 1.0) * head_dim) == rotary_dim
    assert from_config({"model_type": "llama", "head_dim": head_dim, "rope_parameters": block}) == rope


@pytest.mark.parametrize(
    "model_type, sections, layout",
    [
        ("qwen2_vl_text", Sections((16, 24, 24)), "half"),
        ("qwen3_vl_text", Sections((24, 20, 20), order="interleaved"), "half"),
        ("ernie4_5_vl_moe_text", Sections((22, 22, 20), order="spatial_first"), "interleaved"),
    ],
)
def test_sections_are_read_back(model_type, sections, layout):
    rope = RotaryEmbedding(head_dim=128, layout=layout, base=5e5, sections=sections)
    assert from_config({**LLAMA, "model_type": model_type, "rope_parameters": rope.to_config()}) == rope


@pytest.mark.parametrize(
    "options, message",
    [
        ({"inv_freq": (1.0, 0.5)}, "got inv_freq"),
        (
            {"base": 1e4, "rotary_dim": 8, "scaling": ProportionalScaling(partial_rotary_factor=0.5)},
            "rotary_dim must be head_dim with ProportionalScaling.*; got 8",
        ),
        ({"base": 1e4, "reverse": True}, "got reverse"),
        ({"base": 1e4, "scaling": MixedNTKScaling(factor=2.0)}, "a rule that transformers has; got MixedNTKScaling"),
        ({"base": 1e4, "attention_factor": 2.0}, "attention_factor must be that of scaling; got 2.0"),
        ({"base": 1e4, "sections": Sections((4, 4), order="axial")}, "an order that transformers has; got Sections"),
    ],
)
def test_what_no_config_can_say(options, message):
    with pytest.raises(ValueError, match=f"RotaryEmbedding.to_config: .*{message}"):
        RotaryEmbedding(head_dim=16, layout="half", **options).to_config()


BAD = {
    "no config": (7, TypeError, r"config must be a path, a mapping or an object with to_dict\(\); got 7"),
    "no rotary model": (
        {"model_type": "bert"},
        ValueError,
        r"model_type must be one of the .* rotary families .*; got 'bert', which is like .*",
    ),
    "no model_type": ({"hidden_size": 64}, ValueError, r"model_type must be .*; got 'None'"),
    "no width": ({"model_type": "llama"}, ValueError, r"head_dim or hidden_size / num_attention_heads must be given"),
    "a width of a string": (llama(head_dim="128"), TypeError, r"head_dim must be an int; got str"),
    "no heads": (llama(num_attention_heads=0), ValueError, r"num_attention_heads must be at least 1; got 0"),
    "an odd width": (llama(head_dim=127), ValueError, r"head_dim must be even.*; got 127"),
    "an unknown type": (
        llama(rope_scaling={"type": "yarm", **YARN}),
        ValueError,
        r"rope_type must be one of .*llama3, longrope.*; got 'yarm'",
    ),
    "two types": (
        llama(rope_scaling={"type": "yarn", "rope_type": "linear", **YARN}),
        ValueError,
        r"must not contradict",
    ),
    "an unknown key": (
        llama(rope_scalling={"type": "linear"}),
        ValueError,
        r"every key .* must be known; got .*rope_scalling",
    ),
    "an unknown key in the block": (
        llama(rope_scaling={"type": "yarn", **YARN, "beta": 1}),
        ValueError,
        r"every key of rope_scaling must be known; got \{'beta': 1\}, beside .*beta_fast|every key of rope_scaling",
    ),
    "a key of another rule": (
        llama(rope_scaling={"type": "default", "factor": 2.0}),
        ValueError,
        r"got \{'factor': 2.0\}",
    ),
    "a missing key": (
        llama(rope_scaling={"rope_type": "llama3", "factor": 8.0}),
        ValueError,
        r"rope_scaling of type 'llama3' must have high_freq_factor, low_freq_factor; got factor, rope_type",
    ),
    "no type": (
        llama(rope_scaling={"factor": 2.0}),
        ValueError,
        r"rope_scaling must have a rope_type beside factor; got factor",
    ),
    "axes too few": (
        {"model_type": "qwen2_vl_text", "head_dim": 128, "rope_scaling": {"type": "mrope", "mrope_section": [32, 32]}},
        ValueError,
        r"mrope_section must have 3 numbers in this family; got \[32, 32\]",
    ),
    "a list of strings": (
        {"model_type": "smollm3", "head_dim": 16, "no_rope_layers": ["0", "1"]},
        TypeError,
        r"no_rope_layers must be a list of numbers, none negative; got '0' in it",
    ),
    "axes said of one": (llama(use_mrope=True), ValueError, r"use_mrope must be False .*; got True"),
    "a class": (Config, TypeError, r"config must be a path, a mapping or an object with to_dict\(\)"),
    "no factor": (llama(rope_scaling={"type": "linear"}), ValueError, r"must have factor; got type"),
    "a factor below 1": (
        llama(rope_scaling={"type": "linear", "factor": 0.5}),
        ValueError,
        r"factor must be at least 1; got 0.5",
    ),
    "a factor of a string": (
        llama(rope_scaling={"type": "linear", "factor": "2"}),
        TypeError,
        r"factor must be a number; got '2'",
    ),
    "a factor that is no number": (
        llama(rope_scaling={"type": "linear", "factor": float("nan")}),
        ValueError,
        r"factor must be finite; got nan",
    ),
    "a base of a string": (llama(rope_theta="1e4"), TypeError, r"rope_theta must be a number; got '1e4'"),
    "a base of zero": (llama(rope_theta=0), ValueError, r"rope_theta must be at least 1; got 0"),
    "a block of a string": (llama(rope_scaling="linear"), TypeError, r"rope_scaling must be a mapping; got 'linear'"),
    "lists of another length": (
        llama(rope_scaling={"type": "longrope", **LONG, "short_factor": [1.0] * 63}),
        ValueError,
        r"short_factor must have one number for each of 64 pairs; got 63",
    ),
    "a list of a string": (
        llama(rope_scaling={"type": "longrope", **LONG, "long_factor": "4"}),
        TypeError,
        r"long_factor must be a list or tuple of numbers; got '4'",
    ),
    "sections that do not sum": (
        {
            "model_type": "qwen2_vl_text",
            "head_dim": 128,
            "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 23]},
        },
        ValueError,
        r"mrope_section must sum to the 64 pairs that turn; got \[16, 24, 23\]",
    ),
    "sections of strings": (
        {"model_type": "qwen2_vl_text", "head_dim": 128, "rope_scaling": {"type": "mrope", "mrope_section": "16"}},
        TypeError,
        r"mrope_section must be a list of int; got '16'",
    ),
    "sections in another order": (
        {"model_type": "qwen2_vl_text", "head_dim": 128, "rope_scaling": {"type": "mrope", "mrope_interleaved": True}},
        ValueError,
        r"mrope_interleaved must be False for this model_type; got True",
    ),
    "a share above 1": (llama(partial_rotary_factor=1.5), ValueError, r"at most head_dim=128; got 192"),
    "a layer type of a number": (
        llama(layer_types=["full_attention", 3]),
        TypeError,
        r"layer_types must be a list of strings; got \['full_attention', 3\]",
    ),
    "a share of zero": (llama(partial_rotary_factor=0.0), ValueError, r"partial_rotary_factor must be greater than 0"),
    "two widths": (llama(partial_rotary_factor=0.5, rotary_dim=32), ValueError, r"must be said once; got 32 channels"),
    "another order of pairs": (llama(rope_interleave=True), ValueError, r"rope_interleave must be False .*; got True"),
    "layers that differ": (GEMMA3, ValueError, r"layer or layer_type must be given, full_attention, sliding_attention"),
    "a nested block": (
        {**LLAMA, "rope_parameters": {"a": {"rope_type": "default"}, "b": {"rope_type": "default"}}},
        ValueError,
        r"layer or layer_type must be given, a, b, as rope_parameters are nested",
    ),
    "a key beside nested blocks": (
        {**GEMMA3, "rope_theta": None, "rope_scaling": None, "rope_parameters": {"full_attention": {}, "factor": 2}},
        ValueError,
        r"layer or layer_type must be given, full_attention",
    ),
    "a flat block where layers differ": (
        {
            "model_type": "gemma3_text",
            "head_dim": 16,
            "rope_parameters": {"rope_theta": 1e4},
            "layer_types": ["full_attention"],
        },
        ValueError,
        r"layer or layer_type must be given",
    ),
    "an error in a block for other layers": (
        {**GEMMA3, "rope_scaling": {"rope_type": "linear", "factor": 0.5}, "layer_types": ["sliding_attention"]},
        ValueError,
        r"layer or layer_type must be given",
    ),
    "a head of no width": (
        llama(head_dim=0),
        ValueError,
        r"the width that turns must be at least 1; got 0 of head_dim=0",
    ),
    "a share of no channel": (llama(partial_rotary_factor=0.001), ValueError, r"at least 1; got 0 of head_dim=128"),
    "an odd part on several axes": (
        {
            "model_type": "glm4v_text",
            "head_dim": 16,
            "partial_rotary_factor": 9 / 16,
            "rope_scaling": {"mrope_section": [2, 1, 1]},
        },
        ValueError,
        r"the width that turns must be even .*; got 9",
    ),
    "alpha beside a factor": (
        llama(rope_scaling={"type": "dynamic", "alpha": 3.0, "factor": 2.0}),
        ValueError,
        r"alpha or factor must be given, not both; got 3.0 and 2.0",
    ),
    "a misspelt kind of position": (
        {"model_type": "esm", "hidden_size": 64, "num_attention_heads": 4, "position_embedding_type": "rotray"},
        ValueError,
        r"position_embedding_type must be one of .*rotary; got 'rotray'",
    ),
    "a list that is none": (
        {"model_type": "smollm3", "no_rope_layers": 3, "head_dim": 16},
        TypeError,
        r"must be a list; got 3",
    ),
    "a mapping that is none": (
        {"model_type": "dbrx", "d_model": 64, "n_heads": 4, "attn_config": "x"},
        TypeError,
        r"attn_config must be a mapping; got 'x'",
    ),
    "a type of a list": ({"model_type": ["llama"]}, TypeError, r"model_type must be a string; got \['llama'\]"),
    "patches that are no square": (
        {"model_type": "dinov3_vit", "hidden_size": 12, "num_attention_heads": 2},
        ValueError,
        r"head_dim must be a multiple of 4 .*; got 6",
    ),
    "text without rotation": ({"model_type": "llava", "text_config": {"model_type": "opt"}}, ValueError, r"got 'opt'"),
    "rotation beside the text": (
        {"model_type": "llava", "text_config": llama(), "rope_theta": 7.0},
        ValueError,
        r"keys of rotation must stand in the part, not beside it; got \{'rope_theta': 7.0\}",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_configs(name):
    config, error, message = BAD[name]
    with pytest.raises(error, match=message):
        from_config(config)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"layout": "neox"}, ValueError, r"layout must be .*; got 'neox'"),
        ({"compat": "vllm"}, ValueError, r"compat must be .*; got 'vllm'"),
        ({"seq_len": 0}, ValueError, r"seq_len must be at least 1 and .*; got 0"),
        ({"seq_len": 1.5}, TypeError, r"seq_len must be an int; got float"),
        ({"layer": 3, "layer_type": "full_attention"}, ValueError, r"layer or layer_type must be given, not both"),
        ({"layer": "3"}, TypeError, r"layer must be an int; got str"),
        ({"layer": 12}, ValueError, r"layer must be from 0 to 11; got 12"),
        ({"layer": -1}, ValueError, r"layer must not be negative; got -1"),
        ({"part": []}, TypeError, r"part must be a string; got \[\]"),
        ({"seq_len": 10**400}, ValueError, r"seq_len must be at least 1 and below"),
        ({"layer_type": "full"}, ValueError, r"layer_type must be full_attention, sliding_attention; got 'full'"),
        ({"part": "vision"}, ValueError, r"part must be None for a config without parts; got 'vision'"),
    ],
)
def test_bad_choices(options, error, message):
    with pytest.raises(error, match=f"from_config: {message}"):
        from_config(GEMMA3, **options)


def test_malformed_json_names_path_line_and_reason(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="must be JSON in UTF-8"):
        from_config(path)
    path.write_text(json.dumps(LLAMA), encoding="utf-8-sig")
    assert from_config(tmp_path) == from_config(LLAMA)
    path.write_text('{\n  "model_type": "llama",\n  "rope_theta": 1e4,\n}')
    with pytest.raises(
        ValueError, match=rf"from_config: {re.escape(str(path))} must be JSON; got .* on line \d, column \d"
    ):
        from_config(path)
    path.write_text("[]")
    with pytest.raises(TypeError, match=r"config must hold a mapping; got list"):
        from_config(path)
    with pytest.raises(FileNotFoundError):
        from_config(tmp_path / "none.json")


def test_what_does_not_scale_is_checked_all_the_same():
    bad = {**GEMMA3, "rope_scaling": {"rope_type": "linear", "factor": 0.5}}
    with pytest.raises(ValueError, match="factor must be at least 1"):
        from_config(bad, layer_type="sliding_attention")
    assert replace(from_config(GEMMA3, layer=0), phase="float32").phase == "float32"
