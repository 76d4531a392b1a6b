"""How channels turn: pairs of channels, and the rotation of each pair by its angle."""

from collections.abc import Sequence
from typing import Any, Literal

from rope_xp._core import backends, checks, kernels
from rope_xp._core.arrays import Array, ArrayT
from rope_xp._core.kernels import KERNELS, Kernel
from rope_xp._core.kernels.pair_rotation import Rotation
from rope_xp._core.kernels.reference import join_pairs, split_pairs

Layout = Literal["half", "interleaved", "interleaved_to_half"]

LAYOUTS = {
    "half": "channel j with j + pairs: GPT-NeoX, Llama in transformers",
    "interleaved": "channel 2j with 2j + 1: RoFormer, GPT-J, Meta's Llama",
    "interleaved_to_half": "channel 2j with 2j + 1, written to j and j + pairs: DeepSeek-V3",
}
# How pairs stand in what is read and in what is written.
READ_WRITE: dict[str, tuple[str, str]] = {
    "half": ("half", "half"),
    "interleaved": ("interleaved", "interleaved"),
    "interleaved_to_half": ("interleaved", "half"),
}


def rotate_every_two(x: ArrayT) -> ArrayT:
    """Turn each pair of neighbouring channels by a quarter turn.

    ::

        x        x0  x1  x2  x3
        result  -x1  x0 -x3  x2

    The pairing of RoFormer, GPT-J and Meta's Llama checkpoints; `rotate_half` is the same turn on pairs
    ``(j, j + dim/2)``.

    Parameters
    ----------
    x : array, "*batch dim"
        Floating point; `dim` is even.

    Returns
    -------
    array, "*batch dim"
        Of the library, dtype and device of `x`.

    Raises
    ------
    ValueError
        If `dim` is odd or zero.
    TypeError
        If `x` is no array or not floating point.

    References
    ----------
    Su et al., RoFormer (2021), arXiv:2104.09864, section 3.4.2. Name: kingoflolz/mesh-transformer-jax,
    `mesh_transformer/layers.py`.

    Examples
    --------
    >>> import numpy as np
    >>> rotate_every_two(np.asarray([1.0, 2.0, 3.0, 4.0]))
    array([-2.,  1., -4.,  3.])
    """
    return _quarter_turn("rotate_every_two", x, "interleaved")


def rotate_half(x: ArrayT) -> ArrayT:
    """Turn each pair of channels that are half the width apart by a quarter turn.

    ::

        x        x0  x1  x2  x3
        result  -x2 -x3  x0  x1

    The pairing of GPT-NeoX and of Llama in transformers; `rotate_every_two` is the same turn on neighbours.

    Parameters
    ----------
    x : array, "*batch dim"
        Floating point; `dim` is even.

    Returns
    -------
    array, "*batch dim"
        Of the library, dtype and device of `x`.

    Raises
    ------
    ValueError
        If `dim` is odd or zero.
    TypeError
        If `x` is no array or not floating point.

    References
    ----------
    Su et al., RoFormer (2021), arXiv:2104.09864, section 3.4.2, with the channels in another order. Name:
    EleutherAI/gpt-neox, `megatron/model/positional_embeddings.py`; transformers,
    `models/llama/modeling_llama.py`.

    Examples
    --------
    >>> import numpy as np
    >>> rotate_half(np.asarray([1.0, 2.0, 3.0, 4.0]))
    array([-3., -4.,  1.,  2.])
    """
    return _quarter_turn("rotate_half", x, "half")


