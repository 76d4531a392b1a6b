"""Changed configs: every scaling rule, old names of keys, other bases, head widths and rotated fractions."""

import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .observe import SHORT, text

BELOW, BEYOND, LONGEST = map(np.arange, (97, 301, 450))  # positions below and beyond the original lengths
BASE = 12_345.0
PARTIAL, ORIGINAL = "partial_rotary_factor", "original_max_position_embeddings"
# Keys of bases in a source file of transformers.
LEGACY_BASE = re.compile(r"\b(?!default_)((?:\w+_)?(?:rope_theta|rotary_emb(?:edding)?_base|rope_local_base_freq))\b")


@dataclass(frozen=True)
class Case:
    """A changed config."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    legacy: bool = False  # whether rope_xp reads the changes, not what a config object of transformers 5 writes
    calls: tuple[Any, ...] = (SHORT,)  # positions of each call; the last is compared
    seq_len: int | None = None  # the longest call, if transformers remembers it
    key: str = ""  # a key in the changes that most classes do not read
    without: Mapping[str, Any] = field(default_factory=dict)  # the changes without it
    silent: tuple[str, ...] = ()  # keys that rope_xp does not get
    contradicts: bool = False  # whether the config contradicts itself; rope_xp then raises one of `REFUSALS`


def stem(name):
    """The name of a class, without "RotaryEmbedding" in the end."""
    return name.removesuffix("RotaryEmbedding")


def same_for(names, *found):
    """The same rows for several classes."""
    return dict.fromkeys(names.split(), found)


def rules(pairs):
    """Blocks of every scaling rule; the original length is below the positions of the comparison."""
    ramp = np.linspace(0, 1, pairs)
    yarn = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 64}
    llama3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 64}
    short, long = ((1 + slope * ramp).round(3).tolist() for slope in (0.5, 30))
    return {
        "linear": {"rope_type": "linear", "factor": 4.0},
        "yarn": yarn,
        "yarn, truncate false": {**yarn, "truncate": False, "beta_fast": 24.0, "beta_slow": 1.5},
        "yarn, mscale": {**yarn, "mscale": 0.7, "mscale_all_dim": 0.4},
        "yarn, attention_factor": {**yarn, "attention_factor": 1.25},
        "llama3": {"rope_type": "llama3", "factor": 8.0, **llama3},
        "longrope": {
            "rope_type": "longrope", "factor": 16.0, ORIGINAL: 256, "short_factor": short, "long_factor": long
        },
        "proportional": {"rope_type": "proportional", "factor": 2.0, PARTIAL: 0.25},
    }  # fmt: skip


def short_and_long(name, changes, **more):
    """A config whose rule depends on the length, for a short and a long call."""
    return tuple(
        Case(f"{name}, {length}", changes, calls=(positions,), **more)
        for length, positions in (("short", BELOW), ("long", BEYOND))
    )


def cases(target, pairs, quick):
    """The default config, and changed ones if the config class has the keys that they change.

    `pairs` is the number of pairs that are rotated by default, for each layer type.
    """
    subject, default = target.subject, target.default
    blocks = getattr(default, "rope_parameters", None) if subject.rules else None
    yield Case("default")
    yield from subject.more
    if hasattr(default, "rope_interleave") and subject.observer is text:
        yield Case("rope_interleave false", {"rope_interleave": False})
    yield from legacy_keys(default, {"rope_theta": BASE} if blocks else {})
    if not blocks:
        return

    def changed(make):
        """Rotary parameters with a different base for each layer type."""
        made = {}
        for i, (label, count) in enumerate(pairs.items()):
            kept = blocks if label is None else blocks[label]
            kept = {name: kept[name] for name in subject.keep if name in kept}
            made[label] = {"rope_theta": BASE * (1 + i), **kept, **make(count)}
        return {"rope_parameters": made.get(None, made)}

    plain = changed(lambda _: {"rope_type": "default"})
    yield Case("base", plain)
    yield Case(PARTIAL, changed(lambda _: {"rope_type": "default", PARTIAL: 0.5}), key=PARTIAL, without=plain)
    if subject.observer is not text:
        return
    yarn = changed(lambda count: rules(count)["yarn"])
    yield Case("yarn", yarn)
    both = changed(lambda count: {**rules(count)["yarn"], PARTIAL: 0.5})
    yield Case(f"yarn, {PARTIAL}", both, key=PARTIAL, without=yarn)
    if quick:
        return
    if subject.axes > 1:
        yield Case("linear", changed(lambda count: rules(count)["linear"]))
    else:
        yield from every_rule(changed)
        yield Case("width", other_width(default.to_dict(), latent=subject.width is None))
    yield from old_blocks(pairs)


def legacy_keys(default, base):
    """Keys of older versions, outside the rotary parameters. `base` has the changes that some of these cases need."""
    for key, value in ((PARTIAL, 0.5), ("rotary_dim", 16)):
        yield Case(f"legacy {key}", {**base, key: value}, legacy=True, key=key, without=base)
    source = inspect.getsource(sys.modules[type(default).__module__])
    names = {*LEGACY_BASE.findall(source)} - {"rope_theta", "layer_rope_theta"}
    bases = {name: BASE * (2 + at) for at, name in enumerate(sorted(names))}
    for name, value in bases.items():
        yield Case(f"legacy {name}", {name: value}, legacy=True, key=name)
    if len(bases) > 1:
        yield Case("legacy bases", bases, legacy=True)


def every_rule(changed):
    """Each scaling rule; those that depend on the length also after another call."""
    short = {"max_position_embeddings": 256}
    for name in rules(4):
        block = changed(lambda count, name=name: rules(count)[name])
        if name == "longrope":
            yield from short_and_long(name, block | short)
            yield Case("longrope, long twice", block | short, calls=(BEYOND, LONGEST))
            yield Case("longrope, short after long", block | short, calls=(BEYOND, BELOW))
        elif name != "yarn":
            yield Case(name, block)
    dynamic = changed(lambda _: {"rope_type": "dynamic", "factor": 4.0}) | short
    yield from short_and_long("dynamic", dynamic)
    yield Case("dynamic, longer and longer", dynamic, calls=(BEYOND, LONGEST))
    yield Case("dynamic, short after long", dynamic, calls=(LONGEST, BELOW))
    yield Case("dynamic, long after longer", dynamic, calls=(LONGEST, BEYOND), seq_len=len(LONGEST))


def other_width(keys, latent):
    """Changes that give heads another width."""
    if latent and keys.get("qk_rope_head_dim"):
        return {"qk_rope_head_dim": 32}
    return {"head_dim": 48} if keys.get("head_dim") else {"hidden_size": 768, "num_attention_heads": 8}


def old_blocks(pairs):
    """Rotary parameters as in files of older versions: `rope_scaling`, or no base, or no original length."""
    yarn = rules(4)["yarn"]
    old = {"rope_theta": BASE, "rope_scaling": yarn}
    yield Case("legacy yarn", old, legacy=True)
    yield Case("legacy yarn without rope_theta", {"rope_scaling": yarn}, legacy=True)
    if None not in pairs:
        return
    yield Case("legacy rope_theta", {"rope_theta": BASE}, legacy=True)
    linear = {"type": "linear", "factor": 4.0}
    yield Case("legacy linear", {"rope_theta": BASE, "rope_scaling": linear}, legacy=True)
    yield Case("legacy yarn, original length outside", {**old, ORIGINAL: 32}, legacy=True, contradicts=True)
    yield Case("yarn without rope_theta", {"rope_parameters": yarn}, legacy=True)
    for name in ("yarn", "llama3", "longrope"):
        block = {key: value for key, value in rules(pairs[None])[name].items() if key != ORIGINAL}
        changes = {"rope_theta": BASE, "rope_scaling": block}
        yield Case(f"{name} without {ORIGINAL}", changes, legacy=True, calls=(BELOW,), silent=(ORIGINAL,))
