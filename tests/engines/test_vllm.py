"""vLLM computes what we write: tables of `get_rope`, overrides of real configs, and real model classes on "meta".

`nox -s tests-vllm` unzips the wheel of vLLM. Nothing is downloaded, and no weights exist.
"""

import copy
import importlib.util
import json
import os
import tempfile
from collections import Counter
from functools import cache
from itertools import product
from types import MappingProxyType, SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from configs import CONFIGS, GOLDENS, ROWS
from engines import OF_LENGTHS, extended_length, overrides_of
from server_cases import overrides

if importlib.util.find_spec("vllm") is None:
    raise pytest.UsageError("vLLM must be unzipped and on PYTHONPATH: run `nox -s tests-vllm`; got none")
os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}

import torch
from vllm.config import DeviceConfig, ModelConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT, get_rope, phi3_long_rope_scaled_rope
from vllm.transformers_utils.config import get_config, get_hf_text_config

from rope_xp import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    MixedNTKScaling,
    NTKScaling,
    RotaryEmbedding,
    Sections,
    YarnScaling,
    from_config,
)
from rope_xp.configs.writers import Options
from rope_xp.configs.writers.vllm import flags_of_types
from rope_xp.provenance import with_provenance

YARN = {"factor": 4.0, "original_max_position_embeddings": 256}
RULES = {
    "none": None,
    "linear": LinearScaling(factor=4.0),
    "ntk": NTKScaling(factor=4.0),
    "mixed": MixedNTKScaling(factor=4.0, mixed_b=0.6),
    "dynamic": DynamicNTKScaling(factor=3.0, max_position_embeddings=256, seq_len=640),
    "llama3": Llama3Scaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=256
    ),
    "yarn": YarnScaling(**YARN),
    "yarn, factor": YarnScaling(**YARN, attention_factor=1.2, beta_fast=16.0),
    "yarn, one": YarnScaling(**YARN, attention_factor=1.0),
    "yarn, not rounded": YarnScaling(**YARN, truncate=False),
    "yarn, mscale": YarnScaling(**YARN, mscale=0.7, mscale_all_dim=0.4),
}
# Angles are products in float32 there, with an error of half a unit at 512 radians, from a frequency off by two units.
TOLERANCE = 4 * 512 * 2.0**-24


def cache_of(flags, rope, config, positions=512):
    """Cosines and sines of `get_rope` for these overrides of a config."""
    keys, block = overrides_of(flags)
    length = keys.get("max_position_embeddings", config.get("max_position_embeddings", 1024))
    is_longrope = isinstance(rope.scaling, LongRopeScaling)
    whole = VllmConfig(device_config=DeviceConfig("cpu"))
    if is_longrope:  # the length chooses one of the lists for all sequences
        whole.model_config = SimpleNamespace(max_model_len=rope.scaling.seq_len or 1)
        _ROPE_DICT.clear()
    lengths = patch.object(phi3_long_rope_scaled_rope, "get_current_vllm_config", lambda: whole)
    with lengths, set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))):
        built = get_rope(rope.head_dim, length, rope.layout == "half", block, torch.float32)
    if is_longrope:
        first = built.original_max_position_embeddings if built.use_long_rope else 0
        return built.long_short_cos_sin_cache[first : first + positions].numpy()
    return built.cos_sin_cache[:positions].numpy()


def ours(rope, positions=512):
    """The same columns, in float64."""
    rows = np.atleast_2d(np.asarray(rope.inv_freq, dtype=np.float64))  # a pair follows one position axis
    angles = np.outer(np.arange(positions), rows.sum(axis=0))
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=-1) * rope.attention_factor


def differs(flags, rope, config=MappingProxyType({})):
    return np.abs(cache_of(flags, rope, config) - ours(rope)).max()


@pytest.mark.parametrize("width", [64, 16])
@pytest.mark.parametrize("name", RULES)
def test_tables_of_rules(name, width):
    rope = RotaryEmbedding(head_dim=64, layout="half", base=5e5, rotary_dim=width, scaling=RULES[name])
    assert differs(rope.to_config("vllm"), rope) < TOLERANCE


