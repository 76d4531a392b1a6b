"""The array libraries under test: how each takes and gives NumPy data, and which dtypes it has."""

from dataclasses import dataclass, replace
from importlib import import_module

import ml_dtypes
import numpy as np
import samples

HALF = ("float16", "bfloat16")


def _name(dtype):
    """The name of a dtype of any library."""
    return getattr(dtype, "__name__", None) or str(dtype).rpartition(".")[2]


@dataclass(frozen=True)
class Library:
    name: str
    module: str
    floats: tuple[str, ...]
    integers: tuple[str, ...] = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
    kernels: tuple[str, ...] = ("reference",)
    device: str = "cpu"  # of PyTorch's arrays

    def random(self, *shape, seed=0, dtype="float32"):
        """Normal numbers between -3 and 3, the same for each seed."""
        return self.array(samples.random(*shape, seed=seed, dtype="float64"), dtype)

    def tables(self, angles, dtype="float32"):
        """The sines and cosines of `angles`, for `x` of this dtype."""
        wide = "float64" if _name(dtype) == "float64" else "float32"
        return self.array(np.sin(angles), wide), self.array(np.cos(angles), wide)

    def like(self):
        """An array for results to be like."""
        return self.array(np.zeros(1), "float32")

    def array(self, values, dtype=None):
        """An array of this library with NumPy values, exact in `dtype`, or a dtype of that name, by way of NumPy."""
        module = import_module(self.module)
        values = np.asarray(values)
        if dtype is not None:
            dtype = _name(dtype)
            values = values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        if self.name == "numpy":
            return values
        if values.dtype == ml_dtypes.bfloat16 and self.name != "jax":
            return self.dtype_cast(self.array(values.astype(np.float32)), module.bfloat16)
        if self.name == "torch":
            return module.asarray(values, device=self.device)
        # Dask cannot choose the chunks of some empty arrays. It would choose one for small arrays, too.
        return module.from_array(values, chunks=-1) if self.name == "dask" else module.asarray(values)

    def dtype_cast(self, x, dtype):
        return x.to(dtype) if self.name == "torch" else x.astype(dtype)

    def numpy(self, x):
        """NumPy float64, or the integers they are, with the values of `x`."""
        if self.name == "torch":
            x = x.detach().to("cpu")
            x = x.float().numpy() if "bfloat16" in str(x.dtype) else x.numpy()
        elif self.name == "ndonnx":
            x = x.unwrap_numpy()
        elif self.name == "cupy":
            x = x.get()
        elif self.name == "mlx" and "bfloat16" in str(x.dtype):
            x = np.array(x.astype(import_module(self.module).float32))
        x = np.array(x)
        return x if x.dtype.kind in "iub" else x.astype(np.float64)

    def dtype_of(self, x):
        return str(getattr(x.dtype, "name", None) or x.dtype).rpartition(".")[2]


WIDE = ("float32", "float64")
LIBRARIES = {
    library.name: library
    for library in (
        Library("numpy", "numpy", (*WIDE, *HALF), kernels=("reference", "blocked", "numba")),
        Library("strict", "array_api_strict", WIDE),
        # XLA compiles long. `tests/core/test_kernels.py` compares its kernel with the reference.
        Library("jax", "jax.numpy", ("float32", *HALF), ("int8", "int16", "int32", "uint8", "uint16"), ("xla",)),
        Library("torch", "torch", (*WIDE, *HALF), kernels=("reference", "blocked", "numba")),
        Library("cupy", "cupy", (*WIDE, "float16")),
        Library("dask", "dask.array", (*WIDE, "float16")),
        Library("mlx", "mlx.core", ("float32", *HALF)),
        Library("ndonnx", "ndonnx", (*WIDE, "float16")),
    )
}


def on_gpu(library):
    """With PyTorch's arrays on a GPU, where other kernels run."""
    return replace(library, device="cuda", kernels=("reference", "triton")) if library.name == "torch" else library


def triton():
    """`--xp=triton`: torch again, on a GPU if there is one, else in Triton's interpreter, which cuts bfloat16 off."""
    import torch

    if torch.cuda.is_available():
        return replace(on_gpu(LIBRARIES["torch"]), kernels=("triton",))
    return replace(LIBRARIES["torch"], kernels=("triton",), floats=(*WIDE, "float16"))


# The unit roundoff: half the distance from 1 to the next number.
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
