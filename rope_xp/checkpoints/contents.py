"""What the files of a checkpoint contain: the names and shapes of its tensors, and the config beside them.

The `safetensors` package does not give the offsets of tensors (`README.md` of huggingface/safetensors has the format).
"""

import os
from collections.abc import Mapping
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rope_xp.configs.readers.files import MAX_VALUES, json_of_file, opened, parsed_json
from rope_xp.configs.readers.gguf_file import read_gguf
from rope_xp.errors import wrong, wrong_type, wrong_value
from rope_xp.types import Config, Values

MAX_INDEX = 2**26  # bytes
MAX_HEADERS = 2**28  # bytes of the headers of all files
MAX_FILES = 10_000
READ = "a .safetensors file, its index, a GGUF file, or their folder"
PICKLES = "a file that may hold pickles, which is not read, because a pickle can run any code: save it as .safetensors"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".distcp")
INDEX = ".safetensors.index.json"
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


class Contents(NamedTuple):
    """The headers of a checkpoint. A tensor is None if only an index names it."""

    path: Path  # what was read, or the first of several files
    container: str  # "safetensors" or "GGUF"
    tensors: dict[str, Tensor | None]
    metadata: Config
    config: Config  # empty if there is none
    config_name: str  # in words, where no file has it
    warnings: tuple[str, ...]
    complete: bool  # whether all tensors of the checkpoint are named


def contents_of(path: Path) -> Contents:
    try:
        exists, folder, regular = path.exists(), path.is_dir(), path.is_file()
    except (OSError, ValueError):  # the name is too long
        exists = folder = regular = False
    if not exists:
        raise wrong(FileNotFoundError, f"path must be {READ}; got {str(path)!r}, which does not exist")
    if not folder and not regular:
        refuse(path, "which is no regular file")
    return _of_folder(path) if folder else _of_file(path)


def refuse(path: Path, what: str) -> NoReturn:
    raise wrong_value(f"path must be {READ}; got {str(path)!r}, {what}")


def _of_folder(folder: Path) -> Contents:
    names = _names(folder)
    indexes = [name for name in names if name.endswith(INDEX)]
    tensors = [name for name in names if name.endswith(".safetensors")]
    others = [name for name in tensors if name.startswith("consolidated")]
    ggufs = [name for name in names if name.lower().endswith(".gguf")]
    if len(indexes) == 1:
        found = _of_index(folder / indexes[0])
    elif tensors:
        found = _of_shards([folder / name for name in tensors if name not in others] or [folder / n for n in others])
    elif ggufs and (len(ggufs) == 1 or "-00001-of-" in ggufs[0]):
        return _of_gguf(folder / ggufs[0])
    elif ggufs:
        refuse(folder, f"a folder of {len(ggufs)} GGUF files: give one of them")
    elif any(name.endswith(PICKLE_SUFFIXES) for name in names):
        refuse(folder, f"in which {next(n for n in names if n.endswith(PICKLE_SUFFIXES))!r} is {PICKLES}")
    else:
        refuse(folder, "a folder without such files" if names else "an empty folder")
    if others and len(others) < len(tensors):
        second = f"{others[0]} was not read: Meta's names for the same weights, it seems. Give its path to identify it."
        found = found._replace(warnings=(*found.warnings, second))
    return found


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for _, entry in zip(range(MAX_FILES + 1), entries) if _is_file(entry)]
    except OSError as error:
        raise wrong(type(error), f"{folder} must be readable; got {error.strerror}") from None
    if len(names) > MAX_FILES:
        refuse(folder, f"a folder of more than {MAX_FILES} files")
    return sorted(names)


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError as error:  # a loop of links
        raise wrong_value(f"{entry.path} must be a file or a folder; got {error.strerror}") from None


def _of_file(path: Path) -> Contents:
    with opened(path) as file:
        start = file.read(24)
    if path.name.endswith(INDEX):
        return _of_index(path)
    if start[:4] == b"GGUF" or path.suffix.lower() == ".gguf":
        return _of_gguf(path)
    if start.startswith(b"version https://git-lfs"):
        refuse(path, "a pointer of Git LFS: the file itself was not downloaded")
    if path.suffix.lower() == ".safetensors" or start[8:9] == b"{":
        return _of_shards([path])
    if path.suffix.lower() in PICKLE_SUFFIXES or start[:2] in (b"PK", b"\x80\x02", b"\x80\x04"):
        refuse(path, PICKLES)
    if path.suffix.lower() == ".json":
        refuse(path, "which names no tensors: from_config(path) reads a config")
    refuse(path, f"a file of another format, which begins with {start[:8]!r}")


