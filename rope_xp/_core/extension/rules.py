"""The rules that extend an embedding: what each does, and the scaling that it gives."""

from dataclasses import fields, replace
from typing import Any, NamedTuple, TypeGuard

from rope_xp._core import checks
from rope_xp._core.errors import wrong_type, wrong_value
from rope_xp._core.lengths import lengths_of
from rope_xp._core.provenance import Provenance, with_provenance
from rope_xp.frequencies import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    ProportionalScaling,
    Scaling,
    YarnScaling,
)

CHEN = "Chen et al. (2023), Positional Interpolation, arXiv:2306.15595"
BLOC97 = "bloc97 (2023), NTK-Aware Scaled RoPE, r/LocalLLaMA"
EMOZILLA = "emozilla (2023), Dynamically Scaled RoPE, r/LocalLLaMA"
YARN = "Peng et al. (2023), YaRN, arXiv:2309.00071"
LONGROPE = "Ding et al. (2024), LongRoPE, arXiv:2402.13753"
LLAMA3 = "Grattafiori et al. (2024), The Llama 3 Herd of Models, arXiv:2407.21783"


class Method(NamedTuple):
    """A rule: its class, what it does, and what its papers say about it."""

    scaling: type[Scaling]
    does: str
    trade_offs: str
    fine_tuning: str
    sources: tuple[str, ...]


METHODS: dict[str, Method] = {
    "linear": Method(
        LinearScaling,
        "divides all frequencies by the factor",
        "No pair gets new angles. Near tokens become harder to tell apart, because fast pairs are divided "
        "too (YaRN, section 3.2).",
        "Chen et al. need up to 1,000 steps (abstract)",
        (CHEN, YARN),
    ),
    "ntk": Method(
        NTKScaling,
        "raises the base, so that the fastest pair keeps its frequency and the slowest is divided by the factor",
        "Some pairs get new angles. In practice, the factor must therefore be greater than the ratio of the lengths "
        "(YaRN, section 3.1).",
        "not needed, says bloc97. Without it, the rule is much better than linear; after it, worse (YaRN, section 3.1)",
        (BLOC97, YARN),
    ),
    "dynamic": Method(
        DynamicNTKScaling,
        "is ntk with a factor that grows with the length; short sequences are not scaled",
        "Each length has its own frequencies, so that cached keys must change with it (YaRN, section 3.3): "
        "`rope.rerotate` changes them. A factor of s divides the slowest frequency by s * s - s + 1 at the new length; "
        "a factor of 1 divides it by s, as YaRN does (section 3.3).",
        "not needed, say emozilla and YaRN (section 3.3)",
        (EMOZILLA, YARN),
    ),
    "yarn": Method(
        YarnScaling,
        "keeps fast pairs, divides slow ones by the factor, blends those between, and multiplies sines and cosines by "
        "the attention factor",
        "Its limits, 32 and 1 turns within the trained length, and its attention factor are those that suit LLaMA "
        "models (YaRN, sections 3.2 and 3.4).",
        "10 times fewer tokens and 2.5 times fewer steps than earlier methods (YaRN, abstract)",
        (YARN,),
    ),
    "llama3": Method(
        Llama3Scaling,
        "keeps short wavelengths, divides the frequencies of long ones by the factor, and blends those between",
        "The rule is that of Meta's code (llama-models, apply_scaling). The paper compares it with no other rule.",
        "Llama 3 was trained at long lengths, in six stages with about 800 billion tokens (Llama 3, section 3.4.2)",
        (LLAMA3,),
    ),
    "longrope": Method(
        LongRopeScaling,
        "divides each frequency by its own number, from one list for short and one for long sequences",
        "A search with the model finds the lists (LongRoPE, section 3), so they must be given. "
        "Cached keys must change when the trained length is passed: `rope.rerotate` changes them.",
        "Ding et al. need up to 1,000 steps, and none for 8 times the length (abstract)",
        (LONGROPE,),
    ),
}

# Fields that follow from the two lengths.
LENGTHS = ("original_max_position_embeddings", "max_position_embeddings", "seq_len")
# Fields that are right for one factor only. They are not kept for another factor.
OF_ONE_FACTOR = ("factor", "attention_factor", "short_factor", "long_factor", "short_mscale", "long_mscale")


