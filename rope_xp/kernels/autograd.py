"""Kernels on torch tensors: when they may run, and their derivatives."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.utils import _python_dispatch

from rope_xp.arrays.signature import Plans, signature_of
from rope_xp.kernels import reference
from rope_xp.kernels.faults import LaunchError
from rope_xp.kernels.reference import Angles, Rotation, Tables
from rope_xp.types import Array

_functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]


def rotate_all(
    xs: Sequence[Any], angles: Angles, rotation: Rotation, kernel: object, inplace: bool = False
) -> list[Any]:
    """Rotate with a kernel, or with the reference if tensors are not plain memory."""
    # The reference rotates where angles have derivatives. It needs tables. A kernel has its own `tables_of(xs, angles)`
    # if `reference.tables_of` does not accept its angles.
    if not _are_constant(angles):
        return _rotate_by_reference(xs, angles, rotation, kernel, inplace)
    if _need_no_derivative(xs):
        rotated = kernel.rotate_all(xs, angles, rotation, inplace)
        if inplace:
            torch.autograd.graph.increment_version(xs)  # tells autograd that the memory has changed
        return rotated
    if not inplace and all(_is_transformed(x) or (_is_memory(x) and _has_derivative(x)) for x in xs):
        # Positions are copied, since the caller may change them before the backward pass.
        saved = [tensor if tensor.is_floating_point() else tensor.clone() for group in angles for tensor in group]
        return list(_Rotation.apply(rotation, kernel, len(xs), *xs, *saved))
    if len(xs) == 1:
        return _rotate_by_reference(xs, angles, rotation, kernel, inplace)
    return [y for x, group in zip(xs, angles) for y in rotate_all([x], [group], rotation, kernel, inplace)]


class InPlace(NamedTuple):
    program: Any

    def run(self, xs: Sequence[Any], angles: Angles) -> list[Any]:
        rotated = self.program.run(xs, angles)
        torch.autograd.graph.increment_version(xs)  # tells autograd that the memory has changed
        return rotated


class Differentiable(NamedTuple):
    """A program whose results have derivatives. It keeps the programs of backward passes, and holds no array."""

    program: Any
    rotation: Rotation
    kernel: Any
    views: list[tuple[Any, Any]]  # shape and strides of each of the aligned angles, which all arrays share
    backward: Plans

    def run(self, xs: Sequence[Array], angles: Angles) -> list[Any]:
        return list(_PlannedRotation.apply(self, angles, *xs))

    def saved(self, group: tuple[Any, ...]) -> list[Any]:
        """Aligned angles. Positions are copied, since the caller may change them before the backward pass."""
        # The program runs with angles as the call has them; that of the backward pass is prepared from aligned ones.
        views = [tensor.as_strided(*view) for tensor, view in zip(group, self.views)]
        return [view if view.is_floating_point() else view.clone() for view in views]

    def rotate_back(self, gradients: Sequence[Array], saved: tuple[Any, ...]) -> Sequence[Any]:
        angles, rotation = [saved] * len(gradients), self.rotation.inverted()
        key = signature_of((*gradients, *saved))
        program = None if key is None else self.backward.get(key)
        if program is not None:
            try:
                return program.run(gradients, angles)
            except LaunchError:  # below, the kernel handles it
                pass
        rotated = rotate_all(gradients, angles, rotation, self.kernel)
        if key is not None and program is None:
            self.backward.add(key, prepare(gradients, angles, rotation, self.kernel))
        return rotated


def prepare(xs: Sequence[Array], angles: Angles, rotation: Rotation, kernel: object, inplace: bool = False) -> Any:
    """The program of a kernel; None if `rotate_all` does more than that and derivatives, or if angles differ."""
    program = kernel.prepare(xs, angles, rotation, inplace) if _are_constant(angles) else None
    if program is None or _need_no_derivative(xs):
        return InPlace(program) if inplace and program is not None else program
    is_same = all([one is other for group in angles for one, other in zip(group, angles[0])])
    if inplace or not is_same or _is_transforming() or not all([_is_memory(x) and _has_derivative(x) for x in xs]):
        return None
    views = [(tensor.shape, tensor.stride()) for tensor in angles[0]]
    return Differentiable(program, rotation, kernel, views, Plans())


def _are_constant(angles: Angles) -> bool:
    # A compiler is active here only if it traces the autograd engine.
    constant = not torch.compiler.is_compiling() and not _is_intercepted()
    return constant and all([_is_plain(tensor) for tensor in {tensor for group in angles for tensor in group}])


def _need_no_derivative(xs: Sequence[Array]) -> bool:
    return all([_is_memory(x) and not _has_derivative(x) for x in xs])


def _rotate_by_reference(
    xs: Sequence[Array], angles: Angles, rotation: Rotation, kernel: object, inplace: bool
) -> list[Any]:
    return reference.rotate_all(xs, _tables_of(kernel, xs, angles), rotation, inplace)


def _tables_of(kernel: object, xs: Sequence[Array], angles: Angles) -> Tables:
    return kernel.tables_of(xs, angles) if hasattr(kernel, "tables_of") else reference.tables_of(angles)


class KernelWithFallback(NamedTuple):
    """A kernel with a fallback: if a launch fails, it calls `on_failure(x, error)`, and the reference runs."""

    kernel: Any
    on_failure: Callable[[Any, LaunchError], None]

    def rotate_all(self, xs: Sequence[Array], angles: Angles, rotation: Rotation, inplace: bool = False) -> list[Any]:
        """Rotate all arrays in one call, or one by one if dtypes differ and results overwrite the arrays."""
        # There is one launch for each dtype. If the second launch fails, the fallback must not rotate the arrays of the
        # first again.
        if inplace and len(xs) > 1 and len({x.dtype for x in xs}) > 1:
            return [y for x, group in zip(xs, angles) for y in self.rotate_all([x], [group], rotation, inplace)]
        try:
            return self.kernel.rotate_all(xs, angles, rotation, inplace)
        except LaunchError as problem:
            self.on_failure(xs[0], problem)
        return _rotate_by_reference(xs, angles, rotation, self.kernel, inplace)

    def prepare(self, xs: Sequence[Array], angles: Angles, rotation: Rotation, inplace: bool = False) -> Any:
        return self.kernel.prepare(xs, angles, rotation, inplace)

    def tables_of(self, xs: Sequence[Array], angles: Angles) -> Tables:
        return _tables_of(self.kernel, xs, angles)


class _Rotation(torch.autograd.Function):
    """Rotations for autograd. Their derivatives are rotations too, so only the angles are saved."""

    # `rotate_all` calls it, in the general program, and so inside `torch.func`. Derivatives of the operators in graphs
    # are registered in `triton.py`.

    @staticmethod
    def forward(rotation: Rotation, kernel: object, count: int, *tensors: Any) -> Any:
        return tuple(kernel.rotate_all(tensors[:count], _grouped(tensors[count:], count), rotation))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.rotation, ctx.kernel, ctx.count, *tensors = inputs
        ctx.save_for_backward(*tensors[ctx.count :])
        ctx.save_for_forward(*tensors[ctx.count :])

    @staticmethod
    def backward(ctx: object, *gradients: Any) -> Any:
        saved = ctx.saved_tensors  # read only once: activation checkpointing permits no second access
        rotated = rotate_all(gradients, _grouped(saved, ctx.count), ctx.rotation.inverted(), ctx.kernel)
        return None, None, None, *rotated, *[None] * len(saved)

    @staticmethod
    def jvp(ctx: object, _rotation: None, _kernel: None, _count: None, *tangents: Any) -> Any:
        angles = _grouped(ctx.saved_tensors, ctx.count)
        return tuple(rotate_all(tangents[: ctx.count], angles, ctx.rotation, ctx.kernel))

    @staticmethod
    def vmap(info: Any, dims: Any, rotation: Rotation, kernel: Any, count: int, *tensors: Any) -> Any:
        xs = [
            x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip(tensors[:count], dims[3:])
        ]
        angles = _grouped(tensors[count:], count)
        if len(angles[0]) == 3:  # rows of tables have no batch axis; full tables and positions get one below
            angles = reference.tables_of(angles)
        rotated = _Rotation.apply(rotation, kernel, count, *xs, *(tensor[None] for group in angles for tensor in group))
        return rotated, (0,) * count


class _PlannedRotation(torch.autograd.Function):
    """The rotation of a `Differentiable` program. It needs no `setup_context`, which makes each call slower."""

    # It runs where a fast program was prepared for tensors that require grad.

    @staticmethod
    def forward(ctx: object, program: Differentiable, angles: Angles, *xs: Any) -> Any:
        ctx.program = program
        ctx.save_for_backward(*program.saved(angles[0]))
        return tuple(program.program.run(xs, angles))

    @staticmethod
    def backward(ctx: object, *gradients: Any) -> Any:
        return None, None, *ctx.program.rotate_back(gradients, ctx.saved_tensors)


def _grouped(tensors: Sequence[Array], count: int) -> Angles:
    length = len(tensors) // count
    return [tuple(tensors[start : start + length]) for start in range(0, len(tensors), length)]


def is_constant(x: Array) -> bool:
    """Whether a tensor is plain memory without derivatives, and no operation is intercepted or transformed."""
    return _is_plain(x) and not _is_intercepted() and not _is_transforming()


def _is_transforming() -> bool:
    return _functorch.get_dynamic_layer_stack_depth() > 0


def runs_eagerly(x: Array) -> bool:
    """Whether a tensor is plain memory, with or without derivatives, and its operations are not intercepted."""
    return _is_memory(x) and not _is_intercepted()


def _is_intercepted() -> bool:
    mode = _python_dispatch._get_current_dispatch_mode()
    return mode is not None or torch._ops._len_torch_dispatch_stack_pre_dispatch() != 0


def _is_plain(x: Array) -> bool:
    return _is_memory(x) and not x.requires_grad and not _is_dual(x)


def _is_memory(x: Any) -> bool:
    """Whether a tensor is plain memory: no subclass, no wrapper, no lazy negation."""
    kind = type(x)
    return (
        (kind is torch.Tensor or kind is torch.nn.Parameter)
        and x.layout is torch.strided
        and torch._C._has_storage(x)
        and not _functorch.is_functorch_wrapped_tensor(x)
        and not (x.is_neg() or x._is_zerotensor())
    )


def _is_transformed(x: Array) -> bool:
    """Whether a tensor belongs to a `torch.func` transform that supports custom autograd functions."""
    return _functorch.is_functorch_wrapped_tensor(x) and not _functorch.is_functionaltensor(x)


def _has_derivative(x: Array) -> bool:
    return (x.requires_grad and torch.is_grad_enabled()) or _is_dual(x)


def _is_dual(x: Array) -> bool:
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None
