"""What a trainer asks of its loader, of a share: its length, and which batch is the last."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import geomx
from geomx.integrations.passes import Passes


@pytest.mark.parametrize("done", [0, 2, 5])
def test_the_last_batch_is_known_also_of_a_pass_that_is_gone_on_with(done: int) -> None:
    run = geomx.join()
    model = torch.nn.Linear(2, 1)
    run.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    run.skip_to(0, done, done)
    passes = Passes(run.shard(DataLoader(TensorDataset(torch.randn(10, 2)), 2), train=True))
    assert len(passes) == 5
    for left in (5 - done, 5):
        seen: list[Any] = [passes.is_last for _ in passes]
        assert seen == [False] * (left - 1) + [True] * bool(left)
        passes.finish()
    run.close()
