"""Time per number at every width of a head and every rotated share, as a multiple of that of 128 channels.

Run: `python benchmarks/widths.py [--quick] [--out FILE]`. PyTorch on the CPU, in place, with given tables.
"""

import itertools

import common
import torch
from speed import shortest
from speed_cases import Workload

from rope_xp import RotaryEmbedding

WIDTHS, SHARES, DTYPES = range(32, 257, 16), (1.0, 0.75, 0.5, 0.25), ("float32", "bfloat16", "float16")
NUMBERS = 2**20  # of each array, so that it stays in the cache
NOTES = (
    "Shortest times of calls that alternate within one run. Each cell is the time per number of x of the worst width, "
    "and that width, in steps of 16 channels. The goal from 64 channels on is at most 1.3. In shorter rows, the first "
    "instructions of a row take longer than its numbers."
)


def case(width, share, dtype, layout):
    """A call that rotates a share of the channels of an array in place, and its count of numbers."""
    x = torch.ones(1, 8, NUMBERS // 8 // width, width, dtype=getattr(torch, dtype))
    rope = RotaryEmbedding(head_dim=width, layout=layout, base=common.BASE, rotary_dim=int(width * share))
    sincos = rope.sincos(torch.arange(x.shape[2]), like=x)
    return lambda: rope.rotate_inplace(x, sincos=sincos, seq_dim=2), x.numel()


def rows_of(dtype, layout, quick):
    """The worst width of each share from 64 channels on, and below: as a multiple of 128 whole channels."""
    kinds = [(width, share) for width, share in itertools.product(WIDTHS, SHARES) if width * share % 2 == 0]
    kinds = [kind for kind in kinds if not quick or kind[0] in (32, 80, 128)]
    cases = {kind: case(*kind, dtype, layout) for kind in kinds}
    workload = Workload(1, (8, 8), 0, rounds=1 if quick else 25, seconds=0.0, repeat_seconds=0.001)
    times = shortest(workload, {kind: call for kind, (call, _) in cases.items()})
    per_number = {kind: times[kind] / count for kind, (_, count) in cases.items()}
    for is_wide in (True, False):
        cells = []
        for share in SHARES:
            chosen = [kind for kind in kinds if kind[1] == share and (kind[0] >= 64) == is_wide]
            worst, width = max((per_number[kind] / per_number[128, 1.0], kind[0]) for kind in chosen)
            cells.append(f"{worst:.2f} ({width})")
        yield [f"{dtype}, {layout}", *cells]


def main():
    arguments = common.option_parser(__doc__).parse_args()
    kinds = itertools.product(DTYPES, common.LAYOUTS)
    wide, narrow = zip(*[rows_of(*kind, arguments.quick) for kind in kinds])
    headings = ("", *(f"{share:.0%} rotated" for share in SHARES))
    tables = [
        common.Table("64 to 256 channels", headings, list(wide)),
        common.Table("32 and 48 channels", headings, list(narrow)),
    ]
    common.publish(arguments, "widths", "Every width", NOTES, ("torch", "numba", "numpy"), tables)


if __name__ == "__main__":
    main()
