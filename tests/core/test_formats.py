"""from_config: limits of JSON and of mappings, and which configs are in no other format."""

from contextlib import nullcontext

import pytest
from configs import CONFIGS

from rope_xp import from_config
from rope_xp.configs.readers import files


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
