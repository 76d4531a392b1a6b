"""The candidates of `speed.py`: rope_xp, installed packages, and formulas of other packages.

For each case, a candidate returns a function of q, k and tables, and the tables.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from common import BASE, DIM, LAYOUTS, is_installed, llama_rotary, load_file
from speed_cases import HEADS_FIRST, INV_FREQ, SEQ_FIRST, Case

from rope_xp import RotaryEmbedding

HALF, INTERLEAVED = LAYOUTS[:1], LAYOUTS[1:]
OURS, IN_PLACE, WITHOUT_NUMBA = "rope_xp", "rope_xp, in place", "rope_xp, no numba"
FORMULA = "float32 formula"  # of tables
LLAMA, GPTJ, META = "transformers Llama", "transformers GPT-J", "Meta's product"
USUAL = "usual formula"  # of a rotation, with no check


class Candidate(NamedTuple):
    name: str
    make: Callable[[Case], tuple[Callable[..., Any], tuple[Any, ...]]]
    libraries: tuple[str, ...]
    package: str | None = None  # None: rope_xp, or a formula in this file
    layouts: tuple[str, ...] = LAYOUTS
    orders: tuple[str, ...] = HEADS_FIRST + SEQ_FIRST
    given: tuple[str, ...] = ("tables",)
    compiles: bool = False  # whether it is timed under torch.compile too
    is_eager: bool = True  # whether it is timed elsewhere
    in_place: bool = False
    pairs: str | None = None  # its layout, if it has only one

    def takes(self, case):
        workload = case.workload
        return (
            (self.package is None or is_installed(self.package))
            and case.backend.library in self.libraries
            and (self.compiles if case.backend.name == "torch.compile" else self.is_eager)
            and (workload.peers or self.name in (OURS, IN_PLACE))
            and workload.given in self.given
            and case.layout in self.layouts
            and case.order in self.orders
            and not (case.backward and self.in_place)
        )


CANDIDATES: list[Candidate] = []
rope_of = partial(RotaryEmbedding, head_dim=DIM, base=BASE)


def candidate(name, *libraries, **options):
    def register(make):
        CANDIDATES.append(Candidate(name, make, libraries, **options))
        return make

    return register


def on_both(rotate):
    return lambda q, k, *tables: (rotate(q, *tables), rotate(k, *tables))


@candidate(OURS, "numpy", "torch", "jax", given=("tables", "positions"), compiles=True)
def ours(case, kernel="fastest"):
    rope, seq_dim = rope_of(layout=case.layout, kernel=kernel), case.seq_dim
    positions = case.backend.array(case.positions, "int32")
    if case.workload.given == "positions":
        return lambda q, k, positions: rope(q, k, positions=positions, seq_dim=seq_dim), (positions,)
    sincos = rope.sincos(positions, like=case.backend.array([0.0], case.dtype))
    return lambda q, k, *sincos: rope(q, k, sincos=sincos, seq_dim=seq_dim), tuple(sincos)


candidate(WITHOUT_NUMBA, "numpy", "torch")(partial(ours, kernel="blocked"))
candidate("rope_xp, reference", "numpy", "torch", "jax")(partial(ours, kernel="reference"))


@candidate(IN_PLACE, "numpy", "torch", in_place=True)
def ours_in_place(case, kernel="fastest"):
    rope, seq_dim = rope_of(layout=case.layout, kernel=kernel), case.seq_dim

    def rotate(q, k, *sincos):
        rope.rotate_inplace(q, k, sincos=sincos, seq_dim=seq_dim)
        return q, k

    return rotate, ours(case)[1]


@candidate(LLAMA, "torch", package="transformers", layouts=HALF, given=("tables", "positions"), compiles=True)
def transformers_llama(case):
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    rotate = partial(apply_rotary_pos_emb, unsqueeze_dim=3 - case.seq_dim)
    if case.workload.given == "tables":
        return rotate, tuple(table[None] for table in case.cos_sin(wide=True))
    tables, positions = llama_rotary().to(case.backend.device), case.backend.array(case.positions[None], "int64")
    return lambda q, k, positions: rotate(q, k, *tables(q, positions)), (positions,)


@candidate(GPTJ, "torch", package="transformers", layouts=INTERLEAVED, orders=SEQ_FIRST, compiles=True)
def transformers_gptj(case):
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb

    tables = tuple(table[None] for table in case.cos_sin())
    return on_both(lambda x, cos, sin: apply_rotary_pos_emb(x, sin, cos)), tables


@candidate("rotary-embedding-torch", "torch", package="rotary-embedding-torch", layouts=INTERLEAVED)
def rotary_embedding_torch(case):
    """Its function. Its module casts positions to the dtype of x, and bfloat16 cannot represent them."""
    from rotary_embedding_torch import apply_rotary_emb

    seq_dim = case.seq_dim - 4
    angles = case.table(np.asarray, "float32", wide=True, heads=True)
    return on_both(lambda x, angles: apply_rotary_emb(angles, x, seq_dim=seq_dim)), (angles,)


@candidate("x-transformers", "torch", package="x-transformers", layouts=INTERLEAVED, orders=HEADS_FIRST)
def x_transformers(case):
    from x_transformers.x_transformers import apply_rotary_pos_emb

    return on_both(apply_rotary_pos_emb), (case.table(np.asarray, "float32", wide=True)[None],)


@candidate("Megatron-LM", "torch", package="megatron-core", orders=SEQ_FIRST)
def megatron(case):
    """Its function without Transformer Engine. Its arrays have the sequence before the batch."""
    from megatron.core.models.common.embeddings.rope_utils import _apply_rotary_pos_emb_bshd

    def rotate(x, angles):
        return _apply_rotary_pos_emb_bshd(x.transpose(0, 1), angles, case.layout == "interleaved").transpose(0, 1)

    return on_both(rotate), (case.table(np.asarray, "float32", wide=True)[:, None, None],)


@candidate("torchtune", "torch", package="torchtune", layouts=INTERLEAVED, orders=SEQ_FIRST, compiles=True)
def torchtune(case):
    module = load_file("torchtune", "modules/position_embeddings.py").RotaryPositionalEmbeddings
    rope = module(DIM, max_seq_len=int(case.positions[-1]) + 1, base=BASE).to(case.backend.device)
    if case.workload.first == 0:
        return on_both(lambda x: rope(x)), ()
    positions = case.backend.array(case.positions[None], "int64")
    return on_both(lambda x, positions: rope(x, input_pos=positions)), (positions,)


@candidate(META, "torch", pairs="interleaved")
def meta(case):
    """The formula of Meta's first Llama code. It rotates neighbouring channels in every case."""
    torch = case.backend.functions

    def rotate(x, rotations):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * rotations).flatten(-2).type_as(x)

    return on_both(rotate), (torch.complex(*case.cos_sin(dtype="float32", heads=True)),)


