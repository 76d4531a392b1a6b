"""Tables of sines and cosines, from positions and frequencies."""

from collections.abc import Sequence
from functools import lru_cache, reduce
from operator import add
from typing import Any, Literal, NamedTuple

from rope_xp import kernels
from rope_xp.arrays import checks, exact_phases, libraries, memory
from rope_xp.arrays.alignment import check_position_axes
from rope_xp.arrays.signature import is_torch_compiling
from rope_xp.errors import public, wrong_value
from rope_xp.frequencies import geometric
from rope_xp.kernels import Kernel, blocked
from rope_xp.kernels.reference import join_pairs
from rope_xp.kernels.tables import TableScale
from rope_xp.positions.sequence import count_from
from rope_xp.types import Array, Embedding

Phase = Literal["exact", "float32"]

PHASES = {
    "exact": "sin and cos within 2e-7 at every int32 position",
    "float32": "sin and cos of float32(position) * float32(inv_freq), as in the training of published models",
}


class SinCos(NamedTuple):
    """The sines and cosines of angles, with one column for each pair of channels.

    A table is half as wide as the channels that it rotates. Functions that take a `SinCos` also take a plain tuple
    ``(sin, cos)``.

    Attributes
    ----------
    sin, cos : array, "*axes pairs"
        Of one library, device, dtype and shape.

    Examples
    --------
    >>> import numpy as np
    >>> sin, cos = fixed_pos_embedding(np.zeros((5, 2, 8)))
    >>> sin.shape
    (5, 4)
    """

    sin: Any
    cos: Any


@public("fixed_pos_embedding")
def fixed_pos_embedding(
    x: Array, seq_dim: int = 0, *, base: float = 10_000.0, offset: int | Array = 0, phase: Phase = "exact"
) -> SinCos:
    """Sines and cosines for consecutive positions, to rotate all channels of `x`.

    Parameters
    ----------
    x : array, "*batch dim"
        Only its shape, dtype, library and device are used. `dim` is even.
    seq_dim : int
        The sequence axis of `x`. The default is for `x` of "seq heads dim".
    base : float
        Pair j is rotated by ``base ** (-2 j / dim)`` radians per position. At least 1.
    offset : int or array, ""
        Position of the first token, in tokens. It may be a traced value.
    phase : "exact" or "float32"
        ``"exact"`` has an error of at most 2e-7 at every int32 position. ``"float32"`` rounds ``position * frequency``
        to float32, as most implementations do. Use it to reproduce models that were trained with such rounding. (Some
        models have frequencies that differ from this progression in the last bit. Pass those to `RotaryEmbedding` as
        `inv_freq`.)

    Returns
    -------
    SinCos, each "seq dim/2"
        In the library and on the device of `x` (in JAX, not committed to a device). float64 for float64 `x`, else
        float32.

    Raises
    ------
    ValueError
        If `dim` is odd, `seq_dim` is not an axis before the last, `base` is less than 1, an int `offset` gives
        positions outside int32, or `phase` is unknown.
    TypeError
        If `x` is not floating point or `offset` is not an integer.

    References
    ----------
    Su et al., RoFormer (2021), arXiv:2104.09864, section 3.2.2. Name: kingoflolz/mesh-transformer-jax,
    `mesh_transformer/layers.py`.

    Examples
    --------
    >>> import numpy as np
    >>> sin, cos = fixed_pos_embedding(np.zeros((3, 2, 4)), base=100.0)
    >>> sin.round(3)
    array([[0.   , 0.   ],
           [0.841, 0.1  ],
           [0.909, 0.199]])
    """
    checks.floating("x", x)
    dim = checks.even_width(x)
    seq = libraries.size_of(x, checks.axis(seq_dim, x))
    frequencies = _frequencies_of(checks.at_least("base", base, 1.0), dim)
    positions = count_from("offset", offset, seq, like=x)
    if positions.ndim > 1:
        raise wrong_value(f"offset must have no axis; got shape {checks.shape(offset)}")
    return sincos_of(positions, frequencies, like=x, phase=phase)


