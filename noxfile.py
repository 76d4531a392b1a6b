"""Everything the README promises, one session each. `nox` runs all; `nox -s tests-jax` runs one."""

import nox

nox.options.default_venv_backend = "virtualenv"  # whose pip finds local wheels, of PyTorch for instance

PROJECT = nox.project.load_toml("pyproject.toml")
PYTEST = ("pytest", "--numprocesses=auto", "--maxprocesses=4")


def install(session, group, *extras):
    """Install the built wheel and a dependency group, at the versions of constraints.txt."""
    session.env["PIP_CONSTRAINT"] = "constraints.txt"
    wheels = session.create_tmp()
    session.run("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, ".")
    wheel = f"rope-xp[{','.join(extras)}]" if extras else "rope-xp"
    dependencies = nox.project.dependency_groups(PROJECT, group)
    session.install("--find-links", wheels, "--force-reinstall", "--no-deps", "--no-index", "rope-xp")
    session.install("--find-links", wheels, wheel, *dependencies)


@nox.session(name="tests-numpy")
def tests_numpy(session):
    """The suite on NumPy, and every example in a docstring."""
    install(session, "test")
    session.run(*PYTEST, "--xp=numpy", "tests", *session.posargs)
    # But for the kernels, which have no examples, and what imports a framework, which has sessions of its own.
    elsewhere = ("_core/kernels/*", "huggingface/*", "torch.py", "flax.py", "onnx.py")
    session.run(
        "pytest",
        "--doctest-modules",
        *(f"--ignore-glob=/*/rope_xp/{path}" for path in elsewhere),
        "--pyargs",
        "rope_xp",
    )


@nox.session(name="tests-oldest")
def tests_oldest(session):
    """The suite on the oldest NumPy, array-api-compat and numba that pyproject.toml admits."""
    admitted = [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["fast"]]
    oldest = [requirement.replace(">=", "==") + ".*" for requirement in admitted]
    # The newest array-api-strict that runs on that NumPy.
    group = [r for r in nox.project.dependency_groups(PROJECT, "test") if r not in ("array-api-strict", "numba")]
    session.install("array-api-strict==2.3", *oldest, *group, ".")
    session.run(*PYTEST, "--xp=numpy", "tests", *session.posargs)


@nox.session(name="tests-strict")
def tests_strict(session):
    """The suite on array-api-strict, which has the standard's functions and no others."""
    install(session, "test")
    session.run(*PYTEST, "--xp=strict", "tests", *session.posargs)


def tests_of(backend):
    @nox.session(name=f"tests-{backend}")
    def session(session):
        install(session, backend)
        session.run(*PYTEST, f"--xp={backend}", "tests", *session.posargs)

    session.__doc__ = f"The suite on {backend}, its transforms and compiler, and equality with its packages."


for backend in ("jax", "torch"):
    tests_of(backend)


@nox.session(name="tests-triton")
def tests_triton(session):
    """The kernel for CUDA, on a GPU where there is one, or else in Triton's interpreter."""
    install(session, "triton")
    # But for what gives the CPU's threads enough to do: the interpreter takes minutes, and serves one thread.
    session.run(*PYTEST, "--xp=triton", "-k", "not threads", "tests", *session.posargs)


@nox.session(name="tests-parity")
def tests_parity(session):
    """Equality with transformers, diffusers and others: every rotary class, with its config and changed ones."""
    install(session, "parity")
    session.run(*PYTEST, "tests/parity", *session.posargs)
    session.run("python", "-P", "benchmarks/parity.py", "--out", f"{session.create_tmp()}/coverage.md")


@nox.session(name="parity-newest", default=False)
def parity_newest(session):
    """The same with the newest transformers of the index, which may have classes that are not known: they are listed.

    No part of what the README promises, as it changes from day to day.
    """
    install(session, "parity")
    session.run("python", "-m", "pip", "install", "--upgrade", "transformers", env={"PIP_CONSTRAINT": ""})
    session.run("python", "-P", "benchmarks/parity.py", "--out", f"{session.create_tmp()}/coverage.md")


@nox.session(name="tests-huggingface")
def tests_huggingface(session):
    """Whole models of transformers with rope_xp inside, beside the same without."""
    install(session, "huggingface", "huggingface")
    session.run(*PYTEST, "tests/huggingface", *session.posargs)
    session.run("pytest", "--doctest-modules", "--pyargs", "rope_xp.huggingface")
    session.run("python", "-P", "benchmarks/families.py", "--quick", "--out", f"{session.create_tmp()}/families.md")


@nox.session(name="tests-timm")
def tests_timm(session):
    """Equality with timm, whose dependencies are left out: they have no build for the CPU alone."""
    install(session, "timm")
    session.install("--no-deps", "timm")
    session.run(*PYTEST, "tests/timm", *session.posargs)


@nox.session(name="tests-more")
def tests_more(session):
    """The suite on Dask, MLX and ndonnx."""
    install(session, "more")
    session.run(*PYTEST, "--xp=dask", "--xp=mlx", "--xp=ndonnx", "tests", *session.posargs)


@nox.session(name="tests-distributed")
def tests_distributed(session):
    """Sharded arrays, DTensors, rings: eight virtual devices of JAX, four processes of PyTorch on this machine."""
    install(session, "distributed")
    session.run(*PYTEST, "tests/distributed", *session.posargs)


@nox.session(name="tests-export")
def tests_export(session):
    """Exporters and what runs their programs: torch.export, jax.export, ONNX from PyTorch and from ndonnx."""
    install(session, "export", "onnx")
    session.run(*PYTEST, "tests/export", *session.posargs)
    modules = [f"rope_xp.{framework}" for framework in ("torch", "flax", "onnx")]
    session.run("pytest", "--doctest-modules", "--pyargs", *modules)
    session.run("python", "-P", "benchmarks/exporters.py", "--quick", "--out", f"{session.create_tmp()}/exporters.md")


@nox.session
def examples(session):
    """Every example, run and tested."""
    install(session, "examples", "examples")
    session.run(*PYTEST, "tests/examples", *session.posargs)


@nox.session
def benchmarks(session):
    """Accuracy with few positions, ours within its bound beside every peer's; speed with small arrays, all right."""
    install(session, "benchmarks")
    session.run("python", "-P", "benchmarks/accuracy.py", "--quick", "--out", f"{session.create_tmp()}/accuracy.md")
    session.run("python", "-P", "benchmarks/speed.py", "--quick", "--out", f"{session.create_tmp()}/speed.md")


@nox.session
def mutants(session):
    """Mistakes planted one at a time, each of which must turn the suite red: a list, and a few drawn at random."""
    install(session, "mutants")
    session.run("python", "tests/tools/mutants.py")
    session.run("python", "tests/tools/generated_mutants.py", "--sample", "16", "--least", "0.8")


@nox.session(name="mutants-generated", default=False)
def mutants_generated(session):
    """500 mistakes drawn at random, of which 95 % must turn the suite red; the table goes to benchmarks/results."""
    install(session, "mutants")
    options = ("--sample", "500", "--seed", "0", "--out", "benchmarks/results/mutants.md")
    session.run("python", "tests/tools/generated_mutants.py", *(session.posargs or options))


@nox.session
def lint(session):
    """Format, lint and types."""
    install(session, "lint")
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("pyright")


@nox.session
def types(session):
    """What users' type checkers see: the README's snippets and a typed program, by mypy and pyright, both strict."""
    install(session, "types")
    session.run("python", "tests/tools/typed_readme.py")
