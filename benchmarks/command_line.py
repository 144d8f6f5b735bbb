"""What the benchmarks' command lines share: the help, the file of figures, the least time of several."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def new_parser(documentation: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is a script's documentation, with the option --json."""
    parser = argparse.ArgumentParser(
        description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    return parser


def write_json(file: Path | None, document: Any) -> None:
    """Write the figures to the file that the command line names, if it does."""
    if file is not None:
        file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def least_cpu_seconds(act: Callable[[], object], repeats: int = 5) -> float:
    """Return the least CPU time of several runs, since other load only adds to it."""
    times = []
    for _ in range(repeats):
        started = time.process_time()
        act()
        times.append(time.process_time() - started)
    return min(times)
