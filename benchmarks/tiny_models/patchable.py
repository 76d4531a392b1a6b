"""Whether each rotary class can be patched, tested without a model."""

import importlib
import inspect
from itertools import groupby

from rotary_classes.classes import found, targets

from rope_xp.huggingface.rewrite import APPLY_NAME, ClassRewriter, names_used_by
from rope_xp.huggingface.same_tables import REFUSED, rotary_of


def classes(step=1):
    """For each rotary class of `benchmarks/parity.py`, or some: why it cannot be patched, or an empty string."""
    reasons = {}
    for (folder, file), classes in groupby([*found()][::step], lambda each: each[:2]):
        try:
            module = importlib.import_module(f"transformers.models.{folder}.{file}")
        except ImportError as error:  # a package that this class needs is missing
            reasons |= {name: f"cannot be imported: {error}" for *_, name in classes}
            continue
        # Attention classes are left out: their tables come from another class, or from themselves as in GPT-J.
        names = [name for *_, name in classes if name in REFUSED or not name.endswith("Attention")]
        rotaries = {}
        for name in names:
            reasons[name] = REFUSED.get(name, "")
            if name in REFUSED:
                continue  # do not create it: that may need more than a config
            try:
                target = next(targets(folder, file, name))
                rotaries[name] = rotary_of(target.cls(target.default))
            except Exception as error:  # unknown code may raise anything
                reasons[name] = str(error).rpartition("Embedding: ")[2]
        rewriter = ClassRewriter(rotaries.values())
        try:
            for function in sorted(applied(module)) if rotaries else ():
                rewriter.replacement_for(function, getattr(module, function), module.__name__)
        except ValueError as error:
            reasons |= dict.fromkeys(rotaries, str(error))
    return reasons


def applied(module):
    """The apply functions that classes of a file call."""
    called = set()
    for cls in vars(module).values():
        if isinstance(cls, type) and cls.__module__ == module.__name__:
            called.update(*(names_used_by(inspect.unwrap(each)) for each in vars(cls).values() if callable(each)))
    return {name for name in called.intersection(vars(module)) if APPLY_NAME.match(name)}
