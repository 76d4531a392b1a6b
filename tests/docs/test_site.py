"""The built site, in the folder `site`: every public name is in the reference, and every formula is MathML."""

import ast
import re
import zlib

from pages import ROOT

SITE = ROOT / "site"
MODULES = ["", "frequencies", "positions", "huggingface", "torch", "flax", "onnx", "plot"]


def public_names(module):
    """`__all__` of a public module, or what it defines. Read from the text: no framework is imported."""
    path = ROOT / "rope_xp" / module
    body = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()).body
    for each in body:
        if isinstance(each, ast.Assign) and getattr(each.targets[0], "id", "") == "__all__":
            return {name for name in ast.literal_eval(each.value) if name not in MODULES}
    defined = {each.name for each in body if isinstance(each, (ast.FunctionDef, ast.ClassDef))}
    return {name for name in defined if not name.startswith("_")}


def test_every_public_name_is_in_the_reference():
    packed = (SITE / "objects.inv").read_bytes().split(b"\n", 4)[4]
    entries = {line.split()[0] for line in zlib.decompress(packed).decode().splitlines()}
    names = {".".join(filter(None, ("rope_xp", module, name))) for module in MODULES for name in public_names(module)}
    assert len(names) > 60 and names - entries == set()


def test_no_page_names_a_private_module():
    public = {*MODULES, *public_names("")}
    for page in SITE.rglob("*.html"):
        # Anchors are no text: autorefs makes them of paths.
        text = re.sub(r'(?:id|href)="[^"]*"', "", page.read_text())
        paths = re.findall(r"\brope_xp\.([a-z]\w*)(?=\.\w| import)", text)
        assert set(paths) <= public, page


def test_no_entry_of_the_reference_is_empty():
    entry = re.compile(r'\u2013\s*<div class="doc-md-description">\s*(\S+)')
    texts = [text for page in (SITE / "reference").rglob("*.html") for text in entry.findall(page.read_text())]
    assert len(texts) > 300 and "</div>" not in texts


def test_every_formula_is_mathml():
    pages = [page.read_text() for page in SITE.rglob("*.html")]
    assert sum(page.count("</math>") for page in pages) > 100
    assert [page for page in pages if "arithmatex" in page] == []
