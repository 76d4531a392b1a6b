"""Positions equal those that the vision towers of transformers give their rotary embeddings.

`benchmarks/parity.py` compares those of Llama 4, of EfficientLoFTR, and of the memories of SAM 2 and its kin.
"""

from importlib import import_module

import numpy as np
import pytest
import torch
from transformers.vision_utils import get_vision_window_index

from rope_xp.positions import augment, grid, join, normalized

TORCH = torch.zeros(1)
GRID_THW = [(1, 4, 6), (3, 2, 8)]
TINY = dict.fromkeys(("hidden_size", "embed_dim", "intermediate_size", "out_hidden_size"), 32)
TINY |= dict.fromkeys(("num_heads", "num_attention_heads", "patch_size"), 2)
TINY |= {**dict.fromkeys(("depth", "num_hidden_layers"), 1), "image_size": 20}


def upstream(model, name):
    """A class or function of a model of transformers."""
    return getattr(import_module(f"transformers.models.{model}.modeling_{model}"), name)


def config(model, name, **options):
    return getattr(import_module(f"transformers.models.{model}.configuration_{model}"), name)(**options)


def tower_of(model, name, settings, **options):
    return upstream(model, name)(config(model, settings, **TINY, **options))


class Found(Exception):
    """What a rotary embedding was called with, on its way out of the model."""


def given(model, *arguments, **options):
    """The positions, position axis first, that a tower gives its rotary embedding."""

    def stop(_, arguments, options):
        raise Found(options.get("position_ids", arguments[-1]))

    names = ("rotary_pos_emb", "rotary_emb", "vision_rotary_embedding", "patch_positional_embedding")
    (rotary,) = [module for name, module in model.named_modules() if name.rpartition(".")[2] in names]
    with rotary.register_forward_pre_hook(stop, with_kwargs=True), pytest.raises(Found) as found:
        model(*arguments, **options)
    return found.value.args[0].T


def assert_same(ours, theirs):
    assert ours.dtype == torch.int32
    assert ours.tolist() == theirs.tolist()


def packed(*blocks, axes=(1, 2), start=0):
    """Patches of the two images in blocks of these sizes."""
    grids = zip(GRID_THW, blocks, strict=True)
    return join(*(grid(*thw, block=(1, m, m), axes=axes, start=start, like=TORCH) for thw, m in grids))


def patches(*shape, **more):
    """The arguments of a tower for both images."""
    return [torch.zeros(*shape)], {"grid_thw": torch.tensor(GRID_THW), **more}


def image(height, width):
    return [torch.zeros(1, 3, height, width)], {}


