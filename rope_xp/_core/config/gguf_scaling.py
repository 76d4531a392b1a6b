"""Read the scaling rule from the metadata of a GGUF file, and from tensors of factors that are in the mapping.

References
----------
ggml-org/llama.cpp: `load_hparams` in `src/llama-model.cpp`, `get_rope_factors` (the choice of a tensor), and the
constructor of `llama_context` in `src/llama-context.cpp` (attention factors of YaRN).
"""

from dataclasses import dataclass, fields
from math import log, sqrt
from typing import Any, ClassVar

import numpy as np

from rope_xp._core import checks
from rope_xp._core.config.gguf_keys import Metadata, shortest
from rope_xp._core.config.keys import ORIGINAL
from rope_xp._core.errors import wrong_value
from rope_xp._core.writers import gguf_architectures as gguf
from rope_xp.frequencies import Llama3Scaling, ProportionalScaling, Scaling, geometric

KINDS = {"none": "no scaling", "linear": "division", "yarn": "YaRN", "longrope": "lists of factors"}
ATTENTION, MULTIPLIER = "rope.scaling.attn_factor", "rope.scaling.yarn_log_multiplier"
REPLACED, EXTRAPOLATION = "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor"
LENGTH = "rope.scaling.original_context_length"
PAPER = {"beta_fast": 32.0, "beta_slow": 1.0}
BETAS = {"beta_fast": "rope.scaling.yarn_beta_fast", "beta_slow": "rope.scaling.yarn_beta_slow"}


@dataclass(frozen=True, kw_only=True)
class FactorScaling(Scaling):
    """Each frequency is divided by its own factor."""

    rope_type: ClassVar[str] = "rope_freqs"

    factors: tuple[float, ...]

    def frequencies(self, base: float, rotary_dim: int) -> tuple[float, ...]:
        unscaled = geometric(base, rotary_dim)
        if len(self.factors) != len(unscaled):
            raise wrong_value(
                f"{gguf.FREQS} must have {len(unscaled)} factors, one for each pair; got {len(self.factors)}"
            )
        return tuple(w / factor for w, factor in zip(unscaled, self.factors))


def rule_of(metadata: Metadata, base: float, head_dim: int, rotary_dim: int) -> dict[str, Any]:
    """The scaling rule with the keys of transformers. llama.cpp's default is a division by 1."""
    kind = metadata.get("rope.scaling.type")
    kind = "linear" if kind is None else kind
    checks.one_of(metadata.key("rope.scaling.type"), kind, KINDS)
    _check_mix(metadata, kind)
    factor = metadata.get("rope.scaling.factor", "rope.scale_linear") or 1.0  # 0 means none
    factor = checks.positive(metadata.key("rope.scaling.factor"), factor)
    long, short, factors = (metadata.tensor(name) for name in (gguf.LONG, gguf.SHORT, gguf.FREQS))
    if kind == "yarn":
        if long or short or factors:
            raise wrong_value(
                f"{gguf.FREQS}, {gguf.LONG} and {gguf.SHORT} must not be given with YaRN; got at least one"
            )
        return _yarn(metadata, factor)
    metadata.ignore(*BETAS.values(), MULTIPLIER)
    if long or short or kind == "longrope":
        return _longrope(metadata, long, short)
    metadata.ignore(LENGTH)
    if metadata.factor(ATTENTION) != 1.0:
        raise wrong_value(f"{metadata.key(ATTENTION)} must be 1 without YaRN and lists of factors; got another number")
    if metadata.factor(REPLACED) != 1.0:
        if metadata.reads(EXTRAPOLATION, "yarn"):
            raise wrong_value(f"{metadata.key(REPLACED)} must be 1 without YaRN; got {metadata.get(REPLACED)}")
        metadata.keys.remarks.append(f"llama.cpp does not read {metadata.key(REPLACED)}={metadata.get(REPLACED)}")
    factor = 1.0 if kind == "none" else factor
    softmax = gguf.scales(metadata.architecture, factor, is_yarn=False)[1]
    if softmax != 1.0:
        raise wrong_value(
            f"{metadata.key('rope.scaling.factor')} must be 1 without YaRN in this architecture, whose softmax "
            f"scale llama.cpp would multiply by {softmax:.6g}; got {factor}"
        )
    if factors and not metadata.reads(gguf.FREQS):
        raise wrong_value(f"{gguf.FREQS} must not be given for an architecture that does not read it; got it")
    if factors:
        divisors = tuple(each * factor for each in factors)
        return _rule_with(metadata, divisors, base, rotary_dim, is_whole=rotary_dim == head_dim)
    if metadata.reads(gguf.FREQS) and gguf.FREQS not in metadata.keys.mapping:
        metadata.keys.remarks.append(
            f"{gguf.FREQS} is not in the mapping; if the file has this tensor, frequencies are divided by it"
        )
    return {"rope_type": "linear", "factor": factor} if factor != 1.0 else {}


def _check_mix(metadata: Metadata, kind: str) -> None:
    """A blend that no published model changes."""
    wanted = float(kind == "yarn")
    found = metadata.read(EXTRAPOLATION, wanted, -1.0)
    if found is not None and found not in (wanted, -1.0):
        raise wrong_value(f"{metadata.key(EXTRAPOLATION)} must be {wanted:g} with {kind!r}; got {found}")


