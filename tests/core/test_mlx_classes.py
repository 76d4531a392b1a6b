"""to_config("mlx") writes the keys that the model class reads, where it reads them, or refuses.

What classes compute with these keys is tested in mlx-lm itself: tests/engines/test_mlx_lm.py.
"""

import math
import warnings

import pytest
from cases import for_each
from configs import CONFIGS, GOLDENS

from rope_xp import LongRopeScaling, RotaryEmbedding, from_config
from rope_xp.configs import engines

TABLE = engines.table("mlx-lm", "0.32.2")


LENGTH, WHOLE = "original_max_position_embeddings", "max_position_embeddings"


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


@for_each("model_type", ["llama", "mimo", "plamo", "smollm3", "xverse"])
def test_the_layout_that_a_class_reads_is_read(model_type):
    config = {"model_type": model_type, "hidden_size": 64, "num_attention_heads": 4}
    for name, traditional in (("interleaved", True), ("half", False)):
        rope = from_config({**config, "rope_traditional": traditional})
        assert rope.layout == name and rope.to_config("mlx")["rope_traditional"] == traditional
