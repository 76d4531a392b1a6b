"""What an engine reads, found by building its model classes from configs that differ in one thing.

An engine is a module with `classes()`, the architectures that it has; `kinds()`, its own classes of configs by model
type; `overridden(config, overrides)`, the config that its own code makes of a file and of overrides; and
`build(config)`, what the rotary embeddings of its model compute, each as a dict with these keys: `head_size`,
`rotary_dim`, `base`, `max_position`, `rule`, `sections`, `tables` and, if they are known, `layout` and `reached`, the
block without its base and lists.
"""

import functools
import json
import re
import sys
from copy import deepcopy

LENGTH = 512
ORIGINAL = {"original_max_position_embeddings": LENGTH // 4}
# Keys of the block for each rule. All differ from what engines take without them.
RULES = {
    "default": {},
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
# Rules that are computed only if one of their keys is read.
NAMED_BY = {"ntk": "alpha", "proportional": "partial_rotary_factor"}
# One factor for each pair: written for the model's number of pairs.
LISTS = ("short_factor", "long_factor")
PARTS = (("text_config",), ("llm_config",), ("language_config",), ("thinker_config", "text_config"))
# Attributes of configs that an engine sets before it builds a model, or that only the files of checkpoints have.
ATTRIBUTES = {
    "bos_token_id": 1,
    "encoder_only": False,
    "eos_token_id": 2,
    "first_k_dense_replace": 1,
    "full_attention_interval": 2,
    "hidden_act": "silu",
    "in_chans": 3,
    "language_only": False,
    "moe_layer_freq": 1,
    "norm_topk_prob": True,
    "num_experts": 4,
    "pad_token_id": 0,
    "scoring_func": "sigmoid",
}
READ, BLOCKS = {}, {}  # what `read_keys` and `block_of` have found
REACHED = []  # the blocks that reached the embeddings of the last model
# Model types half of whose heads is odd in the default config, and the part with the key.
ODD = {"glm4_moe": (), "glm4v_moe": ("text_config",)}
SMALL = {"num_hidden_layers": 2, "max_position_embeddings": LENGTH}


def readings(engine, without=()):
    """What each model type that has a class in an engine reads, but for some."""
    found = {}
    for model_type, config in sorted(configs(engine).items()):
        reading = None if model_type in without else of_model(engine, config)
        print(model_type, "is read" if reading else "is not known", file=sys.stderr, flush=True)
        if reading:
            found[model_type] = reading
    return found


def configs(engine):
    """A small config for each model type that has a class in an engine."""
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
    by_word = {re.sub(r"(For\w+|LMHeadModel|Model)$", "", name).lower(): name for name in engine.classes()}
    kinds = {**{each: None for each in configuration_auto.CONFIG_MAPPING_NAMES}, **engine.kinds()}
    found = {}
    for model_type, kind in kinds.items():
        known = [name for name in names.get(model_type, ()) if name in engine.classes()]
        guess = by_word.get(re.sub(r"\W|_", "", model_type).lower())
        if known or guess:
            config = small(kind or configuration_auto.CONFIG_MAPPING[model_type])
            if config:
                found[model_type] = {**config, "model_type": model_type, "architectures": [(known or [guess])[0]]}
    for model_type in found.keys() & ODD.keys():
        part, path = found[model_type], ODD[model_type]
        for key in path:
            part = part[key]
        part["head_dim"] = 64
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


def of_model(engine, config):
    """What a model type reads; None if its class makes no rotary embedding from this config, or only that of images."""
    plain = computed(engine, config)
    if not plain:
        return None
    bases = {path: computed(engine, config, path, {"rope_theta": 777.0}) for path in ((), *PARTS)}
    path = next((each for each, found in bases.items() if found not in (plain, None)), None)
    # Embeddings that follow the base are those of the text model.
    texts = [old for old, new in zip(plain, bases.get(path) or plain, strict=False) if old != new]
    texts = texts or [each for each in plain if each["max_position"] == LENGTH]
    if not texts:
        return None
    first, path = texts[0], path or ()
    of = functools.partial(computed, engine, config, path)  # of a block, and of keys beside it
    widths = {key: of(None, {key: 2 * first["head_size"]}) for key in ("head_dim", "qk_rope_head_dim")}
    places, defaults, fixed = {}, {}, {}
    for key, name, value, others in (
        ("rope_theta", "base", first["base"], (777.0, 555.0)),
        ("partial_rotary_factor", "rotated", first["rotary_dim"] / first["head_size"], (0.75, 0.375)),
    ):
        found = places_of(key, others, plain, of)
        if not found:
            fixed[name] = value
        else:
            places[key] = found
            if "block" not in found or name == "rotated":  # a base in the block is that of the config's class
                defaults[key] = value
    if "layout" in first:
        fixed["layout"] = first["layout"]
    blocks = layer_types(engine, config, path)
    if blocks:
        fixed["blocks"] = sorted(blocks)
    return {
        "path": list(path),
        "keys": [key for key, found in widths.items() if found not in (plain, None)],
        "places": places,
        **({"defaults": defaults} if defaults else {}),
        "rules": dict(rules(engine, config, path, first)),
        "fixed": fixed,
    }


def places_of(key, values, plain, of):
    """Where a class reads a key, in the block or in the config beside it. The first one counts first."""
    block, beside = ({key: value} for value in values)
    results = {"block": of(block), "config": of(None, beside)}
    places = [place for place, found in results.items() if found not in (plain, None)]
    both = of(block, beside)
    return sorted(places, key=lambda place: results[place] != both)


def rules(engine, config, path, plain):
    """The rules that reach the rotary embedding, and the keys of the block that they read."""
    half = plain["rotary_dim"] // 2
    sections = {"mrope_section": [half - 2 * (half // 3), half // 3, half // 3], "mrope_interleaved": True}

    def texts(block):
        """What the embeddings of the text model compute."""
        found = computed(engine, config, path, block) or []
        return [each for each in found if each["max_position"] == plain["max_position"] or each["rule"] != "default"]

    for name, keys in RULES.items():
        block = {"rope_type": name} | {key: [value] * half if key in LISTS else value for key, value in keys.items()}
        found, reached = texts(block), list(REACHED)
        computes = {each["rule"] for each in found} - {"default"} or {plain["rule"]}
        # A class may compute another rule than the one that the block names. `deepseek_yarn` is YaRN with other keys.
        rule = "deepseek_yarn" if computes == {"deepseek_yarn"} and name == "yarn" else name
        if name != "default" and block["rope_type"] not in computes and rule == name:
            continue
        read = read_keys(keys, block, found, reached, texts)
        needed = {key: value for key, value in block.items() if key in ("rope_type", "factor", *LISTS, *ORIGINAL)}
        several = texts(needed | sections)
        if any(each["sections"] and each["sections"][0] == sections["mrope_section"] for each in several):
            read += [key for key, is_read in zip(sections, several[-1]["sections"], strict=True) if is_read]
        if read and NAMED_BY.get(name, read[0]) in read:
            yield rule, sorted(read)


def read_keys(keys, block, found, reached, texts):
    """The keys of a block without which another embedding is computed.

    Where an engine says which block reached its embedding (`reached`), it is asked once for each such block.
    """
    blocks = [each for each in reached if each]
    known = json.dumps([block["rope_type"], blocks[:1]], sort_keys=True) if blocks else None
    if known is None or known not in READ:
        READ[known] = [
            key
            for key in keys
            if key != "rope_type" and texts({one: value for one, value in block.items() if one != key}) != found
        ]
    return list(READ[known])


def block_of(engine, config, path):
    """The block of a part, as the engine reads it from the file."""
    key = json.dumps([config, path], sort_keys=True)
    if key not in BLOCKS:
        part = engine.overridden(config, None)
        for name in path:
            part = getattr(part, name)
        BLOCKS[key] = json.dumps(getattr(part, "rope_parameters", None) or {})
    return json.loads(BLOCKS[key])


def layer_types(engine, config, path):
    """The blocks of a part that has one for each type of layers."""
    return {key: value for key, value in block_of(engine, config, path).items() if isinstance(value, dict)}


def computed(engine, config, path=(), block=None, keys=None):
    """What the rotary embeddings of a model compute with an override; None if there is no such model."""
    if any(not isinstance(config.get(key), dict) for key in path[:1]):
        return None
    overrides = deepcopy(keys or {})
    try:
        if block:
            stated, blocks = block_of(engine, config, path), layer_types(engine, config, path)
            overrides["rope_parameters"] = {key: each | block for key, each in blocks.items()} or stated | block
        for key in reversed(path):
            overrides = {key: overrides}
        read = engine.overridden(config, overrides)
    except Exception:  # whatever a config's own checks raise
        return None
    found = engine.build(complete(read))[0]
    REACHED[:] = [each.pop("reached", None) for each in found]
    return found or None


def complete(config):
    """A config object with the attributes that models read and that its class does not have."""
    for part in [config, *(each for each in vars(config).values() if hasattr(each, "to_dict"))]:
        for name, value in ATTRIBUTES.items():
            if not hasattr(part, name):
                setattr(part, name, value)
    return config
