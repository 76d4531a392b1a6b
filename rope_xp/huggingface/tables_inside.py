"""Attention that holds a table of sines and cosines itself: GPT-J and CodeGen."""

# pyright: reportMissingImports=false

from typing import Any

import torch

from rope_xp.config import from_config
from rope_xp.huggingface.methods import TOLERANCE, remade, turned
from rope_xp.huggingface.rotary import SHORT, Form, named
from rope_xp.huggingface.rotary import TOLERANCE as OF_TABLES
from rope_xp.kernels.turn import Turn

ATTENTION = ("GPTJAttention", "CodeGenAttention")
APPLY = "apply_rotary_pos_emb"


def has_tables_inside(module: Any) -> bool:
    return any(cls.__name__ in ATTENTION for cls in type(module).__mro__)


def forward_of(who: str, module: Any, config: Any) -> Any:
    """The method `forward`, of the same code, with exact tables of the positions that it is called with.

    What it looks up in its own table is not read; as upstream, it has no rows beyond its longest sequence.
    """
    original: Any = type(module).forward
    theirs = original.__globals__[APPLY]
    rope: Any = from_config(config, compat="transformers")
    form = Form("once", False, Turn(rope.layout, rope.layout), False, rope.pairs)
    error = max(_of_tables(module, config, rope) / OF_TABLES, _of_apply(theirs, form) / TOLERANCE)
    if error > 1:
        raise ValueError(
            f"{who}: every part must be one that can be patched; got {named(module)}, which differs from its config "
            f"by {error:.2g} times what roundings do"
        )

    def forward(self, hidden_states, layer_past=None, attention_mask=None, position_ids=None, *args, **kwargs):
        sin, cos = (table[:, :, None] for table in rope.sincos(position_ids, like=hidden_states))
        found = {APPLY: lambda tensor, *_: turned([tensor], cos, sin, form)[0]}
        method = remade(original, found, original.__closure__ or ())
        return method(self, hidden_states, layer_past, attention_mask, position_ids, *args, **kwargs)

    forward.replaces = original
    return forward


def _of_tables(module: Any, config: Any, rope: Any) -> float:
    """The largest difference of the rows that both have below `max(SHORT)`; sines come first."""
    table = module.embed_positions
    if table.dtype.itemsize < 4:  # rounded by a cast
        table = type(module)(config, layer_idx=0).embed_positions
    rows = torch.tensor([row for row in SHORT if row < len(table)])
    return float((torch.cat(rope.sincos(rows, like=torch.zeros(1)), -1) - table.cpu()[rows]).abs().max())


@torch.no_grad()
def _of_apply(theirs: Any, form: Form) -> float:
    random = torch.Generator().manual_seed(0)
    angles = torch.rand(2, 5, form.pairs, generator=random) * 6
    x = torch.rand(2, 5, 3, 2 * form.pairs, generator=random) * 1.4 - 0.7
    sin, cos = angles.sin(), angles.cos()
    own = turned([x], cos[:, :, None], sin[:, :, None], form)[0]
    return float((own - theirs(x, sin, cos)).abs().max())
