"""from_config: every spelling of one meaning, upstream's mistakes on request, and errors that name the key."""

import ast
import copy
import json
import os
import pickle
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
from rope_xp._core.config import families, families_of_axes
from rope_xp._core.config.families import FAMILIES
from rope_xp._core.config.family import USUAL
from rope_xp._core.config.parts import PARTS
from rope_xp._core.embedding import with_provenance
from rope_xp._core.provenance import Provenance
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


def deepseek_magnitude(factor, mscale=1.0, mscale_all_dim=0.0):
    """As DeepSeek's modeling_deepseek.py and vLLM's deepseek_scaling_rope.py have it, with their defaults."""
    above, below = (1.0 if factor <= 1 else 1.0 + number * log(factor) / 10 for number in (mscale, mscale_all_dim))
    return above / below


@pytest.mark.parametrize(
    "numbers",
    [
        {},
        {"mscale": 0.707},
        {"mscale_all_dim": 0.707},
        {"mscale": 0.0},
        {"mscale_all_dim": 0.0},
        {"mscale": 0.0, "mscale_all_dim": 0.707},
        {"mscale": 0.707, "mscale_all_dim": 0.0},
        {"mscale": 0.707, "mscale_all_dim": 0.5},
        {"mscale": None, "mscale_all_dim": None},
    ],
    ids=str,
)
@pytest.mark.parametrize("factor", [1.0, 40.0])
def test_yarn_of_deepseek_and_of_transformers(numbers, factor):
    config = {"model_type": "deepseek_v3", "qk_rope_head_dim": 64, "rope_theta": 1e4}
    block = {"factor": factor, "original_max_position_embeddings": 4096, **numbers}
    theirs = from_config({**config, "rope_scaling": {"rope_type": "deepseek_yarn", **block}})
    stated = {name: value for name, value in numbers.items() if value is not None}
    assert theirs.attention_factor == pytest.approx(deepseek_magnitude(factor, **stated), rel=1e-15)
    both = stated.get("mscale") and stated.get("mscale_all_dim")
    plain = from_config({**config, "rope_scaling": {"type": "yarn", **block}})
    expected = deepseek_magnitude(factor, **stated) if both else deepseek_magnitude(factor)
    assert plain.attention_factor == pytest.approx(expected, rel=1e-15)
    all_dim = deepseek_magnitude(factor, stated.get("mscale_all_dim", 0.0))
    assert theirs.softmax_scale == plain.softmax_scale == pytest.approx(all_dim**2, rel=1e-15)
    assert theirs.inv_freq == plain.inv_freq
    assert from_config({**config, "rope_scaling": {"rope_type": "deepseek_yarn", "type": "yarn", **block}}) == theirs
    again = {**config, "rope_parameters": theirs.to_config()}
    assert from_config(again) == theirs


