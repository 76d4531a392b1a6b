"""Random spellings of keys, and what is said of configs, by rules that a person can read."""

import re
import string
from contextlib import nullcontext
from itertools import product

import pytest
from cases import for_each
from hypothesis import given
from hypothesis import strategies as st

from rope_xp import RotaryEmbedding
from rope_xp.configs.families.indexers import note_on_indexer
from rope_xp.configs.keys import SHORTEST, Keys, Spelling, is_about_positions, owned_by, shortened, states_rotation
from rope_xp.layouts import LAYOUTS

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


@for_each("values", [(2, 2, 2), (2, None, 2), (None, None, 3), (None, None, None)])
def test_names_of_one_key_must_agree(values):
    """The value is that of the first name that is not null; another value under any of them is an error."""
    names = ("a", "b", "c")
    given_ = [each for each in values if each is not None]
    keys = Keys("x", dict(zip(names, values)))
    assert keys.read(*names) == keys.read_first(*names) == (given_[0] if given_ else None)
    for name, value in zip(names, values):
        other = Keys("x", {**dict(zip(names, values)), name: 7})
        if value is None or len(given_) > 1:
            with (
                pytest.raises(ValueError, match=re.escape("keys of x must not contradict each other; got {'"))
                if given_
                else nullcontext()
            ):
                assert other.read(*names) == 7


def test_counts_of_configs():
    largest = 2**53 - 1
    keys = Keys("x", {"a": largest, "b": 2**53, "c": None, "d": 3})
    assert (
        keys.read_count("a"),
        keys.read_count("c"),
        keys.read_count("c", 5),
        keys.read_count("d"),
        keys.read_count("e", 0),
    ) == (
        largest,
        None,
        5,
        3,
        0,
    )
    assert keys.defaults == {} and keys.read_count("e", 5) == 5 and [*keys.defaults] == ["e"]
    with pytest.raises(ValueError, match=re.escape("b must be below 2**53; got 9007199254740992")):
        keys.read_count("b")


def test_a_message_is_shorter_than_1000_characters():
    """The name of the function first, and of the file at the end unless it is named; the middle may be left out."""
    for path, end in (("", ""), ("a.json", " (in a.json)"), ("b" * 300, f" (in {'b' * 250})"), ("x", "")):
        for length in range(600, 1100):
            for start in ("", "from_config: "):
                whole, found = f"from_config: {'x' * length}{end}", shortened(ValueError(start + "x" * length), path)
                assert found == (whole if len(whole) < 1000 else f"{whole[:600]} ... {whole[-300:]}")


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


@for_each("layout, other", [*product(LAYOUTS, LAYOUTS)])
@for_each("first", [0, 4])
def test_the_note_on_an_indexer_compares_layouts(layout, other, first):
    attention = RotaryEmbedding(head_dim=8, layout=layout, base=1e4)
    indexer = RotaryEmbedding(head_dim=12, layout=other, base=1e4, rotary_dim=8, first_channel=first)
    same, place = "the same" if layout == other else "another layout than the attention", "last" if first else "first"
    note = f'layout {other} ({same}), the {place} 8 of 12 channels: from_config(config, part="indexer")'
    assert note_on_indexer(attention, indexer) == note
