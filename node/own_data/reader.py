"""The node's side of the reader process: start it, hear how far it is, and what came of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio

from ..errors import ExitCode, UserError
from ..trainer.environment import environment
from .kept import OwnData, OwnFolder, read_index

Report = Callable[[str, int, int], None]

# A process that is killed is gone by then, or stuck in a file system.
_DEATH_SECONDS = 5.0
# A line holds a sentence or two.
_MAX_LINE_BYTES = 1 << 20


async def read_files(
    manifest: Path,
    blobs: Path,
    paths: Sequence[Path],
    folder: OwnFolder,
    report: Report,
    *,
    confined: bool = True,
) -> OwnData:
    """Have the files at `paths` tokenised into `folder`, unless they are there as they are now.

    `manifest` is the file with the swarm's description, `blobs` the folder of the store that has its
    tokenizer. The process ends with the call, however that ends. Raises `UserError`.
    """
    folder.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    with TemporaryDirectory(prefix="distro-reader-", ignore_cleanup_errors=True) as scratch:
        command: list[str | Path] = [
            *(sys.executable, "-P", "-m", "distro_node.node.own_data"),
            *("--manifest", manifest, "--blobs", blobs),
            *("--into", folder.root, "--scratch", scratch),
            *([] if confined else ["--unconfined"]),
            *("--", *paths),
        ]
        answer: dict[str, Any] = {}
        with folder.words.open("wb") as words:
            process = await trio.lowlevel.open_process(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                start_new_session=True,
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
    own = read_index(folder, answer["made"]) if "made" in answer else None
    if "error" in answer:
        code, problem, remedy = answer["error"]
        raise UserError(ExitCode(code), problem, remedy)
    if own is None:
        raise UserError(
            ExitCode.TRAINER,
            "the process that reads your data ended without a word (out of memory?)",
            f"its last words, if any, are in {folder.words}; the same command begins again",
        )
    return own


async def _follow(process: trio.Process, report: Report) -> dict[str, Any]:
    """What it says last: what was made, or what is in the way; empty if it says neither."""
    assert process.stdout is not None
    buffer = b""
    async for data in process.stdout:
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            try:
                said = json.loads(line)
            except ValueError:
                said = None
            if not isinstance(said, dict):
                # A library's own words.
                continue
            if "progress" in said:
                report(*said["progress"])
            else:
                return said
        if len(buffer) > _MAX_LINE_BYTES:
            break
    return {}
