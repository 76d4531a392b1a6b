"""A model's rotary embedding: frequencies, pairing and magnitude joined in one frozen value."""

from collections.abc import Sequence
from copy import copy
from dataclasses import MISSING, dataclass, field, fields
from math import inf, nextafter, pi
from textwrap import fill
from typing import Any, ClassVar, Literal, overload

import numpy as np

from rope_xp._core import backends, checks, kernels
from rope_xp._core.angles import PHASES, Phase, SinCos, sincos_of
from rope_xp._core.arrays import Array, ArrayT, OtherT
from rope_xp._core.axes import ORDERS, Sections
from rope_xp._core.kernels import KERNELS, Kernel
from rope_xp._core.kernels.pair_rotation import Angles, Rotation
from rope_xp._core.phases import LIMIT, Frequencies, difference
from rope_xp._core.provenance import Provenance
from rope_xp._core.rotation import (
    LAYOUTS,
    READ_WRITE,
    Layout,
    align_positions,
    align_tables,
    broadcast_axes,
    select_rows,
)
from rope_xp.frequencies import NTKScaling, Scaling, XPos
from rope_xp.positions._sequence import count_from

Role = Literal["query", "key"]

ROLES = {"query": "grows with position", "key": "shrinks with position"}


class _Derived:
    """What follows from the fields of `RotaryEmbedding`. An annotation in the dataclass itself would be a field."""

    _frequencies: Frequencies
    _rates: tuple[float, ...]
    _rotation: Rotation


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RotaryEmbedding(_Derived):
    """A rotary position embedding as a value: it holds no arrays of state, and the result depends on arguments alone.

    It can be an attribute of a PyTorch, Flax NNX or Equinox module, a closed-over value, or an argument of `jax.jit`
    that `static_argnums` names; nothing in it is a parameter or a buffer, so that casting or moving a module cannot
    touch it. `replace` gives the same value but for some arguments.

    Learned frequencies are the exception: the array stays the caller's, and a module makes the value anew from its
    parameter in every forward pass.

    Parameters
    ----------
    head_dim : int
        Channels of a head, even.
    layout : "half", "interleaved" or "interleaved_to_half"
        Which channels form a pair: ``(j, j + pairs)`` as GPT-NeoX and transformers' Llama do, or ``(2j, 2j + 1)`` as
        RoFormer, GPT-J and Meta's checkpoints do, or read so and written in halves as DeepSeek-V3 does. There is no
        default: the wrong one raises nothing and ruins a model.
    base : float
        Pair j turns by ``base ** (-2 j / rotary_dim)`` radians per position. At least 1; required unless `inv_freq` is
        given.
    rotary_dim : int, optional
        How many channels turn; the others pass through. Even; all of `head_dim` from `first_channel` on by default.
    first_channel : int
        Where the channels that turn begin.
    blocks : int
        The channels that turn fall into so many equal blocks, each with halves of its own. Only with ``layout="half"``.
    scaling : Scaling, optional
        A rule such as `YarnScaling`, which changes the progression of `base`.
    sections : Sections, optional
        Several position axes: which of them each pair follows. Positions then have those axes first.
    inv_freq : sequence of float, nested sequences of float, or array, optional
        Frequencies in radians per position, "pairs", "axes pairs" or "axes heads pairs", in place of `base`, `scaling`
        and `sections`. An array of another library than NumPy's, float32 or float64, is differentiable, so that
        frequencies can be learned; such a value is not hashable. Where such a frequency is ``2**16`` or more, or no
        number, tables are NaN. Without `rotary_dim`, two channels turn for each pair.
    attention_factor : float, optional
        Magnitude by which sines and cosines are multiplied; by default that of `scaling`, or 1.
    xpos : XPos, optional
        Growth of queries and decay of keys. Calls then take the query first and keys after it.
    reverse : bool
        Turn the other way, as nanochat does.
    phase : "exact" or "float32"
        How position times frequency is computed, see `fixed_pos_embedding`.
    kernel : "fastest", "reference", "blocked", "numba", "triton" or "xla"
        What rotates, see `apply_rotary_pos_emb`; and but for `"reference"`, tables on the host are made faster.

    Attributes
    ----------
    head_dim, rotary_dim, first_channel, blocks, pairs, axes : int
    heads : int or None
        Of frequencies that each head has of its own.
    layout, phase, kernel : str
    base : float or None
    scaling, sections, xpos : as given
    inv_freq : tuple of float, nested tuples of float, or array
        "pairs" for one position axis, "axes pairs" for several, "axes heads pairs" for heads.
    attention_factor : float
    reverse : bool

    Raises
    ------
    ValueError
        If a width is odd or does not fit, `layout` or `phase` is unknown, `base` is less than 1, `attention_factor` is
        not positive, a frequency is ``2**16`` or more, or what is given is not enough or contradicts itself.
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
    first_channel: int = 0
    blocks: int = 1
    scaling: Scaling | None = None
    sections: Sections | None = None
    inv_freq: Sequence[Any] | Array | None = None
    attention_factor: float | None = None
    xpos: XPos | None = None
    reverse: bool = False
    phase: Phase = "exact"
    kernel: Kernel = "fastest"
    pairs: int = field(init=False)
    axes: int = field(init=False)
    heads: int | None = field(init=False)
    # What `scaling` is, and was in the value that `dataclasses.replace` changes: it passes on the attention factor made
    # of it as if it was given.
    _scaling: Scaling | None = field(default=None, repr=False)
    # Of a value that `from_config` made, `with_provenance` sets another.
    _provenance: ClassVar[Provenance] = Provenance()

    def __post_init__(self) -> None:
        who = "RotaryEmbedding"
        head_dim = checks.even_size(who, "head_dim", self.head_dim)
        checks.one_of(who, "layout", self.layout, LAYOUTS)
        checks.one_of(who, "phase", self.phase, PHASES)
        checks.one_of(who, "kernel", self.kernel, KERNELS)
        for name, kind in (("scaling", Scaling), ("sections", Sections), ("xpos", XPos)):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                example = ", such as YarnScaling(...)" if kind is Scaling else ""
                raise TypeError(f"{who}: {name} must be a {kind.__name__}{example}; got {value!r}")
        reverse = checks.boolean(who, "reverse", self.reverse)
        base = None if self.base is None else checks.at_least(who, "base", self.base, 1.0)
        first_channel = checks.count(who, "first_channel", self.first_channel)
        if first_channel > head_dim - 2:
            raise ValueError(f"{who}: first_channel must leave a pair of head_dim={head_dim}; got {first_channel}")
        rotary_dim = self.rotary_dim
        if rotary_dim is None and self.inv_freq is None:
            rotary_dim = head_dim - first_channel
        if rotary_dim is not None:
            rotary_dim = checks.even_size(who, "rotary_dim", rotary_dim, head_dim - first_channel)

        expected = None
        if base is not None and rotary_dim is not None:
            expected = _progression(who, base, rotary_dim, self.scaling, self.sections, reverse)
        if self.inv_freq is None:
            if expected is None:
                raise ValueError(f"{who}: base or inv_freq must be given; got neither")
            frequencies = Frequencies(expected)
        else:
            frequencies = Frequencies(_given_frequencies(who, self.inv_freq))
            rotary_dim = 2 * frequencies.pairs if rotary_dim is None else rotary_dim
            if 2 * frequencies.pairs != rotary_dim or first_channel + rotary_dim > head_dim:
                raise ValueError(
                    f"{who}: inv_freq must have rotary_dim / 2 frequencies, and rotary_dim fit into head_dim; "
                    f"got {frequencies.pairs} for rotary_dim={rotary_dim}, first_channel={first_channel} and "
                    f"head_dim={head_dim}"
                )
            if base is None and (self.scaling is not None or self.sections is not None or reverse):
                raise ValueError(f"{who}: scaling, sections and reverse must be given with a base; got inv_freq alone")
            if base is not None and not (frequencies.are_floats and frequencies.inv_freq == expected):
                raise ValueError(
                    f"{who}: base, scaling and sections must not contradict inv_freq (None makes it anew); "
                    f"got base={base}"
                )
        blocks = checks.count(who, "blocks", self.blocks)
        if blocks != 1 and (self.layout != "half" or not blocks or frequencies.pairs % blocks):
            raise ValueError(
                f"{who}: blocks must divide the {frequencies.pairs} pairs, and be 1 but for layout='half'; "
                f"got {blocks} for layout={self.layout!r}"
            )
        if self.xpos is not None and (frequencies.axes > 1 or frequencies.heads is not None):
            raise ValueError(f"{who}: xpos must be given with one position axis; got {frequencies.axes} axes")

        before, factor = self._scaling, self.attention_factor
        if before is not None and self.scaling is None and factor is not None and factor == before.magnitude != 1.0:
            raise ValueError(
                f"{who}: attention_factor must not be kept of a scaling that is gone (`rope.replace` makes it anew); "
                f"got {factor}, of {before}"
            )

        resolved = {
            "_scaling": self.scaling,
            "head_dim": head_dim,
            "base": base,
            "rotary_dim": rotary_dim,
            "first_channel": first_channel,
            "blocks": blocks,
            "inv_freq": frequencies.inv_freq,
            "attention_factor": _magnitude(who, self.attention_factor, self.scaling),
            "reverse": reverse,
            "pairs": frequencies.pairs,
            "axes": frequencies.axes,
            "heads": frequencies.heads,
            "_frequencies": frequencies,
            "_rates": () if self.xpos is None else self.xpos.rates(2 * frequencies.pairs),
            "_rotation": Rotation(*READ_WRITE[self.layout], first_channel, blocks),
        }
        for name, value in resolved.items():
            object.__setattr__(self, name, value)

    @overload
    def __call__(
        self,
        x: ArrayT,
        *,
        positions: Array | None = None,
        sincos: tuple[Array, Array] | None = None,
        seq_dim: int,
        heads_dim: int | None = None,
    ) -> ArrayT: ...
    @overload
    def __call__(
        self,
        x: ArrayT,
        other: OtherT,
        /,
        *,
        positions: Array | None = None,
        sincos: tuple[Array, Array] | None = None,
        seq_dim: int,
        heads_dim: int | None = None,
    ) -> tuple[ArrayT, OtherT]: ...
    @overload
    def __call__(
        self,
        x: ArrayT,
        /,
        *others: ArrayT,
        positions: Array | None = None,
        sincos: tuple[Array, Array] | None = None,
        seq_dim: int,
        heads_dim: int | None = None,
    ) -> tuple[ArrayT, ...]: ...
    def __call__(
        self,
        x: Array,
        *others: Array,
        positions: Array | None = None,
        sincos: tuple[Array, Array] | None = None,
        seq_dim: int,
        heads_dim: int | None = None,
    ) -> Any:
        """Rotate queries and keys.

        Parameters
        ----------
        x, *others : array, "*batch head_dim"
            Such as q and k; the tables are made once for all of them.
        positions : array, "seq", "batch seq" or with one axis less than `x`, optional
            Where each token is: integers of any sign and order, or real numbers. By default 0, 1, 2, ... Several
            position axes come first, as "axes seq" or "axes batch seq", and are required. With `sincos`, integers
            that number its rows. Beside a DTensor of PyTorch, plain tensors are the same on every rank.
        sincos : (array, array), "*axes pairs", or "rows pairs" with positions, optional
            Tables of `sincos`, made once in a forward pass, or once and for all: of 0, 1, 2, ..., among which positions
            choose. Where they have no such row, as for -1, the result, and its gradient, is NaN in all channels that
            turn.
        seq_dim : int
            The sequence axis of `x` and of each of the others.
        heads_dim : int, optional
            The axis of heads, for frequencies that each head has of its own.

        Returns
        -------
        array, or tuple of array
            One for one, several for several, each as it came: library, shape, dtype and device.

        Raises
        ------
        ValueError
            If shapes do not fit, tables are given with xpos or rows of them with `heads_dim`, or the kernel is not
            installed or does not serve `x`.
        TypeError
            If a dtype is not floating point, arrays are of two libraries, or positions select rows by real numbers.

        Examples
        --------
        >>> import numpy as np
        >>> rope = RotaryEmbedding(head_dim=2, layout="half", base=10_000.0)
        >>> x, where = np.asarray([[1.0, 0.0], [1.0, 0.0]]), np.asarray([0, 1])
        >>> rope(x, positions=where, seq_dim=0).round(3)
        array([[1.   , 0.   ],
               [0.54 , 0.841]])
        >>> sincos = rope.sincos(np.arange(4096), like=x)  # once and for all
        >>> rope(x, sincos=sincos, positions=where, seq_dim=0).round(3)
        array([[1.   , 0.   ],
               [0.54 , 0.841]])
        """
        who = "RotaryEmbedding"
        arrays = self._checked(who, x, *others)
        if sincos is not None:
            if self.xpos is not None:
                raise ValueError(f"{who}: sincos must be given without xpos; got xpos={self.xpos}")
            angles = self._given(who, arrays, sincos, positions, seq_dim, heads_dim)
            return self._rotated(who, arrays, angles, self._rotation)
        where = self._positions_of(who, arrays, positions, seq_dim)
        if heads_dim is None and self._is_computed(who, where, x):
            opposite = align_positions(who, arrays, where, seq_dim)
            scale = self.attention_factor
            rotated = kernels.rotate_by_positions(
                arrays, opposite, self._frequencies, scale, self._rotation, self.kernel
            )
            return _one_or_all(rotated)
        widest = next((one for one in arrays if backends.dtype_name(one.dtype) == "float64"), x)
        if self.xpos is None:
            tables = self._align_tables(who, arrays, self.sincos(where, like=widest), seq_dim, heads_dim)
        elif len(arrays) == 1:
            raise ValueError(f"{who}: xpos must be given the query and then keys; got one array: use sincos and rotate")
        else:
            query, key = (self.sincos(where, like=widest, role=role) for role in ("query", "key"))
            tables = self._align_tables(who, [x], query, seq_dim, heads_dim)
            tables += self._align_tables(who, others, key, seq_dim, heads_dim)
        return self._rotated(who, arrays, tables, self._rotation)

    def sincos(self, positions: Array, *, like: Array | None = None, role: Role | None = None) -> SinCos:
        """Tables of positions: make them once in a forward pass and share them between layers.

        Parameters
        ----------
        positions : array, "*batch seq", or "axes *batch seq" for several position axes
            In tokens: integers, or real numbers: float32 below ``2**31``, float64 below ``2**63``; beyond, tables are
            NaN. NumPy's go with any `like`.
        like : array, optional
            Whose library to use; float64 tables for float64, float32 for all else. On PyTorch, `positions` must be on
            its device.
        role : "query" or "key", optional
            Whose tables; required with `xpos`, where they differ.

        Returns
        -------
        SinCos, each "*batch seq pairs", or "*batch seq heads pairs" for frequencies that each head has of its own

        Raises
        ------
        TypeError
            If `positions` is no array of real numbers, or of a third library.
        ValueError
            If 64-bit values do not fit where only 32 bits exist, or the position axes are not those of the frequencies.

        Examples
        --------
        >>> import numpy as np
        >>> RotaryEmbedding(head_dim=2, layout="half", base=10_000.0).sincos(np.asarray([0, 2**31 - 1])).sin
        array([[ 0.       ],
               [-0.7249166]], dtype=float32)
        """
        who = "RotaryEmbedding.sincos"
        sin, cos = self._unscaled(who, positions, like)
        magnitude: Any = None if self.attention_factor == 1.0 else self.attention_factor
        if role is not None or self.xpos is not None:
            checks.one_of(who, "role", role, ROLES)
        if self.xpos is not None:
            where = checks.positions(who, "positions", positions, like=sin)
            tokens = difference(where, self.xpos.centre, sin.dtype)
            scale = self._growth(1 if role == "query" else -1, tokens, sin)
            magnitude = scale if magnitude is None else scale * magnitude
        return SinCos(sin, cos) if magnitude is None else SinCos(sin * magnitude, cos * magnitude)

    def rotate(
        self,
        x: ArrayT,
        sincos: tuple[Array, Array],
        *,
        seq_dim: int,
        inverse: bool = False,
        transpose: bool = False,
        heads_dim: int | None = None,
    ) -> ArrayT:
        """Rotate one array by tables of `sincos`; `apply_rotary_pos_emb` explains the axes.

        Parameters
        ----------
        x : array, "*batch head_dim"
        sincos : (array, array), "*axes pairs"
        seq_dim : int
            The sequence axis of `x`.
        inverse : bool
            Give back what was rotated by these tables: turn by the opposite angles and divide by the magnitude, the
            attention factor and, with `xpos`, the growth or decay (NaN where tables are 0 or infinite). What the layout
            writes is then read, and what it reads is written.
        transpose : bool
            Turn by the opposite angles and multiply by the magnitude again: the transpose of the rotation, which its
            gradient needs. Not together with `inverse`, which it equals where the magnitude is 1.
        heads_dim : int, optional
            The axis of heads, for frequencies that each head has of its own.

        Returns
        -------
        array, "*batch head_dim"

        Raises
        ------
        ValueError
            If shapes do not fit, or both `inverse` and `transpose` are true.
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
        arrays = self._checked(who, x)
        rotation = self._turn_of(who, inverse, transpose)
        angles: Angles = self._align_tables(who, arrays, sincos, seq_dim, heads_dim)
        return self._rotated(who, arrays, self._inverted(angles) if inverse else angles, rotation)

    def rotate_inplace(
        self,
        x: ArrayT,
        *others: ArrayT,
        sincos: tuple[Array, Array],
        positions: Array | None = None,
        seq_dim: int,
        inverse: bool = False,
        transpose: bool = False,
        heads_dim: int | None = None,
    ) -> None:
        """Rotate arrays by tables of `sincos` and write the results over them, for inference.

        No derivative passes through it. Everything is checked before anything is written.

        Parameters
        ----------
        x, *others : array of NumPy or PyTorch, "*batch head_dim"
            Such as q and k: writable memory that none of them shares with another, with the tables or positions.
        sincos, seq_dim, inverse, transpose, heads_dim
            As in `rotate`.
        positions : array, "seq", "batch seq" or with one axis less than `x`, optional
            Integers that number rows of `sincos`, "rows pairs"; where it has no such row, NaN is written.

        Raises
        ------
        ValueError
            If shapes do not fit, both `inverse` and `transpose` are true, or memory is read-only, shared, or of a
            tensor that requires grad.
        TypeError
            If dtypes or libraries do not fit, or a library's arrays cannot be written, such as JAX's.

        Examples
        --------
        >>> import numpy as np
        >>> rope = RotaryEmbedding(head_dim=4, layout="interleaved", base=10_000.0)
        >>> q, k = np.ones((3, 2, 4)), np.ones((3, 1, 4))
        >>> sincos = rope.sincos(np.arange(3), like=q)
        >>> rotated = rope.rotate(q, sincos, seq_dim=0)
        >>> rope.rotate_inplace(q, k, sincos=sincos, seq_dim=0)
        >>> bool((q == rotated).all())
        True
        """
        who = "RotaryEmbedding.rotate_inplace"
        arrays = self._checked(who, x, *others)
        rotation = self._turn_of(who, inverse, transpose)
        angles = self._given(who, arrays, sincos, positions, seq_dim, heads_dim)
        kernels.rotate_inplace(who, arrays, self._inverted(angles) if inverse else angles, rotation, self.kernel)

    def shift(self, k: ArrayT, delta: int | Array, *, seq_dim: int, heads_dim: int | None = None) -> ArrayT:
        """Move keys that are rotated already, such as those of a cache, by `delta` positions.

        The attention factor, which they carry already, is not applied again.

        Parameters
        ----------
        k : array, "*batch head_dim"
            Rotated keys.
        delta : int or array, "", "seq", "batch seq", "batch 1" or with one axis less than `k`
            How far to move, in tokens: all of them, each token, or each row. Arrays may hold real numbers.
            Several position axes come first; an int moves along all of them.
        seq_dim : int
            The sequence axis of `k`.
        heads_dim : int, optional
            The axis of heads, for frequencies that each head has of its own.

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
        self._checked(who, k, name="k")
        if checks.is_int(delta):
            delta = count_from(who, "delta", delta, 1, like=k)[0]
            if self.axes > 1:
                delta = backends.namespace(delta).stack([delta] * self.axes)
        elif backends.namespace(delta) is None:
            raise TypeError(f"{who}: delta must be an int or an array of real numbers; got {type(delta).__name__}")
        moves: Any = checks.positions(who, "delta", delta, like=k)
        own = self._own_axes(who, "delta", moves)
        axes_left = k.ndim - 1 - (moves.ndim - len(own)) - (self.heads is not None)
        if axes_left > 0 and (moves.ndim == len(own) or moves.shape[-1] == 1):
            moves = backends.with_axes(backends.namespace(moves), moves, (*moves.shape, *[1] * axes_left))
        if self.heads is None:
            broadcast_axes(who, "delta", moves.shape[len(own) :], 0, k, seq_dim)
        sincos = self._unscaled(who, moves, k)
        if self.xpos is not None:
            # The decay of a key over so many tokens, which no centre changes.
            scale = self._growth(-1, moves, sincos.sin)
            sincos = SinCos(sincos.sin * scale, sincos.cos * scale)
        rotation = self._rotation._replace(read=self._rotation.write)  # rotated keys stand as they were written
        return self._rotated(who, [k], self._align_tables(who, [k], sincos, seq_dim, heads_dim), rotation)

    def replace(self, **changes: Any) -> "RotaryEmbedding":
        """The same value but for some arguments; what follows from them is made anew.

        Frequencies follow from `base`, `rotary_dim`, `scaling`, `sections` and `reverse`, the attention factor from
        `scaling`, and the width that turns from `head_dim` and `first_channel` where all channels did. What was given
        in place of them stays, such as an attention factor without a scaling. (`dataclasses.replace` takes what was
        made for given: it refuses other frequencies without ``inv_freq=None``, and the attention factor of a scaling
        that is gone.)

        Parameters
        ----------
        **changes
            Arguments of `RotaryEmbedding`. For frequencies in place of a base: `inv_freq`, with ``base=None`` and, of
            `scaling`, `sections` and `reverse`, what the value has, as None or False.

        Returns
        -------
        RotaryEmbedding

        Raises
        ------
        ValueError, TypeError
            As `RotaryEmbedding` does.

        Examples
        --------
        >>> from rope_xp import YarnScaling
        >>> yarn = YarnScaling(factor=4.0, original_max_position_embeddings=4096)
        >>> rope = RotaryEmbedding(head_dim=8, layout="half", base=10_000.0, scaling=yarn)
        >>> rope.attention_factor
        1.138629436111989
        >>> rope.replace(scaling=None)
        RotaryEmbedding(head_dim=8, layout='half', base=10000.0)
        >>> rope.replace(scaling=None, base=100.0, rotary_dim=4).inv_freq
        (1.0, 0.1)
        """
        given = {name: getattr(self, name) for name in _ARGUMENTS}
        if self.base is not None:
            given["inv_freq"] = None
            if self.rotary_dim == self.head_dim - self.first_channel:
                given["rotary_dim"] = None
        if self.scaling is not None or self.attention_factor == 1.0:
            given["attention_factor"] = None
        return type(self)(**{**given, **changes})

    __replace__ = replace  # which `copy.replace` calls

    def describe(self, x: Array | None = None) -> str:
        """What runs, in words: widths, pairing, base, scaling, magnitude, wavelengths, phases and kernel.

        Values that a config did not state are marked, with whose default they are.

        Parameters
        ----------
        x : array, optional
            For which to say what the fastest kernel is, as long as it is plain numbers: for what tensors carry besides
            (subclasses, transforms, tables with gradients) the reference steps in.

        Returns
        -------
        str

        Raises
        ------
        ValueError
            If the kernel is not installed or does not serve `x`.
        TypeError
            If `x` is no array or not floating point.

        Examples
        --------
        >>> print(RotaryEmbedding(head_dim=128, layout="half", base=10_000.0, rotary_dim=64).describe())
        channels          the first 64 of 128 turn
        pairs             32
        layout            half (channel j with j + pairs: GPT-NeoX, Llama in transformers)
        frequencies       10000.0 ** (-2 j / 64), in radians per token
        wavelengths       6.28319 to 47117.2 tokens
        scaling           none
        attention factor  1.0
        phase             exact (sin and cos within 2e-7 at every int32 position)
        kernel            fastest (the fastest kernel that supports the arrays)
        """
        kernel, passed_over = self.kernel, ""
        if x is not None:
            checks.floating("RotaryEmbedding.describe", "x", x)
            kernel = kernels.choose("RotaryEmbedding.describe", x, kernel)
            passed_over = kernels.passed_over(x, kernel) if self.kernel == "fastest" else ""
        if not self._frequencies.are_floats:
            frequencies, wavelengths = "given as an array, in radians per token", "those of the array"
        else:
            formula = "given" if self.base is None else f"of base {self.base}"
            if self.base is not None and self.sections is None and self.scaling is None:
                formula = f"{self.base} ** (-2 j / {self.rotary_dim})"
            frequencies = f"{formula}, in radians per token"
            turning = [2 * pi / abs(w) for row in self._frequencies.rows for w in row.inv_freq if w]
            wavelengths = f"{min(turning):g} to {max(turning):g} tokens" if turning else "none: nothing turns"
        idle = self._frequencies.rows[0].inv_freq.count(0.0) if self._frequencies.are_floats and self.axes == 1 else 0
        still = f", of which {idle} stand still" if idle else ""
        axes = "" if self.axes == 1 else str(self.axes)
        if self.sections is not None:
            axes += f", {self.sections.order} {self.sections.sizes} ({ORDERS[self.sections.order]})"
        last = self.first_channel + 2 * self.pairs - 1
        span = f"the first {self.rotary_dim}" if not self.first_channel else f"channels {self.first_channel} to {last}"
        blocks = "" if self.blocks == 1 else f", in {self.blocks} blocks"
        rows = {
            "channels": f"{span} of {self.head_dim} turn{blocks}",
            "pairs": f"{self.pairs}{still}",
            "position axes": axes,
            "heads": "" if self.heads is None else f"{self.heads}, each with frequencies of its own",
            "layout": f"{self.layout} ({LAYOUTS[self.layout]})",
            "frequencies": frequencies,
            "wavelengths": wavelengths,
            "direction": "reversed" if self.reverse else "",
            "scaling": "none" if self.scaling is None else self.scaling.describe(),
            "attention factor": str(self.attention_factor),
            "softmax scale": ""
            if self.softmax_scale == 1.0
            else f"x {self.softmax_scale}, which the model has to apply",
            "decay": "" if self.xpos is None else str(self.xpos),
            "phase": f"{self.phase} ({PHASES[self.phase]})",
            "kernel": f"{kernel} ({KERNELS[kernel]})" + (f"; {passed_over}" if passed_over else ""),
        }
        rows = {name: value + self._provenance.mark(name) for name, value in rows.items() if value}
        lines = [*rows.items(), *self._provenance.lines(rows)]
        return "\n".join(fill(f"{name:<18}{value}", 100, subsequent_indent=" " * 18) for name, value in lines)

    @property
    def softmax_scale(self) -> float:
        """What the scale of the softmax is multiplied by besides, which the model has to do: DeepSeek's YaRN, or 1."""
        return 1.0 if self.scaling is None else self.scaling.softmax_scale

    def to_config(self) -> dict[str, Any]:
        """The `rope_parameters` that transformers 5 would read this from.

        The pairing, which channels turn and how phases are computed are not in it: there, they belong to the model's
        type. `alpha`, which is what `NTKScaling` is called there, is read by Hunyuan's types alone.

        Returns
        -------
        dict
            Of numbers, strings and lists, ready for JSON.

        Raises
        ------
        ValueError
            If such a block cannot say it: given or learned frequencies, xpos, the other direction, an order of axes or
            a scaling rule that transformers does not have, or proportional scaling of a part of the head.

        References
        ----------
        transformers, `modeling_rope_utils.py`, `RopeParameters`.

        Examples
        --------
        >>> RotaryEmbedding(head_dim=128, layout="half", base=10_000.0, rotary_dim=32).to_config()
        {'rope_type': 'default', 'rope_theta': 10000.0, 'partial_rotary_factor': 0.25}
        """
        who = "RotaryEmbedding.to_config"
        unsaid = {"inv_freq": self.base is None, "xpos": self.xpos is not None, "reverse": self.reverse}
        if any(unsaid.values()):
            names = ", ".join(name for name, found in unsaid.items() if found)
            raise ValueError(f"{who}: a transformers config must be able to say it; got {names}")
        rule = Scaling() if self.scaling is None else self.scaling
        block: dict[str, Any] = {"rope_type": rule.rope_type, "rope_theta": self.base}
        if isinstance(rule, NTKScaling):
            block |= {"rope_type": "dynamic", "alpha": rule.factor, "factor": 1.0}
        elif rule.rope_type in ROPE_TYPES:
            for each in fields(rule):
                value = getattr(rule, each.name)
                if each.name not in ("seq_len", "max_position_embeddings") and value is not None:
                    block[each.name] = list(value) if isinstance(value, tuple) else value
        else:
            raise ValueError(f"{who}: scaling must be a rule that transformers has; got {rule}")
        if self.attention_factor != rule.magnitude:
            raise ValueError(f"{who}: attention_factor must be that of scaling; got {self.attention_factor}")
        if self.rotary_dim != self.head_dim:
            if "partial_rotary_factor" in block:
                raise ValueError(f"{who}: rotary_dim must be head_dim with {rule}; got {self.rotary_dim}")
            share = 2 * self.pairs / self.head_dim
            # Readers multiply and round down.
            exact = int(share * self.head_dim) == self.rotary_dim
            block["partial_rotary_factor"] = share if exact else nextafter(share, 1.0)
        if self.sections is not None:
            if self.sections.order not in ("chunked", "interleaved", "spatial_first", "even_odd"):
                raise ValueError(f"{who}: sections must be in an order that transformers has; got {self.sections}")
            block["mrope_section"] = list(self.sections.sizes)
            if self.sections.order == "interleaved":
                block["mrope_interleaved"] = True
        return block

    def __repr__(self) -> str:
        default = {each.name: each.default for each in fields(self) if each.repr and each.default is not MISSING}
        default["rotary_dim"] = self.head_dim - self.first_channel
        default["attention_factor"] = 1.0 if self.scaling is None else self.scaling.magnitude
        shown = {"head_dim": self.head_dim, "layout": self.layout}
        for name, usual in default.items():
            value = getattr(self, name)
            # Learned frequencies are an array, which not every library compares with None.
            if self.base is None if name == "inv_freq" else value != usual:
                shown[name] = value
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

    def _checked(self, who: str, *arrays: Any, name: str = "x") -> tuple[Any, ...]:
        """Arrays, which must have as many channels as a head, and be of one library and device."""
        for x in arrays:
            checks.floating(who, name, x)
            if not x.ndim or x.shape[-1] != self.head_dim:
                raise ValueError(
                    f"{who}: {name} must have head_dim={self.head_dim} channels; got shape {checks.shape(x)}"
                )
            if x is not arrays[0]:
                checks.alike(who, name, x, arrays[0])
        return arrays

    def _turn_of(self, who: str, inverse: bool, transpose: bool) -> Rotation:
        """The turn there, or back where one of the two is true."""
        inverse, transpose = checks.boolean(who, "inverse", inverse), checks.boolean(who, "transpose", transpose)
        if inverse and transpose:
            raise ValueError(f"{who}: only one of inverse and transpose must be true; got both")
        return self._rotation.inverted() if inverse or transpose else self._rotation

    def _inverted(self, angles: Angles) -> Angles:
        """Tables divided by the square of their magnitude: turned back by them, what they have scaled is as it was."""
        if self.xpos is None and self.attention_factor == 1.0:
            return angles
        divided: dict[tuple[int, int], tuple[Any, Any]] = {}  # so that arrays share tables as before
        for sin, cos, *_ in angles:
            if (id(sin), id(cos)) not in divided:
                divided[id(sin), id(cos)] = self._divided(sin, cos)
        return [(*divided[id(sin), id(cos)], *where) for sin, cos, *where in angles]

    def _divided(self, sin: Any, cos: Any) -> tuple[Any, Any]:
        if self.xpos is None:  # in two steps, as the square may be beyond float32
            return tuple(table / self.attention_factor / self.attention_factor for table in (sin, cos))
        # The magnitude of each pair is its own, and its square may be beyond float32.
        xp = backends.namespace(sin)
        greater = xp.maximum(xp.abs(sin), xp.abs(cos))
        sin, cos = sin / greater, cos / greater
        square = (sin * sin + cos * cos) * greater  # of the directions, times one of two magnitudes
        return sin / square, cos / square

    def _rotated(self, who: str, arrays: Sequence[Any], angles: Angles, rotation: Rotation) -> Any:
        rotated = kernels.rotate(who, arrays, angles, rotation, self.kernel)
        return _one_or_all(rotated)

    def _given(
        self, who: str, arrays: Sequence[Any], sincos: Any, positions: Any, seq_dim: int, heads_dim: int | None
    ) -> Angles:
        """The tables given, or the rows of them that positions choose."""
        if positions is None:
            return self._align_tables(who, arrays, sincos, seq_dim, heads_dim)
        if self.heads is not None or heads_dim is not None:
            raise ValueError(
                f"{who}: positions must choose rows of tables for all heads; "
                f"got {self.heads} heads with frequencies of their own, and heads_dim={heads_dim}"
            )
        return select_rows(who, arrays, sincos, positions, seq_dim, self.pairs)

    def _is_computed(self, who: str, positions: Any, x: Any) -> bool:
        """Whether the kernel for `x` makes the angles of positions itself, so that nobody makes tables."""
        plain = self._frequencies.are_a_row and self.phase == "exact" and self.xpos is None
        return plain and not backends.is_real(positions) and kernels.computes_angles(who, x, self.kernel)

    def _align_tables(
        self, who: str, arrays: Sequence[Any], sincos: Any, seq_dim: int, heads_dim: int | None
    ) -> list[tuple[Any, Any]]:
        if (heads_dim is None) != (self.heads is None):
            raise ValueError(
                f"{who}: heads_dim must be given for frequencies that each head has of its own, and for no others; "
                f"got {heads_dim}"
            )
        return align_tables(who, arrays, sincos, seq_dim, columns=self.pairs, heads=self.heads, heads_dim=heads_dim)

    def _unscaled(self, who: str, positions: Any, like: Any) -> SinCos:
        if self.axes > 1:
            self._own_axes(who, "positions", positions)
        return sincos_of(who, positions, self._frequencies, like=like, phase=self.phase, kernel=self.kernel)

    def _growth(self, sign: int, tokens: Any, like: Any) -> Any:
        """The growth of a query, or with -1 the decay of a key, over so many tokens."""
        tokens = backends.astype(tokens, like.dtype)[..., None]
        rates = backends.from_numbers(self._rates, like=like, dtype=like.dtype)
        rates = backends.with_axes(backends.namespace(rates), rates, (*[1] * (tokens.ndim - 1), *rates.shape))
        return backends.namespace(like).exp(sign * tokens * rates)

    def _own_axes(self, who: str, name: str, positions: Any) -> tuple[int, ...]:
        """The axes of positions before those of `x`: the position axis, where there are several."""
        if self.axes == 1:
            return ()
        checks.array(who, name, positions)
        if positions.ndim < 1 or positions.shape[0] != self.axes:
            raise ValueError(
                f"{who}: {name} must have its {self.axes} position axes first, such as ({self.axes}, seq); "
                f"got shape {checks.shape(positions)}"
            )
        return (self.axes,)

    def _positions_of(self, who: str, arrays: tuple[Any, ...], positions: Any, seq_dim: int) -> Any:
        """The positions given, which must fit all arrays, or 0, 1, 2, ... for arrays of one length."""
        if positions is not None:
            positions = checks.positions(who, "positions", positions, like=arrays[0])
            own = self._own_axes(who, "positions", positions)
            for x in arrays if self.heads is None else ():
                broadcast_axes(who, "positions", positions.shape[len(own) :], 0, x, seq_dim)
            return positions
        if self.axes > 1:
            raise ValueError(f"{who}: positions must be given where they have {self.axes} axes; got None")
        axes = [checks.axis(who, seq_dim, x) for x in arrays]
        lengths = [x.shape[axis] for x, axis in zip(arrays, axes)]
        if any(length != lengths[0] for length in lengths):
            raise ValueError(f"{who}: positions must be given where lengths on seq_dim={seq_dim} differ; got {lengths}")
        return count_from(who, "positions", 0, backends.size_of(arrays[0], axes[0]), like=arrays[0])


