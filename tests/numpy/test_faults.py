"""Faults planted in what surrounds rope_xp: broken installations, damaged files, busy machines.

Each runs in a process of its own, cold or warm. Calls must give the numbers of the reference, and say once why they
are slower.
"""

import shutil
import sys
from pathlib import Path

import pytest
from programs import PROGRAM, run

import rope_xp

pytestmark = pytest.mark.slow

# Two dtypes, twice each, and by description; then the number of warnings, and the first.
CALLS = """
import warnings

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    x16 = numbers.astype(np.float16)
    for _ in range(2):
        assert is_right()
        assert np.array_equal(apply_rotary_pos_emb(x16, sincos, layout="half"), halves)
from rope_xp import RotaryEmbedding
rope = RotaryEmbedding(head_dim=128, layout="half", base=1e4)
print(" ".join(rope.describe(x[0]).partition("kernel ")[2].split()))
try:
    print(RotaryEmbedding(head_dim=128, layout="half", base=1e4, kernel="numba")(x[0], seq_dim=0).shape)
except ValueError as error:
    print(error)
assert all(warning.category is RuntimeWarning for warning in caught), caught
print(len(caught), *[warning.message for warning in caught])
"""


def calls(tmp_path, prelude="", **environment):
    """What `describe` says of the kernel, what comes of asking for numba by name, and how many warnings say what."""
    lines = run(tmp_path, prelude + PROGRAM + CALLS, **environment).splitlines()
    return [line for line in lines if not line.startswith("rope_xp: compiling")][-3:]


# Numba's import and its compiler, broken: (before the import of rope_xp, environment, what the reason must be).
NO_COMPILER = """
import numba
def fail(*_, **__): raise RuntimeError('LLVM is gone')
numba.cfunc = lambda *_, **__: fail
"""
BROKEN = {
    "import raises SystemError": ("FAIL = SystemError('no core')", {}, "SystemError: no core"),
    "import raises ImportError": ("FAIL = ImportError('Numba needs NumPy 2.3')", {}, "Numba needs NumPy 2.3"),
    "a folder named numba": ("FAIL = None", {}, "cannot import name"),
    "told not to compile": ("", {"NUMBA_DISABLE_JIT": "1"}, "numba must be allowed to compile"),
    "a compiler that fails": (NO_COMPILER, {}, "RuntimeError: LLVM is gone"),
}
# Numba's import fails as FAIL says, after half of it has run; or there is a folder of its name.
PLANT = """
import importlib.abc, importlib.machinery, sys

class Plant(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name == "numba":
            return importlib.machinery.ModuleSpec(name, None if FAIL is None else self, is_package=True)

    def exec_module(self, module):
        sys.modules["numba.half"] = module
        raise FAIL

sys.meta_path.insert(0, Plant())
"""


@pytest.mark.parametrize("name", BROKEN)
def test_numba_that_is_broken_is_passed_over(name, tmp_path):
    prelude, environment, reason = BROKEN[name]
    if prelude.startswith("FAIL"):
        prelude += PLANT
    described, by_name, warned = calls(tmp_path, prelude, NUMBA_CACHE_DIR=str(tmp_path / "cache"), **environment)
    assert described.startswith("blocked (") and "; no numba: " in described and reason in described
    assert by_name.startswith("RotaryEmbedding: kernel='numba' must be usable here; got ") and reason in by_name
    assert warned.startswith("1 rope_xp: kernel='numba' is not used") and reason in warned


def test_broken_numba_is_told_where_only_tables_are_made(tmp_path):
    script = """
import warnings
from rope_xp import RotaryEmbedding

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    RotaryEmbedding(head_dim=4, layout="half", base=1e4).sincos(np.arange(3), like=x)
print(len(caught), *[warning.message for warning in caught])
"""
    *_, warned = run(tmp_path, NO_COMPILER + PROGRAM + script, NUMBA_CACHE_DIR=str(tmp_path / "cache")).splitlines()
    assert warned.startswith("1 rope_xp: kernel='numba' is not used") and warned.endswith("LLVM is gone")


