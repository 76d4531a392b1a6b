"""The model families: one row for each `model_type`, with what a config does not state (`Family`).

Rows come from transformers 5.18 and 5.23 (the newer one, if they differ) and are compared with both
(`benchmarks/parity.py`); those of `OTHER_ROWS` come from their checkpoints' code, vLLM, SGLang and mlx-lm
(`tests/goldens/configs.json` has the sources).
"""

from rope_xp.configs import layers
from rope_xp.configs.families.family import (
    INTERLEAVED,
    LATENT,
    NO_ROPE_LAYERS,
    QUOTIENT,
    TO_HALF,
    Axes,
    Family,
    HeadDim,
    LayerList,
    Layers,
    LayerType,
    Pairing,
    Quirks,
    YarnInLogarithms,
    any_fraction,
    fraction_of_hidden_state,
    fraction_of_latent,
    frequencies_of_dinov3,
    frequencies_of_esmfold2,
    head_dim_of_audio,
    head_dim_of_sliding_latent,
    trained_frequencies,
    width_of_clvp,
    width_of_gptj,
    width_of_phi,
)
from rope_xp.configs.layers import every, listed_at, sliding_only
from rope_xp.types import Values

HEADS = "head_dim | hidden_size/num_heads | hidden_size/num_attention_heads"
EMBEDDED = f"{HEADS} | embed_dim/num_heads"
WIDTH_FIRST = (1, 0)
MEMORY = "memory_attention_"
LINEAR_ATTENTION_TYPES = every(4, "full_attention_interval", other="linear_attention")
REDUNDANT_FRACTION = Quirks(redundant_keys=("partial_rotary_factor",))
ATTENTION_TEMPERATURE = ("llama_4_scaling_beta",)
INDEXED = Quirks(ignored_keys=("indexer_rope_interleave",))  # the layout of the indexer, not of the attention
HUNYUAN = Quirks(ignored_in_block=("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"))
ONLY_IF_ROPE = Layers(only_if=("rope", True, False))
NO_ALIBI = Layers(only_if=("alibi", False, True))
RELATIVE_POSITIONS = ("relative_key", "relative_key_query")
CONFORMER = Layers(only_if=("position_embeddings_type", "rotary", "relative_key", "none"))
ZEROS_ARE_NOT_ROTATED = Layers(listed=LayerList("layer_rope_theta", "from the end"))


def block(**parameters: object) -> Values:
    """Defaults with a rotary block. The base of this block is also the default base of other blocks."""
    return {"rope_theta": parameters["rope_theta"], "rope_parameters": parameters}


def layer_type(head_dim: HeadDim | None = None, *, key: str = "", scaled: bool = True, **defaults: object) -> LayerType:
    """The properties of a type of layers. `key` is the config key of its base."""
    return LayerType(defaults, head_dim, (key,) if key else None, scaled)


def bases(**by_type: float) -> dict[str, LayerType]:
    return {name: LayerType({"rope_theta": base}) for name, base in by_type.items()}


def full_and_sliding(full: LayerType | None = None, sliding: LayerType | None = None) -> dict[str, LayerType]:
    return {"full_attention": full or LayerType(), "sliding_attention": sliding or LayerType()}


