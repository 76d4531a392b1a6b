"""Classes of transformers, rewritten so that their forward calls the apply functions of rope_xp."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import re
import types
from collections.abc import Iterable
from itertools import product
from typing import Any

from rope_xp.errors import wrong_value
from rope_xp.huggingface.apply import ROTATION_TOLERANCE, apply_function, known_signature, largest_difference
from rope_xp.huggingface.contexts import comparison
from rope_xp.huggingface.guard import class_path, is_of_transformers, subclass_of
from rope_xp.huggingface.rotary import Rotary, TableFormat
from rope_xp.huggingface.same_tables import ROTARY_NAME
from rope_xp.layouts import READ_WRITE
from rope_xp.types import Values

APPLY_NAME = re.compile("^(vision_)?apply_(rotary|multidimensional_rope)")


class ClassRewriter:
    """Rewrites the classes of one model, and remembers the results.

    Attributes
    ----------
    formats : dict
        For each source file of transformers, the formats of the tables that its rotary modules make.
    files_with_apply : set
        The source files whose apply functions have been replaced.
    classes : dict
        For each class, the class that its modules get. It is the same class if nothing is replaced.
    rewritten_functions : dict
        For each function, the function that replaces it. It is the same function if nothing is replaced.
    replacements : dict
        For each apply function of transformers and its source file, the apply function of rope_xp.
    """

    def __init__(self, rotaries: Iterable[Rotary]):
        self.rotaries = list(rotaries)
        self.formats: dict[str, list[TableFormat]] = {}
        for rotary in self.rotaries:
            for file in _source_files(rotary):
                known = self.formats.setdefault(file, [])
                known += [table_format for table_format in rotary.formats.values() if table_format not in known]
        self.files_with_apply: set[str] = set()
        self.classes: dict[type, type] = {}
        self.rewritten_functions: dict[Any, Any] = {}
        self.replacements: dict[Any, Any] = {}

    def class_of(self, module: object) -> type:
        """The class that a module gets: rewritten if its forward calls an apply function, else its own."""
        cls = type(module)
        if cls not in self.classes:
            with comparison("every module must be one that can be patched", module):
                self.classes[cls] = self._rewritten_class(cls)
        return self.classes[cls]

    def _rewritten_class(self, cls: Any) -> type:
        for base in cls.__mro__:
            forward = vars(base).get("forward")
            if not is_of_transformers(forward):
                if applies := sorted(filter(APPLY_NAME.match, names_used_by(forward))):
                    raise ValueError(f"its forward, which calls {applies[0]}, is not that of transformers")
                continue
            new_forward = self.rewritten(forward)
            if new_forward is not forward:
                if cls.forward is not forward:
                    raise ValueError(f"it overrides the forward of {base.__name__} in transformers")
                return subclass_of(cls, forward=new_forward)
        return cls

    def check_tables_are_applied(self) -> None:
        """Check that each rotary module has a source file whose apply functions have been replaced."""
        for rotary in self.rotaries:
            if not self.files_with_apply.intersection(_source_files(rotary)):
                raise wrong_value(
                    f"every module must be one that can be patched; got {class_path(rotary.original)}, "
                    "whose tables no method of the model applies"
                )

    def rewritten(self, function: object) -> Any:
        """A function with the same code that calls apply functions of rope_xp, directly or through other functions.

        It is the same function if it calls none.
        """
        if function in self.rewritten_functions:
            return self.rewritten_functions[function]
        self.rewritten_functions[function] = function  # ends the recursion of functions that call each other
        module_globals, new_values = function.__globals__, {}
        for name in names_used_by(function).intersection(module_globals):
            value = module_globals[name]
            if APPLY_NAME.match(name) and callable(value):
                new_values[name] = self.replacement_for(name, value, module_globals["__name__"])
            elif isinstance(value, types.FunctionType) and value.__module__ == function.__module__:
                new_values[name] = self.rewritten(value)
        new_values = {name: value for name, value in new_values.items() if value is not module_globals[name]}
        cells = [self._rewritten_cell(cell) for cell in function.__closure__ or ()]
        if new_values or any(new is not old for new, old in zip(cells, function.__closure__ or ())):
            self.rewritten_functions[function] = copy_with_globals(function, new_values, cells)
        return self.rewritten_functions[function]

    def _rewritten_cell(self, cell: object) -> Any:
        """The closure cell of a decorator, with its function rewritten."""
        try:
            value = cell.cell_contents
        except ValueError:  # it is empty
            return cell
        if not isinstance(value, types.FunctionType):
            return cell
        function = self.rewritten(value)
        return cell if function is value else types.CellType(function)

    def replacement_for(self, name: str, original: object, file: str) -> Any:
        """The apply function of rope_xp that gives the same results as `original`.

        It is found by trying each format of the file's tables with each axis of heads.
        """
        self.files_with_apply.add(file)
        if (original, file) in self.replacements:
            return self.replacements[original, file]
        signature = known_signature(name, original)
        if file not in self.formats:
            raise ValueError(f"{name} in {file} applies tables that no rotary module of this file makes")
        errors = []
        for table_format, heads_axis in product(_with_other_layouts(self.formats[file]), (-2, 1, None)):
            function = apply_function(signature, table_format, heads_axis)
            errors.append(largest_difference(original, function, table_format))
            if errors[-1] <= ROTATION_TOLERANCE:
                self.replacements[original, file] = function
                return function
        raise ValueError(f"{name} differs from that of rope_xp by {min(errors):.2g}")


def _with_other_layouts(formats: list[TableFormat]) -> list[TableFormat]:
    """The formats, and then the same formats with other layouts.

    Other layouts occur in code that the config does not use, and in indexers.
    """
    others = [
        table_format._replace(rotation=table_format.rotation._replace(read=read, write=write))
        for table_format in formats
        if table_format.rotation.blocks == 1
        for read, write in READ_WRITE.values()
        if (read, write) != (table_format.rotation.read, table_format.rotation.write)
    ]
    return [*formats, *others]


def copy_with_globals(function: object, new_values: Values, cells: Iterable[Any]) -> Any:
    """A copy of a function, in which the global names of `new_values` have these values.

    Its globals are only the names that it uses, without `__name__`, because torch.compile would look up that module.
    """
    module_globals = function.__globals__
    names = {"__builtins__", "__package__", *names_used_by(function)}
    copied = names & module_globals.keys() - {"__name__"}
    own_globals = {name: module_globals[name] for name in copied} | new_values
    new = types.FunctionType(
        function.__code__, own_globals, function.__name__, function.__defaults__, tuple(cells) or None
    )
    new.__kwdefaults__ = function.__kwdefaults__
    for name in ("__module__", "__qualname__", "__doc__", "__annotations__"):
        setattr(new, name, getattr(function, name))
    vars(new).update(vars(function))
    return new


def names_used_by(function: object) -> set[str]:
    """The global names and attributes that a function uses, also in functions that it defines."""
    if not isinstance(function, types.FunctionType):
        return set()
    names, codes = set(), [function.__code__]
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return names


def _source_files(rotary: Rotary) -> list[str]:
    """The source files of a rotary module's class and of its bases."""
    return [cls.__module__ for cls in type(rotary.original).__mro__ if ROTARY_NAME.search(cls.__name__)]
