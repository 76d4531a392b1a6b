"""What a checkpoint is, concluded from its headers."""

from contextlib import suppress
from math import exp, inf, log
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rope_xp.checkpoints.contents import Contents, Tensor, contents_of
from rope_xp.checkpoints.projections import (
    GGUF,
    HUGGING_FACE,
    MEGATRON,
    META,
    MLX,
    Conclusion,
    Stack,
    is_of_other_part,
    main_group,
    mark_of_mlx,
    sizes_of,
)
from rope_xp.configs.families.model_types import FAMILIES
from rope_xp.configs.from_config import from_config
from rope_xp.configs.parts import part_of
from rope_xp.configs.readers.files import opened
from rope_xp.configs.writers.gguf_architectures import NO_ROTATION, SECTIONS, gguf_layout
from rope_xp.embedding import RotaryEmbedding
from rope_xp.provenance import defaults_as_text
from rope_xp.types import Config, Embedding, Values

WITHOUT = "no projection of queries or keys was found by its name"
OF_OTHER_NAMES = "params.json is about tensors under Meta's names, and there is no config.json"
# Not those of sinusoids that are added, as in Bros. `embed_positions` is that of Wav2Vec2-Conformer.
OF_ROTATION = ("rotary", "rope", "attn", "attention", "embed_positions")
MAX_BUFFERS = 512
MAX_PAIRS = 2**14
# By dtype: that of NumPy, and the error of a frequency, relative and absolute. A float32 frequency is the
# power of a rounded exponent, and is wrong by at most 32 units in the last place. Small float16 numbers are subnormal.
DTYPES = {
    "F64": ("<f8", 2.0**-19, 0.0),
    "F32": ("<f4", 2.0**-19, 0.0),
    "F16": ("<f2", 2.0**-10, 2.0**-25),
    "BF16": ("<u2", 2.0**-8, 0.0),
}


class Buffer(NamedTuple):
    inv_freq: tuple[float, ...]  # in radians per token
    dtype: str  # as safetensors names it

    def first_difference(self, expected: tuple[float, ...]) -> int | None:
        """The first pair whose frequency differs by more than the error, or the end of the shorter one, or None."""
        _, relative, absolute = DTYPES[self.dtype]
        for pair, (found, wanted) in enumerate(zip(self.inv_freq, expected)):
            if abs(found - wanted) > relative * wanted + absolute:
                return pair
        lengths = len(self.inv_freq), len(expected)
        return None if lengths[0] == lengths[1] else min(lengths)

    def differs(self, other: "Buffer") -> bool:
        # By more than the error of either dtype.
        return None not in (self.first_difference(other.inv_freq), other.first_difference(self.inv_freq))

    @property
    def base(self) -> float | None:
        """The base from which these frequencies follow, unscaled."""
        pairs, least = len(self.inv_freq), 64 * DTYPES[self.dtype][2]
        found = [(pair, -log(w)) for pair, w in enumerate(self.inv_freq) if pair and least < w < 1.0]
        if not found:
            return None
        weight = sum(pair * pair for pair, _ in found)
        fitted = exp(min(pairs * sum(pair * minus_log for pair, minus_log in found) / weight, 700.0))  # least squares
        for digits in range(7):
            base = float(f"{fitted:.{digits}e}")
            if self.first_difference(tuple(base ** (-pair / pairs) for pair in range(pairs))) is None:
                return base
        return None


def findings(path: str) -> Values:
    contents = contents_of(Path(path))
    mlx = mark_of_mlx(contents.metadata, contents.tensors)
    group = main_group(contents.tensors, bool(mlx))
    format_, why = _format(contents, group, mlx)
    embedding, layout_of_config, not_read = _embedding(contents, format_)
    said = [why.removeprefix("from_config: ") for what, why in not_read if what == "embedding: cannot tell"]
    refused = [f"No embedding can be read from {contents.config_name}: {why}." for why in said if contents.config]
    layout, why_layout = _layout(contents, format_, layout_of_config)
    if layout is not None and not group.format:
        why_layout += f" alone: {WITHOUT}"
    elif layout is not None and format_ in (HUGGING_FACE, MLX):
        why_layout += "; the files do not show in which order rows are"
    sizes, from_what, warnings = sizes_of(contents, group, embedding)
    # If an axis or a head has frequencies of its own, there is no row to compare the buffer with.
    comparable = embedding if embedding is not None and embedding._frequencies.is_single_row else None
    of_buffer, about_buffer, contradictions = _buffer(contents, comparable)
    about_other, of_other = _other_file(contents, comparable)
    first = [(f"format: {format_ or 'cannot tell'}", why), (f"layout: {layout or 'cannot tell'}", why_layout)]
    return {
        "path": str(contents.path),
        "format": format_,
        "layout": layout,
        **sizes,
        "embedding": embedding,
        **of_buffer,
        "conclusions": (*first, *from_what, *(() if refused else not_read), *about_buffer, *about_other),
        "warnings": (*contents.warnings, *refused, *warnings, *contradictions, *of_other),
    }


