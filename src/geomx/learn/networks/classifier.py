"""Networks that tell classes apart: L = log sum_k e^{s_k} - s_y of their outputs s."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from geomx.learn.classes import Probable
from geomx.learn.networks.base import Network
from geomx.learn.over import Floats


class NetworkClassifier(Probable, Network):
    """See the module's text; arguments and attributes of `Network`, and `classes_`: the labels, in order."""

    def _module(self, features: int, outputs: int) -> nn.Module:
        raise NotImplementedError

    def fit(self, X: Any, y: Any, run: Any = None, classes: Any = None) -> Self:  # noqa: N803
        """Train on the rows of all workers.

        Args:
            X: This worker's rows, of shape (rows, features).
            y: Their labels.
            run: The run, in which every worker makes this call; None: these are all rows.
            classes: All labels that some worker has. Needed with a run.

        Returns:
            Itself, the same on all workers.

        Raises:
            ValueError: `classes` lacks a label, or is missing; or what scikit-learn finds wrong with the rows.
        """
        x, labels = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(labels)
        shape = getattr(self, "shape", None)
        if shape is not None and math.prod(shape) != x.shape[1]:
            raise ValueError(
                f"shape={shape} has {math.prod(shape)} features, and X {x.shape[1]}: rows of X are flat"
            )
        self.classes_ = known_classes(labels, run, classes)
        places = self._tensor(np.searchsorted(self.classes_, labels), torch.int64)
        rows = self._tensor(x)
        outputs = 1 if len(self.classes_) == 2 else len(self.classes_)
        module = self._made(lambda: self._module(x.shape[1], outputs))

        def loss(batch: Any) -> torch.Tensor:
            at = torch.from_numpy(batch.rows)
            scores, own = module(self._shaped(rows[at])), places[at]
            if outputs == 1:
                return F.binary_cross_entropy_with_logits(scores[:, 0], own.float(), reduction="none")
            return F.cross_entropy(scores, own, reduction="none")

        self._descend(run, module, len(x), loss, classes=self.classes_)
        return self

    def _shaped(self, rows: torch.Tensor) -> torch.Tensor:
        shape: Sequence[int] | None = getattr(self, "shape", None)  # of a row; None: as it comes
        return rows if shape is None else rows.reshape(len(rows), *shape)

    @torch.no_grad()
    def _scores(self, X: Any) -> Floats:  # noqa: N803
        check_is_fitted(self)
        x = self._tensor(validate_data(self, X, dtype=np.float32, reset=False))
        found: Floats = self.module_(self._shaped(x)).double().cpu().numpy()
        return found


def known_classes(labels: Any, run: Any, classes: Any) -> Any:
    """All labels, in order. Raises `ValueError`."""
    if classes is None:
        if run is not None:
            raise ValueError(
                "classes=None: give all labels that some worker has; a model is attached to a run before its workers "
                "can ask each other"
            )
        classes = labels
    found = np.unique(np.asarray(classes))
    if len(found) < 2:
        raise ValueError(f"needs samples of at least 2 classes; found 1 class: {found[0]!r}")
    if strange := set(np.unique(labels).tolist()) - set(found.tolist()):
        raise ValueError(f"classes={found.tolist()}: there are rows of {sorted(strange)}, too")
    return found
