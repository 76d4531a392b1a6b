"""The embedding that an engine computes from a config with the arguments of its command line.

Arguments only change the mapping that is then read: `command_line` says what they are and whose, `overrides` changes a
config.json, and `llama_cpp_arguments` the metadata of a GGUF file.
"""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from rope_xp.configs.readers.command_line import CommandLine, command_line
from rope_xp.configs.readers.llama_cpp_arguments import KIND, LENGTH, with_arguments
from rope_xp.configs.readers.overrides import with_overrides
from rope_xp.configs.writers import gguf_architectures as gguf
from rope_xp.provenance import with_provenance
from rope_xp.types import Config

__all__ = ["Changed", "CommandLine", "changed_by", "command_line", "metadata_of"]


class Changed(NamedTuple):
    """What is read in place of a config."""

    mapping: Config
    context: int | None  # the length of the engine, which LongRoPE depends on
    betas: Mapping[str, float]  # the ends of YaRN's ramp that arguments of llama.cpp state: keys of the rotary block
    remarks: tuple[str, ...]  # sentences about arguments that do not do what one would expect


def changed_by(line: CommandLine, whole: Config, part: str | None) -> Changed:
    """The mapping with the arguments. For llama.cpp, it is the metadata of a GGUF file."""
    if line.engine == "llama.cpp":
        mapping, betas, context, remarks = with_arguments(line, whole)
        return Changed(mapping, context, betas, tuple(remarks))
    mapping, context, remarks = with_overrides(line, whole, part)
    return Changed(mapping, context, {}, tuple(remarks))


# Architectures that accept every rule, for families whose architecture is not known.
WHOLE, PARTIAL = {"half": "exaone", "interleaved": "minicpm"}, {"half": "stablelm", "interleaved": "chatglm"}


def metadata_of(rope: Any) -> tuple[dict[str, Any], list[str]]:
    """What llama.cpp's converter writes into a file for an embedding, as the writer of "gguf" knows it; and remarks.

    The converter permutes projections so that the pairing is that of the architecture.
    """
    name = gguf.ARCHITECTURE_OF.get(rope._provenance.model_type)
    if name is None and rope.sections is None and rope.softmax_scale == 1.0:
        name = (WHOLE if rope.rotary_dim == rope.head_dim else PARTIAL).get(rope.layout)
    metadata: dict[str, Any] = {"general.architecture": name}
    if rope.sections is not None:
        metadata[f"{name}.rope.dimension_sections"] = rope.sections.sizes
    layout = gguf.gguf_layout(metadata)
    if layout is not None and layout not in rope.layout:
        rope = with_provenance(rope.replace(layout=layout), rope._provenance)
    length = rope._provenance.max_position_embeddings
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        own = with_provenance(rope, replace(rope._provenance, layer_type=""))  # the keys of layers with full attention
        found = {gguf.FREQS: None, **own.to_config("gguf", architecture=name)}
    name = found["general.architecture"]
    if found.get(f"{name}.{KIND}") == "none":  # the converter omits it, and llama.cpp's default is "linear"
        del found[f"{name}.{KIND}"]
    found |= {} if length is None else {f"{name}.{LENGTH}": length}
    return found, [str(each.message) for each in caught]
