"""Plant the mistakes that RoPE implementations make, one at a time, and see that the suite notices each.

Run: `python tests/tools/mutants.py`, with names to test only these. `mutation.py` says how a mutant is tested: by the
tests on NumPy and on array-api-strict, whose arrays can also be learned frequencies, that execute the changed lines.
"""

import argparse
import random
import sys
from pathlib import Path

import mutation
from generated_mutants import SOURCE, tests_for

# By file, each mutant: its name, the text that stands there exactly once, and what it becomes.
MUTANTS_BY_FILE = r"""
kernels/reference.py
    the other pairing: if layout == "interleaved": ==> if layout == "half":
    the other pairing: axis=-2 if layout == "half" else -1 ==> axis=-1 if layout == "half" else -2
    rotation by the opposite angle: cos - second * sin, second * cos + first
        ==> cos + second * sin, second * cos - first
    arithmetic in the dtype of x: halves = rotation.read
        ==> sin, cos = (libraries.astype(t, x.dtype) for t in (sin, cos))\n    halves = rotation.read
    float32 returned for half precision turned back: [libraries.astype(rotated, x.dtype)]
        ==> [rotated if rotation.inverse else libraries.astype(rotated, x.dtype)]
    blocks paired across: (*leading, blocks, 2, count // blocks) ==> (*leading, 2, blocks, count // blocks)
    the first channels in place of the last: rotation.first_channel : end] ==> : end - rotation.first_channel]
    the row after the last taken for one: (positions < libraries.size_of(table, 0)) ==> (positions <= table.shape[0])
    rows from the end: known = (positions >= 0) ==> known = (positions >= -table.shape[0])
    rows of the table before: tables.append(tables[-1] if shared else ==> tables.append(tables[-1] if index else
comparison/measures.py
    a pair found apart too late: max(ceil((beginning - angle) / step), after + 1)
        ==> max(ceil((beginning - angle) / step) + 1, after + 1)
    a pair that turns back starts ahead: start, step = -start, -step ==> step = -step
identification/behaviour.py
    sines that are swapped turn the same way: quarter * pi / 2 - start, -step ==> quarter * pi / 2 - start, step
identification/search.py
    a value confirmed at any position: if wrong.any():\n                return int
        ==> if False:\n                return int
identification/probe.py
    calls that need not agree: if wrong.any():\n            return _in ==> if False:\n            return _in
frequencies/progressions.py
    another base: Decimal(base) ==> Decimal(2 * base)
    exponent without the factor of two: -2 * Decimal ==> -1 * Decimal
    frequencies counted from one: ratio**j ==> ratio ** (j + 1)
spectrum.py
    exponent over head_dim instead of rotary_dim: _progression(base, rotary_dim,
        ==> _progression(base, span.rotary_dim if sections else span.head_dim - span.first_channel,
explanation.py
    turns of scaled pairs in training: (self.unscaled or self.frequency) <= ==> self.frequency <=
    scaled pairs unseen from the trained length on: (self.divisor or 1.0) * trained ==> trained
explanation.py
    the error of float32 without that of its frequencies: * w.astype(np.float32) ==> * w
explanation.py
    a factor that does not match the lengths: if stated in (extended, original): ==> if stated:
kernels/angles.py
    xPos keys grow too: 1 if role == "query" else -1 ==> 1 if role == "query" else 1
    sine and cosine exchanged: SinCos(libraries.materialized(sin), libraries.materialized(cos)) ==> SinCos(cos, sin)
    phases that drift: if phase == "float32": ==> if phase in ("exact", "float32"):
positions/sequence.py
    positions counted from one: else like) + offset ==> else like) + offset + 1
    padding not counted out: libraries.cumulative_sum(tokens) - 1 ==> tokens * 0
    a mask of numbers compared with one: real=False) != 0 ==> real=False) == 1
    positions beyond int64: last < 2 ** (bits - 1)) ==> last < 2 ** (bits - 1) + (bits == 64) * seq)
    tokens beyond the last boundary: total != numbers[-1]: ==> total < numbers[-1]:
    later chunks in the order of ranks: (2 * (size - 1 - first)) ==> size
    chunks of the row for each sequence: start, (end - start) // chunks, ==> start, total // chunks,
    tokens taken at their positions: positions + start, axis=-1 ==> positions, axis=-1
arrays/alignment.py
    the heads' axis taken for the sequence: axis = checks.axis(seq_dim, x) if ==> axis = x.ndim - 2 if
    batch axes behind the sequence: len(batch) > seq_axis or ==>
    tables of queries for keys of other axes: sin is not last_sin or alignment != last_alignment ==> sin is not last_sin
arrays/signature.py
    a plan for other strides: x.shape, x.strides, x.flags.num ==> x.shape, x.flags.num
    a plan for options of other types: else (kinds, options, ==> else (options,
kernels/plan.py
    rows of tables that need a conversion: check_tables(arrays, sincos, rope.pairs) and checks.are_ready_positions(
        ==> check_tables(arrays, sincos, rope.pairs) or checks.are_ready_positions(
    positions that need a conversion: are_ready = positions is None or checks.are_ready_positions(
        ==> are_ready = True or checks.are_ready_positions(
    the inverse multiplied once more: if plan.divides: ==> if False:
    keys of xPos rotated by the tables of the query: of_keys[0] if of_keys else of_query ==> of_query
    attention factor applied again by shift: sin, cos = TableProgram.of(rope).unscaled(change, k)
        ==> sin, cos = rope.sincos(change, like=k)
    xPos shifted without its decay: over(change, -1, ==> over(change * 0, -1,
    xPos shifted from its centre on: over(change, -1, ==> over(change - rope.xpos.centre, -1,
    attention factor kept by rerotate: rope._scale.inverted(*rope.sincos(positions, like=k, role="key"))
        ==> rope.sincos(positions, like=k, role="key")
    keys rotated back by rerotate: new_sin * cos - new_cos * sin ==> new_cos * sin - new_sin * cos
arrays/exact_phases.py
    a carry dropped from the phase: + (carry >> 16) ==>
    negative positions taken for positive: (of_axis[new_axes], row) ==> (abs(of_axis[new_axes]), row)
    the fraction of a position dropped: + _phase_of_part(part, revolutions, bits) ==>
    learned frequencies without their sign: < 0.0, -products, products ==> < 0.0, products, products
    only the first axis counted: phase = phase + next_phase\n ==> phase = phase + 0 * next_phase\n
    the axes' positions gathered from the first: in zip(columns, self.axis ==> in zip(columns[::-1], self.axis
    xPos subtracted in integers that wrap: positions // 2 - origin // 2 ==> (positions - origin) // 2
embedding.py
    equality without the width: for each in fields(self) if each.compare}\n        if not
        ==> for each in fields(self)[1:] if each.compare}\n        if not
    replaced without its width: given["rotary_dim"] = None ==> pass
sections.py
    axes in another order: return [0, 1] * sizes[0] ==> return [1, 0] * sizes[0]
    an axial progression over all pairs: 2 * sizes[section]) for section ==> width) for section
kernels/reference.py
    written as it was read: read=self.write, write=self.read, inverse ==> inverse
frequencies/by_length.py
    YaRN's ramp inverted: / self.factor * fraction + w * (1.0 - fraction)
        ==> * fraction + w / self.factor * (1.0 - fraction)
    YaRN's ramp held below the pairs: min(last, rotary_dim - 1) ==> min(last, rotary_dim // 2 - 1)
    YaRN's ends always rounded: if self.truncate:\n ==> if True:\n
    one mscale of two enough: if self.mscale and self.mscale_all_dim: ==> if self.mscale or self.mscale_all_dim:
    LongRoPE long from the length on: self.seq_len > self.original ==> self.seq_len >= self.original
    dynamic scaling by the original length: max(self.seq_len or 0, self.max_position_embeddings)
        ==> self.seq_len or self.max_position_embeddings
frequencies/by_factor.py
    proportional over the part: int(self.partial_rotary_factor * rotary_dim // 2)
        ==> int(self.partial_rotary_factor * rotary_dim)
configs/keys.py
    a key of a config lost: if unread: ==> if False:
    a key in other letters: if wanted is not None: ==> if False:
    a key with a wrong letter: if not {*self._ends_of(plain)} & self._ends: ==> if True:
    alibi let through: return value is not None and value is not False ==> return False
configs/reading.py
    NoPE layers rotated: if rope is None or not rotated or ( ==> if rope is None or (
configs/readers/files.py
    a key that stands twice: if len(found) < len(pairs): ==> if False:
configs/readers/gguf_file.py
    columns before rows: shape[::-1] ==> shape
    data of tensors without alignment: end + -end % alignment ==> end
identification/probe.py
    a table kept for each shape taken for an index: return "first call" if ==> return "index" if
    positions of a call in another order: other[np.argsort(OTHER_ORDER)[ORDER]] ==> other
identification/pairs.py
    whole turns lost: total, last = 2 * total + rest, position ==> total, last = wrapped(2 * total + rest), position
    offsets of the slowest pair alone: for w, of_pair in zip(frequencies[order], start[order]):
        ==> for w, of_pair in zip(frequencies[order[:1]], start[order[:1]]):
identification/precision.py
    float32 phases taken for exact ones: "exact": ROUNDOFF["float64"], ==> "exact": ROUNDOFF["float32"],
identification/pairs.py
    the opposite direction: (blocks[..., 1, 0] - blocks[..., 0, 1]) / 2 ==> (blocks[..., 0, 1] - blocks[..., 1, 0]) / 2
identification/rules.py
    divided pairs taken for kept ones: _bases(measured, of_last_pairs=True) ==> _bases(measured)
identification/search.py
    state that a long call leaves: again = self._matrices() ==> again = matrices
    a value that explains nothing: close = 6.0 * ==> close = np.inf *
checkpoints/contents.py
    offsets from the start of the file: 8 + length, size) ==> 0, size)
checkpoints/findings.py
    bfloat16 taken for float32: "BF16": ("f", 2.0**-8, 0.0) ==> "BF16": ("f", 2.0**-19, 0.0)
    Meta's projections taken for those of transformers: return "interleaved", "names ==> return "half", "names
checkpoints/projections.py
    keys and values taken for heads of keys: both // 2, ==> both,
configs/block.py
    a scaling rule dropped: scaling: Any = rule(**values) ==> return None
    a legacy base ignored: base = default if base is None else base\n ==> base = default\n
    a default that is not marked: if base is None or (config.block_is_default and outer is None): ==> if False:
    mscale of DeepSeek alone: if rope_type == "deepseek_yarn": ==> if False:
    local layers scaled: block=Keys("no block", kept), ==>
configs/readers/params_json.py
    Meta paired by halves: TEXT = Family(pairing=INTERLEAVED, ==> TEXT = Family(
    Llama 2 with the base of Llama 3: 500_000.0 if is_llama3 else 10_000.0 ==> 500_000.0
    Mistral's alpha and beta exchanged: yarn.get("beta"), "beta_slow": yarn.get("alpha")
        ==> yarn.get("alpha"), "beta_slow": yarn.get("beta")
configs/readers/megatron_args.py
    layers that are not rotated taken for rotated ones: [1 - each for each in skipped] ==> list(skipped)
configs/readers/gguf_metadata.py
    factors of a file multiplied: tuple(w / factor for ==> tuple(w * factor for
    the attention factor of llama.cpp alone: np.float32(resolved * attention) ==> np.float32(attention)
configs/writers/llama_cpp.py
    the attention factor of YaRN twice: own = rope.attention_factor / tables ==> own = rope.attention_factor
    keys of the file beside arguments: {ATTENTION: 1.0} if file.are_flags else {} ==> {}
    arguments for some layers only: (BASE, TYPE, FACTOR) and file.surely ==> () and file.surely
    betas that no architecture reads: file.require(key, "yarn") ==> pass
    factors of frequencies upside down: unscaled / scaled if scaled ==> scaled / unscaled if scaled
configs/writers/gguf_architectures.py
    pairs of the fourth position: if pair >= 3 * axes[pair % 3] ==> if pair < 0
configs/writers/limits.py
    ends of the ramp not rounded: if rounded != rule.frequencies(rope.base, rope.rotary_dim): ==> if False:
    a larger base forgotten: rope.base, rule.factor, rope.rotary_dim), None ==> rope.base, 1.0, rope.rotary_dim), None
    mscale without mscale_all_dim: rope.attention_factor * rule.get_mscale(all_dims) ==> rope.attention_factor
weights.py
    heads of q for k: if to == "half" else (2, pairs) ==> if to != "half" else (2, pairs)
    heads of any width: * num_heads != size ==> * num_heads < 0
kernels/numba_kernel.py
    compiled rows that rotate the other way: -1 if rotation.inverse else 1 ==> 1 if rotation.inverse else -1
    compiled rows of the first head alone: y += index * job[axis + 2] ==> pass
    a thread's last part left out: while part < parts: ==> while part < parts - 1:
    broadcast tables read on: 0 if given[axis] == 1 else of_array[axis] ==> of_array[axis]
    compiled rows from the end: if 0 <= row < job[record + _TABLE_ROWS]: ==> if row < job[record + _TABLE_ROWS]:
    the compiled row after the last: if 0 <= row < job[record + _TABLE_ROWS]:
        ==> if 0 <= row <= job[record + _TABLE_ROWS]:
    one row of memory for all threads: job[_MEMORY_WORDS] * fetch_and_add(address + 8 * _THREADS)
        ==> 0 * fetch_and_add(address + 8 * _THREADS)
    the next axis with the strides of the innermost: around = max(innermost - 6, record + _RECORD)
        ==> around = innermost
    rows of the next axis beyond its end: min(job[around] - index, (stop - start) // rows ==> min((stop - start) // rows
    axes in one that differ in y: zip(axes[-1][1:], found[1:]) ==> zip(axes[-1][1:2], found[1:2])
kernels/numba_pairs.py
    bfloat16 cut off in place of rounded: _all(words, 0x7FFF) ==> _all(words, 0)
    a NaN carried into its sign: builder.select(is_nan, bits, rounded) ==> rounded
kernels/numpy_kernel.py
    partners in the order of the numbers: halves[1][..., ::-1] ==> halves[1][...]
    the block's remainder left as it was: range(0, length, step) ==> range(0, max(1, length - 1), step)
arrays/memory.py
    float16 rounded with ties down: np.bitwise_and(added, 1 << 28 | 1, out=added)
        ==> np.bitwise_and(added, 1 << 28, out=added)
    numbers too large for their bits: halves.view(np.uint16).max() < 0xF400 ==> True
arrays/threads.py
    errors of threads dropped: if errors: ==> if errors and not errors:
    parts left to nobody: taken.extend(left) ==> pass
arrays/checks.py
    numbers written twice in one place: if step <= extent: ==> if step < 0:
    only neighbours kept apart: extents[number + 1 :] ==> extents[number + 1 : number + 2]
kernels/numba_sincos.py
    far positions without their upper word: position * high + upper * low ==> position * high
    the sign of the next quarter: if quarter & 2 else sin, -cos ==> if quarter & 1 else sin, -cos
    one axis for all pairs: place = axis_of_pair[j] * rows + row ==> place = row
    whole positions read in halves: kind == "int64", axes ==> False, axes
    tables without their factor: s * scale, c * scale ==> s, c
    the last rows left out: while part < parts: ==> while part < parts - (parts > 1):
kernels/numpy_kernel.py
    a low digit without its table: (sizes & _LARGEST_DIGIT) ==> (sizes & _LARGEST_DIGIT - 1)
    the angle of a negative position not negated: -angles[0], angles[0] ==> angles[0], angles[0]
    digits of the place below: _angles(highs, inv_freq, place + 1) ==> _angles(highs, inv_freq, place)
    digits of one number, of the place below: _angles_of_one(highs, inv_freq, place + 1)
        ==> _angles_of_one(highs, inv_freq, place)
    fractions left out: _added((np.sin(rest) ==> (np.sin(0 * rest) + angles[0], angles[1]) or _added((np.sin(rest)
kernels/tables.py
    divided by the attention factor once: (sin / factor / factor, cos / factor / factor)
        ==> (sin / factor, cos / factor)
    growth divided by its square alone: (sin * sin + cos * cos) * greater ==> (sin * sin + cos * cos)
    an attention factor left behind by its scaling: factor == removed.resolved_attention_factor != 1.0 ==> False
    xPos without its centre: difference(positions, self.xpos.centre, like.dtype) ==> positions
arrays/libraries.py
    a mask let through: return None if type(x) in PLAIN or ==> return None if isinstance(x, np.ndarray) or
kernels/__init__.py
    tables of files made otherwise: if libraries.is_host(x):\n        return np.asarray(x)
        ==> if type(x) is np.ndarray:\n        return x
functions.py
    an unknown layout let through: checks.one_of("layout", layout, LAYOUTS)\n ==> \n
"""


