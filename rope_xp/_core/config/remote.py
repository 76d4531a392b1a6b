"""Configs in a spelling of their own, mostly of families whose code is in their checkpoints, in the known spelling.

Each function takes a copy of a config, and the length of the sequence, and gives the config with the keys that the
reader knows. Facts are of the code in the checkpoints, and of vLLM and SGLang.
"""

from collections.abc import Callable, Mapping
from math import ceil, log
from typing import Any

from rope_xp._core import checks
from rope_xp._core.config.keys import WHO, Keys

# Families whose attention is not rotated.
UNROTATED = ("glm5_next_text", "inkling2_text", "jamba", "kimi_linear", "nemotron_h")
# Families of which an embedding is asked by mistake: what their attention has in its place.
NOT_ROTARY = {name: "biases that grow with the distance (ALiBi)" for name in ("bloom", "mpt")}


def in_known_spelling(config: Mapping[str, Any], model_type: str, seq_len: int | None) -> Mapping[str, Any]:
    """The config as the reader knows it."""
    spelling = SPELLINGS.get(model_type)
    return config if spelling is None else spelling(dict(config), seq_len)


def _must_be(config: dict[str, Any], key: str, wanted: Any) -> None:
    """A key that is read here, and has one value that the family knows."""
    value = config.pop(key, None)
    if value is not None and value != wanted:
        raise ValueError(f"{WHO}: {key} must be {wanted!r} in model_type {config.get('model_type')!r}; got {value!r}")


def _set(config: dict[str, Any], key: str, value: Any, source: str) -> None:
    """A key of the known spelling, which must not be there with another value."""
    if config.get(key) not in (None, value):
        raise ValueError(f"{WHO}: {key} must be {value!r}, as {source} says; got {config[key]!r}")
    config[key] = value


def _chatglm(config: dict[str, Any], seq_len: int | None) -> dict[str, Any]:
    """`rope_ratio` multiplies the base; ChatGLM2, which only its name tells apart, divides positions by it."""
    _must_be(config, "position_encoding_2d", False)
    config.pop("original_rope", None)  # both values compute the same
    ratio = config.pop("rope_ratio", None)
    if ratio is not None:
        ratio = checks.positive(WHO, "rope_ratio", ratio)
        if "chatglm2" in str(config.get("_name_or_path")).lower():
            _set(config, "rope_scaling", {"rope_type": "linear", "factor": ratio}, "rope_ratio")
        else:
            _set(config, "rope_theta", 10_000.0 * ratio, "rope_ratio")
    return config


def _qwen(config: dict[str, Any], seq_len: int | None) -> dict[str, Any]:
    """Beyond `seq_length` the base grows in steps: by 3, 7, 15, ... for sequences up to 2, 4, 8, ... times as long."""
    _must_be(config, "pos_emb", "rotary")
    given = config.pop("use_dynamic_ntk", None)
    if (given is None or checks.boolean(WHO, "use_dynamic_ntk", given)) and seq_len is not None:
        length = Keys("the config of model_type 'qwen'", config).count("seq_length")
        if not length:
            raise ValueError(f"{WHO}: seq_length must be given for use_dynamic_ntk with seq_len; got {length}")
        if seq_len > length:
            alpha = 2 ** ceil(log(seq_len / length, 2) + 1) - 1
            _set(config, "rope_scaling", {"rope_type": "dynamic", "alpha": alpha}, "use_dynamic_ntk")
    return config


def _baichuan(config: dict[str, Any], seq_len: int | None) -> dict[str, Any]:
    """The two sizes differ: 7B is rotated, 13B has ALiBi."""
    size = config.get("hidden_size")
    if config.get("alibi") is None:
        if size not in (4096, 5120):
            raise ValueError(
                f"{WHO}: hidden_size must be 4096 (7B, rotated) or 5120 (13B, not rotated), or alibi be given, in "
                f"model_type 'baichuan'; got {size!r}"
            )
        config["alibi"] = size == 5120
    return config


