"""The projections of queries and keys, found by the names of tensors, and the sizes that their shapes say."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from re import sub
from typing import NamedTuple

from rope_xp.checkpoints.contents import Contents, Tensor
from rope_xp.configs.parts import part_of, path_to
from rope_xp.types import Config, Embedding

Conclusion = tuple[str, str]
Size = tuple[int, str]  # a size, and from what it follows
Sizes = dict[str, int | None]

# The keys of each size, in transformers, Meta's and Mistral's params.json, Megatron and GGUF.
KEYS = {
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention.head_count"),
    "kv_heads": (
        *("num_key_value_heads", "n_kv_heads", "num_query_groups", "multi_query_group_num"),
        "attention.head_count_kv",
    ),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels", "attention.key_length"),
    "hidden_size": ("hidden_size", "n_embd", "dim", "d_model", "embedding_length"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "block_count"),
}
FALCON = ("num_kv_heads", "multi_query")  # of key-value heads; Falcon reads one of the two
LATENT = ("qk_nope_head_dim", "qk_rope_head_dim")
COMPRESSED = {"rank": ("kv_lora_rank", "attention.kv_lora_rank"), "rotated": (LATENT[1], "rope.dimension_count")}
# The rows of each tensor: the sizes from which they follow, how, and in words.
ROWS: dict[str, tuple[tuple[str, ...], Callable[..., int], str]] = {
    "q": (("heads", "head_dim"), lambda heads, width: heads * width, "{} heads of {} channels"),
    "k": (("kv_heads", "head_dim"), lambda heads, width: heads * width, "{} heads of {} channels"),
    "qkv": (("heads", "kv_heads", "head_dim"), lambda q, k, d: (q + 2 * k) * d, "{} + 2 * {} heads of {} channels"),
    "q_norm": (("head_dim",), lambda width: width, "a head of {} channels"),
    "kv_a": (("rank", "rotated"), lambda rank, rotated: rank + rotated, "{} compressed and {} rotated channels"),
}
# Beginnings of the model types and architectures whose projection of queries has a gate for each channel of a head.
GATED = ("qwen3_next", "qwen3_5", "qwen4_exp", "qwen3next", "qwen35")
# In keys by which layers may have other heads.
OF_SOME_LAYERS = ("per_layer", "block_configs", "global", "swa", "linear", "other")

HUGGING_FACE, META, MLX, MEGATRON, GGUF = "Hugging Face", "Meta", "MLX", "Megatron", "GGUF"

OF_ATTENTION = ("self_attn", "attn", "attention", "attn.attention")
# What stands between the index of a layer and the name of a parameter: the format, and the role of the tensor.
ROLES: dict[str, tuple[str, str]] = {
    **{f"{name}.{role}_proj": (HUGGING_FACE, role) for name in OF_ATTENTION for role in "qk"},
    "attention.self.query": (HUGGING_FACE, "q"),
    "attention.self.key": (HUGGING_FACE, "k"),
    **dict.fromkeys(("self_attn.q_norm", "self_attn.q_layernorm"), (HUGGING_FACE, "q_norm")),
    "self_attn.kv_a_proj_with_mqa": (HUGGING_FACE, "kv_a"),
    "self_attn.q_a_proj": (HUGGING_FACE, "q_a"),
    **dict.fromkeys(("self_attn.qkv_proj", "self_attn.Wqkv", "self_attn.W_pack"), (HUGGING_FACE, "qkv")),
    **dict.fromkeys(("attn.qkv_proj", "attn.Wqkv"), (HUGGING_FACE, "qkv")),
    **dict.fromkeys(("attention.query_key_value", "self_attention.query_key_value"), (HUGGING_FACE, "qkv")),
    "attention.wq": (META, "q"),
    "attention.wk": (META, "k"),
    "self_attention.linear_qkv": (MEGATRON, "qkv"),
    "self_attention.q_layernorm": (MEGATRON, "q_norm"),
    **{f"attn_{role}": (GGUF, role) for role in ("q", "k", "qkv", "q_norm", "q_a")},
    **{f"{name}.o_proj": (HUGGING_FACE, "o") for name in OF_ATTENTION},
    "attn_kv_a_mqa": (GGUF, "kv_a"),
}
OTHER_PARTS = ("vision", "visual", "image", "video", "audio", "speech", "vit", "img", "mtp", "codec", "protein", "dit")
MAX_LAYERS = 16_384
FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")


class TensorName(NamedTuple):
    """The parts of a name such as "model.layers.0.self_attn.q_proj.weight"."""

    prefix: str  # "model.layers"
    layer: int | None  # None if one tensor holds all layers, as Megatron may write it
    inner: str  # "self_attn.q_proj"
    parameter: str  # "weight"


@dataclass
class Stack:
    """The layers whose tensors have the same prefix, such as "model.layers"."""

    prefix: str
    format: str = ""
    layers: set[int] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)  # by role, the name of the first tensor
    # By role, each shape with the name of the first tensor that has it.
    shapes: dict[str, dict[tuple[int, ...], str]] = field(default_factory=lambda: defaultdict(dict))
    packed: set[str] = field(default_factory=set)  # parameters and dtypes of packed projections, such as "qweight"

    def rows(self, role: str) -> int | None:
        """The number of outputs of a projection, or the size of a norm, if all layers have the same."""
        sizes = self.all_rows(role)
        return next(iter(sizes)) if len(sizes) == 1 else None

    # Each number of rows, with the name of the first tensor that has it.
    def all_rows(self, role: str) -> dict[int, str]:
        if role == "qkv" and (self.is_latent or "q" in self.names):
            return {}  # the fused one is in layers of another kind of attention
        axes = 1 if role == "q_norm" else 2
        return {shape[0]: name for shape, name in reversed(self.shapes[role].items()) if len(shape) == axes}

    @property
    def queries(self) -> int | None:
        # Without those for gates, for which the output projection has no columns.
        rows, columns = self.rows("q"), {shape[1] for shape in self.shapes["o"] if len(shape) == 2}
        return rows // 2 if rows and columns == {rows // 2} and rows // 2 >= (self.rows("k") or 0) else rows

    @property
    def is_latent(self) -> bool:
        return not self.names.keys().isdisjoint(("kv_a", "q_a"))

    @property
    def example(self) -> str:
        return next(self.names[role] for role in ("q", "qkv", "kv_a", "q_a", "k", "q_norm", "o") if role in self.names)

    def add(self, name: str, place: TensorName, tensor: Tensor | None, mlx: bool) -> None:
        if place.layer is not None:
            self.layers.add(place.layer)
        format_, role = ROLES.get(place.inner, ("", ""))
        if place.inner == "self_attention.query_key_value" and "language_model" in place.prefix:
            format_ = MEGATRON if place.prefix.endswith(".layers") else HUGGING_FACE
        if not format_ or (place.layer is None and format_ != MEGATRON):
            return
        self.format = self.format or (format_ if role != "o" else "")
        if place.parameter == "weight" and not self.names.get(role, "").endswith(".weight"):
            self.names[role] = name
        self.names.setdefault(role, name)
        if place.parameter == "weight" and tensor is not None:
            self._add_shape(role, name, place, tensor, mlx)
        elif place.parameter not in ("weight", "bias"):
            self.packed.add(place.parameter)

    def _add_shape(self, role: str, name: str, place: TensorName, tensor: Tensor, mlx: bool) -> None:
        shape = tensor.shape
        if place.layer is None and shape:
            self.layers.update(range(min(shape[0], MAX_LAYERS)))
            shape = shape[1:]
        if self.format == GGUF or tensor.dtype in FLOATS or (mlx and tensor.dtype == "U32"):
            self.shapes[role].setdefault(shape, name)
        else:
            self.packed.add(tensor.dtype)


def is_of_other_part(name: str) -> bool:
    """Whether a name is in a vision tower or another part beside the text model."""
    return any(part.startswith(OTHER_PARTS) or part.endswith(OTHER_PARTS) for part in name.split("."))


def main_group(tensors: Mapping[str, Tensor | None], mlx: bool) -> Stack:
    """The layers of the text model, or of the largest part that has projections; an empty group without projections."""
    groups: dict[str, Stack] = {}
    for name, tensor in tensors.items():
        place = _place(name)
        if place is not None:
            groups.setdefault(place.prefix, Stack(place.prefix)).add(name, place, tensor, mlx)
    found = [group for group in groups.values() if group.format]
    text = [group for group in found if not is_of_other_part(group.prefix)]
    prefixes = {group.prefix.replace("decoder", "encoder") for group in text if "decoder" in group.prefix}
    text = [group for group in text if group.prefix not in prefixes]  # without encoders beside a decoder
    return max(text or found, key=lambda group: len(group.layers), default=Stack(""))


def _place(name: str) -> TensorName | None:
    parts = name.split(".")
    at = next((i for i, part in enumerate(parts) if part.isdecimal() and len(part) < 7), None)
    if at is not None:
        return TensorName(".".join(parts[:at]), int(parts[at]), ".".join(parts[at + 1 : -1]), parts[-1])
    if "layers" in parts:
        at = parts.index("layers") + 1
        return TensorName(".".join(parts[:at]), None, ".".join(parts[at:-1]), parts[-1])
    return None


def mark_of_mlx(metadata: Config, tensors: Config) -> str:
    """What shows that MLX wrote a file with the names of Hugging Face; empty if nothing does."""
    if metadata.get("format") == "mlx":
        return "the header says {'format': 'mlx'}"
    weights = (name.removesuffix("scales") for name in tensors if name.endswith(".scales"))
    pair = next((name for name in weights if f"{name}biases" in tensors), None)
    return f"quantised weights with {pair}scales and biases" if pair else ""


def sizes_of(contents: Contents, group: Stack, rope: Embedding | None) -> tuple[Sizes, list[Conclusion], list[str]]:
    config, where = _text_config(contents), contents.config_name
    found = {size: stated for size in KEYS if (stated := _stated(config, KEYS[size], where))}
    if rope is not None:
        if "head_dim" not in config and _known(found, "head_dim") != rope.head_dim:
            found.pop("head_dim", None)  # that of other layers
        defaults = (f"head_dim, {each.source}" for each in rope._provenance.defaults if each.key == "head_dim")
        _add(found, "head_dim", rope.head_dim, next(defaults, f"{where}, as from_config reads it"))
    layers_stated = _known(found, "layers")
    if group.is_latent:
        found.pop("head_dim", None)
        found |= _of_latent(config, where)
    else:
        _add_from_shapes(found, group)
    _add_defaults(found, config, group, where)
    alike = rope is not None and not any(word in key for key in config for word in OF_SOME_LAYERS)
    own = {f"{part}_config" for part in group.prefix.split(".")} & contents.config.keys()
    is_other = is_of_other_part(group.prefix) or not own <= {*path_to(config, contents.config)}
    gated = str(config.get("model_type") or config.get("general.architecture")).startswith(GATED)
    agreeing, warnings = _compare(found, group, alike, gated) if config and not is_other else ([], [])
    if group.format and not is_other and contents.complete and len(group.layers) < layers_stated:
        count = f"{len(group.layers)} layer{'s' * (len(group.layers) != 1)}"
        warnings.append(f"The checkpoint has tensors of {count} ({group.prefix}.*); {where} says {layers_stated}.")
    sizes = {size: _known(found, size) or None for size in KEYS}
    return sizes, [*_conclusions(found, config, group), *agreeing], warnings


def _known(found: Mapping[str, Size], size: str) -> int:
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


def _stated(config: Config, keys: tuple[str, ...], where: str) -> Size | None:
    """The value of the first of these keys that is a size. A list has one value for each layer."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, (list, tuple)) and value and all(each == value[0] for each in value):
            value = value[0]
        if type(value) is int and 0 < value < 2**53:
            return value, f"{key} in {where}"
    return None


