"""`RotaryEmbedding` as a PyTorch module: no buffer, and no parameter but frequencies that are learned."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from typing import TYPE_CHECKING, Any, overload

import torch
from torch import nn

from rope_xp._core import embedding
from rope_xp._core.arrays import Array
from rope_xp._core.backends import dtensor
from rope_xp._core.modules import value_of, with_frequencies


class RotaryEmbedding(nn.Module):
    """Rotate queries and keys: a `rope_xp.RotaryEmbedding` that knows the axes of its model.

    Where frequencies are fixed there is nothing in the state dict, and nothing that casting, moving or sharding a model
    could touch. Where they are learned they are its one parameter, `inv_freq`, float32: ``.half()``, ``.bfloat16()``
    and ``.to(torch.bfloat16)`` move it but leave it float32, as a frequency of 8 bits is wrong by radians after a few
    hundred tokens; ``.double()`` makes it float64. What casts parameters by other ways has to leave it out (such as the
    mixed precision of FSDP, by ``fully_shard(module)`` with a policy of its own), or the forward pass raises.

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
    inv_freq : Parameter or None
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
        self.initial, is_learned = value_of(rope, options, learned)
        self.seq_dim, self.heads_dim = seq_dim, heads_dim
        self.inv_freq = nn.Parameter(self._beginning()) if is_learned else None

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
            Any number of them.
        positions : tensor, "seq", "batch seq" or with one axis less than `q`, optional
            Where each token is; by default at 0, 1, 2, ...
        sincos : (tensor, tensor), optional
            Tables of ``module.rope.sincos``, made once for all layers.

        Returns
        -------
        tensor, or tuple of tensor
            One for one, several for several.

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

    if TYPE_CHECKING:  # `nn.Module` declares its call as one of anything

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
        """Learned frequencies as they began: after ``to_empty``, for a model that was made on the meta device.

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
                beginning = self._beginning().to(self.inv_freq.device)
                self.inv_freq.copy_(dtensor.replicated(beginning, like=self.inv_freq))

    def extra_repr(self) -> str:
        shown = [repr(self.initial).removeprefix("RotaryEmbedding(").removesuffix(")"), f"seq_dim={self.seq_dim}"]
        shown += [] if self.heads_dim is None else [f"heads_dim={self.heads_dim}"]
        return ", ".join(shown if self.inv_freq is None else [*shown, "learned=True"])

    def _beginning(self) -> torch.Tensor:
        return torch.tensor(self.initial.inv_freq, dtype=torch.float32)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        def in_full(tensor: torch.Tensor) -> torch.Tensor:
            applied = fn(tensor)
            return tensor.to(applied.device) if applied.dtype.itemsize < 4 else applied

        return super()._apply(in_full, recurse)
