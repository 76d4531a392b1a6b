"""lmdeploy's PyTorch engine without a GPU: its config code, and its model classes on the device "meta".

The wheel is unzipped and not installed, as its dependencies need CUDA. `load(source)` imports it.
"""

import contextlib
import functools
import importlib
import json
import logging
import sys
import tempfile
import warnings
from pathlib import Path

import torch

from engine_tables._stubs import stub

STUBS = (
    "cloudpickle",
    "fla",
    "openai_harmony",
    "partial_json_parser",
    "peft",
    "ray",
    "rdkit",
    "tilelang",
    "torchvision",
    "tvm_ffi",
    "xgrammar",
)
# The rules by lmdeploy's names.
RULES = {
    "Default": "default",
    "LinearScaling": "linear",
    "DynamicNTKScaling": "dynamic",
    "Llama3": "llama3",
    "Yarn": "yarn",
    "LongRoPEScaling": "longrope",
    "Fope": "fope",
}
CALLS = []  # the rotary embeddings of the model that is built, and what they were made from


@functools.cache
def load(source):
    """Import lmdeploy from a folder, and record the rotary embeddings that it builds. Returns its version."""
    sys.path.insert(0, str(source))
    stub(*STUBS)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    import lmdeploy.pytorch.nn as package
    from lmdeploy.pytorch.nn import rotary_embedding as module

    real = module.build_rotary_embedding

    @functools.wraps(real)
    def recorded(*values, **names):
        names |= dict(zip(real.__code__.co_varnames, values, strict=False))
        with torch.device("cpu"):
            rotary = real(**names | {"device": torch.device("cpu")})
        CALLS.append((names, rotary))
        return rotary

    module.build_rotary_embedding = package.build_rotary_embedding = recorded
    return importlib.import_module("lmdeploy.version").__version__


def classes():
    """The names that a config gives as architecture."""
    from lmdeploy.pytorch.models.module_map import MODULE_MAP

    return list(MODULE_MAP)


def kinds():
    """lmdeploy has no classes of configs of its own."""
    return {}


def overridden(config, overrides):
    """A config as lmdeploy's own code reads it from a file, with `--hf-overrides`."""
    from lmdeploy.pytorch.config import override_hf_config
    from lmdeploy.pytorch.transformers import config_from_pretrained

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        read = config_from_pretrained(folder, trust_remote_code=False)
    override_hf_config(read, overrides or {})
    return read


def build(config):
    """The rotary embeddings that lmdeploy builds for the model of a config, and the error at which it ended."""
    from lmdeploy.pytorch.configurations import AutoModelConfigBuilder
    from lmdeploy.pytorch.model_inputs import BuildModelContext
    from lmdeploy.pytorch.models.patch import build_model_from_hf_config

    CALLS.clear()
    error = None
    with contextlib.redirect_stdout(sys.stderr):
        try:
            AutoModelConfigBuilder.build(config)
            build_model_from_hf_config(config, torch.float32, torch.device("meta"), build_model_ctx=BuildModelContext())
        except Exception as found:
            error = found
    return [signature(*each) for each in CALLS], error


def signature(call, rotary):
    """What a rotary embedding does: its channels and its tables at some positions."""
    plain = getattr(rotary, "impl", rotary)
    length = call["max_position_embeddings"]
    tables = [
        torch.stack(plain(torch.zeros(1, 1), torch.arange(end - 4, end)[None])).tolist()
        for end in (8, length, 3 * length)
    ]
    sections = getattr(rotary, "mrope_section", None)
    return {
        "head_size": call["dim"],
        "rotary_dim": int(call["dim"] * (call.get("partial_rotary_factor") or 1.0)),
        "base": float(call["base"]),
        "max_position": length,
        "rule": RULES[call["emb_type"].name],
        "sections": sections and (list(sections), rotary.mrope_interleaved),
        "tables": tables,
    }
