"""identify_checkpoint on random files: each size, its source, the layout and the buffer are those that were written."""

import json
import math
import os
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rope_xp import identify_checkpoint
from rope_xp.checkpoints import contents

INV_FREQ = "model.layers.{}.self_attn.rotary_emb.inv_freq"
# The names of projections: a prefix, those of queries and keys or of one fused projection, the keys of a config for
# heads, heads of keys, channels of a head, hidden size and layers, what else the config has, and format and layout.
OF_TRANSFORMERS = ("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size", "num_hidden_layers")
OF_META = ("n_heads", "n_kv_heads", "head_dim", "dim", "n_layers")
OF_MEGATRON = ("num_attention_heads", "num_query_groups", "kv_channels", "hidden_size", "num_layers")
KINDS = {
    "llama": ("model.layers", ("self_attn.q_proj", "self_attn.k_proj"), OF_TRANSFORMERS, "Hugging Face", "half"),
    "cohere": (
        "model.layers",
        ("self_attn.q_proj", "self_attn.k_proj"),
        OF_TRANSFORMERS,
        "Hugging Face",
        "interleaved",
    ),
    "phi3": ("model.layers", ("self_attn.qkv_proj",), OF_TRANSFORMERS, "Hugging Face", "half"),
    "meta": ("layers", ("attention.wq", "attention.wk"), OF_META, "Meta", "interleaved"),
    "megatron": ("decoder.layers", ("self_attention.linear_qkv",), OF_MEGATRON, "Megatron", "half"),
}
SIZES = ("heads", "kv_heads", "head_dim", "hidden_size", "layers")
WORDS = ("heads", "kv heads", "head dim", "hidden size", "layers")


