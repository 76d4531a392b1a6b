"""Kernels on torch tensors: where they are right, and their derivative."""

# pyright: reportMissingImports=false

from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils import _python_dispatch

from rope_xp.kernels import reference
from rope_xp.kernels.turn import Turn

_functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]


def rotate(x: Any, sin: Any, cos: Any, turn: Turn, kernel: Any) -> Any:
    """Turn by a kernel, or by the reference expression where it would miss what tensors carry besides numbers."""
    if torch.compiler.is_compiling():  # autograd's engine, tracing a derivative
        return reference.rotate(x, sin, cos, turn)
    if is_constant(sin) and is_constant(cos):
        is_memory = _is_memory(x)
        if _is_transformed(x) or (is_memory and _has_derivative(x)):
            return _Rotation.apply(x, sin, cos, turn, kernel)
        if is_memory:
            return kernel.rotate(x, sin, cos, turn)
    return reference.rotate(x, sin, cos, turn)


def rotate_inplace(x: Any, sin: Any, cos: Any, turn: Turn, kernel: Any) -> None:
    """Turn `x` itself, by a kernel where `rotate` would."""
    if is_constant(sin) and is_constant(cos) and is_constant(x):
        kernel.rotate(x, sin, cos, turn, x)
        torch.autograd.graph.increment_version(x)  # so that autograd notices
    else:
        reference.rotate(x, sin, cos, turn, x)


class _Rotation(torch.autograd.Function):
    """A rotation whose derivatives are rotations: nothing is kept for them but the tables."""

    @staticmethod
    def forward(x: Any, sin: Any, cos: Any, turn: Turn, kernel: Any) -> Any:
        return kernel.rotate(x, sin, cos, turn)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, sin, cos, ctx.turn, ctx.kernel = inputs
        ctx.save_for_backward(sin, cos)
        ctx.save_for_forward(sin, cos)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        sin, cos = ctx.saved_tensors
        return rotate(gradient, sin, cos, ctx.turn.undone(), ctx.kernel), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Any, *_: Any) -> Any:
        sin, cos = ctx.saved_tensors
        return rotate(tangent, sin, cos, ctx.turn, ctx.kernel)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Any, sin: Any, cos: Any, turn: Turn, kernel: Any) -> Any:
        return _Rotation.apply(x.movedim(in_dims[0], 0), sin[None], cos[None], turn, kernel), 0


def rotate_all(xs: Any, tables: Any, turn: Turn, kernel: Any, inplace: bool) -> Any:
    """Turn several arrays at once by a kernel that has its derivatives itself; None where that is not right."""
    right = all(is_constant(sin) and is_constant(cos) for sin, cos in tables) and all(
        _is_memory(x) and not _is_dual(x) for x in xs
    )
    return kernel.rotate_all(xs, tables, turn, inplace=inplace) if right else None


def is_constant(x: Any) -> bool:
    """Whether this is memory without derivatives."""
    return _is_memory(x) and not x.requires_grad and not _is_dual(x)


def _is_memory(x: Any) -> bool:
    """Whether this is numbers in memory and nothing else, and nobody watches operations."""
    kind = type(x)
    return (
        (kind is torch.Tensor or kind is torch.nn.Parameter)
        and x.layout is torch.strided
        and torch._C._has_storage(x)
        and not _functorch.is_functorch_wrapped_tensor(x)
        and not (x.is_neg() or x._is_zerotensor())
        and _python_dispatch._get_current_dispatch_mode() is None
        and not torch._ops._len_torch_dispatch_stack_pre_dispatch()
    )


def _is_transformed(x: Any) -> bool:
    """Whether a transform of `torch.func` is under way that knows autograd's functions."""
    return _functorch.is_functorch_wrapped_tensor(x) and not _functorch.is_functionaltensor(x)


def _has_derivative(x: Any) -> bool:
    return (x.requires_grad and torch.is_grad_enabled()) or _is_dual(x)


def _is_dual(x: Any) -> bool:
    """Whether a forward derivative is under way through a tensor."""
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None
