"""Positions in prompts of text, images and videos: time, row and column of every token."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rope_xp.arrays import checks, libraries
from rope_xp.errors import public, wrong_type, wrong_value
from rope_xp.types import Array

# Token types as processors number them. Audio tokens have positions like text.
TEXT, IMAGE, VIDEO, AUDIO = range(4)
GRID_NAMES = {IMAGE: "image_grids", VIDEO: "video_grids"}

# What callers pass, on the host: token types, masks and grids as processors return them; times of a video; runs.
Rows: TypeAlias = Sequence[int] | Sequence[Sequence[int]] | NDArray[np.integer | np.bool]
Times: TypeAlias = Sequence[float] | NDArray[np.integer | np.floating]
Run: TypeAlias = int | tuple[int | Times, int, int]

Integers: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = NDArray[Any]  # int64 or float64; times of videos also float32
# Times, height and width in tokens. Times are the number of time steps, or an array of their positions.
Sizes: TypeAlias = tuple[int, int, int]
TimedGrid: TypeAlias = tuple[Numbers, int, int]
Grid: TypeAlias = Sizes | TimedGrid
# From the token types of a row to its positions and their delta.
RowPositions: TypeAlias = Callable[[Integers], tuple[Numbers, Numbers | int]]


class PromptPositions(NamedTuple):
    """The positions of a prompt, and the offset for the tokens after it.

    A token after the prompt has position ``i + delta`` on every axis, where i is the number of tokens before it in its
    row, without padding.

    Attributes
    ----------
    positions : array, "axes *batch seq"
        Positions in tokens.
    delta : array, "*batch"
        For the tokens after the prompt: position minus index.
    """

    positions: Any
    delta: Any


@public("prompt")
def prompt(runs: Sequence[Run], *, like: Array | None = None) -> PromptPositions:
    """Positions of a prompt that is given as a sequence of runs.

    The positions of a run of text increase by one on all axes. Those of a grid are the time, row and column of each
    cell. Each run starts one after the highest position, on any axis, of the run before it.

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
    if not isinstance(runs, Sequence) or isinstance(runs, str):
        raise wrong_type(f"runs must be a sequence; got {type(runs).__name__}")
    checked = [_checked_run(run) for run in runs]
    has_floats = any(run[0].dtype.kind == "f" for run in checked if isinstance(run, tuple))
    return _result(*_positions_of_runs(checked), "float32" if has_floats else "int32", like)


def _checked_run(run: Run) -> int | TimedGrid:
    if checks.is_int(run):
        return checks.count("a run of text", run)
    if not isinstance(run, Sequence) or len(run) != 3:
        raise wrong_type(f"a run must be an int or (times, height, width); got {checks.shown(run)}")
    times = run[0]
    if checks.is_int(times):
        times = np.arange(checks.count("times", times))
    times = host_array("times", times, "iuf", axes=(1,))
    if not (np.isfinite(times).all() and (times >= 0).all()):
        raise wrong_value(f"times must be finite and not negative; got {checks.shown(times.tolist())}")
    return times, checks.count("height", run[1]), checks.count("width", run[2])


def _positions_of_runs(runs: Iterable[int | TimedGrid], compat: str | None = None) -> tuple[Numbers, Numbers]:
    start, parts = 0, [np.zeros((3, 0), dtype=np.int64)]
    for run in runs:
        if isinstance(run, int):
            cells, extent = np.broadcast_to(np.arange(run), (3, run)), run
        else:
            times, height, width = run
            axes = np.meshgrid(times, np.arange(height), np.arange(width), indexing="ij")
            cells = np.stack([axis.ravel() for axis in axes])
            # transformers forgets the time steps: a bug that `compat` reproduces.
            extent = max(height, width) if compat else cells.max(initial=-1) + 1
        parts.append(cells + start)
        start += extent
    positions = np.concatenate(parts, axis=1)
    return positions, positions.max(initial=-1) + 1 - positions.shape[1]


def positions_with_grids(
    token_types: object,
    mask: object,
    images: Sequence[Grid],
    videos: Sequence[Grid],
    *,
    compat: str | None = None,
    dtype: str = "int32",
    like: Array | None,
) -> PromptPositions:
    """Positions of rows of token types. The grids fill the runs of image and of video tokens, in order."""
    grids = {IMAGE: iter(images), VIDEO: iter(videos)}

    def row_positions(types: Integers) -> tuple[Numbers, Numbers]:
        return _positions_of_runs(_runs_with_grids(types, grids), compat)

    result = positions_of_rows(token_types, mask, row_positions, axes=3, dtype=dtype, like=like)
    for kind, name in GRID_NAMES.items():
        require_all_used(name, grids[kind])
    return result


def _runs_with_grids(types: Integers, grids: dict[int, Iterator[Grid]]) -> Iterator[int | TimedGrid]:
    for kind, _, tokens in runs_of_types(types):
        if kind not in grids:
            yield tokens
            continue
        name, remaining = GRID_NAMES[kind], tokens
        wanted = f"{name}, in patches before merging, must have grids for all {name.removesuffix('_grids')} tokens"
        while remaining:
            grid = next(grids[kind], None)
            if grid is None:
                raise wrong_value(f"{wanted}; got {remaining} without a grid")
            times, height, width = grid
            times = np.arange(times) if isinstance(times, int) else times
            cells = len(times) * height * width
            if cells > remaining:
                raise wrong_value(
                    f"every run of tokens must consist of whole grids of {name}; got a grid of "
                    f"{len(times)} x {height} x {width} tokens for the last {remaining} tokens of a run of {tokens}"
                )
            remaining -= cells
            yield times, height, width


