"""A hook of MkDocs that makes MathML, which browsers show without a script, of the formulas that arithmatex found."""

import html
import re

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.DOTALL)
# latex2mathml knows align* alone.
ALIGNED = re.compile(r"\\(begin|end)\{aligned\}")
# Browsers align columns by CSS: equations at their signs, without a gap.
COLUMN = re.compile(r'columnalign="(?:(left)|(right))"')
STYLES = ("text-align: left; padding-left: 0", "text-align: right; padding-right: 0")
# TeX sets the names of functions as letters, with thin spaces, but none beside brackets and signs.
NAME = re.compile(r"<mo>([A-Za-z]{2,})</mo>(?=<m)")
SPACE = '<mspace width="0.17em"/>'
BEFORE = re.compile(r"(</(?:mi|mn|msub|msup|msubsup|mfrac|msqrt)>)(?=<mi>[A-Za-z]{2,}</mi>)")
AFTER = re.compile(r"(<mi>[A-Za-z]{2,}</mi>)(?=<m(?!o|row></))")
# A prime is a letter after its letter: as an exponent it is too small to be seen.
PRIME = re.compile(r"<msu(?:bsu)?p>(<mi>\w</mi>)(<mi>\w</mi>)?<mi>&#x02032;</mi></msu(?:bsu)?p>")
# A minus after an opening bracket, a comma or another sign belongs to what follows.
MINUS = re.compile(r"(<mo\b(?![^>]*postfix)[^>]*>(?!&#x00029;|&#x0005D;|&#x0007D;)[^<]*</mo>)<mo>(?=&#x02212;)")


def on_page_content(content, page, **_):
    """The page with its formulas as MathML."""
    return FORMULA.sub(lambda found: mathml(found, page.file.src_uri), content)


def mathml(found, page):
    """The MathML of one formula. One that latex2mathml cannot read whole is an error, not red text."""
    kind, tex = found[1], html.unescape(found[2]).strip()
    made = convert(ALIGNED.sub(r"\\\1{align*}", tex), display="block" if kind == "div" else "inline")
    if "\\" in made or "<mi>&</mi>" in made:
        raise PluginError(f"{page}: latex2mathml cannot read all of the formula {tex!r}; it made {made}")
    made = PRIME.sub(primed, made)
    made = COLUMN.sub(lambda column: f'style="{STYLES[column[1] is None]}"', made)
    made = MINUS.sub(r'\1<mo form="prefix">', NAME.sub(r"<mi>\1</mi>", made))
    made = AFTER.sub(rf"\1{SPACE}", BEFORE.sub(rf"\1{SPACE}", made))
    return f'<{kind} class="formula">{made}</{kind}>'


def primed(found):
    """A letter with a prime, and its index if it has one."""
    letter = f"<mrow>{found[1]}<mi>&#x02032;</mi></mrow>"
    return f"<msub>{letter}{found[2]}</msub>" if found[2] else letter
