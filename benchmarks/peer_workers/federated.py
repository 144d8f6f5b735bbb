"""A member of Flower: ten local steps a round, averaged by a server (FedAvg).

`--address` is HOST:PORT of the server; with `--member -1` this is the server.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from common import Worker

LOCAL_STEPS = 10


def serve(address: str) -> None:
    """Average until the process is killed."""
    server: Any = import_module("flwr.server")
    strategy: Any = import_module("flwr.server.strategy")
    server.start_server(
        server_address=address,
        config=server.ServerConfig(num_rounds=100_000, round_timeout=60.0),
        strategy=strategy.FedAvg(fraction_evaluate=0.0, min_fit_clients=2, min_available_clients=2),
    )


def train(worker: Worker) -> None:
    """Take part until the process is killed."""
    client_module: Any = import_module("flwr.client")
    app: Any = import_module("flwr.compat.client.app")
    (optimizer,) = worker.optimizers()
    parameters = list(worker.model.parameters())

    class Client(client_module.NumPyClient):
        """The member, as the library calls it."""

        round = 0

        def get_parameters(self, config: Any) -> list[Any]:
            del config
            return [parameter.detach().numpy() for parameter in parameters]

        def fit(self, values: list[Any], config: Any) -> tuple[list[Any], int, dict[str, Any]]:
            del config
            with torch.no_grad():
                for parameter, value in zip(parameters, values, strict=True):
                    parameter.copy_(torch.from_numpy(value))
            loss = 0.0
            for _ in range(LOCAL_STEPS):
                self.round += 1
                loss = worker.add_gradient(self.round)
                optimizer.step()
                optimizer.zero_grad()
            worker.report(self.round, loss, LOCAL_STEPS * worker.batch_tokens)
            return self.get_parameters({}), worker.options.sequences, {}

    app.start_client(
        server_address=worker.options.address, client=Client().to_client(), insecure=True
    )


def main() -> None:
    """Run the server or a member."""
    worker = Worker(__doc__)
    if worker.options.member < 0:
        serve(worker.options.address)
    train(worker)


if __name__ == "__main__":
    main()
