"""Positions of multimodal prompts, equal to every `get_rope_index` of transformers that takes grids."""

from importlib import import_module
from itertools import chain
from types import MethodType, SimpleNamespace

import numpy as np
import pytest
import torch
from prompts import hunyuan_prompt, ids_of, random_prompt

from rope_xp import positions

COMPAT = {"compat": "transformers"}
VISION = SimpleNamespace(spatial_merge_size=2, temporal_merge_size=2, tokens_per_second=25)
TOKENS = {"vision_start": 2, "image_start": 2, "image_end": 3, "image": 4, "video": 5, "audio": 6, "audio_start": 7}
CONFIG = SimpleNamespace(
    **{f"{name}_token_id": token for name, token in TOKENS.items()},
    **{"vision_config": VISION, "audio_config": SimpleNamespace(n_window=50)},
    **{"position_id_per_seconds": 25, "seconds_per_chunk": 2},
)


def model(name, kind):
    """What upstream's functions ask of a model: its config and its own methods, without weights."""
    upstream = getattr(import_module(f"transformers.models.{name}.modeling_{name}"), kind)
    self = SimpleNamespace(config=CONFIG, spatial_merge_size=2)
    for method in ("get_vision_position_ids", "get_llm_pos_ids_for_vision", "get_chunked_index", "get_rope_index"):
        if hasattr(upstream, method):
            setattr(self, method, MethodType(getattr(upstream, method), self))
    return self


def padded(rows, rng):
    """Ids and mask of rows with padding before or after them."""
    length = max(len(row) for row in rows) + int(rng.integers(3))
    ids, mask = np.zeros((2, len(rows), length), dtype=np.int64)
    for row, tokens in enumerate(rows):
        first = rng.choice([0, length - len(tokens)])
        ids[row, first : first + len(tokens)], mask[row, first : first + len(tokens)] = tokens, 1
    return ids, mask


def seconds_of(videos, rng):
    """Frame rates of 25 / n, whose times are whole but for float32, where the order of products decides."""
    return (rng.integers(1, 60, size=len(videos)) / 25).astype(np.float32)


def types_of(ids):
    return np.select([ids == 4, ids == 5, ids == 6], [1, 2, 3], 0)


def assert_equal(found, theirs, mask, atol=0.0):
    theirs, deltas = (np.asarray(tensor) for tensor in theirs)
    token = mask.astype(bool)
    np.testing.assert_allclose(found.positions[:, token], theirs[:, token], rtol=0, atol=atol)
    np.testing.assert_allclose(found.delta, deltas[:, 0], rtol=0, atol=atol)


def on_torch(*arrays):
    return [torch.from_numpy(array) for array in arrays]


def arrays_of(grids):
    """The images' and the videos' grids of all rows."""
    return (np.asarray([*chain(*each)], dtype=np.int64).reshape(-1, 3) for each in grids)


def assert_prompts_equal(upstream, ours, options, seeds=30, timed=False, **shape):
    """30 batches of 3 rows, with and without padding."""
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        types, *grids, _ = zip(*(random_prompt(rng, **shape) for _ in range(3 if seed % 2 else 1)))
        rows = [*map(ids_of, types)]
        ids, mask = padded(rows, rng)
        mask = np.ones_like(mask) if seed % 3 == 0 else mask
        images, videos = arrays_of(grids)
        given, more = {"image_grid_thw": images, "video_grid_thw": videos, "attention_mask": mask}, dict(options)
        if timed:
            more["seconds_per_grid"] = given["second_per_grid_ts"] = seconds_of(videos, rng)
        found = ours(types_of(ids), images, videos, mask=mask, **more)
        tensors = {name: torch.from_numpy(array) for name, array in given.items()}
        theirs = upstream.get_rope_index(*on_torch(ids, types_of(ids)), **tensors)
        assert_equal(found, theirs, mask)


FRAMES = ("qwen3_vl Qwen3VL", "qwen3_vl_moe Qwen3VLMoe", "qwen3_5 Qwen3_5", "qwen3_5_moe Qwen3_5Moe")
FRAMES += ("qwen4_exp Qwen4Exp", "glm4v Glm4v", "glm4v_moe Glm4vMoe", "glm46v Glm46V", "glm_ocr GlmOcr")
FRAMES += ("cohere_compass CohereCompass", "cosmos3_omni Cosmos3Omni", "cosmos3_edge Cosmos3Edge")


TIMES = {"positions_per_second": VISION.tokens_per_second, **COMPAT}
# The folder, the class, our function and its options, and how prompts are drawn. Some have the frames of a video apart.
PROMPTS = [
    *((*each.split(), positions.qwen3_vl, {}, {"frames": True}) for each in FRAMES),
    ("qwen2_vl", "Qwen2VL", positions.qwen2_vl, COMPAT, {}),
    ("paddleocr_vl", "PaddleOCRVL", positions.qwen2_vl, COMPAT, {}),
    ("ernie4_5_vl_moe", "Ernie4_5_VLMoe", positions.ernie4_5_vl, COMPAT, {"temporal": 2}),
    *(("qwen2_5_vl", "Qwen2_5_VL", positions.qwen2_5_vl, TIMES, {"timed": timed}) for timed in (True, False)),
]


