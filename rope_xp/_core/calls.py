"""The methods of `RotaryEmbedding` that take arrays. Each makes a plan first, and then executes it."""

from collections.abc import Sequence
from typing import Any, Literal, overload

from rope_xp._core import backends, checks, kernels
from rope_xp._core.alignment import align_pairs, align_positions, leading_axes
from rope_xp._core.angles import Phase, SinCos, sincos_of
from rope_xp._core.arrays import Array, ArrayT, OtherT
from rope_xp._core.backends.signature import Plans, signature_of
from rope_xp._core.channels import Channels
from rope_xp._core.errors import public
from rope_xp._core.kernels import Kernel
from rope_xp._core.kernels.pair_rotation import Angles
from rope_xp._core.plan import (
    CallPlan,
    plan_call,
    plan_rotation,
    planned_positions,
    require_disjoint,
    rotate_planned,
    run_program,
    table_program,
    with_programs,
)
from rope_xp._core.spectrum import Spectrum
from rope_xp._core.table_scale import TableScale
from rope_xp._core.tables import convert_tables, pair_of

Role = Literal["query", "key"]

ROLES = {"query": "its scale grows with position", "key": "its scale shrinks with position"}


class Calls:
    """The calls of an embedding. It has a spectrum, channels, and a scale of its tables."""

    phase: Phase
    kernel: Kernel
    _spectrum: Spectrum
    _channels: Channels
    _scale: TableScale
    _plans: Plans

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
        plan = self._plan(plan_call, arrays, tables, positions, seq_dim, heads_dim)
        if tables:
            return self._rotate(plan, arrays, tables, positions)
        positions = planned_positions(plan, x, positions)
        if plan.tables is not None:
            return self._rotate(plan, arrays, plan.tables.run(positions), None)
        if plan.source == "positions":
            rotated = self._rotate_by_positions(plan, arrays, positions)
        else:
            angles = self._computed_angles(plan, arrays, positions)
            rotated = kernels.rotate_by(plan.kernels, arrays, angles, plan.rotation, requested=self.kernel)
        return tuple(rotated) if len(rotated) > 1 else rotated[0]

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
        signature = signature_of((positions, like), "sincos", role)
        program = None if signature is None else self._plans.get(signature)
        if program is not None:
            return SinCos(*program.run(positions))
        sin, cos = self._unscaled_sincos(positions, like)
        if role is not None or self._scale.xpos is not None:
            checks.one_of("role", role, ROLES)
        if signature is not None:
            self._plans.add(signature, table_program(self, positions, [positions if like is None else like]))
        scale = self._scale.at(positions, 1 if role == "query" else -1, sin)
        return SinCos(sin, cos) if scale is None else SinCos(sin * scale, cos * scale)

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
        arrays, tables = (x,), pair_of(sincos)
        plan = self._plan(plan_rotation, arrays, tables, None, seq_dim, heads_dim, inverse, transpose)
        return self._rotate(plan, arrays, tables, None)

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
        arrays = (x, *others)
        tables = pair_of(sincos)
        plan = self._plan(plan_rotation, arrays, tables, positions, seq_dim, heads_dim, inverse, transpose, True)
        require_disjoint(plan, arrays, tables if positions is None else (*tables, positions))
        self._rotate(plan, arrays, tables, positions)

    def _plan(self, make: Any, arrays: tuple[Any, ...], tables: Any, positions: Any, *options: Any) -> CallPlan:
        """The plan of a call: the plan that is kept for its signature, or a new one."""
        signature = signature_of((*arrays, *tables, positions), make.__name__, len(arrays), *options)
        plan = None if signature is None else self._plans.get(signature)
        if plan is None:
            plan = make(self, arrays, tables, positions, *options)
            if signature is not None:
                plan = with_programs(plan, self, arrays, tables, positions)
                self._plans.add(signature, plan)
        return plan

    def _rotate(self, plan: CallPlan, arrays: Sequence[Any], tables: Any, positions: Any) -> Any:
        """Rotate arrays by tables, or by the rows of tables that positions select. One result is not in a tuple."""
        if plan.divides:
            tables = self._scale.inverted(*tables)
        rotated = rotate_planned(plan, arrays, tables, positions, self.kernel)
        return tuple(rotated) if len(rotated) > 1 else rotated[0]

    def _rotate_by_positions(self, plan: CallPlan, arrays: Sequence[Any], positions: Any) -> list[Any]:
        """Rotate arrays with a kernel that computes angles from positions."""
        rotated = run_program(plan, arrays, (positions,))
        if rotated is None:
            rows, rotation = align_positions(positions, plan.alignments), plan.rotation
            frequencies, factor = self._spectrum.frequencies, self._scale.attention_factor
            return kernels.rotate_by_positions(arrays, rows, frequencies, factor, rotation, self.kernel)
        return rotated

    def _computed_angles(self, plan: CallPlan, arrays: Sequence[Any], positions: Any) -> Angles:
        """Aligned tables for each array, from positions. With `xpos`, those of the query and of keys differ."""
        widest = next((array for array in arrays if backends.dtype_name(array.dtype) == "float64"), arrays[0])
        if self._scale.xpos is None:
            tables = convert_tables(arrays, self.sincos(positions, like=widest))
        else:
            query, key = (self.sincos(positions, like=widest, role=role) for role in ("query", "key"))
            tables = convert_tables(arrays[:1], query) + convert_tables(arrays[1:], key)
        return align_pairs(tables, plan.alignments)

    def _unscaled_sincos(self, positions: Any, like: Any) -> SinCos:
        """Tables without the attention factor and the scales of `xpos`."""
        frequencies = self._spectrum.frequencies
        leading_axes("positions", positions, frequencies.axes)
        return sincos_of(positions, frequencies, like=like, phase=self.phase, kernel=self.kernel)


# Python names the class of a method in errors about missing arguments; users know only the public class.
for _method in (Calls.__call__, Calls.sincos, Calls.rotate, Calls.rotate_inplace):
    _method.__qualname__ = f"RotaryEmbedding.{_method.__name__}"
