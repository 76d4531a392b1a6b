"""What each model family means by its config: the pairing, the default base, the span and the quirks, as data.

One row for each `model_type`. A row holds what the config leaves unsaid, read from and checked against transformers
5.18 and 5.23 (`benchmarks/parity.py`); where the two differ, it is that of 5.23.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import pi
from typing import Any

from rope_xp._core import checks
from rope_xp._core.config.keys import WHO, Keys
from rope_xp.frequencies import Scaling, YarnScaling, geometric


@dataclass(frozen=True, kw_only=True)
class Family:
    """What a config of a family leaves unsaid.

    Attributes
    ----------
    layout, reverse, blocks
        As in `RotaryEmbedding`.
    interleave_key : bool
        ``rope_interleave: false`` makes the layout half.
    layout_said : bool
        The caller has said the layout.
    base : float or None
        Where the config has none; None where it must.
    base_keys : tuple of str
        Keys of the base beside the block, in place of the usual ones.
    base_in : str
        A mapping in the config that may have the base.
    base_fixed : bool
        No key changes the base.
    null_base : bool
        A base that is null means that no layer is rotated.
    partial : float
        The share of the head that turns, where the config has none.
    share_means : function, optional
        The one share that a config may have, as the whole `head_dim` is rotated; None where any share may stand.
    share_of_each_axis : bool
        The share is that of each position axis.
    width_keys : tuple of str
        Keys of the number of channels that turn.
    width : function, optional
        That number, by a rule of its own.
    head_dim : tuple of str, int or function
        Ways to find the width of a head, the first that applies: a key, a quotient of keys, a number, or a function
        of the config.
    last : bool
        The last channels turn, not the first.
    scales_softmax : bool
        Multi-head latent attention multiplies the scale of its softmax as DeepSeek's does.
    weights : function, optional
        Frequencies by a rule of their own.
    block : mapping or None
        The rotary block of a config that has none; None where that config rotates no layer of this type.
    legacy : mapping
        What a `rope_scaling` has besides.
    scaled : bool or str
        Whether a `rope_scaling` applies, or the key that lists the layers to which the block's rule applies.
    aliases : mapping
        Names of rules that mean another rule here.
    rules : mapping
        Rules of the family alone, by name.
    original : int, optional
        The length trained on, where the config has none.
    echoes : tuple of str
        Keys that upstream writes beside the block without being asked; the block wins.
    unread : tuple of str
        Keys that checkpoints carry in the block and no rule reads.
    by_layer : mapping
        Where layer types differ: the fields of this row that each of them changes.
    labels : mapping
        The key of `by_layer` for a type in `layer_types`; `...` stands for all others.
    types : function, optional
        The type of each of so many layers, where the config has no `layer_types`.
    full_at_end : bool
        The last layer has full attention, whatever `layer_types` has there.
    unrotated : tuple of str
        Layer types that are not rotated.
    all_if_null : str
        A key; if it is null, all layer types are rotated.
    dense_prefix : bool
        Dense layers at the beginning are rotated too.
    listed : str
        A key with a number for each layer, 0 where it is not rotated.
    listed_bases : bool
        Those numbers are bases.
    unlisted : "interval", "from the end" or ""
        Without that key: each n-th layer is not rotated, counted from the start or from the end, or all are.
    rotated_if : (str, any, ...), optional
        Only rotated if the key has the first of these values; the second is its default, and there are no others.
    order, sizes, axis_of_section
        `Sections`; sizes where the config has none, and None for equal parts.
    any_order : bool
        The order follows `mrope_interleaved`.
    clamped : bool
        Sections that do not fit lose pairs to the first axis.
    axes : int
        Position axes of equal parts.
    beside : tuple of str
        Keys that speak of something else.
    note : str
        What the model does besides, which no table shows.
    """

    layout: str = "half"
    reverse: bool = False
    blocks: int = 1
    interleave_key: bool = False
    layout_said: bool = False
    base: float | None = 10_000.0
    base_keys: tuple[str, ...] = ()
    base_in: str = ""
    base_fixed: bool = False
    null_base: bool = False
    partial: float = 1.0
    share_means: Callable[[Keys, int], float | None] | None = None
    share_of_each_axis: bool = False
    width_keys: tuple[str, ...] = ("rotary_dim",)
    width: Callable[[Keys, int], int] | None = None
    head_dim: tuple[str | int | Callable[[Keys], int], ...] = ("head_dim", "hidden_size/num_attention_heads")
    last: bool = False
    scales_softmax: bool = True
    weights: Callable[[Keys, int, float], Any] | None = None
    block: Mapping[str, Any] | None = field(default_factory=dict)
    legacy: Mapping[str, Any] = field(default_factory=dict)
    scaled: bool | str = True
    aliases: Mapping[str, str] = field(default_factory=dict)
    rules: Mapping[str, type[Scaling]] = field(default_factory=dict)
    original: int | None = None
    echoes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    by_layer: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    labels: Mapping[Any, str] = field(default_factory=dict)
    types: Callable[[Keys, int], list[str]] | None = None
    full_at_end: bool = False
    unrotated: tuple[str, ...] = ()
    all_if_null: str = ""
    dense_prefix: bool = False
    listed: str = ""
    listed_bases: bool = False
    unlisted: str = ""
    rotated_if: tuple[Any, ...] | None = None
    order: str | None = None
    sizes: tuple[int, ...] | None = None
    axis_of_section: tuple[int, ...] | None = None
    any_order: bool = False
    clamped: bool = False
    axes: int = 1
    beside: tuple[str, ...] = ()
    note: str = ""


# Types of layers, from older keys than `layer_types`.


def _every(
    period: int, key: str = "", *, first: bool = False, last: bool = False, other: str = "sliding_attention"
) -> Any:
    """One layer of a period has full attention, its last one or its first; with `last`, the model's last layer too."""

    def types(keys: Keys, count: int) -> list[str]:
        given = keys.get(key) if key else None
        if isinstance(given, str) and given and set(given) <= {"L", "G"}:  # EXAONE's local and global layers
            return ["full_attention" if given[at % len(given)] == "G" else other for at in range(count)]
        length = keys.count(key, period) if key else period
        full = [bool(length) and (at + (not first)) % length == 0 for at in range(count)]
        if last and full and keys.get("num_hidden_layers") == count:
            full[-1] = True
        return ["full_attention" if each else other for each in full]

    return types


def _listed_at(key: str, other: str, *, unlisted: bool) -> Any:
    """The layers whose indices are listed have full attention; without a list, all or none."""

    def types(keys: Keys, count: int) -> list[str]:
        listed: Any = {at for at in keys.items(key) if checks.is_int(at)}
        if keys.get(key) is None and unlisted:
            listed = range(count)
        return ["full_attention" if at in listed else other for at in range(count)]

    return types


def _types_of_recurrent_gemma(keys: Keys, count: int) -> list[str]:
    cycle = keys.items("block_types") or ["recurrent", "recurrent", "attention"]
    return [cycle[at % len(cycle)] for at in range(count)]


