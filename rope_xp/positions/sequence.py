"""Positions of tokens in sequences: consecutive, padded, packed, or split over devices."""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from rope_xp.arrays import checks, libraries
from rope_xp.errors import public, wrong_type, wrong_value
from rope_xp.types import Array

# The default of `like`: results are NumPy arrays.
NUMPY = np.zeros(0, dtype=np.int32)


@public("consecutive")
def consecutive(seq: int, offset: int | Array = 0, *, axes: int | None = None, like: Array | None = None) -> Any:
    """Positions ``offset, offset + 1, ..., offset + seq - 1``.

    Parameters
    ----------
    seq : int
        Number of tokens.
    offset : int or array, "" or "batch"
        Position of the first token: a number, a traced scalar, or one number for each row of a batch. If the array
        cannot be read on the host, positions stop at the greatest int32 (int64 of an int64 array): they do not wrap.
    axes : int, optional
        Number of position axes. Positions are equal on all of them, as for the tokens after a prompt with images.
    like : array, optional
        The result has its library and device; by default those of `offset`.

    Returns
    -------
    array, "seq" or "batch seq", with `axes` "axes seq" or "axes batch seq"
        Positions in tokens: int32, or int64 if `offset` is an int64 or uint32 array.

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
    positions = count_from("offset", offset, checks.count("seq", seq), like=like)
    if axes is None:
        return positions
    return libraries.namespace(positions).stack([positions] * checks.count("axes", axes, 1))


@public("from_mask")
def from_mask(mask: Array, *, like: Array | None = None) -> Any:
    """Positions in padded rows: the tokens of each row are counted from 0.

    Parameters
    ----------
    mask : array, "*batch seq"
        Boolean or integer: true or 1 for tokens, false or 0 for padding. Padding may be anywhere in a row.
    like : array, optional
        The result has its library and device; by default those of `mask`.

    Returns
    -------
    array, "*batch seq"
        Positions in tokens, int32. Padding has the position of the token before it, or 0 if there is none.

    Raises
    ------
    ValueError
        If `mask` has no axes, or numbers other than 0 and 1 in NumPy. Elsewhere all but 0 are tokens, as none is read.
    TypeError
        If `mask` is neither boolean nor integer.

    Examples
    --------
    >>> import numpy as np
    >>> from_mask(np.asarray([[0, 0, 1, 1], [1, 1, 1, 1]]))
    array([[0, 0, 0, 1],
           [0, 1, 2, 3]], dtype=int32)
    """
    xp = checks.array("mask", mask)
    if not mask.ndim:
        raise wrong_value("mask must have an axis of tokens; got none")
    if libraries.dtype_name(mask.dtype) != "bool":
        numbers = checks.positions("a mask that is not boolean", mask, real=False)
        if libraries.is_host(numbers) and (others := numbers[(numbers != 0) & (numbers != 1)]).size:
            raise wrong_value(f"mask must be 1 for tokens and 0 for padding (packed: from_lengths); got {others[0]}")
        mask = numbers != 0
    tokens = checks.convert_like("mask", libraries.astype(mask, xp.int32), like)
    last = libraries.cumulative_sum(tokens) - 1
    return libraries.namespace(last).where(last < 0, last * 0, last)


@public("from_lengths")
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
        or positions do not fit in int32. Where lengths cannot be read (traced, on a GPU, in libraries other than NumPy
        and PyTorch), wrong ones give wrong positions.
    TypeError
        If `lengths` or `total` is not an integer.

    Examples
    --------
    >>> from_lengths([3, 2])
    array([0, 1, 2, 0, 1], dtype=int32)
    """
    total = None if total is None else checks.count("total", total)
    numbers, sizes = _read("lengths", lengths, like)
    if (negative := next((each for each in numbers if each < 0), None)) is not None:
        raise wrong_value(f"lengths must not be negative; got {negative}")
    ends = [0, *accumulate(numbers)]
    _require_fit(ends[-1], 32 if sizes is None else _bits(sizes))
    if isinstance(total, int) and total < ends[-1]:
        raise wrong_value(f"total must be at least {ends[-1]}, the sum of lengths; got {total}")
    if sizes is None:
        return _packed(_from_host(ends, like), ends[-1] if total is None else total)
    start = libraries.filled(0, 1, like=sizes, dtype=sizes.dtype)
    return _packed(libraries.namespace(sizes).concat([start, libraries.cumulative_sum(sizes)]), total)


