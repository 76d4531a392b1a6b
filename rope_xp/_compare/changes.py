"""What may be wrong with a function that should compute an embedding: changes of its behaviour, to be tried."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import exp, log
from typing import Any

import numpy as np

from rope_xp._compare.behaviour import Behaviour
from rope_xp._compare.measure import Measured
from rope_xp._core.axes import ORDERS, Sections
from rope_xp._core.channels import LAYOUTS
from rope_xp.frequencies import LinearScaling

# A variant of a behaviour, from what was measured. None if it does not apply.
Change = Callable[[Behaviour, Measured], Iterator[Behaviour]]


def _variants(one: Behaviour, changes: Iterable[dict[str, Any]]) -> Iterator[Behaviour]:
    """A behaviour with other arguments of its value. Arguments that do not fit together are left out."""
    for arguments in changes:
        try:
            yield one._replace(rope=one.rope.replace(**arguments))  # pyright: ignore[reportOptionalMemberAccess]
        except ValueError:
            continue


def _layout(one: Behaviour, _: Measured) -> Iterator[Behaviour]:
    rope: Any = one.rope
    others = [layout for layout in LAYOUTS if layout != rope.layout or rope.blocks != 1]
    return _variants(one, [{"layout": layout, "blocks": 1} for layout in others])


def _width(one: Behaviour, measured: Measured) -> Iterator[Behaviour]:
    """Another number of rotated channels, with a progression of its own or a part of that of a wider head."""
    rope: Any = one.rope
    whole = rope.head_dim - rope.first_channel
    widths = [each for each in dict.fromkeys((measured.width, whole, whole // 2, whole // 4)) if each >= 2]
    if rope.base is None:
        return
    yield from _variants(one, [{"rotary_dim": width} for width in widths if width != rope.rotary_dim])
    if rope.axes == 1:
        for width in dict.fromkeys((*widths, rope.rotary_dim)):
            wider = {whole, rope.rotary_dim} - {width}
            parts = [rope.replace(rotary_dim=each).inv_freq[: width // 2] for each in wider if each > width]
            yield from _variants(one, [{**GIVEN, "inv_freq": part, "rotary_dim": width} for part in parts])


# Arguments of a value whose frequencies nothing states but themselves.
GIVEN = {"base": None, "scaling": None, "sections": None, "reverse": False, "attention_factor": None}


def _direction(one: Behaviour, _: Measured) -> Iterator[Behaviour]:
    rope: Any = one.rope
    if rope.base is not None:
        yield from _variants(one, [{"reverse": not rope.reverse}])


def _sincos_order(one: Behaviour, _: Measured) -> Iterator[Behaviour]:
    yield one._replace(is_swapped=not one.is_swapped)


def _offset(one: Behaviour, _: Measured) -> Iterator[Behaviour]:
    return (one._replace(offset=offset) for offset in (1, -1))


def _sections(one: Behaviour, _: Measured) -> Iterator[Behaviour]:
    rope: Any = one.rope
    if rope.sections is not None:
        yield from _variants(one, [{"sections": each} for each in _other_sections(rope.sections)])


def _other_sections(sections: Sections) -> Iterator[Sections]:
    for order in ORDERS:
        try:
            yield replace(sections, order=order)
        except ValueError:  # these sizes do not fit this order
            continue


def _scaling(one: Behaviour, measured: Measured) -> Iterator[Behaviour]:
    """No scaling, or all frequencies divided by one factor."""
    rope: Any = one.rope
    if rope.scaling is not None:
        yield one._replace(rope=rope.replace(scaling=None, attention_factor=None))
    elif rope.base is not None and rope.axes == 1:
        factor = abs(one.map().step[0, 0]) / max(measured.frequency(one, 0), 1e-9)
        if factor > 1.01:
            yield one._replace(rope=rope.replace(scaling=LinearScaling(factor=plain(factor)), attention_factor=None))


def _base(one: Behaviour, measured: Measured) -> Iterator[Behaviour]:
    """The base with which the second pair has the frequency that was measured."""
    rope: Any = one.rope
    if rope.base is None or rope.pairs < 2:
        return
    wanted = measured.frequency(one, 1)
    low, high = 1e-6, log(1e15)  # YaRN needs a base above 1
    for _ in range(60):
        middle = (low + high) / 2
        found = abs(rope.replace(base=exp(middle), attention_factor=None)._spectrum.frequencies.rows[0].inv_freq[1])
        low, high = (middle, high) if found > wanted else (low, middle)
    base = plain(exp(low))
    if base < 1e15 and base != rope.base:
        yield from _variants(one, [{"base": base, "attention_factor": None}])


def _attention_factor(one: Behaviour, measured: Measured) -> Iterator[Behaviour]:
    """The square of the factor, or the factor that was measured."""
    found, now = float(np.median(np.abs(measured.factors(one, 0)))), one.attention_factor
    near = [each for each in (now * now, 1.0) if abs(found - each) < 1e-3 * each]
    found = near[0] if near else float(f"{found:.5g}")
    if found > 0.0 and abs(found - now) > 1e-4 * now:
        yield one._replace(factor=one.factor * found / now)


def plain(number: float) -> float:
    """The roundest number that is near."""
    return next(
        (each for digits in range(1, 7) if abs((each := float(f"{number:.{digits}g}")) - number) < 2e-5 * number),
        number,
    )


# In the order in which two changes are made: what a later one measures depends on the earlier ones.
CHANGES: tuple[Change, ...] = (
    _layout,
    _width,
    _direction,
    _sincos_order,
    _offset,
    _sections,
    _scaling,
    _base,
    _attention_factor,
)


def behaviours_near(one: Behaviour, measured: Measured, most: int) -> Iterator[Behaviour]:
    """A behaviour, and those with up to `most` changes, the fewest first."""
    level: list[tuple[int, Behaviour]] = [(0, one)]
    for count in range(most + 1):
        yield from (behaviour for _, behaviour in level)
        if count < most:
            level = [
                (number + 1, changed)
                for first, behaviour in level
                for number in range(first, len(CHANGES))
                for changed in CHANGES[number](behaviour, measured)
            ]
