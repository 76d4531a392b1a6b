"""identify_checkpoint: each format by its names, sizes from shapes, old buffers, and hostile headers."""

import json
import os
import struct
from contextlib import suppress

import numpy as np
import pytest
from formulas import geometric
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file
from tiny_gguf import written

from rope_xp import RotaryEmbedding, from_config, identify_checkpoint
from rope_xp.checkpoints import contents
from rope_xp.checkpoints.contents import read_safetensors

SIZES = dict(heads=4, kv_heads=2, head_dim=10, hidden_size=24, layers=3)
INV_FREQ = "model.layers.{}.self_attn.rotary_emb.inv_freq"


HF = {
    f"model.layers.{i}.self_attn.{name}_proj.weight": np.zeros((rows, 24), np.float16)
    for i in range(3)
    for name, rows in zip("qk", (40, 20))
}


def write(folder, tensors):
    path = folder / "model.safetensors"
    save_file(tensors, path, {"format": "pt"})
    return path


def sizes(found):
    return {size: getattr(found, size) for size in SIZES}


BLOCKS = [
    (f"blk.{i}.attn_{name}.weight", np.zeros((rows, 24), np.float32))
    for i in range(3)
    for name, rows in zip("qk", (40, 20))
]
COUNTS = [("add_head_count", 4), ("add_head_count_kv", 2), ("add_key_length", 10)]
ENTRIES = [("add_embedding_length", 24), ("add_block_count", 3), ("add_rope_freq_base", 5e5)]
ENTRIES += [("add_rope_dimension_count", 10)]


@pytest.mark.parametrize(
    "architecture, layout", [("llama", "interleaved"), ("qwen3", "half"), ("bloom", None), ("of tomorrow", None)]
)
@pytest.mark.parametrize("entries", [ENTRIES, []], ids=["metadata", "shapes"])
def test_gguf(tmp_path, architecture, layout, entries):
    model = {"tensors": BLOCKS, "architecture": architecture}
    path = written(tmp_path / "model.gguf", *COUNTS, *entries, **model)
    found = identify_checkpoint(path)
    assert (found.format, found.layout, sizes(found), bool(found.warnings)) == ("GGUF", layout, SIZES, layout is None)
    if entries and layout:
        assert found.embedding == RotaryEmbedding(head_dim=10, layout=layout, base=5e5) == from_config(path)
    assert identify_checkpoint(tmp_path) == found
    path.rename(tmp_path / "sha256-0123")  # as Ollama names its files
    assert identify_checkpoint(tmp_path / "sha256-0123").format == "GGUF"
    part = written(path, *COUNTS, ("add_uint16", "split.no", 1), ("add_uint16", "split.count", 3), **model)
    words = "This is part 1 of 3, counted from 0. The metadata is in the first part."
    assert words in identify_checkpoint(part).warnings


LLAMA = {"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "rope_theta": 5e5}


def test_a_config_may_lack_what_shapes_say_and_a_file_its_suffix(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    path = write(tmp_path, HF)
    found = identify_checkpoint(path)
    assert (sizes(found), found.warnings, found.embedding.base) == (SIZES, (), 5e5)
    path.rename(tmp_path / "weights")
    assert identify_checkpoint(tmp_path / "weights").format == found.format
    (tmp_path / "config.json").unlink()
    assert identify_checkpoint(tmp_path / "weights").embedding is None


def raw(entries, data=b"", length=None):
    """A .safetensors file, from its header as JSON or bytes."""
    header = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


# Headers.
def test_headers_are_those_of_the_safetensors_package(tmp_path):
    dtypes = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "bool"]
    arrays = {name: np.zeros((i, 3), name) for i, name in enumerate(dtypes)} | {"scalar": np.asarray(1.0)}
    path = write(tmp_path, arrays)
    header = read_safetensors(path)
    with safe_open(path, "np") as file:
        slices = {name: file.get_slice(name) for name in arrays}
        assert {name: (tuple(each.get_shape()), each.get_dtype()) for name, each in slices.items()} == {
            name: (each.shape, each.dtype) for name, each in header.tensors.items()
        }
        assert file.metadata() == header.metadata
    for name, each in header.tensors.items():
        data = path.read_bytes()[each.start :][: each.length]
        assert data == arrays[name].tobytes()


def test_weights_are_not_read(tmp_path, counted):
    """A file of 32 GB, of which the header, the config and a buffer are read."""
    rows = 2**28
    size, values = rows * 60 * 2, geometric(1e4, 10).astype("f4").tobytes()
    entries = {
        "model.layers.0.self_attn.q_proj.weight": {"dtype": "F16", "shape": [rows, 60], "data_offsets": [0, size]},
        INV_FREQ.format(0): {"dtype": "F32", "shape": [5], "data_offsets": [size, size + 20]},
    }
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw(entries))
    start = os.path.getsize(path)
    with open(path, "r+b") as file:
        file.truncate(start + size)
        file.seek(start + size)
        file.write(values)
    found = identify_checkpoint(path)
    assert found.inv_freq_base == 1e4 and found.hidden_size == 60
    assert counted.total < start + 4 * 512


