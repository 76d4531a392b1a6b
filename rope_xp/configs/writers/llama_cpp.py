"""Write an embedding as metadata of a GGUF file, as arguments of llama.cpp, and as settings of LM Studio.

A file may have keys that no argument replaces. If the architecture reads such a key, the arguments override it.
"""

from math import isclose, log, sqrt
from typing import NamedTuple

from rope_xp.configs import engines
from rope_xp.configs.writers import Options, is_written, limits
from rope_xp.configs.writers import gguf_architectures as gguf
from rope_xp.errors import wrong_value
from rope_xp.frequencies import LinearScaling, Llama3Scaling, LongRopeScaling, Scaling, YarnScaling, geometric
from rope_xp.types import Embedding, Values

TARGET = "llama.cpp"
# Metadata for which llama.cpp has an argument.
FLAGS = {
    gguf.BASE: "--rope-freq-base",
    gguf.KIND: "--rope-scaling",
    gguf.FACTOR: "--rope-scale",
    gguf.ORIGINAL: "--yarn-orig-ctx",
    **dict(zip(gguf.BETAS, ("--yarn-beta-fast", "--yarn-beta-slow"))),
    gguf.EXTRAPOLATION: "--yarn-ext-factor",
}
KINDS = {float: "float", int: "int", str: "str"}
# By how many radians the pairs of a fourth position may be off at the end of the trained context.
NEGLIGIBLE = 0.25


class File(NamedTuple):
    """The file that the settings are for."""

    name: str | None  # the architecture
    table: engines.Table
    reading: engines.Reading | None  # what llama.cpp reads for it, if it is known
    are_flags: bool  # arguments are written, not metadata

    def reads(self, key: str, rule: str = "") -> bool:
        return self.reading is None or self.reading.reads(key, rule)

    def surely_reads(self, key: str, rule: str = "") -> bool:
        return self.reading is not None and self.reads(key, rule)

    def require(self, key: str, rule: str = "") -> None:
        named = FLAGS.get(key, key) if self.are_flags else key
        if not (self.reads(named, rule) or (self.are_flags and self.reads(key, rule))):
            raise wrong_value(
                f"{self.table.name} must read {named} for architecture {self.name!r}"
                f"{f' with {rule}' if rule else ''}; got one that does not"
            )


def gguf_metadata(rope: Embedding, options: Options) -> Values:
    file = _file(rope, options, are_flags=False)
    name = file.name
    if name is None:
        raise wrong_value(
            "architecture must be given, the general.architecture of the file; got None and an embedding whose "
            "config does not tell it"
        )
    widths = _widths(file, rope, name)
    sections = _sections(file, rope, name)
    length = {} if options.context is None else {gguf.LENGTH: options.context}
    values = {**widths, **sections, **_frequencies(file, rope), **length}
    keys = {value if value.endswith(".weight") else f"{name}.{value}": number for value, number in values.items()}
    return {"general.architecture": name, **keys}


def llama_cpp_flags(rope: Embedding, options: Options) -> list[str]:
    """Arguments for a file that has the widths, the sections and the layout, and no tensors of factors."""
    file = _file(rope, options, are_flags=True)
    if file.name is None:
        _require_order(rope)
    else:
        _sections(file, rope, file.name)
    values = _frequencies(file, rope)
    tensors = [value for value in values if value.endswith(".weight")]
    if tensors:
        way_out = ' (see to_config("gguf"))'
        if isinstance(rope.scaling, (Llama3Scaling, LongRopeScaling)):
            way_out = f", where {TARGET}'s converter writes them if config.json has this scaling: then give no "
            way_out += "argument for it"
        raise wrong_value(
            f"scaling must be linear or YaRN in arguments of {TARGET}; got {rope.scaling.describe()}: its "
            f"factors belong in the GGUF file, {' and '.join(tensors)}{way_out}"
        )
    _require_no_tensors(file, rope, f"arguments of {TARGET}")
    # Some arguments change only layers without a sliding window. What the file says changes all.
    of_some = (gguf.BASE, gguf.KIND, gguf.FACTOR) if file.surely_reads(gguf.BASE_OF_SLIDING) else ()
    flags = {key: flag for key, flag in FLAGS.items() if key in values and key not in of_some}
    words = [word for key, flag in flags.items() for word in (flag, _text(values[key]))]
    for key, value in values.items():
        if key not in flags:
            words += _override(file, key, value)
    if file.name is None:
        for remark in gguf.remarks_on(rope._provenance.model_type):
            engines.warn(remark)
    return words if options.context is None else words + _of_length(file, options.context, "yarn" in words)


