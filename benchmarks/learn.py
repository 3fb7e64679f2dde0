"""Trains each algorithm of `geomx.learn` over three unequal parties of unlike rows, beside one machine and a reference.

    python benchmarks/learn.py                 all, over 100 Mbit/s and 30 ms; out/learn.json
    python benchmarks/learn.py kmeans gbdt     some

Each is trained by the reference library on all rows, by ours on all rows, and by ours in a run of three parties of one
worker each, who have a sixth, a third and a half of the rows, mostly of other labels. Quality is on rows that nobody
has trained on. `--worker` is what each process of a run is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import cluster, datasets, ensemble, linear_model, metrics, model_selection, neighbors, svm

from geomx import learn

OUT = Path("out/learn.json")
DESCRIPTION = """
[run]
script = "{script}"
arguments = ["--worker", "{name}"]
[wan]
link = {{ rate_mbps = 100, delay_ms = 30 }}
[[party]]
name = "A"
workers = 1
[[party]]
name = "B"
workers = 1
[[party]]
name = "C"
workers = 1
"""
Data = tuple[np.ndarray, np.ndarray, np.ndarray]  # rows, targets, queries


@dataclass(frozen=True)
class Case:
    """`quality(model, x, y, queries)`: the higher the better."""

    data: str
    metric: str
    reference: Callable[[], Any]
    ours: Callable[[], Any]
    quality: Callable[..., float]
    has_queries: bool = False


def scaled(data: Any) -> Data:
    x, y = data.data.astype(np.float64), data.target
    spread = x.std(0)
    return (x - x.mean(0)) / np.where(spread > 0, spread, 1.0), y, np.arange(len(y)) // 17


def load(name: str) -> Data:
    """A data set that scikit-learn ships."""
    found = scaled(getattr(datasets, f"load_{name.partition(',')[0]}")())
    if name.endswith("queries"):  # the sicker of 17 patients first
        return found[0], np.digitize(found[1], [80, 140, 200, 260]), found[2]
    return found


def accuracy(model: Any, x: Any, y: Any, _: Any) -> float:
    return float((model.predict(x) == y).mean())


def explained(model: Any, x: Any, y: Any, _: Any) -> float:
    return float(metrics.r2_score(y, model.predict(x)))


def ndcg(model: Any, x: Any, y: Any, queries: Any) -> float:
    scores = model.predict(x)
    each = [queries == query for query in np.unique(queries)]
    return float(np.mean([metrics.ndcg_score([y[own]], [scores[own]]) for own in each if own.sum() > 1]))


def tightness(model: Any, x: Any, *_: Any) -> float:
    """The share of the rows' variance that is between clusters."""
    centres = model.cluster_centers_
    apart = ((x[:, None] - centres[None]) ** 2).sum(2).min(1).sum()
    return float(1.0 - apart / ((x - x.mean(0)) ** 2).sum())


def regression(**how: Any) -> Any:
    return ensemble.HistGradientBoostingRegressor(early_stopping=False, **how)


def classification(**how: Any) -> Any:
    return ensemble.HistGradientBoostingClassifier(early_stopping=False, **how)


CASES = {
    "logistic": Case("digits", "accuracy", lambda: linear_model.LogisticRegression(max_iter=1000),
                     learn.LogisticRegression, accuracy),
    "svc": Case("breast_cancer", "accuracy", lambda: svm.LinearSVC(dual=False), learn.SVC, accuracy),
    "svr": Case("diabetes", "R2", lambda: svm.LinearSVR(loss="squared_epsilon_insensitive", dual=False, C=1.0),
                learn.SVR, explained),
    "kmeans": Case("digits", "share of variance", lambda: cluster.KMeans(10, n_init=10, random_state=0),
                   lambda: learn.KMeans(10), tightness),
    "knn": Case("digits", "accuracy", lambda: neighbors.KNeighborsClassifier(5),
                lambda: learn.KNeighborsClassifier(5), accuracy),
    "gbdt": Case("breast_cancer", "accuracy", classification, learn.GBDTClassifier, accuracy),
    "xgboost": Case("breast_cancer", "accuracy", lambda: classification(l2_regularization=1.0),
                    learn.XGBClassifier, accuracy),
    "gbdt regression": Case("diabetes", "R2", lambda: regression(max_iter=50),
                            lambda: learn.GBDTRegressor(50), explained),
    "random forest": Case("digits", "accuracy", lambda: ensemble.RandomForestClassifier(100, random_state=0),
                          lambda: learn.RandomForestClassifier(100), accuracy),
    "ranksvm": Case("diabetes, queries", "NDCG", linear_model.Ridge, lambda: learn.RankSVM(0.1), ndcg, True),
    "lambdamart": Case("diabetes, queries", "NDCG", lambda: regression(max_iter=50),
                       lambda: learn.LambdaMART(50), ndcg, True),
    "gbrank": Case("diabetes, queries", "NDCG", lambda: regression(max_iter=50), lambda: learn.GBRank(50), ndcg, True),
    "rankboost": Case("diabetes, queries", "NDCG", lambda: regression(max_iter=50),
                      lambda: learn.RankBoost(100), ndcg, True),
    "adarank": Case("diabetes, queries", "NDCG", linear_model.Ridge, lambda: learn.AdaRank(50), ndcg, True),
}  # fmt: skip


