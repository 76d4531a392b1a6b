"""Whole models of transformers with rope_xp inside, beside the same models without.

Run: `python benchmarks/families.py [--quick] [--only NAME] [--out FILE]`. Each family is a tiny model with random
weights, large enough that logits are of order 1. Compared are logits, gradients, a greedy `generate` with its cache, a
batch padded at the left with its single rows, what `save_pretrained` writes, and how far the model is from itself in
float64 after `.to(bfloat16)`, without and with rope_xp. Then a decoder layer of Llama 3 8B is timed. It prints tables,
writes benchmarks/results/families.md and families.json, and fails where a family is not equal.
"""

import argparse
import hashlib
import importlib
import inspect
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from statistics import mean, median
from types import MappingProxyType
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")

import torch
import transformers

from rope_xp.huggingface import patch, patched
from rope_xp.huggingface._compare_tables import REFUSED, rotary_of
from rope_xp.huggingface._rewrite import APPLY_NAME, ClassRewriter, names_used_by

sys.path.append(str(Path(__file__).parent))  # which python -P leaves out
import parity

transformers.utils.logging.disable_progress_bar()

RESULTS = Path(__file__).parent / "results"
LOGITS = 1e-4  # the largest difference of logits of order 1, float32
# Gradients relative to the largest of all: those of rotated projections reach 0.06 of it or more, where looked at.
GRADIENTS = 1e-5

TINY = parity.TINY | {
    "num_hidden_layers": 2,
    "bos_token_id": 1,
    "eos_token_id": None,
    "max_position_embeddings": 8192,
    "attention_dropout": 0.0,
}
# A text config of two layers, one of each type.
BOTH = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
# Multi-head latent attention: as many heads for keys as for queries.
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "head_dim": 8,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0],
    "original_max_position_embeddings": 16,
    "factor": 4.0,
}
VISION = {"depth": 2, "num_heads": 4, "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2}
SECTIONS = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
IMAGE = {"image_token_id": 60, "video_token_id": 61, "vision_start_token_id": 62, "vision_end_token_id": 63}


@dataclass(frozen=True)
class Family:
    """A model class of transformers and what makes it tiny."""

    model: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    vision: Mapping[str, Any] | None = None  # of a tower, with an image in the prompt
    features: Mapping[str, tuple[int, ...]] | None = None  # of a tower alone: what it takes, and of which shape
    generates: bool = True
    longest: int = 0  # tokens of the prompt, where the usual ones are too few for a rule
    scale: float = 5.0  # of weights, for logits of order 1
    pads: bool = True  # whether a padded row is equal to a single one upstream, and has no image

    @property
    def counts(self) -> bool:
        """Whether it counts positions itself, from 0."""
        return self.vision is not None or self.features is not None or self.model.startswith("Esm")


def tower(model: str, changes: Mapping[str, Any] = MappingProxyType({}), **features: tuple[int, ...]) -> Family:
    """A model of images, or of features of sound, alone."""
    changes = {"patch_size": 4, "image_size": 24, "num_mel_bins": 16, **changes}
    return Family(model, changes, features=features or {"pixel_values": (3, 24, 24)}, generates=False, pads=False)


def rule(**block: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10_000.0, **block}}


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}

