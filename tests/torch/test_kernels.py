"""Kernels inside what PyTorch does with tensors: derivatives, transforms, tracing, modes, versions, workers."""

import sys
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import product

import pytest
import torch
from compare import assert_same
from libraries import LIBRARIES
from programs import COMPILED_FIRST, PROGRAM, run
from samples import radians
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from transforms import TRANSFORMS, dual, loss

from rope_xp import RotaryEmbedding, apply_rotary_pos_emb, apply_rotary_pos_emb_inplace, fixed_pos_embedding, kernels
from rope_xp.arrays import libraries, memory, threads

random = LIBRARIES["torch"].random
LAYOUTS = ["half", "interleaved", "interleaved_to_half"]
KERNELS = ["blocked", "numba"]


def tables(dtype=torch.float32, rows=5):
    return LIBRARIES["torch"].tables(radians(rows, 6), dtype)


@contextmanager
def threads_of_pytorch(number):
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


X, SINCOS = random(5, 3, 14), tables()


@pytest.mark.parametrize("size", [1, 2**21 - 1, 2**21, 2**21 + 1, 3 * 2**21])
def test_huge_pages_are_the_whole_pages_within_a_tensor(monkeypatch, size):
    advised, page, memory_of_all = [], 2**21, torch.empty(5 * 2**21, dtype=torch.uint8)
    monkeypatch.setattr(memory, "_advise", lambda *given: advised.append(given))
    for first in range(3):
        start = -memory_of_all.data_ptr() % page + first  # at a page, or 1 or 2 bytes after it
        x = memory._in_huge_pages(lambda size, start=start: memory_of_all[start : start + size], size)
        whole = [each for each in range(x.data_ptr() - first, x.data_ptr() + size, page) if each >= x.data_ptr()]
        whole = [each for each in whole if each + page <= x.data_ptr() + size]
        assert advised == ([(whole[0], len(whole) * page, 14)] if whole else [])
        advised.clear()


def test_large_results_on_the_processor_are_made_in_huge_pages(monkeypatch):
    monkeypatch.setattr(memory, "_advise", print)
    small, large, meta = torch.empty(3), torch.empty(2**23, dtype=torch.uint8), torch.empty(2**23, device="meta")
    cases = [(small, None, False), (large, None, True), (large[1:], None, False), (meta, None, False)]
    cases += [(small, 2**23, True), (small, 2**23 - 1, False), (large, 3, False), (meta, 2**23, False)]
    for x, size, is_large in cases:
        made = memory.functions(x, size)
        of_pages = [
            getattr(each, "func", None) is memory._in_huge_pages for each in (made.empty_like, made.empty_float32)
        ]
        assert of_pages == [is_large] * 2


def rotate(x, sin=SINCOS[0], cos=SINCOS[1], *, layout="half", kernel="numba", **options):
    return apply_rotary_pos_emb(x, (sin, cos), layout=layout, kernel=kernel, **options)


def rotate_inplace(x, sin=SINCOS[0], cos=SINCOS[1], *, layout="half", kernel="numba"):
    apply_rotary_pos_emb_inplace(x, (sin, cos), layout=layout, kernel=kernel)
    return x


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("by", KERNELS)
def test_derivatives_of_first_and_second_order(by, layout):
    sin, cos = tables(torch.float64, rows=2)
    call = partial(rotate, sin=sin, cos=cos, layout=layout, kernel=by)
    x = random(2, 2, 14, dtype=torch.float64).requires_grad_()
    everything = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
    assert torch.autograd.gradcheck(call, x, **everything)
    assert torch.autograd.gradgradcheck(call, x, check_fwd_over_rev=True, check_rev_over_rev=True)
    assert torch.autograd.gradgradcheck(lambda x: call(x).pow(3), x)


def test_plans_are_kept_where_a_signature_says_all():
    """Not with forward-mode derivatives; another state of PyTorch has another plan."""
    rope = RotaryEmbedding(head_dim=14, rotary_dim=12, layout="half", base=1e4)
    call = partial(rope, X, sincos=SINCOS, seq_dim=0)
    states = [nullcontext, nullcontext, forward_ad.dual_level, torch.no_grad, torch.inference_mode, torch.no_grad]
    for state, count in zip(states, [1, 1, 1, 2, 3, 3], strict=True):
        with state():
            call()
        assert len(rope._plans) == count


