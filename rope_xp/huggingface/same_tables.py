"""Whether a rotary module of transformers can be replaced: its tables must equal those of a `Rotary` module."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import inspect
import re
from copy import deepcopy
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Module

from rope_xp.embedding import RotaryEmbedding
from rope_xp.frequencies import DynamicNTKScaling
from rope_xp.huggingface.guard import (
    DEVICE_ROUNDING,
    equal_before_casts,
    forward_attributes,
    is_of_transformers,
    naming_errors,
)
from rope_xp.huggingface.rotary import COLUMN_LAYOUTS, POSITION_FUNCTIONS, Pair, Rotary, TableFormat, TableMap
from rope_xp.kernels.reference import Rotation
from rope_xp.layouts import READ_WRITE

# Patterns: names of classes with rotary code, and names of attention classes among them.
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

# Positions at which tables are compared. Below 512, float32 phases have an error of at most 512 * 2**-24 = 3e-5. At the
# far position, only pairs with a phase below 128 are compared. Their frequencies are rounded by up to 4 * 2**-24, so
# the error of the phase is again at most 3e-5.
NEAR_POSITIONS, FAR_POSITION, SLOW_PHASE = (0, 1, 511, 3, 8, 8, 127, 64, 300, 257), 2**20, 128
TABLE_TOLERANCE = 5e-5

# Classes whose positions are (batch, tokens, axes).
BATCHED_POSITIONS = ("Gemma4VisionRotaryEmbedding",)
# Parameters of the forward of a rotary module.
FORWARD_PARAMETERS = (("x", "position_ids"), ("x", "position_ids", "layer_type"))


def is_rotary(module: object) -> bool:
    """Whether a module's class, or a base class, has the name of a rotary module, or of attention in `REFUSED`."""
    return is_rotary_class(type(module))


def is_rotary_class(cls: type) -> bool:
    names = [each.__name__ for each in cls.__mro__ if ROTARY_NAME.search(each.__name__)]
    return any(not ATTENTION_NAME.search(name) or name in REFUSED for name in names)


def rotary_of(original: Module) -> Rotary:
    """The `Rotary` module that replaces a rotary module, after their tables are found to be equal."""
    with naming_errors("every rotary module must be one that can be replaced", original):
        return _checked_rotary(original)


def _checked_rotary(original: Module) -> Rotary:
    """A `Rotary` module that reproduces known bugs of transformers, or one without them if this version fixed them."""
    _check_replaceable(original)
    errors = []
    for compat in ("transformers", None):
        try:
            return _rotary_with_equal_tables(original, compat)
        except Exception as error:  # unknown code may raise anything
            errors.append(error)
    raise errors[0]


def _check_replaceable(original: Module) -> None:
    name = type(original).__name__
    if name in REFUSED:
        raise ValueError(REFUSED[name])
    parameters = tuple(inspect.signature(type(original).forward).parameters)[1:]
    if name not in POSITION_FUNCTIONS and parameters not in FORWARD_PARAMETERS:
        raise ValueError(f"its forward takes ({', '.join(parameters)}), and not positions")
    forward_attributes(original)
    if not is_of_transformers(type(original).forward):
        raise ValueError("its forward is not that of transformers")
    if not hasattr(original, "config"):
        raise ValueError("it has no config")
    if [*original.parameters()]:
        raise ValueError("it holds parameters")
    if any(hooks for key, hooks in vars(original).items() if key.endswith("_hooks")):
        raise ValueError("it has hooks")


def _rotary_with_equal_tables(original: Module, compat: Literal["transformers"] | None) -> Rotary:
    """A `Rotary` module, after the tables of each layer type are found to be equal."""
    rotary = Rotary(original, compat)
    uncast = _uncast_copy(rotary)
    for layer_type in rotary._ropes:
        formats = {_table_format(rotary, uncast, layer_type, length) for length in _lengths(rotary, layer_type)}
        if len(formats) > 1:
            raise ValueError("the format of its tables depends on the length")
        rotary.formats[layer_type] = formats.pop()
    rotary.training = original.training
    return rotary


