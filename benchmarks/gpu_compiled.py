"""What Triton's compiler makes of the CUDA kernel, for GPUs that are not here: instructions, registers, bytes moved.

Run: `python benchmarks/gpu_compiled.py [--quick] [--out FILE]`. It needs no GPU. It fails if contiguous rows are not
read and written in accesses of 128 bits, and if a program for NVIDIA has 64 registers or more, or more local memory
than is known.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from math import prod
from pathlib import Path

import common

TARGETS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "sm_100": ("cuda", 100, 32), "gfx942": ("hip", 0, 64)}
DTYPES, SOURCES = ("float32", "bfloat16", "float16"), ("tables", "rows", "positions")
WIDTH, HEADS, MOST_REGISTERS = 128, (32, 8), 64
# In bytes. ptxas keeps two registers of interleaved float32 channels there on sm_80, and no others.
KNOWN_MEMORY = {("sm_80", "rows", "float32"): 8, ("sm_80", "positions", "float32"): 8}
# Batch and length: prefill, long prefill, and decoding.
SIZES = {"prefill": (1, 2048), "long": (1, 32_768), "decode": (8, 1)}
NOTES = (
    "Compiled by Triton for GPUs that were not there; nothing was run. Registers, and local memory in bytes, of each "
    "thread: the worst of q and k with half and interleaved pairs, in new memory and in place. Wide: all accesses to "
    "x are of 128 bits. gfx942 counts vector registers, of which a thread has 512."
)
BYTES_NOTE = (
    "What a launch reads and writes by its number of programs, as a multiple of q, k and their results: 1.0 is the "
    "least. A program loads angles once for up to 8 heads. Caches may serve a part of it."
)


def compiled_for(target):
    """Compile all variants for one target, in a process of its own: a row for each source and dtype."""
    os.environ["TRITON_INTERPRET"] = "0"
    import torch
    import triton
    from triton.backends.compiler import GPUTarget

    from rope_xp.arrays import exact_phases
    from rope_xp.kernels import triton as kernel
    from rope_xp.kernels import triton_kernel
    from rope_xp.kernels.reference import Rotation

    kind, arch, warp = TARGETS[target]
    compiled, rotate = [], triton_kernel.rotate

    class Driver:
        """Says that this target is the device."""

        get_current_target = staticmethod(lambda: GPUTarget(kind, arch or target, warp))
        get_current_device = staticmethod(lambda: 0)
        get_current_stream = staticmethod(lambda device: 0)

    class Compiling:
        """The kernel, which is compiled in place of being launched."""

        def __getitem__(self, grid):
            return lambda *args, **options: compiled.append(rotate.warmup(*args, grid=grid, **options))

    triton.runtime.driver.set_active(Driver())
    triton_kernel.rotate, kernel.WARP_SIZE = Compiling(), warp
    where, table = torch.empty(1, 1, 64, dtype=torch.int64), torch.empty(64, WIDTH // 2)
    angles = {"tables": (table[None, None],) * 2, "rows": (table, table, where), "positions": (where,)}
    by_positions = kernel.ByPositions(exact_phases.Frequencies((1.0,) * (WIDTH // 2)), 1.5)
    for dtype in DTYPES:
        xs = [torch.empty(1, heads, 64, WIDTH, dtype=getattr(torch, dtype)) for heads in HEADS]
        for source in SOURCES:
            compiled.clear()
            for layout in common.LAYOUTS:
                for inplace in (False, True):
                    rotate_all = by_positions.rotate_all if source == "positions" else kernel.rotate_all
                    rotate_all(xs, [angles[source]] * 2, Rotation(layout, layout), inplace)
            yield [source, dtype, *map(max, zip(*map(registers_and_memory, compiled))), all(map(is_wide, compiled))]


def registers_and_memory(program):
    """Registers, and bytes of local memory, of a compiled program."""
    if "amdgcn" in program.asm:
        text = program.asm["amdgcn"]
        fields = [re.search(rf"\.{name}:\s+(\d+)", text) for name in ("vgpr_count", "private_segment_fixed_size")]
        return [int(field[1]) for field in fields if field]
    from triton.backends import nvidia

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(program.asm["cubin"])
        tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
        usage = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    fields = [re.search(rf"{name}:(\d+)", usage.stdout) for name in ("REG", "STACK", "LOCAL")]
    registers, stack, local = [int(field[1]) for field in fields if field]
    return registers, stack + local


def is_wide(program):
    """Whether the widest loads and stores of a program have 128 bits: those of `x` and of the result."""
    if "amdgcn" in program.asm:
        return {"load", "store"} == set(re.findall(r"(?:global|buffer)_(load|store)_dwordx4", program.asm["amdgcn"]))
    return {"ld", "st"} == set(re.findall(r"(ld|st)\.global\S*\.v4\.b32", program.asm["ptx"]))


def bytes_moved(batch, seq, dtype, source):
    """The bytes that the programs of a launch read and write, as a multiple of those of q, k and their results."""
    import torch

    from rope_xp.kernels import triton as kernel
    from rope_xp.kernels.reference import Rotation

    xs = [torch.empty(batch, heads, seq, WIDTH, dtype=getattr(torch, dtype), device="meta") for heads in HEADS]
    table = torch.empty(batch, 1, seq, WIDTH // 2, device="meta")
    where = torch.empty(batch, 1, seq, dtype=torch.int64, device="meta")
    angles = {"tables": (table, table), "rows": (table[0, 0], table[0, 0], where), "positions": (where,)}[source]
    if source == "positions":
        words = torch.empty(2, WIDTH // 2, dtype=torch.int64, device="meta")
        angles = (words, words, *angles)
    program = kernel.prepare(xs, [angles] * 2, Rotation("half", "half"))
    rows = program.launches[0].options["ROWS"]
    of_arrays = 2 * sum(x.numel() * x.itemsize for x in xs)
    of_angles = rows * 2 * (WIDTH // 2) * 4 * (source != "positions") + rows * 8 * (source != "tables")
    return 1 + program.launches[0].grid[0] * of_angles / of_arrays, prod(program.launches[0].grid)


def main():
    parser = common.option_parser(__doc__)
    parser.add_argument("--target", choices=TARGETS, help="print the rows of one target as JSON")
    arguments = parser.parse_args()
    if arguments.target:
        print(json.dumps(list(compiled_for(arguments.target))))
        return
    rows, wrong = [], []
    for target in ("sm_90",) if arguments.quick else TARGETS:
        command = [sys.executable, __file__, "--target", target]
        for row in json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout):
            source, dtype, registers, memory, wide = row
            rows.append([target, *row[:-1], "yes" if wide else "no"])
            too_many = registers >= MOST_REGISTERS and target != "gfx942"
            if memory > KNOWN_MEMORY.get((target, source, dtype), 0) or not wide or too_many:
                wrong.append(rows[-1])
    headings = ("", "angles from", "dtype", "registers", "local memory", "wide")
    moved = [
        [name, source, dtype, f"{ratio:.2f}", programs]
        for name, size in SIZES.items()
        for source in SOURCES
        for dtype in ("float32", "bfloat16")
        for ratio, programs in [bytes_moved(*size, dtype, source)]
    ]
    tables = [
        common.Table("Programs", headings, rows),
        common.Table("Bytes moved", ("", "angles from", "dtype", "bytes", "programs"), moved, BYTES_NOTE),
    ]
    common.publish(arguments, "gpu-compiled", "The CUDA kernel, compiled", NOTES, ("torch", "triton"), tables)
    common.fail_if(wrong, "local memory, many registers or narrow accesses")


if __name__ == "__main__":
    main()
