"""Models with `longrope`, which rotate long sequences otherwise than short ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.models.model import model_config
from distro_node.node.trainer.models.rotary_switch import rotary_switches, switch_within
from distro_node.node.trainer.tasks.group_rewards import GroupRewards
from distro_node.node.trainer.tasks.packing import check_attention
from distro_node.node.trainer.tasks.text_generation import session_text_model
from trainer.small_models import SMALL_MODELS
from trainer.support import make_manifest, opened, refused, write_text
from trainer.test_group_rewards import reward_manifest

PHI3 = SMALL_MODELS["phi3"]


def test_only_longrope_switches() -> None:
    found = {name: rotary_switches(model_config(each)) for name, each in SMALL_MODELS.items()}
    assert {name: each for name, each in found.items() if each} == {"phi3": {16}}
    config = model_config(PHI3)
    assert [switch_within(config, length) for length in (16, 17, 64)] == [None, 16, 16]
    # A table for each kind of layer.
    config.rope_parameters = {"full_attention": config.rope_parameters, "sliding_attention": {}}
    assert rotary_switches(config) == {16}


@pytest.mark.parametrize("prompt", ["swarm", "momentum momentum"])
def test_a_text_that_passes_the_switch_is_the_one_without_a_cache(
    tmp_path: Path, prompt: str
) -> None:
    session = opened(make_manifest(tmp_path, PHI3), tmp_path)
    # An untrained model hardly attends to earlier tokens: only sharp scores reveal their positions.
    for parameter in session.parameters:
        parameter.data.mul_(8.0)
    store, model = BlobStore(tmp_path), session.model
    source = session_text_model(session, store)
    read = source.tokenizer.encode(prompt).ids
    scores: list[torch.Tensor] = []
    hook = model.register_forward_hook(lambda _, __, output: scores.append(output.logits[0, -1]))
    assert len([*write_text(session, store, prompt, 0, 0.0, 24)]) == 24
    hook.remove()
    assert len(scores) == 24
    for found in scores:
        with torch.no_grad():
            alone = model(input_ids=torch.tensor([read]), use_cache=False).logits[0, -1]
        torch.testing.assert_close(found, alone, atol=1e-2, rtol=1e-3)
        read.append(int(found.argmax()))


def test_sequences_beyond_it_are_refused_where_they_cannot_be_right(tmp_path: Path) -> None:
    config, data = model_config(PHI3), make_manifest(tmp_path)[0].data
    data = replace(data, end_token=7, attention="document")
    with refused("bad_model", "longrope on sequences of 32.*sequence_length of 16 or less"):
        check_attention(data, config)
    check_attention(replace(data, sequence_length=16), config)
    check_attention(replace(data, attention="sequence"), config)
    rewards, _ = reward_manifest(tmp_path)
    assert rewards.data.sequence_length == 16
    GroupRewards(rewards, config)
    longer = replace(rewards, data=replace(rewards.data, sequence_length=17))
    with refused("bad_model", "more than 16 tokens.*sequence_length of 16 or less"):
        GroupRewards(longer, config)
