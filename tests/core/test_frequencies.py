"""Scaling rules against the papers' formulas."""

import sys
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import log, sqrt

import numpy as np
import pytest
from compare import assert_numbers
from errors import assert_raises
from formulas import geometric
from hypothesis import given
from hypothesis import strategies as st
from libraries import ROUNDOFF
from rules import BASE, DIM, EDGES, ORIGINAL, RULES, YARN, YARN_8K, rules
from samples import embedding, random

from rope_xp import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    MixedNTKScaling,
    NTKScaling,
    ProportionalScaling,
    XPos,
    YarnScaling,
    frequencies,
)
from rope_xp.arrays import exact_phases

# A float64 power is off by the rounding of its exponent times ln(base) < 21, a rule adds a handful of roundings, and
# both are those of the truth, too. A ramp multiplies them by its steepness.
RTOL = 1e-14


def assert_is_the_formula(rule, truth, base, width):
    found = rule.frequencies(base, width)
    assert len(found) == width // 2 and all(isinstance(w, float) for w in found)
    np.testing.assert_allclose(found, truth, rtol=100 * RTOL, atol=0)
    rope = embedding(head_dim=width, base=base, scaling=rule)
    assert (rope.inv_freq, rope.attention_factor) == (found, rule.resolved_attention_factor)


@given(st.floats(5.0, 1e7), st.integers(1, 64), st.floats(1.0, 64.0), st.integers(16, 200_000), st.data())
def test_rules(base, pairs, factor, length, data):
    names = [name for name in RULES[1:] if pairs > 1 or name not in ("ntk", "dynamic")]  # which divide by pairs - 1
    rule, truth = data.draw(rules(base, 2 * pairs, factor, length, names))
    assert_is_the_formula(rule, truth, base, 2 * pairs)


@pytest.mark.parametrize("rule, truth", EDGES, ids=[str(rule)[:60] for rule, _ in EDGES])
def test_edges_of_rules(rule, truth):
    assert_is_the_formula(rule, truth, BASE, DIM)


LONGROPE = {"short_factor": [1.0] * 64, "long_factor": [2.0] * 64, "factor": 32.0, ORIGINAL: 4096}
MAGNITUDES = [
    (LinearScaling(factor=8.0), 1),
    (YarnScaling(**YARN), 0.1 * log(40) + 1),
    (YarnScaling(**YARN, attention_factor=1.5), 1.5),
    (YarnScaling(**YARN, mscale=0.707), 0.1 * log(40) + 1),
    (YarnScaling(**YARN, mscale=0.707, mscale_all_dim=0.0), 0.1 * log(40) + 1),
    (YarnScaling(**YARN, mscale=1.0, mscale_all_dim=0.5), (0.1 * log(40) + 1) / (0.05 * log(40) + 1)),
    (YARN_8K(factor=1.0), 1),
    (LongRopeScaling(**LONGROPE), sqrt(1 + log(32) / log(4096))),
    (LongRopeScaling(**LONGROPE, attention_factor=1.25), 1.25),
    (LongRopeScaling(**LONGROPE, short_mscale=1.1, long_mscale=1.3), 1.1),
    (LongRopeScaling(**LONGROPE, short_mscale=1.1, long_mscale=1.3, seq_len=5000), 1.3),
]


@pytest.mark.parametrize("rule, magnitude", MAGNITUDES, ids=str)
def test_magnitudes(rule, magnitude):
    assert rule.resolved_attention_factor == pytest.approx(magnitude, rel=RTOL)


def test_the_scale_of_the_softmax_is_kept_apart():
    rule = YarnScaling(**YARN, mscale=0.7, mscale_all_dim=0.5)
    assert rule.softmax_scale == pytest.approx((0.05 * log(40) + 1) ** 2, rel=RTOL)
    assert YarnScaling(**YARN, mscale=0.7).softmax_scale == 1.0
    rope = embedding(scaling=rule)
    assert rope.softmax_scale == rule.softmax_scale and "softmax scale     x 1.4" in rope.describe()
    assert embedding().softmax_scale == LinearScaling(factor=2.0).softmax_scale == 1.0
    assert LinearScaling(factor=2.0).resolved_attention_factor == 1.0


