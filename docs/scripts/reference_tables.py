"""What a page of the reference documents, as a table at its mark ``<!-- contents -->``: one line for each name.

The names are those of the page's own lines ``::: rope_xp.NAME``. Under a heading of the page, they are a group.
"""

import re
from functools import reduce
from importlib import import_module
from inspect import getdoc, isclass, ismodule

CONTENTS = "<!-- contents -->"
LINE = re.compile(r"^## (?P<group>.*)$|^::: (?P<name>[\w.]+)$\n?(?P<options>(?: {4}.*\n)*)", re.MULTILINE)


def completed(text: str) -> str:
    """The page with its table, if it has the mark. What stands in a group gets a lower heading."""
    if CONTENTS not in text:
        return text
    rows, groups = ["| name | what it does |", "|---|---|"], []
    owners = set()

    def entry(line):
        if line["group"]:
            groups.append(line["group"])
            return line[0]
        name, item = line["name"], found(line["name"])
        if not ismodule(item):
            owner, _, own = name.rpartition(".")
            owners.add(owner)
            if groups and (title := f"| **{groups[-1]}** | |") not in rows:
                rows.append(title)
            rows.append(f"| [`{own}`][{name}] | {first_sentence(item)} |")
        level = "      heading_level: 3\n" if groups else ""
        options = line["options"] or ("    options:\n" if level else "")
        return f"::: {name}\n{options}{level}"

    text = LINE.sub(entry, text)
    for owner in map(found, owners):
        if isclass(owner):
            methods = {each for each in vars(owner) if not each.startswith("_") and callable(getattr(owner, each))}
            missing = methods - set(re.findall(r"^::: [\w.]+\.(\w+)$", text, re.MULTILINE))
            if missing:
                raise ValueError(f"{owner.__name__} has methods that its page does not show: {sorted(missing)}")
    return text.replace(CONTENTS, "\n".join(rows))


def found(path: str):
    """The object of a path, such as rope_xp.RotaryEmbedding.rotate."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            module = import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        return reduce(getattr, parts[count:], module)
    raise ValueError(f"{path} must be a path of rope_xp")


def first_sentence(item) -> str:
    """The first sentence of a docstring."""
    (sentence,) = re.findall(r"\A(.*?\.)(?:\s|\Z)", (getdoc(item) or "").partition("\n\n")[0], re.DOTALL)
    return " ".join(sentence.split()).replace("|", "\\|")
