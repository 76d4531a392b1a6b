"""Given tables in the library, device and dtype that a rotation needs; the factors of tables (attention, `XPos`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rope_xp.arrays import checks, libraries
from rope_xp.arrays.exact_phases import Frequencies, difference
from rope_xp.errors import wrong_type, wrong_value
from rope_xp.frequencies import Scaling, XPos
from rope_xp.types import Array


@dataclass(frozen=True, eq=False)  # `libraries.constant` keeps numbers for each object
class TableScale:
    """The factors of tables. `rates` are those of `XPos.rates`, and are empty without `xpos`."""

    attention_factor: float
    xpos: XPos | None
    rates: tuple[float, ...]

    def at(self, positions: Array, sign: int, like: Any) -> Any:
        """The factor of tables: an array with `xpos`, else a number; None for 1."""
        factor = None if self.attention_factor == 1.0 else self.attention_factor
        if self.xpos is None:
            return factor
        positions = checks.positions("positions", positions, like=like)
        scale = self.over(difference(positions, self.xpos.centre, like.dtype), sign, like)
        return scale if factor is None else scale * factor

    def over(self, tokens: Any, sign: int, like: Any) -> Any:
        """The scale of each pair at a distance of `tokens`: of a query with sign 1, of a key with sign -1."""
        tokens = libraries.astype(tokens, like.dtype)[..., None]
        rates = libraries.constant(self, self.rates, like=like, dtype=like.dtype)
        rates = libraries.with_axes(libraries.namespace(rates), rates, (*[1] * (tokens.ndim - 1), *rates.shape))
        return libraries.namespace(like).exp(sign * tokens * rates)

    def inverted(self, sin: Any, cos: Any) -> tuple[Any, Any]:
        """Tables divided by the square of their scale, so that the inverse rotation removes the scale."""
        if self.xpos is None:
            factor = self.attention_factor  # two divisions, because the square may overflow float32
            return (sin, cos) if factor == 1.0 else (sin / factor / factor, cos / factor / factor)
        # Each pair has its own scale, m, and m**2 may overflow float32. With greater = max(|sin|, |cos|), the
        # directions sin / greater and cos / greater have the squared length (m / greater)**2.
        xp = libraries.namespace(sin)
        greater = xp.maximum(xp.abs(sin), xp.abs(cos))
        sin, cos = sin / greater, cos / greater
        divisor = (sin * sin + cos * cos) * greater
        return sin / divisor, cos / divisor


def scale_of(
    attention_factor: Any,
    scaling: Scaling | None,
    removed: Scaling | None,
    xpos: Any,
    frequencies: Frequencies,
) -> TableScale:
    """The scale of tables. The attention factor must not be that of a `removed` scaling."""
    if xpos is not None and (frequencies.axes > 1 or frequencies.heads is not None):
        of_heads = "" if frequencies.heads is None else f" and frequencies of {frequencies.heads} heads"
        raise wrong_value(
            f"xpos must be given with one position axis and no heads; got {frequencies.axes} axes{of_heads}"
        )
    factor = attention_factor
    if removed is not None and factor is not None and factor == removed.resolved_attention_factor != 1.0:
        raise wrong_value(
            f"attention_factor must not come from a scaling that was removed (`rope.replace` computes it "
            f"again); got {factor}, from {removed}"
        )
    rates = () if xpos is None else xpos.rates(2 * frequencies.pairs)
    return TableScale(_resolve_attention_factor(attention_factor, scaling), xpos, rates)


def _resolve_attention_factor(attention_factor: object, scaling: Scaling | None) -> float:
    if attention_factor is None:
        return 1.0 if scaling is None else scaling.resolved_attention_factor
    attention_factor = checks.positive("attention_factor", attention_factor)
    if scaling is not None and attention_factor != scaling.resolved_attention_factor:
        raise wrong_value(
            f"attention_factor must be that of scaling, {scaling.resolved_attention_factor} (pass None to use "
            f"it); got {attention_factor}"
        )
    return attention_factor


def pair_of(sincos: Any) -> tuple[Any, Any]:
    try:
        sin, cos = sincos
    except (TypeError, ValueError):
        raise wrong_type(f"sincos must be a pair (sin, cos); got {type(sincos).__name__}") from None
    return sin, cos


def check_tables(arrays: Sequence[Array], sincos: tuple[Any, Any], columns: int | None = None) -> bool:
    """Whether tables fit all arrays as they are. Those that cannot be converted, or lack `columns`, are errors."""
    sin, cos = sincos
    xp, are_ready = libraries.namespace(arrays[0]), True
    for x in arrays:
        in_float64 = libraries.dtype_name(x.dtype) == "float64"
        dtype = xp.float64 if in_float64 else xp.float32
        for name, table in (("sin", sin), ("cos", cos)):
            if not _is_ready(table, x, dtype):
                are_ready = False
                _check_table(name, table, x, in_float64)
        _check_columns(x, sin, cos, columns)
    return are_ready


def convert_tables(arrays: Sequence[Array], sincos: tuple[Any, Any], are_ready: bool = False) -> list[tuple[Any, Any]]:
    """Convert checked tables to the library of each array and the dtype of its arithmetic, unless they `are_ready`."""
    sin, cos = sincos
    if are_ready:
        return [(sin, cos)] * len(arrays)
    tables, last_dtype = [], None
    for x in arrays:
        if last_dtype is None or x.dtype != last_dtype:  # neighbouring arrays of one dtype share their tables
            last_dtype, in_float64 = x.dtype, libraries.dtype_name(x.dtype) == "float64"
            pair = (_convert_table("sin", sin, x, in_float64), _convert_table("cos", cos, x, in_float64))
        tables.append(pair)
    return tables


def _is_ready(table: Array, x: Array, dtype: object) -> bool:
    same_kind = type(table) is type(x) and table.dtype == dtype and libraries.on_one_device(table, x)
    return same_kind and libraries.special_kind(table) is None


def _check_table(name: str, table: Array, x: Array, in_float64: bool) -> None:
    checks.floating(name, table, ("float32", "float64"))
    if in_float64 and libraries.dtype_name(table.dtype) != "float64":
        raise wrong_type(f"tables for float64 x must be float64, as sincos(..., like=x) gives; got {name} in float32")
    checks.convertible(name, table, x)


def _check_columns(x: Array, sin: Array, cos: Array, columns: int | None) -> None:
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
    xp = libraries.namespace(x)
    if libraries.is_host(table):
        # NumPy converts the dtype, because the library of x may have no float64.
        table = table.astype("float64" if in_float64 else "float32", copy=False)
    return libraries.astype(checks.convert_like(name, table, x), xp.float64 if in_float64 else xp.float32)
