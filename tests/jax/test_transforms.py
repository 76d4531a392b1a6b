"""What JAX adds: transforms, compiled programs, modules that hold a value."""

import bad_input
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from compare import assert_same
from flax import nnx
from jax import export
from jax.test_util import check_grads
from libraries import LIBRARIES
from samples import embedding

from rope_xp import RotaryEmbedding, Sections, apply_rotary_pos_emb, fixed_pos_embedding, positions
from rope_xp.weights import permute_projection

XP = LIBRARIES["jax"]
random = XP.random


def notebook(x, offset=0):
    return apply_rotary_pos_emb(x, fixed_pos_embedding(x, offset=offset))


def test_rows_are_chosen_under_jit_and_differentiated():
    rope, x = embedding(), random(2, 5, 3, 14)
    sincos, where = rope.sincos(np.arange(9), like=x), jnp.asarray([3, 0, 3, -1, 8])
    call = lambda x, sincos, where: rope(x, sincos=sincos, positions=where, seq_dim=1)  # noqa: E731
    np.testing.assert_allclose(jax.jit(call)(x, sincos, where), call(x, sincos, where), rtol=0, atol=1e-6)
    check_grads(lambda *both: call(x, both, where)[:, :3], sincos, order=1, modes=("rev",), atol=1e-2, rtol=1e-2)


def test_packed_rows_of_as_many_tokens_as_int32_has():
    """Only their shape is computed: they would take 8 GB."""
    for make in (positions.from_lengths, lambda sizes, like: positions.from_cu_seqlens([0, *sizes], like=like)):
        found = jax.eval_shape(lambda make=make: make([2**31 - 1], like=jnp.zeros(1)))
        assert (found.shape, found.dtype) == ((2**31 - 1,), jnp.int32)


def test_no_table_is_baked_into_the_program():
    rope = RotaryEmbedding(head_dim=128, layout="half", base=500_000.0)
    for dtype in (jnp.float32, jnp.bfloat16):
        x = jax.ShapeDtypeStruct((131_072, 2, 128), dtype)
        assert len(jax.jit(notebook).lower(x).as_text()) < 20_000
        assert len(jax.jit(lambda x: rope(x, seq_dim=0)).lower(x).as_text()) < 20_000


def test_offsets_are_traced_once():
    x, step = random(5, 3, 14), jax.jit(notebook)
    for offset in (0, 1, 100_000):
        assert_same(step(x, offset), notebook(x, offset))
    assert step._cache_size() == 1


def test_static_argument():
    x, where = random(2, 5, 3, 14), np.asarray([3, -7, 2**31 - 1, 100_003, 0], np.int32)
    static = jax.jit(lambda rope, x, where: rope(x, positions=where, seq_dim=1), static_argnums=0)
    for rope in (embedding(), embedding(), embedding("interleaved", rotary_dim=10)):
        assert_same(static(rope, x, where), rope(x, positions=where, seq_dim=1))
    assert static._cache_size() == 2


def test_vmap_scan_and_checkpoint():
    rope, x = embedding("interleaved"), random(2, 5, 3, 14)
    offsets = jnp.asarray([7, 100_000])
    rows = jax.vmap(lambda x, offset: rope(x, positions=positions.consecutive(5, offset), seq_dim=0))(x, offsets)
    whole = rope(x, positions=positions.consecutive(5, offsets), seq_dim=1)
    assert_same(rows, whole)

    def step(offset, x):  # one token of all rows
        where = positions.consecutive(1, offset)
        return offset + 1, rope(x[:, None], positions=where, seq_dim=1)[:, 0]

    _, steps = jax.lax.scan(step, jnp.int32(0), jnp.moveaxis(x, 1, 0))
    assert_same(jnp.moveaxis(steps, 0, 1), rope(x, seq_dim=1))

    loss = lambda x: (rope(x, seq_dim=1) ** 3).sum()  # noqa: E731
    assert_same(jax.grad(jax.checkpoint(loss))(x), jax.grad(loss)(x), atol=1e-4)


def test_ranks_and_boundaries_are_traced():
    """One program for all ranks and for all packings of as many sequences; and for rows of any length."""

    def split(row, rank, ends):
        options = {"zigzag": True, "cu_seqlens": ends}
        return [positions.context_parallel(seq, rank, 2, **options) for seq in (row.shape[0], row)]

    jitted, row = jax.jit(split), 3 * jnp.arange(24)
    length = export.symbolic_shape("4 * n")
    rank, ends = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((), (4,)))
    exported = export.export(jitted)(jax.ShapeDtypeStruct(length, jnp.int32), rank, ends)
    for boundaries in ([0, 8, 24, 24], [0, 4, 12, 24]):
        for rank in range(2):
            truth = split(np.asarray(row), rank, boundaries)
            for function in (jitted, exported.call):
                for result, wanted in zip(function(row, rank, jnp.asarray(boundaries)), truth, strict=True):
                    np.testing.assert_array_equal(result, wanted)
        both = jax.vmap(split, in_axes=(None, 0, None))(row, jnp.arange(2), jnp.asarray(boundaries))
        np.testing.assert_array_equal(jnp.sort(both[1], axis=None), row)
    assert jitted._cache_size() == 1


