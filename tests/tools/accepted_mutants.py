"""Generated mutants that no test has to notice, and the reason of each.

Run: `python tests/tools/accepted_mutants.py`. It fails if the line of an entry is no longer in the package.
"""

import re
import sys
from pathlib import Path

# The module's name, and its line with the change in braces: {{before~>after}}. The reason is below it, or below the
# last of several that share it.
TABLE = (Path(__file__).parent / "accepted_mutants.txt").read_text()


def module_name(file):
    """What stays when a module is moved to another folder."""
    path = Path(file)
    return path.stem if path.stem != "__init__" else path.parent.name


def key_of(file, before, after):
    """The module and both lines, without spaces: operators add some."""
    return module_name(file), without_spaces(before), without_spaces(after)


def without_spaces(line):
    return "".join(line.split())


def accepted(table):
    """The reasons, by module, line before and line after."""
    found, last = {}, ""
    for entry in reversed(re.split(r"\n(?! )", table.strip())):
        place, _, reason = entry.partition("\n")
        module, _, line = place.partition(": ")
        start, before, after, end = re.fullmatch(r"(.*)\{\{(.*)~>(.*)\}\}(.*)", line).groups()
        last = " ".join(reason.split()) or last
        found[key_of(module, start + before + end, start + after + end)] = last
    return found


ACCEPTED = accepted(TABLE)


if __name__ == "__main__":
    lines = {
        (module_name(path), without_spaces(line))
        for path in (Path(__file__).parents[2] / "rope_xp").rglob("*.py")
        for line in path.read_text().splitlines()
    }
    stale = [key for key in ACCEPTED if key[:2] not in lines]
    if stale:
        sys.exit(f"each line of accepted_mutants.txt must be in its module; got {stale}")
