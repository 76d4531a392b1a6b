"""Generated mutants that no test has to notice, and the reason of each."""

import re
from pathlib import Path

# The module's name, and its line with the change in braces: {{before~>after}}. The reason is below it.
TABLE = (Path(__file__).parent / "accepted_mutants.txt").read_text()


def module_name(file):
    """What stays when a module is moved to another folder."""
    path = Path(file)
    return path.stem if path.stem != "__init__" else path.parent.name


def key_of(file, before, after):
    """The module and both lines, without spaces: operators add some."""
    return module_name(file), *("".join(line.split()) for line in (before, after))


def accepted(table):
    """The reasons, by module, line before and line after."""
    found = {}
    for entry in re.split(r"\n(?! )", table.strip()):
        place, _, reason = entry.partition("\n")
        module, _, line = place.partition(": ")
        start, before, after, end = re.fullmatch(r"(.*)\{\{(.*)~>(.*)\}\}(.*)", line).groups()
        found[key_of(module, start + before + end, start + after + end)] = " ".join(reason.split())
    return found


ACCEPTED = accepted(TABLE)
