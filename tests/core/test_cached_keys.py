"""Rotated keys of a cache that change to other frequencies: `rerotate`."""

from dataclasses import replace

import numpy as np
import oracle
import pytest
from compare import assert_numbers
from libraries import ROUNDOFF
from samples import embedding, random

from rope_xp import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    MixedNTKScaling,
    NTKScaling,
    Sections,
    XPos,
    YarnScaling,
)

DYNAMIC = DynamicNTKScaling(factor=2.0, max_position_embeddings=64, seq_len=100)
LONGROPE = LongRopeScaling(
    short_factor=(1.0, 1.0, 1.1, 1.2, 1.5, 2.0, 2.5),
    long_factor=(1.0, 1.5, 3.0, 6.0, 9.0, 12.0, 16.0),
    original_max_position_embeddings=64,
    short_mscale=1.1,
    long_mscale=1.3,
)
RULES = {
    "default": None,
    "linear": LinearScaling(factor=8.0),
    "ntk-aware": NTKScaling(factor=8.0),
    "ntk": MixedNTKScaling(factor=8.0),
    "dynamic": DYNAMIC,
    "yarn": YarnScaling(factor=4.0, original_max_position_embeddings=64),
    "llama3": Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
    "longrope, short": LONGROPE,
    "longrope, long": replace(LONGROPE, seq_len=65),
}
WHERE = np.asarray([3, 0, 1_000_003, -7, 131_071], np.int32)


def tolerance(dtype, factor):
    """The greatest error of keys that are rotated twice, and have the attention factor `factor` then.

    Pairs have a length of at most 3 * sqrt(2) before. The tables of a rotation are within 2e-7, or 4e-16 in float64.
    Those of `rerotate` are a sum of two products of such tables. Each rotation and each sum has three roundings. Dtypes
    of 16 bits round both results, and the error of the first is rotated too.
    """
    tables, unit = (4e-16, 2.0**-53) if dtype == "float64" else (2e-7, 2.0**-24)
    rounding = (1 + 2**0.5) * ROUNDOFF[dtype] if dtype in ("float16", "bfloat16") else 0.0
    return factor * 3 * 2**0.5 * (3 * tables + 9 * unit + rounding)


def truth_of(rope, k):
    """Keys at the positions WHERE, as complex numbers times the attention factor."""
    sin, cos = (table[:, None] for table in oracle.sin_cos(WHERE, [oracle.mpmath.mpf(w) for w in rope.inv_freq]))
    rotated = k.astype(np.float64)
    z = (rotated[..., :7] + 1j * rotated[..., 7:14]) * (cos + 1j * sin) * rope.attention_factor
    rotated[..., :7], rotated[..., 7:14] = z.real, z.imag
    return rotated


@pytest.mark.parametrize("before", RULES)
def test_keys_of_one_rule_become_those_of_another(xp, before):
    """At large positions; the other channels keep their numbers. Other dtypes, and Dask, which is slow, try one."""
    names = [*RULES]
    following = names[(names.index(before) + 1) % len(names)]
    ropes = {name: embedding(head_dim=16, rotary_dim=14, scaling=rule) for name, rule in RULES.items()}
    for dtype in xp.floats:
        k = xp.random(2, 5, 3, 16, dtype=dtype)
        cached = ropes[before](k, positions=WHERE, seq_dim=1)
        for name in names if dtype == "float32" and xp.name != "dask" else [following]:
            other = ropes[name]
            changed = ropes[before].rerotate(cached, WHERE, to=other, seq_dim=1)
            truth, atol = truth_of(other, xp.numpy(k)), tolerance(dtype, other.attention_factor)
            assert xp.dtype_of(changed) == dtype
            assert_numbers(xp, changed, truth, atol, name=name)
            np.testing.assert_array_equal(xp.numpy(changed)[..., 14:], xp.numpy(k)[..., 14:])


