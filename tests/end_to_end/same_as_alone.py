"""A script whose run comes to what one process does with the batches of all its workers."""

from __future__ import annotations

import torch

SCRIPT = """
import sys, torch, geomx

torch.set_num_threads(1)
run = geomx.join()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(100, 50), torch.nn.Tanh(), torch.nn.Linear(50, 100)).double()
model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
place = run.workers.index(run.name)
for step in range(10):
    generator = torch.Generator().manual_seed(100 * step + place)
    x = torch.randn(4 + place, 100, generator=generator, dtype=torch.float64)
    optimizer.zero_grad()
    run.weight(len(x))
    (model(x) - x.roll(1, 1)).pow(2).mean().backward()
    optimizer.step()
run.save(sys.argv[1])
"""


def alone(workers: int) -> dict[str, torch.Tensor]:
    """What plain PyTorch comes to, with the batches of so many workers."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(100, 50), torch.nn.Tanh(), torch.nn.Linear(50, 100)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(10):
        generators = [torch.Generator().manual_seed(100 * step + place) for place in range(workers)]
        batches = [
            torch.randn(4 + n, 100, generator=g, dtype=torch.float64) for n, g in enumerate(generators)
        ]
        x = torch.cat(batches)
        optimizer.zero_grad()
        (model(x) - x.roll(1, 1)).pow(2).mean().backward()
        optimizer.step()
    return model.state_dict()
