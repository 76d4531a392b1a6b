"""Mistakes that people make with rotary embeddings, as small programs, and an oracle that finds them by brute force.

A program rotates in steps: setting, frequencies, positions, angles, tables, result. A kind of mistake changes what one
step gives. `draw` puts kinds, a reference, a style of writing and a form of arrays together; `Case.program` is the
function ``fn(x, positions)``. `largest_change` makes many calls and compares each with complex numbers.

Nothing here uses code of rope_xp. Inside a program, x is "batch seq heads dim" and positions "axes batch seq 1".
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import formulas
import ml_dtypes
import numpy as np
from formulas import geometric

linear = partial(formulas.linear, factor=4.0)
yarn = partial(formulas.yarn, factor=4.0, length=64)
llama3 = partial(formulas.llama3, factor=8.0, low=1.0, high=4.0, length=64)


class Setting(NamedTuple):
    """What a rotary embedding is. `axis` has the position axis of each pair, None for a single axis."""

    dim: int = 16
    width: int = 16
    first: int = 0
    layout: str = "half"
    base: float = 10_000.0
    rule: Callable = geometric
    factor: float = 1.0
    axis: tuple | None = None
    phase: Any = np.float64

    @property
    def axes(self):
        return 1 if self.axis is None else max(self.axis) + 1

    def frequencies(self):
        """Radians per token, "axes pairs"."""
        w = self.rule(self.base, self.width)
        return w[None] if self.axis is None else np.eye(self.axes)[:, self.axis] * w

    def channels(self):
        """The first and the second channel of each pair, as read and as written."""
        pair, pairs = np.arange(self.width // 2) + self.first, self.width // 2
        half, neighbours = (pair, pair + pairs), (2 * pair - self.first, 2 * pair - self.first + 1)
        return (half if self.layout == "half" else neighbours), (neighbours if self.layout == "interleaved" else half)


YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
LLAMA = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
FACTOR = 0.1 * float(np.log(4.0)) + 1.0

# Settings, and the arguments of `RotaryEmbedding` that are classes: their names and arguments.
REFERENCES = {
    "plain": (Setting(), {}),
    "interleaved": (Setting(layout="interleaved", base=500_000.0), {}),
    "partial": (Setting(width=8), {}),
    "wide": (Setting(dim=32, width=32), {}),
    "linear": (Setting(rule=linear), {"scaling": ("LinearScaling", {"factor": 4.0})}),
    "yarn": (Setting(rule=yarn, factor=FACTOR), {"scaling": ("YarnScaling", YARN)}),
    "llama3": (Setting(rule=llama3), {"scaling": ("Llama3Scaling", LLAMA)}),
    "axes": (Setting(axis=(0, 0, 0, 0, 1, 1, 2, 2)), {"sections": ("Sections", {"sizes": (4, 2, 2)})}),
}


class Call(NamedTuple):
    """What a step of a program may look at besides its own value. `memory` outlives the call."""

    x: Any
    positions: Any
    memory: dict

    @property
    def row(self):
        return np.arange(len(self.x))[:, None, None]

    @property
    def token(self):
        return np.arange(self.x.shape[1])[:, None]

    @property
    def head(self):
        return np.arange(self.x.shape[2])

    @property
    def tokens(self):
        return self.x.shape[1]


class Kind(NamedTuple):
    """A kind of mistake.

    `change` takes what a step gives, the `Call` and one of `numbers`. The first of `causes` is the usual one; the
    others may be named, too. `needs` is an axis that x must have, or the reference that the mistake belongs to.
    """

    step: str
    needs: str
    name: str
    causes: tuple
    change: Callable
    numbers: tuple = (0,)


def setting(**changes):
    return lambda s, call, n: s._replace(**changes)


def base_times(number):
    return lambda s, call, n: s._replace(base=s.base * number(call, n))


def yarn_with(parameter):
    return lambda s, call, n: s._replace(rule=partial(yarn, **{parameter: n}))


def by_pair(number):
    """Frequencies times a number of each pair."""
    return lambda w, call, n: w * number(np.arange(w.shape[1]), n)


def rounded(dtype):
    def change(value, call, n):
        if np.iscomplexobj(value):
            return change(value.real, call, n) + 1j * change(value.imag, call, n)
        return value.astype(dtype).astype(np.float64)

    return change


bfloat16, float16 = rounded(ml_dtypes.bfloat16), rounded(np.float16)


def unrotated(where):
    """x itself where a test of "batch seq heads" is true."""
    return lambda y, call, n: np.where(np.asarray(where(call, n))[..., None], call.x, y)


def in_long_calls(change):
    return lambda value, call, n: change(value, call, n) if call.tokens > n else value


def kept_for(key):
    """The value of the first call that has this key."""
    return lambda value, call, n: call.memory.setdefault((key, key(call)), value)


def of_the_call_before(p, call, n):
    """If it has the shape of this one."""
    before, call.memory["before"] = call.memory.get("before", p), p
    return before if before.shape == p.shape else p


def counted_over_calls(p, call, n):
    start = call.memory.get("seen", 0)
    call.memory["seen"] = start + call.tokens
    return 0 * p + start + call.token


def of_a_table_that_ends(p, call, n):
    if p.max() >= n:
        raise IndexError("index is out of bounds")
    return p


def of_a_table_in_parts(p, call, n):
    """Where a table is too short, rows are appended. By mistake they begin with position 0."""
    length = call.memory.setdefault("length", max(int(p.max()) + 1, n))
    return np.where(p < length, p, p - length)


def slower_by_the_longest_position(w, call, n):
    return w / max(call.positions.max() / n, 1)


def slower_by_the_longest_call(w, call, n):
    """Dynamic NTK with a memory."""
    seen = call.memory["longest"] = max(call.memory.get("longest", 0), call.positions.max() + 1)
    return w * max(seen / n, 1.0) ** (-np.arange(w.shape[1]) / w.shape[1])


LENGTHS = (2, 20, 300, 2000)  # numbers of tokens of a call
PLACES = (1, 8, 100, 1000, 5000)  # positions
# Causes. A linear rule, or one that leaves slow pairs as they are, may give the same frequencies.
SCALING, WIDTH = ("scaling", "frequencies"), ("width", "frequencies", "scaling")
ROUNDED = ("phase precision", "frequencies")
CALL, MEMORY = ("calls", "offset", "state", "unknown"), ("state", "calls", "unknown")
# What is wrong in calls of many tokens alone may be found without being explained.
LONG, UNROTATED = ("calls", "unknown"), ("calls", "rotation", "unknown")
OTHER = {"half": "interleaved", "interleaved": "half", "interleaved_to_half": "half"}

# Under the step that is changed, and what is needed for it: name, causes, change, and numbers.
GROUPS = {
    ("setting", ""): (
        ("pairs of the other layout", ("layout",), lambda s, c, n: s._replace(layout=OTHER[s.layout])),
        ("another base", ("base",), base_times(lambda c, n: n), (50.0, 1.01, 0.1)),
        ("float32 phases", ROUNDED, setting(phase=np.float32)),
        ("float16 phases", ROUNDED, setting(phase=np.float16)),
        ("bfloat16 phases", ROUNDED, setting(phase=ml_dtypes.bfloat16)),
        ("long calls with another base", (*LONG, "base"), base_times(lambda c, n: 1 + (c.tokens > n)), LENGTHS),
        ("short calls with another base", ("calls", "base"), base_times(lambda c, n: 1 + (c.tokens <= n)), (1, 20)),
    ),
    ("setting", "plain"): (
        ("half of the width", ("width",), setting(width=8)),
        ("exponents over all but one pair", ("base",), setting(base=1e4 ** (16 / 14))),
    ),
    ("setting", "interleaved"): (("left in the order of halves", ("layout",), setting(layout="interleaved_to_half")),),
    ("setting", "partial"): (
        ("all channels", ("width",), setting(width=16)),
        ("the last channels", ("width",), setting(first=8)),
    ),
    ("setting", "yarn"): (
        ("frequencies without scaling", ("scaling", "attention factor"), setting(rule=geometric)),
        ("no scaling", ("scaling", "attention factor"), setting(rule=geometric, factor=1.0)),
        ("YaRN taken as linear", SCALING, setting(rule=linear)),
        ("another factor of YaRN", SCALING, yarn_with("factor"), (4.1, 8.0, 40.0)),
        ("another length of YaRN", SCALING, yarn_with("length"), (256, 4096)),
        ("attention factor left out", ("attention factor",), setting(factor=1.0)),
        ("attention factor twice", ("attention factor",), setting(factor=FACTOR**2)),
    ),
    ("setting", "llama3"): (("Llama 3 without scaling", SCALING, setting(rule=geometric)),),
    ("setting", "axes"): (("sections in turn", ("sections",), setting(axis=(0, 1, 2, 0, 1, 2, 0, 0))),),
    ("frequencies", ""): (
        ("linear scaling that nobody wants", SCALING, lambda w, c, n: w / n, (2.0, 8.0)),
        # The first pairs may be all that there are, with another base.
        ("slow pairs not rotated", (*WIDTH, "base"), by_pair(lambda pair, n: pair < n), (3, 7)),
        ("one frequency too large", SCALING, by_pair(lambda pair, n: 1 + n * (pair == 2)), (0.01, 1.0)),
        ("one pair not rotated", WIDTH, by_pair(lambda pair, n: pair != 2)),
        ("one pair reversed", ("frequencies", "direction"), by_pair(lambda pair, n: np.sign(pair - 0.5))),
        ("float32 frequencies", ROUNDED, rounded(np.float32)),
        ("float16 frequencies", ROUNDED, float16),
        ("bfloat16 frequencies", ROUNDED, bfloat16),
        ("slower by the longest position", (*LONG, *SCALING), slower_by_the_longest_position, PLACES[2:]),
        ("slower by the longest call so far", (*MEMORY, "base", *SCALING), slower_by_the_longest_call, (64, 1000)),
    ),
    ("frequencies", "plain"): (
        ("frequencies in reversed order", ("frequencies",), lambda w, c, n: w[:, ::-1]),
        ("exponents that begin with 2", SCALING, lambda w, c, n: w * 1e4 ** (-2 / 16)),
    ),
    ("frequencies", "linear"): (
        ("linear scaling twice", SCALING, lambda w, c, n: w / 4),
        ("linear scaling reversed", SCALING, lambda w, c, n: w * 16),
    ),
    ("frequencies", "yarn"): (
        ("YaRN twice", SCALING, lambda w, c, n: w * w / geometric(1e4, 16)),
        ("YaRN reversed", SCALING, lambda w, c, n: geometric(1e4, 16) ** 2 / w),
    ),
    ("positions", ""): (
        ("offset", ("offset",), lambda p, c, n: p + n, (1, -1, 7)),
        ("bfloat16 positions", ROUNDED, bfloat16),
        ("float16 positions", ROUNDED, float16),
        ("doubled", SCALING, lambda p, c, n: 2 * p),
        ("grouped", ("unknown", *SCALING), lambda p, c, n: p // n, (2, 8)),
        ("a table's last row for later positions", ("unknown",), lambda p, c, n: np.minimum(p, n), PLACES),
        ("from the first row of a table again", ("unknown",), lambda p, c, n: p % n, PLACES[1:]),
        ("a table that ends", ("length",), of_a_table_that_ends, PLACES[1:]),
        ("int8 positions", ("unknown",), lambda p, c, n: p.astype(np.int8).astype(int)),
        ("int16 positions", ("unknown",), lambda p, c, n: p.astype(np.int16).astype(int)),
        ("rotated from a position on", ("unknown", "rotation"), lambda p, c, n: p * (p >= n), PLACES),
        ("counted from a position on", ("unknown", "rotation"), lambda p, c, n: np.maximum(p - n, 0), PLACES),
        ("one more from a position on", ("unknown",), lambda p, c, n: p + (p >= n), PLACES[1:]),
        ("reversed from a position on", ("unknown", "direction"), lambda p, c, n: np.where(p < n, p, -p), PLACES),
        ("one position is wrong", ("unknown",), lambda p, c, n: p * (p != n), PLACES),
        ("relative to the call", CALL, lambda p, c, n: p - p.min()),
        ("relative to each row", CALL, lambda p, c, n: p - p[:, :, :1]),
        ("the mean taken away", CALL, lambda p, c, n: p - np.round(p.mean())),
        ("positions ignored", CALL, lambda p, c, n: 0 * p + c.token),
        ("counted from the first", CALL, lambda p, c, n: p[:, :, :1] + c.token),
        ("counted to the last", CALL, lambda p, c, n: p[:, :, -1:] + c.token - c.tokens + 1),
        ("in ascending order", CALL, lambda p, c, n: np.sort(p, axis=2)),
        ("from right to left", CALL, lambda p, c, n: p[:, :, ::-1]),
        ("from the end", (*CALL, "direction"), lambda p, c, n: p.max() - p),
        ("the last one for all", (*CALL, "rotation"), lambda p, c, n: 0 * p + p[:, :, -1:]),
        ("one less, but for a single token", CALL, lambda p, c, n: p - (c.tokens > 1)),
        ("0 for a single token", CALL, lambda p, c, n: p * (c.tokens > 1)),
        ("one more in later chunks", CALL, lambda p, c, n: p + (p.min() > 0)),
        ("chunks of a call begin anew", CALL, lambda p, c, n: p - c.token // n * n, LENGTHS[1:]),
        ("those of the first call of this shape", MEMORY, kept_for(lambda c: c.x.shape)),
        ("those of the call before", MEMORY, of_the_call_before),
        ("counted over all calls", MEMORY, counted_over_calls),
        ("a table that begins anew where it was made longer", MEMORY, of_a_table_in_parts, (1, 64)),
    ),
    ("positions", "axes"): (
        ("text positions alone", ("sections",), lambda p, c, n: 0 * p + p[:1]),
        ("height and width exchanged", ("sections", "unknown"), lambda p, c, n: p[[0, 2, 1]]),
    ),
    ("positions", "batch"): (
        ("row 0's for all rows", ("calls",), lambda p, c, n: 0 * p + p[:, :1]),
        ("the last row's for all rows", ("calls",), lambda p, c, n: 0 * p + p[:, -1:]),
        ("rows' positions in reversed order", ("calls",), lambda p, c, n: p[:, ::-1]),
        ("counted through the rows", ("calls",), lambda p, c, n: p + c.row * c.tokens),
        ("the number of the row", ("axis", "calls"), lambda p, c, n: 0 * p + c.row),
    ),
    ("positions", "heads"): (
        ("the number of the head", ("axis", "calls"), lambda p, c, n: 0 * p + c.head),
        ("heads are counted, too", ("calls", "axis"), lambda p, c, n: p + c.head),
    ),
    ("angles", ""): (
        ("float16 angles", ROUNDED, float16),
        ("bfloat16 angles", ROUNDED, bfloat16),
        (
            "half the frequencies from a position on",
            ("unknown", *SCALING),
            lambda a, c, n: a / (1 + (c.positions[0] >= n)[..., None]),
            PLACES,
        ),
    ),
    ("tables", ""): (
        ("float16 tables", ROUNDED, float16),
        ("bfloat16 tables", ROUNDED, bfloat16),
        ("the other direction", ("direction",), lambda z, c, n: z.conj()),
        ("sines and cosines exchanged", ("sincos order",), lambda z, c, n: z.imag + 1j * z.real),
        ("an attention factor", ("attention factor",), lambda z, c, n: n * z, (1.25, 0.5)),
        ("a factor of cosines alone", ("unknown",), lambda z, c, n: 1.25 * z.real + 1j * z.imag),
        ("cosines alone", ("unknown",), lambda z, c, n: z.real + 0j),
        ("rotated twice", (*SCALING, "attention factor"), lambda z, c, n: z * z),
        ("bfloat16 tables in long calls", (*LONG, *ROUNDED), in_long_calls(bfloat16), LENGTHS),
        ("those of the first call of this length", MEMORY, kept_for(lambda c: c.x.shape[:2])),
        ("those of the first call with this end", MEMORY, kept_for(lambda c: (c.x.shape[:2], c.positions.max()))),
        ("those of the first call with this start", MEMORY, kept_for(lambda c: (c.x.shape[:2], c.positions.min()))),
    ),
    ("result", ""): (
        ("not rotated", ("rotation",), unrotated(lambda c, n: True)),
        ("not rotated: the first token", ("calls",), unrotated(lambda c, n: c.token == 0)),
        ("not rotated: the last token", ("calls",), unrotated(lambda c, n: c.token == c.tokens - 1)),
        ("not rotated: one token", ("calls",), unrotated(lambda c, n: c.token == n), (1, 5, 30)),
        ("not rotated: later tokens", UNROTATED, unrotated(lambda c, n: c.token >= n), LENGTHS),
        ("not rotated: calls of a single token", ("calls",), unrotated(lambda c, n: c.tokens == 1)),
        ("not rotated: long calls", UNROTATED, unrotated(lambda c, n: c.tokens > n), LENGTHS),
        ("each token gets the result of the one before", ("calls",), lambda y, c, n: np.roll(y, 1, axis=1)),
        ("the result of another layer", MEMORY, kept_for(lambda c: c.x.shape)),
        (
            "the result of another layer at these positions",
            MEMORY,
            kept_for(lambda c: (c.x.shape, c.positions.tobytes())),
        ),
    ),
    ("result", "heads"): (
        ("not rotated: later heads", ("calls",), unrotated(lambda c, n: c.head >= n), (1, 2, 8)),
        ("not rotated: the first head", ("calls",), unrotated(lambda c, n: c.head == 0)),
        ("heads in reversed order", ("calls",), lambda y, c, n: y[:, :, ::-1]),
        ("all heads are the first", ("calls",), lambda y, c, n: 0 * y + y[:, :, :1]),
    ),
    ("result", "batch"): (
        ("not rotated: later rows", UNROTATED, unrotated(lambda c, n: c.row >= n), (1, 2)),
        ("not rotated: batches", UNROTATED, unrotated(lambda c, n: len(c.x) > 1)),
        ("rows in reversed order", ("calls",), lambda y, c, n: y[::-1]),
    ),
}
KINDS = tuple(Kind(step, needs, *row) for (step, needs), rows in GROUPS.items() for row in rows)


# Ways to write the same rotation of x "... dim" by complex factors z "... pairs".
def by_complex_numbers(x, z, s):
    (a, b), (to_a, to_b) = s.channels()
    y = np.array(x, dtype=np.float64)
    rotated = (x[..., a] + 1j * x[..., b]) * z
    y[..., to_a], y[..., to_b] = rotated.real, rotated.imag
    return y


def by_tables_of_all_channels(x, z, s):
    """x times cosines, and x with its pairs exchanged times sines, as in most models."""
    (a, b), (to_a, to_b) = s.channels()
    cos, sin = np.ones((*z.shape[:-1], s.dim)), np.zeros((*z.shape[:-1], s.dim))
    cos[..., to_a] = cos[..., to_b] = z.real
    sin[..., to_a], sin[..., to_b] = -z.imag, z.imag
    source, other = np.arange(s.dim), np.arange(s.dim)
    source[to_a], source[to_b], other[to_a], other[to_b] = a, b, b, a
    return x[..., source] * cos + x[..., other] * sin


def by_small_matrices(x, z, s):
    (a, b), (to_a, to_b) = s.channels()
    y = np.array(x, dtype=np.float64)
    matrices = np.stack([z.real, -z.imag, z.imag, z.real], axis=-1).reshape(*z.shape, 2, 2)
    y[..., [to_a, to_b]] = np.einsum("...jab,...bj->...aj", matrices, x[..., [a, b]])
    return y


def by_float32_tables(x, z, s):
    return by_complex_numbers(x, z.astype(np.complex64).astype(np.complex128), s)


STYLES = (by_complex_numbers, by_tables_of_all_channels, by_small_matrices, by_float32_tables)


# Ways to come by the complex factors of positions "batch seq heads". `table` computes those of any positions.
def computed(p, table, call):
    return table(p)


def of_different_positions(p, table, call):
    different, index = np.unique(p, return_inverse=True)
    return table(different)[index.reshape(p.shape)]


def of_a_table_made_longer(p, table, call):
    """A table that is kept between calls."""
    kept = call.memory.get("table", ())
    if p.max() >= len(kept):
        kept = call.memory["table"] = table(np.arange(min(p.max() + 1, MOST)))
    return kept[p]


def of_a_table(p, table, call):
    """A table of a limited length: later positions raise IndexError."""
    if "table" not in call.memory:
        call.memory["table"] = table(np.arange(MOST))
    return call.memory["table"][p]


MOST = 2**15
SOURCES = (computed, of_different_positions, of_a_table_made_longer, of_a_table)
AXES = ("batch", "seq", "heads", "dim")
SHAPES = ("seq dim", "seq heads dim", "heads seq dim", "batch heads seq dim", "batch seq heads dim")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A reference, and a program with some mistakes or none.

    Attributes
    ----------
    reference : str
        A key of `REFERENCES`.
    planted : tuple of (Kind, number)
    shape : str
        The axes of x that the program takes.
    is_stated : bool
        Whether `compare` is told.
    position_axes : tuple of int
        How many axes positions may have: "seq" is 1, "batch seq" is 2.
    style, source : function
        Of `STYLES` and of `SOURCES`.
    dtype : dtype
        Of the results.
    context : int
    """

    reference: str = "plain"
    planted: tuple = ()
    shape: str = "seq dim"
    is_stated: bool = False
    position_axes: tuple = (1,)
    style: Callable = by_complex_numbers
    source: Callable = computed
    dtype: Any = np.float64
    context: int = 4096

    def __str__(self):
        names = " + ".join(f"{kind.name} ({number})" for kind, number in self.planted) or "no mistake"
        how = f"{self.style.__name__}, {self.source.__name__}, {np.dtype(self.dtype).name}"
        shape = f"({self.shape}){'' if self.is_stated else ' not stated'}, positions of {self.position_axes} axes"
        return f"{names}; {self.reference}, {shape}, {how}, context {self.context}"

    @property
    def setting(self):
        return REFERENCES[self.reference][0]

    def program(self):
        """A new function ``fn(x, positions)``, with a memory of its own."""
        memory, axes = {}, self.setting.axes

        def fn(x, positions):
            p = positions[None] if self.setting.axis is None else positions
            if x.ndim != len(self.shape.split()) or p.ndim - 1 not in self.position_axes or len(p) != axes:
                raise ValueError(f"x must be ({self.shape})")
            x = self.with_all_axes(x.astype(np.float64))
            p = p[:, None] if p.ndim == 2 else p
            if p.shape[2] != x.shape[1] or p.shape[1] not in (1, len(x)):
                raise ValueError("positions must be those of the tokens")
            p = np.broadcast_to(p, (axes, *x.shape[:2]))[..., None]
            return self.in_shape(_rotated(Call(x, p, memory), self)).astype(self.dtype)

        return fn

    def with_all_axes(self, x):
        """x in the shape of the program as "batch seq heads dim"."""
        names = self.shape.split()
        present = [name for name in AXES if name in names]
        return np.expand_dims(x.transpose(*map(names.index, present)), tuple(map(AXES.index, {*AXES} - {*names})))

    def in_shape(self, x):
        """x "batch seq heads dim" in the shape of the program."""
        names = self.shape.split()
        present = [name for name in AXES if name in names]
        return x.squeeze(tuple(map(AXES.index, {*AXES} - {*names}))).transpose(*map(present.index, names))