@pytest.mark.parametrize("name", ["linear", "dynamic", "llama3", "yarn, factor"])
def test_planted_mistakes_are_seen(name):
    rope = RotaryEmbedding(head_dim=64, layout="half", base=5e5, scaling=RULES[name])
    flags = rope.to_config("vllm")
    for key, value in {"rope_theta": 5.05e5, "rope_type": "default"}.items():
        wrong = copy.deepcopy(json.loads(flags[1]))
        wrong["rope_parameters"][key] = value
        assert differs([flags[0], json.dumps(wrong)], rope) > 100 * TOLERANCE
    keys = json.loads(flags[1])
    if name == "dynamic":  # without the key nothing is scaled
        del keys["rope_parameters"]["max_trained_positions"]
        assert differs([flags[0], json.dumps(keys)], rope) > 100 * TOLERANCE


def test_mistral_large_3_needs_mscale_all_dim():
    """Its latent attention computes the attention factor from two keys; ours are read by both of its branches."""
    rope = RotaryEmbedding(head_dim=64, layout="half", base=1e4, scaling=RULES["yarn, one"])
    block = json.loads(rope.to_config("vllm")[1])["rope_parameters"]
    latent = {"rope_parameters": block | {"rope_type": "deepseek_llama_scaling"}}
    assert differs(["", json.dumps(latent)], rope) < TOLERANCE
    del block["mscale"], block["mscale_all_dim"]
    latent = {"rope_parameters": block | {"rope_type": "deepseek_llama_scaling"}}
    assert differs(["", json.dumps(latent)], rope) > 0.1  # 0.1 * log(4)


@pytest.mark.filterwarnings("ignore:.* is not known:UserWarning")
def test_tables_of_goldens():
    """Every golden that is written."""
    count = Counter()
    for golden in GOLDENS:
        rope = golden["rotated"] and from_config(CONFIGS[golden["config"]], **golden["kwargs"])
        if not rope:
            continue
        try:
            keys, block = overrides_of(rope.to_config("vllm"))
        except ValueError:
            count["refused"] += 1
            continue
        if rope.softmax_scale != 1.0:  # as the classes of latent attention do
            block["rope_type"] = "deepseek_yarn"
        error = differs(["", json.dumps(keys)], rope, CONFIGS[golden["config"]])
        count["equal" if error < 2 * TOLERANCE else "differs"] += 1
    print(dict(count))
    assert count["equal"] > 150 and not count["differs"]


@pytest.mark.parametrize("rule", [LinearScaling(factor=4.0), RULES["llama3"]], ids=["linear", "llama3"])
def test_sections_are_lost_with_other_rules_and_refused(rule):
    sections = Sections(sizes=(8, 12, 12), order="chunked")
    rope = RotaryEmbedding(head_dim=64, layout="half", base=1e4, sections=sections, scaling=rule)
    with pytest.raises(ValueError, match=r"must read mrope_section with rope_type"):
        rope.to_config("vllm")


def applied(folder, config, overrides):
    """The text config after overrides, by the two functions that `ModelConfig` calls for numbers and for objects.

    `ModelConfig` itself needs the files of an image processor.
    """
    (folder / "config.json").write_text(json.dumps(config))
    objects = {key: value for key, value in overrides.items() if isinstance(value, dict)}
    numbers = {key: value for key, value in overrides.items() if key not in objects}
    loaded = get_config(str(folder), False, hf_overrides_kw=numbers)
    object.__new__(ModelConfig)._apply_dict_overrides(loaded, objects)
    return get_hf_text_config(loaded)


COMPOSITES = ["qwen2-vl-7b-instruct", "qwen2.5-vl-7b-instruct", "glm-4.1v-9b-thinking", "kimi-k2.5", "deepseek-ocr"]


