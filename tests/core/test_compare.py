"""`compare` and `assert_same`, with mistakes planted in functions of complex numbers."""


import numpy as np
import oracle
import pytest

from rope_xp import (
    RotaryEmbedding,
    YarnScaling,
    assert_same,
    compare,
)

HEAD_DIM, BASE, FACTOR = 32, 10_000.0, 1.25
# Frequencies divided by 4, and an attention factor, so that every mistake can be made.
SCALING = YarnScaling(factor=4.0, original_max_position_embeddings=64, attention_factor=FACTOR)
ROPE = RotaryEmbedding(head_dim=HEAD_DIM, layout="half", base=BASE)
SCALED = ROPE.replace(scaling=SCALING)


def float64(frequencies):
    return np.array([float(w) for w in frequencies])


PLAIN, YARN = float64(oracle.geometric(BASE, HEAD_DIM)), float64(SCALED.inv_freq)


def angles_of(positions, frequencies, dtype="float64"):
    """Position times frequency, each and their product rounded to a dtype."""
    product = np.asarray(positions).astype(dtype)[..., None] * np.asarray(frequencies).astype(dtype)
    return product.astype(np.float64)


def rotate(x, angles, layout="half", factor=1.0):
    width = 2 * angles.shape[-1]
    rotated = oracle.rotate(x[..., :width], angles, layout)
    return np.concatenate([factor * rotated, x[..., width:]], axis=-1)


def swapped(x, positions):
    """Sine for cosine, and cosine for sine: the angle is a quarter minus the angle."""
    return rotate(x, np.pi / 2 - angles_of(positions, PLAIN))


# Each mistake: its cause, the right value, and the function that makes the mistake, of "seq dim" in float64.
MISTAKES = {
    "layout": (ROPE, lambda x, p: rotate(x, angles_of(p, PLAIN), "interleaved")),
    "base": (ROPE, lambda x, p: rotate(x, angles_of(p, float64(oracle.geometric(500_000.0, HEAD_DIM))))),
    "scaling": (SCALED, lambda x, p: rotate(x, angles_of(p, PLAIN))),
    "width": (ROPE, lambda x, p: rotate(x, angles_of(p, float64(oracle.geometric(BASE, HEAD_DIM // 2))))),
    "offset": (ROPE, lambda x, p: rotate(x, angles_of(p + 1, PLAIN))),
    "attention factor": (SCALED, lambda x, p: rotate(x, angles_of(p, YARN), factor=FACTOR**2)),
    "sincos order": (ROPE, swapped),
    "axis": (ROPE, lambda x, p: rotate(x, angles_of(p, PLAIN))),
    "phase precision": (ROPE, lambda x, p: rotate(x, angles_of(p, PLAIN, "float32"))),
    "direction": (ROPE, lambda x, p: rotate(x, -angles_of(p, PLAIN))),
}
PAIRS = {
    ("layout", "base"): (
        ROPE,
        lambda x, p: rotate(x, angles_of(p, float64(oracle.geometric(500_000.0, HEAD_DIM))), "interleaved"),
    ),
    ("layout", "offset"): (ROPE, lambda x, p: rotate(x, angles_of(p - 1, PLAIN), "interleaved")),
    ("width", "layout"): (
        ROPE,
        lambda x, p: rotate(x, angles_of(p, float64(oracle.geometric(BASE, HEAD_DIM // 2))), "interleaved"),
    ),
    ("scaling", "direction"): (SCALED, lambda x, p: rotate(x, -angles_of(p, PLAIN))),
    ("sincos order", "attention factor"): (
        SCALED,
        lambda x, p: rotate(x, np.pi / 2 - angles_of(p, YARN), factor=FACTOR**2),
    ),
    ("base", "phase precision"): (
        ROPE,
        lambda x, p: rotate(x, angles_of(p, float64(oracle.geometric(500_000.0, HEAD_DIM)), "float32")),
    ),
}


def function(xp, on_host, *, axis="tokens"):
    """A function of "seq heads dim" in a library, whose tables have an axis for heads or, by mistake, none."""

    def fn(x, positions):
        host, where = xp.numpy(x), xp.numpy(positions)
        rotated = on_host(host, where[None] if axis == "heads" else where[:, None])
        return xp.array(rotated, xp.dtype_of(x))

    return fn


@pytest.mark.parametrize("cause", MISTAKES)
def test_a_planted_mistake_is_the_first_cause(xp, cause):
    rope, on_host = MISTAKES[cause]
    fn, like = function(xp, on_host, axis="heads" if cause == "axis" else "tokens"), xp.array(np.zeros(2), "float32")
    for pair in ((fn, rope), (rope, fn)):
        report = compare(*pair, context=100_000, shape="seq heads dim", like=like)
        assert not report.same and report.causes[0] == cause, report
    assert compare(fn, fn, head_dim=HEAD_DIM, shape="seq heads dim", like=like).same
    with pytest.raises(AssertionError, match=rf"^assert_same: the function .* differ.* cause: {cause}"):
        assert_same(fn, rope, context=100_000, shape="seq heads dim", like=like)


@pytest.mark.parametrize("causes", PAIRS)
def test_two_mistakes_at_once_are_both_named(causes):
    rope, fn = PAIRS[causes]
    assert sorted(compare(fn, rope, context=100_000).causes) == sorted(causes)
