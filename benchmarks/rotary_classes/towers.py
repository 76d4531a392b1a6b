"""Rotary classes of images, videos and memories. Their positions are cells of grids."""

from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F

from rope_xp import positions

from .observe import Observation, applied, head_width, observed

GRIDS = [(2, 6, 50), (1, 126, 8)]


def require_same(found, cells, tolerance=0.0):
    """Check that transformers and `rope_xp.positions` compute the same positions."""
    if not np.abs(np.asarray(found) - cells).max() <= tolerance:
        raise AssertionError("positions of transformers are not those of rope_xp.positions")


def tower(run):
    """Towers like that of Qwen, for a video and an image of another shape. Positions are (tokens, axes)."""
    from transformers.vision_utils import get_vision_position_ids

    config, subject = run.config, run.subject
    merge = subject.merge or getattr(config, "spatial_merge_size", 1)
    ids = get_vision_position_ids(torch.tensor(GRIDS), merge, include_temporal=subject.axes == 3)
    axes = None if subject.axes == 3 else (1, 2)
    cells = positions.join(*(positions.grid(*thw, block=(1, merge, merge), axes=axes) for thw in GRIDS))
    if subject.flip:  # the model flips them to (w, h) and counts from 1, before it calls its rotary module
        ids = ids.flip(-1) + 1
        cells = positions.join(*(positions.grid(*thw, start=1, axes=(2, 1)) for thw in GRIDS))
    require_same(ids.T, cells)
    tables = run.cls(config)(torch.zeros(1), ids)
    function, batched = run.module.apply_rotary_pos_emb_vision, "MiniMax" in run.cls.__name__
    return observed(cells, head_width(run), tables, function, tokens_first=True, batched=batched)


def pixtral(run):
    """Two images, one after the other. The odd pairs follow the column."""
    cells = positions.join(positions.grid(3, 5), positions.grid(40, 2))
    tables = run.cls(run.config)(torch.zeros(1), torch.tensor(cells.T))
    return observed(cells, head_width(run), tables, run.module.apply_rotary_pos_emb, unsqueeze_dim=0)


def gemma4_vision(run):
    cells = positions.join(positions.grid(3, 25, axes=(1, 0)), total=80, padding=-1)
    ids = torch.tensor(cells.T)[None]
    tables = run.cls(run.config)(torch.zeros(1), ids)
    function = run.module.apply_multidimensional_rope
    return observed(cells, head_width(run), tables, function, ids, blocks=2, tokens_first=True)


def llama4_vision(run):
    table = run.cls(run.config)(torch.zeros(1))  # (tokens + 1, 1, pairs), complex
    side = run.config.image_size // run.config.patch_size
    cells = positions.join(positions.grid(side, side, start=1, axes=(1, 0)), 1)
    rotate = applied(run.module.vision_apply_rotary_emb, table, tokens_first=True)
    return observed(cells, head_width(run), (table.real, table.imag), None, rotate=rotate)


def dinov3(run):
    """The module takes pixels. Class and register tokens come first and are not rotated."""
    prefix, high, wide = 5, 3, 5
    pixels = torch.zeros(1, 3, high * run.config.patch_size, wide * run.config.patch_size)
    tables = run.cls(run.config).eval()(pixels)
    rotate = applied(run.module.apply_rotary_pos_emb, *tables)
    cells = positions.join(prefix, positions.normalized(high, wide))
    whole = [F.pad(table, (0, 0, prefix, 0), value=value) for table, value in zip(tables, (1.0, 0.0))]
    return observed(cells, head_width(run), whole, None, rotate=rotate)


def loftr(run):
    """The module takes a feature map. All heads are rotated as one."""
    stride, config = run.config.q_aggregation_stride, run.config
    tables = [y.flatten(1, 2) for y in run.cls(config)(torch.zeros(1, 8, 3 * stride, 5 * stride))]
    function, cells = run.module.apply_rotary_pos_emb, positions.grid(3, 5, start=1)
    return observed(cells, config.hidden_size, tables, function, tokens_first=True, unsqueeze_dim=2)


def vjepa2(run):
    layer = run.cls(run.config, run.config.hidden_size, run.config.num_attention_heads)
    side = layer.grid_size
    ids = [p.float() for p in layer.get_position_ids(torch.zeros(1, 2 * side * side, 1))]
    cells = positions.grid(2, side, side)
    require_same(torch.stack(ids), cells)
    rotate = applied(layer.apply_rotary_embeddings, [p.view(1, 1, -1) for p in ids])
    return Observation(cells, layer.attention_head_size, rotate)


