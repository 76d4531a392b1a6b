"""`RotaryEmbedding`: the frequencies, the pairing and the attention factor of a model in one frozen value."""

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

ROLES = {"query": "its scale grows with position", "key": "its scale shrinks with position"}


class _Derived:
    """Attributes that `RotaryEmbedding` computes. An annotation in the dataclass itself would make them fields."""

    _frequencies: Frequencies
    _xpos_rates: tuple[float, ...]
    _rotation: Rotation


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RotaryEmbedding(_Derived):
    """The rotary position embedding of a model, as a frozen value without state.

    Results depend only on the arguments and the fields. The value can be an attribute of a PyTorch, Flax NNX or Equinox
    module, a closed-over value, or a static argument of `jax.jit`. It has no parameters and no buffers, so casting or
    moving a module does not change it. `replace` returns a copy with other arguments.

    Learned frequencies are the exception. Their array belongs to the caller, and a module creates a new value from its
    parameter in every forward pass.

    Parameters
    ----------
    head_dim : int
        The number of channels of a head, even.
    layout : "half", "interleaved" or "interleaved_to_half"
        Which channels form a pair. ``"half"`` pairs ``(j, j + pairs)``, as GPT-NeoX and transformers' Llama do.
        ``"interleaved"`` pairs ``(2j, 2j + 1)``, as RoFormer, GPT-J and Meta's checkpoints do.
        ``"interleaved_to_half"`` reads ``(2j, 2j + 1)`` and writes ``(j, j + pairs)``, as DeepSeek-V3 does. There is no
        default: the wrong layout raises no error and ruins a model.
    base : float
        Pair j is rotated by ``base ** (-2 j / rotary_dim)`` radians per position. At least 1. Required unless
        `inv_freq` is given.
    rotary_dim : int, optional
        The number of rotated channels, even. The other channels pass through unchanged. By default all channels from
        `first_channel` on are rotated.
    first_channel : int
        The first rotated channel.
    blocks : int
        The rotated channels are split into this many equal blocks, and ``layout="half"`` pairs the halves of each
        block. Other layouts allow only 1.
    scaling : Scaling, optional
        A rule such as `YarnScaling`, which changes the frequencies that `base` gives.
    sections : Sections, optional
        The position axis of each pair, for several position axes. Positions then have the position axes first.
    inv_freq : sequence of float, nested sequences of float, or array, optional
        Frequencies in radians per position, "pairs", "axes pairs" or "axes heads pairs". They replace `base`, `scaling`
        and `sections`. An array of a library other than NumPy, float32 or float64, is differentiable, so that
        frequencies can be learned; a value with such an array is not hashable. Its tables are NaN where a frequency is
        NaN or at least ``2**16``. With `inv_freq`, the default of `rotary_dim` is ``2 * pairs``.
    attention_factor : float, optional
        The factor by which sines and cosines are multiplied. The default is that of `scaling`, or 1.
    xpos : XPos, optional
        Position-dependent scales of queries and keys. A call then takes the query first and the keys after it.
    reverse : bool
        Rotate in the opposite direction, as nanochat does.
    phase : "exact" or "float32"
        How position times frequency is computed; see `fixed_pos_embedding`.
    kernel : "fastest", "reference", "blocked", "numba", "triton" or "xla"
        The implementation of the rotation; see `apply_rotary_pos_emb`. All except ``"reference"`` also use a faster
        method for tables on the host.

    Attributes
    ----------
    head_dim, rotary_dim, first_channel, blocks, pairs, axes : int
    heads : int or None
        The number of heads, if each head has its own frequencies.
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
        not positive, a frequency is ``2**16`` or more, or arguments are missing or contradict each other.
    TypeError
        If a width is not an int, or frequencies are neither floats nor a float32 or float64 array.

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
    # A copy of `scaling`. `dataclasses.replace` passes the old copy, so that `__post_init__` can refuse an attention
    # factor that came from a removed scaling.
    _scaling: Scaling | None = field(default=None, repr=False)
    # `with_provenance` sets another one for values of `from_config`.
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
            raise ValueError(
                f"{who}: first_channel must leave at least one pair within head_dim={head_dim}; got {first_channel}"
            )
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
            frequencies = Frequencies(_check_frequencies(who, self.inv_freq))
            rotary_dim = 2 * frequencies.pairs if rotary_dim is None else rotary_dim
            if 2 * frequencies.pairs != rotary_dim or first_channel + rotary_dim > head_dim:
                raise ValueError(
                    f"{who}: inv_freq must have rotary_dim / 2 frequencies, and rotary_dim must fit into head_dim; "
                    f"got {frequencies.pairs} for rotary_dim={rotary_dim}, first_channel={first_channel} and "
                    f"head_dim={head_dim}"
                )
            if base is None and (self.scaling is not None or self.sections is not None or reverse):
                raise ValueError(f"{who}: scaling, sections and reverse must be given with a base; got inv_freq alone")
            if base is not None and not (frequencies.are_floats and frequencies.inv_freq == expected):
                raise ValueError(
                    f"{who}: base, scaling and sections must not contradict inv_freq (inv_freq=None computes it); "
                    f"got base={base}"
                )
        blocks = checks.count(who, "blocks", self.blocks)
        if blocks != 1 and (self.layout != "half" or not blocks or frequencies.pairs % blocks):
            raise ValueError(
                f"{who}: blocks must divide the {frequencies.pairs} pairs, and must be 1 unless layout='half'; "
                f"got {blocks} for layout={self.layout!r}"
            )
        if self.xpos is not None and (frequencies.axes > 1 or frequencies.heads is not None):
            raise ValueError(f"{who}: xpos must be given with one position axis; got {frequencies.axes} axes")

        removed = self._scaling if self.scaling is None else None
        factor = self.attention_factor
        if removed is not None and factor is not None and factor == removed.resolved_attention_factor != 1.0:
            raise ValueError(
                f"{who}: attention_factor must not come from a scaling that was removed (`rope.replace` computes it "
                f"again); got {factor}, from {removed}"
            )

        resolved = {
            "_scaling": self.scaling,
            "head_dim": head_dim,
            "base": base,
            "rotary_dim": rotary_dim,
            "first_channel": first_channel,
            "blocks": blocks,
            "inv_freq": frequencies.inv_freq,
            "attention_factor": _resolve_attention_factor(who, self.attention_factor, self.scaling),
            "reverse": reverse,
            "pairs": frequencies.pairs,
            "axes": frequencies.axes,
            "heads": frequencies.heads,
            "_frequencies": frequencies,
            "_xpos_rates": () if self.xpos is None else self.xpos.rates(2 * frequencies.pairs),
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
            Arrays such as q and k. The tables are computed once for all of them.
        positions : array, "seq", "batch seq" or with one axis less than `x`, optional
            The position of each token, in tokens: integers of any sign and order, or real numbers. The default is 0, 1,
            2, ... along `seq_dim`. When decoding, always pass `positions`; otherwise each new token is treated as
            position 0 and is not rotated. Several position axes come first, as "axes seq" or "axes batch seq", and have
            no default. Together with `sincos`, positions are the indices of its rows. If `x` is a DTensor of PyTorch,
            plain tensors must be equal on all ranks.
        sincos : (array, array), "*axes pairs", or "rows pairs" with positions, optional
            Tables from the method `sincos`. Without `positions`, they are the tables of these tokens. With `positions`,
            they have one row for each position 0, 1, 2, ..., and `positions` select the rows. For a position without a
            row, such as -1, all rotated channels of the result and of its gradient are NaN.
        seq_dim : int
            The sequence axis of `x` and of each of the others.
        heads_dim : int, optional
            The axis of heads. Required if each head has its own frequencies, and not allowed otherwise.

        Returns
        -------
        array, or tuple of array
            One result for one argument, a tuple for several. Each result has the library, shape, dtype and device of
            its argument.

        Raises
        ------
        ValueError
            If shapes do not fit, `sincos` is given and the value has `xpos`, positions select rows and `heads_dim` is
            given, or the kernel is not installed or does not support `x`.
        TypeError
            If a dtype is not floating point, arrays belong to two libraries, or positions that select rows are not
            integers.

        Examples
        --------
        >>> import numpy as np
        >>> rope = RotaryEmbedding(head_dim=2, layout="half", base=10_000.0)
        >>> x, positions = np.asarray([[1.0, 0.0], [1.0, 0.0]]), np.asarray([0, 1])
        >>> rope(x, positions=positions, seq_dim=0).round(3)
        array([[1.   , 0.   ],
               [0.54 , 0.841]])
        >>> sincos = rope.sincos(np.arange(4096), like=x)  # one row for each of 4096 positions
        >>> rope(x, sincos=sincos, positions=positions, seq_dim=0).round(3)
        array([[1.   , 0.   ],
               [0.54 , 0.841]])
        """
        who = "RotaryEmbedding"
        arrays = self._checked(who, x, *others)
        if sincos is not None:
            if self.xpos is not None:
                raise ValueError(f"{who}: sincos must be given without xpos; got xpos={self.xpos}")
            angles = self._align_or_select(who, arrays, sincos, positions, seq_dim, heads_dim)
            return self._run(who, arrays, angles, self._rotation)
        resolved = self._resolve_positions(who, arrays, positions, seq_dim)
        if heads_dim is None and self._kernel_computes_angles(who, resolved, x):
            aligned = align_positions(who, arrays, resolved, seq_dim)
            scale = self.attention_factor
            rotated = kernels.rotate_by_positions(
                arrays, aligned, self._frequencies, scale, self._rotation, self.kernel
            )
            return _array_or_tuple(rotated)
        widest = next((array for array in arrays if backends.dtype_name(array.dtype) == "float64"), x)
        if self.xpos is None:
            tables = self._align_tables(who, arrays, self.sincos(resolved, like=widest), seq_dim, heads_dim)
        elif len(arrays) == 1:
            raise ValueError(
                f"{who}: xpos must be given the query and then keys; got one array (use sincos and rotate)"
            )
        else:
            query, key = (self.sincos(resolved, like=widest, role=role) for role in ("query", "key"))
            tables = self._align_tables(who, [x], query, seq_dim, heads_dim)
            tables += self._align_tables(who, others, key, seq_dim, heads_dim)
        return self._run(who, arrays, tables, self._rotation)

    def sincos(self, positions: Array, *, like: Array | None = None, role: Role | None = None) -> SinCos:
        """Tables of sines and cosines. Compute them once in a forward pass and share them between layers.

        Parameters
        ----------
        positions : array, "*batch seq", or "axes *batch seq" for several position axes
            In tokens: integers, float32 numbers below ``2**31`` or float64 numbers below ``2**63``. Tables are NaN
            beyond these limits. Positions of NumPy are accepted with any `like`.
        like : array, optional
            The tables have the library and device of `like`, and are float64 if `like` is float64, else float32. The
            default is `positions`. On PyTorch, `positions` must be on the device of `like`.
        role : "query" or "key", optional
            What the tables rotate. Required with `xpos`, whose tables of queries and keys differ.

        Returns
        -------
        SinCos, each "*batch seq pairs", or "*batch seq heads pairs" if each head has its own frequencies

        Raises
        ------
        TypeError
            If `positions` is not an array of integers, float32 or float64, or belongs neither to NumPy nor to the
            library of `like`.
        ValueError
            If 64-bit positions do not fit into the 32 bits of a library, the number of position axes is wrong, or
            `role` is unknown or missing.

        Examples
        --------
        >>> import numpy as np
        >>> RotaryEmbedding(head_dim=2, layout="half", base=10_000.0).sincos(np.asarray([0, 2**31 - 1])).sin
        array([[ 0.       ],
               [-0.7249166]], dtype=float32)
        """
        who = "RotaryEmbedding.sincos"
        sin, cos = self._unscaled_sincos(who, positions, like)
        scale: Any = None if self.attention_factor == 1.0 else self.attention_factor
        if role is not None or self.xpos is not None:
            checks.one_of(who, "role", role, ROLES)
        if self.xpos is not None:
            checked = checks.positions(who, "positions", positions, like=sin)
            tokens = difference(checked, self.xpos.centre, sin.dtype)
            xpos_scale = self._xpos_scale(1 if role == "query" else -1, tokens, sin)
            scale = xpos_scale if scale is None else xpos_scale * scale
        return SinCos(sin, cos) if scale is None else SinCos(sin * scale, cos * scale)

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
        """Rotate one array by tables of `sincos`.

        Parameters
        ----------
        x : array, "*batch head_dim"
            Floating point.
        sincos : (array, array), "*axes pairs"
            Tables from the method `sincos`. `apply_rotary_pos_emb` explains their axes.
        seq_dim : int
            The sequence axis of `x`.
        inverse : bool
            Restore what was rotated by these tables: rotate by the negative angles, and divide by the attention factor
            and, with `xpos`, by the scale of each pair. The layout is inverted too: channels are read where the
            rotation wrote them. The result is NaN where tables are 0 or infinite.
        transpose : bool
            Rotate by the negative angles, and multiply by the attention factor and the scale again. This is the
            transpose of the rotation, and the gradient of the rotation uses it. It equals `inverse` if the tables are
            not scaled. Only one of the two may be true.
        heads_dim : int, optional
            The axis of heads. Required if each head has its own frequencies, and not allowed otherwise.

        Returns
        -------
        array, "*batch head_dim"
            It has the library, shape, dtype and device of `x`.

        Raises
        ------
        ValueError
            If shapes do not fit, or both `inverse` and `transpose` are true.
        TypeError
            If dtypes or libraries do not fit.

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
        rotation = self._select_rotation(who, inverse, transpose)
        angles: Angles = self._align_tables(who, arrays, sincos, seq_dim, heads_dim)
        return self._run(who, arrays, self._invert_scale(angles) if inverse else angles, rotation)

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
        """Rotate arrays by tables of `sincos`, and write the results into the arrays.

        This is for inference: it has no derivative. All arguments are checked before the first write.

        Parameters
        ----------
        x, *others : array of NumPy or PyTorch, "*batch head_dim"
            Arrays such as q and k. They must be writable. They must not share memory with each other, with the tables
            or with the positions.
        sincos, seq_dim, inverse, transpose, heads_dim
            As in `rotate`.
        positions : array, "seq", "batch seq" or with one axis less than `x`, optional
            Indices of the rows of `sincos`, "rows pairs". For a position without a row, NaN is written.

        Raises
        ------
        ValueError
            If shapes do not fit, both `inverse` and `transpose` are true, memory is read-only or shared, or a tensor
            requires grad.
        TypeError
            If dtypes or libraries do not fit, or the arrays are immutable, such as those of JAX.

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
        rotation = self._select_rotation(who, inverse, transpose)
        angles = self._align_or_select(who, arrays, sincos, positions, seq_dim, heads_dim)
        kernels.rotate_inplace(who, arrays, self._invert_scale(angles) if inverse else angles, rotation, self.kernel)

    def shift(self, k: ArrayT, delta: int | Array, *, seq_dim: int, heads_dim: int | None = None) -> ArrayT:
        """Move rotated keys, such as those of a cache, by `delta` positions.

        Rotated keys contain the attention factor already. It is not applied again.

        Parameters
        ----------
        k : array, "*batch head_dim"
            Rotated keys.
        delta : int or array, "", "seq", "batch seq", "batch 1" or with one axis less than `k`
            The change of position in tokens: one for all keys, for each token, or for each batch row. Arrays may hold
            real numbers. Several position axes come first. An int moves keys along all position axes.
        seq_dim : int
            The sequence axis of `k`.
        heads_dim : int, optional
            The axis of heads. Required if each head has its own frequencies, and not allowed otherwise.

        Returns
        -------
        array, "*batch head_dim"
            It has the library, shape, dtype and device of `k`.

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
        position_axes = self._position_axes(who, "delta", moves)
        missing_axes = k.ndim - 1 - (moves.ndim - len(position_axes)) - (self.heads is not None)
        if missing_axes > 0 and (moves.ndim == len(position_axes) or moves.shape[-1] == 1):
            moves = backends.with_axes(backends.namespace(moves), moves, (*moves.shape, *[1] * missing_axes))
        if self.heads is None:
            broadcast_axes(who, "delta", moves.shape[len(position_axes) :], 0, k, seq_dim)
        sincos = self._unscaled_sincos(who, moves, k)
        if self.xpos is not None:
            # The change of a key's scale over `delta` tokens does not depend on the centre.
            scale = self._xpos_scale(-1, moves, sincos.sin)
            sincos = SinCos(sincos.sin * scale, sincos.cos * scale)
        rotation = self._rotation._replace(read=self._rotation.write)  # rotated keys are in the order that was written
        return self._run(who, [k], self._align_tables(who, [k], sincos, seq_dim, heads_dim), rotation)

    def replace(self, **changes: Any) -> "RotaryEmbedding":
        """A copy with some arguments changed. Values that depend on them are computed again.

        Frequencies depend on `base`, `rotary_dim`, `scaling`, `sections` and `reverse`. The attention factor depends on
        `scaling`. `rotary_dim` depends on `head_dim` and `first_channel` if all channels from `first_channel` on were
        rotated. Values that the caller gave explicitly are kept, such as an attention factor without a scaling.
        (`dataclasses.replace` treats computed values as given ones. Pass it ``inv_freq=None`` when you change the
        frequencies, and ``attention_factor=None`` when you remove a scaling.)

        Parameters
        ----------
        **changes
            Arguments of `RotaryEmbedding`. To replace a base by `inv_freq`, also pass ``base=None``, ``scaling=None``,
            ``sections=None`` and ``reverse=False``.

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

    __replace__ = replace  # for `copy.replace`

    def describe(self, x: Array | None = None) -> str:
        """A text that lists the widths, pairing, frequencies, scaling, attention factor, phases and kernel.

        Defaults that the config did not state are marked, with their source.

        Parameters
        ----------
        x : array, optional
            The text then names the kernel that ``"fastest"`` selects for plain arrays like `x`. (Subclasses of tensors,
            function transforms and tables with gradients use the reference.)

        Returns
        -------
        str
            One row for each property. Wavelengths are in tokens.

        Raises
        ------
        ValueError
            If the kernel is not installed or does not support `x`.
        TypeError
            If `x` is not an array or not floating point.

        Examples
        --------
        >>> print(RotaryEmbedding(head_dim=128, layout="half", base=10_000.0, rotary_dim=64).describe())
        channels          the first 64 of 128 are rotated
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
            lengths = [2 * pi / abs(w) for row in self._frequencies.rows for w in row.inv_freq if w]
            wavelengths = f"{min(lengths):g} to {max(lengths):g} tokens" if lengths else "none: no pair is rotated"
        zeros = self._frequencies.rows[0].inv_freq.count(0.0) if self._frequencies.are_floats and self.axes == 1 else 0
        unrotated = f", of which {zeros} pass through unrotated" if zeros else ""
        axes = "" if self.axes == 1 else str(self.axes)
        if self.sections is not None:
            axes += f", {self.sections.order} {self.sections.sizes} ({ORDERS[self.sections.order]})"
        last = self.first_channel + 2 * self.pairs - 1
        span = f"the first {self.rotary_dim}" if not self.first_channel else f"channels {self.first_channel} to {last}"
        blocks = "" if self.blocks == 1 else f", in {self.blocks} blocks"
        rows = {
            "channels": f"{span} of {self.head_dim} are rotated{blocks}",
            "pairs": f"{self.pairs}{unrotated}",
            "position axes": axes,
            "heads": "" if self.heads is None else f"{self.heads}, each with its own frequencies",
            "layout": f"{self.layout} ({LAYOUTS[self.layout]})",
            "frequencies": frequencies,
            "wavelengths": wavelengths,
            "direction": "reversed" if self.reverse else "",
            "scaling": "none" if self.scaling is None else self.scaling.describe(),
            "attention factor": str(self.attention_factor),
            "softmax scale": "" if self.softmax_scale == 1.0 else f"x {self.softmax_scale}, to be applied by the model",
            "decay": "" if self.xpos is None else str(self.xpos),
            "phase": f"{self.phase} ({PHASES[self.phase]})",
            "kernel": f"{kernel} ({KERNELS[kernel]})" + (f"; {passed_over}" if passed_over else ""),
        }
        rows = {name: value + self._provenance.mark(name) for name, value in rows.items() if value}
        lines = [*rows.items(), *self._provenance.lines(rows)]
        return "\n".join(fill(f"{name:<18}{value}", 100, subsequent_indent=" " * 18) for name, value in lines)

    @property
    def softmax_scale(self) -> float:
        """The factor by which the model must multiply its softmax scale: DeepSeek's YaRN has one, all others have 1."""
        return 1.0 if self.scaling is None else self.scaling.softmax_scale

    def to_config(self) -> dict[str, Any]:
        """The `rope_parameters` of a transformers 5 config for this embedding.

        They do not include the pairing, the position of the rotated channels and the phase, which belong to the model
        type in transformers. `NTKScaling` is written as `alpha`, which only Hunyuan's model types read.

        Returns
        -------
        dict
            Numbers, strings and lists, ready for JSON.

        Raises
        ------
        ValueError
            If `rope_parameters` cannot express the embedding: given or learned frequencies, xpos, reversed direction,
            an order of axes or a scaling rule that transformers does not have, or proportional scaling with a
            `rotary_dim` smaller than `head_dim`.

        References
        ----------
        transformers, `modeling_rope_utils.py`, `RopeParameters`.

        Examples
        --------
        >>> RotaryEmbedding(head_dim=128, layout="half", base=10_000.0, rotary_dim=32).to_config()
        {'rope_type': 'default', 'rope_theta': 10000.0, 'partial_rotary_factor': 0.25}
        """
        who = "RotaryEmbedding.to_config"
        unsupported = {"inv_freq": self.base is None, "xpos": self.xpos is not None, "reverse": self.reverse}
        if any(unsupported.values()):
            names = ", ".join(name for name, found in unsupported.items() if found)
            raise ValueError(f"{who}: the embedding must be expressible in a transformers config; got {names}")
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
        if self.attention_factor != rule.resolved_attention_factor:
            raise ValueError(f"{who}: attention_factor must be that of scaling; got {self.attention_factor}")
        if self.rotary_dim != self.head_dim:
            if "partial_rotary_factor" in block:
                raise ValueError(f"{who}: rotary_dim must be head_dim with {rule}; got {self.rotary_dim}")
            share = 2 * self.pairs / self.head_dim
            # transformers multiplies by head_dim and rounds down.
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
        default["attention_factor"] = 1.0 if self.scaling is None else self.scaling.resolved_attention_factor
        shown = {"head_dim": self.head_dim, "layout": self.layout}
        for name, unset in default.items():
            value = getattr(self, name)
            # Learned frequencies are an array, and not every library can compare an array with None.
            if self.base is None if name == "inv_freq" else value != unset:
                shown[name] = value
        return f"RotaryEmbedding({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, RotaryEmbedding) else NotImplemented

    def __hash__(self) -> int:
        if not self._frequencies.are_floats:
            raise TypeError(
                "RotaryEmbedding: a value with learned frequencies must not be hashed, because it holds an array; "
                f"got inv_freq of shape {checks.shape(self.inv_freq)}: create the value inside the function instead"
            )
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        if not self._frequencies.are_floats:
            values["inv_freq"] = id(self.inv_freq)  # an array is equal only to itself
        return tuple(values.values())

    def _checked(self, who: str, *arrays: Any, name: str = "x") -> tuple[Any, ...]:
        """Arrays, after a check that they have `head_dim` channels and belong to one library and device."""
        for x in arrays:
            checks.floating(who, name, x)
            if not x.ndim or x.shape[-1] != self.head_dim:
                raise ValueError(
                    f"{who}: {name} must have head_dim={self.head_dim} channels; got shape {checks.shape(x)}"
                )
            if x is not arrays[0]:
                checks.same_library(who, name, x, arrays[0])
        return arrays

    def _select_rotation(self, who: str, inverse: bool, transpose: bool) -> Rotation:
        """The rotation, or the inverse rotation if one of the two flags is true."""
        inverse, transpose = checks.boolean(who, "inverse", inverse), checks.boolean(who, "transpose", transpose)
        if inverse and transpose:
            raise ValueError(f"{who}: only one of inverse and transpose must be true; got both")
        return self._rotation.inverted() if inverse or transpose else self._rotation

    def _invert_scale(self, angles: Angles) -> Angles:
        """Tables divided by the square of their scale, so that the inverse rotation removes the scale."""
        if self.xpos is None and self.attention_factor == 1.0:
            return angles
        divided: dict[tuple[int, int], tuple[Any, Any]] = {}  # arrays that share tables share the divided ones
        for sin, cos, *_ in angles:
            if (id(sin), id(cos)) not in divided:
                divided[id(sin), id(cos)] = self._divide_by_squared_scale(sin, cos)
        return [(*divided[id(sin), id(cos)], *rows) for sin, cos, *rows in angles]

    def _divide_by_squared_scale(self, sin: Any, cos: Any) -> tuple[Any, Any]:
        if self.xpos is None:  # two divisions, because the square may overflow float32
            return tuple(table / self.attention_factor / self.attention_factor for table in (sin, cos))
        # Each pair has its own scale, m, and m**2 may overflow float32. With greater = max(|sin|, |cos|), the
        # directions sin / greater and cos / greater have the squared length (m / greater)**2.
        xp = backends.namespace(sin)
        greater = xp.maximum(xp.abs(sin), xp.abs(cos))
        sin, cos = sin / greater, cos / greater
        divisor = (sin * sin + cos * cos) * greater
        return sin / divisor, cos / divisor

    def _run(self, who: str, arrays: Sequence[Any], angles: Angles, rotation: Rotation) -> Any:
        return _array_or_tuple(kernels.rotate(who, arrays, angles, rotation, self.kernel))

    def _align_or_select(
        self, who: str, arrays: Sequence[Any], sincos: Any, positions: Any, seq_dim: int, heads_dim: int | None
    ) -> Angles:
        """Aligned tables or, with positions, tables and the rows that positions select."""
        if positions is None:
            return self._align_tables(who, arrays, sincos, seq_dim, heads_dim)
        if self.heads is not None or heads_dim is not None:
            raise ValueError(
                f"{who}: positions must select rows of tables that all heads share; "
                f"got heads={self.heads} with their own frequencies and heads_dim={heads_dim}"
            )
        return select_rows(who, arrays, sincos, positions, seq_dim, self.pairs)

    def _kernel_computes_angles(self, who: str, positions: Any, x: Any) -> bool:
        """Whether the kernel for `x` computes the angles from positions, so that no tables are needed."""
        plain = self._frequencies.is_single_row and self.phase == "exact" and self.xpos is None
        return plain and not backends.is_real(positions) and kernels.computes_angles(who, x, self.kernel)

    def _align_tables(
        self, who: str, arrays: Sequence[Any], sincos: Any, seq_dim: int, heads_dim: int | None
    ) -> list[tuple[Any, Any]]:
        if (heads_dim is None) != (self.heads is None):
            raise ValueError(
                f"{who}: heads_dim must be given if, and only if, each head has its own frequencies; "
                f"got heads_dim={heads_dim}"
            )
        return align_tables(who, arrays, sincos, seq_dim, columns=self.pairs, heads=self.heads, heads_dim=heads_dim)

    def _unscaled_sincos(self, who: str, positions: Any, like: Any) -> SinCos:
        """Tables without the attention factor and the scales of `xpos`."""
        if self.axes > 1:
            self._position_axes(who, "positions", positions)
        return sincos_of(who, positions, self._frequencies, like=like, phase=self.phase, kernel=self.kernel)

    def _xpos_scale(self, sign: int, tokens: Any, like: Any) -> Any:
        """The scale of each pair at a distance of `tokens`: of a query with sign 1, of a key with sign -1."""
        tokens = backends.astype(tokens, like.dtype)[..., None]
        rates = backends.from_numbers(self._xpos_rates, like=like, dtype=like.dtype)
        rates = backends.with_axes(backends.namespace(rates), rates, (*[1] * (tokens.ndim - 1), *rates.shape))
        return backends.namespace(like).exp(sign * tokens * rates)

    def _position_axes(self, who: str, name: str, positions: Any) -> tuple[int, ...]:
        """The leading shape of positions: ``(axes,)`` for several position axes, else ``()``."""
        if self.axes == 1:
            return ()
        checks.array(who, name, positions)
        if positions.ndim < 1 or positions.shape[0] != self.axes:
            raise ValueError(
                f"{who}: {name} must have its {self.axes} position axes first, such as ({self.axes}, seq); "
                f"got shape {checks.shape(positions)}"
            )
        return (self.axes,)

    def _resolve_positions(self, who: str, arrays: tuple[Any, ...], positions: Any, seq_dim: int) -> Any:
        """The given positions, which must fit all arrays, or 0, 1, 2, ... for arrays of equal length."""
        if positions is not None:
            positions = checks.positions(who, "positions", positions, like=arrays[0])
            position_axes = self._position_axes(who, "positions", positions)
            for x in arrays if self.heads is None else ():
                broadcast_axes(who, "positions", positions.shape[len(position_axes) :], 0, x, seq_dim)
            return positions
        if self.axes > 1:
            raise ValueError(f"{who}: positions must be given for {self.axes} position axes; got None")
        axes = [checks.axis(who, seq_dim, x) for x in arrays]
        lengths = [x.shape[axis] for x, axis in zip(arrays, axes)]
        if any(length != lengths[0] for length in lengths):
            raise ValueError(f"{who}: positions must be given if lengths on seq_dim={seq_dim} differ; got {lengths}")
        return count_from(who, "positions", 0, backends.size_of(arrays[0], axes[0]), like=arrays[0])


