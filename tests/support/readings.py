"""What is read from random configs, files and flags, and what is written and reported, as text to be recorded.

`goldens/readings.json` has it. A case is drawn from its kind and its number: a real one with a few changes.
"""

import copy
import hashlib
import json
import math
import random
import re
import shlex
import struct
import tempfile
import warnings
from pathlib import Path
from unittest import mock

from configs import CONFIGS, GOLDENS, ROWS, at, in_lines, paths_of, recorded

from rope_xp import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    ProportionalScaling,
    RotaryEmbedding,
    Sections,
    XPos,
    YarnScaling,
    from_config,
    identify_checkpoint,
)
from rope_xp.configs.readers import gguf_file
from rope_xp.configs.readers.command_line import command_line
from rope_xp.configs.writers import TARGETS

# What is drawn from: lists of values, rules, keys and words.
DRAWN = recorded("draws")
ORIGINAL, LENGTH = "original_max_position_embeddings", "max_position_embeddings"
ABOUT = re.compile(
    "rope|rotary|yarn|theta|base|head|dim|layer|position|type|scal|window|pattern|partial|section|length|spatial"
)
PAIRS = (4, 8, 16, 32, 48, 64)
PRIME = 2**61 - 1


def by_hash(values):
    """Values by a number that follows from each alone."""
    return {int(hashlib.sha256(json.dumps(each).encode()).hexdigest()[:15], 16): each for each in values}


def pick(draw, values):
    """One of `by_hash(values)`. A value that is added is picked in its share of the cases; the others stay."""
    number = draw.randrange(1, PRIME)
    return values[min(values, key=lambda each: each * number % PRIME)]


def block(draw, width=None):
    """A rule, with some of its parameters."""
    rule = draw.choice(DRAWN["rules"])
    factor, length = draw.choice([1.0, 1.5, 2.0, 4, 8.0, 40.0]), draw.choice([1, 1024, 4096, 8192, 32_768])
    found = {draw.choice(["rope_type", "rope_type", "type"]): rule}
    pairs = (width or 2 * draw.choice(PAIRS)) // 2
    may = {"rope_theta": draw.choice([1e4, 5e5, 1e6, 10_000]), "factor": factor, ORIGINAL: length}
    may |= {"beta_fast": draw.choice([32, 16.0]), "beta_slow": draw.choice([1, 2.0]), "truncate": draw.random() < 0.5}
    may |= {name: draw.choice([0, 0.0, 0.707, 1, 1.0]) for name in ("mscale", "mscale_all_dim")}
    may |= {"attention_factor": draw.choice([1, 1.0, 1.25]), "attn_factor": draw.choice([0.5, 1.0, 2])}
    may |= {"low_freq_factor": 1.0, "high_freq_factor": draw.choice([4.0, 1.0]), "alpha": draw.choice([1, 50.0, 1000])}
    may |= {"short_factor": [1.0] * pairs, "long_factor": [1.0 + j / 4 for j in range(pairs)]}
    may |= {"short_mscale": 1.2, "long_mscale": 1.3, "mixed_b": 0.5, "max_trained_positions": draw.choice([4096, 8192])}
    may |= {"partial_rotary_factor": draw.choice([0.25, 0.5, 1, 1.0]), "mrope_section": [2, 1, 1], "finetuned": True}
    may |= {"mrope_interleaved": draw.random() < 0.5, "apply_yarn_scaling": draw.random() < 0.5}
    named = {"deepseek_yarn": "yarn", "su": "longrope"}.get(rule, rule)
    own = DRAWN["shares of keys of rules"].get(named, {"factor": 0.8})
    return found | {
        key: value for key, value in may.items() if draw.random() < own.get(key, 0.05 if key != "rope_theta" else 0.5)
    }


