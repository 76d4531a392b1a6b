"""Rotary position embeddings on every array library: written once, exact at any position."""

from rope_xp import frequencies, positions
from rope_xp.angles import SinCos, fixed_pos_embedding, sinusoidal_pos_embedding
from rope_xp.axes import Sections
from rope_xp.config import from_config
from rope_xp.embedding import RotaryEmbedding
from rope_xp.frequencies import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    MixedNTKScaling,
    NTKScaling,
    ProportionalScaling,
    XPos,
    YarnScaling,
)
from rope_xp.rotation import apply_rotary_pos_emb, apply_rotary_pos_emb_inplace, rotate_every_two, rotate_half
from rope_xp.weights import permute_projection

__version__ = "0.1.0"

__all__ = [
    "DynamicNTKScaling",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "MixedNTKScaling",
    "NTKScaling",
    "ProportionalScaling",
    "RotaryEmbedding",
    "Sections",
    "SinCos",
    "XPos",
    "YarnScaling",
    "apply_rotary_pos_emb",
    "apply_rotary_pos_emb_inplace",
    "fixed_pos_embedding",
    "frequencies",
    "from_config",
    "permute_projection",
    "positions",
    "rotate_every_two",
    "rotate_half",
    "sinusoidal_pos_embedding",
]
