"""Positions of prompts for each model family. Families differ in the grids that an image or a video becomes.

`qwen2_vl` describes what all functions share. Under `jax.jit` a result is a constant of the program. With
`torch.compile`, call these functions outside of the compiled function and pass in the result.
"""

from collections.abc import Iterator

import numpy as np

from rope_xp.arrays import checks
from rope_xp.errors import public, wrong_value
from rope_xp.positions.prompts import (
    IMAGE,
    VIDEO,
    Integers,
    PromptPositions,
    Rows,
    Sizes,
    TimedGrid,
    Times,
    checked_compat,
    host_array,
    merged_grids,
    positions_of_rows,
    positions_with_grids,
    require_all_used,
    runs_of_types,
)
from rope_xp.types import Array


@public("qwen2_vl")
def qwen2_vl(
    token_types: Rows,
    image_grids: Rows | None = None,
    video_grids: Rows | None = None,
    *,
    mask: Rows | None = None,
    spatial_merge_size: int = 2,
    compat: str | None = None,
    like: Array | None = None,
) -> PromptPositions:
    """Positions of Qwen2-VL: each image or video is one grid, with time steps one position apart.

    For the model types qwen2_vl and paddleocr_vl.

    Parameters
    ----------
    token_types : list or NumPy array of int, "*batch seq"
        Type of each token, as in `mm_token_type_ids` of processors: 0 text, 1 image, 2 video, 3 audio (like text).
    image_grids, video_grids : list or NumPy array of int, "grids 3", optional
        For each image or video: the number of time steps, and height and width in patches (`image_grid_thw` and
        `video_grid_thw` of processors). Grids are in the order of their tokens, row after row of the batch.
    mask : list or NumPy array of bool or int, "*batch seq", optional
        `attention_mask` of processors: true or nonzero for tokens, false or 0 for padding. Padding has position 0.
    spatial_merge_size : int
        The number of patches per token along height and along width, as in the config of the vision tower.
    compat : {"transformers"}, optional
        Reproduce a bug of transformers 5.18: the run after a grid starts ``max(height, width)`` after the start of the
        grid, even if the grid has more time steps. Text after a long video then has the same positions as the video,
        and the delta is smaller. By default the run starts after the highest position, as in the first release of
        Qwen2-VL. Prompts with images of one time step do not differ.
    like : array, optional
        The result has its library and device; by default NumPy.

    Returns
    -------
    PromptPositions
        Positions in tokens of time, height and width, "3 *batch seq", and their delta, "*batch"; both int32.

    Raises
    ------
    ValueError
        If shapes do not match, a number is out of range, or the grids and the tokens of their type differ in number.
    TypeError
        If an argument is neither a list nor a NumPy array, or does not hold integers.

    References
    ----------
    Wang et al., Qwen2-VL (2024), arXiv:2409.12191, section 2.1. huggingface/transformers,
    `models/qwen2_vl/modeling_qwen2_vl.py`, `get_rope_index`; issues 45325 and 45381 on the text after a video.

    Examples
    --------
    >>> positions, delta = qwen2_vl([0, 1, 1, 0, 0], [[1, 2, 4]])
    >>> positions
    array([[0, 1, 1, 3, 4],
           [0, 1, 1, 3, 4],
           [0, 1, 2, 3, 4]], dtype=int32)
    >>> int(delta)  # the next token has index 5 and position 5
    0
    """
    images, videos = _in_tokens(image_grids, video_grids, spatial_merge_size)
    return positions_with_grids(token_types, mask, images, videos, compat=checked_compat(compat), like=like)