def _internlm(config: dict[str, Any], seq_len: int | None) -> dict[str, Any]:
    """The block is named `rotary`; without one, dynamic NTK."""
    block = Keys("config", config).within("rotary")
    config.pop("rotary", None)
    kind = block.get("type")
    if kind not in (None, "dynamic", "origin"):
        raise ValueError(f"{WHO}: type of rotary must be 'dynamic' or 'origin'; got {kind!r}")
    base, factor = block.get("base"), block.get("scaling_factor")
    block.finish()
    if base is not None:
        _set(config, "rope_theta", base, "rotary")
    if kind != "origin":
        _set(config, "rope_scaling", {"rope_type": "dynamic", "factor": 1.0 if factor is None else factor}, "rotary")
        config.setdefault("max_position_embeddings", 2048)
    return config


def _ernie(config: dict[str, Any], seq_len: int | None) -> dict[str, Any]:
    """`freq_allocation` is the number of pairs of time, those of height and width share the others."""
    _must_be(config, "rope_3d", True)
    keys = Keys("the config of model_type 'ernie4_5_moe_vl'", config)
    time, width = keys.count("freq_allocation"), keys.count("head_dim")
    config.pop("freq_allocation", None)
    if time is not None:
        width = keys.count("hidden_size", 0) // max(keys.count("num_attention_heads", 1), 1) if width is None else width
        space = (width // 2 - time) // 2
        block = dict(keys.within("rope_scaling").mapping)
        _set(block, "mrope_section", [space, space, time], "freq_allocation")
        config["rope_scaling"] = block
    return config


def _grok(config: dict[str, Any], seq_len: int | None) -> dict[str, Any]:
    """Grok-2 says that it is a GIT; the share of a head is a switch, and the block lies flat in the config."""
    if config.get("model_type") == "git" and "Grok1ForCausalLM" not in (config.get("architectures") or ()):
        raise ValueError(f"{WHO}: architectures must have 'Grok1ForCausalLM' in model_type 'git'; got none of a Grok")
    half = config.pop("rope_rotate_half_dims", None)
    if half is not None and checks.boolean(WHO, "rope_rotate_half_dims", half):
        _set(config, "partial_rotary_factor", 0.5, "rope_rotate_half_dims")
    kind = config.pop("rope_type", None)
    if kind in (None, "original"):
        for key in GROK_KEYS:
            config.pop(key, None)
        return config
    block = {"rope_type": kind, "attention_factor": 1.0}  # the tables of SGLang have no factor
    _must_be(config, "extrapolation_factor", 1.0)
    config.pop("attn_factor", None)
    for key, known in GROK_KEYS.items():
        if config.get(key) is not None:
            block[known] = config.pop(key)
    _set(config, "rope_scaling", block, "rope_type")
    return config


GROK_KEYS = {
    "scaling_factor": "factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
}


def _mimo(config: dict[str, Any], seq_len: int | None) -> dict[str, Any]:
    """`swa_rope_theta` is the base of layers with a sliding window."""
    base = config.pop("swa_rope_theta", None)
    if base is None:
        return config
    blocks = dict(Keys("config", config).within("rope_parameters").mapping)
    if not blocks:
        block = dict(Keys("config", config).within("rope_scaling").mapping)
        config.pop("rope_scaling", None)
        full = config.pop("rope_theta", None)
        blocks = {"full_attention": {**block, "rope_theta": 5e6 if full is None else full}, "sliding_attention": block}
    sliding = dict(Keys("rope_parameters", blocks).within("sliding_attention").mapping)
    _set(sliding, "rope_theta", base, "swa_rope_theta")
    config["rope_parameters"] = {**blocks, "sliding_attention": sliding}
    return config


def _step(config: dict[str, Any], seq_len: int | None) -> dict[str, Any]:
    """`yarn_only_types` lists the types of layers that a scaling rule is for."""
    _must_be(config, "yarn_only_types", ["full_attention"])
    return config


SPELLINGS: dict[str, Callable[[dict[str, Any], int | None], dict[str, Any]]] = {
    "baichuan": _baichuan,
    "chatglm": _chatglm,
    "ernie4_5_moe_vl": _ernie,
    "git": _grok,
    "grok-1": _grok,
    "grok1": _grok,
    "internlm": _internlm,
    "mimo_v2_flash": _mimo,
    "qwen": _qwen,
    "step3p5": _step,
}
