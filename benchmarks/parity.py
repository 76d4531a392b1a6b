"""Comparison of every rotary class of transformers with `rope_xp.from_config` of the same config.

Run: `python benchmarks/parity.py [--quick] [--only NAME]`. It finds every class of `transformers.models`
with a rotary name, and creates it with the default config and with changed ones. It compares the tables, and queries
and keys that the model's own apply function rotates. If layers differ, it also compares each layer of small models.
Then it reads every part of every composite config. It prints a summary and writes
benchmarks/results/coverage-VERSION.md. It fails if rope_xp differs from transformers and this is not a known deviation.
New classes of a newer transformers are listed.
"""

import logging
import warnings
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version

import common
import torch
from rotary_classes import report
from rotary_classes.outcomes import measure
from rotary_classes.parts import composites, parts


def main(argv=None):
    parser = common.option_parser(__doc__, only="a class, or a folder of models")
    arguments = parser.parse_args(argv)
    quick, only = arguments.quick, arguments.only
    _prepare()
    with ProcessPoolExecutor(initializer=_prepare) as pool:
        results = list(measure(quick, only, pool.map))
        part_rows = [] if only else [row for rows in pool.map(_part_rows, composites()) for row in rows]
    if only and not results:
        parser.error(f"--only must name a class, or a folder of models; got {only}")
    name, tables = version("transformers"), list(report.tables(results, part_rows))
    title, made_with = f"Rotary classes of transformers {name}", common.run_facts("torch")
    print(*(report.in_detail(results) if only else ()), common.markdown(title, "", {}, tables[:2]), sep="\n")
    if not only:
        common.write(arguments, f"coverage-{name.rpartition('.')[0]}", title, report.NOTES, made_with, tables)
    wrong = report.mistakes(results, part_rows, not (quick or only))
    common.fail_if(wrong, f"{len(wrong)} classes disagree")


def _part_rows(composite):
    return list(parts(*composite))


def _prepare():
    """Prepare a process."""
    warnings.simplefilter("ignore")  # transformers warns about unusual configs
    logging.disable(logging.CRITICAL)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # thousands of small products: threads only wait for each other


if __name__ == "__main__":
    main()
