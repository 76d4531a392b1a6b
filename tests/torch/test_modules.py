"""The PyTorch module: the value it holds and nothing else, whatever is done to modules."""

import copy
import pickle

import bad_input
import numpy as np
import pytest
import torch
from libraries import LIBRARIES
from torch._dynamo.testing import CompileCounter
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import rope_xp
from rope_xp import Sections, XPos, YarnScaling
from rope_xp.torch import RotaryEmbedding

OPTIONS = {"head_dim": 14, "layout": "half", "base": 10_000.0}
random = LIBRARIES["torch"].random
CASTS = {
    "half": lambda module: module.half(),
    "bfloat16": lambda module: module.bfloat16(),
    "to dtype": lambda module: module.to(torch.bfloat16),
    "to device and dtype": lambda module: module.to("cpu", torch.float16),
    "8 bits": lambda module: module.to(torch.float8_e4m3fn),
}
KINDS = {
    "half": {},
    "interleaved, part": {"layout": "interleaved", "rotary_dim": 8, "first_channel": 4},
    "scaled": {"scaling": YarnScaling(factor=4.0, original_max_position_embeddings=4096)},
    "axes": {"sections": Sections((3, 4), order="axial")},
    "reversed": {"reverse": True},
    "decays": {"xpos": XPos()},
}


def arguments(kind):
    """Queries and keys, and positions with the axes that frequencies of this kind have."""
    where = torch.tensor([3, -7, 100, 2**10 - 2, 0])
    return (random(2, 5, 6, 14), random(2, 5, 3, 14, seed=1)), torch.stack(
        [where, where + 1]
    ) if kind == "axes" else where


@pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
@pytest.mark.parametrize("kind", KINDS)
def test_rotates_as_the_value(kind, learned):
    options = {**OPTIONS, **KINDS[kind]}
    rope = rope_xp.RotaryEmbedding(**options)
    (q, k), where = arguments(kind)
    truths = rope(q, k, positions=where, seq_dim=1)
    # Frequencies of a parameter are float32, off by 2**-24 of themselves: angles below 2**10 are off by 2**-14, and
    # numbers are below 4, with an attention factor or growth below 1.2; both channels of a pair add up.
    atol = 2 * 4 * 1.2 * 2.0**-14 if learned else 0
    for module in (
        RotaryEmbedding(**options, seq_dim=1, learned=learned),
        RotaryEmbedding(rope, seq_dim=1, learned=learned),
    ):
        for one, truth in zip(module(q, k, positions=where), truths, strict=True):
            torch.testing.assert_close(one, truth, rtol=0, atol=atol)


def test_takes_one_array_tables_and_rows_of_tables():
    module, (q, k) = RotaryEmbedding(**OPTIONS, seq_dim=1), arguments("half")[0]
    assert torch.equal(module(q), module.rope(q, seq_dim=1))
    sincos = module.rope.sincos(torch.arange(5), like=q)
    for one, other in zip(module(q, k, sincos=sincos), module(q, k), strict=True):
        assert torch.equal(one, other)
    where = torch.tensor([3, 0, 3, 1, 4])
    assert torch.equal(module(q, sincos=sincos, positions=where), module(q, positions=where))


def test_frequencies_of_each_head():
    inv_freq = 0.3 * random(2, 6, 7, seed=1)
    module = RotaryEmbedding(head_dim=14, layout="half", inv_freq=inv_freq, seq_dim=1, heads_dim=2)
    q, where = arguments("axes")[0][0], 3 * random(2, 2, 5, seed=2)
    value = rope_xp.RotaryEmbedding(head_dim=14, layout="half", inv_freq=inv_freq)
    assert torch.equal(module(q, positions=where), value(q, positions=where, seq_dim=1, heads_dim=2))
    assert torch.equal(module.inv_freq, inv_freq) and module.inv_freq.requires_grad
    assert repr(module).endswith("seq_dim=1, heads_dim=2, learned=True)")


@pytest.mark.parametrize("cast", CASTS)
def test_nothing_touches_fixed_frequencies(cast):
    module, (q, _) = RotaryEmbedding(**OPTIONS, seq_dim=1), arguments("half")[0]
    model = torch.nn.Sequential(torch.nn.Linear(14, 14), module)
    where = torch.tensor([0, 257, -4095, 131_071, 2**31 - 1])
    before = module(q, positions=where)
    CASTS[cast](model)
    assert model[0].weight.dtype.itemsize < 4
    assert torch.equal(module(q, positions=where), before)
    assert module.state_dict() == {} and not [*module.parameters(), *module.buffers()]


