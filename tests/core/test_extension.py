"""`extend`: sound parameters for each rule, never scaled twice, and the report of the rules to choose from."""

import json
import warnings
from dataclasses import replace
from functools import partial
from itertools import product

import engines
import numpy as np
import pytest
from configs import CONFIGS
from errors import assert_all_raise, raising
from samples import embedding

from rope_xp import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    ProportionalScaling,
    RotaryEmbedding,
    Sections,
    XPos,
    YarnScaling,
    from_config,
)
from rope_xp.configs.writers import with_length
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
    flags = with_length("vllm", rope.to_config("vllm"), TO)
    # With dynamic NTK, frequencies follow from the length that the config states, so that it must be the new one. vLLM
    # multiplies it by the factor, and its flag is what limits it.
    accepted = TO * rope.scaling.factor if rule == "dynamic" else TO
    assert flags[:2] == ["--max-model-len", str(TO)] and engines.vllm_length(flags, stated) == accepted
    longer = json.loads(flags[-1])["max_position_embeddings"] / TRAINED
    if rule == "longrope":
        assert rope.attention_factor == pytest.approx(np.sqrt(1 + np.log(longer) / np.log(TRAINED)))


@pytest.mark.parametrize("before, after", list(product(RULES, RULES)))
def test_nothing_is_scaled_twice(before, after):
    """From the base and the trained length before the first extension, which the first result knows."""
    first = PLAIN.extend(2 * TRAINED, before, trained_length=TRAINED, **(LISTS if before == "longrope" else {}))
    second = first.extend(8 * TRAINED, after, **(LISTS if after == "longrope" else {}))
    assert second == extended(PLAIN, after) and lengths_of(second) == (TRAINED, TO)
    text = second._provenance.extended
    assert text.startswith(f"by {after}, from 4,096 to 32,768 tokens. Its scaling was removed first: ")
    assert first.scaling.describe() in text
    assert bool(second.explain().warnings) == (after in ("dynamic", "longrope"))  # those of cached keys


def test_lengths_and_defaults_of_a_config_are_kept():
    llama = {"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "max_position_embeddings": TRAINED}
    rope = from_config(llama).extend(TO, "yarn")
    assert rope.scaling == RULES["yarn"] and "rope_theta, default of llama" in " ".join(rope.describe().split())
    scaling = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 2.0, "high_freq_factor": 6.0}
    scaled = {**llama, "rope_scaling": {**scaling, "original_max_position_embeddings": 1024}}
    rope = from_config(scaled).extend(TO, "llama3")
    assert rope.scaling == Llama3Scaling(
        factor=32.0, low_freq_factor=2.0, high_freq_factor=6.0, original_max_position_embeddings=1024
    )
    assert (
        from_config({**llama, "rope_scaling": {"type": "dynamic", "factor": 2.0}}).extend(TO, "ntk").scaling
        == (RULES["ntk"])
    )


# Published configs: the length that each has, the shortest that is new, and whether a scaling is replaced with which
# the model may have been trained. Dynamic NTK scales nothing at lengths of training.
HAVE = {
    "llama-2-7b": (4096, False),
    "llama-3.1-8b": (131_072, True),  # 8,192 before scaling; its factor times that is 65,536
    "llama-3.2-1b": (131_072, True),
    "deepseek-v3": (163_840, True),
    "gpt-oss-20b": (131_072, True),
    "phi-3.5-mini-instruct": (131_072, True),
    "qwen2.5-7b-instruct-yarn": (131_072, True),  # the config states 32,768, and a factor of 4
    "qwen3-8b-yarn": (131_072, True),  # the config states 40,960
    "internlm2-7b": (32_768, False),
    "qwen2-vl-7b-instruct": (32_768, False),
}


