"""Read the metadata of a GGUF file as llama.cpp does. Tensors of factors are in the mapping by their names.

Sources in llama.cpp: `load_hparams`, `llama_model_rope_type` and `get_rope_factors` in `src/llama-model.cpp`, the
constructor of `llama_context` in `src/llama-context.cpp` (attention factors of YaRN), `ggml_mrope_cache_init` (pairs
of several position axes), and `src/models` (types of layers).
"""

from dataclasses import dataclass, fields, replace
from math import log, sqrt
from typing import Any, ClassVar

import numpy as np

from rope_xp.arrays import checks
from rope_xp.configs import engines
from rope_xp.configs.families.family import LATENT, NO_ROPE_LAYERS, Axes, Family, Layers, LayerType, Pairing, Quirks
from rope_xp.configs.keys import MAX_SIZE, Keys, comma_separated
from rope_xp.configs.layers import sliding_only
from rope_xp.configs.readers.llama_cpp_arguments import BETAS_OF_FLAGS
from rope_xp.configs.writers import gguf_architectures as gguf
from rope_xp.configs.writers.limits import longrope_factor
from rope_xp.errors import wrong_type, wrong_value
from rope_xp.frequencies import ORIGINAL, Llama3Scaling, ProportionalScaling, Scaling, geometric
from rope_xp.frequencies.by_factor import ntk_base
from rope_xp.types import Values


class Metadata:
    """The metadata of one architecture, whose keys begin with its name. Methods take names without it."""

    def __init__(self, keys: Keys, architecture: str):
        self.keys, self.architecture = keys, architecture
        self.is_latent = architecture in gguf.LATENT
        self.reading = engines.table("llama.cpp").of(architecture) or engines.Reading()

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def read_first(self, *names: str) -> Any:
        """The value of the first of these keys that is given. A float32 becomes the shortest decimal number."""
        return shortest(self.keys.read_first(*map(self.key, names)))

    def read_base(self, name: str, default: float | None) -> Any:
        value = self.read_first(name)
        if value is None and default is not None:
            self.keys.assume("frequencies", self.key(name), "default of llama.cpp")
        return default if value is None else value

    def read_factor(self, name: str) -> float:
        value = self.read_first(name)
        return 1.0 if value is None else checks.positive(self.key(name), value)

    def read_if_used(self, name: str, *neutral: float) -> Any:
        """The value of a key of YaRN or of the base that few architectures read; None and a remark for the others."""
        value = self.read_first(name)
        if value is None or self.reading.reads(name, "yarn"):
            return value
        if checks.finite(self.key(name), value) not in neutral:
            self.keys.remarks.append(f"llama.cpp does not read {self.key(name)}={value:g} for this architecture")
        return None

    def mark_as_read(self, *names: str) -> None:
        self.keys.mark_as_read(*map(self.key, names))

    def read_tensor(self, name: str) -> tuple[float, ...]:
        return tuple(checks.positive(f"every value of {name}", value) for value in self.keys.read_list(name))


def shortest(value: object) -> Any:
    """The shortest decimal number with the same float32, if a number is a float32; other values stay as they are."""
    if isinstance(value, float) and abs(value) < 2.0**127 and float(np.float32(value)) == value:
        return float(str(np.float32(value)))
    return value


KINDS = {"none": "no scaling", "linear": "division", "yarn": "YaRN", "longrope": "lists of factors"}
REPLACED = "rope.scaling.yarn_attn_factor"


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