def runs_of_types(types: Integers) -> Iterator[tuple[int, int, int]]:
    """For each run of equal types: the type, the first index and the number of tokens."""
    first = np.flatnonzero(np.diff(types, prepend=-1))
    for kind, start, tokens in zip(types[first], first, np.diff(first, append=len(types))):
        yield int(kind), int(start), int(tokens)


def require_all_used(name: str, grids: Iterator[Grid]) -> None:
    unused = len(list(grids))
    if unused:
        raise wrong_value(f"every grid of {name} must have tokens; got {unused} without tokens")


def positions_of_rows(
    token_types: object, mask: object, row_positions: RowPositions, *, axes: int, dtype: str, like: Array | None
) -> PromptPositions:
    """Apply `row_positions` to the token types of each row, without padding, and collect positions and deltas."""
    types = host_array("token_types", token_types, "iu", axes=(1, 2))
    tokens = np.ones(types.shape, dtype=bool) if mask is None else host_array("mask", mask, "biu", axes=(1, 2)) != 0
    if tokens.shape != types.shape:
        raise wrong_value(f"mask must have the shape of token_types, {types.shape}; got {tokens.shape}")
    unknown = types[tokens & ((types < TEXT) | (types > AUDIO))]
    if unknown.size:
        raise wrong_value(f"token_types must be 0 (text), 1 (image), 2 (video) or 3 (audio); got {unknown.flat[0]}")
    positions = np.zeros((axes, *types.shape), dtype="float64" if dtype == "float32" else "int64")
    delta = np.zeros(types.shape[:-1], dtype=positions.dtype)
    for row in np.ndindex(delta.shape):
        positions[:, *row, tokens[row]], delta[row] = row_positions(types[row][tokens[row]])
    return _result(positions, delta, dtype, like)


def _result(positions: Numbers, delta: Numbers, dtype: str, like: Array | None) -> PromptPositions:
    if positions.max(initial=0) >= 2**31:
        raise wrong_value(f"positions must fit in int32; got {positions.max()}")
    positions, delta = positions.astype(dtype), np.asarray(delta).astype(dtype)
    return PromptPositions(checks.convert_like("positions", positions, like), checks.convert_like("delta", delta, like))


def merged_grids(name: str, grids: object, spatial: int, temporal: int = 1) -> list[Sizes]:
    """Time steps, height and width of each grid, in tokens."""
    merge = (temporal, spatial, spatial)
    for kind, size in (("spatial", spatial), ("temporal", temporal)):
        checks.count(f"{kind}_merge_size", size, 1)
    patches = host_array(name, [] if grids is None else grids, "iu", axes=(1, 2))
    if patches.size and patches.shape[1:] != (3,):
        raise wrong_value(f"{name} must have shape (grids, 3), for time, height and width; got {patches.shape}")
    sizes = patches.tolist() if patches.size else []
    wrong = [grid for grid in sizes if min(grid) < 1 or any(size % factor for size, factor in zip(grid, merge))]
    if wrong:
        raise wrong_value(f"{name} must be positive multiples of {merge}, in patches; got {wrong[0]}")
    return [(time // temporal, height // spatial, width // spatial) for time, height, width in sizes]


def checked_compat(compat: str | None) -> str | None:
    if compat is not None:
        checks.one_of("compat", compat, {"transformers": "what transformers 5.18 computes"})
    return compat


def host_array(name: str, values: object, kinds: str, axes: tuple[int, ...]) -> Numbers:
    """Lists or NumPy data as an array. The kind of its dtype must be in `kinds`, and its number of axes in `axes`."""
    if libraries.is_host(values):
        checks.array(name, values)
    elif not _is_nested_numbers(values):
        found = f"{type(values).__name__} of other objects" if isinstance(values, (list, tuple)) else type(values)
        raise wrong_type(
            f"{name} must be lists of numbers or a NumPy array, since values are read on the host; got {found}"
        )
    try:
        array = np.asarray(values)
    except ValueError as ragged:
        raise wrong_value(f"{name} must have rows of equal length; got lists of different lengths") from ragged
    if not array.size:  # NumPy makes float64 arrays of empty lists
        array = array.astype(np.int64)
    if array.dtype.kind not in kinds:
        wanted = {"iu": "integers", "biu": "booleans or integers", "iuf": "integers or floats"}[kinds]
        raise wrong_type(f"{name} must be {wanted}; got {array.dtype}")
    if array.ndim not in axes:
        raise wrong_value(f"{name} must have {' or '.join(map(str, axes))} axes; got shape {array.shape}")
    if array.dtype == np.uint64 and array.max() >= 2**63:
        raise wrong_value(f"{name} must fit in int64; got {array.max()}")
    return array if array.dtype.kind in "bf" else array.astype(np.int64)


def _is_nested_numbers(values: object) -> bool:
    if not isinstance(values, (list, tuple)):
        return False
    kinds = set(map(type, values))
    if kinds & {list, tuple}:
        return all(_is_nested_numbers(value) for value in values)
    return all(kind in libraries.PLAIN or issubclass(kind, (int, float, np.number, np.bool)) for kind in kinds)
