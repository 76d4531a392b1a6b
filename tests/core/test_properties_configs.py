"""Random spellings of keys, and what is said of configs, by rules that a person can read."""

import re
import string
from contextlib import nullcontext
from itertools import product

import pytest
from cases import for_each
from hypothesis import given
from hypothesis import strategies as st

from rope_xp import RotaryEmbedding, YarnScaling, from_config
from rope_xp.configs import layers as types
from rope_xp.configs.families.indexers import note_on_indexer
from rope_xp.configs.families.model_types import FAMILIES
from rope_xp.configs.keys import SHORTEST, Keys, Spelling, is_about_positions, owned_by, shortened, states_rotation
from rope_xp.layouts import LAYOUTS

SIZES = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2}
letters = st.sampled_from(string.ascii_lowercase)


@given(
    st.text(string.ascii_lowercase, min_size=2, max_size=12),
    st.sets(st.text(string.ascii_lowercase, min_size=2, max_size=8)),
    st.sampled_from([4, SHORTEST]),
    st.data(),
)
def test_a_name_with_one_letter_wrong_stands_for_it(name, others, shortest, data):
    """Left out, added, replaced, or two neighbours exchanged; for short names only signs and case may differ."""
    at, letter = data.draw(st.integers(0, len(name) - 1)), data.draw(letters)
    kind = data.draw(st.sampled_from(["less", "more", "other", "exchanged"]))
    changed = {
        "less": name[:at] + name[at + 1 :],
        "more": name[:at] + letter + name[at:],
        "other": name[:at] + letter + name[at + 1 :],
        "exchanged": name[:at] + name[at : at + 2][::-1] + name[at + 2 :],
    }[kind]
    spelling = Spelling([name, *(other for other in others if abs(len(other) - len(name)) > 3)], shortest)
    marked = f"{name[:at].upper()}-{name[at:]} "
    assert spelling.of(marked) == name and spelling.of(name) is None
    if changed == name or changed in others:
        return
    assert spelling.of(changed) == (name if len(name) >= shortest else None)
    if len(name) >= shortest:
        assert name in spelling.similar([changed])


@given(st.text(string.ascii_lowercase, min_size=SHORTEST, max_size=12), st.integers(0, 9), st.integers(0, 9))
def test_a_name_with_another_digit_is_another_name(name, one, other):
    assert Spelling([f"{name}{one}"]).of(f"{name}{other}") is None
    assert Spelling(["yarn"], 4).of("yran") == "yarn"
    assert Spelling([name]).of(name + "x" * 70) is None and Spelling([name]).of(5) is None
    assert Spelling(["x" * 63]).of("x" * 64) == "x" * 63 and Spelling(["x" * 64]).of("x" * 65) is None


def test_similar_names_of_a_message():
    """One for each of eight keys, and the known name that a misspelt key stands for."""
    names = [f"{letter * 6}_{number}" for letter, number in zip("abcdefghi", "123456789")]
    assert Spelling(names).similar([f"x{name}" for name in names]) == f", similar to {', '.join(names[:8])}"
    assert Spelling(["rope_theta", "rope_thetas"]).similar(["rope_thet"]) == ", similar to rope_theta"
    assert Spelling(["abcdefghij"]).similar(["abcdefghXY"]) == ", similar to abcdefghij"
    assert Spelling(["abcdefghij"]).similar(["abcdefgXYZ", "", 5]) == ""
    for count, words in ((0, ""), (1, "; k is a key of x 0"), (4, "; k is a key of x 0, 1, 2, 3")):
        assert owned_by("k", "x", "01234567"[:count]) == words
    assert owned_by("k", "x", "01234") == "; k is a key of x 0, 1, 2, 3 and 1 more"


OWN_BASES = {
    name: family.default("rope_theta")
    for name, family in FAMILIES.items()
    if name in ("mixtral", "qwen2", "llama", "gemma", "cohere", "mistral", "olmo2", "phi3", "starcoder2")
}


@for_each("model_type", OWN_BASES)
@for_each("stated", [None, 1e4, 2e4])
@for_each("scaled", [False, True])
def test_a_stated_base_that_is_that_of_other_families_is_remarked(model_type, stated, scaled):
    config = {"model_type": model_type, **SIZES, "max_position_embeddings": 4096}
    config |= {} if stated is None else {"rope_theta": stated}
    config |= {"rope_scaling": {"rope_type": "linear", "factor": 2.0}} if scaled else {}
    rope, own = from_config(config), OWN_BASES[model_type]
    assert rope.base == (own if stated is None else stated)
    expected = stated == 1e4 and own not in (None, 1e4) and not scaled
    assert any("the default of most families" in remark for remark in rope._provenance.remarks) == expected