@pytest.mark.parametrize("name", HAVE)
def test_a_length_that_the_model_has_is_refused(name):
    """Whatever the rule: it would shrink the context, or replace frequencies that fit."""
    rope, (length, replaces) = from_config(CONFIGS[name]), HAVE[name]
    for to, rule in product((length, length // 2, 1), (None, "yarn", "linear")):
        with pytest.raises(
            ValueError, match=rf"extend: to must be greater than the .*length.*, {length}, .*; got {to}$"
        ):
            rope.extend(to, rule)
    found, choices = rope.extend(2 * length, "yarn"), rope.extend(2 * length)
    assert found.explain().context == choices.to == 2 * length
    text = "The model may have been trained with the scaling that extend replaces"
    assert [text in each for each in (*choices.warnings, *found.explain().warnings)] == [True, True] * replaces
    reports = [" ".join(str(each).split()) for each in (choices, found.explain())]
    assert [text in report[:350] for report in reports] == [replaces, replaces]
    assert (text in " ".join(found.describe().split())) == replaces
    assert ("tokens, the trained length before scaling." in reports[0]) == replaces


def test_a_scaling_that_extend_added_may_be_replaced():
    first = from_config(CONFIGS["llama-2-7b"]).extend(8192, "yarn")
    assert first.extend(16_384, "linear").explain().warnings == first.extend(16_384).warnings == ()
    with pytest.raises(ValueError, match=r"the length with the present scaling, 8192, .*; got 8192"):
        first.extend(8192, "linear")


YARN = replace(RULES["yarn"], factor=2.0)
SAME_RULE = [
    ({"beta_fast": 4.0, "beta_slow": 2.0, "truncate": False},) * 2,
    ({"mscale": 1.0, "mscale_all_dim": 0.5},) * 2,
    ({"attention_factor": 1.0},) * 2,
    ({"attention_factor": 1.25}, {}),
]


@pytest.mark.parametrize("present, kept", SAME_RULE)
def test_the_same_rule_keeps_the_parameters_that_hold_for_every_factor(present, kept):
    rope = PLAIN.replace(scaling=replace(YARN, **present))
    assert extended(rope, "yarn").scaling == replace(RULES["yarn"], **kept)
    assert extended(rope, "yarn", beta_fast=16, factor=9.0).scaling == replace(
        RULES["yarn"], **{**kept, "beta_fast": 16, "factor": 9.0}
    )


def test_the_scale_of_the_softmax_stays_with_its_rule():
    rope = PLAIN.replace(scaling=replace(YARN, mscale=1.0, mscale_all_dim=1.0))
    choices = rope.extend(TO, trained_length=TRAINED)
    scales = {each.rule: each.rope.softmax_scale for each in choices.choices if each.rope}
    assert scales.pop("yarn") == pytest.approx((0.1 * np.log(8) + 1) ** 2) and set(scales.values()) == {1.0}
    assert "multiplies its softmax scale by 1.14343, " in choices.notes[1]
    assert (
        choices.warnings[0].startswith("The model may have been trained with the scaling")
        and "Only yarn keeps" in choices.notes[1]
    )


def test_proportional_scaling_keeps_the_pairs_that_are_not_rotated():
    rope = PLAIN.replace(scaling=ProportionalScaling(partial_rotary_factor=0.25, factor=2.0))
    found = extended(rope, "linear")
    assert found.scaling == ProportionalScaling(partial_rotary_factor=0.25, factor=8.0)
    choices = rope.extend(TO, trained_length=TRAINED)
    assert choices.pairs == 8 and [each.rule for each in choices.choices if each.rope] == ["linear"]
    assert all('must be "linear"' in each.refusal for each in choices.choices if not each.rope)


@pytest.mark.parametrize("rope", [PLAIN, KINDS[2], PLAIN.replace(base=500_000.0, scaling=YARN)], ids=repr)
def test_choices_count_the_pairs_of_this_value(rope):
    choices = rope.extend(TO, trained_length=TRAINED)
    before = np.abs(np.asarray(rope.replace(scaling=None).inv_freq)).reshape(-1, 32).sum(axis=0)
    incomplete = before * TRAINED < 2 * np.pi
    assert (choices.trained, choices.to, choices.factor) == (TRAINED, TO, 8.0)
    assert (choices.pairs, choices.incomplete) == (32, incomplete.sum()) and 0 < incomplete.sum() < 32
    assert [each.rule for each in choices.choices] == list(RULES)
    without_lists = [each for each in choices.choices if each.rule != "longrope"]
    for each in without_lists:
        assert each.rope == extended(rope.replace(scaling=None), each.rule) and not each.refusal
        after = np.abs(np.asarray(each.rope.inv_freq)).reshape(-1, 32).sum(axis=0)
        divisors = before / after
        kept, full = np.isclose(divisors, 1.0, rtol=1e-9), divisors >= 8.0 - 1e-9
        assert (each.kept, each.blended, each.interpolated) == (kept.sum(), 32 - kept.sum() - full.sum(), full.sum())
        explained = [band.treatment for band in each.rope.explain().bands for _ in band.pairs]
        for treatment in ("kept", "blended", "interpolated"):
            assert explained.count(treatment) == getattr(each, treatment), (each.rule, treatment)
        assert (each.least_divisor, each.greatest_divisor) == pytest.approx((divisors.min(), divisors.max()))
        assert each.new_angles == (incomplete & (after * TO > before * TRAINED * (1 + 1e-9))).sum()
        assert each.attention_factor == each.rope.attention_factor
    of_rule = {each.rule: each for each in choices.choices}
    assert of_rule["ntk"].new_angles > 0 == of_rule["linear"].new_angles
    assert (of_rule["linear"].kept, of_rule["linear"].interpolated) == (0, 32)
    assert of_rule["yarn"].attention_factor == pytest.approx(0.1 * np.log(8) + 1)
    assert of_rule["longrope"].rope is None and "must be given" in of_rule["longrope"].refusal
    assert bool(choices.warnings) == (rope.scaling is not None)


def test_choices_are_text_markdown_and_a_dict():
    choices = PLAIN.replace(base=5e6).extend(131_072 * 8, trained_length=131_072)
    assert max(map(len, str(choices).splitlines())) <= 80
    of_yarn = choices.choices[3]
    row = ["yarn", of_yarn.kept, of_yarn.blended, of_yarn.interpolated, "1 to 8", of_yarn.new_angles, "1.20794"]
    assert f"| {' | '.join(map(str, row))} |" in choices.to_markdown() == choices._repr_markdown_()
    found = json.loads(json.dumps(choices.to_dict()))
    assert (found["trained"], found["to"], found["factor"]) == (131_072, 1_048_576, 8.0)
    assert found["choices"][3]["rope"] == repr(of_yarn.rope) and found["choices"][5]["rope"] is None
    assert found["recommendation"]["rule"] == "yarn" and found["recommendation"]["engines"] == []
    assert all(each.sources for each in choices.choices)


# The rule that is recommended, the pairs that it changes at short lengths, and how many times scores grow.
RECOMMENDED = {
    "llama-2-7b": ("yarn", 43, (0.1 * np.log(64) + 1) ** 2),
    "llama-3.1-8b": ("llama3", 35, 1.0),
    "gemma-3-12b-it": ("linear", 128, 1.0),
    "internlm2-7b": ("dynamic", 0, 1.0),
    "phi-3.5-mini-instruct": ("yarn", 47, (0.1 * np.log(64) + 1) ** 2 / (1 + np.log(32) / np.log(4096))),
}


@pytest.mark.parametrize("name", RECOMMENDED)
def test_a_recommendation_of_six_lines_comes_first(name):
    gemma = {"layer_type": "full_attention"} if "gemma" in name else {}
    rope = from_config(CONFIGS[name], **gemma)
    trained = lengths_of(rope).trained or 32_768
    choices = rope.extend(64 * trained, trained_length=trained)
    found, text = choices.recommendation, str(choices)
    assert found[:3] == (RECOMMENDED[name][0], RECOMMENDED[name][1], pytest.approx(RECOMMENDED[name][2]))
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("Recommendation from "))
    assert start == (0 if not choices.warnings else lines.index("") + 1)
    names = [line[:13].strip() for line in lines[start + 1 : start + 8]]
    assert names == ["rule", "short texts", "fine-tuning", "engines", "quality", "next", ""]
    assert ("no cost: up to" in text) == (found.changed == 0)
    assert ("scores are multiplied by" in text) == (found.score_factor != 1.0)
    program = min(found.engines, key="vllm".__ne__)
    assert f"rope-xp: add --rule {found.rule} --for {program} to print settings\n" in text
    # The engines are those that get settings without an error and without a doubt.
    extended = next(each.rope for each in choices.choices if each.rule == found.rule)
    assert found.engines == tuple(target for target in ENGINES if writes(extended, target)) and found.engines
    assert f"for {found.model_type}: {', '.join(found.engines)}" in " ".join(text.split())


ENGINES = ("transformers", "vllm", "llama.cpp", "mlx", "sglang", "lmdeploy")


def writes(rope, target):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            return bool(rope.to_config(target)) and not caught
        except ValueError:
            return False


def test_a_recommendation_without_a_config_or_without_yarn():
    unknown = PLAIN.extend(TO, trained_length=TRAINED)
    assert unknown.recommendation.rule == "yarn" and "no config names the model type" in str(unknown)
    proportional = PLAIN.replace(scaling=ProportionalScaling(partial_rotary_factor=0.25))
    assert proportional.extend(TO, trained_length=TRAINED).recommendation.rule == "linear"
    no_engine = from_config(CONFIGS["gpt-oss-20b"]).replace(reverse=True)
    assert "for gpt_oss: none whose source was read" in str(no_engine.extend(2**20))


def test_bad_extensions():
    learned = embedding(base=None, inv_freq=(1.0, 0.5))
    by_hand, proportional = (
        partial(PLAIN.extend, trained_length=TRAINED),
        ProportionalScaling(partial_rotary_factor=0.5),
    )
    values = [
        (lambda: PLAIN.extend(TO), r"^RotaryEmbedding.extend: trained_length must be given, .*; got None"),
        (lambda: PLAIN.extend(TO, trained_length=0), r"trained_length must be at least 1 .*; got 0"),
        (lambda: by_hand(TRAINED), r"to must be greater than the trained length, 4096, .*need no change; got 4096"),
        (lambda: by_hand(2**53), r"to must be at least 1 and below 2\*\*53; got 9007199254740992$"),
        (lambda: by_hand(100, "yarn"), r"greater than the trained length, 4096, .*; got 100"),
        (lambda: by_hand(TO, "pi"), r'extend: rule must be "linear" \(divides all .*; got \'pi\'$'),
        (lambda: by_hand(TO, "yam"), r"; got 'yam', similar to 'dynamic' and 'yarn'$"),
        (lambda: by_hand(TO, "longrope"), r"extend: short_factor and long_factor must be given .*; got none"),
        (lambda: by_hand(TO, "longrope", long_factor=[1.0] * 32), r"extend: short_factor must be given .*; got none"),
        (
            lambda: by_hand(TO, "longrope", **{**LISTS, "short_factor": [1.0]}),
            r"one number for each of 32 pairs; got 1",
        ),
        (lambda: by_hand(TO, "ntk", factor=0.5), r"NTKScaling: factor must be at least 1; got 0.5"),
        (lambda: learned.extend(TO, "linear"), r"extend: the embedding must have a base, .*; got inv_freq alone"),
        (lambda: PLAIN.replace(attention_factor=2.0).extend(TO, "yarn", trained_length=1), r"must follow .*; got 2.0"),
        (
            lambda: PLAIN.replace(scaling=proportional).extend(TO, "yarn", trained_length=TRAINED),
            r"extend: rule must be \"linear\" for proportional scaling, .*; got 'yarn'",
        ),
    ]
    types = [
        (lambda: PLAIN.extend(3.5), r"^RotaryEmbedding.extend: to must be an int; got float"),
        (lambda: by_hand(TO, "yarn", low_freq_factor=1.0), r"options of rule='yarn' must be factor, .*; got low_freq_"),
        (lambda: by_hand(TO, "dynamic", seq_len=9), r"options of rule='dynamic' must be factor; got seq_len"),
        (lambda: by_hand(TO, factor=9.0), r"extend: options must be given with a rule; got factor"),
    ]
    assert_all_raise(raising(values, types))


@pytest.mark.parametrize(
    "to, shown", [(999, "499.5"), (1998, "999"), (1999, "999.5"), (2000, "1,000"), (2004, "1,002")]
)
def test_divisors_have_four_digits_and_from_1000_on_none_after_the_point(to, shown):
    rows = [line.split() for line in str(PLAIN.extend(to, trained_length=2)).splitlines()]
    assert [row[4] for row in rows if row[:1] == ["linear"]] == [shown]