def written(folder, entries, data=b""):
    header = json.dumps(entries).encode()
    folder.joinpath("model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)


def config_of(kind, sizes):
    config = dict(zip(KINDS[kind][2], sizes))
    if kind == "meta":
        return config | {"rope_theta": 5e5, "norm_eps": 1e-5, "vocab_size": 7}
    if kind == "megatron":
        return config | {"position_embedding_type": "rope", "rotary_base": 500_000}
    return config | {"model_type": kind, "rope_theta": 5e5}


@st.composite
def models(draw):
    kind = draw(st.sampled_from(list(KINDS)))
    kv_heads, head_dim = draw(st.integers(1, 9)), 2 * draw(st.integers(2, 70))
    heads = kv_heads * draw(st.integers(1, 5))
    # A hidden size that is no multiple of other sizes, or that of the heads together.
    hidden = draw(st.sampled_from([heads * head_dim, 1031 * draw(st.integers(1, 3))]))
    return kind, (heads, kv_heads, head_dim, hidden, draw(st.integers(1, 5)))


def shapes(kind, sizes, extra=0):
    """The projections of each layer by name, as the kind has them; `extra` rows of the first are too many."""
    prefix, names, *_ = KINDS[kind]
    heads, kv_heads, head_dim, hidden, layers = sizes
    rows = (heads * head_dim, kv_heads * head_dim) if len(names) == 2 else ((heads + 2 * kv_heads) * head_dim,)
    return {
        f"{prefix}.{layer}.{name}.weight": [count + extra * (name == names[0]), hidden]
        for layer in range(layers)
        for name, count in zip(names, rows)
    }


def entries_of(found):
    """Headers of tensors in order, as BF16, and their bytes."""
    entries, at = {}, 0
    for name, shape in found.items():
        size = 2 * math.prod(shape)
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return entries, at


def identified(kind, sizes, config=None, **options):
    with tempfile.TemporaryDirectory() as name:
        if kind == "meta" and config is not None:
            Path(name, "params.json").write_text(json.dumps(config))
            config = None
        return of_names(shapes(kind, sizes, **options), config, folder=Path(name))


@given(models(), st.sets(st.integers(0, 4), max_size=3))
def test_sizes_follow_from_the_config_and_from_shapes(model, missing):
    """Each size that is found is right, and its source is named; with a whole config or enough shapes, all are."""
    kind, sizes = model
    _, names, keys, format_, layout = KINDS[kind]
    config = config_of(kind, sizes)
    if kind == "phi3" or format_ != "Hugging Face":
        missing -= {0, 2, 3}  # the reader of the config needs them
    for number in missing:
        del config[keys[number]]
    found = identified(kind, sizes, config)
    assert (found.format, found.layout) == (format_, layout)
    conclusions = dict(found.conclusions)
    for number, (name, words) in enumerate(zip(SIZES, WORDS)):
        size = getattr(found, name)
        if number not in missing:
            assert size == sizes[number]
            assert keys[number] in conclusions[f"{words}: {size}"]
        elif size is not None and not missing & {0, 2, 3}:
            assert size == sizes[number] and f"{words}: {size}" in conclusions
    if not missing:
        assert not found.warnings and found.embedding is not None
        assert (found.embedding.base, found.embedding.head_dim, found.embedding.layout) == (5e5, sizes[2], layout)
    if missing <= {3, 4}:
        assert (found.hidden_size, found.layers) == sizes[3:]
    if missing == {1} and len(names) == 2:
        assert found.kv_heads == sizes[1]
        rows = f"{sizes[1] * sizes[2]} rows of {KINDS[kind][0]}.0.{names[1]}.weight / head dim {sizes[2]}"
        assert conclusions[f"kv heads: {sizes[1]}"] == rows
    assert json.loads(json.dumps(found.to_dict()))["heads"] == found.heads
    assert {type(getattr(found, name)) for name in SIZES} <= {int, type(None)}
    assert all(len(line) <= 80 for line in str(found).splitlines())


@given(models())
def test_without_a_config_only_what_shapes_say_is_said(model):
    kind, sizes = model
    _, names, _, format_, layout = KINDS[kind]
    found = identified(kind, sizes)
    assert found.format == format_ and found.layout == (None if format_ == "Hugging Face" else layout)
    assert (found.heads, found.kv_heads, found.head_dim) == (None, None, None)
    assert (found.hidden_size, found.layers) == sizes[3:]
    why = dict(found.conclusions)["other sizes: cannot tell"]
    heads, kv_heads, head_dim, *_ = sizes
    if len(names) == 2:
        assert f"{heads * head_dim} rows of queries and {kv_heads * head_dim} of keys" in why
        assert f"{heads // kv_heads} heads for each key-value head" in why
    else:
        assert f"the fused projection has {(heads + 2 * kv_heads) * head_dim} rows" in why


@given(models(), st.integers(0, 4), st.integers(1, 5))
def test_a_config_that_contradicts_shapes_is_named_with_both_numbers(model, number, more):
    kind, sizes = model
    keys = KINDS[kind][2]
    said = [size + more * (2 if at == 2 else 1) * (at == number) for at, size in enumerate(sizes)]
    if number == 0:
        said[0] = sizes[0] + more * sizes[1]  # heads remain a multiple of those of keys
    if number == 3:
        return  # the hidden size is not compared with columns
    found = identified(kind, sizes, config_of(kind, said))
    assert [getattr(found, name) for name in SIZES] == said and keys[number]
    text = " ".join(found.warnings)
    if number == 4:
        assert f"has tensors of {sizes[4]} layer{'s'[: sizes[4] != 1]} (" in text and f"says {said[4]}" in text
        return
    rows = {"q": (sizes[0] * sizes[2], said[0] * said[2]), "k": (sizes[1] * sizes[2], said[1] * said[2])}
    rows["qkv"] = (rows["q"][0] + 2 * rows["k"][0], rows["q"][1] + 2 * rows["k"][1])
    for role, (has, wanted) in rows.items():
        if role == "qkv" if len(KINDS[kind][1]) == 2 else role != "qkv":
            continue
        gate = role == "q" and has == 2 * wanted
        count = {"q": said[0], "k": said[1], "qkv": said[0] + 2 * said[1]}[role]
        sum_of = f"{count} {'head' if count == 1 else 'heads'} of {said[2]} channels, which are {wanted} rows."
        expected = re.search(rf"{role}\w*\.weight has {has} rows\. \S+ says {sum_of}", text) is not None
        assert expected == (has != wanted and not gate)


def rounded(values, dtype):
    """Bytes of the dtype, and the values that they are."""
    if dtype == "BF16":
        bits = np.asarray(values, np.float32).view(np.uint32)
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
        return (bits >> 16).astype(np.uint16).tobytes(), bits.astype(np.uint32).view(np.float32).astype(float)
    kept = np.asarray(values, {"F64": np.float64, "F32": np.float32, "F16": np.float16}[dtype])
    return kept.tobytes(), kept.astype(float)


@given(
    st.integers(2, 64),
    st.integers(15, 999).flatmap(lambda digits: st.integers(1, 4).map(lambda power: float(digits * 10**power))),
    st.sampled_from(["F64", "F32", "F16", "BF16"]),
    st.floats(0.97, 1.03) | st.just(1.0),
    st.sampled_from([1.0, 1.0, 2.0]),
)
def test_the_frequencies_of_a_buffer(pairs, base, dtype, times, divisor):
    """The values are those that were written; the base explains them; the config agrees if its values do."""
    exact = base ** (-np.arange(pairs) / pairs) / divisor
    data, kept = rounded(exact, dtype)
    entry = {"dtype": dtype, "shape": [pairs], "data_offsets": [0, len(data)]}
    config = {"model_type": "llama", "head_dim": 2 * pairs, "num_attention_heads": 2, "hidden_size": 4 * pairs}
    config |= {"rope_theta": base * times, "num_hidden_layers": 1}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written(folder, {INV_FREQ.format(0): entry}, data)
        folder.joinpath("config.json").write_text(json.dumps(config))
        found = identify_checkpoint(folder)
    assert found.inv_freq == tuple(kept)
    relative, absolute = {
        "F64": (2.0**-19, 0),
        "F32": (2.0**-19, 0),
        "F16": (2.0**-10, 2.0**-25),
        "BF16": (2.0**-8, 0),
    }[dtype]
    stated = (base * times) ** (-np.arange(pairs) / pairs)
    apart = np.abs(kept - stated) - relative * stated - absolute
    if np.abs(apart).min() > 1e-12:
        assert found.inv_freq_agrees == (apart <= 0).all()
        assert bool(found.warnings) != found.inv_freq_agrees
    if found.inv_freq_base is not None:
        explained = found.inv_freq_base ** (-np.arange(pairs) / pairs)
        assert (np.abs(kept - explained) <= (relative * explained + absolute) * (1 + 1e-9)).all()
    if divisor == 1.0 and dtype in ("F64", "F32"):
        assert found.inv_freq_base == pytest.approx(base, rel=1e-3 if pairs > 2 else 0.1)
    if divisor != 1.0:
        assert found.inv_freq_base is None
    conclusions = dict(found.conclusions)
    assert conclusions[f"rotated channels: {2 * pairs}"] == "2 for each value"
    if not found.inv_freq_agrees:
        pair = int((apart > 0).argmax())
        assert f"pair {pair} has {kept[pair]:.6g} against {stated[pair]:.6g} radians per token" in found.warnings[-1]


def of_names(shapes, config=None, name="model.safetensors", folder=None):
    """What is found in a file with tensors of these shapes and no bytes on disk."""
    with tempfile.TemporaryDirectory() as temporary:
        path = (folder or Path(temporary)) / name
        entries, size = entries_of(shapes)
        header = json.dumps(entries).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        os.truncate(path, 8 + len(header) + size)
        if config is not None:
            path.with_name("config.json").write_text(json.dumps(config))
        return identify_checkpoint(path)


def test_headers_of_all_files_count_to_the_last_byte(tmp_path, monkeypatch):
    for number in (1, 2):
        of_names({f"w{number}": [0]}, name=f"{number}.safetensors", folder=tmp_path)
    total = sum(file.stat().st_size - 8 for file in tmp_path.glob("*.safetensors"))
    monkeypatch.setattr(contents, "MAX_HEADERS", total)
    assert identify_checkpoint(tmp_path).format is None
    monkeypatch.setattr(contents, "MAX_HEADERS", total - 1)
    with pytest.raises(ValueError, match=f"at most 1000000 tensors and {total - 1} bytes of headers; got more"):
        identify_checkpoint(tmp_path)


def of_buffer(values, dtype="F32", shape=None, config=None):
    """What is found in a file with these frequencies alone."""
    data, _ = rounded(values, dtype)
    entries = {INV_FREQ.format(0): {"dtype": dtype, "shape": shape or [len(values)], "data_offsets": [0, len(data)]}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written(folder, entries, data)
        if config is not None:
            folder.joinpath("config.json").write_text(json.dumps(config))
        return identify_checkpoint(folder)


@pytest.mark.parametrize("pairs, is_row", [(1, True), (2**14, True), (2**14 + 1, False)])
def test_buffers_of_other_shapes_are_no_rows_of_frequencies(pairs, is_row):
    values = np.linspace(1.0, 0.5, pairs)
    for shape, good in (([pairs], is_row), ([1, pairs], False), ([pairs, 1], False)):
        found = of_buffer(values, shape=shape)
        assert (found.inv_freq is not None) == good
        assert found.warnings == (() if good else (f"{INV_FREQ.format(0)} is not a row of frequencies.",))
    assert found.inv_freq_agrees is None
