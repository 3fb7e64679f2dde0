"""GeoMX's own demos of Bi-Sparse, FP16 and MPQ, call by call, with tensors of PyTorch.

geomx run examples/kvstore-bisparse.toml    (or kvstore-fp16, kvstore-mpq)
"""

from __future__ import annotations

import sys

import data
import torch
import torch.nn.functional as F
from cnn import build_model, evaluate
from torch.utils.data import DataLoader

from geomx import kvstore

EPOCHS, BATCH, TINY, RATIO = 8, 32, 1000, 0.05


def main(demo: str) -> None:
    torch.manual_seed(0)
    train_set, test_set = data.load("digits")
    net = build_model()
    params = list(net.parameters())
    trainer = torch.optim.Adam(params, lr=2e-3)
    kv = kvstore.create("dist_sync")
    if kv.is_master_worker and demo != "fp16":
        kv.set_gradient_compression({"type": "bsc", "threshold": RATIO})

    def travels(tensor: torch.Tensor) -> torch.Tensor:
        """In 16 bits: with FP16 all, with MPQ what is tiny."""
        is_half = demo == "fp16" or (demo == "mpq" and tensor.numel() <= TINY)
        return tensor.half() if is_half else tensor.clone()

    for idx, param in enumerate(params):
        kv.init(idx, travels(param.data))
    for idx, param in enumerate(params):
        param.data.copy_(kv.pull(idx))

    for epoch in range(1, EPOCHS + 1):
        for images, labels in kv.run.shard(DataLoader(train_set, BATCH, shuffle=True), over="run", even=True):
            net.zero_grad()
            loss = F.cross_entropy(net(images), labels)
            loss.backward()
            for idx, param in enumerate(params):
                kv.push(idx, travels(param.grad), priority=-idx)
            for idx, param in enumerate(params):
                param.grad = kv.pull(idx, priority=-idx).float() / kv.num_all_workers
            trainer.step()
        accuracy = evaluate(net, DataLoader(test_set, 500))
        kv.run.log(loss=loss, accuracy=accuracy)
        if kv.is_master_worker:
            print(f"epoch {epoch:2d}   loss {loss:.4f}   test accuracy {accuracy:.2%}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
