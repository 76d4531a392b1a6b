"""The Triton kernel, on a GPU where one is at hand and else in Triton's interpreter, against complex numbers."""

import gc
import io
import textwrap
import warnings
from contextlib import contextmanager
from functools import partial

import numpy as np
import oracle
import pytest
import torch
from cases import for_each
from compare import assert_same
from functorch.compile import make_boxed_func
from libraries import LIBRARIES, ROUNDOFF, triton
from programs import COMPILED_FIRST, run
from rotation_laws import assert_laws
from rotations import ORDERS
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from transforms import TRANSFORMS

from rope_xp import RotaryEmbedding, XPos, sinusoidal_pos_embedding
from rope_xp.arrays import exact_phases, libraries
from rope_xp.kernels import angles, reference, triton_kernel
from rope_xp.kernels import triton as kernel
from rope_xp.kernels.reference import Rotation

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}
HALVES = Rotation("half", "half")
NUMPY = LIBRARIES["torch"].numpy
ROPE = RotaryEmbedding(
    head_dim=14, layout="half", base=10_000.0, rotary_dim=10, first_channel=2, attention_factor=1.25, kernel="triton"
)


def random(*shape, seed=0, dtype="float32"):
    return LIBRARIES["torch"].random(*shape, seed=seed, dtype=dtype).to(DEVICE)


def qk(dtype="float32", seq=5):
    return random(2, seq, 3, 14, dtype=dtype), random(2, seq, 2, 14, seed=1, dtype=dtype)


def tables(angles, dtype="float32"):
    return tuple(table.to(DEVICE) for table in LIBRARIES["torch"].tables(angles, dtype))


def arange(count):
    return torch.arange(count, device=DEVICE)


@contextmanager
def forbidden_waits():
    """On a GPU, what waits for the device is an error."""
    set_mode = torch.cuda.set_sync_debug_mode if ON_GPU else lambda mode: None
    with warnings.catch_warnings(action="ignore"):  # PyTorch says that it does not see all of them
        try:
            set_mode("error")
            yield
        finally:
            set_mode("default")


@pytest.fixture(scope="module", autouse=True)
def tested_dtypes():
    """Each dtype has been met before, as its first call in a process launches more."""
    for dtype in DTYPES:
        ROPE.describe(random(1, 14, dtype=dtype))


@pytest.fixture
def launches(monkeypatch):
    """The grids of all launches."""
    grids, launch = [], triton_kernel.rotate

    class Counting:
        def __getitem__(self, grid):
            grids.append(grid)
            return launch[grid]

    monkeypatch.setattr(triton_kernel, "rotate", Counting())
    return grids


@pytest.mark.parametrize("layout", ORDERS)
def test_programs_take_several_heads(layout, monkeypatch):
    monkeypatch.setattr(kernel, "PROGRAMS", 1)
    monkeypatch.setattr(kernel, "_program", kernel._program.__wrapped__)  # keeps no program
    assert_laws(triton(), "triton", layout, False, 8)


@pytest.mark.parametrize("shape", [(0, 3, 14), (5, 0, 14)])
def test_empty_axes_launch_nothing(shape, launches):
    x, sincos = random(*shape), tables(np.zeros((shape[0], 1, 5)))
    for inplace in (False, True):
        assert kernel.rotate_all([x], [sincos], HALVES, inplace)[0].shape == shape
    assert launches == []
    both, filled = [sincos, tables(np.ones((2, 1, 5)))], random(2, 3, 14)
    assert_same(kernel.rotate_all([x, filled], both, HALVES)[1], reference.rotate(filled, *both[1], HALVES))
    assert len(launches) == 1


# Rows of a table, and angles from positions.


INTEGERS = (torch.int32, torch.int64)


FREQUENCIES = (4.0, *(float(w) for w in oracle.geometric(10_000.0, 14)[1:]))  # 4 is more than half a turn
POSITIONS = [0, 1, -1, 7, 4095, 131_071, -131_071, 2**24 + 1, 2**31 - 1, -(2**31), 123_456_789, -987_654_321]
WIDE = [2**31, -(2**31) - 1, 2**40 + 12_345, 2**62 + 1, -(2**63), 2**63 - 1]


