"""Tiny models of the installed transformers, 4 or 5, rotate as the embedding does whose keys they load.

`nox -s tests-transformers4` runs this with the newest transformers 4, `nox -s tests-huggingface` with 5.
"""

# pyright: reportMissingImports=false

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from rope_xp import from_config
from rope_xp.configs import engines
from rope_xp.provenance import Provenance, with_provenance

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

try:
    from engine_tables import _tiny_models as tiny
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    pytest.fail("transformers must be installed: `nox -s tests-transformers4` does that", pytrace=False)

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]
TABLE = engines.table("transformers", tiny.transformers.__version__)
TARGET = "transformers4" if tiny.IS_4 else "transformers"
# Float32 frequencies have an error of 4 * 2**-24 each, so that phases below 64 are off by 64 * 2**-22 = 1.6e-5, and
# NTK's base has an error that doubles it.
TOLERANCE = 4e-5
ORIGINAL = "original_max_position_embeddings"
BASE = 12_345.0
SHORT, LONG = ([1 + pair / step for pair in range(64)] for step in (10, 3))
LONGROPE = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 64}
YARN = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 4096}
# The block of a rule, and keys beside it.
CASES = {
    "default": ({"rope_type": "default"}, {}),
    "half of the head": ({"rope_type": "default"}, {"partial_rotary_factor": 0.5}),
    "linear": ({"rope_type": "linear", "factor": 4.0}, {}),
    "dynamic": ({"rope_type": "dynamic", "factor": 4.0}, {"max_position_embeddings": 32}),
    "yarn": (YARN, {}),
    "yarn, all keys": ({**YARN, "beta_fast": 8.0, "beta_slow": 2.0, "truncate": False, "attention_factor": 1.25}, {}),
    "yarn, mscale": ({**YARN, "mscale": 0.7, "mscale_all_dim": 0.4}, {}),
    "llama3": (LLAMA3, {}),
    "longrope, short": ({**LONGROPE, ORIGINAL: 256}, {ORIGINAL: 256, "max_position_embeddings": 1024}),
    "longrope, long": ({**LONGROPE, ORIGINAL: 16}, {ORIGINAL: 16, "max_position_embeddings": 64}),
}


def kinds_of(model_type):
    """The types of layers whose embeddings differ."""
    return sorted({call.kind for call in tiny.calls(tiny.keys_of(model_type))})


def embedding(keys, kind, case):
    """What rope_xp reads from the keys of a case for the layers of a kind; None if it refuses them."""
    block, beside = CASES[case]
    sections = {name: value for name, value in _block(keys).items() if name.startswith("mrope")}
    given = {name: value for name, value in keys.items() if name not in ("rope_scaling", "rope_parameters")}
    for pairs in (tiny.HEAD // 2, tiny.HEAD // 4, tiny.HEAD // 8):
        own = {
            name: value[:pairs] if "or_" not in name and isinstance(value, list) else value
            for name, value in block.items()
        }
        own = {**own, "rope_theta": BASE, **sections}
        of_types = _nested(keys)
        blocks = {"rope_parameters": {name: own for name in of_types} if of_types else own}
        if tiny.IS_4:
            blocks = {"rope_scaling": own, "rope_theta": BASE}
        layer = {"layer_type": kind} if kind and len({*keys.get("layer_types", ())}) > 1 else {}
        seq_len = tiny.TOKENS if case == "dynamic" or case.startswith("longrope") else None
        try:
            return from_config({**given, **beside, **blocks}, seq_len=seq_len, **layer)
        except ValueError:
            continue
    return None


def _block(keys):
    found = keys.get("rope_parameters") or keys.get("rope_scaling") or {}
    return next((value for value in found.values() if isinstance(value, dict)), found)


def _nested(keys):
    found = keys.get("rope_parameters") or {}
    return [name for name, value in found.items() if isinstance(value, dict)]


def written(rope, keys, kind, beside):
    """The whole config.json with what `to_config` writes. Other keys of lengths are those of the case."""
    settings = rope.to_config(TARGET)
    keys = {**keys, **{name: value for name, value in beside.items() if name != "partial_rotary_factor"}}
    if tiny.IS_4:
        return {**keys, **settings}
    nested = _nested(keys)
    return {**keys, "rope_parameters": {name: settings for name in nested} if nested else settings}


def differences(keys, rope, kind, folder):
    """The largest difference of rotated queries in each layer; none if transformers raises an error."""
    (folder / "config.json").write_text(json.dumps(keys))
    try:
        calls = tiny.calls(folder)
    except Exception:  # classes raise anything for keys that they do not know
        return []
    return [difference(call, rope) for call in calls if call.kind == kind]


def difference(call, rope):
    """Of one call. Some functions get only the channels that are rotated."""
    x = tiny.probe(call.shape).numpy()
    width = x.shape[-1]
    if width not in (rope.head_dim, rope.rotary_dim):
        return np.inf
    padded = np.concatenate([x, np.zeros((*x.shape[:-1], rope.head_dim - width), x.dtype)], -1)
    positions = tiny.AXES[: rope.axes] if rope.axes > 1 else np.arange(tiny.TOKENS)
    ours = rope(padded, positions=positions, seq_dim=call.seq_dim)[..., :width]
    return float(np.abs(ours - tiny.rotated(call).numpy()).max()) / max(1.0, rope.attention_factor)


@pytest.mark.parametrize("model_type", sorted(TABLE.readings))
def test_models_rotate_as_the_embedding_does(model_type, tmp_path):
    """What is refused, transformers would compute otherwise."""
    keys, wrong = tiny.keys_of(model_type), []
    for kind in kinds_of(model_type):
        for case, (_, beside) in CASES.items():
            rope = embedding(keys, kind, case)
            if rope is None:
                continue
            try:
                file, refused = written(rope, keys, kind, beside), ""
            except ValueError as error:
                refused = str(error)
                forced = with_provenance(rope, Provenance())
                try:
                    file = written(forced, keys, kind, beside)
                except ValueError:  # no config of transformers has it
                    continue
            found = differences(file, rope, kind, tmp_path)
            # A class that ignores mscale_all_dim in the scale of the softmax rotates alike.
            equal = bool(found) and max(found) <= TOLERANCE and "softmax_scale must" not in refused
            if equal == bool(refused):
                wrong.append((kind, case, refused, found))
    assert not wrong


@pytest.mark.parametrize("case", ["default", "linear", "yarn", "llama3"])
def test_planted_mistakes_are_seen(case, tmp_path):
    keys = tiny.keys_of("llama")
    rope = embedding(keys, "", case)
    right = written(rope, keys, "", {})
    assert max(differences(right, rope, "", tmp_path)) <= TOLERANCE
    others = [rope.replace(base=BASE * 1.01)] + ([rope.replace(scaling=None)] if rope.scaling else [])
    for other in others:
        assert max(differences(written(other, keys, "", {}), rope, "", tmp_path)) > 20 * TOLERANCE
