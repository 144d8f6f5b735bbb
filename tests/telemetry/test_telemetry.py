"""A node's telemetry: events are reported once, over replays and restarts."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
from distro_node.node.session.attendance import attendance_of
from distro_node.node.telemetry.telemetry import OwnUpdate, Telemetry
from distro_node.node.util.progress import Progress
from scraping import sample, told_by
from simulation.chain import Chain
from simulation.swarm import identity

ME = identity(0).peer


def new_telemetry(history: Path) -> Telemetry:
    telemetry = Telemetry(ME)
    telemetry.keep_history(history)
    return telemetry


@pytest.fixture
def history(tmp_path: Path) -> Path:
    return tmp_path / "history.jsonl"


def apply_rounds(telemetry: Telemetry, chain: Chain, *rounds: int, fingerprint: int = 9) -> None:
    for round_ in rounds:
        record = chain.ledger[round_].record
        attendance = attendance_of(chain.ledger, record, ME)
        telemetry.applied(
            record, 2, fingerprint + round_, 0.1, float(round_), attendance=attendance
        )


@pytest.fixture
def chain() -> Chain:
    made = Chain(2)
    for _ in range(4):
        made.grow()
    return made


def told(history: Path) -> list[int]:
    return [json.loads(line)["round"] for line in history.read_text().splitlines()]


def test_replayed_rounds_are_counted_once(history: Path, chain: Chain) -> None:
    telemetry = new_telemetry(history)
    apply_rounds(telemetry, chain, 1, 2, 3)
    before = telemetry.status()
    # A new trainer begins at a snapshot.
    apply_rounds(telemetry, chain, 2, 3, 4)
    after = telemetry.status()
    assert told(history) == [1, 2, 3, 4]
    assert after.own.counted == before.own.counted + 1 == 4
    assert after.tokens == 4 * 2 * 500
    assert after.round == 4


def test_rounds_from_before_a_node_came_are_not_its_own_time(history: Path, chain: Chain) -> None:
    telemetry = new_telemetry(history)
    telemetry.caught_up(3)
    # A pause later, what was missed is part of it.
    telemetry.caught_up(5)
    telemetry.loaded(0, 9)
    apply_rounds(telemetry, chain, 1, 2)
    assert telemetry.status().round == 2
    assert telemetry.status().losses.training is not None
    assert (telemetry.status().tokens, telemetry.status().own.counted) == (0, 0)
    apply_rounds(telemetry, chain, 3, 4)
    assert (telemetry.status().tokens, telemetry.status().own.first_round) == (2 * 2 * 500, 3)
    assert told(history) == [1, 2, 3, 4]


def test_a_replay_is_no_measure_of_the_swarm_s_speed(history: Path, chain: Chain) -> None:
    """Rounds of ten minutes are replayed at two a second."""
    telemetry = new_telemetry(history)
    telemetry.caught_up(1)
    for _ in range(6):
        chain.grow()

    def apply(round_: int, now: float, *, behind: bool = False) -> None:
        record = chain.ledger[round_].record
        attendance = attendance_of(chain.ledger, record, ME)
        telemetry.applied(record, 2, round_, 0.1, now, attendance=attendance, at_tip=not behind)

    def speed() -> tuple[float | None, float | None]:
        status = telemetry.status()
        return status.round_seconds, status.tokens_per_second

    apply(0, 0.0, behind=True)
    apply(1, 0.5, behind=True)
    # The end of the replay, and the swarm's next round a moment later.
    apply(2, 1.0)
    apply(3, 3.0)
    assert speed() == (None, None)
    apply(4, 603.0)
    assert speed() == (600.0, 1000 / 600)
    # The computer was asleep.
    apply(5, 603.5, behind=True)
    assert speed() == (None, None)
    apply(6, 604.0)
    apply(7, 700.0)
    apply(8, 1300.0)
    assert speed() == (600.0, 1000 / 600)
    telemetry.caught_up(9)
    assert speed() == (None, None)


def test_updates_that_the_filter_left_out_are_counted_once(history: Path, chain: Chain) -> None:
    telemetry = new_telemetry(history)
    for round_ in (1, 2, 1, 2, 3):
        record = chain.ledger[round_].record
        attendance = attendance_of(chain.ledger, record, ME)
        telemetry.applied(record, 2, round_, 0.1, 1.0, attendance=attendance, left_out=1)
    assert telemetry.counts.updates_filtered == 3


def test_each_round_is_a_line_of_the_log(
    history: Path, chain: Chain, caplog: pytest.LogCaptureFixture
) -> None:
    telemetry = new_telemetry(history)
    with caplog.at_level(logging.INFO):
        apply_rounds(telemetry, chain, 1, 2, 2)
    lines = [line for line in caplog.messages if line.startswith("round ")]
    assert len(lines) == 2
    expected = r"round 1: loss \d\.\d{4}, 2 updates of 2 members; your update counted"
    assert re.fullmatch(expected, lines[0])


def test_a_restart_goes_on_where_the_history_ends(history: Path, chain: Chain) -> None:
    apply_rounds(new_telemetry(history), chain, 1, 2, 3)
    with history.open("a") as file:
        file.write('{"round": 3, "heldout": 2.5}\nno line\n[]\n{"round": "x", "finger')
    apply_rounds(new_telemetry(history), chain, 2, 3, 4)
    rounds = [line for line in history.read_text().splitlines() if '"counted"' in line]
    assert [json.loads(line)["round"] for line in rounds] == [1, 2, 3, 4]
    assert '"finger{' not in history.read_text()


def test_rounds_of_another_chain_are_reported_again(history: Path, chain: Chain) -> None:
    telemetry = new_telemetry(history)
    apply_rounds(telemetry, chain, 1, 2, 3)
    apply_rounds(telemetry, chain, 2, 3, fingerprint=70)
    assert told(history) == [1, 2, 3, 2, 3]


def test_the_trainer_s_waiting_is_reported_by_round_and_as_a_share(
    history: Path, chain: Chain
) -> None:
    telemetry = new_telemetry(history)
    assert telemetry.status().trainer.idle is None
    for round_ in (1, 2, 3):
        telemetry.idle(0.25)
        apply_rounds(telemetry, chain, round_)
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    assert [line["idle_seconds"] for line in lines] == [0.25, 0.25, 0.25]
    # A round a second.
    assert telemetry.status().trainer.idle == 0.25


def test_the_speed_is_over_all_the_time_of_the_last_rounds(history: Path, chain: Chain) -> None:
    telemetry = new_telemetry(history)
    telemetry.recent.sequence_flops, telemetry.recent.matmul_flops = 3_000, 24_000.0
    assert telemetry.status().trainer.tokens_per_second is None
    for round_ in (1, 2, 3):
        # Whether they count or not: the second round's is late.
        telemetry.trained(round_, OwnUpdate(100, 10, tokens=500, sequences=4))
        apply_rounds(telemetry, chain, round_)
    trainer = telemetry.status().trainer
    # A round a second.
    assert trainer.tokens_per_second == 500.0
    assert trainer.flops_per_second == 12_000.0
    assert trainer.utilisation == 0.5
    assert sample(told_by(telemetry), "model_flops_utilisation") == 0.5
    assert sample(told_by(telemetry), "update_bytes") == 100
    assert sample(told_by(telemetry), "tokens_per_second", scope="swarm") == 1000

    telemetry.recent.matmul_flops = None
    assert telemetry.status().trainer.utilisation is None
    telemetry.recent.sequence_flops = None
    assert telemetry.status().trainer.flops_per_second is None


def test_a_paused_node_shows_no_work(history: Path, chain: Chain) -> None:
    """Its trainer has ended, and nothing is in progress, also if it was paused while it replayed."""
    telemetry = new_telemetry(history)
    telemetry.enter("training")
    for round_ in (1, 2, 3):
        telemetry.trained(round_, OwnUpdate(100, 10, tokens=500, sequences=4))
        apply_rounds(telemetry, chain, round_)
    telemetry.memory = 4 << 30, 8 << 30
    telemetry.round_times(4).began = 3.0
    telemetry.report(Progress(what="replaying rounds", done=3, total=9))
    assert telemetry.status().phase == "compute"
    telemetry.enter("paused")
    status = telemetry.status()
    assert telemetry.progress is None
    assert (status.round_seconds, status.tokens_per_second, status.phase) == (None, None, "idle")
    assert (status.own.tokens_per_second, status.trainer.tokens_per_second) == (None, None)
    for owner in ("trainer", "device"):
        assert sample(told_by(telemetry), "memory_bytes", owner=owner) == 0
    for scope in ("own", "swarm"):
        assert sample(told_by(telemetry), "tokens_per_second", scope=scope) == 0
    # What was done stays.
    assert (status.round, status.own.tokens, status.own.counted) == (3, 1500, 3)


def test_a_swarm_that_has_stalled_has_no_pace_for_others(history: Path, chain: Chain) -> None:
    telemetry = new_telemetry(history)
    assert telemetry.swarm_pace(0.0) is None
    # A round a second.
    apply_rounds(telemetry, chain, 1, 2, 3)
    assert telemetry.swarm_pace(4.0) == telemetry.swarm_pace(60.0) == 1000
    assert telemetry.swarm_pace(3600.0) == 0
    # The last round was as fast as it was.
    assert telemetry.status().tokens_per_second == 1000
