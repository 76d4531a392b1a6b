"""From the rotary block of a config, and the keys beside it, to a `RotaryEmbedding`."""

from dataclasses import MISSING, fields, replace
from typing import Any

from rope_xp._core import checks
from rope_xp._core.axes import Sections
from rope_xp._core.config.families import Family
from rope_xp._core.config.keys import MOST, WHO, Keys, comma_separated, consistent_value, speaks
from rope_xp._core.config.layers import layers_of, nested_by, numbers_of, types_of
from rope_xp._core.embedding import RotaryEmbedding
from rope_xp._core.spectrum import frequencies_of
from rope_xp.frequencies import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    MixedNTKScaling,
    NTKScaling,
    ProportionalScaling,
    Scaling,
    YarnScaling,
)

RULES: dict[str, type[Scaling]] = {
    "default": Scaling,
    "linear": LinearScaling,
    "dynamic": DynamicNTKScaling,
    "yarn": YarnScaling,
    "deepseek_yarn": YarnScaling,
    "longrope": LongRopeScaling,
    "llama3": Llama3Scaling,
    "proportional": ProportionalScaling,
    "ntk": MixedNTKScaling,
}
# Other names of rules.
ALIASES = {"su": "longrope", "mrope": "default", "axial": "default", "xdrope": "dynamic"}

BASE_KEYS = ("rope_theta", "theta", "rotary_emb_base", "rotary_embedding_base", "rope_base")
PARTIAL_KEYS = (
    "partial_rotary_factor",
    "rotary_pct",
    "rotary_percent",
    "rope_pct",
    "rope_percent",
    "rope_percentage",
    "rotary_emb_fraction",
)
INTERLEAVE_KEYS = ("rope_interleave", "rope_interleaved", "rotary_emb_interleaved", "rope_traditional")
LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "model_max_length")
ORIGINAL = "original_max_position_embeddings"
# Keys that checkpoints carry in any family and that change nothing: in the block, and beside it while they are null.
UNREAD = ("finetuned",)
UNREAD_IF_NULL = ("rope_scaling", "rope_parameters", "rotary_scaling_factor", "rotary_emb_scale_base")
# Keys with a value that changes nothing; no rule reads them with another.
NEUTRAL = {"rotary_scaling_factor": 1, "position_embedding_xdrope": False}

MOST_AXES = 16

# Where a family's own block came from.
OWN = "the family's default"


def block_of(keys: Keys, family: Family, label: str) -> Keys | None:
    """The rotary block of a layer type; None where it is null for that type."""
    parameters, scaling = keys.within("rope_parameters").mapping, keys.within("rope_scaling").mapping
    if parameters and scaling and parameters != scaling:
        raise ValueError(f"{WHO}: rope_parameters or rope_scaling must be given, not both; got both")
    labels = nested_by(keys, family)
    if labels:
        if label not in labels:
            raise ValueError(
                f"{WHO}: layer or layer_type must be given, {comma_separated(labels)}, as rope_parameters are nested; "
                f"got layer_type={label or None!r}"
            )
        outer = {key: value for key, value in parameters.items() if key not in labels and key not in family.echoes}
        if outer:
            raise ValueError(
                f"{WHO}: rope_parameters must be nested by layer type, {comma_separated(labels)}, or not at all; "
                f"got {outer} beside"
            )
        return None if parameters[label] is None else Keys(f"rope_parameters of {label!r}", parameters[label])
    if family.by_layer and label not in family.by_layer:
        raise ValueError(
            f"{WHO}: layer or layer_type must be given, {comma_separated(family.by_layer)}, as they differ; "
            f"got layer_type={label or None!r}"
        )
    if parameters and len(family.by_layer) > 1:
        raise ValueError(
            f"{WHO}: rope_parameters must be nested by layer type, {comma_separated(family.by_layer)}; "
            f"got {dict(parameters)}"
        )
    if parameters or scaling:
        return Keys("rope_parameters" if parameters else "rope_scaling", parameters or scaling)
    own = row_of(family, label).block
    return None if own is None else Keys(OWN, own)


def row_of(family: Family, label: str) -> Family:
    """A family's row for a layer type."""
    return replace(family, **family.by_layer.get(label, {}))


