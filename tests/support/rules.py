"""Scaling rules, and their frequencies by the papers' formulas."""

from functools import partial

from formulas import dynamic_ntk, geometric, linear, llama3, longrope, mixed_ntk, ntk, proportional, yarn

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

BASE, DIM = 500_000.0, 128

SHORT, LONG = [1.0 + j / 64 for j in range(64)], [1.0 + j for j in range(64)]
LONGROPE = {"short_factor": SHORT, "long_factor": LONG, "original_max_position_embeddings": 4096, "factor": 32.0}
YARN = {"factor": 40.0, "original_max_position_embeddings": 4096}
DYNAMIC = partial(DynamicNTKScaling, factor=2.0, max_position_embeddings=4096)
YARN_8K = partial(YarnScaling, factor=4.0, original_max_position_embeddings=8192)
LLAMA = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
RULES = [
    (LinearScaling(factor=8.0), linear(BASE, DIM, 8)),
    (NTKScaling(factor=8.0), ntk(BASE, DIM, 8)),
    (MixedNTKScaling(factor=8.0), mixed_ntk(BASE, DIM, 8)),
    (MixedNTKScaling(factor=8.0, mixed_b=0.625), mixed_ntk(BASE, DIM, 8, 0.625)),
    (DYNAMIC(), geometric(BASE, DIM)),
    (DYNAMIC(seq_len=100), geometric(BASE, DIM)),
    (DYNAMIC(seq_len=10_000), dynamic_ntk(BASE, DIM, 2, 4096, 10_000)),
    (YARN_8K(), yarn(BASE, DIM, 4, 8192)),
    (YARN_8K(truncate=False), yarn(BASE, DIM, 4, 8192, truncate=False)),
    # A ramp beyond the pairs, one that ends at the limit, and one that begins before the pairs.
    (YARN_8K(original_max_position_embeddings=8_000_000), yarn(BASE, DIM, 4, 8_000_000)),
    (YARN_8K(original_max_position_embeddings=8_000_000, beta_slow=1e-7), yarn(BASE, DIM, 4, 8_000_000, 32, 1e-7)),
    (YARN_8K(original_max_position_embeddings=64), yarn(BASE, DIM, 4, 64)),
    (
        YARN_8K(factor=40.0, original_max_position_embeddings=64, beta_fast=4, beta_slow=2),
        yarn(BASE, DIM, 40, 64, 4, 2),
    ),
    (YARN_8K(beta_fast=2, beta_slow=2, truncate=False), yarn(BASE, DIM, 4, 8192, 2, 2, truncate=False)),  # a step
    (Llama3Scaling(**LLAMA), llama3(BASE, DIM, 8, 1, 4, 8192)),
    (Llama3Scaling(**dict(zip(LLAMA, (32.0, 0.125, 0.5, 1024)))), llama3(BASE, DIM, 32, 0.125, 0.5, 1024)),
    (Llama3Scaling(**{**LLAMA, "high_freq_factor": 1.0}), llama3(BASE, DIM, 8, 1, 1, 8192)),  # without a passage
    (LongRopeScaling(**LONGROPE), longrope(BASE, DIM, SHORT)),
    (LongRopeScaling(**LONGROPE, seq_len=4096), longrope(BASE, DIM, SHORT)),
    (LongRopeScaling(**LONGROPE, seq_len=4097), longrope(BASE, DIM, LONG)),
    (ProportionalScaling(partial_rotary_factor=0.3, factor=2.0), proportional(BASE, DIM, 0.3, 2)),
]
# Those whose parameters tests of random values do not draw. They take the values above.
DRAWN = (LinearScaling, NTKScaling, DynamicNTKScaling, YarnScaling, Llama3Scaling, LongRopeScaling, ProportionalScaling)
OTHERS = [(rule, truth.tolist()) for rule, truth in RULES if type(rule) not in DRAWN]
