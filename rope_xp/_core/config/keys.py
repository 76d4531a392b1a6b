"""Reading a mapping so that no key of it is lost in silence."""

import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from rope_xp._core import checks
from rope_xp._core.provenance import Default

WHO = "from_config"

# Names of keys that mean the same.
BASE_KEYS = ("rope_theta", "theta", "rotary_emb_base", "rotary_embedding_base", "rope_base")
PARTIAL_KEYS = ("partial_rotary_factor", "rotary_pct", "rotary_percent", "rope_pct", "rope_percent", "rope_percentage")
PARTIAL_KEYS += ("rotary_emb_fraction",)
INTERLEAVE_KEYS = ("rope_interleave", "rope_interleaved", "rotary_emb_interleaved", "rope_traditional")
LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "model_max_length")
ORIGINAL = "original_max_position_embeddings"

# A bound on channels of a head and on layers, far above any model's.
MOST = 2**14

# Keys beside the rotary block that speak of rotation, in small letters.
ROTARY_KEY = re.compile(r"rope|rotary|partial_?rot|theta|yarn|(^|_)ntk|original_?max_?position")
# Keys that speak of another kind of position, unless they deny it.
OTHER_POSITIONS = re.compile(r"alibi|dual_?chunk|(^|_)nope(?!_?head)|^no_?pos")
# Keys that name the kind of position: a rotary one, unless a family reads the key.
KIND_OF_POSITION = re.compile(r"pos(ition(al)?)?_?(emb(ed(ding)?)?|enc(oding)?)s?(_?type)?")
ROTARY_KIND = re.compile(r"(rope|rotary)(_\w+)?")


def speaks(key: Any, value: Any) -> bool:
    """Whether a key beside the rotary block speaks of positions, so that it must not pass unread."""
    name = str(key).lower()
    if ROTARY_KEY.search(name):
        return True
    if OTHER_POSITIONS.search(name):
        return value is not None and value is not False
    if KIND_OF_POSITION.fullmatch(name):
        return value is not None and not (isinstance(value, str) and ROTARY_KIND.fullmatch(value.lower()))
    return False


def spellings(known: Iterable[str]) -> dict[str, str]:
    """Names by what is left of them without capital letters and underscores."""
    return {_plain(name): name for name in known}


def respelled(key: Any, known: Mapping[str, str]) -> str | None:
    """The name, one of `spellings`, that a key is but for capital letters and underscores."""
    name = known.get(_plain(key))
    return None if name == key else name


def _plain(key: Any) -> str:
    return str(key).lower().replace("_", "").replace("-", "").replace(" ", "")


def near(keys: Iterable[Any], known: Iterable[str]) -> str:
    """Which known names are like those that are not known, as words that end a message."""
    names = sorted(known)
    plain, found = spellings(names), {}
    for key in list(keys)[:8]:
        close = [respelled(key, plain), *get_close_matches(str(key)[:100], names, 1, 0.8)]
        found |= dict.fromkeys(name for name in close if name)
    return f", which is like {comma_separated(found)}" if found else ""


def shortened(error: Exception) -> str:
    """The message of an error, which says who raised it and has less than 1,000 characters."""
    message = str(error)
    message = message if message.startswith(f"{WHO}: ") else f"{WHO}: {message}"
    return message if len(message) < 1000 else f"{message[:600]} ... {message[-300:]}"