ERNIE = "Ernie4_5_VLMoeVision"
SIZES = [(8, 12), (6, 20)]
IN_BATCH = [torch.zeros(2, 3, 20, 20)], {"image_sizes": torch.tensor(SIZES)}
# Model, its tower, the config if it has another name, arguments of the tower, and our positions.
TOWERS = [
    ("qwen2_vl", "Qwen2VisionTransformerPretrainedModel", "Qwen2VLVisionConfig", patches(72, 24), packed(2, 2)),
    ("qwen2_5_vl", "Qwen2_5_VisionTransformerPretrainedModel", "Qwen2_5_VLVisionConfig", patches(72, 24), packed(2, 2)),
    ("qwen3_vl", "Qwen3VLVisionModel", None, patches(72, 24), packed(2, 2)),
    ("glm4v", "Glm4vVisionModel", None, patches(72, 24), packed(2, 2)),
    ("glm_ocr", "GlmOcrVisionModel", None, patches(72, 24), packed(2, 2)),
    ("glm5_next", "Glm5NextVisionModel", None, patches(72, 24), packed(2, 2)),
    ("ernie4_5_vl_moe", f"{ERNIE}TransformerPretrainedModel", f"{ERNIE}Config", patches(72, 12), packed(2, 2)),
    ("cohere_compass", "CohereCompassVisionModel", None, patches(72, 24), packed(2, 2)),
    ("exaone4_5", "Exaone4_5_VisionModel", None, patches(72, 24), packed(2, 2)),
    ("paddleocr_vl", "PaddleOCRVisionTransformer", "PaddleOCRVisionConfig", patches(1, 72, 3, 2, 2), packed(1, 1)),
    ("kimi_k25", "Kimi_K25VisionModel", None, patches(72, 3, 2, 2), packed(1, 1)),
    ("minimax_m3_vl", "MiniMaxM3VLVisionModel", None, patches(72, 24), packed(2, 2, axes=(0, 1, 2))),
    ("video_llama_3", "VideoLlama3VisionModel", None, patches(72, 12, merge_sizes=torch.tensor([1, 2])), packed(1, 2)),
    ("step3p7", "Step3p7VisionModel", None, image(8, 20), grid(4, 10, like=TORCH)),
    ("mlcd", "MLCDVisionModel", None, image(20, 20), grid(10, 10, like=TORCH)),
    ("pixtral", "PixtralVisionModel", None, IN_BATCH, join(*(grid(h // 2, w // 2, like=TORCH) for h, w in SIZES))),
]


@pytest.mark.parametrize("model, name, settings, arguments, ours", TOWERS, ids=[row[0] for row in TOWERS])
def test_towers(model, name, settings, arguments, ours):
    tower = tower_of(model, name, settings or name.replace("Model", "Config"))
    arrays, more = arguments
    assert_same(ours, given(tower, *arrays, **more))


def test_muse_glimmer():
    sizes = {"pos_emb_height": 3, "pos_emb_width": 3}
    tower = tower_of("muse_glimmer", "MuseGlimmerVisionModel", "MuseGlimmerVisionConfig", **sizes)
    theirs = given(tower, torch.zeros(72, 24), grid_thw=torch.tensor(GRID_THW))
    window, _ = get_vision_window_index(torch.tensor(GRID_THW), 1, tower.window_size, tower.patch_size)
    assert window.tolist() != sorted(window.tolist())
    assert_same(packed(1, 1, axes=(2, 1), start=1)[:, window], theirs)


def test_gemma_4():
    processor = import_module("transformers.models.gemma4.image_processing_pil_gemma4").Gemma4ImageProcessorPil()
    features = processor(np.zeros((3, 300, 700), np.uint8), return_tensors="pt", max_soft_tokens=70)
    (theirs,) = features["image_position_ids"]
    h, w = (int(theirs[:, axis].max()) + 1 for axis in (1, 0))
    assert h != w and h * w < len(theirs)
    assert_same(join(grid(h, w, axes=(1, 0), like=TORCH), total=len(theirs), padding=-1), theirs.T)


def test_keys_of_edgetam():
    settings = config("edgetam_video", "EdgeTamVideoConfig")
    settings.memory_attention_rope_k_sizes = [3, 5]
    theirs = upstream("edgetam_video", "EdgeTamVideoMemoryAttention").precompute_positions(settings, True)
    assert_same(grid(5, 3, axes=(1, 0), like=TORCH), theirs.T)


def test_sam_3():
    settings = config("sam3", "Sam3ViTConfig", image_size=[44, 70], patch_size=2, window_size=6)
    theirs = upstream("sam3", "Sam3ViTLayer").precompute_positions
    torch.testing.assert_close(grid(6, 6, axes=(1, 0), like=TORCH), theirs(settings, 6).T.int(), rtol=0, atol=0)
    h, w = 35, 22  # as upstream calls them
    ours = grid(h, w, step=6 / w, axes=(1, 0), like=TORCH)
    torch.testing.assert_close(ours, theirs(settings, 0).T, rtol=2.0**-23, atol=0)


@pytest.mark.parametrize("model", ["dinov3_vit", "sapiens2", "eomt_dinov3"])
def test_dinov3_and_its_kin(model):
    theirs = upstream(model, "get_patches_center_coordinates")(5, 14, torch.float32, torch.device("cpu")).T
    ours = normalized(5, 14, like=TORCH)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2.0**-23)  # upstream rounds near 1
    options = {"shift": 0.3, "jitter": 1.5, "rescale": 2.0}
    for left_out in (None, *options):
        chosen = {name: option for name, option in options.items() if name != left_out}
        torch.manual_seed(3)
        moved = upstream(model, "augment_patches_center_coordinates")(theirs.T, **chosen).T
        ours_moved = augment(ours, torch.Generator().manual_seed(3), **chosen)
        torch.testing.assert_close(ours_moved, moved, rtol=0, atol=2e-6)


def test_vjepa2():
    settings = config("vjepa2", "VJEPA2Config", crop_size=10, patch_size=2, frames_per_clip=6, tubelet_size=2)
    attention = upstream("vjepa2", "VJEPA2RopeAttention")(settings, hidden_size=32, num_attention_heads=2)
    theirs = torch.stack(attention.get_position_ids(torch.zeros(1, 3 * 5 * 5, 32)))
    assert_same(grid(3, 5, 5, like=TORCH), theirs)


def test_neomme():
    processor = import_module("transformers.models.neomme.processing_neomme").NeoMMEProcessor
    ours = join(grid(2, axes=(0, 0), like=TORCH), grid(4, 7 + 1, start=2, like=TORCH))
    assert_same(ours, processor._image_positions(4, 7).T)


@pytest.mark.parametrize("canvas", [(0, 0), (13, 31), (24, 9), (40, 40)])
def test_minicpmv(canvas):
    class_ = upstream("minicpmv4_7", "MiniCPMV4_7Model")
    theirs = class_.get_vision_position_ids(None, 9, [8, 14], *canvas, h_offset=3, w_offset=2, spatial_merge_size=2)
    sizes = zip(canvas, (4, 7), strict=True)
    rows, columns = (np.rint(np.linspace(0, (cells or own) - 1, own)).astype(int) for cells, own in sizes)
    assert_same(grid(1, rows, columns, start=(9, 9 + 3, 9 + 2), like=TORCH), theirs)


def test_halves_of_minicpmv_are_those_of_float32():
    theirs = upstream("minicpmv4_7", "MiniCPMV4_7Model").get_vision_position_ids(None, 0, [23, 29], 26, 30)
    lines = [(25, 23), (29, 29)]
    assert_same(grid(1, *(torch.linspace(0, last, size).round().int() for last, size in lines)), theirs)
    exact = grid(1, *(np.rint(np.linspace(0, last, size)).astype(int) for last, size in lines), like=TORCH)
    differ = (exact - theirs).abs().sum(dim=1)
    assert differ.any() and (differ <= torch.tensor([0, 29, 23])).all()  # one row and one column, by 1
