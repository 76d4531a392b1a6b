"""Kernels on torch tensors: where they are right, and their derivative."""

# pyright: reportMissingImports=false

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils import _python_dispatch

from rope_xp.kernels import reference
from rope_xp.kernels.turn import Tables, Turn

_functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]


def rotate_all(xs: Sequence[Any], tables: Tables, turn: Turn, kernel: Any, inplace: bool = False) -> list[Any]:
    """Turn by a kernel, or by the reference expression where it would miss what tensors carry besides numbers."""
    # A compiler is here only while it traces the engine of autograd.
    constant = not torch.compiler.is_compiling() and not _is_watched()
    if not (constant and all([_is_plain(table) for table in {table for own in tables for table in own}])):
        return reference.rotate_all(xs, tables, turn, inplace)
    if all([_is_memory(x) and not _has_derivative(x) for x in xs]):
        rotated = kernel.rotate_all(xs, tables, turn, inplace)
        if inplace:
            torch.autograd.graph.increment_version(xs)  # so that autograd notices
        return rotated
    if not inplace and all(_is_transformed(x) or (_is_memory(x) and _has_derivative(x)) for x in xs):
        return list(_Rotation.apply(turn, kernel, len(xs), *xs, *(table for own in tables for table in own)))
    if len(xs) == 1:
        return reference.rotate_all(xs, tables, turn, inplace)
    return [rotate_all([x], [own], turn, kernel, inplace)[0] for x, own in zip(xs, tables)]


class _Rotation(torch.autograd.Function):
    """Rotations whose derivatives are rotations: nothing is kept for them but the tables."""

    @staticmethod
    def forward(turn: Turn, kernel: Any, count: int, *tensors: Any) -> Any:
        return tuple(kernel.rotate_all(tensors[:count], _pairs(tensors[count:]), turn))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.turn, ctx.kernel, ctx.count, *tensors = inputs
        ctx.save_for_backward(*tensors[ctx.count :])
        ctx.save_for_forward(*tensors[ctx.count :])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        tables = ctx.saved_tensors  # which may be had only once under a checkpoint
        turned = rotate_all(gradients, _pairs(tables), ctx.turn.undone(), ctx.kernel)
        return None, None, None, *turned, *[None] * len(tables)

    @staticmethod
    def jvp(ctx: Any, _turn: None, _kernel: None, _count: None, *tangents: Any) -> Any:
        return tuple(rotate_all(tangents[: ctx.count], _pairs(ctx.saved_tensors), ctx.turn, ctx.kernel))

    @staticmethod
    def vmap(info: Any, dims: Any, turn: Turn, kernel: Any, count: int, *tensors: Any) -> Any:
        xs = [
            x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip(tensors[:count], dims[3:])
        ]
        rotated = _Rotation.apply(turn, kernel, count, *xs, *(table[None] for table in tensors[count:]))
        return rotated, (0,) * count


def _pairs(tables: Sequence[Any]) -> Tables:
    return list(zip(tables[::2], tables[1::2]))


def is_constant(x: Any) -> bool:
    """Whether this is numbers in memory and nothing else, without derivatives, and nobody watches operations."""
    return _is_plain(x) and not _is_watched()


def _is_watched() -> bool:
    """Whether operations go to somebody else first."""
    mode = _python_dispatch._get_current_dispatch_mode()
    return mode is not None or torch._ops._len_torch_dispatch_stack_pre_dispatch() != 0


def _is_plain(x: Any) -> bool:
    return _is_memory(x) and not x.requires_grad and not _is_dual(x)


def _is_memory(x: Any) -> bool:
    """Whether this is numbers in memory and nothing else."""
    kind = type(x)
    return (
        (kind is torch.Tensor or kind is torch.nn.Parameter)
        and x.layout is torch.strided
        and torch._C._has_storage(x)
        and not _functorch.is_functorch_wrapped_tensor(x)
        and not (x.is_neg() or x._is_zerotensor())
    )


def _is_transformed(x: Any) -> bool:
    """Whether a transform of `torch.func` is under way that knows autograd's functions."""
    return _functorch.is_functorch_wrapped_tensor(x) and not _functorch.is_functionaltensor(x)


def _has_derivative(x: Any) -> bool:
    return (x.requires_grad and torch.is_grad_enabled()) or _is_dual(x)


def _is_dual(x: Any) -> bool:
    """Whether a forward derivative is under way through a tensor."""
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None
