"""`RotaryEmbedding` as a PyTorch module. It has no buffers. Learned frequencies are its only parameter."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from typing import TYPE_CHECKING, Any, overload

import torch
from torch import nn

from rope_xp._core import embedding
from rope_xp._core.arrays import Array
from rope_xp._core.backends import dtensor
from rope_xp._core.modules import initial_value, with_frequencies


class RotaryEmbedding(nn.Module):
    """A module that rotates queries and keys. It holds a `rope_xp.RotaryEmbedding` and the axes of the model.

    Fixed frequencies are not in the state dict, and casting, moving or sharding a model does not change them. Learned
    frequencies are the only parameter, `inv_freq`, in float32. ``.half()``, ``.bfloat16()`` and
    ``.to(torch.bfloat16)`` leave it in float32, because bfloat16 frequencies give angles that are wrong by radians
    after a few hundred tokens. ``.double()`` makes it float64. Exclude it from other ways of casting parameters, or the
    forward pass raises TypeError. For the mixed precision of FSDP, call ``fully_shard(module)`` with a separate policy.

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
    inv_freq : Parameter or None
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
    >>> module
    RotaryEmbedding(head_dim=64, layout='half', base=10000.0, seq_dim=1)
    >>> q, k = torch.ones(2, 5, 8, 64), torch.ones(2, 5, 2, 64)  # batch seq heads dim
    >>> q, k = module(q, k, positions=torch.arange(5))
    >>> module.state_dict()
    OrderedDict()
    >>> [tuple(p.shape) for p in RotaryEmbedding(module.rope, seq_dim=1, learned=True).parameters()]
    [(32,)]
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
        super().__init__()
        self.initial, is_learned = initial_value(rope, options, learned)
        self.seq_dim, self.heads_dim = seq_dim, heads_dim
        self.inv_freq = nn.Parameter(self._initial_inv_freq()) if is_learned else None

    @property
    def rope(self) -> embedding.RotaryEmbedding:
        return self.initial if self.inv_freq is None else with_frequencies(self.initial, self.inv_freq)

    def forward(
        self, q: Any, *keys: Any, positions: Array | None = None, sincos: tuple[Array, Array] | None = None
    ) -> Any:
        """Rotate queries and keys, as `rope_xp.RotaryEmbedding.__call__` does.

        Parameters
        ----------
        q, *keys : tensor, "*batch head_dim"
            The query and any number of keys.
        positions : tensor, "seq", "batch seq" or with one axis less than `q`, optional
            The position of each token, in tokens: integers or real numbers. The default is 0, 1, 2, ... along
            `seq_dim`.
        sincos : (tensor, tensor), optional
            Tables of ``module.rope.sincos``, "*axes pairs", which several layers can share.

        Returns
        -------
        tensor, or tuple of tensor
            One result for one argument, a tuple for several. Each has the shape, dtype and device of its argument.

        Raises
        ------
        ValueError, TypeError
            As `rope_xp.RotaryEmbedding.__call__` does.

        Examples
        --------
        >>> module = RotaryEmbedding(head_dim=2, layout="half", base=10_000.0, seq_dim=0)
        >>> module(torch.tensor([[1.0, 0.0]]), positions=torch.tensor([1]))
        tensor([[0.5403, 0.8415]])
        """
        return self.rope(q, *keys, positions=positions, sincos=sincos, seq_dim=self.seq_dim, heads_dim=self.heads_dim)

    if TYPE_CHECKING:  # `nn.Module` declares that its call takes and returns anything

        @overload
        def __call__(
            self, q: torch.Tensor, *, positions: Array | None = None, sincos: tuple[Array, Array] | None = None
        ) -> torch.Tensor: ...
        @overload
        def __call__(
            self,
            q: torch.Tensor,
            k: torch.Tensor,
            /,
            *,
            positions: Array | None = None,
            sincos: tuple[Array, Array] | None = None,
        ) -> tuple[torch.Tensor, torch.Tensor]: ...
        @overload
        def __call__(
            self,
            q: torch.Tensor,
            /,
            *keys: torch.Tensor,
            positions: Array | None = None,
            sincos: tuple[Array, Array] | None = None,
        ) -> tuple[torch.Tensor, ...]: ...
        def __call__(self, q: Any, *keys: Any, positions: Any = None, sincos: Any = None) -> Any: ...

    def reset_parameters(self) -> None:
        """Set learned frequencies to their initial values.

        Call it after ``to_empty`` if the model was created on the meta device.

        Examples
        --------
        >>> with torch.device("meta"):
        ...     module = RotaryEmbedding(head_dim=4, layout="half", base=10_000.0, seq_dim=1, learned=True)
        >>> module.to_empty(device="cpu").reset_parameters()
        >>> module.inv_freq.tolist() == torch.tensor([1.0, 0.01]).tolist()
        True
        """
        if self.inv_freq is not None:
            with torch.no_grad():
                initial = self._initial_inv_freq().to(self.inv_freq.device)
                self.inv_freq.copy_(dtensor.replicated(initial, like=self.inv_freq))

    def extra_repr(self) -> str:
        shown = [repr(self.initial).removeprefix("RotaryEmbedding(").removesuffix(")"), f"seq_dim={self.seq_dim}"]
        shown += [] if self.heads_dim is None else [f"heads_dim={self.heads_dim}"]
        return ", ".join(shown if self.inv_freq is None else [*shown, "learned=True"])

    def _initial_inv_freq(self) -> torch.Tensor:
        return torch.tensor(self.initial.inv_freq, dtype=torch.float32)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        def at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
            applied = fn(tensor)
            return tensor.to(applied.device) if applied.dtype.itemsize < 4 else applied

        return super()._apply(at_least_float32, recurse)
