"""References: other libraries' estimators, and training loops in plain PyTorch where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from sklearn import svm
from torch import nn

from geomx.learn.networks.rnn import Recurrent

Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


def descend(
    module: nn.Module, loss: Loss, x: Any, y: Any, *, epochs: int, batch: int, lr: float
) -> nn.Module:
    """Adam, on shuffled batches."""
    x, y = torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y)
    optimizer = torch.optim.Adam(module.parameters(), lr)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(batch):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            loss(module, x[rows], y[rows]).backward()
            optimizer.step()
    return module


class Plain:
    """A network of plain PyTorch. `make`: of so many classes; `shape`: of a row."""

    def __init__(self, make: Callable[[int], nn.Module], shape: tuple[int, ...], **how: Any) -> None:
        self._make, self._shape, self._how = make, shape, how

    def fit(self, x: Any, y: Any) -> Self:
        torch.manual_seed(0)
        self._classes, places = np.unique(y, return_inverse=True)

        def loss(module: nn.Module, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(module(self._shaped(rows)), labels)

        self._module = descend(self._make(len(self._classes)), loss, x, places, **self._how)
        return self

    @torch.no_grad()
    def predict(self, x: Any) -> Any:
        rows = torch.as_tensor(x, dtype=torch.float32)
        return self._classes[self._module(self._shaped(rows)).argmax(1).numpy()]

    def _shaped(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.reshape(len(rows), *self._shape)


def convolutions(classes: int, filters: int = 16) -> nn.Sequential:
    """As `CNNClassifier` has them."""
    return nn.Sequential(
        nn.Conv2d(1, filters, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(filters, 2 * filters, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(8 * filters, classes),
    )  # fmt: skip


def recurrent(classes: int) -> nn.Module:
    return Recurrent(8, 64, classes)


def trained_before(x: Any, y: Any) -> nn.Sequential:
    """A network that knows some digits, without its last layer."""
    plain = Plain(convolutions, (1, 8, 8), epochs=20, batch=64, lr=3e-3).fit(x, y)
    found = plain._module
    assert isinstance(found, nn.Sequential)
    return found[:-1]


class PlainAutoencoder:
    """As `Autoencoder` is built."""

    def fit(self, x: Any) -> Self:
        torch.manual_seed(0)
        halves = (nn.Sequential(nn.Linear(a, 64), nn.ReLU(), nn.Linear(64, b)) for a, b in ((64, 8), (8, 64)))
        self._module = descend(
            nn.Sequential(*halves), lambda module, rows, _: F.mse_loss(module(rows), rows), x, x,
            epochs=50, batch=64, lr=3e-3,
        )  # fmt: skip
        return self

    @torch.no_grad()
    def score(self, x: Any) -> float:
        made = self._module(torch.as_tensor(x, dtype=torch.float32)).numpy()
        return float(1.0 - ((x - made) ** 2).sum() / ((x - x.mean(0)) ** 2).sum())


class _Factors(nn.Module):
    def __init__(self, users: int, items: int) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, 9), nn.Embedding(items, 9)
        for each in (self.users, self.items):
            nn.init.uniform_(each.weight, -0.1, 0.1)

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        p, q = self.users(pairs[:, 0].long()), self.items(pairs[:, 1].long())
        return p[:, 0] + q[:, 0] + (p[:, 1:] * q[:, 1:]).sum(1)  # type: ignore[no-any-return]

    def size(self, pairs: torch.Tensor) -> torch.Tensor:
        p, q = self.users(pairs[:, 0].long()), self.items(pairs[:, 1].long())
        return ((p[:, 1:] ** 2).sum(1) + (q[:, 1:] ** 2).sum(1)).mean()  # type: ignore[no-any-return]


class PlainFactorization:
    """As `MatrixFactorization` is."""

    def fit(self, x: Any, y: Any) -> Self:
        torch.manual_seed(0)
        self._mean = float(y.mean())

        def loss(module: Any, pairs: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
            return F.mse_loss(module(pairs), given) + 0.02 * module.size(pairs)

        module = _Factors(int(x[:, 0].max()) + 1, int(x[:, 1].max()) + 1)
        targets = torch.as_tensor(y - self._mean, dtype=torch.float32)
        self._module = descend(module, loss, x, targets, epochs=30, batch=8192, lr=0.05)
        return self

    @torch.no_grad()
    def predict(self, x: Any) -> Any:
        return self._mean + self._module(torch.as_tensor(x)).numpy()


class PlainGAN:
    """As `GAN` is."""

    def fit(self, x: Any) -> Self:
        torch.manual_seed(0)
        rows = torch.as_tensor(x, dtype=torch.float32)

        def layers(first: int, last: int) -> nn.Module:
            return nn.Sequential(
                nn.Linear(first, 128), nn.LeakyReLU(0.2), nn.Linear(128, 128), nn.LeakyReLU(0.2), nn.Linear(128, last)
            )  # fmt: skip

        self._generator, critic = layers(16, 64), layers(64, 1)
        one, other = (
            torch.optim.Adam(each.parameters(), 1e-3, (0.5, 0.99)) for each in (self._generator, critic)
        )
        for _ in range(60):
            for at in torch.randperm(len(rows)).split(128):  # type: ignore[no-untyped-call]
                made = self._generator(torch.randn(len(at), 16))
                other.zero_grad()
                (F.softplus(-critic(rows[at])) + F.softplus(critic(made.detach()))).mean().backward()
                other.step()
                one.zero_grad()
                F.softplus(-critic(made)).mean().backward()
                one.step()
        return self

    @torch.no_grad()
    def sample(self, rows: int) -> Any:
        return self._generator(torch.randn(rows, 16)).numpy()


class PlainRanking:
    """Scores of a small network, by a loss of each query."""

    def __init__(self, loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        self._loss = loss

    def fit(self, x: Any, y: Any, queries: Any) -> Self:
        torch.manual_seed(0)
        self._module = nn.Sequential(nn.Linear(x.shape[1], 16), nn.Tanh(), nn.Linear(16, 1))
        rows, relevance = torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y, dtype=torch.float32)
        lists = [torch.from_numpy(np.flatnonzero(queries == query)) for query in np.unique(queries)]
        optimizer = torch.optim.Adam(self._module.parameters(), 1e-2)
        for _ in range(50):
            for some in torch.randperm(len(lists)).split(4):  # type: ignore[no-untyped-call]
                optimizer.zero_grad()
                losses = [
                    self._loss(self._module(rows[lists[at]])[:, 0], relevance[lists[at]]) for at in some
                ]
                torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        return self

    @torch.no_grad()
    def predict(self, x: Any) -> Any:
        return self._module(torch.as_tensor(x, dtype=torch.float32))[:, 0].numpy()


def of_pairs(scores: torch.Tensor, relevance: torch.Tensor) -> torch.Tensor:
    """RankNet's."""
    more, less = torch.nonzero(relevance[:, None] > relevance[None], as_tuple=True)
    return F.softplus(scores[less] - scores[more]).mean() if len(more) else scores.sum() * 0.0


