"""Tables of sines and cosines in the library, on the device and in the dtype that a rotation needs."""

from collections.abc import Sequence
from typing import Any

from rope_xp._core import backends, checks
from rope_xp._core.errors import wrong_type, wrong_value


def pair_of(sincos: Any) -> tuple[Any, Any]:
    """Unpack a pair of tables into sine and cosine."""
    try:
        sin, cos = sincos
    except (TypeError, ValueError):
        raise wrong_type(f"sincos must be a pair (sin, cos); got {type(sincos).__name__}") from None
    return sin, cos


def check_tables(arrays: Sequence[Any], sincos: tuple[Any, Any], columns: int | None = None) -> bool:
    """Whether tables can be used for all arrays as they are. Tables that cannot be converted raise an error.

    With `columns`, tables must have that many columns.
    """
    sin, cos = sincos
    xp, are_ready, last_dtype = backends.namespace(arrays[0]), True, None
    for x in arrays:
        if last_dtype is not None and x.dtype == last_dtype:  # neighbouring arrays of one dtype share their tables
            continue
        last_dtype, in_float64 = x.dtype, backends.dtype_name(x.dtype) == "float64"
        dtype = xp.float64 if in_float64 else xp.float32
        for name, table in (("sin", sin), ("cos", cos)):
            if not _is_ready(table, x, dtype):
                are_ready = False
                _check_table(name, table, x, in_float64)
        _check_columns(x, sin, cos, columns)
    return are_ready


def convert_tables(arrays: Sequence[Any], sincos: tuple[Any, Any], are_ready: bool = False) -> list[tuple[Any, Any]]:
    """Convert checked tables to the library of each array and the dtype of its arithmetic, unless they `are_ready`."""
    sin, cos = sincos
    if are_ready:
        return [(sin, cos)] * len(arrays)
    tables, last_dtype = [], None
    for x in arrays:
        if last_dtype is None or x.dtype != last_dtype:  # neighbouring arrays of one dtype share their tables
            last_dtype, in_float64 = x.dtype, backends.dtype_name(x.dtype) == "float64"
            pair = (_convert_table("sin", sin, x, in_float64), _convert_table("cos", cos, x, in_float64))
        tables.append(pair)
    return tables


def _is_ready(table: Any, x: Any, dtype: Any) -> bool:
    """Whether a table can be used for `x` without conversion. `dtype` is that of the arithmetic."""
    same_kind = type(table) is type(x) and table.dtype == dtype and backends.on_one_device(table, x)
    return same_kind and backends.special_kind(table) is None


def _check_table(name: str, table: Any, x: Any, in_float64: bool) -> None:
    """A table must be an array that can be converted for `x`."""
    checks.floating(name, table, ("float32", "float64"))
    if in_float64 and backends.dtype_name(table.dtype) != "float64":
        raise wrong_type(f"tables for float64 x must be float64; got {name} in float32")
    checks.convertible(name, table, x)


def _check_columns(x: Any, sin: Any, cos: Any, columns: int | None) -> None:
    """Sine and cosine must have the same shape, and a width that fits `x`."""
    if sin.shape != cos.shape:
        raise wrong_value(f"sin and cos must have the same shape; got {checks.shape(sin)} and {checks.shape(cos)}")
    width, widest = sin.shape[-1] if sin.ndim else 0, x.shape[-1] // 2
    if columns is not None and width != columns:
        raise wrong_value(
            f"tables must have one column for each of the {columns} pairs, on the last axis; "
            f"got shape {checks.shape(sin)}"
        )
    if not 1 <= width <= widest:
        raise wrong_value(
            f"tables must have 1 to {widest} pairs on the last axis, at most half the channels of x; "
            f"got tables of shape {checks.shape(sin)} for x of shape {checks.shape(x)}"
        )


def _convert_table(name: str, table: Any, x: Any, in_float64: bool) -> Any:
    """A table in the library of `x` and the dtype of its arithmetic."""
    xp = backends.namespace(x)
    if backends.is_host(table):
        # NumPy converts the dtype, because the library of x may have no float64.
        table = table.astype("float64" if in_float64 else "float32", copy=False)
    return backends.astype(checks.convert_like(name, table, x), xp.float64 if in_float64 else xp.float32)
