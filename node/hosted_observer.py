"""An observer of one swarm inside a bootstrap peer, with the swarm's page.

It shares the bootstrap peer's identity, network and process. Its page is read-only. If an error keeps it
from following the swarm, the error is logged and shown on the page, and the observer tries again; the
bootstrap peer goes on.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace

import trio

from .. import __version__
from ..crypto.identity import Identity, peer_text
from ..protocol.wire.introductions import Registry
from ..protocol.wire.manifest import Manifest
from ..protocol.wire.swarm_id import swarm_text
from .control.command_socket import Handler
from .control.supervisor import merged_status
from .dashboard.address import Address, open_address
from .dashboard.listener import serve_dashboard
from .errors import UserError, leaves
from .listing.own_directory import OwnDirectory
from .listing.swarm_list import SwarmList
from .network.addresses import parse_dial
from .network.network import Network
from .observer import ObserverSession, public_link
from .settings.tree import DaemonSettings
from .storage.data_dir import DataDir
from .storage.disk_faults import explain_disk
from .telemetry.status import NO_LINE, NodeStatus, ScheduleStatus, SessionStatus, Status
from .telemetry.telemetry import Telemetry
from .util.progress import Progress

_log = logging.getLogger(__name__)

# Wait before trying again after an error, such as a full disk.
_RETRY_SECONDS = 60.0
# Addresses of the bootstrap peer in the links on its page.
_LINKED_ADDRESSES = 4
_ALWAYS = ScheduleStatus(at_work=True, by_command=False, active=None, until=None, holds=())


@contextlib.contextmanager
def open_hosted_observer(settings: DaemonSettings, identity: Identity) -> Iterator[HostedObserver]:
    """Yield an observer whose page is already bound to its address, so that a bad address fails at once.

    Raises `UserError` (`BAD_ADDRESS`, `ADDRESS_MISSING`).
    """
    with contextlib.ExitStack() as stack:
        address = open_address(settings.dashboard)
        if address is not None:
            stack.callback(address.close)
        yield HostedObserver(settings, identity, address)


class HostedObserver:
    """The observer that the page shows. `run` follows the swarm and serves the page."""

    def __init__(
        self, settings: DaemonSettings, identity: Identity, address: Address | None
    ) -> None:
        """`settings.full_invite` may contain the bootstrap peer itself, since the swarm's links name it;
        `settings.peering` adds no bootstrap peers."""
        own = peer_text(identity.peer)
        self._settings = settings
        self._identity = identity
        self._address = address
        self._data = DataDir(settings.data_dir)
        self._telemetry = Telemetry(identity.peer)
        self._session: ObserverSession | None = None
        bootstrap = settings.full_invite.bootstrap
        others = tuple(address for address in bootstrap if parse_dial(address)[1] != identity.peer)
        self._session_settings = replace(
            settings, invite=replace(settings.invite, bootstrap=others)
        )
        self._node = NodeStatus(
            version=__version__,
            peer=own,
            swarm=swarm_text(settings.swarm),
            started=self._telemetry.started,
            metrics=None,
            dashboard=self.url,
            until_round=None,
            observer=True,
        )

    @property
    def commands(self) -> Mapping[str, Handler]:
        """Empty: the page offers no commands, because its owner has a terminal."""
        return {}

    @property
    def url(self) -> str | None:
        """The page's URL."""
        return None if self._address is None else self._address.url

    @property
    def swarm(self) -> str:
        """The swarm-id."""
        return self._node.swarm

    def status(self) -> Status:
        """Return what the page shows."""
        nothing = SessionStatus(swarm=None, line=NO_LINE, reach=None)
        now = nothing if self._session is None else self._session.status()
        return merged_status(self._node, _ALWAYS, self._telemetry, now)

    async def run(
        self, network: Network, registry: Registry, listed: SwarmList | None = None
    ) -> None:
        """Follow the swarm over a bootstrap peer's network, and serve the page, until cancelled.
        `registry` has the peer records that members have sent to that bootstrap peer. `listed` is its
        list of public swarms, which the page shows too; None if it has none."""

        def invite(manifest: Manifest) -> str | None:
            entry = self._settings.full_invite
            bootstrap = entry.bootstrap or tuple(network.addresses)
            return public_link(replace(entry, bootstrap=bootstrap), manifest)

        files, me = self._data.swarm(self._settings.swarm), self._identity.peer
        directory = None
        if listed is not None:
            directory = OwnDirectory(listed, lambda: network.addresses[:_LINKED_ADDRESSES]).rows
        served = serve_dashboard(
            self._address,
            self,
            files,
            self._settings.swarm,
            me,
            invite,
            directory=directory,
            names=self._telemetry.names,
        )
        async with served:
            logged = ""
            while True:
                problem = await self._follow_swarm(network, registry)
                text = f"{problem.problem}: {problem.remedy}"
                if text != logged:
                    _log.error("the swarm cannot be followed: %s", text)
                    logged = text
                self._telemetry.enter("connecting")
                what = f"the swarm cannot be followed: {problem.problem}"
                self._telemetry.report(Progress(what=what))
                await trio.sleep(_RETRY_SECONDS)

    async def _follow_swarm(self, network: Network, registry: Registry) -> UserError:
        """Follow the swarm until an error that the owner has to fix, and return that error."""
        problems: list[UserError] = []
        session = self._session = ObserverSession(
            self._session_settings, self._data, self._identity, network, self._telemetry, registry
        )
        try:
            # An observer needs no ticket.
            await session.run(b"")
        except* UserError as group:
            problems += (error for error in leaves(group) if isinstance(error, UserError))
        except* OSError as group:
            explained = [explain_disk(error) for error in leaves(group)]
            if None in explained:
                # Not a disk fault, so a bug of ours.
                raise
            problems += (error for error in explained if error is not None)
        return problems[0]
