"""Sandblaster L-BFGS beside scipy's: the same steps, whoever computes which portion, and however slow one is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from live_runs import begin, dies, place_of, sleep, train
from scipy.optimize import minimize

from geomx.errors import Disagreement, GeomxError, NodeLost, NotFinite, RunFailed, Unsupported
from geomx.rounds.losses import Losses
from geomx.simulate.simulator import Network, Simulator
from geomx.train import LiveRun, Settings
from geomx.wire.session import Patience

PARAMETERS, SAMPLES, PORTIONS = 25, 480, 24


def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, PARAMETERS))
    return x, np.where(x @ rng.normal(size=PARAMETERS) + rng.normal(size=SAMPLES) > 0, 1.0, -1.0)


def logistic(
    w: Any, portion: int | None = None, portions: int = PORTIONS, first: int = 0
) -> tuple[float, Any]:
    x, y = data()
    if portion is not None:
        some = np.array_split(np.arange(SAMPLES), portions)[first + portion]
        x, y = x[some], y[some]
    share = len(y) / SAMPLES
    margin = -y * (x @ w)
    value = np.logaddexp(0.0, margin).sum() + share * 0.05 * w @ w
    return float(value), -(x.T @ (y / (1.0 + np.exp(-margin)))) + share * 0.1 * w


@pytest.mark.parametrize(("parties", "shards"), [((1,), 1), ((2, 1), 1), ((1, 1), 3), ((2, 2), 2)])
def test_it_takes_the_steps_of_scipys(parties: tuple[int, ...], shards: int) -> None:
    theirs: list[float] = [logistic(np.zeros(PARAMETERS))[0]]
    found = minimize(
        logistic, np.zeros(PARAMETERS), jac=True, method="L-BFGS-B",
        options={"maxcor": 10, "gtol": 1e-5, "ftol": 2.2e-9},
        callback=lambda w: theirs.append(logistic(w)[0]),
    )  # fmt: skip

    def main(run: LiveRun) -> Any:
        return run.minimize(logistic, np.full(PARAMETERS, float(place_of(run))), PORTIONS)

    results, _ = train(parties, main, shards=shards)
    first = results["A/0"]
    assert 0 < first.sent_bytes < 10_000 * shards * first.iterations
    for mine in results.values():
        assert (mine.iterations, mine.evaluations) == (found.nit, found.nfev)
        assert np.allclose(mine.values, theirs, rtol=1e-12)
        assert np.allclose(mine.point, found.x, atol=1e-8)
        assert np.array_equal(mine.point, first.point)
        assert mine.converged
        assert "falls no more" in mine.why


def test_portions_of_a_partys_own_data_are_its_workers() -> None:
    asked: dict[str, set[int]] = {}

    def main(run: LiveRun) -> Any:
        first = 0 if run.party == "A" else 16

        def evaluate(w: Any, portion: int) -> tuple[float, Any]:
            asked.setdefault(run.party, set()).add(portion)
            return logistic(w, portion, first=first)

        return run.minimize(evaluate, np.zeros(PARAMETERS), {"A": 16, "B": 8}).point

    results, _ = train((2, 1), main, shards=2)
    assert asked == {"A": set(range(16)), "B": set(range(8))}
    best = minimize(logistic, np.zeros(PARAMETERS), jac=True, method="L-BFGS-B").x
    assert np.allclose(results["B/0"], best, atol=1e-4)


def seconds(slow: float, portions: int) -> float:
    """Of the virtual clock, for eight steps of four workers, of whom one is so many times as slow."""

    def main(run: LiveRun) -> float:
        def evaluate(w: Any, portion: int) -> tuple[float, Any]:
            sleep(run, 2.0 / portions * (slow if run.name == "B/0" else 1.0))
            return logistic(w, portion, portions)

        run.barrier()
        before = run._timeline.now()
        run.minimize(evaluate, np.zeros(PARAMETERS), portions, iterations=8)
        return run._timeline.now() - before

    return max(train((2, 2), main)[0].values())


def test_one_that_is_slow_costs_its_share_and_little_more() -> None:
    """Of four workers, one does an eighth of its share; what remains is work for 3.125."""
    assert seconds(8.0, 240) <= 1.3 * seconds(1.0, 240)


LOST = {"losses": Losses("continue", 60.0), "patience": Patience(0.1, 0.4)}


@pytest.mark.parametrize("victims", [("B/0",), ("B", "B/0")])
def test_portions_of_the_lost_are_computed_by_others(victims: tuple[str, ...]) -> None:
    def main(run: LiveRun) -> Any:
        def evaluate(w: Any, portion: int) -> tuple[float, Any]:
            sleep(run, 0.02)
            return logistic(w, portion)

        return run.minimize(evaluate, np.zeros(PARAMETERS), PORTIONS).values

    calm, _ = train((2, 1), main)
    found, _ = train((2, 1), main, Settings(on_loss="continue"), faults=dies(*victims, at_s=0.7), **LOST)
    assert np.allclose(found["A/1"], calm["A/1"], rtol=1e-10)


def test_two_in_a_row_and_beside_a_table() -> None:
    def main(run: LiveRun) -> Any:
        table = run.table("t", 5, rule="add")
        one = run.minimize(logistic, np.zeros(PARAMETERS), PORTIONS, iterations=3)
        table.push([1], [1.0])
        two = run.minimize(logistic, one.point, 7, gradient_tolerance=1e-3)
        return one.iterations, one.value > two.value, table.pull([1]).item()

    results, _ = train((1, 1), main, shards=2)
    assert set(results.values()) == {(3, True, 2.0)}


def test_two_in_a_row_do_not_see_each_other() -> None:
    """The slow link's worker reads its result before the next call begins."""

    def main(run: LiveRun) -> list[float]:
        return [
            float(
                run.minimize(
                    lambda w, _, at=at: (float((w - at) @ (w - at)), 2 * (w - at)), np.full(3, 99.0), 4
                ).point[0]
            )
            for at in range(4)
        ]

    def faults(simulator: Simulator, _: Any) -> None:
        simulator.link("B", "global/0", Network(rate_mbps=1000.0, delay_ms=40.0))

    results, _ = train((1, 1), main, faults=faults)
    assert np.allclose(results["A/0"], range(4), atol=1e-5)
    assert results["B/0"] == results["A/0"]


