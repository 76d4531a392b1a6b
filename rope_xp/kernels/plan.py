"""The steps of every call that rotates: `execute` finds or makes a plan, makes angles, and runs a program."""

# - A signature (`rope_xp.arrays.signature`) has the dtypes, shapes, strides and options of a call, and no values.
# - A plan (`CallPlan`) is all that is decided before a call computes. It follows from the signature alone, because no
#   function that makes a plan reads the values of an array. So calls with one signature share one plan.
# - Angles (`Angles` in `reference.py`) say how far each array is rotated: tables, or positions.
# - A program computes, by its method `run`: `CallPlan.program` rotates arrays, and `CallPlan.table_programs` compute
#   tables. Kernels prepare fast programs for arrays like those of the first call with a signature. `GeneralProgram` and
#   `GeneralTableProgram` prepare nothing, and accept all arrays.
# - `kernels.choose` says which kernel takes an array, and `kernels.program_of` which program runs. If one kernel takes
#   all arrays and the call has a signature, it is the program of that kernel. Where tensors require grad, `autograd`
#   wraps it; where Triton fails, the general program runs in its place. Else it is `GeneralProgram`.
# - Fast programs are prepared from angles that are aligned with their arrays. They run with angles as the call has
#   them: programs of numba and Triton read only their addresses then, and those of "blocked" reshape them.

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from rope_xp import kernels
from rope_xp.arrays import checks, libraries, memory
from rope_xp.arrays.alignment import (
    Alignment,
    alignments_of_positions,
    alignments_of_tables,
    check_position_axes,
    checked_seq_axis,
    shape_of_delta,
)
from rope_xp.arrays.signature import Plans, signature_of
from rope_xp.errors import wrong_type, wrong_value
from rope_xp.kernels import Kernel
from rope_xp.kernels.angles import GeneralTableProgram, fast_table_program
from rope_xp.kernels.reference import Angles, Rotation
from rope_xp.kernels.tables import check_tables, convert_tables, pair_of
from rope_xp.positions.sequence import count_from
from rope_xp.types import Array, Embedding

# The plans of functions that take no embedding.
_PLANS = Plans()


class CallPlan(NamedTuple):
    """What all calls with one signature do."""

    rotation: Rotation
    # Where angles come from:
    # - "tables": tables that are given;
    # - "rows": rows of given tables, which positions select;
    # - "positions": positions alone, from which the kernel that rotates computes the angles;
    # - "computed": tables that `table_programs` compute from positions;
    # - "change": tables for a change of the positions or the frequencies of arrays that are rotated already.
    source: Literal["tables", "rows", "positions", "computed", "change"]
    alignments: list[Alignment]  # of tables or positions, with each array
    names: list[str]  # of the kernel for each array
    requested: str  # the kernel that the user chose
    are_ready: bool = True  # given tables and positions need no conversion
    divides: bool = False  # given tables are first divided by the square of their scale
    inplace: bool = False
    seq_axis: int = 0  # of the first array, if no positions are given
    delta_shape: tuple[int, ...] = ()  # of a change of positions, with additional axes of size 1
    table_programs: tuple[Any, ...] = ()  # of the query and of keys, or one for all arrays
    program: Any = None  # `run(arrays, angles)` rotates, by angles that may lack axes of size 1
    extents: memory.Extents | None = None  # the memory of all arguments, if results overwrite arrays


class Call(NamedTuple):
    """The arguments of a call with an embedding."""

    rope: Embedding
    arrays: Sequence[Array]
    sincos: Any  # empty if tables are not given
    positions: Any  # or their change
    seq_dim: int
    heads_dim: int | None = None


def plan_call(call: Call) -> CallPlan:
    """The plan of a call with the query first and keys after it."""
    _check_arrays(call)
    if not call.sincos:
        return _plan_positions(call)
    if call.rope.xpos is not None:
        raise wrong_value(f"sincos must be given without xpos; got xpos={call.rope.xpos}")
    return _plan_tables(call)


def plan_rotation(call: Call, inverse: bool, transpose: bool, inplace: bool = False) -> CallPlan:
    inverse, transpose = checks.boolean("inverse", inverse), checks.boolean("transpose", transpose)
    if inverse and transpose:
        raise wrong_value("only one of inverse and transpose must be true; got both")
    _check_arrays(call)
    plan = _plan_tables(call)
    if inplace:
        checks.writable(call.arrays, call.sincos)  # this follows from the signature, too
    if inverse or transpose:
        plan = plan._replace(rotation=plan.rotation.inverted(), divides=inverse)
    return plan._replace(inplace=inplace)


