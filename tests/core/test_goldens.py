"""Real configs mean what a person read in them, and no key of theirs can be lost in silence."""

import copy
import json
import re
import runpy
import sys
from itertools import product
from operator import attrgetter

import pytest
from configs import CONFIGS, GOLDENS, HERE, at, changed, paths_of, without

import rope_xp
from rope_xp.configs.families.own_keys import UNROTATED, readers

# The goldens are rounded once. A power in float64 is off by the rounding of its exponent, times ln(base) < 21 and an
# exponent < 1, so by a few 1e-15; each rule adds a handful of roundings.
RTOL = 1e-12

# Top-level keys that speak of the rotation. Within a rope block every key does.
ROTARY_KEY = re.compile(r"rope|rotary|partial|theta|original_max_position|mrope|yarn|dynamic_ntk")
BLOCKS = ("rope_scaling", "rope_parameters")
PARTS = {"text_config": "text", "vision_config": "vision"}

# Keys that a config may lack and mean the same: the reason, and below it lines of such keys and the configs that have
# them. Each key must be there and be without effect.
WITHOUT_EFFECT = """
# the value is the family's documented default
attn_rotary_emb: bamba-9b
compress_rope_theta: deepseek-v4-flash
global_rope_theta local_rope_theta: modernbert-base
no_rope_layer_interval: smollm3-3b
original_max_position_embeddings: phi-3-vision-128k-text phi-3.5-mini-instruct phi-4-mini-instruct
partial_rotary_factor: persimmon-8b-base
partial_rotary_factor rope_theta: glm-4-9b-0414 mimo-v2-flash minitron-4b-base stablelm-2-12b stablelm-2-1_6b
qk_rope_head_dim: deepseek-v2-lite deepseek-v2-lite-saved-by-transformers-5 deepseek-v3 deepseek-v4-flash
qk_rope_head_dim: kimi-k2-instruct
rope_parameters/rope_theta: deepseek-v2-lite-saved-by-transformers-5
rope_scaling: gpt-oss-20b
rope_scaling rope_scaling/mrope_section rope_theta: qwen2-vl-7b-instruct qwen2.5-vl-7b-instruct
rope_theta: bamba-9b deepseek-v2-lite deepseek-v3 deepseek-v4-flash dinov3-vitl16-lvd1689m ernie-4.5-vl-28b-a3b-remote
rope_theta: gemma-2-9b gpt-oss-20b hunyuan-a13b-instruct hunyuan-large hunyuan-ocr hy-mt1.5-1.8b lfm2-1.2b olmo-3-7b
rope_theta: mistral-7b-v0.1 mixtral-8x7b-v0.1 phi-2 phi-3-vision-128k-text phi-3.5-mini-instruct phi-4-mini-instruct
rope_theta: zamba2-7b-instruct
rotary: internlm-20b
rotary_dim: gpt-j-6b
rotary_emb_base rotary_emb_fraction rotary_emb_interleaved: nomic-embed-text-v1.5
rotary_emb_base rotary_pct: gpt-neox-20b pythia-1.4b qwen-7b-chat
rotary_pct: command-r7b-12-2024
swa_rope_theta: mimo-v2-flash
text_config/rope_local_base_freq: gemma-3-12b-it
text_config/rope_parameters text_config/rope_parameters/full_attention/rope_theta: gemma-4-e2b-it
text_config/rope_parameters text_config/rope_parameters/rope_theta: ernie-4.5-vl-28b-a3b ministral-3-8b
text_config/rope_parameters/mrope_section: ernie-4.5-vl-28b-a3b qwen3.5-0.8b
text_config/rope_parameters/partial_rotary_factor: qwen3.5-0.8b
text_config/rope_parameters/sliding_attention/rope_theta: gemma-4-e2b-it
text_config/rope_scaling text_config/rope_scaling/mrope_section: glm-4.1v-9b-thinking qwen3-vl-2b-instruct
text_config/rope_theta: gemma-3-12b-it glm-4.1v-9b-thinking llama-4-scout-17b-16e llama-4-scout-17b-16e-instruct
use_dynamic_ntk: qwen-7b-chat
vision_config/rope_parameters vision_config/rope_parameters/rope_theta: gemma-4-e2b-it ministral-3-8b
vision_config/rope_theta: llama-4-scout-17b-16e pixtral-12b
yarn_only_types: step-3.5-flash
qk_rope_head_dim: glm-5 glm-5.1 glm-5.2 deepseek-v3.2 deepseek-v4-pro ling-3.0-flash ling-3.0-tiny
text_config/qk_rope_head_dim: kimi-k2.5
compress_rope_theta rope_theta: deepseek-v4-pro
rope_theta: deepseek-v3.2 minimax-m3 minimax-m2.5 gpt-oss-120b mixtral-8x22b-v0.1 orion-14b deepseek-moe-16b
rope_theta: tinyllama-1.1b smollm-1.7b stablelm-3b-4e1t gemma-2b gemma-2-27b gemma-3-1b-it ling-3.0-flash ling-3.0-tiny
rope_scaling: gpt-oss-120b
partial_rotary_factor: stablelm-3b-4e1t
rope_local_base_freq: gemma-3-1b-it
rope_pct rope_theta: stablelm-3b-4e1t-first-file
rotary_dim: phi-1_5-first-file phi-2-first-file
rotary_emb_base: redpajama-incite-3b
rope_freq_constant: openelm-1.1b-instruct
rope_embedding_base: phi-3-small-8k
text_config/rope_theta: llama-4-maverick-17b-128e step-3
text_config/rope_parameters/mrope_section text_config/rope_parameters/partial_rotary_factor: qwen3.5-397b-a17b
text_config/rope_parameters text_config/rope_parameters/full_attention/rope_theta: gemma-4-26b-a4b
text_config/rope_parameters/sliding_attention/rope_theta: gemma-4-26b-a4b
vision_config/rope_parameters vision_config/rope_parameters/rope_theta: gemma-4-26b-a4b
# a key that this rule does not use, known and carried by the checkpoint
rope_scaling/beta_fast rope_scaling/beta_slow rope_scaling/factor: hunyuan-a13b-instruct hunyuan-ocr hy-mt1.5-1.8b
rope_scaling/factor: hunyuan-large
rope_scaling/mscale rope_scaling/mscale_all_dim: hunyuan-a13b-instruct hunyuan-ocr hy-mt1.5-1.8b
# YaRN's documented default: beta_fast 32, beta_slow 1
rope_parameters/beta_fast rope_parameters/beta_slow: deepseek-v2-lite-saved-by-transformers-5
rope_scaling/beta_fast rope_scaling/beta_slow: deepseek-v2-lite deepseek-v3 deepseek-v4-flash gpt-oss-20b olmo-3-7b
rope_scaling/beta_slow: kimi-k2-instruct
rope_scaling/beta_fast rope_scaling/beta_slow: deepseek-v3.2 deepseek-v4-pro gpt-oss-120b
text_config/rope_scaling/beta_fast text_config/rope_scaling/beta_slow: kimi-k2.5
text_config/rope_parameters/beta_fast text_config/rope_parameters/beta_slow: ministral-3-8b
# rope_type is 'default' where a block has none
rope_scaling/type: ernie-4.5-vl-28b-a3b-remote qwen2-vl-7b-instruct qwen2.5-vl-7b-instruct
text_config/rope_parameters/rope_type: ernie-4.5-vl-28b-a3b qwen3.5-0.8b
text_config/rope_parameters/sliding_attention/rope_type: gemma-4-e2b-it
text_config/rope_scaling/rope_type: glm-4.1v-9b-thinking qwen3-vl-2b-instruct
vision_config/rope_parameters/rope_type: gemma-4-e2b-it ministral-3-8b
rope_parameters/rope_type: glm-5 glm-5.1 glm-5.2
text_config/rope_parameters/rope_type: qwen3.5-397b-a17b
text_config/rope_parameters/sliding_attention/rope_type: gemma-4-26b-a4b
vision_config/rope_parameters/rope_type: gemma-4-26b-a4b
# the key says what is so without it; with another value it is read or refused
original_rope: chatglm3-6b-32k glm-4-9b-chat
position_embedding_xdrope: hunyuan-a13b-instruct
rope_3d: ernie-4.5-vl-28b-a3b-remote
rope_traditional: llama-3.2-1b-mlx
rotary_scaling_factor: stablelm-2-12b
use_rotary_pos_emb: hunyuan-a13b-instruct hunyuan-large
original_rope: chatglm3-6b
rope_interleave: glm-5 glm-5.1 glm-5.2 ling-3.0-flash
rope_interleaved: smollm2-135m
rope_position_scale: phi-3-small-8k
use_mrope: mimo-7b-base
# null says what no key says
rope_scaling: command-r7b-12-2024 ling-mini-2.0 llama-2-7b phi-2 smollm3-3b
rotary_emb_scale_base rotary_scaling_factor: nomic-embed-text-v1.5
rope_scaling: qwen3-0.6b qwen3-30b-a3b qwen3-coder-480b-a35b orion-14b deepseek-moe-16b codellama-7b tinyllama-1.1b
rope_scaling: smollm-1.7b smollm2-135m gemma-2b gemma-3-1b-it ring-mini-linear-2.0
text_config/rope_scaling: llama-4-maverick-17b-128e
# rope_type and type name the same rule; either suffices
rope_parameters/rope_type rope_parameters/type: deepseek-v2-lite-saved-by-transformers-5
text_config/rope_parameters/rope_type text_config/rope_parameters/type: ministral-3-8b
# the family decides the order of axes; the key may only agree
text_config/rope_parameters/mrope_interleaved: qwen3.5-0.8b
text_config/rope_parameters/mrope_interleaved: qwen3.5-397b-a17b
text_config/rope_scaling/mrope_interleaved: qwen3-vl-2b-instruct
# another key says it too
original_max_position_embeddings rope_scaling/original_max_position_embeddings: phi-3.5-moe-synthetic-factors
rope_scaling rope_scaling/mrope_section: ernie-4.5-vl-28b-a3b-remote
partial_rotary_factor rotary_dim: minimax-m3
rotary_dim: ling-3.0-flash
# it is the one YaRN derives, 0.1 ln 8 + 1
rope_scaling/attention_factor: olmo-3-7b
# a temperature of queries, no rotation
text_config/rope_parameters/llama_4_scaling_beta: ministral-3-8b
# GPT-J always rotates
rotary: gpt-j-6b
# the list is what no list means
text_config/no_rope_layers: llama-4-scout-17b-16e llama-4-scout-17b-16e-instruct
use_rope_layers: step-3.5-flash
# without it the length trained on is max_position_embeddings, which is the same here
rope_scaling/original_max_position_embeddings: qwen2.5-7b-instruct-yarn
# it is about the indexer, a kernel, the longest table or latent attention, which is not used
indexer_rope_interleave: glm-5 glm-5.1 glm-5.2
flash_rotary: phi-1_5-first-file phi-2-first-file
rope_max_length: openelm-1.1b-instruct
qk_rope_head_dim: deepseek-ocr
# transformers does not read it
rope_scaling/attn_factor: deepseek-r1-0528-qwen3-8b
# no layer is rotated
partial_rotary_factor rope_theta: nemotron-3-nano-30b-a3b
"""
ROWS = [line.partition(": ") for line in WITHOUT_EFFECT.splitlines() if not line.startswith("#")]
EXCUSED = {pair for keys, _, names in ROWS for pair in product(names.split(), keys.split())}


