"""CUDA: several arrays rotated by one launch of a Triton kernel, behind operators that torch knows.

The angles come from tables opposite the pairs, from those rows of a table that positions choose, or from positions
alone: the exact phases of `rope_xp.phases`, made where they are used. `torch.compile`, `torch.export`, autograd and
fake tensors see `torch.ops.rope_xp.rotate` and `torch.ops.rope_xp.rotate_`, which exist from the import of this file.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false

from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from math import gcd, prod
from typing import Any, NamedTuple

import torch
import triton
from torch.autograd import forward_ad
from triton import knobs
from triton.runtime import driver

from rope_xp import phases
from rope_xp.kernels import cuda_kernel
from rope_xp.kernels.cuda_kernel import Task, packed
from rope_xp.kernels.turn import Turn

Tables = tuple[torch.Tensor, torch.Tensor]
Axes = tuple[int, ...]

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32)

# Triton interprets its kernels, on the CPU, where the environment asks for it when they are defined.
INTERPRETED = knobs.runtime.interpret
PLACES = ("cuda", "memory") if INTERPRETED else ("cuda",)

if torch.cuda.is_available() and not INTERPRETED:
    try:
        driver.active  # noqa: B018 - builds Triton's launcher, for which many images have no C compiler
    except Exception as problem:
        raise ImportError(f"Triton cannot launch kernels here: {problem}") from problem

WARPS = 4
# A program takes up to so many heads of its rows, since a head's sines and cosines are as many bytes as the head read
# and written in bfloat16; but one only as long as there are fewer programs than keep a device busy.
HEADS, PROGRAMS = 8, 1024

# The coefficients of `phases`, by width of phase, without those that are added apart.
SINE = {0: (), **{bits: (terms[0] - 1.5, *terms[1:]) for bits, terms in phases.SINE.items()}}
COSINE = {0: (), **{bits: (terms[1] + 1.25, *terms[2:]) for bits, terms in phases.COSINE.items()}}


class Angles(NamedTuple):
    """Sines and cosines of every array; or of all arrays, and the positions of each; or frequencies, and positions."""

    sin: Sequence[torch.Tensor] = ()
    cos: Sequence[torch.Tensor] = ()
    positions: Sequence[torch.Tensor] = ()
    turns: torch.Tensor | None = None
    scale: float = 1.0

    def of(self, index: int) -> tuple[Any, Any, Any, Any]:
        """Sine, cosine, positions and frequencies of one array; None for what there is not."""
        positions = self.positions[index] if self.positions else None
        if self.turns is not None:
            return None, None, positions, self.turns
        index = index if positions is None else 0
        return self.sin[index], self.cos[index], positions, None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def supports(x: Any) -> str | None:
    """What the kernel needs and `x` is not, for "needs ...; got ..."; None where it can rotate `x`."""
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
        return f"dense torch tensors; got {type(x).__name__}"
    if x.dtype not in FLOATS:
        return f"float16, bfloat16, float32 or float64; got {_name(x.dtype)}"
    if not (x.is_cuda or (INTERPRETED and x.is_cpu)):
        return f"a CUDA device; got {x.device.type}"
    return None


def rotate(
    x: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor, turn: Turn, out: torch.Tensor | None = None
) -> torch.Tensor:
    """`reference.rotate` into `out`, which may be `x` itself, or into new memory in the order of `x`."""
    if out is None or out is x:
        return rotate_all([x], [(sin, cos)], turn, inplace=out is x)[0]
    _launch([x], [out], Angles([sin], [cos]), turn)
    return out


def rotate_all(
    xs: Sequence[torch.Tensor], tables: Sequence[Tables], turn: Turn, inplace: bool = False
) -> list[torch.Tensor]:
    """Turn the pairs of several arrays by the angles of their tables, in one launch.

    Parameters
    ----------
    xs : sequence of tensors, "*axes dim"
        Of one dtype and device, each with axes and strides of its own.
    tables : sequence of (sin, cos), "*axes pairs"
        For each array: as many axes as it has, each of its size or 1; float64 for float64 arrays, else float32. The
        number of pairs is one for all.
    turn : Turn
    inplace : bool
        Write to `xs`, in which each element has memory of its own. That is not checked here.

    Returns
    -------
    list of tensors, "*axes dim"
        `xs` themselves with `inplace`.
    """
    return _rotate(xs, Angles([sin for sin, _ in tables], [cos for _, cos in tables]), turn, inplace)


def rotate_by_rows(
    xs: Sequence[torch.Tensor], tables: Tables, positions: Sequence[torch.Tensor], turn: Turn, *, inplace: bool = False
) -> list[torch.Tensor]:
    """`rotate_all` by those rows of one (sin, cos), "rows pairs", that positions choose; by NaN where there is none.

    `positions` are integers, "*axes", for each array: one axis less than it has, each of its size or 1.
    """
    return _rotate(xs, Angles([tables[0]], [tables[1]], list(positions)), turn, inplace)


def rotate_by_positions(
    xs: Sequence[torch.Tensor],
    turns: torch.Tensor,
    positions: Sequence[torch.Tensor],
    turn: Turn,
    *,
    scale: float = 1.0,
    inplace: bool = False,
) -> list[torch.Tensor]:
    """`rotate_all` by angles made in the kernel: positions, as in `rotate_by_rows`, times frequencies; exact.

    `turns` are the frequencies, from `turns_of`; sines and cosines are multiplied by `scale`.
    """
    return _rotate(xs, Angles(positions=list(positions), turns=turns, scale=scale), turn, inplace)


def turns_of(row: phases.Row, like: torch.Tensor) -> torch.Tensor:
    """Frequencies beside `like`, in turns per position: 64 bits after the point, and the next 32; int64, "two pairs".

    To be kept by the caller: it waits for a copy from the host.
    """
    words = row.turns(64, like=like.new_empty(0))
    return torch.stack([words.high, words.low])


def _rotate(xs: Sequence[torch.Tensor], angles: Angles, turn: Turn, inplace: bool) -> list[torch.Tensor]:
    xs, forward_mode = list(xs), forward_ad._current_level >= 0
    if inplace:
        if forward_mode or (torch.is_grad_enabled() and any(x.requires_grad for x in xs)):
            raise ValueError(
                "rotate: tensors that are written in place must not be differentiated; got one that may be"
            )
        torch.ops.rope_xp.rotate_(xs, *angles, *turn)
        return xs
    tracing = torch.compiler.is_compiling()
    if not tracing and (forward_mode or torch._C._are_functorch_transforms_active()):
        return [_Rotation.apply(turn, angles.scale, x, *angles.of(index)) for index, x in enumerate(xs)]
    if tracing or not _are_plain((*xs, *angles.sin, *angles.cos)):
        return torch.ops.rope_xp.rotate(xs, *angles, *turn)
    # What the operator does, without the dispatcher, which takes as long as the launch.
    outs = [torch.empty_like(x) for x in xs]
    _launch(xs, outs, angles, turn)
    return outs


def _are_plain(tensors: tuple[torch.Tensor, ...]) -> bool:
    """Whether no gradient, mode, tracer or subclass has to see what is done to the tensors."""
    if torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state() is not None:
        return False
    grad = torch.is_grad_enabled()
    for x in tensors:
        if type(x) not in (torch.Tensor, torch.nn.Parameter) or (grad and x.requires_grad) or x.is_neg():
            return False
    return True


_HOW = (  # the fields of Angles, and those of Turn
    "Tensor[] sin, Tensor[] cos, Tensor[] positions, Tensor? turns, float scale, "
    "str read, str write, int first_channel, int blocks, bool inverse"
)
torch.library.define("rope_xp::rotate", f"(Tensor[] xs, {_HOW}) -> Tensor[]")
torch.library.define("rope_xp::rotate_", f"(Tensor(a!)[] xs, {_HOW}) -> ()")


def _angles_and_turn(how: tuple) -> tuple[Angles, Turn]:
    fields = len(Angles._fields)
    return Angles(*how[:fields]), Turn(*how[fields:])


def _rotated(xs: list, *how: Any) -> list:
    outs = [torch.empty_like(x) for x in xs]
    _launch(xs, outs, *_angles_and_turn(how))
    return outs


def _rotate_inplace(xs: list, *how: Any) -> None:
    # No kernel of autograd stands before this one to do it.
    torch.autograd.graph.increment_version([x for x in xs if not x.is_inference()])
    _launch(xs, xs, *_angles_and_turn(how))


torch.library.impl("rope_xp::rotate", "default", _rotated)
torch.library.impl("rope_xp::rotate_", "default", _rotate_inplace)


@torch.library.register_fake("rope_xp::rotate")
def _(xs: list, *how: Any) -> list:
    return [torch.empty_like(x) for x in xs]


@torch.library.register_fake("rope_xp::rotate_")
def _(xs: list, *how: Any) -> None:
    pass


def _keep_angles(ctx: Any, inputs: tuple, output: list) -> None:
    angles, ctx.turn = _angles_and_turn(inputs[1:])
    _refuse_gradient(*angles.sin, *angles.cos)
    ctx.save_for_backward(*angles.sin, *angles.cos, *angles.positions, angles.turns)
    ctx.tables, ctx.scale = len(angles.sin), angles.scale


def _turn_back(ctx: Any, gradients: list) -> tuple:
    *saved, turns = ctx.saved_tensors
    sin, cos, positions = saved[: ctx.tables], saved[ctx.tables : 2 * ctx.tables], saved[2 * ctx.tables :]
    angles = Angles(sin, cos, positions, turns, ctx.scale)
    none = [None] * len(sin), [None] * len(cos), [None] * len(positions), None, None, *[None] * len(ctx.turn)
    return torch.ops.rope_xp.rotate(gradients, *angles, *ctx.turn.undone()), *none


def _refuse_gradient(*tables: Any) -> None:
    if any(table is not None and table.requires_grad for table in tables):
        raise NotImplementedError("rotate: tables that require grad need kernel='reference'; got one that does")


torch.library.register_autograd("rope_xp::rotate", _turn_back, setup_context=_keep_angles)


class _Rotation(torch.autograd.Function):
    """One array rotated where `torch.library` knows no derivatives: by `torch.func`, and in forward mode."""

    generate_vmap_rule = True

    @staticmethod
    def forward(turn: Turn, scale: float, x: Any, sin: Any, cos: Any, positions: Any, turns: Any) -> Any:
        lists = [[] if each is None else [each] for each in (sin, cos, positions)]
        return torch.ops.rope_xp.rotate([x], *lists, turns, scale, *turn)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        ctx.turn, ctx.scale, _, sin, cos, *_ = inputs
        _refuse_gradient(sin, cos)
        ctx.save_for_backward(*inputs[3:])
        ctx.save_for_forward(*inputs[3:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        if gradient is not None:
            gradient = _Rotation.apply(ctx.turn.undone(), ctx.scale, gradient, *ctx.saved_tensors)
        return None, None, gradient, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, _turn: None, _scale: None, tangent: Any, *others: Any) -> Any:
        if any(other is not None for other in others):
            raise NotImplementedError("rotate: tables that require grad need kernel='reference'; got one that does")
        return None if tangent is None else _Rotation.apply(ctx.turn, ctx.scale, tangent, *ctx.saved_tensors)


def _map(info: Any, dims: tuple, *inputs: Any) -> tuple:
    outs = torch.ops.rope_xp.rotate(*_batch_first(info, dims, inputs))
    return outs, [0] * len(outs)


def _map_inplace(info: Any, dims: tuple, *inputs: Any) -> tuple:
    if None in dims[0]:
        raise ValueError("rotate: tensors written in place must be mapped over by vmap; got one that is not")
    torch.ops.rope_xp.rotate_(*_batch_first(info, dims, inputs))
    return None, None


torch.library.register_vmap("rope_xp::rotate", _map)
torch.library.register_vmap("rope_xp::rotate_", _map_inplace)


def _batch_first(info: Any, dims: tuple, inputs: tuple) -> tuple:
    """The inputs with one axis more in front: the batch, or 1 where there is none."""
    xs, sin, cos, positions, turns, *rest = inputs
    xs, positions = _each_batch_first(xs, dims[0]), _each_batch_first(positions, dims[3])
    xs = [x.expand(info.batch_size, *x.shape[1:]) for x in xs]
    if not positions:
        sin, cos = _each_batch_first(sin, dims[1]), _each_batch_first(cos, dims[2])
    elif any(dim is not None for dim in (*dims[1], *dims[2], dims[4])):
        raise NotImplementedError("rotate: positions need tables that vmap does not map over; got one that it does")
    return xs, sin, cos, positions, turns, *rest


def _each_batch_first(tensors: list, dims: Any) -> list:
    return [x[None] if dim is None else x.movedim(dim, 0) for x, dim in zip(tensors, dims)]


def _launch(xs: list, outs: list, angles: Angles, turn: Turn) -> None:
    """Rotate `xs` into `outs`, which may be `xs`; arrays without elements have no part in it."""
    tasks, units, programs, pairs, padded, rows = [], [], 0, 0, 0, 0
    for index, (x, out) in enumerate(zip(xs, outs)):
        needed = supports(x)
        if needed is not None:
            raise ValueError(f"rotate: the Triton kernel needs {needed}")
        if x.numel() == 0:
            continue
        sin, cos, positions, turns = angles.of(index)
        if turns is None:
            sin, cos = _alike(sin, cos, x)
        table = sin if turns is None else turns
        table_shape, table_strides = table.shape, table.stride()
        if not tasks:
            pairs = table_shape[-1]
            padded = triton.next_power_of_2(pairs)
            # As many rows as give each thread of a program 16 bytes of either half of them.
            rows = max(1, 32 * WARPS * (16 // x.element_size()) // padded)
        if table_shape[-1] != pairs or not 0 < 2 * pairs <= x.shape[-1] - turn.first_channel:
            raise ValueError(
                f"rotate: tables must have as many pairs as each other, within the channels from "
                f"{turn.first_channel} on; got {table_shape[-1]} pairs for {x.shape[-1]} channels"
            )
        where = None
        if positions is not None:
            if positions.dtype not in INTEGERS:
                raise TypeError(f"rotate: positions must be integers; got {_name(positions.dtype)}")
            where = positions.shape, positions.stride()
        more, geometry, units_of_task = _geometry(
            x.shape, x.stride(), out.stride(), table_shape, table_strides, where, rows, HEADS, PROGRAMS
        )
        programs += more
        tasks.append(Task(x, out, table, cos, positions, packed(programs), *geometry))
        units.append(units_of_task)
    if not tasks:
        return
    x = tasks[0].x
    bits = 0 if angles.turns is None else 64 if x.dtype == torch.float64 else 32
    with nullcontext() if x.is_cpu else torch.cuda.device_of(x):
        cuda_kernel.rotate[(programs,)](
            tuple(tasks),
            WIDTHS=tuple([task.x.shape[-1] for task in tasks]),
            UNITS=tuple(units),
            SOURCE="tables" if not angles.positions else "rows" if angles.turns is None else "turns",
            SCALE=angles.scale,
            SINE=SINE[bits],
            COSINE=COSINE[bits],
            BITS=bits,
            READ=turn.read,
            WRITE=turn.write,
            FIRST=turn.first_channel,
            BLOCKS=turn.blocks,
            INVERSE=turn.inverse,
            IN_PLACE=outs[0] is xs[0],
            PAIRS=pairs,
            PADDED=padded,
            ROWS=rows,
            num_warps=WARPS,  # pyright: ignore[reportCallIssue] - an option of Triton's
        )


def _alike(sin: torch.Tensor, cos: torch.Tensor, x: torch.Tensor) -> Tables:
    """Tables with the same strides, after a look whether they are right for `x`."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    if sin.dtype != dtype or cos.dtype != dtype:
        raise TypeError(
            f"rotate: tables for {_name(x.dtype)} must be {_name(dtype)}; got {_name(sin.dtype)} and {_name(cos.dtype)}"
        )
    if sin.shape != cos.shape:
        raise ValueError(f"rotate: sin and cos must have one shape; got {tuple(sin.shape)} and {tuple(cos.shape)}")
    return (sin, cos) if sin.stride() == cos.stride() else (sin.contiguous(), cos.contiguous())