def plan_shift(call: Call) -> CallPlan:
    rope, (k,), delta = call.rope, call.arrays, call.positions
    _check_arrays(call, name="k")
    of_tokens = ()
    if delta is not None:
        if libraries.namespace(delta) is None:
            raise wrong_type(f"delta must be an int or an array of real numbers; got {type(delta).__name__}")
        of_tokens = _token_axes("delta", call)
    return _plan_change("delta", call, shape_of_delta(of_tokens, k.ndim - 1 - (rope.heads is not None)))


def plan_rerotation(call: Call) -> CallPlan:
    _check_arrays(call, name="k")
    return _plan_change("positions", call, _token_axes("positions", call))


def execute(
    rope: Any,
    make: Callable[..., CallPlan],
    angles_of: Callable[..., Angles],
    arrays: tuple[Any, ...],
    tables: Any,
    positions: Any,
    *options: Any,
) -> list[Any]:
    """The one way of every rotation. `make` makes its plan, and `angles_of` makes its angles."""
    # The program is prepared from the angles of the first call with a signature, and kept with the plan. A call without
    # a signature makes its program, runs it once, and drops it.
    # Calls and rotations share `plans`, so the name of `make` is in the key.
    # Not by `getattr`, for which `torch.compile` adds a guard on the number of plans.
    plans: Any = rope._plans if rope else _PLANS
    given = tables if positions is None else (*tables, positions)
    key = signature_of((*arrays, *given), make.__name__, len(arrays), *options)
    plan = None if key is None else plans.get(key)
    if plan is None:
        seq_dim, heads_dim, *flags = options
        plan = make(Call(rope, arrays, tables, positions, seq_dim, heads_dim), *flags)
        if plan.source == "computed":
            plan = plan._replace(table_programs=_table_programs(plan, rope, arrays, positions, key is not None))
        angles = angles_of(plan, rope, arrays, tables, positions)
        # Learned frequencies, also those of another embedding, may need a derivative in one call and none in the next,
        # with the same signature. So a program for them is not kept.
        may_be_learned = len(tables) == 0 and (plan.source == "change" or not rope._frequencies.are_floats)
        program = kernels.program_of(plan, rope, arrays, angles, may_be_kept=key is not None and not may_be_learned)
        has_extents = plan.inplace and plan.are_ready and not isinstance(program, kernels.GeneralProgram)
        plan = plan._replace(program=program, extents=memory.extents((*arrays, *given)) if has_extents else None)
        if key is not None:
            plans.add(key, plan)
    else:
        angles = angles_of(plan, rope, arrays, tables, positions)
    # Each call checks it, because addresses may differ.
    if plan.inplace and (plan.extents is None or not plan.extents.are_apart((*arrays, *given))):
        checks.require_disjoint(arrays, [given], by_address=not kernels.is_traced_tensor(arrays[0]))
    return plan.program.run(arrays, angles)


def angles_of_call(plan: CallPlan, rope: Embedding, arrays: tuple[Any, ...], tables: Any, positions: Array) -> Angles:
    if plan.source in ("tables", "rows"):
        if plan.divides:
            tables = rope._scale.inverted(*tables)
        if plan.source == "rows":
            return _rows(plan, arrays, tables, positions)
        return convert_tables(arrays, tables, plan.are_ready)
    if positions is None:
        positions = _consecutive(plan, arrays)
    elif not plan.are_ready:
        positions = checks.convert_positions("positions", positions, arrays[0])
    if plan.source == "positions":
        return [(positions,)] * len(arrays)
    if not isinstance(plan.table_programs[0], GeneralTableProgram):  # of a kernel: all arrays take its tables
        return [plan.table_programs[0].run(positions, arrays[0])] * len(arrays)
    widest = next((array for array in arrays if libraries.dtype_name(array.dtype) == "float64"), arrays[0])
    # The first tables are those of the query, and the last ones those of keys. Without xpos, there is only one program.
    computed = [program.run(positions, widest) for program in plan.table_programs]
    return convert_tables(arrays[:1], computed[0]) + convert_tables(arrays[1:], computed[-1])


