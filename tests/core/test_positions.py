"""Builders of positions against loops over tokens, for random masks, lengths, grids, parts and ranks."""

import itertools

import numpy as np
import pytest
from compare import assert_positions
from hypothesis import given, settings
from hypothesis import strategies as st
from libraries import LIBRARIES

from rope_xp import positions


def for_library(few=3, **strategies):
    """As `given`, for a test that takes `xp` besides: few examples where a compiler runs for each shape."""

    def decorated(test):
        def run(xp):
            most = few if xp.name in ("jax", "dask") else 40

            @settings(max_examples=min(most, settings.default.max_examples), deadline=None)
            @given(**strategies)
            def check(**drawn):
                test(xp, **drawn)

            check()

        return run

    return decorated


LENGTHS = st.lists(st.integers(0, 6), max_size=6)


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


def test_consecutive_never_wraps(xp):
    """An array that cannot be read ends at the greatest integer of its dtype; NumPy's is refused (bad_input)."""
    for bits in {32, 64} & {int(name.removeprefix("int")) for name in xp.integers if name.startswith("int")}:
        least, greatest = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        for offset in (greatest - 2, least, -1, *((greatest - 1, greatest) if xp.name != "numpy" else ())):
            truth = [min(offset + i, greatest) for i in range(3)]
            result = positions.consecutive(3, xp.array(offset, f"int{bits}"))
            assert xp.dtype_of(result) == f"int{bits}" and xp.numpy(result).tolist() == truth
            rows = positions.consecutive(3, xp.array([5, offset], f"int{bits}"), axes=2)
            assert xp.numpy(rows).tolist() == [[[5, 6, 7], truth]] * 2
    assert positions.consecutive(1, np.asarray(2**31 - 1, np.int32)).tolist() == [2**31 - 1]


