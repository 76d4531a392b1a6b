"""The axis rule: how tables and positions are aligned with the axes of the arrays that they rotate.

Those with as many axes as `x` broadcast. Those with fewer are "seq" or "batch seq": the last axis is `seq_dim` of `x`,
the others are the leading axes. Position axes come first; heads with own frequencies come last, at `heads_dim`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from rope_xp.arrays import checks, libraries
from rope_xp.errors import wrong_value
from rope_xp.types import Array


class Alignment(NamedTuple):
    """What aligns a table or positions with one array: a shape with additional axes of size 1, and an order of axes."""

    shape: tuple[int, ...]
    order: tuple[int, ...] | None = None

    def equals(self, other: "Alignment | None") -> bool:
        # Not by `==`, with which `torch.compile` of PyTorch 2.11 makes symbolic sizes constant.
        return other is not None and self.shape == other.shape and self.order == other.order


def align_angles(angles: Sequence[tuple[Any, ...]], alignments: Sequence[Alignment]) -> list[Any]:
    # Neighbouring arrays share what is aligned if they can. Tables whose rows are selected stay as they are.
    xp, fixed = libraries.namespace(angles[0][-1]), 2 if len(angles[0]) == 3 else 0
    found, aligned, last, last_alignment = [], [], None, None
    for group, alignment in zip(angles, alignments):
        if group[-1] is not last or not alignment.equals(last_alignment):
            last, last_alignment = group[-1], alignment
            aligned = [libraries.with_axes(xp, each, alignment.shape) for each in group[fixed:]]
            if alignment.order is not None:
                aligned = [xp.permute_dims(each, alignment.order) for each in aligned]
        found.append((*group[:fixed], *aligned))
    return found


def alignments_of_positions(name: str, shape: Sequence[int], arrays: Sequence[Array], seq_dim: int) -> list[Alignment]:
    """How positions of this shape, without position axes, are aligned with each array, channels excluded."""
    return [Alignment(_aligned_axes(name, shape, 0, x, seq_dim)) for x in arrays]


def alignments_of_tables(
    shape: Sequence[int],
    arrays: Sequence[Array],
    seq_dim: int,
    heads: int | None = None,
    heads_dim: int | None = None,
) -> list[Alignment]:
    """How tables of this shape are aligned with each array. With `heads`, tables are "*axes heads pairs"."""
    if heads is not None:
        return [_aligned_heads(tuple(shape), x, seq_dim, heads, heads_dim) for x in arrays]
    return [Alignment((*_aligned_axes("tables", shape, 1, x, seq_dim), shape[-1])) for x in arrays]


def check_position_axes(name: str, positions: Array, axes: int) -> None:
    if axes == 1:
        return
    checks.array(name, positions)
    if tuple(positions.shape[:1]) != (axes,):
        raise wrong_value(
            f"{name} must have its {axes} position axes first, such as ({axes}, seq); "
            f"got shape {checks.shape(positions)}"
        )


def shape_of_delta(of_tokens: tuple[int, ...], axes: int) -> tuple[int, ...]:
    """The token axes of `delta`, with axes of size 1 at the end if it is a change of all keys, or of each batch row."""
    applies_to_rows = len(of_tokens) == 0 or of_tokens[-1] == 1
    return (*of_tokens, *[1] * (axes - len(of_tokens))) if applies_to_rows else of_tokens


def checked_seq_axis(arrays: Sequence[Array], seq_dim: int) -> int:
    """Check that all arrays have equally many tokens, and return the sequence axis of the first array."""
    axes = [checks.axis(seq_dim, x) for x in arrays]
    lengths = [x.shape[axis] for x, axis in zip(arrays, axes)]
    if any(length != lengths[0] for length in lengths):
        raise wrong_value(f"positions must be given if lengths on seq_dim={seq_dim} differ; got {lengths}")
    return axes[0]


def _aligned_axes(name: str, shape: Sequence[int], columns: int, x: Array, seq_dim: int) -> tuple[int, ...]:
    """Shape that broadcasts against `x`: sizes of matching axes, else 1. The last `columns` axes do not count."""
    target = tuple(x.shape[:-1])
    axis = checks.axis(seq_dim, x) if target else None  # a single vector has no sequence axis
    axes = _broadcast_shape(shape[: len(shape) - columns], target, axis)
    if axes is None:
        full_rank, tail = ("one axis less than x", "") if columns == 0 else ("as many axes as x", ", pairs")
        forms, hint = "", ""
        if axis is not None:
            batch, sizes = f" or (batch, seq{tail})" if axis else "", f"batch={target[0]} and " if axis else ""
            forms = f"be (seq{tail}){batch} with {sizes}seq={target[axis]} of x (seq_dim={seq_dim}), or "
            if columns == 0 and target[axis] == 1 and len(shape) < 2:
                hint = ": for one token, index with [..., None]"
        raise wrong_value(
            f"{name} must {forms}have {full_rank}; got shape {tuple(shape)} for x of shape {checks.shape(x)}{hint}"
        )
    return axes


def _aligned_heads(shape: tuple[int, ...], x: Array, seq_dim: int, heads: int, heads_dim: object) -> Alignment:
    """How a table "*axes heads pairs" is aligned with `x`; `heads_dim` is the axis of heads of `x`."""
    heads_axis, seq_axis = checks.axis(heads_dim, x, "heads_dim"), checks.axis(seq_dim, x)
    other_sizes = tuple(size for axis, size in enumerate(x.shape[:-1]) if axis != heads_axis)
    axes = None
    if heads_axis != seq_axis and shape[-2:-1] == (x.shape[heads_axis],) == (heads,):
        axes = _broadcast_shape(shape[:-2], other_sizes, seq_axis - (heads_axis < seq_axis))
    if axes is None:
        raise wrong_value(
            f"tables must be (seq, heads, pairs) or (batch, seq, heads, pairs), where seq is the size of axis "
            f"seq_dim={seq_dim} of x and heads={heads} the size of its axis heads_dim={heads_dim}; "
            f"got tables of shape {shape} for x of shape {checks.shape(x)}"
        )
    order = list(range(len(axes)))
    order.insert(heads_axis, len(axes))
    return Alignment((*axes, *shape[-2:]), (*order, len(axes) + 1))


def _broadcast_shape(shape: Sequence[int], target: tuple[int, ...], seq_axis: int | None) -> tuple[int, ...] | None:
    """`shape` with as many axes as `target`, where `seq_axis` is the sequence; None if it does not fit."""
    if len(shape) == len(target):
        return tuple(shape) if _broadcasts(shape, target) else None
    if seq_axis is None or not len(shape) or len(shape) > len(target):
        return None
    batch, seq = tuple(shape[:-1]), shape[-1]
    if len(batch) > seq_axis or not _equal_sizes(seq, target[seq_axis]) or not _broadcasts(batch, target):
        return None
    return (*batch, *(1,) * (seq_axis - len(batch)), seq, *(1,) * (len(target) - 1 - seq_axis))


def _broadcasts(shape: Any, target: Any) -> bool:
    return all(size == 1 or _equal_sizes(size, other) for size, other in zip(shape, target))


def _equal_sizes(size: object, other: object) -> bool:
    """Whether two sizes are equal. None is an unknown size, which may be equal to any."""
    return size is None or other is None or size == other
