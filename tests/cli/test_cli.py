"""The command `rope-xp`: exit codes, output of 80 columns, and bad input in one line."""

import io
import json
import os
import re
import shlex
import sys
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from inspect import cleandoc
from itertools import pairwise
from unittest.mock import Mock

import click
import pytest
from cases import for_each
from configs import CONFIGS, ROWS

import rope_xp
from rope_xp import from_config
from rope_xp.cli import doctor, main
from rope_xp.cli.commands import PICTURES, app
from rope_xp.cli.options import Command, with_advice
from rope_xp.cli.settings import ORDER, Entry, Page
from rope_xp.configs.every_layer import groups_of
from rope_xp.configs.writers import REFUSED, TARGETS
from rope_xp.plot import PICTURES as DRAWN

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


def test_explain_prints_text_and_json(run, file):
    code, text, errors = run("explain", file(LLAMA), "--context", "128k")
    assert (code, errors) == (0, "")
    assert text == f"{from_config(CONFIGS[LLAMA]).explain(2**17)}\n"
    assert max(map(len, text.splitlines())) <= 80
    code, text, _ = run("explain", file(LLAMA), "--json")
    assert (code, text) == (0, f"{json.dumps(from_config(CONFIGS[LLAMA]).explain().to_dict(), indent=2)}\n")


def test_explain_has_the_options_of_from_config(run, file):
    _, text, _ = run("explain", file("gemma-3-12b-it"), "--layer-type", "sliding_attention", "--json")
    own = from_config(CONFIGS["gemma-3-12b-it"], layer_type="sliding_attention").explain()
    assert json.loads(text) == own.to_dict()
    _, text, _ = run("explain", file("qwen2-vl-7b-instruct"), "--part", "vision", "--json")
    assert json.loads(text) == from_config(CONFIGS["qwen2-vl-7b-instruct"], part="vision").explain().to_dict()
    _, text, _ = run("explain", file("phi-4-mini-instruct"), "--seq-len", "100000", "--json")
    own = from_config(CONFIGS["phi-4-mini-instruct"], seq_len=100_000).explain(100_000)
    assert json.loads(text) == own.to_dict()


def test_warnings_make_the_exit_code_1(run, file):
    code, text, _ = run("explain", file(PLAIN), "--context", "1M")
    assert code == 1 and "Warnings" in text


def test_compare_says_whether_two_are_the_same(run, file):
    assert run("compare", file(LLAMA), file(LLAMA))[0] == 0
    code, text, _ = run("compare", file(PLAIN), file(LLAMA), "--json")
    report = json.loads(text)
    assert code == 1 and report["same"] is False and {*report["causes"]} == {"base", "scaling"}


OWN_MODEL = """
import numpy as np
def rotate(x, positions):
    z = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * np.outer(positions, 100.0 ** (-np.arange(4) / 4)))
    return np.stack((z.real, z.imag), -1).reshape(x.shape)
def powers(x, positions):
    return x**3
def half(x, positions):
    assert x.dtype == np.float16
    return rotate(x, positions).astype(x.dtype)
def of_heads(x, positions):
    return rotate(x, np.arange(x.shape[-2]))
text = 'no function'
"""


