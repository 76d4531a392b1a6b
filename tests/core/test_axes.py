"""Several position axes, pairings and spans of every kind: all of them frequencies and pairs."""

import re
from functools import partial
from itertools import product

import numpy as np
import pytest
from compare import assert_numbers
from errors import assert_all_raise, raising
from samples import embedding, random

from rope_xp import Sections
from rope_xp.frequencies import geometric

# Rotated float32 numbers of size 3: three operations, each rounded, and tables within 2e-7.
ATOL = 3 * (4 * 2.0**-24 + 2e-7)
# What vLLM's and SGLang's own functions give.
KNOWN_ORDERS = {
    ((4, 6, 6), "balanced"): [0, 1, 2, 1, 2, 0, 1, 2, 1, 2, 0, 1, 2, 1, 2, 0],
    ((8, 12, 12), "balanced"): [int(a) for a in "01212012120121201201212012120120"],
    ((1, 4, 2), "balanced"): [1, 2, 1, 2, 1, 1, 0],
    ((8, 12, 12), "round_robin"): [0, 1, 2] * 8 + [1, 1, 2, 1, 1, 2, 2, 2],
    ((16, 24, 24), "chunked"): [0] * 16 + [1] * 24 + [2] * 24,
    ((24, 20, 20), "interleaved"): [0, 1, 2] * 20 + [0] * 4,
    ((11, 11, 10), "interleaved"): [0, 1, 2] * 10 + [0, 1],
    ((22, 22, 20), "spatial_first"): [1, 2] * 22 + [0] * 20,
    ((4, 4), "interleaved"): [0, 1] * 4,
}


@pytest.mark.parametrize("sizes, order", KNOWN_ORDERS)
def test_orders_of_axes(sizes, order):
    sections = Sections(sizes, order=order)
    assert list(sections.axis_of_pair) == KNOWN_ORDERS[sizes, order]
    assert sections.axes == len(sizes) and sections.pairs == sum(sizes)


def weights_by_hand(sections, base):
    """Frequencies of each axis, written out: natural progressions are one over all pairs, axial ones restart."""
    sizes, whole = sections.sizes, geometric(base, 2 * sections.pairs)
    own, axis = whole, sections.axis_of_pair
    if sections.order == "axial":
        own = [w for size in sizes for w in geometric(base, 2 * size)]
        axis = [a for a, size in enumerate(sizes) for _ in range(size)]
    elif sections.order == "axial_interleaved":
        own, axis = [w for w in geometric(base, 2 * sizes[0]) for _ in range(2)], [0, 1] * sizes[0]
    elif sections.order == "even_odd":
        height, width, time = (*sizes, 0)[:3]
        own = [*whole[: 2 * height : 2], *whole[1 : 2 * height : 2], *whole[2 * height :]]
        axis = [1] * height + [2] * width + [0] * time if time else [0] * height + [1] * width
    return tuple(tuple(w if a == which else 0.0 for w, a in zip(own, axis)) for which in range(len(sizes)))


SECTIONS = [
    Sections((3, 2, 2)),
    Sections((3, 2, 2), order="interleaved"),
    Sections((2, 2, 3), order="spatial_first"),
    Sections((2, 2, 3), order="even_odd"),
    Sections((2, 5), order="axial"),
    Sections((3, 2, 2), order="balanced"),
    Sections((1, 1, 5), order="round_robin"),
    Sections((4, 4), order="axial_interleaved"),
    Sections((4, 4), order="even_odd"),
    Sections((3, 2, 2), axis_of_section=(2, 0, 1)),
]


@pytest.mark.parametrize("sections", SECTIONS, ids=str)
def test_sections_are_frequencies(sections):
    rope = embedding(head_dim=16, rotary_dim=2 * sections.pairs, base=100.0, sections=sections)
    assert rope.inv_freq == weights_by_hand(sections, 100.0) and rope.axes == sections.axes


def test_a_single_vector_has_a_position_on_each_axis(xp):
    x, rope = xp.random(5, 14), embedding(base=100.0, sections=Sections((3, 4), order="axial"))
    where = np.asarray([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]], np.int32)
    rotated = rope(x, positions=where, seq_dim=0)
    for row in range(5):
        sincos = rope.sincos(where[:, row], like=x)
        assert_numbers(xp, rope.rotate(x[row, :], sincos, seq_dim=0), xp.numpy(rotated)[row])
        assert_numbers(xp, rope(x[row, :], positions=where[:, row], seq_dim=0), xp.numpy(rotated)[row])


@pytest.mark.parametrize("axes", [1, 2, 3, 4])
def test_positions_and_tables_of_other_shapes_than_tokens_and_leading_axes_are_refused(axes):
    """Those with fewer axes than tokens have must be "seq", "batch seq", ...: random calls have all that fit."""
    sizes, rope = (2, 3, 4, 5)[:axes], embedding(head_dim=6, kernel="reference")
    x, refused = random(*sizes, 6), []
    for seq, count in product(range(axes), range(1, axes + 1)):
        wanted = np.asarray(sizes if count == axes else (*sizes[: count - 1], sizes[seq]))
        shapes = [wanted + (np.arange(count) == axis) for axis in range(count)]
        if count < axes:
            every = product((False, True), repeat=count)
            shapes += [np.where(ones, 1, wanted) for ones in every if count - 1 > seq or ones[-1]]
        for where in (np.zeros(shape, int) for shape in shapes):
            refused += [
                partial(rope, x, positions=where, seq_dim=seq),
                partial(rope.rotate, x, rope.sincos(where), seq_dim=seq - axes - 1),
            ]
    assert_all_raise((call, ValueError, "must .*got") for call in refused)


