"""Prometheus metrics of a node: every metric, its meaning, and the page that serves them.

Label values come from fixed sets, so the number of series does not grow with the swarm, its age or the
imagination of its peers. `docs/reference.md` lists them in a table.
"""

from __future__ import annotations

import errno
import logging
import math
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from threading import BoundedSemaphore, Thread
from typing import Any, Literal, get_args
from wsgiref.simple_server import WSGIServer

import psutil
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    start_http_server,
)

from ..errors import ExitCode, UserError, address_missing
from ..settings import DEFAULT_METRICS_ADDRESS
from ..util.host_names import host_name, is_loopback, is_own_host
from .audit_metrics import AuditMetrics
from .families import Maker
from .own_rounds import OwnRound
from .status import State

_log = logging.getLogger(__name__)

StateLabel = Literal[State, "other"]
Phase = Literal["compute", "encode", "transfer", "agree", "apply", "other"]
# As in network/traffic.py.
Kind = Literal["update", "relayed", "blob", "gossip", "ledger", "other"]
_RELAYED = "; `relayed`: updates passed on for other members"
Scope = Literal["own", "swarm", "other"]
Side = Literal["own", "peer", "other"]
# The tasks of the preset `gpt4all`; others count as `other`.
Task = Literal[
    "arc_challenge",
    "arc_easy",
    "hellaswag",
    "openbookqa",
    "piqa",
    "winogrande",
    "other",
]
Owner = Literal["node", "trainer", "device", "other"]
Part = Literal["gpu", "processor", "other"]
# The reasons for which envelopes, decoders and the protocol's checks refuse a message.
Reason = Literal[
    "bad_hash",
    "bad_signature",
    "certificate",
    "checkpoint",
    "equivocation",
    "evidence",
    "frozen",
    "impersonation",
    "invalid",
    "audit",
    "malformed",
    "mismatch",
    "not_leader",
    "not_due",
    "not_member",
    "other_round",
    "oversized",
    "record",
    "refused_peer",
    "silences_us",
    "stale",
    "too_far",
    "too_many",
    "unknown_kind",
    "version",
    "wrong_parent",
    "wrong_swarm",
    "other",
]

# At the metrics page: a collector or two, and a person.
_MAX_READERS = 8
_READER_SECONDS = 5.0

# A small model on a LAN computes in tens of milliseconds, and the manifest's default limit of a collect
# phase is ten minutes; steps of about three tell a slow phase from a fast one.
DURATION_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 600.0)
# From imperceptible to what other peers take for a broken line.
_STALL_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


def new_registry(version: str) -> CollectorRegistry:
    """Return a registry with the metrics of every page: program version and process statistics."""
    # Otherwise every counter gets a second series with the time of its creation.
    disable_created_metrics()
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    Info("distro_build", "The version of distro-node.", registry=registry).info(
        {"version": version}
    )
    return registry


