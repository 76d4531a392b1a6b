"""Read the rotary embedding from a checkpoint's config: the pipeline from a file to a value. No framework is imported.

Open the file, translate its format to keys of transformers, find the part and the row of its family, choose the layer
and the block, read the widths, the base and the rule. Every key of the block, and every other key about positions, must
be known and read, or it is an error.
"""

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from typing import NamedTuple, TypeVar

from rope_xp.arrays import checks
from rope_xp.configs.block import block_of, embedding_of
from rope_xp.configs.families.family import COMMON_DEFAULTS, Axes, Family
from rope_xp.configs.families.indexers import INDEXERS, has_indexer, note_on_indexer, read_indexer
from rope_xp.configs.families.indexers import PART as INDEXER
from rope_xp.configs.families.model_types import FAMILIES, NOT_ROTARY, UNROTATED, axis_names
from rope_xp.configs.families.own_keys import families_with, remarks_on_widths, translate_own_keys, variant_of
from rope_xp.configs.keys import (
    BASE_KEYS,
    Keys,
    comma_separated,
    is_about_positions,
    misspelt_first,
    shortened,
    states_rotation,
)
from rope_xp.configs.layers import (
    NO_LAYER,
    LayerConfig,
    has_own_types,
    is_rotated,
    layer_type_of,
    layers_of,
    nested_by,
    only_type_of,
    row_type_of,
    types_of,
    window_of,
)
from rope_xp.configs.parts import DEFAULTS_IN_COMPOSITE, part_of, path_to, sub_configs
from rope_xp.configs.readers.command_line import SERVING, CommandLine, command_line
from rope_xp.configs.readers.formats import (
    GGUF,
    Format,
    check_size,
    file_of,
    format_of,
    is_stated_about_positions,
    mapping_of,
    with_mlx_rule,
)
from rope_xp.configs.readers.llama_cpp_arguments import metadata_of, with_arguments
from rope_xp.configs.readers.overrides import with_overrides
from rope_xp.configs.upstream import as_transformers, remarks_on_transformers
from rope_xp.configs.writers import gguf_architectures as gguf
from rope_xp.configs.writers.limits import LENGTH_KEYS
from rope_xp.embedding import RotaryEmbedding
from rope_xp.errors import wrong_type, wrong_value
from rope_xp.frequencies import LENGTH, ORIGINAL, YarnScaling
from rope_xp.layouts import LAYOUTS
from rope_xp.provenance import WITH_WINDOW, Default, Provenance, defaults_as_text, with_provenance
from rope_xp.types import Config

Found = TypeVar("Found")
COMPATS = {"transformers": "what transformers 5.18 computes, known bugs included"}
# More layers than any model has. The layers of a config with more have no types of their own.
MAX_LAYERS = 1024


class Selection(NamedTuple):
    """The arguments of `from_config` that say what is wanted of a config."""

    layer: int | None
    layer_type: str | None
    seq_len: int | None
    layout: str | None
    compat: str | None
    part: str | None
    strict: bool


def read_config(config: object, flags: object, choice: Selection) -> RotaryEmbedding | None:
    try:
        choice = _checked_choice(choice)
        whole = mapping_of(config)
        return _read_mapping(whole, choice) if flags is None else _read_with_flags(command_line(flags), whole, choice)
    except (TypeError, ValueError, OSError) as error:
        message = shortened(error, "" if isinstance(error, OSError) else file_of(config))
        if message == str(error):
            raise
        # Classes that take one argument: some that derive from them, such as UnicodeDecodeError, take more.
        kinds = (TypeError, ValueError, FileNotFoundError, PermissionError, OSError)
        kind = next(kind for kind in kinds if isinstance(error, kind))
        raise kind(message).with_traceback(error.__traceback__) from None


def _checked_choice(choice: Selection) -> Selection:
    layer, layer_type = choice.layer, choice.layer_type
    check_size([choice.part, layer, layer_type, choice.seq_len])
    if choice.layout is not None:
        checks.one_of("layout", choice.layout, LAYOUTS)
    if choice.compat is not None:
        checks.one_of("compat", choice.compat, COMPATS)
    if choice.seq_len is not None:
        checks.length("seq_len", choice.seq_len)
    if layer is not None:
        layer = checks.count("layer", layer)
    if layer_type is not None and not isinstance(layer_type, str):
        raise wrong_type(f"layer_type must be a string; got {layer_type!r}")
    if layer is not None and layer_type is not None:
        raise wrong_value(f"layer or layer_type must be given, not both; got {layer} and {layer_type!r}")
    return choice._replace(layer=layer, strict=checks.boolean("strict", choice.strict))


