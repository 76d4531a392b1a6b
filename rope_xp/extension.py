"""`extend`: an embedding for longer sequences by a scaling rule, and a report of the rules to choose from."""

from collections import Counter
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeGuard

from rope_xp import frequencies
from rope_xp.arrays import checks
from rope_xp.configs.writers import FOLLOWING_LENGTH, TARGETS, is_written
from rope_xp.errors import wrong_type, wrong_value
from rope_xp.explanation import THESE_LAYERS, count_unseen, scaled_pairs, shown_length, unseen_from, windowed_layers
from rope_xp.provenance import STAYS, Provenance, with_provenance
from rope_xp.reports import Report, Section, Table
from rope_xp.spectrum import lengths_of
from rope_xp.types import Embedding, Values

CHEN = "Chen et al. (2023), Positional Interpolation, arXiv:2306.15595"
BLOC97 = "bloc97 (2023), NTK-Aware Scaled RoPE, r/LocalLLaMA"
EMOZILLA = "emozilla (2023), Dynamically Scaled RoPE, r/LocalLLaMA"
YARN = "Peng et al. (2023), YaRN, arXiv:2309.00071"
LONGROPE = "Ding et al. (2024), LongRoPE, arXiv:2402.13753"
LLAMA3 = "Grattafiori et al. (2024), The Llama 3 Herd of Models, arXiv:2407.21783"


class Method(NamedTuple):
    """A rule, and what its papers say about it."""

    scaling: type[frequencies.Scaling]
    does: str
    trade_offs: str
    fine_tuning: str
    sources: tuple[str, ...]


METHODS: dict[str, Method] = {
    "linear": Method(
        frequencies.LinearScaling,
        "divides all frequencies by the factor",
        "No pair gets new angles. Near tokens become harder to tell apart, because fast pairs are divided "
        "too (YaRN, section 3.2).",
        "recommended: up to 1,000 steps (Chen et al., abstract)",
        (CHEN, YARN),
    ),
    "ntk": Method(
        frequencies.NTKScaling,
        "raises the base, so that the fastest pair keeps its frequency and the slowest is divided by the factor",
        "Some pairs get new angles. In practice, the factor must therefore be greater than the ratio of the lengths "
        "(YaRN, section 3.1).",
        "not needed, says bloc97. Without it, the rule is much better than linear; after it, worse (YaRN, section 3.1)",
        (BLOC97, YARN),
    ),
    "dynamic": Method(
        frequencies.DynamicNTKScaling,
        "is ntk with a factor that grows with the length; short sequences are not scaled",
        "Each length has its own frequencies, so that cached keys must change with it (YaRN, section 3.3): "
        "`rope.rerotate` changes them. A factor of s divides the slowest frequency by s * s - s + 1 at the new length; "
        "a factor of 1 divides it by s, as YaRN does (section 3.3).",
        "not needed, say emozilla and YaRN (section 3.3)",
        (EMOZILLA, YARN),
    ),
    "yarn": Method(
        frequencies.YarnScaling,
        "keeps fast pairs, divides slow ones by the factor, blends those between, and multiplies sines and cosines by "
        "the attention factor",
        "Its limits, 32 and 1 turns within the trained length, and its attention factor are those that suit LLaMA "
        "models (YaRN, sections 3.2 and 3.4).",
        "recommended: needs a tenth of the tokens of earlier methods (YaRN)",
        (YARN,),
    ),
    "llama3": Method(
        frequencies.Llama3Scaling,
        "keeps short wavelengths, divides the frequencies of long ones by the factor, and blends those between",
        "The rule is that of Meta's code (llama-models, apply_scaling). The paper compares it with no other rule.",
        "in Llama 3, six stages with 800 billion tokens (section 3.4.2)",
        (LLAMA3,),
    ),
    "longrope": Method(
        frequencies.LongRopeScaling,
        "divides each frequency by its own number, from one list for short and one for long sequences",
        "A search with the model finds the lists (LongRoPE, section 3), so they must be given. "
        "Cached keys must change when the trained length is passed: `rope.rerotate` changes them.",
        "up to 1,000 steps, and none for 8 times the length (Ding et al., abstract)",
        (LONGROPE,),
    ),
}

