"""Flower's server, or one of its clients. A client's fit is a round: it ends when the next fit comes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import flwr
import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.server import ServerConfig
from flwr.server.strategy import FedAvg

from benchmarks import training, workloads

MESSAGE_BYTES = 2**31 - 1


def main() -> None:
    if sys.argv[2] == "server":
        serve(json.loads(Path(sys.argv[1]).read_text()))
        return
    job, watch = training.begin()
    client = Client(job, watch)
    flwr.client.start_client(
        server_address=job.addresses["server"],
        client=client.to_client(),
        grpc_max_message_length=MESSAGE_BYTES,
        insecure=True,
        max_wait_time=60.0,
    )


def serve(job: dict[str, Any]) -> None:
    """Average what all clients return, round after round."""
    everyone = job["parties"] * job["workers"]
    strategy = FedAvg(
        fraction_fit=1.0,
        fraction_evaluate=0.0,
        min_fit_clients=everyone,
        min_evaluate_clients=0,
        min_available_clients=everyone,
        accept_failures=False,
    )
    # The last fit's average arrives with one more round, which ends no step that is written down.
    rounds = job["steps"] // job["options"]["every"] + 1
    flwr.server.start_server(
        server_address=job["addresses"]["server"],
        config=ServerConfig(num_rounds=rounds),
        strategy=strategy,
        grpc_max_message_length=MESSAGE_BYTES,
    )


class Client(NumPyClient):
    """Trains for a few steps on the weights that it gets, and returns its own."""

    def __init__(self, job: training.Job, watch: training.Watch) -> None:
        self._job, self._watch = job, watch
        self._task = workloads.task(job)
        self._optimizer = workloads.optimizer(job, self._task.model)
        self._begun = False

    def get_parameters(self, config: Any) -> list[np.ndarray]:
        return [parameter.detach().numpy() for parameter in self._task.model.parameters()]

    def fit(self, parameters: list[np.ndarray], config: Any) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        with torch.no_grad():
            for mine, given in zip(self._task.model.parameters(), parameters, strict=True):
                mine.copy_(torch.from_numpy(given))
        if self._begun:  # what was trained has been averaged and is back: the round has ended
            self._watch.step(self._task.accuracy)
        else:
            self._watch.start()
            self._begun = True
        for step in range(self._job.options["every"]):
            if step:
                self._watch.step(None)
            self._optimizer.zero_grad()
            self._task.loss(self._task.model).backward()
            self._optimizer.step()
        return self.get_parameters(config), self._job.batch, {}


if __name__ == "__main__":
    main()