def mutants_of(text):
    """Each mutant's replacements by its name: file, text before and text after."""
    found, file = {}, ""
    for line in text.strip().replace("\n        ==>", " ==>").splitlines():
        if not line.startswith(" "):
            file = line
            continue
        name, _, change = line.strip().partition(": ")
        before, _, after = change.replace("\\n", "\n").partition("==>")
        found.setdefault(name, []).append((file, before.strip(" "), after.strip(" ")))
    return found


MUTANTS = mutants_of(MUTANTS_BY_FILE)


def planted(name):
    """A mutant as `mutation.Bench` takes it."""
    texts = {}
    for file, before, after in MUTANTS[name]:
        text = texts.get(file, (SOURCE / file).read_text())
        if text.count(before) != 1:
            sys.exit(f"{name}: {before!r} must stand once in {file}; it stands {text.count(before)} times")
        texts[file] = text.replace(before, after)
    return {"name": name, "texts": texts}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to test; by default all")
    parser.add_argument("--sample", type=int, help="test only so many of them, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=mutation.FOLDER, help="for what is measured")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(MUTANTS):
        parser.error(f"NAME must be a key of MUTANTS; got {', '.join(sorted(unknown))}")
    names = asked.names or list(MUTANTS)
    mutants = [planted(name) for name in names]
    if asked.sample is not None:
        mutants = random.Random(asked.seed).sample(mutants, min(asked.sample, len(mutants)))
    mutation.prepare()
    bench = mutation.Bench(SOURCE, asked.folder)
    files = {file for mutant in mutants for file in mutant["texts"]}
    lines = bench.measure(tests_for("", files if len(mutants) < len(MUTANTS) else None))
    results = bench.test(mutants, lines, budget=300.0)
    unnoticed = [each["name"] for each in results if each["outcome"] == "survived"]
    if unnoticed:
        sys.exit(f"{len(unnoticed)} of {len(mutants)} mutants went unnoticed: {', '.join(unnoticed)}")


if __name__ == "__main__":
    main()