def rule_keys_of(metadata: Metadata, base: float, head_dim: int, rotary_dim: int) -> Values:
    """The scaling rule with the keys of transformers. llama.cpp's default is a division by 1."""
    kind = metadata.read_first(gguf.KIND)
    kind = "linear" if kind is None else kind
    checks.one_of(metadata.key(gguf.KIND), kind, KINDS)
    _check_mix(metadata, kind)
    factor = metadata.read_first(gguf.FACTOR, "rope.scale_linear") or 1.0  # 0 means none
    factor = checks.positive(metadata.key(gguf.FACTOR), factor)
    long, short, factors = (metadata.read_tensor(name) for name in (gguf.LONG, gguf.SHORT, gguf.FREQS))
    if kind == "yarn":
        if tensors := [name for name in gguf.TENSORS if metadata.read_tensor(name)]:
            raise wrong_value(
                f"YaRN must not be used with {' and '.join(tensors)}, in which a GGUF file has a rule such as llama3 "
                "or longrope; got both: llama.cpp divides frequencies by it before YaRN, as no rule of rope_xp does"
            )
        return _yarn(metadata, factor)
    metadata.mark_as_read(*gguf.BETAS, gguf.MULTIPLIER)
    if long or short or kind == "longrope":
        return _longrope(metadata, long, short)
    metadata.mark_as_read(gguf.ORIGINAL)
    if metadata.read_factor(gguf.ATTENTION) != 1.0:
        raise wrong_value(
            f"{metadata.key(gguf.ATTENTION)} must be 1 without YaRN and lists of factors; got another number"
        )
    if metadata.read_factor(REPLACED) != 1.0:
        if metadata.reading.reads(gguf.EXTRAPOLATION, "yarn"):
            raise wrong_value(f"{metadata.key(REPLACED)} must be 1 without YaRN; got {metadata.read_first(REPLACED)}")
        metadata.keys.remarks.append(
            f"llama.cpp does not read {metadata.key(REPLACED)}={metadata.read_first(REPLACED)}"
        )
    factor = 1.0 if kind == "none" else factor
    multiplier = _read_multiplier(metadata) if metadata.architecture in gguf.SCALES_SOFTMAX else 0.0
    softmax = gguf.scales(metadata.architecture, factor, False, multiplier)[1]
    if softmax != 1.0:
        raise wrong_value(
            f"{metadata.key(gguf.FACTOR)} must be 1 without YaRN in this architecture, whose softmax "
            f"scale llama.cpp would multiply by {softmax:.6g}; got {factor}"
        )
    if factors and not metadata.reading.reads(gguf.FREQS):
        raise wrong_value(f"{gguf.FREQS} must not be given for an architecture that does not read it; got it")
    if factors:
        divisors = tuple(each * factor for each in factors)
        return _rule_with(divisors, base, rotary_dim, is_whole=rotary_dim == head_dim)
    if metadata.reading.reads(gguf.FREQS) and gguf.FREQS not in metadata.keys.mapping:
        metadata.keys.remarks.append(
            f"{gguf.FREQS} is not in the mapping; if the file has this tensor, frequencies are divided by it"
        )
    return {"rope_type": "linear", "factor": factor} if factor != 1.0 else {}


def _check_mix(metadata: Metadata, kind: str) -> None:
    # No published model changes the blend.
    wanted = float(kind == "yarn")
    found = metadata.read_if_used(gguf.EXTRAPOLATION, wanted, -1.0)
    if found is not None and found not in (wanted, -1.0):
        raise wrong_value(f"{metadata.key(gguf.EXTRAPOLATION)} must be {wanted:g} with {kind!r}; got {found}")


def _original(metadata: Metadata) -> Any:
    original, length = metadata.read_first(gguf.ORIGINAL), metadata.read_first(gguf.LENGTH)
    if original is None:
        metadata.keys.assume("scaling", metadata.key(gguf.ORIGINAL), "equal to context_length")
        original = length
    if original is None:
        raise wrong_value(f"{metadata.key(gguf.ORIGINAL)} must be given, or context_length; got neither")
    return original


