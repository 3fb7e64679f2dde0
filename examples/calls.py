"""Finds clusters in data that stays where it is: k-means, by sums over all workers in each round.

geomx run examples/calls.toml
"""

from __future__ import annotations

import torch

import geomx

CLUSTERS, POINTS, DIMENSIONS = 6, 20_000, 8


def points_of(worker: int) -> torch.Tensor:
    """A worker's own points: around centers that all have in common, some of which it sees rarely."""
    torch.manual_seed(0)
    centers = 4 * torch.randn(CLUSTERS, DIMENSIONS, dtype=torch.float64)
    torch.manual_seed(1 + worker)
    odds = torch.rand(CLUSTERS) ** 3
    chosen = torch.multinomial(odds, POINTS, replacement=True)
    return centers[chosen] + torch.randn(POINTS, DIMENSIONS, dtype=torch.float64)


def main() -> None:
    run = geomx.join()
    points = points_of(run.workers.index(run.name))
    centers = run.broadcast(points[torch.randperm(POINTS)[:CLUSTERS]])  # the first worker's

    for number in range(1, 100):
        distances, nearest = torch.cdist(points, centers).min(1)
        told = {
            "counts": torch.bincount(nearest, minlength=CLUSTERS),
            "sums": torch.zeros_like(centers).index_add_(0, nearest, points),
            "squares": float(distances.square().sum()),
        }
        told = run.reduce(told)  # one round trip
        moved = told["sums"] / told["counts"].clamp(min=1).unsqueeze(1)
        error = told["squares"] / int(told["counts"].sum())
        run.log(error=error)
        if run.is_first:
            print(f"round {number:2d}   mean squared distance {error:.4f}", flush=True)
        if float((moved - centers).abs().max()) < 1e-6:  # the same bits on all workers
            break
        centers = moved

    sizes = run.gather(torch.bincount(nearest, minlength=CLUSTERS))
    if run.is_first:
        for worker, counts in sizes.items():
            print(f"{worker}: {counts.tolist()} points of each cluster", flush=True)
    run.close()


if __name__ == "__main__":
    main()
