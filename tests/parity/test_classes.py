"""benchmarks/parity.py finds all rotary classes of transformers and the mistakes that are planted here.

It compares every class itself, and fails where one disagrees.
"""

import inspect
import re
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
import transformers

from rope_xp.configs import engines
from rope_xp.configs import parts as family_parts
from rope_xp.configs.families import model_types
from rope_xp.configs.families.family import LayerType, Pairing

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from rotary_classes import outcomes, parts, rows
from rotary_classes.classes import found
from rotary_classes.subjects import SUBJECTS

# Upstream warns of many of the configs tried, and of its own deprecations.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]


CLASSES = list(found())
FILES = {name: (folder, file, name) for folder, file, name in CLASSES}


def wrong(found):
    return [(row.case, row.label, row.note) for row in found if row.status == "wrong"]


def test_classes_are_found():
    assert len(CLASSES) == rows.VERSIONS.get(version("transformers"), len(CLASSES)) > 200
    if version("transformers") == list(rows.VERSIONS)[-1]:  # those before it have fewer
        assert {name.removesuffix("RotaryEmbedding") for name in FILES} >= SUBJECTS.keys()


def test_rules_with_which_classes_fail_without_head_dim():
    table, tested = engines.table("transformers", version("transformers")), set()
    for model_type, reading in table.readings.items():
        family = model_types.FAMILIES_OF_TRANSFORMERS.get(model_type)
        if "yarn" not in reading.rules or family is None or family.layers.types or family.layers.by_type:
            continue
        config = transformers.CONFIG_MAPPING[model_type]
        modeling = import_module(config.__module__.replace("configuration_", "modeling_"))
        names = [each for each in FILES if hasattr(modeling, each) and not re.search("Vision|Audio", each)]
        block = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 32}
        sizes = config(hidden_size=64, num_attention_heads=4, rope_parameters=block)
        needed = table.needs_head_dim(model_type, "yarn")
        for name in names[:1]:  # none where it is that of another family
            with pytest.raises(TypeError, match="NoneType") if needed else nullcontext():
                getattr(modeling, name)(sizes)
            tested.add((model_type, needed))
    assert len(tested) > 50
    models = {name for fact in table.facts if fact.need_head_dim and not fact.before for name in fact.models}
    assert {name for name, needed in tested if needed} == models - {"minimax"}  # its row has types of layers


def test_composite_configs_are_found():
    assert {name for name, _ in parts.composites()} >= {name for name, *_ in MISTAKES_IN_PARTS.values()}


def test_a_class_is_covered_only_if_it_was_compared():
    def covered(*statuses):
        return rows.Result("", [rows.Outcome("", "", None, each) for each in statuses]).covered

    assert covered("refused upstream", "agrees") and covered("deviates")
    assert not covered() and not covered("refused upstream", "refused") and not covered("agrees", "wrong")


def says(family, **defaults):
    """A family, and its row with other defaults."""
    row = model_types.FAMILIES[family]
    return family, replace(row, defaults={**row.defaults, **defaults})


def with_types(family, **by_type):
    """A family, and its row with types of layers that differ in another way."""
    layers = model_types.FAMILIES[family].layers
    return family, replace(model_types.FAMILIES[family], layers=replace(layers, by_type={**layers.by_type, **by_type}))