def _of_latent(config: Config, where: str) -> dict[str, Size]:
    without, rotated = (config.get(key) for key in LATENT)
    found = {size: stated for size, keys in COMPRESSED.items() if (stated := _stated(config, keys, where))}
    if type(without) is int and type(rotated) is int and without >= 0 and rotated >= 1:
        found["head_dim"] = without + rotated, f"{' + '.join(LATENT)} in {where}; {rotated} of them are rotated"
    return found


def _add_from_shapes(found: dict[str, Size], group: Stack) -> None:
    """Sizes that the config does not state, each from the first shapes that say it."""
    q, (k, qkv, norm) = group.queries, (group.rows(role) for role in ("k", "qkv", "q_norm"))
    heads, hidden, name_of = _known(found, "heads"), _known(found, "hidden_size"), group.names.get
    of_queries = f"{q} rows of {name_of('q')}" + " without gates" * (q != group.rows("q"))
    _add(found, "head_dim", None if norm == q else norm, f"{norm} values in {name_of('q_norm')}")
    _add(found, "head_dim", _quotient(q, heads), f"{of_queries} / {heads} heads")
    if _quotient(qkv, _quotient(hidden, heads)):
        words = f"hidden size {hidden} / {heads} heads, and {qkv} rows of the projections"
        _add(found, "head_dim", _quotient(hidden, heads), words)
    width = _known(found, "head_dim")
    _add(found, "heads", _quotient(q, width), f"{of_queries} / head dim {width}")
    _add(found, "kv_heads", _quotient(k, width), f"{k} rows of {name_of('k')} / head dim {width}")
    if ".attention.query_key_value." in name_of("qkv", ""):
        _add(found, "kv_heads", heads or None, "as many as heads, as in GPT-NeoX")
    keys_and_values = (_quotient(qkv, width) or 0) - heads
    if heads and keys_and_values > 0:
        words = f"{qkv} rows of {name_of('qkv')} / head dim {width}"
        _add(found, "kv_heads", _quotient(keys_and_values, 2), words)
    columns = {shape[1] for role in ("q", "qkv") for shape in group.shapes[role] if len(shape) == 2}
    if len(columns) == 1 and not group.packed:
        _add(found, "hidden_size", columns.pop(), f"columns of {group.example}")


