"""The rotation that one attention module of transformers applies, as a function of queries and positions.

Its forward runs on the meta device up to its first call of an apply function, which shows the function, its arguments
and the shape of queries. The tables are real.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import inspect
import re
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any, NamedTuple, NoReturn, Self, TypeAlias, TypeGuard

import torch
from torch import Tensor
from torch.nn import Module
from torch.overrides import TorchFunctionMode

from rope_xp.huggingface.guard import Function
from rope_xp.huggingface.rewrite import APPLY_NAME, ClassRewriter, names_used_by
from rope_xp.types import Values

# Names of the parameters of an attention's forward that take tables, positions and hidden states.
TABLES = re.compile("position_embedding|rotary|rope|freqs|^cos$|^sin$")
POSITIONS = ("position_ids", "positions")
STATES = re.compile("hidden|states|^x$|^query$|^key$|^value$")
# Attributes of an attention with the number of channels of its heads.
HEAD_WIDTHS = ("head_dim", "head_size", "attention_head_size")
# A number of tokens that no model has as its number of heads.
TOKENS = 61
# Two rotations of the same numbers in float32 may be rounded in another order, also with a factor of the tables.
ROUNDING = 8 * 2.0**-24


class PositionFormat(NamedTuple):
    """How a rotary module takes positions of several axes, "axes tokens"."""

    axes: int
    arrange: Callable[[Tensor], Tensor]


# The formats that are tried, in this order. A module that computes all axes from one is tried with all axes first.
POSITION_FORMATS = (
    *(PositionFormat(axes, lambda rows: rows[:, None]) for axes in (4, 3, 2)),
    PositionFormat(1, lambda rows: rows),
    *(PositionFormat(axes, lambda rows: rows.T) for axes in (4, 3, 2)),
    *(PositionFormat(axes, lambda rows: rows.T[None]) for axes in (3, 2)),
    PositionFormat(1, lambda rows: rows[0]),
)


class _Tables(tuple):
    """The tables of one layer type. Some attentions get those of all types, by name, and take their own."""

    def __new__(cls, tables: Iterable[Tensor], layer_type: str | None) -> Self:
        made = super().__new__(cls, tables)
        made.layer_type = layer_type
        return made

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        if key != self.layer_type:
            raise KeyError(f"the attention has layer type {key!r}")
        return tuple(self)


class NotReached(ValueError):
    """An attention did not call an apply function: its layer may be one without rotation."""


# A function with the arguments and the named arguments that it was called with.
ApplyCall: TypeAlias = tuple[Function, tuple[Any, ...], Values]


class _Reached(Exception):
    """An apply function was called. `args` is the `ApplyCall`."""


class _KeepTables(TorchFunctionMode):
    """Keeps tables where they are if an attention moves them to the device of its queries."""

    def __torch_function__(
        self, func: Function, types: object, args: tuple[Any, ...] = (), kwargs: Values | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        is_moved = func is Tensor.to and result.is_meta and not args[0].is_meta
        return args[0].to(result.dtype) if is_moved else result


class _Catcher(ClassRewriter):
    """Rewrites functions so that they raise `_Reached` in place of calling an apply function."""

    def replacement_for(self, name: str, original: Function, file: str) -> Function:
        def reached(*args: object, **kwargs: object) -> NoReturn:
            raise _Reached(original, args, kwargs)

        return self.replacements.setdefault((original, file), reached)


def calls_apply_function(cls: type[Module]) -> bool:
    """Whether the forward of a class of modules calls an apply function by its name, also within a decorator."""
    forward = inspect.unwrap(cls.forward)
    return any(APPLY_NAME.match(name) and name in forward.__globals__ for name in names_used_by(forward))


def takes_tables(cls: type[Module]) -> bool:
    """Whether the forward of an attention gets tables. If not, it calls a rotary module of its own."""
    return any(TABLES.search(name) for name in inspect.signature(cls.forward).parameters)


class RotaryAttention(NamedTuple):
    """An attention and the rotary module that makes its tables, both on the meta device."""

    attention: Module
    rotary_name: str
    rotary: Module
    own: str = ""  # the name of the rotary module in the attention, if it is there

    def make_rotary(self) -> Module:
        rotary = type(self.rotary)(self.rotary.config).eval()
        if self.own:
            self.attention.set_submodule(self.own, rotary)
        return rotary


class AttentionRotation:
    """What an attention does to queries at positions: `rotation(x, rows)`."""

    name: str  # of the apply function
    width: int  # of the channels that it gets
    head_width: int
    _states: tuple[int, ...]  # the shape of hidden states, without the tokens
    _token_axes: list[int]

    def __init__(self, pair: RotaryAttention, layer_type: str | None, seq_len: int | None):
        self.pair, self.attention = pair, pair.attention
        self.layer_type, self.seq_len = layer_type, seq_len
        self._forward = _Catcher(()).rewritten(type(self.attention).forward)
        self.format = self._find_format()

    def __call__(self, x: Tensor, rows: Tensor) -> Tensor:
        return self._rotated(x, rows, self.format)

    def _find_format(self) -> PositionFormat:
        """The first format whose tables the attention can apply, and in which each axis changes the result."""
        problems: dict[str, None] = {}
        widths, leading = _input_widths(self.attention), ((1,), (), (1, 1))
        for position_format, width, axes in product(POSITION_FORMATS, widths, leading):
            self._states = (*axes, width)
            try:
                if self._every_axis_matters(position_format):
                    return position_format
                problems["tokens are not rotated by their positions"] = None
            except Exception as error:  # code that is not known may raise anything
                problems[f"{type(error).__name__}: {' '.join(str(error).split()):.120}"] = None
        kind = NotReached if any(NotReached.__name__ in each for each in problems) else ValueError
        ours_first = sorted(problems, key=lambda each: not each.startswith(("ValueError", kind.__name__)))
        raise kind(f"no format of positions can be applied ({'; '.join(ours_first[:2])})")

    def _every_axis_matters(self, position_format: PositionFormat) -> bool:
        rows = torch.zeros(position_format.axes, TOKENS, dtype=torch.int64)
        function, args, kwargs = self._reached(self._tables(rows, position_format), TOKENS)
        arrays = [each for each in (*args, *kwargs.values()) if _is_meta(each)]
        queries, self._token_axes = arrays[0], [_axis_of_tokens(each) for each in arrays]
        self.name = getattr(function, "__name__", type(function).__name__)
        self.width, self.head_width = queries.shape[-1], _head_width(self.attention, queries)
        x = torch.ones(TOKENS, self.width)
        for axis in range(position_format.axes):
            rows[axis] = torch.arange(TOKENS)
            there, back = (self._rotated(x, each, position_format) for each in (rows, rows.flip(1)))
            if torch.allclose(there, there[:1]) or not torch.allclose(there, back.flip(0), atol=ROUNDING):
                return False
            rows[axis] = 0
        return True

    def _tables(self, rows: Tensor, position_format: PositionFormat) -> tuple[_Tables | Tensor, Tensor]:
        rotary, positions = self.pair.make_rotary(), position_format.arrange(rows)
        parameters = inspect.signature(type(rotary).forward).parameters
        if not any(name in parameters for name in POSITIONS):
            names = ", ".join(list(parameters)[1:])
            raise ValueError(f"the forward of {type(rotary).__name__} takes ({names}), and not positions")
        given = [torch.zeros(1), positions]
        given += [self.layer_type] if "layer_type" in parameters and self.layer_type else []
        tables = rotary(*given)
        return tables if isinstance(tables, Tensor) else _Tables(tables, self.layer_type), positions

    def _reached(self, given: tuple[_Tables | Tensor, Tensor], tokens: int) -> ApplyCall:
        try:
            with _KeepTables():
                self._forward(self.attention, **self._arguments(*given, tokens))
        except _Reached as reached:
            return reached.args
        raise NotReached(f"{type(self.attention).__name__} calls no apply function")

    def _arguments(self, tables: _Tables | Tensor, positions: Tensor, tokens: int) -> Values:
        given: Values = {}
        *leading, width = self._states
        states = torch.zeros(*leading, tokens, width, device="meta")
        _, *parameters = inspect.signature(type(self.attention).forward).parameters.items()
        for name, parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                pass
            elif name in POSITIONS:
                given[name] = positions
            elif TABLES.search(name) and parameter.default in (parameter.empty, None):
                given[name] = tables[("cos", "sin").index(name)] if name in ("cos", "sin") else tables
            elif parameter.default is parameter.empty:
                given[name] = states if STATES.search(name) else None
        return given

    def _rotated(self, x: Tensor, rows: Tensor, position_format: PositionFormat) -> Tensor:
        """`x` rotated by the apply function: in place of queries and of keys, which must get the same result."""
        tokens = len(x)
        if self.seq_len is not None:  # one more token, which the rule sees
            x = torch.cat((x, x[:1]))
            rows = torch.cat((rows, torch.full((len(rows), 1), self.seq_len - 1)), 1)
        function, args, kwargs = self._reached(self._tables(rows, position_format), len(x))
        axes = iter(self._token_axes)

        def filled(value: object) -> object:
            if not _is_meta(value):
                return value
            shape = [1] * value.ndim
            shape[-1], shape[next(axes)] = x.shape[1], len(x)
            return x.reshape(shape).clone()

        result = function(*map(filled, args), **{name: filled(each) for name, each in kwargs.items()})
        results = [each for each in (result if isinstance(result, (tuple, list)) else (result,)) if each is not None]
        first, *others = [each.reshape(x.shape) for each in results]
        if not all(torch.allclose(each, first, rtol=0.0, atol=ROUNDING * float(x.abs().max())) for each in others):
            raise ValueError(f"{self.name} rotates queries and keys by different angles")
        return first[:tokens]


def _is_meta(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.is_meta


def _axis_of_tokens(array: Tensor) -> int:
    if TOKENS not in array.shape[:-1]:
        raise ValueError(f"queries and keys must have an axis of {TOKENS} tokens; got {tuple(array.shape)}")
    return array.shape.index(TOKENS)


def _input_widths(attention: Module) -> list[int]:
    """The numbers of channels that hidden states may have: the inputs of projections, that of the config first."""
    of_config = getattr(getattr(attention, "config", None), "hidden_size", None)
    linear = [each.in_features for each in attention.modules() if isinstance(each, torch.nn.Linear)]
    widths = [of_config, *linear] if isinstance(of_config, int) else linear
    if not widths:
        raise ValueError(f"{type(attention).__name__} has no linear projection")
    return list(dict.fromkeys(widths))[:3]


def _head_width(attention: Module, queries: Tensor) -> int:
    """The number of channels of a head, if the queries are the first channels of a wider one; else their width."""
    width = queries.shape[-1]
    stride = min(step for step, size in zip(queries.stride()[:-1], queries.shape) if size > 1)
    is_first = queries.stride(-1) == 1 and queries.storage_offset() == 0
    is_named = any(getattr(attention, name, None) == stride for name in HEAD_WIDTHS)
    return stride if is_first and stride > width and is_named else width