def embedding_of(keys: Keys, block: Keys, row: Family, layer: Any, layer_type: str | None, seq_len: int | None) -> Any:
    """The `RotaryEmbedding` of a block, or None where no channel turns.

    `layer` is an int, None, or `...` for any layer.
    """
    if not _is_scaled(keys, block, row, layer):
        # It is for other layers, and must make sense all the same.
        others = keys.fresh()
        embedding_of(others, block, replace(row, scaled=True), ..., layer_type, seq_len)
        keys.ignore_as(others)
        kept = ("rope_theta",) if isinstance(row.scaled, str) else ()
        block = Keys("no block", {key: block.mapping[key] for key in kept if key in block.mapping})
    head_dim = _head_dim(keys, row, layer, layer_type)
    if head_dim > MOST:
        raise ValueError(f"{WHO}: head_dim must be at most {MOST}; got {head_dim}")
    base = _base(keys, block, row, layer, layer_type)
    rope_type = _rope_type(block, row)
    rotary_dim = _rotary_dim(keys, block, row, rope_type, head_dim, layer, layer_type)
    scaling = _scaling(keys, block, row, rope_type, seq_len)
    sections = _sections(keys, block, row, rotary_dim)
    for name, wanted in (("use_rotary_pos_emb", True), ("use_mrope", row.order is not None)):
        said = keys.get(name)
        if said is not None and checks.boolean(WHO, name, said) != wanted:
            raise ValueError(f"{WHO}: {name} must be {wanted} in {keys.name}; got {said}")
    options: dict[str, Any] = {"head_dim": head_dim, "layout": _layout(keys, row), "blocks": row.blocks}
    block.ignore(*row.unread, *UNREAD)
    block.finish()
    keys.ignore(*row.beside, *(name for name in UNREAD_IF_NULL if keys.mapping.get(name) is None))
    keys.ignore(*(name for name, value in NEUTRAL.items() if keys.mapping.get(name, value) == value))
    if _is_latent(row) and not head_dim:
        return None  # a latent attention without a rotated part
    if rotary_dim < 1:
        raise ValueError(f"{WHO}: the width that turns must be at least 1; got {rotary_dim} of head_dim={head_dim}")
    if row.last:
        options["first_channel"] = head_dim - rotary_dim
    if row.weights is not None and layer is not ...:
        return RotaryEmbedding(**options, inv_freq=row.weights(keys, head_dim, base))
    if rotary_dim % 2 or rope_type in row.rules:  # an odd width is rounded up to whole pairs
        rule = Scaling() if scaling is None else scaling
        if sections is not None or row.reverse or row.last:
            raise ValueError(f"{WHO}: the width that turns must be even in {keys.name}; got {rotary_dim}")
        inv_freq = frequencies_of(WHO, rule, base, rotary_dim)
        return RotaryEmbedding(**options, inv_freq=inv_freq, attention_factor=rule.resolved_attention_factor)
    if sections is not None:
        rotary_dim = 2 * sections.pairs
    return RotaryEmbedding(
        **options, base=base, rotary_dim=rotary_dim, scaling=scaling, sections=sections, reverse=row.reverse
    )


def _is_scaled(keys: Keys, block: Keys, row: Family, layer: Any) -> bool:
    """Whether the rule of the block applies to a layer."""
    if not isinstance(row.scaled, str):
        return row.scaled or block.name != "rope_scaling"
    scaled = keys.items(row.scaled)
    count = layers_of(keys)
    if keys.get(row.scaled) is None or layer is ... or _rope_type(block, row) == "default":
        return True
    if isinstance(layer, int):
        return layer in scaled
    if not scaled or (count is not None and {*range(count)} <= {*scaled}):
        return bool(scaled)
    raise ValueError(f"{WHO}: layer must be given, as {row.scaled} has some layers only; got layer=None")


def _head_dim(keys: Keys, row: Family, layer: Any, layer_type: str | None) -> int:
    own = _own_width(keys, row, layer, layer_type)
    if own is not None:
        return own
    tried = []
    for way in row.head_dim:
        if callable(way):
            return way(keys)
        if isinstance(way, int):
            keys.assume("channels", str(row.head_dim[0]))
            return way
        names = way.split("/")
        tried.append(" / ".join(names))
        values = [keys.count(name) for name in names]
        if any(value is None for value in values):
            continue
        width, *divisors = values
        for name, divisor in zip(names[1:], divisors):
            if not divisor:
                raise ValueError(f"{WHO}: {name} must be at least 1; got 0")
            width //= divisor
        return width
    raise ValueError(
        f"{WHO}: {' or '.join(tried)} must be given, which a part may leave to its class in transformers (load it "
        f"there, and pass that); got neither in {keys.name}"
    )


