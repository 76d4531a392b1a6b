"""The Flax NNX module: the value it holds and nothing else, under NNX's transforms."""

import copy

import bad_input
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compare import assert_same
from flax import nnx
from libraries import LIBRARIES

import rope_xp
from rope_xp import Sections, YarnScaling
from rope_xp.flax import RotaryEmbedding

random = LIBRARIES["jax"].random

OPTIONS = {"head_dim": 14, "layout": "half", "base": 10_000.0}
KINDS = {
    "half": {},
    "interleaved, part": {"layout": "interleaved", "rotary_dim": 8, "first_channel": 4},
    "scaled": {"scaling": YarnScaling(factor=4.0, original_max_position_embeddings=4096)},
    "axes": {"sections": Sections((3, 4), order="axial")},
    "reversed": {"reverse": True},
}


@pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
@pytest.mark.parametrize("kind", KINDS)
def test_rotates_as_the_value(kind, learned):
    options = {**OPTIONS, **KINDS[kind]}
    rope, q, k = rope_xp.RotaryEmbedding(**options), random(2, 5, 6, 14), random(2, 5, 3, 14, seed=1)
    where = jnp.asarray([3, -7, 100, 2**10 - 1, 0])
    where = jnp.stack([where, where - 1]) if kind == "axes" else where
    truths = rope(q, k, positions=where, seq_dim=1)
    # Frequencies of a variable are float32, off by 2**-24 of themselves: angles below 2**10 are off by 2**-14, and
    # numbers are below 4, with an attention factor below 1.2; both channels of a pair add up.
    atol = 2 * 4 * 1.2 * 2.0**-14 if learned else 1e-6
    call = lambda module, q, k, where: module(q, k, positions=where)  # noqa: E731
    for module in (
        RotaryEmbedding(**options, seq_dim=1, learned=learned),
        RotaryEmbedding(rope, seq_dim=1, learned=learned),
    ):
        for turned in (call(module, q, k, where), nnx.jit(call)(module, q, k, where)):
            for one, truth in zip(turned, truths, strict=True):
                assert_same(one, truth, atol)


def test_takes_one_array_tables_and_rows_of_tables():
    module, q = RotaryEmbedding(**OPTIONS, seq_dim=1), random(2, 5, 3, 14)
    sincos, where = module.rope.sincos(jnp.arange(5)), jnp.asarray([3, 0, 3, 1, 4])
    assert_same(module(q, sincos=sincos), module.rope(q, seq_dim=1))
    assert_same(module(q, sincos=sincos, positions=where), module(q, positions=where))


def test_frequencies_of_each_head():
    inv_freq, q, where = 0.3 * random(2, 3, 7, seed=1), random(2, 5, 3, 14), 3 * random(2, 5, seed=2)
    module = RotaryEmbedding(head_dim=14, layout="half", inv_freq=inv_freq, seq_dim=1, heads_dim=2)
    value = rope_xp.RotaryEmbedding(head_dim=14, layout="half", inv_freq=inv_freq)
    assert_same(module(q, positions=where), value(q, positions=where, seq_dim=1, heads_dim=2))
    np.testing.assert_array_equal(module.inv_freq[...], inv_freq)


def test_fixed_frequencies_are_no_state_and_learned_ones_are_one_parameter():
    fixed, learned = (RotaryEmbedding(**OPTIONS, seq_dim=1, learned=learned) for learned in (False, True))
    assert nnx.to_pure_dict(nnx.state(fixed)) == {}
    (found,) = jax.tree.leaves(nnx.state(learned, nnx.Param))
    assert found.shape == (7,) and found.dtype == jnp.float32
    assert len(jax.tree.leaves(nnx.state(learned))) == 1


@pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
def test_split_merge_and_copies(learned):
    module, q = RotaryEmbedding(**OPTIONS, seq_dim=1, learned=learned), random(2, 5, 3, 14)
    graph, state = nnx.split(module)
    for other in (nnx.merge(graph, state), nnx.clone(module), copy.deepcopy(module)):
        np.testing.assert_array_equal(other(q), module(q))
    assert hash(graph) == hash(nnx.split(RotaryEmbedding(**OPTIONS, seq_dim=1, learned=learned))[0])
    turned = jax.jit(lambda state, q: nnx.merge(graph, state)(q))(state, q)
    assert_same(turned, module(q))


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


def test_the_gradient_is_that_of_the_value():
    module, q = RotaryEmbedding(**OPTIONS, seq_dim=1, learned=True), random(2, 5, 3, 14)
    weights = random(2, 5, 3, 14, seed=4)
    (found,) = jax.tree.leaves(nnx.grad(lambda module: (module(q) * weights).sum())(module))

    def loss(inv_freq):
        return (rope_xp.RotaryEmbedding(head_dim=14, layout="half", inv_freq=inv_freq)(q, seq_dim=1) * weights).sum()

    truth = jax.grad(loss)(module.inv_freq[...])
    assert jnp.abs(truth).max() > 1
    assert_same(found, truth, atol=1e-5)


def test_it_learns_and_every_call_reads_it_anew():
    module = RotaryEmbedding(head_dim=14, layout="half", inv_freq=jnp.full(7, 0.5), seq_dim=1)
    x, truth = random(1, 5, 1, 14), jnp.linspace(0.4, 0.6, 7)
    target = rope_xp.RotaryEmbedding(head_dim=14, layout="half", inv_freq=truth)(x, seq_dim=1)
    optimizer = nnx.Optimizer(module, optax.adam(0.01), wrt=nnx.Param)

    @nnx.jit
    def step(module, optimizer):
        optimizer.update(module, nnx.grad(lambda module: ((module(x) - target) ** 2).sum())(module))

    for _ in range(100):
        step(module, optimizer)
    assert jnp.abs(module.inv_freq[...] - truth).max() < 0.01


def test_a_state_cast_to_half_precision():
    q = random(2, 5, 3, 14)
    cast = lambda module: nnx.merge(  # noqa: E731
        nnx.graphdef(module), jax.tree.map(lambda x: x.astype(jnp.bfloat16), nnx.state(module))
    )
    fixed, learned = (RotaryEmbedding(**OPTIONS, seq_dim=1, learned=learned) for learned in (False, True))
    np.testing.assert_array_equal(cast(fixed)(q), fixed(q))
    with pytest.raises(TypeError, match="inv_freq must be float32 or float64; got bfloat16"):
        cast(learned)(q)


def test_a_value_of_a_config():
    config = {"model_type": "llama", "hidden_size": 56, "num_attention_heads": 4, "rope_theta": 5e5}
    rope, q = rope_xp.from_config(config), random(2, 4, 5, 14)
    module = RotaryEmbedding(rope, seq_dim=2)
    assert module.rope == rope
    assert_same(module(q), rope(q, seq_dim=2))


def test_it_says_what_it_is():
    assert "head_dim=14, layout='half', base=10000.0" in repr(RotaryEmbedding(**OPTIONS, seq_dim=1))


def test_bad_input():
    with pytest.raises(TypeError, match="seq_dim"):
        RotaryEmbedding(**OPTIONS)
    with pytest.raises(ValueError, match=r"seq_dim must name an axis of x before the last; got seq_dim=3 for"):
        RotaryEmbedding(**OPTIONS, seq_dim=3)(random(2, 5, 3, 14))


def test_what_a_module_cannot_begin_from():
    bad_input.check_beginnings(RotaryEmbedding)
