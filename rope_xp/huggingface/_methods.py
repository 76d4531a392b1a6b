"""The forward of transformers made again with our apply functions, each proven equal to the one that it replaces."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import inspect
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import Any

import torch

from rope_xp._core import kernels
from rope_xp._core.rotation import READ_WRITE, align_tables
from rope_xp.huggingface._float32_on_cpu import PLAIN, float32_on_cpu
from rope_xp.huggingface._kept import class_like, named
from rope_xp.huggingface._rotary import ROTARY, Form, Rotary, is_of_transformers

APPLIES = re.compile("^(vision_)?apply_(rotary|multidimensional_rope)")

# Two rotations in float32 of numbers below 0.7, each with two products and a sum that are rounded.
TURNS_APART = 2 * 3 * 2.0**-24


def turned(xs: list[Any], cos: Any, sin: Any, form: Form) -> list[Any]:
    """Arrays turned by tables as upstream's, with as many axes as they have, or less in front."""
    who, x = "rope_xp.huggingface", xs[0]
    # As wrappers that cast what passes between modules may have cast the tables.
    dtype = torch.promote_types(x.dtype, torch.float32)
    cos, sin = (table.to(dtype)[(None,) * (x.ndim - table.ndim)] for table in form.columns(cos, sin))
    rotation = form.rotation._replace(first_channel=x.shape[-1] - 2 * cos.shape[-1]) if form.is_last else form.rotation
    return kernels.rotate(who, xs, align_tables(who, xs, (sin, cos), -2), rotation)


# Apply functions by the names that upstream's take, as some are called by name: each makes ours, which takes the same,
# from the form of the tables and from the axis of heads that tables lack, for those that are not told. Signatures are
# spelled out, as compilers trace them.


def _queries_and_keys(form, _):
    def apply_rotary_pos_emb(q: Any, k: Any = None, cos: Any = None, sin: Any = None, unsqueeze_dim: int = 1) -> Any:
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        if k is None:
            return turned([q], cos, sin, form)[0]
        if unsqueeze_dim == 1 and q.shape[-2] != k.shape[-2]:  # the last of the tokens, of an assistant
            last = (..., slice(-q.shape[-2], None), slice(None))
            return turned([q], cos[last], sin[last], form)[0], turned([k], cos, sin, form)[0]
        return tuple(turned([q, k], cos, sin, form))

    return apply_rotary_pos_emb


def _with_positions(form, heads):
    own = _queries_and_keys(form, heads)

    def apply_rotary_pos_emb(q, k, cos, sin, position_ids=None, unsqueeze_dim=1):
        return own(q, k, cos, sin, unsqueeze_dim)

    return apply_rotary_pos_emb


def _one(form, _):
    def apply_rotary_pos_emb(x, cos, sin, unsqueeze_dim=1):
        return turned([x], cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim), form)[0]

    return apply_rotary_pos_emb


def _one_with_positions(form, _):
    def apply_multidimensional_rope(x, cos, sin, position_ids, unsqueeze_dim=2):
        return turned([x], cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim), form)[0]

    return apply_multidimensional_rope


def _beside_heads(form, heads):
    def apply_rotary_pos_emb(q, k, cos, sin):
        if heads is not None:
            cos, sin = cos.unsqueeze(heads), sin.unsqueeze(heads)
        return tuple(turned([q, k], cos, sin, form))

    return apply_rotary_pos_emb


def _behind_others(form, _):
    def apply_rotary_pos_emb(q, k, cos, sin, **kwargs):
        first = q.shape[-2] - cos.shape[-2]  # tokens that stay as they are
        rotated = turned([q[..., first:, :], k[..., first:, :]], cos, sin, form)
        return tuple(torch.cat((x[..., :first, :], y), -2) for x, y in zip((q, k), rotated))

    return apply_rotary_pos_emb


def _both_tables(form, heads):
    own = _beside_heads(form, heads)

    def apply_rotary_emb(xq, xk, freqs_cis):
        return own(xq, xk, freqs_cis.real, freqs_cis.imag)

    return apply_rotary_emb


def _both_tables_of_images(form, heads):
    own = _beside_heads(form, heads)

    def vision_apply_rotary_emb(query, key, freqs_ci):
        return own(query, key, freqs_ci.real, freqs_ci.imag)

    return vision_apply_rotary_emb


def _memories(form, _):
    def apply_rotary_pos_emb_2d(q, k, cos, sin, num_k_exclude_rope=0, repeat_freqs_k=False):
        last = k.shape[-2] - num_k_exclude_rope
        first, others = k[..., :last, :], k[..., last:, :]
        frames = last // q.shape[-2] if repeat_freqs_k else 1
        cos_k, sin_k = (table.repeat(*[1] * (table.ndim - 2), frames, 1) for table in (cos, sin))
        first = turned([first], cos_k, sin_k, form)[0] if last else first
        return turned([q], cos, sin, form)[0], torch.cat((first, others), -2)

    return apply_rotary_pos_emb_2d


