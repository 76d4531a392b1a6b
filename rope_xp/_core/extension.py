"""`extend`: an embedding for longer sequences by a scaling rule, and a report of the rules to choose from."""

from dataclasses import dataclass, fields, replace
from math import pi
from typing import Any, Literal, NamedTuple, Self, TypeGuard, overload

from rope_xp._core import checks
from rope_xp._core.lengths import lengths_of
from rope_xp._core.provenance import Provenance, with_provenance
from rope_xp._core.report import Report, Section, Table
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

Rule = Literal["linear", "ntk", "dynamic", "yarn", "llama3", "longrope"]

CHEN = "Chen et al. (2023), Positional Interpolation, arXiv:2306.15595"
BLOC97 = "bloc97 (2023), NTK-Aware Scaled RoPE, r/LocalLLaMA"
EMOZILLA = "emozilla (2023), Dynamically Scaled RoPE, r/LocalLLaMA"
YARN = "Peng et al. (2023), YaRN, arXiv:2309.00071"
LONGROPE = "Ding et al. (2024), LongRoPE, arXiv:2402.13753"
LLAMA3 = "Grattafiori et al. (2024), The Llama 3 Herd of Models, arXiv:2407.21783"
XIONG = "Xiong et al. (2023), Effective Long-Context Scaling, arXiv:2309.16039"


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
        "No angle is beyond those of training. Near tokens become harder to tell apart, because fast pairs are divided "
        "too (YaRN, section 3.2).",
        "Chen et al. need up to 1,000 steps (abstract)",
        (CHEN, YARN),
    ),
    "ntk": Method(
        NTKScaling,
        "raises the base, so that the fastest pair keeps its frequency and the slowest is divided by the factor",
        "Some angles are beyond those of training, so that in practice the factor must be greater than the ratio of "
        "the lengths (YaRN, section 3.1).",
        "bloc97 needs none. Without it, the rule is much better than linear; after it, worse (YaRN, section 3.1)",
        (BLOC97, YARN),
    ),
    "dynamic": Method(
        DynamicNTKScaling,
        "is ntk with a factor that grows with the length; short sequences are not scaled",
        "Each length has its own frequencies, so that cached keys must change with it (YaRN, section 3.3): "
        "`rope.rerotate` changes them. A factor of s divides the slowest frequency by s * s - s + 1 at the new length; "
        "the option factor=1 divides it by s, as YaRN does (section 3.3).",
        "emozilla needs none, nor does YaRN (section 3.3)",
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
        "A search with the model finds the lists (LongRoPE, section 3), so they must be given as short_factor and "
        "long_factor. Cached keys must change when the trained length is passed: `rope.rerotate` changes them.",
        "Ding et al. need up to 1,000 steps, and none for 8 times the length (abstract)",
        (LONGROPE,),
    ),
}

ONE_FACTOR = (
    "A rule with one factor for all lengths, as all but dynamic and longrope have, can make short sequences worse, and "
    "fails suddenly beyond the new length (YaRN, section 3.3)."
)
ANOTHER_BASE = (
    "Not a rule: a greater base for all lengths, by `rope.replace(base=...)`. Xiong et al. raise it from 10,000 to "
    "500,000 and continue pretraining; Llama 3 is pretrained with 500,000 (section 3.2)."
)
# Fields that follow from the two lengths.
LENGTHS = ("original_max_position_embeddings", "max_position_embeddings", "seq_len")
# Fields that are right for one factor only. They are not kept for another factor.
OF_ONE_FACTOR = ("factor", "attention_factor", "short_factor", "long_factor", "short_mscale", "long_mscale")


