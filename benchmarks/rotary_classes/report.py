"""Reports: tables, a summary, and a list of mistakes."""

from collections import Counter, defaultdict

from common import Table

from .classes import UNNAMED
from .deviations import unused
from .observe import LONG, LONG_ROTATED, LONG_TABLES, TOLERANCE
from .rows import STATUSES, is_known
from .subjects import subjects_of

HEADINGS = ("class", "behaviour", "configs", "agree", "unstated", "tables", "q and k")
HEADINGS += ("tables, float32", "q and k, float32")
NOTES = (
    "Each class is created with its default config and with changed ones, also from files without rotary keys (column "
    "unstated) and files that lack one key. `rope_xp.from_config` reads the same config. The scale of the softmax, the "
    "tables, and queries and keys rotated by the model's own function must be equal in float32 at positions below 512: "
    f"within {TOLERANCE:g}, times the attention factor if it is above 1. Errors are largest differences. float32: with "
    f'`phase="float32"` and the frequencies in the buffer of transformers, at positions {LONG[0]} to {LONG[-1]}: '
    f"within {LONG_TABLES:.1e} (tables) and {LONG_ROTATED:.1e} (queries and keys), times the same factor."
)


def counts(rows):
    """The number of rows for each status, with the meaning of the status."""
    return [(count, STATUSES[status]) for status, count in Counter(row.status for row in rows).items()]


def in_detail(results):
    """A line for each config."""
    for row in (row for each in results for row in each.rows):
        errors = ", ".join(f"{key} {error:.1e}" for key, error in row.errors.items())
        yield f"{row.status}: {row.config}, {row.case}, {row.label}: {errors} {row.note}"


def deviations(results):
    """For each reason: the classes and the configs to which it applies."""
    classes, cases = defaultdict(dict), defaultdict(set)
    for name, row in ((each.name, row) for each in results for row in each.rows if row.status == "deviates"):
        classes[row.note][name] = True
        cases[row.note].add(row.case)
    for reason, names in classes.items():
        shown = ", ".join(names) if len(names) < 20 else f"{len(names)} classes"
        yield [reason, shown, "; ".join(sorted(cases[reason]))]


def tables(results, of_parts):
    """All tables of the report."""
    unnamed = sum(each.name in UNNAMED for each in results)
    covered = f"**{sum(each.covered for each in results)} of {len(results)} classes**; {unnamed} have no rotary name."
    if of_parts:
        statuses = "; ".join(f"{count}: {status}" for count, status in counts(of_parts))
        composites = f"{len({row.config for row in of_parts})} composite configs"
        covered += f" Parts of {composites}, in files that state them in four ways: {statuses}."
    yield Table("Configs", ("configs", ""), counts(row for each in results for row in each.rows), covered)
    yield Table("Not covered", ("class", "reason"), [[each.name, each.why] for each in results if not each.covered])
    yield Table("rope_xp differs on purpose", ("reason", "classes", "configs"), [*deviations(results)])
    needs = [[each.name, subject.why] for each in results for subject in subjects_of(each.name) if subject.why]
    yield Table("More than the default config is needed", ("class", "reason"), needs)
    rows = []
    for each in results:
        errors = [each.worst(f"{key}{far}") for far in ("", ", float32") for key in ("tables", "rotated")]
        tried = [row.status for row in each.rows if row.status != "refused upstream"]
        rows.append([each.name, each.behaviour, len(tried), tried.count("agrees"), each.unstated, *errors])
    yield Table("Classes", HEADINGS, rows)


def mistakes(results, of_parts, everything):
    """Notes on mistakes, by class or config. `everything`: whether all cases of all classes were compared."""
    wrong = {each.name: [f"{row.case}: {row.note}" for row in each.wrong] for each in results if each.wrong}
    for row in of_parts:
        if row.status == "wrong":
            wrong.setdefault(row.config, []).append(f"{row.case}: {row.note}")
    if is_known():
        wrong |= {each.name: [each.why] for each in results if not (each.covered or each.reason or each.wrong)}
        if everything:
            wrong |= {name: [f"it no longer differs: {why}"] for name, why in unused(results)}
    return wrong
