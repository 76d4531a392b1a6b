"""The functions that rotate pairs of channels."""

from functools import partial
from typing import Any

from rope_xp.arrays import checks
from rope_xp.errors import public
from rope_xp.kernels import KERNELS, Kernel
from rope_xp.kernels.plan import rotate_by_tables
from rope_xp.kernels.reference import Rotation, join_pairs, split_pairs
from rope_xp.layouts import LAYOUTS, READ_WRITE, Layout
from rope_xp.types import Array, ArrayT


@public("rotate_every_two")
def rotate_every_two(x: ArrayT) -> ArrayT:
    """Rotate each pair of neighbouring channels by 90 degrees.

        x        x0  x1  x2  x3
        result  -x1  x0 -x3  x2

    RoFormer, GPT-J and Meta's Llama checkpoints use this pairing. `rotate_half` is the same rotation of the pairs
    ``(j, j + dim/2)``.

    Parameters
    ----------
    x : array, "*batch dim"
        Floating point; `dim` is even.

    Returns
    -------
    array, "*batch dim"
        It has the library, shape, dtype and device of `x`.

    Raises
    ------
    ValueError
        If `dim` is odd or zero.
    TypeError
        If `x` is not an array or not floating point.

    References
    ----------
    Su et al., RoFormer (2021), arXiv:2104.09864, section 3.4.2. Name: kingoflolz/mesh-transformer-jax,
    `mesh_transformer/layers.py`.

    Examples
    --------
    >>> import numpy as np
    >>> rotate_every_two(np.asarray([1.0, 2.0, 3.0, 4.0]))
    array([-2.,  1., -4.,  3.])
    """
    return _rotate_by_90_degrees(x, "interleaved")


@public("rotate_half")
def rotate_half(x: ArrayT) -> ArrayT:
    """Rotate each pair of channels that are ``dim/2`` apart by 90 degrees.

        x        x0  x1  x2  x3
        result  -x2 -x3  x0  x1

    GPT-NeoX and Llama in transformers use this pairing. `rotate_every_two` is the same rotation of neighbouring
    channels.

    Parameters
    ----------
    x : array, "*batch dim"
        Floating point; `dim` is even.

    Returns
    -------
    array, "*batch dim"
        It has the library, shape, dtype and device of `x`.

    Raises
    ------
    ValueError
        If `dim` is odd or zero.
    TypeError
        If `x` is not an array or not floating point.

    References
    ----------
    Su et al., RoFormer (2021), arXiv:2104.09864, section 3.4.2, with the channels in another order. Name:
    EleutherAI/gpt-neox, `megatron/model/positional_embeddings.py`; transformers,
    `models/llama/modeling_llama.py`.

    Examples
    --------
    >>> import numpy as np
    >>> rotate_half(np.asarray([1.0, 2.0, 3.0, 4.0]))
    array([-3., -4.,  1.,  2.])
    """
    return _rotate_by_90_degrees(x, "half")


