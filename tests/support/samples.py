"""Numbers to rotate, angles to rotate them by, and an embedding, in NumPy."""

import numpy as np

from rope_xp import RotaryEmbedding


def random(*shape, seed=0, dtype="float32"):
    """Normal numbers between -3 and 3, the same for each seed."""
    return np.random.default_rng(seed).standard_normal(shape).clip(-3, 3).astype(dtype)


def radians(*shape, seed=1):
    return np.random.default_rng(seed).uniform(-7, 7, shape)


def embedding(layout="half", **options):
    return RotaryEmbedding(**{"head_dim": 14, "layout": layout, "base": 10_000.0, **options})
