"""The embeddings of all layers of a config: the kinds of layers that differ."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from rope_xp.configs.from_config import from_config
from rope_xp.configs.keys import MAX_SIZE
from rope_xp.configs.readers.formats import mapping_of
from rope_xp.configs.reading import types_of_layers
from rope_xp.embedding import RotaryEmbedding
from rope_xp.explanation import ranges
from rope_xp.types import Config, Values


class LayerGroup(NamedTuple):
    """Layers with the same embedding."""

    name: str  # the type of the layers, or their numbers if others of the type differ. Empty if all layers are alike.
    layers: tuple[int, ...]  # Their numbers. Empty if the config does not state the number of layers.
    rope: RotaryEmbedding | None  # None if the layers are not rotated
    is_type: bool = False  # whether the name is that of one type, and the group has all layers of it


def groups_of(config: Config, layer: int | None, layer_type: str | None, **options: Any) -> list[LayerGroup]:
    """The layers by their embeddings: one group if a layer is chosen, or all are alike. Options as in `from_config`."""
    if layer is not None or layer_type is not None:
        name, layers = layer_type or f"layers {layer}", () if layer is None else (layer,)
        return [LayerGroup(name, layers, from_config(config, layer=layer, layer_type=layer_type, **options))]
    try:
        whole = from_config(config, **options)
    except ValueError as error:
        found = _differing(config, options)
        if len(found) < 2:
            raise error from None
        return found
    found = _differing(config, options)
    if len(found) < 2:
        return [LayerGroup("", (), whole)]
    return [each if each.rope is None else each._replace(rope=whole) for each in found]


def _differing(config: Config, options: Config) -> list[LayerGroup]:
    """The groups of a config, in the order of their first layers; none if its layers cannot be told apart."""
    try:
        mapping = _without_long_lists(mapping_of(config))
        types, names = types_of_layers(mapping, options.get("part"))
        if types is None:
            ropes = {name: from_config(mapping, layer_type=name, **options) for name in names}
            return [LayerGroup(name, (), rope, True) for name, rope in ropes.items()]
        ropes = [from_config(mapping, layer=layer, **options) for layer in range(len(types))]
    except (TypeError, ValueError):  # the caller has an error of the whole config, which says more
        return []
    groups: dict[RotaryEmbedding | None, list[int]] = {}
    for layer, rope in enumerate(ropes):
        groups.setdefault(rope, []).append(layer)
    return [_group(rope, layers, types) for rope, layers in groups.items()]


def _without_long_lists(mapping: Config) -> Values:
    """A mapping without lists that are longer than any about rotation, such as vocabularies. They cost time."""
    return {
        key: _without_long_lists(value) if isinstance(value, Mapping) else value
        for key, value in mapping.items()
        if not isinstance(value, (list, tuple)) or len(value) <= MAX_SIZE
    }


def _group(rope: RotaryEmbedding | None, layers: list[int], types: list[str]) -> LayerGroup:
    own = list(dict.fromkeys(types[layer] for layer in layers))
    has_all = all(own) and layers == [layer for layer, each in enumerate(types) if each in own]
    return LayerGroup(
        ", ".join(own) if has_all else f"layers {ranges(layers)}", tuple(layers), rope, has_all and len(own) == 1
    )
