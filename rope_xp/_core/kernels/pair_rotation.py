"""What a kernel must do: which channels form pairs, and in which direction they rotate."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

# Sine and cosine for each of several arrays. Both have the rank of their array and broadcast against it. They have one
# column for each pair. Their dtype is float64 for float64 arrays, otherwise float32.
Tables = Sequence[tuple[Any, Any]]
# One of three forms for each array:
# - tables: sine and cosine;
# - rows of tables: sine and cosine "rows pairs", and integer positions that select a row each;
# - positions alone, for a kernel that computes angles.
# Positions broadcast against all axes of the array except the last.
Angles = Sequence[tuple[Any, ...]]


class Rotation(NamedTuple):
    """The rotation of pairs of channels.

    `read` is the layout of pairs in the input and `write` that in the result: "half" or "interleaved". The rotated
    channels start at `first_channel` and consist of `blocks` of equal size. Pairs are formed within a block; more than
    one block requires the layout "half". With `inverse`, all angles are negated.
    """

    read: str
    write: str
    first_channel: int = 0
    blocks: int = 1
    inverse: bool = False

    def inverted(self) -> "Rotation":
        """The inverse rotation, which is also the transpose: it exchanges `read` and `write`."""
        return self._replace(read=self.write, write=self.read, inverse=not self.inverse)

    def by_block(self, x: Any, sin: Any, cos: Any, out: Any) -> Iterator[tuple[Any, Any, Any, Any]]:
        """Views of the channels of `x`, the columns of `sin` and `cos`, and the channels of `out`, for each block.

        If `out` is not `x`, this also copies the channels that are not rotated.
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
