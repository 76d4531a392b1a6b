"""CUDA: several arrays rotated by one launch of a Triton kernel, and operators of it for graphs.

The angles come from tables opposite the pairs, from those rows of a table that positions choose, or from positions
alone: the exact phases of `rope_xp._core.phases`, made where they are used. `torch.compile` and `torch.export` put
`torch.ops.rope_xp.rotate` and `torch.ops.rope_xp.rotate_` into their graphs, which take tables alone: compilers fuse
what makes them. Both exist from the import of this file.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from math import gcd, prod
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import triton
from triton import knobs
from triton.runtime import driver

from rope_xp._core import checks, phases
from rope_xp._core.kernels import autograd, cuda_kernel, faults, reference
from rope_xp._core.kernels.cuda_kernel import Task, packed
from rope_xp._core.kernels.pair_rotation import Angles, Rotation, Tables

Axes = tuple[int, ...]

_functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]

# Triton interprets its kernels, on the CPU, where the environment asks for it when they are defined.
INTERPRETED = knobs.runtime.interpret
PLACES = ("cuda", "host memory") if INTERPRETED else ("cuda",)

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


def rotate_all(
    xs: Sequence[torch.Tensor], angles: Angles, rotation: Rotation, inplace: bool = False, scale: float = 1.0
) -> list[torch.Tensor]:
    """`reference.rotate_all`, in one launch for all arrays of a dtype; new memory is in the order of the array.

    Angles are tables, or rows of tables that positions choose, NaN where there is none; or those of `ByPositions`.
    """
    outs = list(xs) if inplace else [torch.empty_like(x) for x in xs]
    for dtype in dict.fromkeys([x.dtype for x in xs]):
        tasks = [each for each in zip(xs, outs, angles, strict=True) if each[0].dtype == dtype and each[0].numel()]
        if tasks:
            _launch(tasks, rotation, inplace, scale)
    return outs


class ByPositions(NamedTuple):
    """The kernel that makes angles: integer positions times frequencies, exact; sines and cosines times `scale`.

    What it calls angles are positions alone, opposite the axes of each array.
    """

    frequencies: phases.Frequencies
    scale: float

    def rotate_all(
        self, xs: Sequence[torch.Tensor], angles: Angles, rotation: Rotation, inplace: bool = False
    ) -> list[torch.Tensor]:
        turns = _turns(self.frequencies, xs[0].device)
        return rotate_all(xs, [(turns, turns, where) for (where,) in angles], rotation, inplace, self.scale)

    def tables_of(self, xs: Sequence[torch.Tensor], angles: Angles) -> Tables:
        """What the kernel computes, in operations of torch."""
        tables = []
        for x, (where,) in zip(xs, angles):
            dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
            sin, cos = phases.sin_cos(where, self.frequencies, dtype)
            tables.append((sin * self.scale, cos * self.scale))
        return tables


def prove(x: torch.Tensor) -> bool:
    """Compare the kernel with the reference on small arrays of the dtype and device of `x`, and raise if they differ.

    This reads values on the device, but none of the user's. False if it cannot be done now: while a graph is captured,
    which would keep these launches, or where operations go to somebody else.
    """
    if (
        not autograd.is_unwatched(x)
        or _functorch.get_dynamic_layer_stack_depth()
        or (x.is_cuda and torch.cuda.is_current_stream_capturing())
    ):
        return False
    with torch.inference_mode(False), torch.no_grad():
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        q, k = (torch.linspace(-1, 1, n * 60, dtype=wide).reshape(2, n, 3, 10).to(x.device, x.dtype) for n in (3, 1))
        where = torch.tensor([[0, 7, -1], [131_071, 2**31 - 1, 12]], device=x.device)[:, None]
        by_positions = ByPositions(phases.Frequencies((1.0, 0.3, 0.1, 1e-4)), 1.25)
        tables = by_positions.tables_of([q, k], [(where,), (where,)])
        for rotate, angles, layout in (
            (by_positions.rotate_all, [(where,), (where,)], "half"),
            (rotate_all, tables, "interleaved"),
        ):
            rotation = Rotation(layout, layout, first_channel=1)
            for one, other in zip(rotate([q, k], angles, rotation), reference.rotate_all([q, k], tables, rotation)):
                # Tables, products and sums in the wide dtype, of numbers up to 2.5, and roundings to that of x.
                most = 32 * torch.finfo(wide).eps + 2 * torch.finfo(x.dtype).eps * other.abs().to(wide)
                if not ((one.to(wide) - other.to(wide)).abs() <= most).all():
                    raise ArithmeticError(f"results for {x.dtype} on {x.device} differ from the reference")
    return True


_words: WeakKeyDictionary[phases.Frequencies, dict[torch.device, torch.Tensor]] = WeakKeyDictionary()


def _turns(frequencies: phases.Frequencies, device: torch.device) -> torch.Tensor:
    """Frequencies in turns per position: 64 bits after the point, and the next 32; int64, "two pairs".

    Kept as long as the value they belong to, since a copy from the host waits for the device, and cannot be captured in
    a graph; who captures a graph, which holds an address alone, holds the value too. They depend on the arguments
    alone, and are not written. A capture that comes before any other call is CUDA's error, which keeps nothing.
    """
    kept = _words.setdefault(frequencies, {})
    if device not in kept:
        words = frequencies.rows[0].revolutions(64, like=torch.empty(0, device="cpu"))
        # From the host, in one copy that is waited for: no stream has anything left to do for it.
        kept[device] = torch.stack([words.high, words.low]).to(device)
    return kept[device]


def rotate_in_graph(xs: Sequence[Any], tables: Tables, rotation: Rotation, inplace: bool) -> list[Any]:
    """`rotate_all` by tables while a compiler traces: as one operator, where it knows what is asked of it."""
    sin, cos = [sin for sin, _ in tables], [cos for _, cos in tables]
    learned = torch.is_grad_enabled() and any([table.requires_grad for table in (*sin, *cos)])
    if learned or _functorch.get_dynamic_layer_stack_depth():
        return reference.rotate_all(xs, tables, rotation, inplace)
    if not inplace:
        return torch.ops.rope_xp.rotate(list(xs), sin, cos, *rotation)
    torch.ops.rope_xp.rotate_(list(xs), sin, cos, *rotation)
    return list(xs)


_HOW = "Tensor[] sin, Tensor[] cos, str read, str write, int first_channel, int blocks, bool inverse"
torch.library.define("rope_xp::rotate", f"(Tensor[] xs, {_HOW}) -> Tensor[]")
torch.library.define("rope_xp::rotate_", f"(Tensor(a!)[] xs, {_HOW}) -> ()")


@torch.library.impl("rope_xp::rotate", "default")
def _(xs: list, sin: list, cos: list, *rotation: Any) -> list:
    return rotate_all(xs, list(zip(sin, cos, strict=True)), Rotation(*rotation))


@torch.library.impl("rope_xp::rotate_", "default")
def _(xs: list, sin: list, cos: list, *rotation: Any) -> None:
    tables = list(zip(sin, cos, strict=True))
    checks.require_disjoint("rotate_", xs, tables)  # here, as tensors that are traced have no addresses
    # No kernel of autograd stands before this one to do it.
    torch.autograd.graph.increment_version([x for x in xs if not x.is_inference()])
    rotate_all(xs, tables, Rotation(*rotation), inplace=True)


@torch.library.register_fake("rope_xp::rotate")
def _(xs: list, *how: Any) -> list:
    return [torch.empty_like(x) for x in xs]


@torch.library.register_fake("rope_xp::rotate_")
def _(xs: list, *how: Any) -> None:
    pass


def _keep(ctx: Any, inputs: tuple, output: list) -> None:
    _, sin, cos, *rotation = inputs
    ctx.save_for_backward(*sin, *cos)
    ctx.rotation = Rotation(*rotation)


def _turn_back(ctx: Any, gradients: list) -> tuple:
    tables, count = ctx.saved_tensors, len(gradients)
    back = torch.ops.rope_xp.rotate(gradients, tables[:count], tables[count:], *ctx.rotation.inverted())
    return back, [None] * count, [None] * count, *[None] * len(ctx.rotation)


torch.library.register_autograd("rope_xp::rotate", _turn_back, setup_context=_keep)


def _launch(arrays: list, rotation: Rotation, inplace: bool, scale: float) -> None:
    """Rotate arrays of one dtype, none of which is empty: what is read, what is written, and angles, for each."""
    first, _, (table, *others) = arrays[0]
    pairs = table.shape[-1]
    padded = triton.next_power_of_2(pairs)
    # As many rows as give each thread of a program 16 bytes of either half of them.
    rows = max(1, 32 * WARPS * (16 // first.element_size()) // padded)
    source = "tables" if len(others) == 1 else "rows" if table.is_floating_point() else "turns"
    bits = 0 if source != "turns" else 64 if first.dtype == torch.float64 else 32
    tasks, units, programs = [], [], 0
    for x, out, (sin, cos, *where) in arrays:
        if sin.shape != cos.shape or sin.shape[-1] != pairs or rotation.first_channel + 2 * pairs > x.shape[-1]:
            raise ValueError(
                f"rotate: tables must be alike and have {pairs} pairs, within the channels of x from "
                f"{rotation.first_channel} on; got {tuple(sin.shape)} and {tuple(cos.shape)} for x of {tuple(x.shape)}"
            )
        if sin.stride() != cos.stride():
            sin, cos = sin.contiguous(), cos.contiguous()
        positions, lying = (where[0], (where[0].shape, where[0].stride())) if where else (None, None)
        more, geometry, units_of_task = _geometry(
            x.shape, x.stride(), out.stride(), sin.shape, sin.stride(), lying, rows, HEADS, PROGRAMS
        )
        programs += more
        tasks.append(Task(x, out, sin, cos, positions, packed(programs), *geometry))
        units.append(units_of_task)
    try:
        with nullcontext() if first.is_cpu else torch.cuda.device_of(first):
            cuda_kernel.rotate[(programs,)](
                tuple(tasks),
                WIDTHS=tuple([task.x.shape[-1] for task in tasks]),
                UNITS=tuple(units),
                SOURCE=source,
                SCALE=scale,
                SINE=SINE[bits],
                COSINE=COSINE[bits],
                BITS=bits,
                READ=rotation.read,
                WRITE=rotation.write,
                FIRST=rotation.first_channel,
                BLOCKS=rotation.blocks,
                INVERSE=rotation.inverse,
                IN_PLACE=inplace,
                PAIRS=pairs,
                PADDED=padded,
                ROWS=rows,
                num_warps=WARPS,  # pyright: ignore[reportCallIssue] - an option of Triton's
            )
    except Exception as problem:  # of Triton, its compilers, its cache on disk, or the driver
        raise faults.LaunchError(faults.reason(problem)) from None


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
    # Nothing may be read or written where there is no array, whoever asks.
    if len(shape) != len(sizes) - 1 or not all(given in (1, size) for given, size in zip(shape, sizes)):
        raise ValueError(f"rotate: angles must fit the array of shape {tuple(sizes)}; got {tuple(shape)}")
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