def test_keys_change_their_frequencies_under_jit_and_are_differentiated():
    rope, other, k = embedding(attention_factor=1.25), embedding(base=500.0), random(5, 3, 14)
    where, call = (
        np.asarray([3, 0, 1_000_003, -7, 71], np.int32),
        jax.jit(rope.rerotate, static_argnames=("to", "seq_dim")),
    )
    cached, truth = (each(k, positions=where, seq_dim=0) for each in (rope, other))
    assert_same(call(cached, where, to=other, seq_dim=0), truth, atol=5e-6)
    # The change is linear, and its transpose changes keys back, but for the square of the ratio of the factors.
    _, back = jax.vjp(lambda k: call(k, where, to=other, seq_dim=0), cached)
    (gradient,) = back(truth)
    assert_same(gradient * 1.25**2, cached, atol=1e-5)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"), jax.checking_leaks():
        assert call(cached.astype(jnp.bfloat16), where, to=other, seq_dim=0).dtype == jnp.bfloat16


def test_strict_promotion_and_tracer_leaks():
    rope, x = embedding(), random(2, 5, 3, 14)
    with (
        jax.numpy_dtype_promotion("strict"),
        jax.numpy_rank_promotion("raise"),
        jax.checking_leaks(),
        jax.debug_nans(True),
    ):
        for dtype in (jnp.float32, jnp.bfloat16):
            for call in (lambda x: rope(x, seq_dim=1), lambda x: notebook(x, jnp.int32(3))):
                assert jax.jit(call)(x.astype(dtype)).dtype == dtype == call(x.astype(dtype)).dtype
        inv_freq = jnp.ones(7)
        RotaryEmbedding(head_dim=14, layout="half", inv_freq=inv_freq)(x, positions=jnp.ones(5), seq_dim=1)
        sections = RotaryEmbedding(head_dim=14, layout="half", base=100.0, sections=Sections((3, 4), order="axial"))
        heads = RotaryEmbedding(head_dim=14, layout="half", inv_freq=jnp.ones((2, 3, 7)))
        for where in (jnp.ones((2, 5), jnp.int32), jnp.ones((2, 5))):
            jax.jit(lambda x, where: sections(x, positions=where, seq_dim=1))(x, where)
            jax.jit(lambda x, where: heads(x, positions=where, seq_dim=1, heads_dim=2))(x, where)


def test_with_64_bits():
    with jax.enable_x64(True):
        x = jnp.asarray(np.random.default_rng(0).standard_normal((5, 14)))
        where = np.asarray([0, -5, 2**31 - 1, 2**33 + 5, 131_071])
        exact = oracle.sin_cos(where, [oracle.mpmath.mpf(w) for w in embedding().inv_freq])

        def tables(where, x):
            return embedding().sincos(where, like=x)

        for call in (tables, jax.jit(tables)):
            for given in (where, jnp.asarray(where)):
                sincos = call(given, x)
                assert sincos.sin.dtype == jnp.float64
                assert max(np.abs(np.asarray(t) - e).max() for t, e in zip(sincos, exact, strict=True)) <= 4e-16
        assert embedding()(x, seq_dim=0).dtype == jnp.float64
        assert embedding()(x.astype(jnp.float32), seq_dim=0).dtype == jnp.float32


def test_bad_input_is_refused_while_tracing():
    x = jnp.ones((2, 5, 3, 14))
    for number, (_, error, message) in enumerate(bad_input.arrays(XP, x)):
        with pytest.raises(error, match=message):
            jax.jit(lambda x, number=number: bad_input.arrays(XP, x)[number][0]())(x)


def test_attribute_of_a_flax_module():
    class Attention(nnx.Module):
        def __init__(self, rngs):
            self.rope = embedding()
            self.project = nnx.Linear(14, 14, rngs=rngs)

        def __call__(self, x):
            return self.rope(self.project(x), seq_dim=1)

    module, x = Attention(nnx.Rngs(0)), random(2, 5, 3, 14)
    assert_same(nnx.jit(lambda m, x: m(x))(module, x), embedding()(module.project(x), seq_dim=1))
    assert set(nnx.to_pure_dict(nnx.state(module))) == {"project"}
    assert jax.tree.leaves(nnx.grad(lambda m: m(x).sum())(module))


def test_learned_frequencies_are_not_hashed():
    with pytest.raises(TypeError, match=r"must not be hashed.*; got inv_freq of shape"):
        hash(RotaryEmbedding(head_dim=14, layout="half", inv_freq=jnp.ones(7)))
    with pytest.raises(TypeError, match="inv_freq must be float32 or float64; got bfloat16"):
        RotaryEmbedding(head_dim=14, layout="half", inv_freq=jnp.ones(7, dtype=jnp.bfloat16))


def test_projections_between_layouts_gather_nothing_and_are_differentiated():
    def permute(w):
        return permute_projection(w, num_heads=2, to="half", rotary_dim=6)

    w, factors = random(3, 28, 5), random(28, 5, seed=1)
    assert "gather" not in str(jax.make_jaxpr(permute)(w[0]))
    np.testing.assert_array_equal(jax.jit(jax.vmap(permute))(w), jnp.stack([permute(each) for each in w]))
    gradient = jax.grad(lambda w: (permute(w) * factors).sum())(w[0])
    back = permute_projection(factors, num_heads=2, to="interleaved", rotary_dim=6)
    np.testing.assert_array_equal(gradient, back)
