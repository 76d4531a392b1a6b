"""`Rotary`, which replaces a rotary module of transformers after their tables are found to be equal."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import inspect
import re
import sys
import types
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from rope_xp._core.channels import READ_WRITE
from rope_xp._core.config import from_config
from rope_xp._core.embedding import RotaryEmbedding
from rope_xp._core.kernels.pair_rotation import Rotation
from rope_xp.frequencies import DynamicNTKScaling, LongRopeScaling
from rope_xp.huggingface._float32_on_cpu import float32_on_cpu
from rope_xp.huggingface._guard import (
    DEVICE_ROUNDING,
    PatchedType,
    ReadOnlyAttributes,
    ReplacedRotary,
    class_path,
    equal_before_casts,
)
from rope_xp.positions import grid, join, normalized

# Names of classes that are about rotation, and those among them that are attention.
ROTARY_NAME, ATTENTION_NAME = re.compile("Rotary|RoPE|Rope|RoFormerSinusoidal"), re.compile("Attention|Layer$")

# Classes that cannot be patched, with the reason.
REFUSED = {
    "ClvpRotaryPositionalEmbedding": "it counts positions itself, and also rotates values",
    "EfficientLoFTRRotaryEmbedding": "it takes a feature map, not positions",
    "EsmFold2RotaryEmbedding": "it takes coordinates of atoms, not positions",
    "HunYuanVLRotaryEmbedding": "it is not a rotation: the channels of a pair follow different axes",
    "MistralLarge4TextRotaryEmbedding": "its frequencies are multiplied by weights",
    "MusicFlamingoRotaryEmbedding": "it takes times and multiplies them by windows",
    "RoFormerSinusoidalPositionalEmbedding": "its tables are the weights of an embedding",
    "SeamlessM4TConformerRotaryPositionalEmbedding": "it counts positions itself, and a method applies its tables",
    "VJEPA2RopeAttention": "it is not a rotation: its tables are in layout half, its pairs interleaved",
    "Wav2Vec2BertRotaryPositionalEmbedding": "it counts positions itself, and a method applies its tables",
    "Wav2Vec2ConformerRotaryPositionalEmbedding": "it counts positions itself, and a method applies its tables",
}


def _patch_centers(rotary: Any, pixels: Any) -> Any:
    """Centers of patches. In training they are moved at random, by transformers' function and random numbers."""
    centers = normalized(*_patch_counts(rotary.config, pixels), like=pixels.float())
    if not rotary.training:
        return centers
    move = sys.modules[type(rotary.original).__module__].augment_patches_center_coordinates
    by = {name: getattr(rotary.config, f"pos_embed_{name}") for name in ("shift", "jitter", "rescale")}
    return move(centers.movedim(0, -1), **by).movedim(-1, 0)


def _patch_counts(config: Any, pixels: Any) -> tuple[int, int]:
    """The numbers of patches in a column and in a row."""
    size = config.patch_size
    high, wide = size if isinstance(size, (tuple, list)) else (size, size)
    return pixels.shape[-2] // high, pixels.shape[-1] // wide


def _patch_cells(rotary: Any, hidden_states: Any) -> Any:
    """Cells of an image of fixed size, and one last position for the whole image."""
    side = rotary.config.image_size // rotary.config.patch_size
    return join(grid(side, side, start=1, axes=(1, 0), like=hidden_states), 1)


# Classes that compute positions themselves, from the config and the input.
POSITION_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "DINOv3ViTRopePositionEmbedding": _patch_centers,
    "EomtDinov3RotaryEmbedding": _patch_centers,
    "Sapiens2RopePositionEmbedding": _patch_centers,
    "Llama4VisionRotaryEmbedding": _patch_cells,
}
# Names of classes whose positions have the position axes last, not first.
AXES_LAST_NAME = re.compile("Vision|ViT|MLCD")
BATCHED_POSITIONS = ("Gemma4VisionRotaryEmbedding",)  # classes whose positions are (batch, tokens, axes)
# Configs without a model_type: the model_type of the config that contains them, their key there, and the part.
OWNING_CONFIG = {
    "EvollaSaProtRotaryEmbedding": ("evolla", "protein_encoder_config", "protein_encoder"),
    "Qwen3OmniMoeCode2WavConfig": ("qwen3_omni_moe", "code2wav_config", "code2wav"),
}
# Keys with one value for each layer, which a rotary module of one layer must not read.
PER_LAYER_KEYS = ("layer_rope_theta", "no_rope_layers", "no_rope_layer_interval")

