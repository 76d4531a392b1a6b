"""Every rotated part of every composite config, read from the whole file and as a separate config."""

from copy import deepcopy

import transformers
from common import message

import rope_xp

from .classes import ROTARY, labels, plain
from .deviations import REFUSAL
from .reading import FAMILIES, PARTS
from .rows import Outcome


def composites():
    """Every type of config that has configs within it, and its default config."""
    for model_type in transformers.CONFIG_MAPPING:
        try:
            config = transformers.CONFIG_MAPPING[model_type]()
        except Exception:  # it needs arguments, or a missing package
            continue
        if within(config):
            yield model_type, config


def within(config, path=""):
    """The configs within a config, by path."""
    found = {}
    for key, value in vars(config).items():
        if isinstance(value, transformers.PreTrainedConfig) and not key.startswith("_"):
            found |= {path + key: value, **within(value, f"{path}{key}.")}
    return found


def parts(model_type, whole):
    """An outcome for each rotated part: read from the whole file, it must equal the part's config read alone."""
    known, own, config = PARTS.get(model_type, {}), within(whole), type(whole).__name__
    named = dict(known.values())  # model_type by path
    others = {path: each.model_type for path, each in own.items() if path not in named and each.model_type in FAMILIES}
    kinds = named | others
    names = [(name, path) for name, (path, _) in known.items()] + [(path, path) for path in others]
    if model_type not in FAMILIES or not FAMILIES[model_type].divides_axes:  # keys outside parts are also of text
        names += [(None, path) for name, path in names if name == "text"]
    for name, path in names:
        pieces = {piece.removesuffix("_config") for piece in path.split(".")}
        if name not in (path, None) and not set(name.split(".")) <= pieces:
            yield Outcome(config, name, None, "wrong", {}, f"{path} has another name in transformers")
    for case, file in files_of(whole, kinds).items():
        try:
            theirs = within(type(whole).from_dict(deepcopy(file)))
        except Exception as error:
            yield Outcome(config, case, None, "refused upstream", {}, message(error))
            continue
        for name, path in names:
            if path in theirs:
                yield Outcome(config, f"{name}: {case}", None, *judged(file, name, theirs[path], kinds[path], case))
            elif getattr(whole, path, ...) is not None:
                yield Outcome(config, f"{name}: {case}", None, "wrong", {}, f"transformers has no {path}")


def files_of(whole, paths):
    """Files by what they leave out of each part. In the file "whole", each part has a different base."""
    files = {name: plain(whole) for name in ("whole", "no rotary key", "no model_type", "left out", "nothing")}
    for at, path in enumerate(paths):
        *outer, last = path.split(".")
        for case, file in files.items():
            holder = file
            for key in outer:
                holder = holder.get(key) or {}
            part = holder.get(last)
            if not isinstance(part, dict):
                continue
            if case == "whole":
                blocks = part.get("rope_parameters") or {}
                for block in [each for each in blocks.values() if isinstance(each, dict)] or [blocks] * bool(blocks):
                    block["rope_theta"] = 7000.0 + at
            elif case == "no model_type":
                part.pop("model_type", None)
            elif case == "no rotary key":
                holder[last] = {key: value for key, value in part.items() if not ROTARY.search(key)}
    firsts = {path.split(".")[0] for path in paths}
    files["left out"] = {key: value for key, value in files["left out"].items() if key not in firsts}
    files["nothing"] = files["left out"]
    for case in ("no rotary key", "nothing"):
        files[case] = {key: value for key, value in files[case].items() if not ROTARY.search(key)}
    return files


def judged(file, name, theirs, kind, case):
    """The rest of an `Outcome`: rope_xp from a part of a file, compared with rope_xp from the part's config."""
    alone = {key: value for key, value in plain(theirs).items() if not key.endswith("_config")} | {"model_type": kind}
    for compat in (None, "transformers"):
        ours, expected = (read(given, part, labels(theirs), compat) for given, part in ((file, name), (alone, None)))
        if ours == expected:
            return "agrees", {}, ""
        refusal = next((note for note in ours.values() if isinstance(note, str)), "")
    if REFUSAL.match(refusal) and (case != "whole" or "must be in the part, not outside it" in refusal):
        return "refused", {}, refusal
    return "wrong", {}, f"{ours}, but from its own config {expected}"[:600]


def read(given, part, types, compat):
    """The embeddings of rope_xp by layer type, or their errors."""
    found = {}
    for label in types:
        try:
            found[label] = rope_xp.from_config(given, part=part, layer_type=label, compat=compat)
        except Exception as error:
            found[label] = message(error)
    return found
