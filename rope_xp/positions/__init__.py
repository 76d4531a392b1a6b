"""Functions that make arrays of positions, in tokens: for offsets, packed and padded batches, grids, and prompts.

All functions are pure. Results are int32; int64 if an array argument with starts, lengths or coordinates is int64; or
float32 if coordinates or times are real numbers. With `like`, the result has the library and device of that array.
Without `like`, it has those of the array argument, or is a NumPy array, which goes with any `x`. Pass `like` under jit:
NumPy positions become constants of the program. Several position axes come first: "axes *batch seq".

- Texts: `consecutive`, `from_mask`, `from_lengths`, `from_cu_seqlens`, `context_parallel`.
- Images and videos: `grid`, `normalized`, `join`, `augment`.
- Prompts of text, images and videos: `prompt`, `qwen2_vl`, `qwen2_5_vl`, `qwen3_vl`, `qwen3_omni`, `ernie4_5_vl`,
  `hunyuan_vl`.

Values of Python numbers and NumPy arrays are checked. Values of other arrays are not read. For these, consecutive
positions stop at the greatest integer of their dtype, and the caller must make sure that boundaries start with 0, never
decrease, and end with `total`.
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
