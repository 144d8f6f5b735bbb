"""One fixed instance of every wire format of `protocol/`, with the function that decodes it.

Every field is given here, and everything that a signature or an id depends on: the bytes change only
with the formats.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from distro_node.crypto.envelope import Envelope
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import Identity, PeerId
from distro_node.protocol.chain.entry_store import decode_decided
from distro_node.protocol.chain.sync import (
    SyncRequest,
    SyncResponse,
    decode_request,
    decode_response,
)
from distro_node.protocol.wire.blobs import CHUNK_BYTES, BlobList, decode_blob_list
from distro_node.protocol.wire.encoding import decode, encode
from distro_node.protocol.wire.manifest import (
    PROTOCOL_VERSION,
    AdapterSpec,
    AdmissionSpec,
    AuditsSpec,
    DataSpec,
    Manifest,
    OptimizerSpec,
    ParameterSpec,
    RoundSpec,
    ScheduleSpec,
    ShardSpec,
    SwarmId,
    decode_manifest,
)
from distro_node.protocol.wire.messages import (
    MESSAGE_TYPES,
    NO_BLOCK,
    AdmissionEntry,
    Announcement,
    AuditEntry,
    AuditScore,
    Ballot,
    BallotHalf,
    Certificate,
    Decided,
    DepartureEntry,
    Evidence,
    Heartbeat,
    JoinRequest,
    Leave,
    Proposal,
    ReauditEntry,
    Record,
    RecordId,
    SignedAnnouncement,
    SignedBallot,
    SnapshotEntry,
    UpdateEntry,
    WitnessEntry,
    decode_message,
)
from distro_node.protocol.wire.work_specs import ProbeSpec


@dataclass(frozen=True)
class Format:
    """A `value`, and the decoder of its kind."""

    value: Any
    decode: Callable[[bytes], Any]
    named: bool = False

    @property
    def data(self) -> bytes:
        return encode(self.value, named=self.named)


def _id(text: str) -> ContentId:
    return content_id(text.encode())


def _peer(number: int) -> PeerId:
    return Identity.from_seed(_id(f"golden peer {number}")).peer


def _signature(number: int) -> bytes:
    return bytes([number]) * 64


PEERS = sorted(_peer(number) for number in range(3))

MANIFEST = Manifest(
    version=PROTOCOL_VERSION,
    name="golden",
    task="causal_lm",
    seed=2**62 + 1,
    model={"hidden_size": 64, "model_type": "llama", "rope": {"theta": 10000.0}, "tie": False},
    parameters=(
        ParameterSpec(name="embed.weight", shape=(256, 64)),
        ParameterSpec(name="norm.weight", shape=(64,)),
        ParameterSpec(name="scale", shape=()),
    ),
    initial=_id("initial"),
    data=DataSpec(
        sequence_length=128,
        token_bytes=2,
        vocabulary=256,
        shards=(
            ShardSpec(blob=_id("shard 0"), tokens=100_000),
            ShardSpec(blob=_id("shard 1"), tokens=99_999),
        ),
        heldout=ShardSpec(blob=_id("heldout"), tokens=10_000),
        tokenizer=_id("tokenizer"),
    ),
    optimizer=OptimizerSpec(
        chunk=64,
        top_k=8,
        momentum=0.95,
        preconditioner="rms",
        second_moment=0.9375,
        damping=0.25,
        weight_decay=0.125,
        outlier_filter=False,
    ),
    schedule=ScheduleSpec(
        peak=0.001953125, warmup_rounds=10, total_rounds=1000, decay_rounds=100, final=0.25
    ),
    rounds=RoundSpec(
        sequences=32,
        start_members=2,
        snapshot_interval=50,
        collect_min_seconds=1.0,
        collect_max_seconds=600.0,
        slot_min_seconds=1.5,
        slot_max_seconds=60.0,
        lease_rounds=4,
        lease_min_seconds=20.0,
    ),
    admission=AdmissionSpec(policy="invite", issuer=_peer(9), max_members=256),
    fault_model="byzantine",
    founder=PEERS[0],
)

# With every field added since: fields with their default values are not in the bytes.
ADDITIONS = dataclasses.replace(MANIFEST, rounds=dataclasses.replace(MANIFEST.rounds, overlap=True))
ADAPTERS = dataclasses.replace(
    MANIFEST,
    parameters=(
        ParameterSpec(name="0.q_proj.lora_A.weight", shape=(4, 64)),
        ParameterSpec(name="0.q_proj.lora_B.weight", shape=(64, 4)),
    ),
    adapter=AdapterSpec(
        rank=4,
        alpha=8.0,
        targets=("k_proj", "q_proj"),
        base=_id("base"),
        base_parameters=MANIFEST.parameters,
    ),
)

AUDITED_MANIFEST = dataclasses.replace(
    MANIFEST,
    optimizer=dataclasses.replace(MANIFEST.optimizer, preconditioner="orthogonal"),
    audits=AuditsSpec(interval=5, deviation=300),
)

PROBED = dataclasses.replace(
    MANIFEST, probe=ProbeSpec(lengths=(64, 16), losses=(7.4375, 7.25), library="transformers 5.0.0")
)

EVIDENCE = Evidence(
    _peer(7),
    49,
    RecordId(_id("record 48")),
    2,
    BallotHalf("finalize", RecordId(_id("record 49")), b"\x00", _signature(8)),
    BallotHalf("skip", NO_BLOCK, b"\x02", _signature(9)),
)
_SAID = Announcement(
    49, EVIDENCE.parent, _id("update"), 2_800_000, 4096, 2.75, 2**64 - 2, 86_400, 4
)
TWO_ANNOUNCEMENTS = Evidence(
    _peer(7),
    49,
    EVIDENCE.parent,
    1,
    None,
    None,
    (
        SignedAnnouncement(_SAID, _signature(12)),
        SignedAnnouncement(dataclasses.replace(_SAID, tokens=4097), _signature(13)),
    ),
)
RECORD = Record(
    round=51,
    parent=RecordId(_id("record 50")),
    fingerprint=2**64 - 2,
    updates=(
        UpdateEntry(PEERS[0], _id("update 0"), 2_800_000, 4096, 2.75, _signature(1), 86_400, 4),
        UpdateEntry(PEERS[1], _id("update 1"), 1, 0, -0.5, _signature(2)),
    ),
    admitted=(AdmissionEntry(_peer(4), JoinRequest(50, _signature(3)), _signature(4)),),
    departed=(
        DepartureEntry(PEERS[1], "left", 51, _signature(5)),
        DepartureEntry(PEERS[2], "silent", 0, b""),
    ),
    snapshot=SnapshotEntry(50, _id("snapshot 50"), 65_796),
    evidence=(EVIDENCE,),
    witnesses=(WitnessEntry(PEERS[2], 3, b"\x02", _signature(9)),),
)

# With audits: one update with a commitment, and audits of all kinds.
_OPENING = bytes(range(48))
_SCORES = (AuditScore(-1, 2**62), AuditScore(2**62, 1))
AUDITED_RECORD = dataclasses.replace(
    RECORD,
    updates=(dataclasses.replace(RECORD.updates[0], commitment=_id("secret")),),
    audits=(AuditEntry(PEERS[0], 50, _OPENING, -(2**62), 25, _signature(10)),),
    reaudits=(ReauditEntry(PEERS[2], 49, PEERS[1], _SCORES, _signature(11)),),
    slot=3,
    opening=_OPENING,
)
FIRST_AUDITS = dataclasses.replace(AUDITED_RECORD, reaudits=())
HALVED = dataclasses.replace(
    FIRST_AUDITS,
    audits=(dataclasses.replace(AUDITED_RECORD.audits[0], first_half=AuditScore(-(2**62), 2**62)),),
)
REAUDITS = dataclasses.replace(AUDITED_RECORD, audits=(), slot=1)

_BALLOT = Ballot(51, RECORD.parent, 3, RECORD.id, b"\x04")
_SKIP = Ballot(51, RECORD.parent, 2, NO_BLOCK, b"\x00")

CERTIFICATE = Certificate(
    "finalize",
    51,
    RECORD.parent,
    3,
    RECORD.id,
    (
        SignedBallot(PEERS[0], b"\x04", _signature(6)),
        SignedBallot(PEERS[1], b"\x06", _signature(7)),
    ),
)
DECIDED = Decided(RECORD, CERTIFICATE)
BLOBS = BlobList(
    kind="snapshot", size=CHUNK_BYTES + 65_796, chunks=(_id("chunk 0"), _id("chunk 1"))
)


def _message(kind: str, value: object) -> Format:
    assert type(value) is MESSAGE_TYPES[kind]

    def decode_body(data: bytes) -> Any:
        return decode_message(
            Envelope(
                kind=kind, swarm=bytes(32), sender=PEERS[0], body=data, signature=_signature(0)
            )
        )

    return Format(value, decode_body)


def _decode_manifest(data: bytes) -> Any:
    return decode_manifest(data, SwarmId(content_id(data)))


FORMATS: dict[str, Format] = {
    "announcement": _message(
        "announcement",
        Announcement(
            51, RECORD.parent, _id("update 0"), 2_800_000, 4096, 2.75, 2**64 - 2, 86_400, 4
        ),
    ),
    "announcement_bound": _message(
        "announcement", AUDITED_RECORD.announcement(AUDITED_RECORD.updates[0])
    ),
    "audit": _message("audit", AUDITED_RECORD.audits[0].message(RecordId(_id("record 49")))),
    "audit_halves": _message("audit", HALVED.audits[0].message(RecordId(_id("record 49")))),
    "reaudit": _message("reaudit", AUDITED_RECORD.reaudits[0].message(RecordId(_id("record 48")))),
    "join": _message("join", JoinRequest(50, _signature(3))),
    "leave": _message("leave", Leave(51)),
    "heartbeat": _message("heartbeat", Heartbeat(51, 1_700_000_000 << 20)),
    "proposal": _message("proposal", Proposal(3, RECORD)),
    "vote": _message("vote", _BALLOT),
    "skip": _message("skip", _SKIP),
    "finalize": _message("finalize", _BALLOT),
    "evidence": _message("evidence", EVIDENCE),
    "evidence_announcements": _message("evidence", TWO_ANNOUNCEMENTS),
    "record": Format(RECORD, lambda data: decode(Record, data, max_bytes=1 << 20)),
    **{
        name: Format(record, lambda data: decode(Record, data, max_bytes=1 << 20))
        for name, record in {
            "record_audits": AUDITED_RECORD,
            "record_first_audits": FIRST_AUDITS,
            "record_reaudits": REAUDITS,
            "record_halves": HALVED,
            "record_of_slot": dataclasses.replace(RECORD, evidence=(TWO_ANNOUNCEMENTS,), slot=4),
        }.items()
    },
    "certificate": Format(CERTIFICATE, lambda data: decode(Certificate, data, max_bytes=1 << 20)),
    "decided": Format(DECIDED, decode_decided),
    "manifest": Format(MANIFEST, _decode_manifest, named=True),
    "manifest_additions": Format(ADDITIONS, _decode_manifest, named=True),
    "manifest_adapters": Format(ADAPTERS, _decode_manifest, named=True),
    "manifest_audits": Format(AUDITED_MANIFEST, _decode_manifest, named=True),
    "manifest_probe": Format(PROBED, _decode_manifest, named=True),
    "blob_list": Format(BLOBS, lambda data: decode_blob_list(data, "snapshot", BLOBS.size)),
    "sync_request": Format(SyncRequest(bytes(range(32)), 51, (1, 25, 50), 64), decode_request),
    "sync_response": Format(
        SyncResponse(52, (_id("record"),), (encode(DECIDED),), (b"an envelope", b"another")),
        decode_response,
    ),
}
