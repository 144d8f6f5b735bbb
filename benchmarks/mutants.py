"""Changes to the source that no test notices: mutation testing of `protocol/` and `crypto/`.

    python benchmarks/mutants.py [MODULE ...] [--most 20] [--seconds 600] [--seed 0] [--json FILE]

cosmic-ray makes the mutants: each replaces one operator, number or condition of a module, and is
tried with the tests of the module's folder, those named for the module first. A mutant that passes
them all has survived: either a test is missing, or the change has no effect. --most mutants of each
module are drawn at random, determined by the seed alone; `--most 0` tries all. Annotations are
skipped, as they are never evaluated.

The mutants are made in a copy of the last commit, so an interrupted run leaves nothing behind. A
mutant takes as long as the tests that it passes: from two seconds to the minutes of a whole folder.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
PACKAGE = "distro_node"
"""The folder name that the copy needs for its modules to be found."""

_PLACES = """
    SELECT job_id, start_pos_row, start_pos_col FROM mutation_specs
    ORDER BY start_pos_row, start_pos_col, operator_name, occurrence
"""
_OUTCOMES = """
    SELECT test_outcome, start_pos_row, operator_name, diff
    FROM mutation_specs JOIN work_results USING (job_id)
    ORDER BY start_pos_row, start_pos_col, operator_name, occurrence
"""


def all_modules() -> list[str]:
    """Return every module of the protocol and of the packages below it, as paths in the repository."""
    found = [path for top in ("crypto", "protocol") for path in (CHECKOUT / top).rglob("*.py")]
    return sorted(path.relative_to(CHECKOUT).as_posix() for path in found)


def tests_of(module: str, checkout: Path) -> list[str]:
    """Return the files and folders of tests for a mutant of the module, in this order."""
    path = Path(module)
    folder = Path("tests", path.parent.name)
    named = sorted((checkout / folder).glob(f"test_{path.stem}*.py"))
    return [*(str(file.relative_to(checkout)) for file in named), str(folder)]


def in_annotations(source: str, row: int, column: int) -> bool:
    """Whether a place in a module is part of an annotation."""
    return any(
        (node.lineno, node.col_offset) <= (row, column) < (node.end_lineno, node.end_col_offset)
        for node in _annotations(ast.parse(source))
    )


def _annotations(tree: ast.AST) -> Iterator[Any]:
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if getattr(node, name, None) is not None:
                yield getattr(node, name)


def draw(session: Path, source: str, most: int, seed: int) -> tuple[int, int]:
    """Keep `most` random mutants in a session; return how many there were outside annotations, and
    how many are kept."""
    with sqlite3.connect(session) as database:
        places = database.execute(_PLACES).fetchall()
        jobs = [job for job, row, column in places if not in_annotations(source, row, column)]
        drawn = random.Random(seed).sample(jobs, most) if 0 < most < len(jobs) else jobs
        dropped = [(job,) for job, _, _ in places if job not in set(drawn)]
        for table in ("mutation_specs", "work_items"):
            database.executemany(f"DELETE FROM {table} WHERE job_id = ?", dropped)
    return len(jobs), len(drawn)


def outcomes(session: Path) -> list[tuple[str, int, str, str]]:
    """Return outcome, line, operator and diff of each mutant that was tried."""
    with sqlite3.connect(session) as database:
        return database.execute(_OUTCOMES).fetchall()


def try_module(module: str, work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Try the mutants of one module."""
    copy = work / PACKAGE
    tests = " ".join(f"{PACKAGE}/{each}" for each in tests_of(module, copy))
    command = (
        f"{sys.executable} -m pytest -x -q -p no:cacheprovider"
        f" --rootdir {PACKAGE} -c {PACKAGE}/pyproject.toml {tests}"
    )
    environment = {**os.environ, "PYTHONPATH": str(work), "OMP_NUM_THREADS": "1"}
    # Otherwise the bytecode of one mutant, written in the same second, would be taken for another's.
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    began = time.monotonic()
    sound = subprocess.run(
        command.split(), cwd=work, env=environment, capture_output=True, text=True
    )
    if sound.returncode:
        raise SystemExit(f"the tests of {module} fail as it is:\n{sound.stdout[-2000:]}")
    baseline = time.monotonic() - began
    config, session = work / "config.toml", work / "session.sqlite"
    session.unlink(missing_ok=True)
    config.write_text(
        "[cosmic-ray]\n"
        f"module-path = {json.dumps([f'{PACKAGE}/{module}'])}\n"
        f"timeout = {options.seconds}\n"
        "excluded-modules = []\n"
        f"test-command = {json.dumps(command)}\n"
        '[cosmic-ray.distributor]\nname = "local"\n',
        encoding="utf-8",
    )
    program = str(Path(sys.executable).with_name("cosmic-ray"))
    subprocess.run(
        [program, "init", str(config), str(session)], cwd=work, env=environment, check=True
    )
    source = (copy / module).read_text(encoding="utf-8")
    there, drawn = draw(session, source, options.most, options.seed)
    subprocess.run(
        [program, "exec", str(config), str(session)], cwd=work, env=environment, check=True
    )
    found = outcomes(session)
    counts = Counter(outcome.rpartition(".")[2].lower() for outcome, *_ in found)
    return {
        "module": module,
        "mutants": there,
        "tried": drawn,
        "killed": counts["killed"],
        "survived": counts["survived"],
        "incompetent": counts["incompetent"],
        "seconds_of_its_tests": round(baseline, 1),
        "survivors": [
            {"line": row, "operator": operator, "change": _change(difference)}
            for outcome, row, operator, difference in found
            if outcome.rpartition(".")[2].lower() == "survived"
        ],
    }


def _change(difference: str) -> list[str]:
    lines = (difference or "").splitlines()
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def main(arguments: list[str] | None = None) -> int:
    """Try modules one after the other; print and write the survivors."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="all, if none is named")
    parser.add_argument("--most", type=int, default=20, help="mutants of each module")
    parser.add_argument("--seconds", type=float, default=600.0, help="for the tests of one mutant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    commit = _git("rev-parse", "--short", "HEAD").decode().strip()
    tried: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        work = Path(folder)
        (work / PACKAGE).mkdir()
        subprocess.run(
            ["tar", "-x", "-C", work / PACKAGE], input=_git("archive", "HEAD"), check=True
        )
        for module in options.modules or all_modules():
            result = try_module(module, work, options)
            tried.append(result)
            print(
                f"{module}: {result['survived']} of {result['tried']} survived"
                f" ({result['mutants']} in all)",
                flush=True,
            )
            for survivor in result["survivors"]:
                print(f"  {survivor['line']}: {' '.join(survivor['change'])}", flush=True)
            if options.json:
                report = {"commit": commit, "most": options.most, "seed": options.seed}
                report |= {"modules": tried}
                options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, check=True).stdout


if __name__ == "__main__":
    raise SystemExit(main())
