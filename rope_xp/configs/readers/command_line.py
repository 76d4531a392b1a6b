"""Split the command line of an engine (llama.cpp too) into the arguments about rotation, and tell whose they are."""

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from rope_xp.configs.keys import comma_separated
from rope_xp.configs.readers.files import MAX_BYTES, parsed_json
from rope_xp.errors import wrong_type, wrong_value
from rope_xp.types import Config, Values


class Engine(NamedTuple):
    """An engine with arguments that change a rotation."""

    name: str  # the engine, and the version whose source was read
    commands: str  # a pattern for the words with which its command lines begin
    flags: Mapping[str, Callable[[str, str], object]]  # the arguments about rotation, and what reads their values
    # Arguments that change no rotation and that the other engines do not have, or whose names only seem to be about
    # positions.
    other: str


class CommandLine(NamedTuple):
    """The arguments of an engine that change a rotation, in their order."""

    engine: str
    flags: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        return PROGRAMS[self.engine].name

    def last(self, *names: str) -> Any:
        return next((value for name, value in reversed(self.flags) if name in names), None)


class Changed(NamedTuple):
    """What is read in place of a config, because of arguments."""

    mapping: Config
    context: int | None  # the length that chooses the list of LongRoPE for all sequences, if the engine has one alone
    served: int | None  # the longest sequence, in tokens, if arguments say it
    remarks: list[str]  # sentences about arguments that do not do what one would expect
    layout: str = ""  # that of the engine's class, if it has one alone


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise wrong_value(f"{name} of flags must be a finite number; got {text[:100]!r}")
    return value


def _whole(name: str, text: str) -> int:
    if not re.fullmatch(r"-?\d{1,15}", text):
        raise wrong_value(f"{name} of flags must be a whole number; got {text[:100]!r}")
    return int(text)


def _length(name: str, text: str) -> int | None:
    """A length as vLLM reads it: 1k is 1,000 and 1K is 1,024. None for the length of the config."""
    if text.lower() in ("-1", "auto"):
        return None
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)([kKmMgG]?)", text)
    if not found or ("." in found[1] and (not found[2] or found[2].isupper())):
        raise wrong_value(f"{name} of flags must be a number of tokens, such as 131072 or 128K; got {text!r:.100}")
    power = "kmg".find(found[2].lower()) + 1 if found[2] else 0
    return int(float(found[1]) * (1024 if found[2].isupper() else 1000) ** power)


def _object(name: str, text: str) -> Values:
    found = parsed_json(f"{name} of flags", text.encode("utf-8", "surrogateescape"))
    if not isinstance(found, dict):
        raise wrong_value(f"{name} of flags must be a JSON object; got {text[:100]!r}")
    return found


def _kind(name: str, text: str) -> str:
    if text not in ("none", "linear", "yarn"):
        raise wrong_value(f"{name} of flags must be none, linear or yarn; got {text[:100]!r}")
    return text


def _text(name: str, text: str) -> str:
    return text


