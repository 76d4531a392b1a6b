"""The arrays that `speed.py` rotates, and how each library makes arrays, copies, gradients and compiled functions."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401  adds bfloat16 to NumPy
import numpy as np
from common import BASE, DIM, LAYOUTS, complex_pairs, largest_difference, to_numpy

HEADS_FIRST, SEQ_FIRST = ("heads first",), ("sequence first",)
EPSILON = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
INV_FREQ = BASE ** (-np.arange(0, DIM, 2) / DIM)


@dataclass(frozen=True)
class Workload:
    """Arrays of `batch` sequences of `seq` tokens from position `first` on; `heads` are those of q and of k."""

    batch: int
    heads: tuple[int, int]
    seq: int
    first: int = 0
    memory: str = "new"  # of large results: from the system, or "kept" by the allocator from earlier ones
    given: str = "tables"  # or "positions", or "rows" that positions select: the arguments besides q and k
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    trained: tuple[str, ...] = ()  # dtypes for which the backward pass is timed too
    backends: tuple[str, ...] = ("numpy", "torch", "torch.compile", "jax")
    peers: bool = True  # whether candidates other than the default of rope_xp are timed
    rounds: int = 6  # the least number; more follow until `seconds` have passed
    seconds: float = 2.0
    repeat_seconds: float = 0.0  # seconds for which a short call is repeated; the mean is one time

    def __str__(self):
        return ", ".join(f"{x} {(self.batch, n, self.seq, DIM)}" for x, n in zip("qk", self.heads))


WORKLOADS = {
    "prefill": Workload(1, (32, 8), 2048, dtypes=("float32", "bfloat16", "float16"), trained=("float32", "bfloat16")),
    "long": Workload(1, (32, 8), 8192, rounds=3),
    "longest": Workload(1, (1, 1), 2**20, dtypes=("float32",), peers=False, rounds=3),
    "step": Workload(1, (32, 8), 1, 1000, backends=("numpy", "torch"), seconds=0.3, repeat_seconds=0.001),
    "decode": Workload(8, (32, 8), 1, first=1000, seconds=0.3, repeat_seconds=0.001),
    "positions": Workload(8, (32, 8), 1, first=1000, given="positions", seconds=0.3, repeat_seconds=0.001),
    # The last: memory that the allocator has kept is used again, whatever is asked for.
    "kept": Workload(1, (32, 8), 2048, memory="kept", dtypes=("float32", "bfloat16", "float16")),
}
TABLES = (
    *(Workload(1, (1, 1), seq, seconds=0.5, repeat_seconds=0.001) for seq in (8, 256, 1024)),
    *(Workload(1, (1, 1), seq, seconds=0.5) for seq in (8192, 2**16, 2**20)),
)


class NumPy:
    name = library = "numpy"
    functions: Any = np  # the namespace of stack, concatenate, sin and others
    clone: Any = staticmethod(np.copy)
    copy: Any = staticmethod(np.copyto)

    def array(self, x, dtype):
        return np.array(x, dtype)

    def rows(self, x, rows, axis):
        return x.take(rows, axis)

    def references(self, arrays):
        """The copies that rotations are compared with: to new memory, and to existing memory."""
        clone, copy, out = self.clone, self.copy, list(map(self.clone, arrays))
        return {"clone": lambda: list(map(clone, arrays)), "copy": lambda: list(map(copy, out, arrays))}

    def runner(self, function, arrays, tables, backward=False):
        """The call that is timed. It returns when results are ready. With `backward`, cotangents follow the arrays."""
        return lambda: function(*arrays, *tables)


class Torch(NumPy):
    library = "torch"

    def __init__(self, name="torch", device="cpu", compiler="inductor"):
        import torch

        self.name, self.device, self.compiler = name, device, compiler
        self.functions, self.clone, self.copy = torch, torch.clone, torch.Tensor.copy_

    def array(self, x, dtype):
        return self.functions.from_numpy(np.array(x)).to(self.device, getattr(self.functions, dtype))

    def rows(self, x, rows, axis):
        return x.index_select(axis, self.array(rows, "int64"))

    def runner(self, function, arrays, tables, backward=False):
        torch, half = self.functions, len(arrays) // 2
        if self.name == "torch.compile":
            function = torch.compile(function, dynamic=False, backend=self.compiler)
        if not backward:
            return lambda: function(*arrays, *tables)
        inputs = [x.detach().requires_grad_() for x in arrays[:half]]

        def run():
            outputs = function(*inputs, *tables)
            return (*outputs, *torch.autograd.grad(outputs, inputs, arrays[half:]))

        return run


class Jax(NumPy):
    """Everything runs under `jax.jit`."""

    name = library = "jax"

    def __init__(self):
        import jax

        self.jax, self.functions = jax, jax.numpy

    def array(self, x, dtype):
        return self.functions.array(x, dtype)

    def references(self, arrays):
        """One multiplication, because `jit` removes copies."""
        scale = self.array(1.5, arrays[0].dtype)
        return {"clone": self.runner(lambda scale, *arrays: [x * scale for x in arrays], [scale, *arrays], ())}

    def runner(self, function, arrays, tables, backward=False):
        def both(inputs, cotangents, tables):
            outputs, pull = self.jax.vjp(lambda *x: tuple(function(*x, *tables)), *inputs)
            return *outputs, *pull(tuple(cotangents))

        half, jitted = len(arrays) // 2, self.jax.jit(both if backward else function)
        given = (arrays[:half], arrays[half:], tables) if backward else (*arrays, *tables)
        return lambda: self.jax.block_until_ready(jitted(*given))


BACKENDS = {"numpy": NumPy, "torch": Torch, "torch.compile": lambda: Torch("torch.compile"), "jax": Jax}


@dataclass(frozen=True)
class Case:
    """A kind of arrays to rotate."""

    backend: Any
    workload: Workload
    order: str
    dtype: str
    layout: str
    backward: bool = False

    @property
    def labels(self):
        passes = "forward + backward" if self.backward else "forward"
        return {"pass": passes, "order": self.order, "layout": self.layout, "dtype": self.dtype}

    @property
    def seq_dim(self):
        return 2 if self.order == "heads first" else 1

    @property
    def positions(self):
        return np.arange(self.workload.first, self.workload.first + self.workload.seq)

    def draw(self):
        """q and k, and with `backward` a cotangent of each."""
        random, load = np.random.default_rng(0).standard_normal, self.workload
        shapes = [(load.batch, *((n, load.seq) if self.seq_dim == 2 else (load.seq, n)), DIM) for n in load.heads]
        return [self.backend.array(random(shape, np.float32), self.dtype) for shape in shapes * (1 + self.backward)]

    def table(self, function, dtype=None, wide=False, heads=False):
        """A function of angles as an array "seq pairs"; "seq dim" if `wide`, and with an axis of heads if `heads`."""
        numbers = function(np.outer(self.positions, INV_FREQ))
        if wide:
            numbers = np.tile(numbers, 2) if self.layout == "half" else np.repeat(numbers, 2, axis=-1)
        if heads and self.seq_dim == 1:
            numbers = numbers[:, None]
        return self.backend.array(numbers, dtype or self.dtype)

    def cos_sin(self, **options):
        return self.table(np.cos, **options), self.table(np.sin, **options)

    def rows_to_check(self):
        """Some rows, and the rotations by their positions as complex numbers."""
        rows = np.unique(np.linspace(0, self.workload.seq - 1, 200).astype(int))
        return rows, np.exp(1j * np.outer(self.positions[rows], INV_FREQ))

    def excess(self, arrays, found, layout, exact):
        """The largest error of the results, as a multiple of the allowed error.

        An `exact` rotation computes in float32 and rounds once. Others have float32 angles and round every step.
        """
        rows, rotations = self.rows_to_check()
        rotations = rotations if self.seq_dim == 2 else rotations[:, None]
        epsilon, worst = EPSILON[self.dtype], []
        error_of_steps = 4 * epsilon + 2.0**-22 * self.positions[-1] + 1e-6
        for place, (x, y) in enumerate(zip(arrays, found, strict=True)):
            x, y = (complex_pairs(self.backend.rows(each, rows, self.seq_dim), layout) for each in (x, y))
            right, largest = x * (rotations.conj() if place >= 2 else rotations), np.abs(x).max()
            allowed = epsilon * np.abs(right) + 1e-6 * largest if exact else error_of_steps * largest
            worst.append(np.max(np.abs(y - right) / allowed))
        return float(np.max(worst))

    def error_of_tables(self, found):
        rows, rotations = self.rows_to_check()
        sin, cos = (to_numpy(table)[rows] for table in found)
        return largest_difference(cos + 1j * sin, rotations)


def cases(backend, workload):
    """All cases of a workload: orders, dtypes and layouts, also with the backward pass for dtypes in `trained`."""
    for order in HEADS_FIRST + SEQ_FIRST:
        for dtype in workload.dtypes:
            for layout in LAYOUTS:
                yield Case(backend, workload, order, dtype, layout)
                if backend.name != "numpy" and dtype in workload.trained:
                    yield Case(backend, workload, order, dtype, layout, backward=True)
