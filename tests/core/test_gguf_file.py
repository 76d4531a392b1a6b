"""The headers of GGUF files: what the gguf package writes is read; memory and time have bounds."""

import os
import struct
from contextlib import nullcontext

import gguf
import numpy as np
import pytest
from gguf.constants import MODEL_ARCH_NAMES

from rope_xp import from_config
from rope_xp.configs.readers import gguf_file
from rope_xp.configs.readers.formats import mapping_of
from rope_xp.configs.readers.gguf_file import metadata_of_file, read_gguf
from rope_xp.configs.writers.gguf_architectures import HALF, INTERLEAVED, NOT_ROTARY, gguf_layout

FACTORS = np.asarray([1.0, 1.5, 4.0, 8.0], np.float32)


def written(path, *entries, tensors=(), architecture="llama", order=gguf.GGUFEndian.LITTLE):
    """A file of the gguf package. An entry is the name of a method of its writer, and arguments."""
    writer = gguf.GGUFWriter(path, architecture, endianess=order)
    for method, *arguments in entries:
        getattr(writer, method)(*arguments)
    for name, tensor in tensors:
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def text(value):
    return struct.pack("<Q", len(value)) + value


def entry(key, kind, value):
    return text(key) + struct.pack("<I", kind) + value


def header(*entries, tensors=(), version=3, entry_count=None, tensor_count=None):
    """The bytes of a file, with counts that may be wrong."""
    counts = (
        len(tensors) if tensor_count is None else tensor_count,
        len(entries) if entry_count is None else entry_count,
    )
    return b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(entries) + b"".join(tensors)


def tensor(name, *shape, kind=0, offset=0):
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


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


