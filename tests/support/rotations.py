"""One strategy for rotations: random calls for every library and kernel, and the truth for each by the oracle."""

from dataclasses import dataclass, field

import numpy as np
import oracle
from hypothesis import strategies as st
from libraries import ROUNDOFF

from rope_xp import RotaryEmbedding
from rope_xp.arrays import libraries

# The libraries whose arrays can be written, and whose arrays have strides.
WRITABLE = ("numpy", "torch")
ORDERS = {"half": ("half", "half"), "interleaved": ("interleaved",) * 2, "interleaved_to_half": ("interleaved", "half")}
# Where angles come from. `sincos` makes tables; other tables are random; rows are those that positions select.
SOURCES = ("tables", "rows", "sincos", "positions", "real positions", "consecutive")
FARTHEST = 2**45  # the farthest position of int64
ROWS = 9


def unaligned(x):
    """The same numbers where no whole number of numbers lies before them."""
    return np.frombuffer(bytearray(b"." + x.tobytes()), x.dtype, offset=1).reshape(x.shape)


# Ways in which NumPy's memory may be foreign to a library, or to a kernel.
FOREIGN = {
    "strided": lambda x: np.repeat(x, 3, axis=-1)[..., 1::3],
    "backwards": lambda x: x[..., ::-1].copy()[..., ::-1],
    "broadcast": lambda x: np.broadcast_to(x, (2, *x.shape))[1],
    "a column": lambda x: np.asfortranarray(np.stack([x, x]))[0],
    "byte order": lambda x: x.astype(x.dtype.newbyteorder()),
    "unaligned": unaligned,
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
}


def copied(xp, x):
    return x.clone() if xp.name == "torch" else x.copy()


def in_bytes(xp, x):
    if xp.name == "torch":
        import torch

        x = x.detach().resolve_neg().reshape(-1).contiguous().view(torch.uint8).cpu().numpy()
    return x.tobytes()


