"""What a call of a `RotaryEmbedding` decides before it computes.

A plan follows from the signature of a call alone: libraries, dtypes, shapes, strides, devices, axes and the kernel. No
function that makes a plan reads the values of an array. So a call makes all checks of its signature first, in one
function, and calls with one signature share one plan (`rope_xp._core.backends.signature`).
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from rope_xp._core import backends, checks, kernels
from rope_xp._core.alignment import (
    Alignment,
    align_pairs,
    align_positions,
    alignments_of_positions,
    alignments_of_tables,
    checked_seq_axis,
    leading_axes,
    shape_of_delta,
)
from rope_xp._core.backends import memory
from rope_xp._core.backends.signature import Plans, signature_of
from rope_xp._core.errors import wrong_type, wrong_value
from rope_xp._core.kernels import Kernel
from rope_xp._core.kernels.faults import LaunchError
from rope_xp._core.kernels.pair_rotation import Angles, Rotation
from rope_xp._core.tables import check_tables, convert_tables, pair_of
from rope_xp.positions._sequence import count_from

# The plans of functions that take no embedding.
_PLANS = Plans()


class CallPlan(NamedTuple):
    """What a call will do.

    `source` says where angles come from:

    - "tables": given tables;
    - "rows": the rows of given tables that positions select;
    - "positions": a kernel computes angles from positions;
    - "computed": tables are computed from positions;
    - "change": tables are computed from a change of positions or of frequencies, for arrays that are rotated already.

    A plan that is kept may have two programs, which repeat no decision. `tables.run(positions)` computes tables.
    `rotate.run(arrays, angles)` rotates arrays by tables, or by tables and positions. These need not be aligned.
    """

    rotation: Rotation
    source: Literal["tables", "rows", "positions", "computed", "change"]
    alignments: list[Alignment]  # of tables or positions, with each array
    kernels: list[str]  # the name for each array; empty if a kernel computes angles
    are_ready: bool = True  # given tables and positions need no conversion
    divides: bool = False  # given tables are first divided by the square of their scale
    inplace: bool = False
    seq_axis: int = 0  # of the first array, if no positions are given
    delta_shape: tuple[int, ...] = ()  # of a change of positions, with additional axes of size 1
    tables: Any = None
    rotate: Any = None
    extents: memory.Extents | None = None  # of all arguments, if results overwrite arrays


def plan_call(
    rope: Any, arrays: Sequence[Any], sincos: Any, positions: Any, seq_dim: int, heads_dim: int | None
) -> CallPlan:
    """The plan of a call with the query first and keys after it. `sincos` is empty if tables are not given."""
    _check_arrays(rope, arrays)
    if not sincos:
        return _plan_positions(rope, arrays, positions, seq_dim, heads_dim)
    if rope.xpos is not None:
        raise wrong_value(f"sincos must be given without xpos; got xpos={rope.xpos}")
    return _plan_tables(rope, arrays, sincos, positions, seq_dim, heads_dim)


def plan_rotation(
    rope: Any,
    arrays: Sequence[Any],
    sincos: Any,
    positions: Any,
    seq_dim: int,
    heads_dim: int | None,
    inverse: bool,
    transpose: bool,
    inplace: bool = False,
) -> CallPlan:
    """The plan of a rotation by tables or, with positions, by the rows that positions select."""
    inverse, transpose = checks.boolean("inverse", inverse), checks.boolean("transpose", transpose)
    if inverse and transpose:
        raise wrong_value("only one of inverse and transpose must be true; got both")
    _check_arrays(rope, arrays)
    plan = _plan_tables(rope, arrays, sincos, positions, seq_dim, heads_dim)
    if inplace:
        kernels.require_writable(arrays, [sincos])
    if inverse or transpose:
        plan = plan._replace(rotation=plan.rotation.inverted(), divides=inverse)
    return plan._replace(inplace=inplace)


def plan_shift(
    rope: Any, arrays: Sequence[Any], sincos: Any, delta: Any, seq_dim: int, heads_dim: int | None
) -> CallPlan:
    """The plan of a rotation of keys by a change of positions. `delta` is None for an int, and `sincos` is empty."""
    (k,) = arrays
    _check_arrays(rope, arrays, name="k")
    leading, shape = (1, (rope.axes,)) if rope.axes > 1 else (0, ())
    if delta is not None:
        if backends.namespace(delta) is None:
            raise wrong_type(f"delta must be an int or an array of real numbers; got {type(delta).__name__}")
        leading, shape = _shape_of_positions("delta", delta, rope.axes, k)
    shape = shape_of_delta(shape, leading, k.ndim - 1 - (rope.heads is not None))
    return _plan_change("delta", rope, shape, leading, arrays, seq_dim, heads_dim)


def plan_rerotation(
    rope: Any, arrays: Sequence[Any], sincos: Any, positions: Any, seq_dim: int, heads_dim: int | None
) -> CallPlan:
    """The plan of a rotation of keys at these positions by a change of frequencies. `sincos` is empty."""
    _check_arrays(rope, arrays, name="k")
    leading, shape = _shape_of_positions("positions", positions, rope.axes, arrays[0])
    return _plan_change("positions", rope, shape, leading, arrays, seq_dim, heads_dim)


def with_programs(plan: CallPlan, rope: Any, arrays: Sequence[Any], sincos: Any, positions: Any) -> CallPlan:
    """The plan together with the programs that exist for calls like this one. Such a plan is kept."""
    is_ready = positions is None or checks.are_ready_positions(positions, arrays[0])
    if plan.source == "positions" and is_ready:
        rows = align_positions(planned_positions(plan, arrays[0], positions), plan.alignments)
        factor = rope._scale.attention_factor
        frequencies, rotation = rope._frequencies, plan.rotation
        rotate = kernels.prepare_by_positions(arrays, rows, frequencies, factor, rotation, rope.kernel)
        return plan._replace(rotate=rotate)
    if plan.source == "computed" and is_ready:
        positions = planned_positions(plan, arrays[0], positions)
        plan = plan._replace(tables=table_program(rope, positions, arrays))
        sincos = () if plan.tables is None else plan.tables.run(positions)
    if not sincos:
        return plan
    divided = rope._scale.inverted(*sincos) if plan.divides else sincos
    plan = _with_rotation(plan, arrays, divided, positions, rope.kernel)
    return _with_extents(plan, arrays, sincos if positions is None else (*sincos, positions))


def _with_rotation(plan: CallPlan, arrays: Sequence[Any], sincos: Any, positions: Any, kernel: str) -> CallPlan:
    """A plan with the program that rotates, if tables and positions need no conversion."""
    if not plan.are_ready:
        return plan
    angles, names = aligned_angles(plan, arrays, sincos, positions), plan.kernels
    return plan._replace(
        rotate=kernels.prepare(names, arrays, angles, plan.alignments, plan.rotation, plan.inplace, requested=kernel)
    )


def _with_extents(plan: CallPlan, arrays: Sequence[Any], angles: tuple[Any, ...]) -> CallPlan:
    """A plan with the extents of all arguments, if its program overwrites arrays."""
    return plan._replace(extents=memory.extents((*arrays, *angles))) if plan.inplace and plan.rotate else plan


def require_disjoint(plan: CallPlan, arrays: Sequence[Any], angles: tuple[Any, ...]) -> None:
    """Check that no array that is overwritten shares memory with another argument."""
    if plan.extents is None or not plan.extents.are_apart((*arrays, *angles)):
        kernels.require_disjoint(arrays, [angles])


def rotate_planned(plan: CallPlan, arrays: Sequence[Any], sincos: Any, positions: Any, kernel: str) -> list[Any]:
    """Rotate arrays by tables, or by the rows of tables that positions select."""
    rotated = run_program(plan, arrays, (*sincos, positions) if plan.source == "rows" else sincos)
    if rotated is None:
        angles = aligned_angles(plan, arrays, sincos, positions)
        return kernels.rotate_by(plan.kernels, arrays, angles, plan.rotation, plan.inplace, requested=kernel)
    return rotated


def run_program(plan: CallPlan, arrays: Sequence[Any], angles: tuple[Any, ...]) -> list[Any] | None:
    """The results of a plan's program; None if it has none, or if it could not be launched and wrote nothing."""
    if plan.rotate is None:
        return None
    try:
        return plan.rotate.run(arrays, [angles] * len(arrays))
    except LaunchError:  # the caller then rotates without a program, and handles the error if that fails too
        return None


