"""identify_checkpoint: each format by its names, sizes from shapes, old buffers, and hostile headers."""

import json
import os
import struct
from contextlib import suppress

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from rope_xp import RotaryEmbedding, from_config, identify_checkpoint
from rope_xp.checkpoints import contents
from rope_xp.checkpoints.contents import BITS, read_safetensors
from rope_xp.checkpoints.findings import DTYPES

LLAMA = dict(model_type="llama", hidden_size=24, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=3)
LLAMA |= dict(head_dim=10, rope_theta=1e6)
COHERE = LLAMA | {"model_type": "cohere"}
PARAMS = dict(dim=24, n_heads=4, n_kv_heads=2, n_layers=3, head_dim=10, rope_theta=1e6, norm_eps=1e-5, vocab_size=50)
MEGATRON = dict(hidden_size=24, num_attention_heads=4, num_query_groups=2, kv_channels=10, num_layers=3)
MEGATRON |= dict(position_embedding_type="rope", rotary_base=1_000_000)
LATENT = dict(model_type="deepseek_v3", hidden_size=24, num_attention_heads=4, num_hidden_layers=3)
LATENT |= dict(qk_nope_head_dim=6, qk_rope_head_dim=4, rope_theta=1e6)
NEOX = dict(
    model_type="gpt_neox",
    hidden_size=40,
    num_attention_heads=4,
    num_hidden_layers=3,
    rotary_pct=0.4,
    rotary_emb_base=1e6,
)
FALCON = dict(
    model_type="falcon", hidden_size=40, num_attention_heads=4, num_hidden_layers=3, multi_query=True, rope_theta=1e6
)
NO_HEADS = dict.fromkeys(("heads", "kv_heads", "head_dim"))
SIZES = dict(heads=4, kv_heads=2, head_dim=10, hidden_size=24, layers=3)
INV_FREQ = "model.layers.{}.self_attn.rotary_emb.inv_freq"


def tensors(prefix="model.layers", dtype=np.float16, columns=24, **rows):
    """Projections of three layers: their names, with __ for a dot, and rows."""
    shapes = {f"{prefix}.{i}.{name.replace('__', '.')}.weight": count for i in range(3) for name, count in rows.items()}
    return {name: np.zeros((count, columns) if columns else count, dtype) for name, count in shapes.items()}


HF = tensors(self_attn__q_proj=40, self_attn__k_proj=20)
META = tensors("layers", attention__wq=40, attention__wk=20)
LINEAR_QKV = tensors("decoder.layers", self_attention__linear_qkv=80)
STACKED = {"decoder.layers.self_attention.linear_qkv.weight": np.zeros((3, 80, 24), np.float16)}
OLD_MEGATRON = tensors("language_model.encoder.layers", self_attention__query_key_value=80)
MLX = {
    **tensors(dtype=np.uint32, columns=3, self_attn__q_proj=40, self_attn__k_proj=20),
    **{name.replace("weight", part): np.zeros((len(w), 1)) for name, w in HF.items() for part in ("scales", "biases")},
}
VISION = tensors("model.visual.blocks", attn__qkv_proj=30, columns=7) | tensors(
    "model.language_model.layers", self_attn__q_proj=40, self_attn__k_proj=20
)
VISION |= {f"vision_tower.layers.{i}.self_attn.q_proj.weight": np.zeros((8, 8)) for i in range(9)}
QWEN2_VL = dict(model_type="qwen2_vl", text_config=LLAMA | {"model_type": "qwen2_vl_text"}, vision_config={})
QWEN2_VL["text_config"]["rope_scaling"] = {"type": "mrope", "mrope_section": [1, 2, 2]}