def _memories_of_groups(form, _):
    def apply_rotary_pos_emb_2d_cross_attn(q, k, cos, sin, cos_k, sin_k, num_k_exclude_rope=0, repeat_freqs_k=1):
        last = k.shape[-2] - num_k_exclude_rope
        q, groups = turned([q], cos, sin, form)[0], k[..., :last, :].unflatten(-2, (repeat_freqs_k, -1))
        first = groups.shape[-2] - cos_k.shape[-2]  # tokens of each group that stay as they are
        if last:
            (ends,) = turned([groups[..., first:, :]], cos_k.unsqueeze(-3), sin_k.unsqueeze(-3), form)
            groups = torch.cat((groups[..., :first, :], ends), -2)
        return q, torch.cat((groups.flatten(-3, -2), k[..., last:, :]), -2)

    return apply_rotary_pos_emb_2d_cross_attn


MAKERS: dict[tuple[str, ...], Callable[[Form, int | None], Callable[..., Any]]] = {
    ("q", "k", "cos", "sin", "unsqueeze_dim"): _queries_and_keys,
    ("q", "k", "cos", "sin", "position_ids", "unsqueeze_dim"): _with_positions,
    ("q", "k", "cos", "sin"): _beside_heads,
    ("q", "k", "cos", "sin", "kwargs"): _behind_others,
    ("q", "k", "cos", "sin", "num_k_exclude_rope", "repeat_freqs_k"): _memories,
    ("q", "k", "cos", "sin", "cos_k", "sin_k", "num_k_exclude_rope", "repeat_freqs_k"): _memories_of_groups,
    ("x", "cos", "sin", "unsqueeze_dim"): _one,
    ("x", "cos", "sin", "position_ids", "unsqueeze_dim"): _one_with_positions,
    ("xq", "xk", "freqs_cis"): _both_tables,
    ("query", "key", "freqs_ci"): _both_tables_of_images,
}
ARRAYS = ("q", "k", "x", "xq", "xk", "query", "key")
TABLES = ("cos", "sin", "cos_k", "sin_k", "freqs_cis", "freqs_ci")


class Methods:
    """What a model's classes have to be made again with, and what has been made and proven of it so far."""

    def __init__(self, who: str, rotaries: Iterable[Rotary]):
        self.who = who
        self.rotaries = list(rotaries)
        self.forms: dict[str, list[Form]] = {}  # of the tables that each file of transformers makes
        for rotary in self.rotaries:
            for home in _homes(rotary):
                known = self.forms.setdefault(home, [])
                known += [form for form in rotary.forms.values() if form not in known]
        self.applied: set[str] = set()
        self.classes: dict[type, type] = {}
        self.made: dict[Any, Any] = {}  # functions made again, or as they were
        self.proven: dict[Any, Any] = {}  # apply functions, by upstream's and the file that names it

    def class_of(self, module: Any) -> type:
        """The class of an object, made again where its forward leads to an apply function."""
        cls = type(module)
        if cls not in self.classes:
            try:
                with float32_on_cpu():
                    self.classes[cls] = self._class(cls)
            except Exception as error:  # whatever code that nobody knows raises
                raise ValueError(
                    f"{self.who}: every part must be one that can be patched; got {named(module)}: {error}"
                ) from error
        return self.classes[cls]

    def _class(self, cls: Any) -> type:
        for base in cls.__mro__:
            forward = vars(base).get("forward")
            if not is_of_transformers(forward):
                if applies := sorted(filter(APPLIES.match, names_in(forward))):
                    raise ValueError(f"its forward, which names {applies[0]}, is not that of transformers")
                continue
            again = self.again(forward)
            if again is not forward:
                if cls.forward is not forward:
                    raise ValueError(f"its forward is not that of {base.__name__}, as transformers has it")
                return class_like(cls, forward=again)
        return cls

    def check_all_are_applied(self) -> None:
        """Tables of ours must come to functions of ours."""
        for rotary in self.rotaries:
            if not self.applied.intersection(_homes(rotary)):
                raise ValueError(
                    f"{self.who}: every part must be one that can be patched; got {named(rotary.original)}, whose "
                    "tables no method of the model applies"
                )

    def again(self, function: Any) -> Any:
        """A function of the same code that finds ours where it names upstream's, itself or through what it calls."""
        if function in self.made:
            return self.made[function]
        self.made[function] = function  # also for those that call each other
        home, found = function.__globals__, {}
        for name in names_in(function).intersection(home):
            value = home[name]
            if APPLIES.match(name) and callable(value):
                found[name] = self.ours(name, value, home["__name__"])
            elif isinstance(value, types.FunctionType) and value.__module__ == function.__module__:
                found[name] = self.again(value)
        found = {name: value for name, value in found.items() if value is not home[name]}
        cells = [self._cell(cell) for cell in function.__closure__ or ()]
        if found or any(new is not old for new, old in zip(cells, function.__closure__ or ())):
            self.made[function] = remade(function, found, cells)
        return self.made[function]

    def _cell(self, cell: Any) -> Any:
        """What a decorator keeps, with functions made again."""
        try:
            value = cell.cell_contents
        except ValueError:  # it is empty
            return cell
        if not isinstance(value, types.FunctionType):
            return cell
        function = self.again(value)
        return cell if function is value else types.CellType(function)

    def ours(self, name: str, theirs: Any, home: str) -> Any:
        """Ours for an apply function, with the form of tables and the axis of heads for which both are equal."""
        self.applied.add(home)
        if (theirs, home) in self.proven:
            return self.proven[theirs, home]
        names = tuple(_parameters(theirs))
        if names not in MAKERS:
            raise ValueError(f"{name}({', '.join(names)}) is no function that is known here")
        if home not in self.forms:
            raise ValueError(f"{name} applies tables of another file than {home}")
        errors = []
        for form, heads in product(_with_other_layouts(self.forms[home]), (-2, 1, None)):
            function = MAKERS[names](form, heads)
            errors.append(difference(theirs, function, form))
            if errors[-1] <= TURNS_APART:
                self.proven[theirs, home] = function
                return function
        raise ValueError(f"{name} differs from ours by {min(errors):.2g}")