SECTIONS = Sections((3, 4), order="axial")
KINDS = {
    "interleaved": (embedding("interleaved"), {"base": 500.0}),
    "in other places": (embedding("interleaved_to_half", head_dim=20, rotary_dim=14, first_channel=4), {"base": 500.0}),
    "blocks": (embedding(rotary_dim=12, blocks=2), {"base": 500.0}),
    "axes": (embedding(sections=SECTIONS), {"base": 500.0}),
    "other sections": (embedding(sections=SECTIONS), {"sections": Sections((4, 3))}),
    "reversed": (embedding(reverse=True), {"reverse": False}),
    "factors": (embedding(attention_factor=1e15), {"attention_factor": 2.0}),
    "float32 phases": (embedding(phase="float32"), {"base": 500.0}),
    "to float32 phases": (embedding(), {"base": 500.0, "phase": "float32"}),
    "xpos": (embedding(), {"xpos": XPos(scale_base=64.0, centre=20)}),
    "from xpos": (embedding(xpos=XPos(scale_base=64.0)), {"xpos": None, "base": 500.0}),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_embedding_changes_its_keys(xp, name):
    rope, changes = KINDS[name]
    other, k = rope.replace(**changes), xp.random(2, 5, 3, rope.head_dim)
    where = np.asarray([[3, 0, 103, -7, 71], [5, 4, 3, 2, 1]], np.int32)
    where = np.stack([where, where[::-1] ** 2]) if rope.axes > 1 else where
    first, truth = (each.rotate(k, each.sincos(where, like=k, role="key"), seq_dim=1) for each in (rope, other))
    # Scales of xpos: at most (1.4 / 0.4) ** (150 / 64) for keys.
    scale = 20.0 if "xpos" in name else other.attention_factor
    assert_numbers(xp, rope.rerotate(first, where, to=other, seq_dim=1), truth, 2 * tolerance("float32", scale))


@pytest.mark.parametrize("shape", [(7,), (1, 3, 7)], ids=["pairs", "heads"])
def test_learned_frequencies_change_to_others(xp, shape):
    inv_freq = np.geomspace(1.0, 0.01, np.prod(shape)).astype(np.float32).reshape(shape)
    rope, other = (embedding(base=None, inv_freq=xp.array(w)) for w in (inv_freq, inv_freq[..., ::-1] / 2))
    k, axes = xp.random(2, 5, 3, 14), {"seq_dim": 1} | ({"heads_dim": 2} if len(shape) > 1 else {})
    cached, truth = (each(k, positions=WHERE, **axes) for each in (rope, other))
    assert_numbers(xp, rope.rerotate(cached, WHERE, to=other, **axes), truth, 2 * tolerance("float32", 1.0))


def test_positions_have_the_axes_of_a_call(xp):
    rope, k = embedding(), xp.random(2, 5, 3, 14)
    other, per_row = rope.replace(base=500.0), np.asarray([[7, -2, 7, 100_003, 0], [1, 2, 3, 2, 1]], np.int32)
    reals = (np.asarray([0.5, -1.25, 3.0, 0.0, 100.75], np.float32),) if xp.name != "ndonnx" else ()
    for where in (per_row, per_row[..., None], per_row[:1], *reals):
        cached, truth = (each(k, positions=xp.array(where), seq_dim=1) for each in (rope, other))
        changed = rope.rerotate(cached, xp.array(where), to=other, seq_dim=1)
        assert_numbers(xp, changed, truth, 2 * tolerance("float32", 1.0))


@pytest.mark.parametrize("delta", [2**31 - 1, -(2**31)])
def test_keys_shift_by_every_integer_of_32_bits(xp, delta):
    rope, k = embedding(), xp.random(2, 5, 3, 14)
    far = rope(k, positions=xp.array(np.full(5, delta), "int32"), seq_dim=1)
    assert_numbers(xp, rope.shift(k, delta, seq_dim=1), far, 2 * tolerance("float32", 1.0))


def decoded(rope_of, keys):
    """The cache after each token: keys are rotated when they come, and change when the frequencies of the length do."""
    cache, rope = keys[:0], None
    for length in range(1, len(keys) + 1):
        last, rope, where = rope, rope_of(length), np.arange(length, dtype=np.int32)
        if last is not None and last.inv_freq != rope.inv_freq:
            cache = last.rerotate(cache, where[:-1], to=rope, seq_dim=0)
        newest = rope(keys[length - 1 : length], positions=where[-1:], seq_dim=0)
        cache = np.concatenate([cache, newest])
        yield cache, rope(keys[:length], positions=where, seq_dim=0)


@pytest.mark.parametrize("rule, changes", [(replace(DYNAMIC, seq_len=None), 36), (LONGROPE, 1)])
def test_a_cache_follows_rules_that_depend_on_the_length(rule, changes):
    """Dynamic NTK changes with every token from 64 on, LongRoPE once: the cache is what a new computation gives."""
    keys, ropes = random(100, 14), []

    def rope_of(length):
        ropes.append(embedding(scaling=replace(rule, seq_len=length)))
        return ropes[-1]

    assert len(set(rope.inv_freq for rope in map(rope_of, range(1, 101)))) == changes + 1
    ropes.clear()
    unchanged = 0.0
    for cache, truth in decoded(rope_of, keys):
        # The errors of all changes add up: see `tolerance`.
        np.testing.assert_allclose(cache, truth, rtol=0, atol=(1 + changes) * tolerance("float32", 1.3))
        first = ropes[0](keys[: len(cache)], seq_dim=0)
        unchanged = max(unchanged, np.abs(first - truth).max())
    assert unchanged > 0.1