@public("qwen2_5_vl")
def qwen2_5_vl(
    token_types: Rows,
    image_grids: Rows | None = None,
    video_grids: Rows | None = None,
    *,
    positions_per_second: float | None = None,
    seconds_per_grid: Times | None = None,
    mask: Rows | None = None,
    spatial_merge_size: int = 2,
    compat: str | None = None,
    like: Array | None = None,
) -> PromptPositions:
    """Positions of Qwen2.5-VL: as `qwen2_vl`, but the time steps of a video follow its time in seconds.

    For the model types qwen2_5_vl and qwen2_5_omni (thinker only). `use_audio_in_video` mixes the tokens of a video and
    of its sound, and is not supported. Times are products in float32, truncated to integers, as in the models.
    Arguments, results and errors that are not listed here are those of `qwen2_vl`.

    Parameters
    ----------
    positions_per_second : float, optional
        `tokens_per_second` of the vision config; `position_id_per_seconds` of Qwen2.5-Omni. Required with videos.
    seconds_per_grid : list or NumPy array of float, "videos", optional
        Seconds between time steps, for each video: `second_per_grid_ts` of the processor. The default is 1.
    compat : {"transformers"}, optional
        The bug of `qwen2_vl`. Also, seconds are multiplied first by the rate, then by the time step. This rounds
        differently if the rate is not a power of two. Do not use this for Qwen2.5-Omni: there, transformers agrees with
        the default.

    Raises
    ------
    ValueError
        If `seconds_per_grid` does not have one positive number for each video.
    TypeError
        If `seconds_per_grid` is neither a list nor a NumPy array, or does not hold numbers.

    References
    ----------
    Bai et al., Qwen2.5-VL (2025), arXiv:2502.13923, section 2.1.3. huggingface/transformers,
    `models/qwen2_5_vl/modeling_qwen2_5_vl.py` and `models/qwen2_5_omni/modeling_qwen2_5_omni.py`, `get_rope_index`.

    Examples
    --------
    >>> video = [2, 2, 2, 0, 0]
    >>> qwen2_5_vl(video, video_grids=[[3, 2, 2]], positions_per_second=2, seconds_per_grid=[2.5]).positions[0]
    array([ 0,  5, 10, 11, 12], dtype=int32)
    """
    images, videos = _in_tokens(image_grids, video_grids, spatial_merge_size)
    compat = checked_compat(compat)
    timed = _scaled_times(videos, seconds_per_grid, positions_per_second, rate_first=compat is not None)
    timed = [(times.astype(np.int64), height, width) for times, height, width in timed]
    return positions_with_grids(token_types, mask, images, timed, compat=compat, like=like)


@public("qwen3_vl")
def qwen3_vl(
    token_types: Rows,
    image_grids: Rows | None = None,
    video_grids: Rows | None = None,
    *,
    mask: Rows | None = None,
    spatial_merge_size: int = 2,
    like: Array | None = None,
) -> PromptPositions:
    """Positions of Qwen3-VL and GLM-4V: each frame of a video is a grid like an image, and text tokens give its time.

    For the model types qwen3_vl, qwen3_vl_moe, qwen3_5, qwen3_5_moe, qwen4_exp, glm4v, glm4v_moe, glm46v, glm_ocr,
    cohere_compass, cosmos3_omni and cosmos3_edge. Also for glm_image with ``spatial_merge_size=1``: the grids of the
    images that it generates come last, in reverse order. The frames of a video may be adjacent or have text between
    them. Arguments, results and errors that are not listed here are those of `qwen2_vl`.

    References
    ----------
    Bai et al., Qwen3-VL (2025), arXiv:2511.21631. huggingface/transformers,
    `models/qwen3_vl/modeling_qwen3_vl.py`, `get_rope_index`.

    Examples
    --------
    Two frames of 1 by 2 tokens, each after a text token for its time:

    >>> qwen3_vl([0, 2, 2, 0, 2, 2, 0], video_grids=[[2, 2, 4]]).positions
    array([[0, 1, 1, 3, 4, 4, 6],
           [0, 1, 1, 3, 4, 4, 6],
           [0, 1, 2, 3, 4, 5, 6]], dtype=int32)
    """
    images, videos = _in_tokens(image_grids, video_grids, spatial_merge_size)
    frames = [(1, height, width) for time, height, width in videos for _ in range(time)]
    return positions_with_grids(token_types, mask, images, frames, like=like)


@public("qwen3_omni")
def qwen3_omni(
    token_types: Rows,
    image_grids: Rows | None = None,
    video_grids: Rows | None = None,
    *,
    positions_per_second: float | None = None,
    seconds_per_grid: Times | None = None,
    mask: Rows | None = None,
    spatial_merge_size: int = 2,
    like: Array | None = None,
) -> PromptPositions:
    """Positions of Qwen3-Omni: as `qwen2_5_vl`, but times and all positions after a video keep their fractions.

    For the model type qwen3_omni_moe (thinker and talker). `use_audio_in_video` mixes the tokens of a video and of its
    sound, and is not supported. Times are products in float32. Positions are sums in float64, rounded once.
    Arguments and errors that are not listed here are those of `qwen2_5_vl`; the processor calls the seconds
    `video_second_per_grid`.

    Returns
    -------
    PromptPositions
        Positions in tokens of time, height and width, "3 *batch seq", and their delta, "*batch"; both float32.

    References
    ----------
    Xu et al., Qwen3-Omni (2025), arXiv:2509.17765. huggingface/transformers,
    `models/qwen3_omni_moe/modeling_qwen3_omni_moe.py`, `get_rope_index`.

    Examples
    --------
    >>> video = [2, 2, 0]
    >>> qwen3_omni(video, video_grids=[[2, 2, 2]], positions_per_second=13, seconds_per_grid=[0.5]).positions[0]
    array([0. , 6.5, 7.5], dtype=float32)
    """
    images, videos = _in_tokens(image_grids, video_grids, spatial_merge_size)
    timed = _scaled_times(videos, seconds_per_grid, positions_per_second)
    return positions_with_grids(token_types, mask, images, timed, dtype="float32", like=like)


