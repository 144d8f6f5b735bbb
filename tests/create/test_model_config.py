"""Published configurations are accepted unchanged; for unknown ones the message names the nearest
known."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from distro_node.node.create.model_config import complete_model
from distro_node.node.trainer.models.model import model_config, new_model
from distro_node.node.training.architectures import ARCHITECTURES
from distro_node.protocol.wire.structure import StructureError
from trainer.small_models import SMALL_MODELS
from trainer.support import CPU, TINY_LLAMA

PATH = Path(__file__).with_name("data") / "published_configs.json"
PUBLISHED: dict[str, dict[str, Any]] = json.loads(PATH.read_text())["configurations"]
GENERATION = {
    "max_length": 4096,
    "do_sample": True,
    "temperature": 0.6,
    "top_p": 0.9,
    "num_beams": 1,
    "bad_words_ids": None,
    "tie_encoder_decoder": False,
    "pruned_heads": {},
}


def refusal(config: dict[str, Any], *, fresh: bool = False) -> StructureError:
    with pytest.raises(StructureError) as caught:
        complete_model(config, vocabulary=256, sequence_length=32, fresh=fresh)
    return caught.value


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_is_taken(name: str) -> None:
    config = PUBLISHED[name]
    known = complete_model(config, vocabulary=1000, sequence_length=512)
    built = model_config(known)
    assert built.vocab_size == config["vocab_size"]
    theta = config.get("rope_theta")
    if theta is not None and config["model_type"] != "gemma3_text":
        assert built.rope_parameters["rope_theta"] == theta


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_a_new_model_learns_every_token(model_type: str) -> None:
    config = {
        key: value for key, value in SMALL_MODELS[model_type].items() if key != "pad_token_id"
    }
    if model_type == "roberta":
        for padding in ({}, {"pad_token_id": None}, {"pad_token_id": -1}):
            assert "model.pad_token_id: a 'roberta' needs" in str(
                refusal(config | padding, fresh=True)
            )
        known = complete_model(config | {"pad_token_id": 1}, vocabulary=256, sequence_length=32)
        assert known["pad_token_id"] == 1
        return
    for padding in ({}, {"pad_token_id": -1}):
        known = complete_model(config | padding, vocabulary=256, sequence_length=32, fresh=True)
        embeddings = new_model(model_config(known), CPU).get_input_embeddings()
        assert isinstance(embeddings, torch.nn.Embedding)
        assert embeddings.padding_idx is None
        assert (embeddings.weight != 0).any(1).all()
    # A token that the founder names stays, and so does everything of a checkpoint.
    named = config | {"pad_token_id": 3}
    for given, fresh in ((named, True), (named, False), (config, False)):
        known = complete_model(given, vocabulary=256, sequence_length=32, fresh=fresh)
        assert known.get("pad_token_id", "none") == given.get("pad_token_id", "none")


def test_twenty_of_them_are_looked_at() -> None:
    assert len(PUBLISHED) >= 20


@pytest.mark.parametrize(
    "more",
    [
        GENERATION,
        {"unsloth_fixed": True, "unsloth_version": "2025.1"},
        {"quantization_config": None},
        {"use_mrope": False, "rope_interleaved": False},
        {"a_key_of_somebody": None},
        {"auto_map": {"AutoModelForCausalLM": "somebody--modeling.Model"}},
    ],
)
def test_keys_that_mean_nothing_are_left_out(more: dict[str, Any]) -> None:
    plain = complete_model(TINY_LLAMA, vocabulary=256, sequence_length=32)
    assert complete_model(TINY_LLAMA | more, vocabulary=256, sequence_length=32) == plain


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"use_mrope": True}, "use_mrope"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"rope_interleaved": 0}, "rope_interleaved"),
        ({"hiden_size": 32}, "did you mean 'hidden_size'"),
        ({"model_type": "qwen2", "attention_bias": False}, "attention_bias"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised ('fp8').*original weights"),
        ({"quantization_config": {}}, "quantised"),
        ({"hidden_size": None}, "model.hidden_size: expected a whole number, got None"),
        ({"vocab_size": None}, "model.vocab_size: expected a whole number"),
        ({"num_hidden_layers": None}, "model.num_hidden_layers: expected a whole number"),
        ({"model_type": "gemma3"}, "nearest is 'gemma3_text'.*images"),
        ({"model_type": "deepseek_v3"}, "nearest is 'qwen3_moe'.*latent attention"),
        ({"model_type": "qwen4"}, "the nearest is 'qwen[23]'"),
        ({"model_type": "mixtral", "num_local_experts": 2**31 - 1}, "num_local_experts"),
        # The library would use its defaults for both kinds of layers.
        (
            {"model_type": "gemma3_text", "rope_parameters": {"rope_theta": 5000.0}},
            "rope_parameters.*'rope_theta' is not a kind of layer",
        ),
    ],
)
def test_keys_that_mean_something_are_not(more: dict[str, Any], words: str) -> None:
    assert re.search(words.replace("(", r"\(").replace(")", r"\)"), str(refusal(TINY_LLAMA | more)))
