"""What a fit begins with: parameters that can be, and that all workers have alike, and the same features."""

from __future__ import annotations

import hashlib
import math
import numbers
from typing import Any

import numpy as np
from torch import nn

from geomx.errors import Disagreement
from geomx.learn.over import Over
from geomx.learn.trees.bins import MOST_CUTS, Bins

ABOVE_0 = math.ulp(0.0)
# The least and the most of parameters, by name.
LIMITS = dict.fromkeys(("C", "learning_rate", "alpha", "clip"), (ABOVE_0, math.inf))
LIMITS |= dict.fromkeys(
    ("tol", "epsilon", "min_child_weight", "min_samples_leaf", "reg_lambda", "reg_alpha", "noise", "beta", "l1", "l2",
     "shrinks", "slower", "discount"), (0.0, math.inf),
)  # fmt: skip
LIMITS |= dict.fromkeys(
    ("max_iter", "n_estimators", "max_depth", "n_neighbors", "n_clusters", "components", "epochs", "batch_size",
     "items", "factors", "codes", "hidden", "filters", "rounds", "episodes"), (1.0, math.inf),
)  # fmt: skip
LIMITS |= {"max_bins": (2.0, MOST_CUTS + 1.0), "max_leaves": (2.0, math.inf), "gamma": (0.0, math.inf)}
LIMITS |= {"max_features": (ABOVE_0, 1.0)}
MAY_BE_NONE = ("max_depth", "max_features")
OWN = ("device", "trunk", "n_jobs")  # each worker has its own


def begin(over: Over, estimator: Any, **more: Any) -> None:
    """Checks parameters and features. `more`: what else is to be alike.

    Raises:
        ValueError: A parameter that cannot be.
        Disagreement: Workers have different ones, and which.
    """
    parameters = estimator.get_params(deep=False)
    for name, value in parameters.items():
        low, high = LIMITS.get(name, (-math.inf, math.inf))
        is_fine = isinstance(value, numbers.Real) and low <= float(value) <= high
        if name in LIMITS and not is_fine and not (value is None and name in MAY_BE_NONE):
            least = "above 0" if low == ABOVE_0 else f"from {low:g}"
            most = "" if high == math.inf else f" to {high:g}"
            raise ValueError(f"{type(estimator).__name__}({name}={value!r}): a number {least}{most}")
    names = getattr(estimator, "feature_names_in_", None)
    told = {"kinds of estimators": type(estimator).__name__}
    told["numbers of features"] = str(getattr(estimator, "n_features_in_", 0))
    told["features"] = "" if names is None else _told(np.asarray(names, str))
    told |= {name: _told(value) for name, value in {**parameters, **more}.items() if name not in OWN}
    every = over.by_worker(told)
    for name in told:
        said = {worker: each.get(name, "none") for worker, each in every.items()}
        if len(set(said.values())) > 1:
            each = ", ".join(f"{value} at {worker}" for worker, value in said.items())
            raise Disagreement(f"the workers have different {name}: {each}")


def _told(value: Any) -> str:
    """The same of what is the same; short."""
    if isinstance(value, Bins):
        value = np.concatenate([*value.cuts, [len(cuts) for cuts in value.cuts]])
    if isinstance(value, nn.Module):
        return type(value).__name__
    if isinstance(value, list | tuple | np.ndarray):
        array = np.asarray(value)
        data = array.tobytes() if array.dtype.kind in "biufU" else repr(value).encode()
        return f"{list(array.shape)} {hashlib.blake2b(data, digest_size=4).hexdigest()}"
    return repr(value)[:200]
