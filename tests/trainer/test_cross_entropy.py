"""The loss without logits equals the plain loss, and so do its gradients, for every kind of head."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distro_node.node.trainer.models import cross_entropy
from distro_node.node.trainer.models.cross_entropy import expecting_gradient, token_loss
from distro_node.node.trainer.models.model import model_config, new_model
from distro_node.node.training.architectures import ARCHITECTURES
from torch.nn import functional
from trainer.support import CPU, TINY_LLAMA

TINY = {key: value for key, value in TINY_LLAMA.items() if key != "model_type"} | {
    "num_hidden_layers": 2,
    "pad_token_id": 0,
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 256}
# What a family names differently, or does with its logits.
OWN: dict[str, dict[str, Any]] = {
    "gemma2": {"head_dim": 16, "final_logit_softcapping": 0.5},
    "gemma": {"head_dim": 16},
    "granite": {"logits_scaling": 3.0},
    "gpt_neox": {"tie_word_embeddings": False},
}


def tiny_model(model_type: str, **changes: Any) -> Any:
    """Return a model of this family with larger weights than the initial ones, so that its logits
    differ."""
    known = GPT2 if model_type == "gpt2" else TINY
    settings = {k: v for k, v in known.items() if k in ARCHITECTURES[model_type]}
    torch.manual_seed(0)
    config = {"model_type": model_type, **settings, **OWN.get(model_type, {}), **changes}
    model = new_model(model_config(config), CPU)
    for parameter in model.parameters():
        parameter.data.mul_(3).add_(torch.randn_like(parameter), alpha=0.05)
    return model.eval()


def losses(model: Any, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the plain loss and ours."""
    inputs, targets = {"input_ids": tokens[:, :-1]}, tokens[:, 1:].reshape(-1)
    logits = model(**inputs).logits.float().flatten(0, 1)
    plain = functional.cross_entropy(logits, targets, reduction="sum")
    return plain, token_loss(model, inputs, targets)


def assert_close_gradients(model: Any, plain: torch.Tensor, ours: torch.Tensor, off: float) -> None:
    gradients = []
    for loss in (plain, ours):
        model.zero_grad()
        (loss / 7).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for expected, found in zip(*gradients, strict=True):
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert (found - expected).norm() <= off * expected.norm() + 1e-6


TOKENS = torch.randint(1, 256, (3, 13), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("model_type", sorted(ARCHITECTURES))
def test_is_the_plain_loss(model_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Several pieces, and a shorter last one.
    monkeypatch.setattr(cross_entropy, "logit_rows", lambda *_: 5)
    model = tiny_model(model_type)
    plain, ours = losses(model, TOKENS)
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=0)
    assert_close_gradients(model, plain, ours, 3e-5)
    # And the model is unchanged.
    assert model(input_ids=TOKENS).logits.shape == (3, 13, 256)


def test_what_is_not_chosen_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "logit_rows", lambda *_: 5)
    model = tiny_model("llama")
    inputs, targets = {"input_ids": TOKENS[:, :-1]}, TOKENS[:, 1:]
    chosen = torch.rand(targets.shape) < 0.4
    plain = functional.cross_entropy(
        model(**inputs).logits[chosen], targets[chosen], reduction="sum"
    )
    ours = token_loss(model, inputs, targets[chosen], chosen)
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=0)
    nothing = torch.zeros_like(chosen)
    assert token_loss(model, inputs, targets[nothing], nothing) == 0


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "phi"])
def test_targets_have_weights_and_logits_a_temperature(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_entropy, "logit_rows", lambda *_: 5)
    model = tiny_model(model_type)
    inputs, targets = {"input_ids": TOKENS[:, :-1]}, TOKENS[:, 1:].reshape(-1)
    weights = torch.randn(len(targets), generator=torch.Generator().manual_seed(1))
    logits = model(**inputs).logits.float().flatten(0, 1) / 0.6
    plain = (functional.cross_entropy(logits, targets, reduction="none") * weights).sum()
    ours = token_loss(model, inputs, targets, weights=weights, temperature=0.6)
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)
    assert_close_gradients(model, plain, ours, 3e-5)


def test_frozen_heads_and_measurements_take_no_gradient() -> None:
    model = tiny_model("llama", tie_word_embeddings=False)
    model.lm_head.weight.requires_grad_(False)
    losses(model, TOKENS)[1].backward()
    assert model.lm_head.weight.grad is None
    assert model.model.embed_tokens.weight.grad is not None
    with torch.no_grad():
        assert not losses(model, TOKENS)[1].requires_grad


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "phi"])
def test_the_factor_that_is_expected_changes_nothing_in_float32(model_type: str) -> None:
    """Whether it is the one that comes or not."""
    model = tiny_model(model_type)
    for factor in (1 / 7, 64.0, 0.001):
        with expecting_gradient(factor):
            plain, ours = losses(model, TOKENS)
        assert_close_gradients(model, plain, ours, 3e-5)


def test_a_loss_scale_reaches_the_head() -> None:
    """Its small gradients are not lost in float16, and a smaller scale makes large ones finite."""
    model = tiny_model("llama", tie_word_embeddings=False)
    head = model.lm_head.weight

    def of_head(scale: float, dtype: torch.dtype = torch.float16) -> torch.Tensor:
        model.zero_grad()
        with torch.autocast("cpu", dtype), expecting_gradient(scale):
            ours = losses(model, TOKENS)[1]
        (ours * scale).backward()
        return head.grad / scale

    head.data.mul_(20)
    kept = [int((of_head(scale) != 0).sum()) for scale in (1.0, 2.0**16)]
    assert kept[0] < 0.9 * kept[1]
    # Bfloat16 has no limits here.
    wide = of_head(1.0, torch.bfloat16)
    assert (of_head(2.0**10) - wide).norm() < 0.1 * wide.norm()
    model.model.norm.weight.data.mul_(1e3)
    head.data.mul_(1e-3)
    assert not torch.isfinite(of_head(2.0**10)).all()
    assert torch.isfinite(of_head(2.0**-4)).all()


def test_in_bfloat16_it_is_the_plain_loss_within_its_digits() -> None:
    model = tiny_model("llama")
    with torch.autocast("cpu", torch.bfloat16):
        plain, ours = losses(model, TOKENS)
    torch.testing.assert_close(ours, plain, rtol=1e-3, atol=0)
    assert_close_gradients(model, plain, ours, 0.02)
