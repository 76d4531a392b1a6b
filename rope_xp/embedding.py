"""`RotaryEmbedding`: the frequencies, the pairing and the attention factor of a model in one frozen value."""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from inspect import Signature, signature
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload

from rope_xp.arrays import checks
from rope_xp.arrays.exact_phases import Frequencies
from rope_xp.arrays.signature import Plans, is_torch_compiling, signature_of
from rope_xp.configs.writers import FlagsTarget, KeysTarget, Options, Target, config_for
from rope_xp.description import describe
from rope_xp.errors import public, wrong_type, wrong_value
from rope_xp.frequencies import Scaling, XPos
from rope_xp.kernels import KERNELS, Kernel
from rope_xp.kernels.angles import PHASES, GeneralTableProgram, Phase, SinCos, fast_table_program
from rope_xp.kernels.plan import (
    angles_of_call,
    angles_of_rerotation,
    angles_of_shift,
    execute,
    plan_call,
    plan_rerotation,
    plan_rotation,
    plan_shift,
)
from rope_xp.kernels.reference import Rotation
from rope_xp.kernels.tables import TableScale, pair_of, scale_of
from rope_xp.layouts import LAYOUTS, READ_WRITE, Layout, checked_blocks, span_of
from rope_xp.provenance import Provenance, set_provenance
from rope_xp.sections import Sections
from rope_xp.spectrum import checked_frequencies
from rope_xp.types import Array, ArrayT, OtherT, Values

if TYPE_CHECKING:
    from rope_xp.explanation import Explanation
    from rope_xp.extension import Choices

