"""DTensors in the last of four processes, without the others: each shard is that of the result for whole arrays."""

import itertools
from functools import partial

import pytest
import ranks
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from rope_xp import RotaryEmbedding, XPos
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


def assert_sharded(result, truth, placements, atol=0.0):
    assert result.placements == tuple(placements)
    assert (result.shape, result.stride()) == (truth.shape, truth.stride())
    torch.testing.assert_close(result.to_local(), shard_of(truth, placements), rtol=0, atol=atol)


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


def replaced(**options):
    return lambda rope, q, k, where: rope.replace(**options)(q, k, positions=where, seq_dim=1)


CALLS = ranks.calls(torch.arange) | {
    "positions of NumPy": lambda rope, q, k, where: rope(q, k, positions=where.numpy(), seq_dim=1),
    "plain tables": lambda rope, q, k, where: rope(q, k, sincos=rope.sincos(where), seq_dim=1),
    "inverse": lambda rope, q, k, where: [rope.rotate(x, rope.sincos(where), seq_dim=1, inverse=True) for x in (q, k)],
    "real positions": lambda rope, q, k, where: rope(q, k, positions=where / 7, seq_dim=1),
    "float32 phases": replaced(phase="float32"),
    "xpos": replaced(xpos=XPos(centre=100_000)),
    "part": replaced(rotary_dim=8, first_channel=4),
}
# `exp` of float32 is another number at the end of a vector than within: an ulp of the growth, in two products of
# numbers below 8.
ROUNDED = {"xpos": 2 * 8 * 2 * 2.0**-23}


def rotated(call, rope, arrays, where):
    """What a call makes of q and k, and the gradients of half the sum of its squares; and what was communicated."""
    arrays = [x.detach().requires_grad_() for x in arrays]
    with CommDebugMode() as communication:  # for plain tensors, too, whose tables are others where nobody watches
        results = list(call(rope, *arrays, where))
        gradients = torch.autograd.grad(results, arrays, [y.detach() for y in results])
    return [*results, *gradients], communication.get_total_counts()


@pytest.mark.parametrize("name", CALLS)
def test_rotations_keep_placements_and_do_not_communicate(mesh, name):
    """Forward and backward, also if positions are sharded like the sequence. The numbers are those of one device."""
    where, layouts = torch.arange(ranks.SEQ) + 100_000, itertools.cycle(["half", "interleaved"])
    dtypes = (torch.float32, torch.bfloat16) if name in ("counted", "positions") else (torch.float32,)
    every = itertools.product(PLACEMENTS, repeat=2) if name == "counted" else itertools.combinations(PLACEMENTS, 2)
    for placements, layout in zip(every, layouts):
        on_seq = sharded(where, mesh, [Shard(0) if at == Shard(1) else Replicate() for at in placements])
        rope = ranks.embedding(layout)
        for dtype, given in itertools.product(dtypes, (where, on_seq) if name != "positions of NumPy" else (where,)):
            arrays = [torch.randn(size, dtype=dtype) for size in ranks.SIZES]
            truths, _ = rotated(CALLS[name], rope, arrays, where)
            results, communicated = rotated(CALLS[name], rope, [sharded(x, mesh, placements) for x in arrays], given)
            assert communicated == 0
            for result, truth in zip(results, truths, strict=True):
                assert_sharded(result, truth, placements, ROUNDED.get(name, 0.0))


def test_positions_of_a_mask_are_sharded_like_it(mesh):
    mask = torch.arange(8) >= torch.arange(4)[:, None]
    for rows in itertools.product([Replicate(), Shard(0)], repeat=2):
        assert_sharded(from_mask(sharded(mask, mesh, rows)), from_mask(mask), rows)
