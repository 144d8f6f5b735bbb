"""Somebody who knows nothing but a public key passes for its owner.

By default a host also takes `/plaintext/2.0.0`, where the other side names its public key and
proves nothing. The patch leaves that to whoever asks for it with `sec_opt`.
"""

from __future__ import annotations

from typing import Any

import common
import trio
from libp2p import new_host
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID, InsecureTransport


async def fault() -> bool:
    """Call a host under a borrowed key."""
    victim, mallory = common.keys(77).public_key, common.keys(78)

    class BorrowedKey:
        def get_public_key(self) -> Any:
            return victim

        def __getattr__(self, name: str) -> Any:
            return getattr(mallory.private_key, name)

    transport: Any = InsecureTransport(mallory)
    transport.local_peer = ID.from_pubkey(victim)
    transport.local_private_key = BorrowedKey()
    attacker = new_host(key_pair=mallory, sec_opt={TProtocol(PLAINTEXT_PROTOCOL_ID): transport})
    server = common.make_host(2)
    seen: list[ID] = []

    async def note(stream: Any) -> None:
        seen.append(stream.muxed_conn.peer_id)
        await common.echo(stream)

    server.set_stream_handler(common.ECHO, note)
    async with server.run(common.LISTEN), attacker.run(common.LISTEN):
        try:
            with trio.fail_after(3):
                await common.connect(attacker, server)
            await common.answers(attacker, server)
        except Exception:
            # Refused.
            return False
    return ID.from_pubkey(victim) in seen


if __name__ == "__main__":
    common.report(fault)
