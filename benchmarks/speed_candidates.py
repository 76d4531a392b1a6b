"""Who rotates queries and keys in `speed.py`, and in what: backends, cases and candidates.

Packages are called as they are; formulas of projects that are not packages, or far larger ones, are written here in a
few lines. What needs a GPU is written but not yet measured.
"""

import importlib
import importlib.util
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import ml_dtypes  # noqa: F401  gives NumPy bfloat16
import numpy as np

DIM, BASE = 128, 10_000.0
INV_FREQ = BASE ** (-np.arange(0, DIM, 2) / DIM)
HALF, INTERLEAVED = ("half",), ("interleaved",)
LAYOUTS = HALF + INTERLEAVED
HEADS_FIRST, SEQ_FIRST = ("heads first",), ("sequence first",)
DTYPES = ("float32", "bfloat16", "float16")
EPSILON = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
OURS, IN_PLACE = "rope_xp", "rope_xp, in place"
FLUSH = np.ones(2**25)  # 256 MiB, larger than any cache


@dataclass(frozen=True)
class Workload:
    """Arrays of `batch` sequences of `seq` tokens from position `first` on; `heads` are those of q and of k."""

    batch: int
    heads: tuple[int, int]
    seq: int
    first: int = 0
    dtypes: tuple[str, ...] = DTYPES
    orders: tuple[str, ...] = HEADS_FIRST + SEQ_FIRST
    trained: tuple[str, ...] = ()  # the dtypes in which forward + backward is timed too
    rounds: int = 3  # for a group of candidates; more, while they take less than so many
    seconds: float = 2.0
    lasting: float = 0.0  # of short calls, so many seconds in a row are one time

    def __str__(self):
        q, k = ((self.batch, heads, self.seq, DIM) for heads in self.heads)
        return f"q {q}, k {k}" if self.heads[0] else f"{self.seq} positions, {DIM // 2} frequencies"


# Backends: what each library calls an array, copying, compiling and a gradient.


class NumPy:
    name = library = "numpy"
    device, gradients = "cpu", False
    compiles = (False,)  # whether functions are timed as they are, compiled, or both
    functions: Any = np  # the library's, by the names that all share

    def array(self, x, dtype):
        return np.array(x, dtype)

    def copy(self, x):
        return x.copy()

    def rows(self, x, rows, axis):
        """Some rows, as float64 of NumPy."""
        return np.take(x, rows, axis).astype(np.float64)

    def copier(self, arrays):
        out = [np.empty_like(x) for x in arrays]
        return lambda: [np.copyto(o, x) for o, x in zip(out, arrays)]

    def runner(self, function, arrays, tables, backward=False, compiled=False):
        """What is timed: a call that returns when results are there. `arrays` end in cotangents for `backward`."""
        return lambda: function(*arrays, *tables)

    def wait(self):
        """Until the device has done what it was given."""

    def flush(self):
        """Have other data in the caches, as the rest of a model does; threads that spin fall asleep meanwhile."""
        FLUSH.max()

    def seconds(self, run, calls):
        """Seconds of one call, of `calls` in a row: alone with a cold cache, once or several times."""
        if calls == 1:
            self.flush()
        self.wait()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        self.wait()
        return [(time.perf_counter() - start) / calls]

    def forget(self):
        """What was compiled for earlier cases."""


