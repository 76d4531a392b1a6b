"""Change a config as the JSON overrides of vLLM, SGLang and lmdeploy do, and write its blocks as they read them.

References
----------
vLLM 0.33: `ModelConfig.__post_init__`, `_apply_dict_overrides` and `_get_and_verify_max_len` (`config/model.py`),
`get_config` and `patch_rope_parameters` (`transformers_utils/config.py`), `get_rope` (in `layers/rotary_embedding`).
SGLang 0.5.23: `get_config` (`srt/utils/hf_transformers/config.py`), `get_rope_config` and `get_context_length`
(`srt/utils/hf_transformers/common.py`), `get_rope` (`srt/layers/rotary_embedding/factory.py`). lmdeploy 0.18:
`override_hf_config` (`pytorch/config.py`), `pytorch/nn/rotary_embedding.py`. transformers 5.18:
`standardize_rope_params` (`modeling_rope_utils.py`). `tests/engines` runs them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import log, prod
from typing import Any

from rope_xp.arrays import checks
from rope_xp.configs import engines
from rope_xp.configs.block import blocks_of
from rope_xp.configs.families.family import Family
from rope_xp.configs.families.model_types import FAMILIES, NOT_IN_TRANSFORMERS
from rope_xp.configs.families.own_keys import variant_of
from rope_xp.configs.keys import BASE_KEYS, PARTIAL_KEYS, Keys, comma_separated, is_about_positions
from rope_xp.configs.layers import nested_by
from rope_xp.configs.parts import PARTS, part_of, path_to
from rope_xp.configs.readers.command_line import LENGTHS, Changed, CommandLine
from rope_xp.configs.readers.formats import format_of
from rope_xp.configs.upstream import drop, drop_replaced
from rope_xp.configs.writers.vllm import SCALED_LENGTH
from rope_xp.errors import wrong_value
from rope_xp.frequencies import LENGTH, ORIGINAL, RULES
from rope_xp.types import Config, Values

BLOCK_KEYS = ("rope_parameters", "rope_scaling")
# The names of a length. vLLM takes the least, SGLang the first.
LENGTHS_OF_VLLM = (
    *(LENGTH, "n_positions", "max_seq_len", "seq_length", "max_target_positions", "max_sequence_length"),
    *("max_seq_length", "seq_len"),
)
LENGTHS_OF_SGLANG = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", LENGTH)
# Rules for which transformers completes a block by the original length.
WITH_ORIGINAL = ("llama3", "yarn", "longrope")
# What is read of a block for all rules, and the parameters of rules, with Hunyuan's `alpha`.
USUAL = ("rope_type", "rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
PARAMETERS = {"alpha", *(each.name for rule in RULES.values() for each in fields(rule))} - {*USUAL}
# The keys of a block that vLLM's rules must have.
VLLM_RULES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("default", "proportional", "dynamic"), ()),
    **dict.fromkeys(("linear", "ntk"), ("factor",)),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", ORIGINAL),
    **dict.fromkeys(("yarn", "deepseek_yarn"), ("factor", ORIGINAL)),
    "longrope": ("short_factor", "long_factor", ORIGINAL),
}
# What the tables of SGLang and lmdeploy call by names of their own.
NAMES_OF_USERS = {"deepseek_yarn": "yarn", "ntk": "dynamic with alpha"}
# Model types whose classes fail in vLLM without a base, or a fraction. All that run with the code of transformers do
# without a base.
WITH_BASE = ("gpt_oss", "granite", "granitemoe", "granitemoeshared", "olmo_hybrid")
WITH_FRACTION = ("persimmon", "phi")
# Those whose config writes a fraction into its block before vLLM sets that of the flags.
WITH_OWN_FRACTION = ("phi3", "phi4_multimodal")
# Those of checkpoints' code whose config is of a class of transformers in an engine.
OF_TRANSFORMERS = [("vllm", "kimi_k2")]
# Keys that SGLang and older versions of vLLM read.
MULTIPLIERS = ("attn_factor", "apply_yarn_scaling")
# vLLM reads the sections of position axes for these rules only.
WITH_SECTIONS = ("default", "yarn")


@dataclass
class Part:
    """The part of a config that is read, as the engine has it in memory. The arguments of `line` change `mapping`."""

    line: CommandLine
    mapping: Values
    model_type: str
    path: tuple[str, ...]  # the keys that lead to it in the engine
    unread: tuple[str, ...] = ()  # the first key of the path that transformers has, if the engine reads outside it
    reading: engines.Reading = field(default_factory=engines.Reading)  # what the engine reads
    own: Config = field(default_factory=dict)  # the keys of the flags at the path
    beside: Values = field(default_factory=dict)  # the keys of file and flags that stand beside the block
    remarks: list[str] = field(default_factory=list)  # sentences about arguments that change nothing, or too much

    @property
    def family(self) -> Family:
        return FAMILIES.get(self.model_type, Family())

    @property
    def base_keys(self) -> tuple[str, ...]:
        return (*BASE_KEYS, *self.family.base_keys)

    @property
    def blocks(self) -> list[Values]:
        block = self.mapping.get("rope_parameters") or self.mapping.get("rope_scaling") or {}
        if not self._has_types():
            return [block]
        return [each for each in block.values() if isinstance(each, dict)]

    def edit_blocks(self, read: Callable[[Config], Values]) -> None:
        if name := next((key for key in BLOCK_KEYS if self.mapping.get(key)), ""):
            block = self.mapping[name]
            self.mapping = {**self.mapping, name: _each(block, read) if self._has_types() else read(block)}

    def _has_types(self) -> bool:  # as the reader sees it: the blocks may be null
        return bool(nested_by(Keys("the config", self.mapping), self.family))

    def stated_fraction(self) -> object:
        places = (*self.blocks, self.mapping)
        return next((each[key] for each in places for key in PARTIAL_KEYS if each.get(key) is not None), None)

    def without_type(self, block: Config, given: Config, effect: str) -> Values:
        # Engines do not read it: a remark, if it is the only name of the rule.
        found = dict(block)
        kind = found.pop("type", None)
        if kind is not None and "rope_type" not in given:
            self.remarks.append(f"{self.line.name} reads rope_type, and not type={kind!r:.40}: {effect}")
        return found


def with_overrides(line: CommandLine, whole: Config, part: str | None) -> Changed:
    form = format_of(whole)
    if form is not None and form.readers:
        raise wrong_value(f"config must be a config.json of transformers with flags of {line.name}; got {form.name}")
    mapping, model_type, _ = part_of(whole, part)
    place = path_to(mapping, whole)
    found = _in_engine(Part(line, dict(mapping), variant_of(mapping, model_type), place), whole)
    if line.last("--rope-scaling-factor"):
        raise wrong_value(
            "--rope-scaling-factor must be 0 in flags, because lmdeploy then replaces the rule by dynamic "
            "NTK in one of its two backends; got another number"
        )
    ENGINES[line.engine](found)
    if line.engine != "vllm-0.8":  # there, a file's name is read at the same time
        found.edit_blocks(lambda block: _with_name(block, found.family))
    length = line.last(*LENGTHS)
    if length is not None and length < 1:
        raise wrong_value(f"the context of flags must be at least 1; got {length}")
    is_longrope = any("longrope" in (each.get("rope_type"), each.get("type")) for each in found.blocks)
    # vLLM uses one of the two lists, without a length the short one. The others choose it by the positions of each
    # call, as transformers does.
    by_length = is_longrope and line.engine == "vllm" and not found.reading.by
    usual = found.mapping.get(ORIGINAL) or found.family.default(ORIGINAL) or found.mapping.get(LENGTH)
    context = (length or usual) if by_length else None
    if not found.family.quirks.base_keys:  # the reader knows no key for the base
        for block in found.blocks:
            if block.get("rope_theta") == found.family.default("rope_theta"):
                del block["rope_theta"]
    layout = found.reading.fixed.get("layout", "") if line.engine == "vllm" else ""
    served = context if by_length else length
    return Changed(_placed(whole, place, found.mapping), context, served, found.remarks, layout)


def _in_engine(part: Part, whole: Config) -> Part:
    """The part where the engine has it, by the table of what it reads."""
    file_type = whole.get("model_type", "")
    text = PARTS.get(file_type, {}).get("text")
    # In memory, a flat file of a composite has the keys of its text in a part.
    of_text = tuple(text[0].split(".")) if text else ()
    path = part.path or of_text
    if part.line.engine == "vllm-0.8":
        return replace(part, path=path)
    table, file_type = engines.table(part.line.engine), file_type if path in ((), of_text) else ""
    if part.line.engine == "vllm":
        reading, _ = table.of_text(file_type, part.model_type, path)
    else:
        known = table.of(whole.get("model_type", ""))
        reading = known if known and path in ((), of_text, known.path) else engines.Reading(path=path)
    return replace(part, path=reading.path, unread=path[: not reading.path], reading=reading)


def _placed(config: Config, place: tuple[str, ...], part: Values) -> Values:
    return {**config, place[0]: _placed(config[place[0]], place[1:], part)} if place else part


def _of_vllm(part: Part) -> None:
    """vLLM: single values before transformers completes the block, and objects after it."""
    part.own = own = _at(part.line.last("--hf-overrides") or {}, part)
    _complete(part, is_replaced=_has_block(own) and not part.path)
    plain = {key: value for key, value in own.items() if not isinstance(value, Mapping)}
    if not part.path and plain.get(ORIGINAL) is not None:
        for block in part.blocks:
            if block.get("rope_type") in WITH_ORIGINAL:
                block[ORIGINAL] = plain[ORIGINAL]
    has_own = PARTIAL_KEYS[0] in part.family.defaults or part.model_type in WITH_OWN_FRACTION
    if not part.path and PARTIAL_KEYS[0] in plain and not has_own and part.stated_fraction() is None:
        part.mapping[PARTIAL_KEYS[0]] = plain.pop(PARTIAL_KEYS[0])
    _set_plain(part, plain)
    for key, value in own.items():
        if not isinstance(value, Mapping):
            continue
        if key not in BLOCK_KEYS:
            part.mapping[key] = _merged(part.mapping.get(key), value) if part.path else value
        elif part.path:
            _merge_block(part, value, _merged)
        else:
            _replace_block(part, key, value)
    scaled = [] if "gemma3" in part.model_type else part.blocks
    scaled = [block for block in scaled if block.get("rope_type") not in SCALED_LENGTH]
    lengths = [part.mapping[key] for key in LENGTHS_OF_VLLM if isinstance(part.mapping.get(key), int)]
    stated = part.mapping.get("model_max_length") or min(lengths, default=None)
    _remark_on_length(part, stated, scaled, "VLLM_ALLOW_LONG_MAX_MODEL_LEN")
    _drop_fraction(part)
    part.edit_blocks(lambda block: _as_vllm(block, part))


def _drop_fraction(part: Part) -> None:
    # Some classes rotate whole heads, but for the rule "proportional".
    key, usual = PARTIAL_KEYS[0], part.family.default("rope_parameters") or {}
    if part.reading.fixed.get("rotated") != 1.0:
        return
    outside = next((part.mapping[each] for each in PARTIAL_KEYS if part.mapping.get(each) is not None), None)
    remark = f"{part.line.name} does not read {key} for model type {part.model_type!r}: it rotates whole heads"

    def read(block: Config) -> Values:
        rule, fraction = (block or usual).get("rope_type", "default"), block.get(key, outside)
        if rule == "proportional" and part.reading.reads(key, rule):
            return {**block, key: 1.0 if fraction is None else fraction}
        if fraction not in (None, 1.0):
            part.remarks.extend([] if remark in part.remarks else [remark])
            if part.reading.by and rule != "default":
                raise wrong_value(
                    f"{key} must be 1 for model type {part.model_type!r} with flags of vLLM, which runs a class of "
                    f"{part.reading.by} that rotates whole heads, and fails with a scaling rule; got {fraction!r:.40}"
                )
        return {name: value for name, value in block.items() if name not in PARTIAL_KEYS}

    if part.blocks == [{}]:
        read({})
    part.edit_blocks(read)
    drop(part.mapping, PARTIAL_KEYS)


def _remark_on_length(part: Part, stated: object, scaled: list[Values], variable: str) -> None:
    """Where flags are for more than the length of the config, times the factor of `scaled` blocks."""
    given, factor = part.line.last(*LENGTHS), 1.0
    for block in scaled:
        factor = block.get("factor") or factor
    limit = _product(stated, factor)
    if given and limit and given > limit:
        reason = f"the length {given} is greater than {limit:.0f}, which the config allows"
        part.remarks.append(f"{part.line.name} stops with an error if {variable}=1 is not set: {reason}")
    for block in part.blocks if _has_block(part.own) and limit and not given else ():
        extended = _product(block.get("factor"), block.get(ORIGINAL))
        if block.get("rope_type") in ("yarn", "deepseek_yarn") and extended > limit:
            part.remarks.append(f"{part.line.name} serves {limit:.0f} tokens, although YaRN is for {extended:.0f}")


def _product(*values: object) -> float:
    # 0 if one is no number below 2**53, which the reader refuses.
    numbers = [each for each in values if isinstance(each, (int, float)) and abs(each) < 2**53]
    return prod(numbers) if len(numbers) == len(values) else 0.0


def _of_old_vllm(part: Part) -> None:
    """vLLM with transformers 4, which has the base outside the block."""
    line, scaling, base = part.line, part.line.last("--rope-scaling"), part.line.last("--rope-theta")
    if part.mapping.get("rope_parameters") is not None:
        raise wrong_value(
            "config must have the keys of transformers 4, rope_theta and rope_scaling, with --rope-scaling and "
            "--rope-theta of older versions of vLLM; got rope_parameters, which these versions do not read"
        )
    if part.path:
        part.remarks.append(
            f"{line.name} sets --rope-scaling and --rope-theta outside {'.'.join(part.path)}, not in it"
        )
        return
    if scaling is not None:
        part.mapping["rope_scaling"] = scaling
    if base is not None:
        drop(part.mapping, part.base_keys)
        part.mapping["rope_theta"] = base
    part.edit_blocks(lambda block: _with_multiplier(_as_dynamic(block, part, None)))


def _of_sglang(part: Part) -> None:
    # It merges a block of the whole config, and replaces that of a part.
    _set_all(part, None if part.path else lambda old, new: {**old, **new})
    scaled = [block for block in part.blocks if ORIGINAL not in block and block.get("rope_type") != "llama3"]
    stated = next((value for key in LENGTHS_OF_SGLANG if (value := part.mapping.get(key)) is not None), None)
    _remark_on_length(part, stated, scaled, "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN")
    part.edit_blocks(lambda block: _as_sglang(_of_class(block, part), part))


def _of_lmdeploy(part: Part) -> None:
    if part.line.last("--backend") != "pytorch":
        default = "lmdeploy uses TurboMind for models that it has, which was not run"
        part.remarks.append(f"{part.line.name} is read with its PyTorch engine: without --backend pytorch, {default}")
    _set_all(part, _merged)

    def read(block: Config) -> Values:
        found = _without_rule(_of_class(block, part))
        return {key: value for key, value in found.items() if key not in MULTIPLIERS}

    part.edit_blocks(read)


def _set_all(part: Part, merged: Callable[[Config, Config], Values] | None) -> None:
    """Set the keys of the flags. Their block replaces the config's, unless both can be `merged`."""
    part.own = own = _at(part.line.last("--json-model-override-args", "--hf-overrides") or {}, part)
    merged = None if _removes_block(own) else merged
    is_replaced = _has_block(own) and merged is None
    of_file = {key: part.mapping.get(key) for key in (PARTIAL_KEYS[0], ORIGINAL)}
    of_file["rope_theta"] = next((part.mapping[key] for key in part.base_keys if key in part.mapping), None)
    _complete(part, is_replaced=is_replaced)
    _set_plain(part, {key: value for key, value in own.items() if key not in BLOCK_KEYS})
    for key in [each for each in BLOCK_KEYS if isinstance(own.get(each), Mapping)]:
        if merged is None:
            _replace_block(part, key, own[key])
        else:
            _merge_block(part, own[key], merged)
    part.beside = of_file | {key: own[key] for key in of_file if key in own}
    for key in engines.FIXED:
        _place(part, key, {} if is_replaced else of_file)
    has_axes = part.reading.has_places and part.family.default("mrope_section")
    if has_axes and not any("mrope_section" in block for block in part.blocks):
        part.remarks.append(f"{part.line.name} rotates by one position, as no mrope_section is in rope_parameters")


