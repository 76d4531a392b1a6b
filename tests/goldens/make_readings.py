"""Write readings.json, examples.json, commands.json and checkpoints.json: what is read, written and reported.

Run: `python tests/goldens/make_readings.py`. It writes the cases that the files have once more. Those of readings.json
are random: of thousands, those that together run most lines of the readers and writers several times. The others are
small, each below a sentence that it shows; one that is added needs no "says". The files show what a change changes
for a user; tests of single formats say what is right.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import sentences
from readings import FILE, of_family, recorded, text_of

from rope_xp.configs.families.model_types import FAMILIES

found = {
    kind: {number: text_of(kind, number) for number in cases}
    for kind, cases in recorded().items()
    if kind != "families"
}
found["families"] = {name: of_family(name) for name in FAMILIES}
FILE.write_text(json.dumps(found, indent=0) + "\n")
for file in (sentences.EXAMPLES, sentences.COMMANDS, sentences.CHECKPOINTS):
    sentences.write(file)
