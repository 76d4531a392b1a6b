"""What float32 and bfloat16 get wrong at large positions."""

from typing import Any, NamedTuple

import numpy as np

# How many positions before the context are tried. Errors of neighbouring positions are as good as random.
TRIED = 1024


class PhaseError(NamedTuple):
    """The largest error of a phase, in radians, and the pair that has it."""

    radians: float
    pair: int


def float32_error(rope: Any, context: int) -> PhaseError | None:
    """The largest error of ``float32(position) * float32(frequency)`` at the last positions of a context.

    The products in float64 serve as exact: their error is 2**29 times smaller.
    """
    frequencies = rope._frequencies
    if not frequencies.are_floats:
        return None
    positions = np.arange(max(0, context - TRIED), context, dtype=np.float64)[:, None]
    errors = np.zeros(frequencies.pairs)
    for row in frequencies.rows:
        w = np.abs(np.asarray(row.inv_freq, np.float64)).reshape(-1)  # "pairs", or "heads pairs"
        products = positions.astype(np.float32) * w.astype(np.float32)
        largest = np.abs(products.astype(np.float64) - positions * w).max(axis=0).reshape(-1, frequencies.pairs)
        errors = np.maximum(errors, largest.max(axis=0))
    pair = int(errors.argmax())
    return PhaseError(float(errors[pair]), pair)


def bfloat16_step(context: int) -> int:
    """The distance of neighbouring bfloat16 numbers at the last position of a context, in tokens; at least 1.

    They have 8 bits.
    """
    return 1 << max((context - 1).bit_length() - 8, 0)
