"""Families with their own keys: replace these keys by the known ones, and say which families read a key.

The source is the code in the checkpoints, and in vLLM and SGLang.
"""

from collections.abc import Callable, Iterator
from functools import cache
from math import ceil, log

from rope_xp.arrays import checks
from rope_xp.configs.families.family import Family, Quirks
from rope_xp.configs.families.model_types import FAMILIES
from rope_xp.configs.keys import BASE_KEYS, Keys, owned_by
from rope_xp.errors import wrong_value
from rope_xp.types import Config, Values

GROK_FAMILIES = ("git", "grok-1", "grok1")
# Keys that must have this value in a family.
REQUIRED_VALUES: dict[str, Values] = {
    "bailing_moe_linear": {"linear_rope": True},  # whether layers with linear attention are rotated
    "chatglm": {"position_encoding_2d": False},
    "deepseek_v2": {"use_mla": True},  # else it is another family (`variant_of`)
    "ernie4_5_moe_vl": {"rope_3d": True},
    "phi3small": {"rope_position_scale": 1.0},  # SGLang divides positions by it, and mlx-lm multiplies them
    "plamo3": {"rope_scaling_factor": 1},
    "qwen": {"pos_emb": "rotary"},
    "step3p5": {"yarn_only_types": ["full_attention"]},  # the types of layers to which a scaling rule applies
    **{name: {"extrapolation_factor": 1.0} for name in GROK_FAMILIES},
}
# Keys that Grok has at the top level, and their names in a rotary block.
GROK_BLOCK = {"rope_type": "rope_type", "scaling_factor": "factor", "beta_fast": "beta_fast", "beta_slow": "beta_slow"}


def translate_own_keys(keys: Keys, seq_len: int | None) -> None:
    for key, wanted in REQUIRED_VALUES.get(keys.model_type, {}).items():
        keys.require(key, wanted, f" in model_type {keys.model_type!r}")
    if keys.model_type in TRANSLATIONS:
        TRANSLATIONS[keys.model_type](keys, seq_len)


def variant_of(mapping: Config, model_type: str) -> str:
    """The family of a config. DeepSeek-V2 is another family if it has no latent attention, as in DeepSeek-OCR."""
    return "deepseek" if model_type == "deepseek_v2" and mapping.get("use_mla") is False else model_type


def _telechat(keys: Keys, seq_len: int | None) -> None:
    """The base grows in steps as in Qwen, from `base_seqlen` on, but is at least that of `training_seqlen`."""
    base, trained = keys.read_count("base_seqlen"), keys.read_count("training_seqlen")
    if not base or not trained:
        raise wrong_value(
            f"base_seqlen and training_seqlen must be given in model_type 'telechat', because the code of its "
            f"versions has different defaults; got base_seqlen={base} and training_seqlen={trained}"
        )
    if seq_len is not None and seq_len > trained:
        raise wrong_value(
            f"seq_len must be at most training_seqlen={trained} in model_type 'telechat', because the factor of "
            f"its attention grows beyond it; got {seq_len}"
        )
    alpha = _steps_of_base(trained, base)
    if alpha > 1:
        keys.set_known("rope_scaling", {"rope_type": "dynamic", "alpha": alpha}, "training_seqlen")


def _steps_of_base(length: int, base_length: int) -> int:
    """1, 3, 7, 15, ...: the factor of the base for lengths up to 1, 2, 4, 8, ... times the base length."""
    return max(2 ** ceil(log(length / base_length, 2) + 1) - 1, 1)


def _chatglm(keys: Keys, seq_len: int | None) -> None:
    """`rope_ratio` multiplies the base. ChatGLM2, known only by its model name, divides positions by it."""
    keys.mark_as_read("original_rope")  # both values compute the same
    ratio, name = keys.read("rope_ratio"), keys.read("_name_or_path")
    if ratio is None:
        return
    ratio = checks.positive("rope_ratio", ratio)
    if name is None:
        keys.assume("frequencies", "_name_or_path", "assumed not to be ChatGLM2")
    if "chatglm2" in str(name).lower():
        keys.set_known("rope_scaling", {"rope_type": "linear", "factor": ratio}, "rope_ratio")
    else:
        keys.set_known("rope_theta", 10_000.0 * ratio, "rope_ratio")


def _qwen(keys: Keys, seq_len: int | None) -> None:
    """Beyond `seq_length` the base grows in steps: by 3, 7, 15, ... for sequences up to 2, 4, 8, ... times as long."""
    grows, length = keys.read_flag("use_dynamic_ntk"), keys.read_count("seq_length")
    if grows is False:
        return
    if length:
        keys.remarks.append(
            f"Beyond seq_length={length} tokens, frequencies change with the length (use_dynamic_ntk), and keys that "
            "were cached before do not fit"
        )
    if seq_len is None:
        return
    if not length:
        raise wrong_value(f"seq_length must be given for use_dynamic_ntk with seq_len; got {length}")
    if seq_len > length:
        if grows is None:
            keys.assume("scaling", "use_dynamic_ntk")
        block = {"rope_type": "dynamic", "alpha": _steps_of_base(seq_len, length)}
        keys.set_known("rope_scaling", block, "use_dynamic_ntk")


def _baichuan(keys: Keys, seq_len: int | None) -> None:
    """The two sizes differ: 7B is rotated, 13B has ALiBi."""
    size = keys.read_count("hidden_size")
    if keys.read("alibi") is None:
        if size not in (4096, 5120):
            raise wrong_value(
                f"hidden_size must be 4096 (7B, rotated) or 5120 (13B, not rotated), or alibi be given, in "
                f"model_type 'baichuan'; got {size!r}"
            )
        keys.set_known("alibi", size == 5120, "hidden_size")