def apply_rotary_pos_emb(
    x: ArrayT,
    sincos: tuple[Array, Array],
    *,
    layout: Layout = "interleaved",
    seq_dim: int = 0,
    inverse: bool = False,
    kernel: Kernel = "fastest",
) -> ArrayT:
    """Turn each pair of channels of `x` by its angle.

    ``result[pair] = [[cos, -sin], [sin, cos]] @ x[pair]``. The first ``2 * pairs`` channels turn; the others pass
    through unchanged, bit for bit. Arithmetic is done in float32 (float64 for float64 `x`) and rounded once.

    Parameters
    ----------
    x : array, "*batch dim"
        Floating point; `dim` is even. Its axes are in any order, the channels last.
    sincos : (array, array), "*axes pairs"
        Sine and cosine, in this order, in float32 or float64, of `x`'s library or NumPy's. Tables with as many axes as
        `x` broadcast. With fewer, the axis before the last is the sequence and lies on axis `seq_dim` of `x`, and the
        axes before that are the leading axes of `x`: "seq pairs" or "batch seq pairs".
    layout : "half", "interleaved" or "interleaved_to_half"
        Which channels form a pair. The default is the notebook's, `rotate_every_two`; `"half"` is `rotate_half`. The
        third reads interleaved pairs and writes halves.
    seq_dim : int
        The sequence axis of `x`. The default is the notebook's: "seq heads dim".
    inverse : bool
        Turn by the opposite angles: the transpose of the rotation, which its gradient needs. It gives back what was
        rotated by tables of magnitude 1. Tables that are multiplied by an attention factor m multiply again: divide
        both by ``m**2`` first, as `RotaryEmbedding.rotate` does.
    kernel : "fastest", "reference", "blocked", "numba", "triton" or "xla"
        What does it. The default takes the fastest that serves `x`: numba for NumPy and for torch on the CPU, where it
        is installed (``rope-xp[fast]``), or else `"blocked"` operations into memory at hand; Triton for torch on CUDA;
        what XLA fuses best for JAX. Under `torch.compile` and exporters, where only `"triton"` is heard (an operator of
        the graph), and on all other libraries, it is `"reference"`, one expression of the array API, from which the
        others differ by a rounding of the products.
        `RotaryEmbedding.describe` says which it is.

    Returns
    -------
    array, "*batch dim"
        Of the library, shape, dtype and device of `x`.

    Raises
    ------
    ValueError
        If `dim` is odd, the tables are wider than `x` or do not fit its axes, `layout` or `kernel` is unknown, or the
        kernel is not installed or does not serve `x`.
    TypeError
        If a dtype is not floating point, `x` is float64 and the tables are not, or the arrays are of two libraries.

    References
    ----------
    Su et al., RoFormer (2021), arXiv:2104.09864, equation 34. Name: kingoflolz/mesh-transformer-jax,
    `mesh_transformer/layers.py`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.ones((3, 2, 4), dtype=np.float32)  # seq heads dim
    >>> quarter = np.full((3, 1), np.pi / 2)  # one angle for each position: the first two channels turn
    >>> apply_rotary_pos_emb(x, (np.sin(quarter), np.cos(quarter))).round(3)[0]
    array([[-1.,  1.,  1.,  1.],
           [-1.,  1.,  1.,  1.]], dtype=float32)
    """
    who = "apply_rotary_pos_emb"
    rotation = _rotation(who, x, layout, inverse, kernel)
    return kernels.rotate(who, [x], align_tables(who, [x], sincos, seq_dim), rotation, kernel)[0]


def apply_rotary_pos_emb_inplace(
    x: Any,
    sincos: tuple[Array, Array],
    *,
    layout: Layout = "interleaved",
    seq_dim: int = 0,
    inverse: bool = False,
    kernel: Kernel = "fastest",
) -> None:
    """`apply_rotary_pos_emb` that writes its result over `x`, for inference: no derivative passes through it.

    Everything is checked before anything is written.

    Parameters
    ----------
    x : array of NumPy or PyTorch, "*batch dim"
        Writable memory in which no two places are one, that is not that of the tables and does not require grad.
    sincos, layout, seq_dim, inverse, kernel
        As in `apply_rotary_pos_emb`.

    Raises
    ------
    ValueError
        As `apply_rotary_pos_emb` does, and if the memory of `x` is not as required.
    TypeError
        As `apply_rotary_pos_emb` does, and if `x` is of another library, such as JAX, whose arrays never change.

    References
    ----------
    As `apply_rotary_pos_emb`.

    Examples
    --------
    >>> import numpy as np
    >>> x, quarter = np.asarray([[1.0, 2.0]]), np.full((1, 1), np.pi / 2)
    >>> apply_rotary_pos_emb_inplace(x, (np.sin(quarter), np.cos(quarter)))
    >>> x.round(3)
    array([[-2.,  1.]])
    """
    who = "apply_rotary_pos_emb_inplace"
    rotation = _rotation(who, x, layout, inverse, kernel)
    kernels.rotate_inplace(who, [x], align_tables(who, [x], sincos, seq_dim), rotation, kernel)


