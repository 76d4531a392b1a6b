"""Tiny models of mlx-lm, and the rotations that they compute.

A class is found as mlx-lm finds it, by the model type of a config, and is created with random weights. One forward pass
shows where it calls `mlx.core.fast.rope`: in which module of which layer. Each of these places can then be called for
other channels and positions: what is known of a rotation is observed, and not read from the source.
"""

import ast
import copy
import importlib
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from rope_xp import RotaryEmbedding

FULL, SLIDING = "full_attention", "sliding_attention"
ALTERNATING = [SLIDING, FULL] * 2
LAYERS = len(ALTERNATING)
LENGTH = 4096
# Positions that are looked at: after few turns and many, and beyond the length of the models.
POSITIONS = (1, 300, 6000)
GONE = object()  # in place of the value of a key that is taken away

# A config of small sizes for all classes. Each takes the keys that it knows.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers"), LAYERS),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "hidden_dim", "n_inner", "model_dim", "block_dim"), 64),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "num_query_heads"), 2),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_kv_heads", "index_n_heads", "num_attention_groups"), 2),
    **dict.fromkeys(("head_dim", "kv_channels", "v_head_dim", "index_head_dim"), 32),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim"), 32),
    **dict.fromkeys(("swa_head_dim", "swa_v_head_dim", "global_head_dim", "hidden_size_per_head"), 32),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 32),
    **dict.fromkeys(("swa_num_attention_heads", "swa_num_key_value_heads", "num_swa_attention_heads"), 2),
    **dict.fromkeys(("num_swa_key_value_heads", "linear_num_key_heads", "linear_num_value_heads"), 2),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank"), 16),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size"), 64),
    **dict.fromkeys(("intermediate_size_mlp", "shared_intermediate_size", "dense_intermediate_size"), 64),
    **dict.fromkeys(("ff_intermediate_size", "ffn_hidden_size", "expert_ffn_hidden_size", "moe_hidden_size"), 64),
    **dict.fromkeys(("share_expert_dim", "moe_shared_expert_intermediate_size", "index_block_size"), 64),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "top_k"), 2),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "num_shared_expert", "n_group", "topk_group"), 1),
    **dict.fromkeys(("first_k_dense_replace", "moe_layer_freq", "decoder_sparse_step", "n_shared_head"), 1),
    **dict.fromkeys(("num_dense_layers", "n_groups", "interleave_moe_layer_step", "zero_expert_num"), 1),
    **dict.fromkeys(("vocab_size", "num_vocab", "vocab_size_per_layer_input"), 32),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "norm_eps", "layer_norm_epsilon", "layernorm_epsilon"), 1e-5),
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_bias", "use_qkv_bias", "conv_bias", "use_conv_bias"), False),
    **dict.fromkeys(("tie_word_embeddings", "norm_topk_prob", "use_qk_norm", "qk_norm", "use_expert_bias"), True),
    **dict.fromkeys(("add_swa_attention_sink_bias", "add_full_attention_sink_bias", "post_norm"), False),
    **dict.fromkeys(("mla_scale_q_lora", "mla_scale_kv_lora", "use_cla", "use_mixed_mlp_moe"), False),
    **dict.fromkeys(("block_auto_adjust_ff_dim", "linear_allow_neg_eigval", "mamba_proj_bias"), False),
    **dict.fromkeys(("logits_scaling", "attention_multiplier", "embedding_multiplier", "residual_multiplier"), 1.0),
    **dict.fromkeys(("routed_scaling_factor", "scale_emb", "scale_depth", "output_multiplier"), 1.0),
    **dict.fromkeys(("final_logit_softcapping", "logits_soft_cap", "altup_coef_clip", "gegelu_limit"), 30.0),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "block_size", "model_max_length"), 4096),
    **dict.fromkeys(("sliding_window", "sliding_window_size", "attention_window_size", "attention_chunk_size"), 64),
    **dict.fromkeys(("sliding_window_pattern", "cla_share_factor", "conv_window", "mamba_expand"), 2),
    **dict.fromkeys(("attn_layer_offset", "expert_layer_offset"), 1),
    **dict.fromkeys(("attn_layer_period", "expert_layer_period"), 2),
    **dict.fromkeys(("mamba_d_conv", "conv_kernel", "linear_conv_kernel_dim", "conv1d_width", "mamba_num_heads"), 4),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size", "state_size", "mamba_head_dim", "time_step_rank"), 16),
    **dict.fromkeys(("a_low_rank_dim", "v_low_rank_dim", "gate_low_rank_dim", "decay_low_rank_dim"), 16),
    "rope_theta": 10_000.0, "rotary_dim": 32, "rotary_pct": 1.0, "rotary_emb_base": 10_000,
    "partial_rotary_factor": 1.0, "original_max_position_embeddings": 1024, "rope_scaling": None,
    "mlp_only_layers": [], "time_step_limit": (0.0, 100.0), "conv_L_cache": 3, "index_topk": 4,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "zero_expert_type": "identity", "attention_method": "MLA",
    "hidden_act": "silu", "dim_model_base": 64, "group_norm_size": 1, "layer_group_size": 2, "num_kv_reuse_layers": 1,
    "layer_types": ALTERNATING, "qk_head_dim": 64, "post_norm_eps": 1e-5,
}  # fmt: skip

