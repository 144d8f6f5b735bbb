"""A swarm whose model names the language of a text: from a table to an export that names it, too."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from distro_node.protocol.wire.swarm_id import swarm_text
from e2e.program import wait_for
from e2e.support import Swarm
from transformers import AutoModelForSequenceClassification, AutoTokenizer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LAST = 60
SYLLABLES = {"low": ("mo", "nu", "lo", "bu"), "high": ("ti", "ke", "si", "fe")}


def texts(count: int, seed: int) -> list[tuple[str, str]]:
    chance = random.Random(seed)
    found = []
    for number in range(count):
        label = ("low", "high")[number % 2]
        parts = chance.choices(SYLLABLES[label], k=chance.randint(2, 8))
        found.append(("".join(parts), label))
    return found


def describe(root: Path) -> None:
    """Write the founder's file and its table."""
    (root / "texts" / "corpus.txt").unlink()
    with (root / "texts" / "words.csv").open("w", newline="") as opened:
        table = csv.writer(opened)
        table.writerow(["label", "text"])
        table.writerows((label, text) for text, label in texts(600, 1))
    file = root / "swarm.toml"
    text = file.read_text()
    settings = (
        'task = "text_classification"\n\n[task_settings]\nclasses = ["low", "high"]\n\n[model]'
    )
    for old, new in (
        ("[model]", settings),
        ('"llama"', '"bert"'),
        ("tie_word_embeddings = true", "hidden_dropout_prob = 0.0"),
    ):
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)


def test_a_swarm_learns_to_name_classes(tmp_path: Path) -> None:
    with Swarm(tmp_path, total_rounds=LAST, start_members=2, snapshot_interval=20) as swarm:
        describe(tmp_path)
        swarm.create()
        assert swarm.manifest.probe is not None
        founder, other = swarm.node("founder"), swarm.node("other")
        for node in (founder, other):
            node.start("--evaluate-every", "20")
        for node in (founder, other):
            wait_for(lambda node=node: node.program.code is not None, "the end of the run")
            assert node.program.code == 0, node.program.stderr

        measured = [line["scores"] for line in founder.history() if "scores" in line]
        last = measured[-1]
        assert last["round"] == LAST
        (score,) = last["tasks"]
        assert (score["task"], score["metric"]) == ("heldout", "acc")
        assert score["value"] > 0.9
        # Another member measures the same model.
        same = [line["scores"] for line in other.history() if "scores" in line][-1]
        assert (same["fingerprint"], same["tasks"]) == (last["fingerprint"], last["tasks"])

        home = ("--data-dir", founder.data.root)
        link = swarm_text(swarm.manifest.swarm)
        model = tmp_path / "model"
        exported = swarm.run("export", "export", link, "--to", model, *home)
        assert exported.wait() == 0, exported.stderr
        opened: Any = AutoModelForSequenceClassification.from_pretrained(model)
        tokenizer: Any = AutoTokenizer.from_pretrained(model)
        new = texts(40, 2)
        with torch.no_grad():
            inputs = tokenizer([text for text, _ in new], padding=True, return_tensors="pt")
            logits = opened(
                input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]
            ).logits
        names = [opened.config.id2label[int(row.argmax())] for row in logits]
        assert sum(a == b for a, (_, b) in zip(names, new, strict=True)) >= 36
        card = (model / "README.md").read_text()
        assert "pipeline_tag: text-classification" in card
        assert "| heldout | acc |" in card
        verified = swarm.run("verify", "verify", model, link, *home)
        assert verified.wait() == 0, verified.stdout + verified.stderr

        again = swarm.run("evaluate", "evaluate", "--tasks", "heldout", "--json", *home)
        assert again.wait() == 0, again.stderr
        found = json.loads(again.stdout)
        assert found["fingerprint"] == last["fingerprint"]
        assert found["tasks"][0]["value"] == pytest.approx(score["value"], abs=0.05)
        for command, words in (
            (("evaluate", "--tasks", "gpt4all"), "this swarm's model names classes"),
            (("generate", "momo"), "names the class of a sample, and generates nothing"),
            (("generate", "--grid", str(tmp_path / "x.png")), "there are no images to draw"),
            (("serve", "--address", "127.0.0.1:0"), "names classes and continues no text"),
        ):
            refused = swarm.run(command[0], *command, *home)
            assert refused.wait() != 0
            assert words in refused.stderr, refused.stderr
            assert "Traceback" not in refused.stderr
