"""The number of heads, their width and other sizes, from the shapes of projections and the config beside them."""

from collections.abc import Mapping
from typing import NamedTuple

from rope_xp.checkpoints.contents import Contents
from rope_xp.checkpoints.projections import Group
from rope_xp.configs.parts import part_of
from rope_xp.types import Config

Conclusion = tuple[str, str]
Found = tuple[int, str]  # a size, and from what it follows

# The keys of each size, in transformers, Meta's and Mistral's params.json, Megatron and GGUF.
KEYS = {
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention.head_count"),
    "kv_heads": (
        *("num_key_value_heads", "n_kv_heads", "num_query_groups", "multi_query_group_num"),
        "attention.head_count_kv",
    ),
    "head_dim": ("head_dim", "kv_channels", "attention.key_length"),
    "hidden_size": ("hidden_size", "n_embd", "dim", "d_model", "embedding_length"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "block_count"),
}
FALCON = ("num_kv_heads", "multi_query")  # of key-value heads; Falcon reads one of the two
LATENT = ("qk_nope_head_dim", "qk_rope_head_dim")


class Widths(NamedTuple):
    """Sizes of the model; None where neither shapes nor the config say them."""

    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    hidden_size: int | None = None
    layers: int | None = None


def widths_of(contents: Contents, group: Group, head_dim: int | None) -> tuple[Widths, list[Conclusion], list[str]]:
    """The sizes, from what each follows, and warnings where the config contradicts shapes."""
    config, where = _text_config(contents), contents.config_name
    found = {size: stated for size in KEYS if (stated := _stated(config, KEYS[size], where))}
    if head_dim is not None:  # of the embedding which the config describes
        found.setdefault("head_dim", (head_dim, f"{where}, as from_config reads it"))
    layers_stated = found.get("layers", (0, ""))[0]
    latent = "latent" in group.names
    if latent:
        found.pop("head_dim", None)
        found |= _of_latent(config, where)
    else:
        _add_from_shapes(found, group)
    _add_defaults(found, config, group, where)
    agreeing, warnings = _compare_rows(found, group, where) if config and not latent else ([], [])
    if group.format and contents.complete and len(group.layers) < layers_stated:
        warnings.append(f"{group.prefix} has {len(group.layers)} layers; {where} says {layers_stated}.")
    widths = Widths(**{size: value for size, (value, _) in found.items()})
    return widths, [*_conclusions(found, config, group), *agreeing], warnings


def _text_config(contents: Contents) -> Config:
    """The part of the config for the text model. Keys of GGUF are without the architecture."""
    if contents.container == "GGUF":
        start = f"{contents.metadata.get('general.architecture')}."
        return {key.removeprefix(start): value for key, value in contents.config.items()}
    try:
        return part_of(contents.config, None)[0]
    except (TypeError, ValueError):  # not a config of transformers
        return contents.config


