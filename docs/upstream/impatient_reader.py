"""A message that comes in more than 101 pieces is given up.

`read_exactly` reads 101 times at most and then says that the connection was closed: 8 MB over a
line of 50 Mbit/s break off after 6.6 MB. The patch reads until all is there, or nothing more comes.
"""

from __future__ import annotations

from typing import Any

import common
import libp2p.io.utils
from libp2p.io.exceptions import IncompleteReadError


async def fault() -> bool:
    """Read 200 bytes that come one by one."""

    class Dribble:
        async def read(self, n: int | None = None) -> bytes:
            return b"x"

    try:
        dribble: Any = Dribble()
        return await libp2p.io.utils.read_exactly(dribble, 200) != b"x" * 200
    except IncompleteReadError:
        return True


if __name__ == "__main__":
    common.report(fault)