class Choice(NamedTuple):
    """What one rule does to an embedding. Numbers are None if the rule cannot be used, and `refusal` says why.

    Attributes
    ----------
    rule, does, trade_offs, fine_tuning : str
        The rule, what it does, and what its papers say.
    sources : tuple of str
    rope : RotaryEmbedding or None
        The extended embedding.
    kept, blended, interpolated : int
        The numbers of pairs whose frequency is not divided, divided by less than the factor, and divided by the factor
        or more.
    least_divisor, greatest_divisor : float
    new_angles : int
        The number of pairs that complete no turn within the trained length, and exceed their greatest trained angle
        within the extended one.
    attention_factor : float
    refusal : str
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
        The numbers of rotated pairs, and of those that complete no turn within the trained length.
    choices : tuple of Choice
    notes : tuple of str
    """

    trained: int
    to: int
    factor: float
    pairs: int
    incomplete: int
    choices: tuple[Choice, ...]
    notes: tuple[str, ...]

    def sections(self) -> list[Section]:
        header = ("rule", "kept", "blended", "interpolated", "divided by", "new angles", "attention")
        texts = [
            (each.rule, sentence)
            for each in self.choices
            for sentence in (
                f"{each.does[0].upper()}{each.does[1:]}.",
                each.trade_offs,
                f"Fine-tuning: {each.fine_tuning}.",
            )
        ]
        rows = [(rule if rule != last else "", text) for (rule, text), (last, _) in zip(texts, [("", ""), *texts])]
        sources = dict.fromkeys(source for each in self.choices for source in each.sources)
        return [
            Section(
                f"From {self.trained:,} to {self.to:,} tokens: a factor of {self.factor:g}",
                f"{self.pairs} pairs are rotated. {self.incomplete} of them complete no turn within {self.trained:,} "
                "tokens.",
            ),
            Section("What each rule does to the pairs", Table(header, [_numbers(each) for each in self.choices])),
            Section(
                "",
                "kept: pairs whose frequency stays. interpolated: it is divided by the factor or more. blended: by "
                "less. new angles: pairs that complete no turn within the trained length, and exceed their greatest "
                f"trained angle within {self.to:,} tokens. attention: the attention factor.",
            ),
            Section("Trade-offs", Table(("rule", "what it does, and what its papers say"), rows)),
            Section("Notes", [*self.notes, ONE_FACTOR, ANOTHER_BASE]),
            Section("Sources", [*sources, XIONG]),
        ]


def _numbers(choice: Choice) -> list[str]:
    """The row of a choice in the table of numbers."""
    if choice.least_divisor is None or choice.greatest_divisor is None:
        return [choice.rule, *["-"] * 5, "not possible" if choice.rule != "longrope" else "needs lists"]
    least, greatest = (
        f"{each:.4g}" if each < 1000 else f"{each:,.0f}" for each in (choice.least_divisor, choice.greatest_divisor)
    )
    divisors = least if least == greatest else f"{least} to {greatest}"
    counts = (choice.kept, choice.blended, choice.interpolated)
    return [choice.rule, *map(str, counts), divisors, str(choice.new_angles), f"{choice.attention_factor:.6g}"]


