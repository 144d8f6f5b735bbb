"""The task `dpo`: preference tuning (direct preference optimisation).

The loss of a pair is -log sigmoid(beta · (m - r)), where m = log p(chosen) - log p(rejected) is the
model's margin over the assistant's tokens and r that of the initial model (Rafailov et al. 2023, arXiv
2305.18290, equation 7). With label smoothing s it is -(1 - s) · log sigmoid(z) - s · log sigmoid(-z),
z = beta · (m - r), as in `trl` and Mitchell 2023 (conservative DPO).

The initial model is the reference, and its margins are in the samples: `create` computes them once.
The other way is a second, frozen model at every member. That would double the memory for parameters,
make each round about a third slower, and a member that joins late would have to download the initial
parameters besides the newest; what it would save is one pass of the founder over the data. Nothing more
has to be trusted: the founder chooses the pairs and the initial model anyway, and everyone can compute
the margins again from the initial parameters, which the manifest names. All members have the same
reference, bit by bit, and audits work as for other tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel

from ....protocol.wire.manifest import Manifest
from ...training.errors import TrainerFailed
from ...training.task_names import PreferenceSettings
from ..models.cross_entropy import objective_of_losses
from .language_tasks import InstructionTuning
from .stored_pairs import pair_layout, read_pairs
from .task_batches import Batch, Loss, StoredSample


class DirectPreference:
    """Task: prefer the chosen answer of each pair to the rejected one, by more than the initial model
    does."""

    unit = "nats a pair of answers"
    settings: PreferenceSettings

    def __init__(self, manifest: Manifest, config: PretrainedConfig) -> None:
        # It refuses models and data that do not fit, and is the probe's task.
        self._words = InstructionTuning(manifest, config)
        if manifest.data.private is not None:
            raise TrainerFailed(
                "bad_model",
                "the manifest's task cannot be used: nobody has computed margins of private pairs",
            )
        settings = self._words.settings
        assert isinstance(settings, PreferenceSettings)
        self.settings = settings
        self._data = manifest.data
        pair_layout(manifest.data)

    def batch(self, samples: Sequence[StoredSample]) -> Batch:
        """Return `tokens`, int64, and `learned`, bool, both (2 × samples, half), the chosen half of a
        pair before the rejected one, and `reference`, the initial model's margins: float32 (samples,).
        Raises `TrainerFailed` (`bad_data`)."""
        ids, learned, reference = read_pairs(self._data, [sample.data for sample in samples])
        return {
            "tokens": torch.from_numpy(ids),
            "learned": torch.from_numpy(learned),
            "reference": torch.from_numpy(reference),
        }

    def loss(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> Loss:
        """Return the loss summed over pairs. A batch without `reference` is the probe's."""
        if "reference" not in batch:
            return self._words.loss(model, batch)
        beta, smoothing = self.settings.beta, self.settings.label_smoothing

        def of_margins(margins: torch.Tensor) -> torch.Tensor:
            z = beta * (margins - batch["reference"])
            loss = (1 - smoothing) * functional.logsigmoid(z)
            if smoothing:
                loss = loss + smoothing * functional.logsigmoid(-z)
            return -loss.sum()

        learned = batch["learned"][:, 1:]
        total = objective_of_losses(
            model,
            _inputs(batch),
            batch["tokens"][:, 1:][learned],
            learned,
            lambda losses: of_margins(_margins(losses, learned)),
        )
        return Loss(total, len(batch["reference"]))

    def margins(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """See `HasMargins`: float32 (samples,), without a gradient."""
        learned = batch["learned"][:, 1:]
        found: list[torch.Tensor] = []

        def keep(losses: torch.Tensor) -> torch.Tensor:
            found.append(_margins(losses, learned))
            return found[0].sum()

        with torch.no_grad():
            targets = batch["tokens"][:, 1:][learned]
            objective_of_losses(model, _inputs(batch), targets, learned, keep)
        return found[0]

    def correct(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> Loss:
        """See `HasAccuracy`: how many chosen answers the model prefers by more than the initial model
        does, which `trl` calls the accuracy of the rewards."""
        right = self.margins(model, batch) > batch["reference"]
        return Loss(right.sum().float(), len(right))

    def beginning(self, batch: Batch) -> Batch | None:
        """See `HasBeginnings`: both halves up to the place before which half of the pair's targets are.
        The reference stays that of the whole pair: it scales the gradient and does not turn it."""
        places = batch["learned"][:, 1:].nonzero()[:, 1].sort().values + 1
        if len(places) < 2:
            return None
        end = int(places[len(places) // 2 - 1]) + 1
        cut = {name: batch[name][:, :end] for name in ("tokens", "learned")}
        return {**batch, **cut}

    def probe(self, number: int, length: int) -> Batch:
        """See `HasProbe`: a batch of `sft`. The loss of a pair of random texts would be next to 0 or
        nearly linear, and so say little about the model."""
        return self._words.probe(number, length)


def _inputs(batch: Mapping[str, torch.Tensor]) -> dict[str, object]:
    """Return the model's inputs: all tokens of each half but the last. A causal model needs no mask: the
    padding of a half is at its end."""
    return {"input_ids": batch["tokens"][:, :-1], "use_cache": False}


def _margins(losses: torch.Tensor, learned: torch.Tensor) -> torch.Tensor:
    """Return log p(chosen) - log p(rejected) of each pair, (pairs,), from the losses of all learned
    tokens in the order of `learned`, (2 × pairs, length)."""
    table = torch.zeros(learned.shape, dtype=losses.dtype, device=losses.device)
    sums = table.masked_scatter(learned, -losses).sum(1).view(-1, 2)
    return sums[:, 0] - sums[:, 1]
