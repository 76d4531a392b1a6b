"""`RotaryModule`, which the modules of all frameworks share."""

from abc import abstractmethod
from typing import Any, overload

from rope_xp.embedding import RotaryEmbedding
from rope_xp.types import Array, ArrayT, OtherT, Values


class RotaryModule:
    """A base of modules that rotate queries and keys."""

    inv_freq: Any  # a parameter of the framework, or None
    initial: RotaryEmbedding

    def __init__(
        self,
        rope: RotaryEmbedding | None = None,
        *,
        seq_dim: int,
        heads_dim: int | None = None,
        learned: bool = False,
        **options: Any,
    ) -> None:
        """Make a module.

        Parameters
        ----------
        rope : rope_xp.RotaryEmbedding, optional
            The initial value, for example from `rope_xp.from_config`. Without it, `options` give the value.
        seq_dim : int
            The sequence axis of queries and keys.
        heads_dim : int, optional
            The axis of heads of queries and keys. Required if each head has its own frequencies, and not allowed
            otherwise.
        learned : bool
            Whether the frequencies of all position axes are a parameter. If `inv_freq` is an array of a library other
            than NumPy, they always are a parameter, and that array has its initial numbers.
        **options
            Arguments of `rope_xp.RotaryEmbedding`, such as `head_dim`, `layout` and `base`, which also checks them.
            Together with `rope`, they replace its values.

        Raises
        ------
        ValueError
            If frequencies are learned and the `softmax_scale` of the initial value is not 1.
        TypeError
            If neither `rope` nor `options` are given.
        """
        super().__init__()
        self.initial, is_learned = initial_value(rope, options, learned)
        self.seq_dim, self.heads_dim = seq_dim, heads_dim
        self.inv_freq = self._parameter() if is_learned else None

    @property
    def rope(self) -> RotaryEmbedding:
        """The current value. If frequencies are learned, it has those of `inv_freq` at the time of access."""
        return self.initial if self.inv_freq is None else with_frequencies(self.initial, self._frequencies())

    @overload
    def __call__(
        self, q: ArrayT, *, positions: Array | None = None, sincos: tuple[Array, Array] | None = None
    ) -> ArrayT: ...
    @overload
    def __call__(
        self, q: ArrayT, k: OtherT, /, *, positions: Array | None = None, sincos: tuple[Array, Array] | None = None
    ) -> tuple[ArrayT, OtherT]: ...
    @overload
    def __call__(
        self, q: ArrayT, /, *keys: ArrayT, positions: Array | None = None, sincos: tuple[Array, Array] | None = None
    ) -> tuple[ArrayT, ...]: ...
    def __call__(
        self, q: Array, *keys: Any, positions: Array | None = None, sincos: tuple[Array, Array] | None = None
    ) -> Any:
        """Rotate queries and keys, with the errors of `rope_xp.RotaryEmbedding.__call__`.

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
        """
        return self.rope(q, *keys, positions=positions, sincos=sincos, seq_dim=self.seq_dim, heads_dim=self.heads_dim)

    @abstractmethod
    def _parameter(self) -> Any:
        """A parameter of the framework, with the initial frequencies."""

    def _frequencies(self) -> Any:
        return self.inv_freq


def initial_value(rope: RotaryEmbedding | None, options: Values, learned: bool) -> tuple[RotaryEmbedding, bool]:
    """The initial value of a module, with frequencies as floats, and whether the module learns them."""
    if rope is not None and not isinstance(rope, RotaryEmbedding):
        raise TypeError(f"RotaryEmbedding: rope must be a rope_xp.RotaryEmbedding; got {type(rope).__name__}")
    if rope is None and not options:
        raise TypeError(
            "RotaryEmbedding: rope or its arguments must be given; got neither (`from_config` returns None for a layer "
            "that is not rotated)"
        )
    rope = RotaryEmbedding(**options) if rope is None else rope.replace(**options)
    inv_freq: Any = rope.inv_freq
    if not isinstance(inv_freq, tuple):
        return rope.replace(inv_freq=inv_freq.tolist()), True
    if learned and rope.softmax_scale != 1.0:
        raise ValueError(
            "RotaryEmbedding: learned frequencies must start from an embedding with softmax_scale 1, because they "
            f"have no scaling; got {rope.softmax_scale}: pass its inv_freq and attention_factor, and scale the softmax "
            "yourself"
        )
    return rope, learned


def with_frequencies(rope: RotaryEmbedding, inv_freq: object) -> RotaryEmbedding:
    """The same rotation with other frequencies. It has no base, scaling or sections."""
    return rope.replace(
        base=None,
        scaling=None,
        sections=None,
        reverse=False,
        inv_freq=inv_freq,
        attention_factor=rope.attention_factor,
    )
