"""Every rotary class, apart from any model: whether it can be patched."""

import importlib
import inspect
from itertools import groupby

from rotary_classes.classes import found, targets

from rope_xp.huggingface._compare_tables import REFUSED, rotary_of
from rope_xp.huggingface._rewrite import APPLY_NAME, ClassRewriter, names_used_by


def classes():
    """Why each rotary class of `benchmarks/parity.py` cannot be patched, or nothing."""
    reasons = {}
    for (folder, file), classes in groupby(found(), lambda each: each[:2]):
        try:
            module = importlib.import_module(f"transformers.models.{folder}.{file}")
        except ImportError as error:  # of a package that this one class needs
            reasons |= {name: f"cannot be imported: {error}" for *_, name in classes}
            continue
        # Without attention: its tables are those of another class, or its own, as of GPT-J.
        names = [name for *_, name in classes if name in REFUSED or not name.endswith("Attention")]
        rotaries = {}
        for name in names:
            reasons[name] = REFUSED.get(name, "")
            if name in REFUSED:
                continue  # before it is made, which may need more than a config
            try:
                target = next(targets(folder, file, name))
                rotaries[name] = rotary_of("patch", target.cls(target.default))
            except Exception as error:  # whatever code that nobody knows raises
                reasons[name] = str(error).rpartition("Embedding: ")[2]
        rewriter = ClassRewriter("patch", rotaries.values())
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