def angles_of_shift(
    delta: object, plan: CallPlan, rope: Embedding, arrays: tuple[Any, ...], tables: object, positions: Array
) -> Angles:
    """The angles of a change of positions. `delta` is an int where `positions` are None."""
    (k,) = arrays
    if delta is None:  # `plan_shift` then took it for an int
        raise wrong_type("delta must be an int or an array of real numbers; got None")
    if positions is None:
        delta = count_from("delta", delta, 1, like=k)[0]
        if rope.axes > 1:
            delta = libraries.namespace(delta).stack([delta] * rope.axes)
    change = checks.convert_positions("delta", delta, k)
    change = libraries.with_axes(libraries.namespace(change), change, plan.delta_shape)
    sin, cos = GeneralTableProgram.of(rope).unscaled(change, k)
    if rope.xpos is not None:
        # The change of a key's scale over `delta` tokens does not depend on the centre.
        scale = rope._scale.over(change, -1, sin)
        sin, cos = sin * scale, cos * scale
    return [(sin, cos)]


def angles_of_rerotation(
    to: Any, plan: CallPlan, rope: Any, arrays: tuple[Any, ...], tables: Any, positions: Any
) -> Angles:
    (k,) = arrays
    positions = checks.convert_positions("positions", positions, k)
    # Both pairs of tables have exact phases, so that the sine and the cosine of their difference do too.
    sin, cos = rope._scale.inverted(*rope.sincos(positions, like=k, role="key"))
    new_sin, new_cos = to.sincos(positions, like=k, role="key")
    return [(new_sin * cos - new_cos * sin, new_cos * cos + new_sin * sin)]


def _consecutive(plan: CallPlan, arrays: tuple[Any, ...]) -> Any:
    return count_from("positions", 0, libraries.size_of(arrays[0], plan.seq_axis), like=arrays[0])


def _rows(plan: CallPlan, arrays: tuple[Any, ...], tables: Any, positions: Array) -> Angles:
    if plan.are_ready:
        return [(*tables, positions)] * len(arrays)
    positions = checks.convert_positions("positions", positions, arrays[0])
    return [(*pair, positions) for pair in convert_tables(arrays, tables)]


def _table_programs(
    plan: CallPlan, rope: Embedding, arrays: tuple[Any, ...], positions: Array | None, may_be_kept: bool
) -> tuple[Any, ...]:
    """The programs that compute tables from positions: for the query and for keys, or one for all arrays."""
    if rope.xpos is not None:
        return tuple([GeneralTableProgram.of(rope, role) for role in ("query", "key")])
    fast = None
    if may_be_kept and plan.are_ready:
        fast = fast_table_program(rope, _consecutive(plan, arrays) if positions is None else positions, arrays)
    return (GeneralTableProgram.of(rope) if fast is None else fast,)


def rotate_by_tables(
    arrays: Sequence[Any],
    sincos: object,
    seq_dim: int,
    rotation_of: Callable[[], Rotation],
    *options: Any,
    kernel: Kernel = "fastest",
    inplace: bool = False,
) -> list[Any]:
    """Rotate arrays by tables, without an embedding. `rotation_of` checks the options and returns the rotation."""

    def plan_given_tables(*_: Any) -> CallPlan:
        rotation, are_ready = rotation_of(), check_tables(arrays, tables)
        alignments = alignments_of_tables(tables[0].shape, arrays, seq_dim)
        names = [kernels.choose(x, kernel) for x in arrays]
        if inplace:
            checks.writable(arrays, tables)
        return CallPlan(rotation, "tables", alignments, names, kernel, are_ready, inplace=inplace)

    tables, given = pair_of(sincos), (seq_dim, None, kernel, inplace)
    return execute(None, plan_given_tables, angles_of_call, tuple(arrays), tables, None, *given, *options)


def _plan_tables(call: Call) -> CallPlan:
    if call.positions is not None:
        return _plan_rows(call)
    rope, (sin, _) = call.rope, call.sincos
    _check_heads(call)
    are_ready = check_tables(call.arrays, call.sincos, rope.pairs)
    alignments = alignments_of_tables(sin.shape, call.arrays, call.seq_dim, rope.heads, call.heads_dim)
    return _plan("tables", call, alignments, are_ready=are_ready)


