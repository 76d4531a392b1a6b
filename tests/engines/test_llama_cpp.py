"""llama.cpp computes what the embedding does, from our metadata, our arguments and our overrides.

The oracle is llama.cpp itself: logits of tiny models, against a forward pass in NumPy that rotates with the embedding.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_gguf

from rope_xp import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    RotaryEmbedding,
    Sections,
    YarnScaling,
    from_config,
)
from rope_xp.configs import engines

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from engine_tables import llama_cpp as table_script
from engine_tables._llama_cpp_engine import Engine

FOLDER = os.environ.get("ROPE_XP_LLAMA_CPP")
if not FOLDER or not Engine(Path(FOLDER)).is_built:
    raise pytest.UsageError(
        "llama.cpp must be built to be tested: run `nox -s tests-llama-cpp`, or build it with "
        f"benchmarks/engine_tables/_llama_cpp_engine.py and set ROPE_XP_LLAMA_CPP to the folder; got {FOLDER}"
    )
ENGINE = Engine(Path(FOLDER))
# llama.cpp computes in float32: logits of up to 4 after two layers and 160 tokens, seen up to 9.4e-6 off. The smallest
# planted mistake moves them by 3.4e-3.
TOLERANCE = 2e-5
PROMPT = "".join(f"{index * 7919 % 99991:05d}" for index in range(160))
HALF, PAIRED = {"layout": "half"}, {"layout": "interleaved"}
LAYOUTS = {"llama": PAIRED, "qwen2": HALF, "phi3": HALF, "deepseek2": PAIRED, "mistral3": PAIRED}
YARN = {"factor": 4.0, "original_max_position_embeddings": 512}
PAIRS = tiny_gguf.HEAD // 2
LONGROPE = {
    "short_factor": tuple(1.0 + 0.05 * j for j in range(PAIRS)),
    "long_factor": tuple(1.0 + 0.5 * j for j in range(PAIRS)),
    "original_max_position_embeddings": 1024,
    "factor": 4.0,
}
LATENT = YarnScaling(**YARN, mscale=0.7, mscale_all_dim=0.7)
RULES = {
    "none": {},
    "base": {"base": 70_000.0},
    "linear": {"scaling": LinearScaling(factor=3.0)},
    "ntk": {"scaling": NTKScaling(factor=4.0)},
    "yarn": {"scaling": YarnScaling(**YARN)},
    "yarn-factor": {"scaling": YarnScaling(**YARN, attention_factor=1.3)},
    "yarn-betas": {"scaling": YarnScaling(**YARN, beta_fast=8.0, beta_slow=0.5)},
    "yarn-one": {"scaling": YarnScaling(**YARN, attention_factor=1.0)},
    "llama3": {
        "scaling": Llama3Scaling(
            factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
        )
    },
    "longrope-short": {"scaling": LongRopeScaling(**LONGROPE)},
    "longrope-long": {"scaling": LongRopeScaling(**LONGROPE, seq_len=4096)},
    "deepseek": {"scaling": LATENT},
    "deepseek-all": {"scaling": YarnScaling(**YARN, mscale=1.0, mscale_all_dim=1.0)},
}
IN_FILES = {
    "llama": "none base linear ntk yarn yarn-factor llama3 longrope-short longrope-long",
    "qwen2": "none base linear ntk yarn yarn-factor",
    "phi3": "none linear yarn longrope-short longrope-long",
    "mistral3": "none linear ntk yarn yarn-factor yarn-betas yarn-one llama3",
    "deepseek2": "none base ntk deepseek deepseek-all",
}
BY_FLAGS = {
    "llama": "none base linear ntk yarn yarn-factor yarn-betas",
    "qwen2": "none linear yarn yarn-factor yarn-betas",
    "phi3": "none linear yarn yarn-betas",
    "mistral3": "none linear ntk yarn yarn-factor yarn-betas yarn-one",
    "deepseek2": "none base ntk deepseek deepseek-all",
}
# What the converter of llama.cpp may have written into a file, and what arguments must replace.
CONVERTED = {
    "mistral3": {"type": "yarn", "factor": 16.0, "original_context_length": 256, "yarn_log_multiplier": 1.0}
    | {"yarn_beta_fast": 4.0, "yarn_beta_slow": 2.0},
    "deepseek2": {"type": "yarn", "factor": 40.0, "original_context_length": 4096, "yarn_log_multiplier": 0.1},
    "llama": {"type": "linear", "factor": 2.0, "yarn_beta_fast": 4.0, "yarn_attn_factor": 2.0},
}


def listed(by_architecture):
    return [(name, rule) for name, rules in by_architecture.items() for rule in rules.split()]


def rope_of(architecture, rule, **changes):
    given = {"head_dim": tiny_gguf.HEAD, "base": 10_000.0, **LAYOUTS[architecture], **RULES[rule]}
    return RotaryEmbedding(**{**given, **changes})


@pytest.fixture(scope="module")
def models():
    return {name: tiny_gguf.weights(name) for name in [*LAYOUTS, "qwen3vl"]}


def expected(models, architecture, rope, tokens):
    return tiny_gguf.forward(architecture, models[architecture], tokens, rope)


def tokens_of(prompt):
    """The token ids of llama.cpp's tokenizer for tests, of five letters each."""
    found = []
    for start in range(0, len(prompt), 5):
        number = 0
        for letter in prompt[start : start + 5].encode():
            number = number * 31 + letter
        found.append(number % tiny_gguf.VOCABULARY)
    return found


