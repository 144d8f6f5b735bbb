"""A converter has a name for each tensor of an export, by the maps of the package gguf."""

from __future__ import annotations

import os

import pytest
import torch
from distro_node.node.trainer.models.model import model_config, new_model
from trainer.small_models import SMALL_MODELS

# llama.cpp's name of an architecture, where it is not just the capitalised one.
CALLED = {
    "mistral": "LLAMA",
    "gemma3_text": "GEMMA3",
    "phi": "PHI2",
    "gpt_neox": "GPTNEOX",
}
DENSE = sorted(set(SMALL_MODELS) - {"bert", "roberta", "olmo3"})


@pytest.mark.parametrize(
    "name", [each for each in DENSE if "moe" not in each and each != "mixtral"]
)
def test_every_tensor_has_a_name_there(name: str) -> None:
    if os.environ.get("CI") != "true":
        pytest.importorskip("gguf")
    import gguf

    architecture = getattr(gguf.MODEL_ARCH, CALLED.get(name, name.upper()))
    names = gguf.get_tensor_name_map(architecture, 2)
    model = new_model(model_config(SMALL_MODELS[name]), torch.device("meta"))
    for tensor, _ in model.named_parameters():
        assert names.get_name(tensor, try_suffixes=(".weight", ".bias")) is not None, tensor
