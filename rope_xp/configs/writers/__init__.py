"""Write an embedding for other programs: one module for each kind of target."""

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Literal, NamedTuple

from rope_xp.arrays import checks
from rope_xp.errors import public, wrong_value
from rope_xp.frequencies import RULES, DynamicNTKScaling, NTKScaling, Scaling
from rope_xp.types import Config, Embedding, Values

# Targets of which keys are written, and those of which arguments of a command line are.
KeysTarget = Literal["transformers", "transformers4", "gguf", "lmstudio", "mlx", "megatron", "axolotl", "meta"]
FlagsTarget = Literal["vllm", "llama.cpp", "sglang", "lmdeploy"]
Target = Literal[KeysTarget, FlagsTarget]
Written = Values | list[str]  # keys, or arguments of a command line


class Writer(NamedTuple):
    """How an embedding is written for a target."""

    # Its module here, which is imported when it is first used, and its name; it is called with an embedding and
    # `Options`.
    function: str
    result: str  # what the function returns, in words
    engine: str = ""  # whose tables (`rope_xp/configs/engines`) it reads, and whose version may be given
    takes_architecture: bool = False  # of a GGUF file
    # The layers that the settings are for: "all", so that layers which differ are refused; "full_attention", and
    # others stay as the file has them; or "each", those of the embedding: a config has a block for each type of layers.
    layers: str = "all"
    # The function for layers that differ, which is called with embeddings by type and `Options`. Empty if the settings
    # of each type are joined.
    of_types: str = ""


class Options(NamedTuple):
    """What the caller says of the target, besides its name."""

    architecture: str | None = None
    engine_version: str | None = None
    context: int | None = None  # the length of sequences that the program must accept, in tokens


# In the order in which people ask.
TARGETS = {
    "transformers": Writer(
        "transformers.transformers_keys", "rope_parameters of a config", "transformers", layers="each"
    ),
    "transformers4": Writer("transformers.transformers4_keys", "keys of a config.json", "transformers", layers="each"),
    "vllm": Writer(
        "vllm.vllm_flags",
        "arguments of a command line",
        engine="vllm",
        layers="each",
        of_types="vllm.flags_of_types",
    ),
    "sglang": Writer("sglang.sglang_flags", "arguments of a command line", engine="sglang"),
    "llama.cpp": Writer(
        "llama_cpp.llama_cpp_flags",
        "arguments of a command line",
        engine="llama.cpp",
        takes_architecture=True,
        layers="full_attention",
    ),
    "gguf": Writer("llama_cpp.gguf_metadata", "metadata of a file", engine="llama.cpp", takes_architecture=True),
    "mlx": Writer("mlx.mlx_keys", "keys of a config", engine="mlx-lm", layers="each"),
    "lmdeploy": Writer("sglang.lmdeploy_flags", "arguments of a command line", engine="lmdeploy"),
    "axolotl": Writer("transformers.axolotl_keys", "a key of its YAML file"),
    "lmstudio": Writer("llama_cpp.lmstudio_keys", "keys of a load config", layers="full_attention"),
    "megatron": Writer("megatron.megatron_arguments", "arguments by name"),
    "meta": Writer("meta.meta_keys", "keys of a params.json"),
}
# Those whose program computes dynamic NTK for each length, as the rule does. Others have one length for all sequences.
FOLLOWING_LENGTH: tuple[str, ...] = ("transformers", "transformers4", "mlx", "axolotl", "lmdeploy")
# Those with settings for the length of sequences, `Options.context`.
WITH_CONTEXT: tuple[str, ...] = ("vllm", "llama.cpp", "gguf", "lmstudio", "sglang", "lmdeploy")
# Programs for which nothing can be written, and why.
REFUSED = {
    "ollama": "its options have no key for RoPE; a GGUF file that has the rule needs none: "
    'to_config("gguf", architecture=...) writes its metadata, if it can have the rule',
    "llama-factory": "its rope_scaling names only a rule; it replaces the rotary block, with factor = "
    "ceil(model_max_length / trained length) and without other keys. Write them into config.json, see "
    'to_config("transformers"), and leave rope_scaling out',
    "unsloth": "it computes frequencies itself, from a rope_scaling that it takes only if the rule is linear, yarn or "
    "llama3, and without one it makes rules other than llama3 linear beyond the trained length. Write the keys into "
    'config.json, see to_config("transformers")',
}