# What a value is made of, by name.
_ARGUMENTS = tuple(each.name for each in fields(RotaryEmbedding) if each.init and each.repr)


def with_provenance(rope: RotaryEmbedding, provenance: Provenance) -> RotaryEmbedding:
    """An equal value that says where its values come from."""
    made = copy(rope)
    object.__setattr__(made, "_provenance", provenance)
    return made


def _one_or_all(rotated: list[Any]) -> Any:
    """One array for one, and a tuple for several."""
    return tuple(rotated) if len(rotated) > 1 else rotated[0]


ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")


@backends.host_constant
def _progression(
    who: str, base: float, rotary_dim: int, scaling: Scaling | None, sections: Sections | None, reverse: bool
) -> tuple[Any, ...]:
    """The frequencies that a base makes: "pairs", or "axes pairs"."""
    rule = Scaling() if scaling is None else scaling
    sign = -1.0 if reverse else 1.0
    if sections is None:
        return tuple(sign * w for w in frequencies_of(who, rule, base, rotary_dim))
    if 2 * sections.pairs != rotary_dim:
        raise ValueError(
            f"{who}: sections must have rotary_dim / 2 = {rotary_dim // 2} pairs; "
            f"got {sections.pairs}, {sections.sizes}"
        )
    columns = sections.columns()
    progressions = {width: frequencies_of(who, rule, base, width) for width in {column.width for column in columns}}
    return tuple(
        tuple(sign * progressions[c.width][c.index] if c.axis == axis else 0.0 for c in columns)
        for axis in range(sections.axes)
    )


