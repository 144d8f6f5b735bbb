"""Invitations: the link works only for the guest that it was written for."""

from __future__ import annotations

import base64
import dataclasses
from pathlib import Path

import pytest
from cli.conftest import Command
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import Identity, peer_text
from distro_node.node.errors import ExitCode
from distro_node.node.storage.data_dir import DataDir, open_identity
from distro_node.node.storage.final_file import write_final
from distro_node.protocol.chain.admissions import invited
from distro_node.protocol.wire.checkpoint import Checkpoint
from distro_node.protocol.wire.manifest import AdmissionSpec, Manifest
from distro_node.protocol.wire.messages import JoinRequest, RecordId
from distro_node.protocol.wire.swarm_id import parse_invite, swarm_text
from simulation.swarm import toy_manifest

GUEST = Identity.from_seed(bytes(32)).peer
ADDRESS = f"/ip4/192.0.2.1/tcp/4001/p2p/{peer_text(GUEST)}"


def stored(place: Path, policy: str = "invite", issuer: bytes | None = None) -> Manifest:
    """Store a swarm in the data directory at `place`, founded by the directory's identity."""
    data = DataDir(place)
    data.create()
    founder = open_identity(data, None).peer
    manifest = dataclasses.replace(toy_manifest(), founder=founder)
    if policy == "invite":
        admission = AdmissionSpec(policy="invite", issuer=issuer or founder)  # type: ignore[arg-type]  # any 32 bytes
        manifest = dataclasses.replace(manifest, admission=admission)
    directory = data.swarm(manifest.swarm)
    directory.root.mkdir(parents=True)
    directory.manifest.write_bytes(manifest.encode())
    return manifest


def test_the_link_lets_this_guest_in_and_no_other(command: Command, tmp_path: Path) -> None:
    manifest = stored(tmp_path / "host")
    result = command(
        "invite", swarm_text(manifest.swarm), peer_text(GUEST),
        "--bootstrap", ADDRESS, "--data-dir", tmp_path / "host",
    )  # fmt: skip
    assert result.code == 0
    invite = parse_invite(result.out.strip())
    assert invite.bootstrap == (ADDRESS,)
    assert invite.ticket is not None
    ticket = base64.urlsafe_b64decode(invite.ticket + "==")
    assert invited(GUEST, JoinRequest(0, ticket), manifest)
    assert not invited(manifest.founder, JoinRequest(0, ticket), manifest)
    other = dataclasses.replace(manifest, seed=99)
    assert not invited(GUEST, JoinRequest(0, ticket), other)


def test_a_link_that_leads_to_nobody_is_warned_of(command: Command, tmp_path: Path) -> None:
    """Guests on the internet would find no peer."""
    manifest = stored(tmp_path, policy="open")
    bare = command("invite", swarm_text(manifest.swarm), "--data-dir", tmp_path)
    assert (bare.code, parse_invite(bare.out.strip()).bootstrap) == (0, ())
    assert "names no bootstrap peer" in bare.err
    link = command(
        "invite", swarm_text(manifest.swarm), "--bootstrap", ADDRESS, "--data-dir", tmp_path
    )
    again = command("invite", link.out.strip(), "--data-dir", tmp_path)
    assert (again.err, parse_invite(again.out.strip()).bootstrap) == ("", (ADDRESS,))


def test_a_link_that_nobody_could_read_is_not_made(command: Command, tmp_path: Path) -> None:
    manifest = stored(tmp_path, policy="open")
    words = ("invite", swarm_text(manifest.swarm), "--data-dir", tmp_path)
    peers = [f"--bootstrap={ADDRESS.replace('tcp/', f'tcp/1{i:02}')}" for i in range(17)]
    command(*words, *peers).refused_with(ExitCode.USAGE, "17 bootstrap peers are too many")
    file = tmp_path / "run.toml"
    file.write_text(command("create", "--example").out)
    made = command("create", file, *peers, "--data-dir", tmp_path)
    made.refused_with(ExitCode.USAGE, "17 bootstrap peers are too many")
    full = command(*words, *peers[1:], *peers[1:])
    assert len(parse_invite(full.out.strip()).bootstrap) == 16


def test_the_link_states_what_is_known_to_be_final(command: Command, tmp_path: Path) -> None:
    for policy, guest in (("open", ()), ("invite", (peer_text(GUEST),))):
        place = tmp_path / policy
        manifest = stored(place, policy=policy)
        swarm = swarm_text(manifest.swarm)
        asked = ("invite", swarm, *guest, "--data-dir", place)
        # Nothing is final yet: a link without a checkpoint.
        assert parse_invite(command(*asked).out.strip()).at is None
        final = DataDir(place).swarm(manifest.swarm).final
        known = Checkpoint(7, RecordId(content_id(b"record")))
        write_final(final, known)
        link = command(*asked).out.strip()
        assert parse_invite(link).at == known
        assert (parse_invite(link).ticket is None) == (policy == "open")
        # A link that is passed on has this node's own final record, not the one from the original link.
        again = command("invite", link, *guest, "--data-dir", place)
        assert parse_invite(again.out.strip()).at == known
        final.write_bytes(b"7.damaged")
        command(*asked).refused_with(ExitCode.FINAL, "damaged")


def test_who_cannot_invite(command: Command, tmp_path: Path) -> None:
    opened = swarm_text(stored(tmp_path / "open", policy="open").swarm)
    command("invite", opened, peer_text(GUEST), "--data-dir", tmp_path / "open").refused_with(
        ExitCode.USAGE, "every peer"
    )
    guests = swarm_text(stored(tmp_path / "guests").swarm)
    command("invite", guests, "--data-dir", tmp_path / "guests").refused_with(
        ExitCode.USAGE, "guests only"
    )
    foreign = swarm_text(stored(tmp_path / "foreign", issuer=content_id(b"else")).swarm)
    command("invite", foreign, peer_text(GUEST), "--data-dir", tmp_path / "foreign").refused_with(
        ExitCode.USAGE, "another peer"
    )
    command("invite", opened, peer_text(GUEST), "--data-dir", tmp_path / "foreign").refused_with(
        ExitCode.NOT_JOINED, "manifest"
    )
    command("invite", opened, "12D3nobody", "--data-dir", tmp_path / "open").refused_with(
        ExitCode.USAGE, "not a peer id"
    )


@pytest.mark.parametrize("times", [1, 2])
def test_id_makes_an_identity_when_asked_to(command: Command, tmp_path: Path, times: int) -> None:
    shown = {command("id", "--create", "--data-dir", tmp_path).out for _ in range(times)}
    assert shown == {command("id", "--data-dir", tmp_path).out}
