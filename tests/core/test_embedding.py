"""RotaryEmbedding: a value that rotates queries and keys."""

import copy
import dataclasses
import inspect
import pickle
import re
from functools import partial
from itertools import product

import numpy as np
import oracle
import pytest
from compare import assert_numbers, assert_same
from configs import ROWS, value_of
from samples import embedding

from rope_xp import LongRopeScaling, RotaryEmbedding, Sections, XPos, YarnScaling

# Rotated float32 numbers of size 5: three operations, each rounded, and tables within 2e-7.
ATOL = 5 * (4 * 2.0**-24 + 2e-7)


def powers(base, dim):
    return tuple(float(w) for w in oracle.geometric(base, dim))


YARN = YarnScaling(factor=4.0, original_max_position_embeddings=64)
MAGNITUDES = {
    "YaRN's": {"scaling": YARN},
    "given": {"attention_factor": 2.0},
    "of a square beyond float32": {"attention_factor": 1e25},
    "of a square below float32": {"attention_factor": 1e-25},
    "of each position": {"attention_factor": 1.25, "xpos": XPos(scale_base=64.0, centre=3)},  # 2**-64 to 2**64
}


@pytest.mark.parametrize("m", MAGNITUDES)
def test_inverse_and_transpose_of_scaled_tables(xp, m):
    """The inverse divides by the magnitudes that tables carry, the transpose multiplies by them again."""
    rope, where = embedding(**MAGNITUDES[m]), xp.array([-2500, 0, 3, 2800, 700], "int32")
    roles = (None,) if rope.xpos is None else ("query", "key")
    for dtype, role in product(set(xp.floats) & {"float32", "float64"}, roles):
        x = xp.random(2, 5, 3, 14, dtype=dtype)
        sincos = rope.sincos(where, like=x, role=role)
        rotate = partial(rope.rotate, sincos=sincos, seq_dim=1)
        y, magnitudes = rotate(x), np.tile(np.hypot(*map(xp.numpy, sincos)), 2)[:, None, :]
        assert_numbers(xp, rotate(y, inverse=True), x, 2 * ATOL)
        transposed, inverted = xp.numpy(rotate(x, transpose=True)), xp.numpy(rotate(x, inverse=True))
        np.testing.assert_allclose(inverted * magnitudes, transposed / magnitudes, rtol=0, atol=2 * ATOL)
        if xp.name in ("numpy", "torch"):
            rope.rotate_inplace(y, sincos=sincos, positions=xp.array(np.arange(5), "int32"), seq_dim=1, inverse=True)
            assert_numbers(xp, y, x, 2 * ATOL)


@pytest.mark.parametrize(
    "axes, others, seq_dim",
    [((3, 5, 5), (2, 5, 3), -3), ((3, 5, 5), (5,), -2), ((3, 5, 5), (2, 5), -2), ((2, 5, 3), (2, 5), 1)],
)
def test_each_array_has_tables_aligned_with_its_own_axes(xp, kernel, axes, others, seq_dim):
    """Queries and keys of other axes, in either order: each is rotated as if alone."""
    rope, both = embedding(kernel=kernel), [xp.random(*axes, 14), xp.random(*others, 14, seed=1)]
    sincos = rope.sincos(np.asarray([9, 8, 7, 6, 5], np.int32), like=both[0])
    where = {"positions": xp.array([4, 4, 0, 1, 2], "int32")}
    for options in ({}, where, {"sincos": sincos}, {"sincos": sincos, **where}):
        alone = [rope(x, **options, seq_dim=seq_dim) for x in both]
        for order in ((1, 0), (0, 1, 1, 0)):
            results = rope(*[both[index] for index in order], **options, seq_dim=seq_dim)
            for index, result in zip(order, results, strict=True):
                assert_numbers(xp, result, alone[index])