def _own_width(keys: Keys, row: Family, layer: Any, layer_type: str | None) -> int | None:
    """The width that `per_layer_config` gives a layer, or all layers of a type."""
    given = keys.within("per_layer_config").mapping
    if not given:
        return None
    if not all(str(at).isdecimal() and len(str(at)) < 10 for at in given):
        raise ValueError(f"{WHO}: keys of per_layer_config must be indices of layers; got {comma_separated(given)}")
    own = Keys("per_layer_config", {str(int(at)): each for at, each in given.items()})  # which may be padded
    types = types_of(keys, row)
    name = "qk_rope_head_dim" if "qk_rope_head_dim" in row.head_dim else "head_dim"
    if not any(own.within(at).get(name) for at in own.mapping):
        return None
    layers = [layer] if isinstance(layer, int) else [at for at, kind in enumerate(types) if kind == layer_type]
    widths = {own.within(str(at)).count(name) for at in layers}
    if len(widths) > 1 or (layer is None and not layers):
        raise ValueError(f"{WHO}: layer must be given, as per_layer_config differs; got layer=None")
    return widths.pop() if widths else None


def _base(keys: Keys, block: Keys, row: Family, layer: Any, layer_type: str | None) -> float:
    if row.base_fixed and row.base is not None:
        return row.base
    inner = block.get("rope_theta")
    outer = keys.get(*(row.base_keys or BASE_KEYS))
    if row.base_in:
        inside = keys.within(row.base_in)
        outer = consistent_value("rope_theta", inside.get("rope_theta"), outer, row.base_in)
        inside.finish(speaks)
    if row.listed and row.listed_bases and keys.get(row.listed):
        outer, inner = numbers_of(keys, row, None), None
    outer = _of_layer("bases", keys, row, outer, layer, layer_type)
    if block.name == OWN:
        base = inner if outer is None else outer
    elif inner is not None and set(row.echoes) & {*BASE_KEYS, *row.base_keys}:
        base = inner
    else:
        base = consistent_value("rope_theta", inner, outer, block.name)
    if base is None or (block.name == OWN and outer is None):
        keys.assume("frequencies", (row.base_keys or ("rope_theta",))[0])
    base = row.base if base is None else base
    if base is None:
        raise ValueError(f"{WHO}: rope_theta, the base, must be given in {keys.name}; got none")
    return checks.at_least(WHO, "rope_theta", base, 1.0)


def _of_layer(name: str, keys: Keys, row: Family, value: Any, layer: Any, layer_type: str | None) -> Any:
    """A number, which may be a list of one for each layer; 0 there is no number."""
    if not isinstance(value, (list, tuple)):
        return value
    if isinstance(layer, int):
        if layer >= len(value):
            raise ValueError(f"{WHO}: {name} must be one for each layer; got {len(value)}")
        return value[layer]
    types = types_of(keys, row)
    found = [each for at, each in enumerate(value) if layer_type is None or types[at : at + 1] == [layer_type]]
    found = [each for each in found if each] or [each for each in value if each]
    if not found or (layer is None and any(each != found[0] for each in found)):
        raise ValueError(f"{WHO}: layer must be given, as {name} differ; got layer=None for {list(value)}")
    return found[0]


def _rope_type(block: Keys, row: Family) -> str:
    """The name of a block's rule."""
    names = {name: block.get(name) for name in ("rope_type", "type")}
    given = [name for name in names.values() if name is not None]
    aliases = {**ALIASES, **row.aliases}
    known = {*RULES, *row.rules, *aliases}
    for name in given:
        if not isinstance(name, str) or name not in known:
            raise ValueError(f"{WHO}: rope_type must be one of {comma_separated(known)}; got {name!r}")
    if not given and block.mapping.get("factor") is not None:
        raise ValueError(
            f"{WHO}: {block.name} must have a rope_type beside factor; got {comma_separated(block.mapping)}"
        )
    types = {str(aliases.get(name, name)) for name in given}
    if "deepseek_yarn" in types:
        types.discard("yarn")  # it is one: an older `type` says so beside it
    if len(types) > 1:
        raise ValueError(f"{WHO}: rope_type and type must not contradict each other; got {names}")
    return types.pop() if types else "default"


