"""Plant the mistakes that RoPE implementations make, one at a time, and see that the suite notices each.

Run: `python tests/tools/mutants.py`, with names to test only these. A mutant is tested as `mutation.py` says, by no
other files of tests than mutants.txt names for its module, on NumPy and on array-api-strict, whose arrays can also be
learned frequencies.
"""

import argparse
import random
import sys
from collections import defaultdict
from pathlib import Path

import mutation
from generated_mutants import SOURCE
from mutant_lists import MUTANTS, TESTS_OF, texts_with


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to test; by default all")
    parser.add_argument("--sample", type=int, help="test only so many of them, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=mutation.FOLDER, help="for what is measured")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(MUTANTS):
        parser.error(f"NAME must be in mutants.txt; got {', '.join(sorted(unknown))}")
    names = asked.names or list(MUTANTS)
    mutants = [{"name": name, "texts": texts_with(name, MUTANTS[name], SOURCE)} for name in names]
    if asked.sample is not None:
        mutants = random.Random(asked.seed).sample(mutants, min(asked.sample, len(mutants)))
    bench, mutants_of = mutation.Bench(SOURCE, asked.folder), defaultdict(list)
    for mutant in mutants:
        mutants_of[frozenset(mutation.TESTS / test for file in mutant["texts"] for test in TESTS_OF[file])].append(
            mutant
        )
    files = {file for mutant in mutants for file in mutant["texts"]}
    bench.measure(sorted(frozenset.union(*mutants_of)), files)  # several at a time; what is measured is kept
    results = []
    for tests, some in mutants_of.items():
        results += bench.test(some, bench.measure(sorted(tests), files), budget=300.0)
    unnoticed = [each["name"] for each in results if each["outcome"] == "survived"]
    if unnoticed:
        sys.exit(f"{len(unnoticed)} of {len(mutants)} mutants went unnoticed: {', '.join(unnoticed)}")


if __name__ == "__main__":
    main()
