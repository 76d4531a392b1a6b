"""`extend`: sound parameters for each rule, never scaled twice, and the report of the rules to choose from."""

import json
from dataclasses import replace
from itertools import product

import engines
import numpy as np
import pytest

from rope_xp import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    RotaryEmbedding,
    Sections,
    XPos,
    YarnScaling,
    from_config,
)
from rope_xp.spectrum import lengths_of

TRAINED, TO = 4096, 32_768
LISTS = {"short_factor": [1.0] * 32, "long_factor": [1.0 + j for j in range(32)]}
# What each rule makes of 4,096 trained tokens for 32,768.
RULES = {
    "linear": LinearScaling(factor=8.0),
    "ntk": NTKScaling(factor=8.0),
    "dynamic": DynamicNTKScaling(factor=8.0, max_position_embeddings=TRAINED, seq_len=TO),
    "yarn": YarnScaling(factor=8.0, original_max_position_embeddings=TRAINED, beta_fast=32.0, beta_slow=1.0),
    "llama3": Llama3Scaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=TRAINED
    ),
    "longrope": LongRopeScaling(**LISTS, factor=8.0, original_max_position_embeddings=TRAINED, seq_len=TO),
}
PLAIN = RotaryEmbedding(head_dim=64, layout="half", base=10_000.0)
KINDS = [
    PLAIN,
    PLAIN.replace(layout="interleaved_to_half", head_dim=96, rotary_dim=64, first_channel=16),
    PLAIN.replace(sections=Sections((8, 12, 12)), reverse=True),
    PLAIN.replace(xpos=XPos(centre=9), phase="float32", kernel="reference"),
    PLAIN.replace(blocks=4),
]


def extended(rope, rule, **options):
    return rope.extend(TO, rule, **{"trained_length": TRAINED, **(LISTS if rule == "longrope" else {}), **options})


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("rope", KINDS, ids=repr)
def test_each_rule_changes_the_scaling_alone(rope, rule):
    found = extended(rope, rule)
    assert found == rope.replace(scaling=RULES[rule])
    assert lengths_of(found) == (TRAINED, TO)
    assert f"extended by {rule}, from 4,096 to 32,768 tokens" in " ".join(found.describe().split())


@pytest.mark.parametrize("stated", [TRAINED, 4 * TRAINED])
@pytest.mark.parametrize("rule", ["linear", "ntk", "dynamic", "yarn", "llama3", "longrope"])
def test_vllm_accepts_the_new_length_and_no_longer_one(rule, stated):
    """Whatever the config states. The attention factor of LongRoPE follows from `max_position_embeddings` in vLLM."""
    rope = extended(PLAIN, rule)
    flags = rope.to_config("vllm", context=TO)
    # With dynamic NTK, frequencies follow from the length that the config states, so that it must be the new one. vLLM
    # multiplies it by the factor, and its flag is what limits it.
    accepted = TO * rope.scaling.factor if rule == "dynamic" else TO
    assert flags[:2] == ["--max-model-len", str(TO)] and engines.vllm_length(flags, stated) == accepted
    longer = json.loads(flags[-1])["max_position_embeddings"] / TRAINED
    if rule == "longrope":
        assert rope.attention_factor == pytest.approx(np.sqrt(1 + np.log(longer) / np.log(TRAINED)))


@pytest.mark.parametrize("to, is_scaled", [(TRAINED, False), (TRAINED + 1, True), (TO, True)])
def test_engines_are_named_that_compute_dynamic_ntk_for_a_length(to, is_scaled):
    """Up to the trained length, nothing is scaled. vLLM, SGLang and llama.cpp do not follow the length beyond it."""
    rule = DynamicNTKScaling(factor=4.0, max_position_embeddings=TRAINED, seq_len=TO)
    with pytest.raises(ValueError, match=f"--session-len {to}") as error:
        PLAIN.replace(scaling=rule).extend(to)
    for words in (f"vLLM --max-model-len {to}", f"SGLang --context-length {to}", f"llama.cpp -c {to}"):
        assert (words in str(error.value)) != is_scaled


@pytest.mark.parametrize("factor, to", [(1.0, 8192), (2.0, 20_000)])
def test_a_length_that_the_config_does_not_state_must_be_set(factor, to):
    """The engines refuse it, or read it as the end of the text: what flags say about it shows that."""
    config = {"model_type": "llama", "head_dim": 128, "max_position_embeddings": TRAINED}
    config |= {"rope_scaling": {"rope_type": "linear", "factor": factor}} if factor > 1 else {}
    with pytest.raises(ValueError, match=f"set max_position_embeddings, now {TRAINED}, to it"):
        from_config(config).extend(to, trained_length=4 * TRAINED)
    for flags in (f"vllm serve m --max-model-len {to}", f"sglang --context-length {to}", f"llama-server -c {to}"):
        assert from_config(config, flags=flags)._provenance.remarks


