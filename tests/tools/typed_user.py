"""What a typed user sees.

`tests/tools/typed_readme.py` checks this file and the README's snippets with mypy and pyright.

An `ignore` marks a mistake that a checker must report; where it does not, the mark itself is an error.
"""

from typing import Any, assert_type

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import torch

import rope_xp.flax
import rope_xp.torch
from rope_xp import RotaryEmbedding, from_config

CONFIG = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "rope_theta": 500000.0}

rope = RotaryEmbedding(head_dim=128, layout="half", base=500_000.0)
assert_type(rope.pairs, int)
RotaryEmbedding(head_dim=128, base=500_000.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def of_numpy(
    q: npt.NDArray[np.float32], k: npt.NDArray[np.float16], all_of_them: list[npt.NDArray[np.float32]]
) -> None:
    sincos = rope.sincos(np.arange(5), like=q)
    assert_type(rope(q, seq_dim=1), npt.NDArray[np.float32])
    assert_type(rope(x=q, seq_dim=1), npt.NDArray[np.float32])
    assert_type(rope(q, k, seq_dim=1), tuple[npt.NDArray[np.float32], npt.NDArray[np.float16]])
    assert_type(rope(q, q, q, sincos=sincos, seq_dim=1), tuple[npt.NDArray[np.float32], ...])
    assert_type(rope(*all_of_them, positions=np.arange(5), seq_dim=1), tuple[npt.NDArray[np.float32], ...])
    assert_type(rope.rotate(q, sincos, seq_dim=1), npt.NDArray[np.float32])
    assert_type(rope.shift(q, -3, seq_dim=1), npt.NDArray[np.float32])
    assert_type(rope.rerotate(q, np.arange(5), to=rope, seq_dim=1), npt.NDArray[np.float32])
    assert_type(rope.extend(131_072, "yarn", trained_length=8192, beta_fast=16.0), RotaryEmbedding)
    assert_type(rope_xp.apply_rotary_pos_emb(q, sincos), npt.NDArray[np.float32])
    rope(q)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    rope(q, "k", seq_dim=1)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]


def of_jax(q: jax.Array, k: jax.Array) -> None:
    assert_type(rope(q, seq_dim=1), jax.Array)
    assert_type(rope(q, k, positions=jnp.asarray([1]), seq_dim=1), tuple[jax.Array, jax.Array])
    assert_type(rope.rotate(q, rope.sincos(np.arange(5), like=q), seq_dim=1), jax.Array)
    assert_type(rope.shift(q, k, seq_dim=1), jax.Array)
    module = rope_xp.flax.RotaryEmbedding(rope, seq_dim=1)
    assert_type(module(q), jax.Array)
    assert_type(module(q, k, positions=np.arange(5)), tuple[jax.Array, jax.Array])
    assert_type(module(q, k, k), tuple[jax.Array, ...])


def of_torch(q: torch.Tensor, k: torch.Tensor) -> None:
    assert_type(rope(q, seq_dim=1), torch.Tensor)
    assert_type(rope(q, k, positions=torch.arange(5), seq_dim=1), tuple[torch.Tensor, torch.Tensor])
    assert_type(rope.rotate(q, rope.sincos(np.arange(5), like=q), seq_dim=1), torch.Tensor)
    assert_type(rope.shift(q, k, seq_dim=1), torch.Tensor)
    module = rope_xp.torch.RotaryEmbedding(rope, seq_dim=1)
    assert_type(module(q), torch.Tensor)
    assert_type(module(q, k, positions=torch.arange(5)), tuple[torch.Tensor, torch.Tensor])
    assert_type(module(q, k, k), tuple[torch.Tensor, ...])


def of_configs(layer: int | None, q: torch.Tensor) -> None:
    assert_type(from_config(CONFIG), RotaryEmbedding | Any)
    assert_type(from_config(CONFIG, strict=True), RotaryEmbedding | Any)
    assert_type(from_config(CONFIG, flags="--rope-scale 2"), RotaryEmbedding | Any)
    assert_type(from_config(CONFIG, layer=3, flags=["--rope-scale", "2"]), RotaryEmbedding | None)
    assert_type(from_config(CONFIG, layer=3), RotaryEmbedding | None)
    assert_type(from_config(CONFIG, layer=layer), RotaryEmbedding | None)
    assert_type(from_config(CONFIG, layer_type="sliding_attention"), RotaryEmbedding | None)
    from_config(CONFIG)(q, seq_dim=1)
    from_config(CONFIG, layer=3).describe()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    rope_xp.torch.RotaryEmbedding(from_config(CONFIG, layer=3), seq_dim=1)
