"""Which kind of layer is meant, and whether it is rotated."""

from collections.abc import Mapping
from typing import Any

from rope_xp._core import checks
from rope_xp._core.config.families import Family
from rope_xp._core.config.keys import MOST, WHO, Keys, comma_separated

# Layer types without attention over positions.
NO_ATTENTION = ("linear_attention", "mamba", "mamba2", "conv", "recurrent")


def layer_type_of(keys: Keys, family: Family, layer: int | None, layer_type: str | None) -> str | None:
    """The type of a layer, where the config or the family tells types apart."""
    if layer is not None and layer >= MOST:
        raise ValueError(f"{WHO}: layer must be below {MOST}; got {layer}")
    types = types_of(keys, family, layer)
    if layer is not None:
        count = layers_of(keys) or len(types) or None
        if count is not None and layer >= count:
            raise ValueError(f"{WHO}: layer must be from 0 to {count - 1}; got {layer}")
        if layer < len(types):
            if family.types is not None and not _given_types(keys):
                pattern = keys.fresh()
                family.types(pattern, len(types))
                if not pattern.stated():
                    keys.assume("", "layer_types")
            return types[layer]
        if types:
            raise ValueError(f"{WHO}: layer_types must have one for each layer; got {len(types)}")
        return None
    if layer_type is None:
        return None
    accepted = {*types, *family.by_layer, *nested_by(keys, family), *family.unrotated}
    if not accepted:
        accepted = {"full_attention", "sliding_attention"}  # all layers are alike
    if family.types is not None:
        accepted |= {"full_attention", *family.types(keys.fresh(), 12)}
    if layer_type not in accepted:
        raise ValueError(f"{WHO}: layer_type must be {comma_separated(accepted) or None}; got {layer_type!r}")
    return layer_type


def label_of(family: Family, layer_type: str | None) -> str:
    """The name under which a family keeps what differs for a layer type."""
    if not family.labels or layer_type is None or layer_type in family.by_layer:
        return layer_type or ""
    return family.labels.get(layer_type, family.labels.get(..., layer_type))


def nested_by(keys: Keys, family: Family) -> list[str]:
    """The layer types by which the rotary block is nested, if it is."""
    block = keys.mapping.get("rope_parameters")
    if not isinstance(block, Mapping):
        return []
    types = {*types_of(keys, family), *family.by_layer}
    return [key for key, value in block.items() if isinstance(value, Mapping) or (value is None and key in types)]


def types_of(keys: Keys, family: Family, layer: Any = None) -> list[str]:
    """The type of each layer, or nothing; at least up to `layer`, where types follow from older keys."""
    types = _given_types(keys)
    whole = bool(types) or layers_of(keys) is not None
    if not types:
        count = layers_of(keys) or (layer + 1 if isinstance(layer, int) else 0)
        if family.types is None:
            return []
        pattern = keys.fresh()
        types = family.types(pattern, count)
        keys.ignore_as(pattern)
    if not isinstance(types, (list, tuple)) or not all(isinstance(each, str) for each in types):
        raise TypeError(f"{WHO}: layer_types must be a list of strings; got {types!r}")
    if family.full_at_end and whole and types:
        return [*types[:-1], "full_attention"]
    return list(types)


def _given_types(keys: Keys) -> Any:
    return keys.get("layer_types", "layers_block_type")


def layers_of(keys: Keys) -> int | None:
    """The number of layers."""
    count = keys.first("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    if count is not None and checks.count(WHO, "num_hidden_layers", count) > MOST:
        raise ValueError(f"{WHO}: num_hidden_layers must be at most {MOST}; got {count}")
    return None if count is None else checks.plain(count)


def is_rotated(keys: Keys, family: Family, layer: int | None, layer_type: str | None) -> bool:
    """Whether the layer is rotated; without a layer, whether any is."""
    keys.ignore(*(name for name in (family.all_if_null, family.listed) if name))
    if family.rotated_if is not None:
        key, wanted, *others = family.rotated_if
        value = keys.get(key)
        if value is None:
            keys.assume("", key)
            value = others[0]
        if value != wanted and value not in others:
            raise ValueError(f"{WHO}: {key} must be one of {comma_separated({wanted, *others})}; got {value!r}")
        if value != wanted:
            return False
    block = keys.mapping.get("rope_parameters")
    if family.null_base and isinstance(block, Mapping) and block.get("rope_theta", 1) is None:
        return False
    if layer_type in NO_ATTENTION:
        return False
    if family.listed and (family.unlisted or keys.items(family.listed)):
        return _is_listed(keys, family, layer, layer_type)
    if layer_type not in family.unrotated:
        return True
    if family.all_if_null and family.all_if_null in keys.mapping:
        return keys.mapping[family.all_if_null] is None
    if family.dense_prefix and layer is not None and keys.get("prefix_dense_sliding_window_pattern") in (None, 1):
        kinds = keys.items("mlp_layer_types")
        return kinds[layer : layer + 1] == ["dense"] or layer < keys.count("first_k_dense_replace", 0)
    return False


def _is_listed(keys: Keys, family: Family, layer: int | None, layer_type: str | None) -> bool:
    """Whether the list that has a number for each layer has more than 0 for this one."""
    numbers = numbers_of(keys, family, layer)
    types = types_of(keys, family, layer)
    if layer is not None:
        if layer >= len(numbers):
            raise ValueError(f"{WHO}: {family.listed} must have a number for each layer; got {len(numbers)}")
        if family.unlisted and not keys.items(family.listed) and keys.get("no_rope_layer_interval") is None:
            keys.assume("", family.listed)
        return bool(numbers[layer])
    if layer_type is None:
        return not numbers or any(numbers)
    found = {bool(each) for each, kind in zip(numbers, types) if kind == layer_type}
    if len(found) > 1:
        raise ValueError(
            f"{WHO}: layer must be given, as layers of type {layer_type!r} differ in {family.listed}; got layer=None"
        )
    return found == {True}


def numbers_of(keys: Keys, family: Family, layer: int | None) -> list[Any]:
    """The list that has a number for each layer, 0 where it is not rotated, or what stands for it."""
    numbers = keys.items(family.listed)
    interval = keys.count("no_rope_layer_interval") if family.listed == "no_rope_layers" else None
    interval = 4 if interval is None else interval
    for number in numbers:
        if not isinstance(number, (bool, int, float)) or not number >= 0:
            raise TypeError(f"{WHO}: {family.listed} must be a list of numbers, none negative; got {number!r} in it")
    if numbers:
        return numbers
    known = layers_of(keys)
    count = known or (0 if layer is None else layer + 1)
    if family.unlisted == "interval":
        return [not interval or (index + 1) % interval for index in range(count)]
    if family.unlisted == "from the end":
        if layer is not None and known is None:
            raise ValueError(
                f"{WHO}: num_hidden_layers must be given where layers are counted from the end; got {known}"
            )
        return [(count - 1 - index) % 4 for index in range(count)]
    return [1] * count
