"""Read the header of a GGUF file (`docs/gguf.md` of ggml-org/ggml): its metadata, and its tensors' names and shapes.

The `gguf` package makes arrays of each token (10 s and 600 MB for 150,000 tokens), and trusts the counts in the file,
so that neither its time nor its memory has a bound.
"""

import os
import struct
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from rope_xp.configs.readers.files import opened
from rope_xp.configs.writers.gguf_architectures import TENSORS
from rope_xp.errors import wrong_value
from rope_xp.types import Values

# Limits far above any checkpoint's header. Within them, reading takes at most a few seconds and a few hundred MB.
MAX_HEADER = 2**27  # bytes
MAX_TAKEN = 2**25  # bytes of the header that are not skipped: of each string that is skipped, the 8 of its length
MAX_ENTRIES = 2**14
MAX_TENSORS = 2**17
MAX_LIST = 2**14  # values of a list that is decoded; a longer one is left out
MAX_TEXT = 2**16  # bytes of a string that is decoded; a longer one is left out
MAX_NAME = 2**8  # bytes
MAX_AXES = 8

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, LIST = 8, 9
FLOAT32 = 0  # among the types of tensors


class GGUFTensor(NamedTuple):
    """A tensor in the file: its shape, rows first as in NumPy, its type, and its offset from the start of the data."""

    shape: tuple[int, ...]
    type: int
    offset: int


class GGUFHeader(NamedTuple):
    """What the header says. `factors` are values of the tensors that divide the frequencies, by name."""

    metadata: Values
    tensors: dict[str, GGUFTensor]
    factors: dict[str, list[float]]


def metadata_of_file(path: Path) -> Values:
    """The metadata of a GGUF file, without entries beyond the limits above, and the tensors in `TENSORS`."""
    # The value of a missing tensor is None. It is left out if the file is one of several: another may have it.
    header = read_gguf(path)
    is_split = header.metadata.get("split.count", 0) not in (0, 1)
    missing = {} if is_split else dict.fromkeys(TENSORS)
    return {**header.metadata, **missing, **header.factors}


def read_gguf(path: Path) -> GGUFHeader:
    with opened(path) as file:
        reader = _Reader(str(path), file)
        _check_start(reader)
        tensor_count = reader.count("tensors", MAX_TENSORS, least_bytes=24)
        entry_count = reader.count("entries", MAX_ENTRIES, least_bytes=13)
        metadata = _metadata(reader, entry_count)
        tensors = _tensors(reader, tensor_count)
        start = _start_of_data(reader, metadata)
        for name, tensor in tensors.items():
            if tensor.offset > reader.size - start:
                reader.fail(f"the data of {name!r} inside the file", f"an offset of {tensor.offset}")
        factors = {name: _values(reader, start, name, tensors[name]) for name in TENSORS if name in tensors}
    return GGUFHeader(metadata, tensors, factors)


class _Reader:
    """Takes values from a file, and checks that they are there before memory is used for them."""

    def __init__(self, name: str, file: BinaryIO):
        self.name, self.file = name, file
        self.size = os.fstat(file.fileno()).st_size
        self.left = self.size
        self.taken = 0

    def fail(self, requirement: str, got: str) -> NoReturn:
        raise wrong_value(f"{self.name} must have {requirement}; got {got}")

    def take(self, count: int) -> bytes:
        self._pass(count)
        self.taken += count
        if self.taken > MAX_TAKEN:
            self.fail(f"at most {MAX_TAKEN} bytes of names, lengths and values in its header", "more")
        found = self.file.read(count)
        if len(found) < count:
            self.fail("all bytes of its header", "an end before them")
        return found

    def skip(self, count: int) -> None:
        self._pass(count)
        self.file.seek(count, os.SEEK_CUR)

    def _pass(self, count: int) -> None:
        if count > self.left:
            self.fail("all bytes of its header", f"an end after {self.size} bytes")
        self.left -= count
        if self.size - self.left > MAX_HEADER:
            self.fail(f"a header of at most {MAX_HEADER} bytes", "a longer one")

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def count(self, what: str, limit: int, least_bytes: int = 0) -> int:
        """A number of things, each of which takes at least some bytes of the file."""
        found = self.number("Q")
        if found > limit or found * least_bytes > self.left:
            self.fail(f"at most {min(limit, self.left // max(least_bytes, 1))} {what}", f"{found}")
        return found

    def name_of(self, what: str) -> str:
        return self.text(self.count(f"bytes in the name of {what}", MAX_NAME))

    def text(self, length: int) -> str:
        found = self.take(length)
        try:
            return found.decode()
        except UnicodeDecodeError as error:
            raise wrong_value(f"{self.name} must have strings in UTF-8; got {error.reason}") from None