def changed(draw, config, sources):
    """The config with one change. Keys about positions count most."""
    paths = [path for path in paths_of(config) if ABOUT.search(str(path[-1])) or draw.random() < 0.1]
    kind = draw.choice(["value", "value", "number", "delete", "delete", "graft", "graft", "graft", "block", "typo"])
    if not paths:
        return
    path = draw.choice(paths)
    if path[-1] == "model_type" and draw.random() < 0.8:
        kind = "block"
    home, key = at(config, path[:-1]), path[-1]
    if kind in ("graft", "block"):
        while not isinstance(home, dict):
            path = path[:-1]
            home = at(config, path[:-1])
    if kind == "graft":
        other = pick(draw, sources)
        found = [each for each in paths_of(other) if isinstance(each[-1], str) and ABOUT.search(each[-1])]
        if found:
            place = draw.choice(found)
            home[place[-1]] = copy.deepcopy(at(other, place))
    elif kind == "block":
        home[draw.choice(["rope_scaling", "rope_scaling", "rope_parameters"])] = block(draw)
    elif kind == "delete":
        del home[key]
    elif kind == "typo" and isinstance(home, dict):
        n = draw.randrange(len(key))
        home[draw.choice([key[:n] + key[n + 1 :], key[:n] + key[n] + key[n:], key.upper(), key.replace("_", "-")])] = (
            home[key] if draw.random() < 0.5 else home.pop(key)
        )
    elif kind == "number" and type(home[key]) in (int, float):
        number = home[key]
        home[key] = draw.choice([number + 1, number - 1, 2 * number, number / 2, -number, float(number), int(number)])
    elif isinstance(home[key], list) and draw.random() < 0.7:
        values = home[key]
        home[key] = draw.choice([values[:-1], [*values, *values[-1:]], values[::-1], [0, *values[1:]], tuple(values)])
    else:
        home[key] = copy.deepcopy(draw.choice([*2 * DRAWN["numbers"], *DRAWN["other values"]]))


def options(draw):
    found = {}
    if draw.random() < 0.15:
        found["layer"] = draw.choice([0, 0, 1, 1, 2, 3, 3, 4, 5, 5, 11, 31, -1])
    elif draw.random() < 0.07:
        found["layer_type"] = draw.choice(["full_attention", "sliding_attention", "main", "other"])
    if draw.random() < 0.06:
        found["part"] = draw.choice(["text", "vision", "audio", "indexer"])
    if draw.random() < 0.2:
        found["seq_len"] = draw.choice([1, 4096, 4097, 8193, 10**6])
    if draw.random() < 0.1:
        found["compat"] = "transformers"
    if draw.random() < 0.05:
        found["layout"] = draw.choice(["half", "interleaved"])
    return found


CASES = by_hash((golden["config"], golden["kwargs"], golden.get("rotary_dim", 64)) for golden in GOLDENS)
SMALL = [
    row["config"] for name in ("not stated", "keys of families", "indexers", "position axes") for row in ROWS[name]
]
SMALL += [row["config"] for name in ("mistakes of upstream", "contradictions", "remarks") for row in ROWS[name]]
SMALL += [row["config"] for row in ROWS["wrong configs"] if isinstance(row["config"], dict)]
SMALL += [{"model_type": row["model_type"], **row.get("keys", {}), "head_dim": 64} for row in ROWS["layers"]]
SMALL += [{"model_type": row["model_type"], **row.get("keys", {}), "head_dim": 64} for row in ROWS["rotated layers"]]
FILES = [row["keys"] for row in ROWS["files of other formats"]]
FILES += [row["metadata"] for row in ROWS["layers of GGUF files"]]
SMALL, FILES, SOURCES = by_hash(SMALL), by_hash(FILES), by_hash([*CONFIGS.values(), *SMALL])
TARGETS = by_hash(TARGETS)
WRONG_FLAGS = by_hash(row["flags"] for row in ROWS["wrong flags"])


def a_config(draw):
    """A real config or a small one of a table, with up to three changes, and options."""
    if draw.random() < 0.5:
        name, given, _ = pick(draw, CASES)
        config, given = copy.deepcopy(CONFIGS[name]), dict(given)
    else:
        config, given = copy.deepcopy(pick(draw, SMALL)), {}
    for _ in range(draw.choice([0, 1, 1, 2, 3])):
        changed(draw, config, SOURCES)
    return config, given | options(draw)