def split(case: Case) -> tuple[Data, Data]:
    """Rows to train on, and to judge by; queries stay whole."""
    x, y, queries = load(case.data)
    groups = queries if case.has_queries else np.arange(len(y))
    cut = model_selection.GroupShuffleSplit(1, test_size=0.25, random_state=0)
    known, asked = next(cut.split(x, y, groups))
    return (x[known], y[known], queries[known]), (x[asked], y[asked], queries[asked])


def parts_of(case: Case, y: Any, queries: Any) -> list[Any]:
    """The rows of each party: a sixth, a third, a half, mostly of other labels; or of other queries."""
    noise = 0.3 * y.std() * np.random.default_rng(0).standard_normal(len(y))
    order = np.argsort(queries if case.has_queries else y + noise, kind="stable")
    if case.has_queries:
        names = np.unique(queries)
        shares = np.split(names, [len(names) // 6, len(names) // 2])
        return [np.flatnonzero(np.isin(queries, share)) for share in shares]
    return np.split(order, [len(y) // 6, len(y) // 2])


def fitted(case: Case, model: Any, x: Any, y: Any, queries: Any, **how: Any) -> Any:
    is_ours = type(model).__module__.startswith("geomx")
    return model.fit(x, y, queries, **how) if case.has_queries and is_ours else model.fit(x, y, **how)


def worker(name: str) -> None:
    """One of three; the first tells how good the model is."""
    import geomx  # noqa: PLC0415

    case = CASES[name]
    (x, y, queries), asked = split(case)
    run = geomx.join()
    own = parts_of(case, y, queries)[run.workers.index(run.name)]
    run.barrier()
    begin = time.perf_counter()
    model = fitted(case, case.ours(), x[own], y[own], queries[own], run=run)
    seconds = time.perf_counter() - begin
    quality = case.quality(model, *asked)
    run.barrier()
    if run.is_first:
        print(f"RESULT {json.dumps({'parties': quality, 'seconds': seconds})}", flush=True)
    run.close()


def measured(name: str) -> dict[str, Any]:
    """A row of the table."""
    case = CASES[name]
    (x, y, queries), asked = split(case)
    row: dict[str, Any] = {"algorithm": name, "data": case.data, "metric": case.metric}
    row["reference"] = case.quality(fitted(case, case.reference(), x, y, queries), *asked)
    rows = np.concatenate(parts_of(case, y, queries))  # as they lie in the run
    row["alone"] = case.quality(fitted(case, case.ours(), x[rows], y[rows], queries[rows]), *asked)
    with tempfile.TemporaryDirectory() as folder:
        path, report = Path(folder) / "learn.toml", Path(folder) / "report.json"
        path.write_text(DESCRIPTION.format(script=Path(__file__).resolve(), name=name))
        command = [sys.executable, "-m", "geomx", "run", str(path), "--plain", "--report", str(report)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        output = subprocess.run(command, capture_output=True, text=True, env=env, check=True).stdout
        told = json.loads(report.read_text())
    (line,) = [line for line in output.splitlines() if "RESULT " in line]
    row |= json.loads(line.split("RESULT ")[1])
    row["wan_bytes"] = told["wan_bytes_up"] + told["wan_bytes_down"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("algorithms", nargs="*")
    parser.add_argument("--worker", choices=CASES)
    chosen = parser.parse_args()
    if chosen.worker:
        worker(chosen.worker)
        return
    rows = []
    for name in chosen.algorithms or CASES:
        row = measured(name)
        rows.append(row)
        told = "  ".join(f"{key} {row[key]:.4f}" for key in ("reference", "alone", "parties"))
        traffic = f"{row['wan_bytes'] / 1e6:.2f} MB over the WAN in {row['seconds']:.1f} s"
        print(f"{name:16s} {row['data']:18s} {row['metric']:18s} {told}  {traffic}", flush=True)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    print(f"{OUT}")


if __name__ == "__main__":
    main()
