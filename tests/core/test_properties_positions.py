"""Builders of positions against loops over tokens, for random masks, lengths, grids, runs and ranks."""

import itertools

import numpy as np
import pytest
from compare import assert_positions
from hypothesis import given, settings
from hypothesis import strategies as st

from rope_xp import positions


def for_library(**strategies):
    """As `given`, for a test that takes `xp` besides: few examples where a compiler runs for each shape."""

    def decorated(test):
        def run(xp):
            few = 3 if xp.name in ("jax", "dask") else 40

            @settings(max_examples=min(few, settings.default.max_examples), deadline=None)
            @given(**strategies)
            def check(**drawn):
                test(xp, **drawn)

            check()

        return run

    return decorated


LENGTHS = st.lists(st.integers(0, 6), max_size=6)


def assert_equal(found, wanted, dtype="int32"):
    wanted = np.asarray(wanted, dtype=dtype)
    assert found.dtype == dtype and found.shape == wanted.shape
    assert (found == wanted).all()


@for_library(
    seq=st.integers(0, 9),
    offset=st.integers(-(2**31), 2**31 - 10),
    axes=st.sampled_from([None, 1, 3]),
    offsets=st.lists(st.integers(-9, 10**6), max_size=5),
)
def test_consecutive(xp, seq, offset, axes, offsets):
    """From an int, from an array with it, and from one for each row."""
    rows = np.asarray([[each + token for token in range(seq)] for each in (offset, *offsets)], int)
    for given_offset, wanted in ((offset, rows[0]), (xp.array(offset, "int32"), rows[0])):
        found = positions.consecutive(seq, given_offset, axes=axes, like=xp.like())
        assert_positions(xp, found, wanted if axes is None else np.tile(wanted, (axes, 1)))
    found = positions.consecutive(seq, xp.array(np.asarray([offset, *offsets]), "int32"), axes=axes)
    assert_positions(xp, found, rows if axes is None else np.tile(rows, (axes, 1, 1)))


@pytest.mark.parametrize("seq", [1, 2, 100])
def test_positions_end_where_int32_ends(seq):
    for last, sign in ((2**31 - 1, 1), (-(2**31), -1)):
        first = last - seq + 1 if sign > 0 else last
        assert int(positions.consecutive(seq, first)[-1 if sign > 0 else 0]) == last
        with pytest.raises(ValueError, match=r"must fit in int32; got offset="):
            positions.consecutive(seq, first + sign)


@for_library(
    mask=st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 3), min_size=n, max_size=n), min_size=1, max_size=4)
    ),
    dtype=st.sampled_from(["bool", "int32", "uint8"]),
)
def test_from_mask(xp, mask, dtype):
    """Numbers other than 0 and 1 are errors if they are read, else tokens: 3 is the greatest or the least one here."""
    wanted = [[max(sum(each != 0 for each in row[: end + 1]) - 1, 0) for end in range(len(row))] for row in mask]
    odd = {"int32": -1, "uint8": 200, "bool": 1}[dtype]
    given_mask = np.where(np.asarray(mask) == 3, odd, mask)
    others = [each for row in given_mask.tolist() for each in row if each not in (0, 1)]
    if xp.name == "numpy" and dtype != "bool" and others:
        with pytest.raises(ValueError, match=f"^from_mask: mask must be 1 for tokens and 0 .*; got {others[0]}$"):
            positions.from_mask(xp.array(given_mask, dtype))
    else:
        assert_positions(xp, positions.from_mask(xp.array(given_mask, dtype)), wanted)


@for_library(lengths=LENGTHS, padding=st.integers(0, 5) | st.none(), kind=st.sampled_from([list, np.asarray, "array"]))
def test_packed_rows(xp, lengths, padding, kind):
    """Boundaries of other libraries are not read, and tokens beyond the last one count from 0."""
    wanted = [token for length in lengths for token in range(length)]
    ends, like = [0, *itertools.accumulate(lengths)], xp.like()
    whole = np.asarray([*wanted, *range(padding or 0)], int)
    total = None if padding is None else len(whole)
    if kind == "array":
        assert_positions(xp, positions.from_lengths(xp.array(lengths, "int32"), len(whole)), whole)
        given_ends = [*ends, len(whole)] if xp.name == "numpy" else ends
        assert_positions(xp, positions.from_cu_seqlens(xp.array(given_ends, "int32"), len(whole)), whole)
        return
    given_lengths = kind(lengths) if lengths or kind is list else np.asarray(lengths, np.int32)
    assert_positions(xp, positions.from_lengths(given_lengths, total, like=like), whole)
    assert_positions(xp, positions.from_cu_seqlens(kind(ends), like=like), np.asarray(wanted, int))
    assert_positions(xp, positions.from_cu_seqlens(kind([*ends, len(whole)]), total, like=like), whole)
    if wanted:
        with pytest.raises(
            ValueError, match=f"total must be at least {len(wanted)}, the sum of lengths; got {len(wanted) - 1}"
        ):
            positions.from_lengths(given_lengths, len(wanted) - 1)
    for total in (len(wanted) - 1, len(wanted) + 1):
        with pytest.raises(ValueError, match="total"):
            positions.from_cu_seqlens(kind(ends), total)


