"""Write readings.json, examples.json, commands.json and checkpoints.json: what is read, written and reported.

Run: `python tests/goldens/make_readings.py`. It writes the cases that the files have once more. Those of readings.json
are random: of thousands, those that together run most lines of the readers and writers several times. The others are
small, each below a sentence that it shows; one that is added needs no "says". The files show what a change changes
for a user; tests of single formats say what is right.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import sentences
from configs import record, recorded
from readings import of_family, text_of

from rope_xp.configs.families.model_types import FAMILIES

found = {
    kind: {number: text_of(kind, number) for number in cases}
    for kind, cases in recorded("readings").items()
    if kind != "families"
}
found["families"] = {name: of_family(name) for name in FAMILIES}
record("readings", found)
for name in ("examples", "commands", "checkpoints"):
    sentences.write(name)
