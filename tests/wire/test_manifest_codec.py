"""Manifests: named by their bytes, and refused if they are anything else."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgpack
import pytest
from distro_node.crypto.hashing import content_id
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.manifest import (
    MAX_MANIFEST_BYTES,
    MAX_MEMBERS,
    PROTOCOL_VERSION,
    AdmissionSpec,
    AuditsSpec,
    CommitteesSpec,
    Manifest,
    ParameterSpec,
    PrivateSpec,
    RoundSpec,
    ScheduleSpec,
    SwarmId,
    decode_manifest,
)
from simulation.formats import ADAPTERS, ADDITIONS, AUDITED_MANIFEST, MANIFEST

PLAIN: dict[str, Any] = msgpack.unpackb(MANIFEST.encode())


def refused(plain: object) -> tuple[str, str]:
    data = bytes(msgpack.Packer().pack(plain))
    with pytest.raises(ProtocolError) as caught:
        decode_manifest(data, SwarmId(content_id(data)))
    return caught.value.reason, str(caught.value)


def test_a_manifest_is_known_by_its_hash() -> None:
    assert decode_manifest(MANIFEST.encode(), MANIFEST.swarm) == MANIFEST
    other = dataclasses.replace(MANIFEST, seed=1)
    assert other.swarm != MANIFEST.swarm
    with pytest.raises(ProtocolError) as caught:
        decode_manifest(other.encode(), MANIFEST.swarm)
    assert caught.value.reason == "mismatch"


@pytest.mark.parametrize("preconditioner", ["rms", "none"])
def test_work_is_audited_with_the_preconditioners_alone_that_show_it(preconditioner: str) -> None:
    with pytest.raises(ValueError, match="orthogonal"):
        dataclasses.replace(
            AUDITED_MANIFEST,
            optimizer=dataclasses.replace(
                AUDITED_MANIFEST.optimizer, preconditioner=preconditioner
            ),
        )
    plain = msgpack.unpackb(AUDITED_MANIFEST.encode())
    reason, text = refused(
        plain | {"optimizer": plain["optimizer"] | {"preconditioner": preconditioner}}
    )
    assert (reason, "orthogonal" in text) == ("invalid", True)


def test_nobody_audits_work_on_texts_that_nobody_else_has() -> None:
    data = dataclasses.replace(AUDITED_MANIFEST.data, shards=(), private=PrivateSpec(epoch=1))
    without = dataclasses.replace(AUDITED_MANIFEST, data=data, audits=None)
    with pytest.raises(ValueError, match="private data"):
        dataclasses.replace(without, audits=AuditsSpec())


def test_a_swarm_without_audits_has_no_key_for_them() -> None:
    assert "audits" not in PLAIN
    plain = msgpack.unpackb(AUDITED_MANIFEST.encode())
    assert plain["audits"] == {"interval": 5, "deviation": 300}
    assert decode_manifest(AUDITED_MANIFEST.encode(), AUDITED_MANIFEST.swarm) == AUDITED_MANIFEST


def test_what_is_too_long_is_not_even_hashed() -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_manifest(bytes(MAX_MANIFEST_BYTES + 1), MANIFEST.swarm)
    assert caught.value.reason == "oversized"


@pytest.mark.parametrize("version", [0, PROTOCOL_VERSION + 1, 2**31])
def test_another_version_is_reported_as_one(version: int) -> None:
    """Whatever else it holds: a later version has keys that this program does not know."""
    assert refused(PLAIN | {"version": version})[0] == "version"
    reason, text = refused({"version": version, "name": "x", "news": [1, 2, 3]})
    assert reason == "version"
    assert str(version) in text


def test_keys_are_all_there_in_their_order() -> None:
    assert refused(PLAIN | {"nmae": 1})[0] == "invalid"
    assert "did you mean 'name'" in refused(PLAIN | {"nmae": 1})[1]
    *others, _ = PLAIN
    for key in others:
        rest = {name: value for name, value in PLAIN.items() if name != key}
        # A key with a default may be missing in a founder's file, but not in the hashed bytes.
        assert refused(rest)[0] in ("invalid", "malformed")
        assert refused({**rest, key: PLAIN[key]})[0] == "malformed"
    assert refused([])[0] == "invalid"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: ScheduleSpec(warmup_rounds=6, decay_rounds=5, total_rounds=10),
            "exceed total_rounds",
        ),
        (lambda: RoundSpec(collect_min_seconds=9.0, collect_max_seconds=8.0), "exceeds"),
        (lambda: RoundSpec(slot_min_seconds=90.0, slot_max_seconds=80.0), "exceeds"),
        (lambda: RoundSpec(sequences=8, local_steps=9), "a sequence for each step"),
        (lambda: RoundSpec(local_rate=2.0), "local_rate needs local_steps"),
        (
            lambda: dataclasses.replace(AUDITED_MANIFEST, rounds=RoundSpec(local_steps=2)),
            r"local_steps above 1 does not work with \[audits\]",
        ),
        (
            lambda: dataclasses.replace(
                MANIFEST, rounds=RoundSpec(local_steps=2), committees=CommitteesSpec()
            ),
            r"local_steps above 1 does not work with \[committees\]",
        ),
        (
            lambda: dataclasses.replace(
                MANIFEST,
                rounds=RoundSpec(local_steps=2),
                optimizer=dataclasses.replace(MANIFEST.optimizer, outlier_filter=False),
                data=dataclasses.replace(
                    MANIFEST.data, shards=(), private=PrivateSpec(epoch=8, max_epsilon=3.0)
                ),
            ),
            "local_steps above 1 does not work with data.max_epsilon",
        ),
        (lambda: AdmissionSpec(policy="invite"), "issuer"),
        (lambda: AdmissionSpec(issuer=MANIFEST.founder), "issuer"),
        (
            lambda: dataclasses.replace(
                MANIFEST,
                rounds=RoundSpec(start_members=9),
                admission=AdmissionSpec(max_members=8),
            ),
            "never begin",
        ),
        (
            lambda: dataclasses.replace(MANIFEST.data, sequence_length=1 << 20),
            "no shard holds a whole sample",
        ),
    ],
)
def test_what_does_not_go_together(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    "mirror",
    [
        "file:///etc/passwd",
        "file://example.org/share",
        "http://example.org/blobs",
        "http://192.168.1.1/blobs",
        "ftp://example.org/blobs",
        "//example.org/blobs",
        "HTTPS://example.org/blobs",
        "https://example.org/\x1b[31m",
        "https://example.org/\u202e",
    ],
)
def test_a_mirror_is_on_the_open_web_and_encrypted(mirror: str) -> None:
    """Private addresses are refused where a name is resolved (`tests/content/test_mirrors.py`)."""
    reason, text = refused(PLAIN | {"data": PLAIN["data"] | {"mirrors": [mirror]}})
    assert reason == "invalid"
    assert "https://" in text or "mirrors" in text
    sound = PLAIN["data"] | {"mirrors": ["https://example.org/blobs"]}
    data = bytes(msgpack.Packer().pack(PLAIN | {"data": sound}))
    assert decode_manifest(data, SwarmId(content_id(data))).data.mirrors == tuple(sound["mirrors"])


def test_members_are_as_many_as_a_proposal_can_name() -> None:
    too_many = PLAIN["admission"] | {"max_members": MAX_MEMBERS + 1}
    assert refused(PLAIN | {"admission": too_many})[0] == "invalid"


def test_what_was_added_is_not_there_unless_it_is_used() -> None:
    """So earlier manifests keep their bytes, and their swarms their ids."""
    assert "overlap" not in PLAIN["rounds"]
    assert refused(PLAIN | {"rounds": PLAIN["rounds"] | {"overlap": False}})[0] == "malformed"
    assert msgpack.unpackb(ADDITIONS.encode())["rounds"]["overlap"] is True
    assert ADDITIONS.swarm != MANIFEST.swarm
    assert decode_manifest(ADDITIONS.encode(), ADDITIONS.swarm).rounds.overlap
    assert refused(PLAIN | {"rounds": PLAIN["rounds"] | {"overlap": 1}})[0] == "invalid"


def test_local_steps_are_not_sent_where_there_is_one() -> None:
    assert not {"local_steps", "local_rate"} & {*PLAIN["rounds"]}
    assert refused(PLAIN | {"rounds": PLAIN["rounds"] | {"local_steps": 1}})[0] == "malformed"
    for wrong in (0, 4097, 1.5):
        assert refused(PLAIN | {"rounds": PLAIN["rounds"] | {"local_steps": wrong}})[0] == "invalid"
    rounds = dataclasses.replace(MANIFEST.rounds, local_steps=4, local_rate=0.5)
    local = dataclasses.replace(MANIFEST, rounds=rounds)
    assert local.swarm != MANIFEST.swarm
    assert decode_manifest(local.encode(), local.swarm) == local


def test_smoothing_is_not_sent_where_nothing_is_smoothed() -> None:
    assert "smoothing" not in PLAIN["optimizer"]
    assert refused(PLAIN | {"optimizer": PLAIN["optimizer"] | {"smoothing": 1.0}})[0] == "invalid"
    optimizer = dataclasses.replace(MANIFEST.optimizer, smoothing=0.5)
    smoothed = dataclasses.replace(MANIFEST, optimizer=optimizer)
    assert smoothed.swarm != MANIFEST.swarm
    assert decode_manifest(smoothed.encode(), smoothed.swarm) == smoothed


def test_update_weights_are_left_out_where_all_count_alike() -> None:
    assert "update_weight" not in PLAIN["optimizer"]
    assert (
        refused(PLAIN | {"optimizer": PLAIN["optimizer"] | {"update_weight": "equal"}})[0]
        == "malformed"
    )
    assert (
        refused(PLAIN | {"optimizer": PLAIN["optimizer"] | {"update_weight": "loud"}})[0]
        == "invalid"
    )
    optimizer = dataclasses.replace(MANIFEST.optimizer, update_weight="share")
    by_share = dataclasses.replace(MANIFEST, optimizer=optimizer)
    assert by_share.swarm != MANIFEST.swarm
    assert decode_manifest(by_share.encode(), by_share.swarm) == by_share


def test_the_step_is_not_sent_where_it_is_one_of_signs() -> None:
    assert "step" not in PLAIN["optimizer"]
    assert refused(PLAIN | {"optimizer": PLAIN["optimizer"] | {"step": "sign"}})[0] == "malformed"
    assert refused(PLAIN | {"optimizer": PLAIN["optimizer"] | {"step": "long"}})[0] == "invalid"
    optimizer = dataclasses.replace(MANIFEST.optimizer, preconditioner="muon", step="scaled")
    scaled = dataclasses.replace(MANIFEST, optimizer=optimizer)
    assert scaled.swarm != MANIFEST.swarm
    assert decode_manifest(scaled.encode(), scaled.swarm) == scaled


def test_adapters_are_not_there_unless_they_are_used() -> None:
    assert "adapter" not in PLAIN
    assert refused(PLAIN | {"adapter": None})[0] == "malformed"
    decoded = decode_manifest(ADAPTERS.encode(), ADAPTERS.swarm)
    assert decoded == ADAPTERS
    assert (decoded.elements, decoded.frozen_elements) == (512, MANIFEST.elements)
    assert MANIFEST.frozen_elements == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rank", 0),
        ("rank", 4097),
        ("alpha", 0.0),
        ("alpha", 1e9),
        ("targets", []),
        ("targets", ["q_proj", "k_proj"]),
        ("targets", ["q_proj", "q_proj"]),
        ("base", b"short"),
        ("base_parameters", []),
    ],
)
def test_adapters_that_cannot_be(key: str, value: Any) -> None:
    plain = msgpack.unpackb(ADAPTERS.encode())
    assert refused(plain | {"adapter": plain["adapter"] | {key: value}})[0] == "invalid"


def test_sizes() -> None:
    assert MANIFEST.elements == 256 * 64 + 64 + 1
    assert ParameterSpec(name="scalar", shape=()).elements == 1
    data = MANIFEST.data
    # The last token of a shard is only ever a target.
    assert [data.samples_in(shard) for shard in data.shards] == [781, 781]
    assert data.samples == 1562


def test_a_large_model_fits() -> None:
    parameters = tuple(
        ParameterSpec(name=f"model.layers.{i}.self_attn.weight", shape=(8192, 8192))
        for i in range(20_000)
    )
    data = dataclasses.replace(MANIFEST, parameters=parameters).encode()
    assert len(data) < MAX_MANIFEST_BYTES
    assert isinstance(decode_manifest(data, SwarmId(content_id(data))), Manifest)
