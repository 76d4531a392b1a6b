"""`RotaryEmbedding` as a Flax NNX module. Learned frequencies are its only variable."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from typing import Any, overload

import jax
import jax.numpy as jnp
from flax import nnx

from rope_xp._core import embedding
from rope_xp._core.arrays import Array
from rope_xp._core.modules import initial_value, with_frequencies


class RotaryEmbedding(nnx.Module):
    """A module that rotates queries and keys. It holds a `rope_xp.RotaryEmbedding` and the axes of the model.

    With fixed frequencies the module has no variables and is a constant under `nnx.jit`. Learned frequencies are one
    `nnx.Param` in float32. If you cast a state to half precision, leave it in float32, or the call raises TypeError.

    Parameters
    ----------
    rope : rope_xp.RotaryEmbedding, optional
        The initial value, for example from `rope_xp.from_config`. Without it, `options` give the value.
    seq_dim : int
        The sequence axis of queries and keys.
    heads_dim : int, optional
        The axis of heads of queries and keys. Required if each head has its own frequencies, and not allowed otherwise.
    learned : bool
        Whether the frequencies of all position axes are a parameter. They always are if `inv_freq` is an array of a
        library other than NumPy. The parameter is initialised with the numbers of that array.
    **options
        Arguments of `rope_xp.RotaryEmbedding`, such as `head_dim`, `layout` and `base`. Together with `rope`, they
        replace its values, as `rope_xp.RotaryEmbedding.replace` does.

    Attributes
    ----------
    inv_freq : nnx.Param or None
        "pairs", "axes pairs" or "axes heads pairs", in radians per position. None if frequencies are not learned.
    initial : rope_xp.RotaryEmbedding
        The initial value.
    rope : rope_xp.RotaryEmbedding
        The current value. If frequencies are learned, it has those of `inv_freq` at the time of access.

    Raises
    ------
    ValueError, TypeError
        As `rope_xp.RotaryEmbedding` does. ValueError also if frequencies are learned and the `softmax_scale` of the
        initial value is not 1. TypeError also if neither `rope` nor `options` are given.

    Examples
    --------
    >>> module = RotaryEmbedding(head_dim=64, layout="half", base=10_000.0, seq_dim=1)
    >>> q, k = jnp.ones((2, 5, 8, 64)), jnp.ones((2, 5, 2, 64))  # batch seq heads dim
    >>> q, k = nnx.jit(lambda module, q, k: module(q, k, positions=jnp.arange(5)))(module, q, k)
    >>> nnx.to_pure_dict(nnx.state(module))
    {}
    """

    def __init__(
        self,
        rope: embedding.RotaryEmbedding | None = None,
        *,
        seq_dim: int,
        heads_dim: int | None = None,
        learned: bool = False,
        **options: Any,
    ) -> None:
        self.initial, is_learned = initial_value(rope, options, learned)
        self.seq_dim, self.heads_dim = seq_dim, heads_dim
        inv_freq = jnp.asarray(self.initial.inv_freq, dtype=jnp.float32) if is_learned else None
        self.inv_freq = None if inv_freq is None else nnx.Param(inv_freq)

    @property
    def rope(self) -> embedding.RotaryEmbedding:
        return self.initial if self.inv_freq is None else with_frequencies(self.initial, self.inv_freq[...])

    @overload
    def __call__(
        self, q: jax.Array, *, positions: Array | None = None, sincos: tuple[Array, Array] | None = None
    ) -> jax.Array: ...
    @overload
    def __call__(
        self,
        q: jax.Array,
        k: jax.Array,
        /,
        *,
        positions: Array | None = None,
        sincos: tuple[Array, Array] | None = None,
    ) -> tuple[jax.Array, jax.Array]: ...
    @overload
    def __call__(
        self,
        q: jax.Array,
        /,
        *keys: jax.Array,
        positions: Array | None = None,
        sincos: tuple[Array, Array] | None = None,
    ) -> tuple[jax.Array, ...]: ...
    def __call__(
        self, q: Any, *keys: Any, positions: Array | None = None, sincos: tuple[Array, Array] | None = None
    ) -> Any:
        """Rotate queries and keys, as `rope_xp.RotaryEmbedding.__call__` does.

        Parameters
        ----------
        q, *keys : array, "*batch head_dim"
            The query and any number of keys.
        positions : array, "seq", "batch seq" or with one axis less than `q`, optional
            The position of each token, in tokens: integers or real numbers. The default is 0, 1, 2, ... along
            `seq_dim`.
        sincos : (array, array), optional
            Tables of ``module.rope.sincos``, "*axes pairs", which several layers can share.

        Returns
        -------
        array, or tuple of array
            One result for one argument, a tuple for several. Each has the shape, dtype and device of its argument.

        Raises
        ------
        ValueError, TypeError
            As `rope_xp.RotaryEmbedding.__call__` does.

        Examples
        --------
        >>> module = RotaryEmbedding(head_dim=2, layout="half", base=10_000.0, seq_dim=0)
        >>> module(jnp.asarray([[1.0, 0.0]]), positions=jnp.asarray([1])).round(3)
        Array([[0.54 , 0.841]], dtype=float32)
        """
        return self.rope(q, *keys, positions=positions, sincos=sincos, seq_dim=self.seq_dim, heads_dim=self.heads_dim)
