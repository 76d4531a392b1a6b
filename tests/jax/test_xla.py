"""What XLA makes of the rotation: the bytes it moves and the loops it runs, counted in compiled programs, not timed."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")  # before JAX starts

import re
import warnings
from collections import Counter
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.test_util import check_grads
from libraries import LIBRARIES
from samples import radians

from rope_xp import RotaryEmbedding, Sections, apply_rotary_pos_emb, fixed_pos_embedding
from rope_xp._core import kernels
from rope_xp._core.kernels import xla as kernel
from rope_xp._core.kernels.pair_rotation import Rotation

pytestmark = pytest.mark.compile

random = LIBRARIES["jax"].random
DTYPES = [jnp.float32, jnp.bfloat16, jnp.float16]
LAYOUTS = {
    "half": Rotation("half", "half"),
    "interleaved": Rotation("interleaved", "interleaved"),
    "interleaved_to_half": Rotation("interleaved", "half"),
}
# By width of x and number of pairs. Up to 128 channels and from there on, XLA treats concatenation differently.
PARTS = {
    "half, first of 128": (128, 32, Rotation("half", "half")),
    "half, first of 64": (64, 12, Rotation("half", "half")),
    "half, odd number of pairs": (128, 15, Rotation("half", "half")),
    "half, middle of 256": (256, 32, Rotation("half", "half", 64)),
    "half, last of 192": (192, 32, Rotation("half", "half", 128)),
    "half, from an odd channel": (128, 32, Rotation("half", "half", 3)),
    "half, blocks": (128, 64, Rotation("half", "half", 0, 2)),
    "half, blocks of a part": (192, 48, Rotation("half", "half", 32, 3)),
    "interleaved, first of 128": (128, 32, Rotation("interleaved", "interleaved")),
    "interleaved, first of 256": (256, 32, Rotation("interleaved", "interleaved")),
    "interleaved, last of 192": (192, 32, Rotation("interleaved", "interleaved", 128)),
    "interleaved to half, last of 192": (192, 32, Rotation("interleaved", "half", 128)),
}
TURNS = {name: (16, 8, rotation) for name, rotation in LAYOUTS.items()} | {
    "half, middle": (22, 5, Rotation("half", "half", 6)),
    "half, blocks": (20, 8, Rotation("half", "half", 2, 4)),
    "interleaved, from an odd channel": (15, 4, Rotation("interleaved", "interleaved", 3)),
    "interleaved to half, last": (16, 5, Rotation("interleaved", "half", 6)),
    "half, from within a block": (16, 3, Rotation("half", "half", 2)),  # of which its end and the width are multiples
}
TURNS |= {f"{name}, back": (dim, pairs, rotation.inverted()) for name, (dim, pairs, rotation) in TURNS.items()}
# One of each way to read, write and leave channels alone, where each would take long.
SOME = [
    "half",
    "half, middle",
    "half, from within a block",
    "half, blocks",
    "interleaved, from an odd channel, back",
    "interleaved_to_half, back",
]


def tables(*shape, dtype="float32"):
    return LIBRARIES["jax"].tables(radians(*shape), dtype)


def places(pairs, layout, rotation):
    """Where the first and the second channel of each pair stand."""
    j = np.arange(pairs)
    block = j // (pairs // rotation.blocks) * (pairs // rotation.blocks)
    one, other = (2 * j, 2 * j + 1) if layout == "interleaved" else (j + block, j + block + pairs // rotation.blocks)
    return rotation.first_channel + one, rotation.first_channel + other


def expected(x, sin, cos, rotation):
    """The rotation by complex numbers, in float64; and how long the pair of each channel that turns is."""
    x, sin, cos = (np.asarray(array, dtype=np.float64) for array in (x, sin, cos))
    one, other = places(sin.shape[-1], rotation.read, rotation)
    pairs = x[..., one] + 1j * x[..., other]
    turned = pairs * (cos - 1j * sin if rotation.inverse else cos + 1j * sin)
    result, size = x.copy(), np.zeros_like(x)
    one, other = places(sin.shape[-1], rotation.write, rotation)
    result[..., one], result[..., other] = turned.real, turned.imag
    size[..., one] = size[..., other] = np.abs(pairs)
    return result, size


def assert_turned(result, x, sin, cos, rotation):
    """Products and sums in the tables' dtype, then one rounding to that of `x`; the other channels as they were."""
    truth, size = expected(x, sin, cos, rotation)
    assert result.shape == x.shape and result.dtype == x.dtype
    rounding = jnp.finfo(x.dtype).eps / 2 * np.abs(truth) * (size > 0)
    excess = np.abs(np.asarray(result, dtype=np.float64) - truth) - rounding - 2 * jnp.finfo(sin.dtype).eps * size
    assert excess.max() <= 0


