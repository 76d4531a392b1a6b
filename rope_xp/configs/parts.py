"""The parts of composite configs: the path of each part, and its `model_type` if the part does not state it."""

from collections.abc import Iterator, Mapping

from rope_xp.configs.families.indexers import INDEXERS, PART, type_of_text
from rope_xp.configs.families.model_types import FAMILIES
from rope_xp.configs.keys import comma_separated, is_about_positions, require_spelling
from rope_xp.errors import wrong_type, wrong_value
from rope_xp.types import Config, Values

# For each part of a composite, its `model_type`, in which "*" means the name of the composite. The path of a part is
# the key <part>_config, or is given before the `model_type`.
COMPOSITES: dict[str, dict[str, str | tuple[str, str]]] = {
    "aria cosmos3_edge gemma3 gemma3n gemma4_unified glm_image granite4_vision granite_docling hunyuan_vl molmo2 "
    "unlimited_ocr": {"text": "*_text"},
    "audioflamingo3 fast_vlm got_ocr2 internvl llava_onevision musicflamingo ovis2 pp_chart2table qwen2_audio "
    "vibevoice vibevoice_asr": {"text": "qwen2"},
    "aya_vision cohere2_vision": {"text": "cohere2"},
    "blt": {
        "patcher": "*_patcher",
        "encoder": "*_local_encoder",
        "decoder": "*_local_decoder",
        "global": "*_global_transformer",
    },
    "chmv2": {"backbone": "dinov3_vit"},
    "clvp": {"text": "*_encoder", "speech": "*_encoder"},
    "colmodernvbert": {"text": ("vlm_config.text_config", "modernbert")},
    "colpali": {"text": ("vlm_config.text_config", "gemma")},
    "colqwen2": {
        "vision": ("vlm_config.vision_config", "qwen2_vl_vision"),
        "text": ("vlm_config.text_config", "qwen2_vl_text"),
    },
    "cosmos3_omni": {"vision": "qwen3_vl_vision", "text": "qwen3_vl_text"},
    "deepseek_vl_v2": {"text": ("language_config", "deepseek_v2")},
    "internvl_chat": {"text": ("llm_config", "internlm2")},
    "minimax_vl_01": {"text": "minimax_text_01"},
    "multi_modality": {"text": ("language_config", "llama")},
    "step3_vl": {"text": "step3_text"},
    "vibevoice_streaming": {"text": ("decoder_config", "qwen2")},
    "csm": {"codec": "mimi", "depth_decoder": "*_depth_decoder_model"},
    "deepseek_ocr2": {"encoder": ("vision_config.encoder_config", "*_encoder"), "text": "*_text"},
    "deepseek_ocr2_vision": {"encoder": "deepseek_ocr2_encoder"},
    "deepseek_vl deepseek_vl_hybrid idefics3 janus llava llava_next llava_next_video perception_lm smolvlm "
    "video_llava vipllava voxtral": {"text": "llama"},
    "dia": {"encoder": "*_encoder", "decoder": "*_decoder"},
    "diffusion_gemma embedding_gemma2": {"text": "*_text", "vision": "gemma4_vision"},
    "dots3_note": {"text": "*_text", "vision": "*_vision_encoder", "audio": "*_audio_encoder"},
    "emu3 mllama": {"text": "*_text_model"},
    "ernie4_5_moe_vl": {"vision": "ernie4_5_vl_moe_vision"},
    "cohere_compass ernie4_5_vl_moe gemma4 glm4v glm4v_moe glm_ocr minimax_m3_vl muse_glimmer muse_spark paddleocr_vl "
    "qwen2_5_vl qwen2_vl qwen3_5 qwen3_5_moe qwen3_vl qwen3_vl_moe qwen4_exp": {"text": "*_text", "vision": "*_vision"},
    "esmfold2": {
        "esmc": "esmc",
        "atom_encoder": ("atom_encoder", "*_atom_encoder"),
        "structure_head.diffusion_module.atom_encoder": (
            "structure_head.diffusion_module.atom_encoder",
            "*_atom_encoder",
        ),
    },
    "evolla": {"protein_encoder": "saprot"},
    "exaone4_5": {"vision": "*_vision", "text": "exaone4"},
    "fun_asr_nano moss_transcribe_diarize qianfan_ocr qwen3_asr": {"text": "qwen3"},
    "fuyu": {"text": "persimmon"},
    "gemma4_assistant": {"text": "gemma4_text"},
    "gemma4_unified_assistant": {"text": "gemma4_unified_text"},
    "glm46v glmga": {"text": "glm4v_text", "vision": "glm4v_vision"},
    "glm5_next inkling2": {"vision": "*_vision"},
    "glmasr": {"text": "llama", "audio": "*_encoder"},
    "granite_speech granite_speech_plus": {"text": "granite"},
    "hyperclovax_vision_v2": {"text": "hyperclovax", "vision": "qwen2_5_vl_vision"},
    "idefics2": {"text": "mistral"},
    "jev minicpm_ocr minicpmv4_6 minicpmv4_7": {"text": "qwen3_5_text"},
    "kimi_k25": {"text": "deepseek_v3", "vision": "*_vision"},
    "kyutai_speech_to_text": {"codec": "mimi"},
    "lasr_ctc": {"encoder": "lasr_encoder"},
    "lfm2_vl": {"text": "lfm2"},
    "lfm3_vl": {"text": "lfm3", "vision": "*_vision"},
    "lighton_ocr": {"text": "qwen3", "vision": "pixtral"},
    "llama4": {"text": "*_text", "vision": "*_vision_model"},
    "mistral_large4": {"text": "*_text", "vision": "pixtral"},
    "mistral3": {"text": "mistral", "vision": "pixtral"},
    "modernvbert": {"text": "modernbert"},
    "moshi": {"audio_encoder": "mimi"},
    "nemo_speechlm": {
        "audio": ("audio_config.asr_config", "nemotron3_5_transcribe_asr_audio"),
        "diarization": ("audio_config.diarization_config.audio_config", "nemotron3_diarization_audio"),
        "word_timestamp": "nemotron3_5_transcribe_word_timestamp",
    },
    "nemotron3_5_transcribe_audio": {
        "asr": "nemotron3_5_transcribe_asr_audio",
        "diarization": ("diarization_config.audio_config", "nemotron3_diarization_audio"),
    },
    "nemotron3_diarization": {"audio": "*_audio"},
    "neucodec xcodec2": {"semantic_model": "wav2vec2-bert"},
    "paligemma": {"text": "gemma"},
    "pe_audio": {"text": "modernbert", "audio": "*_encoder"},
    "pe_audio_video": {
        "text": "modernbert",
        "audio_video": "*_encoder",
        "audio": ("audio_video_config.audio_config", "pe_audio_encoder"),
        "video": ("audio_video_config.video_config", "pe_video_encoder"),
    },
    "pe_audio_video_encoder": {"audio": "pe_audio_encoder", "video": "pe_video_encoder"},
    "pe_video": {"text": "modernbert", "video": "*_encoder"},
    "pi0": {"text": ("vlm_config.text_config", "gemma"), "dit": "gemma"},
    "qwen2_5_omni": {
        "vision": ("thinker_config.vision_config", "*_vision_encoder"),
        "text": ("thinker_config.text_config", "*_text"),
        "talker": "*_talker",
        "dit": ("token2wav_config.dit_config", "*_dit"),
    },
    "qwen2_5_omni_thinker": {"vision": "qwen2_5_omni_vision_encoder", "text": "qwen2_5_omni_text"},
    "qwen2_5_omni_token2wav": {"dit": "qwen2_5_omni_dit"},
    "qwen3_omni_moe": {
        "vision": ("thinker_config.vision_config", "*_vision_encoder"),
        "text": ("thinker_config.text_config", "*_text"),
        "code_predictor": ("talker_config.code_predictor_config", "*_talker_code_predictor"),
        "talker.text": ("talker_config.text_config", "*_talker_text"),
        "code2wav": "*_code2wav",
    },
    "qwen3_omni_moe_thinker": {"vision": "qwen3_omni_moe_vision_encoder", "text": "qwen3_omni_moe_text"},
    "sam3": {"backbone": ("vision_config.backbone_config", "*_vit_model")},
    "sam3_lite_text sam3_tracker sam3_tracker_video": {"backbone": ("vision_config.backbone_config", "sam3_vit_model")},
    "sam3_video": {
        "backbone": ("detector_config.vision_config.backbone_config", "sam3_vit_model"),
        "tracker": "sam3_tracker_video",
        "tracker.vision.backbone": ("tracker_config.vision_config.backbone_config", "sam3_vit_model"),
    },
    "sam3_vision_model": {"backbone": "sam3_vit_model"},
    "shieldgemma2": {"text": "gemma3_text"},
    "step3p7": {"vision": "step3p5_vision", "text": "step3p5"},
    "t5gemma": {"encoder": ("encoder", "t5_gemma_module"), "decoder": ("decoder", "t5_gemma_module")},
    "t5gemma2": {"text": ("encoder.text_config", "*_text"), "decoder": ("decoder", "*_decoder")},
    "t5gemma2_encoder": {"text": "t5gemma2_text"},
    "ultravbert": {"text": "ultrabert"},
    "video_llama_3": {"vision": "*_vision", "text": "qwen2"},
    "voxtral_realtime": {"text": "*_text", "audio": "*_encoder"},
}


