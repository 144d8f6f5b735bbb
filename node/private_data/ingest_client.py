"""Client of the process that reads a member's private data: starts it, reports its progress, and
returns its result."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio

from ..errors import ExitCode, UserError
from ..training.environment import environment
from ..util.operating_system import OWN_GROUP
from ..util.progress import Progress, ReportProgress
from .store import PrivateFolder, PrivateIndex, read_index

# How long to wait for a killed process: if it has not ended then, it is stuck in a file system.
_DEATH_SECONDS = 5.0
# A line of the reader's output has a sentence or two; a longer one than this ends the reading.
_MAX_LINE_BYTES = 1 << 20


async def read_files(
    manifest: Path,
    blobs: Path,
    paths: Sequence[Path],
    folder: PrivateFolder,
    report: ReportProgress,
    *,
    confined: bool = True,
) -> PrivateIndex:
    """Tokenize the files at `paths` into `folder`, unless that is done and they are unchanged.

    `manifest` is the manifest's file, `blobs` the folder of the store that has the swarm's tokenizer.
    `confined`: the reader runs in a sandbox.
    The reader process ends with the call, whatever the outcome. Raises `UserError` as the reader
    reports it, and with `TRAINER` if the process ends without a result.
    """
    folder.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    with TemporaryDirectory(prefix="distro-reader-", ignore_cleanup_errors=True) as scratch:
        command: list[str | Path] = [
            *(sys.executable, "-P", "-m", "distro_node.node.private_data"),
            *("--manifest", manifest, "--blobs", blobs),
            *("--into", folder.root, "--scratch", scratch),
            *([] if confined else ["--unconfined"]),
            *("--", *paths),
        ]
        answer: dict[str, Any] = {}
        with folder.reader_log.open("wb") as log:
            process = await trio.lowlevel.open_process(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                **OWN_GROUP,
                # None: the libraries' own number of threads.
                env=environment(None, scratch),
            )
            try:
                answer = await _follow(process, report)
            finally:
                process.kill()
                with trio.move_on_after(_DEATH_SECONDS) as patience:
                    patience.shield = True
                    await process.wait()
                    for stream in (process.stdin, process.stdout):
                        if stream is not None:
                            await stream.aclose()
    index = read_index(folder, answer["made"]) if "made" in answer else None
    if "error" in answer:
        code, problem, remedy = answer["error"]
        raise UserError(ExitCode(code), problem, remedy)
    if index is None:
        raise UserError(
            ExitCode.TRAINER,
            "the process that reads your data ended without a result (out of memory?)",
            f"its last output, if any, is in {folder.reader_log}; run the same command to start again",
        )
    return index


async def _follow(process: trio.Process, report: ReportProgress) -> dict[str, Any]:
    """Report the process's progress, and return its final message: a table with `made` (the name of the
    index) or `error` (exit code, problem, remedy). The result is empty if there is no such message."""
    assert process.stdout is not None
    buffer = b""
    async for data in process.stdout:
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if not isinstance(message, dict):
                # This is output of a library.
                continue
            if "progress" in message:
                what, done, total = message["progress"]
                report(Progress(what=what, done=done, total=total or None))
            else:
                return message
        if len(buffer) > _MAX_LINE_BYTES:
            break
    return {}
