"""A swarm that learns from rewards: from prompts with answers to a model that earns more of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e.program import wait_for
from e2e.support import Swarm

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LAST = 60


def describe(root: Path) -> None:
    """Write prompts that all want one letter, and the founder's file for them."""
    (root / "texts" / "corpus.txt").unlink()
    rows = [{"prompt": f"{n}: ", "answer": "[a-p]"} for n in range(400)]
    file = root / "texts" / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    manifest = root / "swarm.toml"
    text = manifest.read_text()
    table = '[task_settings]\nchecker = "regex"\nmax_new_tokens = 1\ngroup = 16'
    settings = f'task = "grpo"\n\n{table}\n\n[model]'
    for old, new in (("[model]", settings), ("sequence_length = 32", "sequence_length = 16")):
        assert old in text
        text = text.replace(old, new)
    manifest.write_text(text)


def test_members_earn_more_rewards(tmp_path: Path) -> None:
    pytest.importorskip("re2")
    with Swarm(tmp_path, hidden=64, total_rounds=LAST) as swarm:
        describe(tmp_path)
        swarm.create()
        assert swarm.manifest.task == "grpo"
        assert swarm.manifest.probe is not None
        founder, second = swarm.start("founder", "second")
        for node in (founder, second):
            wait_for(lambda node=node: node.program.code is not None, "the end of the run")
            assert node.program.code == 0, node.program.stderr
        # One less the mean reward: a random byte is one of the letters in a sixteenth of all cases.
        losses = {line["round"]: line["heldout"] for line in founder.history() if "heldout" in line}
        assert losses[min(losses)] <= 1.0
        assert losses[max(losses)] < 0.6
        # Both members' updates count.
        trained = [line for line in second.history() if line.get("tokens")]
        assert trained
