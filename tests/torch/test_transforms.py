"""What PyTorch adds: autograd, torch.func, torch.compile, autocast, modules."""

import bad_input
import numpy as np
import oracle
import pytest
import torch
from compare import assert_same
from libraries import LIBRARIES
from samples import embedding
from torch._dynamo.testing import CompileCounter
from torch.utils._python_dispatch import TorchDispatchMode

from rope_xp import RotaryEmbedding, Sections, XPos, YarnScaling, apply_rotary_pos_emb, fixed_pos_embedding, positions

LAYOUTS = ["half", "interleaved"]
XP = LIBRARIES["torch"]
random = XP.random


def learned(x, inv_freq, where=None):
    return RotaryEmbedding(head_dim=14, layout="half", inv_freq=inv_freq)(x, positions=where, seq_dim=1)


def notebook(x, offset=0):
    return apply_rotary_pos_emb(x, fixed_pos_embedding(x, 1, offset=offset), seq_dim=1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients(layout):
    rope = embedding(layout, rotary_dim=10)
    x = random(2, 5, 3, 14, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: rope(x, seq_dim=1), x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda x: rope(x, seq_dim=1), x)
    g = random(2, 5, 3, 14, seed=1, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(rope(x, seq_dim=1), x, g)
    sincos = rope.sincos(torch.arange(5), like=x)
    assert_same(gradient, rope.rotate(g, sincos, seq_dim=1, transpose=True), atol=1e-14)


@pytest.mark.parametrize("options", [{"attention_factor": 1.25}, {"xpos": XPos(centre=2), "attention_factor": 0.5}])
def test_gradients_of_the_inverse(options):
    """Its own transpose, of the array; and of frequencies from which the tables are made."""
    rope, x = embedding(rotary_dim=10, **options), random(2, 5, 3, 14, dtype=torch.float64).requires_grad_()
    role = "query" if rope.xpos is not None else None
    sincos = rope.sincos(torch.arange(5), like=x, role=role)
    back = lambda x, sin, cos: rope.rotate(x, (sin, cos), seq_dim=1, inverse=True)  # noqa: E731
    tables = [table.detach().clone().requires_grad_() for table in sincos]
    assert torch.autograd.gradcheck(back, (x, *tables))
    g = random(2, 5, 3, 14, seed=1, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(back(x, *sincos), x, g)
    magnitude = torch.hypot(*sincos)
    inverted = torch.stack([table / magnitude**2 for table in sincos])
    assert_same(gradient, embedding(rotary_dim=10).rotate(g, tuple(inverted), seq_dim=1), atol=1e-13)
    assert_same(back(rope.rotate(x, sincos, seq_dim=1), *sincos), x, atol=1e-14)


def test_gradients_of_learned_frequencies_and_real_positions():
    x = random(2, 5, 3, 14, dtype=torch.float64)
    inv_freq = torch.linspace(0.1, 1.0, 7, dtype=torch.float64, requires_grad=True)
    where = torch.tensor([0.5, 1.0, -2.25, 3.0, 4.5], dtype=torch.float64, requires_grad=True)
    call = lambda inv_freq, where: learned(x, inv_freq, where)  # noqa: E731
    assert torch.autograd.gradcheck(call, (inv_freq, where), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, (inv_freq, where))
    assert torch.autograd.gradcheck(lambda w: learned(x, w), inv_freq)


@pytest.mark.compile
@pytest.mark.parametrize("shape", [(2, 7), (2, 3, 7)], ids=["axes pairs", "axes heads pairs"])
def test_gradients_of_frequencies_learned_for_each_axis_and_head(shape):
    x = random(2, 5, 3, 14, dtype=torch.float64)
    inv_freq = (0.3 * random(*shape, seed=1, dtype=torch.float64)).requires_grad_()
    where = (3 * random(2, 2, 5, seed=2, dtype=torch.float64)).requires_grad_()

    def rotation(inv_freq, where):
        rope = RotaryEmbedding(head_dim=14, layout="half", inv_freq=inv_freq)
        return rope(x, positions=where, seq_dim=1, heads_dim=2 if len(shape) == 3 else None)

    assert torch.autograd.gradcheck(rotation, (inv_freq, where), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(rotation, (inv_freq, where))
    (gradient,) = torch.autograd.grad(rotation(inv_freq, where).sum(), inv_freq)
    compiled = torch.compile(lambda w: rotation(w, where.detach()).sum(), backend="aot_eager", fullgraph=True)
    (again,) = torch.autograd.grad(compiled(inv_freq), inv_freq)
    assert_same(gradient, again, atol=1e-12)


def test_gradients_of_learned_frequencies_are_exact_at_long_positions():
    where = np.random.default_rng(0).integers(0, 131_072, 100)
    inv_freq = np.float32(10_000.0 ** (-np.arange(0, 14, 2) / 14))
    gradient = torch.func.jacfwd(
        lambda w: RotaryEmbedding(head_dim=14, layout="half", inv_freq=w).sincos(torch.tensor(where)).sin
    )(torch.tensor(inv_freq))
    exact = where[:, None] * np.cos(where[:, None] * inv_freq.astype(np.float64))  # d sin(p w) / d w
    found = torch.diagonal(gradient, dim1=1, dim2=2).numpy()
    assert (np.abs(found - exact) / where.max()).max() <= 2 * 2.0**-24 + 2e-7


def test_gradients_of_tables_whose_rows_are_chosen():
    x, where = random(2, 5, 3, 14).double(), torch.tensor([3, 0, 3, -1, 8])
    sincos = [table.requires_grad_() for table in embedding().sincos(torch.arange(9), like=x)]
    call = lambda sin, cos: embedding()(x, sincos=(sin, cos), positions=where, seq_dim=1)[:, [0, 1, 2, 4]]  # noqa: E731
    assert torch.autograd.gradcheck(call, sincos)
    gradient = torch.autograd.grad(call(*sincos).sum(), sincos[0])[0]
    assert gradient[[0, 3, 8]].all() and not gradient[[1, 2, 4, 5, 6, 7]].any()


def test_a_parameter_learns():
    inv_freq = torch.nn.Parameter(torch.full((7,), 0.5))
    x = random(1, 5, 1, 14)
    target = learned(x, torch.linspace(0.4, 0.6, 7))
    optimizer = torch.optim.Adam([inv_freq], lr=0.01)
    for _ in range(100):
        optimizer.zero_grad()
        loss = (learned(x, inv_freq) - target).square().sum()
        loss.backward()
        optimizer.step()
    assert (inv_freq - torch.linspace(0.4, 0.6, 7)).abs().max() < 0.01


def test_func_transforms():
    rope, x = embedding(), random(2, 5, 3, 14)
    offsets = torch.tensor([7, 100_000])
    whole = rope(x, positions=positions.consecutive(5, offsets), seq_dim=1)
    rows = torch.func.vmap(lambda x, o: rope(x, positions=positions.consecutive(5, o), seq_dim=0))(x, offsets)
    assert_same(rows, whole)
    out, tangent = torch.func.jvp(lambda x: rope(x, seq_dim=1), (x,), (x,))
    assert_same(tangent, out)
    gradient = torch.func.grad(lambda w: learned(x, w).sum())(torch.ones(7))
    per_row = torch.func.vmap(torch.func.grad(lambda w, x: learned(x[None], w).sum()), in_dims=(None, 0))
    assert_same(per_row(torch.ones(7), x).sum(0), gradient, atol=1e-4)


def test_checkpointing():
    x = random(2, 5, 3, 14).requires_grad_()
    loss = lambda x: embedding()(x, seq_dim=1).pow(3).sum()  # noqa: E731
    (plain,) = torch.autograd.grad(loss(x), x)
    (recomputed,) = torch.autograd.grad(torch.utils.checkpoint.checkpoint(loss, x, use_reentrant=False), x)
    assert torch.equal(recomputed, plain)


AXES = RotaryEmbedding(head_dim=14, layout="half", base=10_000.0, sections=Sections((3, 4), order="axial"))
DECAYS = RotaryEmbedding(head_dim=14, layout="half", base=10_000.0, xpos=XPos())
YARN = YarnScaling(factor=4.0, original_max_position_embeddings=4096)
SCALED = embedding(scaling=YARN)
CALLS = {
    "closed over": lambda x, n: bad_input.ROPE(x, seq_dim=1),
    "made inside": lambda x, n: embedding()(x, seq_dim=1),
    "bfloat16": lambda x, n: embedding()(x.bfloat16(), seq_dim=1),
    "interleaved, part": lambda x, n: embedding("interleaved", rotary_dim=10)(x, seq_dim=1),
    "positions": lambda x, n: embedding()(x, positions=torch.arange(x.shape[1]) + 7, seq_dim=1),
    "rows": lambda x, n: embedding()(
        x, sincos=embedding().sincos(torch.arange(30)), positions=torch.arange(x.shape[1]) + 7, seq_dim=1
    ),
    "notebook": lambda x, n: notebook(x),
    "int offset": lambda x, n: notebook(x, n),
    "tensor offset": lambda x, n: notebook(x, torch.tensor(5)),
    "shift": lambda x, n: embedding().shift(x, -3, seq_dim=1),
    "learned": lambda x, n: learned(x, torch.ones(7)),
    "mask": lambda x, n: embedding()(
        x, positions=positions.from_mask(torch.ones(x.shape[:2], dtype=torch.bool)), seq_dim=1
    ),
    "axes": lambda x, n: AXES(x, positions=torch.arange(2 * x.shape[1]).reshape(2, -1) + n, seq_dim=1),
    "written in halves": lambda x, n: embedding("interleaved_to_half", rotary_dim=8, first_channel=6)(x, seq_dim=1),
    "blocks": lambda x, n: embedding(rotary_dim=12, blocks=2)(x, seq_dim=1),
    "xpos": lambda x, n: DECAYS(x, x, seq_dim=1)[1],
    "scaled, made inside": lambda x, n: embedding(scaling=YARN)(x, seq_dim=1),
    "inverse": lambda x, n: SCALED.rotate(
        x, SCALED.sincos(positions.consecutive(x.shape[1], n, like=x)), seq_dim=1, inverse=True
    ),
    "replaced": lambda x, n: SCALED.replace(scaling=None, rotary_dim=6)(x, seq_dim=1),
    "float32 phases": lambda x, n: embedding(phase="float32")(x, seq_dim=1),
}


@pytest.mark.compile
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", CALLS)
def test_compiles_whole_without_a_warning(name, dynamic):
    call = CALLS[name]
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(call, fullgraph=True, dynamic=dynamic, backend=counter)
    for n in range(2, 22):  # 20 lengths and offsets; a warning would be an error
        assert_same(compiled(random(2, n, 3, 14), n + 3), call(random(2, n, 3, 14), n + 3))
    assert counter.frame_count <= 2


@pytest.mark.compile
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_inductor_equals_eager(layout, dtype):
    torch._dynamo.reset()
    rope = embedding(layout, rotary_dim=10)
    where = torch.tensor([0, -7, 131_071, 2**24 + 1, 2**31 - 1], dtype=torch.int32)
    call = lambda x, where: rope(x, positions=where, seq_dim=1)  # noqa: E731
    result = torch.compile(call, fullgraph=True)(random(2, 5, 3, 14).to(dtype), where)
    truth = call(random(2, 5, 3, 14).to(dtype), where)
    assert_same(result, truth, atol=1e-6 if dtype == torch.float32 else 0)


@pytest.mark.compile
def test_compiled_tables_are_exact_and_step_by_step_the_same():
    torch._dynamo.reset()
    where = np.random.default_rng(0).integers(-(2**31), 2**31, 100).astype(np.int32)
    compiled = torch.compile(embedding().sincos, fullgraph=True, dynamic=True)
    whole = compiled(torch.tensor(where))
    exact = oracle.sin_cos(where, oracle.geometric(10_000.0, 14))
    for index, (table, truth) in enumerate(zip(whole, exact, strict=True)):
        assert np.abs(table.numpy() - truth).max() <= 2e-7
        for start, stop in [(0, 17), (17, 18), (18, 100)]:
            assert torch.equal(compiled(torch.tensor(where[start:stop]))[index], table[start:stop])


class Rotates(torch.nn.Module):
    def __init__(self, rope):
        super().__init__()
        self.rope = rope

    def forward(self, q, k):
        return self.rope(q, k, seq_dim=1)


def test_attribute_of_a_module():
    for cast in ("half", "bfloat16", "double"):
        module = Rotates(embedding())
        getattr(module, cast)()
        assert module.state_dict() == {} and list(module.parameters()) == []
        q = random(2, 5, 3, 14)
        assert torch.equal(module(q, q)[0], embedding()(q, seq_dim=1))
    with torch.device("meta"):
        module = Rotates(embedding())
    q = random(2, 5, 3, 14)
    assert torch.equal(module.to_empty(device="cpu")(q, q)[0], embedding()(q, seq_dim=1))


def test_meta_tensors_stay_meta():
    x = torch.empty(2, 5, 3, 14, device="meta", dtype=torch.bfloat16)
    for result in (embedding()(x, seq_dim=1), notebook(x)):
        assert result.device.type == "meta" and result.shape == x.shape and result.dtype == x.dtype


def test_no_ambient_state_changes_a_bit():
    q = random(2, 5, 3, 14)
    where = torch.tensor([0, 257, 4095, 131_071, 10**6])
    call = lambda x: embedding()(x, positions=where, seq_dim=1)  # noqa: E731
    truths = {dtype: call(q.to(dtype)) for dtype in (torch.float32, torch.bfloat16)}

    def assert_unchanged():
        for dtype, truth in truths.items():
            assert torch.equal(call(q.to(dtype)), truth)

    with torch.autocast("cpu", torch.bfloat16):
        assert_unchanged()
    with torch.inference_mode():
        assert_unchanged()
    threads = torch.get_num_threads()
    torch.set_default_dtype(torch.bfloat16)
    torch.set_float32_matmul_precision("medium")
    torch.set_num_threads(1)
    try:
        assert_unchanged()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
        torch.set_num_threads(threads)


class NoFloat64(TorchDispatchMode):
    """A device without float64, such as Apple's."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        assert not (isinstance(result, torch.Tensor) and result.dtype == torch.float64), f"{function} made float64"
        return result


def test_float64_is_not_needed():
    x = random(2, 5, 3, 14)
    where = torch.tensor([0, 257, -4095, 131_071, 2**31 - 1])
    with NoFloat64():
        for dtype in (torch.float32, torch.bfloat16):
            for given in (where, where.int(), where.float() / 7, where.numpy()):
                embedding()(x.to(dtype), positions=given, seq_dim=1)
            learned(x.to(dtype), torch.ones(7), where)
            notebook(x.to(dtype), 100_000)
        with pytest.raises(AssertionError, match="made float64"):
            torch.ones(1) * torch.ones(1).double()


def test_strided_tensors_and_subclasses():
    x = random(14, 3, 5, 2).permute(3, 2, 1, 0)
    assert not x.is_contiguous()
    assert torch.equal(embedding()(x, seq_dim=1), embedding()(x.contiguous(), seq_dim=1))
    parameter = torch.nn.Parameter(x)
    embedding()(parameter, seq_dim=1).sum().backward()
    assert parameter.grad.shape == x.shape


@pytest.mark.compile
def test_bad_input_is_refused_while_compiling():
    x = torch.ones(2, 5, 3, 14)
    torch._dynamo.reset()
    for compiled, case in [
        (torch.compile(lambda x: notebook(x[..., :13]), backend="eager"), r"^fixed_pos_embedding: .*; got"),
        (torch.compile(lambda x: bad_input.ROPE(x[:, :, 0, :12], seq_dim=1), backend="eager"), r"head_dim=14 channels"),
        (torch.compile(lambda x: bad_input.ROPE.shift(x, 2**31, seq_dim=1), backend="eager"), r"fit in int32; got"),
    ]:
        with pytest.raises(Exception, match=case):
            compiled(x)


def test_half_precision_frequencies_are_refused():
    with pytest.raises(TypeError, match="inv_freq must be float32 or float64; got bfloat16"):
        RotaryEmbedding(head_dim=14, layout="half", inv_freq=torch.ones(7, dtype=torch.bfloat16))


def test_learned_frequencies_cast_since_are_refused():
    inv_freq = torch.nn.Parameter(torch.ones(7))
    rope = RotaryEmbedding(head_dim=14, layout="half", inv_freq=inv_freq)
    inv_freq.data = inv_freq.data.half()  # what module.half() does
    with pytest.raises(TypeError, match="inv_freq must be float32 or float64; got float16"):
        rope.sincos(torch.arange(3))


def test_positions_of_another_device_are_refused():
    x = torch.ones(5, 14, device="meta")
    with pytest.raises(ValueError, match="positions must be on device meta, like the other arrays; got cpu"):
        embedding()(x, positions=torch.arange(5), seq_dim=0)
    with pytest.raises(ValueError, match="sin must be on device meta, like the other arrays; got cpu"):
        apply_rotary_pos_emb(x, (torch.zeros(5, 7), torch.ones(5, 7)))


@pytest.mark.compile
def test_numpy_positions_do_not_trace():
    """The README says so; when torch learns it, the sentence goes."""
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: embedding()(x, positions=np.arange(5), seq_dim=1), fullgraph=True, backend="eager"
    )
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(torch.ones(2, 5, 3, 14))


@pytest.mark.compile
def test_lengths_are_packed_while_compiling():
    torch._dynamo.reset()
    call = lambda x: positions.from_lengths([2, 1], x.shape[1], like=x)  # noqa: E731
    compiled = torch.compile(call, fullgraph=True, backend="eager")
    for n in (3, 5, 9):
        assert torch.equal(compiled(torch.ones(2, n)), call(torch.ones(2, n)))


def test_strided_boundaries():
    boundaries = torch.tensor([0, 9, 3, 9, 5, 9])[::2]
    assert positions.from_cu_seqlens(boundaries, 6).tolist() == [0, 1, 2, 0, 1, 0]
