"""Learning algorithms over data that stays where it is, with scikit-learn's interface: the extra `learn`.

Every worker of a run calls the same methods with rows of its own, and all come to the same model: that which one
machine would make of all rows. `run=None` is one machine. What algorithms need of a run is `over.py`; each file opens
with its equation, its source, and what travels. Nothing below this folder knows of it.
"""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("sklearn") is None:
    raise ImportError("geomx.learn needs scikit-learn and scipy: pip install '.[learn]' in a clone of geomx")

from geomx.learn.adarank import AdaRank
from geomx.learn.incremental.extraction import FeatureClassifier
from geomx.learn.incremental.tuning import FineTunedClassifier
from geomx.learn.kmeans import KMeans
from geomx.learn.linear.logistic import LogisticRegression
from geomx.learn.linear.ranking import RankSVM
from geomx.learn.linear.vectors import SVC, SVR
from geomx.learn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from geomx.learn.networks.autoencoder import Autoencoder
from geomx.learn.networks.cnn import CNNClassifier
from geomx.learn.networks.factorization import MatrixFactorization
from geomx.learn.networks.gan import GAN
from geomx.learn.networks.listnet import ListNet
from geomx.learn.networks.policy import PolicyGradient
from geomx.learn.networks.ranknet import RankNet
from geomx.learn.networks.rnn import RNNClassifier
from geomx.learn.online.ftml import FTML, FTMLClassifier
from geomx.learn.online.ftrl import FTRLClassifier
from geomx.learn.scaling import StandardScaler
from geomx.learn.trees.bins import Bins
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
from geomx.learn.trees.saving import save_lightgbm

__all__ = [
    "FTML",
    "GAN",
    "SVC",
    "SVR",
    "AdaRank",
    "Autoencoder",
    "Bins",
    "CNNClassifier",
    "FTMLClassifier",
    "FTRLClassifier",
    "FeatureClassifier",
    "FineTunedClassifier",
    "GBDTClassifier",
    "GBDTRegressor",
    "GBRank",
    "KMeans",
    "KNeighborsClassifier",
    "KNeighborsRegressor",
    "LambdaMART",
    "ListNet",
    "LogisticRegression",
    "MatrixFactorization",
    "PolicyGradient",
    "RNNClassifier",
    "RandomForestClassifier",
    "RandomForestRegressor",
    "RankBoost",
    "RankNet",
    "RankSVM",
    "StandardScaler",
    "XGBClassifier",
    "XGBRegressor",
    "save_lightgbm",
]
