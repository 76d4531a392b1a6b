"""What SGLang reads: each model class is built on the device "meta" from configs that differ in one thing.

`--source` is the folder of the unzipped wheel (`pip download --no-deps sglang`). Its dependencies for CUDA are not
needed; nox's session `tests-sglang` installs the others. A config is read and changed by SGLang's own code, as
`--json-model-override-args` would; what reaches `get_rope` is compared with and without the change.
"""

import contextlib
import functools
import json
import re
from copy import deepcopy

import torch
from engine_tables import _sglang_models

ENGINE = "sglang"
LENGTH = 512
ORIGINAL = {"original_max_position_embeddings": LENGTH // 4}
# Keys of the block for each rule. All differ from what SGLang takes without them.
RULES = {
    "linear": {"factor": 3.0},
    "dynamic": {"factor": 3.0},
    "ntk": {"rope_type": "dynamic", "factor": 3.0, "alpha": 1.5},
    "llama3": {"factor": 3.0, "low_freq_factor": 1.5, "high_freq_factor": 5.0, **ORIGINAL},
    "yarn": {
        "factor": 3.0,
        "beta_fast": 5.0,
        "beta_slow": 2.0,
        "truncate": False,
        "mscale": 0.5,
        "mscale_all_dim": 0.3,
        "attn_factor": 1.3,
        "attention_factor": 1.7,
        "extrapolation_factor": 0.9,
        **ORIGINAL,
    },
    "longrope": {
        "factor": 3.0,
        "short_factor": 1.5,
        "long_factor": 2.5,
        "short_mscale": 1.1,
        "long_mscale": 1.2,
        "attention_factor": 1.3,
        **ORIGINAL,
    },
    "proportional": {"partial_rotary_factor": 0.5},
}
# One factor for each pair: written for the model's number of pairs.
LISTS = ("short_factor", "long_factor")
PARTS = (("text_config",), ("llm_config",), ("language_config",), ("thinker_config", "text_config"))
# Model types whose text model has a rotary class of its own, beside `get_rope` or without it: the script cannot see it.
OWN = ("beam", "gemma3", "gemma3_text", "glm_image", "shieldgemma2")
SMALL = {"num_hidden_layers": 2, "max_position_embeddings": LENGTH, "vocab_size": 256}

FACTS = [
    {
        "models": ["*"],
        "text": "rope_theta at the top level of an override changes nothing: it must be in rope_parameters.",
        "source": "run at 0.5.23: utils/hf_transformers/config.py:409-422 sets an attribute that classes do not read",
    },
    {
        "models": ["*"],
        "text": "An override of rope_parameters or rope_scaling at the top level is merged with the block of the file; "
        "below text_config it replaces the block.",
        "source": "utils/hf_transformers/config.py:413-422 at 0.5.23, and run",
    },
    {
        "models": ["*"],
        "text": "--context-length scales nothing, and more than factor * max_position_embeddings (without an original "
        "length in the block) is an error, unless SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN is set.",
        "source": "configs/model_config.py:1291-1319 and utils/hf_transformers/common.py:677 at 0.5.23",
    },
    {
        "models": ["*"],
        "text": "Dynamic NTK has one base for all lengths, that of factor * max_position_embeddings.",
        "source": "layers/rotary_embedding/rope_variant.py at 0.5.23, and run",
    },
]


def readings(source):
    """The version, and what each model type of transformers and of SGLang reads."""
    version = _sglang_models.load(source)
    found = {}
    for model_type, config in sorted(configs().items()):
        reading = None if model_type in OWN else of_model(config)
        if reading:
            found[model_type] = reading
    return version, found


def configs():
    """A small config for each model type that has a class in SGLang."""
    from sglang.srt.utils.hf_transformers.common import _CONFIG_REGISTRY
    from transformers.models.auto import configuration_auto, modeling_auto

    names = {}
    for table in (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_MAPPING_NAMES,
    ):
        for model_type, entry in table.items():
            for name in [entry] if isinstance(entry, str) else entry:
                names.setdefault(model_type, []).append(name)
    by_word = {re.sub(r"(For\w+|LMHeadModel|Model)$", "", name).lower(): name for name in _sglang_models.classes()}
    kinds = {**{each: None for each in configuration_auto.CONFIG_MAPPING_NAMES}, **_CONFIG_REGISTRY}
    found = {}
    for model_type, kind in kinds.items():
        known = [name for name in names.get(model_type, ()) if name in _sglang_models.classes()]
        guess = by_word.get(re.sub(r"\W|_", "", model_type).lower())
        if known or guess:
            config = small(kind or configuration_auto.CONFIG_MAPPING[model_type])
            if config:
                found[model_type] = {**config, "model_type": model_type, "architectures": [(known or [guess])[0]]}
    return found


def small(kind):
    """The default config of a class with two layers, as a file would have it; None if it cannot be made."""
    for settings in (SMALL, {}):
        try:
            config = kind(**settings).to_dict()
        except Exception:  # whatever a config's own checks raise
            continue
        for part in [config, *(config[name] for name, *_ in PARTS if isinstance(config.get(name), dict))]:
            part |= {key: value for key, value in SMALL.items() if key in part}
            if isinstance(part.get("layer_types"), list):
                part["layer_types"] = part["layer_types"][:2]
        return config
    return None


def of_model(config):
    """What a model type reads; None if its class calls no `get_rope` for this config, or only that of images."""
    plain = computed(config)
    if not plain:
        return None
    bases = {path: computed(config, path, {"rope_theta": 777.0}) for path in ((), *PARTS)}
    path = next((each for each, found in bases.items() if found not in (plain, None)), None)
    # Calls that follow the base are those of the text model.
    changed = bases.get(path) or plain
    texts = [old for old, new in zip(plain, changed, strict=False) if old != new] or [
        each for each in plain if each["max_position"] == LENGTH
    ]
    if not texts:
        return None
    first, path = texts[0], path or ()
    reading = {"path": list(path), "keys": [], "rules": {}, "fixed": {}}
    blocks = layer_types(config, path)
    if blocks:
        reading["fixed"]["blocks"] = sorted(blocks)

    def differs(block=None, keys=None):
        return computed(config, path, block, keys) not in (plain, None)

    if differs({"rope_theta": 777.0}):
        reading["keys"].append("rope_theta")
    else:
        reading["fixed"]["base"] = first["base"]
    if differs({"partial_rotary_factor": 0.25}):
        reading["keys"].append("partial_rotary_factor")
    else:
        reading["fixed"]["rotated"] = first["rotary_dim"] / first["head_size"]
    reading["keys"] += [key for key in ("head_dim", "qk_rope_head_dim") if differs(keys={key: 2 * first["head_size"]})]
    reading["fixed"]["layout"] = "half" if first["is_neox"] else "interleaved"
    half = first["rotary_dim"] // 2
    for rule, keys in RULES.items():
        block = {"rope_type": rule} | {key: [value] * half if key in LISTS else value for key, value in keys.items()}
        with_rule = computed(config, path, block)
        if with_rule in (plain, None):
            continue
        blocks = [call["rope_scaling"] for call, _ in _sglang_models.CALLS if call["rope_scaling"]] or [{}]
        computes = blocks[-1].get("rope_type", blocks[-1].get("type"))
        if computes == "deepseek_yarn" and rule == "yarn":
            rule = computes
        elif computes != block["rope_type"]:
            reading["fixed"]["rule"] = computes  # whatever rule the block names
            continue
        if rule != "proportional" or "partial_rotary_factor" in reading["keys"]:
            reading["rules"][rule] = sorted(key for key in read_by_get_rope(rule) if blocks[-1].get(key) == block[key])
    sections = {"mrope_section": [half - 2 * (half // 3), half // 3, half // 3]}
    for name, block in {"mrope": sections, "mrope_interleaved": {**sections, "mrope_interleaved": True}}.items():
        found = computed(config, path, {"rope_type": "default"} | block)
        if found and any(each["sections"] and each["sections"][0] == sections["mrope_section"] for each in found):
            reading["rules"][name] = sorted(block)
    return reading


@functools.cache
def read_by_get_rope(rule):
    """The keys of the block that `get_rope` reads for a rule: the tables differ without one of them."""
    from sglang.srt.layers.rotary_embedding.factory import get_rope

    def tables(block):
        with contextlib.suppress(Exception):  # a key that must be there
            return signature({"head_size": 64, "base": 1e4, "max_position": LENGTH}, get_rope(**call, rope_scaling=block))

    call = {"head_size": 64, "rotary_dim": 64, "max_position": LENGTH, "base": 1e4, "dtype": torch.float32}
    keys = RULES["yarn" if rule == "deepseek_yarn" else rule]
    block = {"rope_type": rule} | {key: [value] * 32 if key in LISTS else value for key, value in keys.items()}
    with_all = tables(block)
    return [
        key
        for key in keys
        if key != "rope_type" and tables({name: value for name, value in block.items() if name != key}) != with_all
    ]


def block_of(config, path):
    """The block of a part, as SGLang reads it from the file."""
    part = _sglang_models.overridden(config, None)
    for key in path:
        part = getattr(part, key)
    return json.loads(json.dumps(getattr(part, "rope_parameters", None) or {}))


def layer_types(config, path):
    """The blocks of a part that has one for each type of layers."""
    return {key: value for key, value in block_of(config, path).items() if isinstance(value, dict)}


def computed(config, path=(), block=None, keys=None):
    """What the rotary embeddings of a model compute with an override; None if there is no such model."""
    if any(not isinstance(config.get(key), dict) for key in path[:1]):
        return None
    overrides = deepcopy(keys or {})
    try:
        if block:
            stated, blocks = block_of(config, path), layer_types(config, path)
            overrides["rope_parameters"] = {key: each | block for key, each in blocks.items()} or stated | block
        for key in reversed(path):
            overrides = {key: overrides}
        read = _sglang_models.overridden(config, overrides)
    except Exception:  # whatever a config's own checks raise
        return None
    calls, _ = _sglang_models.build(read)
    return [signature(*call) for call in calls] or None


def signature(call, rotary):
    """What a rotary embedding does: its channels and its tables at some positions."""
    cache = rotary.cos_sin_cache if hasattr(rotary, "cos_sin_cache") else rotary.long_short_cos_sin_cache
    rows = cache[[1, 2, LENGTH // 2 % len(cache), -1]].tolist()
    sections = [getattr(rotary, name, None) for name in ("mrope_section", "mrope_interleaved")]
    return {
        "head_size": call["head_size"],
        "rotary_dim": rotary.rotary_dim,
        "base": float(call["base"]),
        "is_neox": getattr(rotary, "is_neox_style", True),
        "max_position": call["max_position"],
        "rows": rows,
        "length": len(cache),
        "sections": sections if sections[0] else None,
    }