def _format(contents: Contents, group: Stack, mlx: str) -> tuple[str | None, str]:
    if contents.container == GGUF:
        return GGUF, "the file begins with b'GGUF'"
    if not group.format:
        name, layout = _family(contents.config)
        if layout is None:
            return None, WITHOUT
        return MLX if mlx else HUGGING_FACE, mlx or f"model_type {name!r} in {contents.config_name} alone: {WITHOUT}"
    if group.format == HUGGING_FACE and mlx:
        return MLX, mlx
    return group.format, f"the name {_shown(group.example)}"


def _embedding(contents: Contents, format_: str | None) -> tuple[RotaryEmbedding | None, str | None, list[Conclusion]]:
    """What the config describes, its layout, and a conclusion if it does not describe one embedding."""
    if not contents.config:
        return None, None, [("embedding: cannot tell", "no config is beside the tensors")]
    if _is_of_other_names(contents, format_):
        return None, None, [("embedding: cannot tell", OF_OTHER_NAMES)]
    options: Values = {"layout": "interleaved"} if format_ == META else {}
    try:
        found = from_config(contents.config, **options)
    except (TypeError, ValueError) as error:
        return None, *_of_first_layer(contents.config, options, str(error))
    if found is None:
        return None, None, [("embedding: none", f"{contents.config_name}: it rotates nothing")]
    defaults = defaults_as_text(found._provenance.defaults)
    return found, found.layout, [("embedding: not all in the config", defaults)] if defaults else []


def _of_first_layer(config: Config, options: Config, why: str) -> tuple[str | None, list[Conclusion]]:
    """The layout of the first layer, if the config describes no embedding of all layers."""
    try:
        first = from_config(config, layer=0, **options)
    except (TypeError, ValueError):
        return None, [("embedding: cannot tell", why)]
    return None if first is None else first.layout, [("embedding: differs between layers", why)]


def _layout(contents: Contents, format_: str | None, of_config: str | None) -> tuple[str | None, str]:
    config = contents.config
    if format_ == GGUF:
        return _gguf_layout(contents)
    if format_ == META:
        return "interleaved", "names of Meta and Mistral, whose projections have neighbouring pairs"
    if format_ == MEGATRON:
        interleaved = config.get("rotary_interleaved")
        source = "Megatron's default" if interleaved is None else f"rotary_interleaved in {contents.config_name}"
        return "interleaved" if interleaved else "half", source
    if _is_of_other_names(contents, format_):
        return None, OF_OTHER_NAMES
    name, of_family = _family(config)
    if of_config or of_family:
        source = f"model_type {name!r} in {contents.config_name}" if name else contents.config_name
        return of_config or of_family, source
    if format_ is None or config:
        return None, "no known model_type in a config" if config else "neither names nor a config say it"
    return None, "transformers has such names for half (Llama) and for interleaved (Cohere); config.json would say it"


def _is_of_other_names(contents: Contents, format_: str | None) -> bool:
    """Whether the only config is that of the same weights under Meta's names, whose channels are in another order."""
    is_of_meta = contents.config_name == "params.json" and _family(contents.config)[1] is None
    return is_of_meta and format_ in (HUGGING_FACE, MLX)


def _family(config: Config) -> tuple[object, str | None]:
    try:
        name = part_of(config, None)[1]
    except (TypeError, ValueError):
        name = config.get("model_type")
    family = FAMILIES.get(name) if isinstance(name, str) else None
    return name, None if family is None else family.pairing.layout


def _gguf_layout(contents: Contents) -> tuple[str | None, str]:
    architecture = contents.metadata.get("general.architecture")
    layout = gguf_layout(architecture, contents.metadata.get(f"{architecture}.{SECTIONS}"))
    if layout is not None:
        return layout, f"llama.cpp rotates the architecture {architecture!r} in this layout"
    if architecture in NO_ROTATION.split():
        return None, f"llama.cpp does not rotate the architecture {architecture!r}"
    return None, f"the architecture {_shown(str(architecture))} is not in the list of llama.cpp"


def _buffer(contents: Contents, embedding: Embedding | None) -> tuple[Values, list[Conclusion], list[str]]:
    """What is known of the frequencies that the file holds, from what, and warnings where the config says others."""
    tensors = {
        name: tensor
        for name, tensor in contents.tensors.items()
        if tensor is not None and name.endswith(("inv_freq", "rope.freqs")) and not is_of_other_part(name)
        if any(word in name for word in OF_ROTATION)
    }
    found = {name: _frequencies(tensor) for name, tensor in list(tensors.items())[:MAX_BUFFERS]}
    read = {name: each for name, each in found.items() if each is not None}
    warnings = [f"{_shown(name)} is not a row of frequencies." for name in found if name not in read][:1]
    if not read:
        nothing: Values = dict.fromkeys(("inv_freq", "inv_freq_base", "inv_freq_agrees"))
        return nothing, [], warnings
    name, first = next(iter(read.items()))
    pairs, base = len(first.inv_freq), _base_of(first)
    conclusions = [
        (f"inv_freq: {base}", f"{pairs} values of {_shown(name)}"),
        (f"rotated channels: {2 * pairs}", "2 for each value"),
    ]
    other = next((other for other, each in read.items() if first.differs(each)), None)
    warnings += [] if other is None else [f"{_shown(name)} and {_shown(other)} differ."]
    agrees = None
    if embedding is not None:
        of_engines = " An engine that loads the buffer computes other angles."
        each_of = [(_shown(name), each, contents.config_name, embedding, of_engines) for name, each in read.items()]
        warnings += next(filter(None, (_contradiction(*each) for each in each_of)), [])
        agrees = all(each.first_difference(embedding.inv_freq) is None for each in read.values())
    known = {"inv_freq": first.inv_freq, "inv_freq_base": first.base, "inv_freq_agrees": agrees}
    return known, conclusions, warnings


