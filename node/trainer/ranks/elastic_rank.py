"""The process of a rank other than the first that torch's elastic launcher has started (`launch`).

    python -m distro_node.node.trainer.ranks.elastic_rank [--writable FOLDER …] [--unconfined]
    python -m distro_node.node.trainer.ranks.elastic_rank --over

It takes part in one generation of the trainer after another. For each it starts a process of its own,
because a process permanently gives up rights in the sandbox. `--over` informs such processes that the
node has ended.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ...telemetry.logs import configure_logging
from ...training.environment import environment
from ...training.graphics_cards import make_device_node
from ...training.sandbox import confine
from ...training.torchrun import NO_STORE, NODE_ENDED
from ...util.operating_system import end_with_parent, pass_descriptors

_PAUSE_SECONDS = 1.0

_log = logging.getLogger(__name__)


def main() -> None:
    """Run as a rank until the node has ended."""
    parser = argparse.ArgumentParser(prog="python -m distro_node.node.trainer.ranks.elastic_rank")
    parser.add_argument(
        "--over", action="store_true", help="notify the ranks that the node has ended"
    )
    parser.add_argument("--writable", type=Path, action="append", default=[], metavar="PATH")
    parser.add_argument("--unconfined", action="store_true", help="do not enter the sandbox")
    parser.add_argument("--after", type=int, default=0, help="the last generation of this rank")
    parser.add_argument(
        "--tell", type=int, help="take part in one generation, and report it to this descriptor"
    )
    parser.add_argument(
        "--patience", type=float, default=600.0, help="seconds to wait for other ranks"
    )
    arguments = parser.parse_args()
    # The launcher ends its processes by SIGTERM; a Ctrl-C is for the node to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    configure_logging()
    if arguments.tell is not None:
        _run_generation(arguments)
    else:
        try:
            with tempfile.TemporaryDirectory(prefix="distro-node-rank-") as scratch:
                code = _run_generations(scratch)
        except OSError as error:
            _log.error("there is no space for temporary files: %s", error)
            code = NO_STORE
        sys.exit(code)


def _run_generations(scratch: str) -> int:
    after = 0
    program = [sys.executable, "-P", "-m", "distro_node.node.trainer.ranks.elastic_rank"]
    # A closed connection is reported in one line; the library would print its own stack as well.
    variables = {**environment(None, scratch), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    while True:
        # A rank's process may not get the rights to make the file, and perhaps no node here has made it.
        make_device_node()
        reading, writing = os.pipe()
        options = ["--writable", scratch, "--after", str(after), "--tell", str(writing)]
        code = subprocess.run(
            [*program, *sys.argv[1:], *options],
            env=variables,
            check=False,
            **pass_descriptors(writing),
        ).returncode
        os.close(writing)
        with open(reading, "rb") as report:
            after = int(report.read() or after)
        if code in (NODE_ENDED, NO_STORE):
            return code
        # Wait, so that a process that cannot even start does not keep the machine busy.
        time.sleep(_PAUSE_SECONDS)


def _run_generation(arguments: argparse.Namespace) -> None:
    if not end_with_parent():
        return
    # Before any thread starts, since a thread would keep its rights, and before any library is loaded.
    if not arguments.unconfined:
        confine([], arguments.writable, multi_process=True, private_network=False)
    if arguments.over:
        from .launch import end_all

        end_all()
    else:
        from .following import follow

        follow(arguments)


if __name__ == "__main__":
    main()
