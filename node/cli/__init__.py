"""The command `distro-node`: one module per command, and `main`, which always ends with an exit code.

Importing this loads neither libp2p nor torch: commands load what they need when they run, so that
`distro-node --help` is fast.
"""

from .main import main

__all__ = ["main"]
