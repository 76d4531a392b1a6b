"""The tables of what engines read: their files, their versions, and that writers keep to them."""

import re

import pytest
from cases import for_each

from rope_xp import LinearScaling, NTKScaling, RotaryEmbedding, Sections, YarnScaling, from_config
from rope_xp.configs import engines
from rope_xp.configs.families.model_types import FAMILIES
from rope_xp.configs.writers import REFUSED, TARGETS, Options, with_length
from rope_xp.configs.writers import gguf_architectures as gguf

FILES = sorted(each.name for each in engines.files(engines.__name__).iterdir() if each.name.endswith(".json"))
ENGINES = sorted({re.fullmatch(r"(.*?)-v?\d.*\.json", name)[1] for name in FILES})
ROPE = RotaryEmbedding(head_dim=64, layout="half", base=10_000.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_tables_are_read_by_version(engine):
    known = engines.versions(engine)
    newest = engines.table(engine)
    assert (newest.engine, newest.version) == (engine, known[-1]) and newest.readings
    for version in known:
        assert engines.table(engine, version).version == version
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


# llama.cpp. tests/engines/test_llama_cpp.py runs these in the engine.

YARN = YarnScaling(factor=4.0, original_max_position_embeddings=4096)
LATENT = {"hidden_size": 64, "num_attention_heads": 2, "qk_rope_head_dim": 64, "rope_theta": 1e6}
LATENT |= {"max_position_embeddings": 4096}


def test_all_architectures_that_are_rotated_have_a_reading():
    table = engines.table("llama.cpp")
    rotary = {*gguf.INTERLEAVED.split(), *gguf.HALF.split()}
    assert {name for name in rotary if table.of(name) is None} == {"step35"}  # it has unknown layers
    assert "step35" in gguf.UNKNOWN_LAYERS
    assert all(table.of(name).keys or table.of(name).fixed for name in rotary - {"step35"})  # else it rotates nothing


def test_a_type_whose_blocks_are_nested_in_sglang_has_layers_that_differ():
    """So an embedding of one type of layers is refused, and there is none of all layers."""
    nested = [name for name, each in engines.table("sglang").readings.items() if "blocks" in each.fixed]
    assert nested and all(len(FAMILIES[name].layers.by_type) > 1 for name in nested)


def test_keys_for_llama_cpp_are_read_by_the_architecture():
    """Each key that is written for a family is in the table, or the embedding is refused."""
    table, written = engines.table("llama.cpp"), 0
    for name, rule in [
        (name, rule) for name in {*gguf.ARCHITECTURE_OF.values()} for rule in (None, LinearScaling(factor=2.0), YARN)
    ]:
        sections = Sections((22, 21, 21), order=gguf.AXES[name]) if name in gguf.AXES else None
        layout = gguf.gguf_layout({"general.architecture": name})
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


def test_row_1_ministral_3_gets_its_attention_factor_once():
    """`attn_factor` is multiplied onto what the multiplier of the file does: arguments replace both."""
    scaling = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16384, "rope_theta": 1e6}
    scaling |= {"mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0, "beta_slow": 1.0}
    keys = {"model_type": "ministral3", "head_dim": 128, "rope_parameters": scaling, "max_position_embeddings": 262_144}
    rope = from_config({**keys, "hidden_size": 512, "num_attention_heads": 4})
    assert rope.attention_factor == 1.0
    flags = rope.replace(layout="interleaved").to_config("llama.cpp")
    overrides = [word for word in flags if word.startswith("mistral3.")]
    assert overrides == [
        "mistral3.rope.scaling.yarn_log_multiplier=float:1",
        "mistral3.rope.scaling.attn_factor=float:1",
    ]
    metadata = rope.replace(layout="interleaved").to_config("gguf")
    assert metadata["mistral3.rope.scaling.yarn_log_multiplier"] == 1.0
    assert "mistral3.rope.scaling.attn_factor" not in metadata
    # The file of llama.cpp's converter says the same.
    file = {**metadata, "mistral3.context_length": 262_144, "mistral3.attention.head_count": 4}
    assert from_config(file).attention_factor == 1.0
    assert from_config({**file, "mistral3.rope.scaling.attn_factor": 0.783}).attention_factor == pytest.approx(0.783)


@for_each("rule", [YARN, LinearScaling(factor=4.0)])
@for_each("family", ["glm4_moe_lite", "glm_moe_dsa", "longcat_flash", "deepseek_v3", "kimi_k2"])
def test_row_2_latent_attention_needs_the_multiplier(family, rule):
    """Also if the embedding was changed: it remembers its family."""
    rope = from_config({"model_type": family, **LATENT}).replace(layout="interleaved")
    assert rope.to_config("llama.cpp") == ["--rope-freq-base", "1000000", "--rope-scaling", "none"]
    named = (
        "architecture must be given for .* the latent attention of longcat_flash" if "longcat" in family else "softmax"
    )
    with pytest.raises(ValueError, match=named):
        rope.replace(scaling=rule).to_config("llama.cpp")


def test_families_with_latent_attention_are_known():
    latent = {name for name, row in FAMILIES.items() if row.is_latent}
    named = {name for name in latent if gguf.ARCHITECTURE_OF.get(name) in gguf.LATENT}
    assert latent - named == {*gguf.OTHER_LATENT}


@pytest.mark.parametrize("rule", [LinearScaling(factor=4.0), NTKScaling(factor=4.0), YARN])
def test_row_8_the_length_of_the_file_is_overridden(rule):
    """The server ends at the `context_length` of the file. Known of the file itself, it needs no architecture."""
    rope = RotaryEmbedding(head_dim=128, layout="half", base=10_000.0, scaling=rule)
    options = Options("qwen2")
    flags = rope.to_config("llama.cpp", architecture="qwen2")
    own = ["-c", "16384", "--override-kv", "qwen2.context_length=int:16384"]
    assert with_length("llama.cpp", flags, 16384, rope, options) == [*flags, *own]
    metadata = rope.to_config("gguf", architecture="qwen2")
    assert with_length("gguf", metadata, 16384, rope, options) == {**metadata, "qwen2.context_length": 16384}
    flags = rope.to_config("llama.cpp")
    if rule is YARN:  # llama.cpp computes the length from the arguments
        assert with_length("llama.cpp", flags, 16384, rope) == [*flags, "-c", "16384"]
    else:
        with pytest.warns(UserWarning, match="accepts at most the context_length of the file; give the architecture"):
            assert with_length("llama.cpp", flags, 16384, rope) == [*flags, "-c", "16384"]


def test_row_9_qwen3_vl_is_written_with_a_warning():
    """Its pairs 61 and 62 turn so slowly that the difference is small. Other sections are refused."""
    keys = {"model_type": "qwen3_vl_text", "head_dim": 128, "hidden_size": 512, "num_attention_heads": 4}
    block = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_theta": 5e6}
    rope = from_config({**keys, "rope_parameters": block, "max_position_embeddings": 262_144})
    for target in ("gguf", "llama.cpp"):
        with pytest.warns(
            UserWarning, match=r"pairs 61, 62 by a fourth position, .* up to 0.11 radians in 262,144 tokens"
        ):
            written = rope.to_config(target)
    assert written == ["--rope-freq-base", "5000000", "--rope-scaling", "none"]
    for changes in ({"rope_theta": 1e4}, {"mrope_section": [32, 16, 16]}):
        other = from_config({**keys, "rope_parameters": {**block, **changes}, "max_position_embeddings": 262_144})
        with pytest.raises(ValueError, match=r"sections must give each pair j to axis j % 3 in llama.cpp"):
            other.to_config("llama.cpp")


def test_betas_of_yarn_are_arguments_but_no_metadata():
    rope = RotaryEmbedding(head_dim=128, layout="half", base=1e4, scaling=engines_yarn(beta_fast=16.0))
    with pytest.raises(
        ValueError, match=r"^RotaryEmbedding.to_config: llama.cpp 0.5.0 must read .*yarn_beta_fast for .*'qwen2'"
    ):
        rope.to_config("gguf", architecture="qwen2")
    flags = rope.to_config("llama.cpp", architecture="qwen2")
    assert flags[-4:] == ["--yarn-beta-fast", "16", "--yarn-beta-slow", "1"]
    # Those of Grok are 8 and 1 if the file does not say it. Its file may also have a blend.
    grok = rope.replace(scaling=YARN)
    assert grok.to_config("gguf", architecture="grok")["grok.rope.scaling.yarn_beta_fast"] == 32.0
    assert grok.to_config("llama.cpp", architecture="grok")[-2:] == ["--yarn-ext-factor", "1"]
    linear = rope.replace(scaling=LinearScaling(factor=2.0))
    assert linear.to_config("llama.cpp", architecture="grok")[-2:] == ["--yarn-ext-factor", "0"]


def engines_yarn(**changes):
    return YarnScaling(factor=4.0, original_max_position_embeddings=4096, **changes)


def test_arguments_for_files_with_sliding_windows_are_overrides():
    rope = RotaryEmbedding(head_dim=64, layout="half", base=150_000.0, scaling=YARN)
    flags = rope.to_config("llama.cpp", architecture="gpt-oss")
    assert flags == [
        *("--yarn-orig-ctx", "4096"),
        *("--override-kv", "gpt-oss.rope.freq_base=float:150000"),
        *("--override-kv", "gpt-oss.rope.scaling.type=str:yarn"),
        *("--override-kv", "gpt-oss.rope.scaling.factor=float:4"),
    ]


def test_what_an_architecture_does_whatever_the_keys_say():
    plain = RotaryEmbedding(head_dim=128, layout="half", base=10_000.0)
    assert plain.to_config("llama.cpp", architecture="cogvlm") == ["--rope-scaling", "none"]
    with pytest.raises(
        ValueError, match=r"llama.cpp 0.5.0 must read --rope-freq-base for architecture 'cogvlm'; got one"
    ):
        plain.replace(base=5e5).to_config("llama.cpp", architecture="cogvlm")
    with pytest.raises(
        ValueError, match=r"rotary_dim must be head_dim=128 in llama.cpp 0.5.0 for architecture 'qwen2'"
    ):
        plain.replace(rotary_dim=64).to_config("llama.cpp", architecture="qwen2")
    with pytest.raises(ValueError, match=r"architecture must be one that llama.cpp rotates; got 'bert'"):
        plain.to_config("gguf", architecture="bert")


def test_the_number_of_a_build_is_no_version():
    with pytest.raises(ValueError, match=r"engine_version of llama.cpp must be a version such as 0.5.0.*; got 'b9000'"):
        ROPE.to_config("llama.cpp", engine_version="b9000")
    assert ROPE.to_config("llama.cpp", engine_version="0.6.1")


def test_the_base_of_hunyuan_in_a_gguf_file():
    """`rope.scaling.alpha` changes the base when llama.cpp reads the file; other architectures ignore it."""
    keys = {"attention.key_length": 128, "rope.freq_base": 1e4, "rope.scaling.alpha": 1000.0, "context_length": 4096}
    for name, base in (("hunyuan-dense", 1e4 * 1000.0 ** (128 / 126)), ("qwen2", 1e4)):
        file = {"general.architecture": name, **{f"{name}.{key}": value for key, value in keys.items()}}
        assert from_config(file).base == pytest.approx(base)