def computations(compiled):
    """The computations of a compiled program, by name, as lists of (operation, number of elements that it writes)."""
    found = {}
    for name, body in re.findall(r"^(ENTRY|%\S+) [^\n]*\{\n(.*?)^\}", compiled.as_text(), re.MULTILINE | re.DOTALL):
        lines = re.findall(r"^ +(?:ROOT )?%\S+ = \(?\w+\[([\d,]*)\].*? ([a-z][\w-]*)\(", body, re.MULTILINE)
        found[name] = [(operation, prod(int(size) for size in shape.split(",") if size)) for shape, operation in lines]
    return found


def steps(compiled):
    """What the program executes, one after the other."""
    free = ("parameter", "constant", "bitcast", "tuple", "get-tuple-element")
    return [operation for operation, _ in computations(compiled)["ENTRY"] if operation not in free]


def loops_over(compiled, size):
    """The operations of each loop that writes so many elements or more."""
    found = computations(compiled)
    return sorted(
        sorted(Counter(operation for operation, _ in body).items())
        for name, body in found.items()
        if name != "ENTRY" and body[-1][1] >= size
    )


def bytes_accessed(compiled):
    return compiled.cost_analysis()["bytes accessed"]


def ideal(x, *sincos):
    return 2 * x.size * x.dtype.itemsize + sum(table.size * table.dtype.itemsize for table in sincos)


def assert_one_pass(function, x, sin, cos):
    compiled = jax.jit(function).lower(x, sin, cos).compile()
    assert steps(compiled) == ["fusion"]
    assert bytes_accessed(compiled) <= 1.05 * ideal(x, sin, cos)
    assert compiled.memory_analysis().temp_size_in_bytes == 0
    names = {operation for body in computations(compiled).values() for operation, _ in body}
    assert names.isdisjoint({"pad", "select", "gather", "scatter", "dynamic-slice", "dynamic-update-slice"})


def assert_one_pass_each_way(rotation, x, sin, cos):
    def forward(x, sin, cos):
        return kernel.rotate(x, sin, cos, rotation)

    def backward(g, sin, cos):
        return jax.vjp(lambda x: forward(x, sin, cos), g)[1](g)[0]

    def backward_of_backward(g, sin, cos):
        return jax.vjp(lambda x: backward(x, sin, cos), g)[1](g)[0]

    for function in (forward, backward, backward_of_backward):
        assert_one_pass(function, x, sin, cos)


