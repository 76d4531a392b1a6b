"""The commands of `rope-xp`, by click."""

import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from shutil import get_terminal_size
from typing import Unpack

import click

import rope_xp
from rope_xp.cli import settings
from rope_xp.cli.doctor import diagnose
from rope_xp.cli.options import (
    CALLS,
    CONFIG,
    CONTEXT,
    FILE,
    FLAGS,
    JSON,
    RULE,
    RULES,
    TRAINED,
    WRITING,
    Command,
    Programs,
    Wanted,
    about,
    config,
    flags_of,
    function,
    is_function,
    length,
    no_embedding,
    options,
    placed,
    report_in_options,
    require_one_stdin,
)
from rope_xp.cli.settings import Settings
from rope_xp.configs.every_layer import LayerGroup, groups_of
from rope_xp.configs.reading import why_not_rotated
from rope_xp.configs.writers import FOLLOWING_LENGTH, TARGETS, WITH_CONTEXT, Options, Target
from rope_xp.embedding import RotaryEmbedding, RuleName
from rope_xp.explanation import Explained, LayersExplained, length_dependent
from rope_xp.reports import WIDTH, Report, as_text
from rope_xp.types import Array

# The keys of `rope_xp.plot.PICTURES`, which needs matplotlib.
PICTURES = ("wavelengths", "scaling", "decay", "phase-error", "scores", "sections", "pair")


class Commands(click.Group):
    command_class = Command


@click.group(cls=Commands, context_settings={"max_content_width": WIDTH})
@click.version_option(rope_xp.__version__, prog_name="rope-xp")
def app() -> None:
    """Rotary position embeddings of models: what they do, and whether two are the same.

    FILE is a config.json, a params.json, a GGUF, a folder that has one of them, a safetensors file in such a folder, or
    - for the JSON on standard input. identify takes a safetensors or GGUF file, or a folder with one. Lengths are
    numbers of tokens, such as 131072 or 128k (k is 1,024).

    Exit codes: 0; 1 if embeddings differ, no embedding is found, or the report has warnings; 2 for bad input.
    """


PROGRAMS = ", ".join(TARGETS)


@app.command()
@FILE
@options(CONTEXT, TRAINED, CONFIG, FLAGS, JSON)
def explain(file: str, as_json: bool, context: int | None, trained_length: int | None, **place: Unpack[Wanted]) -> int:
    """Say what the rotary embedding of a config does.

    If its layers differ, all are listed. The exit code is 1 if the report has warnings, or if the layer of --layer or
    --layer-type is not rotated.

    \b
    Example: rope-xp explain config.json --context 128k
    Example: rope-xp explain config.json --flags "--rope-scale 2"
    """
    found = _groups(file, place, may_lack=(place["layer"], place["layer_type"]) != (None, None))
    context = context or place["seq_len"]
    explained = [
        Explained(
            each.name,
            each.layers,
            each.rope and report_in_options(each.rope.explain(context, trained_length=trained_length)),
        )
        for each in found
    ]
    first, *others = explained
    report = LayersExplained(tuple(explained)) if others or first.explanation is None else first.explanation
    return show(report, as_json) or int(not others and first.explanation is None)


def _groups(file: str, place: Wanted, may_lack: bool = False) -> list[LayerGroup]:
    """The layers of a file by their embeddings; an error if none has one, unless they `may_lack` it."""
    with about(file):
        given = config(file)
        found = groups_of(given, **place)
        if not may_lack and all(each.rope is None for each in found):
            raise no_embedding(file, why_not_rotated(given, place["part"]))
    return found


@app.command()
@click.argument("a")
@click.argument("b", required=False)
@options(
    CONTEXT,
    click.option(
        "--tolerance",
        type=float,
        help="The accepted change of a score of unit vectors; by default 0.001; of results in 16 bits, 8 roundings.",
    ),
    CALLS,
    click.option("--positions-ignored", is_flag=True, help="Accept a function that ignores its positions."),
    CONFIG,
    FLAGS,
    JSON,
)
def compare(a: str, b: str | None, as_json: bool, **given: object) -> int:
    """Say whether two rotary embeddings are the same, and what differs.

    A and B are files, or module:function, which is called as function(x, positions), or as function(x). --layer,
    --part, --layout, --seq-len and --layer-type apply to files. --flags applies to B. Without B, A is compared with A
    plus the flags. The exit code is 1 if the two differ, and 2 if they cannot be compared.

    \b
    Example: rope-xp compare old/config.json new/config.json
    Example: rope-xp compare config.json my_model:apply_rope --layer 5
    Example: rope-xp compare old:rotate my_model:rotate --head-dim 64
    Example: rope-xp compare config.json --flags "--rope-scale 2"
    """
    require_one_stdin((a, b or ""))
    place, calls = placed(given)
    values = [function(each) if is_function(each) else config(each) for each in (a, b) if each]
    if b is None:
        if "flags" not in place or callable(values[0]):
            raise click.UsageError("B must be given, or --flags with a file A; got A alone")
        values *= 2
    if place and all(map(callable, values)):
        raise click.UsageError(f"one of the two must be a file with {flags_of()[next(iter(place))]}; got two functions")
    # What `from_config` says of a path names it.
    with about("-", "from_config: "):
        report = rope_xp.compare(*values, options=place, **calls)
    show(report_in_options(report), as_json)
    return 0 if report.same else 1 if report.comparable else 2


