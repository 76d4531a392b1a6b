"""Write an embedding as arguments of SGLang.

The first part is shared with lmdeploy: a config's block is replaced on the command line, and a table says what is read.
"""

import json
from math import ceil, isclose

from rope_xp.configs import engines
from rope_xp.configs.engines import Reading, Table
from rope_xp.configs.writers import Options
from rope_xp.configs.writers.limits import mscales, require_attention_factor, require_only, require_text, unsupported
from rope_xp.configs.writers.transformers import keys_of_sections, rotated_fraction
from rope_xp.errors import wrong_value
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
from rope_xp.types import Config, Embedding, Values


def reading_of(rope: Embedding, table: Table) -> Reading | None:
    provenance = rope._provenance
    require_text(rope, table.name)
    names = (provenance.file_type, *(() if provenance.path else (provenance.model_type,)))
    known = next((table.of(name) for name in names if table.of(name)), None)
    if known is None and any(names):
        engines.warn(f"whether {table.name} reads these keys for model type {names[0]!r} is not known")
    return known


def require_read(rope: Embedding, table: Table, known: Reading | None, block: Config, rule: str) -> None:
    """Raise an error if the engine would compute another embedding from a block, as far as its table knows."""
    if known is None:
        return
    of_type = f"for model type {rope._provenance.file_type or rope._provenance.model_type!r}"

    def error(key: str) -> ValueError:
        return wrong_value(f"{table.name} must read {key} {of_type}; got a class that does not")

    if "blocks" in known.fixed:
        raise wrong_value(
            f"the block must be one for all layers in {table.name} {of_type}; got one for each of "
            f"{', '.join(known.fixed['blocks'])}"
        )
    layout = known.fixed.get("layout")
    if layout is not None and rope.layout.removesuffix("_to_half") != layout:
        raise wrong_value(f"layout must be {layout!r} in {table.name} {of_type}; got {rope.layout!r}")
    if "rope_theta" not in known.keys and not isclose(known.fixed.get("base", 0.0), block["rope_theta"], rel_tol=1e-12):
        raise error("rope_theta")
    rotated = known.fixed.get("rotated")
    if rotated is not None and int(rotated * rope.head_dim + 1e-6) != rope.rotary_dim:
        raise error("partial_rotary_factor")
    if rule != "default" and rule not in known.rules:
        raise error(f"the rule {rule!r}")
    for key in ("mrope_section", "mrope_interleaved"):
        if key in block and key not in known.rules.get(rule, ()):
            raise error(f"{key} with the rule {rule!r}")


def sections_and_fraction(rope: Embedding, target: str) -> Values:
    """The keys that stand beside every rule."""
    require_only(rope, f"in {target}")
    if rope.softmax_scale == 1.0:
        require_attention_factor(rope)
    keys = {} if rope.rotary_dim == rope.head_dim else {"partial_rotary_factor": rotated_fraction(rope)}
    if rope.sections is None:
        return keys
    if rope.sections.axes != 3 or rope.sections.order not in ("chunked", "interleaved"):
        raise wrong_value(
            f"sections must be three in order 'chunked' or 'interleaved' in {target}; got {rope.sections}"
        )
    return keys | keys_of_sections(rope.sections)


def overrides(known: Reading | None, path: tuple[str, ...], block: Config, outside: Config) -> Values:
    """A config's keys that replace its block."""
    # Both programs merge a block with that of the file. `rope_scaling` is another name for the block, and null removes
    # the file's, so that none of its keys stays.
    keys: Values = {"rope_scaling": None, "rope_parameters": dict(block), **outside}
    for name in reversed(path if known is None else known.path):
        keys = {name: keys}
    return keys


def innermost(keys: Values) -> Values:
    while "rope_parameters" not in keys:
        (keys,) = keys.values()
    return keys


TARGET = "SGLang"
ORIGINAL, LENGTH = "original_max_position_embeddings", "max_position_embeddings"
# YaRN of latent attention, which also scales the softmax. Classes give it this name whatever the block says.
LATENT = "deepseek_yarn"


def sglang_flags(rope: Embedding, options: Options) -> list[str]:
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
    """The same, for sequences of this length.

    `--context-length` scales nothing, and must not be greater than the length of the config.
    """
    written = json.loads(flags[1])
    part = innermost(written)
    block = part["rope_parameters"]
    # SGLang multiplies the length of the config by `factor`, except with llama3 and with an original length.
    factor = 1.0 if ORIGINAL in block else block.get("factor", 1.0)
    if block["rope_type"] != "dynamic" or "alpha" in block:  # else the base follows from the length
        part[LENGTH] = ceil(length / factor)
    return ["--context-length", str(length), flags[0], json.dumps(written)]


def _of_rule(rope: Embedding, rule: Scaling | None) -> tuple[str, Values]:
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


def _yarn(rule: YarnScaling) -> Values:
    return {name: getattr(rule, name) for name in ("factor", ORIGINAL, "beta_fast", "beta_slow")}


def _of_latent_yarn(rope: Embedding, rule: YarnScaling) -> Values:
    if not rule.truncate:
        raise wrong_value(f"truncate must be True in {TARGET} with latent attention; got False")
    return {**_yarn(rule), **mscales(rope, rule, TARGET)}


def _of_longrope(rope: Embedding, rule: LongRopeScaling) -> Values:
    if rope.layout != "half":
        raise wrong_value(f"layout must be 'half' with LongRoPE in {TARGET}; got {rope.layout!r}")
    return {
        "short_factor": list(rule.short_factor),
        "long_factor": list(rule.long_factor),
        ORIGINAL: rule.original_max_position_embeddings,
        # Else SGLang computes the attention factor from the length of the config.
        "short_mscale": rope.attention_factor,
        "long_mscale": rope.attention_factor,
    }
