"""from_config of other formats: what a person reads in real files, and errors that name the format."""

import copy
import re
from contextlib import nullcontext

import numpy as np
import pytest
from cases import for_each
from configs import CONFIGS, ROWS, value_of

from rope_xp import Llama3Scaling, RotaryEmbedding, Sections, from_config
from rope_xp.configs.readers import files
from rope_xp.frequencies import geometric

HALF, INTERLEAVED = "half", "interleaved"


def of(head_dim, layout, base, scaling=None, **options):
    return RotaryEmbedding(head_dim=head_dim, layout=layout, base=base, scaling=scaling, **options)


LLAMA3 = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)


def metadata(arch, **values):
    """Keys of one architecture; two underscores stand for a dot."""
    keys = {f"{arch}.{name.replace('__', '.')}": value for name, value in values.items()}
    return {"general.architecture": arch, "general.name": "a model", "tokenizer.ggml.model": "gpt2", **keys}


def f32(*numbers):
    return [float(np.float32(number)) for number in numbers]


FILES = {row["name"]: row["keys"] for row in ROWS["files of other formats"]}
FACTORS = {"rope_freqs.weight": f32(*(a / b for a, b in zip(geometric(5e5, 128), LLAMA3.frequencies(5e5, 128))))}
FILES["Llama 3.1 GGUF"] = FILES["Llama GGUF"] | FACTORS
FILES["Gemma 4 GGUF"] = FILES["Gemma 4 GGUF"] | {"rope_freqs.weight": f32(*[1.0] * 64, *[1e30] * 192)}
META31, QWEN, LLAMA = FILES["Llama 3.1"], FILES["Qwen2.5 GGUF"], FILES["Llama GGUF"]
GPT, MLX_LLAMA = FILES["GPT of Megatron"], FILES["Llama of MLX"]


def config_of(row):
    """A file with the changes of a row of tests/goldens/rows.json."""
    config = FILES[row["file"]] | row.get("change", {})
    return copy.deepcopy({key: value for key, value in config.items() if key not in row.get("without", ())})


def name_of(row):
    return ", ".join(map(str, (row["file"], *(row[key] for key in ("change", "options", "message") if key in row))))[
        :80
    ]


@for_each("row", ROWS["read from other formats"])
def test_what_a_person_reads(row):
    config, options, wanted = config_of(row), row.get("options", {}), value_of(row["value"])
    found = from_config(config, **options)
    assert config == config_of(row)
    if wanted is None or found is None:
        assert found is wanted
        return
    if found.scaling != wanted.scaling:  # MLX's mscale is another spelling of the attention factor
        assert found.attention_factor == wanted.attention_factor and found.inv_freq == wanted.inv_freq
        assert found.softmax_scale == wanted.softmax_scale
    else:
        assert found == wanted
    assert [default.key for default in found._provenance.defaults] == row["not stated"].split()
    if row["not stated"]:
        with pytest.raises(ValueError, match=f"strict=True; got .*{row['not stated']}"):
            from_config(config, **options, strict=True)


FORMATS = {
    "Meta's params.json": META31,
    "Mistral's params.json": FILES["Ministral 3"],
    "metadata of a GGUF file": QWEN,
    "arguments of Megatron-LM": GPT | {"rotary_base": 10000},
    "a config.json of MLX": MLX_LLAMA | {"quantization": {"group_size": 64, "bits": 4}},
}
UNKNOWN = {"metadata of a GGUF file": "qwen2.rope.extra_thing"}


@for_each("name", FORMATS)
def test_an_unknown_key_is_named_and_so_is_the_format(name):
    key = UNKNOWN.get(name, "rope_extra_thing")
    with pytest.raises(ValueError, match=rf"^from_config: .*; got .*{key}.*\(the mapping was read as {name}\)$"):
        from_config({**FORMATS[name], key: 1.5})


@for_each("name", FORMATS)
def test_each_key_about_rotation_matters(name):
    """Without the key, there is an error, another value, or a default that is marked."""
    mapping = FORMATS[name]
    rope = from_config(mapping)
    marked = {default.key for default in rope._provenance.defaults}
    for key in [
        key
        for key, value in mapping.items()
        if value is not None and ("rope" in key or "rotary" in key or key == "yarn")
    ]:
        try:
            found = from_config({other: value for other, value in mapping.items() if other != key})
        except ValueError:
            continue
        assert found != rope or {default.key for default in found._provenance.defaults} - marked, key