# The names of the constructor's arguments.
_ARGUMENTS = tuple(each.name for each in fields(RotaryEmbedding) if each.init and each.repr)


def with_provenance(rope: RotaryEmbedding, provenance: Provenance) -> RotaryEmbedding:
    """A copy that records where its values come from."""
    marked = copy(rope)
    object.__setattr__(marked, "_provenance", provenance)
    return marked


def _array_or_tuple(rotated: list[Any]) -> Any:
    """The array of a list of one, a tuple for several."""
    return tuple(rotated) if len(rotated) > 1 else rotated[0]


ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")


@backends.host_constant
def _progression(
    who: str, base: float, rotary_dim: int, scaling: Scaling | None, sections: Sections | None, reverse: bool
) -> tuple[Any, ...]:
    """The frequencies that follow from a base, "pairs" or "axes pairs"."""
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
    """The frequencies of a rule, which must be below `LIMIT`."""
    try:
        frequencies = rule.frequencies(base, rotary_dim)
    except (OverflowError, ZeroDivisionError):
        frequencies = (inf,)
    if not all(abs(w) < LIMIT for w in frequencies):
        raise ValueError(f"{who}: scaling must give frequencies below {LIMIT:g} radians per position; got {rule}")
    return frequencies


def _resolve_attention_factor(who: str, attention_factor: Any, scaling: Scaling | None) -> float:
    """The attention factor. If `scaling` is given too, it must be that of `scaling`."""
    if attention_factor is None:
        return 1.0 if scaling is None else scaling.resolved_attention_factor
    attention_factor = checks.positive(who, "attention_factor", attention_factor)
    if scaling is not None and attention_factor != scaling.resolved_attention_factor:
        raise ValueError(
            f"{who}: attention_factor must be that of scaling, {scaling.resolved_attention_factor} (pass None to use "
            f"it); got {attention_factor}"
        )
    return attention_factor


