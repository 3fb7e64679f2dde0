"""Linear models: over parties whose rows differ they are those of one machine, which are the reference library's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from live_runs import place_of, train
from parties import alone, over_parties
from sklearn import datasets, linear_model, svm

from geomx.errors import Disagreement
from geomx.learn import SVC, SVR, LogisticRegression, RankSVM
from geomx.train import LiveRun


def weights(model: Any) -> Any:
    return np.concatenate([np.ravel(model.coef_), np.ravel(model.intercept_)])


CANCER = datasets.load_breast_cancer(return_X_y=True)
CANCER = (CANCER[0] - CANCER[0].mean(0)) / CANCER[0].std(0), CANCER[1]
WINE = datasets.load_wine(return_X_y=True)
WINE = (WINE[0] - WINE[0].mean(0)) / WINE[0].std(0), WINE[1]
DIABETES = datasets.load_diabetes(return_X_y=True)


@pytest.mark.parametrize(
    ("make", "data", "reference"),
    [
        (LogisticRegression, CANCER, lambda: linear_model.LogisticRegression(tol=1e-10, max_iter=10_000)),
        (LogisticRegression, WINE, lambda: linear_model.LogisticRegression(tol=1e-10, max_iter=10_000)),
        (SVC, CANCER, lambda: svm.LinearSVC(tol=1e-10, max_iter=1_000_000, dual=False)),
        (SVC, WINE, lambda: svm.LinearSVC(tol=1e-10, max_iter=1_000_000, dual=False)),
        (lambda: SVR(C=10.0, epsilon=1.0), DIABETES,
         lambda: svm.LinearSVR(C=10.0, epsilon=1.0, loss="squared_epsilon_insensitive", dual=False, tol=1e-10,
                               max_iter=1_000_000)),
        (lambda: SVC(kernel="rbf", gamma=0.02, components=60), CANCER, None),
    ],
    ids=["logistic", "logistic of three", "svc", "svc of three", "svr", "svc rbf"],
)  # fmt: skip
def test_it_is_one_machines(make: Callable[[], Any], data: Any, reference: Callable[[], Any] | None) -> None:
    x, y = data
    one = alone(make, x, y, weights)
    first, *others = over_parties(make, x, y, weights)
    assert np.allclose(first, one, rtol=1e-9, atol=1e-9)
    assert all(np.array_equal(first, found) for found in others)
    if reference is not None:
        theirs, mine = reference().fit(x, y), make().fit(x, y)
        assert np.allclose(mine.predict(x), theirs.predict(x), rtol=1e-3)
        if len(np.ravel(mine.intercept_)) == 1:  # else weights are free by a constant
            assert np.allclose(weights(mine), weights(theirs), rtol=2e-3, atol=2e-3)


def test_ranks_are_one_machines() -> None:
    x, y = DIABETES
    groups = np.arange(len(y)) // 17
    queries = np.array_split(np.unique(groups), [3, 10])

    def make() -> RankSVM:
        return RankSVM(C=0.1)

    def main(run: LiveRun) -> Any:
        own = np.isin(groups, queries[place_of(run)])
        found = make().fit(x[own], y[own], groups[own], run=run).coef_
        run.close()
        return found

    one = make().fit(x, y, groups)
    results, _ = train((1, 1, 1), main)
    for found in results.values():
        assert np.allclose(found, one.coef_, rtol=1e-9, atol=1e-9)
    scores = one.predict(x)
    right = [(scores[i] > scores[j]) for g in range(26) for i in np.flatnonzero(groups == g)
             for j in np.flatnonzero(groups == g) if y[i] > y[j]]  # fmt: skip
    assert np.mean(right) > 0.7


def test_labels_and_features_are_agreed_upon() -> None:
    def main(run: LiveRun) -> Any:
        own = np.eye(4 if run.party == "A" else 3)
        LogisticRegression().fit(own, np.arange(len(own)) % 2, run=run)

    with pytest.raises(Disagreement, match="different numbers of features: 4 at A/0, 3 at B/0"):
        train((1, 1), main)
