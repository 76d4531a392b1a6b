"""What the modules of PyTorch and of Flax share: each is the value it holds, and nothing else."""

import numpy as np
import pytest
from compare import assert_same

import rope_xp
from rope_xp import Sections, XPos, YarnScaling

MAGNIFIED = YarnScaling(factor=40.0, original_max_position_embeddings=4096, mscale=1.0, mscale_all_dim=1.0)
OPTIONS = {"head_dim": 14, "layout": "half", "base": 10_000.0}
KINDS = {
    "half": {},
    "interleaved, part": {"layout": "interleaved", "rotary_dim": 8, "first_channel": 4},
    "scaled": {"scaling": YarnScaling(factor=4.0, original_max_position_embeddings=4096)},
    "axes": {"sections": Sections((3, 4), order="axial")},
    "reversed": {"reverse": True},
    "decays": {"xpos": XPos()},
}


class ModuleTests:
    """Tests of `module`, a class of modules for arrays of `xp`.

    `calls` are ways to call one. `train` minimises a function of a module by 100 steps of Adam with a learning rate of
    0.01.
    """

    ATOL = 0.0  # how far a module with fixed frequencies may be off the value

    def learned_or_fixed(self, learned=False, **options):
        return self.module(**{**OPTIONS, "seq_dim": 1, "learned": learned, **options})

    def with_frequencies(self, inv_freq, **options):
        """A value, or a module if `options` give its axes, with these learned frequencies."""
        kind = self.module if "seq_dim" in options else rope_xp.RotaryEmbedding
        return kind(head_dim=14, layout="half", inv_freq=inv_freq, **options)

    @pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_rotates_as_the_value(self, kind, learned):
        rope = rope_xp.RotaryEmbedding(**{**OPTIONS, **KINDS[kind]})
        q, k = self.xp.random(2, 5, 6, 14), self.xp.random(2, 5, 3, 14, seed=1)
        where = np.asarray([3, -7, 100, 2**10 - 2, 0], np.int32)
        where = self.xp.array(np.stack([where, where + 1]) if kind == "axes" else where)
        truths = rope(q, k, positions=where, seq_dim=1)
        # Frequencies of a parameter are float32, off by 2**-24 of themselves: angles below 2**10 are off by 2**-14,
        # and numbers are below 4, with an attention factor or growth below 1.2; both channels of a pair add up.
        atol = 2 * 4 * 1.2 * 2.0**-14 if learned else self.ATOL
        # Made from a value, or from the arguments of one.
        module = self.module(rope, seq_dim=1, learned=True) if learned else self.learned_or_fixed(**KINDS[kind])
        assert self.module(rope, seq_dim=1).rope == rope
        for call in self.calls:
            assert_same(call(module, q, k, positions=where), truths, atol)

    def test_takes_one_array_tables_and_rows_of_tables(self):
        module, q = self.learned_or_fixed(), self.xp.random(2, 5, 3, 14)
        sincos = module.rope.sincos(self.xp.array(np.arange(5, dtype=np.int32)), like=q)
        assert_same(module(q), module.rope(q, seq_dim=1), self.ATOL)
        assert_same(module(q, q, sincos=sincos), module(q, q), self.ATOL)
        where = self.xp.array(np.asarray([3, 0, 3, 1, 4], np.int32))
        assert_same(module(q, sincos=sincos, positions=where), module(q, positions=where), self.ATOL)

    def test_frequencies_of_each_head(self):
        inv_freq, where = 0.3 * self.xp.random(2, 6, 7, seed=1), 3 * self.xp.random(2, 2, 5, seed=2)
        module, q = self.with_frequencies(inv_freq, seq_dim=1, heads_dim=2), self.xp.random(2, 5, 6, 14)
        truth = self.with_frequencies(inv_freq)(q, positions=where, seq_dim=1, heads_dim=2)
        assert_same(module(q, positions=where), truth, self.ATOL)
        assert_same(module.inv_freq[...], inv_freq, 0)

    def test_it_learns_and_every_call_reads_it_anew(self):
        module = self.with_frequencies(self.xp.array(np.full(7, 0.5, np.float32)), seq_dim=1)
        x, truth = self.xp.random(1, 5, 1, 14), self.xp.array(np.linspace(0.4, 0.6, 7, dtype=np.float32))
        target = self.with_frequencies(truth)(x, seq_dim=1)
        self.train(module, lambda module: ((module(x) - target) ** 2).sum())
        assert_same(module.inv_freq[...], truth, atol=0.01)

    def test_bad_input(self):
        with pytest.raises(TypeError, match="seq_dim"):
            self.module(**OPTIONS)
        with pytest.raises(ValueError, match="RotaryEmbedding: head_dim must be even, at least 2; got 13"):
            self.learned_or_fixed(head_dim=13)
        with pytest.raises(ValueError, match=r"seq_dim must name an axis of x before the last; got seq_dim=3 for"):
            self.learned_or_fixed(seq_dim=3)(self.xp.random(2, 5, 3, 14))
        scaled = rope_xp.RotaryEmbedding(**OPTIONS, scaling=MAGNIFIED)
        assert self.module(scaled, seq_dim=1).rope.softmax_scale == scaled.softmax_scale > 1
        with pytest.raises(ValueError, match=r"^RotaryEmbedding: learned .* with softmax_scale 1.*; got 1\.\d+"):
            self.module(scaled, seq_dim=1, learned=True)
        with pytest.raises(TypeError, match=r"^RotaryEmbedding: rope must be a rope_xp.RotaryEmbedding; got dict"):
            self.module({"head_dim": 14}, seq_dim=1)
        with pytest.raises(TypeError, match=r"^RotaryEmbedding: rope or its arguments must be given; got neither"):
            self.module(None, seq_dim=1)  # as from_config gives for a layer that is not rotated