FAMILIES: dict[str, Family] = {
    "Llama": Family("LlamaForCausalLM"),
    "Llama, llama3": Family("LlamaForCausalLM", rule(**LLAMA3)),
    "Llama, linear": Family("LlamaForCausalLM", rule(rope_type="linear", factor=4.0)),
    "Llama, yarn": Family("LlamaForCausalLM", rule(**YARN)),
    "Llama, dynamic": Family(
        "LlamaForCausalLM", {**rule(rope_type="dynamic", factor=4.0), "max_position_embeddings": 16}, longest=12
    ),
    "Llama 4, text": Family("Llama4ForCausalLM", {"no_rope_layers": [1, 0], "interleave_moe_layer_step": 2}),
    "Mistral": Family("MistralForCausalLM", {"sliding_window": 6}),
    "Mixtral": Family("MixtralForCausalLM"),
    "Ministral": Family("MinistralForCausalLM"),
    "Ministral 3": Family("Ministral3ForCausalLM"),
    "Qwen2": Family("Qwen2ForCausalLM"),
    "Qwen2-MoE": Family("Qwen2MoeForCausalLM", {"shared_expert_intermediate_size": 32}),
    "Qwen3": Family("Qwen3ForCausalLM"),
    "Qwen3-MoE": Family("Qwen3MoeForCausalLM"),
    "Qwen3-Next": Family(
        "Qwen3NextForCausalLM",
        {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "shared_expert_intermediate_size": 32,
        },
    ),
    "Qwen2-VL": Family("Qwen2VLForConditionalGeneration", {"rope_parameters": SECTIONS}, {"embed_dim": 32}, pads=False),
    "Qwen2.5-VL": Family(
        "Qwen2_5_VLForConditionalGeneration",
        {"rope_parameters": SECTIONS},
        {
            "hidden_size": 32,
            "out_hidden_size": 64,
            "intermediate_size": 32,
            "window_size": 16,
            "fullatt_block_indexes": [1],
        },
        pads=False,
    ),
    "Qwen3-VL": Family(
        "Qwen3VLForConditionalGeneration",
        {"rope_parameters": {**SECTIONS, "mrope_interleaved": True}},
        {
            "hidden_size": 32,
            "out_hidden_size": 64,
            "intermediate_size": 32,
            "deepstack_visual_indexes": [0],
            "num_position_embeddings": 64,
        },
        pads=False,
    ),
    "Phi": Family("PhiForCausalLM"),
    "Phi-3": Family("Phi3ForCausalLM"),
    "Phi-3, LongRoPE short": Family(
        "Phi3ForCausalLM",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 16, "max_position_embeddings": 64},
    ),
    "Phi-3, LongRoPE long": Family(
        "Phi3ForCausalLM",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 16, "max_position_embeddings": 64},
        longest=24,
    ),
    "Phi-3.5-MoE": Family("PhimoeForCausalLM"),
    "Gemma": Family("GemmaForCausalLM"),
    "Gemma 2": Family("Gemma2ForCausalLM", {"sliding_window": 6}),
    "Gemma 3": Family("Gemma3ForCausalLM", BOTH),
    "Gemma 4": Family("Gemma4ForCausalLM", {"sliding_window": 6}),
    "VaultGemma": Family("VaultGemmaForCausalLM"),
    "GPT-J": Family("GPTJForCausalLM", {"rotary_dim": 8, "n_embd": 64, "n_head": 4, "n_layer": 2}),
    "CodeGen": Family("CodeGenForCausalLM", {"rotary_dim": 8, "n_embd": 64, "n_head": 4, "n_layer": 2}),
    "GPT-NeoX": Family("GPTNeoXForCausalLM"),
    "GPT-NeoX Japanese": Family("GPTNeoXJapaneseForCausalLM"),
    "GPT-OSS": Family("GptOssForCausalLM", BOTH),
    "Falcon": Family("FalconForCausalLM", {"alibi": False}),
    "Cohere": Family("CohereForCausalLM", {"logit_scale": 1.0}),
    "Cohere 2": Family("Cohere2ForCausalLM", {**BOTH, "logit_scale": 1.0}),
    "GLM": Family("GlmForCausalLM"),
    "GLM-4": Family("Glm4ForCausalLM"),
    "GLM-4-MoE": Family("Glm4MoeForCausalLM"),
    "GLM-4-MoE-Lite": Family("Glm4MoeLiteForCausalLM", LATENT),
    "DeepSeek-V2": Family("DeepseekV2ForCausalLM", LATENT),
    "DeepSeek-V3": Family("DeepseekV3ForCausalLM", LATENT),
    "DeepSeek-V4": Family("DeepseekV4ForCausalLM", pads=False),
    "MiniCPM3": Family("MiniCPM3ForCausalLM", LATENT, scale=2.0),
    "Youtu": Family("YoutuForCausalLM", LATENT, scale=2.0),
    "ModernBERT": Family("ModernBertForMaskedLM", generates=False),
    "ModernBERT, decoder": Family("ModernBertDecoderForCausalLM"),
    "ESM": Family("EsmForMaskedLM", {"position_embedding_type": "rotary"}, generates=False, pads=False),
    "SmolLM3": Family("SmolLM3ForCausalLM", {"no_rope_layers": [1, 0]}),
    "OLMo": Family("OlmoForCausalLM"),
    "OLMo-2": Family("Olmo2ForCausalLM"),
    "OLMo-3": Family("Olmo3ForCausalLM", BOTH),
    "OLMoE": Family("OlmoeForCausalLM"),
    "StableLM": Family("StableLmForCausalLM"),
    "StarCoder2": Family("Starcoder2ForCausalLM"),
    "Nemotron": Family("NemotronForCausalLM"),
    "nanochat": Family("NanoChatForCausalLM"),
    "Persimmon": Family("PersimmonForCausalLM"),
    "Granite": Family("GraniteForCausalLM"),
    "Granite-MoE": Family("GraniteMoeForCausalLM"),
    "Granite-SWA": Family("GraniteSWAForCausalLM", {"layer_rope_theta": [100.0, 1e4]}),
    "Dots1": Family(
        "Dots1ForCausalLM", {"n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1}
    ),
    "EXAONE 4": Family("Exaone4ForCausalLM", BOTH),
    "HunYuan": Family("HunYuanDenseV1ForCausalLM"),
    "HunYuan-MoE": Family("HunYuanMoEV1ForCausalLM"),
    "Ernie 4.5": Family("Ernie4_5ForCausalLM"),
    "Helium": Family("HeliumForCausalLM"),
    "AFMoE": Family("AfmoeForCausalLM"),
    "Apertus": Family("ApertusForCausalLM"),
    "Arcee": Family("ArceeForCausalLM"),
    "BitNet": Family("BitNetForCausalLM"),
    "DiffLlama": Family("DiffLlamaForCausalLM"),
    "Doge": Family("DogeForCausalLM", pads=False),
    "JetMoE": Family("JetMoeForCausalLM", {"kv_channels": 16}),
    "LFM2": Family("Lfm2ForCausalLM", {"layer_types": ["full_attention", "conv"]}, pads=False),
    "MiniMax": Family("MiniMaxForCausalLM", pads=False),
    "MiniMax-M2": Family("MiniMaxM2ForCausalLM"),
    "MiMo-V2-Flash": Family("MiMoV2FlashForCausalLM"),
    "Seed-OSS": Family("SeedOssForCausalLM"),
    "Hy3": Family("HYV3ForCausalLM"),
    "DINOv3": tower("DINOv3ViTModel"),
    "Sapiens 2": tower("Sapiens2Model"),
    "MLCD": replace(tower("MLCDVisionModel"), scale=2.0),
    "Pixtral, tower": tower("PixtralVisionModel"),
    "SAM 3, tower": tower("Sam3ViTModel"),
    "Llama 4, tower": tower(
        "Llama4VisionModel", {"intermediate_size": 256, "projector_input_dim": 64, "projector_output_dim": 64}
    ),
    "GLM-ASR, encoder": tower("GlmAsrEncoder", input_features=(16, 64)),
    "LASR, encoder": tower("LasrEncoder", {"conv_kernel_size": 5}, input_features=(40, 16)),
    "Voxtral, encoder": tower("VoxtralRealtimeEncoder", input_features=(16, 64)),
}


