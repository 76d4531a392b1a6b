"""The tables of what engines read: their files, their versions, and that writers keep to them."""

import re

import pytest

from rope_xp import RotaryEmbedding, from_config
from rope_xp._core import engines
from rope_xp._core.writers import REFUSED, TARGETS

FILES = sorted(each.name for each in engines.files(engines.__name__).iterdir() if each.name.endswith(".json"))
ENGINES = sorted({re.fullmatch(r"(.*?)-v?\d.*\.json", name)[1] for name in FILES})
ROPE = RotaryEmbedding(head_dim=64, layout="half", base=10_000.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_tables_are_read_by_version(engine):
    known = engines.versions(engine)
    newest = engines.table("who", engine)
    assert (newest.engine, newest.version) == (engine, known[-1]) and newest.readings
    for version in known:
        assert engines.table("who", engine, version).version == version
    assert engines.table("who", engine, "99999.0") == newest
    with pytest.raises(ValueError, match=f"^who: engine_version of {engine} must be {known[0]} or newer, .*; got '0'$"):
        engines.table("who", engine, "0")
    for wrong in ("", "new", "1.x", 1.0, "1" * 40):
        with pytest.raises(ValueError, match=r"^who: engine_version must be a version, such as .*; got"):
            engines.table("who", engine, wrong)


@pytest.mark.parametrize("engine", ENGINES)
def test_no_model_type_stands_twice_and_facts_have_a_source(engine):
    for version in engines.versions(engine):
        read = engines.json.loads((engines.files(engines.__name__) / f"{engine}-{version}.json").read_text())
        models = [model for each in read["readings"] for model in each["models"]]
        assert len(models) == len(set(models)) == len(engines.table("who", engine, version).readings)
        assert all(each["text"] and each["source"] for each in read["facts"])


def test_engines_of_targets_have_tables():
    assert {each.engine for each in TARGETS.values()} - {""} == {*ENGINES}


@pytest.mark.parametrize("target", [name for name, each in TARGETS.items() if not each.engine])
def test_a_version_of_a_target_without_tables_is_refused(target):
    with pytest.raises(ValueError, match=r"^RotaryEmbedding.to_config: engine_version must be given only for .*; got"):
        ROPE.to_config(target, engine_version="1.0")


@pytest.mark.parametrize("target", REFUSED)
def test_programs_without_settings_are_refused_with_the_reason(target):
    with pytest.raises(ValueError, match=re.escape(f"got {target!r}: {REFUSED[target]}")):
        ROPE.to_config(target)


@pytest.mark.parametrize(
    ("config", "part", "path"),
    [
        ({"model_type": "llama"}, None, ()),
        ({"model_type": "qwen2_vl", "text_config": {"model_type": "qwen2_vl_text"}}, None, ("text_config",)),
        ({"model_type": "qwen2_vl"}, None, ()),
    ],
)
def test_where_an_embedding_was_read_is_recorded(config, part, path):
    keys = {"hidden_size": 512, "num_attention_heads": 8, "rope_theta": 1e6}
    if config["model_type"] == "qwen2_vl":
        keys["rope_scaling"] = {"type": "mrope", "mrope_section": [8, 12, 12]}
    inner = config.get("text_config", config)
    inner.update(keys)
    found = from_config(config, part=part)._provenance
    assert (found.file_type, found.path) == (config["model_type"], path)


def test_a_warning_names_the_line_of_the_caller():
    with pytest.warns(UserWarning, match="not known") as caught:
        engines.warn("it is not known")
    assert caught[0].filename == __file__
