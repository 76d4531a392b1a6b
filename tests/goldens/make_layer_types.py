"""Write layer_types.json: the types of 13 layers that each config class of transformers fills in by itself.

Run: `python tests/goldens/make_layer_types.py`, with the newest transformers. A row has the types, and the
embedding of each type. A class is left out if its types do not decide the embedding, or if it cannot have 13 layers.
"""

import importlib
import inspect
import pkgutil
import sys
import warnings
from pathlib import Path

import transformers

from rope_xp import from_config

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from configs import record

# The widths that most classes need; 13 layers are no multiple of a usual period.
BARE = {"hidden_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 13}


def classes():
    """Each config class of transformers' models, with its name in configs."""
    for model in pkgutil.iter_modules(transformers.models.__path__):
        try:
            module = importlib.import_module(f"transformers.models.{model.name}.configuration_{model.name}")
        except ImportError:  # a model without a config of its own, or with a dependency that is not installed
            continue
        for found in vars(module).values():
            if inspect.isclass(found) and issubclass(found, transformers.PreTrainedConfig) and found.model_type:
                yield found.model_type, found


def row_of(name, made):
    """The types, and the embedding of each, or None."""
    try:
        types = getattr(made(num_hidden_layers=13), "layer_types", None)
    except Exception:  # of any kind: the class cannot have 13 layers
        return None
    try:
        ropes = [from_config({"model_type": name, **BARE}, layer=layer) for layer in range(13)]
    except (TypeError, ValueError):
        return None
    kinds = {(kind, repr(rope)) for kind, rope in zip(types or (), ropes, strict=False)}
    return (types, dict(sorted(kinds))) if types and len(kinds) == len({*types}) else None


def main():
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    rows = {name: row for name, made in classes() if (row := row_of(name, made)) is not None}
    record("layer_types", dict(sorted(rows.items())))
    print(f"transformers {transformers.__version__}: {len(rows)} rows")


if __name__ == "__main__":
    main()