@public("from_cu_seqlens")
def from_cu_seqlens(cu_seqlens: Sequence[int] | Array, total: int | None = None, *, like: Array | None = None) -> Any:
    """Positions in a packed row, from the boundaries of its sequences.

    Parameters
    ----------
    cu_seqlens : sequence of int, or integer array, "sequences+1"
        Cumulative lengths, as variable-length attention kernels take them: 0, then the end of each sequence.
    total : int, optional
        Number of tokens of the row, by default the last boundary. It must equal the last boundary; if the row has
        padding, add the end of the padding to `cu_seqlens`. For a tensor or a JAX array, `total` is required and may be
        greater: tokens after the last boundary are counted from 0.
    like : array, optional
        The result has its library and device; by default those of `cu_seqlens`.

    Returns
    -------
    array, "total"
        Positions in tokens: int32, or int64 if `cu_seqlens` is an int64 array of a library other than NumPy.

    Raises
    ------
    ValueError
        If `cu_seqlens` does not have one axis, does not start with 0 or decreases, `total` is missing or less than the
        last boundary, or greater if that is not in a tensor, or positions do not fit in int32. Where boundaries cannot
        be read, as for `from_lengths`, wrong ones give wrong positions.
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
    total = None if total is None else checks.count("total", total)
    return _packed(*_boundaries(cu_seqlens, "total", total, like))


@public("context_parallel")
def context_parallel(
    seq: int | Array,
    rank: int | Array,
    size: int,
    *,
    zigzag: bool = False,
    cu_seqlens: Sequence[int] | Array | None = None,
    like: Array | None = None,
) -> Any:
    """Positions of the tokens of one rank, when a sequence, or each of several packed ones, is split over ranks.

    Parameters
    ----------
    seq : int or array, "*axes seq"
        Number of tokens of the whole row. Or an array of any dtype with the tokens of the whole row on its last axis,
        such as token ids, labels, or positions on several axes: the result is then what the rank has of that array.
    rank : int or array, ""
        Index of the rank, from 0. It may be traced, such as `jax.lax.axis_index`.
    size : int
        Number of ranks.
    zigzag : bool
        If true, the sequence is split into ``2 * size`` chunks, and rank r has chunks r and ``2 * size - 1 - r``.
        Causal attention then costs the same on every rank. If false, rank r has chunk r of `size` chunks.
    cu_seqlens : sequence of int, or integer array, "sequences+1", optional
        Boundaries of packed sequences: 0, then the end of each sequence with its padding. Each sequence is split by
        itself and counted from 0, and the rank has its tokens of the first sequence, then of the second, and so on.
        The last boundary must equal `seq`. In a tensor or a JAX array it may be less: tokens after it are one more
        sequence.
    like : array, optional
        The result has its library and device; by default those of the first of `seq`, `cu_seqlens` and `rank` that is
        an array of a library other than NumPy.

    Returns
    -------
    array, "seq/size"
        Positions in tokens: int32, or int64 if `rank` or `cu_seqlens` is an int64 array of a library other than NumPy.
        For an array `seq`: "*axes seq/size", with its dtype.

    Raises
    ------
    ValueError
        If `seq` or a boundary is not divisible by the number of chunks, `cu_seqlens` does not have one axis, does not
        start with 0, decreases or does not end with `seq`, `size` is less than 1, an int `rank` is negative or not less
        than `size`, an array `rank` has an axis, an array `seq` has none, or positions do not fit in int32, or in int64
        for an int64 array `rank`. An array `rank` is read in NumPy only; boundaries as by `from_cu_seqlens`.
    TypeError
        If `rank`, `size` or `cu_seqlens` is not an integer, `seq` is neither an integer nor an array, or `zigzag` is
        not a bool.

    References
    ----------
    Llama Team, The Llama 3 Herd of Models (2024), arXiv:2407.21783, section 3.3.2. NVIDIA/Megatron-LM,
    `megatron/core/utils.py`, and for packed sequences `megatron/core/models/common/embeddings/rope_utils.py`.
    NVIDIA/TransformerEngine, `transformer_engine/common/fused_attn/context_parallel.cu`.

    Examples
    --------
    >>> context_parallel(8, rank=1, size=2)
    array([4, 5, 6, 7], dtype=int32)
    >>> context_parallel(8, rank=0, size=2, zigzag=True)
    array([0, 1, 6, 7], dtype=int32)

    Packed sequences of 8 and 4 tokens, and the places of these tokens in the row:

    >>> context_parallel(12, rank=0, size=2, zigzag=True, cu_seqlens=[0, 8, 12])
    array([0, 1, 6, 7, 0, 3], dtype=int32)
    >>> import numpy as np
    >>> context_parallel(np.arange(12, dtype=np.int32), rank=0, size=2, zigzag=True, cu_seqlens=[0, 8, 12])
    array([ 0,  1,  6,  7,  8, 11], dtype=int32)
    """
    name, total = _number_of_tokens(seq)
    size = checks.count("size", size, 1)
    zigzag = checks.boolean("zigzag", zigzag)
    chunks = 2 * size if zigzag else size
    if total % chunks:
        raise wrong_value(f"{name} must be divisible by {chunks}, the number of chunks; got {total}")
    like = like_of(like, (seq, cu_seqlens, rank))
    chunk = first = _checked_rank(rank, total, size, like)
    if cu_seqlens is None:
        start, width, token = 0, total // chunks, libraries.arange(total // size, like=like)
    else:
        boundaries, _ = _boundaries(cu_seqlens, name, total, like, chunks)
        start, width, token = _of_each_sequence(boundaries, total, size, chunks)
    # `token` counts the rank's tokens of one sequence from 0, `width` is the length of that sequence's chunks.
    if zigzag:
        is_second = libraries.astype(token >= width, token.dtype)
        chunk = first + is_second * (2 * (size - 1 - first))
    positions = token + width * chunk
    if name == "seq":
        return positions
    return libraries.take(checks.convert_like("seq", seq, like), positions + start, axis=-1)


def like_of(like: Array | None, arguments: Iterable[object]) -> Any:
    """`like`; by default the first argument that is an array of a library other than NumPy, or else a NumPy array."""
    if like is None:
        # Sizes are left out first: compilers cannot ask a symbol for its namespace. The oldest PyTorch cannot trace a
        # default of `next`.
        others = [each for each in arguments if not (checks.is_int(each) or libraries.is_host(each))]
        return [*(each for each in others if libraries.namespace(each) is not None), NUMPY][0]
    checks.array("like", like)
    return like


def _number_of_tokens(seq: Any) -> tuple[str, int]:
    """What `seq` is called in messages, and the number of tokens: `seq` itself, or the size of its last axis."""
    if checks.is_int(seq):
        return "seq", checks.count("seq", seq)
    if libraries.namespace(seq) is None:
        raise wrong_type(f"seq must be an int or an array; got {type(seq).__name__}")
    checks.array("seq", seq)
    if not seq.ndim or seq.shape[-1] is None:
        raise wrong_value(f"an array seq must have a last axis of known size; got shape {checks.shape(seq)}")
    return "the last axis of seq", seq.shape[-1]


def _checked_rank(rank: Any, total: int, size: int, like: Array | None) -> Any:
    """`rank` as an int, or as an array of one number. Positions up to `total` must fit in its dtype, or in int32."""
    if libraries.is_host(rank):
        rank = checks.positions("rank", rank, real=False)
        rank = rank if rank.ndim else int(rank)
    bits = 32
    if checks.is_int(rank):
        if not 0 <= rank < size:
            raise wrong_value(f"rank must be at least 0 and less than size={size}; got {rank}")
    else:
        rank = checks.positions("rank", rank, like=like, real=False)
        bits = _bits(rank)
        if rank.ndim:
            raise wrong_value(f"rank must have no axis; got shape {checks.shape(rank)}")
    if isinstance(total, int) and total > 1 << (bits - 1):
        raise wrong_value(f"positions must fit in int{bits}; got {total} tokens")
    return rank if checks.is_int(rank) else rank[..., None]


def count_from(name: str, offset: Any, seq: int, *, like: Array | None = None) -> Array:
    """The same as `consecutive`. Error messages call the offset `name`."""
    if like is not None:
        checks.array("like", like)
    if checks.is_int(offset):
        offset = checks.plain(offset)
        _check_fits(name, offset, offset, seq)
        return libraries.arange(seq, like=NUMPY if like is None else like) + offset
    if libraries.namespace(offset) is None:
        raise wrong_type(f"{name} must be an int or an integer array; got {type(offset).__name__}")
    if libraries.is_host(offset):
        offset = checks.positions(name, offset, real=False)
        if offset.size:
            bits = _bits(offset) if libraries.has_64_bits(like) else 32
            _check_fits(name, int(offset.min()), int(offset.max()), seq, bits)
    first = checks.positions(name, offset, like=like, real=False)
    if first.ndim > 1:
        raise wrong_value(f"{name} must have no axis or one; got shape {checks.shape(first)}")
    tokens = libraries.astype(libraries.arange(seq, like=first), first.dtype)
    first, tokens = first[..., None], tokens if not first.ndim else tokens[None, :]
    if not (libraries.is_host(first) or (isinstance(seq, int) and seq <= 1)):
        # These offsets cannot be read: instead of an error, positions stop at the greatest integer.
        xp = libraries.namespace(first)
        most = 2 ** (_bits(first) - 1) - 1 - xp.where(first > 0, first, xp.zeros_like(first))
        tokens = xp.where(tokens < most, tokens, most)
    return first + tokens


def _bits(x: Array) -> int:
    return 64 if libraries.dtype_name(x.dtype) == "int64" else 32


def _check_fits(name: str, lowest: int, highest: int, seq: int, bits: int = 32) -> None:
    """Positions from `lowest` to `highest + seq - 1` must fit in integers of `bits` bits."""
    # Symbolic lengths and offsets of 0 are not compared: that would limit the length of an exported program.
    last = highest + max(seq - 1, 0) if isinstance(seq, int) and highest else highest
    if isinstance(lowest, int) and not (lowest >= -(2 ** (bits - 1)) and last < 2 ** (bits - 1)):
        raise wrong_value(f"positions must fit in int{bits}; got {name}={highest} and {seq} tokens")


def _read(name: str, values: Any, like: Array | None) -> tuple[list[int], Array | None]:
    """The numbers on one axis, none if they cannot be read, and the array, if it is of a library other than NumPy."""
    array = None
    if libraries.is_host(values):
        values = checks.positions(name, values, real=False)
        numbers = values.ravel().tolist()
    elif isinstance(values, Sequence) and all(checks.is_int(value) for value in values):
        return [checks.plain(value) for value in values], None
    elif isinstance(values, Sequence) or libraries.namespace(values) is None:
        kinds = {_library_of_integer(each) for each in values} if isinstance(values, Sequence) else {""}
        hint = f": {kinds.pop()}.stack makes an array of it" if len(kinds) == 1 and "" not in kinds else ""
        raise wrong_type(f"{name} must be a sequence of int or an integer array; got {checks.shown(values)}{hint}")
    else:
        array = values = checks.positions(name, values, like=like, real=False)
        numbers = libraries.numbers_at_hand(array) or []
    if values.ndim != 1:
        raise wrong_value(f"{name} must have one axis; got shape {checks.shape(values)}")
    return numbers, array


def _library_of_integer(each: Array) -> str:
    # Under jit, the numbers of a list become arrays.
    is_integer = libraries.namespace(each) is not None and each.ndim == 0
    is_integer = is_integer and libraries.dtype_name(each.dtype) in checks.INTEGERS
    return libraries.name(libraries.namespace(each)) if is_integer else ""


def _require_fit(tokens: int, bits: int = 32) -> None:
    if tokens >= 1 << (bits - 1):
        raise wrong_value(f"numbers of tokens must fit in int{bits}; got {tokens}")


def _from_host(boundaries: list[int], like: Array | None) -> Array:
    like = NUMPY if like is None else like
    dtype = checks.array("like", like).int32
    return libraries.from_numbers(tuple(boundaries), like=like, dtype=dtype)


def _boundaries(
    cu_seqlens: Sequence[int] | Array, name: str, total: int | None, like: Array | None, chunks: int = 1
) -> tuple[Array, int | None]:
    """The boundaries of sequences, and the number of tokens, which `name` is in messages."""
    numbers, boundaries = _read("cu_seqlens", cu_seqlens, like)
    if numbers or boundaries is None or not boundaries.shape[0]:
        _require_rising(numbers)
    _require_chunks(numbers, chunks)
    if boundaries is not None:
        if numbers and isinstance(total, int) and total < numbers[-1]:
            raise wrong_value(f"{name} must be at least the last boundary, {numbers[-1]}; got {total}")
        return boundaries + 0, total  # contiguous, which `searchsorted` of some libraries requires
    last = numbers[-1]
    _require_fit(last)
    if isinstance(total, int) and total != last:
        hint = " (add a boundary for padding)" if total > last else ""
        raise wrong_value(f"{name} must be the last boundary, {last}{hint}; got {total}")
    return _from_host(numbers, like), last if total is None else total


def _require_rising(boundaries: list[int]) -> None:
    falls = (index for index, (earlier, later) in enumerate(pairwise(boundaries)) if later < earlier)
    wrong = next(falls, None) if boundaries[:1] == [0] else 0
    if wrong is not None:
        first = max(0, wrong - 5)
        shown = boundaries[first : first + 10]
        place = "" if shown == boundaries else f", from boundary {first} on"
        raise wrong_value(f"cu_seqlens must give boundaries that start with 0 and never decrease; got {shown}{place}")


def _require_chunks(boundaries: list[int], chunks: int) -> None:
    for sequence, (start, end) in enumerate(pairwise(boundaries)):
        if end % chunks:
            raise wrong_value(
                f"each packed sequence must be divisible by {chunks}, the number of chunks (pad it); "
                f"got {end - start} tokens in sequence {sequence}"
            )


def _packed(boundaries: Array, total: int | None) -> Array:
    if total is None:
        raise wrong_value("total must be given for a tensor or a JAX array; got None")
    token = libraries.astype(libraries.arange(total, like=boundaries), boundaries.dtype)
    return token - libraries.take(boundaries, _sequence(boundaries, token), axis=0)


def _of_each_sequence(boundaries: Any, total: int, size: int, chunks: int) -> tuple[Array, Any, Any]:
    """For each token of a rank: the start of its sequence, the length of the chunks, and its number in the sequence."""
    row = libraries.astype(libraries.arange(total // size, like=boundaries), boundaries.dtype)
    # The end of the row is one more boundary, so that one follows each token.
    end = libraries.astype(libraries.arange(1, like=boundaries) + total, boundaries.dtype)
    boundaries = libraries.concat([boundaries, end])
    sequence = _sequence(boundaries // size, row)
    start, end = (libraries.take(boundaries, each, axis=0) for each in (sequence, sequence + 1))
    return start, (end - start) // chunks, row - start // size


def _sequence(boundaries: Array, token: Array) -> Array:
    return libraries.namespace(token).searchsorted(boundaries, token, side="right") - 1