# What is written, in which file, beside which config: the format, the layout, and sizes other than SIZES.
CHECKPOINTS = {
    "llama": (HF, LLAMA, "Hugging Face", "half", {}),
    "cohere": (HF, COHERE, "Hugging Face", "interleaved", {}),
    "no config": (HF, None, "Hugging Face", None, NO_HEADS),
    "norm": (HF | tensors(self_attn__q_norm=10, columns=0), None, "Hugging Face", None, {}),
    "norm of all heads": (HF | tensors(self_attn__q_norm=40, columns=0), None, "Hugging Face", None, NO_HEADS),
    "kinds of attention": (
        HF | {"model.layers.1.self_attn.qkv_proj.weight": np.zeros((99, 24))},
        LLAMA,
        "Hugging Face",
        "half",
        {},
    ),
    "packed": (
        {name.replace("weight", "qweight"): np.zeros((3, 40), np.int32) for name in HF},
        None,
        "Hugging Face",
        None,
        dict.fromkeys(("heads", "kv_heads", "head_dim", "hidden_size")),
    ),
    "fused": (tensors(self_attn__qkv_proj=80), LLAMA | {"model_type": "phi3"}, "Hugging Face", "half", {}),
    "gate": (tensors(self_attn__q_proj=80, self_attn__k_proj=20), LLAMA, "Hugging Face", "half", {}),
    "latent": (
        tensors(self_attn__q_a_proj=8, self_attn__kv_a_proj_with_mqa=9),
        LATENT,
        "Hugging Face",
        "interleaved_to_half",
        dict(kv_heads=4),
    ),
    "gpt-neox": (
        tensors("gpt_neox.layers", columns=40, attention__query_key_value=120),
        NEOX,
        "Hugging Face",
        "half",
        dict(hidden_size=40, kv_heads=4),
    ),
    "falcon": (
        tensors("transformer.h", columns=40, self_attention__query_key_value=60),
        FALCON,
        "Hugging Face",
        "half",
        dict(hidden_size=40, kv_heads=1),
    ),
    "vision": (VISION, QWEN2_VL, "Hugging Face", "half", {}),
    "meta": (META, PARAMS, "Meta", "interleaved", {}),
    "meta, config of transformers": (META, LLAMA, "Meta", "interleaved", {}),
    "mlx": (MLX, LLAMA | {"quantization": {"bits": 4, "group_size": 32}}, "MLX", "half", {}),
    "mlx of an interleaved family": (MLX, COHERE, "MLX", "interleaved", {}),
    "megatron": (LINEAR_QKV, None, "Megatron", "half", NO_HEADS),
    "megatron, config": (LINEAR_QKV, MEGATRON | {"rotary_interleaved": True}, "Megatron", "interleaved", {}),
    "megatron, stacked": (STACKED, MEGATRON | {"rotary_interleaved": False}, "Megatron", "half", {}),
    "megatron, old": (OLD_MEGATRON, MEGATRON, "Megatron", "half", {}),
    "unknown": ({"weight": np.zeros(3)}, None, None, None, dict.fromkeys(SIZES)),
}


def write(folder, tensors, config=None, name="model.safetensors", metadata=None):
    save_file(tensors, folder / name, metadata or {"format": "pt"})
    if config is not None:
        (folder / ("params.json" if config is PARAMS else "config.json")).write_text(json.dumps(config))
    return folder / name


def sizes(found):
    return {size: getattr(found, size) for size in SIZES}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_formats(tmp_path, name):
    tensors, config, format_, layout, other = CHECKPOINTS[name]
    path = write(tmp_path, tensors, config)
    found = identify_checkpoint(path)
    assert (found.format, found.layout, sizes(found)) == (format_, layout, SIZES | other)
    assert identify_checkpoint(str(tmp_path)) == found and not found.warnings
    if config:
        assert found.embedding == from_config(config).replace(layout=layout) and found.embedding.base == 1e6
    text = str(found)
    assert ("no projection" in text) == (format_ is None)
    assert all(len(line) <= 80 for line in text.splitlines()) and ("cannot tell" in text) == (
        None in (format_, layout, found.embedding, *sizes(found).values())
    )
    assert json.loads(json.dumps(found.to_dict()))["layers"] == found.layers