TOKENS = tokens_of(PROMPT)


def planted(architecture, rope):
    """The same embedding with mistakes that people make."""
    yield rope.replace(base=rope.base * 1.01)
    rule = rope.scaling
    if rule is not None:
        yield rope.replace(scaling=None)
    if isinstance(rule, LinearScaling):
        yield rope.replace(scaling=LinearScaling(factor=rule.factor * 1.0025))
    if isinstance(rule, YarnScaling):
        yield rope.replace(scaling=replace(rule, attention_factor=rope.attention_factor * 1.01))


def assert_computes(found, models, architecture, rope, rows=slice(None)):
    """The logits are those of the embedding, and not those of others."""
    wanted = expected(models, architecture, rope, TOKENS)[rows]
    assert np.max(np.abs(found - wanted)) < TOLERANCE
    for wrong in planted(architecture, rope):
        assert np.max(np.abs(found - expected(models, architecture, wrong, TOKENS)[rows])) > 50 * TOLERANCE, wrong


@pytest.mark.parametrize(("architecture", "rule"), listed(IN_FILES))
def test_metadata(architecture, rule, models, tmp_path):
    rope = rope_of(architecture, rule)
    metadata = rope.to_config("gguf", architecture=architecture)
    file = tiny_gguf.write(tmp_path / "model.gguf", architecture, models[architecture], metadata)
    # The long factors are for contexts beyond the original length.
    found = ENGINE.logits(file, TOKENS, n_ctx=512 if rule == "longrope-short" else 4096)
    assert_computes(found, models, architecture, rope)
    # Our reader says of this file what llama.cpp computes from it.
    seq_len = getattr(rope.scaling, "seq_len", None)
    read = from_config(file, seq_len=seq_len)
    assert np.max(np.abs(found - expected(models, architecture, read, TOKENS))) < TOLERANCE


@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize(("architecture", "rule"), listed(BY_FLAGS))
def test_arguments(architecture, rule, converted, models, tmp_path):
    rope = rope_of(architecture, rule)
    given = CONVERTED.get(architecture, {}) if converted else {}
    metadata = {f"{architecture}.rope.scaling.{key}": value for key, value in given.items()}
    file = tiny_gguf.write(tmp_path / "model.gguf", architecture, models[architecture], metadata)
    flags = rope.to_config("llama.cpp", architecture=architecture)
    tokens, found = ENGINE.debug(file, PROMPT, flags, tmp_path / "out")
    assert tokens.tolist() == TOKENS
    assert_computes(found, models, architecture, rope, rows=-1)