@pytest.mark.parametrize("integer", INTEGERS, ids=str)
@pytest.mark.parametrize("dtype, bound", [(torch.float32, 5e-8 + 2.0**-25), (torch.float64, 4e-16)], ids=str)
def test_computed_tables_are_exact(integer, dtype, bound):
    """As `phases` promises, and rounded. The kernel rotates the pair (1, 0) to (cos, sin)."""
    where = POSITIONS + (WIDE if integer == torch.int64 else [])
    given, frequencies = torch.tensor(where, dtype=integer), exact_phases.Frequencies(FREQUENCIES)
    by_positions = kernel.ByPositions(frequencies, 1.0)
    unit = torch.zeros(len(where), 14, dtype=dtype, device=DEVICE)
    unit[:, :7] = 1.0
    (found,) = by_positions.rotate_all([unit], [(given.to(DEVICE),)], HALVES)
    by_positions.rotate_all([unit], [(given.to(DEVICE),)], HALVES, inplace=True)
    assert torch.equal(unit, found)
    cut = 2 * np.pi * 2.0**-96 * np.abs(np.asarray(where, dtype=np.float64))[:, None]  # revolutions have 96 bits
    host, truths = exact_phases.exact_tables(given, frequencies, dtype), oracle.sin_cos(where, FREQUENCIES)
    for result, table, truth in zip((found[:, 7:], found[:, :7]), host, truths, strict=True):
        assert np.all(np.abs(NUMPY(result) - truth) <= bound + cut)
        np.testing.assert_array_equal(NUMPY(result), NUMPY(table))
    if dtype == torch.float32:  # that of the kernel for tables
        program = kernel.prepare_tables(given.to(DEVICE), frequencies, 1.0)
        for made, table in zip(program.run(given.to(DEVICE)), host, strict=True):
            np.testing.assert_array_equal(NUMPY(made), NUMPY(table))


def test_there_is_no_program_where_a_launch_is_not_all():
    """Sines and cosines that must be copied, and arrays of which one may be rotated before the other fails."""
    q, k = random(2, 5, 3, 14), random(2, 5, 2, 14, dtype="float64")
    sin, cos = tables(np.ones((2, 5, 1, 7)))
    wide = tables(np.ones((2, 5, 1, 7)), "float64")
    assert kernel.prepare([q], [(sin, cos.transpose(0, 1).contiguous().transpose(0, 1))], HALVES) is None
    assert kernel.prepare([q, k], [(sin, cos), wide], HALVES, inplace=True) is None
    assert kernel.prepare([q, k], [(sin, cos), wide], HALVES) is not None


def test_numpy_arrays_are_refused():
    with pytest.raises(ValueError, match=r"kernel=.triton. must .*; got (TypeError|host memory)"):
        ROPE(np.ones((2, 14), np.float32), seq_dim=0)


@pytest.mark.skipif(torch.version.hip is not None, reason="programs of other sizes")
@for_each(
    "shape, dtype, angles, programs, rows, heads, units",
    [
        ((1, 4096, 32, 128), "bfloat16", (1, 4096, 1, 64), 1024, 16, 8, (16, 16, 16)),
        ((8, 1, 32, 128), "float32", (8, 1, 1, 64), 32, 8, 1, (16, 16, 16)),
        ((2, 4099, 7, 80), "float32", (1, 4099, 1, 20), 1539, 16, 3, (16, 4, 16)),
        ((2, 1000, 24, 96), "float64", (1, 1000, 1, 48), 1500, 4, 8, (16, 16, 16)),
        ((3, 5000, 2, 36), "float16", (3, 5000, 2, 18), 938, 32, 1, (4, 2, 16)),
        ((1, 16_368, 3, 80), "float32", (1, 16_368, 1, 20), 2046, 16, 2, (16, 4, 16)),
        ((1, 3, 600), "float64", (1, 3, 300), 3, 1, 1, (8, 4, 16)),
    ],
)
def test_work_is_divided(shape, dtype, angles, programs, rows, heads, units):
    """Each thread has 16 bytes of first channels. A program has several heads if there are enough programs."""
    x, table = torch.empty(shape, dtype=DTYPES[dtype], device="meta"), torch.empty(angles, device="meta")
    (launch,) = kernel.prepare([x], [(table, table)], HALVES).launches
    ((_, fields),) = launch.tasks
    assert (launch.grid, launch.options["ROWS"], launch.options["UNITS"]) == ((programs,), rows, (units,))
    task = triton_kernel.Task(None, None, None, None, *fields)
    assert (task.programs, task.heads_of_program) == tuple(map(triton_kernel.packed, (programs, heads)))
    assert launch.options["num_warps"] == 4


