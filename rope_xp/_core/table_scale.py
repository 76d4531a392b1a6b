"""The factors of sines and cosines: the attention factor, and the position-dependent scales of `XPos`."""

from typing import Any, NamedTuple

from rope_xp._core import backends, checks
from rope_xp._core.errors import wrong_value
from rope_xp._core.phases import Frequencies, difference
from rope_xp.frequencies import Scaling, XPos


class TableScale(NamedTuple):
    """The factors of tables. `rates` are those of `XPos.rates`, and are empty without `xpos`.

    `scale_of` creates it from checked arguments.
    """

    attention_factor: float
    xpos: XPos | None
    rates: tuple[float, ...]

    def at(self, positions: Any, sign: int, like: Any) -> Any:
        """The scale of tables of a query (sign 1) or key (sign -1) at these positions; None if it is 1."""
        factor = None if self.attention_factor == 1.0 else self.attention_factor
        if self.xpos is None:
            return factor
        positions = checks.positions("positions", positions, like=like)
        scale = self.over(difference(positions, self.xpos.centre, like.dtype), sign, like)
        return scale if factor is None else scale * factor

    def over(self, tokens: Any, sign: int, like: Any) -> Any:
        """The scale of each pair at a distance of `tokens`: of a query with sign 1, of a key with sign -1."""
        tokens = backends.astype(tokens, like.dtype)[..., None]
        rates = backends.from_numbers(self.rates, like=like, dtype=like.dtype)
        rates = backends.with_axes(backends.namespace(rates), rates, (*[1] * (tokens.ndim - 1), *rates.shape))
        return backends.namespace(like).exp(sign * tokens * rates)

    def inverted(self, sin: Any, cos: Any) -> tuple[Any, Any]:
        """Tables divided by the square of their scale, so that the inverse rotation removes the scale."""
        if self.xpos is None:
            factor = self.attention_factor  # two divisions, because the square may overflow float32
            return (sin, cos) if factor == 1.0 else (sin / factor / factor, cos / factor / factor)
        # Each pair has its own scale, m, and m**2 may overflow float32. With greater = max(|sin|, |cos|), the
        # directions sin / greater and cos / greater have the squared length (m / greater)**2.
        xp = backends.namespace(sin)
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
        raise wrong_value(f"xpos must be given with one position axis; got {frequencies.axes} axes")
    factor = attention_factor
    if removed is not None and factor is not None and factor == removed.resolved_attention_factor != 1.0:
        raise wrong_value(
            f"attention_factor must not come from a scaling that was removed (`rope.replace` computes it "
            f"again); got {factor}, from {removed}"
        )
    rates = () if xpos is None else xpos.rates(2 * frequencies.pairs)
    return TableScale(_resolve_attention_factor(attention_factor, scaling), xpos, rates)


def _resolve_attention_factor(attention_factor: Any, scaling: Scaling | None) -> float:
    """The attention factor. If `scaling` is given too, it must be that of `scaling`."""
    if attention_factor is None:
        return 1.0 if scaling is None else scaling.resolved_attention_factor
    attention_factor = checks.positive("attention_factor", attention_factor)
    if scaling is not None and attention_factor != scaling.resolved_attention_factor:
        raise wrong_value(
            f"attention_factor must be that of scaling, {scaling.resolved_attention_factor} (pass None to use "
            f"it); got {attention_factor}"
        )
    return attention_factor
