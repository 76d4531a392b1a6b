"""`import rope_xp` imports nobody."""

import subprocess
import sys

import pytest

FRAMEWORKS = ("torch", "jax", "numba", "triton", "cupy", "mlx", "dask", "ndonnx", "einops")


def loaded_after(statement):
    code = f"import sys; {statement}; print(*[name for name in {FRAMEWORKS!r} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_importing_the_library_loads_no_framework():
    assert loaded_after("import rope_xp") == []


@pytest.mark.parametrize("name", ["einops"])
def test_the_test_above_can_fail(name):
    assert loaded_after(f"import rope_xp, {name}") == [name]


def test_imports_point_one_way():
    """Each room imports only rooms to its right."""
    rooms = ["embedding", "rotation", "angles", "positions", "phases", "frequencies", "checks", "arrays", "backends"]
    for index, room in enumerate(rooms):
        code = f"import sys, rope_xp.{room}; print(*[m[8:] for m in sys.modules if m.startswith('rope_xp.')])"
        # The package's own __init__ imports every room, so it is replaced by an empty one.
        empty = "import sys, types, importlib.util as u; p = types.ModuleType('rope_xp'); "
        empty += "p.__path__ = u.find_spec('rope_xp').submodule_search_locations; sys.modules['rope_xp'] = p; "
        loaded = subprocess.run([sys.executable, "-c", empty + code], capture_output=True, text=True, check=True)
        assert set(loaded.stdout.split()) <= set(rooms[index:])


def test_public_names():
    import rope_xp

    assert sorted(rope_xp.__all__) == rope_xp.__all__
    assert all(getattr(rope_xp, name).__doc__ for name in rope_xp.__all__)
