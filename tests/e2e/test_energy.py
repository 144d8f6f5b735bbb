"""A node that pauses by price, in a swarm of real processes, and reports the reason for the pause."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
from e2e.program import wait_for
from e2e.support import Swarm, check_agreement

# `make test` has each part of it: tests/energy/test_manager.py, tests/energy/test_pause_poller.py and
# tests/cli/test_energy_options.py; and a pause of a real node in `test_swarm`.
pytestmark = [pytest.mark.e2e, pytest.mark.soak]


def test_a_dear_hour_is_left_to_others(tmp_path: Path) -> None:
    price = tmp_path / "price"
    price.write_text("12.5\n")
    with Swarm(tmp_path / "swarm") as swarm:
        swarm.create()
        (founder,) = swarm.start("founder")
        saver = swarm.node("saver")
        saver.start(
            *("--pause-when", f"cat '{price}'", "--pause-above", "30", "--resume-below", "25"),
            *("--pause-every", "10", "--price", "0.30", "--currency", "EUR"),
        )
        wait_for(lambda: saver.counted(), "the saver's first contribution")
        assert saver.told().energy.signal == 12.5

        price.write_text("41.0\n")
        wait_for(lambda: saver.state == "paused", "a pause while it is dear")
        told = saver.told()
        assert [hold.text for hold in told.schedule.holds] == ["41 is above 30"]
        assert (told.energy.price, told.energy.currency) == (0.3, "EUR")
        # The page and the terminal show the same sentence.
        asked = swarm.run("status", "status", "--data-dir", saver.data.root)
        assert asked.wait() == 0
        assert "41 is above 30: this node uses neither the device nor the network" in " ".join(
            asked.stdout.split()
        )
        with urllib.request.urlopen(f"{told.node.dashboard}api/status", timeout=30) as answer:
            assert b"41 is above 30" in answer.read()
        # The others go on without waiting for it.
        since = founder.round
        wait_for(lambda: founder.round > since + 3, "rounds without the saver")

        # Between the bounds nothing changes; below them it is back.
        price.write_text("27.0\n")
        wait_for(
            lambda: (
                [hold.text for hold in saver.told().schedule.holds] == ["27 is not yet below 25"]
            ),
            "the next question",
        )
        assert saver.state == "paused"
        price.write_text("\x1b[2Jmuch\n")
        wait_for(
            lambda: "is not a finite number" in saver.program.stderr, "a word on what is no price"
        )
        assert "\x1b" not in saver.program.stderr
        price.write_text("20\n")
        wait_for(lambda: saver.state == "training", "the return")
        since = saver.round
        wait_for(lambda: saver.counted(since), "its first contribution after that")
        check_agreement([founder, saver])