def _original(metadata: Metadata) -> Any:
    original, length = metadata.get(LENGTH), metadata.get("context_length")
    if original is None:
        metadata.keys.assume("scaling", metadata.key(LENGTH), "equal to context_length")
        original = length
    if original is None:
        raise wrong_value(f"{metadata.key(LENGTH)} must be given, or context_length; got neither")
    return original


def _yarn(metadata: Metadata, factor: float) -> dict[str, Any]:
    """YaRN. The multiplier of the logarithm is DeepSeek's `mscale_all_dim`; some architectures have it times 0.1.

    llama.cpp multiplies tables by ``1 + 0.1 ln(factor)``, and cancels this number if there is a multiplier.
    """
    attention, architecture = metadata.factor(ATTENTION), metadata.architecture
    multiplier = _read_multiplier(metadata)
    block = {"rope_type": "yarn", "factor": factor, ORIGINAL: _original(metadata), **_betas(metadata)}
    block["mscale"] = multiplier if multiplier and architecture == "deepseek2" else 1.0
    block |= {"mscale_all_dim": multiplier} if multiplier else {}
    scales_softmax = architecture in gguf.SCALES_SOFTMAX
    if scales_softmax and attention != 1.0:
        raise wrong_value(f"{metadata.key(ATTENTION)} must be 1 in this architecture; got {attention}")
    resolved, softmax = gguf.scales(architecture, factor, True, multiplier)
    if scales_softmax and factor > 1.0:  # as the softmax scale follows from `mscale_all_dim`
        all_dim = (sqrt(softmax) - 1.0) / (0.1 * log(factor))
        if abs(all_dim - multiplier) > 1e-9:
            block |= {"attention_factor": resolved, "mscale_all_dim": float(f"{all_dim:.12g}")}
    elif attention != 1.0:
        block["attention_factor"] = float(str(np.float32(resolved * attention)))
    stated = metadata.factor(REPLACED)
    if stated != 1.0 and abs(stated - block.get("attention_factor", resolved)) > 1e-6:
        metadata.keys.remarks.append(f"llama.cpp does not read {metadata.key(REPLACED)}={stated} with YaRN")
    return {name: value for name, value in block.items() if multiplier or name != "mscale"}


def _read_multiplier(metadata: Metadata) -> float:
    """DeepSeek's `mscale_all_dim`."""
    found = metadata.read(MULTIPLIER, 0.0) or 0.0
    found = checks.finite(metadata.key(MULTIPLIER), found)
    return shortest(float(np.float32(found / gguf.LOG_MULTIPLIERS.get(metadata.architecture, 1.0))))


def _betas(metadata: Metadata) -> dict[str, float]:
    """The ends of the ramp."""
    read = {name: metadata.read(key, PAPER[name]) for name, key in BETAS.items()}
    given = {name: value for name, value in read.items() if value is not None}
    return gguf.OTHER_BETAS.get(metadata.architecture, {}) | given


def _longrope(metadata: Metadata, long: tuple[float, ...], short: tuple[float, ...]) -> dict[str, Any]:
    """LongRoPE. The attention factor is that of the paper, or stated."""
    if not (long and short):
        raise wrong_value(f"{gguf.LONG} and {gguf.SHORT} must be in the mapping; got at most one of them")
    if metadata.tensor(gguf.FREQS):
        raise wrong_value(f"{gguf.FREQS} must not be given with {gguf.LONG}; got both")
    original, length, attention = _original(metadata), metadata.get("context_length"), metadata.factor(ATTENTION)
    block = {"rope_type": "longrope", "long_factor": long, "short_factor": short, ORIGINAL: original}
    if checks.is_int(length) and checks.is_int(original) and length > original > 1:
        block["factor"] = length / original
        if abs(attention - sqrt(1.0 + log(length / original) / log(original))) < 1e-6:
            return block
    return {**block, "attention_factor": attention}


def _rule_with(
    metadata: Metadata, divisors: tuple[float, ...], base: float, rotary_dim: int, is_whole: bool
) -> dict[str, Any]:
    """The rule of published models that gives these divisors. If none does, the divisors themselves."""
    wanted = FactorScaling(factors=divisors).frequencies(base, rotary_dim)
    for rule in _candidates(divisors, is_whole):
        found = rule.frequencies(base, rotary_dim)
        if all(abs(a - b) <= 2.0**-21 * b + 1.0 / gguf.UNROTATED for a, b in zip(wanted, found)):
            metadata.keys.remarks.append(f"{gguf.FREQS} has the factors of {rule.describe()}")
            return {"rope_type": rule.rope_type, **{each.name: getattr(rule, each.name) for each in fields(rule)}}
    return {"rope_type": FactorScaling.rope_type, "factors": divisors}


def _candidates(divisors: tuple[float, ...], is_whole: bool) -> list[Scaling]:
    finite = [each for each in divisors if each < gguf.UNROTATED]
    if len(finite) < len(divisors):
        fraction = len(finite) / len(divisors)
        is_possible = finite and is_whole and finite[0] >= 1.0
        return [ProportionalScaling(partial_rotary_factor=fraction, factor=shortest(finite[0]))] if is_possible else []
    factor = shortest(max(divisors))
    constants: dict[str, Any] = {"factor": factor, "low_freq_factor": 1.0, ORIGINAL: 8192}
    return [Llama3Scaling(high_freq_factor=high, **constants) for high in (4.0, 1.0)] if factor >= 1.0 else []
