"""`RotaryEmbedding` as a PyTorch module. It has no buffers. Learned frequencies are its only parameter."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from typing import TYPE_CHECKING, Any

from rope_xp.arrays import libraries
from rope_xp.errors import missing_package
from rope_xp.modules import RotaryModule

try:
    import torch
    from torch import nn
except ImportError as error:
    raise missing_package(__name__, "torch", "torch", error) from None

__all__ = ["RotaryEmbedding"]


class RotaryEmbedding(RotaryModule, nn.Module):
    """A module that rotates queries and keys. It holds a `rope_xp.RotaryEmbedding` and the axes of the model.

    Fixed frequencies are not in the state dict, and casting, moving or sharding a model does not change them. Learned
    frequencies are the only parameter, `inv_freq`, in float32. ``.half()``, ``.bfloat16()`` and
    ``.to(torch.bfloat16)`` leave it in float32, because bfloat16 frequencies give angles that are wrong by radians
    after a few hundred tokens. ``.double()`` makes it float64. Exclude it from all other casts; otherwise the forward
    pass raises TypeError. If FSDP uses mixed precision, shard this module by itself, without a policy:
    ``fully_shard(module)``.

    `__init__` lists the parameters, and `forward` the arguments of a call.

    Attributes
    ----------
    inv_freq : Parameter or None
        "pairs", "axes pairs" or "axes heads pairs", in radians per position. None if frequencies are not learned.
    initial : rope_xp.RotaryEmbedding
        The embedding that the module was created from.

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
    >>> unit = RotaryEmbedding(head_dim=2, layout="half", base=10_000.0, seq_dim=0)
    >>> unit(torch.tensor([[1.0, 0.0]]), positions=torch.tensor([1]))
    tensor([[0.5403, 0.8415]])
    """

    inv_freq: nn.Parameter | None
    forward = RotaryModule.__call__
    # PyTorch's `__call__` runs hooks and then `forward`. Type checkers see the arguments of `RotaryModule.__call__`.
    if not TYPE_CHECKING:
        __call__ = nn.Module.__call__

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
                initial = self._parameter().to(self.inv_freq.device)
                self.inv_freq.copy_(libraries.replicated(initial, like=self.inv_freq))

    def extra_repr(self) -> str:
        shown = [repr(self.initial).removeprefix("RotaryEmbedding(").removesuffix(")"), f"seq_dim={self.seq_dim}"]
        shown += [] if self.heads_dim is None else [f"heads_dim={self.heads_dim}"]
        return ", ".join(shown if self.inv_freq is None else [*shown, "learned=True"])

    def _parameter(self) -> nn.Parameter:
        return nn.Parameter(torch.tensor(self.initial.inv_freq, dtype=torch.float32))

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        def at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
            applied = fn(tensor)
            return tensor.to(applied.device) if applied.dtype.itemsize < 4 else applied

        return super()._apply(at_least_float32, recurse)
