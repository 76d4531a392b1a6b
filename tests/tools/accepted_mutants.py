"""Generated mutants that no test has to notice, and the reason of each."""

import re
from pathlib import Path

# The module's name, and its line with the change in braces: {{before~>after}}. The reason is below it.
TABLE = r"""
sections: if counts {{!=~>>}} sizes:
    Pairs left over follow the first section, so that counts that differ are always the greater tuple.
exact_phases: steps = (offset + (1 {{<<~>//}} (step - 1))) >> step
    The remainder is at most one step instead of half a step. The split stays exact except for 2^-33.
angles: return sin {{*~>%}} cos_change + cos * sin_change, cos * cos_change - sin * sin_change
    NumPy has no derivatives, and gets there never; on PyTorch,
    test_gradients_of_learned_frequencies_and_real_positions fails.
reading: if message {{==~>is}} str(error):
    An error with one argument gives the same string again each time; a message that is not shortened is that one.
prompts: if positions.max(initial={{0~> 1}}) >= 2**31:
    The number stands for a prompt without tokens; each one below 2**31 does.
prompts: positions = np.zeros((axes, *types.shape), dtype="float64" if dtype {{=~><}}= "float32" else "int64")
    The other dtype is int32, which is the greater string.
sequence: if not (libraries.is_host(first) or (isinstance(seq, int) and seq <{{=~>}} 1)):
    The branch only keeps sums from wrapping; for one token there is nothing to keep.
sequence: if not (libraries.is_host(first) or (isinstance(seq, int) and seq <= {{1~>0}})):
    The branch only keeps sums from wrapping; for one token there is nothing to keep.
exact_phases: words = libraries.from_numbers(self._host[bits], like=like, dtype=xp.int32 if bits {{=~><}}= 32 else xp.int64)
    There are 32 and 64 bits, no fewer.
by_length: kept_fraction = float(revolutions >{{~>=}} self.high_freq_factor)
    At the boundary the other branch gives 1 too.
grids: counts = [positions.shape[{{0~> -1}}] for positions in axis_positions]
    Positions along an axis have one axis.
tables: if removed is not None and factor is not None and factor == removed.resolved_attention_factor != {{1~>2}}.0:
    No scaling has a factor of 2, and a factor of 1 that is left behind changes nothing.
angles: return sin {{*~>&}} cos_change + cos * sin_change, cos * cos_change - sin * sin_change
    NumPy has no derivatives; on PyTorch, test_gradients_of_learned_frequencies_and_real_positions fails.
sequence: if boundaries[-1] >= 2**{{31~> 30}}:
    Only a row of 2^30 tokens shows it, which takes 4 GB.
exact_phases: carry = (lower_middle & 0xFFFF) + (upper_low & {{0xFFFF~>65534}}) + ((lower_low >> 16) & 0xFFFF)
    It changes phases by 2^-32 of a revolution, for one position in 65,536.
prompts: extent = max(height, width) if compat else cells.max(initial=-{{1~> 0}}) + 1
    The number stands for a grid without cells, which is refused before.
layers: count = layers_of(keys) or (layer + 1 if isinstance(layer, int) else {{0~>1}})
    The count of layers is asked for again where a family's types need it.
exact_phases: return libraries.namespace(self._inv_freq).reshape(self._inv_freq[self._axis, ...], (-{{1~> 2}},))
    NumPy takes any negative number for the size that is left.
layers: return self.block.name {{=~>>}}= DEFAULT_BLOCK_NAME
    No other name of a block is a greater string.
layers: return not isinstance(block, Mapping) or block.get("rope_theta", {{1~>2}}) is not None
    Only None differs from both numbers.
exact_phases: integer = xp.int32 if bits == 3{{2~>1}} else xp.int64
    Integers of 64 bits hold the same numbers.
tables: table = table.astype("float64" if {{~>not }}in_float64 else "float32", copy=False)
    NumPy converts once more at the end; on JAX without 64 bits, tests of tables from NumPy fail.
angles: derivative = libraries.is_real(positions) or {{not~>}} frequencies.are_floats
    NumPy has no derivatives; on PyTorch, test_gradients_of_learned_frequencies_and_real_positions fails.
exact_phases: for _ in {{range(x.ndim)~>[]}}:
    NumPy's arrays broadcast without axes added; array libraries that do not are tested elsewhere.
sequence: if isinstance(total, int) and total > 1 << (bits - {{1~>2}}):
    Only a row of 2^30 tokens shows it, which takes 4 GB.
angles: {{*~>/}},
    The function is private, and each call names these arguments.
alignment: return size is None {{or~>and}} other is None or size == other
    NumPy knows all its sizes; those of ndonnx may be unknown, and test_ndonnx fails.
angles: return sin * cos_change + cos {{*~>^}} sin_change, cos * cos_change - sin * sin_change
    NumPy has no derivatives; on PyTorch, test_gradients_of_learned_frequencies_and_real_positions fails.
angles: derivative = libraries.is_real(positions) {{or~>and}} not frequencies.are_floats
    NumPy has no derivatives; on PyTorch, test_gradients_of_learned_frequencies_and_real_positions fails.
angles: local = frequencies if learned is {{~>not }}None else exact_phases.Frequencies(learned)
    Only for positions that are a DTensor of PyTorch.
plan: widest = next((array for array in arrays if libraries.dtype_name(array.dtype) == "float64"), arrays[{{0~> -1}}])
    Arrays other than float64 have float32 tables, and all arrays have one library and device.
reading: like = ", ".join(get_close_matches(model_type[:{{100~> 99}}], FAMILIES)) or "no known name"
    No known name is long enough to be similar to 99 letters.
keys: return message if len(message) < 1000 else f"{message[:600]} ... {message[-{{300~> 301}}:]}"
    One letter more of a long message, which still has fewer than 1,000.
layers: count = layers_of(keys) or (layer + 1 if isinstance(layer, int) else {{0~>-1}})
    The count of layers is asked for again where a family's types need it.
description: why_not_faster = kernels.why_not_faster(x, kernel) if rope.kernel {{==~>>}} "fastest" else ""
    It takes a program without numba: test_numba_asked_for_must_be_installed of test_kernels fails, which is not run.
embedding: example = ", such as YarnScaling(...)" if kind {{is~>==}} Scaling else ""
    Classes are equal only to themselves.
exact_phases: def values(self, {{*~>/}}, like: object, dtype: object) -> Any:
    The method is private, and each call names these arguments.
exact_phases: count = {{11~>12}} if bits == 32 else 15  # bytes after the point: those of the words, and three more for the carry
    It changes the last of 64 bits, by 2^-64 of a revolution per position, for less than one frequency in 100,000.
exact_phases: def __init__(self, inv_freq: Any, shape: tuple[int, ...], axis: int = {{0~>1}}):
    The axis is left out only with floats, whose rows do not read it.
plan: leading, shape = _shape_of_positions("positions", positions, rope.axes, arrays[{{0~> -1}}])
    Only the library and device are read, which are those of all arrays.
plan: are_integers = positions is None or {{not~>}} libraries.is_real(positions)
    No kernel computes angles for NumPy; tests/triton tests the kernel of a GPU that does.
plan: is_plain = rope._frequencies.is_single_row and rope.phase == "exact" {{and~>or}} rope.xpos is None
    No kernel computes angles for NumPy; tests/triton tests the kernel of a GPU that does.
plan: seq_axis = {{0~>-1}}
    The axis is read only without positions, and is that of the arrays then.
tables: rates = libraries.with_axes(libraries.namespace(rates), rates, (*[1] * (tokens.ndim - {{1~>2}}), *rates.shape))
    NumPy's arrays broadcast without axes added; array libraries that do not are tested elsewhere.
tables: same_kind = type(table) {{is~>==}} type(x) and table.dtype == dtype and libraries.on_one_device(table, x)
    Classes are equal only to themselves.
by_length: return sqrt(1.0 + log(self.factor or {{1~>2}}.0) / log(self.original_max_position_embeddings))
    Without a factor, an attention factor or magnitudes must be given, so that this line is not reached.
grids: if len(values) {{!=~>is not}} len(sizes):
    CPython has one object for each small number, and arrays have fewer axes than 257.
prompts: first = np.flatnonzero(np.diff(types, prepend={{-~>~}}1))
    The number only has to differ from every type, and types are not negative.
first_position: angle, edge = remainder(start, tau), acos(min(least, {{1~>2}}.0))
    A cosine is at most 1, so that a greater number was found at position 0 already.
first_position: if a.growth is None {{or~>and}} b.growth is None:
    Arrays are compared next, and None is equal to no array.
first_position: CHUNK, LAST_TRIED = {{8192~>8191}}, 2**20
    It decides how many positions are tried at once.
first_position: roundoff = max(2.0 ** -SIGNIFICANT_BITS.get(each.phase, {{64~>65}}) for each in (a, b))
    Exact phases have neither error; 64 bits stand for them.
extension: new_angles = sum({{0.0~> -1.0}} < trained * w < min(2 * pi, to * v * (1.0 - 1e-9)) for w, v in zip(frequencies, scaled))
    A pair that is not rotated has the same angle, 0, before and after.
extension: if choice.least_divisor is None {{or~>and}} choice.greatest_divisor is None:
    Both are None, or neither is.
explanation: elif rope.scaling is None and length >{{~>=}} longest:
    A wavelength is no whole number of tokens.
explanation: f"The config does not state the base ({assumed[{{0~> -1}}].key}), and {USUAL_BASE:,.0f} is the {assumed[0].source}. "
    One key has that row.
explanation: sources = [each.source for each in rope._provenance.defaults if each.key {{==~><=}} ORIGINAL]
    No other default is equal to another key.
explanation: return ", ".join(f"{first}" if first {{==~>is}} last else f"{first}-{last}" for first, last in ranges)
    The two ends of a range of one number are one object.
widths: layers_stated = found.get("layers", ({{0~> 1}}, ""))[0]
    A format is found by the tensor of a layer.
findings: return None if first is {{~>not }}None else first.layout, [("embedding: differs between layers", why)]
    Without it, the layout is that of the family, which its layers share.
comparison: if one.precision {{==~>is}} other.precision:
    CPython has one object for each of the names.
layers: if not found or (self.layer is None and any(each != found[{{0~> -1}}] for each in found)):
    If one of them differs from the first, one differs from the last.
attention: return max(min(TOKENS, MAX_NUMBERS // max(head_dim, {{1~>0}})), 1)
    A head has two channels at least.
first_position: if step * 2.0**{{63~> 64}} < limit:
    Both numbers stand for steps that no position makes visible.
findings: return None if {{~>not }}first is None else first.layout, [("embedding: differs between layers", why)]
    Without it, the layout is that of the family, which its layers share.
buffers: if len(values) != tensor.shape[{{0~> -1}}] or not all(0.0 <= value < inf for value in values) or values[0] == 0.0:
    The shape has one axis.
buffers: fitted = exp(min(pairs * sum(pair * minus_log for pair, minus_log in found) / weight, {{700.0~>701.0}}))  # least squares
    Both numbers are far beyond every base, and keep `exp` finite.
extension: if not trained {{or~>and}} longest is None:
    Both are None, or neither is.
mlx: if isinstance(rule, ProportionalScaling) and rope.rotary_dim {{!=~><}} rope.head_dim:
    No more channels are rotated than there are.
progressions: context.prec = {{40~>39}}
    Results are rounded to 17 digits.
by_length: length = max(self.seq_len or {{0~>1}}, self.max_position_embeddings)
    The other number is at least 1.
by_length: if len(getattr(self, name)) {{!=~>is not}} len(unscaled):
    CPython has one object for each small number, and a head has fewer than 257 pairs.
progressions: context.prec = {{40~>41}}
    Results are rounded to 17 digits.
memory: if wide.min() > -(2.0**{{16~> 15}}) and wide.max() < 2.0**16:  # neither infinite nor NaN
    The other way gives the same numbers.
alignment: xp, tables = libraries.namespace(pairs[0][{{0~> -1}}]), []
    Both tables of a pair belong to one library.
checks: changed = (narrow != x) & (x {{==~>>=}} x)
    Both are false for NaN alone.
"""  # noqa: E501


def module_name(file):
    """What stays when a module is moved to another folder."""
    path = Path(file)
    return path.stem if path.stem != "__init__" else path.parent.name


def accepted(table):
    """The reasons, by module, line before and line after."""
    found = {}
    for entry in re.split(r"\n(?! )", table.strip()):
        place, _, reason = entry.partition("\n")
        module, _, line = place.partition(": ")
        start, before, after, end = re.fullmatch(r"(.*)\{\{(.*)~>(.*)\}\}(.*)", line).groups()
        found[module, start + before + end, start + after + end] = " ".join(reason.split())
    return found


ACCEPTED = accepted(TABLE)
