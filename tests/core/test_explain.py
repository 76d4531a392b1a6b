"""explain: its numbers are those of the papers' formulas, and each warning is there for its reason only."""

import json
import re
from dataclasses import dataclass
from fractions import Fraction
from math import pi

import numpy as np
import pytest
from cases import for_each
from configs import CONFIGS, GOLDENS, ROWS
from errors import assert_all_raise, raising
from hypothesis import given
from hypothesis import strategies as st
from samples import embedding, random

from rope_xp import (
    DynamicNTKScaling,
    LinearScaling,
    LongRopeScaling,
    Sections,
    XPos,
    YarnScaling,
    from_config,
)
from rope_xp.frequencies import Scaling, geometric
from rope_xp.reports import Report, Section, Table

TRAINED = 2048
LENGTH = {"original_max_position_embeddings": TRAINED}
DYNAMIC = embedding(scaling=DynamicNTKScaling(factor=2.0, max_position_embeddings=TRAINED, seq_len=3 * TRAINED))


@dataclass(frozen=True)
class Halved(Scaling):
    """A user's own rule with a trained length and no factor."""

    original_max_position_embeddings: int

    def frequencies(self, base, rotary_dim):
        return tuple(w / 2 for w in geometric(base, rotary_dim))


def test_a_rule_of_a_user_needs_no_factor():
    report = embedding(scaling=Halved(TRAINED)).explain(context=8192)
    assert (report.trained_length, {band.treatment for band in report.bands}) == (TRAINED, {"interpolated"})


@pytest.mark.parametrize("context", [1, 700, 131_072, 2**24 + 2**13, 2**40])
@pytest.mark.parametrize("inv_freq", [(1.0, 0.211, 0.0447, 0.00946), ((0.9, 0.3), (1.0, 1.0))])
def test_the_error_of_float32(context, inv_freq):
    """The products of float32 against exact fractions, at the last positions: the largest error of all pairs."""
    errors = {0: Fraction(0)}
    for position in range(max(context - 1024, 0), context):
        for pair, w in enumerate(inv_freq if isinstance(inv_freq[0], float) else inv_freq[0]):
            product = float(np.float32(position) * np.float32(w))
            errors[pair] = max(abs(Fraction(product) - position * Fraction(w)), errors.get(pair, Fraction(0)))
    found = embedding(base=None, inv_freq=inv_freq).explain(context).float32_error
    # The products in float64 are rounded: 2**-53 of the phase.
    assert found.radians == pytest.approx(float(max(errors.values())), abs=context * 2.0**-52)
    assert found.pair == max(errors, key=errors.__getitem__)