BY_TYPE = {FULL: {"rope_theta": 10_000.0}, SLIDING: {"rope_theta": 10_000.0}}
LLAMA_4 = {"rope_theta": 10_000.0, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 4096}
LINEAR = {"kda_layers": [1, 3], "full_attn_layers": [2, 4], "num_heads": 2, "head_dim": 32, "short_conv_kernel_size": 4}
LLAMA_BLOCK = {"attention": {"n_heads_in_group": 1}, "ffn": {"ffn_mult": 1.0}}
# Keys that a class wants besides, or in place of, those of SIZES; None takes one away.
OWN: dict[str, dict[str, Any]] = {
    "baichuan_m1": {"sliding_window_layers": [0, 2], "tie_word_embeddings": False},
    "bailing_hybrid": {"layer_types": None},
    "dbrx": {
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10_000.0},
    },
    "deepseek_v2": {"rope_scaling": {"type": "yarn", "factor": 1.0}},
    "deepseek_v41": {"o_groups": 1, "o_lora_rank": 16, "compress_ratios": (0, 4, 0, 4), "hc_mult": 1},
    "exaone4": {"sliding_window_pattern": "LG"},
    "exaone_moe": {"is_moe_layer": [False, True] * 2},
    "gemma3n": {
        "num_kv_shared_layers": 0, "rope_local_base_freq": 10_000.0, "activation_sparsity_pattern": [0.0] * LAYERS,
        "hidden_size_per_layer_input": 16, "altup_num_inputs": 2, "altup_correct_scale": True, "altup_active_idx": 0,
        "laurel_rank": 16, "intermediate_size": [64] * LAYERS,
    },
    "gemma4_text": {"hidden_size_per_layer_input": 16, "num_kv_shared_layers": 0, "rope_parameters": BY_TYPE},
    "glm_moe_dsa": {"rope_parameters": {"rope_theta": 10_000.0}, "rope_theta": None},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2, "mamba_n_heads": 4, "mamba_d_head": 32,
                         "mamba_n_groups": 1, "mamba_conv_bias": False},
    "hunyuan": {"rope_scaling": {"type": "dynamic", "alpha": 1.0, "factor": 1.0}},
    "kimi_k3": {"hidden_act": None, "linear_attn_config": LINEAR},
    "kimi_linear": {"linear_attn_config": LINEAR},
    "laguna": {"rope_parameters": BY_TYPE},
    "lfm2": {"block_multiple_of": 1, "block_ffn_dim_multiplier": 1.0, "layer_types": ["conv", FULL] * 2},
    "lfm2_moe": {"layer_types": ["conv", FULL] * 2},
    "llama4_text": {"no_rope_layers": [1, 1, 1, 0]},
    "llama4": {"num_experts_per_tok": 1},
    "longcat_flash": {"mla_scale_q_lora": True, "mla_scale_kv_lora": True},
    "longcat_flash_ngram": {"mla_scale_q_lora": True, "mla_scale_kv_lora": True},
    "mellum": {"rope_parameters": BY_TYPE},
    "mimo_v2_flash": {"hybrid_layer_pattern": [1, 0] * 2, "swa_rope_theta": 10_000.0, "moe_layer_freq": [0, 1] * 2},
    "minicpm3": {"rope_scaling": {"type": "longrope", "original_max_position_embeddings": 4096}},
    "minimax_m3_vl": {"layer_types": None, "index_block_size": None, "moe_layer_freq": [0, 1] * 2},
    "ministral3": {"rope_parameters": LLAMA_4},
    "mistral4": {"rope_parameters": LLAMA_4},
    "muse_spark": {"rope_parameters": {"rope_theta": 10_000.0}, "layer_rope_theta": [10_000.0, 0] * 2,
                   "num_shared_experts": 0},
    "nemotron": {"hidden_act": "relu2"},
    "nemotron-nas": {"block_configs": [LLAMA_BLOCK] * LAYERS},
    "nemotron_h": {"hybrid_override_pattern": ["M", "*", "-", "*"], "layer_types": None},
    "olmo": {"mlp_hidden_size": 64, "embedding_size": 32},
    "olmo_hybrid": {"layer_types": ["linear_attention", FULL] * 2},
    "openelm": {"num_query_heads": [2] * LAYERS, "num_kv_heads": [2] * LAYERS, "ffn_multipliers": [1.0] * LAYERS,
                "ffn_dim_divisor": 8},
    "phi3small": {"dense_attention_every_n_layers": 1},
    "phixtral": {"num_vocab": 32, "model_dim": 64, "num_heads": 2},
    "qwen": {"kv_channels": 32},
    "qwen3_5": {"rope_parameters": {"type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0}},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"] * 2, "lru_width": 64},
    "spark2_5": {"hidden_act": "gelu", "rope_parameters": BY_TYPE},
    "step3p5": {"layer_types": ALTERNATING},
}  # fmt: skip

