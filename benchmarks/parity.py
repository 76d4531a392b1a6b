"""Comparison of every rotary class of transformers with `rope_xp.from_config` of the same config.

Run: `python benchmarks/parity.py [--quick] [--only NAME]`. It finds every class of `transformers.models`
with a rotary name, and creates it with the default config and with changed ones. It compares the tables, and queries
and keys that the model's own apply function rotates. If layers differ, it also compares each layer of small models.
Then it reads every part of every composite config. It prints a summary and writes
benchmarks/results/coverage-VERSION.md. It fails if rope_xp differs from transformers and this is not a known deviation.
New classes of a newer transformers are listed.
"""

import argparse
import json
import logging
import sys
import warnings
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # `python -P` does not add this folder
import torch
from rotary_classes import report
from rotary_classes.measure import measure
from rotary_classes.parts import composites, parts

RESULTS = Path(__file__).parent / "results"


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the default config and two changed ones of each class")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a class, or a folder of models")
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    arguments = parser.parse_args(argv)
    quick, only = arguments.quick, arguments.only
    minor = version("transformers").rpartition(".")[0]
    out = arguments.out or RESULTS / ("quick" if quick else "") / f"coverage-{minor}.md"
    warnings.simplefilter("ignore")  # transformers warns about unusual configs
    logging.disable(logging.CRITICAL)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # thousands of small products: threads only wait for each other

    results = list(measure(quick, only))
    if only and not results:
        parser.error(f"--only must name a class, or a folder of models; got {only}")
    part_rows = [] if only else [row for each in composites() for row in parts(*each)]
    print(*(report.in_detail(results) if only else ()), *report.summary(results, part_rows), sep="\n")
    if not only:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(report.markdown(results, part_rows, quick))
    if wrong := report.mistakes(results, part_rows, not (quick or only)):
        sys.exit(f"{len(wrong)} classes disagree: {json.dumps(wrong, indent=1)}")


if __name__ == "__main__":
    main()
