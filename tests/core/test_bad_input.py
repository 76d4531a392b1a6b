"""Bad input gets an error that says who, what was required and what came."""

from dataclasses import replace

import array_api_strict
import bad_input
import numpy as np
from bad_input import ROPE
from errors import assert_all_raise, raising

from rope_xp import apply_rotary_pos_emb, positions


def test_arrays(xp):
    assert_all_raise(bad_input.arrays(xp, xp.array(np.ones((2, 5, 3, 14)), "float32")))


def test_builders_of_positions(xp):
    assert_all_raise(bad_input.builders(xp))


def test_embeddings():
    assert_all_raise(bad_input.embeddings())


def test_arrays_of_two_libraries(xp):
    other = np.asarray if xp.name == "strict" else array_api_strict.asarray
    foreign, where = other(np.ones((5, 7), np.float32)), other(np.arange(5, dtype=np.int32))
    host, own, types = np.ones((5, 3, 14), np.float32), xp.array(np.ones((5, 7)), "float32"), []
    x = xp.array(host)
    if xp.name != "strict":  # NumPy's tables and positions go with any x
        types += [
            (lambda: apply_rotary_pos_emb(x, (foreign, foreign)), r"must be an array of .*, or of NumPy; got"),
            (lambda: ROPE(x, positions=where, seq_dim=0), r"must be an array of .*, or of NumPy; got"),
        ]
    if xp.name != "numpy":
        learned = replace(ROPE, base=None, inv_freq=own[0, :])
        types += [
            (lambda: apply_rotary_pos_emb(host, (own, own)), "or of NumPy; got"),
            (lambda: ROPE(host, x, seq_dim=0), r"must be an array of numpy, .*; got"),
            (lambda: learned(host, seq_dim=0), "or of NumPy; got"),
            (lambda: positions.from_mask(xp.array(np.ones(3), "bool"), like=host), "array of numpy"),
        ]
    assert_all_raise(raising([], types))