def called(golden):
    arguments = ", ".join(f"{key}={value}" for key, value in golden["kwargs"].items())
    return f"{golden['config']}({arguments})"


@pytest.mark.parametrize("golden", GOLDENS, ids=called)
def test_a_config_means_what_a_person_read(golden):
    rope = rope_xp.from_config(CONFIGS[golden["config"]], **golden["kwargs"])
    assert (rope is not None) == golden["rotated"]
    if rope is None:
        return
    for name in ("head_dim", "rotary_dim", "layout", "first_channel", "blocks"):
        assert getattr(rope, name) == golden[name], name
    assert rope.attention_factor == pytest.approx(golden["attention_factor"], rel=RTOL, abs=0)
    rows = [rope.inv_freq] if rope.axes == 1 else rope.inv_freq
    for row, wanted in zip(rows, by_axis(golden), strict=True):
        assert list(row) == pytest.approx(wanted, rel=RTOL, abs=0)


def by_axis(golden):
    """Frequencies as one row per position axis, zero where a pair follows another axis."""
    freqs, axis = golden["inv_freq"], golden.get("axis", [0] * len(golden["inv_freq"]))
    return [[f if a == row else 0.0 for f, a in zip(freqs, axis, strict=True)] for row in range(max(axis) + 1)]


def test_every_config_has_goldens():
    assert {golden["config"] for golden in GOLDENS} == set(CONFIGS)