def test_a_broken_import_is_told_once_and_leaves_no_module_of_ours_and_no_array(tmp_path):
    """To threads that are first at once."""
    script = """
import gc, sys, warnings, weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

sys.setswitchinterval(1e-6)
barrier = Barrier(8)
def work(_):
    barrier.wait(60)
    return is_right()

with warnings.catch_warnings(record=True) as caught, ThreadPoolExecutor(8) as pool:
    warnings.simplefilter("always")
    assert all(pool.map(work, range(8)))
assert "rope_xp.kernels.numba" not in sys.modules and "numba" not in sys.modules
x = np.ones((2, 4))
kept = weakref.ref(x)
apply_rotary_pos_emb(x, (np.ones((2, 2)), np.ones((2, 2))), layout="half")
del x
print(len(caught), kept() is None)
"""
    prelude = "FAIL = SystemError('half')" + PLANT
    assert run(tmp_path, prelude + PROGRAM + script).splitlines()[-1] == "1 True"


def test_numba_that_nobody_installed_is_no_reason_to_warn(tmp_path):
    described, by_name, warned = calls(tmp_path, "import sys; sys.modules['numba'] = None\n")
    assert described.startswith("blocked (") and "; no numba: " in described
    assert by_name.startswith("RotaryEmbedding: kernel='numba' must be installed; got ")
    assert warned == "0"


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A folder with what numba has compiled, made by a process without a fault."""
    folder = tmp_path_factory.mktemp("warm")
    described, by_name, warned = calls(folder, NUMBA_CACHE_DIR=str(folder / "cache"))
    assert described.startswith("numba (") and by_name == "(33, 128)" and warned == "0"
    return folder / "cache"


NO_FOLDER = "import numba.core.caching as c; c.CacheImpl._locator_classes = []\n"
FULL_DISK = """
import contextlib
import numba.core.caching as c
@contextlib.contextmanager
def full(self, path):
    raise OSError(28, "No space left on device")
    yield
c.IndexDataCacheFile._open_for_write = full
"""
# Before the import of numba, what is said, and which files of the cache are damaged, with their bytes then.
UNUSABLE = {
    "index cut": ("", "", ("*.nbi", lambda text: text[: len(text) // 2])),
    "index of other bytes": ("", "", ("*.nbi", lambda text: b"\x80\x04garbage" + bytes(range(256)))),
    "code empty": ("", "", ("*.nbc", lambda text: b"")),
    "no folder": (NO_FOLDER, "cannot cache function", None),
    "full disk": (FULL_DISK, "No space left", None),
}


@pytest.mark.long
@pytest.mark.parametrize("name", UNUSABLE)
def test_numba_compiles_in_each_process_whose_cache_cannot_be_used(name, warm, tmp_path):
    prelude, said, damage = UNUSABLE[name]
    cache = tmp_path / "cache"
    if damage is not None:
        pattern, change = damage
        shutil.copytree(warm, cache)
        files = [*cache.rglob(pattern)]
        assert files
        for file in files:
            file.write_bytes(change(file.read_bytes()))
    described, by_name, warned = calls(tmp_path, prelude, NUMBA_CACHE_DIR=str(cache))
    assert described.startswith("numba (") and by_name == "(33, 128)"
    assert warned.startswith("1 rope_xp: numba compiles in each process, because its cache in ")
    assert (said or str(cache)) in warned


@pytest.mark.long
def test_code_that_was_removed_is_compiled_anew_if_that_is_allowed(warm, tmp_path):
    shutil.copytree(warm, tmp_path / "cache")
    for file in (tmp_path / "cache").rglob("*.nbc"):
        file.unlink()
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert calls(tmp_path, **environment)[-1] == "0"
    assert calls(tmp_path, NUMBA_DISABLE_JIT="1", **environment)[-1].startswith("1 rope_xp: kernel='numba' is not used")


@pytest.mark.long
def test_a_change_in_another_file_is_compiled_anew(tmp_path):
    """Numba's cache alone would go on with the code of before."""
    package = shutil.copytree(Path(rope_xp.__file__).parent, tmp_path / "rope_xp")
    options = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}
    for difference, right in (("fsub", "True"), ("fadd", "False")):
        pairs = package / "kernels/numba_pairs.py"
        pairs.write_text(pairs.read_text().replace("builder.fsub", f"builder.{difference}"))
        assert run(tmp_path, PROGRAM + "print(is_right())", **options).splitlines()[-1] == right


PATIENCE = """
from rope_xp.kernels import numba_jobs

numba_jobs.PATIENCE = {}
"""
SLOW_DISK = """
import time
import numba.core.caching as c

load = c.IndexDataCacheFile.load
c.IndexDataCacheFile.load = lambda *arguments: time.sleep(0.5) or load(*arguments)
"""


