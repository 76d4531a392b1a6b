"""Scaling rules, and their frequencies in mpmath, written from the papers' formulas."""

from functools import partial

import oracle

from rope_xp import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    MixedNTKScaling,
    NTKScaling,
    ProportionalScaling,
    YarnScaling,
)

mp = oracle.mpmath
BASE, DIM = 500_000.0, 128


def powers(base=BASE, dim=DIM):
    return oracle.geometric(base, dim)


def yarn(factor, length, fast=32, slow=1, truncate=True):
    """arXiv:2309.00071, equations 17 to 23, with the ends of the ramp as in the authors' code."""
    ends = [DIM * mp.log(length / (beta * 2 * mp.pi)) / (2 * mp.log(BASE)) for beta in (fast, slow)]
    low, high = (mp.floor(ends[0]), mp.ceil(ends[1])) if truncate else ends
    low, high = max(low, 0), min(high, DIM - 1)
    high = low + mp.mpf("0.001") if low == high else high
    keep = [1 - min(max((j - low) / (high - low), 0), 1) for j in range(DIM // 2)]
    return [w / factor * (1 - k) + w * k for w, k in zip(powers(), keep)]


def llama3(factor, low, high, length):
    """arXiv:2407.21783, by wavelengths as in the reference implementation."""
    result = []
    for w in powers():
        wavelength = 2 * mp.pi / w
        if wavelength > length / mp.mpf(low):
            result.append(w / factor)
        elif wavelength < length / mp.mpf(high):
            result.append(w)
        else:
            smooth = (length / wavelength - low) / (mp.mpf(high) - low)
            result.append((1 - smooth) * w / factor + smooth * w)
    return result


SHORT, LONG = [1.0 + j / 64 for j in range(64)], [1.0 + j for j in range(64)]
LONGROPE = {"short_factor": SHORT, "long_factor": LONG, "original_max_position_embeddings": 4096, "factor": 32.0}
YARN = {"factor": 40.0, "original_max_position_embeddings": 4096}
DYNAMIC = partial(DynamicNTKScaling, factor=2.0, max_position_embeddings=4096)
YARN_8K = partial(YarnScaling, factor=4.0, original_max_position_embeddings=8192)
LLAMA = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
NTK = mp.mpf(DIM) / (DIM - 2)


def mixed_ntk(b):
    return [w / mp.exp(mp.log(8) / mp.mpf(DIM / 2) ** b * mp.mpf(j + 1) ** b) for j, w in enumerate(powers())]


RULES = [
    (LinearScaling(factor=8.0), [w / 8 for w in powers()]),
    (NTKScaling(factor=8.0), powers(BASE * mp.mpf(8) ** NTK)),
    (MixedNTKScaling(factor=8.0), mixed_ntk(mp.mpf(1))),
    (MixedNTKScaling(factor=8.0, mixed_b=0.625), mixed_ntk(mp.mpf(0.625))),
    (DYNAMIC(), powers()),
    (DYNAMIC(seq_len=100), powers()),
    (DYNAMIC(seq_len=10_000), powers(BASE * (2 * mp.mpf(10_000) / 4096 - 1) ** NTK)),
    (YARN_8K(), yarn(4, 8192)),
    (YARN_8K(truncate=False), yarn(4, 8192, truncate=False)),
    (YARN_8K(original_max_position_embeddings=8_000_000), yarn(4, 8_000_000)),  # a ramp beyond the pairs
    (
        YARN_8K(original_max_position_embeddings=8_000_000, beta_slow=1e-7),
        yarn(4, 8_000_000, slow=1e-7),
    ),  # at the limit
    (YARN_8K(factor=40.0, original_max_position_embeddings=64, beta_fast=4, beta_slow=2), yarn(40, 64, 4, 2)),
    (YARN_8K(original_max_position_embeddings=64), yarn(4, 64)),  # a ramp that begins before the pairs
    (YARN_8K(beta_fast=2, beta_slow=2, truncate=False), yarn(4, 8192, 2, 2, truncate=False)),  # a step
    (Llama3Scaling(**LLAMA), llama3(8, 1, 4, 8192)),
    (Llama3Scaling(**dict(zip(LLAMA, (32.0, 0.125, 0.5, 1024)))), llama3(32, 0.125, 0.5, 1024)),
    (Llama3Scaling(**{**LLAMA, "high_freq_factor": 1.0}), llama3(8, 1, 1, 8192)),  # without a passage
    (LongRopeScaling(**LONGROPE), [w / s for w, s in zip(powers(), SHORT)]),
    (LongRopeScaling(**LONGROPE, seq_len=4096), [w / s for w, s in zip(powers(), SHORT)]),
    (LongRopeScaling(**LONGROPE, seq_len=4097), [w / s for w, s in zip(powers(), LONG)]),
    (ProportionalScaling(partial_rotary_factor=0.3, factor=2.0), [w / 2 for w in powers()[:19]] + [0] * 45),
]
# Those whose parameters tests of random values do not draw. They take the values above.
DRAWN = (LinearScaling, NTKScaling, DynamicNTKScaling, YarnScaling, Llama3Scaling, LongRopeScaling, ProportionalScaling)
OTHERS = [(rule, [float(w) for w in truth]) for rule, truth in RULES if type(rule) not in DRAWN]
