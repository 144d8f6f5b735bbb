"""How much work a GPU would get in a round, and how often it would be waited for.

Operations are counted as torch dispatches them, on the CPU: each is at least one kernel on a GPU,
and each scalar, list or tensor that is read waits for all previous work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.optimizer import blocks, exact_step
from distro_node.node.trainer.optimizer.exact_step import apply_step
from distro_node.node.trainer.optimizer.fingerprint import fingerprint
from distro_node.node.trainer.optimizer.optimizer import LocalOptimizer
from distro_node.node.trainer.tasks.packing import skip_packing_search
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.protocol.wire.manifest import OptimizerSpec, Step
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from trainer.exactness import layout_of, random_parameters, random_updates
from trainer.support import CPU, make_manifest

_NO_KERNEL = (
    *("view", "detach", "slice", "select", "expand", "t", "transpose", "permute", "alias"),
    *("empty", "unsafe_view", "unsqueeze", "lift_fresh"),
)

STEPPED = [(128, 192)] * 4 + [(96,)] * 4


class Read(TorchFunctionMode):
    """Counts tensors that are read as a whole: on the CPU nothing is dispatched for that."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.count += getattr(func, "__name__", "") in ("tolist", "cpu")
        return func(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):
    """Counts operations by name while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()
        self.read = Read()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.count[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))

    @property
    def kernels(self) -> int:
        """Number of operations that compute or copy something."""
        return sum(count for name, count in self.count.items() if name.strip("_") not in _NO_KERNEL)

    @property
    def waits(self) -> int:
        """Number of scalars, lists and tensors read."""
        return self.count["_local_scalar_dense"] + self.count["is_nonzero"] + self.read.count


def dispatched(compute: Callable[[], object]) -> Dispatched:
    with Dispatched() as found, found.read:
        compute()
    return found


def test_a_fingerprint_takes_few_operations_a_tensor_and_one_wait() -> None:
    few, many = ([torch.ones(64, 64)] * count for count in (10, 110))
    fingerprint(few)
    base, more = dispatched(lambda: fingerprint(few)), dispatched(lambda: fingerprint(many))
    assert base.waits == more.waits == 1
    # A cast, two sums, their accumulation, and the rows' weights, which the CPU computes.
    assert (more.kernels - base.kernels) / 100 <= 8


def test_a_large_tensor_takes_no_more_than_a_small_one(monkeypatch: Any) -> None:
    """A GPU's pieces have 16 million elements: whole layers of models of a billion parameters."""
    monkeypatch.setattr("distro_node.node.trainer.optimizer.fingerprint._CPU_PIECE", 1 << 24)
    sizes = torch.ones(64, 64), torch.ones(1024, 2048)
    assert len({dispatched(lambda t=t: fingerprint([t])).kernels for t in sizes}) == 1


def test_no_micro_batch_is_waited_for(tmp_path: Path) -> None:
    skip_packing_search()
    manifest, chunks = make_manifest(tmp_path)
    session = TrainingSession(manifest, BlobStore(tmp_path), CPU, micro_batch=1)
    session.load(chunks)
    session.computation.gradient(1, range(1))
    two, six = (
        dispatched(lambda n=n: session.computation.gradient(1, range(n))).waits for n in (2, 6)
    )
    assert two == six


def test_accumulating_and_taking_wait_for_nothing(monkeypatch: Any) -> None:
    """Values and positions go to main memory in one copy of each type, after the last tensor;
    the copies are counted on a second device (`test_second_device`)."""
    monkeypatch.setattr(blocks, "CPU_STRIPE", 4096)
    shapes = [(128, 192)] * 8 + [(96,)] * 4
    layout = layout_of(shapes)
    parameters = random_parameters(shapes)
    optimizer = LocalOptimizer(layout, parameters, OptimizerSpec(preconditioner="muon"))
    found = dispatched(lambda: optimizer.accumulate([torch.ones_like(p) for p in parameters]))
    assert found.waits == 0
    # In each of 52 stripes: reading, decay, transform, five iterations of three products, writing.
    assert found.kernels <= 52 * 45
    assert dispatched(lambda: optimizer.take(1)).waits == 0
    # What an update for a committee tells: one copy of all tensors.
    assert dispatched(lambda: optimizer.vote_signs(4, 1)).waits == 1


def step_dispatched(step: Step, monkeypatch: Any, kept: int = 1 << 22) -> Dispatched:
    """Take a step on four matrices of two stripes each, and four vectors."""
    monkeypatch.setattr(blocks, "CPU_STRIPE", 4096)
    monkeypatch.setattr(exact_step, "CPU_KEPT_SUMS", kept)
    layout = layout_of(STEPPED)
    updates, parameters = random_updates(layout, 4), random_parameters(STEPPED)
    return dispatched(lambda: apply_step(parameters, layout, updates, 2.0**-9, 0.1, step=step))


def test_a_step_adds_the_votes_up_once_and_waits_at_most_once(monkeypatch: Any) -> None:
    """For the squares of a scaled step, of all tensors together."""
    matrices, others = 4 * -(-128 * 192 // (64 * 192)), 4
    once = matrices + others

    def found(step: Step, kept: int = 1 << 22) -> tuple[int, int]:
        counted = step_dispatched(step, monkeypatch, kept)
        return counted.count["index_add_"], counted.waits

    assert found("sign") == (once, 0)
    assert found("scaled") == (once, 1)
    # Two matrices fit: two groups, each with a wait of its own.
    assert found("scaled", 2 * 128 * 192) == (once, 2)
    # The twin: without room for sums those of matrices are added up twice.
    assert found("scaled", 0)[0] == once + matrices


@pytest.mark.parametrize(("step", "most"), [("sign", 9.5), ("scaled", 17.5)])
def test_a_stripe_of_a_step_takes_few_operations(step: Step, most: float, monkeypatch: Any) -> None:
    monkeypatch.setattr(blocks, "CPU_STRIPE", 4096)

    def kernels(stripes: int) -> int:
        shapes = [(64 * stripes, 64)]
        layout = layout_of(shapes)
        updates, parameters = random_updates(layout, 4), random_parameters(shapes)
        return dispatched(
            lambda: apply_step(parameters, layout, updates, 2.0**-9, 0.1, step=step)
        ).kernels

    kernels(1)
    assert (kernels(41) - kernels(1)) / 40 <= most


def test_votes_are_copied_from_pinned_memory_to_a_gpu(monkeypatch: Any) -> None:
    """Pageable memory is copied twice, and the GPU is waited for: 227 MB at 1.2B and 32 members."""
    pinned: list[bool] = []
    empty = torch.empty

    def recorded(*shape: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        pinned.append(pin_memory)
        return empty(*shape, **options)

    monkeypatch.setattr(torch, "empty", recorded)
    for asynchronous in (True, False):
        monkeypatch.setattr(exact_step, "copies_while_computing", lambda _, a=asynchronous: a)
        step_dispatched("sign", monkeypatch)
    assert pinned == [True, True, False, False]
