"""How each rotary class is created and called, if this does not follow from its file."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import transformers

from . import towers, unusual
from .cases import BASE, ORIGINAL, PARTIAL, Case, rules, same_for, short_and_long, stem
from .observe import text


@dataclass(frozen=True)
class Subject:
    """One config class that a rotary class serves."""

    config: str = ""  # its name, if the signature of the rotary class has another or none
    observer: Callable[..., Any] | None = None  # returns observations; by default `text`, or `tower` for such configs
    axes: int = 1
    equal_axes: bool = False  # whether the position is the same on each axis
    sections: tuple[int, ...] = ()  # of three axes, for heads of 96, other than the default ones
    needs: Any = field(default_factory=dict)  # changes that the default config needs in order to run, or a function
    why: str = ""  # why it needs them
    unrotated: bool = False  # whether nothing is rotated without `needs`
    part: str = ""  # "model_type/part" if the config has no model_type of its own
    function: str = ""  # the name of the apply function, if the file has several
    tokens_first: bool = False  # axes of queries: batch seq heads dim
    cropped: bool = False  # whether the attention cuts the head before it calls the apply function
    width: Callable[..., int] | None = None
    keep: tuple[str, ...] = ("mrope_section", PARTIAL)  # keys of default parameters that changed ones keep
    rules: bool = True  # whether the config has rope_parameters that may be changed
    more: tuple[Case, ...] = ()  # more changed configs
    merge: int = 0  # cells that a tower merges, if its config does not state it
    flip: bool = False  # whether the model flips the positions of a tower
    without: tuple[str, ...] = ()  # parts of a composite config that rope_xp does not get
    skip: str = "$."  # a regular expression of changed configs that do not apply
    sign: int = 1  # -1 if the apply function rotates in the other direction
    model_types: tuple[str, ...] = ()  # other values of model_type with the same meaning

    def resolved(self, module, config):
        """The same subject, completed from the file and from the name of the config class."""
        if self.sections:
            changed = {"rope_type": "default", "rope_theta": 54_321.0, "mrope_section": list(self.sections)}
            case = Case("sections and width", {"head_dim": 96, "rope_parameters": changed})
            return replace(self, observer=text, axes=3, more=(case, *self.more))
        is_tower = config.endswith(("VisionConfig", "VisionEncoderConfig"))
        if self.observer or not (is_tower and hasattr(module, "apply_rotary_pos_emb_vision")):
            return replace(self, observer=self.observer or text)
        heads = Case("heads", {"num_heads": 4, "num_attention_heads": 4})
        return replace(self, observer=towers.tower, axes=max(self.axes, 2), more=(heads,))


def two_layers(*types, **more):
    """Changes to a config of two layers with different types."""
    return {"num_hidden_layers": 2, "layer_types": list(types), **more}


def one_case(name, **changes):
    return {"more": (Case(name, changes),)}


def own_case(name, **changes):
    """One changed config, of a class without `rope_parameters`."""
    return {"rules": False, **one_case(name, **changes)}


def configs(*stems, **more):
    return tuple(Subject(f"{stem}Config", **more) for stem in stems)


def block(**more):
    return {"rope_parameters": {"rope_type": "default", **more}}


def by_type(**more):
    return {"sliding_attention": {"rope_type": "default", **more}, "full_attention": None}


def without_timm(module):
    key = "vision_config" if module.__name__.endswith("modeling_pe_video") else "video_config"
    return {key: transformers.PreTrainedConfig()}


def width_by_layer_type(run):
    """The head width of Gemma 4: layers of full attention have wider heads."""
    config = run.config.to_dict()
    wider = [row["head_dim"] for row in (config.get("per_layer_config") or {}).values()]
    return wider[0] if run.label == "full_attention" and wider else config["head_dim"]


LONGROPE = {key: rules(48)["longrope"][key] for key in ("short_factor", "long_factor")}
# As in checkpoints of Phi-3: the old name of the rule; the original length also outside the rotary parameters.
PHI3 = {"head_dim": 96, "max_position_embeddings": 1024, ORIGINAL: 256, "rope_theta": BASE}
PHI3 |= {"rope_scaling": {**LONGROPE, "type": "su", ORIGINAL: 256}}
PHI3_CASES = short_and_long("longrope, legacy su", PHI3, legacy=True)
PHIMOE = rules(64)["longrope"] | {"rope_theta": BASE, "short_mscale": 1.1, "long_mscale": 1.3}
ALPHA = {"rope_type": "dynamic", "rope_theta": BASE, "alpha": 50.0, "factor": 2.0}
ALPHA = {"head_dim": 64, "max_position_embeddings": 256, "rope_parameters": ALPHA}

NULL_HEAD = Subject(
    needs={"head_dim": 64}, why="head_dim is null by default; dynamic, yarn and longrope then raise in transformers"
)
HALF_WHY = "the default config rotates 64 pairs, but its sections are for 32"
HALF_IN_BLOCK = one_case("half the head", **block(rope_theta=BASE, mrope_section=[24, 20, 20], **{PARTIAL: 0.5}))
TIMM = "the default vision config needs timm, which the rotation does not use"
TALKER_WHY = "the default sections are for heads of 128, the default heads have 64"
ONLY_THEN = {"why": "the default config does not rotate", "unrotated": True}
FULL = Subject(why="the default has only full attention", needs=two_layers("full_attention", "sliding_attention"))
SLIDING = two_layers("sliding_attention", "sliding_attention")
FOUR = block(rope_theta=1e4, mrope_section=[16, 16, 16, 16])
HEAD = {"needs": {"head_dim": 128}}
WIDER = Subject(keep=(), width=width_by_layer_type)
CHUNKED, ALTERNATING, EIGHTS, QUARTER = (10, 18, 20), (20, 14, 14), (8, 8, 8), (4, 4, 4)
MEMORY = Subject(observer=towers.memory_attention)
NOT_SQUARE = {"needs": {"image_size": [70, 42]}, "why": "a grid that is not square"}
CONFORMER = {"needs": {"position_embeddings_type": "rotary"}, **ONLY_THEN, "observer": unusual.counted}
EIGHT_HEADS = {"num_attention_heads": 8, "speech_encoder_attention_heads": 8}
CONFORMER |= own_case("base and heads", rotary_embedding_base=500, **EIGHT_HEADS)
DINOV3 = Subject(observer=towers.dinov3, **own_case("base", rope_theta=50.0))
ESM_BASE = own_case("base", rope_theta=5_000.0)
TWO_BASES = own_case("bases", spatial_rope_base_frequency=30.0, uid_rope_base_frequency=5_000.0)
CLVP, HEADS = own_case("width", projection_dim=1024, num_attention_heads=8), own_case("heads", num_attention_heads=8)
COMPASS = two_layers("sliding_attention", "full_attention", rope_parameters=by_type(rope_theta=50_000.0))
COMPASS_SECTIONS = by_type(rope_theta=9_000.0, mrope_section=[16, 16, 16])


# By the `stem` of the class.
SUBJECTS: dict[str, Subject | tuple[Subject, ...]] = {
    # Classes with several configs, or with another config than in the signature.
    "Blt": configs("BltLocalEncoder", "BltLocalDecoder", "BltGlobalTransformer", "BltPatcher"),
    "Csm": configs("Csm", "CsmDepthDecoder"),
    "DeepseekOcr2Vision": configs("DeepseekOcr2VisionEncoder"),
    "Dia": configs("DiaEncoder", "DiaDecoder"),
    "GlmAsr": configs("GlmAsrEncoder"),
    "MiniMaxM3VL": configs("MiniMaxM3VLText"),
    "Nemotron3Diarization": configs("Nemotron3DiarizationAudio"),
    "Nemotron3_5Transcribe": configs("Nemotron3_5TranscribeAsrAudio", "Nemotron3_5TranscribeWordTimestamp"),
    "Qwen3OmniMoe": (
        *configs("Qwen3OmniMoeTalkerCodePredictor"),
        *configs("Qwen3OmniMoeCode2Wav", part="qwen3_omni_moe/code2wav"),
    ),
    "T5Gemma": configs("T5GemmaModule"),
    "T5Gemma2": configs("T5Gemma2Text", "T5Gemma2Decoder"),
    "VoxtralRealtime": configs("VoxtralRealtimeEncoder", "VoxtralRealtimeText"),
    **same_for("PeVideoEncoder PeAudioVideoEncoder", Subject(needs=without_timm, why=TIMM)),
    # Other classes of text.
    **same_for("GPTNeoXJapanese Persimmon Phi StableLm", Subject(cropped=True)),
    **same_for("MiniMax Ministral Mixtral", Subject(), NULL_HEAD),
    **same_for("HunYuanDenseV1 HunYuanMoEV1", Subject(more=short_and_long("dynamic alpha", ALPHA)), NULL_HEAD),
    **same_for("Gemma4Text Gemma4UnifiedText DiffusionGemmaText EmbeddingGemma2", WIDER),
    **same_for("Laguna Mellum Step3p7", FULL),
    "DeepseekV3": Subject(model_types=("kimi_k2",)),
    "LongcatFlash": Subject(skip="^width$", **one_case("both widths", head_dim=32, qk_rope_head_dim=32)),
    "Llama4Text": Subject(tokens_first=True),
    "Glm4Moe": (Subject(), Subject(needs={"head_dim": 128}, why="half of the default head of 42 is odd")),
    "Phimoe": Subject(more=short_and_long("longrope", {"rope_parameters": PHIMOE})),
    "Phi3": Subject(more=PHI3_CASES, model_types=("phi3_v",)),
    "Phi4Multimodal": Subject(more=PHI3_CASES, model_types=("phi4mm",)),
    "NanoChat": Subject(sign=-1),
    # The model rotates qk_rope_head_dim channels, even if partial_rotary_factor states another number.
    "DeepseekV4": Subject(width=lambda run: run.config.head_dim, skip="proportional"),
    "Lfm3": Subject(keep=()),
    "Zaya": Subject(needs=two_layers("hybrid", "hybrid_sliding", sliding_window=64), why="the default has one type"),
    "Zamba2": Subject(needs={"use_mem_rope": True}, **ONLY_THEN),
    "GraniteMoeHybrid": Subject(needs={"position_embedding_type": "rope"}, **ONLY_THEN),
    "Esm": Subject(needs={"position_embedding_type": "rotary"}, **ONLY_THEN, **ESM_BASE),
    "EvollaSaProt": Subject(part="evolla/protein_encoder", **ESM_BASE),
    "Moonshine": Subject(width=lambda run: run.config.hidden_size // run.config.decoder_num_attention_heads),
    "Beam": (Subject(rules=False), Subject(needs=SLIDING, why="the parameters of layers of full attention are null")),
    "Dots3NoteText": Subject(
        width=lambda run: run.config.per_layer_config[run.label].qk_rope_head_dim,
        skip="width|proportional",  # the class computes the rotated fraction from the widths alone
        **one_case("widths", qk_rope_head_dim=32, swa_head_dim=320, swa_qk_nope_head_dim=224),
    ),
    "Dots3NoteAudio": Subject(function="apply_rotary_pos_emb", skip="^width$"),
    "UnlimitedOcrText": Subject(skip="^width$"),
    "Qwen2_5OmniDiT": Subject(observer=unusual.dit),
    # Text on several axes.
    **same_for("Qwen2VL Qwen2_5_VL PaddleOCR", Subject(sections=CHUNKED)),
    **same_for("Qwen3VLText Qwen3VLMoeText Cosmos3EdgeText", Subject(sections=ALTERNATING)),
    **same_for("Glm4vText GlmImageText", Subject(sections=EIGHTS, needs={PARTIAL: 0.5}, why=HALF_WHY)),
    **same_for("Qwen3_5Text Qwen3_5MoeText", Subject(sections=QUARTER, **HALF_IN_BLOCK)),
    "Qwen2_5Omni": configs("Qwen2_5OmniText", "Qwen2_5OmniTalker", sections=CHUNKED),
    "GlmOcrText": Subject(sections=(8, 20, 20)),
    "Glm4vMoeText": Subject(sections=EIGHTS, **HEAD, why="the default head of 42 does not fit its sections"),
    "Qwen3OmniMoeThinkerText": Subject(sections=ALTERNATING, **HEAD, why="the default head of 73 is odd"),
    "Qwen3OmniMoeTalker": configs("Qwen3OmniMoeTalkerText", sections=ALTERNATING, **HEAD, why=TALKER_WHY),
    "Qwen4ExpText": Subject(sections=QUARTER, needs={PARTIAL: 0.25}, why="the default sections are for a quarter"),
    "Ernie4_5_VLMoeText": Subject(sections=(14, 14, 20)),
    "CohereCompass": Subject(
        axes=3,
        needs=COMPASS,
        why="the default has no base",
        **own_case("sections and width", head_dim=96, rope_parameters=COMPASS_SECTIONS),
    ),
    "HunYuanVL": Subject(axes=4, equal_axes=True, rules=False, needs=FOUR, why="the default config has no sections"),
    "NeoMME": Subject(axes=2),
    # Towers unlike that of Qwen.
    **same_for("MuseSparkVision MuseGlimmerVision", Subject(flip=True)),
    "VideoLlama3Vision": Subject(merge=2),
    "PaddleOCRVision": Subject(merge=1),
    "MiniMaxM3VLVision": Subject(axes=3),
    "PixtralVision": Subject(observer=towers.pixtral, **one_case("heads", num_attention_heads=8)),
    "Gemma4Vision": Subject(observer=towers.gemma4_vision, **one_case("head_dim", head_dim=48)),
    "Llama4Vision": Subject(observer=towers.llama4_vision, **one_case("heads", num_attention_heads=8)),
    **same_for("Sam2VideoVision Sam3TrackerVideoVision EdgeTamVideoVision", Subject(observer=towers.memory)),
    **same_for("Sam2VideoRoPEAttention Sam3TrackerVideoRoPEAttention", MEMORY),
    **same_for("EdgeTamVideoRoPESelfAttention EdgeTamVideoRoPECrossAttention", MEMORY),
    **same_for("Sam3ViT Sam3ViTRoPEAttention", Subject(observer=towers.sam3, **NOT_SQUARE)),
    **same_for("DINOv3ViTRopePositionEmbedding Sapiens2RopePositionEmbedding", DINOV3),
    "EomtDinov3": Subject(observer=towers.dinov3),
    "EfficientLoFTR": Subject(observer=towers.loftr),
    "VJEPA2RopeAttention": Subject(observer=towers.vjepa2, rules=False),
    # Speech, molecules, and classes without a rotary name.
    "Wav2Vec2BertRotaryPositionalEmbedding": configs("Wav2Vec2Bert", **CONFORMER),
    "Wav2Vec2ConformerRotaryPositionalEmbedding": configs("Wav2Vec2Conformer", **CONFORMER),
    "SeamlessM4TConformerRotaryPositionalEmbedding": configs("SeamlessM4T", **CONFORMER),
    "ClvpRotaryPositionalEmbedding": configs("ClvpEncoder", observer=unusual.clvp, **CLVP),
    "EsmFold2": configs("EsmFold2AtomEncoder", part="esmfold2/atom_encoder", observer=unusual.esmfold2, **TWO_BASES),
    "MusicFlamingo": Subject(observer=unusual.musicflamingo, without=("text_config",)),
    "RoFormerSinusoidalPositionalEmbedding": configs("RoFormer", observer=unusual.roformer, **HEADS),
    "GPTJAttention": configs("GPTJ", observer=unusual.gptj, **own_case("width", rotary_dim=32)),
    "CodeGenAttention": configs("CodeGen", observer=unusual.gptj, **own_case("width", rotary_dim=16)),
}


def subjects_of(name):
    """The subjects of a rotary class, one for each of its config classes."""
    found = SUBJECTS.get(stem(name), Subject())
    return found if isinstance(found, tuple) else (found,)
