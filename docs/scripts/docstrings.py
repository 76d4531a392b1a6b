"""An extension of Griffe, which reads the docstrings for the reference."""

import re

import griffe

# A type that a description follows, up to its first quote: `x : array, "*batch seq heads dim"`. Without quotes, up to
# the "or" of a list: `a : config, function or None`.
TYPE = re.compile(r'^(?!>>>)(\S[^"\n]*(?=")|\S[^"\n]*?, [^"\n]*?(?= or ))(.*)(?=\n {4}\S)', re.MULTILINE)
# `{"transformers"}`: Griffe takes the first choice for the default.
CHOICES = re.compile(r'(?<=: )\{("[^{}]*")\}')


class PlainTypes(griffe.Extension):
    """Types are shown as they are written. Griffe takes them for Python: it drops quotes, and adds brackets."""

    def on_object(self, *, obj, **_):
        if obj.docstring:
            # An invisible space: the type is then no Python.
            value = CHOICES.sub(r"\1", obj.docstring.value)
            obj.docstring.value = TYPE.sub(lambda found: f"{found[1]}\u200b{found[2].replace('`', '')}", value)
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
