"""The properties of a model family that its configs do not state: the types of a row in `families/model_types.py`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import pi
from typing import Any, NoReturn

from rope_xp.arrays import checks
from rope_xp.configs.keys import BASE_KEYS, Keys
from rope_xp.errors import wrong_value
from rope_xp.frequencies import Scaling, YarnScaling, geometric
from rope_xp.types import Config

QUOTIENT = "hidden_size/num_attention_heads"
# Multi-head latent attention rotates a part of the head that the model splits off.
LATENT = "qk_rope_head_dim"

# How to find the number of channels of a head: keys or quotients of keys, separated by " | ", of which the first with
# a value is used; or a function of the config.
HeadDim = str | Callable[[Keys], int]
# The frequencies of all pairs, for each position axis.
InvFreq = tuple[tuple[float, ...], ...]
# The type of each layer, from the config and the number of layers.
Types = Callable[[Keys, int], list[str]]
# Whether a layer, or a type of layers, is rotated.
Rotated = Callable[[Keys, int | None, str | None], bool]

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


# Layers with 0 in the list are not rotated. Without it, one layer of each interval is not rotated.
NO_ROPE_LAYERS = LayerList("no_rope_layers", "interval")


@dataclass(frozen=True)
class Layers:
    """The types of layers, and which layers are rotated."""

    # Used if the config has no `layer_types`.
    types: Types | None = None
    by_type: Mapping[str, LayerType] = field(default_factory=dict)
    # For types that are not in `by_type`: the key of `by_type` to use.
    same_as: Mapping[str, str] = field(default_factory=dict)
    other_types: str = ""  # the key of `by_type` to use for types that are in neither
    last_is_full: bool = False  # the last layer always has full attention, despite `layer_types`
    rotated: Rotated | None = None
    listed: LayerList | None = None  # which layers are rotated
    # A key, the value with which layers are rotated, and further values that the key may have.
    only_if: tuple[str, *tuple[object, ...]] | None = None
    scaled_key: str = ""  # the key that lists the layers to which a scaling rule applies


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
    # From the config, `head_dim` and the base.
    inv_freq: Callable[[Keys, int, float], InvFreq] | None = None
    scales_softmax: bool = True  # latent attention multiplies its softmax scale, as in DeepSeek
    # Scaling rules that only this family has, or its own names for rules.
    rules: Mapping[str, str | type[Scaling]] = field(default_factory=dict)
    scaled: bool = True  # whether a `rope_scaling` applies
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
        return self.defaults.get(key, COMMON_DEFAULTS.get(key))

    def of_type(self, name: str) -> "Family":
        own = self.layers.by_type.get(name, LayerType())
        base_keys = self.quirks.base_keys if own.base_keys is None else own.base_keys
        quirks = replace(self.quirks, base_keys=base_keys, scaled=own.scaled)
        head_dim = self.head_dim if own.head_dim is None else own.head_dim
        return replace(self, defaults={**self.defaults, **own.defaults}, head_dim=head_dim, quirks=quirks)

    @property
    def base_keys(self) -> tuple[str, ...]:
        """The keys of the base outside the rotary block, for any type of layers."""
        rows = [self.of_type(name) for name in self.layers.by_type] or [self]
        return tuple(key for row in rows for key in row.quirks.base_keys)

    @property
    def is_latent(self) -> bool:
        return self.head_dim == LATENT

    @property
    def scales_softmax(self) -> bool:
        return self.is_latent and self.quirks.scales_softmax

    @property
    def divides_axes(self) -> bool:
        """Whether the family has several position axes with equally many pairs, as for images."""
        return self.axes is not None and self.axes.count > 1


def head_dim_of_audio(keys: Keys) -> int:
    """MusicFlamingo rotates the encoder's hidden states as one head."""
    width = keys.read_count("head_dim")
    return keys.read_mapping("audio_config").read_count("hidden_size", 1280) if width is None else width


def head_dim_of_sliding_latent(keys: Keys) -> int:
    """Layers of Dots 3 with a sliding window rotate all channels of a head except `swa_qk_nope_head_dim`."""
    rest = keys.read_count("swa_head_dim", 256) - keys.read_count("swa_qk_nope_head_dim", 192)
    return keys.read_count("swa_qk_rope_head_dim", rest)


