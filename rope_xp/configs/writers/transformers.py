"""Write an embedding as keys of transformers: `rope_parameters` of version 5, also for Axolotl; keys of version 4."""

from dataclasses import fields
from math import inf, isclose, nextafter
from typing import Any

from rope_xp.configs import engines
from rope_xp.configs.writers import Options, limits
from rope_xp.errors import wrong_value
from rope_xp.frequencies import LENGTH, ORIGINAL, DynamicNTKScaling, LongRopeScaling, NTKScaling, Scaling
from rope_xp.layouts import READ_WRITE
from rope_xp.provenance import with_provenance
from rope_xp.sections import Sections
from rope_xp.types import Config, Embedding, Values

ENGINE = "transformers"
ORDERS = ("chunked", "interleaved", "spatial_first", "even_odd")
FRACTION = "partial_rotary_factor"
SECTION_KEYS = ("mrope_section", "mrope_interleaved")
# Fields of scaling rules that a config has outside `rope_parameters`.
NOT_IN_BLOCK = ("seq_len", LENGTH)
# Keys of the base in transformers 4: the first that a class reads is written.
BASES = ("rope_theta", "rotary_emb_base", "global_rope_theta")
BASES_OF_SLIDING = ("rope_local_base_freq", "local_rope_theta", *BASES)


def transformers_keys(rope: Embedding, options: Options) -> Values:
    table = _table(options.engine_version, 5)
    rope = _with_larger_base(rope, table)
    reads, block = Reads(rope, table), rope_parameters(rope)
    if reads.known is None:
        return block
    reads.require_rotation()
    rule = {name: value for name, value in block.items() if name not in ("rope_theta", FRACTION)}
    fraction = {FRACTION: block[FRACTION]} if block["rope_type"] == "proportional" else reads.fraction(FRACTION)
    keys = {"rope_type": block["rope_type"], **reads.base(block["rope_theta"], "rope_theta")}
    return keys | fraction | reads.rule(rule)


def axolotl_keys(rope: Embedding, options: Options) -> Values:
    """A key of Axolotl's YAML file. Its values become attributes of the config of transformers 5, one by one."""
    if rope._provenance.path:
        raise wrong_value(
            f"the embedding must be that of the config itself for Axolotl, which replaces a part as a whole; "
            f"got {'.'.join(rope._provenance.path)}"
        )
    keys, outside = transformers_keys(rope, options), {}
    if isinstance(rope.scaling, (DynamicNTKScaling, LongRopeScaling)):  # its classes read the length outside the block
        outside = _of_length(rope, dict(keys))
    return {"overrides_of_model_config": {"rope_parameters": keys, **outside}}


def transformers4_keys(rope: Embedding, options: Options) -> Values:
    table = _table(options.engine_version, 4)
    rope = _with_larger_base(rope, table)
    return limits.below(rope._provenance.path, _flat_keys(rope, Reads(rope, table)))


def _flat_keys(rope: Embedding, reads: "Reads") -> Values:
    block = rope_parameters(rope)
    rule = {name: value for name, value in block.items() if name not in ("rope_theta", FRACTION)}
    if block["rope_type"] == "proportional":
        raise limits.unsupported(rope.scaling, reads.table.name)
    outside = _of_length(rope, rule)
    if reads.known is None:
        fraction = {FRACTION: block[FRACTION]} if FRACTION in block else {}
        return {rope._provenance.base_key: rope.base, **fraction, **outside, "rope_scaling": _or_none(rule)}
    reads.require_rotation()
    interleave = {"rope_interleave": rope.layout != "half"} if "rope_interleave" in reads.known.keys else {}
    bases = BASES_OF_SLIDING if rope._provenance.layer_type == "sliding_attention" else BASES
    keys = reads.base(block["rope_theta"], *bases) | reads.fraction(FRACTION, "rotary_pct", "rotary_dim")
    keys |= interleave | outside
    rule = reads.rule(rule, outside)
    if reads.known.fixed.get("rule_key") and len(rule) > 1:
        rule = {reads.known.fixed["rule_key"]: rule.pop("rope_type"), **rule}
    of_some = reads.of_type is not None and not reads.known.rules and bool(reads.of_type.layers)
    return keys if of_some else {**keys, "rope_scaling": _or_none(rule)}