def _rotated(call, case):
    """The steps of a program, each changed by the mistakes that are planted there."""

    def changed(step, value):
        for kind, number in case.planted:
            value = kind.change(value, call, number) if kind.step == step else value
        return value

    s = changed("setting", case.setting)
    w, p = changed("frequencies", s.frequencies()), changed("positions", call.positions)

    def table(p):
        """The factors at positions of all axes, or of a single one without an axis."""
        product = p.astype(s.phase)[..., None] * w.astype(s.phase).reshape(s.axes, *[1] * (p.ndim - 1), -1)
        return np.exp(1j * changed("angles", product.astype(np.float64).sum(axis=0)))

    z = case.source(p[0], lambda one: table(one[None]), call) if s.axis is None else table(p)
    return changed("result", case.style(call.x, changed("tables", s.factor * z), s))


def truth(s, x, positions):
    """What an embedding makes of x "batch seq heads dim" at positions "axes batch seq", by complex numbers."""
    angles = np.einsum("abs,aj->bsj", positions.astype(np.float64), s.frequencies())
    return by_complex_numbers(x, s.factor * np.exp(1j * angles)[:, :, None], s)


def series_of_calls(context):
    """Lists of calls of one program: positions "seq" or "batch seq" below the context, and the number of heads."""
    rng, some = np.random.default_rng(0), min(context, 40)
    first, last = np.arange(some), np.arange(context - some, context)
    shuffled, decoded = rng.permutation(some), [[p % context] for p in range(some, some + 3)]
    yield [(np.arange(context), 1)]
    yield [(each, 2) for each in (*np.array_split(first, 2), *decoded)]
    yield [([p], 2) for p in (*range(6), context // 2, context - 1)]
    yield [(each, 3) for each in (shuffled, first[::-1], first, last, first)]
    yield [(each, 3) for each in (last, first, rng.integers(0, context, some), np.array([3, 3, 0, 0, 5]) % context)]
    yield [(np.tile(first[: some // 2], 2), 2), ([context - 1], 2)]
    yield [(np.stack([first, last, first[::-1], shuffled]), 2), (np.stack([last, first]), 2)]
    yield [(np.stack([0 * first, first]), 2), (rng.integers(0, context, (5, 3)), 2)]
    yield [(np.arange(length), 1) for length in (1, 2, 3, 9, 33, 129, 513, 2049, 4097) if length <= context]
    yield [(first, heads) for heads in (1, 2, 5, 12)]


def packed_calls(context):
    """A call of more tokens than the context has, as of packed sequences. Nobody must make such a call."""
    yield [(np.tile(np.arange(context), 1 + 3000 // context), 1)]


def largest_change(case, s=None, offset=0, context=None, series=series_of_calls):
    """The largest change of a row of x, as a part of its length, in all calls of these series.

    A call that raises, or returns NaN, counts as infinite. `s` is what the program is compared with, by default its
    reference. Of the longest call, each pair is tried alone, so that the change is that of a unit score.
    """
    s, context = s or case.setting, context or case.context
    rng, names, axes, most = np.random.default_rng(1), case.shape.split(), s.axes, 0.0
    for calls in series(context):
        fn = case.program()
        for positions, heads in calls:
            positions = np.atleast_2d(positions)
            if len(positions) > 1 and not ("batch" in names and 2 in case.position_axes):
                continue
            heads = heads if "heads" in names else 1
            size = (len(positions), positions.shape[1], heads, s.dim)
            order = np.random.default_rng(2)  # the same for the same positions, which a program may keep
            p = np.stack([positions, *(order.permuted(positions, axis=1) for _ in range(axes - 1))])
            change = _change(fn, case, s, rng.normal(size=size), p, offset)
            if 1e-6 < change < 0.1 and len(calls) == 1:
                units = np.eye(s.dim)[s.channels()[0][0]]
                change = max(_change(fn, case, s, np.broadcast_to(x, size), p, offset) for x in units)
            most = max(most, change)
            if most > 0.1:
                return most
    return most


def _change(fn, case, s, x, p, offset):
    """The change of one call."""
    given = p[:, 0] if 1 in case.position_axes and len(x) == 1 else p
    try:
        y = fn(case.in_shape(x), given[0] if case.setting.axis is None else given)
    except IndexError:
        return np.inf
    far = np.linalg.norm(case.with_all_axes(y.astype(np.float64)) - truth(s, x, p + offset), axis=-1)
    return float(np.nan_to_num(far / np.linalg.norm(x, axis=-1), nan=np.inf).max())


def draw(rng, planted):
    """A case with these kinds of mistakes, of which all else is random."""
    needs = {kind.needs for kind in planted} - {""}
    references = sorted(needs & REFERENCES.keys()) or [*REFERENCES]
    shapes = [shape for shape in SHAPES if needs & {"batch", "heads"} <= {*shape.split()}]
    shape = shapes[rng.integers(len(shapes))]
    forms = [(2,), (1, 2)] if "batch" in needs else [(1,), (2,), (1, 2)] if "batch" in shape else [(1,)]
    irregular = any({"axis", "calls", "state"} & {*kind.causes} for kind in planted)
    return Case(
        reference=references[rng.integers(len(references))],
        planted=tuple((kind, kind.numbers[rng.integers(len(kind.numbers))]) for kind in planted),
        shape=shape,
        is_stated=irregular or bool(rng.integers(2)),  # other shapes fit a function that ignores its positions
        position_axes=forms[rng.integers(len(forms))],
        style=STYLES[rng.integers(len(STYLES))],
        source=computed if planted else SOURCES[rng.integers(len(SOURCES))],
        dtype=DTYPES[rng.integers(len(DTYPES))],
        context=CONTEXTS[rng.integers(len(CONTEXTS))],
    )


CONTEXTS = (50, 500, 4096, 20_000)
DTYPES = (np.float64, np.float64, np.float32, np.float32, np.float16, ml_dtypes.bfloat16)


def pair(rng):
    """Two kinds of mistakes that one function can have."""
    while True:
        one, other = (KINDS[each] for each in rng.choice(len(KINDS), 2, replace=False))
        if len({one.needs, other.needs} & REFERENCES.keys()) < 2:
            return one, other