def _yarn(metadata: Metadata, factor: float) -> Values:
    """YaRN. The multiplier of the logarithm is DeepSeek's `mscale_all_dim`; some architectures have it times 0.1."""
    # llama.cpp multiplies tables by ``1 + 0.1 ln(factor)``, and cancels this number if there is a multiplier.
    attention, architecture = metadata.read_factor(gguf.ATTENTION), metadata.architecture
    multiplier = _read_multiplier(metadata)
    block = {"rope_type": "yarn", "factor": factor, ORIGINAL: _original(metadata), **_betas(metadata)}
    block["mscale"] = multiplier if multiplier and architecture == "deepseek2" else 1.0
    block |= {"mscale_all_dim": multiplier} if multiplier else {}
    scales_softmax = architecture in gguf.SCALES_SOFTMAX
    if scales_softmax and attention != 1.0:
        raise wrong_value(f"{metadata.key(gguf.ATTENTION)} must be 1 in this architecture; got {attention}")
    resolved, softmax = gguf.scales(architecture, factor, True, multiplier)
    if scales_softmax and factor > 1.0:  # as the softmax scale follows from `mscale_all_dim`
        all_dim = (sqrt(softmax) - 1.0) / (0.1 * log(factor))
        if abs(all_dim - multiplier) > 1e-9:
            block |= {"attention_factor": resolved, "mscale_all_dim": float(f"{all_dim:.12g}")}
    elif attention != 1.0:
        block["attention_factor"] = float(str(np.float32(resolved * attention)))
    stated = metadata.read_factor(REPLACED)
    if stated != 1.0 and abs(stated - block.get("attention_factor", resolved)) > 1e-6:
        metadata.keys.remarks.append(f"llama.cpp does not read {metadata.key(REPLACED)}={stated} with YaRN")
    return {name: value for name, value in block.items() if multiplier or name != "mscale"}


def _read_multiplier(metadata: Metadata) -> float:
    found = metadata.read_if_used(gguf.MULTIPLIER, 0.0) or 0.0
    found = checks.finite(metadata.key(gguf.MULTIPLIER), found)
    return shortest(float(np.float32(found / gguf.LOG_MULTIPLIERS.get(metadata.architecture, 1.0))))


def _betas(metadata: Metadata) -> dict[str, float]:
    read = {key.partition("yarn_")[2]: metadata.read_if_used(key, usual) for key, usual in gguf.BETAS.items()}
    given = {name: value for name, value in read.items() if value is not None}
    return {**gguf.OTHER_BETAS.get(metadata.architecture, {}), **given, **metadata.keys.mapping.get(BETAS_OF_FLAGS, {})}


def _longrope(metadata: Metadata, long: tuple[float, ...], short: tuple[float, ...]) -> Values:
    if not (long and short):
        raise wrong_value(f"{gguf.LONG} and {gguf.SHORT} must be in the mapping; got at most one of them")
    if metadata.read_tensor(gguf.FREQS):
        raise wrong_value(f"{gguf.FREQS} must not be given with {gguf.LONG}; got both")
    original, length = _original(metadata), metadata.read_first(gguf.LENGTH)
    attention = metadata.read_factor(gguf.ATTENTION)
    block = {"rope_type": "longrope", "long_factor": long, "short_factor": short, ORIGINAL: original}
    if checks.is_int(length) and checks.is_int(original) and length > original > 1:
        block["factor"] = length / original
        if abs(attention - longrope_factor(length, original)) < 1e-6:
            return block
    return {**block, "attention_factor": attention}


def _rule_with(divisors: tuple[float, ...], base: float, rotary_dim: int, is_whole: bool) -> Values:
    """The rule of published models that gives these divisors. If none does, the divisors themselves."""
    wanted = FactorScaling(factors=divisors).frequencies(base, rotary_dim)
    for rule in _candidates(divisors, is_whole):
        found = rule.frequencies(base, rotary_dim)
        if all(abs(a - b) <= 2.0**-21 * b + 1.0 / gguf.DIVISOR_OF_UNROTATED for a, b in zip(wanted, found)):
            return {"rope_type": rule.rope_type, **{each.name: getattr(rule, each.name) for each in fields(rule)}}
    return {"rope_type": FactorScaling.rope_type, "factors": divisors}


def _candidates(divisors: tuple[float, ...], is_whole: bool) -> list[Scaling]:
    finite = [each for each in divisors if each < gguf.DIVISOR_OF_UNROTATED]
    if len(finite) < len(divisors):
        fraction = len(finite) / len(divisors)
        is_possible = finite and is_whole and finite[0] >= 1.0
        return [ProportionalScaling(partial_rotary_factor=fraction, factor=shortest(finite[0]))] if is_possible else []
    factor = shortest(max(divisors))
    constants: Values = {"factor": factor, "low_freq_factor": 1.0, ORIGINAL: 8192}
    return [Llama3Scaling(high_freq_factor=high, **constants) for high in (4.0, 1.0)] if factor >= 1.0 else []


