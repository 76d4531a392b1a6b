"""identify_checkpoint on random files: each size, its source, the layout and the buffer are those that were written."""

import json
import math
import re
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sentences import write_files

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
DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


def found_in(
    shapes, config=None, dtype="BF16", data=b"", name="model.safetensors", config_name="config.json", folder=""
):
    """What is found in a file with tensors of these shapes. Of their bytes, only `data` is on disk."""
    entries, end = {}, 0
    for tensor, shape in shapes.items():
        start, end = end, end + np.dtype(DTYPES[dtype]).itemsize * math.prod(shape)
        entries[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    files = {name: {"header": entries, "hex": data.hex(), "size": end}}
    if config is not None:
        files[config_name] = json.dumps(config)
    with tempfile.TemporaryDirectory() as temporary:
        write_files(folder or temporary, files)
        return identify_checkpoint(Path(folder or temporary, name))


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


def shapes(kind, sizes):
    """The projections of each layer by name, as the kind has them."""
    prefix, names, *_ = KINDS[kind]
    heads, kv_heads, head_dim, hidden, layers = sizes
    rows = (heads * head_dim, kv_heads * head_dim) if len(names) == 2 else ((heads + 2 * kv_heads) * head_dim,)
    return {
        f"{prefix}.{layer}.{name}.weight": [count, hidden]
        for layer in range(layers)
        for name, count in zip(names, rows)
    }


def identified(kind, sizes, config=None):
    config_name = "params.json" if kind == "meta" else "config.json"
    return found_in(shapes(kind, sizes), config, config_name=config_name)


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
        assert f"{heads // kv_heads} head{'s' * (heads > kv_heads)} for each key-value head" in why
    else:
        assert f"the fused projection has {(heads + 2 * kv_heads) * head_dim} rows" in why


@given(models(), st.integers(0, 4), st.integers(1, 5))
def test_a_config_that_contradicts_shapes_is_named_with_both_numbers(model, number, more):
    kind, sizes = model
    keys = KINDS[kind][2]
    said = [size + more * (2 if at == 2 else 1) * (at == number) for at, size in enumerate(sizes)]
    if number == 0:
        said[0] = sizes[0] + more * sizes[1]  # heads remain a multiple of those of keys
    found = identified(kind, sizes, config_of(kind, said))
    assert [getattr(found, name) for name in SIZES] == said and keys[number]
    text = " ".join(found.warnings)
    if number == 4:
        assert f"has tensors of {sizes[4]} layer{'s'[: sizes[4] != 1]} (" in text and f"says {said[4]}" in text
        return
    assert ("columns" in text) == (number == 3) == (f"{sizes[3]} columns, and not {said[3]}, the hidden size" in text)
    rows = {"q": (sizes[0] * sizes[2], said[0] * said[2]), "k": (sizes[1] * sizes[2], said[1] * said[2])}
    rows["qkv"] = (rows["q"][0] + 2 * rows["k"][0], rows["q"][1] + 2 * rows["k"][1])
    for role, (has, wanted) in rows.items():
        if role == "qkv" if len(KINDS[kind][1]) == 2 else role != "qkv":
            continue
        gate = role == "q" and has == 2 * wanted
        count = {"q": f"{said[0]}", "k": f"{said[1]}", "qkv": rf"{said[0]} \+ 2 \* {said[1]}"}[role]
        sum_of = f"{count} {'head' if count == '1' else 'heads'} of {said[2]} channels"
        expected = re.search(rf"{role}\w*\.weight has {has} rows, and not {wanted}, for {sum_of} ", text) is not None
        assert expected == (has != wanted and not gate)


def rounded(values, dtype):
    """Bytes of the dtype, and the values that they are."""
    kept = np.asarray(values).astype(DTYPES[dtype])
    return kept.tobytes(), kept.astype(float)


@given(
    st.integers(2, 64),
    st.integers(15, 999).flatmap(lambda digits: st.integers(1, 4).map(lambda power: float(digits * 10**power))),
    st.sampled_from(["F64", "F32", "F16", "BF16"]),
    st.floats(0.97, 1.03) | st.just(1.0),
    st.sampled_from([1.0, 1.0, 2.0]),
)
@example(64, 1_234_567.0, "F64", 1.0, 1.0)
def test_the_frequencies_of_a_buffer(pairs, base, dtype, times, divisor):
    """The values are those that were written; the base explains them; the config agrees if its values do."""
    exact = base ** (-np.arange(pairs) / pairs) / divisor
    data, kept = rounded(exact, dtype)
    config = {"model_type": "llama", "head_dim": 2 * pairs, "num_attention_heads": 2, "hidden_size": 4 * pairs}
    config |= {"rope_theta": base * times, "num_hidden_layers": 1}
    found = found_in({INV_FREQ.format(0): [pairs]}, config, dtype, data)
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
        off = np.abs(kept / stated - 1.0).max()
        assert bool(found.warnings) == (not found.inv_freq_agrees or off > 2.0**-19)
        if found.inv_freq_agrees and found.warnings:
            assert f"is stored in {dtype}: its frequencies are off by up to {100 * off:.2g} %" in found.warnings[0]
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
        of = "1 radian" if f"{stated[pair]:.7g}" == "1" else f"{stated[pair]:.7g} radians"
        assert f"pair {pair} has {kept[pair]:.7g} against {of} per token" in found.warnings[-1]


def test_headers_of_all_files_count_to_the_last_byte_and_tensor(tmp_path, monkeypatch):
    for number in (1, 2):
        found_in({f"w{number}": [0]}, name=f"{number}.safetensors", folder=tmp_path)
    total = sum(file.stat().st_size - 8 for file in tmp_path.glob("*.safetensors"))
    for values, length, is_read in ((2, total, True), (1, total, False), (2, total - 1, False)):
        monkeypatch.setattr(contents, "MAX_VALUES", values)
        monkeypatch.setattr(contents, "MAX_HEADERS", length)
        if is_read:
            assert identify_checkpoint(tmp_path).format is None
            continue
        with pytest.raises(ValueError, match=f"at most {values} tensors and {length} bytes of headers; got more"):
            identify_checkpoint(tmp_path)


@pytest.mark.parametrize("pairs, is_row", [(1, True), (2**14, True), (2**14 + 1, False)])
def test_buffers_of_other_shapes_are_no_rows_of_frequencies(pairs, is_row):
    values = np.linspace(1.0, 0.5, pairs)
    for shape, good in (([pairs], is_row), ([1, pairs], False), ([pairs, 1], False)):
        found = found_in({INV_FREQ.format(0): shape}, dtype="F32", data=rounded(values, "F32")[0])
        assert (found.inv_freq is not None) == good
        assert found.warnings == (() if good else (f"{INV_FREQ.format(0)} is not a row of frequencies.",))
    assert found.inv_freq_agrees is None
