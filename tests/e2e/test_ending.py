"""A run ends: its members end with it, and the result can be fetched from one that stays, and
verified."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e.program import wait_for
from e2e.support import Swarm

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LAST = 6


def test_members_end_with_the_run_and_who_stays_serves_the_result(tmp_path: Path) -> None:
    with Swarm(tmp_path, start_members=2, total_rounds=LAST) as swarm:
        swarm.create()
        founder, second = swarm.node("founder"), swarm.node("second")
        founder.start()
        second.start("--serve-result")
        wait_for(lambda: founder.program.code is not None, "the founder to end with the run")
        assert founder.program.code == 0
        assert "The run is over" in founder.program.stderr
        wait_for(lambda: second.state == "finished", "the other to be finished")
        status = second.told()
        assert status.training.round == LAST
        assert status.swarm is not None
        assert status.swarm.last_round == LAST
        assert status.seconds_left == 0
        ledgers = [node.ledger() for node in (founder, second)]
        assert {ledger.head for ledger in ledgers} == {ledgers[0].head}
        assert ledgers[0].finished

        # A latecomer gets the result from the node that stayed.
        late = swarm.node("late")
        program = late.start()
        assert wait_for(lambda: program.code is not None, "the late one to end")
        assert program.code == 0, program.stderr
        assert late.ledger().head == ledgers[0].head
        model = tmp_path / "model"
        home = ("--data-dir", late.data.root)
        exported = swarm.run("export", "export", swarm.link, "--to", model, "--json", *home)
        assert exported.wait() == 0, exported.stderr
        assert json.loads(exported.stdout)["round"] == LAST
        verified = swarm.run("verify", "verify", model, swarm.link, "--json", *home)
        assert verified.wait() == 0, verified.stderr
        found = json.loads(verified.stdout)
        assert (found["round"], found["proof"]) == (LAST, "content")

        # Started again, it finds the end on its own disk.
        assert founder.start().wait() == 0
        left = swarm.run("leave", "leave", "--data-dir", second.data.root)
        assert left.wait() == 0
        assert second.program.wait() == 0
