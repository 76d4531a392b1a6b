"""from_config of other formats: what a person reads in real files, and errors that name the format."""

import copy
import re

import numpy as np
import pytest
from configs import CONFIGS, ROWS

from rope_xp import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ProportionalScaling,
    RotaryEmbedding,
    Sections,
    YarnScaling,
    from_config,
)
from rope_xp.frequencies import geometric

HALF, INTERLEAVED, TO_HALF = "half", "interleaved", "interleaved_to_half"
FULL, SLIDING = {"layer_type": "full_attention"}, {"layer_type": "sliding_attention"}
ORIGINAL = "original_max_position_embeddings"


def of(head_dim, layout, base, scaling=None, **options):
    return RotaryEmbedding(head_dim=head_dim, layout=layout, base=base, scaling=scaling, **options)


def llama3(factor=8.0, high=4.0):
    return Llama3Scaling(
        factor=factor, low_freq_factor=1.0, high_freq_factor=high, original_max_position_embeddings=8192
    )


def yarn(factor, length, **options):
    return YarnScaling(factor=factor, original_max_position_embeddings=length, **options)


def metadata(arch, **values):
    """Keys of one architecture; two underscores stand for a dot."""
    keys = {f"{arch}.{name.replace('__', '.')}": value for name, value in values.items()}
    return {"general.architecture": arch, "general.name": "a model", "tokenizer.ggml.model": "gpt2", **keys}


def f32(*numbers):
    return [float(np.float32(number)) for number in numbers]