@dataclass(frozen=True)
class Memory:
    """How an array lies in memory: in a larger array, strided, with its axes in any order, and backwards; or alone."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    steps: tuple[int, ...]
    offset: int
    backwards: tuple[int, ...]
    margin: int  # how much longer the larger array is on each axis

    def put(self, xp, values, dtype=None):
        """The larger array, of which one part is `values`, and a function that cuts this part out of it."""
        sizes = [self.offset + size * step + self.margin for size, step in zip(self.shape, self.steps)]
        whole = np.ones([sizes[axis] for axis in self.order], values.dtype)
        cuts = tuple(slice(self.offset, self.offset + size * step, step) for size, step in zip(self.shape, self.steps))
        directions = tuple(slice(None, None, way) for way in self.backwards)

        def cut(whole):
            axes = tuple(int(axis) for axis in np.argsort(self.order))
            x = whole.permute(axes) if xp.name == "torch" else libraries.namespace(whole).permute_dims(whole, axes)
            return x[cuts] if xp.name == "torch" else x[cuts][directions]

        (whole.transpose(np.argsort(self.order))[cuts] if xp.name == "torch" else cut(whole))[...] = values
        return xp.array(whole, dtype), cut


@st.composite
def memories(draw, xp, shape, is_usual):
    axes, ones = tuple(range(len(shape))), (1,) * len(shape)
    if is_usual or xp.name not in WRITABLE:
        return Memory(tuple(shape), axes, ones, 0, ones, 0)
    return Memory(
        tuple(shape),
        tuple(draw(st.permutations(axes))),
        tuple(draw(st.sampled_from([1, 1, 2, 3])) for _ in shape),
        draw(st.integers(0, 2)),
        tuple(draw(st.sampled_from([1, 1, -1])) for _ in shape) if xp.name == "numpy" else ones,
        draw(st.integers(0, 1)),
    )


@dataclass
class Numbers:
    """Arguments of a call: arrays, the memory that they are cut from, and angles; and the truth about the angles."""

    xs: list = field(default_factory=list)
    cuts: list = field(default_factory=list)  # (the larger array, a function)
    options: dict = field(default_factory=dict)  # seq_dim, heads_dim, and sincos and positions where they are given
    sincos: list = field(default_factory=list)  # for each array, in float64, aligned with its axes
    where: list = field(default_factory=list)  # the positions of each array, where they give angles: "axes *x.shape 1"


@dataclass(frozen=True)
class Rotation:
    """What two calls have in common: all that is not a number."""

    arguments: dict  # of the embedding
    frequencies: np.ndarray  # (axes, heads, pairs)
    seq_axis: int
    heads_axis: int | None  # None if all heads share their angles
    seq_dim: int
    arrays: tuple  # (dtype, Memory)
    source: str
    lead: int | None  # how many leading axes positions or random tables have before the sequence; None if all axes
    whole: tuple  # of these axes and the sequence, which have size 1 instead
    tables: tuple  # the Memory of both tables
    where: Memory  # of positions
    integer: str  # the dtype of positions
    foreign: str | None  # tables and positions are of NumPy, and foreign in this way
    is_learned: bool  # whether frequencies are an array

    def embedding(self, xp, kernel, **changes):
        arguments = {**self.arguments, **changes}
        if self.is_learned:
            arguments["inv_freq"] = xp.array(arguments["inv_freq"], "float32")
        return RotaryEmbedding(**arguments, kernel=kernel)

    @property
    def has_function(self):
        """Whether functions without an embedding can say it: tables rotate the first channels, in one block."""
        return self.source == "tables" and not self.arguments["first_channel"] and self.arguments["blocks"] == 1

    @property
    def dtypes(self):
        return [dtype for dtype, _ in self.arrays]

    @property
    def span(self):
        read, write = ORDERS[self.arguments["layout"]]
        return oracle.Span(read, write, self.arguments["first_channel"], self.arguments["blocks"])

    def axes_of(self, shape):
        """The axes and sizes of positions, or of tables without pairs, for x of this shape."""
        axes = [axis for axis in range(len(shape) - 1) if axis != self.heads_axis]
        axes = axes if self.lead is None else [*axes[: self.lead], self.seq_axis]
        return axes, [1 if one else shape[axis] for one, axis in zip(self.whole, axes)]

    def aligned_frequencies(self, ndim):
        """ "axes *x.shape pairs", of arrays with so many axes."""
        sizes = [1] * (ndim - 1)
        if self.heads_axis is not None:
            sizes[self.heads_axis] = self.frequencies.shape[1]
        return self.frequencies.reshape(len(self.frequencies), *sizes, -1)

    def numbers(self, xp, seed):
        rng, found = np.random.default_rng(seed), Numbers()
        for dtype, memory in self.arrays:
            values = rng.standard_normal(memory.shape).clip(-3, 3)
            if seed % 4 == 0 and not self.is_learned:  # whose gradients are sums
                values[rng.random(memory.shape) < 0.03] = np.nan  # which stay in their pairs
            whole, cut = memory.put(xp, values, dtype)
            found.xs.append(cut(whole))
            found.cuts.append((whole, cut))
        found.options = {"seq_dim": self.seq_dim}
        if self.heads_axis is not None:
            found.options["heads_dim"] = self.heads_axis - len(self.arrays[0][1].shape)
        self._add_angles(xp, rng, found)
        return found

    def _add_angles(self, xp, rng, found):
        wide = "float64" if "float64" in self.dtypes else "float32"
        shapes = [memory.shape for _, memory in self.arrays]
        axes, sizes = self.axes_of(shapes[0])
        position_axes, heads, pairs = self.frequencies.shape
        factor = self.arguments["attention_factor"]

        def given(values, memory, dtype=None):
            if self.foreign:
                return FOREIGN[self.foreign](values)
            whole, cut = memory.put(xp, values, dtype)
            return cut(whole)

        if self.source in ("tables", "rows"):
            radians = rng.uniform(-7, 7, (*sizes, pairs) if self.source == "tables" else (ROWS, pairs))
            pair = [given(f(radians), memory, wide) for f, memory in zip((np.sin, np.cos), self.tables)]
            found.options["sincos"] = pair
            pair = [table.astype(wide).astype("d") if self.foreign else xp.numpy(table) for table in pair]
            if self.source == "rows":
                limits, where = np.iinfo(self.integer), rng.integers(-1, ROWS + 1, sizes)
                # Some rows do not exist.
                where = np.where(rng.random(sizes) < 0.05, rng.choice([limits.min, limits.max], sizes), where)
                found.options["positions"] = given(where.astype(self.integer), self.where)
                selected = np.where((where < 0) | (where >= ROWS), ROWS, where)
                pair = [np.append(table, np.full((1, pairs), np.nan), axis=0)[selected] for table in pair]
        else:
            where = rng.integers(-300, 300, (position_axes, *sizes)).astype(self.integer)
            if self.source == "real positions":
                where = (where + rng.integers(0, 4, where.shape) / 4).astype(np.float32)
            elif self.source == "consecutive":
                where = np.arange(sizes[-1]).reshape(1, -1)
            elif self.integer != "int16":
                farther = [2**40 + 12_345, -FARTHEST] if self.integer == "int64" else []
                far = rng.choice([100_003, 2**24 + 1, 2**31 - 1, -(2**31), *farther], where.shape)
                where = np.where(rng.random(where.shape) < 0.2, far, where).astype(self.integer)
            pair = oracle.sin_cos_of_axes(where.reshape(position_axes, -1), self.frequencies.reshape(position_axes, -1))
            pair = [factor * table.reshape(*sizes, *[heads] * (heads > 1), pairs) for table in pair]
            if self.source != "consecutive":
                found.options["positions"] = given(where if position_axes > 1 else where[0], self.where)
        for shape in shapes:
            aligned = [1] * (len(shape) - 1)
            for axis, size in zip(axes, sizes):
                aligned[axis] = size
            if self.source not in ("tables", "rows"):
                found.where.append(where.astype(np.float64).reshape(position_axes, *aligned, 1))
            if self.heads_axis is None or self.source == "tables":
                found.sincos.append([table.reshape(*aligned, pairs) for table in pair])
            else:
                aligned.pop(self.heads_axis)
                apart = [table.reshape(*aligned, heads, pairs) for table in pair]
                found.sincos.append([np.moveaxis(table, -2, self.heads_axis) for table in apart])

    def assert_rotated(self, xp, result, x, sincos, span):
        """Products and sums in float32, or in float64 for float64, and one rounding to the dtype of `x`.

        Tables that were made are within 2e-7. In float64 they are within 4e-16 and the rounding of a frequency, of less
        than 2**-96 revolutions, times the position. Channels in no pair keep their numbers.
        """
        assert result.dtype == x.dtype and tuple(result.shape) == tuple(x.shape)
        dtype, x, result = xp.dtype_of(x), xp.numpy(x), xp.numpy(result)
        truth = oracle.rotate_pairs(x, *sincos, span)
        length = oracle.lengths(x, sincos[0].shape[-1], span)
        scale = max(1.0, *(np.nanmax(np.abs(table), initial=0.0) for table in sincos))
        farthest = FARTHEST if self.integer == "int64" else 2**31
        of_float64 = 4e-16 + 2 * np.pi * 2.0**-96 * farthest * len(self.frequencies)
        unit, tables = (2.0**-53, of_float64) if dtype == "float64" else (2.0**-24, 2e-7)
        arithmetic = 4 * (unit + tables * (self.source not in ("tables", "rows"))) * scale * length
        rounding = 0.0 if dtype in ("float32", "float64") else ROUNDOFF[dtype] * (np.abs(truth) + arithmetic)
        least = 2.0**-25 if dtype == "float16" else 0.0  # below the normal numbers, they are 2**-24 apart
        away = np.abs(result - truth)
        np.testing.assert_array_equal(np.isnan(away), np.isnan(truth))
        assert np.all(np.isnan(truth) | (away <= (arithmetic + rounding + least) * (length > 0)))


@st.composite
def rotations(draw, xp, layout, is_usual):
    """Of one, two or four arrays, queries and keys of other head counts and dtypes, by every source of angles.

    A part of the width, which begins anywhere and falls into blocks; axes in any order and memory, some of them empty,
    and with or without an axis of heads.
    Usual ones are of all of the width or its first part, in memory of their own.
    """
    blocks = draw(st.integers(1, 3)) if layout == "half" else 1
    # 29 pairs are a vector of each length, and one more.
    of_block = draw(st.integers(1, 4) | st.sampled_from([8, 12, 13, 29]))
    pairs = blocks * of_block
    first, rest = (0, draw(st.sampled_from([0, 0, 4]))) if is_usual else (draw(st.integers(0, 3)) for _ in range(2))
    dim = (first + 2 * pairs + rest + 1) // 2 * 2
    seq, heads = (draw(st.sampled_from(sizes)) for sizes in ([5, 5, 5, 1, 0], [3, 3, 5, 1, 0]))  # once seq == heads
    source = draw(st.sampled_from(SOURCES))
    of_heads = source not in ("tables", "rows") and heads > 1 and draw(st.booleans())
    position_axes = 1 if source in ("tables", "rows", "consecutive") else draw(st.sampled_from([1, 1, 2]))
    others = draw(st.lists(st.sampled_from([2] if is_usual else [2, 2, 4, 0, 1]), max_size=2))
    has_no_heads = not of_heads and draw(st.sampled_from([False, False, False, True]))
    names = draw(st.permutations(["seq", *["heads"] * (not has_no_heads), *map(str, range(len(others)))]))
    size_of = {"seq": seq, "heads": heads, **{str(n): size for n, size in enumerate(others)}}
    seq_axis, heads_axis = names.index("seq"), names.index("heads") if of_heads else None
    shape = (*(size_of[name] for name in names), dim)
    without_heads = [name for name in names if name != "heads" or not of_heads]
    before = without_heads.index("seq")
    lead = draw(st.none() | st.integers(0, before)) if source != "consecutive" else 0
    used = without_heads if lead is None else [*without_heads[:lead], "seq"]
    whole = tuple((name != "seq" or lead is None) and draw(st.booleans()) for name in used)
    has_heads = "heads" in used and not whole[used.index("heads")]
    of_k = heads if of_heads or has_heads else draw(st.sampled_from([1, 2, heads]))
    of_k = tuple(of_k if name == "heads" else size_of[name] for name in names) + (dim,)
    dtype = draw(st.sampled_from(xp.floats))
    other = draw(st.sampled_from([dtype, *xp.floats]))
    arrays = [(dtype, shape), (other, of_k), (dtype, of_k), (other, shape)][: draw(st.sampled_from([1, 2, 2, 4]))]
    frequencies = draw(st.integers(0, 2**32 - 1))
    rng, of_frequencies = np.random.default_rng(frequencies), (position_axes, heads if of_heads else 1, pairs)
    # Each pair follows any axes, or one.
    own = np.arange(position_axes)[:, None, None] == rng.integers(0, position_axes, of_frequencies[1:])
    frequencies = rng.standard_normal(of_frequencies) * (own if draw(st.booleans()) else rng.random(own.shape) < 0.8)
    is_learned = xp.name != "numpy" and draw(st.booleans())
    frequencies = frequencies.astype(np.float32).astype(np.float64) if is_learned else frequencies
    nested = frequencies if of_heads else frequencies[:, 0] if position_axes > 1 else frequencies[0, 0]
    sizes = [1 if one else size_of[name] for one, name in zip(whole, used)]
    of_tables = (*sizes, pairs) if source == "tables" else (ROWS, pairs)
    of_positions = (*[position_axes] * (position_axes > 1), *sizes)
    return Rotation(
        {
            "head_dim": dim,
            "layout": layout,
            "first_channel": first,
            "blocks": blocks,
            "inv_freq": nested.tolist(),
            "attention_factor": draw(st.sampled_from([1.0, 1.25])),
        },
        frequencies,
        seq_axis,
        heads_axis,
        draw(st.sampled_from([seq_axis, seq_axis - len(shape)])),
        tuple((kind, draw(memories(xp, each, is_usual))) for kind, each in arrays),
        source,
        lead,
        whole,
        tuple(draw(memories(xp, of_tables, is_usual)) for _ in range(2)),
        draw(memories(xp, of_positions, is_usual)),
        draw(st.sampled_from([each for each in ("int32", "int64", "int16") if each in xp.integers])),
        draw(st.sampled_from([None] * 18 + [*FOREIGN])),
        is_learned,
    )
