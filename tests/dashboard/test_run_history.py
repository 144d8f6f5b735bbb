"""The rounds from ledger and history: all that is known, nothing else, in a bounded number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dashboard.support import served
from distro_node.crypto.identity import peer_text
from distro_node.node.dashboard import run_history as run_history_module
from distro_node.node.dashboard.run_history import RunHistory
from distro_node.node.telemetry.own_rounds import RoundAttendance
from distro_node.node.telemetry.telemetry import Telemetry
from simulation.chain import Chain
from simulation.swarm import identity


def write_ledger(path: Path, chain: Chain, *, cut: int = 0) -> None:
    """Write the ledger as the swarm store does, with the last `cut` bytes not written yet."""
    entries = [chain.ledger.raw(round_) for round_ in range(len(chain.ledger))]
    data = b"".join(len(entry).to_bytes(4, "big") + entry for entry in entries)
    path.write_bytes(data[: len(data) - cut])


def line(round_: int, **changes: Any) -> str:
    facts = {
        "round": round_,
        "time": 1e9 + round_,
        "seconds": {"compute": 1.0, "encode": None, "transfer": 2.0, "agree": 0.5, "apply": 0.25},
    }
    return json.dumps(facts | changes) + "\n"


def read(run_history: RunHistory) -> dict[str, Any]:
    while run_history.refresh():
        pass
    whole = run_history.everything()
    assert json.loads(json.dumps(whole, allow_nan=False)) == whole
    return whole


@pytest.fixture
def chain() -> Chain:
    """Return a chain of three members; 2 falls silent in round 3, 1 leaves in round 4 and is back in
    round 6."""
    chain = Chain(3)
    chain.grow()
    chain.grow(
        updates=[chain.update(0, loss=1.0, tokens=300), chain.update(1, loss=2.0, tokens=100)]
    )
    chain.grow(departed=[chain.silence(2)])
    chain.grow(departed=[chain.leave(1)])
    chain.grow()
    chain.grow(admitted=[chain.admission(1)])
    chain.grow()
    return chain


@pytest.fixture
def files(tmp_path: Path, chain: Chain) -> tuple[Path, Path]:
    write_ledger(tmp_path / "ledger", chain)
    return tmp_path / "ledger", tmp_path / "history.jsonl"


def open_it(chain: Chain, files: tuple[Path, Path]) -> RunHistory:
    return RunHistory(chain.manifest.founder, peer_text(identity(0).peer), *files)


def test_what_the_ledger_shows(chain: Chain, files: tuple[Path, Path]) -> None:
    whole = read(open_it(chain, files))
    rows = whole["rows"]
    assert rows["round"] == [*range(8)]
    assert rows["loss"][0] is None
    # Of 300 tokens against 100, no more count for the mean than the others have together.
    assert rows["loss"][1:3] == [2.5, 1.5]
    assert rows["tokens"][:4] == [0, 1500, 1900, 2900]
    assert rows["bytes"][:3] == [0, 3000, 5000]
    assert rows["updates"] == [0, 3, 2, 2, 2, 1, 1, 2]
    # This node recorded no times, so they are unknown.
    assert rows["time"] == [None] * 8
    assert whole["phases"] == []
    peers = [peer_text(identity(n).peer) for n in range(3)]
    assert sorted(whole["peers"]) == sorted(peers)
    bit = {peer: 1 << number for number, peer in enumerate(whole["peers"])}
    present = [int(each, 16) for each in rows["present"]]
    assert present[0] == bit[peers[0]]
    assert present[1] == sum(bit.values())
    assert present[4] == bit[peers[0]] | bit[peers[1]]
    assert present[5] == present[6] == bit[peers[0]]
    assert present[7] == bit[peers[0]] | bit[peers[1]]
    assert int(rows["counted"][2], 16) == bit[peers[0]] | bit[peers[1]]


def test_the_accounts_of_the_members(chain: Chain, files: tuple[Path, Path]) -> None:
    accounts = {each["peer"]: each for each in read(open_it(chain, files))["members"]}
    me, one, two = (accounts[peer_text(identity(n).peer)] for n in range(3))
    assert (me["me"], me["joined"], me["left"], me["counted"], me["last"]) == (True, 0, None, 7, 7)
    assert me["recent"] == me["recent_of"] == 7
    assert (one["joined"], one["left"], one["why"], one["counted"]) == (6, None, None, 5)
    assert (one["recent"], one["recent_of"]) == (1, 1)
    assert (two["left"], two["why"], two["counted"], two["recent_of"]) == (3, "silent", 1, None)
    assert me["tokens"] == 300 + 6 * 500


def test_what_the_history_adds(chain: Chain, files: tuple[Path, Path]) -> None:
    _, history = files
    history.write_text(
        line(5) + '{"round": 5, "time": 1, "heldout": 2.25}\n' + "no line of it\n" + line(6)
    )
    run_history = open_it(chain, files)
    whole = read(run_history)
    assert whole["rows"]["time"] == [None] * 5 + [1e9 + 5, 1e9 + 6, None]
    assert whole["heldout"] == [[5, 2.25]]
    assert [each["round"] for each in whole["phases"]] == [5, 6]
    assert whole["phases"][0]["encode"] is None
    # An incomplete line, or the loss of a diverged model, is not a number.
    with history.open("a") as file:
        file.write('{"round": 6, "time": 1, "heldout": null}\n{"round": 7, "ti')
    assert read(run_history)["heldout"] == [[5, 2.25]]
    with history.open("a") as file:
        file.write('me": 1e9, "seconds": {"compute": 3.0}}\n')
    whole = read(run_history)
    assert whole["rows"]["time"][7] == 1e9
    assert whole["phases"][-1]["compute"] == 3.0
    assert whole["phases"][-1]["agree"] is None


def test_a_line_that_is_there_before_the_ledgers_entry(
    chain: Chain, files: tuple[Path, Path]
) -> None:
    ledger, history = files
    run_history = open_it(chain, files)
    history.write_text(line(8))
    read(run_history)
    chain.grow()
    write_ledger(ledger, chain)
    assert read(run_history)["rows"]["time"][8] == 1e9 + 8


@pytest.mark.parametrize("cut", [1, 3, 200])
def test_an_entry_that_is_just_being_written(
    chain: Chain, files: tuple[Path, Path], cut: int
) -> None:
    ledger, _ = files
    run_history = open_it(chain, files)
    chain.grow()
    write_ledger(ledger, chain, cut=cut)
    assert read(run_history)["rows"]["round"] == [*range(8)]
    write_ledger(ledger, chain)
    assert read(run_history)["rows"]["round"] == [*range(9)]
    assert run_history.generation == 0


def test_another_chain_is_another_generation(chain: Chain, files: tuple[Path, Path]) -> None:
    ledger, _ = files
    run_history = open_it(chain, files)
    assert len(read(run_history)["rows"]["round"]) == 8
    other = Chain(2)
    other.grow()
    write_ledger(ledger.with_name("aside"), other)
    ledger.with_name("aside").replace(ledger)
    whole = read(run_history)
    assert whole["generation"] == 1
    assert whole["rows"]["round"] == [0, 1]
    assert len(whole["peers"]) == 2


def test_damage_ends_what_is_shown_and_nothing_else(chain: Chain, files: tuple[Path, Path]) -> None:
    ledger, history = files
    data = bytearray(ledger.read_bytes())
    data[len(data) // 2] ^= 0xFF
    ledger.write_bytes(data)
    history.write_bytes(b"\xff\xfe\n[1]\nnull\n" + b'{"round": {}}\n' + b"[" * 100_000 + b"\n")
    rows = read(open_it(chain, files))["rows"]["round"]
    # A byte inside a signature changes nothing that is read here; another one ends it.
    assert rows == [*range(len(rows))]
    assert 1 <= len(rows) <= 8
    for nothing in (b"", b"\0\0", b"\xff" * 100):
        ledger.write_bytes(nothing)
        assert read(open_it(chain, files))["rows"]["round"] == []


def test_thousands_of_rounds_are_some_thousand_rows(
    chain: Chain, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_history_module, "MAX_ROWS", 48)
    monkeypatch.setattr(run_history_module, "RECENT_ROWS", 8)
    monkeypatch.setattr(run_history_module, "_ENTRIES_AT_ONCE", 7)
    while chain.round < 150:
        chain.grow()
    ledger, history = files
    write_ledger(ledger, chain)
    history.write_text("".join(line(r) for r in range(150)))
    whole = read(open_it(chain, files))
    rows = whole["rows"]
    assert len(rows["round"]) <= 48
    assert rows["round"][-8:] == [*range(142, 150)]
    assert rows["rounds"][-8:] == [1] * 8
    assert sum(rows["rounds"]) == 150
    # Sums lose nothing, and the order is kept.
    assert sum(rows["updates"]) == sum(len(chain.ledger[r].record.updates) for r in range(150))
    assert rows["tokens"] == sorted(rows["tokens"])
    assert None not in rows["time"][-40:]
    assert len(whole["phases"]) == 64


def test_a_crowd_of_identities_is_bounded(
    chain: Chain, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_history_module, "MAX_PEERS", 2)
    whole = read(open_it(chain, files))
    assert len(whole["peers"]) == 2
    assert whole["rows"]["updates"][1] == 3


def test_a_crowd_does_not_hide_this_node(
    chain: Chain, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_history_module, "MAX_PEERS", 3)
    chain.grow(admitted=[chain.admission(5)])
    chain.grow(admitted=[chain.admission(6)])
    write_ledger(files[0], chain)
    me = peer_text(identity(6).peer)
    whole = read(RunHistory(chain.manifest.founder, me, *files))
    assert [each["peer"] for each in whole["members"] if each["me"]] == [me]
    assert len(whole["peers"]) == 4


def test_samples_are_bounded_and_of_one_chain(chain: Chain, files: tuple[Path, Path]) -> None:
    _, history = files

    def sample(round_: int, text: object) -> str:
        return json.dumps({"round": round_, "time": 1, "sample": text}) + "\n"

    wrong = sample(3, 5) + sample(3, "x" * 1001) + sample(3, None)
    history.write_text(wrong + sample(1, "one") + sample(5, "five") + sample(4, "four"))
    run_history = open_it(chain, files)
    assert read(run_history)["samples"] == [[1, "one"], [4, "four"]]
    with history.open("a") as file:
        file.write("".join(sample(round_, "again") for round_ in range(10, 300)))
    samples = read(run_history)["samples"]
    assert len(samples) <= 64
    assert [samples[0][0], samples[-1][0]] == [1, 299]
    assert run_history.latest(4)["samples"] == samples[-2:]


def test_the_history_that_a_node_writes_is_the_one_that_is_read(
    chain: Chain, files: tuple[Path, Path]
) -> None:
    telemetry = Telemetry(identity(0).peer)
    telemetry.keep_history(files[1])
    times = telemetry.round_times(7)
    times.compute, times.trained, times.collected, times.decided = 0.5, 1.0, 3.0, 3.5
    telemetry.applied(
        chain.ledger[7].record, 2, 9, 0.125, 4.0, attendance=RoundAttendance("counted")
    )
    telemetry.evaluated(7, 2.0, 0)
    telemetry.sampled(7, "and so on\x1b[2J\n")
    whole = read(open_it(chain, files))
    assert whole["heldout"] == [[7, 2.0]]
    assert whole["samples"] == [[7, "and so on\N{REPLACEMENT CHARACTER}[2J\n"]]
    assert whole["rows"]["time"][7] is not None
    (phases,) = whole["phases"]
    assert (phases["compute"], phases["transfer"], phases["agree"]) == (0.5, 2.0, 0.5)


def test_news_do_not_grow_with_who_was_ever_there(
    chain: Chain, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_history_module, "_RESENT_PEERS", 2)
    monkeypatch.setattr(run_history_module, "_DEPARTED_SHOWN", 1)
    for who in (5, 6, 7):
        chain.grow(admitted=[chain.admission(who)])
        chain.grow(departed=[chain.silence(who)])
    write_ledger(files[0], chain)
    run_history = open_it(chain, files)
    whole, news = read(run_history), run_history.latest(3)
    assert whole["peers_at"] == 0
    assert news["peers"] == whole["peers"][news["peers_at"] :]
    assert len(news["peers"]) == 2
    for name, column in news["rows"].items():
        assert column == whole["rows"][name][-3:]
    gone = [each["peer"] for each in news["members"] if each["left"] is not None]
    assert gone == [peer_text(identity(7).peer)]
    assert len(news["members"]) == 3
    assert len(run_history.contributions()) == 6


async def test_the_rounds_over_http(chain: Chain, files: tuple[Path, Path]) -> None:
    async with served(lambda: open_it(chain, files)) as page:
        whole = (await page.ask("/api/rounds")).json
        assert whole["rows"]["round"] == [*range(8)]
        table = (await page.ask("/api/contributions.csv")).body.decode().splitlines()
        assert table[0] == "peer,joined,left,why,counted,tokens,day_tokens,week_tokens,last,loss"
        assert len(table) == 4
        assert len((await page.ask("/api/contributions.json")).json) == 3
