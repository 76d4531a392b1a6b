"""Differences between an embedding of rope_xp and the observations of a class of transformers."""

from functools import partial

import numpy as np
import torch

import rope_xp

from .observe import vectors

TOLERANCE = 5e-5
# Both sides round the same product to float32. Then sines have an error of one ulp (2**-23, relative) in the library,
# half an ulp in rope_xp, and half an ulp for the attention factor. A rotation rounds two products and a sum below 1.
LONG_TABLES = 2 * 2.0**-23
LONG_ROTATED = 2 * LONG_TABLES + 3 * 2.0**-24


def largest(errors):
    """The largest number, or NaN if any is NaN."""
    return float(np.max([0.0, *errors]))


def differences(rope, observation, sign):
    """Largest differences of tables and of rotated queries and keys."""
    errors = {}
    if rope is None:
        raise ValueError("rope_xp rotates nothing")
    if rope.head_dim != observation.dim:
        raise ValueError(f"head_dim is {rope.head_dim}, that of transformers {observation.dim}")
    sin, cos = rope.sincos(observation.positions, like=np.zeros(1, np.float32))
    if observation.cos is not None:
        if cos.shape != observation.cos.shape:
            raise ValueError(f"tables have shape {cos.shape}, those of transformers {observation.cos.shape}")
        errors["tables"] = largest([np.abs(cos - observation.cos).max(), np.abs(sign * sin - observation.sin).max()])
    x = vectors(observation, partial(np.random.default_rng(0).uniform, -0.7, 0.7))
    theirs = observation.rotate(*torch.tensor(x))
    mine = rope.rotate(x[: len(theirs)], (sin, cos), seq_dim=2)
    errors["rotated"] = largest(np.abs(ours - np.asarray(y.detach())).max() for ours, y in zip(mine, theirs))
    return errors


def with_float32_phases(rope, observation):
    """`rope` with float32 phases, and with the float32 frequencies of transformers' buffer."""
    own = np.asarray(rope.inv_freq)
    upstream = np.asarray(observation.frequencies, dtype=np.float64)
    nearest = upstream[np.argmin(np.abs(np.abs(own)[..., None] - upstream), -1)]
    inv_freq = np.where(own == 0, 0.0, np.copysign(nearest, own)).tolist()
    names = ("head_dim", "layout", "rotary_dim", "first_channel", "blocks", "attention_factor")
    return rope_xp.RotaryEmbedding(**{n: getattr(rope, n) for n in names}, inv_freq=inv_freq, phase="float32")


def check(rope, observations, sign):
    """The largest errors of all observations, and whether they are within their bounds."""
    errors, factor = {}, max(1.0, rope.attention_factor) if rope is not None else 1.0
    if rope is not None and (difference := abs(rope.softmax_scale / observations[0].softmax - 1)) > 2.0**-50:
        raise ValueError(f"the scale of the softmax differs by {difference:.1e}")
    for observation in observations:
        for name, error in differences(rope, observation, sign).items():
            errors[name] = largest([error, errors.get(name, 0.0)])
    good = all(error <= TOLERANCE * factor for error in errors.values())
    if good and observations[0].long is not None:
        far = differences(with_float32_phases(rope, observations[0]), observations[0].long(), sign)
        errors |= {f"{name}, float32": error for name, error in far.items()}
        good = far["tables"] <= LONG_TABLES * factor and far["rotated"] <= LONG_ROTATED * factor
    return errors, good