def remade(function: Any, found: dict[str, Any], cells: Iterable[Any]) -> Any:
    """A function of the same code that finds other values under some names.

    It knows no other globals than those it names, and not whose they are: torch.compile would look there.
    """
    home = function.__globals__
    names = {"__builtins__", "__package__", *names_in(function)}
    own = {name: home[name] for name in names if name in home and name != "__name__"} | found
    new = types.FunctionType(function.__code__, own, function.__name__, function.__defaults__, tuple(cells) or None)
    new.__kwdefaults__ = function.__kwdefaults__
    for name in ("__module__", "__qualname__", "__doc__", "__annotations__"):
        setattr(new, name, getattr(function, name))
    vars(new).update(vars(function))
    return new


def difference(theirs: Any, ours: Any, form: Form) -> float:
    """The largest difference of an apply function and ours, wherever theirs keeps the shape; infinite if nowhere."""
    random = torch.Generator().manual_seed(0)
    errors = []
    parameters = _parameters(theirs)
    arrays, tables_of = ([name for name in parameters if name in names] for names in (ARRAYS, TABLES))
    for width in (2 * form.pairs, 2 * form.pairs + 2):
        for tables in ((2, 5), (1, 5), (5,)):
            angles = torch.rand(*tables, form.pairs, generator=random, **PLAIN) * 6
            both, others = (form.of(each.cos(), each.sin()) for each in (angles, 2 * angles))
            given = dict(zip(tables_of, (both,) if form.is_complex else (*both, *others)))
            for shapes, more in _cases(parameters, arrays):
                xs = {
                    name: torch.rand(*shape, width, generator=random, **PLAIN) * 1.4 - 0.7
                    for name, shape in shapes.items()
                }
                result = _results(theirs, xs | given | more)
                if [tuple(y.shape) for y in result] != [tuple(x.shape) for x in xs.values()]:
                    continue  # nothing that a model does
                own = _results(ours, xs | given | more)
                if [y.shape for y in own] != [x.shape for x in xs.values()]:
                    return float("inf")
                errors += [(y - z).abs().max() for y, z in zip(result, own)]
    return float(torch.stack(errors).max()) if errors else float("inf")  # which NaN does not get past


def _with_other_layouts(forms: list[Form]) -> list[Form]:
    """Forms, and then such tables for other pairs: of the branch that a config does not take, or of an indexer."""
    others = [
        form._replace(rotation=form.rotation._replace(read=read, write=write))
        for form in forms
        if form.rotation.blocks == 1
        for read, write in READ_WRITE.values()
        if (read, write) != (form.rotation.read, form.rotation.write)
    ]
    return [*forms, *others]


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    """What a function takes; with the package `kernels`, a decorator makes a module of it."""
    return inspect.signature(getattr(function, "forward", function)).parameters


def _cases(parameters: Mapping[str, inspect.Parameter], arrays: list[str]) -> Iterator[tuple[dict[str, Any], Any]]:
    """Shapes of arrays, but for their channels, and what else is given."""
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
        kind = type(parameters["repeat_freqs_k"].default)  # how often, or whether
        for first, last, frames in product((0, 2), (0, 2), (1, 2)):
            more = {"num_k_exclude_rope": last, "repeat_freqs_k": frames if kind is int else frames > 1}
            yield {"q": (2, 3, 5), "k": (2, 3, (first + 5) * frames + last)}, more
        yield {"q": (2, 3, 5), "k": (2, 3, 2)}, {"num_k_exclude_rope": 2}


def _results(function: Any, arguments: dict[str, Any]) -> tuple[Any, ...]:
    """Results, or none where the shapes do not fit."""
    try:
        result = function(**arguments)
    except (RuntimeError, IndexError, ValueError):
        return ()
    return result if isinstance(result, tuple) else (result,)


def names_in(function: Any) -> set[str]:
    """The names in a function and in those that it defines."""
    if not isinstance(function, types.FunctionType):
        return set()
    names, codes = set(), [function.__code__]
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return names


def _homes(rotary: Rotary) -> list[str]:
    """The files that a rotary module's classes come from."""
    return [cls.__module__ for cls in type(rotary.original).__mro__ if ROTARY.search(cls.__name__)]
