"""Kernels on torch tensors: where they are right, and their derivative."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.utils import _python_dispatch

from rope_xp._core.kernels import reference
from rope_xp._core.kernels.faults import LaunchError
from rope_xp._core.kernels.pair_rotation import Angles, Rotation, Tables

_functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]


def rotate_all(xs: Sequence[Any], angles: Angles, rotation: Rotation, kernel: Any, inplace: bool = False) -> list[Any]:
    """Turn by a kernel, or by the reference expression where it would miss what tensors carry besides numbers.

    What `angles` are is between the kernel and its caller: as many tensors for each array, without derivatives. A
    kernel that takes others than `reference.tables_of` has a function of that name, of arrays and angles.
    """
    # A compiler is here only while it traces the engine of autograd.
    constant = not torch.compiler.is_compiling() and not _is_watched()
    if not (constant and all([_is_plain(each) for each in {each for own in angles for each in own}])):
        return _rotate_by_reference(xs, angles, rotation, kernel, inplace)
    if all([_is_memory(x) and not _has_derivative(x) for x in xs]):
        rotated = kernel.rotate_all(xs, angles, rotation, inplace)
        if inplace:
            torch.autograd.graph.increment_version(xs)  # so that autograd notices
        return rotated
    if not inplace and all(_is_transformed(x) or (_is_memory(x) and _has_derivative(x)) for x in xs):
        # Positions may have changed when the derivative is asked for: copies of them are kept.
        kept = [each if each.is_floating_point() else each.clone() for own in angles for each in own]
        return list(_Rotation.apply(rotation, kernel, len(xs), *xs, *kept))
    if len(xs) == 1:
        return _rotate_by_reference(xs, angles, rotation, kernel, inplace)
    return [rotate_all([x], [own], rotation, kernel, inplace)[0] for x, own in zip(xs, angles)]


def _rotate_by_reference(
    xs: Sequence[Any], angles: Angles, rotation: Rotation, kernel: Any, inplace: bool
) -> list[Any]:
    return reference.rotate_all(xs, _tables_of(kernel, xs, angles), rotation, inplace)


def _tables_of(kernel: Any, xs: Sequence[Any], angles: Angles) -> Tables:
    return kernel.tables_of(xs, angles) if hasattr(kernel, "tables_of") else reference.tables_of(angles)


class OrReference(NamedTuple):
    """A kernel, and the reference for what it cannot launch; `failed` hears of an array and of the error."""

    kernel: Any
    failed: Callable[[Any, LaunchError], None]

    def rotate_all(self, xs: Sequence[Any], angles: Angles, rotation: Rotation, inplace: bool = False) -> list[Any]:
        """Rotate; in place one array at a time, as none that a launch has written may be rotated again."""
        if inplace and len(xs) > 1 and len({x.dtype for x in xs}) > 1:
            return [self.rotate_all([x], [own], rotation, inplace)[0] for x, own in zip(xs, angles)]
        try:
            return self.kernel.rotate_all(xs, angles, rotation, inplace)
        except LaunchError as problem:
            self.failed(xs[0], problem)
        return _rotate_by_reference(xs, angles, rotation, self.kernel, inplace)

    def tables_of(self, xs: Sequence[Any], angles: Angles) -> Tables:
        return _tables_of(self.kernel, xs, angles)


class _Rotation(torch.autograd.Function):
    """Rotations whose derivatives are rotations: nothing is kept for them but what the angles come from."""

    @staticmethod
    def forward(rotation: Rotation, kernel: Any, count: int, *tensors: Any) -> Any:
        return tuple(kernel.rotate_all(tensors[:count], _of_each(tensors[count:], count), rotation))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.rotation, ctx.kernel, ctx.count, *tensors = inputs
        ctx.save_for_backward(*tensors[ctx.count :])
        ctx.save_for_forward(*tensors[ctx.count :])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        kept = ctx.saved_tensors  # which may be had only once under a checkpoint
        turned = rotate_all(gradients, _of_each(kept, ctx.count), ctx.rotation.inverted(), ctx.kernel)
        return None, None, None, *turned, *[None] * len(kept)

    @staticmethod
    def jvp(ctx: Any, _rotation: None, _kernel: None, _count: None, *tangents: Any) -> Any:
        angles = _of_each(ctx.saved_tensors, ctx.count)
        return tuple(rotate_all(tangents[: ctx.count], angles, ctx.rotation, ctx.kernel))

    @staticmethod
    def vmap(info: Any, dims: Any, rotation: Rotation, kernel: Any, count: int, *tensors: Any) -> Any:
        xs = [
            x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip(tensors[:count], dims[3:])
        ]
        angles = _of_each(tensors[count:], count)
        if len(angles[0]) == 3:  # others lie opposite the axes of the arrays, which are one more
            angles = reference.tables_of(angles)
        rotated = _Rotation.apply(rotation, kernel, count, *xs, *(each[None] for own in angles for each in own))
        return rotated, (0,) * count


def _of_each(tensors: Sequence[Any], count: int) -> Angles:
    """Tensors as so many tuples of one length."""
    length = len(tensors) // count
    return [tuple(tensors[start : start + length]) for start in range(0, len(tensors), length)]


def is_constant(x: Any) -> bool:
    """Whether this is numbers in memory and nothing else, without derivatives, and nobody watches operations."""
    return _is_plain(x) and not _is_watched()


def is_unwatched(x: Any) -> bool:
    """Whether this is numbers in memory, with or without derivatives, and nobody watches operations."""
    return _is_memory(x) and not _is_watched()


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
