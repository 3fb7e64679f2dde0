"""Trains the CNN of cnn.py by hand, as GeoMX's examples do: push gradients, pull weights.

geomx run examples/kvstore.toml
"""

from __future__ import annotations

import functools

import data
import torch
import torch.nn.functional as F
from cnn import build_model, evaluate
from torch.utils.data import DataLoader

from geomx import kvstore

EPOCHS, BATCH = 8, 32


def main() -> None:
    torch.manual_seed(0)
    train_set, test_set = data.load("digits")
    model = build_model()
    values = [parameter.data for parameter in model.parameters()]
    kv = kvstore.create("dist_sync")
    keys = list(range(len(values)))
    kv.init(keys, values)
    kv.set_optimizer(functools.partial(torch.optim.Adam, lr=2e-3))
    kv.set_gradient_compression({"type": "fp16"})
    kv.pull(keys, out=values)
    batches = DataLoader(train_set, BATCH, shuffle=True)

    for epoch in range(1, EPOCHS + 1):
        for images, labels in kv.run.shard(batches, over="run", even=True):
            model.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            gradients = [parameter.grad / kv.num_all_workers for parameter in model.parameters()]
            kv.push(keys, gradients)
            kv.pull(keys, out=values)
        accuracy = evaluate(model, DataLoader(test_set, 500))
        kv.run.log(loss=loss, accuracy=accuracy)
        if kv.is_master_worker:
            print(f"epoch {epoch:2d}   loss {loss:.4f}   test accuracy {accuracy:.2%}", flush=True)


if __name__ == "__main__":
    main()
