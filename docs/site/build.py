"""The documents as web pages that need no network to be read: `make site`, or `build.py FOLDER`.

The site's tree is the repository's, so a link between two documents works on both and nothing has to be
rewritten. A link, anchor or page that leads nowhere, and a document that no menu has, ends the build.
"""

from __future__ import annotations

import argparse
import logging
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from properdocs.commands.build import build
from properdocs.config import load_config
from properdocs.exceptions import ProperDocsException

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent

# What readers are meant to read, and what it shows or links to.
DOCUMENTS = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "docs"),
    *("benchmarks/README.md", "changes/README.md"),
)


# A link from a document to code, which the site then has beside it.
CODE_LINK = re.compile(r"\]\(([\w./]+\.py)\)")


def stage(folder: Path, checkout: Path = CHECKOUT) -> None:
    """Copy the documents, and the code that they link to, into a folder, each where it lies in the
    repository."""
    for name in DOCUMENTS:
        source, place = checkout / name, folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, place, ignore=shutil.ignore_patterns("site", "__pycache__"))
        else:
            shutil.copyfile(source, place)
    for document in sorted(folder.rglob("*.md")):
        for link in CODE_LINK.findall(document.read_text(encoding="utf-8")):
            place = (document.parent / link).resolve()
            if not place.exists() and place.is_relative_to(folder.resolve()):
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(checkout / place.relative_to(folder.resolve()), place)


def commands() -> str:
    """A page of every command and option, from the commands themselves."""
    made = subprocess.run(
        [
            *(sys.executable, "-m", "typer", "distro_node.node.cli.main", "utils", "docs"),
            *("--name", "distro-node", "--title", "Commands"),
        ],
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
    )
    # What stands for a word is no tag.
    return re.sub(r"<([A-Z]+)>", r"&lt;\1&gt;", made.stdout)


def build_site(out: Path, checkout: Path = CHECKOUT) -> None:
    """Make the site of a checkout in a folder, which is emptied first.

    Raises:
        ProperDocsException: a link, an anchor or the menu leads nowhere, or a document is in no menu.
    """
    with tempfile.TemporaryDirectory() as folder:
        stage(Path(folder), checkout)
        (Path(folder) / "docs" / "commands.md").write_text(commands(), encoding="utf-8")
        config = load_config(
            config_file=str(HERE / "properdocs.yml"),
            docs_dir=folder,
            site_dir=str(out.resolve()),
            strict=True,
        )
        build(config)


def main() -> None:
    """Make the site where the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the site goes; it is emptied first")
    folder = parser.parse_args().folder
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    try:
        build_site(folder)
    except ProperDocsException as error:
        raise SystemExit(f"error: {error}") from None
    print(f"Open {folder / 'index.html'} in a browser.")


if __name__ == "__main__":
    main()
