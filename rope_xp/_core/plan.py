"""What a call of a `RotaryEmbedding` decides before it computes.

A plan follows from the signature of a call alone: libraries, dtypes, shapes, strides, devices, axes and the kernel. No
function here reads the values of an array. So each call makes all checks of its signature first, in one function, and
calls with one signature have one plan.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from rope_xp._core import backends, checks, kernels
from rope_xp._core.alignment import (
    Alignment,
    alignments_of_positions,
    alignments_of_tables,
    checked_seq_axis,
    leading_axes,
    shape_of_delta,
)
from rope_xp._core.tables import check_tables


class CallPlan(NamedTuple):
    """What a call will do.

    `source` is where the angles come from: aligned tables, rows of tables that positions select, positions from which
    a kernel computes angles, or positions from which tables are computed. `alignments` aligns these tables or positions
    with each array. `kernels` has the name of the kernel for each array, unless the kernel computes angles. `are_ready`
    is true if given tables need no conversion. `seq_axis` is the sequence axis of the first array if no positions are
    given. `delta_shape` is the shape of a change of positions, with additional axes of size 1.
    """

    source: Literal["tables", "rows", "positions", "computed"]
    alignments: list[Alignment]
    kernels: list[str]
    are_ready: bool = True
    seq_axis: int = 0
    delta_shape: tuple[int, ...] = ()


def plan_call(
    who: str, rope: Any, arrays: Sequence[Any], sincos: Any, positions: Any, seq_dim: int, heads_dim: int | None
) -> CallPlan:
    """The plan of a call with the query first and keys after it."""
    _check_arrays(who, rope, arrays)
    if sincos is None:
        return _plan_positions(who, rope, arrays, positions, seq_dim, heads_dim)
    if rope.xpos is not None:
        raise ValueError(f"{who}: sincos must be given without xpos; got xpos={rope.xpos}")
    return _plan_tables(who, rope, arrays, sincos, positions, seq_dim, heads_dim)


def plan_rotation(
    who: str, rope: Any, arrays: Sequence[Any], sincos: Any, positions: Any, seq_dim: int, heads_dim: int | None
) -> CallPlan:
    """The plan of a rotation by tables or, with positions, by the rows that positions select."""
    _check_arrays(who, rope, arrays)
    return _plan_tables(who, rope, arrays, sincos, positions, seq_dim, heads_dim)


def plan_shift(who: str, rope: Any, k: Any, delta: Any, seq_dim: int, heads_dim: int | None) -> CallPlan:
    """The plan of a rotation of keys by a change of positions."""
    _check_arrays(who, rope, [k], name="k")
    leading, shape = (1, (rope.axes,)) if rope.axes > 1 else (0, ())
    if not checks.is_int(delta):
        if backends.namespace(delta) is None:
            raise TypeError(f"{who}: delta must be an int or an array of real numbers; got {type(delta).__name__}")
        leading, shape = _shape_of_positions(who, "delta", delta, rope.axes, k)
    shape = shape_of_delta(shape, leading, k.ndim - 1 - (rope.heads is not None))
    alignments = _alignments_of_positions(who, "delta", rope, shape[leading:], [k], seq_dim)
    alignments = _alignments_of_tables(who, rope, shape[leading:], alignments, [k], seq_dim, heads_dim)
    return CallPlan("computed", alignments, _choose(who, rope, [k]), delta_shape=shape)


def _plan_tables(
    who: str, rope: Any, arrays: Sequence[Any], sincos: Any, positions: Any, seq_dim: int, heads_dim: int | None
) -> CallPlan:
    if positions is not None:
        return _plan_rows(who, rope, arrays, sincos, positions, seq_dim, heads_dim)
    _check_heads(who, rope, heads_dim)
    are_ready = check_tables(who, arrays, sincos, rope.pairs)
    alignments = alignments_of_tables(who, sincos[0].shape, arrays, seq_dim, rope.heads, heads_dim)
    return CallPlan("tables", alignments, _choose(who, rope, arrays), are_ready)


def _plan_rows(
    who: str, rope: Any, arrays: Sequence[Any], sincos: Any, positions: Any, seq_dim: int, heads_dim: int | None
) -> CallPlan:
    """The plan of a rotation by the rows of tables that positions select."""
    if rope.heads is not None or heads_dim is not None:
        raise ValueError(
            f"{who}: positions must select rows of tables that all heads share; "
            f"got heads={rope.heads} with their own frequencies and heads_dim={heads_dim}"
        )
    checks.position_dtype(who, "positions", positions, real=False)
    checks.convertible(who, "positions", positions, arrays[0])
    are_ready = check_tables(who, arrays, sincos, rope.pairs)
    shape = checks.shape(sincos[0])
    if len(shape) != 2 or shape[0] == 0:
        raise ValueError(f"{who}: tables must be (rows, pairs) when positions select rows; got shape {shape}")
    alignments = alignments_of_positions(who, "positions", positions.shape, arrays, seq_dim)
    return CallPlan("rows", alignments, _choose(who, rope, arrays), are_ready)


def _plan_positions(
    who: str, rope: Any, arrays: Sequence[Any], positions: Any, seq_dim: int, heads_dim: int | None
) -> CallPlan:
    """The plan of a rotation by positions or, without them, by 0, 1, 2, ..."""
    seq_axis = 0
    if positions is not None:
        leading, shape = _shape_of_positions(who, "positions", positions, rope.axes, arrays[0])
        shape = shape[leading:]
    elif rope.axes > 1:
        raise ValueError(f"{who}: positions must be given for {rope.axes} position axes; got None")
    else:
        seq_axis = checked_seq_axis(who, arrays, seq_dim)
        shape = (arrays[0].shape[seq_axis],)
    alignments = _alignments_of_positions(who, "positions", rope, shape, arrays, seq_dim)
    if heads_dim is None and _kernel_computes_angles(who, rope, positions, arrays[0]):
        return CallPlan("positions", alignments, [], seq_axis=seq_axis)
    if rope.xpos is not None and len(arrays) == 1:
        raise ValueError(f"{who}: xpos must be given the query and then keys; got one array (use sincos and rotate)")
    alignments = _alignments_of_tables(who, rope, shape, alignments, arrays, seq_dim, heads_dim)
    return CallPlan("computed", alignments, _choose(who, rope, arrays), seq_axis=seq_axis)


def _shape_of_positions(who: str, name: str, positions: Any, axes: int, like: Any) -> tuple[int, tuple[int, ...]]:
    """How many position axes come first, and the shape of positions that can be converted to the library of `like`."""
    checks.position_dtype(who, name, positions)
    checks.convertible(who, name, positions, like)
    return leading_axes(who, name, positions, axes), positions.shape


def _check_arrays(who: str, rope: Any, arrays: Sequence[Any], name: str = "x") -> None:
    """Arrays must have `head_dim` channels, and belong to one library and device."""
    for x in arrays:
        checks.floating(who, name, x)
        if not x.ndim or x.shape[-1] != rope.head_dim:
            raise ValueError(f"{who}: {name} must have head_dim={rope.head_dim} channels; got shape {checks.shape(x)}")
        if x is not arrays[0]:
            checks.same_library(who, name, x, arrays[0])


def _check_heads(who: str, rope: Any, heads_dim: int | None) -> None:
    if (heads_dim is None) != (rope.heads is None):
        raise ValueError(
            f"{who}: heads_dim must be given if, and only if, each head has its own frequencies; "
            f"got heads_dim={heads_dim}"
        )


def _alignments_of_positions(
    who: str, name: str, rope: Any, shape: Sequence[int], arrays: Sequence[Any], seq_dim: int
) -> list[Alignment]:
    """The alignments of positions of this shape. If heads have their own frequencies, only tables can be aligned."""
    return [] if rope.heads is not None else alignments_of_positions(who, name, shape, arrays, seq_dim)


def _alignments_of_tables(
    who: str,
    rope: Any,
    shape: Sequence[int],
    alignments: list[Alignment],
    arrays: Sequence[Any],
    seq_dim: int,
    heads_dim: int | None,
) -> list[Alignment]:
    """The alignments of tables that will be computed from positions of this shape, with these alignments."""
    _check_heads(who, rope, heads_dim)
    if rope.heads is None:
        return [Alignment((*each.shape, rope.pairs)) for each in alignments]
    return alignments_of_tables(who, (*shape, rope.heads, rope.pairs), arrays, seq_dim, rope.heads, heads_dim)


def _kernel_computes_angles(who: str, rope: Any, positions: Any, x: Any) -> bool:
    """Whether the kernel for `x` computes the angles from integer positions, so that no tables are needed."""
    is_plain = rope._spectrum.frequencies.is_single_row and rope.phase == "exact" and rope.xpos is None
    are_integers = positions is None or not backends.is_real(positions)
    return is_plain and are_integers and kernels.computes_angles(who, x, rope.kernel)


def _choose(who: str, rope: Any, arrays: Sequence[Any]) -> list[str]:
    return [kernels.choose(who, x, rope.kernel) for x in arrays]
