"""Real data that packages ship, in rows to train on and rows to judge by, and who has which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn import datasets, model_selection

GRADES = [80, 140, 200, 260]  # of how sick a diabetic is
PATIENTS = 17  # of a query
LENGTHS = (0.5, 0.35, 0.8)  # of the poles of three parties


@dataclass(frozen=True)
class Data:
    """Rows, their targets, and the query of each."""

    x: Any
    y: Any
    queries: Any

    def some(self, rows: Any) -> Data:
        return Data(self.x[rows], self.y[rows], self.queries[rows])


def load(name: str) -> tuple[Data, Data]:
    """Rows to train on, and a quarter to judge by; queries stay whole. Features have mean 0 and deviation 1."""
    if name.startswith("ratings"):
        return ratings()
    found = getattr(datasets, f"load_{name.split(',', maxsplit=1)[0]}")()
    x, y = found.data.astype(np.float64), found.target
    x = x / 16.0 if name.startswith("digits") else (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1.0)
    queries = np.arange(len(y)) // PATIENTS
    if name.endswith("queries"):  # the sicker of some patients first
        y = np.digitize(y, GRADES)
    if name.endswith("5 to 9"):  # 0 to 4 were known before
        x, y, queries = (each[found.target >= 5] for each in (x, y, queries))
    groups = queries if name.endswith("queries") else np.arange(len(y))
    cut = model_selection.GroupShuffleSplit(1, test_size=0.25, random_state=0)
    known, asked = next(cut.split(x, y, groups))
    whole = Data(x, y, queries)
    return whole.some(known), whole.some(asked)


def ratings() -> tuple[Data, Data]:
    """Pixels of digits as what pictures rate, a fifth of them unknown; queries are the digits."""
    found = datasets.load_digits()
    users, items = np.nonzero(np.ones_like(found.data))
    whole = Data(np.stack([users, items], axis=1), found.data[users, items] / 16.0, found.target[users])
    is_known = np.random.default_rng(0).random(len(users)) < 0.8
    return whole.some(is_known), whole.some(~is_known)


def parts_of(name: str, data: Data) -> list[Any]:
    """The rows of each party: a sixth, a third, a half, mostly of other labels; or of other queries, or users."""
    if name.startswith("ratings"):
        users = np.unique(data.x[:, 0])
        order = users[np.argsort([data.queries[data.x[:, 0] == user][0] for user in users], kind="stable")]
        shares = np.split(order, [len(users) // 6, len(users) // 2])
        return [np.flatnonzero(np.isin(data.x[:, 0], share)) for share in shares]
    if name.endswith("queries"):
        names = np.unique(data.queries)
        shares = np.split(names, [len(names) // 6, len(names) // 2])
        return [np.flatnonzero(np.isin(data.queries, share)) for share in shares]
    noise = 0.3 * data.y.std() * np.random.default_rng(0).standard_normal(len(data.y))
    order = np.argsort(data.y + noise, kind="stable")
    return np.split(order, [len(order) // 6, len(order) // 2])


def world(length: float) -> Any:
    """A pole to be balanced."""
    import gymnasium  # noqa: PLC0415

    made = gymnasium.make("CartPole-v1")
    made.unwrapped.length = length  # type: ignore[attr-defined]
    made.unwrapped.polemass_length = length * made.unwrapped.masspole  # type: ignore[attr-defined]
    return made
