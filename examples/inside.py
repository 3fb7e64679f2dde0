"""Trains the CNN of cnn.py in parties whose workers reduce gradients among themselves: by geomx, by DDP, or by FSDP2.

    geomx run examples/inside.toml                                      # FSDP2 in one party, DDP in the other

In a data center of its own, where the party is a job of torchrun:

    geomx worker examples/inside.toml --party frankfurt -- torchrun --nproc-per-node 2 examples/inside.py --wrap fsdp
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import data
import torch
import torch.distributed as dist
from cnn import build_model, evaluate, train
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import geomx

WRAPS = ("none", "ddp", "fsdp")


def wrap(model: nn.Sequential, how: str) -> nn.Module:
    """`none`: as it is, and geomx reduces. On GPUs the model goes to its own first, and the backend is nccl."""
    if how != "none":
        dist.init_process_group("gloo")
    if how == "ddp":
        return DistributedDataParallel(model)
    if how == "fsdp":
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        return fully_shard(model)
    return model


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", choices=data.NAMES, default="digits")
    add("--data-folder", type=Path, help="where the original files of Fashion-MNIST are")
    add("--wrap", choices=WRAPS, nargs="+", default=["none"], help="one for each party, or one for all")
    add("--epochs", type=int, default=20)
    add("--batch", type=int, default=32, help="samples of one worker's batch")
    add("--lr", type=float, default=2e-3, help="Adam's learning rate")
    return parser.parse_args()


def main() -> None:
    chosen = arguments()
    torch.manual_seed(0)
    try:
        train_set, test_set = data.load(chosen.data, chosen.data_folder)
    except geomx.DataMissing as error:
        sys.exit(f"{chosen.data}: {error}")

    run = geomx.join()
    how = chosen.wrap[run.parties.index(run.party) % len(chosen.wrap)]
    model = wrap(build_model(), how)
    optimizer = torch.optim.Adam(model.parameters(), lr=chosen.lr)
    model, optimizer = run.attach(model, optimizer)
    batches = run.shard(DataLoader(train_set, chosen.batch, shuffle=True), over="run")

    for epoch in range(run.epoch + 1, chosen.epochs + 1):
        loss = train(model, optimizer, batches)
        accuracy = evaluate(
            model, DataLoader(test_set, 500)
        )  # on every worker: with FSDP a forward is collective
        run.log(loss=loss, accuracy=accuracy)
        if run.is_first:
            print(f"epoch {epoch:2d}   loss {loss:.4f}   test accuracy {accuracy:.2%}", flush=True)
    run.close()


if __name__ == "__main__":
    main()
