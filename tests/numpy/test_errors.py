"""Errors begin with the name of the public function that was called, which `public` marks."""

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest

import rope_xp
from rope_xp import frequencies, plot, positions
from rope_xp.errors import public, wrong, wrong_type, wrong_value

# Modules whose functions are public, and those that need a framework.
PLACES = (rope_xp, frequencies, positions, plot)
NEED_A_FRAMEWORK = ("torch", "flax", "onnx", "huggingface")
# Marks of functions that users do not call by their name: commands, forwards of patched models, checks of subclasses.
OTHERS = {"rope-xp", "convert", "rope_xp.huggingface", None}
# The function behind a method, which commands call.
BEHIND = {("RotaryEmbedding.to_config", "config_for")}


def marks():
    """The name of each marked function or method, its own name, the class that it is in, and its first folder."""
    package = Path(rope_xp.__file__).parent
    for file in package.rglob("*.py"):
        module = ast.parse(file.read_text())
        for place in (module, *(node for node in ast.walk(module) if isinstance(node, ast.ClassDef))):
            for each in place.body:
                for mark in getattr(each, "decorator_list", ()):
                    if ast.unparse(mark).startswith("public("):
                        name = mark.args[0].value if mark.args else None
                        yield name, each.name, getattr(place, "name", None), file.relative_to(package).parts[0]


def test_only_public_functions_are_marked_by_their_names():
    for name, own, kind, folder in marks():
        if name in OTHERS or (name, own) in BEHIND:
            assert name or kind
            continue
        assert name in (own, kind, f"{kind}.{own}")
        is_public = any(hasattr(place, name.partition(".")[0]) for place in PLACES)
        assert is_public or folder.removesuffix(".py") in NEED_A_FRAMEWORK, name


def test_the_innermost_marked_function_names_the_error():
    def check(x):
        if x < 0:
            raise wrong_value(f"x must be at least 0; got {x}")
        raise wrong_type("x must be an int")

    @public("inner")
    def inner(x):
        check(x)

    @public("outer")
    def outer(x):
        inner(x) if x % 2 else check(x)

    for call, x, kind, text in [
        (outer, -2, ValueError, "outer: x must be at least 0; got -2"),
        (outer, -1, ValueError, "inner: x must be at least 0; got -1"),
        (inner, 3, TypeError, "inner: x must be an int"),
        (check, -1, ValueError, "x must be at least 0; got -1"),
    ]:
        with pytest.raises(kind) as caught:
            call(x)
        assert str(caught.value) == text and type(caught.value) is kind
    assert str(wrong(FileNotFoundError, "a")) == "a"


def test_a_mark_without_a_name_is_the_class_of_self():
    @dataclass(frozen=True, kw_only=True)
    class Rule(frequencies.Scaling):
        factor: float

        def __post_init__(self):
            self._at_least(1.0, "factor")

    with pytest.raises(ValueError, match=r"^Rule: factor must be"):
        Rule(factor=-1.0)


def test_a_mark_changes_nothing_else():
    def f(x: int) -> int:
        """Text."""
        return x

    assert public("f")(f) is f