class Extensible:
    """The method of an embedding that extends it."""

    @overload
    def extend(self, to: int, rule: None = None, *, trained_length: int | None = None) -> Choices: ...
    @overload
    def extend(self, to: int, rule: Rule, *, trained_length: int | None = None, **options: Any) -> Self: ...
    def extend(
        self, to: int, rule: Rule | None = None, *, trained_length: int | None = None, **options: Any
    ) -> "Self | Choices":
        """An embedding for longer sequences by a scaling rule or, without `rule`, a report of the rules.

        The factor of the rule is ``to / trained length``. An embedding that is scaled already is not scaled twice: its
        scaling is removed first, and the trained length is that before scaling. All other arguments are kept, such as
        the layout, the width, sections and `xpos`. If the present scaling is of the same rule, so are its parameters
        that hold for every factor, such as `beta_fast`.

        Parameters
        ----------
        to : int
            The new length in tokens, greater than the trained length.
        rule : "linear", "ntk", "dynamic", "yarn", "llama3" or "longrope", optional
            The rule: `LinearScaling`, `NTKScaling`, `DynamicNTKScaling` at the length `to`, `YarnScaling` (with
            `beta_fast` 32 and `beta_slow` 1), `Llama3Scaling` (with `low_freq_factor` 1 and `high_freq_factor` 4), or
            `LongRopeScaling` at the length `to`.
        trained_length : int, optional
            The length of training in tokens. The default is that of the scaling or of the config.
        **options
            Other parameters of the rule. ``"longrope"`` needs `short_factor` and `long_factor`, which a search with the
            model finds. Several papers recommend a `factor` that is greater than the ratio of the lengths.

        Returns
        -------
        RotaryEmbedding, or Choices without `rule`
            `Choices` is a report: ``str(report)``, ``report.to_markdown()`` and ``report.to_dict()``. Its `choices`
            have the extended embeddings.

        Raises
        ------
        ValueError
            If the trained length is unknown or at least `to`, the rule is unknown, the frequencies do not follow from a
            base, ``"longrope"`` has no lists, or a parameter is out of range.
        TypeError
            If a length is not an int, or the rule has no such parameter.

        References
        ----------
        Chen et al. (2023), arXiv:2306.15595; bloc97 and emozilla (2023), described in Peng et al., YaRN (2023),
        arXiv:2309.00071, sections 3.1 and 3.3; Ding et al., LongRoPE (2024), arXiv:2402.13753; meta-llama/llama-models,
        `models/llama3/reference_impl/model.py`, `apply_scaling`.

        Examples
        --------
        >>> from rope_xp import RotaryEmbedding
        >>> rope = RotaryEmbedding(head_dim=128, layout="half", base=10_000.0)
        >>> rope.extend(to=32_768, rule="yarn", trained_length=8192).scaling
        YarnScaling(factor=4.0, original_max_position_embeddings=8192, beta_fast=32.0, beta_slow=1.0, \
attention_factor=None, mscale=None, mscale_all_dim=None, truncate=True)
        >>> choices = rope.extend(to=32_768, trained_length=8192)
        >>> [(each.rule, each.kept, each.new_angles) for each in choices.choices if each.rope]
        [('linear', 0, 0), ('ntk', 1, 13), ('dynamic', 1, 0), ('yarn', 26, 0), ('llama3', 41, 0)]
        """
        who = "RotaryEmbedding.extend"
        trained, to = _lengths(who, self, to, trained_length)
        if rule is not None:
            checks.one_of(who, "rule", rule, {name: method.does for name, method in METHODS.items()})
            return _extended(who, self, rule, trained, to, options)
        if options:
            raise TypeError(f"{who}: options must be given with a rule; got {', '.join(options)}")
        return _choices(who, self, trained, to)


# Python names the class of a method in errors about missing arguments; users know only the public class.
Extensible.extend.__qualname__ = "RotaryEmbedding.extend"


def _lengths(who: str, rope: Any, to: Any, trained_length: Any) -> tuple[int, int]:
    """The trained and the new length, in tokens."""
    to, trained = checks.count(who, "to", to), lengths_of(who, rope, trained_length).trained
    if rope.base is None:
        raise ValueError(f"{who}: the embedding must have a base, from which a rule computes; got inv_freq alone")
    if not trained:
        raise ValueError(
            f"{who}: trained_length must be given, because neither the config nor the scaling states it; "
            f"got {trained_length}"
        )
    if to <= trained:
        raise ValueError(
            f"{who}: to must be greater than the trained length, {trained}, because shorter sequences need no change; "
            f"got {to}"
        )
    return trained, to


def _extended(who: str, rope: Any, rule: str, trained: int, to: int, options: dict[str, Any]) -> Any:
    """The embedding extended by a rule, with the lengths in its provenance."""
    extended = _unscaled(who, rope).replace(scaling=_scaling(who, rope.scaling, rule, trained, to, options))
    before: Provenance = rope._provenance
    removed = "" if rope.scaling is None else f". Its scaling was removed first: {rope.scaling.describe()}"
    return with_provenance(
        extended,
        replace(
            before,
            defaults=tuple(each for each in before.defaults if each.row not in ("scaling", "attention factor")),
            max_position_embeddings=to,
            trained_length=trained,
            extended=f"by {rule}, from {trained:,} to {to:,} tokens{removed}",
        ),
    )