@public("apply_rotary_pos_emb")
def apply_rotary_pos_emb(
    x: ArrayT,
    sincos: tuple[Array, Array],
    *,
    layout: Layout = "interleaved",
    seq_dim: int = 0,
    inverse: bool = False,
    kernel: Kernel = "fastest",
) -> ArrayT:
    """Rotate each pair of channels of `x` by its angle.

    ``result[pair] = [[cos, -sin], [sin, cos]] @ x[pair]``. The first ``2 * pairs`` channels are rotated. The other
    channels pass through unchanged, bit for bit. The arithmetic is done in float32 (float64 for float64 `x`), and the
    result is rounded once to the dtype of `x`.

    Parameters
    ----------
    x : array, "*batch dim"
        Floating point; `dim` is even. The channels are the last axis. The other axes are in any order.
    sincos : (array, array), "*axes pairs"
        Sine and cosine, in this order, in float32 or float64. They are arrays of NumPy or of the library of `x`.
        Tables with as many axes as `x` broadcast against it. Tables with fewer axes are "seq pairs" or
        "batch seq pairs": their sequence axis is aligned with axis `seq_dim` of `x`, and the axes before it with the
        leading axes of `x`.
    layout : "half", "interleaved" or "interleaved_to_half"
        Which channels form a pair. ``"interleaved"`` pairs neighbouring channels, as `rotate_every_two` does.
        ``"half"`` pairs channels j and j + pairs, as `rotate_half` does. ``"interleaved_to_half"`` reads neighbouring
        channels and writes channels j and j + pairs.
    seq_dim : int
        The sequence axis of `x`. The default is for `x` of "seq heads dim".
    inverse : bool
        Rotate by the negative angles. This is the transpose of the rotation, and the gradient of the rotation uses it.
        It is the exact inverse if the tables are not multiplied by an attention factor m. Otherwise divide both tables
        by ``m**2`` first, as `RotaryEmbedding.rotate` does.
    kernel : "fastest", "reference", "blocked", "numba", "triton" or "xla"
        The implementation. ``"fastest"`` selects it by the library and the device of `x`:

        - NumPy and PyTorch on the CPU: ``"numba"`` if it is installed (``rope-xp[fast]``), else ``"blocked"``, array
          operations on blocks that fit into the cache.
        - PyTorch on CUDA: ``"triton"``.
        - JAX: ``"xla"``, the form that XLA fuses best.
        - All other libraries, `torch.compile` and exporters: ``"reference"``, one array-API expression.

        Under `torch.compile` and exporters, ``"triton"`` is the only other kernel that takes effect, as an operator of
        the graph. Results of two kernels differ at most by the rounding of the products. `RotaryEmbedding.describe`
        names the selected kernel.

    Returns
    -------
    array, "*batch dim"
        It has the library, shape, dtype and device of `x`.

    Raises
    ------
    ValueError
        If `dim` is odd, the tables are wider than `x` or do not fit its axes, `layout` or `kernel` is unknown, or the
        kernel is not installed or does not support `x`.
    TypeError
        If a dtype is not floating point, if `x` is float64 and the tables are not, or if the tables belong neither to
        NumPy nor to the library of `x`.

    References
    ----------
    Su et al., RoFormer (2021), arXiv:2104.09864, equation 34. Name: kingoflolz/mesh-transformer-jax,
    `mesh_transformer/layers.py`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.ones((3, 2, 4), dtype=np.float32)  # seq heads dim
    >>> angles = np.full((3, 1), np.pi / 2)  # one angle per position: the first two channels are rotated
    >>> apply_rotary_pos_emb(x, (np.sin(angles), np.cos(angles))).round(3)[0]
    array([[-1.,  1.,  1.,  1.],
           [-1.,  1.,  1.,  1.]], dtype=float32)
    """
    rotation_of = partial(_rotation, x, layout, inverse, kernel)
    return rotate_by_tables((x,), sincos, seq_dim, rotation_of, layout, inverse, kernel=kernel)[0]


@public("apply_rotary_pos_emb_inplace")
def apply_rotary_pos_emb_inplace(
    x: Array,
    sincos: tuple[Array, Array],
    *,
    layout: Layout = "interleaved",
    seq_dim: int = 0,
    inverse: bool = False,
    kernel: Kernel = "fastest",
) -> None:
    """Rotate each pair of channels of `x` by its angle, and write the result into `x`.

    This is `apply_rotary_pos_emb` for inference: it has no derivative. All arguments are checked before the first
    write.

    Parameters
    ----------
    x : array of NumPy or PyTorch, "*batch dim"
        It must be writable and must not require grad. No two of its elements may share memory, and it must not share
        memory with the tables.
    sincos, layout, seq_dim, inverse, kernel
        As in `apply_rotary_pos_emb`.

    Raises
    ------
    ValueError
        As `apply_rotary_pos_emb` does, and if `x` cannot be written as described.
    TypeError
        As `apply_rotary_pos_emb` does, and if `x` belongs to another library, such as JAX, whose arrays are immutable.

    References
    ----------
    As `apply_rotary_pos_emb`.

    Examples
    --------
    >>> import numpy as np
    >>> x, angles = np.asarray([[1.0, 2.0]]), np.full((1, 1), np.pi / 2)
    >>> apply_rotary_pos_emb_inplace(x, (np.sin(angles), np.cos(angles)))
    >>> x.round(3)
    array([[-2.,  1.]])
    """
    rotation_of = partial(_rotation, x, layout, inverse, kernel)
    rotate_by_tables((x,), sincos, seq_dim, rotation_of, layout, inverse, kernel=kernel, inplace=True)


def _rotation(x: Array, layout: str, inverse: bool, kernel: str) -> Rotation:
    checks.floating("x", x)
    checks.even_width(x)
    checks.one_of("layout", layout, LAYOUTS)
    checks.one_of("kernel", kernel, KERNELS)
    rotation = Rotation(*READ_WRITE[layout])
    return rotation.inverted() if checks.boolean("inverse", inverse) else rotation


def _rotate_by_90_degrees(x: Array, layout: Layout) -> Any:
    xp = checks.floating("x", x)
    checks.even_width(x)
    first, second = split_pairs(xp, x, layout)
    return join_pairs(xp, -second, first, layout)
