"""Classes of transformers, rewritten: their forward calls the apply functions of rope_xp.

The attention of GPT-J and CodeGen holds its own table: there, the forward also reads row numbers in its place.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import inspect
import re
from collections.abc import Iterable
from types import CellType, CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from rope_xp.embedding import RotaryEmbedding
from rope_xp.errors import wrong_value
from rope_xp.huggingface.apply_functions import equal_function
from rope_xp.huggingface.guard import (
    Function,
    ReadOnlyAttributes,
    TensorMap,
    class_path,
    equal_before_casts,
    is_of_transformers,
    moved,
    naming_errors,
    subclass_of,
)
from rope_xp.huggingface.rotary import Rotary, TableFormat
from rope_xp.huggingface.same_tables import ROTARY_NAME, TABLE_TOLERANCE
from rope_xp.kernels.reference import Rotation
from rope_xp.layouts import READ_WRITE
from rope_xp.types import Values

APPLY_NAME = re.compile("^(vision_)?apply_(rotary|multidimensional_rope)")

# Of attention that holds its own table.
ATTENTION_CLASSES = ("GPTJAttention", "CodeGenAttention")
APPLY_FUNCTION, TABLE_BUFFER = "apply_rotary_pos_emb", "embed_positions"
ROW_ATTRIBUTE = "_rows"  # the rewritten forward reads this in place of the table
FIXED_OPTIONS: Values = {"layout": "interleaved", "base": 10_000.0}  # no config changes them
DIGIT_BASE = 256  # numbers below it are exact in bfloat16 and float16


class ClassRewriter:
    """Rewrites the classes of one model, and remembers the results."""

    def __init__(self, rotaries: Iterable[Rotary]):
        self.rotaries = list(rotaries)
        # For each source file of transformers, the formats of the tables that its rotary modules make.
        self.formats: dict[str, list[TableFormat]] = {}
        for rotary in self.rotaries:
            for file in _source_files(rotary):
                known = self.formats.setdefault(file, [])
                known += [table_format for table_format in rotary.formats.values() if table_format not in known]
        # For each class and function, what replaces it: itself, if it calls no apply function.
        self.classes: dict[type, type] = {}
        self.rewritten_functions: dict[FunctionType, FunctionType] = {}
        # For each apply function of transformers and its source file, the apply function of rope_xp.
        self.replacements: dict[tuple[Function, str], Function] = {}

    def class_of(self, module: Module) -> type:
        """The class that a module gets: rewritten if its forward calls an apply function, else its own."""
        cls = type(module)
        if cls not in self.classes:
            with naming_errors("every module must be one that can be patched", module):
                self.classes[cls] = self._rewritten_class(cls)
        return self.classes[cls]

    def _rewritten_class(self, cls: type[Module]) -> type:
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
        files = {file for _, file in self.replacements}
        for rotary in self.rotaries:
            if files.isdisjoint(_source_files(rotary)):
                raise wrong_value(
                    f"every module must be one that can be patched; got {class_path(rotary.original)}, "
                    "whose tables no method of the model applies"
                )

    def rewritten(self, function: FunctionType) -> FunctionType:
        """A function with the same code that calls apply functions of rope_xp, directly or through other functions."""
        if function in self.rewritten_functions:
            return self.rewritten_functions[function]
        self.rewritten_functions[function] = function  # ends the recursion of functions that call each other
        module_globals = function.__globals__
        new_values: Values = {}
        for name in names_used_by(function).intersection(module_globals):
            value = module_globals[name]
            if APPLY_NAME.match(name) and callable(value):
                new_values[name] = self.replacement_for(name, value, module_globals["__name__"])
            elif isinstance(value, FunctionType) and value.__module__ == function.__module__:
                new_values[name] = self.rewritten(value)
        new_values = {name: value for name, value in new_values.items() if value is not module_globals[name]}
        cells = [self._rewritten_cell(cell) for cell in function.__closure__ or ()]
        if new_values or any(new is not old for new, old in zip(cells, function.__closure__ or ())):
            self.rewritten_functions[function] = copy_with_globals(function, new_values, cells)
        return self.rewritten_functions[function]

    def _rewritten_cell(self, cell: CellType) -> CellType:
        try:
            value = cell.cell_contents
        except ValueError:  # it is empty
            return cell
        if not isinstance(value, FunctionType):
            return cell
        function = self.rewritten(value)
        return cell if function is value else CellType(function)

    def replacement_for(self, name: str, original: Function, file: str) -> Function:
        """The apply function of rope_xp that gives the same results as `original`, for a format of its file."""
        if (original, file) in self.replacements:
            return self.replacements[original, file]
        if file not in self.formats:
            raise ValueError(f"{name} in {file} applies tables that no rotary module of this file makes")
        function = equal_function(name, original, _with_other_layouts(self.formats[file]))
        self.replacements[original, file] = function
        return function


def _with_other_layouts(formats: list[TableFormat]) -> list[TableFormat]:
    """The formats, and then the same with other layouts, which indexers and code that is not used have."""
    others = [
        table_format._replace(rotation=table_format.rotation._replace(read=read, write=write))
        for table_format in formats
        if table_format.rotation.blocks == 1
        for read, write in READ_WRITE.values()
        if (read, write) != (table_format.rotation.read, table_format.rotation.write)
    ]
    return [*formats, *others]


def copy_with_globals(function: FunctionType, new_values: Values, cells: Iterable[CellType]) -> FunctionType:
    """A copy of a function, in which the global names of `new_values` have these values."""
    module_globals = function.__globals__
    names = {"__builtins__", "__package__", *names_used_by(function)}
    copied = names & module_globals.keys() - {"__name__"}  # torch.compile would look up the module of that name
    own_globals = {name: module_globals[name] for name in copied} | new_values
    new = FunctionType(function.__code__, own_globals, function.__name__, function.__defaults__, tuple(cells))
    new.__kwdefaults__ = function.__kwdefaults__
    for name in ("__module__", "__qualname__", "__doc__", "__annotations__"):
        setattr(new, name, getattr(function, name))
    vars(new).update(vars(function))
    return new


def names_used_by(function: object) -> set[str]:
    if not isinstance(function, FunctionType):
        return set()
    names, codes = set(), [function.__code__]
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
    return names


def _source_files(rotary: Rotary) -> list[str]:
    return [cls.__module__ for cls in type(rotary.original).__mro__ if ROTARY_NAME.search(cls.__name__)]


class TableGuard(ReadOnlyAttributes):
    """A base class of patched attention. Its table cannot be read or edited. Casts reach it, and keep its values."""

    def _guarded_names(self) -> tuple[str, ...]:
        return () if "_is_replica" in vars(self) else (TABLE_BUFFER,)  # data parallelism sets buffers of replicas

    def __getattr__(self, name: str) -> Any:
        self._refuse_if_guarded(name, "read and edited")  # Python calls this method for buffers and modules only
        return super().__getattr__(name)

    def _apply(self, fn: TensorMap, recurse: bool = True) -> Module:
        table = self._buffers[TABLE_BUFFER]
        return super()._apply(lambda tensor: moved(tensor, fn) if tensor is table else fn(tensor), recurse)


def holds_table(module: object) -> bool:
    return any(cls.__name__ in ATTENTION_CLASSES for cls in type(module).__mro__)


def exact_table_class(module: Module) -> type:
    with naming_errors("every module must be one that can be patched", module):
        if not is_of_transformers(type(module).forward):
            raise ValueError("its forward is not that of transformers")
        options: Values = {**FIXED_OPTIONS, "head_dim": module.head_dim, "rotary_dim": module.pos_embd_dim}
        rope = RotaryEmbedding(**options)
        _check_table(module, rope)
        return _patched_class(type(module), rope)


def _check_table(module: Module, rope: RotaryEmbedding) -> None:
    """Check that the table of a module has the sines and cosines of `rope`, and not too many rows."""
    table = getattr(module, TABLE_BUFFER)
    rows = torch.arange(len(table))
    if len(rows) > DIGIT_BASE**2:
        raise ValueError(f"its table has more than {DIGIT_BASE**2} rows")
    exact = torch.cat(rope.sincos(rows, like=torch.zeros(())), 1)
    if not equal_before_casts(table, exact, TABLE_TOLERANCE * (1 + rows[:, None] / 512)):
        raise ValueError("its table does not follow from head_dim and rotary_dim")


def _patched_class(cls: type[Module], rope: RotaryEmbedding) -> type:
    """A subclass whose methods look up row numbers, and an apply function that computes exact tables from them."""
    table_format = TableFormat("once", False, Rotation("interleaved", "interleaved"), False, rope.pairs)
    rotate = equal_function(APPLY_FUNCTION, cls.forward.__globals__[APPLY_FUNCTION], [table_format], heads_axes=(-2,))

    def apply_rotary_pos_emb(tensor: Tensor, high: Tensor, low: Tensor) -> Tensor:
        row = (DIGIT_BASE * high.to(torch.int64) + low.to(torch.int64))[..., 0]
        sin, cos = rope.sincos(row, like=tensor)
        return rotate(tensor, sin, cos)

    methods = {
        name: _with_row_lookup(function, {APPLY_FUNCTION: apply_rotary_pos_emb})
        for name, function in inspect.getmembers(cls, inspect.isfunction)
        if name != "__init__" and {APPLY_FUNCTION, TABLE_BUFFER} & names_used_by(function)
    }
    row_digits = property(_row_digits, lambda _module, _value: None)
    return subclass_of(cls, TableGuard, **methods, **{ROW_ATTRIBUTE: row_digits})


def _with_row_lookup(function: FunctionType, new_values: Values) -> FunctionType:
    """A copy of a function that reads `ROW_ATTRIBUTE` in place of the table."""
    new = copy_with_globals(function, new_values, function.__closure__ or ())
    names = tuple(ROW_ATTRIBUTE if name == TABLE_BUFFER else name for name in new.__code__.co_names)
    new.__code__ = new.__code__.replace(co_names=names)
    return new


def _row_digits(module: Any) -> Tensor:
    """The number of each row of the table, in two digits: these are exact even after a cast to 16 bits."""
    table = module._buffers[TABLE_BUFFER]
    rows = torch.arange(len(table), device=table.device)
    return torch.stack((rows // DIGIT_BASE, rows % DIGIT_BASE), 1)