def test_layers_that_differ(tmp_path):
    config = LLAMA | dict(model_type="gemma3_text", rope_local_base_freq=1e4, sliding_window_pattern=3)
    found = identify_checkpoint(write(tmp_path, HF, config))
    assert (found.layout, found.embedding, sizes(found)) == ("half", None, SIZES)
    assert "embedding: differs between layers" in dict(found.conclusions)
    unrotated = LLAMA | {"model_type": "smollm3", "no_rope_layers": [0, 0, 0]}
    found = identify_checkpoint(write(tmp_path, HF, unrotated))
    assert (found.embedding, dict(found.conclusions)["embedding: none"]) == (None, "config.json: it rotates nothing")


def test_mlx_says_so_in_the_header(tmp_path):
    found = identify_checkpoint(write(tmp_path, HF, LLAMA, metadata={"format": "mlx"}))
    assert (found.format, found.conclusions[0]) == ("MLX", ("format: MLX", "the header says {'format': 'mlx'}"))


def write_gguf(path, architecture, *entries, tensors=()):
    writer = gguf.GGUFWriter(path, architecture)
    for name, *value in (("head_count", 4), ("head_count_kv", 2), ("key_length", 10), *entries):
        getattr(writer, f"add_{name}")(*value)
    for name, tensor in tensors:
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


BLOCKS = [
    (f"blk.{i}.attn_{name}.weight", np.zeros((rows, 24), np.float32))
    for i in range(3)
    for name, rows in zip("qk", (40, 20))
]
ENTRIES = [("embedding_length", 24), ("block_count", 3), ("rope_freq_base", 5e5), ("rope_dimension_count", 10)]


@pytest.mark.parametrize(
    "architecture, layout", [("llama", "interleaved"), ("qwen3", "half"), ("bloom", None), ("of tomorrow", None)]
)
@pytest.mark.parametrize("entries", [ENTRIES, []], ids=["metadata", "shapes"])
def test_gguf(tmp_path, architecture, layout, entries):
    path = write_gguf(tmp_path / "model.gguf", architecture, *entries, tensors=BLOCKS)
    found = identify_checkpoint(path)
    assert (found.format, found.layout, sizes(found), found.warnings) == ("GGUF", layout, SIZES, ())
    if entries and layout:
        assert found.embedding == RotaryEmbedding(head_dim=10, layout=layout, base=5e5) == from_config(path)
    assert identify_checkpoint(tmp_path) == found
    path.rename(tmp_path / "sha256-0123")  # as Ollama names its files
    assert identify_checkpoint(tmp_path / "sha256-0123").format == "GGUF"
    part = write_gguf(path, architecture, ("uint16", "split.no", 1), ("uint16", "split.count", 3), tensors=BLOCKS)
    assert identify_checkpoint(part).warnings == (
        "This is part 1 of 3, counted from 0. The metadata is in the first part.",
    )


def test_gguf_with_sizes_for_each_layer(tmp_path):
    writer = [("head_count", [4, 4, 4]), ("head_count_kv", [2, 4, 2])]
    found = identify_checkpoint(write_gguf(tmp_path / "model.gguf", "deci", *writer))
    assert (found.heads, found.kv_heads) == (4, None)
    assert (
        "other sizes: cannot tell",
        "kv heads, hidden size, layers: attention.head_count_kv differs between layers",
    ) in (found.conclusions)


