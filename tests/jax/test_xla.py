"""What XLA makes of the rotation: the bytes it moves and the loops it runs, counted in compiled programs, not timed."""

import re
from collections import Counter
from functools import partial
from itertools import cycle
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.test_util import check_grads
from libraries import LIBRARIES
from samples import radians

from rope_xp import RotaryEmbedding, Sections, apply_rotary_pos_emb, fixed_pos_embedding
from rope_xp.kernels import xla as kernel
from rope_xp.kernels.reference import Rotation

random = LIBRARIES["jax"].random
DTYPES = [jnp.float32, jnp.bfloat16, jnp.float16]
LAYOUTS = {
    "half": Rotation("half", "half"),
    "interleaved": Rotation("interleaved", "interleaved"),
    "interleaved_to_half": Rotation("interleaved", "half"),
}
HALF, NEIGHBOURS, ACROSS = LAYOUTS.values()
# By width of x and number of pairs. Up to 128 channels and from there on, XLA treats concatenation differently.
PARTS = {
    "half, first of 128": (128, 32, HALF),
    "half, first of 64": (64, 12, HALF),
    "half, odd number of pairs": (128, 15, HALF),
    "half, middle of 256": (256, 32, HALF._replace(first_channel=64)),
    "half, last of 192": (192, 32, HALF._replace(first_channel=128)),
    "half, from an odd channel": (128, 32, HALF._replace(first_channel=3)),
    "half, blocks": (128, 64, HALF._replace(blocks=2)),
    "half, blocks of a part": (192, 48, HALF._replace(first_channel=32, blocks=3)),
    "interleaved, first of 128": (128, 32, NEIGHBOURS),
    "interleaved, first of 256": (256, 32, NEIGHBOURS),
    "interleaved, last of 192": (192, 32, NEIGHBOURS._replace(first_channel=128)),
    "interleaved to half, last of 192": (192, 32, ACROSS._replace(first_channel=128)),
}
ROTATIONS = {name: (16, 8, rotation) for name, rotation in LAYOUTS.items()} | {
    "half, middle": (22, 5, HALF._replace(first_channel=6)),
    "half, blocks": (20, 8, HALF._replace(first_channel=2, blocks=4)),
    "interleaved, from an odd channel": (15, 4, NEIGHBOURS._replace(first_channel=3)),
    "interleaved to half, last": (16, 5, ACROSS._replace(first_channel=6)),
    "half, from within a block": (16, 3, HALF._replace(first_channel=2)),  # of which its end and width are multiples
}
ROTATIONS |= {f"{name}, back": (dim, pairs, rotation.inverted()) for name, (dim, pairs, rotation) in ROTATIONS.items()}
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


def assert_rotated(result, x, sin, cos, rotation):
    """Products and sums in the tables' dtype, then one rounding to that of `x`; the other channels as they were."""
    truth, length = oracle.rotate_pairs(x, sin, cos, rotation), oracle.lengths(x, sin.shape[-1], rotation)
    assert result.shape == x.shape and result.dtype == x.dtype
    rounding = jnp.finfo(x.dtype).eps / 2 * np.abs(truth) * (length > 0)
    excess = np.abs(np.asarray(result, dtype=np.float64) - truth) - rounding - 2 * jnp.finfo(sin.dtype).eps * length
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