YARN = {"rope_type": "yarn", "beta_fast": 32.0, "beta_slow": 1.0}
GPT_OSS = dict(
    head_dim=64,
    rope_theta=150_000.0,
    rope_parameters={**YARN, "factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096},
)
LLAMA3 = dict(rope_type="llama3", low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
HIGGS = dict(LLAMA3, low_freq_factor=0.125, high_freq_factor=0.5, original_max_position_embeddings=1024)
MISTRAL = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}
PROPORTIONAL = {"rope_type": "proportional", "rope_theta": 1_000_000.0}

GEMMA3 = full_and_sliding(
    layer_type(rope_theta=1_000_000.0), layer_type(rope_theta=10_000.0, key="rope_local_base_freq", scaled=False)
)
GEMMA4 = full_and_sliding(
    layer_type("global_head_dim", global_head_dim=512, **block(**PROPORTIONAL, partial_rotary_factor=0.25))
)
MODERNBERT = full_and_sliding(
    layer_type(rope_theta=160_000.0, key="global_rope_theta"), layer_type(rope_theta=10_000.0, key="local_rope_theta")
)
DOTS3_NOTE = {
    **bases(full_attention=80_000_000.0, indexed_attention=80_000_000.0),
    "sliding_attention": layer_type(head_dim_of_sliding_latent, rope_theta=50_000.0, key="swa_rope_theta"),
}
SLIDING_PATTERN = every(6, "sliding_window_pattern")
NOT_SCALED = full_and_sliding(sliding=layer_type(scaled=False))

ROWS: dict[str, Family] = {
    # The layout "half", and the same frequencies in every layer. In Idefics and in the text model of Mllama, layers of
    # cross-attention are not rotated; in Moshi, the depth decoder.
    "arcee aria_text chameleon deepseek_ocr2_encoder diffllama doge dots1 esmc eurobert falcon_h1 gpt_neox_japanese "
    "gradium_phonon_tts granite granite4_vision_text granite_docling_text granitemoe granitemoeshared hyperclovax "
    "internlm3 jais2 kyutai_speech_to_text lasr_encoder llama mimi mimi_decoder mimi_encoder ministral mistral "
    "nemotron3_diarization_audio olmo olmo2 olmoe pocket_tts pocket_tts_audio_tokenizer "
    "pocket_tts_audio_tokenizer_decoder pocket_tts_audio_tokenizer_encoder qwen2 qwen2_moe qwen3_moe "
    "qwen3_omni_moe_code2wav starcoder2 idefics moshi": Family(),
    # In NeuCodec and X-Codec 2, the position is the index of the head, not of the frame.
    "voxtral_realtime_encoder neucodec xcodec2": Family(dict(head_dim=64)),
    "timesfm2_5": Family(dict(head_dim=80)),
    "dia_decoder dia_encoder hrm_text iquestcoder qwen3 qwen3_omni_moe_talker_code_predictor seed_oss "
    "voxtral_realtime_text": Family(dict(head_dim=128)),
    "gemma gemma2 vaultgemma t5_gemma_module": Family(dict(head_dim=256)),
    "gte": Family(dict(rope_theta=160_000.0)),
    "jina_embeddings_v3": Family(dict(rope_theta=20_000.0)),
    "bitnet csm csm_depth_decoder_model evolla flex_olmo mllama_text_model": Family(dict(rope_theta=500_000.0)),
    "emu3_text_model mixtral": Family(dict(rope_theta=1_000_000.0)),
    "hy_v3": Family(dict(rope_theta=11_158_840.0, head_dim=128)),
    "minimax_m2 minimax_m3_vl_text": Family(dict(rope_theta=5_000_000.0, head_dim=128)),
    "muse_glimmer_assistant": Family(dict(rope_theta=500_000.0, head_dim=128)),  # queries have the last positions
    "solar_open": Family(dict(rope_theta=1_000_000.0, head_dim=128)),
    "fuyu glm4_moe glmasr_encoder nemotron persimmon phi": Family(dict(partial_rotary_factor=0.5)),
    "gpt_neox": Family(dict(partial_rotary_factor=0.25)),
    "stablelm": Family(dict(partial_rotary_factor=0.25), quirks=REDUNDANT_FRACTION),
    "phi3 phi4_multimodal": Family(
        dict(original_max_position_embeddings=4096), quirks=Quirks(rules={"yarn": "longrope"})
    ),
    "phimoe": Family(dict(rope_theta=1_000_000.0, original_max_position_embeddings=4096)),
    "nanochat": Family(pairing=Pairing(reverse=True)),
    # Families with other keys for the width of a head.
    "deepseek_ocr2_text unlimited_ocr_text": Family(head_dim=QUOTIENT),
    "dots3_note_audio_encoder": Family(dict(partial_rotary_factor=0.5), QUOTIENT),
    "falcon": Family(dict(alibi=False), QUOTIENT, layers=NO_ALIBI),
    "jetmoe": Family(dict(head_dim=128), "kv_channels | head_dim"),
    "nomic_bert": Family(dict(rope_theta=1_000.0), f"head_dim | {QUOTIENT} | n_embd/n_head"),
    "dbrx": Family(head_dim=f"head_dim | {QUOTIENT} | d_model/n_heads", quirks=Quirks(base_in="attn_config")),
    "hunyuan_v1_dense hunyuan_v1_moe": Family(quirks=HUNYUAN),
    "hunyuan_vl_text": Family(
        head_dim=f"head_dim | attention_head_dim | {QUOTIENT}", axes=Axes("chunked"), quirks=HUNYUAN
    ),
    "zamba2": Family(
        dict(use_mem_rope=False),
        "attention_head_dim | attention_hidden_size/num_attention_heads",
        layers=Layers(only_if=("use_mem_rope", True)),
    ),
    # Families with a default rotary block.
    "apertus": Family(block(**LLAMA3, rope_theta=12_000_000.0, factor=8.0)),
    "cwm": Family(dict(head_dim=128, **block(**LLAMA3, rope_theta=1_000_000.0, factor=16.0))),
    "higgs_audio_v2": Family(dict(head_dim=128, **block(**HIGGS, rope_theta=500_000.0, factor=32.0))),
    "gpt_oss": Family(GPT_OSS),
    "openai_privacy_filter": Family(GPT_OSS, pairing=INTERLEAVED),
    "ministral3": Family(
        dict(
            head_dim=128,
            **block(**MISTRAL, rope_theta=1_000_000.0, factor=16.0, original_max_position_embeddings=16_384),
        ),
        quirks=Quirks(ignored_in_block=ATTENTION_TEMPERATURE),
    ),
    "nemotron3_5_transcribe_asr_audio nemotron3_5_transcribe_word_timestamp": Family(
        block(rope_theta=10_000.0, partial_rotary_factor=0.5)
    ),
    # The layout "interleaved".
    "blt_patcher": Family(pairing=INTERLEAVED),
    "cohere blt_local_encoder blt_local_decoder blt_global_transformer ernie4_5_moe": Family(
        dict(rope_theta=500_000.0), pairing=INTERLEAVED
    ),
    "ernie4_5": Family(dict(rope_theta=500_000.0, head_dim=128), pairing=INTERLEAVED),
    "helium": Family(dict(rope_theta=100_000.0, head_dim=128), pairing=INTERLEAVED),
    "glm glm4": Family(dict(head_dim=128, partial_rotary_factor=0.5), pairing=INTERLEAVED),
    "pe_audio_encoder pe_video_encoder pe_audio_video_encoder": Family(
        dict(head_dim=128, **block(rope_theta=20_000.0)), pairing=INTERLEAVED
    ),
    "moonshine": Family(
        dict(partial_rotary_factor=0.9),
        f"head_dim | {QUOTIENT} | hidden_size/decoder_num_attention_heads",
        INTERLEAVED,
        quirks=REDUNDANT_FRACTION,
    ),
    "moonshine_streaming": Family(block(rope_theta=10_000.0, partial_rotary_factor=0.8), pairing=INTERLEAVED),
    "gptj codegen": Family(
        {}, f"{QUOTIENT} | n_embd/n_head", INTERLEAVED, quirks=Quirks(base_keys=(), rotated_width=width_of_gptj)
    ),
    "roformer": Family({}, QUOTIENT, INTERLEAVED, quirks=Quirks(base_keys=(), ignored_keys=("rotary_value",))),
    "qwen2_5_omni_dit": Family(dict(head_dim=64), pairing=TO_HALF),  # only the first head is rotated
    # Multi-head latent attention.
    "deepseek_v2": Family(dict(qk_rope_head_dim=64), LATENT, INTERLEAVED),
    "axk1 deepseek_v3 glm4_moe_lite youtu": Family(
        dict(qk_rope_head_dim=64), LATENT, Pairing("interleaved_to_half", key_decides=True)
    ),
    "deepseek_v32 glm_moe_dsa": Family(dict(qk_rope_head_dim=64), LATENT, TO_HALF, quirks=INDEXED),
    "axk2": Family(dict(qk_rope_head_dim=32), LATENT, TO_HALF),
    "minicpm3": Family(dict(qk_rope_head_dim=32), LATENT),
    "hy_v4": Family(dict(qk_rope_head_dim=64), LATENT, quirks=INDEXED),
    "longcat_flash": Family(dict(rope_theta=10_000_000.0, qk_rope_head_dim=64), LATENT, TO_HALF),
    "mistral4": Family(
        dict(
            qk_rope_head_dim=64,
            **block(**MISTRAL, rope_theta=10_000.0, factor=128.0, original_max_position_embeddings=8192),
        ),
        LATENT,
        Pairing("interleaved_to_half", key_decides=True),
        quirks=Quirks(ignored_in_block=ATTENTION_TEMPERATURE, only_fraction=fraction_of_latent),
    ),
    "bailing_hybrid": Family(
        dict(rope_theta=6_000_000.0, qk_rope_head_dim=64),
        LATENT,
        TO_HALF,
        Layers(every(6, "layer_group_size", other="linear_attention"), rotated=layers.latent_only),
        quirks=Quirks(only_fraction=any_fraction, redundant_keys=("rope_theta",)),
    ),
    "mistral_large4_text": Family(
        dict(
            qk_rope_head_dim=64,
            **block(
                **YARN, rope_theta=10_000.0, factor=2048.0, attention_factor=1.0, original_max_position_embeddings=512
            ),
        ),
        LATENT,
        TO_HALF,
        Layers(listed=NO_ROPE_LAYERS),
        quirks=Quirks(inv_freq=trained_frequencies),
    ),
    "dots3_note_text": Family(
        dict(qk_rope_head_dim=64),
        LATENT,
        TO_HALF,
        Layers(layers.dots3_note, DOTS3_NOTE),
        quirks=Quirks(
            only_fraction=any_fraction,
            scales_softmax=False,
            ignored_keys=("qk_rope_head_dim", "swa_qk_rope_head_dim"),
        ),
    ),
    "deepseek_v4": Family(  # the output of attention is rotated back
        dict(head_dim=512, partial_rotary_factor=64 / 512),
        pairing=Pairing("interleaved", last_channels=True),
        layers=Layers(
            by_type={
                "main": layer_type(rope_theta=10_000.0, scaled=False),
                "compress": layer_type(rope_theta=160_000.0, key="compress_rope_theta"),
            },
            same_as={"sliding_attention": "main"},
            other_types="compress",
        ),
        quirks=Quirks(
            rotated_keys=("qk_rope_head_dim", "rotary_dim"),
            scaling_defaults={"attention_factor": 1.0},
            redundant_keys=("rope_theta", "compress_rope_theta", "partial_rotary_factor"),
        ),
    ),
    # Families with several types of layers.
    "lfm2 lfm2_moe": Family(
        dict(rope_theta=1_000_000.0), layers=Layers(listed_at("full_attn_idxs", "conv", otherwise=True))
    ),
    "bamba": Family(
        dict(partial_rotary_factor=0.5),
        layers=Layers(listed_at("attn_layer_indices", "linear_attention", otherwise=False)),
        quirks=Quirks(rotated_keys=("rotary_dim", "attn_rotary_emb")),
    ),
    "recurrent_gemma": Family(
        dict(partial_rotary_factor=0.5),
        layers=Layers(layers.cycle("recurrent", "recurrent", "attention", key="block_types")),
    ),
    "qwen3_next": Family(
        dict(head_dim=256, partial_rotary_factor=0.25), layers=Layers(LINEAR_ATTENTION_TYPES), quirks=REDUNDANT_FRACTION
    ),
    "qwen3_5_text qwen3_5_moe_text": Family(
        dict(head_dim=256, partial_rotary_factor=0.25, mrope_section=(11, 11, 10)),
        layers=Layers(LINEAR_ATTENTION_TYPES),
        axes=Axes("interleaved"),
        quirks=REDUNDANT_FRACTION,
    ),
    "qwen4_exp_text": Family(
        dict(head_dim=256, mrope_section=(11, 11, 10)), layers=Layers(LINEAR_ATTENTION_TYPES), axes=Axes("interleaved")
    ),
    "minimax": Family(dict(rope_theta=1_000_000.0), layers=Layers(every(2, first=True, other="linear_attention"))),
    "olmo_hybrid": Family(layers=Layers(every(4, other="linear_attention"), rotated=layers.unless_base_is_null)),
    "molmo2_text": Family(dict(head_dim=128), layers=Layers(scaled_key="rope_scaling_layers")),
    "gemma3_text t5gemma2_text t5gemma2_decoder": Family(dict(head_dim=256), layers=Layers(SLIDING_PATTERN, GEMMA3)),
    "gemma3n_text": Family(dict(head_dim=256), layers=Layers(every(5), GEMMA3)),
    "gemma4_text gemma4_unified_text diffusion_gemma_text": Family(
        dict(head_dim=256), layers=Layers(SLIDING_PATTERN, GEMMA4, last_is_full=True)
    ),
    "embedding_gemma2_text": Family(
        dict(head_dim=256),
        layers=Layers(
            SLIDING_PATTERN,
            full_and_sliding(layer_type("global_head_dim", rope_theta=1_000_000.0, global_head_dim=512)),
            last_is_full=True,
        ),
    ),
    "modernbert modernbert-decoder": Family(
        layers=Layers(every(3, "global_attn_every_n_layers", first=True), MODERNBERT),
        quirks=Quirks(
            ignored_keys=("position_embedding_type",)
        ),  # it is "absolute", although queries and keys are rotated
    ),
    "olmo3": Family(dict(rope_theta=500_000.0), layers=Layers(every(4), NOT_SCALED)),
    "laguna": Family(
        dict(head_dim=128),
        layers=Layers(every(1), full_and_sliding(layer_type(rope_theta=500_000.0, partial_rotary_factor=0.5))),
    ),
    "mellum": Family(
        dict(head_dim=128), layers=Layers(every(1), bases(full_attention=500_000.0, sliding_attention=10_000.0))
    ),
    "lfm3": Family(
        dict(rope_theta=1_000_000.0, head_dim=128),
        layers=Layers(
            layers.lfm3,
            full_and_sliding(
                layer_type(rope_parameters={**PROPORTIONAL, "partial_rotary_factor": 0.5}),
                layer_type(rope_parameters={"rope_theta": 10_000.0}),
            ),
            same_as={"conv": "full_attention"},
        ),
    ),
    "ultrabert": Family(
        layers=Layers(layers.ultrabert, full_and_sliding(layer_type(rope_parameters={"rope_theta": 2_560_000.0})))
    ),
    "mimo_v2_flash": Family(
        dict(head_dim=192, partial_rotary_factor=0.334),
        layers=Layers(
            layers.mimo,
            full_and_sliding(
                layer_type(rope_theta=5_000_000.0),
                layer_type("swa_head_dim | head_dim", rope_theta=10_000.0, key="swa_rope_theta"),
            ),
        ),
    ),
    "zaya": Family(
        dict(head_dim=128, partial_rotary_factor=0.5),
        layers=Layers(by_type=bases(hybrid=5_000_000.0, hybrid_sliding=10_000.0)),
    ),
    "step3p5": Family(dict(head_dim=128), layers=Layers(every(1), NOT_SCALED, listed=LayerList("use_rope_layers"))),
    "neomme": Family(
        layers=Layers(by_type=full_and_sliding(layer_type(rope_theta=1_000_000.0, partial_rotary_factor=0.25))),
        axes=Axes("interleaved", 2),
    ),
    # Families with layers that are not rotated.
    "cohere2": Family(pairing=INTERLEAVED, layers=Layers(every(4, "sliding_window_pattern"), rotated=sliding_only())),
    "cohere2_moe": Family(
        dict(head_dim=128),
        pairing=INTERLEAVED,
        layers=Layers(layers.cohere2_moe, rotated=sliding_only(dense_prefix=True)),
        quirks=Quirks(redundant_keys=("rope_theta",)),
    ),
    "beam": Family(
        dict(head_dim=128), layers=Layers(every(6, last=True), full_and_sliding(layer_type(rope_parameters=None)))
    ),
    "flint": Family(dict(head_dim=128), layers=Layers(layers.flint, rotated=sliding_only())),
    "kolibri1": Family(dict(head_dim=128), layers=Layers(every(5), rotated=sliding_only(unless_null="sliding_window"))),
    "afmoe": Family(dict(head_dim=128), layers=Layers(every(4, "global_attn_every_n_layers"), rotated=sliding_only())),
    "exaone4 exaone_moe": Family(
        layers=Layers(every(4, "sliding_window_pattern"), rotated=sliding_only(unless_null="sliding_window"))
    ),
    "llama4_text": Family(
        dict(rope_theta=500_000.0, head_dim=128), pairing=INTERLEAVED, layers=Layers(listed=NO_ROPE_LAYERS)
    ),
    "smollm3": Family(dict(rope_theta=2_000_000.0), layers=Layers(listed=NO_ROPE_LAYERS)),
    "granite_swa granitemoe_swa": Family(layers=Layers(listed=LayerList("layer_rope_theta", bases=True))),
    "muse_glimmer_text": Family(dict(head_dim=128), layers=ZEROS_ARE_NOT_ROTATED),
    "muse_spark_text": Family(
        dict(head_dim=64, rope_parameters={"rope_theta": 500_000.0}), layers=ZEROS_ARE_NOT_ROTATED
    ),
    # Families that are rotated only if a key has a certain value.
    "esm": Family(
        dict(position_embedding_type="absolute"),
        QUOTIENT,
        layers=Layers(only_if=("position_embedding_type", "rotary", *RELATIVE_POSITIONS)),
    ),
    "saprot": Family(
        dict(position_embedding_type="rotary"),
        QUOTIENT,
        layers=Layers(only_if=("position_embedding_type", "rotary", "absolute")),
    ),
    "xlm-roberta": Family(
        dict(position_embedding_type="absolute"),
        layers=Layers(only_if=("position_embedding_type", "rotary", *RELATIVE_POSITIONS)),
        quirks=Quirks(rotated_keys=("rotary_emb_dim",)),
    ),
    "granitemoehybrid": Family(
        dict(position_embedding_type="nope"), layers=Layers(only_if=("position_embedding_type", "rope"))
    ),
    # Hidden states are split into heads and rotated before the projections of queries and keys.
    "wav2vec2-bert wav2vec2-conformer": Family(dict(position_embeddings_type="relative"), QUOTIENT, layers=CONFORMER),
    "seamless_m4t": Family(
        dict(position_embeddings_type="relative"), "hidden_size/speech_encoder_attention_heads", layers=CONFORMER
    ),
    "clvp_encoder": Family(  # values are rotated too
        dict(use_rotary_embedding=True),
        QUOTIENT,
        layers=Layers(only_if=("use_rotary_embedding", True, False)),
        quirks=Quirks(base_keys=(), rotated_width=width_of_clvp),
    ),
    # Text with images, whose tokens have several positions.
    "qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text qwen2_5_omni_talker": Family(
        dict(rope_theta=1_000_000.0, mrope_section=(16, 24, 24)), axes=Axes("chunked")
    ),
    "paddleocr_vl_text": Family(
        dict(rope_theta=500_000.0, head_dim=128, mrope_section=(16, 24, 24)), axes=Axes("chunked")
    ),
    "glm4v_text glm_ocr_text": Family(dict(mrope_section=(8, 12, 12)), pairing=INTERLEAVED, axes=Axes("chunked")),
    "glm4v_moe_text": Family(dict(partial_rotary_factor=0.5, mrope_section=(8, 12, 12)), axes=Axes("chunked")),
    "glm_image_text": Family(dict(mrope_section=(8, 12, 12)), axes=Axes("chunked")),
    "qwen3_vl_text qwen3_vl_moe_text": Family(
        dict(rope_theta=500_000.0, head_dim=128, mrope_section=(24, 20, 20)), axes=Axes("interleaved")
    ),
    "qwen3_omni_moe_text": Family(dict(rope_theta=1_000_000.0, mrope_section=(24, 20, 20)), axes=Axes("interleaved")),
    "qwen3_omni_moe_talker_text": Family(dict(mrope_section=(24, 20, 20)), axes=Axes("interleaved")),
    "cosmos3_edge_text": Family(
        dict(
            rope_theta=100_000_000.0,
            rope_parameters={"rope_theta": 100_000_000.0},
            head_dim=128,
            mrope_section=(24, 20, 20),
        ),
        axes=Axes("interleaved"),
    ),
    "cohere_compass_text": Family(
        dict(mrope_section=(24, 20, 20)),
        layers=Layers(by_type={"sliding_attention": LayerType(), "full_attention": LayerType()}),
        axes=Axes("interleaved"),
        quirks=Quirks(redundant_keys=("rope_theta", "rope_type")),
    ),
    "ernie4_5_vl_moe_text": Family(
        dict(rope_theta=500_000.0, mrope_section=(22, 22, 20)), pairing=INTERLEAVED, axes=Axes("spatial_first")
    ),
    # Vision encoders.
    "cohere_compass_vision ernie4_5_vl_moe_vision exaone4_5_vision glm4v_vision glm4v_moe_vision glm5_next_vision "
    "glm_ocr_vision paddleocr_vl_vision qwen2_5_omni_vision_encoder qwen2_5_vl_vision qwen3_5_vision "
    "qwen3_5_moe_vision qwen3_omni_moe_vision_encoder qwen3_vl_vision qwen3_vl_moe_vision qwen4_exp_vision "
    "video_llama_3_vision muse_glimmer_vision muse_spark_vision": Family(head_dim=HEADS, axes=Axes("axial", 2)),
    "mlcd_vision_model": Family(head_dim=HEADS, axes=Axes("axial", 2)),  # the class token has learned angles
    "minimax_m3_vl_vision": Family(head_dim=HEADS, axes=Axes("axial", 3)),
    "step3p5_vision": Family(head_dim=HEADS, axes=Axes("axial", 2, WIDTH_FIRST)),
    "lfm3_vl_vision": Family(dict(rope_theta=1_000_000.0), HEADS, layers=Layers(layers.lfm3_vl), axes=Axes("axial", 2)),
    "dots3_note_vision_encoder": Family(head_dim=EMBEDDED, axes=Axes("axial", 2)),
    "qwen2_vl_vision": Family(head_dim="head_dim | embed_dim/num_heads", axes=Axes("axial", 2)),
    "pixtral": Family(head_dim=HEADS, axes=Axes("even_odd", 2)),
    "kimi_k25_vision": Family(
        head_dim=f"{HEADS} | vt_hidden_size/vt_num_attention_heads", axes=Axes("axial_interleaved", 2, WIDTH_FIRST)
    ),
    "gemma4_vision": Family(dict(rope_theta=100.0), HEADS, Pairing(blocks=2), axes=Axes("axial", 2)),
    "inkling2_vision": Family({}, HEADS, INTERLEAVED, axes=Axes("axial", 2, WIDTH_FIRST)),
    # In Llama 4, the class token is the last token, at position 0. In SAM 3, positions are scaled by the size of the
    # window.
    "llama4_vision_model sam3_vit_model": Family({}, HEADS, INTERLEAVED, axes=Axes("axial", 2)),
    # The last keys, those of object pointers, are not rotated.
    "sam2_video sam3_tracker_video edgetam_video": Family(
        {},
        f"{MEMORY}hidden_size/{MEMORY}downsample_rate/{MEMORY}num_attention_heads",
        INTERLEAVED,
        axes=Axes("axial", 2),
        quirks=Quirks(
            base_keys=(f"{MEMORY}rope_theta",),
            ignored_keys=tuple(f"{MEMORY}rope_{what}" for what in ("feat_sizes", "q_sizes", "k_sizes", "dropout")),
        ),
    ),
    # The hidden state is rotated before it is split into heads.
    "efficientloftr": Family(
        {},
        "hidden_size",
        INTERLEAVED,
        axes=Axes("axial_interleaved", 2),
        quirks=Quirks(only_fraction=fraction_of_hidden_state),
    ),
    # Class and register tokens are not rotated.
    "dinov3_vit sapiens2 eomt_dinov3": Family(
        dict(rope_theta=100.0), QUOTIENT, quirks=Quirks(inv_freq=frequencies_of_dinov3)
    ),
    # Other positions.
    "esmfold2_atom_encoder": Family(quirks=Quirks(inv_freq=frequencies_of_esmfold2)),
    # The two positions of a token are its time multiplied by its window, and by its frame.
    "musicflamingo": Family(
        dict(rope_theta=1_200.0, partial_rotary_factor=0.2),
        head_dim_of_audio,
        INTERLEAVED,
        axes=Axes("axial", 2, fraction_of_each=True),
    ),
}


def by_name(rows: dict[str, Family]) -> dict[str, Family]:
    return {name: row for names, row in rows.items() for name in names.split()}


FAMILIES_OF_TRANSFORMERS = by_name(ROWS)
# Families that transformers does not have: the code in their checkpoints decides.
OTHER_ROWS: dict[str, Family] = {
    "exaone internlm internlm2 mimo minicpm minicpmo minicpmv orion plamo solar telechat3 xverse": Family(),
    "minimax_m3 minimax_m3_text": FAMILIES_OF_TRANSFORMERS["minimax_m2"],
    "stablelm_epoch": FAMILIES_OF_TRANSFORMERS["stablelm"],
    "phi3_v phi4mm": FAMILIES_OF_TRANSFORMERS["phi3"],
    "kimi_k2": FAMILIES_OF_TRANSFORMERS["deepseek_v3"],
    "ernie4_5_moe_vl": FAMILIES_OF_TRANSFORMERS["ernie4_5_vl_moe_text"],
    "DFNRope_vision_transformer": FAMILIES_OF_TRANSFORMERS["dots3_note_vision_encoder"],
    "bailing_moe bailing_moe_v2": Family(dict(rope_theta=None)),
    # Without latent attention: the first version, and DeepSeek-OCR (see `own_keys.py`).
    "deepseek": Family(head_dim=QUOTIENT, quirks=Quirks(ignored_keys=("qk_rope_head_dim",))),
    "RefinedWeb RefinedWebModel": Family(dict(alibi=False), f"hidden_size/n_head | {QUOTIENT}", layers=NO_ALIBI),
    "step3_text": Family(dict(rope_theta=500_000.0, head_dim=256)),
    "telechat": Family(head_dim=f"hidden_size/n_head | n_embed/n_head | {QUOTIENT}"),  # see `own_keys.py`
    "openelm": Family(
        {}, "head_dim", quirks=Quirks(base_keys=("rope_freq_constant",), ignored_keys=("rope_max_length",))
    ),
    "phi3small": Family(dict(rope_theta=1_000_000.0), QUOTIENT, quirks=Quirks(base_keys=("rope_embedding_base",))),
    "phi-msft": Family(
        head_dim="n_embd/n_head", quirks=Quirks(rotated_width=width_of_phi, ignored_keys=("flash_rotary",))
    ),
    "hf_olmo llada": Family(
        dict(rope=False),
        f"d_model/n_heads | {QUOTIENT}",
        layers=ONLY_IF_ROPE,
        quirks=Quirks(ignored_keys=("rope_full_precision",)),
    ),
    "molmo": Family(
        dict(rope=True),
        f"{QUOTIENT} | d_model/n_heads",
        layers=ONLY_IF_ROPE,
        quirks=Quirks(ignored_keys=("rope_full_precision",)),
    ),
    "neobert": Family(dict(rope=True), QUOTIENT, INTERLEAVED, ONLY_IF_ROPE, quirks=Quirks(base_keys=())),
    "qwen": Family(dict(kv_channels=128), "kv_channels"),
    "hunyuan": Family(head_dim=f"head_dim | attention_head_dim | {QUOTIENT}", quirks=HUNYUAN),
    # With scaling rules of its own. `own_keys.py` reads their keys.
    "git grok-1 grok1": Family(
        dict(head_dim=128), quirks=Quirks(rules={"yarn_linear": "yarn", "yarn_log": YarnInLogarithms})
    ),
    "chatglm": Family(dict(partial_rotary_factor=0.5), f"kv_channels | head_dim | {QUOTIENT}", INTERLEAVED),
    "minimax_text_01 minimax_m1": Family(layers=Layers(layers.marked("attn_type_list", other="linear_attention"))),
    "bailing_moe_linear": Family(dict(rope_theta=600_000.0)),  # layers with linear attention are rotated too
    "nemotron-nas": Family(layers=Layers(layers.nemotron_nas)),
    "plamo2": Family(head_dim="hidden_size_per_head", layers=Layers(layers.plamo2)),
    "plamo3": Family(
        dict(rope_theta=None),
        layers=Layers(
            every(8, "sliding_window_pattern"),
            full_and_sliding(sliding=layer_type(rope_theta=10_000.0, key="rope_local_theta")),
        ),
    ),
    "baichuan": Family(dict(alibi=False), layers=NO_ALIBI),
    "new": Family(
        dict(position_embedding_type="rope"), layers=Layers(only_if=("position_embedding_type", "rope", "absolute"))
    ),
}
NOT_IN_TRANSFORMERS = by_name(OTHER_ROWS)
FAMILIES = FAMILIES_OF_TRANSFORMERS | NOT_IN_TRANSFORMERS

# The names of position axes in the order of positions, by the number of axes: images, and text with images.
USUAL_AXES = {2: ("height", "width"), 3: ("time", "height", "width")}
# Families whose axes have other names, or another order.
OTHER_AXES = {
    "gemma4_vision llama4_vision_model muse_glimmer_vision muse_spark_vision sam3_vit_model sam2_video "
    "sam3_tracker_video edgetam_video": ("width", "height"),
    "hunyuan_vl_text": ("token", "width", "height", "image"),
    "musicflamingo": ("window", "time"),
    "dinov3_vit sapiens2 eomt_dinov3": ("height from -1 to 1", "width from -1 to 1"),
}
OTHER_AXES_OF = {model_type: names for model_types, names in OTHER_AXES.items() for model_type in model_types.split()}


def axis_names(family: Family, model_type: str, axes: int) -> tuple[str, ...]:
    """The name of each of several position axes; empty if the family has no names for so many axes."""
    names = OTHER_AXES_OF.get(model_type, () if family.axes is None else USUAL_AXES.get(axes, ()))
    return names if len(names) == axes > 1 else ()


# Families whose attention is not rotated: `from_config` returns None.
UNROTATED = ("glm5_next_text", "inkling2_text", "jamba", "kimi_linear", "nemotron_h")
# Model types of transformers 5.18 without a rotary embedding, which `from_config` refuses: the code of their classes
# has none, and chooses no other class by a config.
NOT_ROTARY = """
aimv2 aimv2_text_model aimv2_vision_model albert align align_text_model align_vision_model altclip altclip_text_model
altclip_vision_model audio-spectrogram-transformer autoformer bart beit bert bert-generation big_bird bigbird_pegasus
biogpt bit blenderbot blenderbot-small blip blip_text_model blip_vision_model bloom bridgetower bridgetower_text_model
bridgetower_vision_model bros camembert canine chinese_clip chinese_clip_text_model chinese_clip_vision_model clap
clap_audio_model clap_text_model clip clip_text_model clip_vision_model clipseg clipseg_text_model
clipseg_vision_model convbert convnext convnextv2 cpmant ctrl cvt dac data2vec-audio data2vec-text data2vec-vision
deberta deberta-v2 decision_transformer deit dinat dinov2 dinov2_with_registers dinov3_convnext distilbert donut-swin
dpr efficientnet electra encodec eomt ernie falcon_mamba fastspeech2_conformer fastspeech2_conformer_hifigan
fastspeech2_conformer_with_hifigan flaubert flava flava_image_model flava_multimodal_model flava_text_model fnet
focalnet fsmt funnel git_vision_model glpn gpt-sw3 gpt2 gpt_bigcode gpt_neo groupvit groupvit_text_model
groupvit_vision_model hgnet_v2 hiera hubert ibert ijepa imagegpt informer inkling_audio inkling_mm_model inkling_text
inkling_vision kosmos-2 kosmos-2.5 kosmos_2_5_text_model kosmos_2_5_vision_model kosmos_2_text_model
kosmos_2_vision_model layoutlm layoutlmv2 layoutlmv3 led levit lilt longformer longt5 luke lxmert m2m_100 mamba mamba2
marian markuplm mbart megatron-bert metaclip_2 metaclip_2_text_model metaclip_2_vision_model mgp-str mobilebert
mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2 mpnet mpt mra mt5 mvp nllb-moe nystromformer openai-gpt opt owlv2
owlv2_text_model owlv2_vision_model owlvit owlvit_text_model owlvit_vision_model patchtsmixer patchtst pegasus
pegasus_x perceiver pix2struct pix2struct_text_model pix2struct_vision_model pixio plbart poolformer pop2piano
pp_formulanet pp_lcnet pp_lcnet_v3 pp_lcnet_v4 prophetnet pvt pvt_v2 radio reformer regnet rembert resnet roberta
roberta-prelayernorm roc_bert rwkv sam sam_hq sam_hq_vision_model sam_vision_model seamless_m4t_v2 segformer seggpt
sew sew-d siglip siglip2 siglip2_text_model siglip2_vision_model siglip_text_model siglip_vision_model slanext
speech_to_text speecht5 speecht5_hifigan splinter squeezebert superpoint swiftformer swin swin2sr swinv2
switch_transformers t5 tapas textnet time_series_transformer timesfm timesformer tipsv2 tipsv2_text_model
tipsv2_vision_model trocr udop umt5 unispeech unispeech-sat univnet videomae videomt videoprism videoprism_text_model
videoprism_vision_model vilt visual_bert vit vit_mae vit_msn vitdet vitpose_backbone vits vivit wav2vec2 wavlm whisper
xclip xclip_text_model xclip_vision_model xglm xlm xlm-roberta-xl xlnet xlstm xmod yolos yoso zamba
"""
