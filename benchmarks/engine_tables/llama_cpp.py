"""llama.cpp: what each architecture of a GGUF file reads, found by switching each key, tensor and argument on and off.

The program `test-llama-archs` writes tiny models of nearly all architectures. A probe is two runs that differ in one
setting: it is read if the logits differ at all, because two runs with the same settings give the same bits. Each run is
a process of its own, because llama.cpp aborts on some settings.

`--source` is the folder of `_llama_cpp_engine.py`, which is built if it is not there (5 to 9 minutes). The table takes
about 4 minutes. Versions are those of CMakeLists.txt; llama.cpp also numbers its builds (b1234), which a source
archive does not tell.
"""

import faulthandler
import os
import pickle
import re
import tempfile
from pathlib import Path

import gguf
import numpy as np

from engine_tables._llama_cpp_engine import built

ENGINE = "llama.cpp"
TOKENS = [7 * index % 128 for index in range(120)]
SCALING = "rope.scaling."
TYPE, FACTOR, ORIGINAL = f"{SCALING}type", f"{SCALING}factor", f"{SCALING}original_context_length"
WIDTH, SECTIONS = "rope.dimension_count", "rope.dimension_sections"
FREQS, LONG, SHORT = TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
# Settings from which each probe begins. The values of the generated files are random numbers for some keys.
NONE = {
    TYPE: "none",
    FACTOR: 4.0,
    ORIGINAL: 4096,
    "rope.freq_base": 10_000.0,
    "rope.freq_base_swa": 10_000.0,
    f"{SCALING}attn_factor": 1.0,
    f"{SCALING}yarn_ext_factor": -1.0,
    f"{SCALING}yarn_attn_factor": 1.0,
    f"{SCALING}yarn_beta_fast": 32.0,
    f"{SCALING}yarn_beta_slow": 1.0,
    f"{SCALING}yarn_log_multiplier": 0.0,
}
LINEAR, YARN, LONGROPE = ({**NONE, TYPE: name} for name in ("linear", "yarn", "longrope"))
# A list of probes for `keys`, and one for each rule: what is named is switched to the value.
PROBES = {
    "keys": {
        "rope.freq_base": 500.0,
        "rope.freq_base_swa": 500.0,
        WIDTH: "half",
        f"{WIDTH}_swa": "half",
        SECTIONS: "other",
        FREQS: "tensor",
        f"{SCALING}attn_factor": 1.5,
        f"{SCALING}alpha": 50.0,
        "--rope-freq-base": {"rope_freq_base": 500.0},
    },
    "linear": {FACTOR: 2.0, "--rope-scale": {"rope_freq_scale": 0.5}},
    "yarn": {
        FACTOR: 2.0,
        ORIGINAL: 512,
        f"{SCALING}attn_factor": 1.5,
        f"{SCALING}yarn_attn_factor": 1.5,
        f"{SCALING}yarn_beta_fast": 2.0,
        f"{SCALING}yarn_beta_slow": 0.05,
        f"{SCALING}yarn_ext_factor": 0.5,
        f"{SCALING}yarn_log_multiplier": 0.07,
        "--rope-scale": {"rope_freq_scale": 0.5},
        "--yarn-orig-ctx": {"yarn_orig_ctx": 512},
        "--yarn-attn-factor": {"yarn_attn_factor": 1.5},
        "--yarn-beta-fast": {"yarn_beta_fast": 2.0},
        "--yarn-beta-slow": {"yarn_beta_slow": 0.05},
        "--yarn-ext-factor": {"yarn_ext_factor": 0.5},
    },
    "longrope": {
        LONG: "tensor",
        SHORT: "tensor",
        f"{SCALING}attn_factor": 1.5,
    },
}
# Architectures of which the program writes no model, and what their source shows: another one that reads the same.
LIKE = {
    "apertus": ("llama", "src/models/apertus.cpp:31, 64, 99"),
    "baichuan": ("falcon", "src/models/baichuan.cpp:6, 83: models of 32 layers; others are not rotated"),
    "bitnet": ("gptneox", "src/models/bitnet.cpp:81"),
    "chameleon": ("falcon", "src/models/chameleon.cpp:57, 106"),
    "eurobert": ("gptneox", "src/models/eurobert.cpp:65"),
    "gemma-embedding": ("gemma3", "src/models/gemma-embedding.cpp:9, 110"),
    "gemma3n": ("gemma3", "src/models/gemma3n.cpp:10, 163"),
    "jina-bert-v3": ("gptneox", "src/models/bert.cpp:128"),
    "llama-embed": ("llama", "src/models/models.h:175"),
    "modern-bert": ("gemma3", "src/models/modern-bert.cpp:7, 117"),
    "neo-bert": ("gptneox", "src/models/neo-bert.cpp:73"),
    "nomic-bert": ("gptneox", "src/models/bert.cpp:128"),
    "nomic-bert-moe": ("gptneox", "src/models/bert.cpp:128"),
    "plm": ("gptneox", "src/models/plm.cpp:136"),
}
# What the source shows of others.
FIXED = {
    "bert": {},
    "cogvlm": {"base": 10_000.0, "rotated": 1.0},
    "deepseek2-ocr": {"base": 10_000.0, "rotated": 1.0},
}
COMMIT = "of 0.5.0-dev, commit 0c1e570"