def write_shards(folder, config=LLAMA):
    names = sorted(HF)
    shards = {f"model-0000{i + 1}-of-00002.safetensors": names[3 * i :][:3] for i in range(2)}
    for name, part in shards.items():
        write(folder, {each: HF[each] for each in part}, config, name)
    index = {"metadata": {}, "weight_map": {each: name for name, part in shards.items() for each in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return list(shards)


def test_shards_and_their_index(tmp_path):
    first, second = write_shards(tmp_path)
    whole = identify_checkpoint(tmp_path)
    assert whole == identify_checkpoint(tmp_path / "model.safetensors.index.json")
    assert (whole.layout, sizes(whole), whole.warnings) == ("half", SIZES, ())
    one = identify_checkpoint(tmp_path / first)
    assert (one.format, sizes(one), one.warnings) == ("Hugging Face", SIZES, ())
    (tmp_path / second).unlink()
    assert identify_checkpoint(tmp_path).warnings == (
        "1 of the 2 files that model.safetensors.index.json names are missing.",
    )
    (tmp_path / first).unlink()
    names_only = identify_checkpoint(tmp_path)
    assert (names_only.format, names_only.layout, sizes(names_only)) == ("Hugging Face", "half", SIZES)


@pytest.mark.parametrize("limit", ["MAX_HEADERS", "MAX_VALUES"])
def test_headers_of_many_files_have_a_bound(tmp_path, monkeypatch, limit):
    write_shards(tmp_path)
    one = max(read_safetensors(path).length for path in tmp_path.glob("*.safetensors"))
    monkeypatch.setattr(contents, limit, one if limit == "MAX_HEADERS" else 5)
    with pytest.raises(
        ValueError, match=r"a checkpoint must have at most \d+ tensors and \d+ bytes of headers; got more"
    ):
        identify_checkpoint(tmp_path)


def test_shards_without_an_index(tmp_path):
    write_shards(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert identify_checkpoint(tmp_path).warnings == () and identify_checkpoint(tmp_path).layers == 3


def test_a_folder_with_both_formats_of_mistral(tmp_path):
    write(tmp_path, HF, LLAMA)
    path = write(tmp_path, META, PARAMS, "consolidated.safetensors")
    both, one = identify_checkpoint(tmp_path), identify_checkpoint(path)
    assert (both.format, both.layout, one.format, one.layout) == ("Hugging Face", "half", "Meta", "interleaved")
    assert "consolidated.safetensors was not read" in both.warnings[0]
    assert ("heads: 4", "n_heads in params.json") in one.conclusions
    (tmp_path / "config.json").unlink()  # params.json says how the channels of the other file are paired
    found = identify_checkpoint(tmp_path)
    assert (found.format, found.layout, found.embedding) == ("Hugging Face", None, None)
    write(tmp_path, HF, LLAMA, "model.safetensors")
    (tmp_path / "config.json").rename(tmp_path / "params.json")
    assert identify_checkpoint(tmp_path / "model.safetensors").layout == "half"  # it names a family
    told = [(name, why) for name, why in found.conclusions if name in ("layout: cannot tell", "embedding: cannot tell")]
    assert len(told) == 2 and all("no config.json" in why for _, why in told)


# Buffers of frequencies.
def frequencies(base, dtype, pairs=5):
    """Bytes as PyTorch computes them: powers in float32, then in the dtype of the checkpoint."""
    exact = np.float32(1.0) / np.power(np.float32(base), np.arange(pairs, dtype=np.float32) / np.float32(pairs))
    if dtype == "BF16":
        return ((exact.view(np.uint32) + 0x7FFF + (exact.view(np.uint32) >> 16 & 1)) >> 16).astype(np.uint16).tobytes()
    return exact.astype({"F64": np.float64, "F32": np.float32, "F16": np.float16}[dtype]).tobytes()


def raw(entries, data=b"", length=None):
    """A .safetensors file, from its header as JSON or bytes."""
    header = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def write_buffers(folder, *buffers, dtype="F32", config=None):
    """What is found in a file with these buffers only."""
    entries, at = {}, 0
    for i, data in enumerate(buffers):
        shape = [len(data) * 8 // BITS[dtype]]
        entries[INV_FREQ.format(i)] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    (folder / "model.safetensors").write_bytes(raw(entries, b"".join(buffers)))
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return identify_checkpoint(folder)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("base, pairs", [(1e4, 5), (5e5, 64), (1e6, 32), (150_000.0, 64), (1e7, 48), (1e9, 64)])
def test_the_base_of_a_buffer(tmp_path, base, pairs, dtype):
    data = frequencies(base, dtype, pairs)
    config = LLAMA | dict(head_dim=2 * pairs, rope_theta=base)
    found = write_buffers(tmp_path, data, data, dtype=dtype, config=config)
    assert (found.inv_freq_base, found.inv_freq_agrees, found.warnings) == (base, True, ())
    assert len(found.inv_freq) == pairs and found.inv_freq[0] == 1.0
    assert (f"rotated channels: {2 * pairs}", "2 for each value") in found.conclusions
    other = write_buffers(tmp_path, data, dtype=dtype, config=config | {"rope_theta": 1.3 * base})
    assert not other.inv_freq_agrees and f"has the base {base:,.0f}. config.json says the base" in other.warnings[0]


def test_a_base_of_many_digits(tmp_path):
    """A float32 buffer shows a difference of 0.01 %; a bfloat16 buffer cannot."""
    config = LLAMA | dict(rope_theta=123_450.0)
    assert write_buffers(tmp_path, frequencies(123_450.0, "F32"), config=config).inv_freq_base == 123_450.0
    other = LLAMA | dict(rope_theta=123_462.0)
    assert write_buffers(tmp_path, frequencies(123_450.0, "F32"), config=other).inv_freq_agrees is False
    assert write_buffers(tmp_path, frequencies(123_450.0, "BF16"), dtype="BF16", config=other).inv_freq_agrees


def test_a_buffer_that_contradicts_the_config(tmp_path):
    found = write_buffers(tmp_path, frequencies(1e4, "F32"), config=LLAMA)
    assert found.embedding.base == 1e6 and found.inv_freq_base == 1e4
    assert found.warnings == (
        "model.layers.0.self_attn.rotary_emb.inv_freq has the base 10,000. config.json says the base 1,000,000: pair 1 "
        "has 0.158489 against 0.0630957 radians per token. transformers 5 ignores the buffer and uses config.json. An "
        "engine that loads the buffer computes other angles.",
    )
    scaled = LLAMA | {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}}
    found = write_buffers(tmp_path, frequencies(1e4, "F32"), config=scaled)
    assert "says the base 10,000 and LinearScaling: pair 0 has 1 against 0.5 radians" in found.warnings[0]
    half = (np.frombuffer(frequencies(1e4, "F32"), np.float32) / 2).tobytes()
    found = write_buffers(tmp_path, half, config=scaled)
    assert (found.inv_freq_agrees, found.inv_freq_base, found.warnings) == (True, None, ())
    found = write_buffers(tmp_path, frequencies(1e6, "F32", 4), config=LLAMA)
    assert "pair 1 has 0.0316228 against 0.0630957" in found.warnings[0]
    found = write_buffers(tmp_path, frequencies(1e6, "F32")[:-4], config=LLAMA)
    assert "says the base 1,000,000: 4 pairs against 5." in found.warnings[0]


def test_buffers_of_layers_that_differ(tmp_path):
    found = write_buffers(tmp_path, frequencies(1e6, "F32"), frequencies(1e4, "F32"), config=LLAMA)
    assert found.warnings == (f"{INV_FREQ.format(0)} and {INV_FREQ.format(1)} differ.",)
    assert found.inv_freq_base == 1e6 and not found.inv_freq_agrees
    esmfold = {"model_type": "esmfold2_atom_encoder", "head_dim": 128}  # its axes have frequencies of their own
    found = write_buffers(tmp_path, frequencies(1e6, "F32"), config=esmfold)
    assert (found.embedding.axes, found.inv_freq_base, found.inv_freq_agrees, found.warnings) == (4, 1e6, None, ())


@pytest.mark.parametrize("values", [[np.nan, 1], [-1.0, 0.5], [0.0, 0.0], [np.inf, 1]])
def test_a_buffer_of_other_values(tmp_path, values):
    found = write_buffers(tmp_path, np.asarray(values, np.float32).tobytes(), config=LLAMA)
    assert (found.inv_freq, found.warnings) == (None, (f"{INV_FREQ.format(0)} is not a row of frequencies.",))


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
    size, values = rows * 60 * 2, frequencies(1e4, "F32")
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


def one(dtype="F32", shape=(2, 3), offsets=(0, 24), name="w"):
    return {name: {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}}


DATA = bytes(24)
BAD_HEADERS = {
    "empty": (b"", r"a header of 2 to 100000000 bytes inside the file; got no bytes: it is empty"),
    "short": (b"\1\0", r"a header of 2 to .*; got 0 of 2 bytes"),
    "beyond the end": (raw(one(), DATA, 500), r"a header of 2 to .*; got 500 of \d+ bytes"),
    "2**64": (raw(one(), DATA, 2**64 - 1), r"a header of 2 to .*; got 18446744073709551615 of"),
    "no object": (raw([1]), r"a JSON object as its header; got list"),
    "entry": (raw({"w": [1]}), r"a dtype, a shape and two data_offsets .*; got 'w': "),
    "negative": (raw(one(shape=(-2, -3)), DATA), r"a dtype, a shape .*; got 'w'"),
    "true": (raw(one(shape=(True, 6)), DATA), r"a dtype, a shape .*; got 'w'"),
    "float": (raw(one(shape=(6.0,)), DATA), r"a dtype, a shape .*; got 'w'"),
    "axes": (raw(one(shape=(1,) * 99), DATA), r"a dtype, a shape .*; got 'w'"),
    "large": (raw(one(shape=(2**60, 0)), DATA), r"a dtype, a shape .*; got 'w'"),
    "one offset": (raw(one(offsets=(0,)), DATA), r"a dtype, a shape .*; got 'w'"),
    "name": (raw(one(name="n" * 2000), DATA), r".* names of at most 1024 characters; got 'nnn"),
    "outside": (raw(one(offsets=(8, 32)), DATA), r"the 24 bytes of its tensors inside the file; got 'w' at \[8, 32\]"),
    "backwards": (raw(one(offsets=(24, 0)), DATA), r"the 24 bytes of its tensors .*; got 'w' at \[24, 0\]"),
    "size": (raw(one(dtype="F64"), DATA), r"all bytes of F64 of shape \[2, 3\] for 'w'; got 24"),
    "overlap": (
        raw(one(shape=(1, 3), offsets=(0, 12)) | one("F16", (4,), (8, 16), "v"), DATA),
        r"each byte in one tensor only; got 'w' and 'v', which overlap",
    ),
}
BAD_JSON = {
    "JSON": (raw(b"{]"), r"the header of \S* must be JSON; got "),
    "UTF-8": (raw(b'{"\xff"}'), r"the header of \S* must be JSON in UTF-8; got "),
    "deep": (raw(b'{"a":' * 10**5), r"the header of \S* must have at most 32 levels; got more"),
    "many": (raw(b"[" + b"[]," * 10**6 + b"[]]"), r"the header of \S* must hold at most 1000000 values; got more"),
    "twice": (
        raw(b'{"w": {}, "w": {}}'),
        r"every key must occur once in a JSON object of the header of .*; got 'w' 2 times",
    ),
    "digits": (
        raw(b'{"w": ' + b"9" * 10**5 + b"}"),
        r"an int of the header of .* must have at most 2048 bits; got 100000 digits",
    ),
}


@pytest.mark.parametrize("name", [*BAD_HEADERS, *BAD_JSON])
def test_a_hostile_header(tmp_path, counted, name):
    content, message = BAD_JSON.get(name) or BAD_HEADERS[name]
    message = message if name in BAD_JSON else rf"\S*model\.safetensors must have {message}"
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^identify_checkpoint: {message}") as raised:
        identify_checkpoint(path)
    assert len(str(raised.value)) < 600 and counted.total <= 2 * len(content)


def test_a_long_header_is_not_read(tmp_path, counted):
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 100_000_001) + b"{")
    os.truncate(path, 2**35)
    with pytest.raises(
        ValueError, match=r"a header of 2 to 100000000 bytes inside the file; got 100000001 of 34359738368"
    ):
        identify_checkpoint(path)
    assert counted.total < 2048


@pytest.mark.parametrize(
    "index, message",
    [
        ([], r"have weight_map, a JSON object of file names; got \[\]"),
        ({"weight_map": {"w": 3}}, r"have weight_map, a JSON object of file names; got "),
        ({"weight_map": {"w": "../model.safetensors"}}, r"files beside it; got '\.\./model\.safetensors'"),
        ({"weight_map": {"w": "/etc/passwd"}}, r"files beside it; got '/etc/passwd'"),
        ({"weight_map": {f"w{i}": f"{i}.safetensors" for i in range(10_001)}}, r"at most 10000 .*; got 10001 files"),
    ],
)
def test_a_hostile_index(tmp_path, index, message):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    with pytest.raises(ValueError, match=rf"^identify_checkpoint: \S*index\.json must .*{message}"):
        identify_checkpoint(path)


SEEDS = {
    "model.safetensors": raw(one(name="model.layers.0.self_attn.q_proj.weight"), DATA),
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


@pytest.mark.parametrize(
    "name, content, message",
    [
        (
            "pytorch_model.bin",
            b"PK\3\4",
            r"is a file|file of pickles, which is not read, because a pickle can run any code",
        ),
        ("consolidated.00.pth", b"\x80\2", r"a file of pickles, which is not read"),
        ("weights", b"PK\3\4", r"a file of pickles"),
        ("model", b"12345678}", r"a file of another format, which begins with b'12345678'"),
        ("model.onnx", b"\x08\x09onnx", r"a file of another format, which begins with b'\\x08\\tonnx'"),
        (
            "model.safetensors",
            b"version https://git-lfs.github.com/spec/v1\n",
            r"a pointer of Git LFS: the file itself",
        ),
    ],
)
def test_other_formats(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"^identify_checkpoint: path must be .*; got '\S*{name}', {message}"):
        identify_checkpoint(tmp_path / name)


def test_folders_without_tensors(tmp_path, monkeypatch):
    def error():
        with pytest.raises(ValueError, match=r"^identify_checkpoint: path must be .*; got ") as raised:
            identify_checkpoint(tmp_path)
        return str(raised.value).split("got ")[1].replace(str(tmp_path), "FOLDER")

    assert error() == "'FOLDER', an empty folder"
    (tmp_path / "config.json").write_text("{}")
    assert error() == "'FOLDER', a folder without such files"
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    assert error().startswith("'FOLDER', in which 'pytorch_model.bin' is a file of pickles, which is not read")
    for i in range(2):
        write_gguf(tmp_path / f"{i}.gguf", "llama")
    assert error() == "'FOLDER', a folder of 2 GGUF files: give one of them"
    for i in range(2):
        (tmp_path / f"{i}.gguf").rename(tmp_path / f"model-0000{i + 1}-of-00002.gguf")
    assert identify_checkpoint(tmp_path).path == str(tmp_path / "model-00001-of-00002.gguf")
    monkeypatch.setattr(contents, "MAX_FILES", 3)
    assert error() == "'FOLDER', a folder of more than 3 files"
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ValueError, match=r"loop must be a file or a folder; got Too many levels of symbolic links$"):
        identify_checkpoint(tmp_path)


REFUSED = r"^identify_checkpoint: \S* must be readable; got Permission denied$"


def test_paths(tmp_path, monkeypatch):
    for path in (tmp_path / "none.safetensors", "\0", "n" * 5000):
        with pytest.raises(FileNotFoundError, match=r"^identify_checkpoint: path must be .*, which does not exist$"):
            identify_checkpoint(path)
    with pytest.raises(TypeError, match=r"^identify_checkpoint: path must be a string or a path; got int$"):
        identify_checkpoint(3)
    with pytest.raises(ValueError, match=rf"got '{os.devnull}', which is no regular file$"):
        identify_checkpoint(os.devnull)

    def refused(*_):
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path, HF)
    for name in ("builtins.open", "os.scandir"):
        with monkeypatch.context() as patched, pytest.raises(PermissionError, match=REFUSED):
            patched.setattr(name, refused)
            identify_checkpoint(path if name == "builtins.open" else tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(TypeError, match=r"^identify_checkpoint: \S*config.json must hold a JSON object; got list$"):
        identify_checkpoint(path)