def _rotation(who: str, x: Any, layout: str, inverse: bool, kernel: str) -> Rotation:
    """The turn of an array that is checked, and of arguments that are."""
    checks.floating(who, "x", x)
    checks.even_width(who, x)
    checks.one_of(who, "layout", layout, LAYOUTS)
    checks.one_of(who, "kernel", kernel, KERNELS)
    rotation = Rotation(*READ_WRITE[layout])
    return rotation.inverted() if checks.boolean(who, "inverse", inverse) else rotation


def align_tables(
    who: str,
    arrays: Sequence[Any],
    sincos: Any,
    seq_dim: int,
    *,
    columns: int | None = None,
    heads: int | None = None,
    heads_dim: int | None = None,
) -> list[tuple[Any, Any]]:
    """Sine and cosine for each array, with its axes and in the dtype of its arithmetic.

    Tables must have so many `columns` where it is given. With `heads`, they are "*axes heads pairs".
    """
    xp, tables = backends.namespace(arrays[0]), []
    last = last_axes = None
    for x, (sin, cos) in zip(arrays, _tables_for_each(who, arrays, sincos, columns)):
        if heads is None:
            axes = broadcast_axes(who, "tables", sin.shape, 1, x, seq_dim)
            if sin is not last or axes != last_axes:  # as they are alike for q and k
                last, last_axes, shape = sin, axes, (*axes, sin.shape[-1])
                both = (backends.with_axes(xp, sin, shape), backends.with_axes(xp, cos, shape))
            tables.append(both)
        else:
            tables.append(tuple(_align_heads(who, each, x, seq_dim, heads, heads_dim) for each in (sin, cos)))
    return tables


def select_rows(
    who: str, arrays: Sequence[Any], sincos: Any, positions: Any, seq_dim: int, columns: int
) -> list[tuple[Any, Any, Any]]:
    """Sine and cosine, "rows pairs", for each array in the dtype of its arithmetic, and which rows its places take."""
    positions = checks.positions(who, "positions", positions, like=arrays[0], real=False)
    tables = _tables_for_each(who, arrays, sincos, columns)
    shape = checks.shape(tables[0][0])
    if len(shape) != 2 or shape[0] == 0:
        raise ValueError(f"{who}: tables must be (rows, pairs) for positions to choose rows; got shape {shape}")
    return [(*own, where) for own, where in zip(tables, align_positions(who, arrays, positions, seq_dim))]


def align_positions(who: str, arrays: Sequence[Any], positions: Any, seq_dim: int) -> list[Any]:
    """Positions with the axes of each array, but for its channels; the same array where axes are the same."""
    xp, found = backends.namespace(positions), []
    for x in arrays:
        axes = broadcast_axes(who, "positions", positions.shape, 0, x, seq_dim)
        same = found and tuple(found[-1].shape) == axes
        found.append(found[-1] if same else backends.with_axes(xp, positions, axes))
    return found


def _quarter_turn(who: str, x: Any, layout: Layout) -> Any:
    xp = checks.floating(who, "x", x)
    checks.even_width(who, x)
    first, second = split_pairs(xp, x, layout)
    return join_pairs(xp, -second, first, layout)


def _tables_for_each(who: str, arrays: Sequence[Any], sincos: Any, columns: int | None) -> list[tuple[Any, Any]]:
    """`_tables` for each array: the same ones for arrays with the same arithmetic."""
    xp, given, tables = backends.namespace(arrays[0]), {}, []
    for x in arrays:
        in_float64 = backends.dtype_name(x.dtype) == "float64"
        if in_float64 not in given:
            given[in_float64] = _tables(who, xp, x, sincos, in_float64, columns)
        tables.append(given[in_float64])
    return tables


def _tables(who: str, xp: Any, x: Any, sincos: Any, in_float64: bool, columns: int | None) -> tuple[Any, Any]:
    """Sine and cosine in the library of `x` and the dtype of the arithmetic, as wide as they may be."""
    try:
        sin, cos = sincos
    except (TypeError, ValueError):
        raise TypeError(f"{who}: sincos must be a pair (sin, cos); got {type(sincos).__name__}") from None
    sin, cos = _table(who, xp, x, "sin", sin, in_float64), _table(who, xp, x, "cos", cos, in_float64)
    if sin.shape != cos.shape:
        raise ValueError(
            f"{who}: sin and cos must have the same shape; got {checks.shape(sin)} and {checks.shape(cos)}"
        )
    found, most = sin.shape[-1] if sin.ndim else 0, x.shape[-1] // 2
    if columns is not None and found != columns:
        raise ValueError(
            f"{who}: tables must have a last axis of {columns} pairs, one column for each; "
            f"got shape {checks.shape(sin)}"
        )
    if not 1 <= found <= most:
        raise ValueError(
            f"{who}: tables must have a last axis of 1 to {most} pairs, half the width of x; "
            f"got tables of shape {checks.shape(sin)} for x of shape {checks.shape(x)}"
        )
    return sin, cos