def _with_larger_base(rope: Embedding, table: engines.Table) -> Embedding:
    """NTK-aware scaling as a larger base, for classes that do not read `alpha`."""
    model_type = rope._provenance.model_type
    known = table.of(model_type)
    rules = {} if known is None else known.of_layer(rope._provenance.layer_type).rules
    if not isinstance(rope.scaling, NTKScaling) or not model_type or "alpha" in rules.get("dynamic", ()):
        return rope
    base, _ = limits.base_and_rule(rope, table.name)
    return with_provenance(rope.replace(base=base, scaling=None), rope._provenance)


def _or_none(rule: Values) -> Values | None:
    return None if rule == {"rope_type": "default"} else rule


def _of_length(rope: Embedding, rule: Values) -> Values:
    scaling = rope.scaling
    if isinstance(scaling, DynamicNTKScaling):
        return {LENGTH: scaling.max_position_embeddings}
    if not isinstance(scaling, LongRopeScaling):
        return {}
    rule.setdefault("attention_factor", rope.attention_factor)  # else it is computed from the lengths
    return {ORIGINAL: rule.pop(ORIGINAL)}


def _table(version: str | None, major: int) -> engines.Table:
    found = engines.table(ENGINE, version if version is not None else {4: "4.999", 5: None}[major])
    if version is not None and int(version.lstrip("bv").partition(".")[0]) != major:
        target = {4: "transformers4", 5: "transformers"}[major]
        raise wrong_value(f'engine_version must be {major}.x with target "{target}"; got {version!r}')
    return found


