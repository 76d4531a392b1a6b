"""mlx-lm computes what the embedding does: every model class that can be built, with our keys and without.

The oracle is mlx-lm itself. A class is built with random weights, and the matrices that its layers multiply with
queries and keys are compared with those of the embedding. `python -m pytest tests/engines/test_mlx_lm.py` needs
`pip install "mlx[cpu]" mlx-lm`; `nox -s tests-mlx-lm` installs both.
"""

import importlib.util
import json
import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from rope_xp import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    ProportionalScaling,
    RotaryEmbedding,
    YarnScaling,
    from_config,
)
from rope_xp.configs import engines
from rope_xp.configs.writers.mlx import BY_PATTERN
from rope_xp.provenance import Provenance, with_provenance

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

if not all(importlib.util.find_spec(name) for name in ("mlx", "mlx_lm")):
    raise pytest.UsageError(
        "mlx and mlx-lm must be installed to be tested: run `nox -s tests-mlx-lm`; got neither or one"
    )

from engine_tables import _mlx_models as mlx_models
from engine_tables import mlx_lm as table_script

FOLDER = Path(importlib.util.find_spec("mlx_lm").origin).parent
VERSION = mlx_models.use_source(FOLDER)
TABLE = engines.table("mlx-lm", VERSION)
CLASSES = [(name, inner) for name in mlx_models.names(FOLDER) for inner in ("", *mlx_models.CHOICES.get(name, ()))]
BUILT = [each for each in CLASSES if each[0] not in mlx_models.NOT_BUILT]
AT, LENGTH = {"original_max_position_embeddings": 1024}, mlx_models.LENGTH


class Outcome(NamedTuple):
    """What a class does with an embedding that is written for it."""

    kind: str
    title: str
    result: str
    rope: RotaryEmbedding
    seen: mlx_models.Seen | None
    keys: dict | str


