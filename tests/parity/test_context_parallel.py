"""The tokens of a rank: those of Megatron-LM's own functions, and what TransformerEngine's gave (tests/goldens)."""

import json
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from peers import off_by, random, rotated

from rope_xp import RotaryEmbedding
from rope_xp.positions import context_parallel

CASES = json.loads((Path(__file__).parents[1] / "goldens/context_parallel.json").read_text())["cases"]


class Group:
    """All that Megatron-LM asks of a process group."""

    def __init__(self, rank, size):
        self.rank, self.size = lambda: rank, lambda: size


@pytest.fixture(scope="module")
def megatron():
    """Its modules. They warn that TransformerEngine and Apex are not installed."""
    with warnings.catch_warnings(action="ignore"):
        from megatron.core import utils
        from megatron.core.models.common.embeddings import rope_utils
    return SimpleNamespace(batch=utils.get_batch_on_this_cp_rank, rotate=rope_utils.apply_rotary_pos_emb)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['size']} ranks, {case['lengths']}")
def test_transformer_engine(case):
    ends, size = case["cu_seqlens"], case["size"]
    row = torch.arange(ends[-1])
    for rank, truth in enumerate(case["ranks"]):
        for given in (ends, torch.tensor(ends, dtype=torch.int32)):
            where = context_parallel(ends[-1], rank, size, zigzag=True, cu_seqlens=given)
            assert where.tolist() == truth["positions"]
            tokens = context_parallel(row, rank, size, zigzag=True, cu_seqlens=given)
            assert tokens.tolist() == truth["indices"]


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['size']} ranks, {case['lengths']}")
def test_megatron_rotates_packed_sequences(megatron, case, layout):
    """By a table of the longest sequence, or of all tokens of the row, whose positions may be anything."""
    rope = RotaryEmbedding(head_dim=16, layout=layout, base=100.0)
    options = {"rotary_interleaved": layout == "interleaved", "multi_latent_attention": False}
    config = SimpleNamespace(apply_rope_fusion=False, **options)
    ends, size = torch.tensor(case["cu_seqlens"], dtype=torch.int32), case["size"]
    total, longest = int(ends[-1]), int(ends.diff().max())
    anywhere = torch.from_numpy(np.random.default_rng(0).integers(0, 50, total))
    for rank in range(size):
        x, options = random(total // size, 3, 16, seed=rank), {"zigzag": True, "cu_seqlens": ends}
        for table, seq in ((torch.arange(longest), total), (anywhere, anywhere)):
            angles = torch.outer(table.float(), torch.tensor(rope.inv_freq, dtype=torch.float32))
            angles = angles.repeat_interleave(2, dim=1) if layout == "interleaved" else angles.repeat(1, 2)
            theirs = megatron.rotate(x, angles[:, None, None], config, cu_seqlens=ends, cp_group=Group(rank, size))
            ours = rope(x, positions=context_parallel(seq, rank, size, **options), seq_dim=0)
            torch.testing.assert_close(ours, theirs, rtol=0, atol=rotated(off_by(rope, table)))


def test_megatron_splits_a_batch(megatron, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for size in (2, 3, 4):
        batch = {"tokens": torch.arange(48).reshape(2, 24), "loss_mask": random(2, 24), "labels": None}
        for rank in range(size):
            parts = megatron.batch(dict(batch), Group(rank, size))
            for name in ("tokens", "loss_mask"):
                assert torch.equal(context_parallel(batch[name], rank, size, zigzag=True), parts[name])
            where = context_parallel(24, rank, size, zigzag=True)
            assert torch.equal(batch["tokens"][:, where], parts["tokens"])
