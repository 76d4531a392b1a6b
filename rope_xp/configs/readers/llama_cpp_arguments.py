"""Metadata of a GGUF file, as changed by arguments of llama.cpp such as `--override-kv`, or made for an embedding.

Sources: ggml-org/llama.cpp 0.5.0, `common/arg.cpp`, the constructor of `llama_context` (`src/llama-context.cpp`),
`get_key` of `src/llama-model-loader.cpp` (overrides have a type), and `get_rope_factors` of `src/llama-model.cpp`.
"""

import warnings
from dataclasses import replace
from typing import Any

from rope_xp.arrays import checks
from rope_xp.configs import engines
from rope_xp.configs.keys import comma_separated
from rope_xp.configs.readers.command_line import SLOTS, SWITCHES, Changed, CommandLine
from rope_xp.configs.writers import gguf_architectures as gguf
from rope_xp.embedding import RotaryEmbedding
from rope_xp.errors import wrong_value
from rope_xp.frequencies import DynamicNTKScaling
from rope_xp.provenance import with_provenance
from rope_xp.types import Config, Values

BETAS = {"--yarn-beta-fast": "beta_fast", "--yarn-beta-slow": "beta_slow"}
# In the changed metadata, the key of a mapping: the ends of YaRN's ramp, which replace those of every architecture.
BETAS_OF_FLAGS = "llama.cpp:betas"
INTEGERS = (gguf.LENGTH, gguf.ORIGINAL, "block_count", "embedding_length", gguf.WIDTH, f"{gguf.WIDTH}_swa")
INTEGERS += tuple(f"attention.{name}" for name in ("head_count", "head_count_kv", "key_length", "value_length"))
INTEGERS += ("attention.key_length_swa", "attention.sliding_window", "attention.sliding_window_pattern")
# The types of metadata that are no float. An override of another type is not used.
TYPE_OF = {gguf.KIND: "str", "pooling_type": "str", "rope.scaling.finetuned": "bool", **dict.fromkeys(INTEGERS, "int")}


def with_arguments(line: CommandLine, metadata: Config) -> Changed:
    remarks: list[str] = []
    name = str(metadata.get("general.architecture"))
    found = dict(metadata)
    for flag, text in line.flags:
        if flag == "--override-kv":
            for each in text.split(","):
                _override(found, name, each, remarks)
    before = {key: found.get(f"{name}.{key}") for key in (gguf.BASE, gguf.FACTOR, gguf.KIND, gguf.ORIGINAL)}
    factor = found.get(f"{name}.rope.scale_linear") if before[gguf.FACTOR] is None else before[gguf.FACTOR]
    kind = "linear" if before[gguf.KIND] is None else before[gguf.KIND]
    before |= {gguf.FACTOR: factor or 1.0, gguf.KIND: kind}
    base, context = line.last("--rope-freq-base"), line.last("-c", "--ctx-size")
    changed = {
        gguf.BASE: base or before[gguf.BASE],  # 0 means that of the file
        gguf.FACTOR: _factor(line, before[gguf.FACTOR]),
        gguf.KIND: _kind(line, before[gguf.KIND]),
        gguf.ORIGINAL: line.last("--yarn-orig-ctx") or before[gguf.ORIGINAL],
    }
    if found.get(gguf.LONG) and changed[gguf.ORIGINAL] != before[gguf.ORIGINAL]:
        changed[gguf.ORIGINAL] = before[gguf.ORIGINAL]
        remarks.append("llama.cpp chooses the list of LongRoPE by the original length of the file, not --yarn-orig-ctx")
    if (line.last("--rope-scaling") or before[gguf.KIND]) == "none":  # also beside --yarn-ext-factor
        changed[gguf.FACTOR] = 1.0
    differing = [key for key in (gguf.BASE, gguf.FACTOR) if changed[key] != before[key]]
    differing += [gguf.KIND] if (changed[gguf.KIND] == "yarn") != (before[gguf.KIND] == "yarn") else []
    reading, own = engines.table("llama.cpp").of(name), gguf.LAYERS.get(name)
    has_own_base = reading is not None and reading.reads(gguf.BASE_OF_SLIDING)  # by default, that of the file
    if differing and has_own_base and (own is None or own.sliding_base is None):
        raise wrong_value(
            f"flags must not change {comma_separated(differing)} for architecture {name!r}, whose layers with a "
            "sliding window keep that of the file; got other values: override the metadata in their place"
        )
    is_yarn = changed[gguf.KIND] == "yarn"
    _check_attention(line, is_yarn, remarks)
    if changed[gguf.FACTOR] != 1.0 and not is_yarn and found.get(gguf.LONG):
        raise wrong_value(f"the factor of flags must be 1 for a file with {gguf.LONG}; got {changed[gguf.FACTOR]:g}")
    for key, value in changed.items():
        if value is not None and value != before[key]:
            found[f"{name}.{key}"] = value
    if changed[gguf.FACTOR] != before[gguf.FACTOR]:
        checks.at_least("--rope-scale of flags, or 1 / --rope-freq-scale,", changed[gguf.FACTOR], 1.0)
        found.pop(f"{name}.rope.scale_linear", None)
    betas = {
        key: float(value) for flag, key in BETAS.items() if (value := line.last(flag)) is not None and value >= 0.0
    }
    if betas and not is_yarn:
        remarks.append("llama.cpp reads --yarn-beta-fast and --yarn-beta-slow with YaRN only")
    if context is not None and context < 0:
        raise wrong_value(f"--ctx-size of flags must be at least 0; got {context}")
    length = found.get(f"{name}.{gguf.LENGTH}")
    longest, reason = length, f"the file has {name}.{gguf.LENGTH}={length}; --override-kv changes it"
    if is_yarn and changed[gguf.FACTOR] != before[gguf.FACTOR]:
        longest, reason = changed[gguf.ORIGINAL] or length, "the original length times the factor"
        longest = int(longest * changed[gguf.FACTOR]) if checks.is_int(longest) else None
    served, sequences = context or length, 1 if line.last(*SWITCHES) else line.last(*SLOTS) or 1
    if isinstance(served, int) and sequences > 1:
        # `llama_context` divides the context among sequences, in multiples of 256.
        served = (served + -served % 256) // sequences
        served += -served % 256
    if context and isinstance(served, int) and isinstance(longest, int) and served > longest:
        remarks.append(f"llama.cpp's server ends at {longest} tokens, whatever -c is: {reason}")
    of_longrope = served + -served % 256 if found.get(gguf.LONG) and isinstance(served, int) else None  # also of one
    return Changed({**found, BETAS_OF_FLAGS: betas}, of_longrope, served if context or sequences > 1 else None, remarks)


