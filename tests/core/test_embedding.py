"""RotaryEmbedding: a value that rotates queries and keys."""

import copy
import dataclasses
import pickle
import re
from functools import partial
from itertools import product

import numpy as np
import oracle
import pytest
from compare import assert_numbers, assert_same
from configs import ROWS, value_of
from hypothesis import given, reject
from hypothesis import strategies as st
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


LONGROPE = LongRopeScaling(
    short_factor=[1.1] * 7, long_factor=[1 / 3] * 7, original_max_position_embeddings=64, factor=4.1, seq_len=65
)
# What arguments may be. Some contradict others.
ARGUMENTS = {
    "head_dim": st.sampled_from([14, 16, 32]),
    "layout": st.sampled_from(["half", "interleaved", "interleaved_to_half"]),
    "base": st.none() | st.floats(1.0, 1e8),
    "inv_freq": st.none()
    | st.sampled_from([2, 7]).flatmap(lambda n: st.lists(st.floats(-9, 9), min_size=n, max_size=n)),
    "rotary_dim": st.sampled_from([None, 6, 10, 14]),
    "first_channel": st.sampled_from([0, 2]),
    "blocks": st.sampled_from([1, 7]),
    "scaling": st.sampled_from([None, YARN, dataclasses.replace(YARN, factor=16.0), LONGROPE]),
    "attention_factor": st.none() | st.floats(0.1, 9) | st.just(YARN.resolved_attention_factor),
    "sections": st.sampled_from([None, Sections((3, 4), order="axial"), Sections((4, 3)), Sections((4, 4))]),
    "reverse": st.booleans(),
    "phase": st.sampled_from(["exact", "float32"]),
    "xpos": st.sampled_from([None, XPos(), XPos(gamma=0.3)]),
    "kernel": st.sampled_from(["fastest", "blocked"]),
}
CHANGES = st.sets(st.sampled_from([*ARGUMENTS]), max_size=3).flatmap(
    lambda names: st.fixed_dictionaries({name: ARGUMENTS[name] for name in sorted(names)})
)


@st.composite
def values(draw):
    """The arguments of a value, and the value."""
    arguments = {"head_dim": 14, "layout": "half", "base": 10_000.0, **draw(CHANGES)}
    if arguments.get("inv_freq"):
        arguments["base"] = None
    try:
        return arguments, RotaryEmbedding(**arguments)
    except ValueError:
        reject()


@given(values())
def test_is_a_value_with_its_arguments_whose_text_gives_it_back(drawn):
    """With every number: the operators of `torch.compile` have the value as text."""
    arguments, rope = drawn
    for name in arguments.keys() - {"inv_freq", "rotary_dim", "attention_factor"}:
        assert getattr(rope, name) == arguments[name]
    again = value_of(repr(rope)), pickle.loads(pickle.dumps(rope)), dataclasses.replace(rope), rope.replace()
    for same in (*again, copy.copy(rope), copy.deepcopy(rope)):
        assert same == rope != "half" and hash(same) == hash(rope) and repr(same) == repr(rope)
        assert same.inv_freq == rope.inv_freq and same.attention_factor == rope.attention_factor
    assert {name for name in dataclasses.asdict(rope) if name.startswith("_")} == {"_scaling"}  # no plan, no program
    with pytest.raises(dataclasses.FrozenInstanceError):
        rope.base = 1.0


@given(values(), CHANGES)
def test_replace_is_the_value_made_of_the_changed_arguments(drawn, changes):
    """Or the same error. What a value without it has too counts as not given."""
    arguments, rope = drawn
    is_whole = rope.base is not None and rope.rotary_dim == rope.head_dim - rope.first_channel
    if is_whole or (rope.base is None and changes.get("inv_freq")):
        arguments["rotary_dim"] = None
    elif rope.base is None:  # its frequencies give the width
        arguments["rotary_dim"] = rope.rotary_dim
    if rope.scaling is not None or rope.attention_factor == 1.0:
        arguments["attention_factor"] = None

    def outcome(make, **given):
        try:
            return make(**given), repr(make(**given))
        except (ValueError, TypeError) as error:
            return str(error).partition(": ")[2]

    truth = outcome(RotaryEmbedding, **{**arguments, **changes})
    for each in (rope, pickle.loads(pickle.dumps(rope))):
        assert outcome(each.replace, **changes) == outcome(each.__replace__, **changes) == truth
    assert rope == RotaryEmbedding(**arguments)
    assert isinstance(truth, str) or (rope == truth[0]) == (repr(rope) == truth[1])


