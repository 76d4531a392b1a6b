"""Write an embedding as arguments of SGLang."""

import json
from math import ceil
from typing import Any

from rope_xp._core import engines
from rope_xp._core.errors import wrong_value
from rope_xp._core.writers import Options
from rope_xp._core.writers.limits import mscales, unsupported
from rope_xp._core.writers.servers import innermost, overrides, reading_of, require_read, sections_and_fraction
from rope_xp.frequencies import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    MixedNTKScaling,
    NTKScaling,
    Scaling,
    YarnScaling,
)

TARGET = "SGLang"
ORIGINAL, LENGTH = "original_max_position_embeddings", "max_position_embeddings"
# YaRN of latent attention, which also scales the softmax. Classes give it this name whatever the block says.
LATENT = "deepseek_yarn"


def sglang_flags(rope: Any, options: Options) -> list[str]:
    """`--json-model-override-args` with the `rope_parameters` of the config."""
    table = engines.table("sglang", options.engine_version)
    known = reading_of(rope, table)
    block = {"rope_theta": rope.base, **sections_and_fraction(rope, TARGET)}
    is_latent = LATENT in known.rules if known else rope.softmax_scale != 1.0
    if isinstance(rope.scaling, YarnScaling) and is_latent:
        name, keys = LATENT, _of_latent_yarn(rope, rope.scaling)
    else:
        name, keys = _of_rule(rope, rope.scaling)
    require_read(rope, table, known, block, name)
    if known is None and "mrope_section" in block and name not in ("default", "yarn"):
        raise wrong_value(f"scaling must be none or YaRN with sections in {TARGET}; got {rope.scaling}")
    outside = {}
    if isinstance(rope.scaling, DynamicNTKScaling):
        outside[LENGTH] = rope.scaling.max_position_embeddings
    if known and ORIGINAL in keys and ORIGINAL not in known.rules[name]:
        outside[ORIGINAL] = keys[ORIGINAL]  # some classes replace that of the block by that of the config
    rope_type = {"ntk": "dynamic", LATENT: "yarn"}.get(name, name)
    written = overrides(known, rope._provenance.path, {"rope_type": rope_type, **block, **keys}, outside)
    return ["--json-model-override-args", json.dumps(written)]


def with_length(flags: list[str], length: int) -> list[str]:
    """The same arguments, with which SGLang accepts sequences of this length.

    `--context-length` scales nothing, and must not be greater than the length of the config. SGLang multiplies that by
    `factor`, except with llama3 and with an original length. Dynamic NTK keeps its length, from which its base follows.
    """
    written = json.loads(flags[1])
    part = innermost(written)
    block = part["rope_parameters"]
    factor = 1.0 if ORIGINAL in block else block.get("factor", 1.0)
    if block["rope_type"] != "dynamic" or "alpha" in block:
        part[LENGTH] = ceil(length / factor)
    return ["--context-length", str(length), flags[0], json.dumps(written)]


def _of_rule(rope: Any, rule: Any) -> tuple[str, dict[str, Any]]:
    """A rule by SGLang's name, and the keys that SGLang reads for it."""
    if rope.softmax_scale != 1.0:
        raise wrong_value(f"softmax_scale must be 1 in {TARGET} without latent attention; got {rope.softmax_scale}")
    if rule is None or type(rule) is Scaling:
        return "default", {}
    if isinstance(rule, LinearScaling):
        return "linear", {"factor": rule.factor}
    if isinstance(rule, MixedNTKScaling):
        raise unsupported(rule, TARGET)
    if isinstance(rule, NTKScaling):
        return "ntk", {"alpha": rule.factor, "factor": 1.0}
    if isinstance(rule, DynamicNTKScaling):
        if rule.seq_len != rule.factor * rule.max_position_embeddings:
            raise wrong_value(
                f"seq_len of scaling must be factor * max_position_embeddings in {TARGET}, which has the same "
                f"frequencies for all lengths; got {rule.describe()}"
            )
        return "dynamic", {"factor": rule.factor}
    if isinstance(rule, Llama3Scaling):
        names = ("factor", "low_freq_factor", "high_freq_factor", ORIGINAL)
        return "llama3", {name: getattr(rule, name) for name in names}
    if isinstance(rule, YarnScaling):
        # The only key for the attention factor is a number by which that of the paper is multiplied.
        times = {"attn_factor": rope.attention_factor / rule.get_mscale(1.0)}
        return "yarn", {**_yarn(rule), "truncate": rule.truncate, **times}
    if isinstance(rule, LongRopeScaling):
        return "longrope", _of_longrope(rope, rule)
    raise unsupported(rule, TARGET)


def _yarn(rule: YarnScaling) -> dict[str, Any]:
    return {name: getattr(rule, name) for name in ("factor", ORIGINAL, "beta_fast", "beta_slow")}


def _of_latent_yarn(rope: Any, rule: YarnScaling) -> dict[str, Any]:
    """YaRN of latent attention: the ends of the ramp are rounded, and both factors follow from two keys."""
    if not rule.truncate:
        raise wrong_value(f"truncate must be True in {TARGET} with latent attention; got False")
    return {**_yarn(rule), **mscales(rope, rule, TARGET)}


def _of_longrope(rope: Any, rule: LongRopeScaling) -> dict[str, Any]:
    """LongRoPE. The attention factor is written, as SGLang's would follow from the length of the config."""
    if rope.layout != "half":
        raise wrong_value(f"layout must be 'half' with LongRoPE in {TARGET}; got {rope.layout!r}")
    return {
        "short_factor": list(rule.short_factor),
        "long_factor": list(rule.long_factor),
        ORIGINAL: rule.original_max_position_embeddings,
        "short_mscale": rope.attention_factor,
        "long_mscale": rope.attention_factor,
    }