def _of_length(file: File, length: int, is_yarn: bool) -> list[str]:
    """Arguments for sequences of this length. The server accepts at most the `context_length` of the file."""
    flags = ["-c", str(length)]
    if file.name is not None:
        return flags + _override(file, gguf.LENGTH, length)
    if not is_yarn:  # with YaRN, the server computes the length from the arguments
        engines.warn(
            f"the server of {TARGET} accepts at most the context_length of the file; give the architecture for the "
            "argument that overrides it"
        )
    return flags


def lmstudio_keys(rope: Embedding, options: Options) -> Values:
    """The keys of a load config. The file has all else: the layout, the rotated channels, factors of frequencies."""
    target = "LM Studio"
    limits.require_only(rope, target)
    base, rule = limits.base_and_rule(rope, target)
    if rule is not None and not isinstance(rule, LinearScaling):
        raise wrong_value(
            f"scaling must be linear in {target}; got {rule.describe()}: write it into the GGUF file, see "
            'to_config("gguf")'
        )
    if rope.sections is not None or rope.softmax_scale != 1.0:
        name = "sections" if rope.sections is not None else "softmax_scale"
        raise wrong_value(f"{name} must be in the GGUF file for {target}; got {getattr(rope, name)}")
    limits.require_attention_factor(rope)
    _require_no_tensors(_file(rope, options, are_flags=True), rope, f"keys of {target}")
    if rope._provenance.is_yarn:
        raise wrong_value(
            f"scaling must be that of the GGUF file in {target}, whose keys do not end its YaRN; got "
            f"{'none' if rope.scaling is None else rope.scaling.describe()}: write it into config.json, and convert "
            "the checkpoint anew"
        )
    scale = 1.0 if rule is None else 1.0 / rule.factor  # 1 ends a linear scaling of the file
    length = {} if options.context is None else {"contextLength": options.context}
    return {"ropeFrequencyBase": base, "ropeFrequencyScale": scale, **length}


def _file(rope: Embedding, options: Options, are_flags: bool) -> File:
    name = _architecture(rope, options.architecture)
    if isinstance(options.engine_version, str) and options.engine_version.startswith("b"):
        raise wrong_value(
            f"engine_version of {TARGET} must be a version such as {engines.versions(TARGET)[-1]}, which "
            f"`llama-cli --version` prints; got {options.engine_version!r}, the number of a build"
        )
    table = engines.table(TARGET, options.engine_version)
    return File(name, table, None if name is None else table.of(name), are_flags)


def _require_no_tensors(file: File, rope: Embedding, what: str) -> None:
    """The file must not have factors of the config's rule, by which llama.cpp divides under another rule, too."""
    tensors = [name for name in rope._provenance.tensors if file.reads(name, "longrope")]
    if tensors:
        convert = 'write the new scaling into config.json, see to_config("transformers"), and convert the checkpoint '
        anew = f"{convert}anew, or " if is_written(rope, "transformers", may_be_unknown=True) else ""
        raise wrong_value(
            f"scaling must not be replaced by {what} if the GGUF file has {' and '.join(tensors)}, by which {TARGET} "
            f"divides the frequencies of every rule; got {rope.scaling and rope.scaling.describe()}: {anew}see "
            'to_config("gguf")'
        )


def _override(file: File, key: str, value: str | float) -> list[str]:
    if file.name is None:
        raise wrong_value(f"architecture must be given to set {key}, for which {TARGET} has no argument; got None")
    return ["--override-kv", f"{file.name}.{key}={KINDS[type(value)]}:{_text(value)}"]


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else repr(value).removesuffix(".0")


def _architecture(rope: Embedding, given: str | None) -> str | None:
    """The architecture that the caller names, or that of the GGUF file or the config's family; None if unknown."""
    if given is None:
        return rope._provenance.architecture or gguf.ARCHITECTURE_OF.get(rope._provenance.model_type)
    if gguf.gguf_layout(given) is None:
        raise wrong_value(f"architecture must be one that {TARGET} rotates; got {given!r}")
    own = gguf.LAYERS.get(given)
    if given in gguf.UNKNOWN_LAYERS or (own is not None and own.sliding_base is not None):
        raise wrong_value(f"architecture must have the same frequencies in all layers; got {given!r}")
    return given