LLAMA_SIZES = {"dim": 4096, "n_heads": 32, "n_layers": 32, "norm_eps": 1e-05}
META2 = {**LLAMA_SIZES, "multiple_of": 256, "vocab_size": -1}
META31 = {
    **LLAMA_SIZES,
    "ffn_dim_multiplier": 1.3,
    "multiple_of": 1024,
    "n_kv_heads": 8,
    "rope_theta": 500000.0,
    "use_scaled_rope": True,
    "vocab_size": 128256,
}
SCOUT = {
    "dim": 5120,
    "n_layers": 48,
    "n_heads": 40,
    "n_kv_heads": 8,
    "head_dim": 128,
    "ffn_exp": 4.0,
    "moe_args": {"num_experts": 16},
    "attention_chunk_size": 8192,
    "nope_layer_interval": 4,
    "rope_theta": 500000.0,
    "use_scaled_rope": True,
    "vision_args": {"n_heads": 16},
}
MISTRAL_SIZES = {**LLAMA_SIZES, "head_dim": 128, "hidden_dim": 14336, "n_kv_heads": 8}
MINISTRAL = {
    **MISTRAL_SIZES,
    "n_layers": 34,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 262144,
    "llama_4_scaling": {ORIGINAL: 16384, "beta": 0.1},
    "qk_rope_head_dim": None,
    "vision_encoder": {"hidden_size": 1024, "num_attention_heads": 16, "patch_size": 14, "rope_theta": 10000.0},
    "yarn": {ORIGINAL: 16384, "factor": 16, "apply_scale": False, "beta": 32, "alpha": 1},
}
LARGE3 = {
    **MISTRAL_SIZES,
    "model_type": "transformer",
    "qk_rope_head_dim": 64,
    "rope_theta": 10000.0,
    "yarn": {ORIGINAL: 8192, "factor": 36.0, "apply_scale": False, "beta": 32.0, "alpha": 1.0},
}
GPT = {"hidden_size": 4096, "num_attention_heads": 32, "num_query_groups": 8, "position_embedding_type": "rope"}
MLA = {"multi_latent_attention": True, "num_attention_heads": 128, "hidden_size": 7168, "rotary_base": 10000}
DEEPSEEK_YARN = {"rope_type": "yarn", "rotary_scaling_factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0}

QWEN_SIZES = {"context_length": 32768, "embedding_length": 3584, "attention__head_count": 28, "block_count": 28}
QWEN_YARN = {"type": "yarn", "factor": 4.0, "original_context_length": 32768}
QWEN = metadata(
    "qwen2", **QWEN_SIZES, rope__freq_base=1e6, **{f"rope__scaling__{key}": value for key, value in QWEN_YARN.items()}
)
GROK = metadata("grok", context_length=8192, attention__key_length=128, rope__freq_base=1e4)
LLAMA = metadata(
    "llama",
    context_length=131072,
    embedding_length=4096,
    attention__head_count=32,
    attention__head_count_kv=8,
    rope__freq_base=500000.0,
    rope__dimension_count=128,
)
DEEPSEEK = metadata(
    "deepseek2",
    context_length=163840,
    embedding_length=7168,
    attention__head_count=128,
    attention__key_length=576,
    attention__key_length_mla=192,
    rope__freq_base=10000.0,
    rope__dimension_count=64,
    rope__scaling__type="yarn",
    rope__scaling__factor=40.0,
    rope__scaling__original_context_length=4096,
    rope__scaling__yarn_log_multiplier=f32(0.1)[0],
)
GEMMA3 = metadata(
    "gemma3",
    context_length=131072,
    attention__key_length=256,
    attention__sliding_window=1024,
    block_count=48,
    rope__freq_base=1e6,
    rope__scaling__type="linear",
    rope__scaling__factor=8.0,
)
GEMMA4 = metadata(
    "gemma4",
    attention__key_length=512,
    attention__key_length_swa=256,
    attention__sliding_window_pattern=[True, True, False],
    block_count=3,
    rope__dimension_count=512,
    rope__dimension_count_swa=256,
    rope__freq_base=1e6,
    rope__freq_base_swa=1e4,
) | {"rope_freqs.weight": f32(*[1.0] * 64, *[1e30] * 192)}
COHERE2 = metadata("cohere2", attention__key_length=128, block_count=8, rope__freq_base=50000.0)
SMOLLM = metadata("smollm3", attention__key_length=128, block_count=36, rope__freq_base=5e6)
OLMO3 = metadata(
    "olmo2",
    attention__key_length=128,
    attention__sliding_window=4096,
    block_count=32,
    context_length=65536,
    rope__freq_base=5e5,
    rope__scaling__type="yarn",
    rope__scaling__factor=8.0,
    rope__scaling__original_context_length=8192,
)
PHI = metadata(
    "phi3",
    context_length=131072,
    attention__key_length=8,
    rope__dimension_count=6,
    rope__freq_base=10000.0,
    rope__scaling__original_context_length=4096,
    rope__scaling__attn_factor=f32(1.1902380952)[0],
) | {"rope_factors_short.weight": [1.0, 1.25, 1.5], "rope_factors_long.weight": [1.0, 4.0, 64.0]}
PHI_RULE = LongRopeScaling(
    short_factor=(1.0, 1.25, 1.5),
    long_factor=(1.0, 4.0, 64.0),
    original_max_position_embeddings=4096,
    factor=32.0,
)
VL = metadata("qwen2vl", attention__key_length=128, rope__freq_base=1e6, rope__dimension_sections=[16, 24, 24, 0])
QWEN35 = metadata(
    "qwen35",
    attention__key_length=256,
    rope__dimension_count=64,
    rope__freq_base=1e7,
    rope__dimension_sections=[11, 11, 10, 0],
)
FACTORS = {"rope_freqs.weight": f32(*(a / b for a, b in zip(geometric(5e5, 128), llama3().frequencies(5e5, 128))))}
OTHER_FACTORS = metadata("llama", attention__key_length=4, rope__freq_base=1e4) | {"rope_freqs.weight": [1.0, 2.5]}
MLX_LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "rope_theta": 500000.0}
MLX_QUANTISED = {**MLX_LLAMA, "quantization": {"group_size": 64, "bits": 4}}
MLX_YARN = {"rope_scaling": {"type": "yarn", "factor": 4.0, ORIGINAL: 4096, "mscale": 0.0, "mscale_all_dim": 0.0}}
SECTIONS, INTERLEAVED_SECTIONS = Sections((16, 24, 24)), Sections((11, 11, 10), order="interleaved")
VL_ARGUMENTS = {"position_embedding_type": "mrope", "mrope_section": [16, 24, 24], "rotary_base": 1000000}

