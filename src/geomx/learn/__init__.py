"""Learning algorithms over data that stays where it is, with scikit-learn's interface: the extra `learn`.

Every worker of a run calls the same methods with rows of its own, and all come to the same model: that which one
machine would make of all rows. `run=None` is one machine. What algorithms need of a run is `over.py`; each file opens
with its equation, its source, and what travels. Nothing below this folder knows of it.
"""

from __future__ import annotations

from geomx.learn.adarank import AdaRank
from geomx.learn.kmeans import KMeans
from geomx.learn.linear.logistic import LogisticRegression
from geomx.learn.linear.ranking import RankSVM
from geomx.learn.linear.vectors import SVC, SVR
from geomx.learn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from geomx.learn.trees.boosting import (
    GBDTClassifier,
    GBDTRegressor,
    GBRank,
    LambdaMART,
    XGBClassifier,
    XGBRegressor,
)
from geomx.learn.trees.forest import RandomForestClassifier, RandomForestRegressor
from geomx.learn.trees.rankboost import RankBoost

__all__ = [
    "SVC",
    "SVR",
    "AdaRank",
    "GBDTClassifier",
    "GBDTRegressor",
    "GBRank",
    "KMeans",
    "KNeighborsClassifier",
    "KNeighborsRegressor",
    "LambdaMART",
    "LogisticRegression",
    "RandomForestClassifier",
    "RandomForestRegressor",
    "RankBoost",
    "RankSVM",
    "XGBClassifier",
    "XGBRegressor",
]