def _factor(line: CommandLine, stated: object) -> Any:
    """The factor: `--rope-scale`, or the inverse of `--rope-freq-scale`, where 0 means the file's. The last counts."""
    name, value = next(
        (each for each in reversed(line.flags) if each[0] in ("--rope-scale", "--rope-freq-scale")), ("", 0)
    )
    if not value and name == "--rope-scale":
        raise wrong_value("--rope-scale of flags must not be 0; got 0")
    if not value:
        return stated
    return checks.positive(f"{name} of flags", value if name == "--rope-scale" else 1.0 / value)


def _kind(line: CommandLine, stated: object) -> object:
    """The rule. `--yarn-ext-factor` decides whether it is YaRN, whatever `--rope-scaling` is."""
    kind, mix = line.last("--rope-scaling") or stated, line.last("--yarn-ext-factor")
    if mix is None or mix < 0.0:
        return kind
    if mix not in (0.0, 1.0):
        raise wrong_value(f"--yarn-ext-factor of flags must be 0, 1 or negative; got {mix:g}")
    return ("linear" if kind == "yarn" else kind) if mix == 0.0 else "yarn"


def _check_attention(line: CommandLine, is_yarn: bool, remarks: list[str]) -> None:
    """`--yarn-attn-factor`, which YaRN replaces, and which else multiplies sines and cosines."""
    value = line.last("--yarn-attn-factor")
    if value is None or value < 0.0 or value == 1.0:
        return
    if not is_yarn:
        raise wrong_value(
            f"--yarn-attn-factor of flags must be 1 without YaRN, because llama.cpp then multiplies sines and "
            f"cosines by it; got {value:g}"
        )
    remarks.append(
        f"--yarn-attn-factor {value:g} changes nothing: llama.cpp replaces it as soon as YaRN is on. "
        "rope.scaling.attn_factor is read, by --override-kv"
    )


def _override(metadata: Values, name: str, text: str, remarks: list[str]) -> None:
    key, equals, typed = text.partition("=")
    kind, colon, value = typed.partition(":")
    if not (key and equals and colon) or kind not in ("int", "float", "bool", "str"):
        raise wrong_value(
            f"--override-kv of flags must be KEY=TYPE:VALUE and the type int, float, bool or str; got {text[:100]!r}"
        )
    start, _, rest = key.partition(".")
    is_rotary = rest.startswith(("rope.", "attention.", "context_length", "block_count", "embedding_length"))
    if start != name or not is_rotary:
        if ".rope." in key:
            remarks.append(f"llama.cpp does not read {key[:100]}: the architecture of the file is {name}")
        return
    wanted = TYPE_OF.get(rest, "float")
    if kind != wanted:
        remarks.append(f"llama.cpp does not use --override-kv {key[:100]}: its type must be {wanted}, and is {kind}")
        return
    try:
        metadata[key] = {"int": int, "float": float, "str": str, "bool": lambda word: word == "true"}[kind](value)
    except ValueError:
        raise wrong_value(f"{key[:100]} of --override-kv in flags must be a number; got {value[:100]!r}") from None


# Architectures that accept every rule, for families whose architecture is not known.
WHOLE, PARTIAL = {"half": "exaone", "interleaved": "minicpm"}, {"half": "stablelm", "interleaved": "chatglm"}


def metadata_of(rope: RotaryEmbedding) -> tuple[Values, list[str]]:
    """What llama.cpp's converter writes into a file for an embedding, as the writer of "gguf" knows it; and remarks."""
    # The converter permutes projections so that the pairing is that of the architecture.
    name = gguf.ARCHITECTURE_OF.get(rope._provenance.model_type)
    if name is None and rope.sections is None and rope.softmax_scale == 1.0:
        name = (WHOLE if rope.rotary_dim == rope.head_dim else PARTIAL).get(rope.layout)
    layout = gguf.gguf_layout(name, rope.sections)
    if layout not in (None, rope._rotation.read):
        rope = with_provenance(rope.replace(layout=layout), rope._provenance)
    length, left_out = rope._provenance.max_position_embeddings, []
    if isinstance(rope.scaling, DynamicNTKScaling):
        left_out = ["llama.cpp's converter writes nothing for dynamic NTK, and llama.cpp does not scale"]
        rope = with_provenance(rope.replace(scaling=None), rope._provenance)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        own = with_provenance(rope, replace(rope._provenance, layer_type=""))  # the keys of layers with full attention
        found = {gguf.FREQS: None, **own.to_config("gguf", architecture=name)}
    name = found["general.architecture"]
    if found.get(f"{name}.{gguf.KIND}") == "none":  # the converter omits it, and llama.cpp's default is "linear"
        del found[f"{name}.{gguf.KIND}"]
    found |= {} if length is None else {f"{name}.{gguf.LENGTH}": length}
    return found, [*left_out, *(str(each.message) for each in caught)]
