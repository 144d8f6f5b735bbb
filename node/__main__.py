"""`python -m distro_node.node` is the command `distro-node`, and this module its entry.

The command line and what it stands on take a good part of a second to load, and whoever presses Ctrl-C
then has not started anything yet: the process ends without a word.
"""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Run the command line and exit; the console entry of the package."""
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from .cli import main as run

    signal.signal(signal.SIGINT, before)
    run()


if __name__ == "__main__":
    main()
