"""Positions of prompts for each model family. Families differ in the grids that an image or a video becomes.

All arguments are lists or NumPy arrays, because their values are read on the host. Results are int32, or float32 for
`qwen3_omni`. Under `jax.jit` a result is a constant of the program. With `torch.compile`, call these functions outside
of the compiled function and pass in the result.

`qwen2_vl` describes the arguments that all functions share. Grids are in patches, as processors return them. A token
may merge several patches: `spatial_merge_size` is the number of patches per token along each side.
"""

from typing import Any

import numpy as np

from rope_xp.arrays import checks
from rope_xp.errors import public, wrong_value
from rope_xp.positions.prompts import (
    PromptPositions,
    Sizes,
    TimedGrid,
    checked_compat,
    host_array,
    merged_grids,
    positions_with_grids,
)
from rope_xp.types import Array


@public("qwen2_vl")
def qwen2_vl(
    token_types: Any,
    image_grids: Any = None,
    video_grids: Any = None,
    *,
    mask: Any = None,
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
        grid, even if the grid has more time steps. Text after a long video then has the same positions as the video;
        the delta is not affected. By default the run starts after the highest position, as in the first release of
        Qwen2-VL. Prompts without videos do not differ.
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
    token_types: Any,
    image_grids: Any = None,
    video_grids: Any = None,
    *,
    positions_per_second: float | None = None,
    seconds_per_grid: Any = None,
    mask: Any = None,
    spatial_merge_size: int = 2,
    compat: str | None = None,
    like: Array | None = None,
) -> PromptPositions:
    """Positions of Qwen2.5-VL: as `qwen2_vl`, but the time steps of a video follow its time in seconds.

    For the model types qwen2_5_vl and qwen2_5_omni (thinker only). `use_audio_in_video` mixes the tokens of a video and
    of its sound, and is not supported. Times are products in float32, truncated to integers, as in the models.

    Parameters
    ----------
    token_types, image_grids, video_grids, mask, spatial_merge_size, like
        As in `qwen2_vl`.
    positions_per_second : float, optional
        `tokens_per_second` of the vision config; `position_id_per_seconds` of Qwen2.5-Omni. Required with videos.
    seconds_per_grid : list or NumPy array of float, "videos", optional
        Seconds between time steps, for each video: `second_per_grid_ts` of the processor. The default is 1.
    compat : {"transformers"}, optional
        As in `qwen2_vl`. Also, seconds are multiplied first by the rate, then by the time step. This rounds differently
        if the rate is not a power of two. Do not use this for Qwen2.5-Omni: there, transformers agrees with the
        default.

    Returns
    -------
    PromptPositions
        Positions in tokens of time, height and width, "3 *batch seq", and their delta, "*batch"; both int32.

    Raises
    ------
    ValueError
        As in `qwen2_vl`; or if `seconds_per_grid` does not have one positive number for each video.
    TypeError
        As in `qwen2_vl`; or if `seconds_per_grid` is neither a list nor a NumPy array, or does not hold numbers.

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
    token_types: Any,
    image_grids: Any = None,
    video_grids: Any = None,
    *,
    mask: Any = None,
    spatial_merge_size: int = 2,
    like: Array | None = None,
) -> PromptPositions:
    """Positions of Qwen3-VL and GLM-4V: each frame of a video is a grid like an image, and text tokens give its time.

    For the model types qwen3_vl, qwen3_vl_moe, qwen3_5, qwen3_5_moe, qwen4_exp, glm4v, glm4v_moe, glm46v, glm_ocr,
    cohere_compass, cosmos3_omni and cosmos3_edge. Also for glm_image with ``spatial_merge_size=1``: the grids of the
    images that it generates come last, in reverse order.

    Parameters
    ----------
    token_types, image_grids, video_grids, mask, spatial_merge_size, like
        As in `qwen2_vl`. The frames of a video may be adjacent or have text between them.

    Returns
    -------
    PromptPositions
        Positions in tokens of time, height and width, "3 *batch seq", and their delta, "*batch"; both int32.

    Raises
    ------
    ValueError, TypeError
        As in `qwen2_vl`.

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
    token_types: Any,
    image_grids: Any = None,
    video_grids: Any = None,
    *,
    positions_per_second: float | None = None,
    seconds_per_grid: Any = None,
    mask: Any = None,
    spatial_merge_size: int = 2,
    like: Array | None = None,
) -> PromptPositions:
    """Positions of Qwen3-Omni: as `qwen2_5_vl`, but times and all positions after a video keep their fractions.

    For the model type qwen3_omni_moe (thinker and talker). `use_audio_in_video` mixes the tokens of a video and of its
    sound, and is not supported. Times are products in float32. Positions are sums in float64, rounded once.

    Parameters
    ----------
    token_types, image_grids, video_grids, mask, spatial_merge_size, like
        As in `qwen2_vl`.
    positions_per_second : float, optional
        `position_id_per_seconds` of the config. Required with videos.
    seconds_per_grid : list or NumPy array of float, "videos", optional
        Seconds between time steps, for each video: `video_second_per_grid` of the processor. The default is 1.

    Returns
    -------
    PromptPositions
        Positions in tokens of time, height and width, "3 *batch seq", and their delta, "*batch"; both float32.

    Raises
    ------
    ValueError, TypeError
        As in `qwen2_5_vl`.

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
    token_types: Any,
    image_grids: Any = None,
    video_grids: Any = None,
    *,
    mask: Any = None,
    spatial_merge_size: int = 2,
    temporal_merge_size: int = 2,
    compat: str | None = None,
    like: Array | None = None,
) -> PromptPositions:
    """Positions of Ernie-4.5-VL: as `qwen2_vl`, but a token of a video also covers several time steps.

    For the model type ernie4_5_vl_moe.

    Parameters
    ----------
    token_types, image_grids, video_grids, mask, spatial_merge_size, compat, like
        As in `qwen2_vl`.
    temporal_merge_size : int
        The number of time steps of a video per token, as in the config of the vision tower.

    Returns
    -------
    PromptPositions
        Positions in tokens of time, height and width, "3 *batch seq", and their delta, "*batch"; both int32.

    Raises
    ------
    ValueError, TypeError
        As in `qwen2_vl`.

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


def _in_tokens(images: object, videos: object, spatial: int, temporal: int = 1) -> tuple[list[Sizes], list[Sizes]]:
    """The grids of images and of videos. Patches are merged to tokens, in time only those of videos."""
    return merged_grids("image_grids", images, spatial), merged_grids("video_grids", videos, spatial, temporal)


def _scaled_times(grids: list[Sizes], seconds: object, rate: float | None, rate_first: bool = False) -> list[TimedGrid]:
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
