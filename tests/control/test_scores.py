"""The scores of `distro-node evaluate` reach the running node if they are its swarm's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
from distro_node.crypto.identity import PeerId
from distro_node.node.control.command_socket import ask
from distro_node.node.control.status_rows import rows
from distro_node.node.control.supervisor import Supervisor
from distro_node.node.control.work_hours import WorkSchedule
from distro_node.node.errors import UserError
from distro_node.node.telemetry.counts import NodeReading
from distro_node.node.telemetry.history import last_scores
from distro_node.node.telemetry.task_scores import heldout_accuracy, read_scores
from distro_node.node.telemetry.telemetry import Telemetry
from distro_node.protocol.wire.structure import to_plain
from scraping import sample
from statuses import SCORES, TRAINING


async def test_a_running_node_receives_its_own_swarms_scores(tmp_path: Path) -> None:
    supervisor = Supervisor(
        socket=tmp_path / "socket",
        schedule=WorkSchedule(None),
        telemetry=Telemetry(PeerId(bytes(32))),
        node=TRAINING.node,
        screen=False,
    )

    async def tell(scores: object) -> dict[str, object]:
        send = partial(ask, tmp_path / "socket", "scored", 10.0, scores=scores)
        return await trio.to_thread.run_sync(send)

    async with supervisor.open():
        assert supervisor.status().scores is None
        others = to_plain(replace(SCORES, swarm="swarm-other"), named=True)
        for wrong in (others, {"round": 5}, None):
            with pytest.raises(UserError, match="not scores of this swarm"):
                await tell(wrong)
        assert supervisor.status().scores is None
        assert await tell(to_plain(SCORES, named=True)) == {"ok": True}
        assert supervisor.status().scores == SCORES
    reading = NodeReading(status=supervisor.status())
    assert sample(reading, "task_score", task="arc_easy") == 0.26


def test_a_classifiers_accuracy_is_kept_and_shown(tmp_path: Path) -> None:
    scores = heldout_accuracy("swarm-abc", 15, "ab" * 32, 7, 0.9, 101)
    (score,) = scores.tasks
    assert score.error == pytest.approx(0.03)
    assert read_scores(to_plain(scores, named=True)) == scores
    telemetry = Telemetry(PeerId(bytes(32)))
    telemetry.keep_history(tmp_path / "history")
    telemetry.measured(scores)
    assert telemetry.scores == last_scores(tmp_path / "history") == scores
    status = replace(TRAINING, scores=scores)
    assert sample(NodeReading(status=status), "task_score", task="heldout") == 0.9
    (row,) = (row for row in rows(status) if row.name == "tasks")
    assert row.value == "heldout 0.900"
    assert row.note == "after round 15, on held-out data"
