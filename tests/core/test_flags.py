"""from_config(flags=...): what an engine computes from a config with the arguments of its command line.

The numbers are worked out by hand from the sources that `overrides.py` and `llama_cpp_arguments.py` name.
"""

import json
import math
import re
import warnings

import pytest
from cases import for_each
from configs import CONFIGS, GOLDENS, ROWS

from rope_xp import DynamicNTKScaling, LongRopeScaling, compare, from_config
from rope_xp.configs.readers.command_line import HARMLESS, KNOWN, command_line

LLAMA = dict(
    model_type="llama", hidden_size=512, num_attention_heads=8, rope_theta=500_000.0, max_position_embeddings=8192
)
PHI = LLAMA | dict(model_type="phi", partial_rotary_factor=0.5)
FLAT = dict(
    model_type="qwen2_vl",
    hidden_size=512,
    num_attention_heads=8,
    rope_theta=1_000_000.0,
    rope_scaling=dict(type="mrope", mrope_section=[8, 12, 12]),
    max_position_embeddings=32_768,
)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=8192)
GGUF = {
    "general.architecture": "qwen2",
    "qwen2.rope.freq_base": 1_000_000.0,
    "qwen2.attention.key_length": 64,
    "qwen2.context_length": 8192,
}
LONG = {
    "general.architecture": "phi3",
    "phi3.rope.freq_base": 10_000.0,
    "phi3.attention.key_length": 8,
    "phi3.context_length": 16_384,
    "phi3.rope.scaling.original_context_length": 4096,
    "rope_factors_short.weight": [1.0, 1.5, 2.0, 2.5],
    "rope_factors_long.weight": [3.0, 4.0, 5.0, 6.0],
}
G4 = 0.1 * math.log(4.0) + 1.0


def vllm(**overrides):
    return ["--hf-overrides", json.dumps(overrides)]


def sglang(**overrides):
    return ["--json-model-override-args", json.dumps(overrides)]


def remarks(rope):
    return " | ".join(rope._provenance.remarks)


