"""An extension of Griffe, which reads the docstrings for the reference."""

import re

import griffe

# A line that a description follows: `x : array, "*batch seq heads dim"`.
TYPE = re.compile(r'^(?!>>>).*".*$(?=\n {4}\S)', re.MULTILINE)
# `{"transformers"}`: Griffe takes the first choice for the default.
CHOICES = re.compile(r'(?<=: )\{("[^{}]*")\}')


class PlainTypes(griffe.Extension):
    """Types with quotes are shown as they are written. Griffe takes them for Python, and drops the quotes."""

    def on_object(self, *, obj, **_):
        if obj.docstring:
            # An invisible space: the type is then no Python.
            value = CHOICES.sub(r"\1", obj.docstring.value)
            obj.docstring.value = TYPE.sub(lambda line: line[0].replace('"', '\u200b"', 1), value)
            if obj.is_function or obj.is_class:
                give_own_defaults(obj)

    def on_package(self, *, pkg, **_):
        """The reference shows no private argument."""
        pkg.del_member("embedding.RotaryEmbedding._scaling")


def give_own_defaults(obj):
    """Arguments on one line, `start, step : number`, get the default of each. Griffe gives all that of the first."""
    own = {each.name: each for each in obj.parameters}
    for section in obj.docstring.parsed:
        for each in section.value if section.kind.value == "parameters" else ():
            if each.name in own and own[each.name].default is not None:
                each.value = own[each.name].default
            # Without a type in the docstring, that of the signature.
            if each.name in own and any(each.annotation is other.annotation for other in own.values()):
                each.annotation = own[each.name].annotation