def _read_with_flags(line: CommandLine, whole: Config, choice: Selection) -> RotaryEmbedding | None:
    """The embedding that an engine computes with arguments. Its remarks say which of them change nothing."""
    if choice.compat is not None:
        raise wrong_value(f"compat must be None with flags; got {choice.compat!r}")
    remarks: list[str] = []
    unchanged, as_file = None, ""  # of a config that stands for the GGUF file
    if line.engine == "llama.cpp" and format_of(whole) is not GGUF:
        rope = _read_mapping(whole, choice)
        if rope is None:
            return None
        of_config = rope._provenance
        as_file = "the config was read as the GGUF file that llama.cpp's converter writes from it"
        if of_config.layers not in ("", "full_attention"):
            kept = f"flags of llama.cpp leave layers of type {of_config.layers} as the file has them"
            return with_provenance(rope, replace(of_config, remarks=(kept, *of_config.remarks)))
        remarks += gguf.remarks_on(of_config.model_type)
        unchanged = rope
        whole, of_writer = metadata_of(rope)
        remarks += of_writer
        choice = choice._replace(layer=None, layer_type=None, layout=rope.layout, part=None, strict=False)

    def read_as(line: CommandLine, remarks: list[str]) -> RotaryEmbedding | None:
        of_llama_cpp = line.engine == "llama.cpp"
        changed = with_arguments(line, whole) if of_llama_cpp else with_overrides(line, whole, choice.part)
        remarks.extend(changed.remarks)
        length = changed.context if choice.seq_len is None else choice.seq_len
        if changed.context not in (None, length):
            raise wrong_value(
                f"seq_len must not be given with flags of {line.name}, whose length, {changed.context}, chooses the "
                f"list of LongRoPE for all sequences; got {length}"
            )
        rope = _read_mapping(changed.mapping, choice._replace(seq_len=length), as_file)
        if rope is not None and changed.layout not in ("", rope._rotation.read):
            raise wrong_value(
                f"layout must be {changed.layout!r}, which {line.name} has for model type "
                f"{rope._provenance.model_type!r}; got {rope.layout!r}"
            )
        own = {"served": changed.served, "for_all_lengths": changed.context is not None}
        return rope and with_provenance(rope, replace(rope._provenance, **own))

    rope = read_as(line, remarks)
    names = {name for name, _ in line.flags}.difference(SERVING)
    others = line._replace(flags=tuple(each for each in line.flags if each[0] in SERVING))
    without = _attempt(lambda: read_as(others, [])) if names else rope
    if names and without == rope:
        lengths = [getattr(each, "_provenance", Provenance()).max_position_embeddings for each in (without, rope)]
        differ = None not in lengths and lengths[0] != lengths[1]
        length = ", but the length {} in place of {}".format(*lengths) if differ else ""
        if rope is None or rope.scaling is None or not differ:  # a rule may need the other length
            remarks.append(f"without {comma_separated(names)}, the embedding would be the same{length}")
    if rope is None:
        return None
    found = rope._provenance
    source = found.format or "the config"
    of_file = without._provenance if isinstance(without, RotaryEmbedding) else Provenance()
    found = replace(found, is_yarn=of_file.is_yarn)
    if line.engine != "llama.cpp":  # no other engine changes anything of the GGUF file
        found = replace(found, tensors=of_file.tensors)
    elif unchanged is not None:  # the architecture is that of the config, or any that has its rotation
        names = ("model_type", "is_latent", "base_key", "file_type", "path", "axis_names", "stated", "has_own_types")
        of_config = {name: getattr(unchanged._provenance, name) for name in names}
        defaults = (*_kept_defaults(unchanged, rope), *map(_named_as_in_configs, found.defaults))
        found = replace(found, architecture="", defaults=defaults, **of_config)
        source = "the GGUF file that llama.cpp's converter writes for the config"
    found = replace(found, format=f"{source}, with flags of {line.name}", has_flags=True)
    return with_provenance(rope, replace(found, remarks=(*dict.fromkeys(remarks), *found.remarks)))


