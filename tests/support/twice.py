"""Make every call of a rotation twice: the second result comes from a plan that was kept, and has the same bits."""

import functools

import numpy as np
from compare import assert_same

import rope_xp
from rope_xp import RotaryEmbedding, functions


def make_calls_twice():
    """Replace the public calls that keep plans. Tests that are imported later use the replaced ones."""
    for name in ("__call__", "sincos", "rotate", "shift", "rerotate"):
        setattr(RotaryEmbedding, name, _twice(getattr(RotaryEmbedding, name)))
    RotaryEmbedding.rotate_inplace = _twice_in_place(RotaryEmbedding.rotate_inplace, first=1)
    rope_xp.apply_rotary_pos_emb = functions.apply_rotary_pos_emb = _twice(rope_xp.apply_rotary_pos_emb)
    in_place = _twice_in_place(rope_xp.apply_rotary_pos_emb_inplace)
    rope_xp.apply_rotary_pos_emb_inplace = functions.apply_rotary_pos_emb_inplace = in_place


def _twice(call):
    @functools.wraps(call)
    def wrapper(*arguments, **options):
        first, second = (call(*arguments, **options) for _ in range(2))
        assert_same(first, second, 0, equal_nan=True)
        return second

    return wrapper


def _twice_in_place(call, first=0):
    """`first` is the place of the first array among the arguments. Its numbers are restored before the second call."""

    @functools.wraps(call)
    def wrapper(*arguments, **options):
        arrays = [x for x in arguments[first:] if isinstance(x, np.ndarray) or hasattr(x, "clone")]
        before = [x.clone() if hasattr(x, "clone") else x.copy() for x in arrays]
        call(*arguments, **options)
        for x, numbers in zip(arrays, before):
            x[...] = numbers
        return call(*arguments, **options)

    return wrapper
