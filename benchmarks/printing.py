"""What benchmarks share in their output: tables and the JSON file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_json(file: Path | None, document: Any) -> None:
    """Write the figures to the file that the command line names, if it does."""
    if file is not None:
        file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
