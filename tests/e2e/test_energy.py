"""A node that pauses when a command asks for it, and reports why, in a swarm of real processes."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
from distro_node.node.energy.pause_poller import SENTENCE
from e2e.program import wait_for
from e2e.support import Swarm, check_agreement

# `make test` has each part of it: tests/energy/test_manager.py, tests/energy/test_pause_poller.py and
# tests/cli/test_energy_options.py; and a pause of a real node in `test_swarm`.
pytestmark = [pytest.mark.e2e, pytest.mark.soak]


def test_a_dear_hour_is_left_to_others(tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    answer.write_text("1\n")
    with Swarm(tmp_path / "swarm") as swarm:
        swarm.create()
        (founder,) = swarm.start("founder")
        saver = swarm.node("saver")
        saver.start("--pause-when", f"exit $(cat '{answer}')", "--pause-every", "10")
        wait_for(lambda: saver.counted(), "the saver's first contribution")

        answer.write_text("0\n")
        wait_for(lambda: saver.state == "paused", "a pause while it is dear")
        assert [hold.text for hold in saver.told().schedule.holds] == [SENTENCE]
        # The page and the terminal show the same sentence.
        asked = swarm.run("status", "status", "--data-dir", saver.data.root)
        assert asked.wait() == 0
        assert SENTENCE in " ".join(asked.stdout.split())
        with urllib.request.urlopen(
            f"{saver.told().node.dashboard}api/status", timeout=30
        ) as status:
            assert SENTENCE.encode() in status.read()
        # The others go on without waiting for it.
        since = founder.round
        wait_for(lambda: founder.round > since + 3, "rounds without the saver")

        answer.write_text("7\n")
        wait_for(lambda: "exit code 7" in saver.program.stderr, "a word on what is no answer")
        assert saver.state == "paused"
        answer.write_text("1\n")
        wait_for(lambda: saver.state == "training", "the return")
        since = saver.round
        wait_for(lambda: saver.counted(since), "its first contribution after that")
        check_agreement([founder, saver])
