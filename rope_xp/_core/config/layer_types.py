"""Which type each layer has, and which layers are rotated, by older keys than `layer_types`.

The functions here return those that a row of `families.py` has in `Layers.types` and `Layers.rotated`.
"""

from collections.abc import Callable, Mapping

from rope_xp._core import checks
from rope_xp._core.config.family import LayerList
from rope_xp._core.config.keys import WHO, Keys

Types = Callable[[Keys, int], list[str]]
Rotated = Callable[[Keys, int | None, str | None], bool]


def _named(full: list[bool], other: str = "sliding_attention") -> list[str]:
    return ["full_attention" if each else other for each in full]


def every(
    period: int, key: str = "", *, first: bool = False, last: bool = False, other: str = "sliding_attention"
) -> Types:
    """One layer of a period has full attention, its last one or its first; with `last`, the model's last layer too."""

    def types(keys: Keys, count: int) -> list[str]:
        given = keys.get(key) if key else None
        if isinstance(given, str) and given and set(given) <= {"L", "G"}:  # EXAONE's local and global layers
            return _named([given[at % len(given)] == "G" for at in range(count)], other)
        length = keys.count(key, period) if key else period
        full = [bool(length) and (at + (not first)) % length == 0 for at in range(count)]
        if last and full and keys.get("num_hidden_layers") == count:
            full[-1] = True
        return _named(full, other)

    return types


def listed_at(key: str, other: str, *, otherwise: bool) -> Types:
    """The layers whose indices are listed have full attention; without a list, all layers or none."""

    def types(keys: Keys, count: int) -> list[str]:
        listed = {at for at in keys.items(key) if checks.is_int(at)}
        everywhere = otherwise and keys.get(key) is None
        return _named([everywhere or at in listed for at in range(count)], other)

    return types


def cycle(*kinds: str, key: str = "") -> Types:
    """Types that repeat, which the key may list."""

    def types(keys: Keys, count: int) -> list[str]:
        repeated = (keys.items(key) if key else []) or kinds
        return [repeated[at % len(repeated)] for at in range(count)]

    return types


def cohere2_moe(keys: Keys, count: int) -> list[str]:
    """Dense layers at the beginning have a pattern of their own; for the others the count starts again."""
    dense = min(keys.count("first_k_dense_replace", 0), count)
    prefix = every(1, "prefix_dense_sliding_window_pattern")(keys, dense)
    return prefix + every(4, "sliding_window_pattern")(keys, count - dense)


def dots3_note(keys: Keys, count: int) -> list[str]:
    full = "full_attention" if keys.get("use_dsa") is False else "indexed_attention"
    slides = keys.get("use_sliding_window") is not False
    return ["sliding_attention" if slides and at > 1 and at % 4 != 1 else full for at in range(count)]


def flint(keys: Keys, count: int) -> list[str]:
    return _named([at < 2 or at % 4 == 1 or at + 1 == keys.get("num_hidden_layers") for at in range(count)])


def lfm3(keys: Keys, count: int) -> list[str]:
    kinds = ("sliding_attention", "conv", "full_attention", "conv")
    return ["conv", *cycle(*kinds)(keys, count)[1:]] if count else []


def lfm3_vl(keys: Keys, count: int) -> list[str]:
    return _named([at > 1 and at % 2 == 0 for at in range(count)], "conv")


def mimo(keys: Keys, count: int) -> list[str]:
    """A list has 1 for each layer with a sliding window; without it, the first layer and each sixth have none."""
    slides = keys.items("hybrid_layer_pattern")
    for each in slides:
        if each not in (0, 1):
            raise ValueError(f"{WHO}: hybrid_layer_pattern must be a list of 0 and 1; got {each!r} in it")
    return _named([not each for each in slides or [at > 0 and (at + 1) % 6 for at in range(count)]])


def ultrabert(keys: Keys, count: int) -> list[str]:
    """By the width of each layer's window, 0 for none; without such a list, each third layer has none."""
    windows = keys.items("attention_windows")
    return _named([not window for window in windows]) if windows else every(3)(keys, count)


def sliding_only(*, unless_null: str = "", dense_prefix: bool = False) -> Rotated:
    """Layers with full attention are not rotated.

    Parameters
    ----------
    unless_null : str
        A key. If it is null, they are rotated.
    dense_prefix : bool
        Dense layers at the beginning are rotated, too.
    """

    def rotated(keys: Keys, layer: int | None, layer_type: str | None) -> bool:
        keys.ignore(unless_null)
        if layer_type != "full_attention":
            return True
        if unless_null and unless_null in keys.mapping:
            return keys.mapping[unless_null] is None
        if not dense_prefix or layer is None or keys.get("prefix_dense_sliding_window_pattern") not in (None, 1):
            return False
        kinds = keys.items("mlp_layer_types")
        return kinds[layer : layer + 1] == ["dense"] or layer < keys.count("first_k_dense_replace", 0)

    return rotated


def unless_base_is_null(keys: Keys, layer: int | None, layer_type: str | None) -> bool:
    """No layer is rotated if the block has a base that is null."""
    block = keys.mapping.get("rope_parameters")
    return not isinstance(block, Mapping) or block.get("rope_theta", 1) is not None


def no_rope_layers() -> LayerList:
    """Layers that `no_rope_layers` lists with 0 are not rotated; without it, one of each interval is not."""
    return LayerList("no_rope_layers", "interval")