@for_library(
    mask=st.tuples(st.integers(1, 4), st.sampled_from([1, 3])).flatmap(
        lambda of: st.lists(st.lists(st.integers(0, of[1]), min_size=of[0], max_size=of[0]), min_size=1, max_size=4)
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


def split(sequence, rank, size, zigzag):
    """The part of a list that a rank has."""
    count = len(sequence) // (2 * size if zigzag else size)
    chunks = [sequence[count * i : count * (i + 1)] for i in range(2 * size)]
    return chunks[rank] + (chunks[2 * size - 1 - rank] if zigzag else [])


@for_library(
    few=8,
    size=st.integers(1, 4),
    zigzag=st.booleans(),
    parts=st.lists(st.integers(0, 3), max_size=6),
    kind=st.sampled_from([list, np.asarray, "array", None]),
)
def test_the_ranks_together_have_each_token_once(xp, size, zigzag, parts, kind):
    """Each packed sequence is split by itself; without boundaries, the row is one, whatever its positions.

    Tokens after the last boundary are one more sequence, unless boundaries are read and compared with the row.
    """
    chunks, like = 2 * size if zigzag else size, xp.like()
    lengths, total = [chunks * part for part in parts], chunks * sum(parts)
    ends, given_ends = [0, *itertools.accumulate(lengths)], None
    rows, packed = np.arange(3 * 2 * total, dtype=np.float32).reshape(3, 2, total), positions.from_cu_seqlens(ends)
    if kind is None:
        ends = [0, total]
    else:
        stated = ends[: max(1, len(ends) - 1)] if kind == "array" and xp.name != "numpy" else ends
        given_ends = xp.array(stated, "int32") if kind == "array" else kind(ends)
    options = {"zigzag": zigzag, "cu_seqlens": given_ends}
    for rank in range(size):
        tokens, truth = [], []
        for start, end in itertools.pairwise(ends):
            tokens += split([*range(start, end)], rank, size, zigzag)
            truth += split([*range(end - start)], rank, size, zigzag)
        tokens, truth = np.asarray(tokens, int), np.asarray(truth, int)
        for where in (rank, xp.array(rank, "int32")):
            assert_positions(xp, positions.context_parallel(total, where, size, **options, like=like), truth)
            # Other arrays of the row are split alike, along their last axis: labels, or positions on three axes.
            part = positions.context_parallel(xp.array(rows), where, size, **options)
            assert xp.dtype_of(part) == "float32"
            np.testing.assert_array_equal(xp.numpy(part), rows[:, :, tokens])
        assert_positions(xp, positions.context_parallel(packed, rank, size, **options, like=like), packed[tokens])
        assert_positions(xp, positions.context_parallel(total, xp.array(rank, "int32"), size, **options), truth)
        if kind == "array":
            assert_positions(xp, positions.context_parallel(total, rank, size, **options), truth)
    for rank in (-1, size):
        with pytest.raises(ValueError, match="rank"):
            positions.context_parallel(total, rank, size, **options)
    if chunks > 1:
        with pytest.raises(ValueError, match=f"divisible by {chunks}, the number of chunks; got {total + 1}"):
            positions.context_parallel(total + 1, 0, size, zigzag=zigzag)


@pytest.mark.where(lambda xp: "int64" in xp.integers)
def test_ranks_and_boundaries_of_64_bits(xp):
    """Positions of NumPy stay int32; the dtype of an array that is split is kept, and that of coordinates."""
    rank, boundaries = xp.array(1, "int64"), xp.array([0, 4, 12], "int64")
    wanted = "int32" if xp.name == "numpy" else "int64"
    for result in (
        positions.context_parallel(12, rank, 2, zigzag=True),
        positions.context_parallel(12, rank, 2, zigzag=True, cu_seqlens=[0, 4, 12]),
        positions.context_parallel(12, 1, 2, cu_seqlens=boundaries),
    ):
        assert xp.dtype_of(result) == wanted
    part = positions.context_parallel(xp.array(np.arange(12), "uint8"), rank, 2, zigzag=True, cu_seqlens=boundaries)
    assert xp.dtype_of(part) == "uint8" and xp.numpy(part).tolist() == [1, 2, 6, 7, 8, 9]
    if xp.name != "numpy":  # whose values are checked
        grid = positions.grid(xp.array([2**40, 5], "int64"), 2)
        assert xp.dtype_of(grid) == "int64" and xp.numpy(grid).tolist() == [[2**40, 2**40, 5, 5], [0, 1, 0, 1]]


def test_numpy_is_the_default_and_its_counts_do_not_wrap():
    grid = positions.grid(np.int8(100), np.asarray([1, 2]), start=np.int8(100), axes=(np.int64(0),))
    halves = positions.grid(2, 2, step=0.5)
    for each in (positions.from_lengths([2]), halves, positions.normalized(2), positions.join(1, grid)):
        assert isinstance(each, np.ndarray)
    assert grid.max() == 199
    assert_positions(LIBRARIES["numpy"], positions.consecutive(np.int8(100), np.int8(100)), np.arange(100, 200))
    assert_positions(LIBRARIES["numpy"], positions.context_parallel(np.int8(100), np.int8(99), np.int8(100)), [99])
    assert positions.grid(np.int8(100), np.int8(2)).shape == (2, 200)


axis_of_grid = st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(-70_000, 70_000), st.integers(-3, 3))


@for_library(
    axes=st.lists(axis_of_grid, min_size=1, max_size=3),
    kind=st.sampled_from([None, list, np.asarray, "array"]),
    real=st.sampled_from([0, 0.5, 1 / 3]),
    share=st.sampled_from([1, 1, 0.5]),
    data=st.data(),
)
def test_grids(xp, axes, kind, real, share, data):
    """Block by block, and row by row within a block; real if one axis is. Coordinates are sizes, or any numbers."""
    blocks, counts, starts, steps = zip(*axes)
    sizes = [block * count for block, count in zip(blocks, counts)]
    scale = data.draw(st.sampled_from([1, 0.25])) if kind and all(sizes) else 1
    coordinates = [[scale * (7 * c * c - 3) if kind else c for c in range(size)] for size in sizes]
    cells = [
        [o * b + i for o, b, i in zip(outer, blocks, inner)]
        for outer in itertools.product(*map(range, counts))
        for inner in itertools.product(*map(range, blocks))
    ]
    rows = data.draw(st.none() | st.lists(st.integers(0, len(axes) - 1), min_size=1, max_size=4))
    starts = [start + real * (axis == (rows or [0])[0]) for axis, start in enumerate(starts)]
    steps = [share * step for step in steps]
    wanted = [
        [starts[axis] + steps[axis] * coordinates[axis][cell[axis]] for cell in cells]
        for axis in (range(len(axes)) if rows is None else rows)
    ]
    is_real = bool(real) or scale != 1 or share != 1
    wanted = np.asarray(wanted, float if is_real else int).reshape(len(wanted), len(cells))
    options = {
        name: each[0] if len(set(each)) == 1 and data.draw(st.booleans()) else each
        for name, each in {"block": blocks, "start": starts, "step": steps}.items()
    }
    dtype = "float32" if scale != 1 else "int32"
    lines = [xp.array(line, dtype) if kind == "array" else kind(line) if kind else len(line) for line in coordinates]
    more = {} if kind == "array" and data.draw(st.booleans()) else {"like": xp.like()}
    found = positions.grid(*lines, **options, axes=rows, **more)
    assert type(found) is type(xp.like())
    # In arrays that cannot be read, starts and products are rounded before their sum is.
    terms = [abs(start) + abs(step * c) for start, step, line in zip(starts, steps, coordinates) for c in line]
    is_read = kind != "array" or xp.name == "numpy"
    atol = 0.0 if is_read else 2.0**-24 * max(terms, default=0.0)
    assert_positions(xp, found, wanted, atol=atol)


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
    options = {"atol": 2.0**-52, "roundings": 1 if xp.name != "jax" and xp.device == "cpu" else 2}
    assert_positions(xp, positions.normalized(*sizes, by=by, like=xp.like()), wanted, **options)
    found = positions.normalized(*sizes, by=by, axes=(0,), like=xp.like())
    assert_positions(xp, found, wanted[:1], **options)
    if by == "separate":  # symmetric
        line = xp.numpy(found).reshape(sizes[0], -1)
        np.testing.assert_array_equal(line, -line[::-1])


@for_library(
    parts=st.lists(st.integers(0, 3) | st.lists(st.integers(-5, 9), max_size=3).map(tuple), min_size=1, max_size=5),
    missing=st.integers(0, 3),
    padding=st.sampled_from([0, 2, 2**31 - 1, -(2**31)]),
    shape=st.sampled_from([(), (2,), (2, 3)]),
)
def test_joined_parts(xp, parts, missing, padding, shape):
    """A part is a number of tokens at 0, or an array with any axes before that of its tokens."""
    given_parts = [
        part if isinstance(part, int) else np.broadcast_to(np.asarray(part, np.int32), (*shape, len(part)))
        for part in parts
    ]
    arrays = [part if isinstance(part, int) else xp.array(part, "int32") for part in given_parts]
    if all(isinstance(part, int) for part in parts):
        with pytest.raises(ValueError, match="part"):
            positions.join(*arrays)
        return
    row = [number for part in parts for number in (part if isinstance(part, tuple) else [0] * part)]
    truth = np.broadcast_to(np.asarray(row + [padding] * missing, int), (*shape, len(row) + missing))
    assert_positions(xp, positions.join(*arrays), truth[..., : len(row)])
    assert_positions(xp, positions.join(*arrays, total=len(row) + missing, padding=padding), truth)
    assert_positions(xp, positions.join(*given_parts, like=xp.like()), truth[..., : len(row)])
    both = np.concatenate([truth[..., : len(row)]] * 2, axis=-1)
    assert_positions(xp, positions.join(*given_parts, *arrays), both)  # parts of NumPy go with those of any library
    if row:
        with pytest.raises(ValueError, match=f"total must be at least {len(row)}, "):
            positions.join(*arrays, total=len(row) - 1)


def test_joined_parts_have_the_widest_dtype(xp):
    """A float if one is: float32 also with int64."""
    order = [name for name in ("int32", "int64", "float32", "float64") if name in (*xp.integers, *xp.floats)]
    for one, other in itertools.product(order, order):
        joined = positions.join(xp.array([1], one), 1, xp.array([2], other))
        assert xp.dtype_of(joined) == max(one, other, key=order.index) and xp.numpy(joined).tolist() == [1, 0, 2]
