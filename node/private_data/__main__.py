"""Reader process: reads and tokenizes a member's own files, without any other rights.

The tokenizer and the chat template are untrusted. Like the trainer, this process therefore gives up the
network, and all files except those that it reads and the folders that it writes, before it loads any
library for them. It reports its progress and its result on standard output, one line of JSON each.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ..training.sandbox import confine

_PROGRESS_SECONDS = 0.2


def main() -> None:
    """Read the files that the command line names, and report the result."""
    parser = argparse.ArgumentParser(prog="python -m distro_node.node.private_data")
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--blobs", type=Path, required=True)
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--unconfined", action="store_true")
    parser.add_argument("paths", type=Path, nargs="+")
    arguments = parser.parse_args()
    # Ctrl-C in a terminal reaches every process there; only the parent process decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not arguments.unconfined:
        readable = [arguments.manifest, arguments.blobs, *arguments.paths]
        writable = [arguments.into, arguments.scratch]
        confine([path.resolve() for path in readable], [path.resolve() for path in writable])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _write_line(_ingest(arguments))


def _ingest(arguments: argparse.Namespace) -> dict[str, Any]:
    from ...protocol.wire.encoding import decode
    from ...protocol.wire.manifest import MAX_MANIFEST_BYTES, Manifest
    from ..errors import ExitCode, UserError
    from ..storage.blob_store import BlobStore
    from ..storage.disk_faults import explain_disk
    from ..training.errors import TrainerFailed
    from .ingest import read_own

    shown = 0.0

    def progress(what: str, done: int, total: int) -> None:
        nonlocal shown
        if time.monotonic() - shown > _PROGRESS_SECONDS:
            shown = time.monotonic()
            _write_line(
                {"progress": ["reading your data" if "reading" in what else what, done, total]}
            )

    try:
        data = arguments.manifest.read_bytes()
        manifest = decode(Manifest, data, max_bytes=MAX_MANIFEST_BYTES, named=True)
        store = BlobStore(arguments.blobs)
        index = read_own(manifest, store, arguments.paths, arguments.into, progress)
    except UserError as error:
        return {"error": [int(error.code), error.problem, error.remedy]}
    except TrainerFailed as error:
        remedy = "the founder has to fix the founder's file and create a new swarm"
        return {"error": [int(ExitCode.MANIFEST), str(error), remedy]}
    except OSError as error:
        fault = explain_disk(error)
        if fault is not None and fault.code == ExitCode.DISK_FULL:
            return {"error": [int(fault.code), fault.problem, fault.remedy]}
        where = f"{error.filename} " if error.filename else "a file "
        problem = f"{where}cannot be used: {error.strerror or error}"
        remedy = "make it readable, without a link to another folder, and check the disk"
        return {"error": [int(ExitCode.DATA_MISSING), problem, remedy]}
    return {"made": index.name}


def _write_line(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _end_with_parent() -> None:
    """Exit when standard input ends: the parent sends nothing on it, so it ends only with the parent."""
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
