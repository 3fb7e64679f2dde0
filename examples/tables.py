"""Predicts clicks: FTRL on ten million hashed features, of which each batch touches some thousand.

geomx run examples/tables.toml
"""

from __future__ import annotations

import numpy as np
import torch

import geomx

FEATURES, FIELDS, BATCH, STEPS = 10_000_000, 24, 2048, 120


def hashed(field: np.ndarray, value: np.ndarray) -> np.ndarray:
    """The feature of a value of a field."""
    mixed = (value * 1_000_003 + field * 7_919 + 12_345) * 2_654_435_761
    return mixed % FEATURES


def drawn(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, torch.Tensor]:
    """Features [rows, FIELDS], of values some of which are far more frequent than others, and clicks [rows]."""
    field = np.arange(FIELDS)
    keys = hashed(field, rng.zipf(1.2, (rows, FIELDS)) % 1_000_000)
    weights = np.sin(keys * 0.37) * (keys % 5 == 0)  # the truth: most features tell nothing
    odds = 1 / (1 + np.exp(1.0 - 1.5 * weights.sum(1)))
    return keys, torch.from_numpy((rng.random(rows) < odds).astype(np.float32))


def loss_of(weights: torch.Tensor, clicks: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.binary_cross_entropy_with_logits(weights.sum((1, 2)), clicks)


def main() -> None:
    run = geomx.join()
    place = run.workers.index(run.name)
    rng, held_out = np.random.default_rng(place), drawn(np.random.default_rng(999), 20_000)
    table = run.table(
        "clicks", FEATURES, rule="ftrl alpha=0.2 l1=0.2", staleness=2, values="bf16", filters=["zeros"]
    )
    while (step := table.clock) < STEPS:
        keys, clicks = drawn(rng, BATCH)
        weights = table.pull(keys).requires_grad_()
        loss_of(weights, clicks).backward()
        table.push(keys, weights.grad * BATCH)
        if run.is_first and step % 20 == 19:
            loss = float(loss_of(table.pull(held_out[0]), held_out[1]))
            run.log(loss=loss)
            print(f"step {step + 1:3d}   loss on clicks that nobody has seen {loss:.4f}", flush=True)
    run.barrier()
    if run.is_first:
        seen, telling = np.sum([(len(keys), int((rows != 0).sum())) for keys, rows in table.items()], 0)
        print(f"{seen} features were seen, and {telling} have a weight", flush=True)
    run.close()


if __name__ == "__main__":
    main()
