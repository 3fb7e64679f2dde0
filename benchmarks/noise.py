"""Boosted trees with noise for differential privacy: what is left of them, by epsilon. See `geomx/learn/privacy.py`.

    python benchmarks/noise.py

200,000 rows of 10 normal features, labels of a logistic of a linear term plus x0 x1, three quarters to train on; and
scikit-learn's breast cancer, scaled to its range. Ten trees of three levels, 32 bins; AUC on the other rows.
"""

from __future__ import annotations

import numpy as np
from sklearn import datasets, metrics, model_selection

from geomx.learn import Bins, XGBClassifier

ROWS, FEATURES, BINS, DELTA = 200_000, 10, 32, 1e-6


def made() -> tuple[np.ndarray, np.ndarray, Bins]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, FEATURES))
    odds = x @ rng.standard_normal(FEATURES) + x[:, 0] * x[:, 1]
    return (
        x,
        (odds + rng.logistic(size=ROWS) > 0).astype(int),
        Bins.even([-3] * FEATURES, [3] * FEATURES, BINS),
    )


def patients() -> tuple[np.ndarray, np.ndarray, Bins]:
    x, y = datasets.load_breast_cancer(return_X_y=True)
    features = x.shape[1]
    x = (x - x.min(0)) / (x.max(0) - x.min(0))
    return x, y, Bins.even([0] * features, [1] * features, BINS)


def main() -> None:
    for x, y, bins in (made(), patients()):
        known, asked, labels, answers = model_selection.train_test_split(x, y, random_state=0)
        for noise in (0.0, 4.0, 8.0, 16.0, 40.0):
            model = XGBClassifier(10, max_depth=3, noise=noise).fit(known, labels, bins=bins)
            auc = metrics.roc_auc_score(answers, model.decision_function(asked))
            spent = f"{model.privacy_.epsilon(DELTA):.2f}" if noise else "none"
            print(
                f"{len(known):7d} rows   noise {noise:4.1f}   epsilon {spent:>5s}   AUC {auc:.3f}", flush=True
            )


if __name__ == "__main__":
    main()
