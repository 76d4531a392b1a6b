"""Write reports.json: what `identify` and `compare` say of programs with and without mistakes, and of values.

It also has the calls that they make of some programs.

Run: `python tests/goldens/make_reports.py`. `tests/core/test_mistakes.py` tests that what they say is true. This file
shows in a change which sentences, numbers and calls it changes.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "core"))
from configs import record
from recorded import CALLED, PROGRAMS, VARIANTS, of_calls, of_programs, of_variants, text_of
from test_identify_rules import HEAD, SEEDS, WIDTHS, case, function, rule_in_words, targets, unusual_rules

from rope_xp import identify

found = {
    "programs": {str(number): [text_of(each) for each in of_programs(number)] for number in PROGRAMS},
    "variants": {str(number): [*of_variants(number)] for number in range(len(VARIANTS))},
    "calls": {name: of_calls(each) for name, each in CALLED.items()},
    "rules": {str(seed): text_of(identify(case(seed)[-1], HEAD)) for seed in SEEDS[::2]},
    "unusual rules": {
        name: text_of(identify(function(w, factor=factor), 2 * len(w))) for name, w, factor in unusual_rules()
    },
    "rules of frequencies": {
        name: rule_in_words(target) for width, length in WIDTHS for name, target in targets(width, length)
    },
}
record("reports", found)
