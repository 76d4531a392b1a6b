"""The projections of queries and keys, found by the names of tensors, and the sizes that their shapes say."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rope_xp.checkpoints.contents import Contents, Tensor
from rope_xp.configs.parts import part_of
from rope_xp.types import Config

Conclusion = tuple[str, str]
Found = tuple[int, str]  # a size, and from what it follows
Sizes = dict[str, int | None]

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

HUGGING_FACE, META, MLX, MEGATRON, GGUF = "Hugging Face", "Meta", "MLX", "Megatron", "GGUF"

# What stands between the index of a layer and the name of a parameter: the format, and the role of the tensor.
ROLES: dict[str, tuple[str, str]] = {
    **{f"{name}.q_proj": (HUGGING_FACE, "q") for name in ("self_attn", "attn", "attention", "attn.attention")},
    **{f"{name}.k_proj": (HUGGING_FACE, "k") for name in ("self_attn", "attn", "attention", "attn.attention")},
    "attention.self.query": (HUGGING_FACE, "q"),
    "attention.self.key": (HUGGING_FACE, "k"),
    **dict.fromkeys(("self_attn.q_norm", "self_attn.q_layernorm"), (HUGGING_FACE, "q_norm")),
    **dict.fromkeys(("self_attn.kv_a_proj_with_mqa", "self_attn.q_a_proj"), (HUGGING_FACE, "latent")),
    **dict.fromkeys(("self_attn.qkv_proj", "self_attn.Wqkv", "self_attn.W_pack"), (HUGGING_FACE, "qkv")),
    **dict.fromkeys(("attn.qkv_proj", "attn.Wqkv"), (HUGGING_FACE, "qkv")),
    **dict.fromkeys(("attention.query_key_value", "self_attention.query_key_value"), (HUGGING_FACE, "qkv")),
    "attention.wq": (META, "q"),
    "attention.wk": (META, "k"),
    "self_attention.linear_qkv": (MEGATRON, "qkv"),
    "self_attention.q_layernorm": (MEGATRON, "q_norm"),
    "attn_q": (GGUF, "q"),
    "attn_k": (GGUF, "k"),
    "attn_qkv": (GGUF, "qkv"),
    "attn_q_norm": (GGUF, "q_norm"),
    **dict.fromkeys(("attn_kv_a_mqa", "attn_q_a"), (GGUF, "latent")),
}
OTHER_PARTS = ("vision", "visual", "image", "audio", "speech", "vit", "img", "mtp", "codec")
MAX_LAYERS = 16_384
FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")


class Place(NamedTuple):
    """The parts of a name such as "model.layers.0.self_attn.q_proj.weight"."""

    prefix: str  # "model.layers"
    layer: int | None  # None if one tensor holds all layers, as Megatron may write it
    inner: str  # "self_attn.q_proj"
    parameter: str  # "weight"


@dataclass
class Group:
    """The layers whose tensors have the same prefix, such as "model.layers"."""

    prefix: str
    format: str = ""
    layers: set[int] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)  # by role, the name of the first tensor
    shapes: dict[str, set[tuple[int, ...]]] = field(default_factory=lambda: defaultdict(set))  # by role
    packed: set[str] = field(default_factory=set)  # parameters and dtypes of packed projections, such as "qweight"

    def rows(self, role: str) -> int | None:
        """The number of outputs of a projection, or the size of a norm, if all layers have the same."""
        if role == "qkv" and "q" in self.names:
            return None  # the fused one is in layers of another kind of attention
        sizes = {shape[0] for shape in self.shapes[role] if len(shape) == (1 if role == "q_norm" else 2)}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def example(self) -> str:
        return next(self.names[role] for role in ("q", "qkv", "latent", "k", "q_norm") if role in self.names)

    def add(self, name: str, place: Place, tensor: Tensor | None, mlx: bool) -> None:
        if place.layer is not None:
            self.layers.add(place.layer)
        format_, role = ROLES.get(place.inner, ("", ""))
        if place.inner == "self_attention.query_key_value" and "language_model" in place.prefix:
            format_ = MEGATRON
        if not format_ or (place.layer is None and format_ != MEGATRON):
            return
        self.format = self.format or format_
        if place.parameter == "weight" and not self.names.get(role, "").endswith(".weight"):
            self.names[role] = name
        self.names.setdefault(role, name)
        if place.parameter == "weight" and tensor is not None:
            self._add_shape(role, place, tensor, mlx)
        elif place.parameter not in ("weight", "bias"):
            self.packed.add(place.parameter)

    def _add_shape(self, role: str, place: Place, tensor: Tensor, mlx: bool) -> None:
        shape = tensor.shape
        if place.layer is None and shape:
            self.layers.update(range(min(shape[0], MAX_LAYERS)))
            shape = shape[1:]
        if self.format == GGUF or tensor.dtype in FLOATS or (mlx and tensor.dtype == "U32"):
            self.shapes[role].add(shape)
        else:
            self.packed.add(tensor.dtype)


def is_of_other_part(name: str) -> bool:
    """Whether a name is in a vision tower or another part beside the text model."""
    return any(part.startswith(OTHER_PARTS) or part.endswith(OTHER_PARTS) for part in name.split("."))


def main_group(tensors: Mapping[str, Tensor | None], mlx: bool) -> Group:
    """The layers of the text model, or of the largest part that has projections; an empty group without projections."""
    groups: dict[str, Group] = {}
    for name, tensor in tensors.items():
        place = _place(name)
        if place is not None:
            groups.setdefault(place.prefix, Group(place.prefix)).add(name, place, tensor, mlx)
    found = [group for group in groups.values() if group.format]
    text = [group for group in found if not is_of_other_part(group.prefix)]
    return max(text or found, key=lambda group: len(group.layers), default=Group(""))


def _place(name: str) -> Place | None:
    parts = name.split(".")
    at = next((i for i, part in enumerate(parts) if part.isdecimal() and len(part) < 7), None)
    if at is not None:
        return Place(".".join(parts[:at]), int(parts[at]), ".".join(parts[at + 1 : -1]), parts[-1])
    if "layers" in parts:
        at = parts.index("layers") + 1
        return Place(".".join(parts[:at]), None, ".".join(parts[at:-1]), parts[-1])
    return None


def mark_of_mlx(metadata: Config, tensors: Config) -> str:
    """What shows that MLX wrote a file with the names of Hugging Face; empty if nothing does."""
    if metadata.get("format") == "mlx":
        return "the header says {'format': 'mlx'}"
    weights = (name.removesuffix("scales") for name in tensors if name.endswith(".scales"))
    pair = next((name for name in weights if f"{name}biases" in tensors), None)
    return f"quantised weights with {pair}scales and biases" if pair else ""


def sizes_of(contents: Contents, group: Group, head_dim: int | None) -> tuple[Sizes, list[Conclusion], list[str]]:
    config, where = _text_config(contents), contents.config_name
    found = {size: stated for size in KEYS if (stated := _stated(config, KEYS[size], where))}
    _add(found, "head_dim", head_dim, f"{where}, as from_config reads it")  # of the embedding that it describes
    layers_stated = _known(found, "layers")
    latent = "latent" in group.names
    if latent:
        found.pop("head_dim", None)
        found |= _of_latent(config, where)
    else:
        _add_from_shapes(found, group)
    _add_defaults(found, config, group, where)
    agreeing, warnings = _compare_rows(found, group, where) if config and not latent else ([], [])
    if group.format and contents.complete and len(group.layers) < layers_stated:
        count = f"{len(group.layers)} layer{'s' * (len(group.layers) != 1)}"
        warnings.append(f"The checkpoint has tensors of {count} ({group.prefix}.*); {where} says {layers_stated}.")
    sizes = {size: _known(found, size) or None for size in KEYS}
    return sizes, [*_conclusions(found, config, group), *agreeing], warnings


def _known(found: Mapping[str, Found], size: str) -> int:
    return found[size][0] if size in found else 0


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
    without, rotated = (config.get(key) for key in LATENT)
    if type(without) is not int or type(rotated) is not int or without < 0 or rotated < 1:
        return {}
    return {"head_dim": (without + rotated, f"{' + '.join(LATENT)} in {where}; {rotated} of them are rotated")}


def _add_from_shapes(found: dict[str, Found], group: Group) -> None:
    """Sizes that the config does not state, each from the first shapes that say it."""
    q, k, qkv, norm = (group.rows(role) for role in ("q", "k", "qkv", "q_norm"))
    heads, hidden, name_of = _known(found, "heads"), _known(found, "hidden_size"), group.names.get
    _add(found, "head_dim", None if norm == q else norm, f"{norm} values in {name_of('q_norm')}")
    _add(found, "head_dim", _quotient(q, heads), f"{q} rows of {name_of('q')} / {heads} heads")
    if _quotient(qkv, _quotient(hidden, heads)):
        words = f"hidden size {hidden} / {heads} heads, and {qkv} rows of the projections"
        _add(found, "head_dim", _quotient(hidden, heads), words)
    width = _known(found, "head_dim")
    _add(found, "heads", _quotient(q, width), f"{q} rows of {name_of('q')} / head dim {width}")
    _add(found, "kv_heads", _quotient(k, width), f"{k} rows of {name_of('k')} / head dim {width}")
    keys_and_values = (_quotient(qkv, width) or 0) - heads
    if heads and keys_and_values > 0:
        words = f"{qkv} rows of {name_of('qkv')} / head dim {width}"
        _add(found, "kv_heads", _quotient(keys_and_values, 2), words)
    columns = {shape[1] for role in ("q", "qkv") for shape in group.shapes[role] if len(shape) == 2}
    if len(columns) == 1 and not group.packed:
        _add(found, "hidden_size", columns.pop(), f"columns of {group.example}")


def _add(found: dict[str, Found], size: str, number: int | None, words: str) -> None:
    if number is not None:
        found.setdefault(size, (number, words))


def _quotient(number: int | None, divisor: int | None) -> int | None:
    """How often the divisor is in a number above 0, if that is a whole number."""
    return number // divisor if number and divisor and number % divisor == 0 else None


def _add_defaults(found: dict[str, Found], config: Config, group: Group, where: str) -> None:
    """Sizes that follow from others, if no shape says them."""
    heads, hidden = _known(found, "heads"), _known(found, "hidden_size")
    if heads and not any(group.rows(role) for role in ("q", "k", "qkv")):
        if "latent" not in group.names:
            _add(found, "head_dim", _quotient(hidden, heads), f"hidden size {hidden} / {heads} heads")
        if not any(config.get(key) for key in (*KEYS["kv_heads"], *FALCON)):
            _add(found, "kv_heads", heads, f"{where} states no other number than that of heads")
    _add(found, "layers", len(group.layers) or None, f"indexes of {group.prefix}")


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
    heads, kv_heads, width = (_known(found, size) for size in ("heads", "kv_heads", "head_dim"))
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
                f"{group.names[role]} has {rows} rows, but {where} says {sum_of}, which are {count * width} rows."
            )
    return agreeing, warnings
