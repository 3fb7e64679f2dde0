"""Trains a GAN on images of handwritten digits: a generator and a critic, each with an optimizer of its own.

geomx run examples/gan.toml
"""

from __future__ import annotations

from itertools import pairwise

import data
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import geomx

NOISE, EPOCHS, BATCH = 32, 20, 32


def build(sizes: tuple[int, ...]) -> nn.Sequential:
    """Linear layers of these sizes, with LeakyReLU between them."""
    layers = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair), nn.LeakyReLU(0.2))]
    return nn.Sequential(*layers[:-1])


def main() -> None:
    torch.manual_seed(0)
    train_set, _ = data.load("digits")
    images = train_set.tensors[0].flatten(1)
    run = geomx.join()
    generator, critic = build((NOISE, 64, 64, images.shape[1])), build((images.shape[1], 64, 64, 1))
    of_generator = torch.optim.Adam(generator.parameters(), 2e-3, betas=(0.5, 0.99))
    of_critic = torch.optim.Adam(critic.parameters(), 2e-3, betas=(0.5, 0.99))
    generator, of_generator = run.attach(generator, of_generator, name="generator")
    critic, of_critic = run.attach(critic, of_critic, name="critic")
    batches = run.shard(DataLoader(images, BATCH, shuffle=True), over="run")  # type: ignore[arg-type]
    torch.manual_seed(run.workers.index(run.name))  # each worker draws other noise

    for epoch in range(run.epoch + 1, EPOCHS + 1):
        for real in batches:
            made = generator(torch.randn(len(real), NOISE)).sigmoid()
            of_critic.zero_grad()
            loss = F.softplus(-critic(real)).mean() + F.softplus(critic(made.detach())).mean()
            loss.backward()
            of_critic.step()
            of_generator.zero_grad()
            F.softplus(-critic(made)).mean().backward()
            of_generator.step()
        with torch.no_grad():
            made = generator(torch.randn(2000, NOISE)).sigmoid()
            apart = float((made.mean(0) - images.mean(0)).abs().mean())
        run.log(loss=loss, apart=apart)
        if run.is_first:
            print(f"epoch {epoch:2d}   loss of the critic {loss:.3f}   pixels apart {apart:.4f}", flush=True)
    run.close()


if __name__ == "__main__":
    main()
