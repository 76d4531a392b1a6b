"""A model's rotary embedding: frequencies, pairing and magnitude joined in one frozen value."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from math import inf, pi
from typing import TYPE_CHECKING, Any

import numpy as np

from rope_xp import backends, checks
from rope_xp.angles import PHASES, Phase, SinCos, sincos_of
from rope_xp.arrays import Array, ArrayT
from rope_xp.frequencies import geometric
from rope_xp.phases import LIMIT, Frequencies
from rope_xp.positions.sequence import count_from
from rope_xp.rotation import LAYOUTS, Layout, axes_on, rotate


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RotaryEmbedding:
    """A rotary position embedding as a value: it holds no arrays of state, and the result depends on arguments alone.

    It can be an attribute of a PyTorch, Flax NNX or Equinox module, a closed-over value, or an argument of `jax.jit`
    that `static_argnums` names; nothing in it is a parameter or a buffer, so that casting or moving a module cannot
    touch it. To change a field with `dataclasses.replace`, pass ``inv_freq=None`` with a new `base` or `rotary_dim`.

    Learned frequencies are the exception: the array stays the caller's, and a module makes the value anew from its
    parameter in every forward pass.

    Parameters
    ----------
    head_dim : int
        Channels of a head, even.
    layout : "half" or "interleaved"
        Which channels form a pair: ``(j, j + pairs)`` as GPT-NeoX and transformers' Llama do, or ``(2j, 2j + 1)`` as
        RoFormer, GPT-J and Meta's checkpoints do. There is no default: the wrong one raises nothing and ruins a model.
    base : float
        Pair j turns by ``base ** (-2 j / rotary_dim)`` radians per position. At least 1; required unless `inv_freq` is
        given.
    rotary_dim : int, optional
        The first channels, which turn; the others pass through. Even; all of `head_dim` by default.
    inv_freq : sequence of float, or array, "pairs", optional
        Frequencies in radians per position, in place of `base`. An array of another library than NumPy's, float32 or
        float64, is differentiable, so that frequencies can be learned; such a value is not hashable. Where such a
        frequency is ``2**16`` or more, or no number, tables are NaN. Without `rotary_dim`, ``2 * len(inv_freq)``
        channels turn.
    attention_factor : float
        Magnitude by which sines and cosines are multiplied (YaRN, LongRoPE).
    phase : "exact" or "float32"
        How position times frequency is computed, see `fixed_pos_embedding`.

    Attributes
    ----------
    head_dim, rotary_dim, pairs : int
    layout, phase : str
    base : float or None
    inv_freq : tuple of float, or array
    attention_factor : float

    Raises
    ------
    ValueError
        If a width is odd or does not fit, `layout` or `phase` is unknown, `base` is less than 1, `attention_factor` is
        not positive, a frequency is ``2**16`` or more, or `base` and `inv_freq` are both missing or contradict each
        other.
    TypeError
        If a width is no int, or frequencies are neither floats nor a float32 or float64 array.

    References
    ----------
    Su et al., RoFormer (2021), arXiv:2104.09864.

    Examples
    --------
    >>> import numpy as np
    >>> rope = RotaryEmbedding(head_dim=8, layout="half", base=10_000.0)
    >>> rope
    RotaryEmbedding(head_dim=8, layout='half', base=10000.0)
    >>> rope.inv_freq
    (1.0, 0.1, 0.01, 0.001)
    >>> q, k = rope(np.ones((2, 5, 4, 8)), np.ones((2, 5, 1, 8)), seq_dim=1)  # batch seq heads dim
    >>> q.shape, k.shape
    ((2, 5, 4, 8), (2, 5, 1, 8))
    """

    head_dim: int
    layout: Layout
    base: float | None = None
    rotary_dim: int | None = None
    inv_freq: Sequence[float] | Array | None = None
    attention_factor: float = 1.0
    phase: Phase = "exact"
    pairs: int = field(init=False)

    if TYPE_CHECKING:
        _frequencies: Frequencies

    def __post_init__(self) -> None:
        who = "RotaryEmbedding"
        head_dim = checks.even_size(who, "head_dim", self.head_dim)
        checks.one_of(who, "layout", self.layout, LAYOUTS)
        checks.one_of(who, "phase", self.phase, PHASES)
        attention_factor = checks.positive(who, "attention_factor", self.attention_factor)
        base = None if self.base is None else checks.base(who, self.base)
        rotary_dim = None if self.rotary_dim is None else checks.even_size(who, "rotary_dim", self.rotary_dim, head_dim)

        inv_freq = self.inv_freq
        if inv_freq is None:
            if base is None:
                raise ValueError(f"{who}: base or inv_freq must be given; got neither")
            rotary_dim = head_dim if rotary_dim is None else rotary_dim
            inv_freq = geometric(base, rotary_dim)
        else:
            inv_freq, pairs = _given_frequencies(who, inv_freq)
            rotary_dim = 2 * pairs if rotary_dim is None else rotary_dim
            if 2 * pairs != rotary_dim or rotary_dim > head_dim:
                raise ValueError(
                    f"{who}: inv_freq must have rotary_dim / 2 frequencies, and rotary_dim be at most head_dim; "
                    f"got {pairs} for rotary_dim={rotary_dim} and head_dim={head_dim}"
                )
            if base is not None and not (isinstance(inv_freq, tuple) and inv_freq == geometric(base, rotary_dim)):
                raise ValueError(
                    f"{who}: base and inv_freq must not contradict each other (None makes it anew); got base={base}"
                )

        resolved = {
            "head_dim": head_dim,
            "base": base,
            "rotary_dim": rotary_dim,
            "inv_freq": inv_freq,
            "attention_factor": attention_factor,
            "pairs": rotary_dim // 2,
            "_frequencies": Frequencies(inv_freq),
        }
        for name, value in resolved.items():
            object.__setattr__(self, name, value)

    def __call__(self, x: ArrayT, *others: ArrayT, positions: Array | None = None, seq_dim: int) -> Any:
        """Rotate queries and keys.

        Parameters
        ----------
        x, *others : array, "*batch head_dim"
            Such as q and k; the tables are made once for all of them.
        positions : array, "seq", "batch seq" or with one axis less than `x`, optional
            Where each token is: integers of any sign and order, or real numbers. By default 0, 1, 2, ...
        seq_dim : int
            The sequence axis of `x` and of each of the others.

        Returns
        -------
        array, or tuple of array
            One for one, several for several, each as it came: library, shape, dtype and device.

        Raises
        ------
        ValueError
            If shapes do not fit.
        TypeError
            If a dtype is not floating point, or arrays are of two libraries.

        Examples
        --------
        >>> import numpy as np
        >>> rope = RotaryEmbedding(head_dim=2, layout="half", base=10_000.0)
        >>> rope(np.asarray([[1.0, 0.0], [1.0, 0.0]]), positions=np.asarray([0, 1]), seq_dim=0).round(3)
        array([[1.   , 0.   ],
               [0.54 , 0.841]])
        """
        who = "RotaryEmbedding"
        arrays = (x, *others)
        for one in arrays:
            self._check(who, "x", one)
            checks.beside(who, "x", one, x)
        where = _positions_of(who, arrays, positions, seq_dim)
        widest = next((one for one in arrays if backends.dtype_name(one.dtype) == "float64"), x)
        sincos = self.sincos(where, like=widest)
        rotated = tuple(self._rotate(who, one, sincos, seq_dim) for one in arrays)
        return rotated if others else rotated[0]

    def sincos(self, positions: Array, *, like: Array | None = None) -> SinCos:
        """Tables of positions: make them once in a forward pass and share them between layers.

        Parameters
        ----------
        positions : array, "*batch seq"
            In tokens: integers, or real numbers: float32 below ``2**31``, float64 below ``2**63``; beyond, tables are
            NaN. NumPy's go with any `like`.
        like : array, optional
            Whose library to use; float64 tables for float64, float32 for all else. On PyTorch, `positions` must be on
            its device.

        Returns
        -------
        SinCos, each "*batch seq pairs"

        Raises
        ------
        TypeError
            If `positions` is no array of real numbers, or of a third library.
        ValueError
            If 64-bit values do not fit where only 32 bits exist.

        Examples
        --------
        >>> import numpy as np
        >>> RotaryEmbedding(head_dim=2, layout="half", base=10_000.0).sincos(np.asarray([0, 2**31 - 1])).sin
        array([[ 0.       ],
               [-0.7249166]], dtype=float32)
        """
        sin, cos = self._unscaled("RotaryEmbedding.sincos", positions, like)
        if self.attention_factor == 1.0:
            return SinCos(sin, cos)
        return SinCos(sin * self.attention_factor, cos * self.attention_factor)

    def rotate(self, x: ArrayT, sincos: tuple[Array, Array], *, seq_dim: int, inverse: bool = False) -> ArrayT:
        """Rotate one array by tables of `sincos`; `apply_rotary_pos_emb` explains the axes.

        Parameters
        ----------
        x : array, "*batch head_dim"
        sincos : (array, array), "*axes pairs"
        seq_dim : int
            The sequence axis of `x`.
        inverse : bool
            Turn by the opposite angles.

        Returns
        -------
        array, "*batch head_dim"

        Raises
        ------
        ValueError
            If shapes do not fit.
        TypeError
            If dtypes or libraries do not.

        Examples
        --------
        >>> import numpy as np
        >>> rope = RotaryEmbedding(head_dim=4, layout="interleaved", base=10_000.0)
        >>> x, sincos = np.ones((3, 4)), rope.sincos(np.arange(3), like=np.zeros(1))
        >>> bool(np.allclose(rope.rotate(rope.rotate(x, sincos, seq_dim=0), sincos, seq_dim=0, inverse=True), x))
        True
        """
        who = "RotaryEmbedding.rotate"
        self._check(who, "x", x)
        return self._rotate(who, x, sincos, seq_dim, inverse)

    def shift(self, k: ArrayT, delta: int | Array, *, seq_dim: int) -> ArrayT:
        """Move keys that are rotated already, such as those of a cache, by `delta` positions.

        The attention factor, which they carry already, is not applied again.

        Parameters
        ----------
        k : array, "*batch head_dim"
            Rotated keys.
        delta : int or array, "", "seq", "batch seq", "batch 1" or with one axis less than `k`
            How far to move, in tokens: all of them, each token, or each row. Arrays may hold real numbers.
        seq_dim : int
            The sequence axis of `k`.

        Returns
        -------
        array, "*batch head_dim"

        Raises
        ------
        ValueError
            If shapes do not fit.
        TypeError
            If `delta` is neither an int nor an array of real numbers.

        Examples
        --------
        >>> import numpy as np
        >>> rope = RotaryEmbedding(head_dim=4, layout="half", base=10_000.0)
        >>> k = np.ones((3, 4))
        >>> moved = rope.shift(rope(k, positions=np.asarray([5, 6, 7]), seq_dim=0), -5, seq_dim=0)
        >>> bool(np.allclose(moved, rope(k, seq_dim=0)))
        True
        """
        who = "RotaryEmbedding.shift"
        self._check(who, "k", k)
        if checks.is_int(delta):
            delta = count_from(who, "delta", delta, 1, like=k)[0]
        elif not hasattr(delta, "shape"):
            raise TypeError(f"{who}: delta must be an int or an array of real numbers; got {type(delta).__name__}")
        moves: Any = checks.positions(who, "delta", delta, like=k)
        axes_left = k.ndim - 1 - moves.ndim
        if axes_left > 0 and (not moves.ndim or moves.shape[-1] == 1):
            moves = backends.namespace(moves).reshape(moves, (*moves.shape, *[1] * axes_left))
        axes_on(who, "delta", moves.shape, 0, k, seq_dim)
        return self._rotate(who, k, self._unscaled(who, moves, k), seq_dim)

    def describe(self) -> str:
        """What runs, in words: widths, pairing, base, scaling, magnitude, wavelengths and how phases are computed.

        Examples
        --------
        >>> print(RotaryEmbedding(head_dim=128, layout="half", base=10_000.0, rotary_dim=64).describe())
        channels          the first 64 of 128 turn
        pairs             32
        layout            half (channel j with j + pairs: GPT-NeoX, Llama in transformers)
        frequencies       10000.0 ** (-2 j / 64) radians per token
        wavelengths       6.28319 to 47117.2 tokens
        scaling           none
        attention factor  1.0
        phase             exact (sin and cos within 2e-7 at every int32 position)
        """
        if not self._frequencies.are_floats:
            frequencies, wavelengths = "given as an array, in radians per token", "those of the array"
        else:
            formula = f"{self.base} ** (-2 j / {self.rotary_dim})"
            frequencies = f"{'given, in' if self.base is None else formula} radians per token"
            turning = [2 * pi / abs(frequency) for frequency in self._frequencies.inv_freq if frequency]
            wavelengths = f"{min(turning):g} to {max(turning):g} tokens" if turning else "none: nothing turns"
        rows = {
            "channels": f"the first {self.rotary_dim} of {self.head_dim} turn",
            "pairs": str(self.pairs),
            "layout": f"{self.layout} ({LAYOUTS[self.layout]})",
            "frequencies": frequencies,
            "wavelengths": wavelengths,
            "scaling": "none",
            "attention factor": str(self.attention_factor),
            "phase": f"{self.phase} ({PHASES[self.phase]})",
        }
        return "\n".join(f"{name:<18}{value}" for name, value in rows.items())

    def __repr__(self) -> str:
        default = {each.name: each.default for each in fields(self) if each.init}
        default["rotary_dim"] = self.head_dim
        values = {name: getattr(self, name) for name in default}
        # Learned frequencies are an array, which not every library compares with None.
        shown = {name: value for name, value in values.items() if name == "inv_freq" or value != default[name]}
        if self.base is not None:
            del shown["inv_freq"]
        return f"RotaryEmbedding({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, RotaryEmbedding) else NotImplemented

    def __hash__(self) -> int:
        if not self._frequencies.are_floats:
            raise TypeError(
                "RotaryEmbedding: a value with learned frequencies must not be hashed, as it holds an array; "
                f"got inv_freq of shape {checks.shape(self.inv_freq)}: make it inside the function instead"
            )
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        if not self._frequencies.are_floats:
            values["inv_freq"] = id(self.inv_freq)  # an array equals itself alone
        return tuple(values.values())

    def _check(self, who: str, name: str, x: Any) -> None:
        checks.floating(who, name, x)
        if not x.ndim or x.shape[-1] != self.head_dim:
            raise ValueError(f"{who}: {name} must have head_dim={self.head_dim} channels; got shape {checks.shape(x)}")

    def _rotate(self, who: str, x: Any, sincos: Any, seq_dim: int, inverse: bool = False) -> Any:
        return rotate(who, x, sincos, layout=self.layout, seq_dim=seq_dim, inverse=inverse, pairs=self.pairs)

    def _unscaled(self, who: str, positions: Any, like: Any) -> SinCos:
        return sincos_of(who, positions, self._frequencies, like=like, phase=self.phase)


def _positions_of(who: str, arrays: tuple[Any, ...], positions: Any, seq_dim: int) -> Any:
    """The positions given, which must fit all arrays, or 0, 1, 2, ... for arrays of one length."""
    if positions is not None:
        positions = checks.positions(who, "positions", positions, like=arrays[0])
        for x in arrays:
            axes_on(who, "positions", positions.shape, 0, x, seq_dim)
        return positions
    lengths = [x.shape[checks.axis(who, seq_dim, x)] for x in arrays]
    if any(length != lengths[0] for length in lengths):
        raise ValueError(f"{who}: positions must be given where lengths on seq_dim={seq_dim} differ; got {lengths}")
    return count_from(who, "positions", 0, lengths[0], like=arrays[0])


def _given_frequencies(who: str, inv_freq: Any) -> tuple[Any, int]:
    """Frequencies as a tuple of floats, or the array that they are, and how many there are."""
    if backends.namespace(inv_freq) is not None and not backends.is_host(inv_freq):
        checks.floating(who, "inv_freq", inv_freq, ("float32", "float64"))
        if inv_freq.ndim != 1 or not inv_freq.shape[0]:
            raise ValueError(f"{who}: inv_freq must have one axis, not empty; got shape {checks.shape(inv_freq)}")
        return inv_freq, inv_freq.shape[0]
    if backends.is_host(inv_freq) and (inv_freq.ndim != 1 or inv_freq.dtype.kind != "f" or inv_freq.itemsize < 4):
        raise TypeError(
            f"{who}: inv_freq must be float32 or float64 with one axis; "
            f"got {inv_freq.dtype} of shape {checks.shape(inv_freq)}"
        )
    if not backends.is_host(inv_freq) and not (
        isinstance(inv_freq, (tuple, list))
        and all(isinstance(number, (float, np.floating)) or checks.is_int(number) for number in inv_freq)
    ):
        raise TypeError(f"{who}: inv_freq must be a sequence of floats or an array; got {inv_freq!r}")
    try:
        numbers = tuple(float(number) for number in inv_freq)
    except OverflowError:  # an int beyond float64
        numbers = (inf,)
    if not numbers or not all(abs(number) < LIMIT for number in numbers):
        raise ValueError(
            f"{who}: inv_freq must be below {LIMIT:g} radians per position, at least one; got {inv_freq!r}"
        )
    return numbers, len(numbers)
