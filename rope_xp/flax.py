"""`RotaryEmbedding` as a Flax NNX module: no variable but frequencies that are learned."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from typing import Any, overload

import jax
import jax.numpy as jnp
from flax import nnx

from rope_xp._core import embedding
from rope_xp._core.arrays import Array
from rope_xp._core.modules import value_of, with_frequencies


class RotaryEmbedding(nnx.Module):
    """Rotate queries and keys: a `rope_xp.RotaryEmbedding` that knows the axes of its model.

    Where frequencies are fixed the module has no variables, and is a constant under `nnx.jit`. Where they are learned
    they are one `nnx.Param`, float32; a state cast to half precision has to leave it out, or the call raises.

    Parameters
    ----------
    rope : rope_xp.RotaryEmbedding, optional
        The value to begin from, such as one of `rope_xp.from_config`; without it, it is made of `options`.
    seq_dim : int
        The sequence axis of queries and keys.
    heads_dim : int, optional
        Their axis of heads, for frequencies that each head has of its own.
    learned : bool
        Whether the frequencies are a parameter, on all position axes; they are if they were given as an array of
        another library than NumPy's, whose numbers it begins with.
    **options
        Arguments of `rope_xp.RotaryEmbedding`, such as `head_dim`, `layout` and `base`; with `rope`, what to change, as
        its `replace` does.

    Attributes
    ----------
    inv_freq : nnx.Param or None
        "pairs", "axes pairs" or "axes heads pairs", in radians per position.
    initial : rope_xp.RotaryEmbedding
        The value that it began from.
    rope : rope_xp.RotaryEmbedding
        The value; of the frequencies as they are when it is asked for, where they are learned.

    Raises
    ------
    ValueError, TypeError
        As `rope_xp.RotaryEmbedding` does; and if frequencies are learned of a value with a `softmax_scale`.

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
        self.initial, is_learned = value_of(rope, options, learned)
        self.seq_dim, self.heads_dim = seq_dim, heads_dim
        beginning = jnp.asarray(self.initial.inv_freq, dtype=jnp.float32) if is_learned else None
        self.inv_freq = None if beginning is None else nnx.Param(beginning)

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
            Any number of them.
        positions : array, "seq", "batch seq" or with one axis less than `q`, optional
            Where each token is; by default at 0, 1, 2, ...
        sincos : (array, array), optional
            Tables of ``module.rope.sincos``, made once for all layers.

        Returns
        -------
        array, or tuple of array
            One for one, several for several.

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
