"""The formulas of docs/javascripts/rope.js against rope_xp: settings, and what must be equal for each."""

import contextlib
import io
from dataclasses import fields
from itertools import product
from math import log
from pathlib import Path

import numpy as np

from rope_xp import RotaryEmbedding, frequencies, plot
from rope_xp.spectrum import is_scaled

SCRIPT = Path(__file__).parents[2] / "docs/javascripts/rope.js"
# What the page computes for settings, as a JavaScript function of the module and the settings.
RESULTS = """(rope, settings) => settings.map((changes) => {
  const s = { ...rope.EMPTY, ...changes };
  const w = rope.frequencies(s);
  return {
    setting: s, problems: rope.problems(s), frequencies: w, attentionFactor: rope.attentionFactor(s),
    unseenFrom: rope.unseenFrom(s), decay: rope.decay(w, rope.attentionFactor(s), s.target),
    scaled: rope.isScaled(s), python: rope.pythonCode(s), block: rope.ropeParameters(s),
  };
})"""

RULES = {
    rule.rope_type: rule
    for rule in vars(frequencies).values()
    if isinstance(rule, type) and issubclass(rule, frequencies.Scaling)
}
LENGTHS = {"original_max_position_embeddings": "trained", "max_position_embeddings": "trained", "seq_len": "target"}
# Parameters of each rule, each with several values.
PARAMETERS = {
    "default": [{}],
    "linear": [{"factor": 1}, {"factor": 2.5}],
    "ntk-aware": [{"factor": 4}, {"factor": 1000}],
    "ntk": [{"factor": 4}, {"factor": 16, "mixed_b": 0.625}],
    "dynamic": [{"factor": 1}, {"factor": 2.5}],
    "yarn": [
        {"factor": 4},
        {"factor": 32, "truncate": False},
        {"factor": 40, "beta_fast": 16, "beta_slow": 2, "mscale": 0.707, "mscale_all_dim": 1.4},
        {"factor": 16, "attention_factor": 1.25, "mscale": 1},
        {"factor": 8, "beta_fast": 1, "beta_slow": 1},
    ],
    "longrope": [
        {"factor": 4},
        {"factor": None, "attention_factor": 1.19},
        {"factor": None, "short_mscale": 1.1, "long_mscale": 1.25},
    ],
    "llama3": [
        {"factor": 8},
        {"factor": 32, "low_freq_factor": 2, "high_freq_factor": 3},
        {"factor": 8, "low_freq_factor": 1, "high_freq_factor": 1},
    ],
    "proportional": [{"partial_rotary_factor": 0.25, "factor": 1}, {"partial_rotary_factor": 0.7, "factor": 2}],
}
SIZES = [(100, 64, 64, "interleaved"), (10_000, 128, 128, "half"), (1_000_000, 96, 80, "half")]
SPANS = [(2048, 2048), (150, 3000), (65_536, 100_000)]


def settings():
    """Settings of every rule; those fields of the page's setting that are not its first values."""
    made = []
    for (rule, parameters), (base, head, width, layout), (trained, target) in product(
        [(rule, each) for rule, several in PARAMETERS.items() for each in several], SIZES, SPANS
    ):
        lists = {"short_factor": [1 + j / 64 for j in range(width // 2)], "long_factor": list(range(1, width // 2 + 1))}
        made.append(
            {
                **(lists if rule == "longrope" else {}),
                **{"rule": rule, "base": base, "head_dim": head, "rotary_dim": width, "layout": layout},
                **{"trained": trained, "target": target, **parameters},
            }
        )
    return made


def rope_of(setting):
    """The embedding of a whole setting."""
    rule = RULES[setting["rule"]]
    given = {each.name: setting[LENGTHS.get(each.name, each.name)] for each in fields(rule)}
    return RotaryEmbedding(
        head_dim=setting["head_dim"],
        rotary_dim=setting["rotary_dim"],
        layout=setting["layout"],
        base=setting["base"],
        scaling=rule(**given) if given else None,
    )


def tolerance(setting):
    """The relative error that float64 allows the page's frequencies.

    A power is within ``ln(base) / 2 + 2`` ulps, because the exponent is rounded. NTK rules have two of them, and a
    greater base. A ramp multiplies the error by its steepness, at most 4 here, and by the factor.
    """
    factor = setting["factor"] or 1
    base = setting["base"] * (factor * setting["target"] / setting["trained"]) ** 2
    return 2.0**-52 * (log(base) + 4) * (4 * factor if setting["rule"] in ("yarn", "llama3") else 1)


def check(result):
    """What the page computed for one setting must be what rope_xp computes."""
    setting = result["setting"]
    rope = rope_of(setting)
    allowed = tolerance(setting)
    assert not result["problems"]
    np.testing.assert_allclose(result["frequencies"], rope.inv_freq, rtol=allowed, atol=0)
    np.testing.assert_allclose(result["attentionFactor"], rope.attention_factor, rtol=2.0**-50)
    unseen = {pair: position for pair, position in enumerate(result["unseenFrom"]) if position is not None}
    explained = rope.explain(setting["target"], trained_length=setting["trained"])
    assert unseen == dict(explained.unseen_from)
    assert result["scaled"] == is_scaled(rope)
    assert made_and_printed(result["python"]) == (rope, f"{explained}\n")
    try:
        assert result["block"] == rope.to_config()
    except ValueError:
        assert result["block"] is None


def check_decay(result):
    """The page's mean score must be that of `rope_xp.plot.decay`, whose cosines have the error of their angles."""
    rope, target = rope_of(result["setting"]), result["setting"]["target"]
    line = plot.decay(rope, distance=target).lines[0]
    plot.plt.close()
    m = rope.attention_factor
    allowed = m**2 * (2.0**-50 + target * (tolerance(result["setting"]) + 2.0**-50))
    np.testing.assert_allclose(result["decay"], np.transpose(line.get_data()), rtol=0, atol=allowed)


def made_and_printed(program):
    """The embedding that the page's program makes, and what it prints."""
    names = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(program, "the page", "exec"), names)
    return names["rope"], printed.getvalue()