def test_the_goldens_are_what_the_script_makes():
    script = HERE / "make_goldens.py"
    assert runpy.run_path(str(script))["make"]() == GOLDENS
    imported = re.findall(r"^\s*(?:import|from) (\w+)", script.read_text(), flags=re.MULTILINE)
    assert {*imported} <= sys.stdlib_module_names


def spoken(config):
    """Paths of the keys that speak of the rotation."""
    paths = [(key,) for key in config if ROTARY_KEY.search(key)]
    for block in BLOCKS:
        if isinstance(config.get(block), dict):
            paths += [path for path in paths_of(config[block], (block,)) if isinstance(path[-1], str)]
    for part in PARTS:
        if part in config:
            paths += [(part, *path) for path in spoken(config[part])]
    return paths


def homes(name):
    """Paths of the mappings where an unknown key must be noticed: the config, parts that goldens read, rope blocks.

    None in a family that is never rotated: no key changes that.
    """
    config = CONFIGS[name]
    if config.get("model_type") in UNROTATED:
        return
    read = {golden["kwargs"].get("part", "text") for golden in goldens_of(name)}
    yield from (paths := [(), *((part,) for part, kind in PARTS.items() if part in config and kind in read)])
    for path, block in product(paths, BLOCKS):
        value = at(config, path).get(block)
        if isinstance(value, dict):
            yield (*path, block)
            yield from ((*path, block, key) for key, inner in value.items() if isinstance(inner, dict))


