"""How channels turn: every call, by every kernel, multiplies complex numbers in float64, and rounds once."""

from functools import partial
from itertools import permutations

import einops
import numpy as np
import oracle
import pytest
from compare import assert_numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from rotations import ORDERS, WRITABLE, copied, in_bytes, rotations
from samples import embedding, radians, random

from rope_xp import apply_rotary_pos_emb, apply_rotary_pos_emb_inplace, rotate_every_two, rotate_half

EXAMPLES = settings.default.max_examples  # fewer where an interpreter runs them
# Axis sizes are pairwise different, so that no two axes can be mistaken for each other; but once seq == heads.
SHAPES = {
    "seq dim": ((5, 14), 0),
    "seq heads dim": ((5, 3, 14), 0),
    "heads seq dim": ((3, 5, 14), 1),
    "batch seq heads dim": ((2, 5, 3, 14), 1),
    "batch heads seq dim": ((2, 3, 5, 14), -2),
    "seq == heads": ((2, 5, 5, 14), 1),
    "seq == heads, heads first": ((2, 5, 5, 14), 2),
    "six axes": ((2, 7, 5, 3, 4, 14), 2),
}


@pytest.mark.parametrize("function, pattern", [(rotate_every_two, "(pairs two)"), (rotate_half, "(two pairs)")])
def test_quarter_turn_is_the_notebooks_pattern(xp, function, pattern):
    x = random(2, 5, 3, 14)
    pairs = einops.rearrange(x, f"b s h {pattern} -> two b s h pairs", two=2)
    turned = einops.rearrange(np.stack([-pairs[1], pairs[0]]), f"two b s h pairs -> b s h {pattern}")
    result = function(xp.array(x))
    assert result.shape == x.shape
    np.testing.assert_array_equal(xp.numpy(result), turned)
    for dtype in xp.floats:
        x = xp.random(5, 4, dtype=dtype)
        assert function(x).dtype == x.dtype
        np.testing.assert_array_equal(xp.numpy(function(function(x))), -xp.numpy(x))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("axes", SHAPES)
def test_each_position_is_multiplied_by_its_own_angle(xp, layout, axes):
    """Number by number, one position after the other."""
    shape, seq_dim = SHAPES[axes]
    x, angles = random(*shape), radians(shape[seq_dim], 7)
    rows = zip(np.moveaxis(x, seq_dim, 0), angles, strict=True)
    truth = np.moveaxis(np.stack([oracle.rotate(row, angle, layout) for row, angle in rows]), 0, seq_dim)
    result = apply_rotary_pos_emb(xp.array(x), xp.tables(angles), layout=layout, seq_dim=seq_dim)
    assert_numbers(xp, result, truth, 6 * 4 * 2.0**-24)  # four roundings of numbers below 6


def test_a_vector_alone_takes_a_row_of_tables(xp, kernel):
    x, angles = random(14), radians(7)
    result = apply_rotary_pos_emb(xp.array(x), xp.tables(angles), kernel=kernel)
    assert_numbers(xp, result, oracle.rotate(x, angles, "interleaved"), 1e-6)


def test_arrays_of_one_call_turn_as_each_alone(xp, kernel):
    """By tables and by rows of them: neighbours may share their tables, but not with another dtype."""
    rope, where = embedding(head_dim=14, base=100.0, kernel=kernel), np.asarray([2, 7, 1, 8, 2], np.int32)
    for first, second in permutations(xp.floats, 2):
        xs = [xp.random(5, 14, dtype=dtype) for dtype in (first, second, first, second)]
        rows = rope.sincos(np.arange(9), like=max(xs, key=lambda x: xp.dtype_of(x) == "float64"))
        first_rows = [table[:5, :] for table in rows]
        for options in ({"sincos": first_rows}, {"sincos": rows, "positions": where}):
            for x, result in zip(xs, rope(*xs, **options, seq_dim=0), strict=True):
                alone = rope(x, **options, seq_dim=0)
                assert result.dtype == x.dtype
                np.testing.assert_array_equal(xp.numpy(result), xp.numpy(alone))


def test_inputs_are_left_alone():
    x, angles = random(5, 3, 14), radians(5, 7)
    before, sincos = x.copy(), (np.sin(angles), np.cos(angles))
    for array in (x, *sincos):
        array.flags.writeable = False
    result = apply_rotary_pos_emb(x, sincos)
    result += 1
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("is_usual", [True, False], ids=["usual", "any"])
@pytest.mark.parametrize("layout", ORDERS)
def test_every_call_multiplies_complex_numbers(xp, kernel, layout, is_usual):
    """Twice, with other numbers: the second call has a plan."""
    few = kernel == "triton" or xp.name not in ("numpy", "strict", "torch")  # which compile or interpret each

    @settings(max_examples=min(2 if few else 100, EXAMPLES), deadline=None)
    @given(drawn=rotations(xp, layout, is_usual), seed=st.integers(0, 1000))
    def check(drawn, seed):
        ropes = [drawn.embedding(xp, each) for each in (kernel, "reference")]
        for numbers in (drawn.numbers(xp, seed), drawn.numbers(xp, seed + 1)):
            before = [in_bytes(xp, whole) for whole, _ in numbers.cuts] if xp.name in WRITABLE else []
            assert_all_laws(xp, drawn, numbers, ropes)
            assert [in_bytes(xp, whole) for whole, _ in numbers.cuts[: len(before)]] == before

    check()