def test_functions_are_imported_from_the_folder_of_the_command(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(sys, "path", [*filter(None, sys.path), str(tmp_path / "other"), str(tmp_path / "none")])
    files = {"own_model": OWN_MODEL, "own_second": OWN_MODEL, "own_end": "raise SystemExit(3)", "other/own_model": ""}
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    code, text, errors = run("identify", "own_model:rotate", "--head-dim", "8")
    assert (code, errors) == (0, "")
    assert "RotaryEmbedding(head_dim=8, layout='interleaved', base=100.0)" in " ".join(text.split())
    code, text, errors = run("identify", "own_model:powers", "--head-dim", "8", "--json")
    assert (code, errors, json.loads(text)["rope"]) == (1, "", None)
    for shape, flaw in (("seq dim", "ignores positions"), ("batch seq heads dim", "rotates heads in place of")):
        code, text, _ = run("identify", "own_model:of_heads", "--head-dim", "8", "--shape", shape)
        assert code == 1 and f", but it {flaw}" in " ".join(text.split())
    words = ("identify", "own_model:half", "--head-dim", "8")
    code, text, _ = run(*words, "--like", "numpy:float16", "--shape", "seq dim")
    assert code == 0 and "x of (seq dim), numpy, results in float16" in text and run(*words)[0] == 1
    for other, of in (("own_second", [f" of {tmp_path / name}.py:3" for name in files][:2]), ("own_model", ["", ""])):
        text = run("compare", "own_model:rotate", f"{other}:rotate", "--head-dim", "8", "--json")[1]
        assert [json.loads(text)[key] for key in "ab"] == [f"the function rotate{each}" for each in of]
    cannot = "must be a function that can be imported; got"
    for words, message in {
        ("identify", "own_model:rotate"): "--head-dim must be given for a function",
        ("identify", "own_model:missing", "--head-dim", "8"): f"own_model:missing {cannot} AttributeError: module",
        ("identify", "own_missing:f", "--head-dim", "8"): f"own_missing:f {cannot} ModuleNotFoundError: No module",
        ("identify", "own_end:f", "--head-dim", "8"): f"own_end:f {cannot} SystemExit: 3",
        ("identify", "own_model:text", "--head-dim", "8"): "own_model:text must be a function; got str",
    }.items():
        code, text, errors = run(*words)
        assert (code, text, errors.count("\n")) == (2, "", 1) and errors.startswith(f"rope-xp: {message}")


def test_identify_says_whether_the_layout_of_a_checkpoint_is_known(run, tmp_path):
    for name, code in (("layers.0.attention.wq.weight", 0), ("model.layers.0.self_attn.q_proj.weight", 1)):
        header = json.dumps({name: {"dtype": "F32", "shape": [0, 8], "data_offsets": [0, 0]}}).encode()
        (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
        found = run("identify", str(tmp_path))
        assert found[0] == code and ("layout: cannot tell" in found[1]) == bool(code)


def test_extend_lists_rules_explains_one_and_prints_settings(run, file):
    rope = from_config(CONFIGS[PLAIN])
    choices = rope.extend(2**15)
    flags = [re.sub(r"`(\w+)`", lambda found: f"--{found[1].replace('_', '-')}", note) for note in choices.notes]
    assert run("extend", file(PLAIN), "--to", "32k")[:2] == (0, f"{replace(choices, notes=(*flags,))}\n")
    extended, settings = rope.extend(2**15, rule="yarn"), from_config(CONFIGS[QWEN]).to_config("vllm")
    assert run("extend", file(PLAIN), "--to", "32k", "--rule", "yarn")[1] == f"{extended.explain(2**15)}\n"
    code, text, _ = run("extend", file(PLAIN), "--to", "32k", "--rule", "yarn", "--for", "transformers")
    assert (code, text) == (0, f"{json.dumps(extended.to_config(), indent=2)}\n")
    assert run("convert", file(QWEN), "--to", "vllm", "--json")[1] == f"{json.dumps(settings, indent=2)}\n"


def test_extend_tells_engines_the_length(run, file):
    text = run("extend", file(PLAIN), "--to", "32k", "--rule", "ntk", "--for", "vllm")[1]
    block = '{"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 8.0, "factor": 1.0}'
    keys = f'{{"rope_parameters": {block}, "max_position_embeddings": 32768}}'
    assert text == f"--max-model-len 32768 --hf-overrides '{keys}'\n"
    text = run("extend", file(PLAIN), "--to", "32k", "--rule", "linear", "--for", "llama.cpp")[1]
    length = "-c 32768 --override-kv llama.context_length=int:32768"
    assert text == f"--rope-freq-base 10000 --rope-scaling linear --rope-scale 8 {length}\n"


def test_keys_for_vllm_lie_where_the_config_has_them(run, file):
    """vLLM applies them to the whole config, and merges what it finds under a part."""
    name = "qwen3-vl-2b-instruct"
    written = json.loads(from_config(CONFIGS[name]).to_config("vllm")[1])
    _, text, errors = run("convert", file(name), "--to", "vllm")
    assert not errors and json.loads(shlex.split(text)[1]) == written and {*written} == {"text_config"}
    _, text, _ = run("convert", file("qwen2-vl-7b-instruct"), "--to", "vllm")  # a flat file
    assert {*json.loads(shlex.split(text)[1])} == {"text_config"}
    _, text, _ = run("extend", file(name), "--to", "1M", "--rule", "yarn", "--for", "vllm")
    *flags, keys = shlex.split(text)
    assert flags == ["--max-model-len", str(2**20), "--hf-overrides"]
    assert {*json.loads(keys)} == {"text_config"}
    assert {*json.loads(keys)["text_config"]} == {"rope_parameters", "max_position_embeddings"}


def test_settings_that_are_not_the_whole_story_say_so(run, file):
    for words, said in {
        ("convert", "gemma-3-12b-it", "--layer-type", "full_attention", "--to", "llama.cpp"): "other layers",
        (
            "extend",
            PLAIN,
            "--to",
            "32k",
            "--rule",
            "ntk",
            "--for",
            "llama.cpp",
        ): "warning: some pairs get new angles; give --factor, greater than 8 ",
        ("extend", PLAIN, "--to", "32k", "--rule", "ntk", "--factor", "9", "--for", "mlx"): "",
        ("extend", PLAIN, "--to", "32k", "--rule", "ntk", "--factor", "9", "--for", "vllm"): '"dynamic", with alpha as',
        (
            "extend",
            PLAIN,
            "--to",
            "32k",
            "--rule",
            "yarn",
            "--for",
            "transformers",
        ): '"max_position_embeddings" to 32768',
        ("extend", PLAIN, "--to", "32k", "--rule", "dynamic", "--for", "transformers4"): "",
        ("extend", PLAIN, "--to", "32k", "--rule", "dynamic", "--for", "llama.cpp"): "of 32,768 tokens for all lengths",
        ("extend", PLAIN, "--to", "32k", "--rule", "dynamic", "--for", "transformers"): "",
        ("convert", LLAMA, "--layer", "3", "--to", "transformers"): "",
    }.items():
        code, text, errors = run(words[0], file(words[1]), *words[2:])
        assert code == 0 and text and said in errors and errors.count("\n") == bool(said)
    gemma, trained = file("gemma-3-12b-it"), ("--trained-length", "32k", "--rule", "linear", "--to", "1M")
    for words in (("convert", gemma, "--to", "vllm"), ("extend", gemma, *trained, "--for", "vllm")):
        code, text, errors = run(*words, "--layer", "5")
        assert (code, text) == (2, "") and "must have one block for each type of layers" in errors


@for_each("row", ROWS["errors of the command"])
def test_bad_input_is_one_line_and_exit_code_2(run, file, row):
    """Which names options that help."""
    code, text, errors = run(*(file(each) if each in CONFIGS else each for each in shlex.split(row["line"])))
    assert (code, text, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("rope-xp: ") and row["message"] in errors


def test_what_an_error_advises_is_done(run, file):
    code, text, _ = run("convert", file(LLAMA), "--to", "gguf", "--layout", "interleaved")
    assert code == 0 and json.loads(text) == from_config(CONFIGS[LLAMA], layout="interleaved").to_config("gguf")


# Configs whose layers differ: the kinds of layers, and the first numbers of each.
DIFFERING = {
    "gemma-3-12b-it": {"sliding_attention": [0, 1, 2, 3, 4, 6], "full_attention": [5, 11, 17]},
    "olmo-3-7b": {"sliding_attention": [0, 1, 2, 4], "full_attention": [3, 7]},
    "gemma-4-e2b-it": {"sliding_attention": [0, 1, 2, 3, 5], "full_attention": [4, 9]},
    "modernbert-base": {"full_attention": [0, 3, 6], "sliding_attention": [1, 2, 4]},
    "deepseek-v4-flash": {"main": [], "compress": []},  # the config does not state the number of its layers
}


@pytest.mark.parametrize("name", DIFFERING)
def test_layers_that_differ_are_all_listed(run, file, name):
    config, kinds = CONFIGS[name], DIFFERING[name]
    code, text, errors = run("explain", file(name))
    assert (code, errors) == (0, "") and max(map(len, text.splitlines())) <= 80
    _, shown, _ = run("explain", file(name), "--json")
    groups = json.loads(shown)["groups"]
    assert [(each["name"], each["layers"][: len(kinds[each["name"]])]) for each in groups] == [*kinds.items()]
    for number, (kind, group) in enumerate(zip(kinds, groups), 1):
        assert f"== Layers, {number} of {len(kinds)}: {kind} ==" in text
        chosen = {"layer": group["layers"][0]} if group["layers"] else {"layer_type": kind}
        rope = from_config(config, **chosen)
        assert group["explanation"]["rope"] == repr(rope) and str(rope.explain()) in text
        _, one, _ = run("explain", file(name), "--layer-type", kind)
        assert one == f"{from_config(config, layer_type=kind).explain()}\n"


def test_layers_without_rotation_are_listed(run, file, tmp_path, monkeypatch):
    code, text, _ = run("explain", file("llama-4-scout-17b-16e"))
    whole = from_config(CONFIGS["llama-4-scout-17b-16e"])
    assert code == 0 and str(whole.explain()) in text
    assert "Layers 3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43, 47, which have no rotary" in " ".join(text.split())
    _, text, _ = run("convert", file("llama-4-scout-17b-16e"), "--to", "transformers")
    assert json.loads(text) == whole.to_config()
    monkeypatch.chdir(tmp_path)
    os.rename(file("baichuan2-13b-chat"), "(1).json")
    code, _, errors = run("explain", "(1).json")
    assert code == 2 and errors.startswith("rope-xp: (1).json must have a rotary embedding; got a model")


def test_layers_of_one_type_that_differ_have_numbers(run, file):
    config = {**CONFIGS[LLAMA], "model_type": "smollm3", "num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 1]}
    config["layer_types"] = ["full_attention"] * 4
    found = groups_of(config, None, None)
    assert [(each.name, each.layers, each.rope is None, each.is_type) for each in found] == [
        ("layers 0, 2-3", (0, 2, 3), False, False),
        ("layers 1", (1,), True, False),
    ]
    assert all(each.is_type for each in groups_of(CONFIGS["gemma-3-12b-it"], None, None))
    assert [each.layers for each in groups_of({**config, "num_hidden_layers": 2000}, None, None)] == [()]
    assert [each.name for each in groups_of({**config, "no_rope_layers": [1, 0, 0, 0]}, None, None)] == [
        "layers 0",
        "layers 1-3",
    ]
    alike = groups_of({**config, "no_rope_layers": [1] * 4}, None, None)
    assert [(each.name, each.layers, each.is_type) for each in alike] == [("", (), False)]
    sizes = {"attention.key_length": 128, "embedding_length": 512, "attention.head_count": 4, "block_count": 12}
    metadata = {"rope.freq_base": 1e6, "attention.sliding_window": 512, **sizes}
    of_file = {"general.architecture": "gemma3", **{f"gemma3.{name}": number for name, number in metadata.items()}}
    assert [(each.name, len(each.layers)) for each in groups_of(of_file, None, None)] == [
        ("sliding_attention", 10),
        ("full_attention", 2),
    ]
    unrotated = {"position_embedding_type": "none", "num_query_groups": 2, "hidden_size": 64, "num_attention_heads": 4}
    assert [each.rope for each in groups_of(unrotated, None, None)] == [None]


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


@pytest.mark.parametrize("name", ["gemma-3-12b-it", "olmo-3-7b", "gemma-4-e2b-it", "modernbert-base"])
@pytest.mark.parametrize("target", ["transformers", "vllm"])
def test_settings_of_layers_that_differ_are_nested_by_type(run, file, name, target):
    """Read back from the keys, each type of layers has its own embedding."""
    code, text, errors = run("convert", file(name), "--to", target)
    assert code == 0 and all("is not known" in line for line in errors.splitlines())
    config = json.loads(json.dumps(CONFIGS[name]))
    inner = config.get("text_config", config)
    keys = json.loads(text) if target == "transformers" else json.loads(shlex.split(text)[1])
    block = keys if target == "transformers" else keys.get("text_config", keys)["rope_parameters"]
    for key in ("rope_theta", "rope_scaling", "rope_local_base_freq", "local_rope_theta", "global_rope_theta"):
        inner.pop(key, None)
    for each in block.values():  # vLLM's own keys
        each.pop("attn_factor", None), each.pop("apply_yarn_scaling", None)
    inner["rope_parameters"] = block
    for kind in DIFFERING[name]:
        assert from_config(config, layer_type=kind) == from_config(CONFIGS[name], layer_type=kind)


def test_keys_of_transformers_4_are_those_of_all_types(run, file):
    """Each type of layers has a base of its own there."""
    code, text, errors = run("convert", file("gemma-3-12b-it"), "--to", "transformers4")
    scaling = {"rope_type": "linear", "factor": 8.0}
    keys = {"rope_local_base_freq": 10_000.0, "rope_theta": 1_000_000.0, "rope_scaling": scaling}
    assert (code, errors) == (0, "") and json.loads(text) == {"text_config": keys}
    config = json.loads(json.dumps(CONFIGS["gemma-3-12b-it"]))
    config["text_config"].update(keys)
    for kind in DIFFERING["gemma-3-12b-it"]:
        assert from_config(config, layer_type=kind) == from_config(CONFIGS["gemma-3-12b-it"], layer_type=kind)


def test_programs_with_settings_for_all_layers_refuse_layers_that_differ(run, file):
    path = file("gemma-3-12b-it")
    for target in ("sglang", "lmdeploy", "megatron"):
        for words in ((), ("--layer-type", "full_attention")):
            code, text, errors = run("convert", path, "--to", target, *words)
            assert (code, text) == (2, "") and "all layers must have the same embedding" in errors
    full = from_config(CONFIGS["gemma-3-12b-it"], layer_type="full_attention")
    code, text, errors = run("convert", path, "--to", "llama.cpp")
    assert (
        code == 0 and shlex.split(text) == full.to_config("llama.cpp") and "other layers of the config differ" in errors
    )
    code, _, errors = run("convert", path, "--to", "llama.cpp", "--layer-type", "sliding_attention")
    assert code == 2 and "layer_type must be 'full_attention'" in errors
    assert run("convert", path, "--to", "sglang", "--layer", "5")[0] == 2
    for words in ((), ("--layer-type", "full_attention"), ("--layer", "5")):  # all layers are alike
        assert run("convert", file(PLAIN), "--to", "sglang", *words)[0] == 0


@pytest.mark.parametrize("name", ["gemma-3-12b-it", "gemma-4-e2b-it", "mimo-v2-flash"])
def test_mlx_has_keys_for_each_type(run, file, name):
    def merged(old, new):
        both = {key: merged(old[key], new[key]) for key in new if key in old and isinstance(new[key], dict)}
        return {**old, **new, **both}

    code, text, _ = run("convert", file(name), "--to", "mlx")
    config = merged(CONFIGS[name], json.loads(text))
    assert code == 0
    for kind in ("full_attention", "sliding_attention"):
        assert from_config(config, layer_type=kind) == from_config(CONFIGS[name], layer_type=kind)


def test_programs_without_blocks_of_a_config_are_named(run, file):
    code, _, errors = run("convert", file("deepseek-v4-flash"), "--to", "vllm")
    assert code == 2 and "layers must differ by the types chunked_attention, full_attention" in errors


def test_plot_draws_all_layers(run, file, tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr("rope_xp.plot.save", lambda output, kind, ropes, **_: drawn.update(ropes))
    path = file("gemma-3-12b-it")
    assert run("plot", path, file(LLAMA), "-o", "a.png")[0] == 0
    assert [*drawn] == [f"{path}, sliding_attention", f"{path}, full_attention", file(LLAMA)]
    drawn.clear()
    assert run("plot", path, file(LLAMA), "-o", "a.png", "--label", "Gemma", "--label", "Llama")[0] == 0
    assert [*drawn] == ["Gemma, sliding_attention", "Gemma, full_attention", "Llama"]


def test_plot_draws_one_below_the_other(run, file, tmp_path):
    assert run("plot", file("gemma-3-12b-it"), "-o", str(tmp_path / "a.svg"), "--kind", "pair")[0] == 0
    text = (tmp_path / "a.svg").read_text()
    assert "sliding_attention: Pair 0" in text and "full_attention: Pair 0" in text


LLAMA3 = ("low_freq_factor", "high_freq_factor")


def test_extend_takes_the_parameters_of_rules(run, file, tmp_path, monkeypatch):
    rope = from_config(CONFIGS[PLAIN])
    for words, rule, parameters in [
        (("--factor", "12"), "ntk", {"factor": 12.0}),
        (("--beta-fast", "16", "--beta-slow", "2"), "yarn", {"beta_fast": 16.0, "beta_slow": 2.0}),
        (("--no-truncate",), "yarn", {"truncate": False}),
        (("--attention-factor", "1"), "yarn", {"attention_factor": 1.0}),
        (("--low-freq-factor", "2", "--high-freq-factor", "8"), "llama3", dict(zip(LLAMA3, (2.0, 8.0)))),
    ]:
        code, text, _ = run("extend", file(PLAIN), "--to", "32k", "--rule", rule, *words, "--for", "transformers")
        assert code == 0 and json.loads(text) == rope.extend(2**15, rule, **parameters).to_config()
    short, long = tmp_path / "short.csv", tmp_path / "long.json"
    short.write_text("1.0,\n" + "1.5, " * 62 + "\n1.5\n")
    long.write_text(json.dumps([1.0 + j for j in range(64)]))
    words = ("extend", file(PLAIN), "--to", "32k", "--rule", "longrope", "--short-factor", str(short))
    code, text, _ = run(*words, "--long-factor", str(long), "--for", "transformers")
    lists = {"short_factor": [1.0] + [1.5] * 63, "long_factor": [1.0 + j for j in range(64)]}
    assert code == 0 and json.loads(text) == rope.extend(2**15, "longrope", **lists).to_config()
    for size, code in ((long.stat().st_size, 0), (long.stat().st_size - 1, 2)):
        monkeypatch.setattr("rope_xp.cli.options.MAX_BYTES", size)
        assert run(*words, "--long-factor", str(long), "--for", "transformers")[0] == code
    long.write_text("[1, [2]]")
    code, _, errors = run(*words, "--long-factor", str(long))
    assert code == 2 and "'--long-factor'" in errors and "must have numbers" in errors
    code, _, errors = run(*words, "--long-factor", "missing")
    assert code == 2 and "missing" in errors and errors.count("\n") == 1
    long.write_text("1 2")
    code, _, errors = run(*words, "--long-factor", str(long))
    assert code == 2 and "--long-factor must" in errors


@pytest.mark.parametrize("target", [(), ("--for", "vllm"), ("--for", "transformers")])
def test_a_replaced_rule_is_a_warning(run, file, target):
    code, text, errors = run("extend", file(LLAMA), "--to", "256k", "--rule", "yarn", *target)
    said = "The model may have been trained with the scaling that extend replaces (llama3, factor=8.0"
    assert errors.startswith(f"rope-xp: warning: {said}") and errors.count("\n") == 1 + ("transformers" in target)
    assert code == (0 if target else 1) and (said in " ".join(text.split())[:200]) == (not target)
    code, _, errors = run("extend", file(PLAIN), "--to", "256k", "--rule", "yarn", *target)
    assert code == 0 and "warning" not in errors


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


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("explain", LLAMA), 0),
        (("explain", "internlm2-7b"), 1),
        (("convert", LLAMA, "--to", "transformers"), 0),
        (("--help",), 0),
    ],
)
def test_a_closed_pipe_changes_no_exit_code(run, file, words, wanted, monkeypatch):
    """`rope-xp explain FILE | head -1`: the reader has gone, and the report has warnings or not."""
    reader, writer = os.pipe()
    os.close(reader)
    closed = os.fdopen(writer, "w")
    monkeypatch.setattr(sys, "stdout", closed)
    assert run(*(file(each) if each in CONFIGS else each for each in words)) == (wanted, "", "")
    sys.stdout.flush()  # as Python does when it ends
    with suppress(BrokenPipeError):
        closed.close()


@pytest.fixture
def stdin(monkeypatch):
    """A function that sets standard input, or takes it away."""
    return lambda text: monkeypatch.setattr(sys, "stdin", text and io.TextIOWrapper(io.BytesIO(text)))


def test_convert_writes_the_frequencies_of_a_length(run, file):
    """MLX has only the long factors of LongRoPE."""
    code, _, errors = run("convert", file("phi-3.5-mini-instruct"), "--to", "mlx")
    assert code == 2 and "--seq-len must be greater than 4096" in errors
    code, text, _ = run("convert", file("phi-3.5-mini-instruct"), "--to", "mlx", "--seq-len", "128k")
    assert code == 0 and json.loads(text)["rope_scaling"]["type"] == "longrope"


def test_convert_reads_standard_input(run, stdin):
    stdin(b"\xef\xbb\xbf" + json.dumps(CONFIGS[QWEN]).encode())
    code, text, _ = run("convert", "-", "--to", "transformers")
    assert code == 0 and json.loads(text) == from_config(CONFIGS[QWEN]).to_config()


@for_each(
    "text, message",
    [
        (None, "standard input must be JSON; got no text: it is empty"),
        (b'{"a": ' + b"9" * 5000 + b"}", "an int of standard input must have at most 2048 bits"),
        (b"[1]", "standard input must hold a JSON object; got list"),
        (b"\x00" * 8, "standard input must be JSON; got Expecting value"),
        (b"[" * 10**5, "standard input must have at most 32 levels"),
        (b"\xff", "standard input must be JSON in UTF-8"),
        (b" " * (2**24 + 1), "standard input must have at most 16777216 bytes"),
        (b'"config.json"', "standard input must hold a JSON object; got str"),
    ],
)
def test_bad_standard_input_is_one_line(run, stdin, text, message):
    stdin(text)
    code, output, errors = run("explain", "-")
    assert (code, output) == (2, "") and errors.startswith(f"rope-xp: {message}") and errors.count("\n") == 1


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_terminal_shows_every_number(run, file, monkeypatch, width):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

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


def test_nothing_is_printed_without_standard_output(run, file, monkeypatch):
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
    installed = {name for name in ("numpy", "torch", "jax") if find_spec(name)}
    assert {each["name"] for each in report["libraries"]} >= installed
    assert {each["result"] for each in report["libraries"]} == {"right"}
    assert not any(each["kernel"].endswith(": ") for each in report["libraries"])  # a reason, if there is one
    assert [int(each).bit_length() for each in doctor.POSITIONS] == [*range(25)] and all(doctor.POSITIONS[1:] % 2 == 1)
    monkeypatch.setattr(doctor, "ROPE", doctor.ROPE.replace(phase="float32"))  # a planted mistake
    code, text, _ = run("doctor")
    assert code == 1 and "wrong by" in text
    for name, device in (("numpy", "cpu"), ("jax", "default device"), ("torch", "cpu")):
        assert name not in installed or {each["device"] for each in report["libraries"] if each["name"] == name} >= {
            device
        }


@pytest.mark.parametrize("has_gpu", [False, True])
def test_doctor_tests_torch_on_a_gpu_if_there_is_one(monkeypatch, has_gpu):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setitem(doctor.LIBRARIES, "torch", "torch.array")
    monkeypatch.setattr(torch, "array", lambda x, device="cpu": torch.asarray(x), raising=False)  # on no GPU
    found = [(each.name, each.device, each.result) for each in doctor.diagnose().libraries if each.name == "torch"]
    assert found == [("torch", device, "right") for device in ("cpu", "cuda")[: 1 + has_gpu]]


def test_doctor_says_what_fails(monkeypatch, tmp_path):
    """Libraries whose import fails, without or with a message of several lines, and one whose arrays fail."""
    monkeypatch.syspath_prepend(tmp_path)
    texts = {
        "broken": "raise OSError",
        "damaged": "raise ImportError('first\\nsecond')",
        "array": "def make(x): return 1/0",
    }
    for name, text in texts.items():
        (tmp_path / f"a_{name}.py").write_text(text)
    monkeypatch.setattr(doctor, "LIBRARIES", {f"a_{name}": f"a_{name}.make" for name in (*texts, "missing")})
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
    example = (
        """Example: rope-xp x a.json --to 128k -o a.svg --flags "--rope-scale 2" --label new --beta-fast 1 --json"""
    )
    command = Command("x", help=f"Text.\n\n\b\n{example}")
    for width in range(34, 90):
        text = command.get_help(click.Context(command, terminal_width=width)).partition("\n\nOptions")[0]
        lines = text.rpartition("\n\n")[2].splitlines()
        assert " ".join(line.strip(" \\") for line in lines) == example
        for line, following in pairwise(lines):
            option = re.match(r' {6}(--?[a-z-]+( "[^"]+"| \w[\w.]*)?)', following)[1]
            assert line.endswith(" \\") and len(line) <= width < len(f"{line[:-2]} {option} \\")


# The flags of an engine, and the page of all programs.

SCALED = "llama-server -m model.gguf --rope-scale 2 -c 65536"
NOTHING = """vllm serve model --hf-overrides '{"rope_theta": 1e6}'"""


def test_compare_says_what_flags_change(run, file):
    code, text, errors = run("compare", file(PLAIN), "--flags", SCALED)
    assert (code, errors) == (1, "") and "Likely cause: scaling." in text and "RotaryEmbedding" in text
    assert "b was read from the GGUF file that llama.cpp's converter writes" in text
    assert max(map(len, text.replace(file(PLAIN), "FILE").splitlines())) <= 80
    code, text, _ = run("compare", file(PLAIN), "--flags", NOTHING)
    assert code == 0 and "without --hf-overrides, the embedding would be the same" in text
    code, text, _ = run("compare", file(PLAIN), file(PLAIN), "--flags", SCALED, "--json")
    report = json.loads(text)
    assert code == 1 and report["causes"] == ["scaling"] and "llama.cpp 0.5.0" in report["remarks"][0]


def test_compare_gives_the_flags_to_the_second_file(run, file, tmp_path):
    metadata = {"llama.rope.freq_base": 1e4, "llama.attention.key_length": 128, "llama.context_length": 4096}
    path = tmp_path / "metadata.json"
    path.write_text(json.dumps({"general.architecture": "llama", **metadata, "llama.rope.scaling.factor": 2.0}))
    words = ("compare", file(PLAIN), str(path), "--layout", "half")
    assert run(*words)[0] == 1 and run(*words, "--flags", "--rope-scale 1")[0] == 0
    assert run("compare", str(path), file(PLAIN), "--layout", "half", "--flags", "--rope-scale 2")[0] == 0


def test_explain_says_what_an_engine_computes(run, file):
    code, text, errors = run("explain", file(PLAIN), "--flags", SCALED, "--json")
    assert (code, errors) == (0, "")
    assert json.loads(text) == from_config(CONFIGS[PLAIN], flags=SCALED).explain().to_dict()
    code, text, _ = run("explain", file(PLAIN), "--flags", NOTHING)
    assert code == 1 and "the embedding would be the same" in text
    code, text, _ = run("explain", file("gemma-3-12b-it"), "--flags", "vllm serve model")
    assert "== Layers, 1 of 2: sliding_attention ==" in text


@pytest.mark.parametrize(
    ("name", "place"),
    [
        (PLAIN, ()),
        (QWEN, ()),
        ("gemma-3-12b-it", ()),
        ("deepseek-v3", ()),
        ("qwen3-vl-2b-instruct", ()),
        ("phi-4-mini-instruct", ("--seq-len", "128k")),
        ("gpt-j-6b", ("--architecture", "gptj")),
    ],
)
def test_a_page_has_all_programs(run, file, name, place):
    code, text, errors = run("convert", file(name), "--to", "all", *place)
    assert (code, errors) == (0, "") and max(map(len, text.splitlines())) <= 80
    titles = re.findall(r"^== ([\w.-]+): (.*) ==$", text, re.M)
    assert [title for title, _ in titles] == [*sorted(TARGETS, key=place_in_order), *REFUSED]
    page = json.loads(run("convert", file(name), "--to", "all", *place, "--json")[1])["targets"]
    for (target, result), entry in zip(titles, page, strict=True):
        assert (entry["target"], bool(entry["refused"])) == (target, result == "none")
        if target in REFUSED:
            assert with_advice(REFUSED[target]) in entry["refused"] and "to_config" not in entry["refused"]
            continue
        own = place if TARGETS[target].takes_architecture or "--architecture" not in place else ()
        code, alone, errors = run("convert", file(name), "--to", target, *own, "--json")
        if entry["refused"]:
            assert code == 2 and errors.startswith(f"rope-xp: {entry['refused']}")
        else:
            assert code == 0 and json.loads(alone) == entry["settings"]
            assert errors == "".join(f"rope-xp: {note}\n" for note in entry["notes"])
            assert all(f"({note})" in " ".join(text.split()) for note in entry["notes"]) and "\n\n\n" not in text


def test_a_page_has_the_version_of_each_engine(run, file):
    words = ("convert", file(PLAIN), "--to", "all", "--json", "--engine-version")
    texts = {each: run(*words, each) for each in ("vllm=0.33.0", "vllm=0.33.0,llama.cpp=0.5.0", "sglang=0.5.23")}
    assert {code for code, *_ in texts.values()} == {0}
    for versions, (_, text, _) in texts.items():
        for each in versions.split(","):
            target, _, number = each.partition("=")
            code, alone, _ = run("convert", file(PLAIN), "--to", target, "--engine-version", number, "--json")
            (entry,) = [each for each in json.loads(text)["targets"] if each["target"] == target]
            assert code == 0 and json.loads(alone) == entry["settings"]
    for wrong in ("vllm", "vllm=", "=0.33.0", "engine=1", "vllm=0.33.0,", "vllm=0.33.0,x=1"):
        code, text, errors = run(*words, wrong)
        assert (code, text) == (2, "") and "--engine-version must be ENGINE=VERSION with --to all, for " in errors
        assert f"; got {next(each for each in wrong.split(',') if each != 'vllm=0.33.0')!r}\n" in errors


def place_in_order(name):
    return ORDER.index(name) if name in ORDER else len(ORDER)


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


def test_every_program_has_a_place_in_the_page():
    assert set(ORDER) >= set(TARGETS)