@pytest.mark.parametrize(("architecture", "rule"), [each for each in listed(IN_FILES) if each[1] not in ("llama3",)])
def test_overrides(architecture, rule, models, tmp_path):
    """The same metadata as overrides of a file that has none of them."""
    rope = rope_of(architecture, rule)
    metadata = rope.to_config("gguf", architecture=architecture)
    factors = {key: value for key, value in metadata.items() if key.endswith(".weight")}
    if factors:
        factors |= {f"{architecture}.rope.scaling.type": "longrope"}  # else the tensors are not loaded
    file = tiny_gguf.write(tmp_path / "model.gguf", architecture, models[architecture], factors)
    overrides = {key: value for key, value in metadata.items() if key.startswith(architecture) and "rope" in key}
    found = ENGINE.logits(file, TOKENS, overrides, n_ctx=512 if rule == "longrope-short" else 4096)
    assert_computes(found, models, architecture, rope)


# What people write on a command line, for a file of each architecture with some metadata.
ONE = {"type": "yarn", "factor": 4.0, "original_context_length": 512}
COMMAND_LINES = {
    ("qwen2", ()): """
        --rope-freq-base 500000
        --rope-scale 4
        --rope-freq-scale 0.25
        --rope-scale 2 --rope-freq-scale 0.25
        --rope-freq-scale 0
        --rope-scaling none --rope-scale 4
        --rope-scaling linear
        --rope-scaling yarn --rope-scale 4 --yarn-ext-factor 0
        --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 512 --yarn-beta-fast 16 --yarn-attn-factor 3
        --rope-scale 4 --yarn-ext-factor 1 --yarn-orig-ctx 512
        --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 512 --override-kv qwen2.rope.scaling.attn_factor=float:0.5
        --override-kv qwen2.rope.freq_base=float:2e6,qwen2.rope.scaling.factor=float:2
        --override-kv llama.rope.freq_base=float:2000000
        --override-kv qwen2.rope.freq_base=int:2000000
        --override-kv qwen2.rope.freq_base=float:2e6 --rope-freq-base 3e6
        --override-kv qwen2.rope.scaling.type=str:yarn,qwen2.rope.scaling.factor=float:4
    """,
    ("llama", tuple(ONE.items())): """
        --rope-scaling linear
        --rope-scaling none
        --yarn-ext-factor 0
        --rope-scale 8
        --yarn-beta-slow 2 --yarn-beta-fast 8
        --yarn-orig-ctx 1024
        --yarn-orig-ctx 0
        --yarn-attn-factor 2
    """,
    ("mistral3", (*ONE.items(), ("yarn_log_multiplier", 1.0), ("yarn_beta_fast", 4.0))): """
        --yarn-beta-fast 16
        --rope-scale 8
        --rope-scaling none
    """,
}


@pytest.mark.parametrize(
    ("architecture", "given", "line"),
    [(*case, line.strip()) for case, lines in COMMAND_LINES.items() for line in lines.strip().splitlines()],
)
def test_what_is_read_from_a_command_line_is_computed(architecture, given, line, models, tmp_path):
    metadata = {f"{architecture}.rope.scaling.{key}": value for key, value in given}
    file = tiny_gguf.write(tmp_path / "model.gguf", architecture, models[architecture], metadata)
    _, found = ENGINE.debug(file, PROMPT, line.split(), tmp_path / "out")
    rope = from_config(file, flags=f"llama-cli {line}")
    assert_computes(found, models, architecture, rope, rows=-1)


# What the engine shows of values that are refused, or written with a warning.


