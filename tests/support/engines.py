"""What engines compute from keys and arguments, by the formulas of their sources.

Each function returns an angle for each pair, the factor of the tables, and the factor of the softmax scale.
"""

import json
import re
import struct
from math import ceil, floor, inf, log, pi, sqrt

import formulas
from formulas import geometric

# Overrides of a config that states 1,024 tokens, for the longest context that an engine accepts.
BLOCK = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
YARN_BLOCK = {**BLOCK, "rope_type": "yarn", "original_max_position_embeddings": 1024}
LLAMA3_BLOCK = {**YARN_BLOCK, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
OF_LENGTHS = [
    {},
    {"max_position_embeddings": 2048},
    {"model_max_length": 2048},
    {"rope_parameters": BLOCK},
    {"rope_parameters": {**BLOCK, "rope_type": "dynamic"}},
    {"rope_parameters": YARN_BLOCK},
    {"rope_parameters": YARN_BLOCK, "max_position_embeddings": 4096},
    {"rope_parameters": YARN_BLOCK, "model_max_length": 2048},
    {"rope_parameters": LLAMA3_BLOCK},
    {"rope_parameters": BLOCK, "max_position_embeddings": 512},
]


def f32(number):
    return struct.unpack("f", struct.pack("f", number))[0]


def clamped(number):
    return min(max(number, 0.0), 1.0)


def g(factor, mscale=1.0):
    return 1.0 if factor <= 1 else 0.1 * mscale * log(factor) + 1.0


def turns_to_pair(turns, width, base, length):
    return width * log(length / (turns * 2 * pi)) / (2 * log(base))


# llama.cpp: axes of positions by mode, as in `ggml_mrope_cache_init`.
MODES = {
    "qwen2vl": "mrope",
    "glm4": "mrope",
    **dict.fromkeys(("qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"), "imrope"),
}
LATENT = ("deepseek2", "deepseek32", "mistral4")


def axis_of(pair, sections, mode):
    """Time, height, width or the fourth position."""
    sector = pair % sum(sections)
    if mode == "imrope":
        return sector % 3 if sector < 3 * sections[sector % 3] else 3
    ends = [sum(sections[: count + 1]) for count in range(3)]
    return next((axis for axis, end in enumerate(ends) if sector < end), 3)


def ggml(metadata, positions, length=0):
    """`rope_yarn` and `ggml_rope_yarn_corr_dims` of ggml, with the numbers that `llama_context` gives them."""
    arch = metadata["general.architecture"]
    own = {key.removeprefix(f"{arch}."): value for key, value in metadata.items()}
    number = {key: f32(value) for key, value in own.items() if isinstance(value, float)}
    width, base = own["rope.dimension_count"], number.get("rope.freq_base", 1e4)
    kind, original = own.get("rope.scaling.type", "linear"), own.get("rope.scaling.original_context_length", inf)
    factor = 1.0 if kind in ("none", "longrope") else number.get("rope.scaling.factor", 1.0)
    freq_scale, ext_factor = 1.0 / factor, float(kind == "yarn")
    long_or_short = "rope_factors_long.weight" if length > original else "rope_factors_short.weight"
    freq_factors = [f32(each) for each in own.get("rope_freqs.weight") or own.get(long_or_short) or [1.0] * width]
    sections, mode = own.get("rope.dimension_sections"), MODES.get(arch, "text")
    attn_factor, multiplier = 1.0, number.get("rope.scaling.yarn_log_multiplier", 0.0)
    if ext_factor:
        multiplier = multiplier / f32(0.1) if arch in LATENT else multiplier
        mscale = multiplier if arch == "deepseek2" and abs(multiplier - 1) > 1e-6 else 1.0
        attn_factor = g(factor, mscale) / g(factor, multiplier) if multiplier else g(factor)
        attn_factor /= 1 + 0.1 * log(factor)
    attn_factor *= number.get("rope.scaling.attn_factor", 1.0)
    softmax = (attn_factor * (1 + 0.1 * log(factor)) * (1 + 0.1 * multiplier * log(factor))) ** 2
    softmax = softmax if arch in LATENT and ext_factor else 1.0

    low, high = 0.0, 0.0
    if ext_factor:
        betas = (number.get(f"rope.scaling.yarn_beta_{name}", default) for name, default in (("fast", 32), ("slow", 1)))
        low, high = (turns_to_pair(beta, width, base, original) for beta in betas)
        low, high = max(0, floor(low)), min(width - 1, ceil(high))
    angles = []
    for j, w in enumerate(geometric(base, width)):
        axis = axis_of(j, sections, mode) if mode != "text" and sections else 0
        extrapolated = positions[axis] * w / freq_factors[j]
        mix = (1 - clamped((j - low) / max(0.001, high - low))) * ext_factor
        angles.append(freq_scale * extrapolated * (1 - mix) + extrapolated * mix)
    magnitude = attn_factor * (1 + 0.1 * log(1 / freq_scale)) if ext_factor else attn_factor
    return angles, magnitude, softmax


FLAGS = {
    "--rope-freq-base": ("rope.freq_base", float),
    "--rope-scaling": ("rope.scaling.type", str),
    "--rope-scale": ("rope.scaling.factor", float),
    "--yarn-orig-ctx": ("rope.scaling.original_context_length", int),
    "--yarn-beta-fast": ("rope.scaling.yarn_beta_fast", float),
    "--yarn-beta-slow": ("rope.scaling.yarn_beta_slow", float),
    "--yarn-ext-factor": ("rope.scaling.yarn_ext_factor", float),
}


def with_flags(arch, file, arguments):
    """The metadata of a file after llama.cpp's arguments."""
    metadata = dict(file)
    for flag, text in zip(arguments[::2], arguments[1::2], strict=True):
        if flag == "--override-kv":
            key, kind, value = re.fullmatch(r"(.*?)=(float|int|str):(.*)", text).groups()
            metadata[key] = {"float": float, "int": int, "str": str}[kind](value)
        else:
            key, kind = FLAGS[flag]
            metadata[f"{arch}.{key}"] = kind(text)
    return metadata


ORIGINAL = "original_max_position_embeddings"


def overrides_of(arguments):
    """The keys of the part with a block, and the block, of the argument with overrides."""
    keys = json.loads(arguments[1])
    while "rope_parameters" not in keys:
        (keys,) = keys.values()
    return keys, keys["rope_parameters"]


def scaled(rule, block, base, width, *, alpha=1.0, is_long=False):
    """The frequencies of the rules that engines have in common, by the keys of a block; `alpha` raises the base."""
    factor, original = block.get("factor"), block.get(ORIGINAL)
    if rule == "linear":
        return formulas.linear(base, width, factor)
    if rule == "dynamic":
        return formulas.ntk(base, width, alpha)
    if rule == "llama3":
        return formulas.llama3(base, width, factor, block["low_freq_factor"], block["high_freq_factor"], original)
    if rule == "yarn":
        options = {"fast": block["beta_fast"], "slow": block["beta_slow"], "truncate": block.get("truncate", True)}
        return formulas.yarn(base, width, factor, original, **options)
    if rule == "longrope":
        return formulas.longrope(base, width, block["long_factor" if is_long else "short_factor"])
    if rule == "proportional":
        return formulas.proportional(base, width, block["partial_rotary_factor"], factor)
    assert rule == "default", rule
    return geometric(base, width)


def vllm(arguments, width, is_latent, length):
    """`get_rope` of vLLM. For latent attention, the model replaces the rule "yarn" by "deepseek_yarn"."""
    assert arguments[0] == "--hf-overrides"
    keys, block = overrides_of(arguments)
    base, rule, factor = block["rope_theta"], block["rope_type"], block.get("factor")
    alpha, magnitude, softmax = 1.0, 1.0, 1.0
    is_long = length > block.get(ORIGINAL, inf)
    assert rule != "proportional" or factor == 1.0  # which it does not read
    if rule == "ntk":
        return formulas.mixed_ntk(base, width, factor, block["mixed_b"]), 1.0, 1.0
    if rule == "dynamic":
        trained = block.get("max_trained_positions")  # older versions: for factor * max_position_embeddings tokens
        times = factor if trained is None else keys["max_position_embeddings"] / trained
        alpha = block.get("alpha") or factor * times - (factor - 1)
    elif rule == "yarn" and is_latent:
        magnitude = g(factor, block["mscale"]) / g(factor, block["mscale_all_dim"])
        softmax = g(factor, block["mscale_all_dim"]) ** 2
    elif rule == "yarn":
        magnitude = block.get("attn_factor", 1.0) * (g(factor) if block.get("apply_yarn_scaling", True) else 1.0)
        if block.get("mscale") and block.get("mscale_all_dim"):
            magnitude = g(factor, block["mscale"]) / g(factor, block["mscale_all_dim"])
        magnitude = block.get("attention_factor", magnitude)
    elif rule == "longrope":
        magnitude = sqrt(1 + log(factor) / log(block[ORIGINAL])) if factor else 1.0
        magnitude = block.get("long_mscale" if is_long else "short_mscale", magnitude)
    return scaled(rule, block, base, width, alpha=alpha, is_long=is_long), magnitude, softmax


def vllm_length(arguments, stated):
    """`_get_and_verify_max_len` of vLLM: the longest `--max-model-len` for a config that states a length."""
    keys = {"max_position_embeddings": stated} | json.loads(arguments[arguments.index("--hf-overrides") + 1])
    block, length = keys["rope_parameters"], keys["max_position_embeddings"]
    if block["rope_type"] in ("su", "longrope", "llama3", "yarn"):
        return length
    return length * block.get("factor", 1.0)


def extended_length(overrides):
    """The length that YaRN of `OF_LENGTHS` is for."""
    block = overrides.get("rope_parameters", {})
    return block["factor"] * block[ORIGINAL] if block.get("rope_type") == "yarn" else 0


def served(arguments, head_dim, is_latent, length):
    """`get_rope` of SGLang, by its argument; else `build_rotary_embedding_from_config` of lmdeploy."""
    keys, block = overrides_of(arguments)
    is_sglang = arguments[0] == "--json-model-override-args"
    assert is_sglang or arguments[0] == "--hf-overrides"
    base, rule, factor = (keys | block)["rope_theta"], block["rope_type"], block.get("factor")
    alpha, magnitude, softmax = 1.0, 1.0, 1.0
    assert rule != "proportional"
    is_long = length > block.get(ORIGINAL, inf)
    if rule == "dynamic" and is_sglang:  # for factor * max_position_embeddings tokens, or as the block says
        alpha = block.get("alpha") or factor * factor - (factor - 1)
    elif rule == "dynamic":
        trained = keys["max_position_embeddings"]
        alpha = factor * max(length, trained) / trained - (factor - 1)
    elif rule == "yarn":
        all_dims = block.get("mscale_all_dim", 0.0)
        softmax = g(factor, all_dims) ** 2 if is_latent else 1.0
        if not is_sglang:
            magnitude = block["attention_factor"]
        elif is_latent:
            magnitude = g(factor, block.get("mscale", 1.0)) / g(factor, all_dims)
        else:
            magnitude = block["attn_factor"] * g(factor)
    elif rule == "longrope" and is_sglang:
        magnitude = block["long_mscale" if is_long else "short_mscale"]
    elif rule == "longrope":
        ratio = keys["max_position_embeddings"] / block[ORIGINAL]
        magnitude = sqrt(1 + log(ratio) / log(block[ORIGINAL])) if ratio > 1 else 1.0
    width = int(head_dim * (keys | block).get("partial_rotary_factor", 1.0))
    return scaled(rule, block, base, width, alpha=alpha, is_long=is_long), magnitude, softmax


def mlx(keys, length):
    """`initialize_rope` of mlx-lm, which rounds the ends of YaRN's ramp, and has only the long factors."""
    base, block = keys["rope_theta"], keys.get("rope_scaling", {"type": "default"}) | {"truncate": True}
    rule, factor, alpha, magnitude, softmax = block["type"], block.get("factor"), *[1.0] * 3
    if rule == "dynamic":
        trained = keys["max_position_embeddings"]
        alpha = factor * max(length, trained) / trained - (factor - 1)
    elif rule == "yarn":
        all_dims = block.get("mscale_all_dim", 0)
        magnitude, softmax = g(factor, block.get("mscale", 1)) / g(factor, all_dims), g(factor, all_dims) ** 2
    elif rule == "longrope":
        magnitude = sqrt(1 + log(keys["max_position_embeddings"] / block[ORIGINAL]) / log(block[ORIGINAL]))
    width = int(keys["head_dim"] * keys.get("partial_rotary_factor", 1.0))
    rule = "default" if rule == "mrope" else rule
    return scaled(rule, block, base, width, alpha=alpha, is_long=True), magnitude, softmax


def megatron(arguments, _width):
    """`RotaryEmbedding`, `YarnRotaryEmbedding` and latent attention of Megatron-LM."""
    is_latent = arguments.get("multi_latent_attention", False)
    width = arguments["qk_pos_emb_head_dim" if is_latent else "kv_channels"]
    kind = arguments["rope_type" if is_latent else "position_embedding_type"]
    base = arguments["rotary_base"]
    if kind == "yarn":
        prefix, rounded = ("", True) if is_latent else ("yarn_", arguments["yarn_correction_range_round_to_int"])
        factor = arguments[f"{prefix}rotary_scaling_factor"]
        names = ("original_max_position_embeddings", "beta_fast", "beta_slow")
        original, *betas = (arguments[prefix + name] for name in names)
        freqs = formulas.yarn(base, width, factor, original, *betas, truncate=rounded)
        all_dims = arguments.get(f"{prefix}mscale_all_dim", 0.0)
        magnitude = g(factor, arguments.get(f"{prefix}mscale", 1.0)) / g(factor, all_dims)
        return freqs, magnitude, g(factor, all_dims) ** 2 if is_latent else 1.0
    width = int(width * arguments.get("rotary_percent", 1.0))
    factor = arguments.get("rope_scaling_factor", 8.0) if arguments.get("use_rope_scaling") else 1.0
    freqs = formulas.llama3(base, width, factor, 1, 4, 8192)
    return freqs / arguments.get("rotary_seq_len_interpolation_factor", 1), 1.0, 1.0


def meta(keys, width):
    """`precompute_freqs_cis` of Llama 3, and of Llama 4 if it has Llama 4's keys."""
    factor = keys.get("rope_scaling_factor", 8) if keys["use_scaled_rope"] else 1.0
    return formulas.llama3(keys["rope_theta"], width, factor, 1, keys.get("rope_high_freq_factor", 4), 8192), 1.0, 1.0
