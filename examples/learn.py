"""Boosted trees over two hospitals whose patients differ: none leaves its site, and the model is that of both together.

geomx run examples/learn.toml
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import geomx
from geomx.learn import GBDTClassifier


def main() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    known, asked, labels, answers = train_test_split(x, y, random_state=0)
    run = geomx.join()
    order = np.argsort(labels, kind="stable")  # one has nearly all of the ill
    own = np.array_split(order, [len(order) // 3] if len(run.workers) > 1 else 1)[run.workers.index(run.name)]

    here = GBDTClassifier(20, max_bins=32).fit(known[own], labels[own]) if len(set(labels[own])) > 1 else None
    both = GBDTClassifier(20, max_bins=32).fit(known[own], labels[own], run=run)
    alone = "cannot learn from one kind alone" if here is None else f"{here.score(asked, answers):.2%} alone"
    print(f"{run.party}: {len(own)} patients, {alone}", flush=True)
    run.barrier()
    if run.is_first:
        together = GBDTClassifier(20, max_bins=32).fit(known[order], labels[order], bins=both.bins_)
        same = np.array_equal(both.decision_function(asked), together.decision_function(asked))
        print(
            f"over both {both.score(asked, answers):.2%}, the same bits as on one machine: {same}", flush=True
        )
    run.close()


if __name__ == "__main__":
    main()