def _rotary_dim(
    keys: Keys, block: Keys, row: Family, rope_type: str, head_dim: int, layer: Any, layer_type: str | None
) -> int:
    """How many channels turn; it may be odd."""
    inner = None if rope_type == "proportional" else block.get(*PARTIAL_KEYS)
    outer = consistent_value(
        "partial_rotary_factor",
        keys.get(*PARTIAL_KEYS),
        _of_layer("shares", keys, row, keys.get("partial_rotary_factors"), layer, layer_type),
        keys.name,
    )
    if block.name == OWN and outer is not None:
        inner = None
    if inner is not None and set(row.echoes) & {*PARTIAL_KEYS}:
        outer = None
    share = consistent_value("partial_rotary_factor", inner, outer, block.name)
    if share is not None:
        share = checks.positive(WHO, "partial_rotary_factor", share)
        if share > head_dim:
            raise ValueError(f"{WHO}: partial_rotary_factor must be at most {head_dim}, the head_dim; got {share}")
    if row.share_means is not None:
        only = None if share is None else row.share_means(keys, head_dim)
        if only is not None and share != only:
            raise ValueError(f"{WHO}: partial_rotary_factor must be {only:g} in {keys.name}; got {share}")
        return head_dim
    if rope_type == "proportional":
        return head_dim
    width = keys.get(*row.width_keys)
    if row.width is not None:
        width = row.width(keys, head_dim)
    if width is not None:
        width = checks.count(WHO, row.width_keys[0], width)
        if share is not None and int(head_dim * share) != width:
            raise ValueError(
                f"{WHO}: the width that turns must be said once; got {width} channels and "
                f"partial_rotary_factor={share} of {head_dim}"
            )
    else:
        if (share is None and row.partial != 1.0) or (block.name == OWN and inner is not None):
            keys.assume("channels", PARTIAL_KEYS[0])
        width = int(head_dim * (row.partial if share is None else share))
    if row.share_of_each_axis:
        width *= row.axes
    if width > head_dim:
        raise ValueError(f"{WHO}: the width that turns must be at most head_dim={head_dim}; got {width}")
    return width


def _scaling(keys: Keys, block: Keys, row: Family, rope_type: str, seq_len: int | None) -> Scaling | None:
    rule = {**RULES, **row.rules}[rope_type]
    own_length = block.get(LENGTH_KEYS[0])
    length = _whole(keys.first(*LENGTH_KEYS) if own_length is None else own_length)
    values = {each.name: block.get(each.name) for each in fields(rule) if each.name not in ("seq_len", LENGTH_KEYS[0])}
    outer_original = keys.get(ORIGINAL)
    if ORIGINAL in values:
        original = _whole(consistent_value(ORIGINAL, values[ORIGINAL], outer_original, block.name))
        values[ORIGINAL] = next((each for each in (original, row.original, length) if each is not None), None)
        if original is None:
            keys.assume("scaling", ORIGINAL, "" if row.original is not None else f"taken from {LENGTH_KEYS[0]}")
    if "seq_len" in {each.name for each in fields(rule)}:
        values["seq_len"] = seq_len
    if rule is Scaling:
        return None
    if block.name == OWN:
        keys.assume("scaling", "rope_parameters")
    if rule is DynamicNTKScaling:
        alpha = block.get("alpha")
        if alpha is not None and "factor" not in row.unread and values["factor"] not in (None, 1):
            raise ValueError(f"{WHO}: alpha or factor must be given, not both; got {alpha} and {values['factor']}")
        if alpha is not None:
            return NTKScaling(factor=alpha)
        values[LENGTH_KEYS[0]] = length
    # A factor that is null, or LongRoPE's that is left out, is the ratio of lengths.
    ratio = rule is LongRopeScaling or (issubclass(rule, YarnScaling) and "factor" in block.mapping)
    if ratio and values["factor"] is None and length is not None and values[ORIGINAL] is not None:
        length = checks.positive(WHO, LENGTH_KEYS[0], length)
        values["factor"] = length / checks.positive(WHO, ORIGINAL, values[ORIGINAL])
    if block.name == "rope_scaling":
        usual = {name: value for name, value in row.legacy.items() if name in values and values[name] is None}
        values |= usual
        for name in usual:
            keys.assume("attention factor", name)
    values = {name: value for name, value in values.items() if value is not None}
    missing = [each.name for each in fields(rule) if each.default is MISSING and each.name not in values]
    if missing:
        raise ValueError(
            f"{WHO}: {block.name} of type {rope_type!r} must have {comma_separated(missing)}; "
            f"got {comma_separated(block.mapping)}"
        )
    if rope_type == "deepseek_yarn":
        return _of_deepseek(YarnScaling(**values))
    scaling = rule(**values)
    if isinstance(scaling, YarnScaling) and not (_is_latent(row) and row.scales_softmax):
        return _of_tables_alone(scaling)
    return scaling


