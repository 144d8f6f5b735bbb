"""Generated parts of the documents, written in their place: `make docs`, or `tables.py [CHECKOUT]`.

A part stands between `<!-- NAME -->` and `<!-- end of NAME -->`, and is printed by the code that it
describes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import manifest_reference
import metrics_reference
import settings_reference
import status_reference
from state_diagrams import diagrams

PARTS: dict[tuple[str, str], Callable[[], str]] = {
    ("docs/reference.md", "status"): lambda: f"\n{status_reference.reference()}\n",
    ("docs/reference.md", "metrics"): lambda: f"\n{metrics_reference.reference()}\n",
    ("docs/reference.md", "settings"): lambda: f"\n{settings_reference.reference()}\n\n",
    ("docs/founders-file.md", "keys"): lambda: f"\n{manifest_reference.reference()}\n",
    ("docs/protocol.md", "states"): lambda: diagrams() + "\n",
}
"""By document and name of the part: its text."""


def with_part(text: str, name: str, part: str) -> str:
    """Return a document with this part in place of the one that it has.

    Raises:
        LookupError: the document does not have both marks once.
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    if (text.count(begin), text.count(end)) != (1, 1):
        raise LookupError(f"{name}: the document does not have both marks once")
    before, _, rest = text.partition(begin)
    return before + begin + part + end + rest.partition(end)[2]


def main(checkout: Path) -> None:
    """Write all parts."""
    for (document, name), made in PARTS.items():
        path = checkout / document
        text = path.read_text(encoding="utf-8")
        path.write_text(with_part(text, name, made()), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2])
