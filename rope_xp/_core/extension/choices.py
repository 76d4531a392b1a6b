"""The report of the rules that can extend an embedding."""

from dataclasses import dataclass
from math import pi
from typing import Any, NamedTuple

from rope_xp._core.extension.rules import METHODS, extended, replaced_scaling, unscaled
from rope_xp._core.report import Report, Section, Table

XIONG = "Xiong et al. (2023), Effective Long-Context Scaling, arXiv:2309.16039"
ONE_FACTOR = (
    "A rule with one factor for all lengths, as all but dynamic and longrope have, can make short sequences worse, and "
    "fails suddenly beyond the new length (YaRN, section 3.3)."
)
ANOTHER_BASE = (
    "Not a rule: a greater base for all lengths, by `rope.replace(base=...)`. Xiong et al. raise it from 10,000 to "
    "500,000 and continue pretraining; Llama 3 is pretrained with 500,000 (section 3.2)."
)
# What the columns of numbers mean.
LEGEND = (
    ("kept", "pairs whose frequency is not divided"),
    ("blended", "pairs whose frequency is divided by less than the factor"),
    ("interpolated", "pairs whose frequency is divided by the factor or more"),
    (
        "new angles",
        "pairs that complete no turn within the trained length, and get angles that training at this length did not "
        "show",
    ),
    ("attention", "the factor of sines and cosines; scores are multiplied by its square"),
)


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
    warnings : tuple of str
        That a rule replaces a scaling with which the model may have been trained.
    """

    trained: int
    to: int
    factor: float
    pairs: int
    incomplete: int
    choices: tuple[Choice, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]

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
                f"tokens, the trained length{' before scaling' if self.warnings else ''}.",
            ),
            Section("Warnings", self.warnings),
            Section("What each rule does to the pairs", Table(header, [_numbers(each) for each in self.choices])),
            Section("", Table((), LEGEND)),
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


def choices_of(rope: Any, trained: int, to: int) -> Choices:
    """The report of all rules for one embedding."""
    frequencies = _frequencies(unscaled(rope))
    notes = []
    if rope.scaling is not None:
        notes.append(
            f"The embedding is scaled: {rope.scaling.describe()}. A rule replaces this scaling and starts from the "
            f"base and from {trained:,} tokens."
        )
        if rope.softmax_scale != 1.0:
            notes.append(
                f"The model multiplies its softmax scale by {rope.softmax_scale:.6g}, which follows from this scaling. "
                f"Only {rope.scaling.rope_type} keeps such a factor."
            )
    choices = tuple(_choice(rope, rule, trained, to, frequencies) for rule in METHODS)
    notes += [
        f"{each.rule} is not possible: {each.refusal}" for each in choices if each.refusal and each.rule != "longrope"
    ]
    incomplete = sum(trained * w < 2 * pi for w in frequencies if w)
    pairs, warnings = sum(map(bool, frequencies)), tuple(filter(None, [replaced_scaling(rope)]))
    return Choices(trained, to, to / trained, pairs, incomplete, choices, tuple(notes), warnings)


def _choice(rope: Any, rule: str, trained: int, to: int, frequencies: list[float]) -> Choice:
    """What a rule does to an embedding whose frequencies are these without scaling."""
    texts = METHODS[rule][1:]
    try:
        result = extended(rope, rule, trained, to, {})
    except ValueError as error:
        return Choice(rule, *texts, refusal=str(error).partition(": ")[2])
    scaled = _frequencies(result)
    divisors = [w / v if v else 1.0 for w, v in zip(frequencies, scaled) if w]
    kept = sum(abs(divisor - 1.0) < 1e-9 for divisor in divisors)
    interpolated = sum(divisor > to / trained * (1.0 - 1e-9) for divisor in divisors)
    new_angles = sum(0.0 < trained * w < min(2 * pi, to * v * (1.0 - 1e-9)) for w, v in zip(frequencies, scaled))
    counts = kept, len(divisors) - kept - interpolated, interpolated
    numbers = (*counts, min(divisors), max(divisors), new_angles, result.attention_factor)
    return Choice(rule, *texts, result, *numbers)


def _frequencies(rope: Any) -> list[float]:
    """The sizes of all frequencies, in radians per token."""
    return [abs(w) for row in rope._frequencies.rows for w in row.inv_freq]