# A name, the mapping, arguments of `from_config`, the embedding, and the keys whose value is a default.
READ = [
    ("Llama 2", META2, {}, of(128, INTERLEAVED, 1e4), "rope_theta"),
    ("CodeLlama", {**META2, "rope_theta": 1000000}, {}, of(128, INTERLEAVED, 1e6), ""),
    ("Llama 3.1", META31, {}, of(128, INTERLEAVED, 5e5, llama3()), "rope_scaling_factor"),
    ("Llama 3", {**META31, "use_scaled_rope": False}, {}, of(128, INTERLEAVED, 5e5), ""),
    ("Llama 3.2", {**META31, "rope_scaling_factor": 32}, {}, of(128, INTERLEAVED, 5e5, llama3(32.0)), ""),
    ("Llama 4 Scout", SCOUT, {}, of(128, INTERLEAVED, 5e5, llama3(16.0, 1.0)), "rope_scaling_factor"),
    ("layer of Llama 4", SCOUT, {"layer": 2}, of(128, INTERLEAVED, 5e5, llama3(16.0, 1.0)), "rope_scaling_factor"),
    ("last layer of four", SCOUT, {"layer": 3}, None, "rope_scaling_factor"),
    ("Mistral 7B v0.1", {**MISTRAL_SIZES, "sliding_window": 4096}, {}, of(128, INTERLEAVED, 1e4), "rope_theta"),
    ("Mistral 7B v0.2", MISTRAL_SIZES, {}, of(128, INTERLEAVED, 1e6), "rope_theta"),
    ("Mistral 7B v0.3", {**MISTRAL_SIZES, "rope_theta": 1e6}, {}, of(128, INTERLEAVED, 1e6), ""),
    ("Ministral 3", MINISTRAL, {}, of(128, INTERLEAVED, 1e6, yarn(16.0, 16384, attention_factor=1.0)), ""),
    (
        "its encoder",
        MINISTRAL,
        {"part": "vision"},
        of(64, INTERLEAVED, 1e4, sections=Sections((16, 16), "even_odd")),
        "",
    ),
    ("Mistral Large 3", LARGE3, {}, of(64, INTERLEAVED, 1e4, yarn(36.0, 8192, attention_factor=1.0)), ""),
    (
        "yarn with its scale",
        {**LARGE3, "yarn": {ORIGINAL: 8192, "factor": 36.0}},
        {},
        of(64, INTERLEAVED, 1e4, yarn(36.0, 8192, mscale=1.0, mscale_all_dim=1.0)),
        "apply_scale",
    ),
    (
        "Ministral with its scale",
        {**MINISTRAL, "yarn": {**MINISTRAL["yarn"], "apply_scale": True}},
        {},
        of(128, INTERLEAVED, 1e6, yarn(16.0, 16384)),
        "",
    ),
    ("Qwen2.5 GGUF", QWEN, {}, of(128, HALF, 1e6, yarn(4.0, 32768)), ""),
    ("Llama GGUF", LLAMA, {}, of(128, INTERLEAVED, 5e5), ""),
    ("Llama 3.1 GGUF", LLAMA | FACTORS, {}, of(128, INTERLEAVED, 5e5, llama3()), ""),
    ("other factors", OTHER_FACTORS, {}, RotaryEmbedding(head_dim=4, layout=INTERLEAVED, inv_freq=(1.0, 0.004)), ""),
    ("DeepSeek-V3 GGUF", DEEPSEEK, {}, of(64, INTERLEAVED, 1e4, yarn(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)), ""),
    ("Gemma 3 GGUF", GEMMA3, FULL, of(256, HALF, 1e6, LinearScaling(factor=8.0)), "gemma3.rope.freq_base_swa"),
    ("its window", GEMMA3, SLIDING, of(256, HALF, 1e4), "gemma3.rope.freq_base_swa"),
    (
        "its sixth layer",
        GEMMA3,
        {"layer": 5},
        of(256, HALF, 1e6, LinearScaling(factor=8.0)),
        "gemma3.rope.freq_base_swa",
    ),
    ("Gemma 4 GGUF", GEMMA4, FULL, of(512, HALF, 1e6, ProportionalScaling(partial_rotary_factor=0.25)), ""),
    ("its window", GEMMA4, {"layer": 0}, of(256, HALF, 1e4), ""),
    ("Command R7B GGUF", COHERE2, {}, of(128, INTERLEAVED, 5e4), ""),
    ("its fourth layer", COHERE2, {"layer": 3}, None, ""),
    ("SmolLM3 GGUF", SMOLLM, {"layer": 2}, of(128, INTERLEAVED, 5e6), ""),
    ("its fourth layer", SMOLLM, {"layer": 3}, None, ""),
    ("OLMo 3 GGUF", OLMO3, FULL, of(128, HALF, 5e5, yarn(8.0, 8192)), ""),
    ("its window", OLMO3, SLIDING, of(128, HALF, 5e5), ""),
    ("Phi-3 GGUF", PHI, {}, of(8, HALF, 1e4, PHI_RULE, rotary_dim=6), ""),
    ("Qwen2-VL GGUF", VL, {}, of(128, HALF, 1e6, sections=SECTIONS), ""),
    ("Qwen3.5 GGUF", QWEN35, {}, of(256, HALF, 1e7, rotary_dim=64, sections=INTERLEAVED_SECTIONS), ""),
    (
        "Llama of Megatron",
        {**GPT, "rotary_base": 500000, "use_rope_scaling": True, "rotary_percent": 1.0, "apply_rope_fusion": True},
        {},
        of(128, HALF, 5e5, llama3()),
        "rope_scaling_factor",
    ),
    (
        "GPT of Megatron",
        GPT | {"rotary_percent": 0.5, "kv_channels": 96},
        {},
        of(96, HALF, 1e4, rotary_dim=48),
        "rotary_base",
    ),
    (
        "interpolated",
        GPT | {"rotary_base": 10000, "rotary_seq_len_interpolation_factor": 4, "rotary_interleaved": True},
        {},
        of(128, INTERLEAVED, 1e4, LinearScaling(factor=4.0)),
        "",
    ),
    ("layers of Megatron", GPT | {"rotary_base": 1, "no_rope_freq": 4}, {"layer": 3}, None, ""),
    ("list of layers", GPT | {"rotary_base": 9, "no_rope_freq": [0, 1]}, {"layer": 0}, of(128, HALF, 9.0), ""),
    ("not rotated", GPT | {"position_embedding_type": "none"}, {}, None, ""),
    ("Qwen2-VL of Megatron", GPT | VL_ARGUMENTS, {}, of(128, HALF, 1e6, sections=SECTIONS), ""),
    (
        "yarn of Megatron",
        GPT
        | {"position_embedding_type": "yarn", "rotary_base": 150000, "rotary_scaling_factor": 32.0}
        | {"yarn_correction_range_round_to_int": False, "mscale": 1.0, "mscale_all_dim": 0.0},
        {},
        of(128, HALF, 150_000.0, yarn(32.0, 4096, truncate=False)),
        ORIGINAL,
    ),
    (
        "DeepSeek-V3 of Megatron",
        MLA | DEEPSEEK_YARN | {"qk_pos_emb_head_dim": 64, ORIGINAL: 4096},
        {},
        of(64, TO_HALF, 1e4, yarn(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)),
        "",
    ),
    ("latent attention", MLA | {"rope_type": "rope", "qk_pos_emb_head_dim": 64}, {}, of(64, TO_HALF, 1e4), ""),
    ("Llama of MLX", {**MLX_LLAMA, "rope_traditional": False}, {}, of(128, HALF, 5e5), ""),
    ("Llama of MLX, traditional", {**MLX_LLAMA, "rope_traditional": True}, {}, of(128, INTERLEAVED, 5e5), ""),
    ("yarn of MLX", MLX_QUANTISED | MLX_YARN, {}, of(128, HALF, 5e5, yarn(4.0, 4096, attention_factor=1.0)), ""),
]


