"""from_config: every spelling of one meaning, upstream's mistakes on request, and errors that name the key."""

import ast
import copy
import json
import os
import pickle
import re
from dataclasses import replace
from itertools import product
from math import log, sqrt
from operator import attrgetter
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
from rope_xp.configs.families import model_types
from rope_xp.configs.families.family import COMMON_DEFAULTS
from rope_xp.configs.families.model_types import FAMILIES
from rope_xp.configs.parts import PARTS
from rope_xp.configs.readers.formats import mapping_of
from rope_xp.frequencies import geometric
from rope_xp.provenance import Provenance, with_provenance

FULL, SLIDING = "full_attention", "sliding_attention"
LENGTH, SHARE = "original_max_position_embeddings", "partial_rotary_factor"
ORIGINAL = {LENGTH: 2048}
YARN = {"factor": 4.0, **ORIGINAL}
YARN_BLOCK = {"type": "yarn", **YARN}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **ORIGINAL}
FACTORS = {"short_factor": [1.0] * 64, "long_factor": [4.0] * 64}
LONG = {**FACTORS, "factor": 4.0, **ORIGINAL}
MSCALES = {"short_mscale": 1.1, "long_mscale": 1.3}
DEFAULT = {"rope_type": "default"}
LINEAR = {"rope_type": "linear", "factor": 8.0}
HEADS = {"hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 8}
FEW_HEADS = {"hidden_size": 64, "num_attention_heads": 4}
UPSTREAM, LAYER_0 = {"compat": "transformers"}, {"layer": 0}
OF_FULL, OF_SLIDING = {"layer_type": FULL}, {"layer_type": SLIDING}


def of(model_type, head_dim=None, **keys):
    """A config that states these keys only."""
    return {"model_type": model_type, **({} if head_dim is None else {"head_dim": head_dim}), **keys}


def bare(model_type="llama", **keys):
    """A config that states widths and no base: heads of 128 channels."""
    return of(model_type, **{"hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 8192, **keys})


def llama(model_type="llama", **keys):
    return bare(model_type, **{"rope_theta": 5e5, **keys})


def scaled(rope_type, /, **keys):
    """A Llama with a block in the older spelling."""
    return llama(rope_scaling={"type": rope_type, **keys})


def half(head_dim=128, base=1e4, **options):
    return RotaryEmbedding(head_dim=head_dim, **{"layout": "half", "base": base, **options})


def latent(head_dim=64, base=1e4, **options):
    return half(head_dim, base, layout="interleaved_to_half", **options)


LLAMA = bare()
GEMMA3 = of("gemma3_text", 16, rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling=LINEAR, num_hidden_layers=12)
GROK_1 = of("grok1", rope_type="yarn_log", scaling_factor=16.0, original_max_position_embeddings=8192)
GROK = {**GROK_1, "model_type": "git", "architectures": ["Grok1ForCausalLM"]}


def read(config, choice=None):
    """The embedding of a row: a config, and arguments if there are any."""
    return from_config(config, **(choice or {}))


def one_line(text):
    """The rows of a description, each on one line."""
    return re.sub(r"\n +", " ", text).splitlines()


def words(text):
    """A text without its line breaks."""
    return " ".join(text.split())


def name_of(value):
    """The id of a parameter that is a config, a block or a message."""
    names = [value[key] for key in ("model_type", "rope_type") if key in value] if isinstance(value, dict) else [value]
    return str(*names[:1])[:60]


RULES = [
    (LINEAR, LinearScaling(factor=8.0)),
    ({"rope_type": "yarn", **YARN}, YarnScaling(**YARN)),
    ({"rope_type": "yarn", **YARN, "truncate": False}, YarnScaling(**YARN, truncate=False)),
    ({"rope_type": "llama3", **LLAMA3}, Llama3Scaling(**LLAMA3)),
    ({"rope_type": "longrope", **LONG}, LongRopeScaling(**LONG)),
    ({"rope_type": "dynamic", "factor": 2.0}, DynamicNTKScaling(factor=2.0, max_position_embeddings=8192)),
    ({"rope_type": "dynamic", "alpha": 50.0}, NTKScaling(factor=50.0)),
    ({"rope_type": "ntk", "factor": 4.0, "mixed_b": 0.6}, MixedNTKScaling(factor=4.0, mixed_b=0.6)),
    ({"rope_type": "proportional", SHARE: 0.5}, ProportionalScaling(partial_rotary_factor=0.5)),
    (DEFAULT, None),
]


@pytest.mark.parametrize("block, scaling", RULES, ids=name_of)
def test_one_meaning_in_every_spelling(block, scaling):
    numbers = {key: value for key, value in block.items() if key != "rope_type"}
    old, based = {"type": block["rope_type"], **numbers}, {**block, "rope_theta": 5e5}
    nested = bare(layer_types=[FULL], rope_parameters={FULL: based})
    for config in (
        llama(rope_scaling=block),
        llama(rope_scaling=old),
        bare(rope_scaling=based),
        bare(rope_parameters=based),
        bare(rope_parameters={**old, "rope_theta": 5e5}),
    ):
        assert from_config(config) == half(base=5e5, scaling=scaling)
    assert from_config(nested, layer=0) == from_config(nested, **OF_FULL) == half(base=5e5, scaling=scaling)


class Config:
    def to_dict(self):
        return llama()


def test_a_path_a_mapping_or_an_object(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8-sig")
    assert from_config(tmp_path) == from_config(LLAMA)
    path.write_text(json.dumps(llama()))
    assert [from_config(given) for given in (path, str(path), llama(), Config())] == 4 * [half(base=5e5)]


def test_layout_overrides_the_family_and_admits_unknown_ones():
    assert from_config(llama(), layout="interleaved").layout == "interleaved"
    assert from_config(llama("my_own_model"), layout="half") == from_config(llama())
    sections = {"mrope_section": [24, 20, 20], "mrope_interleaved": True, **DEFAULT}
    rope = from_config(llama("my_own_model", rope_scaling=sections), layout="half")
    assert rope.sections == Sections((24, 20, 20), order="interleaved")
    sections["mrope_section"] = [16] * 4  # transformers takes pairs from three axes only
    assert from_config(llama("my_own_model", rope_scaling=sections), layout="half", **UPSTREAM).axes == 4
    with pytest.raises(ValueError, match="rope_theta, the base, must be given"):
        from_config(bare("my_own_model"), layout="half")
    assert from_config(of("mistral4", rope_interleave=False)).layout == "half"
    config = of("deepseek_v3", qk_rope_head_dim=64, rope_interleave=False)
    assert from_config(config).layout == "half"
    assert from_config(config, layout="interleaved").layout == "interleaved"


def deepseek_attention_factor(factor, mscale=1.0, mscale_all_dim=0.0):
    """As DeepSeek's modeling_deepseek.py and vLLM's deepseek_scaling_rope.py have it, with their defaults."""
    above, below = (1.0 if factor <= 1 else 1.0 + number * log(factor) / 10 for number in (mscale, mscale_all_dim))
    return above / below


@pytest.mark.parametrize("mscale, all_dim", [*product((None, 0.0, 0.5, 0.707), repeat=2)])
@pytest.mark.parametrize("factor", [1.0, 40.0])
def test_yarn_of_deepseek_and_of_transformers(mscale, all_dim, factor):
    """A number that is null, or absent, is DeepSeek's default; transformers reads both numbers or none."""
    given = {"mscale": mscale, "mscale_all_dim": all_dim}
    stated = {name: value for name, value in given.items() if value is not None}
    config = of("deepseek_v3", qk_rope_head_dim=64, rope_theta=1e4)
    for numbers in (given, stated):
        block = {"factor": factor, LENGTH: 4096, **numbers}
        theirs = from_config({**config, "rope_scaling": {"rope_type": "deepseek_yarn", **block}})
        plain = from_config({**config, "rope_scaling": {"type": "yarn", **block}})
        expected = deepseek_attention_factor(factor, **(stated if mscale and all_dim else {}))
        assert theirs.attention_factor == pytest.approx(deepseek_attention_factor(factor, **stated), rel=1e-15)
        assert plain.attention_factor == pytest.approx(expected, rel=1e-15)
        softmax_scale = deepseek_attention_factor(factor, all_dim or 0.0) ** 2
        assert theirs.softmax_scale == plain.softmax_scale == pytest.approx(softmax_scale, rel=1e-15)
        assert theirs.inv_freq == plain.inv_freq
        both = {"rope_type": "deepseek_yarn", "type": "yarn", **block}
        assert from_config({**config, "rope_scaling": both}) == theirs
        assert from_config({**config, "rope_scaling": {**both, "attention_factor": 2.0}}).attention_factor == 2.0
        assert from_config({**config, "rope_parameters": theirs.to_config()}) == theirs


# What a config leaves out: the rows of `describe` that show it, each with its key, and whose default it is where that
# is not the family's; the config; and the choice.
GPTJ = of("gptj", n_embd=4096, n_head=16)
ATOMS = of("esmfold2_atom_encoder", 128, num_spatial_rope_pairs_per_axis=4)
OF_ATOMS = "frequencies: rope_theta; : num_uid_rope_pairs; : spatial_rope_base_frequency; : uid_rope_base_frequency"
CHATGLM_50 = of("chatglm", kv_channels=128, partial_rotary_factor=0.5, rope_ratio=50)
OF_LENGTH = f"scaling: {LENGTH}: equal to max_position_embeddings"
V4 = of("deepseek_v4", 512, qk_rope_head_dim=64, compress_rope_theta=1.6e5, rope_scaling=YARN_BLOCK)
LOCAL = {**GEMMA3, "rope_local_base_freq": None, "sliding_window_pattern": 6}
GROK_OF_LENGTH = {**GROK_1, LENGTH: None, "head_dim": 128, "rope_theta": 1e4, "max_position_embeddings": 8192}
UNSTATED = [
    ([], llama()),
    (["frequencies: rope_theta"], LLAMA),
    (["frequencies: rope_theta"], llama(rope_theta=None)),
    (["frequencies: rope_theta"], bare(rope_scaling=YARN_BLOCK)),
    ([OF_LENGTH], scaled("yarn", factor=4.0)),
    ([f"scaling: {LENGTH}"], llama("phi3", rope_scaling={"type": "su", **FACTORS})),
    ([f"channels: {SHARE}"], llama("phi")),
    ([": rotary_dim"], GPTJ),
    ([], {**GPTJ, "rotary_dim": None}),
    (["channels: head_dim"], of("qwen3", rope_theta=1e6)),
    (["channels: qk_rope_head_dim"], of("deepseek_v3", rope_theta=1e4)),
    (["scaling: rope_parameters"], of("gpt_oss", 64, rope_theta=1.5e5)),
    (["frequencies: rope_theta"], of("pe_audio_encoder", 128)),
    ([f"channels: {SHARE}"], llama("moonshine_streaming")),
    (["position axes: mrope_section"], llama("qwen2_vl_text")),
    (["attention factor: attention_factor"], V4, {"layer_type": "compress"}),
    (["frequencies: rope_local_base_freq"], LOCAL, LAYER_0),
    ([": layer_types"], GEMMA3, {"layer": 5}),
    ([], GEMMA3, OF_FULL),
    ([], {**GEMMA3, "sliding_window_pattern": 6}, {"layer": 5}),
    ([": no_rope_layers"], llama("smollm3"), LAYER_0),
    ([], llama("smollm3", no_rope_layer_interval=4), LAYER_0),
    ([": alibi"], llama("falcon")),
    ([], llama("falcon", alibi=False)),
    (OF_ATOMS.split("; "), ATOMS),
    (["scaling: rotary", "scaling: max_position_embeddings"], of("internlm", 64, rotary={"base": 1e4})),
    (["scaling: use_dynamic_ntk"], of("qwen", kv_channels=128, rotary_emb_base=1e4, seq_length=8), {"seq_len": 9}),
    (["frequencies: _name_or_path: assumed not to be ChatGLM2"], CHATGLM_50),
    ([OF_LENGTH], GROK_OF_LENGTH),
    ([], of("olmo3", 16, rope_theta=5e5, rope_scaling=YARN_BLOCK), OF_SLIDING),
]


@pytest.mark.parametrize("row", UNSTATED, ids=lambda row: name_of(row[1]))
def test_values_that_a_config_does_not_state(row):
    unstated, config, *choice = row
    choice = choice[0] if choice else {}
    rope = from_config(config, **choice)
    rows = [
        (row, key, *(source or [f"default of {config['model_type']}"]))
        for row, key, *source in (text.split(": ") for text in unstated)
    ]
    assert list(rope._provenance.defaults) == rows
    lines = one_line(rope.describe())
    assert sum(line.count("not in the config") for line in lines) == len({row for row, *_ in rows})
    for row, key, source in rows:
        assert f"{key}, {source}" in next(line for line in lines if line.startswith(row or "not in the config"))
    if unstated:
        with pytest.raises(ValueError, match=r"^from_config: every value must be in the config with strict=True; got "):
            from_config(config, **choice, strict=True)
    else:
        assert from_config(config, **choice, strict=True) == rope


def test_strict_names_every_key_that_is_missing():
    with pytest.raises(ValueError, match=r"got head_dim, default of qwen3; rope_theta, default of qwen3$"):
        from_config(of("qwen3"), strict=True)
    with pytest.raises(ValueError, match=r"got position_embedding_type, default of esm$"):  # None, without `strict`
        from_config(of("esm", **FEW_HEADS), strict=True)


def test_provenance_is_no_part_of_the_value():
    stated, unstated = from_config(llama(rope_theta=1e4)), from_config(LLAMA)
    assert stated == unstated and hash(stated) == hash(unstated) and repr(stated) == repr(unstated)
    for kept in (copy.copy(unstated), copy.deepcopy(unstated), pickle.loads(pickle.dumps(unstated))):
        assert kept == unstated and "not in the config: rope_theta" in words(kept.describe())
    assert "not in the config" not in words(replace(unstated).describe())
    assert replace(unstated).describe() == stated.describe() == half().describe()
    remarked = with_provenance(stated, Provenance(remarks=("one", "two")))
    assert remarked.describe() == stated.describe() + "\nremark            one\nremark            two"


def test_blocks_of_layer_types():
    full, sliding = half(16, 1e6, scaling=LinearScaling(factor=8.0)), half(16)
    assert [from_config(GEMMA3, layer=layer) for layer in (4, 5, 6)] == [sliding, full, sliding]
    blocks = {FULL: full.to_config(), SLIDING: sliding.to_config()}
    nested = of("gemma3_text", 16, layer_types=[SLIDING, FULL], rope_parameters=blocks)
    assert [from_config(nested, layer=layer) for layer in (0, 1)] == [sliding, full]
    blocks[FULL] = None
    assert from_config(nested, layer=1) is None


# Which layers are rotated: model_type, other keys, and a 1 for each layer that is. The patterns of families that state
# no key about layers are in tests/goldens/layer_types.json.
ROTATED = [
    ("smollm3", {"no_rope_layers": [0, 1, 0]}, "010"),
    ("llama4_text", {"no_rope_layers": [], "no_rope_layer_interval": 2}, "1010"),
    ("exaone4", {"sliding_window": 64, "num_hidden_layers": 4}, "1110"),
    ("exaone4", {"sliding_window": None, "num_hidden_layers": 4}, "1111"),
    ("exaone4", {"sliding_window_pattern": "LLG", "num_hidden_layers": 6}, "110110"),
    ("qwen3_next", {"layer_types": ["linear_attention", FULL]}, "01"),
    ("bamba", {"attn_layer_indices": [1], "num_hidden_layers": 3}, "010"),
    ("lfm2", {"full_attn_idxs": [0, 2], "num_hidden_layers": 3}, "101"),
    ("granite_swa", {"layer_rope_theta": [1e4, 0, 500.0]}, "101"),
    ("muse_glimmer_text", {"num_hidden_layers": 6}, "101110"),
    ("falcon", {"alibi": True}, "0"),
    ("zamba2", {"use_mem_rope": True}, "1"),
    ("esm", {}, "0"),
    ("esm", {"position_embedding_type": "rotary"}, "1"),
    ("afmoe", {"layer_types": [FULL], "mlp_layer_types": ["dense"]}, "0"),
    ("cohere2_moe", {"first_k_dense_replace": 1, "num_hidden_layers": 5}, "11110"),
    ("cohere2_moe", {"layer_types": [FULL, FULL, SLIDING], "mlp_layer_types": ["dense", "sparse", "sparse"]}, "101"),
]


@pytest.mark.parametrize("model_type, keys, rotated", ROTATED)
def test_layers_without_rotation_are_none(model_type, keys, rotated):
    config = of(model_type, 16, attention_head_dim=16, **FEW_HEADS, **keys)
    assert "".join("01"[from_config(config, layer=layer) is not None] for layer in range(len(rotated))) == rotated


def test_what_differs_between_layers_needs_the_layer():
    bases = of("granite_swa", 16, layer_rope_theta=[1e4, 0, 500.0])
    assert [from_config(bases, layer=layer).base for layer in (0, 2)] == [1e4, 500.0]
    widths = llama(num_hidden_layers=3, per_layer_config={"00": {"head_dim": 8}, "01": {"head_dim": 16}})
    assert [from_config(widths, layer=layer).head_dim for layer in range(3)] == [8, 16, 128]
    types = {**widths, "layer_types": ["a", "b", "b"]}
    assert from_config(types, layer_type="a").head_dim == 8
    listed = of("molmo2_text", **HEADS, rope_parameters=LINEAR, rope_scaling_layers=[*range(8)])
    assert from_config(listed) == half(scaling=LinearScaling(factor=8.0))
    assert from_config({**listed, "rope_scaling_layers": []}) == half()
    step = of("step3p5", rope_theta=[1e4, 5e4], layer_types=[FULL] * 2)
    assert from_config(step, layer=np.int64(1)).base == 5e4
    for each, choice, why in (
        (bases, {}, "bases differ"),
        (widths, {}, "per_layer_config differs"),
        (types, {"layer_type": "b"}, "per_layer_config differs"),
        ({**listed, "rope_scaling_layers": [1, 2]}, {}, "rope_scaling_layers has some layers only"),
    ):
        with pytest.raises(ValueError, match=f"layer must be given, because {why}"):
            from_config(each, **choice)


def test_parts_of_a_composite_config():
    heads = {"hidden_size": 1024, "num_attention_heads": 8}
    thinker = of("qwen2_5_omni_thinker", text_config=heads, vision_config={"hidden_size": 320, "num_heads": 4})
    dit = {"dit_config": of("qwen2_5_omni_dit")}
    talker = of("qwen2_5_omni_talker", **heads)
    config = of("qwen2_5_omni", thinker_config=thinker, talker_config=talker, token2wav_config=dit)
    ropes = {part: from_config(config, part=part) for part in ("text", "vision", "talker", "dit", None)}
    assert {part: (rope.head_dim, rope.axes, rope.layout) for part, rope in ropes.items()} == {
        **dict.fromkeys(("text", "talker", None), (128, 3, "half")),
        "vision": (80, 2, "half"),
        "dit": (64, 1, "interleaved_to_half"),
    }
    with pytest.raises(ValueError, match="or part be one of text_config, vision_config; got 'qwen2_5_omni_thinker'"):
        from_config(config, part="thinker_config")


# Widths that are enough for most families, and what the others need.
SIX_HEADS = "num_heads n_head speech_encoder_attention_heads num_attention_heads"
ENOUGH = {
    **dict.fromkeys(SIX_HEADS.split(), 6),
    **dict.fromkeys(("hidden_size", "embed_dim", "n_embd"), 768),
    "attention_head_dim": 128,
    "memory_attention_hidden_size": 256,
    "memory_attention_downsample_rate": 1,
    "memory_attention_num_attention_heads": 1,
    "max_position_embeddings": 8192,
}
OWN = {
    "hunyuan_vl_text": {"rope_parameters": {"mrope_section": [16] * 4}},
    "baichuan": {"hidden_size": 4096, "num_attention_heads": 32},
    "git": {"architectures": ["Grok1ForCausalLM"]},
    "bailing_moe": {"rope_theta": 6e5},
    "bailing_moe_v2": {"rope_theta": 6e5},
    "openelm": {"head_dim": 64},
    "plamo2": {"hidden_size_per_head": 128},
    "plamo3": {"rope_theta": 1e6},
    "telechat": {"base_seqlen": 8192, "training_seqlen": 8192},
}


def test_the_table_is_whole():
    """Every part of a composite has a row, and every row makes an embedding of its own defaults or asks for a width."""
    assert {model_type for parts in PARTS.values() for _, model_type in parts.values()} <= set(FAMILIES)
    for model_type, family in FAMILIES.items():
        config = of(model_type, **{**ENOUGH, **OWN.get(model_type, {})})
        sizes, by_type = family.defaults.get("mrope_section"), family.layers.by_type
        if sizes is not None:
            width = 2 * sum(sizes)
            config |= {"head_dim": width} if by_type else {"rope_parameters": {SHARE: 0.5}, "head_dim": 2 * width}
        for label in by_type or [None]:
            compat = "transformers" if model_type == "mistral_large4_text" else None  # whose frequencies are trained
            rope = from_config(config, layer_type=label, compat=compat)
            only_if, without = family.layers.only_if, family.of_type(label).defaults.get("rope_parameters", {}) is None
            assert (rope is None) == (without or (only_if is not None and family.default(only_if[0]) != only_if[1]))


# Keys that real configs carry and that change nothing.
WITHOUT_EFFECT = [
    {"use_mrope": False, "rope_interleaved": False, "use_rotary_pos_emb": True, "theta": 5e5, "rope_percent": 1.0},
    {"alibi": False, "use_alibi": None, "no_pos_emb": False, "dual_chunk_attention_config": None},
    {"position_embedding_type": "rotary", "pos_emb": "RoPE", "positional_encoding": "rope_gptj"},
    {"position_embedding_type": None, "qk_nope_head_dim": 128, "num_position_embeddings": 2304},
    {"position_embedding_size": 10, "pos_emb_height": 32, "pos_embed_rescale": 2.0, "Extra_Thing": 1},
    {"max_source_positions": 3, "dropout_positions": 0.0, "position_embedding_type": "rope"},
    {"dual_chunk_attention_config": {"chunk_size": 4096}},
]


@pytest.mark.parametrize("keys", WITHOUT_EFFECT, ids=str)
def test_keys_that_change_no_position(keys):
    assert from_config(llama(**keys)) == half(base=5e5)


def test_a_length_may_be_a_whole_number_in_floating_point():
    assert from_config(scaled("yarn", **{**YARN, LENGTH: 2048.0})) == from_config(scaled("yarn", **YARN))


def test_what_is_meant_by_a_part():
    sub = {"hidden_size": 320, "num_heads": 4}
    config = bare("qwen2_5_vl", vision_config=sub)
    assert from_config(config, part="vision") == from_config(config, part="vision_config")
    assert from_config(LLAMA) == from_config(LLAMA, part="text") == from_config(LLAMA, layer_type=FULL)
    assert from_config(of("colqwen2", vlm_config=bare("qwen2_vl", vision_config=sub))).axes == 3
    flat = {"type": "mrope", "mrope_section": [2, 3, 3]}
    assert from_config(of("qwen2_vl", **FEW_HEADS, rope_scaling=flat)).head_dim == 16


def test_keys_outside_a_part_may_agree_with_it_in_other_words():
    inner = {"type": "default", **DEFAULT, "mrope_section": [16, 24, 24]}
    config = of("qwen2_vl", text_config={"hidden_size": 1024, "num_attention_heads": 8, "rope_scaling": inner})
    outer = {"rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}
    assert from_config({**config, **outer}) == from_config(config)
    outer["rope_scaling"]["mrope_section"] = [24, 20, 20]
    with pytest.raises(ValueError, match="keys about positions must be in the part"):
        from_config({**config, **outer})


GEMMA4_SLIDING = half(256)
GEMMA4_FULL = half(512, 1e6, scaling=ProportionalScaling(partial_rotary_factor=0.25))
LARGE4 = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, LENGTH: 512}
ONE_SCALED = {"rope_scaling_layers": [1], "rope_parameters": {**LINEAR, "rope_theta": 1e6}}
# Layers whose types are all said to slide: Gemma 4 takes the last one for full attention all the same.
ALL_SLIDE = {"layer_types": [SLIDING] * 8}
SWA = {"swa_rope_theta": 7e4}
WINDOWS = {"attention_windows": [0, 4] * 4}
TWO_BASES = {FULL: {"rope_theta": 7e6}, SLIDING: {"rope_theta": 1e4}}
# What differs between layers, of the classes' own sources: model_type, other keys, and by layer the embedding, None for
# one that is not rotated. No config states a base or a share unless its keys say so. tests/goldens/layer_types.json has
# the families without such keys.
BY_LAYER = [
    ("bailing_hybrid", {"layer_group_size": 3}, {2: latent(base=6e6)}),
    ("bailing_hybrid", {"head_dim": 128, SHARE: 0.5}, {None: latent(base=6e6)}),
    ("beam", ALL_SLIDE, {7: half()}),
    ("beam", {"rope_parameters": {FULL: {"rope_theta": 5e4}}}, {5: half(base=5e4)}),
    ("dots3_note_text", {"swa_head_dim": 224}, {3: latent(32, 5e4)}),
    ("dots3_note_text", {"rope_parameters": {"indexed_attention": {"rope_theta": 7e4}}}, {0: latent(base=7e4)}),
    ("dots3_note_text", SWA, {3: latent(base=7e4)}),
    ("dots3_note_text", {**SWA, "use_sliding_window": False}, {3: latent(base=8e7)}),
    ("embedding_gemma2_text", ALL_SLIDE, {6: half(256), 7: half(512, 1e6)}),
    ("gemma4_text", {"num_hidden_layers": None}, {0: GEMMA4_SLIDING, 5: GEMMA4_FULL}),
    ("gemma4_text", ALL_SLIDE, {6: GEMMA4_SLIDING, 7: GEMMA4_FULL}),
    ("gemma4_unified_text", ALL_SLIDE, {6: GEMMA4_SLIDING, 7: GEMMA4_FULL}),
    ("diffusion_gemma_text", ALL_SLIDE, {6: GEMMA4_SLIDING, 7: GEMMA4_FULL}),
    ("iquestcoder", {}, {None: half()}),
    ("kolibri1", {"sliding_window": 513}, {4: None, 5: half()}),
    ("kolibri1", {"sliding_window": None}, {4: half()}),
    ("lfm3", {"rope_parameters": {SLIDING: {}}}, {4: half(base=1e6)}),
    ("mistral_large4_text", {}, {3: None}),
    ("molmo2_text", {"rope_scaling_layers": [1]}, {None: half()}),
    ("molmo2_text", ONE_SCALED, {0: half(base=1e6), 1: half(base=1e6, scaling=LinearScaling(factor=8.0))}),
    ("muse_spark_text", {"rope_parameters": DEFAULT}, {6: half(64)}),
    ("ultrabert", WINDOWS, {2: half(64, 2.56e6), 3: half(64)}),
    ("ultrabert", {"rope_theta": [1e3, 1e3, 2e3] * 3}, {2: half(64, 2e3)}),
    ("mimo_v2_flash", {"swa_rope_theta": 2e4}, {0: half(192, 5e6, rotary_dim=64)}),
    ("mimo_v2_flash", {"swa_rope_theta": 2e4, "rope_theta": 7e6}, {0: half(192, 7e6, rotary_dim=64)}),
    ("mimo_v2_flash", {"head_dim": 192, "swa_head_dim": 96}, {1: half(96, rotary_dim=32)}),
    ("mimo_v2_flash", {"swa_rope_theta": 1e4, "rope_parameters": TWO_BASES}, {1: half(192, rotary_dim=64)}),
    ("step3p5", {"use_rope_layers": [True, False]}, {0: half(), 1: None}),
    ("step3p5", {"rope_scaling": LINEAR}, {0: half(scaling=LinearScaling(factor=8.0))}),
]


@pytest.mark.parametrize("model_type, keys, by_layer", BY_LAYER)
def test_what_a_family_means_for_each_layer(model_type, keys, by_layer):
    config = of(model_type, **{**HEADS, **keys})
    for more in ({}, UPSTREAM) if keys is ALL_SLIDE else ({},):
        assert {layer: from_config(config, layer=layer, **more) for layer in by_layer} == by_layer


CHATGLM = {"head_dim": 128, "layout": "interleaved", "rotary_dim": 64}
CHATGLM_2 = of("chatglm", kv_channels=128, rope_ratio=16, _name_or_path="THUDM/ChatGLM2-6b-32k")
COMPASS = of("cohere_compass_text", 128, num_hidden_layers=8)
DYNAMIC = DynamicNTKScaling(factor=1.0, max_position_embeddings=2048, seq_len=4096)
GROK_YARN = YarnScaling(factor=16.0, original_max_position_embeddings=8192, attention_factor=1.0)
ROTARY = {"type": "dynamic", "scaling_factor": 2.0}
TELECHAT = of("telechat", hidden_size=4096, n_head=32, base_seqlen=8192, training_seqlen=8192)
MINIMAX_01 = half(base=1e7, rotary_dim=64)
YARN_OF_4 = {"rope_type": "yarn", "factor": 4.0, LENGTH: 8192}
QWEN_100 = of("qwen", seq_length=100)
XLM = of("xlm-roberta", **HEADS, position_embedding_type="rotary", rotary_emb_dim=32)
MUSIC = half(640, 1200.0, layout="interleaved", rotary_dim=256, sections=Sections((64, 64), "axial"))
SPATIAL = half(base=5e5, layout="interleaved", sections=Sections((20, 20, 24), "spatial_first"))
STEP_SHARES = of("step3p5", layer_types=[FULL, SLIDING], partial_rotary_factors=[0.5, 1.0], rope_theta=1e4)
STEP_LAYERS = of("step3p5", layer_types=[FULL, SLIDING], use_rope_layers=[1, 0], rope_theta=1e4)
EIGHT = LinearScaling(factor=8.0)
# Keys of a family's own, of the code in the checkpoints: config, embedding, arguments.
OWN_SPELLING = [
    (CHATGLM_2, half(**CHATGLM, scaling=LinearScaling(factor=16))),
    (of("chatglm", kv_channels=128), half(**CHATGLM)),
    (of("qwen", use_dynamic_ntk=False), half(), {"seq_len": 9000}),
    (of("qwen", rotary_pct=0.25, rotary_emb_base=5e4), half(rotary_dim=32, base=5e4)),
    (QWEN_100, half(scaling=NTKScaling(factor=3.0)), {"seq_len": 200}),
    (QWEN_100, half(scaling=NTKScaling(factor=7.0)), {"seq_len": 201}),
    (of("internlm", 64, rotary={"base": 3e4, "type": "origin"}), half(64, 3e4), {"seq_len": 9000}),
    (of("internlm", 64, rotary=ROTARY), half(64, scaling=replace(DYNAMIC, factor=2.0)), {"seq_len": 4096}),
    (of("internlm", 64), half(64, scaling=DYNAMIC), {"seq_len": 4096}),
    # TeleChat's base grows with the length that it was trained with, and one of 4,096 tokens is a quarter of it.
    (TELECHAT, half()),
    ({**TELECHAT, "base_seqlen": 4096}, half(scaling=NTKScaling(factor=3.0)), {"seq_len": 8192}),
    ({**TELECHAT, "base_seqlen": 2048}, half(scaling=NTKScaling(factor=7.0))),
    # DeepSeek-VL2 with latent attention, and without it.
    (of("deepseek_vl_v2", language_config={"rope_theta": 7e4}), half(64, 7e4, layout="interleaved")),
    (of("deepseek_vl_v2", language_config={**HEADS, "use_mla": False, "qk_rope_head_dim": 0}), half(64)),
    (of("deepseek_v2", use_mla=True), half(64, layout="interleaved")),
    (of("multi_modality", language_config={**HEADS, "model_type": "llama"}), half(64)),
    (of("minimax_vl_01", text_config=of("minimax_text_01", 128, rotary_dim=64, rope_theta=1e7)), MINIMAX_01),
    # The names of a part in published files, and in those that transformers saves.
    *(
        (of(name, **{key: {**HEADS, "model_type": "qwen2", "rope_theta": 1e6}}), half(64, 1e6))
        for name in ("vibevoice", "vibevoice_asr")
        for key in ("decoder_config", "text_config")
    ),
    (of("plamo3", 128, rope_theta=1e6, rope_scaling_factor=1), half(base=1e6), OF_FULL),
    (of("plamo3", 128, rope_theta=1e6, rope_local_theta=3e4), half(base=3e4), {"layer_type": SLIDING}),
    (of("hf_olmo", d_model=2048, n_heads=16, rope=True, rope_theta=5e5, rope_full_precision=True), half(base=5e5)),
    (of("molmo", d_model=2048, n_heads=16), half()),
    (of("phi-msft", n_embd=2048, n_head=32), half(64, rotary_dim=32)),
    (of("bailing_hybrid", rotary_dim=64), latent(base=6e6)),
    (of("xverse", **HEADS), half(64)),
    (llama(rope_scaling={**YARN_OF_4, "attn_factor": 1}), from_config(llama(rope_scaling=YARN_OF_4))),
    (llama(rope_scaling={**YARN_OF_4, "attn_factor": 0.5}), from_config(llama(rope_scaling=YARN_OF_4)), UPSTREAM),
    (of("baichuan", alibi=False, **HEADS), half(64)),
    (of("grok-1"), half()),
    (of("grok1", rope_rotate_half_dims=True), half(rotary_dim=64)),
    ({**GROK_1, "rope_type": "yarn"}, half(scaling=GROK_YARN)),
    (of("git", architectures=["Grok1ForCausalLM"], rope_rotate_half_dims=True), half(rotary_dim=64), UPSTREAM),
    ({**GROK_1, "rope_type": "original"}, half()),
    (of("ernie4_5_moe_vl", 128, freq_allocation=24), SPATIAL),
    (of("new", **HEADS), half(64)),
    (XLM, half(64, rotary_dim=32)),
    (of("bamba", 128, attn_rotary_emb=32), half(rotary_dim=32)),
    (of("musicflamingo", audio_config={"hidden_size": 640}), MUSIC),
    (of("fuyu", **HEADS), half(64, rotary_dim=32)),
    (of("step3p5_vision", **HEADS), half(64, sections=Sections((16, 16), "axial")), UPSTREAM),
    (COMPASS, half(sections=Sections((24, 20, 20), "interleaved")), OF_SLIDING),
    (COMPASS, half(sections=Sections((22, 22, 20), "even_odd")), {**OF_SLIDING, **UPSTREAM}),
    (of("beam", **HEADS), half(), {"layer": 0, **UPSTREAM}),
    (of("molmo2_text", **HEADS, rope_scaling=LINEAR), half(scaling=EIGHT)),
    (STEP_SHARES, half(rotary_dim=64), OF_FULL),
    (STEP_SHARES, half(), OF_SLIDING),
    (STEP_LAYERS, half(), OF_FULL),
    (STEP_LAYERS, None, OF_SLIDING),
    (scaled("yarn", factor=None, **ORIGINAL), half(base=5e5, scaling=YarnScaling(**YARN))),  # of 8192 / 2048
    (of("glm_image_text", 64), half(64, sections=Sections((8, 12, 12)))),
    # Families whose attention is not rotated, and a size of one that is not.
    (of("jamba", num_attention_heads=32, attn_layer_period=8), None),
    (of("nemotron_h", 128, hidden_size=4096, rope_theta=10_000), None),
    (of("inkling2", text_config=of("inkling2_text")), None),
    (of("xlm-roberta", **FEW_HEADS), None),
    (of("new", **FEW_HEADS, position_embedding_type="absolute"), None),
    (of("smollm3", 16, no_rope_layers=[0, 0]), None),
    (of("deepseek_v3", qk_rope_head_dim=0), None),
]


@pytest.mark.parametrize("row", OWN_SPELLING, ids=lambda row: name_of(row[0]))
def test_keys_of_single_families(row):
    config, expected, *choice = row
    assert read(config, *choice) == expected


def test_colpali_is_read_where_its_model_reads():
    """In `vlm_config`, also if there is a text_config that no model reads."""
    text = of("gemma", 256, rope_theta=5e4)
    config = of("colpali", vlm_config=of("paligemma", text_config=text))
    for more in ({}, {"text_config": {**text, "rope_theta": 7e4}}):
        assert from_config({**config, **more}) == from_config({**config, **more}, part="text") == half(256, 5e4)


def test_frequencies_that_are_trained_are_refused():
    config = of("mistral_large4_text", **HEADS, rope_parameters=LARGE4)
    with pytest.raises(ValueError, match=r"frequencies must not depend on weights; got .*exponential of the weight"):
        from_config(config)
    yarn = YarnScaling(factor=2.0, original_max_position_embeddings=512)
    assert from_config(config, **UPSTREAM) == latent(scaling=yarn)


def test_every_family_has_one_row():
    tree = ast.parse(Path(model_types.__file__).read_text())
    (table,) = [node.value for node in tree.body if getattr(getattr(node, "target", None), "id", "") == "ROWS"]
    names = [each for key in table.keys for each in ast.literal_eval(key).split()]
    assert len(names) == len(set(names)) == len(FAMILIES)


def test_every_default_is_read():
    """A default that a row misspells would change nothing, and nobody would see it."""
    known = {*COMMON_DEFAULTS, "rope_parameters", LENGTH, "mrope_section", "qk_rope_head_dim"}
    for name, family in FAMILIES.items():
        rows = [family, *family.layers.by_type.values()]
        widths = {key for row in rows if isinstance(row.head_dim, str) for key in row.head_dim.split(" | ")}
        for row in rows:
            assert {*row.defaults} <= known | widths | {*(family.layers.only_if or ())[:1]}, name


def test_rules_of_single_families():
    """Phi's names and lengths of LongRoPE, DeepSeek-V4's two kinds of layers, and bases of coordinates."""
    moe = bare("phimoe", rope_scaling={"type": "longrope", **LONG, **MSCALES})
    assert [from_config(moe, seq_len=n).attention_factor for n in (None, 5000)] == [1.1, 1.3]
    assert from_config(moe, seq_len=5000).inv_freq[0] == 0.25
    phi3 = bare("phi3", original_max_position_embeddings=2048)
    first, second = (from_config({**phi3, "rope_scaling": {"type": name, **FACTORS}}) for name in ("su", "yarn"))
    assert first == second and first.attention_factor == sqrt(1 + log(4.0) / log(2048))
    assert from_config(phi3).scaling is None
    types = {"layer_types": [SLIDING, "compressed_sparse_attention"], "rope_theta": 1e4}
    main, compress = (from_config({**V4, **types}, layer=layer) for layer in (0, 1))
    assert (main.first_channel, main.rotary_dim, main.base, main.scaling) == (448, 64, 1e4, None)
    assert (compress.base, compress.attention_factor, compress.scaling.factor) == (1.6e5, 1.0, 4.0)
    atoms = {**FEW_HEADS, "hidden_size": 128, "spatial_rope_base_frequency": 1.0}
    assert from_config(of("esmfold2", atom_encoder=atoms), part="atom_encoder").inv_freq[0][:2] == (1.0, 1.0)
    assert [from_config({**GPTJ, **more}).rotary_dim for more in ({}, {"rotary_dim": None})] == [64, 256]


@pytest.mark.parametrize("model_type", ["phi3", "phi3_v", "phi4mm", "phi4_multimodal", "phimoe"])
def test_the_length_that_phi_was_trained_on(model_type):
    """4096 tokens in `configuration_phi3.py` and its descendants, however long the sequences may be."""
    block = {"type": "longrope", **FACTORS, **(MSCALES if model_type == "phimoe" else {})}
    rope = from_config(bare(model_type, max_position_embeddings=131_072, rope_scaling=block))
    assert rope.scaling.original_max_position_embeddings == 4096


def test_a_width_of_an_odd_number_of_channels():
    """A half of 42 channels is 21: their frequencies, of which the last pair has one channel more."""
    odd = from_config(bare(head_dim=42, partial_rotary_factor=0.5))
    assert (odd.rotary_dim, odd.inv_freq) == (22, geometric(1e4, 42)[::2])
    two = from_config(bare(head_dim=42, partial_rotary_factor=0.5, rope_scaling={"type": "linear", "factor": 2.0}))
    assert two.inv_freq == tuple(w / 2.0 for w in odd.inv_freq)


@pytest.mark.parametrize("head_dim, share, width", [(128, 0.35, 44), (100, 0.29, 28)])
def test_a_partial_width_is_cut_off_not_rounded(head_dim, share, width):
    """44.8 channels, and 29 that float64 makes 28.999999999999996: `int(head_dim * share)` in transformers."""
    config = bare(head_dim=head_dim, partial_rotary_factor=share)
    assert from_config(config).rotary_dim == from_config({**config, "rotary_dim": width}).rotary_dim == width
    with pytest.raises(ValueError, match=f"rotated channels must not be contradicted; got {width + 1} channels"):
        from_config({**config, "rotary_dim": width + 1})


def test_a_base_of_null_means_not_rotated_where_the_family_says_so():
    config = of("olmo_hybrid", 64, rope_parameters={**DEFAULT, "rope_theta": 5e5})
    assert from_config(config).base == 5e5
    config["rope_parameters"]["rope_theta"] = None
    assert from_config(config) is None
    assert from_config({**config, "model_type": "llama"}).base == 1e4


@pytest.mark.parametrize("block", [{}, {**YARN_BLOCK, "mscale": 0.7, "mscale_all_dim": 0.5}])
def test_only_latent_attention_scales_its_softmax(block):
    """Ministral 3's own block has both numbers too, and its attention does not read them."""
    keys = {"rope_scaling": block} if block else {}
    ropes = [from_config(bare(name, **keys)) for name in ("mistral4", "ministral3")]
    growth = [0.1 * k * log(ropes[0].scaling.factor) + 1 for k in ((0.7, 0.5) if block else (1.0, 1.0))]
    assert [rope.softmax_scale for rope in ropes] == [pytest.approx(growth[1] ** 2, rel=1e-15), 1.0]
    assert from_config(bare("dots3_note_text", **keys), layer=0).softmax_scale == 1.0
    assert [rope.attention_factor for rope in ropes] == 2 * [pytest.approx(growth[0] / growth[1], rel=1e-15)]


def test_parts_with_defaults_and_keys_of_their_own():
    """Voxtral's text, and blocks outside the text of Qwen3-Next and Music Flamingo that are not its own."""
    rope = from_config(of("voxtral", text_config=of("llama")))
    assert (rope.base, rope.head_dim) == (1e8, 128)
    text = of("voxtral_realtime_text")
    assert [from_config(each).base for each in (of("voxtral_realtime", text_config=text), text)] == [1e6, 1e4]
    block = {**DEFAULT, "rope_theta": 1e4, SHARE: 0.5}  # as upstream writes it
    assert from_config(of("qwen3_next", 256, partial_rotary_factor=0.25, rope_parameters=block)).rotary_dim == 128
    text, block = of("qwen2", **FEW_HEADS, rope_theta=1e4), {"rope_theta": 1200.0, SHARE: 0.2}
    assert from_config(of("musicflamingo", rope_parameters=block, text_config=text)) == from_config(text)


# What transformers 5.18 does that is a mistake: config, an attribute, its right value, upstream's, and arguments.
HUNYUAN = of("hunyuan_v1_dense", 128, max_position_embeddings=8192)
HUNYUAN["rope_scaling"] = {"type": "dynamic", "alpha": 50.0, "factor": 2.0}
HUNYUAN_LONG = DynamicNTKScaling(factor=2.0, max_position_embeddings=8192, seq_len=10_000)
YARN_OF_FULL = {FULL: {"rope_type": "yarn", **YARN, "truncate": False}}
PHIMOE = bare("phimoe", rope_scaling={"type": "longrope", **LONG, **MSCALES})
OLD_GEMMA3 = {**GEMMA3, "rope_scaling": {"type": "linear", "factor": 8.0}}
DBRX = of("dbrx", d_model=64, n_heads=4)
HYBRID = {"layer_type": "hybrid"}
MISTAKES = [
    (HUNYUAN, "scaling", NTKScaling(factor=50.0), HUNYUAN_LONG, {"seq_len": 10_000}),
    (bare(layer_types=[FULL], rope_parameters=YARN_OF_FULL), "scaling.truncate", False, True, LAYER_0),
    (PHIMOE, "scaling.long_factor", (4.0,) * 64, (1.0,) * 64, {"seq_len": 5000}),
    (OLD_GEMMA3, "scaling", EIGHT, None, {"layer": 5}),
    (of("cohere2_moe", 16, rope_scaling=LINEAR), "scaling", EIGHT, None),
    (llama("olmo3", rope_theta=1e6, rope_scaling=LINEAR), "base", 1e6, 5e5, OF_SLIDING),
    (bare("gpt_neox", rope_theta=500.0), "base", 500.0, 1e4),
    (bare("gpt_neox", partial_rotary_factor=0.5), "rotary_dim", 64, 32),
    ({**DBRX, "attn_config": {"rope_theta": 5e5}}, "base", 5e5, 1e4),
    (of("minimax_m3_vl_text", 128, rotary_dim=64), "rotary_dim", 64, 128),
    (bare("bamba", partial_rotary_factor=0.25), "rotary_dim", 32, 64),
    (of("ministral3", rope_parameters={"rope_type": "yarn", **YARN}), "base", 1e6, 1e4),
    (of("zaya", rope_theta=500.0), "base", 500.0, 5e6, HYBRID),
    (of("zaya", partial_rotary_factor=0.25), "rotary_dim", 32, 64, HYBRID),
    (llama(partial_rotary_factor=0.5), "rotary_dim", 64, 128),
    (bare(rope_parameters={"rope_theta": 1e4, SHARE: 0.5}), "rotary_dim", 64, 128),
    (llama(rotary_dim=64), "rotary_dim", 64, 128),
    (llama(rotary_pct=0.5), "rotary_dim", 64, 128),  # GPT-NeoX's name of a share
    (bare(rotary_emb_base=500.0), "base", 500.0, 1e4),  # and of a base
    (bare("apertus", rope_theta=500.0), "base", 500.0, 1.2e7),
    (of("step3p5", layer_types=[FULL] * 2, rope_theta=[1e4, 5e4]), "base", 5e4, 1e4, {"layer": 1}),
]


@pytest.mark.parametrize("row", MISTAKES, ids=lambda row: name_of(row[0]))
def test_what_is_right_and_what_upstream_does(row):
    config, name, right, upstream, *choice = row
    choice, before = choice[0] if choice else {}, copy.deepcopy(config)
    assert attrgetter(name)(read(config, choice)) == right
    assert attrgetter(name)(read(config, {**choice, **UPSTREAM})) == upstream
    assert config == before


def qwen3_vl(head_dim, *sizes):
    return of("qwen3_vl_text", head_dim, rope_parameters={"mrope_section": [*sizes]})


# What is refused, as two keys contradict each other, and what upstream makes of it.
LENGTHS = scaled("yarn", **YARN) | {LENGTH: 4096}
BASES = llama(rope_parameters={**DEFAULT, "rope_theta": 1e4})
SHARES = {"rope_parameters": {**DEFAULT, SHARE: 0.25}, SHARE: 0.5}
HALF_SECTIONS = of("qwen2_vl_text", 16, partial_rotary_factor=0.5)
HALF_SECTIONS["rope_scaling"] = {"type": "mrope", "mrope_section": [2, 3, 3]}
BLOCKS = llama(rope_parameters=DEFAULT, rope_scaling=LINEAR)
TWO_SWA = of("mimo_v2_flash", **ALL_SLIDE, swa_rope_theta=1e4, rope_parameters={SLIDING: {"rope_theta": 2e4}})
CONTRADICTIONS = [
    (f"{LENGTH} must not be contradicted; got 2048 .* and 4096", LENGTHS, f"scaling.{LENGTH}", 4096),
    (r"rope_theta must not be contradicted; got 10000.0 .* and 500000.0", BASES, "base", 1e4),
    (f"{SHARE} must not be contradicted; got 0.25 .* and 0.5", bare("phi", **SHARES), "rotary_dim", 32),
    (r"rope_parameters or rope_scaling must be given, not both", BLOCKS, "scaling", EIGHT),
    (r"rope_theta must not be contradicted; got 20000.0 .* and 10000.0 outside it", TWO_SWA, "base", 2e4, LAYER_0),
    (r"must be known; got \{'rope_theta': 500.0\}", bare("modernbert", rope_theta=500.0), "base", 1.6e5, OF_FULL),
    (r"must sum to the 4 rotated pairs", HALF_SECTIONS, "rotary_dim", 16),
    (r"Sections: sizes must fit", qwen3_vl(128, 33, 1, 30), "sections.sizes", (42, 1, 21)),
    (r"Sections: sizes must fit", qwen3_vl(64, 5, 22, 5), "sections.sizes", (16, 11, 5)),
]


@pytest.mark.parametrize("row", CONTRADICTIONS, ids=lambda row: name_of(row[1]))
def test_contradictions_are_refused_or_resolved_as_upstream(row):
    message, config, name, upstream, *choice = row
    with pytest.raises(ValueError, match=message):
        read(config, *choice)
    assert attrgetter(name)(read(config, {**dict(*choice), **UPSTREAM})) == upstream


CHUNKS = {"dual_chunk_attention_config": {"chunk_size": 4096, "local_size": 512}}
LINEAR_SHARE = scaled("linear", factor=2.0) | {SHARE: 0.5}
NOT_READ = f"transformers does not read {SHARE} in 'llama'"
DEEPSEEK = of("deepseek_v3", **FEW_HEADS, qk_rope_head_dim=16)
# What `describe` remarks of a config: it is not read, with which transformers fails, or it is not applied.
REMARKS = [
    (llama(partial_rotary_factor=1.0), ""),
    (llama("phi", partial_rotary_factor=0.25), ""),  # which reads it
    (llama("minicpm", partial_rotary_factor=0.5), ""),  # which transformers does not have
    (llama(partial_rotary_factor=0.5), NOT_READ),
    (bare(rope_parameters={"rope_theta": 1e4, SHARE: 0.5}), NOT_READ),
    (llama(rotary_dim=64), "transformers does not read rotary_dim (a key of codegen, gptj, minimax_m2) in 'llama'"),
    *(
        ({**DEEPSEEK, key: True}, f"transformers does not read {key} in 'deepseek_v3'")
        for key in ("rope_interleaved", "rotary_emb_interleaved", "rope_traditional")
    ),
    (LINEAR_SHARE, f"transformers fails with {SHARE} and rope_type 'linear' in 'llama'"),
    (llama(**CHUNKS), "dual_chunk_attention_config is not applied: beyond chunk_size=4096"),
]


@pytest.mark.parametrize("config, remark", REMARKS)
def test_what_is_not_read_or_not_applied_is_remarked(config, remark):
    found = [line for line in one_line(from_config(config).describe()) if line.startswith("remark")]
    assert len(found) == bool(remark)
    assert all(line.startswith(f"remark            {remark}") for line in found)
    if "fails" not in remark and "dual" not in remark:
        assert "remark" not in from_config(config, **UPSTREAM).describe()


def test_what_transformers_cannot_do_is_refused_there():
    fails = rf"^from_config: compat must be None for {SHARE}=0.5 and rope_type '{{}}' in '{{}}', because"
    assert from_config(LINEAR_SHARE).rotary_dim == 64
    own = of("cwm", rope_theta=1e6, partial_rotary_factor=0.5)  # whose own block has a rule
    hunyuan = of("hunyuan_vl", 16, rope_scaling={"type": "xdrope", "alpha": 5.0, "xdrope_section": [2] * 4})
    assert from_config(hunyuan).axes == 4
    for each, message in (
        (LINEAR_SHARE, fails.format("linear", "llama")),
        (own, fails.format("llama3", "cwm")),
        (hunyuan, "because its tables in transformers are no rotation"),
    ):
        with pytest.raises(ValueError, match=message):
            from_config(each, **UPSTREAM)


SCALINGS = [scaling for _, scaling in RULES if not isinstance(scaling, (MixedNTKScaling, NTKScaling))]
SCALINGS += [NTKScaling(factor=1000.0), YarnScaling(**YARN, mscale=0.7, mscale_all_dim=0.5)]
SCALINGS += [YarnScaling(**YARN, beta_fast=16.0, truncate=False)]
SPATIAL_FIRST = Sections((22, 22, 20), order="spatial_first")
READ_BACK = [
    ("llama", {"rotary_dim": 64}),
    *(("llama", {"scaling": each}) for each in SCALINGS),
    ("qwen2_vl_text", {"sections": Sections((16, 24, 24))}),
    ("qwen3_vl_text", {"sections": Sections((24, 20, 20), order="interleaved")}),
    ("ernie4_5_vl_moe_text", {"sections": SPATIAL_FIRST, "layout": "interleaved"}),
]


@pytest.mark.parametrize("model_type, options", READ_BACK, ids=str)
def test_to_config_is_read_back(model_type, options):
    rope = half(base=5e5, **options)
    block = json.loads(json.dumps(rope.to_config()))
    if rope.softmax_scale == 1.0:
        assert from_config(bare(model_type, rope_parameters=block)) == rope
    if rope.sections is None:
        keys = {"qk_rope_head_dim": 128, "rope_interleave": False}
        assert from_config(bare("deepseek_v3", rope_parameters=block, **keys)) == rope


def test_every_share_is_read_back():
    for head_dim in range(2, 130, 2):
        for rotary_dim in range(2, head_dim + 1, 2):
            block = half(head_dim, 100.0, rotary_dim=rotary_dim).to_config()
            assert int(block.get(SHARE, 1.0) * head_dim) == rotary_dim


PROPORTIONAL = {"rotary_dim": 8, "scaling": ProportionalScaling(partial_rotary_factor=0.5)}
NOT_IN_CONFIGS = [
    ({"base": None, "inv_freq": (1.0, 0.5)}, "got inv_freq"),
    (PROPORTIONAL, "rotary_dim must be head_dim with ProportionalScaling.*; got 8"),
    ({"reverse": True}, "got reverse"),
    ({"scaling": MixedNTKScaling(factor=2.0)}, "a rule that transformers has; got MixedNTKScaling"),
    ({"attention_factor": 2.0}, "attention_factor must be that of scaling; got 2.0"),
    ({"sections": Sections((4, 4), order="axial")}, "an order that transformers has; got Sections"),
]


@pytest.mark.parametrize("options, message", NOT_IN_CONFIGS)
def test_what_no_config_can_express(options, message):
    with pytest.raises(ValueError, match=f"RotaryEmbedding.to_config: .*{message}"):
        half(16, **options).to_config()


class Model:
    """Like a model of transformers: it is no config, and has one."""

    config = Config()

    def __repr__(self):
        return "layers " * 1000


class Holder:
    def to_dict(self):
        return []


def unknown(key, value, where="the config of model_type 'llama'", after=""):
    """The message for a key that nobody knows; `where` and `after` are patterns."""
    return rf"every key of {where} must be known; got \{{'{key}': {re.escape(repr(value))}\}}{after}"


def misspelt(key, wanted, where="the config of model_type 'llama'"):
    """The message for a key that is another one, misspelt."""
    return rf"{wanted} must have this spelling in {where}; got '{key}'$"


def nested(depth):
    return [nested(depth - 1)] if depth else 0


ENDLESS = {}
ENDLESS["itself"] = ENDLESS
DOUBLED = [0, 0]
for _ in range(25):
    DOUBLED = [DOUBLED, DOUBLED]
ESM = of("esm", **FEW_HEADS)
RING_2_5 = of("bailing_hybrid", architectures=["BailingMoeV2_5ForCausalLM"], num_hidden_layers=6)
SEVEN_TYPES = {"attn_type_list": [0, 1, 2, 0, 0, 0, 0], "num_hidden_layers": 7}
CHATGLM_1, INTERNLM, QWEN = (of(name, **HEADS) for name in ("chatglm", "internlm", "qwen"))
ERNIE, MIMO_V2, STEP = of("ernie4_5_moe_vl", 128), of("mimo_v2_flash"), of("step3p5", rope_theta=[1e4])
ALIBI_DBRX = {**DBRX, "attn_config": {"alibi": True, "rope_theta": 1e4}}
INTERLEAVED = {"rope_scaling": {"type": "mrope", "mrope_interleaved": True}}
PATTERN, UPSTREAM_0 = {"hybrid_layer_pattern": [0, "9"]}, {**LAYER_0, **UPSTREAM}


def qwen2_vl(**block):
    return of("qwen2_vl_text", 128, rope_scaling={"type": "mrope", **block})


# Of other letters than a known key: the key, the known one, and a config that reads it.
MISSPELT = [
    ("Rope_Theta", "rope_theta", LLAMA),
    ("ropeTheta", "rope_theta", LLAMA),
    ("ROPE_SCALING", "rope_scaling", LLAMA),
    ("headdim", "head_dim", LLAMA),
    ("originalMaxPositionEmbeddings", LENGTH, LLAMA),
    ("Sliding_Window", "sliding_window", of("exaone4", 16, rope_theta=1e4), OF_FULL),
    ("noropelayers", "no_rope_layers", of("smollm3", 16, rope_theta=1e4)),
    ("NameOrPath", "_name_or_path", {**CHATGLM_1, "rope_ratio": 2}),
    ("useDynamicNTK", "use_dynamic_ntk", QWEN),
    ("ROTARY", "rotary", INTERNLM),
    ("scalingFactor", "scaling_factor", GROK),
    ("freqAllocation", "freq_allocation", ERNIE),
    ("SWA_rope_theta", "swa_rope_theta", {**MIMO_V2, **ALL_SLIDE}, LAYER_0),
    ("Yarn_Only_Types", "yarn_only_types", of("step3p5", **ALL_SLIDE), LAYER_0),
    ("max_postion_embeddings", "max_position_embeddings", LLAMA),
    ("DualChunkAttentionConfig", "dual_chunk_attention_config", LLAMA),
    ("rope_thetta", "rope_theta", LLAMA),
    ("num_attention_headz", "num_attention_heads", {"model_type": "llama", "hidden_size": 64}),
]
# Keys of other positions, and keys about rotation in words that nobody knows.
NAMES = "alibi use_alibi AliBi no_pos_emb noPosEmb use_nope position_embedding_xdrope "
NAMES += "partialRot mrope_x rotary_x local_theta_x yarn_x use_ntk original_maxposition"
ABOUT_POSITIONS = {
    **dict.fromkeys(NAMES.split(), True),
    "position_embedding_type": "nope",
    "Position_Embedding_Type": "alibi",
    "position_embeddings_type": "relative",
    "positional_encoding": "no_rope",
    "pos_emb": "learned",
    "pos_enc_type": 3,
    "nope_layers": [3],
    "rotary_scaling_factor": 2.0,
}
OUTSIDE = r"keys about positions must be in the part, not outside it; got \{'%s': %s\}"
LLAVA = of("llava", text_config=llama())
RULE = "rope_type must be one of .*"
NEED = "layer or layer_type must be given"
COUNTED = "num_hidden_layers must be given if layers are counted from the end; got None"
OF_TYPE = "layer must be given, because layers of type 'full_attention' differ in no_rope_layers"
WIDTH = "number of rotated channels must not be contradicted; got 32 channels and partial_rotary_factor=0.5 of 128"
AS_LISTED = r"mrope_section must not be contradicted; got \[20, 20, 24\] in rope_scaling and \[22, 22, 20\] outside it"
NESTED = r"rope_parameters must be nested by layer type, full_attention, sliding_attention; got \{'rope_theta': 10000"
BOTH = r"rope_parameters must have only blocks of layer types, full_attention, or none; got both: \{'factor': 2\}"
SLIDING_GEMMA3 = {**GEMMA3, "rope_scaling": {**LINEAR, "factor": 0.5}, "layer_types": [SLIDING]}
MIXED_GEMMA3 = of("gemma3_text", 16, rope_local_base_freq=1e4, rope_parameters={FULL: {}, "factor": 2})
FLAT_GEMMA3 = of("gemma3_text", 16, rope_parameters={"rope_theta": 1e4}, layer_types=[FULL])
ODD_GLM = of("glm4v_text", 16, partial_rotary_factor=9 / 16, rope_scaling={"mrope_section": [2, 1, 1]})
SMOLLM3 = llama("smollm3", no_rope_layers=[0, 1], layer_types=[FULL, FULL])
YARN_OF_NONE = llama(max_position_embeddings=-1, rope_scaling={"type": "yarn", "factor": None, **ORIGINAL})
MANY_AXES = llama("unknown", rope_scaling={"type": "mrope", "mrope_section": [4] * 17})
OF_RULE = "; %s is a key of rope_type %s"
KEYS_OF_OTHERS = {
    "no_rope_layers": "llama4_text, mistral_large4_text, smollm3; known keys are",
    "rope_local_base_freq": "gemma3_text",
    "rope_ratio": "chatglm;",
    "use_dynamic_ntk": "qwen;",
    "use_mem_rope": "zamba2;",
    "qk_rope_head_dim": "axk1, deepseek, .* and 14 more;",
}
# Configs whose values are wrong: what the message says after "from_config: ", the config, and arguments.
BAD_VALUES = [
    *((misspelt(key, like, ".*"), {**config, key: 2}, *choice) for key, like, config, *choice in MISSPELT),
    (misspelt("ROPE_SCALING", "rope_scaling"), {**LLAMA, "ROPE_SCALING": None}),
    *((unknown(key, value), llama(**{key: value})) for key, value in ABOUT_POSITIONS.items()),
    # Families and parts.
    (r"model_type must be one of the .* rotary families .*; got 'bert', similar to .*", of("bert")),
    (r"model_type must be in the config, or layout be given; got neither", {"hidden_size": 64}),
    (r"model_type must be one of .*; got 'llama2', similar to llama", bare("llama2")),
    (r"model_type must be one of .* \.\.\. ", of("l" * 10**6)),
    (r"must be of a family with a rotary embedding; got 'mpt', which has .*ALiBi", of("mpt")),
    (r"architectures must have 'Grok1ForCausalLM' .*; got other architectures", of("git")),
    (r"one of the \d+ rotary families .*; got 'opt'", of("llava", text_config=of("opt"))),
    (misspelt("Text_Config", "text_config", "the config"), of("gemma3", Text_Config=GEMMA3)),
    (misspelt("Model_Type", "model_type", "the config"), {**LLAMA, "Model_Type": "gptj"}),
    (OUTSIDE % ("alibi", True), {**LLAVA, "alibi": True}),
    (OUTSIDE % ("rope_theta", 7.0), {**LLAVA, "rope_theta": 7.0}),
    (OUTSIDE % ("rope_theta", 7.0), {**LLAVA, "rope_theta": 7.0}, {"part": "text"}),
    (r"'gemma3_text' must have a key that is known; got a", of("gemma3", text_config={"a": {"b": 1}}), OF_FULL),
    (r"part must be one of .*; got 'text'", of("lighton_ocr"), {"part": "text"}),
    (r"part must be one of .*; got 'text'", of("musicflamingo", 1280), {"part": "text"}),
    (r"part must be one of text, text_config; got None$", of("colpali", text_config={})),
    # Widths.
    (r"head_dim or hidden_size / num_attention_heads must be given", of("llama")),
    (r"num_attention_heads must be at least 1; got 0", llama(num_attention_heads=0)),
    (r"RotaryEmbedding: head_dim must be even, at least 2; got 127", llama(head_dim=127)),
    (r"head_dim must be at most 16384; got 16386", llama(head_dim=2**14 + 2)),
    (r"the number of rotated channels must be at least 1; got 0 of head_dim=0", llama(head_dim=0)),
    (r"at least 1; got 0 of head_dim=128", llama(partial_rotary_factor=0.001)),
    (r"at most head_dim=128; got 192", llama(partial_rotary_factor=1.5)),
    (r"partial_rotary_factor must be at most 128, the head_dim; got 1e\+308", llama(partial_rotary_factor=1e308)),
    (r"partial_rotary_factor must be greater than 0", llama(partial_rotary_factor=0.0)),
    (r"must not be contradicted; got 32 channels", llama(partial_rotary_factor=0.5, rotary_dim=32)),
    (WIDTH, of("bamba", 128, attn_rotary_emb=32, partial_rotary_factor=0.5)),
    (r"the number of rotated channels must be even .*; got 9", ODD_GLM),
    (r"head_dim must be a multiple of 4 .*; got 6", of("dinov3_vit", hidden_size=12, num_attention_heads=2)),
    # Bases and rules.
    (unknown("rope_theta", 5e5, ".* 'roformer'"), of("roformer", **FEW_HEADS, rope_theta=5e5)),
    (r"max_position_embeddings must be greater than 0; got -1", YARN_OF_NONE),
    (r"rope_theta must be at least 1; got 0", llama(rope_theta=0)),
    (r"must not contradict each other; got \{'rope_theta': 500000.0, 'theta': 10000.0\}", llama(theta=1e4)),
    (rf"{RULE}llama3, longrope.*; got 'yarm', similar to yarn", scaled("yarm", **YARN)),
    (rf"{RULE}llama3, longrope.*; got 'yran', similar to yarn", scaled("yran", **YARN)),
    (rf"{RULE}; got 'linearlinear.* \.\.\. .*linear'$", scaled("linear" * 1000)),
    (rf"{RULE}; got 'yarn_log'", scaled("yarn_log", **YARN)),
    (rf"{RULE}'theta_scale'", {**GROK, "rope_type": "theta_scale"}),
    (r"contradict each other; got \{'rope_type': 'yarn', 'type': 'linear'\}", scaled("linear", rope_type="yarn")),
    (misspelt("rope_scalling", "rope_scaling"), llama(rope_scalling=1)),
    (unknown("beta", 1, "rope_scaling", "; known keys are factor, .*, type$"), scaled("yarn", **YARN, beta=1)),
    (misspelt("beta_fsat", "beta_fast", "rope_scaling"), scaled("yarn", **YARN, beta_fsat=1)),
    (misspelt("Beta_Fast", "beta_fast", "rope_scaling"), scaled("yarn", **YARN, Beta_Fast=16)),
    (
        unknown("factor", 2.0, "rope_scaling", OF_RULE % ("factor", "dynamic, linear, longrope, ")),
        scaled("default", factor=2.0),
    ),
    (
        unknown("low_freq_factor", 1, "rope_scaling", OF_RULE % ("low_freq_factor", "llama3;")),
        scaled("linear", factor=2.0, low_freq_factor=1),
    ),
    (
        unknown(
            "mrope_section", [64], "rope_scaling", "; mrope_section is a key of model_type .* more; known keys are type"
        ),
        scaled("default", mrope_section=[64]),
    ),
    *(
        (unknown(key, 1, after=f".*; {key} is a key of model_type {names}"), llama(**{key: 1}))
        for key, names in KEYS_OF_OTHERS.items()
    ),
    (unknown("alibi", True, "attn_config", "; known keys are rope_theta"), ALIBI_DBRX),
    (r"'llama3' must have high_freq_factor, low_freq_factor; got factor, type", scaled("llama3", factor=8.0)),
    (r"rope_scaling must have a rope_type in addition to factor; got factor", llama(rope_scaling={"factor": 2.0})),
    (r"must have factor; got type", scaled("linear")),
    (r"rope_scaling of type 'yarn_log' must have factor; got ", {**GROK, "scaling_factor": None}),
    (r"factor must be at least 1; got 0.5", scaled("linear", factor=0.5)),
    (r"factor must be finite; got nan", scaled("linear", factor=float("nan"))),
    (r"LinearScaling: factor must be at least 1; got 0.5", SLIDING_GEMMA3, OF_SLIDING),  # of other layers
    (r"alpha or factor must be given, not both; got 3.0 and 2.0", scaled("dynamic", alpha=3.0, factor=2.0)),
    (r"one number for each of 64 pairs; got 63", scaled("longrope", **{**LONG, "short_factor": [1.0] * 63})),
    # Sections and order.
    (r"mrope_section must have 3 numbers in this family; got \[32, 32\]", qwen2_vl(mrope_section=[32, 32])),
    (r"mrope_section must sum to the 64 rotated pairs; got \[16, 24, 23\]", qwen2_vl(mrope_section=[16, 24, 23])),
    (r"mrope_interleaved must be False for this model_type; got True", qwen2_vl(mrope_interleaved=True)),
    (r"mrope_interleaved must be False for this model_type; got True", of("ernie4_5_moe_vl", 128, **INTERLEAVED)),
    (r"mrope_section must have at most 16 numbers; got 17", MANY_AXES, {"layout": "half"}),
    (r"use_mrope must be False .*; got True", llama(use_mrope=True)),
    (r"rope_interleave must be False .*; got True", llama(rope_interleave=True)),
    (r"rope_interleave must be False for this model_type", of("exaone4", 64, rope_traditional=True)),
    # Layers.
    (r"layer must be below 16384; got 16384", llama(), {"layer": 2**14}),
    (r"num_hidden_layers must be at most 16384; got 1000000000", {**GEMMA3, "num_hidden_layers": 10**9}, LAYER_0),
    (COUNTED, of("muse_glimmer_text", rope_theta=1e4), LAYER_0),
    (r"keys of per_layer_config must be indices of layers; got 999", llama(per_layer_config={"9" * 5000: {}})),
    (f"{NEED}, because layer types differ: full_attention, sliding_attention", GEMMA3),
    (f"{NEED}, because rope_parameters are nested by it: a, b;", bare(rope_parameters={"a": DEFAULT, "b": DEFAULT})),
    (BOTH, MIXED_GEMMA3, OF_FULL),
    (NESTED, FLAT_GEMMA3, OF_FULL),
    (r"no_rope_layer_interval must be below 2\*\*53; got 9007", llama("smollm3", no_rope_layer_interval=2**53)),
    (OF_TYPE, SMOLLM3, OF_FULL),
    (r"because partial_rotary_factors differ", {**STEP_SHARES, "layer_types": [FULL] * 2}, OF_FULL),
    (r"hybrid_layer_pattern must be a list of 0 and 1; got '9' in it", of("mimo_v2_flash", **PATTERN), {"layer": 1}),
    (r"bases must have a number for each layer; got 1", STEP, {"layer": 2}),
    *(
        (r"rope_theta must have a number for each layer; got 1", {**STEP, "layer_types": types}, UPSTREAM_0)
        for types in ([FULL, SLIDING], [FULL, FULL, SLIDING])
    ),
    # Keys of a family's own.
    (r"position_embedding_type must be one of .*rotary; got 'rotray'", {**ESM, "position_embedding_type": "rotray"}),
    (
        r"base_seqlen and training_seqlen must be given in .* 'telechat'.*; got base_seqlen=None",
        of("telechat", **HEADS),
    ),
    (r"seq_len must be at most training_seqlen=8192 .*; got 8193", TELECHAT, {"seq_len": 8193}),
    (r"rope_position_scale must be 1\.0 .* 'phi3small'; got 2\.0", of("phi3small", **HEADS, rope_position_scale=2.0)),
    (r"rope_scaling_factor must be 1 .* 'plamo3'; got 8", of("plamo3", 128, rope_theta=1e6, rope_scaling_factor=8)),
    (r"linear_rope must be True .*; got False", of("bailing_moe_linear", **HEADS, linear_rope=False)),
    (r"rotary_dim must be 64 in .* 'bailing_hybrid'; got 32", of("bailing_hybrid", rotary_dim=32)),
    (r"layer must have latent attention in .*; got layer=0", RING_2_5, {"layer": 0}),
    (r"attn_type_list must be a list of 0 and 1; got 2 in it", of("minimax_m1", 128, **SEVEN_TYPES), {"layer": 0}),
    (r"rope_theta, the base, must be given in .*'plamo3'; got none", of("plamo3", 128), OF_FULL),
    (
        r"attn_factor must be 1, or attention_factor be given .* \(attention_factor=1\), and transformers .* "
        r"\(attention_factor=1\.13863\); got 0\.878",
        llama(rope_scaling={**YARN_OF_4, "attn_factor": 0.8782488562869419}),
    ),
    (r"attn_factor must be greater than 0; got 0", llama(rope_scaling={**YARN_OF_4, "attn_factor": 0})),
    (r"position_encoding_2d must be False in .* 'chatglm'; got True", {**CHATGLM_1, "position_encoding_2d": True}),
    (r"must be 500000\.0, because of rope_ratio; got 10000", {**CHATGLM_1, "rope_ratio": 50, "rope_theta": 1e4}),
    (r"pos_emb must be 'rotary' in model_type 'qwen'; got 'alibi'", {**QWEN, "pos_emb": "alibi"}),
    (r"hidden_size must be 4096 \(7B, rotated\) or 5120 .*; got 1024", of("baichuan", **HEADS)),
    (r"type of rotary must be 'dynamic' or 'origin'; got 'linear'", {**INTERNLM, "rotary": {"type": "linear"}}),
    (unknown("scale", 2, "rotary"), {**INTERNLM, "rotary": {"type": "origin", "scale": 2}}),
    (r"rope_3d must be True in model_type 'ernie4_5_moe_vl'; got False", {**ERNIE, "rope_3d": False}),
    (AS_LISTED, {**ERNIE, "freq_allocation": 20, "rope_scaling": {"mrope_section": [20, 20, 24]}}),
    (r"extrapolation_factor must be 1\.0 in model_type 'git'; got 0\.5", {**GROK, "extrapolation_factor": 0.5}),
    (rf"yarn_only_types must be \['{FULL}'\] .*; got \['{SLIDING}'\]", of("step3p5", yarn_only_types=[SLIDING])),
    # Sizes.
    (r"an int must have at most 2048 bits; got 16610 bits", llama(vocab_size=10**5000)),
    (r"an int must have at most 2048 bits; got 16610 bits", llama(), {"layer": 10**5000}),
    (r"config must have at most 32 levels; got more", llama(other=nested(32))),
    (r"config must have at most 32 levels; got more", llama(other=ENDLESS)),
    (r"config must hold at most 1000000 values; got more", llama(other=DOUBLED)),
    # Arguments.
    (r"layout must be .*; got 'neox'", GEMMA3, {"layout": "neox"}),
    (r"compat must be .*; got 'vllm'", GEMMA3, {"compat": "vllm"}),
    (r"seq_len must be at least 1 and .*; got 0", GEMMA3, {"seq_len": 0}),
    (r"seq_len must be at least 1 and below", GEMMA3, {"seq_len": 10**400}),
    (r"seq_len must be at least 1 and below 2\*\*53; got 9007199254740992", GEMMA3, {"seq_len": 2**53}),
    (r"layer or layer_type must be given, not both", GEMMA3, {"layer": 3, "layer_type": FULL}),
    (r"layer must be from 0 to 11; got 12", GEMMA3, {"layer": 12}),
    (r"layer must not be negative; got -1", GEMMA3, {"layer": -1}),
    (r"layer_type must be full_attention, sliding_attention; got 'full'", GEMMA3, {"layer_type": "full"}),
    (r"part must be None for a config without parts; got 'vision'", GEMMA3, {"part": "vision"}),
]
# Configs whose values are of the wrong kind.
OBJECT = r"config must be a path, a mapping or an object with to_dict\(\); got "
STRINGS = "layer_types must be a list of strings; got "
NUMBERS = "no_rope_layers must be a list of numbers that are not negative; got '0' in it"
BAD_TYPES = [
    (f"{OBJECT}int$", 7),
    (rf"{OBJECT}Model: pass its config, model\.config$", Model()),
    (f"{OBJECT}type", Config),
    (r"config must hold a mapping; got list", Holder()),
    (r"model_type must be a string; got \['llama'\]", of(["llama"])),
    (r"model_type must be a string; got \[1\]", of("llava", text_config=of([1]))),
    (r"head_dim must be an int; got str", llama(head_dim="128")),
    (r"rope_theta must be a number; got '1e4'", llama(rope_theta="1e4")),
    (r"rope_scaling must be a mapping; got 'linear'", llama(rope_scaling="linear")),
    (r"factor must be a number; got '2'", scaled("linear", factor="2")),
    (r"long_factor must be a list or tuple of numbers; got '4'", scaled("longrope", **{**LONG, "long_factor": "4"})),
    (r"mrope_section must be a list of int; got '16'", qwen2_vl(mrope_section="16")),
    (rf"{STRINGS}\['full_attention', 3\]", llama(layer_types=[FULL, 3])),
    (rf"{STRINGS}\[1, 1, 1\]", of("recurrent_gemma", 16, block_types=[1], num_hidden_layers=3)),
    (r"layer_types must be a list; got 7", {**STEP, "layer_types": 7}, UPSTREAM_0),
    (NUMBERS, of("smollm3", 16, no_rope_layers=["0", "1"])),
    (r"must be a list; got 3", of("smollm3", 16, no_rope_layers=3)),
    (r"attn_config must be a mapping; got 'x'", {**DBRX, "attn_config": "x"}),
    (r"dual_chunk_attention_config must be a mapping; got 'yes'", llama(dual_chunk_attention_config="yes")),
    (r"rope_ratio must be a number; got '50'", {**CHATGLM_1, "rope_ratio": "50"}),
    (r"use_dynamic_ntk must be a bool; got str", {**QWEN, "use_dynamic_ntk": "yes", "seq_length": 8}),
    (r"architectures must be a list; got 7", {**GROK, "architectures": 7}),
    (r"seq_len must be an int; got float", GEMMA3, {"seq_len": 1.5}),
    (r"layer must be an int; got str", GEMMA3, {"layer": "3"}),
    (r"part must be a string; got \[\]", GEMMA3, {"part": []}),
    (r"strict must be a bool; got str", LLAMA, {"strict": "yes"}),
]
BAD_CONFIGS = [(error, row) for error, rows in ((ValueError, BAD_VALUES), (TypeError, BAD_TYPES)) for row in rows]


@pytest.mark.parametrize("error, row", BAD_CONFIGS, ids=lambda value: name_of(value[0]) if type(value) is tuple else "")
def test_bad_configs(error, row):
    message, config, *choice = row
    with pytest.raises(error, match=f"^from_config: .*{message}") as raised:
        read(config, *choice)
    assert type(raised.value) is error and len(str(raised.value)) < 1000


# What a file may hold that is no config.
TWICE = r"every key must occur once in a JSON object of \S*config.json; got '{}' 2 times$"
WHOLE = b'{"model_type": "llama", "head_dim": 128, "rope_scaling": {"type": "linear", "factor": 2.0}, "a": [1]}'
CUT = [WHOLE[:end] for end in (1, 2, 8, 14, 20, 24, 60, 70, len(WHOLE) - 1)]
BAD_FILES = [
    (b"\xff\xfe\x00", r"\S*config.json must be JSON in UTF-8"),
    (b'{\n  "model_type": "llama",\n}', r"\S*config.json must be JSON; got .* on line \d, column"),
    (b"", r"\S*config.json must be JSON; got no text: it is empty$"),
    (b" \n", r"\S*config.json must be JSON; got no text: it is empty$"),
    *((text, r"\S*config.json must be whole JSON; got text that ends early: it is truncated$") for text in CUT),
    (b'{"model_type": "llama"}', r"head_dim or .* must be given; .* \(in \S*config.json\)$"),
    (b"[" * 10**5 + b"]" * 10**5, r"\S*config.json must have at most 32 levels; got more$"),
    (
        b'{"vocab_size": ' + b"9" * 5000 + b"}",
        r"an int of \S*config.json must have at most 2048 bits; got 5000 digits$",
    ),
    (b'{"rope_scaling": {"type": "linear"}, "rope_scaling": null}', TWICE.format("rope_scaling")),
    (b'{"rope_scaling": {"type": "linear", "factor": 2.0, "factor": 2.0}}', TWICE.format("factor")),
    (b'{"text_config": [{"a": 1, "b": 2, "a": 3}]}', TWICE.format("a")),
]


@pytest.mark.parametrize("text, message", BAD_FILES, ids=lambda value: value[:40])
def test_bad_files(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=f"^from_config: {message}"):
        from_config(path)


def test_links_that_lead_nowhere(tmp_path):
    (tmp_path / "config.json").symlink_to(tmp_path / "other.json")
    (tmp_path / "other.json").symlink_to(tmp_path / "config.json")
    with pytest.raises(FileNotFoundError, match=r"^from_config: .*config\.json', a link to .* or in a loop of links$"):
        from_config(tmp_path)


def test_repeated_keys_are_counted_in_linear_time(tmp_path):
    """Each key twice: with one search for each key, this would take hours."""
    pairs = b",".join(b'"key%d":1' % number for number in range(200_000))
    (tmp_path / "config.json").write_bytes(b"{" + pairs + b"," + pairs + b"}")
    with pytest.raises(ValueError, match=r"every key must occur once .*config\.json; got 'key0' 2 times$"):
        from_config(tmp_path)


def test_a_file_is_read_up_to_a_bound(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("[]")
    with pytest.raises(TypeError, match=r"config must hold a mapping; got list"):
        from_config(path)
    os.truncate(path, 2**40)  # of zeros that no disk holds
    with pytest.raises(ValueError, match=r"^from_config: .*config\.json must have at most 16777216 bytes; got more$"):
        from_config(path)


@pytest.mark.parametrize("name", ["none.json", "meta-llama/Llama-3.1-8B", "\0", "n" * 5000, '{"model_type": "llama"}'])
def test_a_file_that_does_not_exist(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    message = (
        "^from_config: config must be a config.json on this machine, or its folder .*; got .*, which does not exist$"
    )
    with pytest.raises(FileNotFoundError, match=message) as raised:
        from_config(name)
    assert len(str(raised.value)) < 1000
    with pytest.raises(FileNotFoundError, match=rf"got '{re.escape(str(tmp_path / 'config.json'))}', which does not"):
        from_config(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_the_config_beside_a_file_of_tensors(tmp_path, name):
    (tmp_path / name).write_bytes(b"\0")  # it is not read
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert from_config(tmp_path / name) == from_config(LLAMA)
    with pytest.raises(FileNotFoundError, match=r"got '\S*other.safetensors', which does not exist"):
        from_config(tmp_path / "other.safetensors")


def test_a_folder_without_config_json_has_params_json(tmp_path):
    (tmp_path / "params.json").write_text(json.dumps(llama()))
    assert mapping_of(tmp_path) == llama()
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert mapping_of(tmp_path) == LLAMA


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")
@pytest.mark.parametrize("make", [getattr(os, "mkfifo", None), os.mkdir, None])
def test_only_regular_files_are_opened(tmp_path, make):
    if make is not None:
        make(tmp_path / "config.json")
    with pytest.raises(ValueError, match=r"^from_config: config must be a regular file; got '/.*'$"):
        from_config(tmp_path if make else "/dev/zero")


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    path.write_text("{}")

    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refused)
    with pytest.raises(PermissionError, match=r"^from_config: .* must be readable; got Permission denied$"):
        from_config(path)


@pytest.mark.parametrize("stated", [True, False, None])
@pytest.mark.parametrize("model_type, wanted", [("glm_moe_dsa", "interleaved_to_half"), ("deepseek_v32", "half")])
def test_transformers_does_not_read_the_layout_of_an_indexer(model_type, wanted, stated):
    config = {"model_type": model_type, "qk_rope_head_dim": 64, "rope_theta": 1e6, "max_position_embeddings": 4096}
    config |= {"num_hidden_layers": 4, "index_head_dim": 128, "indexer_rope_interleave": stated}
    rope = from_config(config, part="indexer", compat="transformers")
    assert rope.layout == wanted
    ours = from_config(config, part="indexer")
    assert ours.layout == {True: "interleaved_to_half", False: "half", None: wanted}[stated]


@pytest.mark.parametrize("key", ["yran", "yarm", "arn", "Yarn"])
def test_a_misspelt_yarn_of_mistral_is_no_missing_rule(key):
    sizes = {"dim": 4096, "n_heads": 32, "head_dim": 128, "hidden_dim": 14336, "rope_theta": 1e6}
    with pytest.raises(ValueError, match=f"yarn must have this spelling .*; got '{key}'"):
        from_config({**sizes, key: {"factor": 16, "original_max_position_embeddings": 8192}})


@pytest.mark.parametrize("key", ["N_Heads", "n_hedas", "nheads"])
def test_a_misspelt_key_that_shows_the_format_is_named(key):
    with pytest.raises(ValueError, match=f"n_heads must have this spelling in params.json; got '{key}'"):
        from_config({"dim": 4096, key: 32, "multiple_of": 256})
