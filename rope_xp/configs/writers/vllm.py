"""Write an embedding as arguments of vLLM, by what `rope_xp/configs/engines` says that it reads."""

import json
from collections.abc import Mapping
from math import ceil, isclose

from rope_xp.configs import engines
from rope_xp.configs.writers import Options, limits, require_layers
from rope_xp.configs.writers.transformers import rope_parameters
from rope_xp.errors import wrong_value
from rope_xp.frequencies import DynamicNTKScaling, LongRopeScaling, MixedNTKScaling, NTKScaling, YarnScaling
from rope_xp.types import Embedding, Values

# Rules whose `max_position_embeddings` is the length with scaling. vLLM multiplies that of others by `factor`.
SCALED_LENGTH = ("llama3", "longrope", "yarn", "deepseek_yarn")
# Types of layers by which rotary blocks are nested, as in transformers (`is_rope_parameters_nested`).
TYPES = {"full_attention", "sliding_attention", "chunked_attention"}


def vllm_flags(rope: Embedding, options: Options) -> list[str]:
    """`--hf-overrides` with the `rope_parameters` of the config, where vLLM reads them."""
    table, reading = _reading_of(rope, options)
    if reading.nested:
        raise wrong_value(
            f"{table.name} must have one block for each type of layers for model type "
            f"{rope._provenance.model_type!r}; got one: rope-xp convert FILE --to vllm writes those of the file"
        )
    require_layers(rope, "vllm", "all")  # one block for all layers, unlike the nested ones of `flags_of_types`
    flags, rule = _flags(_keys(rope, table, reading), reading.path, rope, options.context), rope.scaling
    has_one_list = not isinstance(rule, LongRopeScaling) or rule.short_factor == rule.long_factor
    if has_one_list or reading.by:  # transformers chooses a list at each call
        return flags
    original = rule.original_max_position_embeddings
    if options.context is None:  # the length chooses the list
        return [*flags, "--max-model-len", str(rule.seq_len if rule.is_long else original)]
    if rule.is_long != (options.context > original):
        must = f"greater than {original} for long_factor" if rule.is_long else f"at most {original} for short_factor"
        raise wrong_value(
            f"context must be {must} in vLLM, which chooses the list by it; got {options.context}: from_config needs "
            "the same seq_len"
        )
    return flags


def flags_of_types(ropes: Mapping[str, Embedding], options: Options) -> list[str]:
    """The same for layers that differ: `rope_parameters` is nested by their types."""
    if not TYPES.issuperset(ropes):
        raise wrong_value(
            f"layers must differ by the types {', '.join(sorted(TYPES))} for vLLM, whose rotary block is nested by "
            f"them; got {'; '.join(ropes)}"
        )
    blocks, path = {}, ()
    for name, rope in ropes.items():
        table, reading = _reading_of(rope, options)
        blocks[name], path = _keys(rope, table, reading)["rope_parameters"], reading.path
    return _flags({"rope_parameters": blocks}, path, rope)


def _flags(keys: Values, path: tuple[str, ...], rope: Embedding, length: int | None = None) -> list[str]:
    flags = []
    if length is not None:
        flags = ["--max-model-len", str(length)]
        block = keys["rope_parameters"]
        factor = 1.0 if block["rope_type"] in SCALED_LENGTH else block.get("factor", 1.0)
        # No frequency follows from it in vLLM but those of dynamic NTK, which already has it. The attention factor of
        # LongRoPE does: its logarithm needs the length with scaling.
        keys.setdefault("max_position_embeddings", ceil(length / factor))
    return [*flags, "--hf-overrides", json.dumps(limits.below(path, limits.with_all_lengths(keys, rope)))]


def _reading_of(rope: Embedding, options: Options) -> tuple[engines.Table, engines.Reading]:
    table, source = engines.table("vllm", options.engine_version), rope._provenance
    limits.require_text(rope, table.name)
    reading, is_known = table.of_text(source.file_type, source.model_type, source.path)
    # A class with latent attention has "deepseek_yarn" in place of "yarn", and scales the softmax by it.
    has_plain_yarn = is_known and "yarn" in reading.rules
    limits.require_usual_softmax(rope, table.name, may_scale=not has_plain_yarn)
    if source.model_type and not is_known:
        engines.warn(
            f"whether {table.name} reads rope_parameters for model type {source.model_type!r} is not known; it was "
            "checked only that its get_rope computes this embedding"
        )
    return table, reading


