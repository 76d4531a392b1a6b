"""`import rope_xp` imports nobody."""

import ast
import graphlib
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_overloads

import pytest

import rope_xp
from rope_xp import RotaryEmbedding
from rope_xp.modules import RotaryModule

FRAMEWORKS = ("torch", "jax", "numba", "triton", "cupy", "mlx", "dask", "ndonnx", "onnx", "flax", "einops")


def loaded_after(statement):
    code = f"import sys; {statement}; print(*[name for name in {FRAMEWORKS!r} if name in sys.modules])"
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_importing_the_library_loads_no_framework():
    assert loaded_after("import rope_xp") == []
    assert loaded_after("import rope_xp, einops") == ["einops"]  # this test can fail


# The list of modules in CONTRIBUTING, from the bottom up: a module imports modules above it, and none below. A folder
# stands for all in it that does not stand here itself; its modules import each other without a circle.
CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"
ROWS = re.findall(r"^- `rope_xp/([\w/]+?)(?:/|\.py)`", CONTRIBUTING.read_text(), flags=re.MULTILINE)

# Names beyond the standard library and NumPy, and the modules that may import them.
MAY_NAME = """
array_api_compat arrays/libraries
numba kernels/numba kernels/numba_jobs kernels/numba_pairs kernels/numba_tables
llvmlite kernels/numba_jobs kernels/numba_pairs
torch torch kernels/autograd kernels/graph kernels/triton huggingface/__init__ huggingface/guard
torch huggingface/rotary huggingface/same_tables huggingface/apply_functions huggingface/rewrite
torch huggingface/reading_models huggingface/probing
triton kernels/triton kernels/triton_kernel
transformers huggingface/__init__ huggingface/reading_models huggingface/rotary
jax flax kernels/xla
flax flax
onnx onnx
matplotlib plot
click cli/commands cli/options cli/settings
"""
ALLOWED = {(module, name) for name, *modules in map(str.split, MAY_NAME.splitlines()[1:]) for module in modules}
PACKAGE = Path(importlib.util.find_spec("rope_xp").origin).parent
MODULES = sorted(file.relative_to(PACKAGE).with_suffix("").as_posix() for file in PACKAGE.rglob("*.py"))
MODULES.remove("__init__")


def place_of(module):
    """The row that stands for a module: its own, or that of the innermost folder that it is in."""
    return next(ROWS.index(place) for place in (module, *map(str, Path(module).parents)) if place in ROWS)


def imported_by(module):
    """What a module imports anywhere in its text: modules of rope_xp by their path, all others by their first name."""
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            first, *rest = name.split(".")
            if first != "rope_xp":
                yield first
                continue
            while rest and "/".join(rest) not in MODULES and "/".join([*rest, "__init__"]) not in MODULES:
                rest.pop()
            path = "/".join(rest)
            yield f"rope_xp/{path if path in MODULES else f'{path}/__init__'.lstrip('/')}"


def ours_in(module):
    """The modules of rope_xp that a module imports."""
    return [name.removeprefix("rope_xp/") for name in imported_by(module) if name.startswith("rope_xp/")]


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way_and_name_no_framework(module):
    others = {name for name in imported_by(module) if not name.startswith("rope_xp/")}
    assert [name for name in ours_in(module) if place_of(name) > place_of(module)] == []
    assert all((module, name) in ALLOWED for name in others - {*sys.stdlib_module_names, "numpy"})


def test_no_module_imports_itself_in_a_circle():
    tuple(graphlib.TopologicalSorter({module: ours_in(module) for module in MODULES}).static_order())  # or CycleError


def test_each_row_of_the_table_has_modules():
    assert {place_of(module) for module in [*MODULES, "__init__"]} == {*range(len(ROWS))}


# Modules that need a package, and the extra of pyproject.toml that brings it.
NEEDS = {
    "flax": ("flax", "jax and flax"),
    "huggingface": ("transformers", "torch and transformers"),
    "onnx": ("onnx", "onnx"),
    "plot": ("matplotlib", "matplotlib"),
    "torch": ("torch", "torch"),
}


@pytest.mark.parametrize("module", NEEDS)
def test_a_module_without_its_package_names_the_extra(module, monkeypatch):
    package, packages = NEEDS[module]
    for name in [name for name in (*sys.modules, package) if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"rope_xp.{module}", raising=False)
    with pytest.raises(ModuleNotFoundError) as raised:
        importlib.import_module(f"rope_xp.{module}")
    said = f"rope_xp.{module}: {packages} must be installed (pip install 'rope-xp[{module}]'); got "
    assert str(raised.value).startswith(said)
    text = CONTRIBUTING.with_name("pyproject.toml").read_text()
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    assert any(requirement.startswith(package) for requirement in extras[module])


def test_public_names():
    assert sorted(rope_xp.__all__) == rope_xp.__all__
    assert all(getattr(rope_xp, name).__doc__ for name in rope_xp.__all__)
    for module in (rope_xp.frequencies, rope_xp.positions):
        assert {getattr(module, name).__module__ for name in module.__all__} == {module.__name__}  # pickles name it


def keywords_of(function):
    return {each.name for each in inspect.signature(function).parameters.values() if each.kind is each.KEYWORD_ONLY}


def test_every_overload_has_the_keywords_of_its_function():
    """Else a type checker refuses an argument that exists."""
    names = [getattr(rope_xp, name) for name in rope_xp.__all__]
    methods = [each for kind in (*filter(inspect.isclass, names), RotaryModule) for each in vars(kind).values()]
    overloads = {
        each: get_overloads(each) for each in map(inspect.unwrap, (*names, *methods)) if inspect.isfunction(each)
    }
    assert sum(map(bool, overloads.values())) > 4
    for function, overloaded in overloads.items():
        assert all(keywords_of(each) == keywords_of(function) for each in overloaded), function


# The arguments that may be given by position; all others must be named.
BY_POSITION = {
    rope_xp.apply_rotary_pos_emb: "x sincos",
    rope_xp.apply_rotary_pos_emb_inplace: "x sincos",
    rope_xp.assert_same: "fn rope",
    rope_xp.compare: "a b",
    rope_xp.fixed_pos_embedding: "x seq_dim",
    rope_xp.from_config: "config",
    rope_xp.identify: "fn head_dim",
    rope_xp.identify_checkpoint: "path",
    rope_xp.permute_projection: "w",
    rope_xp.rotate_every_two: "x",
    rope_xp.rotate_half: "x",
    rope_xp.sinusoidal_pos_embedding: "positions dim base",
    RotaryEmbedding: "",
    RotaryEmbedding.__call__: "self x",
    RotaryEmbedding.describe: "self x",
    RotaryEmbedding.explain: "self context",
    RotaryEmbedding.replace: "self",
    RotaryEmbedding.rotate: "self x sincos",
    RotaryEmbedding.rotate_inplace: "self x",
    RotaryEmbedding.shift: "self k delta",
    RotaryEmbedding.sincos: "self positions",
    RotaryEmbedding.to_config: "self target",
}


@pytest.mark.parametrize("function", BY_POSITION, ids=lambda function: function.__qualname__)
def test_arguments_by_position(function):
    parameters = inspect.signature(function).parameters.values()
    names = [each.name for each in parameters if each.kind <= each.POSITIONAL_OR_KEYWORD]
    assert names == BY_POSITION[function].split()
