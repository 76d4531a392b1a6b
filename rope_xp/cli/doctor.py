"""What is installed here, which kernel each library gets, and whether its results are right."""

import importlib.util
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any

import numpy as np

import rope_xp
from rope_xp import kernels
from rope_xp.arrays import libraries
from rope_xp.cli.options import LIBRARIES
from rope_xp.reports import Report, Section, Table

PACKAGES = ("numpy", "array-api-compat", "numba", "torch", "triton", "jax", "jaxlib", "flax", "transformers", "cupy")
ROPE = rope_xp.RotaryEmbedding(head_dim=64, layout="half", base=10_000.0)
POSITIONS = 2 ** np.arange(25) - 1
# Of the largest input: two products with tables that are within 2e-7, and three roundings to float32.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Diagnosis(Report):
    """What `rope-xp doctor` prints."""

    versions: dict[str, str]  # of Python, the machine and installed packages
    libraries: tuple["Library", ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(
            f"{each.name} on {each.device}: {each.result}" for each in self.libraries if each.result != "right"
        )

    def sections(self) -> list[Section]:
        rows = [(f"{each.name} ({each.device})", each.kernel, each.result) for each in self.libraries]
        return [
            Section("Versions", Table((), list(self.versions.items()))),
            Section("Libraries", Table(("library", "kernel", "self-test"), rows)),
        ]


@dataclass(frozen=True)
class Library(Report):
    """One array library on one device: the kernel that rotates float32 arrays, and the result of the self-test."""

    name: str
    device: str
    kernel: str
    result: str


def diagnose() -> Diagnosis:
    versions = {"rope_xp": rope_xp.__version__, "python": platform.python_version(), "machine": platform.platform()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return Diagnosis(versions, tuple(each for name in LIBRARIES for each in _library(name)))


def _library(name: str) -> Iterator[Library]:
    if importlib.util.find_spec(name) is None:
        return
    try:
        imported = importlib.import_module(LIBRARIES[name])
    except Exception as error:  # an installation may be broken in any way
        yield Library(name, "-", "-", f"cannot be imported: {_first_line(error)}")
        return
    make = getattr(imported, "asarray", None) or imported.array  # MLX has the second alone
    yield _tested(name, "default device" if name == "jax" else "cpu", make)
    if name == "torch" and imported.cuda.is_available():
        yield _tested(name, "cuda", partial(make, device="cuda"))


def _tested(name: str, device: str, make: Callable[..., Any]) -> Library:
    x = np.random.default_rng(0).normal(size=(len(POSITIONS), ROPE.head_dim)).astype(np.float32)
    kernel = "-"
    try:
        array = make(x)
        kernel = kernels.choose(array, "fastest")
        kernel += f": {why}" if (why := kernels.why_not_faster(array, kernel)) else ""
        rotated = ROPE.rotate(array, ROPE.sincos(POSITIONS, like=array), seq_dim=0)
        error = np.abs(libraries.to_host(rotated) - _expected(x)).max()
    except Exception as error:  # a library or a driver may fail in any way; the report says how
        return Library(name, device, kernel, f"fails: {_first_line(error)}")
    return Library(name, device, kernel, "right" if error <= TOLERANCE * np.abs(x).max() else f"wrong by {error:.1e}")


def _expected(x: np.ndarray) -> np.ndarray:
    """The rotation by complex numbers in float64, which is exact enough at these positions."""
    turns = np.exp(1j * np.outer(POSITIONS, 10_000.0 ** (-np.arange(32) / 32)))
    first, second = np.split(x.astype(np.float64), 2, axis=1)
    rotated = (first + 1j * second) * turns
    return np.concatenate([rotated.real, rotated.imag], axis=1)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
