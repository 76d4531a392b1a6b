"""`RotaryEmbedding` as a Flax NNX module. Learned frequencies are its only variable."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from rope_xp.errors import missing_package
from rope_xp.modules import RotaryModule

try:
    import jax
    import jax.numpy as jnp
    from flax import nnx
except ImportError as error:
    raise missing_package(__name__, "jax and flax", "flax", error) from None

__all__ = ["RotaryEmbedding"]


class RotaryEmbedding(RotaryModule, nnx.Module):
    """A module that rotates queries and keys. It holds a `rope_xp.RotaryEmbedding` and the axes of the model.

    With fixed frequencies the module has no variables and is a constant under `nnx.jit`. Learned frequencies are one
    `nnx.Param` in float32. If you cast a state to half precision, do not cast this one; otherwise the call raises
    TypeError.

    `__init__` lists the parameters, and `__call__` the arguments of a call.

    Attributes
    ----------
    inv_freq : nnx.Param or None
        "pairs", "axes pairs" or "axes heads pairs", in radians per position. None if frequencies are not learned.
    initial : rope_xp.RotaryEmbedding
        The embedding that the module was created from.

    Examples
    --------
    >>> module = RotaryEmbedding(head_dim=64, layout="half", base=10_000.0, seq_dim=1)
    >>> q, k = jnp.ones((2, 5, 8, 64)), jnp.ones((2, 5, 2, 64))  # batch seq heads dim
    >>> q, k = nnx.jit(lambda module, q, k: module(q, k, positions=jnp.arange(5)))(module, q, k)
    >>> nnx.to_pure_dict(nnx.state(module))
    {}
    >>> unit = RotaryEmbedding(head_dim=2, layout="half", base=10_000.0, seq_dim=0)
    >>> unit(jnp.asarray([[1.0, 0.0]]), positions=jnp.asarray([1])).round(3)
    Array([[0.54 , 0.841]], dtype=float32)
    """

    inv_freq: nnx.Param | None

    def _parameter(self) -> nnx.Param:
        return nnx.Param(jnp.asarray(self.initial.inv_freq, dtype=jnp.float32))

    def _frequencies(self) -> jax.Array:
        return super()._frequencies()[...]
