"""Damaged configs: real ones of which keys or values are changed give a value that is allowed, or an error in form.

In form is ``from_config: <requirement>; got <value>``, a ValueError or TypeError of less than 1,000 characters.
"""

import copy
import json
import math
import re
import signal
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from configs import ALL, CONFIGS, GOLDENS, at, changed, paths_of, without
from hypothesis import given, settings
from hypothesis import strategies as st

from rope_xp import from_config
from rope_xp.configs.keys import OTHER_KEYS

# One file of each other format, of which no layer differs.
OTHERS = ("Llama 3.1", "Llama 4 Scout", "Ministral 3", "Qwen2.5 GGUF", "GPT of Megatron", "Llama of MLX")
CASES = [(golden["config"], golden["kwargs"]) for golden in GOLDENS] + [(name, {}) for name in OTHERS]
EXAMPLES = settings.default.max_examples
IN_FORM = re.compile(r"from_config: .+; got .+", re.DOTALL)
ERROR = "error"

# Seconds of processor time, and bytes beyond what the process has: a hundred times what any example takes.
SECONDS, BYTES = 20.0, 2**30


@contextmanager
def limited():
    """On Linux, stop what runs too long, and refuse it more memory: one example must not stop the machine."""
    if sys.platform != "linux":
        yield
        return
    import resource

    def stop(*_):
        raise TimeoutError(f"{SECONDS} seconds of processor time are over")

    before = signal.signal(signal.SIGVTALRM, stop)
    usual = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + BYTES, usual[1]))
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        resource.setrlimit(resource.RLIMIT_AS, usual)
        signal.signal(signal.SIGVTALRM, before)


def outcome(config, choice):
    """The value, which must be usable, or `ERROR`, which must be in form."""
    try:
        with limited():
            rope = from_config(config, **choice)
    except (ValueError, TypeError) as error:
        assert type(error) in (ValueError, TypeError), type(error)
        assert IN_FORM.fullmatch(str(error)) and len(str(error)) < 1000, str(error)
        return ERROR
    if rope is not None:
        rows = [rope.inv_freq] if rope.axes == 1 else rope.inv_freq
        assert all(abs(w) < 2**16 for row in rows for w in row)
        assert math.isfinite(rope.attention_factor) and rope.attention_factor > 0
        assert math.isfinite(rope.softmax_scale)
        assert rope.describe()
    return rope


@cache
def whole(name, **choice):
    """The same for a config as it is."""
    return outcome(ALL[name], choice)


PATHS = {name: list(paths_of(config)) for name, config in ALL.items()}
KEYS = {name: [path for path in paths if isinstance(path[-1], str)] for name, paths in PATHS.items()}
CASE = st.sampled_from(CASES)
LETTERS = [str.upper, str.title, str.capitalize, str.swapcase, lambda key: f"_{key}"]
LETTERS += [lambda key, other=other: key.replace("_", other) for other in ("", "__", "-")]
LETTERS += [lambda key: key.title().replace("_", ""), lambda key: key[:1] + key.title().replace("_", "")[1:]]


@settings(max_examples=4 * EXAMPLES, deadline=None)
@given(CASE, st.data(), st.sampled_from(LETTERS))
def test_a_key_in_other_letters_is_refused_or_was_not_read(case, data, letters):
    name, choice = case
    path = data.draw(st.sampled_from(KEYS[name]))
    config = without(name, path)
    at(config, path[:-1])[letters(path[-1])] = at(ALL[name], path)
    assert outcome(config, choice) in (ERROR, whole(name, **choice))


def typos(key):
    """The key with one letter left out, doubled, replaced or moved."""
    for n, letter in enumerate(key):
        yield key[:n] + key[n + 1 :]
        yield key[:n] + letter + key[n:]
        yield key[:n] + "z" + key[n + 1 :]
        yield key[:n] + key[n : n + 2][::-1] + key[n + 2 :]


