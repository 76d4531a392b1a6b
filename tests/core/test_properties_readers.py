"""What is read from random files and arguments of engines is what the engines compute from them, by their formulas."""

import json

import engines
import formulas
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rope_xp import Llama3Scaling, ProportionalScaling, from_config

WIDTH = 32
WITH_LATENT = ["deepseek2", "deepseek32", "mistral4"]
ARCHITECTURES = ["llama", "qwen2", *WITH_LATENT, "mistral3", "phi3"]
FLOAT32 = 2.0**-20


def f32(number):
    return float(np.float32(number))


def assert_is(rope, computed, rel=FLOAT32):
    """A value by its frequencies, the factor of its tables and that of the softmax."""
    assert rope.inv_freq == pytest.approx(computed[0], rel=rel)
    assert (rope.attention_factor, rope.softmax_scale) == pytest.approx(computed[1:], rel=rel)


def words(rope):
    return " | ".join(rope._provenance.remarks)


def metadata_of(name, base, **others):
    """The metadata of a GGUF file with heads of 32 channels."""
    own = {"attention.head_count": 4, "embedding_length": 4 * WIDTH, "rope.dimension_count": WIDTH}
    own |= {} if name in WITH_LATENT else {"attention.key_length": WIDTH}
    own |= {"rope.freq_base": f32(base), "context_length": others.get("length", 8192)}
    own |= {f"rope.scaling.{key}": value for key, value in others.get("scaling", {}).items()}
    tensors = {f"{key}.weight": [f32(each) for each in value] for key, value in others.get("tensors", {}).items()}
    return {"general.architecture": name, **{f"{name}.{key}": value for key, value in own.items()}, **tensors}


