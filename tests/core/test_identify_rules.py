"""Which rule `identify` finds in functions of random values, and in those of rules that are computed wrongly.

The frequencies are those of tests/support/formulas.py, which share no code with the package.
"""

import itertools
from collections import Counter
from math import log

import ml_dtypes
import numpy as np
import oracle
import pytest
from configs import recorded
from formulas import (
    by_wavelength,
    dynamic_ntk,
    geometric,
    linear,
    llama3,
    longrope,
    mixed_ntk,
    ntk,
    proportional,
    ramp,
    yarn,
)
from functions import rotary, rounded, turned
from recorded import text_of

from rope_xp import (
    LinearScaling,
    Llama3Scaling,
    MixedNTKScaling,
    NTKScaling,
    ProportionalScaling,
    RotaryEmbedding,
    YarnScaling,
    compare,
    identify,
)
from rope_xp.identification.rules import Target, changed_rule_of, rule_of

HEAD = 128


FLOAT32, FLOAT16, BFLOAT16 = rounded(np.float32), rounded(np.float16), rounded(ml_dtypes.bfloat16)
# How a function computes: its frequencies, its phases and its tables.
PRECISIONS = {
    "exact": {},
    "float32 frequencies": {"frequencies": FLOAT32},
    "float32 phases": {"frequencies": FLOAT32, "phases": FLOAT32},
    "float16 tables": {"tables": FLOAT16},
    "bfloat16 tables": {"tables": BFLOAT16},
    "bfloat16 tables of float32 phases": {"frequencies": FLOAT32, "phases": FLOAT32, "tables": BFLOAT16},
}


def function(w, layout="half", factor=1.0, frequencies=np.asarray, phases=np.asarray, tables=np.asarray, rows=None):
    """A rotation of the first channels by these frequencies. `rows` is the length of its table, if it has one."""
    w = frequencies(w)

    def fn(x, positions):
        if rows is not None and positions.max() >= rows:
            raise IndexError("index is out of bounds")
        angles = phases(np.asarray(positions, dtype=float)[..., None] * w)
        return turned(x, angles, layout, factor=factor, tables=tables)

    return fn


# Of ramps of YaRN, and of those of Llama 3.
ENDS = ((32, 1), (16, 1), (32, 2), (64, 1), (24, 1.5))
LOW_AND_HIGH = ((1, 4), (1, 2), (0.5, 4), (2, 8), (1.5, 6))