def rotate_by_tables(
    arrays: Sequence[Any],
    sincos: Any,
    seq_dim: int,
    rotation_of: Callable[[], Rotation],
    *options: Any,
    kernel: Kernel = "fastest",
    inplace: bool = False,
) -> list[Any]:
    """Rotate arrays by tables, without an embedding. `rotation_of` checks the options and returns the rotation."""
    sincos = pair_of(sincos)
    signature = signature_of((*arrays, *sincos), seq_dim, kernel, inplace, *options)
    plan = None if signature is None else _PLANS.get(signature)
    if plan is None:
        rotation, are_ready = rotation_of(), check_tables(arrays, sincos)
        alignments = alignments_of_tables(sincos[0].shape, arrays, seq_dim)
        names = [kernels.choose(x, kernel) for x in arrays]
        if inplace:
            kernels.require_writable(arrays, [sincos])
        plan = CallPlan(rotation, "tables", alignments, names, are_ready, inplace=inplace)
        if signature is not None:
            plan = _with_extents(_with_rotation(plan, arrays, sincos, None, kernel), arrays, sincos)
            _PLANS.add(signature, plan)
    if inplace:
        require_disjoint(plan, arrays, sincos)
    return rotate_planned(plan, arrays, sincos, None, kernel)


def table_program(rope: Any, positions: Any, arrays: Sequence[Any]) -> Any:
    """A program that computes the tables of an embedding for positions like these, which rotate arrays like these.

    None if no kernel computes such tables. They must be float32, have exact phases, and be the same for all arrays.
    """
    if rope.phase != "exact" or rope.xpos is not None:
        return None
    return kernels.prepare_tables(positions, arrays, rope._frequencies, rope.attention_factor, rope.kernel)