def _is_latent(row: Family) -> bool:
    """Whether it is multi-head latent attention, of which a part of the head is rotated."""
    return row.head_dim[0] == "qk_rope_head_dim"


def _of_tables_alone(yarn: YarnScaling) -> YarnScaling:
    """The same tables; only multi-head latent attention multiplies the scale of its softmax too.

    References
    ----------
    transformers, `yarn_apply_mscale` of `modeling_deepseek_v3.py`, which is in the files of such models alone.
    """
    if yarn.softmax_scale == 1.0:
        return yarn
    return replace(yarn, attention_factor=yarn.resolved_attention_factor, mscale=None, mscale_all_dim=None)


def _of_deepseek(yarn: YarnScaling) -> YarnScaling:
    """DeepSeek's own YaRN, where a number that is absent is 1 or 0; transformers' rule reads both numbers or none.

    References
    ----------
    DeepSeek, `modeling_deepseek.py`, `DeepseekV3YarnRotaryEmbedding`; vLLM, `deepseek_scaling_rope.py`.
    """
    if yarn.attention_factor is not None:
        return yarn
    mscale = 1.0 if yarn.mscale is None else yarn.mscale
    magnitude = yarn.get_mscale(mscale) / yarn.get_mscale(yarn.mscale_all_dim or 0.0)
    return yarn if magnitude == yarn.resolved_attention_factor else replace(yarn, attention_factor=magnitude)


def _whole(length: Any) -> Any:
    """A length as configs have it, which may be a float without a fraction."""
    return int(length) if isinstance(length, float) and length.is_integer() else length


def _sections(keys: Keys, block: Keys, row: Family, rotary_dim: int) -> Sections | None:
    if row.order is None:
        return None
    order, pairs = str(row.order), rotary_dim // 2
    given = block.get("mrope_section", "xdrope_section")
    time = keys.count("freq_allocation") if order == "spatial_first" else None
    if time is not None:  # pairs of time; height and width have the others
        space = (pairs - time) // 2
        given = consistent_value("mrope_section", given, [space, space, time], block.name)
    interleaved = block.get("mrope_interleaved", "interleaved")
    if interleaved is not None and checks.boolean(WHO, "mrope_interleaved", interleaved) != (order == "interleaved"):
        if not row.any_order:
            raise ValueError(
                f"{WHO}: mrope_interleaved must be {order == 'interleaved'} for this model_type; got {interleaved}"
            )
        order = "interleaved" if interleaved else "chunked"
    in_glm = block.get("mrope_interleaved_glm")
    if in_glm is not None and checks.boolean(WHO, "mrope_interleaved_glm", in_glm):
        order = "round_robin"
    sizes = row.sizes if given is None else given
    if given is None and sizes is not None:
        keys.assume("position axes", "mrope_section")
    if sizes is None:
        return Sections((pairs // row.axes,) * row.axes, order, row.axis_of_section) if row.axes > 1 else None
    if not isinstance(sizes, (list, tuple)):
        raise TypeError(f"{WHO}: mrope_section must be a list of int; got {sizes!r}")
    sizes = tuple(checks.count(WHO, "every mrope_section", size) for size in sizes)
    if len(sizes) > MOST_AXES:
        raise ValueError(f"{WHO}: mrope_section must have at most {MOST_AXES} numbers; got {len(sizes)}")
    if row.sizes is not None and len(sizes) != len(row.sizes):
        raise ValueError(f"{WHO}: mrope_section must have {len(row.sizes)} numbers in this family; got {list(sizes)}")
    if row.clamped and order == "interleaved" and len(sizes) == 3:
        # As upstream's slices leave them: so many as there are turns, and the rest for the first axis.
        height, width = min(sizes[1], (pairs + 1) // 3), min(sizes[2], pairs // 3)
        sizes = (pairs - height - width, height, width)
    if sum(sizes) != pairs:
        raise ValueError(f"{WHO}: mrope_section must sum to the {pairs} pairs that turn; got {list(sizes)}")
    return Sections(sizes, order, row.axis_of_section)


def _layout(keys: Keys, row: Family) -> str:
    interleave = keys.get(*INTERLEAVE_KEYS)
    if interleave is None or row.layout_said:
        return row.layout
    if checks.boolean(WHO, "rope_interleave", interleave) == (row.layout != "half"):
        return row.layout
    if row.interleave_key:
        return "half"
    raise ValueError(f"{WHO}: rope_interleave must be {row.layout != 'half'} for this model_type; got {interleave}")
