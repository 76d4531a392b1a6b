"""The README's snippets and `typed_user.py`, checked by `mypy --strict` and pyright as strictly.

Run: `python tests/tools/typed_readme.py`, where rope_xp, NumPy, JAX, Flax and PyTorch are installed.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

from pages import README, python_blocks

# As strict as pyright is, but for what other libraries leave unknown, and a last line that shows a value.
PYRIGHT = {
    "typeCheckingMode": "strict",
    "reportUnknownMemberType": False,
    "reportUnusedExpression": False,
    "reportUnnecessaryTypeIgnoreComment": True,
    "enableTypeIgnoreComments": False,
}

# PyTorch's `backward` has no annotations.
MYPY = ("--strict", "--untyped-calls-exclude=torch")
# The names of transformers that the README takes, as its own annotations would fail, and it is large.
TRANSFORMERS = "from typing import Any\n\nLlamaConfig: Any\nLlamaForCausalLM: Any\n"


def main():
    with tempfile.TemporaryDirectory() as folder:
        for number, snippet in enumerate(python_blocks(README)):
            Path(folder, f"snippet_{number}.py").write_text(snippet)
        shutil.copy(Path(__file__).with_name("typed_user.py"), folder)
        Path(folder, "transformers.pyi").write_text(TRANSFORMERS)
        Path(folder, "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
        commands = {
            "mypy": [*MYPY, f"--cache-dir={folder}/.cache", "."],
            "pyright": [f"--pythonpath={sys.executable}", "--project", "."],
        }
        with ThreadPoolExecutor() as pool:
            codes = pool.map(lambda name: _run(name, commands[name], folder), commands)
            failed = [name for name, code in zip(commands, codes) if code]
    if failed:
        sys.exit(f"{' and '.join(failed)}: mistakes in the README's snippets or typed_user.py")


def _run(checker, options, folder):
    return subprocess.run([sys.executable, "-P", "-m", checker, *options], cwd=folder).returncode


if __name__ == "__main__":
    main()
