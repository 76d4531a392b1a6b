"""Positions of tokens in sequences: consecutive, padded, packed, split over devices."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from rope_xp._core import backends, checks
from rope_xp._core.arrays import Array

# What positions are like where nothing else is said.
NUMPY = np.zeros(0, dtype=np.int32)


def consecutive(seq: int, offset: int | Array = 0, *, axes: int | None = None, like: Array | None = None) -> Any:
    """Positions ``offset, offset + 1, ..., offset + seq - 1``.

    Parameters
    ----------
    seq : int
        Number of tokens.
    offset : int or array, "" or "batch"
        Position of the first token: a number, a traced scalar, or one number for each row of a batch. Positions of an
        array whose values cannot be read on the host end at the greatest integer of its dtype, where the last tokens
        then are, all of them: they do not wrap to negative numbers.
    axes : int, optional
        The number of position axes, on all of which positions are the same: tokens after a prompt with images.
    like : array, optional
        Whose library and device to use; without it, those of `offset`.

    Returns
    -------
    array, "seq" or "batch seq", with `axes` "axes seq" or "axes batch seq"

    Raises
    ------
    ValueError
        If `seq` is negative, an int `offset` leads out of int32, an array of NumPy out of the integers it holds, or an
        array has more than one axis.
    TypeError
        If `seq` or `offset` is no integer.

    Examples
    --------
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
    """Positions in padded rows: every row counts its own tokens from 0.

    Parameters
    ----------
    mask : array, "*batch seq"
        Boolean or integer; true or not 0 where there is a token. Padding may stand at either end, or in between.
    like : array, optional
        Whose library and device to use; without it, those of `mask`.

    Returns
    -------
    array, "*batch seq"
        Padding has the position of the token before it, or 0.

    Raises
    ------
    ValueError
        If `mask` has no axis.
    TypeError
        If `mask` is neither boolean nor integer.

    Examples
    --------
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
    """Positions in a packed row: sequences one after the other, each counted from 0.

    Parameters
    ----------
    lengths : sequence of int, or integer array, "sequences"
        Tokens of each sequence.
    total : int, optional
        Tokens of the row. Required for an array whose values cannot be read on the host; tokens beyond the last
        sequence are padding and count on from 0.
    like : array, optional
        Whose library and device to use; without it, those of `lengths`.

    Returns
    -------
    array, "total"

    Raises
    ------
    ValueError
        If `lengths` does not have one axis, `total` is missing, or is less than the lengths that can be read.
    TypeError
        If `lengths` or `total` is no integer.

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
    return _packed_beside(who, backends.namespace(sizes).concat([start, backends.cumulative_sum(sizes)]), total)


def from_cu_seqlens(cu_seqlens: Sequence[int] | Array, total: int | None = None, *, like: Array | None = None) -> Any:
    """Positions in a packed row, from the boundaries of its sequences.

    Parameters
    ----------
    cu_seqlens : sequence of int, or integer array, "sequences+1"
        Cumulative lengths as variable-length attention kernels take them: 0, then the end of each sequence.
    total : int, optional
        Tokens of the row. Required for an array whose values cannot be read on the host. All of them must belong to a
        sequence: padding needs a boundary of its own, after it. Where boundaries cannot be read, nobody can refuse
        tokens beyond the last one, and they count from 0.
    like : array, optional
        Whose library and device to use; without it, those of `cu_seqlens`.

    Returns
    -------
    array, "total"

    Raises
    ------
    ValueError
        If `cu_seqlens` does not have one axis, `total` is missing, or is not the last boundary where that can be read.
    TypeError
        If `cu_seqlens` or `total` is no integer.

    References
    ----------
    Name: Dao-AILab/flash-attention, `flash_attn/layers/rotary.py`.

    Examples
    --------
    >>> from_cu_seqlens([0, 3, 5])
    array([0, 1, 2, 0, 1], dtype=int32)
    >>> from_cu_seqlens([0, 3, 5, 6])  # one more token, of padding
    array([0, 1, 2, 0, 1, 0], dtype=int32)
    """
    who = "from_cu_seqlens"
    numbers = _numbers(who, "cu_seqlens", cu_seqlens)
    if numbers is not None:
        packed = _packed(who, "cu_seqlens", numbers, total, like)
        if isinstance(total, int) and total > numbers[-1]:
            raise ValueError(
                f"{who}: every token must lie before the last boundary, {numbers[-1]} (give padding one of its own); "
                f"got total={total}"
            )
        return packed
    boundaries: Any = checks.positions(who, "cu_seqlens", cu_seqlens, like=like, real=False)
    if not boundaries.shape[0]:
        raise ValueError(f"{who}: cu_seqlens must begin with 0; got no boundary")
    return _packed_beside(who, boundaries, total)