@pytest.mark.filterwarnings("ignore:.* is not known:UserWarning")
@pytest.mark.parametrize("name", COMPOSITES)
def test_overrides_reach_the_text_config(tmp_path, name):
    config = CONFIGS[name]
    base = from_config(config).base
    overrides = json.loads(changed(config, base=3 * base).to_config("vllm")[1])
    assert applied(tmp_path, config, overrides).rope_parameters["rope_theta"] == 3 * base
    outside = applied(tmp_path, config, overrides["text_config"]).rope_parameters  # flat files, too
    assert outside["rope_theta"] == base


@pytest.mark.parametrize("name", ["gemma-3-12b-it", "gemma-3-1b-it", "olmo-3-7b"])
def test_types_of_layers_have_a_block_each(tmp_path, name):
    config = CONFIGS[name]
    ropes = {kind: from_config(config, layer_type=kind) for kind in ("sliding_attention", "full_attention")}
    overrides = json.loads(flags_of_types(ropes, Options())[1])
    blocks = applied(tmp_path, config, overrides).rope_parameters
    assert {*blocks} == {*ropes}
    for kind, rope in ropes.items():
        assert differs(["", json.dumps({"rope_parameters": blocks[kind]})], rope) < TOLERANCE


TINY = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 128,
    "max_position_embeddings": 1024,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "rope_theta": 1e6,
}
MODELS = {row["model_type"]: TINY | row for row in ROWS["tiny models of vLLM"]}


def changed(config, layer_type=None, **options):
    """The embedding of a config with other values, which is written for the config's model type."""
    rope = from_config(config, layer_type=layer_type)
    return with_provenance(rope.replace(**options), rope._provenance)


@cache
def groups():
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))):
        init_distributed_environment(1, 0, f"file://{tempfile.mkdtemp()}/store", 0, "gloo")
        initialize_model_parallel()


def rotary_modules(folder, config, flags):
    """The rotary modules of the real class for a config and arguments, without weights."""
    from vllm.model_executor.model_loader.utils import initialize_model

    overrides = json.loads(flags[flags.index("--hf-overrides") + 1])
    lengths = {"max_model_len": int(flags[1])} if flags[0] == "--max-model-len" else {}
    (folder / "config.json").write_text(json.dumps(config))
    settings = ModelConfig(
        model=str(folder),
        tokenizer=str(folder),
        skip_tokenizer_init=True,
        dtype="float32",
        hf_overrides=overrides,
        **lengths,
    )
    groups()
    _ROPE_DICT.clear()  # Ernie's class changes the layout of the module that all classes with the same keys share
    whole = VllmConfig(model_config=settings, device_config=DeviceConfig("cpu"))
    with set_current_vllm_config(whole), torch.device("meta"):
        built = initialize_model(vllm_config=whole)
    return [each for name, each in built.named_modules() if name.rpartition(".")[2] == "rotary_emb"]


def table_of(module, rope):
    """Cosines and sines of a rotary module, by its own method, which now runs on the CPU."""
    if hasattr(module, "use_long_rope"):
        chosen = "long" if module.use_long_rope else "short"
        factors, scale = getattr(module, f"{chosen}_factor"), getattr(module, f"{chosen}_mscale")
        return module._compute_cos_sin_cache(512, factors, scale).numpy()
    if hasattr(module, "rope_init_fn") or hasattr(module, "attention_scaling"):  # vLLM runs transformers' class
        again = type(module)(config=module.config)
        angles = torch.outer(torch.arange(512.0), again.inv_freq)
        return torch.cat([angles.cos(), angles.sin()], -1).numpy() * again.attention_scaling
    assert module.is_neox_style == (rope.layout == "half") and module.rotary_dim == rope.rotary_dim
    return module._compute_cos_sin_cache()[:512].numpy()


def assert_rotate(modules, rope):
    assert modules
    for each in modules:
        found, wanted = table_of(each, rope), ours(rope)
        assert found.shape == wanted.shape and np.abs(found - wanted).max() < TOLERANCE


OF_ALL = ("none", "linear", "yarn, factor", "yarn, mscale")
OF_MODELS = [*product(sorted(MODELS.keys() - {"gemma3_text", "gpt_oss"}), OF_ALL)]
OF_MODELS += [("gpt_oss", "yarn, not rounded")]  # whose class reads seven keys of YaRN, and fails without them


