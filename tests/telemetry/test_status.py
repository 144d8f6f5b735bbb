"""The status as JSON: frozen by a file and a table, and decoded strictly."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from distro_node.node.control.status_rows import rows
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.telemetry.health import verdict
from distro_node.node.telemetry.messages import (
    STATES,
    duration_text,
    event_sentence,
    reachability_text,
    speed_text,
    starting_trainer,
    state_remedy,
    state_sentence,
)
from distro_node.node.telemetry.status import (
    BootstrapStatus,
    State,
    Status,
    decode_any_status,
    decode_status,
    encode_status,
    seconds_left,
)
from distro_node.node.training.task_names import BUILT_IN, LOSS_UNITS
from distro_node.node.util.progress import Progress
from status_reference import reference
from statuses import AWAITING, EARLY, OBSERVING, TRAINING, UNREACHABLE, B, C

GOLDEN = Path(__file__).parents[1] / "golden" / "status.json"


@pytest.mark.parametrize("status", [TRAINING, AWAITING, EARLY, OBSERVING])
def test_what_was_written_is_read_back(status: Status) -> None:
    assert decode_status(json.loads(json.dumps(encode_status(status)))) == status


def test_the_format_is_the_frozen_one() -> None:
    """Programs read it: a change belongs into `changes/`."""
    short = replace(AWAITING, events=AWAITING.events[:1])
    assert encode_status(short) == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_every_field_is_explained(checkout: Path) -> None:
    text = (checkout / "docs" / "reference.md").read_text(encoding="utf-8")
    assert f"\n\n{reference()}\n" in text, "run `make docs`"
    for line in reference().splitlines()[2:]:
        assert "|  |" not in line


def test_a_bootstrap_peer_is_distinguished_from_a_node() -> None:
    mine = BootstrapStatus(
        version="1",
        peer=B,
        started=1.0,
        swarms=2,
        reservations=3,
        circuits=1,
        observes=None,
        dashboard=None,
        line=TRAINING.line,
    )
    assert decode_any_status(json.loads(json.dumps(encode_status(mine)))) == mine
    assert decode_any_status(encode_status(TRAINING)) == TRAINING
    assert [row.name for row in rows(mine)][:3] == ["peer", "swarms", "connections"]
    observing = replace(mine, observes="swarm-1", dashboard="http://127.0.0.1:9466/")
    told = {row.name: row.value for row in rows(observing)}
    assert (told["follows"], told["page"]) == ("swarm-1", "http://127.0.0.1:9466/")
    with pytest.raises(UserError):
        decode_status(encode_status(mine))


def test_a_loss_that_diverged_is_unknown_in_json() -> None:
    losses = replace(TRAINING.training.losses, training=math.nan, heldout=math.inf)
    wild = replace(TRAINING, training=replace(TRAINING.training, losses=losses))
    told = decode_status(json.loads(json.dumps(encode_status(wild), allow_nan=False)))
    assert told.training.losses.training is None
    assert told.training.losses.heldout is None


def changed(path: str, value: object) -> dict[str, Any]:
    table = encode_status(TRAINING)
    inner: Any = table
    *way, last = path.split(".")
    for step in way:
        inner = inner[step]
    inner[last] = value
    return table


@pytest.mark.parametrize(
    "answer",
    [
        {},
        [],
        None,
        "status",
        encode_status(TRAINING) | {"surplus": 1},
        {k: v for k, v in encode_status(TRAINING).items() if k != "line"},
        changed("state", "dancing"),
        changed("training.round", "17"),
        changed("training.round", True),
        changed("training.losses", None),
        changed("swarm.members", [{}]),
        changed("line.sent_bytes", 1.5),
        changed("line.sent_bytes", None),
    ],
)
def test_nothing_else_is_taken_for_a_status(answer: object) -> None:
    with pytest.raises(UserError) as caught:
        decode_status(answer)
    assert caught.value.code is ExitCode.VERSION


def test_every_state_has_a_text() -> None:
    assert set(STATES) == set(get_args(State))
    assert all(words.meaning for words in STATES.values())


@pytest.mark.parametrize("phase", ["compute", "transfer", "agree", "apply", "idle"])
def test_every_phase_names_the_round_in_work(phase: Any) -> None:
    status = replace(TRAINING, training=replace(TRAINING.training, phase=phase))
    assert "round 18" in state_sentence(status)


def test_a_founder_who_has_the_model_does_not_read_that_it_is_fetched() -> None:
    status = replace(TRAINING, state="syncing", progress=starting_trainer(12.7))
    assert state_sentence(status).startswith("the trainer process starts")
    assert "slow line" not in state_remedy(status)
    (shown,) = (row.value for row in rows(status) if row.name == "state")
    assert shown.startswith("syncing: starting the trainer: 12 s so far")
    status = replace(status, progress=Progress(what="model", done=3, total=9))
    assert state_sentence(status) == STATES["syncing"].meaning
    # Neither is the owner of a node that has not come so far told of a trainer.
    assert "trainer" not in state_sentence(replace(EARLY, state="starting", progress=None))


def test_a_node_that_waits_says_for_how_many_members() -> None:
    status = replace(TRAINING, state="waiting")
    assert state_sentence(status) == "training starts once 3 members are there"
    assert state_remedy(status) == "invite more members"


@pytest.mark.parametrize("status", [TRAINING, OBSERVING])
def test_the_loss_has_the_unit_of_its_swarm_alone(status: Status) -> None:
    """Every reader of a loss in nats was told how the loss of `grpo` is counted."""
    assert status.swarm is not None
    assert _loss_note(status) == "lower is better; nats a token"
    unknown = replace(status, swarm=replace(status.swarm, loss_unit=None))
    assert _loss_note(unknown) == "lower is better"


def _loss_note(status: Status) -> str:
    (note,) = (row.note for row in rows(status) if row.name == "loss")
    return note


def test_every_built_in_task_names_the_unit_of_its_loss() -> None:
    assert set(LOSS_UNITS) == set(BUILT_IN)


def test_a_node_that_pauses_is_not_about_to_end() -> None:
    """It said that a second Ctrl-C ends the node, to somebody who had pressed none."""
    status = replace(TRAINING, state="leaving")
    assert "Ctrl-C" in state_remedy(status)
    pausing = replace(status, schedule=replace(status.schedule, at_work=False))
    assert state_remedy(pausing) == "then it pauses"


def test_a_download_is_counted_in_bytes() -> None:
    """It said "the parameters 0/3428864"."""
    fetched = Progress(what="the parameters", done=1_200_000, total=3_428_864, kind="downloading")
    status = replace(TRAINING, state="syncing", progress=fetched)
    (shown,) = (row.value for row in rows(status) if row.name == "state")
    assert shown == "syncing: the parameters: 1.2 MB of 3.43 MB"


def test_the_device_is_called_what_it_is() -> None:
    def on(device: str | None) -> str:
        trainer = replace(TRAINING.training.trainer, device=device)
        return state_sentence(
            replace(TRAINING, training=replace(TRAINING.training, trainer=trainer))
        )

    assert "your processor" in on("cpu")
    assert "your GPU" in on("cuda:0 (some card)")
    assert "your trainer" in on(None)


def test_whom_the_round_waits_for_is_reported() -> None:
    assert state_sentence(AWAITING) == ("waiting for CCCCCC, silent for 12 s of a lease of 20 s")
    assert AWAITING.swarm is not None
    (one,) = AWAITING.swarm.awaited
    both = (one, replace(one, peer=B, silent_seconds=5.0))
    assert "waiting for BBBBBB and 1 more, silent for 5 s of a lease of 20 s" in state_sentence(
        replace(AWAITING, swarm=replace(AWAITING.swarm, awaited=both))
    )


def test_who_is_on_another_chain_is_shown_where_somebody_is() -> None:
    assert AWAITING.swarm is not None
    shown = {row.name: row.value for row in rows(AWAITING)}
    assert shown["diverged"] == "BBBBBB"
    crowd = replace(AWAITING, swarm=replace(AWAITING.swarm, diverged=(B, C) * 3))
    assert {row.name: row.value for row in rows(crowd)}["diverged"].endswith(" +2")
    assert "diverged" not in {row.name for row in rows(TRAINING)}
    assert "final here" in event_sentence("diverged", 9, B, False, "4")
    assert "round 4;" in event_sentence("diverged", 9, B, False, "4")


def test_who_cannot_be_called_reads_what_helps() -> None:
    assert reachability_text(UNREACHABLE).remedy == "to avoid it, open TCP 65535"
    alone = replace(UNREACHABLE, relays=())
    assert reachability_text(alone).remedy == "open TCP 65535, or --bootstrap"
    assert "its port" in reachability_text(replace(alone, port=None)).remedy


def test_events_are_whole_sentences() -> None:
    assert event_sentence("skipped", 7, C, False, "") == (
        "peer CCCCCC, a leader of round 7, was too slow; the next leader takes over"
    )
    assert event_sentence("skipped", 7, C, True, "").startswith("this node, a leader of round 7")
    assert event_sentence("late", 7, None, False, "") == (
        "the update of a peer arrived after round 7 was decided"
    )
    assert event_sentence("unheard-of", 7, C, False, "as it is") == "as it is"


def test_how_long_a_run_takes_is_reported_where_it_is_known() -> None:
    training, swarm = TRAINING.training, TRAINING.swarm
    assert swarm is not None
    assert seconds_left(training, swarm) == TRAINING.seconds_left == 103 * 72.5
    shown = {row.name: row.value for row in rows(TRAINING)}
    assert shown["round"] == "17 of 120, about 2 h left"
    (round_,) = [row for row in rows(TRAINING) if row.name == "round"]
    assert round_.note == "final up to round 14"
    # It has no end, or there was no second round yet, or nothing is known at all.
    endless = replace(swarm, last_round=None)
    assert seconds_left(training, endless) is None
    assert seconds_left(replace(training, round_seconds=None), swarm) is None
    assert seconds_left(training, None) is None
    over = replace(training, round=120)
    assert seconds_left(over, swarm) == 0
    early = replace(TRAINING, seconds_left=None)
    assert {row.name: row.value for row in rows(early)}["round"] == "17 of 120"
    without_end = replace(early, swarm=endless)
    assert {row.name: row.value for row in rows(without_end)}["round"] == "17 done"
    done = replace(TRAINING, training=over, seconds_left=0.0)
    assert {row.name: row.value for row in rows(done)}["round"] == "120 of 120"
    assert "sign the result" in state_sentence(done)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (89, "89 s"), (90, "2 min"), (5399, "90 min"), (5400, "2 h"), (3e5, "3 d")],
)
def test_durations_in_one_unit(seconds: float, words: str) -> None:
    assert duration_text(seconds) == words


def test_what_tasks_printed_is_shown() -> None:
    (row,) = [row for row in rows(TRAINING) if row.name == "tasks"]
    assert row.value == "arc_easy 0.260"
    assert "round 15" in row.note


@pytest.mark.parametrize(
    ("flops", "said"),
    [(12.0, "12 FLOP/s"), (16_400_000.0, "16.4 MFLOP/s"), (2.5e14, "250 TFLOP/s")],
)
def test_a_speed_is_shown_in_a_suitable_unit(flops: float, said: str) -> None:
    trainer = replace(AWAITING.training.trainer, flops_per_second=flops, utilisation=0.4)
    assert (
        speed_text(trainer)
        == f"by this node: {said}, 40% of the device's speed in a matrix product"
    )


def test_a_run_that_is_over_and_whose_result_nobody_has_is_called_that() -> None:
    """A member that catches up while the others finish waited with "training follows"."""
    swarm = TRAINING.swarm
    assert swarm is not None
    ended = replace(TRAINING, state="syncing", swarm=replace(swarm, ended=True, awaited=()))
    vain = Progress(what="a peer that has the state of round 9", kind="waiting")
    moving = Progress(what="the state of round 9", done=3, total=9)
    alone = verdict(replace(ended, progress=vain))
    assert alone.sentence == "the run is over; no peer that has the result can be reached"
    assert "--serve-result" in alone.remedy
    assert alone.tone == "warn"
    fetching = verdict(replace(ended, progress=moving))
    assert fetching.sentence == "the run is over; this node fetches the result"
    assert fetching.tone == "busy"
    (row,) = [row for row in rows(replace(ended, progress=vain)) if row.name == "state"]
    assert "no peer that has the result" in row.note
    # The kind says so, whatever the text is.
    named = Progress(what="waiting for spring, a blob of that name", done=3, total=9)
    assert verdict(replace(ended, progress=named)).tone == "busy"
    # Before the end.
    early = replace(ended, swarm=replace(swarm, ended=False), progress=vain)
    assert "no connected peer has" in verdict(early).sentence
    done = replace(ended, state="finished", progress=None)
    assert verdict(done).tone == "good"