@settings(max_examples=8 * EXAMPLES, deadline=None)
@given(CASE, st.data())
def test_a_misspelt_key_that_is_read_is_named(case, data):
    """The error names the key as it is, and as it must be."""
    name, choice = case
    rope = whole(name, **choice)
    read = [] if rope is None else [key for key in rope._provenance.stated if len(key.replace("_", "")) >= 5]
    if not read:
        return
    key = data.draw(st.sampled_from(read))
    paths = [path for path in KEYS[name] if path[-1] == key]
    if len(paths) > 1:  # in a part and outside it, or in several parts
        return
    path, typo = (
        paths[0],
        data.draw(st.sampled_from([each for each in typos(key) if each != key and each not in EXTRA])),
    )
    config = without(name, path)
    at(config, path[:-1])[typo] = at(ALL[name], path)
    try:
        found = from_config(config, **choice)
    except (TypeError, ValueError) as error:
        assert typo in str(error) and (key in str(error) or typo in OTHER_KEYS), str(error)
    else:
        assert typo in OTHER_KEYS, (key, typo, found)


YARN_BLOCK = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
BLOCKS = [
    {**YARN_BLOCK, "beta_fast": 16, "beta_slow": 2, "attention_factor": 1.1, "truncate": False},
    {**YARN_BLOCK, "mscale": 0.7, "mscale_all_dim": 1.0},
    {**YARN_BLOCK, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    {**YARN_BLOCK, "rope_type": "longrope", "short_factor": [1.0] * 64, "long_factor": [2.0] * 64},
    {"rope_type": "dynamic", "factor": 4.0},
]
SIZES = {"dim": 4096, "n_heads": 32, "n_layers": 2}
YARN = {"original_max_position_embeddings": 8192, "factor": 16, "apply_scale": False, "beta": 32, "alpha": 1}
PARAMS = [
    {**SIZES, "rope_theta": 5e5, "use_scaled_rope": True, "multiple_of": 1024, "ffn_dim_multiplier": 1.3},
    {**SIZES, "head_dim": 128, "hidden_dim": 14336, "rope_theta": 1e6, "sliding_window": 4096},
    {**SIZES, "head_dim": 128, "hidden_dim": 14336, "rope_theta": 1e6, "yarn": YARN},
]
LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 8192}
OF_BLOCKS = [({**LLAMA, "rope_scaling": block}, ("rope_scaling", key)) for block in BLOCKS for key in block]
# Without a width, or with a key as long as `dim`, it is no params.json; nothing reads the number of layers.
OF_PARAMS = [
    (config, (key,)) for config in PARAMS for key in ("n_heads", "head_dim", "rope_theta", "yarn") if key in config
]
OF_PARAMS += [(PARAMS[0], ("use_scaled_rope",)), (PARAMS[1], ("sliding_window",))]
OF_PARAMS += [(PARAMS[2], ("yarn", key)) for key in YARN]


@pytest.mark.parametrize(
    "config, path", [*OF_BLOCKS, *OF_PARAMS], ids=[str(n) for n in range(len(OF_BLOCKS) + len(OF_PARAMS))]
)
def test_a_misspelt_key_of_a_block_or_of_params_json_is_named(config, path):
    """Every typo of every key, in its place and beside it, is an error with its name."""
    for typo in {each for each in typos(path[-1]) if each != path[-1] and each not in OTHER_KEYS}:
        for beside in (False, True):
            given = copy.deepcopy(config)
            block = at(given, path[:-1])
            block[typo] = block[path[-1]] if beside else block.pop(path[-1])
            with pytest.raises((TypeError, ValueError)) as caught:
                from_config(given)
            assert typo in str(caught.value), (typo, str(caught.value))


# Keys whose absence says something by itself, and what: no default of a family takes their place.
ABSENT = {
    "rope_scaling": "nothing is scaled",
    "rope_type": "the default rule",
    "partial_rotary_factor": "all of the head",
    "partial_rotary_factors": "all of the head, in each layer",
    "alpha": "the factor",
    "beta_fast": "YaRN's own number",
    "truncate": "YaRN rounds the ends of the ramp",
    "attention_factor": "YaRN's own magnitude, which differs from the stated one by rounding",
    "mscale": "YaRN's own magnitude",
    "mscale_all_dim": "YaRN's own magnitude",
    "max_position_embeddings": "LongRoPE has no factor, and its magnitudes are stated",
    "xdrope_section": "one position axis",
    "head_dim": "hidden_size / num_attention_heads",
    "rotary_dim": "all of the head",
    "use_scaled_rope": "nothing is scaled",
    "yarn": "nothing is scaled",
    "qwen2.rope.scaling.type": "linear scaling",
    "qwen2.rope.scaling.factor": "nothing is scaled",
}


