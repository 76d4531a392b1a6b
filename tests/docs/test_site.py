"""The built site, in the folder `site`: every public name is in the reference, and nothing comes from another host."""

import ast
import re
import zlib

from pages import ROOT

SITE = ROOT / "site"
MODULES = ["", "frequencies", "positions", "huggingface", "torch", "flax", "onnx", "plot"]
# What a browser loads by itself, from a host; and the theme's program that asks GitHub for the numbers of stars.
LOADED = re.compile(
    r'<(?:script|img|iframe|source|video)\b[^>]*?\bsrc(?:set)?="?(?:https?:)?//[^>]*>'
    r'|<link\b[^>]*?\brel="?(?:stylesheet|preconnect|preload|icon)\b[^>]*?\bhref="?(?:https?:)?//[^>]*>'
    r'|<link\b[^>]*?\bhref="?(?:https?:)?//[^>]*?\brel="?(?:stylesheet|preconnect|preload|icon)\b[^>]*>'
    r'|data-md-component="?source\b'
)


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


def test_nothing_comes_from_another_host():
    pages = list(SITE.rglob("*.html"))
    assert len(pages) > 20
    loaded = {(str(page.relative_to(SITE)), found) for page in pages for found in LOADED.findall(page.read_text())}
    assert loaded == set()
    styles = "".join(style.read_text() for style in SITE.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*['\"]?(?:https?:)?//[^)]*", styles) == []


def test_every_formula_is_mathml():
    for page in SITE.rglob("*.html"):
        assert "arithmatex" not in page.read_text()