@pytest.mark.parametrize("by", KERNELS)
def test_nothing_is_saved_but_the_tables(by):
    saved, x = [], X.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda kept: saved.append(kept) or kept, lambda kept: kept):
        rotate(x, kernel=by)
    assert {each.data_ptr() for each in saved} == {table.data_ptr() for table in SINCOS} and len(saved) == 2


@pytest.mark.parametrize("by", ["reference", *KERNELS])
def test_results_need_a_gradient_where_their_tensor_does(by):
    rope, leaf = RotaryEmbedding(head_dim=12, layout="half", base=1e4, kernel=by), X[..., :12].clone().requires_grad_()
    for arrays in 2 * ((leaf, X[..., :12]), (X[..., :12], leaf), (leaf, leaf)):  # later calls find their plans
        assert [y.requires_grad for y in rope(*arrays, sincos=SINCOS, seq_dim=0)] == [x is leaf for x in arrays]


def test_the_kernel_has_the_threads_that_pytorch_is_set_to_use(monkeypatch):
    counts = []
    monkeypatch.setattr(threads, "run", lambda entry, job, parts, count, *kept: counts.append(count))
    for number in (1, 3):
        with threads_of_pytorch(number):
            rotate(random(512, 64, 14), *tables(rows=512))
    assert counts == [1, 3]


def test_threads_do_not_share_memory_for_rows():
    """Rows that are read and written in other orders of channels."""
    x, sincos = random(2**14, 8, 14), tables(rows=2**14)
    truth = rotate(x, *sincos, layout="interleaved_to_half", kernel="reference")
    with threads_of_pytorch(5):
        for _ in range(5):
            found = x.clone()
            rotate_inplace(found, *sincos, layout="interleaved_to_half")
            assert torch.equal(found, truth)


@pytest.mark.parametrize("by", ["reference", *KERNELS])
def test_repeated_gradients(by):
    """Of any strides, once with derivatives of their own, after the positions that choose rows have changed.

    Tables may need a gradient too; without an axis of heads, keys have positions of another shape.
    """
    rope = RotaryEmbedding(head_dim=14, layout="half", base=1e4, kernel=by, attention_factor=1.5)
    order, draws = torch.tensor([3, 1, 4, 1, 5]), [random(5, 3, 14, seed=seed) for seed in range(3)]
    weights = [draws[0], draws[1].transpose(0, 1).contiguous().transpose(0, 1), draws[2].requires_grad_()]
    for head, learned, weight in product((0, slice(1)), (False, True), weights * 2):
        rows = [table.requires_grad_(learned) for table in rope.sincos(torch.arange(9))]
        q, k, positions = X.clone().requires_grad_(), X[:, head].clone().requires_grad_(), order.clone()
        rotated, of_k = rope(q, k, sincos=rows, positions=positions, seq_dim=0), torch.ones(()).expand(k.shape)
        positions.zero_()
        found = torch.autograd.grad(rotated, (q, k), (weight, of_k), create_graph=weight.requires_grad)
        back = partial(rope.replace(kernel="reference").rotate, seq_dim=0, transpose=True)
        assert_same(found, [back(x.detach(), [table.detach()[order] for table in rows]) for x in (weight, of_k)])
        if weight.requires_grad:
            assert_same(torch.autograd.grad(found[0], weight, q.detach()), rotated[:1])


