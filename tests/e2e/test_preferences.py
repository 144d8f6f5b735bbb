"""A swarm that learns from preference pairs: from a file of them to a model that answers better."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from distro_node.protocol.wire.swarm_id import swarm_text
from e2e.program import wait_for
from e2e.support import Swarm
from e2e.test_conversations import CHATML, describe

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LAST = 40


def test_a_swarm_learns_to_prefer(tmp_path: Path) -> None:
    with Swarm(tmp_path, hidden=64, total_rounds=LAST) as swarm:
        describe(tmp_path)
        file = tmp_path / "swarm.toml"
        file.write_text(file.read_text().replace('task = "sft"', 'task = "dpo"'))
        (tmp_path / "texts" / "talks.jsonl").unlink()
        with (tmp_path / "texts" / "pairs.jsonl").open("w") as opened:
            for number in range(300):
                pair = {"chosen": "Gladly.", "rejected": "No, never."}
                opened.write(json.dumps({"prompt": f"Number {number}?", **pair}) + "\n")
        swarm.create()
        manifest = swarm.manifest
        data = manifest.data
        assert (manifest.task, data.marked, data.attention) == ("dpo", True, "sequence")
        assert manifest.task_settings == {"beta": 0.1, "label_smoothing": 0.0}
        assert data.samples + data.samples_in(data.heldout) == 300
        founder = swarm.node("founder")
        founder.start()
        wait_for(lambda: founder.program.code is not None, "the end of the run")
        assert founder.program.code == 0, founder.program.stderr

        losses = {line["round"]: line["heldout"] for line in founder.history() if "heldout" in line}
        # At the start the model is its own reference: this also shows that the margins were stored.
        assert losses[min(losses)] < math.log(2) + 0.01
        assert losses[max(losses)] < 0.5
        measured = [line["scores"] for line in founder.history() if "scores" in line][-1]
        (score,) = measured["tasks"]
        assert (score["task"], score["metric"], measured["round"]) == ("heldout", "acc", LAST)
        assert score["value"] > 0.9

        model = tmp_path / "model"
        home = ("--data-dir", founder.data.root)
        link = swarm_text(manifest.swarm)
        exported = swarm.run("export", "export", link, "--to", model, *home)
        assert exported.wait() == 0, exported.stderr
        assert "| heldout | acc |" in (model / "README.md").read_text()
        again = swarm.run("evaluate", "evaluate", "--tasks", "heldout", "--json", *home)
        assert again.wait() == 0, again.stderr
        assert json.loads(again.stdout)["tasks"][0]["value"] > 0.9
        assert (model / "chat_template.jinja").read_text() == CHATML
