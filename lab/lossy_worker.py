"""The worker of `lab demo`: trains the examples' CNN, and writes down what became of each round.

Started by `geomx worker` as `python -m lab.lossy_worker FILE ROUNDS`, with the folder `examples` on the path. FILE gets
a line of JSON for each round: its number, the seconds that it took, bytes that this site has sent over the WAN so far,
and the accuracy behind it, of which no second counts.
"""

from __future__ import annotations

import importlib
import itertools
import json
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, RandomSampler

import geomx

BATCH, RATE, SEED = 64, 2e-3, 0


def main(file: Path, rounds: int) -> None:
    """Train for so many rounds."""
    cnn, data = importlib.import_module("cnn"), importlib.import_module("data")
    torch.manual_seed(SEED)
    train_set, test_set = data.load("digits")
    model = cnn.build_model()
    run = geomx.join()
    order = RandomSampler(train_set, replacement=True, num_samples=rounds * BATCH * 2)
    batches = run.shard(DataLoader(train_set, BATCH, sampler=order))
    test = DataLoader(test_set, len(test_set))
    model, optimizer = run.attach(model, torch.optim.Adam(model.parameters(), lr=RATE))
    with file.open("w", buffering=1) as record:
        record.write(json.dumps({"round": 0, "sent": sent_bytes()}) + "\n")
        for number, (images, labels) in enumerate(itertools.islice(batches, rounds), 1):
            began_at = time.monotonic()
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            run.loss(loss)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            line = {"round": number, "seconds": time.monotonic() - began_at, "sent": sent_bytes()}
            record.write(json.dumps(line | {"accuracy": cnn.evaluate(model, test)}) + "\n")
    run.close()


def sent_bytes(devices: Path = Path("/proc/self/net/dev")) -> int:
    """Bytes that have left this site, as its kernel counts them."""
    lines = (line.partition(":") for line in devices.read_text().splitlines()[2:])
    return sum(int(counts.split()[8]) for device, _, counts in lines if device.strip() != "lo")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
