"""The results of the tasks: answers through the chat template, filled gaps, exports that open."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.models.export import export, settings_files
from distro_node.node.trainer.models.swarm_tokenizer import open_tokenizer
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.errors import TrainerFailed
from distro_node.node.training.tokenizer_settings import TokenizerSettings
from tokenizers import AddedToken, Tokenizer
from trainer.support import TINY_LLAMA, make_manifest, opened, write_text
from trainer.test_chat import CHATML
from trainer.test_tasks import TINY_BERT
from transformers import AutoModelForMaskedLM, AutoTokenizer

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "[MASK]"]
_, TURN, END, MASK = range(256, 260)


def made(
    root: Path, config: dict[str, Any], *, rstrip: bool = False, **settings: str
) -> TrainingSession:
    """Return a session with a tokenizer of bytes and special tokens; with `rstrip` these take up white
    space after them."""
    manifest, chunks = make_manifest(root, config | {"vocab_size": 260})
    store = BlobStore(root)
    tokenizer = Tokenizer.from_str((store.get(manifest.data.tokenizer) or b"").decode())
    tokenizer.add_special_tokens([AddedToken(each, rstrip=rstrip) for each in SPECIAL])
    data = replace(
        manifest.data,
        vocabulary=260,
        token_bytes=2,
        tokenizer=store.put(tokenizer.to_str().encode()),
        tokenizer_settings=store.put(TokenizerSettings(**settings).encode()),
    )
    task: dict[str, Any] = {"task": "masked_lm", "task_settings": {"mask_token": MASK}}
    if config is TINY_LLAMA:
        task = {"task": "sft"}
        data = replace(data, marked=True)
    return opened((replace(manifest, data=data, **task), chunks), root)


def talking(root: Path) -> TrainingSession:
    return made(root, TINY_LLAMA, eos_token="<|endoftext|>", chat_template=CHATML)


class Parrot(torch.nn.Module):
    """A model that outputs a given text, and records its inputs."""

    def __init__(self, session: TrainingSession, said: list[int]) -> None:
        super().__init__()
        self.config = session.model.config
        self.said = iter(said)
        self.asked: list[int] = []

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        self.asked += input_ids[0].tolist()
        logits = torch.zeros(1, input_ids.shape[1], 260)
        logits[0, -1, next(self.said)] = 9.0
        return type("Answer", (), {"logits": logits, "past_key_values": ()})()


@pytest.mark.parametrize("end", [TURN, END])
def test_a_question_goes_through_the_template_and_a_turn_ends(tmp_path: Path, end: int) -> None:
    session = talking(tmp_path)
    _, tokenizer, _ = open_tokenizer(session.manifest, BlobStore(tmp_path))
    said = tokenizer.encode("yes").ids
    parrot = Parrot(session, [*said, end, *said])
    session.model = parrot  # type: ignore[assignment]  # all that writing asks of it
    written = write_text(session, BlobStore(tmp_path), "Hm?", 0, 0.0, 20)
    assert "".join(written) == "yes"
    asked = "<|im_start|>user\nHm?<|im_end|>\n<|im_start|>assistant\n"
    assert parrot.asked == [*tokenizer.encode(asked).ids, *said]


def test_an_export_of_answers_has_the_template_and_both_ends(tmp_path: Path) -> None:
    session = talking(tmp_path / "blobs")
    export(session, BlobStore(tmp_path / "blobs"), tmp_path / "out")
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "out")
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hm?"}], tokenize=False, add_generation_prompt=True
    )
    assert asked == "<|im_start|>user\nHm?<|im_end|>\n<|im_start|>assistant\n"
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [END, TURN]


def test_a_token_that_takes_up_white_space_ends_a_turn(tmp_path: Path) -> None:
    template = (
        "{% for message in messages %}{{ '<|im_start|>' }}"
        "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}"
        "{% endfor %}"
    )
    settings = {"eos_token": "<|endoftext|>", "chat_template": template}
    session = made(tmp_path, TINY_LLAMA, rstrip=True, **settings)
    ids = settings_files(session, BlobStore(tmp_path)).ids
    assert ids["eos_token_id"] == [END, TURN]


def test_gaps_are_filled_and_an_export_opens(tmp_path: Path) -> None:
    session, store = made(tmp_path / "blobs", TINY_BERT), BlobStore(tmp_path / "blobs")
    text = "".join(write_text(session, store, "a [MASK] c", 0, 0.0, 20))
    assert text.startswith("a ")
    assert text.endswith(" c")
    assert "[MASK]" not in text
    with pytest.raises(TrainerFailed, match=r"no gap to fill; write a gap as \[MASK\]"):
        "".join(write_text(session, store, "a b c", 0, 0.0, 20))

    export(session, store, tmp_path / "out")
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.mask_token_id == MASK
    ids = torch.tensor([[1, 2, MASK]])
    with torch.no_grad():
        expected = session.model.eval()(input_ids=ids).logits
        torch.testing.assert_close(model.eval()(input_ids=ids).logits, expected)
