"""Errors of the library, as the command says them: in its own options, and in none that it does not have."""

import ast
import inspect
import json
import re
import shlex
from dataclasses import fields
from pathlib import Path

import click
import numpy as np
import pytest
from cases import for_each
from configs import ROWS, recorded

import rope_xp
from rope_xp import RotaryEmbedding, frequencies, plot
from rope_xp.cli.commands import app
from rope_xp.cli.options import PARAMETERS, RULES, in_options
from rope_xp.configs.readers.command_line import KNOWN
from rope_xp.extension import LENGTHS, METHODS

PACKAGE = Path(rope_xp.__file__).parent
SCALINGS = [name for name in vars(frequencies) if name.endswith("Scaling")]
# Functions of the library by the names that errors have, and where their errors come from, apart from checks that all
# functions share.
FUNCTIONS = {
    "from_config": (rope_xp.from_config, "configs"),
    "RotaryEmbedding": (RotaryEmbedding, "embedding.py"),
    "RotaryEmbedding.explain": (RotaryEmbedding.explain, "explanation.py"),
    "RotaryEmbedding.extend": (RotaryEmbedding.extend, "extension.py"),
    "RotaryEmbedding.to_config": (RotaryEmbedding.to_config, "writers"),
    "compare": (rope_xp.compare, "comparison"),
    "identify": (rope_xp.identify, "identification"),
    "identify_checkpoint": (rope_xp.identify_checkpoint, "checkpoints"),
}
FUNCTIONS |= {name: (vars(frequencies)[name], "frequencies") for name in SCALINGS}
DRAWN = {draw.__name__: (draw, "plot.py") for draw in (plot.save, *plot.PICTURES.values())}
FUNCTIONS |= DRAWN
EXPLAINED = ("from_config", "RotaryEmbedding", *SCALINGS)
# Those whose errors each command can show.
REACHED = {
    "explain": (*EXPLAINED, "RotaryEmbedding.explain"),
    "compare": (*EXPLAINED, "identify", "identify_checkpoint", "compare"),
    "identify": ("identify", "identify_checkpoint"),
    "extend": (*EXPLAINED, "RotaryEmbedding.explain", "RotaryEmbedding.extend", "RotaryEmbedding.to_config"),
    "convert": (*EXPLAINED, "RotaryEmbedding.to_config"),
    "plot": (*EXPLAINED, *DRAWN),
}
# Options of other programs, which errors about their settings may name.
OF_OTHERS = {*KNOWN, "--version", "--to"}
# Functions in Python that an error advises, with arguments of their own.
ADVISED = r"permute_projection\(to=|compat='transformers'"


def texts_of(file):
    """The texts of errors of a module, without the name of a function, with `{...}` for what they show."""
    for node in ast.walk(ast.parse(file.read_text())):
        name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        if name not in ("wrong", "wrong_type", "wrong_value"):
            continue
        text = node.args[-1]
        if isinstance(text, ast.JoinedStr):
            values = [(part, getattr(part, "value", None)) for part in text.values]
            yield "".join(v if isinstance(part, ast.Constant) else f"{{{ast.unparse(v)}}}" for part, v in values)
        elif isinstance(text, ast.Constant):
            yield text.value


TEXTS = {file.relative_to(PACKAGE).as_posix(): sorted(set(texts_of(file))) for file in sorted(PACKAGE.rglob("*.py"))}


def arguments_of(function, command):
    """The arguments that a command can set. A class has those that a config states, except in `extend`."""
    if isinstance(function, type):
        return tuple(PARAMETERS) if command == "extend" and function is not RotaryEmbedding else ()
    given = {"self", "config", "options"}
    if function is rope_xp.identify:
        given |= {"seq_len"}  # another length than that of configs, which `compare` chooses
    if function is RotaryEmbedding.to_config:
        given |= {"context"}  # `extend` gives it where it may be given
    names = [name for name in inspect.signature(function).parameters if name not in given]
    return [*names, "short_factor", "long_factor"] if function is RotaryEmbedding.extend else names


def errors_of(who, command):
    """Every error that a function may raise, with its name and with each of its arguments where a check names one."""
    function, module = FUNCTIONS[who]
    for path, texts in TEXTS.items():
        parts = Path(path).parts
        is_own = module in parts and not (who == "from_config" and "writers" in parts)
        if not is_own and not {"checks.py", "spectrum.py", "layouts.py"} & {*parts}:
            continue
        for text in texts:
            names = arguments_of(function, command) if "{name}" in text else [""]
            for name in names:
                yield f"{who}: " + re.sub(r"\{[^{}]*\}", "7", text.replace("{name}", name))