def _uncast_copy(rotary: Rotary) -> Module:
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


def _example_tables(
    rotary: Rotary, module: Module, layer_type: str | None, length: int | None
) -> tuple[Tensor, Tensor | None, Any]:
    """An example input, its positions, and the tables that transformers makes of them, without hooks of accelerate."""
    x, positions = _example(rotary, rotary._ropes[layer_type], length)
    given = [each for each in (x, positions, layer_type) if each is not None]
    return x, positions, type(module).forward(module, *given)


def _table_format(rotary: Rotary, uncast: Module, layer_type: str | None, length: int | None) -> TableFormat:
    """The format of transformers' tables, after they are found to be equal for sequences of this length."""
    rope = rotary._ropes[layer_type]
    x, positions, tables = _example_tables(rotary, uncast, layer_type, length)
    is_complex = isinstance(tables, Tensor)
    if not is_complex and (not isinstance(tables, tuple) or len(tables) != 2):
        raise ValueError(f"its tables must be (cos, sin) or complex; got {type(tables).__name__}")
    sin, cos = rotary._tables(x, rotary._positions(x, positions), layer_type)
    is_far = length is None and rope.axes == 1
    columns = _equal_columns(rope, is_far, (cos, sin), (tables.real, tables.imag) if is_complex else tables)
    rotation = Rotation(*READ_WRITE[rope.layout], 0, rope.blocks, rope.reverse)
    return TableFormat(columns, is_complex, rotation, rope.first_channel > 0, rope.pairs)


def _equal_columns(rope: RotaryEmbedding, is_far: bool, exact_tables: Pair, original_tables: Pair) -> str:
    """The key of `COLUMN_LAYOUTS` with which the tables are equal. With `is_far`, the last row is `FAR_POSITION`."""
    slow = torch.zeros(rope.pairs)
    if is_far:
        slow = torch.tensor(rope.inv_freq).abs() * FAR_POSITION < SLOW_PHASE
    errors = {
        name: _largest_difference(repeated, rope, slow, exact_tables, original_tables)
        for name, (repeated, _) in COLUMN_LAYOUTS.items()
    }
    name = min(errors, key=lambda name: errors[name])
    if not errors[name] <= TABLE_TOLERANCE * max(1.0, rope.attention_factor or 1.0):
        raise ValueError(f"its tables differ from those of its config by {errors[name]:.2g}")
    return name


def _largest_difference(
    repeated: TableMap, rope: RotaryEmbedding, slow: Tensor, exact_tables: Pair, original_tables: Pair
) -> float:
    """The largest difference at `NEAR_POSITIONS`, or of slow pairs in the last row. Infinite if shapes differ."""
    found = []
    for exact, original in zip(exact_tables, original_tables):
        exact = repeated(exact, rope.blocks)
        if exact.numel() != original.numel():
            return float("inf")
        difference = (exact - original.reshape(exact.shape)).abs()
        far = difference[..., -1, :] * repeated(slow, rope.blocks)
        found += [difference[..., : len(NEAR_POSITIONS), :].max(), far.max()]
    return float(torch.stack(found).max())  # NaN if any difference is NaN


def _example(rotary: Rotary, rope: RotaryEmbedding, length: int | None) -> tuple[Tensor, Tensor | None]:
    """An input, and as positions `NEAR_POSITIONS`, then the last one of this length or `FAR_POSITION`."""
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
    """The lengths for which tables are compared. If the rule changes at a length: that length, and a greater one."""
    if layer_type not in rotary._long_ropes:
        return [None]
    length, long_rope = rotary._long_ropes[layer_type]
    return [length, 2 * length + 1 if isinstance(long_rope.scaling, DynamicNTKScaling) else length + 1]