def test_what_a_person_reads():
    for row in READ:
        assert_it_is_what_a_person_reads(*row)


def assert_it_is_what_a_person_reads(name, mapping, options, wanted, defaults):
    before = copy.deepcopy(mapping)
    found = from_config(mapping, **options)
    assert mapping == before
    if wanted is None or found is None:
        assert found is wanted
        return
    if found.scaling != wanted.scaling:  # MLX's mscale is another spelling of the attention factor
        assert found.attention_factor == wanted.attention_factor and found.inv_freq == wanted.inv_freq
        assert found.softmax_scale == wanted.softmax_scale
    else:
        assert found == wanted
    assert [default.key for default in found._provenance.defaults] == defaults.split()
    if defaults:
        with pytest.raises(ValueError, match=f"strict=True; got .*{defaults}"):
            from_config(mapping, **options, strict=True)


FORMATS = {
    "Meta's params.json": META31,
    "Mistral's params.json": MINISTRAL,
    "metadata of a GGUF file": QWEN,
    "arguments of Megatron-LM": GPT | {"rotary_base": 10000},
    "a config.json of MLX": MLX_QUANTISED,
}
UNKNOWN = {"metadata of a GGUF file": "qwen2.rope.extra_thing"}


@pytest.mark.parametrize("name", FORMATS)
def test_an_unknown_key_is_named_and_so_is_the_format(name):
    key = UNKNOWN.get(name, "rope_extra_thing")
    with pytest.raises(ValueError, match=rf"^from_config: .*; got .*{key}.*\(the mapping was read as {name}\)$"):
        from_config({**FORMATS[name], key: 1.5})


