"""Rotated keys of a cache that change to other frequencies: `rerotate`."""

from dataclasses import replace

import numpy as np
import pytest
from compare import assert_numbers
from samples import embedding

from rope_xp import DynamicNTKScaling, LongRopeScaling, Sections, XPos

DYNAMIC = DynamicNTKScaling(factor=2.0, max_position_embeddings=64)
LONGROPE = LongRopeScaling(
    short_factor=(1.0, 1.0, 1.1, 1.2, 1.5, 2.0, 2.5),
    long_factor=(1.0, 1.5, 3.0, 6.0, 9.0, 12.0, 16.0),
    original_max_position_embeddings=64,
    short_mscale=1.1,
    long_mscale=1.3,
)


def tolerance(factor):
    """The greatest error of float32 keys that are rotated twice, and have the attention factor `factor` then.

    Pairs have a length of at most 3 * sqrt(2) before. The tables of a rotation are within 2e-7. Those of `rerotate` are
    a sum of two products of such tables. Each rotation and each sum has three roundings.
    """
    return factor * 3 * 2**0.5 * (3 * 2e-7 + 9 * 2.0**-24)


KINDS = {
    "other sections": (embedding(sections=Sections((3, 4), order="axial")), {"sections": Sections((4, 3))}),
    "reversed": (embedding(reverse=True), {"reverse": False}),
    "factors": (embedding(attention_factor=1e15), {"attention_factor": 2.0}),
    "float32 phases": (embedding(phase="float32"), {"base": 500.0}),
    "to float32 phases": (embedding(), {"base": 500.0, "phase": "float32"}),
    "xpos": (embedding(), {"xpos": XPos(scale_base=64.0, centre=20)}),
    # Rules that depend on the length: the cache follows to the frequencies of a longer one.
    "dynamic NTK": (embedding(scaling=replace(DYNAMIC, seq_len=64)), {"scaling": replace(DYNAMIC, seq_len=100)}),
    "LongRoPE": (embedding(scaling=replace(LONGROPE, seq_len=64)), {"scaling": replace(LONGROPE, seq_len=65)}),
    "from xpos": (embedding(xpos=XPos(scale_base=64.0)), {"xpos": None, "base": 500.0}),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_embedding_changes_its_keys(xp, name):
    """`test_rotation.py` has every layout, part of the width and shape of positions."""
    rope, changes = KINDS[name]
    other, k = rope.replace(**changes), xp.random(2, 5, 3, rope.head_dim)
    where = np.asarray([[3, 0, 103, -7, 71], [5, 4, 3, 2, 1]], np.int32)
    where = np.stack([where, where[::-1] ** 2]) if rope.axes > 1 else where
    first, truth = (each.rotate(k, each.sincos(where, like=k, role="key"), seq_dim=1) for each in (rope, other))
    # Scales of xpos: at most (1.4 / 0.4) ** (150 / 64) for keys.
    scale = 20.0 if "xpos" in name else other.attention_factor
    assert_numbers(xp, rope.rerotate(first, where, to=other, seq_dim=1), truth, 2 * tolerance(scale))


@pytest.mark.parametrize("delta", [-3, 100_000, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("sections", [None, Sections((3, 2))], ids=["one axis", "two axes"])
def test_keys_shift_by_every_integer_of_32_bits(xp, delta, sections):
    """Also by an array of one; an int moves keys along each of their position axes."""
    k, rope, axes = xp.random(2, 5, 3, 14), embedding(rotary_dim=10, sections=sections), (2,) if sections else ()
    far = rope(k, positions=xp.array(np.full((*axes, 5), delta), "int32"), seq_dim=1)
    arrays = (xp.array(np.full((*axes, *shape), delta), "int32") for shape in ((), (5,), (2, 1), (2, 1, 1)))
    for one in (delta, *arrays):
        shifted = rope.replace(attention_factor=1.25).shift(k, one, seq_dim=1)
        assert_numbers(xp, shifted, far, 2 * tolerance(1.0))
