"""Mistakes of a user or faults of a machine: one line, a remedy, an exit code, and nothing lost."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from distro_node.crypto.identity import Identity, peer_text
from distro_node.node.errors import ExitCode
from distro_node.node.storage.blob_store import BlobStore
from distro_node.protocol.wire.manifest import PROTOCOL_VERSION
from distro_node.protocol.wire.swarm_id import Invite, invite_text, parse_invite, swarm_text
from e2e.program import Program, wait_for
from e2e.support import Node, Swarm, check_agreement, wait_for_round

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    # Its founder is alone for most of the time, and would use a core.
    root = tmp_path_factory.mktemp("mistakes")
    with Swarm(root, snapshot_interval=3, min_seconds=1.5) as swarm:
        swarm.create()
        yield swarm


@pytest.fixture
def founder(swarm: Swarm) -> Node:
    """Return the swarm's only member, training."""
    return swarm.start("founder")[0]


def join(swarm: Swarm, name: str, link: str, *options: str | Path) -> Program:
    """Start a `join` that will fail."""
    return swarm.run(
        name,
        *("join", link, "--data-dir", swarm.root / name, "--no-screen", "--metrics-addr", "off"),
        *("--listen", "/ip4/127.0.0.1/tcp/0", *options),
    )


def nobody(port: int) -> str:
    """Return the address of a bootstrap peer that does not exist."""
    return f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer_text(Identity.from_seed(bytes(32)).peer)}"


@pytest.fixture
def taken_port() -> Iterator[int]:
    """Yield a port on which another program listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_no_bootstrap_peer_answers(swarm: Swarm) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = nobody(closed.getsockname()[1])
        link = invite_text(Invite(swarm=parse_invite(swarm.link).swarm, bootstrap=(address,)))
        join(swarm, "alone", link).refused_with(ExitCode.NO_BOOTSTRAP, address, "refused")


def test_nobody_to_ask_at_all(swarm: Swarm) -> None:
    bare = swarm_text(swarm.manifest.swarm)
    join(swarm, "lost", bare).refused_with(ExitCode.NO_BOOTSTRAP, "no peer to ask")


def test_a_swarm_that_nobody_knows(swarm: Swarm) -> None:
    other = dataclasses.replace(swarm.manifest, seed=123).swarm
    link = invite_text(Invite(swarm=other, bootstrap=(swarm.bootstrap_address,)))
    join(swarm, "stranger", link).refused_with(ExitCode.UNKNOWN_SWARM, swarm_text(other))


def test_who_waits_is_there_when_the_bootstrap_peer_and_the_founder_are(swarm: Swarm) -> None:
    swarm.bootstrap.kill()
    early = swarm.node("early")
    program = early.start("--wait")
    wait_for(lambda: "still searching" in program.stderr, "it to say that it waits")
    swarm.restore_bootstrap()
    swarm.start("founder", "early")
    program.signal(signal.SIGINT)
    assert program.wait() == 0


def test_a_swarm_of_another_version(swarm: Swarm) -> None:
    newer = dataclasses.replace(swarm.manifest, version=PROTOCOL_VERSION + 1)
    BlobStore(swarm.root / "old" / "blobs").put(newer.encode())
    os.chmod(swarm.root / "old", 0o700)
    link = swarm_text(newer.swarm)
    join(swarm, "old", link).refused_with(ExitCode.VERSION, f"version {PROTOCOL_VERSION + 1}")


def test_a_ticket_that_was_cut_short(swarm: Swarm) -> None:
    guest = Invite(
        swarm=swarm.manifest.swarm, bootstrap=(swarm.bootstrap_address,), ticket="c2hvcnQ"
    )
    join(swarm, "cut", invite_text(guest)).refused_with(ExitCode.BAD_SWARM_ID, "ticket")


def test_ports_in_use(swarm: Swarm, taken_port: int) -> None:
    listen = ("--listen", f"/ip4/127.0.0.1/tcp/{taken_port}")
    join(swarm, "port", swarm.link, *listen).refused_with(ExitCode.PORT_IN_USE, str(taken_port))
    metrics = ("--metrics-addr", f"127.0.0.1:{taken_port}")
    join(swarm, "page", swarm.link, *metrics).refused_with(ExitCode.PORT_IN_USE, str(taken_port))


def test_a_data_directory_that_another_node_holds(swarm: Swarm, founder: Node) -> None:
    second = join(swarm, "founder-again", swarm.link, "--data-dir", founder.data.root)
    second.refused_with(ExitCode.DATA_DIR_LOCKED, str(founder.program.pid))
    check_agreement([founder])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there(swarm: Swarm, founder: Node) -> None:
    guest = join(swarm, "guest", swarm.link, "--device", "cuda:0")
    guest.refused_with(ExitCode.NO_DEVICE, "cuda")


def test_files_that_were_damaged(swarm: Swarm, founder: Node) -> None:
    """A torn ledger, votes that are noise and an invalid list of snapshots: everything is recovered."""
    wait_for_round([founder], 8)
    founder.program.kill()
    before = len(founder.ledger())
    with founder.directory.ledger.open("ab") as file:
        file.write(b"\x00\x00\x10\x00 a record that was being written")
    founder.directory.signed.write_bytes(os.urandom(1000))
    (founder.directory.root / "snapshots.json").write_text('{"no": "list"')
    swarm.start("founder")
    wait_for_round([founder], before + 2)
    check_agreement([founder])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a small file system."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96m,mode=700", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("only root may mount a small disk")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_disk_that_fills_up(swarm: Swarm, founder: Node, small_disk: Path) -> None:
    """The node reports it and ends; with free space the same command continues where it stopped."""
    guest = swarm.nodes["tight"] = Node(swarm, "tight", small_disk / "data")
    guest.start()
    wait_for(lambda: len(guest.counted()) >= 2, "the guest to contribute")
    ballast = small_disk / "ballast"
    with ballast.open("wb") as file:
        while shutil.disk_usage(small_disk).free:
            file.write(bytes(min(1 << 20, shutil.disk_usage(small_disk).free)))
            file.flush()
    guest.program.refused_with(ExitCode.DISK_FULL, "disk is full")
    reached = len(guest.ledger())
    assert reached > 0
    ballast.unlink()
    swarm.start("founder", "tight")
    wait_for(lambda: guest.counted(since=reached), "the guest to contribute again")
    check_agreement([founder, guest])
    guest.program.destroy()