def test_calls_decide_once(launches, monkeypatch):
    """By tables, by rows, by positions, in place and with gradients: later calls do not prepare anything."""
    q, k = qk()
    sincos, where = ROPE.sincos(torch.arange(5, device=DEVICE), like=q), torch.arange(5, device=DEVICE)
    rope, trained = ROPE.replace(), [x.clone().requires_grad_() for x in (q, k)]

    def gradients(**options):
        return torch.autograd.grad(rope(*trained, seq_dim=1, **options), trained, (q, k))

    calls = [
        lambda: rope(q, k, sincos=sincos, seq_dim=1),
        lambda: rope(q, k, sincos=sincos, positions=where, seq_dim=1),
        lambda: rope(q, k, positions=where, seq_dim=1),
        lambda: rope(q, k, seq_dim=1),
        lambda: rope.rotate_inplace(*qk(), sincos=sincos, seq_dim=1),
        lambda: gradients(sincos=sincos),
        lambda: gradients(sincos=sincos, positions=where),
        lambda: gradients(positions=where),
    ]
    truths = [call() for call in calls]
    monkeypatch.setattr(kernel, "rotate_all", None)
    monkeypatch.setattr(kernel, "prepare", None)
    for call, truth in zip(calls, truths, strict=True):
        assert truth is None or all(map(torch.equal, call(), truth))
    assert len(launches) == 21


# What torch sees.


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")  # of torch.func.linearize
@pytest.mark.parametrize("name", [*TRANSFORMS, "batched gradients"])
def test_transforms(name):
    """By tables, rows of tables and positions: where the kernel is blind, what it knows becomes tables."""
    rope, where = ROPE.replace(layout="interleaved_to_half"), torch.tensor([3, 0, 4, 1, 2], device=DEVICE)
    tables_of_rows = rope.sincos(arange(5), like=random(1))

    def batched(f):
        return lambda x: torch.autograd.grad(f(x.requires_grad_()), x, torch.stack([x, -x]), is_grads_batched=True)

    def result(kernel, **options):
        call = partial(rope.replace(kernel=kernel), seq_dim=0, **options)
        return (TRANSFORMS | {"batched gradients": batched})[name](call)(random(5, 3, 14))

    for options in ({"sincos": tables_of_rows}, {"sincos": tables_of_rows, "positions": where}, {"positions": where}):
        assert_same(result("triton", **options), result("reference", **options), atol=2e-4)


def test_fake_tensors_pass_through():
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert ROPE(mode.from_tensor(random(5, 3, 14)), seq_dim=0).shape == (5, 3, 14)


@pytest.mark.parametrize("rows", [False, True])
def test_the_gradient_keeps_a_copy_of_positions(rows):
    """They may change before the derivative, and come from inference mode. Without rows nothing else is kept."""
    x, where, kept = random(5, 3, 14).requires_grad_(), arange(5), []
    options = {"sincos": ROPE.sincos(arange(9), like=x.detach())} if rows else {}
    call = lambda where: ROPE(x, positions=where, seq_dim=0, **options).sum()  # noqa: E731
    (truth,) = torch.autograd.grad(call(where), x)
    with torch.inference_mode():
        frozen = where.clone()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        ROPE(x, positions=where, seq_dim=0, **options)
    results = [call(each) for each in (where, frozen)]
    where.add_(1)
    assert_same([torch.autograd.grad(each, x)[0] for each in results], [truth, truth], 0)
    assert len(kept) == (3 if rows else 1) and torch.equal(kept[-1].flatten(), where - 1)


