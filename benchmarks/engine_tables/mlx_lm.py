"""What mlx-lm reads: each of its model classes is built with random weights, and each rotary key is switched.

The source is the folder `mlx_lm` of `pip install "mlx[cpu]" mlx-lm`. A key is read if a rotation, or the factor of the
scores, changes with it. A rule is computed if the rotation is that of `rope_xp` for it. Layers of a model that read
different keys have an entry each, `MODEL:LAYER_TYPE`; so has a composite for each text model that it chooses by type,
`MODEL:TEXT_MODEL`.
"""

import copy
import importlib.util
import re
from math import isclose, log, sqrt
from pathlib import Path
from typing import Any

from engine_tables import _mlx_models as mlx_models
from engine_tables._mlx_models import Seen
from rope_xp import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    ProportionalScaling,
    YarnScaling,
)

ENGINE = "mlx-lm"
FACTS: list[dict[str, Any]] = [
    {
        "models": ["ministral3", "mistral4"],
        "text": "wants `llama_4_scaling_beta` and `original_max_position_embeddings` in `rope_parameters`, also "
        "without a rule: keep those of the file",
        "source": "mlx_lm/models/ministral3.py:66 and mistral4.py:339 at 0.32.2",
    },
    {
        "models": ["mellum"],
        "text": "`rope_type` `linear` is taken for `default`: positions are not divided",
        "source": "mlx_lm/models/mellum.py:41 at 0.32.2",
    },
    {
        "models": ["phi3"],
        "text": "any block must have `long_factor`, also one of the rule `linear`",
        "source": "mlx_lm/models/phi3.py:36 at 0.32.2",
    },
    {
        "models": ["nemotron"],
        "text": "a block with `rope_type` and without `type` passes the check and then fails",
        "source": "mlx_lm/models/nemotron.py:38 and 84 at 0.32.2",
    },
    {
        "models": ["muse_spark"],
        "text": "rotates in a kernel for Metal, pairs (2j, 2j+1), by the base `rope_parameters.rope_theta` of "
        "`text_config`, where `layer_rope_theta` is not 0; only read, not run",
        "source": "mlx_lm/models/muse_spark.py:223 and 246 at 0.32.2",
    },
    {
        "models": ["prism_hadamard_qwen35"],
        "text": "a packed checkpoint of `qwen3_5`, with its classes; only read, not run",
        "source": "mlx_lm/models/prism_hadamard_qwen35.py:22 at 0.32.2",
    },
    {
        "models": ["bailing_hybrid"],
        "text": "with the architecture `BailingMoeV3ForCausalLM`, the class is that of `bailing_moe_v3`",
        "source": "mlx_lm/utils.py:63 at 0.32.2",
    },
]

LENGTH, ORIGINAL = mlx_models.LENGTH, 1024
# Each key outside a rotary block, and another value than that of the tiny models. Of two values, one is another.
OUTSIDE: dict[str, Any] = {
    **dict.fromkeys(("rope_theta", "rope_local_base_freq", "swa_rope_theta", "rope_local_theta"), 500_000.0),
    **dict.fromkeys(("compress_rope_theta", "rope_freq_constant", "rope_embedding_base", "rotary_emb_base"), 500_000.0),
    **dict.fromkeys(("partial_rotary_factor", "rotary_pct", "global_partial_rotary_factor"), 0.75),
    **dict.fromkeys(("head_dim", "global_head_dim", "swa_head_dim", "kv_channels"), 64),
    **dict.fromkeys(("rope_traditional", "rope_interleave"), (True, False)),
    "qk_rope_head_dim": 16, "rotary_dim": 16, "rope_position_scale": 2.0,
    "partial_rotary_factors": [0.75] * mlx_models.LAYERS,
    "attn_config.rope_theta": 500_000.0,
}  # fmt: skip
# Keys of a block that other formats have outside it.
INSIDE = {"rope_theta": 500_000.0, "partial_rotary_factor": 0.75}
# Keys outside that only some rules read.
LENGTHS = {"max_position_embeddings": 2 * LENGTH, "original_max_position_embeddings": 2 * ORIGINAL}
# Where a block may be. Where a class reads several, the one that it takes is found by giving it two.
BLOCKS = ("rope_parameters.{layer_type}", "rope_parameters", "rope_scaling")
TYPE_KEYS = ("type", "rope_type")
GONE = mlx_models.GONE
# Keys of a block that a rule may read besides those of `rules`, and other values of all.
BESIDES = {
    "yarn": ("mscale", "mscale_all_dim", "attention_factor", "truncate"),
    "longrope": ("factor", "attention_factor"),
    "proportional": ("factor",),
    "dynamic": ("alpha",),
}
OTHER_VALUES: dict[str, Any] = {
    "factor": 2.0, "original_max_position_embeddings": 2 * ORIGINAL, "low_freq_factor": 2.0, "high_freq_factor": 8.0,
    "beta_fast": 4.0, "beta_slow": 4.0, "mscale": 0.5, "mscale_all_dim": 0.5, "attention_factor": 1.5,
    "truncate": False,
    "short_mscale": 1.25, "long_mscale": 1.25, "partial_rotary_factor": 0.125, "alpha": 50.0,
}  # fmt: skip


