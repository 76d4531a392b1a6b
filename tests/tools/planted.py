"""Random programs with planted mistakes: how often what `compare` and `identify` say of them is false.

Run: `python tests/tools/planted.py --cases 2000 --seed 0`. Each false result is printed with the program that it is
about, and the exit code is then 1.
"""

import argparse
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from judge import case_of, judge
from mistakes import KINDS

FALSE = ("same", "differs", "cause", "value", "error")


def tried(seed, number):
    """The figures of one case, and what is false."""
    case = case_of(seed, number)
    try:
        verdict = judge(case)
    except Exception as error:
        return Counter({"cases": 1, "false: error": 1}), (f"error: {error!r:.300}; {case}",)
    return verdict.figures(case), verdict.false


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=min(os.cpu_count() or 1, 4))
    options = parser.parse_args()
    figures = Counter()
    with ProcessPoolExecutor(options.processes) as pool:
        for found, false in pool.map(partial(tried, options.seed), range(options.cases), chunksize=10):
            figures.update(found)
            print(*false, sep="\n", end="\n" * bool(false), flush=True)
    print(f"seed: {options.seed}", f"kinds: {len(KINDS)}", sep="\n")
    for name in (*figures, *(f"false: {each}" for each in FALSE if f"false: {each}" not in figures)):
        print(f"{name}: {figures[name]:,}")
    return int(any(figures[f"false: {each}"] for each in FALSE))


if __name__ == "__main__":
    sys.exit(main())