@pytest.mark.parametrize("name", FORMATS)
def test_each_key_about_rotation_matters(name):
    """Without the key, there is an error, another value, or a default that is marked."""
    mapping = FORMATS[name]
    rope = from_config(mapping)
    marked = {default.key for default in rope._provenance.defaults}
    for key in [
        key
        for key, value in mapping.items()
        if value is not None and ("rope" in key or "rotary" in key or key == "yarn")
    ]:
        try:
            found = from_config({other: value for other, value in mapping.items() if other != key})
        except ValueError:
            continue
        assert found != rope or {default.key for default in found._provenance.defaults} - marked, key


@pytest.mark.parametrize("name", [name for name in FORMATS if "MLX" not in name])
def test_the_format_is_described(name):
    rope = from_config(FORMATS[name])
    assert f"read from {name}" in " ".join(rope.describe().split())
    report = rope.explain()
    assert f"read from {name}" in " ".join(str(report).split()) and not any(
        "read from" in each for each in report.warnings
    )
    assert report.stated and set(report.stated) <= FORMATS[name].keys()


def edited(config, **changes):
    return {key: value for key, value in {**config, **changes}.items() if value is not ...}


GLM = metadata("glm4", attention__key_length=128, rope__freq_base=1e4)
WRONG = [
    (META31, {"part": "vision"}, ValueError, "part must be 'text' or None; got 'vision'"),
    (META31, {"compat": "transformers"}, ValueError, "compat must be None for this format; got 'transformers'"),
    (edited(META31, use_scaled_rope=1), {}, TypeError, "use_scaled_rope must be a bool; got int"),
    (edited(META31, n_heads=0), {}, ValueError, "num_attention_heads must be at least 1; got 0"),
    (edited(MINISTRAL, yarn={"factor": 4.0}), {}, ValueError, f"{ORIGINAL} must be in yarn; got"),
    (edited(MINISTRAL, yarn={**MINISTRAL["yarn"], "gamma": 1}), {}, ValueError, "every key of yarn .*; got .*gamma"),
    (
        edited(MINISTRAL, vision_encoder=...),
        {"part": "vision"},
        ValueError,
        "vision_encoder must be given .*; got none",
    ),
    (edited(QWEN, **{"general.architecture": ...}), {}, ValueError, "general.architecture must be given; got none"),
    (edited(QWEN, **{"general.architecture": 3}), {}, TypeError, "general.architecture must be a string; got 3"),
    (edited(QWEN, **{"general.architecture": "bloom"}), {}, ValueError, "must be rotary .*; got 'bloom', which is not"),
    (edited(QWEN, **{"general.architecture": "qwen9"}), {}, ValueError, "must be rotary .*; got 'qwen9', .* not know"),
    (edited(QWEN, **{"general.architecture": "step35"}), {}, ValueError, "layers that rope_xp knows; got 'step35'"),
    (
        edited(QWEN, **{"general.architecture": "qwen3"}),
        {},
        ValueError,
        "qwen3.attention.key_length or .* must be given",
    ),
    (
        edited(QWEN, **{"qwen2.rope.scaling.type": "ntk"}),
        {},
        ValueError,
        "qwen2.rope.scaling.type must be .*; got 'ntk'",
    ),
    (edited(QWEN, **{"qwen2.rope.scaling.factor": -1.0}), {}, ValueError, "scaling.factor must be greater .*; got -1"),
    ({**GROK, "grok.rope.scaling.yarn_ext_factor": 0.5}, {}, ValueError, "yarn_ext_factor must be 0 .*; got 0.5"),
    ({**GROK, "grok.rope.scaling.yarn_attn_factor": 2.0}, {}, ValueError, "must be 1 without YaRN; got 2"),
    (
        {**GROK, "rope_freqs.weight": [1.0] * 64},
        {},
        ValueError,
        "rope_freqs.weight must not be given for an arch.*; got",
    ),
    (edited(QWEN, **{"qwen2.attention.max_alibi_bias": 8.0}), {}, ValueError, "max_alibi_bias must be 0; got"),
    (edited(QWEN, **{"qwen2.rope.freq_base_swa": 1e4}), {}, ValueError, "no keys of their own .*; got .*freq_base_swa"),
    (edited(QWEN, **{"rope_freqs.weight": [1.0]}), {}, ValueError, "must not be given with YaRN; got"),
    (edited(QWEN, **{"llama.rope.freq_base": 1e4}), {}, ValueError, "must be known; got .*llama.rope.freq_base"),
    (edited(DEEPSEEK, **{"deepseek2.rope.dimension_count": ...}), {}, ValueError, "dimension_count must be given; got"),
    (
        edited(DEEPSEEK, **{"deepseek2.rope.scaling.attn_factor": 2.0}),
        {},
        ValueError,
        "attn_factor must be 1 .*; got 2",
    ),
    (edited(LLAMA, **{"llama.rope.scaling.attn_factor": 2.0}), {}, ValueError, "attn_factor must be 1 without .*; got"),
    (edited(LLAMA, **{"rope_freqs.weight": [1.0]}), {}, ValueError, "must have 64 factors.*; got 1"),
    (edited(LLAMA, **{"rope_freqs.weight": [0.0] * 64}), {}, ValueError, "every value of rope_freqs.weight .*; got 0"),
    (
        edited(LLAMA, **{"llama.rope.dimension_sections": [1, 1]}),
        {},
        ValueError,
        "dimension_sections must be 0 .*; got",
    ),
    (edited(VL, **{"qwen2vl.rope.dimension_sections": 4}), {}, TypeError, "dimension_sections must be a list; got 4"),
    (edited(PHI, **{"rope_factors_long.weight": ...}), {}, ValueError, "must be in the mapping; got at most one"),
    (edited(PHI, **{"phi3.rope.dimension_count": 5}), {}, ValueError, "dimension_count must be even.*; got 5"),
    (edited(GEMMA3, **{"gemma3.rope.dimension_count": 64}), FULL, ValueError, "must be the whole head, 256; got 64"),
    (edited(SMOLLM, **{"smollm3.attention.sliding_window": 0}), {}, ValueError, "must be greater than 0; got 0"),
    (GEMMA3, {}, ValueError, "layer or layer_type must be given.*; got layer_type=None"),
    (edited(GPT, rotary_base=1, position_embedding_type=...), {}, ValueError, "position_embedding_type must be given"),
    (
        edited(GPT, rotary_base=1, position_embedding_type="learned_absolute"),
        {},
        ValueError,
        "position_emb.*; got 'learned",
    ),
    (edited(GPT, no_rope_freq="[0]*4"), {}, TypeError, "no_rope_freq must be an int; got str"),
    (edited(GPT, no_rope_freq=[0, 2]), {}, ValueError, "no_rope_freq must be a list of 0 and 1; got"),
    (
        edited(GPT, use_rope_scaling=True, rotary_seq_len_interpolation_factor=2),
        {},
        ValueError,
        "interpolation_factor must be None with use_rope_scaling; got 2",
    ),
    (edited(GPT | VL_ARGUMENTS, mrope_section=...), {}, ValueError, "mrope_section must be given with mrope; got none"),
    (edited(GPT | VL_ARGUMENTS, use_rope_scaling=True), {}, ValueError, "use_rope_scaling must be False .*; got True"),
    (
        edited(GPT | VL_ARGUMENTS, rotary_interleaved=True),
        {},
        ValueError,
        "rotary_interleaved must be False with mrope",
    ),
    (edited(GPT, position_embedding_type="yarn"), {}, ValueError, "rotary_scaling_factor must be given .*; got none"),
    (edited(MLA, rope_type="mrope"), {}, ValueError, "rope_type must be .*; got 'mrope'"),
    (edited(MLX_LLAMA, rope_traditional=1), {}, TypeError, "rope_traditional must be a bool; got int"),
]