# The public functions.


@pytest.mark.parametrize(
    "dtype, layout", [("bfloat16", "half"), ("float64", "interleaved"), ("float16", "interleaved_to_half")]
)
def test_positions_give_what_tables_give(dtype, layout, launches):
    (q, k), rope = qk(dtype), ROPE.replace(layout=layout)
    for given in (None, [3, 1, 7, 100_003, -(2**31)], [[3, 1, 7, 2**31 - 1, -5], [0, 1, 2, 3, 4]]):
        where = None if given is None else torch.tensor(given, device=DEVICE)
        truth = rope(q, k, sincos=rope.sincos(arange(5) if where is None else where, like=q), seq_dim=1)
        del launches[:]
        results = rope(q, k, positions=where, seq_dim=1)
        assert len(launches) == 1
        for result, other in zip(results, truth, strict=True):
            # Both tables are within 2e-7; then sums of two products, and a rounding, of which the sums may differ.
            size = 1.25 * 2 * float(other.abs().max())
            away = size * (4e-7 if dtype != "float64" else 1e-15) + 2 * ROUNDOFF[dtype] * other.abs().double()
            assert torch.all((result.double() - other).abs() <= away)


def test_tables_are_made_where_the_kernel_makes_no_such_angles():
    (q, k), where = qk(), arange(5)
    sections = {"inv_freq": [[1.0, 0.0], [0.0, 0.5]], "base": None, "rotary_dim": None}
    for rope, positions in (
        (ROPE.replace(phase="float32"), where + 100_003),  # where phases differ by 1e-3
        (ROPE.replace(xpos=XPos()), where),
        (ROPE.replace(**sections), torch.stack([where, where])),
        (ROPE, where + 0.5),
    ):
        results, truths = (
            each(q, k, positions=positions, seq_dim=1) for each in (rope, rope.replace(kernel="reference"))
        )
        assert_same(results, truths, atol=1e-5)
    with pytest.raises(ValueError, match="heads_dim must be given if"):
        ROPE(q, seq_dim=1, heads_dim=2)


def test_frequencies_are_copied_once(monkeypatch):
    """No later call waits for the host, and none depends on those before it."""
    x, other = qk()[0], ROPE.replace(base=500.0)
    first, truth = ROPE(x, seq_dim=1), other(x, seq_dim=1)
    monkeypatch.setattr(exact_phases.Row, "revolutions", None)
    assert torch.equal(ROPE(x, seq_dim=1), first) and torch.equal(other(x, seq_dim=1), truth)
    assert not torch.equal(truth, first)


def test_a_first_call_inside_a_transform_or_a_mode_leaves_no_trace():
    """What is kept for later calls is a plain tensor."""
    x = qk()[0]
    for number, context in enumerate((torch.inference_mode(), torch.device("meta"), forward_ad.dual_level())):
        rope = ROPE.replace(base=100.0 + number)
        with context:
            first = rope(x, seq_dim=1)
        rope(x.clone().requires_grad_(), seq_dim=1).sum().backward()
        assert torch.equal(first, rope(x, seq_dim=1))
    rope = ROPE.replace(base=99.0)
    torch.func.grad(lambda weight: (rope(x, seq_dim=1) * weight).sum())(torch.ones_like(x))
    torch.vmap(lambda weight: rope(x, seq_dim=1) * weight)(torch.ones(2, 1, device=DEVICE))
    assert all(type(each) is torch.Tensor for each in rope(x, x, seq_dim=1))
    assert torch.autograd.gradcheck(lambda x: rope(x, seq_dim=1), x[:1, :2].double().requires_grad_(), fast_mode=True)


