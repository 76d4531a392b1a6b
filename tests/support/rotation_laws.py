"""The laws of a rotation, for random calls: each way to make it multiplies complex numbers in float64, rounded once."""

from functools import partial

import numpy as np
import oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from rotations import WRITABLE, copied, in_bytes, rotations

from rope_xp import apply_rotary_pos_emb, apply_rotary_pos_emb_inplace

DIFFERENTIABLE = ("torch", "jax", "mlx")
EXAMPLES = settings.default.max_examples  # fewer where an interpreter runs them


def assert_laws(xp, kernel, layout, is_usual, examples):
    """Twice, with other numbers: the second call has a plan."""

    @settings(max_examples=min(examples, EXAMPLES), deadline=None)
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
    elif "positions" in options:
        assert_law_of_keys(xp, drawn, numbers, ropes[0], **options)
    if "sincos" not in options and drawn.is_learned and xp.name in DIFFERENTIABLE:
        assert_law_of_gradients(xp, drawn, numbers, ropes[0], **options)
    if drawn.has_function:
        options_of = {"sincos": options["sincos"], "seq_dim": drawn.seq_dim, "layout": drawn.arguments["layout"]}
        for inverse in (False, True):
            assert_law_of_functions(xp, drawn, numbers, ropes, {**options_of, "inverse": inverse})
    for x, sincos in zip(numbers.xs, numbers.sincos) if xp.name in DIFFERENTIABLE else ():
        dy = xp.array(np.random.default_rng(0).standard_normal(x.shape), x.dtype)
        (found,) = gradients(xp, lambda x: ropes[0](x, **options), dy, x)
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
    for result in results if xp.name in WRITABLE else ():  # which is no memory of the arguments
        result[...] = 0


def as_list(results):
    return [*results] if isinstance(results, (tuple, list)) else [results]


def assert_law_of_tables(xp, drawn, numbers, ropes, options, **way):
    """Of `rotate`, which takes no positions, and of `rotate_inplace`."""
    if "positions" not in options:
        assert_law(xp, drawn, numbers, ropes, lambda rope, *xs: [rope.rotate(x, **options) for x in xs], **way)
    if xp.name in WRITABLE:
        inplace = lambda rope, *xs: rope.rotate_inplace(*xs, **options)  # noqa: E731
        assert_law(xp, drawn, numbers, ropes, partial(written, xp, numbers, inplace), **way)


def assert_law_of_keys(xp, drawn, numbers, rope, positions, **axes):
    """Keys that are rotated already shift by more positions, or change to other frequencies and another magnitude."""
    negative, factor = -np.asarray(drawn.arguments["inv_freq"]), drawn.arguments["attention_factor"]
    other = drawn.embedding(xp, rope.kernel, inv_freq=negative.tolist(), attention_factor=2.0)
    span = drawn.span._replace(read=drawn.span.write)
    for x, (sin, cos) in zip(numbers.xs, numbers.sincos, strict=True):
        turn = (cos + 1j * sin) / factor
        back = 2.0 / factor * turn.conj() ** 2
        drawn.assert_rotated(xp, rope.shift(x, positions, **axes), x, (turn.imag, turn.real), span)
        changed = rope.rerotate(x, positions, to=other, **axes)
        drawn.assert_rotated(xp, changed, x, (back.imag, back.real), span)


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


def assert_law_of_gradients(xp, drawn, numbers, rope, positions=None, **axes):
    """Of learned frequencies, and of real positions: angles move a rotated pair at a right angle to it."""
    is_real = drawn.source == "real positions" and not drawn.foreign
    for x, (sin, cos), where in zip(numbers.xs, numbers.sincos, numbers.where, strict=True):
        dy = xp.array(np.random.default_rng(0).standard_normal(x.shape), x.dtype)

        def rotated(inv_freq, *given):
            return rope.replace(inv_freq=inv_freq)(x, positions=given[0] if given else positions, **axes)  # noqa: B023

        found = gradients(xp, rotated, dy, rope.inv_freq, *[positions] * is_real)
        turned = oracle.rotate_pairs(xp.numpy(x), sin, cos, drawn.span)
        pairs = drawn.frequencies.shape[-1]
        one, other, of_one, of_other = (
            channel.reshape(*x.shape[:-1], pairs)
            for each in (turned, xp.numpy(dy))
            for channel in oracle.channels(each, pairs, drawn.span.write, drawn.span)
        )
        of_angles, size = one * of_other - other * of_one, np.hypot(one, other) * np.hypot(of_one, of_other)
        frequencies = drawn.aligned_frequencies(x.ndim)
        for result, like, factor in zip(found, (frequencies, where), (where, frequencies)):
            truth, most = (summed_like(like, each) for each in (of_angles * factor, size * abs(factor)))
            # Tables are within 2e-7, and each operation and each term of the sum is rounded.
            away = abs(xp.numpy(result).reshape(like.shape) - truth)
            assert np.all(away <= (4e-7 + (8 + size.size) * 2.0**-24) * most)


def summed_like(x, terms):
    """Sums over the axes along which `x` has the size 1."""
    axes = tuple(axis for axis, size in enumerate(x.shape) if size == 1 != terms.shape[axis])
    return terms.sum(axis=axes, keepdims=True)


def gradients(xp, call, dy, *arguments):
    """Of a call on arrays, for the gradient `dy` of its result."""
    if xp.name == "jax":
        import jax

        return jax.vjp(call, *arguments)[1](dy)
    if xp.name == "mlx":
        import mlx.core as mx

        return mx.vjp(call, [*arguments], [dy])[1]
    import torch

    arguments = [each.detach().requires_grad_() for each in arguments]
    return torch.autograd.grad(call(*arguments), arguments, dy)
