"""What a network says of its line, and what of that is kept."""

from __future__ import annotations

import trio

from ..network.network import Network
from ..storage.carried import Carried
from .status import LineStatus

_KEEP_SECONDS = 60.0


def line_status(network: Network, carried: Carried, *, bootstrap: bool) -> LineStatus:
    """The line now; `bootstrap`: whether it leads to a bootstrap peer."""
    carried.note(network.carried_bytes())
    sent, received = network.wire_bytes()
    traffic = network.traffic
    return LineStatus(
        sent_bytes=sent,
        received_bytes=received,
        carried_bytes=carried.total,
        peers=len(network.connected()),
        bootstrap=bootstrap,
        addresses=tuple(network.addresses),
        max_upload=traffic.upload.limit,
        max_download=traffic.download.limit,
    )


async def keep_count(network: Network, carried: Carried) -> None:
    """Keep the count of what is carried between others on the disk, for ever, and in the end."""
    try:
        while True:
            await trio.sleep(_KEEP_SECONDS)
            carried.note(network.carried_bytes())
            await trio.to_thread.run_sync(carried.keep)
    finally:
        # The node is ending; nobody waits for its loop any more.
        carried.note(network.carried_bytes())
        carried.keep()
