"""Builders of positions, against brute force."""

import numpy as np
import pytest
from compare import assert_positions
from libraries import LIBRARIES

from rope_xp import positions


def test_consecutive_never_wraps(xp):
    """An array that cannot be read ends at the greatest integer of its dtype; NumPy's is refused (bad_input)."""
    for bits in (32, 64):
        least, greatest = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        if xp.name == "numpy" or f"int{bits}" not in xp.integers:
            continue
        for offset in (greatest - 1, greatest, greatest - 2, least, -1):
            truth = [min(offset + i, greatest) for i in range(3)]
            result = positions.consecutive(3, xp.array(offset, f"int{bits}"))
            assert xp.dtype_of(result) == f"int{bits}" and xp.numpy(result).tolist() == truth
            rows = positions.consecutive(3, xp.array([5, offset], f"int{bits}"), axes=2)
            assert xp.numpy(rows).tolist() == [[[5, 6, 7], truth]] * 2
    if xp.name == "numpy":
        assert positions.consecutive(3, np.asarray([2**63 - 3])).tolist() == [[2**63 - 3, 2**63 - 2, 2**63 - 1]]
        assert positions.consecutive(1, np.asarray(2**31 - 1, np.int32)).tolist() == [2**31 - 1]


def test_int64_offsets_stay_int64(xp):
    if "int64" in xp.integers:
        result = positions.consecutive(3, xp.array(2**40, "int64"))
        assert xp.dtype_of(result) == "int64"
        np.testing.assert_array_equal(xp.numpy(result), 2**40 + np.arange(3))


def split(sequence, rank, size, zigzag):
    """The part of a list that a rank has."""
    count = len(sequence) // (2 * size if zigzag else size)
    chunks = [sequence[count * i : count * (i + 1)] for i in range(2 * size)]
    return chunks[rank] + (chunks[2 * size - 1 - rank] if zigzag else [])


