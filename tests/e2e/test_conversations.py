"""A swarm that learns from conversations: from a file of them to a model that answers."""

from __future__ import annotations

import json
import random
import re
import string
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from distro_node.node.create.tokens import ByteTokenizer
from distro_node.protocol.wire.swarm_id import swarm_text
from e2e.program import wait_for
from e2e.support import Swarm
from trainer.test_chat import CHATML
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LAST = 120
ANSWER = "I hear you."
# The user's text is drawn letter by letter, so it cannot be learned: log 26 nats each. If it were a
# target, the loss per token of such a conversation would always be well over one nat.
LETTERS = 40
# Of the kind that was trained on, and in none of the conversations.
QUESTION = "xyzzy" * (LETTERS // 5)


def write_conversations(file: Path, count: int) -> None:
    chance = random.Random(1)
    with file.open("w") as opened:
        for _ in range(count):
            asked = "".join(chance.choices(string.ascii_lowercase, k=LETTERS))
            talk = [
                {"role": "user", "content": asked},
                {"role": "assistant", "content": ANSWER},
            ]
            opened.write(json.dumps({"messages": talk}) + "\n")


def describe(root: Path) -> None:
    """Write the founder's file, and the files it names."""
    library = tokenizers.Tokenizer.from_str(ByteTokenizer().definition.decode())
    library.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    library.save(str(root / "tokenizer.json"))
    (root / "template.jinja").write_text(CHATML)
    (root / "texts" / "corpus.txt").unlink()
    write_conversations(root / "texts" / "talks.jsonl", 400)
    file = root / "swarm.toml"
    text = file.read_text()
    for old, new in (
        ("[model]", 'task = "sft"\n\n[model]'),
        ('"bytes"', '"tokenizer.json"\nchat_template = "template.jinja"'),
        ("max_position_embeddings = 32", "max_position_embeddings = 128"),
        ("sequence_length = 32", "sequence_length = 128"),
    ):
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)


def test_a_swarm_learns_to_answer(tmp_path: Path) -> None:
    with Swarm(tmp_path, hidden=64, total_rounds=LAST) as swarm:
        describe(tmp_path)
        swarm.create()
        assert swarm.manifest.data.marked
        founder = swarm.node("founder")
        founder.start()
        wait_for(lambda: founder.program.code is not None, "the end of the run")
        assert founder.program.code == 0, founder.program.stderr

        losses = {line["round"]: line["heldout"] for line in founder.history() if "heldout" in line}
        first, last = losses[min(losses)], losses[max(losses)]
        assert last < first / 4
        assert last < 1.0

        home = ("--data-dir", founder.data.root)
        asked = ("generate", QUESTION, "--temperature", "0", "--max-tokens", "40", *home)
        generated = swarm.run("generate", *asked)
        assert generated.wait() == 0, generated.stderr
        question, answer = generated.stdout.split("\n", 1)
        assert question == QUESTION
        assert answer.strip() == ANSWER

        model = tmp_path / "model"
        link = swarm_text(swarm.manifest.swarm)
        exported = swarm.run("export", "export", link, "--to", model, *home)
        assert exported.wait() == 0, exported.stderr
        assert (model / "chat_template.jinja").read_text() == CHATML
        check_opens(model)


def check_opens(model: Path) -> None:
    """Check that it answers in transformers, too, through its own template and up to the end of the
    message."""
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    opened: Any = AutoModelForCausalLM.from_pretrained(model)
    said = opened.generate(**asked, do_sample=False, max_new_tokens=40)
    answer = tokenizer.decode(said[0, asked["input_ids"].shape[1] :])
    assert re.fullmatch(re.escape(ANSWER) + r"<\|im_end\|>", answer)
