"""to_config("mlx") writes the keys that the model class reads, where it reads them, or refuses.

What classes compute with these keys is tested in mlx-lm itself: tests/engines/test_mlx_lm.py.
"""

import warnings

from cases import for_each
from configs import CONFIGS, GOLDENS

from rope_xp import from_config
from rope_xp.configs import engines

TABLE = engines.table("mlx-lm", "0.32.2")


LENGTH, WHOLE = "original_max_position_embeddings", "max_position_embeddings"


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
