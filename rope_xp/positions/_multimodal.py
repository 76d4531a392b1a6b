"""Positions in prompts of text, images and videos: time, row and column of every token.

A prompt is a sequence of runs. The positions of a run of text increase by one on all axes. A run of image or video
tokens is a grid, whose positions are the time, row and column of each cell. Each run starts one after the highest
position, on any axis, of the run before it. `prompt` implements this rule. The model families differ in the grids that
they make from an image or a video.

All arguments are lists or NumPy arrays, because their values are read on the host. Results are int32, or float32 for
`qwen3_omni`. Under `jax.jit` a result is a constant of the program. With `torch.compile`, call these functions outside
of the compiled function and pass in the result.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from rope_xp._core import backends, checks
from rope_xp._core.arrays import Array

# Token types as processors number them. Audio tokens have positions like text.
TEXT, IMAGE, VIDEO, AUDIO = range(4)


class PromptPositions(NamedTuple):
    """The positions of a prompt, and the offset for the tokens after it.

    A token after the prompt has position ``i + delta`` on every axis, where i is the number of tokens before it in its
    row, without padding.

    Attributes
    ----------
    positions : array, "axes *batch seq"
        Positions in tokens.
    delta : array, "*batch"
        Difference of position and index for the tokens after the prompt.
    """

    positions: Any
    delta: Any


def prompt(runs: Sequence[Any], *, like: Array | None = None) -> PromptPositions:
    """Positions of a prompt that is given as a sequence of runs.

    Parameters
    ----------
    runs : sequence
        An int is a run of text: the number of its tokens. A tuple ``(times, height, width)`` is a grid, with height and
        width in tokens. `times` is the number of time steps, or a sequence with the position of each time step relative
        to the start of the run.
    like : array, optional
        The result has its library and device; by default NumPy.

    Returns
    -------
    PromptPositions
        Positions in tokens of time, height and width, "3 seq", and their delta, "". Both are float32 if a time is a
        float, otherwise int32.

    Raises
    ------
    ValueError
        If a number is negative, a time is not finite, or a position does not fit in int32.
    TypeError
        If a run is neither an int nor such a tuple, or its numbers have a wrong type.

    References
    ----------
    Wang et al., Qwen2-VL (2024), arXiv:2409.12191, section 2.1.

    Examples
    --------
    Two tokens of text, an image of 2 by 3 tokens, and one token of text. The next token has position ``9 + delta = 6``:

    >>> positions, delta = prompt([2, (1, 2, 3), 1])
    >>> positions
    array([[0, 1, 2, 2, 2, 2, 2, 2, 5],
           [0, 1, 2, 2, 2, 3, 3, 3, 5],
           [0, 1, 2, 3, 4, 2, 3, 4, 5]], dtype=int32)
    >>> int(delta)
    -3

    A video with a frame every 10 positions:

    >>> prompt([2, ([0, 10, 20], 1, 1), 1]).positions[0]
    array([ 0,  1,  2, 12, 22, 23], dtype=int32)
    """
    who = "prompt"
    if not isinstance(runs, Sequence) or isinstance(runs, str):
        raise TypeError(f"{who}: runs must be a sequence; got {type(runs).__name__}")
    read = []
    for run in runs:
        if checks.is_int(run):
            read.append(checks.count(who, "a run of text", run))
        elif isinstance(run, Sequence) and len(run) == 3:
            times = run[0]
            if checks.is_int(times):
                times = np.arange(checks.count(who, "times", times))
            times = _host(who, "times", times, "iuf", axes=(1,))
            if not (np.isfinite(times).all() and (times >= 0).all()):
                raise ValueError(f"{who}: times must be finite and not negative; got {times.tolist()}")
            read.append((times, checks.count(who, "height", run[1]), checks.count(who, "width", run[2])))
        else:
            raise TypeError(f"{who}: a run must be an int or (times, height, width); got {run!r}")
    real = any(run[0].dtype.kind == "f" for run in read if isinstance(run, tuple))
    return _result(who, *_positions_of_runs(read), "float32" if real else "int32", like)


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
    """Positions of Qwen2-VL: each image or video is one grid, and its time steps are one position apart.

    For the model types qwen2_vl and paddleocr_vl.

    Parameters
    ----------
    token_types : list or NumPy array of int, "*batch seq"
        Type of each token, as in `mm_token_type_ids` of processors: 0 text, 1 image, 2 video, 3 audio (like text).
    image_grids, video_grids : list or NumPy array of int, "grids 3", optional
        Number of time steps, and height and width in patches, of each image or video: `image_grid_thw` and
        `video_grid_thw` of processors. Grids are in the order of their tokens, row after row of the batch.
    mask : list or NumPy array of bool or int, "*batch seq", optional
        `attention_mask` of processors: true or nonzero for tokens, false or 0 for padding. Padding has position 0.
    spatial_merge_size : int
        Patches per token along height and along width, as in the config of the vision tower.
    compat : {"transformers"}, optional
        Reproduce transformers 5.18: the run after a grid starts ``max(height, width)`` after the start of the grid,
        even if the grid has more time steps. Text after a long video then repeats positions of the video, but the delta
        is not affected. By default the run starts after the highest position, as in the first release of Qwen2-VL. Only
        prompts with videos differ.
    like : array, optional
        The result has its library and device; by default NumPy.

    Returns
    -------
    PromptPositions
        Positions in tokens of time, height and width, "3 *batch seq", and their delta, "*batch"; both int32.

    Raises
    ------
    ValueError
        If shapes do not match, a number is out of range, or the grids do not have exactly the tokens of their type.
    TypeError
        If an argument does not consist of integers in lists or NumPy arrays.

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
    who = "qwen2_vl"
    images = _grids(who, "image_grids", image_grids, spatial_merge_size)
    videos = _grids(who, "video_grids", video_grids, spatial_merge_size)
    return _fill_runs(
        who, token_types, mask, _unit_steps(images), _unit_steps(videos), compat=_compat(who, compat), like=like
    )


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

    For the model types qwen2_5_vl and qwen2_5_omni (thinker only). `use_audio_in_video`, which mixes the tokens of a
    video with those of its sound, is not supported. Times are products in float32, truncated to integers, as the models
    compute them.

    Parameters
    ----------
    token_types, image_grids, video_grids, mask, spatial_merge_size, like
        As in `qwen2_vl`.
    positions_per_second : float, optional
        `tokens_per_second` of the vision config; `position_id_per_seconds` of Qwen2.5-Omni. Required with videos.
    seconds_per_grid : list or NumPy array of float, "videos", optional
        Seconds between time steps, for each video: `second_per_grid_ts` of the processor. The default is 1.
    compat : {"transformers"}, optional
        As in `qwen2_vl`. Also, seconds are multiplied by the rate before they are multiplied by the time step, which
        rounds differently if the rate is not a power of two. Do not use this for Qwen2.5-Omni: there, transformers
        agrees with the default.

    Returns
    -------
    PromptPositions
        Positions in tokens of time, height and width, "3 *batch seq", and their delta, "*batch"; both int32.

    Raises
    ------
    ValueError
        As in `qwen2_vl`; or if `seconds_per_grid` does not have one positive number for each video.
    TypeError
        As in `qwen2_vl`; or if `seconds_per_grid` does not consist of numbers in lists or NumPy arrays.

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
    who = "qwen2_5_vl"
    images = _grids(who, "image_grids", image_grids, spatial_merge_size)
    videos = _grids(who, "video_grids", video_grids, spatial_merge_size)
    compat = _compat(who, compat)
    timed = _scaled_times(who, videos, seconds_per_grid, positions_per_second, rate_first=compat is not None)
    timed = [(times.astype(np.int64), height, width) for times, height, width in timed]
    return _fill_runs(who, token_types, mask, _unit_steps(images), timed, compat=compat, like=like)


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
    cohere_compass, cosmos3_omni and cosmos3_edge. Also for glm_image with ``spatial_merge_size=1``: the images that it
    generates are further grids, in reverse order.

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
    who = "qwen3_vl"
    images = _grids(who, "image_grids", image_grids, spatial_merge_size)
    videos = _grids(who, "video_grids", video_grids, spatial_merge_size)
    frames = [(1, height, width) for time, height, width in videos for _ in range(time)]
    return _fill_runs(who, token_types, mask, _unit_steps(images), _unit_steps(frames), like=like)


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

    For the model type qwen3_omni_moe (thinker and talker). `use_audio_in_video`, which mixes the tokens of a video with
    those of its sound, is not supported. Times are products in float32. Positions are sums in float64, rounded once.

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
    who = "qwen3_omni"
    images = _grids(who, "image_grids", image_grids, spatial_merge_size)
    videos = _grids(who, "video_grids", video_grids, spatial_merge_size)
    timed = _scaled_times(who, videos, seconds_per_grid, positions_per_second)
    return _fill_runs(who, token_types, mask, _unit_steps(images), timed, dtype="float32", like=like)


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
    """Positions of Ernie-4.5-VL: as `qwen2_vl`, but a token of a video also merges several time steps.

    For the model type ernie4_5_vl_moe.

    Parameters
    ----------
    token_types, image_grids, video_grids, mask, spatial_merge_size, compat, like
        As in `qwen2_vl`.
    temporal_merge_size : int
        Time steps of a video per token, as in the config of the vision tower.

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
    who = "ernie4_5_vl"
    images = _grids(who, "image_grids", image_grids, spatial_merge_size)
    videos = _grids(who, "video_grids", video_grids, spatial_merge_size, temporal_merge_size)
    return _fill_runs(
        who, token_types, mask, _unit_steps(images), _unit_steps(videos), compat=_compat(who, compat), like=like
    )


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
    column wider than its grid. The token before an image and the token after it may have the type of images, but their
    positions are those of text.

    Parameters
    ----------
    token_types, image_grids, mask, spatial_merge_size, like
        As in `qwen2_vl`. Videos are not supported, and two images must have text between them.
    axes : int
        Number of position axes: the length of `mrope_section`. The last three axes are column, row and image number;
        the axes before them are the index.
    compat : {"transformers"}, optional
        Reproduce transformers 5.18: images are numbered through the whole batch, so that the positions of a row depend
        on the rows before it, and the delta depends on the highest position. By default the images of each row are
        numbered from 0, as in vLLM, and the delta is 0, since the position of a text token is its index.

    Returns
    -------
    PromptPositions
        Positions in tokens, "axes *batch seq", and their delta, "*batch"; both int32.

    Raises
    ------
    ValueError
        If shapes do not match, a number is out of range, or the grids do not have exactly the tokens of their type.
    TypeError
        If an argument does not consist of integers in lists or NumPy arrays.

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
    who = "hunyuan_vl"
    axes = checks.count(who, "axes", axes)
    if axes < 3:
        raise ValueError(f"{who}: axes must be at least 3, for column, row and image; got {axes}")
    grids = iter(_grids(who, "image_grids", image_grids, spatial_merge_size))
    across_rows = _compat(who, compat) is not None
    number = 0

    def row_positions(types: Any) -> tuple[Any, int]:
        nonlocal number
        number = number if across_rows else 0
        positions = np.tile(np.arange(len(types)), (axes, 1))
        for kind, first, tokens in _runs(types):
            if kind == VIDEO:
                raise ValueError(f"{who}: token_types must be 0 (text), 1 (image) or 3 (audio); got 2 (video)")
            if kind != IMAGE:
                continue
            grid = next(grids, None)
            if grid is None:
                raise ValueError(
                    f"{who}: image_grids must have a grid for every run of image tokens; got too few grids"
                )
            time, height, width = grid
            cells = height * (width + 1)
            if time != 1:
                raise ValueError(f"{who}: image_grids must have one time step; got {time}")
            if tokens not in (cells, cells + 2):
                wanted = f"{cells} or {cells + 2} tokens for a grid of {height} x {width}"
                raise ValueError(f"{who}: a run of image tokens must have {wanted}; got {tokens}")
            first += (tokens - cells) // 2
            cell = np.arange(cells)
            image = [cell % (width + 1), cell // (width + 1), np.full(cells, number)]
            positions[-3:, first : first + cells] = image
            number += 1
        return positions, int(positions.max(initial=-1)) + 1 - len(types) if across_rows else 0

    result = _batch(who, token_types, mask, row_positions, axes=axes, dtype="int32", like=like)
    _require_all_used(who, "image_grids", grids)
    return result


def _positions_of_runs(runs: Iterable[Any], compat: str | None = None) -> tuple[Any, Any]:
    """Positions "3 seq" of runs, in int64 or float64, and the delta of the tokens after them."""
    start, parts = 0, [np.zeros((3, 0), dtype=np.int64)]
    for run in runs:
        if isinstance(run, int):
            cells, extent = np.broadcast_to(np.arange(run), (3, run)), run
        else:
            times, height, width = run
            axes = np.meshgrid(times, np.arange(height), np.arange(width), indexing="ij")
            cells = np.stack(axes).reshape(3, -1)
            extent = max(height, width) if compat else cells.max(initial=-1) + 1
        parts.append(cells + start)
        start += extent
    positions = np.concatenate(parts, axis=1)
    return positions, positions.max(initial=-1) + 1 - positions.shape[1]


def _fill_runs(
    who: str,
    token_types: Any,
    mask: Any,
    images: list[Any],
    videos: list[Any],
    *,
    compat: str | None = None,
    dtype: str = "int32",
    like: Any,
) -> PromptPositions:
    """Positions of rows in which the grids, in order, fill the runs of image and video tokens."""
    grids = {IMAGE: iter(images), VIDEO: iter(videos)}
    names = {IMAGE: "image_grids", VIDEO: "video_grids"}

    def runs(types: Any) -> Iterator[Any]:
        for kind, _, tokens in _runs(types):
            if kind not in grids:
                yield tokens
                continue
            left = tokens
            while left:
                grid = next(grids[kind], None)
                if grid is None:
                    raise ValueError(
                        f"{who}: {names[kind]} must have grids for all tokens of its type; got {left} without"
                    )
                cells = len(grid[0]) * grid[1] * grid[2]
                if cells > left:
                    raise ValueError(
                        f"{who}: every run of tokens must consist of whole grids of {names[kind]}; got a grid of "
                        f"{len(grid[0])} x {grid[1]} x {grid[2]} tokens for the last {left} tokens of a run of {tokens}"
                    )
                left -= cells
                yield grid

    result = _batch(
        who, token_types, mask, lambda types: _positions_of_runs(runs(types), compat), axes=3, dtype=dtype, like=like
    )
    for kind, name in names.items():
        _require_all_used(who, name, grids[kind])
    return result


def _batch(
    who: str, token_types: Any, mask: Any, row_positions: Callable[[Any], Any], *, axes: int, dtype: str, like: Any
) -> PromptPositions:
    """Apply `row_positions` to the token types of each row, without padding, and collect positions and deltas."""
    types = _host(who, "token_types", token_types, "iu", axes=(1, 2))
    tokens = np.ones(types.shape, dtype=bool) if mask is None else _host(who, "mask", mask, "biu", axes=(1, 2)) != 0
    if tokens.shape != types.shape:
        raise ValueError(f"{who}: mask must have the shape of token_types, {types.shape}; got {tokens.shape}")
    unknown = types[tokens & ((types < TEXT) | (types > AUDIO))]
    if unknown.size:
        raise ValueError(
            f"{who}: token_types must be 0 (text), 1 (image), 2 (video) or 3 (audio); got {unknown.flat[0]}"
        )
    positions = np.zeros((axes, *types.shape), dtype="float64" if dtype == "float32" else "int64")
    delta = np.zeros(types.shape[:-1], dtype=positions.dtype)
    for row in np.ndindex(delta.shape):
        positions[:, *row, tokens[row]], delta[row] = row_positions(types[row][tokens[row]])
    return _result(who, positions, delta, dtype, like)


def _result(who: str, positions: Any, delta: Any, dtype: str, like: Any) -> PromptPositions:
    if positions.max(initial=0) >= 2**31:
        raise ValueError(f"{who}: positions must fit in int32; got {positions.max()}")
    positions, delta = positions.astype(dtype), np.asarray(delta).astype(dtype)
    return PromptPositions(
        checks.convert_like(who, "positions", positions, like), checks.convert_like(who, "delta", delta, like)
    )


def _runs(types: Any) -> Iterator[tuple[int, int, int]]:
    """For each run of equal types: the type, the first index and the number of tokens."""
    first = np.flatnonzero(np.diff(types, prepend=-1))
    for kind, start, tokens in zip(types[first], first, np.diff(first, append=len(types))):
        yield int(kind), int(start), int(tokens)


def _unit_steps(grids: list[tuple[int, int, int]]) -> list[tuple[Any, int, int]]:
    """Grids with time steps that are one position apart."""
    return [(np.arange(time), height, width) for time, height, width in grids]


def _scaled_times(who: str, grids: list[Any], seconds: Any, rate: Any, *, rate_first: bool = False) -> list[Any]:
    """Grids with time steps that are `seconds` apart, one number for each video, at `rate` positions per second."""
    if rate is None and not grids:
        rate = 1.0  # it is not used without videos
    if rate is None:
        raise ValueError(f"{who}: positions_per_second must be given with videos; got None")
    rate = checks.positive(who, "positions_per_second", rate)
    seconds = [1.0] * len(grids) if seconds is None else seconds
    seconds = _host(who, "seconds_per_grid", seconds, "iuf", axes=(1,)).astype(np.float64)
    if len(seconds) != len(grids):
        raise ValueError(f"{who}: seconds_per_grid must have a number for each of {len(grids)}; got {len(seconds)}")
    scaled = []
    for second, (time, height, width) in zip(seconds.tolist(), grids):
        second = checks.positive(who, "seconds_per_grid", second)
        if second * rate * time >= 2**31:
            raise ValueError(f"{who}: positions must fit in int32; got {time} time steps of {second} seconds")
        # The dtype and the order of products decide whether truncation gives an integer or the one below it.
        step, second, factor = np.arange(time, dtype=np.float32), np.float32(second), np.float32(rate)
        scaled.append((step * (second * factor) if rate_first else step * second * factor, height, width))
    return scaled


def _grids(who: str, name: str, grids: Any, spatial: Any, temporal: Any = 1) -> list[tuple[int, int, int]]:
    """Time steps, height and width of grids, in tokens."""
    merge = (temporal, spatial, spatial)
    for kind, size in (("spatial", spatial), ("temporal", temporal)):
        if checks.count(who, f"{kind}_merge_size", size) < 1:
            raise ValueError(f"{who}: {kind}_merge_size must be at least 1; got {size}")
    grids = _host(who, name, [] if grids is None else grids, "iu", axes=(1, 2))
    if grids.size and grids.shape[1:] != (3,):
        raise ValueError(f"{who}: {name} must have shape (grids, 3), for time, height and width; got {grids.shape}")
    grids = grids.reshape(-1, 3).tolist()
    wrong = [grid for grid in grids if min(grid) < 1 or any(size % factor for size, factor in zip(grid, merge))]
    if wrong:
        raise ValueError(f"{who}: {name} must be positive multiples of {merge}, in patches; got {wrong[0]}")
    return [tuple(size // factor for size, factor in zip(grid, merge)) for grid in grids]


def _compat(who: str, compat: str | None) -> str | None:
    if compat is not None:
        checks.one_of(who, "compat", compat, {"transformers": "what transformers 5.18 computes"})
    return compat


def _require_all_used(who: str, name: str, grids: Iterator[Any]) -> None:
    left = len(list(grids))
    if left:
        raise ValueError(f"{who}: every grid of {name} must have tokens; got {left} without")


def _host(who: str, name: str, values: Any, kinds: str, axes: tuple[int, ...]) -> Any:
    """`values` as a NumPy array; they must be lists or NumPy data, and have one of the dtype kinds and ranks."""
    if backends.is_host(values):
        checks.array(who, name, values)
    elif not _is_plain(values):
        found = f"{type(values).__name__} of other objects" if isinstance(values, (list, tuple)) else type(values)
        raise TypeError(
            f"{who}: {name} must be lists of numbers or a NumPy array, since values are read on the host; got {found}"
        )
    try:
        array = np.asarray(values)
    except ValueError as ragged:
        raise ValueError(f"{who}: {name} must have rows of equal length; got lists of different lengths") from ragged
    if not array.size:  # NumPy makes float64 arrays of empty lists
        array = array.astype(np.int64)
    if array.dtype.kind not in kinds:
        wanted = {"iu": "integers", "biu": "booleans or integers", "iuf": "integers or floats"}[kinds]
        raise TypeError(f"{who}: {name} must be {wanted}; got {array.dtype}")
    if array.ndim not in axes:
        raise ValueError(f"{who}: {name} must have {' or '.join(map(str, axes))} axes; got shape {array.shape}")
    return array if array.dtype.kind in "bf" else array.astype(np.int64)


def _is_plain(values: Any) -> bool:
    """Whether `values` are nested lists of numbers, without arrays of libraries other than NumPy."""
    if not isinstance(values, (list, tuple)):
        return False
    kinds = set(map(type, values))
    if kinds & {list, tuple}:
        return all(_is_plain(value) for value in values)
    return all(kind in backends.PLAIN or issubclass(kind, (int, float, np.number, np.bool)) for kind in kinds)