OF_TABLES = {
    "grad": lambda f: torch.func.grad(lambda *all: f(*all).pow(3).sum(), argnums=(0, 1, 2)),
    "jvp of tables": lambda f: lambda x, *two: torch.func.jvp(partial(f, x), two, tuple(each.cos() for each in two)),
    "vmap of one table": lambda f: (
        lambda x, s, c: torch.func.vmap(f, in_dims=(None, 1, None))(x, torch.stack([s, -s], 1), c)
    ),
    "vmap of x, grad of tables": lambda f: (
        lambda x, *two: torch.func.vmap(
            torch.func.grad(lambda *all: f(*all).pow(3).sum(), argnums=1), in_dims=(0, None, None)
        )(torch.stack([x, -x]), *two)
    ),
    "autograd": lambda f: (
        lambda x, s, c: torch.autograd.grad(f(x, s.requires_grad_(), c.requires_grad_()).pow(3).sum(), (s, c))
    ),
    "dual numbers of both": lambda f: lambda x, s, c: dual(lambda x: f(x, x[:, 0, :6], c))(x),
}


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")  # of torch.func.linearize
@pytest.mark.parametrize("layout", ["half", "interleaved_to_half"])
@pytest.mark.parametrize("name", [*TRANSFORMS, *OF_TABLES])
def test_transforms(name, layout):
    """Of x, or of x and its tables."""

    def result(kernel):
        given = [each.clone() for each in ((X, *SINCOS) if name in OF_TABLES else [X])]
        return (TRANSFORMS | OF_TABLES)[name](partial(rotate, layout=layout, kernel=kernel))(*given)

    for kernel in KERNELS:
        assert_same(result(kernel), result("reference"), atol=2e-4)


@pytest.mark.compile
@pytest.mark.parametrize("by", KERNELS)
def test_compiles_whole_to_one_graph_forward_and_backward(by):
    torch._dynamo.reset()
    counter, call = CompileCounterWithBackend("eager"), partial(rotate, kernel=by)
    for each in (call, lambda x: rotate_inplace(x * 1, kernel=by)):
        assert_same(torch.compile(each, fullgraph=True, backend=counter)(X), call(X))
    assert counter.frame_count == 2
    assert not any("Rotation" in str(node.target) for graph in counter.graphs for node in graph.graph.nodes)
    x = X.clone().requires_grad_()
    compiled = torch.compile(loss(call), fullgraph=True, backend="aot_eager")
    assert_same(*(torch.autograd.grad(each(x), x) for each in (compiled, loss(call))), atol=1e-4)


@pytest.mark.compile
def test_the_first_call_of_a_process_may_be_compiled(tmp_path):
    run(tmp_path, COMPILED_FIRST, "fastest", "cpu")


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # the compiler's
def test_gradients_under_compiled_autograd():
    torch._dynamo.reset()
    x = X.clone().requires_grad_()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        loss(rotate)(x).backward()
    assert_same(x.grad, torch.func.grad(loss(partial(rotate, kernel="reference")))(X), atol=1e-4)


