"""Rotary position embeddings on every array library: written once, exact at any position."""

from rope_xp import positions
from rope_xp.angles import SinCos, fixed_pos_embedding, sinusoidal_pos_embedding
from rope_xp.embedding import RotaryEmbedding
from rope_xp.rotation import apply_rotary_pos_emb, rotate_every_two, rotate_half

__version__ = "0.1.0"

__all__ = [
    "RotaryEmbedding",
    "SinCos",
    "apply_rotary_pos_emb",
    "fixed_pos_embedding",
    "positions",
    "rotate_every_two",
    "rotate_half",
    "sinusoidal_pos_embedding",
]
