"""Write an embedding as arguments of SGLang and of lmdeploy, which replace a config's block."""

import json
from math import ceil, isclose

from rope_xp.configs import engines
from rope_xp.configs.engines import Reading, Table
from rope_xp.configs.writers import Options, limits
from rope_xp.configs.writers.transformers import FRACTION, keys_of_sections, rope_parameters, rotated_fraction
from rope_xp.errors import wrong_value
from rope_xp.frequencies import (
    LENGTH,
    ORIGINAL,
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    Scaling,
    YarnScaling,
)
from rope_xp.types import Config, Embedding, Values

SGLANG, LMDEPLOY = "SGLang", "lmdeploy"
# YaRN of latent attention, which also scales the softmax. SGLang's classes give it this name whatever the block says.
LATENT = "deepseek_yarn"


def sglang_flags(rope: Embedding, options: Options) -> list[str]:
    table = engines.table("sglang", options.engine_version)
    known = _reading_of(rope, table)
    block = {"rope_theta": rope.base, **_sections_and_fraction(rope, SGLANG)}
    is_latent = LATENT in known.rules if known else rope.softmax_scale != 1.0
    name, keys, outside = _sglang_rule(rope, is_latent)
    outside |= _beside(rope, table, known, block)
    _require_read(rope, table, known, block, name)
    if known is None and "mrope_section" in block and name not in ("default", "yarn"):
        raise wrong_value(f"scaling must be none or YaRN with sections in {SGLANG}; got {rope.scaling}")
    if known and ORIGINAL in keys and ORIGINAL not in known.rules[name]:
        outside[ORIGINAL] = keys[ORIGINAL]  # some classes replace that of the block by that of the config
    rope_type = {"ntk": "dynamic", LATENT: "yarn"}.get(name, name)
    block = {"rope_type": rope_type, **block, **keys}
    length = options.context
    if length is not None and name != "dynamic":  # whose base follows from the length
        # SGLang multiplies the length of the config by `factor`, except with llama3 and with an original length.
        outside[LENGTH] = ceil(length / (1.0 if ORIGINAL in block else block.get("factor", 1.0)))
    written = _overrides(rope, known, block, limits.with_all_lengths(outside, rope))
    flags, source = [], rope._provenance
    if length is not None:
        # It scales nothing, and must not exceed the length of the config.
        flags = ["--context-length", str(length)]
        if "rope_parameters" in written and source.file_type != source.model_type and table.of(source.file_type):
            # The classes read the block outside the text config. The server reads the length in it, without a factor.
            written |= limits.below(source.path or ("text_config",), limits.with_all_lengths({LENGTH: length}, rope))
    return [*flags, "--json-model-override-args", json.dumps(written)]


# A rule by the name that a program has for it, the keys of its block, and keys outside it.
RuleKeys = tuple[str, Values, Values]


def _rule_as_in_transformers(rule: Scaling | None, target: str) -> RuleKeys:
    if rule is None or type(rule) is Scaling:
        return "default", {}, {}
    if isinstance(rule, (LinearScaling, Llama3Scaling)):
        return rule.rope_type, limits.parameters(rule), {}
    if isinstance(rule, DynamicNTKScaling):
        return "dynamic", {"factor": rule.factor}, {LENGTH: rule.max_position_embeddings}
    raise limits.unsupported(rule, target)


def _sglang_rule(rope: Embedding, is_latent: bool) -> RuleKeys:
    rule = rope.scaling
    if isinstance(rule, YarnScaling) and is_latent:
        limits.require_truncated(rule, f"{SGLANG} with latent attention")
        return LATENT, {**limits.parameters(rule, *limits.YARN), **limits.mscales(rope, rule, SGLANG)}, {}
    limits.require_plain_softmax(rope, SGLANG)
    if isinstance(rule, NTKScaling):
        return "ntk", {"alpha": rule.factor, "factor": 1.0}, {}
    if isinstance(rule, YarnScaling):
        # The only key for the attention factor is a number by which that of the paper is multiplied.
        times = {"attn_factor": rope.attention_factor / rule.get_mscale(1.0)}
        return "yarn", {**limits.parameters(rule, *limits.YARN, "truncate"), **times}, {}
    if isinstance(rule, LongRopeScaling):
        limits.require_half(rope, SGLANG)
        # Without them, SGLang computes the attention factor from the length of the config.
        block = rope_parameters(rope, SGLANG)
        factors = {name: block.get(name, rope.attention_factor) for name in ("short_mscale", "long_mscale")}
        return "longrope", {**limits.parameters(rule, "short_factor", "long_factor", ORIGINAL), **factors}, {}
    if isinstance(rule, DynamicNTKScaling):
        limits.require_length_of_config(rule, SGLANG)
    return _rule_as_in_transformers(rule, SGLANG)


