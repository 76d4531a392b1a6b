"""compare against brute force: the maps of two random values as matrices by the oracle, at every position."""

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rope_xp import LinearScaling, NTKScaling, RotaryEmbedding, Sections, XPos, compare

WIDTH, CONTEXT = 8, 300
bases = st.floats(20.0, 1e5)
LAYOUTS = ["half", "interleaved"]


@st.composite
def values(draw):
    """A value, and its frequencies and factor by formulas."""
    rotary_dim = draw(st.sampled_from([4, 8, 8]))
    base = draw(bases)
    w = np.asarray([base ** (-2 * j / rotary_dim) for j in range(rotary_dim // 2)])
    rule, factor = draw(st.sampled_from(["none", "linear", "ntk", "given", "factor"])), draw(st.floats(1.05, 9.0))
    options, magnitude = {"base": base}, 1.0
    if rule == "linear":
        options["scaling"], w = LinearScaling(factor=factor), w / factor
    elif rule == "ntk":
        options["scaling"] = NTKScaling(factor=factor)
        grown = base * factor ** (rotary_dim / (rotary_dim - 2))
        w = np.asarray([grown ** (-2 * j / rotary_dim) for j in range(rotary_dim // 2)])
    elif rule == "given":
        w = np.asarray([draw(st.floats(1e-5, 3.0)) for _ in range(rotary_dim // 2)])
        options = {"inv_freq": tuple(w.tolist())}
    elif rule == "factor":
        magnitude = options["attention_factor"] = draw(st.floats(0.98, 1.02))
    reverse = rule != "given" and draw(st.integers(0, 3)) == 0
    first = draw(st.sampled_from([0, WIDTH - rotary_dim]))
    layout = draw(st.sampled_from(LAYOUTS))
    given_here = {"rotary_dim": rotary_dim, "first_channel": first, "reverse": reverse, **options}
    return RotaryEmbedding(head_dim=WIDTH, layout=layout, **given_here), -w if reverse else w, magnitude


def matrices(value, positions, offset=0):
    """The maps "positions channels channels" of the columns of x, by complex numbers."""
    rope, w, magnitude = value
    angles = (np.asarray(positions)[:, None] + offset) * w
    result = np.broadcast_to(np.eye(WIDTH), (len(angles), WIDTH, WIDTH)).copy()
    span = slice(rope.first_channel, rope.first_channel + rope.rotary_dim)
    result[..., span] = magnitude * oracle.rotate(result[..., span], angles[:, None], rope.layout)
    return result


def changes(one, other, positions=range(CONTEXT), **offset):
    difference = matrices(one, positions) - matrices(other, positions, **offset)
    return np.linalg.norm(difference, ord=2, axis=(-2, -1))


def first_above(change, limit):
    """The first position, and whether rounding decides it."""
    first = int((change > limit).argmax()) if (change > limit).any() else None
    return first, bool((np.abs(change - limit) < 1e-9).any())


@given(values(), values(), st.booleans())
def test_values_differ_from_the_position_of_brute_force(one, other, alike):
    if alike:  # the same pairs of channels, which are compared without matrices
        fields = {name: getattr(one[0], name) for name in ("layout", "first_channel")}
        if one[0].rotary_dim != other[0].rotary_dim:
            return
        other = (other[0].replace(**fields), *other[1:])
    change = changes(one, other)
    first, unsure = first_above(change, 0.01)
    beyond, unsure_of_same = first_above(change, 1e-3)
    report = compare(one[0], other[0], context=CONTEXT)
    assert unsure or report.first_position == first
    assert unsure_of_same or report.same == (beyond is None)
    assert report.largest_change == pytest.approx(change[-1], abs=1e-9)
    assert bool(report.causes) or report.same
    back = compare(other[0], one[0], context=CONTEXT)
    assert (back.first_position, back.same) == (report.first_position, report.same)
    if first is not None:
        assert f"At position {first:,}, a unit score first changes" in report.summary
    if report.same and (change == 0).all():
        assert report.causes == ()


@given(values(), st.integers(0, 3), st.sampled_from([0, 0, 1, -1, 5]))
def test_functions_are_the_same_as_what_they_compute(value, digits, offset):
    """A function by the oracle, and one whose frequencies or positions are a little different."""
    rope, w, _ = value
    scale = 1.0 + (10.0**-digits if digits else 0.0)
    wrong = (rope, w * scale, value[2])

    def fn(x, positions):
        return np.einsum("...c,...cd->...d", x, matrices(wrong, np.asarray(positions).reshape(-1), offset))

    report = compare(fn, rope, context=CONTEXT, head_dim=WIDTH, shape="seq dim")
    change = changes(value, wrong, offset=offset)
    first, unsure = first_above(change, 0.01)
    beyond, unsure_of_same = first_above(change, 1e-3)
    assert unsure or report.first_position == first
    assert unsure_of_same or report.same == (beyond is None)


@given(bases, st.floats(1.001, 1.2), st.integers(1, 10**6))
def test_a_larger_base_is_named_with_both_numbers(base, times, context):
    a, b = (RotaryEmbedding(head_dim=WIDTH, layout="half", base=each) for each in (base, base * times))
    report = compare(a, b, context=context)
    w, v = (np.asarray(each.inv_freq) for each in (a, b))
    change = 2 * np.abs(np.sin(np.arange(min(context, 5000))[:, None] * (w - v) / 2)).max(axis=1)
    first, unsure = first_above(change, 0.01)
    if first is not None and not unsure:
        assert report.first_position == first and report.causes == ("base",)
    assert report.largest_change == pytest.approx(np.abs(2 * np.sin((context - 1) * (w - v) / 2)).max(), abs=1e-6)


@given(st.permutations([2, 4, 6]), st.permutations([2, 4, 6]), st.sampled_from(["chunked", "round_robin"]))
def test_sections_are_compared_on_each_axis_alone_and_together(sizes, others, order):
    rope = RotaryEmbedding(head_dim=24, layout="half", base=100.0)
    a, b = (rope.replace(sections=Sections(each, order=order)) for each in (sizes, others))
    one, other = np.asarray(a.inv_freq), np.asarray(b.inv_freq)  # "axes pairs"
    directions = np.concatenate([np.ones((1, 3)), np.eye(3)])
    steps = directions @ one - directions @ other
    change = 2 * np.abs(np.sin(np.arange(CONTEXT)[:, None, None] * steps / 2)).max(axis=(1, 2))
    report = compare(a, b, context=CONTEXT)
    assert report.first_position == first_above(change, 0.01)[0]
    assert report.same == (sizes == others) and (report.same or report.causes == ("sections",))


@given(st.floats(50.0, 2000.0), st.floats(50.0, 2000.0), st.integers(0, 40), st.integers(0, 40))
def test_decays_differ_by_their_growth_and_their_centre(scale, other_scale, centre, other_centre):
    """XPos multiplies pair j of a query by zeta ** ((position - centre) / scale_base), as its paper says."""
    ropes = [
        RotaryEmbedding(head_dim=WIDTH, layout="half", base=100.0, xpos=XPos(scale_base=each, centre=at))
        for each, at in ((scale, centre), (other_scale, other_centre))
    ]
    zeta = (np.arange(0, WIDTH, 2) + 0.4 * WIDTH) / (1.4 * WIDTH)
    positions = np.arange(CONTEXT)[:, None]
    sizes = [zeta ** ((positions - at) / each) for each, at in ((scale, centre), (other_scale, other_centre))]
    change = np.abs(sizes[0] - sizes[1]).max(axis=1)
    first, unsure = first_above(change, 0.01)
    report = compare(*ropes, context=CONTEXT)
    assert unsure or report.first_position == first
    assert report.largest_change == pytest.approx(change[-1], rel=1e-6, abs=1e-9)
