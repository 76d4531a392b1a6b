"""Faults planted in Triton, on a GPU where one is at hand and else in its interpreter."""

import re
import warnings

import numpy as np
import pytest
import torch
from libraries import LIBRARIES

from rope_xp import RotaryEmbedding, kernels
from rope_xp.arrays import signature
from rope_xp.kernels import autograd, faults, triton_kernel
from rope_xp.kernels import triton as kernel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAMED = RotaryEmbedding(head_dim=14, layout="half", base=10_000.0, rotary_dim=10, first_channel=2, kernel="triton")
ROPE = NAMED.replace(kernel="fastest")
REFERENCE = NAMED.replace(kernel="reference")
PROOF = len(kernel._TESTS)  # launches


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """A process in which Triton's kernel is the fastest, and nobody has tried it."""
    monkeypatch.setattr(kernels, "_obstacles", {})
    monkeypatch.setattr(faults, "_told", {})
    signature.forget_plans()
    monkeypatch.setitem(kernels._FASTEST, "host memory", ("triton",))


def random(*shape, dtype=torch.float32, seed=0):
    return LIBRARIES["torch"].random(*shape, seed=seed, dtype=dtype).to(DEVICE)


def qk():
    return random(2, 5, 3, 14), random(2, 5, 2, 14, seed=1)


class Planted:
    """The kernel, of which a launch is changed, from some launch on."""

    def __init__(self, change, first=0):
        self.launch, self.change, self.first, self.count = triton_kernel.rotate, change, first, 0

    def __getitem__(self, grid):
        def launch(tasks, **options):
            self.count += 1
            if self.count <= self.first:
                return self.launch[grid](tasks, **options)
            return self.change(self.launch[grid], tasks, options)

        return launch

    @staticmethod
    def launches(launch, tasks, options):
        launch(tasks, **options)


def fails(launch, tasks, options):
    raise RuntimeError("Triton Error [CUDA]: no kernel image is available for execution on the device")


def writes_nothing(launch, tasks, options):
    pass


def turns_back(launch, tasks, options):
    launch(tasks, **{**options, "INVERSE": not options["INVERSE"]})


def writes_nan(launch, tasks, options):
    for task in tasks:
        task.out.fill_(float("nan"))


def plant(monkeypatch, change, first=0):
    planted = Planted(change, first)
    monkeypatch.setattr(triton_kernel, "rotate", planted)
    return planted


def results_of(rope, q, k):
    """By positions, by tables and by rows, in place and not."""
    sincos, where = REFERENCE.sincos(np.arange(q.shape[1]), like=q), torch.arange(q.shape[1], device=DEVICE)
    results = [rope(q, k, seq_dim=1)]
    for options in ({"sincos": sincos}, {"sincos": sincos, "positions": where}):
        results.append(rope(q, k, seq_dim=1, **options))
        written = q.clone(), k.clone()
        rope.rotate_inplace(*written, seq_dim=1, **options)
        results.append(written)
    return results


def assert_close(ours, theirs):
    """Tables are within 2e-7, and a rounding to the dtype is at most its eps."""
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=2 * torch.finfo(one.dtype).eps, atol=4e-6)


def assert_falls_back():
    """Every call gives what the reference gives, and there is one warning."""
    q, k = qk()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            for ours, theirs in zip(results_of(ROPE, q, k), results_of(REFERENCE, q, k), strict=True):
                assert_close(ours, theirs)
    (warning,) = caught
    assert warning.category is RuntimeWarning
    assert str(warning.message).startswith("rope_xp: kernel='triton' is not used; a slower kernel runs instead: ")
    return str(warning.message)


