"""Python programs that tests run in processes of their own."""

import os
import signal
import subprocess
import sys

import pytest

# x is large enough for several threads; what is right is known before any of them is there.
PROGRAM = """
import numpy as np
from rope_xp import apply_rotary_pos_emb

numbers = np.random.default_rng(0).standard_normal((257, 33, 128)).astype(np.float32)
angles = np.random.default_rng(1).standard_normal((257, 64)).astype(np.float32)
sincos = np.sin(angles), np.cos(angles)
truth = apply_rotary_pos_emb(numbers, sincos, layout="half", kernel="reference")
halves = apply_rotary_pos_emb(numbers.astype(np.float16), sincos, layout="half", kernel="reference")
x = numbers

def is_right(_=None, kernel="fastest"):
    return np.array_equal(apply_rotary_pos_emb(x, sincos, layout="half", kernel=kernel), truth)
"""

# Compiles the first call of a process, with the kernel and on the device that are its arguments.
COMPILED_FIRST = """
import sys
import torch
from rope_xp import RotaryEmbedding
rope = RotaryEmbedding(head_dim=14, layout="half", base=1e4, kernel=sys.argv[1])
x = torch.ones(5, 3, 14, device=sys.argv[2])
compiled = torch.compile(lambda x: rope(x, seq_dim=0), fullgraph=True, backend="eager")
assert torch.allclose(compiled(x), rope(x, seq_dim=0), rtol=0, atol=1e-6)
"""


def run(tmp_path, script, *arguments, timeout=120, **environment):
    """What a Python program prints; if it hangs, it fails, and nothing of it stays."""
    file = tmp_path / "program.py"
    file.write_text(script)
    known = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment}
    program = subprocess.Popen(
        [sys.executable, file, *arguments],
        env=known,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = program.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)
        pytest.fail(f"hangs after {program.communicate()[0]}")
    assert program.returncode == 0, printed
    return printed