CASES = [(command, who) for command, functions in REACHED.items() for who in functions]


@pytest.mark.parametrize(("command", "who"), CASES)
def test_errors_name_the_options_of_the_command_and_no_argument(command, who):
    function, flags = FUNCTIONS[who][0], app.commands[command].params
    options = {flag for each in flags if isinstance(each, click.Option) for flag in each.opts + each.secondary_opts}
    of_values = {each.name for each in flags if isinstance(each, click.Option)}
    wrong, seen = [], 0
    for error in errors_of(who, command):
        text = in_options(error, app.commands[command])
        seen += 1
        named = {flag for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", text) if flag not in OF_OTHERS}
        if named - options:
            wrong.append((sorted(named - options), text))
        rest = re.sub(ADVISED, "", text)
        for name in arguments_of(function, command):
            used = rf"(?<![\w.-]){name}(=|( or [\w-]+)? must | be )"
            used += rf"|(?<![\w.(]){name}\b(?!\()" if "_" in name else ""
            if name in of_values and re.search(used, rest):
                wrong.append((name, text))
            if name not in of_values and re.search(rf"(?<![\w.-]){name} (must )?be given", rest):
                wrong.append((f"no option for {name}", text))
    assert not wrong
    assert seen or who in ("identify_checkpoint", *DRAWN, *SCALINGS, "RotaryEmbedding")


@for_each("row", ROWS["errors in options"])
def test_errors_in_options(row):
    assert row["said"] in in_options(row["error"], app.commands[row["command"]])


def test_every_parameter_of_a_rule_is_an_option_of_extend():
    names = {each.name for each in app.commands["extend"].params}
    of_rules = {each.name for method in METHODS.values() for each in fields(method.scaling)} - {*LENGTHS}
    assert of_rules == {*PARAMETERS} and names.issuperset(PARAMETERS)
    assert {"beta_fast", "long_factor", "low_freq_factor"} <= of_rules
    assert [*METHODS] == [*RULES]


@for_each("row", ROWS["words of a line"])
def test_what_the_words_of_a_line_stand_for(row, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("numbers").write_text("1 2")
    name, *words = row["line"].split()
    given = app.commands[name].make_context(name, words).params
    like = given.pop("like", None)
    assert like is None or (type(like), like.dtype.name) == (np.ndarray, "int8")
    # Those that are not given are None, (), or False.
    given = {key: value for key, value in given.items() if value or (key, value) == ("truncate", False)}
    assert json.loads(json.dumps(given)) == row["given"]


NOTHING = [f"{line} --to {value}" for line in ("extend f", "convert f") for value in ("''", "x", "0k", "1g", "9" * 16)]
NOTHING += ["explain f --context 0", "plot f g -o .", "plot -o x.svg"]
MISSING = ("explain", "compare", "identify", "extend --to 1", "extend f", "convert --to all", "convert f", "plot f")


@for_each("line, said", [*((line, None) for line in NOTHING), *((line, "Missing") for line in MISSING)])
def test_words_that_stand_for_nothing_or_are_missing(line, said):
    name, *words = shlex.split(line)
    with pytest.raises(click.UsageError, match=said):
        app.commands[name].make_context(name, words)


OF_PYTHON = (
    r"^rope-xp: (?:from_config|RotaryEmbedding|compare|identify\w*|save|convert|[a-z_]+): |\bNone\b|"
    r"\b(?:seq_len|layer_type|trained_length|engine_version|positions_ignored)(?:=| must)|to_config\(|replace\("
)


@for_each("row", recorded("commands")["Errors of the command name the file and nothing of Python."])
def test_errors_of_the_command_name_the_file_and_nothing_of_python(row):
    """Bad input that the library refuses is one line, with the file that the error is about, if it is about one."""
    command = app.commands[row["line"].split()[0]]
    code, error = "".join(row["says"]).splitlines()
    assert code == "2" and error.startswith("rope-xp: ") and len(error) < 1000
    assert not re.search(OF_PYTHON, error.replace("'config.json'", "")) and row["file"] in error
    named = {*re.findall(r"(?<![\w-])--[a-z][\w-]*", error)} - OF_OTHERS
    assert named <= {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
    assert not re.search(r"(\S+\.\w+)\b.* \(for \1\)", error)  # it is named once