def _check_start(reader: _Reader) -> None:
    start = reader.file.read(8)
    reader.left -= len(start)
    if start[:4] != b"GGUF":
        reader.fail("the format GGUF, whose first bytes are b'GGUF'", repr(start))
    if len(start) < 8:
        reader.fail("all bytes of its header", f"an end after {len(start)} bytes")
    version = struct.unpack("<I", start[4:])[0]
    if version not in (2, 3):
        got = "a file in big-endian order" if not version & 0xFFFF else f"version {version}"
        reader.fail("version 2 or 3 of GGUF, in little-endian order", got)


def _metadata(reader: _Reader, count: int) -> Values:
    found: Values = {}
    for _ in range(count):
        key = reader.name_of("an entry")
        if key in found:
            reader.fail("each key of its metadata once", f"{key!r} twice")
        found[key] = _entry(reader, key, reader.number("I"), decode=not key.startswith("tokenizer."))
    return {key: value for key, value in found.items() if value is not None}


def _entry(reader: _Reader, key: str, kind: int, decode: bool) -> object:
    if kind in NUMBERS:
        return reader.number(NUMBERS[kind])
    if kind == STRING:
        return _text(reader, decode)
    if kind != LIST:
        reader.fail(f"a known type in {key!r}", f"type {kind}")
    kind, count = reader.number("I"), reader.number("Q")
    if kind == STRING:
        return _texts(reader, count, decode)
    if kind not in NUMBERS:
        reader.fail(f"numbers or strings in the list {key!r}", "a list of lists" if kind == LIST else f"type {kind}")
    length = count * struct.calcsize(f"<{NUMBERS[kind]}")
    if not decode or count > MAX_LIST:
        return reader.skip(length)
    return list(struct.unpack(f"<{count}{NUMBERS[kind]}", reader.take(length)))


def _text(reader: _Reader, decode: bool) -> str | None:
    length = reader.number("Q")
    return reader.text(length) if decode and length <= MAX_TEXT else reader.skip(length)


def _texts(reader: _Reader, count: int, decode: bool) -> list[str | None] | None:
    if decode and count <= MAX_LIST:
        return [_text(reader, decode) for _ in range(count)]
    for _ in range(count):
        reader.skip(reader.number("Q"))
    return None


def _tensors(reader: _Reader, count: int) -> dict[str, GGUFTensor]:
    found: dict[str, GGUFTensor] = {}
    for _ in range(count):
        name, axes = reader.name_of("a tensor"), reader.number("I")
        if name in found or axes > MAX_AXES:
            got = f"{name!r} twice" if name in found else f"{name!r} with {axes}"
            reader.fail(f"each tensor once, with at most {MAX_AXES} axes", got)
        shape = struct.unpack(f"<{axes}Q", reader.take(8 * axes))
        found[name] = GGUFTensor(shape[::-1], reader.number("I"), reader.number("Q"))
    return found


def _start_of_data(reader: _Reader, metadata: Values) -> int:
    """Where the data of tensors begins: after the header, at a multiple of the alignment."""
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        reader.fail("a positive integer as general.alignment", repr(alignment)[:50])
    end = reader.size - reader.left
    return end + -end % alignment


def _values(reader: _Reader, start: int, name: str, tensor: GGUFTensor) -> list[float]:
    if tensor.type != FLOAT32 or len(tensor.shape) != 1 or tensor.shape[0] > MAX_LIST:
        reader.fail(f"at most {MAX_LIST} float32 values in {name!r}", f"type {tensor.type}, shape {tensor.shape}")
    (count,) = tensor.shape
    length = 4 * count
    reader.file.seek(start + tensor.offset)
    data = reader.file.read(length)
    if len(data) < length:
        reader.fail(f"all values of {name!r}", f"{len(data)} of {length} bytes")
    return list(struct.unpack(f"<{count}f", data))