class Keys:
    """A mapping that remembers which of its keys were read, and what was taken in place of keys that it lacks.

    Parameters
    ----------
    name : str
        What errors call it.
    mapping : mapping
    family : str
        Whose defaults are taken.

    Attributes
    ----------
    defaults : dict of str to Default
        By key, what was taken because the mapping does not state it.
    remarks : list of str
        What `RotaryEmbedding.describe` says besides.
    """

    def __init__(self, name: str, mapping: Mapping[str, Any], family: str = ""):
        self.name = name
        self.mapping = mapping
        self.family = family
        self.defaults: dict[str, Default] = {}
        self.remarks: list[str] = []
        self._read: set[str] = set()

    def assume(self, row: str, key: str, source: str = "") -> None:
        """Remember a default: the row of `describe` that shows it, the key it stands for, and whose it is."""
        self.defaults[key] = Default(row, key, source or f"default of {self.family}")

    def state(self, name: str, value: Any, source: str) -> None:
        """State a known key as another one, the source, means it; it must not be there with another value."""
        given = self.get(name)
        if given is not None and given != value:
            raise ValueError(f"{WHO}: {name} must be {value!r}, as {source} says; got {given!r}")
        self.mapping = {**self.mapping, name: value}

    def fresh(self) -> "Keys":
        """The same mapping, of which nothing was read."""
        return Keys(self.name, self.mapping, self.family)

    def stated(self) -> bool:
        """Whether any of the keys that were read is there and not null."""
        return any(self.mapping.get(name) is not None for name in self._read)

    def get(self, *names: str) -> Any:
        """The value of whichever of these keys is given and not null; two must not contradict each other."""
        self._read.update(names)
        found = {name: self.mapping[name] for name in names if self.mapping.get(name) is not None}
        values = list(found.values())
        if any(value != values[0] for value in values[1:]):
            raise ValueError(f"{WHO}: keys of {self.name} must not contradict each other; got {found}")
        return values[0] if values else None

    def count(self, name: str, usual: int | None = None) -> Any:
        """A whole number, or what is usual where it is not given or null."""
        value = self.get(name)
        if usual and name not in self.mapping:
            self.assume("", name)
        if value is not None and checks.count(WHO, name, value) >= 2**53:
            raise ValueError(f"{WHO}: {name} must be below 2**53; got {value}")
        return usual if value is None else checks.count(WHO, name, value)

    def number(self, name: str, usual: float) -> Any:
        """What is given, or what is usual where it is not given or null."""
        value = self.get(name)
        if value is None:
            self.assume("", name)
        return usual if value is None else value

    def items(self, name: str) -> list[Any]:
        """A list, empty where it is not given or null."""
        value = self.get(name)
        if value is not None and not isinstance(value, (list, tuple)):
            raise TypeError(f"{WHO}: {name} must be a list; got {value!r}")
        return list(value or ())

    def within(self, name: str) -> "Keys":
        """A mapping in this one, empty where it is not given or null."""
        value = self.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise TypeError(f"{WHO}: {name} must be a mapping; got {value!r}")
        return Keys(name, value or {}, self.family)

    def ignore(self, *names: str) -> None:
        """Keys that are known and say nothing here."""
        self._read.update(names)

    def ignore_as(self, other: "Keys") -> None:
        """The keys that another reader of the same mapping has read."""
        self._read |= other._read

    def first(self, *names: str) -> Any:
        """The value of the first of these keys that is given and not null."""
        self._read.update(names)
        return next((self.mapping[name] for name in names if self.mapping.get(name) is not None), None)

    def finish(self, matters: Callable[[Any, Any], bool] | None = None) -> None:
        """Every key that matters must have been read; so must one that is a known key in other letters."""
        plain = spellings(self._read)
        unread = {
            key: value
            for key, value in self.mapping.items()
            if key not in self._read and (matters is None or matters(key, value) or respelled(key, plain))
        }
        if unread:
            known = comma_separated(self._read & self.mapping.keys())
            like = near(unread, self._read)
            raise ValueError(f"{WHO}: every key of {self.name} must be known; got {unread}{like}, beside {known}")


def consistent_value(name: str, inner: Any, outer: Any, where: str) -> Any:
    """What a block says, or what stands beside it; both must agree."""
    if inner is not None and outer is not None and inner != outer:
        raise ValueError(f"{WHO}: {name} must be said once; got {inner} in {where} and {outer} beside it")
    return outer if inner is None else inner


def comma_separated(names: Iterable[Any]) -> str:
    """Names in a message."""
    return ", ".join(sorted(str(name) for name in names))