# The config or the GGUF file in the same folder that is not used, and a warning if its frequencies are others.
def _other_file(contents: Contents, embedding: RotaryEmbedding | None) -> tuple[list[Conclusion], list[str]]:
    folder = contents.path.parent
    others = [folder / "config.json"] if contents.container == GGUF else sorted(folder.glob("*.gguf"))
    others = [path for path in others if path.is_file()]
    if not others:
        return [], []
    name, read = _shown(others[0].name), contents.path.name if contents.container == GGUF else contents.config_name
    warnings = []
    with suppress(TypeError, ValueError, OSError):  # it cannot be read
        other = from_config(others[0])
        if other is not None and embedding is not None and other._frequencies.is_single_row:
            found = Buffer(tuple(np.asarray(other.inv_freq, float).tolist()), "F32")
            warnings = _contradiction(name, found, read, embedding, f" This report is about {contents.path.name}.")
    return [(f"{name}: not used", f"{contents.path.name} is, in the same folder")], warnings


def _frequencies(tensor: Tensor) -> Buffer | None:
    """The frequencies in a buffer; None if it has another shape or dtype, or values that are not positive."""
    if len(tensor.shape) != 1 or not 1 <= tensor.shape[0] <= MAX_PAIRS or tensor.dtype not in DTYPES:
        return None
    with opened(tensor.path) as file:
        file.seek(tensor.start)
        data = file.read(tensor.length)
    numbers = np.frombuffer(data, DTYPES[tensor.dtype][0])
    if tensor.dtype == "BF16":  # the upper half of a float32
        numbers = (numbers.astype("<u4") << 16).view("<f4")
    values = tuple(numbers.tolist())
    if len(values) != tensor.shape[0] or not all(0.0 <= value < inf for value in values) or values[0] == 0.0:
        return None
    return Buffer(values, tensor.dtype)


def _base_of(buffer: Buffer) -> str:
    about = "about " if buffer.dtype in ("F16", "BF16") else ""  # many bases have the same frequencies there
    return _words_of(buffer.base, about)


def _words_of(base: float | None, about: str = "") -> str:
    return "no unscaled base" if base is None else f"the base {about}{base:,.10g}"


def _contradiction(name: str, buffer: Buffer, config_name: str, embedding: Embedding, end: str) -> list[str]:
    expected = embedding.inv_freq
    pair, found = buffer.first_difference(expected), buffer.inv_freq
    if pair is None:
        off = max((abs(w / wanted - 1.0) for w, wanted in zip(found, expected) if wanted), default=0.0)
        rounded = f"{name} is stored in {buffer.dtype}: its frequencies are off by up to {100 * off:.2g} %.{end}"
        return [rounded] if off > DTYPES["F32"][1] else []
    if len(found) != len(expected):
        widths = f"for {2 * len(found)} channels. The embedding of {config_name} rotates {2 * len(expected)}."
        return [f"{name} has frequencies {widths}{end}"]
    # In 7 digits, numbers that differ by more than their error are not the same.
    wanted = f"{expected[pair]:.7g}"
    numbers = f"pair {pair} has {found[pair]:.7g} against {wanted} radian{'s' * (wanted != '1')} per token"
    scaling = [] if embedding.scaling is None else [type(embedding.scaling).__name__]
    # A base that the config states may have another assumption, such as which model it is of.
    of_base = (each.source for each in embedding._provenance.defaults if each.row == "frequencies")
    default = next((source for source in of_base if source.startswith("default of ")), "")
    says, used = f"says {' and '.join([_words_of(embedding.base), *scaling])}", config_name
    if default:
        says = f"states {' and '.join([*scaling, 'no base'])}, so the {default}, {embedding.base:,.10g}, is read"
        used = "this default, too"
    if name.endswith("rotary_emb.inv_freq"):
        end = f" transformers 5 ignores the buffer and uses {used}.{end}"
    return [f"{name} has {_base_of(buffer)}. {config_name} {says}: {numbers}.{end}"]


def _shown(name: str) -> str:
    # A file may have any characters in its names.
    return name if name.isprintable() and len(name) <= 100 else repr(name[:100])
