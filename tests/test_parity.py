"""Rotary classes of transformers, rebuilt from their configs: benchmarks/parity.py in short, one test per class."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

# Upstream warns of many of the configs tried, and of its own deprecations.
pytestmark = pytest.mark.filterwarnings("ignore")


def load():
    """The benchmark as a module; its own name is that of a well-known package."""
    file = Path(__file__).parents[1] / "benchmarks" / "parity.py"
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


def test_classes_are_found():
    assert len(CLASSES) > 200
    assert {name for _, _, name in CLASSES} >= coverage.SUBJECTS.keys()


@pytest.mark.parametrize(("folder", "file", "name"), CLASSES, ids=[name for _, _, name in CLASSES])
def test_parity(folder, file, name):
    rows = list(coverage.outcomes(folder, file, name, quick=True))
    assert rows
    assert not [(row.case, row.label, row.note) for row in rows if row.status == "wrong"]
    if name in coverage.NOT_ROTATIONS:
        low, high = coverage.norms(folder, file, name)
        assert low < 0.99 or high > 1.01
    else:
        assert [row for row in rows if row.status in ("agrees", "deviates")]
