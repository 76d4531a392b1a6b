"""Equal to the rotary embeddings of timm.

Run where timm is found, without its dependencies, by these tests alone: transformers takes part of a timm for all of
it. Only the file of embeddings is loaded, and what it imports, as the package itself needs torchvision.
"""

import importlib.util
import math
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
import torch
from compare import assert_same
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import block_diagonal, gradient_off_by, off_by, random, rotated

from rope_xp import RotaryEmbedding, Sections
from rope_xp.frequencies import evenly_spaced, geometric, log_spaced, mixed
from rope_xp.positions import augment, grid, normalized

TORCH = torch.zeros(1)
H, W, HEADS, DIM = 5, 8, 3, 16
AXES = {"ij": (0, 1), "xy": (1, 0)}


def file_of_embeddings():
    """`timm.layers.pos_embed_sincos`, in packages of its name that run nothing."""
    folder = Path(importlib.util.find_spec("timm").origin).parent
    with mock.patch.dict(sys.modules):
        for name, place in (("timm", folder), ("timm.layers", folder / "layers")):
            sys.modules[name] = package = ModuleType(name)
            package.__path__ = [str(place)]
        return import_module("timm.layers.pos_embed_sincos")


timm = file_of_embeddings()
AXIAL = Sections((DIM // 4, DIM // 4), order="axial")


def embedding(half, **options):
    return RotaryEmbedding(head_dim=DIM, layout="half" if half else "interleaved", **options)


def assert_equal(rope, where, theirs, half, atol, **heads):
    """Tables and rotated numbers, of heads before the sequence; theirs are sines and cosines, each of full width."""
    chosen = slice(DIM // 2) if half else slice(None, None, 2)
    for ours, table in zip(rope.sincos(where), theirs.detach().chunk(2, dim=-1), strict=True):
        assert_same(ours if rope.heads is None else ours.transpose(0, 1), table[..., chosen], atol)
    q, k = random(2, HEADS, where.shape[1], DIM), random(2, HEADS if heads else 1, where.shape[1], DIM, seed=1)
    for x, ours in zip((q, k), rope(q, k, positions=where, seq_dim=2, **heads), strict=True):
        assert_same(ours, timm.apply_rot_embed_cat(x, theirs, half=half), rotated(atol))


BANDS = {
    "temperature": ({"in_pixels": False, "temperature": 500.0}, geometric(500.0, DIM // 2)),
    "linear": ({"max_res": 32, "linear_bands": True}, evenly_spaced(math.pi, math.pi * 32 / 2, DIM // 4)),
    "log": ({"max_res": 32, "linear_bands": False}, log_spaced(math.pi, math.pi * 32 / 2, DIM // 4)),
}
# A band has at most 2 * log(16) + 4 < 10 roundings, and its product one: an exponent of a power of up to 16 is rounded
# twice. A coordinate has up to six, of numbers up to twice as large.
CAT = 10 + 1 + 2 * 6


@settings(max_examples=40, deadline=None)
@given(
    bands=st.sampled_from(list(BANDS)),
    kind=st.sampled_from(["index", "pixel", "separate", "min", "max"]),
    offset=st.sampled_from([0.0, 1.0, 300.5]),
    reference=st.sampled_from([None, (14, 11)]),
    indexing=st.sampled_from(list(AXES)),
    half=st.booleans(),
)
def test_cat(bands, kind, offset, reference, indexing, half):
    options, frequencies = BANDS[bands]
    centred = kind not in ("index", "pixel")
    names = {"grid_type": "centered", "normalize_coords": kind} if centred else {"grid_type": kind}
    names |= {"ref_feat_shape": reference, "grid_offset": offset, "grid_indexing": indexing}
    theirs = timm.RotaryEmbeddingCat(DIM, rotate_half=half, **names, **options)
    lines = []
    for size, wanted in zip((H, W), reference or (H, W), strict=True):
        stretch, length = wanted / size, {"min": min(H, W), "max": max(H, W)}.get(kind, size)
        if kind == "index":
            lines += [(offset * stretch, stretch)]
        elif kind == "pixel":  # takes no offset
            lines += [(-stretch, 2 * stretch / (size - 1))]
        else:
            lines += [(2 * (0.5 + offset) / length * stretch - 1, 2 / length * stretch)]
    start, step = zip(*lines)
    where = grid(H, W, start=start, step=step, axes=AXES[indexing], like=TORCH)
    rope = embedding(half, inv_freq=block_diagonal(frequencies, frequencies))
    assert_equal(rope, where, theirs.get_embed((H, W)), half, off_by(rope, where, CAT))


@pytest.mark.parametrize("half", [False, True])
def test_cat_of_several_shapes(half):
    theirs = timm.RotaryEmbeddingCat(DIM, in_pixels=False, rotate_half=half)
    fixed = timm.RotaryEmbedding(DIM, in_pixels=False, rotate_half=half, feat_shape=[2, 2])
    fixed.update_feat_shape([4, 7])
    tables = [*theirs.get_batch_embeds([(4, 7), (9, 2)]), torch.cat(fixed.get_embed(), dim=-1)]
    for sizes, table in zip([(4, 7), (9, 2), (4, 7)], tables, strict=True):
        rope, where = embedding(half, base=10_000.0, sections=AXIAL), grid(*sizes, like=TORCH)
        assert_equal(rope, where, table, half, off_by(rope, where))


@pytest.mark.parametrize("indexing", AXES)
def test_mixed(indexing):
    """Learned frequencies, of each layer and each head."""
    depth = 2
    torch.manual_seed(3)
    theirs = timm.RotaryEmbeddingMixed(HEADS * DIM, depth, HEADS, temperature=20.0, grid_indexing=indexing)
    angles = 2 * math.pi * torch.rand(depth, HEADS, generator=torch.Generator().manual_seed(3))
    for layer in range(depth):
        first = torch.tensor(mixed(angles[layer].tolist(), DIM, base=20.0))
        # An angle and a quarter turn have four roundings of numbers up to 8, a magnitude four and a product one.
        assert_same(first, theirs.freqs[:, layer].detach(), (4 * 8 + 4 + 1) * 2.0**-24)

    learned = theirs.freqs.detach().clone().requires_grad_()
    where, tables = grid(H, W, axes=AXES[indexing], like=TORCH), theirs.get_embed((H, W))
    x, g = random(2, HEADS, H * W, DIM), random(2, HEADS, H * W, DIM, seed=1)
    for layer in range(depth):
        rope = embedding(False, inv_freq=learned[:, layer])
        atol = off_by(rope, where, 3)  # two products and a sum
        assert_equal(rope, where, tables[layer].detach(), False, atol, heads_dim=1)
        ours = rope(x, positions=where, seq_dim=2, heads_dim=1)
        for y in (ours, timm.apply_rot_embed_cat(x, tables[layer])):
            ((layer + 1) * y * g).sum().backward(retain_graph=True)
    weight = 2 * depth * where.sum(dim=1).max()
    assert_same(learned.grad, theirs.freqs.grad, gradient_off_by(atol, 2 * H * W, weight))
    assert theirs.freqs.grad.abs().max() > 100


BOUNDS = {"temperature": None, "min_period": 0.5, "max_period": 90.0}
PERIODS = {
    "temperature": ({"temperature": 50.0}, [2 * math.pi * w for w in geometric(50.0, DIM // 2)]),
    "periods": (BOUNDS, log_spaced(2 * math.pi / 0.5, 2 * math.pi / 90.0, DIM // 4)),
}
# Coordinates have five roundings of numbers up to 1, which is at most 1.25 times the largest; a period four, its
# exponent counting for less than one where it divides; then come a product and a quotient.
DINO = 5 * 1.25 + 4 + 2


def dinov3(periods, half, **options):
    """Theirs, and ours."""
    settings, frequencies = PERIODS[periods]
    theirs = timm.RotaryEmbeddingDinoV3(DIM, rotate_half=half, **settings, **options)
    return theirs, embedding(half, inv_freq=block_diagonal(frequencies, frequencies))


@pytest.mark.parametrize("half, indexing", [(False, "ij"), (True, "xy")])
@pytest.mark.parametrize("by", ["separate", "min", "max"])
@pytest.mark.parametrize("periods", PERIODS)
def test_dinov3(periods, by, indexing, half):
    theirs, rope = dinov3(periods, half, normalize_coords=by, grid_indexing=indexing)
    where = normalized(H, W, by=by, axes=AXES[indexing], like=TORCH)
    assert_equal(rope, where, theirs.get_embed((H, W)), half, off_by(rope, where, DINO))


AUGMENTATIONS = {"shift": 0.3, "jitter": 1.5, "rescale": 2.0}


@pytest.mark.parametrize("names", [["shift"], ["jitter"], ["rescale"], [*AUGMENTATIONS]])
@pytest.mark.parametrize("by", ["separate", "min", "max"])
def test_augmentations_of_dinov3(by, names):
    options = {name: AUGMENTATIONS[name] for name in names}
    coords = {f"{name}_coords": option for name, option in options.items()}
    theirs, rope = dinov3("temperature", True, normalize_coords=by, **coords)
    still = normalized(H, W, by=by, like=TORCH)
    torch.manual_seed(7)
    table = theirs.train().get_embed((H, W))
    where = augment(still, torch.Generator().manual_seed(7), **options)
    assert (where - still).abs().max() > 0.01
    # Each step has up to four roundings more, on both sides, of numbers that may then shrink to a third.
    assert_equal(rope, where, table, True, off_by(rope, where, DINO + 8 * 3 * len(options)))
    assert_equal(rope, still, theirs.eval().get_embed((H, W)), True, off_by(rope, still, DINO))


FITTED = {(3, 3, 2): (3, 3, 2), (2, 3, 3): (3, 3, 2), (9, 9, 9): (3, 3, 2), (0, 1, 2): (5, 1, 2), (8, 0, 0): (8, 0, 0)}


@pytest.mark.parametrize("sizes, sections", FITTED.items())
def test_mrope(sizes, sections):
    """An image has no time: pairs that follow it do not turn.

    Theirs leaves to time what other sections do not take, and cuts those that do not fit; ours asks for what is left.
    """
    theirs = timm.RotaryEmbeddingMRope(DIM, mrope_section=sizes, temperature=500.0)
    rope = embedding(True, base=500.0, sections=Sections(sections, order="interleaved"))
    where = grid(1, H, W, like=TORCH)
    assert theirs.axis.tolist() == list(rope.sections.axis_of_pair)
    assert_equal(rope, where, theirs.get_embed((H, W)), True, off_by(rope, where))
