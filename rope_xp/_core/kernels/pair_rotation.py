"""What a kernel is asked to do: which channels turn together, and which way."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

# Sine and cosine for each of several arrays: as many axes as it has, each of its size or 1, and one column for each
# pair; float64 for float64 arrays, else float32.
Tables = Sequence[tuple[Any, Any]]
# Tables; or for each array sine and cosine, "rows pairs", and positions: integers that choose a row for each place of
# the array, with one axis less than it has, each of its size or 1. For a kernel that makes angles: positions alone.
Angles = Sequence[tuple[Any, ...]]


class Rotation(NamedTuple):
    """The rotation of pairs of channels.

    `read` and `write` say how pairs stand in what is read and in what is written: "half" or "interleaved". The channels
    that turn begin at `first_channel` and fall into `blocks`, each of which is paired by itself; more than one block is
    read and written in halves. With `inverse`, pairs turn by the opposite angles.
    """

    read: str
    write: str
    first_channel: int = 0
    blocks: int = 1
    inverse: bool = False

    def inverted(self) -> "Rotation":
        """The turn back, which is also the transpose: what this one writes is read, and what it reads is written."""
        return self._replace(read=self.write, write=self.read, inverse=not self.inverse)

    def by_block(self, x: Any, sin: Any, cos: Any, out: Any) -> Iterator[tuple[Any, Any, Any, Any]]:
        """Views of each block's channels in x, of its columns in the tables, and of its channels in the result.

        The channels that pass through are written here, where `out` is not `x`.
        """
        width = sin.shape[-1] // self.blocks
        ends = [self.first_channel + 2 * width * block for block in range(self.blocks + 1)]
        if out is not x:
            for rest in (slice(ends[0]), slice(ends[-1], None)):
                out[..., rest] = x[..., rest]
        for block in range(self.blocks):
            channels = (..., slice(ends[block], ends[block + 1]))
            columns = (..., slice(width * block, width * (block + 1)))
            yield x[channels], sin[columns], cos[columns], out[channels]