# The class of the text model, whose keys `text_config` has.
TEXT_OF = {
    "gemma3": "gemma3_text", "gemma3n": "gemma3n", "gemma4": "gemma4_text", "kimi_k25": "deepseek_v3",
    "kimi_k3": "kimi_k3", "kimi_vl": "deepseek_v3", "lfm2-vl": "lfm2", "llama4": "llama4",
    "minimax_m3_vl": "minimax_m3_vl", "mistral3": "llama", "muse_spark": "muse_spark", "pixtral": "llama",
    "qwen2_vl": "qwen2", "qwen3_5": "qwen3_5", "qwen3_5_moe": "qwen3_5", "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
}  # fmt: skip
# Text models that a composite chooses by their type, besides that of TEXT_OF.
CHOICES = {"mistral3": ("ministral3", "mistral4")}
# The types of the layers, where they are not ALTERNATING.
KINDS = dict.fromkeys(("bailing_hybrid", "bailing_moe_linear"), ["linear_attention", FULL] * 2)
# Classes that cannot be built here, with the reason.
NOT_BUILT = {
    "muse_spark": "rotates in a kernel for Metal",
    "prism_hadamard_qwen35": "wants the manifest of a packed checkpoint; its model is that of qwen3_5",
}


def use_source(folder: Path) -> str:
    """Make `import mlx_lm.models` import the files of a folder, without what else the package needs. The version."""
    package = types.ModuleType("mlx_lm")
    package.__path__ = [str(folder)]
    sys.modules["mlx_lm"] = package
    sys.modules.setdefault("hf_olmo", types.ModuleType("hf_olmo"))  # olmo.py only looks whether it is installed
    # Classes ask for their signature once for each key of a config, which takes longer than all the rest.
    base = importlib.import_module("mlx_lm.models.base")
    base.inspect = types.SimpleNamespace(signature=cache(inspect.signature))
    bitlinear = importlib.import_module("mlx_lm.models.bitlinear_layers").BitLinear
    # Its matrix product is a kernel for Metal. What it gives is not looked at.
    bitlinear.execute_matmul_kernel = lambda self, x, packed: mx.zeros((*x.shape[:-1], self.out_features), x.dtype)
    return re.search(r"__version__ = ['\"](.*?)['\"]", (folder / "_version.py").read_text())[1]


def remapped(folder: Path) -> dict[str, str]:
    """The model types that mlx-lm gives to the class of another one: `MODEL_REMAPPING`."""
    tree = ast.parse((folder / "utils.py").read_text())
    values = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return ast.literal_eval(values["MODEL_REMAPPING"])


