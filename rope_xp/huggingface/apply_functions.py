"""Functions with the parameters and results of transformers' apply functions, such as ``apply_rotary_pos_emb``.

`APPLY_SIGNATURES` lists all signatures that are known. Some models pass arguments by name.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from rope_xp.errors import public
from rope_xp.huggingface.guard import FLOAT32_ON_CPU, Function
from rope_xp.huggingface.rotary import TableFormat
from rope_xp.kernels import plan
from rope_xp.types import Values

# Two rotations in float32 of numbers up to 0.5, each with two products and a sum that are rounded.
ROTATION_TOLERANCE = 6 * 2.0**-24
# Sizes of the arrays in which functions are compared. All differ.
BATCH, HEADS, TOKENS = 2, 3, 5

Tensors: TypeAlias = Sequence[Tensor]


@public("rope_xp.huggingface")
def _rotate_tokens(xs: Tensors, cos: Tensor, sin: Tensor, table_format: TableFormat) -> list[Tensor]:
    x, *_ = xs
    # Wrappers that cast arguments of modules may have cast the tables.
    dtype = torch.promote_types(x.dtype, torch.float32)
    cos, sin = (table.to(dtype)[(None,) * (x.ndim - table.ndim)] for table in table_format.to_columns(cos, sin))
    rotation = table_format.rotation
    if table_format.rotates_last:
        rotation = rotation._replace(first_channel=x.shape[-1] - 2 * cos.shape[-1])
    return plan.rotate_by_tables(tuple(xs), (sin, cos), -2, lambda: rotation, len(xs), *rotation)


# The next three functions also rotate arrays by tables, but the numbers of rows and of tokens may differ.


def _rotate_short_queries(xs: Tensors, cos: Tensor, sin: Tensor, table_format: TableFormat) -> list[Tensor]:
    """Rotate queries and keys. In an assistant model, there may be queries of the last tokens only."""
    q, *keys = xs
    if not keys or q.shape[-2] == keys[0].shape[-2]:
        return _rotate_tokens(xs, cos, sin, table_format)
    last = (..., slice(-q.shape[-2], None), slice(None))
    return _rotate_tokens([q], cos[last], sin[last], table_format) + _rotate_tokens(keys, cos, sin, table_format)


def _rotate_last_tokens(xs: Tensors, cos: Tensor, sin: Tensor, table_format: TableFormat) -> list[Tensor]:
    """Rotate the last tokens, which have rows in the tables. The tokens before them stay as they are."""
    first = xs[0].shape[-2] - cos.shape[-2]
    rotated = _rotate_tokens([x[..., first:, :] for x in xs], cos, sin, table_format)
    return [torch.cat((x[..., :first, :], y), -2) for x, y in zip(xs, rotated)]


def _rotate_memory_keys(
    xs: Tensors,
    cos: Tensor,
    sin: Tensor,
    table_format: TableFormat,
    unrotated: int,
    groups: int | None,
    *of_keys: Tensor,
) -> list[Tensor]:
    """Rotate queries, and the keys of a memory: groups of tokens, and then `unrotated` tokens that stay as they are."""
    q, k = xs
    (q_rotated,) = _rotate_tokens([q], cos, sin, table_format)
    end = k.shape[-2] - unrotated
    if end == 0:
        return [q_rotated, k]
    # Without `groups`, each group has as many tokens as the queries. Keys that have their own tables are rotated at the
    # last tokens of each group only.
    sizes = (-1, q.shape[-2]) if groups is None else (groups, -1)
    rotate = _rotate_last_tokens if of_keys else _rotate_tokens
    cos_k, sin_k = (table.unsqueeze(-3) for table in of_keys or (cos, sin))
    (rotated,) = rotate([k[..., :end, :].unflatten(-2, sizes)], cos_k, sin_k, table_format)
    return [q_rotated, torch.cat((rotated.flatten(-3, -2), k[..., end:, :]), -2)]


class ApplyArguments(NamedTuple):
    """The arguments of one call of an apply function, sorted by their meaning."""

    arrays: tuple[Tensor | None, ...]
    tables: tuple[Any, Any]  # cos and sin
    heads_axis: int | None = None  # the axis of the arrays that the tables lack
    rotate: Callable[..., list[Tensor]] = _rotate_tokens
    options: tuple[object, ...] = ()  # more arguments of `rotate`


def parameters_of(function: Function) -> str:
    """The parameters of a function as text, without annotations."""
    # The decorator of the package `kernels` replaces a function by a module.
    parameters = inspect.signature(getattr(function, "forward", function)).parameters.values()
    return str(inspect.Signature([each.replace(annotation=inspect.Parameter.empty) for each in parameters]))


# The parameters of every apply function of transformers that is known, and what they mean.
_CALLS: tuple[Callable[..., ApplyArguments], ...] = (
    lambda q, k, cos, sin: ApplyArguments((q, k), (cos, sin)),
    lambda q, k, cos, sin, unsqueeze_dim=1: ApplyArguments((q, k), (cos, sin), unsqueeze_dim, _rotate_short_queries),
    lambda q, k=None, cos=None, sin=None, unsqueeze_dim=1: ApplyArguments(
        (q, k), (cos, sin), unsqueeze_dim, _rotate_short_queries
    ),
    lambda q, k, cos, sin, position_ids=None, unsqueeze_dim=1: ApplyArguments(
        (q, k), (cos, sin), unsqueeze_dim, _rotate_short_queries
    ),
    lambda q, k, cos, sin, **kwargs: ApplyArguments((q, k), (cos, sin), rotate=_rotate_last_tokens),
    lambda x, cos, sin, unsqueeze_dim=1: ApplyArguments((x,), (cos, sin), unsqueeze_dim),
    lambda x, cos, sin, position_ids, unsqueeze_dim=2: ApplyArguments((x,), (cos, sin), unsqueeze_dim),
    lambda tensor, sin, cos: ApplyArguments((tensor,), (cos, sin)),
    lambda xq, xk, freqs_cis: ApplyArguments((xq, xk), (freqs_cis.real, freqs_cis.imag)),
    lambda query, key, freqs_ci: ApplyArguments((query, key), (freqs_ci.real, freqs_ci.imag)),
    lambda q, k, cos, sin, num_k_exclude_rope=0, repeat_freqs_k=False: ApplyArguments(
        (q, k), (cos, sin), rotate=_rotate_memory_keys, options=(num_k_exclude_rope, None if repeat_freqs_k else 1)
    ),
    lambda q, k, cos, sin, cos_k, sin_k, num_k_exclude_rope=0, repeat_freqs_k=1: ApplyArguments(
        (q, k), (cos, sin), rotate=_rotate_memory_keys, options=(num_k_exclude_rope, repeat_freqs_k, cos_k, sin_k)
    ),
)
APPLY_SIGNATURES = {parameters_of(call): call for call in _CALLS}
ARRAY_NAMES = ("q", "k", "x", "tensor", "xq", "xk", "query", "key")


def equal_function(
    name: str, original: Function, formats: Iterable[TableFormat], heads_axes: Iterable[int | None] = (-2, 1, None)
) -> Function:
    """The apply function of rope_xp that gives the same results as `original`, for one of these formats and axes."""
    signature = parameters_of(original)
    if signature not in APPLY_SIGNATURES:
        raise ValueError(f"the signature {name}{signature} is not known")
    errors = []
    for table_format, heads_axis in product(formats, heads_axes):
        function = apply_function(signature, table_format, heads_axis)
        errors.append(largest_difference(original, function, table_format))
        if errors[-1] <= ROTATION_TOLERANCE:
            return function
    raise ValueError(f"{name} differs from that of rope_xp by {min(errors):.2g}")


def apply_function(signature: str, table_format: TableFormat, heads_axis: int | None) -> Function:
    """An apply function of rope_xp with a signature of `APPLY_SIGNATURES`, for tables that lack the axis of heads."""
    read_arguments = APPLY_SIGNATURES[signature]

    def apply_rotary_pos_emb(*args: Any, **kwargs: Any) -> tuple[Tensor, ...] | Tensor:
        call = read_arguments(*args, **kwargs)
        arrays, (cos, sin) = [array for array in call.arrays if array is not None], call.tables
        axis = heads_axis if call.heads_axis is None else call.heads_axis
        if axis is not None:
            cos, sin = cos.unsqueeze(axis), sin.unsqueeze(axis)
        first, *others = call.rotate(arrays, cos, sin, table_format, *call.options)
        return (first, *others) if others else first

    return apply_rotary_pos_emb


def largest_difference(original: Function, replacement: Function, table_format: TableFormat) -> float:
    errors = []
    for arrays, others in _examples(parameters_of(original), table_format):
        expected = _results(original, arrays | others)
        shapes = [array.shape for array in arrays.values()]
        if [each.shape for each in expected] != shapes:  # no model passes such arguments
            continue
        found = _results(replacement, arrays | others)
        if [each.shape for each in found] != shapes:
            return float("inf")
        errors += [(one - other).abs().max() for one, other in zip(expected, found)]
    return float(torch.stack(errors).max()) if errors else float("inf")  # NaN if any difference is NaN


def _examples(signature: str, table_format: TableFormat) -> Iterator[tuple[Values, Values]]:
    random = torch.Generator().manual_seed(0)
    parameters = inspect.signature(APPLY_SIGNATURES[signature]).parameters
    widths = (2 * table_format.pairs, 2 * table_format.pairs + 2)
    for width, rows in product(widths, ((BATCH, TOKENS), (1, TOKENS), (TOKENS,))):
        angles = torch.rand(*rows, table_format.pairs, generator=random, **FLOAT32_ON_CPU)
        tables = _tables_by_name(angles, table_format)
        given = {name: tables[name] for name in parameters if name in tables}
        for shapes, more in _example_shapes(parameters):
            yield (
                {
                    name: torch.rand(*shape, width, generator=random, **FLOAT32_ON_CPU) - 0.5
                    for name, shape in shapes.items()
                },
                given | more,
            )


def _tables_by_name(angles: Tensor, table_format: TableFormat) -> Values:
    """Tables in the format of transformers, under each name that an apply function may have for them."""
    if table_format.is_complex:
        return dict.fromkeys(("freqs_cis", "freqs_ci"), table_format.to_upstream(angles.cos(), angles.sin()))
    tables = [*table_format.to_upstream(angles.cos(), angles.sin())]
    tables += table_format.to_upstream((2 * angles).cos(), (2 * angles).sin())
    return dict(zip(("cos", "sin", "cos_k", "sin_k"), tables))


def _example_shapes(parameters: Mapping[str, inspect.Parameter]) -> Iterator[tuple[Values, Values]]:
    """Shapes of arrays without their channels, and arguments that are neither arrays nor tables."""
    arrays = [name for name in parameters if name in ARRAY_NAMES]
    more: Values = {"position_ids": torch.zeros(2)} if parameters.keys() >= {"x", "position_ids"} else {}
    axes: list[Values] = [{"unsqueeze_dim": axis} for axis in (1, 2) if "unsqueeze_dim" in parameters]
    shapes = (BATCH, HEADS, TOKENS), (BATCH, TOKENS, HEADS), (TOKENS, HEADS), (BATCH, HEADS, TOKENS + 2)
    for shape, axis in product(shapes, [{}, *axes]):
        yield dict.fromkeys(arrays, shape), more | axis
    if arrays == ["q", "k"]:
        if parameters["k"].default is None:
            yield {"q": (BATCH, HEADS, TOKENS)}, {}
        yield {"q": (BATCH, HEADS, 2), "k": (BATCH, HEADS, TOKENS)}, {}
    if "num_k_exclude_rope" in parameters:
        yield from _example_memories(type(parameters["repeat_freqs_k"].default))


def _example_memories(kind: type) -> Iterator[tuple[Values, Values]]:
    """Shapes of queries and keys of a memory. `repeat_freqs_k` is a number of repetitions, or a bool."""
    for first, last, frames in product((0, 2), (0, 2), (1, 2)):
        keys = (BATCH, HEADS, (first + TOKENS) * frames + last)
        options = {"num_k_exclude_rope": last, "repeat_freqs_k": frames if kind is int else frames > 1}
        yield {"q": (BATCH, HEADS, TOKENS), "k": keys}, options
    yield {"q": (BATCH, HEADS, TOKENS), "k": (BATCH, HEADS, 2)}, {"num_k_exclude_rope": 2}


def _results(function: Function, arguments: Values) -> tuple[Tensor, ...]:
    try:
        result = function(**arguments)
    except (RuntimeError, IndexError, ValueError):
        return ()
    return result if isinstance(result, tuple) else (result,)
