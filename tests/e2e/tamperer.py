"""A member that does everything wrong, as a process of its own: `python tamperer.py LINK SEED-HEX
[LISTEN]`.

It gets admitted like any peer, then sends forged, garbled and false messages in every round, and
garbage on every protocol. It prints a JSON line for each action, so that a test knows it happened.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import trio
from distro_node.crypto.envelope import Envelope, EnvelopeError, open_envelope, sign
from distro_node.crypto.hashing import ContentId
from distro_node.crypto.identity import Identity, PeerId
from distro_node.node.network.discovery.introductions import Introducer
from distro_node.node.network.errors import RequestError
from distro_node.node.network.exchange.blobs import PROTOCOL as BLOB_PROTOCOL
from distro_node.node.network.exchange.blobs import BlobFetcher, serve_blobs
from distro_node.node.network.network import Network, NetworkSettings, open_network
from distro_node.node.session.sync import ask_any, catch_up
from distro_node.node.storage.blob_store import BlobStore
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.sync import SYNC_PROTOCOL
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.manifest import MAX_MANIFEST_BYTES, Manifest, decode_manifest
from distro_node.protocol.wire.messages import (
    NO_BLOCK,
    Announcement,
    Ballot,
    JoinRequest,
    Message,
    Proposal,
    Record,
    decode_message,
)
from distro_node.protocol.wire.swarm_id import parse_invite

PROTOCOLS = (BLOB_PROTOCOL, SYNC_PROTOCOL, "/distro/introduce/1")


class Tamperer:
    """The state of the process: the swarm, and what to do next."""

    def __init__(self, network: Network, identity: Identity, manifest: Manifest, store: BlobStore):
        self.network = network
        self.identity = identity
        self.manifest = manifest
        self.store = store
        self.ledger = Ledger(manifest)
        self.topic = f"distro/{manifest.swarm.hex()}"
        self.fingerprint: int | None = None

    async def run(self) -> None:
        done = -1
        # From the mildest to the worst: each may be the one that gets it expelled.
        tricks: list[Callable[[int], Envelope]] = [
            self.wrong_fingerprint,
            # In three rounds: on a busy machine a node may be in the next one when it receives it.
            *(3 * [self.proposal_out_of_turn]),
            self.garbage_body,
            self.bad_signature,
            self.ballot_of_another,
        ]
        while True:
            await self.follow()
            round_ = len(self.ledger)
            if self.identity.peer not in self.ledger.membership(round_):
                await self.publish(self.sealed("join", JoinRequest(round_, b"")))
            elif round_ != done and self.fingerprint is not None:
                done = round_
                if tricks:
                    trick = tricks.pop(0)
                    await self.publish(trick(round_))
                    say(trick.__name__, round_)
                else:
                    await self.flood_protocols()
                    say("garbage_on_every_protocol", round_)
            await trio.sleep(0.1)

    async def follow(self) -> None:
        """Catch up with the ledger, and learn the current fingerprint from the others' announcements."""
        before = len(self.ledger)
        # Carefully: there may be another byzantine peer, with its own chain.
        await catch_up(
            *(self.network, self.manifest, self.ledger),
            keep=lambda entry: None,
            replace_chain=lambda ledger: None,
            report=lambda done, total: None,
        )
        if len(self.ledger) > before:
            self.fingerprint = None
        found = await ask_any(self.network, self.manifest, len(self.ledger), set)
        for raw in found[1].envelopes if found is not None else ():
            message = decode_message(open_envelope(raw, swarm=self.manifest.swarm))
            if isinstance(message, Announcement) and message.parent == self.ledger.head:
                self.fingerprint = message.fingerprint

    # The tricks

    def wrong_fingerprint(self, round_: int) -> Envelope:
        assert self.fingerprint is not None
        return self.sealed("announcement", self.announcement(round_, self.fingerprint ^ 1))

    def garbage_body(self, round_: int) -> Envelope:
        assert self.fingerprint is not None
        return self.sealed("announcement", self.announcement(round_, self.fingerprint))

    def bad_signature(self, round_: int) -> Envelope:
        good = self.wrong_fingerprint(round_)
        return dataclasses.replace(good, signature=bytes(64))

    def ballot_of_another(self, round_: int) -> Envelope:
        others = [p for p in self.ledger.membership(round_).peers if p != self.identity.peer]
        mask = self.ledger.membership(round_).mask(())
        skip = self.sealed("skip", Ballot(round_, self.ledger.head, 1, NO_BLOCK, mask))
        return dataclasses.replace(skip, sender=others[0])

    def proposal_out_of_turn(self, round_: int) -> Envelope:
        ledger = self.ledger
        leaders = ledger.leaders(round_)
        slot = next(s for s in (1, 2) if leaders[s] != self.identity.peer)
        record = Record(round_, self.ledger.head, self.fingerprint or 0, (), (), (), None)
        return self.sealed("proposal", Proposal(slot, record))

    async def flood_protocols(self) -> None:
        for peer in self.network.connected():
            for protocol in PROTOCOLS:
                for garbage in (b"", b"\xff" * 32, b"\xc1" * 1000, bytes(100_000)):
                    try:
                        await self.network.request(
                            peer, protocol, garbage, max_response=1 << 20, timeout=5
                        )
                    except RequestError:
                        continue

    # Helpers

    def announcement(self, round_: int, fingerprint: int) -> Announcement:
        body = b"no update" * 100 + round_.to_bytes(8, "big")
        blob = self.store.put(body)
        return Announcement(round_, self.ledger.head, blob, len(body), 100, 1.0, fingerprint)

    def sealed(self, kind: str, message: Message) -> Envelope:
        return sign(self.identity, kind, self.manifest.swarm, encode(message))

    async def publish(self, envelope: Envelope) -> None:
        await self.network.publish(self.topic, envelope.encode())


def say(what: str, round_: int) -> None:
    print(json.dumps({"did": what, "round": round_}), flush=True)


async def main(link: str, seed: str, listen: str = "/ip4/127.0.0.1/tcp/0") -> None:
    invite = parse_invite(link)
    identity = Identity.from_seed(bytes.fromhex(seed))
    settings = NetworkSettings(listen=(listen,))
    with tempfile.TemporaryDirectory() as folder:
        store = BlobStore(Path(folder))
        async with open_network(settings, identity) as network, trio.open_nursery() as nursery:
            introducer = Introducer(network, identity, invite.swarm, invite.bootstrap)
            nursery.start_soon(introducer.run)
            await introducer.first_contact(30)
            serve_blobs(network, store)

            def providers() -> list[PeerId]:
                return list(network.connected())

            data = await BlobFetcher(network, store).fetch(
                ContentId(invite.swarm),
                max_bytes=MAX_MANIFEST_BYTES,
                providers=providers,
                timeout=60,
            )
            manifest = decode_manifest(data, invite.swarm)
            tamperer = Tamperer(network, identity, manifest, store)
            await network.subscribe(tamperer.topic, lambda sender, data: None)
            while True:
                try:
                    await tamperer.run()
                except (EnvelopeError, ProtocolError, RequestError):
                    # Disconnected in the middle of something, or deceived by another liar: try again.
                    await trio.sleep(0.5)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:4])
