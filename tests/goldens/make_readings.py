"""Write readings.json: what is read from random configs, files and flags, and what is written and reported.

Run: `python tests/goldens/make_readings.py`. It writes the cases that the file has once more: of thousands, those that
together run most lines of the readers and writers several times. The file shows in a change what it changes for a user;
tests of single formats say what is right.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from readings import FILE, of_family, recorded, text_of

from rope_xp.configs.families.model_types import FAMILIES

found = {
    kind: {number: text_of(kind, number) for number in cases}
    for kind, cases in recorded().items()
    if kind != "families"
}
found["families"] = {name: of_family(name) for name in FAMILIES}
FILE.write_text(json.dumps(found, indent=0) + "\n")
