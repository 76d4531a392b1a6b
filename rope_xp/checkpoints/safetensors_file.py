"""Read the header of a .safetensors file: the names, shapes and offsets of its tensors.

The format is 8 bytes, the length of the header, and a header of JSON (`README.md` of huggingface/safetensors). The
`safetensors` package is not used, because it does not give the offsets of tensors.
"""

import os
import struct
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rope_xp.configs.readers.files import opened, parsed_json
from rope_xp.errors import wrong_value
from rope_xp.types import Values

MAX_HEADER = 100_000_000  # bytes, as in the `safetensors` package
MAX_NAME = 1024
MAX_AXES = 16
MAX_SIZE = 2**53

BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


class Tensor(NamedTuple):
    """A tensor in a file: what the header says, and where its bytes are."""

    shape: tuple[int, ...]
    dtype: str
    path: Path
    start: int
    length: int


class Header(NamedTuple):
    tensors: dict[str, Tensor]
    metadata: Values  # what the writer says, such as {"format": "pt"}
    length: int  # in bytes


def read_safetensors(path: Path) -> Header:
    """The header of a file. No tensor is read."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(size - 8, MAX_HEADER):
            _fail(
                path,
                f"a header of 2 to {MAX_HEADER} bytes inside the file",
                f"{length} of {size} bytes" if size else "no bytes: it is empty",
            )
        text = file.read(length)
    entries = parsed_json(f"the header of {path}", text)
    if not isinstance(entries, dict):
        _fail(path, "a JSON object as its header", type(entries).__name__)
    metadata = entries.pop("__metadata__", {})
    tensors = {name: _tensor(path, name, entry, 8 + length, size) for name, entry in entries.items()}
    _check_overlap(path, tensors)
    return Header(tensors, metadata if isinstance(metadata, dict) else {}, length)


def _fail(path: Path, requirement: str, got: str) -> NoReturn:
    raise wrong_value(f"{path} must have {requirement}; got {got[:200]}")


def _tensor(path: Path, name: str, entry: Any, start: int, size: int) -> Tensor:
    """The tensor of an entry, whose offsets count from `start`."""
    entry = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    good = isinstance(dtype, str) and _are_sizes(shape, MAX_AXES) and _are_sizes(offsets, 2) and len(offsets) == 2
    if not good or len(name) > MAX_NAME:
        requirement = (
            f"a dtype, a shape and two data_offsets for each tensor, and names of at most {MAX_NAME} characters"
        )
        _fail(path, requirement, f"{name[:100]!r}: {str(entry)[:50]}")
    begin, end = offsets
    if not begin <= end <= size - start:
        _fail(path, f"the {size - start} bytes of its tensors inside the file", f"{name!r} at {offsets}")
    if dtype in BITS and (end - begin) * 8 != prod(shape) * BITS[dtype]:
        _fail(path, f"all bytes of {dtype} of shape {shape} for {name!r}", f"{end - begin}")
    return Tensor(tuple(shape), dtype, path, start + begin, end - begin)


def _are_sizes(value: object, most: int) -> bool:
    return isinstance(value, list) and len(value) <= most and all(type(n) is int and 0 <= n < MAX_SIZE for n in value)


def _check_overlap(path: Path, tensors: dict[str, Tensor]) -> None:
    ranges = sorted((each.start, each.start + each.length, name) for name, each in tensors.items() if each.length)
    for (_, end, name), (start, _, other) in pairwise(ranges):
        if start < end:
            _fail(path, "each byte in one tensor only", f"{name[:80]!r} and {other[:80]!r}, which overlap")