def _place(part: Part, key: str, of_file: Config) -> None:
    # The class takes a key from the block, or from the config beside it: the reader finds it in the block.
    if not part.reading.has_places or (key == PARTIAL_KEYS[0] and part.family.quirks.rotated_width):
        return
    places, usual, default = part.reading.places.get(key, ()), part.reading.usual(key), part.family.default(key)
    # transformers copies the fraction of a file into its block, and moves the base there, unless the class reads it.
    copied = None if key == "rope_theta" and "config" in places else of_file.get(key)

    def read(block: Config) -> Values:
        stated = {"block": block.get(key, copied), "config": part.beside[key]}
        value = next((stated[place] for place in places if stated[place] is not None), usual)
        for where, given in (("of", stated["block"]), ("outside", part.own.get(key))):
            if given not in (None, value):
                taken = "another key" if value is None else f"{value!r:.40}"
                part.remarks.append(
                    f"{part.line.name} does not read {key} {where} rope_parameters for model type "
                    f"{part.model_type!r}: it takes {taken}"
                )
        found = {name: each for name, each in block.items() if name != key or value is not None}
        of_block = default if stated["block"] is None else stated["block"]
        return found if value in (None, of_block) else {**found, key: value}

    if part.blocks == [{}]:
        part.mapping |= read({})
        return
    part.edit_blocks(read)
    if any(key in block for block in part.blocks):
        drop(part.mapping, part.base_keys if key == "rope_theta" else (key,))


