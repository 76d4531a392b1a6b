"""`import rope_xp` imports nobody."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

FRAMEWORKS = ("torch", "jax", "numba", "triton", "cupy", "mlx", "dask", "ndonnx", "onnx", "flax", "einops")


def loaded_after(statement):
    code = f"import sys; {statement}; print(*[name for name in {FRAMEWORKS!r} if name in sys.modules])"
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_importing_the_library_loads_no_framework():
    assert loaded_after("import rope_xp") == []


@pytest.mark.parametrize("name", ["einops"])
def test_the_test_above_can_fail(name):
    assert loaded_after(f"import rope_xp, {name}") == [name]


# Which rooms each room may import: CONTRIBUTING.md's table.
MAY_IMPORT = {
    "backends/__init__": {"backends.ranks"},
    "backends/ranks": set(),
    "arrays": set(),
    "frequencies": {"backends", "checks"},
    "axes": {"checks"},
    "phases": {"backends"},
    "checks": {"backends", "backends.memory", "backends.ranks"},
    "modules": {"embedding"},
    "torch": {"arrays", "backends.ranks", "embedding", "modules"},
    "flax": {"arrays", "embedding", "modules"},
    "onnx": {"checks", "embedding"},
    "positions/sequence": {"arrays", "backends", "checks"},
    "positions/grids": {"arrays", "backends", "checks", "positions.sequence"},
    "positions/multimodal": {"arrays", "backends", "checks"},
    "positions/__init__": {"positions.grids", "positions.multimodal", "positions.sequence"},
    "backends/memory": {"backends"},
    "backends/threads": set(),
    "kernels/turn": set(),
    "kernels/reference": {"backends", "kernels.turn"},
    "kernels/eager": {"backends.memory", "kernels.reference", "kernels.turn"},
    "kernels/compiled": {"backends", "backends.memory", "backends.threads", "kernels.turn"},
    "kernels/autograd": {"kernels.reference", "kernels.turn"},
    "kernels/xla": {"kernels.reference", "kernels.turn"},
    "kernels/cuda_kernel": set(),
    "kernels/cuda": {"checks", "kernels.cuda_kernel", "kernels.reference", "kernels.turn", "phases"},
    "kernels/__init__": {
        "backends",
        "backends.ranks",
        "backends.threads",
        "checks",
        "kernels.cuda",
        "kernels.reference",
        "kernels.turn",
    },
    "rotation": {"arrays", "backends", "checks", "kernels", "kernels.reference", "kernels.turn"},
    "weights": {"arrays", "checks", "rotation"},
    "kernels/tables": {"phases"},
    "angles": {
        "arrays",
        "backends",
        "backends.memory",
        "backends.ranks",
        "checks",
        "frequencies",
        "kernels",
        "kernels.reference",
        "kernels.tables",
        "phases",
        "positions.sequence",
    },
    "provenance": set(),
    "config/keys": {"checks", "provenance"},
    "config/families": {"checks", "config.keys", "frequencies"},
    "config/layers": {"checks", "config.families", "config.keys"},
    "config/block": {
        "axes",
        "checks",
        "config.families",
        "config.keys",
        "config.layers",
        "embedding",
        "frequencies",
    },
    "config/remote": {"checks", "config.keys"},
    "config/source": {"config.keys"},
    "config/upstream": {"config.block", "config.families", "config.keys"},
    "config/__init__": {
        "checks",
        "config.block",
        "config.families",
        "config.keys",
        "config.layers",
        "config.remote",
        "config.source",
        "config.upstream",
        "embedding",
        "provenance",
        "rotation",
    },
    "huggingface/rotary": {"config", "embedding", "frequencies", "kernels.turn", "positions", "rotation"},
    "huggingface/methods": {"huggingface.rotary", "kernels", "rotation"},
    "huggingface/tables_inside": {"embedding", "huggingface.methods", "huggingface.rotary", "kernels.turn"},
    "huggingface/__init__": {"huggingface.methods", "huggingface.rotary", "huggingface.tables_inside"},
    "embedding": {
        "angles",
        "arrays",
        "axes",
        "backends",
        "checks",
        "frequencies",
        "kernels",
        "kernels.turn",
        "phases",
        "positions.sequence",
        "provenance",
        "rotation",
    },
}

# The rooms that may name more than the standard library and NumPy.
MAY_NAME = {
    "backends/__init__": {"array_api_compat"},
    "kernels/compiled": {"numba", "llvmlite"},
    "kernels/autograd": {"torch"},
    "kernels/cuda": {"torch", "triton"},
    "kernels/cuda_kernel": {"triton"},
    "kernels/xla": {"jax"},
    "huggingface/rotary": {"torch"},
    "huggingface/methods": {"torch"},
    "huggingface/tables_inside": {"torch"},
    "huggingface/__init__": {"torch", "transformers"},
    "torch": {"torch"},
    "flax": {"flax", "jax"},
    "onnx": {"onnx"},
}


def imported_by(room):
    """Modules that a room imports anywhere in its text; rope_xp's own by the room's name alone."""
    source = Path(importlib.util.find_spec("rope_xp").origin).parent.joinpath(f"{room}.py").read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                room = f"{node.module}.{alias.name}".removeprefix("rope_xp.").replace(".", "/")
                yield f"{node.module}.{alias.name}" if {room, f"{room}/__init__"} & set(MAY_IMPORT) else node.module


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_point_one_way_and_name_no_framework(room):
    ours = {name.removeprefix("rope_xp.") for name in imported_by(room) if name.startswith("rope_xp")}
    others = {name.partition(".")[0] for name in imported_by(room) if not name.startswith("rope_xp")}
    assert ours == MAY_IMPORT[room]
    assert others <= {*sys.stdlib_module_names, "numpy", *MAY_NAME.get(room, ())}


def test_every_room_is_in_the_table():
    package = Path(importlib.util.find_spec("rope_xp").origin).parent
    rooms = {file.relative_to(package).with_suffix("").as_posix() for file in package.rglob("*.py")}
    assert rooms - {"__init__"} == set(MAY_IMPORT)


def test_public_names():
    import rope_xp

    assert sorted(rope_xp.__all__) == rope_xp.__all__
    assert all(getattr(rope_xp, name).__doc__ for name in rope_xp.__all__)