def fact(models, text, source):
    """A fact about architectures, and where the source of llama.cpp shows it; whether that was also run."""
    return {"models": models.split(), "text": text, "source": f"{source} {COMMIT}"}


FACTS = [
    fact(
        "cogvlm",
        "The base is 10,000 and the whole head is rotated, whatever the file and the arguments say.",
        "run; src/models/cogvlm.cpp:115",
    ),
    fact(
        "deepseek2-ocr",
        "The base must be 10,000, else the program ends. There is no scaling.",
        "read: src/models/deepseek2.cpp:483",
    ),
    fact(
        "deepseek2 deepseek32 glm-dsa mistral4",
        "The softmax scale is multiplied by the square of 1 + 0.1 ln(factor) and of attn_factor, also with linear "
        "scaling. With YaRN, yarn_log_multiplier cancels this, but glm-dsa does not read it.",
        "run for deepseek2; src/models/deepseek2.cpp:439, deepseek32.cpp:190, glm-dsa.cpp:224",
    ),
    fact(
        "deepseek2 deepseek32 mistral3 mistral4",
        "yarn_log_multiplier is 0.1 times mscale_all_dim, but mscale_all_dim itself for mistral3.",
        "run for deepseek2 and mistral3; src/models/deepseek2.cpp:37, mistral3.cpp:9",
    ),
    fact("grok", "yarn_beta_fast is 8 if the file does not have it. Others have 32.", "read: src/models/grok.cpp:5"),
    fact(
        "hunyuan-dense hunyuan_vl",
        "The base of the file is multiplied by rope.scaling.alpha to the power dim / (dim - 2).",
        "run for hunyuan_vl; src/models/hunyuan-vl.cpp:8",
    ),
    fact(
        "qwen2vl paddleocr qwen3vl qwen3vlmoe qwen35 qwen35moe hunyuan_vl glm4 glm4moe",
        "rope.dimension_sections is read, but changes nothing for text, whose three positions are equal.",
        "read: src/llama-graph.cpp:131",
    ),
    fact(
        "qwen3vl qwen3vlmoe qwen35 qwen35moe",
        "Pairs that no section reaches follow a fourth position, which is 0 for text: with sections 24, 20, 20, pairs "
        "61 and 62 are not rotated. Other programs rotate them by the first position.",
        "run for qwen3vl; ggml/src/ggml-cpu/ops.cpp:6256, src/llama-graph.cpp:140",
    ),
    fact(
        "afmoe gemma2 gpt-oss llama4 smallthinker",
        "Layers with a sliding window have the base and the factor of the file. --rope-freq-base, --rope-scale and "
        "--rope-scaling change the other layers only.",
        "run for gemma2 and gpt-oss; src/llama-model.cpp:2329",
    ),
    fact(
        "gemma4",
        "Reads what gemma3 does, and divides the frequencies of layers with full attention by rope_freqs.weight.",
        "read: src/models/gemma4.cpp:14, 96, 205, 228",
    ),
    *(fact(name, f"Reads what {like} does.", f"read: {source}") for name, (like, source) in LIKE.items()),
]


def readings(source):
    """The version, and what each architecture reads."""
    engine = built(source)
    found = {}
    for name in architectures(engine):
        with tempfile.TemporaryDirectory() as folder:
            files = engine.write_models(name, Path(folder))
            each = [reading(engine, file, name) for file in files]
        if any(each):
            found[name] = union(each)
    found |= {name: found[like] for name, (like, _) in LIKE.items()}
    for name, fixed in FIXED.items():
        found[name] = {"keys": [], "rules": {}, **({"fixed": fixed} if fixed else {})}
    found["gemma4"] = {**found["gemma3"], "keys": sorted([*found["gemma3"]["keys"], FREQS])}
    return engine.version, found


def architectures(engine):
    """The names in `LLM_ARCH_NAMES`."""
    text = (engine.source / "src" / "llama-arch.cpp").read_text("utf-8")
    return re.findall(r'\{ LLM_ARCH_\w+, *"([^"]+)"', text.partition("LLM_ARCH_NAMES")[2].partition("};")[0])


def reading(engine, file, name):
    """What one file reads; empty if it cannot be run."""
    model = Model(engine, file, name)
    if model.run(NONE) is None:
        return {}
    starts = {"keys": NONE, "linear": LINEAR, "yarn": YARN, "longrope": LONGROPE}
    lists = {kind: sorted(model.read(starts[kind], probes)) for kind, probes in PROBES.items()}
    keys, rules = lists.pop("keys"), {}
    for rule, read in lists.items():
        computed = any(key.endswith(".weight") for key in read) if rule == "longrope" else FACTOR in read
        rules |= {rule: read} if computed else {}
    fixed = {"fixed": {"rotated": 1.0}} if model.rotates_whole_head() else {}
    return {"keys": keys, "rules": rules, **fixed}


