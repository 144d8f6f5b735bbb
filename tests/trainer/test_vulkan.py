"""Another device than the CPU in every run: Vulkan, on Mesa's lavapipe, through the package torchvulkan.

Its kernels are independent of ours (compute shaders, compiled by LLVM), and the swarm promises that
they give the same bits. CI requires it (`.ci/run`); elsewhere these tests are skipped where the
package or a driver is missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer import training_session
from distro_node.node.trainer.device import choose_device
from distro_node.node.trainer.memory import model_shard
from distro_node.node.trainer.optimizer import device_check
from distro_node.node.trainer.optimizer.device_check import check_exactness
from distro_node.node.trainer.optimizer.exact_step import apply_step
from distro_node.node.trainer.optimizer.fingerprint import fingerprint
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.errors import TrainerFailed
from distro_node.protocol.wire.manifest import OptimizerSpec, Step
from trainer.exactness import SHAPES, layout_of, random_parameters, random_updates
from trainer.faulty_trainer import fused, worn
from trainer.support import make_manifest, train_beside_a_cpu


def vulkan_is_here() -> bool:
    try:
        choose_device("vulkan:0")
    except TrainerFailed:
        if os.environ.get("CI") == "true":
            raise
        return False
    return True


pytestmark = [
    pytest.mark.skipif(not vulkan_is_here(), reason="needs torchvulkan and a Vulkan driver"),
    pytest.mark.timeout(300),
]


@pytest.fixture
def vulkan() -> torch.device:
    return choose_device("vulkan:0")


@pytest.mark.slow
def test_it_computes_exactly(vulkan: torch.device) -> None:
    """Also products of a GPU's whole stripe, 16 million elements, as large models have them."""
    check_exactness(vulkan, layout_of([(8192, 8192)]))


def bits_that_differ(left: list[torch.Tensor], right: list[torch.Tensor]) -> int:
    return sum(
        int((a.cpu().view(torch.int32) != b.cpu().view(torch.int32)).sum())
        for a, b in zip(left, right, strict=True)
    )


# The package adds up votes one by one, a third of a millisecond each: many members vote on few blocks.
FEW_SHAPES = [(64, 64), (43, 67), (7,)]


@pytest.mark.parametrize("step", ["sign", "scaled"])
@pytest.mark.parametrize(
    ("members", "decay", "shapes"),
    [
        (1, 0.0, SHAPES),
        (7, 0.0, SHAPES),
        (7, 0.1, SHAPES),
        (130, 0.1, FEW_SHAPES),
        (131, 0.1, FEW_SHAPES),
        (1024, 0.1, [(64, 64)]),
    ],
)
def test_the_step_and_its_fingerprint_are_those_of_a_cpu(
    vulkan: torch.device,
    members: int,
    decay: float,
    shapes: list[tuple[int, ...]],
    step: Step,
) -> None:
    layout = layout_of(shapes)
    few = random_updates(layout, min(members, 3))
    updates = [few[0]] * (members - len(few) + 1) + few[1:]
    here = random_parameters(shapes)
    there = [parameter.to(vulkan) for parameter in here]
    for parameters in (here, there):
        apply_step(parameters, layout, updates, 0.001953125, decay, step=step)
    assert bits_that_differ(here, there) == 0
    assert fingerprint(here) == fingerprint(there)


def test_a_step_that_is_wrong_there_is_found(
    vulkan: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin that must fail: one bit of one element."""

    def wrong(parameters: list[torch.Tensor], *others: Any, **options: Any) -> None:
        apply_step(parameters, *others, **options)
        parameters[0][0, 0] += 2.0**-20

    monkeypatch.setattr(device_check, "apply_step", wrong)
    with pytest.raises(TrainerFailed, match=r"1 of .* parameters"):
        check_exactness(vulkan, layout_of([(64, 64)]))


def test_a_changed_bit_there_changes_the_fingerprint(vulkan: torch.device) -> None:
    here = random_parameters(SHAPES)
    there = [parameter.to(vulkan) for parameter in here]
    there[3][5, 6] += 2.0**-20
    assert fingerprint(there) != fingerprint(here)


@pytest.mark.parametrize(
    "optimizer",
    [
        OptimizerSpec(),
        OptimizerSpec(preconditioner="muon", smoothing=0.7, step="scaled", weight_decay=0.1),
    ],
)
def test_a_member_there_and_one_on_a_cpu_train_together(
    vulkan: torch.device, optimizer: OptimizerSpec, tmp_path: Path
) -> None:
    train_beside_a_cpu(vulkan, tmp_path, rounds=5, optimizer=optimizer)


@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("fault", [worn, fused])
def test_a_session_whose_step_errs_is_distinguished_from_one_on_a_cpu(
    vulkan: torch.device,
    fault: Callable[[Callable[..., None]], Callable[..., None]],
    blind: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The twins: by the fingerprint, and where that sees nothing by the snapshot."""
    faulty = fault(apply_step)

    def there(parameters: list[torch.Tensor], *others: Any, **options: Any) -> None:
        chosen = faulty if parameters[0].device == vulkan else apply_step
        chosen(parameters, *others, **options)

    monkeypatch.setattr(training_session, "apply_step", there)
    if blind:
        monkeypatch.setattr(model_shard, "fingerprint", lambda parameters: 0)
    spec = OptimizerSpec(weight_decay=0.1)
    with pytest.raises(AssertionError, match="other snapshots" if blind else "other fingerprints"):
        train_beside_a_cpu(vulkan, tmp_path, rounds=2, optimizer=spec)


def test_a_session_that_does_not_learn_there_is_reported(
    vulkan: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin of learning: gradients that point uphill."""
    climbs = TrainingSession.gradient

    def uphill(self: TrainingSession, *others: Any, **options: Any) -> Any:
        found = climbs(self, *others, **options)
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.neg_()
        return found

    monkeypatch.setattr(TrainingSession, "gradient", uphill)
    with pytest.raises(AssertionError, match="learns nothing"):
        train_beside_a_cpu(vulkan, tmp_path, rounds=2)


def copies_to_main_memory(compute: Callable[[], object]) -> int:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Copies(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            moved = isinstance(result, torch.Tensor) and result.device.type == "cpu"
            if moved and any(isinstance(a, torch.Tensor) and a.device.type != "cpu" for a in args):
                self.count += 1
            return result

    with Copies() as found:
        compute()
    return found.count


@pytest.mark.parametrize(("step", "copies"), [("sign", 0), ("scaled", 1)])
def test_a_step_is_waited_for_at_most_once(vulkan: torch.device, step: Step, copies: int) -> None:
    shapes = [(64, 128), (96,), (43, 67)]
    layout = layout_of(shapes)
    updates = random_updates(layout, 2)
    there = [parameter.to(vulkan) for parameter in random_parameters(shapes)]
    found = copies_to_main_memory(
        lambda: apply_step(there, layout, updates, 0.001953125, 0.1, step=step)
    )
    assert found == copies


def test_an_update_leaves_the_device_in_one_copy_of_each_kind(
    vulkan: torch.device, tmp_path: Path
) -> None:
    manifest, chunks = make_manifest(tmp_path)
    member = TrainingSession(manifest, BlobStore(tmp_path), vulkan)
    member.load(chunks)
    member.gradient(1, [0])
    member.optimizer.accumulate(member.part.gradients())
    assert copies_to_main_memory(lambda: member.optimizer.take(1)) == 2
