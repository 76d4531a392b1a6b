"""Write unstated.json: what a config that states no rotary key means in each class of transformers.

Run: `python tests/goldens/make_unstated.py`, with the newest transformers. A row is written where the embedding equals
what the class computes (`benchmarks/parity.py` compares both). Keys that do not matter are left out of its config.
"""

import importlib
import importlib.util
import json
import sys
import warnings
from pathlib import Path

import transformers

import rope_xp

HERE = Path(__file__).parent


def load():
    """The benchmark as a module."""
    file = HERE.parents[1] / "benchmarks" / "parity.py"
    spec = importlib.util.spec_from_file_location("benchmarks_parity", file)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(config, part, layer_type):
    """The embedding as text, or the error."""
    try:
        return repr(rope_xp.from_config(config, part=part, layer_type=layer_type))
    except (TypeError, ValueError) as error:
        return str(error)


def smallest(config, part, layer_type):
    """The config without the keys that change nothing, in the part or beside it."""
    wanted = read(config, part, layer_type)
    for key in [key for key in config if key != "rope_parameters"]:
        rest = {other: value for other, value in config.items() if other != key}
        if read(rest, part, layer_type) == wanted:
            config = rest
        elif isinstance(config[key], dict):
            for inner in list(config[key]):
                rest = {**config, key: {k: v for k, v in config[key].items() if k != inner}}
                config = rest if read(rest, part, layer_type) == wanted else config
    return config


def rows_of(parity, module, cls, subject):
    """A row for each layer type of a class whose config states nothing, or no more than the default rule."""
    name = subject.config or parity.annotated(cls)
    needs = subject.needs(module) if callable(subject.needs) else dict(subject.needs)
    default = parity.make(module, name, needs)
    whole = parity.plain(default)
    rest = {key: value for key, value in whole.items() if key in needs or not parity.ROTARY.search(key)}
    for keys in ({}, {"rope_parameters": {"rope_type": "default"}}):
        config = type(default).from_dict(json.loads(json.dumps({**rest, **keys})))
        for model_type in (default.model_type, *subject.also):
            given = {**rest, **keys, **({} if subject.part else {"model_type": model_type})}
            for label in parity.labels(config):
                found = parity.driven(subject, module, cls, name, config, given, "no rotary key", label)
                if found.status == "agrees":
                    file, part = parity.as_file(subject, given)
                    wanted = read(file, part, label)
                    yield {"config": smallest(file, part, label), "part": part, "layer_type": label, "is": wanted}


def main():
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    parity, rows = load(), []
    for folder, file, name in parity.found():
        module = importlib.import_module(f"transformers.models.{folder}.{file}")
        for subject in parity.listed(parity.SUBJECTS.get(name, parity.Subject())):
            try:
                rows += rows_of(parity, module, getattr(module, name), subject)
            except Exception as error:  # upstream's config cannot be made without its rotary keys
                print(f"{name}: {parity.said(error)}")
    texts = sorted({json.dumps(row) for row in rows})
    (HERE / "unstated.json").write_text("[\n" + ",\n".join(texts) + "\n]\n")
    print(f"transformers {transformers.__version__}: {len(texts)} rows")


if __name__ == "__main__":
    main()