@public("sinusoidal_pos_embedding")
def sinusoidal_pos_embedding(positions: Array, dim: int, base: float = 10_000.0, *, like: Array | None = None) -> Any:
    """The absolute sinusoidal position encoding, which models add to token embeddings.

    Channel 2j is the sine of ``position * base ** (-2 j / dim)``, and channel 2j + 1 is its cosine.

    Parameters
    ----------
    positions : array, "*batch seq"
        In tokens: integers, or float32 numbers below ``2**31``, or float64 numbers.
    dim : int
        Width of the encoding, even.
    base : float
        The wavelength of pair j is ``2 pi * base ** (2 j / dim)`` tokens. At least 1.
    like : array, optional
        The result has its library and device, and is float64 if `like` is float64. The default is `positions`. NumPy
        positions work with any `like`.

    Returns
    -------
    array, "*batch seq dim"
        float32, or float64 for float64 `like`.

    Raises
    ------
    ValueError
        If `dim` is odd or `base` is less than 1.
    TypeError
        If `positions` is not an array of integers, float32 or float64.

    References
    ----------
    Vaswani et al., Attention Is All You Need (2017), arXiv:1706.03762, section 3.5.

    Examples
    --------
    >>> import numpy as np
    >>> sinusoidal_pos_embedding(np.arange(2), 4, base=100.0).round(3)
    array([[0.   , 1.   , 0.   , 1.   ],
           [0.841, 0.54 , 0.1  , 0.995]], dtype=float32)
    """
    base = checks.at_least("base", base, 1.0)
    frequencies = _frequencies_of(base, checks.even_size("dim", dim))
    sin, cos = sincos_of(positions, frequencies, like=like)
    return join_pairs(libraries.namespace(sin), sin, cos, "interleaved")


def _frequencies_of(base: float, dim: Any) -> exact_phases.Frequencies:
    if is_torch_compiling() or type(dim) is not int:
        return exact_phases.Frequencies(geometric(base, dim))
    return _kept_frequencies(base, dim)


@lru_cache(maxsize=256)  # this takes longer than most tables
def _kept_frequencies(base: float, dim: int) -> exact_phases.Frequencies:
    return exact_phases.Frequencies(geometric(base, dim))


class GeneralTableProgram(NamedTuple):
    """A program that checks positions and computes the tables of an embedding, in any library."""

    frequencies: exact_phases.Frequencies
    scale: TableScale
    phase: Phase
    kernel: Kernel
    sign: int = -1  # 1 for queries, if queries and keys have different tables

    @classmethod
    def of(cls, rope: Embedding, role: str | None = None) -> "GeneralTableProgram":
        return cls(rope._frequencies, rope._scale, rope.phase, rope.kernel, 1 if role == "query" else -1)

    def unscaled(self, positions: Array, like: object) -> SinCos:
        """Tables without the attention factor and the scales of `xpos`."""
        check_position_axes("positions", positions, self.frequencies.axes)
        return sincos_of(positions, self.frequencies, like=like, phase=self.phase, kernel=self.kernel)

    def run(self, positions: Array, like: object) -> SinCos:
        sin, cos = self.unscaled(positions, like)
        scale = self.scale.at(positions, self.sign, sin)
        return SinCos(sin, cos) if scale is None else SinCos(sin * scale, cos * scale)


def fast_table_program(rope: Embedding, positions: Array, arrays: Sequence[Array]) -> Any:
    """The program of a kernel for the tables of an embedding, for arrays like these; None if there is none."""
    # Tables must be float32, have exact phases, and be the same for queries and keys.
    in_float64 = any(libraries.dtype_name(x.dtype) == "float64" for x in arrays)
    if in_float64 or rope.phase != "exact" or rope.xpos is not None or type(positions) is not type(arrays[0]):
        return None
    return kernels.table_program_of(positions, rope._frequencies, rope.attention_factor, rope.kernel)


