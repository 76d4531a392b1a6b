"""The Flax NNX module: what it shares with PyTorch's, and NNX's own transforms."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compare import assert_same
from flax import nnx
from libraries import LIBRARIES
from module_tests import OPTIONS, ModuleTests

from rope_xp.flax import RotaryEmbedding

random = LIBRARIES["jax"].random


def call(module, *arrays, positions=None):
    return module(*arrays, positions=positions)


class TestModule(ModuleTests):
    module, xp, ATOL = RotaryEmbedding, LIBRARIES["jax"], 1e-6
    calls = (call, nnx.jit(call))

    def train(self, module, loss):
        optimizer = nnx.Optimizer(module, optax.adam(0.01), wrt=nnx.Param)
        step = nnx.jit(lambda module, optimizer: optimizer.update(module, nnx.grad(loss)(module)))
        for _ in range(100):
            step(module, optimizer)


def fixed_and_learned():
    return [RotaryEmbedding(**OPTIONS, seq_dim=1, learned=learned) for learned in (False, True)]


def test_fixed_frequencies_are_no_state_and_learned_ones_are_one_parameter():
    fixed, learned = fixed_and_learned()
    assert nnx.to_pure_dict(nnx.state(fixed)) == {}
    (found,) = jax.tree.leaves(nnx.state(learned, nnx.Param))
    assert found.shape == (7,) and found.dtype == jnp.float32
    assert len(jax.tree.leaves(nnx.state(learned))) == 1


def test_split_merge_and_copies():
    q = random(2, 5, 3, 14)
    for module, again in zip(fixed_and_learned(), fixed_and_learned()):
        graph, state = nnx.split(module)
        for other in (nnx.merge(graph, state), nnx.clone(module), copy.deepcopy(module)):
            np.testing.assert_array_equal(other(q), module(q))
        assert hash(graph) == hash(nnx.graphdef(again))
        assert_same(jax.jit(lambda state, q, graph=graph: nnx.merge(graph, state)(q))(state, q), module(q))


def test_equal_modules_are_traced_once():
    traces = []

    @nnx.jit
    def call(module, q):
        traces.append(1)
        return module(q)

    q = random(2, 5, 3, 14)
    for _ in range(3):
        call(RotaryEmbedding(**OPTIONS, seq_dim=1), q)
    call(RotaryEmbedding(**{**OPTIONS, "layout": "interleaved"}, seq_dim=1), q)
    assert len(traces) == 2


def test_a_state_cast_to_half_precision():
    q, (fixed, learned) = random(2, 5, 3, 14), fixed_and_learned()

    def cast(module):
        return nnx.merge(nnx.graphdef(module), jax.tree.map(lambda x: x.astype(jnp.bfloat16), nnx.state(module)))

    np.testing.assert_array_equal(cast(fixed)(q), fixed(q))
    with pytest.raises(TypeError, match="inv_freq must be float32 or float64; got bfloat16"):
        cast(learned)(q)


def test_it_says_what_it_is():
    assert "head_dim=14, layout='half', base=10000.0" in repr(RotaryEmbedding(**OPTIONS, seq_dim=1))