def _of_class(block: Config, part: Part) -> Values:
    # With the rule that the class computes, as the tables of SGLang and lmdeploy know it.
    rules, rule, name = part.reading.rules, block.get("rope_type", "default"), part.line.name
    of_type = f"for model type {part.model_type!r}"
    if not part.reading.has_places:
        return dict(block)
    if rule == "dynamic" and block.get("alpha") is not None:
        rule = "ntk"
    if rule == "yarn" and "deepseek_yarn" in rules:
        rule = "deepseek_yarn"
    if rule != "default" and not rules.keys() - {"default"}:
        part.remarks.append(f"{name} scales nothing {of_type}: it ignores the rule {rule!r:.100}")
        rule, block = "default", {**block, "rope_type": "default"}
    if rule not in (*rules, "default"):
        *known, got = (NAMES_OF_USERS.get(str(each), str(each))[:100] for each in (*rules, rule))
        raise wrong_value(
            f"rope_type must be one of {comma_separated(known)} with flags of {name} {of_type}; got {got!r}"
        )
    has_axes = _has_block(part.own) and part.family.default("mrope_section")
    if has_axes and "mrope_section" not in {*block} & {*rules.get(rule, ())}:
        got = f"rope_type {rule!r}" if "mrope_section" in block else comma_separated(block)
        raise wrong_value(
            f"rope_parameters must have mrope_section, and a rope_type with which {name} reads it {of_type}, because "
            f"it else loses the position axes; got {got}"
        )
    original = part.beside[ORIGINAL]
    if rule in SCALED_LENGTH and ORIGINAL not in rules[rule] and original is not None:
        return {**block, ORIGINAL: original}
    return dict(block)


