"""A hook of MkDocs that makes MathML, which browsers show without a script, of the formulas that arithmatex found."""

import html
import re

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.DOTALL)
# latex2mathml knows align* alone.
ALIGNED = re.compile(r"\\(begin|end)\{aligned\}")
# TeX sets the names of functions as letters, with a thin space before what is not in brackets.
NAME = re.compile(r"<mo>([A-Za-z]{2,})</mo>(?=<m)")
FUNCTION = re.compile(r"(<mi>(?:arg|cos|exp|log|ln|max|min|sin|tan|[A-Z]?[a-z]{2,})</mi>)(?=<m(?!o|row></))")


def on_page_content(content, page, **_):
    """The page with its formulas as MathML."""
    return FORMULA.sub(lambda found: mathml(found, page.file.src_uri), content)


def mathml(found, page):
    """The MathML of one formula. One that latex2mathml cannot read whole is an error, not red text."""
    kind, tex = found[1], html.unescape(found[2]).strip()
    made = convert(ALIGNED.sub(r"\\\1{align*}", tex), display="block" if kind == "div" else "inline")
    if "\\" in made or "<mi>&</mi>" in made:
        raise PluginError(f"{page}: latex2mathml cannot read all of the formula {tex!r}; it made {made}")
    made = FUNCTION.sub(r'\1<mspace width="0.17em"/>', NAME.sub(r"<mi>\1</mi>", made))
    return f'<{kind} class="formula">{made}</{kind}>'