@pytest.mark.parametrize("name, kind, function, options, shape", PROMPTS)
def test_images_and_videos(name, kind, function, options, shape):
    upstream = model(name, f"{kind}Model")
    assert_prompts_equal(upstream, function, options, **shape)
    if options is COMPAT:  # without videos there is nothing to differ in
        assert_prompts_equal(upstream, function, {}, seeds=10, videos=False)


@pytest.mark.parametrize("axes", [3, 4])
def test_hunyuan(axes):
    upstream = model("hunyuan_vl", "HunYuanVLModel")
    sections = SimpleNamespace(rope_parameters={"mrope_section": [16] * axes})
    upstream.config = SimpleNamespace(vision_config=VISION, text_config=sections)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        types, grids = zip(*(hunyuan_prompt(rng) for _ in range(3 if seed % 2 else 1)))
        rows = [*map(ids_of, types)]
        ends_in_text = seed % 3 > 0
        rows = rows if ends_in_text else [row[: len(row) - row[::-1].index(4)] if 4 in row else row for row in rows]
        ids, mask = padded(rows, rng)
        (grids,) = arrays_of([grids])
        theirs = upstream.get_rope_index(*on_torch(ids, types_of(ids), grids, mask))
        for compat in (COMPAT, {}) if len(rows) == 1 and ends_in_text else (COMPAT,):
            assert_equal(positions.hunyuan_vl(types_of(ids), grids, mask=mask, axes=axes, **compat), theirs, mask)


OMNI = [("qwen2_5_omni", "Qwen2_5OmniPreTrainedModel")]
OMNI += [("qwen3_omni_moe", f"Qwen3OmniMoe{part}") for part in ("PreTrainedModel", "Talker")]


@pytest.mark.parametrize("name, kind", OMNI)
@pytest.mark.parametrize("dyadic", [True, False])
def test_omni(name, kind, dyadic):
    upstream = model(name, f"{kind}ForConditionalGeneration")
    module = import_module(f"transformers.models.{name}.modeling_{name}")
    ours = positions.qwen2_5_vl if name == "qwen2_5_omni" else positions.qwen3_omni
    for seed in range(40):
        rng = np.random.default_rng(seed)
        types, *grids, _ = zip(*(random_prompt(rng) for _ in range(3)))
        rows = [*map(ids_of, types)]
        lengths = [int(length) for length in rng.integers(8, 200, size=3)]
        for row, length in zip(rows, lengths):
            if name == "qwen2_5_omni":
                tokens = ((length - 1) // 2 + 1 - 2) // 2 + 1
            else:
                tokens = int(module._get_feat_extract_output_lengths(torch.tensor(length), 50))
            row += [7, *[6] * tokens, 8, 1]
        ids, mask = padded(rows, rng)
        images, videos = arrays_of(grids)
        seconds = np.full(len(videos), 0.25, np.float32) if dyadic else seconds_of(videos, rng)
        more = {"audio_seqlens": torch.tensor(lengths), "second_per_grids": torch.from_numpy(seconds)}
        theirs = upstream.get_rope_index(*on_torch(ids, images, videos, mask), **more)
        found = ours(types_of(ids), images, videos, positions_per_second=25, seconds_per_grid=seconds, mask=mask)
        # Where times have long fractions, Qwen3-Omni rounds every sum: a handful for each of at most five runs.
        rounded = 0.0 if dyadic or name == "qwen2_5_omni" else 5 * 5 * np.spacing(found.positions.max()) / 2
        assert_equal(found, theirs, mask, atol=rounded)


def test_glm_image():
    """Also the images that it draws: more grids of a longer prompt, the last first."""
    upstream = model("glm_image", "GlmImageModel")
    for seed in range(40):
        rng = np.random.default_rng(seed)
        ids, grids = [1] * int(rng.integers(1, 6)), rng.integers(1, 9, size=(int(rng.integers(1, 5)), 3))
        grids[:, 0] = 1
        given = int(rng.integers(0, len(grids)))
        for _, height, width in grids[:given].tolist():
            ids += [2, *[4] * height * width, 3, *[1] * int(rng.integers(1, 5))]
        ids += [2]
        left = np.zeros((1, 3), dtype=np.int64)
        ids, mask = np.concatenate([left, [ids]], axis=1), np.concatenate([left, [[1] * len(ids)]], axis=1)
        theirs, _ = upstream.get_rope_index(*on_torch(ids, grids), attention_mask=torch.from_numpy(mask))
        drawn = grids[given:][::-1]
        types = [*types_of(ids)[0, 3:], *[1] * int(drawn.prod(axis=1).sum()), 0]
        found = positions.qwen3_vl(types, [*grids[:given], *drawn], spatial_merge_size=1).positions
        decoded = np.asarray(upstream._cached_decode_position_ids[0])
        np.testing.assert_array_equal(found, np.concatenate([np.asarray(theirs)[:, 0, 3:], decoded], axis=1))
