"""explain: its numbers are those of the papers' formulas, and each warning is there for its reason only."""

import json
import re
from dataclasses import dataclass

import numpy as np
from cases import for_each
from configs import CONFIGS, GOLDENS, ROWS
from hypothesis import given
from hypothesis import strategies as st
from samples import embedding, random

from rope_xp import XPos, from_config
from rope_xp.frequencies import LongRopeScaling, Scaling, geometric
from rope_xp.reports import Report, Section, Table


@dataclass(frozen=True)
class Halved(Scaling):
    """A user's own rule with a trained length and no factor."""

    original_max_position_embeddings: int

    def frequencies(self, base, rotary_dim):
        return tuple(w / 2 for w in geometric(base, rotary_dim))


def test_a_rule_of_a_user_needs_no_factor():
    report = embedding(scaling=Halved(2048)).explain(context=8192)
    assert (report.trained_length, {band.treatment for band in report.bands}) == (2048, {"interpolated"})


def test_the_trained_length_of_given_frequencies():
    rope = embedding(base=None, inv_freq=((1.0,) * 7,))
    assert rope.inv_freq == (1.0,) * 7  # one row is no axis
    report = rope.explain(trained_length=2048)
    assert (report.trained_length, report.extended_length) == (2048, 2048)


def test_pairs_that_are_all_stopped_complete_no_turn():
    assert "Angles - No pair is rotated. Scores" in words(embedding(base=None, inv_freq=(0.0,) * 7).explain(64))


def words(report):
    """The text of a report without line breaks."""
    return re.sub(r"\s+", " ", str(report))


FAR = embedding(xpos=XPos())


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


def test_markdown_has_a_header_that_is_as_wide_as_the_rows():
    assert Rows([("a", "b|c")]).to_markdown().splitlines()[-3:] == ["|  |  |", "| --- | --- |", "| a | b\\|c |"]


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
        assert not is_changed(rope) or "training showed" not in words(report)
        assert is_changed(rope) or "before scaling" not in words(report)
        alarm = re.search("is not read, and head_dim|does not state the base|the default of most", words(report))
        assert bool(alarm) == (golden["config"] in LOOK_LOST)
        assert max(map(len, rope.describe().splitlines())) <= 80


def is_changed(rope):
    """Whether a scaling rule changes a frequency that is not 0."""
    if rope.scaling is None:
        return False
    if isinstance(rope.scaling, LongRopeScaling):
        return {*rope.scaling.short_factor, *rope.scaling.long_factor} != {1.0}
    pairs = zip(np.ravel(rope.inv_freq), np.ravel(rope.replace(scaling=None).inv_freq))
    return not all(np.isclose(w, unscaled, rtol=1e-9, atol=0) for w, unscaled in pairs if w)


@for_each("row", ROWS["reports on training"])
def test_what_a_report_says_about_training(row):
    """About the lengths of a config, and about training with its rule."""
    text = words(from_config(CONFIGS[row["config"]]).explain())
    assert [each for each in row["texts"] if each not in text] == []


def test_layers_of_a_window_see_no_new_angles():
    config = {"model_type": "gemma3_text", "head_dim": 64, "num_hidden_layers": 6, "rope_scaling": None}
    config |= {"max_position_embeddings": 4096, "rope_theta": 1e6, "rope_local_base_freq": 1e4}
    near, far = (words(from_config(config, layer=layer).explain()) for layer in (0, 5))
    assert "score only keys of a window" in near and "trained length 4,096 tokens" in near
    assert "a window" not in far and "pairs complete no turn within 4,096 tokens" in far
    near, far = (from_config(config, layer=layer).extend(to=8192) for layer in (0, 5))
    assert (near.recommendation.windowed, far.recommendation.windowed) == ("these layers", "")
    # The window is not known: the trained length stands for it.
    assert near.incomplete == sum(2 * np.pi / w > 4096 for w in from_config(config, layer=0).inv_freq) > 0