def context_parallel(seq: int, rank: int | Array, size: int, *, zigzag: bool = False, like: Array | None = None) -> Any:
    """Positions of the tokens that one rank holds when a sequence is split over ranks.

    Parameters
    ----------
    seq : int
        Tokens of the whole sequence.
    rank : int or array, ""
        This rank, from 0; it may be traced, such as `jax.lax.axis_index`.
    size : int
        Number of ranks.
    zigzag : bool
        Split into ``2 * size`` chunks, of which rank r holds chunks r and ``2 * size - 1 - r``, so that causal
        attention costs every rank the same. Otherwise rank r holds the r-th of `size` chunks.
    like : array, optional
        Whose library and device to use; without it, those of `rank`.

    Returns
    -------
    array, "seq/size"

    Raises
    ------
    ValueError
        If the sequence does not fall into that many chunks, an int `rank` is not one of the ranks, or positions leave
        int32, unless the rank is an int64 array.
    TypeError
        If `seq`, `rank` or `size` is no integer.

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
        raise ValueError(f"{who}: seq must be a multiple of {chunks} chunks; got {seq}")
    chunk = seq // chunks
    this: Any = rank
    if backends.is_host(this):
        this = checks.positions(who, "rank", this, real=False)
        this = this if this.ndim else int(this)
    if not checks.is_int(this):
        this = checks.positions(who, "rank", this, like=like, real=False)
        if this.ndim:
            raise ValueError(f"{who}: rank must have no axis; got shape {checks.shape(this)}")
        if isinstance(seq, int) and seq > 1 << (_bits(this) - 1):
            raise ValueError(f"{who}: positions must fit in int{_bits(this)}; got {seq} tokens")
    elif not 0 <= this < size:
        raise ValueError(f"{who}: rank must be at least 0 and less than size={size}; got {this}")
    first = count_from(who, "rank * chunk", this * chunk, chunk, like=like)
    if not zigzag:
        return first
    second = count_from(who, "rank * chunk", (chunks - 1 - this) * chunk, chunk, like=like)
    return backends.namespace(first).concat([first, second])


def count_from(who: str, name: str, offset: Any, seq: Any, *, like: Any = None) -> Any:
    """`consecutive`, on behalf of another function, where the offset is called `name`."""
    if like is not None:
        checks.array(who, "like", like)
    if checks.is_int(offset):
        offset = checks.plain(offset)
        _fit(who, name, offset, offset, seq)
        return backends.arange(seq, like=NUMPY if like is None else like) + offset
    if backends.namespace(offset) is None:
        raise TypeError(f"{who}: {name} must be an int or an integer array; got {type(offset).__name__}")
    if backends.is_host(offset):
        offset = checks.positions(who, name, offset, real=False)
        if offset.size:
            bits = _bits(offset) if backends.has_64_bits(like) else 32
            _fit(who, name, int(offset.min()), int(offset.max()), seq, bits)
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
    """The width of the integers of an array of positions."""
    return 64 if backends.dtype_name(x.dtype) == "int64" else 32


def _fit(who: str, name: str, lowest: Any, highest: Any, seq: Any, bits: int = 32) -> None:
    """Positions from `lowest` to `highest + seq - 1` must be integers of so many bits.

    An offset of 0 is not compared, as this would bound the length of an exported program; nor is a symbolic length.
    """
    last = highest + seq - 1 if isinstance(seq, int) and highest else highest
    if isinstance(lowest, int) and not (lowest >= -(2 ** (bits - 1)) and last < 2 ** (bits - 1)):
        raise ValueError(f"{who}: positions must fit in int{bits}; got {name}={highest} and {seq} tokens")


def _numbers(who: str, name: str, values: Any) -> list[int] | None:
    """The numbers of a sequence or of NumPy data, with one axis; None for an array that cannot be read here."""
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
    """Positions between boundaries that are known on the host."""
    if boundaries[:1] != [0] or any(later < earlier for earlier, later in pairwise(boundaries)):
        raise ValueError(f"{who}: {name} must make boundaries that begin with 0 and never fall; got {boundaries}")
    total = boundaries[-1] if total is None else checks.count(who, "total", total)
    if isinstance(total, int) and total < boundaries[-1]:
        raise ValueError(f"{who}: total must be at least the last boundary, {boundaries[-1]}; got {total}")
    if boundaries[-1] >= 2**31:
        raise ValueError(f"{who}: positions must fit in int32; got {boundaries[-1]} tokens")
    like = NUMPY if like is None else like
    dtype = checks.array(who, "like", like).int32
    return _packed_beside(who, backends.from_numbers(tuple(boundaries), like=like, dtype=dtype), total)


def _packed_beside(who: str, boundaries: Any, total: int | None) -> Any:
    if total is None:
        raise ValueError(f"{who}: total, the length of the row, must be given for arrays other than NumPy's; got None")
    xp = backends.namespace(boundaries)
    boundaries = boundaries + 0  # contiguous, as some libraries' searchsorted ask
    token = backends.astype(backends.arange(checks.count(who, "total", total), like=boundaries), boundaries.dtype)
    sequence = xp.searchsorted(boundaries, token, side="right") - 1
    return token - xp.take(boundaries, sequence, axis=0)
