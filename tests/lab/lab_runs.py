"""Runs of geomx in a lab: the global server stands in site `hub`, each party's nodes in the site of its name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from forks import geomx_command
from real_runs import RealRun

from geomx.observe.records import Record, RecordFiles
from geomx.wire.flow import path
from lab import Lab

# Words: `steps=N`; without it they train until the file `.stop` is there. Nobody is more than one step ahead of
# another, so all see in time after which step the first of them ends.
SCRIPT = """
import pathlib, sys, time, torch, geomx
torch.set_num_threads(1)
words = dict(word.split("=") for word in sys.argv[1:])
place = pathlib.Path(sys.argv[0])
stop, last = place.with_suffix(".stop"), place.with_suffix(".last")
run = geomx.join()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(50, 400), torch.nn.Tanh(), torch.nn.Linear(400, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
model, optimizer = run.attach(model, optimizer)
generator = torch.Generator().manual_seed(run.workers.index(run.name))
step, steps = 0, int(words["steps"])
while step < steps:
    run.weight(8)
    x = torch.randn(8, 50, generator=generator)
    loss = (model(x) - x[:, :3]).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print("step", step, flush=True)
    step += 1
    if run.name == run.workers[0] and stop.exists() and not last.exists():
        part = last.with_suffix(".part")
        part.write_text(str(step + 3))
        part.rename(last)
    if last.exists():
        steps = int(last.read_text())
    time.sleep(0.02)  # how long a step computes
run.wait()
print("weights", sum(p.double().sum().item() for p in model.parameters()).hex())
run.close()
"""
FOR_EVER = 1_000_000
HUB, PARTIES = "hub", ("A", "B")


def eager_command(*arguments: Any) -> None:
    """A node that does not look for 10 s whether datagrams pass again."""
    path.RETRY_S = 1.0
    geomx_command(*arguments)


class LabRun(RealRun):
    """A run of two parties of one worker each, with a ledger and a secret, in the sites `hub`, `A` and `B` of a lab."""

    target = staticmethod(eager_command)

    def __init__(self, lab: Lab, folder: Path, *settings: str, steps: int = FOR_EVER) -> None:
        """`settings`: `key=value` for every node. `steps`: how many the workers take, if they are not told to stop."""
        self._lab = lab
        folder.mkdir()
        super().__init__(folder, steps)
        (folder / "train.py").write_text(SCRIPT)
        secret = folder / "secret"
        secret.write_text("s" * 40)
        secret.chmod(0o600)
        self.settings = (f"run.secret_file={secret}", "run.ledger=true", *settings)

    def begin(self) -> None:
        """Start all nodes."""
        self.start(self.nodes, *self.settings)

    def stop(self) -> None:
        """Let all workers end after the same step."""
        (self.folder / "train.stop").touch()

    def address(self, server: str) -> str:
        host = self._lab.address(HUB) if server in self.shards else "127.0.0.1"
        return f"{host}:{self.ports[server]}"

    def _namespace(self, name: str) -> str:
        return self._lab.namespace(HUB if name in self.shards else name.partition("/")[0])

    def step(self, worker: str = "A/0") -> int:
        """How many steps a worker has taken."""
        return len(re.findall(r"^step ", self.printed(worker), re.MULTILINE))

    def until_further(self, steps: int) -> None:
        """Until both workers have taken so many more steps."""
        for worker in self.workers:
            self.until(worker, f"(?m)^step {self.step(worker) + steps}$")

    def ended(self) -> dict[str, Any]:
        """Wait for the run's end, which must be a good one; returns its report."""
        for node, (status, output) in self.wait(self.nodes).items():
            assert status == 0, f"{node} ended with {status}:\n{output}"
        return self.told(*self.settings)

    def paths(self, party: str) -> list[bool]:
        """What a party's local server has told people of whether datagrams pass, so far."""
        return [
            record.fields["passes"]
            for record in self._records(party)
            if record.name == "datagrams" and record.level != "debug"
        ]

    def connections_lost(self) -> list[str]:
        """Which parties have had to connect again."""
        return [
            party
            for party in PARTIES
            if any(record.name == "away" and record.level == "warning" for record in self._records(party))
        ]

    def _records(self, node: str) -> list[Record]:
        return [record for record in RecordFiles(self.records).new() if record.node == node]


def weights_after(steps: int) -> str:
    """What `SCRIPT` comes to where nothing is lost, by plain PyTorch."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(50, 400), torch.nn.Tanh(), torch.nn.Linear(400, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generators = [torch.Generator().manual_seed(rank) for rank in range(len(PARTIES))]
    for _ in range(steps):
        grads = []
        for generator in generators:
            x = torch.randn(8, 50, generator=generator)
            grads.append(torch.autograd.grad((model(x) - x[:, :3]).square().mean(), [*model.parameters()]))
        for parameter, *each in zip(model.parameters(), *grads, strict=True):
            parameter.grad = sum(8 * grad for grad in each) / (8 * len(each))
        optimizer.step()
    return float(sum(p.double().sum().item() for p in model.parameters())).hex()