def test_pairs_of_layers_with_a_window_are_those_of_the_window():
    """A length with the scaling of other layers is not the trained length of these, and no rule is listed for them."""
    config = {"model_type": "gemma3_text", "head_dim": 64, "num_hidden_layers": 6, "sliding_window": 1024}
    config |= {"max_position_embeddings": 131_072, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    rope = from_config(config, layer_type="sliding_attention")
    report = rope.explain()
    completes = {number: band.completes_turn for band in report.bands for number in band.pairs}
    assert completes == {number: 2 * np.pi / w <= 1024 for number, w in enumerate(rope.inv_freq)}
    assert (report.unseen_from, {*completes.values()}) == ({}, {True, False})
    text = words(report)
    assert "trained length" not in text and "within the window" in text
    assert "window 1,024 tokens stated length 131,072 tokens" in text
    choices = rope.extend(to=262_144)
    assert choices.incomplete == [*completes.values()].count(False)
    assert {choice.new_angles for choice in choices.choices} == {0, None}
    text = words(choices)
    assert "rule none: these layers" in text and "llama3" not in text


QWEN2 = {"model_type": "qwen2", "head_dim": 64, "sliding_window": 512, "num_hidden_layers": 28, "max_window_layers": 21}
WINDOW = "Layers that use sliding_window=512"
LLAMA4 = {"model_type": "llama4_text", "head_dim": 64, "num_hidden_layers": 4, "attention_chunk_size": 512}
COHERE2 = {"model_type": "cohere2", "head_dim": 64, "num_hidden_layers": 4, "sliding_window": 512}


@for_each(
    "config, which",
    [
        (QWEN2, ""),  # its class has a switch that is false by default
        (QWEN2 | {"use_sliding_window": True}, WINDOW),
        (QWEN2 | {"use_sliding_window": True, "max_window_layers": 28}, ""),
        (QWEN2 | {"use_sliding_window": True, "model_type": "qwen2_moe", "max_window_layers": 0}, ""),
        (QWEN2 | {"use_sliding_window": True, "model_type": "qwen3_moe", "max_window_layers": 28}, "These layers"),
        (QWEN2 | {"use_sliding_window": True, "max_window_layers": 0}, "These layers"),
        (QWEN2 | {"use_sliding_window": True, "model_type": "qwen2_moe", "max_window_layers": 21}, WINDOW),
        (QWEN2 | {"use_sliding_window": True, "model_type": "qwen2_moe", "max_window_layers": 28}, "These layers"),
        (QWEN2 | {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": "512"}, ""),
        (QWEN2 | {"model_type": "mixtral", "layer_types": ["full_attention", "sliding_attention"] * 14}, WINDOW),
        ({"model_type": "recurrent_gemma", "head_dim": 64}, "These layers"),
        ({"model_type": "recurrent_gemma", "head_dim": 64, "attention_window_size": 8192}, ""),
        (QWEN2 | {"use_sliding_window": True, "model_type": "smollm3", "no_rope_layers": [1] * 28}, ""),
        (QWEN2 | {"use_sliding_window": True, "layer_types": ["full_attention"] * 28}, ""),
        (LLAMA4, "These layers"),
        (LLAMA4 | {"attention_chunk_size": None}, ""),
        (LLAMA4 | {"attention_chunk_size": 8192}, ""),  # longer than the texts of training
        (COHERE2, "These layers"),
        (COHERE2 | {"sliding_window": 8192}, ""),
        (COHERE2 | {"sliding_window": None}, ""),
    ],
)
def test_which_layers_have_a_window(config, which):
    layer = 2 if config["model_type"] == "recurrent_gemma" else 0  # others are not rotated there
    text = words(from_config({**config, "max_position_embeddings": 4096}, layer=layer).explain(context=8192))
    assert ("score only keys of a window" in text) == bool(which) and which in text
    assert ("get angles" in text or "pairs complete no turn" in text) == (which != "These layers")


@for_each("window, uses", [(512, None), (4096, True), (4097, None), (512, False), (0, None), (None, None)])
def test_a_window_of_all_layers_or_of_some(window, uses):
    """Of most families, which layers have it is not known; it says nothing if training was shorter."""
    for model_type in ("mistral", "llama"):
        config = {"model_type": model_type, "head_dim": 64, "max_position_embeddings": 4096, "rope_theta": 1e6}
        rope = from_config({**config, "sliding_window": window, "use_sliding_window": uses})
        some = "these layers" if model_type == "mistral" else f"layers that use sliding_window={window or 0:,}"
        which = some if window in (512, 4096) and uses is not False else ""
        report, choices = words(rope.explain()), rope.extend(to=8192)
        assert (f"{which.capitalize()} score only keys of a window" in report) == bool(which)
        assert ("pairs complete no turn within 4,096 tokens" in report) == (which != "these layers")
        assert choices.recommendation.windowed == which
        if which != "these layers":
            assert (f"window {which} need no rule" in words(choices)) == bool(which)