def test_pairs_of_a_fourth_position_are_not_rotated(models, tmp_path):
    """Qwen3-VL: text. The last pairs of uneven sections are not rotated; other programs rotate them."""
    sizes, missed = (8, 4, 4), (13, 14)
    rope = RotaryEmbedding(head_dim=tiny_gguf.HEAD, base=100.0, **HALF, sections=Sections(sizes, order="interleaved"))
    with pytest.raises(
        ValueError, match=r"sections must give each pair j to axis .*, in which pairs 13, 14 follow axis 0"
    ):
        rope.to_config("gguf", architecture="qwen3vl")
    metadata = {"qwen3vl.rope.dimension_sections": [*sizes, 0], "qwen3vl.rope.freq_base": 100.0}
    file = tiny_gguf.write(tmp_path / "model.gguf", "qwen3vl", models["qwen3vl"], metadata)
    found = ENGINE.logits(file, TOKENS)
    whole = RotaryEmbedding(head_dim=tiny_gguf.HEAD, base=100.0, **HALF)
    still = [0.0 if pair in missed else w for pair, w in enumerate(whole.inv_freq)]
    own = RotaryEmbedding(head_dim=tiny_gguf.HEAD, inv_freq=still, **HALF)
    assert np.max(np.abs(found - expected(models, "qwen3vl", own, TOKENS))) < TOLERANCE
    assert np.max(np.abs(found - expected(models, "qwen3vl", whole, TOKENS))) > 50 * TOLERANCE


def test_latent_attention_multiplies_its_softmax_scale(models, tmp_path):
    """DEEPSEEK2: the graph does so with linear scaling, and with YaRN without a multiplier. Both are refused."""
    for rule in (LinearScaling(factor=3.0), YarnScaling(**YARN)):
        rope = RotaryEmbedding(head_dim=tiny_gguf.HEAD, base=10_000.0, **PAIRED, scaling=rule)
        for target in ("gguf", "llama.cpp"):
            with pytest.raises(ValueError, match="softmax"):
                rope.to_config(target, architecture="deepseek2")
        metadata = {"rope.scaling.type": rule.rope_type, "rope.scaling.factor": rule.factor}
        if isinstance(rule, YarnScaling):
            metadata["rope.scaling.original_context_length"] = rule.original_max_position_embeddings
        keys = {f"deepseek2.{key}": value for key, value in metadata.items()}
        file = tiny_gguf.write(tmp_path / "model.gguf", "deepseek2", models["deepseek2"], keys)
        found = ENGINE.logits(file, TOKENS)
        assert np.max(np.abs(found - expected(models, "deepseek2", rope, TOKENS))) > 50 * TOLERANCE
        factor = (1 + 0.1 * np.log(rule.factor)) ** 2

        class Scaled:
            """The embedding with the softmax scale of llama.cpp."""

            softmax_scale = factor
            __call__ = staticmethod(rope)

        assert np.max(np.abs(found - expected(models, "deepseek2", Scaled(), TOKENS))) < TOLERANCE


def test_betas_of_a_file_are_not_read(models, tmp_path):
    """Those of Kimi K2, for example: they are refused, and our reader says so."""
    rope = rope_of("llama", "yarn-betas")
    with pytest.raises(ValueError, match=r"must read rope.scaling.yarn_beta_fast for architecture 'llama' with yarn"):
        rope.to_config("gguf", architecture="llama")
    metadata = rope_of("llama", "yarn").to_config("gguf", architecture="llama")
    metadata |= {"llama.rope.scaling.yarn_beta_fast": 8.0, "llama.rope.scaling.yarn_beta_slow": 0.5}
    file = tiny_gguf.write(tmp_path / "model.gguf", "llama", models["llama"], metadata)
    found, read = ENGINE.logits(file, TOKENS), from_config(file)
    assert np.max(np.abs(found - expected(models, "llama", read, TOKENS))) < TOLERANCE
    assert np.max(np.abs(found - expected(models, "llama", rope, TOKENS))) > 50 * TOLERANCE
    assert "remark llama.cpp does not read llama.rope.scaling.yarn_beta_fast=8 for this architecture" in " ".join(
        read.describe().split()
    )


