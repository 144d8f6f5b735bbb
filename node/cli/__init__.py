"""The command `distro-node`: one module a command, and `main`, which nothing passes but exit codes.

Importing this loads neither libp2p nor torch: commands load what they need when they run, so that
`distro-node --help` answers at once.
"""

from .main import main

__all__ = ["main"]
