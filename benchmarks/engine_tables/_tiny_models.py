"""Tiny models of the installed transformers, 4 or 5, and how their attentions rotate queries.

A model has random weights and runs on tokens. Each call of a function that rotates is recorded, with its tables, so
that it can be called again with other queries.
"""

import inspect
import re
import sys
import warnings
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import transformers
from transformers import CONFIG_MAPPING, MODEL_MAPPING, AutoConfig

IS_4 = transformers.__version__.startswith("4.")
APPLY = re.compile(r"apply_(multimodal_)?rotary|apply_interleaved_rope")
MASK = re.compile(r"create_\w*mask$")
# A number of tokens that no tiny model has as another size.
TOKENS = 61
HEAD = 32
# Positions of models with several axes.
AXES = np.stack([np.arange(TOKENS), 3 * np.arange(TOKENS) % TOKENS, (5 * np.arange(TOKENS) + 2) % TOKENS])
TINY = dict.fromkeys(("hidden_size", "n_embd", "d_model"), 4 * HEAD)
TINY |= dict.fromkeys(
    ("intermediate_size", "moe_intermediate_size", "vocab_size", "shared_expert_intermediate_size"), 64
)
TINY |= dict.fromkeys(("num_attention_heads", "n_head", "num_key_value_heads", "n_heads", "num_heads"), 4)
TINY |= dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4)
TINY |= dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk", "num_experts_per_token"), 2)
TINY |= dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2)
TINY |= dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace", "num_kv_heads"), 1)
TINY |= {"head_dim": HEAD, "qk_rope_head_dim": HEAD, "qk_nope_head_dim": 16, "v_head_dim": 16, "kv_channels": HEAD}
TINY |= {"q_lora_rank": 16, "kv_lora_rank": 16, "rotary_dim": 16, "max_position_embeddings": 512}
TINY |= {"global_head_dim": HEAD, "num_kv_shared_layers": 0, "altup_num_inputs": 2, "lru_width": 4 * HEAD}
TINY |= {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16}
TINY |= {"mamba_n_heads": 4, "mamba_d_head": 64, "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 16}
TINY |= {"n_inner": 64, "n_positions": 512, "ffn_hidden_size": 64, "ffn_dim": 64, "mlp_hidden_size": 64, "n_ctx": 512}
TINY |= {"n_mamba_heads": 4, "alibi": False, "conv_L_cache": 3, "conv_kernel_size": 5, "codebook_size": 32}
TINY |= dict.fromkeys(("pad_token_id", "bos_token_id"), 0) | {"eos_token_id": 1, "sliding_window": 16}
SIZES = {"position_embedding_type": "rotary", "logit_scale": 1.0}
LARGEST = 10_000_000  # parameters
# Kinds of layers that are tried: one layer of each kind that the default config has.
KINDS = ("sliding_attention", "chunked_attention", "linear_attention", "full_attention")
# Changes that a tiny model of this type needs besides.
SECTIONS = {"rope_type": "default", "mrope_section": [4, 6, 6]}
HALF_SECTIONS = {"rope_type": "default", "mrope_section": [2, 3, 3]}
BLOCK = "rope_scaling" if IS_4 else "rope_parameters"
MORE: dict[str, dict[str, Any]] = {
    **{
        name: {BLOCK: SECTIONS}
        for name in ("qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text", "glm4v_text")
    },
    **{name: {BLOCK: SECTIONS} for name in ("glm_image_text", "glm_ocr_text")},
    "glm4v_moe_text": {BLOCK: HALF_SECTIONS},
    **{name: {"head_dim": HEAD} for name in ("hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl_text", "ministral")},
    **{name: {"head_dim": HEAD} for name in ("minimax", "mistral", "mixtral")},
    "nemotron": {"head_dim": HEAD, "num_key_value_heads": 4},
    **{name: {"position_embedding_type": "rope"} for name in ("granitemoe", "granitemoeshared")},
    "bamba": {"attn_layer_indices": [0, 1]},
    "deepseek_v2": {"topk_group": 1, "n_group": 1, "num_experts_per_tok": 2, "num_key_value_heads": 4},
    "esm": {"position_embedding_type": "rotary", "pad_token_id": 0, "mask_token_id": 2, "token_dropout": False},
    "falcon_h1": {"mamba_d_ssm": 128, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_n_groups": 1},
    "moonshine": {"decoder_num_hidden_layers": 2, "encoder_num_hidden_layers": 2},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10_000.0}, "ffn_config": {"ffn_hidden_size": 64}},
    "falcon": {"alibi": False},
    "gemma3n_text": {"num_hidden_layers": 2, "intermediate_size": [64, 64], "activation_sparsity_pattern": [0.0, 0.0]},
    "recurrent_gemma": {"num_hidden_layers": 3, "attention_window_size": 64},
    "llama4_text": {"no_rope_layers": [1, 1], "interleave_moe_layer_step": 2, "intermediate_size_mlp": 64},
    "smollm3": {"no_rope_layers": [1, 1]},
    "zamba2": {"attention_hidden_size": 4 * HEAD, "attention_head_dim": HEAD, "use_mem_rope": True},
    "granitemoehybrid": {
        "layer_types": ["attention", "attention"],
        "num_hidden_layers": 2,
        "position_embedding_type": "rope",
    },
    "lfm2": {"layer_types": ["full_attention", "conv"], "num_hidden_layers": 2},
    "lfm2_moe": {"layer_types": ["full_attention", "conv"], "num_hidden_layers": 2},
    "phimoe": {"num_local_experts": 4},
    "jetmoe": {"num_key_value_heads": 2, "num_local_experts": 4},
}


# Model types whose tiny model is not too large.
checked = set()


