"""The names of position axes, in the order in which positions have them."""

from rope_xp._core.config.family import Family

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