def test_a_frequency_on_both_limits_of_llama3_is_divided():
    edge = 8192 / (2 * np.pi)  # revolutions of the first pair
    rule = Llama3Scaling(factor=8.0, low_freq_factor=edge, high_freq_factor=edge, original_max_position_embeddings=8192)
    np.testing.assert_allclose(rule.frequencies(1e4, 4), [0.125, 0.00125], rtol=1e-15)


def test_spaced_progressions():
    assert frequencies.evenly_spaced(0.1, 0.7, 7)[::6] == (0.1, 0.7)
    np.testing.assert_allclose(frequencies.evenly_spaced(3.0, 5.0, 4), np.linspace(3.0, 5.0, 4), rtol=1e-15)
    np.testing.assert_allclose(frequencies.log_spaced(3.0, 1e-3, 7), np.geomspace(3.0, 1e-3, 7), rtol=1e-14)
    assert frequencies.log_spaced(3.0, 9.0, 2) == frequencies.evenly_spaced(3.0, 9.0, 2) == (3.0, 9.0)
    assert frequencies.evenly_spaced(2.0, 9.0, 1) == frequencies.log_spaced(2.0, 9.0, 1) == (2.0,)


@pytest.mark.parametrize("gamma, scale_base, centre", [(0.4, 512.0, 0), (0.4, 512.0, 600), (1.0, 64.0, 20)])
def test_xpos_grows_from_its_centre_on(xp, gamma, scale_base, centre):
    """Each channel of queries and of keys, not their products, which no centre changes."""
    x, where = random(5, 6), np.asarray([0, 21, 20, 150, -90])
    rope = embedding(head_dim=6, xpos=XPos(scale_base=scale_base, centre=centre, gamma=gamma))
    zeta = (np.arange(3) / 3 + gamma) / (1 + gamma)
    z = (x[:, :3] + 1j * x[:, 3:]) * np.exp(1j * where[:, None] * geometric(1e4, 6))
    q, k = rope(xp.array(x), xp.array(x), positions=xp.array(where, "int32"), seq_dim=0)
    moved = rope.shift(xp.array(x), xp.array(where, "int32"), seq_dim=0)
    for one, distance in ((q, where - centre), (k, centre - where), (moved, -where)):
        truth = z * zeta ** (distance[:, None] / scale_base)
        # Exponents below 3 and angles of float64: an error of some roundoffs of numbers below 16.
        assert_numbers(xp, one, np.concatenate([truth.real, truth.imag], axis=-1), 16 * (2e-7 + 8 * 2.0**-24))


@pytest.mark.parametrize(
    "centre", [2**31 - 1, -(2**31), 2**31 - 2**16, 123_456_789, 2**24 + 1, 65_536, 65_535, -1, -70_001]
)
def test_the_distance_from_a_centre_never_wraps(xp, centre):
    """Positions of either end of the integers with a centre of the other: exact as far as integers are, and else two
    roundings. Of real positions, fractions are also rounded at a distance of up to 2**16.
    """

    def assert_differences(where, dtype):
        for wide in {"float32", "float64"} & set(xp.floats):
            unit, positions = ROUNDOFF[wide], np.asarray(where).astype(dtype)
            found = xp.numpy(exact_phases.difference(xp.array(positions), centre, xp.array(np.zeros(1), wide).dtype))
            for one, truth in zip(found.tolist(), [Fraction(p) - centre for p in positions.tolist()], strict=True):
                is_whole = truth.denominator == 1
                bound = unit * (2.01 * abs(truth) + 2**16 * (not is_whole))
                assert abs(Fraction(one) - truth) <= (0 if is_whole and abs(truth) <= 1 / unit else bound)

    near = [centre + offset for offset in (-(2**20) - 7, -3, -1, 2, 2**20 + 3) if -(2**31) <= centre + offset < 2**31]
    where = [-(2**31), 2**31 - 1, 0, -1, 2**31 - 5, -(2**31) + 7, 2**24 + 2, 65_535, 65_536, centre, *near]
    for dtype in {"int32", "int64"} & set(xp.integers):
        assert_differences(where, dtype)
    if "int64" in xp.integers:
        assert_differences([2**63 - 1, -(2**63), 2**40 + 1, -(2**33) - 1, centre + 1], "int64")
    for dtype in {"float32", "float64"} & set(xp.floats):
        assert_differences([p for p in where if int(np.float32(p)) == p], dtype)
        assert_differences([np.clip(p + 1 / 3, -(2**31), 2**31 - 129) for p in where], dtype)
    # Where nothing overflows: from the centre on, queries become 0.
    role, side = ("query", 1) if centre < 0 else ("key", -1)
    where = [p for p in where if side * (p - centre) >= 0]
    sincos = embedding(head_dim=6, xpos=XPos(centre=centre)).sincos(xp.array(where, "int32"), role=role)
    growth = np.hypot(*map(xp.numpy, sincos))
    distance = np.abs(np.asarray(where) - centre)
    assert (growth[distance > 10**6] == 0).all() and (growth[distance < 10] > 0.9).all()
    assert (distance > 10**6).any() and (distance < 10).any()


