"""Write what the blocks of pages print into the pages: `python tests/docs/update.py docs/howto/*.md`."""

import os
import sys
import tempfile
import textwrap
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

import pages


def updated(page):
    """The text of a page with the outputs of its blocks, where they differ."""
    text = page.read_text()
    for block, line, printed in reversed([each for each in pages.outputs(page) if each.difference()]):
        start, end = block.span("body")
        text = text[:start] + textwrap.indent(printed, block["indent"]) + text[end:]
        print(f"{page}:{line}: written")
    return text


def main():
    for page in [Path(name).resolve() for name in sys.argv[1:]] or filter(pages.has_blocks, pages.PAGES):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            pages.fill(Path(folder))
            page.write_text(updated(page))
            os.chdir(pages.ROOT)


if __name__ == "__main__":
    main()