def test_mscale_alone_of_deepseek():
    block = {"type": "deepseek_yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 0.707}
    config = {"model_type": "deepseek_v2", "rope_scaling": block}
    assert from_config(config).attention_factor == pytest.approx(1.2608, abs=5e-5)
    assert from_config({**config, "rope_scaling": {**block, "attention_factor": 2.0}}).attention_factor == 2.0


# What a config leaves out: config, choice, and (the row of describe that shows it, the key, whose default it is).
UNSTATED = {
    "nothing": (llama(), {}, []),
    "a base": (LLAMA, {}, [("frequencies", "rope_theta", "default of llama")]),
    "a null base": (llama(rope_theta=None), {}, [("frequencies", "rope_theta", "default of llama")]),
    "the base of a block": (
        {**LLAMA, "rope_scaling": {"type": "yarn", **YARN}},
        {},
        [("frequencies", "rope_theta", "default of llama")],
    ),
    "the length of a block": (
        llama(rope_scaling={"type": "yarn", "factor": 4.0}),
        {},
        [("scaling", "original_max_position_embeddings", "taken from max_position_embeddings")],
    ),
    "the length of a family": (
        llama(model_type="phi3", rope_scaling={"type": "su", "short_factor": [1.0] * 64, "long_factor": [4.0] * 64}),
        {},
        [("scaling", "original_max_position_embeddings", "default of phi3")],
    ),
    "a share": (llama(model_type="phi"), {}, [("channels", "partial_rotary_factor", "default of phi")]),
    "a width": ({"model_type": "gptj", "n_embd": 4096, "n_head": 16}, {}, [("", "rotary_dim", "default of gptj")]),
    "a width that is null": ({"model_type": "gptj", "n_embd": 4096, "n_head": 16, "rotary_dim": None}, {}, []),
    "a head": (
        {"model_type": "qwen3", "rope_theta": 1e6},
        {},
        [("channels", "head_dim", "default of qwen3")],
    ),
    "a latent head": (
        {"model_type": "deepseek_v3", "rope_theta": 1e4},
        {},
        [("channels", "qk_rope_head_dim", "default of deepseek_v3")],
    ),
    "a block": (
        {"model_type": "gpt_oss", "head_dim": 64, "rope_theta": 1.5e5},
        {},
        [("scaling", "rope_parameters", "default of gpt_oss")],
    ),
    "the base of a family's block": (
        {"model_type": "pe_audio_encoder", "head_dim": 128},
        {},
        [("frequencies", "rope_theta", "default of pe_audio_encoder")],
    ),
    "the share of a family's block": (
        llama(model_type="moonshine_streaming"),
        {},
        [("channels", "partial_rotary_factor", "default of moonshine_streaming")],
    ),
    "sections": (
        llama(model_type="qwen2_vl_text"),
        {},
        [("position axes", "mrope_section", "default of qwen2_vl_text")],
    ),
    "an attention factor": (
        {
            "model_type": "deepseek_v4",
            "head_dim": 512,
            "qk_rope_head_dim": 64,
            "compress_rope_theta": 1.6e5,
            "rope_scaling": {"type": "yarn", **YARN},
        },
        {"layer_type": "compress"},
        [("attention factor", "attention_factor", "default of deepseek_v4")],
    ),
    "a base of some layers": (
        {**GEMMA3, "rope_local_base_freq": None, "sliding_window_pattern": 6},
        {"layer": 0},
        [("frequencies", "rope_local_base_freq", "default of gemma3_text")],
    ),
    "which layers": (GEMMA3, {"layer": 5}, [("", "layer_types", "default of gemma3_text")]),
    "which layers, where none is asked for": (GEMMA3, {"layer_type": "full_attention"}, []),
    "a period of layers": ({**GEMMA3, "sliding_window_pattern": 6}, {"layer": 5}, []),
    "which layers turn": (
        llama(model_type="smollm3"),
        {"layer": 0},
        [("", "no_rope_layers", "default of smollm3")],
    ),
    "a period of layers that turn": (llama(model_type="smollm3", no_rope_layer_interval=4), {"layer": 0}, []),
    "whether it turns": (
        llama(model_type="falcon"),
        {},
        [("", "alibi", "default of falcon")],
    ),
    "whether it turns, said": (llama(model_type="falcon", alibi=False), {}, []),
    "frequencies by a rule of its own": (
        {"model_type": "esmfold2_atom_encoder", "head_dim": 128, "num_spatial_rope_pairs_per_axis": 4},
        {},
        [
            ("frequencies", "rope_theta", "default of esmfold2_atom_encoder"),
            ("", "num_uid_rope_pairs", "default of esmfold2_atom_encoder"),
            ("", "spatial_rope_base_frequency", "default of esmfold2_atom_encoder"),
            ("", "uid_rope_base_frequency", "default of esmfold2_atom_encoder"),
        ],
    ),
    "a rule of an InternLM": (
        {"model_type": "internlm", "head_dim": 64, "rotary": {"base": 1e4}},
        {},
        [
            ("scaling", "rotary", "default of internlm"),
            ("scaling", "max_position_embeddings", "default of internlm"),
        ],
    ),
    "steps of a Qwen": (
        {"model_type": "qwen", "kv_channels": 128, "rotary_emb_base": 1e4, "seq_length": 8},
        {"seq_len": 9},
        [("scaling", "use_dynamic_ntk", "default of qwen")],
    ),
    "which ChatGLM it is": (
        {"model_type": "chatglm", "kv_channels": 128, "partial_rotary_factor": 0.5, "rope_ratio": 2},
        {},
        [("frequencies", "_name_or_path", "taken as not of ChatGLM2")],
    ),
    "the length of a Grok": (
        {
            "model_type": "grok1",
            "head_dim": 128,
            "rope_theta": 1e4,
            "rope_type": "yarn_log",
            "scaling_factor": 2.0,
            "max_position_embeddings": 8192,
        },
        {},
        [("scaling", "original_max_position_embeddings", "taken from max_position_embeddings")],
    ),
    "a block of other layers": (
        {"model_type": "olmo3", "head_dim": 16, "rope_theta": 5e5, "rope_scaling": {"type": "yarn", **YARN}},
        {"layer_type": "sliding_attention"},
        [],
    ),
}


@pytest.mark.parametrize("name", UNSTATED)
def test_values_that_a_config_does_not_state(name):
    config, choice, unstated = UNSTATED[name]
    rope = from_config(config, **choice)
    assert list(rope._provenance.defaults) == unstated
    marks = " ".join(rope.describe().split()).count("not in the config")
    assert marks == len({row for row, *_ in unstated})
    for row, key, source in unstated:
        line = next(line for line in paragraphs(rope.describe()) if line.startswith(row or "not in the config"))
        assert f"{key}, {source}" in line
    if unstated:
        with pytest.raises(ValueError, match=r"^from_config: every value must be in the config with strict=True; got "):
            from_config(config, **choice, strict=True)
    else:
        assert from_config(config, **choice, strict=True) == rope


def paragraphs(text):
    """The rows of a description, each on one line."""
    return re.sub(r"\n +", " ", text).splitlines()


def test_strict_names_every_key_that_is_missing():
    with pytest.raises(ValueError, match=r"got head_dim, default of qwen3; rope_theta, default of qwen3$"):
        from_config({"model_type": "qwen3"}, strict=True)
    with pytest.raises(ValueError, match=r"got position_embedding_type, default of esm$"):  # None, without `strict`
        from_config({"model_type": "esm", "hidden_size": 64, "num_attention_heads": 4}, strict=True)
    with pytest.raises(TypeError, match=r"^from_config: strict must be a bool; got str"):
        from_config(LLAMA, strict="yes")


def test_provenance_is_no_part_of_the_value():
    stated, unstated = from_config(llama(rope_theta=1e4)), from_config(LLAMA)
    assert stated == unstated and hash(stated) == hash(unstated) and repr(stated) == repr(unstated)
    marked = "not in the config: rope_theta"
    for kept in (copy.copy(unstated), copy.deepcopy(unstated), pickle.loads(pickle.dumps(unstated))):
        assert kept == unstated and marked in kept.describe()
    assert marked not in replace(unstated).describe() == stated.describe()
    assert stated.describe() == RotaryEmbedding(head_dim=128, layout="half", base=1e4).describe()
    remarked = with_provenance(stated, Provenance(remarks=("one", "two")))
    assert remarked.describe() == stated.describe() + "\nremark            one\nremark            two"


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
        own = {
            "baichuan": {"hidden_size": 4096, "num_attention_heads": 32},
            "git": {"architectures": ["Grok1ForCausalLM"]},
            "bailing_moe": {"rope_theta": 6e5},
            "bailing_moe_v2": {"rope_theta": 6e5},
        }
        sections |= own.get(model_type, {})
        sizes, by_type = family.defaults.get("mrope_section"), family.layers.by_type
        if sizes is not None:
            width = 2 * sum(sizes)
            sections = {"rope_parameters": {"partial_rotary_factor": 0.5}, "head_dim": 2 * width}
            if by_type:
                sections = {"head_dim": width}
        config = {"model_type": model_type, **enough, **sections}
        for label in by_type or [None]:
            compat = "transformers" if model_type == "mistral_large4_text" else None  # whose frequencies are trained
            rope = from_config(config, layer_type=label, compat=compat)
            if family.of_type(label).defaults.get("rope_parameters", {}) is None:
                assert rope is None
                continue
            only_if = family.layers.only_if
            assert (rope is None) == (only_if is not None and family.default(only_if[0]) != only_if[1])


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


HEADS = {"hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 8}
HALF_128, HALF_64 = ({"head_dim": width, "layout": "half", "base": 1e4} for width in (128, 64))
LATENT_64 = {"head_dim": 64, "layout": "interleaved_to_half", "base": 1e4}
GROK_1 = {
    "model_type": "grok1",
    "rope_type": "yarn_log",
    "scaling_factor": 16.0,
    "original_max_position_embeddings": 8192,
}
LARGE4 = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 512}
# Gemma 4 takes the last layer for one of full attention, whatever the config says.
SLIDING = {"layer_types": ["sliding_attention"] * 8}
QUARTER = ProportionalScaling(partial_rotary_factor=0.25)
# (model_type, other keys, arguments, options of the embedding, None for a layer without rotation), of the classes'
# own sources; no config states a base or a share unless its name says so.
UNSAID = [
    ("bailing_hybrid", {}, {"layer": 5}, {**LATENT_64, "base": 6e6}),
    ("bailing_hybrid", {}, {"layer": 6}, None),
    ("bailing_hybrid", {"layer_group_size": 3}, {"layer": 2}, {**LATENT_64, "base": 6e6}),
    ("bailing_hybrid", {"head_dim": 128, "partial_rotary_factor": 0.5}, {}, {**LATENT_64, "base": 6e6}),
    ("beam", {}, {"layer": 5}, None),
    ("beam", {}, {"layer": 6}, HALF_128),
    ("beam", {}, {"layer": 7}, None),
    ("beam", {"rope_parameters": {"full_attention": {"rope_theta": 5e4}}}, {"layer": 5}, {**HALF_128, "base": 5e4}),
    ("dots3_note_text", {}, {"layer": 1}, {**LATENT_64, "base": 8e7}),
    ("dots3_note_text", {}, {"layer": 3}, {**LATENT_64, "base": 5e4}),
    ("dots3_note_text", {"swa_head_dim": 224}, {"layer": 3}, {**LATENT_64, "head_dim": 32, "base": 5e4}),
    ("dots3_note_text", {"swa_rope_theta": 7e4}, {"layer": 3}, {**LATENT_64, "base": 7e4}),
    ("dots3_note_text", {"swa_rope_theta": 7e4, "use_sliding_window": False}, {"layer": 3}, {**LATENT_64, "base": 8e7}),
    ("dots3_note_audio_encoder", {}, {}, {**HALF_64, "rotary_dim": 32}),
    ("dots3_note_vision_encoder", {}, {}, {**HALF_64, "sections": Sections((16, 16), "axial")}),
    ("embedding_gemma2_text", {}, {"layer": 4}, {**HALF_128, "head_dim": 256}),
    ("embedding_gemma2_text", {}, {"layer": 5}, {**HALF_128, "head_dim": 512, "base": 1e6}),
    ("embedding_gemma2_text", {}, {"layer": 7}, {**HALF_128, "head_dim": 512, "base": 1e6}),
    ("gemma4_text", {}, {"layer": 6}, {**HALF_128, "head_dim": 256}),
    (
        "gemma4_text",
        {},
        {"layer": 7},
        {**HALF_128, "head_dim": 512, "base": 1e6, "scaling": ProportionalScaling(partial_rotary_factor=0.25)},
    ),
    ("embedding_gemma2_text", SLIDING, {"layer": 6}, {**HALF_128, "head_dim": 256}),
    ("embedding_gemma2_text", SLIDING, {"layer": 7}, {**HALF_128, "head_dim": 512, "base": 1e6}),
    *(
        (name, SLIDING, {"layer": layer, **compat}, {**HALF_128, **options})
        for name in ("gemma4_text", "gemma4_unified_text", "diffusion_gemma_text")
        for compat in ({}, {"compat": "transformers"})
        for layer, options in ((6, {"head_dim": 256}), (7, {"head_dim": 512, "base": 1e6, "scaling": QUARTER}))
    ),
    ("beam", {}, {"layer": 7}, None),
    ("beam", SLIDING, {"layer": 7}, HALF_128),
    ("beam", {}, {"layer": 0, "compat": "transformers"}, HALF_128),
    ("flint", {}, {"layer": 1}, None),
    ("flint", {}, {"layer": 4}, HALF_128),
    ("flint", {}, {"layer": 5}, None),
    ("flint", {}, {"layer": 7}, None),
    ("gradium_phonon_tts", {}, {}, HALF_64),
    ("granite_docling_text", {}, {}, HALF_64),
    (
        "inkling2_vision",
        {},
        {},
        {"head_dim": 64, "layout": "interleaved", "base": 1e4, "sections": Sections((16, 16), "axial", (1, 0))},
    ),
    ("iquestcoder", {}, {}, HALF_128),
    ("kolibri1", {"sliding_window": 513}, {"layer": 4}, None),
    ("kolibri1", {"sliding_window": 513}, {"layer": 5}, HALF_128),
    ("kolibri1", {"sliding_window": None}, {"layer": 4}, HALF_128),
    ("lfm3", {}, {"layer": 0}, None),
    ("lfm3", {}, {"layer": 1}, None),
    ("lfm3", {}, {"layer": 4}, HALF_128),
    ("lfm3", {}, {"layer": 2}, {**HALF_128, "base": 1e6, "scaling": ProportionalScaling(partial_rotary_factor=0.5)}),
    ("lfm3", {"rope_parameters": {"sliding_attention": {}}}, {"layer": 4}, {**HALF_128, "base": 1e6}),
    ("lfm3_vl_vision", {}, {"layer": 0}, None),
    ("lfm3_vl_vision", {}, {"layer": 2}, {**HALF_64, "base": 1e6, "sections": Sections((16, 16), "axial")}),
    ("mistral_large4_text", {}, {"layer": 3}, None),
    ("molmo2_text", {}, {}, HALF_128),
    ("molmo2_text", {"rope_scaling_layers": [1]}, {}, HALF_128),
    (
        "molmo2_text",
        {"rope_scaling_layers": [1], "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6}},
        {"layer": 1},
        {**HALF_128, "base": 1e6, "scaling": LinearScaling(factor=4.0)},
    ),
    (
        "molmo2_text",
        {"rope_scaling_layers": [1], "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6}},
        {"layer": 0},
        {**HALF_128, "base": 1e6},
    ),
    ("muse_spark_text", {}, {"layer": 6}, {**HALF_64, "base": 5e5}),
    ("muse_spark_text", {}, {"layer": 3}, None),
    ("muse_spark_text", {"rope_parameters": {"rope_type": "default"}}, {"layer": 6}, HALF_64),
    ("muse_spark_vision", {}, {}, {**HALF_64, "sections": Sections((16, 16), "axial")}),
    ("nemotron3_5_transcribe_asr_audio", {}, {}, {**HALF_64, "rotary_dim": 32}),
    ("nemotron3_5_transcribe_word_timestamp", {}, {}, {**HALF_64, "rotary_dim": 32}),
    ("pocket_tts", {}, {}, HALF_64),
    ("pocket_tts_audio_tokenizer", {}, {}, HALF_64),
    ("ultrabert", {}, {"layer": 1}, HALF_64),
    ("ultrabert", {}, {"layer": 2}, {**HALF_64, "base": 2.56e6}),
    ("ultrabert", {"attention_windows": [0, 4] * 4}, {"layer": 2}, {**HALF_64, "base": 2.56e6}),
    ("ultrabert", {"attention_windows": [0, 4] * 4}, {"layer": 3}, HALF_64),
    ("ultrabert", {"rope_theta": [1e3, 1e3, 2e3] * 3}, {"layer": 2}, {**HALF_64, "base": 2e3}),
    ("unlimited_ocr_text", {}, {}, HALF_64),
    ("step3p5_vision", {}, {}, {**HALF_64, "sections": Sections((16, 16), "axial", (1, 0))}),
    ("step3p5_vision", {}, {"compat": "transformers"}, {**HALF_64, "sections": Sections((16, 16), "axial")}),
    (
        "cosmos3_edge_text",
        {"rope_parameters": {"rope_type": "default"}},
        {},
        {**HALF_128, "base": 1e8, "sections": Sections((24, 20, 20), "interleaved")},
    ),
    (
        "cohere_compass_text",
        {"head_dim": 128},
        {"layer_type": "sliding_attention"},
        {**HALF_128, "sections": Sections((24, 20, 20), "interleaved")},
    ),
    (
        "cohere_compass_text",
        {"head_dim": 128},
        {"layer_type": "sliding_attention", "compat": "transformers"},
        {**HALF_128, "sections": Sections((22, 22, 20), "even_odd")},
    ),
]


@pytest.mark.parametrize("row", UNSAID, ids=lambda row: f"{row[0]}-{'-'.join(row[1])}-{row[2]}")
def test_what_a_family_means_where_its_config_says_nothing(row):
    model_type, keys, choice, options = row
    assert from_config({"model_type": model_type, **HEADS, **keys}, **choice) == (
        None if options is None else RotaryEmbedding(**options)
    )


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "jamba", "num_attention_heads": 32, "attn_layer_period": 8},
        {"model_type": "nemotron_h", "hidden_size": 4096, "head_dim": 128, "rope_theta": 10_000},
        {"model_type": "inkling2", "text_config": {"model_type": "inkling2_text"}},
        {"model_type": "baichuan", "hidden_size": 5120, "num_attention_heads": 40},
        {"model_type": "xlm-roberta", "hidden_size": 768, "num_attention_heads": 12},
        {"model_type": "new", "hidden_size": 768, "num_attention_heads": 12, "position_embedding_type": "absolute"},
    ],
    ids=lambda config: config["model_type"],
)
def test_families_without_rotation_are_none(config):
    assert from_config(config) is None