def _keys(rope: Embedding, table: engines.Table, reading: engines.Reading) -> Values:
    """The keys of the config, of which vLLM reads all and computes this embedding."""
    model = rope._provenance.model_type
    must_read = f"{table.name} must read" if not model else f"{table.name}, model type {model!r}, must read"
    layout = reading.fixed.get("layout", rope._rotation.read)
    if rope._rotation.read != layout:
        raise wrong_value(f"{must_read} layout {rope.layout!r}; got a class whose layout is always {layout!r}")
    block, outside = _block(rope, reading)
    name = block["rope_type"]
    read_keys = reading.rules.get("deepseek_yarn" if name == "yarn" and _is_latent(rope, reading) else name)
    if read_keys is None:
        raise wrong_value(f"{must_read} rope_type {name!r}; got a class that reads {', '.join(sorted(reading.rules))}")
    # Without a share, the class may take its own default, or that of a config with which overrides are merged.
    may_be_partial = bool(reading.path) or "partial_rotary_factor" in reading.keys
    if may_be_partial and rope.rotary_dim == rope.head_dim and "partial_rotary_factor" in read_keys:
        block = {"partial_rotary_factor": 1.0} | block
    changes_nothing = {"factor"} if name == "longrope" or block.get("factor") == 1.0 else set()
    missing = [key for key in block if key not in {*read_keys, *changes_nothing, "rope_type"}]
    if missing:
        raise wrong_value(f"{must_read} {missing[0]} with rope_type {name!r}; got a class that does not")
    return {"rope_parameters": block, **outside}


def _is_latent(rope: Embedding, reading: engines.Reading) -> bool:
    """Latent attention, for which a model replaces the rule "yarn" by "deepseek_yarn"."""
    return "deepseek_yarn" in reading.rules and ("yarn" not in reading.rules or rope.softmax_scale != 1.0)


def _block(rope: Embedding, reading: engines.Reading) -> tuple[Values, Values]:
    rule = rope.scaling
    if isinstance(rule, DynamicNTKScaling):
        return _of_dynamic(rope, rule, reading)
    if isinstance(rule, NTKScaling) and (rope.sections is not None or "alpha" not in reading.rules.get("dynamic", ())):
        rope = rope.replace(base=limits.base_and_rule(rope, "vLLM")[0], scaling=None)
    if isinstance(rule, LongRopeScaling):
        limits.require_half(rope, "vLLM")
    if isinstance(rule, MixedNTKScaling):  # transformers does not have it
        block = rope_parameters(rope.replace(scaling=None, attention_factor=None), "vLLM")
        return block | {"rope_type": "ntk", "factor": rule.factor, "mixed_b": rule.mixed_b}, {}
    block = rope_parameters(rope, "vLLM")
    if isinstance(rule, YarnScaling):
        block = _of_yarn(rope, rule, block, reading)
    if isinstance(rule, LongRopeScaling):
        # Without them, vLLM computes the attention factor from the length of the config.
        block.pop("attention_factor", None)
        has_own = "short_mscale" in reading.rules.get("longrope", ())
        for name in ("short_mscale", "long_mscale") if has_own else ("attention_factor",):
            block.setdefault(name, rope.attention_factor)
    return block, {}


def _of_dynamic(rope: Embedding, rule: DynamicNTKScaling, reading: engines.Reading) -> tuple[Values, Values]:
    """Dynamic NTK for one length: vLLM has the same frequencies for all sequences."""
    trained = rule.max_position_embeddings
    block = rope_parameters(rope, "vLLM")
    if reading.by == "transformers":  # its class computes the frequencies of each length
        if reading.path:
            raise wrong_value(
                f"scaling must not be dynamic NTK for model type {rope._provenance.model_type!r} in vLLM, which merges "
                f"the block with that of the file, so that its alpha stays; got {rule.describe()}"
            )
        return block, {"max_position_embeddings": trained}
    if "max_trained_positions" in reading.rules.get("dynamic", ()):
        if rule.seq_len is None:
            raise wrong_value(
                f"seq_len of scaling must be given for vLLM, which has the same frequencies for all lengths; "
                f"got {rule.describe()}"
            )
        return block | {"max_trained_positions": trained}, {"max_position_embeddings": rule._length}
    limits.require_length_of_config(rule, "this version of vLLM")
    return block, {"max_position_embeddings": trained}


def _of_yarn(rope: Embedding, rule: YarnScaling, block: Values, reading: engines.Reading) -> Values:
    if block.get("truncate") is True:
        del block["truncate"]  # the default
    if _is_latent(rope, reading):
        block.pop("attention_factor", None)
        return block | {"mscale": 1.0, "mscale_all_dim": 0.0} | limits.mscales(rope, rule, "vLLM")
    read, factor = reading.rules.get("yarn", frozenset()), rope.attention_factor
    if "attention_factor" in read:
        if factor == 1.0:  # some models with latent attention read these two instead
            block |= {"attention_factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
        return block | ({"attention_factor": factor} if reading.path else {})
    for key in ("attention_factor", "mscale", "mscale_all_dim"):
        block.pop(key, None)
    if "attn_factor" in read:  # versions before `attention_factor`
        plain = isclose(factor, rule.get_mscale(1.0), rel_tol=1e-12)
        return block if plain else block | {"attn_factor": factor, "apply_yarn_scaling": False}
    if not isclose(factor, rule.get_mscale(1.0), rel_tol=1e-12):
        raise wrong_value(f"vLLM must read attention_factor={factor} for this model type; got a class that does not")
    return block
