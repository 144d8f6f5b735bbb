"""A program on a host of a scenario, which speaks JSON lines with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from namespaces import Host

_ROOT = Path(__file__).resolve().parents[2]


class ScriptProcess:
    """A Python program, killed when the context ends. Its stderr goes to `log`, else to ours."""

    def __init__(self, host: Host, *arguments: str, log: Path | None = None) -> None:
        errors = None if log is None else log.open("w")
        try:
            self.process = subprocess.Popen(
                [*host.prefix, sys.executable, "-P", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                cwd=_ROOT,
                # The kernel divides the CPU time between sessions: each home gets its share,
                # regardless of what else runs here.
                start_new_session=True,
            )
        finally:
            if errors is not None:
                errors.close()

    def read(self) -> dict[str, Any]:
        """Return the next line that it prints. Raises `RuntimeError` at its end."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} ended with {self.process.wait()}")
        return json.loads(line)

    def write(self, line: str) -> None:
        """Write a line to it."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def __enter__(self) -> ScriptProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        # SIGKILL also ends a process that was stopped.
        self.process.kill()
        self.process.communicate()
