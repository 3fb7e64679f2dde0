"""Trees: over parties whose rows differ they are, bit for bit, one machine's with the same bins."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from unittest import SkipTest

import numpy as np
import pytest
from live_runs import place_of, train
from parties import unlike
from sklearn import datasets, ensemble, metrics, model_selection
from sklearn.utils.estimator_checks import estimator_checks_generator

from geomx.learn import (
    SVC,
    SVR,
    AdaRank,
    Autoencoder,
    FTMLClassifier,
    FTRLClassifier,
    GBDTClassifier,
    GBDTRegressor,
    GBRank,
    KMeans,
    KNeighborsClassifier,
    KNeighborsRegressor,
    LambdaMART,
    LogisticRegression,
    RandomForestClassifier,
    RandomForestRegressor,
    RankBoost,
    XGBClassifier,
)
from geomx.learn.over import Over
from geomx.learn.trees import bins as binning
from geomx.learn.trees import loops
from geomx.train import LiveRun

CANCER = datasets.load_breast_cancer(return_X_y=True)
WINE = datasets.load_wine(return_X_y=True)
DIABETES = datasets.load_diabetes(return_X_y=True)


def with_gaps(data: Any) -> Any:
    """A tenth of all values is missing."""
    x = data[0].copy()
    x[np.random.default_rng(5).random(x.shape) < 0.1] = np.nan
    return x, data[1]


@pytest.mark.parametrize(
    ("make", "data"),
    [
        (lambda: GBDTClassifier(8), CANCER),
        (lambda: GBDTClassifier(4), WINE),
        (lambda: GBDTRegressor(8), DIABETES),
        (lambda: XGBClassifier(8, reg_alpha=0.1, gamma=0.01), with_gaps(CANCER)),
        (lambda: RandomForestClassifier(5), WINE),
        (lambda: RandomForestRegressor(5, min_samples_leaf=3), DIABETES),
    ],
    ids=["gbdt", "gbdt of three", "gbdt of numbers", "xgb with gaps", "forest", "forest of numbers"],
)
def test_trees_are_one_machines_bit_for_bit(make: Callable[[], Any], data: Any) -> None:
    x, y = data
    parts = unlike(x, y, 3)

    def main(run: LiveRun) -> Any:
        own = parts[place_of(run)]
        found = make().fit(x[own], y[own], run=run)
        run.close()
        return found

    results, _ = train((1, 1, 1), main)
    rows = np.concatenate(parts)
    one = make().fit(x[rows], y[rows], bins=results["A/0"].bins_)
    expected = trees_of(one)
    for found in results.values():
        assert all(np.array_equal(a, b) for a, b in zip(trees_of(found), expected, strict=True))
    assert sum(map(len, expected)) > 50


def trees_of(model: Any) -> list[Any]:
    trees = [tree for each in model.trees_ for tree in (each if isinstance(each, list) else [each])]
    return [part for tree in trees for part in (tree.feature, tree.threshold, tree.missing_left, tree.value)]


@pytest.mark.parametrize(
    ("make", "least"),
    [
        (lambda: LambdaMART(10), 0.85),
        (lambda: GBRank(10), 0.85),
        (lambda: RankBoost(20), 0.8),
        (lambda: AdaRank(20), 0.8),
    ],
)
def test_ranks_are_one_machines(make: Callable[[], Any], least: float) -> None:
    """Within queries of diabetics, the sicker come first."""
    x, y = DIABETES[0], np.digitize(DIABETES[1], [80, 140, 200, 260])
    groups = np.arange(len(y)) // 17
    queries = np.array_split(np.unique(groups), [3, 10])

    def main(run: LiveRun) -> Any:
        own = np.isin(groups, queries[place_of(run)])
        found = make().fit(x[own], y[own], groups[own], run=run)
        run.close()
        return found

    results, _ = train((1, 1, 1), main)
    bins = {"bins": results["A/0"].bins_} if hasattr(results["A/0"], "bins_") else {}
    one = make().fit(x, y, groups, **bins)
    for found in results.values():
        assert np.allclose(found.predict(x), one.predict(x), rtol=1e-9)
    scores = [metrics.ndcg_score([y[groups == g]], [one.predict(x)[groups == g]]) for g in np.unique(groups)]
    assert np.mean(scores) > least


@pytest.mark.parametrize(
    ("make", "theirs", "data"),
    [
        (GBDTClassifier, lambda: ensemble.HistGradientBoostingClassifier(early_stopping=False), CANCER),
        (XGBClassifier, lambda: ensemble.HistGradientBoostingClassifier(early_stopping=False), CANCER),
        (GBDTRegressor, lambda: ensemble.HistGradientBoostingRegressor(early_stopping=False), DIABETES),
        (lambda: RandomForestClassifier(50), lambda: ensemble.RandomForestClassifier(50, random_state=0), CANCER),
        (lambda: RandomForestRegressor(50, min_samples_leaf=5),
         lambda: ensemble.RandomForestRegressor(50, min_samples_leaf=5, max_features=1 / 3, random_state=0), DIABETES),
    ],
)  # fmt: skip
@pytest.mark.grids
def test_they_are_as_good_as_the_reference_librarys(make: Any, theirs: Any, data: Any) -> None:
    x, y = data
    split = model_selection.KFold(4, shuffle=True, random_state=0)
    ours, reference = (
        model_selection.cross_val_score(each(), x, y, cv=split).mean() for each in (make, theirs)
    )
    assert ours > reference - 0.03


def test_gaps_tell_something() -> None:
    """Where a value is missing is what counts."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((400, 3)), rng.integers(0, 2, 400)
    x[y == 1, 1] = np.nan
    model = XGBClassifier(3).fit(x, y)
    assert model.score(x, y) == 1.0
    assert model.feature_importances_.argmax() == 1


