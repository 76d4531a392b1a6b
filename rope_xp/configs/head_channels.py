"""Read the channels of a head from a config: how many are rotated, their layout, and the position axis of each pair."""

from typing import Any

from rope_xp.arrays import checks
from rope_xp.configs import engines
from rope_xp.configs.families.family import Axes
from rope_xp.configs.keys import INTERLEAVE_KEYS, MAX_SIZE, PARTIAL_KEYS, Keys, comma_separated, consistent_value
from rope_xp.configs.layers import LayerConfig, types_of
from rope_xp.errors import wrong_type, wrong_value
from rope_xp.sections import Sections

MAX_AXES = 16
MLX_KEY = "rope_traditional"  # the key of MLX for the layout


def head_dim_of(config: LayerConfig) -> int:
    width = _width_of_layer(config)
    if width is None:
        rule = config.family.head_dim
        width = _first_width(config, rule.split(" | ")) if isinstance(rule, str) else rule(config.keys)
    if width > MAX_SIZE:
        raise wrong_value(f"head_dim must be at most {MAX_SIZE}; got {width}")
    return width


def _first_width(config: LayerConfig, ways: list[str]) -> int:
    keys, family = config.keys, config.family
    for way in ways:
        names = way.split("/")
        values = [keys.read_count(name) for name in names]
        if None not in values:
            return _quotient(names, values)
        if way in family.defaults:
            keys.assume("channels", ways[0])
            return family.defaults[way]
    tried = " or ".join(" / ".join(way.split("/")) for way in ways)
    names = dict.fromkeys(name for way in ways for name in way.split("/"))
    given = [name for name in names if keys.read_count(name) is not None]
    raise wrong_value(
        f"{tried} must be given; got {comma_separated(given) or 'none'} in {keys.name}: its config class may have a "
        f"default (load the config with it, and pass the object)"
    )


def _quotient(names: list[str], values: list[int]) -> int:
    width, *divisors = values
    for name, divisor in zip(names[1:], divisors):
        if not divisor:
            raise wrong_value(f"{name} must be at least 1; got 0")
        width //= divisor
    return width


def _width_of_layer(config: LayerConfig) -> int | None:
    keys, layer = config.keys, config.layer
    given = keys.read_mapping("per_layer_config").mapping
    if not given:
        return None
    if not all(str(index).isdecimal() and len(str(index)) < 10 for index in given):
        raise wrong_value(f"keys of per_layer_config must be indices of layers; got {comma_separated(given)}")
    # Indices may have leading zeros.
    own = Keys("per_layer_config", {str(int(index)): each for index, each in given.items()})
    types = types_of(keys, config.family)
    name = "qk_rope_head_dim" if "qk_rope_head_dim" in config.family.defaults else "head_dim"
    if not any(own.read_mapping(index).read(name) for index in own.mapping):
        return None
    layers = [layer]
    if not isinstance(layer, int):
        layers = [index for index, kind in enumerate(types) if kind == config.layer_type]
    widths = {own.read_mapping(str(index)).read_count(name) for index in layers}
    if len(widths) > 1 or (layer is None and not layers):
        raise wrong_value("layer must be given, because per_layer_config differs; got layer=None")
    return widths.pop() if widths else None


def rotated_channels_of(config: LayerConfig, rope_type: str, head_dim: int) -> int:
    """The number of rotated channels. It may be odd."""
    family, quirks = config.family, config.family.quirks
    fraction, is_default = _rotated_fraction(config, rope_type, head_dim)
    if quirks.only_fraction is not None:
        only = None if fraction is None else quirks.only_fraction(config.keys, head_dim)
        if only is not None and fraction != only:
            raise wrong_value(f"partial_rotary_factor must be {only:g} in {config.keys.name}; got {fraction}")
        width = _stated_width(config, None, head_dim)
        if width not in (None, head_dim):
            raise wrong_value(f"{quirks.rotated_keys[0]} must be {head_dim} in {config.keys.name}; got {width}")
        return head_dim
    if rope_type == "proportional":
        return head_dim
    width = _stated_width(config, fraction, head_dim)
    if width is None:
        if is_default:
            config.keys.assume("channels", PARTIAL_KEYS[0])
        width = int(head_dim * (family.default(PARTIAL_KEYS[0]) if fraction is None else fraction))
    if family.axes is not None and family.axes.fraction_of_each:
        width *= family.axes.count
    if width > head_dim:
        raise wrong_value(f"the number of rotated channels must be at most head_dim={head_dim}; got {width}")
    return width