ENGINES: dict[str, Callable[[Part], None]] = {
    "vllm": _of_vllm,
    "vllm-0.8": _of_old_vllm,
    "sglang": _of_sglang,
    "lmdeploy": _of_lmdeploy,
}


def _has_block(own: Config) -> bool:
    return any(isinstance(own.get(key), Mapping) for key in BLOCK_KEYS)


def _removes_block(own: Config) -> bool:
    """Whether flags set `rope_scaling`, another name of the block, to null before they set `rope_parameters`."""
    names = [key for key in own if key in BLOCK_KEYS]
    return names == ["rope_scaling", "rope_parameters"] and own["rope_scaling"] is None


def _at(overrides: Config, part: Part) -> Config:
    found: Any = overrides
    name = part.line.name
    for key in part.unread:
        inside = found.get(key, {})
        if isinstance(inside, Mapping) and any(
            is_about_positions(*each) for each in inside.items() if each[0] != LENGTH
        ):
            part.remarks.append(f"{name} does not read {key} of the flags for this model type: it changes nothing")
        found = {each: value for each, value in found.items() if each != key}
    for key in part.path:
        outside = [each for each, value in found.items() if each != key and is_about_positions(each, value)]
        if outside:
            part.remarks.append(
                f"{name} reads rotary keys in {'.'.join(part.path)} for this model type: outside it, "
                f"{comma_separated(outside)} of the flags changes nothing"
            )
        found = found.get(key, {})
        if not isinstance(found, Mapping):
            raise wrong_value(f"{key} must be an object in flags; got {found!r:.100}")
    for key in BLOCK_KEYS:
        if key in found and not isinstance(found[key], Mapping) and not _removes_block(found):
            raise wrong_value(f"{key} must be an object in flags; got {found[key]!r:.100}")
        blocks = [*(found.get(key) or {}).values()]
        if None in blocks and any(isinstance(each, Mapping) for each in blocks):
            raise wrong_value(f"{key} must have an object for each type of layers in flags; got {blocks!r:.100}")
    if all(found.get(key) is not None for key in BLOCK_KEYS):
        raise wrong_value("rope_parameters or rope_scaling must be in flags, not both; got both")
    return found