# The length of an engine.
LENGTHS = ("--max-model-len", "--context-length", "--session-len", "-c", "--ctx-size")
# Of llama.cpp: how many sequences divide it, and, without a value, that all share it.
SLOTS, SWITCHES = ("-np", "--parallel"), ("-kvu", "--kv-unified")
# What says which lengths are served, and by which code. It is expected to change nothing, but for LongRoPE's list.
SERVING = (*LENGTHS, *SLOTS, *SWITCHES, "--backend")
PROGRAMS = {
    "vllm": Engine(
        "vLLM 0.33",
        r"(.*/)?vllm(\.\S*)?",
        {"--hf-overrides": _object, "--max-model-len": _length},
        "--gpu-memory-utilization --tensor-parallel-size --enforce-eager --num-gpu-blocks-override "
        "--override-generation-config --override-pooler-config --override-neuron-config --model-class-overrides "
        "--decode-context-parallel-size --prefill-context-parallel-size --replayssm-buffer-len "
        "--max-seq-len-to-capture "
        "--calculate-kv-scales --mm-encoder-fp8-scale-path --mm-encoder-fp8-scale-save-margin "
        "--mm-encoder-fp8-scale-save-path --max-log-len --enable-chunked-prefill --max-num-seqs",
    ),
    # Until 0.10, with transformers 4.
    "vllm-0.8": Engine(
        "vLLM 0.8", r"(?!)", {"--rope-scaling": _object, "--rope-theta": _number, "--max-model-len": _length}, ""
    ),
    "sglang": Engine(
        "SGLang 0.5.23",
        r"(.*/)?sglang(\.\S*)?",
        {"--json-model-override-args": _object, "--context-length": _whole},
        "--mem-fraction-static --cuda-graph-max-seq-len-prefill --cuda-graph-prefill-max-context "
        "--elastic-ep-scale-timeout --enable-fused-qk-norm-rope --linear-replayssm-cache-len "
        "--watermark-context-window --chunked-prefill-size",
    ),
    "lmdeploy": Engine(
        "lmdeploy 0.18",
        r"(.*/)?lmdeploy(\.\S*)?",
        {"--hf-overrides": _object, "--session-len": _whole, "--rope-scaling-factor": _number, "--backend": _text},
        "--cache-max-entry-count --cache-block-seq-len --dllm-block-length --max-log-len --calib-seqlen --search-scale",
    ),
    "llama.cpp": Engine(
        "llama.cpp 0.5.0",
        r"(.*/)?(llama-[\w-]+|llama_cpp\.server|llama\.cpp)(\.exe)?",
        {
            "-c": _whole,
            "--ctx-size": _whole,
            **dict.fromkeys(SLOTS, _whole),
            **dict.fromkeys(SWITCHES, _text),
            "--rope-scaling": _kind,
            "--rope-scale": _number,
            "--rope-freq-base": _number,
            "--rope-freq-scale": _number,
            "--yarn-orig-ctx": _whole,
            "--yarn-ext-factor": _number,
            "--yarn-attn-factor": _number,
            "--yarn-beta-fast": _number,
            "--yarn-beta-slow": _number,
            "--override-kv": _text,
        },
        "-ngl --n-gpu-layers --gpu-layers -fa --flash-attn -ctk -ctv --cache-type-k --cache-type-v --context-file "
        "--context-shift --no-context-shift --control-vector-scaled --ctx-checkpoints --diffusion-block-length "
        "--diffusion-cfg-scale --dry-allowed-length --fit-ctx --lora-scaled --override-tensor -ot "
        "--override-tensor-draft --spec-draft-override-tensor --spec-synth-len --mmproj --ctx-size-draft",
    ),
}
KNOWN = {name for each in PROGRAMS.values() for name in each.flags}
HARMLESS = {name for each in PROGRAMS.values() for name in each.other.split()}
ABOUT_POSITIONS = re.compile(r"(^|-)(rope|rotary|yarn|ntk|scal|ctx|context|len|position|hf-|override|theta)")
IS_NAME = re.compile(r"--?[A-Za-z]")
OF_ENVIRONMENT = re.compile(r"LLAMA_ARG_(ROPE|YARN|CTX)\w*=")


def command_line(flags: object) -> CommandLine:
    """The arguments about rotation of a command line, which is a string as a shell has it, or a list of words."""
    words = _words(flags)
    first = next((index for index, word in enumerate(words) if word.startswith("--")), len(words))
    for word in words[:first]:
        if OF_ENVIRONMENT.match(word):
            raise wrong_value(f"flags must be arguments, not variables of the environment; got {word[:100]!r}")
    commands = [name for name, each in PROGRAMS.items() if any(re.fullmatch(each.commands, w) for w in words[:first])]
    found = _pairs(words)
    engine = _engine(commands[:1], found)
    program = PROGRAMS[engine]
    unknown = [name for name, _ in found if _start(name) in KNOWN - program.flags.keys()]
    if unknown:
        raise wrong_value(
            f"flags must be arguments of one program; got {unknown[0]} among those of {program.name}, which has "
            f"{comma_separated(program.flags)}"
        )
    own = [(name, text) for name, text in found if _start(name) in program.flags]
    plain = tuple(_read(program, name, text) for name, text in own if "." not in name)
    dotted: Values = {}
    for name, text in own:
        if "." in name:
            _set_at(dotted, name, text)
    return CommandLine(engine, plain + tuple(dotted.items()))