# Compilers.


@pytest.mark.parametrize("inplace", [False, True])
def test_the_operators_are_registered_as_torch_checks(inplace):
    sin, cos = tables(np.random.default_rng(2).standard_normal((2, 1, 5, 6)))
    xs = [random(2, 2, 5, 14), random(2, 5, 1, 14, seed=1).transpose(1, 2)]
    operator = torch.ops.rope_xp.rotate_ if inplace else torch.ops.rope_xp.rotate
    xs = xs if inplace else [x.requires_grad_() for x in xs]
    torch.library.opcheck(operator.default, (xs, [sin, sin], [cos, cos], *Rotation("half", "interleaved", 2)))


def test_operators_stay_within_their_arrays():
    rotate, x = torch.ops.rope_xp.rotate, random(5, 3, 14)
    for sin in (random(5, 1, 9), random(2, 1, 7), random(5, 7)):
        with pytest.raises(ValueError, match=r"^rotate: .*must.*; got"):
            rotate([x], [sin], [sin], *HALVES)
    with pytest.raises(ValueError, match="shorter"):
        rotate([x, x], [random(5, 1, 7)], [random(5, 1, 7)], *HALVES)


def test_what_is_written_in_place_is_counted():
    x, leaf = random(5, 14), random(5, 14).requires_grad_()
    product = leaf * x
    torch.ops.rope_xp.rotate_([x], *([table] for table in tables(np.ones((5, 7)))), *HALVES)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    with torch.inference_mode():
        x = random(5, 14)
        ROPE.rotate_inplace(x, sincos=ROPE.sincos(np.arange(5), like=x), seq_dim=0)


def operators(graph):
    return [name for node in graph.nodes if (name := str(node.target)).startswith("rope_xp")]


def by_rows(rope, q, k):
    sincos, where = rope.sincos(arange(9)), arange(q.shape[1]) % 9
    return rope(q, k, sincos=sincos, positions=where, seq_dim=1)


CALLS = {
    "positions": lambda rope, q, k: rope(q, k, seq_dim=1),
    "tables": lambda rope, q, k: rope(q, k, sincos=rope.sincos(arange(q.shape[1])), seq_dim=1),
    "rows": by_rows,
}


@pytest.mark.compile
@pytest.mark.parametrize("name", CALLS)
def test_compiles_whole_to_one_operator(name):
    torch._dynamo.reset()
    graphs, call = [], CALLS[name]
    backend = aot_autograd(fw_compiler=lambda module, _: graphs.append(module.graph) or make_boxed_func(module.forward))
    compiled = torch.compile(lambda q, k: call(ROPE, q, k), fullgraph=True, dynamic=True, backend=backend)
    for seq in (7, 8):
        q, k = qk(seq=seq)
        assert_same(compiled(q, k), call(ROPE, q, k), atol=1e-5)
    assert [*map(operators, graphs)] == [["rope_xp.rotate.default"]]
    q.requires_grad_()  # and one of two alone
    gradients = [torch.autograd.grad(each(q, k)[0].sin().sum(), q) for each in (compiled, lambda *a: call(ROPE, *a))]
    assert_same(*gradients, atol=1e-5)


@pytest.mark.compile
def test_compiles_derivatives_that_operators_lack():
    """Of tables that are learned, and of transforms: by the reference."""
    x, inv_freq = qk()[0], torch.linspace(0.1, 1, 5, device=DEVICE)
    for call, given in (
        (torch.vmap(lambda x: ROPE(x, seq_dim=0)), x),
        (torch.func.grad(lambda x: ROPE(x, seq_dim=1).pow(3).sum()), x),
        (lambda x: torch.func.jvp(lambda x: ROPE(x, seq_dim=1), (x,), (x.cos(),))[1], x),
    ):
        torch._dynamo.reset()
        assert_same(torch.compile(call, fullgraph=True, backend="aot_eager")(given), call(given), atol=1e-3)
    torch._dynamo.reset()
    learned = lambda w: ROPE.replace(base=None, rotary_dim=None, inv_freq=w)(x, seq_dim=1).pow(3).sum()  # noqa: E731
    both = learned, torch.compile(learned, fullgraph=True, backend="aot_eager")
    assert_same(*(torch.autograd.grad(call(inv_freq.requires_grad_()), inv_freq) for call in both), atol=1e-3)


