"""Rotary classes of speech, sound and molecules, and of older text models."""

import types
from dataclasses import replace

import numpy as np
import torch

from .observe import SHORT, applied, head_width, observed, text


def counted(run):
    """Speech encoders. Positions follow from the length; hidden states are rotated before the projections."""
    n, hidden = 300, run.config.hidden_size
    dim = hidden // (getattr(run.config, "speech_encoder_attention_heads", None) or run.config.num_attention_heads)
    table = run.cls(run.config)(torch.zeros(1, n, hidden))  # (2, seq, 1, 1, dim)
    owner = next(c for c in vars(run.module).values() if hasattr(c, "_apply_rotary_embedding"))

    def rotate(x, *_):
        me = types.SimpleNamespace(num_heads=x.shape[0], head_size=dim)
        y = owner._apply_rotary_embedding(me, x.transpose(0, 1).reshape(1, n, -1), table)
        return (y.view(n, -1, dim).transpose(0, 1),)

    return observed(np.arange(n), dim, table, None, rotate=rotate)


def clvp(run):
    """The module returns angles of the first channels. Queries, keys and values are rotated."""
    n = 300
    angles = run.cls(run.config)(torch.zeros(1, n, 1))[0]
    function, tables, crop = run.module.apply_rotary_pos_emb, (angles.cos(), angles.sin()), angles.shape[-1]
    return observed(np.arange(n), head_width(run), tables, function, torch.arange(n)[None], crop=crop)


def dit(run):
    """The model reorders channels before it rotates them, so that the channels of a pair are neighbours."""
    found, reorder = text(run), run.module.deinterleave_head_dim
    tables = run.cls(run.config)(torch.zeros(1), torch.tensor(found.positions)[None])
    rotate = applied(lambda q, k: run.module.apply_rotary_pos_emb(reorder(q), reorder(k), *tables))
    return replace(found, rotate=rotate, long=None)


def esmfold2(run):
    """Positions are the coordinates of atoms, and a number for each atom."""
    random = np.random.default_rng(1)
    xyz, uid = random.normal(size=(3, 13)).astype(np.float32) * 30, random.integers(0, 512, 13)
    tables = run.cls(run.config)(torch.tensor(xyz.T)[None], torch.tensor(uid)[None], torch.float32)
    ours = np.concatenate([xyz, uid[None].astype(np.float32)])
    return observed(ours, head_width(run), tables, run.module.apply_rotary_pos_emb)


def musicflamingo(run):
    """Positions are products of the time with the window and with the frame."""
    frames, longest = 9, run.config.rope_parameters["rope_theta"]
    step = run.config.audio_frame_step * 4
    seconds = (2 * frames + np.arange(frames)) * step  # the third window
    tables = run.cls(run.config)(torch.tensor(seconds, dtype=torch.float32)[None], frames)
    window = np.round(seconds[0] / (step * frames)) / longest
    angle = -2 * np.pi * seconds
    ours = np.stack([angle * window, angle * 2 * np.pi * np.arange(frames) / longest])
    return observed(ours, head_width(run), tables, run.module.apply_rotary_time_emb, batched=False)


def roformer(run):
    """One table holds the sines, then the cosines."""
    n, dim = 300, head_width(run)
    module = run.cls(run.config.max_position_embeddings, dim)
    module.weight = torch.nn.Parameter(module.create_weight())
    table = module(torch.Size((1, n))).detach()
    function = run.module.RoFormerSelfAttention.apply_rotary_position_embeddings
    rotate = applied(lambda q, k: function(table[None, None], q, k))
    return observed(np.arange(n), dim, table.chunk(2, -1)[::-1], None, rotate=rotate)


def gptj(run):
    """The attention class keeps one table in a buffer: the sines, then the cosines."""
    config = run.config
    rows = run.module.create_sinusoidal_positions(1024, config.rotary_dim or config.n_embd)
    sin, cos = rows[torch.tensor(SHORT)].chunk(2, -1)
    options = {"tokens_first": True, "crop": config.rotary_dim}
    rotate = applied(run.module.apply_rotary_pos_emb, sin[None], cos[None], **options)
    return observed(SHORT, config.n_embd // config.n_head, (cos, sin), None, rotate=rotate)
