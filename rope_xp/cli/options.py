"""The options of the commands, what their words stand for, and errors of the library in terms of them."""

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from difflib import get_close_matches
from inspect import cleandoc
from pathlib import Path
from typing import Any, NotRequired, TypedDict, TypeVar, get_args

import click

from rope_xp.configs.readers.files import MAX_BYTES, parsed_json
from rope_xp.configs.readers.formats import config_path
from rope_xp.configs.writers import REFUSED, TARGETS
from rope_xp.embedding import RuleName
from rope_xp.errors import public
from rope_xp.layouts import LAYOUTS, Layout
from rope_xp.reports import Report
from rope_xp.types import Array, Values

ReportT = TypeVar("ReportT", bound=Report)
# What `click.option` decorates: a function, or the command that another decorator has made of it.
Decorated = TypeVar("Decorated", bound=Callable[..., object] | click.Command)
Option = Callable[[Decorated], Decorated]

UNITS = {"": 1, "k": 2**10, "m": 2**20}


# Types of options are functions. The help has their names for the values.
def length(text: str) -> int:
    """A length in tokens: 131072, 128k or 1M. k is 1,024 and M is 1,048,576."""
    found = re.fullmatch(r"(\d{1,15})([km]?)", text.lower())
    if not found or not int(found[1]):
        raise click.BadParameter(f"a length must be a number of tokens, such as 131072 or 128k; got {text!r}")
    return int(found[1]) * UNITS[found[2]]


class Programs(click.Choice):
    """A program, or one for which nothing can be written, so that the error says why. Lists have the others alone."""

    def __init__(self, *more: str) -> None:
        super().__init__([*more, *TARGETS, *REFUSED])

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        known = [each for each in self.choices if each not in REFUSED]
        similar = get_close_matches(str(value), known, 1)
        like = f"; similar is {similar[0]!r}" if similar else ""
        return f"{value!r} is not one of {', '.join(map(repr, known))}{like}"


