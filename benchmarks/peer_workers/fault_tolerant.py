"""A member of torchft: one allreduce of all gradients a step, with a quorum before it.

`--address` is the URL of the lighthouse.
"""

from __future__ import annotations

import os
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch
from common import Worker
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]


def main() -> None:
    """Train until the process is killed."""
    worker = Worker(__doc__)
    model, (optimizer,) = worker.model, worker.optimizers()
    torchft: Any = import_module("torchft")
    os.environ["TORCHFT_LIGHTHOUSE"] = worker.options.address
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load(found: dict[str, Any]) -> None:
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=10)),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        replica_id=f"member-{worker.options.member}-",
        hostname="127.0.0.1",
        timeout=timedelta(seconds=10),
    )
    parameters = list(model.parameters())
    while True:
        manager.start_quorum()
        step = manager.current_step() + 1
        loss = worker.add_gradient(step)
        flat = torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])
        manager.allreduce(flat).wait()
        offset = 0
        for parameter in parameters:
            parameter.grad = flat[offset : offset + parameter.numel()].view_as(parameter).clone()
            offset += parameter.numel()
        counted = manager.is_participating()
        if manager.should_commit():
            optimizer.step()
            if counted:
                worker.report(step, loss)
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
