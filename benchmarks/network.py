"""Swarms on home lines, each node in its own network namespace: the line's limit, and what is reached.

    python benchmarks/network.py SCENARIO [--members N] [--json FILE]

Every scenario is a module in `scenarios/` whose docstring describes it; `--help` lists them. They
require root (for the namespaces), `ip`, `tc` and `nft`; no packet leaves the machine.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from namespaces import available

_SCENARIOS = Path(__file__).resolve().parent / "scenarios"
_MOST_MEMBERS = 128
_UNAVAILABLE = "network namespaces take root and the programs ip, tc and nft"


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main() -> None:
    """Run the scenario that the command line names."""
    scenarios = _scenarios()
    parser = _Parser(
        prog="network.py",
        description="Swarms on home lines: the line's limit and the measured figure, side by side.",
        epilog="scenarios:\n" + "\n".join(f"  {n:<12} {said}" for n, said in scenarios.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenario", metavar="SCENARIO", help="one of those below")
    parser.add_argument(
        "--members", type=_members, metavar="N", help="nodes, if not the usual number"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options, rest = parser.parse_known_args()
    if options.scenario not in scenarios:
        parser.error(f"there is no scenario {options.scenario!r}; --help lists them")
    module = importlib.import_module("scenarios." + options.scenario.replace("-", "_"))
    further = _Parser(prog=f"network.py {options.scenario}", add_help=False)
    if hasattr(module, "add_arguments"):
        module.add_arguments(further)
    arguments = vars(further.parse_args(rest))
    if not available():
        parser.exit(1, f"{parser.prog}: {_UNAVAILABLE}\n")
    if options.json is not None and not options.json.parent.is_dir():
        parser.error(f"there is no folder {options.json.parent}")
    figures: dict[str, Any] = module.measure(options.members, **arguments)
    if options.json is not None:
        options.json.write_text(
            json.dumps({"scenario": options.scenario, **figures}, indent=1) + "\n"
        )


def _scenarios() -> Mapping[str, str]:
    """Return each scenario's name, with the first sentence of its module's docstring."""
    found = {}
    for path in sorted(_SCENARIOS.glob("[a-z]*.py")):
        # Parsed, not imported: --help must not wait for libp2p.
        tree = ast.parse(path.read_text())
        if any(isinstance(node, ast.FunctionDef) and node.name == "measure" for node in tree.body):
            text = ast.get_docstring(tree) or ""
            found[path.stem.replace("_", "-")] = " ".join(text.split("\n\n")[0].split())
    return found


def _members(text: str) -> int:
    if not text.isdecimal() or not 2 <= int(text) <= _MOST_MEMBERS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 2 to {_MOST_MEMBERS}")
    return int(text)


if __name__ == "__main__":
    main()
