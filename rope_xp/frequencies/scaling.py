"""The base class of all scaling rules. Those with a field for a length, such as Llama 3's, are in `by_length.py`."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import ClassVar

from rope_xp.arrays import checks
from rope_xp.errors import public
from rope_xp.frequencies.progressions import geometric


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The base class of scaling rules, which give frequencies and an attention factor. ``Scaling()`` changes nothing.

    `rope_type` is the name of the rule, also in configs that have it. All rules raise ValueError for a value out of
    range and TypeError for a value of the wrong type.

    Examples
    --------
    >>> Scaling().frequencies(10_000.0, 4), Scaling().resolved_attention_factor
    ((1.0, 0.01), 1.0)
    """

    rope_type: ClassVar[str] = "default"
    # Whether transformers has the rule by this name, with its fields as keys. It does not have those of users.
    is_standard: ClassVar[bool] = False

    def frequencies(self, base: float, rotary_dim: int) -> tuple[float, ...]:
        """The scaled frequencies of ``rotary_dim / 2`` pairs, in radians per position."""
        return geometric(base, rotary_dim)

    @property
    def resolved_attention_factor(self) -> float:
        """The attention factor: sines and cosines are multiplied by this number."""
        return 1.0

    @property
    def softmax_scale(self) -> float:
        """The model must multiply the scale of its softmax by this number, in addition to the attention factor."""
        return 1.0

    def describe(self) -> str:
        """The name of the rule, and the fields that differ from their defaults. A list is shown as its length."""
        values = {each.name: (getattr(self, each.name), each.default) for each in fields(self)}
        shown = [
            f"{name}={f'({len(value)} numbers)' if isinstance(value, tuple) else value}"
            for name, (value, default) in values.items()
            if value != default
        ]
        return ", ".join([self.rope_type, *shown])

    def _set_fields(self, **values: object) -> None:
        """Only `__post_init__` may call it: the value is frozen."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @public()
    def _check(self, check: Callable[..., object], *names: str, **limits: float) -> None:
        """Each of these fields becomes what `check` returns for its name and value. Fields may also be None."""
        for name in names:
            value = getattr(self, name)
            if value is not None:
                self._set_fields(**{name: check(name, value, **limits)})

    @public()
    def _at_least(self, least: float, *names: str) -> None:
        self._check(checks.at_least, *names, least=least)
