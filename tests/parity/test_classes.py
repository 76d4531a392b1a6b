"""benchmarks/parity.py finds all rotary classes of transformers and the mistakes that are planted here.

It compares every class itself, and fails where one disagrees.
"""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rope_xp._core.config import families

# Upstream warns of many of the configs tried, and of its own deprecations.
pytestmark = pytest.mark.filterwarnings("ignore")


def load():
    """The benchmark as a module; its own name is that of a well-known package."""
    file = Path(__file__).parents[2] / "benchmarks" / "parity.py"
    spec = importlib.util.spec_from_file_location("benchmarks_parity", file)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Thousands of small products, for which threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


coverage = load()
CLASSES = list(coverage.found())
FILES = {name: (folder, file, name) for folder, file, name in CLASSES}


def wrong(rows):
    return [(row.case, row.label, row.note) for row in rows if row.status == "wrong"]


def test_classes_are_found():
    assert len(CLASSES) > 200
    if coverage.version("transformers") == coverage.VERSIONS[-1]:  # those before it have fewer
        assert FILES.keys() >= coverage.SUBJECTS.keys()


def test_composite_configs_are_found():
    assert {name for name, _ in coverage.composites()} >= {name for name, *_ in MISTAKES_IN_PARTS.values()}


def test_a_class_is_covered_only_if_it_was_compared():
    def covered(*statuses):
        return coverage.Result("", "", "", [coverage.Outcome("", "", None, each) for each in statuses]).covered

    assert covered("refused upstream", "agrees") and covered("deviates")
    assert not covered() and not covered("refused upstream", "refused") and not covered("agrees", "wrong")


# Mistakes in what a family takes where a config says nothing: (rotary class, family, fields of its row).
MISTAKES = {
    "base of Qwen3-VL": ("Qwen3VLTextRotaryEmbedding", "qwen3_vl_text", {"base": 5_000_000.0}),
    "base of MiniMax-M2": ("MiniMaxM2RotaryEmbedding", "minimax_m2", {"base": 10_000.0}),
    "share of Phi": ("PhiRotaryEmbedding", "phi", {"partial": 1.0}),
    "share of Persimmon": ("PersimmonRotaryEmbedding", "persimmon", {"partial": 1.0}),
    "share of Nemotron": ("NemotronRotaryEmbedding", "nemotron", {"partial": 0.25}),
    "pairing of Kimi-K2": ("DeepseekV3RotaryEmbedding", "kimi_k2", {"layout": "half"}),
    "length of Phi-3": ("Phi3RotaryEmbedding", "phi3", {"original": 8192}),
    "head of Seed-OSS": ("SeedOssRotaryEmbedding", "seed_oss", {"head_dim": ("head_dim", 64)}),
    "base of Gemma 4's sliding layers": (
        "Gemma4TextRotaryEmbedding",
        "gemma4_text",
        {"by_layer": {**families._GEMMA4, "sliding_attention": {"base": 100_000.0}}},
    ),
    "keys of ModernBERT": (
        "ModernBertRotaryEmbedding",
        "modernbert",
        {
            "by_layer": {
                "full_attention": {"base": 160_000.0, "base_keys": ("local_rope_theta",)},
                "sliding_attention": {"base": 10_000.0, "base_keys": ("global_rope_theta",)},
            }
        },
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_defaults_are_found(mistake, monkeypatch):
    name, family, fields = MISTAKES[mistake]
    monkeypatch.setitem(families.FAMILIES, family, replace(families.FAMILIES[family], **fields))
    assert wrong(coverage.outcomes(*FILES[name], quick=mistake != "length of Phi-3"))


MISTAKES_IN_PARTS = {
    "path of SAM 3's backbone": ("sam3_video", "backbone", "tracker_config.vision_config.backbone_config"),
    "path of SAM 3's tracker": ("sam3_video", "tracker.vision.backbone", "tracker_config.backbone_config"),
    "path of GLM-4.6V's tower": ("glm46v", "vision", "vision"),
    "path of GLM-4.6V's text": ("glm46v", "text", "vision_config"),
}


@pytest.mark.parametrize("mistake", MISTAKES_IN_PARTS)
def test_mistakes_in_paths_are_found(mistake, monkeypatch):
    model_type, part, path = MISTAKES_IN_PARTS[mistake]
    parts = families.PARTS[model_type]
    monkeypatch.setitem(families.PARTS, model_type, {**parts, part: (path, parts[part][1])})
    whole = coverage.transformers.CONFIG_MAPPING[model_type]()
    assert wrong(coverage.parts(model_type, whole))


def test_a_mistake_in_a_default_of_fuyu_is_found(monkeypatch):
    """Its text is that of Persimmon, where the file states nothing of it."""
    monkeypatch.setitem(families.FAMILIES, "fuyu", replace(families.FAMILIES["fuyu"], base=500.0))
    assert wrong(coverage.parts("fuyu", coverage.transformers.CONFIG_MAPPING["fuyu"]()))


@pytest.mark.parametrize("known", [True, False])
def test_a_family_that_a_newer_transformers_adds_is_listed(known, monkeypatch):
    """It is a mistake only where every class must be covered."""
    monkeypatch.delitem(families.FAMILIES, "llama")
    monkeypatch.setattr(coverage, "is_known", lambda: known)
    (result,) = coverage.measure(quick=True, only=("LlamaRotaryEmbedding",))
    assert not result.covered and bool(result.wrong) == known
    assert result.why == "model_type 'llama' is not in FAMILIES"


def test_a_class_whose_import_is_missing_is_listed(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers.models.llama.modeling_llama", None)
    (result,) = coverage.measure(quick=True, only=("LlamaRotaryEmbedding",))
    assert not result.covered and not result.wrong and result.why.startswith("cannot be imported: ModuleNotFoundError")
