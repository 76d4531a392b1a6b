"""Builders of positions against loops over tokens, for random masks, lengths, grids, runs and ranks."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rope_xp import positions

LENGTHS = st.lists(st.integers(0, 6), max_size=6)


def assert_equal(found, wanted, dtype="int32"):
    wanted = np.asarray(wanted, dtype=dtype)
    assert found.dtype == dtype and found.shape == wanted.shape
    assert (found == wanted).all()


@given(
    st.integers(0, 9),
    st.integers(-(2**31), 2**31 - 10),
    st.sampled_from([None, 1, 3]),
    st.lists(st.integers(-9, 10**6)),
)
def test_consecutive(seq, offset, axes, offsets):
    row = [offset + token for token in range(seq)]
    assert_equal(positions.consecutive(seq, offset, axes=axes), row if axes is None else np.tile(row, (axes, 1)))
    rows = np.asarray([[each + token for token in range(seq)] for each in offsets]).reshape(len(offsets), seq)
    found = positions.consecutive(seq, np.asarray(offsets, np.int32), axes=axes)
    assert_equal(found, rows if axes is None else np.tile(rows, (axes, 1, 1)))


@pytest.mark.parametrize("seq", [1, 2, 100])
def test_positions_end_where_int32_ends(seq):
    for last, sign in ((2**31 - 1, 1), (-(2**31), -1)):
        first = last - seq + 1 if sign > 0 else last
        assert int(positions.consecutive(seq, first)[-1 if sign > 0 else 0]) == last
        with pytest.raises(ValueError, match=r"must fit in int32; got offset="):
            positions.consecutive(seq, first + sign)


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(st.integers(-1, 2), min_size=n, max_size=n), min_size=1, max_size=4)
    )
)
def test_from_mask(mask):
    wanted = []
    for row in mask:
        count, out = 0, []
        for token in row:
            count += token != 0
            out.append(max(count - 1, 0))
        wanted.append(out)
    assert_equal(positions.from_mask(np.asarray(mask)), wanted)
    assert_equal(positions.from_mask(np.asarray(mask) != 0), wanted)


@given(LENGTHS, st.integers(0, 5) | st.none(), st.sampled_from([list, np.asarray, lambda x: np.asarray(x, np.int64)]))
def test_packed_rows(lengths, padding, kind):
    wanted = [token for length in lengths for token in range(length)]
    ends = [0, *itertools.accumulate(lengths)]
    more = range(padding or 0)
    given_lengths = kind(lengths) if lengths or kind is list else np.asarray(lengths, np.int32)
    total = None if padding is None else len(wanted) + padding
    assert_equal(positions.from_lengths(given_lengths, total), [*wanted, *more])
    assert_equal(positions.from_cu_seqlens(kind(ends)), wanted)
    assert_equal(positions.from_cu_seqlens(kind([*ends, ends[-1] + len(more)])), [*wanted, *more])
    if wanted:
        with pytest.raises(
            ValueError, match=f"total must be at least the last boundary, {len(wanted)}; got {len(wanted) - 1}"
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


axis_of_grid = st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(-5, 5), st.integers(-3, 3))


@given(st.lists(axis_of_grid, min_size=1, max_size=3), st.booleans(), st.data())
def test_grids(axes, as_numbers, data):
    """Block by block, and row by row within a block."""
    blocks, counts, starts, steps = zip(*axes)
    sizes = [block * count for block, count in zip(blocks, counts)]
    coordinates = [[7 * c * c - 3 for c in range(size)] if as_numbers else list(range(size)) for size in sizes]
    cells = [
        [o * b + i for o, b, i in zip(outer, blocks, inner)]
        for outer in itertools.product(*map(range, counts))
        for inner in itertools.product(*map(range, blocks))
    ]
    rows = data.draw(st.none() | st.lists(st.integers(0, len(axes) - 1), min_size=1, max_size=4))
    wanted = [
        [starts[axis] + steps[axis] * coordinates[axis][cell[axis]] for cell in cells]
        for axis in (range(len(axes)) if rows is None else rows)
    ]
    given_sizes = coordinates if as_numbers else sizes
    found = positions.grid(*given_sizes, start=starts, step=steps, block=blocks, axes=rows)
    assert_equal(found, np.asarray(wanted).reshape(len(wanted), len(cells)))
    halves = positions.grid(*given_sizes, start=[s + 0.5 for s in starts], step=steps, block=blocks, axes=rows)
    assert_equal(halves, np.asarray(wanted).reshape(len(wanted), len(cells)) + 0.5, "float32")


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(-9, 9), st.integers(-9, 9)), min_size=1, max_size=3))
def test_evenly_spaced_grids_end_at_their_last_position(axes):
    sizes, starts, lasts = zip(*axes)
    found = positions.grid(*sizes, start=starts, last=lasts)
    spaced = [np.linspace(start, last, size) for size, start, last in axes]
    wanted = np.stack(np.meshgrid(*spaced, indexing="ij")).reshape(len(axes), -1)
    assert found == pytest.approx(wanted, abs=1e-6)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.sampled_from(["separate", "min", "max"]))
def test_centres_of_cells(sizes, by):
    """(cell + 1/2) / size * 2 - 1, by the size of the axis, or by the least or the greatest size."""
    divisor = {"separate": sizes, "min": [min(sizes)] * len(sizes), "max": [max(sizes)] * len(sizes)}[by]
    cells = np.stack(np.meshgrid(*map(np.arange, sizes), indexing="ij")).reshape(len(sizes), -1)
    wanted = (cells + 0.5) / np.asarray(divisor)[:, None] * 2 - 1
    found = positions.normalized(*sizes, by=by)
    assert found.dtype == np.float32 and found == pytest.approx(wanted, abs=1e-6)


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


@given(
    st.integers(0, 2**31),
    st.floats(0.0, 2.0) | st.none(),
    st.floats(1.0, 3.0) | st.none(),
    st.floats(1.0, 3.0) | st.none(),
)
def test_augmented_positions(seed, shift, jitter, rescale):
    """One shift and one factor for each axis, and one factor for all, drawn in this order."""
    centres = positions.normalized(3, 4)
    found = positions.augment(centres, np.random.default_rng(seed), shift=shift, jitter=jitter, rescale=rescale)
    drawn = iter(2 * np.random.default_rng(seed).random(5, dtype=np.float32) - 1)
    wanted = centres.astype(np.float64)
    if shift is not None:
        wanted = wanted + shift * np.asarray([[next(drawn)], [next(drawn)]])
    if jitter is not None:
        wanted = wanted * jitter ** np.asarray([[next(drawn)], [next(drawn)]])
    if rescale is not None:
        wanted = wanted * rescale ** next(drawn)
    assert found.dtype == np.float32 and found == pytest.approx(wanted, rel=1e-5, abs=1e-6)
