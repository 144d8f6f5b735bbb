"""How much work a GPU would get in a round, and how often it would be waited for.

Operations are counted as torch dispatches them, on the CPU: each is at least one kernel on a GPU,
and each scalar that is read waits for all previous work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.optimizer import blocks
from distro_node.node.trainer.optimizer.exact_step import apply_step
from distro_node.node.trainer.optimizer.fingerprint import fingerprint
from distro_node.node.trainer.optimizer.optimizer import LocalOptimizer
from distro_node.node.trainer.session import TrainingSession
from distro_node.node.trainer.tasks.packing import skip_packing_search
from distro_node.protocol.wire.manifest import OptimizerSpec, Step
from torch.utils._python_dispatch import TorchDispatchMode
from trainer.exactness import layout_of, random_parameters, random_updates
from trainer.support import CPU, make_manifest

_NO_KERNEL = (
    "view",
    "detach",
    "slice",
    "select",
    "expand",
    "t",
    "transpose",
    "permute",
    "alias",
    "empty",
)


class Dispatched(TorchDispatchMode):
    """Counts operations by name while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

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
        """Number of scalars read."""
        return self.count["_local_scalar_dense"] + self.count["is_nonzero"]


def dispatched(compute: Callable[[], object]) -> Dispatched:
    with Dispatched() as found:
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
    small, large = torch.ones(64, 64), torch.ones(1024, 2048)
    assert (
        dispatched(lambda: fingerprint([large])).kernels
        == dispatched(lambda: fingerprint([small])).kernels
    )


def test_no_micro_batch_is_waited_for(tmp_path: Path) -> None:
    skip_packing_search()
    manifest, chunks = make_manifest(tmp_path)
    session = TrainingSession(manifest, BlobStore(tmp_path), CPU, micro_batch=1)
    session.load(chunks)
    session.gradient(1, range(1))
    two, six = (dispatched(lambda n=n: session.gradient(1, range(n))).waits for n in (2, 6))
    assert two == six


def test_accumulating_and_taking_wait_for_nothing(monkeypatch: Any) -> None:
    """Values and positions go to main memory in one copy of each type, after the last tensor."""
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


def test_a_step_waits_at_most_once(monkeypatch: Any) -> None:
    """For the squares of a scaled step, of all tensors together."""
    monkeypatch.setattr(blocks, "CPU_STRIPE", 4096)
    shapes = [(128, 192)] * 4 + [(96,)] * 4
    layout = layout_of(shapes)
    updates = random_updates(layout, 4)
    cases: tuple[tuple[Step, int], ...] = (("sign", 0), ("scaled", 4))
    for step, waits in cases:
        parameters = random_parameters(shapes)
        found = dispatched(
            lambda p=parameters, s=step: apply_step(p, layout, updates, 2.0**-9, 0.1, step=s)
        )
        # On the CPU `tolist` of n numbers counts as n scalars; from a GPU it is one copy.
        assert found.waits <= waits + 4, step
