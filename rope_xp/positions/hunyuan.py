"""Positions of Hunyuan-VL prompts: the index of each token, and further axes for images."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from rope_xp.arrays import checks
from rope_xp.errors import public, wrong_value
from rope_xp.positions.prompts import (
    IMAGE,
    VIDEO,
    Integers,
    PromptPositions,
    Sizes,
    checked_compat,
    merged_grids,
    positions_of_rows,
    require_all_used,
    runs_of_types,
)
from rope_xp.types import Array


@public("hunyuan_vl")
def hunyuan_vl(
    token_types: Any,
    image_grids: Any = None,
    *,
    mask: Any = None,
    axes: int = 4,
    spatial_merge_size: int = 2,
    compat: str | None = None,
    like: Array | None = None,
) -> PromptPositions:
    """Positions of Hunyuan-VL: the token index, and for image tokens also column, row and number of the image.

    For the model type hunyuan_vl (HunyuanOCR). Each row of an image ends with an extra token, so that an image is one
    column wider than its grid. One token before an image and one after it may also have the type of images; they have
    positions like text.

    Parameters
    ----------
    token_types, image_grids, mask, spatial_merge_size, like
        As in `qwen2_vl`. Videos are not supported. There must be text between two images.
    axes : int
        The number of position axes: the length of `mrope_section`. The last three axes are column, row and image
        number; the axes before them are the index.
    compat : {"transformers"}, optional
        Reproduce a bug of transformers 5.18: images are numbered through the whole batch, so that the positions of a
        row depend on the rows before it, and the delta depends on the highest position. By default the images of each
        row are numbered from 0, as in vLLM. The delta is then 0, because the position of a text token is its index.

    Returns
    -------
    PromptPositions
        Positions in tokens, "axes *batch seq", and their delta, "*batch"; both int32.

    Raises
    ------
    ValueError
        As in `qwen2_vl`; or if `axes` is less than 3, or a video or two images without text between them are given.
    TypeError
        As in `qwen2_vl`.

    References
    ----------
    huggingface/transformers, `models/hunyuan_vl/modeling_hunyuan_vl.py`, `get_rope_index`. vllm-project/vllm,
    `vllm/model_executor/models/hunyuan_vision.py`, `get_xdrope_input_positions`.

    Examples
    --------
    >>> hunyuan_vl([0, 1, 1, 1, 1, 0], [[1, 4, 2]]).positions
    array([[0, 1, 2, 3, 4, 5],
           [0, 0, 1, 0, 1, 5],
           [0, 0, 0, 1, 1, 5],
           [0, 0, 0, 0, 0, 5]], dtype=int32)
    """
    axes = checks.count("axes", axes)
    if axes < 3:
        raise wrong_value(f"axes must be at least 3, for column, row and image; got {axes}")
    grids = iter(merged_grids("image_grids", image_grids, spatial_merge_size))
    number_through_batch = checked_compat(compat) is not None
    image = 0

    def row_positions(types: Integers) -> tuple[Integers, int]:
        nonlocal image
        image = image if number_through_batch else 0
        positions = np.tile(np.arange(len(types)), (axes, 1))
        for kind, start, tokens in runs_of_types(types):
            if kind == VIDEO:
                raise wrong_value("token_types must be 0 (text), 1 (image) or 3 (audio); got 2 (video)")
            if kind == IMAGE:
                rows, columns = _next_image(grids, tokens)
                cells = np.arange(rows * columns)
                start += (tokens - len(cells)) // 2
                numbers = np.full_like(cells, image)
                positions[-3:, start : start + len(cells)] = [cells % columns, cells // columns, numbers]
                image += 1
        return positions, int(positions.max(initial=-1)) + 1 - len(types) if number_through_batch else 0

    result = positions_of_rows(token_types, mask, row_positions, axes=axes, dtype="int32", like=like)
    require_all_used("image_grids", grids)
    return result


def _next_image(grids: Iterator[Sizes], tokens: int) -> tuple[int, int]:
    """The rows and columns of Hunyuan-VL's next image, which must fill a run of that many tokens."""
    grid = next(grids, None)
    if grid is None:
        raise wrong_value("image_grids must have a grid for every run of image tokens; got too few grids")
    time, height, width = grid
    if time != 1:
        raise wrong_value(f"image_grids must have one time step; got {time}")
    cells = height * (width + 1)
    if tokens not in (cells, cells + 2):
        wanted = f"{cells} or {cells + 2} tokens for a grid of {height} x {width}"
        raise wrong_value(f"a run of image tokens must have {wanted}; got {tokens}")
    return height, width + 1
