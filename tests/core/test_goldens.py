"""Real configs mean what a person read in them, and no key of theirs can be lost in silence."""

import copy
import json
import re
import runpy
import sys
from itertools import product
from operator import attrgetter

import pytest
from cases import for_each
from configs import CONFIGS, GOLDENS, HERE, ROWS, at, changed, paths_of, with_12_digits, without

import rope_xp
from rope_xp.configs.families.model_types import UNROTATED
from rope_xp.configs.families.own_keys import families_by_key

# The goldens are rounded once. A power in float64 is off by the rounding of its exponent, times ln(base) < 21 and an
# exponent < 1, so by a few 1e-15; each rule adds a handful of roundings.
RTOL = 1e-12

# Top-level keys that speak of the rotation. Within a rope block every key does.
ROTARY_KEY = re.compile(r"rope|rotary|partial|theta|original_max_position|mrope|yarn|dynamic_ntk")
BLOCKS = ("rope_scaling", "rope_parameters")
PARTS = {"text_config": "text", "vision_config": "vision"}

# Keys that a config may lack and mean the same. Each key must be there and be without effect, and has a reason.
EXCUSED = {pair for row in ROWS["keys without effect"] for pair in product(row["configs"], row["keys"])}


def test_a_config_means_what_a_person_read():
    for golden in GOLDENS:
        assert_it_means_what_a_person_read(golden)


def assert_it_means_what_a_person_read(golden):
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
    stale = 'this row of "keys without effect" is stale'
    unnoticed = 'a dropped key went unnoticed: give it a value that is no default, or a row in "keys without effect"'
    assert same == excused, stale if excused else unnoticed


@for_each("name, path", HOMES)
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


def test_a_config_that_states_nothing_means_what_its_class_computes():
    chosen = [{key: row[key] for key in ("part", "layer_type")} for row in UNSTATED]
    found = [with_12_digits(repr(rope_xp.from_config(row["config"], **own))) for row, own in zip(UNSTATED, chosen)]
    assert found == [with_12_digits(row["is"]) for row in UNSTATED]


def test_the_families_that_are_named_for_a_key_read_it():
    """No family that an error names for a key refuses it."""
    rows = {row["config"]["model_type"]: row for row in reversed(UNSTATED)}
    pairs = [(key, rows[name]) for key, names in families_by_key().items() for name in names if name in rows]
    assert len(pairs) > 100
    for key, row in pairs:
        try:
            rope_xp.from_config({**row["config"], key: None}, part=row["part"], layer_type=row["layer_type"])
        except ValueError as error:
            assert "must be known" not in str(error)  # null may be no value of the key


# The types of 13 layers that config classes of transformers fill in: see make_layer_types.py.
LAYER_TYPES = json.loads((HERE / "layer_types.json").read_text())


def test_layers_that_a_config_does_not_type_are_those_of_its_class():
    for name, (types, embeddings) in LAYER_TYPES.items():
        config = {"model_type": name, "hidden_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 13}
        found = [with_12_digits(repr(rope_xp.from_config(config, layer=layer))) for layer in range(len(types))]
        assert found == [with_12_digits(embeddings[kind]) for kind in types], name
