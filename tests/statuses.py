"""Example statuses for tests of code that shows one."""

from __future__ import annotations

from dataclasses import replace

from distro_node.node.telemetry.audit_status import AuditsStatus, ExcludedMember, OwnAudits
from distro_node.node.telemetry.privacy import PrivacyStatus
from distro_node.node.telemetry.status import (
    NO_ENERGY,
    NO_LINE,
    Awaited,
    Connection,
    EnergyStatus,
    EventStatus,
    Hold,
    LineStatus,
    Losses,
    MemberStatus,
    NodeStatus,
    OwnWork,
    ReachStatus,
    ScheduleStatus,
    Status,
    SwarmStatus,
    TrainerStatus,
    TrainingStatus,
)
from distro_node.node.telemetry.task_scores import TaskScore, TaskScores
from distro_node.node.util.progress import Progress

ME = "12D3KooWRwvjkGxUF6KC3rbtbQHNfmHL5VAFeCBbtYnshHRwn4H"
B, C = "12D3KooWaaaaaaBBBBBB", "12D3KooWaaaaaaCCCCCC"

MEMBERS = (
    MemberStatus(
        peer=ME, me=True, connected=True, last_message_seconds=None, share=0.5, capacity=86_400
    ),
    MemberStatus(
        peer=B,
        me=False,
        connected=True,
        last_message_seconds=0.4,
        share=0.25,
        capacity=500_000,
        share_reason="shrunk: came late",
    ),
    MemberStatus(
        peer=C, me=False, connected=False, last_message_seconds=12.0, share=0.25, share_reason="new"
    ),
)
EVENTS = tuple(
    EventStatus(time=1e6 + n, round=n, kind="joined", peer=ME, text=f"event {n}") for n in range(50)
)
SWARM = SwarmStatus(
    name="example",
    parameters=857_216,
    loss_unit="nats a token",
    start_members=3,
    round=18,
    last_round=120,
    final_round=14,
    members=MEMBERS,
    awaited=(),
    ended=False,
    decided_seconds=41.0,
    diverged=(),
    version=4,
    version_change=None,
    served_round=None,
    audits=None,
)
OWN_CHECKS = OwnAudits(
    counts=True,
    votes=1024,
    audited=12,
    low=1,
    failed=0,
    audits_made=9,
    reason=None,
    passes_until_counted=0,
)
CHECKS = AuditsStatus(
    audits=1430,
    low=12,
    disputes=1,
    votes=8192,
    voters=2,
    excluded=(ExcludedMember(peer=C, reason="3 of 14 checks of its work failed"),),
    own=OWN_CHECKS,
)
LEFT_OUT = replace(
    OWN_CHECKS, counts=False, votes=0, low=5, failed=3, reason="failed", passes_until_counted=63
)
SCORES = TaskScores(
    swarm="swarm-abc",
    round=15,
    record="ab" * 32,
    fingerprint="0123456789abcdef",
    time=1_000_100.0,
    fewshot=0,
    limit=None,
    lm_eval="0.4.9",
    tasks=(
        TaskScore(task="arc_easy", metric="acc", value=0.25, error=0.01, samples=2376),
        TaskScore(task="arc_easy", metric="acc_norm", value=0.26, error=None, samples=2376),
    ),
)
UNREACHABLE = ReachStatus(
    verdict="unreachable",
    observed="192.0.2.1",
    port=65535,
    mapped=None,
    relays=(B,),
    connections=(Connection(peer=B, way="relayed"), Connection(peer=C, way="direct")),
)
ENERGY = EnergyStatus(watts=213.7, kwh=0.5, measured=0.99, joules_per_token=4.5, why=None)
PRIVACY = PrivacyStatus(
    epsilon=1.25, delta=1e-6, limit=4.0, noise=0.8, clip=1.0, rounds=17, spent=False
)
TRAINING = Status(
    node=NodeStatus(
        version="0.1.0",
        peer=ME,
        swarm="swarm-abc",
        started=1_000_000.0,
        metrics="http://127.0.0.1:9464/metrics",
        dashboard="http://127.0.0.1:9465/",
        until_round=None,
        observer=False,
    ),
    state="training",
    progress=None,
    schedule=ScheduleStatus(at_work=True, by_command=False, active=None, until=None, holds=()),
    training=TrainingStatus(
        round=17,
        phase="compute",
        round_seconds=72.5,
        fingerprint="0123456789abcdef",
        losses=Losses(training=3.4567, heldout=3.5, heldout_round=15),
        tokens=1_234_567,
        tokens_per_second=3_100.0,
        received_bytes_per_round=6120.0,
        own=OwnWork(
            counted=14,
            late=1,
            left_out=0,
            no_work=2,
            not_needed=0,
            missed_in_a_row=0,
            tokens=400_000,
            first_round=3,
            last_round=17,
            update_bytes=3060.0,
            bits_per_coefficient=10.56,
            last_update_bytes=3061,
            tokens_per_second=790.0,
        ),
        trainer=TrainerStatus(
            device="cpu",
            memory_use=None,
            sandbox=("files", "network", "sockets"),
            restarts=0,
            idle=None,
            tokens_per_second=812.5,
            flops_per_second=2.5e9,
            utilisation=0.03125,
            process_bytes=500_000_000,
            device_bytes=None,
        ),
    ),
    swarm=SWARM,
    seconds_left=7467.5,
    scores=SCORES,
    line=LineStatus(
        relayed_bytes=3_400_000_000,
        sent_bytes=100_000,
        received_bytes=200_000,
        peers=2,
        peers_relayed=1,
        bootstrap=True,
        addresses=(f"/ip4/192.0.2.1/tcp/4001/p2p/{ME}/p2p-circuit/p2p/{ME}",),
        max_upload=625_000.0,
        max_download=None,
    ),
    reach=None,
    energy=ENERGY,
    privacy=PRIVACY,
    events=EVENTS,
)
AWAITING = replace(
    TRAINING,
    swarm=replace(
        SWARM,
        awaited=(Awaited(peer=C, silent_seconds=12.2, lease_seconds=20.0),),
        diverged=(B,),
        audits=CHECKS,
    ),
    reach=UNREACHABLE,
    progress=Progress(what="replaying rounds", done=3, total=None),
    schedule=ScheduleStatus(
        at_work=True,
        by_command=True,
        active="22:00-07:00",
        until="07:00",
        holds=(
            Hold(kind="command", text="the command of --pause-when requests a pause", waived=True),
        ),
    ),
)
EARLY = Status(
    node=replace(TRAINING.node, metrics=None, dashboard=None),
    state="syncing",
    progress=Progress(what="fetching the model", done=3, total=8),
    schedule=TRAINING.schedule,
    training=TrainingStatus(
        round=None,
        phase="idle",
        round_seconds=None,
        fingerprint=None,
        losses=Losses(training=None, heldout=None, heldout_round=None),
        tokens=0,
        tokens_per_second=None,
        received_bytes_per_round=None,
        own=OwnWork(
            counted=0,
            late=0,
            left_out=0,
            no_work=0,
            not_needed=0,
            missed_in_a_row=0,
            tokens=0,
            first_round=None,
            last_round=None,
            update_bytes=None,
            bits_per_coefficient=None,
            last_update_bytes=None,
            tokens_per_second=None,
        ),
        trainer=TrainerStatus(
            device=None,
            memory_use=None,
            sandbox=None,
            restarts=0,
            idle=None,
            tokens_per_second=None,
            flops_per_second=None,
            utilisation=None,
            process_bytes=None,
            device_bytes=None,
        ),
    ),
    swarm=None,
    seconds_left=None,
    scores=None,
    line=NO_LINE,
    reach=None,
    energy=NO_ENERGY,
    privacy=None,
    events=(),
)
OBSERVING = replace(
    TRAINING,
    node=replace(TRAINING.node, observer=True),
    state="observing",
    swarm=replace(SWARM, members=tuple(replace(each, me=False) for each in MEMBERS)),
    training=replace(TRAINING.training, own=EARLY.training.own, trainer=EARLY.training.trainer),
    reach=None,
)
