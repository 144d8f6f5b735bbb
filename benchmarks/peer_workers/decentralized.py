"""A member of hivemind: gradients are averaged once all members together have the batch's samples.

`--address` is the multiaddr of the first member, or `first` for itself, which writes `first.txt`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from common import LEARNING_RATE, Worker


def main() -> None:
    """Train until the process is killed."""
    worker = Worker(__doc__)
    options = worker.options
    hivemind: Any = import_module("hivemind")
    first = options.address == "first"
    dht = hivemind.DHT(
        initial_peers=[] if first else [options.address],
        host_maddrs=["/ip4/127.0.0.1/tcp/0"],
        start=True,
        use_ipfs=False,
    )
    if first:
        (options.folder / "first.tmp").write_text(str(dht.get_visible_maddrs()[0]))
        (options.folder / "first.tmp").rename(options.folder / "first.txt")
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="peers",
        target_batch_size=options.sequences * options.members,
        batch_size_per_step=options.sequences,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, LEARNING_RATE),
        params=worker.model.parameters(),
        matchmaking_time=1.5,
        averaging_timeout=15.0,
        use_local_updates=False,
    )
    step = tokens = 0
    while True:
        loss = worker.add_gradient(step)
        tokens += worker.batch_tokens
        epoch = optimizer.local_epoch
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        # A newcomer's jump to the others' epoch counts none of its samples.
        if optimizer.local_epoch == epoch + 1:
            worker.report(optimizer.local_epoch, loss, tokens)
            tokens = 0


if __name__ == "__main__":
    main()
