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


def test_padding_fills_int32():
    """tests/goldens/examples.json has other limits of numbers."""
    host = np.zeros((1, 1), np.int32)
    for padding in (2**31 - 1, -(2**31)):
        assert positions.join(host, total=2, padding=padding).tolist() == [[0, padding]]
        with pytest.raises(ValueError, match="padding must fit in int32; got "):
            positions.join(host, total=2, padding=padding + (1 if padding > 0 else -1))


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