def numbers(path: str) -> list[float]:
    """The numbers of a file: a JSON list, or numbers between commas, spaces or line ends."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise click.BadParameter(f"{path} must be a file that can be read; got {error.strerror}") from None
    words = re.split(rb"[\s,]+", text.strip().removeprefix(b"[").removesuffix(b"]").strip())
    try:
        if len(text) > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES} bytes")
        return [float(word) for word in words]
    except ValueError as error:
        why = f"must have numbers, and nothing between them but commas and spaces; got {error}"
        raise click.BadParameter(f"{path} {why}") from None


def options(*added: Option) -> Option:
    def decorate(command: Decorated) -> Decorated:
        for option in reversed(added):
            command = option(command)
        return command

    return decorate


FILE = click.argument("file", metavar="FILE")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
CONTEXT = click.option("--context", type=length, help="The length that is judged, in tokens, such as 128k.")
TRAINED = click.option("--trained-length", type=length, help="The length of training, before scaling.")
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
    click.option("--seq-len", type=length, help="The length of the sequence, if the frequencies depend on it."),
    click.option(
        "--layout",
        type=click.Choice([*LAYOUTS]),
        metavar="LAYOUT",
        help=f"The pairing, if it is not that of the config: {', '.join(LAYOUTS)}.",
    ),
)
FLAGS = click.option("--flags", help="Arguments of vLLM, SGLang, lmdeploy or llama.cpp, or the whole command line.")


class Wanted(TypedDict):
    """The values of `CONFIG` and `FLAGS`, by which `from_config` finds an embedding in a file."""

    layer: int | None
    layer_type: str | None
    part: str | None
    seq_len: int | None
    layout: Layout | None
    flags: NotRequired[str | None]


def placed(given: Mapping[str, object]) -> tuple[Values, Values]:
    """The values of `CONFIG` and `FLAGS` that were given, and those of other options."""
    stated = {name: value for name, value in given.items() if value is not None}
    place = {name: value for name, value in stated.items() if name in Wanted.__annotations__}
    return place, {name: value for name, value in stated.items() if name not in place}


# Array libraries, by the modules that make arrays.
LIBRARIES = {"numpy": "numpy", "torch": "torch", "jax": "jax.numpy", "cupy": "cupy", "mlx": "mlx.core"}


def array_of(text: str) -> Array:
    """An array of a library, and of a dtype: torch, torch:bfloat16 or numpy:float16."""
    library, _, dtype = text.partition(":")
    if library not in LIBRARIES:
        words = f"an array must be LIBRARY or LIBRARY:DTYPE, with one of {', '.join(LIBRARIES)}; got {text!r}"
        raise click.BadParameter(words)
    try:
        module = importlib.import_module(LIBRARIES[library])
        return module.zeros((), dtype=getattr(module, dtype or "float32"))
    except Exception as error:  # the library may be missing or broken, or have no such dtype
        words = f"{text} must be an array that can be made here; got {type(error).__name__}: {error}"
        raise click.BadParameter(words) from None


# How functions are called.
CALLS = options(
    click.option("--head-dim", type=int, help="The number of channels of a head, for functions."),
    click.option("--shape", help='The axes of x, such as "batch seq heads dim", if those that are tried fail.'),
    click.option(
        "--like",
        type=array_of,
        metavar="LIBRARY[:DTYPE]",
        help="Library and dtype of x, such as torch:bfloat16. By default NumPy, or what the function's module imports.",
    ),
)
# The parameters of scaling rules, as their classes have them.
PARAMETERS = {
    "factor": "The factor, if it is not the ratio of the lengths.",
    "beta_fast": "yarn: pairs with more turns in training than this are kept.",
    "beta_slow": "yarn: pairs with fewer turns are interpolated.",
    "attention_factor": "yarn, longrope: the factor of sines and cosines.",
    "mscale": "yarn: DeepSeek's parameter of attention.",
    "mscale_all_dim": "yarn: DeepSeek's parameter of attention.",
    "truncate": "yarn: round the ends of the ramp to whole pairs.",
    "low_freq_factor": "llama3: pairs with fewer turns are interpolated.",
    "high_freq_factor": "llama3: pairs with more turns are kept.",
    "short_factor": "longrope: the list for short sequences.",
    "long_factor": "longrope: the list for long sequences.",
    "short_mscale": "longrope: the factor of short sequences.",
    "long_mscale": "longrope: the factor of long sequences.",
}


def _parameter(name: str) -> Option:
    flag = f"--{name.replace('_', '-')}"
    if name == "truncate":
        return click.option(f"{flag}/--no-{name}", default=None, help=PARAMETERS[name])
    if name in ("short_factor", "long_factor"):
        return click.option(flag, type=numbers, metavar="FILE", help=PARAMETERS[name])
    return click.option(flag, type=float, help=PARAMETERS[name])


RULES = get_args(RuleName)
RULE = options(*map(_parameter, PARAMETERS))
# Options that help texts list apart, by their titles.
SECTIONS = {
    "Parameters of rules": tuple(PARAMETERS),
    "Which embedding of the file": tuple(Wanted.__annotations__),
}
# Errors of the library begin with the name of a function. Others are mistakes of ours, and keep their traceback.
ERROR_OF_LIBRARY = re.compile(r"[\w.-]+: ")


class Command(click.Command):
    """A command whose help is whole at every width, and whose errors speak of its options."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (TypeError, ValueError, OSError) as error:
            if not ERROR_OF_LIBRARY.match(str(error)):
                raise
            # The name of a function in Python says nothing to a person who calls none.
            words = in_options(str(error), self).partition(": ")[2]
            raise click.ClickException(words.removeprefix("RotaryEmbedding: ")) from None

    def get_short_help_str(self, limit: int = 0) -> str:
        return (self.help or "").partition(".")[0] + "."

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        text, _, examples = cleandoc(self.help or "").partition("\b\n")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text.rstrip())
        formatter.write_paragraph()
        for example in examples.splitlines():
            formatter.write("".join(f"  {line}\n" for line in _in_lines(example, formatter.width - 2)))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        titles = {name: title for title, names in SECTIONS.items() for name in names}
        rows: dict[str, list[tuple[str, str]]] = {"Options": [], **{title: [] for title in SECTIONS}}
        for each in self.get_params(ctx):
            if isinstance(each, click.Option) and (record := each.get_help_record(ctx)):
                rows[titles.get(str(each.name), "Options")].append(record)
        for title, records in rows.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _in_lines(example: str, width: int) -> list[str]:
    """A command in lines that a shell joins: each begins with an option, except the first."""
    first, *parts = re.split(r' (?=--?[a-z])(?=(?:[^"]*"[^"]*")*[^"]*$)', example)
    lines = [first]
    for part in parts:
        if len(f"{lines[-1]} {part} \\") <= width:
            lines[-1] += f" {part}"
        else:
            lines[-1:] = [f"{lines[-1]} \\", f"    {part}"]
    return lines