@pytest.mark.compile
def test_compiles_in_place_what_does_not_overlap():
    """What does is refused: while it is traced if the same tensor comes twice, else when it runs."""
    x, sincos = qk()[0], ROPE.sincos(np.arange(5), like=qk()[0])

    def call(x):
        y = x + 1
        ROPE.rotate_inplace(x, y, sincos=sincos, seq_dim=1)
        return x * 2, y

    torch._dynamo.reset()
    counter, other, before = CompileCounterWithBackend("inductor"), x.clone(), x.clone()
    results = torch.compile(call, fullgraph=True, backend=counter)(x)
    assert_same((x, *results), (other, *call(other)), 0)
    assert operators(counter.graphs[0].graph) == ["rope_xp.rotate_"]
    for second in (lambda x: x, lambda x: x[:, :, 1:]):
        call = lambda x: ROPE.rotate_inplace(x, second(x), sincos=sincos, seq_dim=1)  # noqa: B023, E731
        x = before.clone()
        # PyTorch 2.11 fails to say which error a call raised that is traced.
        errors = (ValueError, AssertionError) if torch.__version__.startswith("2.11.") else ValueError
        with pytest.raises(errors, match=r"x must share no memory|^\s*from user code"):
            torch.compile(call, backend="eager")(x)
        assert torch.equal(x, before)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")  # of torch.export.load in 2.11
@pytest.mark.parametrize("name, strict", [("positions", True), ("rows", False)])
def test_exports(name, strict):
    """To one operator too, also after it is saved and loaded."""
    module, sizes = torch.nn.Module(), {1: torch.export.Dim("seq", min=2, max=4096)}
    module.forward = lambda q, k: CALLS[name](ROPE, q, k)
    program = torch.export.export(module, qk(), dynamic_shapes=[sizes, sizes], strict=strict)
    assert operators(program.graph) == ["rope_xp.rotate.default"]
    torch.export.save(program, saved := io.BytesIO())
    saved.seek(0)
    assert_same(torch.export.load(saved).module()(*qk(seq=9)), CALLS[name](ROPE, *qk(seq=9)), atol=1e-5)