ONE_TOKEN = ": for one token, index with [..., None]"


def test_messages_say_which_shapes_fit():
    """Shapes of x without channels, seq_dim, a shape that does not fit, and the shapes that do, with a hint."""
    cases = [
        ((2, 5, 3), 1, (4,), "be (seq{0}) or (batch, seq{0}) with batch=2 and seq=5 of x (seq_dim=1), or ", ""),
        ((2, 5, 3), 0, (5, 2), "be (seq{0}) with seq=2 of x (seq_dim=0), or ", ""),
        ((2, 3, 1), 2, (), "be (seq{0}) or (batch, seq{0}) with batch=2 and seq=1 of x (seq_dim=2), or ", ONE_TOKEN),
        ((2, 3, 1), 2, (2,), "be (seq{0}) or (batch, seq{0}) with batch=2 and seq=1 of x (seq_dim=2), or ", ONE_TOKEN),
        ((2, 3, 1), 2, (3, 1), "be (seq{0}) or (batch, seq{0}) with batch=2 and seq=1 of x (seq_dim=2), or ", ""),
        ((2, 3, 0), 2, (2,), "be (seq{0}) or (batch, seq{0}) with batch=2 and seq=0 of x (seq_dim=2), or ", ""),
        ((), 0, (3, 1), "", ""),
    ]
    messages = []
    for sizes, seq_dim, shape, fit, hint in cases:
        x, tables = random(*sizes, 14), (np.ones((*shape, 7), np.float32),) * 2
        of_x = f" for x of shape {x.shape}"
        fits = f"positions must {fit.format('')}have one axis less than x; got shape {shape}{of_x}{hint}"
        messages.append((partial(embedding(), x, positions=np.zeros(shape, int), seq_dim=seq_dim), fits))
        fits = f"tables must {fit.format(', pairs')}have as many axes as x; got shape {(*shape, 7)}{of_x}"
        messages.append((partial(embedding(), x, sincos=tables, seq_dim=seq_dim), fits))
    rope = embedding(head_dim=4, base=None, inv_freq=(((1.0, 0.5),) * 3,))
    cases = (
        ((5, 2, 2), (1, 2), 3),
        ((4, 3, 2), (1, -2), 3),
        ((5, 3, 2), (2, 2), 3),
        ((2,), (1, 2), 3),
        ((5, 4, 2), (1, 2), 4),
    )
    for shape, axes, heads in cases:
        fits = (
            "tables must be (seq, heads, pairs) or (batch, seq, heads, pairs), where seq is the size of axis "
            "seq_dim={} of x and heads=3 the size of its axis heads_dim={}; got tables of shape {} for x of shape "
            "(2, 5, {}, 4)"
        ).format(*axes, shape, heads)
        call = partial(rope, random(2, 5, heads, 4), sincos=(np.ones(shape, np.float32),) * 2)
        messages.append((partial(call, seq_dim=axes[0], heads_dim=axes[1]), fits))
    rope = embedding(sections=Sections((3, 4)))
    fits = (
        "positions of each axis must be (seq) or (batch, seq) with batch=2 and seq=5 of x (seq_dim=1), or have one "
        "axis less than x; got shape (4,) for x of shape (2, 5, 3, 14)"
    )
    messages.append((partial(rope, random(2, 5, 3, 14), positions=np.zeros((2, 4), int), seq_dim=1), fits))
    assert_all_raise((call, ValueError, f"^RotaryEmbedding: {re.escape(fits)}$") for call, fits in messages)


def test_reverse_rotates_by_the_negative_angles(xp):
    x, where = xp.random(2, 5, 3, 14), np.arange(5)
    forth, back = (embedding(base=100.0, reverse=reverse) for reverse in (False, True))
    assert_numbers(xp, back(x, positions=where, seq_dim=1), forth(x, positions=-where, seq_dim=1), 2 * ATOL)


def test_positions_of_other_axes_are_refused():
    rope, x = embedding(base=100.0, sections=Sections((3, 2, 2))), random(2, 5, 3, 14)
    call, three = partial(rope, x, seq_dim=1), np.zeros((3, 5), int)
    values = [
        (partial(call, positions=np.arange(5)), r"its 3 position axes first.*got shape \(5,\)"),
        (partial(call, positions=np.asarray(5)), r"its 3 position axes first.*got shape \(\)"),
        (call, r"positions must be given for 3 position axes; got None"),
        (lambda: rope.sincos(three.T), r"3 position axes first.*got shape \(5, 3\)"),
        (partial(call, positions=three, heads_dim=2), r"heads_dim must be given if, and only if, .*; got heads_dim=2"),
        (lambda: rope.shift(x, np.arange(5), seq_dim=1), r"delta must have its 3 position axes first"),
    ]
    assert_all_raise(raising(values))