TRACERS = {
    "real": partial(make_fx, tracing_mode="real"),
    "symbolic": partial(make_fx, tracing_mode="symbolic"),
    "before dispatch": partial(make_fx, tracing_mode="symbolic", pre_dispatch=True),
    "jit": lambda call: lambda *given: torch.jit.trace(call, given),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*:torch.jit.TracerWarning")
@pytest.mark.parametrize("name", TRACERS)
def test_tracers_see_the_operations(name):
    """Also of calls that have a plan."""
    other = random(5, 3, 14, seed=7)
    for call in (lambda x, s, c: rotate(x, s, c), lambda x, s, c: rotate_inplace(x.clone(), s, c)):
        call(X, *SINCOS)
        assert_same(TRACERS[name](call)(X, *SINCOS)(other, *SINCOS), rotate(other, kernel="reference"))


def test_tensors_without_numbers():
    meta, *sincos = (each.to("meta") for each in (X, *SINCOS))
    result = rotate(meta, *sincos, kernel="fastest")
    assert result.is_meta and result.shape == X.shape
    with FakeTensorMode() as mode:
        for kernel in ("fastest", *KERNELS):
            fake = rotate(*map(mode.from_tensor, (X, *SINCOS)), kernel=kernel)
            assert isinstance(fake, FakeTensor) and fake.shape == X.shape
    with pytest.raises(ValueError, match="kernel='numba' must have arrays in host memory; got meta"):
        rotate(meta, *sincos)
    assert rotate_inplace(meta, *sincos, kernel="fastest") is meta
    rope, half = RotaryEmbedding(head_dim=14, layout="half", base=1e4), meta.bfloat16()
    for result in (rope(half, seq_dim=0), rotate(half, *fixed_pos_embedding(half), kernel="fastest")):
        assert result.is_meta and result.shape == half.shape and result.dtype == half.dtype
    rope.rotate_inplace(meta, meta.clone(), sincos=rope.sincos(torch.arange(5, device="meta"), like=meta), seq_dim=0)


MORE_THAN_MEMORY = {
    "zeros without memory": lambda x: torch._efficientzerotensor(x.shape),
    "two tensors": lambda x: TwoTensor(x, 2 * x),
}


def memory_of(x):
    """Plain tensors with the numbers of one that is more."""
    return [x.a, x.b] if type(x) is TwoTensor else [torch.zeros(x.shape) + x]


@pytest.mark.parametrize("by", KERNELS)
@pytest.mark.parametrize("kind", MORE_THAN_MEMORY)
def test_tensors_that_are_more_than_memory(kind, by):
    """For the numbers, the sines or the cosines: the results of plain tensors. `test_refusals.py` has other kinds."""
    for place in range(3):
        given = [X, *SINCOS]
        given[place] = special = MORE_THAN_MEMORY[kind](given[place])
        truths = [
            rotate(*given[:place], plain, *given[place + 1 :], kernel="reference") for plain in memory_of(special)
        ]
        assert_same(memory_of(rotate(*given, kernel=by)), truths)


class Watch(TorchDispatchMode):
    seen = ""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen += str(function)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("by", KERNELS)
def test_modes_see_the_operations(by):
    with Watch() as forward:
        result = rotate(X.clone().requires_grad_(), kernel=by)
        assert_same(rotate(X, kernel=by), rotate(X, kernel="reference"))
    with Watch() as backward:
        result.sum().backward()
    assert "mul" in forward.seen and "mul" in backward.seen


@pytest.mark.parametrize("by", ["reference", *KERNELS])
def test_no_ambient_state_changes_a_bit(by):
    large, where = random(2, 257, 8, 130), torch.arange(257) * 4095
    rope = RotaryEmbedding(head_dim=130, layout="half", base=1e4, kernel=by)
    sincos = rope.sincos(where)

    def calls():
        given = {dtype: large.to(dtype, copy=True) for dtype in (torch.float32, torch.bfloat16)}
        return [rope(x, seq_dim=1, **way) for x in given.values() for way in ({"positions": where}, {"sincos": sincos})]

    truths = calls()
    for context in (
        torch.no_grad(),
        torch.inference_mode(),
        torch.autocast("cpu", torch.bfloat16),
        torch.device("meta"),
        torch.autograd.set_detect_anomaly(False),
    ):
        with context:
            assert_same(calls(), truths, 0)
    for change, value, usual in (
        (torch.use_deterministic_algorithms, True, False),
        (torch.set_float32_matmul_precision, "medium", "highest"),
        (torch.set_num_threads, 1, torch.get_num_threads()),
        (torch.set_default_dtype, torch.float64, torch.float32),
        (torch.set_default_dtype, torch.bfloat16, torch.float32),
    ):
        change(value)
        try:
            assert_same(calls(), truths, 0)
        finally:
            change(usual)


@pytest.mark.parametrize("by", ["reference", *KERNELS])
def test_autograd_notices_what_is_written(by):
    """Also by views, in keys that need no gradient beside queries that do, and in arrays with unlike axes."""
    rope = RotaryEmbedding(head_dim=14, layout="half", base=10_000.0, kernel=by)
    for _ in range(2):
        q, k, small, where = X.clone().requires_grad_(), X.clone(), X[:, 0].clone(), torch.arange(5)
        sincos = rope.sincos(torch.arange(9))
        for arrays in ((q, k), (k, small), (k,)):
            rope(*arrays, seq_dim=0), rope(*arrays, sincos=sincos, positions=where, seq_dim=0)
        assert k._version == small._version == where._version == 0
        for count, arrays in enumerate(((k, small), (k[:],), (k, X.clone())), 1):
            rope.rotate_inplace(*arrays, sincos=rope.sincos(where), seq_dim=0)
            assert k._version >= count and small._version >= 1
    result = rotate(q, *(table[:5] for table in sincos), kernel=by)
    sincos.sin.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


@pytest.mark.parametrize("by", ["reference", *KERNELS])
def test_in_place_without_autograd(by):
    truth, x = rotate(X, kernel="reference"), X.clone()
    with torch.inference_mode():
        rotate_inplace(x, kernel=by)
        within = X.clone()
        assert_same([x, rotate_inplace(within.clone(), kernel=by)], [truth, truth])
    assert x._version
    with pytest.raises(ValueError, match="x must not come from inference_mode"):
        rotate_inplace(within, kernel=by)
    assert torch.equal(within, X)
    leaf = X.clone().requires_grad_()
    with torch.no_grad(), pytest.raises(ValueError, match="x must not require grad"):
        rotate_inplace(leaf, kernel=by)
    assert torch.equal(leaf, X)


@pytest.mark.parametrize("by", ["reference", *KERNELS])
def test_in_place_within_transforms(by):
    """The tangent is rotated too, or nothing is written."""
    x, tangent = X.clone(), X.cos()
    with forward_ad.dual_level():
        both = forward_ad.make_dual(x, tangent)
        try:
            rotate_inplace(both, kernel=by)
        except ValueError:
            assert torch.equal(x, X)
        else:
            assert_same(tuple(forward_ad.unpack_dual(both)), (rotate(X), rotate(X.cos())))
    for transform in (torch.func.vmap, torch.func.functionalize):
        stack = torch.stack([X, X]) if transform is torch.func.vmap else X.clone()
        before = stack.clone()
        try:
            transform(partial(rotate_inplace, kernel=by))(stack)
        except ValueError as refused:
            assert "apply_rotary_pos_emb_inplace: x must" in str(refused)
            assert torch.equal(stack, before)
        else:
            assert_same(stack, rotate(before, seq_dim=stack.ndim - 3))


LOADER = """
import sys
import torch

torch.rand(2**21).sin()  # by threads, which do not survive a fork
x, sincos = torch.tensor(x), tuple(map(torch.tensor, sincos))

if __name__ == "__main__":
    methods = {"unused": {"fork": 2}, "used": {"fork": 2, "spawn": 1}}[sys.argv[1]]
    assert sys.argv[1] == "unused" or is_right()
    for method, workers in methods.items():
        options = {"num_workers": workers, "collate_fn": is_right, "multiprocessing_context": method}
        assert list(torch.utils.data.DataLoader(range(6), **options)) == [True] * 6
    print("done")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux is it safe to fork a process with threads")
@pytest.mark.parametrize("before", ["used", "unused"])
def test_workers_of_a_loader(before, tmp_path):
    """Workers that fork after the parent has used a kernel, or before anybody has; and such as are spawned."""
    assert run(tmp_path, PROGRAM + LOADER, before, timeout=90).endswith("done\n")


@pytest.mark.parametrize("axes", [60, 61, 62, 63, 182])
@pytest.mark.parametrize("by", KERNELS)
def test_more_axes_than_other_operations_have(by, axes):
    x, expected = X[:, 0].reshape(*[1] * (axes - 2), 5, 14), rotate(X[:, 0], kernel="reference")
    assert_same(rotate(x, seq_dim=-2, kernel=by).reshape(5, 14), expected)


@pytest.mark.parametrize("cut", [lambda x: x[:12, None].T, lambda x: x[None, 1:]], ids=["stride", "offset"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("by", KERNELS)
def test_contiguous_tensors_that_have_no_view_as_complex_numbers(by, layout, cut):
    """An axis of size 1 may have any stride, and a row may begin at any number."""
    sin, cos = (table[1:2] for table in SINCOS)
    for dtype, ulp in ((torch.float32, 2.0**-22), (torch.bfloat16, 2.0**-6)):  # of numbers below 4
        x = random(13).to(dtype)
        expected = rotate(cut(x), sin, cos, layout=layout, kernel="reference")
        assert_same(rotate(cut(x), sin, cos, layout=layout, kernel=by), expected, 2 * ulp)
        assert_same(rotate_inplace(cut(x), sin, cos, layout=layout, kernel=by), expected, 2 * ulp)


def test_vmap_of_large_samples(monkeypatch):
    """What a transform wraps has no address."""
    monkeypatch.setattr(memory, "LARGE", 1)
    x = random(3, 5, 2, 14)
    for kernel in KERNELS:
        found = torch.vmap(partial(rotate, kernel=kernel))(x)
        assert_same(found, torch.stack([rotate(each, kernel="reference") for each in x]), 1e-6)


HUGE_PAGES = """
import re
import torch
from rope_xp import RotaryEmbedding

def asks(address):
    # The flags of the kernel's map of memory have "hg" where huge pages are asked for.
    maps = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) .*?^VmFlags: (.*?)$", open("/proc/self/smaps").read(), re.M | re.S)
    return next("hg" in flags.split() for start, end, flags in maps if int(start, 16) <= address < int(end, 16))

