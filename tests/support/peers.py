"""What tests against packages of PyTorch share: numbers, frequencies on several axes, how far float32 may be off."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import torch
from libraries import LIBRARIES

random = LIBRARIES["torch"].random


def file_of_torchtune(*parts):
    """One of torchtune's files alone, as the package needs more than it says."""
    file = Path(importlib.util.find_spec("torchtune").origin).parent.joinpath(*parts)
    spec = importlib.util.spec_from_file_location(f"torchtune_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def block_diagonal(*rows):
    """Frequencies for several axes, one after the other, from those of each axis."""
    ends = np.cumsum([len(row) for row in rows])
    total = int(ends[-1])
    return [[0.0] * int(end - len(row)) + list(row) + [0.0] * (total - int(end)) for row, end in zip(rows, ends)]


def off_by(rope, where, roundings=4):
    """How far tables of a peer may be off ours.

    A float32 frequency of a power has four roundings together with its product: exponent, power (two), reciprocal and
    product, of which the first counts for less than one where a frequency is below 1 and is none where it is 1. Ours
    are off by 2e-7, a sine and its rounding by one unit in the last place.
    """
    w, where = (
        np.abs(np.asarray(x.detach() if isinstance(x, torch.Tensor) else x, dtype=np.float64)).reshape(rope.axes, -1)
        for x in (rope.inv_freq, where)
    )
    return (w.T @ where).max() * roundings * 2.0**-24 + 2e-7 + 2.0**-23


def rotated(table):
    """The same for numbers up to 3, rotated: two products, and on both sides four roundings of numbers up to 4.3."""
    return 6 * table + 8 * 4.3 * 2.0**-24


def gradient_off_by(table, terms, weight):
    """The same for the gradient of frequencies, a pairwise sum of so many terms, whose positions add up to `weight`.

    A term is a position times two products, 26 at most, of a `g` up to 3 and a rotated number up to 4.3.
    """
    return float(weight) * (6 * rotated(table) + 26 * (math.log2(terms) + 4) * 2.0**-24)
