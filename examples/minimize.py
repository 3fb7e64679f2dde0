"""Sandblaster L-BFGS: logistic regression over two parties' data, in portions that workers compute as they are free.

geomx run examples/minimize.toml
"""

from __future__ import annotations

import numpy as np

import geomx

FEATURES, SAMPLES, PORTIONS = 1_000, 40_000, 16


def samples_of(party: str) -> tuple[np.ndarray, np.ndarray]:
    """A party's own: features [samples, FEATURES], few of which matter, and labels -1 or 1."""
    truth = np.random.default_rng(0).normal(size=FEATURES) * (np.arange(FEATURES) % 20 == 0)
    rng = np.random.default_rng([ord(letter) for letter in party])
    x = rng.normal(size=(SAMPLES // 2, FEATURES)).astype(np.float32)
    return x, np.where(x @ truth + rng.normal(size=len(x)) > 0, 1.0, -1.0)


def main() -> None:
    run = geomx.join()
    x, y = samples_of(run.party)
    parts = np.array_split(np.arange(len(y)), PORTIONS)

    def loss(weights: np.ndarray, portion: int) -> tuple[float, np.ndarray]:
        some = parts[portion]
        margin = -y[some] * (x[some] @ weights)
        gradient = -x[some].T @ (y[some] / (1 + np.exp(-margin)))
        value = np.logaddexp(0, margin).sum()
        share = len(some) / SAMPLES  # of the penalty
        return float(value + share * weights @ weights / 2), gradient + share * weights

    found = run.minimize(loss, np.zeros(FEATURES), dict.fromkeys(run.parties, PORTIONS))
    right = run.reduce({"right": int((np.sign(x @ found.point) == y).sum()), "of": len(y)})
    if run.is_first:
        print(f"{found.iterations} steps, {found.evaluations} evaluations: {found.why}", flush=True)
        print(f"loss {found.values[0]:.0f} -> {found.value:.1f}", flush=True)
        print(f"the coordinator sent {found.sent_bytes / found.iterations / 1e3:.1f} kB a step", flush=True)
        print(f"right {right['right'] / right['of']:.2%}", flush=True)
    run.close()


if __name__ == "__main__":
    main()