def _complete(part: Part, *, is_replaced: bool) -> None:
    """Complete the block as transformers does when it loads the config. Flags may replace it after that."""
    parameters, scaling = blocks_of(Keys("the config", part.mapping), may_differ=is_replaced)
    raw = parameters or scaling
    if not raw:
        return
    outside = {key: value for key, value in part.mapping.items() if key not in BLOCK_KEYS}
    key = "rope_parameters" if "rope_parameters" in part.mapping else "rope_scaling"
    part.mapping = {**outside, key: raw}
    part.edit_blocks(lambda block: _block_completed(block, outside, part.family))


def _block_completed(block: Config, outside: Config, family: Family) -> Values:
    found = dict(block)
    rule = found.get("rope_type") or found.pop("type", None) or "default"
    names = {"su": "longrope", "mrope": "default"}
    names |= {name: other for name, other in family.quirks.rules.items() if name == "yarn" and isinstance(other, str)}
    found["rope_type"] = names.get(rule, rule) if isinstance(rule, str) else rule
    if found.get("type") in (*names, found["rope_type"]):
        del found["type"]
    original, length = outside.get(ORIGINAL), outside.get(LENGTH)
    if found["rope_type"] in WITH_ORIGINAL and found.get(ORIGINAL) is None and (original or length) is not None:
        found[ORIGINAL] = length if original is None else original
    return found


