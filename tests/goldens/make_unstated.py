"""Write unstated.json: what a config that states no rotary key means in each class of transformers.

Run: `python tests/goldens/make_unstated.py`, with the newest transformers. A row is written where the embedding equals
what the class computes (`benchmarks/parity.py` compares both). Keys that do not matter are left out of its config.
"""

import json
import sys
import warnings
from pathlib import Path

import transformers

import rope_xp

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from common import message
from configs import record
from rotary_classes.classes import ROTARY, found, labels, plain, targets
from rotary_classes.outcomes import outcome_of_file
from rotary_classes.reading import as_file


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


def rows_of(target):
    """A row for each layer type of a class whose config states nothing, or no more than the default rule."""
    subject, default = target.subject, target.default
    rest = {key: value for key, value in plain(default).items() if key in target.needs or not ROTARY.search(key)}
    for keys in ({}, {"rope_parameters": {"rope_type": "default"}}):
        config = type(default).from_dict(json.loads(json.dumps({**rest, **keys})))
        for model_type in (default.model_type, *subject.model_types):
            given = {**rest, **keys, **({} if subject.part else {"model_type": model_type})}
            for label in labels(config):
                if outcome_of_file(target, config, given, "no rotary key", label).status == "agrees":
                    file, part = as_file(subject, given)
                    wanted = read(file, part, label)
                    yield {"config": smallest(file, part, label), "part": part, "layer_type": label, "is": wanted}


def main():
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    rows = []
    for each in found():
        for target in targets(*each):
            try:
                rows += rows_of(target)
            except Exception as error:  # upstream's config cannot be made without its rotary keys
                print(f"{target.cls.__name__}: {message(error)}")
    rows = [json.loads(text) for text in sorted({json.dumps(row) for row in rows})]
    record("unstated", rows)
    print(f"transformers {transformers.__version__}: {len(rows)} rows")


if __name__ == "__main__":
    main()
