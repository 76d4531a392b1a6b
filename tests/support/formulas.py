"""Scaling rules by the formulas of the papers, in NumPy: radians per token of each pair. No code of the package."""

from math import ceil, floor, log, pi

import numpy as np


def geometric(base, width):
    return base ** (-np.arange(0, width, 2) / width)


def linear(base, width, factor):
    return geometric(base, width) / factor


def ntk(base, width, factor):
    return geometric(base * factor ** (width / (width - 2)), width)


def mixed_ntk(base, width, factor, exponent=1.0):
    a = log(factor) / (width / 2) ** exponent
    return geometric(base, width) * np.exp(-a * np.arange(1, width // 2 + 1) ** exponent)


def dynamic_ntk(base, width, factor, length, seq_len):
    return ntk(base, width, factor * seq_len / length - (factor - 1))


def proportional(base, width, part, factor=1.0):
    return geometric(base, width) / factor * (np.arange(width // 2) < int(part * width / 2))


def longrope(base, width, factors):
    return geometric(base, width) / factors


def ramp(base, width, length, fast=32.0, slow=1.0, truncate=True):
    """YaRN's, arXiv:2309.00071, equations 17 to 23: 0 where a frequency is kept, 1 where it is divided."""
    first, last = (width * log(length / (turns * 2 * pi)) / (2 * log(base)) for turns in (fast, slow))
    first, last = (floor(first), ceil(last)) if truncate else (first, last)
    first, last = max(first, 0), min(last, width - 1)
    last += 0.001 * (first == last)
    return np.clip((np.arange(width // 2) - first) / (last - first), 0.0, 1.0)


def yarn(base, width, factor, length, *ends, **options):
    divided = ramp(base, width, length, *ends, **options)
    return geometric(base, width) * (divided / factor + 1.0 - divided)


def by_wavelength(w, factor, low, high, length):
    """Llama 3's, arXiv:2407.21783: long wavelengths are divided, short ones kept, those between blended."""
    turns = length * w / (2 * pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0) if high > low else (turns >= high).astype(float)
    return w * ((1.0 - kept) / factor + kept)


def llama3(base, width, factor, low, high, length):
    return by_wavelength(geometric(base, width), factor, low, high, length)