def _with_name(block: Config, family: Family) -> Values:
    # transformers replaces the names of rules in a file, and not those of flags.
    if block.get("rope_type") != "yarn" or "yarn" not in family.quirks.rules:
        return dict(block)
    return {**block, "rope_type": "deepseek_yarn"}


def _set_plain(part: Part, own: Config) -> None:
    """Set keys outside the block. transformers has copied the base and the fraction into it before."""
    if "model_type" in own:
        raise wrong_value(f"model_type must not be in flags; got {own['model_type']!r:.100}")
    of_code = part.model_type in NOT_IN_TRANSFORMERS and (part.line.engine, part.model_type) not in OF_TRANSFORMERS
    copied = set() if of_code else {*part.base_keys, *PARTIAL_KEYS}
    placed = {*engines.FIXED} if part.reading.has_places else set()
    part.mapping |= {key: value for key, value in own.items() if key not in copied | placed}
    if unread := (copied - placed) & own.keys():
        part.remarks.append(
            f"{comma_separated(unread)} outside rope_parameters changes nothing in {part.line.name}: transformers has "
            "already copied the value of the file into rope_parameters, and that value is used"
        )


def _merge_block(part: Part, value: Config, merged: Callable[[Config, Config], Values]) -> None:
    old = [part.mapping.pop(key) for key in BLOCK_KEYS if key in part.mapping]
    found = merged(next((each for each in old if each), {}), value)
    by_type, is_nested = part.family.layers.by_type, _is_nested(found)
    if len(by_type) > 1 and not is_nested:
        raise wrong_value(
            f"rope_parameters of flags must be nested by layer type, {comma_separated(by_type)}; "
            f"got {comma_separated(value)}"
        )
    drop_replaced(part.mapping, found, part.base_keys)
    if ORIGINAL in found:
        drop(part.mapping, (ORIGINAL,))
    found = part.without_type(found, value, "the rule is that of the config")
    part.mapping["rope_parameters"] = found if is_nested else {"rope_type": "default", **found}


def _replace_block(part: Part, key: str, value: Config) -> None:
    own, name = part.reading.defaults, part.line.name  # what the class fills in
    base, rotated = own.get("rope_theta", 10_000.0), own.get(PARTIAL_KEYS[0], 1.0)
    reads_base = "block" in (part.reading.places.get("rope_theta") or ["block"])
    fraction, default = part.stated_fraction(), part.family.default(PARTIAL_KEYS[0])
    listed, why = part.family.layers.listed, ""
    if (part.model_type, key) == ("cohere2_moe", "rope_scaling"):  # a bug of its class in transformers
        why = "does not read it"
    elif listed is not None and listed.bases:
        why = f"takes the base from {listed.key}"
    if part.line.engine == "vllm" and why:
        raise wrong_value(
            f"{key} must not be in flags of vLLM for model type {part.model_type!r}, whose class {why}; got "
            f"{comma_separated(value) or 'an empty object'}"
        )
    drop(part.mapping, (*BLOCK_KEYS, *part.base_keys, *PARTIAL_KEYS, ORIGINAL))

    def completed(block: Config) -> Values:
        if part.line.engine == "vllm":
            _require_keys(block, part)
        elif "type" in block:
            block = {"rope_type": block["type"], **block}
        needed = ("rope_type", "rope_theta") if reads_base else ("rope_type",)
        if part.line.engine == "sglang" and not {*needed} <= block.keys():
            raise wrong_value(
                f"rope_parameters must have {comma_separated(needed)} with flags of SGLang, which replaces the block; "
                f"got {comma_separated(block) or 'none'}"
            )
        is_usual = reads_base and "rope_theta" not in block
        found = {"rope_type": "default", **({"rope_theta": base} if is_usual else {}), **block}
        found = part.without_type(found, block, "there is no scaling")
        if is_usual:
            part.remarks.append(f"{name} replaces rope_parameters, and without rope_theta the base is {base:,.0f}")
        is_completed = part.model_type == "glm" and found["rope_type"] != "default"  # by its class of transformers
        share = default if is_completed else rotated
        if not part.reading.has_places and PARTIAL_KEYS[0] not in block and {default, fraction} - {None, share}:
            found[PARTIAL_KEYS[0]] = share
            if (default if fraction is None else fraction) != share:
                heads = "whole heads" if share == 1.0 else f"{share:g} of the head"
                part.remarks.append(f"{name} replaces rope_parameters, and without {PARTIAL_KEYS[0]} rotates {heads}")
        return found

    part.mapping["rope_parameters"] = _each(value, completed) if _is_nested(value) else completed(value)


