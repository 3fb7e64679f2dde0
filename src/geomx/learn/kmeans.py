"""k-means, seeded by k-means||.

    seeding    c_1 = a row;  then five times every row joins with chance 2 k d^2(row) / sum d^2;  the candidates,
               weighed by how many rows are nearest to each, are reduced to k by scikit-learn's k-means
    then       c_k <- mean of the rows that are nearest to c_k,  until centres move no more

Distances are squared Euclidean. Draws belong to rows, so the same rows are drawn wherever they lie. What travels: while
seeding, the rows that were drawn, some 2 k in each of five rounds: these are seen by all workers, so give `init` where
no row may leave; then k (d + 1) + 1 sums of rows an iteration, which tell means over a worker's rows of each cluster.
Sources: Lloyd, IEEE Trans. Inf. Theory 28 (1982); Bahmani et al., VLDB 2012; Arthur and Vassilvitskii, SODA 2007.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn import cluster
from sklearn.base import BaseEstimator, ClusterMixin, TransformerMixin
from sklearn.metrics import pairwise_distances_argmin_min
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.utils.validation import check_is_fitted, validate_data

from geomx.learn.agreement import begin
from geomx.learn.over import Floats, Ints, Over, uniform
from geomx.learn.privacy import Noise
from geomx.train.calls.run_calls import RunCalls

ROUNDS, MOST_ROUNDS = 5, 50
FIRST = 0  # stream of random numbers
TRIES = 10  # of reducing the candidates, of which the best counts


class KMeans(ClusterMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """See the module's text.

    Args:
        n_clusters: k.
        init: "k-means||", or centres of shape (k, features).
        max_iter: At most so many iterations.
        tol: It ends where centres move by squares that add up to this share of the features' mean variance, or less.
        random_state: The seed, the same on all workers.
        noise: Of sums and counts before they leave a worker, beside what one row moves; see `privacy.py`. It needs
            centres as `init`. 0: none.
        clip: With noise, rows that are longer than this count as if they ended there.

    Attributes:
        cluster_centers_: Of shape (k, features).
        labels_: Of this worker's rows.
        inertia_: The sum of squared distances of all rows to their centres; with noise, of this worker's.
        n_iter_: How many iterations there were; with noise always `max_iter`.
        privacy_: With noise, `privacy_.epsilon(delta)` tells what has been spent.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: Any = "k-means||",
        max_iter: int = 300,
        tol: float = 1e-4,
        random_state: int = 0,
        noise: float = 0.0,
        clip: float = 1.0,
    ) -> None:
        self.n_clusters, self.init, self.max_iter = n_clusters, init, max_iter
        self.tol, self.random_state, self.noise, self.clip = tol, random_state, noise, clip

    def fit(self, X: Any, y: Any = None, run: RunCalls | None = None) -> Self:  # noqa: N803
        """Cluster the rows of all workers.

        Args:
            X: This worker's rows, of shape (rows, features).
            y: Nothing.
            run: The run, in which every worker makes this call; None: these are all rows.

        Returns:
            Itself, with the same centres on all workers.

        Raises:
            Disagreement: Workers have different numbers of features.
            ValueError: There are fewer rows than clusters, or centres of another shape.
        """
        over = Over(run, goes_on=True)
        x = validate_data(self, X, dtype=np.float64)
        begin(over, self)
        first, rows = over.place(len(x))
        if rows < self.n_clusters:
            raise ValueError(f"n_samples={rows} should be >= n_clusters={self.n_clusters}")
        if self.noise:
            if isinstance(self.init, str):
                raise ValueError(
                    f"init={self.init!r} with noise: give centres, since k-means|| shows some rows"
                )
            self.privacy_ = Noise(self.noise)
        mean, enough = np.zeros(x.shape[1]), -1.0
        if not self.noise:
            mean = over.total(x.sum(0))[0] / rows
            x = x - mean  # squares of small numbers are exact where those of large ones are not
            enough = self.tol * float((over.total((x * x).sum(0))[0] / rows).mean())
        centres, is_still = self._seeded(over, x, first, rows, mean), False
        for iteration in range(self.max_iter + 1):
            self.n_iter_ = iteration
            there, ends = self._step(over, x, centres, is_still or iteration == self.max_iter)
            if ends:
                break
            is_still = bool(((there - centres) ** 2).sum() <= enough)
            centres = there
        self.cluster_centers_ = centres + mean
        self.labels_, distances = pairwise_distances_argmin_min(x, centres, metric="sqeuclidean")
        own = np.atleast_1d(distances.sum())
        self.inertia_ = float(own[0] if self.noise else over.total(own)[0][0])
        return self

    def predict(self, X: Any) -> Ints:  # noqa: N803
        """The nearest centre of each row."""
        check_is_fitted(self)
        x = validate_data(self, X, dtype=np.float64, reset=False)
        found: Ints = pairwise_distances_argmin_min(x, self.cluster_centers_, metric="sqeuclidean")[0]
        return found

    def transform(self, X: Any) -> Floats:  # noqa: N803
        """Distances to all centres, of shape (rows, k)."""
        check_is_fitted(self)
        x = validate_data(self, X, dtype=np.float64, reset=False)
        found: Floats = euclidean_distances(x, self.cluster_centers_)
        return found

    def _step(self, over: Over, x: Floats, centres: Floats, is_still: bool) -> tuple[Floats, bool]:
        """The next centres, and whether the first worker has found that they move no more. One without rows stays."""
        if self.noise and is_still:
            return centres, True
        labels = pairwise_distances_argmin_min(x, centres, metric="sqeuclidean")[0]
        sums = np.zeros_like(centres)
        if self.noise:
            x = x * np.minimum(1.0, self.clip / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300))
        np.add.at(sums, labels, x)
        counts = np.bincount(labels, minlength=len(centres)).astype(np.float64)
        if self.noise:
            sums, counts = self.privacy_.release((sums, 2.0 * self.clip), (counts, 2.0**0.5))
        sums, counts, ends = over.total(sums, counts, np.array([int(is_still and over.is_first)]))
        there = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1.0)[:, None], centres)
        if self.noise:  # where all rows are, too
            there *= np.minimum(
                1.0, self.clip / np.maximum(np.linalg.norm(there, axis=1, keepdims=True), 1e-300)
            )
        return there, bool(ends[0])

    def _seeded(self, over: Over, x: Floats, first: int, rows: int, mean: Floats) -> Floats:
        if not isinstance(self.init, str):
            given = np.asarray(self.init, np.float64)
            if given.shape != (self.n_clusters, x.shape[1]):
                raise ValueError(f"init of shape {given.shape}; expected {(self.n_clusters, x.shape[1])}")
            return given - mean
        if self.init != "k-means||":
            raise ValueError(f"init={self.init!r}: 'k-means||', or centres")
        numbers = np.arange(first, first + len(x), dtype=np.int64)
        start = int(uniform(np.zeros(1, np.int64), self.random_state, FIRST)[0] * rows)
        candidates = over.joined(x[numbers == start])
        for turn in range(1, MOST_ROUNDS):
            if turn > ROUNDS and len(candidates) > self.n_clusters:
                break
            distances = pairwise_distances_argmin_min(x, candidates, metric="sqeuclidean")[1]
            everything = float(over.total(np.atleast_1d(distances.sum()))[0][0])
            if everything == 0.0:
                break
            joins = uniform(numbers, self.random_state, turn) * everything < 2 * self.n_clusters * distances
            candidates = np.concatenate([candidates, over.joined(x[joins])])
        labels = pairwise_distances_argmin_min(x, candidates, metric="sqeuclidean")[0]
        counts = over.total(np.bincount(labels, minlength=len(candidates)).astype(np.float64))[0]
        if len(candidates) <= self.n_clusters:  # there are no more different rows
            return candidates[np.arange(self.n_clusters) % len(candidates)]
        reduced = cluster.KMeans(self.n_clusters, n_init=TRIES, random_state=self.random_state)
        found: Floats = over.firsts(reduced.fit(candidates, sample_weight=counts).cluster_centers_)
        return found
