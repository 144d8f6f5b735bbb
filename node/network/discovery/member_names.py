"""Names that members choose for themselves, for the people who look at a swarm's page.

A member signs its name for one swarm and sends it to peers that ask, who keep it over a restart. A
name proves nothing, since anybody can take any name: it is shown beside the peer id, and nothing depends
on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NoReturn

import trio

from ....crypto.envelope import SWARM_ID_BYTES, seal
from ....crypto.identity import Identity, PeerId
from ....protocol.util.bounded_dict import BoundedTable
from ....protocol.wire.encoding import decode, encode
from ....protocol.wire.errors import ProtocolError
from ....protocol.wire.manifest import SwarmId
from ....protocol.wire.sealed import open_sealed
from ....protocol.wire.structure import Length
from ...settings.values import MAX_DISPLAY_NAME_CHARACTERS
from ...util.sanitize import harmless
from ..cancel_scopes import shielded
from ..errors import NotHere, RequestError
from ..network import Network
from .names_file import MAX_NAMES, NamesFile

PROTOCOL = "/distro/name/1"
"""Request: a swarm-id. Answer: the sealed name of the asked member; refused if it has none."""

MAX_NAME_BYTES = 320
"""Size of an envelope around a name of 32 characters of four bytes each, with some margin."""

_KIND = "name"
_REQUEST_TIMEOUT_SECONDS = 10.0
_MAX_PARALLEL = 16
# How often a peer is asked, and how often to look for peers that are to be asked.
_RENEWAL_SECONDS = 600.0
_POLL_SECONDS = 5.0
_MAX_ASKED = 4096
_SAVE_SECONDS = 60.0
_LAST_SAVE_SECONDS = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _NameBody:
    name: Annotated[str, Length(1, MAX_DISPLAY_NAME_CHARACTERS)]


def seal_name(identity: Identity, swarm: SwarmId, name: str) -> bytes:
    """Sign the name of a member of a swarm."""
    return seal(identity, _KIND, swarm, encode(_NameBody(name)), max_bytes=MAX_NAME_BYTES)


def open_name(data: bytes, swarm: SwarmId, peer: PeerId) -> str:
    """Check the sealed name of a peer in this swarm and return it, with characters that a terminal
    obeys spelled out. Raises `ProtocolError`."""
    sender, name = open_any_name(data, swarm)
    if sender != peer:
        raise ProtocolError("impersonation", "a peer sent another peer's name as its own")
    return name


def open_any_name(data: bytes, swarm: SwarmId) -> tuple[PeerId, str]:
    """Return the peer that sealed a name, and the name, as `open_name` does."""
    envelope = open_sealed(data, swarm, _KIND, "a name", max_bytes=MAX_NAME_BYTES)
    return envelope.sender, harmless(
        decode(_NameBody, envelope.body, max_bytes=MAX_NAME_BYTES).name
    )


class MemberNames:
    """Sends this member's own name to peers that ask, and asks them for theirs."""

    def __init__(
        self,
        network: Network,
        identity: Identity,
        swarm: SwarmId,
        own: str | None,
        known: MutableMapping[PeerId, str],
        askable: Callable[[], Iterable[PeerId]],
        path: Path | None = None,
    ) -> None:
        """Put names into `known`, a bounded table. `own` is this member's name; None: it has none.
        `askable` returns the connected peers that may be asked about this swarm. `path` is the file in
        which names outlast a restart."""
        self._network = network
        self._swarm = swarm
        self._known = known
        self._askable = askable
        self._asked: BoundedTable[PeerId, float] = BoundedTable(_MAX_ASKED)
        self._file = None if path is None else NamesFile(path, MAX_NAME_BYTES)
        self._sealed_names: BoundedTable[PeerId, bytes] = BoundedTable(MAX_NAMES)
        self._sealed = None if own is None else seal_name(identity, swarm, own)
        if own is not None:
            known[identity.peer] = harmless(own)
        network.serve(PROTOCOL, self._answer, max_request=SWARM_ID_BYTES, max_concurrent=16)

    async def run(self) -> None:
        """Ask every peer that may be asked, now and then; for ever. Remembered names come first."""
        if self._file is not None:
            await trio.to_thread.run_sync(self._remember)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._save_regularly)
                await self._ask_regularly(nursery)
        finally:
            with shielded(_LAST_SAVE_SECONDS):
                await self._save()

    def _remember(self) -> None:
        for sealed in self._file.load() if self._file is not None else ():
            try:
                peer, name = open_any_name(sealed, self._swarm)
            except ProtocolError as error:
                _log.warning("a name of a member on this disk is invalid: %s", error)
                return
            self._sealed_names[peer] = sealed
            self._known.setdefault(peer, name)

    async def _save_regularly(self) -> None:
        while True:
            await trio.sleep(_SAVE_SECONDS)
            await self._save()

    async def _save(self) -> None:
        if self._file is not None and self._sealed_names:
            names = list(self._sealed_names.values())
            await trio.to_thread.run_sync(self._file.save, names)

    async def _ask_regularly(self, nursery: trio.Nursery) -> NoReturn:
        # Some peers do not answer; they must not delay the others' names.
        slots = trio.Semaphore(_MAX_PARALLEL)
        while True:
            for peer in list(self._askable()):
                now = trio.current_time()
                if now - self._asked.get(peer, float("-inf")) >= _RENEWAL_SECONDS:
                    self._asked[peer] = now
                    await slots.acquire()
                    nursery.start_soon(self._ask, peer, slots)
            await trio.sleep(_POLL_SECONDS)

    async def _answer(self, peer: PeerId, swarm: bytes) -> bytes:
        if self._sealed is None or swarm != self._swarm:
            raise NotHere
        return self._sealed

    async def _ask(self, peer: PeerId, slots: trio.Semaphore) -> None:
        try:
            data = await self._network.request(
                peer,
                PROTOCOL,
                self._swarm,
                max_response=MAX_NAME_BYTES,
                timeout=_REQUEST_TIMEOUT_SECONDS,
            )
            self._known[peer] = open_name(data, self._swarm, peer)
            # In the order in which they were learned: a name that is confirmed keeps its place.
            if self._sealed_names.get(peer) != data:
                self._sealed_names[peer] = data
        except RequestError:
            # It has no name, or an older program.
            pass
        except ProtocolError as error:
            self._network.penalise(peer, error.reason)
        finally:
            slots.release()
