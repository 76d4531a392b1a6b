"""Tables of what an engine reads, from the files of `rope_xp/configs/engines`."""

from textwrap import indent

from rope_xp.configs.engines import Reading, table, versions


def readings(engine: str) -> str:
    """What the newest version reads, folded: one row for model types that read the same."""
    found = table(engine)
    groups: dict[str, list[str]] = {}
    for model, reading in found.readings.items():
        groups.setdefault(_cells(reading), []).append(f"`{model}`")
    lines = [
        f"| {found.name} | read in | keys | scaling rules, and the keys of their block | fixed |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| {', '.join(models)} | {cells} |" for cells, models in groups.items()]
    return f'??? info "{len(found.readings)} model types of {found.name}"\n\n' + indent("\n".join(lines), " " * 4)


def facts(engine: str) -> str:
    """What is written by hand, with its source."""
    lines = ["| model types | fact | source |", "|---|---|---|"]
    rows = [
        f"| {', '.join(f'`{model}`' for model in each.models) or 'all'} | {each.text} | {each.source} |"
        for each in table(engine).facts
    ]
    return "\n".join(lines + rows)


def known(engine: str) -> str:
    """The versions whose source was read."""
    return ", ".join(versions(engine))


def _cells(reading: Reading) -> str:
    rules = "; ".join(f"{rule}: {_names(keys)}" for rule, keys in sorted(reading.rules.items()))
    fixed = [f"{name} {value}" for name, value in sorted(reading.fixed.items())]
    fixed += [f"`{key}` {value:g} if none is read" for key, value in sorted(reading.defaults.items())]
    keys = [f"`{key}`" for key in sorted(reading.keys)]
    keys += [f"`{key}` of the {', then the '.join(places)}" for key, places in sorted(reading.places.items())]
    return " | ".join([_names(reading.path) or "the file", ", ".join(keys), rules, ", ".join(fixed)])


def _names(names) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))