def formula(swap, exact=False):
    """``x * cos + swap(x) * sin`` as in other packages: in the dtype of x, or with float32 tables if `exact`."""

    def make(case):
        def rotate(x, cos, sin):
            y = x * cos + swap(case.backend.functions, x) * sin
            return y.astype(x.dtype) if exact else y

        return on_both(rotate), case.cos_sin(dtype="float32" if exact else None, wide=True, heads=True)

    return make


def swap_neighbours(xp, x):
    return xp.reshape(xp.stack([-x[..., 1::2], x[..., ::2]], axis=-1), x.shape)


def swap_halves(xp, x):
    return xp.reshape(xp.stack([-x[..., DIM // 2 :], x[..., : DIM // 2]], axis=-2), x.shape)


def join_halves(xp, x):
    return xp.concatenate([-x[..., DIM // 2 :], x[..., : DIM // 2]], axis=-1)


candidate(USUAL, "torch", layouts=HALF)(formula(join_halves))
candidate(USUAL, "torch", layouts=INTERLEAVED)(formula(swap_neighbours))
candidate("the notebook", "numpy", "jax", layouts=INTERLEAVED, orders=SEQ_FIRST)(formula(swap_neighbours))
candidate("keras-hub formula", "numpy", "torch", "jax", layouts=HALF, orders=SEQ_FIRST)(formula(swap_halves))
candidate("flax Llama formula", "numpy", "jax", layouts=HALF)(formula(join_halves, exact=True))


def tables_of(case):
    """For each name: a function that computes tables, its arguments, and the allowed error."""
    xp, positions = case.backend.functions, case.positions
    inv_freq = case.backend.array(INV_FREQ, "float32")

    def naive(positions, inv_freq):
        angles = positions[:, None] * inv_freq
        return xp.sin(angles), xp.cos(angles)

    def exact(rope, positions):
        return tuple(rope.sincos(positions, like=inv_freq))

    arguments = [case.backend.array(positions, "float32"), inv_freq]
    made = {FORMULA: (naive, arguments, 2.0**-22 * positions[-1] + 1e-6)}
    for name, kernel in ((OURS, "fastest"), (WITHOUT_NUMBA, "blocked")):
        if name == OURS or case.backend.name in ("numpy", "torch"):
            made[name] = (
                partial(exact, rope_of(layout="half", kernel=kernel)),
                [case.backend.array(positions, "int32")],
                2e-7,
            )
    return made
