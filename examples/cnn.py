"""Trains GeoMX's CNN on small grey images: alone, or as a worker of a run.

    python examples/cnn.py                 # on this machine, alone
    geomx run examples/demo.toml           # two parties of two workers each

What makes an ordinary PyTorch script one for many data centers are the lines marked with ←.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import data
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

import geomx

ENDLESS = 1 << 40  # samples


def build_model() -> nn.Sequential:
    """178,762 parameters; images are [n, 1, 28, 28], the answer is [n, 10]."""
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 256),
        nn.ReLU(),
        nn.Linear(256, 128),
        nn.ReLU(),
        nn.Linear(128, data.CLASSES),
    )


def build_optimizer(model: nn.Module, chosen: argparse.Namespace) -> torch.optim.Optimizer:
    if chosen.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=chosen.lr, momentum=chosen.momentum)
    kind = torch.optim.Adam if chosen.optimizer == "adam" else torch.optim.Adagrad
    return kind(model.parameters(), lr=chosen.lr)


def next_rounds(
    run: geomx.LiveRun, batches: Iterator[list[torch.Tensor]], rounds: int
) -> Iterator[list[torch.Tensor]]:
    """This worker's batches until the run has made so many more rounds: fast workers may use several in each."""
    end = run.turn + rounds
    for batch in batches:
        yield batch
        if run.turn >= end:
            return


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[list[torch.Tensor]],
    tell_loss: Callable[[torch.Tensor], None] = lambda loss: None,
) -> float:
    """Trains on the batches of one epoch; returns the mean loss over its samples."""
    model.train()
    total, samples = 0.0, 0
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        tell_loss(loss)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
        samples += len(labels)
    return total / max(samples, 1)


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[list[torch.Tensor]]) -> float:
    """The share of samples that the model gets right."""
    model.eval()
    right, samples = 0, 0
    for images, labels in batches:
        right += int((model(images).argmax(1) == labels).sum())
        samples += len(labels)
    return right / samples


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", choices=data.NAMES, default="digits")
    add("--data-folder", type=Path, help="where the original files of Fashion-MNIST are")
    add("--split", choices=("iid", "class"), default="iid", help="class: each party has classes of its own")
    add("--epochs", type=int, default=20)
    add("--rounds", type=int, help="an epoch is so many rounds of the run, and not one pass over the data")
    add("--batch", type=int, default=32, help="samples of one worker's batch")
    add("--optimizer", choices=("adam", "sgd", "adagrad"), default="adam")
    add("--momentum", type=float, default=0.0, help="of SGD")
    add("--lr", type=float, default=1e-3, help="the learning rate at first; it falls to 0")
    add("--seed", type=int, default=0, help="of the first weights; the order of samples is the run's")
    add(
        "--checkpoint", type=Path, help="written after every epoch; where it exists, training goes on from it"
    )
    chosen = parser.parse_args()
    if chosen.momentum and chosen.optimizer != "sgd":
        parser.error("--momentum goes with --optimizer sgd")
    if chosen.rounds and chosen.checkpoint:
        parser.error("--checkpoint counts passes over the data: leave out --rounds")
    return chosen


def main() -> None:
    chosen = arguments()
    torch.manual_seed(chosen.seed)
    try:
        train_set, test_set = data.load(chosen.data, chosen.data_folder)
    except geomx.DataMissing as error:
        sys.exit(f"{chosen.data}: {error}")

    run = geomx.join()  # ←
    share: Dataset = train_set
    if chosen.split == "class":
        share = data.by_class(train_set, run.parties.index(run.party), len(run.parties))
    order = (
        RandomSampler(share, replacement=True, num_samples=ENDLESS) if chosen.rounds else RandomSampler(share)
    )
    loader = DataLoader(share, chosen.batch, sampler=order)
    batches = run.shard(loader, over="run" if chosen.split == "iid" else "party")  # ←
    endless = iter(batches)  # with --rounds
    test = DataLoader(test_set, 500)

    model = build_model()
    optimizer = build_optimizer(model, chosen)
    model, optimizer = run.attach(model, optimizer)  # ←
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, chosen.epochs)
    if chosen.checkpoint is not None and chosen.checkpoint.exists():
        run.load(chosen.checkpoint)
    run.resume(schedule, every="epoch")  # does nothing at a run's beginning

    for epoch in range(run.epoch + 1, chosen.epochs + 1):
        samples = next_rounds(run, endless, chosen.rounds) if chosen.rounds else batches
        loss = train(model, optimizer, samples, run.loss)  # for channels that adapt to it, such as `dgt`
        schedule.step()
        if chosen.checkpoint is not None:
            run.save(chosen.checkpoint)
        if run.is_first:
            accuracy = evaluate(model, test)
            run.log(loss=loss, accuracy=accuracy)
            print(f"epoch {epoch:2d}   loss {loss:.4f}   test accuracy {accuracy:.2%}", flush=True)
        else:
            run.log(loss=loss)
    run.close()


if __name__ == "__main__":
    main()
