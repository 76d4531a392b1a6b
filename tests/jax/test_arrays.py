"""What is particular about arrays of JAX: keys, signatures, and numbers where there are no 64 bits."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from errors import assert_all_raise
from samples import embedding, random

from rope_xp.arrays.libraries import imported
from rope_xp.arrays.signature import signature_of
from rope_xp.positions import augment, normalized


def test_functions_are_tried_with_arrays_of_jax():
    """After those of NumPy, in 64 bits where they exist."""
    first, *_, last = imported()
    assert isinstance(first, np.ndarray) and first.dtype == "float64" and first.shape == (0,)
    assert isinstance(last, jax.Array) and last.dtype == "float32" and last.shape == (0,)
    with jax.enable_x64(True):
        assert imported()[-1].dtype == "float64"


def test_one_key_is_a_source_of_random_numbers_and_other_arrays_are_none():
    for key in (jax.random.key(7), jax.random.PRNGKey(7)):
        assert augment(normalized(2, 4), key, shift=0.1).dtype == "float32"
    others = (jax.random.split(jax.random.key(7)), jax.random.split(jax.random.PRNGKey(7)), jax.random.PRNGKey(7)[0])
    for source in (*others, jnp.zeros(2, "int32"), jnp.zeros(3, "uint32"), jnp.zeros(2)):
        with pytest.raises(TypeError, match=r"source must be a .* or a JAX key; got "):
            augment(normalized(2, 4), source, shift=0.1)


def test_arrays_have_signatures_and_traced_ones_have_none():
    x, traced = jnp.ones((2, 3)), []
    assert signature_of((x,)) == signature_of((x + 1,)) != None  # noqa: E711
    others = [x[:1], x.astype("bfloat16"), jnp.asarray(1.0) * 1]
    assert len({signature_of((x,)), *(signature_of((each,)) for each in others)}) == 4
    jax.jit(lambda x: traced.append(signature_of((x,))))(x)
    assert traced == [None] and signature_of((np.ones(3), traced)) is None


def test_numbers_that_32_bits_do_not_hold_are_refused():
    rope, x = embedding(), jnp.asarray(random(3, 14))

    def at(positions):
        return rope(x, positions=positions, seq_dim=0)

    for positions in (np.asarray([2**31 - 1, -(2**31), 0]), np.asarray([0.5, -0.25, 2.0**30])):
        narrow = positions.astype("i4" if positions.dtype.kind == "i" else "f4")
        for given in (narrow, jnp.asarray(narrow)):
            np.testing.assert_array_equal(at(positions), at(given))
    assert np.isnan(at(np.asarray([np.nan, 1.0, 2.0]))[0]).all()
    refused = {
        "int32 where int64 does not exist; got 2147483648": [0, 2**31, 2**40],
        "int32 where int64 does not exist; got -2147483649": [0, -(2**31) - 1, 0],
        "float32 where float64 does not exist; got 0.1": [0.5, 0.1, 0.2],
        "float32 where float64 does not exist; got 1e[+]300": [np.nan, 0.0, 1e300],
    }
    assert_all_raise(
        (partial(at, np.asarray(numbers)), ValueError, f"positions must fit in {text}$")
        for text, numbers in refused.items()
    )
    with pytest.raises(TypeError, match="must fit in int32 where int64 does not exist; got uint32"):
        at(jnp.arange(3, dtype=jnp.uint32))