def test_learned_values_can_be_shown(xp):
    rope = embedding(base=None, inv_freq=xp.array(np.ones(7), "float32"))
    assert repr(rope).startswith("RotaryEmbedding(head_dim=14, layout='half', inv_freq=")
    assert ("given as an array" in rope.describe()) == (xp.name != "numpy")
    again = embedding(base=None, inv_freq=xp.array(np.ones(7), "float32"))
    assert rope == rope and rope.replace(attention_factor=1.5) != rope
    assert (rope == again) == (xp.name == "numpy")  # an array is equal only to itself


ROPES = [
    embedding(),
    embedding("interleaved"),
    embedding(base=500.0),
    embedding(rotary_dim=10),
    embedding(head_dim=16, rotary_dim=10),
    embedding(attention_factor=1.5),
    embedding(phase="float32"),
    embedding(base=None, inv_freq=(1.0, 0.25)),
]


@pytest.mark.parametrize("rope", ROPES, ids=repr)
def test_is_a_value(rope):
    assert eval(repr(rope)) == rope != "half" and len(set(ROPES)) == len(ROPES)
    for same in (copy.copy(rope), copy.deepcopy(rope), pickle.loads(pickle.dumps(rope)), dataclasses.replace(rope)):
        assert same == rope and hash(same) == hash(rope)
        x = np.ones((5, rope.head_dim))
        np.testing.assert_array_equal(same(x, seq_dim=0), rope(x, seq_dim=0))
    with pytest.raises(dataclasses.FrozenInstanceError):
        rope.base = 1.0


LISTS = {"short_factor": [1.1] * 7, "long_factor": [1 / 3] * 7, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    "rope",
    [
        embedding(base=None, inv_freq=np.random.default_rng(0).random((2, 3, 7)).tolist()),
        embedding(sections=Sections((3, 4), order="axial"), reverse=True, kernel="blocked"),
        embedding(scaling=LongRopeScaling(**LISTS, attention_factor=1 / 3, seq_len=65), xpos=XPos(gamma=0.3)),
        embedding(blocks=7, phase="float32", attention_factor=0.1),
        *(value_of(row["value"]) for row in ROWS["descriptions"]),
    ],
    ids=repr,
)
def test_its_text_gives_it_back(rope):
    """With every number: the operators of `torch.compile` have the value as text."""
    read = value_of(repr(rope))
    assert read == rope and read.inv_freq == rope.inv_freq and read.attention_factor == rope.attention_factor


def test_a_field_can_be_replaced():
    rope = ROPES[3]
    assert dataclasses.replace(rope, base=500.0, inv_freq=None).inv_freq == powers(500, 10)
    assert dataclasses.replace(rope, rotary_dim=6, inv_freq=None).pairs == 3
    rope(np.ones((1, rope.head_dim)), seq_dim=0)
    assert {name for name in dataclasses.asdict(rope) if name.startswith("_")} == {"_scaling"}  # no plan, no program
    passed = [each.name for each in dataclasses.fields(rope) if each.init]
    assert passed == [*inspect.signature(RotaryEmbedding).parameters, "_scaling"]


REPLACED = {
    "a scaling that goes": ({"scaling": YARN}, {"scaling": None}),
    "a scaling that comes": ({}, {"scaling": YARN}),
    "another scaling": ({"scaling": YARN}, {"scaling": dataclasses.replace(YARN, factor=16.0)}),
    "a base": ({"scaling": YARN}, {"base": 500.0}),
    "a width": ({}, {"rotary_dim": 6}),
    "a part of the width that stays": ({"rotary_dim": 6}, {"head_dim": 32}),
    "a head, all of which turns": ({}, {"head_dim": 32}),
    "a beginning": ({}, {"first_channel": 4}),
    "sections": ({}, {"sections": Sections((4, 4), order="axial")}),
    "a direction": ({"scaling": YARN}, {"reverse": True}),
    "a layout": ({"scaling": YARN}, {"layout": "interleaved"}),
    "a magnitude that stays": ({"attention_factor": 1.5}, {"base": 500.0}),
    "a magnitude": ({"attention_factor": 1.5}, {"attention_factor": None}),
    "a magnitude kept": ({"scaling": YARN}, {"scaling": None, "attention_factor": YARN.resolved_attention_factor}),
    "frequencies": ({}, {"base": None, "inv_freq": (1.0, 0.5)}),
    "nothing": ({"scaling": YARN, "xpos": XPos()}, {}),
}


