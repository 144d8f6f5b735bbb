"""The daemon: the parts that live as long as the program, around a series of sessions in the swarm.

It opens the network and serves the owner's commands. A session runs between two pauses (`SwarmSession`
for a member, `ObserverSession` for an observer). Every fault that a user can fix ends in a `UserError`;
everything stored stays valid, and the same command resumes.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Protocol, TypeVar

import trio

from .. import __version__
from ..crypto.identity import Identity, PeerId, peer_text
from ..protocol.wire.manifest import Manifest
from ..protocol.wire.swarm_id import swarm_text
from .control.limits import BandwidthLimits
from .control.supervisor import RunningSession, Supervisor
from .control.work_hours import WorkSchedule
from .dashboard.address import Address, open_address, open_metrics_address, url_and_token_link
from .dashboard.listener import ModelOfPage, serve_dashboard
from .dashboard.metrics_page import metrics_url, serve_metrics
from .dashboard.routes import Directory
from .energy.manager import EnergyManager
from .errors import ExitCode, UserError
from .memory_fit import survey_device
from .network.addresses import check_free, parse_dial, parse_listen
from .network.circuit_relay import MEMBER_CIRCUITS
from .network.errors import BadAddress, PortInUse
from .network.explain import explain_network
from .network.ip_families import with_family
from .network.network import Network, NetworkSettings, open_network
from .network.traffic import TrafficTotals
from .session.session import SwarmSession
from .settings.components import TrainerSettings
from .settings.tree import DaemonSettings
from .storage.data_dir import DataDir, open_identity
from .telemetry.counts import STALL_BUCKETS, Durations, NodeReading
from .telemetry.loop_lag import StallMeter
from .telemetry.metrics import NODE_METRICS
from .telemetry.status import NodeStatus
from .telemetry.telemetry import Telemetry
from .training.cuda_driver import has_cuda
from .util.background import keep_running
from .util.progress import Progress, ReportProgress

_log = logging.getLogger(__name__)

T = TypeVar("T")

_TICKET_BYTES = 64
# Pause before checking again for an address that this machine does not have yet, and the shortest time
# between log messages about that.
_RETRY_SECONDS = 2.0
_LOG_INTERVAL_SECONDS = 60.0


class Session(RunningSession, Protocol):
    """One session between two pauses: as a member, or as an observer (`observer`)."""

    async def run(self, ticket: bytes) -> None:
        """Run from the first connection to the end. Raises `UserError`."""
        ...

    @property
    def leave_requested(self) -> bool:
        """Whether the session was told to end; otherwise it ended by itself."""
        ...

    @property
    def run_is_over(self) -> bool:
        """Whether the swarm's run has ended and its result is on this disk."""
        ...


async def run_daemon(settings: DaemonSettings, model: ModelOfPage | None = None) -> bool:
    """Take part in a swarm until told to leave or until the run is over; return whether it is over.

    `model`: what the owner writes with on the page. Raises `UserError`.
    """
    await _check_device(settings.trainer)
    return await serve_owner(settings, SwarmSession, model=model)


async def _check_device(settings: TrainerSettings) -> None:
    """Raise `UserError` (`NO_DEVICE`) for a device that the owner named and that is not here. This takes
    seconds; finding out only after the model was fetched would take minutes. Where the driver's answer
    is enough, PyTorch is loaded once, by the trainer."""
    named = {*settings.device.split(",")} - {"auto", "cpu"}
    if named and not settings.under_torchrun and not await has_cuda(named):
        _log.info("looking for the device %s: PyTorch takes some seconds to load", settings.device)
        await survey_device(settings.device)


async def serve_owner(
    settings: DaemonSettings,
    open_session: Callable[..., Session],
    *,
    observer: bool = False,
    invite: Callable[[Manifest], str | None] = lambda _: None,
    model: ModelOfPage | None = None,
    directory: Directory | None = None,
) -> bool:
    """Serve the owner while one session follows another; return whether the run is over.

    `open_session(settings, data, identity, network, telemetry)` creates a session. The page shows all
    visitors the link that `invite` makes and the public swarms of `directory`, and lets the owner write
    with `model`. Raises `UserError`.
    """
    ticket = _decode_ticket(settings.invite.ticket)
    data = DataDir(settings.data_dir)
    data.create()
    with data.lock(), contextlib.ExitStack() as stack:
        identity = open_identity(data, settings.passphrase)
        telemetry, traffic = Telemetry(identity.peer), TrafficTotals()
        stalls = stack.enter_context(_measured_stalls())
        metrics = await _open_metrics(settings, stack)
        page = await _open_page(settings, stack)
        limits = BandwidthLimits(settings.line.max_upload, settings.line.max_download)
        schedule = WorkSchedule(settings.energy.active_hours)
        energy_manager = EnergyManager(settings.energy, schedule, telemetry, observes=observer)
        supervisor = Supervisor(
            socket=data.socket,
            limits=limits,
            link=lambda: url_and_token_link(page),
            schedule=schedule,
            telemetry=telemetry,
            node=_node_status(settings, identity.peer, telemetry.started, metrics, page, observer),
            screen=settings.console.shows_screen,
            energy=energy_manager.status,
        )
        dashboard_server = serve_dashboard(
            page,
            supervisor,
            data.swarm(settings.swarm),
            settings.swarm,
            identity.peer,
            invite,
            model=model,
            directory=directory,
            names=telemetry.names,
        )

        def reading() -> NodeReading:
            return NodeReading(
                status=supervisor.status(),
                counts=telemetry.counts.snapshot(),
                traffic=traffic.snapshot(),
                stalls=stalls.snapshot(),
                folder=data.root,
            )

        @contextlib.asynccontextmanager
        async def opened() -> AsyncIterator[Session]:
            async with _network(settings, limits, identity, traffic) as network:
                yield open_session(settings, data, identity, network, telemetry)

        async with (
            supervisor.open(),
            dashboard_server,
            serve_metrics(metrics, NODE_METRICS, reading),
            _run_energy_manager(energy_manager),
        ):
            return await _run_sessions(settings, supervisor, opened, ticket, telemetry.report)


