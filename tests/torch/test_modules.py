"""The PyTorch module: what it shares with Flax's, and whatever is done to modules."""

import copy
import pickle

import numpy as np
import pytest
import torch
from compare import assert_same
from libraries import LIBRARIES
from module_tests import OPTIONS, ModuleTests
from torch._dynamo.testing import CompileCounterWithBackend
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import rope_xp
from rope_xp.torch import RotaryEmbedding

random = LIBRARIES["torch"].random
BOTH = pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])


def rotary(learned=True):
    return RotaryEmbedding(**OPTIONS, seq_dim=1, learned=learned)


class TestModule(ModuleTests):
    module, xp = RotaryEmbedding, LIBRARIES["torch"]
    calls = (torch.nn.Module.__call__,)

    def train(self, module, loss):
        optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
        for _ in range(100):
            optimizer.zero_grad()
            loss(module).backward()
            optimizer.step()


CASTS = {
    "half": lambda module: module.half(),
    "bfloat16": lambda module: module.bfloat16(),
    "to dtype": lambda module: module.to(torch.bfloat16),
    "to device and dtype": lambda module: module.to("cpu", torch.float16),
    "8 bits": lambda module: module.to(torch.float8_e4m3fn),
}


@BOTH
@pytest.mark.parametrize("cast", CASTS)
def test_no_cast_touches_frequencies(cast, learned):
    model, q = torch.nn.Sequential(torch.nn.Linear(14, 14), rotary(learned)), random(2, 5, 3, 14).bfloat16()
    module, where = model[1], torch.tensor([0, 257, -4095, 131_071, 2**31 - 1])
    before, parameter = module(q, positions=where), module.inv_freq
    CASTS[cast](model)
    assert model[0].weight.dtype.itemsize < 4
    assert torch.equal(module(q, positions=where), before)
    assert module.inv_freq is parameter and not [*module.buffers()]
    assert len([*module.parameters()]) == len(module.state_dict()) == learned
    if learned:
        assert parameter.dtype == torch.float32
    module.inner = torch.nn.Linear(2, 2)  # as a class of a user may have
    assert {each.dtype for each in module.double().parameters()} == {torch.float64}


def test_learned_frequencies_cast_by_other_ways_are_refused():
    module = rotary()
    module.inv_freq.data = module.inv_freq.data.bfloat16()
    with pytest.raises(TypeError, match="inv_freq must be float32 or float64; got bfloat16"):
        module(random(2, 5, 3, 14))


@BOTH
def test_copies_and_files(learned, tmp_path):
    module, loaded, q = rotary(learned), rotary(learned), random(2, 5, 3, 14)
    if learned:
        torch.nn.init.uniform_(module.inv_freq)
    torch.save(module.state_dict(), tmp_path / "state.pt")
    loaded.load_state_dict(torch.load(tmp_path / "state.pt"))
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), loaded):
        assert torch.equal(other(q), module(q)) and repr(other) == repr(module)
        assert list(other.state_dict()) == (["inv_freq"] if learned else [])
        assert other.inv_freq is None or other.inv_freq is not module.inv_freq


@pytest.mark.parametrize("learned, wrap", [(False, None), (True, None), (True, fully_shard)])
def test_made_on_the_meta_device(one_process, learned, wrap):
    with torch.device("meta"):
        module = rotary(learned)
    assert not learned or module.inv_freq.is_meta
    module = module if wrap is None else wrap(module)
    module.to_empty(device="cpu").reset_parameters()
    q = random(2, 5, 3, 14)
    with torch.no_grad():
        assert torch.equal(module(q), rotary(learned)(q))


def test_it_says_what_it_is():
    rope = rope_xp.RotaryEmbedding(**OPTIONS)
    module = RotaryEmbedding(rope, seq_dim=-2, kernel="reference", learned=True)
    shown = "RotaryEmbedding(head_dim=14, layout='half', base=10000.0, kernel='reference', seq_dim=-2, learned=True)"
    assert repr(module) == repr(eval(shown)) == shown
    assert module.rope.kernel == "reference" and rope_xp.compare(module, rope).same
    heads = RotaryEmbedding(head_dim=4, layout="half", inv_freq=np.ones((1, 3, 2)), seq_dim=1, heads_dim=2)
    assert repr(heads).endswith("seq_dim=1, heads_dim=2)")


@pytest.mark.compile
@BOTH
def test_compiles_whole_without_a_warning(learned):
    torch._dynamo.reset()
    module, counter = rotary(learned), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module, fullgraph=True, backend=counter)
    for n in (2, 3, 7, 21):  # once for fixed sizes, and once for all others; a warning would be an error
        q, k, where = random(n + 1, n, 6, 14), random(n + 1, n, 3, 14), torch.arange(n) + 3 * n
        # Angles below 100, and tables within 2e-7.
        assert_same(compiled(q, k, positions=where), module(q, k, positions=where), atol=1e-5)
    assert counter.frame_count <= 2
    if learned:
        gradients = [torch.autograd.grad((call(k) ** 3).sum(), module.inv_freq)[0] for call in (module, compiled)]
        torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-4)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(14, 14)
        self.rotary = rotary()

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