@for_each("name", ["rope_parameters", "rope_scaling"])
@for_each("compat", [None, "transformers"])
@for_each("value", [[1.0], "linear", 5])
def test_a_rotary_block_must_be_a_mapping(name, compat, value):
    with pytest.raises(TypeError, match=re.escape(f"from_config: {name} must be a mapping; got {value!r}")):
        from_config({"model_type": "llama", **SIZES, "rope_theta": 1e4, name: value}, compat=compat)


@for_each("inside", [None, True, False])
@for_each("beside", [None, True, False])
@for_each("rule", ["yarn", "linear", "default"])
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


# A key that must have a value in a family: that value, another one, and what else its config has.
REQUIRED = {
    "bailing_moe_linear": ("linear_rope", True, False, {}),
    "chatglm": ("position_encoding_2d", False, True, {"kv_channels": 64}),
    "phi3small": ("rope_position_scale", 1.0, 2.0, {}),
    "plamo3": ("rope_scaling_factor", 1, 2, {"head_dim": 64}),
    "qwen": ("pos_emb", "rotary", "x", {"kv_channels": 64}),
    "step3p5": ("yarn_only_types", ["full_attention"], ["sliding_attention"], {"head_dim": 64}),
    "grok-1": ("extrapolation_factor", 1.0, 0.5, {}),
    "grok1": ("extrapolation_factor", 1.0, 0.5, {}),
}


@for_each("model_type", REQUIRED)
def test_a_key_that_must_have_a_value_may_state_it(model_type):
    key, wanted, other, more = REQUIRED[model_type]
    config = {"model_type": model_type, **SIZES, **more}
    assert from_config({**config, key: wanted}, layer=0) == from_config(config, layer=0)
    with pytest.raises(
        ValueError, match=re.escape(f"{key} must be {wanted!r} in model_type {model_type!r}; got {other!r}")
    ):
        from_config({**config, key: other}, layer=0)


@for_each("without", [None, 32, 64])
@for_each("rotated", [32, 64])
@for_each("stated", [1.0, 0.5, 1 / 3, 2 / 3])
def test_the_fraction_of_latent_attention_is_that_of_the_whole_head(without, rotated, stated):
    config = {"model_type": "mistral4", **SIZES, "qk_rope_head_dim": rotated, "partial_rotary_factor": stated}
    config |= {} if without is None else {"qk_nope_head_dim": without}
    if stated == rotated / (rotated + (without or rotated)):
        assert from_config(config).head_dim == rotated
        return
    with pytest.raises(ValueError, match="partial_rotary_factor must be "):
        from_config(config)


@for_each("key", ["spatial_rope_base_frequency", "uid_rope_base_frequency"])
def test_bases_of_coordinates_are_at_least_1(key):
    config = {"model_type": "esmfold2_atom_encoder", "head_dim": 128}
    assert from_config(config | {key: 1.0}).axes == 4
    with pytest.raises(ValueError, match=f"{key} must be at least 1; got 0.5"):
        from_config(config | {key: 0.5})


def test_limits_of_layers():
    config = {"model_type": "llama", "head_dim": 64, "rope_theta": 1e4}
    assert from_config(config, layer=16_383) == from_config(config)
    assert from_config(config | {"num_hidden_layers": 16_384}, layer=16_383) == from_config(config)
    assert from_config(config | {"head_dim": 16_384}).head_dim == 16_384
    with pytest.raises(ValueError, match="layer must be below 16384; got 16384"):
        from_config(config, layer=16_384)


