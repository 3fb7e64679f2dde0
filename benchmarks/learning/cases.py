"""The twenty-five: each with its data, how it is judged, a reference and ours."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg
from sklearn import cluster, datasets, ensemble, linear_model, metrics, neighbors, svm
from torch import nn

from benchmarks.learning import plain
from benchmarks.learning.data import LENGTHS, Data, load, parts_of, world
from geomx import learn

Quality = Callable[[Any, Data], float]


@dataclass(frozen=True)
class Case:
    """An algorithm. `given`: what `fit` takes of data; `calls`: a model is trained, and all classes are told before."""

    data: str
    metric: str
    reference: Callable[[], Any]
    ours: Callable[[], Any]
    quality: Quality
    given: tuple[str, ...] = ("x", "y")
    network: bool = False

    def load(self) -> tuple[Data, Data]:
        return load(self.data)

    def parts(self, data: Data) -> list[Any]:
        return parts_of(self.data, data)

    def fit(self, model: Any, data: Data, **how: Any) -> Any:
        if how and self.network and self.data.startswith("digits") and "y" in self.given:
            how["classes"] = range(5, 10) if self.data.endswith("5 to 9") else range(10)
        return model.fit(*(getattr(data, name) for name in self.given), **how)

    def fit_part(self, model: Any, data: Data, run: Any, place: int) -> Any:
        return self.fit(model, data.some(self.parts(data)[place]), run=run)

    def over_all(self, model: Any, asked: Data, run: Any) -> float:
        return self.quality(model, asked)


class Ratings(Case):
    """Of each user by the worker that has it."""

    def over_all(self, model: Any, asked: Data, run: Any) -> float:
        own = asked.some(np.isin(asked.x[:, 0], model.users_))
        apart = float(((own.y - model.predict(own.x)) ** 2).sum())
        whole: float = run.reduce(apart)
        return 1.0 - whole / float(((asked.y - asked.y.mean()) ** 2).sum())


class Worlds(Case):
    """Each party has a pole of another length."""

    def load(self) -> tuple[Data, Data]:
        none = Data(np.zeros((1, 1)), np.zeros(1), np.zeros(1))
        return none, none

    def parts(self, data: Data) -> list[Any]:
        return [[0]]

    def fit(self, model: Any, data: Data, **how: Any) -> Any:
        return model.fit(world(LENGTHS[0]), **how)

    def fit_part(self, model: Any, data: Data, run: Any, place: int) -> Any:
        return model.fit(world(LENGTHS[place]), run=run)


def accuracy(model: Any, asked: Data) -> float:
    return float((model.predict(asked.x) == asked.y).mean())


def auc(model: Any, asked: Data) -> float:
    has_chances = hasattr(model, "predict_proba")
    scores = model.predict_proba(asked.x)[:, 1] if has_chances else model.decision_function(asked.x)
    return float(metrics.roc_auc_score(asked.y, scores))


def explained(model: Any, asked: Data) -> float:
    return float(metrics.r2_score(asked.y, model.predict(asked.x)))


def remade(model: Any, asked: Data) -> float:
    return float(model.score(asked.x))


def ndcg(model: Any, asked: Data) -> float:
    scores = model.predict(asked.x)
    each = [asked.queries == query for query in np.unique(asked.queries)]
    return float(
        np.mean([metrics.ndcg_score([asked.y[own]], [scores[own]]) for own in each if own.sum() > 1])
    )


def tightness(model: Any, asked: Data) -> float:
    """The share of the rows' variance that is between clusters."""
    apart = ((asked.x[:, None] - model.cluster_centers_[None]) ** 2).sum(2).min(1).sum()
    return float(1.0 - apart / ((asked.x - asked.x.mean(0)) ** 2).sum())


def frechet(model: Any, asked: Data) -> float:
    """How far 4,000 made rows are from real ones, as normal distributions: less is better."""
    made, real = model.sample(4000), asked.x
    one, other = np.cov(made.T), np.cov(real.T)
    root = linalg.sqrtm(one @ other)
    return float(((made.mean(0) - real.mean(0)) ** 2).sum() + np.trace(one + other - 2.0 * np.real(root)))


def balanced(model: Any, _: Data) -> float:
    """For how many steps of 500 poles of all lengths stand."""
    total = 0.0
    for length in LENGTHS:
        place = world(length)
        for seed in range(10):
            state, is_over = place.reset(seed=1000 + seed)[0], False
            while not is_over:
                state, reward, ended, cut, _ = place.step(int(model.predict(state[None])[0]))
                total, is_over = total + float(reward), ended or cut
    return total / (10 * len(LENGTHS))


def trunk() -> nn.Module:
    """A network that knows the digits 0 to 4."""
    found = datasets.load_digits()
    before = found.target < 5
    return plain.trained_before(found.data[before] / 16.0, found.target[before])


def lightgbm(name: str, **how: Any) -> Any:
    import lightgbm as library  # noqa: PLC0415

    return getattr(library, name)(verbosity=-1, n_jobs=1, **how)


def xgboost(name: str, **how: Any) -> Any:
    import xgboost as library  # noqa: PLC0415

    return getattr(library, name)(n_jobs=1, **how)


def river() -> Any:
    from river import linear_model, optim  # noqa: PLC0415

    how = {"alpha": 0.1, "beta": 1.0, "l1": 0.0, "l2": 0.0}
    return plain.River(linear_model.LogisticRegression(optim.FTRLProximal(**how), intercept_lr=0.1))


