"""Networks for tests of overlays: meshes, sites with links between neighbours, and any."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from geomx.overlay.contract import Links, Load

INF = float("inf")
MBIT = 1e6 / 8
PLANNERS = ("star", "ts", "trees", "ring", "butterfly", "binary-blocks", "ps")


def links(
    members: int, rates: Sequence[Sequence[float]], access: float = INF, round_trip_s: float = 0.0
) -> Links:
    """With the same bound on all that leaves, and enters, each node."""
    n = len(rates)
    matrix = tuple(tuple(float(rate) for rate in row) for row in rates)
    return Links(members, n - members, matrix, (access,) * n, (access,) * n, ((round_trip_s,) * n,) * n)


def mesh(members: int, holders: int = 1, rate: float = 100 * MBIT, access: float = INF) -> Links:
    """Everybody reaches everybody."""
    n = members + holders
    return links(members, [[0 if i == j else rate for j in range(n)] for i in range(n)], access)


def sites(rates: Sequence[Sequence[float]], holders: Sequence[int]) -> Links:
    """Members with links between some, and holders beside some of them; rates in Mbit/s."""
    m = len(rates)
    beside = [[1e4 if site == holder else 0 for holder in holders] for site in range(m)]
    rows = [[*row, *beside[site]] for site, row in enumerate(rates)]
    rows += [[beside[site][k] for site in range(m)] + [0] * len(holders) for k in range(len(holders))]
    return links(m, [[rate * MBIT for rate in row] for row in rows])


def even(slices: int, holders: int = 1, up_bytes: int = 100_000, down_bytes: int = 100_000) -> list[Load]:
    """Slices of one size, which the holders share."""
    return [Load(k % holders, up_bytes, down_bytes) for k in range(slices)]


@st.composite
def any_links(draw: st.DrawFn) -> Links:
    """Any, where members reach the holders; other links may be missing."""
    members, holders = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    rate = st.sampled_from([0.0, 0.0, 1.0, 3.0, 20.0, 155.0, INF]) | st.floats(1, 200)
    bound = st.sampled_from([INF, INF, 100.0]) | st.floats(1, 200)
    n = members + holders

    def between(i: int, j: int) -> float:
        found = draw(rate)
        return (found or 2.0) * MBIT if max(i, j) >= members else found * MBIT

    rates = tuple(
        tuple(0.0 if i == j or min(i, j) >= members else between(i, j) for j in range(n)) for i in range(n)
    )
    leaving, entering = (tuple(draw(bound) * MBIT for _ in range(n)) for _ in range(2))
    trips = tuple(tuple(draw(st.sampled_from([0.0, 0.05])) for _ in range(n)) for _ in range(n))
    return Links(members, holders, rates, leaving, entering, trips)


@st.composite
def any_loads(draw: st.DrawFn, holders: int) -> list[Load]:
    """Any slices of these holders."""
    size = st.integers(0, 400_000)
    return draw(st.lists(st.builds(Load, st.integers(0, holders - 1), size, size), max_size=30))
