"""The task `grpo` in a trainer: sampling, advantages, gradients, refusals, and that it learns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distro_node.node.create.prompts import PromptTokenizer
from distro_node.node.create.tokens import ByteTokenizer
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.models.probe import make_probe
from distro_node.node.trainer.tasks import group_rewards, group_sampling
from distro_node.node.trainer.tasks.group_rewards import advantages
from distro_node.node.trainer.tasks.group_sampling import Completions, sample_completions
from distro_node.node.trainer.tasks.prompt_samples import read_prompt
from distro_node.node.trainer.tasks.task_batches import StoredSample
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.memory_model import Workload, needs
from distro_node.node.training.memory_options import MemoryOptions
from distro_node.node.training.memory_plan import FreeMemory, choose
from distro_node.protocol.wire.manifest import Manifest
from distro_node.protocol.wire.work_specs import AuditsSpec
from trainer.support import CPU, TINY_LLAMA, make_manifest, opened, refused, store_shard

# Private here: `_rule`, `_invert`: what rewards and draws.
# Private here: `_reward`: the function of the rule in this file.

LENGTH, COMPLETION, GROUP = 16, 4, 4
BEGINS, ANSWERS = 1 << 15, 1 << 14


def rows(count: int, first: int = 0) -> np.ndarray:
    """Return stored samples: prompts of different lengths, with answers."""
    tokenizer = PromptTokenizer(ByteTokenizer(), None, COMPLETION, filler=0, length=LENGTH)
    texts = [f'"{n % 7}"\n{n * 37 % 1000}?'.encode() for n in range(first, first + count)]
    return np.concatenate([*tokenizer.encode(texts), [BEGINS]]).astype("<u2")


def reward_manifest(root: Path, **settings: Any) -> tuple[Manifest, Sequence[Any]]:
    # The loss is that of the policy that sampled, which drops nothing, whatever the model states.
    manifest, chunks = make_manifest(root, TINY_LLAMA | {"attention_dropout": 0.5})
    store = BlobStore(root)
    data = replace(
        manifest.data,
        sequence_length=LENGTH,
        token_bytes=2,
        shards=(store_shard(store, rows(32)),),
        heldout=store_shard(store, rows(8, 32)),
        tokenizer=store.put(ByteTokenizer().definition),
        end_token=ord("\n"),
        marked=True,
    )
    known = {"max_new_tokens": COMPLETION, "group": GROUP} | settings
    return replace(manifest, task="grpo", data=data, task_settings=known), chunks


class Rule:
    """A rule that records what it is asked, and rewards by the characters of a completion."""

    def __init__(self, reward: Callable[[str], float] | None = None) -> None:
        self.asked: list[tuple[str, str, str]] = []
        self._reward = reward or (lambda text: sum(map(ord, text)) % 5 / 4)

    def reward(self, prompt: str, completion: str, answer: str) -> float:
        self.asked.append((prompt, completion, answer))
        return self._reward(completion)


def ruled(
    root: Path, reward: Callable[[str], float] | None = None, **options: Any
) -> tuple[TrainingSession, Rule]:
    """Return a session with a recording rule; `options` are settings of the task or of the session."""
    session_options = {key: options.pop(key) for key in ("micro_batch",) if key in options}
    session = opened(reward_manifest(root, **options), root, **session_options)
    rule = Rule(reward)
    session.task._rule = rule  # type: ignore[attr-defined]
    return session, rule


def test_advantages_by_hand() -> None:
    rewards = np.array([1.0, 0.0, 0.0, 1.0, 0.5])
    np.testing.assert_allclose(advantages(rewards, "mean"), [0.5, -0.5, -0.5, 0.5, 0.0])
    # The standard deviation is the root of (4 × 0.25) / 5.
    divided = np.array([0.5, -0.5, -0.5, 0.5, 0.0]) / (0.2**0.5 + 1e-4)
    np.testing.assert_allclose(advantages(rewards, "std"), divided)
    for rule in ("mean", "std"):
        assert not advantages(np.full(4, 0.3), rule).any()


def test_a_token_is_drawn_where_the_cumulative_sum_passes_the_number() -> None:
    chances = np.repeat([[0.2, 0.3, 0.5]], 6, 0)
    uniform = np.array([0.0, 0.19, 0.21, 0.49, 0.51, 1.0 - 2.0**-32])
    assert group_sampling._invert(chances, uniform).tolist() == [0, 0, 1, 1, 2, 2]
    # A token that cannot come never does, and what is no number is no error.
    assert group_sampling._invert(np.array([[0.0, 1.0, 0.0]]), np.array([0.0])).tolist() == [1]
    assert group_sampling._invert(np.array([[np.nan, 1.0, 0.0]]), np.array([0.5])).tolist() == [0]


def test_sampling_repeats_exactly_and_differs_by_round_sample_and_completion(
    tmp_path: Path,
) -> None:
    session, rule = ruled(tmp_path)
    found = []
    for round_number in (1, 1, 2):
        rule.asked.clear()
        session.computation.gradient(round_number, [0, 1, 2])
        found.append([text for _, text, _ in rule.asked])
    assert found[0] == found[1]
    assert found[0] != found[2]
    assert len(set(found[0])) > GROUP
    assert [asked for asked, _, _ in rule.asked[::GROUP]] == ["0?", "37?", "74?"]
    assert [answer for _, _, answer in rule.asked[::GROUP]] == ["0", "1", "2"]
    # Held-out samples have the same numbers as training samples, and other completions.
    rule.asked.clear()
    session.computation.evaluate(3)
    assert [text for _, text, _ in rule.asked] != found[0]
    # What is sampled does not depend on how many samples are computed at once.
    for micro_batch in (1, 3):
        other, rule = ruled(tmp_path, micro_batch=micro_batch)
        other.computation.gradient(1, [0, 1, 2])
        assert [text for _, text, _ in rule.asked] == found[0]


def test_the_likeliest_tokens_are_those_without_a_cache(tmp_path: Path) -> None:
    session, _ = ruled(tmp_path)
    for parameter in session.parameters:
        parameter.data.mul_(3)
    prompt = [50, 51, 52]
    found = sample_completions(
        session.model,
        prompt,
        np.full((2, 6), 0.5),
        vocabulary=256,
        ends=frozenset(),
        temperature=0.01,
    )
    tokens = torch.tensor([prompt])
    for _ in range(6):
        with torch.no_grad():
            scores = session.model.eval()(input_ids=tokens, use_cache=False).logits[:, -1]
        tokens = torch.cat([tokens, scores.argmax(-1, keepdim=True)], 1)
    assert found.tokens.tolist() == [tokens[0, 3:].tolist()] * 2
    assert found.lengths == (6, 6)
    assert found.ended == (False, False)
    # And with its first token as the end each stops there, and the end is no part of the text.
    first = int(tokens[0, 3])
    ended = sample_completions(
        session.model,
        prompt,
        np.full((2, 6), 0.5),
        vocabulary=256,
        ends=frozenset({first}),
        temperature=0.01,
    )
    assert ended.tokens.tolist() == [[first]] * 2
    assert [*ended.texts()] == [[], []]


@pytest.mark.parametrize("advantage", ["mean", "std"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_gradient_is_that_of_plain_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, advantage: str, temperature: float
) -> None:
    session, rule = ruled(tmp_path, advantage=advantage, temperature=temperature)
    groups: list[tuple[Sequence[int], Completions]] = []

    def sampled(model: Any, prompt: Sequence[int], *rest: Any, **options: Any) -> Completions:
        groups.append((prompt, sample_completions(model, prompt, *rest, **options)))
        return groups[-1][1]

    monkeypatch.setattr(group_rewards, "sample_completions", sampled)
    loss, counted = session.computation.gradient(1, [0, 5, 30])
    ours = [parameter.grad for parameter in session.parameters]
    rewards = [rule._reward(text) for _, text, _ in rule.asked]
    assert len({*rewards}) > 2
    assert counted == 3 * GROUP
    assert loss == pytest.approx(1 - np.mean(rewards), rel=1e-6)

    session.model.zero_grad()
    total = torch.zeros(())
    for number, (prompt, found) in enumerate(groups):
        given = torch.tensor(rewards[number * GROUP : (number + 1) * GROUP])
        differences = given - given.mean()
        if advantage == "std":
            differences = differences / (given.std(correction=0) + 1e-4)
        for row, length, difference in zip(found.tokens, found.lengths, differences, strict=True):
            ids = torch.tensor([[*prompt, *row[:length].tolist()]])
            scores = session.model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
            chances = (scores / temperature).log_softmax(-1)
            likelihood = chances.gather(1, row[:length, None]).sum()
            total = total - difference * likelihood / COMPLETION
    (total / (3 * GROUP)).backward()
    for one, parameter in zip(ours, session.parameters, strict=True):
        assert parameter.grad is not None
        assert one is not None
        torch.testing.assert_close(one, parameter.grad, rtol=1e-4, atol=1e-7)


def test_equal_rewards_teach_nothing_and_the_loss_is_what_is_missed(tmp_path: Path) -> None:
    session, _ = ruled(tmp_path, lambda _: 0.25)
    assert session.computation.gradient(1, [0, 1])[0] == pytest.approx(0.75)
    assert all(p.grad is not None and not p.grad.any() for p in session.parameters)
    assert session.computation.evaluate(8) == pytest.approx(0.75)


def test_the_gradient_survives_sampling_under_autocast(tmp_path: Path) -> None:
    session, _ = ruled(tmp_path)
    stored = StoredSample(rows(1)[: LENGTH + 1].tobytes(), 0, 1)
    batch = session.task.batch([stored])
    session.model.train()
    with torch.autocast("cpu", torch.bfloat16):
        session.task.loss(session.model, batch).total.backward()
    # A weight whose cast was kept from sampling, without a graph, would have no gradient.
    assert all(p.grad is not None and p.grad.any() for p in session.parameters)
    assert session.model.training


def test_it_learns_what_is_rewarded(tmp_path: Path) -> None:
    session, _ = ruled(tmp_path, lambda text: float("!" < text < "@"), group=16, max_new_tokens=1)
    before = session.computation.evaluate(8)
    for round_number in range(1, 41):
        made = session.train(round_number, [(round_number * 8 + n) % 32 for n in range(8)])
        session.apply(round_number, [made.body], 8e-3, True)
    assert session.computation.evaluate(8) < 0.6 * before


def test_zeros_are_computed_and_nobody_is_asked(tmp_path: Path) -> None:
    def refuse(_: str) -> float:
        raise AssertionError("no founder has written this sample")

    session, rule = ruled(tmp_path, refuse)
    session.computation.compute_zeros(2)
    assert rule.asked == []


def test_the_probe_compares_losses_of_fixed_tokens(tmp_path: Path) -> None:
    manifest, chunks = reward_manifest(tmp_path)
    probe = make_probe(manifest, BlobStore(tmp_path))
    assert probe is not None
    session = opened((replace(manifest, probe=probe), chunks), tmp_path)
    session.prove()
    wrong = dataclasses.replace(probe, losses=tuple(loss + 1 for loss in probe.losses))
    session = opened((replace(manifest, probe=wrong), chunks), tmp_path)
    with refused("other_model", "test losses differ"):
        session.prove()


def test_a_stored_sample_is_a_prompt_and_its_answer(tmp_path: Path) -> None:
    data = reward_manifest(tmp_path)[0].data
    stored = rows(3)
    read = read_prompt(data, stored[LENGTH : 2 * LENGTH + 1].tobytes(), COMPLETION)
    assert bytes(read.tokens) == b"37?"
    assert read.answer == b"1"

    def read_numbers(*numbers: int) -> Any:
        filled = [*numbers, *[0] * (LENGTH + 1 - len(numbers))]
        return read_prompt(data, np.array(filled, "<u2").tobytes(), COMPLETION)

    # Longer than the room, without an answer, or without a prompt: what there is counts.
    assert len(read_numbers(BEGINS | 1, *[1] * LENGTH).tokens) == LENGTH - COMPLETION
    assert read_numbers(BEGINS | 1, BEGINS).answer == b""
    assert read_numbers(BEGINS | ANSWERS | 65, BEGINS).tokens == (65,)
    assert read_numbers().answer is None
    with refused("bad_data", "is not UTF-8"):
        read_numbers(BEGINS | 1, ANSWERS | 0xFF, BEGINS)
    with refused("bad_data", "not a byte"):
        read_numbers(BEGINS | 1, ANSWERS | 0x100, BEGINS)
    with refused("bad_data", "outside the vocabulary"):
        read_numbers(BEGINS | 256, ANSWERS | 65, BEGINS)


def test_what_does_not_go_with_it_is_refused(tmp_path: Path) -> None:
    manifest, _ = reward_manifest(tmp_path)
    for changed, kind, words in (
        (replace(manifest, audits=AuditsSpec()), "bad_model", "nor audits"),
        (replace(manifest, data=replace(manifest.data, marked=False)), "bad_model", "marked"),
        (replace(manifest, task_settings={}), "bad_model", "max_new_tokens"),
        (replace(manifest, task_settings={"max_new_tokens": LENGTH}), "bad_model", "no room"),
        (
            replace(manifest, task_settings={"max_new_tokens": 1, "checker": "poetry"}),
            "no_task",
            "'poetry', which is not installed",
        ),
    ):
        with refused(kind, words):
            TrainingSession(changed, BlobStore(tmp_path), CPU)


def test_a_rule_that_fails_is_one_line(tmp_path: Path) -> None:
    session, rule = ruled(tmp_path)

    def fail(*_: str) -> float:
        raise ValueError("the checker 'x' failed: no such thing")

    rule.reward = fail  # type: ignore[method-assign]
    with refused("no_task", "the checker 'x' failed"):
        session.computation.gradient(1, [0])


def test_memory_counts_all_completions(tmp_path: Path) -> None:
    manifest, _ = reward_manifest(tmp_path)
    work = Workload.of(manifest)
    assert work.completions == GROUP
    one = dataclasses.replace(work, completions=0)
    options = MemoryOptions()

    def activations(which: Workload, micro_batch: int, options: MemoryOptions = options) -> int:
        phase = needs(which, "cpu", options, micro_batch).phases[0]
        return next(each.device for each in phase if each.name == "activations")

    assert activations(work, 1) == activations(one, GROUP)
    # Keys and values of many completions outweigh the activations that checkpointing leaves.
    deep = {**work.config, "num_hidden_layers": 32}
    long = dataclasses.replace(work, config=deep, sequence_length=1 << 16, completions=64)
    sparing = MemoryOptions(checkpointing=True)
    assert activations(long, 1, sparing) > activations(
        dataclasses.replace(long, completions=0), 64, sparing
    )
    # A processor computes as many tokens at once as with any other task.
    plenty = FreeMemory(device=1 << 50)
    wide = dataclasses.replace(work, sequence_length=64, completions=8)
    assert choose(wide, "cpu", plenty).micro_batch == 2