def _unscaled(who: str, rope: Any) -> Any:
    """The embedding without its scaling."""
    if rope.scaling is None and rope.attention_factor != 1.0:
        raise ValueError(
            f"{who}: attention_factor must follow from the scaling, which changes; got {rope.attention_factor}, given "
            "without a scaling"
        )
    return rope.replace(scaling=replace(rope.scaling, factor=1.0) if _is_partial(rope.scaling) else None)


def _is_partial(scaling: Scaling | None) -> TypeGuard[ProportionalScaling]:
    """Whether a scaling leaves some pairs unrotated, as no other scaling does."""
    return isinstance(scaling, ProportionalScaling) and scaling.partial_rotary_factor < 1.0


def _scaling(who: str, present: Scaling | None, rule: str, trained: int, to: int, options: dict[str, Any]) -> Scaling:
    """The scaling of a rule. Its parameters are those of the options, of the present scaling, or the usual ones."""
    if _is_partial(present) and rule != "linear":
        raise ValueError(
            f'{who}: rule must be "linear" for proportional scaling, because other rules rotate the pairs that it does '
            f"not rotate; got {rule!r}"
        )
    scaling = ProportionalScaling if _is_partial(present) else METHODS[rule].scaling
    names = [each.name for each in fields(scaling)]
    unknown = [name for name in options if name not in names or name in LENGTHS]
    if unknown:
        accepted = ", ".join(name for name in names if name not in LENGTHS)
        raise TypeError(f"{who}: options of rule={rule!r} must be {accepted}; got {', '.join(unknown)}")
    missing = [name for name in ("short_factor", "long_factor") if name in names and options.get(name) is None]
    if missing:
        raise ValueError(
            f"{who}: {' and '.join(missing)} must be given for rule='longrope', because a search with the model finds "
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


def _choices(who: str, rope: Any, trained: int, to: int) -> Choices:
    """The report of all rules for one embedding."""
    frequencies = _frequencies(_unscaled(who, rope))
    notes = []
    if rope.scaling is not None:
        notes.append(
            f"The embedding is scaled: {rope.scaling.describe()}. A rule replaces this scaling and starts from the "
            f"base and from {trained:,} tokens. If the model was fine-tuned with this scaling, it has not seen the "
            "frequencies of another."
        )
    choices = tuple(_choice(who, rope, rule, trained, to, frequencies) for rule in METHODS)
    notes += [
        f"{each.rule} is not possible: {each.refusal}" for each in choices if each.refusal and each.rule != "longrope"
    ]
    incomplete = sum(trained * w < 2 * pi for w in frequencies if w)
    return Choices(trained, to, to / trained, sum(map(bool, frequencies)), incomplete, choices, tuple(notes))


def _choice(who: str, rope: Any, rule: str, trained: int, to: int, frequencies: list[float]) -> Choice:
    """What a rule does to an embedding whose frequencies are these without scaling."""
    texts = METHODS[rule][1:]
    try:
        extended = _extended(who, rope, rule, trained, to, {})
    except ValueError as error:
        return Choice(rule, *texts, refusal=str(error).partition(": ")[2])
    scaled = _frequencies(extended)
    divisors = [w / v if v else 1.0 for w, v in zip(frequencies, scaled) if w]
    kept = sum(abs(divisor - 1.0) < 1e-9 for divisor in divisors)
    interpolated = sum(divisor > to / trained * (1.0 - 1e-9) for divisor in divisors)
    new_angles = sum(0.0 < trained * w < min(2 * pi, to * v * (1.0 - 1e-9)) for w, v in zip(frequencies, scaled))
    counts = kept, len(divisors) - kept - interpolated, interpolated
    numbers = (*counts, min(divisors), max(divisors), new_angles, extended.attention_factor)
    return Choice(rule, *texts, extended, *numbers)


def _frequencies(rope: Any) -> list[float]:
    """The sizes of all frequencies, in radians per token."""
    return [abs(w) for row in rope._spectrum.frequencies.rows for w in row.inv_freq]