@pytest.mark.parametrize("zigzag", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("lengths", [[12], [36, 12], [0, 12, 0, 24, 36, 0], [12] * 7, []])
def test_each_packed_sequence_is_split_by_itself(xp, lengths, size, zigzag):
    boundaries, total = [sum(lengths[:i]) for i in range(len(lengths) + 1)], sum(lengths)
    device_boundaries, like = xp.array(boundaries, "int32"), xp.like()
    for rank in range(size):
        tokens = [
            start + i for start, length in zip(boundaries, lengths) for i in split([*range(length)], rank, size, zigzag)
        ]
        truth = np.asarray([i for length in lengths for i in split([*range(length)], rank, size, zigzag)], dtype=int)
        options = {"size": size, "zigzag": zigzag}
        device_rank = xp.array(rank, "int32")
        for where in (rank, device_rank):
            for given in (boundaries, np.asarray(boundaries), device_boundaries):
                result = positions.context_parallel(total, where, cu_seqlens=given, like=like, **options)
                assert_positions(xp, result, truth)
        assert_positions(xp, positions.context_parallel(total, device_rank, cu_seqlens=boundaries, **options), truth)
        assert_positions(xp, positions.context_parallel(total, rank, cu_seqlens=device_boundaries, **options), truth)
        # Other arrays of the row are split alike, along their last axis: labels, or positions on three axes.
        rows = np.arange(3 * 2 * total, dtype=np.float32).reshape(3, 2, total)
        part = positions.context_parallel(xp.array(rows), rank, cu_seqlens=device_boundaries, **options)
        assert xp.dtype_of(part) == "float32"
        np.testing.assert_array_equal(xp.numpy(part), rows[:, :, np.asarray(tokens, dtype=int)])
        packed = positions.from_cu_seqlens(boundaries, total)
        result = positions.context_parallel(packed, rank, cu_seqlens=boundaries, like=like, **options)
        assert_positions(xp, result, truth)
        # Without boundaries, the row is one sequence, whatever its positions.
        result = positions.context_parallel(packed, device_rank, **options)
        assert_positions(xp, result, np.asarray(split(packed.tolist(), rank, size, zigzag), dtype=int))


# NumPy's boundaries are read, and compared with the row.
@pytest.mark.where(lambda xp: xp.name != "numpy")
@pytest.mark.parametrize("zigzag", [False, True])
def test_tokens_after_the_boundaries_of_an_array_are_one_more_sequence(xp, zigzag):
    for rank in range(2):
        truth = [i for length in (8, 4, 16) for i in split([*range(length)], rank, 2, zigzag)]
        boundaries = xp.array([0, 8, 12, 12], "int32")
        result = positions.context_parallel(28, rank, 2, zigzag=zigzag, cu_seqlens=boundaries)
        assert_positions(xp, result, truth)


@pytest.mark.where(lambda xp: "int64" in xp.integers)
def test_ranks_and_boundaries_of_64_bits(xp):
    """Positions of NumPy stay int32; the dtype of an array that is split is kept."""
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


def test_numpy_is_the_default_and_its_counts_do_not_wrap():
    assert isinstance(positions.from_lengths([2]), np.ndarray)
    assert_positions(LIBRARIES["numpy"], positions.consecutive(np.int8(100), np.int8(100)), np.arange(100, 200))
    assert_positions(LIBRARIES["numpy"], positions.context_parallel(np.int8(100), np.int8(99), np.int8(100)), [99])
    assert positions.grid(np.int8(100), np.int8(2)).shape == (2, 200)


def test_offsets_are_integers(xp):
    for offset in (np.asarray(0.5), np.asarray([1.0, 2.0])):
        with pytest.raises(TypeError, match=r"^consecutive: offset must "):
            positions.consecutive(3, xp.array(offset, "float32"))


def seconds_of_two_steps(seconds):
    video = {"video_grids": [[2, 2, 2]], "positions_per_second": 2, "seconds_per_grid": [seconds]}
    return positions.qwen2_5_vl([2, 2], **video).positions[0]


HOST = np.zeros((1, 1), np.int32)
# What takes a number, the last number that it takes and its result, and the first number beyond.
LIMITS = [
    (lambda n: positions.prompt([([n], 1, 1)]).positions[0], 2**31 - 1, [2**31 - 1], 2**31),
    (seconds_of_two_steps, 2**29 - 1, [0, 2**30], 2**29),  # float32 rounds them up
    (lambda n: positions.grid(1, start=n)[0], 2**31 - 1, [2**31 - 1], 2**31),
    (lambda n: positions.grid(1, step=n)[0], 2**31 - 1, [0], 2**31),
    (lambda n: positions.grid(0, start=n)[0], -(2**31), [], -(2**31) - 1),
    (lambda n: positions.grid(2, start=n, step=-1)[0], 1 - 2**31, [1 - 2**31, -(2**31)], -(2**31)),
    (lambda n: positions.grid([n])[0], -(2**31), [-(2**31)], -(2**31) - 1),
    (lambda n: positions.grid([n])[0], 2.0**127 - 2.0**103, [2.0**127 - 2.0**103], 2.0**127),
    (lambda n: positions.grid([n])[0], 2.0**103 - 2.0**127, [2.0**103 - 2.0**127], -(2.0**127)),
    (lambda n: positions.join(HOST, total=2, padding=n)[0], 2**31 - 1, [0, 2**31 - 1], 2**31),
    (lambda n: positions.join(HOST, total=2, padding=n)[0], -(2**31), [0, -(2**31)], -(2**31) - 1),
    (lambda n: positions.context_parallel(n, 2**20 - 1, 2**20)[-1:], 2**31, [2**31 - 1], 2**31 + 2**20),
    (lambda n: positions.consecutive(1, axes=n)[:, 0], 1, [0], 0),
    (lambda n: positions.normalized(n)[0], 1, [0.0], 0),
    (lambda n: positions.hunyuan_vl([0], axes=n).positions[:, 0], 3, [0] * 3, 2),
    (lambda n: positions.qwen2_vl([1], [[1, 1, 1]], spatial_merge_size=n).positions[:, 0], 1, [0] * 3, 0),
    (lambda n: positions.ernie4_5_vl([2], None, [[1, 2, 2]], temporal_merge_size=n).positions[:, 0], 1, [0] * 3, 0),
]


@pytest.mark.parametrize(("call", "last", "wanted", "beyond"), LIMITS)
def test_numbers_are_taken_up_to_their_limit(call, last, wanted, beyond):
    assert call(last).tolist() == wanted
    for each in (beyond, 4 * beyond) if abs(beyond) > 9 else (beyond,):
        with pytest.raises(ValueError, match=r"; got "):
            call(each)


def test_arguments_have_names():
    tokens = np.arange(4)
    assert positions.consecutive(seq=4, offset=0).tolist() == [*tokens]
    assert positions.from_mask(mask=np.ones(4, bool)).tolist() == [*tokens]
    assert positions.from_lengths(lengths=[4], total=4).tolist() == [*tokens]
    assert positions.from_cu_seqlens(cu_seqlens=[0, 4], total=4).tolist() == [*tokens]
    assert positions.context_parallel(seq=4, rank=0, size=1).tolist() == [*tokens]
    assert positions.prompt(runs=[4]).positions[0].tolist() == [*tokens]
    families = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_omni", "ernie4_5_vl", "hunyuan_vl")
    for build in (getattr(positions, name) for name in families):
        assert build(token_types=[0] * 4, image_grids=[]).positions[0].tolist() == [*tokens]


def test_grids_have_up_to_31_axes():
    assert positions.grid(*[1] * 31).shape == (31, 1)
    with pytest.raises(ValueError, match=r"^grid: at least one size is required, and at most 31; got 32$"):
        positions.grid(*[1] * 32)


FALLING = [*range(12), 3, *range(13, 30)]
BAD_BOUNDARIES = {
    "boundaries that start with 0 and never decrease; got [6, 7, 8, 9, 10, 11, 3, 13, 14, 15], from boundary 6 on": (
        positions.from_cu_seqlens, FALLING, 29,
    ),
    f"got {[*range(4, 10), 3]}, from boundary 4 on": (positions.from_cu_seqlens, [*range(10), 3], 3),
    f"got {[0, 2, 1, *range(5, 12)]}, from boundary 0 on": (positions.from_cu_seqlens, [0, 2, 1, *range(5, 13)], 12),
    f"got {[*range(3, 9), 3]}, from boundary 3 on": (positions.from_cu_seqlens, [*range(9), 3], 3),
    f"got {[*range(5), 3, *range(6, 10)]}": (positions.from_cu_seqlens, [*range(5), 3, *range(6, 10)], 9),
    "boundaries that start with 0 and never decrease; got [0, 2, 1]": (positions.from_cu_seqlens, [0, 2, 1], 1),
    "the last boundary, 5 (add a boundary for padding); got 6": (positions.from_cu_seqlens, [0, 2, 5], 6),
    "the last boundary, 5; got 4": (positions.from_cu_seqlens, [0, 2, 5], 4),
}  # fmt: skip


@pytest.mark.parametrize("said", BAD_BOUNDARIES)
def test_boundaries_that_are_wrong_are_shown(said):
    call, *arguments = BAD_BOUNDARIES[said]
    with pytest.raises(ValueError) as raised:
        call(*arguments)
    assert str(raised.value).endswith(said)
