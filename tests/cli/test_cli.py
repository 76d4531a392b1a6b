"""The command `rope-xp`: exit codes, output of 80 columns, and bad input in one line."""

import io
import json
import os
import re
import shlex
import sys
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from inspect import cleandoc
from itertools import pairwise
from unittest.mock import Mock

import click
import pytest
import sentences
from cases import for_each
from configs import CONFIGS, recorded

import rope_xp
from rope_xp.cli import doctor, main
from rope_xp.cli.commands import PICTURES, app
from rope_xp.cli.options import Command
from rope_xp.cli.settings import Entry, Page
from rope_xp.configs.every_layer import groups_of
from rope_xp.plot import PICTURES as DRAWN

COMMANDS = recorded("commands")
LLAMA, QWEN, PLAIN = "llama-3.1-8b", "qwen2.5-7b-instruct-yarn", "llama-2-7b"


@pytest.fixture
def file(tmp_path):
    """A function that writes a golden config, and returns its path."""

    def written(name, **changes):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(CONFIGS[name] | changes))
        return str(path)

    return written


@pytest.fixture
def run(capsys):
    """A function that runs the command and returns its exit code, output and errors."""

    def result(*words):
        with pytest.raises(SystemExit) as ended:
            main(words)
        return (ended.value.code, *capsys.readouterr())

    return result


@pytest.mark.parametrize("sentence", COMMANDS)
def test_what_is_said_of_a_line(sentence):
    """Reports have 80 columns, settings as many as they need."""
    sentences.assert_said(COMMANDS[sentence])
    for each in COMMANDS[sentence]:
        lines = "".join(each["says"]).splitlines()
        report = [line for line in lines if not line.startswith("rope-xp: ")]
        has_settings = {"convert", "--json", "--for"} & {*each["line"].split()}
        assert not report or has_settings or max(map(len, report)) <= 80


REFUSED_BY_CLICK = {
    "explain": "Missing argument",
    "unknown": "No such command",
    "convert a.json --to other": "is not one of",
    "convert a.json --to vlm": "; similar is 'vllm'",
}


@for_each("line, said", REFUSED_BY_CLICK.items())
def test_what_click_refuses_is_one_line(run, line, said):
    code, text, errors = run(*line.split())
    assert (code, text, errors.count("\n")) == (2, "", 1) and errors.startswith("rope-xp: ") and said in errors


OWN_MODEL = """
import numpy as np
def rotate(x, positions):
    z = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * np.outer(positions, 100.0 ** (-np.arange(4) / 4)))
    return np.stack((z.real, z.imag), -1).reshape(x.shape)
def half(x, positions):
    assert x.dtype == np.float16
    return rotate(x, positions).astype(x.dtype)
def of_heads(x, positions):
    return rotate(x, np.arange(x.shape[-2]))
"""
FUNCTIONS = {
    "rotate": (0, "is RotaryEmbedding(head_dim=8, layout='interleaved', base=100.0)"),
    "of_heads --shape 'seq dim'": (1, ", but it ignores positions"),
    "of_heads --shape 'batch seq heads dim'": (1, ", but it rotates heads in place of"),
    "half --like numpy:float16 --shape 'seq dim'": (0, "x of (seq dim), numpy, results in float16"),
}


