"""Network delay in user space: packets through a router wait before they go on.

This kernel has no netem, so the packets go through a tunnel device whose other end is this program.
It holds each for the same time and returns it in the same order. Run in the router's namespace:

    python slow_link.py SECONDS LINK…

Packets that arrive over one of the links are delayed. A line on stdout reports that it has started.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence

DEVICE = "distance"

# From linux/if_tun.h: a tunnel of bare IP packets, without a header of its own.
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_TABLE = "77"
_PACKET_BYTES = 1 << 16
# The device's own queue: a second of the fastest line.
_QUEUE_PACKETS = 10_000
_BATCH = 256


def delay(seconds: float, links: Sequence[str]) -> None:
    """Delay packets that arrive over `links`, for ever."""
    tunnel = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI)
    fcntl.ioctl(tunnel, _TUNSETIFF, request)
    _ip("link", "set", DEVICE, "up", "txqueuelen", str(_QUEUE_PACKETS))
    _ip("route", "add", "default", "dev", DEVICE, "table", _TABLE)
    for link in links:
        _ip("rule", "add", "iif", link, "lookup", _TABLE)
    print("delaying", flush=True)
    waiting: deque[tuple[float, bytes]] = deque()
    while True:
        patience = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        if select.select([tunnel], [], [], patience)[0]:
            due = time.monotonic() + seconds
            for _ in range(_BATCH):
                try:
                    waiting.append((due, os.read(tunnel, _PACKET_BYTES)))
                except BlockingIOError:
                    break
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            os.write(tunnel, waiting.popleft()[1])


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


if __name__ == "__main__":
    delay(float(sys.argv[1]), sys.argv[2:])
