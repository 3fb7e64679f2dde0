"""k-means and neighbours: over parties whose rows differ they are one machine's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from live_runs import place_of, train
from parties import unlike
from sklearn import cluster, datasets, neighbors

from geomx.learn import KMeans, KNeighborsClassifier, KNeighborsRegressor
from geomx.train import LiveRun

DIGITS = datasets.load_digits(return_X_y=True)


def test_clusters_are_one_machines() -> None:
    x, y = DIGITS
    rows = np.concatenate(unlike(x, y, 3))
    one = KMeans(10, random_state=3).fit(x[rows])
    parts = unlike(x, y, 3)

    def main(run: LiveRun) -> Any:
        found = KMeans(10, random_state=3).fit(x[parts[place_of(run)]], run=run)
        run.close()
        return found.cluster_centers_, found.inertia_, found.labels_

    results, _ = train((1, 1, 1), main)
    for centres, inertia, _ in results.values():
        assert np.allclose(centres, one.cluster_centers_, rtol=1e-9, atol=1e-9)
        assert inertia == pytest.approx(one.inertia_, rel=1e-9)
    assert np.array_equal(np.concatenate([labels for _, _, labels in results.values()]), one.labels_)
    theirs = cluster.KMeans(10, n_init=5, random_state=0).fit(x)
    assert one.inertia_ < 1.03 * theirs.inertia_


def test_given_centres_move_as_the_reference_librarys_do() -> None:
    x, _ = DIGITS
    mine = KMeans(10, init=x[:10], tol=0.0).fit(x)
    theirs = cluster.KMeans(10, init=x[:10], n_init=1, tol=0.0, algorithm="lloyd").fit(x)
    assert np.allclose(mine.cluster_centers_, theirs.cluster_centers_, atol=1e-8)


@pytest.mark.parametrize(
    ("ours", "theirs", "data"),
    [
        (KNeighborsClassifier, neighbors.KNeighborsClassifier, DIGITS),
        (KNeighborsRegressor, neighbors.KNeighborsRegressor, datasets.load_diabetes(return_X_y=True)),
    ],
)
def test_neighbours_are_one_machines(ours: Any, theirs: Any, data: Any) -> None:
    """Each worker asks about rows of its own, one about none."""
    x, y = data
    known, asked = slice(0, len(y) - 100), slice(len(y) - 100, None)
    parts = unlike(x[known], y[known], 3)
    queries = np.split(x[asked], [60])

    def main(run: LiveRun) -> Any:
        own, place = parts[place_of(run)], place_of(run)
        model = ours(7).fit(x[known][own], y[known][own], run=run)
        found = model.predict(queries[place] if place < 2 else np.empty((0, x.shape[1])))
        run.close()
        return found

    results, _ = train((1, 1, 1), main)
    expected = theirs(7).fit(x[known], y[known]).predict(x[asked])
    found = np.concatenate(list(results.values()))
    assert np.allclose(found, expected)


def test_fewer_rows_than_neighbours_at_one_worker() -> None:
    x, y = DIGITS
    parts = [np.arange(2), np.arange(2, 500)]

    def main(run: LiveRun) -> Any:
        own = parts[place_of(run)]
        found = KNeighborsClassifier(5).fit(x[own], y[own], run=run).predict(x[600:640])
        run.close()
        return found

    results, _ = train((1, 1), main)
    expected = neighbors.KNeighborsClassifier(5).fit(x[:500], y[:500]).predict(x[600:640])
    assert np.array_equal(results["A/0"], expected)
    assert np.array_equal(results["B/0"], expected)