def a_file(draw):
    """A file of another format, with up to three changes."""
    config = copy.deepcopy(pick(draw, FILES))
    name = config.get("general.architecture")
    for _ in range(draw.choice([0, 1, 1, 2, 3])):
        if name is not None and draw.random() < 0.6:
            _changed_metadata(draw, config, name)
        else:
            same = {n: each for n, each in FILES.items() if ("general.architecture" in each) == (name is not None)}
            changed(draw, config, same)
    return config, options(draw) if draw.random() < 0.5 else {}


def _changed_metadata(draw, config, name):
    width = config.get(f"{name}.rope.dimension_count") or config.get(f"{name}.attention.key_length")
    pairs = width // 2 if isinstance(width, int) else 64
    key, values = draw.choice(DRAWN["metadata"])
    if draw.random() < 0.25:
        tensor = draw.choice(["rope_freqs", "rope_factors_long", "rope_factors_short"])
        last = draw.choice([1.0, 8.0, 1e30])
        divisors = [draw.choice([1.0, 2.0])] * (pairs // 2) + [last] * (pairs - pairs // 2)
        config[f"{tensor}.weight"] = draw.choice([divisors, divisors, divisors[:-1], [], None])
    else:
        config[f"{name}.{key}"] = copy.deepcopy(draw.choice(values))


def flags(draw, width):
    """Arguments of an engine: a command, and up to four of its options."""
    engine = draw.choice(["vllm", "vllm", "sglang", "sglang", "lmdeploy", "llama-server", "llama-server", "old"])
    if engine in ("vllm", "sglang", "lmdeploy"):
        body = {draw.choice(["rope_parameters", "rope_scaling"]): block(draw, width)} if draw.random() < 0.8 else {}
        if draw.random() < 0.2:
            inner = {draw.choice(["full_attention", "sliding_attention"]): block(draw, width) for _ in range(2)}
            body = {draw.choice(["rope_parameters", "rope_scaling"]): inner}
        if draw.random() < 0.3:
            body[
                draw.choice(["rope_theta", "partial_rotary_factor", LENGTH, ORIGINAL, "model_type", "rope_scaling"])
            ] = draw.choice([1e6, 0.5, 1.0, 8192, 1, None, "x"])
        for path in draw.choice(
            [(), (), (), (), ("text_config",), ("text_config",), ("thinker_config", "text_config")]
        )[::-1]:
            body = {path: body} if draw.random() < 0.9 else {path: body, "rope_theta": 1e6}
        key = "--json-model-override-args" if engine == "sglang" else "--hf-overrides"
        words = [key, json.dumps(body)] if draw.random() < 0.9 else []
        length = {"vllm": "--max-model-len", "sglang": "--context-length", "lmdeploy": "--session-len"}[engine]
        if draw.random() < 0.3:
            words += [
                length,
                draw.choice(["1", "0", "-1", "4096", "4097", "8k", "8K", "1.5k", "2M", "1.5K", "2g", "auto"]),
            ]
        if engine == "lmdeploy" and draw.random() < 0.1:
            words += ["--rope-scaling-factor", draw.choice(["0", "2", "x"])]
        return [engine, *words] if draw.random() < 0.8 else words
    if engine == "old":
        words = ["--rope-scaling", json.dumps(block(draw, width))] if draw.random() < 0.8 else []
        return words + (["--rope-theta", draw.choice(["1e6", "10000", "nan"])] if draw.random() < 0.5 else [])
    names = [f"{draw.choice(['qwen2', 'llama', 'phi3', 'x'])}.{text}" for text in DRAWN["metadata of flags"]]
    values = DRAWN["flags of llama.cpp"] | {"--override-kv": names}
    words = ["llama-server"] if draw.random() < 0.7 else []
    for name in draw.sample(list(values), draw.choice([1, 1, 2, 3, 4])):
        words += [name, draw.choice(values[name])] if draw.random() < 0.98 else [name]
    return words


def a_command(draw):
    """A config with flags: a GGUF file mostly with those of llama.cpp."""
    name, given, rotary_dim = pick(draw, CASES)
    words = flags(draw, rotary_dim)
    is_file = draw.random() < (
        0.6 if "-" in (words or ["-"])[0] and not {"--rope-theta", "--hf-overrides"} & {*words} else 0.02
    )
    config, given = copy.deepcopy(CONFIGS[name]), dict(given)
    if is_file or draw.random() < 0.25:
        config, given = a_file(draw) if is_file else a_config(draw)
    elif draw.random() < 0.3:
        changed(draw, config, SOURCES)
    given.pop("compat", None)
    return config, {**given, "flags": words}


def scaling(draw, width):
    factor, length, pairs = draw.choice([1.0, 1.5, 2.0, 4.0, 8.0, 40.0]), draw.choice([2, 1024, 4096, 8192]), width // 2
    seq_len = draw.choice([None, 1, length, length + 1, 4 * length, 32_000])
    ramp = draw.choice([{}, {}, {"attention_factor": 1.0}, {"attention_factor": 1.25}, {"truncate": False}])
    ramp |= draw.choice([{}, {}, {"beta_fast": 20.0}, {"beta_slow": 2.0}])
    if not ramp:
        ramp = draw.choice([{}, {"mscale": 0.707, "mscale_all_dim": 0.707}, {"mscale": 1.0, "mscale_all_dim": 1.0}])
    lists = [tuple(1.0 + step * j for j in range(pairs)) for step in draw.choice([(0.0, 0.5), (0.25, 0.5), (0.5, 0.5)])]
    stated = draw.choice([{}, {"attention_factor": 1.0}, {"attention_factor": 1.2}, {"factor": factor}])
    high = draw.choice([1.5, 4.0])
    kinds = [
        lambda: None,
        lambda: LinearScaling(factor=factor),
        lambda: NTKScaling(factor=factor),
        lambda: DynamicNTKScaling(factor=factor, max_position_embeddings=length, seq_len=seq_len),
        lambda: YarnScaling(**{"factor": factor, ORIGINAL: length, **ramp}),
        lambda: Llama3Scaling(**{"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": high, ORIGINAL: length}),
        lambda: LongRopeScaling(
            **{"short_factor": lists[0], "long_factor": lists[1], ORIGINAL: length, "seq_len": seq_len, **stated}
        ),
        lambda: ProportionalScaling(partial_rotary_factor=draw.choice([0.25, 0.5, 1.0]), factor=factor),
    ]
    return draw.choice(kinds)()


def a_value(draw):
    """An embedding: that of a real config, or one with random arguments."""
    if draw.random() < 0.5:
        found = rope_of(*(a_config(draw) if draw.random() < 0.6 else a_file(draw)), draw)
        if found is not None:
            return found
    width = 2 * draw.choice(PAIRS)
    base = draw.choice([10.0, 1e4, 5e5, 1e6, 12_345.5])
    more = draw.choice([{}, {}, {}, {"rotary_dim": width // 2}, {"rotary_dim": width // 2, "first_channel": 2}])
    layout = draw.choice(["half", "half", "interleaved", "interleaved_to_half"])
    rotated = more.get("rotary_dim", width)
    more |= draw.choice(
        [{}] * 6
        + [{"attention_factor": 1.5}, {"reverse": True}, {"xpos": XPos(scale_base=512.0)}, {"phase": "float32"}]
    )
    if draw.random() < 0.15:
        more["sections"] = Sections((rotated // 2 - 2, 1, 1), draw.choice(["chunked", "interleaved"]))
    if draw.random() < 0.1:
        more["inv_freq"] = tuple(base ** (-j / 8) for j in range(rotated // 2))
        return RotaryEmbedding(head_dim=width, layout=layout, **more)
    return RotaryEmbedding(head_dim=width, layout=layout, base=base, scaling=scaling(draw, rotated), **more)


def short(text):
    """The same with numbers of six digits, as a power is not rounded alike on every platform."""
    return re.sub(r"-?\d+\.\d+(e[-+]?\d+)?|\d+e[-+]\d+", lambda number: f"{float(number[0]):.6g}", text)


def rope_of(config, given, draw):
    """The embedding; of a layer, where layers differ."""
    try:
        return from_config(config, **given)
    except ValueError as error:
        if "layer or layer_type must be given, because" not in str(error) or draw.random() < 0.2:
            raise
    return from_config(config, **{**given, "layer": draw.randrange(7)})


def of_reading(case, draw):
    rope = rope_of(*case, draw)
    if rope is None:
        return "None"
    own, found = rope._provenance, rope if len(repr(rope)) < 1000 else repr(rope)[:300]
    stated = f"trained {own.trained_length}, stated {own.max_position_embeddings}, from {own.format} at {own.path}"
    return " | ".join(
        [
            f"{found}",
            f"softmax {rope.softmax_scale} tables {rope.attention_factor}",
            stated,
            " ".join(own.stated),
            *map(str, own.remarks),
            *(f"{d.row}: {d.key}, {d.source}" for d in own.defaults),
        ]
    )


def of_writing(rope, draw):
    target = pick(draw, TARGETS)
    given = {}
    if target in ("llama.cpp", "gguf") and draw.random() < 0.8:
        given["architecture"] = draw.choice(DRAWN["architectures"])
    return f"{target}: {json.dumps(rope.to_config(target, **given))}"


def of_version(rope, draw):
    target, version = draw.choice([("vllm", "0.21.0"), ("vllm", "0.21.0"), ("transformers", "5.18.0"), ("mlx", None)])
    return f"{target}: {json.dumps(rope.to_config(target, engine_version=version))}"


def of_description(rope, draw):
    return rope.describe()


def of_report(rope, draw):
    length = draw.choice([None, 1, 1024, 4096, 8192, 8193, 40_000, 131_072, 10**6])
    trained = draw.choice([None, None, None, 1024, 4096, 8192])
    if draw.random() < 0.5:
        return str(rope.explain(length, trained_length=trained))
    rule = draw.choice([None, None, "linear", "ntk", "dynamic", "yarn"])
    found = rope.extend(length or 16_384, rule, trained_length=trained)
    return str(found) if rule is None else str(found.explain())


def a_line(draw):
    """Words of a command line, of which some are misspelt or have no value."""
    words = flags(draw, 64) if draw.random() < 0.7 else pick(draw, WRONG_FLAGS)
    words = [str(each) for each in words] if isinstance(words, list) else str(words).split()
    for _ in range(draw.choice([0, 1, 1, 2, 3])):
        place = draw.randrange(len(words) + 1)
        words[place:place] = draw.choice(DRAWN["more words"]).split()
    if words and draw.random() < 0.3:
        n = draw.randrange(len(words))
        words[n] = draw.choice(
            [words[n][:-1], words[n] + "s", words[n].upper(), words[n].replace("-", "_"), words[n][1:]]
        )
    if words and draw.random() < 0.1:
        del words[draw.randrange(len(words))]
    return shlex.join(words) if draw.random() < 0.2 else words


def of_line(words, draw):
    return str(tuple(command_line(words)))


def a_header(draw):
    """The bytes of a GGUF file whose texts, lists and counts are about as large as small limits allow, or damaged."""

    def near(limit):
        return draw.choice([limit - 1, limit, limit, limit, limit, limit + 1])

    def text(value):
        return struct.pack("<Q", len(value)) + value

    entries = [text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama")]
    if draw.random() < 0.4:
        entries.append(text(b"general.alignment") + struct.pack("<II", 4, draw.choice([0, 1, 8, 32, 33, 64])))
    if draw.random() < 0.4:
        entries.append(text(b"split.count") + struct.pack("<IH", 2, draw.choice([0, 1, 2])))
    for _ in range(draw.choice([0, 1, 1, 2])):
        key = draw.choice([b"tokenizer.x", b"y", b"z" * near(LIMITS["MAX_NAME"])])
        kind, count = draw.choice([0, 1, 2, 4, 6, 7, 8, 8, 8, 10, 12] * 2 + [13]), near(LIMITS["MAX_LIST"])
        size = {0: 1, 1: 1, 2: 2, 4: 4, 6: 4, 7: 1, 10: 8, 12: 8}.get(kind, 0)
        if draw.random() < 0.4:
            value = text(b"v" * near(LIMITS["MAX_TEXT"])) if kind == 8 else bytes(range(1, size + 1))
        else:
            value = struct.pack("<IQ", kind, count)
            value += (
                text(b"v" * draw.choice([0, 1, near(LIMITS["MAX_TEXT"])])) * count
                if kind == 8
                else bytes([1]) * count * size
            )
            kind = 9
        entries.append(text(key) + struct.pack("<I", kind) + value)
    tensors = []
    for _ in range(draw.choice([0, 1, 1, 2, 3])):
        name = draw.choice([b"rope_freqs.weight", b"rope_freqs.weight", b"rope_factors_long.weight", b"w", b"v"])
        shape = [draw.choice([2, 4, 4, 5]) for _ in range(1 if b"rope" in name and draw.random() < 0.8 else near(2))]
        kind, offset = draw.choice([0, 0, 0, 1]), draw.choice([0, 0, 0, 8, 32, 39, 40, 41, 1000])
        tensors.append(text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset))
    counts = [len(tensors) + draw.choice([0] * 20 + [1, 2]), len(entries) + draw.choice([0] * 20 + [1, 4, 40])]
    found = b"GGUF" + struct.pack("<IQQ", draw.choice([3] * 30 + [1, 2, 2, 4, 3 << 24, 5 << 16]), *counts)
    found += b"".join(entries) + b"".join(tensors)
    found += struct.pack("<20f", *range(1, 21))[: draw.choice([80, 80, 80, 48, 40, 17])]
    if draw.random() < 0.15:
        found = found[: draw.randrange(len(found) + 1)]
    if draw.random() < 0.1:
        at_ = draw.randrange(max(len(found), 1))
        found = found[:at_] + bytes([draw.randrange(256)]) + found[at_ + 1 :]
    return found


LIMITS = DRAWN["limits"]


def of_header(content, draw):
    with tempfile.TemporaryDirectory() as folder, mock.patch.multiple(gguf_file, **LIMITS):
        path = Path(folder, "m.gguf")
        path.write_bytes(content)
        try:
            return f"{gguf_file.metadata_of_file(path)} {gguf_file.read_gguf(path).tensors}"
        except ValueError as error:
            raise ValueError(str(error).replace(folder, "FOLDER")) from None


def a_checkpoint(draw):
    """Tensors by their names, and a config beside them, whose sizes mostly agree."""
    heads, kv_heads, width, layers = (
        draw.choice([2, 4]),
        draw.choice([1, 2]),
        draw.choice([4, 6, 8]),
        draw.choice([1, 2]),
    )
    hidden = draw.choice([heads * width, heads * width, 24])
    prefix, names = draw.choice(DRAWN["prefixes of layers"]), draw.choice(DRAWN["names of projections"])
    rows = {"q": heads * width, "k": kv_heads * width, "wq": heads * width, "wk": kv_heads * width}
    tensors = {}
    for layer in range(layers) if draw.random() < 0.9 else [""]:
        for name in names:
            last = name.rpartition(".")[2].partition("_")[0]
            count = rows.get(last, (heads + 2 * kv_heads) * width) + draw.choice([0] * 7 + [1, width, heads * width])
            shape = [width] if name.endswith("norm") else [count, hidden]
            parameter = draw.choice(["weight"] * 6 + ["qweight", "bias"])
            dtype = draw.choice(["F16"] * 6 + ["U32", "I8", "X"])
            tensors[f"{prefix}.{layer}.{name}.{parameter}".replace("..", ".")] = (dtype, shape, None)
            if parameter == "qweight" or draw.random() < 0.05:
                tensors[f"{prefix}.{layer}.{name}.scales"] = tensors[f"{prefix}.{layer}.{name}.biases"] = (
                    "F16",
                    [1],
                    None,
                )
    if draw.random() < 0.5:
        pairs, base = draw.choice([1, 2, width // 2]), draw.choice([1e4, 5e5, 123.0])
        values = [base ** (-j / pairs) * draw.choice([1, 1, 1, 1.001]) for j in range(pairs)]
        values = draw.choice([values, values, values, [0.0] * pairs, [1.0, 0.5, 0.1]])
        name = f"{prefix}.0.self_attn.rotary_emb.inv_freq" if draw.random() < 0.7 else "rope.freqs"
        shape = [len(values)] if draw.random() < 0.9 else [1, len(values)]
        tensors[name] = (draw.choice(["F32", "F64", "F16", "I32"]), shape, values)
    config = {"model_type": draw.choice(["llama", "llama", "cohere", "phi3", "deepseek_v3", "falcon", "mine"])}
    config |= {"hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": width}
    config |= {"num_hidden_layers": layers, "rope_theta": draw.choice([1e4, 5e5]), "qk_nope_head_dim": 4}
    config |= {"qk_rope_head_dim": 4, "multi_query": True}
    if "w" in names[0]:
        config = dict(dim=hidden, n_heads=heads, n_kv_heads=kv_heads, n_layers=layers, head_dim=width, rope_theta=5e5)
    if "linear_qkv" in names[0]:
        config = dict(hidden_size=hidden, num_attention_heads=heads, num_query_groups=kv_heads, num_layers=layers)
        config |= dict(kv_channels=width, position_embedding_type="rope", rotary_interleaved=draw.random() < 0.5)
    for _ in range(draw.choice([0, 0, 1, 2, 3])):
        key = draw.choice(list(config))
        if draw.random() < 0.6:
            del config[key]
        elif isinstance(config[key], int):
            config[key] = draw.choice(
                [config[key] + 1, 2 * config[key], 0, [config[key]] * 2, [1, 2], float(config[key])]
            )
        if not config:
            break
    return tensors, draw.choice([config, config, config, None]), draw.choice(["config", "config", "params"])


def of_checkpoint(case, draw):
    tensors, config, name = case
    entries, data = {"__metadata__": {"format": draw.choice(["pt", "pt", "mlx"])}}, b""
    sizes = {"F32": 4, "F64": 8, "F16": 2, "I32": 4, "U32": 4, "I8": 1, "X": 1}
    for key, (dtype, shape, values) in tensors.items():
        size = sizes[dtype] * math.prod(shape)
        own = (
            struct.pack(f"<{len(values)}{dict(F32='f', F64='d', F16='e', I32='f')[dtype]}", *values)
            if values
            else bytes(size)
        )
        entries[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += own
    header = json.dumps(entries).encode()
    with tempfile.TemporaryDirectory() as folder:
        file = draw.choice(
            ["model.safetensors", "model.safetensors", "model-00001-of-00002.safetensors", "consolidated.safetensors"]
        )
        Path(folder, file).write_bytes(len(header).to_bytes(8, "little") + header + data)
        if config is not None:
            Path(folder, f"{name}.json").write_text(json.dumps(config))
        found = identify_checkpoint(folder).to_dict()
    return json.dumps({key: value for key, value in found.items() if value is not None}).replace(folder, "FOLDER")


def of_family(name):
    """Each embedding of a config that states no more than it must: what the family's defaults make of it."""
    config = {"model_type": name, "num_hidden_layers": 8}
    found = []
    for sizes in ({}, {"hidden_size": 1024, "num_attention_heads": 16}):
        for layer in range(8):
            try:
                rope = from_config(config | sizes, layer=layer)
            except ValueError as error:
                found.append(str(error)[:150])
            else:
                found.append(short(repr(rope)[:300]))
    return in_lines(" | ".join(dict.fromkeys(found)))


KINDS = {
    "configs": (a_config, of_reading),
    "files": (a_file, of_reading),
    "flags": (a_command, of_reading),
    "lines": (a_line, of_line),
    "headers": (a_header, of_header),
    "checkpoints": (a_checkpoint, of_checkpoint),
    "written": (a_value, of_writing),
    "versions": (a_value, of_version),
    "descriptions": (a_value, of_description),
    "reports": (a_value, of_report),
}


def text_of(kind, number):
    """What is said of a case, in lines: a result with the warnings, or the error."""
    draw = random.Random(f"{kind} {number}")
    drawn, said = KINDS[kind]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = said(drawn(draw), draw)
        except (TypeError, ValueError) as error:
            found = f"{type(error).__name__}: {error}"
    return in_lines(short(" ".join([*found.split(), *(f"warning: {each.message}" for each in caught)])))