@pytest.mark.parametrize("name", [name for name in FORMATS if "MLX" not in name])
def test_the_format_is_described(name):
    rope = from_config(FORMATS[name])
    assert f"read from {name}" in " ".join(rope.describe().split())
    report = rope.explain()
    assert f"read from {name}" in " ".join(str(report).split()) and not any(
        "read from" in each for each in report.warnings
    )
    assert report.stated and set(report.stated) <= FORMATS[name].keys()


@for_each("row", ROWS["wrong in other formats"])
def test_errors_name_the_key_and_the_format(row):
    error = {"ValueError": ValueError, "TypeError": TypeError}[row["error"]]
    with pytest.raises(error, match=rf"^from_config: .*{row['message']}.*\(the mapping was read as .*\)$") as raised:
        from_config(config_of(row), **row.get("options", {}))
    assert len(str(raised.value)) < 1000


DAMAGE = (None, "x", True, -1, 0.5, 10**30, float("nan"), [1], [1e30] * 64, {"a": 1})
IN_FORM = re.compile(r"from_config: .+; got .+", re.DOTALL)


def damaged(mapping):
    """The mapping with another value of each key, also of keys in nested mappings."""
    for key, value in mapping.items():
        for other in [*DAMAGE, *(damaged(value) if isinstance(value, dict) else ())]:
            yield {**mapping, key: other}


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_mapping_is_read_or_an_error_in_form(name):
    for mapping in damaged(FORMATS[name]):
        try:
            from_config(mapping)
        except (ValueError, TypeError) as error:
            assert IN_FORM.fullmatch(str(error)) and len(str(error)) < 1000, error


def test_widths_are_limited_before_frequencies_are_computed():
    with pytest.raises(ValueError, match="dimension_count must be even, at least 2 and at most 16384; got 1"):
        from_config(LLAMA | FACTORS | {"llama.rope.dimension_count": 2**40})


def test_remarks():
    """What a mapping cannot say, and where programs differ."""

    def remarks(mapping):
        return " ".join(from_config(mapping).describe().split())

    assert "if the file has this tensor" in remarks(LLAMA) and "if the file has" not in remarks(LLAMA | FACTORS)
    assert "the configs of Llama 3.2 in transformers have 32" in remarks(META31)
    assert "since version 1.0.4" in remarks(FILES["Mistral 7B"] | {"sliding_window": 4096})
    stated = {"qwen2.rope.scaling.yarn_attn_factor": 1.5}
    assert "does not read qwen2.rope.scaling.yarn_attn_factor=1.5 with YaRN" in remarks(QWEN | stated)
    for key, value in (("yarn_ext_factor", 0.5), ("alpha", 2.0), ("yarn_log_multiplier", 0.1), ("yarn_beta_fast", 8.0)):
        unread = f"qwen2.rope.scaling.{key}"
        assert from_config(QWEN | {unread: value}) == from_config(QWEN)
        assert f"llama.cpp does not read {unread}={value:g} for this architecture" in remarks(QWEN | {unread: value})
    assert "does not read llama.rope.scaling.yarn_attn_factor=2" in remarks(
        LLAMA | {"llama.rope.scaling.yarn_attn_factor": 2.0}
    )
    sections = {"qwen3vl.rope.dimension_sections": [24, 20, 20, 0]}
    qwen3 = metadata("qwen3vl", attention__key_length=128, rope__freq_base=5e6)
    assert "rotates pairs 61, 62 by its fourth position" in remarks(qwen3 | sections)


def test_numbers_that_change_nothing_are_not_remarked():
    """In a file whose rule is YaRN, for which the mix is 1."""
    neutral = {"yarn_ext_factor": (1.0, -1.0), "alpha": (0.0, 1.0), "yarn_log_multiplier": (0.0,)}
    neutral |= {"yarn_beta_fast": (32.0,), "yarn_beta_slow": (1.0,), "yarn_attn_factor": (1.0,), "attn_factor": (1.0,)}
    for key, value in ((key, value) for key, values in neutral.items() for value in values):
        rope = from_config(QWEN | {f"qwen2.rope.scaling.{key}": value})
        assert rope == from_config(QWEN) and key not in words(rope), (key, value)


