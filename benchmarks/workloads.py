"""The workloads in PyTorch: models, data, and gradients without a model. Needs torch and numpy alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import data
from benchmarks.training import RATE, SGD_RATE, Job, synthetic_sizes

torch.set_num_threads(1)

DENSE = {"cnn-179k": (256, 128), "cnn-1m": (1024, 512), "cnn-10m": (4096, 1920)}
CONTEXT = 64  # characters
LAYERS, HEADS, WIDTH = 6, 6, 384
TEST_BATCH = 1000


class Task:
    """One worker's share of a workload: a model, whose loss on the next batch can be asked for.

    `accuracy`: None where there is nothing to be right about.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[nn.Module], torch.Tensor],
        accuracy: Callable[[], float] | None,
    ) -> None:
        self.model = model
        self.loss = loss
        self.accuracy = accuracy


def task(job: Job, seed: int = 0) -> Task:
    """What a job trains; all workers begin with the same weights. `seed`: of weights and of the order of the data."""
    torch.manual_seed(seed)
    if job.workload == "synthetic":
        return _synthetic(job)
    return _gpt(job) if job.workload.startswith("gpt") else _cnn(job, seed)


def optimizer(job: Job, model: nn.Module) -> torch.optim.Optimizer:
    """Adam, or SGD where a configuration asks for it; for synthetic gradients SGD, which costs least."""
    if job.workload == "synthetic":
        return torch.optim.SGD(model.parameters(), lr=1e-3)
    if job.options.get("optimizer") == "SGD":
        momentum = job.options.get("momentum", 0.0)  # a codec's own is none of the optimizer's
        return torch.optim.SGD(model.parameters(), lr=SGD_RATE, momentum=momentum)
    return torch.optim.Adam(model.parameters(), lr=RATE)


# -- images ---------------------------------------------------------------------------------------------------


def cnn(name: str) -> nn.Sequential:
    """GeoMX's CNN, with wider dense layers where more parameters are wanted."""
    wide, narrow = DENSE[name]
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, wide),
        nn.ReLU(),
        nn.Linear(wide, narrow),
        nn.ReLU(),
        nn.Linear(narrow, 10),
    )


def _cnn(job: Job, seed: int) -> Task:
    images, labels = (torch.from_numpy(part) for part in data.fashion_mnist("train"))
    order = torch.Generator().manual_seed(1000 * seed + 1 + job.place)
    model = cnn(job.workload)

    def loss(module: nn.Module) -> torch.Tensor:
        # Each worker draws from its own share: every so-many-th image.
        drawn = torch.randint(len(labels) // job.everyone, (job.batch,), generator=order)
        chosen = drawn * job.everyone + job.place
        return F.cross_entropy(module(_scaled(images[chosen])), labels[chosen])

    return Task(model, loss, lambda: accuracy_of(model))


def _scaled(images: torch.Tensor) -> torch.Tensor:
    return (images[:, None].to(torch.float32) / 255 - data.MEAN) / data.DEVIATION


@torch.no_grad()
def accuracy_of(model: nn.Module) -> float:
    """The share of the 10,000 test images that a model gets right."""
    images, labels = (torch.from_numpy(part) for part in data.fashion_mnist("test"))
    parts = zip(torch.split(images, TEST_BATCH), torch.split(labels, TEST_BATCH), strict=True)
    right = sum(int((model(_scaled(some)).argmax(1) == named).sum()) for some, named in parts)
    return right / len(labels)


# -- text -----------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """One layer of a transformer that looks back only."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_dense = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.queries_keys_values = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.mix = nn.Linear(WIDTH, WIDTH, bias=False)
        self.dense = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.queries_keys_values(self.before_attention(x)).split(WIDTH, dim=2)
        q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in parts)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        dense: torch.Tensor = self.dense(self.before_dense(x))
        return x + dense


class Gpt(nn.Module):
    """A small GPT over bytes, about 10.7 million parameters. Takes [n, CONTEXT] int64, gives [n, CONTEXT, 256]."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.last = nn.LayerNorm(WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        last: torch.Tensor = self.last(self.blocks(x))
        return last @ self.tokens.weight.T


def _gpt(job: Job) -> Task:
    text = torch.from_numpy(data.plays())
    order = torch.Generator().manual_seed(1 + job.place)

    def loss(module: nn.Module) -> torch.Tensor:
        starts = torch.randint(len(text) - CONTEXT - 1, (job.batch,), generator=order)
        windows = torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()]).long()
        return F.cross_entropy(module(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())

    return Task(Gpt(), loss, None)


# -- no model -------------------------------------------------------------------------------------------------


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
        loss: torch.Tensor = Given.apply(self._gradients, *self.pieces)  # type: ignore[no-untyped-call]
        return loss


def _synthetic(job: Job) -> Task:
    return Task(Synthetic(job.parameters, 1e-3 * job.step_ms), lambda module: module(), None)
