"""Where the values of an embedding come from, as far as a config did not state them."""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Default(NamedTuple):
    """One value that a config did not state.

    Attributes
    ----------
    row : str
        The row of `RotaryEmbedding.describe` that shows the value.
    key : str
        The key under which a config states it.
    source : str
        Whose default it is, in words.
    """

    row: str
    key: str
    source: str


@dataclass(frozen=True)
class Provenance:
    """What `from_config` knows of an embedding besides its values; no part of its equality, hash or repr.

    Parameters
    ----------
    defaults : tuple of Default
        Values that the config did not state.
    remarks : tuple of str
        Other sentences for the reader.

    Examples
    --------
    >>> Provenance((Default("frequencies", "rope_theta", "default of llama"),)).mark("frequencies")
    ' (not in the config: rope_theta, default of llama)'
    """

    defaults: tuple[Default, ...] = ()
    remarks: tuple[str, ...] = ()

    def mark(self, row: str) -> str:
        """What follows the value of a row; nothing where the config states all of it."""
        found = _listed(default for default in self.defaults if default.row == row)
        return f" (not in the config: {found})" if found else ""

    def lines(self, rows: Container[str]) -> list[tuple[str, str]]:
        """Rows of their own: the values that none of `rows` shows, and the remarks."""
        others = _listed(default for default in self.defaults if default.row not in rows)
        return [("not in the config", others)] * bool(others) + [("remark", each) for each in self.remarks]


def _listed(defaults: Iterable[Default]) -> str:
    return "; ".join(f"{default.key}, {default.source}" for default in defaults)
