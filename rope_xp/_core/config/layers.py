"""Which layer is meant, of what type it is, and whether it is rotated."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rope_xp._core import checks
from rope_xp._core.config.family import Family, LayerList, Layers
from rope_xp._core.config.keys import MOST, WHO, Keys, comma_separated

# Layer types without attention over positions.
NO_ATTENTION = ("linear_attention", "mamba", "mamba2", "conv", "recurrent")
# The name of a rotary block that is a default of the family.
OWN = "the family's default"


@dataclass(frozen=True)
class LayerConfig:
    """What is known of one layer, or of all layers of a type, before its embedding is made."""

    keys: Keys  # the config
    block: Keys  # its rotary block
    row: Family  # for this type of layers
    layer: Any  # an int, None, or `...` for any layer
    layer_type: str | None
    seq_len: int | None
    scaled: bool  # whether a `rope_scaling` applies to this type of layers

    @property
    def block_is_default(self) -> bool:
        """Whether the config has no rotary block, so that it is that of the family."""
        return self.block.name == OWN

    def number(self, name: str, value: Any) -> Any:
        """A number that may be a list of one for each layer, where 0 means none; errors name it."""
        if not isinstance(value, (list, tuple)):
            return value
        if isinstance(self.layer, int):
            if self.layer >= len(value):
                raise ValueError(f"{WHO}: {name} must be one for each layer; got {len(value)}")
            return value[self.layer]
        types = types_of(self.keys, self.row)
        found = [n for at, n in enumerate(value) if self.layer_type is None or types[at : at + 1] == [self.layer_type]]
        found = [each for each in found if each] or [each for each in value if each]
        if not found or (self.layer is None and any(each != found[0] for each in found)):
            raise ValueError(f"{WHO}: layer must be given, as {name} differ; got layer=None for {list(value)}")
        return found[0]


def layer_type_of(keys: Keys, family: Family, layer: int | None, layer_type: str | None) -> str | None:
    """The type of a layer, where the config or the family tells types apart."""
    if layer is not None and layer >= MOST:
        raise ValueError(f"{WHO}: layer must be below {MOST}; got {layer}")
    types = types_of(keys, family, layer)
    if layer is not None:
        return _type_at(keys, family, layer, types)
    if layer_type is None:
        return None
    accepted = {*types, *family.layers.by_type, *nested_by(keys, family)}
    if not accepted:
        accepted = {"full_attention", "sliding_attention"}  # all layers are alike
    if family.layers.types is not None:
        accepted |= {"full_attention", *family.layers.types(keys.fresh(), 12)}
    if layer_type not in accepted:
        raise ValueError(f"{WHO}: layer_type must be {comma_separated(accepted) or None}; got {layer_type!r}")
    return layer_type


def _type_at(keys: Keys, family: Family, layer: int, types: list[str]) -> str | None:
    count = layers_of(keys) or len(types) or None
    if count is not None and layer >= count:
        raise ValueError(f"{WHO}: layer must be from 0 to {count - 1}; got {layer}")
    if not types:
        return None
    if layer >= len(types):
        raise ValueError(f"{WHO}: layer_types must have one for each layer; got {len(types)}")
    if family.layers.types is not None and not _given_types(keys):
        pattern = keys.fresh()
        family.layers.types(pattern, len(types))
        if not pattern.stated():
            keys.assume("", "layer_types")
    return types[layer]


def label_of(layers: Layers, layer_type: str | None) -> str:
    """The name under which a family keeps what differs for a layer type."""
    if not layers.same_as or layer_type is None or layer_type in layers.by_type:
        return layer_type or ""
    return layers.same_as.get(layer_type, layers.same_as.get(..., layer_type))


def nested_by(keys: Keys, family: Family) -> list[str]:
    """The layer types by which the rotary block is nested, if it is."""
    block = keys.mapping.get("rope_parameters")
    if not isinstance(block, Mapping):
        return []
    types = {*types_of(keys, family), *family.layers.by_type}
    return [key for key, value in block.items() if isinstance(value, Mapping) or (value is None and key in types)]


def types_of(keys: Keys, family: Family, layer: Any = None) -> list[str]:
    """The type of each layer, or nothing; at least up to `layer`, where types follow from older keys."""
    types = _given_types(keys)
    whole = bool(types) or layers_of(keys) is not None
    if not types:
        count = layers_of(keys) or (layer + 1 if isinstance(layer, int) else 0)
        if family.layers.types is None:
            return []
        pattern = keys.fresh()
        types = family.layers.types(pattern, count)
        keys.ignore_as(pattern)
    if not isinstance(types, (list, tuple)) or not all(isinstance(each, str) for each in types):
        raise TypeError(f"{WHO}: layer_types must be a list of strings; got {types!r}")
    if family.layers.last_is_full and whole and types:
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
    layers, listed = family.layers, family.layers.listed
    if listed is not None:
        keys.ignore(listed.key)
    if layers.only_if is not None and not _has_value(keys, family, *layers.only_if):
        return False
    if layers.rotated is not None and not layers.rotated(keys, layer, layer_type):
        return False
    if layer_type in NO_ATTENTION:
        return False
    if listed is None or not (listed.otherwise or keys.items(listed.key)):
        return True
    return _is_listed(keys, family, listed, layer, layer_type)


def _has_value(keys: Keys, family: Family, key: str, wanted: Any, *others: Any) -> bool:
    """Whether a key has the wanted value and not another that it may have."""
    value, usual = keys.get(key), family.default(key)
    if value is None:
        keys.assume("", key)
        value = usual
    known = {wanted, usual, *others}
    if not any(value == each for each in known):
        raise ValueError(f"{WHO}: {key} must be one of {comma_separated(known)}; got {value!r}")
    return value == wanted


def _is_listed(keys: Keys, family: Family, listed: LayerList, layer: int | None, layer_type: str | None) -> bool:
    """Whether the list that has a number for each layer has more than 0 for this one."""
    numbers = numbers_of(keys, listed, layer)
    types = types_of(keys, family, layer)
    if layer is not None:
        if layer >= len(numbers):
            raise ValueError(f"{WHO}: {listed.key} must have a number for each layer; got {len(numbers)}")
        if listed.otherwise and not keys.items(listed.key) and keys.get("no_rope_layer_interval") is None:
            keys.assume("", listed.key)
        return bool(numbers[layer])
    if layer_type is None:
        return not numbers or any(numbers)
    found = {bool(each) for each, kind in zip(numbers, types) if kind == layer_type}
    if len(found) > 1:
        raise ValueError(
            f"{WHO}: layer must be given, as layers of type {layer_type!r} differ in {listed.key}; got layer=None"
        )
    return found == {True}


def numbers_of(keys: Keys, listed: LayerList, layer: int | None) -> list[Any]:
    """The list that has a number for each layer, 0 where it is not rotated, or what stands for it."""
    numbers = keys.items(listed.key)
    interval = keys.count("no_rope_layer_interval") if listed.key == "no_rope_layers" else None
    for number in numbers:
        if not isinstance(number, (bool, int, float)) or not number >= 0:
            raise TypeError(f"{WHO}: {listed.key} must be a list of numbers, none negative; got {number!r} in it")
    return numbers or _numbers_without_list(keys, listed, layer, 4 if interval is None else interval)


def _numbers_without_list(keys: Keys, listed: LayerList, layer: int | None, interval: int) -> list[Any]:
    known = layers_of(keys)
    count = known or (0 if layer is None else layer + 1)
    if listed.otherwise == "interval":
        return [not interval or (at + 1) % interval for at in range(count)]
    if listed.otherwise == "":
        return [1] * count
    if layer is not None and known is None:
        raise ValueError(f"{WHO}: num_hidden_layers must be given where layers are counted from the end; got {known}")
    return [(count - 1 - at) % 4 for at in range(count)]
