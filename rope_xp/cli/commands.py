"""The commands of `rope-xp`, by click."""

import json
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any, get_args

import click

import rope_xp
from rope_xp._core.channels import LAYOUTS
from rope_xp._core.extension import Rule
from rope_xp._core.extension.rules import METHODS
from rope_xp._core.writers import TARGETS, Target, with_length
from rope_xp.cli import inputs
from rope_xp.cli.doctor import diagnose
from rope_xp.cli.output import show

RULES = get_args(Rule)
# The keys of `rope_xp.plot.PICTURES`, which needs matplotlib.
PICTURES = ("wavelengths", "scaling", "decay", "phase-error", "scores", "sections", "pair")


class Length(click.ParamType):
    """A length in tokens."""

    name = "length"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        return value if isinstance(value, int) else inputs.length(value)


def options(*added: Any) -> Any:
    """Decorate a command with several options, in this order."""

    def decorate(command: Any) -> Any:
        for option in reversed(added):
            command = option(command)
        return command

    return decorate


FILE = click.argument("file", metavar="FILE")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
CONTEXT = click.option("--context", type=Length(), help="The length to judge, such as 128k.")
TRAINED = click.option("--trained-length", type=Length(), help="The length of training, if the config has none.")
HEAD_DIM = click.option("--head-dim", type=int, help="The number of channels of a head, for functions.")
SEQ_LEN = click.option("--seq-len", type=Length(), help="The length of sequences, for rules that depend on it.")
LAYOUT = click.option("--layout", type=click.Choice([*LAYOUTS]), help="The pairing, if weights were permuted.")
PLACE = options(
    click.option("--layer", type=int, help="The index of a layer, if layers differ."),
    click.option("--layer-type", help="The type of a layer, such as sliding_attention."),
    click.option("--part", help="A part of a composite config, such as vision."),
)


@click.group(context_settings={"max_content_width": 80})
@click.version_option(rope_xp.__version__, prog_name="rope-xp")
def app() -> None:
    """Rotary position embeddings of models: what they do, and whether two are the same.

    FILE is a config.json, a params.json, a GGUF, a safetensors file with its config beside it, a folder of them, or -
    for the JSON on standard input. Lengths are numbers of tokens, such as 131072 or 128k.

    Exit codes: 0; 1 if embeddings differ or there are warnings; 2 for bad input.
    """


@app.command()
@FILE
@options(SEQ_LEN, CONTEXT, TRAINED, PLACE, JSON)
def explain(file: str, as_json: bool, context: int | None, trained_length: int | None, **place: Any) -> int:
    """Say what the rotary embedding of a config does.

    \b
    Example: rope-xp explain config.json --context 128k
    """
    rope = inputs.embedding(file, **place)
    return show(rope.explain(context or place["seq_len"], trained_length=trained_length), as_json)


@app.command()
@click.argument("a")
@click.argument("b")
@options(CONTEXT, HEAD_DIM, JSON)
def compare(a: str, b: str, context: int | None, head_dim: int | None, as_json: bool) -> int:
    """Say whether two rotary embeddings are the same, and what differs.

    A and B are files, or module:function. The exit code is 1 if they differ, and 2 if they cannot be compared.

    \b
    Example: rope-xp compare old/config.json new/config.json
    """
    inputs.require_one_stdin((a, b))
    values = [inputs.function(each) if inputs.is_function(each) else inputs.config(each) for each in (a, b)]
    report = rope_xp.compare(*values, head_dim=head_dim, context=context)
    show(report, as_json)
    return 0 if report.same else 1 if report.comparable else 2


@app.command()
@click.argument("file", metavar="FILE|MODULE:FUNCTION")
@options(HEAD_DIM, JSON)
def identify(file: str, head_dim: int | None, as_json: bool) -> int:
    """Say which format a checkpoint has, or which rotary embedding a function computes.

    The function is called as function(x, positions). The exit code is 1 if no embedding explains it.

    \b
    Example: rope-xp identify model.safetensors
    Example: rope-xp identify my_model:apply_rope --head-dim 64
    """
    if not inputs.is_function(file):
        return show(rope_xp.identify_checkpoint(file), as_json)
    if head_dim is None:
        raise click.UsageError("--head-dim must be given for a function")
    report = rope_xp.identify(inputs.function(file), head_dim)
    return show(report, as_json) or int(report.rope is None)


@app.command()
@FILE
@click.option("--to", type=Length(), required=True, help="The new length.")
@click.option("--rule", type=click.Choice(RULES), help="The scaling rule.")
@click.option("--for", "target", type=click.Choice(TARGETS), help="Print the settings for this program.")
@options(TRAINED, PLACE, LAYOUT, JSON)
def extend(
    file: str,
    to: int,
    rule: Rule | None,
    target: Target | None,
    trained_length: int | None,
    as_json: bool,
    **place: Any,
) -> int:
    """Extend the context of a model. Without --rule, list the rules and what each does.

    \b
    Example: rope-xp extend config.json --to 128k
    Example: rope-xp extend config.json --to 128k --rule yarn --for vllm
    """
    config = inputs.config(file)
    rope = inputs.embedding(config, **place)
    if rule is None:
        if target is not None:
            raise click.UsageError("--rule must be given with --for")
        return show(rope.extend(to, trained_length=trained_length), as_json)
    extended = rope.extend(to, rule, trained_length=trained_length)
    if target is None:
        return show(extended.explain(to), as_json)
    settings = with_length(target, extended.to_config(target), to)
    _note_trade_offs(rule, target, to)
    return _print_settings(settings, config, target, rope, place)


