"""`Rotary`, the module that replaces a rotary module of transformers, and the format of its tables."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import re
import sys
import types
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedConfig

from rope_xp.configs.from_config import from_config
from rope_xp.embedding import RotaryEmbedding
from rope_xp.frequencies import DynamicNTKScaling, LongRopeScaling
from rope_xp.huggingface.guard import (
    DEVICE_ROUNDING,
    PatchedType,
    ReadOnlyAttributes,
    TensorMap,
    equal_before_casts,
    moved,
)
from rope_xp.kernels.reference import Rotation
from rope_xp.positions import grid, join, normalized
from rope_xp.types import Config, Values


def _patch_centers(rotary: "Rotary", pixels: Tensor) -> Tensor:
    """Centers of patches. In training, the function of transformers moves them at random."""
    centers = normalized(*_patch_counts(rotary.config, pixels), like=pixels.float())
    if not rotary.training:
        return centers
    move = sys.modules[type(rotary.original).__module__].augment_patches_center_coordinates
    amounts = {name: getattr(rotary.config, f"pos_embed_{name}") for name in ("shift", "jitter", "rescale")}
    return move(centers.T, **amounts).T


def _patch_counts(config: PreTrainedConfig, pixels: Tensor) -> tuple[int, int]:
    size = config.patch_size
    height, width = size if isinstance(size, (tuple, list)) else (size, size)
    return pixels.shape[-2] // height, pixels.shape[-1] // width


def _patch_cells(rotary: "Rotary", hidden_states: Tensor) -> Tensor:
    """Cells of an image of fixed size, and one last position for the whole image."""
    side = rotary.config.image_size // rotary.config.patch_size
    return join(grid(side, side, start=1, axes=(1, 0), like=hidden_states), 1)


# Classes that compute positions themselves, from the config and the input.
POSITION_FUNCTIONS: dict[str, Callable[["Rotary", Tensor], Tensor]] = {
    "DINOv3ViTRopePositionEmbedding": _patch_centers,
    "EomtDinov3RotaryEmbedding": _patch_centers,
    "Sapiens2RopePositionEmbedding": _patch_centers,
    "Llama4VisionRotaryEmbedding": _patch_cells,
}
# Names of classes whose positions have the position axes last, not first.
AXES_LAST_NAME = re.compile("Vision|ViT|MLCD")
# Configs without a model_type. For each: the model_type of its parent config, its key there, and the part.
PARENT_CONFIG = {
    "EvollaSaProtRotaryEmbedding": ("evolla", "protein_encoder_config", "protein_encoder"),
    "Qwen3OmniMoeCode2WavConfig": ("qwen3_omni_moe", "code2wav_config", "code2wav"),
}
# Keys with one value for each layer. A rotary module of one layer does not read them.
PER_LAYER_KEYS = ("layer_rope_theta", "no_rope_layers", "no_rope_layer_interval")

# Dtypes of positions that transformers casts to float32, and that `RotaryEmbedding.sincos` refuses.
DTYPES_CAST_TO_FLOAT32 = (torch.bool, torch.bfloat16, torch.float16)

TableMap: TypeAlias = Callable[[Tensor, int], Tensor]
# (cos, sin), or one complex table.
Pair: TypeAlias = tuple[Tensor, Tensor]
Tables: TypeAlias = Pair | Tensor

# How transformers repeats the column of a pair for its two channels. For each: the function that repeats the columns,
# and its inverse, which leaves one column for each pair. Both take the table and the number of blocks.
COLUMN_LAYOUTS: dict[str, tuple[TableMap, TableMap]] = {
    "halves": (lambda table, _: torch.cat((table, table), -1), lambda table, _: table[..., : table.shape[-1] // 2]),
    "neighbours": (lambda table, _: table.repeat_interleave(2, -1), lambda table, _: table[..., ::2]),
    "blocks": (
        lambda table, blocks: torch.cat([half for part in table.chunk(blocks, -1) for half in (part, part)], -1),
        lambda table, blocks: torch.cat(table.chunk(2 * blocks, -1)[::2], -1),
    ),
    "once": (lambda table, _: table, lambda table, _: table),
}


class TableFormat(NamedTuple):
    """How a rotary module of transformers lays out its tables, and which channels they rotate."""

    columns: str  # a key of COLUMN_LAYOUTS
    is_complex: bool  # one table, cos + i sin
    rotation: Rotation
    rotates_last: bool  # the last channels are rotated, not the first
    pairs: int

    def to_upstream(self, cos: Tensor, sin: Tensor) -> Tables:
        cos, sin = (COLUMN_LAYOUTS[self.columns][0](table, self.rotation.blocks) for table in (cos, sin))
        return torch.complex(cos, sin) if self.is_complex else (cos, sin)

    def to_columns(self, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        return tuple(COLUMN_LAYOUTS[self.columns][1](table, self.rotation.blocks) for table in (cos, sin))


# Attributes of a rotary module that its tables do not depend on.
UNGUARDED = ("training", "forward")


class Rotary(ReadOnlyAttributes, metaclass=PatchedType):
    """Replaces a rotary module. Its tables are exact, in float32 or float64, and in the format of transformers."""

    # It has no parameters and no buffers. The original stays as it is, but follows each move, cast and change of mode.
    # Its attributes can be read from this module, except its buffers. None of them can be set here.

    def __init__(self, original: Any, compat: Literal["transformers"] | None = "transformers"):
        super().__init__()
        self.training = False  # while tables are compared
        self.config: PreTrainedConfig = original.config
        self.formats: dict[str | None, TableFormat] = {}
        self._compat: Literal["transformers"] | None = compat
        self._originals = (original,)  # in a tuple, so that PyTorch does not make it a submodule
        nested = nested_layer_types(self.config)
        own = [layer_type for layer_type in nested if layer_type in getattr(original, "layer_types", nested)]
        self._ropes: dict[str | None, RotaryEmbedding] = {each: self._rope(each) for each in own or [None]}
        self._find_positions = POSITION_FUNCTIONS.get(type(original).__name__)
        has_axes = next(iter(self._ropes.values())).axes > 1
        self._axes_come_last = has_axes and bool(AXES_LAST_NAME.search(type(original).__name__))
        self._long_ropes = {layer_type: found for layer_type in self._ropes if (found := self._long_rope(layer_type))}
        self._initial_parameters = {
            layer_type: deepcopy(_rope_parameters(self.config, layer_type)) for layer_type in self._long_ropes
        }
        self.initial_buffers: dict[str, Tensor] = {}  # of the original, as computed from the config

    @property
    def original(self) -> Module:
        return self._originals[0]

    def __getattr__(self, name: str) -> Any:
        # A model may read other attributes of its rotary module, such as its sections.
        if name.startswith("_") or "_originals" not in vars(self):
            return super().__getattr__(name)
        if name in self.original._buffers:
            self._refuse_if_guarded(name, "read and edited")
        value = getattr(self.original, name)
        if isinstance(value, dict):
            return types.MappingProxyType(value)
        return tuple(value) if isinstance(value, list) else value

    def _guarded_module(self) -> Module:
        return self.original

    def _guarded_names(self) -> Collection[str]:
        """The attributes of the original on which its tables depend."""
        if "_originals" not in vars(self):
            return ()
        public = [name for name in vars(self.original) if not name.startswith("_") and name not in UNGUARDED]
        return [*public, *self.original._buffers]

    def forward(self, x: Tensor, position_ids: Tensor | None = None, layer_type: str | None = None) -> Tables:
        """The tables that the original makes, with exact values and in float32."""
        sin, cos = self._tables(x, self._positions(x, position_ids), layer_type)
        return self.formats[layer_type].to_upstream(cos, sin)

    def _positions(self, x: Tensor, position_ids: Any) -> Tensor:
        if self._find_positions is not None:
            return self._find_positions(self, x)
        if position_ids.dtype in DTYPES_CAST_TO_FLOAT32:
            position_ids = position_ids.float()
        return (position_ids.movedim(-1, 0) if self._axes_come_last else position_ids).to(x.device)

    def _tables(self, x: Tensor, positions: Tensor, layer_type: str | None) -> Pair:
        rope = self._ropes[layer_type]
        if layer_type in self._long_ropes:
            sin, cos = self._tables_by_length(x, positions, layer_type)
        else:
            sin, cos = rope.sincos(positions, like=x)
        return (-sin, cos) if rope.reverse else (sin, cos)

    def _tables_by_length(self, x: Tensor, positions: Tensor, layer_type: str | None) -> Pair:
        self._check_config_unchanged(layer_type)
        rope, (length, long_rope) = self._ropes[layer_type], self._long_ropes[layer_type]
        if isinstance(long_rope.scaling, DynamicNTKScaling):
            needed = int(positions.max()) + 1
            if needed > length:
                rope = long_rope.replace(scaling=replace(long_rope.scaling, seq_len=needed))
        tables = rope.sincos(positions, like=x)
        if isinstance(long_rope.scaling, LongRopeScaling):
            both = zip(long_rope.sincos(positions, like=x), tables)
            sin, cos = (torch.where(positions.max() >= length, *pair) for pair in both)
            return sin, cos
        return tables

    def _check_config_unchanged(self, layer_type: str | None) -> None:
        """Check that the config is as it was: transformers reads these parameters again in each call."""
        if _rope_parameters(self.config, layer_type) != self._initial_parameters[layer_type]:
            raise ValueError(
                "patch: rope_parameters must not change while the model is patched, because its rule depends on the "
                f"length; got others than when {type(self.original).__name__} was patched: unpatch the model first"
            )

    def _rope(self, layer_type: str | None, seq_len: int | None = None) -> RotaryEmbedding:
        config, part = _config_and_part(self.original)
        rope = from_config(config, part=part, layer_type=layer_type, seq_len=seq_len, compat=self._compat)
        if rope is None:
            raise ValueError("the config rotates no layer")
        return rope

    def _long_rope(self, layer_type: str | None) -> tuple[int, RotaryEmbedding] | None:
        """A length, and the rotation of sequences beyond it; None if the rule does not depend on the length."""
        scaling = self._ropes[layer_type].scaling
        if isinstance(scaling, LongRopeScaling):
            length = scaling.original_max_position_embeddings
        elif _rope_parameters(self.config, layer_type).get("rope_type") == "dynamic":
            length = self.config.max_position_embeddings
        else:
            return None
        return length, self._rope(layer_type, length + 1)

    def _apply(self, fn: TensorMap, recurse: bool = True) -> Self:
        self.original._apply(lambda buffer: moved(buffer, fn), recurse)
        return super()._apply(fn, recurse)

    def _save_to_state_dict(self, *args: Any) -> None:
        self.original._save_to_state_dict(*args)

    def _load_from_state_dict(self, state_dict: Mapping[str, Tensor], prefix: str, *args: Any) -> None:
        *_, errors = args
        for name in self.original._buffers.keys() - self.original._non_persistent_buffers_set:
            loaded = state_dict.get(prefix + name)
            if loaded is not None and not _is_equal(loaded, self.initial_buffers[name]):
                errors.append(
                    f"patch: {prefix}{name} must have the values of the config; got others: unpatch the model first"
                )
                return
        self.original._load_from_state_dict(state_dict, prefix, *args)

    def train(self, mode: bool = True) -> Self:
        self.original.train(mode)
        return super().train(mode)


def _is_equal(loaded: Tensor, initial: Tensor) -> bool:
    """Whether a buffer of a state dict is the one computed from the config, perhaps after a cast."""
    if loaded.is_meta or loaded.shape != initial.shape:
        return False
    return equal_before_casts(loaded, initial, DEVICE_ROUNDING * initial.abs())


def nested_layer_types(config: PreTrainedConfig) -> list[str]:
    return [name for name, value in _rope_parameters(config, None).items() if isinstance(value, Mapping)]


def _rope_parameters(config: PreTrainedConfig, layer_type: str | None) -> Config:
    parameters = getattr(config, "rope_parameters", None) or {}
    return parameters if layer_type is None else parameters[layer_type]


def _config_and_part(original: Any) -> tuple[Values, str | None]:
    """The config of a rotary module for `from_config`, and the part that it belongs to."""
    config: Values = original.config.to_dict()
    config = {key: value for key, value in config.items() if key not in PER_LAYER_KEYS}
    parent = PARENT_CONFIG.get(type(original).__name__) or PARENT_CONFIG.get(type(original.config).__name__)
    if parent is None:
        return config, None
    model_type, key, part = parent
    return {key: config, "model_type": model_type}, part
