"""Random spellings of keys, and what is said of configs, by rules that a person can read."""

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rope_xp import YarnScaling, from_config
from rope_xp.configs.families.model_types import FAMILIES
from rope_xp.configs.keys import SHORTEST, Spelling

SIZES = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2}
letters = st.sampled_from(string.ascii_lowercase)


@given(
    st.text(string.ascii_lowercase, min_size=2, max_size=12),
    st.sets(st.text(string.ascii_lowercase, min_size=2, max_size=8)),
    st.data(),
)
def test_a_name_with_one_letter_wrong_stands_for_it(name, others, data):
    """Left out, added, replaced, or two neighbours exchanged; for short names only signs and case may differ."""
    at, letter = data.draw(st.integers(0, len(name) - 1)), data.draw(letters)
    kind = data.draw(st.sampled_from(["less", "more", "other", "exchanged"]))
    changed = {
        "less": name[:at] + name[at + 1 :],
        "more": name[:at] + letter + name[at:],
        "other": name[:at] + letter + name[at + 1 :],
        "exchanged": name[:at] + name[at : at + 2][::-1] + name[at + 2 :],
    }[kind]
    spelling = Spelling([name, *(other for other in others if abs(len(other) - len(name)) > 3)])
    marked = f"{name[:at].upper()}-{name[at:]} "
    assert spelling.of(marked) == name and spelling.of(name) is None
    if changed == name or changed in others:
        return
    assert spelling.of(changed) == (name if len(name) >= SHORTEST else None)
    if len(name) >= SHORTEST:
        assert name in spelling.similar([changed])


@given(st.text(string.ascii_lowercase, min_size=SHORTEST, max_size=12), st.integers(0, 9), st.integers(0, 9))
def test_a_name_with_another_digit_is_another_name(name, one, other):
    assert Spelling([f"{name}{one}"]).of(f"{name}{other}") is None
    assert Spelling([name]).of(name + "x" * 70) is None and Spelling([name]).of(5) is None


OWN_BASES = {
    name: family.default("rope_theta")
    for name, family in FAMILIES.items()
    if name in ("mixtral", "qwen2", "llama", "gemma", "cohere", "mistral", "olmo2", "phi3", "starcoder2")
}


@pytest.mark.parametrize("model_type", OWN_BASES)
@pytest.mark.parametrize("stated", [None, 1e4, 2e4])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_stated_base_that_is_that_of_other_families_is_remarked(model_type, stated, scaled):
    config = {"model_type": model_type, **SIZES, "max_position_embeddings": 4096}
    config |= {} if stated is None else {"rope_theta": stated}
    config |= {"rope_scaling": {"rope_type": "linear", "factor": 2.0}} if scaled else {}
    rope, own = from_config(config), OWN_BASES[model_type]
    assert rope.base == (own if stated is None else stated)
    expected = stated == 1e4 and own not in (None, 1e4) and not scaled
    assert any("the default of most families" in remark for remark in rope._provenance.remarks) == expected


@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("compat", [None, "transformers"])
@pytest.mark.parametrize("value", [[1.0], "linear", 5])
def test_a_rotary_block_must_be_a_mapping(name, compat, value):
    with pytest.raises(TypeError, match=re.escape(f"from_config: {name} must be a mapping; got {value!r}")):
        from_config({"model_type": "llama", **SIZES, "rope_theta": 1e4, name: value}, compat=compat)


@pytest.mark.parametrize("inside", [None, True, False])
@pytest.mark.parametrize("beside", [None, True, False])
@pytest.mark.parametrize("rule", ["yarn", "linear", "default"])
def test_transformers_reads_truncate_beside_nested_blocks(inside, beside, rule):
    """Upstream ignores the one inside; YaRN's default is true."""
    block = {"rope_type": rule, "rope_theta": 1e4}
    block |= {} if rule == "default" else {"factor": 4.0}
    block |= {"original_max_position_embeddings": 1024} if rule == "yarn" else {}
    block |= {} if inside is None or rule != "yarn" else {"truncate": inside}
    parameters = {"full_attention": block, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    parameters |= {} if beside is None else {"truncate": beside}
    config = {"model_type": "gemma3_text", **SIZES, "head_dim": 64, "rope_parameters": parameters}
    config |= {"layer_types": ["full_attention", "sliding_attention"], "max_position_embeddings": 4096}
    try:
        rope = from_config(config, layer=0, compat="transformers")
    except ValueError as error:
        assert beside is not None and "truncate" in str(error)
        return
    if rule == "yarn":
        assert isinstance(rope.scaling, YarnScaling) and rope.scaling.truncate == (True if beside is None else beside)