class Model:
    """A file without the tensors and the keys that are probed, and the results of its runs."""

    def __init__(self, engine, file, name):
        self.engine, self.name, self.given = engine, name, file
        self.reader = gguf.GGUFReader(file)
        field = self.reader.get_field(f"{name}.{WIDTH}")
        self.rotated = int(field.contents()) if field else 0
        self.removed = {*TENSORS, *(f"{name}.{key}" for key in (f"{SCALING}alpha", f"{WIDTH}_swa", SECTIONS))}
        self.file = self.written("plain", self.removed)
        if self.run(NONE) is None:  # architectures that cannot do without sections
            self.removed.remove(f"{name}.{SECTIONS}")
            self.file = self.written("plain", self.removed)

    def written(self, label, without, metadata=None, tensors=None):
        """A copy of the file with changes."""
        file = self.given.with_name(f"{self.given.stem}-{label}")
        copy(self.reader, file, self.name, without, metadata or {}, tensors or {})
        return file

    def read(self, start, probes):
        """The names of the probes whose setting changes the result."""
        before = self.run(start)
        for key, value in probes.items():
            after = self.probe(start, key, value)
            if before is not None and after is not None and not np.array_equal(before, after):
                yield key

    def rotates_whole_head(self):
        """Whether llama.cpp refuses to rotate half of the channels, and says so."""
        overrides = {f"{self.name}.{key}": value for key, value in {**NONE, WIDTH: self.rotated // 2}.items()}
        result, log = in_process(self.engine, self.file, overrides, {})
        return bool(self.rotated) and result is None and "n_rot" in log

    def probe(self, start, key, value):
        """The result with one more setting."""
        if isinstance(value, dict):
            return self.run(start, **value)
        if value == "half":
            return self.run({**start, key: self.rotated // 2}) if self.rotated else self.run(start)
        if value == "other":
            sections = {f"{self.name}.{key}": [max(self.rotated // 8, 1)] * 3 + [0]}
            return self.run(start, file=self.written("sections", {*TENSORS, *sections}, sections))
        if value == "tensor":
            numbers = np.linspace(1.0, 3.0, max(self.rotated // 2, 1), dtype=np.float32)
            chosen = {each: numbers for each in (TENSORS[:1] if key == TENSORS[0] else TENSORS[1:])}
            length = {"n_ctx": 8192} if key == LONG else {}
            return self.run(start, file=self.written("tensor", {*TENSORS}, tensors=chosen), **length)
        return self.run({**start, key: value})

    def run(self, settings, file=None, **params):
        """The result with these metadata and fields of `llama_context_params`."""
        overrides = {f"{self.name}.{key}": value for key, value in settings.items()}
        return in_process(self.engine, file or self.file, overrides, params)[0]


def in_process(engine, file, overrides, params):
    """The logits from a process of its own, or None if that fails; and what llama.cpp wrote about errors."""
    engine.library()
    os.environ["GGML_NO_BACKTRACE"] = "1"
    with tempfile.TemporaryFile() as log:
        receiver, sender = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.dup2(log.fileno(), 2)
                faulthandler.disable()  # pytest's, which would write elsewhere
                result = _logits_or_embeddings(engine, file, overrides, params)
                with os.fdopen(sender, "wb") as pipe:
                    pipe.write(pickle.dumps(result))
            finally:
                os._exit(0)
        os.close(sender)
        with os.fdopen(receiver, "rb") as pipe:
            data = pipe.read()
        os.waitpid(child, 0)
        log.seek(0)
        return pickle.loads(data) if data else None, log.read().decode(errors="replace")


def _logits_or_embeddings(engine, file, overrides, params):
    try:
        return engine.logits(file, TOKENS, overrides, **params)
    except ValueError as error:
        if "got none" not in str(error):
            raise
        return engine.logits(file, TOKENS, overrides, embeddings=True, **params)


def copy(reader, path, name, without, metadata, tensors):
    """A GGUF file with other metadata and tensors."""
    writer = gguf.GGUFWriter(path, name)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in {"general.architecture", *without, *metadata}:
            continue
        of_list = field.types[1] if len(field.types) > 1 else None
        if field.types[:1] == [gguf.GGUFValueType.ARRAY] and of_list is None:
            continue  # an empty list
        writer.add_key_value(field.name, field.contents(), field.types[0], of_list)
    for key, value in metadata.items():
        writer.add_array(key, value)
    for tensor in reader.tensors:
        if tensor.name not in {*without, *tensors}:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for key, value in tensors.items():
        writer.add_tensor(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def union(found):
    """What any of the files of an architecture reads."""
    keys = {key for each in found for key in each.get("keys", ())}
    rules = {}
    for each in found:
        for rule, read in each.get("rules", {}).items():
            rules[rule] = rules.get(rule, set()) | set(read)
    whole = [each["fixed"] for each in found if "fixed" in each]
    fixed = {"fixed": whole[0]} if whole else {}
    return {"keys": sorted(keys), "rules": {rule: sorted(read) for rule, read in sorted(rules.items())}, **fixed}