@lru_cache(maxsize=256)  # as every step of decoding, and every layer, asks the same
def _geometry(
    sizes: Axes,
    x_strides: Axes,
    out_strides: Axes,
    table_shape: Axes,
    table_strides: Axes,
    positions: tuple[Axes, Axes] | None,
    rows_of_program: int,
    most_heads: int,
    many_programs: int,
) -> tuple[int, tuple[Any, ...], tuple[int, int, int]]:
    """The number of programs for an array, the fields of its `Task` after that, and the units of its strides.

    One axis is called heads: the longest of those along which the angles are the same. The others make up the rows.
    """
    if positions is None:
        shape, angle_strides, table_rows, table_row = table_shape[:-1], table_strides, 0, 0
    else:
        (shape, angle_strides), table_rows, table_row = positions, table_shape[0], table_strides[0]
    if len(shape) != len(sizes) - 1 or not all(given in (1, size) for given, size in zip(shape, sizes)):
        raise ValueError(
            f"rotate: axes of angles must be as many as those of the array, each of its size or 1; "
            f"got {tuple(shape)} for {tuple(sizes[:-1])}"
        )
    # Strides of single elements mean nothing.
    x_steps, out_steps, angle_steps = (
        [0 if size == 1 else step for size, step in zip(lengths, steps)]
        for lengths, steps in ((sizes, x_strides), (sizes, out_strides), (shape, angle_strides))
    )
    # What divides strides; accesses are at most 16 elements wide, and positions are read one by one.
    unit = gcd(16, *x_steps[:-1], *out_steps[:-1])
    angle_unit = gcd(16, *angle_steps) if positions is None else 1
    table_unit = gcd(16, table_row)
    axes = [
        (size, x_step // unit, out_step // unit, angle_step // angle_unit)
        for size, x_step, out_step, angle_step in zip(sizes, x_steps, out_steps, angle_steps)
    ]
    alike = [axis for axis, step in enumerate(angle_steps) if step == 0]
    heads, x_head, out_head, _ = axes.pop(max(alike, key=sizes.__getitem__)) if alike else (1, 0, 0, 0)
    rows = prod(size for size, *_ in axes)
    blocks = -(-rows // rows_of_program)
    heads_of_program = max(1, min(most_heads, heads * blocks // many_programs))
    numbers = (table_row // table_unit, table_rows, rows, heads, heads_of_program, x_head, out_head)
    geometry = (
        x_strides[-1],
        out_strides[-1],
        table_strides[-1],
        *map(packed, numbers),
        tuple(tuple(map(packed, axis)) for axis in reversed(axes)),
    )
    return blocks * -(-heads // heads_of_program), geometry, (unit, angle_unit, table_unit)
