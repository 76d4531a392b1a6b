"""Errors begin with the name of the public function that was called, which `public` marks."""

import importlib
import inspect
import pkgutil
import sys
from collections import defaultdict
from dataclasses import dataclass

import pytest

import rope_xp
from rope_xp import errors, frequencies, plot, positions
from rope_xp.errors import public, wrong, wrong_type, wrong_value

# Modules whose functions are public, and those that need a framework.
PLACES = (rope_xp, frequencies, positions, plot)
NEED_A_FRAMEWORK = ("torch", "flax", "onnx", "huggingface")
# Marks of functions that users do not call by their name: commands, forwards of patched models, checks of subclasses.
OTHERS = {"rope-xp", "convert", "rope_xp.huggingface", None}


def marks():
    """The name of each marked function, by its code, after all modules were imported that need no framework."""
    for each in pkgutil.walk_packages(rope_xp.__path__, "rope_xp."):
        first = each.name.split(".")[1]
        if first not in NEED_A_FRAMEWORK and not each.name.startswith(("rope_xp.kernels", "rope_xp.__main__")):
            importlib.import_module(each.name)
    # Other tests import modules again, or remove them.
    loaded = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return {code: name for code, name in errors._NAMES.items() if code.co_filename in loaded}


def public_codes():
    """The code of each public function and method, by the name with which its errors begin."""
    found = defaultdict(set)
    loaded = [sys.modules[name] for each in NEED_A_FRAMEWORK if (name := f"rope_xp.{each}") in sys.modules]
    for place in (*PLACES, *loaded):
        for name in getattr(place, "__all__", dir(place)):
            each = getattr(place, name)
            if inspect.isclass(each):
                for method, function in inspect.getmembers(each, inspect.isfunction):
                    found[name].add(function.__code__)
                    found[f"{name}.{method}"].add(function.__code__)
            elif inspect.isfunction(function := inspect.unwrap(each) if callable(each) else each):
                found[name].add(function.__code__)
    return found


def test_only_public_functions_are_marked():
    marked, codes = marks(), public_codes()
    others = {name: code.co_qualname for code, name in marked.items() if code not in codes[name]}
    assert others.keys() <= OTHERS, others


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