def of_lists(scores: torch.Tensor, relevance: torch.Tensor) -> torch.Tensor:
    """ListNet's."""
    return -(relevance.softmax(0) * scores.log_softmax(0)).sum()


class Ranker:
    """A library's ranker, which takes the sizes of queries."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def fit(self, x: Any, y: Any, queries: Any) -> Self:
        self._model.fit(x, y, group=np.unique(queries, return_counts=True)[1])
        return self

    def predict(self, x: Any) -> Any:
        return self._model.predict(x)


class Pointwise(Ranker):
    """One of relevance by itself."""

    def fit(self, x: Any, y: Any, queries: Any) -> Self:
        self._model.fit(x, y)
        return self


class Pairs(Ranker):
    """RankSVM by scikit-learn: classes of differences of rows."""

    def __init__(self) -> None:
        super().__init__(svm.LinearSVC(C=0.1, dual=False, fit_intercept=False, max_iter=100_000))

    def fit(self, x: Any, y: Any, queries: Any) -> Self:
        differences = []
        for query in np.unique(queries):
            own = np.flatnonzero(queries == query)
            more, less = np.nonzero(y[own][:, None] > y[own][None])
            differences.append(x[own[more]] - x[own[less]])
        apart = np.concatenate(differences)
        signs = np.where(np.arange(len(apart)) % 2, 1, -1)
        self._model.fit(apart * signs[:, None], signs)
        return self

    def predict(self, x: Any) -> Any:
        return self._model.decision_function(x)


class PlainPolicy:
    """REINFORCE in one world, as `PolicyGradient` does it."""

    def fit(self, world: Any) -> Self:
        torch.manual_seed(1)
        self._module = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
        optimizer = torch.optim.Adam(self._module.parameters(), 1e-2)
        world.reset(seed=1)
        for _ in range(100):
            chances, returns = list[torch.Tensor](), list[float]()
            for _ in range(4):
                state, rewards, is_over = world.reset()[0], list[float](), False
                while not is_over:
                    policy = torch.distributions.Categorical(logits=self._module(torch.as_tensor(state)))
                    done = policy.sample()  # type: ignore[no-untyped-call]
                    chances.append(policy.log_prob(done))  # type: ignore[no-untyped-call]
                    state, reward, ended, cut, _ = world.step(int(done))
                    rewards.append(float(reward))
                    is_over = ended or cut
                for at in reversed(range(len(rewards) - 1)):
                    rewards[at] += 0.99 * rewards[at + 1]
                returns += rewards
            gain = torch.tensor(returns)
            gain = (gain - gain.mean()) / (gain.std() + 1e-6)
            optimizer.zero_grad()
            (-(gain * torch.stack(chances)).mean()).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return self

    @torch.no_grad()
    def predict(self, states: Any) -> Any:
        return self._module(torch.as_tensor(states, dtype=torch.float32)).argmax(1).numpy()


class River:
    """An estimator of river, which takes one row after the other."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def fit(self, x: Any, y: Any) -> Self:
        for row, label in zip(x, y, strict=True):
            self._model.learn_one(dict(enumerate(row)), bool(label))
        return self

    def predict_proba(self, x: Any) -> Any:
        chances = [self._model.predict_proba_one(dict(enumerate(row))) for row in x]
        return np.array([[each[False], each[True]] for each in chances])


class Extracted:
    """scikit-learn's estimator on a network's features."""

    def __init__(self, trunk: nn.Module, model: Any) -> None:
        self._trunk, self._model = trunk, model

    def fit(self, x: Any, y: Any) -> Self:
        self._model.fit(self._features(x), y)
        return self

    def predict(self, x: Any) -> Any:
        return self._model.predict(self._features(x))

    @torch.no_grad()
    def _features(self, x: Any) -> Any:
        return self._trunk(torch.as_tensor(x, dtype=torch.float32).reshape(-1, 1, 8, 8)).flatten(1).numpy()
