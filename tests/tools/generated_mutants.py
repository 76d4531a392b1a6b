"""Test random mutants of each package of the library, and list those that no test notices.

Run: `python tests/tools/generated_mutants.py --sample 60 --out benchmarks/results/mutants.md`, with names of packages
to test only these. `--since REF` draws only from the lines that differ from a commit, for a change. A run that was
stopped goes on where it stopped, as long as the seed and the sources are the same. `mutation.py` says how it is done.
"""

import argparse
import random
import re
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import mutation
from mutant_lists import REASONS, key_of

# Each package: its folders and modules, of which the longest name counts.
PACKAGES = {
    "arrays": ["arrays"],
    "kernels": ["kernels"],
    "frequencies": ["frequencies"],
    "positions": ["positions"],
    "configs": ["configs"],
    "readers": ["configs/readers"],
    "writers": ["configs/writers", "configs/engines"],
    "families": ["configs/families"],
    "identification": ["identification"],
    "comparison": ["comparison"],
    "checkpoints": ["checkpoints"],
    "explanation": ["explanation", "extension", "description", "reports", "provenance"],
    "embedding": [
        *("embedding", "functions", "layouts", "sections", "spectrum", "types", "errors", "weights", "modules"),
        *("__init__", "__main__"),
    ],
    "huggingface": ["huggingface"],
    "cli": ["cli"],
    "plot": ["plot"],
    "frameworks": ["torch", "flax", "onnx"],
}
# The folders of tests of every package, and those of some packages besides.
FOLDERS = ("core", "numpy", "cli")
MORE_FOLDERS = {
    "arrays": ("torch", "jax", "export"),
    "embedding": ("torch", "jax"),
    "kernels": ("torch", "jax", "triton"),
    "huggingface": ("huggingface",),
    "frameworks": ("torch", "jax", "export"),
}
SOURCE = Path(find_spec("rope_xp").origin).parent
# Not run, as they take long: tests of broken surroundings, and the search for bad configs.
SLOW = ("numpy/test_faults", "core/test_config_fuzz")


def files_of(packages):
    """The modules of each package: a module in none, and a name without a module, are errors."""
    names = {name: package for package, parts in packages.items() for name in parts}
    found, unused = {package: [] for package in packages}, set(names)
    for path in sorted(SOURCE.rglob("*.py")):
        file = path.relative_to(SOURCE)
        within = [str(each) for each in (file.with_suffix(""), *file.parents) if str(each) in names]
        if not within:
            sys.exit(f"each module must be in a package of PACKAGES; {file} is in none")
        unused.discard(within[0])
        found[names[within[0]]].append(str(file))
    if unused:
        sys.exit(f"each name in PACKAGES must be a module or a folder; got {', '.join(sorted(unused))}")
    return found


def tests_for(package, files=None):
    """The files of tests for a package, and its modules with doctests.

    With `files`, only those that name one of these modules or what it defines.
    """
    folders = (*FOLDERS, *MORE_FOLDERS.get(package, ()))
    tests = [each for folder in folders for each in sorted((mutation.TESTS / folder).glob("test_*.py"))]
    tests = [each for each in tests if f"{each.parent.name}/{each.stem}" not in SLOW]
    modules = [SOURCE / file for file in files or files_of(PACKAGES)[package]]
    # The examples of classes that a package names its own are those of the package.
    doctests = [each for each in modules if each.stem == "__init__" or ">>> " in each.read_text()]
    if files is None:
        return [*tests, *doctests]
    words = {part.removesuffix(".py") for file in files for part in Path(file).parts}
    words |= {each for module in modules for each in re.findall(r"^(?:class|def) (\w+)", module.read_text(), re.M)}
    return [*(each for each in tests if words & set(re.findall(r"\w+", each.read_text()))), *doctests]


