"""Write what readings.json, examples.json, commands.json and checkpoints.json say: what is read, written and reported.

Run: `python tests/goldens/make_readings.py`, with names such as "examples" to write only these files. Examples stand
below a sentence that they show; one that is added needs no "says", and that of a family is added here. The files show
what a change changes for a user; tests of single formats say what is right.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import sentences
from configs import record, recorded

from rope_xp.configs.families.model_types import FAMILIES

names = sys.argv[1:] or ("examples", "commands", "checkpoints", "readings")
keys = {"num_hidden_layers": 8}, {"num_hidden_layers": 8, "hidden_size": 1024, "num_attention_heads": 16}
families = [{"config": {"model_type": name, **each}, "layers": 8} for name in FAMILIES for each in keys]
if "readings" in names:
    record("readings", recorded("readings") | {"Defaults of families.": families})
for name in names:
    sentences.write(name)