@given(st.integers(1, 4), st.booleans(), st.lists(st.integers(0, 3), min_size=1, max_size=4), st.booleans())
def test_the_ranks_together_have_each_token_once(size, zigzag, parts, packed):
    """Each sequence is cut into chunks; a rank has chunk r, or chunks r and 2 * size - 1 - r."""
    chunks = 2 * size if zigzag else size
    lengths = [chunks * part for part in parts]
    ends = [0, *itertools.accumulate(lengths)]
    if not packed:
        lengths = [ends[-1]]
    whole, starts = 10 * np.arange(2 * ends[-1], dtype=np.float32).reshape(2, -1), [0, *itertools.accumulate(lengths)]
    options = {"zigzag": zigzag, "cu_seqlens": ends if packed else None}
    for rank in range(size):
        own = (rank, 2 * size - 1 - rank) if zigzag else (rank,)
        tokens, places = [], []
        for length, start in zip(lengths, starts):
            width = length // chunks
            of_sequence = [token for chunk in own for token in range(chunk * width, (chunk + 1) * width)]
            tokens += of_sequence
            places += [start + token for token in of_sequence]
        assert_equal(positions.context_parallel(ends[-1], rank, size, **options), tokens)
        assert_equal(positions.context_parallel(whole, rank, size, **options), whole[:, places], "float32")
    for rank in (-1, size):
        with pytest.raises(ValueError, match="rank"):
            positions.context_parallel(ends[-1], rank, size, **options)
    if chunks > 1:
        with pytest.raises(ValueError, match=f"divisible by {chunks}, the number of chunks; got {ends[-1] + 1}"):
            positions.context_parallel(ends[-1] + 1, 0, size, zigzag=zigzag)


axis_of_grid = st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(-70_000, 70_000), st.integers(-3, 3))


@for_library(axes=st.lists(axis_of_grid, min_size=1, max_size=3), as_numbers=st.booleans(), data=st.data())
def test_grids(xp, axes, as_numbers, data):
    """Block by block, and row by row within a block; real if one axis is."""
    blocks, counts, starts, steps = zip(*axes)
    sizes = [block * count for block, count in zip(blocks, counts)]
    coordinates = [[7 * c * c - 3 for c in range(size)] if as_numbers else list(range(size)) for size in sizes]
    cells = [
        [o * b + i for o, b, i in zip(outer, blocks, inner)]
        for outer in itertools.product(*map(range, counts))
        for inner in itertools.product(*map(range, blocks))
    ]
    rows = data.draw(st.none() | st.lists(st.integers(0, len(axes) - 1), min_size=1, max_size=4))
    real = data.draw(st.sampled_from([0, 0.5, 1 / 3]))
    starts = [start + real * (axis == (rows or [0])[0]) for axis, start in enumerate(starts)]
    wanted = [
        [starts[axis] + steps[axis] * coordinates[axis][cell[axis]] for cell in cells]
        for axis in (range(len(axes)) if rows is None else rows)
    ]
    wanted = np.asarray(wanted, float if real else int).reshape(len(wanted), len(cells))
    options = {
        name: each[0] if len(set(each)) == 1 and data.draw(st.booleans()) else each
        for name, each in {"block": blocks, "start": starts, "step": steps}.items()
    }
    found = positions.grid(*(coordinates if as_numbers else sizes), **options, axes=rows, like=xp.like())
    assert_positions(xp, found, wanted)


hundredths = st.integers(-900, 900).map(lambda number: float(np.float32(number / 100)))


@for_library(axes=st.lists(st.tuples(st.integers(0, 5), *[hundredths] * 2), min_size=1, max_size=3))
def test_evenly_spaced_grids_end_at_their_last_position(xp, axes):
    sizes, starts, lasts = zip(*axes)
    found = positions.grid(*sizes, start=starts, last=lasts, like=xp.like())
    spaced = [np.linspace(start, last, size) for size, start, last in axes]
    wanted = np.stack(np.meshgrid(*spaced, indexing="ij")).reshape(len(axes), -1)
    # The truth has its own cancellation, in float64.
    assert_positions(xp, found, wanted, atol=9 * 2.0**-52)
    if all(sizes):
        assert xp.numpy(found)[:, [0, -1]].tolist() == [
            [start, start if size == 1 else last] for size, start, last in axes
        ]