# Positions at which tables are compared. Below 512, float32 phases have an error of at most 512 * 2**-24 = 3e-5. At the
# far position, only pairs with a phase below 128 are compared. Their frequencies are rounded by up to 4 * 2**-24, so
# the error of the phase is again at most 3e-5.
NEAR_POSITIONS, FAR_POSITION, SLOW_PHASE = (0, 1, 511, 3, 8, 8, 127, 64, 300, 257), 2**20, 128
TABLE_TOLERANCE = 5e-5
# Dtypes of positions that transformers casts to float32, and that `RotaryEmbedding.sincos` refuses.
DTYPES_CAST_TO_FLOAT32 = (torch.bool, torch.bfloat16, torch.float16)

# How transformers repeats the column of a pair for its two channels, and the inverse: one column for each pair.
COLUMN_LAYOUTS: dict[str, tuple[Callable[[Any, int], Any], Callable[[Any, int], Any]]] = {
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

    def to_upstream(self, cos: Any, sin: Any) -> Any:
        """Tables in the format of transformers, from tables with one column for each pair."""
        cos, sin = (COLUMN_LAYOUTS[self.columns][0](table, self.rotation.blocks) for table in (cos, sin))
        return torch.complex(cos, sin) if self.is_complex else (cos, sin)

    def to_columns(self, cos: Any, sin: Any) -> tuple[Any, Any]:
        """Tables with one column for each pair, from tables in the format of transformers."""
        return tuple(COLUMN_LAYOUTS[self.columns][1](table, self.rotation.blocks) for table in (cos, sin))


# Attributes of a rotary module that its tables do not depend on.
UNGUARDED = ("training", "forward")


class Rotary(ReadOnlyAttributes, metaclass=PatchedType):
    """Replaces a rotary module. Its tables are exact, in transformers' format, and float32 (float64 for float64 `x`).

    It has no parameters and no buffers. The original is not a submodule, but follows each move, cast and change of
    mode. The attributes of the original can be read from this module, except its buffers. None of them can be set.
    """

    def __init__(self, original: Any):
        super().__init__()
        self.training = False  # while tables are compared
        self.config = original.config
        self.formats: dict[str | None, TableFormat] = {}
        self._originals = (original,)  # in a tuple, so that PyTorch does not make it a submodule
        self._ropes = {layer_type: self._rope(layer_type) for layer_type in _layer_types(original)}
        self._find_positions = POSITION_FUNCTIONS.get(type(original).__name__)
        several = next(iter(self._ropes.values())).axes > 1
        self._axes_come_last = several and bool(AXES_LAST_NAME.search(type(original).__name__))
        self._long_ropes = {layer_type: each for layer_type in self._ropes if (each := self._long_rope(layer_type))}
        self._config_blocks = {layer_type: deepcopy(_block(self.config, layer_type)) for layer_type in self._long_ropes}
        self.initial_buffers: dict[str, Any] = {}  # of the original, as computed from the config

    @property
    def original(self) -> Any:
        return self._originals[0]

    def __getattr__(self, name: str) -> Any:
        # Other attributes that a model reads from its rotary module, such as its sections.
        if name.startswith("_") or "_originals" not in vars(self):
            return super().__getattr__(name)
        value = getattr(self.original, name)
        if isinstance(value, dict):
            return types.MappingProxyType(value)
        return tuple(value) if isinstance(value, list) else value

    def _guarded_module(self) -> Any:
        return vars(self).get("_originals", (self,))[0]

    def guarded_names(self) -> Collection[str]:
        """The attributes of the original on which its tables depend."""
        public = [name for name in vars(self.original) if not name.startswith("_") and name not in UNGUARDED]
        return frozenset([*public, *self.original._buffers])

    def forward(self, x: Any, position_ids: Any = None, layer_type: str | None = None) -> Any:
        """The tables that the original makes, with exact values and in float32."""
        sin, cos = self._tables(x, self._positions(x, position_ids), layer_type)
        return self.formats[layer_type].to_upstream(cos, sin)

    def _positions(self, x: Any, position_ids: Any) -> Any:
        if self._find_positions is not None:
            return self._find_positions(self, x)
        if position_ids.dtype in DTYPES_CAST_TO_FLOAT32:
            position_ids = position_ids.float()
        return (position_ids.movedim(-1, 0) if self._axes_come_last else position_ids).to(x.device)

    def _tables(self, x: Any, positions: Any, layer_type: str | None) -> Any:
        rope = self._ropes[layer_type]
        length, long_rope = self._long_ropes.get(layer_type, (0, rope))
        # transformers reads these parameters again in each call.
        if layer_type in self._long_ropes and _block(self.config, layer_type) != self._config_blocks[layer_type]:
            raise ValueError(
                "patch: rope_parameters must not change while a model is patched whose rule depends on the length; "
                f"got others than when {type(self.original).__name__} was patched: unpatch it first"
            )
        if isinstance(long_rope.scaling, DynamicNTKScaling):
            needed = int(positions.max()) + 1
            if needed > length:
                rope = long_rope.replace(scaling=replace(long_rope.scaling, seq_len=needed))
        sin, cos = rope.sincos(positions, like=x)
        if isinstance(long_rope.scaling, LongRopeScaling):
            both = zip(long_rope.sincos(positions, like=x), (sin, cos))
            sin, cos = (torch.where(positions.max() >= length, *pair) for pair in both)
        return (-sin, cos) if rope.reverse else (sin, cos)

    def _rope(self, layer_type: str | None, seq_len: int | None = None) -> RotaryEmbedding:
        """The rotation that transformers makes of the config, with its known bugs."""
        config, part = _config_and_part(self.original)
        rope = from_config(config, part=part, layer_type=layer_type, seq_len=seq_len, compat="transformers")
        if rope is None:
            raise ValueError("the config rotates no layer")
        return rope

    def _long_rope(self, layer_type: str | None) -> tuple[int, RotaryEmbedding] | None:
        """A length, and the rotation of sequences beyond it; None if the rule does not depend on the length."""
        scaling = self._ropes[layer_type].scaling
        if isinstance(scaling, LongRopeScaling):
            length = scaling.original_max_position_embeddings
        elif _block(self.config, layer_type).get("rope_type") == "dynamic":
            length = self.config.max_position_embeddings
        else:
            return None
        return length, self._rope(layer_type, length + 1)

    def _apply(self, fn: Any, recurse: bool = True) -> "Rotary":
        self.original._apply(fn, recurse)
        return super()._apply(fn, recurse)

    def _save_to_state_dict(self, *args: Any) -> None:
        self.original._save_to_state_dict(*args)

    def _load_from_state_dict(self, *args: Any) -> None:
        self.original._load_from_state_dict(*args)

    def train(self, mode: bool = True) -> "Rotary":
        self.original.train(mode)
        return super().train(mode)


def is_rotary(module: Any) -> bool:
    """Whether a module is a rotary module by the names of its classes, or attention that `REFUSED` names."""
    names = [cls.__name__ for cls in type(module).__mro__ if ROTARY_NAME.search(cls.__name__)]
    return any(not ATTENTION_NAME.search(name) or name in REFUSED for name in names)


def forward_attributes(module: Any) -> list[str]:
    """The attributes of a module that hold the forward of its class; hooks of accelerate set them and leave them."""
    attributes, method = vars(module), type(module).forward
    names = [name for name in ("forward", "_old_forward") if getattr(attributes.get(name), "__func__", None) is method]
    if "forward" in attributes and not names:
        raise ValueError("its forward is not the forward of its class")
    return names


def is_of_transformers(function: Any) -> bool:
    return isinstance(function, types.FunctionType) and function.__module__.startswith("transformers.")


def rotary_of(who: str, original: Any) -> Rotary:
    """The `Rotary` module that replaces a rotary module, once their tables are found to be equal."""
    try:
        with float32_on_cpu():
            return _checked_rotary(original)
    except Exception as error:  # unknown code may raise anything
        raise ValueError(
            f"{who}: every rotary module must be one that can be replaced; got {class_path(original)}: {error}"
        ) from error


def _checked_rotary(original: Any) -> Rotary:
    name = type(original).__name__
    if isinstance(original, ReplacedRotary):
        raise ValueError("it belongs to another patched model")
    if name in REFUSED:
        raise ValueError(REFUSED[name])
    takes = tuple(inspect.signature(type(original).forward).parameters)[1:]
    if name not in POSITION_FUNCTIONS and takes not in (("x", "position_ids"), ("x", "position_ids", "layer_type")):
        raise ValueError(f"its forward takes ({', '.join(takes)}), and not positions")
    forward_attributes(original)
    if not is_of_transformers(type(original).forward):
        raise ValueError("its forward is not that of transformers")
    if not hasattr(original, "config"):
        raise ValueError("it has no config")
    if any(True for _ in original.parameters()):
        raise ValueError("it holds parameters")
    if any(hooks for key, hooks in vars(original).items() if key.endswith("_hooks")):
        raise ValueError("it has hooks")
    rotary = Rotary(original)
    uncast = _uncast_copy(rotary)
    for layer_type in rotary._ropes:
        formats = {_table_format(rotary, uncast, layer_type, length) for length in _lengths(rotary, layer_type)}
        if len(formats) > 1:
            raise ValueError("the format of its tables depends on the length")
        rotary.formats[layer_type] = formats.pop()
    rotary.training = original.training
    return rotary


def _uncast_copy(rotary: Rotary) -> Any:
    """A copy of a rotary module that calls may change, with its buffers as they were before any cast."""
    original = rotary.original
    fresh = type(original)(original.config).eval()
    copy = deepcopy(original, {id(original.config): original.config}).cpu().eval()
    for layer_type in rotary._ropes:  # a call with one token brings both into the same state
        for module in (fresh, copy):
            _example_tables(rotary, module, layer_type, 1)
    for name, buffer in list(fresh.named_buffers(remove_duplicate=False)):
        if not equal_before_casts(copy.get_buffer(name), buffer, DEVICE_ROUNDING * buffer.abs()):
            raise ValueError(f"its {name} is not that of its config")
        copy.register_buffer(name, buffer)
        rotary.initial_buffers[name] = buffer
    return copy


def _example_tables(rotary: Rotary, module: Any, layer_type: str | None, length: int | None) -> Any:
    """An example input, its positions, and the tables that transformers makes of them, without hooks of accelerate."""
    x, positions = _example(rotary, rotary._ropes[layer_type], length)
    given = [each for each in (x, positions, layer_type) if each is not None]
    return x, positions, type(module).forward(module, *given)


def _table_format(rotary: Rotary, uncast: Any, layer_type: str | None, length: int | None) -> TableFormat:
    """The format of transformers' tables, once they are found to be equal for sequences of this length."""
    rope: Any = rotary._ropes[layer_type]
    x, positions, made_tables = _example_tables(rotary, uncast, layer_type, length)
    is_complex = isinstance(made_tables, torch.Tensor)
    if not is_complex and (not isinstance(made_tables, tuple) or len(made_tables) != 2):
        raise ValueError(f"its tables must be (cos, sin) or complex; got {type(made_tables).__name__}")
    sin, cos = rotary._tables(x, rotary._positions(x, positions), layer_type)
    original_tables = (made_tables.real, made_tables.imag) if is_complex else made_tables
    slow = torch.zeros(rope.pairs)
    if length is None and rope.axes == 1 and positions is not None:
        slow = torch.tensor(rope.inv_freq).abs() * FAR_POSITION < SLOW_PHASE
    errors = {
        name: _largest_difference(repeated, rope, slow, (cos, sin), original_tables)
        for name, (repeated, _) in COLUMN_LAYOUTS.items()
    }
    name = min(errors, key=lambda name: errors[name])
    if not errors[name] <= TABLE_TOLERANCE * max(1.0, rope.attention_factor):
        raise ValueError(f"its tables differ from those of its config by {errors[name]:.2g}")
    rotation = Rotation(*READ_WRITE[rope.layout], 0, rope.blocks, rope.reverse)
    if rope.first_channel not in (0, rope.head_dim - 2 * rope.pairs):
        raise ValueError("it rotates neither the first nor the last channels")
    return TableFormat(name, is_complex, rotation, rope.first_channel > 0, rope.pairs)


def _largest_difference(
    repeated: Any, rope: RotaryEmbedding, slow: Any, exact_tables: Any, original_tables: Any
) -> float:
    """The largest difference at `NEAR_POSITIONS`, and for slow pairs at the last one; infinite for other widths."""
    found = []
    for exact, original in zip(exact_tables, original_tables):
        exact = repeated(exact, rope.blocks)
        if exact.shape[-1] != original.shape[-1] or exact.numel() != original.numel():
            return float("inf")
        difference = (exact - original.reshape(exact.shape)).abs()
        far = difference[..., -1, :] * repeated(slow, rope.blocks)
        found += [difference[..., : len(NEAR_POSITIONS), :].max(), far.max()]
    return float(torch.stack(found).max())  # NaN if any difference is


def _example(rotary: Rotary, rope: RotaryEmbedding, length: int | None) -> tuple[Any, Any]:
    """An input and positions to call a rotary module with.

    These are `NEAR_POSITIONS`, and then the last position of a sequence of this length, or `FAR_POSITION`.
    """
    if rotary._find_positions is not None:
        side = getattr(rotary.config, "patch_size", 1)
        return torch.zeros(1, 3, 2 * side, 5 * side), None
    last = FAR_POSITION if length is None else length - 1
    rows = [[min(position * (axis + 1) % 512, last) for position in NEAR_POSITIONS] for axis in range(rope.axes)]
    axes = [torch.tensor([*row, last]) for row in rows]
    x = torch.zeros(1)
    if rotary._axes_come_last:
        ids = torch.stack(axes, -1)
        return x, ids[None] if type(rotary.original).__name__ in BATCHED_POSITIONS else ids
    return x, torch.stack(axes)[:, None] if rope.axes > 1 else axes[0][None]


def _lengths(rotary: Rotary, layer_type: str | None) -> list[int | None]:
    """The lengths at which tables are compared: up to and beyond the length where the rule changes."""
    if layer_type not in rotary._long_ropes:
        return [None]
    length, long_rope = rotary._long_ropes[layer_type]
    return [length, 2 * length + 1 if isinstance(long_rope.scaling, DynamicNTKScaling) else length + 1]


def _layer_types(original: Any) -> list[str | None]:
    """The layer types of a module that have rotary parameters of their own; [None] if there are none."""
    blocks = getattr(original.config, "rope_parameters", None) or {}
    nested = [layer_type for layer_type, block in blocks.items() if isinstance(block, Mapping)]
    return [layer_type for layer_type in nested if layer_type in getattr(original, "layer_types", nested)] or [None]


def _block(config: Any, layer_type: str | None) -> Mapping[str, Any]:
    blocks = getattr(config, "rope_parameters", None) or {}
    return blocks if layer_type is None else blocks[layer_type]


def _config_and_part(original: Any) -> tuple[dict[str, Any], str | None]:
    """The config of a rotary module for `from_config`, and the part that it belongs to."""
    config: dict[str, Any] = {key: each for key, each in original.config.to_dict().items() if key not in PER_LAYER_KEYS}
    part = None
    within = OWNING_CONFIG.get(type(original).__name__) or OWNING_CONFIG.get(type(original.config).__name__)
    if within is not None:
        whole, key, part = within
        config = {key: config, "model_type": whole}
    return config, part
