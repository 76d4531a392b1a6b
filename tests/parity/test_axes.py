"""Equal to other packages of PyTorch at several position axes, with given and learned frequencies, scaling and decay.

They are rotary-embedding-torch, torchtune, x-transformers and diffusers. Positions are below 512, where float32 phases
are still right.
"""

import math
from importlib import import_module

import numpy as np
import pytest
import torch
from compare import assert_same
from diffusers.models import embeddings
from peers import block_diagonal, file_of_torchtune, gradient_off_by, off_by, random, rotated
from rotary_embedding_torch import RotaryEmbedding as LucidRotaryEmbedding
from rotary_embedding_torch import apply_rotary_emb as lucid_apply
from x_transformers import x_transformers

from rope_xp import LinearScaling, Llama3Scaling, NTKScaling, RotaryEmbedding, Sections, XPos
from rope_xp.frequencies import evenly_spaced, log_spaced
from rope_xp.positions import grid, join

TORCH = torch.zeros(1)
CPU = torch.device("cpu")
LONG = (16, 56, 56)  # channels of time, height and width
T, H, W = 3, 5, 7


def axial(dims, layout="interleaved", base=10_000.0, **options):
    """A progression for each axis, one axis after the other."""
    sections = Sections([dim // 2 for dim in dims], order="axial")
    return RotaryEmbedding(head_dim=sum(dims), layout=layout, base=base, sections=sections, **options)


# rotary-embedding-torch and x-transformers


def assert_axial(rope, where, angles, sizes, roundings=4):
    """Tables and rotated numbers, with cells in one row and on axes of their own."""
    atol, x = off_by(rope, where, roundings), random(2, 3, *sizes, rope.head_dim)
    tables = tuple(table.flatten(0, -2)[:, ::2] for table in (angles.sin(), angles.cos()))
    assert_same(rope.sincos(where), tables, atol)
    expected = lucid_apply(angles, x)
    ours = rope(x.flatten(2, -2).transpose(1, 2), positions=where, seq_dim=1)
    assert_same(ours.transpose(1, 2).unflatten(2, sizes), expected, rotated(atol))
    assert_same(rope(x, positions=where.reshape(-1, 1, 1, *sizes), seq_dim=2), expected, rotated(atol))


@pytest.mark.parametrize("offsets", [None, (3, 0, 400)])
@pytest.mark.parametrize("sizes", [(5, 7), (3, 5, 7)])
def test_axial_frequencies(sizes, offsets):
    offsets = None if offsets is None else offsets[-len(sizes) :]
    angles = LucidRotaryEmbedding(dim=8, theta=500.0).get_axial_freqs(*sizes, offsets=offsets)
    rope = axial([8] * len(sizes), base=500.0)
    assert_axial(rope, grid(*sizes, start=offsets or 0, like=TORCH), angles, sizes)


@pytest.mark.parametrize("max_freq", [10, 224.0])
def test_frequencies_for_pixels(max_freq):
    angles = LucidRotaryEmbedding(dim=8, freqs_for="pixel", max_freq=max_freq).get_axial_freqs(H, W)
    bands = evenly_spaced(math.pi, math.pi * max_freq / 2, 4)
    rope = RotaryEmbedding(head_dim=16, layout="interleaved", inv_freq=block_diagonal(bands, bands))
    # Six roundings: two of a frequency, one of pi, two of a coordinate, one of the product.
    assert_axial(rope, grid(H, W, start=-1, last=1, like=TORCH), angles, (H, W), roundings=6)


def test_a_span_that_begins_later():
    angles = LucidRotaryEmbedding(dim=8)(torch.arange(50))
    rope = RotaryEmbedding(head_dim=20, layout="interleaved", base=10_000.0, rotary_dim=8, first_channel=6)
    x = random(2, 3, 50, 20)
    ours = rope(x, seq_dim=2)
    assert_same(ours, lucid_apply(angles, x, start_index=6), rotated(off_by(rope, torch.arange(50))))
    assert torch.equal(ours[..., :6], x[..., :6]) and torch.equal(ours[..., 14:], x[..., 14:])


@pytest.mark.parametrize("sizes", [(50,), (H, W)])
def test_learned_frequencies(sizes):
    theirs, axes = LucidRotaryEmbedding(dim=8, learned_freq=True), len(sizes)
    freqs = theirs.freqs.detach().clone().requires_grad_()
    inv_freq = freqs if axes == 1 else torch.block_diag(freqs[None], freqs[None])
    rope = RotaryEmbedding(head_dim=8 * axes, layout="interleaved", inv_freq=inv_freq)
    where, (x, g) = grid(*sizes, like=TORCH), (random(2, *sizes, 8 * axes, seed=seed) for seed in (0, 1))
    ours = rope(x, positions=where[0] if axes == 1 else where.reshape(axes, 1, *sizes), seq_dim=1)
    expected = lucid_apply(theirs.get_axial_freqs(*sizes), x)
    atol = off_by(rope, where, 1)
    assert_same(ours, expected, rotated(atol))
    for y in (ours, expected):
        (y * g).sum().backward()
    assert_same(freqs.grad, theirs.freqs.grad, gradient_off_by(atol, 2 * where.numel(), 2 * where.sum()))


def with_xpos(scaling=None, head_dim=16, base=10_000.0, **options):
    """An embedding of 16 channels, and how far a peer may be off at positions below 50.

    The least zeta is 2 / 7, so that nothing grows by more than (7 / 2) ** (25 / 64) < 1.7; its power has 4 roundings.
    """
    options |= {"head_dim": head_dim, "rotary_dim": 16, "layout": "interleaved"}
    rope = RotaryEmbedding(base=base, scaling=scaling, **options)
    return rope, 1.7 * rotated(off_by(rope, torch.arange(50), 5) + 4 * 2.0**-24)


def scores(q, k):
    return torch.einsum("bhqd,bhkd->bhqk", q, k)


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_xpos(factor):
    theirs = LucidRotaryEmbedding(dim=16, use_xpos=True, xpos_scale_base=64, interpolate_factor=factor)
    q, k = random(2, 3, 50, 16), random(2, 3, 50, 16, seed=1)
    expected = theirs.rotate_queries_and_keys(q, k)
    # Their power grows with interpolated positions, around half a length that is not interpolated.
    scaling, xpos = LinearScaling(factor=factor), XPos(scale_base=64 * factor, centre=int(25 * factor))
    rope, atol = with_xpos(scaling, xpos=xpos)
    assert_same(rope(q, k, seq_dim=2), expected, atol)
    fixed, _ = with_xpos(scaling, xpos=XPos(scale_base=64 * factor))
    # Sums of 16 products, of numbers up to 1.7 * 4.3 on their side; ours grow and shrink by (7 / 2) ** (50 / 64) < 2.7.
    assert_same(scores(*fixed(q, k, seq_dim=2)), scores(*expected), 16 * 2 * 2.7 * 4.3 * 2 * atol)


SCALINGS = [
    ({"interpolation_factor": 4.0}, LinearScaling(factor=4.0)),
    ({"base_rescale_factor": 8.0}, NTKScaling(factor=8.0)),
]


@pytest.mark.parametrize("options, scaling", SCALINGS)
@pytest.mark.parametrize("xpos", [None, XPos(scale_base=64, centre=25)])
def test_x_transformers(options, scaling, xpos):
    theirs = x_transformers.RotaryEmbedding(16, base=500.0, use_xpos=xpos is not None, scale_base=64, **options)
    angles, scale = theirs.forward_from_seq_len(50)
    q, k = random(2, 3, 50, 20), random(2, 3, 50, 20, seed=1)
    rope, atol = with_xpos(scaling, head_dim=20, base=500.0, xpos=xpos)
    for ours, x, power in zip(rope(q, k, seq_dim=2), (q, k), (scale, scale**-1), strict=True):
        assert_same(ours, x_transformers.apply_rotary_pos_emb(x, angles, power), atol)


# torchtune


@pytest.mark.parametrize("packed", [False, True])
def test_scaled_rope_of_torchtune(packed):
    module = file_of_torchtune("models", "llama3_1", "_position_embeddings.py")
    theirs = module.Llama3ScaledRoPE(64, max_seq_len=512, base=500_000, scale_factor=32, old_context_len=256)
    factors = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling = Llama3Scaling(**factors, original_max_position_embeddings=256)
    rope = RotaryEmbedding(head_dim=64, layout="interleaved", base=500_000.0, scaling=scaling)
    where = torch.randint(512, (2, 9), generator=torch.Generator().manual_seed(2)) if packed else torch.arange(9)
    x = random(2, 9, 3, 64)
    # A smoothed frequency has five roundings more, in each of two parts.
    expected = theirs(x, input_pos=where if packed else None)
    assert_same(rope(x, positions=where, seq_dim=1), expected, rotated(off_by(rope, where, 4 + 5)))


@pytest.mark.parametrize("append_cls_token", [True, False])
def test_vision_rope_of_torchtune(append_cls_token):
    module = file_of_torchtune("modules", "position_embeddings.py")
    options = {"patch_size": 4, "tile_size": 20, "max_num_tiles": 3, "dim": 8, "base": 500}
    theirs = module.VisionRotaryPositionalEmbeddings(**options, append_cls_token=append_cls_token)
    rope = axial((8, 8), base=500.0)
    patches = grid(5, 5, start=1, axes=(1, 0), like=TORCH)
    where = torch.cat([join(patches, 1) if append_cls_token else join(1, patches)] * 3, dim=-1)
    x = random(2, 3 * 26, 2, 16)
    assert_same(rope(x, positions=where, seq_dim=1), theirs(x), rotated(off_by(rope, where)))


# diffusers


TEXT_AND_IMAGE = join(5, grid(1, H, W, start=(0, 400, 9)), like=TORCH)
TEXT_AND_VIDEO = join(grid(6, start=7, axes=(0, 0, 0)), grid(T, H, W, start=(13, 400, 2)), like=TORCH)
FOUR_AXES = join(grid(1, 1, 1, 5), grid(1, H, W, 1, start=(10, 400, 9, 0)), like=TORCH)
INTERLEAVED_SECTIONS = RotaryEmbedding(
    head_dim=128, layout="half", base=5e6, sections=Sections((24, 20, 20), order="interleaved")
)


def of_diffusers(model, name):
    """A class or function of a model of diffusers."""
    return getattr(import_module(f"diffusers.models.transformers.transformer_{model}"), name)


def video():
    """Latents of T x H x W patches."""
    return torch.zeros(1, 1, T, 2 * H, 2 * W)


def by_real(cos, sin, neighbours=True):
    """Their full tables as half of them, and how they turn x of batch seq heads dim."""
    cos, sin = cos.reshape(-1, cos.shape[-1]), sin.reshape(-1, sin.shape[-1])

    def rotation(x):
        return embeddings.apply_rotary_emb(x, (cos, sin), use_real_unbind_dim=-1 if neighbours else -2, sequence_dim=1)

    half = slice(None, None, 2) if neighbours else slice(cos.shape[-1] // 2)
    return sin[:, half], cos[:, half], rotation


def by_complex(turns):
    return turns.imag, turns.real, lambda x: embeddings.apply_rotary_emb(x, turns[None], use_real=False)


def by_matrices(matrices, apply):
    """Of matrices "seq pairs 2 2"."""
    return matrices[..., 1, 0], matrices[..., 0, 0], apply


def by_positions(model, name, base, dims, where):
    """Of a class that takes positions."""
    return axial(dims, base=float(base)), where, *by_real(*of_diffusers(model, name)(base, [*dims])(where.T))


def by_size(model, name, dims, base, *arguments):
    """Of a class that takes a video, or an image where there are two axes."""
    pixels = video() if len(dims) == 3 else video()[:, :, 0]
    theirs = of_diffusers(model, name)(*arguments)(pixels)
    return axial(dims, base=base), grid(*(T, H, W)[-len(dims) :], like=TORCH), *by_real(*theirs)


def hidream():
    where = join(grid(1, H, W, start=(2, 400, 9)), 5, like=TORCH)
    matrices = of_diffusers("hidream_image", "HiDreamImageEmbedND")(10_000, (64, 32, 32))(where.T[None])
    apply = of_diffusers("hidream_image", "apply_rope")
    return axial((64, 32, 32)), where, *by_matrices(matrices[0, :, 0], lambda x: apply(x, x, matrices)[0])


def prx():
    where = grid(H, W, start=(400, 9), like=TORCH)
    matrices = of_diffusers("prx", "PRXEmbedND")(64, 10_000, [32, 32])(where.T[None])
    apply = of_diffusers("prx", "apply_rope")
    rotation = lambda x: apply(x.transpose(1, 2), matrices).transpose(1, 2)  # noqa: E731
    return axial((32, 32)), where, *by_matrices(matrices[0, 0], rotation)


def kandinsky_5():
    theirs = of_diffusers("kandinsky", "Kandinsky5RoPE3D")((16, 24, 24))
    matrices = theirs((1, T, H, W), [torch.arange(n) + 9 for n in (T, H, W)], (1.0, 2.0, 3.16))
    matrices = matrices.reshape(T * H * W, 32, 2, 2)
    where = grid(T, H, W, start=(9, 9 / 2.0, 9 / 3.16), step=(1, 1 / 2.0, 1 / 3.16), like=TORCH)

    def multiply(x):
        return (matrices[:, None] * x.unflatten(-1, (-1, 1, 2))).sum(-1).flatten(-2)

    return axial((16, 24, 24)), where, *by_matrices(matrices, multiply)


def framepack():
    frames = torch.tensor([0, 400, 7])
    theirs = of_diffusers("hunyuan_video_framepack", "HunyuanVideoFramepackRotaryPosEmbed")(2, 1, [*LONG])
    return axial(LONG, base=256.0), grid(frames, H, W), *by_real(*theirs(frames, 2 * H, 2 * W, CPU))


def qwen_image(name, frames, *shapes):
    """Centred images and then text, behind the largest of them."""
    theirs = of_diffusers("qwenimage", name)(10_000, [*LONG], scale_rope=True)
    images, text = theirs([[(1, *shape) for shape in shapes]], device=CPU, max_txt_seq_len=6)
    parts = [grid(1, h, w, start=(frame, h // 2 - h, w // 2 - w)) for frame, (h, w) in zip(frames, shapes)]
    where = join(*parts, grid(6, start=max(map(max, shapes)) // 2, axes=(0, 0, 0)), like=TORCH)
    apply, turns = of_diffusers("qwenimage", "apply_rotary_emb_qwen"), torch.cat([images, text])
    return axial(LONG), where, turns.imag, turns.real, lambda x: apply(x, turns, use_real=False)


def cogvideox():
    box = ((3, 0), (27, 45))
    theirs = embeddings.get_3d_rotary_pos_embed(64, box, (H, W), T)
    where = grid(T, H, W, start=(0, 3, 0), last=(T - 1, 27 * (H - 1) / H, 45 * (W - 1) / W), like=TORCH)
    return axial((16, 24, 24)), where, *by_real(*theirs)


def cogvideox_1_5():
    theirs = embeddings.get_3d_rotary_pos_embed(64, None, (H, W), T, grid_type="slice", max_size=(60, 90))
    return axial((16, 24, 24)), grid(T, H, W, like=TORCH), *by_real(*theirs)


def hunyuan_dit():
    """Columns come before rows."""
    theirs = embeddings.get_2d_rotary_pos_embed(32, ((2, 4), (30, 60)), (H, W))
    where = grid(H, W, start=(2, 4), last=(30 * (H - 1) / H, 60 * (W - 1) / W), axes=(1, 0), like=TORCH)
    return axial((16, 16)), where, *by_real(*theirs)


def lumina_next():
    """Both axes take turns."""
    turns = embeddings.get_2d_rotary_pos_embed_lumina(32, H, W, linear_factor=2.0, ntk_factor=3.0).flatten(0, 1)
    scaling, sections = LinearScaling(factor=2.0), Sections((8, 8), order="axial_interleaved")
    rope = RotaryEmbedding(head_dim=32, layout="interleaved", base=30_000.0, scaling=scaling, sections=sections)
    return rope, grid(H, W, like=TORCH), *by_complex(turns)


def lumina_2():
    theirs = of_diffusers("lumina2", "Lumina2RotaryPosEmbed")(10_000, (32, 32, 32))
    turns = theirs(video()[:, :, 0], torch.ones(1, 6, dtype=torch.int32))[3][0]
    where = join(grid(6, 1, 1), grid(1, H, W, start=(6, 0, 0)), like=TORCH)
    return axial((32, 32, 32)), where, *by_complex(turns.to(torch.complex64))


def z_image():
    where = join(grid(6, 1, 1, start=(1, 0, 0)), grid(1, H, W, start=(7, 90, 9)), like=TORCH)
    theirs = of_diffusers("z_image", "RopeEmbedder")(256.0, (32, 48, 48), (64, 128, 128))
    return axial((32, 48, 48), base=256.0), where, *by_complex(theirs(where.T))


def cogview_4():
    """Halves, and rows and columns stretched over 256 integers."""
    theirs = of_diffusers("cogview4", "CogView4RotaryPosEmbed")(64, 2, (256, 200))
    where = grid([256 * row // H for row in range(H)], [200 * column // W for column in range(W)], like=TORCH)
    return axial((32, 32), "half"), where, *by_real(*theirs(video()[:, :, 0]), neighbours=False)


def cosmos():
    """Halves, a base for each axis, and time in units of 24 frames per second."""
    theirs = of_diffusers("cosmos", "CosmosRotaryPosEmbed")(128, rope_scale=(2.0, 1.0, 3.0))
    rows = [NTKScaling(factor=s).frequencies(10_000.0, dim) for s, dim in ((2.0, 44), (1.0, 42), (3.0, 42))]
    rope = RotaryEmbedding(head_dim=128, layout="half", inv_freq=block_diagonal(*rows))
    where = grid(T, H, W, step=(24 / 30, 1, 1), like=TORCH)
    return rope, where, *by_real(*theirs(video(), fps=30), neighbours=False)


def cosmos_3():
    theirs = of_diffusers("cosmos3", "Cosmos3VLTextRotaryEmbedding")(128, 5e6, (24, 20, 20))
    cos, sin = theirs(TEXT_AND_VIDEO[:, None], CPU, torch.float32)
    return INTERLEAVED_SECTIONS, TEXT_AND_VIDEO, *by_real(cos, sin, neighbours=False)


def ideogram_4():
    theirs = of_diffusers("ideogram4", "Ideogram4MRoPE")(128, 5_000_000, (24, 20, 20))
    return INTERLEAVED_SECTIONS, TEXT_AND_VIDEO, *by_real(*theirs(TEXT_AND_VIDEO.T[None]), neighbours=False)


def minimax_h3():
    """Of 128 channels, 96 turn."""
    where = grid(T, H, W, start=(13, 400, 2), like=TORCH)
    cos, sin = of_diffusers("minimax_h3", "MiniMaxH3RotaryPosEmbed")()(where.T)
    sections = Sections((16, 16, 16), order="axial")
    rope = RotaryEmbedding(head_dim=128, rotary_dim=96, layout="half", base=10_000.0, sections=sections)
    sin, cos, rotation = by_real(cos, sin, neighbours=False)
    return rope, where, sin, cos, lambda x: torch.cat([rotation(x[..., :96]), x[..., 96:]], dim=-1)


def allegro():
    """Three blocks of halves."""
    *tables, _, _, _ = embeddings.get_3d_rotary_pos_embed_allegro(48, ((0, 0), (H, W)), (H, W), T, (2.0, 1.5, 1.25))
    cells = grid(T, H, W, like=TORCH)
    cos, sin = (torch.cat([t[kind][at, :8] for t, at in zip(tables, cells)], dim=-1) for kind in (0, 1))

    def rotation(x):
        at = [axis.expand(x.shape[0], -1).long() for axis in cells]
        return embeddings.apply_rotary_emb_allegro(x.transpose(1, 2), tables, at).transpose(1, 2)

    where = grid(T, H, W, step=(1 / 2.0, 1 / 1.5, 1 / 1.25), like=TORCH)
    return axial((16, 16, 16), "half", blocks=3), where, sin, cos, rotation


# How many roundings tables have: none of float64 angles, one where those are rounded, two more for real positions.
MODELS = {
    "flux": (0, by_positions, "flux", "FluxPosEmbed", 10_000, LONG, TEXT_AND_IMAGE),
    "flux_2": (0, by_positions, "flux2", "Flux2PosEmbed", 2000, (32, 32, 32, 32), FOUR_AXES),
    "krea_2": (0, by_positions, "krea2", "Krea2RotaryPosEmbed", 1000, (32, 48, 48), TEXT_AND_IMAGE),
    "wan": (0, by_size, "wan", "WanRotaryPosEmbed", (44, 42, 42), 1e4, 128, (1, 2, 2), 1024),
    "hunyuan_video": (4, by_size, "hunyuan_video", "HunyuanVideoRotaryPosEmbed", LONG, 256.0, 2, 1, [*LONG]),
    "hunyuan_image": (4, by_size, "hunyuanimage", "HunyuanImageRotaryPosEmbed", (64, 64), 256.0, (2, 2), (64, 64)),
    "qwen_image_edit": (4, qwen_image, "QwenEmbedRope", range(3), (H, W), (4, 2), (6, 9)),
    "qwen_image_layered": (4, qwen_image, "QwenEmbedLayer3DRope", (0, 1, -1), (H, W), (H, W), (6, 9)),
    **{each.__name__: (0, each) for each in (hidream, prx, lumina_2)},
    **{each.__name__: (1, each) for each in (z_image,)},
    **{each.__name__: (4, each) for each in (framepack, cogvideox_1_5, cogview_4, cosmos_3, ideogram_4, minimax_h3)},
    **{each.__name__: (5, each) for each in (lumina_next,)},
    **{each.__name__: (6, each) for each in (kandinsky_5, cogvideox, hunyuan_dit, cosmos, allegro)},
}


@pytest.mark.parametrize("name", MODELS)
def test_diffusers(name):
    roundings, model, *arguments = MODELS[name]
    rope, where, sin, cos, rotation = model(*arguments)
    atol, sincos = off_by(rope, where, roundings), rope.sincos(where)
    assert_same(sincos, (sin, cos), atol)
    q, k = random(2, where.shape[-1], 3, rope.head_dim), random(2, where.shape[-1], 1, rope.head_dim, seed=1)
    for x, ours in zip((q, k), rope(q, k, positions=where, seq_dim=1), strict=True):
        assert_same(ours, rotation(x), rotated(atol))
        assert torch.equal(rope.rotate(x, sincos, seq_dim=1), ours)


@pytest.mark.parametrize("freqs_dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("linear, ntk", [(1.0, 1.0), (4.0, 1.0), (2.0, 3.0)])
def test_one_axis_of_diffusers(freqs_dtype, linear, ntk):
    where, x = torch.arange(460, 500), random(2, 3, 40, 16)
    options = {"linear_factor": linear, "ntk_factor": ntk, "freqs_dtype": freqs_dtype}
    for layout in ("half", "interleaved"):
        rope = RotaryEmbedding(head_dim=16, layout=layout, base=500.0 * ntk, scaling=LinearScaling(factor=linear))
        # In float64, only the tables are rounded.
        atol = off_by(rope, where, 5 if freqs_dtype == torch.float32 else 0)
        kind = {"use_real": True, "repeat_interleave_real": layout == "interleaved"}
        tables = embeddings.get_1d_rotary_pos_embed(16, where, 500.0, **kind, **options)
        theirs = embeddings.apply_rotary_emb(x, tables, use_real_unbind_dim=-2 if layout == "half" else -1)
        assert_same(rope(x, positions=where, seq_dim=2), theirs, rotated(atol))
    turns = embeddings.get_1d_rotary_pos_embed(16, where, 500.0, **options)
    assert_same(rope.sincos(where, like=turns.real), (turns.imag, turns.real), atol)


# The axes take turns.
LTX_ON_AXES = np.kron(log_spaced(math.pi / 2, 10_000 * math.pi / 2, 10), np.eye(3))


def ltx_video():
    scale = (8 / 25, 32, 32)
    tables = of_diffusers("ltx", "LTXVideoRotaryPosEmbed")(64)(random(2, T * H * W, 64), T, H, W, scale)
    # Coordinates are between -1 and 1, and rounded twice near 1; the exponent of a frequency of up to 10,000, which
    # float32 rounds twice, counts log(10,000) < 9.3 times; a power and two products are rounded too.
    where = grid(T, H, W, start=-1, step=(2 * scale[0] / 20, 64 / 2048, 64 / 2048), like=TORCH)
    return of_diffusers("ltx", "apply_rotary_emb"), *tables, where, 2 + 2 * 9.3 + 4


# Frequencies are made in float64: what is rounded is they, the product, and coordinates five times near 1.
LTX_2 = 7


def ltx_2(rope_type="interleaved"):
    """Positions of the midpoints of frames and patches."""
    theirs = of_diffusers("ltx2", "LTX2AudioVideoRotaryPosEmbed")(64, rope_type=rope_type, num_attention_heads=2)
    tables = theirs(theirs.prepare_video_coords(2, T, H, W, CPU, fps=25.0))
    seconds = [(max(8 * i - 7, 0) + 8 * i + 1) / 2 / 25 for i in range(T)]
    start, step = (-1, 32 / 2048 - 1, 32 / 2048 - 1), (2 / 20, 64 / 2048, 64 / 2048)
    where = grid(seconds, H, W, start=start, step=step, like=TORCH)
    return of_diffusers("ltx2", f"apply_{rope_type}_rotary_emb"), *tables, where, LTX_2


@pytest.mark.parametrize("model", [ltx_video, ltx_2])
def test_ltx(model):
    """All heads as one vector, and the channels that are too many come first."""
    apply, cos, sin, where, roundings = model()
    rope = RotaryEmbedding(head_dim=64, first_channel=4, layout="interleaved", inv_freq=LTX_ON_AXES)
    x, atol = random(2, T * H * W, 64), off_by(rope, where, roundings)
    assert_same(rope.sincos(where), (sin[0, :, 4::2], cos[0, :, 4::2]), atol)
    assert_same(rope(x, positions=where, seq_dim=1), apply(x, (cos, sin)), rotated(atol))


def test_ltx_2_split():
    """Each head has frequencies of its own, and the first pairs of the first head do not turn."""
    apply, cos, sin, where, _ = ltx_2("split")
    w = np.concatenate([np.zeros((3, 2)), LTX_ON_AXES], axis=1).reshape(3, 2, 16)
    rope = RotaryEmbedding(head_dim=32, layout="half", inv_freq=w)
    x, atol = random(2, T * H * W, 64), off_by(rope, where, LTX_2)
    assert_same(rope.sincos(where).sin, sin[0].transpose(0, 1), atol)
    ours = rope(x.unflatten(-1, (2, 32)), positions=where, seq_dim=1, heads_dim=2)
    assert_same(ours.flatten(-2), apply(x, (cos, sin)), rotated(atol))


# It asks a CPU for autocasting to float32, which has none to offer and warns.
@pytest.mark.filterwarnings("ignore:In CPU autocast, but the target dtype is not supported")
def test_mochi():
    """Learned frequencies on three axes, for each head its own."""
    heads, pairs = 4, 8
    learned = (0.3 * random(3, heads, pairs, seed=5)).requires_grad_()
    mine = learned.detach().clone().requires_grad_()
    theirs = of_diffusers("mochi", "MochiRoPE")(base_height=12, base_width=9)
    cos, sin = theirs(learned, T, H, W, dtype=torch.float32)
    s = math.sqrt(12 * 9 / (H * W))
    where = grid(T, H, W, start=(0, s * (1 - H) / 2, s * (1 - W) / 2), step=(1, s, s), like=TORCH)
    rope = RotaryEmbedding(head_dim=2 * pairs, layout="interleaved", inv_freq=mine)
    # Edges and midpoints of cells are rounded six times, an edge up to 7 / 6 of a midpoint; three products, two sums.
    atol = off_by(rope, where, 6 * 7 / 6 + 5)
    assert_same(rope.sincos(where), (sin, cos), atol)
    x, g = random(2, T * H * W, heads, 2 * pairs), random(2, T * H * W, heads, 2 * pairs, seed=1)
    even, odd = x[..., ::2], x[..., 1::2]
    expected = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
    ours = rope(x, positions=where, seq_dim=1, heads_dim=2)
    assert_same(ours, expected, rotated(atol))
    for y in (ours, expected):
        (y * g).sum().backward()
    weight = 2 * where.abs().sum(dim=1).max()
    assert_same(mine.grad, learned.grad, gradient_off_by(atol, 2 * T * H * W, weight))
