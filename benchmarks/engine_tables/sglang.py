"""What SGLang reads: each model class is built on the device "meta" from configs that differ in one thing.

`--source` is the folder of the unzipped wheel (`pip download --no-deps sglang`). Its dependencies for CUDA are not
needed; nox's session `tests-sglang` installs the others. A config is read and changed by SGLang's own code, as
`--json-model-override-args` would; what reaches `get_rope` is compared with and without the change.
"""

import contextlib
import functools
import importlib
import json
import logging
import pkgutil
import sys
import tempfile
import warnings
from pathlib import Path

import torch

from engine_tables import _switches
from engine_tables._stubs import stub

ENGINE = "sglang"
# Model types whose text model has a rotary class of its own, beside `get_rope` or without it, or an indexer that is
# rotated otherwise: the script cannot tell them apart.
OWN = ("beam", "gemma3", "gemma3_text", "gigachat3_5", "glm_image", "glm_moe_dsa", "shieldgemma2")
# What is not fixed, although no override changes it: mllama4.py permutes the weights when they are loaded, and
# minimax_m2.py:673 reads `rotary_dim` of the config.
NOT_FIXED = {"llama4": "layout", "llama4_text": "layout", "minimax_m2": "rotated"}
FACTS = [
    {
        "models": ["*"],
        "text": "rope_theta at the top level of an override changes nothing where it is read in the block alone.",
        "source": "run at 0.5.23: utils/hf_transformers/config.py:409-422 sets an attribute that classes do not read",
    },
    {
        "models": ["*"],
        "text": "An override of rope_parameters or rope_scaling at the top level is merged with the block of the file; "
        "below text_config it replaces the block.",
        "source": "utils/hf_transformers/config.py:413-422 at 0.5.23, and run",
    },
    {
        "models": ["*"],
        "text": "--context-length scales nothing, and more than factor * max_position_embeddings (without an original "
        "length in the block) is an error, unless SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN is set.",
        "source": "configs/model_config.py:1291-1319 and utils/hf_transformers/common.py:677 at 0.5.23",
    },
    {
        "models": ["*"],
        "text": "Dynamic NTK has one base for all lengths, that of factor * max_position_embeddings.",
        "source": "layers/rotary_embedding/rope_variant.py at 0.5.23, and run",
    },
]
STUBS = (
    "av",
    "cuda",
    "cutlass",
    "decord",
    "deep_gemm",
    "flashinfer",
    "sgl_kernel",
    "soundfile",
    "torch_memory_saver",
    "torchaudio",
    "torchvision",
    "tvm_ffi",
    "vllm",
    "xgrammar",
)
CALLS = []  # what the rotary embeddings of the model that is built were made from


def readings(source):
    """The version, and what each model type of transformers and of SGLang reads."""
    version = load(source)
    found = _switches.readings(sys.modules[__name__], OWN)
    for model_type, name in NOT_FIXED.items():
        found[model_type]["fixed"].pop(name, None)
    return version, found


@functools.cache
def load(source):
    """Import SGLang from a folder, record calls of `get_rope`, and begin what a server begins. Returns its version."""
    sys.path.insert(0, str(source))
    stub(*STUBS)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    import sglang.srt.layers.rotary_embedding as package
    from sglang.srt.layers.rotary_embedding import factory, rope_variant

    rope_variant.get_device = lambda *_: "cpu"  # where the tables of DeepSeek's YaRN are made
    real = factory.get_rope

    @functools.wraps(real)
    def recorded(*values, **names):
        names |= dict(zip(real.__code__.co_varnames, values, strict=False))
        scaling = names.get("rope_scaling")
        names["rope_scaling"] = json.loads(json.dumps(scaling)) if scaling else None
        for name in ("dtype", "device"):
            names.pop(name, None)
        with torch.device("cpu"):
            rotary = real(**names, dtype=torch.float32)  # the tables of a GPU's `get_rope`, made on the CPU
        CALLS.append((names, rotary))
        return rotary

    for name in ("get_rope", "get_rope_wrapper"):
        setattr(factory, name, recorded)
        setattr(package, name, recorded)
    _begin()
    return importlib.import_module("sglang.version").__version__


def _begin():
    """The settings of a server, and groups of one process."""
    from sglang.srt.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import ServerArgs
    from transformers import LlamaConfig

    config = LlamaConfig(num_hidden_layers=1, vocab_size=32, architectures=["LlamaForCausalLM"])
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        publish(
            ServerArgs(model_path=folder, device="cpu", load_format="dummy"),
            role="scheduler",
            ranks=SpawnRanks(world_rank=0),
        )
    group = Path(tempfile.mkdtemp()) / "group"
    init_distributed_environment(1, 0, f"file://{group}", 0, "gloo")
    initialize_model_parallel("gloo")


@functools.cache
def classes():
    """The classes of models by the name that a config gives as architecture."""
    import sglang.srt.models as models

    found = {}
    for each in pkgutil.iter_modules(models.__path__):
        try:
            module = importlib.import_module(f"{models.__name__}.{each.name}")
        except Exception as error:
            print(f"{each.name} is not imported: {error}", file=sys.stderr)
            continue
        entry = getattr(module, "EntryClass", ())
        found |= {one.__name__: one for one in (entry if isinstance(entry, list | tuple) else [entry])}
    return found


def kinds():
    """SGLang's own classes of configs, by model type."""
    from sglang.srt.utils.hf_transformers.common import _CONFIG_REGISTRY

    return _CONFIG_REGISTRY


def overridden(config, overrides):
    """A config as SGLang's own code reads it from a file, with `--json-model-override-args`."""
    from sglang.srt.utils.hf_transformers.config import get_config

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        get_config.cache_clear() if hasattr(get_config, "cache_clear") else None
        return get_config(folder, trust_remote_code=False, model_override_args=overrides)


def build(config):
    """What `get_rope` gives while SGLang builds the model of a config, and the error at which that ended."""
    from sglang.srt.layers.rotary_embedding import factory

    CALLS.clear()
    factory._ROPE_DICT.clear()
    error = None
    with torch.device("meta"), contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings(action="ignore"):
        try:
            classes()[config.architectures[0]](config)
        except Exception as found:
            error = found
    return [signature(*each) for each in CALLS], error


def signature(call, rotary):
    """What a rotary embedding does: its channels and its tables at some positions."""
    cache = rotary.cos_sin_cache if hasattr(rotary, "cos_sin_cache") else rotary.long_short_cos_sin_cache
    scaling = call["rope_scaling"] or {}
    sections = getattr(rotary, "mrope_section", None)
    return {
        "head_size": call["head_size"],
        "rotary_dim": rotary.rotary_dim,
        "base": float(call["base"]),
        "layout": "half" if getattr(rotary, "is_neox_style", True) else "interleaved",
        "max_position": call["max_position"],
        "rule": scaling.get("rope_type", scaling.get("type", "default")),
        "reached": {
            key: value for key, value in scaling.items() if key != "rope_theta" and not isinstance(value, list)
        },
        "sections": sections and (list(sections), getattr(rotary, "mrope_interleaved", False)),
        "tables": (len(cache), cache[[1, 2, len(cache) // 2, -1]].tolist()),
    }
