"""Rotary position embeddings on every array library: written once, exact at any position."""

from rope_xp import frequencies, positions
from rope_xp.checkpoints import identify_checkpoint
from rope_xp.comparison import assert_same, compare
from rope_xp.configs.from_config import from_config
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
from rope_xp.functions import apply_rotary_pos_emb, apply_rotary_pos_emb_inplace, rotate_every_two, rotate_half
from rope_xp.identification import identify
from rope_xp.kernels.angles import SinCos, fixed_pos_embedding, sinusoidal_pos_embedding
from rope_xp.sections import Sections
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
    "assert_same",
    "compare",
    "fixed_pos_embedding",
    "frequencies",
    "from_config",
    "identify",
    "identify_checkpoint",
    "permute_projection",
    "positions",
    "rotate_every_two",
    "rotate_half",
    "sinusoidal_pos_embedding",
]