def checked_lengths(rope: Any, to: Any, trained_length: Any) -> tuple[int, int]:
    """The trained and the new length, in tokens."""
    to, lengths = checks.count("to", to), lengths_of(rope, trained_length)
    trained, longest = lengths.trained, lengths.longest
    if rope.base is None:
        raise wrong_value("the embedding must have a base, from which a rule computes; got inv_freq alone")
    if not trained or longest is None:
        raise wrong_value(
            f"trained_length must be given, because neither the config nor the scaling states it; got {trained_length}"
        )
    if to <= longest:
        which = "the trained length" if longest == trained else "the length with the present scaling"
        raise wrong_value(
            f"to must be greater than {which}, {longest}, because shorter sequences need no change; got {to}"
        )
    return trained, to


def extended(rope: Any, rule: str, trained: int, to: int, options: dict[str, Any]) -> Any:
    """The embedding extended by a rule, with the lengths in its provenance."""
    result = unscaled(rope).replace(scaling=_scaling(rope.scaling, rule, trained, to, options))
    before: Provenance = rope._provenance
    replaced = replaced_scaling(rope)
    removed = "" if rope.scaling is None else f". Its scaling was removed first: {rope.scaling.describe()}"
    return with_provenance(
        result,
        replace(
            before,
            defaults=tuple(each for each in before.defaults if each.row not in ("scaling", "attention factor")),
            remarks=(*before.remarks, replaced.removesuffix(".")) if replaced else before.remarks,
            max_position_embeddings=to,
            trained_length=trained,
            extended=f"by {rule}, from {trained:,} to {to:,} tokens{removed}",
        ),
    )


def replaced_scaling(rope: Any) -> str:
    """A warning if `extend` replaces a scaling with which the model may have been trained, or an empty string.

    Dynamic NTK scales only what is longer than in training.
    """
    before: Provenance = rope._provenance
    if before.extended or isinstance(rope.scaling, DynamicNTKScaling) or unscaled(rope) == rope:
        return ""
    return (
        f"The model may have been trained with the scaling that extend replaces ({rope.scaling.describe()}). Then it "
        "has not seen the new frequencies, at any length."
    )


def unscaled(rope: Any) -> Any:
    """The embedding without its scaling."""
    if rope.scaling is None and rope.attention_factor != 1.0:
        raise wrong_value(
            f"attention_factor must follow from the scaling, which changes; got {rope.attention_factor}, given "
            "without a scaling"
        )
    return rope.replace(scaling=replace(rope.scaling, factor=1.0) if _is_partial(rope.scaling) else None)


def _is_partial(scaling: Scaling | None) -> TypeGuard[ProportionalScaling]:
    """Whether a scaling leaves some pairs unrotated, as no other scaling does."""
    return isinstance(scaling, ProportionalScaling) and scaling.partial_rotary_factor < 1.0


def _scaling(present: Scaling | None, rule: str, trained: int, to: int, options: dict[str, Any]) -> Scaling:
    """The scaling of a rule. Its parameters are those of the options, of the present scaling, or the usual ones."""
    if _is_partial(present) and rule != "linear":
        raise wrong_value(
            f'rule must be "linear" for proportional scaling, because other rules rotate the pairs that it does '
            f"not rotate; got {rule!r}"
        )
    scaling = ProportionalScaling if _is_partial(present) else METHODS[rule].scaling
    names = [each.name for each in fields(scaling)]
    unknown = [name for name in options if name not in names or name in LENGTHS]
    if unknown:
        accepted = ", ".join(name for name in names if name not in LENGTHS)
        raise wrong_type(f"options of rule={rule!r} must be {accepted}; got {', '.join(unknown)}")
    missing = [name for name in ("short_factor", "long_factor") if name in names and options.get(name) is None]
    if missing:
        raise wrong_value(
            f"{' and '.join(missing)} must be given for rule='longrope', because a search with the model finds "
            "them; got none"
        )
    usual = {"factor": to / trained, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    kept = _kept(present) if type(present) is scaling else {}
    lengths = dict(zip(LENGTHS, (trained, trained, to)))
    values = {**usual, **kept, **lengths, **options}
    return scaling(**{name: value for name, value in values.items() if name in names})


def _kept(present: Any) -> dict[str, Any]:
    """The parameters of a scaling that hold for every factor. An attention factor of 1 means that there is none."""
    kept = {each.name: getattr(present, each.name) for each in fields(present) if each.name not in OF_ONE_FACTOR}
    return {**kept, "attention_factor": 1.0} if getattr(present, "attention_factor", None) == 1.0 else kept