def struct(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("seq_dim", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_loop_moves_no_more_than_it_must(layout, seq_dim, dtype):
    table = struct(*((1, 2048, 1, 64) if seq_dim == 1 else (1, 1, 2048, 64)))
    x = struct(*((1, 2048, 32, 128) if seq_dim == 1 else (1, 32, 2048, 128)), dtype=dtype)
    assert_one_pass_each_way(LAYOUTS[layout], x, table, table)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("part", PARTS)
def test_one_loop_turns_a_part_of_the_channels(part, dtype):
    dim, pairs, rotation = PARTS[part]
    table = struct(2, 512, 1, pairs)
    assert_one_pass_each_way(rotation, struct(2, 512, 8, dim, dtype=dtype), table, table)


def test_the_counting_sees_more_than_one_loop():
    def naive(x, sin, cos):
        first, second = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    table = struct(1, 512, 1, 64)
    with pytest.raises(AssertionError):
        assert_one_pass(naive, struct(1, 512, 8, 128), table, table)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pairs", [64, 32])
def test_the_gradient_keeps_nothing_but_the_tables(layout, pairs):
    x, sincos = random(2, 16, 4, 128, dtype=jnp.bfloat16), tables(16, pairs)

    def rotated(x):
        return apply_rotary_pos_emb(x, sincos, layout=layout, seq_dim=1)

    for call in (rotated, jax.jit(rotated)):
        kept = jax.tree.leaves(jax.vjp(call, x)[1])
        assert sum(array.size for array in kept) == 2 * 16 * pairs

    def layers(x):  # what a loop over layers keeps, it would keep for each of them
        return jax.lax.scan(lambda x, _: (rotated(x), None), x, length=5)[0]

    kept = jax.tree.leaves(jax.vjp(jax.jit(layers), x)[1])
    assert sum(array.size for array in kept) <= 2 * 16 * pairs


def positions_of(kind):
    where = jnp.arange(256, dtype=jnp.int32)
    return {"batch": jnp.stack([where, where + 7]), "real": where + 0.5, "axes": jnp.stack([where, where])}.get(
        kind, where
    )


ROPES = {
    "consecutive": {"base": 10_000.0},
    "batch": {"base": 10_000.0},
    "real": {"base": 10_000.0},
    "axes": {"base": 10_000.0, "sections": Sections((32, 32), order="axial")},
    "float32": {"base": 10_000.0, "phase": "float32"},
    "learned": {},
}


@pytest.mark.parametrize("kind", ROPES)
@pytest.mark.parametrize("layout, dtype", [("half", jnp.bfloat16), ("interleaved", jnp.float32)])
def test_no_head_computes_a_table_anew(kind, layout, dtype):
    inv_freq = jnp.asarray(10_000.0 ** (-np.arange(64) / 64), dtype=jnp.float32)
    where = positions_of(kind)

    def rope(inv_freq):
        return RotaryEmbedding(head_dim=128, layout=layout, **ROPES[kind] or {"inv_freq": inv_freq})

    def whole(q, k, where, inv_freq):
        return rope(inv_freq)(q, k, positions=where, seq_dim=1)

    def given(q, k, sincos):
        return tuple(apply_rotary_pos_emb(x, sincos, layout=layout, seq_dim=1) for x in (q, k))

    def squares(function):  # forward and backward
        return jax.grad(
            lambda q, k, *rest: sum((x.astype(jnp.float32) ** 2).sum() for x in function(q, k, *rest)), (0, 1)
        )

    q, k = struct(2, 256, 8, 128, dtype=dtype), struct(2, 256, 2, 128, dtype=dtype)
    sincos = jax.eval_shape(lambda: rope(inv_freq).sincos(where))
    for change in (lambda function: function, squares):
        ours = jax.jit(change(whole)).lower(q, k, where, inv_freq).compile()
        best = jax.jit(change(given)).lower(q, k, tuple(sincos)).compile()
        assert loops_over(ours, k.size) == loops_over(best, k.size)
        assert bytes_accessed(ours) <= 1.05 * bytes_accessed(best) + 2 * ideal(sincos.sin)  # and what the tables take


def test_tables_of_consecutive_positions_are_made_once_for_queries_and_keys():
    rope = RotaryEmbedding(head_dim=128, layout="half", base=10_000.0)
    q, k = struct(2, 256, 8, 128), struct(2, 256, 2, 128)
    compiled = jax.jit(lambda q, k: rope(q, k, seq_dim=1)).lower(q, k).compile()
    assert Counter(steps(compiled)) == {"fusion": 4}  # sine, cosine, q and k
    assert bytes_accessed(compiled) <= 1.05 * (ideal(q) + ideal(k) + 3 * 2 * 256 * 64 * 4)
    compiled = jax.jit(lambda x: apply_rotary_pos_emb(x, fixed_pos_embedding(x, 1), seq_dim=1)).lower(q).compile()
    assert Counter(steps(compiled)) == {"fusion": 3}


def test_tables_alone_are_written_once_and_nothing_beside_them():
    rope = RotaryEmbedding(head_dim=128, layout="half", base=10_000.0)
    compiled = jax.jit(lambda where: tuple(rope.sincos(where))).lower(struct(131_072, dtype=jnp.int32)).compile()
    assert set(steps(compiled)) == {"fusion"}
    assert bytes_accessed(compiled) <= 1.05 * 2 * 131_072 * 64 * 4
    assert compiled.memory_analysis().temp_size_in_bytes == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_donated_array_is_used_again(layout, dtype):
    rope, x = RotaryEmbedding(head_dim=128, layout=layout, base=10_000.0), random(2, 16, 4, 128, dtype=dtype)
    sincos = rope.sincos(jnp.arange(16))
    turned = rope.rotate(x, sincos, seq_dim=1)
    step = jax.jit(lambda x, sincos: rope.rotate(x, sincos, seq_dim=1), donate_argnums=0)
    assert step.lower(x, sincos).compile().memory_analysis().alias_size_in_bytes == x.nbytes
    place = x.unsafe_buffer_pointer()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # JAX warns of donated buffers that it could not use
        result = step(x, sincos)
    assert x.is_deleted() and result.unsafe_buffer_pointer() == place
    np.testing.assert_array_equal(np.asarray(result), np.asarray(turned))


def test_outside_jit_it_is_one_program_and_inside_none_of_its_own():
    x, (sin, cos), rotation = random(2, 3, 11, 38), tables(1, 3, 1, 19), LAYOUTS["half"]
    before = kernel.rotate._cache_size()
    for _ in range(3):
        kernel.rotate(x, sin, cos, rotation)
    assert kernel.rotate._cache_size() == before + 1
    names = {
        equation.primitive.name for equation in jax.make_jaxpr(lambda *a: kernel.rotate(*a, rotation))(x, sin, cos).eqns
    }
    assert names <= {"reshape", "unstack", "stack", "mul", "add", "sub"}


def test_it_is_the_fastest_for_jax_and_for_nothing_else():
    x = random(3, 8)
    assert kernels.choose("test", x, "fastest") == kernels.choose("test", x, "xla") == "xla"
    with pytest.raises(ValueError, match="test: kernel='xla' must have arrays in jax; got host memory"):
        kernels.choose("test", np.asarray(x), "xla")


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("name", TURNS)
def test_values(name, dtype):
    dim, pairs, rotation = TURNS[name]
    x, (sin, cos) = random(2, 3, 4, dim, dtype=dtype), tables(2, 1, 4, pairs)
    assert_turned(kernel.rotate(x, sin, cos, rotation), x, sin, cos, rotation)
    np.testing.assert_array_equal(np.asarray(x), np.asarray(random(2, 3, 4, dim, dtype=dtype)))


@pytest.mark.parametrize(
    "dtype, wrap", [(jnp.float32, jax.jit), (jnp.bfloat16, lambda call: call)], ids=["jit", "eager"]
)
@pytest.mark.parametrize("name", SOME)
def test_derivatives_are_rotations(name, dtype, wrap):
    dim, pairs, rotation = TURNS[name]
    x, dx, (sin, cos) = (
        random(2, 3, 4, dim, dtype=dtype),
        random(2, 3, 4, dim, seed=2, dtype=dtype),
        tables(2, 1, 4, pairs),
    )

    def rotate(x):
        return kernel.rotate(x, sin, cos, rotation)

    def derivatives(x, dx):
        value, change = jax.jvp(rotate, (x,), (dx,))
        forward = [change, jax.linearize(rotate, x)[1](dx)]
        return value, forward, [jax.vjp(rotate, x)[1](dx)[0], jax.linear_transpose(rotate, x)(dx)[0]]

    value, forward, backward = wrap(derivatives)(x, dx)
    assert_turned(value, x, sin, cos, rotation)
    for each in forward:
        assert_turned(each, dx, sin, cos, rotation)
    for each in backward:
        assert_turned(each, dx, sin, cos, rotation.inverted())


@pytest.mark.parametrize("name", SOME)
def test_jacobians_forward_and_backward(name):
    dim, pairs, rotation = TURNS[name]
    x, (sin, cos) = random(dim), tables(pairs)
    truth = np.stack([expected(row, sin, cos, rotation)[0] for row in np.eye(dim)], axis=-1)

    def rotate(x):
        return kernel.rotate(x, sin, cos, rotation)

    @jax.jit
    def jacobians(x):
        half_square = jax.hessian(lambda x: (rotate(x) ** 2).sum() / 2)(x)
        return jax.jacfwd(rotate)(x), jax.jacrev(rotate)(x), half_square

    forward, backward, second = jacobians(x)
    np.testing.assert_allclose(forward, truth, rtol=0, atol=1e-7)
    np.testing.assert_allclose(backward, truth, rtol=0, atol=1e-7)
    np.testing.assert_allclose(second, truth.T @ truth, rtol=0, atol=5e-7)


@pytest.mark.parametrize("name", ["half, blocks, back", "interleaved to half, last"])
def test_derivatives_by_learned_tables(name):
    dim, pairs, rotation = TURNS[name]
    with jax.enable_x64(True):
        x, (sin, cos) = random(2, 3, dim, dtype=jnp.float64), tables(1, 3, pairs, dtype="float64")
        call = jax.jit(lambda *a: kernel.rotate(*a, rotation))
        assert call(x, sin, cos).dtype == jnp.float64
        check_grads(call, (x, sin, cos), order=2, modes=("fwd", "rev"))


def test_float32_stays_float32_with_64_bits():
    dim, pairs, rotation = TURNS["half, middle"]
    with jax.enable_x64(True):
        x, (sin, cos) = random(2, 3, dim), tables(1, 3, pairs)
        gradient = jax.grad(lambda x: kernel.rotate(x, sin, cos, rotation).sum())(x)
        assert kernel.rotate(x, sin, cos, rotation).dtype == gradient.dtype == jnp.float32


@pytest.mark.parametrize("name", SOME)
def test_vmap(name):
    dim, pairs, rotation = TURNS[name]
    x, g, (sin, cos) = random(5, 3, 4, dim), random(5, 3, 4, dim, seed=2), tables(5, 3, 1, pairs)

    def rotate(x, sin, cos):
        return kernel.rotate(x, sin, cos, rotation)

    def pull(x, sin, cos, g):
        return jax.vjp(lambda x: rotate(x, sin, cos), x)[1](g)[0]

    assert_turned(jax.vmap(rotate)(x, sin, cos), x, sin, cos, rotation)
    assert_turned(jax.jit(jax.vmap(pull))(x, sin, cos, g), g, sin, cos, rotation.inverted())
    assert_turned(jax.vmap(rotate, in_axes=(0, None, None))(x, sin[0], cos[0]), x, sin[:1], cos[:1], rotation)
    rows = jax.vmap(rotate, in_axes=(None, 0, 0))(x[0], sin, cos)
    assert_turned(rows, jnp.broadcast_to(x[0], x.shape), sin, cos, rotation)
    for axis in (1, 2):
        rows = jax.vmap(rotate, in_axes=(axis, 0, 0), out_axes=axis)(jnp.moveaxis(x, 0, axis), sin, cos)
        assert_turned(jnp.moveaxis(rows, axis, 0), x, sin, cos, rotation)


@pytest.mark.parametrize("name", SOME)
def test_vmap_of_gradients_by_learned_tables(name):
    dim, pairs, rotation = TURNS[name]
    x, (sin, cos) = random(5, 3, 4, dim), tables(5, 3, 1, pairs)

    @jax.jit
    @jax.vmap
    def gradients(x, sin, cos):  # of half the squared length, which is that of x times sin**2 + cos**2
        return jax.grad(lambda *table: (kernel.rotate(x, *table, rotation) ** 2).sum() / 2, argnums=(0, 1))(sin, cos)

    one, other = places(pairs, rotation.read, rotation)
    squares = np.asarray(x, dtype=np.float64) ** 2
    truth = (squares[..., one] + squares[..., other]).sum(axis=2, keepdims=True)
    for gradient, table in zip(gradients(x, sin, cos), (sin, cos), strict=True):
        np.testing.assert_allclose(gradient, truth * np.asarray(table), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SOME)
def test_scan_and_checkpoint(name):
    dim, pairs, rotation = TURNS[name]
    x, (sin, cos) = random(3, 4, dim), tables(3, 1, pairs)

    def layer(x):
        return jnp.tanh(kernel.rotate(x, sin, cos, rotation))

    def defined(x):
        return jnp.tanh(kernels.reference.rotate(x, sin, cos, rotation))

    def gradient(layer, x):
        return jax.grad(lambda x: (jax.lax.scan(lambda x, _: (layer(x), None), x, length=3)[0] ** 2).sum())(x)

    nothing = jax.checkpoint(layer, policy=jax.checkpoint_policies.nothing_saveable)
    results = jax.jit(lambda x: [gradient(each, x) for each in (defined, layer, jax.checkpoint(layer), nothing)])(x)
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=0, atol=2e-6)


COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=lambda kind: kind.name)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", ["half", "interleaved, from an odd channel"])
def test_shards_do_not_communicate(name, axis, kind):
    dim, pairs, rotation = TURNS[name]
    mesh = jax.make_mesh((4, 2), ("shards", "others"), axis_types=(kind, kind))
    spec = PartitionSpec(*["shards" if place == axis else None for place in range(3)])
    x, g, (sin, cos) = random(8, 4, 4, dim), random(8, 4, 4, dim, seed=2), tables(8, 4, 1, pairs)
    of_table = spec if axis < 2 else PartitionSpec()

    def both(x, sin, cos, g):
        y, pull = jax.vjp(lambda x: kernel.rotate(x, sin, cos, rotation), x)
        return y, pull(g)[0]

    place = [
        NamedSharding(mesh, spec),
        NamedSharding(mesh, of_table),
        NamedSharding(mesh, of_table),
        NamedSharding(mesh, spec),
    ]
    with jax.set_mesh(mesh):
        arguments = [jax.device_put(array, at) for array, at in zip((x, sin, cos, g), place, strict=True)]
        compiled = jax.jit(both).lower(*arguments).compile()
        results = jax.jit(both)(*arguments)
        eager = kernel.rotate(*arguments[:3], rotation)
    assert not any(word in compiled.as_text() for word in COLLECTIVES)
    assert all(result.sharding.is_equivalent_to(place[0], 4) for result in results)
    assert_turned(results[0], x, sin, cos, rotation)
    assert_turned(results[1], g, sin, cos, rotation.inverted())
    assert_turned(eager, x, sin, cos, rotation)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", ["interleaved", "half, middle"])