@for_each("kind, wanted", [("yarn", 1.0), ("linear", 0.0)])
@for_each("mix", [1.0, 0.0, -1.0, -2.0, 0.5])
def test_the_mix_of_yarn_follows_from_the_rule(kind, wanted, mix):
    """For Grok, whose file llama.cpp reads it from."""
    own = {"type": kind, "factor": 2.0, "original_context_length": 4096, "yarn_ext_factor": mix}
    file = FILES["Grok GGUF"] | {f"grok.rope.scaling.{key}": value for key, value in own.items()}
    if mix in (wanted, -1.0):
        assert from_config(file) == from_config({key: file[key] for key in file if "ext_factor" not in key})
        return
    with pytest.raises(ValueError, match=f"yarn_ext_factor must be {wanted:g} with '{kind}'; got {mix}"):
        from_config(file)


def words(rope):
    return " ".join(rope._provenance.remarks)


def test_defaults_and_remarks_of_params_json():
    llama4 = FILES["Llama 4 Scout"]
    assert [from_config(_without(each, "rope_theta")).base for each in (META31, llama4)] == [500_000.0, 500_000.0]
    for file, is_remarked in ((META31, True), (META31 | {"rope_scaling_factor": 8.0}, False), (llama4, False)):
        assert ("the factor 8" in words(from_config(_without(file, "x"), layer=0))) == is_remarked
    factors = [from_config(file, layer=0).scaling for file in (META31, _without(llama4, "rope_scaling_factor"))]
    factors = [(each.factor, each.high_freq_factor) for each in factors]
    assert factors == [(8.0, 4.0), (16.0, 1.0)]


def _without(mapping, key):
    return {name: value for name, value in mapping.items() if name != key}


@pytest.mark.parametrize("stated", [None, 1e5])
def test_the_base_of_pixtral_is_that_of_its_encoder(stated):
    encoder = {"head_dim": 64} | ({} if stated is None else {"rope_theta": stated})
    rope = from_config(FILES["Ministral 3"] | {"vision_encoder": encoder}, part="vision")
    assert (rope.base, rope.layout) == (stated or 10_000.0, INTERLEAVED)
    assert bool(rope._provenance.defaults) == (stated is None)


@pytest.mark.parametrize("window", [None, 0, 4096])
def test_layers_without_rotation_need_a_window_that_is_not_zero(window):
    file = metadata("llama4", attention__key_length=64, rope__freq_base=5e5, block_count=8)
    file |= {} if window is None else {"llama4.attention.sliding_window": window}
    if window == 0:
        with pytest.raises(ValueError, match=r"llama4\.attention\.sliding_window must be greater than 0; got 0"):
            from_config(file, layer=0)
        return
    assert [from_config(file, layer=layer) is None for layer in range(4)] == [False, False, False, True]