def frequencies(base, width=64, divisor=1.0):
    return pytest.approx([base ** (-2 * j / width) / divisor for j in range(width // 2)], rel=1e-12)


# Every pair of a golden and a target with arguments.

ROTATED = [golden for golden in GOLDENS if golden["rotated"] and "compat" not in golden["kwargs"]]
COMMANDS = {"vllm": "vllm", "sglang": "sglang", "lmdeploy": "lmdeploy", "llama.cpp": "llama-server"}
# Why arguments cannot be read back, by a pattern of the error: the goldens are those of families.
NOT_READ_BACK = {
    # vLLM fails with KeyError for a block without types; `convert` writes the blocks of all types.
    "rope_parameters must be nested by layer type": "gemma_?[34]|olmo3|modernbert|mimo_v2|step3p5|deepseek_v4|laguna",
    # The family's own code adds a rule beyond the trained length, which engines do not.
    "rope_parameters or rope_scaling must be given, not both": "qwen|internlm",
    # For latent attention and sections, the architecture decides what is computed.
    "architecture must be given": "glm_moe_dsa|bailing|hunyuan_vl|axk1|deepseek_v4|longcat",
    "the embedding must be expressible in a GGUF file": "deepseek_v4",
    # A file cannot hold the ends of the ramp for this architecture, so that the converter's file is another embedding.
    "must read rope.scaling.yarn_beta_fast for architecture": "kimi_k2",
}


@for_each("target", COMMANDS)
def test_what_is_written_reads_back(target):
    for golden in ROTATED:
        assert_its_arguments_are_read_back(golden, target)


def assert_its_arguments_are_read_back(golden, target):
    config, kwargs = CONFIGS[golden["config"]], dict(golden["kwargs"])
    rope = from_config(config, **kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what a table does not know
        try:
            words = rope.to_config(target)
        except ValueError:
            return  # test_writers.py lists what is refused
    if isinstance(rope.scaling, LongRopeScaling):
        kwargs["seq_len"] = rope.scaling.seq_len or 1
    try:
        found = from_config(config, flags=[COMMANDS[target], *words], **kwargs)
    except ValueError as error:
        pattern = next(each for reason, each in NOT_READ_BACK.items() if reason in str(error))
        assert re.search(pattern, rope._provenance.model_type), error
        return
    if target == "vllm" and isinstance(rope.scaling, DynamicNTKScaling) and "max_trained_positions" not in words[-1]:
        assert found.scaling is None  # vLLM 0.33 divides by the length that it multiplies by
        return
    assert (found.head_dim, found.layout, found.sections) == (rope.head_dim, rope.layout, rope.sections)
    for one, other in zip([found.inv_freq] if rope.axes == 1 else found.inv_freq, each_axis(rope), strict=True):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-12)  # llama.cpp has float32 numbers
    assert found.attention_factor == pytest.approx(rope.attention_factor, rel=1e-6)
    assert found.softmax_scale == pytest.approx(rope.softmax_scale, rel=1e-6)


def each_axis(rope):
    return [rope.inv_freq] if rope.axes == 1 else rope.inv_freq


# vLLM


def test_vllm_copies_the_base_before_it_reads_overrides():
    rope = from_config(LLAMA, flags=vllm(rope_theta=1_000_000.0))
    assert rope == from_config(LLAMA) and rope.base == 500_000.0
    assert "rope_theta outside rope_parameters changes nothing in vLLM 0.33" in remarks(rope)
    assert "without --hf-overrides, the embedding would be the same" in remarks(rope)
    assert "rope_theta" in rope.describe()


def test_vllm_replaces_a_block():
    rope = from_config(LLAMA, flags=vllm(rope_parameters=YARN))
    assert rope.base == 10_000.0 and rope.scaling.factor == 4.0
    assert "without rope_theta the base is 10,000" in remarks(rope)
    assert from_config(LLAMA, flags=vllm(rope_parameters=YARN | {"rope_theta": 500_000.0})).base == 500_000.0
    qwen = from_config(LLAMA | {"model_type": "qwen3", "head_dim": 64}, flags=vllm(rope_parameters=YARN))
    assert qwen.base == 1_000_000.0  # set_default_rope_theta of models/qwen3.py
    whole = from_config(PHI, flags=vllm(rope_parameters={"rope_type": "default", "rope_theta": 1e4}))
    assert from_config(PHI).rotary_dim == 32 and whole.rotary_dim == 64
    assert "without partial_rotary_factor rotates whole heads" in remarks(whole)


def test_vllm_reads_rope_type_only():
    rope = from_config(LLAMA, flags=vllm(rope_scaling={"type": "linear", "factor": 4.0, "rope_theta": 5e5}))
    assert rope.scaling is None and "and not type='linear'" in remarks(rope)
    rope = from_config(LLAMA, flags=vllm(rope_scaling={**YARN, "type": "yarn", "rope_theta": 5e5}))
    assert rope.scaling.factor == 4.0 and "and not type=" not in remarks(rope)


def test_vllm_merges_into_a_part_and_ignores_what_is_outside():
    outside = from_config(FLAT, flags=vllm(rope_parameters=YARN | {"rope_theta": 1e6}))
    assert outside == from_config(FLAT) and "outside it, rope_parameters of the flags changes nothing" in remarks(
        outside
    )
    inside = from_config(FLAT, flags=vllm(text_config={"rope_parameters": YARN}))
    assert inside.base == 1_000_000.0 and inside.scaling.factor == 4.0 and inside.sections.sizes == (8, 12, 12)
    nested = {"model_type": "qwen2_vl", "text_config": {**FLAT, "model_type": "qwen2_vl_text"}}
    assert from_config(nested, flags=vllm(text_config={"rope_parameters": YARN})) == inside
    assert from_config(nested, flags=vllm(rope_parameters=YARN)) == from_config(nested)
    with pytest.raises(ValueError, match="else loses the position axes; got 'linear'"):
        from_config(FLAT, flags=vllm(text_config={"rope_parameters": {"rope_type": "linear", "factor": 2.0}}))


def test_vllm_merges_blocks_of_types_of_layers_into_a_part():
    full, sliding = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}, {"rope_theta": 1e4}
    blocks = {"full_attention": full, "sliding_attention": {"rope_type": "default", **sliding}}
    text = {"head_dim": 64, "layer_types": [*blocks], "rope_parameters": blocks}
    config = {"model_type": "gemma3", "text_config": text}
    for changes in ({"full_attention": {"factor": 4.0}}, {**blocks, "full_attention": {**full, "factor": 4.0}}):
        flags = vllm(text_config={"rope_parameters": changes})
        ropes = [from_config(config, layer=layer, flags=flags) for layer in (0, 1)]
        assert [(rope.base, rope.scaling and rope.scaling.factor) for rope in ropes] == [(1e6, 4.0), (1e4, None)]
    with pytest.raises(ValueError, match="text_config must be an object in flags; got 3"):
        from_config(config, layer=0, flags=vllm(text_config=3))
    with pytest.raises(ValueError, match=r"only blocks of layer types, .*, or none; got both: {'rope_theta': 1000.0}"):
        flags = vllm(rope_parameters={**blocks, "rope_theta": 1e3})
        from_config({"model_type": "gemma3_text", **text}, layer=0, flags=flags)


def test_vllm_merges_into_a_part_of_a_part():
    config = {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": {"head_dim": 128}}}
    block = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e4}}
    rope = from_config(config, flags=vllm(thinker_config={"text_config": block}))
    assert (rope.base, rope.axes) == (5e4, 3) and from_config(config).base == 1e6
    assert rope._provenance.path == ("thinker_config", "text_config")


@for_each("length, factor", [(None, 4.0), (8192, 2.0), (2048, 1.0)])
def test_sglang_takes_the_factor_of_longrope_from_the_lengths(length, factor):
    block = {"type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 4.0], "factor": 4.0}
    block |= {"original_max_position_embeddings": 4096}
    config = {"model_type": "phi3", "head_dim": 4, "rope_theta": 1e4, "rope_scaling": block}
    config["max_position_embeddings"] = length
    flags = ["sglang", "--json-model-override-args", json.dumps({"rope_scaling": block})]
    assert from_config(config, flags=flags).scaling.factor == factor


@for_each("model_type, keys", [("llama", {}), ("glm4", {}), ("glm4", {"partial_rotary_factor": 1.0})])
def test_a_fraction_that_vllm_loses_is_remarked(model_type, keys):
    """The default of GLM-4 is a half."""
    config, is_lost = (
        {"model_type": model_type, "head_dim": 64, "rope_theta": 1e4, **keys},
        model_type == "glm4" and not keys,
    )
    rope = from_config(config, flags=vllm(rope_parameters={"rope_type": "default", "rope_theta": 5e4}))
    assert rope.rotary_dim == 64 and ("without partial_rotary_factor rotates whole heads" in remarks(rope)) == is_lost


MSCALES = [{}, {"mscale": 0.7}, {"mscale_all_dim": 0.5}, {"mscale": 0.7, "mscale_all_dim": 0.5}]


def latent(numbers):
    """A config with latent attention, and a block of YaRN."""
    block = {**YARN, "rope_type": "deepseek_yarn", "rope_theta": 1e4, **numbers}
    return {"model_type": "deepseek_v3", "qk_rope_head_dim": 64, "rope_theta": 1e4}, block


@for_each("numbers", MSCALES)
def test_an_attention_factor_of_one_leaves_the_softmax_of_latent_attention_alone_in_vllm(numbers):
    config, block = latent(numbers | {"attention_factor": 1.0})
    rope = from_config(config, flags=vllm(rope_parameters=block))
    of_tables, of_all = (
        1.0 + 0.1 * numbers.get(key, default) * math.log(4.0)
        for key, default in (("mscale", 1.0), ("mscale_all_dim", 0.0))
    )
    assert rope.attention_factor == pytest.approx(of_tables / of_all, rel=1e-15) and rope.softmax_scale == 1.0


@for_each("numbers", MSCALES)
@for_each("multiplier", [1.0, 0.5])
@for_each("factor", [4.0, 1.0])
def test_sglang_multiplies_both_factors_of_latent_attention(numbers, multiplier, factor):
    config, block = latent(numbers | {"attn_factor": multiplier, "factor": factor})
    rope = from_config(config, flags=sglang(rope_parameters=block))
    of_tables, of_all = (
        1.0 + 0.1 * numbers.get(key, default) * math.log(factor)
        for key, default in (("mscale", 1.0), ("mscale_all_dim", 0.0))
    )
    assert rope.attention_factor == pytest.approx(multiplier * of_tables / of_all, rel=1e-12)


VLLM_BASES = dict.fromkeys(("ernie4_5_moe",), 5e5) | dict.fromkeys(("exaone4", "qwen2", "qwen3"), 1e6)
VLLM_BASES |= {"falcon_h1": 1e11, "llama": 1e4, "mistral": 1e4, "qwen2_moe": 1e4}


@for_each("model_type", VLLM_BASES)
def test_the_base_of_a_block_without_one_is_that_of_the_class_in_vllm(model_type):
    config = LLAMA | {"model_type": model_type, "head_dim": 64, "rope_theta": 7e5}
    rope = from_config(config, flags=vllm(rope_parameters=YARN), layer=0)
    assert rope.base == VLLM_BASES[model_type]
    assert f"without rope_theta the base is {VLLM_BASES[model_type]:,.0f}" in remarks(rope)


@for_each("name", ["lmdeploy", "sglang"])
def test_null_before_a_block_removes_the_old_one(name):
    key = "--json-model-override-args" if name == "sglang" else "--hf-overrides"
    block = {"rope_scaling": None, "rope_parameters": YARN}
    assert from_config(LLAMA, flags=[name, key, json.dumps(block)]).base == 10_000.0
    turned = dict(reversed(block.items()))
    with pytest.raises(ValueError, match="rope_scaling must be an object in flags; got None"):
        from_config(LLAMA, flags=[name, key, json.dumps(turned)])


@for_each("original", [4096, 1, 0])
@for_each("length", [None, 2048, 8192])
def test_the_original_length_of_flags_is_that_of_the_block_in_vllm(original, length):
    """Of rules that read it, in a config without a part."""
    config = LLAMA | {"rope_scaling": YARN, "max_position_embeddings": length or 32_768}
    flags = vllm(original_max_position_embeddings=original)
    if original == 0:
        with pytest.raises(ValueError, match="original_max_position_embeddings must be "):
            from_config(config, flags=flags)
        return
    assert from_config(config, flags=flags).scaling.original_max_position_embeddings == original
    in_part = {
        "model_type": "qwen2_vl",
        "text_config": {**FLAT, "rope_scaling": {**YARN, "mrope_section": [8, 12, 12]}},
    }
    own = from_config(in_part, flags=vllm(text_config={"original_max_position_embeddings": 8192})).scaling
    assert own.original_max_position_embeddings == 8192
    with pytest.raises(ValueError, match="must not be contradicted; got 8192 in"):
        from_config(in_part, flags=vllm(text_config={"original_max_position_embeddings": original}))


@for_each("engine", ["vllm", "sglang"])
@for_each("original", [4096, 1, 0, -1])
def test_longrope_with_an_original_length_of_zero_is_one_clear_error(engine, original):
    lists = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32, "original_max_position_embeddings": original}
    block = {"rope_type": "longrope", "rope_theta": 1e4, **lists}
    flags = {"vllm": vllm, "sglang": sglang}[engine](rope_parameters=block)
    if original > 1:
        assert from_config(LLAMA, flags=flags).scaling.factor == 2.0
        return
    with pytest.raises(ValueError, match=f"original_max_position_embeddings must be .*; got {original}"):
        from_config(LLAMA, flags=flags)


@for_each("length", [99, 100, 101])
def test_words_of_flags_are_shown_up_to_100_characters(length):
    key = "qwen2.rope.".ljust(length, "x")
    other = "qwen3.rope.".ljust(length, "x")
    rope = from_config(GGUF, flags=["--override-kv", f"{key}=int:5,{other}=int:5"])
    assert f"does not use --override-kv {key[:100]}: its type must be float, and is int" in remarks(rope)
    assert f"does not read {other[:100]}: the architecture of the file is qwen2" in remarks(rope)
    word, shown, ones = "y" * length, "y" * min(length, 100), "1" * (length - 2)
    wrong = {
        f"--override-kv {word}": f"bool or str; got '{shown}'",
        f"--override-kv {key}=float:{word}": f"{key[:100]} of --override-kv in flags must be a number; got '{shown}'",
        f"--rope-scale {word}": f"must be a finite number; got '{shown}'",
        f"-c {word}": f"must be a whole number; got '{shown}'",
        f"--rope-scaling {word}": f"must be none, linear or yarn; got '{shown}'",
        f"--hf-overrides [{ones}]": f"must be a JSON object; got '{f'[{ones}]'[:100]}'",
    }
    for flags, message in wrong.items():
        with pytest.raises(ValueError, match=re.escape(message)):
            from_config(LLAMA if "hf" in flags else GGUF, flags=flags)


@for_each("text", ["", "=", "a=", "a=float", "a=float:1", "=float:1", "a:float=1", "a=double:1", "a=:1"])
def test_an_override_has_a_key_a_type_and_a_value(text):
    flags = ["llama-server", "--override-kv", text]
    if text == "a=float:1":
        assert from_config(GGUF, flags=flags) == from_config(GGUF)
        return
    with pytest.raises(ValueError, match="must be KEY=TYPE:VALUE and the type int, float, bool or str; got "):
        from_config(GGUF, flags=flags)


@for_each("fast", [None, -1.0, 0.0, 0.5, 16.0])
@for_each("kind", ["yarn", "linear"])
def test_a_negative_end_of_the_ramp_is_that_of_the_file(fast, kind):
    words = ["--rope-scaling", kind, "--rope-scale", "4", "--yarn-beta-slow", "0.25"]
    words += [] if fast is None else ["--yarn-beta-fast", str(fast)]
    if fast == 0.0 and kind == "yarn":
        with pytest.raises(ValueError, match="beta_fast must be "):
            from_config(GGUF, flags=words)
        return
    rope = from_config(GGUF, flags=words)
    assert ("with YaRN only" in remarks(rope)) == (kind == "linear")
    if kind == "yarn":
        wanted = 32.0 if fast in (None, -1.0) else fast
        assert (rope.scaling.beta_fast, rope.scaling.beta_slow) == (wanted, 0.25)


def test_vllm_reads_keys_after_dots():
    words = "vllm serve model --hf_overrides.rope_parameters.rope_type linear --hf-overrides.rope_parameters.factor=2 "
    rope = from_config(LLAMA, flags=words + "--hf-overrides.rope_parameters.rope_theta 5e5")
    assert rope.inv_freq == frequencies(500_000.0, divisor=2.0)


def test_vllm_computes_dynamic_ntk_for_one_length():
    dynamic = LLAMA | {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
    assert from_config(dynamic, flags="vllm serve model").scaling is None  # 2 * 8192 / 8192 - (2 - 1) = 1
    block = {"rope_type": "dynamic", "rope_theta": 5e5, "factor": 2.0, "max_trained_positions": 4096}
    rope = from_config(LLAMA, flags=vllm(rope_parameters=block))
    assert rope.inv_freq == frequencies(5e5 * 3.0 ** (64 / 62))  # 2 * 8192 / 4096 - (2 - 1) = 3


def test_vllm_and_sglang_read_other_factors_of_yarn():
    block = YARN | {"rope_theta": 5e5, "attn_factor": 0.5, "attention_factor": 0.75}
    assert from_config(LLAMA, flags=vllm(rope_parameters=block)).attention_factor == 0.75
    assert from_config(LLAMA, flags=sglang(rope_parameters=block)).attention_factor == pytest.approx(0.5 * G4)
    assert from_config(LLAMA, flags=["lmdeploy", *vllm(rope_parameters=block)]).attention_factor == 0.75
    file = LLAMA | {"rope_scaling": {key: value for key, value in block.items() if key != "attention_factor"}}
    with pytest.raises(ValueError, match="programs differ"):
        from_config(file)
    assert from_config(file, flags="vllm serve model").attention_factor == pytest.approx(G4)
    assert from_config(file, flags="sglang serve model").attention_factor == pytest.approx(0.5 * G4)


def test_vllm_multiplies_the_softmax_scale_of_latent_attention():
    config = CONFIGS["deepseek-v3"]
    assert from_config(config, flags="vllm serve model").softmax_scale == from_config(config).softmax_scale != 1.0
    changed = vllm(
        rope_parameters={**config["rope_scaling"], "rope_type": "yarn", "rope_theta": 1e4, "mscale_all_dim": 0}
    )
    rope = from_config(config, flags=changed)
    assert rope.softmax_scale == 1.0  # yarn_get_mscale(factor, 0) = 1
    assert rope.attention_factor == pytest.approx(0.1 * math.log(config["rope_scaling"]["factor"]) + 1.0)


def test_vllm_always_builds_yarn_for_gpt_oss():
    block = {"rope_type": "default", "rope_theta": 150_000.0}
    with pytest.raises(
        ValueError, match="must have beta_fast, beta_slow, factor, original_max_position_embeddings with"
    ):
        from_config(CONFIGS["gpt-oss-20b"], flags=vllm(rope_parameters=block))


def test_vllm_needs_blocks_by_layer_type_for_gemma_3():
    with pytest.raises(ValueError, match="nested by layer type, full_attention, sliding_attention"):
        from_config(CONFIGS["gemma-3-12b-it"], flags=vllm(text_config={"rope_parameters": YARN}))


def test_the_length_of_vllm_chooses_the_list_of_longrope():
    config = CONFIGS["phi-4-mini-instruct"]
    for length, wanted in ((4096, 4096), (4097, 4097), (131_072, 131_072)):
        rope = from_config(config, flags=f"vllm serve model --max-model-len {length}")
        assert rope.inv_freq == from_config(config, seq_len=wanted).inv_freq
    assert from_config(config, flags="vllm serve model").scaling.is_long
    assert not from_config(config, flags="vllm serve model", seq_len=4096).scaling.is_long


def test_older_versions_of_vllm():
    rope = from_config(
        LLAMA, flags="""vllm serve m --rope-scaling '{"type": "linear", "factor": 2}' --rope-theta 1e6"""
    )
    assert rope.inv_freq == frequencies(1e6, divisor=2.0)
    with pytest.raises(ValueError, match="got rope_parameters, which these versions do not read"):
        from_config(LLAMA | {"rope_parameters": YARN}, flags="--rope-theta 1e6")
    assert from_config(FLAT, flags="--rope-theta 1e7") == from_config(FLAT)


# SGLang and lmdeploy


def test_sglang_merges_a_block_and_replaces_that_of_a_part():
    rope = from_config(LLAMA, flags=sglang(rope_parameters=YARN))
    assert rope.base == 500_000.0 and rope.scaling.factor == 4.0
    assert from_config(LLAMA, flags=sglang(rope_theta=1e6)).base == 500_000.0
    by_type = from_config(LLAMA, flags=sglang(rope_scaling={"type": "linear", "factor": 2.0}))
    assert by_type.scaling is None and "not type='linear': the rule is that of the config" in remarks(by_type)
    assert (
        from_config(FLAT, flags=sglang(text_config={"rope_parameters": YARN | {"mrope_section": [8, 12, 12]}})).base
        == 1e4
    )
    dynamic = LLAMA | {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
    assert from_config(dynamic, flags="--context-length 4096").inv_freq == frequencies(5e5 * 3.0 ** (64 / 62))


def test_lmdeploy_merges_at_all_depths():
    flags = ["lmdeploy", "serve", "api_server", "model"]
    assert from_config(LLAMA, flags=flags + vllm(rope_parameters=YARN)).base == 500_000.0
    assert from_config(FLAT, flags=flags + vllm(text_config={"rope_parameters": YARN})).base == 1_000_000.0
    with pytest.raises(ValueError, match="--rope-scaling-factor must be 0 in flags"):
        from_config(LLAMA, flags="lmdeploy serve api_server model --rope-scaling-factor 2")


# llama.cpp


@for_each("row", ROWS["flags of llama.cpp"])
def test_arguments_of_llama_cpp(row):
    file = GGUF | {"rope_factors_long.weight": [], "rope_factors_short.weight": []}  # a file without these tensors
    for config in (GGUF, file, dict(LLAMA, model_type="qwen2", rope_theta=1_000_000.0)):
        rope = from_config(config, flags=f"llama-server -m model.gguf -ngl 99 {row['flags']}")
        assert rope.inv_freq == frequencies(row["base"], divisor=row["divisor"])
        assert ("the embedding would be the same" in remarks(rope)) == ((row["base"], row["divisor"]) == (1e6, 1.0))


def test_yarn_of_llama_cpp():
    words = "--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 2048 --yarn-beta-fast 16 --yarn-attn-factor 3"
    rope = from_config(GGUF, flags=words)
    rule = rope.scaling
    assert (rule.factor, rule.original_max_position_embeddings, rule.beta_fast, rule.beta_slow) == (
        4.0,
        2048,
        16.0,
        1.0,
    )
    assert rope.attention_factor == pytest.approx(G4) and "--yarn-attn-factor 3 changes nothing" in remarks(rope)
    own = from_config(GGUF, flags=words + " --override-kv qwen2.rope.scaling.attn_factor=float:0.5")
    assert own.attention_factor == pytest.approx(0.5 * G4, rel=1e-6)
    assert (
        from_config(GGUF, flags="--rope-scale 4 --yarn-ext-factor 1").scaling.original_max_position_embeddings == 8192
    )
    with pytest.raises(ValueError, match="--yarn-attn-factor of flags must be 1 without YaRN"):
        from_config(GGUF, flags="--yarn-attn-factor 0.5")
    with pytest.raises(ValueError, match=r"--yarn-ext-factor of flags must be 0, 1 or negative; got 0\.5"):
        from_config(GGUF, flags="--yarn-ext-factor 0.5")


@for_each("flags, divisors", [("-c 4096", "short"), ("-c 4097", "long"), ("-c 0", "long")])
def test_the_context_of_llama_cpp_chooses_the_tensor(flags, divisors):
    rope = from_config(LONG, flags=flags)
    wanted = [10_000.0 ** (-2 * j / 8) / each for j, each in enumerate(LONG[f"rope_factors_{divisors}.weight"])]
    assert rope.inv_freq == pytest.approx(wanted, rel=1e-12)
    with pytest.raises(ValueError, match=r"must be 1 for a file with rope_factors_long\.weight; got 2"):
        from_config(LONG, flags=f"{flags} --rope-scale 2")


def test_layers_with_a_window_keep_the_base_of_a_file():
    file = {key.replace("qwen2", "gemma2"): value for key, value in GGUF.items()} | {"general.architecture": "gemma2"}
    with pytest.raises(ValueError, match="for architecture 'gemma2', whose layers with a sliding window keep"):
        from_config(file, flags="--rope-freq-base 2000000")
    assert from_config(file, flags="--rope-freq-base 1000000").base == 1e6


def test_a_config_stands_for_the_file_of_the_converter():
    rope = from_config(LLAMA, flags="--rope-scale 2")
    assert rope.layout == "half" and rope.inv_freq == frequencies(5e5, divisor=2.0)
    words = " ".join(rope.describe().split())
    assert "the GGUF file that llama.cpp's converter writes for the config, with flags of llama.cpp" in words
    assert "'orion' is not known" in remarks(from_config(LLAMA | {"model_type": "orion"}, flags="--rope-scale 2"))


# Whose arguments they are, and bad input.


@for_each("row", ROWS["engines of flags"])
def test_the_engine_follows_from_the_command_or_the_names(row):
    found = command_line(row["flags"])
    assert found.engine == row["engine"]
    assert not any(name not in KNOWN for name, _ in found.flags)


def test_lengths_of_vllm():
    """A small letter is a power of 1,000, a capital one of 1,024."""
    lengths = {
        "1024": 1024,
        "25.6k": 25_600,
        "0.5m": 500_000,
        "1.5g": 1_500_000_000,
        "auto": None,
        "AUTO": None,
        "-1": None,
    }
    lengths |= {f"{n}{letter}": n * 1000**power for n in (1, 12) for power, letter in enumerate("kmg", 1)}
    lengths |= {f"{n}{letter}": n * 1024**power for n in (1, 12) for power, letter in enumerate("KMG", 1)}
    assert {text: command_line(f"--max-model-len {text}").flags[0][1] for text in lengths} == lengths
    for text in ("1.5", "1.5K", "1.", "k", "1kk", "-2", "1e3", "1234567890123", "1.1234567k", ""):
        with pytest.raises(ValueError, match=f"such as 131072 or 128K; got '{text}'"):
            command_line(["--max-model-len", text])


@for_each("original, factor", [(2, 2.0), (4, 4.0), (4096, 4.0)])
def test_the_factor_of_longrope_follows_from_lengths_above_1(original, factor):
    attention = math.sqrt(1 + math.log(factor) / math.log(original))
    more = {"context_length": int(original * factor), "rope.scaling.original_context_length": original}
    more |= {"rope.scaling.attn_factor": attention}
    file = LONG | {f"phi3.{key}": value for key, value in more.items()}
    rope = from_config(file, seq_len=1)
    assert rope.scaling.factor == factor and rope.attention_factor == pytest.approx(attention, rel=1e-9)
    with pytest.raises(ValueError, match="original_max_position_embeddings must be at least 2; got 1"):
        from_config(file | {"phi3.rope.scaling.original_context_length": 1})


def test_known_names_are_not_harmless():
    assert not KNOWN & HARMLESS


NULL = {"rope_parameters": {"full_attention": {}, "sliding_attention": None}}
WRONG = [
    {"flags": "x" * (2**24 + 1), "message": "flags must have at most 16777216 characters; got 16777217"},
    {"flags": vllm(**NULL), "message": "must have an object for each type of layers in flags; got [{}, None]"},
]


@for_each("row", [*ROWS["wrong flags"], *WRONG])
def test_bad_input_is_one_clear_error(row):
    with pytest.raises((TypeError, ValueError), match=re.escape(row["message"])) as caught:
        from_config(LLAMA, flags=row["flags"])
    assert str(caught.value).startswith("from_config: ") and "; got " in str(caught.value)
    assert len(str(caught.value)) < 600


def test_flags_do_not_mix_with_other_formats_and_bugs():
    with pytest.raises(
        ValueError, match=r"config must be a config\.json of transformers with flags of vLLM 0.33; got meta"
    ):
        from_config(GGUF, flags="vllm serve model")
    with pytest.raises(ValueError, match="compat must be None with flags; got 'transformers'"):
        from_config(LLAMA, flags="vllm serve model", compat="transformers")


def test_flags_leave_the_config_as_it_was():
    for config, flags in ((FLAT, vllm(text_config={"rope_parameters": YARN})), (GGUF, "--rope-scale 2")):
        before = json.dumps(config)
        from_config(config, flags=flags)
        assert json.dumps(config) == before


# compare


def test_compare_gives_the_flags_to_the_second_config():
    report = compare(LLAMA, LLAMA, options={"flags": "--rope-scale 2"})
    assert report.causes == ("scaling",) and report.b.startswith("the config with the flags: ")
    assert report.remarks[0].startswith("b was read from the GGUF file")
    same = compare(LLAMA, LLAMA, options={"flags": vllm(rope_theta=1e6)})
    assert same.same and "the embedding would be the same" in " ".join(same.remarks)
    first = compare(LLAMA, from_config(LLAMA), options={"flags": "--rope-scale 2"})
    assert not first.same and first.a.startswith("the config with the flags: ")
    with pytest.raises(TypeError, match="flags of options must be given with a config; got RotaryEmbedding"):
        compare(from_config(LLAMA), from_config(LLAMA), options={"flags": "--rope-scale 2"})
    with_file = compare(
        dict(LLAMA, model_type="qwen2"), GGUF | {"qwen2.rope.freq_base": 5e5}, options={"flags": "-c 4096"}
    )
    assert with_file.same
