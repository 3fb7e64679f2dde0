"""`python train.py`: the same script, alone, ends with the bits of plain PyTorch."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from forks import printed

SCRIPT = """
    import hashlib
    import sys
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(50, 1, 8, 8), torch.randint(0, 3, (50,)))
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, 3)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = torch.utils.data.DataLoader(data, 8)
    if "geomx" in sys.argv:
        import geomx

        run = geomx.join()
        model, optimizer = run.attach(model, optimizer)
        batches = run.shard(batches)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    for epoch in range(3):
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        schedule.step()
    print(hashlib.sha256(b"".join(t.numpy().tobytes() for t in model.state_dict().values())).hexdigest())
"""


@pytest.mark.processes
def test_alone_is_plain_pytorch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    plain, alone = (printed(["train.py", *words], tmp_path) for words in ([], ["geomx"]))
    assert re.fullmatch(r"[0-9a-f]{64}\n", plain)
    assert alone == plain
