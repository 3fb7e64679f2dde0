"""What no overlay can beat: the rate of an all-reduce over a network of sites, by cuts and by a linear program.

For benchmarks and tests; the linear program needs scipy. Rates are those of sites' links, [from][to], in any unit. The
floor of a round is the bytes of the model divided by the rate.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product

Rates = Sequence[Sequence[float]]

NEIGHBOURS = ["12", "13", "23", "25", "34", "45", "46", "57", "67", "68", "69", "78", "89"]


def nine_sites(draws: int) -> Iterator[list[list[float]]]:
    """NetStorm's nine sites (arXiv 2404.11352): for each draw new rates of all links, 20 to 155 Mbit/s."""
    draw = random.Random(1)
    pairs = sorted((int(a) - 1, int(b) - 1) for each in NEIGHBOURS for a, b in (each, each[::-1]))
    for _ in range(draws):
        rates = [[0.0] * 9 for _ in range(9)]
        for one, other in pairs:
            rates[one][other] = float(draw.randint(20, 155))
        yield rates


def least_cut(rates: Rates) -> float:
    """The least rate from any set of sites to the others, or back: a bound on any all-reduce."""
    n = len(rates)
    least = float("inf")
    for inside in product((False, True), repeat=n):
        if any(inside) and not all(inside):
            least = min(
                least, sum(rates[i][j] for i in range(n) for j in range(n) if inside[i] and not inside[j])
            )
    return least


def optimum(rates: Rates, shares: Sequence[float] | None = None) -> float:
    """The greatest rate at which trees can add up what all sites have and hand it to all.

    Maximise R where c_in + c_out ≤ the rate of each directed link, and for each site v R can flow to v over c_out from
    where sums are held, and from v to there over c_in. Site r holds x_r of R. By Edmonds' theorem there are such trees.

    Args:
        rates: Of the links.
        shares: x / R of each site; None: the best.
    """
    import numpy as np  # noqa: PLC0415
    from scipy.optimize import linprog  # noqa: PLC0415
    from scipy.sparse import csr_matrix  # noqa: PLC0415

    n = len(rates)
    links = [(i, j) for i in range(n) for j in range(n) if rates[i][j]]
    e = len(links)
    # variables: c_in and c_out of each link, x of each site, R, then each flow's links and sources
    total, flows = 2 * e + n, 2 * e + n + 1
    below: list[dict[int, float]] = [{k: 1.0, e + k: 1.0} for k in range(e)]
    most = [float(rates[i][j]) for i, j in links] + [0.0] * (2 * n * (e + n))
    equal: list[dict[int, float]] = []
    for up, site in product(range(2), range(n)):
        first = flows + (up * n + site) * (e + n)
        below += [{first + k: 1.0, up * e + k: -1.0} for k in range(e)]
        below += [{first + e + r: 1.0, 2 * e + r: -1.0} for r in range(n)]
        nodes: list[dict[int, float]] = [{first + e + r: 1.0} for r in range(n)]
        for k, ends in enumerate(links):
            leaves, enters = ends if up else ends[::-1]
            nodes[leaves][first + k] = -1.0
            nodes[enters][first + k] = 1.0
        nodes[site][total] = -1.0
        equal += nodes
    if shares is None:
        equal.append({total: -1.0, **{2 * e + r: 1.0 for r in range(n)}})
    else:
        equal += [{2 * e + r: 1.0, total: -share} for r, share in enumerate(shares)]

    def matrix(rows: Sequence[dict[int, float]]) -> object:
        cells = [(i, j, value) for i, row in enumerate(rows) for j, value in row.items()]
        where = ([i for i, _, _ in cells], [j for _, j, _ in cells])
        return csr_matrix(
            ([value for _, _, value in cells], where), shape=(len(rows), flows + 2 * n * (e + n))
        )

    costs = np.zeros(flows + 2 * n * (e + n))
    costs[total] = -1
    found = linprog(
        costs, A_ub=matrix(below), b_ub=most, A_eq=matrix(equal), b_eq=np.zeros(len(equal)), method="highs"
    )
    return -float(found.fun)
