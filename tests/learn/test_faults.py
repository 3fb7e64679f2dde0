"""A worker is lost in the middle of a fit: the run ends, waits or goes on as its policy says, and names who it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from live_runs import dies, place_of, train
from parties import unlike
from sklearn import datasets

from geomx.errors import RunFailed
from geomx.learn import GBDTClassifier, KMeans, LogisticRegression, RandomForestClassifier
from geomx.rounds.losses import Losses
from geomx.simulate.simulator import Network
from geomx.train import LiveRun, Settings
from geomx.wire.session import Patience

X, Y = datasets.load_breast_cancer(return_X_y=True)
X = (X - X.mean(0)) / X.std(0)
PARTS = unlike(X, Y, 3)
LEFT = np.concatenate([PARTS[0], PARTS[2]])
PATIENCE = Patience(heartbeat_s=0.1, timeout_s=0.4)
LINKS = Network(rate_mbps=100.0, delay_ms=10.0)


def fitted(make: Callable[[], Any], policy: str, at_s: float, back_s: float | None = None) -> dict[str, Any]:
    """By worker; the second party's is lost."""

    def main(run: LiveRun) -> Any:
        own = PARTS[place_of(run)]
        model = make().fit(X[own], Y[own], run=run)
        run.close()
        return model

    faults = dies("B/0", at_s=at_s, back_s=back_s)
    how: dict[str, Any] = {"losses": Losses(policy, 20.0), "patience": PATIENCE}  # type: ignore[arg-type]
    results, _ = train((1, 1, 1), main, Settings(on_loss=policy), network=LINKS, faults=faults, **how)  # type: ignore[arg-type]
    return results


@pytest.mark.parametrize("make", [lambda: KMeans(5, tol=0.0), lambda: GBDTClassifier(5)])
@pytest.mark.parametrize("policy", ["stop", "wait"])
@pytest.mark.parametrize("at_s", [0.5, 1.1])
def test_a_run_that_stops_or_waits_names_who_is_lost(
    make: Callable[[], Any], policy: str, at_s: float
) -> None:
    with pytest.raises(RunFailed, match="B/0 is lost"):
        fitted(make, policy, at_s)


@pytest.mark.parametrize("make", [lambda: KMeans(5, tol=0.0), lambda: GBDTClassifier(5)])
def test_one_that_is_started_again_has_not_what_the_others_have(make: Callable[[], Any]) -> None:
    with pytest.raises(RunFailed, match="where B/0 called map"):
        fitted(make, "wait", 0.8, back_s=1.6)


@pytest.mark.parametrize("at_s", [0.5, 0.7])
def test_sums_go_on_with_the_rows_that_are_left(at_s: float) -> None:
    results = fitted(lambda: KMeans(5, tol=0.0), "continue", at_s)
    centres = results["A/0"].cluster_centers_
    assert np.array_equal(centres, results["C/0"].cluster_centers_)
    again = KMeans(5, init=centres, max_iter=1, tol=0.0).fit(X[LEFT])
    assert np.allclose(again.cluster_centers_, centres, atol=1e-9)
    results = fitted(LogisticRegression, "continue", at_s)
    of_left = LogisticRegression().fit(X[LEFT], Y[LEFT])
    assert np.allclose(results["A/0"].coef_, of_left.coef_, atol=1e-8)


@pytest.mark.parametrize("make", [lambda: GBDTClassifier(5), lambda: RandomForestClassifier(8)])
def test_trees_are_of_all_rows_or_none(make: Callable[[], Any]) -> None:
    for at_s in (0.6, 0.75):
        with pytest.raises(RunFailed, match="failed at B/0: it was lost in the middle of a fit"):
            fitted(make, "continue", at_s)