def lmdeploy_flags(rope: Embedding, options: Options) -> list[str]:
    table = engines.table("lmdeploy", options.engine_version)
    known = _reading_of(rope, table)
    several = _sections_and_fraction(rope, LMDEPLOY)
    base, rule = limits.base_and_rule(rope, LMDEPLOY, DynamicNTKScaling)  # which it computes for each length
    name, keys, outside = _lmdeploy_rule(rope, rule)
    block = {"rope_type": name, "rope_theta": base, **several, **keys}
    outside |= _beside(rope, table, known, block)
    _require_read(rope, table, known, block, name)
    length = [] if options.context is None else ["--session-len", str(options.context)]  # it scales nothing
    overrides = json.dumps(_overrides(rope, known, block, outside))
    return [*length, "--hf-overrides", overrides, "--backend", "pytorch"]


def _lmdeploy_rule(rope: Embedding, rule: Scaling | None) -> RuleKeys:
    if isinstance(rule, YarnScaling):
        keys = limits.parameters(rule, *limits.YARN, "truncate") | {"attention_factor": rope.attention_factor}
        if rope.softmax_scale != 1.0:
            keys["mscale_all_dim"] = rule.mscale_all_dim
        return "yarn", keys, {}
    limits.require_plain_softmax(rope, LMDEPLOY, without="YaRN")
    if isinstance(rule, LongRopeScaling):
        original = rule.original_max_position_embeddings
        # lmdeploy computes the attention factor from the length of the config.
        length = round(rule.factor * original) if rule.factor else original
        usual = limits.longrope_factor(length, original)
        if not isclose(usual, rope.attention_factor, rel_tol=1e-7):
            raise wrong_value(
                f"attention_factor must be that of the factor in {LMDEPLOY}; got {rope.attention_factor}, not {usual}"
            )
        return "longrope", limits.parameters(rule, "short_factor", "long_factor", ORIGINAL), {LENGTH: length}
    return _rule_as_in_transformers(rule, LMDEPLOY)


def _reading_of(rope: Embedding, table: Table) -> Reading | None:
    provenance = rope._provenance
    limits.require_text(rope, table.name)
    limits.require_usual_softmax(rope, table.name)
    names = (provenance.file_type, *(() if provenance.path else (provenance.model_type,)))
    known = next((table.of(name) for name in names if table.of(name)), None)
    if known is None and any(names):
        engines.warn(f"whether {table.name} reads these keys for model type {names[0]!r} is not known")
    return known


def _require_read(rope: Embedding, table: Table, known: Reading | None, block: Config, rule: str) -> None:
    """Raise an error if the engine would compute another embedding from a block, as far as its table knows."""
    if known is None:
        return
    model_type = rope._provenance.file_type or rope._provenance.model_type
    of_type = f"for model type {model_type!r}"
    if "blocks" in known.fixed:
        raise wrong_value(
            f"the block must be one for all layers in {table.name} {of_type}; got one for each of "
            f"{', '.join(known.fixed['blocks'])}"
        )
    layout = known.fixed.get("layout")
    if layout is not None and rope._rotation.read != layout:
        raise wrong_value(f"layout must be {layout!r} in {table.name} {of_type}; got {rope.layout!r}")
    if rule not in ("default", *known.rules):
        raise limits.unread(table.name, f"the rule {rule!r}", model_type)
    for key in ("mrope_section", "mrope_interleaved"):
        if key in block and key not in known.rules.get(rule, ()):
            raise limits.unread(table.name, f"{key} with the rule {rule!r}", model_type)


def _beside(rope: Embedding, table: Table, known: Reading | None, block: Values) -> Values:
    """Take the base and the fraction out of a block whose class reads them in the config. What is fixed must agree."""
    outside: Values = {}
    if known is None:
        return outside
    for key, value in (("rope_theta", block["rope_theta"]), (FRACTION, rotated_fraction(rope))):
        places, usual = known.places.get(key), known.usual(key)
        if not places:  # it is fixed, or nothing is known of it
            if usual is not None and not isclose(usual, value, rel_tol=1e-12):
                raise limits.unread(table.name, key, rope._provenance.file_type or rope._provenance.model_type)
            continue
        if key in block or key in rope._provenance.stated or usual not in (None, 1.0):
            (outside if places[0] == "config" else block)[key] = value
        if places[0] == "config":
            block.pop(key, None)
    return outside


def _sections_and_fraction(rope: Embedding, target: str) -> Values:
    limits.require_only(rope, target)
    if rope.softmax_scale == 1.0:
        limits.require_attention_factor(rope)
    keys = {} if rope.rotary_dim == rope.head_dim else {"partial_rotary_factor": rotated_fraction(rope)}
    if rope.sections is None:
        return keys
    if rope.sections.axes != 3 or rope.sections.order not in ("chunked", "interleaved"):
        raise wrong_value(
            f"sections must be three in order 'chunked' or 'interleaved' in {target}; got {rope.sections}"
        )
    return keys | keys_of_sections(rope.sections)


def _overrides(rope: Embedding, known: Reading | None, block: Config, outside: Config) -> Values:
    # Both programs merge a block with that of the file. `rope_scaling` is another name for the block, and null removes
    # the file's, so that none of its keys stays.
    keys: Values = {"rope_scaling": None, "rope_parameters": dict(block), **outside}
    return limits.below(rope._provenance.path if known is None else known.path, keys)
