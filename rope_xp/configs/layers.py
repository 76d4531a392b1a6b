"""The type of a layer, whether it is rotated, and its window: by keys of the config, or the pattern of its family."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

from rope_xp.arrays import checks
from rope_xp.configs.families.family import Family, LayerList, Layers, Rotated, Types
from rope_xp.configs.keys import MAX_SIZE, Keys, comma_separated
from rope_xp.errors import wrong_type, wrong_value
from rope_xp.provenance import WITH_WINDOW
from rope_xp.types import Config

# Layer types without attention over positions.
NO_ATTENTION = ("linear_attention", "mamba", "mamba2", "conv", "recurrent", "no_attention")
NO_LAYER = ...  # in `LayerConfig`: keys are only checked. None stands for all layers with these keys


class Block(Keys):
    """A rotary block. `key` is the key of the config that has it; empty if it is the default of the family."""

    def __init__(self, key: str, mapping: Config, name: str = ""):
        super().__init__(name or key, mapping)
        self.key = key


@dataclass(frozen=True)
class LayerConfig:
    """The parts of a config that decide the embedding of one layer, or of all layers of one type."""

    keys: Keys  # the config
    block: Block
    family: Family  # its row, for this type of layers
    layer: int | EllipsisType | None
    layer_type: str | None
    seq_len: int | None

    def number(self, name: str, value: object) -> Any:
        """The number for the layer, from a number or a list, where 0 means none. `name` is for errors."""
        if not isinstance(value, (list, tuple)):
            return value
        if isinstance(self.layer, int):
            if self.layer >= len(value):
                raise wrong_value(f"{name} must have a number for each layer; got {len(value)}")
            return value[self.layer]
        types = types_of(self.keys, self.family)
        found = [n for index, n in enumerate(value) if self.layer_type in (None, *types[index : index + 1])]
        found = [each for each in found if each] or [each for each in value if each]
        if not found:
            raise wrong_value(f"{name} must have a number for each layer; got {list(value)}")
        if self.layer is None and any(each != found[0] for each in found):
            raise wrong_value(f"layer must be given, because {name} differ; got layer=None for {list(value)}")
        return found[0]


def layer_type_of(keys: Keys, family: Family, layer: int | None, layer_type: str | None) -> str | None:
    if layer is not None and layer >= MAX_SIZE:
        raise wrong_value(f"layer must be below {MAX_SIZE}; got {layer}")
    types = types_of(keys, family, layer)
    if layer is not None:
        return _type_at(keys, family, layer, types)
    if layer_type is None:
        return None
    accepted = {*types, *family.layers.by_type, *nested_by(keys, family)}
    if not accepted:
        accepted = {"full_attention", "sliding_attention"}  # all layers have the same embedding
    if family.layers.types is not None:
        accepted |= {"full_attention", *family.layers.types(keys.fresh(), 12)}
    if layer_type not in accepted:
        raise wrong_value(f"layer_type must be one of {comma_separated(accepted)}; got {layer_type!r}")
    return layer_type


def only_type_of(keys: Keys, family: Family) -> str | None:
    types = types_of(keys, family)
    return types[0] if len({*types}) == 1 and (family.layers.by_type or nested_by(keys, family)) else None


def _type_at(keys: Keys, family: Family, layer: int, types: list[str]) -> str | None:
    count = layers_of(keys) or len(types) or None
    if count is not None and layer >= count:
        raise wrong_value(f"layer must be from 0 to {count - 1}; got {layer}")
    if not types:
        if labels := nested_by(keys, family) or family.layers.by_type:
            raise wrong_value(
                f"layer_type, one of {comma_separated(labels)}, must be given in place of layer, because the config "
                f"does not state the types of layers; got layer={layer}"
            )
        return None
    if layer >= len(types):
        raise wrong_value(f"layer_types must have a type for each layer; got {len(types)}")
    if family.layers.types is not None and not _given_types(keys):
        pattern = keys.fresh()
        family.layers.types(pattern, len(types))
        if not pattern.found():
            keys.assume("", "layer_types")
    return types[layer]


def row_type_of(layers: Layers, layer_type: str | None) -> str:
    """The type whose row and block a layer of this type has; empty for that of all layers."""
    if layer_type is None or layer_type in layers.by_type:
        return layer_type or ""
    return layers.same_as.get(layer_type, layers.other_types or layer_type)


def nested_by(keys: Keys, family: Family) -> list[str]:
    """The layer types by which the rotary block is nested; empty if it is not nested."""
    block = keys.mapping.get("rope_parameters")
    if not isinstance(block, Mapping):
        return []
    types = {*types_of(keys, family), *family.layers.by_type}
    return [key for key, value in block.items() if isinstance(value, Mapping) or (value is None and key in types)]


def types_of(keys: Keys, family: Family, layer: object = None) -> list[str]:
    """The type of each layer, or an empty list. If types follow from other keys, they reach at least up to `layer`."""
    types = _given_types(keys)
    is_complete = bool(types) or layers_of(keys) is not None
    if not types:
        count = layers_of(keys) or (layer + 1 if isinstance(layer, int) else 0)
        if family.layers.types is None:
            return []
        pattern = keys.fresh()
        types = family.layers.types(pattern, count)
        keys.mark_all_read_by(pattern)
    if not isinstance(types, (list, tuple)) or not all(isinstance(each, str) for each in types):
        raise wrong_type(f"layer_types must be a list of strings; got {types!r}")
    if family.layers.last_is_full and is_complete and types:
        return [*types[:-1], "full_attention"]
    return list(types)


def has_own_types(keys: Keys, family: Family) -> bool:
    given, pattern = _given_types(keys), family.layers.types
    if keys.mapping.get("sliding_window_pattern", "") is None and given and {*given} == {"full_attention"}:
        return False  # without a pattern, programs that count layers find none with a window
    return bool(given) and pattern is not None and list(given) != pattern(keys.fresh(), len(given))


def _given_types(keys: Keys) -> Any:
    return keys.read("layer_types", "layers_block_type")


def layers_of(keys: Keys) -> int | None:
    count = keys.read_first("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    if count is not None and checks.count("num_hidden_layers", count) > MAX_SIZE:
        raise wrong_value(f"num_hidden_layers must be at most {MAX_SIZE}; got {count}")
    return None if count is None else checks.plain(count)


def is_rotated(keys: Keys, family: Family, layer: int | None, layer_type: str | None) -> bool:
    layers, listed = family.layers, family.layers.listed
    if listed is not None:
        keys.mark_as_read(listed.key)
    if layers.only_if is not None and not _has_value(keys, family, *layers.only_if):
        return False
    if layers.rotated is not None and not layers.rotated(keys, layer, layer_type):
        return False
    if layer_type in NO_ATTENTION:
        return False
    if listed is None or not (listed.otherwise or keys.read_list(listed.key)):
        return True
    return _is_listed(keys, family, listed, layer, layer_type)


def _has_value(keys: Keys, family: Family, key: str, wanted: object, *others: object) -> bool:
    default = family.default(key)
    value = keys.read_or_assume(key, "", default)
    known = {wanted, default, *others}
    if not any(value == each for each in known):
        raise wrong_value(f"{key} must be one of {comma_separated(known)}; got {value!r}")
    return value == wanted


def _is_listed(keys: Keys, family: Family, listed: LayerList, layer: int | None, layer_type: str | None) -> bool:
    numbers = numbers_of(keys, listed, layer)
    types = types_of(keys, family, layer)
    if layer is not None:
        if layer >= len(numbers):
            raise wrong_value(f"{listed.key} must have a number for each layer; got {len(numbers)}")
        if listed.otherwise and not keys.read_list(listed.key) and keys.read("no_rope_layer_interval") is None:
            keys.assume("", listed.key)
        return bool(numbers[layer])
    if layer_type is None:
        return not numbers or any(numbers)
    of_type = {bool(each) for each, kind in zip(numbers, types) if kind == layer_type}
    found = of_type or {*map(bool, numbers)}
    if len(found) != 1:
        whose = f" of type {layer_type!r}" if of_type else f", none of which is known to be of type {layer_type!r},"
        raise wrong_value(f"layer must be given, because layers{whose} differ in {listed.key}; got layer=None")
    return True in found


def numbers_of(keys: Keys, listed: LayerList, layer: int | None) -> list[Any]:
    """One number for each layer, 0 if it is not rotated: the list of the config, or its default."""
    numbers = keys.read_list(listed.key)
    interval = keys.read_count("no_rope_layer_interval") if listed.key == "no_rope_layers" else None
    for number in numbers:
        if not isinstance(number, (bool, int, float)) or not number >= 0:
            raise wrong_type(f"{listed.key} must be a list of numbers that are not negative; got {number!r} in it")
    return numbers or _numbers_without_list(keys, listed, layer, 4 if interval is None else interval)


def _numbers_without_list(keys: Keys, listed: LayerList, layer: int | None, interval: int) -> list[Any]:
    known = layers_of(keys) or len(_given_types(keys) or ())
    count = known or (0 if layer is None else layer + 1)
    if listed.otherwise == "interval":
        return [not interval or (index + 1) % interval for index in range(count)]
    if layer is not None and not known:
        raise wrong_value("num_hidden_layers must be given if layers are counted from the end; got none")
    return [(count - 1 - index) % 4 for index in range(count)]


# The key of the window of all rotated layers, and its default.
ALWAYS_WINDOWED = {"llama4_text": ("attention_chunk_size", 8192), "recurrent_gemma": ("attention_window_size", 2048)}
# Where the config states a window, all layers have it.
WITH_ONE_WINDOW = {
    *("doge", "minimax", "ministral3", "mistral", "mixtral", "phi3", "phi4_multimodal", "phimoe", "qwen3_moe"),
    *("starcoder2", "voxtral_realtime_encoder", "voxtral_realtime_text"),
}


def window_of(keys: Keys, family: Family) -> tuple[int | None, bool]:
    """The window of some layers, in tokens, if it is known; and whether all rotated layers have a window."""
    name, mapping, rotated = keys.model_type, keys.mapping, family.layers.rotated
    window, switch, types = keys.read("sliding_window"), keys.read("use_sliding_window"), mapping.get("layer_types")
    of_all, is_stated = rotated is not None and not rotated(keys, 0, "full_attention"), "sliding_window" in mapping
    if name in ALWAYS_WINDOWED:
        key, usual = ALWAYS_WINDOWED[name]
        of_all, is_stated, window = True, True, keys.read(key) or (None if key in mapping else usual)
    is_known = type(window) is int and window > 0
    kinds = {*types_of(keys, family)} - {*NO_ATTENTION}
    of_all |= is_known and bool(kinds) and kinds <= {*WITH_WINDOW}
    of_all |= name in WITH_ONE_WINDOW and is_known and types is None
    if name.startswith(("qwen2", "qwen3", "smollm3", "deepseek_ocr2")):  # the switch is false by default
        # Layers from `max_window_layers` on; of Qwen2-MoE, those before it; of SmolLM3, those that are not rotated.
        bound, count = mapping.get("max_window_layers"), mapping.get("num_hidden_layers")
        first, end = (0, bound) if name == "qwen2_moe" else (bound, count)
        some = isinstance(first, int) and isinstance(end, int) and first < end
        switch = switch is True and name != "smollm3" and (some or name == "qwen3_moe")
        of_all |= some and first == 0 and end == count and is_known and types is None
    are_full = isinstance(types, list) and not {*WITH_WINDOW}.intersection(map(str, types))
    if switch is False or are_full or (is_stated and window is None):
        return None, False
    return window if is_known else None, of_all


def _named(full: list[bool], other: str = "sliding_attention") -> list[str]:
    return ["full_attention" if each else other for each in full]


def every(
    period: int, key: str = "", *, first: bool = False, last: bool = False, other: str = "sliding_attention"
) -> Types:
    """One layer of each period has full attention: the last, or the `first`. With `last`, that of the model too."""

    def types(keys: Keys, count: int) -> list[str]:
        given = keys.read(key) if key else None
        if isinstance(given, str) and given and set(given) <= {"L", "G"}:  # EXAONE's local and global layers
            return _named([given[index % len(given)] == "G" for index in range(count)], other)
        length = keys.read_count(key, period) if key else period
        full = [bool(length) and (index + (not first)) % length == 0 for index in range(count)]
        if last and full and keys.read("num_hidden_layers") == count:
            full[-1] = True
        return _named(full, other)

    return types


def listed_at(key: str, other: str, *, otherwise: bool) -> Types:
    """Layers that the key lists have full attention. Without a list, all have it if `otherwise` is true, else none."""

    def types(keys: Keys, count: int) -> list[str]:
        listed = {index for index in keys.read_list(key) if checks.is_int(index)}
        everywhere = otherwise and keys.read(key) is None
        return _named([everywhere or index in listed for index in range(count)], other)

    return types


def marked(key: str, other: str) -> Types:
    """The list has 1 for each layer with full attention, and 0 for the others. Without a list, all have it."""

    def types(keys: Keys, count: int) -> list[str]:
        return _named(_marks(keys, key) or [True] * count, other)

    return types


def _marks(keys: Keys, key: str) -> list[bool]:
    marks = keys.read_list(key)
    for each in marks:
        if each not in (0, 1):
            raise wrong_value(f"{key} must be a list of 0 and 1; got {each!r} in it")
    return [bool(each) for each in marks]


def nemotron_nas(keys: Keys, count: int) -> list[str]:
    """Each layer has a block config. In some of them attention is left out, or is a matrix."""
    blocks = keys.read_list("block_configs")
    attention = [Keys("block_configs", {"of": each}).read_mapping("of").read_mapping("attention") for each in blocks]
    left_out = [[each.read(key) for key in ("no_op", "replace_with_linear")] for each in attention]
    for each in (value for values in left_out for value in values if value is not None):
        checks.boolean("no_op and replace_with_linear", each)
    return _named([not any(values) for values in left_out] or [True] * count, "no_attention")


def plamo2(keys: Keys, count: int) -> list[str]:
    """One layer of each `mamba_step` has attention, the one in the middle; in a short model, the last layer."""
    if keys.read("mamba_enabled") is False:
        return _named([True] * count)
    step = max(keys.read_count("mamba_step", 2), 1)
    short = count <= step // 2
    return _named([index == count - 1 if short else index % step == step // 2 for index in range(count)], "mamba")


def latent_only(keys: Keys, layer: int | None, layer_type: str | None) -> bool:
    """True, unless it is a linear layer of Ring-2.5, which rotates the first channels of heads of its own."""
    if layer_type == "linear_attention" and "BailingMoeV2_5ForCausalLM" in keys.read_list("architectures"):
        raise wrong_value(
            f"layer must have latent attention in {keys.name} of BailingMoeV2_5ForCausalLM, because its linear "
            f"layers are rotated in another way, which is not known here; got layer={layer}"
        )
    return True


def cycle(*kinds: str, key: str = "") -> Types:
    """Types that repeat. The key may have a list of other types."""

    def types(keys: Keys, count: int) -> list[str]:
        repeated = (keys.read_list(key) if key else []) or kinds
        return [repeated[index % len(repeated)] for index in range(count)]

    return types


def cohere2_moe(keys: Keys, count: int) -> list[str]:
    """The dense layers come first and have their own pattern. The pattern of the other layers starts after them."""
    dense = min(keys.read_count("first_k_dense_replace", 0), count)
    prefix = every(1, "prefix_dense_sliding_window_pattern")(keys, dense)
    return prefix + every(4, "sliding_window_pattern")(keys, count - dense)


def dots3_note(keys: Keys, count: int) -> list[str]:
    full = "full_attention" if keys.read("use_dsa") is False else "indexed_attention"
    slides = keys.read("use_sliding_window") is not False
    return ["sliding_attention" if slides and index > 1 and index % 4 != 1 else full for index in range(count)]


def flint(keys: Keys, count: int) -> list[str]:
    return _named(
        [index < 2 or index % 4 == 1 or index + 1 == keys.read("num_hidden_layers") for index in range(count)]
    )


def lfm3(keys: Keys, count: int) -> list[str]:
    kinds = ("sliding_attention", "conv", "full_attention", "conv")
    return ["conv", *cycle(*kinds)(keys, count)[1:]] if count else []


def lfm3_vl(keys: Keys, count: int) -> list[str]:
    return _named([index > 1 and index % 2 == 0 for index in range(count)], "conv")


def mimo(keys: Keys, count: int) -> list[str]:
    """The list has 1 for each layer with a sliding window. Without a list, the first and each sixth layer have none."""
    slides = _marks(keys, "hybrid_layer_pattern")
    return _named([not each for each in slides or [index > 0 and (index + 1) % 6 > 0 for index in range(count)]])


def ultrabert(keys: Keys, count: int) -> list[str]:
    """The list has the width of each layer's window, 0 for none. Without a list, each third layer has no window."""
    windows = keys.read_list("attention_windows")
    return _named([not window for window in windows]) if windows else every(3)(keys, count)


def sliding_only(*, unless_null: str = "", dense_prefix: bool = False) -> Rotated:
    """Layers with full attention are not rotated, unless a key is null, or for dense layers with `dense_prefix`."""

    def rotated(keys: Keys, layer: int | None, layer_type: str | None) -> bool:
        keys.mark_as_read(unless_null)
        if layer_type != "full_attention":
            return True
        if unless_null and unless_null in keys.mapping:
            return keys.mapping[unless_null] is None
        if not dense_prefix or layer is None or keys.read("prefix_dense_sliding_window_pattern") not in (None, 1):
            return False
        kinds = keys.read_list("mlp_layer_types")
        return kinds[layer : layer + 1] == ["dense"] or layer < keys.read_count("first_k_dense_replace", 0)

    return rotated


def unless_base_is_null(keys: Keys, layer: int | None, layer_type: str | None) -> bool:
    """True unless the base in the block is null. No layer is rotated then."""
    block = keys.mapping.get("rope_parameters")
    return not isinstance(block, Mapping) or block.get("rope_theta", 1) is not None
