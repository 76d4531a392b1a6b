"""What ndonnx adds: the same functions, traced to an ONNX model that onnxruntime runs."""

import ndonnx as ndx
import numpy as np
import onnxruntime
import pytest

from rope_xp import RotaryEmbedding


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_traces_to_a_model_that_runs(layout):
    rope = RotaryEmbedding(head_dim=14, layout=layout, base=10_000.0, rotary_dim=10)
    x = ndx.argument(shape=(2, 5, 3, 14), dtype=ndx.float32)
    where = ndx.argument(shape=(5,), dtype=ndx.int32)
    model = ndx.build({"x": x, "positions": where}, {"y": rope(x, positions=where, seq_dim=1)})
    given = {
        "x": np.random.default_rng(0).standard_normal((2, 5, 3, 14)).astype(np.float32),
        "positions": np.asarray([0, -7, 131_071, 2**24 + 1, 2**31 - 1], dtype=np.int32),
    }
    (result,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)
    np.testing.assert_allclose(result, rope(given["x"], positions=given["positions"], seq_dim=1), rtol=0, atol=1e-6)
