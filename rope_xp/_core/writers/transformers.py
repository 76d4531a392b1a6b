"""Write an embedding as the `rope_parameters` of a transformers config."""

from dataclasses import fields
from math import nextafter
from typing import Any

from rope_xp._core.writers import Options
from rope_xp._core.writers.limits import require_attention_factor, require_only
from rope_xp.frequencies import NTKScaling, Scaling

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
ORDERS = ("chunked", "interleaved", "spatial_first", "even_odd")
# Fields of scaling rules that a config has outside `rope_parameters`.
NOT_IN_BLOCK = ("seq_len", "max_position_embeddings")


def transformers_keys(who: str, rope: Any, options: Options) -> dict[str, Any]:
    """`rope_parameters`, as transformers 5 reads them."""
    return rope_parameters(who, rope)


def rope_parameters(who: str, rope: Any) -> dict[str, Any]:
    """The `rope_parameters` of a `RotaryEmbedding`, if transformers can express it."""
    require_only(who, rope, "in a transformers config", "first_channel", "blocks")
    rule = Scaling() if rope.scaling is None else rope.scaling
    block = {"rope_type": rule.rope_type, "rope_theta": rope.base} | _of_rule(who, rule)
    require_attention_factor(who, rope)
    if rope.rotary_dim != rope.head_dim:
        if "partial_rotary_factor" in block:
            raise ValueError(f"{who}: rotary_dim must be head_dim with {rule}; got {rope.rotary_dim}")
        block["partial_rotary_factor"] = rotated_fraction(rope)
    return block if rope.sections is None else block | _of_sections(who, rope.sections)


def _of_rule(who: str, rule: Scaling) -> dict[str, Any]:
    """The keys of a scaling rule."""
    if isinstance(rule, NTKScaling):
        return {"rope_type": "dynamic", "alpha": rule.factor, "factor": 1.0}
    if rule.rope_type not in ROPE_TYPES:
        raise ValueError(f"{who}: scaling must be a rule that transformers has; got {rule}")
    values = {each.name: getattr(rule, each.name) for each in fields(rule) if each.name not in NOT_IN_BLOCK}
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in values.items() if value is not None
    }


def rotated_fraction(rope: Any) -> float:
    """The fraction of channels that are rotated. transformers multiplies it by `head_dim` and rounds down."""
    fraction = 2 * rope.pairs / rope.head_dim
    return fraction if int(fraction * rope.head_dim) == rope.rotary_dim else nextafter(fraction, 1.0)


def _of_sections(who: str, sections: Any) -> dict[str, Any]:
    """The keys of several position axes."""
    if sections.order not in ORDERS:
        raise ValueError(f"{who}: sections must be in an order that transformers has; got {sections}")
    interleaved = {"mrope_interleaved": True} if sections.order == "interleaved" else {}
    return {"mrope_section": list(sections.sizes), **interleaved}
