"""Folders show what runs where: `pytest --xp=jax` runs `tests/core` and `tests/jax`, and fails where JAX is missing.

`tests/core` is for every array library. Each other folder is run by the name of the folder: `--xp=parity`, or
`pytest tests/parity`.
"""

import importlib.util
import io
import os
from inspect import signature
from pathlib import Path

import libraries
import pytest
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test needs the hub, and some configs of transformers ask it
# An example has no deadline: on a busy machine, any would be missed.
settings.register_profile("usual", deadline=None)
settings.load_profile("usual")
# `--hypothesis-profile=brief` draws fewer examples, for the default sessions: the same in each run. `more-all` draws
# new ones.
settings.register_profile("brief", max_examples=15, derandomize=True)

TESTS = Path(__file__).parent
FOLDERS = {file.parent.name for file in TESTS.glob("*/test_*.py")} - {"core"}


def pytest_addoption(parser):
    parser.addoption(
        "--xp",
        action="append",
        choices=sorted({*libraries.LIBRARIES, *FOLDERS}),
        help="array library or folder to test, may be repeated; by default the folders named, or all libraries found",
    )

    parser.addoption("--gpu", action="store_true", help="PyTorch's arrays are on a GPU")


def pytest_configure(config):
    paths = [Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args]
    config.libraries = (
        config.getoption("--xp")
        or sorted(FOLDERS & set(map(_folder, paths)))
        or [name for name, each in libraries.LIBRARIES.items() if importlib.util.find_spec(each.module.split(".")[0])]
    )
    for name in libraries.LIBRARIES.keys() & set(config.libraries):
        try:
            importlib.import_module(libraries.LIBRARIES[name].module)
        except ImportError as missing:
            raise pytest.UsageError(f"--xp={name}: {missing}") from missing
    if "jax" in config.libraries:  # where axes that are added in silence are an error, as in careful programs
        importlib.import_module("jax").config.update("jax_numpy_rank_promotion", "raise")
    if "triton" in config.libraries:
        try:
            _import_triton()
        except ImportError as missing:
            raise pytest.UsageError(f"--xp=triton: {missing}") from missing


def _folder(path):
    """The folder of `tests` that a path is in, or its own name; None outside."""
    path = path.resolve()
    return path.relative_to(TESTS).parts[0] if TESTS in path.parents else None


def _import_triton():
    """The kernel, to be interpreted where there is no GPU; but no other kernel of this process."""
    import torch
    from triton import knobs

    with knobs.runtime.scope():
        knobs.runtime.interpret = not torch.cuda.is_available()
        importlib.import_module("rope_xp.kernels.triton")
    settings.register_profile("interpreted", max_examples=4)
    settings.load_profile("interpreted")


def pytest_report_header(config):
    return f"libraries: {', '.join(config.libraries)}"


def pytest_ignore_collect(collection_path, config):
    folder = _folder(collection_path)
    names = {*libraries.LIBRARIES, "triton"} if folder == "core" else {folder} if folder in FOLDERS else None
    return True if names is not None and names.isdisjoint(config.libraries) else None


def pytest_collection_modifyitems(config, items):
    """In `core`, tests without `xp` run with NumPy only, and tests without `kernel` not with Triton alone.

    Cases that the marker `where` excludes, such as a dtype that a library lacks, are not made.
    Tests that take long come first, so that at the end no process of several waits for another.
    """
    items.sort(key=lambda item: not any(item.get_closest_marker(name) for name in ("compile", "slow")))
    if "numpy" not in config.libraries:
        fixture = "kernel" if libraries.LIBRARIES.keys().isdisjoint(config.libraries) else "xp"
        others = [item for item in items if _folder(item.path) == "core" and fixture not in item.fixturenames]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]
    items[:] = filter(_exists, items)


def _exists(item):
    """Whether the parameters of a case meet the condition of its test."""
    condition = next((marker.args[0] for marker in item.iter_markers("where")), lambda: True)
    return condition(**{name: item.callspec.params[name] for name in signature(condition).parameters})


def pytest_generate_tests(metafunc):
    """Each library for tests that take `xp`, and each of its kernels for those that take `kernel` besides."""
    tested = [libraries.LIBRARIES[name] for name in metafunc.config.libraries if name in libraries.LIBRARIES]
    tested = list(map(libraries.on_gpu, tested)) if metafunc.config.getoption("--gpu") else tested
    if "kernel" in metafunc.fixturenames:
        if "triton" in metafunc.config.libraries:
            tested.append(libraries.triton())
        pairs = [(library, kernel) for library in tested for kernel in library.kernels]
        metafunc.parametrize("xp, kernel", pairs, ids=[f"{library.name}-{kernel}" for library, kernel in pairs])
    elif "xp" in metafunc.fixturenames:
        metafunc.parametrize("xp", tested, ids=[library.name for library in tested], scope="session")


@pytest.fixture
def counted(monkeypatch):
    """Counts the bytes that readers of headers take from files, as `total`."""
    from rope_xp.configs.readers import files

    class Counted(io.FileIO):
        total = 0

        def readinto(self, buffer):
            count = super().readinto(buffer)
            Counted.total += count
            return count

    monkeypatch.setattr(files, "open", lambda path, mode: io.BufferedReader(Counted(path), 512), raising=False)
    return Counted


@pytest.fixture
def in_blocks(monkeypatch):
    """The kernel "blocked" rotates small arrays like large ones."""
    from rope_xp.arrays import signature
    from rope_xp.kernels import blocked

    monkeypatch.setattr(blocked, "FEW", 0)
    signature.forget_plans()
    yield
    signature.forget_plans()


@pytest.fixture(scope="module")
def one_thread():
    """One thread of PyTorch, for thousands of small products, for which more threads only wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def one_process(tmp_path):
    """A group of processes of PyTorch that is this one alone."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
