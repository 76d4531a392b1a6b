"""from_config of other formats: what a person reads in real files, and errors that name the format."""

import re
from contextlib import nullcontext

import numpy as np
import pytest
from cases import for_each
from configs import CONFIGS, ROWS

from rope_xp import Llama3Scaling, from_config
from rope_xp.configs.readers import files
from rope_xp.frequencies import geometric

LLAMA3 = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)


def f32(*numbers):
    return [float(np.float32(number)) for number in numbers]


FILES = {row["name"]: row["keys"] for row in ROWS["files of other formats"]}
FACTORS = {"rope_freqs.weight": f32(*(a / b for a, b in zip(geometric(5e5, 128), LLAMA3.frequencies(5e5, 128))))}
FILES["Llama 3.1 GGUF"] = FILES["Llama GGUF"] | FACTORS
FILES["Gemma 4 GGUF"] = FILES["Gemma 4 GGUF"] | {"rope_freqs.weight": f32(*[1.0] * 64, *[1e30] * 192)}
META31, QWEN = FILES["Llama 3.1"], FILES["Qwen2.5 GGUF"]
GPT, MLX_LLAMA = FILES["GPT of Megatron"], FILES["Llama of MLX"]


FORMATS = {
    "Meta's params.json": META31,
    "Mistral's params.json": FILES["Ministral 3"],
    "metadata of a GGUF file": QWEN,
    "arguments of Megatron-LM": GPT | {"rotary_base": 10000},
    "a config.json of MLX": MLX_LLAMA | {"quantization": {"group_size": 64, "bits": 4}},
}


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


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_of_transformers_is_in_no_other_format(name):
    from rope_xp.configs.readers.formats import format_of

    found = format_of(CONFIGS[name])
    assert (found is None) == (name != "llama-3.2-1b-mlx")
