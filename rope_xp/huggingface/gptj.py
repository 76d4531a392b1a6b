"""Attention that holds its own table of sines and cosines, without a rotary module: GPT-J and CodeGen."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import inspect
from typing import Any

import torch

from rope_xp.embedding import RotaryEmbedding
from rope_xp.huggingface.apply import ROTATION_TOLERANCE, apply_function, known_signature, largest_difference
from rope_xp.huggingface.contexts import comparison
from rope_xp.huggingface.guard import ReadOnlyAttributes, equal_before_casts, is_of_transformers, moved, subclass_of
from rope_xp.huggingface.rewrite import copy_with_globals, names_used_by
from rope_xp.huggingface.rotary import TableFormat
from rope_xp.huggingface.same_tables import TABLE_TOLERANCE
from rope_xp.kernels.reference import Rotation
from rope_xp.types import Values

ATTENTION_CLASSES = ("GPTJAttention", "CodeGenAttention")
APPLY_FUNCTION, TABLE_BUFFER = "apply_rotary_pos_emb", "embed_positions"
ROW_ATTRIBUTE = "_rows"  # the rewritten forward reads this in place of the table
FIXED_OPTIONS: Values = {"layout": "interleaved", "base": 10_000.0}  # no config changes them
DIGIT_BASE = 256  # numbers below it are exact in bfloat16 and float16


class TableGuard(ReadOnlyAttributes):
    """A base class of patched attention. Its table cannot be read or edited. Casts reach it, and keep its values."""

    def _guarded_names(self) -> tuple[str, ...]:
        return () if "_is_replica" in vars(self) else (TABLE_BUFFER,)  # data parallelism sets buffers of replicas

    def __getattr__(self, name: str) -> Any:
        self._refuse_if_guarded(name, "read and edited")  # Python calls this method for buffers and modules only
        return super().__getattr__(name)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        table = self._buffers[TABLE_BUFFER]
        return super()._apply(lambda tensor: moved(tensor, fn) if tensor is table else fn(tensor), recurse)


def holds_table(module: Any) -> bool:
    return any(cls.__name__ in ATTENTION_CLASSES for cls in type(module).__mro__)


def exact_table_class(module: object) -> Any:
    """The class that gives exact tables to an attention module. Its forward has the same code.

    The forward looks up row numbers in place of sines and cosines. A row number has two digits of base 256, which are
    exact even after a cast to 16 bits. The number of rows stays the same. The table cannot be read or edited while the
    model is patched.
    """
    with comparison("every module must be one that can be patched", module):
        if not is_of_transformers(type(module).forward):
            raise ValueError("its forward is not that of transformers")
        options: Values = {"head_dim": module.head_dim, "rotary_dim": module.pos_embd_dim}
        rope = RotaryEmbedding(**options, **FIXED_OPTIONS)
        _check_table(module, rope)
        return _patched_class(type(module), rope)


def _check_table(module: object, rope: RotaryEmbedding) -> None:
    """Check that the table of a module has the sines and cosines of `rope`, and not too many rows."""
    table = getattr(module, TABLE_BUFFER)
    rows = torch.arange(len(table))
    if len(rows) > DIGIT_BASE**2:
        raise ValueError(f"its table has more than {DIGIT_BASE**2} rows")
    exact = torch.cat(rope.sincos(rows, like=torch.zeros(1)), -1)
    if not equal_before_casts(table, exact, TABLE_TOLERANCE * (1 + rows[:, None] / 512)):
        raise ValueError("its table does not follow from head_dim and rotary_dim")


def _patched_class(cls: object, rope: RotaryEmbedding) -> Any:
    """A subclass whose methods look up row numbers, and an apply function that computes exact tables from them."""
    table_format = TableFormat("once", False, Rotation("interleaved", "interleaved"), False, rope.pairs)
    original = cls.forward.__globals__[APPLY_FUNCTION]
    rotate = apply_function(known_signature(APPLY_FUNCTION, original), table_format, heads_axis=-2)
    error = largest_difference(original, rotate, table_format)
    if not error <= ROTATION_TOLERANCE:
        raise ValueError(f"{APPLY_FUNCTION} differs from that of rope_xp by {error:.2g}")

    def apply_rotary_pos_emb(tensor, high, low):
        row = (DIGIT_BASE * high.to(torch.int64) + low.to(torch.int64))[..., 0]
        sin, cos = rope.sincos(row, like=tensor)
        return rotate(tensor, sin, cos)

    methods = {
        name: _with_row_lookup(function, {APPLY_FUNCTION: apply_rotary_pos_emb})
        for name, function in inspect.getmembers(cls, inspect.isfunction)
        if name != "__init__" and {APPLY_FUNCTION, TABLE_BUFFER} & names_used_by(function)
    }
    row_digits = property(_row_digits, lambda _module, _value: None)
    return subclass_of(cls, TableGuard, **methods, **{ROW_ATTRIBUTE: row_digits})


def _with_row_lookup(function: object, new_values: Values) -> Any:
    """A copy of a function that reads `ROW_ATTRIBUTE` in place of the table."""
    new = copy_with_globals(function, new_values, function.__closure__ or ())
    names = tuple(ROW_ATTRIBUTE if name == TABLE_BUFFER else name for name in new.__code__.co_names)
    new.__code__ = new.__code__.replace(co_names=names)
    return new


def _row_digits(module: object) -> Any:
    """The number of each row of the table, in two digits."""
    table = module._buffers[TABLE_BUFFER]
    rows = torch.arange(len(table), device=table.device)
    return torch.stack((rows // DIGIT_BASE, rows % DIGIT_BASE), -1)
