"""Entry point of the command `distro-node`, and of `python -m distro_node.node`.

Importing the command line takes a good part of a second. A Ctrl-C during the import has no work to
interrupt, so the process ends without output.
"""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Run the command line and exit; the package's console script calls this."""
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from .cli import main as run

    signal.signal(signal.SIGINT, before)
    run()


if __name__ == "__main__":
    main()
