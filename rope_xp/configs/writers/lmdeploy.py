"""Write an embedding as arguments of lmdeploy."""

import json
from math import isclose

from rope_xp.configs import engines
from rope_xp.configs.writers import Options
from rope_xp.configs.writers.limits import base_and_rule, longrope_factor, unsupported
from rope_xp.configs.writers.sglang import overrides, reading_of, require_read, sections_and_fraction
from rope_xp.errors import wrong_value
from rope_xp.frequencies import DynamicNTKScaling, LinearScaling, Llama3Scaling, LongRopeScaling, Scaling, YarnScaling
from rope_xp.types import Embedding, Values

TARGET = "lmdeploy"
ORIGINAL, LENGTH = "original_max_position_embeddings", "max_position_embeddings"


def lmdeploy_flags(rope: Embedding, options: Options) -> list[str]:
    """`--hf-overrides` with the `rope_parameters` of the config."""
    table = engines.table("lmdeploy", options.engine_version)
    known = reading_of(rope, table)
    several = sections_and_fraction(rope, TARGET)
    base, rule = rope.base, rope.scaling
    if not isinstance(rule, DynamicNTKScaling):  # lmdeploy computes it for each length, as the rule does
        base, rule = base_and_rule(rope, TARGET)
    name, keys, outside = _of_rule(rope, rule)
    block = {"rope_type": name, "rope_theta": base, **several, **keys}
    require_read(rope, table, known, block, name)
    return ["--hf-overrides", json.dumps(overrides(known, rope._provenance.path, block, outside))]


def with_length(flags: list[str], length: int) -> list[str]:
    """The same, for sequences of this length. `--session-len` scales nothing."""
    return ["--session-len", str(length), *flags]


def _of_rule(rope: Embedding, rule: Scaling | None) -> tuple[str, Values, Values]:
    """The name of a rule, the keys of its block, and keys outside it."""
    if not isinstance(rule, YarnScaling) and rope.softmax_scale != 1.0:
        raise wrong_value(f"softmax_scale must be 1 in {TARGET} without YaRN; got {rope.softmax_scale}")
    if rule is None:
        return "default", {}, {}
    if isinstance(rule, LinearScaling):
        return "linear", {"factor": rule.factor}, {}
    if isinstance(rule, DynamicNTKScaling):
        return "dynamic", {"factor": rule.factor}, {LENGTH: rule.max_position_embeddings}
    if isinstance(rule, Llama3Scaling):
        names = ("factor", "low_freq_factor", "high_freq_factor", ORIGINAL)
        return "llama3", {name: getattr(rule, name) for name in names}, {}
    if isinstance(rule, YarnScaling):
        names = ("factor", ORIGINAL, "beta_fast", "beta_slow", "truncate")
        keys = {name: getattr(rule, name) for name in names} | {"attention_factor": rope.attention_factor}
        if rope.softmax_scale != 1.0:
            keys["mscale_all_dim"] = rule.mscale_all_dim
        return "yarn", keys, {}
    if isinstance(rule, LongRopeScaling):
        return "longrope", *_of_longrope(rope, rule)
    raise unsupported(rule, TARGET)


def _of_longrope(rope: Embedding, rule: LongRopeScaling) -> tuple[Values, Values]:
    original = rule.original_max_position_embeddings
    # lmdeploy computes the attention factor from the length of the config.
    length = round(rule.factor * original) if rule.factor else original
    usual = longrope_factor(length, original)
    if not isclose(usual, rope.attention_factor, rel_tol=1e-7):
        raise wrong_value(
            f"attention_factor must be that of the factor in {TARGET}; got {rope.attention_factor}, not {usual}"
        )
    keys = {"short_factor": list(rule.short_factor), "long_factor": list(rule.long_factor), ORIGINAL: original}
    return keys, {LENGTH: length}
