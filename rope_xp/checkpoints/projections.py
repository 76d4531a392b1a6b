"""Find the projections of queries and keys by the names of tensors, and the format that has such names."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rope_xp.checkpoints.safetensors_file import Tensor
from rope_xp.types import Config

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
    """The parts of a name; None if it has no layers."""
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