@pytest.mark.parametrize("rule", ["llama3", "yarn"])
@pytest.mark.parametrize("stated", [TRAINED // 2, TRAINED, TRAINED + 1, 3 * TRAINED, 9 * TRAINED])
def test_a_stated_length_beyond_training_is_the_extended_one(stated, rule):
    """Of YaRN, the greater one, because its factor is the ratio of the lengths."""
    block = {"rope_type": rule, "rope_theta": 5e5, "factor": 8.0, **LENGTH}
    block |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if rule == "llama3" else {}
    rope = from_config(
        {"model_type": "llama", "head_dim": 64, "max_position_embeddings": stated, "rope_scaling": block}
    )
    by_factor = stated <= TRAINED or (rule == "yarn" and stated < 8 * TRAINED)
    assert rope.explain().context == (8 * TRAINED if by_factor else stated)


@pytest.mark.parametrize("rotary_dim", [14, 6])
def test_what_the_attention_factor_does_to_scores(rotary_dim):
    """Measured: scores with and without it."""
    rope = embedding(scaling=YarnScaling(factor=16.0, **LENGTH), rotary_dim=rotary_dim)
    q, k = random(5, 14), random(5, 14, seed=1)
    pairs = np.r_[:rotary_dim]
    scores = [np.sum(each(q, seq_dim=0)[:, pairs] * each(k, seq_dim=0)[:, pairs], -1) for each in (rope, without(rope))]
    report = rope.explain()
    np.testing.assert_allclose(scores[0] / scores[1], report.score_factor, rtol=1e-4)
    assert f"by its square, {report.score_factor:.6g}" in words(report)
    assert ("the other 8 channels does not change" in words(report)) == (rotary_dim == 6)


def without(rope):
    """The same frequencies, with an attention factor of 1."""
    return rope.replace(base=None, scaling=None, inv_freq=rope.inv_freq, attention_factor=None)


def words(report):
    """The text of a report without line breaks."""
    return re.sub(r"\s+", " ", str(report))


def llama(**keys):
    return {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "rope_theta": 5e5, **keys}


def scaled(rule, length=8192, **keys):
    """A config with a scaling rule."""
    return llama(max_position_embeddings=length, rope_scaling={"rope_type": rule, **keys})


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **LENGTH}
YARN = {"factor": 4.0, **LENGTH}
FACTORS = {"short_factor": [1.0] * 64, "long_factor": [4.0] * 64}
MIXTRAL = {**llama(), "model_type": "mixtral"}
NO_BASE = {**scaled("llama3", **LLAMA3), "rope_theta": None}
CHUNKS = {"dual_chunk_attention_config": {"chunk_size": 4096, "local_size": 512}}
LONGROPE = scaled("longrope", **FACTORS, **LENGTH)
LISTS = {name: tuple(values) for name, values in FACTORS.items()}
LONG = LongRopeScaling(**LISTS, **LENGTH, factor=4.0, seq_len=5000)
FAR = embedding(xpos=XPos())

# What is warned of: a config or an embedding and a context; and the same without the reason.
WARNINGS = {
    "does not state the base (rope_theta), and 10,000 is the default of llama. Llama 3.1": (
        (NO_BASE,),
        (scaled("llama3", **LLAMA3),),
        ({**scaled("yarn", **YARN), "rope_theta": None},),
    ),
    "Its longest wavelength, 54,410 tokens, is shorter than the length of the config, 54,411.": (
        (llama(rope_theta=None, max_position_embeddings=54_411),),
        (llama(rope_theta=None, max_position_embeddings=54_410),),
        (llama(rope_theta=1e4, max_position_embeddings=54_411),),
    ),
    "the base is 10,000, the default of most families, but the default of mixtral is 1,000,000": (
        ({**MIXTRAL, "rope_theta": 1e4},),
        (MIXTRAL,),
    ),
    "states a scaling rule without original_max_position_embeddings. Its max_position_embeddings, 8,192, is used": (
        (scaled("yarn", factor=4.0),),
        (scaled("yarn", **YARN),),
    ),
    "factor 4 times original length 2,048 is 8,192, but max_position_embeddings is": (
        (scaled("yarn", 9000, **YARN),),
        (scaled("yarn", 8192, **YARN),),
        (scaled("yarn", 2048, **YARN),),
    ),
    "transformers does not read rotary_pct (a key of gpt_neox, gpt_neox_japanese) in 'llama'": (
        (llama(rotary_pct=0.5),),
        (llama(partial_rotary_factor=0.5),),
    ),
    "kv_channels=64 is not read, and head_dim is 128; kv_channels is a key of model_type chatglm, jetmoe, qwen": (
        (llama(kv_channels=64),),
        (llama(kv_channels=128),),
    ),
    "dual_chunk_attention_config is not applied": ((llama(**CHUNKS),), (llama(),)),
    "rule dynamic depends on the length. These frequencies are for sequences of at most 8,192 tokens. Keys": (
        (scaled("dynamic", factor=2.0),),
        (scaled("linear", factor=2.0),),
    ),
    "These frequencies are for sequences of 6,144 tokens. At 5,000 tokens, others apply": (
        (DYNAMIC, 5000),
        (DYNAMIC, 6144),
        (DYNAMIC,),
    ),
    "tokens, others apply: from_config(..., seq_len=8193)": (
        (scaled("dynamic", factor=2.0), 8193),
        (scaled("dynamic", factor=2.0), 8192),
    ),
    "rule longrope depends on the length. These frequencies are for sequences of at most 2,048 tokens.": (
        (LONGROPE,),
        (scaled("longrope", **{**FACTORS, "long_factor": [1.0] * 64}, **LENGTH),),
    ),
    "At 2,048 tokens, others apply: from_config(..., seq_len=2048)": (
        (embedding(head_dim=128, rotary_dim=128, scaling=LONG), 2048),
        (embedding(head_dim=128, rotary_dim=128, scaling=LONG), 2049),
        (embedding(head_dim=128, rotary_dim=128, scaling=LONG),),
    ),
    "tokens, others apply: from_config(..., seq_len=": (
        (LONGROPE, 8192),
        (LONGROPE, 2048),
        (LONGROPE,),
    ),
    "The context of 8,193 tokens is longer than the 8,192 tokens": ((scaled("yarn", **YARN), 8193), (llama(),)),
    "The attention factor 1e-39 is beyond the normal numbers of float32": (
        (embedding(attention_factor=1e-39),),
        (embedding(attention_factor=1e-37),),
    ),
    "The scales of xpos leave the range of float32 more than 36,260 tokens from position 0": (
        (FAR, 50_000),
        (FAR, 36_000),
        (embedding(), 50_000),
    ),
    "more than 36,260 tokens from position 40,000": (
        (embedding(xpos=XPos(centre=40_000)), 100),
        (embedding(xpos=XPos(centre=30_000)), 66_000),
    ),
}


@for_each("warning", WARNINGS)
def test_warnings(warning):
    """Present for its reason, and absent without it."""
    present, *absent = (
        (from_config(subject) if isinstance(subject, dict) else subject).explain(*context).warnings
        for subject, *context in WARNINGS[warning]
    )
    assert len([each for each in present if warning in each]) == 1
    assert absent and not [each for others in absent for each in others if warning in each]


def test_what_the_warnings_say_of_inverses():
    """A result of `rotate(inverse=True)` is NaN where a warning says so, and only there."""
    x = random(2, 14, dtype="float32")
    for rope, position in ((embedding(attention_factor=1e-46), 3), (FAR, 50_000)):
        assert any("does not restore its input" in each for each in rope.explain(position).warnings)
        with np.errstate(all="ignore"):
            sincos = rope.sincos(np.asarray([position] * 2), like=x, role="key" if rope.xpos else None)
            assert np.isnan(rope.rotate(rope.rotate(x, sincos, seq_dim=0), sincos, seq_dim=0, inverse=True)).any()
    sincos = FAR.sincos(np.asarray([36_000] * 2), like=x, role="key")
    assert FAR.explain(36_000).warnings == ()
    assert np.isfinite(FAR.rotate(FAR.rotate(x, sincos, seq_dim=0), sincos, seq_dim=0, inverse=True)).all()


def test_stated_and_assumed_values_are_marked():
    report = from_config(
        {"model_type": "phi", "hidden_size": 64, "num_attention_heads": 4, "rope_theta": 5e5}
    ).explain()
    assert report.stated == ("hidden_size", "num_attention_heads", "rope_theta")
    assert report.assumed == {"partial_rotary_factor": "default of phi"}
    assert "are rotated (not in the config: partial_rotary_factor, default of phi)" in words(report)
    assert "Keys that were read: hidden_size, num_attention_heads, rope_theta." in words(report)
    chatglm = from_config(CONFIGS["glm-4-9b-chat"]).explain()
    assert "rope_ratio" in chatglm.stated and "rope_theta" not in chatglm.stated  # which follows from it
    assert chatglm.trained_length == 131_072
    assert embedding().explain().stated == ()


class Rows(Report):
    def __init__(self, rows):
        self.rows = rows

    def sections(self):
        return [Section("", Table((), self.rows))]


@given(st.lists(st.integers(1, 70), min_size=1, max_size=7))
def test_the_last_column_of_a_table_has_its_share_of_80(lengths):
    """20 of the columns, or an equal share; the widest of the others are narrower then."""
    lines = str(Rows([[*("a" * length for length in lengths), "b " * 60]])).splitlines()
    room, count = 80 - 2 * len(lengths), len(lengths) + 1
    widths = list(lengths)
    for _ in range(max(sum(lengths) - room + min(20, room // count), 0)):
        widths[widths.index(max(widths))] -= 1
    assert max(map(len, lines)) <= 80 and lines[0].index("b") == sum(widths) + 2 * len(widths)
    assert "".join(lines).count("a") == sum(lengths) and "".join(lines).count("b") == 60


def test_lengths_and_the_default_context():
    lengths = [
        (embedding(), {}, (None, None, None)),
        (embedding(), {"trained_length": 512}, (512, 512, 512)),
        (embedding(scaling=LinearScaling(factor=3.0)), {"trained_length": 512}, (512, 1536, 1536)),
        (embedding(scaling=LinearScaling(factor=3.0)), {"context": 99}, (None, None, 99)),
        (embedding(scaling=YarnScaling(**YARN)), {}, (2048, 8192, 8192)),
        (from_config(scaled("linear", factor=4.0)), {}, (None, 8192, 8192)),
        (from_config(scaled("linear", factor=4.0)), {"trained_length": 8192}, (8192, 32_768, 32_768)),
        (from_config(scaled("linear", factor=4.0)), {"trained_length": 4096}, (4096, 8192, 8192)),
        (from_config(scaled("yarn", **YARN)), {}, (2048, 8192, 8192)),
        (from_config(scaled("yarn", 4096, **YARN)), {}, (2048, 8192, 8192)),  # its factor is the ratio of lengths
        (from_config(scaled("llama3", 4096, **LLAMA3)), {}, (2048, 4096, 4096)),  # its factor is not
        (from_config(LONGROPE), {}, (2048, 8192, 2048)),  # short_factor is for short sequences
        (from_config(LONGROPE, seq_len=8192), {}, (2048, 8192, 8192)),
        (from_config(llama(max_position_embeddings=8192)), {"context": 9}, (8192, 8192, 9)),
        (from_config(llama(max_position_embeddings=8192)), {"trained_length": 2048}, (2048, 2048, 2048)),
        (from_config(CONFIGS["grok-2"]), {}, (None, 131_072, 131_072)),  # its rule is in given frequencies
    ]
    for rope, arguments, wanted in lengths:
        report = rope.explain(**arguments)
        assert (report.trained_length, report.extended_length, report.context) == wanted
    unknown = embedding().explain()
    assert unknown.float32_error is unknown.bfloat16_step is None and unknown.unseen_from == {}
    assert "not known. State it with --trained-length, or in Python trained_length=, to see which" in words(unknown)


HEADS = np.linspace(0.01, 1.0, 24).reshape(2, 3, 4)
OTHERS = {
    "given": ({"base": None, "inv_freq": (1.0, 0.5, 0.0)}, ["given", "not rotated"]),
    "axes": ({"head_dim": 16, "sections": Sections((4, 2, 2))}, ["kept"]),
    "interleaved axes": ({"head_dim": 16, "sections": Sections((4, 2, 2), order="interleaved")}, ["kept"]),
    "several axes in a pair": ({"base": None, "inv_freq": ((1.0, 0.5), (0.5, 1.0))}, []),
    "heads": ({"base": None, "inv_freq": HEADS}, []),
    "decay": ({"xpos": XPos()}, ["kept"]),
    "reverse": ({"reverse": True}, ["kept"]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_embeddings_say_what_can_be_said(name):
    options, treatments = OTHERS[name]
    rope = embedding(**options)
    report = rope.explain(1000)
    assert [band.treatment for band in report.bands] == treatments
    assert_is_a_report(report)
    frequencies = np.abs(np.asarray(rope.inv_freq)).ravel()
    largest = max(1000 * abs(float(np.float32(w)) - w) for w in frequencies)
    assert 0 <= report.float32_error.radians <= largest + 1000 * 2.0**-24
    if "axes" in options or "sections" in options:
        assert [axis.pairs for axis in report.axes] == [
            tuple(pair for pair, axis in enumerate(options["sections"].axis_of_pair) if axis == number)
            for number in range(3)
        ]
        longest = [2 * pi / min(w for w in row if w) for row in rope.inv_freq]
        assert [axis.wavelengths[1] for axis in report.axes] == pytest.approx(longest, rel=1e-12)
    if name == "decay":  # zeta of the first and of the last of 7 pairs, as in the paper
        assert "512 tokens multiply those of pair 0 by 0.286, and those of pair 6 by 0.898" in words(report)
    if not treatments:
        assert "Pairs and their wavelengths are not shown, because a pair has several frequencies." in words(report)


def test_learned_frequencies_are_not_read(xp):
    """Arrays of NumPy become floats, which are known."""
    report = embedding(base=None, inv_freq=xp.array(np.ones(7), "float32")).explain(1000)
    is_array = xp.name != "numpy"
    assert [report.bands == (), report.float32_error is None] == [is_array] * 2
    assert ("because explain does not read arrays" in words(report)) == is_array
    assert_is_a_report(report)


def assert_is_a_report(report):
    """Text of 80 columns without repeated spaces at ends, Markdown, and a dict for JSON."""
    lines = str(report).splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) <= 55
    assert not [line for line in lines if line != line.rstrip()]
    assert "## Pairs" in report.to_markdown()
    as_dict = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert as_dict["pairs"] == report.rope.pairs and as_dict["warnings"] == list(report.warnings)
    assert [band["pairs"] for band in as_dict["bands"]] == [list(band.pairs) for band in report.bands]


# Real configs that look as if a key was lost: Aya has a base of 10,000 in a family whose default is 500,000, and PLaMo
# 2 states 10,485,760 tokens and no base.
LOOK_LOST = ("aya-23-8b", "plamo-2-1b")


def test_real_configs():
    for golden in GOLDENS:
        assert_its_report_is_sound(golden)


def assert_its_report_is_sound(golden):
    rope = from_config(CONFIGS[golden["config"]], **golden["kwargs"])
    if rope is not None:
        report = rope.explain()
        assert_is_a_report(report)
        # A sentence about training says which, if the model may have been trained with other frequencies, too.
        assert not is_changed(rope) or not re.search("Training showed only|angle that training did", words(report))
        assert is_changed(rope) or "before scaling" not in words(report)
        alarm = re.search("is not read, and head_dim|does not state the base|the default of most", words(report))
        assert bool(alarm) == (golden["config"] in LOOK_LOST)
        assert max(map(len, rope.describe().splitlines())) <= 80


def is_changed(rope):
    """Whether a scaling rule changes a frequency that is not 0."""
    if rope.scaling is None:
        return False
    pairs = zip(np.ravel(rope.inv_freq), np.ravel(rope.replace(scaling=None).inv_freq))
    return not all(np.isclose(w, unscaled, rtol=1e-9, atol=0) for w, unscaled in pairs if w)


@for_each("row", ROWS["reports on training"])
def test_what_a_report_says_about_training(row):
    """About the lengths of a config, and about training with its rule."""
    text = words(from_config(CONFIGS[row["config"]]).explain())
    assert [each for each in row["texts"] if each not in text] == []


def test_training_with_scaling_that_a_config_does_not_have():
    by_hand = words(embedding(scaling=YarnScaling(**YARN)).explain())
    assert "8,192 tokens with scaling (the factor times the trained length)" in by_hand
    assert "A model that was trained with this scaling has seen more angles." in by_hand
    dynamic = words(from_config(CONFIGS["internlm2-7b"], seq_len=65_536).explain())
    assert "65,536 tokens with scaling (the length that these frequencies are for)" in dynamic
    assert "Dynamic NTK scales only sequences that are longer than those of training." in dynamic
    extended = words(embedding().extend(8192, "yarn", trained_length=2048).explain())
    assert "extended length 8,192 tokens with scaling extended by yarn" in extended
    assert "The scaling was added by extend. Only training with it" in extended


# The names of position axes, in the order of positions, and the numbers of their pairs.
AXES = {
    ("qwen2-vl-7b-instruct", None): {"time": 16, "height": 24, "width": 24},
    ("qwen2-vl-7b-instruct", "vision"): {"height": 20, "width": 20},
    ("ernie-4.5-vl-28b-a3b", None): {"time": 20, "height": 22, "width": 22},  # its sections begin with the height
    ("hunyuan-ocr", None): {"token": 16, "width": 16, "height": 16, "image": 16},
    ("dinov3-vitl16-lvd1689m", None): {"height": 16, "width": 16},
    ("gemma-4-e2b-it", "vision"): {"width": 16, "height": 16},
}


@pytest.mark.parametrize(("name", "part"), AXES)
def test_position_axes_have_the_names_of_the_family(name, part):
    rope = from_config(CONFIGS[name], part=part)
    report, wanted = rope.explain(), AXES[name, part]
    assert {axis.name: len(axis.pairs) for axis in report.axes} == wanted
    assert all(f"{axis.axis} {axis.name}" in str(report) for axis in report.axes)
    described = re.sub(r"\s+", " ", rope.describe())
    if rope.sections is None:
        assert f"position axes {rope.axes} ({', '.join(wanted)})" in described
    else:
        assert f"{rope.axes}: {', '.join(f'{axis} {pairs}' for axis, pairs in wanted.items())} pairs;" in described


def test_llama_3_1():
    """8,192 tokens of training: the wavelengths of Llama 3.1 that its authors scale, and those that they keep."""
    report = from_config(CONFIGS["llama-3.1-8b"]).explain()
    assert [(band.treatment, band.pairs[0], band.pairs[-1]) for band in report.bands] == [
        ("kept", 0, 28),
        ("blended", 29, 34),
        ("interpolated", 35, 63),
    ]
    assert len(str(report).splitlines()) <= 40 and report.warnings == ()
    text = words(report)
    assert "29 of 64 pairs complete no turn within 8,192 tokens: 35-63. Training with 8,192 tokens alone showed" in text
    assert (
        "training with 8,192 tokens alone did not show is 65,536. Within a context of 131,072 tokens, 29 pairs" in text
    )


def test_bad_lengths():
    rope, who = embedding(), r"^RotaryEmbedding.explain: "
    values = [
        (lambda: rope.explain(0), who + r"context must be at least 1 and below 2\*\*53; got 0"),
        (lambda: rope.explain(2**53), who + r"context must be at least 1 .*; got 9007199254740992"),
        (lambda: rope.explain(-1), who + r"context must not be negative; got -1"),
        (lambda: rope.explain(trained_length=0), who + r"trained_length must be at least 1 .*; got 0"),
    ]
    types = [
        (lambda: rope.explain("128k"), who + "context must be an int; got str"),
        (lambda: rope.explain(trained_length=2048.0), who + "trained_length must be an int; got float"),
    ]
    assert_all_raise(raising(values, types))
