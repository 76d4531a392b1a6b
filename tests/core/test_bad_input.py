"""Bad input gets an error that says who, what was required and what came."""

import bad_input
import numpy as np
from errors import assert_all_raise, assert_raises

from rope_xp import RotaryEmbedding, apply_rotary_pos_emb, positions


def test_arrays(xp):
    assert_all_raise(bad_input.arrays(xp, xp.array(np.ones((2, 5, 3, 14)), "float32")))


def test_builders_of_positions(xp):
    assert_all_raise(bad_input.builders(xp))


def test_embeddings():
    assert_all_raise(bad_input.embeddings())


def test_arrays_of_two_libraries(xp):
    import array_api_strict

    other = np.asarray if xp.name == "strict" else array_api_strict.asarray
    foreign = other(np.ones((5, 7), dtype=np.float32))
    x = xp.array(np.ones((5, 3, 14)), "float32")
    if xp.name != "strict":  # NumPy's tables and positions go with any x
        assert_raises(
            lambda: apply_rotary_pos_emb(x, (foreign, foreign)), TypeError, r"must be an array of .*, or of NumPy; got"
        )
        where = other(np.arange(5, dtype=np.int32))
        assert_raises(
            lambda: bad_input.ROPE(x, positions=where, seq_dim=0),
            TypeError,
            r"must be an array of .*, or of NumPy; got",
        )
    if xp.name != "numpy":
        own = xp.array(np.ones((5, 7)), "float32")
        x_numpy = np.ones((5, 3, 14), dtype=np.float32)
        assert_raises(lambda: apply_rotary_pos_emb(x_numpy, (own, own)), TypeError, "or of NumPy; got")
        assert_raises(lambda: bad_input.ROPE(x_numpy, x, seq_dim=0), TypeError, r"must be an array of numpy, .*; got")
        learned = RotaryEmbedding(head_dim=14, layout="half", inv_freq=xp.array(np.ones(7), "float32"))
        assert_raises(lambda: learned(x_numpy, seq_dim=0), TypeError, "or of NumPy; got")
        assert_raises(
            lambda: positions.from_mask(xp.array(np.ones(3), "bool"), like=x_numpy), TypeError, "array of numpy"
        )