def planned_positions(plan: CallPlan, x: Any, positions: Any) -> Any:
    """Positions in the library of `x`: those given, or 0, 1, 2, ..."""
    if positions is None:
        return count_from("positions", 0, backends.size_of(x, plan.seq_axis), like=x)
    if plan.tables is not None or plan.rotate is not None:
        return positions
    return checks.convert_positions("positions", positions, x)


def aligned_angles(plan: CallPlan, arrays: Sequence[Any], sincos: Any, positions: Any) -> Angles:
    """Angles for each array from tables: aligned tables, or tables and the aligned positions that select their rows."""
    tables = convert_tables(arrays, sincos, plan.are_ready)
    if plan.source != "rows":
        return align_pairs(tables, plan.alignments)
    rows = align_positions(checks.convert_positions("positions", positions, arrays[0]), plan.alignments)
    return [(*pair, row) for pair, row in zip(tables, rows)]


def _plan_tables(
    rope: Any, arrays: Sequence[Any], sincos: Any, positions: Any, seq_dim: int, heads_dim: int | None
) -> CallPlan:
    if positions is not None:
        return _plan_rows(rope, arrays, sincos, positions, seq_dim, heads_dim)
    _check_heads(rope, heads_dim)
    are_ready = check_tables(arrays, sincos, rope.pairs)
    alignments = alignments_of_tables(sincos[0].shape, arrays, seq_dim, rope.heads, heads_dim)
    return _plan(rope, "tables", alignments, arrays, are_ready=are_ready)


def _plan_rows(
    rope: Any, arrays: Sequence[Any], sincos: Any, positions: Any, seq_dim: int, heads_dim: int | None
) -> CallPlan:
    """The plan of a rotation by the rows of tables that positions select."""
    if rope.heads is not None or heads_dim is not None:
        raise wrong_value(
            f"positions must select rows of tables that all heads share; "
            f"got heads={rope.heads} and heads_dim={heads_dim}"
        )
    checks.position_dtype("positions", positions, real=False)
    checks.convertible("positions", positions, arrays[0])
    are_ready = check_tables(arrays, sincos, rope.pairs) and checks.are_ready_positions(positions, arrays[0])
    shape = checks.shape(sincos[0])
    if len(shape) != 2 or shape[0] == 0:
        raise wrong_value(f"tables must be (rows, pairs) when positions select rows; got shape {shape}")
    alignments = alignments_of_positions("positions", positions.shape, arrays, seq_dim)
    return _plan(rope, "rows", alignments, arrays, are_ready=are_ready)


