"""Draws docs/pictures/learn for docs/gallery.md, all in two minutes or some: `python docs/make_gallery.py kmeans gbdt`.

Parties A, B and C have a sixth, a third and a half of the rows, mostly of other labels. Each trains alone, and "all" on
the rows of all without a run, which makes the model that they get in a run. Quality is on rows that nobody has seen.
Needs the extras `benchmarks`, `examples` and `learn`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from itertools import cycle, product
from pathlib import Path
from typing import Any

import gymnasium
import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from PIL import Image
from scipy import special, stats
from sklearn import datasets, decomposition, metrics, model_selection, preprocessing

from geomx import learn

DOCS = Path(__file__).parent
COLOURS = {"A": "#0072b2", "B": "#d98200", "C": "#009e73", "all": "#222222"}
AREAS, ROWS = ("#c6dbef", "#fcc5c0", "#d0ecc8"), ("#2c5f8a", "#b03a2e", "#3d7a35")  # of classes
CANCER, WINE = datasets.load_breast_cancer(), datasets.load_wine()
PATIENTS, SICKNESS = datasets.load_diabetes(return_X_y=True)
PIXELS, DIGITS = datasets.load_digits().data / 16.0, datasets.load_digits().target
REAL = PIXELS[[np.flatnonzero(digit == DIGITS)[1] for digit in range(10)]]
COUNTS, GRID = (1, 2, 5, 10, 20, 50), np.linspace(-2, 2, 300)
plt.style.use(DOCS.parent / "benchmarks" / "plots.mplstyle")
# fmt: off
mpl.rcParams |= {"font.size": 8, "axes.titlesize": 8.5, "axes.labelsize": 8, "axes.axisbelow": True}
mpl.rcParams |= dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 7.5)
mpl.rcParams |= {"figure.figsize": (3.2, 2.4), "figure.constrained_layout.use": True, "grid.color": "#e6e6e6"}
mpl.rcParams |= {"savefig.bbox": None, "savefig.dpi": 150, "legend.frameon": False, "legend.handlelength": 1.2}


def split(x: Any, y: Any, noise: float = 0.3) -> tuple[dict[str, Any], Any, Any]:
    """Rows and labels of A, B, C and all, and those to judge by; the less noise, the more unlike are labels."""
    known, asked, labels, answers = model_selection.train_test_split(x, y, random_state=0)
    mixed = labels + noise * labels.std() * np.random.default_rng(0).standard_normal(len(labels))
    own = np.split(np.argsort(mixed, kind="stable"), [len(labels) // 6, len(labels) // 2])
    rows = dict(zip(COLOURS, [*own, np.concatenate(own)], strict=True))
    return {name: (known[at], labels[at]) for name, at in rows.items()}, asked, answers


def accuracy(model: Any, name: str, data: Any) -> float:
    return 100 * model.fit(*data[0][name]).score(*data[1:])


@cache
def folds() -> list[Any]:
    """Queries are 17 patients of about one body mass index; A has the lightest. Each is asked once."""
    order, query, found = np.argsort(PATIENTS[:, 2], kind="stable"), np.arange(442) // 17, []
    x, y = preprocessing.scale(PATIENTS)[order], np.digitize(SICKNESS[order], [80, 140, 200, 260])
    for fold in range(4):
        known = np.array([each for each in range(26) if each % 4 != fold])
        own = [*np.split(known, [len(known) // 6, len(known) // 2]), known]
        rows = {name: np.isin(query, each) for name, each in zip(COLOURS, own, strict=True)}
        found.append(({name: (x[at], y[at], query[at]) for name, at in rows.items()},
                      [(x[query == each], y[query == each]) for each in range(fold, 26, 4)]))
    return found


def ranked(model: Any, name: str, measure: Callable[..., Any] = metrics.ndcg_score, **how: Any) -> Any:
    """The mean of `measure([relevance], [scores])` of queries that the model has not been trained on."""
    return np.nanmean([measure([y], [model.predict(x)], **how) for parts, asked in folds()
                       if model.fit(*parts[name]) for x, y in asked], axis=0)


def curves(title: str, xs: Any, measure: Callable[[str], Any], labels: str, beside: Any = None, **how: Any) -> None:
    """A line for each, with its name at its end. `measure(name)`: y of each x; or pairs, where `xs` is None."""
    axis, ends, xs = plt.gca(), {}, [*map(str, xs)] if isinstance(xs, tuple) else xs
    for name, colour in COLOURS.items():
        x, y = np.transpose(measure(name)) if xs is None else (xs, measure(name))
        axis.plot(x, y, color=colour, lw=1.3 + 0.9 * (name == "all"), marker="." if len(x) < 50 else "", ms=4)
        ends[name] = y[-1]
    axis.set(**dict(zip(("xlabel", "ylabel"), labels.split("; "), strict=True)), title=title, **how)
    if beside is not None:
        axis.plot(xs, beside, color="#888888", ls="--")
    low, high = axis.get_ylim()
    last = high + 0.05 * (high - low)
    for name in sorted(ends, key=ends.__getitem__, reverse=True):
        last = min(ends[name], last - 0.085 * (high - low))
        place = (1.02, (last - low) / (high - low))
        axis.annotate(name, place, xycoords="axes fraction", va="center", color=COLOURS[name], weight="bold")
    axis.grid()


def montage(title: str, rows: dict[str, Any], colours: str = "gray_r", low: float = 0.0) -> None:
    """Ten small images with names before them; NaN is what is not there."""
    axis, whole = plt.gca(), np.full((9 * len(rows) - 1, 89), np.nan)
    for (line, row), column in product(enumerate(rows.values()), range(10)):
        whole[9 * line : 9 * line + 8, 9 * column : 9 * column + 8] = np.reshape(row[column], (8, 8))
    axis.imshow(whole, mpl.colormaps[colours].with_extremes(bad="white"), vmin=low, vmax=1.0, aspect="auto")
    axis.set_yticks(9 * np.arange(len(rows)) + 3.5, rows, weight="bold")
    axis.tick_params(length=0, labelbottom=False)
    axis.set_frame_on(False)
    for label in axis.get_yticklabels():
        label.set_color(COLOURS.get(label.get_text().split()[0], "#777777"))
    plt.suptitle(title, x=0.02, ha="left", weight="bold", fontsize=8.5)


def digits(title: str, model: Any, show: Callable[[Any], Any], real: bool = False, **how: Any) -> None:
    """Ten images that a model of each knows."""
    rows = {"real": REAL} if real else {}
    for name, part in SPLIT[0].items():
        model.fit(*part)
        told = f" {100 * model.score(*SPLIT[1:]):.0f} %" if hasattr(model, "score") else ""
        rows[name + told] = show(model)
    montage(title, rows, **how)


def areas(parts: dict[str, Any], model: Any, line: str = "none") -> Any:
    """What a model of two features says everywhere, and the rows of all; returns places. `line`: in the legend."""
    axis, (left, low), (right, high) = plt.gca(), parts["all"][0].min(0) - 0.3, parts["all"][0].max(0) + 0.3
    across, up = np.meshgrid(np.linspace(left, right, 150), np.linspace(low, high, 150))
    places = np.stack([across.ravel(), up.ravel()], axis=1)
    there = model.fit(*parts["all"]).predict(places).reshape(across.shape)
    axis.pcolormesh(across, up, there, cmap=mpl.colors.ListedColormap(AREAS), vmin=0, vmax=2)
    for name, mark in zip("ABC", "s^o", strict=True):
        axis.scatter(*parts[name][0].T, 9, [ROWS[label] for label in parts[name][1]], mark, lw=0.3, ec="white")
        axis.plot([], [], ls=line, color=COLOURS[name], marker=mark, mfc="#555555", mec="#555555", ms=3, label=name)
    axis.set(xticks=[], yticks=[], xlabel="component 1", ylabel="component 2", xlim=(left, right), ylim=(low, high))
    axis.legend(loc="lower left" if line == "none" else "upper right", borderpad=0.1)
    return across, up, places


def returns(name: str) -> Any:
    """Of a policy, by five rounds. Each has a pole of its own; all take turns."""
    lengths = {"A": (0.25,), "B": (0.5,), "C": (1.0,), "all": (0.25, 0.5, 1.0)}[name]
    world, turn = gymnasium.make("CartPole-v1"), cycle(lengths)
    world.reset = lambda begin=world.reset, **how: setattr(world.unwrapped, "length", next(turn)) or begin(**how)
    model = learn.PolicyGradient(rounds=50, episodes=4 * len(lengths)).fit(world)
    return np.reshape(model.returns_, (10, 5)).mean(1)


def factorization() -> None:
    ratings = split(PIXELS, DIGITS, 1.5)[0]["all"][0]
    count = len(ratings) // 6  # A's, which are the first
    hidden = np.random.default_rng(0).random(ratings.shape) < 0.7
    rows = {"real": ratings[:10], "known": np.where(hidden, np.nan, ratings)[:10]}
    for name, users in (("A", count), ("all", len(ratings))):
        pairs = np.argwhere(~hidden[:users])
        model = learn.MatrixFactorization(64, epochs=20).fit(pairs, ratings[tuple(pairs.T)])
        made = model.predict(np.argwhere(np.ones((count, 64)))).reshape(count, 64)
        rows[f"{name} ±{16 * np.abs(made - ratings[:count])[hidden[:count]].mean():.1f}"] = made[:10]
    montage("Matrix factorisation: A's hidden pixels", rows)


def adarank() -> None:
    for at, (name, colour) in enumerate(COLOURS.items()):
        found = np.abs([learn.AdaRank().fit(*parts[name]).coef_ for parts, _ in folds()])
        share, quality = (found / found.sum(1, keepdims=True)).mean(0), ranked(learn.AdaRank(), name)
        plt.bar(np.arange(10) + 0.2 * at - 0.3, share, 0.2, color=colour, label=f"{name}: NDCG {quality:.2f}")
    plt.xticks(range(10), datasets.load_diabetes().feature_names)
    plt.gca().set(xlabel="feature", ylabel="share of the weights", title="AdaRank: chooses features")
    plt.legend()


def svc() -> None:
    parts = split(decomposition.PCA(2).fit_transform(preprocessing.scale(CANCER.data)), CANCER.target, 1.0)[0]
    across, up, places = areas(parts, learn.SVC(kernel="rbf", gamma=0.05), "-")
    for name, part in parts.items():
        heights = learn.SVC(kernel="rbf", gamma=0.05).fit(*part).decision_function(places).reshape(across.shape)
        plt.contour(across, up, heights, [0.0], colors=COLOURS[name], linewidths=1.3 + 0.9 * (name == "all"))
    plt.title("SVC: where each draws the line")
    plt.plot([], [], color=COLOURS["all"], lw=2.2, label="all")
    plt.legend()


def svr() -> None:
    parts = split(preprocessing.scale(PATIENTS)[:, 2:3], SICKNESS)[0]
    model, values = learn.SVR(epsilon=20.0, kernel="rbf", gamma=0.2, components=100), np.linspace(-2, 3, 100)
    for name in "ABC":
        plt.scatter(parts[name][0][:, 0], parts[name][1], 6, COLOURS[name], alpha=0.4, lw=0)
    curves("SVR: each sees its own patients", values, lambda who: model.fit(*parts[who]).predict(values[:, None]),
           "body mass index, scaled; progression of diabetes")


def wine(title: str, model: Any) -> None:
    data = split(decomposition.PCA(2).fit_transform(preprocessing.scale(WINE.data)), WINE.target, 0.7)
    areas(data[0], model)
    plt.title(f"{title}, % right: " + ", ".join(f"{who} {accuracy(model, who, data):.0f}" for who in COLOURS))


SPLIT = split(PIXELS, DIGITS)
_TRUNK = learn.CNNClassifier(epochs=10).fit(PIXELS[DIGITS < 5], DIGITS[DIGITS < 5]).module_[:6]  # knows 0 to 4
_PARTS, *_ASKED = split(PIXELS[DIGITS >= 5], DIGITS[DIGITS >= 5], 0.6)
FEW = {n: ({who: (x[:: 100 // n], y[:: 100 // n]) for who, (x, y) in _PARTS.items()}, *_ASKED) for n in (5, 8, 20, 50)}
PAIRS = split(preprocessing.PolynomialFeatures(2).fit_transform(PIXELS), DIGITS)
DRAWS = np.random.default_rng(0).random(CANCER.data.shape)
HOLED = {n: split(np.where(n > 100 * DRAWS, np.nan, CANCER.data), CANCER.target, 1.0) for n in range(0, 100, 15)}
PICTURES: dict[str, Callable[[], None]] = {
    "cnn": lambda: curves("CNN: digits recognised", range(10), lambda who: 100 * metrics.recall_score(
        SPLIT[2], learn.CNNClassifier(epochs=15).fit(*SPLIT[0][who]).predict(SPLIT[1]), average=None),
        "digit; recognised, %", ylim=(-15, 105), xticks=range(10)),
    "rnn": lambda: curves("RNN: reads images line by line", range(1, 9), lambda who: [accuracy(
        learn.RNNClassifier((n, 8), epochs=10), who, ({who: (SPLIT[0][who][0][:, :8 * n], SPLIT[0][who][1])},
        SPLIT[1][:, :8 * n], SPLIT[2])) for n in range(1, 9)], "lines read; accuracy, %", ylim=(0, 100)),
    "policy": lambda: curves("Policy gradient: three poles", range(5, 51, 5), returns, "round; steps balanced"),
    "autoencoder": lambda: digits("Autoencoder: made again of 8 numbers", learn.Autoencoder(epochs=40),
        lambda model: model.inverse_transform(model.transform(REAL)), True),
    "factorization": factorization, "adarank": adarank, "svc": svc, "svr": svr,
    "gan": lambda: digits("GAN: digits that nobody wrote", learn.GAN(epochs=200), lambda model: model.sample(10), True),
    "logistic": lambda: digits("Logistic regression: weights by digit", learn.LogisticRegression(0.1), lambda model: [
        1.6 * model.coef_[list(model.classes_).index(digit)] if digit in model.classes_ else np.full(64, np.nan)
        for digit in range(10)], colours="RdBu_r", low=-1.0),
    "ranknet": lambda: curves("RankNet: pairs, by a network", COUNTS, lambda who: [
        ranked(learn.RankNet(epochs=n), who) for n in COUNTS], "epochs; NDCG"),
    "listnet": lambda: curves("ListNet: the chance to come first", range(5), lambda who: ranked(learn.ListNet(), who,
        lambda y, s: [100 * special.softmax(s[0])[y[0] == g].mean() if g in y[0] else np.nan for g in range(5)]),
        "how sick, of five grades; chance, %", xticks=range(5)),
    "gbdt": lambda: curves("GBDT: digits", COUNTS, lambda who: [accuracy(learn.GBDTClassifier(n), who, SPLIT)
        for n in COUNTS], "rounds; accuracy, %", ylim=(0, 100)),
    "xgboost": lambda: curves("XGBoost: values may be missing", list(HOLED), lambda who: [
        accuracy(learn.XGBClassifier(50), who, data) for data in HOLED.values()], "values missing, %; accuracy, %"),
    "forest": lambda: wine("Forest", learn.RandomForestClassifier(50)),
    "gbrank": lambda: curves("GBRank: pairs, by trees", COUNTS, lambda who: [ranked(learn.GBRank(n), who,
        lambda y, s: stats.kendalltau(y, s)[0]) for n in COUNTS], "trees; Kendall's tau"),
    "lambdamart": lambda: curves("LambdaMART: NDCG, by trees", COUNTS, lambda who: [
        ranked(learn.LambdaMART(n), who) for n in COUNTS], "trees; NDCG"),
    "rankboost": lambda: curves("RankBoost: thresholds add up", GRID, lambda who: (scores := learn.RankBoost(50).fit(
        *folds()[0][0][who]).predict(np.eye(10)[[8]] * GRID[:, None])) - scores.mean(), "s5 (triglycerides); score"),
    "ranksvm": lambda: curves("RankSVM: the first k of a query", range(1, 18, 2), lambda who: [
        ranked(learn.RankSVM(0.1), who, k=k) for k in range(1, 18, 2)], "k; NDCG of the first k"),
    "knn": lambda: wine("k-NN", learn.KNeighborsClassifier()),
    "kmeans": lambda: digits("k-means: ten centres", learn.KMeans(10), lambda model: model.cluster_centers_),
    "ftrl": lambda: curves("FTRL: even or odd", None, labels="weights at zero, %; accuracy, %", measure=lambda who: [(
        100 * ((model := learn.FTRLClassifier(l1=l1).fit(PAIRS[0][who][0], PAIRS[0][who][1] % 2)).coef_ == 0).mean(),
        100 * model.score(PAIRS[1], PAIRS[2] % 2)) for l1 in (0.01, 1.0, 3.0, 6.0, 10.0, 15.0)]),
    "ftml": lambda: curves("FTML: sees each row once", (*COUNTS, 100), lambda who: [accuracy(learn.FTMLClassifier(),
        who, ({who: tuple(each[:: 100 // n] for each in SPLIT[0][who])}, *SPLIT[1:])) for n in (*COUNTS, 100)],
        "rows seen, % of its own; accuracy, %", ylim=(0, 100)),
    "extraction": lambda: curves("Features learned on 0–4, for 5–9", (*FEW,), lambda who: [accuracy(
        learn.FeatureClassifier(_TRUNK, (1, 8, 8)), who, data) for data in FEW.values()], "rows, %; accuracy, %",
        [accuracy(learn.LogisticRegression(), "all", data) for data in FEW.values()]),
    "tuning": lambda: curves("Fine-tuning: from 0–4 to 5–9", COUNTS, lambda who: [accuracy(
        learn.FineTunedClassifier(_TRUNK, (1, 8, 8), epochs=n), who, FEW[8]) for n in COUNTS], "epochs; accuracy, %",
        [accuracy(learn.CNNClassifier(epochs=n), "all", FEW[8]) for n in COUNTS]),
}


def main() -> None:
    for name in sys.argv[1:] or PICTURES:
        path = DOCS / "pictures" / "learn" / f"{name}.png"
        plt.close(plt.gcf())
        PICTURES[name]()
        plt.savefig(path)
        Image.open(path).convert("RGB").quantize(200, Image.Quantize.FASTOCTREE).save(path, optimize=True)
        print(f"{name}: {path.stat().st_size} bytes", flush=True)


if __name__ == "__main__":
    main()