async def _run_sessions(
    settings: DaemonSettings,
    supervisor: Supervisor,
    opened: Callable[[], contextlib.AbstractAsyncContextManager[Session]],
    ticket: bytes,
    report: ReportProgress,
) -> bool:
    """Run one session after another until the owner leaves or the run is over; return whether it is."""

    async def check_listening() -> None:
        await _when_available(settings, partial(_check_listening, settings), report)

    finished = False
    while await supervisor.next_session(check_listening):
        async with opened() as session:
            with supervisor.serving(session):
                await session.run(ticket)
        finished = session.run_is_over
        if not session.leave_requested:
            break
    return finished


def _node_status(
    settings: DaemonSettings,
    peer: PeerId,
    started: float,
    metrics: Address | None,
    page: Address | None,
    observer: bool,
) -> NodeStatus:
    return NodeStatus(
        version=__version__,
        peer=peer_text(peer),
        swarm=swarm_text(settings.swarm),
        started=started,
        metrics=metrics_url(metrics) if metrics is not None else None,
        dashboard=page.url if page is not None else None,
        until_round=settings.until_round,
        observer=observer,
    )


@contextlib.contextmanager
def _measured_stalls() -> Iterator[Durations]:
    """Inside the context, count how long the event loop stalls."""
    stalls = Durations(STALL_BUCKETS)
    meter = StallMeter(stalls.add)
    trio.lowlevel.add_instrument(meter)
    try:
        yield stalls
    finally:
        trio.lowlevel.remove_instrument(meter)


async def _open_metrics(settings: DaemonSettings, stack: contextlib.ExitStack) -> Address | None:
    """Open the address of the metrics, if they are wanted, as `_open_when_available` does."""
    if not settings.metrics_address:
        return None
    bind = partial(open_metrics_address, settings.metrics_address)
    return await _open_when_available(settings, bind, stack)


async def _open_page(settings: DaemonSettings, stack: contextlib.ExitStack) -> Address | None:
    return await _open_when_available(settings, partial(open_address, settings.dashboard), stack)


async def _open_when_available(
    settings: DaemonSettings, bind: Callable[[], Address | None], stack: contextlib.ExitStack
) -> Address | None:
    """Open an address as `_when_available` does, and close it when the stack ends."""
    address = await _when_available(settings, bind)
    if address is not None:
        stack.callback(address.close)
    return address


async def _when_available(
    settings: DaemonSettings,
    bind: Callable[[], T],
    report: ReportProgress = lambda _: None,
) -> T:
    """Return the result of `bind`; with `--wait`, retry until this machine has the address for it.

    Interfaces of VPNs, and those that DHCP configures, come up after the node at boot. Raises
    `UserError`.
    """
    logged = float("-inf")
    while True:
        try:
            return bind()
        except UserError as error:
            if error.code is not ExitCode.ADDRESS_MISSING or not settings.peering.wait:
                raise
            if trio.current_time() - logged >= _LOG_INTERVAL_SECONDS:
                logged = trio.current_time()
                _log.warning("%s; waiting for it", error.problem)
            report(Progress(what="waiting for the address to listen on"))
        await trio.sleep(_RETRY_SECONDS)


def _listen(settings: DaemonSettings) -> tuple[str, ...]:
    return settings.line.listen or NetworkSettings().listen


def _check_listening(settings: DaemonSettings) -> None:
    """Raise `UserError` if one of the addresses cannot be listened on."""
    try:
        for address in with_family([parse_listen(text) for text in _listen(settings)]):
            check_free(address)
    except (BadAddress, PortInUse) as error:
        raise explain_network(error) from None


@contextlib.asynccontextmanager
async def _run_energy_manager(manager: EnergyManager) -> AsyncIterator[None]:
    """Run the energy manager inside the context."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_running, manager.run)
        yield
        nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def _network(
    settings: DaemonSettings, limits: BandwidthLimits, identity: Identity, totals: TrafficTotals
) -> AsyncIterator[Network]:
    try:
        for address in settings.full_invite.bootstrap:
            parse_dial(address)
        network_settings = NetworkSettings(
            listen=_listen(settings),
            announce=settings.line.announce,
            max_upload=limits.upload,
            max_download=limits.download,
            circuit_limits=MEMBER_CIRCUITS,
        )
        async with open_network(network_settings, identity, totals) as network:
            yield network
    except (BadAddress, PortInUse) as error:
        raise explain_network(error) from None


def _decode_ticket(text: str | None) -> bytes:
    if text is None:
        return b""
    try:
        ticket = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (ValueError, binascii.Error):
        ticket = b""
    # A ticket is a signature. Peers that forward anything else for us would be penalised for it.
    if len(ticket) != _TICKET_BYTES:
        raise UserError(
            ExitCode.BAD_SWARM_ID,
            "the invite link's ticket is damaged",
            "copy the whole link again",
        )
    return ticket