@for_each("model_type, width", [("nanochat", 62), ("deepseek_v4", 62), ("llama", 62)])
def test_an_odd_number_of_rotated_channels_is_rounded_up_only_in_a_usual_pairing(model_type, width):
    config = {"model_type": model_type, "head_dim": width, "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    if model_type == "llama":
        assert len(from_config(config).inv_freq) == 16
        return
    with pytest.raises(ValueError, match=r"the number of rotated channels must be even in .*; got 31"):
        from_config(config, **({"layer_type": "main"} if model_type == "deepseek_v4" else {}))


@for_each("inside, beside", [(2048, None), (2048, 4096), (None, 4096)])
def test_the_length_of_dynamic_ntk_is_that_of_its_block(inside, beside):
    block = {"rope_type": "dynamic", "factor": 2.0} | ({} if inside is None else {"max_position_embeddings": inside})
    config = {"model_type": "llama", **SIZES, "rope_theta": 1e4, "rope_scaling": block}
    config |= {} if beside is None else {"max_position_embeddings": beside}
    assert from_config(config, seq_len=9000).scaling.max_position_embeddings == (inside or beside)


@for_each("listed, layer, rotated", [([1], 1, True), ([1], 0, False), ([1], 2, False), ([], 0, False)])
def test_attention_of_bamba_is_in_the_layers_that_are_listed(listed, layer, rotated):
    config = {"model_type": "bamba", **SIZES, "num_hidden_layers": 4, "attn_layer_indices": listed}
    assert (from_config(config, layer=layer) is not None) == rotated
    without = {key: value for key, value in config.items() if key != "attn_layer_indices"}
    assert from_config(without, layer=layer) is None


@for_each("model_type", ["deepseek_v2", "deepseek_v3", "llama"])
@for_each("use_mla", [None, True, False])
def test_deepseek_v2_without_latent_attention_is_another_family(model_type, use_mla):
    config = {"model_type": model_type, **SIZES, "rope_theta": 1e4} | ({} if use_mla is None else {"use_mla": use_mla})
    rope = from_config(config)
    assert rope._provenance.model_type == (
        "deepseek" if model_type == "deepseek_v2" and use_mla is False else model_type
    )


def test_a_misspelt_use_mla_is_named():
    """Without a rotated part of latent attention, the config would else be one of layers that are not rotated."""
    with pytest.raises(ValueError, match=r"use_mla must have this spelling .* got 'USE_MLA'"):
        from_config({"model_type": "deepseek_v2", **SIZES, "qk_rope_head_dim": 0, "USE_MLA": False})


@for_each("values", [(2, 2, 2), (2, None, 2), (None, None, 3), (None, None, None)])
def test_names_of_one_key_must_agree(values):
    """The value is that of the first name that is not null; another value under any of them is an error."""
    names = ("a", "b", "c")
    given_ = [each for each in values if each is not None]
    keys = Keys("x", dict(zip(names, values)))
    assert keys.get(*names) == keys.first(*names) == (given_[0] if given_ else None)
    for name, value in zip(names, values):
        other = Keys("x", {**dict(zip(names, values)), name: 7})
        if value is None or len(given_) > 1:
            with (
                pytest.raises(ValueError, match=re.escape("keys of x must not contradict each other; got {'"))
                if given_
                else nullcontext()
            ):
                assert other.get(*names) == 7


def test_counts_of_configs():
    largest = 2**53 - 1
    keys = Keys("x", {"a": largest, "b": 2**53, "c": None, "d": 3})
    assert (keys.count("a"), keys.count("c"), keys.count("c", 5), keys.count("d"), keys.count("e", 0)) == (
        largest,
        None,
        5,
        3,
        0,
    )
    assert keys.defaults == {} and keys.count("e", 5) == 5 and [*keys.defaults] == ["e"]
    with pytest.raises(ValueError, match=re.escape("b must be below 2**53; got 9007199254740992")):
        keys.count("b")


def test_a_message_is_shorter_than_1000_characters():
    """The name of the function first, and of the file at the end unless it is named; the middle may be left out."""
    for path, end in (("", ""), ("a.json", " (in a.json)"), ("b" * 300, f" (in {'b' * 250})"), ("x", "")):
        for length in range(600, 1100):
            for start in ("", "from_config: "):
                whole, found = f"from_config: {'x' * length}{end}", shortened(ValueError(start + "x" * length), path)
                assert found == (whole if len(whole) < 1000 else f"{whole[:600]} ... {whole[-300:]}")


def test_which_layers_a_choice_stands_for():
    """The type of layers that others differ from, or the number of one; nothing where all layers are alike."""
    bases = {"model_type": "granite_swa", **SIZES, "num_hidden_layers": 3, "layer_rope_theta": [1e4, 1e4, 500.0]}
    gemma, sliding = {"model_type": "gemma3_text", **SIZES}, "sliding_attention"
    for config, options, expected in (
        (bases, {"layer": 0}, "layer 0"),
        (bases, {"layer": 2}, "layer 2"),
        (bases | {"layer_rope_theta": [1e4] * 3}, {"layer": 2}, ""),
        (gemma, {"layer": 0}, sliding),
        (gemma, {"layer_type": sliding}, sliding),
        ({"model_type": "llama", **SIZES}, {"layer": 1}, ""),
        ({"model_type": "llama", **SIZES}, {"layer_type": "full_attention"}, ""),
        ({"model_type": "llama", **SIZES}, {}, ""),
    ):
        assert from_config(config, **options)._provenance.layer_type == expected, (config, options)


# Keys outside the rotary block: whether they are about positions, and whether they state a rotation.
KEYS = {
    "rope_theta": (1e4, True, True), "Rotary_Dim": (4, True, True), "partialrotary": (None, True, True),
    "theta": (1, True, True), "yarn": ({}, True, True), "use_dynamic_ntk": (False, True, True), "ntk": (1, True, True),
    "syntk": (1, False, False), "original_max_position_embeddings": (1, True, True), "alibi": (True, True, False),
    "no_pos_emb": (True, True, False), "nope_layers": ([0], True, False), "qk_nope_head_dim": (4, False, False),
    "dual_chunk_attention_config": ({}, True, False), "position_embedding_type": ("absolute", True, False),
    "pos_emb": ("Rotary_2d", False, True), "position_encoding": ("rope", False, True), "posenc": (1, True, False),
    "max_position_embeddings": (4096, False, False), "hidden_size": (64, False, False),
    "a": ({"rope_type": 1}, True, False), "b": ({"type": 1, "factor": 2, "c": 3}, True, False),
    "c": ({"type": 1}, False, False), "d": ({"factor": 1}, False, False), "e": ("rope_type", False, False),
}  # fmt: skip


@for_each("key", KEYS)
def test_which_keys_are_about_positions(key):
    value, about, rotation = KEYS[key]
    assert (is_about_positions(key, value), states_rotation(key, value)) == (about, rotation)
    assert (
        is_about_positions(key, None)
        == is_about_positions(key, False if "alibi" in key else None)
        == (about and rotation)
    )


@for_each("place", ["outside", "inside", "both"])
def test_transformers_ignores_the_fraction_where_no_class_reads_it(place):
    block = {"rope_type": "default", "rope_theta": 1e4}
    config = {"model_type": "llama", **SIZES, "rope_parameters": block}
    config |= {} if place == "inside" else {"partial_rotary_factor": 0.5}
    block |= {} if place == "outside" else {"partial_rotary_factor": 0.5}
    corrected, upstream = from_config(config), from_config(config, compat="transformers")
    assert (corrected.rotary_dim, upstream.rotary_dim) == (32, 64)
    assert any("transformers" in each for each in corrected._provenance.remarks) and not upstream._provenance.remarks
    block |= {"rope_type": "linear", "factor": 2.0}
    with pytest.raises(ValueError, match=r"compat must be None for partial_rotary_factor=0\.5 and rope_type 'linear'"):
        from_config(config, compat="transformers")


@for_each("types", [None, ["sliding_attention"] * 5])
@for_each("count", [None, 5])
def test_the_last_layer_of_gemma_4_has_full_attention(types, count):
    config = {"model_type": "gemma4_text", "hidden_size": 512, "num_attention_heads": 8, "head_dim": 64}
    config |= {key: value for key, value in (("layer_types", types), ("num_hidden_layers", count)) if value is not None}
    sliding, full = (from_config(config, layer_type=kind) for kind in ("sliding_attention", "full_attention"))
    assert sliding != full and from_config(config, layer=3) == sliding
    assert from_config(config, layer=4) == (sliding if types is None and count is None else full)


# The types of layers by a rule and the keys of a config: full, sliding, indexed, linear or no attention, conv, mamba.
PREFIX = {"first_k_dense_replace": 2}
LAST = types.every(4, "pattern", last=True)
TYPES = [
    (types.every(3), {}, "ssfssfs"),
    (types.every(3, first=True), {}, "fssfssf"),
    (types.every(3, first=True, other="linear_attention"), {}, "fllfllf"),
    (LAST, {"num_hidden_layers": 6}, "sssfsf"),
    (LAST, {"num_hidden_layers": 6}, "sssfs"),
    (LAST, {"num_hidden_layers": 6}, ""),
    (LAST, {"pattern": 2}, "sfsfs"),
    (LAST, {"pattern": 0, "num_hidden_layers": 3}, "ssf"),
    (LAST, {"pattern": "LLG", "num_hidden_layers": 4}, "ssfs"),
    (LAST, {"pattern": "L"}, "ss"),
    (LAST, {"pattern": "G"}, "ff"),
    (types.listed_at("own", "conv", otherwise=True), {"own": [0, 2, True]}, "fcfc"),
    (types.listed_at("own", "conv", otherwise=True), {}, "ff"),
    (types.listed_at("own", "conv", otherwise=False), {}, "cc"),
    (types.marked("own", "linear_attention"), {"own": [1, 0, 0]}, "fll"),
    (types.marked("own", "linear_attention"), {}, "fff"),
    (types.nemotron_nas, {"block_configs": [{"attention": {"no_op": each}} for each in (True, False, None)]}, "nff"),
    (types.nemotron_nas, {"block_configs": [{"attention": {"replace_with_linear": True}}, {}]}, "nf"),
    (types.plamo2, {}, "mfmfm"),
    (types.plamo2, {"mamba_step": 4}, "mmfmmmf"),
    (types.plamo2, {"mamba_step": 4}, "mf"),
    (types.plamo2, {"mamba_step": 4}, "mmf"),
    (types.plamo2, {"mamba_step": 0}, "ff"),
    (types.plamo2, {"mamba_enabled": False}, "fff"),
    (types.cycle("conv", "full_attention"), {}, "cfc"),
    (types.cycle("conv", key="own"), {"own": ["mamba", "conv", "conv"]}, "mccm"),
    (types.cohere2_moe, {}, "sssfs"),
    (types.cohere2_moe, PREFIX, "ffsssfs"),
    (types.cohere2_moe, {**PREFIX, "prefix_dense_sliding_window_pattern": 2, "sliding_window_pattern": 3}, "sfssfs"),
    (types.cohere2_moe, {"first_k_dense_replace": 9}, "ff"),
    (types.dots3_note, {}, "iisssisssi"),
    (types.dots3_note, {"use_dsa": False}, "ffsssf"),
    (types.dots3_note, {"use_sliding_window": False}, "iiiii"),
    (types.flint, {"num_hidden_layers": 12}, "ffsssfsssfsf"),
    (types.flint, {"num_hidden_layers": 12}, "ffsssfsss"),
    (types.lfm3, {}, "ccfcscfc"),
    (types.lfm3, {}, ""),
    (types.lfm3_vl, {}, "ccfcfc"),
    (types.mimo, {}, "fssssfsssssfs"),
    (types.mimo, {"hybrid_layer_pattern": [1, 0, 1]}, "sfs"),
    (types.ultrabert, {}, "ssfssf"),
    (types.ultrabert, {"attention_windows": [4, 0, 0]}, "sff"),
]


@for_each("rule, config, expected", TYPES)
def test_types_of_layers_follow_rules(rule, config, expected):
    assert "".join(each[0] for each in rule(Keys("x", config), len(expected))) == expected


@for_each("dense_prefix", [False, True])
def test_layers_that_are_rotated_although_they_have_full_attention(dense_prefix):
    """A key may be null for that, or the layer be dense, if the dense layers have no pattern of their own."""
    rotated = types.sliding_only(unless_null="window", dense_prefix=dense_prefix)
    full, keys = "full_attention", {"first_k_dense_replace": 1, "mlp_layer_types": ["sparse", "sparse", "dense"]}
    assert rotated(Keys("x", {}), 0, "sliding_attention") and not rotated(Keys("x", {}), 0, full)
    assert rotated(Keys("x", {"window": None}), 0, full) and not rotated(Keys("x", {"window": 4}), 0, full)
    for pattern, layers in ((None, [0, 2]), (1, [0, 2]), (2, [])):
        config = {**keys, "prefix_dense_sliding_window_pattern": pattern}
        found = [layer for layer in (None, 0, 1, 2, 3) if rotated(Keys("x", config), layer, full)]
        assert found == (layers if dense_prefix else [])


def test_layers_of_lfm2_have_attention_unless_a_list_leaves_them_out():
    config = {"model_type": "lfm2", **SIZES, "num_hidden_layers": 3}
    for keys, rotated in (({}, [0, 1, 2]), ({"full_attn_idxs": [1]}, [1])):
        assert [n for n in range(3) if from_config(config | keys, layer=n) is not None] == rotated


@for_each("layout, other", [*product(LAYOUTS, LAYOUTS)])
@for_each("first", [0, 4])
def test_the_note_on_an_indexer_compares_layouts(layout, other, first):
    attention = RotaryEmbedding(head_dim=8, layout=layout, base=1e4)
    indexer = RotaryEmbedding(head_dim=12, layout=other, base=1e4, rotary_dim=8, first_channel=first)
    same, place = "the same" if layout == other else "another layout than the attention", "last" if first else "first"
    note = f'layout {other} ({same}), the {place} 8 of 12 channels: from_config(config, part="indexer")'
    assert note_on_indexer(attention, indexer) == note