class Call(NamedTuple):
    """One call of a function that rotates: `again` takes other queries of the same shape."""

    kind: str  # of the layer
    shape: tuple[int, ...]
    again: Any
    softmax: float | None  # what scores are multiplied by

    @property
    def seq_dim(self):
        return len(self.shape) - 1 - self.shape[::-1].index(TOKENS)


def model_types():
    """Every model type with a model class whose file has a function that rotates, and no parts with own configs."""
    return sorted(name for name in CONFIG_MAPPING if _has_rotation(name))


def _has_rotation(name):
    with quiet():
        config = CONFIG_MAPPING[name]
        if config not in MODEL_MAPPING or getattr(config, "sub_configs", None):
            return False
        try:
            file = inspect.getfile(_model_class(config))
        except (ImportError, ValueError):  # a class that needs another package, or that is not there
            return False
        return re.search(rf"^def {APPLY.pattern}", Path(file).read_text("utf-8"), re.MULTILINE) is not None


def _model_class(config):
    found = MODEL_MAPPING[config]
    return found[0] if isinstance(found, tuple) else found


def keys_of(model_type, **changes):
    """The content of a tiny config.json."""
    with quiet():
        config = CONFIG_MAPPING[model_type]
        default = config().to_dict()
        given = {name: value for name, value in TINY.items() if default.get(name) is not None}
        given |= {name: value for name, value in SIZES.items() if name in default and default[name] is not None}
        kinds = [kind for kind in KINDS if kind in (default.get("layer_types") or ())]
        layers = {"layer_types": kinds, "num_hidden_layers": len(kinds)} if kinds else {}
        given |= layers | MORE.get(model_type, {}) | changes
        if model_type in ("gpt_neox_japanese", "codegen", "gptj"):
            given.pop("head_dim", None)
        return {**config(**deepcopy(given)).to_dict(), "model_type": model_type}


@contextmanager
def quiet():
    """Without the warnings of transformers, which checks keys that it then reads."""
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings(action="ignore"):
        yield


def calls(keys):
    """The calls of a forward pass of the model of a config.json with these keys, or of a folder with the file."""
    with quiet(), torch.no_grad():
        if isinstance(keys, Path):
            config = AutoConfig.from_pretrained(keys)
        else:
            config = CONFIG_MAPPING[keys["model_type"]].from_dict(deepcopy(keys))
        config._attn_implementation = "eager"
        torch.manual_seed(0)
        model_class = _model_class(type(config))
        if config.model_type not in checked:
            with torch.device("meta"), suppress(NotImplementedError):
                size = sum(each.numel() for each in model_class(config).parameters())
                if size > LARGEST:
                    raise ValueError(f"the model must be tiny; got {size:,} parameters")
            checked.add(config.model_type)
        model = model_class(config).eval()
        return _recorded(model, config)


def _recorded(model, config):
    found, layer = [], [-1, None]
    modules = {sys.modules[type(each).__module__] for each in model.modules()}
    modules = {each for each in modules if ".models." in each.__name__}
    layers = _layers_of(model)
    for index, each in enumerate(layers):
        scales = [getattr(part, "scaling", None) for part in each.modules()]
        scale = next((scale for scale in scales if isinstance(scale, float)), None)
        each.register_forward_pre_hook(lambda *_, at=(index, scale): layer.__setitem__(slice(None), at))
    kinds = getattr(config, "layer_types", None) or ()
    with ExitStack() as stack:
        inside = []
        for module in modules:
            for name, function in vars(module).copy().items():
                if (
                    MASK.match(name) and config.model_type != "modernbert-decoder"
                ):  # most of the time, and no part of the rotation
                    stack.enter_context(patch.object(module, name, lambda *_, **__: None))
                elif APPLY.match(name) and callable(function) and not inspect.isclass(function):
                    made = _recording(function, found, layer, kinds, inside)
                    stack.enter_context(patch.object(module, name, made))
        _run(model)
    return found


def _layers_of(model):
    """The list of layers: that of the shortest path."""
    lists = {name: each for name, each in model.named_modules() if isinstance(each, torch.nn.ModuleList)}
    return lists[min(lists, key=lambda name: name.count("."))] if lists else []


def _run(model):
    ids = torch.arange(TOKENS)[None] % 50 + 3
    given = {"use_cache": False} if "use_cache" in inspect.signature(type(model).forward).parameters else {}
    if "decoder_input_ids" in inspect.signature(type(model).forward).parameters:
        given["decoder_input_ids"] = ids
    if "mrope_section" in str(model.config.to_dict()):
        given |= {"position_ids": torch.tensor(AXES)[:, None], "attention_mask": torch.ones_like(ids)}
    model(input_ids=ids, **given)


def _recording(function, found, layer, kinds, inside):
    signature = inspect.signature(function)

    def recording(*args, **kwargs):
        if inside:
            return function(*args, **kwargs)
        inside.append(True)
        try:
            bound = signature.bind(*args, **kwargs)
            first = next(name for name, value in bound.arguments.items() if _is_array(value))
            q = bound.arguments[first]
            kind = kinds[layer[0]] if 0 <= layer[0] < len(kinds) else ""

            given = deepcopy(bound.arguments)

            def again(x):
                result = function(**{**given, first: x})
                return result[0] if isinstance(result, tuple) else result

            if TOKENS in q.shape:
                found.append(Call(kind, tuple(q.shape), again, layer[1]))
            return function(*args, **kwargs)
        finally:
            inside.clear()

    return recording


def _is_array(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim >= 3


def probe(shape):
    """Numbers below 1 of this shape, all different."""
    return torch.sin(torch.arange(1, 1 + int(np.prod(shape)), dtype=torch.float64) * 0.7).float().reshape(shape)


def rotated(call):
    """What a call makes of `probe`."""
    with torch.no_grad():
        return call.again(probe(call.shape))