ALPHA = "rope.scaling.alpha"
FULL, SLIDING = "full_attention", "sliding_attention"


def gguf_metadata_as_config(keys: Keys) -> tuple[Values, Family]:
    metadata = Metadata(keys, _architecture(keys))
    metadata.mark_as_read("rope.scaling.finetuned", "attention.max_alibi_bias")
    if metadata.read_first("attention.max_alibi_bias"):
        raise wrong_value(f"{metadata.key('attention.max_alibi_bias')} must be 0; got another number")
    head_dim = _head_dim(metadata)
    width = metadata.read_first(gguf.WIDTH)
    width = head_dim if width is None else checks.even_size(metadata.key(gguf.WIDTH), width, MAX_SIZE)
    base = checks.at_least(metadata.key(gguf.BASE), metadata.read_base(gguf.BASE, 10_000.0), 1.0)
    alpha = metadata.read_if_used(ALPHA, 0.0, 1.0)
    if alpha:  # llama.cpp then computes another base when it reads the file
        try:
            base = ntk_base(base, checks.positive(metadata.key(ALPHA), alpha), head_dim)
        except OverflowError:
            raise wrong_value(f"{metadata.key(ALPHA)} must give a finite base; got {alpha}") from None
    config = {
        LATENT if metadata.is_latent else "head_dim": head_dim,
        "max_position_embeddings": metadata.read_first(gguf.LENGTH),
        "num_hidden_layers": metadata.read_first("block_count"),
        "rotary_dim": None if width == head_dim else width,
        "rope_parameters": {"rope_theta": base, **rule_keys_of(metadata, base, head_dim, width), **_sections(metadata)},
    }
    return _with_layers(metadata, config)


def _architecture(keys: Keys) -> str:
    name = keys.read("general.architecture")
    if name is None:
        raise wrong_value("general.architecture must be given; got none")
    if not isinstance(name, str):
        raise wrong_type(f"general.architecture must be a string; got {name!r}")
    if gguf.gguf_layout(name) is None:
        got = "which is not rotated" if name in gguf.NO_ROTATION.split() else "which rope_xp does not know"
        raise wrong_value(f"general.architecture must be rotary in llama.cpp; got {name!r}, {got}")
    if name in gguf.UNKNOWN_LAYERS:
        raise wrong_value(f"general.architecture must have layers that rope_xp knows; got {name!r}")
    return name


def _head_dim(metadata: Metadata) -> int:
    """The width of a head. In latent attention, that of its rotated part."""
    count = "attention.head_count"
    width, size, heads = (metadata.read_first(name) for name in ("attention.key_length", "embedding_length", count))
    if metadata.is_latent:
        width = metadata.read_first(gguf.WIDTH)
    elif width is None and size is not None and heads:
        by_layer = heads if isinstance(heads, (list, tuple)) else [heads]  # 0 for a layer without attention
        most = max(checks.count(metadata.key(count), each) for each in by_layer)
        width = checks.count(metadata.key("embedding_length"), size) // max(most, 1)
    needed = (gguf.WIDTH,) if metadata.is_latent else ("attention.key_length", count)
    if width is None:
        raise wrong_value(f"{' or '.join(map(metadata.key, needed))} must be given; got none")
    return checks.even_size(metadata.key(needed[0]), width, MAX_SIZE)


def _sections(metadata: Metadata) -> Values:
    """The pairs of each position axis. llama.cpp has four axes, of which the last ones may have no pairs."""
    sections = metadata.read_first(gguf.SECTIONS)
    if sections is None:
        return {}
    if not isinstance(sections, (list, tuple)):
        raise wrong_type(f"{metadata.key(gguf.SECTIONS)} must be a list; got {sections!r}")
    sizes = [checks.count(metadata.key(gguf.SECTIONS), size) for size in sections]
    order = gguf.order_of(metadata.architecture, sizes)
    while len(sizes) > 1 and not sizes[-1]:
        sizes.pop()
    if order is None and any(sizes):
        raise wrong_value(f"{metadata.key(gguf.SECTIONS)} must be 0 in this architecture; got {sizes}")
    missed = gguf.pairs_without_axis(sizes) if order == "interleaved" else []
    if missed:
        metadata.keys.remarks.append(
            f"llama.cpp rotates pairs {comma_separated(missed)} by its fourth position, which is 0 for text; other "
            "programs rotate them by the first"
        )
    return {} if order is None else {"mrope_section": sizes, "mrope_interleaved": order == "interleaved"}