def _rotated_fraction(config: LayerConfig, rope_type: str, head_dim: int) -> tuple[float | None, bool]:
    """The stated fraction of a head that is rotated, or None; and whether a default of the family decides instead."""
    keys, family = config.keys, config.family
    inner = None if rope_type == "proportional" else config.block.read(*PARTIAL_KEYS)
    listed = config.number("partial_rotary_factors", keys.read("partial_rotary_factors"))
    outer = consistent_value(PARTIAL_KEYS[0], keys.read(*PARTIAL_KEYS), listed, keys.name)
    if not config.block.key and outer is not None:
        inner = None
    if inner is not None and {*family.quirks.redundant_keys} & {*PARTIAL_KEYS}:
        outer = None
    fraction = consistent_value(PARTIAL_KEYS[0], inner, outer, config.block.name)
    if fraction is None:
        return None, family.default(PARTIAL_KEYS[0]) != 1.0
    fraction = checks.positive(PARTIAL_KEYS[0], fraction)
    if fraction > head_dim:
        raise wrong_value(f"partial_rotary_factor must be at most {head_dim}, the head_dim; got {fraction}")
    return fraction, not config.block.key and inner is not None


def _stated_width(config: LayerConfig, fraction: float | None, head_dim: int) -> int | None:
    """The number of rotated channels that a key states, or None. It must agree with the fraction."""
    quirks = config.family.quirks
    width = config.keys.read(*quirks.rotated_keys)
    if quirks.rotated_width is not None:
        width = quirks.rotated_width(config.keys, head_dim)
    if width is None:
        return None
    width = checks.count(quirks.rotated_keys[0], width)
    if fraction is not None and int(head_dim * fraction) != width:
        raise wrong_value(
            f"the number of rotated channels must not be contradicted; got {width} channels and "
            f"partial_rotary_factor={fraction} of {head_dim}"
        )
    return width


def layout_of(config: LayerConfig) -> str:
    pairing, interleave = config.family.pairing, config.keys.read(*INTERLEAVE_KEYS)
    if interleave is None or pairing.from_caller:
        return pairing.layout
    key = next(name for name in config.keys.found() if name in INTERLEAVE_KEYS)
    # Of each type of layers.
    of_mlx = engines.table("mlx-lm").readings.items() if config.keys.read(MLX_KEY) is not None else ()
    own = [each for name, each in of_mlx if name.partition(":")[0] == config.keys.model_type and not each.path]
    if any(MLX_KEY in each.keys for each in own):
        return "interleaved" if checks.boolean(MLX_KEY, interleave) else "half"
    wanted = pairing.layout != "half"
    if checks.boolean(key, interleave) == wanted:
        return pairing.layout
    if pairing.key_decides:
        return "half"
    raise wrong_value(f"{key} must be {wanted} for this model_type; got {interleave}")


def sections_of(config: LayerConfig, rotary_dim: int) -> Sections | None:
    axes, pairs = config.family.axes, rotary_dim // 2
    if axes is None:
        return None
    given = _stated_sizes(config, axes, pairs)
    order = _order(config, axes)
    default = config.family.default("mrope_section")
    if given is None and default is not None:
        config.keys.assume("position axes", "mrope_section")
    sizes = default if given is None else given
    if sizes is None:
        return Sections((pairs // axes.count,) * axes.count, order, axes.axis_of_section) if axes.count > 1 else None
    sizes = _checked(sizes, default)
    if axes.clamped and order == "interleaved" and len(sizes) == 3:
        # As in transformers: height and width get at most one pair of each three, and the first axis gets the rest.
        height, width = min(sizes[1], (pairs + 1) // 3), min(sizes[2], pairs // 3)
        sizes = (pairs - height - width, height, width)
    if sum(sizes) != pairs:
        raise wrong_value(f"mrope_section must sum to the {pairs} rotated pairs; got {list(sizes)}")
    return Sections(sizes, order, axes.axis_of_section)


def _stated_sizes(config: LayerConfig, axes: Axes, pairs: int) -> Any:
    given = config.block.read("mrope_section", "xdrope_section")
    time = config.keys.read_count("freq_allocation") if axes.order == "spatial_first" else None
    if time is None:
        return given
    space = (pairs - time) // 2  # pairs of height, and of width
    return consistent_value("mrope_section", given, [space, space, time], config.block.name)


def _order(config: LayerConfig, axes: Axes) -> str:
    order = axes.order
    interleaved = config.block.read_flag("mrope_interleaved", "interleaved")
    if interleaved is not None and interleaved != (order == "interleaved"):
        if not axes.any_order:
            raise wrong_value(
                f"mrope_interleaved must be {order == 'interleaved'} for this model_type; got {interleaved}"
            )
        order = "interleaved" if interleaved else "chunked"
    return "round_robin" if config.block.read_flag("mrope_interleaved_glm") else order


def _checked(sizes: object, default: tuple[int, ...] | None) -> tuple[int, ...]:
    if not isinstance(sizes, (list, tuple)):
        raise wrong_type(f"mrope_section must be a list of int; got {sizes!r}")
    sizes = tuple(checks.count("every mrope_section", size) for size in sizes)
    if len(sizes) > MAX_AXES:
        raise wrong_value(f"mrope_section must have at most {MAX_AXES} numbers; got {len(sizes)}")
    if default is not None and len(sizes) != len(default):
        raise wrong_value(f"mrope_section must have {len(default)} numbers in this family; got {list(sizes)}")
    return sizes