@pytest.mark.compile
def test_the_first_call_of_a_process_may_be_compiled(tmp_path):
    environment = {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": str(int(not ON_GPU))}
    run(tmp_path, COMPILED_FIRST, "triton", DEVICE, **environment)


# The compiler, which needs no GPU. The interpreter does not check what it checks.

COMPILES = """
    import os

    import torch
    import triton
    from triton.backends.compiler import GPUTarget

    from rope_xp.arrays import exact_phases
    from rope_xp.kernels import triton as kernel
    from rope_xp.kernels import triton_kernel
    from rope_xp.kernels.reference import Rotation

    class Driver:
        get_current_target = lambda self: GPUTarget("cuda", int(os.environ["CAPABILITY"]), 32)
        get_current_device = lambda self: 0
        get_current_stream = lambda self, device: 0

    class Compiling:
        def __getitem__(self, grid):
            return lambda *args, **options: compiled.append(ROTATE.warmup(*args, grid=grid, **options))

    triton.runtime.driver.set_active(Driver())
    ROTATE, triton_kernel.rotate, compiled = triton_kernel.rotate, Compiling(), []

    def queries_and_keys(dtype, batch, seq, dim):
        return [torch.empty(batch, heads, seq, dim, dtype=dtype) for heads in (8, 2)]

    def compile_all(rotation, dtype=torch.bfloat16, inplace=False, seq=64, batch=1, dim=128):
        table = torch.empty(1, 1, seq, 64, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
        kernel.rotate_all(queries_and_keys(dtype, batch, seq, dim), [(table, table)] * 2, rotation, inplace=inplace)
        return compiled[-1].asm["ptx"]

    def compile_positions(dtype=torch.bfloat16, seq=64):
        where = torch.empty(1, 1, seq, dtype=torch.int64)
        by_positions = kernel.ByPositions(exact_phases.Frequencies((1.0,) * 64), 1.5)
        by_positions.rotate_all(queries_and_keys(dtype, 1, seq, 128), [(where,)] * 2, HALVES)
        return compiled[-1].asm["ptx"]

    def compile_rows(seq=64):
        table, where = torch.empty(4096, 64), torch.empty(1, 1, seq, dtype=torch.int64)
        kernel.rotate_all(queries_and_keys(torch.bfloat16, 1, seq, 128), [(table, table, where)] * 2, HALVES)

    HALVES = Rotation("half", "half")
"""


def compile_in_another_process(script, tmp_path, capability="90"):
    environment = {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0", "CAPABILITY": capability}
    run(tmp_path, textwrap.dedent(COMPILES) + textwrap.dedent(script), **environment)


@pytest.mark.slow
def test_compiles_for_gpus(tmp_path):
    compile_in_another_process('compile_all(Rotation("interleaved", "half"))', tmp_path, capability="80")
    script = """
        import re

        for rotation in (HALVES, Rotation("interleaved", "interleaved")):
            text = compile_all(rotation)
            accesses = set(re.findall(r"(?:ld|st)\\.global\\S*", text))
            assert accesses == {"ld.global.v4.b32", "st.global.v4.b32"}, accesses  # 16 bytes each
            assert "cvt.rn.bf16" in text and ".local" not in text
        text = compile_all(Rotation("interleaved", "half", first_channel=64), inplace=True, dim=192)
        loop = re.findall(r"(ld|st)\\.global|(bar)\\.sync", text[text.rindex("Loop Header") :])
        loop = ["".join(each) for each in loop]
        assert loop[:2] == ["ld", "ld"] and "bar" in loop[: loop.index("st")] and "ld" not in loop[loop.index("st") :]
        for read in ("half", "interleaved"):
            for write in ("half", "interleaved"):
                compile_all(Rotation(read, write), inplace=True)
                barriers = re.findall(r"\\b(?:ttg|gpu)\\.barrier", compiled[-1].asm["ttgir"])  # gpu before 3.7
                assert bool(barriers) == (read != write)
        for dtype in (torch.float32, torch.float16, torch.float64):
            compile_all(Rotation("half", "interleaved", 0, 1, True), dtype)
        compile_all(Rotation("half", "half", blocks=2))
        assert compile_positions().count(".local") == 0
        compile_positions(torch.float64)
        compile_rows()
    """
    compile_in_another_process(script, tmp_path)


@pytest.mark.slow
def test_lengths_compile_nothing_anew(tmp_path):
    """From decoding to long prefill. What strides are multiples of depends on the width alone, and is kept."""
    script = """
        for seq in (1, 2, 3, 5, 16, 17, 64, 100, 1024, 4097):
            for batch in (1, 2, 16):
                compile_all(HALVES, seq=seq, batch=batch)
                compile_all(HALVES, seq=seq, batch=batch, dim=136)
            compile_positions(seq=seq)
            compile_rows(seq=seq)
        assert len(ROTATE.device_caches[0][0]) == 4, len(ROTATE.device_caches[0][0])
        assert "st.global.v4.b32" in compile_all(HALVES, seq=3, dim=136)
    """
    compile_in_another_process(script, tmp_path)


def test_without_a_c_compiler_the_kernel_cannot_be_imported(tmp_path):
    """Then the choice of the fastest kernel goes on to another, as images for deployment have none."""
    script = """
        import torch

        torch.cuda.is_available = lambda: True
        try:
            import rope_xp.kernels.triton
        except ImportError as problem:
            assert str(problem).startswith("Triton cannot launch kernels here: "), problem
        else:
            raise AssertionError("imported")
    """
    run(tmp_path, textwrap.dedent(script), TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0", CC="/no/compiler")


@pytest.mark.skipif(not ON_GPU, reason="CUDA graphs are recorded on a GPU")
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_replayed_graph_follows_positions(layout):
    rope = RotaryEmbedding(head_dim=14, layout=layout, base=10_000.0)
    q, k = random(2, 5, 6, 14), random(2, 5, 3, 14, seed=1)
    where = arange(5)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):  # compiles the kernel and moves the words of frequencies
        rope(q, k, positions=where, seq_dim=1)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rotated = rope(q, k, positions=where, seq_dim=1)
    for offset in (0, 7, 100_000):
        where.copy_(torch.arange(5, device=DEVICE) + offset)
        graph.replay()
        assert_same(rotated, rope(q, k, positions=where.clone(), seq_dim=1), 0)


@pytest.mark.skipif(not ON_GPU, reason="only a GPU has graphs")
def test_a_replayed_graph_outlives_frequencies_that_are_forgotten():
    """Those of functions that take no embedding are kept in a cache, which is cleared when it is full."""
    where = arange(5)
    call = lambda: sinusoidal_pos_embedding(where, 14)  # noqa: E731
    truth, graph = call(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        encoded = call()
    angles._kept_frequencies.cache_clear()
    gc.collect()
    others = [torch.full((count,), -1, device=DEVICE) for count in range(1, 257)]  # in memory that is free again
    encoded.zero_()
    graph.replay()
    assert_same(encoded, truth, 0)
    assert len(others) == 256


@pytest.mark.parametrize("by", ["triton", "reference"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"phase": "float32"},
        {"xpos": XPos()},
        {"base": None, "inv_freq": torch.rand(5, device=DEVICE)},
        {"base": None, "inv_freq": torch.rand(5, device=DEVICE, dtype=torch.float64)},
    ],
    ids=lambda options: " ".join(map(str, options)),
)
def test_no_later_call_copies_from_the_host(options, by, monkeypatch):
    """On a GPU, any wait is an error too, and a graph can capture the calls."""
    monkeypatch.setattr(libraries, "_WITHOUT_COPIES", ())  # what a GPU keeps
    rope, (q, k), where = ROPE.replace(kernel=by, **options), qk(), arange(5)
    role = "key" if "xpos" in options else None  # the tables of xpos serve one role, and are not given to a call

    def calls():
        sincos = rope.sincos(where, role=role)
        if role is None:
            rope(q, k, sincos=sincos, seq_dim=1)
            rope(q, k, sincos=sincos, positions=where, seq_dim=1)
            rope.rotate_inplace(q.clone(), sincos=sincos, seq_dim=1)
        rotated = *rope(q, k, seq_dim=1), *rope(q, k, positions=where + 0.5, seq_dim=1)
        return *rotated, rope.shift(k, 3, seq_dim=1)

    truth = calls()
    monkeypatch.setattr(libraries, "from_numbers", None)
    with forbidden_waits():
        found = calls()
    assert_same(found, truth, 0)
    if ON_GPU:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = calls()
        for each in found:
            each.zero_()
        graph.replay()
        assert_same(found, truth, 0)


@pytest.mark.skipif(not ON_GPU, reason="Triton compiles for the alignment of a GPU's memory")
def test_memory_that_is_not_aligned():
    """Between calls with aligned memory, for which another kernel is compiled."""
    whole, sincos = random(2 * 5 * 3 * 14 + 1), ROPE.sincos(arange(5))
    for start in (0, 1, 0, 1):
        x = whole[start : start + 2 * 5 * 3 * 14].reshape(2, 5, 3, 14)
        found, truth = (
            [
                rope(x, sincos=sincos, seq_dim=1),
                rope(x, positions=arange(6)[1:], seq_dim=1),
                *rope.sincos(arange(9)[1:]),
            ]
            for rope in (ROPE, ROPE.replace(kernel="reference"))
        )
        assert_same(found, truth, 0)
