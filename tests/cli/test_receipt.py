"""`contributions`, `receipt` and `verify-receipt`: what each kind of evidence proves, and the exit
codes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from cli.conftest import Command
from cli.schemas import conforms
from distro_node.crypto import keystore
from distro_node.crypto.identity import peer_text
from distro_node.crypto.keystore import create_identity, read_peer
from distro_node.node.errors import ExitCode
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.storage.final_file import write_final
from distro_node.node.storage.swarm_store import SwarmStore
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.receipts import decode_receipt
from distro_node.protocol.wire.checkpoint import Checkpoint
from distro_node.protocol.wire.manifest import ScheduleSpec
from distro_node.protocol.wire.messages import RecordId
from distro_node.protocol.wire.swarm_id import Invite, invite_text, swarm_text
from simulation.audited_chain import VouchedChain
from simulation.chain import Chain
from simulation.swarm import identity

# Private here: `_render`: a data directory of a member whose key is known.

# The latest final record with certified contributions is then that of round 36.
ROUNDS, CERTIFIED = 40, 36
FOUNDER, MEMBER = peer_text(identity(0).peer), peer_text(identity(1).peer)


@cache
def chain() -> VouchedChain:
    return VouchedChain(4).grow_until(ROUNDS)


def stored(place: Path, ledger: Ledger) -> Path:
    """Store a data directory with this chain."""
    data = DataDir(place)
    data.create()
    directory = data.swarm(ledger.manifest.swarm)
    directory.root.mkdir(parents=True)
    directory.manifest.write_bytes(ledger.manifest.encode())
    store = SwarmStore(directory, ledger.manifest)
    for round_ in range(len(ledger)):
        store.keep(ledger.raw(round_))
    store.write()
    return place


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return stored(tmp_path / "node", chain().ledger)


@pytest.fixture
def file(place: Path, command: Command, tmp_path: Path) -> Path:
    """Return a receipt of the second member."""
    file = tmp_path / "mine.receipt"
    done = command("receipt", "--peer", MEMBER, "--output", file, "--data-dir", place)
    assert (done.code, done.err) == (0, "")
    return file


def link(at: Checkpoint | None, **changes: object) -> str:
    return invite_text(replace(Invite(swarm=chain().manifest.swarm, at=at), **changes))  # type: ignore[arg-type]


def anchor() -> Checkpoint:
    return Checkpoint(CERTIFIED, chain().ledger[CERTIFIED].record.id)


# contributions


def test_what_everybody_has_done(command: Command, place: Path) -> None:
    shown = command("contributions", "--data-dir", place)
    assert (shown.code, shown.err) == (0, "")
    head, titles, *rows = shown.out.splitlines()
    assert head == f"toy ({swarm_text(chain().manifest.swarm)}), up to round 39"
    assert titles.split() == ["peer", "updates", "tokens", "audited", "votes"]
    assert {row.split()[0] for row in rows} == {
        peer_text(identity(number).peer) for number in range(4)
    }
    assert all(row.split()[1:3] == ["39", "62,400"] for row in rows)
    again = command("contributions", swarm_text(chain().manifest.swarm), "--data-dir", place)
    assert again.out == shown.out


def test_the_same_for_programs(command: Command, place: Path) -> None:
    told = json.loads(command("contributions", "--json", "--data-dir", place).out)
    conforms("contributions", told)
    assert told["round"] == 39
    work = chain().work
    for row in told["peers"]:
        (peer,) = [p for p in work.contributions.peers if peer_text(p) == row["peer"]]
        done = work.contributions[peer]
        assert (row["updates"], row["sequences"]) == (done.updates, done.sequences)
        assert (row["tokens"], row["audited_tokens"]) == (100 * done.sequences, 100 * done.audited)
        assert (row["votes"], row["member"], row["counts"]) == (work.votes(40)[peer], True, True)
    order = [(-row["audited_tokens"], -row["tokens"], row["peer"]) for row in told["peers"]]
    assert order == sorted(order)


def test_who_is_gone_is_still_in_it(command: Command, tmp_path: Path) -> None:
    left = VouchedChain(4).grow_until(3)
    left.grow(departed=[left.leave(1)], updates=[])
    left.grow()
    place = stored(tmp_path / "node", left.ledger)
    rows = command("contributions", "--data-dir", place).out.splitlines()
    (row,) = [row for row in rows if row.startswith(MEMBER)]
    assert row.endswith("not a member now")
    create_identity(place / "identity.key", None)
    assert command("contributions", "--data-dir", place).code == 0


def test_a_run_that_is_over_has_no_rounds_beyond_its_last(command: Command, tmp_path: Path) -> None:
    """After 60 of 60 rounds it said "up to round 68": the rounds that sign the result were counted."""
    chain = Chain(4, schedule=ScheduleSpec(warmup_rounds=1, total_rounds=7)).grow_until(8)
    chain.grow(updates=[])
    place = stored(tmp_path / "node", chain.ledger)
    head = command("contributions", "--data-dir", place).out.splitlines()[0]
    assert head.endswith(", up to round 7")


def test_without_audits(command: Command, tmp_path: Path) -> None:
    ledger = Chain(4, snapshot_interval=5).grow_until(10).ledger
    place = stored(tmp_path / "node", ledger)
    command("receipt", "--peer", MEMBER, "--data-dir", place).refused_with(
        ExitCode.NOTHING_TO_EXPORT, "does not audit"
    )
    shown = command("contributions", "--data-dir", place)
    assert (shown.code, shown.err) == (0, "")
    _, titles, *rows, note = shown.out.splitlines()
    assert titles.split() == ["peer", "updates", "tokens", "audited", "votes"]
    assert "does not audit work" in note
    told = json.loads(command("contributions", "--json", "--data-dir", place).out)
    conforms("contributions", told)
    assert told["audited"] is False
    announced: dict[str, tuple[int, int]] = {}
    for round_ in range(1, len(ledger)):
        for entry in ledger[round_].record.updates:
            updates, tokens = announced.get(peer_text(entry.peer), (0, 0))
            announced[peer_text(entry.peer)] = updates + 1, tokens + entry.tokens
    assert len(announced) == 4
    assert {row["peer"]: (row["updates"], row["tokens"]) for row in told["peers"]} == announced
    for row in rows:
        peer, updates, tokens, *words = row.split()
        assert (int(updates), int(tokens.replace(",", ""))) == announced[peer]
        assert words == ["not", "audited", "1"]


def test_where_nothing_is_stored(command: Command, place: Path, tmp_path: Path) -> None:
    command("contributions", "--data-dir", tmp_path / "empty").refused_with(
        ExitCode.NOTHING_TO_EXPORT, "no swarm is stored"
    )
    other = VouchedChain(1, seed=9)
    stored(place, other.ledger)
    several = command("contributions", "--data-dir", place)
    several.refused_with(ExitCode.USAGE, "2 swarms")
    assert "name one of them: swarm-" in several.err
    (DataDir(place).swarm(other.manifest.swarm).ledger).write_bytes(b"")
    command("contributions", swarm_text(other.manifest.swarm), "--data-dir", place).refused_with(
        ExitCode.NOTHING_TO_EXPORT, "its ledger is missing"
    )
    DataDir(place).swarm(other.manifest.swarm).manifest.write_bytes(b"x")
    command("contributions", swarm_text(other.manifest.swarm), "--data-dir", place).refused_with(
        ExitCode.NOTHING_TO_EXPORT, "description cannot be read"
    )


# receipt


def test_a_receipt_is_written_and_states_what_it_proves(
    command: Command, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = command("receipt", "--peer", MEMBER, "--data-dir", place)
    assert (shown.code, shown.err) == (0, "")
    file = tmp_path / f"{MEMBER}-round-35.receipt"
    written = decode_receipt(file.read_bytes())
    assert written.anchor == anchor()
    assert "35 that counted" in shown.out
    assert f"Wrote the receipt to {file.name}" in shown.out
    told = command("receipt", "--peer", MEMBER, "--data-dir", place, "--json")
    conforms("receipt", json.loads(told.out))
    assert json.loads(told.out)["file"] == str(file)


def test_by_default_it_is_this_nodes(command: Command, place: Path, tmp_path: Path) -> None:
    command("receipt", "--data-dir", place).refused_with(ExitCode.KEYSTORE, "identity.key")
    create_identity(place / "identity.key", None)
    me = peer_text(read_peer(place / "identity.key"))
    command("receipt", "--data-dir", place).refused_with(ExitCode.NOTHING_TO_EXPORT, me)
    command("receipt", "--peer", "x", "--data-dir", place).refused_with(ExitCode.USAGE, "peer id")


def test_what_was_carried_is_claimed_and_not_proved(
    command: Command, place: Path, tmp_path: Path
) -> None:
    file = tmp_path / "f"
    asked = ("receipt", "--relayed", "--output", file, "--data-dir", place)
    command(*asked, "--peer", MEMBER).refused_with(ExitCode.USAGE, "only in its own receipt")
    write_identity(place, 1)
    shown = command(*asked)
    assert shown.code == 0
    assert "0 B between others, by the peer's own count (not proved)" in shown.out
    (place / "relayed").write_text("3400000000\n")
    assert "3.4 GB between others" in command(*asked).out
    assert "has relayed 3.4 GB between others" in command("contributions", "--data-dir", place).out
    found = command("verify-receipt", file, "--ledger", place)
    assert found.code == 0
    assert "3.4 GB between others, by the peer's own count (not proved)" in found.out
    told = json.loads(command("verify-receipt", file, "--ledger", place, "--json").out)
    conforms("verify-receipt", told)
    assert told["claimed_relayed_bytes"] == 3_400_000_000
    written = decode_receipt(file.read_bytes())
    assert written.claim is not None
    file.write_bytes(replace(written, claim=replace(written.claim, bytes=9)).encode())
    command("verify-receipt", file).refused_with(ExitCode.FALSE_RECEIPT, "did not sign")


def write_identity(place: Path, number: int) -> None:
    """Give the data directory the identity of a simulated member."""
    (place / "identity.key").write_bytes(keystore._render(identity(number), None))
    (place / "identity.key").chmod(0o600)


def test_a_receipt_waits_until_its_record_is_final(command: Command, tmp_path: Path) -> None:
    young = chain().ledger.truncated(7)
    assert young.final_round < 6 < len(young)
    place = stored(tmp_path / "node", young)
    asked = ("receipt", "--peer", MEMBER, "--output", tmp_path / "f", "--data-dir", place)
    command(*asked).refused_with(ExitCode.NOTHING_TO_EXPORT, "is final yet")
    # The node may know of later final records than the records show, by a lease.
    final = DataDir(place).swarm(young.swarm).final
    write_final(final, Checkpoint(6, RecordId(bytes(32))))
    command(*asked).refused_with(ExitCode.NOTHING_TO_EXPORT, "is final yet")
    write_final(final, Checkpoint(6, young[6].record.id))
    assert command(*asked).code == 0


def test_a_place_where_nothing_can_be_written(
    command: Command, place: Path, tmp_path: Path
) -> None:
    command(
        "receipt", "--peer", MEMBER, "--output", tmp_path / "no" / "f", "--data-dir", place
    ).refused_with(ExitCode.NOT_WRITABLE, "nothing can be written")


# verify-receipt


def test_a_chain_proves_it(command: Command, place: Path, file: Path) -> None:
    found = command("verify-receipt", file, "--ledger", place)
    assert (found.code, found.err) == (0, "")
    assert "The receipt is valid" in found.out
    assert MEMBER in found.out
    assert "including the founder" in found.out
    told = json.loads(command("verify-receipt", file, "--ledger", place, "--json").out)
    conforms("verify-receipt", told)
    assert (told["proof"], told["final"], told["peer"]) == ("chain", True, MEMBER)


def test_a_link_that_names_the_record_proves_it(command: Command, file: Path) -> None:
    found = command("verify-receipt", file, "--link", link(anchor()))
    assert (found.code, found.err) == (0, "")
    assert "if you trust the link" in found.out


def test_the_file_alone_proves_that_it_is_signed(command: Command, file: Path) -> None:
    found = command("verify-receipt", file)
    found.refused_with(ExitCode.UNANCHORED, "the file alone does not prove")
    assert FOUNDER in found.out
    assert "The receipt is valid" not in found.out
    told = json.loads(command("verify-receipt", file, "--json").out)
    conforms("verify-receipt", told)
    assert (told["proof"], told["final"]) == ("signatures", False)


def test_what_says_nothing_of_this_record(command: Command, file: Path, tmp_path: Path) -> None:
    for at in (None, Checkpoint(39, chain().ledger[39].record.id)):
        command("verify-receipt", file, "--link", link(at)).refused_with(
            ExitCode.UNANCHORED, "the link names no record of round 36"
        )
    behind = stored(tmp_path / "behind", chain().ledger.truncated(30))
    command("verify-receipt", file, "--ledger", behind).refused_with(
        ExitCode.UNANCHORED, "ends before round 36"
    )
    # The link is sufficient evidence.
    both = command("verify-receipt", file, "--ledger", behind, "--link", link(anchor()))
    assert both.code == 0


def test_what_contradicts_it(command: Command, place: Path, file: Path, tmp_path: Path) -> None:
    other = Checkpoint(CERTIFIED, RecordId(bytes(32)))
    command("verify-receipt", file, "--link", link(other)).refused_with(
        ExitCode.FALSE_RECEIPT, "the swarm has another record in round 36"
    )
    elsewhere = link(None, swarm=VouchedChain(0, seed=9).manifest.swarm)
    command("verify-receipt", file, "--link", elsewhere).refused_with(
        ExitCode.FALSE_RECEIPT, "another swarm"
    )
    # Matching the chain is not enough where the link contradicts it.
    command("verify-receipt", file, "--ledger", place, "--link", elsewhere).refused_with(
        ExitCode.FALSE_RECEIPT, "another swarm"
    )
    fork = VouchedChain(0)
    fork.ledger = chain().ledger.truncated(34)
    fork.grow(updates=[])
    fork.grow_until(38)
    command(
        "verify-receipt", file, "--ledger", stored(tmp_path / "fork", fork.ledger)
    ).refused_with(ExitCode.FALSE_RECEIPT, "the chain has another record in round 36")


def test_what_was_changed_is_found(command: Command, place: Path, file: Path) -> None:
    written = decode_receipt(file.read_bytes())
    file.write_bytes(replace(written, audited=written.audited + 1).encode())
    for more in ([], ["--ledger", place], ["--link", link(anchor())]):
        command("verify-receipt", file, *more).refused_with(
            ExitCode.FALSE_RECEIPT, "proves nothing", "does not certify"
        )


def test_what_is_no_receipt(command: Command, file: Path, tmp_path: Path) -> None:
    for data in (b"", b"hello", file.read_bytes()[:-1], bytes(7 << 20), b"\xdd\xff\xff\xff\xff"):
        file.write_bytes(data)
        command("verify-receipt", file).refused_with(ExitCode.FALSE_RECEIPT, "proves nothing")
    command("verify-receipt", tmp_path / "none").refused_with(ExitCode.USAGE, "cannot be read")
    command("verify-receipt", tmp_path).refused_with(ExitCode.USAGE, "cannot be read")


def test_a_name_that_is_none(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A swarm's name from its founder is shown without terminal control sequences."""
    named = VouchedChain(2, name="a\x1b[31m").grow_until(12)
    place = stored(tmp_path / "node", named.ledger)
    monkeypatch.chdir(tmp_path)
    shown = command("receipt", "--peer", FOUNDER, "--data-dir", place)
    assert shown.code == 0
    assert "\x1b" not in shown.out
    assert "\x1b" not in command("contributions", "--data-dir", place).out


def test_nothing_of_it_loads_torch(place: Path, file: Path) -> None:
    script = f"""
import sys
from distro_node.node.cli import main
try:
    main({["verify-receipt", str(file), "--ledger", str(place)]!r})
finally:
    print([name for name in ("torch", "libp2p") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_environment_may_set_it(
    command: Command, file: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command's name with a hyphen is not a valid variable name."""
    monkeypatch.setenv("DISTRO_NODE_VERIFY_RECEIPT_LEDGER", str(place))
    assert command("verify-receipt", file).code == 0
