"""Every rotary class of transformers, made from configs and compared with what `rope_xp.from_config` makes of them."""

import os

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
