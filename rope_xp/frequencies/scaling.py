"""The base class of all scaling rules."""

from dataclasses import dataclass, fields
from typing import ClassVar

from rope_xp.arrays import checks
from rope_xp.errors import public, wrong_value
from rope_xp.frequencies.progressions import geometric


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The base class of scaling rules, which give frequencies and an attention factor. ``Scaling()`` changes nothing.

    `rope_type` is the name of the rule in a config. All rules raise ValueError for a value out of range and TypeError
    for a value of the wrong type.

    Examples
    --------
    >>> Scaling().frequencies(10_000.0, 4), Scaling().resolved_attention_factor
    ((1.0, 0.01), 1.0)
    """

    rope_type: ClassVar[str] = "default"
    # Whether configs have the rule by this name, with its fields as keys. False for rules of users.
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
        return f"{self.rope_type}, {', '.join(shown)}"

    def _set_fields(self, **values: object) -> None:
        """Only `__post_init__` may call it: the value is frozen."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    # Checks of fields that may also be None.

    @public()
    def _at_least(self, least: float, *names: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                self._set_fields(**{name: checks.at_least(name, getattr(self, name), least)})

    @public()
    def _at_most(self, most: float, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and value > most:
                raise wrong_value(f"{name} must be at most {most:g}; got {value}")

    @public()
    def _positive(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                self._set_fields(**{name: checks.positive(name, getattr(self, name))})

    @public()
    def _check_lengths(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                self._set_fields(**{name: checks.length(name, getattr(self, name))})
