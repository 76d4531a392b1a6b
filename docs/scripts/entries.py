"""A hook of MkDocs that corrects details of finished pages.

An entry of the reference without a description ends at its type. No tooltip has the path of a class in the package, as
it is no way to import it: `Comparison` is what `compare` returns. No line ends within `--rope-scale`.
"""

import re

EMPTY = re.compile(r'\s*\u2013\s*(?=<div class="doc-md-description">\s*</div>)')
SPACE = re.compile(r"</code>\s+\)")
TOOLTIP = re.compile(r'(<(?:a|span)\b[^>]*?) title="[^"]*\brope_xp\.[^"]*"')
CODE = re.compile(r"<code>[^<]*-[^<]*</code>")
HYPHENS = re.compile(r"[\w.*-]*-[\w.*-]+")


def on_post_page(output, **_):
    """The page without dashes that nothing follows, spaces before brackets, paths of modules, and broken names."""
    output = CODE.sub(lambda code: HYPHENS.sub(r'<span class="rope-whole">\g<0></span>', code[0]), output)
    return TOOLTIP.sub(r"\1", EMPTY.sub(" ", SPACE.sub("</code>)", output)))
