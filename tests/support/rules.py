"""Scaling rules, and their frequencies by the papers' formulas."""

from functools import partial

import formulas
import numpy as np
from formulas import llama3, yarn
from hypothesis import strategies as st

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

ORIGINAL = "original_max_position_embeddings"
BASE, DIM = 500_000.0, 128

YARN = {"factor": 40.0, ORIGINAL: 4096}
YARN_8K = partial(YarnScaling, factor=4.0, original_max_position_embeddings=8192)
LLAMA = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 8192}
# Rules that few random numbers give.
EDGES = [
    # A ramp beyond the pairs, one that ends at the limit, and one that begins before the pairs.
    (YARN_8K(original_max_position_embeddings=8_000_000), yarn(BASE, DIM, 4, 8_000_000)),
    (YARN_8K(original_max_position_embeddings=8_000_000, beta_slow=1e-7), yarn(BASE, DIM, 4, 8_000_000, 32, 1e-7)),
    (YARN_8K(original_max_position_embeddings=64), yarn(BASE, DIM, 4, 64)),
    (
        YARN_8K(factor=40.0, original_max_position_embeddings=64, beta_fast=4, beta_slow=2),
        yarn(BASE, DIM, 40, 64, 4, 2),
    ),
    (YARN_8K(beta_fast=2, beta_slow=2, truncate=False), yarn(BASE, DIM, 4, 8192, 2, 2, truncate=False)),  # a step
    (Llama3Scaling(**{**LLAMA, "high_freq_factor": 1.0}), llama3(BASE, DIM, 8, 1, 1, 8192)),  # without a passage
]

# Parameters of YaRN: those of the frequencies, and those of the magnitude.
RAMPS = st.sampled_from([{}, {}, {"truncate": False}, {"beta_fast": 20.0, "beta_slow": 0.75}]) | st.tuples(
    st.floats(0.5, 4.0), st.floats(2.0, 32.0)
).map(lambda drawn: {"beta_fast": drawn[0] * drawn[1], "beta_slow": drawn[0]})
MAGNITUDES = [{}, {}, {"attention_factor": 1.25}, {"attention_factor": 1.0}, {"mscale": 0.75, "mscale_all_dim": 0.5}]
MAGNITUDES += [{"attention_factor": 1.2, "mscale_all_dim": 0.7}]
# Ends of Llama 3's passage, of which engines may have one pair alone.
PASSAGES = st.sampled_from([(1.0, 4.0), (1.0, 4.0), (0.5, 3.0)]) | st.tuples(
    st.floats(0.5, 2.0), st.floats(1.5, 8.0)
).map(lambda drawn: (drawn[0], drawn[0] * drawn[1]))
RULES = ("none", "linear", "ntk", "mixed", "dynamic", "yarn", "llama3", "longrope", "proportional")


@st.composite
def rules(draw, base, width, factor, length, names=RULES):
    """A rule, or None, with this factor and trained length if it has one, and what the formula makes of a base."""
    name = draw(st.sampled_from(names))
    if name == "linear":
        return LinearScaling(factor=factor), formulas.linear(base, width, factor)
    if name == "ntk":
        return NTKScaling(factor=factor), formulas.ntk(base, width, factor)
    if name == "mixed":
        mixed_b = draw(st.sampled_from([1.0, 0.625]))
        return MixedNTKScaling(factor=factor, mixed_b=mixed_b), formulas.mixed_ntk(base, width, factor, mixed_b)
    if name == "dynamic":
        seq_len = draw(st.none() | st.integers(1, 200_000))
        rule = DynamicNTKScaling(factor=factor, max_position_embeddings=length, seq_len=seq_len)
        return rule, formulas.dynamic_ntk(base, width, factor, length, max(seq_len or 0, length))
    if name == "yarn":
        ramp, magnitude = draw(RAMPS), draw(st.sampled_from(MAGNITUDES))
        names = {"beta_fast": "fast", "beta_slow": "slow", "truncate": "truncate"}
        ends = {names[key]: value for key, value in ramp.items()}
        return YarnScaling(factor=factor, **{ORIGINAL: length}, **ramp, **magnitude), yarn(
            base, width, factor, length, **ends
        )
    if name == "llama3":
        (low, high), original = draw(PASSAGES), draw(st.sampled_from([8192, length]))
        rule = Llama3Scaling(factor=factor, low_freq_factor=low, high_freq_factor=high, **{ORIGINAL: original})
        return rule, llama3(base, width, factor, low, high, original)
    if name == "longrope":
        ends = draw(st.tuples(*[st.floats(0.5, 9.0)] * 4))
        short, long = (tuple(np.linspace(*each, width // 2).tolist()) for each in (ends[:2], ends[2:]))
        seq_len = draw(st.sampled_from([None, length, length + 1]))
        lists = {"short_factor": short, "long_factor": long, "seq_len": seq_len}
        used = long if seq_len == length + 1 else short
        return LongRopeScaling(factor=factor, **{ORIGINAL: length}, **lists), formulas.longrope(base, width, used)
    if name == "proportional":
        part = draw(st.sampled_from([0.25, 0.3, 0.5, 1.0]))
        rule = ProportionalScaling(partial_rotary_factor=part, factor=factor)
        return rule, formulas.proportional(base, width, part, factor)
    return None, formulas.geometric(base, width)
