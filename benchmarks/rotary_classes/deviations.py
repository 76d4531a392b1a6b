"""Where ours differs from upstream on purpose, and what ours refuses."""

import re

from .cases import ORIGINAL, SHARE

ONLY_BEFORE = "upstream before"  # in reasons that newer versions do not have
PE_ENCODERS = "PeAudioEncoder PeAudioVideoEncoder PeVideoEncoder"
HIDING = """
Apertus Cosmos3EdgeText Cwm HiggsAudioV2 Ministral3 Mistral4 MoonshineStreaming MuseSparkText Nemotron3_5Transcribe
"""
NESTED = """
Beam DeepseekV4 DiffusionGemmaText Dots3NoteText EmbeddingGemma2 Lfm3 Ultrabert Gemma3 Gemma3n Gemma4Text
Gemma4UnifiedText Laguna Mellum MiMoV2Flash ModernBert ModernBertDecoder Olmo3 Step3p7 T5Gemma2 Zaya
"""
NO_BASE = "a block without a base has 10,000 {}, and not that of the default block"
FORGOTTEN = "`alpha` is forgotten upstream before 5.23 beyond max_position_embeddings"
TRAINED = "refused: frequencies are multiplied by the exponential of a weight, which is 0 before training"
THETA, THETA_BY_KEY = "(legacy )?yarn without rope_theta", "legacy (rope_theta|partial_rotary_factor|rotary_dim)"
NO_LENGTH = "(yarn|llama3|longrope) without original.*"
# Classes, without "RotaryEmbedding" in the end; cases as a regular expression; the reason.
DEVIATIONS = [
    ("Cohere2Moe", f"legacy (linear|yarn.*)|{NO_LENGTH}", "`rope_scaling` is not read upstream"),
    ("HiggsAudioV2 Ministral3", THETA, NO_BASE.format("upstream")),
    (PE_ENCODERS, THETA, NO_BASE.format("upstream before 5.23")),
    ("GPTNeoX GPTNeoXJapanese", f"legacy (rope_theta|linear|yarn.*)|{NO_LENGTH}", "`rope_theta` is not read upstream"),
    ("ModernBert ModernBertDecoder Olmo3", "legacy yarn", "`rope_theta` is not read upstream"),
    ("HunYuanDenseV1 HunYuanMoEV1", "dynamic alpha, long", FORGOTTEN),
    ("MiniMaxM3VL", ".*", "`rotary_dim` is not read upstream, which turns the whole head"),
    ("CohereCompass", ".*", "sections alternate upstream before 5.23, and are [22, 22, 20]"),
    ("Dots3NoteText", "legacy yarn.*", "`swa_rope_theta` is not read upstream where there is a `rope_scaling`"),
    ("Step3p7Vision", ".*", "axes are (h, w) upstream before 5.23"),
    ("MistralLarge4Text", ".*", TRAINED),
    ("Phimoe", "longrope, long", "`long_factor` is never used upstream"),
    (HIDING, THETA_BY_KEY, "the default block hides `rope_theta` upstream"),
    (PE_ENCODERS, THETA_BY_KEY, "the default block hides `rope_theta` upstream before 5.23"),
    (NESTED, "yarn, truncate false", "`truncate` of a block that is nested by layer type is not read upstream"),
]
# Classes that are no rotations, and what upstream does.
NOT_ROTATIONS = {
    "VJEPA2RopeAttention": "angles are laid out for halves, pairs are neighbours",
    "HunYuanVLRotaryEmbedding": "channels of a pair follow different axes (it is one, and ours, where all axes agree)",
}
# Errors of ours for a contradiction, and what upstream does with it.
REFUSALS = {
    f"{ORIGINAL} must be \\w+ once": "refused: the length trained on is there twice; upstream takes the outer",
    f"{SHARE} must be \\w+ once": "refused: the share is there twice; upstream takes that of the block",
    "mrope_section must sum|sizes must fit": "refused: sections do not fit; upstream cuts them",
}
# An error of ours, as it should be.
REFUSAL = re.compile(r"(ValueError|TypeError): (from_config|RotaryEmbedding|Sections|\w+Scaling): .*; got ")


def full_names(stems):
    return [f"{stem}RotaryEmbedding" for stem in stems.split()]


def reason_for(name, case):
    """The reason why ours differs in a case of a class, or nothing."""
    return next(
        (why for stems, cases, why in DEVIATIONS if name in full_names(stems) and re.fullmatch(cases, case)), ""
    )


def refusal_of(note):
    """What upstream does with a contradiction that ours refuses with this error, or nothing."""
    return next((why for error, why in REFUSALS.items() if re.search(error, note)), "")


def unused(results):
    """Classes of `DEVIATIONS` that are here and do not differ."""
    seen = {(result.name, row.note) for result in results for row in result.rows if row.status == "deviates"}
    here = {result.name for result in results if result.rows}
    for stems, _, why in DEVIATIONS:
        if ONLY_BEFORE not in why:
            yield from ((name, why) for name in full_names(stems) if name in here and (name, why) not in seen)
