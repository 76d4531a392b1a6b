"""Make a `RotaryEmbedding` from the rotary block of a config and the keys outside the block."""

from dataclasses import replace
from typing import Any

from rope_xp.arrays import checks
from rope_xp.configs.families.family import Family
from rope_xp.configs.head_channels import head_dim_of, layout_of, rotated_channels_of, sections_of
from rope_xp.configs.key_owners import rules_with
from rope_xp.configs.keys import Keys, comma_separated, misspelt_first
from rope_xp.configs.layers import DEFAULT_BLOCK_NAME, LayerConfig, layers_of, nested_by
from rope_xp.configs.scaling_rule import base_of, rope_type_of, scaling_of
from rope_xp.embedding import RotaryEmbedding
from rope_xp.errors import wrong_value
from rope_xp.frequencies import Scaling
from rope_xp.sections import Sections
from rope_xp.spectrum import frequencies_of_rule
from rope_xp.types import Values

# Keys that change nothing in any family: in the block, and outside it if they are null.
IGNORED_IN_BLOCK = ("finetuned",)
IGNORED_IF_NULL = ("rope_scaling", "rope_parameters", "rotary_scaling_factor", "rotary_emb_scale_base")
# Keys outside the block, and the only values that are accepted. They change nothing.
ONLY_VALUES = {"rotary_scaling_factor": 1, "position_embedding_xdrope": False}


def block_of(keys: Keys, family: Family, label: str) -> Keys | None:
    """The rotary block of a layer type; None if it is null for that type."""
    parameters, scaling = keys.nested("rope_parameters").mapping, keys.nested("rope_scaling").mapping
    if parameters and scaling and parameters != scaling:
        raise wrong_value("rope_parameters or rope_scaling must be given, not both; got both")
    labels, by_type = nested_by(keys, family), family.layers.by_type
    if labels:
        return _nested_block(parameters, labels, label, family.quirks.redundant_keys)
    if by_type:
        _check_label(by_type, label, "layer types differ")
    if parameters and len(by_type) > 1:
        raise wrong_value(
            f"rope_parameters must be nested by layer type, {comma_separated(by_type)}; got {dict(parameters)}"
        )
    if parameters or scaling:
        return Keys("rope_parameters" if parameters else "rope_scaling", parameters or scaling)
    default = family.of_type(label).defaults.get("rope_parameters", {})
    return None if default is None else Keys(DEFAULT_BLOCK_NAME, default)


def _nested_block(parameters: Any, labels: list[str], label: str, redundant: tuple[str, ...]) -> Keys | None:
    """The block of one layer type, if blocks are nested by layer type."""
    _check_label(labels, label, "rope_parameters are nested by it")
    outer = {key: value for key, value in parameters.items() if key not in labels and key not in redundant}
    if outer:
        raise wrong_value(
            f"rope_parameters must have only blocks of layer types, {comma_separated(labels)}, or none; "
            f"got both: {outer}"
        )
    return None if parameters[label] is None else Keys(f"rope_parameters of {label!r}", parameters[label])


def _check_label(labels: Any, label: str, why: str) -> None:
    if label not in labels:
        raise wrong_value(
            f"layer or layer_type must be given, because {why}: {comma_separated(labels)}; "
            f"got layer_type={label or None!r}"
        )


def embedding_of(config: LayerConfig) -> RotaryEmbedding | None:
    """The `RotaryEmbedding` of a layer, or None if no channel is rotated."""
    with misspelt_first(config.block):
        return _embedding_of(config)


def _embedding_of(config: LayerConfig) -> RotaryEmbedding | None:
    if not _is_scaled(config):
        config = _without_scaling(config)
    head_dim, base, rope_type = head_dim_of(config), base_of(config), rope_type_of(config)
    rotary_dim = rotated_channels_of(config, rope_type, head_dim)
    scaling = scaling_of(config, rope_type)
    sections = sections_of(config, rotary_dim)
    _check_switches(config)
    options: Values = {
        "head_dim": head_dim,
        "layout": layout_of(config),
        "blocks": config.family.pairing.blocks,
    }
    _ignore_known_keys(config)
    if config.family.is_latent and not head_dim:
        return None  # a latent attention without a rotated part
    if rotary_dim < 1:
        raise wrong_value(f"the number of rotated channels must be at least 1; got {rotary_dim} of head_dim={head_dim}")
    if config.family.pairing.last_channels:
        options["first_channel"] = head_dim - rotary_dim
    return RotaryEmbedding(**options, **_frequencies(config, head_dim, base, rotary_dim, rope_type, scaling, sections))