def _kept_defaults(before: RotaryEmbedding, after: RotaryEmbedding) -> list[Default]:
    by_row = {"frequencies": "base", "scaling": "scaling", "attention factor": "attention_factor"}
    replaced = {row for row, name in by_row.items() if getattr(before, name) != getattr(after, name)}
    return [each for each in before._provenance.defaults if each.row not in replaced]


def _named_as_in_configs(of_file: Default) -> Default:
    return Default(of_file.row, ORIGINAL, f"equal to {LENGTH}") if of_file.key.endswith(gguf.ORIGINAL) else of_file


def _attempt(read: Callable[[], Found]) -> Found | Exception:
    try:
        return read()
    except (TypeError, ValueError) as error:
        return error


def _read_mapping(whole: Config, choice: Selection, as_file: str = "") -> RotaryEmbedding | None:
    form = format_of(whole)
    if form is None:
        return _read_transformers(whole, choice)
    try:
        if not form.readers:
            return _read_transformers(with_mlx_rule(whole), choice)
        return _read_format(form, whole, choice)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{error} ({as_file or f'the mapping was read as {form.name}'})") from None


def _read_format(form: Format, whole: Config, choice: Selection) -> RotaryEmbedding | None:
    """The embedding of a config in another format, which is translated first."""
    if choice.compat is not None:
        raise wrong_value(f"compat must be None for this format; got {choice.compat!r}")
    source = Keys("the mapping", whole)
    with misspelt_first(source):
        translated = form.as_config(source, choice.part)
    source.require_all_read(is_stated_about_positions)
    if translated is None:
        return None
    config, family = translated
    config = {key: value for key, value in config.items() if value is not None}
    rope, provenance = _read_part(config, "", _with_layout(family, choice.layout), choice)
    provenance = replace(
        provenance,
        defaults=(*source.defaults.values(), *provenance.defaults),
        remarks=(*source.remarks, *provenance.remarks),
        stated=tuple(source.found()),
        format=form.name,
        tensors=(gguf.FREQS,) if whole.get(gguf.FREQS) else (),
        architecture=whole["general.architecture"] if form is GGUF else "",
    )
    return _with_provenance(rope, provenance, choice.strict)


def _with_provenance(rope: RotaryEmbedding | None, provenance: Provenance, strict: bool) -> RotaryEmbedding | None:
    if strict and provenance.defaults:
        defaults = defaults_as_text(provenance.defaults)
        raise wrong_value(f"every value must be in the config with strict=True; got {defaults}")
    if rope is None:
        return None
    tensors, is_yarn = provenance.tensors or gguf.tensors_of(rope.scaling), isinstance(rope.scaling, YarnScaling)
    return with_provenance(rope, replace(provenance, tensors=tensors, is_yarn=is_yarn))


def _read_transformers(whole: Config, choice: Selection) -> RotaryEmbedding | None:
    mapping, model_type, outside = part_of(whole, choice.part)
    model_type = variant_of(mapping, model_type)
    if model_type in UNROTATED:
        return None
    family = _family_of(mapping, model_type, choice.layout)
    defaults = DEFAULTS_IN_COMPOSITE.get((whole.get("model_type"), model_type), {})
    family = replace(family, defaults={**family.defaults, **defaults})
    rope, provenance = _read_part(mapping, model_type, family, choice)
    provenance = replace(provenance, file_type=whole.get("model_type") or "", path=path_to(mapping, whole))
    if outside and choice.compat is None:
        both = {**mapping, **outside}
        if _attempt(lambda: _read_part(both, model_type, family, choice)[0]) != rope:
            raise wrong_value(f"keys about positions must be in the part, not outside it; got {outside}")
    return _with_provenance(rope, provenance, choice.strict)


def _family_of(mapping: Config, model_type: str, layout: str | None) -> Family:
    if model_type not in FAMILIES and (layout is None or _is_not_rotary(mapping, model_type)):
        raise _unknown(mapping, model_type)
    unknown = Family({"rope_theta": None}, axes=Axes("chunked", any_order=True))
    return _with_layout(FAMILIES.get(model_type, unknown), layout)