def _table(who: str, xp: Any, x: Any, name: str, table: Any, in_float64: bool) -> Any:
    dtype = xp.float64 if in_float64 else xp.float32
    alike = type(table) is type(x) and table.dtype == dtype and backends.on_one_device(table, x)
    if alike and backends.special_kind(table) is None:
        return table
    checks.floating(who, name, table, ("float32", "float64"))
    if in_float64 and backends.dtype_name(table.dtype) != "float64":
        raise TypeError(f"{who}: tables for float64 x must be float64; got {name} in float32")
    if backends.is_host(table):
        # Here, as the library of x may have no float64.
        table = table.astype("float64" if in_float64 else "float32", copy=False)
    return backends.astype(checks.convert_like(who, name, table, x), dtype)


def _align_heads(who: str, table: Any, x: Any, seq_dim: int, heads: int, heads_dim: Any) -> Any:
    """Put a table "*axes heads pairs" onto `x`, whose axis `heads_dim` are the heads."""
    place, seq = checks.axis(who, heads_dim, x, "heads_dim"), checks.axis(who, seq_dim, x)
    others = tuple(size for axis, size in enumerate(x.shape[:-1]) if axis != place)
    axes = None
    if place != seq and table.ndim >= 2 and x.shape[place] == table.shape[-2] == heads:
        axes = _broadcast_shape(table.shape[:-2], others, seq - (place < seq))
    if axes is None:
        raise ValueError(
            f"{who}: tables must be (seq, heads, pairs) or (batch, seq, heads, pairs), with seq_dim={seq_dim} and "
            f"heads_dim={heads_dim} of x the sequence and {heads} heads; got tables of shape {checks.shape(table)} for "
            f"x of shape {checks.shape(x)}"
        )
    xp = backends.namespace(table)
    order = list(range(len(axes)))
    order.insert(place, len(axes))
    return xp.permute_dims(backends.with_axes(xp, table, (*axes, *table.shape[-2:])), (*order, len(axes) + 1))


def broadcast_axes(who: str, name: str, given: Any, columns: int, x: Any, seq_dim: int) -> tuple[int, ...]:
    """The axes of tables or positions, but for the last `columns`, each opposite its axis of `x`; 1 for the others."""
    places = tuple(x.shape[:-1])
    axis = checks.axis(who, seq_dim, x) if places else None  # a vector alone has no sequence
    axes = _broadcast_shape(given[: len(given) - columns], places, axis)
    if axes is None:
        whole, tail = ("one axis less than x", "") if columns == 0 else ("as many axes as x", ", pairs")
        seq = "" if axis is None else f"={places[axis]}"
        raise ValueError(
            f"{who}: {name} must have {whole}, or be (seq{tail}) or (batch, seq{tail}) with seq{seq} on axis "
            f"seq_dim={seq_dim} of x; got shape {tuple(given)} for x of shape {checks.shape(x)}"
        )
    return axes


def _broadcast_shape(axes: Any, places: tuple[int, ...], seq: int | None) -> tuple[int, ...] | None:
    """`axes` as many as `places`, of which number `seq` is the sequence; None where they do not fit."""
    if len(axes) == len(places):
        return tuple(axes) if _fit(axes, places) else None
    if seq is None or not len(axes) or len(axes) > len(places):
        return None
    *batch, last = axes
    if len(batch) > seq or not _fit(batch, places) or not _same(last, places[seq]):
        return None
    return (*batch, *[1] * (seq - len(batch)), last, *[1] * (len(places) - 1 - seq))


def _fit(sizes: Any, places: Any) -> bool:
    """Whether each size is 1 or that of its place."""
    return all(size == 1 or _same(size, place) for size, place in zip(sizes, places))


def _same(size: Any, place: Any) -> bool:
    """Whether two sizes are equal, as far as both are known."""
    return size is None or place is None or size == place
