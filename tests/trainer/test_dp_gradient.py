"""Gradients of a member with differential privacy, and members that keep no state."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.optimizer import dp_accountant
from distro_node.node.trainer.optimizer.dp_gradient import private_gradient
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.errors import TrainerFailed
from distro_node.node.training.local_policy import Clipping, LocalPolicy
from trainer.support import CPU, example_text, make_manifest, store_shard


def session_of(root: Path, policy: LocalPolicy) -> TrainingSession:
    manifest, chunks = make_manifest(root)
    session = TrainingSession(manifest, BlobStore(root), CPU, policy=policy)
    session.load(chunks)
    return session


def noisy(norm: float = 1.0, noise: float = 1.0, sequences: int = 4) -> LocalPolicy:
    return LocalPolicy(clipping=Clipping(norm=norm, noise=noise, sequences=sequences))


def test_no_sequence_counts_for_more_than_the_bound() -> None:
    """And those whose gradient is no number for nothing."""
    parameter = torch.nn.Parameter(torch.ones(4))
    pulls = [torch.tensor([1000.0, 0, 0, 0]), torch.tensor([0, 0.25, 0, 0]), math.nan, math.inf]
    losses = iter([None, *((parameter * pull).sum() for pull in pulls)])
    private_gradient([parameter], losses, Clipping(norm=0.5, noise=0.0, sequences=4))
    assert parameter.grad is not None
    # The long one is shortened to 0.5, the short one is unchanged; both are divided by the expected
    # number of sequences, and not by the number there is.
    assert parameter.grad.tolist() == pytest.approx([0.125, 0.0625, 0, 0])


def test_the_noise_is_of_the_stated_size_and_never_the_same() -> None:
    parameter = torch.nn.Parameter(torch.zeros(200, 200))
    found = []
    for _ in range(2):
        # Public values, such as torch's own seed, must not determine the noise.
        torch.manual_seed(0)
        private_gradient([parameter], iter([]), Clipping(norm=0.5, noise=3.0, sequences=2))
        assert parameter.grad is not None
        found.append(parameter.grad.clone())
    assert float(found[0].std()) == pytest.approx(0.5 * 3.0 / 2, rel=0.02)
    assert abs(float(found[0].mean())) < 0.02
    assert not torch.equal(found[0], found[1])


def test_neither_loss_nor_count_is_sent(tmp_path: Path) -> None:
    session = session_of(tmp_path, noisy())
    for samples in ([1, 2, 3], []):
        made = session.train(1, samples)
        assert (made.loss, made.tokens) == (0.0, 0)
        # An empty draw looks like any other: the momentum contains noise.
        assert all(bool(table.any()) for table in session.optimizer.momentum)


def test_without_noise_or_a_bound_it_is_the_usual_gradient(tmp_path: Path) -> None:
    usual = session_of(tmp_path / "a", LocalPolicy())
    bound = session_of(tmp_path / "b", noisy(norm=1e6, noise=0.0, sequences=2))
    loud = session_of(tmp_path / "c", noisy(noise=100.0, sequences=2))
    for session in (usual, bound, loud):
        session.computation.gradient(1, [4, 5])
    pairs = list(zip(usual.parameters, bound.parameters, loud.parameters, strict=True))
    for one, same, other in pairs:
        assert one.grad is not None
        assert same.grad is not None
        assert other.grad is not None
        assert torch.allclose(one.grad, same.grad, atol=1e-6)
        assert not torch.allclose(one.grad, other.grad, atol=1e-2)


def test_who_keeps_no_state_restarts_each_round(tmp_path: Path) -> None:
    stateless = session_of(tmp_path, LocalPolicy(stateless=True))
    first = stateless.train(1, [4])
    assert not any(bool(table.any()) for table in stateless.optimizer.momentum)
    assert not any(bool(table.any()) for table in stateless.optimizer.second_moment)
    assert stateless.train(3, [4]).body == first.body
    # Nothing of it is refunded where the update did not count.
    stateless.apply(3, [], 1e-3, own_counted=False)
    assert not any(bool(table.any()) for table in stateless.optimizer.momentum)
    usual = session_of(tmp_path, LocalPolicy())
    assert usual.train(1, [4]).body == first.body
    usual.optimizer.forget(1)
    assert usual.train(3, [4]).body != first.body


def test_a_members_own_data_takes_the_place_of_the_swarms(tmp_path: Path) -> None:
    own = BlobStore(tmp_path / "own")
    shard = store_shard(own, example_text(40_000)[20_000:])
    policy = LocalPolicy(blobs=str(tmp_path / "own"), shards=(shard,))
    session = session_of(tmp_path / "blobs", policy)
    last = session.manifest.data.samples_in(shard) - 1
    made = session.train(1, [0, last])
    assert made.tokens == 2 * session.manifest.data.sequence_length
    with pytest.raises(TrainerFailed, match=f"sample {last + 1} of {last + 1}"):
        session.train(2, [last + 1])
    assert session.computation.evaluate(4) > 0


def test_the_account_adds_up_and_noise_is_found_for_a_limit() -> None:
    one = dp_accountant.epsilon([(0.01, 1.0, 100)], 1e-5)
    more = dp_accountant.epsilon([(0.01, 1.0, 1000)], 1e-5)
    # opacus's result for a thousand rounds (RDP, its own orders): 2.10.
    assert 0 < one < more == pytest.approx(2.10, abs=0.02)
    assert dp_accountant.epsilon([], 1e-5) == 0.0
    split = dp_accountant.epsilon([(0.01, 1.0, 400), (0.01, 1.0, 600)], 1e-5)
    assert split == pytest.approx(more)
    noise = dp_accountant.noise_for([(0.01, 1.0, 100)], 2.0, 1e-5, 0.02, 500)
    spent = dp_accountant.epsilon([(0.01, 1.0, 100), (0.02, noise, 500)], 1e-5)
    assert spent == pytest.approx(2.0, abs=0.01)
    assert spent <= 2.0
    assert dp_accountant.epsilon([(0.01, 1.0, 100), (0.02, noise, 520)], 1e-5) > 2.0
    with pytest.raises(TrainerFailed, match="no noise"):
        dp_accountant.noise_for([(0.5, 0.5, 1000)], 1.0, 1e-5, 0.01, 10)
