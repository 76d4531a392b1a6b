"""DTensors in the last of four processes, without the others: each shard is that of the result for whole arrays."""

import itertools
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from rope_xp import RotaryEmbedding
from rope_xp.positions import from_mask

POSITIONS = torch.arange(70).reshape(2, 5, 7)  # "axes batch seq"
FREQUENCIES = torch.linspace(1.0, 0.01, 24).reshape(2, 3, 4)  # "axes heads pairs"
PLACEMENTS = [Replicate(), Shard(0), Shard(1), Shard(2)]


@pytest.fixture
def mesh():
    """Two by two processes, of which this is the last; what the others send never arrives."""
    dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=4)
    yield init_device_mesh("cpu", (2, 2))
    dist.destroy_process_group()


def shard_of(x, placements):
    """The part of `x` in this process."""
    for place in placements:
        parts = [x, x] if place.is_replicate() else [*x.chunk(2, place.dim), x.narrow(place.dim, 0, 0)]
        x = parts[1]
    return x


def sharded(x, mesh, placements):
    options = {"run_check": False, "shape": x.shape, "stride": x.stride()}
    return DTensor.from_local(shard_of(x, placements), mesh, placements, **options)


def assert_sharded(result, truth, placements):
    assert result.placements == tuple(placements)
    assert (result.shape, result.stride()) == (truth.shape, truth.stride())
    assert torch.equal(result.to_local(), shard_of(truth, placements))


# Positions and frequencies.
OF_TABLES = {
    "pairs": (POSITIONS[0, 1], FREQUENCIES[0, 1]),
    "batch": (POSITIONS[0], FREQUENCIES[0, 1]),
    "heads": (POSITIONS[0], FREQUENCIES[:1]),
    "axes": (POSITIONS[:, 1], FREQUENCIES[:, 0]),
    "axes and batch": (POSITIONS, FREQUENCIES[:, 0]),
    "axes and heads": (POSITIONS, FREQUENCIES),
}


@pytest.mark.parametrize("name", OF_TABLES)
def test_tables_are_sharded_like_positions(mesh, name):
    """Only those of position axes are gathered. Gradients of frequencies are summed once, over different shards."""
    positions, frequencies = OF_TABLES[name]
    rope = partial(RotaryEmbedding, head_dim=8, layout="half", kernel="reference")
    for placements in itertools.product(PLACEMENTS[: positions.ndim + 1], repeat=2):
        expected = [Shard(at.dim - 1) if at.is_shard() and name.startswith("axes") else at for at in placements]
        gathered = expected.count(Shard(-1))
        expected = [Replicate() if at == Shard(-1) else at for at in expected]
        given, same = (frequencies.clone().requires_grad_() for _ in range(2))
        where, truths = sharded(positions, mesh, placements), rope(inv_freq=same).sincos(positions)[:2]
        with CommDebugMode() as communication:
            results = rope(inv_freq=given).sincos(where)[:2]
            assert communication.get_total_counts() == gathered
            if gathered:
                assert {(each.placements, each.shape) for each in results} == {(tuple(expected), truths[0].shape)}
                continue
            sum(each.to_local().sum() for each in results).backward()
            sum(shard_of(each, expected).sum() for each in truths).backward()
            assert communication.get_total_counts() == sum(at.is_shard() for at in placements)
        of_parameter = rope(inv_freq=sharded(frequencies, mesh, 2 * [Replicate()])).sincos(where)[:2]
        for result, truth in zip((*results, *of_parameter), 2 * truths):
            assert_sharded(result, truth, expected)
        # Sums of at most 105 products with positions below 70.
        torch.testing.assert_close(given.grad, same.grad, rtol=0, atol=105 * 70 * 2.0**-24)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rotations_keep_placements_and_do_not_communicate(mesh, layout):
    rope, x = RotaryEmbedding(head_dim=8, layout=layout, base=100.0, kernel="reference"), torch.randn(4, 8, 12, 8)
    mask = torch.arange(8) >= torch.arange(4)[:, None]
    for placements in itertools.product(PLACEMENTS, repeat=2):
        with CommDebugMode() as communication:
            result = rope(sharded(x, mesh, placements), seq_dim=1)
            assert communication.get_total_counts() == 0
        assert_sharded(result, rope(x, seq_dim=1), placements)
        if Shard(1) not in placements:
            rows = [Replicate() if at == Shard(2) else at for at in placements]
            assert_sharded(from_mask(sharded(mask, mesh, rows)), from_mask(mask), rows)
