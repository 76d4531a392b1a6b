"""mlx-lm computes what the embedding does: every model class that can be built, with our keys and without.

The oracle is mlx-lm itself. A class is built with random weights, and the matrices that its layers multiply with
queries and keys are compared with those of the embedding. `python -m pytest tests/engines/test_mlx_lm.py` needs
`pip install "mlx[cpu]" mlx-lm`; `nox -s tests-mlx-lm` installs both.
"""

import importlib.util
import json
import sys
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from rope_xp import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    ProportionalScaling,
    YarnScaling,
    from_config,
)
from rope_xp._core import engines
from rope_xp._core.provenance import Provenance, with_provenance

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

if not all(importlib.util.find_spec(name) for name in ("mlx", "mlx_lm")):
    raise pytest.UsageError("mlx and mlx-lm must be installed to be tested: run `nox -s tests-mlx-lm`; got neither or one")

from engine_tables import _mlx_models as mlx_models
from engine_tables import mlx_lm as table_script

FOLDER = Path(importlib.util.find_spec("mlx_lm").origin).parent
VERSION = mlx_models.use_source(FOLDER)
TABLE = engines.table("test", "mlx-lm", VERSION)
CLASSES = [(name, inner) for name in mlx_models.names(FOLDER) for inner in ("", *mlx_models.CHOICES.get(name, ()))]
BUILT = [each for each in CLASSES if each[0] not in mlx_models.NOT_BUILT]
AT, LENGTH = {"original_max_position_embeddings": 1024}, mlx_models.LENGTH


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


def outcomes(name, inner):
    """For each type of layers and each setting: what happens, the settings, and what the class does with our keys."""
    model = model_of(name, inner)
    for kind, without in model.seen.items():
        origin = origin_of(model, name, inner, kind)
        for title, rope in settings(without.width, without.plain).items():
            keys = written(rope, origin)
            if isinstance(keys, str):
                yield kind, title, "refused", rope, without, keys
                continue
            seen = model.seen_with(merged(model.config, json.loads(json.dumps(keys)))).get(kind)
            found = "failing" if seen is None else "equal" if is_ours(seen, without, rope) else "differing"
            yield kind, title, found, rope, without, seen if seen is not None else keys


@pytest.mark.parametrize("name, inner", BUILT, ids=lambda each: each)
def test_rotation_with_our_keys_is_ours(name, inner, record_property):
    """Or the class is refused. Mistakes are seen: another base by 1 %, and a rule that is left out."""
    found = list(outcomes(name, inner))
    for outcome in ("equal", "refused"):
        record_property(outcome, sum(each[2] == outcome for each in found))
    assert not [each for each in found if each[2] in ("differing", "failing")]
    for _, _, outcome, rope, without, seen in found:
        if outcome == "equal":
            assert not is_ours(seen, without, rope.replace(base=1.01 * rope.base))
            assert rope.scaling is None or not is_ours(seen, without, rope.replace(scaling=None))


# A class that computes what is asked for, although it is refused: by keys with which it did before, or by its default.
NEEDLESS = {}


@pytest.mark.parametrize("name, inner", BUILT, ids=lambda each: each)
def test_refused_embeddings_are_not_computed(name, inner):
    """With the keys that most classes read, in the place that the class reads, it computes something else or fails."""
    model = model_of(name, inner)
    needless = []
    for kind, title, outcome, rope, without, _ in outcomes(name, inner):
        if outcome == "refused" and isinstance(usual := written(rope, Provenance()), dict):
            path = model.place.get("path", ())
            seen = model.seen_with(merged(model.config, {path[0]: usual} if path else usual)).get(kind)
            needless += [(kind, title)] if seen is not None and is_ours(seen, without, rope) else []
    assert needless == NEEDLESS.get(name, [])


@pytest.mark.parametrize("name, inner", BUILT, ids=lambda each: each)
def test_rotation_without_our_keys_is_that_of_from_config(name, inner, record_property):
    """Where the family is known. The config has the keys that the class knows."""
    model = model_of(name, inner)
    config = model.known_config()
    for kind, seen in model.seen.items():
        try:
            rope = from_config(config, layer=mlx_models.ALTERNATING.index(kind))
        except (ValueError, TypeError) as error:
            record_property("unread", f"{kind}: {error}")
            continue
        record_property("compared", kind)
        assert rope is not None and seen.is_of(lambda n: at_length(rope, n)), (kind, rope)
        assert not seen.is_of(lambda n: at_length(rope, n).replace(base=1.01 * rope.base))


@pytest.mark.parametrize("name, inner", BUILT, ids=lambda each: each)
def test_the_kept_table_is_that_of_this_version(name, inner):
    kept = json.loads((engines.files(engines.__name__) / f"mlx-lm-{VERSION}.json").read_text("utf-8"))["readings"]
    of_model = {model: {key: value for key, value in each.items() if key != "models"} for each in kept for model in each["models"]}
    for title, reading in model_of(name, inner).readings().items():
        assert json.loads(json.dumps(reading)) == of_model[title]
