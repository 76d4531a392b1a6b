"""The embedding of several position axes, from a function that was identified along each axis alone."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, permutations, product
from typing import Any

import numpy as np

from rope_xp.arrays import libraries
from rope_xp.embedding import RotaryEmbedding
from rope_xp.identification import identify
from rope_xp.identification.calls import ROUNDOFF
from rope_xp.identification.identification import Identification
from rope_xp.identification.rules import roundings, rule_of
from rope_xp.sections import ORDERS, Sections
from rope_xp.types import Array


def identify_axes(fn: Callable[..., Any], head_dim: int, axes: int, **options: Any) -> Identification:
    """Identify ``fn(x, rows)``, where `rows` are the positions of the axes, a list of `axes` arrays.

    With equal positions on all axes, it is an embedding of one axis, whose layout and magnitude are those of all. With
    positions on one axis and zeros on the others, the pairs that follow this axis turn. `options` are those of
    `identify`.
    """
    found = identify(lambda x, positions: fn(x, [positions] * axes), head_dim, **options)
    rope: Any = found.rope
    if axes == 1 or rope is None:
        return found

    channels = np.ones(head_dim)
    channels[list(chain.from_iterable(found.pairs))] = 1.0 / rope.attention_factor  # of all axes together

    def along(axis: int) -> Identification:
        def one(x: Array, positions: Array) -> Any:
            y = fn(x, [positions if each == axis else positions * 0 for each in range(axes)])
            return y * libraries.from_host(channels, like=y, dtype=y.dtype)

        return identify(one, head_dim, **options)

    rows = _rows(rope, found, [along(axis) for axis in range(axes)])
    if isinstance(rows, str):
        return replace(found, rope=None, confidence=0.0, reasons=(*found.reasons, rows))
    return replace(found, rope=_value(rope, rows))


def _rows(rope: RotaryEmbedding, found: Identification, each: Sequence[Identification]) -> np.ndarray | str:
    """The frequencies "axes pairs"; or, in words, why there are none."""
    inv_freq, number = np.asarray(rope.inv_freq), {pair: at for at, pair in enumerate(_pairs_of(rope, found))}
    rows = np.zeros((len(each), rope.pairs))
    for axis, one in enumerate(each):
        if not one.is_rotation or one.offset != 0:
            return f"Along axis {axis} alone: {' '.join(one.reasons) or 'it is not a rotation.'}"
        if not set(one.pairs) <= set(number):
            return f"Axis {axis} has pairs that equal positions on all axes do not have."
        for pair, w in zip(one.pairs, one.inv_freq):
            rows[axis, number[pair]] = w
    if not np.allclose(rows.sum(axis=0), inv_freq, rtol=1e-4, atol=1e-9):
        return "The angles of the axes do not add up to those of equal positions."
    alone = np.count_nonzero(rows, axis=0) == 1
    return np.where((rows != 0.0) & alone, inv_freq, rows)  # a pair of one axis: its number has been rounded


def _pairs_of(rope: RotaryEmbedding, found: Identification) -> list[tuple[int, int]]:
    """The channels of each pair of an embedding, in its order."""
    at = rope.first_channel
    width = 2 * rope.pairs // rope.blocks
    if rope.layout == "half":
        return [
            (at + block * width + j, at + block * width + j + width // 2)
            for block in range(rope.blocks)
            for j in range(width // 2)
        ]
    return [(at + 2 * j, at + 2 * j + 1) for j in range(rope.pairs)]


def _value(rope: RotaryEmbedding, rows: np.ndarray) -> RotaryEmbedding:
    """The embedding with sections if they explain the rows, else with the rows."""
    if (np.count_nonzero(rows, axis=0) == 1).all():
        axis_of_pair, allowed = np.argmax(rows != 0.0, axis=0), ROUNDOFF["float32"] * roundings(rows) * np.abs(rows)
        for value in _with_sections(_bases(rope, rows, axis_of_pair), axis_of_pair.tolist()):
            if (np.abs(np.asarray(value.inv_freq) - rows) <= allowed).all():
                return value
    options = {"head_dim": rope.head_dim, "layout": rope.layout, "first_channel": rope.first_channel}
    options |= {"rotary_dim": 2 * rope.pairs, "blocks": rope.blocks, "attention_factor": rope.attention_factor}
    return RotaryEmbedding(**options, inv_freq=rows.tolist())


def _bases(rope: Any, rows: np.ndarray, axis_of_pair: np.ndarray) -> RotaryEmbedding | None:
    """The embedding with a base: its own, or that of the progression of one axis; None without."""
    if rope.base is not None:
        return rope
    own = np.abs(rows[0, axis_of_pair == 0])
    rule = rule_of(own, ROUNDOFF["float32"] * own, rope.attention_factor, ROUNDOFF["float32"])
    if rule is None:
        return None
    reverse = bool((rows <= 0.0).all())
    try:
        return rope.replace(inv_freq=None, base=rule.base, scaling=rule.scaling, reverse=reverse)
    except ValueError:  # its magnitude is not that of the rule
        return None


def _with_sections(rope: RotaryEmbedding | None, axis_of_pair: list[int]) -> Iterator[RotaryEmbedding]:
    """The embedding with all sections that have these axes, the usual order of axes first."""
    if rope is None:
        return
    axes = max(axis_of_pair) + 1
    for order, axis_of_section in product(ORDERS, (None, *permutations(range(axes)))):
        sizes = [axis_of_pair.count(axis) for axis in axis_of_section or range(axes)]
        try:
            sections = Sections(sizes, order, axis_of_section)
            if list(sections.axis_of_pair) == axis_of_pair:
                yield rope.replace(sections=sections)
        except ValueError:  # the sizes do not fit this order
            continue