Role = Literal["query", "key"]
ROLES = {"query": "its scale grows with position", "key": "its scale shrinks with position"}
RuleName = Literal["linear", "ntk", "dynamic", "yarn", "llama3", "longrope"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RotaryEmbedding:
    """The rotary position embedding of a model, as a frozen value without state.

    The value can be an attribute of a PyTorch, Flax NNX or Equinox module, a closed-over value, or a static argument of
    `jax.jit`. Casting or moving a module does not change it. Only learned frequencies are an array: with them, make a
    new value in every forward pass.

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
        The factor by which sines and cosines are multiplied: that of `scaling` if it is given; else by default 1.
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
    each argument
        As given. If `rotary_dim` or `attention_factor` was None, it is the number that is used.
    pairs, axes : int
        The numbers of rotated pairs and of position axes.
    heads : int or None
        The number of heads, if each head has its own frequencies.
    inv_freq : tuple of float, nested tuples of float, or array
        In radians per position: "pairs" for one position axis, "axes pairs" for several, "axes heads pairs" for heads.

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
    # What calls read. `__post_init__` computes it for each value; as class variables, they are no fields.
    _frequencies: ClassVar[Frequencies]
    _rotation: ClassVar[Rotation]
    _scale: ClassVar[TableScale]
    _plans: ClassVar[Plans]
    # The value as text, for operators in graphs of `torch.compile`. None with learned frequencies or classes
    # of others, and for values that are made while a compiler traces.
    _text: ClassVar[str | None] = None
    # A copy of `scaling`. `dataclasses.replace` passes the old copy, so that `__post_init__` can refuse an attention
    # factor that came from a removed scaling.
    _scaling: Scaling | None = field(default=None, repr=False)
    # `with_provenance` sets another one for embeddings that `from_config` and `extend` return.
    _provenance: ClassVar[Provenance] = Provenance()

    @public("RotaryEmbedding")
    def __post_init__(self) -> None:
        span = span_of(self.head_dim, self.first_channel, self.rotary_dim, is_open=self.inv_freq is not None)
        _check_options(self)
        reverse = checks.boolean("reverse", self.reverse)
        base, frequencies = checked_frequencies(self.base, self.inv_freq, span, self.scaling, self.sections, reverse)
        blocks = checked_blocks(self.blocks, self.layout, frequencies.pairs)
        removed = self._scaling if self.scaling is None else None
        scale = scale_of(self.attention_factor, self.scaling, removed, self.xpos, frequencies)
        head_dim, first_channel, _ = span
        resolved = {
            "_scaling": self.scaling,
            "head_dim": head_dim,
            "base": base,
            "rotary_dim": 2 * frequencies.pairs,
            "first_channel": first_channel,
            "blocks": blocks,
            "inv_freq": frequencies.inv_freq,
            "attention_factor": scale.attention_factor,
            "reverse": reverse,
            "pairs": frequencies.pairs,
            "axes": frequencies.axes,
            "heads": frequencies.heads,
            "_frequencies": frequencies,
            "_rotation": Rotation(*READ_WRITE[self.layout], first_channel, blocks),
            "_scale": scale,
            "_plans": Plans(),
        }
        for name, value in resolved.items():
            object.__setattr__(self, name, value)
        if frequencies.are_floats and not is_torch_compiling():
            # Classes of others may have another `__repr__`, or a name that is unknown in rope_xp.
            parts = [each for each in (self, self.scaling, self.sections, self.xpos) if each is not None]
            is_ours = all([type(each).__module__.startswith("rope_xp.") for each in parts])
            object.__setattr__(self, "_text", repr(self) if is_ours else None)

    def replace(self, **changes: Any) -> "RotaryEmbedding":
        """A copy with some arguments changed. Values that depend on them are computed again.

        Values that the caller gave are kept. A `rotary_dim` of all channels (or, if `inv_freq` changes, of all pairs)
        and an `attention_factor` that is 1, or that of the scaling, count as computed. The copy remembers the model
        type that `from_config` read, which decides what `to_config` can write. (`dataclasses.replace` keeps computed
        values too: pass it ``inv_freq=None`` when you change the frequencies, ``attention_factor=None`` without a
        scaling.)

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
        has_all_channels = self.base is not None and self.rotary_dim == self.head_dim - self.first_channel
        if has_all_channels or (self.base is None and changes.get("inv_freq") is not None):
            given["rotary_dim"] = None
        if self.scaling is not None or self.attention_factor == 1.0:
            given["attention_factor"] = None
        return set_provenance(type(self)(**{**given, **changes}), self._provenance.of_model())

    __replace__ = replace  # for `copy.replace`

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
    @public("RotaryEmbedding")
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
            2, ... along `seq_dim`. When decoding, always pass `positions`; else each new token has position 0 and is
            not rotated. With one axis less than `x`, an axis of size 1 stands for all. Several position axes come
            first, as "axes seq" or "axes batch seq", and have no default. Together with `sincos`, positions are the
            indices of its rows. If `x` is a DTensor of PyTorch, plain tensors must be equal on all ranks.
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
            If shapes do not fit, `sincos` is given with `xpos`, positions select rows and `heads_dim` is given, or the
            kernel is not installed or does not support `x`.
        TypeError
            If a dtype is not floating point, arrays belong to two libraries, or positions that select rows are not
            integers.

        Examples
        --------
        >>> import numpy as np
        >>> from rope_xp import RotaryEmbedding
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
        arrays = (x, *others)
        tables = () if sincos is None else pair_of(sincos)
        if (
            is_torch_compiling()
            and (graph := self._graph((*arrays, *tables, positions), seq_dim, heads_dim)) is not None
        ):
            rotated = graph.call(self._text, arrays, tables, positions, seq_dim, heads_dim)
        else:
            rotated = execute(self, plan_call, angles_of_call, arrays, tables, positions, seq_dim, heads_dim)
        return (*rotated,) if others else rotated[0]

    @public("RotaryEmbedding.sincos")
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
            Whether the tables rotate queries or keys. Required with `xpos`, because these tables differ.

        Returns
        -------
        SinCos, each "*batch seq pairs", or "*batch seq heads pairs" if each head has its own frequencies
            Right to 2e-7 at every int32 position. Beyond, the frequencies, rounded to float64, limit it: 6e-5 at 2**40.

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
        >>> from rope_xp import RotaryEmbedding
        >>> RotaryEmbedding(head_dim=2, layout="half", base=10_000.0).sincos(np.asarray([0, 2**31 - 1])).sin
        array([[ 0.       ],
               [-0.7249166]], dtype=float32)
        """
        if is_torch_compiling() and (graph := self._graph((positions, like), name=role)) is not None:
            return SinCos(*graph.sincos(self._text, positions, like, role))
        key = signature_of((positions, like), "sincos", role)
        program = None if key is None else self._plans.get(key)
        if program is not None:
            return SinCos(*program.run(positions, like))
        if role is not None or self.xpos is not None:
            checks.one_of("role", role, ROLES)
        program = GeneralTableProgram.of(self, role)
        sincos = program.run(positions, like)
        if key is not None:
            fast = fast_table_program(self, positions, [positions if like is None else like])
            self._plans.add(key, program if fast is None else fast)
        return sincos

    @public("RotaryEmbedding.rotate")
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
        >>> from rope_xp import RotaryEmbedding
        >>> rope = RotaryEmbedding(head_dim=4, layout="interleaved", base=10_000.0)
        >>> x, sincos = np.ones((3, 4)), rope.sincos(np.arange(3), like=np.zeros(1))
        >>> bool(np.allclose(rope.rotate(rope.rotate(x, sincos, seq_dim=0), sincos, seq_dim=0, inverse=True), x))
        True
        """
        options, tables = (seq_dim, heads_dim, inverse, transpose), pair_of(sincos)
        if is_torch_compiling() and (graph := self._graph((x, *tables), *options)) is not None:
            return graph.rotate(self._text, x, tables, *options)
        return execute(self, plan_rotation, angles_of_call, (x,), tables, None, *options)[0]

    @public("RotaryEmbedding.rotate_inplace")
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
        >>> from rope_xp import RotaryEmbedding
        >>> rope = RotaryEmbedding(head_dim=4, layout="interleaved", base=10_000.0)
        >>> q, k = np.ones((3, 2, 4)), np.ones((3, 1, 4))
        >>> sincos = rope.sincos(np.arange(3), like=q)
        >>> rotated = rope.rotate(q, sincos, seq_dim=0)
        >>> rope.rotate_inplace(q, k, sincos=sincos, seq_dim=0)
        >>> bool((q == rotated).all())
        True
        """
        options = seq_dim, heads_dim, inverse, transpose, True
        execute(self, plan_rotation, angles_of_call, (x, *others), pair_of(sincos), positions, *options)

    @public("RotaryEmbedding.shift")
    def shift(self, k: ArrayT, delta: int | Array, *, seq_dim: int, heads_dim: int | None = None) -> ArrayT:
        """Move rotated keys, such as those of a cache, by `delta` positions.

        The attention factor is not applied again. In 16 bits, each shift rounds the keys: shift rarely, by many tokens.

        Parameters
        ----------
        k : array, "*batch head_dim"
            Keys that this embedding has rotated.
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
        >>> from rope_xp import RotaryEmbedding
        >>> rope = RotaryEmbedding(head_dim=4, layout="half", base=10_000.0)
        >>> k = np.ones((3, 4))
        >>> moved = rope.shift(rope(k, positions=np.asarray([5, 6, 7]), seq_dim=0), -5, seq_dim=0)
        >>> bool(np.allclose(moved, rope(k, seq_dim=0)))
        True
        """
        angles_of, given = partial(angles_of_shift, delta), None if checks.is_int(delta) else delta
        return execute(self, plan_shift, angles_of, (k,), (), given, seq_dim, heads_dim)[0]

    @public("RotaryEmbedding.rerotate")
    def rerotate(
        self, k: ArrayT, positions: Array, *, to: "RotaryEmbedding", seq_dim: int, heads_dim: int | None = None
    ) -> ArrayT:
        """Change rotated keys, such as those of a cache, to other frequencies at the same positions.

        The result is what `to` gives for the same keys before rotation, including its attention factor and, with
        `xpos`, its scale. Dynamic NTK scaling needs this when the length grows, and LongRoPE when it passes the
        original length: all keys of a cache must have the frequencies of the query. Keys are rotated once, by the
        difference of the two angles. Each call rounds them once to their dtype, so that the errors of repeated calls
        add up; change keys of 16 bits rarely, or keep a copy before rotation.

        Parameters
        ----------
        k : array, "*batch head_dim"
            Keys that this embedding rotated.
        positions : array, "seq", "batch seq" or with one axis less than `k`
            The positions at which they were rotated, in tokens, as in a call. Several position axes come first.
        to : RotaryEmbedding
            The embedding whose rotation the result has. It rotates the same channels in the same layout. All else may
            differ: the frequencies, the scaling, the attention factor, `xpos` and the phase.
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
            If shapes do not fit, or `to` rotates other channels, has another layout, or has other numbers of position
            axes or heads.
        TypeError
            If `to` is not a `RotaryEmbedding`, or dtypes or libraries do not fit.

        References
        ----------
        Peng et al., YaRN (2023), arXiv:2309.00071, section 3.3: a cache of keys must follow the scale of dynamic NTK.

        Examples
        --------
        >>> import numpy as np
        >>> from rope_xp import DynamicNTKScaling, RotaryEmbedding
        >>> dynamic = DynamicNTKScaling(factor=2.0, max_position_embeddings=4)
        >>> short = RotaryEmbedding(head_dim=8, layout="half", base=10_000.0, scaling=dynamic)
        >>> long = short.replace(scaling=DynamicNTKScaling(factor=2.0, max_position_embeddings=4, seq_len=6))
        >>> k, positions = np.ones((6, 8)), np.arange(6)
        >>> cached = short(k, positions=positions, seq_dim=0)
        >>> changed = short.rerotate(cached, positions, to=long, seq_dim=0)
        >>> bool(np.allclose(changed, long(k, positions=positions, seq_dim=0)))
        True
        """
        _check_target(self, to)
        angles_of = partial(angles_of_rerotation, to)
        return execute(self, plan_rerotation, angles_of, (k,), (), positions, seq_dim, heads_dim)[0]

    @public("RotaryEmbedding.describe")
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
        layout            half (channel j with j + pairs)
        frequencies       10000.0 ** (-2 j / 64), in radians per token
        wavelengths       6.28319 to 47117.2 tokens
        scaling           none
        attention factor  1.0
        phase             exact (sin and cos within 2e-7 at every int32 position)
        kernel            fastest (the fastest kernel that supports the arrays)
        """
        return describe(self, x)

    @public("RotaryEmbedding.explain")
    def explain(self, context: int | None = None, *, trained_length: int | None = None) -> "Explanation":
        """What this embedding does to a sequence of a length: effects, not parameters.

        The report says how the scaling rule treats each band of pairs, which pairs reach angles that training did not
        show, what happens to attention scores, what float32 would get wrong, which values the config states, and what
        is probably wrong. The trained length is that before scaling: a model may have been trained with its scaling,
        too, as Llama 3.1 was, which shows it more angles.

        Parameters
        ----------
        context : int, optional
            The length of the sequence in tokens. The default is the extended length, else the trained length; with the
            short factors of LongRoPE, it is the trained length. If none is known, the report leaves out what depends on
            it.
        trained_length : int, optional
            The length of sequences in training before scaling, in tokens, if neither the scaling rule nor a config
            states it. It replaces a stated one.

        Returns
        -------
        Explanation
            A text (`str`), Markdown (`to_markdown`) and a dict (`to_dict`).

        Raises
        ------
        ValueError
            If a length is not from 1 to ``2**53 - 1``.
        TypeError
            If a length is not an int.

        References
        ----------
        Peng et al., YaRN (2023), arXiv:2309.00071, section 3: wavelengths, and which of them interpolation changes.

        Examples
        --------
        >>> from rope_xp import Llama3Scaling
        >>> llama3 = Llama3Scaling(
        ...     factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
        ... )
        >>> rope = RotaryEmbedding(head_dim=128, layout="half", base=500_000.0, scaling=llama3)
        >>> report = rope.explain(131_072)
        >>> [(band.treatment, band.pairs[0], band.pairs[-1]) for band in report.bands]
        [('kept', 0, 28), ('blended', 29, 34), ('interpolated', 35, 63)]
        >>> min(report.unseen_from.values())
        65536
        """
        from rope_xp.explanation import explain  # not needed to import rope_xp

        return explain(self, context, trained_length)

    @property
    def softmax_scale(self) -> float:
        """The factor by which the model must multiply its softmax scale: DeepSeek's YaRN has one, all others have 1."""
        return 1.0 if self.scaling is None else self.scaling.softmax_scale

    @overload
    def extend(self, to: int, rule: None = None, *, trained_length: int | None = None) -> "Choices": ...
    @overload
    def extend(
        self, to: int, rule: RuleName, *, trained_length: int | None = None, **options: Any
    ) -> "RotaryEmbedding": ...
    @public("RotaryEmbedding.extend")
    def extend(
        self, to: int, rule: RuleName | None = None, *, trained_length: int | None = None, **options: Any
    ) -> "RotaryEmbedding | Choices":
        """An embedding for longer sequences by a scaling rule or, without `rule`, a report of the rules.

        The factor of the rule is ``to / trained length``. An embedding that is scaled already is not scaled twice: its
        scaling is removed first, and the trained length is that before scaling. If a model was trained with that
        scaling, it has not seen the new frequencies: the reports warn of it. All other arguments are kept. If the
        present scaling is of the same rule, so are its parameters that hold for every factor, such as `beta_fast`.

        Parameters
        ----------
        to : int
            The new length in tokens, greater than the trained length and than that with the present scaling.
        rule : "linear", "ntk", "dynamic", "yarn", "llama3" or "longrope", optional
            The rule, with the usual parameters: `beta_fast` 32 and `beta_slow` 1 of `YarnScaling`, `low_freq_factor` 1
            and `high_freq_factor` 4 of `Llama3Scaling`. Rules that depend on the length are for the length `to`.
        trained_length : int, optional
            The length of training in tokens. The default is that of the scaling or of the config.
        **options
            Other parameters of the rule. ``"longrope"`` needs `short_factor` and `long_factor`, which a search with the
            model finds. Several papers recommend a `factor` that is greater than the ratio of the lengths.

        Returns
        -------
        RotaryEmbedding, or Choices without `rule`
            `Choices` is a report: ``str(report)``, ``report.to_markdown()`` and ``report.to_dict()``. Its `choices`
            have the extended embeddings.

        Raises
        ------
        ValueError
            If the trained length is unknown, `to` is not greater than the length that the embedding has, the rule is
            unknown, the frequencies do not follow from a base, ``"longrope"`` has no lists, or a parameter is out of
            range.
        TypeError
            If a length is not an int, or the rule has no such parameter.

        References
        ----------
        Chen et al. (2023), arXiv:2306.15595; bloc97 and emozilla (2023), described in Peng et al., YaRN (2023),
        arXiv:2309.00071, sections 3.1 and 3.3; Ding et al., LongRoPE (2024), arXiv:2402.13753; meta-llama/llama-models,
        `models/llama3/reference_impl/model.py`, `apply_scaling`.

        Examples
        --------
        >>> from rope_xp import RotaryEmbedding
        >>> rope = RotaryEmbedding(head_dim=128, layout="half", base=10_000.0)
        >>> rope.extend(to=32_768, rule="yarn", trained_length=8192).scaling
        YarnScaling(factor=4.0, original_max_position_embeddings=8192, beta_fast=32.0, beta_slow=1.0, \
attention_factor=None, mscale=None, mscale_all_dim=None, truncate=True)
        >>> choices = rope.extend(to=32_768, trained_length=8192)
        >>> [(each.rule, each.kept, each.new_angles) for each in choices.choices if each.rule in ("ntk", "yarn")]
        [('ntk', 1, 13), ('yarn', 26, 0)]
        """
        # Not needed to import rope_xp.
        from rope_xp.extension import METHODS, checked_lengths, choices_of, extended

        trained, to = checked_lengths(self, to, trained_length)
        if rule is not None:
            checks.one_of("rule", rule, {name: method.does for name, method in METHODS.items()})
            return extended(self, rule, trained, to, options)
        if options:
            raise wrong_type(f"options must be given with a rule; got {', '.join(options)}")
        return choices_of(self, trained, to)

    @overload
    def to_config(
        self,
        target: KeysTarget = "transformers",
        *,
        architecture: str | None = None,
        engine_version: str | None = None,
        context: int | None = None,
    ) -> Values: ...
    @overload
    def to_config(
        self,
        target: FlagsTarget,
        *,
        architecture: str | None = None,
        engine_version: str | None = None,
        context: int | None = None,
    ) -> list[str]: ...
    @public("RotaryEmbedding.to_config")
    def to_config(
        self,
        target: Target = "transformers",
        *,
        architecture: str | None = None,
        engine_version: str | None = None,
        context: int | None = None,
    ) -> Any:
        """This embedding as keys of a config, or as arguments of an engine.

        Parameters
        ----------
        target : str
            Which program reads the result:

            - ``"transformers"``: `rope_parameters` of a config of transformers 5.
            - ``"transformers4"``: keys of a config.json of transformers 4, which many programs still read: the base,
              `rope_scaling` and others. In a config with parts, they lie under the key of the part.
            - ``"vllm"``, ``"sglang"`` and ``"lmdeploy"``: arguments for these engines that replace the config's
              `rope_parameters`. They lie where the engine reads them for the model type, such as "text_config".
            - ``"llama.cpp"``: arguments for llama.cpp. The widths, the pairing and position axes are in its file. They
              cannot replace a scaling of the config that is a tensor of the file, such as `rope_freqs.weight`.
            - ``"gguf"``: metadata of a GGUF file. Tensors that divide frequencies are in it by their names, as lists.
            - ``"lmstudio"``: keys of LM Studio's load config: a base and linear scaling. The file has all else.
            - ``"mlx"``: keys of a config.json of mlx-lm, where the class of the model type reads them.
            - ``"megatron"``: arguments of Megatron-LM, by their names with underscores.
            - ``"axolotl"``: a key of Axolotl's YAML file, with the keys of transformers 5.
            - ``"meta"``: keys of a params.json.
        architecture : str, optional
            The `general.architecture` of a GGUF file, for ``"gguf"`` and ``"llama.cpp"``. The default is that of the
            family, if the embedding is from `from_config`.
        engine_version : str, optional
            The version of the engine that reads the result, such as "0.33.0". The default is the newest whose source
            was read; the pages of the engines name these.
        context : int, optional
            The length in tokens that the program must accept: adds its settings for that, such as `--max-model-len`.
            Only for arguments, and for ``"gguf"`` and ``"lmstudio"``.

        Returns
        -------
        dict or list of str
            Keys as a dict of numbers, strings and lists, ready for JSON. Arguments as a list, ready for
            `subprocess.run`; `shlex.join` makes the text for a shell.

        Raises
        ------
        ValueError
            If the target cannot express the embedding: given or learned frequencies, xpos, reversed direction, orders
            of axes or scaling rules that it does not have. Also if its checkpoints pair other channels; the error then
            says who permutes the projections. Also if the engine does not read these keys for the model type, or
            reads them otherwise. It is a warning if it is not known whether the engine reads them.

        Notes
        -----
        Keys of transformers do not include the pairing, the position of the rotated channels and the phase, which
        belong to the model type. `NTKScaling` is a larger base, but `alpha` for Hunyuan's model types and for unknown
        ones in transformers. For llama.cpp, Llama 3's rule and others without an argument are a divisor of each
        frequency, in `rope_freqs.weight`. With YaRN, another attention factor than llama.cpp computes needs
        `architecture`. "interleaved_to_half" is written as "interleaved", which has the same scores but other keys.

        References
        ----------
        transformers, `modeling_rope_utils.py`, `RopeParameters`. vLLM, `model_executor/layers/rotary_embedding`.
        ggml-org/llama.cpp, `gguf-py/gguf/constants.py`, `common/arg.cpp`, `src/llama-context.cpp` (attention factor).
        ml-explore/mlx-lm, `models/rope_utils.py`. NVIDIA/Megatron-LM, `megatron/training/arguments.py`.
        meta-llama/llama-models, `models/llama3/args.py` and `models/llama4/args.py`. sgl-project/sglang,
        `srt/layers/rotary_embedding/factory.py`. InternLM/lmdeploy, `pytorch/nn/rotary_embedding.py`.

        Examples
        --------
        >>> from rope_xp import Llama3Scaling, YarnScaling
        >>> RotaryEmbedding(head_dim=128, layout="half", base=10_000.0, rotary_dim=32).to_config()
        {'rope_type': 'default', 'rope_theta': 10000.0, 'partial_rotary_factor': 0.25}
        >>> yarn = YarnScaling(factor=4.0, original_max_position_embeddings=32_768)
        >>> rope = RotaryEmbedding(head_dim=128, layout="half", base=1_000_000.0, scaling=yarn)
        >>> print(*rope.to_config("llama.cpp", architecture="qwen2"))
        --rope-freq-base 1000000 --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 32768
        >>> import shlex
        >>> rope = RotaryEmbedding(head_dim=128, layout="interleaved", base=500_000.0)
        >>> print(shlex.join(rope.to_config("vllm")))
        --hf-overrides '{"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}'
        >>> rope.to_config("meta")
        {'rope_theta': 500000.0, 'use_scaled_rope': False}
        """
        return config_for(self, target, Options(architecture, engine_version, context))

    def _graph(
        self,
        arrays: tuple[Array | None, ...],
        seq_dim: object = 0,
        heads_dim: object = None,
        *flags: object,
        name: object = None,
    ) -> Any:
        """The operators for graphs of `torch.compile`, or None if it must trace a call with these arguments."""
        if self._text is None or seq_dim is None:
            return None
        from rope_xp.kernels import graph

        return graph if graph.stands_for(arrays, (seq_dim, heads_dim), flags, name) else None

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

    @public("RotaryEmbedding")
    def __hash__(self) -> int:
        # PyTorch 2.11 hashes values that its compiler is still making. It takes a TypeError as an answer.
        if not vars(self).get("_frequencies"):
            raise wrong_type("a value must be complete before it is hashed; got one without frequencies")
        if not self._frequencies.are_floats:
            raise wrong_type(
                "a value with learned frequencies must not be hashed, because it holds an array; "
                f"got inv_freq of shape {checks.shape(self.inv_freq)}: create the value inside the function instead"
            )
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.compare}
        if not self._frequencies.are_floats:
            values["inv_freq"] = id(self.inv_freq)  # an array is equal only to itself
        return tuple(values.values())