def _require_keys(block: Config, part: Part) -> None:
    model = part.model_type
    needed = {
        "rope_type": "gemma3" not in model,
        "rope_theta": part.reading.by == "transformers" or model in WITH_BASE,
        PARTIAL_KEYS[0]: model in WITH_FRACTION,
    }
    if missing := [key for key, is_needed in needed.items() if is_needed and block.get(key) is None]:
        raise wrong_value(
            f"rope_parameters must have {comma_separated(missing)} with flags of vLLM, which fails without for model "
            f"type {model!r}; got {comma_separated(block) or 'none'}"
        )


def _is_nested(block: Config) -> bool:
    return any(isinstance(each, Mapping) for each in block.values())


def _each(blocks: Config, read: Callable[[Config], Values]) -> Values:
    return {key: read(each) if isinstance(each, Mapping) else each for key, each in blocks.items()}


def _as_vllm(block: Config, part: Part) -> Values:
    """A block with the keys that vLLM reads, and for rules that vLLM computes in another way, with their result."""
    rule, rules, ignored = block.get("rope_type", "default"), part.reading.rules, part.family.quirks.ignored_in_block
    if not isinstance(rule, str):
        return dict(block)

    def kept(read: set[str], *quiet: str) -> Values:
        if unread := block.keys() - read - {*ignored, *quiet, "finetuned", "type"}:
            part.remarks.append(
                f"{part.line.name} does not read {comma_separated(unread)} of rope_parameters for rule {rule!r}"
            )
        return {key: value for key, value in block.items() if key in read or key in ignored}

    if part.reading.by and rule in rules:
        return kept({*rules[rule], *(["alpha"] if rule == "dynamic" and "factor" in ignored else [])})
    if rule not in rules and len(rules) < 3:  # the class has another rule in place of all others
        rule = next((each for each in rules if each != "default"), "default")
    if rule not in VLLM_RULES or rule not in rules:
        return dict(block)
    must = VLLM_RULES[rule] + (() if "default" in rules else ("beta_fast", "beta_slow"))  # those of gpt_oss
    missing = [key for key in must if block.get(key) is None]
    if missing:
        raise wrong_value(
            f"rope_parameters of rule {rule!r} must have {comma_separated(missing)} with flags of vLLM, which "
            f"fails without; got {comma_separated(block)}"
        )
    if "mrope_section" in block and rule not in WITH_SECTIONS:
        raise wrong_value(
            f"rope_type must be one of {comma_separated(WITH_SECTIONS)} with mrope_section in flags of vLLM, "
            f"which else loses the position axes; got {rule!r}"
        )
    if rule == "longrope" and part.reading.fixed.get("layout") == "interleaved":
        raise wrong_value(
            f"rope_type must not be 'longrope' with flags of vLLM for model type {part.model_type!r}, whose pairs are "
            "neighbours, because vLLM then fails; got 'longrope'"
        )
    read = {*USUAL, *rules[rule]} - ({"attention_factor"} if rule == "deepseek_yarn" else set())
    found = kept(read, *(MULTIPLIERS if "attention_factor" in read & block.keys() else ()))
    found["rope_type"] = rule
    if rule == "deepseek_yarn" and "yarn" not in rules and block.get("attention_factor") == 1.0:
        # vLLM then has the same tables, and does not multiply the softmax scale.
        keys = ("mscale", "mscale_all_dim")
        factor = _mscale(found["factor"], found.get(keys[0], 1.0)) / _mscale(found["factor"], found.get(keys[1], 0.0))
        found = {key: value for key, value in found.items() if key not in keys}
        return {**found, "rope_type": "yarn", "attention_factor": factor}
    if rule == "dynamic":
        trained = found.pop("max_trained_positions", part.mapping.get(LENGTH))
        return _as_dynamic(found, part, trained)
    return _as_longrope(found, part) if rule == "longrope" else found