@for_each("ends", [(2.0, 1e30), (1.0, 1e30), (0.5, 1e30), (1e30, 1e30), (0.5, 0.5), (1e30, 2.0), (3.0, 5.0)])
@for_each("width", [16, 8])
@for_each("second", [None, 2.0, 0.25])
def test_divisors_of_a_file_divide(ends, width, second):
    """Those of no published rule, too; 1e30 stands for a pair that is not rotated."""
    divisors = [ends[0]] * (width // 4) + [ends[1]] * (width // 4)
    if second is not None:
        divisors[1] = second
    file = metadata("llama", attention__key_length=16, rope__dimension_count=width, rope__freq_base=1e4)
    rope = from_config(file | {"rope_freqs.weight": divisors})
    wanted = [w / divisor for w, divisor in zip(geometric(1e4, width), divisors)]
    assert rope.inv_freq == pytest.approx(wanted, rel=1e-6, abs=1e-25)


def test_float32_numbers_are_read_as_they_were_written():
    for number in (10_000.1, 123_456.7, 1.1, 2.0**126):
        file = LLAMA | {"llama.rope.freq_base": float(np.float32(number))}
        assert from_config(file).base == float(str(np.float32(number)))
    for number in (1.1 + 1e-12, 1e300):  # no float32
        assert from_config(LLAMA | {"llama.rope.freq_base": number}).base == number


@pytest.mark.parametrize("part", ["1,", "[],", "{},", '[1,{"a":[]}],'])
def test_values_of_json_are_counted_by_their_commas_and_brackets(part, monkeypatch):
    text = f"[{part * 7}1]"
    count = sum(sign in ",[{" for sign in text)
    for limit in (count, count - 1):
        monkeypatch.setattr(files, "MAX_VALUES", limit)
        with nullcontext() if limit == count else pytest.raises(ValueError, match=f"at most {limit} values; got more"):
            assert len(files.parsed_json("x", text.encode())) == 8


def test_limits_of_json(tmp_path):
    path = tmp_path / "config.json"
    for size in (2**24, 2**24 + 1):
        path.write_bytes(b'{"model_type": "x"}'.ljust(size))
        with pytest.raises(ValueError, match="families" if size == 2**24 else r"at most 16777216 bytes; got more$"):
            from_config(path)
    for count in (10**6, 10**6 + 1):
        message = "a mapping; got list" if count == 10**6 else "at most 1000000 values; got more$"
        path.write_text(f"[{'1,' * (count - 2)}1]" if count == 10**6 else f"[{'1,' * count}1]")
        with pytest.raises((TypeError, ValueError), match=message):
            from_config(path)
    for digits, message in ((616, "families"), (682, "got 2266 bits"), (683, "at most 2048 bits; got 683 digits$")):
        path.write_text('{"model_type": "x", "y": ' + "9" * digits + "}")
        with pytest.raises(ValueError, match=message):
            from_config(path)


def test_limits_of_a_mapping():
    def nested(levels):
        found = 1
        for level in range(levels):
            found = [found] if level % 2 else {"a": found}
        return found

    wrong = {"at most 32 levels": {"y": nested(31)}, "at most 1000000 values": {"y": {"z": [0] * (10**6 - 2)}}}
    wrong |= {"at most 2048 bits; got 2049 bits": {"y": [2**2048]}}
    good = [{"y": nested(30)}, {"y": {"z": [0] * (10**6 - 3)}}, {"y": [2**2048 - 1]}]
    for given in good:
        with pytest.raises(ValueError, match="families"):
            from_config({"model_type": "x"} | given)
    for message, given in wrong.items():
        with pytest.raises(ValueError, match=message):
            from_config({"model_type": "x"} | given)


def test_the_layout_of_glm4_follows_its_sections():
    glm = metadata("glm4", attention__key_length=128, rope__freq_base=1e4)
    assert from_config(glm).layout == INTERLEAVED
    sections = {"glm4.rope.dimension_sections": [16, 24, 24, 0]}
    assert from_config(glm | sections) == of(128, HALF, 1e4, sections=Sections((16, 24, 24)))


def test_the_caller_may_choose_the_layout():
    assert from_config(META31, layout=HALF) == of(128, HALF, 5e5, LLAMA3)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_of_transformers_is_in_no_other_format(name):
    from rope_xp.configs.readers.formats import format_of

    found = format_of(CONFIGS[name])
    assert (found is None) == (name != "llama-3.2-1b-mlx")


@pytest.mark.parametrize("stated, is_remarked", [({}, False), ({"yarn_attn_factor": 1.2}, True)])
def test_a_factor_that_llama_cpp_does_not_read_is_remarked(stated, is_remarked):
    rope = from_config({**QWEN, **{f"qwen2.rope.scaling.{key}": value for key, value in stated.items()}})
    assert any("does not read qwen2.rope.scaling" in each for each in rope._provenance.remarks) == is_remarked


def test_layers_of_gguf_files():
    """The base of each layer, null where it is not rotated: `src/models` of llama.cpp."""
    for row in ROWS["layers of GGUF files"]:
        ropes = [from_config(row["metadata"], layer=layer) for layer in range(len(row["bases"]))]
        assert [rope and rope.base for rope in ropes] == row["bases"], row
