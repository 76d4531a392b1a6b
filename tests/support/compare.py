"""Whether arrays of any library are the same."""

import numpy as np
from libraries import ROUNDOFF


def assert_same(one, other, atol=1e-6, *, equal_nan=False):
    """Equal shapes, dtypes and numbers, also in tuples and lists. NaN is an error unless `equal_nan`.

    By default for numbers below 4, rotated by tables that are one rounding of float32 apart: 2 * 4 * 2**-23.
    """
    if isinstance(one, (tuple, list)):
        for pair in zip(one, other, strict=True):
            assert_same(*pair, atol, equal_nan=equal_nan)
        return
    assert _dtype(one) == _dtype(other) and tuple(one.shape) == tuple(other.shape)
    np.testing.assert_allclose(_float64(one), _float64(other), rtol=0, atol=atol, equal_nan=equal_nan)


def assert_numbers(xp, result, truth, atol=0.0, *, name="", equal_nan=False):
    """The numbers of an array of a library are those of NumPy, or of another array of this library.

    NaN is an error unless `equal_nan`.
    """
    truth = truth if isinstance(truth, (np.ndarray, list)) else xp.numpy(truth)
    np.testing.assert_allclose(xp.numpy(result), truth, rtol=0, atol=atol, equal_nan=equal_nan, err_msg=name)


def assert_positions(xp, result, truth, atol=0.0, roundings=1):
    """Integers are equal, reals are the truth rounded to float32 so many times, but for `atol`."""
    truth = np.asarray(truth)
    assert tuple(result.shape) == truth.shape
    if truth.dtype.kind == "i":
        assert xp.dtype_of(result) == "int32"
        np.testing.assert_array_equal(xp.numpy(result), truth)
    else:
        assert xp.dtype_of(result) == "float32"
        np.testing.assert_allclose(xp.numpy(result), truth, rtol=roundings * ROUNDOFF["float32"], atol=atol)


def _dtype(x):
    """The name alone, which libraries share."""
    return str(x.dtype).rpartition(".")[2]


def _float64(x):
    x = x.detach().cpu().double() if hasattr(x, "detach") else x.get() if hasattr(x, "get") else x  # of CuPy
    return np.asarray(x, dtype=np.float64)