def _widths(file: File, rope: Embedding, name: str) -> Values:
    limits.require_only(rope, "a GGUF file")
    layout = gguf.gguf_layout(name, rope.sections)
    call = f'to_config("gguf", architecture={name!r})'
    by = f"{TARGET}'s converter" if name in gguf.PERMUTED and rope.layout == "half" else ""
    limits.require_pairing(rope, layout or "", f"GGUF files of {name!r}", call, by)
    if name in gguf.LATENT:
        if rope.rotary_dim != rope.head_dim:
            raise wrong_value(
                f"head_dim must be that of the rotated part, {rope.rotary_dim}, in GGUF files of {name!r}; "
                f"got {rope.head_dim}"
            )
        return {gguf.WIDTH: rope.rotary_dim}
    _require_whole_head(file, rope)
    return {"attention.key_length": rope.head_dim, gguf.WIDTH: rope.rotary_dim}


def _require_whole_head(file: File, rope: Embedding) -> None:
    is_whole = file.reading is not None and file.reading.fixed.get("rotated") == 1.0
    if is_whole and file.name not in gguf.LATENT and rope.rotary_dim != rope.head_dim:
        raise wrong_value(
            f"rotary_dim must be head_dim={rope.head_dim} in {file.table.name} for architecture "
            f"{file.name!r}; got {rope.rotary_dim}"
        )


def _sections(file: File, rope: Embedding, name: str) -> Values:
    sections = rope.sections
    order = gguf.order_of(name, None if sections is None else sections.sizes)
    if sections is None and order is None:
        return {}
    found = None if sections is None else sections.order
    if order != found or sections is None or sections.axes > 4 or sections.axis_of_section is not None:
        wanted = f"in order {gguf.AXES[name]!r}" if name in gguf.AXES else "None"
        raise wrong_value(f"sections must be {wanted} in GGUF files of {name!r}; got {sections}")
    _require_order(rope)
    return {gguf.SECTIONS: [*sections.sizes, 0, 0, 0][:4]}


def _require_order(rope: Embedding) -> None:
    sections = rope.sections
    if sections is None or sections.order == "chunked":
        return
    if sections.order != "interleaved":
        raise wrong_value(f"sections must be in an order that {TARGET} has; got {sections}")
    missed = gguf.pairs_without_axis(sections.sizes)
    length = rope._provenance.max_position_embeddings
    if not missed:
        return
    fastest = max(abs(row[pair]) for row in rope.inv_freq for pair in missed)
    pairs = ", ".join(map(str, missed))
    if length is None or fastest * length > NEGLIGIBLE:
        raise wrong_value(
            f"sections must give each pair j to axis j % 3 in {TARGET}, which rotates other pairs by a "
            f"fourth position; got {sections.sizes}, in which pairs {pairs} follow axis 0"
        )
    engines.warn(
        f"{TARGET} rotates pairs {pairs} by a fourth position, which is 0 for text; other programs rotate them by the "
        f"first, up to {fastest * length:.2g} radians in {length:,} tokens"
    )


def _frequencies(file: File, rope: Embedding) -> Values:
    limits.require_only(rope, TARGET, "first_channel", "blocks")
    if file.are_flags:
        _require_whole_head(file, rope)
    base, rule = limits.base_and_rule(rope, TARGET)
    _require_known_latent(file, rope, rule)
    keys = _base(file, base)
    if isinstance(rule, YarnScaling):
        return keys | _of_yarn(file, rope, rule)
    if isinstance(rule, LongRopeScaling):
        return keys | _of_longrope(file, rope, rule)
    if rope.attention_factor != 1.0:
        raise wrong_value(
            f"attention_factor must be 1 without YaRN or LongRoPE in {TARGET}; got {rope.attention_factor}"
        )
    if rule is None:
        return keys | _plain(file)
    if isinstance(rule, LinearScaling):
        _require_softmax_scale(file, rope, gguf.scales(file.name, rule.factor, is_yarn=False)[1])
        file.require(gguf.FACTOR, "linear")
        return keys | {**_plain(file), gguf.KIND: "linear", gguf.FACTOR: rule.factor}
    file.require(gguf.FREQS)
    pairs = zip(geometric(base, rope.rotary_dim), rule.frequencies(base, rope.rotary_dim))
    # llama.cpp does not have the rule, but divides each frequency by a number of the file.
    factors = [unscaled / scaled if scaled else gguf.DIVISOR_OF_UNROTATED for unscaled, scaled in pairs]
    return keys | {**_plain(file), gguf.FREQS: factors}


def _base(file: File, base: float) -> Values:
    if file.reading is not None and file.reading.fixed.get("base") == base:
        return {}  # the architecture has it anyway
    file.require(gguf.BASE)
    return {gguf.BASE: base}


def _plain(file: File) -> Values:
    """No scaling. A file of Grok may have a blend that arguments must end."""
    ended = file.are_flags and file.surely_reads(gguf.EXTRAPOLATION, "yarn")
    return {gguf.KIND: "none", **({gguf.EXTRAPOLATION: 0.0} if ended else {})}


