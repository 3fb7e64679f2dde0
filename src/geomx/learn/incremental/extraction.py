"""Feature extraction: a network that has been trained before makes rows simpler, and stays as it is.

    x -> f(x), of a frozen network f;     an estimator is trained on f(x)

What travels: what the estimator sends, see there; of the network, a digest that tells whether all have the same.
Source: Donahue et al., ICML 2014.
"""

from __future__ import annotations

import hashlib
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from geomx.learn.agreement import begin
from geomx.learn.linear.logistic import LogisticRegression
from geomx.learn.over import Floats, Over


class FeatureClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """See the module's text.

    Args:
        trunk: The network; what it gives is made flat. The same on all workers.
        shape: Of a row, as the network takes it; None: as it comes.
        estimator: What is trained on features; None: `LogisticRegression()`.

    Attributes:
        estimator_: What has been trained.
        classes_: The labels, in order.
    """

    def __init__(self, trunk: nn.Module, shape: tuple[int, ...] | None = None, estimator: Any = None) -> None:
        self.trunk, self.shape, self.estimator = trunk, shape, estimator

    def fit(self, X: Any, y: Any, run: Any = None) -> Self:  # noqa: N803
        """Train on the rows of all workers; see `LogisticRegression.fit`.

        Raises:
            Disagreement: Workers have different networks.
        """
        x, labels = validate_data(self, X, y, dtype=np.float32)
        begin(Over(run), self, networks=digest_of(self.trunk))
        self.estimator_ = LogisticRegression() if self.estimator is None else clone(self.estimator)
        self.estimator_.fit(features_of(self.trunk, x, self.shape), labels, run=run)
        self.classes_ = self.estimator_.classes_
        return self

    def predict(self, X: Any) -> Any:  # noqa: N803
        """The class of each row."""
        check_is_fitted(self)
        x = validate_data(self, X, dtype=np.float32, reset=False)
        return self.estimator_.predict(features_of(self.trunk, x, self.shape))


@torch.no_grad()
def features_of(trunk: nn.Module, x: Any, shape: tuple[int, ...] | None) -> Floats:
    """What a network makes of rows, of shape (rows, features)."""
    was = trunk.training
    trunk.eval()
    rows = torch.as_tensor(x)
    made = trunk(rows if shape is None else rows.reshape(len(rows), *shape)).flatten(1)
    trunk.train(was)
    found: Floats = made.double().cpu().numpy()
    return found


def digest_of(module: nn.Module) -> str:
    """Of all weights and buffers."""
    found = hashlib.blake2b(digest_size=8)
    for name, tensor in module.state_dict().items():
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
