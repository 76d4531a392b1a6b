"""The commands of `rope-xp`, by click."""

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

import click

import rope_xp
from rope_xp.cli import inputs, settings
from rope_xp.cli.doctor import diagnose
from rope_xp.cli.options import (
    CALLS,
    CONFIG,
    CONTEXT,
    FILE,
    FLAGS,
    HEAD_DIM,
    JSON,
    POSITIONS_IGNORED,
    RULE,
    RULE_PARAMETERS,
    RULES,
    TRAINED,
    WRITING,
    Length,
    flags_of,
    in_options,
    options,
    report_in_options,
)
from rope_xp.cli.output import show, write
from rope_xp.cli.settings import Settings
from rope_xp.configs.every_layer import groups_of
from rope_xp.configs.writers import REFUSED, TARGETS, Options, Target
from rope_xp.explanation import Explained, LayersExplained
from rope_xp.extension import METHODS, replaced_scaling

# The keys of `rope_xp.plot.PICTURES`, which needs matplotlib.
PICTURES = ("wavelengths", "scaling", "decay", "phase-error", "scores", "sections", "pair")


@click.group(context_settings={"max_content_width": 80})
@click.version_option(rope_xp.__version__, prog_name="rope-xp")
def app() -> None:
    """Rotary position embeddings of models: what they do, and whether two are the same.

    FILE is a config.json, a params.json, a GGUF, a safetensors file with its config beside it, a folder of them, or -
    for the JSON on standard input. Lengths are numbers of tokens, such as 131072 or 128k.

    Exit codes: 0; 1 if embeddings differ or the report has warnings; 2 for bad input. A reader that closes the pipe
    changes none of them.
    """


# Also those for which nothing can be written, so that the error says why.
PROGRAM = click.Choice([*TARGETS, *REFUSED])
ALL = click.Choice(["all", *PROGRAM.choices])
PROGRAMS = ", ".join(TARGETS)


@app.command()
@FILE
@options(CONTEXT, TRAINED, CONFIG, FLAGS, JSON)
def explain(file: str, as_json: bool, context: int | None, trained_length: int | None, **place: Any) -> int:
    """Say what the rotary embedding of a config does.

    If its layers differ, all are listed. The exit code is 1 if the report has warnings.

    \b
    Example: rope-xp explain config.json --context 128k
    Example: rope-xp explain config.json --flags "--rope-scale 2"
    """
    found = groups_of(inputs.config(file), **place)
    if all(each.rope is None for each in found):
        raise inputs.no_embedding(file)
    context = context or place["seq_len"]
    explained = [
        Explained(
            each.name, each.layers, each.rope and _shown(each.rope.explain(context, trained_length=trained_length))
        )
        for each in found
    ]
    only = explained[0].explanation if len(explained) == 1 else None
    return show(only or LayersExplained(tuple(explained)), as_json)


def _shown(report: object) -> Any:
    """A report whose sentences name options of the command that runs."""
    return report_in_options(report, click.get_current_context().command)


@app.command()
@click.argument("a")
@click.argument("b", required=False)
@options(
    CONTEXT,
    click.option("--tolerance", type=float, help="The accepted change of a unit score."),
    CALLS,
    POSITIONS_IGNORED,
    CONFIG,
    FLAGS,
    JSON,
)
def compare(
    a: str,
    b: str | None,
    context: int | None,
    tolerance: float | None,
    head_dim: int | None,
    shape: str | None,
    like: str | None,
    positions_ignored: bool,
    as_json: bool,
    **place: Any,
) -> int:
    """Say whether two rotary embeddings are the same, and what differs.

    A and B are files, or module:function. A layer, part, length or layout is one of files. With --flags, B is what an
    engine computes from it with these arguments; without B, the flags are those of A. The exit code is 1 if the two
    differ, and 2 if they cannot be compared.

    \b
    Example: rope-xp compare old/config.json new/config.json
    Example: rope-xp compare config.json my_model:apply_rope --layer 5
    Example: rope-xp compare config.json --flags "--rope-scale 2"
    """
    inputs.require_one_stdin((a, b or ""))
    given = {name: value for name, value in place.items() if value is not None}
    values = [inputs.function(each) if inputs.is_function(each) else inputs.config(each) for each in (a, b) if each]
    if b is None:
        if "flags" not in given or callable(values[0]):
            raise click.UsageError("B must be given, or --flags with a file A; got A alone")
        values *= 2
    if given and all(map(callable, values)):
        flags = flags_of(click.get_current_context().command)
        raise click.UsageError(f"one of the two must be a file with {flags[next(iter(given))]}; got two functions")
    arrays = None if like is None else inputs.array_of(like)
    report = rope_xp.compare(
        *values,
        head_dim=head_dim,
        context=context,
        tolerance=tolerance,
        shape=shape,
        like=arrays,
        options=given,
        positions_ignored=positions_ignored,
    )
    show(_shown(report), as_json)
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
        return show(_shown(rope_xp.identify_checkpoint(file)), as_json)
    if head_dim is None:
        raise click.UsageError("--head-dim must be given for a function")
    report = rope_xp.identify(inputs.function(file), head_dim)
    return show(_shown(report), as_json) or int(report.rope is None)