OTHER_BASE = LayerType({"rope_theta": 100_000.0})
SLIDING = LayerType({"rope_theta": 10_000.0}, base_keys=("global_rope_theta",))
FULL = LayerType({"rope_theta": 160_000.0}, base_keys=("local_rope_theta",))
# Mistakes in what a family takes where a config says nothing: (rotary class, family, its row).
MISTAKES = {
    "base of Qwen3-VL": ("Qwen3VLText", *says("qwen3_vl_text", rope_theta=5e6)),
    "base of MiniMax-M2": ("MiniMaxM2", *says("minimax_m2", rope_theta=1e4)),
    "share of Phi": ("Phi", *says("phi", partial_rotary_factor=1.0)),
    "share of Persimmon": ("Persimmon", *says("persimmon", partial_rotary_factor=1.0)),
    "share of Nemotron": ("Nemotron", *says("nemotron", partial_rotary_factor=0.25)),
    "pairing of Kimi-K2": ("DeepseekV3", "kimi_k2", replace(model_types.FAMILIES["kimi_k2"], pairing=Pairing("half"))),
    "length of Phi-3": ("Phi3", *says("phi3", original_max_position_embeddings=8192)),
    "head of Seed-OSS": ("SeedOss", *says("seed_oss", head_dim=64)),
    "sliding base of Gemma 4": ("Gemma4Text", *with_types("gemma4_text", sliding_attention=OTHER_BASE)),
    "keys of ModernBERT": ("ModernBert", *with_types("modernbert", full_attention=FULL, sliding_attention=SLIDING)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_defaults_are_found(mistake, monkeypatch):
    name, family, row = MISTAKES[mistake]
    monkeypatch.setitem(model_types.FAMILIES, family, row)
    assert wrong(outcomes.outcomes(*FILES[f"{name}RotaryEmbedding"], quick=mistake != "length of Phi-3"))


MISTAKES_IN_PARTS = {
    "path of SAM 3's backbone": ("sam3_video", "backbone", "tracker_config.vision_config.backbone_config"),
    "path of SAM 3's tracker": ("sam3_video", "tracker.vision.backbone", "tracker_config.backbone_config"),
    "path of GLM-4.6V's tower": ("glm46v", "vision", "vision"),
    "path of GLM-4.6V's text": ("glm46v", "text", "vision_config"),
}


@pytest.mark.parametrize("mistake", MISTAKES_IN_PARTS)
def test_mistakes_in_paths_are_found(mistake, monkeypatch):
    model_type, part, path = MISTAKES_IN_PARTS[mistake]
    usual = family_parts.PARTS[model_type]
    monkeypatch.setitem(family_parts.PARTS, model_type, {**usual, part: (path, usual[part][1])})
    whole = transformers.CONFIG_MAPPING[model_type]()
    assert wrong(parts.parts(model_type, whole))


def test_a_mistake_in_a_default_of_fuyu_is_found(monkeypatch):
    """Its text is that of Persimmon, where the file states nothing of it."""
    monkeypatch.setitem(model_types.FAMILIES, *says("fuyu", rope_theta=500.0))
    assert wrong(parts.parts("fuyu", transformers.CONFIG_MAPPING["fuyu"]()))


@pytest.mark.parametrize("known", [True, False])
def test_a_family_that_a_newer_transformers_adds_is_listed(known, monkeypatch):
    """It is a mistake only where every class must be covered."""
    monkeypatch.delitem(model_types.FAMILIES, "llama")
    monkeypatch.setattr(rows, "is_known", lambda: known)
    (result,) = outcomes.measure(quick=True, only=("LlamaRotaryEmbedding",))
    assert not result.covered and bool(result.wrong) == known
    assert result.why == "model_type 'llama' is not in FAMILIES"


def test_a_class_whose_import_is_missing_is_listed(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers.models.llama.modeling_llama", None)
    (result,) = outcomes.measure(quick=True, only=("LlamaRotaryEmbedding",))
    assert not result.covered and not result.wrong and result.why.startswith("cannot be imported: ModuleNotFoundError")


@cache
def may_rotate(folder):
    """Whether the code of model types names a rotation, or a config chooses one of their classes."""
    code = "".join(file.read_text() for kind in ("configuration", "modeling") for file in folder.glob(f"{kind}_*.py"))
    if not [*folder.glob("modeling_*.py")] or re.search(r"[Rr]otary|R[Oo]PE|rotate_half|(?<![a-z])rope", code):
        return True
    code = re.sub(r'(?s)""".*?"""|#[^\n]*', "", code)
    return re.search(r"\bAuto(Model|Config|Backbone)|\bCONFIG_MAPPING|\bload_backbone\(|import timm", code) is not None


def test_model_types_without_a_rotary_embedding():
    """A newer transformers may have more of them."""
    folders = {name: Path(inspect.getfile(config)).parent for name, config in transformers.CONFIG_MAPPING.items()}
    found = {name for name, folder in folders.items() if not may_rotate(folder)}
    listed = model_types.NOT_ROTARY.split()
    assert listed == sorted(listed) and folders.keys() & {*listed} <= found
    if version("transformers") == "5.18.0":
        assert found - {*model_types.FAMILIES, *model_types.UNROTATED} == {*listed}