@pytest.mark.parametrize("before, after", list(product(RULES, RULES)))
def test_nothing_is_scaled_twice(before, after):
    """From the base and the trained length before the first extension, which the first result knows."""
    first = PLAIN.extend(2 * TRAINED, before, trained_length=TRAINED, **(LISTS if before == "longrope" else {}))
    second = first.extend(8 * TRAINED, after, **(LISTS if after == "longrope" else {}))
    assert second == extended(PLAIN, after) and lengths_of(second) == (TRAINED, TO)
    text = second._provenance.extended
    assert text.startswith(f"by {after}, from 4,096 to 32,768 tokens. Its scaling was removed first: ")
    assert first.scaling.describe() in text
    words = {"dynamic": "The rule dynamic dep", "longrope": "The rule longrope dep", "ntk": "8 of 32 pairs get angles"}
    assert [each.startswith(words.get(after, "none")) for each in second.explain().warnings] == [True] * (
        after in words
    )


WINDOWS = {"model_type": "mistral", "head_dim": 64, "max_position_embeddings": TRAINED, "sliding_window": TRAINED}
NEW, MATCH = "pairs get angles that training did not show; a greater factor", "The factor does not match the lengths: "


@pytest.mark.parametrize(
    "rule, factor, words",
    [
        ("ntk", 8.0, [f"8 of 32 {NEW}"]),
        ("ntk", 8.1, [f"8 of 32 {NEW}"]),
        ("ntk", 30.0, []),
        ("linear", 7.5, [f"9 of 32 {NEW}"]),
        ("linear", 8.0, []),
        ("linear", 9.0, []),
        (
            "yarn",
            7.5,
            [f"{MATCH}factor 7.5 times original length 4,096 is 30,720, but the extended", f"9 of 32 {NEW}"],
        ),
        ("yarn", 8.0, []),
        ("yarn", 9.0, [f"{MATCH}factor 9 times original length 4,096 is 36,864, but the extended length is 32,768."]),
    ],
)
def test_a_factor_that_does_not_fit_the_lengths_has_a_warning(rule, factor, words):
    """Of angles, where there are new ones: not where layers have a window, or where all pairs complete a turn."""
    found = PLAIN.extend(TO, rule, trained_length=TRAINED, factor=factor).explain(TO).warnings
    assert len(found) == len(words) and all(map(str.startswith, found, words))
    for rope, trained in ((from_config(WINDOWS), TRAINED), (PLAIN, 2**20)):
        found = rope.extend(8 * trained, rule, trained_length=trained, factor=factor).explain().warnings
        assert len(found) == (rule == "yarn" and factor != 8.0)


# A config that states a length that its factor does not give.
LINEAR = {"model_type": "llama", "head_dim": 64, "rope_theta": 1e4, "max_position_embeddings": 2 * TRAINED}
LINEAR |= {"rope_scaling": {"type": "linear", "factor": 8.0}}


@pytest.mark.parametrize("rule, rope", [("linear", from_config(LINEAR)), ("ntk", PLAIN.replace(scaling=RULES["ntk"]))])
def test_a_scaling_that_stays_is_not_replaced(rule, rope):
    texts = []
    for before, to in ((rope, TO), (rope, 2 * TO), (extended(PLAIN, rule), 2 * TO)):
        found = before.extend(to, rule, trained_length=TRAINED if before is rope else 2 * TRAINED)
        assert (found == before) == (to == TO or before is not rope)
        texts.append(" ".join(str(found.explain(to)).split()))
    found = {
        words: [words in text for text in texts] for words in ("added by extend", "stays the same", "not seen the")
    }
    assert found == {
        "added by extend": [False, True, True],
        "stays the same": [True, False, False],
        "not seen the": [False, True, False],
    }


def test_short_texts_change_in_their_scores_alone():
    """YaRN may keep the frequency of each pair, and multiplies scores all the same."""
    found = PLAIN.extend(2**23, trained_length=2**21)
    assert found.recommendation.changed == 0 and found.recommendation.score_factor > 1.0
    assert f"short texts  scores are multiplied by {found.recommendation.score_factor:.3g}" in str(found)
    lengths = {"original_max_position_embeddings": TRAINED, "short_mscale": 1.1, "long_mscale": 1.5}
    longrope = LongRopeScaling(short_factor=[1.0] * 32, long_factor=[2.0] * 32, **lengths)
    factors = [
        PLAIN.replace(scaling=replace(longrope, seq_len=length)).extend(TO).recommendation.score_factor
        for length in (None, TO // 2)
    ]
    assert factors[0] == factors[1] == pytest.approx((RULES["yarn"].resolved_attention_factor / 1.1) ** 2)
