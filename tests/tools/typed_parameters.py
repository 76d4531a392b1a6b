"""Write a typed program that passes every public parameter of every public name.

For each function, class and method, it makes a call with the required arguments, and one with each optional keyword
more. A parameter that an overload lacks is then an error of mypy and of
pyright. `typed_readme.py` checks the program.
"""

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

MODULES = ("", ".frequencies", ".positions", ".torch", ".flax", ".onnx", ".huggingface", ".plot")
# `value: Any` fits every annotation, so that only names of parameters are checked.
HELPER = ["", 'T = TypeVar("T")', "", "", "def instance_of(kind: type[T]) -> T:", "    raise NotImplementedError(kind)"]


def program() -> str:
    """The program's text."""
    lines = ["from typing import Any, TypeVar", "", *(f"import rope_xp{module}" for module in MODULES), *HELPER]
    for number, (name, call, signature) in enumerate(calls()):
        lines += ["", "", f"def call_{number}(value: Any) -> None:", f'    """{name}"""']
        lines += [f"    {line}" for line in _lines(call, signature)]
    return "\n".join(lines) + "\n"


def calls() -> Iterator[tuple[str, str, inspect.Signature]]:
    """The name, the expression that is called, and the signature, of every public function, class and method."""
    seen = set()
    for suffix in MODULES:
        module = importlib.import_module(f"rope_xp{suffix}")
        names = getattr(module, "__all__", None) or [
            name for name, each in vars(module).items() if _is_own(each, module)
        ]
        for name in names:
            thing = getattr(module, name)
            if not callable(thing) or id(thing) in seen:
                continue
            seen.add(id(thing))
            full = f"rope_xp{suffix}.{name}"
            yield full, full, _of_class(thing) if inspect.isclass(thing) else inspect.signature(thing)
            if inspect.isclass(thing):
                yield from _methods(full, thing)


def _of_class(kind: type) -> inspect.Signature:
    """The signature of a class. Metaclasses of frameworks hide it, and `__init__` has it."""
    found = inspect.signature(kind)
    if any(each.kind is not inspect.Parameter.VAR_POSITIONAL for each in list(found.parameters.values())[:1]):
        return found
    own = inspect.signature(kind.__init__)
    return own.replace(parameters=list(own.parameters.values())[1:])


def _is_own(thing: Any, module: Any) -> bool:
    return getattr(thing, "__module__", "") == module.__name__ and not getattr(thing, "__name__", "_").startswith("_")


def _methods(full: str, kind: type) -> Iterator[tuple[str, str, inspect.Signature]]:
    for name, member in inspect.getmembers(kind):
        if not inspect.isroutine(member) or (name.startswith("_") and name != "__call__"):
            continue
        if not str(getattr(member, "__module__", "")).startswith("rope_xp"):
            continue  # of a framework
        signature = inspect.signature(member)
        parameters = list(signature.parameters.values())
        if parameters and parameters[0].name == "self":
            signature = signature.replace(parameters=parameters[1:])
        call = f"instance_of({full}).{name}" if name != "__call__" else f"instance_of({full})"
        yield f"{full}.{name}", call, signature


def _lines(call: str, signature: inspect.Signature) -> Iterator[str]:
    """A call with the required arguments, and one more with each optional keyword."""
    required, optional = [], []
    for each in signature.parameters.values():
        if each.kind is inspect.Parameter.POSITIONAL_ONLY:
            required.append("value")
        elif each.kind is inspect.Parameter.VAR_POSITIONAL:
            required.append("value") if not required else None
        elif each.kind is not inspect.Parameter.VAR_KEYWORD:
            (required if each.default is inspect.Parameter.empty else optional).append(f"{each.name}=value")
    yield f"{call}({', '.join(required)})"
    yield from (f"{call}({', '.join([*required, one])})" for one in optional)
