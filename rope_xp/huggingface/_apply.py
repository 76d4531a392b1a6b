"""Apply functions of rope_xp, and classes of transformers rewritten so that their forward calls them.

Each apply function is compared with the function of transformers that it replaces.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import inspect
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import Any

import torch

from rope_xp._core import kernels
from rope_xp._core.alignment import align_tables
from rope_xp._core.channels import READ_WRITE
from rope_xp.huggingface._float32_on_cpu import FLOAT32_ON_CPU, float32_on_cpu
from rope_xp.huggingface._guard import class_path, subclass_of
from rope_xp.huggingface._rotary import ROTARY_NAME, Rotary, TableFormat, is_of_transformers

APPLY_NAME = re.compile("^(vision_)?apply_(rotary|multidimensional_rope)")

# Two rotations in float32 of numbers below 0.7, each with two products and a sum that are rounded.
ROTATION_TOLERANCE = 2 * 3 * 2.0**-24


def rotate_by_tables(xs: list[Any], cos: Any, sin: Any, table_format: TableFormat) -> list[Any]:
    """Rotate arrays by tables in the format of transformers, which may lack leading axes."""
    who, x = "rope_xp.huggingface", xs[0]
    # Wrappers that cast arguments of modules may have cast the tables.
    dtype = torch.promote_types(x.dtype, torch.float32)
    cos, sin = (table.to(dtype)[(None,) * (x.ndim - table.ndim)] for table in table_format.to_columns(cos, sin))
    rotation = table_format.rotation
    if table_format.rotates_last:
        rotation = rotation._replace(first_channel=x.shape[-1] - 2 * cos.shape[-1])
    return kernels.rotate(who, xs, align_tables(who, xs, (sin, cos), -2), rotation)


# Each function below makes an apply function of rope_xp. It takes the format of the tables, and the axis of heads that
# tables lack; apply functions with `unsqueeze_dim` do not use the latter. Parameters have the names that transformers
# gives them, as some models pass them by name. Signatures are written out, as compilers trace them.


def _q_and_k(table_format, _):
    def apply_rotary_pos_emb(q: Any, k: Any = None, cos: Any = None, sin: Any = None, unsqueeze_dim: int = 1) -> Any:
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        if k is None:
            return rotate_by_tables([q], cos, sin, table_format)[0]
        if unsqueeze_dim == 1 and q.shape[-2] != k.shape[-2]:  # an assistant model: q has only the last tokens
            last = (..., slice(-q.shape[-2], None), slice(None))
            (q,) = rotate_by_tables([q], cos[last], sin[last], table_format)
            return q, rotate_by_tables([k], cos, sin, table_format)[0]
        return tuple(rotate_by_tables([q, k], cos, sin, table_format))

    return apply_rotary_pos_emb


def _q_and_k_with_positions(table_format, heads):
    rotate = _q_and_k(table_format, heads)

    def apply_rotary_pos_emb(q, k, cos, sin, position_ids=None, unsqueeze_dim=1):
        return rotate(q, k, cos, sin, unsqueeze_dim)

    return apply_rotary_pos_emb


def _x(table_format, _):
    def apply_rotary_pos_emb(x, cos, sin, unsqueeze_dim=1):
        return rotate_by_tables([x], cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim), table_format)[0]

    return apply_rotary_pos_emb


def _x_with_positions(table_format, _):
    def apply_multidimensional_rope(x, cos, sin, position_ids, unsqueeze_dim=2):
        return rotate_by_tables([x], cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim), table_format)[0]

    return apply_multidimensional_rope


def _q_and_k_without_axis(table_format, heads):
    def apply_rotary_pos_emb(q, k, cos, sin):
        if heads is not None:
            cos, sin = cos.unsqueeze(heads), sin.unsqueeze(heads)
        return tuple(rotate_by_tables([q, k], cos, sin, table_format))

    return apply_rotary_pos_emb


def _last_tokens(table_format, _):
    def apply_rotary_pos_emb(q, k, cos, sin, **kwargs):
        first = q.shape[-2] - cos.shape[-2]  # the first tokens are not rotated
        rotated = rotate_by_tables([q[..., first:, :], k[..., first:, :]], cos, sin, table_format)
        return tuple(torch.cat((x[..., :first, :], y), -2) for x, y in zip((q, k), rotated))

    return apply_rotary_pos_emb


def _complex_tables(table_format, heads):
    rotate = _q_and_k_without_axis(table_format, heads)

    def apply_rotary_emb(xq, xk, freqs_cis):
        return rotate(xq, xk, freqs_cis.real, freqs_cis.imag)

    return apply_rotary_emb


def _complex_tables_of_vision(table_format, heads):
    rotate = _q_and_k_without_axis(table_format, heads)

    def vision_apply_rotary_emb(query, key, freqs_ci):
        return rotate(query, key, freqs_ci.real, freqs_ci.imag)

    return vision_apply_rotary_emb


def _with_memory_tokens(table_format, _):
    def apply_rotary_pos_emb_2d(q, k, cos, sin, num_k_exclude_rope=0, repeat_freqs_k=False):
        last = k.shape[-2] - num_k_exclude_rope
        first, others = k[..., :last, :], k[..., last:, :]
        frames = last // q.shape[-2] if repeat_freqs_k else 1
        cos_k, sin_k = (table.repeat(*[1] * (table.ndim - 2), frames, 1) for table in (cos, sin))
        first = rotate_by_tables([first], cos_k, sin_k, table_format)[0] if last else first
        return rotate_by_tables([q], cos, sin, table_format)[0], torch.cat((first, others), -2)

    return apply_rotary_pos_emb_2d


def _with_groups_of_memory_tokens(table_format, _):
    def apply_rotary_pos_emb_2d_cross_attn(q, k, cos, sin, cos_k, sin_k, num_k_exclude_rope=0, repeat_freqs_k=1):
        last = k.shape[-2] - num_k_exclude_rope
        (q,) = rotate_by_tables([q], cos, sin, table_format)
        groups = k[..., :last, :].unflatten(-2, (repeat_freqs_k, -1))
        first = groups.shape[-2] - cos_k.shape[-2]  # the first tokens of each group are not rotated
        if last:
            (ends,) = rotate_by_tables([groups[..., first:, :]], cos_k.unsqueeze(-3), sin_k.unsqueeze(-3), table_format)
            groups = torch.cat((groups[..., :first, :], ends), -2)
        return q, torch.cat((groups.flatten(-3, -2), k[..., last:, :]), -2)

    return apply_rotary_pos_emb_2d_cross_attn


APPLY_FACTORIES: dict[tuple[str, ...], Callable[[TableFormat, int | None], Callable[..., Any]]] = {
    ("q", "k", "cos", "sin", "unsqueeze_dim"): _q_and_k,
    ("q", "k", "cos", "sin", "position_ids", "unsqueeze_dim"): _q_and_k_with_positions,
    ("q", "k", "cos", "sin"): _q_and_k_without_axis,
    ("q", "k", "cos", "sin", "kwargs"): _last_tokens,
    ("q", "k", "cos", "sin", "num_k_exclude_rope", "repeat_freqs_k"): _with_memory_tokens,
    ("q", "k", "cos", "sin", "cos_k", "sin_k", "num_k_exclude_rope", "repeat_freqs_k"): _with_groups_of_memory_tokens,
    ("x", "cos", "sin", "unsqueeze_dim"): _x,
    ("x", "cos", "sin", "position_ids", "unsqueeze_dim"): _x_with_positions,
    ("xq", "xk", "freqs_cis"): _complex_tables,
    ("query", "key", "freqs_ci"): _complex_tables_of_vision,
}
ARRAY_NAMES = ("q", "k", "x", "xq", "xk", "query", "key")
TABLE_NAMES = ("cos", "sin", "cos_k", "sin_k", "freqs_cis", "freqs_ci")


class ClassRewriter:
    """Rewrites the classes of one model, and remembers what it has rewritten and compared.

    Attributes
    ----------
    formats : dict
        For each source file of transformers, the formats of the tables that its rotary modules make.
    files_with_apply : set
        The source files whose apply functions have been replaced.
    classes : dict
        For each class, the class that its modules get; the same class if nothing is replaced.
    rewritten_functions : dict
        The same for functions.
    replacements : dict
        The apply functions of rope_xp, by the function of transformers and its source file.
    """

    def __init__(self, who: str, rotaries: Iterable[Rotary]):
        self.who = who
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

    def class_of(self, module: Any) -> type:
        """The class that a module gets: rewritten if its forward calls an apply function, else its own."""
        cls = type(module)
        if cls not in self.classes:
            try:
                with float32_on_cpu():
                    self.classes[cls] = self._rewritten_class(cls)
            except Exception as error:  # unknown code may raise anything
                raise ValueError(
                    f"{self.who}: every module must be one that can be patched; got {class_path(module)}: {error}"
                ) from error
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
                raise ValueError(
                    f"{self.who}: every module must be one that can be patched; got {class_path(rotary.original)}, "
                    "whose tables no method of the model applies"
                )

    def rewritten(self, function: Any) -> Any:
        """A function with the same code that calls apply functions of rope_xp, directly or through other functions.

        It is the same function if it calls none.
        """
        if function in self.rewritten_functions:
            return self.rewritten_functions[function]
        self.rewritten_functions[function] = function  # ends the recursion of functions that call each other
        module_globals, found = function.__globals__, {}
        for name in names_used_by(function).intersection(module_globals):
            value = module_globals[name]
            if APPLY_NAME.match(name) and callable(value):
                found[name] = self.replacement_for(name, value, module_globals["__name__"])
            elif isinstance(value, types.FunctionType) and value.__module__ == function.__module__:
                found[name] = self.rewritten(value)
        found = {name: value for name, value in found.items() if value is not module_globals[name]}
        cells = [self._rewritten_cell(cell) for cell in function.__closure__ or ()]
        if found or any(new is not old for new, old in zip(cells, function.__closure__ or ())):
            self.rewritten_functions[function] = copy_with_globals(function, found, cells)
        return self.rewritten_functions[function]

    def _rewritten_cell(self, cell: Any) -> Any:
        """The closure cell of a decorator, with its function rewritten."""
        try:
            value = cell.cell_contents
        except ValueError:  # it is empty
            return cell
        if not isinstance(value, types.FunctionType):
            return cell
        function = self.rewritten(value)
        return cell if function is value else types.CellType(function)

    def replacement_for(self, name: str, original: Any, file: str) -> Any:
        """The apply function of rope_xp that gives the same results, for some format of tables and axis of heads."""
        self.files_with_apply.add(file)
        if (original, file) in self.replacements:
            return self.replacements[original, file]
        names = tuple(_parameters(original))
        if names not in APPLY_FACTORIES:
            raise ValueError(f"{name}({', '.join(names)}) has parameters that are not known")
        if file not in self.formats:
            raise ValueError(f"{name} in {file} applies tables that no rotary module of this file makes")
        errors = []
        for table_format, heads in product(_with_other_layouts(self.formats[file]), (-2, 1, None)):
            function = APPLY_FACTORIES[names](table_format, heads)
            errors.append(largest_difference(original, function, table_format))
            if errors[-1] <= ROTATION_TOLERANCE:
                self.replacements[original, file] = function
                return function
        raise ValueError(f"{name} differs from that of rope_xp by {min(errors):.2g}")


def copy_with_globals(function: Any, found: dict[str, Any], cells: Iterable[Any]) -> Any:
    """A copy of a function that finds other values under some global names.

    Its globals are only the names that it uses, without `__name__`: torch.compile would look up that module.
    """
    module_globals = function.__globals__
    names = {"__builtins__", "__package__", *names_used_by(function)}
    copied = names & module_globals.keys() - {"__name__"}
    own_globals = {name: module_globals[name] for name in copied} | found
    new = types.FunctionType(
        function.__code__, own_globals, function.__name__, function.__defaults__, tuple(cells) or None
    )
    new.__kwdefaults__ = function.__kwdefaults__
    for name in ("__module__", "__qualname__", "__doc__", "__annotations__"):
        setattr(new, name, getattr(function, name))
    vars(new).update(vars(function))
    return new


def largest_difference(original: Any, replacement: Any, table_format: TableFormat) -> float:
    """The largest difference between two apply functions, over the arguments for which `original` keeps the shapes.

    Infinite if there are no such arguments.
    """
    random = torch.Generator().manual_seed(0)
    errors = []
    parameters = _parameters(original)
    arrays, tables_of = ([name for name in parameters if name in names] for names in (ARRAY_NAMES, TABLE_NAMES))
    for width in (2 * table_format.pairs, 2 * table_format.pairs + 2):
        for tables in ((2, 5), (1, 5), (5,)):
            angles = torch.rand(*tables, table_format.pairs, generator=random, **FLOAT32_ON_CPU) * 6
            both, others = (table_format.to_upstream(each.cos(), each.sin()) for each in (angles, 2 * angles))
            given = dict(zip(tables_of, (both,) if table_format.is_complex else (*both, *others)))
            for shapes, more in _example_arguments(parameters, arrays):
                xs = {
                    name: torch.rand(*shape, width, generator=random, **FLOAT32_ON_CPU) * 1.4 - 0.7
                    for name, shape in shapes.items()
                }
                expected = _results(original, xs | given | more)
                if [tuple(y.shape) for y in expected] != [tuple(x.shape) for x in xs.values()]:
                    continue  # no model passes such arguments
                result = _results(replacement, xs | given | more)
                if [y.shape for y in result] != [x.shape for x in xs.values()]:
                    return float("inf")
                errors += [(y - z).abs().max() for y, z in zip(expected, result)]
    return float(torch.stack(errors).max()) if errors else float("inf")  # NaN if any difference is


def _with_other_layouts(formats: list[TableFormat]) -> list[TableFormat]:
    """The formats, and then the same with other layouts, for code that the config does not use, or an indexer."""
    others = [
        table_format._replace(rotation=table_format.rotation._replace(read=read, write=write))
        for table_format in formats
        if table_format.rotation.blocks == 1
        for read, write in READ_WRITE.values()
        if (read, write) != (table_format.rotation.read, table_format.rotation.write)
    ]
    return [*formats, *others]


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function, or of a module that the decorator of the package `kernels` made of it."""
    return inspect.signature(getattr(function, "forward", function)).parameters