def _types_of_cohere2_moe(keys: Keys, count: int) -> list[str]:
    """Dense layers at the beginning have a pattern of their own, and the others count anew."""
    dense = min(keys.count("first_k_dense_replace", 0), count)
    prefix = _every(1, "prefix_dense_sliding_window_pattern")(keys, dense)
    return prefix + _every(4, "sliding_window_pattern")(keys, count - dense)


def _types_of_flint(keys: Keys, count: int) -> list[str]:
    full = [at < 2 or at % 4 == 1 or at + 1 == keys.get("num_hidden_layers") for at in range(count)]
    return ["full_attention" if each else "sliding_attention" for each in full]


def _types_of_lfm3(keys: Keys, count: int) -> list[str]:
    cycle = ["sliding_attention", "conv", "full_attention", "conv"]
    return ["conv" if not at else cycle[at % 4] for at in range(count)]


def _types_of_lfm3_vl(keys: Keys, count: int) -> list[str]:
    return ["conv" if at < 2 or at % 2 else "full_attention" for at in range(count)]


def _types_of_mimo(keys: Keys, count: int) -> list[str]:
    """A list has 1 for each layer with a sliding window; without it, the first layer and each sixth have none."""
    slides = keys.items("hybrid_layer_pattern")
    for each in slides:
        if each not in (0, 1):
            raise ValueError(f"{WHO}: hybrid_layer_pattern must be a list of 0 and 1; got {each!r} in it")
    slides = slides or [at > 0 and (at + 1) % 6 for at in range(count)]
    return ["sliding_attention" if each else "full_attention" for each in slides]


def _types_of_ultrabert(keys: Keys, count: int) -> list[str]:
    """By the width of each layer's window, 0 for none; without such a list, each third layer has none."""
    windows = keys.items("attention_windows")
    if windows:
        return ["sliding_attention" if window else "full_attention" for window in windows]
    return _every(3)(keys, count)


def _types_of_dots3_note(keys: Keys, count: int) -> list[str]:
    full = "full_attention" if keys.get("use_dsa") is False else "indexed_attention"
    slides = keys.get("use_sliding_window") is not False
    return ["sliding_attention" if slides and at > 1 and at % 4 != 1 else full for at in range(count)]


# Rules of their own.


def _width_of_gptj(keys: Keys, head_dim: int) -> int:
    """64 where the config says nothing, the whole head where it says null."""
    rotary = keys.get("rotary")
    if rotary is not None and not checks.boolean(WHO, "rotary", rotary):
        raise ValueError(f"{WHO}: rotary must be true; got false")
    return keys.count("rotary_dim", head_dim if "rotary_dim" in keys.mapping else 64)


