"""Connections make the library print on the terminal whatever anybody logs.

`SwarmConn` logs with `logging.debug` and `logging.warning` rather than with a logger of its own;
the first such call installs a handler on the root logger that prints. The patch uses a logger.
"""

from __future__ import annotations

import logging

import common


async def fault() -> bool:
    """Connect two hosts, and see whether the root logger has a handler."""
    async with common.pair():
        return bool(logging.root.handlers)


if __name__ == "__main__":
    common.report(fault)