def _start(name: str) -> str:
    """The name of an argument without the keys that vLLM accepts after it: `--hf-overrides.rope_theta 1e6`."""
    return name.partition(".")[0]


def _set_at(tree: Values, name: str, text: str | None) -> None:
    start, *keys = name.split(".")
    if start != "--hf-overrides" or text is None:
        raise wrong_value(f"an argument with dots must be --hf-overrides.KEY VALUE in flags; got {name[:100]}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # vLLM then takes it as text
        value = text
    inner = tree.setdefault(start, {})
    for key in keys[:-1]:
        inner = inner.setdefault(key, {})
        if not isinstance(inner, dict):
            raise wrong_value(f"{name[:100]} must not contradict another argument of flags; got {text[:100]!r}")
    inner[keys[-1]] = value


def _words(flags: object) -> list[str]:
    if isinstance(flags, str):
        if len(flags) > MAX_BYTES:
            raise wrong_value(f"flags must have at most {MAX_BYTES} characters; got {len(flags)}")
        try:
            return shlex.split(flags.replace("\\\r\n", " ").replace("\\\n", " "))
        except ValueError as error:
            raise wrong_value(f"flags must be words as a shell has them; got {error} in {flags[:100]!r}") from None
    if not isinstance(flags, (list, tuple)) or not all(isinstance(each, str) for each in flags):
        raise wrong_type(f"flags must be a string or a list of strings; got {type(flags).__name__}: {flags!r:.100}")
    return list(flags)


def _pairs(words: list[str]) -> list[tuple[str, str | None]]:
    """The arguments that have a name, each with its value. `--a=b` is the same as `--a b`, and `_` the same as `-`."""
    found: list[tuple[str, str | None]] = []
    end = words.index("--") if "--" in words else len(words)
    for word, following in zip(words[:end], [*words[1:end], "--"]):
        if not IS_NAME.match(word):
            continue
        name, equals, value = word.partition("=")
        start, dot, path = name.partition(".")
        name = (start.replace("_", "-") if start.startswith("--") else start) + dot + path
        has_value = following != "--" and not IS_NAME.match(following)
        found.append((name, value if equals else following if has_value else None))
    for name, _ in found:
        _check_known(name)
    return found


def _check_known(name: str) -> None:
    start = _start(name)
    if start in KNOWN | HARMLESS or not ABOUT_POSITIONS.search(start.lower().lstrip("-")):
        return
    like = get_close_matches(start[:100], sorted(KNOWN), 2, 0.7)
    known = f"known are {' and '.join(like)}" if like else _known()
    raise wrong_value(f"flags must be known if they may be about positions; got {name[:60]}; {known}")


def _known() -> str:
    names = {key: " ".join(name for name in each.flags if name != "--ctx-size") for key, each in PROGRAMS.items()}
    return "known are " + "; ".join(f"{key}: {text}" for key, text in names.items())


def _engine(commands: list[str], found: list[tuple[str, str | None]]) -> str:
    """Whose arguments these are: by the command, or else by the names."""
    names = [_start(name) for name, _ in found]
    of_json = any(name == "--rope-scaling" and (text or "").lstrip().startswith("{") for name, text in found)
    is_old = of_json or "--rope-theta" in names
    if commands and not (commands[0] == "vllm" and is_old):
        return commands[0]
    if is_old:
        return "vllm-0.8"
    others = {key: each for key, each in PROGRAMS.items() if key != "vllm-0.8"}
    for name in names:
        owners = [key for key, each in others.items() if name in each.flags or name in each.other.split()]
        if len(owners) == 1:
            return owners[0]
    if "--hf-overrides" in names:  # lmdeploy has it too, but its command lines have other arguments or a command
        return "vllm"
    raise wrong_value(
        f"flags must have an argument about rotation, or begin with a known command; got "
        f"{comma_separated(names)[:60] or 'none'}; {_known()}"
    )


def _read(program: Engine, name: str, text: str | None) -> tuple[str, object]:
    if name in SWITCHES:
        return name, True
    if text is None:
        raise wrong_value(f"{name} of flags must have a value; got none")
    return name, program.flags[name](name, text)
