"""How each rotary class is made and called, where that does not follow from its file."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import transformers

from . import towers, unusual
from .cases import BASE, ORIGINAL, SHARE, Case, rules, short_and_long
from .observe import text


@dataclass(frozen=True)
class Subject:
    """One config class that a rotary class serves."""

    config: str = ""  # its name, where the signature of the rotary class has another or none
    drive: Callable[..., Any] | None = None  # makes observations; by default `text`, or `tower` for such configs
    axes: int = 1
    sections: tuple[int, ...] = ()  # of three axes, for heads of 96, other than the default ones
    needs: Any = field(default_factory=dict)  # changes without which the default config does not run, or a function
    why: str = ""  # the reason for them
    off: bool = False  # without them nothing is rotated, and ours must rotate nothing too
    part: str = ""  # "model_type/part" where the config has no model_type of its own
    function: str = ""  # rotates queries and keys, where the file has several
    tokens_first: bool = False  # axes of queries: batch seq heads dim
    cropped: bool = False  # the attention cuts the head before it applies
    width: Callable[..., int] | None = None
    latent: bool = True  # multi-head latent attention where the config has qk_rope_head_dim
    keep: tuple[str, ...] = ("mrope_section", SHARE)  # of a default block, in changed ones
    rules: bool = True  # whether the config has rope_parameters that may be changed
    more: tuple[Case, ...] = ()  # changed configs of its own
    merge: int = 0  # cells that a tower merges, where its config does not state it
    heads: str = "num_attention_heads"
    flip: bool = False  # a tower whose model flips positions
    without: tuple[str, ...] = ()  # parts of a composite config that ours is not given
    skip: str = "$."  # changed configs that make no sense here, a regular expression
    sign: int = 1  # of the sines in our tables; -1 where the apply function rotates in the other direction
    also: tuple[str, ...] = ()  # other values of model_type that mean the same

    def resolved(self, module, config):
        """The same with what the file and the name of the config class imply."""
        if self.sections:
            changed = {"rope_type": "default", "rope_theta": 54_321.0, "mrope_section": list(self.sections)}
            case = Case("sections and width", {"head_dim": 96, "rope_parameters": changed})
            return replace(self, drive=text, axes=3, more=(case, *self.more))
        is_tower = config.endswith(("VisionConfig", "VisionEncoderConfig"))
        if self.drive or not (is_tower and hasattr(module, "apply_rotary_pos_emb_vision")):
            return replace(self, drive=self.drive or text)
        heads = Case("heads", {"num_heads": 4, "num_attention_heads": 4})
        return replace(self, drive=towers.tower, axes=max(self.axes, 2), more=(heads,))


def two(*types, **more):
    """A config of two layers, one of each type, where the default has layers of one type alone."""
    return {"num_hidden_layers": 2, "layer_types": list(types), **more}


def one_case(name, **changes):
    return {"more": (Case(name, changes),)}


def block(**more):
    return {"rope_parameters": {"rope_type": "default", **more}}


def without_timm(module):
    key = "vision_config" if module.__name__.endswith("modeling_pe_video") else "video_config"
    return {key: transformers.PreTrainedConfig()}


def width_by_layer_type(run):
    """Gemma 4 widens the heads of its layers of full attention."""
    config = run.config.to_dict()
    wider = [row["head_dim"] for row in (config.get("per_layer_config") or {}).values()]
    return wider[0] if run.label == "full_attention" and wider else config["head_dim"]


LONGROPE = {key: rules(48)["longrope"][key] for key in ("short_factor", "long_factor")}
# As in checkpoints of Phi-3: the old name of the rule, and the original length outside the block too.
PHI3 = {"head_dim": 96, "max_position_embeddings": 1024, ORIGINAL: 256, "rope_theta": BASE}
PHI3 |= {"rope_scaling": {**LONGROPE, "type": "su", ORIGINAL: 256}}
PHI3_CASES = short_and_long("longrope, legacy su", PHI3, legacy=True)
PHIMOE = rules(64)["longrope"] | {"rope_theta": BASE, "short_mscale": 1.1, "long_mscale": 1.3}
ALPHA = {"rope_type": "dynamic", "rope_theta": BASE, "alpha": 50.0, "factor": 2.0}
ALPHA = {"head_dim": 64, "max_position_embeddings": 256, "rope_parameters": ALPHA}

NULL_HEAD = Subject(
    needs={"head_dim": 64}, why="head_dim is null by default, with which dynamic, yarn and longrope raise upstream"
)
DYNAMIC_ALPHA = (Subject(more=short_and_long("dynamic alpha", ALPHA)), NULL_HEAD)
HALF = {"needs": {SHARE: 0.5}, "why": "the default config rotates 64 pairs, but its sections are for 32"}
HALF_IN_BLOCK = one_case(
    "half the head", **block(rope_theta=BASE, partial_rotary_factor=0.5, mrope_section=[24, 20, 20])
)
TIMM = "timm_wrapper, the default config of its vision part, needs timm, which has no part in rotation"
ONLY_THEN = {"why": "rotates only then", "off": True}
FULL = {"why": "the default has full attention alone", "needs": two("full_attention", "sliding_attention")}
WIDER = Subject(keep=(), width=width_by_layer_type)
CHUNKED, ALTERNATING = (10, 18, 20), (20, 14, 14)
MEMORY, CROPPED = Subject(drive=towers.memory), Subject(cropped=True)
NOT_SQUARE = {"needs": {"image_size": [70, 42]}, "why": "a grid that is not square"}
CONFORMER = {"needs": {"position_embeddings_type": "rotary"}, **ONLY_THEN, "rules": False, "drive": unusual.counted}
BASE_AND_HEADS = one_case("base and heads", rotary_embedding_base=500, num_attention_heads=8)
DINOV3 = Subject(drive=towers.dinov3, rules=False, **one_case("base", rope_theta=50.0))
ESM_BASE = {"rules": False, **one_case("base", rope_theta=5_000.0)}


def compass(**more):
    full = {"full_attention": None}
    return {"rope_parameters": {"sliding_attention": {"rope_type": "default", **more}, **full}}


# By the name of the class, without "RotaryEmbedding" in the end.
SUBJECTS: dict[str, Subject | tuple[Subject, ...]] = {
    # Several configs, or not the one in the signature.
    "Blt": tuple(
        Subject(f"Blt{name}Config") for name in ("LocalEncoder", "LocalDecoder", "GlobalTransformer", "Patcher")
    ),
    "Csm": (Subject("CsmConfig"), Subject("CsmDepthDecoderConfig")),
    "DeepseekOcr2Vision": Subject("DeepseekOcr2VisionEncoderConfig"),
    "Dia": (Subject("DiaEncoderConfig"), Subject("DiaDecoderConfig")),
    "GlmAsr": Subject("GlmAsrEncoderConfig"),
    "MiniMaxM3VL": Subject("MiniMaxM3VLTextConfig"),
    "Nemotron3Diarization": Subject("Nemotron3DiarizationAudioConfig"),
    "Nemotron3_5Transcribe": tuple(
        Subject(f"Nemotron3_5Transcribe{name}Config") for name in ("AsrAudio", "WordTimestamp")
    ),
    "Qwen3OmniMoe": (
        Subject("Qwen3OmniMoeTalkerCodePredictorConfig"),
        Subject("Qwen3OmniMoeCode2WavConfig", part="qwen3_omni_moe/code2wav"),
    ),
    "T5Gemma": Subject("T5GemmaModuleConfig"),
    "T5Gemma2": (Subject("T5Gemma2TextConfig"), Subject("T5Gemma2DecoderConfig")),
    "VoxtralRealtime": (Subject("VoxtralRealtimeEncoderConfig"), Subject("VoxtralRealtimeTextConfig")),
    "PeVideoEncoder": Subject(needs=without_timm, why=TIMM),
    "PeAudioVideoEncoder": Subject(needs=without_timm, why=TIMM),
    # Others of text.
    "DeepseekV3": Subject(also=("kimi_k2",)),
    "LongcatFlash": Subject(skip="^width$", **one_case("both widths", head_dim=32, qk_rope_head_dim=32)),
    "Llama4Text": Subject(tokens_first=True),
    "GPTNeoXJapanese": CROPPED,
    "Persimmon": CROPPED,
    "Phi": CROPPED,
    "StableLm": CROPPED,
    "MiniMax": (Subject(), NULL_HEAD),
    "Ministral": (Subject(), NULL_HEAD),
    "Mixtral": (Subject(), NULL_HEAD),
    "HunYuanDenseV1": DYNAMIC_ALPHA,
    "HunYuanMoEV1": DYNAMIC_ALPHA,
    "Glm4Moe": (Subject(), Subject(needs={"head_dim": 128}, why="half of the default head of 42 is odd")),
    "Phimoe": Subject(more=short_and_long("longrope", {"rope_parameters": PHIMOE})),
    "Phi3": Subject(more=PHI3_CASES, also=("phi3_v",)),
    "Phi4Multimodal": Subject(more=PHI3_CASES, also=("phi4mm",)),
    "NanoChat": Subject(sign=-1),
    # The model splits qk_rope_head_dim channels off, whatever the share says.
    "DeepseekV4": Subject(latent=False, width=lambda run: run.config.head_dim, skip="half|proportional"),
    "Gemma4Text": WIDER,
    "Gemma4UnifiedText": WIDER,
    "DiffusionGemmaText": WIDER,
    "EmbeddingGemma2": WIDER,
    "Laguna": Subject(**FULL),
    "Mellum": Subject(**FULL),
    "Step3p7": Subject(**FULL),
    "Lfm3": Subject(keep=()),
    "Zaya": Subject(needs=two("hybrid", "hybrid_sliding", sliding_window=64), why="the default has one type of layers"),
    "Zamba2": Subject(needs={"use_mem_rope": True}, **ONLY_THEN),
    "GraniteMoeHybrid": Subject(needs={"position_embedding_type": "rope"}, **ONLY_THEN),
    "Esm": Subject(needs={"position_embedding_type": "rotary"}, **ONLY_THEN, **ESM_BASE),
    "EvollaSaProt": Subject(part="evolla/protein_encoder", **ESM_BASE),
    "Moonshine": Subject(width=lambda run: run.config.hidden_size // run.config.decoder_num_attention_heads),
    "Beam": (
        Subject(rules=False),
        Subject(
            needs=two("sliding_attention", "sliding_attention"), why="the block of layers of full attention is null"
        ),
    ),
    "Dots3NoteText": Subject(
        width=lambda run: run.config.per_layer_config[run.label].qk_rope_head_dim,
        skip="half|width|proportional",  # the class computes the share from the widths, whatever the block says
        **one_case("widths", qk_rope_head_dim=32, swa_head_dim=320, swa_qk_nope_head_dim=224),
    ),
    "Dots3NoteAudio": Subject(function="apply_rotary_pos_emb", skip="^width$"),
    "UnlimitedOcrText": Subject(skip="^width$"),
    "Qwen2_5OmniDiT": Subject(drive=unusual.dit),
    # Text on several axes.
    "Qwen2VL": Subject(sections=CHUNKED),
    "Qwen2_5_VL": Subject(sections=CHUNKED),
    "Qwen2_5Omni": tuple(Subject(f"Qwen2_5Omni{name}Config", sections=CHUNKED) for name in ("Text", "Talker")),
    "PaddleOCR": Subject(sections=CHUNKED),
    "Glm4vText": Subject(sections=(8, 8, 8), **HALF),
    "GlmOcrText": Subject(sections=(8, 20, 20)),
    "Glm4vMoeText": Subject(
        sections=(8, 8, 8), needs={"head_dim": 128}, why="the default head of 42 does not fit its sections"
    ),
    "GlmImageText": Subject(sections=(8, 8, 8), **HALF),
    "Qwen3VLText": Subject(sections=ALTERNATING),
    "Qwen3VLMoeText": Subject(sections=ALTERNATING),
    "Qwen3OmniMoeThinkerText": Subject(
        sections=ALTERNATING, needs={"head_dim": 128}, why="the default head of 73 is odd"
    ),
    "Qwen3OmniMoeTalker": Subject(
        "Qwen3OmniMoeTalkerTextConfig",
        sections=ALTERNATING,
        needs={"head_dim": 128},
        why="the default sections are for heads of 128, the default heads have 64",
    ),
    "Cosmos3EdgeText": Subject(sections=ALTERNATING),
    "Qwen3_5Text": Subject(sections=(4, 4, 4), **HALF_IN_BLOCK),
    "Qwen3_5MoeText": Subject(sections=(4, 4, 4), **HALF_IN_BLOCK),
    "Qwen4ExpText": Subject(sections=(4, 4, 4), needs={SHARE: 0.25}, why="the default sections are for a quarter"),
    "Ernie4_5_VLMoeText": Subject(sections=(14, 14, 20)),
    "CohereCompass": Subject(
        axes=3,
        needs=two("sliding_attention", "full_attention", **compass(rope_theta=50_000.0)),
        why="the default has no base",
        rules=False,
        **one_case("sections and width", head_dim=96, **compass(rope_theta=9_000.0, mrope_section=[16, 16, 16])),
    ),
    "HunYuanVL": Subject(
        drive=towers.hunyuan_vl,
        axes=4,
        needs=block(rope_theta=1e4, mrope_section=[16, 16, 16, 16]),
        why="the default config has no sections",
        rules=False,
    ),
    "NeoMME": Subject(axes=2),
    # Towers that differ from that of Qwen.
    "MuseSparkVision": Subject(flip=True),
    "MuseGlimmerVision": Subject(flip=True),
    "VideoLlama3Vision": Subject(merge=2),
    "PaddleOCRVision": Subject(merge=1),
    "MiniMaxM3VLVision": Subject(axes=3),
    "PixtralVision": Subject(drive=towers.pixtral, **one_case("heads", num_attention_heads=8)),
    "Gemma4Vision": Subject(drive=towers.gemma4_vision, **one_case("head_dim", head_dim=48)),
    # The class never reads rope_type.
    "Llama4Vision": Subject(drive=towers.llama4_vision, skip="linear", **one_case("heads", num_attention_heads=8)),
    "Sam2VideoVision": MEMORY,
    "Sam3TrackerVideoVision": MEMORY,
    "EdgeTamVideoVision": MEMORY,
    "Sam2VideoRoPEAttention": Subject(drive=towers.memory_attention),
    "Sam3TrackerVideoRoPEAttention": Subject(drive=towers.memory_attention),
    "EdgeTamVideoRoPESelfAttention": Subject(drive=towers.memory_attention),
    "EdgeTamVideoRoPECrossAttention": Subject(drive=towers.edgetam_cross_attention),
    "Sam3ViT": Subject(drive=towers.sam3_vit, **NOT_SQUARE),
    "Sam3ViTRoPEAttention": Subject(drive=towers.sam3_attention, **NOT_SQUARE),
    "DINOv3ViTRopePositionEmbedding": DINOV3,
    "Sapiens2RopePositionEmbedding": DINOV3,
    "EomtDinov3": Subject(drive=towers.dinov3),
    "EfficientLoFTR": Subject(drive=towers.loftr),
    "VJEPA2RopeAttention": Subject(drive=towers.vjepa2, rules=False),
    # Speech, molecules, and classes that no name gives away.
    "Wav2Vec2BertRotaryPositionalEmbedding": Subject("Wav2Vec2BertConfig", **CONFORMER, **BASE_AND_HEADS),
    "Wav2Vec2ConformerRotaryPositionalEmbedding": Subject("Wav2Vec2ConformerConfig", **CONFORMER, **BASE_AND_HEADS),
    "SeamlessM4TConformerRotaryPositionalEmbedding": Subject(
        "SeamlessM4TConfig",
        **CONFORMER,
        heads="speech_encoder_attention_heads",
        **one_case("base and heads", rotary_embedding_base=500, speech_encoder_attention_heads=8),
    ),
    "ClvpRotaryPositionalEmbedding": Subject(
        "ClvpEncoderConfig", unusual.clvp, rules=False, **one_case("width", projection_dim=1024, num_attention_heads=8)
    ),
    "EsmFold2": Subject(
        "EsmFold2AtomEncoderConfig",
        unusual.esmfold2,
        part="esmfold2/atom_encoder",
        rules=False,
        **one_case("bases", spatial_rope_base_frequency=30.0, uid_rope_base_frequency=5_000.0),
    ),
    "MusicFlamingo": Subject(drive=unusual.musicflamingo, without=("text_config",)),
    "RoFormerSinusoidalPositionalEmbedding": Subject(
        "RoFormerConfig", unusual.roformer, rules=False, **one_case("heads", num_attention_heads=8)
    ),
    "GPTJAttention": Subject("GPTJConfig", unusual.gptj, rules=False, **one_case("width", rotary_dim=32)),
    "CodeGenAttention": Subject("CodeGenConfig", unusual.gptj, rules=False, **one_case("width", rotary_dim=16)),
}


def subjects_of(name):
    """How a rotary class is made, for each of its config classes."""
    found = SUBJECTS.get(name.removesuffix("RotaryEmbedding"), Subject())
    return found if isinstance(found, tuple) else (found,)