@pytest.mark.parametrize("mapping, options, kind, message", WRONG, ids=str)
def test_errors_name_the_key_and_the_format(mapping, options, kind, message):
    with pytest.raises(kind, match=rf"^from_config: .*{message}.*\(the mapping was read as .*\)$") as error:
        from_config(mapping, **options)
    assert len(str(error.value)) < 1000


DAMAGE = (None, "x", True, -1, 0.5, 10**30, float("nan"), [1], [1e30] * 64, {"a": 1})
IN_FORM = re.compile(r"from_config: .+; got .+", re.DOTALL)


def damaged(mapping):
    """The mapping with another value of each key, also of keys in nested mappings."""
    for key, value in mapping.items():
        for other in [*DAMAGE, *(damaged(value) if isinstance(value, dict) else ())]:
            yield {**mapping, key: other}


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_mapping_is_read_or_an_error_in_form(name):
    for mapping in damaged(FORMATS[name]):
        try:
            from_config(mapping)
        except (ValueError, TypeError) as error:
            assert IN_FORM.fullmatch(str(error)) and len(str(error)) < 1000, error


def test_widths_are_limited_before_frequencies_are_computed():
    with pytest.raises(ValueError, match="dimension_count must be even, at least 2 and at most 16384; got 1"):
        from_config(LLAMA | FACTORS | {"llama.rope.dimension_count": 2**40})