def report(tested, places, seed, budget):
    """The tables of packages and of survivors in Markdown, each package's share that is killed, and how many
    survivors have no reason."""
    counts = Counter(each["outcome"] for results in tested.values() for each in results)
    total, survived = counts.total(), counts["survived"]
    text = f"""# Random mistakes

Made by `python tests/tools/generated_mutants.py --seed {seed}`: mutants by cosmic-ray's operators at {total} of \
{sum(places.values())} places in the {len(tested)} packages of the library, drawn at random in each. A mutant is \
tested by the tests that execute its line, the fastest first, for {budget:g} s at most.

{1.0 - survived / total:.1%} are killed. {"; ".join(f"{name}: {number}" for name, number in sorted(counts.items()))}. \
The share is that of mutants that change something to observe.

| package | places | tested | killed | change nothing to observe | share |
|---|---|---|---|---|---|
"""
    shares, rows, unexplained = {}, "", 0
    for package, results in tested.items():
        survivors = [each for each in results if each["outcome"] == "survived"]
        reasons = [REASONS.get(key_of(each["file"], each["before"], each["after"]), "") for each in survivors]
        unexplained += reasons.count("")
        killed, explained = len(results) - len(survivors), len(reasons) - reasons.count("")
        shares[package] = killed / (len(results) - explained)
        text += f"| {package} | {places[package]} | {len(results)} | {killed} | {explained} | {shares[package]:.1%} |\n"
        for each, reason in zip(survivors, reasons):
            before, after = (each[name].replace("|", "\\|") for name in ("before", "after"))
            rows += f"| {each['file']}:{each['line']} `{before}` | `{after}` | {reason or '**none**'} |\n"
    return f"{text}\n| survivor | becomes | reason |\n|---|---|---|\n{rows}", shares, unexplained


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"by default all: {', '.join(PACKAGES)}")
    parser.add_argument("--sample", type=int, default=60, help="mutants of each package; with --since of the change")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--since", metavar="REF", help="only lines that differ from this commit, in few files of tests")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tests for each mutant")
    parser.add_argument("--least", type=float, default=0.93, help="the share of each package that must be killed")
    parser.add_argument("--folder", type=Path, default=mutation.FOLDER, help="for what is measured, and for results")
    parser.add_argument("--out", type=Path, help="the tables; every survivor needs a reason then")
    asked = parser.parse_args()
    if unknown := set(asked.packages) - set(PACKAGES):
        parser.error(f"PACKAGE must be one of {', '.join(PACKAGES)}; got {', '.join(sorted(unknown))}")
    changed = None if asked.since is None else mutation.changed_lines(asked.since)
    samples = samples_of(asked, changed)
    if not samples:
        print("no line that a mutant could change")
        return
    bench, tested = mutation.Bench(SOURCE, asked.folder), {}
    for package, (mutants, _) in samples.items():
        only = None if changed is None else {each["file"] for each in mutants}
        lines = bench.measure(tests_for(package, only))
        tested[package] = bench.test(mutants, lines, asked.budget)
    places = {package: of for package, (_, of) in samples.items()}
    text, shares, unexplained = report(tested, places, asked.seed, asked.budget)
    if asked.out is None:
        print(text)
    else:
        asked.out.write_text(text)
    low = {name: f"{share:.1%}" for name, share in shares.items() if share < asked.least}
    if low:
        sys.exit(f"{asked.least:.0%} of each package must be killed; got {low}")
    if unexplained and asked.out is not None:
        sys.exit(f"every survivor must have a reason in accepted_mutants.txt; {unexplained} have none")


def samples_of(asked, changed):
    """The mutants of each package, and of how many places; of changed lines so many in all."""
    samples = {}
    for package, files in files_of(PACKAGES).items():
        if package in (asked.packages or PACKAGES):
            within = [file for file in files if changed is None or file in changed]
            draw = random.Random(f"{asked.seed} {package}")
            samples[package] = mutation.sample_of(SOURCE, within, asked.sample, draw, changed)
    if changed is not None:
        drawn = [each["name"] for mutants, _ in samples.values() for each in mutants]
        kept = set(random.Random(asked.seed).sample(drawn, min(asked.sample, len(drawn))))
        samples = {name: ([e for e in mutants if e["name"] in kept], of) for name, (mutants, of) in samples.items()}
    return {package: sample for package, sample in samples.items() if sample[0]}


if __name__ == "__main__":
    main()