def _located(composite: str, part: str, where: str | tuple[str, str]) -> tuple[str, str]:
    path, model_type = (f"{part}_config", where) if isinstance(where, str) else where
    return path, model_type.replace("*", composite)


# For each composite and part: the path of the part, and its `model_type`.
PARTS: dict[str, dict[str, tuple[str, str]]] = {
    composite: {part: _located(composite, part, where) for part, where in parts.items()}
    for composites, parts in COMPOSITES.items()
    for composite in composites.split()
}

# Defaults that a family has only in a composite config. A key is the composite and the family.
DEFAULTS_IN_COMPOSITE: dict[tuple[object, str], Values] = {
    ("voxtral", "llama"): dict(rope_theta=100_000_000.0, head_dim=128),
    ("voxtral_realtime", "voxtral_realtime_text"): dict(rope_theta=1_000_000.0),
}

# Where published files have a part, if transformers saves it in another place. A key is the composite and the part.
PUBLISHED_PATHS = {("vibevoice", "text"): "decoder_config", ("vibevoice_asr", "text"): "decoder_config"}

# Each config of a text model has one of these keys.
TEXT_KEYS = {"hidden_size", "n_embd", "d_model", "head_dim"}


def part_of(config: Config, part: str | None) -> tuple[Config, str, Values]:
    """The selected part of a config, its `model_type`, and the keys about positions outside it that differ from it."""
    model_type = _model_type(config)
    if part is not None and not isinstance(part, str):
        raise wrong_type(f"part must be a string; got {part!r}")
    parts = PARTS.get(model_type, {})
    places = {path.split(".")[0] for path, _ in parts.values()}
    require_spelling("the config", config, {"model_type", "text_config"} | places)
    with_indexer = [PART] if type_of_text(config, parts.get("text", ("", ""))[1]) in INDEXERS else []
    if part in with_indexer and not isinstance(config.get(f"{PART}_config"), Mapping):
        part = "text"  # the indexer is beside its attention
    if part is None and _is_whole(config, model_type, parts):
        return config, model_type, {}
    wanted = "text" if part is None else part
    if wanted in parts:
        path, default = parts[wanted]
    else:  # the key of a part, with or without "_config"
        path = wanted if wanted in config else f"{wanted}_config"
        default = dict(parts.values()).get(wanted, "")
    path = next((each for each in (path, PUBLISHED_PATHS.get((model_type, wanted), path)) if each in config), path)
    # Keys outside the parts may belong to the text, unless the composite has position axes itself, like MusicFlamingo.
    outside_is_text = model_type not in FAMILIES or not FAMILIES[model_type].divides_axes
    found = _value_at(config, path, flat=bool(wanted == "text" and default and outside_is_text))
    if isinstance(found, Mapping):
        outside = _stated_outside(config, found) if outside_is_text and wanted in ("text", "text_config") else {}
        own = _model_type(found)
        return found, default if default and (own in ("", model_type) or own in PARTS) else own, outside
    if wanted == "text" and model_type in FAMILIES and outside_is_text:
        return config, model_type, {}  # a config of text without parts
    if wanted == "text":
        require_spelling("the config", config, TEXT_KEYS)
    known = comma_separated({*parts, *sub_configs(config), *with_indexer})
    known = f"one of {known}" if known else "None for a config without parts"
    raise wrong_value(f"part must be {known}; got {part!r}")


