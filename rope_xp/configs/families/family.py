"""The properties of a model family that its configs do not state: the types of a row in `families/model_types.py`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rope_xp.configs.keys import BASE_KEYS, Keys
from rope_xp.frequencies import Scaling
from rope_xp.types import Config

QUOTIENT = "hidden_size/num_attention_heads"
# Multi-head latent attention rotates a part of the head that the model splits off.
LATENT = "qk_rope_head_dim"

# How to find the number of channels of a head: keys or quotients of keys, separated by " | ", of which the first with
# a value is used; or a function of the config.
HeadDim = str | Callable[[Keys], int]

# Defaults of all families that state no other default.
COMMON_DEFAULTS = {"rope_theta": 10_000.0, "partial_rotary_factor": 1.0}


@dataclass(frozen=True)
class Pairing:
    """Which channels form a pair. `layout`, `blocks` and `reverse` are as in `RotaryEmbedding`."""

    layout: str = "half"
    key_decides: bool = False  # `rope_interleave: false` makes the layout half
    blocks: int = 1
    reverse: bool = False
    last_channels: bool = False  # the last channels of a head are rotated, not the first
    from_caller: bool = False  # the caller chose the layout, so keys do not change it


INTERLEAVED = Pairing("interleaved")
TO_HALF = Pairing("interleaved_to_half")


@dataclass(frozen=True)
class LayerType:
    """The properties in which layers of one type differ from the family."""

    defaults: Config = field(default_factory=dict)  # they replace those of the family
    head_dim: HeadDim | None = None  # None means as in the family
    base_keys: tuple[str, ...] | None = None  # None means as in the family
    scaled: bool = True  # whether a `rope_scaling` applies


@dataclass(frozen=True)
class LayerList:
    """A key with a list of one number for each layer. The number is 0 if the layer is not rotated."""

    key: str
    # If the key is missing: with "", all layers are rotated; with "interval", the last layer of each interval is not
    # rotated; with "from the end", every fourth layer, counted from the last one, is not rotated.
    otherwise: str = ""
    bases: bool = False  # the numbers are bases


@dataclass(frozen=True)
class Layers:
    """The types of layers, and which layers are rotated."""

    # The type of each layer, from the config and the number of layers. Used if the config has no `layer_types`.
    types: Callable[[Keys, int], list[str]] | None = None
    by_type: Mapping[str, LayerType] = field(default_factory=dict)
    # For types that are not in `by_type`: the key of `by_type` to use. The key `...` means all other types.
    same_as: Mapping[Any, str] = field(default_factory=dict)
    last_is_full: bool = False  # the last layer always has full attention, despite `layer_types`
    rotated: Callable[[Keys, int | None, str | None], bool] | None = None  # whether a layer of a type is rotated
    listed: LayerList | None = None  # which layers are rotated
    # A key, the value with which layers are rotated, and further values that the key may have.
    only_if: tuple[Any, ...] | None = None
    scaled: str = ""  # the key that lists the layers to which a scaling rule applies


@dataclass(frozen=True)
class Axes:
    """Position axes. `order` and `axis_of_section` are as in `Sections`."""

    order: str
    count: int = 1  # the number of axes, if there is no `mrope_section` and all axes have equally many pairs
    axis_of_section: tuple[int, ...] | None = None
    fraction_of_each: bool = False  # `partial_rotary_factor` is the fraction for each position axis, not for all
    any_order: bool = False  # the order follows `mrope_interleaved`
    clamped: bool = False  # sections that do not fit lose pairs to the first axis


@dataclass(frozen=True)
class Quirks:
    """Properties that only a few families have."""

    # Keys of the base outside the rotary block. If empty, the base is always the default.
    base_keys: tuple[str, ...] = BASE_KEYS
    base_in: str = ""  # the key of a mapping in the config that may have the base too
    rotated_keys: tuple[str, ...] = ("rotary_dim",)  # keys for the number of rotated channels
    # The number of rotated channels, from the config and `head_dim`.
    rotated_width: Callable[[Keys, int], int] | None = None
    # If given, the whole `head_dim` is rotated. The function returns the only `partial_rotary_factor` that a config may
    # state, or None if any is accepted.
    only_fraction: Callable[[Keys, int], float | None] | None = None
    inv_freq: Callable[[Keys, int, float], Any] | None = None  # frequencies, from the config, `head_dim` and the base
    scales_softmax: bool = True  # latent attention multiplies its softmax scale, as in DeepSeek
    # Scaling rules that only this family has, or its own names for rules.
    rules: Mapping[str, str | type[Scaling]] = field(default_factory=dict)
    scaling_defaults: Config = field(default_factory=dict)  # defaults for a `rope_scaling`
    redundant_keys: tuple[str, ...] = ()  # transformers writes them outside the rotary block too; the block decides
    ignored_in_block: tuple[str, ...] = ()  # keys in the rotary block that change nothing
    ignored_keys: tuple[str, ...] = ()  # keys outside it that change nothing


@dataclass(frozen=True)
class Family:
    """The properties of a model family that its configs do not state."""

    # Defaults of the config class in transformers, by their names there. A default is used if the config has no value,
    # and `rope_parameters` if it has no rotary block. If `rope_parameters` is None, layers are not rotated.
    defaults: Config = field(default_factory=dict)
    head_dim: HeadDim = f"head_dim | {QUOTIENT}"
    pairing: Pairing = Pairing()
    layers: Layers = Layers()
    axes: Axes | None = None  # None means one position axis
    quirks: Quirks = Quirks()

    def default(self, key: str) -> Any:
        """The default of a key, or None."""
        return self.defaults.get(key, COMMON_DEFAULTS.get(key))

    def of_type(self, name: str) -> "Family":
        """The row for layers of a type."""
        own = self.layers.by_type.get(name, LayerType())
        quirks = self.quirks if own.base_keys is None else replace(self.quirks, base_keys=own.base_keys)
        head_dim = self.head_dim if own.head_dim is None else own.head_dim
        return replace(self, defaults={**self.defaults, **own.defaults}, head_dim=head_dim, quirks=quirks)

    @property
    def is_latent(self) -> bool:
        """Whether the family has multi-head latent attention."""
        return self.head_dim == LATENT

    @property
    def divides_axes(self) -> bool:
        """Whether the family has several position axes with equally many pairs, as for images."""
        return self.axes is not None and self.axes.count > 1
