"""Rows of families with several position axes: text with images, vision encoders, and audio with two times.

First are the names of axes, in the order in which positions have them.
"""

from rope_xp.configs.families import layer_types as types
from rope_xp.configs.families import special_rules as rules
from rope_xp.configs.families.family import INTERLEAVED, QUOTIENT, Axes, Family, Layers, LayerType, Pairing, Quirks

# By the number of axes: text with images, and images.
USUAL = {2: ("height", "width"), 3: ("time", "height", "width")}
# Families with other names, or in another order.
OTHERS = {
    "gemma4_vision llama4_vision_model muse_glimmer_vision muse_spark_vision sam3_vit_model sam2_video "
    "sam3_tracker_video edgetam_video": ("width", "height"),
    "hunyuan_vl_text": ("token", "width", "height", "image"),
    "musicflamingo": ("window", "time"),
    "dinov3_vit sapiens2 eomt_dinov3": ("height", "width"),
}
NAMES = {model_type: names for model_types, names in OTHERS.items() for model_type in model_types.split()}


def axis_names(family: Family, model_type: str, axes: int) -> tuple[str, ...]:
    """The name of each of several position axes; empty if the family has no names for so many axes."""
    names = NAMES.get(model_type, () if family.axes is None else USUAL.get(axes, ()))
    return names if len(names) == axes > 1 else ()


HEADS = "head_dim | hidden_size/num_heads | hidden_size/num_attention_heads"
EMBEDDED = f"{HEADS} | embed_dim/num_heads"
WIDTH_FIRST = (1, 0)
MEMORY = "memory_attention_"

TEXT_AND_VISION: dict[str, Family] = {
    # Text with images.
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
    "ernie4_5_moe_vl ernie4_5_vl_moe_text": Family(
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
    "lfm3_vl_vision": Family(dict(rope_theta=1_000_000.0), HEADS, layers=Layers(types.lfm3_vl), axes=Axes("axial", 2)),
    "DFNRope_vision_transformer dots3_note_vision_encoder": Family(head_dim=EMBEDDED, axes=Axes("axial", 2)),
    "qwen2_vl_vision": Family(head_dim="head_dim | embed_dim/num_heads", axes=Axes("axial", 2)),
    "pixtral": Family(head_dim=HEADS, axes=Axes("even_odd", 2)),
    "kimi_k25_vision": Family(
        head_dim=f"{HEADS} | vt_hidden_size/vt_num_attention_heads", axes=Axes("axial_interleaved", 2, WIDTH_FIRST)
    ),
    "gemma4_vision": Family(dict(rope_theta=100.0), HEADS, Pairing(blocks=2), axes=Axes("axial", 2)),
    "inkling2_vision": Family({}, HEADS, INTERLEAVED, axes=Axes("axial", 2, WIDTH_FIRST)),
    # The class token is the last token, at position 0.
    "llama4_vision_model": Family({}, HEADS, INTERLEAVED, axes=Axes("axial", 2)),
    # Positions are scaled by the size of the window.
    "sam3_vit_model": Family({}, HEADS, INTERLEAVED, axes=Axes("axial", 2)),
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
        quirks=Quirks(only_fraction=rules.fraction_of_hidden_state),
    ),
    # Class and register tokens are not rotated.
    "dinov3_vit sapiens2 eomt_dinov3": Family(
        dict(rope_theta=100.0), QUOTIENT, quirks=Quirks(inv_freq=rules.frequencies_of_dinov3)
    ),
    # Others.
    "esmfold2_atom_encoder": Family(quirks=Quirks(inv_freq=rules.frequencies_of_esmfold2)),
    # The two positions of a token are its time multiplied by its window, and by its frame.
    "musicflamingo": Family(
        dict(rope_theta=1_200.0, partial_rotary_factor=0.2),
        rules.head_dim_of_audio,
        INTERLEAVED,
        axes=Axes("axial", 2, fraction_of_each=True),
    ),
}