@pytest.mark.parametrize("model, rule", OF_MODELS)
def test_model_classes_rotate_as_we_do(tmp_path, model, rule):
    """The real class, without weights: the tables of each of its rotary modules. What is refused is named."""
    config = MODELS[model]
    rope = changed(config, base=3e5, scaling=RULES[rule])
    refused = {
        ("linear", True): "must read rope_type 'linear'",
        ("yarn, mscale", False): "softmax_scale must be 1 in vllm .* without a class that scales it",
    }
    if message := refused.get((rule, model.startswith("deepseek"))):
        with pytest.raises(ValueError, match=message):
            rope.to_config("vllm")
        return
    assert_rotate(rotary_modules(tmp_path, config, rope.to_config("vllm")), rope)


WITH_FLAGS = MODELS | {row["model_type"]: TINY | row for row in ROWS["tiny models of vLLM, with flags alone"]}


@pytest.mark.parametrize("name", overrides(16))
@pytest.mark.parametrize("model", sorted(WITH_FLAGS.keys() - {"gemma3_text"}))
def test_flags_are_read_as_model_classes_compute_them(tmp_path, model, name):
    """What is read of flags is what each rotary module computes. With flags that are refused, the class may fail."""
    config, flags = WITH_FLAGS[model], ["--hf-overrides", json.dumps(overrides(16)[name])]
    is_refused = model in ROWS["refused flags of vLLM"].get(name, ())
    try:
        rope = from_config(config, flags=["vllm", *flags])
    except ValueError as error:
        assert is_refused, error
        return
    assert not is_refused
    assert_rotate(rotary_modules(tmp_path, config, flags), rope)


def test_gemma_3_rotates_each_type_of_layers(tmp_path):
    config = MODELS["gemma3_text"]
    bases = {kind: 2 * from_config(config, layer_type=kind).base for kind in config["layer_types"]}
    ropes = {kind: changed(config, kind, base=base) for kind, base in bases.items()}
    found = rotary_modules(tmp_path, config, flags_of_types(ropes, Options()))
    assert len(found) == 2
    for module, rope in zip(found, ropes.values(), strict=True):
        assert_rotate([module], rope)


@pytest.mark.parametrize("length", [128, 1024])
@pytest.mark.parametrize("factor", [None, 1.3])
def test_longrope_of_phi3(tmp_path, length, factor):
    """The lists follow from `--max-model-len`, for all sequences; the attention factor from the config's length."""
    lists = {"short_factor": [1.0 + 0.05 * j for j in range(16)], "long_factor": [1.0 + 0.5 * j for j in range(16)]}
    rule = LongRopeScaling(
        **lists, original_max_position_embeddings=256, factor=4.0, attention_factor=factor, seq_len=length
    )
    config = MODELS["phi3"] | {"original_max_position_embeddings": 256}
    rope = changed(config, base=3e5, scaling=rule)
    found = rotary_modules(tmp_path, config, ["--max-model-len", str(length), *rope.to_config("vllm")])
    assert_rotate(found, rope)
    assert all(each.use_long_rope == (length > 256) for each in found)