def test_a_gradient_that_is_none_is_told() -> None:
    def main(run: LiveRun) -> Any:
        return run.minimize(lambda w, _: (float(w @ w), -2 * w[::-1][::-1]), np.ones(3), 4)

    results, _ = train((1, 1), main)
    found = results["A/0"]
    assert not found.converged
    assert "see that the gradient is that of the value" in found.why
    assert np.array_equal(found.point, np.ones(3))


@pytest.mark.parametrize(("victim", "named"), [("A/0", "A/0"), ("B/0", "B")])
def test_who_is_lost_for_good_is_named(victim: str, named: str) -> None:
    def main(run: LiveRun) -> Any:
        def evaluate(w: Any, portion: int) -> tuple[float, Any]:
            sleep(run, 0.02)
            return logistic(w, portion)

        return run.minimize(evaluate, np.zeros(PARAMETERS), {"A": 12, "B": 12}).values

    with pytest.raises((NodeLost, RunFailed)) as caught:
        train((2, 1), main, Settings(on_loss="continue"), faults=dies(victim, at_s=0.7), **LOST)
    assert caught.value.node == named


def refused(match: str, main: Any, error: type[GeomxError] = Unsupported, **how: Any) -> None:
    with pytest.raises(error, match=match):
        train((1, 1), main, **how)


def test_what_cannot_be_is_told() -> None:
    def of(evaluate: Any, portions: Any = 4) -> Any:
        return lambda run: run.minimize(evaluate, np.zeros(3), portions)

    refused("gradient of 2 numbers for 3", of(lambda w, _: (0.0, np.zeros(2))))
    refused("portion . gives NaN", of(lambda w, _: (float("nan"), w)), NotFinite)
    refused("portions=0", of(lambda w, _: (0.0, w), 0))
    refused("portions=2.5", of(lambda w, _: (0.0, w), 2.5))
    refused("complex", of(lambda w, _: (0.0, w.astype(complex))))
    refused("history=0", lambda run: run.minimize(lambda w, _: (0.0, w), np.zeros(3), 4, history=0))
    refused(
        "portions={'A': 4, 'B': 4}.*portions={'A': 4, 'B': 12}",
        lambda run: of(lambda w, _: (0.0, w), {"A": 4, "B": 4 if run.name == "A/0" else 12})(run),
        Disagreement,
    )
    refused("one or more for each of A, B", of(lambda w, _: (0.0, w), {"A": 2}))
    refused(
        "vectors are in no log", of(lambda w, _: (0.0, w)), GeomxError, is_durable=True, replicas=1, shards=2
    )
    refused("set run.calls = true", lambda run: (begin(run), of(lambda w, _: (0.0, w))(run)))
