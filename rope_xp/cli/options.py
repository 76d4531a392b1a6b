"""The options of the commands, and the words of the library in terms of them."""

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import click

from rope_xp.cli import inputs
from rope_xp.configs.readers.files import MAX_BYTES
from rope_xp.embedding import Rule
from rope_xp.extension import LENGTHS, METHODS
from rope_xp.layouts import LAYOUTS

RULES = get_args(Rule)


class Length(click.ParamType):
    """A length in tokens."""

    name = "length"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        return value if isinstance(value, int) else inputs.length(value)


class Numbers(click.ParamType):
    """A file of numbers: a JSON list, or numbers between commas, spaces or line ends."""

    name = "file"

    def convert(self, value: Any, param: Any, ctx: Any) -> list[float]:
        if not isinstance(value, str):
            return value
        with Path(value).open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        words = re.split(rb"[\s,]+", text.strip().removeprefix(b"[").removesuffix(b"]").strip())
        try:
            if len(text) > MAX_BYTES:
                raise ValueError(f"more than {MAX_BYTES} bytes")
            return [float(word) for word in words]
        except ValueError as error:
            self.fail(f"{value} must have numbers, and nothing between them but commas and spaces; got {error}")


def options(*added: Any) -> Any:
    """Decorate a command with several options, in this order."""

    def decorate(command: object) -> Any:
        for option in reversed(added):
            command = option(command)
        return command

    return decorate


FILE = click.argument("file", metavar="FILE")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
CONTEXT = click.option("--context", type=Length(), help="The length to judge, such as 128k.")
TRAINED = click.option("--trained-length", type=Length(), help="The length of training, before scaling.")
HEAD_DIM = click.option("--head-dim", type=int, help="The number of channels of a head, for functions.")
# What `RotaryEmbedding.to_config` takes besides the target.
WRITING = options(
    click.option("--architecture", help="The general.architecture of a GGUF file, such as qwen2."),
    click.option("--engine-version", help="The version of the program that reads the settings."),
)
# What `from_config` takes.
CONFIG = options(
    click.option("--layer", type=int, help="The index of a layer, if layers differ."),
    click.option("--layer-type", help="The type of a layer, such as sliding_attention."),
    click.option("--part", help="A part of a composite config, such as vision."),
    click.option("--seq-len", type=Length(), help="The length of sequences, for rules that depend on it."),
    click.option("--layout", type=click.Choice([*LAYOUTS]), help="The pairing, if weights were permuted."),
)
FLAGS = click.option("--flags", help="The command line of an engine that reads the config, or its arguments.")
# How `compare` calls functions.
CALLS = options(
    HEAD_DIM,
    click.option("--shape", help='The axes of x of functions, such as "batch heads seq dim".'),
    click.option("--like", metavar="LIBRARY[:DTYPE]", help="The arrays of functions, such as torch:bfloat16."),
)

POSITIONS_IGNORED = click.option(
    "--positions-ignored", is_flag=True, help="Accept a function that ignores its positions."
)

# The parameters of scaling rules, as their classes have them.
PARAMETERS = {
    "factor": "The factor, if it is not the ratio of the lengths.",
    "beta_fast": "yarn: pairs with more turns in training are kept.",
    "beta_slow": "yarn: pairs with fewer turns are interpolated.",
    "attention_factor": "yarn, longrope: the factor of sines and cosines.",
    "mscale": "yarn: DeepSeek's parameter of attention.",
    "mscale_all_dim": "yarn: DeepSeek's parameter of attention.",
    "truncate": "yarn: whether limits are whole pairs.",
    "low_freq_factor": "llama3: pairs with fewer turns are interpolated.",
    "high_freq_factor": "llama3: pairs with more turns are kept.",
    "short_factor": "longrope: the list for short sequences.",
    "long_factor": "longrope: the list for long sequences.",
    "short_mscale": "longrope: the factor of short sequences.",
    "long_mscale": "longrope: the factor of long sequences.",
}


