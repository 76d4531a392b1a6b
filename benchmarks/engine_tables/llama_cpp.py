"""llama.cpp: what each architecture of a GGUF file reads, found by switching each key, tensor and argument on and off.

The program `test-llama-archs` writes tiny models of nearly all architectures. A probe is two runs that differ in one
setting: it is read if the logits differ at all, because two runs with the same settings give the same bits. Each run is
a process of its own, because llama.cpp aborts on some settings.

`--source` is the folder of `_llama_cpp_engine.py`, which is built if it is not there (5 to 9 minutes). The table takes
about 4 minutes. Versions are those of CMakeLists.txt; llama.cpp also numbers its builds (b1234), which a source
archive does not tell.
"""

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
TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
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
        "rope.dimension_count": "half",
        "rope.dimension_count_swa": "half",
        "rope.dimension_sections": "other",
        "rope_freqs.weight": "tensor",
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
        "rope_factors_long.weight": "tensor",
        "rope_factors_short.weight": "tensor",
        f"{SCALING}attn_factor": 1.5,
    },
}
FACTS = []


def readings(source):
    """The version, and what each architecture reads."""
    engine = built(source)
    found = {}
    for name in architectures(engine):
        with tempfile.TemporaryDirectory() as folder:
            files = engine.write_models(name, Path(folder))
            each = [reading(engine, file, name) for file in files]
        if any(each):
            found[name] = _union(each)
    return engine.version, found


def architectures(engine):
    """The names in `LLM_ARCH_NAMES`."""
    text = (engine.source / "src" / "llama-arch.cpp").read_text("utf-8")
    return re.findall(r'\{ LLM_ARCH_\w+, *"([^"]+)"', text.partition("LLM_ARCH_NAMES")[2].partition("};")[0])


def reading(engine, file, name):
    """What one file reads; empty if it cannot be run."""
    model = _Model(engine, file, name)
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


class _Model:
    """A file without the tensors and the keys that are probed, and the results of its runs."""

    def __init__(self, engine, file, name):
        self.engine, self.name, self.given = engine, name, file
        self.reader = gguf.GGUFReader(file)
        self.rotated = int(self._value("rope.dimension_count") or 0)
        probed = {f"{name}.{SCALING}alpha", f"{name}.rope.dimension_sections"}
        self.file = self.written("plain", {}, {}, without={*TENSORS, *probed})
        plain = self._value("rope.dimension_sections")
        if plain is not None and self.run(NONE) is None:  # architectures that cannot do without sections
            self.file = self.written("plain", {}, {}, without={*TENSORS, f"{name}.{SCALING}alpha"})

    def _value(self, key):
        field = self.reader.get_field(f"{self.name}.{key}")
        return None if field is None else field.contents()

    def written(self, label, metadata, tensors, without):
        """A copy of the file with changes."""
        file = self.given.with_name(f"{self.given.stem}.{label}")
        copy(self.reader, file, self.name, metadata, tensors, without)
        return file

    def read(self, start, probes):
        """The names of the probes whose setting changes the result."""
        before = self.run(start)
        for key, value in probes.items():
            after = self.probe(start, key, value)
            if before is not None and after is not None and not np.array_equal(before, after):
                yield key

    def rotates_whole_head(self):
        """Whether llama.cpp refuses to rotate half of the channels."""
        width = self.rotated and self.probe(NONE, "rope.dimension_count", "half")
        return width is None

    def probe(self, start, key, value):
        """The result with one more setting."""
        if isinstance(value, dict):
            return self.run(start, **value)
        if value == "tensor":
            tensors = {each: np.linspace(1.0, 3.0, max(self.rotated // 2, 1), dtype=np.float32) for each in TENSORS}
            chosen = {key: tensors[key]} if key == TENSORS[0] else {each: tensors[each] for each in TENSORS[1:]}
            file = self.written("tensor", {}, chosen, without={*TENSORS})
            length = {"n_ctx": 8192} if key == TENSORS[1] else {}
            return self.run(start, file=file, **length)
        if value == "half":
            return self.run({**start, key: self.rotated // 2}) if self.rotated else self.run(start)
        if value == "other":
            quarter = max(self.rotated // 8, 1)
            sections = {f"{self.name}.{key}": [quarter, quarter, quarter, 0]}
            file = self.written("sections", sections, {}, without={*TENSORS, f"{self.name}.{key}"})
            return self.run(start, file=file)
        return self.run({**start, key: value})

    def run(self, settings, file=None, **params):
        overrides = {f"{self.name}.{key}": value for key, value in settings.items()}
        return in_process(self.engine, file or self.file, overrides, params)


def in_process(engine, file, overrides, params):
    """The logits, or the embeddings of a model without them, from a process of its own; None if that fails."""
    engine.library()
    os.environ["GGML_NO_BACKTRACE"] = "1"
    receiver, sender = os.pipe()
    child = os.fork()
    if child:
        os.close(sender)
        with os.fdopen(receiver, "rb") as file:
            data = file.read()
        os.waitpid(child, 0)
        return pickle.loads(data) if data else None
    try:
        try:
            result = engine.logits(file, TOKENS, overrides, **params)
        except ValueError as error:
            if "got none" not in str(error):
                raise
            result = engine.logits(file, TOKENS, overrides, embeddings=True, **params)
        with os.fdopen(sender, "wb") as pipe:
            pipe.write(pickle.dumps(result))
    finally:
        os._exit(0)


def copy(reader, path, name, metadata, tensors, without):
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


def _union(found):
    """What any of the files of an architecture reads."""
    keys = {key for each in found for key in each.get("keys", ())}
    rules = {}
    for each in found:
        for rule, read in each.get("rules", {}).items():
            rules[rule] = rules.get(rule, set()) | set(read)
    fixed = {"fixed": each["fixed"] for each in found if "fixed" in each}
    return {"keys": sorted(keys), "rules": {rule: sorted(read) for rule, read in sorted(rules.items())}, **fixed}