def _add(found: dict[str, Size], size: str, number: int | None, words: str) -> None:
    if number is not None:
        found.setdefault(size, (number, words))


def _quotient(number: int | None, divisor: int | None) -> int | None:
    """How often the divisor is in a number above 0, if that is a whole number."""
    return number // divisor if number and divisor and number % divisor == 0 else None


def _add_defaults(found: dict[str, Size], config: Config, group: Stack, where: str) -> None:
    heads, hidden = _known(found, "heads"), _known(found, "hidden_size")
    if heads and not any(group.rows(role) for role in ("q", "k", "qkv")):
        if not group.is_latent:
            _add(found, "head_dim", _quotient(hidden, heads), f"hidden size {hidden} / {heads} heads")
        if not any(config.get(key) for key in (*KEYS["kv_heads"], *FALCON)):
            _add(found, "kv_heads", heads, f"{where} states no other number than that of heads")
    _add(found, "layers", len(group.layers) or None, f"indexes of {group.prefix}")


def _conclusions(found: Mapping[str, Size], config: Config, group: Stack) -> list[Conclusion]:
    words = {size: size.replace("_", " ") for size in KEYS}
    conclusions = [(f"{words[size]}: {found[size][0]}", found[size][1]) for size in KEYS if size in found]
    missing = [size for size in KEYS if size not in found]
    if missing:
        lists = [key for size in missing for key in KEYS[size] if isinstance(config.get(key), (list, tuple))]
        why = f"{lists[0]} differs between layers" if lists else _why_not(group)
        conclusions.append(("other sizes: cannot tell", f"{', '.join(words[size] for size in missing)}: {why}"))
    return conclusions


