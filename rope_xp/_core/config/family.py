"""What a model family means by its config, as data: the types of a row in `families.py`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rope_xp._core.config.keys import BASE_KEYS, Keys
from rope_xp.frequencies import Scaling

QUOTIENT = "hidden_size/num_attention_heads"
# Multi-head latent attention rotates a part of the head that the model splits off.
LATENT = "qk_rope_head_dim"

# Where the number of channels of a head is: keys separated by " | ", the first that has a value, each a key or a
# quotient of keys; or a function of the config.
HeadDim = str | Callable[[Keys], int]

# Defaults of all families that have no other.
USUAL = {"rope_theta": 10_000.0, "partial_rotary_factor": 1.0}


@dataclass(frozen=True)
class Pairing:
    """Which channels form a pair. `layout`, `blocks` and `reverse` are as in `RotaryEmbedding`."""

    layout: str = "half"
    key_decides: bool = False  # `rope_interleave: false` makes the layout half
    blocks: int = 1
    reverse: bool = False
    last_channels: bool = False  # the last channels of a head are rotated, not the first
    from_caller: bool = False  # the caller chose the layout, and no key may change it


INTERLEAVED = Pairing("interleaved")
TO_HALF = Pairing("interleaved_to_half")


@dataclass(frozen=True)
class LayerType:
    """What differs in layers of one type."""

    defaults: Mapping[str, Any] = field(default_factory=dict)  # these come before those of the family
    head_dim: HeadDim | None = None  # None means that of the family
    base_keys: tuple[str, ...] | None = None  # None means those of the family
    scaled: bool = True  # whether a `rope_scaling` applies


@dataclass(frozen=True)
class LayerList:
    """A key with one number for each layer, which is 0 where the layer is not rotated."""

    key: str
    # Without the key: "interval", one layer of each interval is not rotated; "from the end", the same, but the interval
    # is 4 and counted from the last layer; "", all layers are rotated.
    otherwise: str = ""
    bases: bool = False  # the numbers are bases


@dataclass(frozen=True)
class Layers:
    """How layers differ."""

    types: Callable[[Keys, int], list[str]] | None = None  # of so many layers, if the config has no `layer_types`
    by_type: Mapping[str, LayerType] = field(default_factory=dict)
    same_as: Mapping[Any, str] = field(
        default_factory=dict
    )  # for other types, the key of `by_type` to use; `...` stands for all others
    last_is_full: bool = False  # the last layer has full attention, whatever `layer_types` has there
    rotated: Callable[[Keys, int | None, str | None], bool] | None = None  # whether a layer of a type is
    listed: LayerList | None = None  # which layers are rotated
    # A key, the value with which layers are rotated, and other values that it may have besides its default.
    only_if: tuple[Any, ...] | None = None
    scaled: str = ""  # the key that lists the layers to which a scaling rule applies


@dataclass(frozen=True)
class Axes:
    """Position axes. `order` and `axis_of_section` are as in `Sections`."""

    order: str
    count: int = 1  # of axes that have equal parts, where there is no `mrope_section`
    axis_of_section: tuple[int, ...] | None = None
    share_of_each: bool = False  # `partial_rotary_factor` is the share of each position axis, not of all
    any_order: bool = False  # the order follows `mrope_interleaved`
    clamped: bool = False  # sections that do not fit lose pairs to the first axis


@dataclass(frozen=True)
class Quirks:
    """What few families have."""

    base_keys: tuple[str, ...] = BASE_KEYS  # outside the rotary block; with none, the base is always the default
    base_in: str = ""  # a mapping in the config that may also have the base
    rotated_keys: tuple[str, ...] = ("rotary_dim",)  # for the number of rotated channels
    rotated_width: Callable[[Keys, int], int] | None = None  # this number, from the config and `head_dim`
    # The whole `head_dim` is rotated; the only share that a config may state, or None if it may state any.
    only_share: Callable[[Keys, int], float | None] | None = None
    inv_freq: Callable[[Keys, int, float], Any] | None = None  # from the config, `head_dim` and the base
    scales_softmax: bool = True  # latent attention multiplies the scale of its softmax as that of DeepSeek does
    rules: Mapping[str, str | type[Scaling]] = field(
        default_factory=dict
    )  # scaling rules of the family, or other names of rules
    scaling_defaults: Mapping[str, Any] = field(default_factory=dict)  # of a `rope_scaling`
    redundant_keys: tuple[str, ...] = ()  # upstream writes them in addition to the rotary block, which decides
    ignored_in_block: tuple[str, ...] = ()  # keys in the rotary block that change nothing
    ignored_keys: tuple[str, ...] = ()  # keys outside it that change nothing


@dataclass(frozen=True)
class Family:
    """What a config of a family does not state."""

    # What the config class of transformers fills in, by the names of transformers: a value is used where the config has
    # none, and `rope_parameters` where it has no rotary block. If these are None, layers are not rotated.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    head_dim: HeadDim = f"head_dim | {QUOTIENT}"
    pairing: Pairing = Pairing()
    layers: Layers = Layers()
    axes: Axes | None = None  # None means one position axis
    quirks: Quirks = Quirks()

    def default(self, key: str) -> Any:
        """The value of a key that the config does not state, or None."""
        return self.defaults.get(key, USUAL.get(key))

    def of_type(self, name: str) -> "Family":
        """The row for layers of a type."""
        own = self.layers.by_type.get(name, LayerType())
        quirks = self.quirks if own.base_keys is None else replace(self.quirks, base_keys=own.base_keys)
        head_dim = self.head_dim if own.head_dim is None else own.head_dim
        return replace(self, defaults={**self.defaults, **own.defaults}, head_dim=head_dim, quirks=quirks)

    @property
    def is_latent(self) -> bool:
        """Whether it is multi-head latent attention."""
        return self.head_dim == LATENT

    @property
    def divides_axes(self) -> bool:
        """Whether it has several position axes of equal parts, as images have."""
        return self.axes is not None and self.axes.count > 1