def assert_all_laws(xp, drawn, numbers, ropes):
    options = dict(numbers.options)
    if drawn.source == "sincos":
        options["sincos"] = made_tables(xp, drawn, ropes, options.pop("positions"), numbers.xs)
    assert_law(xp, drawn, numbers, ropes, lambda rope, *xs: rope(*xs, **options), by_tables="sincos" in options)
    if "sincos" in options:
        for way in ({}, {"inverse": True}, {"transpose": True}):
            assert_law_of_tables(xp, drawn, numbers, ropes, {**options, **way}, **way)
    if drawn.has_function:
        options_of = {"sincos": options["sincos"], "seq_dim": drawn.seq_dim, "layout": drawn.arguments["layout"]}
        for inverse in (False, True):
            assert_law_of_functions(xp, drawn, numbers, ropes, {**options_of, "inverse": inverse})
    if xp.name in ("torch", "jax"):
        for x, sincos in zip(numbers.xs, numbers.sincos):
            dy = xp.array(np.random.default_rng(0).standard_normal(x.shape), x.dtype)
            found = gradient(xp, lambda x: ropes[0](x, **options), x, dy)
            drawn.assert_rotated(xp, found, dy, sincos, drawn.span.inverted())


def made_tables(xp, drawn, ropes, positions, xs):
    """The tables of `sincos`, for the widest array; numba's have the bits of the reference, zeros with their signs."""
    widest = max(xs, key=lambda x: xp.dtype_of(x) == "float64")
    tables, others = (rope.sincos(positions, like=widest) for rope in ropes)
    for table, other in zip(map(xp.numpy, tables), map(xp.numpy, others)) if ropes[0].kernel == "numba" else ():
        np.testing.assert_array_equal(table, other)
        np.testing.assert_array_equal(np.signbit(table), np.signbit(other))
    return tables


def assert_law(xp, drawn, numbers, ropes, call, *, by_tables=True, inverse=False, transpose=False):
    span = drawn.span.inverted() if inverse or transpose else drawn.span
    scale = drawn.arguments["attention_factor"] ** -2 if inverse else 1.0
    results = as_list(call(ropes[0], *numbers.xs))
    for x, result, sincos in zip(numbers.xs, results, numbers.sincos, strict=True):
        drawn.assert_rotated(xp, result, x, [table * scale for table in sincos], span)
    if by_tables and ropes[0].kernel == "numba":  # which has the bits of the reference by the same tables
        for result, other in zip(results, as_list(call(ropes[1], *numbers.xs)), strict=True):
            np.testing.assert_array_equal(xp.numpy(result), xp.numpy(other))


def as_list(results):
    return [*results] if isinstance(results, (tuple, list)) else [results]


def assert_law_of_tables(xp, drawn, numbers, ropes, options, **way):
    """Of `rotate`, which takes no positions, and of `rotate_inplace`."""
    if "positions" not in options:
        assert_law(xp, drawn, numbers, ropes, lambda rope, *xs: [rope.rotate(x, **options) for x in xs], **way)
    if xp.name in WRITABLE:
        inplace = lambda rope, *xs: rope.rotate_inplace(*xs, **options)  # noqa: E731
        assert_law(xp, drawn, numbers, ropes, partial(written, xp, numbers, inplace), **way)


def assert_law_of_functions(xp, drawn, numbers, ropes, options):
    """Of the functions that take no embedding, whose inverse is the transpose."""

    def call(function, rope, *xs):
        return [function(x, **options, kernel=rope.kernel) for x in xs]

    inplace = partial(written, xp, numbers, partial(call, apply_rotary_pos_emb_inplace))
    for each in (partial(call, apply_rotary_pos_emb), *[inplace] * (xp.name in WRITABLE)):
        assert_law(xp, drawn, numbers, ropes, each, transpose=options["inverse"])


def written(xp, numbers, call, rope, *_):
    """What a call in place makes of copies of the arrays. The memory around them stays as it was."""
    copies = [copied(xp, whole) for whole, _ in numbers.cuts]
    parts = [cut(each) for each, (_, cut) in zip(copies, numbers.cuts)]
    assert call(rope, *parts) in (None, [None] * len(parts))
    results = [copied(xp, part) for part in parts]
    for x, part, copy, (whole, _) in zip(numbers.xs, parts, copies, numbers.cuts):
        part[...] = x
        assert in_bytes(xp, copy) == in_bytes(xp, whole)
    return results


def gradient(xp, call, x, dy):
    """Of a call on one array, for the gradient `dy` of its result."""
    if xp.name == "jax":
        import jax

        return jax.vjp(call, x)[1](dy)[0]
    import torch

    x = x.detach().requires_grad_()
    return torch.autograd.grad(call(x), x, dy)[0]