class Metrics(Maker):
    """The metrics of one node, in a registry of their own.

    libp2p puts counters labelled by peer, an unbounded set, into the client library's global registry,
    which is therefore not used. All members may be set from any thread.
    """

    def __init__(self, *, version: str) -> None:
        super().__init__(new_registry(version))
        self._state = self._family(
            Gauge,
            "state",
            "1 for the state that the node is in, 0 for the others.",
            "state",
            StateLabel,
        )
        self.trainer_restarts = self._single(
            Counter, "trainer_restarts_total", "Restarts of the trainer process."
        )
        self.trainer_idle = self._single(
            Counter,
            "trainer_idle_seconds_total",
            "Seconds in which the trainer was idle, or waited for training data.",
        )
        self.memory = self._family(
            Gauge,
            "memory_bytes",
            "Memory in use: resident in the node or trainer process, or allocated on the device.",
            "owner",
            Owner,
        )
        self.memory["node"].set_function(_resident_bytes)
        self.disk_free = self._single(
            Gauge, "disk_free_bytes", "Free space on the disk of the data directory."
        )
        self.disk_free.set(math.nan)
        self.stalls = self._single(
            Histogram,
            "event_loop_stall_seconds",
            "Steps of a task that blocked the node process's event loop for more than 10 ms.",
            buckets=_STALL_BUCKETS,
        )

        self.round = self._single(Gauge, "round", "Rounds applied since the swarm began.")
        self.final_round = self._single(
            Gauge, "final_round", "The last final round: no record up to it can change."
        )
        self.members = self._single(Gauge, "members", "Members in the current round.")
        self.share = self._single(
            Gauge, "share", "This node's share of the swarm's work, from 0 to 1."
        )
        self.capacity = self._single(
            Gauge,
            "capacity",
            "Sequences a day that this node last announced it can train; 0: it has announced none.",
        )
        self.training_loss = self._single(
            Gauge, "training_loss", "Mean training loss of the last round, nats per token."
        )
        self.heldout_loss = self._single(
            Gauge, "heldout_loss", "Loss on the held-out data when last measured, nats per token."
        )
        self.task_score = self._family(
            Gauge,
            "task_score",
            "The last result of `distro-node evaluate`: a task's accuracy or other main metric; "
            "`other` is the mean over custom tasks.",
            "task",
            Task,
        )
        for task in get_args(Task):
            self.task_score[task].set(math.nan)
        self.privacy_epsilon = self._unknown(
            "privacy_epsilon",
            "Differential privacy: the ε spent so far for one sequence of this node's private "
            "data; no number: it trains without it.",
        )
        # A number would mean a loss; nothing has been measured yet.
        self.training_loss.set(math.nan)
        self.heldout_loss.set(math.nan)
        self.tokens = self._family(
            Counter,
            "tokens_total",
            "Tokens trained on in the rounds that this node has applied.",
            "scope",
            Scope,
        )
        self.tokens_per_second = self._family(
            Gauge, "tokens_per_second", "Tokens per second over the last round.", "scope", Scope
        )
        self.model_flops_utilisation = self._single(
            Gauge,
            "model_flops_utilisation",
            "Floating-point operations a second that the model needed for this node's own updates over "
            "the last rounds, over what a large matrix product reaches on its device, from 0 to 1.",
        )
        self.model_flops_utilisation.set(math.nan)
        self.own_rounds = self._family(
            Counter,
            "own_rounds_total",
            "Rounds by this node's part in them: its update counted, was late, was left out; it had no "
            "work, or none was needed of it.",
            "own",
            Literal[OwnRound, "other"],
        )
        self.phase_seconds = self._family(
            Histogram,
            "round_phase_seconds",
            "Duration of the phases of a round.",
            "phase",
            Phase,
            buckets=DURATION_BUCKETS,
        )

        self.slots_skipped = self._single(
            Counter, "slots_skipped_total", "Slots of the consensus that ended without a record."
        )
        self.updates_late = self._single(
            Counter,
            "updates_late_total",
            "Updates of other members that arrived after their round was decided.",
        )
        self.updates_refunded = self._single(
            Counter,
            "updates_refunded_total",
            "Own updates that missed their round and went back into the momentum.",
        )
        self.updates_filtered = self._single(
            Counter,
            "updates_filtered_total",
            "Updates left out of the step by the outlier filter, since most others contradict "
            "them.",
        )
        self.fingerprint_mismatches = self._family(
            Counter,
            "fingerprint_mismatches_total",
            "Parameters found to differ from the swarm's: this node's own, or a peer's.",
            "side",
            Side,
        )
        self.audits = AuditMetrics(self.registry)
        """Metrics of the audits."""
        self.members_expelled = self._single(
            Counter,
            "members_expelled_total",
            "Members expelled by a record for contradicting themselves.",
        )
        self.resyncs = self._single(
            Counter, "resyncs_total", "Times this node dropped its state and fetched the swarm's."
        )

        self.peers_connected = self._single(
            Gauge, "peers_connected", "Peers with an open connection."
        )
        self.peers_relayed = self._single(
            Gauge, "peers_relayed", "Peers that are connected only through a relay."
        )
        self.reachable = self._single(
            Gauge,
            "reachable",
            "1 if others can dial this node, 0 if not; no number: not known yet.",
        )
        self.reachable.set(math.nan)
        self.update_bytes = self._single(
            Gauge, "update_bytes", "Size of the update that this node sent last."
        )
        self.sent = self._family(
            Counter, "sent_bytes_total", f"Bytes sent to peers{_RELAYED}.", "kind", Kind
        )
        self.received = self._family(
            Counter, "received_bytes_total", f"Bytes received from peers{_RELAYED}.", "kind", Kind
        )
        self.power = self._family(
            Gauge,
            "power_watts",
            "Power draw of a part of the computer, including other programs; no number: not known.",
            "part",
            Part,
        )
        for part in get_args(Part):
            self.power[part].set(math.nan)
        self.energy = self._family(
            Counter,
            "energy_joules_total",
            "Energy measured while the node was working; parts that cannot be measured are not "
            "included.",
            "part",
            Part,
        )
        self.energy_cost = self._unknown(
            "energy_cost", "Cost of that energy at `--price`; no number: not known."
        )
        self.joules_per_token = self._unknown(
            "joules_per_token",
            "That energy, divided by the tokens of this node's counted updates; no number: not "
            "known.",
        )
        self.pause_signal = self._unknown(
            "pause_signal",
            "The last value that `--pause-when` received; no number: there is no valid one.",
        )
        self.rejected = self._family(
            Counter,
            "messages_rejected_total",
            "Messages and blobs from peers that were rejected as invalid, or (`frozen`) never "
            "arrived.",
            "reason",
            Reason,
        )

    def set_state(self, state: State) -> None:
        """Set the state that the node is in, and reset all others."""
        for known in get_args(StateLabel):
            self._state[known].set(0)
        self._state[state].set(1)

    def watch_disk(self, folder: Path) -> None:
        """Measure the free space of this folder whenever the metrics are read."""

        def free() -> float:
            try:
                return shutil.disk_usage(folder).free
            except OSError:
                # Unknown, which is not the same as a full disk.
                return math.nan

        self.disk_free.set_function(free)

    def serve(self, address: tuple[str, int]) -> MetricsPage:
        """Serve the metrics over HTTP at a host and port, from a thread.

        Port 0 takes any free port. If the default address is in use, a free port is taken, too: a second
        node on this machine was not told where to serve. Raises `UserError`: `PORT_IN_USE` if another
        program listens there, `ADDRESS_MISSING` if this machine lacks the address, `BAD_ADDRESS` if it
        is invalid.
        """
        try:
            return serve_page(self.registry, address)
        except UserError as error:
            if error.code is not ExitCode.PORT_IN_USE or address != DEFAULT_METRICS_ADDRESS:
                raise
        found = serve_page(self.registry, (address[0], 0))
        _log.warning("port %d is taken: the metrics are at %s", address[1], found.url)
        return found


