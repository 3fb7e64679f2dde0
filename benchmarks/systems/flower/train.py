"""Flower's server, or one of its clients. A client's fit is a round: it ends when the next fit comes."""

from typing import Any

import flwr
import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.server import ServerConfig
from flwr.server.strategy import FedAvg

from benchmarks import training, workloads

MESSAGE_BYTES = 2**31 - 1


def main(job: training.Job) -> None:
    shared = {"server_address": job.addresses["server"], "grpc_max_message_length": MESSAGE_BYTES}
    if job.name == "server":
        serve(job, **shared)
    else:
        flwr.client.start_client(client=Client(job).to_client(), insecure=True, max_wait_time=60.0, **shared)


def serve(job: training.Job, **shared: Any) -> None:
    """Average what all clients return, round after round."""
    strategy = FedAvg(
        fraction_fit=1.0,
        fraction_evaluate=0.0,
        min_fit_clients=job.everyone,
        min_evaluate_clients=0,
        min_available_clients=job.everyone,
        accept_failures=False,
    )
    # The last fit's average arrives with one more round, which ends no step that is written down.
    config = ServerConfig(num_rounds=job.cell.steps // job.cell.every + 1)
    flwr.server.start_server(config=config, strategy=strategy, **shared)


class Client(NumPyClient):
    """Trains for a few steps on the weights that it gets, and returns its own."""

    def __init__(self, job: training.Job) -> None:
        self._cell, self._watch, self._task = job.cell, training.Watch(job), workloads.task(job)
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
        for step in range(self._cell.every):
            if step:
                self._watch.step()
            self._optimizer.zero_grad()
            self._task.loss(self._task.model).backward()
            self._optimizer.step()
        return self.get_parameters(config), self._cell.batch, {}
