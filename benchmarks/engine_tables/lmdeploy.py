"""What lmdeploy's PyTorch engine reads: each model class is built from configs that differ in one thing.

`--source` is the folder of the unzipped wheel (`pip download --no-deps lmdeploy`). Its dependencies for CUDA are not
needed; nox's session `tests-lmdeploy` installs the others. A config is read and changed by lmdeploy's own code, as
`--hf-overrides` would; what its rotary embeddings compute is compared with and without the change.
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

from engine_tables import _switches
from engine_tables._stubs import stub

ENGINE = "lmdeploy"
# Model types whose default config is too large to build without a device "meta", or of which no model can be built.
LEFT_OUT = ("gemma3", "gemma3_text", "hy_v3", "llama4", "qwen3_next", "qwen3_omni_moe", "qwen3_vl_moe", "shieldgemma2")
FACTS = [
    {
        "models": ["*"],
        "text": "rope_theta at the top level of an override changes nothing with transformers 5: it must be in "
        "rope_parameters.",
        "source": "run at 0.18.0: pytorch/nn/rotary_embedding.py:222-229 reads rope_parameters",
    },
    {
        "models": ["*"],
        "text": "--hf-overrides are merged with the config at every depth: a key of the file's block stays unless the "
        "override names it.",
        "source": "pytorch/config.py:300-349 at 0.18.0, and run",
    },
    {
        "models": ["*"],
        "text": "--rope-scaling-factor is taken by the command line of TurboMind and read by no Python code.",
        "source": "cli/serve.py:303, messages.py:407 and turbomind/turbomind.py:218-260 at 0.18.0 (read)",
    },
    {
        "models": ["*"],
        "text": "TurboMind takes the factor of YaRN from max_position_embeddings / original_max_position_embeddings, "
        "and reads neither truncate nor longrope.",
        "source": "turbomind/models/utils.py:140-166 at 0.18.0 (read)",
    },
    {
        "models": ["gemma3", "gemma3_text"],
        "text": "With transformers 5 only a full_attention block with a factor is read, always as linear; without "
        "a factor, as in Gemma 3 1B, the model is not built: KeyError('factor').",
        "source": "pytorch/models/gemma.py:419-439 at 0.18.0, and run",
    },
]
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


def readings(source):
    """The version, and what each model type of transformers reads."""
    return load(source), _switches.readings(sys.modules[__name__], LEFT_OUT)


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
