"""How far an embedding of ours is from what a class of transformers computed."""

import numpy as np
import torch

import rope_xp

TOLERANCE = 5e-5
# Both round one product to float32, and then each its sine: an ulp (2**-23, relative) of the library's own, a half of
# ours, a half for the product with the attention factor. Rotations add two products and a sum of numbers below 1.
LONG_TABLES = 2 * 2.0**-23
LONG_ROTATED = 2 * LONG_TABLES + 3 * 2.0**-24


def largest(errors):
    """The largest of any, and NaN where there is one."""
    return float(np.max([0.0, *errors]))


def differences(rope, seen, sign):
    """Largest differences of tables and of rotated queries and keys."""
    errors = {}
    if rope is None:
        raise ValueError("ours rotates nothing")
    if rope.head_dim != seen.dim:
        raise ValueError(f"head_dim is {rope.head_dim}, upstream's {seen.dim}")
    sin, cos = rope.sincos(seen.positions, like=np.zeros(1, np.float32))
    if seen.cos is not None:
        if cos.shape != seen.cos.shape:
            raise ValueError(f"tables have shape {cos.shape}, upstream's {seen.cos.shape}")
        errors["tables"] = largest([np.abs(cos - seen.cos).max(), np.abs(sign * sin - seen.sin).max()])
    random = np.random.default_rng(0)
    x = random.uniform(-0.7, 0.7, (3, seen.heads, seen.positions.shape[-1], seen.dim)).astype(np.float32)
    theirs = seen.rotate(*torch.tensor(x))
    mine = rope.rotate(x[: len(theirs)], (sin, cos), seq_dim=2)
    errors["rotated"] = largest(np.abs(ours - np.asarray(y.detach())).max() for ours, y in zip(mine, theirs))
    return errors


def with_float32_phases(rope, seen):
    """`rope` with the frequencies of upstream's own buffer, float32, and its float32 phases."""
    own = np.asarray(rope.inv_freq)
    theirs = np.asarray(seen.frequencies, dtype=np.float64)
    nearest = theirs[np.argmin(np.abs(np.abs(own)[..., None] - theirs), -1)]
    inv_freq = np.where(own == 0, 0.0, np.copysign(nearest, own)).tolist()
    names = ("head_dim", "layout", "rotary_dim", "first_channel", "blocks", "attention_factor")
    return rope_xp.RotaryEmbedding(**{n: getattr(rope, n) for n in names}, inv_freq=inv_freq, phase="float32")


def check(rope, seens, sign):
    """Errors of all observations, and whether they are within their bounds."""
    errors, factor = {}, max(1.0, rope.attention_factor) if rope is not None else 1.0
    if rope is not None and (apart := abs(rope.softmax_scale / seens[0].softmax - 1)) > 2.0**-50:
        raise ValueError(f"the scale of the softmax differs by {apart:.1e}")
    for seen in seens:
        for name, error in differences(rope, seen, sign).items():
            errors[name] = largest([error, errors.get(name, 0.0)])
    good = all(error <= TOLERANCE * factor for error in errors.values())
    if good and seens[0].long is not None:
        far = differences(with_float32_phases(rope, seens[0]), seens[0].long(), sign)
        errors |= {f"{name}, float32": error for name, error in far.items()}
        good = far["tables"] <= LONG_TABLES * factor and far["rotated"] <= LONG_ROTATED * factor
    return errors, good