def _of_gguf(path: Path) -> Contents:
    header = read_gguf(path)
    tensors: dict[str, Tensor | None] = {
        name: Tensor(each.shape, f"type {each.type}", path, 0, 0) for name, each in header.tensors.items()
    }
    number, count = (header.metadata.get(f"split.{key}", default) for key, default in (("no", 0), ("count", 1)))
    part = f"This is part {number} of {count}, counted from 0. The metadata is in the first part."
    warnings = (part,) if number else ()
    config = {**header.metadata, **header.factors}
    return Contents(path, "GGUF", tensors, header.metadata, config, "the metadata", warnings, count in (0, 1))


def _of_index(path: Path) -> Contents:
    index = json_of_file(path, MAX_INDEX)
    by_name = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(by_name, dict) or not all(isinstance(name, str) for name in by_name.values()):
        raise wrong_value(f"{path} must have weight_map, a JSON object of file names; got {str(index)[:60]}")
    files = sorted(set(by_name.values()))
    strange = [name for name in files if Path(name).name != name or not name.endswith(".safetensors")]
    if strange or len(files) > MAX_FILES or any(len(name) > MAX_NAME for name in by_name):
        got = f"{strange[0][:100]!r}" if strange else f"{len(files)} files"
        raise wrong_value(f"{path} must name at most {MAX_FILES} .safetensors files beside it; got {got}")
    here = [path.parent / name for name in files if (path.parent / name).is_file()]
    found = _of_shards(here, path)
    missing = len(files) - len(here)
    lost = sum(name not in found.tensors for name in by_name)
    if missing:
        warnings = (f"{missing} of the {len(files)} files that {path.name} names are missing.",)
    else:
        warnings = (f"{lost} of the {len(by_name)} tensors that {path.name} names are in no file.",) if lost else ()
    names: dict[str, Tensor | None] = dict.fromkeys(by_name)
    return found._replace(tensors={**names, **found.tensors}, warnings=warnings, complete=True)


def _of_shards(files: list[Path], index: Path | None = None) -> Contents:
    tensors: dict[str, Tensor | None] = {}
    metadata: Values = {}
    length = 0
    for path in files:
        header = read_safetensors(path)
        tensors.update(header.tensors)
        metadata.update(header.metadata)
        length += header.length
        if len(tensors) > MAX_VALUES or length > MAX_HEADERS:
            limit = f"{MAX_VALUES} tensors and {MAX_HEADERS} bytes of headers"
            raise wrong_value(f"a checkpoint must have at most {limit}; got more")
    path = index or files[0]
    config_path = _config_beside(path)
    config = json_of_file(config_path) if config_path else {}
    if not isinstance(config, Mapping):
        raise wrong_type(f"{config_path} must hold a JSON object; got {type(config).__name__}")
    name = "the config" if config_path is None else config_path.name
    shard = len(files) == 1 and "-of-" in path.name and "-00001-of-00001" not in path.name
    return Contents(path, "safetensors", tensors, metadata, config, name, (), not shard)


def _config_beside(path: Path) -> Path | None:
    names = ["config.json", "params.json"]
    if path.name.startswith("consolidated"):
        names.reverse()
    return next((path.parent / name for name in names if (path.parent / name).is_file()), None)


def read_safetensors(path: Path) -> Header:
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        length = int.from_bytes(start, "little") if len(start) == 8 else 0
        if not 2 <= length <= min(size - 8, MAX_HEADER):
            got = f"{length} of {size} bytes" if size else "no bytes: it is empty"
            _fail(path, f"a header of 2 to {MAX_HEADER} bytes inside the file", got)
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
    entry = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    good = isinstance(dtype, str) and _are_sizes(shape, MAX_AXES) and _are_sizes(offsets, 2) and len(offsets) == 2
    if not good or len(name) > MAX_NAME:
        what = f"a dtype, a shape and two data_offsets for each tensor, and names of at most {MAX_NAME} characters"
        _fail(path, what, f"{name[:100]!r}: {str(entry)[:50]}")
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