def _as_sglang(block: Config, part: Part) -> Values:
    """The same for SGLang, whose YaRN reads `attn_factor` in place of `attention_factor`."""
    found = _without_rule(block)
    rule = found.get("rope_type")
    if rule in ("su", "ntk"):
        raise wrong_value(f"rope_type must be a rule that SGLang has, with its flags; got {rule!r}")
    is_latent = "deepseek_yarn" in part.reading.rules if part.reading.rules else part.family.scales_softmax
    if part.family.scales_softmax and not is_latent and found.get("mscale_all_dim") is not None:
        raise wrong_value(
            f"rope_parameters must have no mscale_all_dim with flags of SGLang for model type {part.model_type!r}, "
            f"whose class does not scale the softmax by it; got {found['mscale_all_dim']!r}"
        )
    if is_latent and rule == "yarn":
        found["rope_type"] = rule = "deepseek_yarn"
        found.pop("truncate", None)  # its ramp is always rounded
    if rule == "longrope":
        return _as_longrope({key: found[key] for key in found if key != "attention_factor"}, part)
    return _with_multiplier(_as_dynamic(found, part, None))


def _without_rule(block: Config) -> Values:
    """A block without the parameters of rules, if it has none: nothing reads them."""
    dropped = PARAMETERS if block.get("rope_type") == "default" else ()
    return {key: value for key, value in block.items() if key not in dropped}


def _as_longrope(block: Values, part: Part) -> Values:
    length, original = part.mapping.get(LENGTH), block.get(ORIGINAL)
    if not isinstance(length, int) or not isinstance(original, int) or original < 1:
        return block
    return {**block, "factor": max(1.0, length / original)}


def _as_dynamic(block: Config, part: Part, trained: object) -> Values:
    """Dynamic NTK with one set of frequencies, as `alpha` of Hunyuan says it. vLLM 0.33 divides by `trained`."""
    found = dict(block)
    rule, factor = found.get("rope_type") or found.get("type"), found.get("factor")
    if rule != "dynamic" or found.get("alpha") is not None or factor is None:
        return found
    factor = checks.positive("factor", factor)
    ratio = factor
    if trained is not None:
        length = checks.positive(LENGTH, part.mapping.get(LENGTH))
        ratio = length / checks.positive("max_trained_positions", trained)
    alpha = factor * ratio - (factor - 1.0)
    found = {key: value for key, value in found.items() if key not in ("factor", "type", "rope_type")}
    if alpha == 1.0:
        if factor != 1.0:
            reason = "only if max_trained_positions is given and less than max_position_embeddings"
            part.remarks.append(f"{part.line.name} scales dynamic NTK {reason}")
        return {**found, "rope_type": "default"}
    return {**found, "rope_type": "dynamic", "alpha": alpha}


def _with_multiplier(block: Values) -> Values:
    """YaRN of SGLang and older versions of vLLM: `attn_factor` multiplies what follows from the factor."""
    rule = block.get("rope_type") or block.get("type")
    if rule not in ("yarn", "deepseek_yarn"):
        return block
    found = {key: value for key, value in block.items() if key not in ("attention_factor", *MULTIPLIERS)}
    multiplier = block.get("attn_factor")
    if multiplier is None or multiplier == 1.0:
        return found
    factor, of_all = checks.positive("factor", block.get("factor", 1.0)), block.get("mscale_all_dim")
    mscale = block.get("mscale", 1.0) if rule == "deepseek_yarn" or of_all is not None else None
    own = _mscale(factor, mscale) / _mscale(factor, of_all or 0.0) if mscale is not None else _mscale(factor, 1.0)
    return {**found, "attention_factor": own * checks.positive("attn_factor", multiplier)}


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * mscale * log(factor) + 1.0


def _merged(old: object, new: Config) -> Values:
    found = dict(old) if isinstance(old, Mapping) else {}
    for key, value in new.items():
        inner = found.get(key)
        found[key] = _merged(inner, value) if isinstance(value, Mapping) and isinstance(inner, Mapping) else value
    return found
