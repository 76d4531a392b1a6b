"""Positions of tokens in sequences: consecutive, padded, packed, or split over devices."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from rope_xp._core import backends, checks
from rope_xp._core.arrays import Array

# The default of `like`: results are NumPy arrays.
NUMPY = np.zeros(0, dtype=np.int32)


def consecutive(seq: int, offset: int | Array = 0, *, axes: int | None = None, like: Array | None = None) -> Any:
    """Positions ``offset, offset + 1, ..., offset + seq - 1``.

    Parameters
    ----------
    seq : int
        Number of tokens.
    offset : int or array, "" or "batch"
        Position of the first token: a number, a traced scalar, or one number for each row of a batch. If the array
        cannot be read on the host, positions stop at the greatest integer of its dtype, so that they never become
        negative.
    axes : int, optional
        Number of position axes. Positions are equal on all of them, as for the tokens after a prompt with images.
    like : array, optional
        The result has its library and device; by default those of `offset`.

    Returns
    -------
    array, "seq" or "batch seq", with `axes` "axes seq" or "axes batch seq"
        Positions in tokens: int32, or int64 if `offset` is an int64 array.

    Raises
    ------
    ValueError
        If `seq` is negative, `axes` is less than 1, `offset` has more than one axis, or a position does not fit in
        int32, or in int64 for an int64 NumPy array.
    TypeError
        If `seq`, `offset` or `axes` is not an integer.

    Examples
    --------
    >>> import numpy as np
    >>> consecutive(4, offset=10)
    array([10, 11, 12, 13], dtype=int32)
    >>> consecutive(3, offset=np.asarray([0, 7], dtype=np.int32))
    array([[0, 1, 2],
           [7, 8, 9]], dtype=int32)
    """
    who = "consecutive"
    positions = count_from(who, "offset", offset, checks.count(who, "seq", seq), like=like)
    if axes is None:
        return positions
    if checks.count(who, "axes", axes) < 1:
        raise ValueError(f"{who}: axes must be at least 1; got {axes}")
    return backends.namespace(positions).stack([positions] * axes)


def from_mask(mask: Array, *, like: Array | None = None) -> Any:
    """Positions in padded rows: the tokens of each row are counted from 0.

    Parameters
    ----------
    mask : array, "*batch seq"
        Boolean or integer: true or nonzero for tokens, false or 0 for padding. Padding may be anywhere in a row.
    like : array, optional
        The result has its library and device; by default those of `mask`.

    Returns
    -------
    array, "*batch seq"
        Positions in tokens, int32. Padding has the position of the token before it, or 0 if there is none.

    Raises
    ------
    ValueError
        If `mask` has no axes.
    TypeError
        If `mask` is neither boolean nor integer.

    Examples
    --------
    >>> import numpy as np
    >>> from_mask(np.asarray([[0, 0, 1, 1], [1, 1, 1, 1]]))
    array([[0, 0, 0, 1],
           [0, 1, 2, 3]], dtype=int32)
    """
    who = "from_mask"
    xp = checks.array(who, "mask", mask)
    if not mask.ndim:
        raise ValueError(f"{who}: mask must have an axis of tokens; got none")
    if backends.dtype_name(mask.dtype) != "bool":
        mask = checks.positions(who, "mask", mask, real=False) != 0
    tokens = checks.convert_like(who, "mask", backends.astype(mask, xp.int32), like)
    last = backends.cumulative_sum(tokens) - 1
    return backends.namespace(last).where(last < 0, last * 0, last)


def from_lengths(lengths: Sequence[int] | Array, total: int | None = None, *, like: Array | None = None) -> Any:
    """Positions in a packed row: several sequences one after the other, each counted from 0.

    Parameters
    ----------
    lengths : sequence of int, or integer array, "sequences"
        Number of tokens of each sequence.
    total : int, optional
        Number of tokens of the row, by default the sum of `lengths`. It is required for a tensor or a JAX
        array. Tokens after the last sequence are padding; they too are counted from 0.
    like : array, optional
        The result has its library and device; by default those of `lengths`.

    Returns
    -------
    array, "total"
        Positions in tokens: int32, or int64 if `lengths` is an int64 array of a library other than NumPy.

    Raises
    ------
    ValueError
        If `lengths` does not have one axis, a length is negative, `total` is missing or less than the sum of `lengths`,
        or positions do not fit in int32. Values are checked only where they can be read on the host.
    TypeError
        If `lengths` or `total` is not an integer.

    Examples
    --------
    >>> from_lengths([3, 2])
    array([0, 1, 2, 0, 1], dtype=int32)
    """
    who = "from_lengths"
    numbers = _numbers(who, "lengths", lengths)
    if numbers is not None:
        return _packed(who, "lengths", [0, *accumulate(numbers)], total, like)
    sizes: Any = checks.positions(who, "lengths", lengths, like=like, real=False)
    start = backends.from_numbers((0,), like=sizes, dtype=sizes.dtype)
    boundaries = backends.namespace(sizes).concat([start, backends.cumulative_sum(sizes)])
    return _packed_positions(who, boundaries, total)


def from_cu_seqlens(cu_seqlens: Sequence[int] | Array, total: int | None = None, *, like: Array | None = None) -> Any:
    """Positions in a packed row, from the boundaries of its sequences.

    Parameters
    ----------
    cu_seqlens : sequence of int, or integer array, "sequences+1"
        Cumulative lengths, as variable-length attention kernels take them: 0, then the end of each sequence.
    total : int, optional
        Number of tokens of the row, by default the last boundary. It must equal the last boundary; if the row has
        padding, add the end of the padding to `cu_seqlens`. For a tensor or a JAX array, `total` is required and
        is not compared, and tokens after the last boundary are counted from 0.
    like : array, optional
        The result has its library and device; by default those of `cu_seqlens`.

    Returns
    -------
    array, "total"
        Positions in tokens: int32, or int64 if `cu_seqlens` is an int64 array of a library other than NumPy.

    Raises
    ------
    ValueError
        If `cu_seqlens` does not have one axis, does not start with 0 or decreases, `total` is missing or is not the
        last boundary, or positions do not fit in int32. Values are checked only where they can be read on the host.
    TypeError
        If `cu_seqlens` or `total` is not an integer.

    References
    ----------
    Name: Dao-AILab/flash-attention, `flash_attn/layers/rotary.py`.

    Examples
    --------
    >>> from_cu_seqlens([0, 3, 5])
    array([0, 1, 2, 0, 1], dtype=int32)
    >>> from_cu_seqlens([0, 3, 5, 6])  # the last token is padding
    array([0, 1, 2, 0, 1, 0], dtype=int32)
    """
    who = "from_cu_seqlens"
    numbers = _numbers(who, "cu_seqlens", cu_seqlens)
    if numbers is not None:
        packed = _packed(who, "cu_seqlens", numbers, total, like)
        if isinstance(total, int) and total > numbers[-1]:
            raise ValueError(
                f"{who}: total must be the last boundary, {numbers[-1]} (add a boundary for padding); got {total}"
            )
        return packed
    boundaries: Any = checks.positions(who, "cu_seqlens", cu_seqlens, like=like, real=False)
    if not boundaries.shape[0]:
        raise ValueError(f"{who}: cu_seqlens must start with 0; got no boundary")
    return _packed_positions(who, boundaries, total)


def context_parallel(seq: int, rank: int | Array, size: int, *, zigzag: bool = False, like: Array | None = None) -> Any:
    """Positions of the tokens of one rank, when a sequence is split over several ranks.

    Parameters
    ----------
    seq : int
        Number of tokens of the whole sequence.
    rank : int or array, ""
        Index of the rank, from 0. It may be traced, such as `jax.lax.axis_index`.
    size : int
        Number of ranks.
    zigzag : bool
        If true, the sequence is split into ``2 * size`` chunks, and rank r has chunks r and ``2 * size - 1 - r``.
        Causal attention then costs the same on every rank. If false, rank r has chunk r of `size` chunks.
    like : array, optional
        The result has its library and device; by default those of `rank`.

    Returns
    -------
    array, "seq/size"
        Positions in tokens: int32, or int64 if `rank` is an int64 array of a library other than NumPy.

    Raises
    ------
    ValueError
        If `seq` is not divisible by the number of chunks, `size` is less than 1, an int `rank` is negative or not less
        than `size`, an array `rank` has an axis, or positions do not fit in the dtype of the result.
    TypeError
        If `seq`, `rank` or `size` is not an integer.

    References
    ----------
    Llama Team, The Llama 3 Herd of Models (2024), arXiv:2407.21783, section 3.3.2. NVIDIA/Megatron-LM,
    `megatron/core/utils.py`.

    Examples
    --------
    >>> context_parallel(8, rank=1, size=2)
    array([4, 5, 6, 7], dtype=int32)
    >>> context_parallel(8, rank=0, size=2, zigzag=True)
    array([0, 1, 6, 7], dtype=int32)
    """
    who = "context_parallel"
    seq, size = checks.count(who, "seq", seq), checks.count(who, "size", size)
    if size < 1:
        raise ValueError(f"{who}: size must be at least 1; got {size}")
    chunks = 2 * size if zigzag else size
    if seq % chunks:
        raise ValueError(f"{who}: seq must be divisible by {chunks}, the number of chunks; got {seq}")
    chunk = seq // chunks
    index = _checked_rank(who, rank, seq, size, like)
    first = count_from(who, "rank * chunk", index * chunk, chunk, like=like)
    if not zigzag:
        return first
    second = count_from(who, "rank * chunk", (chunks - 1 - index) * chunk, chunk, like=like)
    return backends.namespace(first).concat([first, second])


def _checked_rank(who: str, rank: Any, seq: Any, size: int, like: Any) -> Any:
    """`rank` as an int, or as an array without axes."""
    if backends.is_host(rank):
        rank = checks.positions(who, "rank", rank, real=False)
        rank = rank if rank.ndim else int(rank)
    if checks.is_int(rank):
        if not 0 <= rank < size:
            raise ValueError(f"{who}: rank must be at least 0 and less than size={size}; got {rank}")
        return rank
    rank = checks.positions(who, "rank", rank, like=like, real=False)
    if rank.ndim:
        raise ValueError(f"{who}: rank must have no axis; got shape {checks.shape(rank)}")
    if isinstance(seq, int) and seq > 1 << (_bits(rank) - 1):
        raise ValueError(f"{who}: positions must fit in int{_bits(rank)}; got {seq} tokens")
    return rank


def count_from(who: str, name: str, offset: Any, seq: Any, *, like: Any = None) -> Any:
    """The same as `consecutive`. Error messages begin with `who` and call the offset `name`."""
    if like is not None:
        checks.array(who, "like", like)
    if checks.is_int(offset):
        offset = checks.plain(offset)
        _check_fits(who, name, offset, offset, seq)
        return backends.arange(seq, like=NUMPY if like is None else like) + offset
    if backends.namespace(offset) is None:
        raise TypeError(f"{who}: {name} must be an int or an integer array; got {type(offset).__name__}")
    if backends.is_host(offset):
        offset = checks.positions(who, name, offset, real=False)
        if offset.size:
            bits = _bits(offset) if backends.has_64_bits(like) else 32
            _check_fits(who, name, int(offset.min()), int(offset.max()), seq, bits)
    first: Any = checks.positions(who, name, offset, like=like, real=False)
    if first.ndim > 1:
        raise ValueError(f"{who}: {name} must have no axis or one; got shape {checks.shape(first)}")
    tokens = backends.astype(backends.arange(seq, like=first), first.dtype)
    first, tokens = first[..., None], tokens if not first.ndim else tokens[None, :]
    if not (backends.is_host(first) or (isinstance(seq, int) and seq <= 1)):
        xp = backends.namespace(first)
        most = 2 ** (_bits(first) - 1) - 1 - xp.where(first > 0, first, xp.zeros_like(first))
        tokens = xp.where(tokens < most, tokens, most)
    return first + tokens


def _bits(x: Any) -> int:
    """The number of bits of the integers in an array of positions."""
    return 64 if backends.dtype_name(x.dtype) == "int64" else 32


def _check_fits(who: str, name: str, lowest: Any, highest: Any, seq: Any, bits: int = 32) -> None:
    """Positions from `lowest` to `highest + seq - 1` must fit in integers of `bits` bits.

    Symbolic lengths and offsets of 0 are not compared, because a comparison would limit the length of an exported
    program.
    """
    last = highest + seq - 1 if isinstance(seq, int) and highest else highest
    if isinstance(lowest, int) and not (lowest >= -(2 ** (bits - 1)) and last < 2 ** (bits - 1)):
        raise ValueError(f"{who}: positions must fit in int{bits}; got {name}={highest} and {seq} tokens")


def _numbers(who: str, name: str, values: Any) -> list[int] | None:
    """The numbers of a sequence or NumPy array of one axis; None for an array that cannot be read on the host."""
    if backends.is_host(values):
        values = checks.positions(who, name, values, real=False)
        if values.ndim == 1:
            return values.tolist()
    elif isinstance(values, Sequence) and all(checks.is_int(value) for value in values):
        return [checks.plain(value) for value in values]
    elif isinstance(values, Sequence) or backends.namespace(values) is None:
        raise TypeError(f"{who}: {name} must be a sequence of int or an integer array; got {values!r}")
    else:
        checks.array(who, name, values)
        if values.ndim == 1:
            return None
    raise ValueError(f"{who}: {name} must have one axis; got shape {checks.shape(values)}")


def _packed(who: str, name: str, boundaries: list[int], total: int | None, like: Any) -> Any:
    """Positions for boundaries whose values are known on the host."""
    if boundaries[:1] != [0] or any(later < earlier for earlier, later in pairwise(boundaries)):
        raise ValueError(f"{who}: {name} must give boundaries that start with 0 and never decrease; got {boundaries}")
    total = boundaries[-1] if total is None else checks.count(who, "total", total)
    if isinstance(total, int) and total < boundaries[-1]:
        raise ValueError(f"{who}: total must be at least the last boundary, {boundaries[-1]}; got {total}")
    if boundaries[-1] >= 2**31:
        raise ValueError(f"{who}: positions must fit in int32; got {boundaries[-1]} tokens")
    like = NUMPY if like is None else like
    dtype = checks.array(who, "like", like).int32
    return _packed_positions(who, backends.from_numbers(tuple(boundaries), like=like, dtype=dtype), total)


def _packed_positions(who: str, boundaries: Any, total: int | None) -> Any:
    """Positions for an array of boundaries, "sequences+1"."""
    if total is None:
        raise ValueError(f"{who}: total must be given for a tensor or a JAX array; got None")
    xp = backends.namespace(boundaries)
    boundaries = boundaries + 0  # makes a contiguous array, which `searchsorted` of some libraries requires
    token = backends.astype(backends.arange(checks.count(who, "total", total), like=boundaries), boundaries.dtype)
    sequence = xp.searchsorted(boundaries, token, side="right") - 1
    return token - xp.take(boundaries, sequence, axis=0)
