"""Cases in which rope_xp differs from transformers on purpose, and configs that it refuses."""

import re

from .cases import ORIGINAL, PARTIAL, stem

ONLY_BEFORE = "upstream before"  # in reasons that do not apply to newer versions
PE_ENCODERS = "PeAudioEncoder PeAudioVideoEncoder PeVideoEncoder"
HIDING = """
Apertus Cosmos3EdgeText Cwm HiggsAudioV2 Ministral3 Mistral4 MoonshineStreaming MuseSparkText Nemotron3_5Transcribe
"""
NESTED = """
Beam DeepseekV4 DiffusionGemmaText Dots3NoteText EmbeddingGemma2 Lfm3 Ultrabert Gemma3 Gemma3n Gemma4Text
Gemma4UnifiedText Laguna Mellum MiMoV2Flash ModernBert ModernBertDecoder Olmo3 Step3p7 T5Gemma2 Zaya
"""
NO_BASE = "if the file has no base, {} it is 10,000, not that of the default config"
FORGOTTEN = "`alpha` is lost upstream before 5.23 beyond max_position_embeddings"
TRAINED = "refused: frequencies are multiplied by the exponential of a weight, which is 0 before training"
THETA, THETA_BY_KEY = "(legacy )?yarn without rope_theta", "legacy (rope_theta|partial_rotary_factor|rotary_dim)"
NO_LENGTH = "(yarn|llama3|longrope) without original.*"
# Each `stem` of a class; cases as a regular expression; the reason.
DEVIATIONS = [
    ("Cohere2Moe", f"legacy (linear|yarn.*)|{NO_LENGTH}", "`rope_scaling` is not read upstream"),
    ("HiggsAudioV2 Ministral3", THETA, NO_BASE.format("upstream")),
    (PE_ENCODERS, THETA, NO_BASE.format("upstream before 5.23")),
    ("GPTNeoX GPTNeoXJapanese", f"legacy (rope_theta|linear|yarn.*)|{NO_LENGTH}", "`rope_theta` is not read upstream"),
    ("ModernBert ModernBertDecoder Olmo3", "legacy yarn", "`rope_theta` is not read upstream"),
    ("HunYuanDenseV1 HunYuanMoEV1", "dynamic alpha, long", FORGOTTEN),
    ("MiniMaxM3VL", ".*", "`rotary_dim` is not read upstream, so the whole head is rotated"),
    ("CohereCompass", ".*", "sections alternate upstream before 5.23, and are [22, 22, 20]"),
    ("Dots3NoteText", "legacy yarn.*", "`swa_rope_theta` is not read upstream if there is a `rope_scaling`"),
    ("Step3p7Vision", ".*", "axes are (h, w) upstream before 5.23"),
    ("MistralLarge4Text", ".*", TRAINED),
    ("Phimoe", "longrope, long", "`long_factor` is never used upstream"),
    (HIDING, THETA_BY_KEY, "the default `rope_parameters` hide `rope_theta` upstream"),
    (PE_ENCODERS, THETA_BY_KEY, "the default `rope_parameters` hide `rope_theta` upstream before 5.23"),
    (NESTED, "yarn, truncate false", "`truncate` is not read upstream in parameters of a layer type"),
]
# Classes that are not rotations, with the reason.
NOT_ROTATIONS = {
    "VJEPA2RopeAttention": "tables have the layout half, but pairs are interleaved",
    "HunYuanVLRotaryEmbedding": "channels of a pair follow different axes (equal if positions are equal on all axes)",
}
# Errors of rope_xp for contradictions, and what transformers does with them.
REFUSALS = {
    f"{ORIGINAL} must not be contradicted": "refused: the original length is stated twice; upstream uses the outer one",
    f"{PARTIAL} must not be contradicted": "refused: the rotated fraction is stated twice; upstream uses the inner one",
    "mrope_section must sum|sizes must fit": "refused: sections do not fit the pairs; upstream cuts them",
}
# An error that rope_xp raises on purpose.
REFUSAL = re.compile(r"(ValueError|TypeError): (from_config|RotaryEmbedding|Sections|\w+Scaling): .*; got ")


def reason_for(name, case, error):
    """Why rope_xp differs in a case of a class, or raises an error for a contradiction; or an empty string."""
    reasons = [why for stems, cases, why in DEVIATIONS if stem(name) in stems.split() and re.fullmatch(cases, case)]
    reasons += [why for words, why in REFUSALS.items() if re.search(words, error)]
    return reasons[0] if reasons else ""


def unused(results):
    """Classes in `DEVIATIONS` that were compared and do not differ."""
    seen = {(stem(result.name), row.note) for result in results for row in result.rows if row.status == "deviates"}
    compared = {stem(result.name) for result in results if result.rows}
    for stems, _, why in DEVIATIONS:
        if ONLY_BEFORE not in why:
            yield from ((name, why) for name in compared.intersection(stems.split()) if (name, why) not in seen)
