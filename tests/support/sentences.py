"""What the library says of small examples: goldens have them below the sentences that they show.

An example is one of these:

- a config with the options of `from_config`, an embedding as Python writes it, or neither, and calls, each of the
  result of the one before: methods, and functions where nothing is before. A config may be the name of a golden, with
  changes: a path and the value there, or a path alone, which is left out;
- a line of the command, in a folder with the configs that it names;
- the files of a checkpoint, of a config, or of a GGUF file whose header has small limits;
- a config and a number of layers, of which each is read.

`goldens/readings.json` has random ones: of thousands, those that together run most lines of the readers and writers.
"""

import contextlib
import copy
import io
import json
import os
import re
import shlex
import tempfile
import warnings
from dataclasses import asdict
from math import fsum
from operator import attrgetter
from pathlib import Path
from unittest import mock

import numpy as np
from configs import CONFIGS, at, in_lines, record, recorded, value_of, with_12_digits

import rope_xp.configs.readers.command_line
from rope_xp import RotaryEmbedding, from_config, identify_checkpoint
from rope_xp.configs.readers import gguf_file
from rope_xp.provenance import Provenance

MAKE = "if the change should say this: python tests/goldens/make_readings.py, and look at what changes in its file"


def write(name):
    """What is said now."""
    examples = recorded(name).items()
    record(name, {sentence: [each | {"says": in_lines(said_of(each))} for each in rows] for sentence, rows in examples})


def assert_said(examples):
    """What is recorded is said, the arguments stay as they are, and every error has its form."""
    for example in examples:
        before, found = json.dumps(example), said_of(example)
        assert in_lines(found) == example["says"], MAKE
        assert json.dumps(example) == before
        is_error = found.startswith(("TypeError: ", "ValueError: "))
        assert not is_error or ("; got " in found and len(found) < 1000)


def said_of(example):
    """The result as text with the warnings, or the error."""
    if "line" in example:
        return with_12_digits(printed(shlex.split(example["line"]), example.get("files", {})))
    if "files" in example:
        functions = {"is_config": from_config, "is_header": header_of}
        function = next((functions[key] for key in functions if key in example), identify_checkpoint)
        return of_files(function, example["files"], example["path"])
    if "layers" in example:
        return of_layers(example)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            text = text_of(result_of(example))
        except (TypeError, ValueError) as error:
            text = f"{type(error).__name__}: {error}"
    return with_12_digits(" ".join([*text.split(), *(f"warning: {each.message}" for each in caught)]))


def printed(words, files):
    """The exit code of the command, its output and its errors. One of the files may be its standard input."""
    from rope_xp.cli import main

    output, errors = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        of_goldens = {f"{name}.json": json.dumps(config) for name, config in CONFIGS.items() if f"{name}.json" in words}
        write_files(folder, {"stdin": ""} | of_goldens | files)
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors), open("stdin") as stdin:
            try:
                with mock.patch("sys.stdin", stdin):
                    main(words)
            except SystemExit as ended:
                return without_folder(f"{ended.code}\n{output.getvalue()}{errors.getvalue()}", folder)


def write_files(folder, files):
    """A file is text, or a header of JSON, bytes in hex and zeros."""
    for name, content in files.items():
        file = Path(folder, name)
        if isinstance(content, str):
            file.write_text(content, encoding="utf-8")
            continue
        header = json.dumps(content["header"]).encode() if "header" in content else b""
        start = len(header).to_bytes(8, "little") + header if header else b""
        file.write_bytes(start + bytes.fromhex(content.get("hex", "")))
        os.truncate(file, max(file.stat().st_size, len(start) + content.get("size", 0)))


def of_files(function, files, path):
    """What is said of a checkpoint or a config."""
    with tempfile.TemporaryDirectory() as folder:
        write_files(folder, files)
        try:
            text = text_of(function(Path(folder, path)))
        except (OSError, TypeError, ValueError) as error:
            text = f"{type(error).__name__}: {error}"
        return with_12_digits(without_folder(text, folder))


LIMITS = {"MAX_LIST": 4, "MAX_TEXT": 8, "MAX_NAME": 24, "MAX_AXES": 2, "MAX_ENTRIES": 5, "MAX_TENSORS": 3}
LIMITS |= {"MAX_HEADER": 400, "MAX_TAKEN": 330}


def header_of(path):
    """What is read of a GGUF file with small limits."""
    with mock.patch.multiple(gguf_file, **LIMITS):
        return {**gguf_file.metadata_of_file(path), "tensors": gguf_file.read_gguf(path).tensors}


def of_layers(example):
    """The embeddings of layers, each with its layers."""
    found = {}
    for layer in range(example["layers"]):
        try:
            text = repr(from_config(config_of(example), layer=layer, **example.get("options", {})))[:300]
        except ValueError as error:
            text = str(error)[:150]
        found.setdefault(text, []).append(str(layer))
    return with_12_digits(" | ".join(f"{','.join(layers)}: {text}" for text, layers in found.items()))


def without_folder(text, folder):
    """The text with FOLDER for a path that stands as it is, or as Python or JSON write it."""
    path = r"[\\/]+".join(map(re.escape, re.split(r"[\\/]", folder)))
    return re.sub(path + r"([\\/]+(?=\w))?", lambda found: "FOLDER/" if found[1] else "FOLDER", text)


def result_of(example):
    found = made(example["rope"]) if "rope" in example else rope_xp
    calls = [["from_config", [config_of(example)], example.get("options", {})]] if "config" in example else []
    for name, arguments, options in [*calls, *example.get("calls", [])]:
        given = {key: made(value) for key, value in options.items()}
        found = attrgetter(name)(found)(*map(made, arguments), **given)
    return found


def config_of(example):
    config = example["config"]
    config = copy.deepcopy(CONFIGS[config]) if isinstance(config, str) else config
    for (*path, key), *values in example.get("changes", ()):
        place = at(config, path)
        if values:
            place[key] = copy.deepcopy(values[0])
        else:
            del place[key]
    return config


def made(value):
    """An argument: a value of the library is written as Python does."""
    return value_of(value["value"]) if isinstance(value, dict) and [*value] == ["value"] else value


def text_of(found):
    """All of an embedding: with its frequencies, each of which counts, and what is kept of a config."""
    if isinstance(found, RotaryEmbedding):
        usual = asdict(Provenance())
        kept = {name: value for name, value in asdict(found._provenance).items() if value != usual[name]}
        kept.pop("tensors", None)  # they follow from the scaling
        weights = np.ravel(found.inv_freq) * np.arange(1, np.size(found.inv_freq) + 1)
        factors = f"tables {found.attention_factor}, softmax {found.softmax_scale}, frequencies {fsum(weights)}"
        return f"{found!r} | {factors} | {json.dumps(kept)}"
    return found if isinstance(found, str) else json.dumps(getattr(found, "to_dict", lambda: found)(), default=of_array)


def of_array(found):
    """Of many numbers, those at both ends."""
    numbers = found.ravel().tolist()
    return f"{found.dtype} {found.shape} {numbers if len(numbers) < 100 else [*numbers[:3], '...', *numbers[-3:]]}"