def path_to(part: Config, config: Config) -> tuple[str, ...]:
    if part is config:
        return ()
    for key, value in config.items():
        if value is part:
            return (key,)
        if isinstance(value, Mapping) and (path := path_to(part, value)):
            return (key, *path)
    return ()


def sub_configs(config: Config) -> Iterator[str]:
    return (str(key) for key, value in config.items() if isinstance(value, Mapping) and "_config" in str(key))


def _is_whole(config: Config, model_type: str, parts: Config) -> bool:
    if isinstance(config.get("text_config"), Mapping):
        return False
    if config.get("text_config") is not None:
        raise wrong_type(f"text_config must be a mapping; got {type(config['text_config']).__name__}")
    return model_type in FAMILIES or not parts


def _value_at(config: Config, path: str, *, flat: bool) -> object:
    """The value at a path. With `flat`, the first config on the path that has the keys of text itself."""
    found: object = config
    for key in path.split("."):
        if not isinstance(found, Mapping):
            return None
        if flat and not isinstance(found.get(key), Mapping) and TEXT_KEYS & found.keys():
            return found  # older configs have the keys of text on the same level as other parts
        found = found.get(key)
    return found


def _stated_outside(config: Config, found: Config) -> Values:
    if found is config:
        return {}
    outside = {
        key: value for key, value in config.items() if is_about_positions(key, value) and found.get(key) != value
    }
    return {key: value for key, value in outside.items() if value is not None}


def _model_type(config: Config) -> str:
    found = config.get("model_type")
    if found is not None and not isinstance(found, str):
        raise wrong_type(f"model_type must be a string; got {found!r}")
    return found or ""