@app.command()
@FILE
@click.option("--to", type=Length(), required=True, help="The new length.")
@click.option("--rule", type=click.Choice(RULES), help="The scaling rule.")
@click.option("--for", "target", type=PROGRAM, metavar="PROGRAM", help=f"Print the settings for one of {PROGRAMS}.")
@options(TRAINED, RULE, CONFIG, WRITING, JSON)
def extend(
    file: str,
    to: int,
    rule: Any,
    target: Target | None,
    trained_length: int | None,
    architecture: str | None,
    engine_version: str | None,
    as_json: bool,
    **others: Any,
) -> int:
    """Extend the context of a model. Without --rule, list the rules and what each does.

    The new length must be greater than the one that the model has, with its scaling. If a rule replaces a scaling with
    which the model may have been trained, a warning says so. The exit code is 1 if the report has warnings.

    \b
    Example: rope-xp extend config.json --to 128k
    Example: rope-xp extend config.json --to 128k --rule yarn --for vllm
    Example: rope-xp extend config.json --to 128k --rule yarn --beta-fast 16
    """
    parameters = {name: value for name in RULE_PARAMETERS if (value := others.pop(name)) is not None}
    config = inputs.config(file)
    rope = inputs.embedding(config, file, **others)
    if rule is None:
        flags = flags_of(click.get_current_context().command)
        for name in ("target", *parameters):
            if name in parameters or target is not None:
                raise click.UsageError(f"--rule must be given with {flags[name]}")
        return show(_shown(rope.extend(to, trained_length=trained_length)), as_json)
    extended = rope.extend(to, rule, trained_length=trained_length, **parameters)
    if replaced := replaced_scaling(rope):
        _note(f"warning: {replaced}")
    if target is None:
        return show(_shown(extended.explain(to)), as_json)
    writing = Options(architecture, engine_version)
    found = settings.of_rope(extended, target, writing, to)
    _note_trade_offs(rule, target, to)
    return _print(found)


def _note_trade_offs(rule: str, target: Target, to: int) -> None:
    """Say what the settings of a rule leave out."""
    if rule == "ntk":
        _note(METHODS[rule].trade_offs)
    elif rule == "dynamic" and target != "transformers":
        _note(f"{target} gets the frequencies of {to:,} tokens for all lengths")


@app.command()
@FILE
@click.option("--to", "target", type=ALL, metavar="PROGRAM", required=True, help=f"One of all, {PROGRAMS}.")
@options(CONFIG, WRITING, JSON)
def convert(
    file: str, target: object, architecture: str | None, engine_version: str | None, as_json: bool, **place: Any
) -> int:
    """Write the embedding of a config for another program: keys as JSON, or options.

    The keys for transformers belong into rope_parameters of config.json. If layers differ, the settings of all of them
    are written, by their types. With "all", a page has the settings for each program, or why it has none; a version is
    then ENGINE=VERSION, such as --engine-version llama.cpp=0.5.0.

    \b
    Example: rope-xp convert config.json --to llama.cpp
    Example: rope-xp convert config.json --to all
    """
    writing = Options(architecture, engine_version)
    groups = [each for each in groups_of(inputs.config(file), **place) if each.rope is not None]
    if not groups:
        raise inputs.no_embedding(file)
    if target == "all":
        return show(settings.page(groups, writing), as_json)
    return _print(settings.of_config(groups, target, writing), as_json)


def _print(found: Settings, as_json: bool = False) -> int:
    """Print settings as people paste them, or as JSON, and their notes on standard error."""
    for note in found.notes:
        _note(note)
    write(json.dumps(found.values, indent=2) if as_json else found.text())
    return 0


def _note(text: str) -> None:
    """One line on standard error."""
    print(f"rope-xp: {text}", file=sys.stderr)


@app.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("-o", "--output", type=click.Path(dir_okay=False), required=True, help="A .png or .svg file.")
@click.option("--kind", type=click.Choice(PICTURES), default=PICTURES[0], show_default=True, help="The picture.")
@click.option("--dark", is_flag=True, help="For a dark background.")
@options(CONTEXT, CONFIG)
def plot(files: tuple[str, ...], output: str, kind: str, dark: bool, context: int | None, **place: Any) -> int:
    """Draw the rotary embeddings of configs. If the layers of a config differ, all are drawn.

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
    ropes = {}
    for file in files:
        found = [each for each in groups_of(inputs.config(file), **place) if each.rope is not None]
        if not found:
            raise inputs.no_embedding(file)
        ropes |= {file if len(found) == 1 else f"{file}, {each.name}": each.rope for each in found}
    pictures.save(output, kind, ropes, context=context, dark=dark)
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


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these words, and return the exit code. Bad input is one line on standard error."""
    output = sys.stdout
    try:
        return app.main(None if arguments is None else [*arguments], prog_name="rope-xp", standalone_mode=False) or 0
    except SystemExit:
        if sys.stdout is not output:  # click replaces it if the reader of --help has closed the pipe
            return 0
        raise  # completion of shells
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
        command = app.commands.get(next(iter(words), ""), app)
        message = f"rope-xp: {in_options(str(error).removeprefix('rope-xp: '), command)}"
    print(" ".join(message.split()), file=sys.stderr)
    return 2