def _plan_rows(call: Call) -> CallPlan:
    rope, arrays, sincos, positions, seq_dim, heads_dim = call
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
    return _plan("rows", call, alignments, are_ready=are_ready)


def _plan_positions(call: Call) -> CallPlan:
    rope, arrays, _, positions, seq_dim, heads_dim = call
    seq_axis = 0
    if positions is not None:
        shape = _token_axes("positions", call)
    elif rope.axes > 1:
        raise wrong_value(f"positions must be given for {rope.axes} position axes; got None")
    else:
        seq_axis = checked_seq_axis(arrays, seq_dim)
        shape = (arrays[0].shape[seq_axis],)
    of_positions, of_tables = _alignments_of_computed("positions", call, shape)
    are_ready = positions is None or checks.are_ready_positions(positions, arrays[0])
    if heads_dim is None and _kernel_computes_angles(call):
        return _plan("positions", call, of_positions, are_ready=are_ready, seq_axis=seq_axis)
    if rope.xpos is not None and len(arrays) == 1:
        raise wrong_value("xpos must have the query first and then keys; got one array (use sincos and rotate)")
    return _plan("computed", call, of_tables, are_ready=are_ready, seq_axis=seq_axis)


def _plan_change(name: str, call: Call, shape: Sequence[int]) -> CallPlan:
    _, alignments = _alignments_of_computed(name, call, shape)
    # Rotated keys have the layout that the rotation wrote.
    axes = call.rope.axes
    plan = _plan("change", call, alignments, delta_shape=(*[axes] * (axes > 1), *shape))
    return plan._replace(rotation=plan.rotation._replace(read=plan.rotation.write))


def _token_axes(name: str, call: Call) -> tuple[int, ...]:
    """The shape of the call's positions, without position axes."""
    checks.position_dtype(name, call.positions)
    checks.convertible(name, call.positions, call.arrays[0])
    check_position_axes(name, call.positions, call.rope.axes)
    return call.positions.shape[int(call.rope.axes > 1) :]


def _check_arrays(call: Call, name: str = "x") -> None:
    first, head_dim = call.arrays[0], call.rope.head_dim
    for number, x in enumerate(call.arrays, 1):
        name = name if number == 1 else f"array {number}"
        # Positions that are given without their name count as another array.
        checks.floating(name, x, of_integers=": give positions by name, positions=..." if number > 1 else "")
        if not x.ndim or x.shape[-1] != head_dim:
            raise wrong_value(f"{name} must have head_dim={head_dim} channels; got shape {checks.shape(x)}")
        if number > 1:
            checks.same_library(name, x, first)


def _check_heads(call: Call) -> None:
    if (call.heads_dim is None) != (call.rope.heads is None):
        raise wrong_value(
            f"heads_dim must be given if, and only if, each head has its own frequencies; "
            f"got heads_dim={call.heads_dim}"
        )


def _alignments_of_computed(name: str, call: Call, shape: Sequence[int]) -> tuple[list[Alignment], list[Alignment]]:
    """The alignments of positions of this shape, and of their tables: of these alone if heads have own frequencies."""
    rope, arrays, seq_dim = call.rope, call.arrays, call.seq_dim
    heads, pairs = rope.heads, rope.pairs
    if heads is None:
        of_positions = alignments_of_positions(
            name if rope.axes == 1 else f"{name} of each axis", shape, arrays, seq_dim
        )
        _check_heads(call)
        return of_positions, [Alignment((*each.shape, pairs)) for each in of_positions]
    _check_heads(call)
    return [], alignments_of_tables((*shape, heads, pairs), arrays, seq_dim, heads, call.heads_dim)


def _kernel_computes_angles(call: Call) -> bool:
    """Whether the kernel for the arrays computes angles from integer positions, so that no tables are needed."""
    rope, positions = call.rope, call.positions
    is_plain = rope._frequencies.is_single_row and rope.phase == "exact" and rope.xpos is None
    are_integers = positions is None or not libraries.is_real(positions)
    return is_plain and are_integers and all([kernels.computes_angles(x, rope.kernel) for x in call.arrays])


def _plan(source: Any, call: Call, alignments: list[Alignment], **others: Any) -> CallPlan:
    rope = call.rope
    names = [kernels.choose(x, rope.kernel) for x in call.arrays]
    return CallPlan(rope._rotation, source, alignments, names, rope.kernel, **others)