def width_of_gptj(keys: Keys, head_dim: int) -> int:
    """64 if the config has no `rotary_dim`, and the whole head if it is null."""
    if keys.read_flag("rotary") is False:
        raise wrong_value("rotary must be true; got false")
    return keys.read_count("rotary_dim", head_dim if "rotary_dim" in keys.mapping else 64)


def width_of_clvp(keys: Keys, head_dim: int) -> int:
    return max(keys.read_count("projection_dim", 768) // (2 * keys.read_count("num_attention_heads", 12)), 32)


def width_of_phi(keys: Keys, head_dim: int) -> int:
    """32 if the config has no `rotary_dim`. The code in the checkpoints of Phi-1.5 and Phi-2 has this default."""
    return keys.read_count("rotary_dim", 32)


def fraction_of_latent(keys: Keys, head_dim: int) -> float:
    """The rotated fraction of a whole head. A head also has `qk_nope_head_dim` channels that are not rotated."""
    return head_dim / (head_dim + keys.read_count("qk_nope_head_dim", head_dim))


def any_fraction(keys: Keys, head_dim: int) -> None:
    """None, because any fraction is accepted: the class in transformers computes it from the widths."""


def fraction_of_hidden_state(keys: Keys, head_dim: int) -> float:
    """The only fraction that configs of EfficientLoFTR have: half the number of heads."""
    return keys.read_count("num_attention_heads", 8) / 2


def trained_frequencies(keys: Keys, head_dim: int, base: float) -> NoReturn:
    raise wrong_value(
        f"frequencies must not depend on weights; got {keys.name}: its checkpoint multiplies them by the "
        f"exponential of the weight rotary_emb.alpha (multiply those of compat='transformers' by it, and pass the "
        f"product as inv_freq)"
    )


def frequencies_of_dinov3(keys: Keys, head_dim: int, base: float) -> InvFreq:
    """Coordinates are from -1 to 1, and frequencies are in revolutions."""
    if head_dim % 4:
        raise wrong_value(f"head_dim must be a multiple of 4 in {keys.name}; got {head_dim}")
    own = tuple(2 * pi * w for w in geometric(base, head_dim // 2))
    zeros = (0.0,) * len(own)
    return own + zeros, zeros + own


def frequencies_of_esmfold2(keys: Keys, head_dim: int, base: float) -> InvFreq:
    """Four position axes: the coordinates x, y and z in angstrom, and an index. All other pairs are not rotated."""
    each, index = keys.read_count("num_spatial_rope_pairs_per_axis", 2), keys.read_count("num_uid_rope_pairs", 10)
    spatial, of_index = (
        checks.at_least(key, keys.read_or_assume(key, "", default), 1.0)
        for key, default in (("spatial_rope_base_frequency", 20.0), ("uid_rope_base_frequency", 10_000.0))
    )
    pairs = head_dim // 2
    if 3 * each + index > pairs:
        raise wrong_value(
            f"3 * num_spatial_rope_pairs_per_axis + num_uid_rope_pairs must be at most {pairs}, the pairs of a head; "
            f"got {3 * each + index}"
        )
    rows = [geometric(spatial, 2 * each)] * 3 + [geometric(of_index, 2 * index)]
    return tuple(
        (0.0,) * (axis * each) + row + (0.0,) * (pairs - axis * each - len(row)) for axis, row in enumerate(rows)
    )


class YarnInLogarithms(YarnScaling):
    """YaRN in logarithms: it mixes kept and interpolated frequencies by a geometric mean, not an arithmetic one."""

    def frequencies(self, base: float, rotary_dim: int) -> tuple[float, ...]:
        scaled, plain = super().frequencies(base, rotary_dim), geometric(base, rotary_dim)
        if self.factor == 1.0:
            return plain
        ramp = [(1.0 - s / p) / (1.0 - 1.0 / self.factor) for s, p in zip(scaled, plain)]
        return tuple(p * self.factor**-fraction for p, fraction in zip(plain, ramp))


YarnInLogarithms.__name__ = YarnScaling.__name__  # in errors
