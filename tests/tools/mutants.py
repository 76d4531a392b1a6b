"""Plant the mistakes that RoPE implementations make, one at a time, and see that the suite notices each.

Run: `python tests/tools/mutants.py`, with names to test only these. A mutant is a copy of the installed package with
some text replaced; the suite tests it on NumPy and on array-api-strict, whose arrays can also be learned frequencies.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path

TESTS = Path(__file__).parents[1]
# Tests that take long and search for mistakes of other kinds.
SLOW = ("numpy/test_faults.py", "core/test_config_fuzz.py")

# name: (file, text that stands there exactly once, what it becomes)
MUTANTS = {
    "the other pairing": [
        ("_core/kernels/reference.py", 'if layout == "interleaved":', 'if layout == "half":'),
        ("_core/kernels/reference.py", 'axis=-2 if layout == "half" else -1', 'axis=-1 if layout == "half" else -2'),
    ],
    "rotation by the opposite angle": [
        (
            "_core/kernels/reference.py",
            "first * cos - second * sin, second * cos + first * sin",
            "first * cos + second * sin, second * cos - first * sin",
        )
    ],
    "another base": [("frequencies/_progressions.py", "Decimal(base)", "Decimal(2 * base)")],
    "exponent without the factor of two": [("frequencies/_progressions.py", "-2 * Decimal", "-1 * Decimal")],
    "exponent over head_dim instead of rotary_dim": [
        (
            "_core/spectrum.py",
            "_progression(who, base, span.rotary_dim, scaling",
            "_progression(who, base, span.rotary_dim if sections else span.head_dim - span.first_channel, scaling",
        )
    ],
    "frequencies counted from one": [("frequencies/_progressions.py", "ratio**j", "ratio ** (j + 1)")],
    "sine and cosine exchanged": [
        (
            "_core/angles.py",
            "    return SinCos(backends.materialized(sin), backends.materialized(cos))",
            "    return SinCos(cos, sin)",
        )
    ],
    "positions counted from one": [("positions/_sequence.py", "else like) + offset", "else like) + offset + 1")],
    "phases that drift": [("_core/angles.py", 'if phase == "float32":', 'if phase in ("exact", "float32"):')],
    "arithmetic in the dtype of x": [
        (
            "_core/kernels/reference.py",
            "    halves = rotation.read",
            "    sin, cos = (backends.astype(table, x.dtype) for table in (sin, cos))\n    halves = rotation.read",
        ),
    ],
    "the heads' axis taken for the sequence": [
        ("_core/alignment.py", "axis = checks.axis(who, seq_dim, x) if", "axis = x.ndim - 2 if")
    ],
    "attention factor applied again by shift": [
        ("_core/calls.py", "sincos = self._unscaled_sincos(who, change, k)", "sincos = self.sincos(change, like=k)")
    ],
    "padding not counted out": [("positions/_sequence.py", "backends.cumulative_sum(tokens) - 1", "tokens * 0")],
    "a carry dropped from the phase": [("_core/phases.py", " + (carry >> 16)", "")],
    "negative positions taken for positive": [
        ("_core/phases.py", "(of_axis[new_axes], row)", "(abs(of_axis[new_axes]), row)")
    ],
    "float32 returned for half precision turned back": [
        (
            "_core/kernels/reference.py",
            "parts = [backends.astype(rotated, x.dtype)]",
            "parts = [rotated if rotation.inverse else backends.astype(rotated, x.dtype)]",
        )
    ],
    "the fraction of a position dropped": [("_core/phases.py", "+ _phase_of_part(part, revolutions, bits)", "")],
    "a mask of numbers compared with one": [("positions/_sequence.py", "real=False) != 0", "real=False) == 1")],
    "equality without the width": [
        (
            "_core/embedding.py",
            "for each in fields(self)}\n        if not",
            "for each in fields(self)[1:]}\n        if not",
        )
    ],
    "batch axes behind the sequence": [("_core/alignment.py", "len(batch) > seq_axis or ", "")],
    "learned frequencies without their sign": [
        ("_core/phases.py", "< 0.0, -products, products", "< 0.0, products, products")
    ],
    "axes in another order": [("_core/axes.py", "return [0, 1] * sizes[0]", "return [1, 0] * sizes[0]")],
    "an axial progression over all pairs": [("_core/axes.py", "2 * sizes[section]) for section", "width) for section")],
    "only the first axis counted": [
        ("_core/phases.py", "phase = phase + next_phase\n", "phase = phase + 0 * next_phase\n")
    ],
    "the axes' positions gathered from the first": [
        (
            "_core/phases.py",
            "for column, axis in zip(columns, self.axis",
            "for column, axis in zip(columns[::-1], self.axis",
        )
    ],
    "blocks paired across": [
        (
            "_core/kernels/reference.py",
            "(*leading, blocks, 2, count // blocks)",
            "(*leading, 2, blocks, count // blocks)",
        )
    ],
    "written as it was read": [
        ("_core/kernels/pair_rotation.py", "read=self.write, write=self.read, inverse", "inverse")
    ],
    "the first channels in place of the last": [
        ("_core/kernels/reference.py", "x[..., rotation.first_channel : end]", "x[..., : end - rotation.first_channel]")
    ],
    "YaRN's ramp inverted": [
        (
            "frequencies/_by_length.py",
            "w / self.factor * fraction + w * (1.0 - fraction)",
            "w * fraction + w / self.factor * (1.0 - fraction)",
        )
    ],
    "YaRN's ramp held below the pairs": [
        ("frequencies/_by_length.py", "min(last, rotary_dim - 1)", "min(last, rotary_dim // 2 - 1)")
    ],
    "YaRN's ends always rounded": [("frequencies/_by_length.py", "        if self.truncate:\n", "        if True:\n")],
    "one mscale of two enough": [
        (
            "frequencies/_by_length.py",
            "if self.mscale and self.mscale_all_dim:",
            "if self.mscale or self.mscale_all_dim:",
        )
    ],
    "LongRoPE long from the length on": [
        ("frequencies/_by_length.py", "self.seq_len > self.original", "self.seq_len >= self.original")
    ],
    "dynamic scaling by the original length": [
        (
            "frequencies/_by_length.py",
            "max(self.seq_len or 0, self.max_position_embeddings)",
            "self.seq_len or self.max_position_embeddings",
        )
    ],
    "proportional over the part": [
        (
            "frequencies/_by_factor.py",
            "int(self.partial_rotary_factor * rotary_dim // 2)",
            "int(self.partial_rotary_factor * rotary_dim)",
        )
    ],
    "xPos keys grow too": [("_core/calls.py", '1 if role == "query" else -1', '1 if role == "query" else 1')],
    "a key of a config lost": [("_core/config/keys.py", "if unread:", "if False:")],
    "a scaling rule dropped": [("_core/config/scaling.py", "scaling = rule(**values)", "return None")],
    "a legacy base ignored": [
        ("_core/config/scaling.py", "    base = default if base is None else base\n", "    base = default\n")
    ],
    "NoPE layers rotated": [("_core/config/__init__.py", "if rope is None or not rotated:", "if rope is None:")],
    "a default that is not marked": [
        ("_core/config/scaling.py", "if base is None or (config.block_is_default and outer is None):", "if False:")
    ],
    "a key that stands twice": [("_core/config/source.py", "if len(found) < len(pairs):", "if False:")],
    "a key in other letters": [("_core/config/keys.py", " or known_spelling(key, plain)", "")],
    "alibi let through": [("_core/config/keys.py", "return value is not None and value is not False", "return False")],
    "mscale of DeepSeek alone": [("_core/config/scaling.py", 'if rope_type == "deepseek_yarn":', "if False:")],
    "local layers scaled": [("_core/config/block.py", 'block=Keys("no block", kept), ', "")],
    "heads of q for k": [("_core/weights.py", 'if to == "half" else (2, pairs)', 'if to != "half" else (2, pairs)')],
    "bfloat16 cut off in place of rounded": [("_core/kernels/numba_kernel.py", "word(0x7FFF)", "word(0)")],
    "compiled rows that rotate the other way": [
        ("_core/kernels/numba_kernel.py", "-1 if inverse else 1", "1 if inverse else -1")
    ],
    "compiled rows of the first head alone": [
        ("_core/kernels/numba_kernel.py", "y_row += index * axes[axis, 2]", "pass")
    ],
    "a thread's last part left out": [
        ("_core/kernels/numba_kernel.py", "while part < parts:", "while part < parts - 1:")
    ],
    "broadcast tables read on": [("_core/kernels/numba_kernel.py", "each > 1 and table_shape[axis] == 1", "False")],
    "the rotated value rotated again in place": [
        (
            "_core/kernels/blocked.py",
            "partner = _join_pairs(second",
            "xp.multiply(numbers, tables[0], out=rotated)\n    partner = _join_pairs(second",
        )
    ],
    "the block's remainder left as it was": [
        (
            "_core/kernels/blocked.py",
            "for start in range(0, shape[0], max(1, step))",
            "for start in range(0, shape[0] - 1, max(1, step))",
        )
    ],
    "numbers written twice in one place": [("_core/checks.py", "if step <= extent:", "if step < 0:")],
    "a low digit without its table": [
        ("_core/kernels/host_sincos.py", "tokens & ((1 << _BITS) - 1)", "tokens & (1 << _BITS) - 2")
    ],
    "the row after the last taken for one": [
        ("_core/kernels/reference.py", "(positions < backends.size_of(table, 0))", "(positions <= table.shape[0])")
    ],
    "rows from the end": [
        ("_core/kernels/reference.py", "known = (positions >= 0)", "known = (positions >= -table.shape[0])")
    ],
    "rows of the table before": [
        (
            "_core/kernels/reference.py",
            "tables.append(tables[-1] if shared else",
            "tables.append(tables[-1] if index else",
        )
    ],
    "the inverse multiplied once more": [
        (
            "_core/calls.py",
            "self._scale.inverted(angles) if inverse else angles, rotation)",
            "angles, rotation)",
        )
    ],
    "divided by the attention factor once": [
        (
            "_core/table_scale.py",
            "table / self.attention_factor / self.attention_factor",
            "table / self.attention_factor",
        )
    ],
    "growth divided by its square alone": [
        ("_core/table_scale.py", "(sin * sin + cos * cos) * greater", "(sin * sin + cos * cos)")
    ],
    "an attention factor left behind by its scaling": [
        ("_core/table_scale.py", "factor == removed.resolved_attention_factor != 1.0", "False")
    ],
    "replaced without its width": [("_core/embedding.py", 'given["rotary_dim"] = None', "pass")],
    "tables of queries for keys of other axes": [
        ("_core/alignment.py", "if sin is not last_sin or alignment != last_alignment:", "if sin is not last_sin:")
    ],
    "only neighbours kept apart": [
        (
            "_core/checks.py",
            "enumerate(extents[number + 1 :], number + 1)",
            "enumerate(extents[number + 1 : number + 2], number + 1)",
        )
    ],
    "xPos without its centre": [
        ("_core/table_scale.py", "difference(positions, self.xpos.centre, like.dtype)", "positions")
    ],
    "xPos shifted without its decay": [
        ("_core/calls.py", "self._scale.over(change, -1, sincos.sin)", "self._scale.over(change * 0, -1, sincos.sin)")
    ],
    "xPos shifted from its centre on": [
        (
            "_core/calls.py",
            "self._scale.over(change, -1, sincos.sin)",
            "self._scale.over(change - self._scale.xpos.centre, -1, sincos.sin)",
        )
    ],
    "xPos subtracted in integers that wrap": [
        ("_core/phases.py", "positions // 2 - origin // 2", "(positions - origin) // 2")
    ],
    "a NaN carried into its sign": [
        (
            "_core/kernels/numba_kernel.py",
            'builder.select(builder.fcmp_unordered("uno", number, number), quiet, rounded)',
            "rounded",
        )
    ],
    "a mask let through": [
        (
            "_core/backends/__init__.py",
            "return None if type(x) in PLAIN or",
            "return None if isinstance(x, np.ndarray) or",
        )
    ],
    "tables of files made otherwise": [
        (
            "_core/kernels/__init__.py",
            "if backends.is_host(x):\n        return np.asarray(x)",
            "if type(x) is np.ndarray:\n        return x",
        )
    ],
    "positions beyond int64": [
        ("positions/_sequence.py", "last < 2 ** (bits - 1))", "last < 2 ** (bits - 1) + (bits == 64) * seq)")
    ],
    "tokens beyond the last boundary": [("positions/_sequence.py", "total > numbers[-1]:", "False:")],
    "heads of any width": [("_core/weights.py", "* num_heads != size", "* num_heads < 0")],
    "an unknown layout let through": [("_core/rotation.py", 'checks.one_of(who, "layout", layout, LAYOUTS)\n', "\n")],
}


def suite(package_parent, files):
    """Run the suite on NumPy with the package of a folder, and return pytest's exit code and last line.

    The tests named like a changed file or its folder come first. Those of the kernels, which take longest, run where
    nothing or arrays as memory were changed, and elsewhere not at all.
    """
    parts = {part for file in files for part in Path(file).with_suffix("").parts}
    if parts & {"reference", "rotation"}:
        parts = {"rotation"}
    elif parts & {"backends", "checks"}:
        parts.add("kernels")
    elif parts & {"spectrum", "alignment", "calls", "table_scale"}:
        parts.add("embedding")
    first = [file for part in sorted(parts) if (file := TESTS / "core" / f"test_{part}.py").exists()]
    slow = SLOW if not parts or "kernels" in parts else (*SLOW, "core/test_kernels.py")
    left_out = {*first, *(TESTS / file for file in slow)}
    every = [file for folder in ("core", "numpy") for file in sorted(TESTS.glob(f"{folder}/test_*.py"))]
    tests = [*first, *(file for file in every if file not in left_out)]  # of a folder, pytest would sort them
    environment = {**os.environ, "PYTHONPATH": str(package_parent)}
    options = ["-x", "-q", "--xp=numpy", "--xp=strict", "-p", "no:cacheprovider"]
    command = [sys.executable, "-P", "-m", "pytest", *options, *map(str, tests)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=package_parent)
    return run.returncode, (run.stdout.strip().splitlines() or [run.stderr])[-1]


def result(source, name, replacements):
    """Whether a mutant is caught, or the package itself all right, and the line that says so."""
    with tempfile.TemporaryDirectory() as folder:
        package = shutil.copytree(source, Path(folder, "rope_xp"))
        for file, old, new in replacements:
            text = (package / file).read_text()
            if text.count(old) != 1:
                return False, f"{name}: {old!r} must stand once in {file}; it stands {text.count(old)} times"
            (package / file).write_text(text.replace(old, new))
        code, last = suite(folder, [file for file, *_ in replacements])
    right = code == 1 and " failed" in last if replacements else code == 0
    return right, f"{'ok' if right else 'UNNOTICED' if replacements else 'BROKEN':10}{name:46}{last}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to test; by default all")
    parser.add_argument("--sample", type=int, help="test only so many of them, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(MUTANTS):
        parser.error(f"NAME must be a key of MUTANTS; got {', '.join(sorted(unknown))}")
    names = asked.names or list(MUTANTS)
    if asked.sample is not None:
        names = random.Random(asked.seed).sample(names, min(asked.sample, len(names)))
    mutants = {"no mistake": [], **{name: MUTANTS[name] for name in names}}
    source = Path(find_spec("rope_xp").origin).parent
    unnoticed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for right, line in pool.map(partial(result, source), mutants, mutants.values()):
            print(line, flush=True)
            unnoticed += not right
    if unnoticed:
        sys.exit(f"{unnoticed} of {len(names)} mutants went unnoticed, or the suite is red by itself")


if __name__ == "__main__":
    main()
