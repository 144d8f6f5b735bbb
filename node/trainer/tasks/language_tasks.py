"""The built-in tasks on tokens: causal language modelling, instruction tuning and masked language
modelling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PretrainedConfig, PreTrainedModel

from ....protocol.wire.manifest import Manifest
from ....protocol.wire.structure import StructureError
from ...training.architectures import is_bidirectional, makes_images
from ...training.errors import TrainerFailed
from ...training.task_names import MaskedSettings, built_in_settings
from ..models.classifiers import is_classifier
from ..models.cross_entropy import token_loss
from .data import Tokens, read_tokens
from .packing import check_attention, document_inputs, document_starts
from .seeded_random import draw_integers
from .task_batches import Batch, Loss, StoredSample

# The target of a position without a loss.
_IGNORED_TARGET = -100
# A token to be predicted is masked with probability 0.8, replaced by a random token with 0.1, and kept
# with 0.1, so that the model learns something at unmasked places, too (Devlin et al., arXiv 1810.04805).
_MASKED_BELOW, _REPLACED_BELOW = 0.8, 0.9
_DRAW_RANGE = 1 << 32


class CausalLM:
    """Task: predict each token from those before it."""

    unit = "nats a token"
    bidirectional = False

    def __init__(self, manifest: Manifest, config: PretrainedConfig) -> None:
        self.manifest = manifest
        self.config = config
        try:
            self.settings = built_in_settings(manifest.task, manifest.task_settings)
        except StructureError as error:
            raise _bad(str(error)) from None
        if is_classifier(config):
            raise _bad(f"{manifest.task!r} cannot train a model with num_labels, a classifier")
        if makes_images(config.model_type):
            raise _bad(
                f"{manifest.task!r} cannot train a {config.model_type!r}, which is an image model"
            )
        if is_bidirectional(config.model_type) != self.bidirectional:
            what = "sees only" if self.bidirectional else "does not only see"
            raise _bad(
                f"the task {manifest.task!r} cannot train a {config.model_type!r}, which {what} "
                "the tokens before each token"
            )
        check_attention(manifest.data, config)
        self.check_data()

    def check_data(self) -> None:
        """Raise `TrainerFailed` (`bad_model`) for data of another task's kind."""
        if self.manifest.data.marked:
            raise _bad(f"the task {self.manifest.task!r} takes no marked data")

    def batch(self, samples: Sequence[StoredSample]) -> Batch:
        """Return `tokens`, and `begins` if attention stays within documents: (samples, length + 1)."""
        tokens = self.read(samples)
        return {"tokens": torch.from_numpy(tokens.ids), **self.borders(tokens)}

    def loss(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> Loss:
        """Return the loss summed over all tokens but the first of each sample."""
        targets = batch["tokens"][:, 1:].reshape(-1)
        return Loss(token_loss(model, self.inputs(batch), targets), targets.numel())

    def beginning(self, batch: Batch) -> Batch | None:
        """See `HasBeginnings`: the tokens up to the middle one of the predicted tokens."""
        places = self.learned(batch).reshape(-1).nonzero().reshape(-1)
        if len(places) < 2:
            return None
        end = int(places[len(places) // 2 - 1]) + 1
        return {name: tensor[:, :end] for name, tensor in batch.items()}

    def probe(self, number: int, length: int) -> Batch:
        """See `HasProbe`: random tokens, with the end of a document in the middle."""
        data = self.manifest.data
        ids = draw_integers("probe tokens 1", (number,), data.sequence_length + 1) % data.vocabulary
        middle = length // 2
        if data.end_token is not None:
            ids[middle - 1] = data.end_token
        if data.marked:
            top = 8 * data.token_bytes
            ids |= 1 << top - 2
            ids[[0, middle]] |= 1 << top - 1
        stored = ids.astype(f"<u{data.token_bytes}").tobytes()
        batch = self.batch([StoredSample(stored, number, 0, heldout=True)])
        return {name: tensor[:, : length + 1] for name, tensor in batch.items()}

    def learned(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return which tokens are predicted: bool, (samples, tokens of a sample)."""
        learned = torch.ones_like(batch["tokens"], dtype=torch.bool)
        # The first token has no predecessor from which to predict it.
        learned[:, 0] = False
        return learned

    def read(self, samples: Sequence[StoredSample]) -> Tokens:
        """Return tokens and marks. Raises `TrainerFailed` (`bad_data`)."""
        return read_tokens(self.manifest.data, [sample.data for sample in samples])

    def borders(self, tokens: Tokens) -> Batch:
        """Return where documents begin, as `begins`, if attention stays within documents."""
        data = self.manifest.data
        if data.attention == "sequence":
            return {}
        if tokens.begins is not None:
            return {"begins": torch.from_numpy(tokens.begins)}
        return {"begins": document_starts(data, torch.from_numpy(tokens.ids))}

    def document_inputs(self, batch: Mapping[str, torch.Tensor], length: int) -> Batch:
        """Return the inputs that keep attention within documents, for the first `length` tokens."""
        if "begins" not in batch:
            return {}
        begins = batch["begins"][:, :length]
        return document_inputs(begins, self.config, bidirectional=self.bidirectional)

    def inputs(self, batch: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """Return the model's inputs: all tokens but the last of each sample."""
        tokens = batch["tokens"][:, :-1]
        return {
            "input_ids": tokens,
            "use_cache": False,
            **self.document_inputs(batch, tokens.shape[1]),
        }


class InstructionTuning(CausalLM):
    """Task: predict each marked token, which is the assistant's, from those before it."""

    unit = "nats a token of the assistant's"

    def check_data(self) -> None:
        """Check as `CausalLM` does."""
        if not self.manifest.data.marked:
            raise _bad("the task 'sft' needs data whose tokens are marked")

    def batch(self, samples: Sequence[StoredSample]) -> Batch:
        """Return `CausalLM`'s batch with `learned`: bool, of the same shape."""
        tokens = self.read(samples)
        assert tokens.learned is not None
        learned = {"learned": torch.from_numpy(tokens.learned)}
        return {"tokens": torch.from_numpy(tokens.ids), **learned, **self.borders(tokens)}

    def loss(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> Loss:
        """Return the loss summed over the marked tokens."""
        learned = batch["learned"][:, 1:]
        targets = batch["tokens"][:, 1:][learned]
        return Loss(token_loss(model, self.inputs(batch), targets, learned), len(targets))

    def learned(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return which tokens are predicted: the marked ones among `CausalLM`'s."""
        return super().learned(batch) & batch["learned"]


class MaskedLM(CausalLM):
    """Task: predict masked tokens from all tokens around them.

    The masked positions follow from the manifest's seed, the round and the sample's number, so that
    a sample is the same for every member that computes it; held-out samples have the same masks in
    every round.
    """

    unit = "nats a hidden token"
    bidirectional = True
    settings: MaskedSettings

    def check_data(self) -> None:
        """Check as `CausalLM` does."""
        super().check_data()
        data = self.manifest.data
        if self.settings.mask_token >= data.vocabulary:
            raise _bad(f"the mask_token ({self.settings.mask_token}) is not in the vocabulary")
        if data.end_token == self.settings.mask_token:
            raise _bad("the mask_token is also the end_token")

    def batch(self, samples: Sequence[StoredSample]) -> Batch:
        """Return `tokens` with masks, and `targets` (-100 where there is no loss): (samples, length)."""
        tokens = self.read(samples)
        ids = tokens.ids[:, :-1]
        masked, targets = np.array(ids), np.full_like(ids, _IGNORED_TARGET)
        for row, sample in enumerate(samples):
            self._mask(masked[row], targets[row], sample)
        borders = self.borders(tokens)
        return {"tokens": torch.from_numpy(masked), "targets": torch.from_numpy(targets), **borders}

    def loss(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> Loss:
        """Return the loss summed over the masked tokens."""
        tokens, targets = batch["tokens"], batch["targets"]
        inputs = {"input_ids": tokens, **self.document_inputs(batch, tokens.shape[1])}
        found = self.learned(batch)
        targets = targets[found]
        return Loss(token_loss(model, inputs, targets, found), len(targets))

    def learned(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return which tokens are predicted: the masked ones."""
        return batch["targets"] != _IGNORED_TARGET

    def _mask(self, ids: np.ndarray, targets: np.ndarray, sample: StoredSample) -> None:
        """Mask tokens of a sample's ids in place, and record the originals in `targets`."""
        data, settings = self.manifest.data, self.settings
        numbers = _draw(self.manifest.seed, sample, len(ids))
        predicted = numbers[0] < int(settings.share * _DRAW_RANGE)
        for border in (data.start_token, data.end_token):
            if border is not None:
                predicted &= ids != border
        targets[predicted] = ids[predicted]
        ids[predicted & (numbers[1] < int(_MASKED_BELOW * _DRAW_RANGE))] = settings.mask_token
        unmasked = numbers[1] >= int(_MASKED_BELOW * _DRAW_RANGE)
        others = predicted & unmasked & (numbers[1] < int(_REPLACED_BELOW * _DRAW_RANGE))
        ids[others] = numbers[2][others] % data.vocabulary


def _draw(seed: int, sample: StoredSample, length: int) -> np.ndarray:
    """Return three random numbers of 32 bits for each token: int64 (3, length)."""
    key = (seed, sample.round, sample.number, int(sample.heldout))
    return draw_integers("masked_lm 1", key, 3 * length).reshape(3, length)


def _bad(problem: str) -> TrainerFailed:
    return TrainerFailed("bad_model", f"the manifest's task cannot be used: {problem}")
