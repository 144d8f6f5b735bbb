"""Counts what a node sends, for `traffic.py`: Python imports this file at its start.

The counts of each process are in a file of their own, in the directory that `TRACED_NODE` names.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

_DIRECTORY = os.environ.get("TRACED_NODE")
_MODULES = tuple(f"distro_node.node.network.{name}" for name in ("pubsub", "connection"))
_LOADING_SECONDS = 120.0
_WRITE_SECONDS = 0.5
_HEADER = struct.Struct(">BBHII")


def _count(counts: Counter[str]) -> None:
    """Wrap the methods that send."""
    from libp2p.network.stream.net_stream import NetStream

    pubsub: Any = sys.modules[_MODULES[0]]
    connection: Any = sys.modules[_MODULES[1]]
    write_message = pubsub.HardenedPubsub.write_msg
    write_wire = connection.GuardedConnection.write
    write_stream = NetStream.write

    async def message(self: Any, stream: Any, rpc: Any) -> bool:
        for each in rpc.publish:
            counts["gossip messages"] += 1
            counts["gossip, content"] += len(each.data)
            counts["gossip, around it"] += each.ByteSize() - len(each.data)
        if not rpc.publish:
            counts["gossip, announcements and control"] += rpc.ByteSize()
        return await write_message(self, stream, rpc)

    async def stream(self: Any, data: bytes) -> None:
        name = str(self.get_protocol() or "opening streams")
        if not name.startswith("/meshsub/"):
            counts[name] += len(data)
        await write_stream(self, data)

    async def wire(self: Any, data: bytes) -> None:
        counts["writes"] += 1
        at = 0
        while at + _HEADER.size <= len(data):
            _, kind, _, _, length = _HEADER.unpack_from(data, at)
            counts["frame headers"] += _HEADER.size
            at += _HEADER.size + (0 if kind else length)
        await write_wire(self, data)

    pubsub.HardenedPubsub.write_msg = message
    connection.GuardedConnection.write = wire
    NetStream.write = stream


def _run(directory: Path) -> None:
    counts: Counter[str] = Counter()
    deadline = time.monotonic() + _LOADING_SECONDS
    while not all(name in sys.modules for name in _MODULES):
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)
    # The last of them is executed to its end.
    time.sleep(_WRITE_SECONDS)
    _count(counts)
    file = directory / f"{os.getpid()}.json"
    while True:
        time.sleep(_WRITE_SECONDS)
        part = file.with_suffix(".part")
        part.write_text(json.dumps(dict(counts)))
        part.replace(file)


if _DIRECTORY is not None:
    threading.Thread(target=_run, args=(Path(_DIRECTORY),), daemon=True).start()