BASE = entry(b"general.alignment", 4, struct.pack("<I", 32))
LIST = struct.pack("<IQ", 6, 2**63)
HOSTILE = {
    "empty": (b"", r"the format GGUF, whose first bytes are b'GGUF'; got b''"),
    "pickle": (b"\x80\x02}q\x00.....", r"the format GGUF, .*; got b'\\x80"),
    "version 1": (header(version=1), r"version 2 or 3 of GGUF, in little-endian order; got version 1"),
    "version 4": (header(version=4), r"version 2 or 3 .*; got version 4"),
    "big-endian": (header(version=3 << 24), r"version 2 or 3 .*; got a file in big-endian order"),
    "no version": (header()[:6], r"all bytes of its header; got an end after 6 bytes"),
    "no counts": (header()[:10], r"all bytes of its header; got an end after 10 bytes"),
    "entries": (header(BASE, entry_count=2**14), r"at most \d entries; got 16384"),
    "2**64 entries": (header(BASE, entry_count=2**64 - 1), r"at most \d entries; got 18446744073709551615"),
    "tensors": (header(BASE, tensor_count=2**60), r"at most \d tensors; got 1152921504606846976"),
    "key": (header(struct.pack("<Q", 2**62) + b"x" * 90), r"at most \d+ bytes in the name of an entry; got 4611"),
    "key beyond the end": (header(struct.pack("<Q", 200) + b"x" * 90), r"all bytes of its header; got an end after"),
    "string": (header(entry(b"x", 8, struct.pack("<Q", 2**60))), r"all bytes of its header; got an end after"),
    "list": (header(entry(b"x", 9, LIST)), r"all bytes of its header; got an end after 49 bytes"),
    "strings": (header(entry(b"x", 9, struct.pack("<IQ", 8, 2**60))), r"all bytes of its header; got an end after"),
    "nested": (
        header(entry(b"x", 9, struct.pack("<IQIQ", 9, 1, 9, 1))),
        r"numbers or strings in the list 'x'; got a li",
    ),
    "type": (header(entry(b"x", 13, b"")), r"a known type in 'x'; got type 13"),
    "type in a list": (
        header(entry(b"x", 9, struct.pack("<IQ", 77, 1))),
        r"numbers or strings in the list 'x'; got type 77",
    ),
    "twice": (header(BASE, BASE), r"each key of its metadata once; got 'general.alignment' twice"),
    "UTF-8": (header(entry(b"\xff", 4, bytes(4))), r"strings in UTF-8; got invalid start byte"),
    "alignment": (header(entry(b"general.alignment", 4, bytes(4))), r"a positive integer as general.alignment; got 0"),
    "axes": (
        header(tensors=[text(b"w") + struct.pack("<IQQ", 2**31, 1, 1)]),
        r".* at most 8 axes; got 'w' with 2147483648",
    ),
    "offset": (header(tensors=[tensor(b"w", 4, offset=99)]), r"the data of 'w' inside the file; got an offset of 99"),
    "tensor twice": (header(tensors=[tensor(b"w", 4)] * 2), r"each tensor once, .*; got 'w' twice"),
    "factors": (
        header(tensors=[tensor(b"rope_freqs.weight", 2**40)]) + bytes(40),
        r"at most 16384 float32 values in 'rope_freqs",
    ),
    "no factors": (
        header(tensors=[tensor(b"rope_freqs.weight", 8)]) + bytes(40),
        r"all values of 'rope_freqs.weight'; got \d+ of 32 bytes",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header(tmp_path, counted, name):
    content, message = HOSTILE[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^from_config: \S*m\.gguf must have {message}") as raised:
        from_config(path)
    assert len(str(raised.value)) < 400 and counted.total <= len(content)


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


def test_a_file_that_becomes_shorter_while_it_is_read(tmp_path, monkeypatch):
    (tmp_path / "m.gguf").write_bytes(header()[:20])
    monkeypatch.setattr(gguf_file.os, "fstat", lambda _: os.stat(__file__))
    with pytest.raises(ValueError, match=r"m\.gguf must have all bytes of its header; got an end before them$"):
        from_config(tmp_path / "m.gguf")


# Each limit: bytes for a number of things, the greatest number, and what is said of one more.
LIMITS = {
    "entries": (lambda n: header(entry_count=n), 2**14, "at most 16384 entries; got 16385"),
    "tensors": (lambda n: header(tensor_count=n), 2**17, "at most 131072 tensors; got 131073"),
    "name": (lambda n: header(text(b"x" * n)), 2**8, "at most 256 bytes in the name of an entry; got 257"),
    "axes": (
        lambda n: header(tensors=[tensor(b"w", *[1] * n)]),
        8,
        "each tensor once, with at most 8 axes; got 'w' with 9",
    ),
    "values": (
        lambda n: header(tensors=[tensor(b"rope_freqs.weight", n)]),
        2**14,
        r"at most 16384 float32 values in 'rope_freqs.weight'; got type 0, shape \(16385,\)",
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_limits_of_counts(tmp_path, name):
    """In a file that is long enough for all that it says."""
    content, limit, message = LIMITS[name]
    path = tmp_path / "m.gguf"
    for count in (limit, limit + 1):
        path.write_bytes(content(count))
        os.truncate(path, 2**24)
        if count > limit:
            with pytest.raises(ValueError, match=f"m.gguf must have {message}$"):
                metadata_of_file(path)
            continue
        try:
            metadata_of_file(path)
        except ValueError as error:
            assert "at most" not in str(error).replace("with at most 8 axes; got '' twice", "")


@pytest.mark.parametrize("kind, limit", [(0, 2**14), (8, 2**14), ("text", 2**16)])
def test_long_lists_and_texts_are_left_out(tmp_path, kind, limit):
    path = tmp_path / "m.gguf"
    for count in (limit, limit + 1):
        value = text(b"x" * count) if kind == "text" else struct.pack("<IQ", kind, count) + bytes(count * (kind or 1))
        path.write_bytes(header(entry(b"x", 8 if kind == "text" else 9, value)))
        found = metadata_of_file(path).get("x")
        assert (found is None) if count > limit else len(found) == count


@pytest.mark.parametrize("count, least, what", [(3, 24, "tensors"), (4, 13, "entries")])
def test_a_count_takes_bytes_of_the_file(tmp_path, count, least, what):
    """A tensor has at least 24 bytes, and an entry 13: a file of one byte less is refused before it is read."""
    path = tmp_path / "m.gguf"
    before = 8 if what == "tensors" else 0  # the number of entries follows that of tensors
    for length in (count * least - 1, count * least):
        path.write_bytes(header(**{f"{what.replace('ies', 'y').rstrip('s')}_count": count}) + bytes(length - before))
        with pytest.raises(ValueError) as raised:
            metadata_of_file(path)
        assert (f"at most {count - 1} {what}; got {count}" in str(raised.value)) == (length < count * least)


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


def test_a_file_of_big_endian_machines(tmp_path):
    path = written(tmp_path / "m.gguf", order=gguf.GGUFEndian.BIG)
    with pytest.raises(ValueError, match=r"in little-endian order; got a file in big-endian order$"):
        from_config(path)


def test_every_architecture_of_the_gguf_package_is_listed_once():
    listed = [name for names in (INTERLEAVED, HALF, NOT_ROTARY) for name in names.split()]
    assert sorted(listed) == sorted({*MODEL_ARCH_NAMES.values(), "deepseek32"})  # which a newer version has


@pytest.mark.parametrize(
    "architecture, layout", [("llama", "interleaved"), ("qwen2", "half"), ("bloom", None), ("bert", None), (1, None)]
)
def test_layout_of_an_architecture(architecture, layout):
    assert gguf_layout({"general.architecture": architecture}) == layout


def test_layout_of_glm4():
    glm4 = {"general.architecture": "glm4"}
    assert gguf_layout(glm4) == "interleaved"
    assert gguf_layout(glm4 | {"glm4.rope.dimension_sections": [8, 12, 12, 0]}) == "half"
