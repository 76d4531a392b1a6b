"""SGLang without a GPU: its server's settings, its config code, and its model classes on the device "meta".

The wheel is unzipped and not installed, as its dependencies need CUDA. `load(source)` imports it.
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

from engine_tables._stubs import stub

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