def random_rule(random):
    """A kind of rule, its frequencies and its attention factor, with the numbers of published models."""
    width = int(random.choice([32, 64, 96, 128]))
    base = float(random.choice([10_000, 10_000, 25_000, 100_000, 150_000, 500_000, 1_000_000, 5_000_000, 8_000_000]))
    factor = float(random.choice([2, 2.5, 4, 8, 16, 32, 40]))
    length = int(random.choice([2048, 4096, 8192, 32_768]))
    some, others = (
        {
            "plain": lambda: geometric(base, width),
            "linear": lambda: linear(base, width, factor),
            "ntk": lambda: ntk(base, width, factor),
            "mixed ntk": lambda: mixed_ntk(base, width, factor, float(random.choice([1.0, 0.625]))),
            "proportional": lambda: proportional(base, width, *map(random.choice, ([0.25, 0.5, 0.75], [1, 8]))),
            "dynamic ntk": lambda: dynamic_ntk(base, width, factor, length, int(length * random.uniform(1, 4))),
            "longrope": lambda: longrope(base, width, np.sort(random.uniform(1, 60, width // 2)).round(4)),
        },
        {
            "llama3": lambda: llama3(base, width, factor, *LOW_AND_HIGH[random.integers(5)], length),
            "llama3 step": lambda: llama3(base, width, factor, 1, 1, length),
            "yarn": lambda: yarn(base, width, factor, length, *ENDS[0], truncate=bool(random.integers(2))),
            "yarn betas": lambda: yarn(
                base, width, factor, length, *ENDS[random.integers(1, 5)], truncate=bool(random.integers(2))
            ),
        },
    )
    kind = str(random.choice([*some, *2 * [*others]]))
    w = (some | others)[kind]()
    return kind, w, float(random.choice([0.1 * log(factor) + 1.0, 1.0])) if kind.startswith("yarn") else 1.0


ROUNDOFF = {"exact": 2.0**-24, "float32": 2.0**-24, "float16 tables": 2.0**-11, "bfloat16 tables": 2.0**-8}


def outcome(found, w, factor):
    """What a report says of a function of these frequencies: a rule, numbers, unknown, or something wrong.

    A frequency may be off by what float32 rounds in an exponent and in a phase, and an angle at the largest position by
    16 units of roundoff of the tables, the tolerance of a report.
    """
    if found.rope is None:
        return "unknown"
    ours = np.zeros(len(w))
    got = np.asarray(found.rope.inv_freq)[: len(w)]
    ours[: len(got)] = got
    roundoff = ROUNDOFF[found.precision]
    off = np.abs(ours - w) > 2.0**-18 * w + 16 * roundoff / (found.longest + 1)
    if off.any() or abs(found.rope.attention_factor - factor) > 8 * roundoff * factor:
        return "wrong"
    return "numbers" if found.rope.base is None else "rule"


def case(seed):
    random = np.random.default_rng(seed)
    kind, w, factor = random_rule(random)
    how = list(PRECISIONS)[seed % len(PRECISIONS)]
    rows = None if random.integers(3) else int(random.choice([2048, 8192, 131_072]))
    layout = str(random.choice(["half", "interleaved"]))
    fn = function(w, layout, factor, rows=rows, **PRECISIONS[how])
    return kind, how, w, factor, rows, fn


SEEDS = range(120)


@pytest.mark.parametrize("first", SEEDS[::20])
def test_random_rules(first):
    """No report is wrong. LongRoPE is numbers, and so are a few rules whose numbers the frequencies do not give."""
    counts, reports = Counter(), recorded("reports")["rules"]
    for seed in range(first, first + 20):
        kind, how, w, factor, _, fn = case(seed)
        found = identify(fn, HEAD)
        counts[kind == "longrope", result := outcome(found, w, factor)] += 1
        assert result in ("rule", "numbers"), (seed, kind, how, str(found))
        assert seed % 2 or text_of(found) == reports[str(seed)]
        if "tables" in how:
            seen = {" ".join(how.split()[:2]), "float32" if "phases" in how else ""}
            assert found.precision in seen and "ines and cosines are rounded" in str(found), (seed, how, str(found))
    assert counts[False, "numbers"] <= 2 and not counts[True, "rule"], counts


def unusual_rules(lengths=(300, 12_288)):
    """Few pairs are blended, some one alone, and no length is a power of two."""
    for length, width, base in itertools.product(lengths, (8, 16, 32), (1e4, 37_000)):
        where = (base, width, length)
        yield f"llama3 {where}", llama3(base, width, 8, 1, 4, length), 1.0
        yield f"step {where}", llama3(base, width, 8, 1, 1, length), 1.0
        yield f"yarn {where}", yarn(base, width, 4.0, length), PAPER
        yield f"without rounding {where}", yarn(base, width, 4.0, length, truncate=False), PAPER
        yield f"other betas {where}", yarn(base, width, 4.0, length, fast=16, slow=2), 1.25


PAPER = 0.1 * log(4.0) + 1.0  # YaRN's attention factor for a factor of 4


@pytest.mark.parametrize("length", [300, 12_288])
def test_unusual_rules(length):
    reports = recorded("reports")["unusual rules"]
    for name, w, factor in unusual_rules((length,)):
        found = identify(function(w, factor=factor), 2 * len(w))
        assert outcome(found, w, factor) in ("rule", "numbers"), name
        assert text_of(found) == reports[name]


def targets(width, length):
    """Frequencies of rules with usual and other numbers, and of mistakes, as measured with the errors of dtypes."""
    for base in (1e4, 37_000):  # one that is tried in any case, and one that is not
        divided, plain = ramp(base, width, length), geometric(base, width)
        once, short = yarn(base, width, 4.0, length), llama3(base, width, 8, 1, 4, length)
        rules = {
            "base": (plain, 1.0),
            "linear": (linear(base, width, 2.5), 1.0),
            "ntk": (ntk(base, width, 24), 1.0),
            "mixed ntk": (mixed_ntk(base, width, 4.0, 0.625), 1.0),
            "proportional": (proportional(base, width, 0.75, 2.0), 1.0),
            "llama3": (short, 1.0),
            "llama3 of other factors": (llama3(base, width, 3.5, 0.5, 6, length), 1.0),
            "step": (llama3(base, width, 32, 1, 1, length), 1.0),
            "yarn": (once, PAPER),
            "without rounding": (yarn(base, width, 40.0, length, truncate=False), 0.1 * log(40.0) + 1.0),
            "other betas": (yarn(base, width, 10.0, length, fast=16, slow=2), 1.25),
            "early begin": (yarn(base, width, 4.0, 100, truncate=False), PAPER),
            "five digits": (yarn(base, width, 26.443, length), 1.0),
            "six digits": (yarn(base, width, 26.4437, length), 1.0),
            "rising": (geometric(1.0 / base, width), 1.0),
            "rising part": (proportional(1.0 / base, width, 0.5), 1.0),
            # It would end after channels that there are not, where YaRN lets it end.
            "late end": (yarn(base, width, 4.0, length, length / 7 / base ** (3 / width), length / 7 / base**2), PAPER),
            "reversed": (plain * (divided + (1.0 - divided) / 4.0), PAPER),
            "twice": (once * once / plain, PAPER),
            "llama3 twice": (by_wavelength(short, 8, 1, 4, length), 1.0),
            "numbers": (longrope(base, width, 1.0 + np.arange(width // 2) ** 1.5), 1.0),
            "no end": (yarn(base, width, 2.0, 256 * length), 0.1 * log(2.0) + 1.0),
            "a line": (np.clip(1.125 - np.arange(width // 2) / 8, 0.5, 1.0), 1.0),
        }
        for number, (name, (w, magnitude)) in enumerate(rules.items(), width // 4 + length // 100 + (base > 1e4)):
            how, error = list(MEASURED.items())[number % 4]
            w = FLOAT32(w) if how == "float32" else w
            target = Target(w, error + 2.0**-51 * w, magnitude, 1e-6 + error, how == "bfloat16")
            yield f"{name} {base:g} {width} {length} {how}", target


WIDTHS = [*itertools.product((8, 20, 32, 128), (300, 8192))]
MEASURED = {"exact": 2.0**-66, "float32": 2.0**-38, "bfloat16": 2.0**-22, "few positions": 2.0**-29}


def rule_in_words(target):
    """The rule that explains frequencies, which it has within their errors, and its digits; empty if none does."""
    with np.errstate(all="ignore"):
        rule = rule_of(target) or changed_rule_of(target)
    if rule is None:
        return ""
    off = np.abs(np.asarray(rule.frequencies(target.rotary_dim)) - target.values)
    # They may be rounded to float32, in an exponent besides, or to bfloat16 if that is within their errors.
    assert (off <= (2.0**-8 if target.is_coarse else 2.0**-18) * target.values + target.errors).all()
    return f"{rule.in_words()} ({rule.digits} digits)"


@pytest.mark.parametrize("base", [10_000, 500_000, 1_000_000, 150_000])
def test_bases_of_published_models_are_tried_where_few_pairs_say_one(base):
    width, length = 8, 8192
    divided = ramp(base, width, length)
    w = geometric(base, width) * (divided + (1.0 - divided) / 4.0)
    target = Target(w, MEASURED["exact"] + 2.0**-51 * w, PAPER, 1e-6 + MEASURED["exact"], False)
    assert rule_in_words(target).startswith(f"base {base} with scaling yarn,")


@pytest.mark.parametrize("first", range(8))
def test_rules_of_frequencies(first):
    cases = [each for width, length in WIDTHS for each in targets(width, length)][first::8]
    reports = recorded("reports")["rules of frequencies"]
    for name, target in cases:
        assert rule_in_words(target) == reports[name], name


def test_numbers_that_are_tried():
    """Factors of NTK and exponents of mixed NTK, whose frequencies do not give them: those of models, and no others."""

    def words_of(w):
        return rule_in_words(Target(w, 2.0**-66 + 2.0**-51 * w, 1.0, 1e-6, False)).partition(" (")[0]

    factors = [*(k / 8 for k in range(9, 90)), *range(12, 70)]
    factors += [power + k for power in (100, 128, 256, 512, 1000, 1024, 2048) for k in (-1, 0, 1)]
    wanted = {*(k / 4 for k in range(5, 40)), *range(10, 65), 100, 128, 256, 512, 1000, 1024}
    for factor in factors:
        is_named = f"base 10000 with scaling ntk-aware, factor={float(factor)}" == words_of(ntk(1e4, 32, factor))
        assert is_named == (factor in wanted), factor
    wanted = {0.1, 0.125, 0.2, 0.25, 0.3, 0.375, 0.4, 0.5, 0.6, 0.625, 0.7, 0.75, 0.8, 0.875, 0.9, 1.0, 1.5, 2.0}
    for exponent in (k / 40 for k in range(1, 100)):
        rule = f"base 10000 with scaling {MixedNTKScaling(factor=4.0, mixed_b=exponent).describe()}"
        assert (words_of(mixed_ntk(1e4, 32, 4.0, exponent)) == rule) == (exponent in wanted), exponent


def test_few_pairs_give_no_rule_that_is_not_theirs():
    """Few pairs leave a rule open. The value then has their frequencies as measured, and not those of another rule."""
    for width, base, factor, length in itertools.product(
        (6, 8), (1e4, 500_042, 8e6, 1e7**0.5), (2.0, 40.0), (3000, 32_768)
    ):
        for w, magnitude in (
            (yarn(base, width, factor, length), 0.1 * log(factor) + 1.0),
            (yarn(base, width, factor, length, truncate=False), 1.0),
            (llama3(base, width, factor, 1, 8, length), 1.0),
        ):
            found = identify(function(w, factor=magnitude), width, shape="seq dim")
            assert (found.precision, found.confidence) == ("exact", 1.0), str(found)
            np.testing.assert_allclose(found.rope.inv_freq, w, rtol=1e-14, atol=2.0**-68, err_msg=str(found))
    for factor, length in ((16, 65_536), (26.44, 8192), (40, 32_768)):  # numbers of many digits would give these
        w = yarn(500_042, 8, factor, length)
        found = identify(function(w, **PRECISIONS["float32 phases"]), 8, shape="seq dim")
        assert found.precision == "float32" and found.rope.inv_freq == pytest.approx(w, rel=2.0**-23), str(found)


@pytest.mark.parametrize("width, base, factor, length", [(8, 1e4, 2.0, 32_768), (128, 1e4, 2.0, 65_536)])
def test_a_ramp_that_does_not_end(width, base, factor, length):
    """No pair is divided by the whole factor, which follows from the attention factor."""
    for how in ("exact", "float32 phases"):
        rule = YarnScaling(factor=factor, original_max_position_embeddings=length)
        assert_found(how, yarn(base, width, factor, length), rule, base, 0.1 * log(factor) + 1.0)


def test_a_ramp_that_is_nearly_constant():
    """One that would begin far before the first pair, as rounding makes of Llama 3's."""
    for high in (2, 8):
        w = llama3(5e5, 24, 2, 1, high, 3000)
        found = identify(lambda x, p, w=w: function(w, **PRECISIONS["float32 phases"], tables=FLOAT32)(x, p + 7), 24)
        assert (found.precision, found.offset) == ("float32", 7) and outcome(found, w, 1.0) == "rule"


def report(w, **options):
    found = identify(function(w, **options), HEAD)
    return found, " ".join(found.reasons)


def assert_found(how, w, scaling, base=1e4, factor=1.0):
    found = identify(function(w, factor=factor, **PRECISIONS[how]), 2 * len(w), shape="seq dim")
    assert found.rope == RotaryEmbedding(head_dim=2 * len(w), layout="half", base=base, scaling=scaling), str(found)


# Each number in one precision, the next one in the next.
HOW = itertools.cycle(PRECISIONS)


def test_usual_exponents_and_parts():
    for exponent, factor in itertools.product((0.3, 0.625, 1.0), (2.0, 24.0)):
        assert_found(
            next(HOW), mixed_ntk(5e5, 128, factor, exponent), MixedNTKScaling(factor=factor, mixed_b=exponent), 5e5
        )
    for part, factor in itertools.product((0.1, 0.25, 0.3, 0.5, 0.75), (1.0, 8.0)):
        rule = ProportionalScaling(partial_rotary_factor=part, factor=factor)
        assert_found(next(HOW), proportional(1e4, 128, part, factor), rule)
    for base in (1.25, 1.75):
        assert_found("exact", proportional(base, 64, 0.5), ProportionalScaling(partial_rotary_factor=0.5), base)


@pytest.mark.parametrize("width, base", [(64, 5e5), (128, 1e6)])
def test_usual_lengths(width, base):
    for length in (2**k for k in range(9, 21)):
        for how, truncate in (("exact", True), ("exact", False), (next(HOW) if width > 64 else "exact", True)):
            rule = YarnScaling(factor=4.0, original_max_position_embeddings=length, truncate=truncate)
            assert_found(how, yarn(base, width, 4.0, length, truncate=truncate), rule, base, PAPER)
        numbers = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        rule = Llama3Scaling(**numbers, original_max_position_embeddings=length)
        assert_found(how, llama3(base, width, *numbers.values(), length), rule, base)
        twice = by_wavelength(llama3(base, width, 8, 1, 4, length), 8, 1, 4, length)
        assert f"high_freq_factor=4.0, original_max_position_embeddings={length}, applied twice" in report(twice)[1]


def test_a_length_that_the_limits_of_the_ramp_just_allow():
    """32 turns of pair 3 take 511.4 tokens, so that no smaller length has this ramp."""
    w = np.asarray(yarn(1e5, 74, 8.0, 512))
    found = rule_in_words(Target(w, 2.0**-66 + 2.0**-51 * w, 0.1 * log(8.0) + 1.0, 1e-6, False))
    assert "original_max_position_embeddings=512 " in found


@pytest.mark.parametrize("high", [2.0, 8.0])
def test_llama3_applied_twice_has_a_usual_factor(high):
    numbers = 8.0, 1.0, high, 8192
    twice = by_wavelength(llama3(5e5, HEAD, *numbers), *numbers)
    assert f"high_freq_factor={high}, original_max_position_embeddings=8192, applied twice" in report(twice)[1]


def test_what_cannot_be_told_from_one_rule_is_one_rule():
    for w, scaling in (
        (linear(1e4, 128, 4.0) / 4.0, LinearScaling(factor=16.0)),
        (ntk(1e4 * 4.0 ** (128 / 126), 128, 4.0), NTKScaling(factor=16.0)),
    ):
        assert report(w)[0].rope == RotaryEmbedding(head_dim=HEAD, layout="half", base=1e4, scaling=scaling)


def test_a_part_of_the_head_is_not_taken_for_proportional():
    """A base of many digits fits both, and then the part of the head, which proportional states, counts too."""
    for head, width, factor in itertools.product((96, 128), (32, 64), (2.0, 4.0)):
        w = ntk(1e4, width, factor) / 2.0
        for frequencies in (np.asarray, FLOAT32):
            rope = identify(function(w, frequencies=frequencies), head).rope
            assert (rope.rotary_dim, rope.scaling) == (width, LinearScaling(factor=2.0)), rope


def test_numbers_that_no_value_states():
    """A rule whose attention factor is not its own, and a single pair, are numbers; the reasons say which."""
    found, reasons = report(linear(1e4, 128, 4.0), factor=1.25)
    assert found.rope.base is None and found.magnitude == 1.25
    assert "those of base 10000 with scaling linear, factor=4.0, and are given as numbers" in reasons
    found = identify(function(np.ones(1)), 2)
    assert found.rope.inv_freq == (1.0,) and "One frequency says no base" in " ".join(found.reasons)


@pytest.mark.parametrize("base, dtype", [(595549.5396222147, ml_dtypes.bfloat16), (746579.4451639589, "float16")])
def test_rounded_frequencies_of_a_base_with_many_digits_are_numbers(base, dtype):
    """A base with fewer digits is near, and rounds to other frequencies."""
    w = FLOAT16([float(each) for each in oracle.geometric(base, 8)])
    found = identify(rotary(w, dtype=dtype), 8, shape="seq dim")
    assert (found.rope.base, found.precision) == (None, "exact")
    assert np.allclose(found.rope.inv_freq, w, rtol=MEASURED["bfloat16"], atol=0.0)


@pytest.mark.parametrize("name, tables", [("float16", FLOAT16), ("bfloat16", BFLOAT16)])
def test_rules_of_models_through_tables_in_half_precision(name, tables):
    llama = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    rule = Llama3Scaling(**llama)
    for rows in (None, 131_072, 8192):
        found, reasons = report(llama3(5e5, 128, *llama.values()), tables=tables, rows=rows)
        assert found.rope == RotaryEmbedding(head_dim=HEAD, layout="half", base=5e5, scaling=rule), (rows, reasons)
        assert found.precision == f"{name} tables" and f"Sines and cosines are rounded to {name}" in reasons
    for offset in (7, -1, 300, 0.5):
        fn = function(llama3(5e5, 128, *llama.values()), tables=tables)
        shifted = identify(lambda x, p, fn=fn, offset=offset: fn(x, p + offset), HEAD, shape="seq dim")
        assert (shifted.rope, shifted.offset) == (found.rope, offset)


@pytest.mark.parametrize("width", [32, 64, 128])
def test_a_step_in_bfloat16_tables(width):
    """No ramp is wider than nothing: the frequencies of Llama 4 Scout's rule, whose two factors are equal."""
    for base, factor, length in itertools.product((1e4, 5e5), (8, 32), (2048, 8192, 32_768)):
        w = llama3(base, width, factor, 1, 1, length)
        found, reasons = report(w, tables=BFLOAT16)
        assert outcome(found, w, 1.0) == "rule", (base, factor, length, reasons)


def test_the_attention_factor_that_yarn_would_have():
    found, reasons = report(yarn(1e6, 128, 4, 32_768))
    assert found.rope.scaling == YarnScaling(factor=4.0, original_max_position_embeddings=32_768, attention_factor=1.0)
    assert "The attention factor is 1; that of YaRN with factor 4 is 1.13863" in reasons
    assert "is applied twice" in report(yarn(1e6, 128, 4, 32_768), factor=PAPER**2)[1]
    assert "ttention factor" not in report(yarn(1e6, 128, 4, 32_768), factor=PAPER)[1]


def test_the_base_of_dynamic_ntk_is_its_changed_base():
    w = dynamic_ntk(1e4, 128, 2.0, 4096, 10_000)
    rope = report(w)[0].rope
    assert rope.scaling is None and rope.base == pytest.approx(w[1] ** -64.0, rel=1e-12)


PLAIN = RotaryEmbedding(head_dim=16, layout="half", base=1e4)
GIVEN, HALF = RotaryEmbedding(head_dim=16, layout="half", inv_freq=PLAIN.inv_freq), PLAIN.replace(rotary_dim=8)
WIDE, CUT = geometric(1e4, 16), "width (a: {} of 16 channels; b: 16 of 16 channels)"
AS_IF = "as if the exponent were -2 j / 16"
# Frequencies and the factor of a function, a value, and what compare says that the function changes of it.
CHANGES = [
    *(
        (geometric(base, 16), 1.0, PLAIN, f"cause: base (a: {base:,g}; b: 10,000).")
        for base in (2e4, 12345, 10001, 1.5)
    ),
    (geometric(10000.3, 16), 1.0, PLAIN, "cause: base (a: 10,000.3; b: 10,000)."),
    (geometric(3e14, 16), 1.0, PLAIN, "cause: base (a: 300,000,000,000,000; b: 10,000)."),
    *((WIDE / n, 1.0, PLAIN, f"cause: scaling (a: linear, factor={n}; b: none).") for n in (4.0, 1.02, 7.3, 123.456)),
    *((WIDE / n, 1.0, GIVEN, f"cause: scaling (a: linear, factor={n}; b: none).") for n in (2.0, 4.0)),
    (
        -WIDE,
        1.0,
        GIVEN,
        "(a: 1 to 0.000316228 radians per token, given, reversed; b: 1 to 0.000316228 radians per token, given).",
    ),
    *(
        (WIDE[: n // 2], 1.0, PLAIN, f"{CUT.format(n)}; base (a: {base} = 10,000 ** ({n} / 16), {AS_IF}; b: 10,000).")
        for n, base in ((8, "100"), (12, "1,000"))
    ),
    ([2.0], 1.0, PLAIN, f"2 to 2 radians per token, given; b: those of base 10,000); {CUT.format(2)}."),
    (WIDE, 1.0, HALF, "cause: width (a: 16 of 16 channels; b: 8 of 16 channels)."),
    (WIDE[:4], 1.0, HALF, f"cause: base (a: 100 = 10,000 ** (8 / 16), {AS_IF}; b: 10,000)."),
    *((WIDE, n, PLAIN.replace(attention_factor=1.25), f"factor (a: {n:g}; b: 1.25).") for n in (1.0, 1.1386, 1.5625)),
]


@pytest.mark.parametrize("how", ["exact", "float32 phases"])
def test_what_a_function_changes_of_a_value(how):
    """The base and factors have as many digits as someone chose, also in float32."""
    digits = (geometric(10_000_010, 16), 1.0, PLAIN, "cause: base (a: 10,000,010; b: 10,000).")
    for w, factor, value, words in [*CHANGES, *([digits] if how == "exact" else [])]:
        found = compare(function(w, factor=factor, **PRECISIONS[how]), value, context=4096, shape="seq dim")
        assert words in " ".join(found.summary.split()), found.summary


@pytest.mark.parametrize("rounded", [FLOAT16, BFLOAT16])
def test_a_base_is_seen_through_phases_of_few_digits(rounded):
    hidden = (1e4, 11_000) if rounded is BFLOAT16 else (1e4,)
    for base in (2e4, 1e4, 11_000, 5e5):
        found = compare(function(geometric(base, 16), phases=rounded), PLAIN, context=500, shape="seq dim")
        assert found.causes == ("base",) * (base not in hidden) + ("phase precision",), found.summary
