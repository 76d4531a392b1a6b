"""Functions that make arrays of positions, in tokens: for offsets, packed and padded batches, grids, and prompts.

- Texts: `consecutive`, `from_mask`, `from_lengths`, `from_cu_seqlens`, `context_parallel`.
- Images and videos: `grid`, `normalized`, `join`, `augment`.
- Prompts of text, images and videos: `prompt`, `qwen2_vl`, `qwen2_5_vl`, `qwen3_vl`, `qwen3_omni`, `ernie4_5_vl`,
  `hunyuan_vl`.

All functions are pure, except `augment` with a generator. If there are several position axes, they come first: "axes
*batch seq".

The dtype of the result is int32. It is int64 if an array of starts is int64 or uint32, or one of lengths or coordinates
that is not NumPy's; and float32 if coordinates or times are real numbers.

The library and device of the result are those of `like`; without `like`, those of the array argument; without arrays,
NumPy. NumPy positions work with any `x`. Under jit, pass `like`: NumPy positions become constants of the program.

Python numbers and NumPy arrays are checked, and so are lengths and boundaries in eager PyTorch tensors on the CPU. The
values of other arrays are never read. For them, positions stop at the greatest integer of their dtype, those of grids
wrap around, and you must make sure that `cu_seqlens` starts with 0, never decreases and ends with `total`, that a rank
is less than the number of ranks, and that packed sequences can be split evenly.
"""

from rope_xp.positions.grids import augment, grid, join, normalized
from rope_xp.positions.multimodal import ernie4_5_vl, hunyuan_vl, qwen2_5_vl, qwen2_vl, qwen3_omni, qwen3_vl
from rope_xp.positions.prompts import PromptPositions, prompt
from rope_xp.positions.sequence import consecutive, context_parallel, from_cu_seqlens, from_lengths, from_mask

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

for _name in __all__:
    globals()[_name].__module__ = __name__  # the module that help and pickles show
