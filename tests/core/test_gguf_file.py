"""The headers of GGUF files: what the gguf package writes is read; memory and time have bounds."""

import os
import struct
from contextlib import nullcontext

import numpy as np
import pytest
from gguf.constants import MODEL_ARCH_NAMES
from tiny_gguf import written

from rope_xp import from_config
from rope_xp.configs.readers import gguf_file
from rope_xp.configs.readers.formats import mapping_of
from rope_xp.configs.readers.gguf_file import metadata_of_file, read_gguf
from rope_xp.configs.writers.gguf_architectures import HALF, INTERLEAVED, NO_ROTATION

FACTORS = np.asarray([1.0, 1.5, 4.0, 8.0], np.float32)


def text(value):
    return struct.pack("<Q", len(value)) + value


def entry(key, kind, value):
    return text(key) + struct.pack("<I", kind) + value


def header(*entries):
    """The bytes of a file without tensors."""
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries)


def test_metadata_of_each_type(tmp_path):
    numbers = {
        **dict(uint8=255, int8=-128, uint16=65535, int16=-32768, uint32=2**32 - 1, int32=-(2**31)),
        **dict(uint64=2**64 - 1, int64=-(2**63), float32=1.5, float64=0.1, bool=True, string="größer"),
    }
    lists = {"floats": [0.5, 2.0], "ints": [1, -2, 3], "strings": ["a", ""], "bools": [True, False]}
    path = written(
        tmp_path / "m.gguf",
        *[(f"add_{kind}", f"x.{kind}", value) for kind, value in numbers.items()],
        *[("add_array", f"x.{kind}", value) for kind, value in lists.items()],
        tensors=[("blk.0.attn_q.weight", np.zeros((6, 4), np.float16)), ("rope_freqs.weight", FACTORS)],
    )
    expected = {"general.architecture": "llama", **{f"x.{kind}": value for kind, value in (numbers | lists).items()}}
    absent = {name: None for name in ("rope_factors_long.weight", "rope_factors_short.weight")}
    found = metadata_of_file(path)
    assert found == expected | absent | {"rope_freqs.weight": FACTORS.tolist()}
    assert {key: type(value) for key, value in found.items()} == {
        key: type(found[key]) for key in expected | absent
    } | {"rope_freqs.weight": list}
    assert [type(found[f"x.{kind}"]) for kind in numbers] == [type(value) for value in numbers.values()]
    assert read_gguf(path).tensors["blk.0.attn_q.weight"].shape == (6, 4)  # rows first, as in NumPy
    assert mapping_of(path) == mapping_of(str(path)) == mapping_of(tmp_path) == found


def test_a_file_says_that_it_has_no_factors_but_a_part_of_one_does_not(tmp_path):
    sizes = [("add_embedding_length", 64), ("add_head_count", 4), ("add_rope_freq_base", 1e4)]
    parts = [
        from_config(written(tmp_path / f"{count}.gguf", *sizes, ("add_uint16", "split.count", count)))
        for count in (1, 2)
    ]
    assert ["if the file has this tensor" in str(part.explain()) for part in parts] == [False, True]


def test_factors_are_one_row_of_float32(tmp_path):
    for factors in (FACTORS.astype(np.float16), FACTORS[None]):
        path = written(tmp_path / "m.gguf", tensors=[("rope_freqs.weight", factors)])
        with pytest.raises(ValueError, match=r"must have at most 16384 float32 values in 'rope_freqs.weight'; got"):
            metadata_of_file(path)


def test_a_vocabulary_is_skipped(tmp_path, counted):
    """Nothing is kept of the tokens. The header is read once, and no tensor."""
    tokens = [f"token {i}" for i in range(20_000)]
    path = written(
        tmp_path / "m.gguf",
        ("add_token_list", tokens),
        ("add_token_scores", [0.0] * len(tokens)),
        ("add_array", "x.long", [1.0] * 20_000),
        ("add_string", "x.text", "x" * 70_000),
        ("add_chat_template", "{{ messages }}"),
        ("add_rope_freq_base", 5e5),
        tensors=[("output.weight", np.zeros((1000, 1000), np.float32))],
    )
    found = {key: value for key, value in metadata_of_file(path).items() if value is not None}
    assert found == {"general.architecture": "llama", "llama.rope.freq_base": 5e5}
    assert counted.total < os.path.getsize(path) - 4_000_000  # the bytes of the tensor are not read


def test_a_header_is_read_up_to_a_bound(tmp_path, counted, monkeypatch):
    """Large files that are mostly holes: a billion empty strings, and one long list."""
    monkeypatch.setattr(gguf_file, "MAX_TAKEN", 2**20)
    path = tmp_path / "m.gguf"
    path.write_bytes(header(entry(b"x", 9, struct.pack("<IQ", 8, 2**30))))
    os.truncate(path, 2**35)
    with pytest.raises(ValueError, match=r"must have at most 1048576 bytes of names, lengths and values in its header"):
        from_config(path)
    assert counted.total < 2**20 + 2**14
    path.write_bytes(header(entry(b"x", 9, struct.pack("<IQ", 6, 2**32))))
    os.truncate(path, 2**35)
    with pytest.raises(ValueError, match=r"must have a header of at most 134217728 bytes; got a longer one"):
        from_config(path)


@pytest.mark.parametrize("kind, limit", [(0, 2**14), (8, 2**14), ("text", 2**16)])
def test_long_lists_and_texts_are_left_out(tmp_path, kind, limit):
    path = tmp_path / "m.gguf"
    for count in (limit, limit + 1):
        value = text(b"x" * count) if kind == "text" else struct.pack("<IQ", kind, count) + bytes(count * (kind or 1))
        path.write_bytes(header(entry(b"x", 8 if kind == "text" else 9, value)))
        found = metadata_of_file(path).get("x")
        assert (found is None) if count > limit else len(found) == count


def test_bytes_of_the_header_that_are_kept_and_skipped(tmp_path, monkeypatch):
    """To the last byte."""
    path = tmp_path / "m.gguf"
    path.write_bytes(header(entry(b"x", 8, text(b"abc")), entry(b"tokenizer.x", 8, text(b"abc"))))
    size = path.stat().st_size
    for limit, kept in (("MAX_HEADER", size), ("MAX_TAKEN", size - 8 - 3)):
        for less in (0, 1):
            with monkeypatch.context() as patch:
                patch.setattr(gguf_file, limit, kept - less)
                with pytest.raises(ValueError, match=f"at most {kept - 1} bytes") if less else nullcontext():
                    assert metadata_of_file(path)["x"] == "abc"


def test_every_architecture_of_the_gguf_package_is_listed_once():
    listed = [name for names in (INTERLEAVED, HALF, NO_ROTATION) for name in names.split()]
    assert sorted(listed) == sorted({*MODEL_ARCH_NAMES.values(), "deepseek32"})  # which a newer version has


def test_a_file_that_becomes_shorter_while_it_is_read(tmp_path, monkeypatch):
    (tmp_path / "m.gguf").write_bytes(header()[:20])
    monkeypatch.setattr(gguf_file.os, "fstat", lambda _: os.stat(__file__))
    with pytest.raises(ValueError, match=r"m\.gguf must have all bytes of its header; got an end before them$"):
        from_config(tmp_path / "m.gguf")