def test_a_long_header_is_not_read(tmp_path, counted):
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 100_000_001) + b"{")
    os.truncate(path, 2**35)
    with pytest.raises(
        ValueError, match=r"a header of 2 to 100000000 bytes inside the file; got 100000001 of 34359738368"
    ):
        identify_checkpoint(path)
    assert counted.total < 2048


def test_an_index_of_too_many_files(tmp_path):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {f"w{i}": f"{i}.safetensors" for i in range(10_001)}}))
    with pytest.raises(
        ValueError, match=r"^identify_checkpoint: \S*index\.json must .*at most 10000 .*; got 10001 files"
    ):
        identify_checkpoint(path)


ENTRY = {"model.layers.0.self_attn.q_proj.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
SEEDS = {
    "model.safetensors": raw(ENTRY, bytes(24)),
    "model.gguf": b"GGUF\3\0\0\0" + struct.pack("<QQ", 1, 1) + struct.pack("<Q", 1) + b"k\4\0\0\0\1\0\0\0",
}


@pytest.mark.parametrize("name", SEEDS)
@given(changes=st.lists(st.tuples(st.integers(0, 120), st.binary(min_size=1, max_size=9)), max_size=4))
def test_any_bytes_give_a_report_or_a_clear_error(tmp_path_factory, name, changes):
    content = bytearray(SEEDS[name])
    for at, part in changes:
        content[at : at + len(part)] = part
    path = tmp_path_factory.mktemp("any") / name
    path.write_bytes(content)
    with suppress(ValueError):
        assert identify_checkpoint(path).path == str(path)


def test_paths(tmp_path, monkeypatch):
    for path in (tmp_path / "none.safetensors", "\0", "n" * 5000):
        with pytest.raises(FileNotFoundError, match=r"^identify_checkpoint: path must be .*, which does not exist$"):
            identify_checkpoint(path)
    with pytest.raises(TypeError, match=r"^identify_checkpoint: path must be a string or a path; got int$"):
        identify_checkpoint(3)
    with pytest.raises(ValueError, match=rf"got '{os.devnull}', which is no regular file$"):
        identify_checkpoint(os.devnull)

    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ValueError, match=r"loop must be a file or a folder; got Too many levels of symbolic links$"):
        identify_checkpoint(tmp_path)

    def refused(*_):
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path, HF)
    message = r"^identify_checkpoint: \S* must be readable; got Permission denied$"
    for name, one in (("builtins.open", path), ("os.scandir", tmp_path)):
        with monkeypatch.context() as patched, pytest.raises(PermissionError, match=message):
            patched.setattr(name, refused)
            identify_checkpoint(one)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(TypeError, match=r"^identify_checkpoint: \S*config.json must hold a JSON object; got list$"):
        identify_checkpoint(path)
    (tmp_path / "loop").unlink()
    monkeypatch.setattr(contents, "MAX_FILES", 1)
    with pytest.raises(ValueError, match=r"got '\S*', a folder of more than 1 files$"):
        identify_checkpoint(tmp_path)