def attention(run, inputs, keys, make=None, **options):
    """Run an attention class without its projections, and return the queries and keys that its kernel gets."""
    run.config._attn_implementation = "eager"
    layer = run.cls(run.config, **(make or {}))
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        setattr(layer, name, torch.nn.Identity())
    if keys is not None:
        layer.k_proj.register_forward_hook(lambda *_: keys)
    caught = []

    def kernel(_, query, key, value, *args, **more):
        caught.extend((query[0], key[0]))
        return query.transpose(1, 2), None

    with patch.object(run.module, "eager_attention_forward", kernel):
        layer(*inputs, **options)
    return tuple(caught)


def flat(x):
    """(heads, seq, dim) as hidden states (1, 1, seq, heads * dim)."""
    return x.transpose(0, 1).reshape(1, 1, x.shape[1], -1)


def memory_tables(run):
    """Positions, head width and tables of the memory attention of SAM 2 and its successors, on a grid of 3 x 5."""
    config, classes = run.config, vars(run.module).items()
    stack = next(c for name, c in classes if name.endswith("MemoryAttention"))
    rotary = next(c for name, c in classes if name.endswith("VideoVisionRotaryEmbedding"))
    config.memory_attention_rope_feat_sizes = [5, 3]  # set here, because SAM 3's tracker replaces the argument
    ids, cells = stack.precompute_positions(config), positions.grid(3, 5, axes=(1, 0))
    require_same(ids.T, cells)
    inner = config.memory_attention_hidden_size // config.memory_attention_downsample_rate
    return cells, inner // config.memory_attention_num_attention_heads, rotary(config)(torch.zeros(1), ids), rotary


def memory(run):
    name = "apply_rotary_pos_emb_2d"
    function = getattr(run.module, name, None) or getattr(run.module, f"{name}_self_attn")
    return observed(*memory_tables(run)[:3], function)


def memory_attention(run):
    """Keys of several frames, and then of object pointers, which are not rotated.

    Keys of EdgeTAM's cross-attention: three times two latents and a grid, then four pointers. Only grids are rotated.
    """
    cells, dim, tables, rotary = memory_tables(run)
    heads, name = run.config.memory_attention_num_attention_heads, run.cls.__name__
    plain = {"position_embeddings": tables}
    options = {**plain, "make": {"rope_k_repeat": True}, "num_k_exclude_rope": 3}
    many = positions.join(cells, cells, 3)
    if "Cross" in name:
        small = positions.grid(2, 4, axes=(1, 0))
        many = positions.join(2, small, 2, small, 2, small, 4)
        options = {**plain, "make": {"kv_in_dim": dim * heads}, "num_k_exclude_rope": 4, "rope_k_repeat": 3}
        options["position_embeddings_k"] = rotary(run.config)(torch.zeros(1), torch.tensor(small.T))

    def both(q, k, *_):
        return attention(run, (flat(q), flat(k), flat(k)), flat(k), **plain)

    def queries(x, *_):
        k = flat(torch.zeros(heads, many.shape[-1], dim))
        return attention(run, (flat(x), k, k), None, **options)[:1]

    def keys(x, *_):
        q = flat(torch.zeros(heads, cells.shape[-1], dim))
        return attention(run, (q, flat(x), flat(x)), None, **options)[1:]

    first = observed(cells, dim, tables, None, rotate=queries if "Cross" in name else both, heads=heads)
    return first if "Self" in name else [first, Observation(many, dim, keys, heads=heads)]


def sam3(run):
    """The tower and its attention class, whose queries and keys are cells of a grid."""
    config = run.config
    ids = run.module.Sam3ViTLayer.precompute_positions(config, 0)
    wide, high = (side // config.patch_size for side in config.image_size)  # transformers reads image_size as (w, h)
    cells = positions.grid(high, wide, step=config.window_size / wide, axes=(1, 0))
    require_same(ids.numpy().T, cells, 2.0**-20)  # the product with a scale, rounded once or twice
    tables = run.module.Sam3ViTRotaryEmbedding(config)(torch.zeros(1), ids)

    def rotate(q, k, *_):
        hidden, keys = (x.transpose(0, 1).reshape(1, high, wide, -1) for x in (q, k))
        return attention(run, (hidden,), keys, position_embeddings=tables)

    more = {"rotate": rotate, "heads": config.num_attention_heads} if run.cls.__name__.endswith("Attention") else {}
    return observed(cells, head_width(run), tables, run.module.apply_rotary_pos_emb_2d, **more)
