"""Functions that rotate by complex numbers, as `compare` and `identify` take them."""

import numpy as np
import oracle
from rotations import ORDERS


def angles_of(positions, frequencies, dtype="float64"):
    """Position times frequency. Both and their product have this dtype."""
    product = np.asarray(positions).astype(dtype)[..., None] * np.asarray(frequencies).astype(dtype)
    return product.astype(np.float64)


def rounded(dtype):
    """Rounds numbers to a dtype."""
    return lambda numbers: np.asarray(numbers).astype(dtype).astype(np.float64)


def turned(x, angles, layout="half", first=0, *, factor=1.0, inverse=False, tables=np.asarray):
    """The channels from `first` on by these angles, times a factor; the others as they are. `tables` rounds sines."""
    sin, cos = (tables(factor * each(angles)) for each in (np.sin, np.cos))
    return oracle.rotate_pairs(x, sin, cos, oracle.Span(*ORDERS[layout], first, inverse=inverse))


def rotary(frequencies, layout="half", first=0, *, offset=0, phase="float64", dtype="float64", **options):
    """A function of x "... seq dim" and positions "seq"."""

    def fn(x, positions):
        return turned(x, angles_of(positions + offset, frequencies, phase), layout, first, **options).astype(dtype)

    return fn


def in_shape(fn, shape, position_axes=(1, 2)):
    """A function of x in this shape alone, and of positions "seq" or "batch seq", if there are so many axes."""
    axes = shape.split()

    def of_shape(x, positions):
        names = ("batch", "seq")[-positions.ndim :]
        if x.ndim != len(axes) or positions.ndim not in position_axes or not {*names} <= {*axes}:
            raise ValueError(f"x must be ({shape})")
        # `fn` makes an axis of the angles from the last one of positions.
        sizes = dict(zip(names, positions.shape))
        return fn(x, positions.reshape([sizes.get(name, 1) for name in axes[:-1]]))

    return of_shape
