"""Read a mapping, and raise an error for keys that nothing reads."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from rope_xp.arrays import checks
from rope_xp.errors import wrong_type, wrong_value
from rope_xp.provenance import Default
from rope_xp.types import Config

# Names of keys that mean the same.
BASE_KEYS = ("rope_theta", "theta", "rotary_emb_base", "rotary_embedding_base", "rope_base")
PARTIAL_KEYS = ("partial_rotary_factor", "rotary_pct", "rotary_percent", "rope_pct", "rope_percent", "rope_percentage")
PARTIAL_KEYS += ("rotary_emb_fraction",)
INTERLEAVE_KEYS = ("rope_interleave", "rope_interleaved", "rotary_emb_interleaved", "rope_traditional")

# The largest number of channels of a head, and of layers. No model comes near it.
MAX_SIZE = 2**14

# Keys about rotation outside the rotary block, in lower case.
ROTARY_KEY = re.compile(
    r"rope|rotary|partial_?(rot|factor)|theta|yarn|(^|_)ntk|original_?max_?position|^base$|freq(uency)?_?base|base_?freq|"
    r"inv_?freq|^rot(ate)?_|^rotation_(base|dim)|neox_style|xpos|max_?wavelength|^interleaved$|^traditional$"
)
# Keys about another kind of position, or of a scaling rule, unless their value is false or null.
OTHER_POSITIONS = re.compile(
    r"alibi|dual_?chunk|(^|_)nope(?!_?head)|^no_?pos|^n_rot$|position_?interpol|^(position_)?scale_base$|^position_scale$|"
    r"^(attn|attention|long|short|low_freq|high_freq)_factor$|^beta_(fast|slow)$|^mscale"
)
# Keys that name the kind of position. Unless a family reads them, they must name a rotary one.
KIND_OF_POSITION = re.compile(r"pos(ition(al)?)?_?(emb(ed(ding)?)?|enc(oding)?)s?(_?type)?")
ROTARY_KIND = re.compile(r"(rope|rotary)(_\w+)?")


def is_about_positions(key: object, value: object) -> bool:
    """Whether a key outside the rotary block is about positions, so that it must be read."""
    name = str(key).lower()
    is_scaling = isinstance(value, Mapping) and ("rope_type" in value or {"type", "factor"} <= value.keys())
    if is_scaling or ROTARY_KEY.search(name):
        return True
    if OTHER_POSITIONS.search(name):
        return value is not None and value is not False
    return bool(KIND_OF_POSITION.fullmatch(name)) and value is not None and not states_rotation(key, value)


def states_rotation(key: object, value: object) -> bool:
    """Whether a key outside the rotary block is about a rotation, or says that the kind of position is one."""
    name = str(key).lower()
    is_kind = KIND_OF_POSITION.fullmatch(name) and isinstance(value, str) and ROTARY_KIND.fullmatch(value.lower())
    return bool(ROTARY_KEY.search(name) or is_kind)


# Keys of config classes of transformers 5.18 and 5.23, and of other code, that differ by one letter from a key that
# some family reads.
_OTHER_KEYS = (
    "_sliding_window_pattern architecture crop_pct crop_ratio d_head decoder decoder_config embed_dims encoder "
    "encoder_config encoder_num_attention_heads hidden_sizes l_layers layer_type layers "
    "memory_attention_rope_k_sizes mrope_interleaved n_head n_heads n_layer n_layers partial_rotary_factor "
    "partial_rotary_factors position_embedding_type position_embeddings_type qk_channels qk_nope_head_dim "
    "qk_rope_head_dim r_layers rope_interleave scale sliding_windows use_irope use_rope v_channels v_head_dim "
    "x_layers"
)
OTHER_KEYS = frozenset(_OTHER_KEYS.split())
SHORTEST = 5  # shorter names differ by one letter too often


class Spelling:
    """Names. A misspelt key differs in case, separators, or a letter: left out, added, replaced or moved by one."""

    def __init__(self, names: Iterable[str], shortest: int = SHORTEST):
        self.names = frozenset(names)
        self._plain = {_plain(name): name for name in sorted(self.names)}
        # One letter changes the start or the end of a name, not both: most keys are compared with few names. Two
        # letters that change places in a name of four change both, but for one letter.
        self._end = 2 if shortest > 4 else 1
        self._of_end = dict[str, list[str]]()
        for plain in self._plain:
            for end in {plain[: self._end], plain[-self._end :]} if len(plain) >= shortest else ():
                self._of_end.setdefault(end, []).append(plain)

    def of(self, key: object) -> str | None:
        """The known name that a misspelt key stands for; None if it is a known key, or another one."""
        if not isinstance(key, str) or key in self.names or key in OTHER_KEYS or len(key) > 64:
            return None
        plain = _plain(key)
        if plain in self._plain:
            return self._plain[plain]
        near = [each for end in (plain[: self._end], plain[-self._end :]) for each in self._of_end.get(end, ())]
        found = [each for each in near if not _with_one_less(plain).isdisjoint(_with_one_less(each))]
        found.sort(key=lambda each: (sorted(each) != sorted(plain), -len(each)))  # first, letters in another order
        # qwen2 and qwen3 are two names, but qwen may be misspelt for one of them
        found = [each for each in found if len(_digits(each)) != len(_digits(plain)) or _digits(each) == _digits(plain)]
        return self._plain[found[0]] if found else None

    def similar(self, keys: Iterable[object]) -> str:
        """The known names that are similar to unknown keys, as words for a message."""
        names, found = sorted(self.names), dict[str, None]()
        for key in [each for each in keys if str(each) not in OTHER_KEYS][:8]:
            close = [self.of(key), *get_close_matches(str(key)[:100], names, 1, 0.8)]
            found |= dict.fromkeys(name for name in close if name)
        return f", similar to {comma_separated(found)}" if found else ""


def _digits(text: str) -> list[str]:
    return re.findall(r"\d", text)


@lru_cache(maxsize=1024)
def _with_one_less(text: str) -> frozenset[str]:
    return frozenset([text, *(text[:index] + text[index + 1 :] for index in range(len(text)))])


def _plain(key: object) -> str:
    return str(key).lower().replace("_", "").replace("-", "").replace(" ", "")


def shortened(error: Exception, path: str) -> str:
    """The message of an error: the name of the function first, the file named, and fewer than 1,000 characters."""
    message = str(error)
    message = message if message.startswith("from_config: ") else f"from_config: {message}"
    message += "" if path in message else f" (in {path[-250:]})"
    return message if len(message) < 1000 else f"{message[:600]} ... {message[-300:]}"


class Keys:
    """A mapping that records which keys were read, the `defaults` of others, and `remarks` for `describe`."""

    def __init__(self, name: str, mapping: Config, model_type: str = ""):
        self.name = name
        self.mapping = mapping
        self.model_type = model_type
        self.defaults: dict[str, Default] = {}
        self.remarks: list[str] = []
        self._read: set[str] = set()

    def assume(self, row: str, key: str, source: str = "") -> None:
        """Record a default: the row of `describe` that shows it, its key, and its source."""
        self.defaults[key] = Default(row, key, source or f"default of {self.model_type}")

    def set_known(self, name: str, value: object, source: str) -> None:
        """Set a known key to the value that another key, `source`, implies. It must not have a different value."""
        self.require(name, value, f", because of {source}")
        self.mapping = {**self.mapping, name: value}

    def require(self, name: str, value: object, why: str) -> None:
        # `why` is the rest of the sentence for an error.
        given = self.read(name)
        if given is not None and given != value:
            raise wrong_value(f"{name} must be {value!r}{why}; got {given!r}")

    def fresh(self) -> "Keys":
        """The same mapping, with no key marked as read."""
        return Keys(self.name, self.mapping, self.model_type)

    def found(self) -> list[str]:
        """The keys that were read and have a value that is not null, in the order of the mapping."""
        return [name for name, value in self.mapping.items() if name in self._read and value is not None]

    def read(self, *names: str) -> Any:
        """The value of a key that may have several names, or None. Two names must not have different values."""
        self._read.update(names)
        found = {name: self.mapping[name] for name in names if self.mapping.get(name) is not None}
        first, *others = [*found.values()] or [None]
        if any(value != first for value in others):
            raise wrong_value(f"keys of {self.name} must not contradict each other; got {found}")
        return first

    def read_count(self, name: str, default: int | None = None) -> Any:
        value = self.read(name)
        if default and name not in self.mapping:
            self.assume("", name)
        if value is None:
            return default
        count = checks.count(name, value)
        if count >= 2**53:
            raise wrong_value(f"{name} must be below 2**53; got {value}")
        return count

    def read_flag(self, *names: str) -> bool | None:
        value = self.read(*names)
        return None if value is None else checks.boolean(names[0], value)

    def read_or_assume(self, name: str, row: str, default: object, source: str = "") -> Any:
        value = self.read(name)
        if value is not None:
            return value
        self.assume(row, name, source)
        return default

    def read_list(self, name: str) -> list[Any]:
        value = self.read(name)
        if value is not None and not isinstance(value, (list, tuple)):
            raise wrong_type(f"{name} must be a list; got {value!r}")
        return list(value or ())

    def read_mapping(self, name: str) -> "Keys":
        value = self.read(name)
        if value is not None and not isinstance(value, Mapping):
            raise wrong_type(f"{name} must be a mapping; got {value!r}")
        return Keys(name, value or {}, self.model_type)

    def mark_as_read(self, *names: str) -> None:
        self._read.update(names)

    def mark_all_read_by(self, other: "Keys") -> None:
        """Mark those keys as read that `other`, a copy of this mapping, has read."""
        self._read |= other._read

    def read_first(self, *names: str) -> Any:
        """The value of the first name that has one. Unlike in `read`, the others may have other values."""
        self._read.update(names)
        return next((self.mapping[name] for name in names if self.mapping.get(name) is not None), None)

    def require_all_read(
        self, matters: Callable[[str, object], bool] | None = None, owners: Callable[[str], str] | None = None
    ) -> None:
        """All keys that matter must have been read, and none be misspelt. `owners` says who else reads a key."""
        self.require_spelling()
        unread = {
            key: value
            for key, value in self.mapping.items()
            if key not in self._read and (matters is None or matters(key, value))
        }
        if unread:
            known = comma_separated(self._read & self.mapping.keys()) or "none"
            like = Spelling(self._read).similar(unread)
            like += "".join(map(owners, list(unread)[:4])) if owners else ""
            keys = f"every key of {self.name}{' about positions' if matters else ''}"
            raise wrong_value(f"{keys} must be known; got {unread}{like}; known keys in it: {known}")

    def require_spelling(self) -> None:
        require_spelling(self.name, self.mapping, self._read)


_spelling = lru_cache(maxsize=256)(Spelling)  # few sets of names occur: those that a family or a format reads


def require_spelling(name: str, mapping: Config, known: Iterable[str], shortest: int = SHORTEST) -> None:
    spelling = _spelling(frozenset(known), shortest)
    for key in mapping:
        wanted = spelling.of(key)
        # llama and llama4 may stand side by side
        if wanted is not None and (wanted not in mapping or _digits(wanted) == _digits(key)):
            besides = " besides it" if wanted in mapping else ""
            raise wrong_value(f"{wanted} must have this spelling in {name}; got {key!r}{besides}")


@contextmanager
def misspelt_first(keys: Keys) -> Iterator[None]:
    """If reading the keys fails, the error is a misspelt key, if there is one: it is the likely cause."""
    try:
        yield
    except (TypeError, ValueError):
        keys.require_spelling()
        raise


def consistent_value(name: str, inner: object, outer: object, where: str) -> Any:
    """The value that is stated in the block or outside it. If both are stated, they must be equal."""
    if inner is not None and outer is not None and inner != outer:
        raise wrong_value(f"{name} must not be contradicted; got {inner} in {where} and {outer} outside it")
    return outer if inner is None else inner


def comma_separated(names: Iterable[object]) -> str:
    return ", ".join(sorted(str(name) for name in names))


def owned_by(key: object, kind: str, names: Sequence[str]) -> str:
    """For an error: the first names of a kind, such as model types, that have a key. Empty if none has it."""
    if not names:
        return ""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"; {key} is a key of {kind} {comma_separated(names[:4])}{more}"