def _is_not_rotary(mapping: Config, model_type: str) -> bool:
    """Whether a model type has no rotary embedding, and no key says that its checkpoint has one (with its own code)."""
    return model_type in NOT_ROTARY.split() and not any(
        value is not None and states_rotation(key, value) for key, value in mapping.items()
    )


def _with_layout(family: Family, layout: str | None) -> Family:
    if layout is None:
        return family
    return replace(family, pairing=replace(family.pairing, layout=layout, from_caller=True))


def _unknown(mapping: Config, model_type: str) -> ValueError:
    if _is_not_rotary(mapping, model_type):
        return wrong_value(
            f"model_type must be of a family with a rotary embedding; got {model_type!r}, which has none in "
            "transformers 5.18"
        )
    if not model_type:
        return wrong_value("model_type must be in the config, or layout be given; got neither")
    similar = ", ".join(get_close_matches(model_type[:100], FAMILIES)) or "no known name"
    hint = "If transformers has this family, rope_xp.huggingface.from_transformers(config) identifies what it computes"
    like = f"similar to {similar}. {hint}"
    like = "which has no rotary embedding in transformers 5.18" if model_type in NOT_ROTARY.split() else like
    parts = comma_separated(sub_configs(mapping))
    among = f", or part be one of {parts}" if parts else ""
    return wrong_value(
        f"model_type must be one of the {len(FAMILIES)} rotary families that rope_xp knows, or layout be given"
        f"{among}; got {model_type!r}, {like}"
    )


def _read_part(
    mapping: Config, model_type: str, family: Family, choice: Selection
) -> tuple[RotaryEmbedding | None, Provenance]:
    """Read one part of a config with the row of its family. The provenance has the values that it does not state."""
    keys = Keys(f"the config of model_type {model_type!r}" if model_type else "the config", mapping, model_type)
    with misspelt_first(keys):
        rope, provenance = _read_layer(keys, family, choice)
    if rope is None or (choice.layer is None and choice.layer_type is None):
        return rope, provenance
    all_layers = choice._replace(layer=None, layer_type=None)
    # Layers that do not differ after all have no type, or the only one.
    whole = _attempt(lambda: _read_part(mapping, model_type, family, all_layers))
    if isinstance(whole, tuple) and whole[0] == rope:
        return rope, replace(provenance, layer_type=whole[1].layer_type)
    return rope, provenance if provenance.layer_type else replace(provenance, layer=choice.layer)


def _read_layer(keys: Keys, family: Family, choice: Selection) -> tuple[RotaryEmbedding | None, Provenance]:
    mapping, model_type = keys.mapping, keys.model_type
    layer, seq_len, compat = choice.layer, choice.seq_len, choice.compat
    if compat is not None:
        keys.mapping, family = as_transformers(keys.mapping, model_type, family, seq_len)
    translate_own_keys(keys, seq_len)
    layer_type = layer_type_of(keys, family, layer, choice.layer_type)
    of_indexer = choice.part == INDEXER and model_type in INDEXERS  # it is wanted, not the attention
    if of_indexer and layer is None and layer_type is None:
        layer_type = INDEXERS[model_type].layer_type or None
    row_type = row_type_of(family.layers, only_type_of(keys, family) if layer_type is None else layer_type)
    block = block_of(keys, family, row_type)
    rotated = is_rotated(keys, family, layer, layer_type)
    indexed = has_indexer(keys, layer, layer_type)
    defaults_of_layer = tuple(keys.defaults.values())  # they decide the type of the layer, and whether it is rotated
    rope, row = None, family.of_type(row_type)
    if block is not None:
        which = layer if rotated else NO_LAYER
        rope = embedding_of(LayerConfig(keys, block, row, which, layer_type, seq_len))
        keys.remarks += [] if compat else remarks_on_transformers(keys.mapping, block.mapping, model_type, family)
    indexer = read_indexer(keys, rope if rotated and indexed else None, choice.layout, of_indexer)
    _add_remark_on_chunks(keys)
    length = keys.read_first(*LENGTH_KEYS)
    window, is_windowed = window_of(keys, family)
    _check_all_read(keys, family, mapping)
    if rope is None or not rotated or (of_indexer and indexer is None):
        return None, Provenance(defaults_of_layer)
    keys.remarks += [
        *_remarks_on_base(keys, row, rope),
        *remarks_on_widths(keys, family, rope.head_dim),
    ]
    note = "" if indexer is None or of_indexer else note_on_indexer(rope, indexer)
    chosen = indexer if of_indexer and indexer is not None else rope
    order, axes = getattr(chosen.sections, "order", ""), chosen.axes
    of_patches = order.startswith("axial") or (order == "even_odd" and axes == 2)  # of an image, not along an axis
    length = int(length) if not of_patches and isinstance(length, (int, float)) and 1 <= length < 2**53 else None
    stated = tuple(name for name in keys.found() if name in mapping)  # not those that `translate_own_keys` has added
    base_keys = row.quirks.base_keys or BASE_KEYS[:1]
    return chosen, Provenance(
        defaults=tuple(keys.defaults.values()),
        remarks=tuple(keys.remarks),
        model_type=model_type,
        is_latent=bool(model_type) and family.is_latent,
        base_key=next((name for name in base_keys if name in stated), base_keys[0]),
        max_position_embeddings=length,
        stated=stated,
        axis_names=axis_names(family, model_type, chosen.axes),
        indexer=note,
        layer_type=row_type,
        has_own_types=has_own_types(keys, family),
        sliding_window=window,
        is_windowed=is_windowed or (layer_type in WITH_WINDOW and row_type != layer_type),
    )


