"""Read a key of GGUF metadata."""

from typing import Any

import numpy as np

from rope_xp._core import checks, engines
from rope_xp._core.config.keys import Keys
from rope_xp._core.writers import gguf_architectures as gguf


class Metadata:
    """The metadata of one architecture, whose keys begin with its name. Methods take names without it.

    Parameters
    ----------
    keys : Keys
        The whole mapping.
    architecture : str
    """

    def __init__(self, keys: Keys, architecture: str):
        self.keys, self.architecture = keys, architecture
        self.is_latent = architecture in gguf.LATENT
        self.reading = engines.table("llama.cpp").of(architecture) or engines.Reading()

    def key(self, name: str) -> str:
        """The whole key."""
        return f"{self.architecture}.{name}"

    def reads(self, name: str, rule: str = "") -> bool:
        """Whether llama.cpp reads a key or a tensor for this architecture."""
        return name in self.reading.keys or name in self.reading.rules.get(rule, ())

    def get(self, *names: str) -> Any:
        """The value of the first of these keys that is given. A float32 becomes the shortest decimal number."""
        return shortest(self.keys.first(*map(self.key, names)))

    def factor(self, name: str, default: float = 1.0) -> float:
        """A positive number."""
        value = self.get(name)
        return default if value is None else checks.positive(self.key(name), value)

    def read(self, name: str, *neutral: float) -> Any:
        """The value of a key of YaRN or of the base that few architectures read.

        None, and a remark if the value is not neutral, for the others.
        """
        value = self.get(name)
        if value is None or self.reads(name) or self.reads(name, "yarn"):
            return value
        if checks.finite(self.key(name), value) not in neutral:
            self.keys.remarks.append(f"llama.cpp does not read {self.key(name)}={value:g} for this architecture")
        return None

    def ignore(self, *names: str) -> None:
        """Mark keys as read that change nothing."""
        self.keys.ignore(*map(self.key, names))

    def tensor(self, name: str) -> tuple[float, ...]:
        """The values of a tensor; empty if the mapping does not have it."""
        return tuple(checks.positive(f"every value of {name}", value) for value in self.keys.list_of(name))


def shortest(value: Any) -> Any:
    """The shortest decimal number with the same float32, if a number is a float32; other values stay as they are."""
    if isinstance(value, float) and abs(value) < 2.0**127 and float(np.float32(value)) == value:
        return float(str(np.float32(value)))
    return value