def readings(source: Path | None) -> tuple[str, dict[str, dict[str, Any]]]:
    """The version, and what each model type reads."""
    folder = source or Path(importlib.util.find_spec("mlx_lm").origin).parent
    version = mlx_models.use_source(folder)
    found: dict[str, dict[str, Any]] = {}
    for name in mlx_models.names(folder):
        if name not in mlx_models.NOT_BUILT:
            for inner in ("", *mlx_models.CHOICES.get(name, ())):
                found |= Model(folder, name, inner).readings()
    for other, name in mlx_models.remapped(folder).items():
        found |= {f"{other}{key.removeprefix(name)}": each for key, each in found.items() if key.split(":")[0] == name}
    return version, found


def rules(pairs: int, factor: float = 4.0) -> dict[str, tuple[dict[str, Any], Any]]:
    """The block of each rule, and the value that `rope_xp` has for it in a sequence of `n` tokens."""
    at, long = {"original_max_position_embeddings": ORIGINAL}, [2.0 + factor * j for j in range(pairs)]
    bands = {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **at}
    yarn = {"factor": factor, "beta_fast": 32.0, "beta_slow": 1.0, **at}
    lists = {"short_factor": [1.0 + 0.25 * j for j in range(pairs)], "long_factor": long, **at}
    magnitude = sqrt(1 + log(LENGTH / ORIGINAL) / log(ORIGINAL))  # that of the factor: who reads no such key has it too
    lists |= {"short_mscale": magnitude, "long_mscale": magnitude}
    tuples = {key: tuple(value) if isinstance(value, list) else value for key, value in lists.items()}
    third = pairs // 3
    return {
        "linear": ({"factor": factor}, lambda n: LinearScaling(factor=factor)),
        "dynamic": (
            {"factor": factor},
            lambda n: DynamicNTKScaling(factor=factor, max_position_embeddings=LENGTH, seq_len=n),
        ),
        "ntk": ({"type": "dynamic", "alpha": factor, "factor": 1.0}, lambda n: NTKScaling(factor=factor)),
        "llama3": (bands, lambda n: Llama3Scaling(**bands)),
        "yarn": (yarn, lambda n: YarnScaling(**yarn)),
        "longrope": (lists, lambda n: LongRopeScaling(**tuples, seq_len=LENGTH)),
        "proportional": (
            {"partial_rotary_factor": 1 / factor},
            lambda n: ProportionalScaling(partial_rotary_factor=1 / factor),
        ),
        "mrope": ({"mrope_section": [pairs - 2 * third, third, third]}, lambda n: None),
    }