DIFFERS = (
    f"ArithmeticError: results for torch.float32 on {torch.zeros(0, device=DEVICE).device} differ from the reference"
)
FAULTS = {
    fails: "RuntimeError: Triton Error [CUDA]: no kernel image is available",
    **dict.fromkeys((writes_nothing, turns_back, writes_nan), DIFFERS),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_kernel_that_does_not_pass_its_proof_is_not_used(fault, monkeypatch):
    planted = plant(monkeypatch, fault)
    message = assert_falls_back()
    assert planted.count <= PROOF  # it was tried once, not at each call
    pattern = rf"^RotaryEmbedding: kernel='triton' must be usable here; got .*{re.escape(FAULTS[fault])}"
    with pytest.raises(ValueError, match=pattern):
        NAMED(qk()[0], seq_dim=1)
    described = " ".join(ROPE.describe(qk()[0]).partition("\nkernel ")[2].split())
    kernel, _, why = described.partition("; no triton: ")
    assert kernel.startswith("reference (") and why and why in message


@pytest.mark.parametrize(
    "variant",
    [
        *({"SOURCE": source} for source in ("tables", "rows", "frequencies")),
        *({"IN_PLACE": inplace} for inplace in (False, True)),
        *({"READ": "half"}, {"WRITE": "interleaved"}, {"READ": "interleaved", "WRITE": "half"}),
    ],
    ids=str,
)
def test_a_fault_of_one_variant_is_found(variant, monkeypatch):
    def turns_back_variant(launch, tasks, options):
        wrong = variant.items() <= options.items()
        launch(tasks, **(options | {"INVERSE": options["INVERSE"] != wrong}))

    plant(monkeypatch, turns_back_variant)
    with pytest.raises(ArithmeticError, match="differ from the reference"):
        kernel.make_ready(random(1))


def test_each_array_of_a_call_is_of_a_proven_dtype(monkeypatch):
    """A key of another dtype than its query, which the kernel gets wrong."""

    def breaks_float64(launch, tasks, options):
        return (writes_nan if tasks[0].x.dtype == torch.float64 else Planted.launches)(launch, tasks, options)

    plant(monkeypatch, breaks_float64)
    q, k = random(2, 5, 3, 14), random(2, 5, 2, 14, dtype=torch.float64)
    with pytest.warns(RuntimeWarning, match="torch.float64 on .* differ from the reference"):
        assert_close(ROPE(q, k, seq_dim=1), REFERENCE(q, k, seq_dim=1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_each_dtype_is_proven_once(dtype, monkeypatch):
    planted, q = plant(monkeypatch, turns_back, first=10**9), random(2, 5, 3, 14, dtype=dtype)
    assert "\nkernel            triton (" in ROPE.describe(q)
    assert planted.count == PROOF
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_close(ROPE(q, q, seq_dim=1), REFERENCE(q, q, seq_dim=1))
        ROPE.describe(q)
    assert planted.count == PROOF + 1


@pytest.mark.parametrize("launches", [PROOF, PROOF + 1, PROOF + 4])
def test_a_launch_that_fails_later_breaks_nothing(launches, monkeypatch):
    plant(monkeypatch, fails, first=launches)
    assert_falls_back()


def test_in_place_no_array_is_rotated_twice(monkeypatch):
    """Arrays of two dtypes, of which the second cannot be launched."""
    plant(monkeypatch, fails, first=1)
    q, k = random(2, 5, 3, 14), random(2, 5, 2, 14, dtype=torch.float64)
    sincos = REFERENCE.sincos(np.arange(5), like=k)
    given = [tuple(table.to(x.dtype)[None, :, None] for table in sincos) for x in (q, k)]
    truth = REFERENCE(q, k, sincos=sincos, seq_dim=1)
    failed = []
    by = autograd.KernelWithFallback(kernel, lambda x, problem: failed.append((x.dtype, type(problem))))
    autograd.rotate_all([q, k], given, NAMED._rotation, by, inplace=True)
    assert_close((q, k), truth)
    assert failed == [(torch.float64, faults.LaunchError)]


@pytest.mark.parametrize("earlier", [0, 1, 2])
def test_a_derivative_whose_launch_fails(earlier, monkeypatch):
    """The derivative of the first call has no plan; those of later calls have one."""
    plant(monkeypatch, fails, first=PROOF + 2 * earlier + 1)
    q, weights = random(2, 5, 3, 14).requires_grad_(), random(2, 5, 3, 14, seed=2)
    for _ in range(earlier):
        torch.autograd.grad(ROPE(q, seq_dim=1), q, weights)
    rotated = ROPE(q, seq_dim=1)
    with pytest.warns(RuntimeWarning, match="kernel='triton' is not used"):
        gradient = torch.autograd.grad(rotated, q, weights)
    assert_close(gradient, torch.autograd.grad(REFERENCE(q, seq_dim=1), q, weights))


@pytest.mark.parametrize("fault", [fails, writes_nothing], ids=lambda fault: fault.__name__)
def test_tables_that_are_not_made(fault, monkeypatch):
    """They are found by the proof, or if a launch fails later, operations of PyTorch make them."""

    class Tables:
        def __getitem__(self, grid):
            return lambda positions, high, low, axes, sin, cos, rows, **options: fault(sin.zero_(), cos.zero_(), {})

    where = torch.arange(5, device=DEVICE)
    truth = REFERENCE.sincos(where)
    assert kernel.make_ready(random(1))
    unnamed = kernels._tables_by_triton(where, ROPE._frequencies, 1.0, "fastest")  # on the CPU, others are asked first
    assert_close(unnamed.run(where), truth)
    monkeypatch.setattr(triton_kernel, "make_tables", Tables())
    if fault is fails:
        with pytest.raises(faults.LaunchError, match="no kernel image"):
            NAMED.replace().sincos(where)
        with pytest.warns(RuntimeWarning, match="kernel='triton' is not used"):
            assert_close(unnamed.run(where), truth)
    else:
        with pytest.raises(ArithmeticError, match="differ from the reference"):
            kernel.make_ready(random(1))


def test_by_name_a_launch_that_fails_is_an_error(monkeypatch):
    plant(monkeypatch, fails, first=PROOF + 2)
    for _ in range(2):
        NAMED(qk()[0], seq_dim=1)
    for _ in range(2):
        with pytest.raises(faults.LaunchError, match="no kernel image"):
            NAMED(qk()[0], seq_dim=1)


def test_nothing_is_proven_where_operations_go_elsewhere(monkeypatch):
    """Nor while a graph is captured, or a compiler looks on."""
    planted = plant(monkeypatch, fails)
    q = random(2, 5, 3, 14)
    with torch.utils._python_dispatch.TorchDispatchMode():
        assert not kernel.make_ready(q)
    assert not torch.func.grad(lambda x: x.sum() * 0 + float(kernel.make_ready(x)))(q).any()
    compiled = torch.compile(lambda x: NAMED(x, seq_dim=1), backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="no kernel image"):
        compiled(q)
    assert planted.count == 1 and not kernels._obstacles
    monkeypatch.setattr(triton_kernel, "rotate", planted.launch)
    assert kernel.make_ready(q)
    with torch.inference_mode():
        assert kernel.make_ready(q)


def test_what_a_graph_captured_is_proven_afterwards(monkeypatch):
    """The plan of a call that a graph captured does not keep later calls from the proof."""
    planted, q = plant(monkeypatch, writes_nothing), random(2, 5, 3, 14)
    sincos = REFERENCE.sincos(np.arange(5), like=q)
    with monkeypatch.context() as capture:
        capture.setattr(kernel, "_is_captured", lambda x: True)
        for launches in (1, 2):
            ROPE(q, sincos=sincos, seq_dim=1)
            assert planted.count == launches and not kernels._obstacles
    with pytest.warns(RuntimeWarning, match="differ from the reference"):
        assert_close([ROPE(q, sincos=sincos, seq_dim=1)], [REFERENCE(q, sincos=sincos, seq_dim=1)])


@pytest.mark.skipif(DEVICE == "cpu", reason="CUDA graphs are captured on a GPU")
def test_nothing_is_proven_while_a_graph_is_captured():
    q = random(2, 5, 3, 14)
    sincos = NAMED.sincos(np.arange(5), like=q)
    NAMED(q, sincos=sincos, seq_dim=1)  # compiles
    kernels._obstacles.clear()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        NAMED(q, sincos=sincos, seq_dim=1)
    assert not kernels._obstacles


IMPORTS = [SystemError("half"), RuntimeError("0 active drivers")]


@pytest.mark.parametrize("problem", IMPORTS, ids=lambda problem: type(problem).__name__)
def test_triton_that_does_not_import(problem, monkeypatch):
    def broken(name):
        raise problem

    with monkeypatch.context() as patch:  # no longer, because the modules of other kernels are kept
        patch.setattr(kernels, "import_module", broken)
        module = kernels._kernel_module.__wrapped__("triton")
    assert type(module) is ImportError and str(module) == f"{type(problem).__name__}: {problem}"
    assert module.__traceback__ is module.__context__ is module.__cause__ is None
    own = kernels._kernel_module
    monkeypatch.setattr(kernels, "_kernel_module", lambda name: module if name == "triton" else own(name))
    assert str(problem) in assert_falls_back()