def test_longrope_of_phi3_without_a_length(tmp_path):
    """vLLM then serves the original length, by the short list."""
    lists = {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
    config = MODELS["phi3"] | {"rope_scaling": {"type": "longrope", **lists}, "original_max_position_embeddings": 256}
    for each in rotary_modules(tmp_path, config, ["--hf-overrides", "{}"]):
        rope = from_config(config, flags="vllm serve x")
        assert (each.use_long_rope, rope.scaling.is_long, rope.scaling.seq_len) == (False, False, 256)


def test_what_the_reader_of_flags_says(tmp_path):
    """A block of GLM-4 without a share rotates half of the head, and YaRN replaces LongRoPE of Phi-3."""
    flags = ["--hf-overrides", json.dumps({"rope_parameters": {"rope_type": "yarn", "rope_theta": 3e5, **YARN}})]
    lists = {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
    phi3 = {"rope_scaling": {"type": "longrope", **lists}, "original_max_position_embeddings": 256}
    for config in (MODELS["glm4"], MODELS["phi3"] | phi3):
        rope = from_config(config, flags=["vllm", *flags])
        assert_rotate(rotary_modules(tmp_path, config, flags), rope)


FRACTION = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}


@pytest.mark.parametrize("key", FRACTION)
@pytest.mark.parametrize(
    "model",
    ["llama Llama", "glm Glm", "granite Granite", "gpt_neox GPTNeoX", "phi Phi", "olmo2 Olmo2", "stablelm StableLm"],
)
def test_the_keys_that_a_block_of_flags_must_have(tmp_path, model, key):
    """The reader refuses a block without them, and vLLM fails; it names others, and vLLM builds the model."""
    name, architecture = model.split()
    config = TINY | {"model_type": name, "architectures": [f"{architecture}ForCausalLM"], "partial_rotary_factor": 0.5}
    block = {other: value for other, value in FRACTION.items() if other != key}
    flags = ["--hf-overrides", json.dumps({"rope_parameters": block})]
    read, built = ValueError, KeyError
    try:
        from_config(config, flags=["vllm", *flags])
        read = None
    except ValueError as error:
        assert f"must have {key} with flags of vLLM" in str(error)
    try:
        rotary_modules(tmp_path, config, flags)
        built = None
    except KeyError as error:
        assert error.args == (key,)
    assert (read is None) == (built is None)


@pytest.mark.parametrize("length", [100, 600, 1024])
def test_dynamic_ntk_of_transformers_follows_the_length(tmp_path, length):
    """vLLM runs Phi with the code of transformers, which computes the frequencies of each length."""
    config = TINY | {"model_type": "phi", "architectures": ["PhiForCausalLM"], "partial_rotary_factor": 0.5}
    del config["head_dim"]
    rope = changed(config, scaling=DynamicNTKScaling(factor=4.0, max_position_embeddings=256, seq_len=length))
    flags = ["--max-model-len", "1024", *rope.to_config("vllm")]
    module = rotary_modules(tmp_path, config, flags)[0]
    again = type(module)(config=module.config)
    again(torch.zeros(1, 1), torch.arange(length)[None])
    assert again.inv_freq.numpy() == pytest.approx(np.asarray(rope.inv_freq), rel=1e-6)


@pytest.mark.parametrize("length", [512, 1024, 1025, 2048, 2049, 4096, 4097])
@pytest.mark.parametrize("overrides", OF_LENGTHS, ids=str)
def test_the_lengths_that_are_refused_have_a_remark(overrides, length, tmp_path):
    config = MODELS["llama"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    flags = ["vllm", "--max-model-len", str(length), "--hf-overrides", json.dumps(overrides)]
    remarks = from_config(config, flags=flags)._provenance.remarks
    files = {"model": str(tmp_path), "tokenizer": str(tmp_path), "skip_tokenizer_init": True}
    reason = ""
    try:
        ModelConfig(**files, dtype="float32", hf_overrides=overrides, max_model_len=length)
    except ValueError as error:
        reason = str(error)
    assert ("is greater than the derived max_model_len" in reason) == bool(reason)
    assert any("stops with an error" in each for each in remarks) == bool(reason)


@pytest.mark.parametrize("overrides", OF_LENGTHS, ids=str)
def test_the_length_that_is_served_without_one_in_the_flags(overrides, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MODELS["llama"]))
    files = {"model": str(tmp_path), "tokenizer": str(tmp_path), "skip_tokenizer_init": True}
    served = ModelConfig(**files, dtype="float32", hf_overrides=overrides).max_model_len
    rope = from_config(MODELS["llama"], flags=["vllm", "--hf-overrides", json.dumps(overrides)])
    said = [each for each in rope._provenance.remarks if " serves " in each]
    assert bool(said) == (extended_length(overrides) > served)
    assert all(f" serves {served} tokens" in each for each in said)
