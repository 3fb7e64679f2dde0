"""Learns tables of users and films from ratings; of each table only the rows travel that a batch has touched.

geomx run examples/embeddings.toml
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import geomx

USERS, FILMS, TASTES, WIDTH = 20_000, 1_000, 2, 8
RATINGS, EPOCHS, BATCH = 400_000, 3, 1_000


class Taste(nn.Module):
    """Predicts how a user rates a film, from a row of each."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, WIDTH, sparse=True)
        self.films = nn.Embedding(FILMS, WIDTH, sparse=True)

    def forward(self, user: torch.Tensor, film: torch.Tensor) -> torch.Tensor:
        return (self.users(user) * self.films(film)).mean(-1)


def ratings() -> TensorDataset:
    """Users, films and ratings, which follow from hidden tastes and chance."""
    users, films = torch.randn(USERS, TASTES), torch.randn(FILMS, TASTES)
    user, film = torch.randint(USERS, (RATINGS,)), torch.randint(FILMS, (RATINGS,))
    return TensorDataset(user, film, (users[user] * films[film]).sum(1) + 0.3 * torch.randn(RATINGS))


def main() -> None:
    torch.manual_seed(0)
    every, run = ratings(), geomx.join()
    known, unknown = torch.utils.data.random_split(every, [0.95, 0.05])
    model = Taste()
    model, optimizer = run.attach(model, torch.optim.SparseAdam(list(model.parameters()), lr=0.2))
    batches = run.shard(DataLoader(known, BATCH, shuffle=True), over="run")
    user, film, rating = every[unknown.indices]

    for epoch in range(run.epoch + 1, EPOCHS + 1):
        for users, films, given in batches:
            optimizer.zero_grad()
            F.mse_loss(model(users, films), given).backward()
            optimizer.step()
        loss = float(F.mse_loss(model(user, film).detach(), rating))
        run.log(loss=loss)
        if run.is_first:
            print(f"epoch {epoch}   off by {loss**0.5:.3f} of {float(rating.std()):.3f}", flush=True)
    run.close()


if __name__ == "__main__":
    main()
