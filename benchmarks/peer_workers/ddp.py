"""A member of PyTorch's DistributedDataParallel over gloo. `--address` is HOST:PORT of member 0."""

from __future__ import annotations

import itertools

import torch.distributed as dist
from common import Worker
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train until the process is killed or another one is gone."""
    worker = Worker(__doc__)
    options = worker.options
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{options.address}",
        rank=options.member,
        world_size=options.members,
    )
    model = DistributedDataParallel(worker.model)
    optimizers = worker.optimizers()
    for step in itertools.count(1):
        loss = worker.add_gradient(step, model)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        worker.report(step, loss)


if __name__ == "__main__":
    main()