def test_xpos_keys_move_and_roles_are_said(xp):
    rope, where = embedding(head_dim=6, xpos=XPos(centre=7)), np.asarray([3, 1, 4, 1, 5], np.int32)
    q, k = xp.random(2, 5, 6), xp.random(2, 5, 6, seed=1)
    (_, rotated), (_, later) = (rope(q, k, positions=each, seq_dim=1) for each in (where, where + 9))
    assert_numbers(xp, rope.shift(rotated, 9, seq_dim=1), later, 1e-5)
    sincos = rope.sincos(xp.array(where), like=k, role="key")
    assert_numbers(xp, rope.rotate(k, sincos, seq_dim=1), rotated)
    with pytest.raises(ValueError, match=r"role must be .*; got None"):
        rope.sincos(xp.array(where), like=k)
    with pytest.raises(ValueError, match=r"xpos must have the query first and then keys; got one array"):
        rope(q, seq_dim=1)


LONG_GOOD = {"short_factor": [1.0], "long_factor": [2.0], "original_max_position_embeddings": 64, "factor": 2.0}


@given(data=st.data(), name=st.sampled_from(RULES[1:]))
def test_factors_are_at_least_1(data, name):
    """tests/goldens/examples.json has other bad arguments of rules."""
    rule, _ = data.draw(rules(1e4, 14, 2.0, 64, (name,)))
    message = rf"^{type(rule).__name__}: factor must be at least 1; got 0.5"
    assert_raises(partial(replace, rule, factor=0.5), ValueError, message)


def test_the_least_and_the_greatest_numbers():
    assert XPos(scale_base=1.0, centre=-(2**31)).scale_base == 1.0 and XPos(centre=2**31 - 1).centre == 2**31 - 1
    widest = YarnScaling(**YARN, beta_fast=2.0**53, beta_slow=2.0**-53, mscale=2.0**53, mscale_all_dim=2.0**53)
    assert widest.resolved_attention_factor == 1.0 and YARN_8K(factor=1.0, beta_fast=1.0).beta_fast == 1.0
    assert LongRopeScaling(**{**LONG_GOOD, "original_max_position_embeddings": 2, "seq_len": 1}).is_long is False
    for length in (1, 2**53 - 1):
        assert DynamicNTKScaling(factor=2.0, max_position_embeddings=length).max_position_embeddings == length
    for greatest in (sys.float_info.max, -sys.float_info.max):
        assert frequencies.evenly_spaced(greatest, 0.0, 1) == (greatest,)
    assert NTKScaling(factor=2.0).frequencies(1e4, 4) == (1.0, pytest.approx(0.005))
    assert ProportionalScaling(partial_rotary_factor=1.0).frequencies(4.0, 2) == (1.0,)
    assert frequencies.geometric(4.0, 1) == (1.0,) and frequencies.geometric(8.0, 3) == (1.0, 0.25)  # whole pairs
    assert frequencies.geometric(0.5, 4) == (1.0, pytest.approx(2.0**0.5))
    assert frequencies.mixed([0.0], 4, base=1.0) == (((1.0, pytest.approx(0.0)),), ((0.0, 1.0),))


def test_defaults_are_those_of_the_docstrings():
    assert frequencies.mixed([0.3], 8) == frequencies.mixed(angles=[0.3], rotary_dim=8, base=10.0)
    assert XPos() == XPos(scale_base=512.0, centre=0, gamma=0.4)
    assert ProportionalScaling() == ProportionalScaling(partial_rotary_factor=1.0, factor=1.0)
    assert MixedNTKScaling(factor=2.0) == MixedNTKScaling(factor=2.0, mixed_b=1.0)
    assert YarnScaling(**YARN) == YarnScaling(**YARN, beta_fast=32.0, beta_slow=1.0, truncate=True)
