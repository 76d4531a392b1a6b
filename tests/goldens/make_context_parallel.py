"""Write context_parallel.json: which tokens of packed sequences each rank has in TransformerEngine, at which positions.

Run: `python tests/goldens/make_context_parallel.py TRANSFORMER_ENGINE`, with a checkout of its sources and a C++
compiler. Two of its CUDA kernels are compiled for the processor, with one thread to a block, and its functions of
Python run as they are: the tokens that they choose must be the same. Lengths are before padding.
"""

import ast
import ctypes
import re
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from configs import record

PACKAGE = Path("transformer_engine")
TOKENS = PACKAGE / "common/fused_attn/context_parallel.cu"
ROTATION = PACKAGE / "common/fused_rope/fused_rope.cu"
BATCHES = PACKAGE / "pytorch/attention/dot_product_attention/context_parallel.py"
# Lengths of packed sequences by the number of ranks.
CASES = {
    2: [[8], [8, 4], [5, 11, 1], [4, 4, 4, 4, 4]],
    3: [[12, 24, 6], [1, 13, 7]],
    4: [[8, 64, 16], [3, 30, 9, 17]],
    8: [[16, 48], [100, 1, 33]],
}

# A block is one thread, and shared memory is global. Sines and cosines give the angle itself.
SHIM = """
#include <assert.h>
#define __global__
#define __device__
#define __forceinline__
#define __shared__
#define __syncthreads()
#define sincosf(angle, sine, cosine) (*(sine) = 0, *(cosine) = (angle))
struct Index { int x, y; } blockIdx{0, 0}, threadIdx{0, 0}, blockDim{1, 1}, gridDim{1, 1};
int cu_seqlens_s[1000];
float shared_mem_cos_sin[4];
"""
CALLS = """
extern "C" void indices_of(int *output, int *ends, int sequences, int total, int size, int rank) {
  thd_partition_indices_kernel(output, ends, sequences, total, size, rank);
}
extern "C" void positions_of(float *ones, int *ends, float *angles, float *output, int sequences, int longest,
                             int size, int rank) {
  for (blockIdx.y = 0; blockIdx.y < sequences; blockIdx.y++)
    for (blockIdx.x = 0; blockIdx.x < longest; blockIdx.x++)
      fused_rope_forward_kernel<float>(ones, ends, angles, nullptr, output, false, size, rank, 0, 1, 2, 2, 2, 0, 2, 1,
                                       2, 0, 2, 1);
  blockIdx = {0, 0};
}
"""


def between(text, first, last):
    """The lines from the one that begins with `first` up to the one that begins with `last`."""
    found = re.search(rf"^{re.escape(first)}.*?(?=^{re.escape(last)})", text, re.S | re.M)
    if found is None:
        raise ValueError(f"no text from {first!r} to {last!r}")
    return found[0]


def kernels(source):
    """The library of both kernels."""
    text = between((source / TOKENS).read_text(), "__forceinline__ __device__ int binary_search", "/**")
    text += between((source / TOKENS).read_text(), "__global__ void thd_partition_indices_kernel", "/**")
    rotation = (source / ROTATION).read_text()
    text += between(rotation, "template <typename scalar_t>\n__device__ void fused_rope_block_forward", "template")
    text += between(rotation, "template <typename scalar_t>\n__global__ void fused_rope_forward_kernel", "template")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernels.cpp"
        file.write_text(SHIM + text + CALLS)
        library = file.with_suffix(".so")
        subprocess.run(["c++", "-shared", "-fPIC", "-w", "-o", library, file], check=True)
        return ctypes.CDLL(library)


def functions(source):
    """The functions of Python by name."""
    tree = ast.parse((source / BATCHES).read_text())
    names = ("pad_thd_sequences_for_cp", "generate_positional_ids_for_cp", "get_batch_on_this_cp_rank")
    tree.body = [each for each in tree.body if getattr(each, "name", None) in names]
    found = {"torch": torch, "Tuple": tuple}
    exec(compile(tree, str(BATCHES), "exec"), found)
    return [found[name] for name in names]


def by_kernels(library, ends, size, rank):
    total = ends[-1]
    numbers = (ctypes.c_int * len(ends))(*ends)
    indices = (ctypes.c_int * (total // size))()
    library.indices_of(indices, numbers, len(ends) - 1, total, size, rank)
    ones, output = ((ctypes.c_float * (2 * total))(*[1.0] * (2 * total)) for _ in range(2))
    angles = (ctypes.c_float * (2 * total))(*[position for position in range(total) for _ in range(2)])
    longest = max(end - start for start, end in pairwise(ends))
    library.positions_of(ones, numbers, angles, output, len(ends) - 1, longest, size, rank)
    return list(indices), [int(angle) for angle in output[: 2 * total // size : 2]]


def row_of(pad, number, split, library, size, lengths):
    ends, tokens = torch.tensor([0, *lengths]).cumsum(0), torch.arange(sum(lengths))
    padded, labels, boundaries = pad(tokens, tokens, ends, 2 * size)
    row, positions = torch.arange(len(padded)), number(ends, 2 * size)
    parts = []
    for rank in range(size):
        group = {"get_rank": lambda group, rank=rank: rank, "get_world_size": lambda group: size}
        with patch.multiple(torch.distributed, **group):
            indices, _, where = split(boundaries, row, labels, positions)
        found = indices.tolist(), where.tolist()
        if found != by_kernels(library, boundaries.tolist(), size, rank):
            raise ValueError(f"the kernels and the functions differ: {size=}, {lengths=}, {rank=}")
        parts.append(dict(zip(("indices", "positions"), found)))
    return {"size": size, "lengths": lengths, "cu_seqlens": boundaries.tolist(), "ranks": parts}


def main(source):
    library = kernels(source)
    rows = [row_of(*functions(source), library, size, each) for size, cases in CASES.items() for each in cases]
    version = (source / "build_tools/VERSION.txt").read_text().strip()
    record("context_parallel", {"transformer_engine": version, "cases": rows})
    print(f"TransformerEngine {version}: {len(rows)} cases")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
