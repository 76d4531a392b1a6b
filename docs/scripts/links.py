"""A hook of MkDocs for links: files of the repository that are not pages are on GitHub, and papers on arXiv."""

import re
from os.path import normpath
from pathlib import Path

OUT = re.compile(r"\]\((\.\./[^)\s#]+)")
PAGE = re.compile(r'href="([\w./-]+\.(?:md|ipynb))(#[\w-]+)?"')
ARXIV = re.compile(r"\barXiv:(\d{4}\.\d{5})")


def on_page_markdown(markdown, page, config, **_):
    """The page, where links that leave `docs` lead to the repository. MkDocs warns of those that lead nowhere."""
    root = Path(config.config_file_path).parent

    def absolute(link):
        path = Path(normpath(Path("docs", page.file.src_uri).parent / link[1]))
        if path.parts[0] == "docs" or not (root / path).exists():
            return link[0]
        kind = "tree" if (root / path).is_dir() else "blob"
        return f"]({config.repo_url.rstrip('/')}/{kind}/main/{path.as_posix()}"

    return OUT.sub(absolute, markdown)


def on_page_content(content, page, files, **_):
    """The page with numbers of papers as links, where they are not links already; notebooks with links to pages."""
    if page.file.src_uri.endswith(".ipynb"):
        content = PAGE.sub(lambda link: f'href="{_address(link[1], page.file, files)}{link[2] or ""}"', content)
    parts = re.split(r"(<a .*?</a>|<code.*?</code>)", content, flags=re.DOTALL)
    parts[::2] = [ARXIV.sub(r'<a href="https://arxiv.org/abs/\1">arXiv:\1</a>', part) for part in parts[::2]]
    return "".join(parts)


def _address(path, source, files):
    """The address of a page, in another one that has its path."""
    target = normpath(Path(source.src_uri).parent / path)
    return files.get_file_from_path(Path(target).as_posix()).url_relative_to(source)
