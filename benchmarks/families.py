"""Whole models of transformers, patched by rope_xp and not patched.

Run: `python benchmarks/families.py [--quick] [--only NAME] [--out FILE]`. Each family is a tiny model with random
weights. It compares logits, gradients, a greedy `generate` with its cache, a row that is padded at the left with the
same row alone, and the files of `save_pretrained`. It measures the error of `.to(bfloat16)` against float64, without
and with rope_xp. Then it times the attention of Llama 3 8B. It prints tables and writes
benchmarks/results/families.md. It fails if a patched family is not equal.
"""

import sys
import warnings
from statistics import median

import common
import torch
import transformers
from tiny_models.compare import PROMPTS, measure
from tiny_models.models import FAMILIES, build
from tiny_models.patchable import classes
from tiny_models.timing import speeds

HEADINGS = ("family", "logits", "generate", "padded", "grads", "saved", *(f"bf16, {name}" for name in PROMPTS))
NOTES = (
    "Tiny models of transformers on the CPU, patched and not patched. logits: the largest difference, float32, of "
    "logits of order 1. generate: 12 greedy tokens with the cache, for two prompts, also with one of them padded at "
    "the left. padded: difference between a row padded at the left and the same row alone. grads: relative to the "
    "largest gradient. saved: every byte that `save_pretrained` writes. bf16: the error of bfloat16 "
    "logits with rope_xp, divided by the error without it. The truth is the same model, with the same weights, in "
    "float64. short: 9 tokens in a row, from 0 and from 4000 on; long: 512 tokens in a row; far: 9 tokens at a "
    "distance of 400."
)


def columns(row):
    ratios = {name: f"{each['with'] / each['without']:.2f}" for name, each in row.bfloat16.items()}
    equal = {None: "-", True: "equal", False: "differs"}
    pads = "-" if row.padded is None else f"{row.padded:.0e}"
    errors = [f"{row.logits:.0e}", equal[row.generation], pads, f"{row.gradients:.0e}", equal[row.saved]]
    return [row.family, *errors, *(ratios.get(name, "-") for name in PROMPTS)]


def error_ratios(rows, name):
    """The ratios of bfloat16 errors with and without rope_xp."""
    return [each["with"] / each["without"] for each in (row.bfloat16.get(name) for row in rows) if each]


def summary(rows, reasons):
    lines = [f"{sum(row.is_equal for row in rows)} of {len(rows)} families are equal."]
    for name in PROMPTS:
        if ratios := error_ratios(rows, name):
            closer = f"{sum(ratio < 1 for ratio in ratios)} of {len(ratios)} are closer to float64 with rope_xp"
            lines.append(f"In bfloat16, {name}: {closer}; the median error is {median(ratios):.2f} times that without.")
    return [*lines, f"{sum(not why for why in reasons.values())} of {len(reasons)} rotary classes can be patched."]


def write(arguments, rows, reasons, times):
    """Print and write the tables."""
    refused = [[name, why] for name, why in reasons.items() if why]
    least = [[key, *(f"{ms:.2f}" for side in each.values() for ms in side.values())] for key, each in times.items()]
    tables = [
        common.Table("Families", HEADINGS, [columns(row) for row in rows], " ".join(summary(rows, reasons))),
        common.Table("Milliseconds", ("", "without, least", "median", "with, least", "median"), least),
        common.Table("Rotary classes that cannot be patched", ("class", "reason"), refused),
    ]
    common.publish(arguments, "families", "Whole models", NOTES, ("transformers", "torch"), tables)


def main(argv=None):
    arguments = common.option_parser(__doc__, only="a family").parse_args(argv)
    warnings.simplefilter("ignore")  # transformers warns about unusual configs
    transformers.utils.logging.disable_progress_bar()
    names = arguments.only or list(FAMILIES)[:: 8 if arguments.quick else 1]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # thousands of small products: threads only wait for each other
    rows, reasons = [], {}
    for name in names:
        print(name, file=sys.stderr)
        try:
            model = build(FAMILIES[name])
        except (ImportError, AttributeError) as error:  # it is not in this transformers, or a package is missing
            reasons[name] = f"cannot be created: {error}"
            continue
        rows.append(measure(name, model, 1 if arguments.quick else 6))
    if arguments.only:
        print(*map(columns, rows), *reasons.items(), sep="\n")
    else:
        reasons |= classes(20 if arguments.quick else 1)
        torch.set_num_threads(threads)
        write(arguments, rows, reasons, speeds(arguments.quick))
    common.fail_if([row.family for row in rows if not row.is_equal], "not equal")
    checked = () if arguments.only else ("long", "far")  # ratios of single families vary too much
    far = [name for name in checked if median(error_ratios(rows, name) or [0.0]) >= 1]
    common.fail_if(far, "no closer to float64 in bfloat16")


if __name__ == "__main__":
    main()