# Fields that follow from the two lengths.
LENGTHS = ("original_max_position_embeddings", "max_position_embeddings", "seq_len")
# Fields that are right for one factor only. They are not kept for another factor.
OF_ONE_FACTOR = ("factor", "attention_factor", "short_factor", "long_factor", "short_mscale", "long_mscale")


def checked_lengths(rope: Embedding, to: int, trained_length: int | None) -> tuple[int, int]:
    to, lengths = checks.length("to", to), lengths_of(rope, trained_length)
    trained, longest = lengths.trained, lengths.longest
    if rope.base is None:
        raise wrong_value("the embedding must have a base, from which a rule computes; got inv_freq alone")
    if not trained or longest is None:
        raise wrong_value(
            f"trained_length must be given, because neither the config nor the scaling states it; got {trained_length}"
        )
    if to <= longest:
        which = "the trained length" if longest == trained else "the length with the present scaling"
        stated = rope._provenance.max_position_embeddings or to
        key, place = "max_position_embeddings", "in config.json or by --json-model-override-args of SGLang, and "
        place += "context_length by --override-kv of llama.cpp"
        if architecture := rope._provenance.architecture:
            key, place = f"{architecture}.context_length", "by --override-kv"
        more = f", and set {key}, now {stated}, to it, {place}" * (stated < to)
        advice = f"needs no extension: give the engine this length (vLLM --max-model-len {to}, SGLang --context-length "
        advice += f"{to}, lmdeploy --session-len {to}, llama.cpp -c {to}){more}"
        if isinstance(rope.scaling, frequencies.DynamicNTKScaling) and to > trained:
            advice = (
                f"dynamic NTK reaches: transformers and lmdeploy (--session-len {to}) compute its frequencies from "
                f"each length; for others, from_config(..., seq_len={to}).to_config writes settings, or says why not"
            )
        raise wrong_value(f"to must be greater than {which}, {longest}; got {to}, which {advice}")
    return trained, to


def extended(rope: Embedding, rule: str, trained: int, to: int, options: Values) -> Any:
    result = unscaled(rope).replace(scaling=_scaling(rope.scaling, rule, trained, to, options))
    before: Provenance = rope._provenance
    replaced, removed = replaced_scaling(rope, result), ""
    if result == rope and not before.extended:
        removed = STAYS
    elif rope.scaling is not None:
        removed = f". Its scaling was removed first: {rope.scaling.describe()}"
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


def replaced_scaling(rope: Embedding, result: Embedding | None = None) -> str:
    """A warning if `extend` replaces a scaling with which the model may have been trained, or an empty string."""
    before: Provenance = rope._provenance
    # Dynamic NTK scales only what is longer than in training.
    if before.extended or isinstance(rope.scaling, frequencies.DynamicNTKScaling) or rope in (unscaled(rope), result):
        return ""
    return (
        f"The model may have been trained with the scaling that extend replaces ({rope.scaling.describe()}). Then it "
        "has not seen the new frequencies, at any length."
    )


def unscaled(rope: Embedding) -> Embedding:
    if rope.scaling is None and rope.attention_factor != 1.0:
        raise wrong_value(
            f"attention_factor must follow from the scaling, which changes; got {rope.attention_factor}, given "
            "without a scaling"
        )
    return rope.replace(scaling=replace(rope.scaling, factor=1.0) if _is_partial(rope.scaling) else None)


def _is_partial(scaling: frequencies.Scaling | None) -> TypeGuard[frequencies.ProportionalScaling]:
    """Whether a scaling leaves some pairs unrotated, as no other scaling does."""
    return isinstance(scaling, frequencies.ProportionalScaling) and scaling.partial_rotary_factor < 1.0