def is_written(rope: Embedding, target: str, may_be_unknown: bool) -> bool:
    """Whether a target has settings for an embedding, and, unless that may be unknown, its program reads them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if may_be_unknown else "error", UserWarning)
        try:
            config_for(rope, target, Options())
        except (ValueError, UserWarning):
            return False
    return True


@public("RotaryEmbedding.to_config")  # the command calls it, too
def config_for(rope: Embedding, target: str, options: Options) -> Written:
    if isinstance(target, str) and target in REFUSED:
        raise wrong_value(f"target must be a program with settings for rotation; got {target!r}: {REFUSED[target]}")
    checks.one_of("target", target, {name: each.result for name, each in TARGETS.items()})
    writer = TARGETS[target]
    targets_with = {
        "architecture": [name for name, each in TARGETS.items() if each.takes_architecture],
        "engine_version": [name for name, each in TARGETS.items() if each.engine],
        "context": WITH_CONTEXT,
    }
    for name, targets in targets_with.items():
        value = getattr(options, name)
        if value is not None and target not in targets:
            names = ", ".join(f'"{each}"' for each in targets)
            raise wrong_value(f"{name} must be given only for {names}; got {value!r}")
    if options.context is not None:
        options = options._replace(context=_context(rope.scaling, target, options.context))
    require_layers(rope, target, writer.layers)
    # A class that is derived from a rule may have other frequencies, but would be written by the rule's name.
    for rule in ({*RULES.values(), NTKScaling} - {Scaling}).intersection(type(rope.scaling).__mro__[1:]):
        found = f"{type(rope.scaling).__name__}, derived from {rule.__name__}"
        raise wrong_value(f"scaling must be of a class derived from Scaling alone; got {found}")
    return _function(writer.function)(rope, options)


def _context(rule: Scaling | None, target: str, given: int) -> int:
    context = checks.length("context", given)
    if isinstance(rule, DynamicNTKScaling) and target not in FOLLOWING_LENGTH and context > rule._length:
        raise wrong_value(
            f"context must be at most {rule._length}, the length that dynamic NTK is for in {target}; got {context}: "
            "from_config and the rule need it as seq_len"
        )
    return context


def require_layers(rope: Embedding, target: str, layers: str) -> None:
    """The layers with this embedding must be those that a target's settings are for: `Writer.layers`."""
    found = rope._provenance.layers
    if found and layers == "all":
        raise wrong_value(
            f"all layers must have the same embedding for target {target!r}, whose settings are for all of "
            f"them; got that of {found!r}, and others differ"
        )
    if found not in ("", "full_attention") and layers == "full_attention":
        raise wrong_value(
            f"layer_type must be 'full_attention' for target {target!r}, whose settings leave other layers as "
            f"the file has them; got {found!r}"
        )


def config_for_layers(ropes: Mapping[str, Embedding], target: str, options: Options, by_type: bool) -> Written:
    """What `to_config` returns, for layers that differ: as one, or by their names if these are not those of types."""
    writer = TARGETS[target]
    if writer.of_types:
        return _function(writer.of_types)(ropes, options)
    if writer.layers in ropes:  # the others stay as the file has them
        return config_for(ropes[writer.layers], target, options)
    found: dict[str, Any] = {name: config_for(rope, target, options) for name, rope in ropes.items()}
    return found if target == "transformers" or not by_type else joined_keys(target, found)


def joined_keys(target: str, found: Mapping[str, Config]) -> Values:
    """The keys of all types of layers. The same key must have one value, or objects that can be joined."""
    joined: Values = {}
    for name, keys in found.items():
        for key, value in keys.items():
            known = joined.setdefault(key, value)
            if isinstance(known, Mapping) and isinstance(value, Mapping) and key != "rope_scaling":
                joined[key] = joined_keys(target, {"the others": known, name: value})
            elif known != value:
                raise wrong_value(
                    f"layers must differ only in keys that {target} has for each of their types; got {key} of {name} "
                    "beside another one"
                )
    return joined


def _function(place: str) -> Callable[..., Written]:
    module, name = place.split(".")
    return getattr(import_module(f"{__name__}.{module}"), name)
