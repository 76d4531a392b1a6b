"""Attention with a table of sines and cosines of its own, and no rotary module: GPT-J and CodeGen."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import inspect
from typing import Any

import torch

from rope_xp._core.embedding import RotaryEmbedding
from rope_xp._core.kernels.pair_rotation import Rotation
from rope_xp.huggingface._apply import ROTATION_TOLERANCE, copy_with_globals, names_used_by, rotate_by_tables
from rope_xp.huggingface._float32_on_cpu import FLOAT32_ON_CPU, float32_on_cpu
from rope_xp.huggingface._guard import GuardedModule, class_path, equal_before_casts, subclass_of
from rope_xp.huggingface._rotary import TABLE_TOLERANCE, TableFormat, is_of_transformers

ATTENTION_CLASSES = ("GPTJAttention", "CodeGenAttention")
APPLY_FUNCTION, TABLE_BUFFER = "apply_rotary_pos_emb", "embed_positions"
ROW_ATTRIBUTE = "_rows"  # the rewritten forward reads this in place of the table
FIXED_OPTIONS: dict[str, Any] = {"layout": "interleaved", "base": 10_000.0}  # no config changes them
DIGIT_BASE = 256  # numbers below it are exact in bfloat16 and float16


def holds_table(module: Any) -> bool:
    return any(cls.__name__ in ATTENTION_CLASSES for cls in type(module).__mro__)


def class_of(who: str, module: Any) -> Any:
    """The class of an attention module with exact tables, whose forward has the same code.

    The forward looks up row numbers in place of sines and cosines. A row number has two digits of base 256, which casts
    to 16 bits leave exact. The number of rows stays the same. The table cannot be read or edited while the model is
    patched.
    """
    try:
        with float32_on_cpu():
            return _patched_class(module)
    except Exception as error:  # unknown code may raise anything
        raise ValueError(
            f"{who}: every module must be one that can be patched; got {class_path(module)}: {error}"
        ) from error


def _patched_class(module: Any) -> Any:
    cls = type(module)
    forward: Any = cls.forward
    if not is_of_transformers(forward):
        raise ValueError("its forward is not that of transformers")
    options: dict[str, Any] = {"head_dim": module.head_dim, "rotary_dim": module.pos_embd_dim}
    rope = RotaryEmbedding(**options, **FIXED_OPTIONS)
    table_format = TableFormat("once", False, Rotation("interleaved", "interleaved"), False, rope.pairs)
    table = getattr(module, TABLE_BUFFER)
    rows = torch.arange(len(table))
    if len(rows) > DIGIT_BASE**2:
        raise ValueError(f"its table has more than {DIGIT_BASE**2} rows")
    exact = torch.cat(rope.sincos(rows, like=torch.zeros(1)), -1)
    if not equal_before_casts(table, exact, TABLE_TOLERANCE * (1 + rows[:, None] / 512)):
        raise ValueError("its table does not follow from head_dim and rotary_dim")
    if not (error := _largest_difference(forward.__globals__[APPLY_FUNCTION], table_format)) <= ROTATION_TOLERANCE:
        raise ValueError(f"{APPLY_FUNCTION} differs from that of rope_xp by {error:.2g}")

    def apply(tensor, high, low):
        row = (DIGIT_BASE * high.to(torch.int64) + low.to(torch.int64))[..., 0]
        sin, cos = rope.sincos(row, like=tensor)
        return rotate_by_tables([tensor], cos[:, :, None], sin[:, :, None], table_format)[0]

    methods = {
        name: _looking_up_rows(function, {APPLY_FUNCTION: apply})
        for name, function in inspect.getmembers(cls, inspect.isfunction)
        if name != "__init__" and {APPLY_FUNCTION, TABLE_BUFFER} & names_used_by(function)
    }
    return subclass_of(
        cls, GuardedModule, **methods, **{ROW_ATTRIBUTE: property(_row_digits, lambda _module, _value: None)}
    )


def _looking_up_rows(function: Any, found: dict[str, Any]) -> Any:
    """A copy of a function that reads `ROW_ATTRIBUTE` in place of the table."""
    new = copy_with_globals(function, found, function.__closure__ or ())
    names = tuple(ROW_ATTRIBUTE if name == TABLE_BUFFER else name for name in new.__code__.co_names)
    new.__code__ = new.__code__.replace(co_names=names)
    return new


def _row_digits(module: Any) -> Any:
    """The number of each row of the table, in two digits."""
    table = module._buffers[TABLE_BUFFER]
    rows = torch.arange(len(table), device=table.device)
    return torch.stack((rows // DIGIT_BASE, rows % DIGIT_BASE), -1)


def _largest_difference(original: Any, table_format: TableFormat) -> float:
    """Between the results of transformers' apply function and of `rotate_by_tables`, for random arrays."""
    random = torch.Generator().manual_seed(0)
    angles = torch.rand(2, 5, table_format.pairs, generator=random, **FLOAT32_ON_CPU) * 6
    x = torch.rand(2, 5, 3, 2 * table_format.pairs, generator=random, **FLOAT32_ON_CPU) * 1.4 - 0.7
    sin, cos = angles.sin(), angles.cos()
    rotated = rotate_by_tables([x], cos[:, :, None], sin[:, :, None], table_format)[0]
    return float((rotated - original(x, sin, cos)).abs().max())