def frequencies_of(who: str, rule: Scaling, base: float, rotary_dim: int) -> tuple[float, ...]:
    """The frequencies of a rule, which must be numbers of a usable size."""
    try:
        found = rule.frequencies(base, rotary_dim)
    except (OverflowError, ZeroDivisionError):
        found = (inf,)
    if not all(abs(w) < LIMIT for w in found):
        raise ValueError(f"{who}: scaling must leave frequencies below {LIMIT:g} radians per position; got {rule}")
    return found


def _magnitude(who: str, attention_factor: Any, scaling: Scaling | None) -> float:
    """The attention factor, which must not be another than that of a scaling rule."""
    if attention_factor is None:
        return 1.0 if scaling is None else scaling.magnitude
    attention_factor = checks.positive(who, "attention_factor", attention_factor)
    if scaling is not None and attention_factor != scaling.magnitude:
        raise ValueError(
            f"{who}: attention_factor must be that of scaling, {scaling.magnitude} (None takes it); "
            f"got {attention_factor}"
        )
    return attention_factor


def _given_frequencies(who: str, inv_freq: Any) -> Any:
    """Frequencies as nested tuples of floats, or the array that they are; without its axis for one position axis."""
    if backends.namespace(inv_freq) is not None:
        checks.floating(who, "inv_freq", inv_freq, ("float32", "float64"))
        if not 1 <= inv_freq.ndim <= 3 or 0 in inv_freq.shape:
            raise ValueError(
                f"{who}: inv_freq must be (pairs), (axes, pairs) or (axes, heads, pairs), not empty; "
                f"got shape {checks.shape(inv_freq)}"
            )
        if not backends.is_host(inv_freq):
            return inv_freq
        inv_freq = inv_freq.tolist()
    numbers = _nested_floats(who, inv_freq, inv_freq)
    rows = numbers if isinstance(numbers[0], tuple) else (numbers,)
    heads = [head for row in rows for head in (row if isinstance(row[0], tuple) else (row,))]
    lengths = {len(row) for row in rows}, {len(head) for head in heads}, {type(row[0]) for row in rows}
    if any(len(each) > 1 for each in lengths):
        raise ValueError(f"{who}: inv_freq must have as many frequencies on each axis; got {inv_freq!r}")
    return rows[0] if len(rows) == 1 and isinstance(rows[0][0], float) else numbers


def _nested_floats(who: str, numbers: Any, given: Any, depth: int = 0) -> Any:
    """Sequences as tuples and numbers as floats, of which there must be some, all at one depth."""
    if isinstance(numbers, (tuple, list)) and depth < 3:
        nested = tuple(_nested_floats(who, number, given, depth + 1) for number in numbers)
        if not nested or len({isinstance(each, tuple) for each in nested}) > 1:
            raise ValueError(f"{who}: inv_freq must be at least one number, all at one depth; got {given!r}")
        return nested
    if not depth or not (isinstance(numbers, (float, np.floating)) or checks.is_int(numbers)):
        raise TypeError(f"{who}: inv_freq must be a sequence of floats or an array; got {given!r}")
    try:
        number = float(numbers)  # pyright: ignore[reportArgumentType]
    except OverflowError:  # an int beyond float64
        number = inf
    if not abs(number) < LIMIT:
        raise ValueError(f"{who}: inv_freq must be below {LIMIT:g} radians per position; got {given!r}")
    return number