@pytest.mark.parametrize("cast", CASTS)
def test_learned_frequencies_stay_in_float32(cast):
    model = torch.nn.Sequential(torch.nn.Linear(14, 14), RotaryEmbedding(**OPTIONS, seq_dim=1, learned=True))
    module, (q, _) = model[1], arguments("half")[0]
    before, parameter = module.inv_freq.detach().clone(), module.inv_freq
    turned = module(q.bfloat16())
    CASTS[cast](model)
    assert model[0].weight.dtype.itemsize < 4
    assert module.inv_freq is parameter and module.inv_freq.dtype == torch.float32
    assert torch.equal(module.inv_freq, before) and torch.equal(module(q.bfloat16()), turned)
    assert module.double().inv_freq.dtype == torch.float64
    assert torch.equal(module.float().inv_freq, before)


def test_learned_frequencies_cast_by_other_ways_are_refused():
    module = RotaryEmbedding(**OPTIONS, seq_dim=1, learned=True)
    module.inv_freq.data = module.inv_freq.data.bfloat16()
    with pytest.raises(TypeError, match="inv_freq must be float32 or float64; got bfloat16"):
        module(random(2, 5, 3, 14))


@pytest.mark.parametrize("shape", [(7,), (2, 7)], ids=["pairs", "axes pairs"])
def test_the_gradient_is_that_of_the_value(shape):
    inv_freq = random(*shape, seed=3).abs()
    module = RotaryEmbedding(head_dim=14, layout="half", inv_freq=inv_freq, seq_dim=1)
    (q, k), where = arguments("axes" if len(shape) == 2 else "half")
    weights = random(2, 5, 3, 14, seed=4)
    (module(q, k, positions=where)[1] * weights).sum().backward()
    given = inv_freq.clone().requires_grad_()
    value = rope_xp.RotaryEmbedding(head_dim=14, layout="half", inv_freq=given)
    (value(k, positions=where, seq_dim=1) * weights).sum().backward()
    assert module.inv_freq.grad.abs().max() > 1
    assert torch.equal(module.inv_freq.grad, given.grad)


def test_it_learns_and_every_forward_pass_reads_it_anew():
    module = RotaryEmbedding(head_dim=14, layout="half", inv_freq=torch.full((7,), 0.5), seq_dim=1)
    x, truth = random(1, 5, 1, 14), torch.linspace(0.4, 0.6, 7)
    target = rope_xp.RotaryEmbedding(head_dim=14, layout="half", inv_freq=truth)(x, seq_dim=1)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(100):
        optimizer.zero_grad()
        (module(x) - target).square().sum().backward()
        optimizer.step()
    assert (module.inv_freq - truth).abs().max() < 0.01


@pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
def test_copies_and_files(learned, tmp_path):
    module, (q, _) = RotaryEmbedding(**OPTIONS, seq_dim=1, learned=learned), arguments("half")[0]
    if learned:
        torch.nn.init.uniform_(module.inv_freq)
    torch.save(module.state_dict(), tmp_path / "state.pt")
    loaded = RotaryEmbedding(**OPTIONS, seq_dim=1, learned=learned)
    loaded.load_state_dict(torch.load(tmp_path / "state.pt"))
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), loaded):
        assert torch.equal(other(q), module(q)) and repr(other) == repr(module)
        assert list(other.state_dict()) == (["inv_freq"] if learned else [])
        assert other.inv_freq is None or other.inv_freq is not module.inv_freq


def test_made_on_the_meta_device():
    with torch.device("meta"):
        modules = [RotaryEmbedding(**OPTIONS, seq_dim=1, learned=learned) for learned in (False, True)]
    assert modules[1].inv_freq.is_meta
    q = random(2, 5, 3, 14)
    for module, learned in zip(modules, (False, True)):
        module.to_empty(device="cpu").reset_parameters()
        assert torch.equal(module(q), RotaryEmbedding(**OPTIONS, seq_dim=1, learned=learned)(q))


def test_a_value_of_a_config():
    config = {"model_type": "llama", "hidden_size": 56, "num_attention_heads": 4, "rope_theta": 5e6}
    rope, q = rope_xp.from_config(config), random(2, 4, 5, 14)
    for learned in (False, True):
        module = RotaryEmbedding(rope, seq_dim=2, learned=learned)
        torch.testing.assert_close(module(q), rope(q, seq_dim=2), rtol=0, atol=1e-5)
        assert len(list(module.parameters())) == learned