def _with_layers(metadata: Metadata, config: Values) -> tuple[Values, Family]:
    """The config with its types of layers: some may have other frequencies, and some may not be rotated."""
    own, family = gguf.LAYERS.get(metadata.architecture), _family(metadata)
    pattern, window = (metadata.read_first(f"attention.sliding_window{name}") for name in ("_pattern", ""))
    if own is None or (own.only_with_window and not window):
        own = gguf.LayerPattern(unrotated_interval=0)
    if own.unrotated_interval is not None:
        if own.unrotated_interval and window == 0:  # llama.cpp then has another interval
            raise wrong_value(f"{metadata.key('attention.sliding_window')} must be greater than 0; got 0")
        _require_no_sliding_keys(metadata)
        return {**config, "no_rope_layer_interval": own.unrotated_interval}, family
    config |= {"layer_types": _types(own, pattern, config["num_hidden_layers"])}
    if not own.full_is_rotated:
        _require_no_sliding_keys(metadata)
        return config, replace(family, layers=Layers(rotated=sliding_only()))
    by_type = {FULL: LayerType(), SLIDING: LayerType(head_dim="swa_head_dim | head_dim")}
    return config | _sliding(metadata, own, config), replace(family, layers=Layers(by_type=by_type))


def _family(metadata: Metadata) -> Family:
    sections = metadata.read_first(gguf.SECTIONS)
    order = gguf.order_of(metadata.architecture, sections)
    return Family(
        {"rope_theta": None},
        head_dim=LATENT if metadata.is_latent else "head_dim",
        pairing=Pairing(gguf.gguf_layout(metadata.architecture, sections) or ""),
        layers=Layers(listed=NO_ROPE_LAYERS),
        axes=None if order is None else Axes(order, any_order=True),
        quirks=Quirks(rules={FactorScaling.rope_type: FactorScaling}),
    )


def _require_no_sliding_keys(metadata: Metadata) -> None:
    names = (gguf.BASE_OF_SLIDING, f"{gguf.WIDTH}_swa", "attention.key_length_swa")
    given = [metadata.key(name) for name in names if metadata.read_first(name) is not None]
    if given:
        raise wrong_value(
            f"layers with a sliding window must have no keys of their own in this architecture; "
            f"got {comma_separated(given)}"
        )


def _sliding(metadata: Metadata, own: gguf.LayerPattern, config: Values) -> Values:
    """The blocks of both types of layers. Layers with a sliding window are not scaled."""
    full, base = config["rope_parameters"], metadata.read_base(gguf.BASE_OF_SLIDING, own.sliding_base)
    head_dim = metadata.read_first("attention.key_length_swa")
    widths = {
        gguf.WIDTH: (config["rotary_dim"], config["head_dim"]),
        f"{gguf.WIDTH}_swa": (metadata.read_first(f"{gguf.WIDTH}_swa"), head_dim or config["head_dim"]),
    }
    for name, (width, whole) in widths.items():
        if width not in (None, whole):
            raise wrong_value(f"{metadata.key(name)} must be the whole head, {whole}; got {width}")
    sliding = {"rope_theta": full["rope_theta"] if base is None else base}
    return {"rope_parameters": {FULL: full, SLIDING: sliding}, "swa_head_dim": head_dim}


def _types(own: gguf.LayerPattern, pattern: object, count: object) -> list[str] | None:
    if isinstance(pattern, (list, tuple)):
        return [SLIDING if slides else FULL for slides in pattern]
    period = own.period if pattern is None else pattern
    if not period or count is None:
        return None
    period, count = (checks.count("the period of layers", number) for number in (period, count))
    full = 0 if own.full_is_first else period - 1
    return [FULL if index % period == full else SLIDING for index in range(min(count, MAX_SIZE))]
