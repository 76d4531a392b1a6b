"""Plant the mistakes that RoPE implementations make, one at a time, and see that the suite notices each.

Run: `python tests/mutants.py`. A mutant is a copy of the installed package with some text replaced; the suite tests it
on NumPy and on array-api-strict, whose arrays can also be learned frequencies.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

TESTS = Path(__file__).parent

# name: (file, text that stands there exactly once, what it becomes)
MUTANTS = {
    "the other pairing": [
        ("rotation.py", 'if layout == "half":', 'if layout != "half":'),
        ("rotation.py", 'axis=-2 if layout == "half" else -1', 'axis=-1 if layout == "half" else -2'),
    ],
    "rotation by the opposite angle": [
        (
            "rotation.py",
            "first * cos - second * sin, second * cos + first * sin",
            "first * cos + second * sin, second * cos - first * sin",
        )
    ],
    "another base": [("frequencies.py", "Decimal(base)", "Decimal(2 * base)")],
    "exponent without the factor of two": [("frequencies.py", "-2 * Decimal", "-1 * Decimal")],
    "exponent over head_dim instead of rotary_dim": [
        (
            "embedding.py",
            "inv_freq = geometric(base, rotary_dim)\n",
            "inv_freq = geometric(base, head_dim)[: rotary_dim // 2]\n",
        )
    ],
    "frequencies counted from one": [("frequencies.py", "ratio**j", "ratio ** (j + 1)")],
    "sine and cosine exchanged": [("angles.py", "        return SinCos(sin, cos)", "        return SinCos(cos, sin)")],
    "positions counted from one": [("positions/sequence.py", "else like) + offset", "else like) + offset + 1")],
    "phases that drift": [("angles.py", 'if phase == "float32":', 'if phase in ("exact", "float32"):')],
    "arithmetic in the dtype of x": [
        ("rotation.py", "backends.astype(rotated, sin.dtype)", "rotated"),
        (
            "rotation.py",
            "sin, cos = _align(who, sin, x, seq_dim), _align(who, cos, x, seq_dim)",
            "sin, cos = (backends.astype(_align(who, t, x, seq_dim), x.dtype) for t in (sin, cos))",
        ),
    ],
    "the heads' axis taken for the sequence": [
        ("rotation.py", "axis = checks.axis(who, seq_dim, x)", "axis = x.ndim - 2")
    ],
    "attention factor applied again by shift": [
        ("embedding.py", "self._unscaled(who, moves, k)", "self.sincos(moves, like=k)")
    ],
    "padding not counted out": [("positions/sequence.py", "backends.cumulative_sum(tokens) - 1", "tokens * 0")],
    "a carry dropped from the phase": [("phases.py", " + (carry >> 16)", "")],
    "negative positions taken for positive": [
        ("phases.py", "positions = positions[..., None]", "positions = abs(positions[..., None])")
    ],
    "float32 returned for half precision turned back": [
        (
            "rotation.py",
            "turned = backends.astype(turned, x.dtype)",
            "turned = turned if inverse else backends.astype(turned, x.dtype)",
        )
    ],
    "the fraction of a position dropped": [("phases.py", "+ _phase_of_part(part, turns, bits)", "")],
    "a mask of numbers compared with one": [("positions/sequence.py", "real=False) != 0", "real=False) == 1")],
    "equality without the width": [
        ("embedding.py", "for each in fields(self)}\n        if not", "for each in fields(self)[1:]}\n        if not")
    ],
    "batch axes behind the sequence": [("rotation.py", "len(batch) <= axis and ", "")],
    "learned frequencies without their sign": [
        ("phases.py", "< 0.0, -products, products", "< 0.0, products, products")
    ],
    "an unknown layout let through": [("rotation.py", 'checks.one_of(who, "layout", layout, LAYOUTS)\n', "\n")],
}


def suite(package_parent):
    """Run the suite on NumPy with the package of a folder, and return pytest's exit code and last line."""
    environment = {**os.environ, "PYTHONPATH": str(package_parent)}
    options = ["-x", "-q", "--xp=numpy", "--xp=strict", "-p", "no:cacheprovider"]
    command = [sys.executable, "-P", "-m", "pytest", *options, str(TESTS)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=package_parent)
    return run.returncode, (run.stdout.strip().splitlines() or [run.stderr])[-1]


def main():
    source = Path(find_spec("rope_xp").origin).parent
    unnoticed = []
    for name, replacements in {"no mistake": [], **MUTANTS}.items():
        with tempfile.TemporaryDirectory() as folder:
            package = shutil.copytree(source, Path(folder, "rope_xp"))
            for file, old, new in replacements:
                text = (package / file).read_text()
                if text.count(old) != 1:
                    sys.exit(f"{name}: {old!r} must stand once in {file}; it stands {text.count(old)} times")
                (package / file).write_text(text.replace(old, new))
            code, last = suite(folder)
        right = code == (1 if replacements else 0)
        print(f"{'ok' if right else 'UNNOTICED' if replacements else 'BROKEN':10}{name:46}{last}", flush=True)
        if not right:
            unnoticed.append(name)
    if unnoticed:
        sys.exit(f"{len(unnoticed)} of {len(MUTANTS)} mutants went unnoticed, or the suite is red by itself")


if __name__ == "__main__":
    main()