def _internlm(keys: Keys, seq_len: int | None) -> None:
    """The block is named `rotary`. Without this block, the rule is dynamic NTK."""
    block = keys.read_mapping("rotary")
    kind, base, factor = block.read("type"), block.read("base"), block.read("scaling_factor")
    block.require_all_read()
    if kind not in (None, "dynamic", "origin"):
        raise wrong_value(f"type of rotary must be 'dynamic' or 'origin'; got {kind!r}")
    if base is not None:
        keys.set_known("rope_theta", base, "rotary")
    if kind == "origin":
        return
    if kind is None or factor is None:
        keys.assume("scaling", "rotary")
    keys.set_known("rope_scaling", {"rope_type": "dynamic", "factor": 1.0 if factor is None else factor}, "rotary")
    if keys.read("max_position_embeddings") is None:
        keys.assume("scaling", "max_position_embeddings")
        keys.set_known("max_position_embeddings", 2048, "rotary")


def _modernbert(keys: Keys, seq_len: int | None) -> None:
    """A base for layers with a window that is null is that of the other layers."""
    has_block = keys.mapping.get("rope_parameters") or keys.mapping.get("rope_scaling")
    if keys.mapping.get("local_rope_theta", 0.0) is None and not has_block:
        base = keys.read_or_assume("global_rope_theta", "frequencies", 160_000.0)
        keys.set_known("local_rope_theta", base, "global_rope_theta")


def _step3(keys: Keys, seq_len: int | None) -> None:
    length = keys.read("max_position_embedding")
    if length is not None:
        keys.set_known("max_position_embeddings", length, "max_position_embedding")


def _grok(keys: Keys, seq_len: int | None) -> None:
    """Grok-2 has the model_type 'git'. A switch states the fraction. The keys of the block are at top level."""
    if keys.model_type == "git" and "Grok1ForCausalLM" not in keys.read_list("architectures"):
        raise wrong_value("architectures must have 'Grok1ForCausalLM' in model_type 'git'; got other architectures")
    if keys.read_flag("rope_rotate_half_dims"):
        keys.set_known("partial_rotary_factor", 0.5, "rope_rotate_half_dims")
    keys.mark_as_read("attn_factor")  # SGLang does not multiply tables by an attention factor
    block = {known: keys.read(key) for key, known in GROK_BLOCK.items()}
    if block["rope_type"] not in (None, "original"):
        block["attention_factor"] = 1.0
        block = {name: value for name, value in block.items() if value is not None}
        keys.set_known("rope_scaling", block, "rope_type")


TRANSLATIONS: dict[str, Callable[[Keys, int | None], None]] = {
    "baichuan": _baichuan,
    "chatglm": _chatglm,
    "internlm": _internlm,
    **dict.fromkeys(("modernbert", "modernbert-decoder"), _modernbert),
    "qwen": _qwen,
    "step3_text": _step3,
    "telechat": _telechat,
    **dict.fromkeys(GROK_FAMILIES, _grok),
}


# Keys that only functions of these families read.
_IN_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "chatglm": ("rope_ratio", "original_rope"),
    "dots3_note_text": ("swa_qk_rope_head_dim", "swa_qk_nope_head_dim"),
    "esmfold2_atom_encoder": ("num_spatial_rope_pairs_per_axis", "num_uid_rope_pairs"),
    "qwen": ("use_dynamic_ntk",),
    **dict.fromkeys(("codegen", "gptj", "internlm"), ("rotary",)),
    **dict.fromkeys(GROK_FAMILIES, ("rope_rotate_half_dims", *GROK_BLOCK)),
}
# Keys that belong to no family. Those for widths may be in any config.
_USUAL = {*BASE_KEYS, *Quirks().rotated_keys, ""}
_USUAL |= {"head_dim", "hidden_size", "num_attention_heads", "n_embd", "n_head", "d_model", "n_heads"}


def families_with(key: object) -> str:
    """For an error: the families that read a key outside the rotary block, or an empty string."""
    return owned_by(key, "model_type", families_by_key().get(str(key), []))


def remarks_on_widths(keys: Keys, family: Family, head_dim: int) -> list[str]:
    """Sentences about keys for the width of a head that this family does not read, and that state another width."""
    others = {name: keys.mapping.get(name) for name in sorted(_widths() - {*_keys_of(family), *keys.found()})}
    return [
        f"{name}={value} is not read, and head_dim is {head_dim}{families_with(name)}"
        for name, value in others.items()
        if checks.is_int(value) and value != head_dim
    ]


@cache
def families_by_key() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, row in FAMILIES.items():
        for key in {*_IN_FUNCTIONS.get(name, ()), *REQUIRED_VALUES.get(name, ()), *_keys_of(row)} - _USUAL:
            found.setdefault(key, []).append(name)
    return found


@cache
def _widths() -> frozenset[str]:
    return frozenset(way for row in FAMILIES.values() for way in _ways_to_width(row) if "/" not in way) - _USUAL


def _keys_of(row: Family) -> Iterator[str]:
    """The keys outside the rotary block that the row of a family names."""
    quirks, layers = row.quirks, row.layers
    yield from (key for way in _ways_to_width(row) for key in way.split("/"))
    yield from (*row.base_keys, *quirks.rotated_keys, *quirks.ignored_keys)
    yield from (quirks.base_in, layers.scaled_key)
    yield from () if layers.listed is None else (layers.listed.key,)
    yield from (layers.only_if or ())[:1]


def _ways_to_width(row: Family) -> Iterator[str]:
    """The keys, and the quotients of keys, for the width of a head in all types of layers."""
    for rule in (row.head_dim, *(of_type.head_dim for of_type in row.layers.by_type.values())):
        yield from rule.split(" | ") if isinstance(rule, str) else ()