def build(family: Family, seed: int = 0) -> Any:
    """A model in float32 with random weights."""
    cls = getattr(transformers, family.model)
    config_class, changes = cls.config_class, deepcopy(dict(family.changes))
    if family.vision is not None:
        subs = config_class.sub_configs
        text = known(subs["text_config"], {**TINY, **changes})
        tower = known(subs["vision_config"], {**VISION, "hidden_size": 64, **family.vision})
        config = config_class(text_config=text, vision_config=tower, **IMAGE)
    else:
        config = config_class(**known(config_class, {**TINY, **changes}))
    config._attn_implementation = config._experts_implementation = "eager"  # which do float64 too
    torch.manual_seed(seed)
    model = cls(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(family.scale)
    return model


def known(config_class: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes without those that many families share and this one has no name for."""
    names = {*config_class.__dataclass_fields__, *config_class.attribute_map}
    return {key: value for key, value in changes.items() if key in names or key not in {*TINY, *LATENT, *VISION}}


def prompt(family: Family, seed: int = 0, rows: int = 2, dtype: Any = torch.float32) -> dict[str, Any]:
    """Token ids, with an image of 4 x 8 patches, or 8 x 4, where the model has a tower."""
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
    return {
        "input_ids": ids,
        "pixel_values": pixels,
        "image_grid_thw": grids,
        "mm_token_type_ids": (ids == 60).int(),
    }


def logits(model: Any, inputs: Mapping[str, Any], **more: Any) -> Any:
    with torch.no_grad():
        return made(model, inputs, **more)


def made(model: Any, inputs: Mapping[str, Any], **more: Any) -> Any:
    """Logits, or the last hidden states of a tower."""
    out = model(**inputs, **more)
    return out.logits if "logits" in out else out.last_hidden_state


def gradients(model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    model.zero_grad()
    out = made(model, inputs)
    (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None and p.numel()}


def of_gradients(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """The largest difference of a parameter's gradients, relative to their largest; the same parameters have some."""
    if ours.keys() != theirs.keys():
        return float("inf")
    scale = float(torch.stack([g.abs().max() for g in theirs.values()]).max())
    return difference(ours.values(), [theirs[name] for name in ours]) / scale


def answers(model: Any, family: Family) -> list[Any]:
    """Logits: of tokens in a row, and of two rows where tokens are not as far apart as in the other."""
    inputs = prompt(family)
    found = [logits(model, inputs)]
    if not family.counts:
        ids = inputs["input_ids"]
        positions = torch.arange(ids.shape[1]) * torch.tensor([[1], [3]])
        if reaches(model, positions):
            found.append(logits(model, inputs, attention_mask=torch.ones_like(ids), position_ids=positions))
    return found


def reaches(model: Any, positions: Any) -> bool:
    return bool(positions.max() < model.config.get_text_config().max_position_embeddings)


def difference(ours: Iterable[Any], theirs: Iterable[Any]) -> float:
    """The largest of any numbers; NaN where there is one."""
    return float(torch.stack([(one - other).abs().max() for one, other in zip(ours, theirs, strict=True)]).max())


def generated(model: Any, family: Family) -> list[Any]:
    """Greedily with a cache, from a prompt and from one that is padded at the left."""
    prompts = [prompt(family), padding(family)] if family.pads else [prompt(family)]
    return [model.generate(**each, max_new_tokens=12, do_sample=False, pad_token_id=0) for each in prompts]


def padding(family: Family) -> dict[str, Any]:
    """Two rows, of which the second begins with padding."""
    ids = prompt(family)["input_ids"].flip(0)
    ids[1, 3:] = ids[1, :-3].clone()
    ids[1, :3] = 0
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def padded(model: Any, family: Family) -> float:
    """The largest difference of the last token's logits in a row that is padded at the left from those of it alone."""
    both = padding(family)
    where = (both["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    alone = {"input_ids": both["input_ids"][1:, 3:]}
    return difference([logits(model, both, position_ids=where)[1, -1]], [logits(model, alone)[0, -1]])


def written(model: Any) -> dict[str, str]:
    """What `save_pretrained` writes, by file."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        files = sorted(Path(folder).iterdir())
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


# Prompts in bfloat16: tokens (the family's own where 0), the first position, and the step from token to token.
PROMPTS = {
    "short": ((0, 0, 1), (0, 4000, 1)),
    "long": ((512, 0, 1),),
    "far": ((0, 0, 400),),  # as in a long prompt of which attention reads a few
}


def in_bfloat16(family: Family, seeds: int) -> dict[str, tuple[float, float]]:
    """Mean distances of logits in bfloat16 from those in float64, without and with rope_xp, for each of `PROMPTS`."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in PROMPTS}
    for seed in range(seeds):
        exact = build(family, seed)
        with torch.no_grad():
            for weight in exact.parameters():
                weight.copy_(weight.to(torch.bfloat16))
        exact.double()  # and not .to(torch.float64), which makes real numbers of complex ones
        theirs, ours = build(family, seed).to(torch.bfloat16), patch(build(family, seed).to(torch.bfloat16))
        for name, tokens, first, step in ((name, *each) for name, prompts in PROMPTS.items() for each in prompts):
            if (family.counts and (first, step) != (0, 1)) or (family.features and tokens):
                continue
            inputs = prompt(replace(family, longest=tokens or family.longest), seed, 1, torch.float64)
            small = {key: x.to(torch.bfloat16) if x.is_floating_point() else x for key, x in inputs.items()}
            more = {}
            if not family.features:
                ids = inputs["input_ids"]
                positions = first + step * torch.arange(ids.shape[1])
                if not reaches(exact, positions):
                    continue
                more["attention_mask"] = torch.ones_like(ids)  # far positions are not packed sequences
                if not family.counts:
                    more["position_ids"] = positions[None]
            truth = logits(exact, inputs, **more)
            pair = (float((logits(model, small, **more) - truth).abs().mean()) for model in (theirs, ours))
            found[name].append(tuple(pair))
    return {name: tuple(map(mean, zip(*pairs))) for name, pairs in found.items() if pairs}


@dataclass(frozen=True)
class Row:
    """What a family came to."""

    family: str
    model: str
    size: float  # standard deviation of logits
    logits: float
    generation: bool | None
    padded: float | None
    gradients: float
    saved: bool
    bfloat16: Mapping[str, tuple[float, float]]

    @property
    def good(self) -> bool:
        return (
            self.logits <= LOGITS
            and self.generation is not False
            and (self.padded is None or self.padded <= LOGITS)
            and self.gradients <= GRADIENTS
            and self.saved
        )


def measure(name: str, model: Any, seeds: int) -> Row:
    """A model of a family, without rope_xp and with it, and others like it in bfloat16."""
    family = FAMILIES[name]
    theirs, their_gradients, their_files = answers(model, family), gradients(model, prompt(family)), written(model)
    their_tokens = generated(model, family) if family.generates else None
    with patched(model):
        return Row(
            family=name,
            model=family.model,
            size=float(theirs[0].std()),
            logits=difference(answers(model, family), theirs),
            generation=all(map(torch.equal, generated(model, family), their_tokens)) if their_tokens else None,
            padded=padded(model, family) if family.pads else None,
            gradients=of_gradients(gradients(model, prompt(family)), their_gradients),
            saved=written(model) == their_files,
            bfloat16=in_bfloat16(family, seeds),
        )


# Every rotary class, apart from any model.


def classes() -> dict[str, str]:
    """Why each rotary class that `benchmarks/parity.py` knows cannot be patched, or nothing."""
    reasons = {}
    for (folder, file), classes in groupby(parity.found(), lambda each: each[:2]):
        try:
            module = importlib.import_module(f"transformers.models.{folder}.{file}")
        except ImportError as error:  # of a package that this one class needs
            reasons |= {name: f"cannot be imported: {error}" for *_, name in classes}
            continue
        # Without attention: its tables are those of another class, or its own, as of GPT-J above.
        names = [name for *_, name in classes if name in REFUSED or not name.endswith("Attention")]
        rotaries = {}
        for name in names:
            reasons[name] = REFUSED.get(name, "")
            if name in REFUSED:
                continue  # before it is made, which may need more than a config
            try:
                rotaries[name] = rotary_of("patch", made_by_default(module, name))
            except Exception as error:  # whatever code that nobody knows raises
                reasons[name] = str(error).rpartition("Embedding: ")[2]
        rewriter = ClassRewriter("patch", rotaries.values())
        try:
            for function in sorted(applied(module)) if rotaries else ():
                rewriter.replacement_for(function, getattr(module, function), module.__name__)
        except ValueError as error:
            reasons |= dict.fromkeys(rotaries, str(error))
    return reasons


def made_by_default(module: Any, name: str) -> Any:
    """A rotary module with the default config, or what else it needs."""
    subject = parity.listed(parity.SUBJECTS.get(name, parity.Subject()))[0]
    needs = subject.needs(module) if callable(subject.needs) else dict(subject.needs)
    cls = getattr(module, name)
    return cls(parity.make(module, subject.config or parity.annotated(cls), needs))


def applied(module: Any) -> set[str]:
    """The apply functions that classes of a file call."""
    called = set()
    for cls in vars(module).values():
        if isinstance(cls, type) and cls.__module__ == module.__name__:
            called.update(*(names_used_by(inspect.unwrap(each)) for each in vars(cls).values() if callable(each)))
    return {name for name in called.intersection(vars(module)) if APPLY_NAME.match(name)}


# Speed.


def timed(repeats: int, *calls: Any) -> list[tuple[float, float]]:
    """The least and the median of the milliseconds that each call takes, all of them in turn."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(repeats):
        for call, own in zip(calls, times):
            start = time.perf_counter()
            call()
            own.append(1e3 * (time.perf_counter() - start))
    return [(min(own), median(own)) for own in times]


def speeds(quick: bool) -> dict[str, list[tuple[float, float]]]:
    """Attention of Llama 3 8B and what of it is replaced, without and with rope_xp."""
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = transformers.LlamaConfig(
        hidden_size=512 if quick else 4096,
        num_attention_heads=4 if quick else 32,
        num_key_value_heads=1 if quick else 8,
        head_dim=128,
        max_position_embeddings=8192,
    )
    config._attn_implementation = "sdpa"
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        theirs = torch.nn.ModuleDict({"attn": LlamaAttention(config, 0), "rotary": LlamaRotaryEmbedding(config)}).eval()
        theirs["attn"].to(dtype)
        ours = patch(deepcopy(theirs))
        apply = {id(theirs): apply_rotary_pos_emb}
        apply[id(ours)] = type(ours["attn"]).forward.__globals__["apply_rotary_pos_emb"]
        for tokens, repeats in ((2048 if not quick else 64, 3 if quick else 7), (1, 200)):
            hidden = torch.randn(1, tokens, config.hidden_size, dtype=dtype)
            where = torch.arange(4000, 4000 + tokens)[None]
            q = torch.randn(1, tokens, config.num_attention_heads, 128, dtype=dtype).transpose(1, 2)
            k = torch.randn(1, tokens, config.num_key_value_heads, 128, dtype=dtype).transpose(1, 2)
            tables = {id(model): model["rotary"](hidden, where) for model in (theirs, ours)}

            def whole(model, hidden=hidden, where=where):
                with torch.no_grad():
                    model["attn"](hidden, model["rotary"](hidden, where), None)

            def rotation(model, q=q, k=k, tables=tables, apply=apply):
                with torch.no_grad():
                    apply[id(model)](q, k, *tables[id(model)])

            name = f"{str(dtype).removeprefix('torch.')}, {'prefill' if tokens > 1 else 'decode'}"
            for what, call in (("q and k", rotation), ("attention", whole)):
                found[f"{what}, {name}"] = timed(repeats, partial(call, theirs), partial(call, ours))
    return found


# The report.


def columns(row: Row) -> list[str]:
    pairs = [row.bfloat16.get(name) for name in PROMPTS]
    shown = [f"{pair[1] / pair[0]:.2f}" if pair else "-" for pair in pairs]
    generation = {None: "-", True: "equal", False: "differs"}[row.generation]
    pads = "-" if row.padded is None else f"{row.padded:.0e}"
    saved = "equal" if row.saved else "differs"
    return [row.family, f"{row.logits:.0e}", generation, pads, f"{row.gradients:.0e}", saved, *shown]


HEADS = ("family", "logits", "generate", "padded", "grads", "saved", *(f"bf16, {name}" for name in PROMPTS))


def show(rows: list[Row], reasons: Mapping[str, str], times: Mapping[str, Any], console: Any) -> None:
    from rich.table import Table

    table = Table(title="With rope_xp beside without; bf16: error of that without", box=None, padding=(0, 1, 0, 0))
    for head in HEADS:
        table.add_column(head, no_wrap="," not in head, justify="left" if head == "family" else "right")
    for row in rows:
        table.add_row(*columns(row), style="" if row.good else "red")
    console.print(table)
    console.print(*summary(rows, reasons), sep="\n")
    for name, (theirs, ours) in times.items():
        console.print(
            f"{name}: {theirs[0]:.2f} ms without (median {theirs[1]:.2f}), {ours[0]:.2f} with ({ours[1]:.2f})"
        )


def summary(rows: list[Row], reasons: Mapping[str, str]) -> list[str]:
    lines = [f"{sum(row.good for row in rows)} of {len(rows)} families are equal."]
    for name in PROMPTS:
        ratio, closer, count = closeness(rows, name)
        if count:
            lines.append(
                f"In bfloat16, {name}: {closer} of {count} are closer to float64 with rope_xp, whose median error is "
                f"{ratio:.2f} of that without."
            )
    if reasons:
        lines.append(f"{sum(not why for why in reasons.values())} of {len(reasons)} rotary classes can be patched.")
        lines += [f"refused: {name}: {why}" for name, why in reasons.items() if why]
    return lines


def closeness(rows: list[Row], name: str) -> tuple[float, int, int]:
    """The median error of a prompt in bfloat16, of that without rope_xp; how many are less; and of how many."""
    ratios = [ours / theirs for row in rows if name in row.bfloat16 for theirs, ours in [row.bfloat16[name]]]
    return median(ratios or [0.0]), sum(ratio < 1 for ratio in ratios), len(ratios)


def write(rows: list[Row], reasons: Mapping[str, str], times: Mapping[str, Any], out: Path) -> None:
    lines = [
        f"Tiny models of transformers {version('transformers')} with rope_xp inside, beside the same without; torch "
        f"{version('torch')}, on the CPU.\n",
        "Made by `python benchmarks/families.py`. logits: the largest difference, float32, of logits of order 1. "
        "generate: 12 tokens, greedily, with the cache, of two prompts, and with one of them padded at the left. "
        "padded: a row padded at the left, and alone. "
        "grads: relative to the largest. saved: every byte that `save_pretrained` writes. bf16: the mean distance of "
        "logits after `.to(bfloat16)` from those of the same weights in float64 without rope_xp, with it, of that "
        "without; short: 9 tokens in a row, from 0 and from 4000 on; long: 512 tokens in a row; far: 9 tokens, 400 "
        "apart.\n",
        *[f"{line}\n" for line in summary(rows, reasons)],
        f"| {' | '.join(HEADS)} |",
        f"|---|{'---:|' * (len(HEADS) - 1)}",
        *[f"| {' | '.join(columns(row))} |" for row in rows],
        "\n| milliseconds | without, least | median | with, least | median |",
        "|---|---:|---:|---:|---:|",
        *[
            f"| {name} | {' | '.join(f'{each:.2f}' for pair in pairs for each in pair)} |"
            for name, pairs in times.items()
        ],
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join([*lines, ""]))
    report = {"transformers": version("transformers"), "torch": version("torch"), "classes": dict(reasons)}
    report |= {"families": [asdict(row) for row in rows], "milliseconds": dict(times)}
    out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="each eighth family, one seed, a small layer")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a family")
    parser.add_argument("--out", type=Path, help="Markdown file to write, beside JSON")
    arguments = parser.parse_args(argv)
    out = arguments.out or RESULTS / ("quick" if arguments.quick else "") / "families.md"
    warnings.simplefilter("ignore")  # those of configs that upstream finds odd
    from rich.console import Console  # here, as the tests use this file without it
    from rich.progress import track

    console = Console(width=80)
    names = arguments.only or list(FAMILIES)[:: 8 if arguments.quick else 1]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # thousands of small products: threads only wait for each other
    seeds = 1 if arguments.quick else 6
    rows, reasons = [], {}
    for name in track(names, console=console, transient=True):
        try:
            model = build(FAMILIES[name])
        except (ImportError, AttributeError) as error:  # this transformers lacks it, or what it needs is not installed
            reasons[name] = f"cannot be made: {error}"
            continue
        rows.append(measure(name, model, seeds))
    reasons |= {} if arguments.only else classes()
    torch.set_num_threads(threads)
    times = {} if arguments.only else speeds(arguments.quick)
    show(rows, reasons, times, console)
    if not arguments.only:
        write(rows, reasons, times, out)
    wrong = [row.family for row in rows if not row.good]
    if wrong:
        sys.exit(f"not equal: {', '.join(wrong)}")
    for name in () if arguments.only else ("long", "far"):  # of many families, as single ones scatter
        if (ratio := closeness(rows, name)[0]) >= 1:
            sys.exit(f"no closer to float64 in bfloat16: {name}: {ratio}")


if __name__ == "__main__":
    main()