@app.command()
@click.argument("file", metavar="FILE|MODULE:FUNCTION")
@options(CALLS, JSON)
def identify(file: str, head_dim: int | None, shape: str | None, like: Array | None, as_json: bool) -> int:
    """Say which format a checkpoint has, or which rotary embedding a function computes.

    The function is called as function(x, positions), or function(x) if it takes no more. The usual orders of axes are
    tried, with arrays of NumPy, and of PyTorch and JAX if the function's module imports them. Give --shape or --like if
    the report says that the calls fail. The exit code is 1 if no layout or no embedding is found, if the function does
    not rotate tokens by their positions, or if the report has warnings.

    \b
    Example: rope-xp identify model.safetensors
    Example: rope-xp identify my_model:apply_rope --head-dim 64
    Example: rope-xp identify my_model:half --head-dim 64 --like torch:bfloat16
    """
    if not is_function(file):
        for name, value in (("head_dim", head_dim), ("shape", shape), ("like", like)):
            if value is not None:
                raise click.UsageError(f"{flags_of()[name]} must be given with module:function; got {file}")
        found = rope_xp.identify_checkpoint(file)
        unknown = {"embedding: cannot tell", "embedding: none"}.intersection(dict(found.conclusions))
        return show(report_in_options(found), as_json) or int(found.layout is None or bool(unknown))
    if head_dim is None:
        raise click.UsageError("--head-dim must be given for a function")
    report = rope_xp.identify(function(file), head_dim, shape=shape, like=like)
    return show(report_in_options(report), as_json) or int(report.rope is None or bool(report.flaw))


@app.command()
@FILE
@click.option("--to", type=length, required=True, help="The new length.")
@click.option("--rule", type=click.Choice(RULES), metavar="RULE", help=f"The scaling rule: {', '.join(RULES)}.")
@click.option("--for", "target", type=Programs(), metavar="PROGRAM", help=f"Print the settings for one of {PROGRAMS}.")
@options(TRAINED, RULE, CONFIG, WRITING, JSON)
def extend(
    file: str,
    to: int,
    rule: RuleName | None,
    target: Target | None,
    trained_length: int | None,
    architecture: str | None,
    engine_version: str | None,
    as_json: bool,
    **given: object,
) -> int:
    """Extend the context of a model. Without --rule, recommend one, and list what each does.

    The new length must be greater than that with the present scaling. A warning says if a rule replaces a scaling with
    which the model may have been trained. With warnings, the exit code is 1; with --for, 0, and they go to stderr.

    \b
    Example: rope-xp extend config.json --to 128k
    Example: rope-xp extend config.json --to 128k --rule yarn --for vllm
    Example: rope-xp extend config.json --to 128k --rule yarn --beta-fast 16
    """
    place, parameters = placed(given)
    with about(file):
        values = config(file)
        rope = rope_xp.from_config(values, **place)
        if rope is None:
            raise no_embedding(file, why_not_rotated(values, place.get("part")))
        if rule is None:
            choices = rope.extend(to, trained_length=trained_length)
            for name in ("target", *parameters):
                if name in parameters or target is not None:
                    raise click.UsageError(f"--rule must be given with {flags_of()[name]}; got no --rule")
            return show(report_in_options(choices), as_json)
        extended = rope.extend(to, rule, trained_length=trained_length, **parameters)
        if target is None:
            return show(report_in_options(extended.explain(to)), as_json)
        writing = Options(architecture, engine_version, to if target in WITH_CONTEXT else None)
        found = settings.of_rope(extended, target, writing)
        for warning in extended.explain(to).warnings:
            if warning != length_dependent(extended, to):  # programs have no `rerotate`
                _note(f"warning: {warning}")
    _note_what_is_left(rule, target, to, extended, found.text())
    return _print(found, as_json)


def _note_what_is_left(rule: str, target: Target, to: int, extended: RotaryEmbedding, text: str) -> None:
    if rule == "ntk" and '"alpha"' in text:
        _note(f'note: {target} has the rule ntk by the name "dynamic", with alpha as its factor')
    # transformers takes it for the length of training.
    if rule == "dynamic":
        if target not in FOLLOWING_LENGTH:
            _note(f"warning: {target} gets the frequencies of {to:,} tokens for all lengths")
        if target in ("transformers", "transformers4"):
            _note('note: keep "max_position_embeddings" in config.json: it is the trained length')
    elif target in ("transformers", "transformers4"):
        _note(f'note: set "max_position_embeddings" to {to} in config.json, too')
    if target == "transformers":
        inside = f', in its object "{kind}"' if (kind := extended._provenance.layer_type) else ""
        _note(f'note: in config.json, these keys belong in "rope_parameters"{inside}; remove "rope_scaling"')


