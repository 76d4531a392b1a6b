"""How much a reader of the package must hold: counts of its code, each with an upper bound.

Run: `python tests/tools/size.py`. It fails if a number is above its bound in `BOUNDS`: lower the bound when a change
makes a number smaller. What is counted:

- files, lines of code (without docstrings, comments and empty lines), lines of docstrings;
- `Any` in annotations;
- names of modules that occur twice, apart from `__init__`;
- small functions that are called once: a body under five lines without its docstring, and one mention of the name
  besides its definition. Public functions, methods of classes and overloads do not count;
- modules that `import rope_xp` loads;
- the files that the first call of `rope(q, positions=p, seq_dim=1)` enters, and the functions that a second identical
  call by tables, by positions, and of `sincos` enters, all without numba.
"""

import ast
import collections
import json
import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "rope_xp"
BOUNDS = Path(__file__).with_suffix(".json")
# Calls of Python functions of the package, in a process of its own, without numba.
CALLS = """
import json, sys
sys.modules["numba"] = None  # its import fails
import numpy as np
import rope_xp
modules = [name for name in sys.modules if name.partition(".")[0] == "rope_xp"]
rope = rope_xp.RotaryEmbedding(head_dim=128, layout="half", base=10_000.0)
q, k, p = np.ones((1, 1, 32, 128), np.float32), np.ones((1, 1, 8, 128), np.float32), np.asarray([7])
folder = rope_xp.__path__[0]
def entered(call):
    found = []
    def trace(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            found.append(frame.f_code.co_filename)
    sys.setprofile(trace)
    call()
    sys.setprofile(None)
    return found
first = entered(lambda: rope(q, positions=p, seq_dim=1))
sincos = rope.sincos(p, like=q)
calls = {
    "tables": lambda: rope(q, k, sincos=sincos, seq_dim=1),
    "positions": lambda: rope(q, k, positions=p, seq_dim=1),
    "sincos": lambda: rope.sincos(p, like=q),
}
found = {"modules loaded": len(modules), "files of the first call": len(set(first))}
for name, call in calls.items():
    call()
    found[f"functions entered, {name}"] = len(entered(call))
print(json.dumps(found))
"""


def measured():
    """The counts of the package."""
    files = sorted(PACKAGE.rglob("*.py"))
    found = collections.Counter(files=len(files))
    names = collections.Counter(file.stem for file in files if file.stem != "__init__")
    mentions, small = collections.Counter(), []
    for file in files:
        text = file.read_text()
        nodes = [*ast.walk(ast.parse(text))]
        documented = [node for node in nodes if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))]
        docstrings = [node.body[0] for node in documented if ast.get_docstring(node, clean=False)]
        of_docstrings = {line for each in docstrings for line in range(each.lineno, each.end_lineno + 1)}
        lines = [line.strip() for number, line in enumerate(text.split("\n"), 1) if number not in of_docstrings]
        of_code = [line for line in lines if line and not line.startswith("#")]
        annotations = [getattr(node, name, None) for node in nodes for name in ("annotation", "returns")]
        parts = [part for each in filter(None, annotations) for part in ast.walk(each)]
        found["lines of code"] += len(of_code)
        found["lines of docstrings"] += len(of_docstrings)
        found["Any in annotations"] += sum(getattr(part, "id", None) == "Any" for part in parts)
        mentions.update(re.findall(r"\w+", "\n".join(of_code)))
        for node in nodes[0].body:
            body = [each for each in getattr(node, "body", []) if each not in docstrings]
            if isinstance(node, ast.FunctionDef) and body and body[-1].end_lineno - body[0].lineno < 4:
                small.append(node)
    found["names of modules that occur twice"] = sum(count > 1 for count in names.values())
    found["small functions called once"] = sum(
        each.name.startswith("_") and mentions[each.name] == 2 and not each.decorator_list for each in small
    )
    run = subprocess.run([sys.executable, "-P", "-c", CALLS], capture_output=True, text=True, check=True)
    return {**found, **json.loads(run.stdout)}


def main():
    bounds, found = json.loads(BOUNDS.read_text()), measured()
    for name, number in found.items():
        print(f"{name}: {number} (at most {bounds[name]})")
    above = [name for name, number in found.items() if number > bounds[name]]
    return f"above its bound: {', '.join(above)}" if above else 0


if __name__ == "__main__":
    sys.exit(main())