@st.composite
def files(draw):
    """The metadata of a file: a rule with its numbers, and the length for which it is read."""
    name = draw(st.sampled_from(ARCHITECTURES))
    original, factor = draw(st.integers(256, 9999)), draw(st.integers(2, 40)) * draw(st.sampled_from([1.0, 0.75]))
    scaling, tensors = {}, {}
    # With latent attention, the factor of linear scaling would multiply the softmax scale, which is refused.
    rules = ["none", "yarn", "yarn", "longrope", "factors"] + ["linear"] * (name not in WITH_LATENT)
    rule = draw(st.sampled_from(rules))
    if rule in ("none", "linear", "yarn"):
        scaling = {"type": rule} | ({} if rule == "none" else {"factor": f32(factor)})
    if rule == "yarn":
        scaling["original_context_length"] = original
        more = ("yarn_log_multiplier", 0.02, 0.15) if name in WITH_LATENT else ("attn_factor", 0.6, 1.5)
        scaling |= {more[0]: f32(draw(st.floats(*more[1:])))} if draw(st.booleans()) else {}
    if rule == "longrope" and name == "phi3":
        for each in ("long", "short"):
            ends = draw(st.tuples(st.floats(1.0, 2.0), st.floats(2.0, 20.0)))
            tensors[f"rope_factors_{each}"] = np.linspace(*ends, WIDTH // 2)
        scaling = {"original_context_length": original, "attn_factor": f32(draw(st.floats(1.0, 1.5)))}
    if rule == "factors" and name == "llama":
        tensors["rope_freqs"] = [draw(st.floats(1.0, 9.0)) for _ in range(WIDTH // 2)]
    length = int(original * factor)
    found = metadata_of(name, draw(st.floats(100.0, 1e6)), length=length, scaling=scaling, tensors=tensors)
    return found, draw(st.sampled_from([original, original + 1, length]))


@given(files())
def test_metadata_of_gguf_files_mean_what_llama_cpp_computes(file):
    metadata, length = file
    name = metadata["general.architecture"]
    rope = from_config(metadata, seq_len=length if "rope_factors_long.weight" in metadata else None)
    assert_is(rope, engines.ggml(metadata, (1, 0, 0, 0), length))
    assert rope.rotary_dim == WIDTH and "does not read" not in words(rope)
    assert rope.layout == ("half" if name in ("qwen2", "phi3") else "interleaved")


@given(st.floats(1.0, 40.0), st.sampled_from([1.0, 4.0]), st.floats(0.0, 3e-7), st.booleans(), st.floats(1e4, 1e6))
def test_factors_of_published_rules_are_named(factor, high, noise, is_llama, base):
    """Llama 3's divisors, and those that leave pairs unrotated, with errors of float32."""
    freqs = [base ** (-2 * j / WIDTH) for j in range(WIDTH // 2)]
    if is_llama:
        wanted = Llama3Scaling(
            factor=f32(factor), low_freq_factor=1.0, high_freq_factor=high, original_max_position_embeddings=8192
        )
        divisors = [w / v for w, v in zip(freqs, formulas.llama3(base, WIDTH, f32(factor), 1.0, high, 8192))]
    else:
        wanted = ProportionalScaling(partial_rotary_factor=0.25, factor=f32(factor))
        divisors = [f32(factor)] * (WIDTH // 8) + [1e30] * (3 * WIDTH // 8)
    noisy = [each * (1.0 + noise * (-1) ** j) for j, each in enumerate(divisors)]
    rope = from_config(metadata_of("llama", base, tensors={"rope_freqs": noisy}))
    assert rope.inv_freq == pytest.approx(
        [w / d if d < 1e30 else 0.0 for w, d in zip(freqs, divisors)], rel=1e-6, abs=1e-25
    )
    if noise == 0.0:
        assert type(rope.scaling) is type(wanted) and not words(rope)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "--rope-freq-base": st.integers(1000, 10**7),
            "--rope-scale": st.integers(2, 16),
            "--yarn-orig-ctx": st.sampled_from([1024, 4096]),
            "--yarn-beta-fast": st.sampled_from([16, 40]),
            "--yarn-beta-slow": st.sampled_from([1, 2]),
        },
    ),
    st.sampled_from([None, "none", "linear", "yarn"]),
    st.booleans(),
    st.sampled_from([None, 0.0, 1.0, -1.0]),
    st.sampled_from([None, -1.0, 1.0, 0.5]),
)
def test_arguments_of_llama_cpp(flags, kind, is_yarn_in_file, mix, attention):
    """`--yarn-ext-factor` decides whether the rule is YaRN; `--yarn-attn-factor` changes nothing with YaRN."""
    rule = {"type": "yarn", "factor": 4.0, "original_context_length": 2048} if is_yarn_in_file else {}
    file = metadata_of("qwen2", 1_000_000.0, length=4096, scaling=rule)
    given_kind = kind or file.get("qwen2.rope.scaling.type", "linear")
    effective = given_kind if mix in (None, -1.0) else "yarn" if mix == 1.0 else given_kind.replace("yarn", "linear")
    arguments = [text for flag, value in flags.items() for text in (flag, str(value))]
    arguments += ["--rope-scaling", kind] if kind else []
    more = ["--yarn-ext-factor", str(mix)] if mix is not None else []
    more += ["--yarn-attn-factor", str(attention)] if attention is not None else []
    if attention == 0.5 and effective != "yarn":
        with pytest.raises(ValueError, match=r"--yarn-attn-factor of flags must be 1 without YaRN.*got 0.5"):
            from_config(file, flags=["llama-server", *arguments, *more])
        return
    rope = from_config(file, flags=["llama-server", *arguments, *more])
    metadata = engines.with_flags("qwen2", file, arguments)
    metadata["qwen2.rope.scaling.type"] = effective
    if given_kind == "none":  # also with --yarn-ext-factor 1: src/llama-context.cpp
        metadata["qwen2.rope.scaling.factor"] = 1.0
    metadata.setdefault("qwen2.rope.scaling.original_context_length", 4096)
    assert_is(rope, engines.ggml(metadata, (1, 0, 0, 0)))
    assert ("--yarn-attn-factor 0.5 changes nothing" in words(rope)) == (attention == 0.5)


LLAMA = {"model_type": "llama", "hidden_size": 256, "num_attention_heads": 8, "rope_theta": 500_000.0}
LLAMA |= {"max_position_embeddings": 8192}
LATENT = {"model_type": "deepseek_v3", "hidden_size": 256, "num_attention_heads": 8, "rope_theta": 1e4}
LATENT |= {"qk_rope_head_dim": WIDTH, "qk_nope_head_dim": 8, "max_position_embeddings": 16_384}


@given(
    st.sampled_from(["sglang", "vllm"]),
    st.booleans(),
    st.floats(1.5, 40.0),
    st.sampled_from([1024, 8192]),
    st.fixed_dictionaries(
        {},
        optional={
            "attn_factor": st.floats(0.5, 2.0),
            "mscale": st.floats(0.3, 1.5),
            "mscale_all_dim": st.floats(0.3, 1.5),
        },
    ),
    st.tuples(st.sampled_from([32, 20]), st.sampled_from([1, 2])),
)
def test_yarn_of_servers(engine, is_latent, factor, original, numbers, betas):
    """SGLang multiplies by `attn_factor`; for latent attention, both engines take two mscales, as DeepSeek does."""
    block = {"rope_type": "yarn", "rope_theta": 1e5, "factor": factor, "original_max_position_embeddings": original}
    block |= {"beta_fast": betas[0], "beta_slow": betas[1], **numbers}
    if engine == "vllm":  # 0.33 reads attention_factor in its place
        block.pop("attn_factor", None)
    if is_latent:
        block |= {"mscale": numbers.get("mscale", 1.0), "mscale_all_dim": numbers.get("mscale_all_dim", 1.0)}
        block.pop("attn_factor", None)
    elif engine == "sglang":
        block = {key: value for key, value in block.items() if "mscale" not in key} | {
            "attn_factor": numbers.get("attn_factor", 1.0)
        }
    flag = {"sglang": "--json-model-override-args", "vllm": "--hf-overrides"}[engine]
    arguments = [flag, json.dumps({"rope_parameters": block})]
    rope = from_config(LATENT if is_latent else LLAMA, flags=[engine, *arguments])
    if engine == "sglang":
        computed = engines.served(arguments, WIDTH, is_latent, 0)
    else:
        computed = engines.vllm(arguments, WIDTH, is_latent, 0)
    assert_is(rope, computed, rel=1e-12)