def _check_frequencies(who: str, inv_freq: Any) -> Any:
    """Checked frequencies: an array of a library other than NumPy, or nested tuples of floats.

    A single position axis is dropped from the tuples.
    """
    if backends.namespace(inv_freq) is not None:
        checks.floating(who, "inv_freq", inv_freq, ("float32", "float64"))
        if not 1 <= inv_freq.ndim <= 3 or 0 in inv_freq.shape:
            raise ValueError(
                f"{who}: inv_freq must be a non-empty (pairs), (axes, pairs) or (axes, heads, pairs); "
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
        raise ValueError(f"{who}: inv_freq must have equally many frequencies for each axis and head; got {inv_freq!r}")
    return rows[0] if len(rows) == 1 and isinstance(rows[0][0], float) else numbers


def _nested_floats(who: str, numbers: Any, given: Any, depth: int = 0) -> Any:
    """Nested sequences as tuples of floats. There must be at least one number, and all must have the same depth."""
    if isinstance(numbers, (tuple, list)) and depth < 3:
        nested = tuple(_nested_floats(who, number, given, depth + 1) for number in numbers)
        if not nested or len({isinstance(each, tuple) for each in nested}) > 1:
            raise ValueError(f"{who}: inv_freq must hold at least one number, all at the same depth; got {given!r}")
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
