"""Unzip the Python of vLLM's wheel, without its libraries, so that it can be imported on the CPU.

Run: `python tests/support/vllm_on_cpu.py WHEEL FOLDER`, and put FOLDER on PYTHONPATH: vLLM starts other processes.
"""

import re
import sys
import zipfile
from pathlib import Path

# Compiled packages of which the imported modules use only the names: every name is an empty class.
REPLACED = (
    "xgrammar/__init__.py",
    "xgrammar/testing.py",
    "xgrammar/structural_tag.py",
    "xgrammar/openai_tool_call_schema.py",
)
NAMES = """
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})
"""


def prepare(wheel, folder):
    """Unzip what Python imports. The version says that it is a build for the CPU: else vLLM looks for a GPU."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".py") or ".dist-info/" in name:
                target = Path(folder) / re.sub(r"^(vllm-[\d.]+)\.dist-info", r"\1+cpu.dist-info", name)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))
    for file in Path(folder).glob("vllm-*.dist-info/METADATA"):
        file.write_text(re.sub(r"(?m)^(Version: [\d.]+)$", r"\1+cpu", file.read_text("utf-8"), count=1), "utf-8")
    for name in REPLACED:
        target = Path(folder) / name
        target.parent.mkdir(exist_ok=True)
        target.write_text(NAMES)


if __name__ == "__main__":
    prepare(*sys.argv[1:])
