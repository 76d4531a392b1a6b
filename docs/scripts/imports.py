"""A hook of MkDocs: the scripts of this folder can import each other."""

import sys
from pathlib import Path


def on_startup(**_):
    """Add this folder to the path of modules."""
    sys.path.append(str(Path(__file__).parent))