@public("ernie4_5_vl")
def ernie4_5_vl(
    token_types: Rows,
    image_grids: Rows | None = None,
    video_grids: Rows | None = None,
    *,
    mask: Rows | None = None,
    spatial_merge_size: int = 2,
    temporal_merge_size: int = 2,
    compat: str | None = None,
    like: Array | None = None,
) -> PromptPositions:
    """Positions of Ernie-4.5-VL: as `qwen2_vl`, but a token of a video also covers several time steps.

    For the model type ernie4_5_vl_moe.
    Arguments, results and errors that are not listed here are those of `qwen2_vl`.

    Parameters
    ----------
    temporal_merge_size : int
        The number of time steps of a video per token, as in the config of the vision tower.

    References
    ----------
    Baidu, ERNIE 4.5 Technical Report (2025). huggingface/transformers,
    `models/ernie4_5_vl_moe/modeling_ernie4_5_vl_moe.py`, `get_rope_index`.

    Examples
    --------
    >>> ernie4_5_vl([2, 2, 0], video_grids=[[4, 2, 2]]).positions[0]
    array([0, 1, 2], dtype=int32)
    """
    images, videos = _in_tokens(image_grids, video_grids, spatial_merge_size, temporal_merge_size)
    return positions_with_grids(token_types, mask, images, videos, compat=checked_compat(compat), like=like)


@public("hunyuan_vl")
def hunyuan_vl(
    token_types: Rows,
    image_grids: Rows | None = None,
    *,
    mask: Rows | None = None,
    axes: int = 4,
    spatial_merge_size: int = 2,
    compat: str | None = None,
    like: Array | None = None,
) -> PromptPositions:
    """Positions of Hunyuan-VL: the token index, and for image tokens also column, row and number of the image.

    For the model type hunyuan_vl (HunyuanOCR). Each row of an image ends with an extra token, so that an image is one
    column wider than its grid. One token before an image and one after it may also have the type of images; they have
    positions like text. There must be text between two images. Videos are not supported.
    Arguments and errors that are not listed here are those of `qwen2_vl`.

    Parameters
    ----------
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
        If `axes` is less than 3, or a video or two images without text between them are given.

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


def _in_tokens(images: object, videos: object, spatial: int, temporal: int = 1) -> tuple[list[Sizes], list[Sizes]]:
    """The grids of images and of videos. Patches are merged to tokens, in time only those of videos."""
    return merged_grids("image_grids", images, spatial), merged_grids("video_grids", videos, spatial, temporal)


def _scaled_times(
    grids: list[Sizes], seconds: Times | None, rate: float | None, rate_first: bool = False
) -> list[TimedGrid]:
    """The grids of videos, with time steps `seconds` apart (one number per video) at `rate` positions per second."""
    if rate is None and grids:
        raise wrong_value("positions_per_second must be given with videos; got None")
    rate = checks.positive("positions_per_second", 1.0 if rate is None else rate)
    seconds = [1.0] * len(grids) if seconds is None else seconds
    seconds = host_array("seconds_per_grid", seconds, "iuf", axes=(1,)).astype(np.float64)
    if len(seconds) != len(grids):
        raise wrong_value(f"seconds_per_grid must have one number for each of {len(grids)} videos; got {len(seconds)}")
    scaled = []
    for second, (time, height, width) in zip(seconds.tolist(), grids):
        second = checks.positive("seconds_per_grid", second)
        if second * rate * time >= 2**31:
            raise wrong_value(f"positions must fit in int32; got {time} time steps of {second} seconds")
        # Times are truncated later, so that a rounding error can change them by 1. The dtype and the order of products
        # must therefore be those of the models.
        step, second, factor = np.arange(time, dtype=np.float32), np.float32(second), np.float32(rate)
        scaled.append((step * (second * factor) if rate_first else step * second * factor, height, width))
    return scaled


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
