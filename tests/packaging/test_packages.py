"""The files in `dist`, which `nox -s package` builds, are small, the same each time, and work on their own."""

import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email import message_from_string
from math import cos, sin
from pathlib import Path

import numpy as np
import pytest
import yaml
from rattler_build import Stage0Recipe, VariantConfig
from readme_renderer import markdown

import rope_xp

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
(SOURCES,) = (ROOT / "dist").glob("*.tar.gz")
(WHEEL,) = (ROOT / "dist").glob("*.whl")
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHONS = re.findall(r":: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
CODE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
OURS = re.compile(
    rf"https://(?:github|raw\.githubusercontent)\.com/rope-xp/rope_xp/(?:blob/)?v{re.escape(rope_xp.__version__)}/"
)
PAGES = re.compile(PROJECT["urls"]["Documentation"])


def yaml_of(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def metadata():
    with zipfile.ZipFile(WHEEL) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_string(wheel.read(name).decode())


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The folder of the source archive."""
    with tarfile.open(SOURCES) as archive:
        if hasattr(tarfile, "data_filter"):  # Python 3.11 has it from its fourth release on
            archive.extraction_filter = staticmethod(tarfile.data_filter)
        archive.extractall(tmp_path_factory.mktemp("sources"))
    return next(tmp_path_factory.getbasetemp().glob("sources*/*"))


def test_built_again_every_byte_is_the_same(tmp_path):
    """`dist` has the wheel built from the source archive; here it is built from the repository."""
    for kind in ("--sdist", "--wheel"):
        build = [sys.executable, "-m", "build", "--no-isolation", kind, "--outdir", str(tmp_path), str(ROOT)]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    for file in (SOURCES, WHEEL):
        print(file.name, file.stat().st_size, "bytes, SHA-256", hashlib.sha256(file.read_bytes()).hexdigest())
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()


def test_source_archive_has_nothing_else(unpacked):
    texts = {".gitignore", "CHANGELOG.md", "CITATION.cff", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
    assert {path.name for path in unpacked.iterdir()} == {"rope_xp", "tests", *texts}
    inside = [path for path in unpacked.glob("*/**/*") if path.is_file() and path.suffix != ".py"]
    tables = {path.relative_to(ROOT).as_posix() for path in (ROOT / "rope_xp/configs/engines").glob("*.json")}
    assert {path.relative_to(unpacked).as_posix() for path in inside} == {"rope_xp/py.typed", *tables} and tables
    assert SOURCES.stat().st_size < 500_000  # no large file; names are compared above


def test_tests_of_source_archive_pass(unpacked):
    program = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--xp=numpy", "tests"]
    run = subprocess.run(program, cwd=unpacked, capture_output=True, text=True)
    assert run.returncode == 0 and " passed" in run.stdout, (run.stdout + run.stderr)[-2000:]


def test_links_of_description_work_everywhere(metadata):
    text = metadata.get_payload()
    assert [each.group() for each in CODE.finditer(text)] == [each.group() for each in CODE.finditer(README)]
    html = re.sub(r' href="#user-content-[^"]*"', "", markdown.render(text) or "")  # a heading's link to itself
    links = re.findall(r' (?:href|src)="([^"]*)"', html) + re.findall(r'srcset="([^"]*)"', text)
    assert len(links) > 5 and [link for link in links if not link.startswith("https://")] == []
    files = {link: OURS.sub("", link).partition("#")[0] for link in links if OURS.match(link)}
    pages = [ROOT / "docs" / PAGES.sub("", link).partition("#")[0] for link in links if PAGES.match(link)]
    assert files and [file for file in files.values() if not (ROOT / file).exists()] == []
    assert [page for page in pages if not (page.with_suffix(".md").exists() or (page / "index.md").exists())] == []
    assert all(link.endswith((".png", ".svg")) == ("//raw." in link) for link in files)


def test_version_and_requirements_are_the_same_everywhere(metadata):
    (variant,) = Stage0Recipe.from_file(str(ROOT / "conda/recipe.yaml")).render(VariantConfig())
    recipe = variant.recipe.to_dict()
    assert metadata["Version"] == yaml_of("CITATION.cff")["version"] == recipe["package"]["version"]
    extras = PROJECT["optional-dependencies"]
    needed = sorted(each.replace(" ", "") for each in recipe["requirements"]["run"])
    assert needed == sorted(["python" + PROJECT["requires-python"], *PROJECT["dependencies"], *extras["cli"]])
    optional = [each.replace(" ", "").replace("pytorch", "torch") for each in recipe["requirements"]["run_constraints"]]
    assert optional == [*extras["jax"], *extras["fast"], *extras["torch"]]


def test_workflow_has_every_python(metadata):
    matrix = yaml_of(".github/workflows/tests.yml")["jobs"]["default"]["strategy"]["matrix"]
    assert matrix["python"] == PYTHONS and metadata["Requires-Python"] == f">={PYTHONS[0]}"
    addresses = dict(each.split(", ") for each in metadata.get_all("Project-URL"))
    assert addresses.keys() >= {"Homepage", "Documentation", "Source", "Issues", "Changelog"}


PROGRAM = """
import importlib.metadata, json, numpy as np, rope_xp
x = np.asarray([[1.0, 0.0]] * 4)
rotated = rope_xp.RotaryEmbedding(head_dim=2, base=1e4, layout='half')(x, seq_dim=0)
print(json.dumps([sorted(each.name for each in importlib.metadata.distributions()), rotated[3].tolist()]))
"""


def test_works_in_an_empty_environment(tmp_path):
    """With NumPy and array-api-compat alone: it rotates, and the command says what to install."""
    venv.create(tmp_path / "empty")
    (folder,) = (path for path in (tmp_path / "empty").glob("*") if path.name in ("bin", "Scripts"))
    python = next(folder.glob("python*"))
    install = [sys.executable, "-m", "pip", "--quiet", "--python", str(python), "install", str(WHEEL)]
    subprocess.run(install, check=True)
    run = subprocess.run([python, "-P", "-W", "error", "-c", PROGRAM], check=True, capture_output=True, text=True)
    names, rotated = json.loads(run.stdout)
    assert names == ["array-api-compat", "numpy", "rope-xp"]
    np.testing.assert_allclose(rotated, [cos(3.0), sin(3.0)], rtol=2**-50)
    (command,) = folder.glob("rope-xp*")
    run = subprocess.run([command, "explain", "config.json"], capture_output=True, text=True)
    assert run.returncode == 2 and "the extra rope-xp[cli] must be installed" in run.stderr
