"""The rotation of pairs of channels, and the axis rule for its tables and positions."""

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
# Each layout: the pairing of the channels that are read, and of the channels that are written.
READ_WRITE: dict[str, tuple[str, str]] = {
    "half": ("half", "half"),
    "interleaved": ("interleaved", "interleaved"),
    "interleaved_to_half": ("interleaved", "half"),
}


def rotate_every_two(x: ArrayT) -> ArrayT:
    """Rotate each pair of neighbouring channels by 90 degrees.

    ::

        x        x0  x1  x2  x3
        result  -x1  x0 -x3  x2

    RoFormer, GPT-J and Meta's Llama checkpoints use this pairing. `rotate_half` is the same rotation of the pairs
    ``(j, j + dim/2)``.

    Parameters
    ----------
    x : array, "*batch dim"
        Floating point; `dim` is even.

    Returns
    -------
    array, "*batch dim"
        It has the library, shape, dtype and device of `x`.

    Raises
    ------
    ValueError
        If `dim` is odd or zero.
    TypeError
        If `x` is not an array or not floating point.

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
    """Rotate each pair of channels that are ``dim/2`` apart by 90 degrees.

    ::

        x        x0  x1  x2  x3
        result  -x2 -x3  x0  x1

    GPT-NeoX and Llama in transformers use this pairing. `rotate_every_two` is the same rotation of neighbouring
    channels.

    Parameters
    ----------
    x : array, "*batch dim"
        Floating point; `dim` is even.

    Returns
    -------
    array, "*batch dim"
        It has the library, shape, dtype and device of `x`.

    Raises
    ------
    ValueError
        If `dim` is odd or zero.
    TypeError
        If `x` is not an array or not floating point.

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
    """Rotate each pair of channels of `x` by its angle.

    ``result[pair] = [[cos, -sin], [sin, cos]] @ x[pair]``. The first ``2 * pairs`` channels are rotated. The other
    channels pass through unchanged, bit for bit. The arithmetic is done in float32 (float64 for float64 `x`), and the
    result is rounded once to the dtype of `x`.

    Parameters
    ----------
    x : array, "*batch dim"
        Floating point; `dim` is even. The channels are the last axis. The other axes are in any order.
    sincos : (array, array), "*axes pairs"
        Sine and cosine, in this order, in float32 or float64. They are arrays of NumPy or of the library of `x`.
        Tables with as many axes as `x` broadcast against it. Tables with fewer axes are "seq pairs" or
        "batch seq pairs": their sequence axis is aligned with axis `seq_dim` of `x`, and the axes before it with the
        leading axes of `x`.
    layout : "half", "interleaved" or "interleaved_to_half"
        Which channels form a pair. ``"interleaved"`` pairs neighbouring channels, as `rotate_every_two` does.
        ``"half"`` pairs channels j and j + pairs, as `rotate_half` does. ``"interleaved_to_half"`` reads neighbouring
        channels and writes channels j and j + pairs.
    seq_dim : int
        The sequence axis of `x`. The default is for `x` of "seq heads dim".
    inverse : bool
        Rotate by the negative angles. This is the transpose of the rotation, and the gradient of the rotation uses it.
        It is the exact inverse if the tables are not multiplied by an attention factor m. Otherwise divide both tables
        by ``m**2`` first, as `RotaryEmbedding.rotate` does.
    kernel : "fastest", "reference", "blocked", "numba", "triton" or "xla"
        The implementation. ``"fastest"`` selects it by the library and the device of `x`:

        - NumPy and PyTorch on the CPU: ``"numba"`` if it is installed (``rope-xp[fast]``), else ``"blocked"``, array
          operations on blocks that fit into the cache.
        - PyTorch on CUDA: ``"triton"``.
        - JAX: ``"xla"``, the form that XLA fuses best.
        - All other libraries, `torch.compile` and exporters: ``"reference"``, one array-API expression.

        Under `torch.compile` and exporters, ``"triton"`` is the only other kernel that takes effect, as an operator of
        the graph. Results of two kernels differ at most by the rounding of the products. `RotaryEmbedding.describe`
        names the selected kernel.

    Returns
    -------
    array, "*batch dim"
        It has the library, shape, dtype and device of `x`.

    Raises
    ------
    ValueError
        If `dim` is odd, the tables are wider than `x` or do not fit its axes, `layout` or `kernel` is unknown, or the
        kernel is not installed or does not support `x`.
    TypeError
        If a dtype is not floating point, if `x` is float64 and the tables are not, or if the tables belong neither to
        NumPy nor to the library of `x`.

    References
    ----------
    Su et al., RoFormer (2021), arXiv:2104.09864, equation 34. Name: kingoflolz/mesh-transformer-jax,
    `mesh_transformer/layers.py`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.ones((3, 2, 4), dtype=np.float32)  # seq heads dim
    >>> angles = np.full((3, 1), np.pi / 2)  # one angle per position: the first two channels are rotated
    >>> apply_rotary_pos_emb(x, (np.sin(angles), np.cos(angles))).round(3)[0]
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
    """Rotate each pair of channels of `x` by its angle, and write the result into `x`.

    This is `apply_rotary_pos_emb` for inference: it has no derivative. All arguments are checked before the first
    write.

    Parameters
    ----------
    x : array of NumPy or PyTorch, "*batch dim"
        It must be writable and must not require grad. No two of its elements may share memory, and it must not share
        memory with the tables.
    sincos, layout, seq_dim, inverse, kernel
        As in `apply_rotary_pos_emb`.

    Raises
    ------
    ValueError
        As `apply_rotary_pos_emb` does, and if `x` cannot be written as described.
    TypeError
        As `apply_rotary_pos_emb` does, and if `x` belongs to another library, such as JAX, whose arrays are immutable.

    References
    ----------
    As `apply_rotary_pos_emb`.

    Examples
    --------
    >>> import numpy as np
    >>> x, angles = np.asarray([[1.0, 2.0]]), np.full((1, 1), np.pi / 2)
    >>> apply_rotary_pos_emb_inplace(x, (np.sin(angles), np.cos(angles)))
    >>> x.round(3)
    array([[-2.,  1.]])
    """
    who = "apply_rotary_pos_emb_inplace"
    rotation = _rotation(who, x, layout, inverse, kernel)
    kernels.rotate_inplace(who, [x], align_tables(who, [x], sincos, seq_dim), rotation, kernel)


def _rotation(who: str, x: Any, layout: str, inverse: bool, kernel: str) -> Rotation:
    """The rotation that the arguments ask for, after all of them are checked."""
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
    """Sine and cosine for each array: they broadcast against it and have the dtype of its arithmetic.

    With `columns`, tables must have that many columns. With `heads`, tables are "*axes heads pairs".
    """
    xp, tables = backends.namespace(arrays[0]), []
    last_sin = last_axes = None
    for x, (sin, cos) in zip(arrays, _tables_for_each(who, arrays, sincos, columns)):
        if heads is None:
            axes = broadcast_axes(who, "tables", sin.shape, 1, x, seq_dim)
            if sin is not last_sin or axes != last_axes:  # q and k usually share one aligned pair of tables
                last_sin, last_axes, shape = sin, axes, (*axes, sin.shape[-1])
                aligned = (backends.with_axes(xp, sin, shape), backends.with_axes(xp, cos, shape))
            tables.append(aligned)
        else:
            tables.append(tuple(_align_heads(who, table, x, seq_dim, heads, heads_dim) for table in (sin, cos)))
    return tables


def select_rows(
    who: str, arrays: Sequence[Any], sincos: Any, positions: Any, seq_dim: int, columns: int
) -> list[tuple[Any, Any, Any]]:
    """For each array: sine and cosine, "rows pairs", in the dtype of its arithmetic, and the row of each token."""
    positions = checks.positions(who, "positions", positions, like=arrays[0], real=False)
    tables = _tables_for_each(who, arrays, sincos, columns)
    shape = checks.shape(tables[0][0])
    if len(shape) != 2 or shape[0] == 0:
        raise ValueError(f"{who}: tables must be (rows, pairs) when positions select rows; got shape {shape}")
    return [(*pair, rows) for pair, rows in zip(tables, align_positions(who, arrays, positions, seq_dim))]


def align_positions(who: str, arrays: Sequence[Any], positions: Any, seq_dim: int) -> list[Any]:
    """For each array: positions that broadcast against all its axes except the channels.

    Neighbouring arrays share one array of positions if it has the same shape for both.
    """
    xp, aligned = backends.namespace(positions), []
    for x in arrays:
        axes = broadcast_axes(who, "positions", positions.shape, 0, x, seq_dim)
        same = aligned and tuple(aligned[-1].shape) == axes
        aligned.append(aligned[-1] if same else backends.with_axes(xp, positions, axes))
    return aligned


def _quarter_turn(who: str, x: Any, layout: Layout) -> Any:
    xp = checks.floating(who, "x", x)
    checks.even_width(who, x)
    first, second = split_pairs(xp, x, layout)
    return join_pairs(xp, -second, first, layout)


def _tables_for_each(who: str, arrays: Sequence[Any], sincos: Any, columns: int | None) -> list[tuple[Any, Any]]:
    """`_tables` for each array. Arrays with the same dtype of arithmetic share their tables."""
    xp, by_dtype, tables = backends.namespace(arrays[0]), {}, []
    for x in arrays:
        in_float64 = backends.dtype_name(x.dtype) == "float64"
        if in_float64 not in by_dtype:
            by_dtype[in_float64] = _tables(who, xp, x, sincos, in_float64, columns)
        tables.append(by_dtype[in_float64])
    return tables


def _tables(who: str, xp: Any, x: Any, sincos: Any, in_float64: bool, columns: int | None) -> tuple[Any, Any]:
    """Sine and cosine in the library of `x` and the dtype of its arithmetic, with a checked width."""
    try:
        sin, cos = sincos
    except (TypeError, ValueError):
        raise TypeError(f"{who}: sincos must be a pair (sin, cos); got {type(sincos).__name__}") from None
    sin, cos = _table(who, xp, x, "sin", sin, in_float64), _table(who, xp, x, "cos", cos, in_float64)
    if sin.shape != cos.shape:
        raise ValueError(
            f"{who}: sin and cos must have the same shape; got {checks.shape(sin)} and {checks.shape(cos)}"
        )
    width, widest = sin.shape[-1] if sin.ndim else 0, x.shape[-1] // 2
    if columns is not None and width != columns:
        raise ValueError(
            f"{who}: tables must have one column for each of the {columns} pairs, on the last axis; "
            f"got shape {checks.shape(sin)}"
        )
    if not 1 <= width <= widest:
        raise ValueError(
            f"{who}: tables must have 1 to {widest} pairs on the last axis, at most half the channels of x; "
            f"got tables of shape {checks.shape(sin)} for x of shape {checks.shape(x)}"
        )
    return sin, cos


def _table(who: str, xp: Any, x: Any, name: str, table: Any, in_float64: bool) -> Any:
    dtype = xp.float64 if in_float64 else xp.float32
    same_kind = type(table) is type(x) and table.dtype == dtype and backends.on_one_device(table, x)
    if same_kind and backends.special_kind(table) is None:
        return table
    checks.floating(who, name, table, ("float32", "float64"))
    if in_float64 and backends.dtype_name(table.dtype) != "float64":
        raise TypeError(f"{who}: tables for float64 x must be float64; got {name} in float32")
    if backends.is_host(table):
        # NumPy converts the dtype, because the library of x may have no float64.
        table = table.astype("float64" if in_float64 else "float32", copy=False)
    return backends.astype(checks.convert_like(who, name, table, x), dtype)


def _align_heads(who: str, table: Any, x: Any, seq_dim: int, heads: int, heads_dim: Any) -> Any:
    """Align a table "*axes heads pairs" with `x`; `heads_dim` is the axis of heads of `x`."""
    heads_axis, seq_axis = checks.axis(who, heads_dim, x, "heads_dim"), checks.axis(who, seq_dim, x)
    other_sizes = tuple(size for axis, size in enumerate(x.shape[:-1]) if axis != heads_axis)
    axes = None
    if heads_axis != seq_axis and table.ndim >= 2 and x.shape[heads_axis] == table.shape[-2] == heads:
        axes = _broadcast_shape(table.shape[:-2], other_sizes, seq_axis - (heads_axis < seq_axis))
    if axes is None:
        raise ValueError(
            f"{who}: tables must be (seq, heads, pairs) or (batch, seq, heads, pairs), where seq is the size of axis "
            f"seq_dim={seq_dim} of x and heads={heads} the size of its axis heads_dim={heads_dim}; "
            f"got tables of shape {checks.shape(table)} for x of shape {checks.shape(x)}"
        )
    xp = backends.namespace(table)
    order = list(range(len(axes)))
    order.insert(heads_axis, len(axes))
    return xp.permute_dims(backends.with_axes(xp, table, (*axes, *table.shape[-2:])), (*order, len(axes) + 1))


def broadcast_axes(who: str, name: str, shape: Any, columns: int, x: Any, seq_dim: int) -> tuple[int, ...]:
    """Shape that broadcasts tables or positions against `x`: matching axes keep their size, all others are 1.

    The last `columns` axes of `shape`, and the channels of `x`, are left out.
    """
    target = tuple(x.shape[:-1])
    axis = checks.axis(who, seq_dim, x) if target else None  # a single vector has no sequence axis
    axes = _broadcast_shape(shape[: len(shape) - columns], target, axis)
    if axes is None:
        full_rank, tail = ("one axis less than x", "") if columns == 0 else ("as many axes as x", ", pairs")
        seq = "" if axis is None else f"={target[axis]}"
        raise ValueError(
            f"{who}: {name} must have {full_rank}, or be (seq{tail}) or (batch, seq{tail}) with seq{seq} on axis "
            f"seq_dim={seq_dim} of x; got shape {tuple(shape)} for x of shape {checks.shape(x)}"
        )
    return axes


def _broadcast_shape(shape: Any, target: tuple[int, ...], seq_axis: int | None) -> tuple[int, ...] | None:
    """`shape` with as many axes as `target`, where `seq_axis` is the sequence; None if it does not fit."""
    if len(shape) == len(target):
        return tuple(shape) if _broadcasts(shape, target) else None
    if seq_axis is None or not len(shape) or len(shape) > len(target):
        return None
    *batch, seq = shape
    if len(batch) > seq_axis or not _broadcasts(batch, target) or not _equal_sizes(seq, target[seq_axis]):
        return None
    return (*batch, *[1] * (seq_axis - len(batch)), seq, *[1] * (len(target) - 1 - seq_axis))


def _broadcasts(shape: Any, target: Any) -> bool:
    """Whether each size is 1 or equal to the target's."""
    return all(size == 1 or _equal_sizes(size, other) for size, other in zip(shape, target))


def _equal_sizes(size: Any, other: Any) -> bool:
    """Whether two sizes are equal. None is an unknown size, which may be equal to any."""
    return size is None or other is None or size == other