def _scaling(
    present: frequencies.Scaling | None, rule: str, trained: int, to: int, options: Values
) -> frequencies.Scaling:
    """The scaling of a rule. Its parameters are those of the options, of the present scaling, or the usual ones."""
    if _is_partial(present) and rule != "linear":
        raise wrong_value(
            f'rule must be "linear" for proportional scaling, because other rules rotate the pairs that it does '
            f"not rotate; got {rule!r}"
        )
    scaling = frequencies.ProportionalScaling if _is_partial(present) else METHODS[rule].scaling
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
    kept = _kept(present) if present is not None and type(present) is scaling else {}
    lengths = dict(zip(LENGTHS, (trained, trained, to)))
    values = {**usual, **kept, **lengths, **options}
    return scaling(**{name: value for name, value in values.items() if name in names})


def _kept(present: frequencies.Scaling) -> Values:
    """The parameters of a scaling that hold for every factor. An attention factor of 1 means that there is none."""
    kept = {each.name: getattr(present, each.name) for each in fields(present) if each.name not in OF_ONE_FACTOR}
    return {**kept, "attention_factor": 1.0} if getattr(present, "attention_factor", None) == 1.0 else kept


ONE_FACTOR = (
    "All rules except dynamic and longrope use one factor for all lengths. Short sequences may become worse, and the "
    "model fails suddenly beyond the new length (YaRN, section 3.3)."
)
SURVEY = "What the papers say: https://rope-xp.github.io/rope_xp/howto/extend/"
# What the columns of numbers mean.
LEGEND = (
    ("kept", "pairs whose frequency is not divided"),
    ("blended", "pairs whose frequency is divided by less than the factor"),
    ("interpolated", "pairs whose frequency is divided by the factor or more"),
    ("divided by", "the numbers by which frequencies are divided, least to greatest"),
    ("new angles", "pairs that get angles which do not occur within the trained length, in causal attention"),
    ("attention", "the attention factor of sines and cosines; its square multiplies scores of rotated channels"),
)


class Choice(NamedTuple):
    """What one rule does to an embedding. Numbers are None if the rule cannot be used, and `refusal` says why.

    Attributes
    ----------
    rule, does, trade_offs, fine_tuning, refusal : str
        The rule, what it does, what its papers say, and why it cannot be used.
    sources : tuple of str
        Its papers.
    rope : RotaryEmbedding or None
        The extended embedding.
    kept, blended, interpolated : int
        The numbers of pairs whose frequency is not divided, divided by less than the factor, and by the factor or more.
    least_divisor, greatest_divisor, attention_factor : float
        What frequencies are divided by, and what sines and cosines are multiplied by.
    new_angles : int
        The number of pairs that complete no turn within the trained length, and exceed their greatest trained angle
        within the extended one. In layers with a window, 0.
    """

    rule: str
    does: str
    trade_offs: str
    fine_tuning: str
    sources: tuple[str, ...]
    rope: Any = None
    kept: int | None = None
    blended: int | None = None
    interpolated: int | None = None
    least_divisor: float | None = None
    greatest_divisor: float | None = None
    new_angles: int | None = None
    attention_factor: float | None = None
    refusal: str = ""


class Recommendation(NamedTuple):
    """The rule to try first.

    Attributes
    ----------
    rule : str
        That of the present scaling if it is one of the rules, whose other parameters then stay; else YaRN, or the first
        rule that is possible.
    changed : int
        The number of pairs whose frequency differs from the present one at lengths of training.
    score_factor : float
        By how much rotated channels change scores, compared with the present embedding.
    fine_tuning : str
        What the papers say about it.
    windowed : str
        The layers that need no rule because they score only keys of a window; empty if none are known.
    engines : tuple of str
        The targets of `RotaryEmbedding.to_config` whose engines have the rule for the model type (dynamic NTK: for each
        length), or for the GGUF file, by the newest sources that were read.
    model_type : str
        Empty if no config named it. Without a GGUF file, no engine is then known.
    """

    rule: str
    changed: int
    score_factor: float
    fine_tuning: str
    windowed: str
    engines: tuple[str, ...]
    model_type: str