def test_a_key_that_is_left_out_is_told_of():
    """What changes without a key is refused, or a default is marked that was not before."""
    silent = set()
    for name, choice in CASES:
        rope = whole(name, **choice)
        for path in KEYS[name]:
            found = outcome(without(name, path), choice)
            if found not in (ERROR, None, rope):
                before = () if rope is None else rope._provenance.defaults
                silent |= {path[-1]} if set(found._provenance.defaults) <= set(before) else set()
    assert silent == set(ABSENT)


NOT_FINITE = [math.nan, math.inf, -math.inf, [math.nan] * 64]
LARGE = [10**400, 10**5000, -(10**400), "9" * 10**5, ["9"] * 10**4, {"x" * 10**5: "y"}]
JUNK = [*NOT_FINITE, *LARGE, -1, -1.5, 1e308 * 1j, b"bytes", object(), "\0", "no such thing"]
JUNK += [[[[[]]]], [{}], {"a": {"b": 1}}]
SMALL = [0, 1, 2, 3, 0.5, 1e-9, 5e-324, 1e9, 10**7, 1e308, 2**53, 2**63, True, False, None, "", [], {}, [1], [0] * 8]
SMALL += ["yarn", "default", "linear", "dynamic", "longrope", {"rope_type": "yarn"}, [1e308] * 64, (1, 2), "LG"]


@settings(max_examples=6 * EXAMPLES, deadline=None)
@given(CASE, st.data(), st.sampled_from(JUNK))
def test_junk_is_refused_or_was_not_read(case, data, junk):
    name, choice = case
    path = data.draw(st.sampled_from(PATHS[name]))
    assert_refused_or_not_read(name, choice, path, junk)


def assert_refused_or_not_read(name, choice, path, junk):
    found = outcome(changed(name, path, junk), choice)
    assert found in (ERROR, whole(name, **choice)) or found == outcome(without(name, path), choice), path


@pytest.mark.parametrize("name", OTHERS)
def test_every_value_of_another_format_may_be_damaged(name):
    for path in PATHS[name]:
        for junk in JUNK:
            assert_refused_or_not_read(name, {}, path, junk)
        for value in SMALL:
            outcome(changed(name, path, value), {})


EXTRA = {path[-1] for paths in KEYS.values() for path in paths}


ABOUT = re.compile(
    "rope|rotary|yarn|theta|base|head|dim|layer|position|type|scal|window|pattern|partial|section|length|spatial"
)
GRAFTS = [(name, path) for name, paths in KEYS.items() for path in paths if ABOUT.search(path[-1])]
OPTIONS = [{}, {}, {"layer": 0}, {"layer": 5}, {"layer_type": "full_attention"}, {"part": "text"}, {"part": "vision"}]
OPTIONS += [{"seq_len": 4097}, {"compat": "transformers"}, {"layout": "interleaved"}, {"strict": True}]


@settings(max_examples=8 * EXAMPLES, deadline=None)
@given(CASE, st.lists(st.sampled_from(["value", "less", "graft"]), max_size=4), st.sampled_from(OPTIONS), st.data())
def test_any_changes_give_a_usable_value_or_an_error_in_form(case, changes, options, data):
    """Keys about rotation get another value, are left out, or are taken from another config."""
    config = copy.deepcopy(ALL[case[0]])
    for change in changes:
        paths = [path for path in paths_of(config) if ABOUT.search(str(path[-1]))] or [("head_dim",)]
        *place, key = data.draw(st.sampled_from(paths))
        if change == "less":
            at(config, place).pop(key, None)
        elif change == "value":
            at(config, place)[key] = copy.deepcopy(data.draw(st.sampled_from(SMALL + JUNK)))
        else:
            name, path = data.draw(st.sampled_from(GRAFTS))
            at(config, place)[path[-1]] = copy.deepcopy(at(ALL[name], path))
    outcome(config, {**case[1], **options})


@pytest.mark.parametrize("name", CONFIGS)
def test_a_file_means_what_its_mapping_means(tmp_path, name):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    choices = [choice for each, choice in CASES if each == name]
    assert [outcome(tmp_path, each) for each in choices] == [whole(name, **each) for each in choices]