@pytest.mark.parametrize("name", REPLACED)
def test_replace_is_the_value_made_of_the_changed_arguments(name):
    before, changes = REPLACED[name]
    arguments = {"head_dim": 16, **before}
    rope, truth = embedding(**arguments), embedding(**{**arguments, **changes})
    again = pickle.loads(pickle.dumps(rope))
    for result in (rope.replace(**changes), rope.__replace__(**changes), again.replace(**changes)):
        assert result == truth and repr(result) == repr(truth)
    assert rope == embedding(**arguments)


def test_replace_of_given_frequencies():
    rope, smaller = (embedding(head_dim=n, base=None, inv_freq=(1.0, 0.5), attention_factor=1.5) for n in (16, 8))
    assert rope.replace(head_dim=8) == smaller
    assert rope.replace(inv_freq=None, base=100.0, rotary_dim=None).inv_freq == powers(100, 16)
    with pytest.raises(ValueError, match="must not contradict inv_freq"):
        rope.replace(base=100.0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'theta'"):
        rope.replace(theta=100.0)


def test_a_removed_scaling_does_not_leave_its_attention_factor_behind():
    """`dataclasses.replace` cannot distinguish a computed value from a given one, so it must raise."""
    rope, plain = embedding(scaling=YARN), embedding()
    with pytest.raises(ValueError, match=r"^RotaryEmbedding: attention_factor must not come from .*; got 1\.138629"):
        dataclasses.replace(rope, scaling=None, inv_freq=None)
    assert dataclasses.replace(rope, scaling=None, inv_freq=None, attention_factor=None) == plain
    assert dataclasses.replace(plain, scaling=YARN, attention_factor=None, inv_freq=None) == rope
    assert dataclasses.replace(rope, layout="interleaved").attention_factor == YARN.resolved_attention_factor
    given = embedding(attention_factor=YARN.resolved_attention_factor)
    assert dataclasses.replace(given, base=500.0, inv_freq=None).attention_factor == YARN.resolved_attention_factor


def test_attributes():
    rope = embedding(head_dim=128, base=500_000, rotary_dim=64)
    assert (rope.head_dim, rope.rotary_dim, rope.pairs, rope.layout, rope.attention_factor) == (128, 64, 32, "half", 1)
    same = embedding(head_dim=np.int64(128), base=np.float32(500_000), rotary_dim=np.int32(64))
    assert same == rope and repr(same) == repr(rope)
    assert rope.base == 500_000.0 and isinstance(rope.base, float)
    assert rope.inv_freq == powers(500_000, 64)


@pytest.mark.parametrize("row", ROWS["descriptions"], ids=lambda row: row["value"])
def test_describe_says_what_runs(row):
    text = value_of(row["value"]).describe()
    unwrapped = re.sub(r"\n +", " ", text)
    assert all(each in unwrapped for each in row["texts"])
    assert all(len(line) <= 80 for line in text.splitlines())
    assert all(line[17] == " " != line[18] for line in text.splitlines())  # values stand in one column


def test_calls_leave_no_trace(xp):
    """No cache: the result of a call does not depend on the calls before it."""
    ropes = [*ROPES, embedding(xpos=XPos(centre=3))]
    x = {rope: xp.random(2, 5, 3, rope.head_dim) for rope in ropes}
    fresh = {rope: rope.replace()(x[rope], x[rope], seq_dim=1) for rope in ropes}
    before = {rope: (dict(vars(rope)), dict(vars(rope._frequencies))) for rope in ropes}
    for index in np.random.default_rng(3).integers(0, len(ropes), 50):
        rope = ropes[index]
        assert_same(rope(x[rope], x[rope], seq_dim=1), fresh[rope], 0)
        assert (vars(rope), vars(rope._frequencies)) == before[rope]
