"""Conversion of weights between layouts: reorder the channels of each head."""

from typing import Literal

from rope_xp.arrays import checks
from rope_xp.errors import public, wrong_value
from rope_xp.layouts import LAYOUTS
from rope_xp.types import Array, ArrayT

WEIGHT_LAYOUTS = {layout: LAYOUTS[layout] for layout in ("half", "interleaved")}


@public("permute_projection")
def permute_projection(
    w: ArrayT,
    *,
    num_heads: int,
    to: Literal["half", "interleaved"],
    rotary_dim: int | None = None,
    first_channel: int = 0,
    head_dim: int | None = None,
    axis: int = 0,
) -> ArrayT:
    """Reorder the channels of each head from one layout to the other.

        to="half"          x0 x1 x2 x3 x4 x5  becomes  x0 x2 x4 x1 x3 x5
        to="interleaved"   x0 x2 x4 x1 x3 x5  becomes  x0 x1 x2 x3 x4 x5

    A model computes the same attention scores in both layouts, as long as the projections of queries and keys have the
    layout of the rotation. The two directions are exact inverses. Permute these tensors of queries and keys:

    | tensor                                       | `num_heads`       | `axis`            |
    |----------------------------------------------|-------------------|-------------------|
    | weight `heads*head_dim in` of PyTorch        | its heads         | 0                 |
    | bias or norm `heads*head_dim`                | its heads         | 0                 |
    | norm of one head, `head_dim`                 | 1                 | 0                 |
    | kernel `in heads*head_dim` of JAX            | its heads         | -1                |
    | kernel `in heads head_dim` of Flax, its bias | 1                 | -1                |
    | LoRA factor B (its outputs are the channels) | as for the weight | as for the weight |
    | scales of quantised rows, `heads*head_dim 1` | as for the weight | as for the weight |
    | cached keys `batch seq heads head_dim`       | 1                 | -1                |

    Do not permute values, the output projection or the LoRA factor A. Cached keys can be permuted before or after their
    rotation.

    Parameters
    ----------
    w : array, "*before heads*head_dim *after"
        Of any dtype. Axis `axis` holds the channels, head after head. First split fused tensors of queries, keys and
        values. First unpack quantised weights if one element holds several channels, or if several rows share a scale.
    num_heads : int
        The number of heads on `axis` of this tensor. With grouped queries, keys have fewer heads than queries
        (`num_key_value_heads` of a config). Without `head_dim`, a wrong number that divides the size of the axis is not
        noticed.
    to : "half" or "interleaved"
        The layout of the result; `w` has the other layout. A tensor does not show its layout: transformers' Llama
        expects half, and Meta published interleaved.
    rotary_dim : int, optional
        The number of rotated channels of each head. The other channels stay in place. By default all channels from
        `first_channel` on are rotated. A tensor does not show whether its model rotates fewer, as with
        `partial_rotary_factor`: then give their number, because without it channels that are not rotated are reordered,
        too.
    first_channel : int
        The first rotated channel of each head.
    head_dim : int, optional
        The number of channels of each head, rotated or not. If it is given, the size of `axis` must be
        ``num_heads * head_dim``.
    axis : int
        The axis of the channels: 0 for PyTorch's "out in", -1 for JAX's "in out".

    Returns
    -------
    array, "*before heads*head_dim *after"
        It has the library, shape, dtype and device of `w`.

    Raises
    ------
    ValueError
        If `num_heads` does not divide the axis, the heads do not have `head_dim` channels, the number of rotated
        channels is odd or does not fit into a head, or `to` is unknown.
    TypeError
        If `w` is not an array, or a number is not an int.

    References
    ----------
    huggingface/transformers, `core_model_loading.py`: `PermuteForRope` is ``to="half"`` for queries and keys
    with equal numbers of heads. pytorch/torchtune, `torchtune/models/convert_weights.py`: `hf_to_tune` is
    ``to="interleaved"``.

    Examples
    --------
    >>> import numpy as np
    >>> bias = np.asarray([0, 1, 2, 3, 10, 11, 12, 13])  # two heads of four channels
    >>> permute_projection(bias, num_heads=2, to="half")
    array([ 0,  2,  1,  3, 10, 12, 11, 13])
    >>> bias = np.asarray([0, 1, 2, 3, 4, 5])  # a head of six channels, of which four are rotated
    >>> permute_projection(bias, num_heads=1, to="half", rotary_dim=4)
    array([0, 2, 1, 3, 4, 5])
    """
    xp = checks.array("w", w)
    checks.one_of("to", to, WEIGHT_LAYOUTS)
    axis, first = _axis(axis, w), checks.count("first_channel", first_channel)
    num_heads = checks.count("num_heads", num_heads)
    width = _head_width(num_heads, head_dim, axis, w)
    end = first + _rotary_dim(rotary_dim, first, width, num_heads, w)

    before, after = tuple(w.shape[:axis]), tuple(w.shape[axis + 1 :])
    heads: Array = xp.reshape(w, (*before, num_heads, width, *after))

    def channels(start: int, stop: int) -> Array:
        return heads[(*[slice(None)] * (axis + 1), slice(start, stop), ...)]

    pairs = (end - first) // 2
    grid = (pairs, 2) if to == "half" else (2, pairs)
    order = [*range(axis + 1), axis + 2, axis + 1, *range(axis + 3, heads.ndim + 1)]
    reordered = xp.permute_dims(xp.reshape(channels(first, end), (*before, num_heads, *grid, *after)), order)
    reordered = xp.reshape(reordered, (*before, num_heads, end - first, *after))
    if end - first < width:
        reordered = xp.concat([channels(0, first), reordered, channels(end, width)], axis=axis + 1)
    return xp.reshape(reordered, tuple(w.shape))


def _head_width(num_heads: int, head_dim: object, axis: int, w: Array) -> int:
    size = w.shape[axis]
    if num_heads < 1 or size % num_heads:
        raise wrong_value(
            f"num_heads must be the number of heads on axis {axis} of w (for keys: key-value heads) and "
            f"divide its size; got num_heads={num_heads} for w of shape {checks.shape(w)}"
        )
    if head_dim is not None and checks.count("head_dim", head_dim) * num_heads != size:
        raise wrong_value(
            f"axis {axis} of w must have num_heads={num_heads} heads (for keys: key-value heads) of "
            f"head_dim={head_dim} channels; got w of shape {checks.shape(w)}"
        )
    return size // num_heads


def _axis(axis: int, w: Array) -> int:
    checks.integer("axis", axis)
    if not -w.ndim <= axis < w.ndim:
        raise wrong_value(f"axis must name an axis of w; got axis={axis} for w of shape {checks.shape(w)}")
    return axis % w.ndim


def _rotary_dim(rotary_dim: object, first: int, head_dim: int, num_heads: int, w: Array) -> int:
    is_given = rotary_dim is not None
    count = checks.even_size("rotary_dim", rotary_dim) if is_given else head_dim - first
    if count < 2 or count % 2 or first + count > head_dim:
        wanted = f"{count} channels" if is_given else "one or more whole pairs of channels"
        hint = "" if is_given else ": give rotary_dim if only some of them are rotated"
        raise wrong_value(
            f"every head must have {wanted} from channel {first} on; got head_dim={head_dim} "
            f"(w of shape {checks.shape(w)}, num_heads={num_heads}){hint}"
        )
    return count