def _stated(config: Config, keys: tuple[str, ...], where: str) -> Found | None:
    """The value of the first of these keys that is a size. A list has one value for each layer."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, (list, tuple)) and value and all(each == value[0] for each in value):
            value = value[0]
        if type(value) is int and 0 < value < 2**53:
            return value, f"{key} in {where}"
    return None


def _of_latent(config: Config, where: str) -> dict[str, Found]:
    """Multi-head latent attention has the width of its heads in two keys."""
    without, rotated = (config.get(key) for key in LATENT)
    if type(without) is not int or type(rotated) is not int or without < 0 or rotated < 1:
        return {}
    return {"head_dim": (without + rotated, f"{' + '.join(LATENT)} in {where}; {rotated} of them are rotated")}


def _add_from_shapes(found: dict[str, Found], group: Group) -> None:
    """Sizes that follow from the projections. What the config states stays."""
    q, k, qkv, norm = (group.rows(role) for role in ("q", "k", "qkv", "q_norm"))
    heads, hidden = (found.get(size, (0, ""))[0] for size in ("heads", "hidden_size"))
    if "head_dim" not in found and norm is not None and norm != q:
        found["head_dim"] = (norm, f"{norm} values in {group.names['q_norm']}")
    if "head_dim" not in found and q and heads and q % heads == 0:
        found["head_dim"] = (q // heads, f"{q} rows of {group.names['q']} / {heads} heads")
    if "head_dim" not in found and qkv and heads and _divides(heads, hidden) and qkv % (hidden // heads) == 0:
        found["head_dim"] = (
            hidden // heads,
            f"hidden size {hidden} / {heads} heads, and {qkv} rows of the projections",
        )
    width = found.get("head_dim", (0, ""))[0]
    for size, role, rows in (("heads", "q", q), ("kv_heads", "k", k)):
        if size not in found and width and rows and rows % width == 0:
            found[size] = (rows // width, f"{rows} rows of {group.names[role]} / head dim {width}")
    if "kv_heads" not in found and qkv and width and heads:
        both = qkv // width - heads  # keys and values
        if qkv % width == 0 and both > 0 and both % 2 == 0:
            found["kv_heads"] = (both // 2, f"{qkv} rows of {group.names['qkv']} / head dim {width}")
    columns = {shape[1] for role in ("q", "qkv") for shape in group.shapes[role] if len(shape) == 2}
    if "hidden_size" not in found and len(columns) == 1 and not group.packed:
        found["hidden_size"] = (columns.pop(), f"columns of {group.example}")


def _divides(heads: int, hidden: int) -> bool:
    return hidden > 0 and hidden % heads == 0


def _add_defaults(found: dict[str, Found], config: Config, group: Group, where: str) -> None:
    """Sizes that follow from others, if no shape says them."""
    heads, hidden = (found.get(size, (0, ""))[0] for size in ("heads", "hidden_size"))
    unknown = heads and not any(group.rows(role) for role in ("q", "k", "qkv"))
    if unknown and "head_dim" not in found and "latent" not in group.names and _divides(heads, hidden):
        found["head_dim"] = (hidden // heads, f"hidden size {hidden} / {heads} heads")
    if unknown and "kv_heads" not in found and not any(config.get(key) for key in (*KEYS["kv_heads"], *FALCON)):
        found["kv_heads"] = (heads, f"{where} states no other number than that of heads")
    if "layers" not in found and group.layers:
        found["layers"] = (len(group.layers), f"indexes of {group.prefix}")


def _conclusions(found: Mapping[str, Found], config: Config, group: Group) -> list[Conclusion]:
    words = {size: size.replace("_", " ") for size in KEYS}
    conclusions = [(f"{words[size]}: {found[size][0]}", found[size][1]) for size in KEYS if size in found]
    missing = [size for size in KEYS if size not in found]
    if missing:
        lists = [key for size in missing for key in KEYS[size] if isinstance(config.get(key), (list, tuple))]
        why = f"{lists[0]} differs between layers" if lists else _why_not(group)
        conclusions.append(("other sizes: cannot tell", f"{', '.join(words[size] for size in missing)}: {why}"))
    return conclusions


def _why_not(group: Group) -> str:
    if not group.format:
        return "no config states it, and no tensor has a known name"
    q, k, qkv = (group.rows(role) for role in ("q", "k", "qkv"))
    if q and k:
        ratio = f", {q // k} heads for each key-value head" if q % k == 0 else ""
        return f"no config states it; the projections have {q} rows of queries and {k} of keys{ratio}"
    if qkv:
        return f"no config states it; the fused projection has {qkv} rows"
    packed = f"; the projections are packed ({', '.join(sorted(group.packed)[:3])})" if group.packed else ""
    return f"neither a config nor shapes say it{packed}"


def _compare_rows(found: Mapping[str, Found], group: Group, where: str) -> tuple[list[Conclusion], list[str]]:
    heads, kv_heads, width = (found.get(size, (0, ""))[0] for size in ("heads", "kv_heads", "head_dim"))
    if not (heads and kv_heads and width):
        return [], []
    agreeing, warnings = [], []
    for role, count in (("q", heads), ("k", kv_heads), ("qkv", heads + 2 * kv_heads)):
        rows, sum_of = group.rows(role), f"{count} {'head' if count == 1 else 'heads'} of {width} channels"
        if rows == count * width:
            agreeing.append((f"rows of {role}: {rows}", f"{sum_of}, as {group.names[role]} has"))
        elif role == "q" and rows == 2 * count * width:
            agreeing.append((f"rows of {role}: {rows}", f"{sum_of}, and a gate for each, as {group.names[role]} has"))
        elif rows:
            warnings.append(
                f"{group.names[role]} has {rows} rows. {where} says {sum_of}, which are {count * width} rows."
            )
    return agreeing, warnings