class Reads:
    """What a class of transformers reads, for the model type of an embedding."""

    def __init__(self, rope: Embedding, table: engines.Table):
        self.rope, self.table = rope, table
        self.model_type, layer_type = rope._provenance.model_type, rope._provenance.layer_type
        self.of_type = table.of(self.model_type)  # all layers; None if there is no model type, or the table has not it
        # A `Reading` of the type of layers that the embedding is for, or None.
        self.known: Any = None if self.of_type is None else self.of_type.of_layer(layer_type)
        if self.known is None and self.model_type and not rope._provenance.format:
            engines.warn(f"whether {table.name} reads these keys for model type {self.model_type!r} is not known")

    def error(self, key: str) -> ValueError:
        return limits.unread(self.table.name, key, self.model_type)

    def require_rotation(self) -> None:
        """What no key says must be as the class has it."""
        rope, fixed, keys = self.rope, self.known.fixed, self.known.keys
        if "rope_interleave" not in keys and rope._rotation.read != READ_WRITE[fixed["layout"]][0]:
            raise wrong_value(
                f"layout must be {fixed['layout']!r} for model type {self.model_type!r} in "
                f"{self.table.name}; got {rope.layout!r}"
            )
        if rope.softmax_scale != 1.0 and "softmax_scale" not in fixed:
            raise wrong_value(
                f"softmax_scale must be 1 for model type {self.model_type!r} in {self.table.name}, whose "
                f"class does not read mscale_all_dim for it; got {rope.softmax_scale}"
            )
        if rope.sections is not None and "mrope_section" not in keys:
            raise self.error("mrope_section")
        order = fixed.get("order")
        if rope.sections is not None and "mrope_interleaved" not in keys and rope.sections.order != order:
            raise wrong_value(
                f"sections must be in order {order!r} for model type {self.model_type!r} in "
                f"{self.table.name}; got {rope.sections}"
            )

    def base(self, base: float, *names: str) -> Values:
        for name in names:
            if name in self.known.keys:
                return {name: base}
        if not isclose(self.known.fixed.get("base", 0.0), base, rel_tol=1e-3):
            raise self.error(names[0])
        return {}

    def fraction(self, *names: str) -> Values:
        rope = self.rope
        for name in names:
            if name in self.known.keys:
                return {name: rope.rotary_dim if name == "rotary_dim" else rotated_fraction(rope)}
        if not isclose(self.known.fixed.get("rotated", 1.0), 2 * rope.pairs / rope.head_dim, rel_tol=1e-4):
            raise self.error(names[0])
        return {}

    def rule(self, block: Values, outside: Config | None = None) -> Values:
        """The keys of the block that are read. Others must have their defaults."""
        name = block["rope_type"]
        written = {key: value for key, value in block.items() if key in ("rope_type", *SECTION_KEYS)}
        if name == "default":
            return written
        if name not in self.known.rules:
            raise self.error(f"the rule {name!r}")
        if "short_mscale" in self.known.rules[name] and "short_mscale" not in block:
            raise wrong_value(
                f"short_mscale and long_mscale must be given for model type {self.model_type!r} in "
                f"{self.table.name}, whose class fails without them; got None"
            )
        if self.table.needs_head_dim(self.model_type, name) and "head_dim" not in self.rope._provenance.stated:
            engines.warn(f"{self.table.name} fails with {name!r} unless the config has head_dim={self.rope.head_dim}")
        rule = self.rope.scaling
        defaults = {each.name: each.default for each in fields(rule)}
        defaults |= {"factor": 1.0} if isinstance(rule, NTKScaling) else {}
        for key, value in block.items():
            if key in self.known.rules[name]:
                written[key] = value
            elif key in written or value == defaults.get(key):
                continue
            elif key == "factor" and outside and ORIGINAL in outside:
                # LongRoPE: an attention factor is given, but some classes fail without the factor.
                written |= {} if "rule_key" in self.known.fixed else {key: value}
            elif key != "attention_factor" or not outside or not self._is_usual(value):
                raise self.error(f"{key} of the rule {name!r}")
        return written

    def _is_usual(self, factor: float) -> bool:
        """Whether a class that does not read the attention factor of LongRoPE computes this one from the lengths."""
        length = self.rope._provenance.max_position_embeddings or 0
        usual = limits.longrope_factor(length, self.rope.scaling.original_max_position_embeddings)
        return isclose(usual, factor, rel_tol=1e-6)


def rope_parameters(rope: Embedding, target: str = ENGINE) -> Values:
    """The rotary block of transformers 5, which vLLM reads too."""
    limits.require_only(rope, target, "first_channel", "blocks")
    rule = Scaling() if rope.scaling is None else rope.scaling
    block = {"rope_type": rule.rope_type, "rope_theta": rope.base} | _of_rule(rule, target)
    limits.require_attention_factor(rope)
    if rope.rotary_dim != rope.head_dim:
        if FRACTION in block:
            raise wrong_value(f"rotary_dim must be head_dim with {rule}; got {rope.rotary_dim}")
        block[FRACTION] = rotated_fraction(rope)
    return block if rope.sections is None else block | keys_of_sections(rope.sections)


def _of_rule(rule: Scaling, target: str) -> Values:
    if isinstance(rule, NTKScaling):
        return {"rope_type": "dynamic", "alpha": rule.factor, "factor": 1.0}
    if not rule.is_standard and type(rule) is not Scaling:
        raise limits.unsupported(rule, target)
    values = limits.parameters(rule)
    return {name: value for name, value in values.items() if value is not None and name not in NOT_IN_BLOCK}


def rotated_fraction(rope: Embedding) -> float:
    fraction = 2 * rope.pairs / rope.head_dim
    # transformers multiplies it by `head_dim` and rounds down.
    return fraction if int(fraction * rope.head_dim) == rope.rotary_dim else nextafter(fraction, inf)


def keys_of_sections(sections: Sections) -> Values:
    if sections.order not in ORDERS:
        raise wrong_value(f"sections must be in an order that transformers has; got {sections}")
    interleaved = {"mrope_interleaved": True} if sections.order == "interleaved" else {}
    return {"mrope_section": list(sections.sizes), **interleaved}