@for_library(
    sizes=st.lists(st.integers(1, 48), min_size=1, max_size=3).filter(lambda sizes: np.prod(sizes) < 3000),
    by=st.sampled_from(["separate", "min", "max"]),
)
def test_centres_of_cells(xp, sizes, by):
    """(cell + 1/2) / size * 2 - 1, by the size of the axis, or by the least or the greatest size."""
    divisor = {"separate": sizes, "min": [min(sizes)] * len(sizes), "max": [max(sizes)] * len(sizes)}[by]
    cells = np.stack(np.meshgrid(*map(np.arange, sizes), indexing="ij")).reshape(len(sizes), -1)
    wanted = (cells + 0.5) / np.asarray(divisor)[:, None] * 2 - 1
    # One rounding, or two where a compiler multiplies by the inverse; and the truth's own cancellation, in float64.
    options = {"atol": 2.0**-52, "roundings": 2 if xp.name == "jax" else 1}
    assert_positions(xp, positions.normalized(*sizes, by=by, like=xp.like()), wanted, **options)
    found = positions.normalized(*sizes, by=by, axes=(0,), like=xp.like())
    assert_positions(xp, found, wanted[:1], **options)
    if by == "separate":  # symmetric
        line = xp.numpy(found).reshape(sizes[0], -1)
        np.testing.assert_array_equal(line, -line[::-1])


runs = st.integers(0, 4) | st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))


@given(st.lists(runs, max_size=5), st.booleans())
def test_prompts(given_runs, real):
    """Text counts on from the greatest position; a grid has its own time, height and width from there."""
    start, columns = 0, []
    for run in given_runs:
        if isinstance(run, int):
            own = [(token,) * 3 for token in range(run)]
        else:
            own = [(1.5 * t if real else t, h, w) for t in range(run[0]) for h in range(run[1]) for w in range(run[2])]
        columns += [[start + each for each in cell] for cell in own]
        start = max([start, *(max(each) + 1 for each in columns)])
    if real:
        given_runs = [
            run if isinstance(run, int) else ([1.5 * t for t in range(run[0])], *run[1:]) for run in given_runs
        ]
    found, delta = positions.prompt(given_runs)
    is_real = real and any(not isinstance(run, int) and len(run[0]) for run in given_runs)
    dtype = "float32" if is_real else "int32"
    assert_equal(found, np.asarray(columns, np.float64).reshape(-1, 3).T, dtype)
    assert delta.dtype == dtype and delta == max([0, *(max(each) + 1 for each in columns)]) - len(columns)


@given(
    st.lists(st.integers(0, 3) | st.lists(st.integers(-5, 9), max_size=3).map(tuple), min_size=1, max_size=5),
    st.integers(0, 3),
    st.integers(-2, 2),
)
def test_joined_parts(parts, missing, padding):
    arrays = [np.asarray([part, part], np.int32).reshape(2, -1) if isinstance(part, tuple) else part for part in parts]
    if all(isinstance(part, int) for part in parts):
        with pytest.raises(ValueError, match="part"):
            positions.join(*arrays)
        return
    row = [number for part in parts for number in (part if isinstance(part, tuple) else [0] * part)]
    assert_equal(positions.join(*arrays), [row, row])
    assert_equal(positions.join(*arrays, total=len(row) + missing, padding=padding), [row + [padding] * missing] * 2)
    if row:
        with pytest.raises(ValueError, match=f"total must be at least {len(row)}, "):
            positions.join(*arrays, total=len(row) - 1)


def test_joined_parts_have_the_widest_dtype():
    """A float if one is: float32 also with int64."""
    order = ("int32", "int64", "float32", "float64")
    for one, other in itertools.product(order, order):
        joined = positions.join(np.zeros(1, one), np.zeros(1, other))
        assert joined.dtype == max(one, other, key=order.index)


@given(
    st.integers(0, 2**31),
    st.floats(0.0, 2.0) | st.none(),
    st.floats(1.0, 3.0) | st.none(),
    st.floats(1.0, 3.0) | st.none(),
)
def test_augmented_positions(seed, shift, jitter, rescale):
    """One shift and one factor for each axis, and one factor for all, drawn in this order."""
    centres, source = positions.normalized(3, 4), np.random.default_rng(seed)
    found = positions.augment(centres, source, shift=shift, jitter=jitter, rescale=rescale)
    drawn = iter(2 * np.random.default_rng(seed).random(5, dtype=np.float32) - 1)
    wanted = centres.astype(np.float64)
    if shift is not None:
        wanted = wanted + shift * np.asarray([[next(drawn)], [next(drawn)]])
    if jitter is not None:
        wanted = wanted * jitter ** np.asarray([[next(drawn)], [next(drawn)]])
    if rescale is not None:
        wanted = wanted * rescale ** next(drawn)
    same = np.random.default_rng(seed)
    same.random(5 - len([*drawn]), dtype=np.float32)  # no more is drawn than is used
    assert source.bit_generator.state == same.bit_generator.state
    assert found.dtype == np.float32 and found == pytest.approx(wanted, rel=1e-5, abs=1e-6)
