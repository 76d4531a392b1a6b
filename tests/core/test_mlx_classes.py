"""to_config("mlx") writes the keys that the model class reads, where it reads them, or refuses.

What classes compute with these keys is tested in mlx-lm itself: tests/engines/test_mlx_lm.py.
"""

import math
import warnings

import pytest
from cases import for_each
from configs import CONFIGS, GOLDENS

from rope_xp import LinearScaling, LongRopeScaling, RotaryEmbedding, YarnScaling, from_config
from rope_xp.configs import engines
from rope_xp.provenance import with_provenance

TABLE = engines.table("mlx-lm", "0.32.2")
YARN = YarnScaling(factor=4.0, original_max_position_embeddings=4096)
LENGTH, WHOLE = "original_max_position_embeddings", "max_position_embeddings"
SIZES = {"hidden_size": 4096, "num_attention_heads": 32}


def of_type(model_type, scaling=None, layer_type=None, **keys):
    """The embedding of a tiny config, with another scaling."""
    rope = from_config({"model_type": model_type, **SIZES, **keys}, layer_type=layer_type)
    return rope if scaling is None else with_provenance(rope.replace(scaling=scaling), rope._provenance)


# Classes that never read the keys of a rule.
@for_each(
    "model_type",
    [
        "gemma",
        "gemma2",
        "glm4",
        "stablelm",
        "cohere",
        "minimax_m2",
        "starcoder2",
        "phi",
        "helium",
        "mixtral",
        "gpt_neox",
    ],
)
def test_a_rule_that_a_class_does_not_read_is_refused(model_type):
    rope = of_type(model_type, rope_theta=10_000.0)
    assert rope.to_config("mlx")
    rope = with_provenance(rope.replace(scaling=YARN), rope._provenance)
    with pytest.raises(ValueError, match=rf"mlx-lm 0\.32\.2 must read rope_scaling with rule 'yarn' .*'{model_type}'"):
        rope.to_config("mlx")


# Classes that fail with a rule that they do not have, or with the other name of its type.
@pytest.mark.parametrize(
    "model_type, scaling",
    [
        ("internlm3", YARN),
        ("hunyuan_v1_dense", YARN),
        ("hunyuan_v1_dense", LinearScaling(factor=2.0)),
        ("nemotron", YARN),
    ],
)
def test_a_rule_with_which_a_class_fails_is_refused(model_type, scaling):
    keys = {"head_dim": 128} if model_type == "internlm3" else {}
    with pytest.raises(ValueError, match=f"must read rope_scaling with rule '{scaling.rope_type}' .*'{model_type}'"):
        of_type(model_type, scaling, rope_theta=10_000.0, **keys).to_config("mlx")


def test_every_key_that_a_rule_needs_is_read():
    """Writers leave out keys that a class does not read."""
    needed = {
        "linear": ["factor"],
        "dynamic": ["factor", WHOLE],
        "mrope": ["mrope_section"],
        "ntk": ["alpha", "factor"],
    }
    needed |= {"llama3": ["factor", "low_freq_factor", "high_freq_factor", LENGTH]}
    needed |= {"yarn": ["factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", LENGTH]}
    needed |= {"proportional": ["factor", "partial_rotary_factor"]}
    for name, reading in TABLE.readings.items():
        for rule, keys in reading.rules.items():
            of_longrope = ["long_factor", *(["short_mscale"] if "long_mscale" in keys else [LENGTH, WHOLE])]
            assert keys | reading.keys >= {*needed.get(rule, of_longrope)}, (name, rule)


@pytest.mark.parametrize("model_type, name", [("internlm3", "rope_type"), ("nemotron", "type"), ("llama", "type")])
def test_the_type_of_a_rule_has_the_name_that_the_class_reads(model_type, name):
    keys = {"head_dim": 128} if model_type == "internlm3" else {}
    found = of_type(model_type, LinearScaling(factor=2.0), rope_theta=10_000.0, **keys).to_config("mlx")
    assert found["rope_scaling"] == {name: "linear", "factor": 2.0}


def test_a_rotated_part_that_a_class_does_not_read_is_refused():
    rope = from_config({"model_type": "llama", **SIZES, "rope_theta": 10_000.0})
    rope = with_provenance(rope.replace(rotary_dim=64), rope._provenance)
    with pytest.raises(
        ValueError, match=r"must read partial_rotary_factor for .*'llama'; got .* always has 1.0, not 0.5"
    ):
        rope.to_config("mlx")
    assert (
        of_type("phi", rope_theta=10_000.0, partial_rotary_factor=0.5).to_config("mlx")["partial_rotary_factor"] == 0.5
    )


