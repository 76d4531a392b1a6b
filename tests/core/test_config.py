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
from cases import for_each
from configs import ROWS, value_of

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
WITHOUT_OWN = {"apply_yarn_scaling": False}  # as vLLM 0.21 reads it
LINEAR = {"rope_type": "linear", "factor": 8.0}
HEADS = {"hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 8}
FEW_HEADS = {"hidden_size": 64, "num_attention_heads": 4}
UPSTREAM = {"compat": "transformers"}
OF_FULL = {"layer_type": FULL}


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


def read(row, **more):
    """The embedding of a row of tests/goldens/rows.json: a config, and arguments if there are any."""
    return from_config(row["config"], **{**row.get("options", {}), **more})


def one_line(text):
    """The rows of a description, each on one line."""
    return re.sub(r"\n +", " ", text).splitlines()


def words(text):
    """A text without its line breaks."""
    return " ".join(text.split())


def name_of(value):
    """The id of a parameter that is a row, or a block."""
    value = value.get("config", value) if isinstance(value, dict) else value
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


@for_each("block, scaling", RULES)
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


@for_each("mscale, all_dim", [*product((None, 0.0, 0.5, 0.707), repeat=2)])
@for_each("factor", [1.0, 40.0])
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


@for_each("row", ROWS["not stated"])
def test_values_that_a_config_does_not_state(row):
    """The rows of `describe` that show them, each with its key, and whose default it is where not the family's."""
    config, choice = row["config"], row.get("options", {})
    rope = from_config(config, **choice)
    rows = [
        (name, key, *(source or [f"default of {config['model_type']}"]))
        for name, key, *source in (text.split(": ") for text in row["not stated"])
    ]
    assert list(rope._provenance.defaults) == rows
    lines = one_line(rope.describe())
    assert sum(line.count("not in the config") for line in lines) == len({name for name, *_ in rows})
    for name, key, source in rows:
        assert f"{key}, {source}" in next(line for line in lines if line.startswith(name or "not in the config"))
    if rows:
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


def test_layers_without_rotation_are_none():
    """A 1 for each layer that is rotated. tests/goldens/layer_types.json has the families without such keys."""
    for row in ROWS["rotated layers"]:
        config = of(row["model_type"], 16, attention_head_dim=16, **FEW_HEADS, **row["keys"])
        ropes = [from_config(config, layer=layer) for layer in range(len(row["rotated"]))]
        assert "".join("01"[rope is not None] for rope in ropes) == row["rotated"], row


def test_transformers_gives_each_third_pair_to_an_axis():
    """An axis with more pairs than that loses them to the first one."""
    for pairs in (63, 64, 65):
        sections = {"mrope_section": [pairs - 50, 25, 25], "mrope_interleaved": True, **DEFAULT}
        config = of("qwen3_vl_text", 2 * pairs, rope_theta=1e4, rope_parameters=sections)
        height, width = (len(range(start, pairs, 3)) for start in (1, 2))
        assert from_config(config, **UPSTREAM).sections.sizes == (pairs - height - width, height, width)
        sections["mrope_section"] = [pairs - 6, 4, 2]
        assert from_config(config, **UPSTREAM).sections.sizes == (pairs - 6, 4, 2)


def test_what_differs_between_layers_needs_the_layer():
    bases = of("granite_swa", 16, layer_rope_theta=[1e4, 0, 500.0])
    assert [from_config(bases, layer=layer).base for layer in (0, 2)] == [1e4, 500.0]
    widths = llama(num_hidden_layers=3, per_layer_config={"00": {"head_dim": 8}, "01": {"head_dim": 16}})
    assert [from_config(widths, layer=layer).head_dim for layer in range(3)] == [8, 16, 128]
    unrotated = llama("smollm3", num_hidden_layers=2, no_rope_layers=[1, 0], per_layer_config={"0": {"head_dim": 8}})
    assert [rope and rope.head_dim for rope in (from_config(unrotated, layer=layer) for layer in (0, 1))] == [8, None]
    zeros = llama(per_layer_config={"0" * 8 + "1": {"head_dim": 8}})
    assert [from_config(zeros, layer=layer).head_dim for layer in (0, 1)] == [128, 8]
    with pytest.raises(ValueError, match="per_layer_config must be indices of layers; got 0000000001"):
        from_config(llama(per_layer_config={"0" * 9 + "1": {}}), layer=1)
    types = {**widths, "layer_types": ["a", "b", "b"]}
    assert from_config(types, layer_type="a").head_dim == 8
    listed = of("molmo2_text", **HEADS, rope_parameters=LINEAR, rope_scaling_layers=[*range(8)])
    assert from_config(listed) == half(scaling=LinearScaling(factor=8.0))
    assert from_config({**listed, "rope_scaling_layers": [*range(9)]}) == from_config(listed)
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


@for_each("keys", WITHOUT_EFFECT)
def test_keys_that_change_no_position(keys):
    assert from_config(llama(**keys)) == half(base=5e5)


def test_a_factor_that_is_null_is_the_ratio_of_the_lengths():
    """In YaRN, also below 1; in LongRoPE, where it may be left out, too."""
    assert from_config(scaled("yarn", **ORIGINAL, factor=None)).scaling.factor == 4.0
    for original, ratio in ((2048, 4.0), (16_384, 1.0)):
        for factor in ({}, {"factor": None}):
            block = {**FACTORS, LENGTH: original, **factor}
            assert from_config(scaled("longrope", **block)).scaling.factor == ratio


def test_a_length_may_be_a_whole_number_in_floating_point():
    assert from_config(scaled("yarn", **{**YARN, LENGTH: 2048.0})) == from_config(scaled("yarn", **YARN))


@for_each("stated, kept", [(4096.0, 4096), (1, 1), (0, None), (0.5, None), (2**53, None), (None, None)])
def test_the_length_of_a_config_is_kept(stated, kept):
    assert from_config(llama(max_position_embeddings=stated))._provenance.max_position_embeddings == kept


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
    assert from_config({**config, **outer}, **UPSTREAM) == from_config(config)  # transformers reads the part alone


def test_what_a_family_means_for_each_layer():
    """As the classes' own sources say. No config states a base or a share unless its keys do."""
    for row in ROWS["layers"]:
        config = of(row["model_type"], **{**HEADS, **row["keys"]})
        # Gemma 4 takes the last layer for full attention, also if all types are said to slide.
        for more in ({}, UPSTREAM) if row["keys"] == {"layer_types": [SLIDING] * 8} else ({},):
            for layer, embedding in row["embeddings"]:
                assert from_config(config, layer=layer, **more) == value_of(embedding), row


GLM_ORDER = {"mrope_section": [4, 2, 2], "mrope_interleaved_glm": True}
OF_OTHER_KEYS = [
    (llama(per_layer_config={"0": {"sliding_window": 8}}), half(base=5e5)),
    (of("qwen2_vl_text", 16, rope_scaling=GLM_ORDER), half(16, 1e6, sections=Sections((4, 2, 2), "round_robin"))),
    (of("grok1", 4, rope_type="yarn_log", scaling_factor=1.0, **ORIGINAL), half(4, None, inv_freq=(1.0, 0.01))),
    (scaled("yarn", **YARN, **WITHOUT_OWN), half(base=5e5, scaling=YarnScaling(**YARN, attention_factor=1.0))),
    (
        scaled("yarn", **YARN, **WITHOUT_OWN, attn_factor=1.5),
        half(base=5e5, scaling=YarnScaling(**YARN, attention_factor=1.5)),
    ),
]


def test_keys_of_single_families():
    """Of the code in the checkpoints."""
    for row in ROWS["keys of families"]:
        assert read(row) == value_of(row["embedding"]), row
    for config, wanted in OF_OTHER_KEYS:
        assert from_config(config) == wanted, config


def test_position_axes_are_named_in_the_order_of_positions():
    for row in ROWS["position axes"]:
        axes = [line for line in one_line(read(row).describe()) if line.startswith("position axes")]
        assert len(axes) == bool(row["axes"]), row
        assert all(line.removeprefix("position axes").lstrip().startswith(row["axes"]) for line in axes), row


def test_indexers_of_sparse_attention():
    """As the classes of test_indexers.py compute it. The description of the attention says how its indexer rotates."""
    for row in ROWS["indexers"]:
        if "layers" in row:  # a 1 for each layer that has an indexer of its own
            ropes = [read(row, part="indexer", layer=layer) for layer in range(len(row["layers"]))]
            assert "".join("01"[rope is not None] for rope in ropes) == row["layers"], row
            continue
        wanted = value_of(row["embedding"])
        assert read(row, part="indexer", layer=row.get("layer")) == wanted, row
        attention = read(row, layer=row.get("layer", 1))
        notes = [line for line in one_line(attention.describe() if attention else "") if line.startswith("indexer")]
        assert len(notes) == (wanted is not None), row
        if wanted is not None:
            same = "the same" if wanted.layout == attention.layout else "another layout than the attention"
            which = (
                f"the {'last' if wanted.first_channel else 'first'} {wanted.rotary_dim} of {wanted.head_dim} channels"
            )
            assert f"layout {wanted.layout} ({same}), {which}:" in notes[0], row


def test_colpali_is_read_where_its_model_reads():
    """In `vlm_config`, also if there is a text_config that no model reads."""
    text = of("gemma", 256, rope_theta=5e4)
    config = of("colpali", vlm_config=of("paligemma", text_config=text))
    for more in ({}, {"text_config": {**text, "rope_theta": 7e4}}):
        assert from_config({**config, **more}) == from_config({**config, **more}, part="text") == half(256, 5e4)


def test_frequencies_that_are_trained_are_refused():
    block = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, LENGTH: 512}
    config = of("mistral_large4_text", **HEADS, rope_parameters=block)
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
    config = of("deepseek_v4", 512, qk_rope_head_dim=64, compress_rope_theta=1.6e5, rope_scaling=YARN_BLOCK, **types)
    main, compress = (from_config(config, layer=layer) for layer in (0, 1))
    assert (main.first_channel, main.rotary_dim, main.base, main.scaling) == (448, 64, 1e4, None)
    assert (compress.base, compress.attention_factor, compress.scaling.factor) == (1.6e5, 1.0, 4.0)
    atoms = {**FEW_HEADS, "hidden_size": 128, "spatial_rope_base_frequency": 1.0}
    assert from_config(of("esmfold2", atom_encoder=atoms), part="atom_encoder").inv_freq[0][:2] == (1.0, 1.0)
    gptj = of("gptj", n_embd=4096, n_head=16)
    assert [from_config({**gptj, **more}).rotary_dim for more in ({}, {"rotary_dim": None})] == [64, 256]