def _width_of_clvp(keys: Keys, head_dim: int) -> int:
    return max(keys.count("projection_dim", 768) // (2 * keys.count("num_attention_heads", 12)), 32)


def _share_of_latent(keys: Keys, head_dim: int) -> float:
    """Of a whole head, which is `qk_nope_head_dim` wider than what is rotated."""
    return head_dim / (head_dim + keys.count("qk_nope_head_dim", head_dim))


def _any_share(keys: Keys, head_dim: int) -> None:
    """The widths decide, and the class in transformers computes the share from them."""


def _width_of_sliding_latent(keys: Keys) -> int:
    """What is rotated of a head in a layer with a sliding window: all that is not in the other part."""
    rest = keys.count("swa_head_dim", 256) - keys.count("swa_qk_nope_head_dim", 192)
    return keys.count("swa_qk_rope_head_dim", rest)


def _width_of_audio(keys: Keys) -> int:
    """The width of the encoder's hidden states, which are rotated as one head."""
    return keys.within("audio_config").count("hidden_size", 1280)


def _trained_weights(keys: Keys, head_dim: int, base: float) -> Any:
    raise ValueError(
        f"{WHO}: frequencies must be those of the config; got {keys.name}, whose checkpoint multiplies them by the "
        f"exponential of its weight rotary_emb.alpha (take those of compat='transformers', multiply, and pass them as "
        f"inv_freq)"
    )


def _share_of_hidden_state(keys: Keys, head_dim: int) -> float:
    """Upstream counts one frequency for each two axes and each channel of a pair, in heads."""
    return keys.count("num_attention_heads", 8) / 2


def _weights_of_dinov3(keys: Keys, head_dim: int, base: float) -> Any:
    """Coordinates run from -1 to 1, and frequencies are in turns."""
    if head_dim % 4:
        raise ValueError(f"{WHO}: head_dim must be a multiple of 4 in {keys.name}; got {head_dim}")
    own = tuple(2 * pi * w for w in geometric(base, head_dim // 2))
    still = (0.0,) * len(own)
    return own + still, still + own


class YarnInLogarithms(YarnScaling):
    """YaRN in logarithms: between kept and interpolated pairs, the geometric mean and not the arithmetic one."""

    def frequencies(self, base: float, rotary_dim: int) -> tuple[float, ...]:
        scaled, plain = super().frequencies(base, rotary_dim), geometric(base, rotary_dim)
        if self.factor == 1.0:
            return plain
        ramp = [(1.0 - s / p) / (1.0 - 1.0 / self.factor) for s, p in zip(scaled, plain)]
        return tuple(p * self.factor**-share for p, share in zip(plain, ramp))


def _weights_of_esmfold2(keys: Keys, head_dim: int, base: float) -> Any:
    """Coordinates x, y and z in angstrom, and an index; the pairs that are left stand still."""
    each, index = keys.count("num_spatial_rope_pairs_per_axis", 2), keys.count("num_uid_rope_pairs", 10)
    spatial, of_index = (
        checks.at_least(WHO, key, keys.number(key, usual), 1.0)
        for key, usual in (("spatial_rope_base_frequency", 20.0), ("uid_rope_base_frequency", 10_000.0))
    )
    pairs = head_dim // 2
    if 3 * each + index > pairs:
        raise ValueError(f"{WHO}: pairs of all axes must fit into {pairs}; got {3 * each + index}")
    rows = [geometric(spatial, 2 * each)] * 3 + [geometric(of_index, 2 * index)]
    return tuple((0.0,) * (at * each) + row + (0.0,) * (pairs - at * each - len(row)) for at, row in enumerate(rows))


_INTERLEAVED: dict[str, Any] = {"layout": "interleaved"}
_QUOTIENT = "hidden_size/num_attention_heads"
# Multi-head latent attention: the part of a head that is rotated, which the model splits off.
_LATENT = ("qk_rope_head_dim", 64)


def _head(width: int) -> tuple[str | int, ...]:
    """A class whose head has a width of its own where the config does not say it."""
    return ("head_dim", width)


def _each(names: str, **row: Any) -> dict[str, Family]:
    """One row for many families."""
    return dict.fromkeys(names.split(), Family(**row))


_GEMMA3: dict[str, dict[str, Any]] = {
    "full_attention": {"base": 1_000_000.0},
    "sliding_attention": {"base": 10_000.0, "base_keys": ("rope_local_base_freq",), "scaled": False},
}
_GEMMA4: dict[str, dict[str, Any]] = {
    "full_attention": {
        "base": 1_000_000.0,
        "head_dim": ("global_head_dim", 512),
        "block": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
    },
    "sliding_attention": {"base": 10_000.0},
}
_MODERNBERT: dict[str, dict[str, Any]] = {
    "full_attention": {"base": 160_000.0, "base_keys": ("global_rope_theta",)},
    "sliding_attention": {"base": 10_000.0, "base_keys": ("local_rope_theta",)},
}
_GPT_OSS = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_HUNYUAN_UNREAD = ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
_MINISTRAL = {"rope_type": "yarn", "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
_TEMPERATURE = ("llama_4_scaling_beta",)
_NO_ROPE_LAYERS: dict[str, Any] = {"listed": "no_rope_layers", "unlisted": "interval"}
_LINEAR = _every(4, "full_attention_interval", other="linear_attention")
_SHARE = ("partial_rotary_factor",)
_SLIDING_ONLY: dict[str, Any] = {"unrotated": ("full_attention",)}
_VISION: dict[str, Any] = {
    "order": "axial",
    "axes": 2,
    "head_dim": ("head_dim", "hidden_size/num_heads", _QUOTIENT),
}
_CONFORMER: dict[str, Any] = {
    "rotated_if": ("position_embeddings_type", "rotary", "relative", "relative_key", "none"),
    "note": "rotates hidden states, cut into heads, before the projections of queries and keys",
}

FAMILIES: dict[str, Family] = {
    # One table, halves, every layer.
    **_each(
        "arcee aria_text chameleon deepseek_ocr2_encoder diffllama doge dots1 esmc eurobert falcon_h1 "
        "exaone gpt_neox_japanese gradium_phonon_tts granite granite4_vision_text granite_docling_text granitemoe "
        "granitemoeshared hyperclovax internlm2 internlm3 jais2 kyutai_speech_to_text lasr_encoder llama mimi "
        "mimi_decoder mimi_encoder minicpm ministral mistral nemotron3_diarization_audio olmo olmo2 olmoe pocket_tts "
        "pocket_tts_audio_tokenizer pocket_tts_audio_tokenizer_decoder pocket_tts_audio_tokenizer_encoder qwen2 "
        "qwen2_moe qwen3_moe qwen3_omni_moe_code2wav starcoder2"
    ),
    **_each(
        "dia_decoder dia_encoder hrm_text iquestcoder qwen3 qwen3_omni_moe_talker_code_predictor seed_oss",
        head_dim=_head(128),
    ),
    **_each("gemma gemma2 vaultgemma t5_gemma_module", head_dim=_head(256)),
    **_each("voxtral_realtime_encoder", head_dim=_head(64)),
    **_each("voxtral_realtime_text", head_dim=_head(128)),
    **_each("bitnet csm csm_depth_decoder_model evolla flex_olmo", base=500_000.0),
    **_each("emu3_text_model mixtral", base=1_000_000.0),
    **_each("fuyu glm4_moe glmasr_encoder nemotron persimmon phi", partial=0.5),
    "gpt_neox": Family(partial=0.25),
    "stablelm": Family(partial=0.25, echoes=_SHARE),
    **_each("deepseek_ocr2_text unlimited_ocr_text", head_dim=(_QUOTIENT,)),
    "dots3_note_audio_encoder": Family(partial=0.5, head_dim=(_QUOTIENT,)),
    "falcon": Family(head_dim=(_QUOTIENT,), rotated_if=("alibi", False, False, True)),
    "gte": Family(base=160_000.0),
    "hy_v3": Family(base=11_158_840.0, head_dim=_head(128)),
    "idefics": Family(note="layers of cross-attention are not rotated"),
    "jetmoe": Family(head_dim=("kv_channels", "head_dim", 128)),
    "jina_embeddings_v3": Family(base=20_000.0),
    **_each("lfm2 lfm2_moe", base=1_000_000.0, types=_listed_at("full_attn_idxs", "conv", unlisted=True)),
    "bamba": Family(
        partial=0.5,
        width_keys=("rotary_dim", "attn_rotary_emb"),
        types=_listed_at("attn_layer_indices", "linear_attention", unlisted=False),
    ),
    "recurrent_gemma": Family(partial=0.5, types=_types_of_recurrent_gemma),
    "mllama_text_model": Family(base=500_000.0, note="layers of cross-attention are not rotated"),
    "moshi": Family(note="the depth decoder is not rotated"),
    "muse_glimmer_assistant": Family(base=500_000.0, head_dim=_head(128), note="queries take the last positions"),
    "nanochat": Family(reverse=True),
    "neucodec": Family(head_dim=_head(64), note="the position is the index of the head, not of the frame"),
    "xcodec2": Family(head_dim=_head(64), note="the position is the index of the head, not of the frame"),
    "nomic_bert": Family(base=1_000.0, head_dim=("head_dim", _QUOTIENT, "n_embd/n_head")),
    **_each("phi3_v phi4mm", aliases={"yarn": "longrope"}, original=4096),
    "phi3": Family(aliases={"yarn": "longrope"}, original=4096),
    "phi4_multimodal": Family(aliases={"yarn": "longrope"}, original=4096),
    "phimoe": Family(base=1_000_000.0, original=4096),
    "qwen3_next": Family(head_dim=_head(256), partial=0.25, types=_LINEAR, echoes=_SHARE),
    **_each(
        "nemotron3_5_transcribe_asr_audio nemotron3_5_transcribe_word_timestamp",
        block={"rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
    ),
    "molmo2_text": Family(head_dim=_head(128), scaled="rope_scaling_layers"),
    "solar_open": Family(base=1_000_000.0, head_dim=_head(128)),
    "timesfm2_5": Family(head_dim=_head(80)),
    "dbrx": Family(head_dim=("head_dim", _QUOTIENT, "d_model/n_heads"), base_in="attn_config"),
    "minimax": Family(base=1_000_000.0, types=_every(2, first=True, other="linear_attention")),
    "minimax_m2": Family(base=5_000_000.0, head_dim=_head(128)),
    "minimax_m3_vl_text": Family(base=5_000_000.0, head_dim=_head(128)),
    "zamba2": Family(
        head_dim=("attention_head_dim", "attention_hidden_size/num_attention_heads"),
        rotated_if=("use_mem_rope", True, False),
    ),
    "granitemoehybrid": Family(rotated_if=("position_embedding_type", "rope", "nope")),
    "olmo_hybrid": Family(null_base=True, types=_every(4, other="linear_attention")),
    "hunyuan_v1_dense": Family(unread=_HUNYUAN_UNREAD),
    "hunyuan_v1_moe": Family(unread=_HUNYUAN_UNREAD),
    # Those whose code is in their checkpoints, see `remote.py` for keys of their own.
    "baichuan": Family(rotated_if=("alibi", False, False, True)),
    **_each("bailing_moe bailing_moe_v2", base=None),
    "chatglm": Family(**_INTERLEAVED, partial=0.5, head_dim=("kv_channels", "head_dim", _QUOTIENT)),
    **_each(
        "git grok-1 grok1",
        head_dim=_head(128),
        aliases={"yarn_linear": "yarn"},
        rules={"yarn_log": YarnInLogarithms},
    ),
    "hunyuan": Family(head_dim=("head_dim", "attention_head_dim", _QUOTIENT), unread=_HUNYUAN_UNREAD),
    "internlm": Family(),
    "new": Family(rotated_if=("position_embedding_type", "rope", "rope", "absolute")),
    "qwen": Family(head_dim=("kv_channels", 128)),
    "xlm-roberta": Family(
        rotated_if=("position_embedding_type", "rotary", "absolute", "relative_key", "relative_key_query"),
        width_keys=("rotary_emb_dim",),
    ),
    # A block of its own where the config has none.
    "apertus": Family(
        base=12_000_000.0,
        block={**_LLAMA3, "rope_theta": 12_000_000.0, "factor": 8.0, "original_max_position_embeddings": 8192},
    ),
    "cwm": Family(
        base=1_000_000.0,
        head_dim=_head(128),
        block={
            **_LLAMA3,
            "rope_theta": 1_000_000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 8192,
        },
    ),
    "higgs_audio_v2": Family(
        base=500_000.0,
        head_dim=_head(128),
        block={
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 32.0,
            "low_freq_factor": 0.125,
            "high_freq_factor": 0.5,
            "original_max_position_embeddings": 1024,
        },
    ),
    "gpt_oss": Family(base=150_000.0, head_dim=_head(64), block=_GPT_OSS),
    "openai_privacy_filter": Family(**_INTERLEAVED, base=150_000.0, head_dim=_head(64), block=_GPT_OSS),
    "ministral3": Family(
        base=1_000_000.0,
        head_dim=_head(128),
        block={**_MINISTRAL, "rope_theta": 1_000_000.0, "factor": 16.0, "original_max_position_embeddings": 16_384},
        unread=_TEMPERATURE,
    ),
    # Neighbouring channels.
    **_each(
        "cohere blt_local_encoder blt_local_decoder blt_global_transformer ernie4_5_moe", **_INTERLEAVED, base=500_000.0
    ),
    **_each("blt_patcher", **_INTERLEAVED),
    **_each("glm glm4", **_INTERLEAVED, head_dim=_head(128), partial=0.5),
    **_each(
        "pe_audio_encoder pe_video_encoder pe_audio_video_encoder",
        **_INTERLEAVED,
        base=20_000.0,
        block={"rope_theta": 20_000.0},
        head_dim=_head(128),
    ),
    "ernie4_5": Family(**_INTERLEAVED, base=500_000.0, head_dim=_head(128)),
    "helium": Family(**_INTERLEAVED, base=100_000.0, head_dim=_head(128)),
    "moonshine": Family(
        **_INTERLEAVED,
        partial=0.9,
        echoes=_SHARE,
        head_dim=("head_dim", _QUOTIENT, "hidden_size/decoder_num_attention_heads"),
    ),
    "moonshine_streaming": Family(**_INTERLEAVED, block={"rope_theta": 10_000.0, "partial_rotary_factor": 0.8}),
    **_each(
        "gptj codegen", **_INTERLEAVED, base_fixed=True, head_dim=(_QUOTIENT, "n_embd/n_head"), width=_width_of_gptj
    ),
    "roformer": Family(
        **_INTERLEAVED,
        base_fixed=True,
        head_dim=(_QUOTIENT,),
        beside=("rotary_value",),
        note="rotary_value rotates values too",
    ),
    # Multi-head latent attention.
    **_each("deepseek_v2", **_INTERLEAVED, head_dim=_LATENT),
    **_each(
        "axk1 deepseek_v3 glm4_moe_lite youtu kimi_k2",
        layout="interleaved_to_half",
        head_dim=_LATENT,
        interleave_key=True,
    ),
    **_each("deepseek_v32 glm_moe_dsa", layout="interleaved_to_half", head_dim=_LATENT),
    "axk2": Family(layout="interleaved_to_half", head_dim=("qk_rope_head_dim", 32)),
    "minicpm3": Family(head_dim=("qk_rope_head_dim", 32)),
    "hy_v4": Family(head_dim=_LATENT),
    "longcat_flash": Family(layout="interleaved_to_half", base=10_000_000.0, head_dim=_LATENT),
    "mistral4": Family(
        layout="interleaved_to_half",
        head_dim=_LATENT,
        interleave_key=True,
        block={**_MINISTRAL, "rope_theta": 10_000.0, "factor": 128.0, "original_max_position_embeddings": 8192},
        unread=_TEMPERATURE,
        share_means=_share_of_latent,
    ),
    "bailing_hybrid": Family(
        layout="interleaved_to_half",
        base=6_000_000.0,
        head_dim=_LATENT,
        share_means=_any_share,
        types=_every(6, "layer_group_size", other="linear_attention"),
        echoes=("rope_theta",),
    ),
    "mistral_large4_text": Family(
        layout="interleaved_to_half",
        head_dim=_LATENT,
        block={
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 2048.0,
            "original_max_position_embeddings": 512,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "attention_factor": 1.0,
        },
        weights=_trained_weights,
        **_NO_ROPE_LAYERS,
    ),
    "dots3_note_text": Family(
        scales_softmax=False,
        layout="interleaved_to_half",
        head_dim=_LATENT,
        share_means=_any_share,
        by_layer={
            "full_attention": {"base": 80_000_000.0},
            "indexed_attention": {"base": 80_000_000.0},
            "sliding_attention": {
                "base": 50_000.0,
                "base_keys": ("swa_rope_theta",),
                "head_dim": (_width_of_sliding_latent, *_LATENT),
            },
        },
        types=_types_of_dots3_note,
        beside=("qk_rope_head_dim", "swa_qk_rope_head_dim"),
    ),
    "deepseek_v4": Family(
        **_INTERLEAVED,
        head_dim=_head(512),
        partial=64 / 512,
        last=True,
        width_keys=("qk_rope_head_dim", "rotary_dim"),
        legacy={"attention_factor": 1.0},
        echoes=("rope_theta", "compress_rope_theta", "partial_rotary_factor"),
        by_layer={
            "main": {"base": 10_000.0, "scaled": False},
            "compress": {"base": 160_000.0, "base_keys": ("compress_rope_theta",)},
        },
        labels={"sliding_attention": "main", ...: "compress"},
        note="the output of attention is rotated back",
    ),
    # Layers of several kinds.
    **_each(
        "gemma3_text t5gemma2_text t5gemma2_decoder",
        head_dim=_head(256),
        by_layer=_GEMMA3,
        types=_every(6, "sliding_window_pattern"),
    ),
    "gemma3n_text": Family(head_dim=_head(256), by_layer=_GEMMA3, types=_every(5)),
    **_each(
        "gemma4_text gemma4_unified_text diffusion_gemma_text",
        head_dim=_head(256),
        by_layer=_GEMMA4,
        types=_every(6, "sliding_window_pattern"),
        full_at_end=True,
    ),
    "embedding_gemma2_text": Family(
        head_dim=_head(256),
        by_layer={
            "full_attention": {"base": 1_000_000.0, "head_dim": ("global_head_dim", 512)},
            "sliding_attention": {"base": 10_000.0},
        },
        types=_every(6, "sliding_window_pattern"),
        full_at_end=True,
    ),
    **_each(
        "modernbert modernbert-decoder",
        by_layer=_MODERNBERT,
        types=_every(3, "global_attn_every_n_layers", first=True),
        beside=("position_embedding_type",),  # "absolute", in spite of the rotation
    ),
    "olmo3": Family(
        by_layer={"full_attention": {"base": 500_000.0}, "sliding_attention": {"base": 500_000.0, "scaled": False}},
        types=_every(4),
    ),
    "laguna": Family(
        head_dim=_head(128),
        by_layer={"full_attention": {"base": 500_000.0, "partial": 0.5}, "sliding_attention": {"base": 10_000.0}},
        types=_every(1),
    ),
    "mellum": Family(
        head_dim=_head(128),
        by_layer={"full_attention": {"base": 500_000.0}, "sliding_attention": {"base": 10_000.0}},
        types=_every(1),
    ),
    "lfm3": Family(
        base=1_000_000.0,
        head_dim=_head(128),
        by_layer={
            "full_attention": {
                "block": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1_000_000.0}
            },
            "sliding_attention": {"block": {"rope_theta": 10_000.0}},
        },
        labels={"conv": "full_attention"},
        types=_types_of_lfm3,
    ),
    "ultrabert": Family(
        by_layer={"full_attention": {"block": {"rope_theta": 2_560_000.0}}, "sliding_attention": {}},
        types=_types_of_ultrabert,
    ),
    "mimo_v2_flash": Family(
        head_dim=_head(192),
        partial=0.334,
        by_layer={
            "full_attention": {"base": 5_000_000.0},
            "sliding_attention": {
                "base": 10_000.0,
                "base_keys": ("swa_rope_theta",),
                "head_dim": ("swa_head_dim", *_head(192)),
            },
        },
        types=_types_of_mimo,
    ),
    "zaya": Family(
        head_dim=_head(128),
        partial=0.5,
        by_layer={"hybrid": {"base": 5_000_000.0}, "hybrid_sliding": {"base": 10_000.0}},
    ),
    "step3p5": Family(
        head_dim=_head(128),
        by_layer={"full_attention": {}, "sliding_attention": {"scaled": False}},
        types=_every(1),
        listed="use_rope_layers",
    ),
    "neomme": Family(
        order="interleaved",
        axes=2,
        head_dim=("head_dim", _QUOTIENT),
        by_layer={
            "full_attention": {"base": 1_000_000.0, "partial": 0.25},
            "sliding_attention": {"base": 10_000.0},
        },
    ),
    # Layers that are not rotated.
    "cohere2": Family(**_INTERLEAVED, **_SLIDING_ONLY, types=_every(4, "sliding_window_pattern")),
    "cohere2_moe": Family(
        **_INTERLEAVED,
        **_SLIDING_ONLY,
        head_dim=_head(128),
        types=_types_of_cohere2_moe,
        echoes=("rope_theta",),
        dense_prefix=True,
    ),
    "beam": Family(
        head_dim=_head(128),
        by_layer={"full_attention": {"block": None}, "sliding_attention": {}},
        types=_every(6, last=True),
    ),
    "flint": Family(head_dim=_head(128), **_SLIDING_ONLY, types=_types_of_flint),
    "kolibri1": Family(head_dim=_head(128), **_SLIDING_ONLY, types=_every(5), all_if_null="sliding_window"),
    "afmoe": Family(head_dim=_head(128), **_SLIDING_ONLY, types=_every(4, "global_attn_every_n_layers")),
    **_each(
        "exaone4 exaone_moe", **_SLIDING_ONLY, types=_every(4, "sliding_window_pattern"), all_if_null="sliding_window"
    ),
    "llama4_text": Family(**_INTERLEAVED, base=500_000.0, head_dim=_head(128), **_NO_ROPE_LAYERS),
    "smollm3": Family(base=2_000_000.0, **_NO_ROPE_LAYERS),
    **_each("granite_swa granitemoe_swa", listed="layer_rope_theta", listed_bases=True),
    "muse_glimmer_text": Family(head_dim=_head(128), listed="layer_rope_theta", unlisted="from the end"),
    "muse_spark_text": Family(
        head_dim=_head(64), block={"rope_theta": 500_000.0}, listed="layer_rope_theta", unlisted="from the end"
    ),
    # Several position axes: text beside images.
    **_each(
        "qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text qwen2_5_omni_talker",
        base=1_000_000.0,
        order="chunked",
        sizes=(16, 24, 24),
    ),
    "paddleocr_vl_text": Family(base=500_000.0, head_dim=_head(128), order="chunked", sizes=(16, 24, 24)),
    **_each("glm4v_text glm_ocr_text", **_INTERLEAVED, order="chunked", sizes=(8, 12, 12)),
    "glm4v_moe_text": Family(order="chunked", sizes=(8, 12, 12), partial=0.5),
    "glm_image_text": Family(order="chunked", sizes=(8, 12, 12)),
    **_each(
        "qwen3_vl_text qwen3_vl_moe_text", base=500_000.0, head_dim=_head(128), order="interleaved", sizes=(24, 20, 20)
    ),
    "qwen3_omni_moe_text": Family(base=1_000_000.0, order="interleaved", sizes=(24, 20, 20)),
    "qwen3_omni_moe_talker_text": Family(order="interleaved", sizes=(24, 20, 20)),
    "cosmos3_edge_text": Family(
        base=100_000_000.0,
        head_dim=_head(128),
        block={"rope_theta": 100_000_000.0},
        order="interleaved",
        sizes=(24, 20, 20),
    ),
    **_each(
        "qwen3_5_text qwen3_5_moe_text",
        head_dim=_head(256),
        types=_LINEAR,
        echoes=_SHARE,
        partial=0.25,
        order="interleaved",
        sizes=(11, 11, 10),
    ),
    "qwen4_exp_text": Family(head_dim=_head(256), types=_LINEAR, order="interleaved", sizes=(11, 11, 10)),
    "ernie4_5_moe_vl": Family(**_INTERLEAVED, base=500_000.0, order="spatial_first", sizes=(22, 22, 20)),
    "ernie4_5_vl_moe_text": Family(**_INTERLEAVED, base=500_000.0, order="spatial_first", sizes=(22, 22, 20)),
    "cohere_compass_text": Family(
        order="interleaved",
        sizes=(24, 20, 20),
        by_layer={"sliding_attention": {}, "full_attention": {}},
        echoes=("rope_theta", "rope_type"),
    ),
    "hunyuan_vl_text": Family(
        order="chunked", head_dim=("head_dim", "attention_head_dim", _QUOTIENT), unread=_HUNYUAN_UNREAD
    ),
    # Towers of vision.
    **_each(
        "cohere_compass_vision ernie4_5_vl_moe_vision exaone4_5_vision glm4v_vision glm4v_moe_vision glm5_next_vision "
        "glm_ocr_vision paddleocr_vl_vision qwen2_5_omni_vision_encoder qwen2_5_vl_vision "
        "qwen3_5_vision qwen3_5_moe_vision qwen3_omni_moe_vision_encoder qwen3_vl_vision qwen3_vl_moe_vision "
        "qwen4_exp_vision video_llama_3_vision muse_glimmer_vision muse_spark_vision",
        **_VISION,
    ),
    "step3p5_vision": Family(**_VISION, axis_of_section=(1, 0)),
    "lfm3_vl_vision": Family(**_VISION, base=1_000_000.0, types=_types_of_lfm3_vl),
    **_each(
        "DFNRope_vision_transformer dots3_note_vision_encoder",
        **{**_VISION, "head_dim": (*_VISION["head_dim"], "embed_dim/num_heads")},
    ),
    "inkling2_vision": Family(**_VISION, **_INTERLEAVED, axis_of_section=(1, 0)),
    "qwen2_vl_vision": Family(**{**_VISION, "head_dim": ("head_dim", "embed_dim/num_heads")}),
    "mlcd_vision_model": Family(**_VISION, note="the class token turns by learned angles"),
    "minimax_m3_vl_vision": Family(**{**_VISION, "axes": 3}),
    "kimi_k25_vision": Family(
        **{
            **_VISION,
            "order": "axial_interleaved",
            "axis_of_section": (1, 0),
            "head_dim": (*_VISION["head_dim"], "vt_hidden_size/vt_num_attention_heads"),
        }
    ),
    "pixtral": Family(**{**_VISION, "order": "even_odd"}),
    "gemma4_vision": Family(**_VISION, base=100.0, blocks=2),
    "llama4_vision_model": Family(**_VISION, **_INTERLEAVED, note="the class token stands last, at position 0"),
    **_each(
        "sam2_video sam3_tracker_video edgetam_video",
        **{
            **_VISION,
            **_INTERLEAVED,
            "base_keys": ("memory_attention_rope_theta",),
            "beside": tuple(
                f"memory_attention_rope_{what}" for what in ("feat_sizes", "q_sizes", "k_sizes", "dropout")
            ),
            "head_dim": (
                "memory_attention_hidden_size/memory_attention_downsample_rate/memory_attention_num_attention_heads",
            ),
        },
        note="the last keys, those of object pointers, are not rotated",
    ),
    "sam3_vit_model": Family(**_VISION, **_INTERLEAVED, note="positions are scaled by the size of the window"),
    "efficientloftr": Family(
        **{**_VISION, **_INTERLEAVED, "order": "axial_interleaved", "head_dim": ("hidden_size",)},
        share_means=_share_of_hidden_state,
        note="turns the hidden state, before it is cut into heads",
    ),
    **_each(
        "dinov3_vit sapiens2 eomt_dinov3",
        base=100.0,
        head_dim=(_QUOTIENT,),
        weights=_weights_of_dinov3,
        note="class and register tokens are not rotated",
    ),
    # Others.
    "esm": Family(
        rotated_if=("position_embedding_type", "rotary", "absolute", "relative_key", "relative_key_query"),
        head_dim=(_QUOTIENT,),
    ),
    "saprot": Family(rotated_if=("position_embedding_type", "rotary", "rotary", "absolute"), head_dim=(_QUOTIENT,)),
    **_each("wav2vec2-bert wav2vec2-conformer", **_CONFORMER, head_dim=(_QUOTIENT,)),
    "seamless_m4t": Family(**_CONFORMER, head_dim=("hidden_size/speech_encoder_attention_heads",)),
    "clvp_encoder": Family(
        base_fixed=True,
        head_dim=(_QUOTIENT,),
        rotated_if=("use_rotary_embedding", True, True, False),
        width=_width_of_clvp,
        note="values are rotated too",
    ),
    "qwen2_5_omni_dit": Family(layout="interleaved_to_half", head_dim=_head(64), note="only the first head is rotated"),
    "esmfold2_atom_encoder": Family(weights=_weights_of_esmfold2),
    "musicflamingo": Family(
        **_INTERLEAVED,
        head_dim=("head_dim", _width_of_audio),
        base=1_200.0,
        partial=0.2,
        share_of_each_axis=True,
        order="axial",
        axes=2,
        note="positions are products of a time with its window and with its frame",
    ),
}

# The parts of composite configs: where each stands, and its type where it does not say so itself.
PARTS: dict[str, dict[str, tuple[str, str]]] = {
    "aria": {"text": ("text_config", "aria_text")},
    "audioflamingo3": {"text": ("text_config", "qwen2")},
    "aya_vision": {"text": ("text_config", "cohere2")},
    "blt": {
        "patcher": ("patcher_config", "blt_patcher"),
        "encoder": ("encoder_config", "blt_local_encoder"),
        "decoder": ("decoder_config", "blt_local_decoder"),
        "global": ("global_config", "blt_global_transformer"),
    },
    "chmv2": {"backbone": ("backbone_config", "dinov3_vit")},
    "clvp": {"text": ("text_config", "clvp_encoder"), "speech": ("speech_config", "clvp_encoder")},
    "cohere2_vision": {"text": ("text_config", "cohere2")},
    "cohere_compass": {
        "text": ("text_config", "cohere_compass_text"),
        "vision": ("vision_config", "cohere_compass_vision"),
    },
    "colmodernvbert": {"text": ("vlm_config.text_config", "modernbert")},
    "colpali": {"text": ("vlm_config.text_config", "gemma")},
    "colqwen2": {
        "vision": ("vlm_config.vision_config", "qwen2_vl_vision"),
        "text": ("vlm_config.text_config", "qwen2_vl_text"),
    },
    "cosmos3_edge": {"text": ("text_config", "cosmos3_edge_text")},
    "cosmos3_omni": {"vision": ("vision_config", "qwen3_vl_vision"), "text": ("text_config", "qwen3_vl_text")},
    "csm": {"codec": ("codec_config", "mimi"), "depth_decoder": ("depth_decoder_config", "csm_depth_decoder_model")},
    "deepseek_ocr2": {
        "encoder": ("vision_config.encoder_config", "deepseek_ocr2_encoder"),
        "text": ("text_config", "deepseek_ocr2_text"),
    },
    "deepseek_ocr2_vision": {"encoder": ("encoder_config", "deepseek_ocr2_encoder")},
    "deepseek_vl": {"text": ("text_config", "llama")},
    "deepseek_vl_hybrid": {"text": ("text_config", "llama")},
    "dia": {"encoder": ("encoder_config", "dia_encoder"), "decoder": ("decoder_config", "dia_decoder")},
    "diffusion_gemma": {"text": ("text_config", "diffusion_gemma_text"), "vision": ("vision_config", "gemma4_vision")},
    "dots3_note": {
        "text": ("text_config", "dots3_note_text"),
        "vision": ("vision_config", "dots3_note_vision_encoder"),
        "audio": ("audio_config", "dots3_note_audio_encoder"),
    },
    "embedding_gemma2": {
        "text": ("text_config", "embedding_gemma2_text"),
        "vision": ("vision_config", "gemma4_vision"),
    },
    "emu3": {"text": ("text_config", "emu3_text_model")},
    "ernie4_5_moe_vl": {"vision": ("vision_config", "ernie4_5_vl_moe_vision")},
    "ernie4_5_vl_moe": {
        "vision": ("vision_config", "ernie4_5_vl_moe_vision"),
        "text": ("text_config", "ernie4_5_vl_moe_text"),
    },
    "esmfold2": {
        "esmc": ("esmc_config", "esmc"),
        "atom_encoder": ("atom_encoder", "esmfold2_atom_encoder"),
        "structure_head.diffusion_module.atom_encoder": (
            "structure_head.diffusion_module.atom_encoder",
            "esmfold2_atom_encoder",
        ),
    },
    "evolla": {"protein_encoder": ("protein_encoder_config", "saprot")},
    "exaone4_5": {"vision": ("vision_config", "exaone4_5_vision"), "text": ("text_config", "exaone4")},
    "fast_vlm": {"text": ("text_config", "qwen2")},
    "fun_asr_nano": {"text": ("text_config", "qwen3")},
    "fuyu": {"text": ("text_config", "persimmon")},
    "gemma3": {"text": ("text_config", "gemma3_text")},
    "gemma3n": {"text": ("text_config", "gemma3n_text")},
    "gemma4": {"text": ("text_config", "gemma4_text"), "vision": ("vision_config", "gemma4_vision")},
    "gemma4_assistant": {"text": ("text_config", "gemma4_text")},
    "gemma4_unified": {"text": ("text_config", "gemma4_unified_text")},
    "gemma4_unified_assistant": {"text": ("text_config", "gemma4_unified_text")},
    "glm46v": {"text": ("text_config", "glm4v_text"), "vision": ("vision_config", "glm4v_vision")},
    "glm4v": {"vision": ("vision_config", "glm4v_vision"), "text": ("text_config", "glm4v_text")},
    "glm4v_moe": {"vision": ("vision_config", "glm4v_moe_vision"), "text": ("text_config", "glm4v_moe_text")},
    "glm5_next": {"vision": ("vision_config", "glm5_next_vision")},
    "glm_image": {"text": ("text_config", "glm_image_text")},
    "glm_ocr": {"vision": ("vision_config", "glm_ocr_vision"), "text": ("text_config", "glm_ocr_text")},
    "glmasr": {"text": ("text_config", "llama"), "audio": ("audio_config", "glmasr_encoder")},
    "glmga": {"text": ("text_config", "glm4v_text"), "vision": ("vision_config", "glm4v_vision")},
    "got_ocr2": {"text": ("text_config", "qwen2")},
    "granite4_vision": {"text": ("text_config", "granite4_vision_text")},
    "granite_docling": {"text": ("text_config", "granite_docling_text")},
    "granite_speech": {"text": ("text_config", "granite")},
    "granite_speech_plus": {"text": ("text_config", "granite")},
    "hunyuan_vl": {"text": ("text_config", "hunyuan_vl_text")},
    "hyperclovax_vision_v2": {"text": ("text_config", "hyperclovax"), "vision": ("vision_config", "qwen2_5_vl_vision")},
    "idefics2": {"text": ("text_config", "mistral")},
    "idefics3": {"text": ("text_config", "llama")},
    "inkling2": {"vision": ("vision_config", "inkling2_vision")},
    "internvl": {"text": ("text_config", "qwen2")},
    "janus": {"text": ("text_config", "llama")},
    "jev": {"text": ("text_config", "qwen3_5_text")},
    "kimi_k25": {"text": ("text_config", "deepseek_v3"), "vision": ("vision_config", "kimi_k25_vision")},
    "kyutai_speech_to_text": {"codec": ("codec_config", "mimi")},
    "lasr_ctc": {"encoder": ("encoder_config", "lasr_encoder")},
    "lfm2_vl": {"text": ("text_config", "lfm2")},
    "lfm3_vl": {"text": ("text_config", "lfm3"), "vision": ("vision_config", "lfm3_vl_vision")},
    "lighton_ocr": {"text": ("text_config", "qwen3"), "vision": ("vision_config", "pixtral")},
    "llama4": {"text": ("text_config", "llama4_text"), "vision": ("vision_config", "llama4_vision_model")},
    "llava": {"text": ("text_config", "llama")},
    "llava_next": {"text": ("text_config", "llama")},
    "llava_next_video": {"text": ("text_config", "llama")},
    "llava_onevision": {"text": ("text_config", "qwen2")},
    "minicpm_ocr": {"text": ("text_config", "qwen3_5_text")},
    "minicpmv4_6": {"text": ("text_config", "qwen3_5_text")},
    "minicpmv4_7": {"text": ("text_config", "qwen3_5_text")},
    "minimax_m3_vl": {
        "text": ("text_config", "minimax_m3_vl_text"),
        "vision": ("vision_config", "minimax_m3_vl_vision"),
    },
    "mistral_large4": {"text": ("text_config", "mistral_large4_text"), "vision": ("vision_config", "pixtral")},
    "mistral3": {"text": ("text_config", "mistral"), "vision": ("vision_config", "pixtral")},
    "mllama": {"text": ("text_config", "mllama_text_model")},
    "modernvbert": {"text": ("text_config", "modernbert")},
    "molmo2": {"text": ("text_config", "molmo2_text")},
    "moshi": {"audio_encoder": ("audio_encoder_config", "mimi")},
    "moss_transcribe_diarize": {"text": ("text_config", "qwen3")},
    "muse_glimmer": {"text": ("text_config", "muse_glimmer_text"), "vision": ("vision_config", "muse_glimmer_vision")},
    "muse_spark": {"text": ("text_config", "muse_spark_text"), "vision": ("vision_config", "muse_spark_vision")},
    "musicflamingo": {"text": ("text_config", "qwen2")},
    "nemo_speechlm": {
        "audio": ("audio_config.asr_config", "nemotron3_5_transcribe_asr_audio"),
        "diarization": ("audio_config.diarization_config.audio_config", "nemotron3_diarization_audio"),
        "word_timestamp": ("word_timestamp_config", "nemotron3_5_transcribe_word_timestamp"),
    },
    "nemotron3_5_transcribe_audio": {
        "asr": ("asr_config", "nemotron3_5_transcribe_asr_audio"),
        "diarization": ("diarization_config.audio_config", "nemotron3_diarization_audio"),
    },
    "nemotron3_diarization": {"audio": ("audio_config", "nemotron3_diarization_audio")},
    "neucodec": {"semantic_model": ("semantic_model_config", "wav2vec2-bert")},
    "ovis2": {"text": ("text_config", "qwen2")},
    "paddleocr_vl": {"vision": ("vision_config", "paddleocr_vl_vision"), "text": ("text_config", "paddleocr_vl_text")},
    "paligemma": {"text": ("text_config", "gemma")},
    "pe_audio": {"text": ("text_config", "modernbert"), "audio": ("audio_config", "pe_audio_encoder")},
    "pe_audio_video": {
        "text": ("text_config", "modernbert"),
        "audio_video": ("audio_video_config", "pe_audio_video_encoder"),
        "audio": ("audio_video_config.audio_config", "pe_audio_encoder"),
        "video": ("audio_video_config.video_config", "pe_video_encoder"),
    },
    "pe_audio_video_encoder": {
        "audio": ("audio_config", "pe_audio_encoder"),
        "video": ("video_config", "pe_video_encoder"),
    },
    "pe_video": {"text": ("text_config", "modernbert"), "video": ("video_config", "pe_video_encoder")},
    "perception_lm": {"text": ("text_config", "llama")},
    "pi0": {"text": ("vlm_config.text_config", "gemma"), "dit": ("dit_config", "gemma")},
    "pp_chart2table": {"text": ("text_config", "qwen2")},
    "qianfan_ocr": {"text": ("text_config", "qwen3")},
    "qwen2_5_omni": {
        "vision": ("thinker_config.vision_config", "qwen2_5_omni_vision_encoder"),
        "text": ("thinker_config.text_config", "qwen2_5_omni_text"),
        "talker": ("talker_config", "qwen2_5_omni_talker"),
        "dit": ("token2wav_config.dit_config", "qwen2_5_omni_dit"),
    },
    "qwen2_5_omni_thinker": {
        "vision": ("vision_config", "qwen2_5_omni_vision_encoder"),
        "text": ("text_config", "qwen2_5_omni_text"),
    },
    "qwen2_5_omni_token2wav": {"dit": ("dit_config", "qwen2_5_omni_dit")},
    "qwen2_5_vl": {"vision": ("vision_config", "qwen2_5_vl_vision"), "text": ("text_config", "qwen2_5_vl_text")},
    "qwen2_audio": {"text": ("text_config", "qwen2")},
    "qwen2_vl": {"vision": ("vision_config", "qwen2_vl_vision"), "text": ("text_config", "qwen2_vl_text")},
    "qwen3_5": {"vision": ("vision_config", "qwen3_5_vision"), "text": ("text_config", "qwen3_5_text")},
    "qwen3_5_moe": {"vision": ("vision_config", "qwen3_5_moe_vision"), "text": ("text_config", "qwen3_5_moe_text")},
    "qwen3_asr": {"text": ("text_config", "qwen3")},
    "qwen3_omni_moe": {
        "vision": ("thinker_config.vision_config", "qwen3_omni_moe_vision_encoder"),
        "text": ("thinker_config.text_config", "qwen3_omni_moe_text"),
        "code_predictor": ("talker_config.code_predictor_config", "qwen3_omni_moe_talker_code_predictor"),
        "talker.text": ("talker_config.text_config", "qwen3_omni_moe_talker_text"),
        "code2wav": ("code2wav_config", "qwen3_omni_moe_code2wav"),
    },
    "qwen3_omni_moe_thinker": {
        "vision": ("vision_config", "qwen3_omni_moe_vision_encoder"),
        "text": ("text_config", "qwen3_omni_moe_text"),
    },
    "qwen3_vl": {"vision": ("vision_config", "qwen3_vl_vision"), "text": ("text_config", "qwen3_vl_text")},
    "qwen3_vl_moe": {"vision": ("vision_config", "qwen3_vl_moe_vision"), "text": ("text_config", "qwen3_vl_moe_text")},
    "qwen4_exp": {"vision": ("vision_config", "qwen4_exp_vision"), "text": ("text_config", "qwen4_exp_text")},
    "sam3": {"backbone": ("vision_config.backbone_config", "sam3_vit_model")},
    "sam3_lite_text": {"backbone": ("vision_config.backbone_config", "sam3_vit_model")},
    "sam3_tracker": {"backbone": ("vision_config.backbone_config", "sam3_vit_model")},
    "sam3_tracker_video": {"backbone": ("vision_config.backbone_config", "sam3_vit_model")},
    "sam3_video": {
        "backbone": ("detector_config.vision_config.backbone_config", "sam3_vit_model"),
        "tracker": ("tracker_config", "sam3_tracker_video"),
        "tracker.vision.backbone": ("tracker_config.vision_config.backbone_config", "sam3_vit_model"),
    },
    "sam3_vision_model": {"backbone": ("backbone_config", "sam3_vit_model")},
    "shieldgemma2": {"text": ("text_config", "gemma3_text")},
    "smolvlm": {"text": ("text_config", "llama")},
    "step3p7": {"vision": ("vision_config", "step3p5_vision"), "text": ("text_config", "step3p5")},
    "t5gemma": {"encoder": ("encoder", "t5_gemma_module"), "decoder": ("decoder", "t5_gemma_module")},
    "t5gemma2": {"text": ("encoder.text_config", "t5gemma2_text"), "decoder": ("decoder", "t5gemma2_decoder")},
    "t5gemma2_encoder": {"text": ("text_config", "t5gemma2_text")},
    "ultravbert": {"text": ("text_config", "ultrabert")},
    "unlimited_ocr": {"text": ("text_config", "unlimited_ocr_text")},
    "vibevoice": {"text": ("text_config", "qwen2")},
    "vibevoice_asr": {"text": ("text_config", "qwen2")},
    "video_llama_3": {"vision": ("vision_config", "video_llama_3_vision"), "text": ("text_config", "qwen2")},
    "video_llava": {"text": ("text_config", "llama")},
    "vipllava": {"text": ("text_config", "llama")},
    "voxtral": {"text": ("text_config", "llama")},
    "voxtral_realtime": {
        "text": ("text_config", "voxtral_realtime_text"),
        "audio": ("audio_config", "voxtral_realtime_encoder"),
    },
    "xcodec2": {"semantic_model": ("semantic_model_config", "wav2vec2-bert")},
}

# Rows of families as parts of these composite configs, which have other defaults for them: (composite, part).
OWNING_CONFIG: dict[tuple[Any, str], dict[str, Any]] = {
    ("voxtral", "llama"): {"base": 100_000_000.0, "head_dim": _head(128)},
    ("voxtral_realtime", "voxtral_realtime_text"): {"base": 1_000_000.0},
}