class Model:
    """One model class."""

    def __init__(self, folder: Path, name: str, inner: str) -> None:
        self.name, self.title = name, f"{name}:{inner}" if inner else name
        self.text = mlx_models.text_of(folder, name) + mlx_models.text_of(folder, inner or name)
        flat, nested = mlx_models.tiny(name, inner)
        is_flat, is_nested = (bool(self.seen_with(each)) for each in (flat, nested))
        is_nested &= "text_config" in self.text
        self.config = nested if is_nested else flat
        self.place = {
            **({"path": ["text_config"]} if is_nested else {}),
            **({"flat": True} if is_nested and is_flat else {}),
        }
        self.looks: dict[str, dict[str, Seen]] = {}
        self.seen = self.look()

    def seen_with(self, config: dict[str, Any]) -> dict[str, Seen]:
        """What layers of each type do; nothing if the class fails."""
        try:
            return mlx_models.observe(mlx_models.build(self.name, config))
        except Exception:  # a class raises what it likes: it cannot be used with these keys
            return {}

    def known_config(self) -> dict[str, Any]:
        """The config with the keys that the class takes, and no others."""
        inner = self.config.get("text_config", self.config)
        known = {key: value for key, value in inner.items() if re.search(rf"\b{key}\b", self.text)}
        return {**self.config, "text_config": known} if "text_config" in self.config else known

    def look(self, **changes: Any) -> dict[str, Seen]:
        """The same after changes of the config: values by keys, with dots for keys of mappings."""
        asked = repr(changes)
        if asked in self.looks:
            return self.looks[asked]
        config = copy.deepcopy(self.config)
        for path, value in changes.items():
            *outer, last = *self.place.get("path", ()), *path.split(".")
            place = config
            for name in outer:
                place[name] = dict(place.get(name) or {})
                place = place[name]
            value = {**(place.get(last) or {}), **value} if isinstance(value, dict) else value
            place[last] = (
                {key: each for key, each in value.items() if each is not GONE} if isinstance(value, dict) else value
            )
        return self.looks.setdefault(asked, self.seen_with(config))

    def others(self, kind: str, key: str, values: Any, **start: Any) -> list[Seen]:
        """What is seen with other values of a key, where it is not what is seen without."""
        if key.rpartition(".")[2] not in self.text:
            return []  # nobody reads a key whose name is nowhere
        values = values if isinstance(values, tuple) else (values,)
        seen, found = self.look(**start)[kind], (self.look(**start, **{key: value}).get(kind) for value in values)
        return [each for each in found if each is not None and not each.equals(seen)]

    def readings(self) -> dict[str, dict[str, Any]]:
        """The entries: one for the model, or one for each type of its layers."""
        if not self.seen:
            return {self.title: {"fixed": {"rotated": 0.0}, **self.place}}
        found = {kind: self.reading(kind) for kind in self.seen}
        entries = list(found.values())
        if all(each == entries[0] for each in entries):
            return {self.title: entries[0]}
        return {f"{self.title}:{kind}": each for kind, each in found.items()}

    def reading(self, kind: str) -> dict[str, Any]:
        """What layers of one type read."""
        blocks = [each.format(layer_type=kind) for each in BLOCKS if each.split(".")[0] in self.text]
        found = {block: self.rules_in(block, kind) for block in blocks}
        block = next((each for each in blocks if found[each] and not self.is_passed_over(each, found, kind)), "")
        inside = {f"{each}.{key}": value for each in blocks for key, value in INSIDE.items()}
        keys = {key: self.others(kind, key, value) for key, value in (OUTSIDE | inside).items()}
        keys = {key: others for key, others in keys.items() if others and not self.has_better(key, keys, kind)}
        read = found.get(block, {})
        entry = {
            "keys": sorted({*keys, *(key for _, outside in read.values() for key in outside)}),
            "rules": {name: sorted(inside) for name, (inside, _) in read.items()},
            "fixed": self.fixed(kind, [other for others in keys.values() for other in others])
            | ({} if "yarn" not in read or self.scales_scores(block, kind) else {"softmax_scale": 1.0}),
            **self.place,
        }
        return entry | ({"block": block} if block else {})

    def fixed(self, kind: str, others: list[Seen]) -> dict[str, Any]:
        """What no key changes."""
        seen = self.seen[kind].plain
        if seen is None:
            return {"frequencies": "its own"}
        changed = [each.plain for each in others]
        return {
            name: value
            for name, value in seen._asdict().items()
            if all(each is None or getattr(each, name) == value for each in changed) and value is not False
        }

    def rules_in(self, block: str, kind: str) -> dict[str, tuple[set[str], set[str]]]:
        """The rules that layers of a type compute from a block, and the keys in it and outside that they read."""
        if self.seen[kind].plain is None:
            return {}
        found = {}
        for rule in rules(self.pairs(kind)):
            starts = {key: self.block_of(rule, block, kind, key) for key in TYPE_KEYS}
            types = {key for key, start in starts.items() if self.computes(rule, kind, start)}
            if types:
                start = starts[min(types)]
                keys = start[block]
                values = {
                    key: keys[key][::-1] if isinstance(keys.get(key), list) else OTHER_VALUES.get(key)
                    for key in (*keys, *BESIDES.get(rule, ()))
                }
                read = {key for key, value in values.items() if self.others(kind, f"{block}.{key}", value, **start)}
                read |= {
                    key
                    for key in keys
                    if keys[key] is not GONE and not self.look(**{**start, block: {**keys, key: GONE}})
                }
                outside = {key for key, value in LENGTHS.items() if self.others(kind, key, value, **start)}
                found[rule] = types | (read - {*TYPE_KEYS, "rope_theta"}), outside
        return found

    def pairs(self, kind: str) -> int:
        """The number of pairs that a layer rotates."""
        return self.seen[kind].plain.rope(self.seen[kind].width).pairs

    def block_of(self, rule: str, block: str, kind: str, key: str, factor: float = 4.0) -> dict[str, Any]:
        """The change of the config by which it has a rule."""
        plain = self.seen[kind].plain
        keys, _ = rules(self.pairs(kind), factor)[rule]
        base = {"rope_theta": plain.base} if block.startswith("rope_parameters") else {}
        return {block: {**dict.fromkeys(TYPE_KEYS, GONE), **base, **keys, key: keys.get("type", rule)}}

    def computes(self, rule: str, kind: str, changes: dict[str, Any], factor: float = 4.0) -> bool:
        """Whether the rotation is that of `rope_xp` for the rule. It must follow from the keys."""
        seen, usual = self.look(**changes).get(kind), self.seen[kind]
        if seen is None or seen.scale != usual.scale:
            return False
        value = rules(self.pairs(kind), factor)[rule][1]
        if not seen.is_of(lambda n: usual.plain.rope(seen.width).replace(scaling=value(n))):
            return False
        unknown = {
            block: {key: "unknown" if key in TYPE_KEYS and each is not GONE else each for key, each in keys.items()}
            for block, keys in changes.items()
        }
        return not seen.equals(usual) or not seen.equals(self.look(**unknown).get(kind))

    def scales_scores(self, block: str, kind: str) -> bool:
        """Whether scores are multiplied by the square of the factor of `mscale_all_dim`."""
        start = self.block_of("yarn", block, kind, "rope_type")
        start = {block: {**start[block], "type": "yarn", "mscale": 0.5, "mscale_all_dim": 0.5}}
        return isclose(self.look(**start)[kind].scale, self.seen[kind].scale * (0.05 * log(4.0) + 1) ** 2, rel_tol=1e-6)

    def is_passed_over(self, block: str, found: dict[str, dict[str, Any]], kind: str) -> bool:
        """Whether the class takes another block, if it is given both."""
        for other in found:
            for rule in found[block].keys() & found[other].keys() if other != block else ():
                one, two = (min({*TYPE_KEYS} & found[each][rule][0]) for each in (block, other))
                both = self.block_of(rule, block, kind, one) | self.block_of(rule, other, kind, two, 8.0)
                if not self.computes(rule, kind, both):
                    return True
        return False

    def has_better(self, key: str, keys: dict[str, list[Seen]], kind: str) -> bool:
        """Whether a key of the same name elsewhere is taken in place of this one."""
        same = [each for each in keys if each != key and each.rpartition(".")[2] == key.rpartition(".")[2]]
        return any(
            keys[each]
            and not self.others(kind, key, 7e5 if "theta" in key else 0.625, **{each: 6e5 if "theta" in key else 0.75})
            for each in same
        )
