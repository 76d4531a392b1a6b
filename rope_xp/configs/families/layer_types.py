"""The type of each layer, and whether it is rotated, for configs without `layer_types`.

Rows of `model_types.py` have these functions, or those that they return, in `Layers.types` and `Layers.rotated`.
"""

from collections.abc import Callable, Mapping

from rope_xp.arrays import checks
from rope_xp.configs.families.family import LayerList
from rope_xp.configs.keys import Keys
from rope_xp.errors import wrong_value

Types = Callable[[Keys, int], list[str]]
Rotated = Callable[[Keys, int | None, str | None], bool]


def _named(full: list[bool], other: str = "sliding_attention") -> list[str]:
    return ["full_attention" if each else other for each in full]


def every(
    period: int, key: str = "", *, first: bool = False, last: bool = False, other: str = "sliding_attention"
) -> Types:
    """The last layer of each period has full attention, or the first one with `first`.

    With `last`, the last layer of the model has full attention too.
    """

    def types(keys: Keys, count: int) -> list[str]:
        given = keys.get(key) if key else None
        if isinstance(given, str) and given and set(given) <= {"L", "G"}:  # EXAONE's local and global layers
            return _named([given[index % len(given)] == "G" for index in range(count)], other)
        length = keys.count(key, period) if key else period
        full = [bool(length) and (index + (not first)) % length == 0 for index in range(count)]
        if last and full and keys.get("num_hidden_layers") == count:
            full[-1] = True
        return _named(full, other)

    return types


def listed_at(key: str, other: str, *, otherwise: bool) -> Types:
    """Layers that the key lists have full attention. Without a list, all have it if `otherwise` is true, else none."""

    def types(keys: Keys, count: int) -> list[str]:
        listed = {index for index in keys.list_of(key) if checks.is_int(index)}
        everywhere = otherwise and keys.get(key) is None
        return _named([everywhere or index in listed for index in range(count)], other)

    return types


def marked(key: str, other: str) -> Types:
    """The list has 1 for each layer with full attention, and 0 for the others. Without a list, all have it."""

    def types(keys: Keys, count: int) -> list[str]:
        marks = keys.list_of(key)
        for each in marks:
            if each not in (0, 1):
                raise wrong_value(f"{key} must be a list of 0 and 1; got {each!r} in it")
        return _named([bool(each) for each in marks or [1] * count], other)

    return types


def nemotron_nas(keys: Keys, count: int) -> list[str]:
    """Each layer has a block config. In some of them attention is left out, or is a matrix."""
    blocks = keys.list_of("block_configs")
    attention = [Keys("block_configs", {"of": each}).nested("of").nested("attention") for each in blocks]
    left_out = [[each.get(key) for key in ("no_op", "replace_with_linear")] for each in attention]
    for each in (value for values in left_out for value in values if value is not None):
        checks.boolean("no_op and replace_with_linear", each)
    return _named([not any(values) for values in left_out] or [True] * count, "no_attention")


def plamo2(keys: Keys, count: int) -> list[str]:
    """One layer of each `mamba_step` has attention, the one in the middle; in a short model, the last layer."""
    if keys.get("mamba_enabled") is False:
        return _named([True] * count)
    step = max(keys.count("mamba_step", 2), 1)
    short = count <= step // 2
    return _named([index == count - 1 if short else index % step == step // 2 for index in range(count)], "mamba")


def latent_only(keys: Keys, layer: int | None, layer_type: str | None) -> bool:
    """True, unless it is a linear layer of Ring-2.5, which rotates the first channels of heads of its own."""
    if layer_type == "linear_attention" and "BailingMoeV2_5ForCausalLM" in keys.list_of("architectures"):
        raise wrong_value(
            f"layer must have latent attention in {keys.name} of BailingMoeV2_5ForCausalLM, because its linear "
            f"layers are rotated in another way, which is not known here; got layer={layer}"
        )
    return True


def cycle(*kinds: str, key: str = "") -> Types:
    """Types that repeat. The key may have a list of other types."""

    def types(keys: Keys, count: int) -> list[str]:
        repeated = (keys.list_of(key) if key else []) or kinds
        return [repeated[index % len(repeated)] for index in range(count)]

    return types


def cohere2_moe(keys: Keys, count: int) -> list[str]:
    """The dense layers come first and have their own pattern. The pattern of the other layers starts after them."""
    dense = min(keys.count("first_k_dense_replace", 0), count)
    prefix = every(1, "prefix_dense_sliding_window_pattern")(keys, dense)
    return prefix + every(4, "sliding_window_pattern")(keys, count - dense)


def dots3_note(keys: Keys, count: int) -> list[str]:
    full = "full_attention" if keys.get("use_dsa") is False else "indexed_attention"
    slides = keys.get("use_sliding_window") is not False
    return ["sliding_attention" if slides and index > 1 and index % 4 != 1 else full for index in range(count)]


def flint(keys: Keys, count: int) -> list[str]:
    return _named([index < 2 or index % 4 == 1 or index + 1 == keys.get("num_hidden_layers") for index in range(count)])


def lfm3(keys: Keys, count: int) -> list[str]:
    kinds = ("sliding_attention", "conv", "full_attention", "conv")
    return ["conv", *cycle(*kinds)(keys, count)[1:]] if count else []


def lfm3_vl(keys: Keys, count: int) -> list[str]:
    return _named([index > 1 and index % 2 == 0 for index in range(count)], "conv")


def mimo(keys: Keys, count: int) -> list[str]:
    """The list has 1 for each layer with a sliding window. Without a list, the first and each sixth layer have none."""
    slides = keys.list_of("hybrid_layer_pattern")
    for each in slides:
        if each not in (0, 1):
            raise wrong_value(f"hybrid_layer_pattern must be a list of 0 and 1; got {each!r} in it")
    return _named([not each for each in slides or [index > 0 and (index + 1) % 6 for index in range(count)]])


def ultrabert(keys: Keys, count: int) -> list[str]:
    """The list has the width of each layer's window, 0 for none. Without a list, each third layer has no window."""
    windows = keys.list_of("attention_windows")
    return _named([not window for window in windows]) if windows else every(3)(keys, count)


def sliding_only(*, unless_null: str = "", dense_prefix: bool = False) -> Rotated:
    """Layers with full attention are not rotated.

    Parameters
    ----------
    unless_null : str
        A key. If it is null, layers with full attention are rotated too.
    dense_prefix : bool
        Whether dense layers, which come first, are rotated too.
    """

    def rotated(keys: Keys, layer: int | None, layer_type: str | None) -> bool:
        keys.ignore(unless_null)
        if layer_type != "full_attention":
            return True
        if unless_null and unless_null in keys.mapping:
            return keys.mapping[unless_null] is None
        if not dense_prefix or layer is None or keys.get("prefix_dense_sliding_window_pattern") not in (None, 1):
            return False
        kinds = keys.list_of("mlp_layer_types")
        return kinds[layer : layer + 1] == ["dense"] or layer < keys.count("first_k_dense_replace", 0)

    return rotated


def unless_base_is_null(keys: Keys, layer: int | None, layer_type: str | None) -> bool:
    """True unless the base in the block is null. No layer is rotated then."""
    block = keys.mapping.get("rope_parameters")
    return not isinstance(block, Mapping) or block.get("rope_theta", 1) is not None


def no_rope_layers() -> LayerList:
    """Layers with 0 in `no_rope_layers` are not rotated. Without it, one layer of each interval is not rotated."""
    return LayerList("no_rope_layers", "interval")
