"""Operators that stand for calls of a `RotaryEmbedding` in the graphs of `torch.compile`.

The compiler's first stage, Dynamo, reads Python, and checks each function and constant that it has read at all later
calls. An operator is one node, of which it checks the arguments alone. The next stage, AOTAutograd, runs the operator's
Python with tensors that have no numbers, and sees the operations.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import hashlib
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

# PyTorch keeps compiled graphs on disk, by the names of their operators. Other sources must have other names.
_SOURCES = sorted(Path(__file__).parents[1].rglob("*.py"))
_REVISION = hashlib.sha256(b"".join([path.read_bytes() for path in _SOURCES])).hexdigest()[:16]


@lru_cache(maxsize=256)
def _embedding(text: str) -> Any:
    rope = eval(text, {"__builtins__": {}}, vars(sys.modules["rope_xp"]))
    object.__setattr__(rope, "_text", None)  # no operator stands for the calls of an operator
    return rope


def _operator(name: str, schema: str, call: Callable[..., Any]) -> Any:
    @torch.compiler.disable
    def run(text: str, *arguments: Any) -> Any:
        try:
            return call(_embedding(text), *arguments)
        except (TypeError, ValueError) as error:
            if not torch.compiler.is_compiling():
                raise
            # Dynamo then leaves the call to Python, which raises the error itself.
            raise NotImplementedError(str(error)) from error

    torch.library.define(f"rope_xp::{name}_{_REVISION}", f"(str embedding, {schema}")
    for key in ("CompositeImplicitAutograd", "FuncTorchBatchedDecomposition"):
        torch.library.impl(f"rope_xp::{name}_{_REVISION}", key, run)
    return getattr(torch.ops.rope_xp, f"{name}_{_REVISION}").default


def _call(rope: Any, arrays: list[Any], sincos: list[Any], positions: Any, seq_dim: int, heads_dim: int | None) -> Any:
    rotated = rope(*arrays, sincos=sincos or None, positions=positions, seq_dim=seq_dim, heads_dim=heads_dim)
    return list(rotated) if len(arrays) > 1 else [rotated]


def _rotate(rope: Any, x: Any, sincos: list[Any], seq_dim: int, heads_dim: int | None, *flags: bool) -> Any:
    inverse, transpose = flags
    return rope.rotate(x, sincos, seq_dim=seq_dim, heads_dim=heads_dim, inverse=inverse, transpose=transpose)


def _sincos(rope: Any, positions: Any, like: Any, role: str | None) -> Any:
    return tuple(rope.sincos(positions, like=like, role=role))


_AXES = "int seq_dim, int? heads_dim"
call = _operator("call", f"Tensor[] arrays, Tensor[] sincos, Tensor? positions, {_AXES}) -> Tensor[]", _call)
rotate = _operator("rotate", f"Tensor x, Tensor[] sincos, {_AXES}, bool inverse, bool transpose) -> Tensor", _rotate)
sincos = _operator("sincos", "Tensor positions, Tensor? like, str? role) -> (Tensor, Tensor)", _sincos)


# Where PyTorch does not know it, each program that is compiled counts as exported.
_is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)


def stands_for(arrays: Sequence[Any], axes: Sequence[Any] = (), flags: Sequence[Any] = (), name: Any = None) -> bool:
    """Whether an operator can stand for a call with these arguments. What it would convert is left to Python."""
    if _is_exporting():  # an exported program must not need rope_xp
        return False
    # Subclasses, such as DTensor, have operations of their own.
    others = [x for x in arrays if x is not None and type(x) is not torch.Tensor]
    others += [axis for axis in axes if axis is not None and not (type(axis) is int and -64 < axis < 64)]
    others += [flag for flag in flags if type(flag) is not bool]
    return not others and (name is None or type(name) is str)