def _require_known_latent(file: File, rope: Embedding, rule: Scaling | None) -> None:
    """What llama.cpp multiplies the softmax scale of latent attention by depends on the architecture."""
    source = rope._provenance
    if file.name is None and rule is not None and source.is_latent:
        raise wrong_value(
            f"architecture must be given for {rule.describe()} and the latent attention of {source.model_type}, whose "
            f"softmax scale {TARGET} multiplies by architecture; got None"
        )


def _is_close(one: float, other: float) -> bool:
    return isclose(one, other, rel_tol=1e-9)


def _require_softmax_scale(file: File, rope: Embedding, computed: float) -> None:
    if not _is_close(rope.softmax_scale, computed):
        raise wrong_value(
            f"softmax_scale must be {computed:g} in {TARGET} for architecture {file.name!r} with this "
            f"scaling; got {rope.softmax_scale}"
        )


def _of_longrope(file: File, rope: Embedding, rule: LongRopeScaling) -> Values:
    file.require(gguf.LONG, "longrope")
    if rule.short_mscale != rule.long_mscale and rule.attention_factor is None:
        raise wrong_value(
            f"short_mscale and long_mscale must be equal in {TARGET}; got {rule.short_mscale} and {rule.long_mscale}"
        )
    return {
        gguf.KIND: "longrope",
        gguf.ORIGINAL: rule.original_max_position_embeddings,
        gguf.ATTENTION: rope.attention_factor,
        gguf.LONG: list(rule.long_factor),  # used if the context is longer than the original one
        gguf.SHORT: list(rule.short_factor),
    }


def _of_yarn(file: File, rope: Embedding, rule: YarnScaling) -> Values:
    limits.require_rounded_ramp(rope, rule, TARGET)
    file.require(gguf.FACTOR, "yarn")
    keys = {gguf.KIND: "yarn", gguf.FACTOR: rule.factor, gguf.ORIGINAL: rule.original_max_position_embeddings}
    return {**keys, **_betas(file, rule), **_attention(file, rope, rule)}


def _betas(file: File, rule: YarnScaling) -> dict[str, float]:
    wanted = dict(zip(gguf.BETAS, (rule.beta_fast, rule.beta_slow)))
    # Most architectures do not read them in a file, and have the defaults of the paper. For those that do, the
    # arguments must state them, because the file may have others.
    in_file = file.name is None or any(file.surely_reads(key, "yarn") for key in gguf.BETAS)
    if wanted == gguf.BETAS and not (in_file if file.are_flags else file.name in gguf.OTHER_BETAS):
        return {}
    for key in gguf.BETAS:
        file.require(key, "yarn")
    extra = {gguf.EXTRAPOLATION: 1.0} if file.are_flags and file.surely_reads(gguf.EXTRAPOLATION, "yarn") else {}
    return wanted | extra


def _attention(file: File, rope: Embedding, rule: YarnScaling) -> dict[str, float]:
    """The factor of the tables and that of the softmax scale: by the multiplier, else by `rope.scaling.attn_factor`."""
    name, factor = file.name, rule.factor
    multiplier = 0.0
    if name in gguf.LOG_MULTIPLIERS and factor != 1.0:
        scale = sqrt(rope.softmax_scale) if name in gguf.SCALES_SOFTMAX else rule.get_mscale(1.0)
        # None below 0: `rope.scaling.attn_factor` then does what is left.
        multiplier = max(0.0, float(f"{(scale / rope.attention_factor - 1.0) / (0.1 * log(factor)):.12g}"))
    tables, softmax = gguf.scales(name, factor, True, multiplier)
    wanted = rope.attention_factor, rope.softmax_scale
    if name in gguf.SCALES_SOFTMAX and not all(map(_is_close, wanted, (tables, softmax))):
        raise wrong_value(
            f"mscale_all_dim must be given, and attention_factor follow from it, in {TARGET} for "
            f"architecture {name!r}, which multiplies tables by {tables:g} and its softmax scale by {softmax:g}; "
            f"got {rule.mscale_all_dim} and {rope.attention_factor}"
        )
    _require_softmax_scale(file, rope, softmax)
    own = rope.attention_factor / tables
    keys = {} if _is_close(own, 1.0) else {gguf.ATTENTION: own}
    if name not in gguf.LOG_MULTIPLIERS:
        return keys
    may_be_in_file = {gguf.ATTENTION: 1.0} if file.are_flags else {}
    return {gguf.MULTIPLIER: multiplier * gguf.LOG_MULTIPLIERS[name], **may_be_in_file, **keys}