def _check_all_read(keys: Keys, family: Family, mapping: Config) -> None:
    if family.layers.by_type:
        keys.mark_as_read(*family.base_keys)  # also those of other types
    keys.require_all_read(is_about_positions, families_with)
    if mapping and not mapping.get("model_type") and not keys.found():
        raise wrong_value(f"{keys.name} must have a key that is known; got {comma_separated(mapping)}")


def _remarks_on_base(keys: Keys, row: Family, rope: RotaryEmbedding) -> list[str]:
    """A sentence about a stated base that is the default of most families, but not of this one."""
    usual, own = COMMON_DEFAULTS["rope_theta"], row.default("rope_theta")
    is_stated = all(default.row != "frequencies" for default in keys.defaults.values())
    # With a scaling rule, such a base may be meant: Phi-3.5-MoE has it.
    if not is_stated or rope.base != usual or rope.scaling is not None or own in (None, usual):
        return []
    return [
        f"the base is {usual:,.0f}, the default of most families, but the default of {keys.model_type} is {own:,.0f}"
    ]


def _add_remark_on_chunks(keys: Keys) -> None:
    """Add a remark on dual chunk attention. Within a chunk, nothing changes; attention does the rest."""
    chunks = keys.read_mapping("dual_chunk_attention_config")
    if chunks.mapping:
        size = chunks.read_count("chunk_size")
        keys.remarks.append(
            f"dual_chunk_attention_config is not applied: beyond chunk_size={size} tokens, attention has to choose "
            "the positions of queries for each chunk of keys"
        )


def _keys_and_family(whole: Config, part: str | None) -> tuple[Keys, Family] | None:
    form = format_of(whole)
    if form is not None and form.readers:
        translated = form.as_config(Keys("the mapping", whole), part)
        return translated and (Keys("the config", translated[0]), translated[1])
    config, model_type, _ = part_of(whole if form is None else with_mlx_rule(whole), part)
    return Keys("the config", config, model_type), FAMILIES.get(model_type, Family())


def why_not_rotated(config: object, part: str | None) -> str:
    """What a config of transformers says instead of a rotation, such as ALiBi; empty if it says nothing."""
    keys, family = _keys_and_family(mapping_of(config), part) or (None, Family())
    if keys is None or family.layers.only_if is None:
        return ""
    translate_own_keys(keys, None)
    key, wanted, *_ = family.layers.only_if
    value = keys.read_or_assume(key, "", family.default(key))
    return "" if value == wanted else f"{key} is {value!r}"


def types_of_layers(whole: Config, part: str | None) -> tuple[list[str] | None, list[str]]:
    """The type of each layer, empty if it has none, or None if their number is unknown; and then the known types."""
    found = _keys_and_family(whole, part)
    if found is None:
        return None, []
    keys, family = found
    types = types_of(keys, family)
    count = layers_of(keys) or len(types)
    if not 0 < count <= MAX_LAYERS:
        return None, nested_by(keys, family) or list(family.layers.by_type)
    return (types + [""] * count)[:count], []
