"""Numbers that are awkward: far from 0, constant, large, few; and what is said of them."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pytest
from live_runs import place_of, train
from parties import unlike
from sklearn import datasets, preprocessing
from sklearn.exceptions import ConvergenceWarning

from geomx.errors import GeomxError
from geomx.learn import (
    SVR,
    Bins,
    CNNClassifier,
    FTRLClassifier,
    GBDTClassifier,
    KMeans,
    KNeighborsRegressor,
    LambdaMART,
    LogisticRegression,
    RandomForestClassifier,
    RandomForestRegressor,
    RankBoost,
    StandardScaler,
    XGBClassifier,
)
from geomx.learn.over import Over
from geomx.learn.trees.fixed import BITS, unit_for, whole
from geomx.train import LiveRun

DIABETES = datasets.load_diabetes(return_X_y=True)
CANCER = datasets.load_breast_cancer(return_X_y=True)


def test_rows_far_from_0() -> None:
    x, _ = datasets.make_blobs(400, centers=4, random_state=0)
    here, there = KMeans(4).fit(x), KMeans(4).fit(x + 1e8)
    assert there.inertia_ == pytest.approx(here.inertia_, rel=1e-6)
    assert np.allclose(there.cluster_centers_ - 1e8, here.cluster_centers_, atol=1e-6)
    x, y = DIABETES
    near = KNeighborsRegressor(3).fit(x, y).predict(x[:20])
    assert np.allclose(KNeighborsRegressor(3).fit(x + 1e6, y).predict(x[:20] + 1e6), near)
    here, there = (RandomForestRegressor(5).fit(x, y + far).predict(x) - far for far in (0.0, 1e6))
    assert np.allclose(here, there, atol=0.1)


def test_features_far_from_0() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1000, 5))
    y = (x @ rng.standard_normal(5) + rng.logistic(size=1000) > 0).astype(int)
    near = LogisticRegression(C=1e3).fit(x, y)
    for far in (1e3, 1e4, 1e6):
        model = LogisticRegression(C=1e3, max_iter=300).fit(x + far, y)
        assert np.allclose(model.coef_, near.coef_, rtol=1e-2)


def test_a_few_rows_far_apart_have_centres_of_their_own() -> None:
    x = 3.0 ** np.arange(12)[:, None]
    found = KMeans(10).fit(x).cluster_centers_
    assert len(np.unique(found)) == 10


def test_what_is_constant_is_not_cut() -> None:
    x, _ = DIABETES
    forest = RandomForestRegressor(3).fit(x, np.full(len(x), 0.1))
    assert all(len(tree.feature) == 1 for tree in forest.trees_)
    assert np.allclose(forest.predict(x[:3]), 0.1)


def test_large_targets_take_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, total = [0], Over.total

    def counted(self: Over, *arrays: Any) -> Any:
        calls[0] += 1
        return total(self, *arrays)

    monkeypatch.setattr(Over, "total", counted)
    SVR(C=10.0).fit(DIABETES[0], 1e3 * DIABETES[1])
    LogisticRegression().fit(1e3 * CANCER[0], CANCER[1])
    assert calls[0] < 100


def test_too_few_steps_are_told() -> None:
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        LogisticRegression(max_iter=2).fit(*CANCER)


def test_noise_of_few_rows_is_bounded_and_not_kept() -> None:
    x, y = np.random.default_rng(0).random((60, 2)), np.arange(60) % 2
    bins = Bins.even([0.0] * 2, [1.0] * 2, 8)
    model = GBDTClassifier(5, noise=10.0).fit(x, y, bins=bins)
    assert np.abs(model.decision_function(x)).max() < 100.0
    kept = pickle.loads(pickle.dumps(model)).privacy_
    assert vars(kept).keys() == {"_noise", "rho"}


def test_whole_numbers_of_bounds() -> None:
    for bound in (1.0, 0.25, 3.0, 1e-300, 7e8):
        unit = unit_for(bound)
        assert (1 << BITS) // 2 < abs(int(whole(np.array(-bound), unit))) <= 1 << BITS
    assert unit_for(0.0) == 1.0


def test_a_scaler_of_all_rows() -> None:
    x, y = CANCER
    parts = unlike(x, y, 3)

    def main(run: LiveRun) -> Any:
        own = x[parts[place_of(run)]]
        scaler = StandardScaler().fit(own, run=run)
        run.close()
        return scaler.transform(own), scaler.inverse_transform(scaler.transform(own)) - own

    results, _ = train((1, 1, 1), main)
    expected = preprocessing.StandardScaler().fit(x)
    for part, (found, back) in zip(parts, results.values(), strict=True):
        assert np.allclose(found, expected.transform(x[part]), rtol=1e-9)
        assert np.abs(back).max() < 1e-9
    constant = np.ones((5, 2))
    assert np.array_equal(StandardScaler().fit(constant).transform(constant), np.zeros((5, 2)))


def test_several_fits_of_one_run() -> None:
    x, y = CANCER

    def main(run: LiveRun) -> Any:
        first, second = (FTRLClassifier().fit(x, y, run=run).coef_ for _ in range(2))
        model = KMeans(2).fit(x, run=run)
        run.close()
        return np.allclose(first, second) and model.n_iter_ > 0

    results, _ = train((1, 1), main)
    assert all(results.values())


@pytest.mark.parametrize(
    ("here", "there", "what"),
    [
        (lambda: LogisticRegression(C=1.0), lambda: LogisticRegression(C=2.0), "C: 1.0 at A/0, 2.0 at B/0"),
        (
            lambda: GBDTClassifier(2),
            lambda: GBDTClassifier(2, learning_rate=0.5),
            "learning_rate: 0.1 at A/0, 0.5 at B/0",
        ),
        (lambda: KMeans(2, init=[[0.0] * 30] * 2), lambda: KMeans(2, init=[[1.0] * 30] * 2), "init: "),
        (FTRLClassifier, lambda: FTRLClassifier(random_state=1), "random_state: 0 at A/0, 1 at B/0"),
        (lambda: KMeans(2), StandardScaler, "kinds of estimators: KMeans at A/0, StandardScaler at B/0"),
    ],
)
def test_parameters_are_agreed_upon(here: Any, there: Any, what: str) -> None:
    x, y = CANCER

    def main(run: LiveRun) -> None:
        (there if place_of(run) else here)().fit(x, y, run=run)

    with pytest.raises(GeomxError, match=f"different {what}"):
        train((1, 1), main)


def test_names_of_features_are_agreed_upon() -> None:
    pytest.importorskip("pandas")
    x = datasets.load_iris(as_frame=True).data

    def main(run: LiveRun) -> None:
        KMeans(3).fit(x[x.columns[::-1]] if place_of(run) else x, run=run)

    with pytest.raises(GeomxError, match="different features"):
        train((1, 1), main)


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (LogisticRegression(C=-1.0), "C=-1.0): a number above 0"),
        (GBDTClassifier(learning_rate=float("nan")), "learning_rate=nan): a number above 0"),
        (XGBClassifier(reg_lambda=-100.0), "reg_lambda=-100.0): a number from 0"),
        (RandomForestClassifier(max_bins=256), "max_bins=256): a number from 2 to 255"),
        (RandomForestClassifier(n_estimators=0), "n_estimators=0): a number from 1"),
        (KMeans(0), "n_clusters=0): a number from 1"),
        (CNNClassifier(epochs="all"), "epochs='all'): a number from 1"),  # type: ignore[arg-type]
    ],
)
def test_parameters_that_cannot_be(model: Any, what: str) -> None:
    x, y = datasets.load_digits(return_X_y=True)
    with pytest.raises(ValueError, match=re.escape(what)):
        model.fit(x, y)


def test_labels_of_one_kind() -> None:
    x, y = CANCER

    def main(run: LiveRun) -> None:
        LogisticRegression().fit(x, y.astype(str) if place_of(run) else y, run=run)

    with pytest.raises(GeomxError, match="labels are numbers at A/0, texts at B/0"):
        train((1, 1), main)


def test_bins_of_other_features() -> None:
    x, y = CANCER
    bins = Bins.even([0.0] * 3, [1.0] * 3, 8)
    for model in (RandomForestClassifier(2), GBDTClassifier(2)):
        with pytest.raises(ValueError, match="bins of 3 features for rows of 30"):
            model.fit(x, y, bins=bins)
    with pytest.raises(ValueError, match="bins of 3 features for rows of 30"):
        RankBoost(2).fit(x, y, np.zeros(len(y)), bins=bins)
    with pytest.raises(ValueError, match=r"features \[1\]: low is to be below high"):
        Bins.even([0.0, 2.0], [1.0, 1.0], 8)
    with pytest.raises(TypeError, match="for their number give max_bins"):
        GBDTClassifier(2).fit(x, y, bins=32)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rows of X are flat"):
        CNNClassifier((1, 4, 4)).fit(x, y)
    with pytest.raises(ValueError, match="how relevant, from 0 to 50"):
        LambdaMART(2).fit(x, 1024 * y, np.zeros(len(y)))
