"""Arrays that are more than their numbers: each public function gives the plain array's result, or refuses by name."""

from itertools import product

import numpy as np
import pytest
from refusals import CALLS, ON_HOST, OTHERS, X, assert_plain_results, cases, public_functions, subclasses

from rope_xp import RotaryEmbedding, rotate_half

CASES = cases(CALLS, ON_HOST)


def lost(*_, **__):
    raise AssertionError("the unit was lost")


class Units(np.ndarray):
    """As packages of physical units have it: every operation gives the result a unit."""

    __array_ufunc__ = __array_function__ = lost


class Named(np.ndarray):
    """A subclass that changes nothing; but functions of NumPy drop it."""


class Quantity:
    """No subclass: an array with a unit around it, which NumPy's functions pass to."""

    def __init__(self, numbers):
        self.numbers, self.shape, self.ndim, self.dtype = numbers, numbers.shape, numbers.ndim, numbers.dtype

    __array_function__ = __array__ = lost


REFUSED = {
    "MaskedArray": lambda x: np.ma.masked_array(x, mask=np.arange(x.size).reshape(x.shape) % 2 == 1),
    "matrix": lambda x: x.reshape(x.shape[-2:]).view(np.matrix),
    "recarray": lambda x: x.view(np.recarray),
    "Units": lambda x: x.view(Units),
    "Named": lambda x: x.view(Named),
    "Quantity": Quantity,
}


def in_a_file(x, folder):
    mapped = np.memmap(folder / "x", dtype=x.dtype, mode="w+", shape=x.shape)
    mapped[...] = x
    return mapped


ACCEPTED = {
    "memmap": in_a_file,
    "strided": lambda x, folder: np.repeat(x[..., None], 3, axis=-1)[..., 1],
    "other bytes": lambda x, folder: x.astype(x.dtype.newbyteorder()),
    "Fortran's order": lambda x, folder: np.array(x, order="F"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_more_than_numbers_is_refused(kind):
    wrong = {}
    for name, _, plain, call in CASES:
        try:
            with pytest.raises(TypeError, match=rf"^[\w.]+: .*{kind}"):
                call(REFUSED[kind](plain.copy()), np.array)
        except (Exception, pytest.fail.Exception) as failure:
            wrong[name] = str(failure)
    assert not wrong


@pytest.mark.parametrize("kind", ACCEPTED)
def test_numbers_count_wherever_they_lie(kind, tmp_path):
    # Another kernel, which serves this memory, may round products of numbers below 8 otherwise.
    assert_plain_results(CASES, lambda plain: ACCEPTED[kind](plain, tmp_path), np.array, atol=8 * 2.0**-23)


@pytest.mark.parametrize("by", ["reference", "blocked", "numba"])
@pytest.mark.parametrize("layout", ["half", "interleaved", "interleaved_to_half"])
def test_what_a_file_gives_lies_in_memory(by, layout, tmp_path):
    for rotary_dim, dtype in product((6, 14), ("float32", "float16")):
        rope = RotaryEmbedding(head_dim=14, layout=layout, base=100.0, rotary_dim=rotary_dim, kernel=by)
        assert type(rope(in_a_file(X.astype(dtype), tmp_path), seq_dim=0)) is np.ndarray


def test_every_public_function_is_here():
    assert public_functions() == {*CALLS, *ON_HOST, *OTHERS} - {"RotaryEmbedding"}


def test_every_subclass_of_numpy_is_refused_but_files():
    theirs = {kind.__name__ for kind in subclasses(np.ndarray) if kind.__module__.partition(".")[0] == "numpy"}
    # Of strings and of single records, which no rotation takes.
    assert theirs - {"chararray", "MaskedConstant", "mvoid"} == {"MaskedArray", "matrix", "memmap", "recarray"}
    with pytest.raises(TypeError, match="MaskedConstant"):
        rotate_half(np.ma.masked)


@pytest.mark.parametrize("axes", [63, 64])
def test_so_many_axes_that_numpy_has_no_more(axes):
    x = X.reshape(*[1] * (axes - 2), 5, 14)
    for _, argument, _, call in CASES:
        if argument in ("x", "w", "k"):
            with pytest.raises(
                ValueError, match=rf"^[\w.]+: ({argument}|array 2) must have at most 62 axes; got {axes}"
            ):
                call(x, np.array)
    most = X.reshape(*[1] * 60, 5, 14)
    np.testing.assert_array_equal(rotate_half(most).reshape(5, 14), rotate_half(X))
