"""The two lists of mutants: mistakes to plant (mutants.txt), and generated ones that no test has to notice, with the
reason of each (accepted_mutants.txt).

Run: `python tests/tools/mutant_lists.py`. It fails if the line of an entry is no longer in the package, or a file of
tests is gone.
"""

import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "rope_xp"
# By file, with the files of tests that notice its mistakes, each mistake: its name, the text that stands there exactly
# once, and what it becomes.
PLANTED = Path(__file__).with_name("mutants.txt").read_text()
# The module's name, and its line with the change in braces: {{before~>after}}. The reason is below it, or below the
# last of several that share it.
ACCEPTED = Path(__file__).with_name("accepted_mutants.txt").read_text()


def planted(table):
    """Each mistake's changes by its name (file, text before and text after), and by each file its tests."""
    found, tests, file = {}, {}, ""
    for line in table.strip().replace("\n        ==>", " ==>").splitlines():
        name, _, change = line.strip().partition(": ")
        if not line.startswith(" "):
            file, tests[name] = name, change.split()
            continue
        before, _, after = change.replace("\\n", "\n").partition("==>")
        found.setdefault(name, []).append((file, before.strip(" "), after.strip(" ")))
    return found, tests


def texts_with(name, changes, package=PACKAGE):
    """The files of the package with a mistake, by file."""
    texts = {}
    for file, before, after in changes:
        text = texts.get(file, (package / file).read_text())
        if text.count(before) != 1:
            sys.exit(f"{name}: {before!r} must stand once in {file}; it stands {text.count(before)} times")
        texts[file] = text.replace(before, after)
    return texts


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


(MUTANTS, TESTS_OF), REASONS = planted(PLANTED), accepted(ACCEPTED)


if __name__ == "__main__":
    for mistake in MUTANTS.items():
        texts_with(*mistake)
    lines = {
        (module_name(path), without_spaces(line))
        for path in PACKAGE.rglob("*.py")
        for line in path.read_text().splitlines()
    }
    tests = Path(__file__).parents[1]
    if gone := [each for files in TESTS_OF.values() for each in files if not (tests / each).exists()]:
        sys.exit(f"each file of tests in mutants.txt must exist; got {gone}")
    stale = [key for key in REASONS if key[:2] not in lines]
    if stale:
        sys.exit(f"each line of accepted_mutants.txt must be in its module; got {stale}")
