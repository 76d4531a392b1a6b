"""The tables of what engines read: their files, their versions, and that writers keep to them."""

import re

import pytest

from rope_xp import LinearScaling, RotaryEmbedding, Sections, YarnScaling, from_config
from rope_xp.configs import engines
from rope_xp.configs.families.model_types import FAMILIES
from rope_xp.configs.writers import TARGETS
from rope_xp.configs.writers import gguf_architectures as gguf
from rope_xp.provenance import Provenance, with_provenance

FILES = sorted(each.name for each in engines.files(engines.__name__).iterdir() if each.name.endswith(".json"))
ENGINES = sorted({re.fullmatch(r"(.*?)-v?\d.*\.json", name)[1] for name in FILES})


@pytest.mark.parametrize("engine", ENGINES)
def test_tables_are_read_by_version(engine):
    known = engines.versions(engine)
    newest = engines.table(engine)
    assert (newest.engine, newest.version) == (engine, known[-1]) and newest.readings
    for version in known:
        assert engines.table(engine, version).version == version
        assert engines.table(engine, version.removesuffix(".0")).version == version
    assert engines.table(engine, "99999.0") == newest
    with pytest.raises(ValueError, match=f"^engine_version of {engine} must be {known[0]} or newer, .*; got '0'$"):
        engines.table(engine, "0")
    for wrong in ("", "new", "1.x", 1.0, "1" * 40):
        with pytest.raises(ValueError, match=r"^engine_version must be a version, such as .*; got"):
            engines.table(engine, wrong)


@pytest.mark.parametrize("engine", ENGINES)
def test_no_model_type_stands_twice_and_facts_have_a_source(engine):
    for version in engines.versions(engine):
        read = engines.json.loads((engines.files(engines.__name__) / f"{engine}-{version}.json").read_text())
        models = [model for each in read["readings"] for model in each["models"]]
        assert len(models) == len(set(models)) == len(engines.table(engine, version).readings)
        assert all(each["text"] and each["source"] for each in read["facts"])


def test_engines_of_targets_have_tables():
    assert {each.engine for each in TARGETS.values()} - {""} == {*ENGINES}


def test_a_warning_names_the_line_of_the_caller():
    rope = from_config({"model_type": "acme", "head_dim": 16, "rope_theta": 1e4}, layout="half")
    for call in (lambda: engines.warn("it is not known"), lambda: rope.to_config("vllm")):
        with pytest.warns(UserWarning, match="not known") as caught:
            call()
        assert caught[0].filename == __file__


# llama.cpp. tests/engines/test_llama_cpp.py runs these in the engine.

YARN = YarnScaling(factor=4.0, original_max_position_embeddings=4096)


def test_all_architectures_that_are_rotated_have_a_reading():
    table = engines.table("llama.cpp")
    rotary = {*gguf.INTERLEAVED.split(), *gguf.HALF.split()}
    assert {name for name in rotary if table.of(name) is None} == {"step35"}  # it has unknown layers
    assert "step35" in gguf.UNKNOWN_LAYERS
    assert all(table.of(name).keys or table.of(name).fixed for name in rotary - {"step35"})  # else it rotates nothing


def test_one_block_for_all_layers_is_not_written_for_a_type_whose_blocks_are_nested_in_sglang():
    nested = [name for name, each in engines.table("sglang").readings.items() if "blocks" in each.fixed]
    assert nested
    for name in nested:
        rope = RotaryEmbedding(head_dim=64, layout="half", base=1e4)
        rope = with_provenance(rope, Provenance(file_type=name, model_type=name))
        with pytest.raises(
            ValueError, match=r"the block must be one for all layers in sglang .*; got one for each of "
        ):
            rope.to_config("sglang")


def test_keys_for_llama_cpp_are_read_by_the_architecture():
    """Each key that is written for a family is in the table, or the embedding is refused."""
    table, written = engines.table("llama.cpp"), 0
    for name, rule in [
        (name, rule) for name in {*gguf.ARCHITECTURE_OF.values()} for rule in (None, LinearScaling(factor=2.0), YARN)
    ]:
        sections = Sections((22, 21, 21), order=gguf.AXES[name]) if name in gguf.AXES else None
        layout = gguf.gguf_layout(name)
        rope = RotaryEmbedding(head_dim=128, layout=layout, base=70_000.0, scaling=rule, sections=sections)
        try:
            metadata = rope.to_config("gguf", architecture=name)
            flags = rope.to_config("llama.cpp", architecture=name)
        except ValueError as error:
            assert "softmax" in str(error) and name in gguf.SCALES_SOFTMAX, error
            continue
        own = table.of(name)
        known = {*own.keys, *(key for read in own.rules.values() for key in read)}
        shapes = {"attention.key_length", "rope.dimension_count", "rope.dimension_sections", "rope.scaling.type"}
        keys = {key.removeprefix(f"{name}.") for key in metadata} - {"general.architecture"}
        assert keys <= known | shapes
        words = {word for word in flags if word.startswith("--")} - {"--override-kv", "--rope-scaling"}
        overrides = {word.partition("=")[0].removeprefix(f"{name}.") for word in flags if "=" in word}
        assert words | overrides <= known | shapes
        written += 1
    assert written > 140


def test_families_and_their_architectures_agree_on_latent_attention():
    for family, architecture in gguf.ARCHITECTURE_OF.items():
        assert FAMILIES[family].is_latent == (architecture in gguf.LATENT)