for name in ("reference", "blocked", "numba"):
    rope = RotaryEmbedding(head_dim=128, layout="half", base=10_000.0, kernel=name)
    for tokens in (2**9, 2**11):
        q, k = torch.ones(tokens, 16, 128), torch.ones(tokens, 1, 128)
        q, k = rope(q, k, positions=torch.arange(tokens), seq_dim=0)
        assert torch.equal(q[:, 3:4], k)
        print(name, tokens, *[asks(each.data_ptr() + each.nbytes // 2) for each in (q, k)])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems choose pages by themselves")
def test_large_results_ask_for_huge_pages(tmp_path):
    """Queries of 4 and 16 MB, and smaller keys, where the allocator gives fresh memory. The reference does not ask."""
    asked = run(tmp_path, HUGE_PAGES, MALLOC_MMAP_THRESHOLD_=str(2**20)).splitlines()
    of_kernels = [f"{name} {tokens} {tokens > 2**9} False" for name in KERNELS for tokens in (2**9, 2**11)]
    assert asked == ["reference 512 False False", "reference 2048 False False", *of_kernels]


def test_float16_of_numpy_where_the_processor_flushes_small_numbers_to_zero():
    x, sincos = (
        (LIBRARIES["numpy"].random(1, 64, 8, 64) * 2e-5).astype("float16"),
        LIBRARIES["numpy"].tables(radians(64, 32)),
    )
    call = partial(apply_rotary_pos_emb, x, sincos, layout="half", seq_dim=1, kernel="blocked")
    expected = call()
    torch.set_flush_denormal(True)
    try:
        assert (call() == expected).all()
    finally:
        torch.set_flush_denormal(False)


def test_numbers_that_are_kept_on_a_device_are_plain(monkeypatch):
    """A transform wraps what is made during it, and fake tensors do not mix with plain ones."""
    monkeypatch.setattr(libraries, "_WITHOUT_COPIES", ())  # what a GPU keeps
    rope = RotaryEmbedding(head_dim=8, layout="half", base=10_000.0, kernel="reference")
    where, kept = torch.arange(5.0), libraries._numbers_on_devices
    truth = rope.replace().sincos(where)
    for transform in (torch.func.grad, torch.func.functionalize):
        transform(lambda where: rope.sincos(where).sin.sum())(where)
        (row,) = rope._frequencies.rows
        assert not kept[row]
        with FakeTensorMode():
            assert rope.sincos(torch.arange(5.0)).sin.shape == (5, 4)
        assert not kept[row]
    for _ in range(2):
        for found, table in zip(rope.sincos(where), truth, strict=True):
            assert torch.equal(found, table)
        words = list(kept[row].values())
        assert words and all(each.data_ptr() for each in words)  # those of transforms have no memory
        with FakeTensorMode():
            assert isinstance(rope.sincos(torch.arange(5.0)).sin, FakeTensor)
        torch.func.grad(lambda where: rope.sincos(where).sin.sum())(where)
        assert all(one is other for one, other in zip(kept[row].values(), words))


def test_tables_on_the_processor_are_fast_by_each_kernel(monkeypatch):
    """Also by one that rotates only on a GPU: operations of PyTorch would take a hundred times as long."""
    monkeypatch.setattr(kernels, "exact_tables", None)  # those operations
    for where in (torch.arange(5), torch.arange(5.0)):
        rope = RotaryEmbedding(head_dim=8, layout="half", base=10_000.0)
        for found, table in zip(rope.replace(kernel="triton").sincos(where), rope.sincos(where), strict=True):
            assert torch.equal(found, table)
