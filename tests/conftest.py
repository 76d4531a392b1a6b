"""One suite for every array library: `pytest --xp=jax` runs it on JAX, and fails where JAX is missing.

Other names choose files: those that compare with packages of models (parity, timm), of whole models (huggingface), of
exporters and what runs their programs (export), of many devices (distributed), of examples, and of the kernel for CUDA
(triton), which is then that of the suite.
"""

import importlib.util

import libraries
import pytest
from hypothesis import settings

# Files that test some libraries only; the others take the `xp` fixture, or need no more than NumPy.
FILES_OF = {
    "test_jax.py": {"jax"},
    "test_faults.py": {"numpy"},
    "test_faults_triton.py": {"triton"},
    "test_peers_jax.py": {"jax"},
    "test_jax_speed.py": {"jax"},
    "test_torch.py": {"torch"},
    "test_refusals_torch.py": {"torch"},
    "test_kernels_torch.py": {"torch"},
    "test_modules_torch.py": {"torch"},
    "test_modules_flax.py": {"jax"},
    "test_export.py": {"export"},
    "test_triton.py": {"triton"},
    "test_peers_torch.py": {"torch"},
    "test_peers_grids.py": {"parity"},
    "test_peers_multimodal.py": {"parity"},
    "test_peers_axes.py": {"parity"},
    "test_parity.py": {"parity"},
    "test_peers_timm.py": {"timm"},
    "test_peers_mlx.py": {"mlx"},
    "test_peers_weights.py": {"parity"},
    "test_weights_jax.py": {"jax"},
    "test_mlx.py": {"mlx"},
    "test_distributed.py": {"distributed"},
    "test_examples.py": {"examples"},
    "test_huggingface.py": {"huggingface"},
    "test_huggingface_states.py": {"huggingface"},
    "test_readme.py": {"numpy", "jax", "torch"},
}


def pytest_addoption(parser):
    parser.addoption(
        "--xp",
        action="append",
        choices=sorted({*libraries.LIBRARIES, *set().union(*FILES_OF.values())}),
        help="library to test, may be repeated, or a set of files; by default the libraries that are installed",
    )


def pytest_configure(config):
    config.libraries = config.getoption("--xp") or [
        name for name, library in libraries.LIBRARIES.items() if importlib.util.find_spec(library.module.split(".")[0])
    ]
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


def _import_triton():
    """The kernel, to be interpreted where there is no GPU; but no other kernel of this process."""
    import torch
    from triton import knobs

    with knobs.runtime.scope():
        knobs.runtime.interpret = not torch.cuda.is_available()
        importlib.import_module("rope_xp._core.kernels.cuda")
    settings.register_profile("interpreted", max_examples=4)
    settings.load_profile("interpreted")


def pytest_report_header(config):
    return f"libraries: {', '.join(config.libraries)}"


def pytest_ignore_collect(collection_path, config):
    theirs = FILES_OF.get(collection_path.name)
    return True if theirs is not None and theirs.isdisjoint(config.libraries) else None


def pytest_collection_modifyitems(config, items):
    """What tests no library runs with NumPy alone: it would be the same again with each other library."""
    if "numpy" in config.libraries:
        return
    again = [item for item in items if item.path.name not in FILES_OF and "xp" not in item.fixturenames]
    config.hook.pytest_deselected(items=again)
    items[:] = [item for item in items if item not in set(again)]


def pytest_generate_tests(metafunc):
    """Each library for tests that take `xp`, and each of its kernels for those that take `kernel` besides."""
    tested = [libraries.LIBRARIES[name] for name in metafunc.config.libraries if name in libraries.LIBRARIES]
    if "kernel" in metafunc.fixturenames:
        if "triton" in metafunc.config.libraries:
            tested.append(libraries.TRITON)
        pairs = [(library, kernel) for library in tested for kernel in library.kernels]
        metafunc.parametrize("xp, kernel", pairs, ids=[f"{library.name}-{kernel}" for library, kernel in pairs])
    elif "xp" in metafunc.fixturenames:
        metafunc.parametrize("xp", tested, ids=[library.name for library in tested], scope="session")


@pytest.fixture
def one_process(tmp_path):
    """A group of processes of PyTorch that is this one alone."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
