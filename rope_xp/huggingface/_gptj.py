"""Attention that holds a table of sines and cosines itself: GPT-J and CodeGen."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import inspect
from typing import Any

import torch

from rope_xp._core.embedding import RotaryEmbedding
from rope_xp._core.kernels.pair_rotation import Rotation
from rope_xp.huggingface._float32_on_cpu import PLAIN, float32_on_cpu
from rope_xp.huggingface._kept import Keeper, agree, class_like, named
from rope_xp.huggingface._methods import TURNS_APART, names_in, remade, turned
from rope_xp.huggingface._rotary import TABLES_APART, Form, is_of_transformers

CLASSES = ("GPTJAttention", "CodeGenAttention")
APPLY, TABLE = "apply_rotary_pos_emb", "embed_positions"
ROWS = "_rows"  # what our code looks up in place of the table
SHARED: dict[str, Any] = {"layout": "interleaved", "base": 10_000.0}  # which no config changes
DIGIT = 256  # numbers below it are exact in bfloat16 and float16


def has_tables_inside(module: Any) -> bool:
    return any(cls.__name__ in CLASSES for cls in type(module).__mro__)


def class_of(who: str, module: Any) -> Any:
    """A class with a forward of the same code, which applies exact tables of the positions that it looks up.

    In place of sines and cosines it looks up the number of their row, in two digits that casts to 16 bits leave exact.
    As upstream, it has no rows beyond its longest sequence. Nobody reads or edits the table meanwhile.
    """
    try:
        with float32_on_cpu():
            return _proven(module)
    except Exception as error:  # whatever code that nobody knows raises
        raise ValueError(f"{who}: every part must be one that can be patched; got {named(module)}: {error}") from error


def _proven(module: Any) -> Any:
    cls = type(module)
    forward: Any = cls.forward
    if not is_of_transformers(forward):
        raise ValueError("its forward is not that of transformers")
    options: dict[str, Any] = {"head_dim": module.head_dim, "rotary_dim": module.pos_embd_dim}
    rope = RotaryEmbedding(**options, **SHARED)
    form = Form("once", False, Rotation("interleaved", "interleaved"), False, rope.pairs)
    table = getattr(module, TABLE)
    rows = torch.arange(len(table))
    if len(rows) > DIGIT**2:
        raise ValueError(f"its table has more than {DIGIT**2} rows")
    exact = torch.cat(rope.sincos(rows, like=torch.zeros(1)), -1)
    if not agree(table, exact, TABLES_APART * (1 + rows[:, None] / 512)):
        raise ValueError("its tables differ from those of its widths")
    if not (error := _of_apply(forward.__globals__[APPLY], form)) <= TURNS_APART:
        raise ValueError(f"{APPLY} differs from ours by {error:.2g}")

    def apply(tensor, high, low):
        row = (DIGIT * high.to(torch.int64) + low.to(torch.int64))[..., 0]
        sin, cos = rope.sincos(row, like=tensor)
        return turned([tensor], cos[:, :, None], sin[:, :, None], form)[0]

    methods = {
        name: _with_rows(function, {APPLY: apply})
        for name, function in inspect.getmembers(cls, inspect.isfunction)
        if name != "__init__" and {APPLY, TABLE} & names_in(function)
    }
    return class_like(cls, Keeper, **methods, **{ROWS: property(_digits, lambda _module, _moved: None)})


def _with_rows(function: Any, found: dict[str, Any]) -> Any:
    """A function of the same code, but for the name of what it looks up."""
    again = remade(function, found, function.__closure__ or ())
    names = tuple(ROWS if name == TABLE else name for name in again.__code__.co_names)
    again.__code__ = again.__code__.replace(co_names=names)
    return again


def _digits(module: Any) -> Any:
    """The number of each row, in place of the table."""
    table = module._buffers[TABLE]
    rows = torch.arange(len(table), device=table.device)
    return torch.stack((rows // DIGIT, rows % DIGIT), -1)


def _of_apply(theirs: Any, form: Form) -> float:
    random = torch.Generator().manual_seed(0)
    angles = torch.rand(2, 5, form.pairs, generator=random, **PLAIN) * 6
    x = torch.rand(2, 5, 3, 2 * form.pairs, generator=random, **PLAIN) * 1.4 - 0.7
    sin, cos = angles.sin(), angles.cos()
    own = turned([x], cos[:, :, None], sin[:, :, None], form)[0]
    return float((own - theirs(x, sin, cos)).abs().max())
