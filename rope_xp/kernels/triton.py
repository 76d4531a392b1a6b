"""CUDA: one launch of a Triton kernel rotates all arrays of a dtype. Angles come from tables, rows, or positions.

`torch.compile` and `torch.export` put the operators `torch.ops.rope_xp.rotate` and `rotate_` into their graphs. They
accept only full tables, because compilers fuse the operations that make tables. Importing this module registers them.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

import sys
from collections.abc import Sequence
from functools import lru_cache
from math import gcd, prod
from typing import Any, NamedTuple

import torch
import triton
from triton.compiler import CompiledKernel
from triton.runtime import driver

from rope_xp.arrays import checks, exact_phases
from rope_xp.kernels import autograd, faults, reference, triton_kernel
from rope_xp.kernels.reference import Angles, Rotation, Tables
from rope_xp.kernels.triton_kernel import Task, packed
from rope_xp.types import Array, Values

Axes = tuple[int, ...]

_functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]

try:
    from triton import knobs
except ImportError:
    raise ImportError(f"Triton must be 3.4 or later, as with PyTorch 2.8; got {triton.__version__}") from None

# Whether Triton interprets kernels on the CPU. The environment decides this when kernels are defined.
INTERPRETED = knobs.runtime.interpret
MEMORY_KINDS = ("cuda", "host memory") if INTERPRETED else ("cuda",)

if torch.cuda.is_available() and not INTERPRETED:
    try:
        driver.active  # noqa: B018 - builds Triton's launcher, which needs a C compiler
    except Exception as problem:
        raise ImportError(f"Triton cannot launch kernels here: {problem}") from problem

# The threads of a program: 4 warps, which have 64 threads each on most GPUs of AMD.
WARPS, WARP_SIZE = 4, 64 if torch.version.hip else 32
# Each product is rounded before it is added, as by operations of PyTorch, so that results have the same bits.
COMPILER = {"num_warps": WARPS, "enable_fp_fusion": False}
# A Triton program is one instance of the kernel. It loads sines and cosines once and rotates up to HEADS heads by them.
# Loading them costs as much as reading and writing one bfloat16 head. With fewer than PROGRAMS programs a device would
# be partly idle, so a program then rotates fewer heads.
HEADS, PROGRAMS = 8, 1024


def rotate_all(
    xs: Sequence[torch.Tensor], angles: Angles, rotation: Rotation, inplace: bool = False, scale: float = 1.0
) -> list[torch.Tensor]:
    """`reference.rotate_all`, in one launch for each dtype. A new array has the memory order of its input."""
    if not _have_equal_strides(angles):
        angles = [(sin.contiguous(), cos.contiguous(), *others) for sin, cos, *others in angles]
    return _program(_infos(xs), tuple(map(_infos, angles)), rotation, inplace, scale).run(xs, angles)


def prepare(
    xs: Sequence[torch.Tensor], angles: Angles, rotation: Rotation, inplace: bool = False, scale: float = 1.0
) -> "Program | None":
    """A program that does what `rotate_all` does, for arrays with the dtypes, shapes and strides of these."""
    # None if sines and cosines have different strides, and for results that overwrite arrays of several dtypes: if the
    # second launch failed, the arrays of the first would be rotated already.
    if not _have_equal_strides(angles) or (inplace and len({x.dtype for x in xs}) > 1):
        return None
    return _program(_infos(xs), tuple(map(_infos, angles)), rotation, inplace, scale)


class Program(NamedTuple):
    """How arrays of one signature are rotated. Several threads may run it at the same time."""

    launches: "tuple[_Launch, ...]"
    inplace: bool
    words: "Words | None" = None  # of frequencies, if `angles` are positions alone

    def run(self, xs: Sequence[torch.Tensor], angles: Angles) -> list[torch.Tensor]:
        """The rotated arrays. Only the addresses of `angles` are read, so they may lack axes of size 1."""
        if self.words is not None:
            angles = _with_words(self.words, angles)
        outs = list(xs) if self.inplace else [torch.empty_like(x) for x in xs]
        for launch in self.launches:
            launch.start(xs, outs, angles)
        return outs


class _Launch(NamedTuple):
    """A launch for arrays of one dtype: the number of Triton programs, index and fields of each task, and options."""

    grid: tuple[int]
    tasks: list[tuple[int, tuple[Any, ...]]]
    options: Values
    compiled: "Compiled"

    def start(self, xs: Sequence[torch.Tensor], outs: Sequence[torch.Tensor], angles: Angles) -> None:
        tasks = tuple([Task(xs[index], outs[index], *angles[index], *fields) for index, fields in self.tasks])
        tensors = [each for task in tasks for each in task[:5] if isinstance(each, torch.Tensor)]
        _start(triton_kernel.rotate, self.grid, tensors, (tasks,), self.options, self.compiled)


# What Triton compiled for a launch, and the constants of the kernel, by device and by whether each tensor is aligned.
Compiled = dict[tuple[Any, ...], tuple[Any, list[Any]]]


def _start(
    kernel: Any,
    grid: tuple[int],
    tensors: list[torch.Tensor],  # which are among the arguments
    arguments: tuple[Any, ...],
    options: Values,
    compiled: Compiled,
) -> None:
    try:
        if tensors[0].is_cpu:
            kernel[grid](*arguments, **options)
            return
        with torch.cuda.device_of(tensors[0]):
            # Triton takes 27 us to find out that it has compiled a kernel for such arguments (an H100's host, Triton
            # 3.6). All that it compares is the same in each start of a launch, but for these facts.
            key = (tensors[0].device.index, *[each.data_ptr() % 16 == 0 for each in tensors])
            is_own = type(kernel) is triton.JITFunction  # nothing wraps it
            if is_own and key in compiled:
                found, constants = compiled[key]
                found[(*grid, 1, 1)](*arguments, *constants)
                return
            found = kernel[grid](*arguments, **options)
            # AMD's compiler also asks for sizes. A kernel that is compiled in another thread is not launched so.
            if is_own and isinstance(found, CompiledKernel) and torch.version.hip is None:
                compiled[key] = found, [options[name] for name in kernel.arg_names[len(arguments) :]]
    except Exception as problem:  # from Triton, its compilers, its disk cache, or the driver
        raise faults.LaunchError(faults.reason(problem)) from None


class ByPositions(NamedTuple):
    """The kernel that computes exact angles from integer positions. Sines and cosines are multiplied by `scale`."""

    frequencies: exact_phases.Frequencies
    scale: float

    def rotate_all(
        self, xs: Sequence[torch.Tensor], angles: Angles, rotation: Rotation, inplace: bool = False
    ) -> list[torch.Tensor]:
        words = _frequency_words(self.frequencies, xs[0])
        return rotate_all(xs, _with_words(words, angles), rotation, inplace, self.scale)

    def prepare(
        self, xs: Sequence[torch.Tensor], angles: Angles, rotation: Rotation, inplace: bool = False
    ) -> Program | None:
        words = _frequency_words(self.frequencies, xs[0])
        program = prepare(xs, _with_words(words, angles), rotation, inplace, self.scale)
        return None if program is None else program._replace(words=words)

    def tables_of(self, xs: Sequence[torch.Tensor], angles: Angles) -> Tables:
        tables = []
        for x, (positions,) in zip(xs, angles):
            dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
            sin, cos = exact_phases.exact_tables(positions, self.frequencies, dtype)
            tables.append((sin * self.scale, cos * self.scale))
        return tables


# The frequencies, in revolutions per position: 64 fractional bits, and the next 32, as int64 "pairs".
Words = tuple[torch.Tensor, torch.Tensor]


def _frequency_words(frequencies: exact_phases.Frequencies, like: torch.Tensor) -> Words:
    (row,) = frequencies.rows
    words = row.revolutions(64, like=torch.empty(0, device=like.device))
    return words.high, words.low


def _with_words(words: Words, angles: Angles) -> Angles:
    return [(*words, positions) for (positions,) in angles]


class TableProgram(NamedTuple):
    words: tuple[torch.Tensor, ...]  # with the position axis of each pair
    shape: Axes  # of each table
    rows: int
    grid: tuple[int]
    options: Values
    compiled: Compiled

    def run(self, positions: torch.Tensor, like: object = None) -> tuple[torch.Tensor, torch.Tensor]:
        positions = positions.contiguous()
        sin, cos = (torch.empty(self.shape, dtype=torch.float32, device=positions.device) for _ in range(2))
        if self.rows:
            tensors = [positions, *self.words, sin, cos]
            arguments = (*tensors, packed(self.rows))
            _start(triton_kernel.make_tables, self.grid, tensors, arguments, self.options, self.compiled)
        return sin, cos


def prepare_tables(positions: torch.Tensor, frequencies: exact_phases.Frequencies, scale: float) -> TableProgram | None:
    # None unless positions are integers and each pair follows one axis of them.
    shape = frequencies.rows_of(tuple(positions.shape))
    if shape is None or positions.dtype not in (torch.int32, torch.int64):
        return None
    pairs, rows = frequencies.pairs, prod(shape)
    padded: Any = triton.next_power_of_2(pairs)
    rows_of_program = max(1, WARP_SIZE * WARPS * 4 // padded)  # each thread writes 16 bytes of each table
    words, has_axes = _frequency_words(frequencies, positions), frequencies.axis_of_pair is not None
    options = {
        "SCALE": scale,
        "SINE": exact_phases.SINE[32],
        "COSINE": exact_phases.COSINE[32],
        "HAS_AXES": has_axes,
        "PAIRS": pairs,
        "PADDED": padded,
        "ROWS": rows_of_program,
        **COMPILER,
    }
    axes = frequencies.axes_like(positions) if has_axes else words[0]  # which is not read
    return TableProgram((*words, axes), (*shape, pairs), rows, (-(-rows // rows_of_program),), options, {})


# The rotations that `make_ready` compares, the source of their angles, and whether results overwrite the arrays. Each
# takes a second to compile, so they are few: each layout and each source of angles once.
_TESTS = (
    (Rotation("half", "half", 1), "positions", False),
    (Rotation("interleaved", "interleaved", 1), "tables", False),
    (Rotation("interleaved", "half", 1), "rows", True),
)


def make_ready(x: torch.Tensor) -> bool:
    """Compare the kernel with the reference on small arrays like `x`; raise if they differ. False if it cannot test."""
    if not isinstance(x, torch.Tensor):  # interpreted, the kernel accepts host memory, but only that of tensors
        raise TypeError("x is no tensor")
    # This reads no values of the user. A CUDA graph would record the test, and modes could intercept it.
    if not autograd.runs_eagerly(x) or _functorch.get_dynamic_layer_stack_depth() or _is_captured(x):
        return False
    with torch.inference_mode(False), torch.no_grad():
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        q, k = (torch.linspace(-1, 1, n * 60, dtype=wide).reshape(2, n, 3, 10).to(x.device, x.dtype) for n in (3, 1))
        by_positions, sources = _sources([q, k])
        for rotation, source, inplace in _TESTS:
            kernel = by_positions if source == "positions" else sys.modules[__name__]
            results = kernel.rotate_all([q.clone(), k.clone()], sources[source], rotation, inplace)
            _compare(x, results, reference.rotate_all([q, k], sources["tables"], rotation))
        if x.dtype == torch.float32:
            ((positions,), *_), (tables, *_) = sources["positions"], sources["tables"]
            program: Any = prepare_tables(positions, by_positions.frequencies, by_positions.scale)
            _compare(x, program.run(positions), tables)
    return True


def _compare(x: torch.Tensor, results: Sequence[torch.Tensor], truths: Sequence[torch.Tensor]) -> None:
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    for one, other in zip(results, truths, strict=True):
        # Rounding errors of tables, products and sums in the wide dtype, and of results in the dtype of x.
        tolerance = 32 * torch.finfo(wide).eps + 2 * torch.finfo(x.dtype).eps * other.abs().to(wide)
        if not ((one.to(wide) - other.to(wide)).abs() <= tolerance).all():
            raise ArithmeticError(f"results for {x.dtype} on {x.device} differ from the reference")


def _sources(xs: Sequence[torch.Tensor]) -> tuple[ByPositions, dict[str, Angles]]:
    """The same angles for two arrays "2 heads 3 10" from positions, from tables, and from rows of tables."""
    device = xs[0].device
    positions = torch.tensor([[0, 7, -1], [131_071, 2**31 - 1, 12]], device=device)[:, None]
    by_positions = ByPositions(exact_phases.Frequencies((1.0, 0.3, 0.1, 1e-4)), 1.25)
    tables = by_positions.tables_of(xs, [(positions,)] * 2)
    order = torch.tensor([[5, 0, 3], [1, 4, 2]], device=device)[:, None]
    places = order.flatten().argsort()
    rows = [(*[table.reshape(6, 4)[places] for table in pair], order) for pair in tables]
    return by_positions, {"positions": [(positions,)] * 2, "tables": tables, "rows": rows}


def _is_captured(x: torch.Tensor) -> bool:
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def rotate_in_graph(xs: Sequence[Array], tables: Tables, rotation: Rotation, inplace: bool) -> list[Any]:
    """`rotate_all` during tracing: one operator, or the reference where the operator has no derivative."""
    sin, cos = [sin for sin, _ in tables], [cos for _, cos in tables]
    learned = torch.is_grad_enabled() and any([table.requires_grad for table in (*sin, *cos)])
    # The compiler of PyTorch 2.11 does not trace `get_dynamic_layer_stack_depth`.
    if learned or isinstance(_functorch.peek_interpreter_stack(), _functorch.CInterpreter):
        return reference.rotate_all(xs, tables, rotation, inplace)
    if not inplace:
        return torch.ops.rope_xp.rotate(list(xs), sin, cos, *rotation)
    torch.ops.rope_xp.rotate_(list(xs), sin, cos, *rotation)
    return list(xs)


_PARAMETERS = "Tensor[] sin, Tensor[] cos, str read, str write, int first_channel, int blocks, bool inverse"
torch.library.define("rope_xp::rotate", f"(Tensor[] xs, {_PARAMETERS}) -> Tensor[]")
torch.library.define("rope_xp::rotate_", f"(Tensor(a!)[] xs, {_PARAMETERS}) -> ()")


@torch.library.impl("rope_xp::rotate", "default")
def _(xs: list, sin: list, cos: list, *rotation: Any) -> list:
    return rotate_all(xs, list(zip(sin, cos, strict=True)), Rotation(*rotation))


@torch.library.impl("rope_xp::rotate_", "default")
def _(xs: list, sin: list, cos: list, *rotation: Any) -> None:
    tables = list(zip(sin, cos, strict=True))
    checks.require_disjoint(xs, tables)  # here, because traced tensors have no addresses
    # `rotate_` has no autograd kernel that does this.
    torch.autograd.graph.increment_version([x for x in xs if not x.is_inference()])
    rotate_all(xs, tables, Rotation(*rotation), inplace=True)


@torch.library.register_fake("rope_xp::rotate")
def _(xs: list, *parameters: Any) -> list:
    return [torch.empty_like(x) for x in xs]


@torch.library.register_fake("rope_xp::rotate_")
def _(xs: list, *parameters: Any) -> None:
    pass


def _save(ctx: object, inputs: tuple, output: list) -> None:
    _, sin, cos, *rotation = inputs
    ctx.save_for_backward(*sin, *cos)
    ctx.rotation = Rotation(*rotation)


def _backward(ctx: object, gradients: list) -> tuple:
    tables, count = ctx.saved_tensors, len(gradients)
    rotated = torch.ops.rope_xp.rotate(gradients, tables[:count], tables[count:], *ctx.rotation.inverted())
    return rotated, [None] * count, [None] * count, *[None] * len(ctx.rotation)


torch.library.register_autograd("rope_xp::rotate", _backward, setup_context=_save)


class TensorInfo(NamedTuple):
    """What a program knows about a tensor."""

    dtype: torch.dtype
    shape: Axes
    strides: Axes


def _infos(tensors: Sequence[torch.Tensor]) -> tuple[TensorInfo, ...]:
    return tuple([TensorInfo(x.dtype, x.shape, x.stride()) for x in tensors])


def _have_equal_strides(angles: Angles) -> bool:
    return all([sin.stride() == cos.stride() for sin, cos, *_ in angles])


@lru_cache(maxsize=256)  # all layers and all decoding steps have the same arguments
def _program(
    xs: tuple[TensorInfo, ...],
    angles: tuple[tuple[TensorInfo, ...], ...],
    rotation: Rotation,
    inplace: bool,
    scale: float,
) -> Program:
    arrays = [(index, *each) for index, each in enumerate(zip(xs, angles, strict=True)) if 0 not in each[0].shape]
    launches = []
    for dtype in dict.fromkeys([x.dtype for _, x, _ in arrays]):
        of_dtype = [each for each in arrays if each[1].dtype == dtype]
        launches.append(_launch(of_dtype, rotation, inplace, scale))
    return Program(tuple(launches), inplace)


def _launch(
    arrays: list[tuple[int, TensorInfo, tuple[TensorInfo, ...]]],
    rotation: Rotation,
    inplace: bool,
    scale: float,
) -> _Launch:
    """The launch for arrays of one dtype, none of which is empty. Each comes with its index and its angles."""
    _, first, (table, *others) = arrays[0]
    pairs = table.shape[-1]
    padded: Any = triton.next_power_of_2(pairs)
    # The number of rows that gives each thread of a program 16 bytes of the first channels and 16 of the second.
    rows = max(1, WARP_SIZE * WARPS * (16 // first.dtype.itemsize) // padded)
    source = "tables" if len(others) == 1 else "rows" if table.dtype.is_floating_point else "frequencies"
    bits = 0 if source != "frequencies" else 64 if first.dtype == torch.float64 else 32
    tasks, units, programs = [], [], 0
    for index, x, (sin, cos, *positions) in arrays:
        _check_tables(x, sin, cos, rotation, pairs)
        out_strides = x.strides if inplace else _strides_of_new(x)
        count, numbers, units_of_task = _geometry(x, out_strides, sin, positions, rows)
        programs += count
        # Without positions, 0: before 3.7, Triton compiles no None inside a tuple.
        tasks.append((index, (*([] if positions else [0]), packed(programs), *numbers)))
        units.append(units_of_task)
    options = {
        "WIDTHS": tuple([x.shape[-1] for _, x, _ in arrays]),
        "UNITS": tuple(units),
        "SOURCE": source,
        "SCALE": scale,
        "SINE": exact_phases.SINE.get(bits, ()),
        "COSINE": exact_phases.COSINE.get(bits, ()),
        "BITS": bits,
        "READ": rotation.read,
        "WRITE": rotation.write,
        "FIRST": rotation.first_channel,
        "BLOCKS": rotation.blocks,
        "INVERSE": rotation.inverse,
        "IN_PLACE": inplace,
        "PAIRS": pairs,
        "PADDED": padded,
        "ROWS": rows,
        **COMPILER,
    }
    return _Launch((programs,), tasks, options, {})


def _strides_of_new(x: TensorInfo) -> Axes:
    return torch.empty_like(torch.empty_strided(x.shape, x.strides, dtype=x.dtype, device="meta")).stride()


def _check_tables(x: TensorInfo, sin: TensorInfo, cos: TensorInfo, rotation: Rotation, pairs: int) -> None:
    if sin.shape != cos.shape or sin.shape[-1] != pairs or rotation.first_channel + 2 * pairs > x.shape[-1]:
        raise ValueError(
            f"rotate: tables must have equal shapes and {pairs} columns, and x must have a pair of channels for each "
            f"column, from channel {rotation.first_channel} on; got {tuple(sin.shape)} and {tuple(cos.shape)} for x of "
            f"shape {tuple(x.shape)}"
        )


def _geometry(
    x: TensorInfo,
    out_strides: Axes,
    table: TensorInfo,
    positions: Sequence[TensorInfo],
    rows_of_program: int,
) -> tuple[int, tuple[Any, ...], tuple[int, int, int]]:
    """The number of programs for an array, the fields of its `Task` after `programs`, and the units of its strides."""
    # The longest axis along which angles are constant is called heads. All other axes together are the rows.
    sizes, (_, shape, angle_strides), table_rows, table_row = x.shape, table, 0, 0
    if positions:
        (_, shape, angle_strides), table_rows, table_row = positions[0], table.shape[0], table.strides[0]
    else:
        shape = shape[:-1]
    # Anyone may call the operators. With shapes that do not fit, the kernel would read or write other memory.
    if len(shape) != len(sizes) - 1 or not all(given in (1, size) for given, size in zip(shape, sizes)):
        raise ValueError(f"rotate: angles must broadcast against x of shape {tuple(sizes)}; got {tuple(shape)}")
    # The stride of an axis of size 1 has no meaning.
    x_steps, out_steps, angle_steps = (
        [0 if size == 1 else step for size, step in zip(lengths, steps)]
        for lengths, steps in ((sizes, x.strides), (sizes, out_strides), (shape, angle_strides))
    )
    # Common divisors of strides. Accesses are at most 16 elements wide, and positions are read one by one.
    unit = gcd(16, *x_steps[:-1], *out_steps[:-1])
    angle_unit = 1 if positions else gcd(16, *angle_steps)
    table_unit = gcd(16, table_row)
    axes = [
        (size, x_step // unit, out_step // unit, angle_step // angle_unit)
        for size, x_step, out_step, angle_step in zip(sizes, x_steps, out_steps, angle_steps)
    ]
    constant = [axis for axis, step in enumerate(angle_steps) if step == 0]
    heads, x_head, out_head, _ = axes.pop(max(constant, key=sizes.__getitem__)) if constant else (1, 0, 0, 0)
    rows = prod(size for size, *_ in axes)
    blocks = -(-rows // rows_of_program)
    heads_of_program = max(1, min(HEADS, heads * blocks // PROGRAMS))
    numbers = (table_row // table_unit, table_rows, rows, heads, heads_of_program, x_head, out_head)
    geometry = (
        x.strides[-1],
        out_strides[-1],
        table.strides[-1],
        *map(packed, numbers),
        tuple(tuple(map(packed, axis)) for axis in reversed(axes)),
    )
    return blocks * -(-heads // heads_of_program), geometry, (unit, angle_unit, table_unit)