@for_each("model_type", ["phi3", "phi3_v", "phi4mm", "phi4_multimodal", "phimoe"])
def test_the_length_that_phi_was_trained_on(model_type):
    """4096 tokens in `configuration_phi3.py` and its descendants, however long the sequences may be."""
    block = {"type": "longrope", **FACTORS, **(MSCALES if model_type == "phimoe" else {})}
    rope = from_config(bare(model_type, max_position_embeddings=131_072, rope_scaling=block))
    assert rope.scaling.original_max_position_embeddings == 4096
    short = from_config(bare(model_type, max_position_embeddings=2048, rope_scaling=block))
    # `_compute_longrope_parameters`: the attention factor is 1 if no length is gained.
    assert short.attention_factor == 1.0 or model_type == "phimoe"


def test_a_width_of_an_odd_number_of_channels():
    """A half of 42 channels is 21: their frequencies, of which the last pair has one channel more."""
    odd = from_config(bare(head_dim=42, partial_rotary_factor=0.5))
    assert (odd.rotary_dim, odd.inv_freq) == (22, geometric(1e4, 42)[::2])
    two = from_config(bare(head_dim=42, partial_rotary_factor=0.5, rope_scaling={"type": "linear", "factor": 2.0}))
    assert two.inv_freq == tuple(w / 2.0 for w in odd.inv_freq)