class Torch(NumPy):
    library, gradients = "torch", True

    def __init__(self, name="torch"):
        import torch

        self.name, self.device = name, "cuda" if name == "cuda" else "cpu"
        self.functions = self.torch = torch
        self.compiles = {"torch": (False,), "torch.compile": (True,), "cuda": (False, True)}[name]
        if self.device == "cuda":
            self.flushed = torch.empty(FLUSH.size, dtype=torch.float64, device="cuda")

    def array(self, x, dtype):
        return self.torch.from_numpy(np.array(x)).to(self.device, getattr(self.torch, dtype))

    def copy(self, x):
        return x.clone()

    def rows(self, x, rows, axis):
        return x.detach().index_select(axis, self.array(rows, "int64")).double().cpu().numpy()

    def copier(self, arrays):
        out = [self.torch.empty_like(x) for x in arrays]
        return lambda: [o.copy_(x) for o, x in zip(out, arrays)]

    def runner(self, function, arrays, tables, backward=False, compiled=False):
        if compiled:
            function = self.torch.compile(function, dynamic=False)
        if not backward:
            return lambda: function(*arrays, *tables)
        half, gradient = len(arrays) // 2, self.torch.autograd.grad
        inputs = [x.detach().requires_grad_() for x in arrays[:half]]

        def run():
            outputs = function(*inputs, *tables)
            return (*outputs, *gradient(outputs, inputs, arrays[half:]))

        return run

    def wait(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def flush(self):
        if self.device == "cuda":
            self.flushed.zero_()
        else:
            super().flush()

    def seconds(self, run, calls):
        """A call on a GPU is timed there; of many in a row the host's time is what counts."""
        if self.device == "cpu" or calls > 1:
            return super().seconds(run, calls)
        events = [[self.torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(10)]
        for start, end in events:
            self.flush()
            start.record()
            run()
            end.record()
        self.wait()
        return [start.elapsed_time(end) / 1e3 for start, end in events]

    def forget(self):
        if True in self.compiles:
            self.torch.compiler.reset()


class Jax(NumPy):
    name, library, gradients = "jax", "jax", True

    def __init__(self):
        import jax

        self.jax, self.functions, self.device = jax, jax.numpy, jax.default_backend()

    def array(self, x, dtype):
        return self.jax.numpy.array(x, dtype)

    def rows(self, x, rows, axis):
        return np.take(np.asarray(x), rows, axis).astype(np.float64)

    def copier(self, arrays):
        multiply = self.jax.jit(lambda scale, *arrays: [x * scale for x in arrays])
        scale = self.array(1.5, arrays[0].dtype)
        return lambda: self.jax.block_until_ready(multiply(scale, *arrays))

    def runner(self, function, arrays, tables, backward=False, compiled=False):
        half = len(arrays) // 2

        def both(*arguments):
            inputs, cotangents, tables = arguments[:half], arguments[half : 2 * half], arguments[2 * half :]
            outputs, pull = self.jax.vjp(lambda *x: tuple(function(*x, *tables)), *inputs)
            return (*outputs, *pull(cotangents))

        jitted = self.jax.jit(both if backward else function)
        return lambda: self.jax.block_until_ready(jitted(*arrays, *tables))

    def bytes_accessed(self, function, arrays, tables):
        """As XLA counts them."""
        return self.jax.jit(function).lower(*arrays, *tables).compile().cost_analysis()["bytes accessed"]


BACKENDS = {
    "numpy": NumPy,
    "torch": Torch,
    "torch.compile": lambda: Torch("torch.compile"),
    "jax": Jax,
    "cuda": lambda: Torch("cuda"),
}


@dataclass(frozen=True)
class Case:
    """Arrays to rotate, but for the numbers in them."""

    backend: Any
    workload: Workload
    layout: str
    order: str
    dtype: str
    backward: bool = False

    @property
    def labels(self):
        passes = "forward + backward" if self.backward else "forward"
        return {"pass": passes, "order": self.order, "layout": self.layout, "dtype": self.dtype}

    @property
    def seq_dim(self):
        return 2 if self.order == "heads first" else 1

    @property
    def shapes(self):
        one = self.workload
        places = ((heads, one.seq) if self.seq_dim == 2 else (one.seq, heads) for heads in one.heads)
        return [(one.batch, *place, DIM) for place in places]

    @cached_property
    def positions(self):
        return np.arange(self.workload.first, self.workload.first + self.workload.seq)

    @cached_property
    def angles(self):
        """Exact but for float64's roundings, "seq pairs"."""
        return np.outer(self.positions, INV_FREQ)

    def array(self, table, dtype=None, wide=False, heads=False):
        """A table in the backend's library, `wide` with a column for each channel, or with an axis for `heads`."""
        if wide:
            table = np.tile(table, 2) if self.layout == "half" else np.repeat(table, 2, axis=-1)
        if heads and self.seq_dim == 1:
            table = table[:, None]
        return self.backend.array(table, dtype or self.dtype)

    def cos_sin(self, *leading, **options):
        """Cosines and sines, in the dtype of x by default, behind as many axes as indices that are `leading`."""
        return tuple(self.array(table(self.angles), **options)[leading] for table in (np.cos, np.sin))

    def draw(self):
        """q and k, and cotangents of both for the gradient."""
        draw = np.random.default_rng(0).standard_normal
        shapes = self.shapes * (2 if self.backward else 1)
        return [self.backend.array(draw(shape, np.float32), self.dtype) for shape in shapes]

    def errors(self, arrays, found):
        """Of some rows of each result: how far off, the magnitude that is right, and the largest of all."""
        rows = np.unique(np.linspace(0, self.workload.seq - 1, 200).astype(int))
        turns = np.exp(1j * self.angles[rows])
        turns = turns if self.seq_dim == 2 else turns[:, None]
        for index, (x, y) in enumerate(zip(arrays, found, strict=True)):
            x, y = (self.pairs(self.backend.rows(each, rows, self.seq_dim)) for each in (x, y))
            right = x * (turns.conj() if index >= 2 else turns)
            off = y - right
            yield np.stack([off.real, off.imag]), np.stack([right.real, right.imag]), np.abs(x).max()

    def pairs(self, x):
        """Pairs of channels as complex numbers."""
        first, second = np.split(x, 2, axis=-1) if self.layout == "half" else (x[..., ::2], x[..., 1::2])
        return first + 1j * second


# Candidates: who rotates. Each makes a function of q, k and tables, and the tables.


class Candidate(NamedTuple):
    name: str
    make: Callable[[Case], tuple[Callable[..., Any], tuple[Any, ...]]]
    libraries: tuple[str, ...]
    package: str | None = None  # which must be installed; formulas are written here
    layouts: tuple[str, ...] = LAYOUTS
    orders: tuple[str, ...] = HEADS_FIRST + SEQ_FIRST
    offset: bool = True  # takes positions that do not begin at 0
    compiles: bool = False  # also timed under torch.compile
    compiled: bool = False
    in_place: bool = False
    gradients: bool = True
    ours: bool = False

    def takes(self, case):
        fits = case.layout in self.layouts and case.order in self.orders and (self.offset or case.positions[0] == 0)
        return fits and (self.gradients or not case.backward)


CANDIDATES: list[Candidate] = []


def candidate(name, *libraries, **options):
    def register(make):
        CANDIDATES.append(Candidate(name, make, libraries, **options))
        return make

    return register


def each(rotate):
    return lambda q, k, *tables: (rotate(q, *tables), rotate(k, *tables))


def alone(package, module):
    """One module of a package that as a whole asks for others, in packages of its name that run nothing."""
    name = f"{package}.{module}"
    if name not in sys.modules:
        folder, names = Path(importlib.util.find_spec(package).origin).parent, name.split(".")
        with mock.patch.dict(sys.modules):
            for end in range(1, len(names)):
                parent = sys.modules[".".join(names[:end])] = ModuleType(".".join(names[:end]))
                parent.__path__ = [str(folder.joinpath(*names[1:end]))]
            loaded = importlib.import_module(name)
        sys.modules[name] = loaded  # where torch.compile looks for it
    return sys.modules[name]


def ours(kernel="fastest"):
    def make(case):
        from rope_xp import RotaryEmbedding

        rope, seq_dim = RotaryEmbedding(head_dim=DIM, layout=case.layout, base=BASE, kernel=kernel), case.seq_dim
        positions = case.array(case.positions, "int32")
        tables = rope.sincos(positions, like=case.array(case.angles[:1]))
        return lambda q, k, *sincos: rope(q, k, sincos=sincos, seq_dim=seq_dim), tuple(tables)

    return make


def ours_in_place(case):
    from rope_xp import RotaryEmbedding

    rope, seq_dim = RotaryEmbedding(head_dim=DIM, layout=case.layout, base=BASE), case.seq_dim

    def rotate(q, k, *sincos):
        rope.rotate_inplace(q, k, sincos=sincos, seq_dim=seq_dim)
        return q, k

    return rotate, ours()(case)[1]


CANDIDATES += [
    Candidate(OURS, ours(), ("numpy", "torch", "jax"), ours=True, compiles=True),
    Candidate(IN_PLACE, ours_in_place, ("numpy", "torch"), ours=True, in_place=True, gradients=False),
    Candidate("rope_xp, eager", ours("eager"), ("numpy", "torch cpu"), ours=True),
    Candidate("rope_xp, reference", ours("reference"), ("numpy", "torch", "jax"), ours=True),
    Candidate("rope_xp, numba", ours("numba"), ("numpy", "torch cpu"), "numba", ours=True),
    Candidate("rope_xp, triton", ours("triton"), ("torch cuda",), "triton", ours=True),
    Candidate("rope_xp, xla", ours("xla"), ("jax",), ours=True),
]


@candidate("transformers Llama", "torch", package="transformers", layouts=HALF, compiles=True)
def transformers_llama(case):
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    def rotate(q, k, cos, sin):
        return apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=heads_dim)

    heads_dim = 3 - case.seq_dim
    return rotate, case.cos_sin(None, wide=True)


@candidate("transformers GPT-J", "torch", package="transformers", layouts=INTERLEAVED, orders=SEQ_FIRST, compiles=True)
def transformers_gptj(case):
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb

    return each(lambda x, cos, sin: apply_rotary_pos_emb(x, sin, cos)), case.cos_sin(None)


@candidate("rotary-embedding-torch", "torch", package="rotary-embedding-torch", layouts=INTERLEAVED)
def rotary_embedding_torch(case):
    """By its function: the module takes positions in the dtype of x, and those are wrong in bfloat16."""
    from rotary_embedding_torch import apply_rotary_emb

    seq_dim = case.seq_dim - 4
    angles = case.array(case.angles, "float32", wide=True, heads=True)
    return each(lambda x, angles: apply_rotary_emb(angles, x, seq_dim=seq_dim)), (angles,)


@candidate("x-transformers", "torch", package="x-transformers", layouts=INTERLEAVED, orders=HEADS_FIRST)
def x_transformers(case):
    from x_transformers.x_transformers import apply_rotary_pos_emb

    return each(apply_rotary_pos_emb), (case.array(case.angles, "float32", wide=True)[None],)


@candidate("torchtune", "torch", package="torchtune", layouts=INTERLEAVED, orders=SEQ_FIRST, compiles=True)
def torchtune(case):
    module = alone("torchtune", "modules.position_embeddings").RotaryPositionalEmbeddings
    rope = module(DIM, max_seq_len=int(case.positions[-1]) + 1, base=BASE).to(case.backend.device)
    if case.positions[0] == 0:
        return each(lambda x: rope(x)), ()
    return each(lambda x, positions: rope(x, input_pos=positions)), (case.array(case.positions[None], "int64"),)


@candidate("timm", "torch", package="timm", orders=HEADS_FIRST)
def timm(case):
    apply, half = alone("timm", "layers.pos_embed_sincos").apply_rot_embed_cat, case.layout == "half"
    cos, sin = case.cos_sin(dtype="float32", wide=True)
    table = case.backend.torch.cat([sin, cos], dim=-1)
    return each(lambda x, table: apply(x, table, half=half)), (table,)


@candidate("Meta's complex multiply", "torch", layouts=INTERLEAVED, orders=SEQ_FIRST)
def meta(case):
    torch = case.backend.torch

    def rotate(x, turns):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(-2).type_as(x)

    return each(rotate), (torch.complex(*case.cos_sin(dtype="float32", heads=True)),)


# Formulas, in functions that the libraries share, over tables with a column for each channel.


@candidate("the notebook", "numpy", "jax", layouts=INTERLEAVED, orders=SEQ_FIRST)
def notebook(case):
    xp = case.backend.functions

    def rotate(x, cos, sin):
        turned = xp.reshape(xp.stack([-x[..., 1::2], x[..., ::2]], axis=-1), x.shape)
        return x * cos + turned * sin

    return each(rotate), case.cos_sin(wide=True, heads=True)


@candidate("flax Llama formula", "numpy", "jax", layouts=HALF)
def flax_llama(case):
    xp = case.backend.functions

    def rotate(x, cos, sin):
        turned = xp.concatenate([-x[..., DIM // 2 :], x[..., : DIM // 2]], axis=-1)
        return (x * cos + turned * sin).astype(x.dtype)

    return each(rotate), case.cos_sin(dtype="float32", wide=True, heads=True)


@candidate("keras-hub formula", "numpy", "torch", "jax", layouts=HALF, orders=SEQ_FIRST)
def keras_hub(case):
    xp = case.backend.functions

    def rotate(x, cos, sin):
        turned = xp.reshape(xp.stack([-x[..., DIM // 2 :], x[..., : DIM // 2]], axis=-2), x.shape)
        return x * cos + turned * sin

    return each(rotate), case.cos_sin(wide=True, heads=True)


@candidate("gemma, MaxText formula", "jax", layouts=HALF, orders=SEQ_FIRST)
def gemma(case):
    """Sines and cosines are made where they are used, from positions."""
    xp = case.backend.functions

    def rotate(x, positions):
        angles = (positions[:, None] / BASE ** (xp.arange(0, DIM, 2) / DIM))[:, None]
        (first, second), cos, sin = xp.split(x, 2, axis=-1), xp.cos(angles), xp.sin(angles)
        return xp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)

    return each(rotate), (case.array(case.positions, "float32"),)


@candidate("equinox", "jax", package="equinox", layouts=HALF, orders=HEADS_FIRST, offset=False)
def equinox(case):
    """From position 0 on, and with its tables as constants of the compiled function."""
    import equinox as eqx
    import jax

    module = eqx.nn.RotaryPositionalEmbedding(DIM, theta=BASE, dtype=np.float32)
    return each(jax.vmap(jax.vmap(module))), ()


@candidate("flash-attn", "torch cuda", package="flash-attn", orders=SEQ_FIRST)
def flash_attn(case, in_place=False):
    from flash_attn.layers.rotary import apply_rotary_emb

    options = {"interleaved": case.layout == "interleaved", "inplace": in_place}
    return each(lambda x, cos, sin: apply_rotary_emb(x, cos, sin, **options)), case.cos_sin()


@candidate("flash-attn, in place", "torch cuda", package="flash-attn", orders=SEQ_FIRST, in_place=True, gradients=False)
def flash_attn_in_place(case):
    return flash_attn(case, in_place=True)


@candidate("Liger", "torch cuda", package="liger-kernel", layouts=HALF, in_place=True)
def liger(case):
    """In place where the sequence is first; heads first are copied to that order before."""
    from liger_kernel.transformers.rope import liger_rotary_pos_emb

    def rotate(q, k, cos, sin):
        if case.seq_dim == 2:
            return liger_rotary_pos_emb(q, k, cos, sin)
        return tuple(x.transpose(1, 2) for x in liger_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), cos, sin))

    return rotate, case.cos_sin(None, wide=True)


@candidate("TransformerEngine", "torch cuda", package="transformer-engine", orders=SEQ_FIRST)
def transformer_engine(case):
    from transformer_engine.pytorch.attention.rope import apply_rotary_pos_emb

    options = {"tensor_format": "bshd", "interleaved": case.layout == "interleaved", "fused": True}
    angles = case.array(case.angles, "float32", wide=True)[:, None, None]
    return each(lambda x, angles: apply_rotary_pos_emb(x, angles, **options)), (angles,)


def installed(*packages):
    """Packages with their versions, without those that are not there."""
    found = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def candidates_of(backend, missing):
    """Those that a backend has and are installed; what is not is added to `missing`."""
    for one in CANDIDATES:
        if not {backend.library, f"{backend.library} {backend.device}"} & set(one.libraries):
            continue
        if one.package and not installed(one.package):
            missing.add(one.package)
            continue
        for compiled in backend.compiles:
            if one.compiles or not compiled:
                name = f"{one.name}, compiled" if compiled and len(backend.compiles) > 1 else one.name
                yield one._replace(name=name, compiled=compiled)
