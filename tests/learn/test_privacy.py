"""Noise on what leaves: as much as is told, and models that are of use with it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from live_runs import place_of, train

from geomx.learn import Bins, GBDTClassifier, GBDTRegressor, KMeans, XGBClassifier
from geomx.learn.privacy import Noise
from geomx.train import LiveRun


def test_what_is_spent() -> None:
    """Two releases with noise 2: rho is 1/8 + 1/8."""
    noise = Noise(2.0)
    (first, second) = noise.release((np.zeros(40_000), 3.0), (np.zeros(40_000), 1.0))
    noise.release((np.zeros(1), 1.0))
    assert noise.rho == pytest.approx(0.25)
    assert noise.epsilon(1e-5) == pytest.approx(0.25 + 2.0 * math.sqrt(0.25 * math.log(1e5)))
    assert np.std(first) == pytest.approx(2.0 * math.sqrt(2.0) * 3.0, rel=0.05)
    assert np.std(second) == pytest.approx(2.0 * math.sqrt(2.0), rel=0.05)
    for wrong in (lambda: Noise(-1.0), lambda: Noise(math.inf), lambda: noise.epsilon(1.0)):
        with pytest.raises(ValueError, match="="):
            wrong()


def test_noisy_trees_are_of_use_and_the_same_everywhere() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.0, 1.0, (12_000, 3))
    y = (x[:, 0] + 0.5 * x[:, 1] > 0.1).astype(int)
    bins = Bins.even([-1.0] * 3, [1.0] * 3, 16)

    def main(run: LiveRun) -> Any:
        own = slice(0, 5000) if place_of(run) == 0 else slice(5000, None)
        model = XGBClassifier(5, max_depth=3, noise=10.0).fit(x[own], y[own], run=run, bins=bins)
        run.close()
        return model.score(x, y), model.decision_function(x[:50]), model.privacy_.rho

    results, _ = train((1, 1), main)
    (score, scores, rho), (_, others, _) = results.values()
    assert np.array_equal(scores, others)
    assert score > 0.75
    assert 0.0 < rho <= 5 * 3 * 0.5 / 100.0  # at most a release a level
    exact = XGBClassifier(5, max_depth=3).fit(x, y, bins=bins)
    assert not np.array_equal(scores, exact.decision_function(x[:50]))


def test_one_row_moves_no_more_than_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every release beside the same with one row replaced by another: within its reach."""
    rng = np.random.default_rng(1)
    x, y = rng.uniform(-1.0, 1.0, (300, 3)), rng.integers(0, 2, 300)
    bins = Bins.even([-1.0] * 3, [1.0] * 3, 8)
    seen: list[list[tuple[np.ndarray, float]]] = []

    def release(self: Noise, *parts: Any) -> list[Any]:
        seen.append([(np.array(sums, np.float64), reach) for sums, reach in parts])
        return [sums for sums, _ in parts]

    monkeypatch.setattr(Noise, "release", release)
    other, label = x.copy(), y.copy()
    other[7], label[7] = -x[7], 1 - y[7]
    for rows, labels in ((x, y), (other, label)):
        GBDTClassifier(1, max_depth=1, noise=1.0).fit(rows, labels, bins=bins)
        KMeans(3, init=x[:3], max_iter=1, noise=1.0, clip=0.8).fit(rows)
    assert len(seen) == 4
    for one, two in zip(seen[:2], seen[2:], strict=True):
        for (sums, reach), (others, _) in zip(one, two, strict=True):
            moved = float(np.linalg.norm(sums - others))
            assert 0.2 * reach < moved <= reach * (1.0 + 1e-9)


def test_noisy_centres() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(at, 0.05, (2000, 2)) for at in ((0.5, 0.0), (-0.5, 0.1))])
    model = KMeans(2, init=[[1.0, 0.0], [-1.0, 0.0]], max_iter=5, noise=20.0, clip=1.0).fit(x)
    assert np.allclose(model.cluster_centers_, [[0.5, 0.0], [-0.5, 0.1]], atol=0.15)
    assert model.privacy_.rho == pytest.approx(5 * 0.5 / 400.0)


def test_what_noise_needs() -> None:
    x, y = np.random.default_rng(0).random((50, 2)), np.arange(50) % 2
    bins = Bins.even([0.0, 0.0], [1.0, 1.0], 8)
    with pytest.raises(ValueError, match="give bins"):
        GBDTClassifier(2, noise=1.0).fit(x, y)
    with pytest.raises(ValueError, match="classes alone"):
        GBDTRegressor(2, noise=1.0).fit(x, y, bins=bins)
    with pytest.raises(ValueError, match="give centres"):
        KMeans(2, noise=1.0).fit(x)
    with pytest.raises(ValueError, match="bins of 1 features"):
        GBDTClassifier(2).fit(x, y, bins=Bins.even([0.0], [1.0], 8))
    with pytest.raises(ValueError, match="2 to 255"):
        Bins.even([0.0], [1.0], 1)
