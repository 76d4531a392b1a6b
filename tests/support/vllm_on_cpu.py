"""vLLM's Python without its libraries: `prepare` unzips the wheel, and `install` makes it importable on the CPU."""

import importlib.abc
import importlib.machinery
import re
import sys
import types
import zipfile
from pathlib import Path

# Compiled packages of which the imported modules use only the names.
REPLACED = ("xgrammar",)


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


class Names(types.ModuleType):
    """A module with every name, each an empty class."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Replaced(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `REPLACED` and their submodules."""

    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in REPLACED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Names(spec.name)

    def exec_module(self, module):
        """Nothing: a `Names` is complete."""


def install(folder):
    """Put the unzipped wheel on the path."""
    if not (Path(folder) / "vllm" / "__init__.py").exists():
        raise FileNotFoundError(f"{folder} must have the wheel of vLLM, unzipped: run `nox -s tests-vllm`")
    sys.path.insert(0, str(folder))
    sys.meta_path.insert(0, Replaced())


if __name__ == "__main__":
    prepare(*sys.argv[1:])
