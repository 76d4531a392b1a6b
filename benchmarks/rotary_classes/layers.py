"""Small models of transformers, compared with rope_xp layer by layer."""

import inspect
from copy import deepcopy
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from common import message

import rope_xp

from .cases import same_for, stem
from .observe import TOLERANCE, apply_name, half_width, largest
from .rows import Outcome

WIDTHS = ("hidden_size", "intermediate_size", "vocab_size", "vocab_size_per_layer_input")
FOURS = ("num_attention_heads", "num_experts", "num_local_experts", "n_routed_experts")
TINY = {**dict.fromkeys(WIDTHS, 64), **dict.fromkeys(FOURS, 4), "num_key_value_heads": 2, "num_experts_per_tok": 2}
TINY |= {"head_dim": 16, "moe_intermediate_size": 32, "num_hidden_layers": 8, "pad_token_id": 0}
TINY |= {"max_position_embeddings": 128}
# Lists with one entry for each layer. Config objects write them; older files do not have them.
BY_LAYER = ("layer_types", "mlp_layer_types", "no_rope_layers", "layer_rope_theta", "per_layer_config")
ONE_GROUP = {"n_group": 1, "topk_group": 1, "num_key_value_heads": 4}
DOTS3 = {"num_key_value_heads": 4, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4}
SLIDING_AND_FULL = ["sliding_attention", "full_attention"] * 4
MIXED = {"layer_types": SLIDING_AND_FULL}
MIXED_WINDOW = {**MIXED, "sliding_window": 4}
SOME_FULL = {"layer_types": ["conv", "full_attention"] * 4}
NO_ROPE = ({}, {"no_rope_layer_interval": 3}, {"no_rope_layers": [1, 0, 0, 1, 1, 1, 0, 1]})
BASES = {"layer_rope_theta": [0, 100.0, 1e4, 0, 1e4, 100.0, 0, 5e5]}
SOME_BASES = ({}, {"num_hidden_layers": 7}, {"layer_rope_theta": [0, 1, 1, 0, 1, 1, 1, 0]})
PATTERN = {"sliding_window_pattern": 3}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 32}
PREFIX = {"first_k_dense_replace": 3}
GEMMA3N = {"num_hidden_layers": 10, "num_kv_shared_layers": 0}
GEMMA3N |= {"activation_sparsity_pattern": [0.0] * 10, "intermediate_size": [64] * 10}
# Changed configs, by the `stem` of the rotary class.
LAYERED: dict[str, tuple[dict[str, Any], ...]] = {
    **same_for("DeepseekV4 Gemma4Text Gemma4UnifiedText Kolibri1 MiMoV2Flash MiniMax RecurrentGemma", {}),
    **same_for("EmbeddingGemma2 ExaoneMoe Gemma3", {}, PATTERN),
    **same_for("GraniteSWA GraniteMoeSWA", {}, BASES),
    **same_for("Laguna Mellum", {}, MIXED_WINDOW),
    **same_for("Llama4Text SmolLM3", *NO_ROPE),
    **same_for("ModernBert ModernBertDecoder", {}, {"global_attn_every_n_layers": 4}),
    **same_for("MuseGlimmerText MuseSparkText", *SOME_BASES),
    "Afmoe": ({}, {"global_attn_every_n_layers": 3}),
    "BailingHybrid": (ONE_GROUP, {**ONE_GROUP, "layer_group_size": 3}),
    "Bamba": ({"attn_layer_indices": [0, 3], **MAMBA},),
    "Beam": (ONE_GROUP,),
    "Cohere2": ({}, PATTERN, MIXED),
    "Cohere2Moe": ({}, PREFIX, {**PREFIX, "prefix_dense_sliding_window_pattern": 2}),
    "Dots3NoteText": (DOTS3, {**DOTS3, "use_dsa": False}, {**DOTS3, "use_sliding_window": False}),
    "Exaone4": ({}, {"sliding_window": None, "layer_types": ["full_attention"] * 8}),
    "Flint": SOME_BASES[:2],
    "Gemma3n": (GEMMA3N,),
    "GraniteMoeHybrid": ({"position_embedding_type": "rope", "layer_types": ["attention", "mamba"] * 4, **MAMBA},),
    "Lfm2": ({}, SOME_FULL),
    "Lfm2Moe": (SOME_FULL,),
    "Lfm3": ({}, {"layer_types": ["conv", *SLIDING_AND_FULL[1:]]}),
    "Molmo2": ({}, {"rope_scaling_layers": [1, 3], "rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
    "Olmo3": ({}, MIXED),
    "OlmoHybrid": ({}, {"rope_parameters": {"rope_theta": None}}),
    "Qwen3Next": ({}, {"full_attention_interval": 3}),
    "Step3p7": (MIXED_WINDOW,),
    "Ultrabert": ({}, {"attention_windows": [0, 4, 4, 0, 4, 4, 4, 4]}),
    "Zaya": ({"num_experts_per_tok": 1, "sliding_window": 4, "layer_types": ["hybrid", "hybrid_sliding"] * 4},),
}


def tables_by_layer(module, model, count, name):
    """The cosines and sines that each layer of a model applies by the function of this name."""
    function, layer, tables_by_index = getattr(module, name), [0], {}
    signature = inspect.signature(function)

    def recording(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        complex_table = given.get("freqs_cis")
        tables = (given["cos"], given["sin"]) if complex_table is None else (complex_table.real, complex_table.imag)
        tables_by_index.setdefault(layer[0], tuple(half_width(table.reshape(-1, table.shape[-1])) for table in tables))
        return function(*args, **kwargs)

    for index, each in enumerate(model.layers):
        each.register_forward_pre_hook(lambda *_, index=index: layer.__setitem__(0, index))
    with patch.object(module, name, recording), torch.no_grad():
        model(input_ids=torch.arange(1, count + 1)[None])
    return tables_by_index


def keys_of(config_class):
    return {*config_class.__dataclass_fields__, *config_class.attribute_map}


def layers(target):
    """Outcomes for each model: from the whole config, and from the config without lists of layers."""
    name, module, count = stem(target.cls.__name__), target.module, 7
    config_class = type(target.config(needs={}))
    known = keys_of(config_class)
    for changes in LAYERED[name]:
        case = ", ".join(["every layer", *changes])
        try:
            config = config_class(**{k: v for k, v in TINY.items() if k in known} | deepcopy(changes))
            config._attn_implementation = "eager"
            model_class = getattr(module, f"{name}TextModel", None) or getattr(module, f"{name}Model")
            model = model_class(config).eval()
            applied = tables_by_layer(module, model, count, apply_name(target.run(config)))
        except Exception as error:
            yield Outcome(target.config_name, case, None, "refused upstream", {}, message(error))
            continue
        whole = config.to_dict()
        older = {key: value for key, value in whole.items() if key not in BY_LAYER} | changes
        for kind, given in (("", whole), (", lists left out", older)):
            errors, wrong, refused = differences_by_layer(given, applied, count, config.num_hidden_layers)
            good = not wrong and largest(errors) <= TOLERANCE
            status = "agrees" if good and not refused else "refused" if good and kind else "wrong"
            notes = "; ".join([*wrong, *refused])[:300]
            yield Outcome(target.config_name, case + kind, None, status, {"tables": largest(errors)}, notes)


def differences_by_layer(given, applied, count, layers_count):
    """Errors of tables, layers that only one side rotates, and errors that rope_xp raises."""
    errors, wrong, refused = [], [], []
    for index in range(layers_count):
        try:
            rope = rope_xp.from_config(given, layer=index)
        except ValueError as error:
            refused.append(f"layer {index}: {message(error)}")
            continue
        if (rope is None) != (index not in applied):
            wrong.append(f"layer {index}: rope_xp {'rotates' if rope else 'does not rotate'}")
        elif rope is not None:
            sin, cos = rope.sincos(np.arange(count))
            errors += [float(np.abs(x - y).max()) for x, y in zip((cos, sin), applied[index])]
    return errors, wrong, refused