def _note_trade_offs(rule: Rule, target: Target, to: int) -> None:
    """Say what the settings of a rule leave out."""
    if rule == "ntk":
        _note(METHODS[rule].trade_offs)
    elif rule == "dynamic" and target != "transformers":
        _note(f"{target} gets the frequencies of {to:,} tokens for all lengths")


@app.command()
@FILE
@click.option("--to", type=click.Choice(TARGETS), required=True, help="The program.")
@options(SEQ_LEN, PLACE, LAYOUT)
def convert(file: str, to: Target, **place: Any) -> int:
    """Write the embedding of a config for another program: keys as JSON, or options.

    The keys for transformers belong into rope_parameters of config.json.

    \b
    Example: rope-xp convert config.json --to llama.cpp
    """
    config = inputs.config(file)
    rope = inputs.embedding(config, **place)
    return _print_settings(rope.to_config(to), config, to, rope, place)


def _print_settings(settings: Any, config: Any, target: Target, rope: Any, place: dict[str, Any]) -> int:
    """Print keys as JSON, or options as a shell takes them. For vLLM, keys lie where the config has them."""
    if inputs.has_other_layers(config, rope, **place):
        if target == "vllm":
            raise click.ClickException(
                "all layers must have the same embedding in arguments for vLLM; got a config whose layers differ"
            )
        _note("these are the settings of the chosen layers; other layers of the config differ")
    if target == "vllm":
        for key in reversed(inputs.path_of_part(config, place["part"])):
            settings = [*settings[:-1], json.dumps({key: json.loads(settings[-1])})]
    print(json.dumps(settings, indent=2) if isinstance(settings, dict) else shlex.join(settings))
    return 0


def _note(text: str) -> None:
    """One line on standard error."""
    print(f"rope-xp: {text}", file=sys.stderr)


@app.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("-o", "--output", type=click.Path(dir_okay=False), required=True, help="A .png or .svg file.")
@click.option("--kind", type=click.Choice(PICTURES), default=PICTURES[0], show_default=True, help="The picture.")
@click.option("--dark", is_flag=True, help="For a dark background.")
@options(CONTEXT, PLACE)
def plot(files: tuple[str, ...], output: str, kind: str, dark: bool, context: int | None, **place: Any) -> int:
    """Draw the rotary embeddings of configs.

    \b
    Example: rope-xp plot config.json other.json -o wavelengths.svg
    """
    try:
        from rope_xp import plot as pictures
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise click.UsageError("the extra rope-xp[plot] must be installed; got no matplotlib") from None
    inputs.require_one_stdin(files)
    pictures.save(output, kind, {file: inputs.embedding(file, **place) for file in files}, context=context, dark=dark)
    return 0


@app.command()
@JSON
def doctor(as_json: bool) -> int:
    """Show versions, the kernel that each installed library gets, and whether its results are right.

    The exit code is 1 if a library fails. Paste the output into a bug report.

    \b
    Example: rope-xp doctor
    """
    return show(diagnose(), as_json)


# Errors of the library begin with the name of a function. Others are mistakes of ours, and keep their traceback.
ERROR_OF_LIBRARY = re.compile(r"[\w.-]+: ")


def _with_options(message: str, words: Sequence[str]) -> str:
    """The message of an error with options of the command in place of the arguments in Python."""
    command = app.commands.get(next(iter(words), ""), app)
    flags = {each.name: each.opts[-1] for each in command.params if isinstance(each, click.Option)}
    names = rf"\b({'|'.join(map(str, flags))})( of scaling)?(?=( or \w+)? must be )"
    message = re.sub(names, lambda found: flags[found[1]], message)
    return re.sub(r"call rope\.replace\(layout='(\w+)'\).*", r"give --layout \1", message)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these words, and return the exit code. Bad input is one line on standard error."""
    try:
        return app.main(None if arguments is None else [*arguments], prog_name="rope-xp", standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return 2
    except click.ClickException as error:
        message = "rope-xp: " + error.format_message()
    except click.Abort:
        return 130
    except OSError as error:
        message = f"rope-xp: {error}"
    except (TypeError, ValueError) as error:
        if not ERROR_OF_LIBRARY.match(str(error)):
            raise
        words = sys.argv[1:] if arguments is None else arguments
        message = f"rope-xp: {_with_options(str(error).removeprefix('rope-xp: '), words)}"
    print(" ".join(message.split()), file=sys.stderr)
    return 2
