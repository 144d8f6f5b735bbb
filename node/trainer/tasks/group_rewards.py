"""The built-in task `grpo`: a model learns from rewards for what it writes itself.

Policy gradient without a critic (Shao et al., arXiv 2402.03300): for each prompt a group of completions
is sampled, a rule rewards each, and a completion's advantage is its reward less the group's mean. A
group gives one gradient, on the parameters that sampled it, so the ratio of new to old probabilities is
1 and nothing is clipped. There is no KL term, and so no second model. The loss is summed over the tokens
of a completion and divided by `max_new_tokens`, the same for all, so that no length has an advantage of
its own (Liu et al., arXiv 2503.20783).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import PretrainedConfig, PreTrainedModel

from ....protocol.wire.manifest import Manifest
from ...errors import ExitCode, UserError
from ...storage.blob_store import BlobStore
from ...training.errors import TrainerFailed
from ...training.reward_rules import RewardRule
from ...training.task_names import RewardSettings
from ..models.cross_entropy import token_loss
from ..models.rotary_switch import switch_within
from ..models.swarm_tokenizer import open_tokenizer, text_ends
from .group_sampling import Completions, sample_completions
from .language_tasks import CausalLM
from .prompt_samples import StoredPrompt, read_prompt
from .seeded_random import draw_integers
from .task_batches import Batch, Loss, StoredSample

# Added to a standard deviation before a reward is divided by it.
_EPSILON = 1e-4
_DRAW_RANGE = 2.0**32
# Pads answers in a batch: no byte.
_NO_BYTE = -1
# In place of an answer's first byte: the sample has none (`StoredPrompt.answer`).
_NO_ANSWER = -2


def advantages(rewards: np.ndarray, rule: str) -> np.ndarray:
    """Return the advantages of a group's rewards, (completions,) in float64: their distances from the
    mean, with the rule `std` divided by the standard deviation of the group."""
    centred = rewards.astype(np.float64) - rewards.mean()
    return centred / (centred.std() + _EPSILON) if rule == "std" else centred


class GroupRewards(CausalLM):
    """Task: write completions that a rule rewards. The loss is one less the mean reward of all
    completions; its gradient is the policy gradient."""

    unit = "missed reward of a completion"
    settings: RewardSettings

    def __init__(self, manifest: Manifest, config: PretrainedConfig) -> None:
        super().__init__(manifest, config)
        try:
            self._rule = RewardRule(self.settings)
        except UserError as error:
            if error.code == ExitCode.NO_TASK:
                raise TrainerFailed("no_task", error.problem) from None
            raise _bad(error.problem) from None
        self._store: BlobStore | None = None
        self._opened: tuple[Tokenizer, frozenset[int]] | None = None

    def check_data(self) -> None:
        """Check as `CausalLM` does."""
        manifest, data = self.manifest, self.manifest.data
        if not data.marked or data.token_bytes < 2:
            raise _bad("the task 'grpo' needs data whose numbers are marked, of two bytes or more")
        if data.private is not None or manifest.audits is not None:
            raise _bad("the task 'grpo' takes neither private data nor audits")
        if data.sequence_length <= self.settings.max_new_tokens:
            raise _bad("a sequence has no room for a prompt beside max_new_tokens")
        switch = switch_within(self.config, data.sequence_length)
        if switch is not None:
            # The loss of a completion is computed in one pass, the tokens were drawn in many.
            raise _bad(
                f"with longrope the model rotates sequences of more than {switch} tokens otherwise, so "
                "a completion that grows beyond is learned with other probabilities than it was drawn "
                f"with: set a sequence_length of {switch} or less"
            )

    def use_blobs(self, store: BlobStore) -> None:
        """See `NeedsBlobs`: the tokenizer is read when the first completion is."""
        self._store = store

    def batch(self, samples: Sequence[StoredSample]) -> Batch:
        """Return `prompts` (samples, longest) with their `lengths` (samples,); `answers`: the bytes of
        the answers (samples, longest), padded with -1; and `keys`: what the random numbers of each
        sample follow from besides the seed, (samples, 3). All are int64."""
        read = [
            read_prompt(self.manifest.data, each.data, self.settings.max_new_tokens)
            for each in samples
        ]
        prompts = _padded([each.tokens for each in read], 0)
        answers = _padded(
            [(_NO_ANSWER,) if each.answer is None else tuple(each.answer) for each in read],
            _NO_BYTE,
        )
        keys = [(each.round, each.number, int(each.heldout)) for each in samples]
        return {
            "prompts": torch.from_numpy(prompts),
            "lengths": torch.tensor([len(each.tokens) for each in read]),
            "answers": torch.from_numpy(answers),
            "keys": torch.tensor(keys),
        }

    def loss(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> Loss:
        """Return the missed rewards, summed over all completions, with the policy gradient as their
        graph. A batch of the probe has the cross-entropy of its tokens instead."""
        if "tokens" in batch:
            return super().loss(model, batch)
        read, keys = _prompts(batch), batch["keys"].tolist()
        groups = [
            self._sample(model, prompt, tuple(key)) for prompt, key in zip(read, keys, strict=True)
        ]
        rewards = [self._rewards(prompt, found) for prompt, found in zip(read, groups, strict=True)]
        missed = torch.tensor(float(sum((1.0 - each).sum() for each in rewards)))
        total = missed.to(batch["prompts"].device)
        count = len(read) * self.settings.group
        if not torch.is_grad_enabled():
            return Loss(total, count)
        for prompt, found, reward in zip(read, groups, rewards, strict=True):
            policy = self._policy_loss(model, prompt, found, reward)
            # Adds its gradient and no value.
            total = total + (policy - policy.detach())
        return Loss(total, count)

    def beginning(self, batch: Batch) -> Batch | None:
        """Return None: a swarm with this task has no audits."""
        del batch
        return None

    def probe(self, number: int, length: int) -> Batch:
        """See `HasProbe`: random tokens, whose cross-entropy is compared."""
        data = self.manifest.data
        ids = draw_integers("probe tokens 1", (number,), data.sequence_length + 1) % data.vocabulary
        return {"tokens": torch.from_numpy(ids[None, : length + 1])}

    def _sample(
        self, model: PreTrainedModel, prompt: StoredPrompt, key: tuple[int, ...]
    ) -> Completions:
        settings = self.settings
        _, ends = self._tokenizer()
        drawn = [
            draw_integers("grpo 1", (self.manifest.seed, *key, each), settings.max_new_tokens)
            for each in range(settings.group)
        ]
        return sample_completions(
            model,
            prompt.tokens,
            np.stack(drawn) / _DRAW_RANGE,
            vocabulary=self.manifest.data.vocabulary,
            ends=ends,
            temperature=settings.temperature,
        )

    def _rewards(self, prompt: StoredPrompt, found: Completions) -> np.ndarray:
        """Return the rewards of a prompt's completions: float64 (completions,)."""
        if prompt.answer is None:
            return np.zeros(len(found.lengths))
        tokenizer, _ = self._tokenizer()
        asked = tokenizer.decode(list(prompt.tokens), skip_special_tokens=False)
        answer = prompt.answer.decode("utf-8")
        texts = tokenizer.decode_batch(list(found.texts()), skip_special_tokens=True)
        try:
            return np.array([self._rule.reward(asked, text, answer) for text in texts])
        except ValueError as error:
            raise TrainerFailed("no_task", str(error)) from None
        except UserError as error:
            raise TrainerFailed("no_task", error.problem) from None

    def _policy_loss(
        self,
        model: PreTrainedModel,
        prompt: StoredPrompt,
        found: Completions,
        rewards: np.ndarray,
    ) -> torch.Tensor:
        """Return the sum over a group of advantage × cross-entropy of the completion's tokens, divided
        by `max_new_tokens`."""
        tokens, settings = found.tokens, self.settings
        device, longest = tokens.device, tokens.shape[1]
        asked = torch.tensor([prompt.tokens] * len(tokens), device=device)
        inputs = {"input_ids": torch.cat([asked, tokens[:, :-1]], 1), "use_cache": False}
        lengths = torch.tensor(found.lengths, device=device)
        # The last token of the prompt predicts the first of the completion.
        written = torch.arange(longest, device=device) < lengths[:, None]
        chosen = torch.zeros_like(inputs["input_ids"], dtype=torch.bool)
        chosen[:, len(prompt.tokens) - 1 :] = written
        factors = advantages(rewards, settings.advantage) / settings.max_new_tokens
        each = torch.tensor(factors, dtype=torch.float32, device=device)
        weights = each[:, None].expand(-1, longest)[written]
        temperature = settings.temperature
        return token_loss(
            model, inputs, tokens[written], chosen, weights=weights, temperature=temperature
        )

    def _tokenizer(self) -> tuple[Tokenizer, frozenset[int]]:
        """Return the swarm's tokenizer and the tokens that end a completion."""
        if self._opened is None:
            manifest, store = self.manifest, self._store
            if store is None:
                raise TrainerFailed("internal", "the task was given no blobs")
            _, tokenizer, settings = open_tokenizer(manifest, store)
            self._opened = tokenizer, text_ends(manifest, tokenizer, settings)
        return self._opened


def _padded(rows: Sequence[Sequence[int]], filler: int) -> np.ndarray:
    """Return rows of different lengths as one array: int64 (rows, longest)."""
    padded = np.full((len(rows), max(map(len, rows))), filler, np.int64)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = row
    return padded


def _prompts(batch: Mapping[str, torch.Tensor]) -> list[StoredPrompt]:
    """Return a batch's prompts and answers."""
    prompts, answers = batch["prompts"].tolist(), batch["answers"].tolist()
    read = []
    for tokens, length, answer in zip(prompts, batch["lengths"].tolist(), answers, strict=True):
        said = None if answer[:1] == [_NO_ANSWER] else bytes(b for b in answer if b != _NO_BYTE)
        read.append(StoredPrompt(tuple(tokens[:length]), said))
    return read


def _bad(problem: str) -> TrainerFailed:
    return TrainerFailed("bad_model", f"the manifest's task cannot be used: {problem}")
