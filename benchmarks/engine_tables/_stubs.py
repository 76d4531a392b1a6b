"""Packages that an engine imports and that its rotary embeddings do not need, such as kernels for CUDA."""

import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
import types


class Anything:
    """A value with which a module can be imported: every attribute, call and index gives another one."""

    def __init__(self, *_, **__):
        pass

    def __call__(self, *values, **names):
        """A decorator returns its function."""
        is_decorator = len(values) == 1 and not names and callable(values[0])
        return values[0] if is_decorator else Anything()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __getitem__(self, _):
        return self

    def __or__(self, _):
        return self

    __ror__ = __or__

    def __mro_entries__(self, _):
        return (object,)

    def __get_pydantic_core_schema__(self, *_):
        from pydantic_core import core_schema

        return core_schema.any_schema()


class Module(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class Version(importlib.metadata.Distribution):
    """What asks for the version of the package reads a new one."""

    def __init__(self, name):
        self.package = name

    def read_text(self, filename):
        is_metadata = filename == "METADATA"
        return f"Metadata-Version: 2.1\nName: {self.package}\nVersion: 99.0\n" if is_metadata else None

    def locate_file(self, path):
        return path


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names):
        self.names = names

    def find_spec(self, name, _path=None, _target=None):
        found = name.partition(".")[0] in self.names
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if found else None

    def find_distributions(self, context=importlib.metadata.DistributionFinder.Context()):  # noqa: B008
        name = (context.name or "").replace("-", "_")
        return [Version(name)] if name in self.names else []

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        pass


def stub(*names):
    """Let these packages be imported without what they do. Packages that are installed are imported as they are."""
    sys.meta_path.append(Finder(set(names)))
