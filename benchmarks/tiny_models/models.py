"""Tiny models with random weights, and their inputs. Weights are so large that logits are of order 1."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from rotary_classes.layers import TINY as TINY_LAYERS
from rotary_classes.layers import keys_of

TINY = TINY_LAYERS | {"num_hidden_layers": 2, "bos_token_id": 1, "eos_token_id": None, "attention_dropout": 0.0}
TINY |= {"max_position_embeddings": 8192}
# A text config of two layers, one of each type.
BOTH = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
# Multi-head latent attention: as many heads for keys as for queries.
LATENT = {"num_key_value_heads": 4, "head_dim": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
LATENT |= {"q_lora_rank": 16, "kv_lora_rank": 16, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
VISION = {"depth": 2, "num_heads": 4, "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2}
IMAGE = {"image_token_id": 60, "video_token_id": 61, "vision_start_token_id": 62, "vision_end_token_id": 63}


@dataclass(frozen=True)
class Family:
    """A model class of transformers, and the changes that make it tiny."""

    model: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    vision: Mapping[str, Any] | None = None  # the vision config, if the prompt has an image
    features: Mapping[str, tuple[int, ...]] | None = None  # the inputs of a tower alone, with their shapes
    generates: bool = True
    longest: int = 0  # tokens of the prompt, if a rule needs more than usual
    scale: float = 5.0  # of weights, for logits of order 1
    pads: bool = True  # whether padding changes nothing in transformers; prompts with images are not padded

    @property
    def counts_positions(self):
        """Whether the model counts positions itself, from 0."""
        return self.vision is not None or self.features is not None or self.model.startswith("Esm")


def causal(stems, *changes, variant="", **more):
    """Models of text with the same changes."""
    return {stem + variant: Family(f"{stem}ForCausalLM", *changes, **more) for stem in stems.split()}


def with_image(stem, rule, **vision):
    """A model of text and images. Its positions have three axes."""
    rule = {"rope_type": "default", "mrope_section": [2, 3, 3], **rule}
    return Family(f"{stem}ForConditionalGeneration", block(**rule), vision, pads=False)


def tower(model, changes=(), scale=5.0, **features):
    """A model of images alone, or of sound features alone."""
    changes = {"patch_size": 4, "image_size": 24, "num_mel_bins": 16, **dict(changes)}
    features = features or {"pixel_values": (3, 24, 24)}
    return Family(model, changes, features=features, generates=False, pads=False, scale=scale)


def block(**rule):
    return {"rope_parameters": {"rope_theta": 10_000.0, **rule}}


ORIGINAL = {"original_max_position_embeddings": 16}
LLAMA3 = block(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, **ORIGINAL)
DYNAMIC = {**block(rope_type="dynamic", factor=4.0), "max_position_embeddings": 16}
FACTORS = {"short_factor": [1 + n / 10 for n in range(8)], "long_factor": [1.0, *map(float, range(2, 15, 2))]}
LONGROPE = block(rope_type="longrope", factor=4.0, **FACTORS, **ORIGINAL) | ORIGINAL | {"max_position_embeddings": 64}
LINEAR = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16}
LINEAR |= {"linear_value_head_dim": 16, "layer_types": ["linear_attention", "full_attention"]}
GPTJ = {"rotary_dim": 8, "n_embd": 64, "n_head": 4, "n_layer": 2}
ONE_GROUP = {"n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1}
PROJECTOR = {"intermediate_size": 256, "projector_input_dim": 64, "projector_output_dim": 64}
QWEN = {"hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 32}
DEEPSTACK = {"deepstack_visual_indexes": [0], "num_position_embeddings": 64}
SLIDING = {"sliding_window": 6}
# Models of text by their changes.
PLAIN = """
Llama Mixtral Ministral Ministral3 Qwen2 Qwen3 Qwen3Moe Phi Phi3 Phimoe Gemma VaultGemma GPTNeoX GPTNeoXJapanese Glm
Glm4 Glm4Moe ModernBertDecoder Olmo Olmo2 Olmoe StableLm Starcoder2 Nemotron NanoChat Persimmon Granite GraniteMoe
HunYuanDenseV1 HunYuanMoEV1 Ernie4_5 Helium Afmoe Apertus Arcee BitNet DiffLlama MiniMaxM2 MiMoV2Flash SeedOss HYV3
"""
FAMILIES: dict[str, Family] = {
    **causal(PLAIN),
    **causal("Gemma3 GptOss Olmo3 Exaone4", BOTH),
    **causal("Mistral Gemma2 Gemma4", SLIDING),
    **causal("GPTJ CodeGen", GPTJ),
    **causal("DeepseekV2 DeepseekV3 Glm4MoeLite", LATENT),
    **causal("MiniCPM3 Youtu", LATENT, scale=2.0),
    **causal("DeepseekV4 Doge MiniMax", pads=False),
    **causal("Lfm2", {"layer_types": ["full_attention", "conv"]}, pads=False),
    **causal("Qwen2Moe", {"shared_expert_intermediate_size": 32}),
    **causal("Qwen3Next", {**LINEAR, "shared_expert_intermediate_size": 32}),
    **causal("Llama4", {"no_rope_layers": [1, 0], "interleave_moe_layer_step": 2}),
    **causal("SmolLM3", {"no_rope_layers": [1, 0]}),
    **causal("GraniteSWA", {"layer_rope_theta": [100.0, 1e4]}),
    **causal("Falcon", {"alibi": False}),
    **causal("Cohere", {"logit_scale": 1.0}),
    **causal("Cohere2", {**BOTH, "logit_scale": 1.0}),
    **causal("Dots1", ONE_GROUP),
    **causal("JetMoe", {"kv_channels": 16}),
    **causal("Llama", LLAMA3, variant=", llama3"),
    **causal("Llama", block(rope_type="linear", factor=4.0), variant=", linear"),
    **causal("Llama", block(rope_type="yarn", factor=4.0, **ORIGINAL), variant=", yarn"),
    **causal("Llama", DYNAMIC, variant=", dynamic", longest=12),
    **causal("Phi3", LONGROPE, variant=", LongRoPE short"),
    **causal("Phi3", LONGROPE, variant=", LongRoPE long", longest=24),
    "NeoMME": Family("NeoMMEModel", {**BOTH, "head_dim": 16}, generates=False, pads=False),
    "ModernBert": Family("ModernBertForMaskedLM", generates=False),
    "Esm": Family("EsmForMaskedLM", {"position_embedding_type": "rotary"}, generates=False, pads=False),
    "Qwen2VL": with_image("Qwen2VL", {}, embed_dim=32),
    "Qwen2_5_VL": with_image("Qwen2_5_VL", {}, **QWEN, window_size=16, fullatt_block_indexes=[1]),
    "Qwen3VL": with_image("Qwen3VL", {"mrope_interleaved": True}, **QWEN, **DEEPSTACK),
    "DINOv3": tower("DINOv3ViTModel"),
    "Sapiens2": tower("Sapiens2Model"),
    "MLCD": tower("MLCDVisionModel", scale=2.0),
    "Pixtral, tower": tower("PixtralVisionModel"),
    "Sam3, tower": tower("Sam3ViTModel"),
    "Llama4, tower": tower("Llama4VisionModel", PROJECTOR),
    "GlmAsr, encoder": tower("GlmAsrEncoder", input_features=(16, 64)),
    "Lasr, encoder": tower("LasrEncoder", {"conv_kernel_size": 5}, input_features=(40, 16)),
    "Voxtral, encoder": tower("VoxtralRealtimeEncoder", input_features=(16, 64)),
}


def build(family, seed=0):
    """A model in float32 with random weights."""
    cls = getattr(transformers, family.model)
    config_class, changes = cls.config_class, deepcopy(dict(family.changes))
    if family.vision is not None:
        subs = config_class.sub_configs
        text = known_changes(subs["text_config"], {**TINY, **changes})
        vision = known_changes(subs["vision_config"], {**VISION, "hidden_size": 64, **family.vision})
        config = config_class(text_config=text, vision_config=vision, **IMAGE)
    else:
        config = config_class(**known_changes(config_class, {**TINY, **changes}))
    config._attn_implementation = config._experts_implementation = "eager"  # these support float64
    torch.manual_seed(seed)
    model = cls(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if family.model == "NeoMMEModel" and name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.normal_(std=0.02)  # they begin as zeros, with which attention changes nothing
            if weight.ndim > 1:
                weight.mul_(family.scale)
    return model


def known_changes(config_class, changes):
    """The changes, without shared ones that this config does not have."""
    unknown = {*TINY, *LATENT, *VISION} - keys_of(config_class)
    return {key: value for key, value in changes.items() if key not in unknown}


def prompt(family, seed=0, rows=2, dtype=torch.float32):
    """Token ids. If the model has a tower, also an image of 4 x 8 patches for one row and 8 x 4 for the other."""
    random = torch.Generator().manual_seed(seed)
    if family.features is not None:
        shapes = family.features.items()
        return {name: torch.randn(rows, *shape, generator=random, dtype=dtype) for name, shape in shapes}
    ids = torch.randint(2, 60, (rows, family.longest or 9), generator=random)
    if family.vision is None:
        return {"input_ids": ids}
    image = torch.tensor([62, *[60] * 8, 63]).expand(rows, -1)
    ids = torch.cat((ids[:, :3], image, ids[:, 3:]), 1)
    pixels = torch.randn(rows * 32, 3 * 2 * 4 * 4, generator=random, dtype=dtype)
    grids = torch.tensor([[1, 4, 8], [1, 8, 4]])[:rows]
    is_image = (ids == 60).int()
    return {"input_ids": ids, "pixel_values": pixels, "image_grid_thw": grids, "mm_token_type_ids": is_image}


def padded_prompt(family):
    """Two rows. The second begins with padding."""
    ids = prompt(family)["input_ids"].flip(0)
    ids[1, 3:] = ids[1, :-3].clone()
    ids[1, :3] = 0
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}