@app.command()
@FILE
@click.option("--to", "target", type=Programs("all"), metavar="PROGRAM", required=True, help=f"One of all, {PROGRAMS}.")
@options(CONFIG, FLAGS, WRITING, JSON)
def convert(
    file: str,
    target: Target,
    architecture: str | None,
    engine_version: str | None,
    as_json: bool,
    **place: Unpack[Wanted],
) -> int:
    """Write the embedding of a config for another program, as JSON or as a command line.

    The keys for transformers belong in rope_parameters of config.json. If layers differ, the settings of all of them
    are written, by their types, if the program has them. With --to all, a page has the settings for each program, or
    why it has none; write a version as --engine-version ENGINE=VERSION, such as llama.cpp=0.5.0.

    \b
    Example: rope-xp convert config.json --to llama.cpp
    Example: rope-xp convert config.json --to all
    Example: rope-xp convert config.json --flags "--rope-scale 2" --to vllm
    """
    writing = Options(architecture, engine_version)
    groups = [each for each in _groups(file, place) if each.rope is not None]
    for remark in dict.fromkeys(remark for each in groups if each.rope for remark in each.rope._provenance.remarks):
        _note(f"note: {remark}")
    if target == "all":
        return show(settings.page(groups, writing), as_json)
    with about(file):
        return _print(settings.of_config(groups, target, writing), as_json)


def _print(found: Settings, as_json: bool) -> int:
    for note in found.notes:
        _note(note)
    write(json.dumps(found.values, indent=2) if as_json else found.text())
    return 0


def _note(text: str) -> None:
    print(f"rope-xp: {text}", file=sys.stderr)


@app.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("-o", "--output", type=click.Path(dir_okay=False), required=True, help="A .png or .svg file.")
@click.option(
    "--kind",
    type=click.Choice(PICTURES),
    metavar="KIND",
    default=PICTURES[0],
    show_default=True,
    help=f"The picture: {', '.join(PICTURES)}.",
)
@click.option("--label", "labels", multiple=True, help="The name of a file in the picture, once for each FILE.")
@click.option("--dark", is_flag=True, help="Draw for a dark page. The background is transparent.")
@click.option("--context", type=length, help="The sequence length to draw, such as 128k.")
@options(CONFIG)
def plot(
    files: tuple[str, ...],
    output: str,
    kind: str,
    labels: tuple[str, ...],
    dark: bool,
    context: int | None,
    **place: Unpack[Wanted],
) -> int:
    """Draw the rotary embeddings of configs. If the layers of a config differ, each type of them is drawn.

    Both lists of LongRoPE are drawn, unless --seq-len chooses one.

    \b
    Example: rope-xp plot config.json other.json -o wavelengths.svg
    Example: rope-xp plot a.json b.json --label old --label new -o new.svg
    """
    try:
        from rope_xp import plot as pictures
    except ImportError as error:
        raise click.UsageError(str(error).removeprefix("rope_xp.plot: ")) from None
    require_one_stdin(files)
    if labels and (len(labels) != len(files) or not all(map(str.strip, labels))):
        raise click.UsageError(f"--label must be given once for each FILE, and not be empty; got {', '.join(labels)!r}")
    if len({*(labels or files)}) < len(files):
        raise click.UsageError("files of the same name must each have a --label of their own; got the same name twice")
    ropes = {}
    for file, label in zip(files, labels or files):
        found = [each for each in _groups(file, place) if each.rope is not None]
        ropes |= {label if len(found) == 1 else f"{label}, {each.name}": each.rope for each in found}
    try:
        pictures.save(output, kind, ropes, context=context, dark=dark)
    except OSError as error:
        raise click.ClickException(
            f"--output must be a file that can be written; got {output}: {error.strerror}"
        ) from None
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
        message = error.format_message()
    except click.Abort:
        return 130
    except OSError as error:
        message = str(error)
    print(" ".join(f"rope-xp: {message}".split()), file=sys.stderr)
    return 2


def show(report: Report, as_json: bool) -> int:
    """Print a report. The exit code is 1 if it has warnings."""
    if as_json:
        write(json.dumps(report.to_dict(), indent=2))
    elif sys.stdout is not None and sys.stdout.isatty():
        write(as_text(report, min(get_terminal_size().columns, WIDTH), partial(click.style, bold=True)))
    else:
        write(str(report))
    return 1 if getattr(report, "warnings", ()) else 0


def write(text: str) -> None:
    """Print a text. A reader may close the pipe early, as `head` does: it has what it wants."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # What is still to be written to standard output vanishes, so that Python does not fail when it ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
