"""Write what readings.json, examples.json, commands.json and checkpoints.json say: what is read, written and reported.

Run: `python tests/goldens/make_readings.py`. Examples stand below a sentence that they show; one that is added needs no
"says", and that of a family is added here. The files show what a change changes for a user; tests of single formats
say what is right.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import sentences
from configs import record, recorded

from rope_xp.configs.families.model_types import FAMILIES

record("readings", recorded("readings") | {"Defaults of families.": [{"family": name} for name in FAMILIES]})
for name in ("examples", "commands", "checkpoints", "readings"):
    sentences.write(name)
