"""Write an embedding for other programs: one module for each kind of target."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal

from rope_xp._core import checks

Target = Literal["transformers", "vllm", "llama.cpp", "gguf", "mlx", "megatron", "meta"]

# What `to_config` returns for a target.
TARGETS = {
    "transformers": "rope_parameters of a config",
    "vllm": "arguments of a command line",
    "llama.cpp": "arguments of a command line",
    "gguf": "metadata of a file",
    "mlx": "keys of a config",
    "megatron": "arguments by name",
    "meta": "keys of a params.json",
}
# The function that writes for each target, and whether it needs the architecture of a GGUF file.
WRITERS = {
    "transformers": ("transformers.rope_parameters", False),
    "vllm": ("vllm.vllm_flags", False),
    "llama.cpp": ("llama_cpp.llama_cpp_flags", True),
    "gguf": ("llama_cpp.gguf_metadata", True),
    "mlx": ("mlx.mlx_keys", False),
    "megatron": ("megatron.megatron_arguments", False),
    "meta": ("meta.meta_keys", False),
}


def config_for(who: str, rope: Any, target: Any, architecture: Any) -> Any:
    """The embedding as keys or arguments of a target."""
    checks.one_of(who, "target", target, TARGETS)
    place, needs_architecture = WRITERS[target]
    if architecture is not None and not needs_architecture:
        raise ValueError(f'{who}: architecture must be given only for "gguf" and "llama.cpp"; got {architecture!r}')
    module, name = place.split(".")
    write: Callable[..., Any] = getattr(import_module(f"{__name__}.{module}"), name)
    return write(who, rope, architecture) if needs_architecture else write(who, rope)


def with_length(target: Target, settings: Any, length: int) -> Any:
    """What `to_config` returns, and the arguments by which an engine accepts sequences of this length."""
    if target == "vllm":
        from rope_xp._core.writers import vllm  # not needed to import rope_xp

        return vllm.with_length(settings, length)
    return [*settings, "-c", str(length)] if target == "llama.cpp" else settings
