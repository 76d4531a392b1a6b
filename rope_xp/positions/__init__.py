"""Where tokens are: arrays of positions. An offset, a packed batch, a padded batch, a grid are only other positions.

Every function is pure and returns int32, or int64 where the array that says where to start is int64, or float32 where
coordinates or times are real numbers. With `like` the result is of that array's library and device; without, it follows
the array argument, or is NumPy's, which goes with any `x`. Under jit give `like`: NumPy positions become constants of
the program.

`sequence` has texts, `grids` images and videos, `multimodal` prompts of both. Several position axes come first.

Values that can be read, Python's and NumPy's, are checked. Those of other arrays are not: consecutive positions end at
the greatest integer of their dtype, boundaries must begin with 0 and not fall, and the last one must be `total`.
"""

from rope_xp.positions._grids import augment, grid, join, normalized
from rope_xp.positions._multimodal import (
    PromptPositions,
    ernie4_5_vl,
    hunyuan_vl,
    prompt,
    qwen2_5_vl,
    qwen2_vl,
    qwen3_omni,
    qwen3_vl,
)
from rope_xp.positions._sequence import (
    consecutive,
    context_parallel,
    from_cu_seqlens,
    from_lengths,
    from_mask,
)

__all__ = [
    "PromptPositions",
    "augment",
    "consecutive",
    "context_parallel",
    "ernie4_5_vl",
    "from_cu_seqlens",
    "from_lengths",
    "from_mask",
    "grid",
    "hunyuan_vl",
    "join",
    "normalized",
    "prompt",
    "qwen2_5_vl",
    "qwen2_vl",
    "qwen3_omni",
    "qwen3_vl",
]