@contextmanager
def about(file: str, function: str = "") -> Iterator[None]:
    """Name a file in errors of the library, or of one of its functions, if they do not name it themselves."""
    try:
        yield
    except (TypeError, ValueError) as error:
        message, name = str(error), name_of(file)
        is_named = name in message or re.search(r" \(in .+\)$", message)
        if is_named or not message.startswith(function) or not ERROR_OF_LIBRARY.match(message):
            raise
        raise type(error)(f"{message} (for {name})") from None


def name_of(file: str) -> str:
    return "standard input" if file == "-" else file


# Words of a command line.


@public("rope-xp")
def config(file: str) -> Any:
    """What `from_config` reads: a path, or the JSON of standard input for "-"."""
    if is_function(file):
        raise click.ClickException(
            f"FILE must be a config (rope-xp identify gives the values of a function); got the function {file}"
        )
    if file != "-":
        ggufs = sorted(Path(file).glob("*.gguf")) if Path(file).is_dir() else []
        if ggufs and (path := config_path(Path(file))).suffix == ".json" and path.is_file():
            print(f"rope-xp: note: {path.name} was read, and not {ggufs[0].name}", file=sys.stderr)
        return file
    text = sys.stdin.buffer.read(MAX_BYTES + 1) if sys.stdin else b""  # a process may have no standard input
    if len(text) > MAX_BYTES:
        raise click.ClickException(f"standard input must have at most {MAX_BYTES} bytes; got more")
    found = parsed_json("standard input", text)
    if not isinstance(found, dict):
        raise click.ClickException(f"standard input must hold a JSON object; got {type(found).__name__}")
    return found


def require_one_stdin(files: Sequence[str]) -> None:
    """Standard input can be read once."""
    if list(files).count("-") > 1:
        raise click.UsageError("- must be given once, because standard input can be read once")


def no_embedding(file: str, why: str) -> click.ClickException:
    without = f"a model without one: its {why}" if why else "a model or a layer without one"
    return click.ClickException(f"{name_of(file)} must have a rotary embedding; got {without}")


