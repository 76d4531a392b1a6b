"""Which rule `identify` finds in functions of random values, and in those of rules that are computed wrongly.

The frequencies are written here from the papers' formulas. They share no code with the package.
"""

from collections import Counter
from math import ceil, exp, floor, log, pi

import ml_dtypes
import numpy as np
import pytest

from rope_xp import RotaryEmbedding, YarnScaling, identify

HEAD = 128


def geometric(base, width):
    return base ** (-np.arange(0, width, 2) / width)


def linear(base, width, factor):
    return geometric(base, width) / factor


def ntk(base, width, factor):
    return geometric(base * factor ** (width / (width - 2)), width)


def mixed_ntk(base, width, factor, exponent=1.0):
    a = log(factor) / (width / 2) ** exponent
    return geometric(base, width) * np.exp(-a * np.arange(1, width // 2 + 1) ** exponent)


def proportional(base, width, part, factor=1.0):
    return geometric(base, width) / factor * (np.arange(width // 2) < int(part * width / 2))


def ramp(base, width, length, fast=32.0, slow=1.0, truncate=True):
    """YaRN's: 0 where a frequency is kept, 1 where it is divided."""
    first, last = (width * log(length / (beta * 2 * pi)) / (2 * log(base)) for beta in (fast, slow))
    if truncate:
        first, last = floor(first), ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    return np.clip((np.arange(width // 2) - first) / max(last - first, 0.001), 0.0, 1.0)


def yarn(base, width, factor, length, reverse=False, twice=False, **options):
    divided = ramp(base, width, length, **options)
    divided = 1.0 - divided if reverse else divided
    return geometric(base, width) * (divided / factor + 1.0 - divided) ** (2 if twice else 1)


def llama3(base, width, factor, low, high, length, twice=False):
    w = geometric(base, width)
    for _ in range(2 if twice else 1):
        turns = length * w / (2 * pi)
        kept = np.clip((turns - low) / (high - low), 0.0, 1.0) if high > low else (turns >= high).astype(float)
        w = w * ((1.0 - kept) / factor + kept)
    return w


def dynamic_ntk(base, width, factor, length, seq_len):
    return geometric(base * (factor * seq_len / length - (factor - 1)) ** (width / (width - 2)), width)


def longrope(base, width, factors):
    return geometric(base, width) / factors


def rounded(dtype):
    return lambda x: np.asarray(x).astype(dtype).astype(np.float64)


FLOAT32, FLOAT16, BFLOAT16 = rounded(np.float32), rounded(np.float16), rounded(ml_dtypes.bfloat16)
# How a function computes: its frequencies, its phases and its tables.
EXACT = {
    "exact": {},
    "float32 frequencies": {"frequencies": FLOAT32},
    "float32 phases": {"frequencies": FLOAT32, "phases": FLOAT32},
    "float16 tables": {"tables": FLOAT16},
    "bfloat16 tables": {"tables": BFLOAT16},
    "bfloat16 tables of float32 phases": {"frequencies": FLOAT32, "phases": FLOAT32, "tables": BFLOAT16},
}


def function(w, layout="half", factor=1.0, frequencies=np.asarray, phases=np.asarray, tables=np.asarray, rows=None):
    """A rotation of the first channels by these frequencies. `rows` is the length of its table, if it has one."""
    w, pairs = frequencies(w), len(w)
    one, other = (
        (slice(0, pairs), slice(pairs, 2 * pairs))
        if layout == "half"
        else (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2))
    )

    def fn(x, positions):
        assert rows is None or positions.max() < rows
        angles = phases(np.asarray(positions, dtype=float)[..., None] * w)
        cos, sin = tables(factor * np.cos(angles)), tables(factor * np.sin(angles))
        y = np.array(x)
        y[..., one] = x[..., one] * cos - x[..., other] * sin
        y[..., other] = x[..., other] * cos + x[..., one] * sin
        return y

    return fn


def random_rule(random):
    """A kind of rule, its frequencies and its attention factor, with the numbers of published models."""
    width = int(random.choice([32, 64, 96, 128]))
    base = float(random.choice([10_000, 10_000, 25_000, 100_000, 150_000, 500_000, 1_000_000, 5_000_000, 8_000_000]))
    factor = float(random.choice([2, 2.5, 4, 8, 16, 32, 40]))
    length = int(random.choice([2048, 4096, 8192, 32_768]))
    kind = str(
        random.choice(
            ["plain", "linear", "ntk", "mixed ntk", "proportional", "dynamic ntk", "longrope"]
            + ["llama3", "llama3 step", "yarn", "yarn betas"] * 2
        )
    )
    paper = 0.1 * log(factor) + 1.0
    if kind == "plain":
        return kind, geometric(base, width), 1.0
    if kind == "linear":
        return kind, linear(base, width, factor), 1.0
    if kind == "ntk":
        return kind, ntk(base, width, factor), 1.0
    if kind == "mixed ntk":
        return kind, mixed_ntk(base, width, factor, float(random.choice([1.0, 0.625]))), 1.0
    if kind == "proportional":
        return (
            kind,
            proportional(base, width, float(random.choice([0.25, 0.5, 0.75])), float(random.choice([1, 8]))),
            1.0,
        )
    if kind == "dynamic ntk":
        return kind, dynamic_ntk(base, width, factor, length, int(length * random.uniform(1, 4))), 1.0
    if kind == "longrope":
        return kind, longrope(base, width, np.sort(random.uniform(1, 60, width // 2)).round(4)), 1.0
    if kind == "llama3":
        low, high = ((1, 4), (1, 2), (0.5, 4), (2, 8), (1.5, 6))[random.integers(5)]
        return kind, llama3(base, width, factor, low, high, length), 1.0
    if kind == "llama3 step":
        return kind, llama3(base, width, factor, 1, 1, length), 1.0
    fast, slow = ((32, 1), (16, 1), (32, 2), (64, 1), (24, 1.5))[0 if kind == "yarn" else random.integers(1, 5)]
    truncate = bool(random.integers(2))
    return (
        kind,
        yarn(base, width, factor, length, fast=fast, slow=slow, truncate=truncate),
        float(random.choice([paper, 1.0])),
    )


def outcome(found, w, factor):
    """What a report says of a function of these frequencies: a rule, numbers, unknown, or something wrong."""
    if found.rope is None:
        return "unknown"
    ours = np.zeros(len(w))
    got = np.asarray(found.rope.inv_freq)
    ours[: len(got)] = got[: len(w)]
    resolved = 1.0 / (found.longest + 1)  # a turn that no position shows
    roundoff = {"exact": 2.0**-24, "float32": 2.0**-24, "float16 tables": 2.0**-11, "bfloat16 tables": 2.0**-8}
    off = np.abs(ours - w) > 2.0**-19 * w + 4 * roundoff.get(found.precision, 1.0) * resolved
    if off.any() or abs((found.rope.attention_factor or 1.0) - factor) > 8 * roundoff.get(found.precision, 1.0):
        return "wrong"
    return "numbers" if found.rope.base is None else "rule"


def case(seed):
    random = np.random.default_rng(seed)
    kind, w, factor = random_rule(random)
    how = list(EXACT)[seed % len(EXACT)]
    rows = None if random.integers(3) else int(random.choice([2048, 8192, 131_072]))
    layout = str(random.choice(["half", "interleaved"]))
    fn = function(w, layout, factor, rows=rows, **EXACT[how])
    return kind, how, w, factor, rows, fn