def tuned() -> Any:
    known = trunk()
    head = {"epochs": 10, "batch": 64, "lr": 3e-3}
    return plain.Plain(
        lambda classes: nn.Sequential(copy.deepcopy(known), nn.Linear(128, classes)), (1, 8, 8), **head
    )


QUERIES, RANKED = ("x", "y", "queries"), "diabetes, queries"
CANCER, DIGITS = "breast_cancer", "digits"
CASES: dict[str, Case] = {
    "CNN": Case(DIGITS, "accuracy", lambda: plain.Plain(plain.convolutions, (1, 8, 8), epochs=20, batch=64, lr=3e-3),
                learn.CNNClassifier, accuracy, network=True),
    "RNN": Case(DIGITS, "accuracy", lambda: plain.Plain(plain.recurrent, (8, 8), epochs=30, batch=64, lr=5e-3),
                learn.RNNClassifier, accuracy, network=True),
    "policy gradient": Worlds("CartPole-v1", "steps of 500", plain.PlainPolicy, learn.PolicyGradient, balanced,
                              network=True),
    "autoencoder": Case(DIGITS, "share of variance", plain.PlainAutoencoder, learn.Autoencoder, remade, ("x",),
                        network=True),
    "matrix factorisation": Ratings("ratings: pixels of digits", "R2", plain.PlainFactorization,
                                    lambda: learn.MatrixFactorization(64, batch_size=8192, learning_rate=0.05),
                                    explained, network=True),
    "GAN": Case(DIGITS, "Frechet distance, less is better", plain.PlainGAN, learn.GAN, frechet, ("x",), network=True),
    "logistic regression": Case(DIGITS, "accuracy", lambda: linear_model.LogisticRegression(max_iter=1000),
                                learn.LogisticRegression, accuracy),
    "RankNet": Case(RANKED, "NDCG", lambda: plain.PlainRanking(plain.of_pairs), learn.RankNet, ndcg, QUERIES,
                    network=True),
    "ListNet": Case(RANKED, "NDCG", lambda: plain.PlainRanking(plain.of_lists), learn.ListNet, ndcg, QUERIES,
                    network=True),
    "GBDT": Case(CANCER, "AUC", lambda: lightgbm("LGBMClassifier"), learn.GBDTClassifier, auc),
    "XGBoost": Case(CANCER, "AUC", lambda: xgboost("XGBClassifier"), learn.XGBClassifier, auc),
    "random forest": Case(DIGITS, "accuracy", lambda: ensemble.RandomForestClassifier(100, random_state=0),
                          learn.RandomForestClassifier, accuracy),
    "GBRank": Case(RANKED, "NDCG", lambda: plain.Ranker(xgboost("XGBRanker", objective="rank:pairwise", n_estimators=50,
                                                                learning_rate=0.1, max_depth=6)),
                   lambda: learn.GBRank(50), ndcg, QUERIES),
    "LambdaMART": Case(RANKED, "NDCG", lambda: plain.Ranker(lightgbm("LGBMRanker", n_estimators=50)),
                       lambda: learn.LambdaMART(50), ndcg, QUERIES),
    "RankBoost": Case(RANKED, "NDCG", lambda: plain.Ranker(xgboost("XGBRanker", objective="rank:pairwise",
                                                                   n_estimators=100, max_depth=1)),
                      lambda: learn.RankBoost(100), ndcg, QUERIES),
    "AdaRank": Case(RANKED, "NDCG", lambda: plain.Pointwise(linear_model.Ridge()), lambda: learn.AdaRank(50), ndcg,
                    QUERIES),
    "SVC": Case(CANCER, "AUC", lambda: svm.LinearSVC(dual=False), learn.SVC, auc),
    "SVR": Case("diabetes", "R2", lambda: svm.LinearSVR(loss="squared_epsilon_insensitive", dual=False, C=1.0),
                learn.SVR, explained),
    "RankSVM": Case(RANKED, "NDCG", plain.Pairs, lambda: learn.RankSVM(0.1), ndcg, QUERIES),
    "k-NN": Case(DIGITS, "accuracy", lambda: neighbors.KNeighborsClassifier(5), lambda: learn.KNeighborsClassifier(5),
                 accuracy),
    "k-means": Case(DIGITS, "share of variance", lambda: cluster.KMeans(10, n_init=10, random_state=0),
                    lambda: learn.KMeans(10), tightness, ("x",)),
    "FTRL": Case(CANCER, "AUC", river, learn.FTRLClassifier, auc),
    "FTML": Case(DIGITS, "accuracy",
                 lambda: plain.Plain(lambda classes: nn.Linear(64, classes), (64,), epochs=1, batch=8, lr=1e-2),
                 learn.FTMLClassifier, accuracy, network=True),
    "feature extraction": Case("digits, 5 to 9", "accuracy",
                               lambda: plain.Extracted(trunk(), linear_model.LogisticRegression(max_iter=1000)),
                               lambda: learn.FeatureClassifier(trunk(), (1, 8, 8)), accuracy),
    "fine-tuning": Case("digits, 5 to 9", "accuracy", tuned, lambda: learn.FineTunedClassifier(trunk(), (1, 8, 8)),
                        accuracy, network=True),
}  # fmt: skip