# The names of the constructor's arguments. `_scaling` is for `dataclasses.replace` alone: the signature lacks it.
_ARGUMENTS = tuple(each.name for each in fields(RotaryEmbedding) if each.init and each.repr)
_parameters = signature(RotaryEmbedding.__init__).parameters
vars(RotaryEmbedding.__init__)["__signature__"] = Signature([_parameters[name] for name in ("self", *_ARGUMENTS)])


def _check_options(rope: RotaryEmbedding) -> None:
    checks.one_of("layout", rope.layout, LAYOUTS)
    checks.one_of("phase", rope.phase, PHASES)
    checks.one_of("kernel", rope.kernel, KERNELS)
    for name, kind in (("scaling", Scaling), ("sections", Sections), ("xpos", XPos)):
        value = getattr(rope, name)
        if value is not None and not isinstance(value, kind):
            example = ", such as YarnScaling(...)" if kind is Scaling else ""
            raise wrong_type(f"{name} must be a {kind.__name__}{example}; got {value!r}")


def _check_target(rope: RotaryEmbedding, to: object) -> None:
    """`to` must be an embedding that reads and writes the same channels, from equally many positions."""
    if not isinstance(to, RotaryEmbedding):
        raise wrong_type(f"to must be a RotaryEmbedding; got {type(to).__name__}")
    for name in ("head_dim", "layout", "first_channel", "rotary_dim", "blocks", "axes", "heads"):
        wanted, found = getattr(rope, name), getattr(to, name)
        if wanted != found:
            raise wrong_value(f"to must have {name}={wanted!r}, like the embedding that rotated k; got {found!r}")