def is_function(text: str) -> bool:
    """Whether the text is `module:function`, and not a file."""
    return bool(re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", text)) and not Path(text).exists()


def function(text: str) -> Callable[..., object]:
    """The function `module:function`. The folder in which the command runs is searched, too."""
    module, _, name = text.partition(":")
    sys.path.insert(0, "")
    try:
        found: object = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # the module may do anything when it is imported
        advice = f"; write {module.removesuffix('.py')}:{name}" if module.endswith(".py") else ""
        raise click.ClickException(
            f"{text} must be a function that can be imported; got {type(error).__name__}: {error}{advice}"
        ) from None
    if not callable(found):
        raise click.ClickException(f"{text} must be a function; got {type(found).__name__}")
    return found


# Arguments of the library that options of the command set, by the function that an error names.
ARGUMENTS = {
    "from_config": ("layer", "layer_type", "part", "seq_len", "layout", "flags"),
    "compare": ("head_dim", "context", "tolerance", "shape", "like", "positions_ignored"),
    "identify": ("head_dim", "shape", "like"),
    "RotaryEmbedding.explain": ("context", "trained_length"),
    "RotaryEmbedding.extend": ("to", "rule", "trained_length", "short_factor", "long_factor"),
    "RotaryEmbedding.to_config": ("target", "architecture", "engine_version", "layer_type", "layout", "seq_len"),
    "save": ("output", "kind", "context", "dark"),
    "phase_error": ("context",),
    "wavelengths": ("context",),
}
# Advice in Python, and the same in options.
ADVICE = (
    (r"call rope\.replace\(layout='(\w+)'\)\.\w+\([^)]*\)", r"give --layout \1"),
    (r"from_config\(\.\.\., seq_len=(\d+)\)", r"--seq-len \1"),
    (r"to_config\(\"([\w.-]+)\"(, architecture=\.\.\.)?\)", r"rope-xp convert --to \1"),
    (r"(?<=: )(?:config|path) must be (?=a \.?\w+)", "FILE must be "),
    (r"\b(\w+) must be None\b", r"\1 must not be given"),
    (r"; got None\b", "; got none"),
    (r"their folder(?=; got '.*', which does not exist)", "their folder, or MODULE:FUNCTION"),
    (r"from_config\(path\) reads", "rope-xp explain reads"),
    (r"\bpass positions_ignored=True", "give --positions-ignored"),
    (r"ropes must be", "there must be"),
    (r"\bdistance must be", "--context must be"),
    (r"\bseq_len of scaling\b", "seq_len"),
)


def flags_of(command: click.Command | None = None) -> dict[str, str]:
    """The options of a command, by default of the one that runs, by the names of their values."""
    command = command or click.get_current_context().command
    return {str(each.name): each.opts[-1] for each in command.params if isinstance(each, click.Option)}


def in_options(message: str, command: click.Command) -> str:
    """An error of the library with options of a command in place of arguments in Python."""
    # It begins with the name of a function, which says what its arguments are. Only `extend` has options for parameters
    # of rules, which a config may state, too.
    who, _, _ = message.partition(": ")
    is_of_rule = who.endswith("Scaling") or "options of rule=" in message
    flags = flags_of(command)
    message = with_advice(message)
    if command.name == "extend":
        message = message.replace("rope-xp convert --to", flags["target"])
    for name in {*(PARAMETERS if is_of_rule else ()), *ARGUMENTS.get(who, ())} & flags.keys():
        message = _with_flag(message, name, flags[name], anywhere=is_of_rule or "_" in name)
    return message


def report_in_options(report: ReportT) -> ReportT:
    """A report whose sentences name options of the command that runs, where they name arguments or advise in Python."""
    flags = flags_of()

    def changed(text: str) -> str:
        return re.sub(r"`(\w+)`", lambda found: flags.get(found[1], found[0]), with_advice(text))

    values = {each.name: getattr(report, each.name) for each in fields(report)}
    texts = {name: value for name, value in values.items() if value and isinstance(value, tuple)}
    texts = {name: value for name, value in texts.items() if all(isinstance(each, str) for each in value)}
    return replace(report, **{name: tuple(map(changed, value)) for name, value in texts.items()})


def with_advice(text: str) -> str:
    for pattern, replacement in ADVICE:
        text = re.sub(pattern, replacement, text)
    return text


def _with_flag(message: str, name: str, flag: str, anywhere: bool) -> str:
    """An option in place of an argument: with its value, where something must be given, or `anywhere`."""
    # A name may be a word of English elsewhere, or an argument of another function.
    start = rf"(?<![\w.(-]){name}"
    message = re.sub(rf"{start}=None\b", f"no {flag}", message)
    message = re.sub(rf"{start}=(['\"]?)([\w.]+)\1", rf"{flag} \2", message)
    return re.sub(start + (r"(?![\w=(])" if anywhere else r"(?= (?:or [\w-]+ )?(?:must|be) )"), flag, message)
