"""Bad input gets an error that says who, what was required and what came."""

from dataclasses import replace
from functools import partial
from inspect import signature

import array_api_strict
import bad_input
import numpy as np
import pytest
from bad_input import ROPE
from errors import assert_all_raise, raising
from samples import embedding

from rope_xp import RotaryEmbedding, apply_rotary_pos_emb, positions
from rope_xp.arrays import checks


def test_arrays(xp):
    assert_all_raise(bad_input.arrays(xp, xp.array(np.ones((2, 5, 3, 14)), "float32")))


def test_builders_of_positions(xp):
    assert_all_raise(bad_input.builders(xp))


# Arguments that each builder of positions takes, and long ones that most arguments may not be.
TAKEN = {
    "augment": {"positions": np.zeros((1, 2)), "source": np.random.default_rng(0)},
    "consecutive": {"seq": 4},
    "context_parallel": {"seq": 8, "rank": 0, "size": 2},
    "from_cu_seqlens": {"cu_seqlens": [0, 3]},
    "from_lengths": {"lengths": [3]},
    "from_mask": {"mask": np.ones(4, dtype=bool)},
    "grid": {},
    "join": {},
    "normalized": {},
    "prompt": {"runs": [3]},
}
BEFORE = {"grid": (2, 3), "join": (np.zeros((1, 2), np.int32),), "normalized": (2, 3)}
LONG = [[0.5] * 5000, [*range(5000, 0, -1)], ["a"] * 5000, [[1, 2]] * 5000, [None] * 5000, "x" * 5000, (1,) * 5000]
LONG += [dict.fromkeys(range(5000), 1), np.full(5000, -1), np.full(5000, np.nan), np.full((50, 100), -3)]


@pytest.mark.parametrize("name", [name for name in positions.__all__ if name != "PromptPositions"])
def test_messages_about_long_arguments_are_short(name):
    function = getattr(positions, name)
    taken = TAKEN.get(name, {"token_types": [0, 1, 1], "image_grids": [[1, 2, 2]]})
    wrong = {}
    for parameter in signature(function).parameters.values():
        for number, long in enumerate(LONG):
            if parameter.kind is parameter.VAR_POSITIONAL:
                calls = [partial(function, *BEFORE[name], long), partial(function, *long)]
            else:
                calls = [partial(function, *BEFORE.get(name, ()), **taken | {parameter.name: long})]
            for call in calls:
                try:
                    call()
                except (TypeError, ValueError) as error:
                    if len(str(error)) >= 1000 or not str(error).startswith(f"{name}: "):
                        wrong[parameter.name, number] = str(error)[:200]
    assert not wrong


def test_long_values_are_shown_by_their_ends():
    short, long = "ab" * 199, "".join(map(str, range(200)))  # with quotes, 400 characters and more
    for value, said in ((short, repr(short)), (short + "c", None), (long, None)):
        with pytest.raises(TypeError) as raised:
            positions.from_lengths(value)
        said = said or f"{repr(value)[:250]} ... {repr(value)[-100:]}"
        assert str(raised.value).endswith(f"; got {said}")


def test_names_that_are_similar_by_half_are_told_and_at_most_two():
    with pytest.raises(ValueError, match=r"; got 'abcd', similar to 'abcx' and 'abxy'$"):
        checks.one_of("name", "abcd", {"axyz": "", "abxy": "", "abcx": ""})
    with pytest.raises(ValueError, match=r"; got 'abcd', similar to '\w{4}' and '\w{4}'$"):
        checks.one_of("name", "abcd", {"abcx": "", "abcy": "", "abcz": ""})


def test_embeddings():
    """With arrays: tests/goldens/examples.json has other arguments."""
    given = partial(partial, embedding, base=None)
    values = [
        (given(inv_freq=np.asarray(1.0)), r"inv_freq must be a non-empty \(pairs\), .*; got shape \(\)"),
        (given(inv_freq=np.zeros((2, 0))), r"non-empty \(pairs\), .*; got shape \(2, 0\)"),
        (given(inv_freq=np.ones((1, 1, 1, 2))), r"non-empty \(pairs\), .*; got shape \(1, 1, 1, 2\)"),
        (given(inv_freq=np.asarray([1.0, -65536.0])), r"inv_freq must be below 65536 .*; got"),
    ]
    types = [(given(inv_freq=np.ones(2, dtype)), r"inv_freq must be .*; got") for dtype in (np.float16, complex)]
    types.append((lambda: RotaryEmbedding(head_dim=14, base=1e4), r"missing 1 .* keyword-only argument: 'layout'"))
    assert_all_raise(raising(values, types))


def test_arrays_of_two_libraries(xp):
    other = np.asarray if xp.name == "strict" else array_api_strict.asarray
    foreign, where = other(np.ones((5, 7), np.float32)), other(np.arange(5, dtype=np.int32))
    host, own, types = np.ones((5, 3, 14), np.float32), xp.array(np.ones((5, 7)), "float32"), []
    x = xp.array(host)
    if xp.name != "strict":  # NumPy's tables and positions go with any x
        calls = (
            lambda: apply_rotary_pos_emb(x, (foreign, foreign)),
            lambda: ROPE(x, positions=where, seq_dim=0),
            lambda: positions.join(positions.grid(2, like=x), where[None, :], like=x),
            lambda: positions.grid(where, like=x),
        )
        others = "" if xp.name == "numpy" else r", or of \S+ like the other arrays"
        types += [(call, f"must be an array of NumPy{others}; got") for call in calls]
    if xp.name != "numpy":
        learned = replace(ROPE, base=None, inv_freq=own[0, :])
        types += [
            (lambda: apply_rotary_pos_emb(host, (own, own)), "must be an array of NumPy; got"),
            (lambda: ROPE(host, x, seq_dim=0), r"must be an array of numpy, .*; got"),
            (lambda: learned(host, seq_dim=0), "must be an array of NumPy; got"),
            (lambda: positions.from_mask(xp.array(np.ones(3), "bool"), like=host), "array of NumPy; got"),
        ]
    assert_all_raise(raising([], types))
