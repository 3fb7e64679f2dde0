"""The workloads in PyTorch: models, data, and gradients without a model. Needs torch and numpy alone."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import data
from benchmarks.training import RATE, SGD_RATE, Job, Watch, synthetic_sizes

torch.set_num_threads(1)

CONTEXT, TRAINED_ON, JUDGED_ON = (
    64,
    0.95,
    512,
)  # bytes; the share of the text that trains; windows of the rest
GPTS = {"gpt-1m": (4, 4, 160), "gpt-10m": (6, 6, 384)}  # layers, heads, width


@dataclass(frozen=True, slots=True)
class Task:
    """One worker's share of a workload: a model, whose loss on the next batch can be asked for.

    `accuracy`, `validation_loss`: of the model as it is by then; None where there is nothing to be right about.
    """

    model: nn.Module
    loss: Callable[[nn.Module], torch.Tensor]
    accuracy: Callable[[], float] | None = None
    validation_loss: Callable[[], float] | None = None


def task(job: Job, seed: int = 0) -> Task:
    """What a job trains; all workers begin with the same weights. `seed`: of weights and of the order of the data."""
    torch.manual_seed(seed)
    order = torch.Generator().manual_seed(1000 * seed + 1 + job.place)
    if job.cell.workload == "synthetic":
        return Task(Synthetic(job.cell.parameters, 1e-3 * job.cell.step_ms), lambda module: module())
    return _gpt(job, order) if job.cell.workload.startswith("gpt") else _cnn(job, order)


def optimizer(job: Job, model: nn.Module) -> torch.optim.Optimizer:
    """Adam, or SGD where a configuration asks for it; for synthetic gradients SGD, which costs least."""
    if job.cell.workload == "synthetic":
        return torch.optim.SGD(model.parameters(), lr=1e-3)
    if job.options.get("optimizer") == "SGD":
        momentum = job.options.get("momentum", 0.0)  # a codec's own is none of the optimizer's
        return torch.optim.SGD(model.parameters(), lr=SGD_RATE, momentum=momentum)
    return torch.optim.Adam(model.parameters(), lr=RATE)


def train(watch: Watch, task: Task, optimizer: Any, model: nn.Module | None = None, **calls: Any) -> None:
    """A plain loop. `model`: what a system has wrapped around the task's. `before`, `behind`: called at each step."""
    for step in watch.steps(task.accuracy):
        optimizer.zero_grad()
        task.loss(model or task.model).backward()
        if "before" in calls:
            calls["before"](step)
        optimizer.step()
        if "behind" in calls:
            calls["behind"](step)


def cnn(name: str) -> nn.Sequential:
    """GeoMX's CNN, with wider dense layers where more parameters are wanted."""
    wide, narrow = data.DENSE[name]
    first = (nn.Conv2d(1, 16, kernel_size=5), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(16, 32, kernel_size=5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    dense = (nn.Linear(512, wide), nn.ReLU(), nn.Linear(wide, narrow), nn.ReLU(), nn.Linear(narrow, 10))
    return nn.Sequential(*first, *second, *dense)


def _cnn(job: Job, order: torch.Generator) -> Task:
    images, labels = data.fashion_mnist("train")
    model = cnn(job.cell.workload)

    def loss(module: nn.Module) -> torch.Tensor:
        # Each worker draws from its own share: every so-many-th image.
        drawn = torch.randint(len(labels) // job.everyone, (job.cell.batch,), generator=order)
        chosen = (drawn * job.everyone + job.place).numpy()
        seen = torch.from_numpy(data.scaled(images[chosen]))
        return F.cross_entropy(module(seen), torch.from_numpy(labels[chosen]))

    return Task(model, loss, lambda: accuracy_of(model))


@torch.no_grad()
def accuracy_of(model: nn.Module) -> float:
    """The share of the 10,000 test images that a model gets right."""
    return data.accuracy(lambda images: model(torch.from_numpy(images)).argmax(1).numpy())


class Gpt(nn.Module):
    """A small GPT over bytes. Takes [n, CONTEXT] int64, gives [n, CONTEXT, 256]."""

    def __init__(self, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        self.blocks, self.last = nn.ModuleList(), nn.LayerNorm(width)
        shape = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        for _ in range(layers):
            self.blocks.append(nn.TransformerEncoderLayer(width, heads, 4 * width, **shape))
            self.blocks[-1].self_attn = nn.MultiheadAttention(width, heads, bias=False, batch_first=True)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for block in self.blocks:
            x = block(x, mask, is_causal=True)
        return self.last(x) @ self.tokens.weight.T


def _gpt(job: Job, order: torch.Generator) -> Task:
    text = torch.from_numpy(data.text())
    train, rest = text.split([round(TRAINED_ON * len(text)), len(text) - round(TRAINED_ON * len(text))])
    model = Gpt(*GPTS[job.cell.workload])

    def loss(module: nn.Module) -> torch.Tensor:
        starts = torch.randint(len(train) - CONTEXT - 1, (job.cell.batch,), generator=order)
        return _loss_of(module, train, starts)

    @torch.no_grad()
    def validation_loss() -> float:
        starts = torch.linspace(0, len(rest) - CONTEXT - 1, JUDGED_ON).long()
        losses = [float(_loss_of(model, rest, some)) for some in starts.split(64)]
        return sum(losses) / len(losses)

    return Task(model, loss, validation_loss=validation_loss)


def _loss_of(module: nn.Module, text: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """The mean loss over all bytes of the windows that begin there."""
    windows = torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()]).long()
    return F.cross_entropy(module(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


class Given(torch.autograd.Function):
    """A loss whose backward costs nothing: the gradients are at hand."""

    @staticmethod
    def forward(ctx: Any, gradients: list[torch.Tensor], *parameters: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return (None, *(gradient.clone() for gradient in ctx.gradients))


class Synthetic(nn.Module):
    """Parameters without a model. A step computes for `step_s` seconds: it sleeps."""

    def __init__(self, parameters: int, step_s: float) -> None:
        super().__init__()
        self.pieces = nn.ParameterList(torch.zeros(size) for size in synthetic_sizes(parameters))
        self._gradients = [1e-3 * torch.randn(slice_.shape) for slice_ in self.pieces]
        self._step_s = step_s

    def forward(self) -> torch.Tensor:
        time.sleep(self._step_s)
        return Given.apply(self._gradients, *self.pieces)
