"""from_config: every spelling of one meaning, upstream's mistakes on request, and errors that name the key."""

import ast
import copy
import json
import os
import pickle
import re
from dataclasses import replace
from itertools import product
from math import log
from pathlib import Path

import numpy as np
import pytest
from cases import for_each

from rope_xp import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    MixedNTKScaling,
    NTKScaling,
    ProportionalScaling,
    RotaryEmbedding,
    YarnScaling,
    from_config,
)
from rope_xp.configs.families import model_types
from rope_xp.configs.families.family import COMMON_DEFAULTS
from rope_xp.configs.families.model_types import FAMILIES
from rope_xp.configs.parts import PARTS
from rope_xp.provenance import Provenance, with_provenance

FULL = "full_attention"
LENGTH, SHARE = "original_max_position_embeddings", "partial_rotary_factor"
ORIGINAL = {LENGTH: 2048}
YARN = {"factor": 4.0, **ORIGINAL}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **ORIGINAL}
FACTORS = {"short_factor": [1.0] * 64, "long_factor": [4.0] * 64}
LONG = {**FACTORS, "factor": 4.0, **ORIGINAL}
LINEAR = {"rope_type": "linear", "factor": 8.0}


def of(model_type, head_dim=None, **keys):
    """A config that states these keys only."""
    return {"model_type": model_type, **({} if head_dim is None else {"head_dim": head_dim}), **keys}


def bare(model_type="llama", **keys):
    """A config that states widths and no base: heads of 128 channels."""
    return of(model_type, **{"hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 8192, **keys})


def llama(model_type="llama", **keys):
    return bare(model_type, **{"rope_theta": 5e5, **keys})


def half(head_dim=128, base=1e4, **options):
    return RotaryEmbedding(head_dim=head_dim, **{"layout": "half", "base": base, **options})


LLAMA = bare()


def words(text):
    """A text without its line breaks."""
    return " ".join(text.split())


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
    ({"rope_type": "default"}, None),
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
    assert (
        from_config(nested, layer=np.int64(0))
        == from_config(nested, layer_type=FULL)
        == half(base=5e5, scaling=scaling)
    )


class Config:
    def to_dict(self):
        return llama()


def test_a_path_a_mapping_or_an_object(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8-sig")
    assert from_config(tmp_path) == from_config(LLAMA)
    path.write_text(json.dumps(llama()))
    assert [from_config(given) for given in (path, str(path), llama(), Config())] == 4 * [half(base=5e5)]


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


def test_provenance_is_no_part_of_the_value():
    stated, unstated = from_config(llama(rope_theta=1e4)), from_config(LLAMA)
    assert stated == unstated and hash(stated) == hash(unstated) and repr(stated) == repr(unstated)
    for kept in (copy.copy(unstated), copy.deepcopy(unstated), pickle.loads(pickle.dumps(unstated))):
        assert kept == unstated and "not in the config: rope_theta" in words(kept.describe())
    assert "not in the config" not in words(replace(unstated).describe())
    assert replace(unstated).describe() == stated.describe() == half().describe()
    remarked = with_provenance(stated, Provenance(remarks=("one", "two")))
    assert remarked.describe() == stated.describe() + "\nremark            one\nremark            two"


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


def test_every_family_has_one_row():
    tree = ast.parse(Path(model_types.__file__).read_text())
    tables = [node.value for node in tree.body if getattr(getattr(node, "target", None), "id", "").endswith("ROWS")]
    names = [each for table in tables for key in table.keys for each in ast.literal_eval(key).split()]
    assert len(names) == len(set(names)) == len(FAMILIES)


def test_every_default_is_read():
    """A default that a row misspells would change nothing, and nobody would see it."""
    known = {*COMMON_DEFAULTS, "rope_parameters", LENGTH, "mrope_section", "qk_rope_head_dim"}
    for name, family in FAMILIES.items():
        rows = [family, *family.layers.by_type.values()]
        widths = {key for row in rows if isinstance(row.head_dim, str) for key in row.head_dim.split(" | ")}
        for row in rows:
            assert {*row.defaults} <= known | widths | {*(family.layers.only_if or ())[:1]}, name


def test_every_share_is_read_back():
    for head_dim in range(2, 130, 2):
        for rotary_dim in range(2, head_dim + 1, 2):
            block = half(head_dim, 100.0, rotary_dim=rotary_dim).to_config()
            assert int(block.get(SHARE, 1.0) * head_dim) == rotary_dim


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
    (ValueError, r"an int must have at most 2048 bits; got 16610 bits", llama(vocab_size=10**5000)),
    (ValueError, r"config must have at most 32 levels; got more", llama(other=ENDLESS)),
    (ValueError, r"config must hold at most 1000000 values; got more", llama(other=DOUBLED)),
    (TypeError, rf"{OBJECT}Model: pass its config, model\.config$", Model()),
    (TypeError, f"{OBJECT}type", Config),
    (TypeError, r"config must hold a mapping; got list", Holder()),
]


@for_each("error, message, config", WRONG_OBJECTS)
def test_wrong_configs(error, message, config):
    with pytest.raises(error, match=f"^from_config: .*{message}") as raised:
        from_config(config)
    assert type(raised.value) is error and len(str(raised.value)) < 1000
    with pytest.raises(ValueError, match=r"^from_config: an int must have at most 2048 bits"):
        from_config(LLAMA, layer=10**5000)


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


@pytest.mark.parametrize("name", ["none.json", "meta-llama/Llama-3.1-8B", "\0", "n" * 5000, '{"model_type": "llama"}'])
def test_a_file_that_does_not_exist(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    message = "^from_config: config must be a config.json, .* or a folder with one .*; got .*, which does not exist$"
    with pytest.raises(FileNotFoundError, match=message) as raised:
        from_config(name)
    assert len(str(raised.value)) < 1000
    with pytest.raises(FileNotFoundError, match=rf"got '{re.escape(str(tmp_path / 'config.json'))}', which does not"):
        from_config(tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")
@pytest.mark.parametrize("make", [getattr(os, "mkfifo", None), os.mkdir, None])
def test_only_regular_files_are_opened(tmp_path, make):
    if make is not None:
        make(tmp_path / "config.json")
    with pytest.raises(ValueError, match=r"^from_config: config must be a regular file; got '/.*'$"):
        from_config(tmp_path if make else "/dev/zero")


def test_a_file_that_cannot_be_read(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    for text, said in (
        ("[" * 10**5, "have at most 32 levels; got more$"),
        ("{,}", r"be JSON; got .* on line 1, column"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=rf"^from_config: \S*config\.json must {said}"):
            from_config(path)

    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refused)
    with pytest.raises(PermissionError, match=r"^from_config: .* must be readable; got Permission denied$"):
        from_config(path)


OF_OTHER_CODE = (
    "rot_pct rotate_dim is_neox_style use_xpos inv_freq local_base_freq max_wavelength interleaved traditional "
    "attention_factor attn_factor long_factor low_freq_factor beta_fast mscale_all_dim scale_base position_scale "
    "rotation_base position_interpolation frequency_base n_rot use_rope use_irope"
)


@for_each("key", OF_OTHER_CODE.split())
@for_each("value", [0.25, True])
def test_a_key_about_rotation_that_no_family_has_is_not_ignored(key, value):
    """The last two are one letter from a key that is read, and have another meaning."""
    hint = "; known keys in it: " if key.endswith("rope") else ""
    with pytest.raises(ValueError, match=f"about positions must be known; got {{'{key}': {value}}}{hint}"):
        from_config(llama(**{key: value}))
