"""Another device than the CPU computes the same bits.

In every run this is Vulkan on Mesa's lavapipe, through the package torchvulkan: its kernels are
independent of ours (compute shaders, compiled by LLVM). CI requires it (`.ci/run`); elsewhere tests are
skipped where the package or a driver is missing. With `-m cuda`, on a machine that has one: a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from distro_node.node.settings.components import Compile
from distro_node.node.trainer.device import choose_device
from distro_node.node.trainer.optimizer import blocks
from distro_node.node.trainer.optimizer.device_check import check_exactness
from distro_node.node.trainer.optimizer.exact_step import apply_step
from distro_node.node.trainer.optimizer.fingerprint import fingerprint
from distro_node.node.training.errors import TrainerFailed
from distro_node.protocol.wire.manifest import OptimizerSpec, Step
from torch.utils._python_dispatch import TorchDispatchMode
from trainer.exactness import (
    SHAPES,
    assert_equal_bits,
    bits_of,
    layout_of,
    random_parameters,
    random_updates,
    reference_step,
)
from trainer.support import make_session, train_beside_a_cpu

RATE = 2.0**-9


def vulkan_is_here() -> bool:
    try:
        choose_device("vulkan:0")
    except TrainerFailed:
        if os.environ.get("CI") == "true":
            raise
        return False
    return True


def has_cuda() -> list[pytest.MarkDecorator]:
    missing = not torch.cuda.is_available()
    return [pytest.mark.cuda, pytest.mark.skipif(missing, reason="needs a CUDA device")]


pytestmark = pytest.mark.timeout(300)
_NO_VULKAN = pytest.mark.skipif(
    not vulkan_is_here(), reason="needs torchvulkan and a Vulkan driver"
)


@pytest.fixture(
    params=[
        pytest.param("vulkan:0", marks=_NO_VULKAN),
        pytest.param("cuda", marks=has_cuda()),
    ]
)
def device(request: pytest.FixtureRequest) -> torch.device:
    return choose_device(request.param)


@pytest.fixture(params=[pytest.param("cuda", marks=has_cuda())])
def cuda(request: pytest.FixtureRequest) -> torch.device:
    return choose_device(request.param)


@pytest.mark.parametrize(
    "shape",
    # A product of a GPU's whole stripe, 16 million elements, as large models have them.
    [(512, 1024), pytest.param((8192, 8192), marks=pytest.mark.soak)],
)
def test_it_computes_exactly(device: torch.device, shape: tuple[int, int]) -> None:
    check_exactness(device, layout_of([shape]))


# torchvulkan adds up votes one by one, a third of a millisecond each: many members vote on few blocks.
FEW_SHAPES = [(64, 64), (43, 67), (7,)]


@pytest.mark.parametrize("step", ["sign", "scaled"])
@pytest.mark.parametrize(
    ("members", "decay", "shapes"),
    [(3, 0.1, SHAPES), (130, 0.0, FEW_SHAPES), (1024, 0.1, [(64, 64)])],
)
def test_the_step_and_its_fingerprint_are_those_of_a_cpu(
    device: torch.device, members: int, decay: float, shapes: list[tuple[int, ...]], step: Step
) -> None:
    layout = layout_of(shapes)
    few = random_updates(layout, min(members, 3))
    updates = [few[0]] * (members - len(few) + 1) + few[1:]
    here = random_parameters(shapes)
    there = [parameter.to(device) for parameter in here]
    for parameters in (here, there):
        apply_step(parameters, layout, updates, RATE, decay, step=step)
    assert_equal_bits(bits_of(here), bits_of(there))
    assert fingerprint(here) == fingerprint(there)


@pytest.mark.parametrize("step", ["sign", "scaled"])
@pytest.mark.parametrize("limit", [1, 4096, 1 << 24])
def test_strides_orders_and_pieces_do_not_matter_on_a_gpu(
    cuda: torch.device, limit: int, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = [(64, 128), (43, 67), (30, 100)]
    layout, parameters = layout_of(shapes), random_parameters(shapes)
    updates = random_updates(layout, 8)
    expected = reference_step(parameters, layout, updates, RATE, 0.1, step)
    columns = [p.T.contiguous().to(cuda).T for p in parameters]
    monkeypatch.setattr(blocks, "GPU_STRIPE", limit)
    monkeypatch.setattr("distro_node.node.trainer.optimizer.fingerprint._GPU_PIECE", limit)
    assert fingerprint(columns) == fingerprint(parameters)
    apply_step(columns, layout, updates[::-1], RATE, 0.1, step=step)
    assert not any(p.is_contiguous() for p in columns)
    assert_equal_bits(bits_of([p.contiguous() for p in columns]), expected)


@pytest.mark.parametrize(
    "optimizer",
    [
        OptimizerSpec(),
        OptimizerSpec(preconditioner="muon", smoothing=0.7, step="scaled", weight_decay=0.1),
    ],
)
def test_a_member_there_and_one_on_a_cpu_train_together(
    device: torch.device, optimizer: OptimizerSpec, tmp_path: Path
) -> None:
    train_beside_a_cpu(device, tmp_path, rounds=3, optimizer=optimizer)


class Copies(TorchDispatchMode):
    """Counts copies from another device to main memory while it is entered."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        moved = isinstance(result, torch.Tensor) and result.device.type == "cpu"
        if moved and any(isinstance(a, torch.Tensor) and a.device.type != "cpu" for a in args):
            self.count += 1
        return result


def copies_to_main_memory(compute: Callable[[], object]) -> int:
    with Copies() as found:
        compute()
    return found.count


def test_a_step_is_waited_for_at_most_once_and_an_update_leaves_in_one_copy_of_each_kind(
    device: torch.device, tmp_path: Path
) -> None:
    member = make_session(tmp_path, device=device)
    member.computation.gradient(1, [0])
    member.optimizer.accumulate(member.part.gradients())
    assert copies_to_main_memory(lambda: member.optimizer.take(1)) == 2
    layout, parameters, updates = member.layout, member.parameters, random_updates(member.layout, 2)
    for step, copies in (("sign", 0), ("scaled", 1)):
        found = copies_to_main_memory(
            lambda s=step: apply_step(parameters, layout, updates, RATE, 0.1, step=s)  # type: ignore[misc]
        )
        assert found == copies, step


def test_layers_are_compiled_on_a_gpu_unless_that_is_slower(
    cuda: torch.device, tmp_path: Path
) -> None:
    session = make_session(tmp_path, device=cuda, micro_batch=2)
    words = session.compile_layers(Compile.AUTO)
    assert words is not None
    assert "sequences a second instead of" in words
    # Passes of two and of one.
    assert session.train(1, range(3)).tokens == 3 * session.manifest.data.sequence_length
    torch.compiler.set_stance("default")