@dataclass(frozen=True)
class Choices(Report):
    """The rules that can extend an embedding, and what each does to it.

    Attributes
    ----------
    trained, to : int
        Lengths in tokens.
    factor : float
        The ratio of the lengths.
    pairs, incomplete : int
        The numbers of rotated pairs, and of those that complete no turn within the trained length (or their window).
    choices : tuple of Choice
        What each rule does.
    notes, warnings : tuple of str
        Remarks; and that a rule replaces a scaling with which the model may have been trained.
    recommendation : Recommendation
        The rule to try first. "linear" is always possible.
    """

    trained: int
    to: int
    factor: float
    pairs: int
    incomplete: int
    choices: tuple[Choice, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    recommendation: Recommendation

    def sections(self) -> list[Section]:
        title = f"Recommendation from {self.trained:,} to {self.to:,} tokens, a factor of {self.factor:g}"
        advice = [Section("Warnings", self.warnings), Section(title, Table((), _advice(self)))]
        if self.recommendation.windowed == THESE_LAYERS:
            return advice
        header = ("rule", "kept", "blended", "interpolated", "divided by", "new angles", "attention")
        return [
            *advice,
            Section("What each rule does to the pairs", Table(header, [_numbers(each) for each in self.choices])),
            Section(
                "",
                f"Rotated pairs: {self.pairs}; {self.incomplete} complete no turn within {self.trained:,} tokens, the "
                f"trained length{' before scaling' if self.warnings else ''}.",
            ),
            Section("", Table((), LEGEND)),
            Section("Notes", [*self.notes, ONE_FACTOR, SURVEY]),
        ]


def _advice(it: Choices) -> list[tuple[str, str]]:
    found = it.recommendation
    if found.windowed == THESE_LAYERS:
        return [("rule", f"none: {found.windowed} score only keys of a window (explain says more)")]
    choice = next(each for each in it.choices if each.rule == found.rule)
    are_partial = choice.rope.rotary_dim < choice.rope.head_dim
    which = "scores of rotated channels" if are_partial else "scores"
    scores = "" if found.score_factor == 1.0 else f"; {which} are multiplied by {found.score_factor:.3g}"
    cost = f"{found.changed} of {it.pairs} frequencies change too{scores}" if found.changed else scores[2:]
    of_what = f"for {found.model_type}" if found.model_type else "for this GGUF file" if found.engines else ""
    engines = f"{of_what}: {', '.join(found.engines) or 'none whose source was read'}"
    # GGUF metadata may have any factors.
    usual = (name for name in ("vllm", "gguf") if choice.rope and is_written(choice.rope, name, may_be_unknown=True))
    program = next(usual, "")
    program = program if program in found.engines or not found.engines else found.engines[0]
    then = [("next", f"rope-xp extend ... --rule {found.rule} --for {program} prints settings")] if program else []
    return [
        ("rule", f"{found.rule} ({choice.kept} of {it.pairs} pairs are kept, {choice.new_angles} get new angles)"),
        *([("window", f"{found.windowed} need no rule (explain says why)")] if found.windowed else ()),
        ("short texts", cost or f"no cost: up to {it.trained:,} tokens, nothing changes"),
        ("fine-tuning", found.fine_tuning),
        ("engines", engines if of_what else "not known, because no config names the model type"),
        ("quality", f"try it at {it.to:,} tokens: no formula says how good it is"),
        *then,
    ]


def _numbers(choice: Choice) -> list[str]:
    if choice.least_divisor is None or choice.greatest_divisor is None:
        return [choice.rule, *["-"] * 6]
    least, greatest = map(_number, (choice.least_divisor, choice.greatest_divisor))
    divisors = least if least == greatest else f"{least} to {greatest}"
    counts = (choice.kept, choice.blended, choice.interpolated)
    return [choice.rule, *map(str, counts), divisors, str(choice.new_angles), f"{choice.attention_factor:.6g}"]


def _number(divisor: float) -> str:
    return f"{divisor:.4g}" if divisor < 999.95 else f"{divisor:,.0f}"


def choices_of(rope: Embedding, trained: int, to: int) -> Choices:
    before, notes = scaled_pairs(unscaled(rope)), []
    if rope.scaling is not None:
        notes.append(
            f"The embedding is scaled: {rope.scaling.describe()}. A new rule replaces it. It keeps the base, and its "
            f"factor is {to / trained:.4g}, counted from {trained:,} tokens. The old factor does not matter."
        )
        if rope.softmax_scale != 1.0:
            notes.append(
                f"The model multiplies its softmax scale by {rope.softmax_scale:.6g}, which follows from this scaling. "
                f"Only {rope.scaling.rope_type} keeps such a factor."
            )
    choices = tuple(_choice(rope, rule, trained, to) for rule in METHODS)
    notes += [
        "longrope needs `short_factor` and `long_factor`, two lists that a search with the model finds."
        if "short_factor" in each.refusal
        else f"{each.rule} is not possible: {each.refusal}"
        for each in choices
        if each.refusal
    ]
    notes += [
        f"The factor of dynamic grows with the length: at {to:,} tokens, `factor`={_number(to / trained)} divides the "
        f"slowest frequency by {_number(each.greatest_divisor)}, and `factor`=1 by {_number(to / trained)}."
        for each in choices
        if each.rule == "dynamic" and each.greatest_divisor
    ]
    shown = shown_length(rope, trained) or trained
    incomplete = sum(pair.completes_turn(shown) is False for pair in before)
    rotated = [pair for pair in before if pair.frequency]
    warnings = tuple(filter(None, [replaced_scaling(rope)]))
    advice = _recommendation(rope, choices, trained)
    return Choices(trained, to, to / trained, len(rotated), incomplete, choices, tuple(notes), warnings, advice)


def _recommendation(rope: Embedding, choices: tuple[Choice, ...], trained: int) -> Recommendation:
    possible = {each.rule: each for each in choices if each.rope is not None}
    present = [rule for rule in possible if METHODS[rule].scaling is type(rope.scaling)]
    rule = next(each for each in (*present, "yarn", *possible) if each in possible)
    found = possible[rule].rope
    one, other = _for_short_texts(rope), _for_short_texts(found)
    pairs = zip(one._frequencies.sizes(), other._frequencies.sizes())
    changed = sum(abs(before - after) > 1e-9 * before for before, after in pairs)
    factor = (other.attention_factor / one.attention_factor) ** 2 * other.softmax_scale / one.softmax_scale
    model_type = rope._provenance.model_type
    by_engine = {each.engine: name for name, each in reversed(TARGETS.items()) if each.engine}.values()
    of_gguf = [name for name, each in TARGETS.items() if each.takes_architecture]
    known = by_engine if model_type else of_gguf if rope._provenance.architecture else ()
    if rule == "dynamic" and model_type:
        known = [name for name in known if name in FOLLOWING_LENGTH]
    engines = tuple(name for name in TARGETS if name in known and is_written(found, name, may_be_unknown=False))
    windowed = windowed_layers(rope, trained)
    return Recommendation(rule, changed, factor, METHODS[rule].fine_tuning, windowed, engines, model_type)


def _for_short_texts(rope: Embedding) -> Embedding:
    # Some rules have other frequencies and factors there.
    return rope.replace(scaling=replace(rope.scaling, seq_len=None)) if hasattr(rope.scaling, "seq_len") else rope


def _choice(rope: Embedding, rule: str, trained: int, to: int) -> Choice:
    texts = METHODS[rule][1:]
    try:
        result = extended(rope, rule, trained, to, {})
    except ValueError as error:
        return Choice(rule, *texts, refusal=str(error).partition(": ")[2])
    pairs = scaled_pairs(result)
    # No rule of METHODS stops a pair.
    divisors = [pair.divisor for pair in pairs if pair.divisor is not None]
    treated = Counter(pair.treatment(to / trained) for pair in pairs)
    new_angles = count_unseen(unseen_from(rope, pairs, trained), to)
    counts = treated["kept"], treated["blended"], treated["interpolated"]
    numbers = (*counts, min(divisors), max(divisors), new_angles, result.attention_factor)
    return Choice(rule, *texts, result, *numbers)
