"""An extension of Griffe, which reads the docstrings for the reference."""

import re

import griffe

# A line that a description follows: `x : array, "*batch seq heads dim"`.
TYPE = re.compile(r'^(?!>>>).*".*$(?=\n {4}\S)', re.MULTILINE)


class PlainTypes(griffe.Extension):
    """Types with quotes are shown as they are written. Griffe takes them for Python, and drops the quotes."""

    def on_object(self, *, obj, **_):
        if obj.docstring:
            # An invisible space: the type is then no Python.
            obj.docstring.value = TYPE.sub(lambda line: line[0].replace('"', '\u200b"', 1), obj.docstring.value)

    def on_package(self, *, pkg, **_):
        """The reference shows no private argument."""
        pkg.del_member("_core.embedding.RotaryEmbedding._scaling")
