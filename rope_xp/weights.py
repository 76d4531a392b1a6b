"""Checkpoints between pairings: the channels of a projection in the order that the other layout rotates."""

from typing import Any, Literal

from rope_xp import checks, rotation
from rope_xp.arrays import ArrayT

ORDERS = {layout: rotation.LAYOUTS[layout] for layout in ("half", "interleaved")}


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
    """Put the channels of every head in the order that another layout rotates.

    ::

        to="half"          x0 x1 x2 x3 x4 x5  becomes  x0 x2 x4 x1 x3 x5
        to="interleaved"   x0 x2 x4 x1 x3 x5  becomes  x0 x1 x2 x3 x4 x5

    A model that rotates by one layout, with its queries and keys in that order, gives the attention scores of a model
    that rotates by the other. Each direction undoes the other, bit for bit. What to permute, and how:

    ============================================== ======================= =======================
    tensor, of queries and of keys                 `num_heads`             `axis`
    ============================================== ======================= =======================
    weight "heads*head_dim in" of PyTorch          its heads               0
    bias or norm "heads*head_dim"                  its heads               0
    norm of one head, "head_dim"                   1                       0
    kernel "in heads*head_dim" of JAX              its heads               -1
    kernel "in heads head_dim" of Flax, its bias   1                       -1
    the LoRA factor that makes the channels (B)    as its weight           as its weight
    scales of quantised rows, "heads*head_dim 1"   as its weight           as its weight
    cached keys "batch seq heads head_dim"         1                       -1
    ============================================== ======================= =======================

    Values, the output projection and the other LoRA factor (A) stay as they are. Cached keys may be rotated already.

    Parameters
    ----------
    w : array, "*before heads*head_dim *after"
        Of any dtype. Its axis `axis` holds the channels, head after head. A tensor that holds queries, keys and values
        is split first; so is one that packs several channels in a number, or scales them by the block.
    num_heads : int
        Heads along `axis` of this very tensor: with grouped queries, keys have fewer than queries
        (`num_key_value_heads` of a config). A wrong number that divides the axis raises nothing unless `head_dim` is
        given.
    to : "half" or "interleaved"
        The layout of the result; `w` has the other. Nothing in a tensor tells them apart: half is what transformers'
        Llama expects, interleaved what Meta published.
    rotary_dim : int, optional
        Channels of each head that are rotated; the others stay in place. Without it, all from `first_channel` on. Where
        it is given, `num_heads` of the queries for keys is an error if it leaves the keys narrower heads than that.
    first_channel : int
        The first channel of each head that is rotated.
    head_dim : int, optional
        Channels of each head, rotated or not: if it is given, the axis must have `num_heads` times as many.
    axis : int
        The axis of the channels: 0 for PyTorch's "out in", -1 for JAX's "in out" and wherever channels are last.

    Returns
    -------
    array, "*before heads*head_dim *after"
        Of the library, shape, dtype and device of `w`.

    Raises
    ------
    ValueError
        If the axis does not fall into `num_heads` heads, or they have not `head_dim` channels, or a head's rotated
        channels do not fall into pairs, or `to` is unknown.
    TypeError
        If `w` is no array, or a number no int.

    References
    ----------
    huggingface/transformers, `core_model_loading.py`: `PermuteForRope` is ``to="half"``, where queries and keys have as
    many heads. pytorch/torchtune, `torchtune/models/convert_weights.py`: `hf_to_tune` is ``to="interleaved"``.

    Examples
    --------
    >>> import numpy as np
    >>> bias = np.asarray([0, 1, 2, 3, 10, 11, 12, 13])  # two heads of four channels
    >>> permute_projection(bias, num_heads=2, to="half")
    array([ 0,  2,  1,  3, 10, 12, 11, 13])
    >>> weight = np.zeros((8, 5))  # the same two heads, of five inputs
    >>> permute_projection(weight, num_heads=2, to="half", rotary_dim=4).shape
    (8, 5)
    """
    who = "permute_projection"
    xp = checks.array(who, "w", w)
    checks.one_of(who, "to", to, ORDERS)
    axis = _axis(who, axis, w)
    num_heads, first = checks.count(who, "num_heads", num_heads), checks.count(who, "first_channel", first_channel)
    before, size, after = tuple(w.shape[:axis]), w.shape[axis], tuple(w.shape[axis + 1 :])
    if num_heads < 1 or size % num_heads:
        raise ValueError(
            f"{who}: num_heads must be the number of heads on axis {axis} of w (for keys, of key-value heads), and "
            f"divide it; got num_heads={num_heads} for w of shape {checks.shape(w)}"
        )
    if head_dim is not None and checks.count(who, "head_dim", head_dim) * num_heads != size:
        raise ValueError(
            f"{who}: axis {axis} of w must have num_heads={num_heads} heads (for keys, key-value heads) of "
            f"head_dim={head_dim} channels; got w of shape {checks.shape(w)}"
        )
    width = size // num_heads
    end = first + _rotary_dim(who, rotary_dim, first, width, num_heads, w)

    pairs = (end - first) // 2
    grid = (pairs, 2) if to == "half" else (2, pairs)
    heads: Any = xp.reshape(w, (*before, num_heads, width, *after))

    def channels(start: int, stop: int) -> Any:
        return heads[(*[slice(None)] * (axis + 1), slice(start, stop), ...)]

    order = [*range(axis + 1), axis + 2, axis + 1, *range(axis + 3, heads.ndim + 1)]
    turned = xp.permute_dims(xp.reshape(channels(first, end), (*before, num_heads, *grid, *after)), order)
    turned = xp.reshape(turned, (*before, num_heads, end - first, *after))
    if end - first < width:
        turned = xp.concat([channels(0, first), turned, channels(end, width)], axis=axis + 1)
    return xp.reshape(turned, (*before, size, *after))


def _axis(who: str, axis: Any, w: Any) -> int:
    """The axis counted from the front."""
    if not checks.is_int(axis):
        raise TypeError(f"{who}: axis must be an int; got {type(axis).__name__}")
    if not -w.ndim <= axis < w.ndim:
        raise ValueError(f"{who}: axis must name an axis of w; got axis={axis} for w of shape {checks.shape(w)}")
    return axis % w.ndim


def _rotary_dim(who: str, rotary_dim: Any, first: int, head_dim: int, num_heads: int, w: Any) -> int:
    """The number of rotated channels, which must fall into pairs and into a head."""
    given = rotary_dim is not None
    found = checks.even_size(who, "rotary_dim", rotary_dim) if given else head_dim - first
    if found < 2 or found % 2 or first + found > head_dim:
        wanted = f"{found} channels from channel {first} on" if given else f"pairs of channels from channel {first} on"
        raise ValueError(
            f"{who}: every head must have {wanted}; got head_dim={head_dim}, as w has shape {checks.shape(w)} and "
            f"num_heads={num_heads}"
        )
    return found