def _example_arguments(
    parameters: Mapping[str, inspect.Parameter], arrays: list[str]
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Shapes of arrays without their channels, and other arguments."""
    for shape in ((2, 3, 5), (2, 5, 3), (5, 3), (2, 3, 7)):
        more: dict[str, Any] = {}
        if parameters.keys() >= {"x", "position_ids"}:
            more["position_ids"] = torch.zeros(*shape[:2], 2, dtype=torch.int64)
        yield dict.fromkeys(arrays, shape), more
        if "unsqueeze_dim" in parameters:
            for dim in (1, 2):
                yield dict.fromkeys(arrays, shape), {**more, "unsqueeze_dim": dim}
    if arrays == ["q", "k"]:
        if parameters["k"].default is None:
            yield {"q": (2, 3, 5)}, {}
        yield {"q": (2, 3, 2), "k": (2, 3, 5)}, {}
    if "num_k_exclude_rope" in parameters:
        kind = type(parameters["repeat_freqs_k"].default)  # an int (how often) or a bool (whether)
        for first, last, frames in product((0, 2), (0, 2), (1, 2)):
            more = {"num_k_exclude_rope": last, "repeat_freqs_k": frames if kind is int else frames > 1}
            yield {"q": (2, 3, 5), "k": (2, 3, (first + 5) * frames + last)}, more
        yield {"q": (2, 3, 5), "k": (2, 3, 2)}, {"num_k_exclude_rope": 2}


def _results(function: Any, arguments: dict[str, Any]) -> tuple[Any, ...]:
    """The results of a function; empty if it refuses the shapes."""
    try:
        result = function(**arguments)
    except (RuntimeError, IndexError, ValueError):
        return ()
    return result if isinstance(result, tuple) else (result,)


def names_used_by(function: Any) -> set[str]:
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