def test_it_says_what_it_is():
    rope = rope_xp.RotaryEmbedding(**OPTIONS)
    module = RotaryEmbedding(rope, seq_dim=-2, kernel="reference", learned=True)
    shown = "RotaryEmbedding(head_dim=14, layout='half', base=10000.0, kernel='reference', seq_dim=-2, learned=True)"
    assert repr(module) == repr(eval(shown)) == shown
    assert module.rope.kernel == "reference" and RotaryEmbedding(rope, seq_dim=0).rope is not None


@pytest.mark.compile
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
def test_compiles_whole_without_a_warning(learned, dynamic):
    torch._dynamo.reset()
    module, counter = RotaryEmbedding(**OPTIONS, seq_dim=1, learned=learned), CompileCounter()
    compiled = torch.compile(module, fullgraph=True, dynamic=dynamic, backend=counter)
    for n in range(2, 22):  # 20 lengths and offsets; a warning would be an error
        q, k = random(2, n, 6, 14), random(2, n, 3, 14)
        where = torch.arange(n) + 3 * n
        for one, other in zip(compiled(q, k, positions=where), module(q, k, positions=where), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5)  # angles below 100, and tables within 2e-7
    assert counter.frame_count <= 2


@pytest.mark.compile
def test_compiled_gradient():
    torch._dynamo.reset()
    module, q = RotaryEmbedding(**OPTIONS, seq_dim=1, learned=True), random(2, 5, 3, 14)
    gradients = []
    for call in (module, torch.compile(module, fullgraph=True)):
        module.zero_grad()
        (call(q) ** 3).sum().backward()
        gradients.append(module.inv_freq.grad)
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-4)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(14, 14)
        self.rotary = RotaryEmbedding(**OPTIONS, seq_dim=1, learned=True)

    def forward(self, x):
        return self.rotary(self.project(x)) ** 3


def gradient(module, x):
    module(x).float().sum().backward()
    found = next(p.grad for name, p in module.named_parameters() if name.endswith("inv_freq"))
    return found.full_tensor() if hasattr(found, "full_tensor") else found


def test_wrapped_for_many_processes(one_process):
    torch.manual_seed(0)
    model, x = Attention(), random(2, 5, 3, 14)
    truth = gradient(copy.deepcopy(model), x)
    torch.testing.assert_close(gradient(DistributedDataParallel(copy.deepcopy(model)), x), truth)
    sharded = fully_shard(copy.deepcopy(model))
    torch.testing.assert_close(gradient(sharded, x), truth)
    assert isinstance(sharded, FSDPModule) and set(sharded.state_dict()) == set(model.state_dict())


def test_mixed_precision_needs_a_group_of_its_own(one_process):
    policy, x = MixedPrecisionPolicy(param_dtype=torch.bfloat16), random(2, 5, 3, 14)
    model = Attention()
    with pytest.raises(TypeError, match="inv_freq must be float32 or float64; got bfloat16"):
        fully_shard(copy.deepcopy(model), mp_policy=policy)(x)
    truth = gradient(copy.deepcopy(model), x)
    fully_shard(model.rotary)
    model = fully_shard(model, mp_policy=policy)
    with pytest.warns(UserWarning, match="returned a view"):  # which must not be written over, and is not
        found = gradient(model, x)
    assert model.rotary.inv_freq.dtype == torch.float32 and found.dtype == torch.float32
    # Of numbers, their cubes and gradients in bfloat16, 2**-8 each.
    torch.testing.assert_close(found, truth, rtol=0, atol=float(6 * 2.0**-8 * truth.abs().max()))


def test_bad_input():
    with pytest.raises(TypeError, match="seq_dim"):
        RotaryEmbedding(**OPTIONS)
    with pytest.raises(ValueError, match="RotaryEmbedding: head_dim must be even, at least 2; got 13"):
        RotaryEmbedding(**{**OPTIONS, "head_dim": 13}, seq_dim=1)
    with pytest.raises(ValueError, match=r"seq_dim must name an axis of x before the last; got seq_dim=3 for"):
        RotaryEmbedding(**OPTIONS, seq_dim=3)(random(2, 5, 3, 14))


def test_what_a_module_cannot_begin_from():
    bad_input.check_beginnings(RotaryEmbedding)


def test_sharded_frequencies_are_reset(one_process):
    with torch.device("meta"):
        module = RotaryEmbedding(**OPTIONS, seq_dim=1, learned=True)
    fully_shard(module)
    module.to_empty(device="cpu").reset_parameters()
    beginning = torch.tensor(rope_xp.RotaryEmbedding(**OPTIONS).inv_freq, dtype=torch.float32)
    np.testing.assert_array_equal(module.inv_freq.full_tensor().detach(), beginning)
