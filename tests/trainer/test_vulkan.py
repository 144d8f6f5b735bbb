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
from distro_node.node.trainer.device import choose_device
from distro_node.node.trainer.optimizer import exactness
from distro_node.node.trainer.optimizer.exact_step import apply_step
from distro_node.node.trainer.optimizer.exactness import check_exactness
from distro_node.node.trainer.optimizer.fingerprint import fingerprint
from distro_node.node.trainer.session import TrainingSession
from distro_node.node.training.errors import TrainerFailed
from distro_node.protocol.wire.manifest import OptimizerSpec, Step
from trainer.exactness import SHAPES, layout_of, random_parameters, random_updates
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

    monkeypatch.setattr(exactness, "apply_step", wrong)
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


def test_an_update_leaves_the_device_in_one_copy_of_each_kind(
    vulkan: torch.device, tmp_path: Path
) -> None:
    manifest, chunks = make_manifest(tmp_path)
    session = TrainingSession(manifest, BlobStore(tmp_path), vulkan)
    session.load(chunks)
    session.gradient(1, [0])
    session.optimizer.accumulate(session.part.gradients())
    assert copies_to_main_memory(lambda: session.optimizer.take(1)) == 2