def test_functions_are_imported_from_the_folder_of_the_command_first(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(sys, "path", [*filter(None, sys.path), str(tmp_path / "other"), str(tmp_path / "none")])
    for name, text in {"own_model": OWN_MODEL, "other/own_model": ""}.items():
        (tmp_path / f"{name}.py").write_text(text)
    for line, (ends, said) in FUNCTIONS.items():
        code, text, errors = run("identify", *shlex.split(f"own_model:{line}"), "--head-dim", "8")
        assert (code, errors) == (ends, "") and said in " ".join(text.split())


def test_long_lists_are_not_read_once_for_each_layer(monkeypatch):
    """A vocabulary of a million tokens would cost seconds for each layer."""
    read = []

    def from_config(config, **options):
        read.append(len(config["vocabulary"]) if "vocabulary" in config else 0)
        return rope_xp.from_config(config, **options)

    monkeypatch.setattr("rope_xp.configs.every_layer.from_config", from_config)
    found = groups_of({**CONFIGS["gemma-3-12b-it"], "vocabulary": ["a"] * 500_000}, None, None)
    assert [each.name for each in found] == ["sliding_attention", "full_attention"]
    assert read == [500_000] + [0] * 48
    unrotated = {"position_embedding_type": "none", "num_query_groups": 2, "hidden_size": 64, "num_attention_heads": 4}
    assert [each.rope for each in groups_of(unrotated, None, None)] == [None]


def test_plot_draws_all_layers(run, file, tmp_path, monkeypatch):
    path, output = file("gemma-3-12b-it"), tmp_path / "a.svg"
    assert run("plot", path, "-o", str(output), "--kind", "pair")[0] == 0
    assert all(f"{name}_attention: Pair 0" in output.read_text() for name in ("sliding", "full"))
    drawn = {}
    monkeypatch.setattr("rope_xp.plot.save", lambda output, kind, ropes, **_: drawn.update(ropes))
    for labels, one, other in (([], path, file(LLAMA)), (["--label", "Gemma", "--label", "Llama"], "Gemma", "Llama")):
        drawn.clear()
        assert run("plot", path, file(LLAMA), "-o", "a.png", *labels)[0] == 0
        assert [*drawn] == [f"{one}, sliding_attention", f"{one}, full_attention", other]


def test_files_of_factors_have_a_bound(run, file, tmp_path, monkeypatch):
    numbers = tmp_path / "numbers"
    numbers.write_text("1 " * 64)
    words = ("--rule", "longrope", "--short-factor", str(numbers), "--long-factor", str(numbers), "--for", "vllm")
    for size, code in ((128, 0), (127, 2)):
        monkeypatch.setattr("rope_xp.cli.options.MAX_BYTES", size)
        assert run("extend", file(PLAIN), "--to", "32k", *words)[0] == code


def test_compare_has_the_options_of_python(run, file, tmp_path, monkeypatch):
    given = {}

    def compare(*values, **options):
        given.update(options, values=values)
        return original(*values, **options | {"like": None})

    original = rope_xp.compare
    monkeypatch.setattr("rope_xp.compare", compare)
    code, text, _ = run("compare", file(LLAMA), "math:sin")
    assert code == 2 and "say so by --shape and --like, or wrap it" in text
    gemma = file("gemma-3-12b-it")
    words = ("--layer-type", "sliding_attention", "--seq-len", "1k", "--layout", "interleaved", "--tolerance", "0.01")
    assert run("compare", gemma, gemma, *words, "--like", "numpy:float16", "--context", "9")[0] == 0
    assert given["options"] == {"layer_type": "sliding_attention", "seq_len": 1024, "layout": "interleaved"}
    assert (given["tolerance"], given["context"], str(given["like"].dtype)) == (0.01, 9, "float16")
    assert run("compare", gemma, gemma, "--layer", "5")[0] == 0 and given["options"] == {"layer": 5}
    assert run("compare", gemma, gemma, "--layer", "5", "--positions-ignored")[0] == 0
    assert given["positions_ignored"] is True
    qwen = file("qwen2-vl-7b-instruct")
    assert run("compare", qwen, qwen, "--part", "vision")[0] == 0 and given["options"] == {"part": "vision"}


CODES = {"explain llama-3.1-8b": 0, "explain internlm2-7b": 1, "convert llama-3.1-8b --to transformers": 0, "--help": 0}


@pytest.mark.parametrize("line", CODES)
def test_a_closed_pipe_changes_no_exit_code(run, file, line, monkeypatch):
    """`rope-xp explain FILE | head -1`: the reader has gone, and the report has warnings or not."""
    reader, writer = os.pipe()
    os.close(reader)
    closed = os.fdopen(writer, "w")
    monkeypatch.setattr(sys, "stdout", closed)
    assert run(*(file(each) if each in CONFIGS else each for each in line.split())) == (CODES[line], "", "")
    sys.stdout.flush()  # as Python does when it ends
    with suppress(BrokenPipeError):
        closed.close()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_terminal_shows_every_number(run, file, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys, "stdout", shown := Terminal())
    run("extend", file(LLAMA), "--to", "1M")
    assert "\x1b[1m" in shown.getvalue()  # titles are bold
    lines = re.sub("\x1b\\[[0-9;]*m", "", shown.getvalue()).splitlines()
    assert max(map(len, lines)) <= min(width, 80) and "\u2026" not in shown.getvalue()
    if width >= 80:
        rows = [" ".join(line.split()) for line in lines]
        assert "rule kept blended interpolated divided by new angles attention" in rows
        assert "dynamic 1 31 32 1 to 16,257 0 1" in rows


@pytest.mark.parametrize("name", [QWEN, "gemma-3-12b-it"])
def test_a_terminal_shows_settings_as_they_are_pasted(run, file, monkeypatch, name):
    """The lines of a page and its notes are those of a pipe. Only titles are bold."""
    monkeypatch.setenv("COLUMNS", "80")
    text = run("convert", file(name), "--to", "all")[1]
    monkeypatch.setattr(sys, "stdout", shown := Terminal())
    run("convert", file(name), "--to", "all")
    assert re.sub("\x1b\\[[0-9;]*m", "", shown.getvalue()) == text


def test_a_process_may_have_no_standard_input_or_output(run, file, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert run("explain", "-") == (2, "", "rope-xp: standard input must be JSON; got no text: it is empty\n")
    monkeypatch.setattr(sys, "stdout", None)
    assert run("compare", file(LLAMA), file(PLAIN)) == (1, "", "")


def test_plot_writes_every_kind_of_picture(run, file, tmp_path):
    assert tuple(DRAWN) == PICTURES
    assert run("plot", file(LLAMA), file(PLAIN), "-o", str(tmp_path / "a.svg"), "--context", "128k")[0] == 0
    text = (tmp_path / "a.svg").read_text()
    assert text.startswith("<?xml") and "llama" in text
    assert run("plot", file(LLAMA), "-o", str(tmp_path / "a.png"), "--kind", "phase-error", "--dark")[0] == 0


def test_doctor_tests_every_library(run, monkeypatch):
    code, text, _ = run("doctor", "--json")
    report = json.loads(text)
    assert code == 0
    assert report["versions"]["numpy"] == version("numpy")
    installed = filter(find_spec, ("numpy", "torch", "jax"))
    assert {each["result"] for each in report["libraries"]} == {"right"}
    assert not any(each["kernel"].endswith(": ") for each in report["libraries"])  # a reason, if there is one
    assert [int(each).bit_length() for each in doctor.POSITIONS] == [*range(25)] and all(doctor.POSITIONS[1:] % 2 == 1)
    monkeypatch.setattr(doctor, "ROPE", doctor.ROPE.replace(phase="float32"))  # a planted mistake
    code, text, _ = run("doctor")
    assert code == 1 and "wrong by" in text
    found = {(each["name"], each["device"]) for each in report["libraries"]}
    assert found >= {(name, "default device" if name == "jax" else "cpu") for name in installed}


@pytest.mark.parametrize("has_gpu", [False, True])
def test_doctor_tests_torch_on_a_gpu_if_there_is_one(monkeypatch, has_gpu):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    asarray = torch.asarray
    monkeypatch.setattr(torch, "asarray", lambda x, device="cpu", **options: asarray(x, **options))  # on no GPU
    found = [(each.name, each.device, each.result) for each in doctor.diagnose().libraries if each.name == "torch"]
    assert found == [("torch", device, "right") for device in ("cpu", "cuda")[: 1 + has_gpu]]


def test_doctor_says_what_fails(monkeypatch, tmp_path):
    """Libraries whose import fails, without or with a message of several lines, and one whose arrays fail."""
    monkeypatch.syspath_prepend(tmp_path)
    texts = {"broken": "raise OSError", "damaged": "raise ImportError('first\\nsecond')"}
    texts["array"] = "def array(x): return 1/0"
    for name, text in texts.items():
        (tmp_path / f"a_{name}.py").write_text(text)
    monkeypatch.setattr(doctor, "LIBRARIES", {f"a_{name}": f"a_{name}" for name in (*texts, "missing")})
    monkeypatch.setattr(doctor, "PACKAGES", ("a-missing-one", "numpy", "another-missing-one", "click"))
    assert [*doctor.diagnose().versions] == ["rope_xp", "python", "machine", "numpy", "click"]
    assert doctor.diagnose().warnings[-1] == "a_array on cpu: fails: ZeroDivisionError: division by zero"
    assert doctor.Diagnosis({}, (doctor.Library("x", "y", "z", "right"),)).warnings == ()
    assert [(each.name, each.device, each.kernel, each.result) for each in doctor.diagnose().libraries] == [
        ("a_broken", "-", "-", "cannot be imported: OSError: "),
        ("a_damaged", "-", "-", "cannot be imported: ImportError: first"),
        ("a_array", "cpu", "-", "fails: ZeroDivisionError: division by zero"),
    ]


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch, file):
    for mistake in (IndexError("of a list"), ValueError("a mistake")):
        monkeypatch.setattr("rope_xp.cli.commands.groups_of", Mock(side_effect=mistake))
        with pytest.raises(type(mistake), match=f"^{mistake}$"):
            main(["explain", file(LLAMA)])


def test_an_error_of_the_system_is_one_line(run, monkeypatch, file):
    for error, said in ((OSError("no disk"), "no disk"), (OSError("explain: no disk"), "no disk")):
        monkeypatch.setattr("rope_xp.cli.commands.groups_of", Mock(side_effect=error))
        assert run("explain", file(LLAMA)) == (2, "", f"rope-xp: {said}\n")
    monkeypatch.setattr("rope_xp.cli.commands.groups_of", Mock(side_effect=KeyboardInterrupt))
    assert run("explain", file(LLAMA)) == (130, "", "\n")


def test_without_click_the_extra_is_named(run, monkeypatch):
    commands = "rope_xp.cli.commands"
    monkeypatch.setitem(sys.modules, commands, None)  # a mistake of ours
    with pytest.raises(ModuleNotFoundError, match=commands):
        main(["doctor"])
    monkeypatch.delitem(sys.modules, commands)
    monkeypatch.setitem(sys.modules, "click", None)
    assert run("doctor") == (2, "", "rope-xp: the extra rope-xp[cli] must be installed; got no module 'click'\n")


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", ["", *app.commands])
def test_help_is_whole_at_every_width_and_has_an_example(run, monkeypatch, name, width):
    monkeypatch.setenv("COLUMNS", str(width))
    code, text, _ = run(*[name] * bool(name), "--help")
    assert code == 0 and max(map(len, text.splitlines())) <= min(width, 80)
    words = " ".join(text.replace("\\\n", " ").split())
    for command in [app.commands[name]] if name else app.commands.values():
        sentence, _, examples = cleandoc(command.help).partition("\b\n")
        if not name:
            assert sentence.partition(".")[0] in words
            continue
        assert " ".join(sentence.split()) in words and f"Example: rope-xp {name}" in examples
        assert all(example in words for example in examples.splitlines())
        for each in command.params:
            if isinstance(each, click.Option):
                assert each.opts[-1] in words and " ".join(each.help.split()) in words


def test_without_words_the_help_is_shown(run):
    code, text, errors = run()
    assert (code, text) == (2, "") and errors.split() == run("--help")[1].split()


def test_completion_is_available(run, monkeypatch):
    monkeypatch.setenv("_ROPE_XP_COMPLETE", "bash_source")
    code, text, errors = run()
    assert (code, errors) == (0, "") and "complete" in text


def test_examples_of_help_fill_their_lines():
    """Joined as a shell joins lines, the example is whole; no option would fit into the line above."""
    example = 'Example: rope-xp x a.json --to 128k -o a.svg --flags "--rope-scale 2" --label new --beta-fast 1 --json'
    command = Command("x", help=f"Text.\n\n\b\n{example}")
    for width in range(34, 90):
        text = command.get_help(click.Context(command, terminal_width=width)).partition("\n\nOptions")[0]
        lines = text.rpartition("\n\n")[2].splitlines()
        assert " ".join(line.strip(" \\") for line in lines) == example
        for line, following in pairwise(lines):
            option = re.match(r' {6}(--?[a-z-]+( "[^"]+"| \w[\w.]*)?)', following)[1]
            assert line.endswith(" \\") and len(line) <= width < len(f"{line[:-2]} {option} \\")


# The flags of an engine, and the page of all programs.


def test_a_page_can_be_pasted(run, file):
    """Arguments and JSON have line ends that a shell and a parser accept."""
    for name in (QWEN, "qwen3-vl-2b-instruct", "gemma-3-12b-it"):
        text = run("convert", file(name), "--to", "all")[1]
        found = dict(zip(*[iter(re.split(r"^== ([\w.-]+): .* ==\n", text, flags=re.M)[1:])] * 2))
        for target in {"vllm", "llama.cpp"} & {*found}:
            arguments = shlex.split(found[target].partition("\n(")[0].replace("\\\n", " "))
            wanted = shlex.split(run("convert", file(name), "--to", target)[1])
            assert [json.loads(each) if each[0] == "{" else each for each in arguments] == [
                json.loads(each) if each[0] == "{" else each for each in wanted
            ]
        assert json.loads(found["transformers"]) == json.loads(run("convert", file(name), "--to", "transformers")[1])


def body_of(settings):
    """The lines of settings in a page."""
    title, *lines = str(Page((Entry("vllm", "arguments", settings),))).splitlines()
    assert title == "== vllm: arguments ==" and max(map(len, lines)) <= 80
    return lines


def fits(line, following, width):
    """Whether the first word of the following line had room in a line."""
    return len(line) + 1 + len(following.split()[0]) <= width


def test_settings_fill_their_lines():
    """JSON of less than 80 columns stands in one line; longer objects have a key in each, and lists are wrapped."""
    for length in range(1, 70):
        short, long = {"a": "x" * length}, {"a": "x" * 50, "b" * 9: {"c": "x" * (length % 55)}}
        assert (body_of(short) == [f"  {json.dumps(short)}"]) == (len(json.dumps(short)) < 78)
        lines, wanted = body_of(long), f'    "{"b" * 9}": {json.dumps(long["b" * 9])}'
        assert json.loads("".join(lines)) == long and lines[1] == f'    "a": "{"x" * 50}",'
        assert (lines[2] == wanted) == (len(lines) == 4) == (len(wanted) < 80)
        several = {"a": [10 ** (length % 13)] * 40}
        opened, first, *middle, closed = body_of(several)
        assert json.loads("".join([opened, first, *middle, closed])) == several
        assert not any(fits(*pair, width) for pair, width in zip(pairwise([first, *middle]), [80, *[75] * 40]))
        words = ["--one", *["x" * (1 + length % 13)] * 40, "--two", "x y"]
        lines = body_of(words)
        assert shlex.split("\n".join(lines).replace("\\\n", " ")) == words and lines[-1] == "  --two 'x y'"
        assert not any(fits(*pair, 78) for pair in pairwise(lines[:-1]))
        assert (len(body_of(["--one", "x" * (length + 5), "--two"])) == 2) == (length + 5 <= 70)


def test_words_that_are_too_long_stay_whole():
    values = {"a" * 40: {"b": ["x" * 100, "y"]}}
    assert json.loads(str(Page((Entry("vllm", "keys", values),))).partition("\n")[2]) == values


def test_extend_says_which_programs_have_one_set_of_frequencies_of_dynamic_ntk(run, file):
    said = run("extend", file(PLAIN, rope_scaling={"rope_type": "dynamic", "factor": 2.0}), "--to", "32k")[1]
    assert "for llama: transformers, mlx, lmdeploy" in " ".join(said.split())
    for target, has_one in (("mlx", False), ("lmdeploy", False), ("axolotl", False), ("vllm", True), ("sglang", True)):
        code, _, said = run("extend", file(PLAIN), "--to", "32k", "--rule", "dynamic", "--for", target)
        assert code == 0 and ("for all lengths" in said) == has_one, target