def test_codes_are_shared_out_alike() -> None:
    x = np.random.default_rng(0).lognormal(size=(6000, 2))
    x[:, 1] = np.round(x[:, 1])
    order = np.argsort(x[:, 0])  # parties have other ranges of values

    def main(run: LiveRun) -> Any:
        found = binning.find(Over(run), x[np.array_split(order, [1000, 2500])[place_of(run)]], 64)
        run.close()
        return found.cuts

    results, _ = train((1, 1, 1), main)
    cuts = results["A/0"]
    assert all(np.array_equal(a, b) for each in results.values() for a, b in zip(each, cuts, strict=True))
    counts = np.bincount(np.searchsorted(cuts[0], x[:, 0]))
    assert len(counts) == 64
    assert counts.max() < 1.4 * len(x) / 64
    assert np.array_equal(cuts[1], np.unique(x[:, 1])[:-1] + np.diff(np.unique(x[:, 1])) / 2)


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("terms", [loops.Terms(), loops.Terms(shrinks=1.0, sparse=0.3, least_rows=20.0)])
def test_compiled_loops_are_numpys(
    channels: int, terms: loops.Terms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums, the cut that is best, and the rows on its sides; one feature has gaps, one has few codes."""
    rng = np.random.default_rng(channels)
    codes = rng.integers(0, 40, (5000, 6)).astype(np.uint8)
    codes[rng.random(5000) < 0.2, 2] = 40
    codes[:, 4] %= 3
    most = 1 << loops.BITS
    values = rng.integers(-most, most + 1, (5000, channels)).astype(np.int32)
    values[:, -1] = abs(values[:, -1])
    values[:2500] = most
    rows = np.flatnonzero(rng.random(5000) < 0.9).astype(np.int32)
    places, units = np.array([40, 40, 40, 40, 3, 40]), np.full(channels, 2.0**-loops.BITS)

    numbers = np.zeros((5000, 2))

    def found() -> Any:
        sums = loops.histograms(codes, values, rows, 41)
        cut = loops.best_cut(sums, places, units, terms, 5000.0)
        given = cut or loops.Cut(1.0, 2, 7, True)
        loops.add_to_rows(numbers.T[1], rows, 0.3)
        return sums, cut, loops.parted(codes[:, given.feature], given, 40, rows)

    sums, cut, (left, right) = found()
    assert sums.sum() == 6 * values[rows].astype(np.int64).sum()
    assert channels == 1 or cut is not None
    monkeypatch.setattr(loops, "_library", None)
    expected, cut_expected, (left_expected, right_expected) = found()
    assert np.array_equal(sums, expected)
    assert cut == cut_expected
    assert np.array_equal(left, left_expected)
    assert np.array_equal(right, right_expected)
    assert len(left) + len(right) == len(rows)
    assert np.array_equal(numbers[:, 1], 0.6 * np.isin(np.arange(5000), rows))


CHECKED = [
    GBDTClassifier(5),
    GBDTRegressor(10),
    XGBClassifier(5),
    RandomForestClassifier(5),
    RandomForestRegressor(5),
]
CHECKED += [LogisticRegression(), SVC(), SVR(), KMeans(2), KNeighborsClassifier(1), KNeighborsRegressor(1)]
CHECKED += [FTRLClassifier(epochs=5), FTMLClassifier(epochs=30), Autoencoder(2, hidden=4, epochs=2)]


@pytest.mark.parametrize(
    "estimator",
    [pytest.param(each, marks=[] if isinstance(each, SVR) else pytest.mark.grids) for each in CHECKED],
    ids=lambda estimator: type(estimator).__name__,
)
def test_they_are_scikit_learns_estimators(estimator: Any) -> None:
    for each, check in estimator_checks_generator(estimator):
        with contextlib.suppress(SkipTest):  # of what is not for such an estimator
            check(each)