def sincos_of(
    positions: Any,
    frequencies: exact_phases.Frequencies,
    *,
    like: Any = None,
    phase: Phase = "exact",
    kernel: Kernel = "fastest",
) -> SinCos:
    """Tables in the library and on the device of `like`: float64 for float64 `like`, else float32."""
    checks.one_of("phase", phase, PHASES)
    positions = checks.positions("positions", positions, like=like)
    learned = None
    if not frequencies.are_floats:
        # Checked in each call, because a parameter may have a new dtype, for example after `module.half()`.
        learned = frequencies.inv_freq
        checks.floating("inv_freq", learned, ("float32", "float64"))
        positions = checks.convert_like("positions", positions, learned)
    in_float64 = like is not None and libraries.dtype_name(like.dtype) == "float64"

    def tables_of(positions: Array, learned: Any) -> tuple[Any, Any]:
        local = frequencies if learned is None else exact_phases.Frequencies(learned)
        return _tables(positions, local, in_float64, phase, kernel)

    if libraries.is_dtensor(positions):
        sin, cos = libraries.map_local_shards(tables_of, positions, learned, first_axis=int(frequencies.axes > 1))
    else:
        sin, cos = _tables(positions, frequencies, in_float64, phase, kernel)
    return SinCos(libraries.materialized(sin), libraries.materialized(cos))


def _tables(
    positions: Array, frequencies: exact_phases.Frequencies, in_float64: bool, phase: Phase, kernel: Kernel
) -> tuple[Any, Any]:
    xp = libraries.namespace(positions)
    dtype = xp.float64 if in_float64 else xp.float32
    if phase == "float32":
        terms = frequencies.terms(libraries.astype(positions, xp.float32))
        angle = reduce(add, [columns * row.values(like=columns, dtype=xp.float32) for columns, row in terms])
        return libraries.astype(xp.sin(angle), dtype), libraries.astype(xp.cos(angle), dtype)
    if kernel != "reference" and frequencies.are_floats and not in_float64:
        tables = _host_tables(positions, frequencies, kernel)
        if tables is not None:
            return tables
    sin, cos = kernels.exact_tables(libraries.without_gradient(positions), frequencies, dtype, kernel)
    derivative = libraries.is_real(positions) or not frequencies.are_floats
    if not (derivative and libraries.has_derivatives(positions)):
        return sin, cos
    change = _zero_with_derivative(positions, frequencies, dtype)
    sin_change, cos_change = xp.sin(change), xp.cos(change)
    return sin * cos_change + cos * sin_change, cos * cos_change - sin * sin_change


def _host_tables(positions: Array, frequencies: exact_phases.Frequencies, kernel: Kernel) -> tuple[Any, Any] | None:
    numbers = kernels.host_view(positions)
    if numbers is None or (kernel == "triton" and kernels.triton_takes(positions)):
        return None
    # Real positions: whole numbers give the same bits as integers.
    whole, fractions = blocked.integers_and_fractions(numbers)
    program = kernels.table_program_of(whole, frequencies, 1.0, kernel)
    if program is None or not (fractions is None or frequencies.is_single_row):
        return None
    sin, cos = program.run(whole, whole)
    if fractions is not None:
        others = fractions != 0.0
        sin[others], cos[others] = blocked.tables_by_digits(numbers[others], blocked.digit_angles(frequencies.inv_freq))
    return memory.from_numpy(sin, positions), memory.from_numpy(cos, positions)


def _zero_with_derivative(positions: Array, frequencies: exact_phases.Frequencies, dtype: object) -> Any:
    """Zeros with all derivatives of ``positions * frequencies``, because exact phases are integers and have none."""
    changes = []
    for columns, row in frequencies.terms(positions):
        constant = libraries.astype(libraries.without_gradient(columns), dtype)
        inv_freq = row.values(like=constant, dtype=dtype)
        changes.append(constant * (inv_freq - libraries.without_gradient(inv_freq)))
        if libraries.is_real(positions):
            changes.append((libraries.astype(columns, dtype) - constant) * inv_freq)
    return reduce(add, changes)