@pytest.mark.long
@pytest.mark.parametrize("patience, lines", [(0.01, 1), (600.0, 0)])
def test_who_waits_for_the_compiler_is_told_once(patience, lines, tmp_path):
    """And never again: the second process finds all on disk, and says nothing even if the disk is slow."""
    script = PATIENCE.format(patience) + PROGRAM + "assert is_right() and is_right()"
    told = [line for line in run(tmp_path, script, NUMBA_CACHE_DIR=str(tmp_path / "cache")).splitlines() if line]
    parts = ("the rotation of float32", "the rotation")
    assert told == [f"rope_xp: compiling {part}, once; numba then keeps it on disk" for part in parts] * lines
    script = SLOW_DISK + PATIENCE.format(0.01) + PROGRAM + "assert is_right()"
    assert run(tmp_path, script, NUMBA_CACHE_DIR=str(tmp_path / "cache")) == ""


# Frameworks that are none.

EVERYTHING = """
from rope_xp import RotaryEmbedding, positions

rope = RotaryEmbedding(head_dim=128, layout="half", base=1e4)
q = rope(x, seq_dim=0)
assert np.array_equal(q, rope.rotate(x, rope.sincos(np.arange(257), like=x), seq_dim=0))
rope.rotate_inplace(x.copy(), sincos=rope.sincos(np.arange(257), like=x), seq_dim=0)
rope.shift(x, 3, seq_dim=0)
rope.describe(x)
positions.consecutive(3, like=x)
print(is_right())
"""
NO_FRAMEWORK = {
    "a folder": """
import sys
everywhere, sys.path[:] = sys.path[:], [FOLDER]
import torch, jax
sys.path[:] = everywhere
assert torch.__file__ is None
""",
    "a stub": """
import sys, types
for name in ("torch", "jax", "torch.distributed", "torch.distributed.tensor"):
    sys.modules[name] = types.ModuleType(name)
""",
    "nothing": "import sys; sys.modules['torch'] = sys.modules['jax'] = None\n",
}


@pytest.mark.parametrize("name", NO_FRAMEWORK)
def test_numpy_where_torch_and_jax_are_no_frameworks(name, tmp_path):
    folder = tmp_path / "folder"
    for framework in ("torch", "jax"):
        (folder / framework).mkdir(parents=True)
    prelude = f"FOLDER = {str(folder)!r}\n" + NO_FRAMEWORK[name]
    assert run(tmp_path, prelude + PROGRAM + EVERYTHING).splitlines()[-1] == "True"


# A framework stands in `sys.modules` from the first line of its import on.
HALF_IMPORTED = """
import sys, threading

begun, end = threading.Event(), threading.Event()
sys.path.insert(0, FOLDER)
import half
half.begun, half.end = begun, end
thread = threading.Thread(target=__import__, args=(NAME,))
thread.start()
assert begun.wait(60)
"""
AFTERWARDS = """
end.set()
thread.join()
assert hasattr(sys.modules[NAME], "Tensor")
print(is_right())
"""


@pytest.mark.long
@pytest.mark.parametrize("framework", ["torch", "jax", "torch.distributed.tensor"])
def test_numpy_while_another_thread_imports_a_framework(framework, tmp_path):
    folder = tmp_path / "folder"
    *parents, last = framework.split(".")
    folder.mkdir()
    (folder / "half.py").write_text("")
    package = folder.joinpath(*parents)
    package.mkdir(parents=True, exist_ok=True)
    for parent in range(len(parents)):
        folder.joinpath(*parents[: parent + 1], "__init__.py").write_text("")
    (package / f"{last}.py").write_text("import half\nhalf.begun.set()\nassert half.end.wait(60)\nclass Tensor: pass\n")
    prelude = f"FOLDER, NAME = {str(folder)!r}, {framework!r}\n" + HALF_IMPORTED
    assert run(tmp_path, prelude + PROGRAM + EVERYTHING + AFTERWARDS).splitlines()[-2:] == ["True", "True"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere numba may have no pool of OpenMP")
def test_openmp_is_there(tmp_path):
    """What `test_threads.py` replaces."""
    script = """
from rope_xp.arrays import threads

regions = []
real = threads._openmp
threads._openmp = lambda of_torch: regions.append(real(of_torch)) or regions[-1]
threads._is_worker = lambda: False
for _ in range(20):
    threads._pause.end = 0.0
    assert is_right()
print(len(regions), None in regions)
"""
    assert run(tmp_path, PROGRAM + script, NUMBA_NUM_THREADS="2").splitlines()[-1] == "20 False"