def struct(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


# Each layout with the sequence on either side of the heads and each dtype, and each part of the channels.
ONE_PASS = {
    f"{layout}, {dtype.__name__}": (LAYOUTS[layout], struct(*shape, dtype=dtype), struct(*table))
    for layout in LAYOUTS
    for dtype, shape, table in [
        (jnp.float32, (1, 2048, 32, 128), (1, 2048, 1, 64)),
        (jnp.bfloat16, (1, 32, 2048, 128), (1, 1, 2048, 64)),
    ]
} | {
    part: (rotation, struct(2, 512, 8, dim, dtype=jnp.bfloat16), struct(2, 512, 1, pairs))
    for part, (dim, pairs, rotation) in PARTS.items()
}


@pytest.mark.compile
@pytest.mark.parametrize("case", ONE_PASS)
def test_one_loop_moves_no_more_than_it_must(case):
    """Forward and backward, and once backward of backward."""
    rotation, x, table = ONE_PASS[case]

    def forward(x, sin, cos):
        return kernel.rotate(x, sin, cos, rotation)

    def derivative(function):
        return lambda g, sin, cos: jax.vjp(lambda x: function(x, sin, cos), g)[1](g)[0]

    for function in (forward, derivative(forward), *[derivative(derivative(forward))] * (case == "half, blocks")):
        assert_one_pass(function, x, table, table)


def test_the_counting_sees_more_than_one_loop():
    def naive(x, sin, cos):
        first, second = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    table = struct(1, 512, 1, 64)
    with pytest.raises(AssertionError):
        assert_one_pass(naive, struct(1, 512, 8, 128), table, table)


@pytest.mark.parametrize("layout, pairs", [("half", 64), ("interleaved", 32), ("interleaved_to_half", 64)])
def test_the_gradient_keeps_nothing_but_the_tables(layout, pairs):
    x, sincos = random(2, 16, 4, 128, dtype=jnp.bfloat16), tables(16, pairs)

    def rotated(x):
        return apply_rotary_pos_emb(x, sincos, layout=layout, seq_dim=1)

    def layers(x):  # what a loop over layers keeps, it would keep for each of them
        return jax.lax.scan(lambda x, _: (rotated(x), None), x, length=5)[0]

    for call in (rotated, jax.jit(rotated), jax.jit(layers)):
        assert sum(array.size for array in jax.tree.leaves(jax.vjp(call, x)[1])) == 2 * 16 * pairs


WHERE = np.arange(
    256, dtype=np.int32
)  # arrays of JAX would start it when tests are collected, and no fork could use it
# name: (positions, options; without a base, frequencies are learned)
ROPES = {
    "consecutive": (WHERE, {"base": 10_000.0}),
    "batch": (np.stack([WHERE, WHERE + 7]), {"base": 10_000.0}),
    "real": (WHERE + 0.5, {"base": 10_000.0}),
    "axes": (np.stack([WHERE, WHERE]), {"base": 10_000.0, "sections": Sections((32, 32), order="axial")}),
    "float32": (WHERE, {"base": 10_000.0, "phase": "float32"}),
    "learned": (WHERE, {}),
}


@pytest.mark.compile
@pytest.mark.parametrize(
    "kind, layout, dtype", [*zip(ROPES, cycle(["half", "interleaved"]), cycle([jnp.bfloat16, jnp.float32]))]
)
def test_no_head_computes_a_table_anew(kind, layout, dtype):
    inv_freq = jnp.asarray(10_000.0 ** (-np.arange(64) / 64), dtype=jnp.float32)
    where, options = jnp.asarray(ROPES[kind][0]), ROPES[kind][1]

    def rope(inv_freq):
        return RotaryEmbedding(head_dim=128, layout=layout, **options or {"inv_freq": inv_freq})

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


@pytest.mark.parametrize("layout, dtype", [*zip(LAYOUTS, DTYPES)])
def test_a_donated_array_is_used_again(layout, dtype):
    rope, x = RotaryEmbedding(head_dim=128, layout=layout, base=10_000.0), random(2, 16, 4, 128, dtype=dtype)
    step = jax.jit(lambda x, sincos: rope.rotate(x, sincos, seq_dim=1), donate_argnums=0)
    compiled = step.lower(x, rope.sincos(jnp.arange(16))).compile()
    assert compiled.memory_analysis().alias_size_in_bytes == x.nbytes


def test_outside_jit_it_is_one_program_and_inside_none_of_its_own():
    x, (sin, cos), rotation = random(2, 3, 11, 38), tables(1, 3, 1, 19), LAYOUTS["half"]
    before = kernel.rotate._cache_size()
    for _ in range(3):
        kernel.rotate(x, sin, cos, rotation)
    assert kernel.rotate._cache_size() == before + 1
    program = jax.make_jaxpr(lambda *a: kernel.rotate(*a, rotation))(x, sin, cos)
    names = {equation.primitive.name for equation in program.eqns}
    assert names <= {"reshape", "unstack", "stack", "mul", "add", "sub"}


def test_tables_are_one_program_exact_and_have_the_same_bits_each_time():
    """Outside `jax.jit` and inside, for all positions at once or for a few."""
    rope = RotaryEmbedding(head_dim=22, layout="half", base=7.0, attention_factor=1.3)
    where = np.append([3, -7, 2**31 - 1], np.random.default_rng(0).integers(-(2**31), 2**31, 97)).astype(np.int32)
    before, jitted = kernel.compiled_tables._cache_size(), jax.jit(rope.sincos)
    found = [rope.sincos(jnp.asarray(where)) for _ in range(3)]
    assert kernel.compiled_tables._cache_size() <= before + 2  # the first call applies the factor outside the program
    truth = oracle.sin_cos(where, oracle.geometric(7.0, 22))
    for table, right in zip(found[0], truth, strict=True):
        assert np.abs(np.asarray(table) - 1.3 * right).max() <= 1.3 * 2e-7
    parts = [jitted(where[start:stop]) for start, stop in [(0, 17), (17, 18), (18, 100)]]
    for tables_ in (*found[1:], jitted(where), map(np.concatenate, zip(*parts))):
        for table, first in zip(tables_, found[0], strict=True):
            np.testing.assert_array_equal(table, first)


def test_outside_jit_positions_give_the_bits_of_their_tables():
    rope, q, k = RotaryEmbedding(head_dim=16, layout="half", base=10.0), random(2, 5, 4, 16), random(2, 5, 1, 16)
    where = jnp.asarray([[3, 0, 9, 4, 4], [7, 1, 2, 8, 0]])
    right = rope(q, k, sincos=rope.sincos(where), seq_dim=1)
    for _ in range(2):
        for options in ({"positions": where}, {"positions": where, "sincos": rope.sincos(jnp.arange(10))}):
            for one, other in zip(rope(q, k, seq_dim=1, **options), right, strict=True):
                np.testing.assert_array_equal(one, other)


def test_outside_jit_tables_of_heads_keep_their_axes_apart():
    """There are as many heads as tokens, so that shapes alone do not tell their axes apart."""
    inv_freq = 1.0 / np.arange(1.0, 25.0).reshape(1, 3, 8)
    rope, x = RotaryEmbedding(head_dim=16, layout="half", inv_freq=inv_freq.tolist()), random(2, 3, 3, 16)
    sincos = rope.sincos(jnp.asarray([2, 5, 7]))
    truth = oracle.rotate_pairs(x, *(np.asarray(table).swapaxes(0, 1) for table in sincos), HALF)
    for _ in range(2):
        np.testing.assert_allclose(rope(x, sincos=sincos, seq_dim=2, heads_dim=1), truth, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name, dtype", [*zip(ROTATIONS, cycle(DTYPES))])
def test_values(name, dtype):
    """The other channels keep their bits, and what is no number stays in its pair."""
    dim, pairs, rotation = ROTATIONS[name]
    x, (sin, cos) = random(2, 3, 4, dim, dtype=dtype), tables(2, 1, 4, pairs)
    assert_rotated(kernel.rotate(x, sin, cos, rotation), x, sin, cos, rotation)
    still = np.setdiff1d(np.arange(dim), rotation.first_channel + np.arange(2 * pairs))
    x = x.at[0, 0].set(-0.0).at[0, 1].set(jnp.finfo(dtype).smallest_subnormal)
    both = x, kernel.rotate(x, sin, cos, rotation)
    np.testing.assert_array_equal(*(np.asarray(each).view(f"u{x.itemsize}")[..., still] for each in both))
    reach = oracle.rotate_pairs(np.eye(dim), *(np.full(pairs, 0.5),) * 2, rotation) != 0
    for value in (np.nan, np.inf, -np.inf):
        x = jnp.asarray(np.where(np.eye(dim, dtype=bool), value, 0.0), dtype)
        np.testing.assert_array_equal(jnp.isfinite(kernel.rotate(x, sin[0, 0, :1], cos[0, 0, :1], rotation)), ~reach)


@pytest.mark.compile
@pytest.mark.parametrize("shape", [(8, 32, 1, 128), (8, 1, 32, 128)])
@pytest.mark.parametrize(
    "layout, dtype, pairs", [("half", jnp.float32, 64), ("half", jnp.bfloat16, 64), ("interleaved", jnp.float32, 32)]
)
def test_a_step_of_decoding_permutes_no_axes(shape, layout, dtype, pairs):
    """And rotates each head, whichever axis has them."""
    x, (sin, cos), rotation = random(*shape, dtype=dtype), tables(8, 1, 1, pairs), LAYOUTS[layout]
    compiled = jax.jit(lambda *a: kernel.rotate(*a, rotation)).lower(x, sin, cos).compile()
    assert_rotated(compiled(x, sin, cos), x, sin, cos, rotation)
    assert not any(operation == "copy" for body in computations(compiled).values() for operation, _ in body)


@pytest.mark.compile
@pytest.mark.parametrize(
    "name, dtype, wrap",
    [*((name, jnp.float32, jax.jit) for name in SOME), (SOME[-1], jnp.bfloat16, lambda call: call)],
    ids=[*SOME, "eager"],
)
def test_derivatives_are_rotations(name, dtype, wrap):
    """Also in a step of decoding, with an axis of size 1 between others."""
    dim, pairs, rotation = ROTATIONS[name]

    def derivatives(x, dx, sin, cos):
        rotate = partial(kernel.rotate, sin=sin, cos=cos, rotation=rotation)
        value, change = jax.jvp(rotate, (x,), (dx,))
        forward = [change, jax.linearize(rotate, x)[1](dx)]
        return value, forward, [jax.vjp(rotate, x)[1](dx)[0], jax.linear_transpose(rotate, x)(dx)[0]]

    for batch, heads, kind in ((2, 4, dtype), (4, 1, jnp.float32), (4, 1, jnp.bfloat16)):
        x, dx = (random(batch, 3, heads, dim, seed=seed, dtype=kind) for seed in (0, 2))
        sincos = tables(batch, 1, heads, pairs)
        value, forward, backward = wrap(derivatives)(x, dx, *sincos)
        assert_rotated(value, x, *sincos, rotation)
        for way, rotated in ((rotation, forward), (rotation.inverted(), backward)):
            for each in rotated:
                assert_rotated(each, dx, *sincos, way)


@pytest.mark.parametrize("name", ["half, blocks, back", "interleaved to half, last"])
def test_derivatives_by_learned_tables(name):
    dim, pairs, rotation = ROTATIONS[name]
    with jax.enable_x64(True):
        x, (sin, cos) = random(2, 3, dim, dtype=jnp.float64), tables(1, 3, pairs, dtype="float64")
        call = jax.jit(lambda *a: kernel.rotate(*a, rotation))
        assert call(x, sin, cos).dtype == jnp.float64
        check_grads(call, (x, sin, cos), order=2, modes=("fwd", "rev"))