def settings(width, usual):
    """Embeddings of heads of a width, in the layout and with the rotated part that a class has without keys."""
    rotary_dim, half = round(usual.rotated * width), width // 2
    rope = usual.rope(width).replace(base=70_000.0)
    long, short = (tuple(start + step * j for j in range(rotary_dim // 2)) for start, step in ((2.0, 0.5), (1.0, 0.25)))
    lists = {"short_factor": short, "long_factor": long, **AT, "seq_len": LENGTH}
    yarn = {"factor": 4.0, **AT}
    other = {"half": "interleaved", "interleaved": "half"}[rope.layout]
    rules = {
        "linear": LinearScaling(factor=3.0),
        "ntk": NTKScaling(factor=3.0),
        "dynamic": DynamicNTKScaling(factor=3.0, max_position_embeddings=LENGTH),
        "llama3": Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, **AT),
        "yarn": YarnScaling(**yarn),
        "yarn, other ends": YarnScaling(**yarn, beta_fast=4.0, beta_slow=2.0),
        "yarn, attention factor": YarnScaling(**yarn, attention_factor=1.0),
        "yarn, of latent attention": YarnScaling(**yarn, mscale=0.7, mscale_all_dim=0.7),
        "longrope": LongRopeScaling(**lists, factor=4.0),
        "longrope, not whole": LongRopeScaling(**lists, factor=4.0005),
        "longrope, attention factor": LongRopeScaling(**lists, factor=4.0, short_mscale=1.1, long_mscale=1.2),
        "proportional": ProportionalScaling(partial_rotary_factor=0.5),
        "proportional, factor": ProportionalScaling(partial_rotary_factor=0.25, factor=4.0),
    }
    return {
        "base": rope,
        "usual base": rope.replace(base=10_000.0),
        "layout": rope.replace(layout=other),
        "rotated": rope.replace(rotary_dim=half if rotary_dim != half else width),
        "direction": rope.replace(reverse=not rope.reverse),
        **{name: rope.replace(scaling=rule) for name, rule in rules.items()},
        "yarn, other base": rope.replace(base=500_000.0, scaling=rules["yarn"]),
        "linear, rotated": rope.replace(rotary_dim=half if rotary_dim != half else width, scaling=rules["linear"]),
    }


def at_length(rope, length):
    """The embedding in a sequence of a length."""
    is_dynamic = isinstance(rope.scaling, DynamicNTKScaling)
    return rope.replace(scaling=replace(rope.scaling, seq_len=length)) if is_dynamic else rope


def is_ours(seen, without, rope):
    """Whether layers compute the embedding, and scale scores by what it says."""
    same_scores = np.isclose(seen.scale, without.scale * rope.softmax_scale, rtol=1e-6)
    return bool(same_scores) and seen.width == rope.head_dim and seen.is_of(lambda n: at_length(rope, n))


def merged(config, keys):
    """A config with keys of ours: mappings are merged, as one edits a file."""
    found = dict(config)
    for key, value in keys.items():
        found[key] = merged(found.get(key) or {}, value) if isinstance(value, dict) else value
    return found


@cache
def model_of(name, inner):
    return table_script.Model(FOLDER, name, inner)


def origin_of(model, name, inner, kind):
    path = tuple(model.place.get("path", ()))
    return Provenance(file_type=name, model_type=inner, path=path, layer_type=kind)


def written(rope, origin):
    """Keys for the class, or why it cannot be."""
    try:
        return with_provenance(rope, origin).to_config("mlx", engine_version=VERSION)
    except ValueError as error:
        return str(error)


@cache
def outcomes(name, inner):
    """For each type of layers that reads other keys, and each setting: what the class does with our keys."""
    model, found = model_of(name, inner), []
    kinds = model.seen if TABLE.of(model.title) is None else dict(list(model.seen.items())[:1])
    for kind, without in kinds.items():
        origin = origin_of(model, name, inner, kind)
        for title, rope in settings(without.width, without.plain).items():
            keys = written(rope, origin)
            if isinstance(keys, str):
                found.append(Outcome(kind, title, "refused", rope, None, keys))
                continue
            seen = model.seen_with(merged(model.config, json.loads(json.dumps(keys)))).get(kind)
            result = "failing" if seen is None else "equal" if is_ours(seen, without, rope) else "differing"
            found.append(Outcome(kind, title, result, rope, seen, keys))
    return found


@pytest.mark.parametrize("name, inner", BUILT, ids=lambda each: each)
def test_rotation_with_our_keys_is_ours(name, inner, record_property):
    """Or it is refused, with need. Mistakes are seen: another base by 1 %, and a rule that is left out."""
    for result in ("equal", "refused"):
        record_property(result, sum(each.result == result for each in outcomes(name, inner)))
    assert not [each for each in outcomes(name, inner) if each.result in ("differing", "failing")]
    for each in outcomes(name, inner):
        if each.result == "equal":
            without = model_of(name, inner).seen[each.kind]
            assert not is_ours(each.seen, without, each.rope.replace(base=1.01 * each.rope.base))
            assert each.rope.scaling is None or not is_ours(each.seen, without, each.rope.replace(scaling=None))
    # step3p5 reads a list with a factor for each layer, which is not written, and rotates all channels without it.
    assert bool(computed_all_the_same(name, inner)) == (name == "step3p5")


def computed_all_the_same(name, inner):
    """What is refused, and computed with the keys that most classes read, in the place that this class reads."""
    model, found = model_of(name, inner), []
    for each in outcomes(name, inner):
        if each.result == "refused" and isinstance(usual := written(each.rope, Provenance()), dict):
            path, without = model.place.get("path", ()), model.seen[each.kind]
            seen = model.seen_with(merged(model.config, {path[0]: usual} if path else usual)).get(each.kind)
            found += [each] if seen is not None and is_ours(seen, without, each.rope) else []
    return found


# Where mlx-lm is not transformers, for the config of the tiny model.
OTHER_THAN_TRANSFORMERS = {
    ("bailing_hybrid", "linear_attention"): "layers of linear attention, which from_config does not take for rotated",
    ("glm", "sliding_attention"): "rotates the whole head; the models rotate half of it",
    ("glm", "full_attention"): "the same",
    ("granitemoehybrid", "full_attention"): "its default of position_embedding_type is rope",
    ("minimax", "full_attention"): "all layers rotate, as in MiniMax-M2; the layers of MiniMax-Text-01 have types",
}


@pytest.mark.parametrize("name, inner", BUILT, ids=lambda each: each)
def test_rotation_without_our_keys_is_that_of_from_config(name, inner, record_property):
    """Where the family is known, and the config has no keys of other families."""
    model = model_of(name, inner)
    for kind, seen in model.seen.items():
        try:
            rope = from_config(model.known_config(), layer=seen.layer)
        except (ValueError, TypeError) as error:
            record_property("unread", f"{kind}: {error}")
            continue
        same = rope is not None and seen.is_of(partial(at_length, rope))
        record_property("equal" if same else "differing", kind)
        assert same == ((name, kind) not in OTHER_THAN_TRANSFORMERS), rope
        assert not same or not seen.is_of(partial(at_length, rope.replace(base=1.01 * rope.base)))


@pytest.mark.parametrize("name, inner", BUILT[::10], ids=lambda each: each)
def test_the_kept_table_is_that_of_this_version(name, inner):
    """For every tenth class: `python benchmarks/engines.py mlx_lm --check` compares all, which takes longer."""
    kept = json.loads((engines.files(engines.__name__) / f"mlx-lm-{VERSION}.json").read_text("utf-8"))["readings"]
    of_model = {
        model: {key: value for key, value in each.items() if key != "models"}
        for each in kept
        for model in each["models"]
    }
    for title, reading in model_of(name, inner).readings().items():
        assert json.loads(json.dumps(reading)) == of_model[title]


def test_every_class_is_in_the_table_or_the_reason_is_known():
    models = {title.partition(":")[0] for title in TABLE.readings}
    assert models == {*mlx_models.names(FOLDER), *mlx_models.remapped(FOLDER)} - mlx_models.NOT_BUILT.keys()


def test_which_classes_count_layers_by_a_pattern():
    """Their sources name the pattern, and no types of layers."""
    sources = {path.stem: path.read_text() for path in (FOLDER / "models").glob("*.py")}
    found = {name for name, text in sources.items() if "sliding_window_pattern" in text and "layer_types" not in text}
    assert found == {*BY_PATTERN}


def test_the_matrix_is_that_of_a_call():
    """What is compared with mlx-lm is what a call of the embedding multiplies with."""
    unit = np.eye(32, dtype=np.float32)
    for rope in settings(32, mlx_models.Plain(10_000.0, "half", 0.5)).values():
        if rope.blocks == 1:
            found = rope(unit, positions=np.full(32, 300), seq_dim=0)
            np.testing.assert_allclose(found, mlx_models.matrix_of(rope, 300), rtol=0, atol=2e-6)
