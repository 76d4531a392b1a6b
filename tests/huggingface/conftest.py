"""What all tests of models of transformers share: one thread, and tiny models from benchmarks."""

# pyright: reportMissingImports=false

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # those of importing torch's and transformers' own
    import torch
    import transformers  # noqa: F401

torch.set_num_threads(1)


def pytest_configure(config):
    for kind in ("UserWarning", "FutureWarning"):  # of unusual configs
        config.addinivalue_line("filterwarnings", f"ignore::{kind}:transformers.*")
