"""The status as JSON: frozen by a file and a table, and read back strictly."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from distro_node.node.control.rows import rows
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.telemetry.status import (
    BootstrapStatus,
    State,
    Status,
    decode_any_status,
    decode_status,
    encode_status,
)
from distro_node.node.telemetry.status_reference import reference
from distro_node.node.telemetry.words import STATES, event_sentence, reach_words, state_sentence
from statuses import AWAITING, EARLY, TRAINING, UNREACHABLE, B, C

GOLDEN = Path(__file__).parents[1] / "golden" / "status.json"


@pytest.mark.parametrize("status", [TRAINING, AWAITING, EARLY])
def test_what_was_written_is_read_back(status: Status) -> None:
    assert decode_status(json.loads(json.dumps(encode_status(status)))) == status


def test_the_format_is_the_frozen_one() -> None:
    """Programs read it: a change belongs into `changes/`."""
    short = replace(AWAITING, events=AWAITING.events[:1])
    assert encode_status(short) == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_every_field_is_explained(checkout: Path) -> None:
    text = (checkout / "docs" / "status.md").read_text(encoding="utf-8")
    assert text.endswith("\n\n" + reference()), "run `make docs`"
    for line in reference().splitlines()[2:]:
        assert "|  |" not in line


def test_a_bootstrap_peer_is_told_from_a_node() -> None:
    mine = BootstrapStatus(version="1", peer=B, started=1.0, swarms=2, line=TRAINING.line)
    assert decode_any_status(json.loads(json.dumps(encode_status(mine)))) == mine
    assert decode_any_status(encode_status(TRAINING)) == TRAINING
    assert [row.name for row in rows(mine)][:2] == ["peer", "swarms"]
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


def test_every_state_has_words() -> None:
    assert set(STATES) == set(get_args(State))
    assert all(words.meaning for words in STATES.values())


@pytest.mark.parametrize("phase", ["compute", "transfer", "agree", "apply", "idle"])
def test_every_phase_names_the_round_in_work(phase: Any) -> None:
    status = replace(TRAINING, training=replace(TRAINING.training, phase=phase))
    assert "round 18" in state_sentence(status)


def test_the_device_is_called_what_it_is() -> None:
    def on(device: str | None) -> str:
        trainer = replace(TRAINING.training.trainer, device=device)
        return state_sentence(
            replace(TRAINING, training=replace(TRAINING.training, trainer=trainer))
        )

    assert "your processor" in on("cpu")
    assert "your GPU" in on("cuda:0 (some card)")
    assert "your trainer" in on(None)


def test_whom_the_round_waits_for_is_said() -> None:
    assert state_sentence(AWAITING) == (
        "waiting for CCCCCC, silent for 12 of the 20 s after which it counts as gone"
    )
    assert AWAITING.swarm is not None
    (one,) = AWAITING.swarm.awaited
    both = (one, replace(one, peer=B, silent_seconds=5.0))
    assert "waiting for BBBBBB and 1 more, silent for 5 of the 20 s" in state_sentence(
        replace(AWAITING, swarm=replace(AWAITING.swarm, awaited=both))
    )


def test_who_cannot_be_called_is_told_what_helps() -> None:
    assert reach_words(UNREACHABLE).remedy == "to be called: open TCP 65535"
    alone = replace(UNREACHABLE, relays=())
    assert reach_words(alone).remedy == "open TCP 65535, or --bootstrap"
    assert "its port" in reach_words(replace(alone, port=None)).remedy


def test_events_are_whole_sentences() -> None:
    assert event_sentence("skipped", 7, C, False, "") == (
        "peer CCCCCC led round 7 and was too slow; another member takes over"
    )
    assert event_sentence("skipped", 7, C, True, "").startswith("this node led round 7")
    assert event_sentence("late", 7, None, False, "") == (
        "the update of a peer came after round 7 was decided"
    )
    assert event_sentence("unheard-of", 7, C, False, "as it is") == "as it is"
