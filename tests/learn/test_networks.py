"""Gradient descent, online and incremental learning: over parties whose rows differ, one machine's to rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from live_runs import place_of, train
from parties import unlike
from sklearn import datasets, model_selection
from torch import nn

from geomx.errors import Disagreement
from geomx.learn import (
    FTML,
    GAN,
    Autoencoder,
    CNNClassifier,
    FeatureClassifier,
    FineTunedClassifier,
    FTMLClassifier,
    FTRLClassifier,
    ListNet,
    MatrixFactorization,
    PolicyGradient,
    RankNet,
    RNNClassifier,
)
from geomx.train import LiveRun, Settings

X, Y = datasets.load_digits(return_X_y=True)
X = X / 16.0
KNOWN, ASKED, LABELS, ANSWERS = model_selection.train_test_split(X, Y, random_state=0)
DIABETES = datasets.load_diabetes(return_X_y=True)
CANCER = datasets.load_breast_cancer(return_X_y=True)
CANCER = (CANCER[0] - CANCER[0].mean(0)) / CANCER[0].std(0), CANCER[1]
CALLS = Settings(calls=True)


def trunk(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2))


@pytest.mark.parametrize(
    ("make", "of_classes", "outputs"),
    [
        (lambda: CNNClassifier(filters=4, epochs=1), True, lambda model: model.decision_function(ASKED)),
        (lambda: RNNClassifier(hidden=8, epochs=1), True, lambda model: model.decision_function(ASKED)),
        (lambda: FTMLClassifier(batch_size=64), True, lambda model: model.decision_function(ASKED)),
        (lambda: FineTunedClassifier(trunk(), (1, 8, 8), epochs=1), True,
         lambda model: model.decision_function(ASKED)),
        (lambda: Autoencoder(epochs=1), False, lambda model: model.transform(ASKED)),
        (lambda: GAN(epochs=1, hidden=16), False, lambda model: model.sample(20)),
    ],
    ids=["cnn", "rnn", "ftml", "tuning", "autoencoder", "gan"],
)  # fmt: skip
def test_a_network_is_one_machines(
    make: Callable[[], Any], of_classes: bool, outputs: Callable[[Any], Any]
) -> None:
    parts = unlike(KNOWN, LABELS, 3)

    def main(run: LiveRun) -> Any:
        own = parts[place_of(run)]
        how = {"classes": range(10)} if of_classes else {}
        found = outputs(make().fit(KNOWN[own], LABELS[own] if of_classes else None, run=run, **how))
        run.close()
        return found

    results, _ = train((1, 1, 1), main, CALLS)
    rows = np.concatenate(parts)
    one = make().fit(KNOWN[rows], LABELS[rows] if of_classes else None)
    for found in results.values():
        assert np.allclose(found, outputs(one), atol=2e-3)
    begins = outputs(make().set_params(learning_rate=1e-9).fit(KNOWN, LABELS if of_classes else None))
    assert not np.allclose(outputs(one), begins, atol=2e-2)


@pytest.mark.grids
def test_networks_learn() -> None:
    assert CNNClassifier(epochs=10).fit(KNOWN, LABELS).score(ASKED, ANSWERS) > 0.95
    assert RNNClassifier(epochs=10).fit(KNOWN, LABELS).score(ASKED, ANSWERS) > 0.9
    assert FTMLClassifier().fit(KNOWN, LABELS).score(ASKED, ANSWERS) > 0.85
    assert Autoencoder(epochs=20).fit(KNOWN).score(ASKED) > 0.6
    two = LABELS < 2
    model = CNNClassifier(epochs=3).fit(KNOWN[two], LABELS[two])
    assert model.predict_proba(ASKED).shape == (len(ASKED), 2)
    assert model.score(ASKED[ANSWERS < 2], ANSWERS[ANSWERS < 2]) > 0.95
    assert len(model.losses_) == 3
    assert model.losses_[-1] < model.losses_[0]


@pytest.mark.parametrize("make", [RankNet, ListNet])
def test_ranks_are_one_machines(make: Any) -> None:
    x, y = DIABETES[0] / DIABETES[0].std(0), np.digitize(DIABETES[1], [80, 140, 200, 260])
    groups = np.arange(len(y)) // 17
    queries = np.array_split(np.unique(groups), [3, 10])

    def main(run: LiveRun) -> Any:
        own = np.isin(groups, queries[place_of(run)])
        found = make(epochs=3).fit(x[own], y[own], groups[own], run=run).predict(x)
        run.close()
        return found

    results, _ = train((1, 1, 1), main, CALLS)
    one = make(epochs=3).fit(x, y, groups).predict(x)
    for found in results.values():
        assert np.allclose(found, one, atol=1e-3)
    assert np.corrcoef(make().fit(x, y, groups).predict(x), y)[0, 1] > 0.6


def test_ratings_stay_with_their_users() -> None:
    """Pixels are what a picture rates; what is left out of them is made good."""
    users, items = np.nonzero(np.ones((200, 64)))
    pairs, ratings = np.stack([users, items], axis=1), X[users, items]
    known = np.random.default_rng(0).random(len(ratings)) < 0.8
    parts = [users < 20, (users >= 20) & (users < 90), users >= 90]

    def main(run: LiveRun) -> Any:
        own = parts[place_of(run)]
        model = MatrixFactorization(64, 4, epochs=4).fit(pairs[known & own], ratings[known & own], run=run)
        run.close()
        return model.predict(pairs[~known & own])

    results, _ = train((1, 1, 1), main, CALLS)
    one = MatrixFactorization(64, 4, epochs=4).fit(pairs[known], ratings[known])
    for found, own in zip(results.values(), parts, strict=True):
        assert np.allclose(found, one.predict(pairs[~known & own]), atol=2e-3)
    assert one.score(pairs[~known], ratings[~known]) > 0.4
    stranger = one.predict([[999, 3]])
    assert stranger == pytest.approx(one.mean_ + float(one.module_.weight.detach()[3, 0]), abs=1e-6)


def test_weights_on_a_table_are_one_machines() -> None:
    x, y = CANCER
    parts = unlike(x, y, 3)

    def main(run: LiveRun) -> Any:
        own = parts[place_of(run)]
        model = FTRLClassifier(l1=0.05).fit(x[own], y[own], run=run)
        run.close()
        return model.coef_

    results, _ = train((1, 1, 1), main)
    rows = np.concatenate(parts)
    one = FTRLClassifier(l1=0.05).fit(x[rows], y[rows])
    for found in results.values():
        assert np.allclose(found, one.coef_, atol=1e-4)
    assert one.score(x, y) > 0.95


def test_features_of_a_frozen_network() -> None:
    parts = unlike(KNOWN, LABELS, 2)

    def main(run: LiveRun) -> Any:
        own = parts[place_of(run)]
        model = FeatureClassifier(trunk(), (1, 8, 8)).fit(KNOWN[own], LABELS[own], run=run)
        run.close()
        return model.predict(ASKED)

    results, _ = train((1, 1), main)
    one = FeatureClassifier(trunk(), (1, 8, 8)).fit(KNOWN, LABELS)
    assert all(np.array_equal(found, one.predict(ASKED)) for found in results.values())
    assert one.score(ASKED, ANSWERS) > 0.85

    def differs(run: LiveRun) -> None:
        FeatureClassifier(trunk(place_of(run)), (1, 8, 8)).fit(KNOWN, LABELS, run=run)

    with pytest.raises(Disagreement, match="different networks"):
        train((1, 1), differs)


def test_a_policy_of_several_worlds() -> None:
    gymnasium = pytest.importorskip("gymnasium")

    def main(run: LiveRun) -> Any:
        world = gymnasium.make("CartPole-v1")
        world.unwrapped.length = 0.4 + 0.2 * place_of(run)
        model = PolicyGradient(rounds=3, episodes=2).fit(world, run=run)
        run.close()
        return model.module_[0].weight.detach().numpy().copy(), model.returns_

    results, _ = train((1, 1), main, CALLS)
    (here, mine), (there, theirs) = results.values()
    assert np.array_equal(here, there)
    assert mine != theirs
    world = gymnasium.make("CartPole-v1")
    assert PolicyGradient(rounds=40).fit(world).score(world, episodes=5) > 60.0


def test_the_moving_leader_is_the_papers() -> None:
    """Two steps by hand, of Zheng and Kwok's algorithm 1."""
    w = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    optimizer = FTML([w], lr=0.1)
    theta, v, d, z = w.detach().numpy().copy(), np.zeros(2), np.zeros(2), np.zeros(2)
    for step, g in enumerate(np.array([[0.3, -0.1], [0.2, 0.4]]), 1):
        w.grad = torch.from_numpy(g.copy())
        optimizer.step()
        v = 0.999 * v + 0.001 * g**2
        now = (1 - 0.6**step) / 0.1 * (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
        z = 0.6 * z + 0.4 * g - (now - 0.6 * d) * theta
        d, theta = now, -z / now
        assert np.allclose(w.detach().numpy(), theta, atol=1e-12)
    with pytest.raises(ValueError, match="a rate above 0"):
        FTML([w], lr=0.0)


def test_labels_are_told_before() -> None:
    def main(run: LiveRun) -> None:
        CNNClassifier().fit(KNOWN, LABELS, run=run)

    with pytest.raises(ValueError, match="give all labels"):
        train((1, 1), main, CALLS)
    with pytest.raises(ValueError, match="rows of"):
        CNNClassifier().fit(KNOWN, LABELS, classes=range(9))
