"""LightGBM predicts what ours do, from a file that ours have written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import datasets
from sklearn.exceptions import NotFittedError

from geomx import learn
from geomx.errors import FileUnwritable
from geomx.learn.trees.saving import save_lightgbm

lightgbm = pytest.importorskip("lightgbm")

X, Y = datasets.load_diabetes(return_X_y=True)
THREE, TWO = np.digitize(Y, [100, 200]), Y > 100
RNG = np.random.default_rng(3)
FEATURES = np.arange(X.shape[1])
GAPS = np.where((RNG.random(X.shape) < 0.2) & (FEATURES != 4), np.nan, X)  # one feature has all its values
TELLING = np.where(TWO[:, None] & (FEATURES == 2), np.nan, X)
ASKED = np.where(RNG.random(X.shape) < 0.2, np.nan, 2.0 * X)
QUERIES = np.arange(len(X)) // 17


@pytest.mark.parametrize(
    ("model", "x", "y", "says"),
    [
        (learn.GBDTClassifier(8), X, TWO, "\nobjective=binary sigmoid:1\n"),
        (learn.GBDTClassifier(8), GAPS, THREE, "\nobjective=multiclass num_class:3\n"),
        (learn.GBDTRegressor(8), X, Y, "\nobjective=regression\n"),
        (learn.XGBClassifier(8, reg_alpha=0.1, gamma=0.01), GAPS, TWO, "\nobjective=binary"),
        (learn.XGBRegressor(8), GAPS, Y, "\nobjective=regression\n"),
        (learn.XGBClassifier(3), TELLING, TWO, "\nthreshold=1.7976931348623157e+308\n"),  # a gap or any value
        (learn.XGBClassifier(3, gamma=1e9), GAPS, THREE, "\nnum_leaves=1\n"),
        (learn.LambdaMART(8), GAPS, THREE, "\nobjective=lambdarank\n"),
        (learn.GBRank(8), X, THREE, "\nobjective=lambdarank\n"),
        (learn.RandomForestClassifier(5), GAPS, THREE, "\naverage_output\n"),
        (learn.RandomForestClassifier(5, max_depth=3), X, TWO, "\nnum_tree_per_iteration=2\n"),
        (learn.RandomForestRegressor(5), GAPS, Y, "\naverage_output\n"),
    ],
    ids=lambda each: each.strip() if isinstance(each, str) else type(each).__name__,
)  # fmt: skip
def test_lightgbm_predicts_the_same(model: Any, x: Any, y: Any, says: str, tmp_path: Path) -> None:
    path = tmp_path / "model.txt"
    model.fit(x, y, **({"groups": QUERIES} if isinstance(model, learn.LambdaMART | learn.GBRank) else {}))
    save_lightgbm(model, path)
    assert says in path.read_text()
    booster = lightgbm.Booster(model_file=path)
    for rows in (x, ASKED):
        found = booster.predict(rows)
        expected = model.predict_proba(rows) if hasattr(model, "classes_") else model.predict(rows)
        expected = expected[:, 1] if found.ndim < expected.ndim else expected
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_what_cannot_be_saved_says_why(tmp_path: Path) -> None:
    for model in (learn.RankBoost(2), learn.AdaRank(2)):
        with pytest.raises(TypeError, match="no form in LightGBM; give GBDT"):
            save_lightgbm(model.fit(X, THREE, QUERIES), tmp_path / "model.txt")
    with pytest.raises(NotFittedError):
        save_lightgbm(learn.GBDTRegressor(), tmp_path / "model.txt")
    with pytest.raises(ValueError, match="n_estimators=0"):
        save_lightgbm(learn.GBDTRegressor(0).fit(X, Y), tmp_path / "model.txt")
    with pytest.raises(FileUnwritable):
        save_lightgbm(learn.GBDTRegressor(1).fit(X, Y), tmp_path / "none" / "model.txt")
    assert not list(tmp_path.iterdir())