def goldens_of(name):
    return [golden for golden in GOLDENS if golden["config"] == name]


PROPERTIES = "head_dim rotary_dim layout first_channel blocks attention_factor inv_freq reverse"


def outcome(config, kwargs):
    try:
        rope = rope_xp.from_config(config, **kwargs)
    except (ValueError, TypeError) as error:
        return str(error)
    return None if rope is None else attrgetter(*PROPERTIES.split())(rope)


def meaning(name, config):
    """What `from_config` makes of a config, for every golden of it; an error is a meaning of its own."""
    return [outcome(config, golden["kwargs"]) for golden in goldens_of(name)]


KEYS = [(name, path) for name, config in CONFIGS.items() for path in spoken(config)]
HOMES = [(name, path) for name in CONFIGS for path in homes(name)]


def slashed(value):
    return "/".join(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize(("name", "path"), KEYS, ids=slashed)
def test_a_dropped_key_changes_the_meaning(name, path):
    same = meaning(name, without(name, path)) == meaning(name, CONFIGS[name])
    excused = (name, slashed(path)) in EXCUSED
    assert same == excused, "this row of DEFAULTS is stale" if excused else "a dropped key went unnoticed"


@pytest.mark.parametrize(("name", "path"), HOMES, ids=lambda value: slashed(value) or "top")
def test_an_unknown_key_raises_and_is_named(name, path):
    config = changed(name, (*path, "rope_extra_thing"), 1.5)
    assert any("rope_extra_thing" in str(each) for each in meaning(name, config))


def test_no_row_is_stale():
    """Rows name keys that exist; that each still holds is tested with its key."""
    assert not EXCUSED - {(name, slashed(path)) for name, path in KEYS}


def test_a_config_is_left_as_it_was():
    for name, config in CONFIGS.items():
        before = copy.deepcopy(config)
        meaning(name, config)
        assert config == before, name


# What transformers' classes were seen to compute where their configs state nothing: see make_unstated.py.
UNSTATED = json.loads((HERE / "unstated.json").read_text())
# A power in float64 is not rounded alike on every platform.
DIGITS = re.compile(r"\d+\.\d+(e-?\d+)?")


def written(text):
    return DIGITS.sub(lambda number: f"{float(number[0]):.12g}", text)


@pytest.mark.parametrize("row", UNSTATED, ids=lambda row: f"{row['config'].get('model_type')}-{row['layer_type']}")
def test_a_config_that_states_nothing_means_what_its_class_computes(row):
    rope = rope_xp.from_config(row["config"], part=row["part"], layer_type=row["layer_type"])
    assert written(repr(rope)) == written(row["is"])


def test_the_families_that_are_named_for_a_key_read_it():
    """No family that an error names for a key refuses it."""
    rows = {row["config"]["model_type"]: row for row in reversed(UNSTATED)}
    pairs = [(key, rows[name]) for key, names in readers().items() for name in names if name in rows]
    assert len(pairs) > 100
    for key, row in pairs:
        try:
            rope_xp.from_config({**row["config"], key: None}, part=row["part"], layer_type=row["layer_type"])
        except ValueError as error:
            assert "must be known" not in str(error)  # null may be no value of the key


# The types of 13 layers that config classes of transformers fill in: see make_layer_types.py.
LAYER_TYPES = json.loads((HERE / "layer_types.json").read_text())


@pytest.mark.parametrize("name", LAYER_TYPES)
def test_layers_that_a_config_does_not_type_are_those_of_its_class(name):
    config = {"model_type": name, "hidden_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 13}
    types, embeddings = LAYER_TYPES[name]
    for layer, kind in enumerate(types):
        assert written(repr(rope_xp.from_config(config, layer=layer))) == written(embeddings[kind])
