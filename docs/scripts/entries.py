"""A hook of MkDocs for the reference: entries without a description end at their type, and no tooltip names a module.

The path of a class in the package is no way to import it: `Comparison` is what `compare` returns.
"""

import re

EMPTY = re.compile(r'\s*\u2013\s*(?=<div class="doc-md-description">\s*</div>)')
SPACE = re.compile(r"</code>\s+\)")
TOOLTIP = re.compile(r'(<(?:a|span)\b[^>]*?) title="[^"]*\brope_xp\.[^"]*"')


def on_post_page(output, **_):
    """The page without dashes that nothing follows, spaces before brackets, and paths of modules in tooltips."""
    return TOOLTIP.sub(r"\1", EMPTY.sub(" ", SPACE.sub("</code>)", output)))