def _why_not(group: Stack) -> str:
    if not group.format:
        return "no config that was read states it, and no tensor has a known name"
    q, k, qkv = group.queries, group.rows("k"), group.rows("qkv")
    if q and k:
        ratio = f", {q // k} head{'s' * (q > k)} for each key-value head" if q % k == 0 else ""
        return f"no config that was read states it; the projections have {q} rows of queries and {k} of keys{ratio}"
    if qkv:
        return f"no config that was read states it; the fused projection has {qkv} rows"
    packed = f"; the projections are packed ({', '.join(sorted(group.packed)[:3])})" if group.packed else ""
    return f"neither a config nor shapes say it{packed}"


# Layers with other rows than the first are compared only if all should be alike.
def _compare(found: Mapping[str, Size], group: Stack, alike: bool, gated: bool) -> tuple[list[Conclusion], list[str]]:
    agreeing, warnings = [], []
    for role, (sizes, rows_of, words) in ROWS.items():
        rows, numbers = group.all_rows(role), [_known(found, size) for size in sizes]
        # Where attention is latent, other projections may be of layers with linear attention.
        is_other = group.is_latent and role != "kv_a"
        if not rows or not all(numbers) or is_other or (len(rows) > 1 and not alike):
            continue
        expected, words = rows_of(*numbers), sub("^1 heads", "1 head", words.format(*numbers))
        accepted = {expected: words}
        if role == "q" and gated:
            accepted[2 * expected] = f"{words}, and a gate for each"
        elif role == "q_norm":
            accepted.setdefault(_known(found, "heads") * expected, f"{words}, for each head")
        agreeing += [(f"rows of {role}: {n}", f"{accepted[n]}, as {rows[n]} has") for n in rows if n in accepted]
        if wrong := [count for count in rows if count not in accepted]:
            sources = "; ".join(found[size][1] for size in sizes)
            warnings.append(f"{rows[wrong[0]]} has {wrong[0]} rows, and not {expected}, for {words} ({sources}).")
    hidden, source = found.get("hidden_size", (0, ""))
    for shape, name in (each for role in ("q", "k", "qkv", "kv_a", "q_a") for each in group.shapes[role].items()):
        if len(shape) == 2 and hidden not in (0, shape[1]) and not group.packed:
            warnings.append(f"{name} has {shape[1]} columns, and not {hidden}, the hidden size ({source}).")
            break
    return agreeing, warnings