def _frequencies(
    config: LayerConfig,
    head_dim: int,
    base: float,
    rotary_dim: int,
    rope_type: str,
    scaling: Scaling | None,
    sections: Sections | None,
) -> Values:
    """The arguments of a `RotaryEmbedding` for its frequencies: a base with its rule, or numbers."""
    pairing, quirks = config.family.pairing, config.family.quirks
    if quirks.inv_freq is not None and config.layer is not ...:
        return {"inv_freq": quirks.inv_freq(config.keys, head_dim, base)}
    if rotary_dim % 2 == 0 and rope_type not in quirks.rules:
        width = rotary_dim if sections is None else 2 * sections.pairs
        return dict(base=base, rotary_dim=width, scaling=scaling, sections=sections, reverse=pairing.reverse)
    # Numbers are needed for a rule of the family, and for an odd width. An odd width is rounded up to whole pairs.
    if sections is not None or pairing.reverse or pairing.last_channels:
        raise wrong_value(f"the number of rotated channels must be even in {config.keys.name}; got {rotary_dim}")
    rule = Scaling() if scaling is None else scaling
    if scaling is not None:
        config.keys.remarks.append(
            f"The given frequencies include the rule {rope_type}, although scaling is None ({scaling.describe()})"
        )
    inv_freq = frequencies_of_rule(rule, base, rotary_dim)
    return {"inv_freq": inv_freq, "attention_factor": rule.resolved_attention_factor}


def _is_scaled(config: LayerConfig) -> bool:
    """Whether the rule of the block applies to a layer."""
    keys, key = config.keys, config.family.layers.scaled
    if not key:
        return config.scaled or config.block.name != "rope_scaling"
    scaled = keys.list_of(key)
    count = layers_of(keys)
    if keys.get(key) is None or config.layer is ... or rope_type_of(config) == "default":
        return True
    if isinstance(config.layer, int):
        return config.layer in scaled
    if not scaled or (count is not None and {*range(count)} <= {*scaled}):
        return bool(scaled)
    raise wrong_value(f"layer must be given, because {key} has some layers only; got layer=None")


def _without_scaling(config: LayerConfig) -> LayerConfig:
    """The config of a layer to which the block does not apply. The block is checked all the same."""
    others = config.keys.fresh()
    try:
        embedding_of(replace(config, keys=others, layer=..., scaled=True))
    finally:
        config.keys.ignore_as(others)
    block = config.block.mapping
    kept = {"rope_theta": block["rope_theta"]} if config.family.layers.scaled and "rope_theta" in block else {}
    return replace(config, block=Keys("no block", kept), scaled=True)


def _check_switches(config: LayerConfig) -> None:
    """Switches for rotation and for sections must agree with the family."""
    keys = config.keys
    for name, wanted in (("use_rotary_pos_emb", True), ("use_mrope", config.family.axes is not None)):
        stated = keys.get(name)
        if stated is not None and checks.boolean(name, stated) != wanted:
            raise wrong_value(f"{name} must be {wanted} in {keys.name}; got {stated}")


def _ignore_known_keys(config: LayerConfig) -> None:
    """Mark the keys that change nothing as read. All other keys of the block must have been read."""
    keys, block, quirks = config.keys, config.block, config.family.quirks
    block.ignore(*quirks.ignored_in_block, *IGNORED_IN_BLOCK)
    block.require_all_read(owners=rules_with)
    keys.ignore(*quirks.ignored_keys, *(name for name in IGNORED_IF_NULL if keys.mapping.get(name) is None))
    keys.ignore(*(name for name, value in ONLY_VALUES.items() if keys.mapping.get(name, value) == value))