def test_shard_map(name, check_vma):
    dim, pairs, rotation = TURNS[name]
    mesh = jax.make_mesh((8,), ("shards",), axis_types=(AxisType.Auto,))
    x, g, (sin, cos) = random(2, 16, 3, dim), random(2, 16, 3, dim, seed=2), tables(1, 16, 1, pairs)

    def both(x, sin, cos, g):
        y, pull = jax.vjp(lambda x: kernel.rotate(x, sin, cos, rotation), x)
        return y, pull(g)[0]

    spec = PartitionSpec(None, "shards")
    mapped = jax.jit(jax.shard_map(both, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma))
    y, gradient = mapped(x, sin, cos, g)
    assert not any(word in mapped.lower(x, sin, cos, g).compile().as_text() for word in COLLECTIVES)
    assert_turned(y, x, sin, cos, rotation)
    assert_turned(gradient, g, sin, cos, rotation.inverted())


@pytest.mark.parametrize("name", ["half", "half, blocks", "interleaved to half, last"])
def test_export_with_symbolic_sizes(name):
    from jax import export

    dim, pairs, rotation = TURNS[name]
    batch, seq = export.symbolic_shape("b, s")
    table = struct(1, seq, 1, pairs)
    exported = export.export(jax.jit(lambda x, sin, cos: kernel.rotate(x, sin, cos, rotation)))(
        struct(batch, seq, 3, dim, dtype=jnp.bfloat16), table, table
    )
    exported = export.deserialize(exported.serialize(vjp_order=2))
    for sizes in [(1, 1), (2, 7)]:
        x, (sin, cos) = random(*sizes, 3, dim, dtype=jnp.bfloat16), tables(1, sizes[1], 1, pairs)
        y, pull = jax.vjp(exported.call, x, sin, cos)
        assert_turned(y, x, sin, cos, rotation)
        g = random(*sizes, 3, dim, seed=2, dtype=jnp.bfloat16)
        assert_turned(pull(g)[0], g, sin, cos, rotation.inverted())