MIMO = {"head_dim": 192, "layout": "half", "base": 5e6, "rotary_dim": 64}
# (config, arguments, options), of the code in the checkpoints.
OWN_SPELLING = {
    "ChatGLM2 divides positions": (
        {"model_type": "chatglm", "kv_channels": 128, "rope_ratio": 16, "_name_or_path": "THUDM/ChatGLM2-6b-32k"},
        {},
        {"head_dim": 128, "layout": "interleaved", "base": 1e4, "rotary_dim": 64, "scaling": LinearScaling(factor=16)},
    ),
    "ChatGLM without a ratio": (
        {"model_type": "chatglm", "kv_channels": 128},
        {},
        {"head_dim": 128, "layout": "interleaved", "base": 1e4, "rotary_dim": 64},
    ),
    "Qwen does not scale": ({"model_type": "qwen", "use_dynamic_ntk": False}, {"seq_len": 9000}, HALF_128),
    "Qwen turns a part of its head": (
        {"model_type": "qwen", "rotary_pct": 0.25, "rotary_emb_base": 5e4},
        {},
        {**HALF_128, "rotary_dim": 32, "base": 5e4},
    ),
    "Qwen at twice the length": (
        {"model_type": "qwen", "seq_length": 100},
        {"seq_len": 200},
        {**HALF_128, "scaling": NTKScaling(factor=3.0)},
    ),
    "Qwen at more than twice": (
        {"model_type": "qwen", "seq_length": 100},
        {"seq_len": 201},
        {**HALF_128, "scaling": NTKScaling(factor=7.0)},
    ),
    "InternLM as it was": (
        {"model_type": "internlm", **HEADS, "rotary": {"base": 3e4, "type": "origin"}},
        {"seq_len": 9000},
        {**HALF_64, "base": 3e4},
    ),
    "InternLM beyond its length": (
        {"model_type": "internlm", **HEADS, "rotary": {"type": "dynamic", "scaling_factor": 2.0}},
        {"seq_len": 4096},
        {**HALF_64, "scaling": DynamicNTKScaling(factor=2.0, max_position_embeddings=2048, seq_len=4096)},
    ),
    "InternLM says nothing": (
        {"model_type": "internlm", **HEADS},
        {"seq_len": 4096},
        {**HALF_64, "scaling": DynamicNTKScaling(factor=1.0, max_position_embeddings=2048, seq_len=4096)},
    ),
    "Baichuan says it": ({"model_type": "baichuan", "alibi": False, **HEADS}, {}, HALF_64),
    "Grok-1": ({"model_type": "grok-1"}, {}, HALF_128),
    "Grok, a half of the head": (
        {"model_type": "grok1", "rope_rotate_half_dims": True},
        {},
        {**HALF_128, "rotary_dim": 64},
    ),
    "Grok, as YaRN": (
        {**GROK_1, "rope_type": "yarn"},
        {},
        {
            **HALF_128,
            "scaling": YarnScaling(factor=16.0, original_max_position_embeddings=8192, attention_factor=1.0),
        },
    ),
    "Grok-2, a half of the head, as transformers": (
        {"model_type": "git", "architectures": ["Grok1ForCausalLM"], "rope_rotate_half_dims": True},
        {"compat": "transformers"},
        {**HALF_128, "rotary_dim": 64},
    ),
    "Grok, not yet": ({**GROK_1, "rope_type": "original"}, {}, HALF_128),
    "Ernie without sections": (
        {"model_type": "ernie4_5_moe_vl", "head_dim": 128, "freq_allocation": 24},
        {},
        {
            "head_dim": 128,
            "layout": "interleaved",
            "base": 5e5,
            "sections": Sections((20, 20, 24), "spatial_first"),
        },
    ),
    "GTE, plain": ({"model_type": "new", **HEADS}, {}, HALF_64),
    "Jina, a part of the head": (
        {"model_type": "xlm-roberta", **HEADS, "position_embedding_type": "rotary", "rotary_emb_dim": 32},
        {},
        {**HALF_64, "rotary_dim": 32},
    ),
    "MiMo saved anew": (
        {
            "model_type": "mimo_v2_flash",
            "swa_rope_theta": 1e4,
            "rope_parameters": {"full_attention": {"rope_theta": 7e6}, "sliding_attention": {"rope_theta": 1e4}},
        },
        {"layer": 1},
        {"head_dim": 192, "layout": "half", "base": 1e4, "rotary_dim": 64},
    ),
    "MiMo's full layers": ({"model_type": "mimo_v2_flash", "swa_rope_theta": 2e4}, {"layer": 0}, MIMO),
    "MiMo's full layers with a base": (
        {"model_type": "mimo_v2_flash", "swa_rope_theta": 2e4, "rope_theta": 7e6},
        {"layer": 0},
        {**MIMO, "base": 7e6},
    ),
    "MiMo's sliding heads": (
        {"model_type": "mimo_v2_flash", "head_dim": 192, "swa_head_dim": 96},
        {"layer": 1},
        {"head_dim": 96, "layout": "half", "base": 1e4, "rotary_dim": 32},
    ),
    "Step-3.5 lists its layers": (
        {"model_type": "step3p5", "use_rope_layers": [True, False]},
        {"layer": 0},
        HALF_128,
    ),
    "Step-3.5 leaves one out": ({"model_type": "step3p5", "use_rope_layers": [True, False]}, {"layer": 1}, None),
    "Bamba by its width": (
        {"model_type": "bamba", "head_dim": 128, "attn_rotary_emb": 32},
        {},
        {**HALF_128, "rotary_dim": 32},
    ),
    "Music Flamingo": (
        {"model_type": "musicflamingo", "audio_config": {"hidden_size": 640}},
        {},
        {
            "head_dim": 640,
            "layout": "interleaved",
            "base": 1200.0,
            "rotary_dim": 256,
            "sections": Sections((64, 64), "axial"),
        },
    ),
    "Fuyu": ({"model_type": "fuyu", **HEADS}, {}, {**HALF_64, "rotary_dim": 32}),
    "GLM-4.5V": (
        {"model_type": "glm4v_moe_text", "head_dim": 128},
        {},
        {**HALF_128, "rotary_dim": 64, "sections": Sections((8, 12, 12), "chunked")},
    ),
    "MiniCPM3": ({"model_type": "minicpm3"}, {}, {"head_dim": 32, "layout": "half", "base": 1e4}),
    "AXK2": ({"model_type": "axk2"}, {}, {"head_dim": 32, "layout": "interleaved_to_half", "base": 1e4}),
    "Step-3.5 without types": (
        {"model_type": "step3p5", "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"layer": 0},
        {**HALF_128, "scaling": LinearScaling(factor=2.0)},
    ),
}


@pytest.mark.parametrize("name", OWN_SPELLING)
def test_what_families_say_in_words_of_their_own(name):
    config, choice, options = OWN_SPELLING[name]
    assert from_config(config, **choice) == (None if options is None else RotaryEmbedding(**options))


def test_axes_of_music_flamingo_are_a_window_and_a_frame():
    """Of 640 channels a fifth for each: two progressions of 64 pairs, each by a position axis of its own."""
    rope = from_config({"model_type": "musicflamingo", "audio_config": {"hidden_size": 640}})
    w, still = [1200.0 ** (-j / 64) for j in range(64)], [0.0] * 64
    assert (rope.axes, rope.rotary_dim) == (2, 256)
    np.testing.assert_allclose(rope.inv_freq, [w + still, still + w], rtol=1e-14, atol=0)


def test_colpali_is_read_where_its_model_reads():
    """In `vlm_config`, also where a text_config that no model reads stands beside it."""
    text = {"model_type": "gemma", "head_dim": 256, "rope_theta": 5e4}
    config = {"model_type": "colpali", "vlm_config": {"model_type": "paligemma", "text_config": text}}
    wanted = RotaryEmbedding(head_dim=256, layout="half", base=5e4)
    for more in ({}, {"text_config": {**text, "rope_theta": 7e4}}):
        assert from_config({**config, **more}) == from_config({**config, **more}, part="text") == wanted
    with pytest.raises(ValueError, match=r"^from_config: part must be one of text, text_config; got None$"):
        from_config({"model_type": "colpali", "text_config": text})


def test_grok_blends_logarithms():
    """Of the frequency f that is kept and f / 16: exp(ln f * kept + ln(f / 16) * (1 - kept)), for pairs in the ramp."""
    rope = from_config({**GROK_1, "rope_theta": 1e6, "beta_fast": 8, "beta_slow": 1, "rope_rotate_half_dims": True})
    assert (rope.rotary_dim, rope.attention_factor) == (64, 1.0)

    def pair(turns):
        return 64 * log(8192 / (turns * 2 * pi)) / (2 * log(1e6))

    low, high = np.floor(pair(8)), np.ceil(pair(1))
    j = np.arange(32)
    kept = 1 - np.clip((j - low) / (high - low), 0, 1)
    f = 1e6 ** (-2.0 * j / 64)
    assert 0 < low < high < 31
    np.testing.assert_allclose(rope.inv_freq, np.exp(np.log(f) * kept + np.log(f / 16) * (1 - kept)), rtol=1e-12)


def test_frequencies_that_are_trained_are_refused():
    config = {"model_type": "mistral_large4_text", **HEADS, "rope_parameters": LARGE4}
    with pytest.raises(ValueError, match=r"frequencies must be those of the config; got .*exponential of its weight"):
        from_config(config)
    yarn = YarnScaling(factor=2.0, original_max_position_embeddings=512)
    assert from_config(config, compat="transformers") == RotaryEmbedding(**LATENT_64, scaling=yarn)


def test_some_layers_are_scaled():
    """Molmo-2 lists those; which one is meant must be said where they differ."""
    block = {"rope_type": "linear", "factor": 4.0}
    config = {"model_type": "molmo2_text", **HEADS, "rope_parameters": block, "rope_scaling_layers": [*range(8)]}
    assert from_config(config) == RotaryEmbedding(**HALF_128, scaling=LinearScaling(factor=4.0))
    assert from_config({**config, "rope_scaling_layers": []}) == RotaryEmbedding(**HALF_128)
    with pytest.raises(ValueError, match=r"layer must be given, as rope_scaling_layers has some layers only"):
        from_config({**config, "rope_scaling_layers": [1, 2]})


def test_every_family_has_one_row():
    names = []
    for module, name in ((families, "TEXT"), (families_of_axes, "TEXT_AND_VISION")):
        tree = ast.parse(Path(module.__file__).read_text())
        (table,) = [node.value for node in tree.body if getattr(getattr(node, "target", None), "id", "") == name]
        names += [each for key in table.keys for each in ast.literal_eval(key).split()]
    assert len(names) == len(set(names)) == len(FAMILIES)


def test_every_default_is_read():
    """A default that a row misspells would change nothing, and nobody would see it."""
    known = {*USUAL, "rope_parameters", "original_max_position_embeddings", "mrope_section", "qk_rope_head_dim"}
    for name, family in FAMILIES.items():
        rows = [family, *family.layers.by_type.values()]
        widths = {key for row in rows if isinstance(row.head_dim, str) for key in row.head_dim.split(" | ")}
        for row in rows:
            assert {*row.defaults} <= known | widths | {*(family.layers.only_if or ())[:1]}, name


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
    "a block without a base": (
        {"model_type": "ministral3", "rope_parameters": {"rope_type": "yarn", **YARN}},
        {},
        lambda rope: rope.base,
        1e6,
        1e4,
    ),
    "a base and a share beside the default blocks": (
        {"model_type": "zaya", "rope_theta": 500.0, "partial_rotary_factor": 0.25},
        {"layer_type": "hybrid"},
        lambda rope: (rope.base, rope.rotary_dim),
        (500.0, 32),
        (5e6, 64),
    ),
    "Llama's share": (llama(partial_rotary_factor=0.5), {}, lambda rope: rope.rotary_dim, 64, 128),
    "Llama's share in the block": (
        llama(rope_theta=None, rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.5}),
        {},
        lambda rope: (rope.rotary_dim, rope.base),
        (64, 1e4),
        (128, 1e4),
    ),
    "Llama's width": (llama(rotary_dim=64), {}, lambda rope: rope.rotary_dim, 64, 128),
    "the name that GPT-NeoX has for a share": (llama(rotary_pct=0.5), {}, lambda rope: rope.rotary_dim, 64, 128),
    "the name that GPT-NeoX has for a base": (
        {**LLAMA, "rotary_emb_base": 500.0},
        {},
        lambda rope: rope.base,
        500.0,
        1e4,
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
        {
            **LLAMA,
            "model_type": "phi",
            "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25},
            "partial_rotary_factor": 0.5,
        },
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


SHARE = "partial_rotary_factor"
REMARKS = {
    "none": (llama(), []),
    "the whole head": (llama(partial_rotary_factor=1.0), []),
    "a family that reads it": (llama(model_type="phi", partial_rotary_factor=0.25), []),
    "a family that transformers does not have": ({**llama(partial_rotary_factor=0.5), "model_type": "minicpm"}, []),
    "a share": (llama(partial_rotary_factor=0.5), [f"transformers does not read {SHARE} in 'llama'"]),
    "a share in the block": (
        {**LLAMA, "rope_parameters": {"rope_theta": 1e4, SHARE: 0.5}},
        [f"transformers does not read {SHARE} in 'llama'"],
    ),
    "a width": (llama(rotary_dim=64), ["transformers does not read rotary_dim in 'llama'"]),
    "a share with a rule": (
        llama(rope_scaling={"rope_type": "linear", "factor": 2.0}, partial_rotary_factor=0.5),
        [f"transformers fails with {SHARE} and rope_type 'linear' in 'llama'"],
    ),
}


@pytest.mark.parametrize("name", REMARKS)
def test_what_transformers_does_not_read_is_remarked(name):
    config, remarks = REMARKS[name]
    found = [line for line in paragraphs(from_config(config).describe()) if line.startswith("remark")]
    assert len(found) == len(remarks)
    assert all(remark in line for line, remark in zip(found, remarks))
    if not any("fails" in remark for remark in remarks):
        assert "remark" not in from_config(config, compat="transformers").describe()


def test_a_share_with_which_transformers_fails_is_refused_there():
    config = llama(rope_scaling={"rope_type": "linear", "factor": 2.0}, partial_rotary_factor=0.5)
    assert from_config(config).rotary_dim == 64
    message = (
        r"^from_config: compat must be None for partial_rotary_factor=0.5 and rope_type 'linear' in 'llama', with "
    )
    with pytest.raises(ValueError, match=message):
        from_config(config, compat="transformers")
    own = {"model_type": "cwm", "rope_theta": 1e6, "partial_rotary_factor": 0.5}  # whose own block has a rule
    with pytest.raises(ValueError, match=r"rope_type 'llama3' in 'cwm', with which transformers fails"):
        from_config(own, compat="transformers")


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
    if rope.softmax_scale == 1.0:
        assert from_config({**LLAMA, "rope_parameters": block}) == rope
    latent = {"model_type": "deepseek_v3", "qk_rope_head_dim": 128, "rope_interleave": False}
    assert from_config({**LLAMA, **latent, "rope_parameters": block}) == rope


def test_voxtral_has_defaults_of_its_own_for_its_text():
    whole = {"model_type": "voxtral", "text_config": {"model_type": "llama"}}
    rope = from_config(whole)
    assert (rope.base, rope.head_dim) == (1e8, 128)
    whole = {"model_type": "voxtral_realtime", "text_config": {"model_type": "voxtral_realtime_text"}}
    assert from_config(whole).base == 1e6
    assert from_config(whole["text_config"]).base == 1e4


def test_a_part_that_is_left_out_is_refused():
    """What stands beside it says nothing of text, or is of something else."""
    for whole in ({"model_type": "lighton_ocr"}, {"model_type": "musicflamingo", "head_dim": 1280}):
        with pytest.raises(ValueError, match=r"^from_config: part must be one of .*; got 'text'"):
            from_config(whole, part="text")
    flat = {"model_type": "qwen2_vl", "hidden_size": 64, "num_attention_heads": 2, "rope_theta": 1e6}
    flat["rope_scaling"] = {"type": "mrope", "mrope_section": [4, 6, 6]}
    assert from_config(flat).head_dim == 32


def test_a_block_of_something_else_stands_beside_the_text_of_music_flamingo():
    block = {"rope_theta": 1200.0, "partial_rotary_factor": 0.2}
    text = {"model_type": "qwen2", "hidden_size": 64, "num_attention_heads": 2, "rope_theta": 1e4}
    whole = {"model_type": "musicflamingo", "rope_parameters": block, "text_config": text}
    assert from_config(whole) == from_config(text)


@pytest.mark.parametrize(
    "block", [{}, {"rope_scaling": {"type": "yarn", **YARN, "mscale": 0.7, "mscale_all_dim": 0.5}}]
)
def test_only_latent_attention_scales_its_softmax(block):
    """Ministral 3's own block has both numbers too, and its attention does not read them."""
    latent = from_config({**LLAMA, "model_type": "mistral4", **block})
    other = from_config({**LLAMA, "model_type": "ministral3", **block})
    growth = [0.1 * k * log(latent.scaling.factor) + 1 for k in ((0.7, 0.5) if block else (1.0, 1.0))]
    assert latent.softmax_scale == pytest.approx(growth[1] ** 2, rel=1e-15)
    assert other.softmax_scale == 1.0
    assert latent.attention_factor == pytest.approx(growth[0] / growth[1], rel=1e-15)
    assert other.attention_factor == pytest.approx(1.0 if not block else latent.attention_factor, rel=1e-15)


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


class Model:
    """Like a model of transformers: it is no config, and has one."""

    config = Config()

    def __repr__(self):
        return "layers " * 1000


class Holder:
    def __init__(self, held):
        self.held = held

    def to_dict(self):
        return self.held


def unknown(key, value):
    """What is said of a key of LLAMA that nobody knows; `value` is a pattern."""
    return rf"every key of the config of model_type 'llama' must be known; got \{{'{key}': {value}\}}.*"


def nested(depth):
    found = 0
    for _ in range(depth):
        found = [found]
    return found


ENDLESS = {}
ENDLESS["itself"] = ENDLESS
DOUBLED = [0, 0]
for _ in range(25):
    DOUBLED = [DOUBLED, DOUBLED]


# Config, error, what the message must say after "from_config: ", and a choice where one is needed to get so far.
BAD = {
    "no config": (7, TypeError, r"config must be a path, a mapping or an object with to_dict\(\); got int$"),
    "a model": (
        Model(),
        TypeError,
        r"config must be a path, .* or an object with to_dict\(\); got Model: pass its config, model\.config$",
    ),
    "an object that holds a list": (Holder([]), TypeError, r"config must hold a mapping; got list"),
    "no rotary model": (
        {"model_type": "bert"},
        ValueError,
        r"model_type must be one of the .* rotary families .*; got 'bert', which is like .*",
    ),
    "no model_type": (
        {"hidden_size": 64},
        ValueError,
        r"model_type must be in the config, or layout be given; got neither",
    ),
    "a misspelt model_type": (
        {**LLAMA, "model_type": "llama2"},
        ValueError,
        r"model_type must be one of .*; got 'llama2', which is like llama",
    ),
    "no width": ({"model_type": "llama"}, ValueError, r"head_dim or hidden_size / num_attention_heads must be given"),
    "a width of a string": (llama(head_dim="128"), TypeError, r"head_dim must be an int; got str"),
    "no heads": (llama(num_attention_heads=0), ValueError, r"num_attention_heads must be at least 1; got 0"),
    "an odd width": (
        llama(head_dim=127),
        ValueError,
        r"RotaryEmbedding: head_dim must be even, at least 2; got 127",
    ),
    "an unknown type": (
        llama(rope_scaling={"type": "yarm", **YARN}),
        ValueError,
        r"rope_type must be one of .*llama3, longrope.*; got 'yarm'",
    ),
    "two types": (
        llama(rope_scaling={"type": "yarn", "rope_type": "linear", **YARN}),
        ValueError,
        r"rope_type and type must not contradict each other; got \{'rope_type': 'linear', 'type': 'yarn'\}",
    ),
    "an unknown key": (
        llama(rope_scalling={"type": "linear"}),
        ValueError,
        r"every key of the config of model_type 'llama' must be known; got \{'rope_scalling': .*\}, "
        r"which is like rope_scaling, beside hidden_size, ",
    ),
    "an unknown key in the block": (
        llama(rope_scaling={"type": "yarn", **YARN, "beta": 1}),
        ValueError,
        r"every key of rope_scaling must be known; got \{'beta': 1\}, beside factor, .*, type$",
    ),
    "a misspelt key in the block": (
        llama(rope_scaling={"type": "yarn", **YARN, "beta_fsat": 1}),
        ValueError,
        r"every key of rope_scaling must be known; got \{'beta_fsat': 1\}, which is like beta_fast, beside",
    ),
    "a key of another rule": (
        llama(rope_scaling={"type": "default", "factor": 2.0}),
        ValueError,
        r"every key of rope_scaling must be known; got \{'factor': 2.0\}, beside type",
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
    "alibi": (llama(alibi=True), ValueError, unknown("alibi", "True")),
    "dual chunks of no size": (
        llama(dual_chunk_attention_config="yes"),
        TypeError,
        r"dual_chunk_attention_config must be a mapping; got 'yes'",
    ),
    **{
        f"{key}={value!r}": (llama(**{key: value}), ValueError, unknown(key, re.escape(repr(value))))
        for key, value in {
            "use_alibi": True,
            "AliBi": True,
            "position_embedding_type": "nope",
            "Position_Embedding_Type": "alibi",
            "position_embeddings_type": "relative",
            "positional_encoding": "no_rope",
            "pos_emb": "learned",
            "pos_enc_type": 3,
            "no_pos_emb": True,
            "noPosEmb": True,
            "use_nope": True,
            "nope_layers": [3],
            "DualChunkAttentionConfig": {"chunk_size": 1},
            "partialRot": 0.5,
        }.items()
    },
    **{
        f"{key}, of other letters": (
            {**LLAMA, key: value},
            ValueError,
            unknown(key, ".*") + f"which is like .*{name}.*beside",
        )
        for key, value, name in [
            ("Rope_Theta", 5e5, "rope_theta"),
            ("ropeTheta", 5e5, "rope_theta"),
            ("ROPE_SCALING", {"type": "linear", "factor": 2.0}, "rope_scaling"),
            ("ROPE_SCALING", None, "rope_scaling"),
            ("Rotary_Dim", 64, "rotary_dim"),
            ("Head_Dim", 64, "head_dim"),
            ("headdim", None, "head_dim"),
            ("Max_Position_Embeddings", 64, "max_position_embeddings"),
            ("originalMaxPositionEmbeddings", 64, "original_max_position_embeddings"),
        ]
    },
    "a window of other letters": (
        {"model_type": "exaone4", "head_dim": 16, "rope_theta": 1e4, "Sliding_Window": None},
        ValueError,
        r"every key of .* must be known; got \{'Sliding_Window': None\}, which is like sliding_window",
        {"layer_type": "full_attention"},
    ),
    "a list of layers of other letters": (
        {"model_type": "smollm3", "head_dim": 16, "rope_theta": 1e4, "noropelayers": [0]},
        ValueError,
        r"every key of .* must be known; got \{'noropelayers': \[0\]\}, which is like no_rope_layers",
    ),
    "a key of the block, of other letters": (
        llama(rope_scaling={"type": "yarn", **YARN, "Beta_Fast": 16}),
        ValueError,
        r"every key of rope_scaling must be known; got \{'Beta_Fast': 16\}, which is like beta_fast",
    ),
    "a part, of other letters": (
        {"model_type": "gemma3", "Text_Config": GEMMA3},
        ValueError,
        r"text_config must be spelled so; got 'Text_Config'",
    ),
    "a model_type, of other letters": (
        {**LLAMA, "Model_Type": "gptj"},
        ValueError,
        r"model_type must be spelled so; got 'Model_Type'",
    ),
    "alibi beside the text": (
        {"model_type": "llava", "text_config": llama(), "alibi": True},
        ValueError,
        r"keys of rotation must stand in the part, not beside it; got \{'alibi': True\}",
    ),
    "alibi in attn_config": (
        {"model_type": "dbrx", "d_model": 64, "n_heads": 4, "attn_config": {"alibi": True, "rope_theta": 1e4}},
        ValueError,
        r"every key of attn_config must be known; got \{'alibi': True\}, beside rope_theta",
    ),
    "a wide head": (llama(head_dim=2**14 + 2), ValueError, r"head_dim must be at most 16384; got 16386"),
    "many layers": (
        {**GEMMA3, "num_hidden_layers": 10**9},
        ValueError,
        r"num_hidden_layers must be at most 16384; got 1000000000",
        {"layer": 0},
    ),
    "a layer far up": (llama(), ValueError, r"layer must be below 16384; got 16384", {"layer": 2**14}),
    "many axes": (
        llama(rope_scaling={"type": "mrope", "mrope_section": [4] * 17}, model_type="unknown"),
        ValueError,
        r"mrope_section must have at most 16 numbers; got 17",
        {"layout": "half"},
    ),
    "a share beyond all": (
        llama(partial_rotary_factor=1e308),
        ValueError,
        r"partial_rotary_factor must be at most 128, the head_dim; got 1e\+308",
    ),
    "many digits": (llama(vocab_size=10**5000), ValueError, r"an int must have at most 2048 bits; got 16610 bits"),
    "a layer of many digits": (
        llama(),
        ValueError,
        r"an int must have at most 2048 bits; got 16610 bits",
        {"layer": 10**5000},
    ),
    "a deep nest": (llama(other=nested(32)), ValueError, r"config must be nested at most 32 deep; got more"),
    "a nest without end": (llama(other=ENDLESS), ValueError, r"config must be nested at most 32 deep; got more"),
    "a doubling nest": (llama(other=DOUBLED), ValueError, r"config must hold at most 1000000 values; got more"),
    "long values": (
        llama(rope_scaling={"type": "linear" * 1000, "x" * 1000: "y" * 1000}),
        ValueError,
        r"rope_type must be one of .*; got 'linearlinear.* \.\.\. .*linear'$",
    ),
    "a long model_type": ({"model_type": "l" * 10**6}, ValueError, r"model_type must be one of .* \.\.\. "),
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
        r"rope_parameters must be nested by layer type, full_attention, or not at all; got \{'factor': 2\} beside",
        {"layer_type": "full_attention"},
    ),
    "a flat block where layers differ": (
        {
            "model_type": "gemma3_text",
            "head_dim": 16,
            "rope_parameters": {"rope_theta": 1e4},
            "layer_types": ["full_attention"],
        },
        ValueError,
        r"rope_parameters must be nested by layer type, full_attention, sliding_attention; got \{'rope_theta': 10000",
        {"layer_type": "full_attention"},
    ),
    "an error in a block for other layers": (
        {**GEMMA3, "rope_scaling": {"rope_type": "linear", "factor": 0.5}, "layer_types": ["sliding_attention"]},
        ValueError,
        r"LinearScaling: factor must be at least 1; got 0.5",
        {"layer_type": "sliding_attention"},
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
    "text without rotation": (
        {"model_type": "llava", "text_config": {"model_type": "opt"}},
        ValueError,
        r"model_type must be one of the \d+ rotary families .*; got 'opt', which is like",
    ),
    "a type of a list, of a part": (
        {"model_type": "llava", "text_config": {"model_type": ["llama"]}},
        TypeError,
        r"model_type must be a string; got \['llama'\]",
    ),
    "types of layers that are no strings": (
        {"model_type": "recurrent_gemma", "head_dim": 16, "block_types": [1], "num_hidden_layers": 3},
        TypeError,
        r"layer_types must be a list of strings; got \[1, 1, 1\]",
    ),
    "a layer whose number has many digits": (
        llama(per_layer_config={"9" * 5000: {}}),
        ValueError,
        r"keys of per_layer_config must be indices of layers; got 999",
    ),
    "rotation beside the text": (
        {"model_type": "llava", "text_config": llama(), "rope_theta": 7.0},
        ValueError,
        r"keys of rotation must stand in the part, not beside it; got \{'rope_theta': 7.0\}",
    ),
}


GROK = {**GROK_1, "model_type": "git", "architectures": ["Grok1ForCausalLM"]}
BAD |= {
    "no rotation": (
        {"model_type": "mpt"},
        ValueError,
        r"must be of a family with a rotary embedding; got 'mpt', whose attention has biases .*ALiBi",
    ),
    "the first ChatGLM": (
        {"model_type": "chatglm", **HEADS, "position_encoding_2d": True},
        ValueError,
        r"position_encoding_2d must be False in model_type 'chatglm'; got True",
    ),
    "two bases of ChatGLM": (
        {"model_type": "chatglm", **HEADS, "rope_ratio": 50, "rope_theta": 1e4},
        ValueError,
        r"rope_theta must be 500000\.0, as rope_ratio says; got 10000\.0",
    ),
    "a ratio of a string": (
        {"model_type": "chatglm", **HEADS, "rope_ratio": "50"},
        TypeError,
        r"rope_ratio must be a number; got '50'",
    ),
    "Qwen with other positions": (
        {"model_type": "qwen", **HEADS, "pos_emb": "alibi"},
        ValueError,
        r"pos_emb must be 'rotary' in model_type 'qwen'; got 'alibi'",
    ),
    "a switch of a string": (
        {"model_type": "qwen", **HEADS, "use_dynamic_ntk": "yes", "seq_length": 8},
        TypeError,
        r"use_dynamic_ntk must be a bool; got str",
    ),
    "a Baichuan of another size": (
        {"model_type": "baichuan", "hidden_size": 2048, "num_attention_heads": 16},
        ValueError,
        r"hidden_size must be 4096 \(7B, rotated\) or 5120 .*; got 2048",
    ),
    "an InternLM of another rule": (
        {"model_type": "internlm", **HEADS, "rotary": {"base": 1e4, "type": "linear"}},
        ValueError,
        r"type of rotary must be 'dynamic' or 'origin'; got 'linear'",
    ),
    "an unknown key of an InternLM": (
        {"model_type": "internlm", **HEADS, "rotary": {"base": 1e4, "type": "origin", "scale": 2}},
        ValueError,
        r"every key of rotary must be known; got \{'scale': 2\}",
    ),
    "an Ernie without axes": (
        {"model_type": "ernie4_5_moe_vl", **HEADS, "rope_3d": False},
        ValueError,
        r"rope_3d must be True in model_type 'ernie4_5_moe_vl'; got False",
    ),
    "sections of Ernie that contradict each other": (
        {
            "model_type": "ernie4_5_moe_vl",
            "head_dim": 128,
            "freq_allocation": 20,
            "rope_scaling": {"mrope_section": [20, 20, 24]},
        },
        ValueError,
        r"mrope_section must be said once; got \[20, 20, 24\] in rope_scaling and \[22, 22, 20\] beside it",
    ),
    "architectures of another kind": ({**GROK, "architectures": 7}, TypeError, r"architectures must be a list; got 7"),
    "a Grok without a factor": (
        {**GROK, "scaling_factor": None},
        ValueError,
        r"rope_scaling of type 'yarn_log' must have factor; got ",
    ),
    "the rule of Grok in another family": (
        llama(rope_scaling={"rope_type": "yarn_log", **YARN}),
        ValueError,
        r"rope_type must be one of .*; got 'yarn_log'",
    ),
    **{
        f"{key} in other letters": (
            {**config, key: 2},
            ValueError,
            rf"got \{{'{key}': 2\}}, which is like .*{like}",
            *choice,
        )
        for key, like, config, *choice in (
            ("Rope_Ratio", "rope_ratio", {"model_type": "chatglm", **HEADS}),
            ("NameOrPath", "_name_or_path", {"model_type": "chatglm", **HEADS, "rope_ratio": 2}),
            ("useDynamicNTK", "use_dynamic_ntk", {"model_type": "qwen"}),
            ("seqLength", "seq_length", {"model_type": "qwen"}),
            ("ROTARY", "rotary", {"model_type": "internlm", **HEADS}),
            ("scalingFactor", "scaling_factor", GROK),
            ("freqAllocation", "freq_allocation", {"model_type": "ernie4_5_moe_vl", "head_dim": 128}),
            (
                "SWA_rope_theta",
                "swa_rope_theta",
                {"model_type": "mimo_v2_flash", **SLIDING},
                {"layer": 0},
            ),
            ("Yarn_Only_Types", "yarn_only_types", {"model_type": "step3p5", **SLIDING}, {"layer": 0}),
        )
    },
    "a part with no key of its own": (
        {"model_type": "gemma3", "text_config": {"a": {"b": 1}}},
        ValueError,
        r"the config of model_type 'gemma3_text' must have a key that is known; got a",
        {"layer_type": "full_attention"},
    ),
    "a pattern of MiMo in words": (
        {"model_type": "mimo_v2_flash", "hybrid_layer_pattern": [0, "9"]},
        ValueError,
        r"hybrid_layer_pattern must be a list of 0 and 1; got '9' in it",
        {"layer": 1},
    ),
    **{
        f"{what}, as transformers": (
            {"model_type": "step3p5", "rope_theta": [1e4], "layer_types": types},
            error,
            message,
            {"layer": 0, "compat": "transformers"},
        )
        for what, types, error, message in (
            ("types that are no list", 7, TypeError, r"layer_types must be a list; got 7"),
            (
                "fewer bases than types",
                ["full_attention", "sliding_attention"],
                ValueError,
                r"rope_theta must have a number for each layer; got 1",
            ),
        )
    },
    "a period beyond any count": (
        llama(model_type="smollm3", no_rope_layer_interval=10**400),
        ValueError,
        r"no_rope_layer_interval must be below 2\*\*53; got 1000",
    ),
    "no Grok": (
        {"model_type": "git"},
        ValueError,
        r"architectures must have 'Grok1ForCausalLM' .*; got none of a Grok",
    ),
    "a rule of Grok": ({**GROK, "rope_type": "theta_scale"}, ValueError, r"rope_type must be one of .*'theta_scale'"),
    "an extrapolation": (
        {**GROK, "extrapolation_factor": 0.5},
        ValueError,
        r"extrapolation_factor must be 1\.0 in model_type 'git'; got 0\.5",
    ),
    "two bases of MiMo": (
        {
            "model_type": "mimo_v2_flash",
            "swa_rope_theta": 1e4,
            "rope_parameters": {"sliding_attention": {"rope_theta": 2e4}},
            "layer_types": ["sliding_attention"],
        },
        ValueError,
        r"rope_theta must be said once; got 20000\.0 in .* and 10000\.0 beside it",
        {"layer": 0},
    ),
    "other layers of Step-3.5": (
        {"model_type": "step3p5", "yarn_only_types": ["sliding_attention"]},
        ValueError,
        r"yarn_only_types must be \['full_attention'\] .*; got \['sliding_attention'\]",
    ),
    "a width of Bamba said twice": (
        {"model_type": "bamba", "head_dim": 128, "attn_rotary_emb": 32, "partial_rotary_factor": 0.5},
        ValueError,
        r"the width that turns must be said once; got 32 channels and partial_rotary_factor=0\.5 of 128",
    ),
    "a factor beside the block": (
        llama(rotary_scaling_factor=2.0),
        ValueError,
        r"got \{'rotary_scaling_factor': 2\.0\}",
    ),
    "xdrope": (llama(position_embedding_xdrope=True), ValueError, r"got \{'position_embedding_xdrope': True\}"),
    "neighbours": (llama(rope_traditional=True), ValueError, r"rope_interleave must be False for this model_type"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_configs(name):
    config, error, message, *choice = BAD[name]
    with pytest.raises(error, match=f"^from_config: .*{message}") as raised:
        from_config(config, **(choice[0] if choice else {}))
    assert type(raised.value) is error and len(str(raised.value)) < 1000


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
        ({"seq_len": 2**53}, ValueError, r"seq_len must be at least 1 and below 2\*\*53; got 9007199254740992"),
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


@pytest.mark.parametrize("name", ["none.json", "meta-llama/Llama-3.1-8B", "\0", "n" * 5000, '{"model_type": "llama"}'])
def test_a_file_that_does_not_exist(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        FileNotFoundError,
        match=r"^from_config: config must be a config.json on this machine, or the folder it is in .*; "
        r"got .*, which does not exist$",
    ) as raised:
        from_config(name)
    assert len(str(raised.value)) < 1000


def test_a_folder_without_a_config(tmp_path):
    with pytest.raises(FileNotFoundError, match=rf"got '{re.escape(str(tmp_path / 'config.json'))}', which does not"):
        from_config(tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_only_regular_files_are_opened(tmp_path, kind):
    path = tmp_path / "config.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    given = "/dev/zero" if kind == "device" else tmp_path
    with pytest.raises(ValueError, match=r"^from_config: config must be a regular file; got '/.*'$"):
        from_config(given)


def test_a_file_has_bounds(tmp_path):
    path = tmp_path / "config.json"
    with open(path, "wb") as file:
        file.truncate(2**40)  # of zeros that no disk holds
    with pytest.raises(ValueError, match=r"^from_config: .*config\.json must have at most 16777216 bytes; got more$"):
        from_config(path)
    path.write_text("[" * 10**5 + "]" * 10**5)
    with pytest.raises(ValueError, match=r"^from_config: .*config\.json must be nested at most 32 deep; got more$"):
        from_config(path)
    path.write_text('{"model_type": "llama", "vocab_size": ' + "9" * 5000 + "}")
    with pytest.raises(ValueError, match=r"^from_config: an int must have at most 2048 bits; got 5000 digits$"):
        from_config(path)


@pytest.mark.parametrize(
    "text, key",
    [
        (
            '{"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.0}, "rope_scaling": null}',
            "rope_scaling",
        ),
        ('{"rope_scaling": {"type": "linear", "factor": 2.0, "factor": 2.0}}', "factor"),
        ('{"text_config": [{"a": 1, "b": 2, "a": 3}]}', "a"),
    ],
)
def test_a_key_that_stands_twice(tmp_path, text, key):
    path = tmp_path / "config.json"
    path.write_text(text)
    message = rf"^from_config: every key must be in an object of JSON once; got '{key}' 2 times$"
    with pytest.raises(ValueError, match=message):
        from_config(path)


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    path.write_text("{}")

    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refused)
    with pytest.raises(PermissionError, match=r"^from_config: .* must be readable; got Permission denied$"):
        from_config(path)


def test_dual_chunks_are_told_of():
    rope = from_config(llama(dual_chunk_attention_config={"chunk_size": 4096, "local_size": 512}))
    remark = paragraphs(rope.describe())[-1]
    assert remark.startswith("remark            dual_chunk_attention_config is not applied: beyond chunk_size=4096")


@pytest.mark.parametrize(
    "keys",
    [
        {"alibi": False, "use_alibi": None, "no_pos_emb": False, "dual_chunk_attention_config": None},
        {"position_embedding_type": "rotary", "pos_emb": "RoPE", "positional_encoding": "rope_gptj"},
        {"position_embedding_type": None, "qk_nope_head_dim": 128, "num_position_embeddings": 2304},
        {"position_embedding_size": 10, "pos_emb_height": 32, "pos_embed_rescale": 2.0, "Extra_Thing": 1},
        {"max_source_positions": 3, "dropout_positions": 0.0},
    ],
    ids=str,
)
def test_keys_that_change_no_position(keys):
    assert from_config(llama(**keys)) == from_config(llama())


def test_what_does_not_scale_is_checked_all_the_same():
    bad = {**GEMMA3, "rope_scaling": {"rope_type": "linear", "factor": 0.5}}
    with pytest.raises(ValueError, match="factor must be at least 1"):
        from_config(bad, layer_type="sliding_attention")
    assert replace(from_config(GEMMA3, layer=0), phase="float32").phase == "float32"


@pytest.mark.parametrize("model_type", ["phi3", "phi3_v", "phi4mm", "phi4_multimodal", "phimoe"])
def test_the_length_that_phi_was_trained_on(model_type):
    """4096 tokens in `configuration_phi3.py` and its descendants, however long the sequences may be."""
    block = {"type": "longrope", "short_factor": [1.0] * 64, "long_factor": [2.0] * 64}
    block |= {"short_mscale": 1.0, "long_mscale": 1.0} if model_type == "phimoe" else {}
    config = {"model_type": model_type, "head_dim": 128, "max_position_embeddings": 131_072, "rope_scaling": block}
    assert from_config(config).scaling.original_max_position_embeddings == 4096
