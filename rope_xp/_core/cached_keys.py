"""The methods of `RotaryEmbedding` that change rotated keys, such as those of a cache."""

from typing import Any

from rope_xp._core import backends, checks
from rope_xp._core.arrays import Array, ArrayT
from rope_xp._core.calls import Calls
from rope_xp._core.errors import public, wrong_type, wrong_value
from rope_xp._core.plan import plan_rerotation, plan_shift, planned_positions
from rope_xp.positions._sequence import count_from


class CachedKeys(Calls):
    """The calls of an embedding that take rotated keys."""

    @public("RotaryEmbedding.shift")
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
        >>> from rope_xp import RotaryEmbedding
        >>> rope = RotaryEmbedding(head_dim=4, layout="half", base=10_000.0)
        >>> k = np.ones((3, 4))
        >>> moved = rope.shift(rope(k, positions=np.asarray([5, 6, 7]), seq_dim=0), -5, seq_dim=0)
        >>> bool(np.allclose(moved, rope(k, seq_dim=0)))
        True
        """
        is_int = checks.is_int(delta)
        plan = self._plan(plan_shift, (k,), (), None if is_int else delta, seq_dim, heads_dim)
        if is_int:
            delta = count_from("delta", delta, 1, like=k)[0]
            if self._spectrum.frequencies.axes > 1:
                delta = backends.namespace(delta).stack([delta] * self._spectrum.frequencies.axes)
        change: Any = checks.convert_positions("delta", delta, k)
        change = backends.with_axes(backends.namespace(change), change, plan.delta_shape)
        sin, cos = self._unscaled_sincos(change, k)
        if self._scale.xpos is not None:
            # The change of a key's scale over `delta` tokens does not depend on the centre.
            scale = self._scale.over(change, -1, sin)
            sin, cos = sin * scale, cos * scale
        return self._rotate(plan, (k,), (sin, cos), None)

    @public("RotaryEmbedding.rerotate")
    def rerotate(
        self, k: ArrayT, positions: Array, *, to: "CachedKeys", seq_dim: int, heads_dim: int | None = None
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
        plan = self._plan(plan_rerotation, (k,), (), positions, seq_dim, heads_dim)
        positions = planned_positions(plan, k, positions)
        # Both pairs of tables have exact phases, so that the sine and the cosine of their difference do too.
        sin, cos = self._scale.inverted(*self.sincos(positions, like=k, role="key"))
        new_sin, new_cos = to.sincos(positions, like=k, role="key")
        change = new_sin * cos - new_cos * sin, new_cos * cos + new_sin * sin
        return self._rotate(plan, (k,), change, None)


def _check_target(rope: Any, to: Any) -> None:
    """`to` must be an embedding that reads and writes the same channels, from equally many positions."""
    if not isinstance(to, CachedKeys):
        raise wrong_type(f"to must be a RotaryEmbedding; got {type(to).__name__}")
    for name in ("head_dim", "layout", "first_channel", "rotary_dim", "blocks", "axes", "heads"):
        wanted, found = getattr(rope, name), getattr(to, name)
        if wanted != found:
            raise wrong_value(f"to must have {name}={wanted!r}, like the embedding that rotated k; got {found!r}")


# Python names the class of a method in errors about missing arguments; users know only the public class.
for _method in (CachedKeys.shift, CachedKeys.rerotate):
    _method.__qualname__ = f"RotaryEmbedding.{_method.__name__}"