def test_new_frequencies_have_their_own_width():
    rope = embedding(base=None, inv_freq=[1.0, 0.5])
    assert rope.replace(inv_freq=[1.0, 0.5, 0.25]) == embedding(base=None, inv_freq=[1.0, 0.5, 0.25])
    assert rope.replace(inv_freq=None, base=4.0) == embedding(base=4.0, rotary_dim=4)


def test_a_removed_scaling_does_not_leave_its_attention_factor_behind():
    """`dataclasses.replace` cannot distinguish a computed value from a given one, so it must raise."""
    rope, plain = embedding(scaling=YARN), embedding()
    with pytest.raises(ValueError, match=r"^RotaryEmbedding: attention_factor must not come from .*; got 1\.138629"):
        dataclasses.replace(rope, scaling=None, inv_freq=None)
    assert dataclasses.replace(rope, scaling=None, inv_freq=None, attention_factor=None) == plain
    assert dataclasses.replace(plain, scaling=YARN, attention_factor=None, inv_freq=None) == rope
    assert dataclasses.replace(rope, layout="interleaved").attention_factor == YARN.resolved_attention_factor
    given = embedding(attention_factor=YARN.resolved_attention_factor)
    changed = dataclasses.replace(given, base=500.0, inv_freq=None)
    assert (changed.inv_freq, changed.attention_factor) == (powers(500, 14), YARN.resolved_attention_factor)


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


ROPES = [
    embedding(),
    embedding("interleaved"),
    embedding(base=500.0),
    embedding(head_dim=16, rotary_dim=10),
    embedding(attention_factor=1.5),
    embedding(phase="float32"),
    embedding(base=None, inv_freq=(1.0, 0.25)),
    embedding(xpos=XPos(centre=3)),
]


def test_calls_leave_no_trace(xp):
    """No cache: the result of a call does not depend on the calls before it."""
    x = {rope: xp.random(2, 5, 3, rope.head_dim) for rope in ROPES}
    fresh = {rope: rope.replace()(x[rope], x[rope], seq_dim=1) for rope in ROPES}
    before = {rope: (dict(vars(rope)), dict(vars(rope._frequencies))) for rope in ROPES}
    for index in np.random.default_rng(3).integers(0, len(ROPES), 50):
        rope = ROPES[index]
        assert_same(rope(x[rope], x[rope], seq_dim=1), fresh[rope], 0)
        assert (vars(rope), vars(rope._frequencies)) == before[rope]


def test_another_argument_is_another_value():
    kept = {"head_dim": 14, "layout": "half", "rotary_dim": 10, "base": 10_000.0}
    changes = [{"head_dim": 16}, {"layout": "interleaved"}, {"rotary_dim": 6}, {"base": 100.0}, {"first_channel": 2}]
    changes += [{"blocks": 5}, {"scaling": YARN}, {"attention_factor": 2.0}, {"sections": Sections((2, 3))}]
    changes += [{"reverse": True}, {"phase": "float32"}, {"xpos": XPos()}, {"kernel": "blocked"}]
    ropes = [RotaryEmbedding(**{**kept, **change}) for change in ({}, *changes)]
    assert len({*ropes}) == len({*map(repr, ropes)}) == len(ropes)


def test_one_row_of_frequencies_is_the_list_of_them():
    assert embedding(base=None, inv_freq=(powers(100.0, 14),)) == embedding(base=None, inv_freq=powers(100.0, 14))