@for_each("head_dim, share, width", [(128, 0.35, 44), (100, 0.29, 28)])
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


@for_each("block", [{}, {**YARN_BLOCK, "mscale": 0.7, "mscale_all_dim": 0.5}])
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


OLMO3 = bare("olmo3", rope_theta=7e5)
NESTED = {"rope_parameters": {SLIDING: DEFAULT, FULL: LINEAR}}
LONG_PHI = {"head_dim": 8, "rope_theta": 1e4, "max_position_embeddings": 131_072, LENGTH: 4096}
LONG_BLOCK = {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}}
ALPHA = {"rope_scaling": {"type": "dynamic", "alpha": 50.0, "factor": 1.0}}
# A config, arguments, an attribute, and what it is in truth and upstream, as text.
MISTAKES = [
    (OLMO3, {"layer_type": SLIDING}, "base", "700000.0", "500000.0"),
    (OLMO3, OF_FULL, "base", "700000.0", "700000.0"),
    ({**OLMO3, **NESTED}, {"layer_type": SLIDING}, "base", "700000.0", "700000.0"),
    (of("phi3", **LONG_PHI, **LONG_BLOCK), {"seq_len": 8192}, "scaling.long_factor", *["(4.0, 4.0, 4.0, 4.0)"] * 2),
    (of("phimoe", **LONG_PHI), {}, "scaling", None, None),
    ({**GEMMA3, "rope_scaling": {"type": "linear", **LINEAR}}, {"layer": 5}, "scaling.factor", "8.0", "8.0"),
    (scaled("linear", factor=8.0), {}, "scaling.factor", "8.0", "8.0"),
    (bare("hunyuan_v1_dense", **ALPHA), {"seq_len": 8192}, "scaling.factor", "50.0", "50.0"),
    (bare("hunyuan_v1_dense", **ALPHA, max_position_embeddings=None), {"seq_len": 1}, "scaling.factor", *["50.0"] * 2),
    (of("step3p5", 64, rope_theta=[1e4, 5e4], layer_types=[FULL] * 2), {"layer": 1}, "base", "50000.0", "10000.0"),
    (of("step3p5", 64, rope_theta=[1e4, 5e4], layer_types=[FULL, SLIDING]), {"layer": 1}, "base", *["50000.0"] * 2),
    (llama(partial_rotary_factor=1.0, rope_scaling=LINEAR), {}, "rotary_dim", "128", "128"),
    (llama(partial_rotary_factor=1.0), {}, "_provenance.remarks", "()", "()"),
]
MISTAKES = [dict(zip(("config", "options", "attribute", "right", "upstream"), each)) for each in MISTAKES]


