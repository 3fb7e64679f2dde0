"""Models of trees as LightGBM's text (version 4), for its Booster and for others that serve such models.

    lightgbm.Booster(model_file=path).predict(x)  =  ours: predict_proba(x) of classes, predict(x) of all others

Of two boosted classes LightGBM has only the second one's column. It knows no start and no rate: leaves have what is
added, those of the first round with the start. A forest's trees are there once for each class and are averaged, with no
objective, so that shares of classes stay what they are. What the text lacks: names of features and classes, and counts
of rows, so that `pred_contrib` gives NaN. To LightGBM values within 1e-35 of 0 are 0. Source: LightGBM's
`gbdt_model_text.cpp` and `tree.h`.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from geomx.errors import FileUnwritable
from geomx.learn.over import Floats
from geomx.learn.trees.boosting import GBDTClassifier, GBDTRegressor, GBRank, LambdaMART
from geomx.learn.trees.forest import RandomForestClassifier, RandomForestRegressor
from geomx.learn.trees.growing import LEAF, Tree

Boosting = GBDTClassifier | GBDTRegressor | LambdaMART | GBRank  # XGB... are GBDT...
Forest = RandomForestClassifier | RandomForestRegressor
DEFAULT_LEFT, MISSING_IS_NAN = 2, 2 << 2  # bits of a decision


def save_lightgbm(model: Boosting | Forest, path: str | PathLike[str]) -> None:
    """Write a model so that `lightgbm.Booster(model_file=path)` predicts what it predicts.

    Args:
        model: One of `GBDT...`, `XGB...`, `LambdaMART`, `GBRank`, `RandomForest...`, fitted.
        path: The file; what it had is lost.

    Raises:
        FileUnwritable: It cannot be written.
        NotFittedError: The model has not been fitted.
        TypeError: It is of another class.
        ValueError: It has no trees.
    """
    if not isinstance(model, Boosting | Forest):
        known = "GBDT..., XGB..., LambdaMART, GBRank or RandomForest..."
        raise TypeError(f"{type(model).__name__} has no form in LightGBM; give {known}")
    check_is_fitted(model)
    if not model.trees_:
        raise ValueError(f"{type(model).__name__} has no trees: n_estimators={model.n_estimators}")
    text = _text(model)
    try:
        Path(path).write_text(text, encoding="ascii", newline="\n")
    except OSError as error:
        raise FileUnwritable(path, error.strerror or str(error)) from error


def _text(model: Boosting | Forest) -> str:
    rounds = _rounds(model)
    trees = [
        f"Tree={number}\n{_tree(tree, values)}\n\n"
        for number, (tree, values) in enumerate(each for made in rounds for each in made)
    ]
    outputs, cuts = len(rounds[0]), model.bins_.cuts
    head = [
        "tree",
        "version=v4",
        f"num_class={outputs}",
        f"num_tree_per_iteration={outputs}",
        "label_index=0",
        f"max_feature_idx={model.n_features_in_ - 1}",
        *_objective(model),
        "feature_names=" + " ".join(f"Column_{feature}" for feature in range(model.n_features_in_)),
        "feature_infos=" + " ".join(f"[{each[0]}:{each[-1]}]" if len(each) else "none" for each in cuts),
        f"tree_sizes={_row([len(tree) for tree in trees])}",
    ]
    foot = "end of trees\n\nparameters:\nend of parameters\n\npandas_categorical:null\n"
    return "\n".join(head) + "\n\n" + "".join(trees) + foot


def _objective(model: Boosting | Forest) -> list[str]:
    """Lines of the head that tell what is made of the sums over trees."""
    if isinstance(model, RandomForestClassifier):
        return ["average_output"]
    if isinstance(model, RandomForestRegressor):
        return ["objective=regression", "average_output"]
    if isinstance(model, GBDTRegressor):
        return ["objective=regression"]
    if isinstance(model, GBDTClassifier):
        classes = len(model.classes_)
        return ["objective=binary sigmoid:1" if classes == 2 else f"objective=multiclass num_class:{classes}"]
    return ["objective=lambdarank"]


def _rounds(model: Boosting | Forest) -> list[list[tuple[Tree, Floats]]]:
    """Of each round, for each output: a tree, and what its nodes add."""
    if isinstance(model, Forest):
        return [[(tree, values) for values in tree.value.T] for tree in model.trees_]
    rounds = [[(tree, model.learning_rate * tree.value[:, 0]) for tree in trees] for trees in model.trees_]
    rounds[0] = [
        (tree, start + values) for start, (tree, values) in zip(model.start_, rounds[0], strict=True)
    ]
    return rounds


def _tree(tree: Tree, values: Floats) -> str:
    """LightGBM counts nodes that are cut and leaves apart; a child that is a leaf is the complement of its number."""
    is_leaf = tree.feature == LEAF
    inner = ~is_leaf
    number = np.where(is_leaf, ~(np.cumsum(is_leaf) - 1), np.cumsum(inner) - 1)
    left = tree.left[inner]
    lines = {
        "num_leaves": [int(is_leaf.sum())],
        "num_cat": [0],
        "split_feature": tree.feature[inner],
        "split_gain": tree.gain[inner],
        "threshold": np.minimum(tree.threshold[inner], np.finfo(np.float64).max),  # inf: any value
        "decision_type": MISSING_IS_NAN + DEFAULT_LEFT * (tree.missing_left[inner] > 0),
        "left_child": number[left],
        "right_child": number[left + 1],
        "leaf_value": values[is_leaf],
        "is_linear": [0],
        "shrinkage": [1],
    }
    return "\n".join(f"{name}={_row(each)}" for name, each in lines.items()) + "\n"


def _row(numbers: npt.ArrayLike) -> str:
    """With all digits that make a difference."""
    return " ".join(map(repr, np.asarray(numbers).tolist()))