def names(folder: Path) -> list[str]:
    """The modules that have a model."""
    files = sorted(file for file in (folder / "models").glob("*.py") if "class ModelArgs" in file.read_text())
    return [file.stem for file in files]


def text_of(folder: Path, name: str) -> str:
    """The source of a class, with the modules of mlx_lm.models that it imports."""
    found, waiting = {}, [name]
    while waiting:
        each = waiting.pop()
        file = folder / "models" / f"{each}.py"
        if each not in found and file.exists():
            found[each] = file.read_text()
            waiting += re.findall(r"^\s*from \.(\w+) import", found[each], re.M)
            waiting += re.findall(r"\w+", " ".join(re.findall(r"^\s*from \. import (.*)", found[each], re.M)))
    return "".join(found.values())


def tiny(name: str, inner: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """Configs for the class of this name, without and with a `text_config`; `inner` is a text model that it chooses."""
    text = inner or TEXT_OF.get(name, name)
    keys = {**SIZES, **OWN.get(text, {}), "model_type": text}
    keys = copy.deepcopy({key: value for key, value in keys.items() if value is not None or key == "rope_scaling"})
    return {**keys, "model_type": name}, {"model_type": name, "vocab_size": keys["vocab_size"], "text_config": keys}


def build(name: str, config: dict[str, Any]) -> nn.Module:
    """The model of a class, as `mlx_lm.utils.load_model` creates it."""
    module = importlib.import_module(f"mlx_lm.models.{name}")
    mx.random.seed(0)
    return module.Model(module.ModelArgs.from_dict(copy.deepcopy(config)))


class Place(NamedTuple):
    """Where a model rotates.

    Attributes
    ----------
    name : str
        The name of the module in the model.
    width : int
        The number of channels that are given to the rotation.
    rotate : callable
        `rotate(x, offset=...)` of `x` (batch, heads, seq, width), at the positions from `offset` on.
    """

    name: str
    width: int
    rotate: Callable[..., mx.array]

    @property
    def layer(self) -> int:
        """The number of the layer."""
        return layer_of(self.name)

    def matrix(self, position: int) -> np.ndarray:
        """The matrix that is multiplied with the channels at a position. A row is what a unit vector becomes."""
        unit = mx.eye(self.width)[:, None, None]
        return np.array(self.rotate(unit, offset=position))[:, 0, 0].astype(np.float64)


class Plain(NamedTuple):
    """A rotation by a geometric progression, as its matrices show it."""

    base: float
    layout: str
    rotated: float
    reverse: bool = False

    def rope(self, width: int) -> RotaryEmbedding:
        """The value for heads of this many channels."""
        return RotaryEmbedding(
            head_dim=width,
            layout=self.layout,
            base=self.base,
            rotary_dim=round(self.rotated * width),
            reverse=self.reverse,
        )


class Seen(NamedTuple):
    """What layers of one type do: the matrices at `POSITIONS`, the factor of the scores, and the first such layer."""

    matrices: tuple[np.ndarray, ...]
    scale: float
    layer: int

    @property
    def width(self) -> int:
        """The number of channels that are given to the rotation."""
        return len(self.matrices[0])

    def equals(self, other: "Seen | None") -> bool:
        """Exactly: the same operations give the same bits."""
        return (
            other is not None and self.scale == other.scale and all(map(np.array_equal, self.matrices, other.matrices))
        )

    def is_of(self, rope_for: Callable[[int], RotaryEmbedding]) -> bool:
        """Whether these are the matrices of an embedding, which may depend on the length of the sequence.

        A phase in float32 has eight roundings, of the exponent, the logarithm, the power, the scale and the position,
        relative to the position. Sines are off by 3e-7.
        """
        return all(
            np.allclose(seen, matrix_of(rope_for(at + 1), at), rtol=1e-6, atol=at * 8 * 2.0**-24 + 1e-6)
            for at, seen in zip(POSITIONS, self.matrices)
        )

    @property
    def plain(self) -> Plain | None:
        """The progression; None if the frequencies are no such, or are scaled."""
        first, later = self.matrices[:2]
        beside = np.abs(later - np.diag(np.diag(later))) > 1e-6
        partners, turned = np.flatnonzero(beside[0]), beside.any(axis=0)
        if len(partners) != 1 or not turned.any():
            return None
        layout = "interleaved" if partners[0] == 1 else "half"
        one, other = (2, 3) if layout == "interleaved" else (1, 1 + partners[0])
        angle, rotary_dim = np.arctan2(first[one, other], first[one, one]), turned.sum()
        base = float(f"{abs(angle) ** (-rotary_dim / 2):.4g}")
        found = Plain(base, layout, float(rotary_dim / self.width), bool(angle < 0))
        return found if self.is_of(lambda n: found.rope(self.width)) else None


def matrix_of(rope: RotaryEmbedding, position: int) -> np.ndarray:
    """The matrix that an embedding multiplies with the channels at a position, from its frequencies."""
    pairs, step = rope.pairs, 1 if rope.layout == "half" else 2
    one = np.arange(pairs) * step
    other = one + (pairs if step == 1 else 1)
    angle = position * np.asarray(rope.inv_freq)
    matrix = np.eye(rope.head_dim)
    matrix[one, one] = matrix[other, other] = rope.attention_factor * np.cos(angle)
    matrix[one, other] = rope.attention_factor * np.sin(angle)
    matrix[other, one] = -matrix[one, other]
    return matrix


def observe(model: nn.Module) -> dict[str, Seen]:
    """Call a model once, with one token, and look at what each type of its layers does."""
    places: dict[tuple[str, int], Place] = {}
    scales: dict[int, float] = {}
    with _recorded(model, places, scales):
        model(mx.zeros((1, 1), mx.int32))
    found: dict[str, Seen] = {}
    for place in places.values():
        if "index" not in place.name:  # the rotation of an indexer beside the attention
            seen = Seen(tuple(map(place.matrix, POSITIONS)), scales.get(place.layer, 1.0), place.layer)
            kind = KINDS.get(type(model).__module__.rpartition(".")[2], ALTERNATING)[place.layer]
            if not all(map(np.array_equal, found.setdefault(kind, seen).matrices, seen.matrices)):
                raise AssertionError(f"layers of type {kind} must rotate alike; {place.name} does not")
    return found


@contextmanager
def _recorded(model: nn.Module, places: dict[tuple[str, int], Place], scales: dict[int, float]) -> Iterator[None]:
    rope, attention = mx.fast.rope, mx.fast.scaled_dot_product_attention
    name_of = {id(module): name for name, module in model.named_modules()}
    calls: list[tuple[nn.Module, Any]] = []  # the modules that are being called, and what each was given
    classes = {each: each.__call__ for each in map(type, model.modules()) if "__call__" in each.__dict__}

    def entered(call):
        def inner(module, *args, **kwargs):
            calls.append((module, next(iter(args), None)))
            try:
                return call(module, *args, **kwargs)
            finally:
                calls.pop()

        return inner

    def seen_rope(x, *args, **kwargs):
        rotary = [(module, given) for module, given in calls if is_rotary(module)]
        module, given = rotary[0] if rotary else (calls[-1][0], x)
        place = Place(name_of[id(module)], given.shape[-1], module if rotary else partial(_again, rope, args, kwargs))
        places.setdefault((place.name, place.width), place)
        return rope(x, *args, **kwargs)

    def seen_attention(*args, scale, **kwargs):
        scales[layer_of(name_of[id(calls[-1][0])])] = float(scale)
        return attention(*args, scale=scale, **kwargs)

    for each, call in classes.items():
        each.__call__ = entered(call)
    mx.fast.rope, mx.fast.scaled_dot_product_attention = seen_rope, seen_attention
    try:
        yield
    finally:
        mx.fast.rope, mx.fast.scaled_dot_product_attention = rope, attention
        for each, call in classes.items():
            each.__call__ = call


def layer_of(name: str) -> int:
    """The number of the layer that a module is in, or 0."""
    found = re.search(r"\d+", name)
    return int(found[0]) if found else 0


def is_rotary(module: nn.Module) -> bool:
    """Whether a module does nothing but rotate."""
    name = type(module).__name__.lower()
    return "attention" not in name and ("rope" in name or "rotary" in name)


def _again(rope: Callable[..., mx.array], args: tuple, kwargs: dict[str, Any], x: mx.array, offset: int) -> mx.array:
    """A call of `mlx.core.fast.rope` by an attention, for another array and position."""
    kwargs = {**dict(zip(("dims",), args)), **kwargs, "offset": offset}
    return rope(x, kwargs.pop("dims"), **kwargs)