@for_each("row", [*ROWS["mistakes of upstream"], *MISTAKES])
def test_what_is_right_and_what_upstream_does(row):
    """What transformers 5.18 does that is a mistake."""
    before, found = copy.deepcopy(row["config"]), attrgetter(row["attribute"])
    assert found(read(row)) == value_of(row["right"])
    assert found(read(row, **UPSTREAM)) == value_of(row["upstream"])
    assert row["config"] == before


@for_each("row", ROWS["contradictions"])
def test_contradictions_are_refused_or_resolved_as_upstream(row):
    with pytest.raises(ValueError, match=row["message"]):
        read(row)
    assert attrgetter(row["attribute"])(read(row, **UPSTREAM)) == value_of(row["upstream"])


@for_each("row", ROWS["remarks"])
def test_what_is_not_read_or_not_applied_is_remarked(row):
    """With which transformers fails, or what is not applied."""
    config, remark = row["config"], row["remark"]
    found = [line for line in one_line(from_config(config).describe()) if line.startswith("remark")]
    assert len(found) == bool(remark)
    assert all(line.startswith(f"remark            {remark}") for line in found)
    if "fails" not in remark and "dual" not in remark:
        assert "remark" not in from_config(config, **UPSTREAM).describe()


def test_what_transformers_cannot_do_is_refused_there():
    linear_share = scaled("linear", factor=2.0) | {SHARE: 0.5}
    fails = rf"^from_config: compat must be None for {SHARE}=0.5 and rope_type '{{}}' in '{{}}', because"
    assert from_config(linear_share).rotary_dim == 64
    own = of("cwm", rope_theta=1e6, partial_rotary_factor=0.5)  # whose own block has a rule
    hunyuan = of("hunyuan_vl", 16, rope_scaling={"type": "xdrope", "alpha": 5.0, "xdrope_section": [2] * 4})
    assert from_config(hunyuan).axes == 4
    for each, message in (
        (linear_share, fails.format("linear", "llama")),
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


@for_each("model_type, options", READ_BACK)
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


@for_each("options, message", NOT_IN_CONFIGS)
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


OBJECT = r"config must be a path, a mapping or an object with to_dict\(\); got "
ENDLESS = {}
ENDLESS["itself"] = ENDLESS
DOUBLED = [0, 0]
for _ in range(25):
    DOUBLED = [DOUBLED, DOUBLED]
# Wrong configs that JSON cannot hold.
WRONG_OBJECTS = [
    (ValueError, r"model_type must be one of .* \.\.\. ", of("l" * 10**6)),
    (ValueError, r"rope_type must be one of .*; got 'linearlinear.* \.\.\. .*linear'$", scaled("linear" * 1000)),
    (ValueError, r"factor must be finite; got nan", scaled("linear", factor=float("nan"))),
    (ValueError, r"per_layer_config must be indices of layers; got 999", llama(per_layer_config={"9" * 5000: {}})),
    (ValueError, r"an int must have at most 2048 bits; got 16610 bits", llama(vocab_size=10**5000)),
    (ValueError, r"config must have at most 32 levels; got more", llama(other=ENDLESS)),
    (ValueError, r"config must hold at most 1000000 values; got more", llama(other=DOUBLED)),
    (TypeError, rf"{OBJECT}Model: pass its config, model\.config$", Model()),
    (TypeError, f"{OBJECT}type", Config),
    (TypeError, r"config must hold a mapping; got list", Holder()),
]
WRONG = [{"error": error.__name__, "message": message, "config": config} for error, message, config in WRONG_OBJECTS]
WRONG += [
    {**ROWS["wrong configs"][0], "options": {"layer": 10**5000}, "message": r"an int must have at most 2048 bits"}
]
# BERT in transformers has no rotary embedding; code of a checkpoint may have one.
BERT = {"model_type": "bert", "hidden_size": 64, "num_attention_heads": 4}
NO_ROTATION = "model_type must be of a family with a rotary embedding; got 'bert', which has none in transformers 5.18"
WRONG += [
    {"error": "ValueError", "config": {**BERT, **keys}, "options": {"layout": layout}, "message": message}
    for keys, layout, message in [
        ({}, "half", NO_ROTATION),
        ({"rope_theta": None, "position_embedding_type": "absolute"}, "half", NO_ROTATION),
        ({"rotary_emb_base": 1e4}, None, "or layout be given; got 'bert'"),
        ({"position_embedding_type": "rotary"}, None, "or layout be given; got 'bert'"),
        ({"position_embedding_type": "rotary"}, "half", "rope_theta, the base, must be given"),
    ]
]


OF_YARN = "; ".join(f"{key} is a key of rope_type deepseek_yarn, yarn" for key in ("beta_fast", "beta_slow", "mscale"))
WRONG += [
    {
        "config": config,
        "options": options,
        "message": message,
        "error": f"{'Type' if 'a bool' in message or 'a string' in message else 'Value'}Error",
    }
    for config, options, message in [
        (of("llava", hiden_size=64), {}, "hidden_size must have this spelling in the config; got 'hiden_size'"),
        (
            of("step3p5", 64, rope_theta=[1e4], layer_types=[FULL, SLIDING]),
            {**UPSTREAM, "layer": 0},
            "rope_theta must have a number for each layer; got 1",
        ),
        (
            llama(**{SHARE: 0.25, f"{SHARE}s": [0.5]}),
            {"layer": 0},
            f"{SHARE} must not be contradicted; got 0.25 in the",
        ),
        (
            bare(**{SHARE: 0.25, "rope_parameters": {SHARE: 0.5}}),
            {},
            f"{SHARE} must not be contradicted; got 0.5 in ro",
        ),
        (
            scaled("longrope", **FACTORS, **ORIGINAL) | {"max_position_embeddings": 0},
            {},
            "max_position_embeddings must be",
        ),
        (scaled("longrope", **FACTORS, **{LENGTH: 0}), {}, f"{LENGTH} must be greater than 0"),
        (of("deepseek_v3", qk_rope_head_dim=64, rope_interleave="x"), {}, "rope_interleave must be a bool"),
        (llama(rope_interleave=True), {}, "rope_interleave must be False for this model_type; got True"),
        (llama("mixtral", rope_traditional="x"), {}, "rope_traditional must be a bool"),
        (llama(rotary_pct=-1), {}, f"{SHARE} must be greater than 0"),
        (llama(rotary_pct=128.5), {}, f"{SHARE} must be at most 128, the head_dim; got 128.5"),
        (llama(rotary_pct=1.5), {}, "the number of rotated channels must be at most head_dim=128; got 192"),
        (llama(rotary_dim=-1), {}, "rotary_dim must not be negative; got -1"),
        (llama(rotary_dim=0), {}, "the number of rotated channels must be at least 1; got 0 of head_dim=128"),
        (scaled("yarn", **ORIGINAL), {}, "rope_scaling of type 'yarn' must have factor; got original"),
        (scaled("linear", factor=None), {}, "rope_scaling of type 'linear' must have factor; got factor, type"),
        (scaled("llama3", **{**LLAMA3, "factor": None}), {}, "rope_scaling of type 'llama3' must have factor; got fac"),
        (of("llava", hiden_size=64), {"part": "audio"}, "part must be one of text; got 'audio'"),
        (of("llava", hiden_size=64), {"part": "vision"}, "part must be one of text; got 'vision'"),
        (
            scaled("linear", factor=2.0, beta_fast=1, beta_slow=2, a=3, mscale=1, truncate=True),
            {},
            f"; {OF_YARN}; known",
        ),
        (
            llama(rope_scaling={"x": 1}),
            {},
            "every key of rope_scaling must be known; got {'x': 1}; known keys are none",
        ),
        (of("gptj", n_embd=256, n_head=4, rotary=False), {}, "rotary must be true; got false"),
        (of("esmfold2_atom_encoder", 32, num_uid_rope_pairs=17), {}, "must be at most 16, the pairs of a head; got 23"),
        (bare("qwen"), {"seq_len": 9000}, "seq_length must be given for use_dynamic_ntk with seq_len; got None"),
        (LLAMA, {"layer_type": 3}, "layer_type must be a string; got 3"),
        (of("sam3"), {}, "part must be one of backbone; got None"),
        (
            scaled("yarn", **YARN, **WITHOUT_OWN, attn_factor=1.5, attention_factor=2.0),
            {},
            "rope_scaling must not contradict each other; got {'attention_factor': 2.0, 'attn_factor': 1.5}",
        ),
    ]
]


@for_each("row", [*ROWS["wrong configs"], *WRONG])
def test_wrong_configs(row):
    error = {"ValueError": ValueError, "TypeError": TypeError}[row["error"]]
    with pytest.raises(error, match=f"^from_config: .*{row['message']}") as raised:
        read(row)
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


@for_each("text, message", BAD_FILES)
def test_bad_files(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=f"^from_config: {message}"):
        from_config(path)


def test_links_that_lead_to_a_file_and_nowhere(tmp_path):
    (tmp_path / "file").write_text(json.dumps(LLAMA))
    (tmp_path / "link").symlink_to("file")
    assert from_config(tmp_path / "link") == from_config(LLAMA)
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
    with pytest.raises(TypeError, match=rf"layer must be an int; got str \(in .*{re.escape(name[-30:])}\)$"):
        from_config(name, layer="x")


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


@for_each("stated", [True, False, None])
@for_each("model_type, wanted", [("glm_moe_dsa", "interleaved_to_half"), ("deepseek_v32", "half")])
def test_transformers_does_not_read_the_layout_of_an_indexer(model_type, wanted, stated):
    config = {"model_type": model_type, "qk_rope_head_dim": 64, "rope_theta": 1e6, "max_position_embeddings": 4096}
    config |= {"num_hidden_layers": 4, "index_head_dim": 128, "indexer_rope_interleave": stated}
    rope = from_config(config, part="indexer", compat="transformers")
    assert rope.layout == wanted
    ours = from_config(config, part="indexer")
    assert ours.layout == {True: "interleaved_to_half", False: "half", None: wanted}[stated]


@for_each("key", ["yran", "yarm", "arn", "Yarn"])
def test_a_misspelt_yarn_of_mistral_is_no_missing_rule(key):
    sizes = {"dim": 4096, "n_heads": 32, "head_dim": 128, "hidden_dim": 14336, "rope_theta": 1e6}
    with pytest.raises(ValueError, match=f"yarn must have this spelling .*; got '{key}'"):
        from_config({**sizes, key: {"factor": 16, "original_max_position_embeddings": 8192}})


@for_each("key", ["N_Heads", "n_hedas", "nheads"])
def test_a_misspelt_key_that_shows_the_format_is_named(key):
    with pytest.raises(ValueError, match=f"n_heads must have this spelling in params.json; got '{key}'"):
        from_config({"dim": 4096, key: 32, "multiple_of": 256})
