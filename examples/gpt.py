"""Trains a small GPT on the text of Python's standard library, byte by byte: alone, or as a worker of a run.

    python examples/gpt.py                 # on this machine, alone
    geomx run examples/gpt.toml            # two parties, with little traffic between them

What makes an ordinary PyTorch script one for many data centers are the lines marked with ←.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import geomx

CONTEXT, TOKENS = 64, 256  # bytes that the model sees; how many different ones there are
TRAINED_ON = 0.95  # of the text; the rest is for validation
VALIDATED_ON = 512  # windows
LEAST_LR = 0.1  # of the highest


class Attention(nn.Module):
    """Causal self-attention. Takes and gives [n, CONTEXT, width]."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        by_head = self.queries_keys_values(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*by_head, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(heads, width))
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x)
        return x + self.perceptron(x)


class Gpt(nn.Module):
    """1,288,640 parameters. Takes bytes, [n, CONTEXT] int64; gives logits of the next ones, [n, CONTEXT, TOKENS]."""

    def __init__(self, layers: int = 4, heads: int = 4, width: int = 160) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(heads, width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, TOKENS, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.tokens(text) + self.places(torch.arange(text.shape[1], device=text.device))
        return self.head(self.norm(self.blocks(x)))


class Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """A text, [n] uint8, in pieces of CONTEXT bytes, each with the bytes that follow them."""

    def __init__(self, text: torch.Tensor) -> None:
        self._text = text

    def __len__(self) -> int:
        return (len(self._text) - 1) // CONTEXT

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self._text[index * CONTEXT : (index + 1) * CONTEXT + 1].long()
        return window[:-1], window[1:]


def load_text() -> tuple[Windows, Windows]:
    """The modules of Python's standard library, for training and for validation."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)
    trained_on = round(TRAINED_ON * len(text))
    return Windows(text[:trained_on]), Windows(text[trained_on:])


def build_optimizer(model: nn.Module, lr: float) -> torch.optim.AdamW:
    """AdamW; only matrices decay, and neither biases nor the gains of norms."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


def share_of_lr(step: int, warmup: int, steps: int) -> float:
    """A linear warm-up, then half a cosine."""
    if step < warmup:
        return (step + 1) / warmup
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    return LEAST_LR + (1 - LEAST_LR) * 0.5 * (1 + math.cos(math.pi * done))


def loss_of(model: nn.Module, text: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(text).flatten(0, 1).float(), following.flatten())


def passes(batches: Iterable[list[torch.Tensor]]) -> Iterator[list[torch.Tensor]]:
    """The batches of one pass over the data after the other, without end."""
    while True:
        yield from batches


def train_step(
    run: geomx.LiveRun,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[list[torch.Tensor]],
    accumulate: int,
) -> float:
    """One step on the mean gradient of so many batches; returns their mean loss."""
    total = 0.0
    optimizer.zero_grad()
    for number in range(1, accumulate + 1):
        # Nothing leaves before the last batch's gradient has been added.
        with run.accumulate() if number < accumulate else contextlib.nullcontext():  # ←
            loss = loss_of(model, *next(batches)) / accumulate
            loss.backward()
        total += loss.item()
    optimizer.step()
    return total


@torch.no_grad()
def validate(model: nn.Module, windows: Windows) -> float:
    """The mean loss over VALIDATED_ON windows, which are spread over the text."""
    model.eval()
    chosen = torch.linspace(0, len(windows) - 1, VALIDATED_ON).long().tolist()
    losses = [
        loss_of(model, *(torch.stack(half) for half in zip(*(windows[i] for i in some), strict=True)))
        for some in (chosen[begin : begin + 64] for begin in range(0, VALIDATED_ON, 64))
    ]
    model.train()
    return float(torch.stack(losses).mean())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--steps", type=int, default=240)
    add("--batch", type=int, default=8, help="windows of one worker's batch")
    add("--accumulate", type=int, default=2, help="batches of one step")
    add("--lr", type=float, default=2e-3, help="AdamW's highest learning rate")
    add("--warmup", type=int, default=10, help="steps until it is reached")
    add("--validate-every", type=int, default=60, metavar="STEPS")
    add(
        "--precision",
        choices=("float32", "autocast", "bfloat16"),
        default="float32",
        help="bfloat16: of the weights, too",
    )
    add("--seed", type=int, default=0, help="of the first weights; the order of the text is the run's")
    add(
        "--checkpoint",
        type=Path,
        help="written at each validation; where it exists, training goes on from it",
    )
    return parser.parse_args()


def main() -> None:
    chosen = arguments()
    torch.manual_seed(chosen.seed)
    train_set, validation_set = load_text()

    run = geomx.join()  # ←
    loader = DataLoader(train_set, chosen.batch, shuffle=True, drop_last=True)
    batches = passes(run.shard(loader, over="run"))  # ←

    model = Gpt().to(torch.bfloat16 if chosen.precision == "bfloat16" else torch.float32)
    if chosen.precision == "autocast":
        model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)  # type: ignore[method-assign]
    optimizer = build_optimizer(model, chosen.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: share_of_lr(step, chosen.warmup, chosen.steps)
    )
    model, optimizer = run.attach(model, optimizer, clip_norm=1.0)  # ←
    if chosen.checkpoint is not None and chosen.checkpoint.exists():
        run.load(chosen.checkpoint)
    run.resume(schedule)  # does nothing at a run's beginning

    for step in range(run.step + 1, chosen.steps + 1):
        loss = train_step(run, model, optimizer, batches, chosen.accumulate)
        schedule.step()
        run.log(loss=loss)
        if step % chosen.validate_every and step < chosen.steps:
            continue
        if chosen.checkpoint is not None:
            run.save(chosen.checkpoint)
        if run.is_first:
            validation_loss = validate(model, validation_set)
            run.log(validation_loss=validation_loss)
            print(f"step {step:3d}   loss {loss:.4f}   validation loss {validation_loss:.4f}", flush=True)
    run.close()  # amid a pass over the text


if __name__ == "__main__":
    main()