def test_remarks():
    """What a mapping cannot say, and where programs differ."""

    def remarks(mapping):
        return " ".join(from_config(mapping).describe().split())

    assert "if the file has this tensor" in remarks(LLAMA) and "if the file has" not in remarks(LLAMA | FACTORS)
    assert "the configs of Llama 3.2 in transformers have 32" in remarks(META31)
    assert "since version 1.0.4" in remarks({**MISTRAL_SIZES, "sliding_window": 4096})
    stated = {"qwen2.rope.scaling.yarn_attn_factor": 1.5}
    assert "does not read qwen2.rope.scaling.yarn_attn_factor=1.5 with YaRN" in remarks(QWEN | stated)
    for key, value in (("yarn_ext_factor", 0.5), ("alpha", 2.0), ("yarn_log_multiplier", 0.1), ("yarn_beta_fast", 8.0)):
        unread = f"qwen2.rope.scaling.{key}"
        assert from_config(QWEN | {unread: value}) == from_config(QWEN)
        assert f"llama.cpp does not read {unread}={value:g} for this architecture" in remarks(QWEN | {unread: value})
    assert "does not read llama.rope.scaling.yarn_attn_factor=2" in remarks(
        LLAMA | {"llama.rope.scaling.yarn_attn_factor": 2.0}
    )
    sections = {"qwen3vl.rope.dimension_sections": [24, 20, 20, 0]}
    qwen3 = metadata("qwen3vl", attention__key_length=128, rope__freq_base=5e6)
    assert "rotates pairs 61, 62 by its fourth position" in remarks(qwen3 | sections)


def test_the_layout_of_glm4_follows_its_sections():
    assert from_config(GLM).layout == INTERLEAVED
    sections = {"glm4.rope.dimension_sections": [16, 24, 24, 0]}
    assert from_config(GLM | sections) == of(128, HALF, 1e4, sections=SECTIONS)


def test_the_caller_may_choose_the_layout():
    assert from_config(META31, layout=HALF) == of(128, HALF, 5e5, llama3())


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_of_transformers_is_in_no_other_format(name):
    from rope_xp.configs.readers.formats import format_of

    found = format_of(CONFIGS[name])
    assert (found is None) == (name != "llama-3.2-1b-mlx")


@pytest.mark.parametrize("stated, is_remarked", [({}, False), ({"yarn_attn_factor": 1.2}, True)])
def test_a_factor_that_llama_cpp_does_not_read_is_remarked(stated, is_remarked):
    rope = from_config({**QWEN, **{f"qwen2.rope.scaling.{key}": value for key, value in stated.items()}})
    assert any("does not read qwen2.rope.scaling" in each for each in rope._provenance.remarks) == is_remarked


def test_layers_of_gguf_files():
    """The base of each layer, null where it is not rotated: `src/models` of llama.cpp."""
    for row in ROWS["layers of GGUF files"]:
        ropes = [from_config(row["metadata"], layer=layer) for layer in range(len(row["bases"]))]
        assert [rope and rope.base for rope in ropes] == row["bases"], row