@dataclass(frozen=True)
class MetricsPage:
    """A metrics page that is being served."""

    url: str
    _server: WSGIServer
    _thread: Thread

    def close(self) -> None:
        """Stop serving and release the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve_page(registry: CollectorRegistry, address: tuple[str, int]) -> MetricsPage:
    """Serve a registry over HTTP, as `Metrics.serve` does."""
    host, port = address
    name = f"[{host}]" if ":" in host else host
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(
                ExitCode.PORT_IN_USE,
                f"cannot serve metrics at {name}:{port}: the port is in use",
                "another node may be running here; choose another port with --metrics-addr, or off",
            ) from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise address_missing(f"cannot serve metrics at {name}:{port}") from error
        raise UserError(
            ExitCode.BAD_ADDRESS,
            f"cannot serve metrics at {name}:{port}: {error.strerror or error}",
            "give --metrics-addr an address of this machine, such as 127.0.0.1:9464",
        ) from error
    _limit(server)
    server.set_app(_answer_own_host(server.get_app(), host))
    return MetricsPage(
        url=f"http://{name}:{server.server_port}/metrics", _server=server, _thread=thread
    )


def _answer_own_host(page: Any, served: str) -> Any:
    """Wrap a WSGI application so that it does not answer under a stranger's name (DNS rebinding).

    A name without a dot belongs to the owner's network, such as a container's: no stranger can register
    it.
    """

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        name = host_name(environ.get("HTTP_HOST", ""))
        if name is None or not (is_own_host(name, served) or _is_local_name(name, served)):
            start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
            return [b"this page answers to its own address alone\n"]
        return page(environ, start_response)

    return answer


def _is_local_name(name: str, served: str) -> bool:
    return not is_loopback(served) and re.fullmatch(r"[a-z_-][a-z0-9_-]*", name) is not None


def _limit(server: Any) -> None:
    """Bound the resources that clients can hold by sending nothing or disconnecting."""
    readers = BoundedSemaphore(_MAX_READERS)
    handle, close = server.process_request_thread, server.shutdown_request
    # The handler sets this timeout on its connection.
    server.RequestHandlerClass.timeout = _READER_SECONDS

    def begin(request: Any, client: Any) -> None:
        if readers.acquire(blocking=False):
            start_thread(request, client)
        else:
            close(request)

    def serve(request: Any, client: Any) -> None:
        try:
            handle(request, client)
        finally:
            readers.release()

    def forget(request: Any, client: Any) -> None:
        # The server would print a traceback for every client that sends nothing or disconnects early.
        _log.debug("%s read no metrics", client, exc_info=True)

    start_thread = server.process_request
    server.process_request, server.process_request_thread = begin, serve
    server.handle_error = forget


def _resident_bytes() -> float:
    return psutil.Process().memory_info().rss