@pytest.mark.parametrize("rule", ["linear", "ntk", "yarn"])
def test_the_server_accepts_the_length(rule, models, tmp_path):
    """It caps sequences at `llama_model_n_ctx_train`: with the arguments, this is the length."""
    rope = rope_of("llama", rule)
    file = tiny_gguf.write(tmp_path / "model.gguf", "llama", models["llama"], {}, length=512)
    params = {"yarn": {"rope_scaling_type": 2, "rope_freq_scale": 0.25, "yarn_orig_ctx": 512}}.get(rule, {})
    assert ENGINE.longest(file, n_ctx=2048, **params) == (2048 if rule == "yarn" else 512)
    options = {"architecture": "llama", "context": 2048}
    flags = rope.to_config("llama.cpp", **options)
    key, _, value = flags[-1].partition("=int:")
    assert ENGINE.longest(file, {key: int(value)}, n_ctx=2048, **params) == 2048
    metadata = rope.to_config("gguf", **options)
    tiny_gguf.write(file, "llama", models["llama"], metadata)
    assert ENGINE.longest(file, n_ctx=2048) == 2048
    ENGINE.debug(file, PROMPT, flags, tmp_path / "out")  # the parser accepts them


# The models that llama.cpp's own test program writes, of architectures that read different keys.


def written_model(architecture, folder):
    return ENGINE.write_models(architecture, folder)[0]


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "grok", "phi3", "deepseek2", "cogvlm", "glm4", "gpt-oss"])
def test_the_kept_table_holds(architecture, tmp_path):
    kept = engines.table("llama.cpp", ENGINE.version).of(architecture)
    models = ENGINE.write_models(architecture, tmp_path)
    found = table_script.union([table_script.reading(ENGINE, file, architecture) for file in models])
    assert {*found["keys"]} == kept.keys
    assert {rule: {*read} for rule, read in found["rules"].items()} == {
        rule: {*read} for rule, read in kept.rules.items()
    }


def test_the_base_of_hunyuan(tmp_path):
    """`rope.scaling.alpha` changes the base when the file is read, by the formula of our reader."""
    own = table_script.Model(ENGINE, written_model("hunyuan_vl", tmp_path), "hunyuan_vl")
    alpha, base = "hunyuan_vl.rope.scaling.alpha", "hunyuan_vl.rope.freq_base"
    keys = {"general.architecture": "hunyuan_vl", "hunyuan_vl.attention.key_length": own.rotated, base: 500.0}
    read = from_config({**keys, alpha: 50.0})
    found = ENGINE.logits(own.file, TOKENS, {base: 500.0, alpha: 50.0})
    plain, wanted = (ENGINE.logits(own.file, TOKENS, {base: each}) for each in (500.0, read.base))
    size = np.max(np.abs(wanted))
    assert np.max(np.abs(found - wanted)) < 1e-4 * size and np.max(np.abs(plain - wanted)) > 0.01 * size


@pytest.mark.parametrize("architecture", ["gemma2", "gpt-oss", "llama4", "cohere2", "olmo2", "qwen3", "grok", "phi2"])
@pytest.mark.parametrize("rule", ["base", "linear", "yarn"])
def test_arguments_do_what_metadata_does(architecture, rule, tmp_path):
    """In all layers: those with a sliding window do not follow `--rope-freq-base`."""
    own = table_script.Model(ENGINE, written_model(architecture, tmp_path), architecture)
    layout = "interleaved" if architecture in ("llama4", "cohere2") else "half"
    rope = RotaryEmbedding(head_dim=own.rotated, **{"base": 10_000.0, "layout": layout, **RULES[rule]})
    metadata = rope.to_config("gguf", architecture=architecture)
    before = {key: value for key, value in table_script.NONE.items() if key != "rope.freq_base_swa"}
    keys = {f"{architecture}.{key}": value for key, value in before.items()}
    plain = own.written("model", {*keys, *metadata, *own.removed, f"{architecture}.rope.freq_base_swa"})
    overrides = {key: value for key, value in metadata.items() if ".rope." in key}
    flags = rope.to_config("llama.cpp", architecture=architecture)
    tokens, found = ENGINE.debug(plain, PROMPT, [*flags, "-ub", "512"], tmp_path / "out")
    wanted = ENGINE.logits(plain, tokens, overrides, n_ubatch=512)[-1]
    assert np.max(np.abs(found - wanted)) < 1e-5 * np.max(np.abs(wanted))
    assert np.max(np.abs(ENGINE.logits(plain, tokens, n_ubatch=512)[-1] - wanted)) > 1e-3 * np.max(np.abs(wanted))