@pytest.mark.parametrize("name", SOME)
def test_strict_settings(name):
    dim, pairs, rotation = TURNS[name]
    x, (sin, cos) = random(2, 3, 4, dim, dtype=jnp.bfloat16), tables(2, 1, 4, pairs)

    def gradients(x, sin, cos):
        return jax.grad(lambda *a: kernel.rotate(*a, rotation).astype(jnp.float32).sum(), (0, 1, 2))(x, sin, cos)

    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"), jax.debug_nans(True):
        assert_turned(kernel.rotate(x, sin, cos, rotation), x, sin, cos, rotation)
        with jax.checking_leaks():
            found = jax.jit(gradients)(x, sin, cos)
        assert [array.dtype for array in found] == [jnp.bfloat16, jnp.float32, jnp.float32]
    with jax.disable_jit():
        assert_turned(kernel.rotate(x, sin, cos, rotation), x, sin, cos, rotation)


@pytest.mark.parametrize("name", SOME)
def test_what_is_no_number_stays_in_its_pair(name):
    dim, pairs, rotation = TURNS[name]
    sin, cos = tables(1, pairs)
    reach = expected(np.eye(dim), *(np.full(pairs, 0.5),) * 2, rotation)[0] != 0
    for value in (np.nan, np.inf, -np.inf):
        x = jnp.asarray(np.where(np.eye(dim, dtype=bool), value, 0.0), dtype=jnp.float32)
        np.testing.assert_array_equal(np.isfinite(np.asarray(kernel.rotate(x, sin, cos, rotation))), ~reach)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
def test_the_other_channels_keep_their_bits(dtype):
    for dim, pairs, rotation in (TURNS[name] for name in SOME):
        still = np.setdiff1d(np.arange(dim), rotation.first_channel + np.arange(2 * pairs))
        x = random(4, dim, dtype=dtype).at[0].set(-0.0).at[1].set(jnp.finfo(dtype).smallest_subnormal)
        bits = [
            np.asarray(array).view(f"u{x.itemsize}") for array in (x, kernel.rotate(x, *tables(1, pairs), rotation))
        ]
        np.testing.assert_array_equal(bits[0][:, still], bits[1][:, still])


@pytest.mark.parametrize("shape", [(0, 3, 16), (2, 0, 16)])
@pytest.mark.parametrize("rotation", [*LAYOUTS.values(), Rotation("half", "half", 4)])
def test_arrays_without_elements(rotation, shape):
    sin, cos = tables(1, shape[1], 8 - rotation.first_channel // 2)
    y, pull = jax.vjp(lambda x: kernel.rotate(x, sin, cos, rotation), jnp.zeros(shape))
    assert y.shape == pull(y)[0].shape == shape