def _parameter(name: str) -> Any:
    flag = f"--{name.replace('_', '-')}"
    if name == "truncate":
        return click.option(f"{flag}/--no-{name}", default=None, help=PARAMETERS[name])
    kind = Numbers() if name in ("short_factor", "long_factor") else float
    return click.option(flag, type=kind, help=PARAMETERS[name])


RULE_PARAMETERS = tuple(
    dict.fromkeys(each.name for rule in METHODS.values() for each in fields(rule.scaling) if each.name not in LENGTHS)
)
RULE = options(*map(_parameter, RULE_PARAMETERS))


# Arguments of the library that options of the command set, by the function that an error names.
ARGUMENTS = {
    "from_config": ("layer", "layer_type", "part", "seq_len", "layout", "flags"),
    "compare": ("head_dim", "context", "tolerance", "shape", "like", "positions_ignored"),
    "identify": ("head_dim", "shape", "like"),
    "RotaryEmbedding.explain": ("context", "trained_length"),
    "RotaryEmbedding.extend": ("to", "rule", "trained_length", "short_factor", "long_factor"),
    "RotaryEmbedding.to_config": ("target", "architecture", "engine_version", "layout", "seq_len"),
    "save": ("output", "kind", "context", "dark"),
    "phase_error": ("context",),
    **dict.fromkeys(("wavelengths", "scaling", "decay", "scores", "sections", "pair"), ("context",)),
}
# Advice in Python, and the same in options.
ADVICE = (
    (r"call rope\.replace\(layout='(\w+)'\)\.\w+\(.*\)", r"give --layout \1"),
    (r"from_config\(\.\.\., seq_len=(\d+)\)", r"--seq-len \1"),
    (r"ropes must be one embedding; got", "there must be one embedding, of one FILE and one --layer-type; got"),
    (r"ropes must be", "there must be"),
    (r"\bseq_len of scaling\b", "seq_len"),
)


def flags_of(command: click.Command) -> dict[str, str]:
    """The options of a command, by the names of their values."""
    return {str(each.name): each.opts[-1] for each in command.params if isinstance(each, click.Option)}


def in_options(message: str, command: click.Command) -> str:
    """An error of the library with options of a command in place of arguments in Python.

    It begins with the name of a function, which says what its arguments are. Rules have parameters that a config may
    state, too; only `extend` has options for them.
    """
    who, _, _ = message.partition(": ")
    is_of_rule = who.endswith("Scaling") or "options of rule=" in message
    flags = flags_of(command)
    message = _with_advice(message)
    for name in {*(RULE_PARAMETERS if is_of_rule else ()), *ARGUMENTS.get(who, ())} & flags.keys():
        message = _with_flag(message, name, flags[name], anywhere=is_of_rule or "_" in name)
    return message


def report_in_options(report: Any, command: click.Command) -> Any:
    """A report whose sentences name options of a command, where they name `arguments` or give advice in Python."""
    flags = flags_of(command)

    def changed(text: str) -> str:
        return re.sub(r"`(\w+)`", lambda found: flags.get(found[1], found[0]), _with_advice(text))

    values = {each.name: getattr(report, each.name) for each in fields(report)}
    texts = {name: value for name, value in values.items() if value and isinstance(value, tuple)}
    texts = {name: value for name, value in texts.items() if all(isinstance(each, str) for each in value)}
    return replace(report, **{name: tuple(map(changed, value)) for name, value in texts.items()})


def _with_advice(text: str) -> str:
    for pattern, replacement in ADVICE:
        text = re.sub(pattern, replacement, text)
    return text


def _with_flag(message: str, name: str, flag: str, anywhere: bool) -> str:
    """An option in place of an argument: with its value, where something must be given, or `anywhere`.

    A name may be a word of English elsewhere, or an argument of another function.
    """
    start = rf"(?<![\w.(-]){name}"
    message = re.sub(rf"{start}=None\b", f"no {flag}", message)
    message = re.sub(rf"{start}=(['\"]?)([\w.]+)\1", rf"{flag} \2", message)
    return re.sub(start + (r"(?![\w=(])" if anywhere else r"(?= (?:or [\w-]+ )?(?:must|be) )"), flag, message)