def test_keys_are_where_the_class_reads_them():
    text = {"model_type": "gemma4_text", "head_dim": 256, "global_head_dim": 512, **SIZES}
    rules = {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    file = {"model_type": "gemma4", "text_config": text | {"rope_parameters": rules}}
    found = from_config(file, layer_type="full_attention").to_config("mlx")["text_config"]
    block = found["rope_parameters"]["full_attention"]
    assert block == {"type": "proportional", "partial_rotary_factor": 0.25, "factor": 1.0, "rope_theta": 1e6}
    found = from_config(file, layer_type="sliding_attention").to_config("mlx")["text_config"]
    assert found["rope_parameters"] == {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}


def test_a_class_that_reads_rope_parameters_alone_gets_them():
    keys = from_config(CONFIGS["ministral-3-8b"]).to_config("mlx")
    assert keys.keys() == {"text_config"} and keys["text_config"].keys() == {"head_dim", "rope_parameters"}
    block = keys["text_config"]["rope_parameters"]
    assert block.keys() > {"rope_theta", "type", "factor"} and block["type"] == "yarn"


def test_the_base_of_sliding_layers_has_its_own_key():
    keys = {"head_dim": 256, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6}
    keys["rope_scaling"] = {"rope_type": "linear", "factor": 8.0}
    found = of_type("gemma3_text", layer_type="sliding_attention", **keys).to_config("mlx")
    assert found == {"rope_local_base_freq": 1e4, "head_dim": 256}
    found = of_type("gemma3_text", layer_type="full_attention", **keys).to_config("mlx")
    assert found == {"rope_theta": 1e6, "head_dim": 256, "rope_scaling": {"type": "linear", "factor": 8.0}}


def test_a_model_type_without_a_class_is_warned_of():
    with pytest.warns(UserWarning, match=r"mlx-lm 0\.32\.2 has no class for model type 'persimmon'"):
        of_type("persimmon", rope_theta=25_000.0, partial_rotary_factor=0.5).to_config("mlx")
    with pytest.raises(ValueError, match=r"engine_version of mlx-lm must be 0.32.2 or newer, .*; got '0.20'"):
        of_type("llama", rope_theta=10_000.0).to_config("mlx", engine_version="0.20")


def magnitude_of_mlx(keys):
    """`SuScaledRoPE` of mlx-lm 0.32.2 (rope_utils.py:63): from the lengths, not from a factor."""
    original = keys["rope_scaling"]["original_max_position_embeddings"]
    return math.sqrt(1 + math.log(keys["max_position_embeddings"] / original) / math.log(original))


@for_each("factor", [32.0, 1.5, 4.1, 4.0005, 32.3, 7.77777, 1.0001, 33.3333])
def test_an_attention_factor_of_longrope_is_exact_or_refused(factor):
    original, rule = 4096, {"short_factor": (1.0,) * 4, "long_factor": (2.0, 3.0, 4.0, 5.0), "factor": factor}
    scaling = LongRopeScaling(**rule, original_max_position_embeddings=original, seq_len=200_000)
    rope = RotaryEmbedding(head_dim=8, layout="half", base=10_000.0, scaling=scaling)
    if factor * original == round(factor * original):
        assert magnitude_of_mlx(rope.to_config("mlx")) == rope.attention_factor
    else:
        with pytest.raises(
            ValueError, match=f"attention_factor must be that of a whole max_pos.*with factor {factor}$"
        ):
            rope.to_config("mlx")


def names_of(keys, path=()):
    """The keys of nested mappings, with dots."""
    for key, value in keys.items():
        yield from names_of(value, (*path, key)) if isinstance(value, dict) else [".".join((*path, key))]


@for_each("golden", [each for each in GOLDENS if each["rotated"]])
def test_every_key_that_is_written_is_read(golden):
    rope = from_config(CONFIGS[golden["config"]], **golden["kwargs"])
    origin = rope._provenance
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of model types without a class
        try:
            keys = rope.to_config("mlx")
        except ValueError as error:
            assert str(error).startswith("RotaryEmbedding.to_config: ") and len(str(error)) < 600
            return
    models = (f"{origin.file_type}:{origin.model_type}", origin.file_type)
    readings = [TABLE.of(f"{model}{layers}") for model in models for layers in (f":{origin.layer_type}", "")]
    reading = next((each for each in readings if each), None)
    if reading is None:
        return
    for name in names_of(keys):
        name = name.removeprefix("".join(f"{key}." for key in reading.path))
        inside = (
            name.removeprefix(f"{reading.block}.") if reading.block and name.startswith(f"{reading.block}.") else ""
        )
        of_rules = {"rope_type", "type"}.union(*reading.rules.values())
        assert name in reading.keys or inside in of_rules, name