def _plan_positions(rope: Any, arrays: Sequence[Any], positions: Any, seq_dim: int, heads_dim: int | None) -> CallPlan:
    """The plan of a rotation by positions or, without them, by 0, 1, 2, ..."""
    seq_axis = 0
    if positions is not None:
        leading, shape = _shape_of_positions("positions", positions, rope.axes, arrays[0])
        shape = shape[leading:]
    elif rope.axes > 1:
        raise wrong_value(f"positions must be given for {rope.axes} position axes; got None")
    else:
        seq_axis = checked_seq_axis(arrays, seq_dim)
        shape = (arrays[0].shape[seq_axis],)
    alignments = _alignments_of_positions("positions", rope, shape, arrays, seq_dim)
    if heads_dim is None and _kernel_computes_angles(rope, positions, arrays):
        return CallPlan(rope._rotation, "positions", alignments, [], seq_axis=seq_axis)
    if rope.xpos is not None and len(arrays) == 1:
        raise wrong_value("xpos must have the query first and then keys; got one array (use sincos and rotate)")
    alignments = _alignments_of_tables(rope, shape, alignments, arrays, seq_dim, heads_dim)
    return _plan(rope, "computed", alignments, arrays, seq_axis=seq_axis)


def _plan_change(
    name: str,
    rope: Any,
    shape: tuple[int, ...],
    leading: int,
    arrays: Sequence[Any],
    seq_dim: int,
    heads_dim: int | None,
) -> CallPlan:
    """The plan of a rotation of keys that are rotated already. `shape` and `leading` are those of the argument."""
    alignments = _alignments_of_positions(name, rope, shape[leading:], arrays, seq_dim)
    alignments = _alignments_of_tables(rope, shape[leading:], alignments, arrays, seq_dim, heads_dim)
    # Rotated keys have the layout that the rotation wrote.
    plan = _plan(rope, "change", alignments, arrays, delta_shape=shape)
    return plan._replace(rotation=plan.rotation._replace(read=plan.rotation.write))


def _shape_of_positions(name: str, positions: Any, axes: int, like: Any) -> tuple[int, tuple[int, ...]]:
    """Check positions. The number of their leading axes that are position axes (0 or 1), and their shape."""
    checks.position_dtype(name, positions)
    checks.convertible(name, positions, like)
    return leading_axes(name, positions, axes), positions.shape


def _check_arrays(rope: Any, arrays: Sequence[Any], name: str = "x") -> None:
    """Arrays must have `head_dim` channels, and belong to one library and device."""
    for x in arrays:
        checks.floating(name, x)
        if not x.ndim or x.shape[-1] != rope.head_dim:
            raise wrong_value(f"{name} must have head_dim={rope.head_dim} channels; got shape {checks.shape(x)}")
        if x is not arrays[0]:
            checks.same_library(name, x, arrays[0])


def _check_heads(rope: Any, heads_dim: int | None) -> None:
    if (heads_dim is None) != (rope.heads is None):
        raise wrong_value(
            f"heads_dim must be given if, and only if, each head has its own frequencies; got heads_dim={heads_dim}"
        )


def _alignments_of_positions(
    name: str, rope: Any, shape: Sequence[int], arrays: Sequence[Any], seq_dim: int
) -> list[Alignment]:
    """The alignments of positions of this shape. Empty if heads have their own frequencies: only tables are aligned."""
    return [] if rope.heads is not None else alignments_of_positions(name, shape, arrays, seq_dim)


def _alignments_of_tables(
    rope: Any,
    shape: Sequence[int],
    alignments: list[Alignment],
    arrays: Sequence[Any],
    seq_dim: int,
    heads_dim: int | None,
) -> list[Alignment]:
    """The alignments of tables. They are computed from positions that have this shape and these alignments."""
    _check_heads(rope, heads_dim)
    if rope.heads is None:
        return [Alignment((*each.shape, rope.pairs)) for each in alignments]
    return alignments_of_tables((*shape, rope.heads, rope.pairs), arrays, seq_dim, rope.heads, heads_dim)


def _kernel_computes_angles(rope: Any, positions: Any, arrays: Sequence[Any]) -> bool:
    """Whether the kernel for the arrays computes angles from integer positions, so that no tables are needed."""
    is_plain = rope._frequencies.is_single_row and rope.phase == "exact" and rope.xpos is None
    are_integers = positions is None or not backends.is_real(positions)
    return is_plain and are_integers and all([kernels.computes_angles(x, rope.kernel) for x in arrays])


def _plan(rope: Any, source: Any, alignments: list[Alignment], arrays: Sequence[Any], **others: Any) -> CallPlan:
    """A plan with the rotation of the embedding and the kernel for each array."""
    names = [kernels.choose(x, rope.kernel) for x in arrays]
    return CallPlan(rope._rotation, source, alignments, names, **others)
